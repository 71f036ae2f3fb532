package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// A window is the geometry of a convolution or pooling over n spatial axes.
type window struct {
	kernel     []graph.Dim
	stride     []int64
	dilation   []int64
	begin, end []int64 // padding
	auto       string  // auto_pad
	ceil       bool
}

// windowOf reads the attributes of a convolution or pooling over n axes.
// Attribute kernel_shape, where given, overrides kernel.
func windowOf(c *call, n int, kernel []graph.Dim) (*window, error) {
	w := &window{kernel: kernel, auto: c.str("auto_pad", "NOTSET"), ceil: c.int("ceil_mode", 0) != 0}
	var err error
	if list, ok := c.ints("kernel_shape"); ok {
		if _, err = positive(c, "kernel_shape", n, 0); err != nil {
			return nil, err
		}
		w.kernel = ints(list...)
	}
	if w.kernel == nil {
		return nil, fmt.Errorf("attribute kernel_shape is missing")
	}
	if w.stride, err = positive(c, "strides", n, 1); err != nil {
		return nil, err
	}
	if w.dilation, err = positive(c, "dilations", n, 1); err != nil {
		return nil, err
	}
	pads, given := c.ints("pads")
	if !given {
		pads = make([]int64, 2*n)
	}
	if len(pads) != 2*n {
		return nil, fmt.Errorf("pads %v for %d spatial dims", pads, n)
	}
	for _, p := range pads {
		if p < 0 {
			return nil, fmt.Errorf("pads %v are negative", pads)
		}
	}
	w.begin, w.end = pads[:n], pads[n:]
	switch w.auto {
	case "NOTSET", "", "SAME_UPPER", "SAME_LOWER":
	case "VALID":
		w.begin, w.end = make([]int64, n), make([]int64, n)
	default:
		return nil, fmt.Errorf("auto_pad %q is unknown", w.auto)
	}
	return w, nil
}

// positive reads a list attribute of n numbers above zero. def fills it when
// it is not given; def 0 leaves it empty.
func positive(c *call, name string, n int, def int64) ([]int64, error) {
	list, ok := c.ints(name)
	if !ok || len(list) == 0 && n > 0 && def > 0 {
		if def == 0 {
			return nil, nil
		}
		list = make([]int64, n)
		for i := range list {
			list[i] = def
		}
		return list, nil
	}
	if len(list) != n {
		return nil, fmt.Errorf("attribute %s is %v, for %d spatial dims", name, list, n)
	}
	for _, k := range list {
		if k <= 0 {
			return nil, fmt.Errorf("attribute %s is %v, not positive", name, list)
		}
	}
	return list, nil
}

// extent returns the kernel's reach along axis i: dilation*(k-1) + 1.
func (w *window) extent(i int) graph.Dim {
	one := graph.Int(1)
	return graph.Int(w.dilation[i]).Mul(w.kernel[i].Sub(one)).Add(one)
}

// slide returns the number of window positions along axis i of length d.
func (w *window) slide(i int, d graph.Dim) (graph.Dim, error) {
	one, stride := graph.Int(1), graph.Int(w.stride[i])
	if w.auto == "SAME_UPPER" || w.auto == "SAME_LOWER" {
		return d.CeilDiv(stride), nil
	}
	extent := w.extent(i)
	if isInt(w.kernel[i]) && !extent.Known() {
		return extent, fmt.Errorf("the kernel's reach along axis %d overflows", i)
	}
	padded := d.Add(graph.Int(w.begin[i])).Add(graph.Int(w.end[i]))
	if isInt(d) && !padded.Known() {
		return padded, fmt.Errorf("the padded length of axis %d overflows", i)
	}
	room := padded.Sub(extent)
	if n, ok := room.Int(); ok && n < 0 {
		return room, fmt.Errorf("a kernel that reaches over %s does not fit into %s along axis %d", extent, padded, i)
	}
	if !w.ceil {
		return room.FloorDiv(stride).Add(one), nil
	}
	// A window may hang over the end, but must start inside the input or its
	// left padding.
	started := d.Add(graph.Int(w.begin[i])).CeilDiv(stride)
	return room.CeilDiv(stride).Add(one).Min(started), nil
}

