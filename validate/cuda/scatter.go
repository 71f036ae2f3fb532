//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/validate"
)

// scatterArgs is Scatter of scatter.cu.
type scatterArgs struct {
	at          indexArgs
	rows, width int64
	number      float64
	add, _      int32
}

// scatterKernels are the kernels of this file.
func scatterKernels(register func(k kernel, names ...string)) {
	scatters := func(every, add bool, name string) {
		register(kernel{run: func(r *run) error { return scatter(r, every, add) }, work: func(r *run) int64 { return r.scatterPlaces(every, add).bytes() }}, name)
	}
	scatters(true, false, "scatter")
	scatters(true, true, "scatter_add")
	scatters(false, true, "index_add")
	register(kernel{run: indexPut, accepts: few, work: func(r *run) int64 { return r.putPlaces().bytes() }}, "index_put")
}

// based copies operand 0 to the result, into which the values are then written.
func based(r *run) (*validate.ArenaView, error) {
	out, base := r.result(0), r.arg(0)
	if base == nil || base.DType != out.DType {
		return nil, fmt.Errorf("a base that is not of the result's type")
	}
	if base.At == out.At && slices.Equal(base.Strides, out.Strides) {
		return out, nil
	}
	return out, r.copyTo(out, base)
}

// setFrom sets what is written: an operand, or a number.
func (s *scatterArgs) setFrom(r *run, values *validate.ArenaView, from validate.Operand) error {
	s.at.setValues(r, values)
	switch from.Kind {
	case validate.OnDevice:
		if s.at.dtype != dtype(&from.Tensor) {
			return fmt.Errorf("values of %v for %v", from.Tensor.DType, values.DType)
		}
	case validate.IsNumber:
		s.number, s.at.value = from.Value, 0
	default:
		s.number, s.at.value = r.scalar("value"), 0
	}
	return nil
}

// kernelName returns the kernel for the destination's type.
func (s *scatterArgs) kernelName(kind string, t *validate.ArenaView) string {
	return "scatter_" + kind + "_" + kindOf(t)
}

// scatter writes operand 2 along a dim: by an index for every element, or by one
// for every position along the dim.
func scatter(r *run, every, add bool) error {
	out, err := based(r)
	if err != nil {
		return err
	}
	idx, from, d := r.arg(1), r.c.Args[2], r.attrs().Dims[0]
	if !isIndex(idx) {
		return fmt.Errorf("indices that are not whole numbers on the device")
	}
	values := *out
	if from.Kind == validate.OnDevice {
		values = from.Tensor
	}
	if every { // the source may be larger than the indices
		values.Shape = idx.Shape
	}
	if len(values.Shape) == 0 { // one number, as a line of one
		values, out = *part(&values, []int64{1}, []int64{1}, 0), part(out, []int64{1}, []int64{1}, 0)
	}
	s := scatterArgs{}
	if add {
		s.add = 1
	}
	s.at.setBase(r, out)
	if err := s.setFrom(r, &values, from); err != nil {
		return err
	}
	s.at.dim = int32(d)
	copy(s.at.baseStride[:], out.Strides)
	s.at.baseStride[d] = 0
	strides, first := []int64{1}, int(d)
	switch {
	case every && len(idx.Shape) > 0:
		strides, first = idx.Strides, 0
	case len(idx.Shape) > 0:
		strides = idx.Strides[:1]
	}
	if err := s.at.addIndex(r, idx, out, d, strides, first); err != nil {
		return err
	}
	hashed := s.at
	hashed.firstDim(d)
	if done, err := r.hash(r.scatterPlaces(every, add), placesArgs{at: hashed, number: s.number, add: s.add}, kindOf(out)); done || err != nil {
		return err
	}
	return launch(r.d, "scatter", s.kernelName("lines", out), along(s.at.n/max(s.at.size[d], 1)), &s)
}

// indexPut writes operand 1, broadcast, at the indices from operand 2 on.
func indexPut(r *run) error {
	out, err := based(r)
	if err != nil {
		return err
	}
	shape, err := indexedShape(r, out, 2)
	if err != nil {
		return err
	}
	values := &validate.ArenaView{DType: out.DType, Shape: shape, Strides: make([]int64, len(shape))}
	from := r.c.Args[1]
	if from.Kind == validate.OnDevice {
		values.At = from.Tensor.At
		if values.Strides, err = broadcast(&from.Tensor, shape); err != nil {
			return err
		}
	}
	a, _, _, err := advanced(r, out, values, 2)
	if err != nil {
		return err
	}
	p := r.indexPlaces(shape, 2)
	s := scatterArgs{at: a, rows: p.rows, width: p.width}
	if err := s.setFrom(r, values, from); err != nil {
		return err
	}
	if r.scalar("accumulate") != 0 {
		s.add = 1
	}
	if done, err := r.hash(p, placesArgs{at: s.at, number: s.number, add: s.add}, kindOf(out)); done || err != nil {
		return err
	}
	return launch(r.d, "scatter", s.kernelName("rows", out), grid{x: min(s.rows, 1<<20), tx: 128}, &s)
}

// indexedShape returns the shape of what the indices from operand first pick
// from a tensor: the indices' dims replace the indexed dims, or come first if
// other dims lie between.
func indexedShape(r *run, base *validate.ArenaView, first int) ([]int64, error) {
	var picked []int64
	for i := range r.attrs().Dims {
		t := r.arg(first + i)
		if t == nil {
			return nil, fmt.Errorf("index %d is not on the device", i)
		}
		picked = validate.BroadcastShapes(picked, t.Shape)
	}
	return validate.IndexedShape(base.Shape, r.attrs().Dims, picked), nil
}
