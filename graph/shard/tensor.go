package shard

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// TP is tensor parallelism as torch.distributed.tensor.parallel.parallelize_module
// applies it: linear modules split by their outputs (ColwiseParallel) and by their
// inputs (RowwiseParallel). What is computed between them is split, too; the sum
// over ranks that a rowwise product needs, and that the gradient of a colwise
// product's input needs, is a collective with a result of its own.
type TP struct {
	World
	// Colwise and Rowwise are patterns of module names in the syntax of path.Match,
	// with dots for slashes: "model.layers.*.mlp.up_proj".
	Colwise, Rowwise []string
	// Sequence are patterns of norms that work on parts of the sequence (SequenceParallel):
	// between split modules each rank then has its part of every sequence.
	Sequence []string
	// Loss is loss_parallel: scores stay split over the vocabulary.
	Loss bool
	// Head is the module whose scores a parallel loss takes. It and embeddings may have outputs, or rows, that
	// the ranks do not divide: each then has its chunk of them, the last ones less (torch.chunk).
	Head   string
	Update Update
}

// matches reports whether a module's name matches a pattern, part by part.
func matches(patterns []string, module string) bool {
	name := strings.ReplaceAll(module, ".", "/")
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(strings.ReplaceAll(p, ".", "/"), name)
		return ok && err == nil
	})
}

// Styles returns the modules of parameters that are split, each with colwise or rowwise.
func (o TP) Styles(params []train.Param) map[string]string {
	out := map[string]string{}
	for _, p := range params {
		switch m := module(p.Name); {
		case matches(o.Colwise, m):
			out[m] = "colwise"
		case matches(o.Rowwise, m):
			out[m] = "rowwise"
		case matches(o.Sequence, m):
			out[m] = "sequence"
		}
	}
	return out
}

