package infer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// inferBatch infers g with Options.Batch as the leading dim of its inputs.
func inferBatch(g *graph.Graph, ops map[opKey]*Op, opt Options) (*Result, error) {
	lead, err := newEngine(g, ops, opt).leading(g, roles(g))
	if err != nil {
		return nil, err
	}
	if lead.symbols != nil {
		dims := maps.Clone(opt.Dims)
		if dims == nil {
			dims = map[string]int64{}
		}
		for _, s := range lead.symbols {
			dims[s] = opt.Batch
		}
		opt.Dims = dims
		e := newEngine(g, ops, opt)
		return e.result(e.graph(g))
	}
	if lead.fixed == opt.Batch {
		e := newEngine(g, ops, opt)
		return e.result(e.graph(g))
	}
	// With a symbol for the batch, every node must treat it as a batch; with
	// the number, shapes must fit. A node that also fails at the file's own
	// batch shows nothing.
	e := newEngine(g, ops, opt)
	if err := e.graph(g); err != nil {
		return nil, err
	}
	roles := roles(g) // again, now that ranks are known
	if lead, err = newEngine(g, ops, opt).leading(g, roles); err != nil {
		return nil, err
	}
	failed := e.failed
	name := newEngine(g, ops, opt).unused("batch")
	for _, r := range []rebinding{{lead.fixed, graph.Sym(name), name, roles}, {lead.fixed, graph.Int(opt.Batch), "", roles}} {
		e = newEngine(g, ops, opt)
		e.rebind, e.failed = &r, failed
		if err := e.graph(g); err != nil {
			return nil, fmt.Errorf("batch %d: the inputs' batch dim %d is fixed: %w", opt.Batch, lead.fixed, err)
		}
	}
	return e.result(nil)
}

// unused returns a symbol that the file does not use, like stem.
func (e *engine) unused(stem string) string {
	taken := e.symbols()
	for taken[stem] {
		stem += "_"
	}
	return stem
}

// A rebinding replaces a fixed batch of the inputs. While a symbol stands for
// it, uses of it are checked.
type rebinding struct {
	from   int64
	to     graph.Dim
	symbol string // "" when to is an integer
	roles  []role // of the main graph's values
}

// A leading is the leading dim of a graph's inputs: symbols, or an integer.
type leading struct {
	symbols []string
	fixed   int64
}

// leading finds the batch of a graph: the symbols at its place in the inputs,
// most of them first, if they are nowhere else in inputs or are called batch;
// or the integer at that place in the first input that may hold a batch.
func (e *engine) leading(g *graph.Graph, roles []role) (leading, error) {
	var out leading
	var inner, other []string
	found := false
	for _, id := range g.Inputs {
		v := &g.Values[id]
		t, err := e.given(v.Name, e.bind(v.Decl))
		if err != nil {
			return out, fmt.Errorf("input %q: %w", v.Name, err)
		}
		if t.Kind != graph.TensorType || len(t.Shape) == 0 {
			continue
		}
		at := roles[id].axis()
		if _, isSym := t.Shape[0].Symbol(); at < 0 && isSym { // the name decides
			at = 0
		}
		for i, d := range t.Shape {
			if i != at {
				inner = append(inner, d.Symbols()...)
			}
		}
		if at < 0 || at >= len(t.Shape) {
			continue
		}
		d := t.Shape[at]
		n, isInt := d.Int()
		name, isSym := d.Symbol()
		switch {
		case isSym:
			out.symbols = append(out.symbols, name)
		case !d.Known():
			out.symbols = append(out.symbols, dimName(v.Name, at))
		case !isInt:
			other = append(other, d.String())
		case !found:
			out.fixed, found = n, true
		}
	}
	led := len(out.symbols) > 0
	out.symbols = slices.DeleteFunc(out.symbols, func(s string) bool {
		return slices.Contains(inner, s) && !strings.Contains(strings.ToLower(s), "batch")
	})
	switch {
	case len(out.symbols) > 0:
		return out, nil
	case led || len(other) > 0:
		return out, fmt.Errorf("batch %d: the leading dims of the inputs are not free symbols; bind %s instead", e.opt.Batch, flags(append(inner, other...)))
	case !found:
		return out, fmt.Errorf("batch %d: no input has a leading dim", e.opt.Batch)
	}
	out.symbols = nil
	return out, nil
}

