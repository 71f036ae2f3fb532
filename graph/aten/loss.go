package aten

import (
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// CrossEntropy is torch.nn.functional.cross_entropy with class indices: the
// logits are [N, C] or [N, C, d1, ..], the target has no class dim.
func (e *Eager) CrossEntropy(x, target *Tensor) *Tensor {
	return e.crossEntropy(x, target, meanLoss)
}

// A lossKind says how a loss over classes adds up.
type lossKind struct {
	reduction int64   // 0 none, 1 mean, 2 sum
	ignore    int64   // class that does not count
	weight    *Tensor // of each class, or nil
}

// meanLoss are the defaults of torch.nn.functional's losses.
var meanLoss = lossKind{reduction: 1, ignore: -100}

func (e *Eager) crossEntropy(x, target *Tensor, kind lossKind) *Tensor {
	d := 1
	if x.dim() == 1 {
		d = 0
	}
	ls := e.softmax(x, true, "log_softmax", d) // called with x's type, which autocast leaves alone
	if e.Autocast != graph.Undefined {
		ls = e.castTo(ls, graph.Float32)
	}
	return e.nll(ls, target, kind)
}

// nll is nll_loss of log-probabilities: they, the target and the total weight
// are saved.
func (e *Eager) nll(ls, target *Tensor, kind lossKind) *Tensor {
	op, node, back := "nll_loss_forward", "NllLossBackward0", "nll_loss_backward"
	if ls.dim() > 2 {
		op, node, back = "nll_loss2d_forward", "NllLoss2DBackward0", "nll_loss2d_backward"
	}
	k := e.begin(op, present([]*Tensor{ls, target, kind.weight})...).scalars(float64(kind.reduction), float64(kind.ignore))
	var o, total *Tensor
	switch {
	case kind.reduction != 0:
		o, total = k.alloc(nil, nil, ls.DType), k.alloc(nil, nil, ls.DType)
	case ls.dim() > 2:
		total, o = k.alloc(nil, nil, ls.DType), k.alloc(target.Shape, nil, ls.DType)
	default:
		o, total = k.alloc(target.Shape, nil, ls.DType), k.alloc(nil, nil, ls.DType)
	}
	if k.end(); kind.weight != nil || kind.reduction == 0 {
		e.P.Nodes[len(e.P.Nodes)-1].Attrs.Inexact = "losses by weights, or of each element"
	}
	e.record(node, []*Tensor{o}, []*Tensor{ls}, []*Tensor{ls, target, total, kind.weight}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin(back, append([]*Tensor{g[0]}, present(s)...)...).scalars(float64(kind.reduction), float64(kind.ignore))
		if kind.weight != nil || kind.reduction == 0 {
			k.inexact("losses by weights, or of each element")
		}
		k.alloc(ls.Shape, nil, ls.DType)
		return []*Tensor{k.end()}
	})
	return o
}

// MSE is the mean squared error against a target of x's shape.
func (e *Eager) MSE(x, target *Tensor) *Tensor {
	return e.mse("mse_loss", x, target, meanLoss.reduction)
}

// mse reduces a loss of two tensors of one shape; reduction is 1 for the mean, 2
// for the sum.
func (e *Eager) mse(op string, x, target *Tensor, reduction int64) *Tensor {
	if e.Autocast != graph.Undefined {
		x = e.castTo(x, graph.Float32)
	}
	k := e.begin("mse_loss", x, target).does(op).scalars(float64(reduction))
	t := k.temp(x.Bytes(), program.Temporaries)
	o := k.alloc(x.Shape, nil, x.DType) // the result keeps the memory of the losses of each element
	o.Shape, o.Strides = nil, nil
	k.n.Out[0] = o.Tensor
	k.free(t)
	k.flops(3 * x.Numel()).end()
	e.record("MseLossBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, target}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("mse_loss_backward", g[0], s[0], s[1]).does(op + "_backward").scalars(float64(reduction))
		k.alloc(x.Shape, nil, x.DType)
		return []*Tensor{k.end()}
	})
	return o
}

// Sum adds all elements.
func (e *Eager) Sum(x *Tensor) *Tensor {
	return runSum(e, &Call{Op: "sum", Args: []Arg{{Kind: graph.ArgValue, T: x}}})[0]
}

// Reshape shows t in another shape with the same number of elements.
func (e *Eager) Reshape(t *Tensor, shape []int64) *Tensor { return e.reshape("view", t, shape) }

// Float32 casts t to float32 (Tensor.float), or returns it.
func (e *Eager) Float32(t *Tensor) *Tensor {
	if t.DType == graph.Float32 {
		return t
	}
	return e.toDType("to", t, graph.Float32)
}

// OnesLike makes backward's seed.
func (e *Eager) OnesLike(t *Tensor) *Tensor {
	k := e.begin("ones_like", t).does("fill").scalars(1)
	k.alloc(t.Shape, nil, t.DType)
	return k.end()
}

// Host returns a CPU tensor: it takes no device memory. Values are its elements,
// if they are known.
func Host(d graph.DType, shape []int64, values ...float64) *Tensor {
	t := host(d, shape)
	t.values = values
	return t
}

// Mark appends a node that allocates nothing.
func (e *Eager) Mark(op string) { e.begin(op).end() }

// An UpdateEvent is one allocation or free inside an optimizer's step.
type UpdateEvent struct {
	ID    int32
	Free  bool
	Bytes int64
	Param *Tensor // the parameter it belongs to, or nil
	Name  string
	State bool // kept
}

// A Touched is a node that Touch appended.
type Touched struct {
	e      *Eager
	node   int
	states []*Tensor
}

// Touch appends a node that reads and overwrites ts and runs through events.
func (e *Eager) Touch(op string, ts []*Tensor, events []UpdateEvent, rule *program.Rule) *Touched {
	k := e.begin(op, ts...)
	k.attrs().Rule = rule
	k.n.Traffic *= 2
	t := &Touched{e: e, node: len(e.P.Nodes)}
	ids := map[int32]program.StorageID{}
	for _, ev := range events {
		if ev.Free {
			k.free(ids[ev.ID])
			continue
		}
		id := k.temp(ev.Bytes, program.Temporaries)
		ids[ev.ID] = id
		k.n.Traffic += 2 * ev.Bytes
		if id == program.None {
			continue
		}
		s := &e.P.Storages[id]
		s.Name = ev.Name
		if ev.Param != nil {
			s.Name, s.Module = ev.Param.Name+"."+ev.Name, e.P.Storages[ev.Param.Storage].Module
		}
		if ev.State {
			s.Category, s.Life = program.Optimizer, program.State
			name := ""
			if ev.Param != nil {
				name = ev.Param.Name
			}
			t.states = append(t.states, &Tensor{Name: name, Tensor: program.Tensor{Storage: id, DType: graph.Uint8, Shape: []int64{ev.Bytes}, Strides: []int64{1}}})
		}
	}
	k.end()
	return t
}

// First makes the node run in the first step only and returns the state it
// created.
func (t *Touched) First() []*Tensor {
	t.e.P.Nodes[t.node].Only = program.FirstStep
	return t.states
}

// Says sets what the optimizer's step computes.
func (t *Touched) Says(r *program.Rule) { t.e.P.Nodes[t.node].Attrs.Rule = r }

// Later makes the node run in all steps but the first.
func (t *Touched) Later() { t.e.P.Nodes[t.node].Only = program.LaterSteps }
