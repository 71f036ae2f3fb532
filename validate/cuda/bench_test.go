package cuda

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

// A bench is memory of devices with tensors of a test's own, laid one behind
// another, and runs calls on them: on the CPU device alone (newBench), or on the
// GPU as well, where it compares both (onBoth).
type bench struct {
	t      *testing.T
	memory interface {
		Upload(at int64, from []byte) error
		Download(to []byte, at int64) error
	}
	do     func(b *bench, c *validate.Call) // runs a call, and fails the test where that goes wrong
	rng    *rand.Rand
	number func(rng *rand.Rand) float64 // an element of a tensor of floating-point numbers
	top    *int64                       // where the next tensor goes, in bytes
	shift  int64                        // elements that tensors lie behind a multiple of layout.Align
}

// newBench makes a bench of so many bytes on the CPU device.
func newBench(t *testing.T, bytes int64) *bench {
	d := cpu.New()
	if err := d.Reserve(bytes); err != nil {
		t.Fatal(err)
	}
	run := func(b *bench, c *validate.Call) {
		b.t.Helper()
		if err := d.Run(c); err != nil {
			b.t.Fatal(err)
		}
	}
	return (&bench{memory: d, do: run, number: units(8, 1./8)}).in(t)
}

// in is the bench as a subtest finds it: cleared, and with random numbers from
// their start, so that it does the same when it runs alone.
func (b *bench) in(t *testing.T) *bench {
	sub := *b
	sub.t, sub.top, sub.rng = t, new(int64), rand.New(rand.NewPCG(1, 2))
	return &sub
}

// units makes numbers from -n to n units. Powers of two up to 1/64 and n up
// to 64 of them make numbers that all types hold exactly.
func units(n int, unit float64) func(*rand.Rand) float64 {
	return func(rng *rand.Rand) float64 { return float64(rng.IntN(2*n+1)-n) * unit }
}

// fractions makes numbers of all bits from -1/2 to 1/2, which float32 holds.
func fractions(rng *rand.Rand) float64 { return float64(rng.Float32() - 0.5) }

// tensor lays a tensor of random numbers; of zeros and ones where the type has no
// fractions. Without strides it is row-major.
func (b *bench) tensor(d graph.DType, strides []int64, shape ...int64) *validate.ArenaView {
	if !d.IsFloat() {
		return b.classes(d, 2, strides, shape...)
	}
	return b.filled(d, func() float64 { return b.number(b.rng) }, strides, shape...)
}

// classes lays a tensor of random whole numbers from 0 to below a limit.
func (b *bench) classes(d graph.DType, limit int, strides []int64, shape ...int64) *validate.ArenaView {
	return b.filled(d, func() float64 { return float64(b.rng.IntN(limit)) }, strides, shape...)
}

// filled lays a tensor of given numbers, in the order in which they lie; holes
// between elements take numbers too.
func (b *bench) filled(d graph.DType, number func() float64, strides []int64, shape ...int64) *validate.ArenaView {
	x := b.place(d, strides, shape)
	raw, size := make([]byte, extent(x)), d.Bytes(1)
	for i := int64(0); i < int64(len(raw)); i += size {
		cases.Put(raw[i:], d, number())
	}
	b.upload(x.At, raw)
	return x
}

// result lays a tensor for a call to write: of NaNs, so that one that stays is
// seen.
func (b *bench) result(d graph.DType, strides []int64, shape ...int64) *validate.ArenaView {
	x := b.place(d, strides, shape)
	b.blank(x)
	return x
}

// blank makes a tensor all NaNs, or the numbers of the same bits.
func (b *bench) blank(x *validate.ArenaView) { b.upload(x.At, nans(extent(x))) }

// nans are bytes that are NaNs in every floating-point type.
func nans(n int64) []byte { return bytes.Repeat([]byte{0xff}, int(n)) }

func (b *bench) place(d graph.DType, strides, shape []int64) *validate.ArenaView {
	if strides == nil {
		strides = validate.RowMajor(shape)
	}
	x := &validate.ArenaView{At: *b.top + d.Bytes(b.shift), DType: d, Shape: shape, Strides: strides}
	*b.top = padded(x.At + extent(x))
	return x
}

func (b *bench) upload(at int64, raw []byte) {
	b.t.Helper()
	if err := b.memory.Upload(at, raw); err != nil {
		b.t.Fatal(err)
	}
}

// bytes are those of a tensor, from its first element to its last, on the
// processor.
func (b *bench) bytes(x *validate.ArenaView) []byte {
	raw := make([]byte, extent(x))
	if err := b.memory.Download(raw, x.At); err != nil {
		b.t.Fatal(err)
	}
	return raw
}

// run runs a call of a kernel and returns its results. Operands that are nil are
// absent, results that are nil are not wanted.
func (b *bench) run(kernel string, a *program.Attrs, results []*validate.ArenaView, args ...*validate.ArenaView) []*validate.ArenaView {
	b.t.Helper()
	b.do(b, newCall(kernel, a, results, args))
	return results
}

// newCall makes a call of a kernel, and its node.
func newCall(kernel string, a *program.Attrs, results, args []*validate.ArenaView) *validate.Call {
	in, out := make([]validate.Operand, len(args)), make([]validate.ArenaView, len(results))
	for i, x := range args {
		if x != nil {
			in[i] = validate.Operand{Kind: validate.OnDevice, Tensor: *x}
		}
	}
	for i, x := range results {
		if out[i].At = -1; x != nil {
			out[i] = *x
		}
	}
	if a == nil {
		a = &program.Attrs{}
	}
	c := cases.NewCall(kernel, *a, in, out)
	c.Seed = 0x9876543210abcdef
	return c
}

// extent is how many bytes a tensor takes from its first element to its last.
func extent(t *validate.ArenaView) int64 {
	n := int64(1)
	for i := range t.Shape {
		if t.Shape[i] == 0 {
			return 0
		}
		n += (t.Shape[i] - 1) * t.Strides[i]
	}
	return t.DType.Bytes(n)
}

// window are a convolution's numbers for square windows of a number of dims.
func window(dims int, stride, pad, dil, groups int64) program.Conv {
	c := program.Conv{Groups: groups}
	for range dims {
		c.Stride, c.Pad, c.Dilation, c.OutPad = append(c.Stride, stride), append(c.Pad, pad), append(c.Dilation, dil), append(c.OutPad, 0)
	}
	return c
}
