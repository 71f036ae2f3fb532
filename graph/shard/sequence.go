package shard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// How a storage of the source is spread over the ranks of tensor parallelism.
type layout uint8

const (
	replicated layout = iota
	split             // by the dim that a split weight splits
	sequence          // along the sequence, Shard(1)
	partial           // whole on each rank, to be added up over them
)

// Norms stands for a pattern of TP.Sequence: all norms that the program shows.
const Norms = "norms"

// DefaultSequence returns the modules that Norms stands for: those whose parameters all
// have one dim, and no linear module or convolution.
func DefaultSequence(b *train.Build) (out []string) {
	wide := map[string]bool{}
	for _, p := range b.Params {
		wide[module(p.Name)] = wide[module(p.Name)] || len(p.Tensor.Shape) != 1
	}
	for _, p := range b.Params {
		if m := module(p.Name); m != "" && !wide[m] && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return starred(out, func(name string) bool { return wide[name] })
}

// starred replaces numbers in names by stars where no other module matches then.
func starred(names []string, other func(string) bool) (out []string) {
	for _, n := range names {
		s := numbers.ReplaceAllString(n, ".*$1")
		if other(s) {
			s = n
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Head returns the module of the last product with a parameter, whose results a parallel
// loss takes in parts; "" without one.
func Head(b *train.Build) string {
	list := linears(b)
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1].module
}

// sequenced is the part of tensor parallelism that spreads activations between split
// modules along the sequence, as SequenceParallel, PrepareModuleInput and
// RowwiseParallel(output_layouts=Shard(1)) do it.
type sequenced struct {
	starts   map[program.StorageID]bool // of the source: cut along the sequence once they are made
	ends     map[program.StorageID]bool // results of the last norm, whose readers get them whole
	last     string                     // its module
	batch    map[program.StorageID]int64
	regions  map[int32]layout // by lifted call: replicated, split or sequence
	gathered map[program.StorageID]gathering
	grads    map[program.StorageID]bool // of parameters
	params   map[program.StorageID]bool
	rows     map[program.StorageID]bool // weights of embeddings that are split
}

// A gathering is the whole copy of a tensor that is in parts.
type gathering struct {
	whole program.StorageID
	call  int32 // -1: forward's, which backward reads, too
}

// mixes are operators that compute element by element from several tensors.
var mixes = []string{"add", "add_", "dropout", "native_dropout", "_to_copy", "clone", "mul"}

// begin finds where parts of the sequence begin and end.
func (t *tensorParallel) begin() {
	t.starts, t.ends, t.batch = map[program.StorageID]bool{}, map[program.StorageID]bool{}, map[program.StorageID]int64{}
	t.regions, t.gathered, t.grads, t.params = map[int32]layout{}, map[program.StorageID]gathering{}, map[program.StorageID]bool{}, map[program.StorageID]bool{}
	for _, p := range t.src.Params {
		t.params[p.Tensor.Storage] = true
		if p.Grad != program.None {
			t.grads[p.Grad] = true
		}
	}
	if len(t.Sequence) == 0 {
		return
	}
	maker := map[program.StorageID]*program.Node{}
	first := map[int32]*program.Node{} // by micro-batch
	for i := range t.src.Nodes {
		n := &t.src.Nodes[i]
		for _, v := range slices.Concat(n.In, n.Out) {
			if len(v.Shape) > 2 && t.batch[v.Storage] == 0 {
				t.batch[v.Storage] = v.Shape[0]
			}
		}
		if n.Phase != program.Forward || n.Recompute {
			continue
		}
		for _, ev := range n.Events {
			if !ev.Free {
				maker[ev.Storage] = n
			}
		}
		if matches(t.Sequence, n.Module) {
			if t.last = n.Module; first[n.Micro] == nil {
				first[n.Micro] = n
			}
		}
	}
	for _, n := range first {
		for _, v := range n.In {
			if !t.params[v.Storage] {
				t.start(v.Storage, maker)
			}
		}
	}
	for id, n := range maker {
		if n.Module == t.last {
			t.ends[id] = true
		}
	}
}

// start finds the tensors that the residual stream begins with: embeddings' results, or
// what is computed from parameters and inputs.
func (t *tensorParallel) start(id program.StorageID, maker map[program.StorageID]*program.Node) {
	n := maker[id]
	if n == nil {
		return
	}
	open := slices.Contains(mixes, n.Does()) && len(n.In) > 0
	for _, v := range n.In {
		open = open && !t.params[v.Storage] && maker[v.Storage] != nil
	}
	if !open {
		t.starts[id] = true
		return
	}
	for _, v := range n.In {
		t.start(v.Storage, maker)
	}
}

// embeddings returns the parameters of embeddings that the residual stream begins with,
// which are split by their rows.
func (t *tensorParallel) embeddings() map[program.StorageID]bool {
	out := map[program.StorageID]bool{}
	for i := range t.src.Nodes {
		n := &t.src.Nodes[i]
		if n.Does() != "embedding" && n.Op != "embedding" || n.Phase != program.Forward || !slices.ContainsFunc(n.Out, func(v program.View) bool { return t.starts[v.Storage] }) {
			continue
		}
		for _, v := range n.In {
			if t.params[v.Storage] {
				out[v.Storage] = true
			}
		}
	}
	for i := range t.src.Nodes { // a weight that another module shares, which is whole there, stays whole
		n := &t.src.Nodes[i]
		if n.Phase == program.Forward && slices.Contains(products, n.Does()) && !matches(t.Colwise, n.Module) {
			for _, v := range n.In {
				delete(out, v.Storage)
			}
		}
	}
	return out
}

// region says how a node's results are spread, before its inputs are converted.
func (t *tensorParallel) region(n *program.Node) layout {
	if n.Phase != program.Forward {
		if r, ok := t.regions[n.Call]; ok && n.Call >= 0 {
			return r
		}
	}
	r := replicated
	for _, v := range n.In {
		switch {
		case t.kind[v.Storage] == split || t.params[v.Storage] && matches(slices.Concat(t.Colwise, t.Rowwise), n.Module):
			r = split
		case r == replicated && (t.kind[v.Storage] == sequence || t.kind[v.Storage] == partial):
			r = sequence
		}
	}
	if r == sequence && n.Phase == program.Forward && (slices.Contains(products, n.Does()) || n.Module != t.last && slices.ContainsFunc(n.In, func(v program.View) bool { return t.ends[v.Storage] })) {
		r = replicated
	}
	if n.Phase == program.Forward && n.Call >= 0 {
		t.regions[n.Call] = max(r, t.regions[n.Call])
	}
	return r
}

// convert brings a node's inputs to the layout that it takes, and returns it as it reads
// them.
func (t *tensorParallel) convert(n *program.Node, r layout) *program.Node {
	sums := n.Phase == program.Backward && slices.Contains([]string{"add", "add_"}, n.Does()) && len(n.In) > 1
	for _, v := range n.In {
		sums = sums && t.kind[v.Storage] == partial
	}
	if sums {
		return n
	}
	as := map[program.StorageID]program.StorageID{}
	for _, v := range n.In {
		id := v.Storage
		if id == program.None {
			continue
		}
		if t.kind[id] == partial {
			t.scatter(id, n)
		}
		switch k := t.kind[id]; {
		case k == sequence && r != sequence:
			as[id] = t.whole(id, n)
		case k == replicated && r == sequence && n.Phase == program.Backward && t.alike(n, v):
			t.cut(id, n)
		}
	}
	for _, id := range slices.Concat(n.Reads, n.Holds) { // what it holds for backward is the whole one
		if g, ok := t.gathered[id]; ok && g.call < 0 && r != sequence {
			as[id] = g.whole
		}
	}
	if len(as) == 0 {
		return n
	}
	c := *n
	to := func(id program.StorageID) program.StorageID {
		if g, ok := as[id]; ok {
			return g
		}
		return id
	}
	c.In, c.Reads, c.Holds = slices.Clone(n.In), slices.Clone(n.Reads), slices.Clone(n.Holds)
	for i := range c.In {
		c.In[i].Storage = to(c.In[i].Storage)
	}
	for i := range c.Reads {
		c.Reads[i] = to(c.Reads[i])
	}
	for i := range c.Holds {
		c.Holds[i] = to(c.Holds[i])
	}
	return &c
}

// alike reports whether a whole input has as many elements as one that is in parts, so
// that both are of the residual stream.
func (t *tensorParallel) alike(n *program.Node, v program.View) bool {
	if t.params[v.Storage] || t.p.Storages[v.Storage].Life != program.Step {
		return false
	}
	return slices.ContainsFunc(n.In, func(w program.View) bool {
		return t.kind[w.Storage] == sequence && numel(w.Shape) == numel(v.Shape)
	})
}

// collective adds a node that makes result from what a storage is now.
func (t *tensorParallel) collective(op string, n *program.Node, from, to program.StorageID, events ...program.Event) {
	t.p.Nodes = append(t.p.Nodes, program.Node{Phase: n.Phase, Micro: n.Micro, Op: op, Module: n.Module, Call: -1, Segment: n.Segment, Recompute: n.Recompute, Events: events, Reads: []program.StorageID{from}})
	t.p.Storages[to].Life = program.Step
}

// like makes a storage beside that of the source, of so many bytes.
func (t *tensorParallel) like(id program.StorageID, bytes int64) program.StorageID {
	s := t.p.Storages[id]
	return t.storage(bytes, s.Category, compute, s.Name)
}

// whole gathers a tensor along the sequence: what the ranks sent, one behind the other, is
// copied into the order of the sequence, unless the batch is one sample.
func (t *tensorParallel) whole(id program.StorageID, n *program.Node) program.StorageID {
	call := int32(-1)
	if n.Phase == program.Backward && !n.Recompute {
		call = n.Call
	}
	if g, ok := t.gathered[id]; ok && (g.call < 0 || g.call == call) {
		return g.whole
	}
	from := t.now(id)
	bytes := t.p.Storages[from].Bytes * int64(t.Size)
	g := t.like(id, bytes)
	events := []program.Event{alloc(g)}
	if t.batch[id] != 1 {
		raw := t.like(id, bytes)
		events = []program.Event{alloc(raw), alloc(g), free(raw)}
	}
	t.collective("_c10d_functional::all_gather_into_tensor", n, from, g, events...)
	t.gathered[id] = gathering{g, call}
	return g
}

// scatter adds a partial tensor up, each rank a part of the sequence, from a copy in the
// order of ranks.
func (t *tensorParallel) scatter(id program.StorageID, n *program.Node) {
	from := t.now(id)
	bytes := t.p.Storages[from].Bytes
	ordered, part := t.like(id, bytes), t.like(id, ceilDiv(bytes, int64(t.Size)))
	t.collective("_c10d_functional::reduce_scatter_tensor", n, from, part, alloc(ordered), alloc(part), free(ordered))
	t.name[id], t.kind[id] = part, sequence
}

// cut keeps this rank's part of the sequence of a whole tensor, in a copy.
func (t *tensorParallel) cut(id program.StorageID, n *program.Node) {
	from := t.now(id)
	part := t.like(id, ceilDiv(t.p.Storages[from].Bytes, int64(t.Size)))
	t.collective("clone", n, from, part, alloc(part))
	t.name[id], t.kind[id] = part, sequence
}

// lossy adds a node of the loss as torch.distributed.tensor.parallel.loss_parallel runs it
// on scores that are split over the vocabulary, and reports whether it is one.
func (t *tensorParallel) lossy(n *program.Node) bool {
	if !t.Loss || len(n.In) == 0 || !slices.ContainsFunc(n.In, func(v program.View) bool { return t.kind[v.Storage] == split }) {
		return false
	}
	made := program.None
	for _, ev := range n.Events {
		if !ev.Free && (made == program.None || t.p.Storages[ev.Storage].Bytes > t.p.Storages[made].Bytes) {
			made = ev.Storage
		}
	}
	like := func() program.StorageID { return t.like(made, t.p.Storages[made].Bytes) }
	events := func(evs ...program.Event) bool {
		t.keep(n)
		last := &t.p.Nodes[len(t.p.Nodes)-1]
		last.Events = evs
		last.FLOPs, last.Traffic = last.FLOPs/int64(t.Size), last.Traffic/int64(t.Size)
		return true
	}
	if made == program.None {
		return false
	}
	part := func() {
		t.kind[made] = split
		t.part(made, t.uneven(n))
	}
	switch n.Does() {
	case "log_softmax", "_log_softmax":
		part()
		if d := n.In[0].DType; d.Bytes(1) < 4 { // computed in float32
			wide := func() program.StorageID { return t.like(made, t.p.Storages[made].Bytes*4/d.Bytes(1)) }
			x, shifted, exp, result := wide(), wide(), wide(), wide()
			return events(alloc(x), alloc(shifted), alloc(exp), free(exp), alloc(result), alloc(made), free(result), free(shifted), free(x))
		}
		shifted, exp := like(), like()
		return events(alloc(shifted), alloc(exp), free(exp), alloc(made), free(shifted))
	case "nll_loss_forward", "nll_loss2d_forward":
		t.keep(n)
		return true
	case "nll_loss_backward", "nll_loss2d_backward":
		part()
		zeros, exp, sum := like(), like(), like()
		return events(alloc(zeros), alloc(exp), alloc(sum), free(exp), alloc(made), free(sum), free(zeros))
	case "_log_softmax_backward_data": // the gradient is that of the scores already
		for _, v := range n.In {
			if t.kind[v.Storage] == split && t.p.Storages[t.now(v.Storage)].Category != program.Inputs {
				t.kind[made], t.size[made], t.name[made] = split, t.size[v.Storage], t.now(v.Storage)
				break
			}
		}
		return events()
	}
	return false
}

// Check returns an error for patterns that match no module of the step, or one that PyTorch does not split, and for a
// parallel loss without scores that are split.
func (o TP) Check(b *train.Build) error {
	if err := o.named(b); err != nil {
		return err
	}
	styles := o.Styles(b.Params)
	named := func(style string) bool {
		for _, s := range styles {
			if s == style {
				return true
			}
		}
		return false
	}
	switch {
	case len(o.Sequence) > 0 && !named("sequence"):
		return fmt.Errorf("sequence parallelism: no module with parameters matches %v", o.Sequence)
	case o.Loss && styles[Head(b)] != "colwise":
		return errors.New("a parallel loss needs a last linear module that is split by outputs, and the file shows none")
	}
	return nil
}
