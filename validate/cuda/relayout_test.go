package cuda

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

// channelsLast are the strides of an image whose channels lie innermost.
func channelsLast(s []int64) []int64 { return []int64{s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]} }

// A board is a CPU device with tensors laid into its arena.
type board struct {
	t   *testing.T
	d   *cpu.Device
	top int64
}

func (b *board) tensor(shape, strides []int64, value func() float32) *validate.Tensor {
	t := &validate.Tensor{At: b.top, DType: graph.Float32, Shape: shape, Strides: strides}
	raw := make([]byte, 4*t.Elems())
	for i := range t.Elems() {
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(value()))
	}
	if err := b.d.Upload(t.At, raw); err != nil {
		b.t.Fatal(err)
	}
	b.top += (int64(len(raw)) + 255) / 256 * 256
	return t
}

func (b *board) bytes(t *validate.Tensor) []byte {
	raw := make([]byte, 4*t.Elems())
	if err := b.d.Download(raw, t.At); err != nil {
		b.t.Fatal(err)
	}
	return raw
}

// call runs a kernel; results that are nil are not wanted.
func (b *board) call(kernel string, a *program.Attrs, results []*validate.Tensor, args ...*validate.Tensor) error {
	n := &program.Node{Op: kernel, Attrs: a}
	c := &validate.Call{Node: n, Kernel: kernel}
	for _, t := range args {
		c.Args = append(c.Args, validate.Operand{Kind: validate.OnDevice, Tensor: *t})
	}
	for _, t := range results {
		if t == nil {
			c.Results = append(c.Results, validate.Tensor{At: -1})
			continue
		}
		c.Results = append(c.Results, *t)
	}
	return b.d.Run(c)
}

// TestRelayout runs the three passes of convolutions on copies, by the CPU
// device's kernels: the result has the bits of the pass on the tensors as they
// lie, operands are as they were, and nothing outside the copies is written.
func TestRelayout(t *testing.T) {
	orders := map[string]func([]int64) []int64{"rows": rowMajor, "channels": channelsLast}
	for _, groups := range []int64{1, 6} {
		for xo, xs := range orders {
			for yo, ys := range orders {
				conv := &program.Attrs{Conv: &program.Conv{Stride: []int64{1, 1}, Pad: []int64{1, 1}, Dilation: []int64{1, 1}, OutPad: []int64{0, 0}, Groups: groups}}
				for result, pass := range map[int]string{2: "forward", 0: "data", 1: "filter"} {
					name := pass + " " + xo + " " + yo
					rng := rand.New(rand.NewPCG(1, uint64(groups)))
					b := &board{t: t, d: cpu.New()}
					if err := b.d.Reserve(1 << 20); err != nil {
						t.Fatal(err)
					}
					shape, weight := []int64{2, 6, 7, 5}, []int64{6, 6 / groups, 3, 3}
					number := func() float32 { return rng.Float32() - 0.5 }
					list := []*validate.Tensor{b.tensor(shape, xs(shape), number), b.tensor(weight, rowMajor(weight), number), b.tensor(shape, ys(shape), number)}
					run := func(l []validate.Tensor) error {
						switch result {
						case 2:
							return b.call("convolution", conv, []*validate.Tensor{&l[2]}, &l[0], &l[1])
						case 0:
							return b.call("convolution_backward", conv, []*validate.Tensor{&l[0], nil, nil}, &l[2], &l[0], &l[1])
						}
						return b.call("convolution_backward", conv, []*validate.Tensor{nil, &l[1], nil}, &l[2], &l[0], &l[1])
					}
					if err := run([]validate.Tensor{*list[0], *list[1], *list[2]}); err != nil {
						t.Fatal(err)
					}
					var want [][]byte
					for _, x := range list {
						want = append(want, b.bytes(x))
					}
					nan := make([]byte, 4*list[result].Elems()) // the result is written anew
					for i := range nan {
						nan[i] = 0xff
					}
					if err := b.d.Upload(list[result].At, nan); err != nil {
						t.Fatal(err)
					}
					c := copiesOf(formatNCHW, list...)
					if c.needed() != (xo != "rows" || yo != "rows") || c.bytes%validate.Align != 0 {
						t.Fatalf("%s: copies %v in %d bytes", name, c.made, c.bytes)
					}
					work := b.tensor([]int64{1, 1, 1, c.bytes/4 + 64}, []int64{1, 1, 1, 1}, func() float32 { return 7 })
					guard := b.bytes(work)[c.bytes:]
					if err := c.run(work.At, result, func(to, from *validate.Tensor) error { return b.call("copy", nil, []*validate.Tensor{to}, from) }, run); err != nil {
						t.Fatal(err)
					}
					for i, x := range list {
						if !slices.Equal(b.bytes(x), want[i]) {
							t.Errorf("%s, %d groups: tensor %d differs", name, groups, i)
						}
					}
					if !slices.Equal(b.bytes(work)[c.bytes:], guard) {
						t.Errorf("%s: written behind the copies", name)
					}
				}
			}
		}
	}
}

