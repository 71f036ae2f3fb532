package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// dft transforms one axis of a tensor whose last dim holds real and imaginary
// parts.
func dft(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if len(s) < 2 {
		return fmt.Errorf("input %s has fewer than 2 dims", text(s))
	}
	inverse, onesided := c.int("inverse", 0) != 0, c.int("onesided", 0) != 0
	parts, known := s[len(s)-1].Int()
	switch {
	case known && parts != 1 && parts != 2:
		return fmt.Errorf("the last dim of %s is neither 1 nor 2", text(s))
	case known && parts != 1 && onesided && !inverse:
		return fmt.Errorf("a one-sided transform needs a real input, not %s", text(s))
	case known && parts != 2 && onesided && inverse:
		return fmt.Errorf("an inverse one-sided transform needs a complex input, not %s", text(s))
	}
	length, given, err := scalarDim(c, 1)
	if err != nil {
		return err
	}
	out := append(graph.Shape{}, s...)
	out[len(s)-1] = graph.Int(2)
	if inverse && onesided {
		out[len(s)-1] = graph.Int(1)
	}
	axis, ok, err := dftAxis(c, len(s))
	if err != nil {
		return err
	}
	if !ok {
		if given || onesided { // some axis changes
			for i := range out[:len(out)-1] {
				out[i] = graph.Dim{}
			}
		}
		c.out(0, c.elem(0), out)
		return nil
	}
	n := s[axis]
	if given {
		n = length
	} else if inverse && onesided {
		n = n.Sub(graph.Int(1)).Mul(graph.Int(2))
	}
	if onesided && !inverse {
		n = n.FloorDiv(graph.Int(2)).Add(graph.Int(1))
	}
	out[axis] = n
	c.out(0, c.elem(0), out)
	return nil
}

// scalarDim returns the one element of an optional integer input.
func scalarDim(c *call, i int) (d graph.Dim, given bool, err error) {
	if !c.has(i) {
		return graph.Dim{}, false, nil
	}
	v := tensorIn(c, i)
	if v == nil {
		return graph.Dim{}, true, nil
	}
	if len(v.elems) != 1 {
		return graph.Dim{}, true, fmt.Errorf("input %d has %d elements, not one", i, len(v.elems))
	}
	return v.elems[0].dim(), true, nil
}

// dftAxis returns attribute axis before opset 20, then input 2; it cannot be
// the last dim.
func dftAxis(c *call, rank int) (axis int, ok bool, err error) {
	n := int64(-2)
	if c.ver < 20 {
		n = c.int("axis", 1)
	} else if c.has(2) {
		list, known := c.intsIn(2)
		if !known || len(list) != 1 {
			return 0, false, nil
		}
		n = list[0]
	}
	axis, err = axisOf(n, rank)
	if err == nil && axis == rank-1 {
		err = fmt.Errorf("axis %d is the one of real and imaginary parts", n)
	}
	return axis, err == nil, err
}

// stft: signal [batch, length, 1 or 2], frame step, window, frame length.
func stft(c *call) error {
	if err := c.wantRank(0, 3, 2); err != nil {
		return err
	}
	step, _, err := scalarDim(c, 1)
	if err != nil {
		return err
	}
	frame, given, err := scalarDim(c, 3)
	if err != nil {
		return err
	}
	if c.has(2) {
		window := c.dim(2, 0)
		if given {
			if _, ok := mergeDim(frame, window); !ok {
				return fmt.Errorf("the frame length is %s, the window %s", frame, text(c.shape(2)))
			}
		}
		if !frame.Known() {
			frame = window
		}
	}
	bins := frame
	if c.int("onesided", 1) != 0 {
		bins = frame.FloorDiv(graph.Int(2)).Add(graph.Int(1))
	}
	if n, ok := step.Int(); ok && n <= 0 {
		return fmt.Errorf("the frame step is %d", n)
	}
	frames := c.dim(0, 1).Sub(frame).FloorDiv(step).Add(graph.Int(1))
	c.out(0, c.elem(0), graph.Shape{c.dim(0, 0), frames, bins, graph.Int(2)})
	return nil
}

