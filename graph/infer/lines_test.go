package infer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// TestPositionTables: a sequence is refused, or warned of, from the size on at
// which PyTorch 2.11 on a CPU fails: transformers' GPT-2, OPT, RoBERTa and BERT
// ran at the first size of each row, and raised an IndexError or RuntimeError at
// the second. The graphs are those of their exports.
func TestPositionTables(t *testing.T) {
	for _, c := range []struct {
		name, text  string
		runs, fails int64
		err, warn   string
	}{
		{"gpt2", `(int64[B,seq] ids) => (y) <float[1024,32] wpe = {}, int64 zero = {0}, int64 one = {1}, int64[1] at = {0}> {
			n = Shape<start = 1>(ids) s = Squeeze(n) r = Range(zero, s, one) p = Add(r, zero) u = Unsqueeze(p, at) y = Gather(wpe, u) }`,
			1024, 1025, `index 1024 is outside axis 0 of "wpe", [1024,32]: a sequence of at most 1024 fits`, ""},
		{"opt", `(int64[B,seq] ids, int64[B,seq] mask) => (y) <float[2050,32] table = {}, int64 one = {1}, int64 two = {2}, int64[1] b = {0}, int64[1] e = {9223372036854775807}, int64[1] ax = {1}> {
			c = CumSum(mask, one) m = Mul(c, mask) d = Sub(m, one) s = Slice(d, b, e, ax) p = Add(s, two) y = Gather(table, p) }`,
			2048, 2049, "", `without padding index 2050 is outside axis 0 of "table", [2050,32], where PyTorch fails: a sequence of at most 2048 fits`},
		{"roberta", `(int64[B,seq] ids) => (y) <float[514,32] table = {}, int64 pad = {1}, int64 axis = {1}> {
			eq = Equal(ids, pad) ne = Not(eq) i = Cast<to = 6>(ne) j = Cast<to = 7>(i) c = CumSum(j, axis) k = Cast<to = 6>(c) m = Mul(k, i) w = Cast<to = 7>(m) p = Add(w, pad) y = Gather(table, p) }`,
			512, 513, "", `without padding index 514 is outside axis 0 of "table", [514,32], where PyTorch fails: a sequence of at most 512 fits`},
		{"bert", `(int64[B,seq] ids, float[B,seq,32] x) => (y) <float[512,32] table = {}, int64[1,512] ids_of = {}, int64[1] b = {0}, int64[1] ax = {1}> {
			n = Shape<start = 1>(ids) s = Slice(ids_of, b, n, ax) e = Gather(table, s) y = Add(x, e) }`,
			512, 513, `shapes [2,513,32] and [1,512,32] do not broadcast: Slice (node 1) takes 513 of "ids_of", which has 512: a sequence of at most 512 fits`, ""},
	} {
		for _, size := range []int64{1, 2, c.runs, c.fails, 2 * c.fails, 100_000} {
			r, err := Infer(parse(t, 0, c.text), Options{Batch: 2, Dims: map[string]int64{"seq": size}})
			var long *TooLong
			switch {
			case err != nil && !errors.As(err, &long):
				t.Errorf("%s at %d: %v", c.name, size, err)
			case (err != nil) != (size >= c.fails && c.err != ""):
				t.Errorf("%s at %d: error %v", c.name, size, err)
			case size == c.fails && c.err != "" && !strings.Contains(err.Error(), c.err):
				t.Errorf("%s at %d: %v, want %s", c.name, size, err, c.err)
			}
			if err != nil {
				continue
			}
			if warned := len(r.Warnings) > 0; warned != (size >= c.fails) {
				t.Errorf("%s at %d: warnings %v", c.name, size, r.Warnings)
			}
			if size == c.fails && (r.Warnings[0].Code != "position-table" || r.Warnings[0].Message != c.warn) {
				t.Errorf("%s at %d: %v, want %s", c.name, size, r.Warnings, c.warn)
			}
		}
	}
}

