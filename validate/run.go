package validate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner/layout"
)

// Options say how to run a program.
type Options struct {
	Seed   uint64
	Steps  int    // at least 1
	Source Source // parameters, buffers and inputs; nil: all from the seed
	// Guarded fills every new buffer with NaNs, writes a pattern after it and
	// checks the pattern when the buffer dies. Such a run is not timed.
	Guarded bool
	// Outputs are tensors to copy, each after its node has run or, if it dies
	// before, when it dies.
	Outputs []Output
	// Progress is called with the number of nodes that have run and the total;
	// nil: no.
	Progress func(done, total int)
	// Gradient is called with every parameter's gradient in every step, before
	// the optimizer's update; nil: no.
	Gradient func(step int, name string, a *Array)
}

// An Output is a tensor that the model returns.
type Output struct {
	Name   string
	Tensor program.View
	Node   int32
}

// A Result is the outcome of a run.
type Result struct {
	Loss      []float64           // of each step
	Outputs   []*Array            // of Options.Outputs, in the first step
	Gradients []map[string]*Array // of each step, by parameter
	Used      int64               // bytes from the arena's start to the end of the highest buffer
	Times     []time.Duration     // of each node in the last step; nil when guarded
	Growth    int64               // bytes by which the driver's free memory fell when the arena was allocated
	Besides   int64               // bytes by which it fell in the first step: loaded code, memory that libraries keep
	Later     int64               // bytes by which it fell in later steps
	Broken    []string            // buffers whose guard was overwritten
	Seconds   float64             // wall time of a step: the fastest untimed one after the first, else the only one
	Device    Info
}

// ErrUnsupported is the error of a program that a device cannot run.
var ErrUnsupported = errors.New("the device cannot run this")

// An Unsupported is something that a device cannot run, and its place.
type Unsupported struct {
	Op, Node, Reason string
	Count            int
}

// Unsupports lists what a device cannot run in a program, each reason once.
func Unsupports(d Device, p *program.Program) []Unsupported {
	var out []Unsupported
	at := map[string]int{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		err := d.Supports(n)
		if err == nil {
			continue
		}
		key := n.Op + "\x00" + err.Error()
		if j, ok := at[key]; ok {
			out[j].Count++
			continue
		}
		at[key] = len(out)
		out = append(out, Unsupported{n.Op, n.Name, err.Error(), 1})
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Op < out[j].Op })
	return out
}

// guardByte fills guards; poison fills new buffers: NaN in any floating-point
// type.
const (
	guardByte = 0xa5
	poison    = 0xff
)

// A runner runs one program.
type runner struct {
	d      Device
	p      *program.Program
	l      *Layout
	o      *Options
	res    *Result
	seed   *program.Node // the node that makes backward's seed: it reads the loss
	update int           // first node of the optimizer
	end    []int32       // last node that reads each storage
	calls  []*Call
	guard  []byte
	aside  time.Duration // time spent copying outputs during the step
	done   int
	total  int
}

// newRunner prepares the calls of a program.
func newRunner(d Device, p *program.Program, l *Layout, o *Options) *runner {
	r := &runner{d: d, p: p, l: l, o: o, res: &Result{Device: d.Info(), Outputs: make([]*Array, len(o.Outputs))},
		end: liveness.NewRanges(p).End, update: len(p.Nodes), calls: make([]*Call, len(p.Nodes)), guard: make([]byte, layout.Guard), total: o.Steps * len(p.Nodes)}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		r.calls[i] = r.resolve(n)
		r.calls[i].Work = l.Work[i]
		if r.seed == nil && n.Phase == program.Backward && n.Op == "ones_like" {
			r.seed = n
		}
		if n.Phase == program.Update && i < r.update {
			r.update = i
		}
	}
	return r
}

// Execute runs the steps of a program in an arena of its own. The device must
// not have reserved its arena; the caller closes the device.
func Execute(ctx context.Context, d Device, p *program.Program, l *Layout, o Options) (*Result, error) {
	if list := Unsupports(d, p); len(list) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrUnsupported, list[0].Reason)
	}
	o.Steps = max(o.Steps, 1)
	r := newRunner(d, p, l, &o)
	free, err := r.reserve()
	if err != nil {
		return nil, err
	}
	if err := d.Prepare(r.calls); err != nil {
		return nil, err
	}
	if err := r.fill(); err != nil {
		return nil, err
	}
	if err := r.steps(ctx, free); err != nil {
		return nil, err
	}
	r.res.Device = d.Info() // a device knows only after it has run whether it is exact
	if o.Guarded {
		for _, id := range p.Statics {
			if err := r.inspect(id); err != nil {
				return nil, err
			}
		}
	}
	return r.res, nil
}

// reserve allocates the arena and returns the bytes that are then free.
func (r *runner) reserve() (free int64, err error) {
	before, _, err := r.d.Memory()
	if err != nil {
		return 0, err
	}
	if err := r.d.Reserve(r.l.Bytes); err != nil {
		return 0, err
	}
	free, _, err = r.d.Memory()
	r.res.Growth = before - free
	return free, err
}

