//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// viewKernels are the kernels of this file.
func viewKernels(register func(k kernel, names ...string)) {
	register(kernel{run: cat}, "cat")
	register(kernel{run: stack}, "stack")
	register(kernel{run: repeat}, "repeat")
	register(kernel{run: repeatBackward}, "repeat_backward")
	register(kernel{run: flip}, "flip")
	register(kernel{run: roll}, "roll")
	register(kernel{rows: unless(openWindow, only(nil, []int{0})), run: func(r *run) error { return addWindow(r, 0) }}, "unview")
	register(kernel{rows: unless(openWindow, only(nil, []int{0})), run: func(r *run) error { return addWindow(r, r.scalar("value")) }}, "constant_pad_nd")
}

// openWindow reports whether the call's window can be viewed in the result.
func openWindow(r *run) bool {
	out, in := r.result(0), r.arg(0)
	if out.RowMajor() {
		return true
	}
	_, ok := placed(out, in.Shape, r.attrs().Window)
	return ok
}

// cat concatenates tensors along a dim.
func cat(r *run) error {
	out, d := r.result(0), r.attrs().Dims[0]
	at := int64(0)
	for i := range r.c.Args {
		t := r.arg(i)
		if t == nil {
			return fmt.Errorf("operand %d is not on the device", i)
		}
		if len(t.Shape) != len(out.Shape) || t.Elems() == 0 {
			continue // an empty list
		}
		if err := pointwise(r, "copy", part(out, t.Shape, out.Strides, at*out.Strides[d]), [4]float64{}, r.c.Args[i]); err != nil {
			return err
		}
		at += t.Shape[d]
	}
	return nil
}

// stack concatenates operands along a new dim; absent ones are zeros.
func stack(r *run) error {
	out, d := r.result(0), int(r.attrs().Dims[0])
	shape, strides := slices.Delete(slices.Clone(out.Shape), d, d+1), slices.Delete(slices.Clone(out.Strides), d, d+1)
	for i, in := range r.c.Args {
		if in.Kind == validate.IsAbsent {
			in = number(0)
		}
		if err := pointwise(r, "copy", part(out, shape, strides, int64(i)*out.Strides[d]), [4]float64{}, in); err != nil {
			return err
		}
	}
	return nil
}

// repeat concatenates copies: each of the result's dims counts copies and their
// elements.
func repeat(r *run) error {
	in, out := r.arg(0), r.result(0)
	lead := len(out.Shape) - len(in.Shape)
	var shape, to, from []int64
	for d, n := range out.Shape {
		own, s := int64(1), int64(0)
		if d >= lead {
			own, s = in.Shape[d-lead], in.Strides[d-lead]
		}
		shape, to, from = append(shape, n/max(own, 1), own), append(to, out.Strides[d]*own, out.Strides[d]), append(from, 0, s)
	}
	strides := [][]int64{to, from}
	size := fold(shape, strides)
	if len(size) > maxDims {
		return fmt.Errorf("repeating %v to %v", in.Shape, out.Shape)
	}
	return r.copyTo(part(out, size, strides[0], 0), part(in, size, strides[1], 0))
}

// flip reverses dims.
func flip(r *run) error {
	in, out := r.arg(0), *r.result(0)
	out.Strides = slices.Clone(out.Strides)
	at := int64(0)
	for _, d := range r.attrs().Dims {
		at += (out.Shape[d] - 1) * out.Strides[d]
		out.Strides[d] = -out.Strides[d]
	}
	return r.copyTo(part(&out, out.Shape, out.Strides, at), in)
}

// roll rotates elements along dims: two copies for each dim.
func roll(r *run) error {
	var move func(in, out *validate.ArenaView, dims []int64, shifts []float64) error
	move = func(in, out *validate.ArenaView, dims []int64, shifts []float64) error {
		if len(dims) == 0 || in.Elems() == 0 {
			return r.copyTo(out, in)
		}
		d, n := dims[0], in.Shape[dims[0]]
		s := (int64(shifts[0])%n + n) % n
		for _, cut := range [2]struct{ from, to, n int64 }{{0, s, n - s}, {n - s, 0, s}} {
			if cut.n == 0 {
				continue
			}
			shape := slices.Clone(in.Shape)
			shape[d] = cut.n
			if err := move(part(in, shape, in.Strides, cut.from*in.Strides[d]), part(out, shape, out.Strides, cut.to*out.Strides[d]), dims[1:], shifts[1:]); err != nil {
				return err
			}
		}
		return nil
	}
	return move(r.arg(0), r.result(0), r.attrs().Dims, r.attrs().Scalars)
}

// addWindow fills the result with a number and adds the operand in a window of it.
// A window with overlapping elements is added one slice of its widest dim at a
// time, if that separates them.
func addWindow(r *run, fill float64) error {
	in, out, w := r.arg(0), r.result(0), r.attrs().Window
	if d, from, ok := slab(out.Shape, in.Shape, w); ok {
		return beside(r, in, out, d, from, fill)
	}
	if err := set(r, out, fill); err != nil {
		return err
	}
	to := part(out, in.Shape, w.Strides, w.Offset)
	if !out.RowMajor() {
		var ok bool
		if to, ok = placed(out, in.Shape, w); !ok {
			return fmt.Errorf("a window of a result with strides %v", out.Strides)
		}
	}
	if !overlaps(in.Shape, w.Strides) {
		return r.copyTo(to, in)
	}
	return addOverlapping(r, to, in)
}