// TestNoPositions: indices that depend on data, or that are clipped, end in no
// warning, whatever the size.
func TestNoPositions(t *testing.T) {
	for _, text := range []string{
		`(int64[B,seq] ids) => (y) <float[8,4] w = {}> { y = Gather(w, ids) }`,
		`(int64[B,seq] ids) => (y) <float[8,4] w = {}, int64 zero = {0}, int64 one = {1}, int64 top = {7}> { n = Shape<start = 1>(ids) s = Squeeze(n) r = Range(zero, s, one) p = Min(r, top) y = Gather(w, p) }`,
		// of two masks that exclude each other
		`(int64[B,seq] ids) => (y) <float[3,4] w = {}, int64 pad = {1}> { e = Equal(ids, pad) n = Not(e) a = Cast<to = 7>(e) b = Cast<to = 7>(n) c = Add(a, b) d = Add(c, pad) y = Gather(w, d) }`,
		// a comparison of positions is no mask: those from 4 on are left out
		`(int64[B,seq] ids) => (y) <float[8,4] w = {}, int64 zero = {0}, int64 one = {1}, int64 four = {4}> { n = Shape<start = 1>(ids) s = Squeeze(n) r = Range(zero, s, one) m = Less(r, four) i = Cast<to = 7>(m) c = CumSum(i, zero) y = Gather(w, c) }`,
		// relative positions of a table of both directions
		`(int64[B,seq] ids) => (y) <float[4095,4] w = {}, int64 zero = {0}, int64 one = {1}, int64 off = {2047}, int64[1] a = {0}, int64[1] b = {1}> { n = Shape<start = 1>(ids) s = Squeeze(n) r = Range(zero, s, one) q = Unsqueeze(r, b) k = Unsqueeze(r, a) d = Sub(q, k) p = Add(d, off) y = Gather(w, p) }`,
	} {
		r, err := Infer(parse(t, 0, text), Options{Batch: 2, Dims: map[string]int64{"seq": 2048}})
		if err != nil || len(r.Warnings) > 0 {
			t.Errorf("%s: %v, %v", text, err, r)
		}
	}
}

// A counted is a tensor as the oracle of TestLines computes it, an element at a time.
type counted struct {
	id   graph.ValueID
	dims []int64
	v    []int64
}

// at returns the element at an index, broadcast.
func (x counted) at(idx []int64) int64 {
	flat := int64(0)
	for i, n := range x.dims {
		k := idx[len(idx)-len(x.dims)+i]
		if n == 1 {
			k = 0
		}
		flat = flat*n + k
	}
	return x.v[flat]
}

// from makes a tensor of a shape, whose elements are f of their indices.
func from(id graph.ValueID, dims []int64, f func(idx []int64) int64) counted {
	out := counted{id: id, dims: dims}
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	for flat := range n {
		idx, rest := make([]int64, len(dims)), flat
		for i := len(dims) - 1; i >= 0; i-- {
			idx[i], rest = rest%dims[i], rest/dims[i]
		}
		out.v = append(out.v, f(idx))
	}
	return out
}

// TestLines computes random chains of what makes indices element by element,
// and compares every one with the line that inference found.
func TestLines(t *testing.T) {
	found := map[string]int{}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := &builder{}
		var all []counted
		var ops []string
		for step := range 9 {
			x, op := lineStep(b, r, all, step)
			if x.dims == nil {
				continue
			}
			all, ops = append(all, x), append(ops, op)
		}
		g := b.graph()
		e := newEngine(g, opsByName(), Options{})
		s := newScope(e, g, nil)
		s.opsets = g.Model.Opsets
		if err := s.run(); err != nil {
			t.Fatalf("seed %d: %v: %v", seed, ops, err)
		}
		for i, x := range all {
			l := s.line[x.id]
			if l == nil {
				continue
			}
			found[ops[i]]++
			from(x.id, x.dims, func(idx []int64) int64 {
				got := l.base
				for k, at := range idx {
					got += l.slope[k] * at
				}
				if want := x.at(idx); got != want {
					t.Fatalf("seed %d: %v: element %v of %v is %d, its line says %d", seed, ops[:i+1], idx, x.dims, want, got)
				}
				return 0
			})
			if lo, hi, ok := l.ends(g.Values[x.id].Type.Shape); !ok || lo != slices.Min(x.v) || hi != slices.Max(x.v) {
				t.Fatalf("seed %d: %v: ends %d %d %v of %v", seed, ops[:i+1], lo, hi, ok, x.v)
			}
		}
	}
	for _, op := range []string{"Range", "Add", "Sub", "Mul", "Unsqueeze", "Transpose", "Expand", "Slice", "Cast", "CumSum"} {
		if found[op] < 10 {
			t.Errorf("%d lines of %s were compared; %v", found[op], op, found)
		}
	}
}