// steps runs all steps and measures the memory that the first and the later ones
// take besides the arena; free is the number of free bytes after the arena's
// allocation.
func (r *runner) steps(ctx context.Context, free int64) error {
	first, steady := liveness.Steps(r.p)
	if err := r.step(ctx, first, 1); err != nil {
		return err
	}
	settled, _, err := r.d.Memory()
	if err != nil {
		return err
	}
	r.res.Besides = free - settled
	for s := 2; s <= r.o.Steps; s++ {
		if err := r.step(ctx, steady, s); err != nil {
			return err
		}
	}
	if err := r.d.Sync(); err != nil {
		return err
	}
	left, _, err := r.d.Memory()
	r.res.Later = settled - left
	return err
}

// fill uploads what exists before the first step.
func (r *runner) fill() error {
	for _, id := range r.p.Statics {
		if err := r.born(id); err != nil {
			return err
		}
		if r.p.Storages[id].Category == program.Optimizer { // state made by the optimizer's constructor starts at zero
			if err := r.d.Fill(r.l.Offset[id], r.p.Storages[id].Bytes, 0); err != nil {
				return err
			}
		}
	}
	for _, s := range residents(r.p) {
		if Elems(s.tensor.Shape) == 0 || s.tensor.DType == 0 {
			continue
		}
		st := &r.p.Storages[s.id]
		f, err := s.values(st, r.o.Source, r.o.Seed)
		if err != nil {
			return err
		}
		raw, err := encode(s.tensor.DType, Elems(s.tensor.Shape), f)
		if err != nil {
			return fmt.Errorf("%s: %w", st.Name, err)
		}
		if err := r.d.Upload(r.l.Offset[s.id], raw); err != nil {
			return err
		}
	}
	return nil
}

// born prepares the memory of a new buffer.
func (r *runner) born(id program.StorageID) error {
	r.res.Used = max(r.res.Used, r.l.Offset[id]+layout.RoundUp(r.p.Storages[id].Bytes+layout.Guard)) // an empty one has an offset, too
	return r.bornAt(r.l.Offset[id], r.p.Storages[id].Bytes)
}

func (r *runner) bornAt(at, n int64) error {
	if n == 0 {
		return nil
	}
	r.res.Used = max(r.res.Used, at+layout.RoundUp(n+layout.Guard))
	if !r.o.Guarded {
		return nil
	}
	if err := r.d.Fill(at, n, poison); err != nil {
		return err
	}
	return r.d.Fill(at+n, layout.Guard, guardByte)
}

// inspect checks the guard after a buffer.
func (r *runner) inspect(id program.StorageID) error {
	return r.inspectAt(r.l.Offset[id], r.p.Storages[id].Bytes, fmt.Sprintf("storage %d (%s)", id, r.p.Storages[id].Name))
}

func (r *runner) inspectAt(at, n int64, what string) error {
	if n == 0 {
		return nil
	}
	if err := r.d.Download(r.guard, at+n); err != nil {
		return err
	}
	if i := slices.IndexFunc(r.guard, func(b byte) bool { return b != guardByte }); i >= 0 {
		r.res.Broken = append(r.res.Broken, fmt.Sprintf("%s: byte %d behind it", what, i))
	}
	return nil
}

// resolve resolves a node's tensors to addresses in the arena.
func (r *runner) resolve(n *program.Node) *Call {
	c := &Call{Node: n, Kernel: n.Does(), Again: n.Recompute && n.Segment < 0}
	c.Args = make([]Operand, n.Args())
	for i := range c.Args {
		switch a := n.Arg(i); a.In {
		case program.Absent, program.Unknown:
		case program.Number:
			c.Args[i] = Operand{Kind: IsNumber, Value: a.Value}
		case program.Array:
			c.Args[i] = Operand{Kind: IsArray, DType: a.Array.DType, Shape: a.Array.Shape, Strides: a.Array.Strides, Values: a.Array.Values}
		default:
			c.Args[i] = Operand{Kind: OnDevice, Tensor: r.tensor(&n.In[a.In])}
		}
	}
	results := len(n.Out)
	if n.Attrs != nil && n.Attrs.Results != nil {
		results = len(n.Attrs.Results)
	}
	c.Results = make([]ArenaView, results)
	for i := range c.Results {
		if at := n.Result(i); at >= 0 {
			c.Results[i] = r.tensor(&n.Out[at])
		} else {
			c.Results[i].At = -1
		}
	}
	for _, ev := range n.Events {
		if !ev.Free && !slices.ContainsFunc(n.Out, func(t program.View) bool { return t.Storage == ev.Storage }) {
			c.Scratch = append(c.Scratch, Span{r.l.Offset[ev.Storage], r.p.Storages[ev.Storage].Bytes})
		}
	}
	if n.Attrs != nil && n.Attrs.Rule != nil {
		for _, q := range n.Attrs.Rule.Params {
			spans := make([]Span, len(q.States))
			for i, s := range q.States {
				spans[i] = Span{r.l.Offset[s.Storage], s.Bytes}
			}
			c.States = append(c.States, spans)
		}
	}
	return c
}

