package cuda

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/internal/cases"
)

// TestDividers divides by what numbers of 32 bits there are at the ends and in
// between.
func TestDividers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const top = 1<<31 - 1
	by := []int64{1, 2, 3, 7, 10, 641, 1 << 16, 1<<30 - 1, 1 << 30, 1<<30 + 1, top - 1, top}
	for range 1000 {
		by = append(by, 1+rng.Int64N(top)>>rng.IntN(31))
	}
	for _, d := range by {
		for _, n := range []int64{0, 1, d - 1, d, min(d+1, top), top / d * d, top/d*d - 1, top, rng.Int64N(top)} {
			if got := int64(divideBy(d).quotient(uint32(n))); got != n/d {
				t.Fatalf("%d / %d is %d", n, d, got)
			}
		}
	}
}

// stridesFor makes strides for a shape: dims in any order, some of them with holes.
func stridesFor(rng *rand.Rand, shape []int64, unit int64) []int64 {
	strides, at := make([]int64, len(shape)), int64(1)
	for i, d := range rng.Perm(len(shape)) {
		if rng.IntN(2) == 0 {
			at = (at + unit - 1) / unit * unit
		}
		strides[d] = at
		at *= shape[d]
		if i == 0 && rng.IntN(3) == 0 {
			at += unit
		}
	}
	return strides
}

// lattice is where the elements of tensors lie, in elements.
func lattice(shape []int64, strides ...[]int64) [][]int64 {
	out := make([][]int64, len(strides))
	for o, s := range strides {
		cases.Each(shape, s, func(_ int, at int64) { out[o] = append(out[o], at) })
	}
	return out
}

// spread is what dims and dividers make of a thread's number.
func spread(i uint32, dims int32, size [maxDims]divider, strides ...[maxDims]int32) []int64 {
	at := make([]int64, len(strides))
	for d := dims - 1; d >= 0; d-- {
		q := uint32(0)
		if d > 0 {
			q = size[d].quotient(i)
		}
		for o := range strides {
			at[o] += int64(i-q*size[d].by) * int64(strides[o][d])
		}
		i = q
	}
	return at
}

// TestStrided follows the plans of copies and operators thread by thread: they
// reach every element once, in both tensors at once.
func TestStrided(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	words, kinds := map[int32]bool{}, map[string]int{}
	for range 2000 {
		bytes := int64(1) << rng.IntN(4)
		shape := make([]int64, 1+rng.IntN(3))
		for d := range shape {
			shape[d] = []int64{1, 2, 3, 8, 16, 17, 24, 40, 65}[rng.IntN(9)]
		}
		out, in := stridesFor(rng, shape, 16/bytes), stridesFor(rng, shape, 16/bytes)
		if rng.IntN(3) == 0 {
			in = slices.Clone(out)
		}
		if d := rng.IntN(len(shape)); rng.IntN(4) == 0 {
			in[d] = 0
		}
		want := map[[2]int64]int{}
		both := lattice(shape, out, in)
		for i := range both[0] {
			want[[2]int64{both[0][i], both[1][i]}]++
		}
		strides := [][]int64{out, in}
		size := fold(shape, strides)
		at, got := []uint64{4096 + uint64(bytes)*rng.Uint64N(2), 8192 + 4*uint64(bytes)*rng.Uint64N(3)}, map[[2]int64]int{}
		if a, ok := transposeOf(size, strides, at[0], at[1], bytes); ok {
			kinds["transposed"]++
			follow(t, &a, bytes, got)
		} else if m, ok := moveOf(size, strides, at[0], at[1], bytes); ok {
			words[m.bytes] = true
			kinds["moved"]++
			followWords(t, &m, at, bytes, got)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("shape %v, strides %v: the plan reaches other elements", shape, strides)
		}
		p := wideArgs{ptr: [4]uint64{at[0], at[1]}, dtype: [4]int32{2, 2}}
		if w, ok := widen(&p, size, strides); ok && bytes == 2 {
			kinds["widened"]++
			clear(got)
			followPacks(&p, w, got)
			if !maps.Equal(got, want) {
				t.Fatalf("shape %v, strides %v: the plan of %d at a time reaches other elements", shape, strides, w)
			}
		}
	}
	if len(words) != 5 || kinds["transposed"] < 10 || kinds["moved"] < 10 || kinds["widened"] < 10 {
		t.Errorf("words of %v bytes, %v", slices.Sorted(maps.Keys(words)), kinds)
	}
}