// slideAll returns the spatial dims of the result for those of the input.
func (w *window) slideAll(in []graph.Dim) (graph.Shape, error) {
	out := make(graph.Shape, len(in))
	for i, d := range in {
		var err error
		if out[i], err = w.slide(i, d); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// convOf returns the shape of a convolution of input x with weight w.
func convOf(c *call, x, w int) (graph.Shape, error) {
	s, ws := c.shape(x), c.shape(w)
	if s != nil && len(s) < 3 && c.n.Domain == "" {
		return nil, fmt.Errorf("input %s has fewer than 3 dims", text(s))
	}
	if s != nil && ws != nil && len(s) != len(ws) {
		return nil, fmt.Errorf("input %s and weight %s differ in rank", text(s), text(ws))
	}
	n := max(len(s), len(ws)) - 2
	if n < 0 {
		return nil, nil
	}
	kernel := make([]graph.Dim, n)
	if ws != nil {
		kernel = ws[2:]
	}
	win, err := windowOf(c, n, kernel)
	if err != nil {
		return nil, err
	}
	if err := checkChannels(c, s, ws); err != nil {
		return nil, err
	}
	in := make([]graph.Dim, n)
	batch, channels := graph.Dim{}, graph.Dim{}
	if s != nil {
		in, batch = s[2:], s[0]
	}
	if ws != nil {
		channels = ws[0]
	}
	space, err := win.slideAll(in)
	if err != nil {
		return nil, fmt.Errorf("input %s, weight %s: %w", text(s), text(ws), err)
	}
	return concat([]graph.Dim{batch, channels}, space), nil
}

// checkChannels compares the channels of a convolution's input with those of
// its weight times the groups.
func checkChannels(c *call, s, ws graph.Shape) error {
	group := c.int("group", 1)
	if group <= 0 {
		return fmt.Errorf("group is %d, not positive", group)
	}
	if s == nil || ws == nil {
		return nil
	}
	m, ok1 := s[1].Int()
	n, ok2 := ws[1].Int()
	if ok1 && ok2 && (n != 0 && m/n != group || m != n*group) {
		return fmt.Errorf("input %s has %d channels, weight %s in %d groups takes %d", text(s), m, text(ws), group, n*group)
	}
	return nil
}

func conv(c *call) error {
	shape, err := convOf(c, 0, 1)
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), shape)
	return nil
}

func convInteger(c *call) error {
	shape, err := convOf(c, 0, 1)
	if err != nil {
		return err
	}
	c.out(0, graph.Int32, shape)
	return nil
}

// qlinearConv: x, scale, zero point, w, scale, zero point, y scale, y zero
// point, bias.
func qlinearConv(c *call) error {
	shape, err := convOf(c, 0, 3)
	if err != nil {
		return err
	}
	if err := zeroPoint(c, 2, 0); err != nil {
		return err
	}
	if err := zeroPoint(c, 5, 3); err != nil {
		return err
	}
	c.out(0, c.elem(7), shape)
	return nil
}

func convTranspose(c *call) error {
	s, ws := c.shape(0), c.shape(1)
	if s != nil && len(s) < 3 {
		return fmt.Errorf("input %s has fewer than 3 dims", text(s))
	}
	if ws != nil && len(ws) < 3 {
		return fmt.Errorf("weight %s has fewer than 3 dims", text(ws))
	}
	if s == nil || ws == nil {
		c.out(0, c.elem(0), nil)
		if n := max(len(s), len(ws)); n > 0 {
			c.out(0, c.elem(0), unknownDims(n))
		}
		return nil
	}
	if len(s) != len(ws) {
		return fmt.Errorf("input %s and weight %s differ in rank", text(s), text(ws))
	}
	w, err := windowOf(c, len(s)-2, ws[2:])
	if err != nil {
		return err
	}
	if _, given := c.ints("pads"); given && w.auto != "NOTSET" && w.auto != "" {
		return fmt.Errorf("pads and auto_pad %s exclude each other", w.auto)
	}
	if _, ok := mergeDim(s[1], ws[0]); !ok {
		return fmt.Errorf("input %s and weight %s differ in channels", text(s), text(ws))
	}
	channels := ws[1].Mul(graph.Int(c.int("group", 1)))
	if isInt(ws[1]) && !channels.Known() {
		return fmt.Errorf("the number of output channels overflows")
	}
	space, err := unslide(c, w, s[2:])
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), concat([]graph.Dim{s[0], channels}, space))
	return nil
}