func (r *runner) tensor(t *program.View) ArenaView {
	return ArenaView{At: r.l.Offset[t.Storage] + t.DType.Bytes(t.Offset), DType: t.DType, Shape: t.Shape, Strides: t.Strides}
}

// step runs one step.
func (r *runner) step(ctx context.Context, t *liveness.Timeline, s int) error {
	events := make(map[int32][]liveness.Event, len(r.p.Nodes))
	for _, e := range t.Events {
		events[e.Node] = append(events[e.Node], e)
	}
	timed := !r.o.Guarded && s == r.o.Steps
	if timed {
		if err := r.d.Sync(); err != nil {
			return err
		}
		if err := r.d.Timing(true); err != nil {
			return err
		}
	}
	start := time.Now() //nolint:forbidigo // steps are measured
	r.aside = 0
	var ran []int
	for i := 0; i < len(r.p.Nodes); {
		hi := i + 1
		runs := r.p.Runs(&r.p.Nodes[i])
		if runs > 1 { // the micro-batches that the last one built stands for
			for hi < len(r.p.Nodes) && r.p.Runs(&r.p.Nodes[hi]) > 1 {
				hi++
			}
		}
		for micro := range runs {
			for j := i; j < hi; j++ {
				if err := r.node(ctx, j, micro, s, t.First, events[int32(j)], &ran); err != nil {
					return err
				}
			}
		}
		i = hi
	}
	if err := r.d.Sync(); err != nil {
		return err
	}
	if took := (time.Since(start) - r.aside).Seconds(); s <= 2 || !timed {
		if r.res.Seconds == 0 || s == 2 || took < r.res.Seconds {
			r.res.Seconds = took
		}
	}
	if timed {
		return r.times(ran)
	}
	return nil
}

func (r *runner) times(ran []int) error {
	list, err := r.d.Times()
	if err != nil {
		return err
	}
	r.res.Times = make([]time.Duration, len(r.p.Nodes))
	for k, i := range ran {
		if k < len(list) {
			r.res.Times[i] += list[k]
		}
	}
	return r.d.Timing(false)
}

// node runs one node, with the births before it and the deaths after it.
func (r *runner) node(ctx context.Context, i, micro, step int, first bool, events []liveness.Event, ran *[]int) error {
	n := &r.p.Nodes[i]
	if err := ctx.Err(); err != nil {
		return err
	}
	if i == r.update { // reached in every step, even if the node does not run in it
		if err := r.gradients(step); err != nil {
			return err
		}
	}
	if n.Only == program.FirstStep && !first || n.Only == program.LaterSteps && first {
		return nil
	}
	if n == r.seed {
		a, err := r.download(&n.In[0])
		if err != nil {
			return err
		}
		r.res.Loss = append(r.res.Loss, float64(a.Values[0]))
	}
	if err := r.births(i, events); err != nil {
		return err
	}
	c := r.calls[i]
	c.Step, c.Seed = step, r.callSeed(n, micro, step)
	if err := r.d.Run(c); err != nil {
		return fmt.Errorf("node %d: %w", i, err)
	}
	if takesTarget(r.p, n) {
		if err := r.target(n); err != nil {
			return err
		}
	}
	*ran = append(*ran, i)
	if step == 1 && micro == 0 {
		if err := r.outputs(int32(i)); err != nil {
			return err
		}
	}
	if err := r.deaths(i, events); err != nil {
		return err
	}
	r.done++
	if r.o.Progress != nil {
		r.o.Progress(r.done, max(r.total, r.done))
	}
	return nil
}

// births prepares the buffers that a node allocates, and its workspace.
func (r *runner) births(i int, events []liveness.Event) error {
	for _, e := range events {
		if !e.Free {
			if err := r.born(e.Storage); err != nil {
				return err
			}
		}
	}
	work := r.calls[i].Work
	return r.bornAt(work.At, work.Bytes)
}

// deaths checks the guards of a node's workspace and of the buffers that die with
// it.
func (r *runner) deaths(i int, events []liveness.Event) error {
	if !r.o.Guarded {
		return nil
	}
	work := r.calls[i].Work
	if err := r.inspectAt(work.At, work.Bytes, "work of "+r.p.Nodes[i].Op); err != nil {
		return err
	}
	for _, e := range events {
		if e.Free {
			if err := r.inspect(e.Storage); err != nil {
				return err
			}
		}
	}
	return nil
}

// callSeed depends on the lifted call and the step, not on the node's position
// in the program: a call draws the same numbers with and without checkpoints.
func (r *runner) callSeed(n *program.Node, micro, step int) uint64 {
	if n.Attrs == nil {
		return 0
	}
	seed := Mix(r.o.Seed + uint64(step)*golden)
	seed = Mix(seed + uint64(int(n.Micro)+micro)*golden)
	return Mix(seed + uint64(n.Attrs.Stream)*golden)
}
