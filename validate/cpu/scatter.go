package cpu

import "github.com/memplan/memplan/validate"

var scatterKernels = map[string]kernel{"scatter": scattered(false), "scatter_add": scattered(true), "index_add": indexAdd, "index_put": indexPut}

// scattered writes operand 2, or a number, into a copy of operand 0 at the indices
// of operand 1 along a dim, or adds it there. Of equal indices the last counts.
func scattered(add bool) kernel {
	return func(r *run) error {
		shape := r.shape(1)
		idx := r.ints(1, shape)
		var from func(int) float64
		if !r.has(2) {
			value := r.scalar("value")
			from = func(int) float64 { return value }
		} else {
			src, own, st := r.all(2), validate.RowMajor(shape), validate.RowMajor(r.shape(2))
			from = func(i int) float64 { // the source may be larger than the indices
				at := int64(0)
				for j := range shape {
					at += int64(i) / own[j] % shape[j] * st[j]
				}
				return src[at]
			}
		}
		out := r.all(0)
		err := picked(r.shape(0), shape, r.attrs().Dims[0], func(i int) int64 { return idx[i] }, func(i, at int) { put(&out[at], from(i), add) })
		r.save(&r.c.Results[0], out)
		return err
	}
}

func put(to *float64, v float64, add bool) {
	if add {
		v += *to
	}
	*to = v
}

// indexAdd adds the slices of operand 2 into a copy of operand 0 at the indices
// of operand 1.
func indexAdd(r *run) error {
	d, shape := r.attrs().Dims[0], r.shape(2)
	out, src := r.all(0), r.all(2)
	err := picked(r.shape(0), shape, d, along(r.ints(1, r.shape(1)), shape, d), func(i, at int) { out[at] += src[i] })
	r.save(&r.c.Results[0], out)
	return err
}

// indexPut writes operand 1 into a copy of operand 0 at indices, or adds it.
func indexPut(r *run) error {
	x := r.shape(0)
	out, at := r.all(0), []int(nil)
	if err := r.indexed(x, 2, func(_, to int) { at = append(at, to) }); err != nil {
		return err
	}
	values, add := make([]float64, len(at)), r.scalar("accumulate") != 0
	rd := r.reader(1, r.indexedShape(x, 2))
	rd.read(values, 0)
	for i, to := range at {
		put(&out[to], values[i], add)
	}
	r.save(&r.c.Results[0], out)
	return nil
}
