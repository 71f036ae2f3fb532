package planner

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/shard"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner/profile"
)

// A Config is a question: what the user asks for, with the zero value of a
// field as its default. Reports and plans hold the resolved question; they
// contain the fields with a JSON name.
type Config struct {
	Mode            string           `json:"mode"`  // train, infer
	Batch           int64            `json:"batch"` // 0: not given; in a report: the model has no batch dimension
	Dims            map[string]int64 `json:"dims"`
	Precision       string           `json:"precision"`
	Optimizer       string           `json:"optimizer"`
	Loss            string           `json:"loss"`
	GPU             string           `json:"gpu"`
	GPUAssumed      bool             `json:"gpuAssumed,omitempty"` // in a report: nobody named the card; its context, workspaces, kernels and rates are the default's
	Runtime         string           `json:"runtime"`
	Attention       string           `json:"attention"`
	Accumulate      int              `json:"accumulate"`
	Target          int              `json:"targetBatch,omitempty"`   // samples of a step, in batches of memplan's choice; 0: not given
	Checkpoint      string           `json:"checkpoint"`              // one of Checkpoints, a framework's setting or a file; "" lets the budget decide
	Freeze          []string         `json:"freeze"`                  // patterns of parameters that require no gradient
	LoRA            string           `json:"lora"`                    // adapters, as ParseLoRA reads them
	Hold            bool             `json:"holdOutputs"`             // the training loop holds the outputs during backward
	InBackward      bool             `json:"inBackward,omitempty"`    // the optimizer updates each parameter in a hook of backward
	AllocConf       string           `json:"allocConf"`               // value of PYTORCH_ALLOC_CONF
	VRAM            int64            `json:"vramBytes"`               // the card's memory; 0: not given
	Headroom        string           `json:"headroom"`                // as ParseHeadroom reads it; "": auto
	Parallel        string           `json:"parallel,omitempty"`      // a mesh, as ParseParallel reads it; "": one card
	FSDPWrap        string           `json:"fsdpWrap,omitempty"`      // blocks, or a pattern of module names
	FSDPReshard     string           `json:"fsdpReshard,omitempty"`   // whether gathered parameters go after forward
	FSDPPrecision   string           `json:"fsdpPrecision,omitempty"` // none, bf16
	FSDPOffload     bool             `json:"fsdpOffload,omitempty"`
	Offload         string           `json:"offload,omitempty"`       // one of Offloads; "": none
	HostBandwidth   int64            `json:"hostBandwidth,omitempty"` // of copies to the host and back, bytes per second; 0: the card's
	FSDPPrefetch    int              `json:"fsdpPrefetch,omitempty"`  // units gathered ahead; 0: FSDP2's default
	DDPBucket       int64            `json:"ddpBucket,omitempty"`     // bytes; 0: the default
	DDPFirst        int64            `json:"ddpFirst,omitempty"`      // bytes of the first bucket; 0: the default
	DDPViews        bool             `json:"ddpViews,omitempty"`      // gradient_as_bucket_view
	DDPUnused       bool             `json:"ddpUnused,omitempty"`     // find_unused_parameters
	ZeROBucket      int              `json:"zeroBucket,omitempty"`    // elements; 0: DeepSpeed's default, as below
	ZeROOverlap     bool             `json:"zeroOverlap,omitempty"`
	ZeROPersistence int              `json:"zeroPersistence,omitempty"`
	ZeROReuse       int              `json:"zeroReuse,omitempty"`
	ZeROPrefetch    int              `json:"zeroPrefetch,omitempty"`
	ZeROLive        int              `json:"zeroLive,omitempty"`
	TPColwise       []string         `json:"tpColwise,omitempty"` // patterns of modules; none: memplan's choice
	TPRowwise       []string         `json:"tpRowwise,omitempty"`
	TPSequence      []string         `json:"tpSequence,omitempty"`  // patterns of norms, or norms; none: no sequence parallelism
	TPLoss          bool             `json:"tpLoss,omitempty"`      // loss_parallel
	CPDim           []string         `json:"cpDim,omitempty"`       // dims of the file that the ranks of a sequence divide; none: the only one given
	EPExperts       []string         `json:"epExperts,omitempty"`   // patterns of modules with experts; none: memplan's choice
	EPImbalance     string           `json:"epImbalance,omitempty"` // rows that a rank receives, as a multiple of a balanced router's, or all; "": 1
	PPSplit         string           `json:"ppSplit,omitempty"`     // modules that stages begin with, or blocks
	PPMicros        int              `json:"ppMicros,omitempty"`
	PPSchedule      string           `json:"ppSchedule,omitempty"` // a name of shard.Schedules
	PPStages        int              `json:"ppStages,omitempty"`   // of a rank; 0: the schedule's default

	Times string `json:"times,omitempty"` // file of measured operator times, as ReadTimes reads it

	BatchMax  bool                   `json:"-"` // the largest batch that fits
	BatchBest bool                   `json:"-"` // that of the most samples per second
	Lengths   map[string]string      `json:"-"` // files of sizes that dims are drawn from, for Phases
	Shapes    map[string]graph.Shape `json:"-"` // of values that inference does not know
	Memory    int64                  `json:"-"` // limit of the memory for reading one file, bytes; 0: onnx.DefaultMemory
	Segments  []train.Segment        `json:"-"` // explicit selection, from a Plan or a configuration
	Schedule  []remat.Step           `json:"-"` // explicit schedule, from a Plan
	Made      Origin                 `json:"-"` // origin of Segments and Schedule
	Files     *files.Door            `json:"-"` // through which the model, GPU, Runtime and Times are opened if they name files; nil: the command line's
	Strict    bool                   `json:"-"` // a file that breaks ONNX's rules, or does not show the training step, is an error
	Notes     []graph.Warning        `json:"-"` // about the origin of the question, for the report
}

