package cpu

import (
	"slices"

	"github.com/memplan/memplan/validate"
)

var viewKernels = map[string]kernel{"cat": cat, "stack": stack, "repeat": repeat, "repeat_backward": repeatBackward, "flip": flip, "roll": roll, "unview": unview, "constant_pad_nd": pad}

// move writes operand i, of the given shape, into a window of result 0.
func (r *run) move(i int, shape, strides []int64, at int64) {
	t := r.c.Results[0]
	t.Shape, t.Strides, t.At = shape, strides, t.At+t.DType.Bytes(1)*at
	rd, w := r.reader(i, shape), r.writer(&t)
	r.chunks(int(validate.Elems(shape)), 1<<14, func(at int, b []float64) {
		rd.read(b, int64(at))
		w.write(b, int64(at))
	})
}

func cat(r *run) error {
	t, d := &r.c.Results[0], r.attrs().Dims[0]
	at := int64(0)
	for i := range r.c.Args {
		s := r.shape(i)
		if len(s) != len(t.Shape) { // an empty list
			continue
		}
		r.move(i, s, t.Strides, at*t.Strides[d])
		at += s[d]
	}
	return nil
}

// stack concatenates operands along a new dim; absent ones are zeros.
func stack(r *run) error {
	t, d := &r.c.Results[0], int(r.attrs().Dims[0])
	for i := range r.c.Args {
		shape, st := slices.Delete(slices.Clone(t.Shape), d, d+1), slices.Delete(slices.Clone(t.Strides), d, d+1)
		r.move(i, shape, st, int64(i)*t.Strides[d])
	}
	return nil
}

// repeat concatenates copies.
func repeat(r *run) error {
	t := &r.c.Results[0]
	x, src := r.floats(0), wrapped(t.Shape, r.shape(0))
	return r.generate(0, func(i uint64) float64 { return float64(x[src(int(i))]) })
}

// wrapped maps the row-major index of an element of a shape to that of the
// element of a smaller one that repeats in it.
func wrapped(shape, in []int64) func(int) int {
	st := validate.RowMajor(shape)
	inSt := validate.RowMajor(in)
	lead := len(shape) - len(in)
	return func(i int) int {
		at := 0
		for j := range in {
			at += i / int(st[lead+j]) % int(shape[lead+j]) % int(in[j]) * int(inSt[j])
		}
		return at
	}
}

func repeatBackward(r *run) error {
	g := r.floats(0)
	to := wrapped(r.shape(0), r.c.Results[0].Shape)
	return r.accumulate(func(sum []float64) {
		for i, v := range g {
			sum[to(i)] += float64(v)
		}
	})
}

// unview adds the operand into a window of zeros.
func unview(r *run) error {
	w := r.attrs().Window
	s := r.shape(0)
	at := positions(s, w.Strides)
	g := r.floats(0)
	return r.accumulate(func(sum []float64) {
		for i, v := range g {
			sum[at[i]+w.Offset] += float64(v)
		}
	})
}

// pad writes the operand into a window of a constant.
func pad(r *run) error {
	w, s := r.attrs().Window, r.shape(0)
	at := positions(s, w.Strides)
	x, value := r.floats(0), r.scalar("value")
	return r.accumulate(func(sum []float64) {
		for i := range sum {
			sum[i] = value
		}
		for i, v := range x {
			sum[at[i]+w.Offset] = float64(v)
		}
	})
}

// flip reverses dims.
func flip(r *run) error {
	x, s := r.all(0), r.shape(0)
	st := validate.RowMajor(s)
	out := make([]float64, len(x))
	for i := range out {
		at := int64(i)
		for _, d := range r.attrs().Dims {
			at += (s[d] - 1 - 2*(int64(i)/st[d]%s[d])) * st[d]
		}
		out[i] = x[at]
	}
	r.save(&r.c.Results[0], out)
	return nil
}

// roll rotates elements along dims.
func roll(r *run) error {
	a, s := r.attrs(), r.shape(0)
	st := validate.RowMajor(s)
	x := r.floats(0)
	return r.generate(0, func(i uint64) float64 {
		at := int64(i)
		for j, d := range a.Dims {
			k := at / st[d] % s[d]
			from := ((k-int64(a.Scalars[j]))%s[d] + s[d]) % s[d]
			at += (from - k) * st[d]
		}
		return float64(x[at])
	})
}