// flags returns the command line's flags that bind symbols.
func flags(symbols []string) string {
	slices.Sort(symbols)
	list := slices.Compact(symbols)
	for i, s := range list {
		list[i] = "--dim " + s + "=N"
	}
	return strings.Join(list, " ")
}

// dimName returns the symbol for an unknown dim of an input.
func dimName(input string, axis int) string { return fmt.Sprintf("%s_dim_%d", input, axis) }

// input replaces the batch in the type of an input.
func (r *rebinding) input(id graph.ValueID, t graph.Type) graph.Type {
	at := r.roles[id].axis()
	if t.Kind == graph.TensorType && at >= 0 && at < len(t.Shape) {
		if n, ok := t.Shape[at].Int(); ok && n == r.from {
			t.Shape = with(t.Shape, at, r.to)
		}
	}
	return t
}

// A digit locates the batch in a shape: the axis that holds it, the factor
// beside it in that axis's length, and which part of the factor is more
// significant than the batch. [8*B] with inner 2 is laid out as [2,B,4].
type digit struct {
	axis          int // -1: the shape does not depend on the batch
	factor, inner graph.Dim
}

// find locates the batch in a shape. It returns an error for a length that is
// not a multiple of it.
func (r *rebinding) find(s graph.Shape) (digit, error) {
	out := digit{axis: -1}
	b := r.to
	for i, d := range s {
		if !slices.Contains(d.Symbols(), r.symbol) {
			continue
		}
		k := d.FloorDiv(b)
		if !k.Mul(b).Equal(d) || slices.Contains(k.Symbols(), r.symbol) {
			return out, fmt.Errorf("a dim of %s is no multiple of the batch", text(s))
		}
		if out.axis >= 0 { // as in a product of all pairs, which cannot be followed
			return digit{axis: -1}, nil
		}
		out = digit{axis: i, factor: k, inner: graph.Int(1)}
	}
	return out, nil
}

// mayDrop lists the operators whose output need not depend on the batch when
// an input does.
var mayDrop = []string{
	"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
	"ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin", "Shape", "Size", "MatMul", "Gemm", "Einsum",
	"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "If", "Loop", "Scan", "SequenceAt", "SequenceLength",
	"NonZero", "Unique", "NonMaxSuppression",
}

// checkBatch verifies, while a symbol stands for the batch, that the node keeps
// samples apart or treats all alike.
func checkBatch(c *call) error {
	r := c.s.e.rebind
	if r.symbol == "" {
		return nil
	}
	depends := -1
	for i := range c.arity() {
		if i == 1 && c.n.Op == "CastLike" { // only its type matters
			break
		}
		if d, err := r.find(c.shape(i)); err == nil && d.axis >= 0 {
			depends = i
			break
		}
	}
	for i, id := range c.n.Outputs {
		if t := c.outTyp(i); id != graph.NoValue && !c.unknown && t.Kind == graph.TensorType && t.Shape == nil && (depends >= 0 || len(c.n.Subgraphs()) > 0) {
			return fmt.Errorf("the rank of %q is not known, nor where the batch is in it", c.s.g.Values[id].Name)
		}
	}
	if depends < 0 && !c.unknown {
		return checkOutputs(c, r)
	}
	if c.unknown {
		return fmt.Errorf("no rule for operator %s says what it does with the batch", opName(c.n))
	}
	if err := checkReads(c, r); err != nil {
		return err
	}
	if err := checkOutputs(c, r); err != nil {
		return err
	}
	if t := c.outTyp(0); t.Kind == graph.TensorType && !slices.Contains(mayDrop, c.n.Op) && !local(c) {
		if d, _ := r.find(t.Shape); d.axis < 0 && !mentions(t.Shape, r.symbol) {
			return fmt.Errorf("%s becomes %s, which is fixed at the batch %d of the file", text(c.shape(depends)), text(t.Shape), r.from)
		}
	}
	return nil
}