// settled returns the question without what documents leave out.
func (c Config) settled() Config {
	c.BatchMax, c.BatchBest, c.Target, c.Shapes, c.Memory, c.Segments, c.Schedule = false, false, 0, nil, 0, nil, nil
	c.Lengths = nil
	c.Made, c.Files, c.Strict, c.Notes = Origin{}, nil, false, nil
	return c
}

// door returns the door through which the question's files are opened.
func (c *Config) door() files.Door {
	if c.Files == nil {
		return files.Door{}
	}
	return *c.Files
}

// A Setting is one setting of a question, in all the forms in which it is
// written and read: a flag of every command that takes a model, a key of
// .memplan.yaml, a part of a report's line, an option of the command that
// repeats a plan. Documents hold the field of Config itself.
type Setting struct {
	Flag    string
	Doc     string             // help of the flag; back quotes mark the name of its value
	Default string             // value if it is not given; "": other settings or the file decide
	Names   []string           // valid values; nil: any
	Find    func(string) error // checks a value: with Names, whether it means one of them; nil: Names and At suffice
	Offer   []string           // completions, for values that Names does not bound
	File    bool               // a value may name a file
	Empty   bool               // a value may be empty
	Sample  string             // a value other than Default, which tests use if there are no Names
	Key     string             // in .memplan.yaml; "": none
	About   string             // description of the key in the schema of that file
	Schema  jsonSchema         // schema of the key's values, if Names does not bound them

	// At returns a pointer to the value in a question: a text, a switch, a positive int, a
	// size (int64), or a list or map, to which each flag adds; or the question itself if Set
	// and Get handle it. Get returns words for Set, nil for the default.
	At  func(c *Config) any
	Set func(c *Config, word string) error
	Get func(c *Config) []string

	Said     string                    // in a report's line, with %s for the value; "": omitted
	Always   bool                      // in the line even if it is Default
	Last     bool                      // after the others
	Training bool                      // of the training step: an inference has none
	Budget   bool                      // what the step must fit: last in the command that repeats a plan
	Unsaid   []string                  // values that this command omits
	Usual    func(m *ModelInfo) string // instead of Default, if the model's file decides
}

