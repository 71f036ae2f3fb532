package planner

import (
	"cmp"
	_ "embed"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/shard"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner/profile"
)

// Uncertainty is an interval of reserved bytes with its sources.
type Uncertainty struct {
	LowBytes  int64 `json:"lowBytes"`
	HighBytes int64 `json:"highBytes"` // Peak.UpperBoundBytes
	// Sources are the guesses that the prediction rests on, the largest first.
	Sources []UncertaintySource `json:"sources"`
	// HeadroomBytes is what a verdict about this step leaves free of the card.
	HeadroomBytes int64 `json:"headroomBytes"`
}

// An UncertaintySource is one guess of a prediction.
type UncertaintySource struct {
	Code     string `json:"code"`
	Bytes    int64  `json:"bytes"`    // above the reserved bytes
	LowBytes int64  `json:"lowBytes"` // below the reserved bytes
	Message  string `json:"message"`
	Narrow   string `json:"narrow"` // how to reduce it; "": not possible
}

// A Source is a kind of guess that a prediction may rest on, with the rule by
// which it widens the interval: bytes derived from the step itself, and shares
// of its reserved bytes. The shares are calibrated (calibration.txt) by leaving
// out whole libraries, and at least High and Low, which apply where nothing was
// measured.
type Source struct {
	Code      string
	High, Low float64 // least shares of reserved bytes
	Rule      string  // how the step's bytes are counted, in words
	Message   string
	Narrow    string
	// exact is set if the step's bytes are all that it adds.
	exact bool
	// workspace is set for guesses that only concern workspaces. Under a budget
	// cuDNN chooses kernels with smaller ones: headroom need not cover them.
	workspace bool
	at        func(a *answer) finding
}

// A finding is a source in one prediction.
type finding struct {
	is        bool
	high, low int64  // bytes
	detail    string // replaces the source's message
}

// segment is the least that the allocator requests from the driver for tensors
// of 1 MiB and more: different addresses may cost or save one.
const segment = 20 * profile.MiB

