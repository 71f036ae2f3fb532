package cuda

import (
	"slices"

	"github.com/memplan/memplan/planner/layout"
	"github.com/memplan/memplan/validate"
)

// A Relayout is a kind of convolution pass that runs on copies of tensors whose
// order it does not support, in memory that Work asks for. Without the memory,
// or switched off, it runs on the tensors themselves.
type Relayout struct {
	Name string
	On   bool
	Doc  string
}

// The kinds.
const (
	relayDepthwise = "depthwise"
	relayFormat    = "format"
	relayRefused   = "refused"
)

// Relayouts lists the kinds. On an H200 they took ConvNeXt's step at batch 16
// from 65 to 35 ms in float32, before kernels for 7x7 made the copies there needless.
var Relayouts = []Relayout{
	{relayFormat, true, "passes by cuDNN's graphs whose tensors lie in different orders: PyTorch brings all three to one, and cuDNN's fast engines want that"},
	{relayDepthwise, true, "convolutions of single channels whose channels lie innermost and that have a stride, a dilation or another filter than 3x3, 5x5 and 7x7, by own kernels on row-major copies: neighbouring threads of these kernels read neighbouring columns, which are a whole pixel apart there"},
	{relayRefused, true, "passes that cuDNN has neither a graph nor an algorithm for as the tensors lie, on row-major copies: the own kernels for them are slow"},
}

// relays reports whether a kind is switched on.
func relays(name string) bool {
	i := slices.IndexFunc(Relayouts, func(r Relayout) bool { return r.Name == name })
	return i >= 0 && Relayouts[i].On
}

// A copies holds the tensors of a pass in the required order.
type copies struct {
	given   []*validate.ArenaView
	tensors []validate.ArenaView // in the required order; At counts from the start of the copies if it is a copy
	made    []bool               // whether tensors[i] is a copy
	bytes   int64                // of all copies, a multiple of layout.Align
}

// copiesOf plans copies of the tensors that do not have a format.
func copiesOf(f format, list ...*validate.ArenaView) *copies {
	c := &copies{given: list}
	for _, t := range list {
		to, made := *t, !f.holds(t)
		to.Strides = f.strides(t.Shape)
		if made {
			to.At = c.bytes
			c.bytes += padded(t.DType.Bytes(t.Elems()))
		}
		c.tensors, c.made = append(c.tensors, to), append(c.made, made)
	}
	return c
}

// needed reports whether any tensor must be copied.
func (c *copies) needed() bool { return slices.Contains(c.made, true) }

// padded returns the offset of the next copy after one of that many bytes.
func padded(bytes int64) int64 { return layout.RoundUp(bytes) }

// moveFunc copies a tensor to one of the same shape.
type moveFunc func(to, from *validate.ArenaView) error

// run makes the copies at an offset of the arena, runs the pass on them and
// copies its result back. result is its index among the tensors.
func (c *copies) run(at int64, result int, move moveFunc, pass func(list []validate.ArenaView) error) error {
	list := slices.Clone(c.tensors)
	for i := range list {
		if c.made[i] {
			list[i].At += at
		}
	}
	return c.runOn(list, func(i int) bool { return i != result }, func(i int) bool { return i == result }, move, pass)
}

// runOn is run on a list of tensors whose copies are at offsets chosen by the
// caller. What the pass reads is copied before it and what it writes after it, so
// a result may overlap an operand, and a tensor may be both.
func (c *copies) runOn(list []validate.ArenaView, reads, writes func(i int) bool, move moveFunc, pass func(list []validate.ArenaView) error) error {
	for i := range list {
		if c.made[i] && reads(i) {
			if err := move(&list[i], c.given[i]); err != nil {
				return err
			}
		}
	}
	if err := pass(list); err != nil {
		return err
	}
	for i := range list {
		if c.made[i] && writes(i) {
			if err := move(c.given[i], &list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