// unslide returns the spatial dims of a transposed convolution.
func unslide(c *call, w *window, in []graph.Dim) (graph.Shape, error) {
	if shape, ok := c.ints("output_shape"); ok {
		if len(shape) == len(in)+2 {
			shape = shape[2:]
		}
		if len(shape) != len(in) {
			return nil, fmt.Errorf("output_shape %v for %d spatial dims", shape, len(in))
		}
		for _, n := range shape {
			if n < 0 {
				return nil, fmt.Errorf("output_shape %v is negative", shape)
			}
		}
		return ints(shape...), nil
	}
	extra, ok := c.ints("output_padding")
	if !ok {
		extra = make([]int64, len(in))
	}
	if len(extra) != len(in) {
		return nil, fmt.Errorf("output_padding %v for %d spatial dims", extra, len(in))
	}
	out := make(graph.Shape, len(in))
	for i, d := range in {
		if extra[i] < 0 {
			return nil, fmt.Errorf("output_padding %v is negative", extra)
		}
		stride := graph.Int(w.stride[i])
		if w.auto == "SAME_UPPER" || w.auto == "SAME_LOWER" {
			out[i] = d.Mul(stride)
			continue
		}
		full := d.Sub(graph.Int(1)).Mul(stride).Add(w.extent(i)).Add(graph.Int(extra[i]))
		out[i] = full.Sub(graph.Int(w.begin[i])).Sub(graph.Int(w.end[i]))
		if isInt(d) && isInt(w.kernel[i]) && !out[i].Known() {
			return nil, fmt.Errorf("the length of axis %d overflows", i)
		}
	}
	return out, nil
}

// pool slides a window over every channel; MaxPool also yields indices.
func pool(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), nil)
		c.out(1, graph.Int64, nil)
		return nil
	}
	if len(s) < 2 {
		return fmt.Errorf("input %s has fewer than 2 dims", text(s))
	}
	if _, ok := c.ints("kernel_shape"); !ok {
		return fmt.Errorf("attribute kernel_shape is missing")
	}
	w, err := windowOf(c, len(s)-2, nil)
	if err != nil {
		return err
	}
	space, err := w.slideAll(s[2:])
	if err != nil {
		return fmt.Errorf("input %s: %w", text(s), err)
	}
	shape := concat(s[:2], space)
	c.out(0, c.elem(0), shape)
	c.out(1, graph.Int64, shape)
	return nil
}

// globalPool reduces every spatial axis to 1.
func globalPool(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if len(s) < 2 {
		return fmt.Errorf("input %s has fewer than 2 dims", text(s))
	}
	out := append(graph.Shape{}, s[:2]...)
	for range s[2:] {
		out = append(out, graph.Int(1))
	}
	c.out(0, c.elem(0), out)
	return nil
}

// maxUnpool undoes MaxPool; the wanted shape may be input 2.
func maxUnpool(c *call) error {
	s := c.shape(0)
	if r := c.rank(1); r >= 0 && r < 2 {
		return fmt.Errorf("indices %s have fewer than 2 dims", text(c.shape(1)))
	}
	if s != nil && len(s) < 2 {
		return fmt.Errorf("input %s has fewer than 2 dims", text(s))
	}
	if c.has(2) {
		shape, known := c.dimsIn(2)
		switch {
		case known && s != nil && len(shape) != len(s):
			return fmt.Errorf("output shape %s for an input %s", text(shape), text(s))
		case known:
			c.out(0, c.elem(0), shape)
		case s != nil:
			c.out(0, c.elem(0), unknownDims(len(s)))
		default:
			c.out(0, c.elem(0), nil)
		}
		return nil
	}
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	w, err := windowOf(c, len(s)-2, nil)
	if err != nil {
		return err
	}
	space, err := unslide(c, w, s[2:])
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), concat(s[:2], space))
	return nil
}