// lineStep adds one node, and computes it.
func lineStep(b *builder, r *rand.Rand, all []counted, step int) (counted, string) {
	scalar := func(n int64) graph.ValueID {
		return b.initializer(fmt.Sprintf("c%d_%d", step, len(b.g.Values)), &graph.Constant{Type: graph.Int64, Dims: []int64{}, Ints: []int64{n}})
	}
	list := func(n ...int64) graph.ValueID { return b.ints(fmt.Sprintf("l%d_%d", step, len(b.g.Values)), n...) }
	if len(all) < 2 || r.IntN(6) == 0 {
		start, n, delta := r.Int64N(9)-4, 1+r.Int64N(6), r.Int64N(7)-3
		if delta == 0 {
			delta = 2
		}
		id := b.node("Range", nil, scalar(start), scalar(start+n*delta), scalar(delta))
		return from(id, []int64{n}, func(idx []int64) int64 { return start + idx[0]*delta }), "Range"
	}
	x, y := all[r.IntN(len(all))], all[r.IntN(len(all))]
	rank := len(x.dims)
	switch op := []string{"Add", "Sub", "Mul", "Unsqueeze", "Transpose", "Expand", "Slice", "Cast", "CumSum"}[r.IntN(9)]; op {
	case "Add", "Sub", "Mul":
		dims, ok := numpyShape(x.dims, y.dims)
		if !ok || len(dims) > 3 {
			return counted{}, ""
		}
		if op == "Mul" && r.IntN(3) > 0 {
			k := r.Int64N(5) - 2
			return from(b.node(op, nil, scalar(k), x.id), x.dims, func(idx []int64) int64 { return k * x.at(idx) }), op
		}
		do := map[string]func(a, b int64) int64{"Add": func(a, b int64) int64 { return a + b }, "Sub": func(a, b int64) int64 { return a - b }, "Mul": func(a, b int64) int64 { return a * b }}[op]
		return from(b.node(op, nil, x.id, y.id), dims, func(idx []int64) int64 { return do(x.at(idx), y.at(idx)) }), op
	case "Unsqueeze":
		if rank > 2 {
			return counted{}, ""
		}
		at := r.IntN(rank + 1)
		return counted{b.node(op, nil, x.id, list(int64(at))), slices.Insert(slices.Clone(x.dims), at, 1), x.v}, op
	case "Transpose":
		perm := r.Perm(rank)
		dims, attr := make([]int64, rank), make([]int64, rank)
		for i, p := range perm {
			dims[i], attr[i] = x.dims[p], int64(p)
		}
		id := b.node(op, []graph.Attr{{Name: "perm", Kind: graph.AttrInts, Ints: attr}}, x.id)
		return from(id, dims, func(idx []int64) int64 {
			old := make([]int64, rank)
			for i, p := range perm {
				old[p] = idx[i]
			}
			return x.at(old)
		}), op
	case "Expand":
		dims := slices.Clone(x.dims)
		for i, n := range dims {
			if n == 1 {
				dims[i] = 1 + r.Int64N(4)
			}
		}
		return from(b.node(op, nil, x.id, list(dims...)), dims, x.at), op
	case "Slice":
		axis := r.IntN(rank)
		n := x.dims[axis]
		start, stride := r.Int64N(n), 1+r.Int64N(2)
		dims := slices.Clone(x.dims)
		dims[axis] = (n - start + stride - 1) / stride
		given := start
		if r.IntN(2) == 0 {
			given -= n
		}
		id := b.node(op, nil, x.id, list(given), list(n+r.Int64N(3)), list(int64(axis)), list(stride))
		return from(id, dims, func(idx []int64) int64 {
			old := slices.Clone(idx)
			old[axis] = start + stride*idx[axis]
			return x.at(old)
		}), op
	case "Cast":
		return counted{b.node(op, []graph.Attr{{Name: "to", Kind: graph.AttrInt, I: int64(graph.Int64)}}, x.id), x.dims, x.v}, op
	default:
		axis, exclusive, reverse := r.IntN(rank), r.Int64N(2), r.Int64N(2)
		id := b.node("CumSum", []graph.Attr{{Name: "exclusive", Kind: graph.AttrInt, I: exclusive}, {Name: "reverse", Kind: graph.AttrInt, I: reverse}}, x.id, scalar(int64(axis)))
		return from(id, x.dims, func(idx []int64) int64 {
			sum, old := int64(0), slices.Clone(idx)
			for k := range x.dims[axis] {
				before := k < idx[axis] && reverse == 0 || k > idx[axis] && reverse == 1
				if before || k == idx[axis] && exclusive == 0 {
					old[axis] = k
					sum += x.at(old)
				}
			}
			return sum
		}), "CumSum"
	}
}

// numpyShape broadcasts two shapes.
func numpyShape(a, b []int64) ([]int64, bool) {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i, n := range b {
		switch m := &out[len(a)-len(b)+i]; {
		case *m == 1:
			*m = n
		case n != 1 && n != *m:
			return nil, false
		}
	}
	return out, true
}
