package planner

import (
	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/train"
)

// SchemaVersion is the version of the JSON documents. Within a version fields
// are added, never renamed or removed.
const SchemaVersion = 1

// A Report is what analyze says about one model under one configuration. Its
// JSON form is fixed; all sizes are bytes, all times milliseconds.
type Report struct {
	SchemaVersion int             `json:"schemaVersion"`
	Model         ModelInfo       `json:"model"`
	Config        Config          `json:"config"`
	Peak          Peak            `json:"peak"`
	Phases        Phases          `json:"phases"`
	Breakdown     []CategoryBytes `json:"breakdown"`
	Live          []LiveValue     `json:"live"`
	SavedBytes    int64           `json:"savedBytes"`
	Uncertainty   Uncertainty     `json:"uncertainty"`
	Fits          *bool           `json:"fits"`
	Batch         *BatchInfo      `json:"batch,omitempty"`
	Checkpoint    *CheckpointInfo `json:"checkpoint,omitempty"`
	Time          TimeInfo        `json:"time"`
	Parallel      *ParallelInfo   `json:"parallel,omitempty"` // with several cards: Peak and all else are of the worst rank
	Warnings      []graph.Warning `json:"warnings"`
	Curve         []CurvePoint    `json:"-"` // allocated bytes over the peak step, for the drawing
}

// ModelInfo describes the file.
type ModelInfo struct {
	Path           string           `json:"path"`
	SHA256         string           `json:"sha256"`
	IRVersion      int64            `json:"irVersion"`
	Opsets         map[string]int64 `json:"opsets"`
	Producer       string           `json:"producer"`
	Nodes          int              `json:"nodes"`
	Parameters     int64            `json:"parameters"` // elements
	ParameterBytes int64            `json:"parameterBytes"`
	Lift           string           `json:"lift"` // capture, metadata, patterns or none
	// Capture is what the file holds of the code's own run; nil without.
	Capture *CaptureInfo `json:"capture,omitempty"`
}

// CaptureInfo describes the capture of a file that memplan's Python package exported.
type CaptureInfo struct {
	Torch  string `json:"torch"`
	Class  string `json:"class"`
	Run    string `json:"run"`    // mode and precision of the run that the report rests on; "" for none
	Unused string `json:"unused"` // why it rests on none
	// Difference is how many parts more bytes the program has at its peak than lived
	// when the step ran; nil where the file does not say.
	Difference *float64 `json:"difference,omitempty"`
}

// Peak is the largest need of the first steps.
type Peak struct {
	RequestedBytes  int64  `json:"requestedBytes"`
	AllocatedBytes  int64  `json:"allocatedBytes"`
	ReservedBytes   int64  `json:"reservedBytes"`
	ProcessBytes    int64  `json:"processBytes"`
	UpperBoundBytes int64  `json:"upperBoundBytes"`           // Uncertainty.HighBytes
	Phase           string `json:"phase"`                     // forward, loss, backward, optimizer
	Step            int    `json:"step"`                      // 0 is the first
	Node            string `json:"node"`                      // the call that allocates at the peak
	IdealArenaBytes int64  `json:"idealArenaBytes,omitempty"` // inference: what an arena planned ahead comes close to (liveness.Ideal)
}

// Phases are allocated bytes of a steady step, which starts when zero_grad has
// let go of the gradients of the step before.
type Phases struct {
	Start         int64 `json:"start"`
	AfterForward  int64 `json:"afterForward"`
	AfterBackward int64 `json:"afterBackward"`
	AfterStep     int64 `json:"afterStep"`
	ForwardPeak   int64 `json:"forwardPeak"`
	BackwardPeak  int64 `json:"backwardPeak"`
	OptimizerPeak int64 `json:"optimizerPeak"`
}

// CategoryBytes is one category's share of allocated bytes at the peak.
type CategoryBytes struct {
	Category string `json:"category"`
	Bytes    int64  `json:"bytes"`
}

// A LiveValue is one storage that is live at the peak.
type LiveValue struct {
	Value    string `json:"value"`
	Bytes    int64  `json:"bytes"`
	Category string `json:"category"`
	Node     string `json:"node"` // the call that allocated it
	Module   string `json:"module"`
}

// BatchInfo is the outcome of a batch search.
type BatchInfo struct {
	Max        int64  `json:"max"`        // largest batch whose replay fits
	UpperBound int64  `json:"upperBound"` // no larger batch can fit
	LimitedBy  string `json:"limitedBy"`  // "backward (layer4.2.conv3)", "optimizer", ..
	Checkpoint string `json:"checkpoint"` // what the search ran with: none, file (segments that were given), all, sqrt, or auto (any segments)
}

// CheckpointInfo is a selection.
type CheckpointInfo struct {
	Class             string          `json:"class"` // segments, schedule or ops
	Segments          []train.Segment `json:"segments"`
	RecomputeOverhead float64         `json:"recomputeOverhead"` // extra time over the step without, 0.05 is 5%
	LowerBound        float64         `json:"lowerBound"`        // no plan of the class that fits has less overhead
	Gap               float64         `json:"gap"`               // overhead less bound
	Optimal           bool            `json:"optimal"`

	// ScheduleBound is the least overhead of any schedule that fits, whatever
	// it recomputes and when: RecomputeOverhead less this is what it costs at
	// most that the class has no better plan.
	ScheduleBound float64                 `json:"scheduleBound"`
	Recomputed    []Recomputed            `json:"recomputed"` // of a schedule
	Restore       []checkpointsel.Restore `json:"restore"`    // what must be as it was for operations to run again
}

// TimeInfo is the roofline estimate, or made of measured times.
type TimeInfo struct {
	ForwardMs        float64 `json:"forwardMs"`
	BackwardMs       float64 `json:"backwardMs"` // with recomputation
	OptimizerMs      float64 `json:"optimizerMs"`
	StepMs           float64 `json:"stepMs"`
	SamplesPerSecond float64 `json:"samplesPerSecond"`
	// WaitingMs is what communication adds to the step of a rank of several: what nothing
	// is computed beside, and the stages of a pipeline that wait.
	WaitingMs float64 `json:"waitingMs,omitempty"`
	// Sources says which operations' times were measured; nil: none were given.
	Sources *TimeSources `json:"sources,omitempty"`
}

// A CurvePoint is allocated bytes after an event of the peak's step.
type CurvePoint struct {
	Phase string
	Bytes int64
}

// An Origin says which document a selection is from, and for which model it was made.
type Origin struct {
	Document string // its path
	Path     string // of the model, where the document says so
	SHA256   string // of the model; "": not said
}

// A Plan is the document that plan writes and config, check and diff read.
type Plan struct {
	Report
	Selection []train.Segment `json:"selection"`
	Weights   Weights         `json:"weights,omitempty"` // of the model, where it names them: what applies the plan compares
	Schedule  []remat.Step    `json:"schedule"`          // of the operations of the step without checkpoints; empty: as they stand
	Proof     string          `json:"proof"`             // what the bound rests on, in words
	Arena     *Arena          `json:"arena,omitempty"`
}

// Weights are the shapes of parameters by their names, as in
// named_parameters(). A file may lack some, or have other names for them.
type Weights map[string][]int64

// A Verdict is the outcome of one rule on one model.
type Verdict struct {
	Model   string `json:"model"`
	Rule    string `json:"rule"`
	OK      *bool  `json:"ok"` // nil: could not tell
	Value   string `json:"value"`
	Limit   string `json:"limit"`
	Message string `json:"message"`
}
