package infer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// maxDepth bounds the nesting of calls of local functions.
const maxDepth = 64

// An outcome is the result of a local function on given arguments.
type outcome struct{ out []item }

// function infers a call of a local function: its body on the node's inputs.
// Results are remembered by attributes and inputs.
func function(c *call, f *graph.Function) error {
	e := c.s.e
	if len(e.stack) >= maxDepth || slices.Contains(e.stack, f) {
		return fmt.Errorf("function %s.%s calls itself, or too deeply", f.Domain, f.Name)
	}
	if c.arity() > len(f.Body.Inputs) || len(c.n.Outputs) > len(f.Body.Outputs) {
		return fmt.Errorf("%d inputs and %d outputs for a function of %d and %d", c.arity(), len(c.n.Outputs), len(f.Body.Inputs), len(f.Body.Outputs))
	}
	if e.opt.Strict && len(c.n.Outputs) != len(f.Body.Outputs) {
		return fmt.Errorf("%d outputs for a function of %d", len(c.n.Outputs), len(f.Body.Outputs))
	}
	args := make([]item, len(f.Body.Inputs))
	for i := range args {
		args[i] = c.item(i)
	}
	attrs := functionAttrs(c, f)
	key := callKey(f, attrs, args)
	e.work -= len(key) / 16
	r := e.memo[key]
	if r == nil {
		s := newScope(e, f.Body, nil)
		s.opsets, s.attrs, s.inFunction = functionOpsets(f, e.model), attrs, true
		e.stack = append(e.stack, f)
		out, err := s.apply(args)
		e.stack = e.stack[:len(e.stack)-1]
		if err != nil {
			return err
		}
		r = &outcome{out}
		if key != "" {
			if e.memo == nil {
				e.memo = map[string]*outcome{}
			}
			e.memo[key] = r
		}
	}
	for i := range c.n.Outputs {
		c.give(i, r.out[i])
	}
	return nil
}

// functionAttrs returns the attributes of the call, by the function's names,
// with defaults.
func functionAttrs(c *call, f *graph.Function) []graph.Attr {
	out := make([]graph.Attr, 0, len(f.Attrs))
	for _, def := range f.Attrs {
		if a := c.attr(def.Name); a != nil {
			b := *a
			b.Name = def.Name
			out = append(out, b)
		} else if def.Kind != graph.AttrNone {
			out = append(out, def)
		}
	}
	return out
}

// functionOpsets returns the function's operator sets, then the model's.
func functionOpsets(f *graph.Function, m *graph.Model) []graph.Opset {
	return append(slices.Clone(f.Opsets), m.Opsets...)
}

// callKey identifies a call with its arguments; "" if text cannot identify one
// of them.
func callKey(f *graph.Function, attrs []graph.Attr, args []item) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\x00%s\x00%s", f.Domain, f.Name, f.Overload)
	for i := range attrs {
		a := &attrs[i]
		if a.Graph != nil || a.Graphs != nil || a.Tensor != nil || a.Tensors != nil || a.Types != nil {
			return ""
		}
		fmt.Fprintf(&b, "\x00%s=%d,%v,%v,%q,%v,%v,%q", a.Name, a.Kind, a.F, a.I, a.S, a.Floats, a.Ints, a.Strings)
	}
	for _, it := range args {
		b.WriteByte(0)
		writeItem(&b, it)
	}
	return b.String()
}

func writeItem(b *strings.Builder, it item) {
	b.WriteString(typeText(it.typ))
	b.WriteByte('#')
	b.WriteString(it.typ.Len.String())
	if it.contents == nil {
		return
	}
	fmt.Fprintf(b, "%v{", it.contents.dims)
	for _, x := range it.contents.elems {
		if x.isFloat {
			fmt.Fprintf(b, "%v;", x.f)
		} else {
			fmt.Fprintf(b, "%s/%d;", x.num, x.den)
		}
	}
	for _, sub := range it.contents.items {
		writeItem(b, sub)
		b.WriteByte(';')
	}
	b.WriteByte('}')
}
