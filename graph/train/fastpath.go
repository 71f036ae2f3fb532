package train

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/python"
)

// In evaluation mode and without gradients torch.nn.MultiheadAttention takes a faster path
// than the one that exporters see (torch/nn/modules/activation.py, forward): one call,
// _native_multi_head_attention, which projects the input without rearranging it and copies
// neither it nor the projections (aten/src/ATen/native/transformers/cuda/attention.cu,
// native_multi_head_attention_cuda, if scaled_dot_product_attention has a fused kernel).

// A fastAttention is one run of such a module: its calls, and the values that they
// read.
type fastAttention struct {
	last                    int
	x, wIn, bIn, wOut, bOut graph.ValueID
	heads                   int64
	module, class, name     string
}

// fastPaths returns these runs by their first calls. The fast path is for self-attention
// of batch-first tensors with packed weights and without masks, if nothing reads the
// probabilities.
func (b *builder) fastPaths() map[int]*fastAttention {
	if b.opt.Train || b.opt.LoRA != nil || b.opt.Config.Autocast != graph.Undefined {
		return nil
	}
	out := map[int]*fastAttention{}
	uses := lastUses(b.l.Graph)
	for _, m := range b.modules {
		if !python.Attention.Of(m.Class) {
			continue
		}
		for _, span := range m.Calls {
			if f := b.fastPath(span, uses); f != nil {
				f.module, f.class = m.Name, m.Class
				out[span.First] = f
			}
		}
	}
	return out
}

// fastPath returns the run of one call of a module, nil if the fast path does
// not apply.
func (b *builder) fastPath(span lift.Span, uses []int) *fastAttention {
	g := b.l.Graph
	first, last := &g.Nodes[span.First], &g.Nodes[span.Last]
	if !swapsBatch(first) || !swapsBatch(last) {
		return nil
	}
	f := &fastAttention{last: span.Last, x: first.Inputs[0], name: first.Name}
	var linears []*graph.Node
	attentions := 0
	for i := span.First; i <= span.Last; i++ {
		n := &g.Nodes[i]
		switch op, _, _ := strings.Cut(n.Op, "."); op {
		case "linear":
			linears = append(linears, n)
		case "scaled_dot_product_attention":
			attentions++
			if len(n.Inputs) != 3 || !b.heads(f, n) {
				return nil
			}
		case "softmax", "bmm", "baddbmm", "matmul", "cat":
			return nil
		}
		for _, o := range n.Outputs {
			if i < span.Last && o >= 0 && uses[o] > span.Last || o >= 0 && i < span.Last && slices.Contains(g.Outputs, o) {
				return nil
			}
		}
	}
	if attentions != 1 || len(linears) != 2 || len(linears[0].Inputs) != 3 || len(linears[1].Inputs) != 3 || linears[0].Inputs[0] != first.Outputs[0] {
		return nil
	}
	f.wIn, f.bIn, f.wOut, f.bOut = linears[0].Inputs[1], linears[0].Inputs[2], linears[1].Inputs[1], linears[1].Inputs[2]
	for _, id := range []graph.ValueID{f.wIn, f.bIn, f.wOut, f.bOut} {
		if b.l.Roles[id] != lift.Parameter {
			return nil
		}
	}
	return f
}

// swapsBatch reports whether a call exchanges the first two of three dims.
func swapsBatch(n *graph.Node) bool {
	if n.Op != "transpose.int" || len(n.Args) != 3 || len(n.Inputs) != 1 {
		return false
	}
	return n.Args[1].Int+n.Args[2].Int == 1 && n.Args[1].Int*n.Args[2].Int == 0
}

// heads records the number of heads of an attention; the fused kernels require it to be
// even and head sizes to be multiples of 8.
func (b *builder) heads(f *fastAttention, n *graph.Node) bool {
	shape, ok := b.l.Graph.Values[n.Inputs[0]].Type.Shape.Static()
	if !ok || len(shape) != 4 {
		return false
	}
	f.heads = shape[1]
	return f.heads > 0 && f.heads%2 == 0 && shape[3]%8 == 0
}

// fused runs the fast path instead of the calls from i on; it returns false if types
// differ.
func (b *builder) fused(i int, f *fastAttention, env []*aten.Tensor) (bool, error) {
	x, w := env[f.x], env[f.wIn]
	if x == nil || w == nil || len(x.Shape) != 3 || x.DType != w.DType {
		return false, nil
	}
	c := &callsOf{e: b.e, as: aten.Call{Index: int32(i), Over: "default", Name: f.name, Module: f.module, Class: f.class}}
	qkv := c.run("linear", tensorArg(x), tensorArg(w), tensorArg(env[f.bIn]))
	var heads []aten.Arg
	for _, part := range c.all("chunk", tensorArg(qkv), intArg(3), intArg(-1)) {
		v := c.run("view", tensorArg(part), intsArg(x.Shape[0], x.Shape[1], f.heads, x.Shape[2]/f.heads))
		heads = append(heads, tensorArg(c.run("transpose", tensorArg(v), intArg(1), intArg(2))))
	}
	y := c.run("scaled_dot_product_attention", heads...)
	z := c.run("transpose", tensorArg(y), intArg(1), intArg(2))
	z = c.run("reshape", tensorArg(z), intsArg(x.Shape...))
	out := c.run("linear", tensorArg(z), tensorArg(env[f.wOut]), tensorArg(env[f.bOut]))
	if c.err != nil {
		return false, c.err
	}
	b.e.Hold(y, qkv)
	env[b.l.Graph.Nodes[f.last].Outputs[0]] = out
	for k := i; k <= f.last; k++ {
		for _, id := range b.holds[k] {
			b.e.Hold(env[id])
		}
	}
	return true, nil
}

// A callsOf runs calls on behalf of one call until the first that fails.
type callsOf struct {
	e   *aten.Eager
	as  aten.Call
	err error
}

// run is all for operators with one result.
func (c *callsOf) run(op string, args ...aten.Arg) *aten.Tensor {
	if outs := c.all(op, args...); len(outs) > 0 {
		return outs[0]
	}
	return nil
}

func (c *callsOf) all(op string, args ...aten.Arg) (outs []*aten.Tensor) {
	if c.err != nil {
		return nil
	}
	call := c.as
	call.Op, call.Args = op, args
	outs, c.err = c.e.Run(&call)
	return outs
}

func tensorArg(t *aten.Tensor) aten.Arg { return aten.Arg{Kind: graph.ArgValue, T: t} }

func intArg(n int64) aten.Arg { return aten.Arg{Kind: graph.ArgInt, Int: n} }

func intsArg(list ...int64) aten.Arg {
	a := aten.Arg{Kind: graph.ArgList}
	for _, n := range list {
		a.List = append(a.List, intArg(n))
	}
	return a
}