// Sources lists the sources in the order of the calibration: what earlier ones
// leave unexplained is the share of the next.
var Sources = []Source{
	{Code: "allocator-history", High: 0.03, Low: 0.03, Rule: "one segment of 20 MiB", Message: "the allocator's history, and addresses that differ from process to process",
		at: func(a *answer) finding {
			f := finding{is: true, high: segment, low: segment}
			if n := a.ev.res.Reserved; a.j.meshed != nil && a.j.meshed.Stage > 0 { // which held 18 runs on two cards
				f.high, f.low, f.detail = f.high+part(n, 0.3), f.low+part(n, 0.15), "DeepSpeed's engine allocates and frees before the first step: what the allocator keeps of that differs from rank to rank"
			}
			return f
		}},
	{Code: "workspace-bound", Rule: "the replay with all workspaces at their bounds", Message: "workspaces of convolutions at their bounds", Narrow: "one step measured on the card",
		exact: true, workspace: true, at: func(a *answer) finding {
			n := a.atBounds - a.ev.res.Reserved
			return finding{is: n > 0, high: max(n, 0)}
		}},
	{Code: "convolution-kind", High: 0.05, Message: "convolutions over one or three dimensions, or transposed: their kernels and workspaces are guesses", Narrow: "one step measured on the card",
		workspace: true, at: func(a *answer) finding { return finding{is: a.ev.has(unusualConvolution)} }},
	{Code: "upsampling", High: 0.1, Message: "upsampling of large maps: the scratch of its kernels and the fragmentation after it", Narrow: "one step measured on the card",
		at: func(a *answer) finding {
			return finding{is: a.ev.has(func(_ *evaluation, n *program.Node) bool { return strings.Contains(n.Op, "upsample") })}
		}},
	{Code: "rnn-workspace", High: 0.15, Low: 0.15, Message: "cuDNN's workspaces for recurrent networks are estimates", Narrow: "one step measured on the card", at: warns("rnn-workspace", "rnn-dropout")},
	{Code: "cast-assumed", High: 0.25, Message: "casts that the file does not show are assumed", Narrow: "a file exported in the precision that it runs in", at: func(a *answer) finding {
		return finding{is: a.ev.CastBytes > 0, high: a.ev.CastBytes, low: a.ev.CastBytes}
	}},
	{Code: train.CastUnseen, Rule: "the difference if code without a line computes in float32", exact: true, Message: "functions and statements without a line in the file may compute in float32", Narrow: "one step measured on the card", at: func(a *answer) finding {
		return finding{is: a.ev.UnseenBytes > 0, high: a.ev.UnseenBytes, low: a.ev.UnseenBytes}
	}},
	{Code: "workspace-guessed", High: 0.05, Low: 0.05, Message: "large workspaces of unmeasured convolutions", Narrow: "one step measured on the card", workspace: true, at: func(a *answer) finding { return finding{is: a.ev.guesses()} }},
	{Code: "workspace-changes", High: 0.05, Low: 0.05, Message: "convolutions whose cuDNN kernel the measurements do not determine", Narrow: "one step measured on the card", workspace: true, at: func(a *answer) finding { return finding{is: a.ev.changes()} }},
	{Code: "not-the-step", High: 0.25, Low: 0.1, Message: "the file does not show the training step", Narrow: "a file exported in training mode with optimize=False", at: func(a *answer) finding {
		return finding{is: slices.ContainsFunc(Doubts, func(d Doubt) bool { return d.Code != lift.IdleDropout && a.codes[d.Code] })}
	}},
	{Code: lift.IdleDropout, Rule: "the results and masks of the modules, if they dropped out", exact: true, Message: "Dropout modules drop nothing, for p = 0 or for evaluation mode", Narrow: "a file exported in training mode", at: func(a *answer) finding {
		n := min(a.m.lifted.Masks, a.ev.res.Reserved)
		if n == 0 {
			n = part(a.ev.res.Reserved, 0.25) // the file does not show how much
		}
		return finding{is: a.j.train && a.codes[lift.IdleDropout], high: n}
	}},
	{Code: "variables-table", High: 0.05, Low: 0.05, Message: "how long Python's variables keep tensors is known only from the classes", Narrow: "a file with the exporter's source lines", at: variables(train.FromTable)},
	{Code: "variables-lines", High: 0.05, Low: 0.05, Rule: "the peak if all that the lines leave open is kept for as long as they allow, at most twice as much again",
		Message: "how long Python's variables keep tensors follows from the source lines, which do not show every function", at: func(a *answer) finding {
			f := variables(train.FromLines)(a)
			if f.is {
				f.high = min(a.ev.openBytes(), mostOpen*a.ev.res.Reserved)
			}
			if g := a.ev.Variables.Guesses; f.high > 0 && len(g) > 0 {
				f.detail = fmt.Sprintf("how long Python's variables keep tensors follows from the source lines, which leave it open in %d places, such as %s line %d", len(g)+a.ev.Variables.More, g[0].File, g[0].Line)
			}
			return f
		}},
	{Code: "variables-unknown", High: 0.25, Low: 0.25, Message: "how long Python's variables keep tensors is not known", Narrow: "a file with the exporter's source lines", at: variables(train.FromNone)},
	{Code: "capture-differs", Rule: "the difference of what the step itself holds, at most a quarter, of the reserved bytes", exact: true, Message: "the program built from the capture is not of the bytes that lived when the step ran", Narrow: "one step measured on the card", at: func(a *answer) finding {
		if !a.checked.is || math.Abs(a.checked.share) <= checkLimit {
			return finding{}
		}
		n := part(a.ev.res.Reserved, min(math.Abs(a.checked.share), 0.25)) // a difference at a few samples may not grow with them
		return finding{is: true, high: n, low: n}
	}},
	{Code: "variables-train", Rule: "what the lines leave open of what is not saved, kept for as long as they allow", exact: true,
		Message: "how long Python's variables keep tensors in forward that backward does not need", Narrow: "one step measured on the card", at: func(a *answer) finding {
			n := a.keptInForward()
			return finding{is: n > 0, high: n}
		}},
	{Code: "unread-results", High: 0.15, Rule: "each call whose number is missing as large as the largest between those around it", Message: "calls with unread results are not in the file", Narrow: "a file of a model that returns all it computes", at: func(a *answer) finding {
		f := warns("unread-results")(a)
		f.high = min(a.m.lifted.MissingBytes(), mostOpen*a.ev.res.Reserved)
		return f
	}},
	{Code: "idle-modules", Rule: "each module as large as the largest result of the module around it", exact: true, Message: "modules with parameters that no call reads, and that may run nevertheless", Narrow: "a file of a model that returns all it computes, or has no other modules", at: func(a *answer) finding {
		n := a.idleBytes()
		return finding{is: n > 0, high: n}
	}},
	{Code: lift.Optimised, Rule: "twice the results that the file stores, and tensors of 8192 elements, with gradients and the optimizer's state, of unknown shapes", exact: true,
		Message: "the exporter's optimizer computed what the step computes", Narrow: "a file exported with optimize=False", at: func(a *answer) finding {
			f := a.m.lifted.Folded
			n := min(f.Most(), mostOpen*a.ev.res.Reserved)
			if n == 0 {
				return finding{}
			}
			return finding{is: true, high: n, low: min(n, f.Bytes)}
		}},
	{Code: "data-dependent", Low: 0.5, Message: "dimensions that depend on data are counted at their upper bounds", Narrow: "--dim NAME=N with what the data has", at: warns("data-dependent")},
	{Code: "tied-parameter", Low: 0.2, Message: "tied parameters count as trained", Narrow: "--freeze with all of their names", at: warns("tied-parameter")},
	{Code: "unknown-operator", High: 0.25, Low: 0.25, Message: "operators that memplan does not know", Narrow: "one step measured on the card", at: warns("unknown-operator", "unknown-shape", "unknown-type", "unknown-op")},
	{Code: "capture-operator", High: 0.05, Low: 0.05, Message: "operators that memplan does not know, of which the capture shows the forward pass", Narrow: "one step measured on the card", at: warns("capture-operator", "capture-storage", "capture-saves")},
	{Code: "unlifted", High: 0.1, Low: 0.1, Message: "ONNX operators kept as they are", Narrow: "a file exported with optimize=False", at: func(a *answer) finding { return finding{is: len(a.m.lifted.Unlifted) > 0} }},
	{Code: "no-metadata", High: 0.1, Low: 0.1, Message: "operators were recognised by patterns", Narrow: "a file exported by dynamo, with its metadata", at: func(a *answer) finding {
		return finding{is: a.m.lifted.Source != lift.Metadata && a.m.lifted.Source != lift.Captured}
	}},
	{Code: "newer-opset", High: 0.05, Low: 0.05, Message: "the file's opset is newer than memplan knows", at: warns("newer-opset")},
	{Code: "other-gpu", High: 0.1, Low: 0.1, Message: "the kernels of convolutions were measured on another architecture", Narrow: "one step measured on the card", workspace: true, at: warns("other-gpu")},
	{Code: "runtime-not-measured", High: 0.02, Low: 0.02, Rule: "the libraries' workspaces that torch-2.11 keeps and this release does not", Message: "the release was read from its sources, not measured", Narrow: "memplan calibrate on the machine",
		at: func(a *answer) finding {
			return finding{is: !a.j.runtime.Measured, high: max(keptByLibraries(a.ev, measuredRuntime(), a.j.device)-keptByLibraries(a.ev, a.j.runtime, a.j.device), 0)}
		}},
	{Code: "runtime-assumed", High: 0.02, Low: 0.02, Message: "the file's release is not known", Narrow: "--runtime", at: func(a *answer) finding { return finding{is: a.j.assumed != "", detail: a.j.assumed} }},
	{Code: lift.OwnFunction, High: 0.1, Low: 0.25, Message: "the model's own autograd functions, of which the file shows only the forward pass", Narrow: "one step measured on the card", at: func(a *answer) finding {
		return finding{is: a.j.train && a.codes[lift.OwnFunction]}
	}},
	{Code: lift.RegionUnknown, High: 0.1, Low: 0.4, Message: "parameters in a region of torch.no_grad or torch.autocast: the file does not say what it saves and in which precision", Narrow: "one step measured on the card", at: func(a *answer) finding {
		return finding{is: a.j.train && a.codes[lift.RegionUnknown]}
	}},
	{Code: "module-attribute", Rule: "what modules are guessed to keep", exact: true, Message: "a module keeps what a function returns, whose code the file does not show, from one step to the next", Narrow: "one step measured on the card", at: func(a *answer) finding {
		return finding{is: a.ev.SupposedBytes > 0, high: a.ev.SupposedBytes, low: a.ev.SupposedBytes}
	}},
	{Code: "loss-scaling", Rule: "the optimizer's state", exact: true, Message: "GradScaler may skip the first updates, and with them the optimizer's state", at: func(a *answer) finding {
		n := int64(0)
		if a.j.train && a.j.cfg.Precision == "amp-fp16" {
			n = a.ev.bytesOf(program.Optimizer)
		}
		return finding{is: n > 0, low: n}
	}},
	{Code: "unproven-operator", High: 0.1, Low: 0.05, Message: "operators that occur in no model whose measured runs were all predicted", Narrow: "one step measured on the card", at: func(a *answer) finding {
		ops := a.ev.unproven()
		return finding{is: len(ops) > 0, detail: "no measured model proves how these operators take memory: " + listed(ops)}
	}},
}