// melWeights: [dft_length/2 + 1, num_mel_bins].
func melWeights(c *call) error {
	elem := c.dtype("output_datatype", graph.Float32)
	bins, _, err := scalarDim(c, 0)
	if err != nil {
		return err
	}
	length, _, err := scalarDim(c, 1)
	if err != nil {
		return err
	}
	for _, d := range []graph.Dim{bins, length} {
		if n, ok := d.Int(); ok && n <= 0 {
			return fmt.Errorf("%s bins of a transform of length %s", bins, length)
		}
	}
	c.out(0, elem, graph.Shape{length.FloorDiv(graph.Int(2)).Add(graph.Int(1)), bins})
	return nil
}

// windowFunction: a vector of the size given.
func windowFunction(c *call) error {
	n, _, err := scalarDim(c, 0)
	if err != nil {
		return err
	}
	if k, ok := n.Int(); ok && k <= 0 {
		return fmt.Errorf("the size is %d", k)
	}
	c.out(0, c.dtype("output_datatype", graph.Float32), graph.Shape{n})
	return nil
}

// stringNormalizer drops words: [n] or [1, n] becomes a shape of at most n, but
// at least one word.
func stringNormalizer(c *call) error {
	s := c.shape(0)
	switch {
	case s == nil:
		c.out(0, graph.String, nil)
	case len(s) == 1:
		c.bound(0, 0, s[0].Max(graph.Int(1)))
		c.out(0, graph.String, unknownDims(1))
	case len(s) == 2:
		if _, ok := mergeDim(s[0], graph.Int(1)); !ok {
			return fmt.Errorf("input %s is neither [n] nor [1,n]", text(s))
		}
		c.bound(0, 1, s[1].Max(graph.Int(1)))
		c.out(0, graph.String, graph.Shape{graph.Int(1), {}})
	default:
		return fmt.Errorf("input %s is neither [n] nor [1,n]", text(s))
	}
	if c.attr("stopwords") == nil && s != nil {
		c.out(0, graph.String, s) // nothing is dropped
	}
	return nil
}

// stringSplit appends an axis for the parts of each string, padded to the
// longest list, and counts them.
func stringSplit(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, graph.String, nil)
		c.out(1, graph.Int64, nil)
		return nil
	}
	parts := graph.Dim{}
	if a := c.attr("maxsplit"); a != nil {
		c.bound(0, len(s), graph.Int(a.I).Add(graph.Int(1)))
	}
	c.out(0, graph.String, concat(s, []graph.Dim{parts}))
	c.out(1, graph.Int64, s)
	return nil
}

// tfIdf counts n-grams: the last dim becomes the size of the vocabulary.
func tfIdf(c *call) error {
	s := c.shape(0)
	index, ok := c.ints("ngram_indexes")
	if !ok {
		return fmt.Errorf("attribute ngram_indexes is missing")
	}
	size := int64(-1)
	for _, i := range index {
		size = max(size, i)
	}
	n := graph.Int(size).Add(graph.Int(1))
	switch {
	case s == nil:
		c.out(0, graph.Float32, nil)
	case len(s) == 0 || len(s) == 1:
		c.out(0, graph.Float32, graph.Shape{n})
	case len(s) == 2:
		c.out(0, graph.Float32, graph.Shape{s[0], n})
	default:
		return fmt.Errorf("input %s has more than 2 dims", text(s))
	}
	return nil
}

// imageDecoder yields [height, width, channels].
func imageDecoder(c *call) error {
	if err := c.wantRank(0, 1); err != nil {
		return err
	}
	channels := graph.Int(3)
	if c.str("pixel_format", "RGB") == "Grayscale" {
		channels = graph.Int(1)
	}
	c.out(0, graph.Uint8, graph.Shape{{}, {}, channels})
	return nil
}

// encodeImage yields the bytes of a file.
func encodeImage(c *call) error {
	c.out(0, graph.Uint8, unknownDims(1))
	return nil
}
