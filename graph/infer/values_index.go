package infer

import (
	"slices"

	"github.com/memplan/memplan/graph"
)

// reverseSequenceValues reverses the first elements of each sequence.
func reverseSequenceValues(c *call) error {
	v := tensorIn(c, 0)
	lens, ok := c.intsIn(1)
	if v == nil || !ok || len(v.dims) < 2 {
		return nil
	}
	time, err1 := axisOf(c.int("time_axis", 0), len(v.dims))
	batch, err2 := axisOf(c.int("batch_axis", 1), len(v.dims))
	if err1 != nil || err2 != nil || int64(len(lens)) != v.dims[batch] {
		return nil
	}
	st := strides(v.dims)
	c.setContents(0, picked(c, 0, v, func(idx []int64) int64 {
		at := int64(0)
		for i, x := range idx {
			if n := lens[idx[batch]]; i == time && x < n {
				x = n - 1 - x
			}
			at += x * st[i]
		}
		return at
	}))
	return nil
}

// depthToSpaceValues moves blocks of channels to pixels.
func depthToSpaceValues(c *call) error {
	v, b := tensorIn(c, 0), c.int("blocksize", 0)
	if v == nil || len(v.dims) != 4 || b <= 0 {
		return nil
	}
	depth := v.dims[1] / (b * b)
	columns := c.str("mode", "DCR") == "CRD"
	st := strides(v.dims)
	c.setContents(0, picked(c, 0, v, func(x []int64) int64 {
		block := x[2]%b*b + x[3]%b
		channel := block*depth + x[1]
		if columns {
			channel = x[1]*b*b + block
		}
		return x[0]*st[0] + channel*st[1] + x[2]/b*st[2] + x[3]/b
	}))
	return nil
}

// spaceToDepthValues moves blocks of pixels to channels.
func spaceToDepthValues(c *call) error {
	v, b := tensorIn(c, 0), c.int("blocksize", 0)
	if v == nil || len(v.dims) != 4 || b <= 0 || v.dims[1] == 0 {
		return nil
	}
	rows := c.str("mode", "DCR") == "CRD"
	st := strides(v.dims)
	c.setContents(0, picked(c, 0, v, func(x []int64) int64 {
		block, channel := x[1]/v.dims[1], x[1]%v.dims[1]
		if rows {
			block, channel = x[1]%(b*b), x[1]/(b*b)
		}
		return x[0]*st[0] + channel*st[1] + (x[2]*b+block/b)*st[2] + x[3]*b + block%b
	}))
	return nil
}

// oneHotValues writes the second of two values at the indices, the first
// elsewhere.
func oneHotValues(c *call) error {
	index, values, dims := tensorIn(c, 0), tensorIn(c, 2), c.outDims(0)
	list, ok := c.floatsIn(0)
	if !ok || values == nil || len(values.elems) != 2 || dims == nil {
		return nil
	}
	axis, err := axisOf(c.int("axis", -1), len(dims))
	if err != nil || !slices.Equal(slices.Delete(slices.Clone(dims), axis, axis+1), index.dims) {
		return nil
	}
	st := strides(index.dims)
	c.setContents(0, picked(c, 0, values, func(idx []int64) int64 {
		at := int64(0)
		for i, x := range idx {
			switch {
			case i < axis:
				at += x * st[i]
			case i > axis:
				at += x * st[i-1]
			}
		}
		if k := int64(list[at]); k == idx[axis] || k+dims[axis] == idx[axis] {
			return 1
		}
		return 0
	}))
	return nil
}

// eyeLikeValues writes ones on a diagonal.
func eyeLikeValues(c *call) error {
	if len(c.outDims(0)) != 2 {
		return nil
	}
	k := c.int("k", 0)
	digits := &contents{elems: []elem{intElem(0), intElem(1)}}
	if c.outTyp(0).Elem.IsFloat() {
		digits.elems = []elem{floatElem(0), floatElem(1)}
	}
	c.setContents(0, picked(c, 0, digits, func(idx []int64) int64 {
		if idx[1]-idx[0] == k {
			return 1
		}
		return 0
	}))
	return nil
}

// compressValues keeps the elements or slices that a condition selects.
func compressValues(c *call) error {
	v := tensorIn(c, 0)
	cond, ok := c.floatsIn(1)
	if v == nil || !ok {
		return nil
	}
	var kept []int64
	for i, x := range cond {
		if x != 0 {
			kept = append(kept, int64(i))
		}
	}
	a := c.attr("axis")
	axis, st := 0, strides(v.dims)
	if a == nil {
		st = []int64{1}
	} else {
		var err error
		if axis, err = axisOf(a.I, len(v.dims)); err != nil {
			return nil
		}
	}
	dims := c.outDims(0)
	if len(dims) != len(st) || dims[axis] != int64(len(kept)) {
		return nil
	}
	c.setContents(0, picked(c, 0, v, func(idx []int64) int64 {
		at := int64(0)
		for i, x := range idx {
			if i == axis {
				x = kept[x]
			}
			at += x * st[i]
		}
		return at
	}))
	return nil
}

// centerCropPadValues crops or pads with zeros on both sides.
func centerCropPadValues(c *call) error {
	v, dims := tensorIn(c, 0), c.outDims(0)
	if v == nil || dims == nil || len(dims) != len(v.dims) {
		return nil
	}
	zero := intElem(0)
	if c.outTyp(0).Elem.IsFloat() {
		zero = floatElem(0)
	}
	st := strides(v.dims)
	padded := &contents{elems: append(slices.Clone(v.elems), zero)}
	c.setContents(0, picked(c, 0, padded, func(idx []int64) int64 {
		at := int64(0)
		for i, x := range idx {
			if dims[i] > v.dims[i] {
				x -= (dims[i] - v.dims[i]) / 2
			} else {
				x += (v.dims[i] - dims[i]) / 2
			}
			if x < 0 || x >= v.dims[i] {
				return int64(len(v.elems))
			}
			at += x * st[i]
		}
		return at
	}))
	return nil
}

// dropoutValues copies the input if nothing is dropped.
func dropoutValues(c *call) error {
	v := tensorIn(c, 0)
	if v == nil || c.n.Domain == "" && c.ver < 7 {
		return nil
	}
	if c.has(2) {
		if training, ok := c.floatsIn(2); !ok || len(training) != 1 || training[0] != 0 {
			return nil
		}
	}
	c.setContents(0, v)
	ones := &contents{dims: v.dims, elems: slices.Repeat([]elem{intElem(1)}, len(v.elems))}
	if c.outTyp(1).Elem == graph.Bool {
		c.setContents(1, ones)
	}
	return nil
}
