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

// A Report is the answer of analyze about one model under one configuration.
// Its JSON form is fixed; all sizes are bytes, all times milliseconds.
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
	Inference     *Inference      `json:"inference,omitempty"`
	Offload       *OffloadInfo    `json:"offload,omitempty"`
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
	// Capture is the file's record of the code's own run; nil without one.
	Capture *CaptureInfo `json:"capture,omitempty"`
}

// CaptureInfo describes the capture of a file that memplan's Python package exported.
type CaptureInfo struct {
	Torch  string `json:"torch"`
	Class  string `json:"class"`
	Run    string `json:"run"`    // mode and precision of the run that the report rests on; "" for none
	Unused string `json:"unused"` // why the report does not rest on the capture
	// Difference is the relative difference of the program's peak bytes to those of
	// the step that ran; nil if unknown.
	Difference *float64 `json:"difference,omitempty"`
}

// Peak is the largest memory of the first steps.
type Peak struct {
	RequestedBytes  int64  `json:"requestedBytes"`
	AllocatedBytes  int64  `json:"allocatedBytes"`
	ReservedBytes   int64  `json:"reservedBytes"`
	ProcessBytes    int64  `json:"processBytes"`
	UpperBoundBytes int64  `json:"upperBoundBytes"`           // Uncertainty.HighBytes
	Phase           string `json:"phase"`                     // forward, loss, backward, optimizer
	Step            int    `json:"step"`                      // 0 is the first
	Node            string `json:"node"`                      // the call that allocates at the peak
	IdealArenaBytes int64  `json:"idealArenaBytes,omitempty"` // inference: what an arena planned ahead nearly reaches (liveness.Ideal)
}

// Phases are the allocated bytes of a steady step, which starts after zero_grad
// has released the gradients of the previous step.
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

// BatchInfo is the result of a batch search.
type BatchInfo struct {
	Max        int64  `json:"max"`        // largest batch whose replay fits
	UpperBound int64  `json:"upperBound"` // no larger batch can fit
	LimitedBy  string `json:"limitedBy"`  // "backward (layer4.2.conv3)", "optimizer", ..
	Checkpoint string `json:"checkpoint"` // the search's checkpoints: none, file (given segments), all, sqrt, or auto (any segments)

	Best *BestBatch `json:"best,omitempty"` // with --batch best or --target-batch: why the report's batch is
}

// CheckpointInfo is a selection.
type CheckpointInfo struct {
	Class             string          `json:"class"` // segments, selective, offload, schedule or ops
	Segments          []train.Segment `json:"segments"`
	RecomputeOverhead float64         `json:"recomputeOverhead"` // extra time relative to the step without, waiting for the host included, 0.05 is 5%
	LowerBound        float64         `json:"lowerBound"`        // no fitting plan of the class has less overhead
	Gap               float64         `json:"gap"`               // overhead minus lower bound
	Optimal           bool            `json:"optimal"`

	// ScheduleBound is the least overhead of any fitting schedule, whatever it
	// recomputes and when: RecomputeOverhead minus this bounds the cost of the
	// class's restrictions.
	ScheduleBound float64                 `json:"scheduleBound"`
	Recomputed    []Recomputed            `json:"recomputed"` // of a schedule
	Restore       []checkpointsel.Restore `json:"restore"`    // state that must be restored before operations run again
}

// TimeInfo is an estimate by roofline, or from measured times.
type TimeInfo struct {
	ForwardMs        float64 `json:"forwardMs"`
	BackwardMs       float64 `json:"backwardMs"` // including recomputation
	OptimizerMs      float64 `json:"optimizerMs"`
	StepMs           float64 `json:"stepMs"`
	SamplesPerSecond float64 `json:"samplesPerSecond"`
	// WaitingMs is the time that distribution adds to a rank's step: communication that
	// no computation overlaps, and idle stages of a pipeline.
	WaitingMs float64 `json:"waitingMs,omitempty"`
	// Sources counts the operations whose times were measured; nil if no times
	// were given.
	Sources *TimeSources `json:"sources,omitempty"`
}

// A CurvePoint is the allocated bytes after an event of the peak's step.
type CurvePoint struct {
	Phase string
	Bytes int64
}

// An Origin is the document of a selection, and the model for which it was made.
type Origin struct {
	Document string // its path
	Path     string // of the model, if the document has it
	SHA256   string // of the model; "" if unknown
}

// A Plan is the document that plan writes and config, check and diff read.
type Plan struct {
	Report
	Selection []train.Segment `json:"selection"`
	Weights   Weights         `json:"weights,omitempty"` // of the model, if the plan names parameters: whoever applies the plan compares them
	Schedule  []remat.Step    `json:"schedule"`          // of the operations of the step without checkpoints; empty: their own order
	Proof     string          `json:"proof"`             // basis of the bound, in words
	Arena     *Arena          `json:"arena,omitempty"`
}

// Weights are the shapes of parameters by name, as in named_parameters(). A
// file may lack some, or name them differently.
type Weights map[string][]int64

// A Verdict is the outcome of one rule on one model.
type Verdict struct {
	Model   string `json:"model"`
	Rule    string `json:"rule"`
	OK      *bool  `json:"ok"` // nil if undetermined
	Value   string `json:"value"`
	Limit   string `json:"limit"`
	Message string `json:"message"`
}