// Settings are in the order in which configurations read them and commands
// repeat them.
var Settings = []Setting{
	{Flag: "batch", Doc: "batch size `N`, or max: the largest that fits, or best: that of the most samples per second, with the checkpoints for it", Offer: []string{"max", "best"}, Sample: "24", At: func(c *Config) any { return c }, Set: setBatch, Get: getBatch,
		Key: "batch", About: "samples of a step, or max for the largest that fits, or best for the most samples per second", Schema: jsonSchema{"anyOf": []any{jsonSchema{"type": "integer", "minimum": 1}, jsonSchema{"type": "string", "pattern": "^(max|best|[0-9]+)$"}}}},
	{Flag: "dim", Doc: "bind a symbolic dimension, `NAME=N`; repeatable; for analyze also NAME=FILE.csv, a column of sizes to draw from", Sample: "seq=12", At: func(c *Config) any { return &c.Dims }, Said: "%s", Last: true,
		Key: "dims", About: "other symbolic dimensions", Schema: jsonSchema{"type": "object", "additionalProperties": jsonSchema{"anyOf": []any{jsonSchema{"type": "integer", "minimum": 0}, jsonSchema{"type": "string", "pattern": "^[0-9]+$"}}}}},
	{Flag: "shape", Doc: "shape of a value that inference does not know, `NAME=D0,D1,..`; repeatable", Sample: "x=2,seq", At: func(c *Config) any { return &c.Shapes }},
	{Flag: "mode", Doc: "`WHAT` runs", Default: "train", Names: []string{"train", "infer"}, At: func(c *Config) any { return &c.Mode }, Said: "%s", Always: true, Key: "mode"},
	{Flag: "precision", Doc: "element types, `NAME`", Default: profile.Precisions[0].Name, Names: profile.PrecisionNames(), Find: found(profile.FindPrecision), At: func(c *Config) any { return &c.Precision }, Said: "%s", Always: true,
		Key: "precision", About: "of parameters and of the computation"},
	{Flag: "optimizer", Doc: "optimizer `NAME`", Default: profile.Optimizers[0].Name, Names: profile.OptimizerNames(), Find: found(profile.FindOptimizer), At: func(c *Config) any { return &c.Optimizer }, Said: "%s", Always: true, Training: true,
		Key: "optimizer", About: "that updates the parameters"},
	{Flag: "loss", Doc: "loss function `NAME`", Default: "auto", Names: texts(train.Losses, func(l *struct{ Name, Doc string }) string { return l.Name }), At: func(c *Config) any { return &c.Loss }, Said: "loss %s", Always: true, Training: true},
	{Flag: "attention", Doc: "`KERNEL` of attention", Default: "auto", Names: Attentions, At: func(c *Config) any { return &c.Attention }, Said: "attention %s", Last: true},
	{Flag: "runtime", Doc: "what PyTorch and its libraries do, `NAME` or a file that calibrate wrote (the release that exported the model); ort-1.31, for an inference, what onnxruntime's arena on a processor takes", Names: profile.RuntimeNames(), Find: found(profile.FindRuntime), File: true,
		At: func(c *Config) any { return &c.Runtime }, Said: "%s", Last: true, Usual: func(m *ModelInfo) string { r, _ := profile.RuntimeOf(m.Producer); return r.Name }},
	{Flag: "accumulate", Doc: "gradient accumulation over `N` batches a step", Default: "1", Sample: "3", At: func(c *Config) any { return &c.Accumulate }, Said: "%s batches a step"},
	{Flag: "target-batch", Doc: "train `N` samples a step in the least time: memplan chooses the batch, how many accumulate, and the checkpoints", Sample: "512", At: func(c *Config) any { return &c.Target }, Said: "%s samples a step",
		Key: "target-batch", About: "samples of a step, in batches of memplan's choice", Schema: jsonSchema{"type": "integer", "minimum": 1}},
	{Flag: "offload", Doc: "`WHAT` may go to the host's memory: activations, those that the budget asks for, kept, recomputed or copied out on a stream of their own; optimizer, the parameters' state and update; or both (memplan help offload)", Names: Offloads, Sample: "activations",
		At: func(c *Config) any { return &c.Offload }, Said: "%s offloaded", Unsaid: []string{"none"}, Key: "offload", About: "what may go to the host's memory"},
	{Flag: "host-bandwidth", Doc: "`SIZE` that the card copies in a second to the host's pinned memory, and back (estimated from its link, or as calibrate measured it)", Sample: "25G", At: func(c *Config) any { return &c.HostBandwidth }, Get: func(c *Config) []string { return sizeWords(c.HostBandwidth) }, Said: "%s a second to the host"},
	{Flag: "freeze", Doc: "parameters that are not trained: a name, a module, or a `PATTERN` such as '*.bias'; repeatable", Sample: "*.bias", At: func(c *Config) any { return &c.Freeze }, Said: "frozen %s"},
	{Flag: "lora", Doc: "low-rank adapters on a frozen model, `r=16,target=q_proj,v_proj` (or target=all-linear), as PEFT attaches them", Sample: "r=8,target=all-linear", At: func(c *Config) any { return &c.LoRA }, Said: "adapters %s"},
	{Flag: "hold-outputs", Doc: "the training loop holds the model's outputs until the update", Sample: "true", At: func(c *Config) any { return &c.Hold }, Said: "outputs held"},
	{Flag: "in-backward", Doc: "each parameter is updated in a hook of backward as soon as its gradient is there, and the gradient freed (memplan help in-backward)", Sample: "true", At: func(c *Config) any { return &c.InBackward }, Said: "updates in backward"},
	{Flag: "parallel", Doc: "`MESH` of cards that the step is spread over: ddp=N, zero1=N, fsdp=N or hsdp=REPLICASxSHARDS, zero2=N or zero3=N of DeepSpeed, tp=N, cp=N, ep=N and pp=N, and products such as fsdp=4,tp=2; the batch is each rank's, under cp that of the ranks that share its sequences", Offer: []string{"ddp=2", "zero1=2", "zero2=2", "zero3=2", "fsdp=2", "hsdp=2x2", "tp=2", "cp=2", "ep=2", "pp=2", "fsdp=2,tp=2", "fsdp=4,ep=2", "fsdp=1,cp=2"}, Find: found(ParseParallel), Sample: "fsdp=4",
		At: func(c *Config) any { return &c.Parallel }, Said: "on %s", Training: true, Key: "parallel", About: "mesh of cards, such as fsdp=8", Schema: jsonSchema{"type": "string"}},
	{Flag: "fsdp-wrap", Doc: "modules that fully_shard is called on beside the root: blocks, those that the model repeats, class:NAMES, those of these classes, root, none, or a `PATTERN` of names", Default: "blocks", Offer: []string{"blocks", "root"}, Sample: "layers.*", At: func(c *Config) any { return &c.FSDPWrap }, Said: "sharded by %s"},
	{Flag: "fsdp-reshard", Doc: "`WHETHER` gathered parameters are freed after forward (reshard_after_forward): true, false, or N, of which a rank then keeps its part", Default: "true", Offer: []string{"true", "false"}, Find: found(parseReshard), Sample: "2", At: func(c *Config) any { return &c.FSDPReshard }, Said: "reshard_after_forward=%s"},
	{Flag: "fsdp-precision", Doc: "`TYPE` that parameters are gathered in (MixedPrecisionPolicy; gradients are reduced in float32)", Default: "none", Names: []string{"none", "bf16"}, At: func(c *Config) any { return &c.FSDPPrecision }, Said: "gathered in %s"},
	{Flag: "fsdp-offload", Doc: "parameters, gradients and optimizer are on the host (CPUOffloadPolicy)", Sample: "true", At: func(c *Config) any { return &c.FSDPOffload }, Said: "offloaded to the host"},
	{Flag: "fsdp-prefetch", Doc: "gather `N` modules ahead in forward and backward (set_modules_to_forward_prefetch; by default one in backward)", Sample: "2", At: func(c *Config) any { return &c.FSDPPrefetch }, Said: "%s gathered ahead"},
	{Flag: "ddp-bucket", Doc: "`SIZE` of DDP's gradient buckets (bucket_cap_mb, 25M)", Sample: "50M", At: func(c *Config) any { return &c.DDPBucket }, Get: func(c *Config) []string { return sizeWords(c.DDPBucket) }, Said: "buckets of %s"},
	{Flag: "ddp-first-bucket", Doc: "`SIZE` of the first of them (1M; that of the others with --ddp-bucket)", Sample: "2M", At: func(c *Config) any { return &c.DDPFirst }, Get: func(c *Config) []string { return sizeWords(c.DDPFirst) }, Said: "first bucket of %s"},
	{Flag: "ddp-views", Doc: "gradients are views into the buckets (gradient_as_bucket_view)", Sample: "true", At: func(c *Config) any { return &c.DDPViews }, Said: "gradients as views of buckets"},
	{Flag: "ddp-unused", Doc: "DDP looks for parameters without gradients (find_unused_parameters)", Sample: "true", At: func(c *Config) any { return &c.DDPUnused }, Said: "unused parameters found"},
	{Flag: "zero-bucket", Doc: "`N` elements of DeepSpeed's bucket of gradients (reduce_bucket_size, 500000000)", Sample: "200000000", At: func(c *Config) any { return &c.ZeROBucket }, Said: "buckets of %s elements"},
	{Flag: "zero-overlap", Doc: "two buckets in stage 2 (overlap_comm; stage 3 overlaps in any case)", Sample: "true", At: func(c *Config) any { return &c.ZeROOverlap }, Said: "two buckets"},
	{Flag: "zero-persistence", Doc: "parameters of up to `N` elements stay whole in stage 3 (stage3_param_persistence_threshold, 100000)", Sample: "10000", At: func(c *Config) any { return &c.ZeROPersistence }, Said: "parameters of up to %s elements whole"},
	{Flag: "zero-reuse", Doc: "gathered parameters stay in stage 3 that are used again within `N` elements (stage3_max_reuse_distance, 1000000000)", Sample: "100000000", At: func(c *Config) any { return &c.ZeROReuse }, Said: "reused within %s elements"},
	{Flag: "zero-prefetch", Doc: "stage 3 gathers `N` elements ahead (stage3_prefetch_bucket_size, 50000000)", Sample: "20000000", At: func(c *Config) any { return &c.ZeROPrefetch }, Said: "%s elements gathered ahead"},
	{Flag: "zero-live", Doc: "stage 3 gathers nothing ahead where `N` elements are whole (stage3_max_live_parameters, 1000000000)", Sample: "200000000", At: func(c *Config) any { return &c.ZeROLive }, Said: "at most %s elements whole ahead"},
	{Flag: "tp-colwise", Doc: "linear modules that tensor parallelism splits by outputs, a `PATTERN` of names; repeatable (memplan's choice: query, key, value and the MLP's first)", Sample: "*.up", At: func(c *Config) any { return &c.TPColwise }, Said: "split by outputs %s"},
	{Flag: "tp-rowwise", Doc: "linear modules that it splits by inputs, a `PATTERN` of names; repeatable (memplan's choice: attention's last and the MLP's last)", Sample: "*.down", At: func(c *Config) any { return &c.TPRowwise }, Said: "split by inputs %s"},
	{Flag: "tp-sequence", Doc: "norms that run on parts of the sequence, a `PATTERN` of names, or norms, all of them; repeatable: activations between split modules are then divided, too (SequenceParallel)", Sample: "norms", At: func(c *Config) any { return &c.TPSequence }, Said: "sequences divided at %s"},
	{Flag: "tp-loss", Doc: "the last linear module is split by outputs, and the loss takes its scores in parts (loss_parallel)", Sample: "true", At: func(c *Config) any { return &c.TPLoss }, Said: "the loss in parts"},
	{Flag: "cp-dim", Doc: "the dim that context parallelism divides, a `NAME` of --dim, which gives its whole length; repeatable (the only one given; without --dim sequences are counted by their tokens)", Sample: "seq", At: func(c *Config) any { return &c.CPDim }, Said: "%s divided"},
	{Flag: "ep-experts", Doc: "modules whose experts the ranks of ep share, a `PATTERN` of names whose * is one part, model.layers.*.mlp.experts; repeatable (memplan's choice: matrices that a router's topk picks from, and lists of modules alike)", Sample: "layers.*.experts", At: func(c *Config) any { return &c.EPExperts }, Said: "experts %s"},
	{Flag: "ep-imbalance", Doc: "rows that a rank's experts receive, `TIMES` those of a balanced router, or all, those of all ranks; in any case the report says what both ends need", Default: "1", Offer: []string{"1", "1.5", "all"}, Find: found(parseImbalance), Sample: "1.5", At: func(c *Config) any { return &c.EPImbalance }, Said: "%s times a balanced router's rows"},
	{Flag: "pp-split", Doc: "`MODULES` that stages of a pipeline begin with, all but the first, with commas, or blocks: as many blocks that the model repeats in each; --pp-schedule says how many stages a rank has", Default: "blocks", Offer: []string{"blocks"}, Sample: "layers.2,layers.4", At: func(c *Config) any { return &c.PPSplit }, Said: "stages from %s"},
	{Flag: "pp-micros", Doc: "`N` micro-batches of a pipeline's step, each of --batch samples (as many as stages)", Sample: "8", At: func(c *Config) any { return &c.PPMicros }, Said: "%s micro-batches"},
	{Flag: "pp-schedule", Doc: "`ORDER` in which stages run micro-batches", Default: shard.Schedules[0].Name, Names: scheduleNames(), At: func(c *Config) any { return &c.PPSchedule }, Said: "schedule %s"},
	{Flag: "pp-stages", Doc: "`N` stages a rank under schedules that have several: interleaved, bfs, zero-bubble (2)", Sample: "3", At: func(c *Config) any { return &c.PPStages }, Said: "%s stages a rank"},
	{Flag: "alloc-conf", Doc: "PyTorch's allocator options, as in PYTORCH_ALLOC_CONF: `expandable_segments:True,..`", Empty: true, Sample: "expandable_segments:True", At: func(c *Config) any { return &c.AllocConf }, Said: "%s"},
	{Flag: "times", Doc: "measured operator times, a `FILE` that validate --profile wrote: predict times and recomputation from them (the roofline)", File: true, Sample: "times.json", At: func(c *Config) any { return &c.Times }},
	{Flag: "checkpoint", Doc: "what is recomputed, `HOW`: " + strings.Join(Checkpoints, "|") + ", a framework's setting such as huggingface:every_n_layers=2, or a file, a plan or a configuration; auto, and segments, which keep nothing, for PyTorch, schedule and ops for memplan's executor (what the budget asks for)",
		File: true, Offer: Checkpoints, Sample: "sqrt", At: func(c *Config) any { return &c.Checkpoint }, Unsaid: []string{"none", "auto", "file"},
		Key: "checkpoint", About: "how activations are checkpointed, or a plan's file", Schema: jsonSchema{"type": "string", "anyOf": []any{jsonSchema{"enum": Checkpoints}, jsonSchema{"pattern": "."}}}},
	{Flag: "gpu", Doc: "card `NAME`, or a file that calibrate wrote (h200 unless --vram is given); for analyze several, with commas, or all", Names: profile.DeviceNames(), Find: found(Cards), File: true, At: func(c *Config) any { return &c.GPU }, Get: getGPU, Budget: true,
		Key: "gpu", About: "a card that the step must fit"},
	{Flag: "vram", Doc: "memory of the card, a `SIZE`: 16G = 16GiB = 16*2^30, 16GB = 16*10^9; the CUDA context is subtracted", Sample: "17G", At: func(c *Config) any { return &c.VRAM }, Get: getVRAM, Budget: true,
		Key: "vram", About: "memory that the step must fit, such as 16G", Schema: sizeSchema},
	{Flag: "headroom", Doc: "memory of the card that verdicts, plans and batches leave free: auto, by the uncertainty of the prediction, 0, a `SIZE` or P%", Default: AutoHeadroom, Sample: "5%", Find: found(ParseHeadroom), At: func(c *Config) any { return &c.Headroom },
		Key: "headroom", About: "memory of the card that stays free: auto, 0, a size or a percentage", Schema: sizeSchema},
}