// beside copies the operand to its position along dim d of the result, and
// fills what is before and after it.
func beside(r *run, in, out *validate.ArenaView, d int, from int64, fill float64) error {
	n := in.Elems() * out.Shape[d] / out.Elems() // of in along d
	for _, cut := range [3]struct {
		from, n int64
		in      validate.Operand
	}{{0, from, number(fill)}, {from, n, onDevice(in)}, {from + n, out.Shape[d] - from - n, number(fill)}} {
		shape := slices.Clone(out.Shape)
		if shape[d] = cut.n; cut.n == 0 {
			continue
		}
		to := part(out, shape, out.Strides, cut.from*out.Strides[d])
		if cut.in.Kind == validate.OnDevice && len(in.Shape) < len(shape) { // a dim of one element
			to.Shape, to.Strides = slices.Delete(shape, d, d+1), slices.Delete(slices.Clone(out.Strides), d, d+1)
		}
		if err := pointwise(r, "copy", to, [4]float64{}, cut.in); err != nil {
			return err
		}
	}
	return nil
}

// placed views a window, whose strides count elements of the result row by row,
// in a result with other strides: each dim of the window runs along one of the
// result.
func placed(out *validate.ArenaView, shape []int64, w *program.Window) (*validate.ArenaView, bool) {
	rows := validate.RowMajor(out.Shape)
	strides := make([]int64, len(shape))
	for i, s := range w.Strides {
		d := slices.IndexFunc(rows, func(r int64) bool { return s >= r && s%r == 0 })
		if d < 0 || s/rows[d]*(shape[i]-1) >= out.Shape[d] {
			return nil, false
		}
		strides[i] = s / rows[d] * out.Strides[d]
	}
	at, rest := int64(0), w.Offset
	for d, r := range rows {
		at += rest / r * out.Strides[d]
		rest %= r
	}
	return part(out, shape, strides, at), true
}

// overlaps reports whether two elements of a shape have the same position.
func overlaps(shape, strides []int64) bool { return len(clash(shape, strides)) > 0 }

// clash returns the dims, by their strides, up to the first whose step is within the
// range of the narrower ones; none if no elements coincide.
func clash(shape, strides []int64) []int {
	order := make([]int, 0, len(shape))
	for d, n := range shape {
		if n != 1 {
			order = append(order, d)
		}
	}
	slices.SortFunc(order, func(x, y int) int { return int(sign(strides[x] - strides[y])) })
	end := int64(0) // end of the narrower dims' range
	for i, d := range order {
		if strides[d] <= end {
			return order[:i+1]
		}
		end += (shape[d] - 1) * strides[d]
	}
	return nil
}

// apart returns the dim along which an overlapping window is split: the shortest of
// those that clash.
func apart(shape, strides []int64) int {
	return slices.MinFunc(clash(shape, strides), func(x, y int) int { return int(sign(shape[x] - shape[y])) })
}

// addOverlapping adds in to a window whose dims overlap, one slice along a dim at a
// time.
func addOverlapping(r *run, to, in *validate.ArenaView) error {
	if !overlaps(to.Shape, to.Strides) {
		return pointwise(r, "add", to, [4]float64{1}, onDevice(to), onDevice(in))
	}
	d := apart(to.Shape, to.Strides)
	for i := range to.Shape[d] {
		shape := slices.Clone(to.Shape)
		shape[d] = 1
		if err := addOverlapping(r, part(to, shape, to.Strides, i*to.Strides[d]), part(in, shape, in.Strides, i*in.Strides[d])); err != nil {
			return err
		}
	}
	return nil
}

// repeatBackward adds the gradients of all copies: a reduction over the dims that
// count them.
func repeatBackward(r *run) error {
	g, out := r.arg(0), r.result(0)
	v := validate.ArenaView{At: g.At, DType: g.DType}
	lead := len(g.Shape) - len(out.Shape)
	var dims []int64
	var keep validate.ArenaView = *out
	keep.Shape, keep.Strides = nil, nil
	for d, n := range g.Shape {
		own := int64(1)
		if d >= lead {
			own = out.Shape[d-lead]
		}
		dims = append(dims, int64(len(v.Shape)))
		v.Shape, v.Strides = append(v.Shape, n/max(own, 1)), append(v.Strides, g.Strides[d]*own)
		if d >= lead {
			v.Shape, v.Strides = append(v.Shape, own), append(v.Strides, g.Strides[d])
			keep.Shape, keep.Strides = append(keep.Shape, own), append(keep.Strides, out.Strides[d-lead])
		}
	}
	return reduce(r, redSum, &keep, &v, dims)
}