// warns finds a source by its warnings.
func warns(codes ...string) func(a *answer) finding {
	return func(a *answer) finding {
		return finding{is: slices.ContainsFunc(codes, func(c string) bool { return a.codes[c] })}
	}
}

// variables finds an inference whose variables' lifetimes rest on a source. In
// training most of what they name is saved for backward anyway.
func variables(s train.VariableSource) func(a *answer) finding {
	return func(a *answer) finding { return finding{is: !a.j.train && a.ev.Variables.Source == s} }
}

// mostListed is the largest number of operators that a message names.
const mostListed = 4

func listed(names []string) string {
	if more := len(names) - mostListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// mostOpen bounds what source lines leave open: reserved bytes divided by
// mostOpen.
const mostOpen = 2

// openBytes returns by how much the peak of an inference is higher if variables
// keep everything that the source lines leave open.
func (ev *evaluation) openBytes() int64 {
	if len(ev.Open) == 0 {
		return 0
	}
	return peakBytes(ev.Program, ev.res.Steady, ev.openUntil()) - peakBytes(ev.Program, ev.res.Steady, nil)
}

// openUntil returns, for storages that variables may keep, the calls after which
// they are freed at the latest.
func (ev *evaluation) openUntil() map[program.StorageID]int32 {
	until := map[program.StorageID]int32{}
	for _, o := range ev.Open {
		until[o.Storage] = o.After
	}
	return until
}

// keptInForward returns the bytes that variables may keep at once in the forward
// pass of a training step longer than predicted, if that is worth a warning. They
// are freed before the backward pass: the allocated peak seldom includes them, but
// reserved memory does, because later allocations have other sizes.
func (a *answer) keptInForward() int64 {
	if !a.j.train || len(a.ev.Open) == 0 {
		return 0
	}
	return a.worth(lateBytes(a.ev.Program, a.ev.res.Steady, a.ev.openUntil()))
}

// worth returns n if it is worth a warning, else 0.
func (a *answer) worth(n int64) int64 {
	if n <= a.ev.res.Reserved/guessShare {
		return 0
	}
	return min(n, mostOpen*a.ev.res.Reserved)
}

// idleBytes estimates the bytes of modules without a call in the file.
func (a *answer) idleBytes() int64 { return a.worth(a.m.lifted.IdleBytes()) }

// lateBytes returns the most bytes at once that are predicted to be freed in the
// forward pass and may live until after a call.
func lateBytes(p *program.Program, t *liveness.Timeline, until map[program.StorageID]int32) int64 {
	var live, most int64
	late := map[int32]int64{} // bytes freed after each call
	last := int32(-1)
	for _, ev := range t.Events {
		n := &p.Nodes[ev.Node]
		if n.Phase != program.Forward {
			continue
		}
		for c := last; c < n.Call; c++ {
			live -= late[c]
			delete(late, c)
		}
		last = max(last, n.Call)
		if after, ok := until[ev.Storage]; ok && ev.Free && after >= n.Call {
			late[after] += p.Storages[ev.Storage].Bytes
			live += p.Storages[ev.Storage].Bytes
			most = max(most, live)
		}
	}
	return most
}

// peakBytes returns the peak live bytes if storages live at least until after
// the calls in until.
func peakBytes(p *program.Program, t *liveness.Timeline, until map[program.StorageID]int32) int64 {
	var live, most int64
	late := map[int32]int64{} // bytes freed after each call
	last := int32(-1)
	for _, ev := range t.Events {
		n := &p.Nodes[ev.Node]
		for c := last; c < n.Call; c++ {
			live -= late[c]
			delete(late, c)
		}
		last = max(last, n.Call)
		bytes := p.Storages[ev.Storage].Bytes
		after, ok := until[ev.Storage]
		switch {
		case !ev.Free:
			live += bytes
			most = max(most, live)
		case ok && after >= n.Call:
			late[after] += bytes
		default:
			live -= bytes
		}
	}
	return most
}

// has reports whether the program has a node of a kind.
func (ev *evaluation) has(kind func(ev *evaluation, n *program.Node) bool) bool {
	for i := range ev.Nodes {
		if kind(ev, &ev.Nodes[i]) {
			return true
		}
	}
	return false
}

// unusualConvolution reports whether a node is a convolution whose kernels were
// not measured.
func unusualConvolution(ev *evaluation, n *program.Node) bool {
	if !strings.Contains(n.Op, "convolution") {
		return false
	}
	return strings.Contains(n.Op, "transpose") || n.Call >= 0 && ev.rank(n) != 4
}

// rank returns the number of dimensions of the first operand of a node's call.
func (ev *evaluation) rank(n *program.Node) int {
	g := ev.Lifted.Graph
	if in := g.Nodes[n.Call].Inputs; len(in) > 0 && in[0] >= 0 {
		return len(g.Values[in[0]].Type.Shape)
	}
	return 0
}

// bytesOf adds up the storages of a category.
func (ev *evaluation) bytesOf(c program.Category) (n int64) {
	for i := range ev.Storages {
		if ev.Storages[i].Category == c {
			n += ev.Storages[i].Bytes
		}
	}
	return n
}

// operators lists the operators that the program runs, without convolutions,
// sorted.
func (ev *evaluation) operators() []string {
	seen := map[string]bool{}
	var out []string
	for i := range ev.Nodes {
		if op := ev.Nodes[i].Op; !seen[op] && !strings.Contains(op, "convolution") {
			seen[op] = true
			out = append(out, op)
		}
	}
	slices.Sort(out)
	return out
}

// unproven lists the operators for which no measured model was predicted right.
func (ev *evaluation) unproven() []string {
	return slices.DeleteFunc(ev.operators(), func(op string) bool { return calibrated.proven[ev.Train][op] || shard.Collective(op) })
}

// measuredRuntime returns the measured release.
func measuredRuntime() *profile.Runtime {
	return &profile.Runtimes[slices.IndexFunc(profile.Runtimes, func(r profile.Runtime) bool { return r.Measured })]
}

// keptByLibraries returns the bytes that cuBLAS and cuBLASLt keep for the life
// of the process, in a program with matrix products.
func keptByLibraries(ev *evaluation, r *profile.Runtime, d *profile.Device) int64 {
	product := func(_ *evaluation, n *program.Node) bool { return n.Unit == program.Product }
	if r.CuBLASPerCall || !ev.has(product) {
		return 0
	}
	threads := int64(1)
	if ev.Train {
		threads = 2
	}
	n := threads * r.CuBLASBytes(d.Compute)
	if r.Lt == profile.LtPersistent {
		n += r.LtBytes
	}
	return n
}

//go:embed calibration.txt
var calibrationText string

// A share is a source's calibrated share of reserved bytes, above and below the
// prediction, and of allocated bytes above.
type share struct{ high, low, kept float64 }

// A calibration is the content of calibration.txt.
type calibration struct {
	shares map[string]share
	proven map[bool]map[string]bool // of training, of inference
}

// calibrated is the embedded calibration.
var calibrated = parseCalibration(calibrationText)

// parseCalibration parses lines "share CODE HIGH LOW KEPT" and "proven
// train|infer OP ..". The text is embedded and tested: other lines are
// comments.
func parseCalibration(text string) *calibration {
	c := &calibration{shares: map[string]share{}, proven: map[bool]map[string]bool{true: {}, false: {}}}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 5 && f[0] == "share":
			var x [3]float64
			for i := range x {
				x[i], _ = strconv.ParseFloat(f[2+i], 64) // the test that writes the file reads it back
			}
			c.shares[f[1]] = share{x[0], x[1], x[2]}
		case len(f) > 2 && f[0] == "proven":
			for _, op := range f[2:] {
				c.proven[f[1] == "train"][op] = true
			}
		}
	}
	return c
}