// local reports whether c calls a local function, whose own nodes were checked.
func local(c *call) bool {
	return c.s.e.funcs[funcKey{c.n.Domain, c.n.Op, c.n.Overload}] != nil
}

func mentions(s graph.Shape, symbol string) bool {
	return slices.ContainsFunc(s, func(d graph.Dim) bool { return slices.Contains(d.Symbols(), symbol) })
}

// checkReads rejects a Gather of fixed positions of the batch.
func checkReads(c *call, r *rebinding) error {
	if c.n.Op != "Gather" || c.shape(0) == nil {
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), c.rank(0))
	if err != nil {
		return err
	}
	if d, err := r.find(c.shape(0)); err == nil && d.axis == axis && !mentions(c.shape(1), r.symbol) {
		return fmt.Errorf("it reads fixed positions of the batch, axis %d of %s", axis, text(c.shape(0)))
	}
	return nil
}

// checkOutputs locates the batch in every output, and records its position.
func checkOutputs(c *call, r *rebinding) error {
	if c.s.digits == nil {
		c.s.digits = make([]digit, len(c.s.g.Values))
		for i := range c.s.digits {
			c.s.digits[i].axis = -1
		}
	}
	for i, id := range c.n.Outputs {
		t := c.outTyp(i)
		if id == graph.NoValue || t.Kind != graph.TensorType {
			continue
		}
		d, err := r.find(t.Shape)
		if err != nil {
			return err
		}
		if d.axis >= 0 {
			if d.inner, err = innerOf(c, r, d, t.Shape); err != nil {
				return err
			}
		}
		c.s.digits[id] = d
	}
	return nil
}

// innerOf returns the part of the factor that is more significant than the
// batch in an output shape with the batch at d.
func innerOf(c *call, r *rebinding, d digit, shape graph.Shape) (graph.Dim, error) {
	one := graph.Int(1)
	if c.n.Op == "Reshape" || c.n.Op == "Flatten" {
		in, err := r.find(c.shape(0))
		if err != nil || in.axis < 0 {
			return one, fmt.Errorf("%s becomes %s: the place of the batch is not known", text(c.shape(0)), text(shape))
		}
		left := product(c.shape(0)[:in.axis]).Mul(innerIn(c, 0, in))
		outer := product(shape[:d.axis])
		inner := left.FloorDiv(outer)
		if !inner.Mul(outer).Equal(left) || !d.factor.FloorDiv(inner).Mul(inner).Equal(d.factor) {
			return one, fmt.Errorf("%s becomes %s, which mixes the samples of a batch other than %d", text(c.shape(0)), text(shape), r.from)
		}
		return inner, nil
	}
	if d.factor.Equal(one) {
		return one, nil
	}
	for i := range c.arity() {
		if in, err := r.find(c.shape(i)); err == nil && in.axis >= 0 && in.factor.Equal(d.factor) {
			return innerIn(c, i, in), nil
		}
	}
	if c.n.Op == "Concat" || c.n.Op == "Tile" || c.n.Op == "Expand" { // whole batches, one after the other
		return d.factor, nil
	}
	return one, fmt.Errorf("in %s the place of the batch is not known", text(shape))
}

// innerIn returns the recorded inner factor of input i, located at d.
func innerIn(c *call, i int, d digit) graph.Dim {
	if at := c.s.digits; at != nil && at[c.n.Inputs[i]].axis == d.axis && at[c.n.Inputs[i]].inner.Known() {
		return at[c.n.Inputs[i]].inner
	}
	return d.inner
}