// followWords counts the pairs of elements that a plan moves by words of several.
func followWords(t *testing.T, m *moveArgs, at []uint64, bytes int64, got map[[2]int64]int) {
	t.Helper()
	n := int64(m.bytes) / bytes
	for i := range m.n {
		p := spread(i, m.dims, m.size, m.stride[:]...)
		if n > 1 && ((at[0]+uint64(p[0]*n*bytes))%uint64(m.bytes) != 0 || (at[1]+uint64(p[1]*n*bytes))%uint64(m.bytes) != 0) {
			t.Fatalf("%+v: a word of %d bytes lies askew", m, m.bytes)
		}
		for k := range n {
			got[[2]int64{p[0]*n + k, p[1]*n + k}]++
		}
	}
}

// followPacks counts the pairs of elements of an operator's result and operand
// that threads of so many elements reach.
func followPacks(p *wideArgs, each int64, got map[[2]int64]int) {
	for i := range p.n {
		q := spread(i, p.dims, p.size, p.stride[:2]...)
		for k := range each {
			got[[2]int64{q[0] + k, q[1] + k*int64(1-p.single[1])}]++
		}
	}
}

// TestTiled follows the plans of operators whose second operand lies the other
// way.
func TestTiled(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	found := 0
	for range 300 {
		shape := make([]int64, 2+rng.IntN(2))
		for d := range shape {
			shape[d] = []int64{2, 3, 16, 33, 40}[rng.IntN(5)]
		}
		one, err := broadcast(&validate.ArenaView{Shape: shape[1:], Strides: stridesFor(rng, shape[1:], 1)}, shape)
		if err != nil {
			t.Fatal(err)
		}
		all := [][]int64{stridesFor(rng, shape, 8), stridesFor(rng, shape, 8), one}
		want := lattice(shape, all...)
		p := wideArgs{op: 1, inputs: 2, ptr: [4]uint64{256, 512, 1024}, dtype: [4]int32{2, 0, 1}, scalar: [4]float32{3: 2}, param: [4]float64{1}}
		size := fold(shape, all)
		a, ok := tile(&p, size, all)
		if !ok {
			continue
		}
		found++
		if a.op != p.op || a.inputs != p.inputs || a.ptr != p.ptr || a.dtype != p.dtype || a.scalar != p.scalar || a.param != p.param || a.turned[1]+a.turned[2] == 0 {
			t.Fatalf("%+v", a)
		}
		count := map[[3]int64]int{}
		for i := range want[0] {
			count[[3]int64{want[0][i], want[1][i], want[2][i]}]++
		}
		for i := range a.tiles {
			q := a.across.quotient(i)
			rest := a.down.quotient(q)
			c0, r0 := (i-q*a.across.by)*32, (q-rest*a.down.by)*32
			base := spread(rest, a.dims, a.size, a.stride[:]...)
			for r := r0; r < min(a.rows, r0+32); r++ {
				for c := c0; c < min(a.cols, c0+32); c++ {
					var at [3]int64
					for o := range at {
						at[o] = base[o] + int64(r)*int64(a.row[o]) + int64(c)*int64(a.col[o])
					}
					count[at]--
				}
			}
		}
		for at, n := range count {
			if n != 0 {
				t.Fatalf("shape %v, strides %v: elements %v %d times too few", shape, all, at, n)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d of 300 are tiled", found)
	}
	if _, err := broadcast(&validate.ArenaView{Shape: []int64{3}, Strides: []int64{1}}, []int64{4}); err == nil {
		t.Error("3 elements spread to 4")
	}
}

// follow counts the elements that a plan of transposed matrices reaches.
func follow(t *testing.T, a *transposeArgs, bytes int64, got map[[2]int64]int) {
	t.Helper()
	side := uint32(32)
	if bytes == 2 {
		side = 64
	}
	for i := range a.tiles {
		q := a.across.quotient(i)
		c0, rest := (i-q*a.across.by)*side, a.down.quotient(q)
		r0 := (q - rest*a.down.by) * side
		base := spread(rest, a.dims, a.size, a.stride[:]...)
		for r := r0; r < min(a.rows, r0+side); r++ {
			for c := c0; c < min(a.cols, c0+side); c++ {
				got[[2]int64{base[0] + int64(r)*int64(a.outRow) + int64(c), base[1] + int64(c)*int64(a.inCol) + int64(r)}]++
			}
		}
		if a.outPairs != 0 && (base[0]%2 != 0 || a.out%4 != 0 || a.outRow%2 != 0) || a.inPairs != 0 && (base[1]%2 != 0 || a.in%4 != 0 || a.inCol%2 != 0) {
			t.Fatalf("pairs of %+v lie askew", *a)
		}
	}
}

// TestNarrow: more than 2^31 elements, or places further apart, are not for
// plans of 32 bits.
func TestNarrow(t *testing.T) {
	for _, c := range []struct {
		size, stride []int64
		want         bool
	}{{[]int64{1 << 16, 1 << 14}, []int64{1 << 14, 1}, true}, {[]int64{1 << 16, 1 << 15}, []int64{1 << 15, 1}, false}, {[]int64{3, 8}, []int64{1 << 30, 1}, false}, {[]int64{3, 8}, []int64{-1 << 30, 1}, false}, {[]int64{2, 8}, []int64{-1 << 30, 1}, true}} {
		if got := narrow(c.size, [][]int64{c.stride}); got != c.want {
			t.Errorf("%v %v: %v", c.size, c.stride, got)
		}
	}
}

// TestSlab takes windows out of a tensor along one dim, as slices and as
// selected elements, and finds them again.
func TestSlab(t *testing.T) {
	shape, rows := []int64{4, 3, 5}, []int64{15, 5, 1}
	for d, size := range shape {
		for from := range size {
			for n := int64(1); from+n <= size; n++ {
				in := slices.Clone(shape)
				in[d] = n
				w := &program.Window{Strides: rows, Offset: from * rows[d]}
				if at, start, ok := slab(shape, in, w); !ok || at != d && n < size || start != from {
					t.Errorf("dim %d from %d, %d long: dim %d from %d, %v", d, from, n, at, start, ok)
				}
			}
			w := &program.Window{Strides: slices.Delete(slices.Clone(rows), d, d+1), Offset: from * rows[d]}
			if at, start, ok := slab(shape, slices.Delete(slices.Clone(shape), d, d+1), w); !ok || at != d || start != from {
				t.Errorf("element %d of dim %d: dim %d from %d, %v", from, d, at, start, ok)
			}
		}
	}
	for name, c := range map[string]struct {
		in     []int64
		window program.Window
	}{
		"every other": {[]int64{2, 3, 5}, program.Window{Strides: []int64{30, 5, 1}}},
		"two dims":    {[]int64{2, 2, 5}, program.Window{Strides: rows}},
		"diagonal":    {[]int64{3, 5}, program.Window{Strides: []int64{20, 1}}},
		"turned":      {[]int64{3, 4, 5}, program.Window{Strides: []int64{5, 15, 1}}},
		"spread":      {[]int64{4, 3, 5, 1}, program.Window{Strides: []int64{15, 5, 1, 1}}},
		"askew":       {[]int64{4, 3, 2}, program.Window{Strides: rows, Offset: 4}},
	} {
		if d, from, ok := slab(shape, c.in, &c.window); ok {
			t.Errorf("%s: dim %d from %d", name, d, from)
		}
	}
}