// maxRoiPool pools regions [num_rois, 5] to a fixed size.
func maxRoiPool(c *call) error {
	if r := c.rank(0); r >= 0 && r < 2 {
		return fmt.Errorf("input %s has fewer than 2 dims", text(c.shape(0)))
	}
	if err := c.wantRank(1, 2); err != nil {
		return err
	}
	n := 2
	if r := c.rank(0); r >= 0 {
		n = r - 2
	}
	size, err := positive(c, "pooled_shape", n, 0)
	if err != nil {
		return err
	}
	if size == nil {
		return fmt.Errorf("attribute pooled_shape is missing")
	}
	c.out(0, c.elem(0), concat([]graph.Dim{c.dim(1, 0), c.dim(0, 1)}, ints(size...)))
	return nil
}

// roiAlign: X [N,C,H,W], rois [num_rois,4].
func roiAlign(c *call) error {
	for i, r := range []int{4, 2, 1} {
		if err := c.wantRank(i, r); err != nil {
			return err
		}
	}
	rois, ok := mergeDim(c.dim(1, 0), c.dim(2, 0))
	if !ok {
		return fmt.Errorf("rois %s and batch indices %s differ in length", text(c.shape(1)), text(c.shape(2)))
	}
	h, w := c.int("output_height", 1), c.int("output_width", 1)
	if h <= 0 || w <= 0 {
		return fmt.Errorf("output size %dx%d is not positive", h, w)
	}
	c.out(0, c.elem(0), graph.Shape{rois, c.dim(0, 1), graph.Int(h), graph.Int(w)})
	return nil
}

// col2im: input [N, C*prod(block), L], image_shape, block_shape.
func col2im(c *call) error {
	if err := c.wantRank(0, 3); err != nil {
		return err
	}
	image, ok1 := c.dimsIn(1)
	block, ok2 := c.dimsIn(2)
	if !ok1 {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if ok2 && len(image) != len(block) {
		return fmt.Errorf("image shape %s and block shape %s differ in rank", text(image), text(block))
	}
	area := graph.Dim{}
	if ok2 {
		if area = product(block); overflows(block) {
			return fmt.Errorf("block shape %s overflows", text(block))
		}
	}
	channels := c.dim(0, 1)
	m, isInt1 := channels.Int()
	n, isInt2 := area.Int()
	if isInt1 && isInt2 && n > 0 && m%n != 0 {
		return fmt.Errorf("%d columns do not divide into blocks of %d", m, n)
	}
	c.out(0, c.elem(0), concat([]graph.Dim{c.dim(0, 0), channels.FloorDiv(area)}, image))
	return nil
}

// gridSample: X [N,C,D...], grid [N,E...,r].
func gridSample(c *call) error {
	if err := c.need(1, "grid"); err != nil {
		return err
	}
	s, grid := c.shape(0), c.shape(1)
	if s != nil && grid != nil && len(s) != len(grid) {
		return fmt.Errorf("input %s and grid %s differ in rank", text(s), text(grid))
	}
	r := max(len(s), len(grid))
	if r == 0 {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if r < 3 {
		return fmt.Errorf("input %s has fewer than 3 dims", text(s))
	}
	if n, ok := c.dim(1, -1).Int(); ok && n != int64(r-2) {
		return fmt.Errorf("grid %s addresses %d axes, the input has %d", text(grid), n, r-2)
	}
	batch, ok := mergeDim(c.dim(0, 0), c.dim(1, 0))
	if !ok {
		return fmt.Errorf("input %s and grid %s differ in batch", text(s), text(grid))
	}
	out := append(unknownDims(r)[:0], batch, c.dim(0, 1))
	for i := 1; i <= r-2; i++ {
		out = append(out, c.dim(1, i))
	}
	c.out(0, c.elem(0), out)
	return nil
}

// affineGrid: theta [N,2,3] and size [N,C,H,W], or [N,3,4] and [N,C,D,H,W].
func affineGrid(c *call) error {
	if err := c.wantRank(0, 3); err != nil {
		return err
	}
	size, ok := c.dimsIn(1)
	if !ok {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if len(size) != 4 && len(size) != 5 {
		return fmt.Errorf("size %s has neither 4 nor 5 elements", text(size))
	}
	c.out(0, c.elem(0), concat([]graph.Dim{size[0]}, size[2:], ints(int64(len(size)-2))))
	return nil
}