// TestRelayoutInPlace: a result that lies where an operand does is written after
// the operand was read, in its own order, and copies may lie apart.
func TestRelayoutInPlace(t *testing.T) {
	b := &board{t: t, d: cpu.New()}
	if err := b.d.Reserve(1 << 16); err != nil {
		t.Fatal(err)
	}
	shape, n := []int64{2, 3, 2, 2}, float32(0)
	x := b.tensor(shape, channelsLast(shape), func() float32 { n++; return n })
	y := b.tensor(shape, rowMajor(shape), func() float32 { return 100 })
	first, second := b.tensor(shape, rowMajor(shape), func() float32 { return -1 }), b.tensor(shape, rowMajor(shape), func() float32 { return -1 })
	c := copiesOf(formatNCHW, x, y, x) // x and y are read, x is written
	if want := []bool{true, false, true}; !slices.Equal(c.made, want) {
		t.Fatalf("copies %v, want %v", c.made, want)
	}
	list := slices.Clone(c.tensors)
	list[0].At, list[2].At = second.At, first.At
	move := func(to, from *validate.Tensor) error { return b.call("copy", nil, []*validate.Tensor{to}, from) }
	if err := c.runOn(list, func(i int) bool { return i < 2 }, func(i int) bool { return i == 2 }, move, func(l []validate.Tensor) error {
		return b.call("add", nil, []*validate.Tensor{&l[2]}, &l[0], &l[1])
	}); err != nil {
		t.Fatal(err)
	}
	for i, raw := 0, b.bytes(x); i < len(raw); i += 4 {
		if got, want := math.Float32frombits(binary.LittleEndian.Uint32(raw[i:])), float32(i/4+1+100); got != want {
			t.Fatalf("element %d is %v, want %v", i/4, got, want)
		}
	}
}

// TestRelayouts: every kind has a reason, and is found by its name.
func TestRelayouts(t *testing.T) {
	for _, r := range Relayouts {
		if r.Doc == "" || relays(r.Name) != r.On {
			t.Errorf("%+v", r)
		}
	}
	if relays("other") {
		t.Error("a kind that is not listed is on")
	}
}

// TestCopiesOf: only what lies otherwise is copied, and what does not is shown
// with the format's own strides.
func TestCopiesOf(t *testing.T) {
	s := []int64{2, 6, 7, 5}
	last := &validate.Tensor{At: 512, DType: graph.BFloat16, Shape: s, Strides: channelsLast(s)}
	rows := &validate.Tensor{At: 4096, DType: graph.BFloat16, Shape: s, Strides: rowMajor(s)}
	filter := &validate.Tensor{At: 8192, DType: graph.BFloat16, Shape: []int64{6, 1, 3, 3}, Strides: []int64{9, 9, 3, 1}}
	c := copiesOf(formatNHWC, last, filter, rows)
	if !slices.Equal(c.made, []bool{false, false, true}) || c.bytes != 1024 { // 840 bytes
		t.Errorf("copies %v in %d bytes", c.made, c.bytes)
	}
	for i, want := range []struct {
		at      int64
		strides []int64
	}{{512, channelsLast(s)}, {8192, []int64{9, 1, 3, 1}}, {0, channelsLast(s)}} {
		if got := c.tensors[i]; got.At != want.at || !slices.Equal(got.Strides, want.strides) {
			t.Errorf("tensor %d at %d with strides %v, want %v", i, got.At, got.Strides, want)
		}
	}
}