// found turns a table's lookup into a check.
func found[T any](find func(string) (T, error)) func(string) error {
	return func(name string) error {
		_, err := find(name)
		return err
	}
}

// texts returns the text of each element of a list.
func texts[T any](list []T, text func(*T) string) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = text(&list[i])
	}
	return out
}

// Read sets the setting in a question from a word of a command line. Errors
// begin with the name of the flag.
func (s *Setting) Read(c *Config, word string) (err error) {
	switch at := s.At(c).(type) {
	case *string:
		if *at = word; s.Names == nil && s.Find != nil {
			err = s.Find(word)
		}
	case *bool:
		*at, err = strconv.ParseBool(word)
	case *int:
		if *at, err = strconv.Atoi(word); err != nil || *at < 1 {
			err = fmt.Errorf("%s %s: want a positive integer", s.Flag, word)
		}
	case *int64:
		*at, err = PositiveSize(s.Flag, word)
	case *[]string:
		*at = append(*at, word)
	case *map[string]int64:
		if name, file, ok := lengthsFile(word); ok {
			put(&c.Lengths, name, file)
			break
		}
		err = setDim(at, word)
	case *map[string]graph.Shape:
		err = setShape(at, word)
	default:
		err = s.Set(c, word)
	}
	return err
}

// Values returns the words with which Read reproduces the question's value; nil
// for the default.
func (s *Setting) Values(c *Config) []string {
	if s.Get != nil {
		return s.Get(c)
	}
	switch at := s.At(c).(type) {
	case *[]string:
		return *at
	case *map[string]int64:
		return pairs(*at)
	case *map[string]graph.Shape:
		return pairs(*at)
	default:
		if v := reflect.ValueOf(at).Elem(); !v.IsZero() {
			return []string{fmt.Sprint(v)}
		}
	}
	return nil
}