// Uneven lists the dims of a step's parameters of which ranks have different parts.
func (o TP) Uneven(b *train.Build) (out []int64) {
	t := &tensorParallel{TP: o, editor: newEditor(b), kind: map[program.StorageID]layout{}}
	t.begin()
	if t.parameters() != nil { // Apply says it
		return nil
	}
	for _, n := range t.size {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// Apply returns the step of a rank. The source is not changed.
func (o TP) Apply(b *train.Build) (*train.Build, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	t := &tensorParallel{TP: o, editor: newEditor(b), kind: map[program.StorageID]layout{}}
	t.begin()
	if err := t.parameters(); err != nil {
		return nil, err
	}
	for i := range b.Nodes {
		n := &b.Nodes[i]
		t.follow(n)
		if n.Phase == program.Update && n.Op == "step" {
			if n.Only != program.LaterSteps {
				t.reduced()
				t.step(t.locals(), t.Update)
			}
			continue
		}
		if !t.Loss && strings.HasSuffix(n.Does(), "log_softmax") && slices.ContainsFunc(n.In, func(v program.View) bool { return t.kind[v.Storage] == split }) {
			return nil, fmt.Errorf("tensor parallelism splits the scores, of which a loss takes all: give --tp-loss, or leave the last of %s whole", strings.Join(t.Colwise, ", "))
		}
		t.compute(n)
	}
	out := t.build()
	out.Params = slices.Clone(out.Params)
	for i, p := range out.Params {
		out.Params[i].Tensor.Shape, out.Params[i].Grad = t.shape(p), t.now(p.Grad)
	}
	return out, nil
}

// shape returns the shape of this rank's part of a parameter.
func (t *tensorParallel) shape(p train.Param) []int64 {
	shape := slices.Clone(p.Tensor.Shape)
	if dim, ok := t.dims[p.Tensor.Storage]; ok {
		shape[dim] = t.rowsOf(shape[dim])
	}
	return shape
}

type tensorParallel struct {
	TP
	*editor
	sequenced
	kind map[program.StorageID]layout // storages of the source that are not whole
	dims map[program.StorageID]int    // for each parameter: the dim that is split
	size map[program.StorageID]int64  // of the dim that is split, where ranks have different parts of it
}

// rowsOf is how much of a dim that is split this rank has.
func (t *tensorParallel) rowsOf(n int64) int64 {
	return Rows([]int64{n}, int64(t.Size), int64(t.Rank))
}

// part makes a storage this rank's part of what it is, along a dim of so many; 0 if all parts are alike.
func (t *tensorParallel) part(id program.StorageID, size int64) {
	s := &t.p.Storages[id]
	if size == 0 || s.Bytes%size != 0 {
		s.Bytes = ceilDiv(s.Bytes, int64(t.Size))
		return
	}
	t.size[id] = size
	s.Bytes = s.Bytes / size * t.rowsOf(size)
}

// uneven is the dim of a node's operands of which the ranks have different parts; 0 for none.
func (t *tensorParallel) uneven(n *program.Node) int64 {
	for _, v := range n.In {
		if size := t.size[v.Storage]; size > 0 {
			return size
		}
	}
	return 0
}

// parameters splits the parameters of the modules that the patterns name.
func (t *tensorParallel) parameters() error {
	t.dims, t.size = map[program.StorageID]int{}, map[program.StorageID]int64{}
	t.rows = t.embeddings()
	for _, p := range t.src.Params {
		m := module(p.Name)
		dim := 0
		switch {
		case matches(t.Colwise, m):
		case t.rows[p.Tensor.Storage]: // an embedding's, by its rows
		case !matches(t.Rowwise, m):
			continue
		case len(p.Tensor.Shape) == 1: // each rank adds the whole bias to the sum
			continue
		default:
			dim = len(p.Tensor.Shape) - 1
		}
		switch whole := p.Tensor.Shape[dim]; {
		case whole%int64(t.Size) == 0:
		case m != t.Head && !t.rows[p.Tensor.Storage]:
			return fmt.Errorf("tensor parallelism over %d ranks: dim %d of %q, %v, is not a multiple of it", t.Size, dim, p.Name, p.Tensor.Shape)
		case Rows([]int64{whole}, int64(t.Size), int64(t.Size-1)) == 0:
			return fmt.Errorf("tensor parallelism over %d ranks: dim %d of %q, %v, leaves the last of them nothing: PyTorch's loss_parallel raises there", t.Size, dim, p.Name, p.Tensor.Shape)
		default:
			t.size[p.Tensor.Storage] = whole
		}
		t.kind[p.Tensor.Storage], t.dims[p.Tensor.Storage] = split, dim
	}
	if len(t.kind) == 0 {
		return fmt.Errorf("tensor parallelism: no module with parameters matches %v", slices.Concat(t.Colwise, t.Rowwise))
	}
	return t.distribute()
}

// distribute cuts the parameters on the device, one after the other.
func (t *tensorParallel) distribute() error {
	setup := t.p.Setup
	for _, p := range t.src.Params {
		id := p.Tensor.Storage
		if t.kind[id] != split {
			continue
		}
		whole := t.storage(t.p.Storages[id].Bytes, program.Temporaries, compute, p.Name)
		t.p.Storages[id].Bytes /= int64(t.Size)
		if n := t.size[id]; n > 0 { // scattered with padding, which each rank keeps
			t.p.Storages[id].Bytes = t.p.Storages[whole].Bytes / n * ceilDiv(n, int64(t.Size))
		}
		for i, ev := range setup {
			if ev.Storage == id && !ev.Free {
				setup[i].Storage = whole
			}
		}
		setup = append(setup, alloc(id), free(whole))
	}
	t.p.Setup = setup
	return nil
}

// locals returns the parameters as this rank's optimizer sees them.
func (t *tensorParallel) locals() (out []local) {
	for _, p := range trained(t.src) {
		out = append(out, local{p.Name, p.Tensor.Storage, t.now(p.Grad), updateParam(p.Tensor.DType, t.shape(p))})
	}
	return out
}

// products are the operators that contract one dim of two matrices, their last
// two operands.
var products = []string{"mm", "addmm", "linear"}

// compute adds a node of the source as a rank runs it.
func (t *tensorParallel) compute(n *program.Node) {
	if t.lossy(n) {
		return
	}
	src, r := n, split
	if len(t.Sequence) > 0 {
		r = t.region(n)
		n = t.convert(n, r)
	}
	embeds := src.Op == "embedding" || src.Op == "embedding_dense_backward" // whole results of rows that a rank may lack
	switch spread := t.spread(src, r); {
	case t.contracts(n):
		t.kept(n, true)
		t.sum(src)
	case spread != replicated && !embeds:
		for _, ev := range n.Events {
			if s := &t.p.Storages[ev.Storage]; !ev.Free && s.Life != program.State && t.kind[ev.Storage] == replicated {
				if t.grads[ev.Storage] && spread != split {
					continue // of a whole parameter, to be added up
				}
				t.kind[ev.Storage] = spread
				switch spread {
				case split:
					t.part(ev.Storage, t.uneven(n))
				case sequence:
					s.Bytes = ceilDiv(s.Bytes, int64(t.Size))
				}
			}
		}
		t.kept(n, spread != partial)
	default:
		t.kept(n, false)
	}
	t.begun(src)
}

// spread is the layout of a node's results.
func (t *tensorParallel) spread(n *program.Node, r layout) layout {
	out := replicated
	for _, v := range n.In {
		switch k := t.kind[v.Storage]; {
		case k == split:
			return split
		case k == partial:
			out = partial
		case k == sequence && r == sequence:
			out = sequence
		}
	}
	return out
}

// kept adds a node, whose work the ranks may share.
func (t *tensorParallel) kept(n *program.Node, shared bool) {
	t.keep(n)
	if last := &t.p.Nodes[len(t.p.Nodes)-1]; shared {
		last.FLOPs, last.Traffic = last.FLOPs/int64(t.Size), last.Traffic/int64(t.Size)
		last.In = t.parts(n, last.In)
	}
}

// parts returns a node's operands, with the storages' names of now, in the shapes of this rank's part where the
// time of the node's kernel goes by them: the dim of a product that one operand alone has, the one that it
// contracts where both are divided, or the heads where it is one of many; heads of attention; rows of a norm.
func (t *tensorParallel) parts(n *program.Node, now []program.View) []program.View {
	k := kernel.Find(n.Does())
	if k == nil {
		return now
	}
	var wide []int // operands that are divided
	now = slices.Clone(now)
	for i, v := range n.In {
		if t.kind[v.Storage] == split || t.kind[v.Storage] == sequence {
			wide = append(wide, i)
		}
	}
	cut := func(i, fromEnd int) {
		if d := len(now[i].Shape) - fromEnd; d >= 0 {
			now[i].Shape = slices.Clone(now[i].Shape)
			now[i].Shape[d] = ceilDiv(now[i].Shape[d], int64(t.Size))
		}
	}
	switch k.Pace {
	case kernel.Products:
		t.product(n, cut)
	case kernel.Attentions, kernel.AttentionsBackward:
		for _, i := range wide {
			if len(now[i].Shape) == 4 {
				cut(i, 3)
			}
		}
	case kernel.LayerNorms, kernel.LayerNormsBackward:
		for _, i := range wide {
			cut(i, 2)
		}
	}
	return now
}

// product divides the factors of a product, its last two operands of two dims and more, by cut, which takes an operand
// and a dim, counted from the end.
func (t *tensorParallel) product(n *program.Node, cut func(operand, dim int)) {
	a, b := -1, -1
	for i, v := range n.In {
		if len(v.Shape) >= 2 {
			a, b = b, i
		}
	}
	if a < 0 {
		return
	}
	switch left, right := t.kind[n.In[a].Storage] == split, t.kind[n.In[b].Storage] == split; {
	case left && right && len(n.In[a].Shape) > 2 && len(n.In[b].Shape) > 2:
		cut(a, 3)
		cut(b, 3)
	case left && right:
		cut(a, 1)
		cut(b, 2)
	case left:
		cut(a, 2)
	case right:
		cut(b, 1)
	}
}

// reduced adds up gradients of embeddings that are split by their rows, one after the
// other: backward leaves them whole on each rank.
func (t *tensorParallel) reduced() {
	for _, p := range trained(t.src) {
		if t.rows[p.Tensor.Storage] && t.Update != nil {
			t.node("_c10d_functional::reduce_scatter_tensor", module(p.Name), passing(t.like(p.Tensor.Storage, t.p.Storages[p.Tensor.Storage].Bytes))...)
		}
	}
}

// sum adds the results of a node up over the ranks: whole ones, or this rank's part of the
// sequence, in backward where the sum is needed.
func (t *tensorParallel) sum(n *program.Node) {
	if len(t.Sequence) == 0 {
		t.allReduce(n)
		return
	}
	for _, v := range n.Out {
		if v.Storage == program.None {
			continue
		}
		if t.kind[v.Storage] = partial; n.Phase == program.Forward || n.Recompute {
			t.scatter(v.Storage, n)
		}
	}
}

// begun cuts what a node made that the residual stream begins with.
func (t *tensorParallel) begun(n *program.Node) {
	if n.Phase != program.Forward {
		return
	}
	for _, ev := range n.Events {
		if ev.Free || !t.starts[ev.Storage] || t.kind[ev.Storage] != replicated {
			continue
		}
		if slices.ContainsFunc(n.In, func(v program.View) bool { return t.kind[v.Storage] == split }) {
			t.scatter(ev.Storage, n)
		} else {
			t.cut(ev.Storage, n)
		}
	}
}

// contracts reports whether a product contracts the split dim.
func (t *tensorParallel) contracts(n *program.Node) bool {
	k := n.Args()
	if !slices.Contains(products, n.Does()) || k < 2 {
		return false
	}
	for i := k - 2; i < k; i++ {
		a := n.Arg(i)
		if a.In < 0 || t.kind[n.In[a.In].Storage] != split {
			return false
		}
	}
	return true
}

// allReduce adds the sum over ranks of a node's result, in a tensor of its own.
func (t *tensorParallel) allReduce(n *program.Node) {
	for _, out := range n.Out {
		src := out.Storage
		if src == program.None {
			continue
		}
		part := t.now(src)
		s := t.p.Storages[part]
		sum := t.storage(s.Bytes, s.Category, compute, s.Name)
		t.p.Storages[sum].Life = s.Life
		t.p.Nodes = append(t.p.Nodes, program.Node{Phase: n.Phase, Micro: n.Micro, Op: "_c10d_functional::all_reduce", Module: n.Module, Call: n.Call, Segment: n.Segment,
			Recompute: n.Recompute, Events: []program.Event{alloc(sum)}, Reads: []program.StorageID{part}})
		t.name[src] = sum
	}
}