// share returns a source's calibrated share, or its least share if that is
// larger.
func (c *calibration) share(s *Source) share {
	x := c.shares[s.Code]
	return share{max(x.high, s.High), max(x.low, s.Low), x.kept}
}

// findings returns the sources of the reported step, in their order.
func (a *answer) findings() iter.Seq2[*Source, finding] {
	a.codes = map[string]bool{}
	for _, w := range a.warnings() {
		a.codes[w.Code] = true
	}
	return func(yield func(*Source, finding) bool) {
		for i := range Sources {
			if f := Sources[i].at(a); f.is && !yield(&Sources[i], f) {
				return
			}
		}
	}
}

// uncertainty computes the interval.
func (a *answer) uncertainty() Uncertainty {
	reserved := a.ev.res.Reserved
	u := Uncertainty{LowBytes: reserved, HighBytes: reserved, Sources: []UncertaintySource{}}
	for s, f := range a.findings() {
		x := calibrated.share(s)
		out := UncertaintySource{Code: s.Code, Bytes: f.high + part(reserved, x.high), LowBytes: f.low + part(reserved, x.low), Message: s.Message, Narrow: s.Narrow}
		if f.detail != "" {
			out.Message = f.detail
		}
		u.HighBytes += out.Bytes
		u.LowBytes -= out.LowBytes
		u.Sources = append(u.Sources, out)
	}
	u.LowBytes = max(u.LowBytes, 0)
	slices.SortStableFunc(u.Sources, func(x, y UncertaintySource) int { return cmp.Compare(y.Bytes+y.LowBytes, x.Bytes+x.LowBytes) })
	return u
}

// part returns a share of n, rounded up.
func part(n int64, x float64) int64 { return int64(math.Ceil(float64(n) * x)) }
