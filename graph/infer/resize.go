package infer

import (
	"fmt"
	"math"
	"slices"

	"github.com/memplan/memplan/graph"
)

// resize scales axes by factors, or to sizes, which take precedence.
func resize(c *call) error {
	s := c.shape(0)
	scalesAt, sizesAt := 2, 3
	if c.ver < 11 {
		scalesAt, sizesAt = 1, -1
	}
	if emptyIn(c, scalesAt) && emptyIn(c, sizesAt) {
		return fmt.Errorf("neither scales nor sizes are given")
	}
	if s == nil {
		c.out(0, c.elem(0), resizedRank(c, scalesAt, sizesAt))
		return nil
	}
	axes, err := resizeAxes(c, len(s))
	if err != nil {
		return err
	}
	out := append(graph.Shape{}, s...)
	for _, a := range axes {
		out[a] = graph.Dim{}
	}
	if !emptyIn(c, sizesAt) {
		err = resizeTo(c, sizesAt, s, axes, out)
	} else {
		err = resizeBy(c, scalesAt, s, axes, out)
	}
	c.out(0, c.elem(0), out)
	return err
}

// emptyIn reports whether an optional input is omitted or has no elements.
func emptyIn(c *call, i int) bool {
	if !c.has(i) {
		return true
	}
	n, ok := c.dim(i, 0).Int()
	return ok && n == 0
}

// resizedRank returns the result's shape for an input of unknown rank.
func resizedRank(c *call, scalesAt, sizesAt int) graph.Shape {
	if _, partial := c.ints("axes"); partial {
		return nil
	}
	for _, i := range []int{scalesAt, sizesAt} {
		if n, ok := c.dim(i, 0).Int(); ok && n > 0 && n < maxRank {
			if i == sizesAt && c.str("keep_aspect_ratio_policy", "stretch") == "stretch" {
				if d, ok := c.dimsIn(i); ok {
					return d
				}
			}
			return unknownDims(int(n))
		}
	}
	return nil
}

func resizeAxes(c *call, rank int) ([]int, error) {
	if axes, ok := c.ints("axes"); ok {
		return axesOf(axes, rank)
	}
	all := make([]int, rank)
	for i := range all {
		all[i] = i
	}
	return all, nil
}

func resizeTo(c *call, i int, s graph.Shape, axes []int, out graph.Shape) error {
	sizes, ok := c.dimsIn(i)
	if !ok {
		return nil
	}
	if len(sizes) != len(axes) {
		return fmt.Errorf("%d sizes for %d axes", len(sizes), len(axes))
	}
	policy := c.str("keep_aspect_ratio_policy", "stretch")
	if policy == "stretch" {
		for k, a := range axes {
			if n, ok := sizes[k].Int(); ok && n <= 0 {
				return fmt.Errorf("sizes %s are not positive", text(sizes))
			}
			out[a] = sizes[k]
		}
		return nil
	}
	return keepAspect(policy, sizes, s, axes, out)
}

// keepAspect scales all axes by the smallest or the largest of the factors that
// sizes imply.
func keepAspect(policy string, sizes []graph.Dim, s graph.Shape, axes []int, out graph.Shape) error {
	scale := 0.0
	for k, a := range axes {
		m, ok1 := s[a].Int()
		n, ok2 := sizes[k].Int()
		if !ok1 || !ok2 || m == 0 {
			return nil
		}
		f := float64(n) / float64(m)
		switch {
		case k == 0, policy == "not_larger" && f < scale, policy == "not_smaller" && f > scale:
			scale = f
		}
	}
	for _, a := range axes {
		m, _ := s[a].Int()
		out[a] = graph.Int(int64(math.Floor(scale*float64(m) + 0.5)))
	}
	return nil
}

func resizeBy(c *call, i int, s graph.Shape, axes []int, out graph.Shape) error {
	v := tensorIn(c, i)
	if v == nil {
		if n, ok := c.dim(i, 0).Int(); ok && n != int64(len(axes)) {
			return fmt.Errorf("%d scales for %d axes", n, len(axes))
		}
		return nil
	}
	if len(v.elems) != len(axes) {
		return fmt.Errorf("%d scales for %d axes", len(v.elems), len(axes))
	}
	crop := c.str("coordinate_transformation_mode", "") == "tf_crop_and_resize"
	roi := tensorIn(c, 1)
	for k, a := range axes {
		scale := v.elems[k]
		if f, ok := scale.float(); ok && !(f > 0) {
			return fmt.Errorf("scale %v of axis %d is not positive", f, a)
		}
		if crop && c.ver >= 11 {
			if roi == nil || len(roi.elems) != 2*len(axes) {
				continue
			}
			part := subElems(arithmetic{graph.Float32}, []elem{roi.elems[k+len(axes)], roi.elems[k]})
			scale = mulElems(arithmetic{graph.Float32}, []elem{scale, part})
		}
		out[a] = scaled(s[a], scale)
	}
	return nil
}

// scaled returns floor(d*scale), computed in 32-bit floats as a run does.
func scaled(d graph.Dim, scale elem) graph.Dim {
	if f, ok := scale.float(); ok {
		if f == 1 {
			return d
		}
		if n, ok := d.Int(); ok {
			p := math.Floor(product32(n, f))
			if p < 0 || p >= maxBits {
				return graph.Dim{}
			}
			return graph.Int(int64(p))
		}
	}
	x := mulElems(arithmetic{graph.Float32}, []elem{dimElem(d), scale})
	if x.isFloat || !x.known() {
		return graph.Dim{}
	}
	return floorElem(x).num
}

// product32 returns n*f, in 32-bit floats if they hold n exactly.
func product32(n int64, f float64) float64 {
	if n <= 1<<24 {
		return float64(float32(n) * float32(f))
	}
	return float64(n) * f
}

// upsample scales by attributes, or since opset 9 by an input.
func upsample(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	var scales []elem
	switch {
	case c.has(1):
		v := tensorIn(c, 1)
		if v == nil {
			c.out(0, c.elem(0), unknownDims(len(s)))
			return nil
		}
		scales = v.elems
	case c.attr("scales") != nil:
		for _, f := range c.attr("scales").Floats {
			scales = append(scales, floatElem(float64(f)))
		}
	default:
		one := floatElem(1)
		scales = []elem{one, one, floatElem(c.float("height_scale", 1)), floatElem(c.float("width_scale", 1))}
	}
	if len(scales) != len(s) {
		return fmt.Errorf("%d scales for an input %s", len(scales), text(s))
	}
	out := slices.Clone(s)
	for i := range out {
		out[i] = scaled(s[i], scales[i])
	}
	c.out(0, c.elem(0), out)
	return nil
}