// check returns an error for a word that is not one of the setting's names.
func (s *Setting) check(word string) error {
	switch {
	case s.Names == nil:
		return nil
	case s.Find != nil:
		return s.Find(word)
	}
	return known(s.Flag, word, s.Names...)
}

// fill sets defaults, and returns an error for an unknown name where no file can
// have it.
func (c *Config) fill() error {
	for i := range Settings {
		var err error
		if s, values := &Settings[i], Settings[i].Values(c); len(values) == 0 && s.Default != "" {
			err = s.Read(c, s.Default)
		} else if len(values) > 0 && !s.File {
			err = s.check(values[0])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inference resets the settings of training steps.
func (c *Config) inference(to string) {
	for i := range Settings {
		if s := &Settings[i]; s.Training && c.Mode == "infer" {
			*s.At(c).(*string) = to
		}
	}
}

// words joins what a question says, setting by setting, those for which last
// holds at the end.
func (c *Config) words(last func(*Setting) bool, say func(s *Setting, values []string) []string) (out []string) {
	for _, end := range []bool{false, true} {
		for i := range Settings {
			if s := &Settings[i]; last(s) == end && !(s.Training && c.Mode == "infer") {
				out = append(out, say(s, s.Values(c))...)
			}
		}
	}
	return out
}

// Line describes the question in the words of a report.
func (c *Config) Line() string {
	return strings.Join(c.words(func(s *Setting) bool { return s.Last }, func(s *Setting, values []string) []string {
		switch {
		case s.Said == "" || len(values) == 0 || !s.Always && values[0] == s.Default:
			return nil
		case s.Said == "%s":
			return values
		}
		return []string{strings.ReplaceAll(s.Said, "%s", strings.Join(values, " "))}
	}), ", ")
}

// bare reports whether the flag stands without a value.
func (s *Setting) bare(c *Config) bool {
	_, on := s.At(c).(*bool)
	return on
}

// Args returns the arguments of a command line that asks the same question
// about a model.
func (c *Config) Args(m *ModelInfo) []string {
	return c.words(func(s *Setting) bool { return s.Budget }, func(s *Setting, values []string) (out []string) {
		usual := s.Default
		if s.Usual != nil {
			usual = s.Usual(m)
		}
		for _, v := range values {
			if s.bare(c) {
				out = append(out, "--"+s.Flag)
			} else if v != usual && !slices.Contains(s.Unsaid, v) {
				out = append(out, "--"+s.Flag, v)
			}
		}
		return out
	})
}

func setBatch(c *Config, value string) (err error) {
	c.BatchMax, c.BatchBest = value == "max", value == "best"
	if c.BatchMax || c.BatchBest {
		c.Batch = 0
		return nil
	}
	if c.Batch, err = strconv.ParseInt(value, 10, 64); err != nil || c.Batch < 1 {
		return fmt.Errorf("batch %q: want a positive integer, max or best", value)
	}
	return nil
}

func getBatch(c *Config) []string {
	switch {
	case c.BatchMax:
		return []string{"max"}
	case c.BatchBest:
		return []string{"best"}
	case c.Batch > 0:
		return []string{fmt.Sprint(c.Batch)}
	}
	return nil
}

// setDim parses NAME=N.
func setDim(dims *map[string]int64, word string) error {
	i := strings.LastIndexByte(word, '=')
	n, err := strconv.ParseInt(word[i+1:], 10, 64)
	if i < 1 || err != nil || n < 0 {
		return fmt.Errorf("dim %q: want NAME=N with a non-negative integer", word)
	}
	if old, given := (*dims)[word[:i]]; given && old != n {
		return fmt.Errorf("dim %q: %s is already %d", word, word[:i], old)
	}
	put(dims, word[:i], n)
	return nil
}

// setShape parses NAME=D0,D1,..: integers or expressions; NAME= is a scalar.
func setShape(shapes *map[string]graph.Shape, word string) error {
	i := strings.LastIndexByte(word, '=')
	if i < 1 {
		return fmt.Errorf("shape %q: want NAME=D0,D1,..", word)
	}
	shape := graph.Shape{}
	for _, d := range strings.FieldsFunc(word[i+1:], func(r rune) bool { return r == ',' }) {
		dim, err := graph.ParseDim(d)
		if err != nil {
			return fmt.Errorf("shape %q: %w", word, err)
		}
		shape = append(shape, dim)
	}
	put(shapes, word[:i], shape)
	return nil
}

func put[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[name] = v
}

// pairs formats NAME=VALUE, sorted by name; a shape has commas between its
// dimensions.
func pairs[V any](m map[string]V) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, name+"="+strings.ReplaceAll(strings.Trim(fmt.Sprint(m[name]), "[]"), " ", ","))
	}
	return out
}

func getGPU(c *Config) []string {
	if c.GPUAssumed || c.GPU == "" {
		return nil
	}
	return []string{c.GPU}
}

// PositiveSize parses a size; errors begin with name.
func PositiveSize(name, word string) (int64, error) {
	n, err := profile.ParseSize(word)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s: %w", name, err)
	case n <= 0:
		return 0, fmt.Errorf("%s %s: want a positive size", name, word)
	}
	return n, nil
}

// getVRAM omits the memory that the named card has.
func getVRAM(c *Config) []string {
	d, err := profile.FindDevice(c.GPU)
	if c.VRAM == 0 || err == nil && !c.GPUAssumed && d.Memory == c.VRAM {
		return nil
	}
	return sizeWords(c.VRAM)
}

// sizeWords writes a size exactly and as briefly as possible; nil for 0.
func sizeWords(n int64) []string {
	if n == 0 {
		return nil
	}
	for _, suffix := range []string{"G", "M", "GB"} {
		if unit, _ := profile.ParseSize("1" + suffix); n%unit == 0 { // which it is
			return []string{fmt.Sprint(n/unit, suffix)}
		}
	}
	return []string{fmt.Sprint(n)}
}
