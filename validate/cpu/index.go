package cpu

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/validate"
)

var indexKernels = map[string]kernel{
	"embedding": embedding, "embedding_dense_backward": embeddingBackward,
	"index": index, "index_backward": indexBackward, "index_select": indexSelect, "index_select_backward": indexSelectBackward, "gather": gatherKernel, "gather_backward": gatherBackward,
}

// accumulate fills result 0 with sums that f makes, in order, from zeros.
func (r *run) accumulate(f func(sum []float64)) error {
	sum := make([]float64, r.c.Results[0].Elems())
	f(sum)
	w := r.writer(&r.c.Results[0])
	w.write(sum, 0)
	return nil
}

func embedding(r *run) error {
	w, s := r.floats(0), r.shape(0)
	n := int(s[1])
	out, done := r.out(0)
	for i, row := range r.ints(1, r.shape(1)) {
		if row < 0 || row >= s[0] {
			return fmt.Errorf("index %d of a table of %d rows", row, s[0])
		}
		copy(out[i*n:(i+1)*n], w[int(row)*n:(int(row)+1)*n])
	}
	done()
	return nil
}

// embeddingBackward adds the gradient's rows into the table's gradient.
func embeddingBackward(r *run) error {
	g, s := r.floats(0), r.c.Results[0].Shape
	n, skip := int(s[1]), int64(r.scalar("padding_idx"))
	rows := r.ints(1, r.shape(1))
	if len(rows)*n > len(g) { // indices that a batch shares
		return fmt.Errorf("%d indices for a gradient of %d rows", len(rows), len(g)/max(n, 1))
	}
	return r.accumulate(func(sum []float64) {
		for i, row := range rows {
			if row == skip || row < 0 || row >= s[0] {
				continue
			}
			for j, v := range g[i*n : (i+1)*n] {
				sum[int(row)*n+j] += float64(v)
			}
		}
	})
}

// indexed calls f for every element of an index call's result: its index and
// the index in x, row-major, of its source. Index tensors start at operand
// first; they broadcast, and their dims replace the first indexed dim, or come
// first if other dims lie between.
func (r *run) indexed(x []int64, first int, f func(i, at int)) error {
	dims, shape := r.attrs().Dims, r.indexShape(first)
	idx := make([][]int64, len(dims))
	for i, d := range dims {
		idx[i] = r.ints(first+i, shape)
		for j, v := range idx[i] {
			if v < 0 {
				v += x[d]
				idx[i][j] = v
			}
			if v < 0 || v >= x[d] {
				return fmt.Errorf("index %d of dim %d of %v", v, d, x)
			}
		}
	}
	st := validate.RowMajor(x)
	lead := validate.IndexedDim(dims)
	var before, beforeSt, after, afterSt []int64
	for d := range x {
		switch {
		case slices.Contains(dims, int64(d)):
		case int64(d) < lead:
			before, beforeSt = append(before, x[d]), append(beforeSt, st[d])
		default:
			after, afterSt = append(after, x[d]), append(afterSt, st[d])
		}
	}
	i := 0
	tail := positions(after, afterSt)
	for _, b := range positions(before, beforeSt) {
		for k := range validate.Elems(shape) {
			at := b
			for j, d := range dims {
				at += idx[j][k] * st[d]
			}
			for _, a := range tail {
				f(i, int(at+a))
				i++
			}
		}
	}
	return nil
}

// indexShape returns the shape that the indices from operand first broadcast
// to.
func (r *run) indexShape(first int) (shape []int64) {
	for i := range r.attrs().Dims {
		shape = validate.BroadcastShapes(shape, r.shape(first+i))
	}
	return shape
}

// indexedShape returns the shape of an index call's result.
func (r *run) indexedShape(x []int64, first int) []int64 {
	return validate.IndexedShape(x, r.attrs().Dims, r.indexShape(first))
}

func index(r *run) error {
	rd := r.reader(0, r.shape(0))
	x := make([]float64, validate.Elems(r.shape(0)))
	rd.read(x, 0)
	out := make([]float64, r.c.Results[0].Elems())
	if want := r.indexedShape(r.shape(0), 1); validate.Elems(want) != int64(len(out)) {
		return fmt.Errorf("what is indexed has shape %v, the result %v", want, r.c.Results[0].Shape)
	}
	if err := r.indexed(r.shape(0), 1, func(i, at int) { out[i] = x[at] }); err != nil {
		return err
	}
	w := r.writer(&r.c.Results[0])
	w.write(out, 0)
	return nil
}

func indexBackward(r *run) error {
	g, shape := r.floats(0), r.c.Results[0].Shape
	var err error
	return firstError(r.accumulate(func(sum []float64) {
		err = r.indexed(shape, 1, func(i, at int) { sum[at] += float64(g[i]) })
	}), err)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// picked calls f for every element of a shape with its index and the index of
// the element that idx selects along dim d of a tensor of shape x.
func picked(x, shape []int64, d int64, idx func(i int) int64, f func(i, at int)) error {
	st, own := validate.RowMajor(x), validate.RowMajor(shape)
	for i := range int(validate.Elems(shape)) {
		at := int64(0)
		for j := range shape {
			k := int64(i) / own[j] % shape[j]
			if int64(j) == d {
				if k = idx(i); k < 0 {
					k += x[d]
				}
				if k < 0 || k >= x[d] {
					return fmt.Errorf("index %d of dim %d of %v", k, d, x)
				}
			}
			at += k * st[j]
		}
		f(i, int(at))
	}
	return nil
}

func (r *run) pick(idx func(i int) int64) error {
	rd := r.reader(0, r.shape(0))
	x := make([]float64, validate.Elems(r.shape(0)))
	rd.read(x, 0)
	t := &r.c.Results[0]
	out := make([]float64, t.Elems())
	if err := picked(r.shape(0), t.Shape, r.attrs().Dims[0], idx, func(i, at int) { out[i] = x[at] }); err != nil {
		return err
	}
	w := r.writer(t)
	w.write(out, 0)
	return nil
}

func (r *run) unpick(idx func(i int) int64) error {
	g := r.floats(0)
	var err error
	return firstError(r.accumulate(func(sum []float64) {
		err = picked(r.c.Results[0].Shape, r.shape(0), r.attrs().Dims[0], idx, func(i, at int) { sum[at] += float64(g[i]) })
	}), err)
}

// along returns the index that element i of a shape takes from a list along d.
func along(list, shape []int64, d int64) func(int) int64 {
	st := validate.RowMajor(shape)
	return func(i int) int64 { return list[int64(i)/st[d]%shape[d]] }
}

func indexSelect(r *run) error {
	return r.pick(along(r.ints(1, r.shape(1)), r.c.Results[0].Shape, r.attrs().Dims[0]))
}

func indexSelectBackward(r *run) error {
	return r.unpick(along(r.ints(1, r.shape(1)), r.shape(0), r.attrs().Dims[0]))
}

func gatherKernel(r *run) error {
	idx := r.ints(1, r.c.Results[0].Shape)
	return r.pick(func(i int) int64 { return idx[i] })
}

func gatherBackward(r *run) error {
	idx := r.ints(1, r.shape(0))
	return r.unpick(func(i int) int64 { return idx[i] })
}

// all reads operand i, row-major.
func (r *run) all(i int) []float64 {
	out := make([]float64, validate.Elems(r.shape(i)))
	rd := r.reader(i, r.shape(i))
	rd.read(out, 0)
	return out
}
