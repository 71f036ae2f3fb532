package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// fusedMatMul is MatMul with transposed operands.
func fusedMatMul(c *call) error {
	a, b := c.shape(0), c.shape(1)
	if c.int("transA", 0) != 0 {
		a = swapLast(a)
	}
	if c.int("transB", 0) != 0 {
		b = swapLast(b)
	}
	if c.int("transBatchA", 0) != 0 {
		a = leadToMiddle(a)
	}
	if c.int("transBatchB", 0) != 0 {
		b = leadToMiddle(b)
	}
	shape, err := matmulShape(a, b)
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), shape)
	return nil
}

func swapLast(s graph.Shape) graph.Shape {
	n := len(s)
	if n < 2 {
		return s
	}
	out := append(graph.Shape{}, s...)
	out[n-1], out[n-2] = out[n-2], out[n-1]
	return out
}

// leadToMiddle moves the first axis after the other batch axes: [m, batch, k]
// to [batch, m, k].
func leadToMiddle(s graph.Shape) graph.Shape {
	n := len(s)
	if n < 3 {
		return s
	}
	return concat(s[1:n-1], s[:1], s[n-1:])
}

// matmulNBits multiplies by a packed weight of attributes K and N.
func matmulNBits(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	k, n := c.int("K", 0), c.int("N", 0)
	if len(s) == 0 || n <= 0 {
		return fmt.Errorf("input %s, K %d, N %d", text(s), k, n)
	}
	if _, ok := mergeDim(s[len(s)-1], graph.Int(k)); !ok {
		return fmt.Errorf("inner dimensions differ: %s x [%d,%d]", text(s), k, n)
	}
	c.out(0, c.elem(0), with(s, len(s)-1, graph.Int(n)))
	return nil
}

// matmulTo is MatMul with a fixed result type.
func matmulTo(elem graph.DType) rule {
	return func(c *call) error {
		shape, err := matmulShape(c.shape(0), c.shape(1))
		if err != nil {
			return err
		}
		c.out(0, elem, shape)
		return nil
	}
}

// skipNorm: outputs are the result, mean and inverse deviation, and the sum
// before the normalisation.
func skipNorm(c *call) error {
	c.outType(0, c.typ(0))
	if s := c.shape(0); len(s) > 0 {
		for i := 1; i < 3; i++ {
			c.out(i, graph.Float32, with(s, len(s)-1, graph.Int(1)))
		}
	}
	c.outType(3, c.typ(0))
	return nil
}

// embedNorm: ids [B,S], segments, then three tables.
func embedNorm(c *call) error {
	b, s := c.dim(0, 0), c.dim(0, 1)
	out := graph.Shape{b, s, c.dim(2, 1)}
	c.out(0, c.elem(2), out)
	c.out(1, graph.Int32, graph.Shape{b})
	c.out(2, c.elem(2), out)
	return nil
}

// msAttention: input [B,S,in], weights [in, 3*hidden], bias, mask, past
// [2,B,heads,P,head].
func msAttention(c *call) error {
	b, s := c.dim(0, 0), c.dim(0, 1)
	width := c.dim(1, 1)
	if !width.Known() {
		width = c.dim(2, 0)
	}
	hidden := width.FloorDiv(graph.Int(3))
	if sizes, ok := c.ints("qkv_hidden_sizes"); ok && len(sizes) == 3 {
		hidden = graph.Int(sizes[2])
	}
	c.out(0, c.elem(0), graph.Shape{b, s, hidden})
	heads := graph.Int(c.int("num_heads", 0))
	total := s
	switch {
	case c.has(4) && c.int("past_present_share_buffer", 0) != 0:
		total = c.dim(4, 3)
	case c.has(4):
		total = total.Add(c.dim(4, 3))
	}
	c.out(1, c.elem(0), graph.Shape{graph.Int(2), b, heads, total, hidden.FloorDiv(heads)})
	return nil
}

// multiHeadAttention: query [B,S,H] or packed [B,S,heads,3,head]; key, value;
// bias, mask, attention bias, past key and value [B,heads,P,head].
func multiHeadAttention(c *call) error {
	b, s := c.dim(0, 0), c.dim(0, 1)
	heads := graph.Int(c.int("num_heads", 0))
	hidden, kv := c.dim(0, 2), c.dim(1, 1)
	switch {
	case c.rank(0) == 5:
		hidden, kv = c.dim(0, 2).Mul(c.dim(0, 4)), s
	case c.rank(2) == 3:
		hidden = c.dim(2, 2)
	case c.rank(2) == 4: // [B,heads,S,head]
		hidden, kv = c.dim(2, 1).Mul(c.dim(2, 3)), c.dim(2, 2)
	case c.rank(1) == 5: // packed key and value [B,S,heads,2,head]
		hidden = c.dim(1, 2).Mul(c.dim(1, 4))
	}
	c.out(0, c.elem(0), graph.Shape{b, s, hidden})
	cached(c, 6, c.has(8), graph.Shape{b, heads, kv, hidden.FloorDiv(heads)}, s)
	return nil
}

// decoderAttention is DecoderMaskedMultiHeadAttention: query, key, value [B,S,H]
// or packed in the first; mask, attention bias, past key and value
// [B,heads,P,head], past length, beams, bias.
func decoderAttention(c *call) error {
	b, s := c.dim(0, 0), c.dim(0, 1)
	heads := graph.Int(c.int("num_heads", 0))
	hidden, kv := c.dim(0, 2), c.dim(1, 1)
	switch {
	case !c.has(1): // query, key and value in one
		hidden, kv = hidden.FloorDiv(graph.Int(3)), s
	case c.rank(2) == 3:
		hidden = c.dim(2, 2)
	case c.rank(2) == 4: // those of an encoder, which do not grow
		hidden, kv = c.dim(2, 1).Mul(c.dim(2, 3)), c.dim(2, 2)
	}
	c.out(0, c.elem(0), graph.Shape{b, s, hidden})
	cached(c, 5, c.int("past_present_share_buffer", 0) != 0, graph.Shape{b, heads, kv, hidden.FloorDiv(heads)}, s)
	return nil
}

// cached sets outputs 1 and 2, the key and value [B,heads,P+kv,head] after
// those in input past, and output 3, the scores. now is their shape without a
// past. A shared buffer keeps its length, and the scores cover all of it
// (bert_defs.cc of ONNX Runtime).
func cached(c *call, past int, shared bool, now graph.Shape, queries graph.Dim) {
	total := now[2]
	if c.has(past) {
		total = total.Add(c.dim(past, 2))
	}
	present := with(now, 2, total)
	if shared = shared && c.has(past); shared {
		c.bound(3, 3, c.dim(past, 2))
		present, total = with(now, 2, c.dim(past, 2)), graph.Dim{}
	}
	for i := 1; i < 3; i++ {
		c.out(i, c.elem(0), present)
	}
	c.out(3, c.elem(0), graph.Shape{now[0], now[1], queries, total})
}

// groupQueryAttention: query [B,S,H], or packed with key and value when those
// are omitted; past key and value [B,kv,P,head]; lengths.
func groupQueryAttention(c *call) error {
	b, s := c.dim(0, 0), c.dim(0, 1)
	n, kv := c.int("num_heads", 0), c.int("kv_num_heads", 0)
	if n <= 0 || kv <= 0 || n%kv != 0 {
		return fmt.Errorf("num_heads is %d, kv_num_heads %d", n, kv)
	}
	head := c.dim(0, 2).FloorDiv(graph.Int(n))
	if !c.has(1) {
		head = c.dim(0, 2).FloorDiv(graph.Int(n + 2*kv))
	}
	c.out(0, c.elem(0), graph.Shape{b, s, graph.Int(n).Mul(head)})
	past := graph.Int(0)
	if c.has(3) {
		past = c.dim(3, 2)
	}
	total := graph.Dim{} // past and new tokens, unless past is a buffer
	if d, _, err := scalarDim(c, 6); err == nil && d.Known() {
		total = d.Max(past)
	}
	for i := 1; i < 3; i++ {
		c.bound(i, 2, past.Add(s))
		c.out(i, c.elem(0), graph.Shape{b, graph.Int(kv), total, head})
	}
	c.out(3, c.elem(0), graph.Shape{b, graph.Int(n), s, total})
	return nil
}

// qlinearBinary: a, scale, zero point, b, scale, zero point.
func qlinearBinary(c *call) error {
	shape, err := broadcast(c.shape(0), c.shape(3))
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), shape)
	return nil
}

// qlinearConcat: scale, zero point, then triples of tensor, scale and zero
// point.
func qlinearConcat(c *call) error {
	var out graph.Shape
	for i := 2; i < c.arity(); i += 3 {
		s := c.shape(i)
		if s == nil {
			c.out(0, c.elem(1), nil)
			return nil
		}
		axis, err := axisOf(c.int("axis", 0), len(s))
		if err != nil {
			return err
		}
		if out == nil {
			out = append(graph.Shape{}, s...)
			continue
		}
		if len(s) != len(out) {
			return fmt.Errorf("inputs differ in rank: %s and %s", text(out), text(s))
		}
		out[axis] = out[axis].Add(s[axis])
	}
	c.out(0, c.elem(1), out)
	return nil
}

// qlinearGlobalPool has attribute channels_last.
func qlinearGlobalPool(c *call) error {
	s := c.shape(0)
	if c.int("channels_last", 0) == 0 || s == nil {
		return globalPool(c)
	}
	out := append(graph.Shape{}, s...)
	for i := 1; i < len(out)-1; i++ {
		out[i] = graph.Int(1)
	}
	c.out(0, c.elem(0), out)
	return nil
}

// gatherBlockQuantized dequantizes what it gathers; two 4-bit numbers may
// share a byte of the last axis.
func gatherBlockQuantized(c *call) error {
	s, idx := c.shape(0), c.shape(1)
	if s == nil || idx == nil {
		c.out(0, c.elem(2), nil)
		return nil
	}
	axis, err := axisOf(c.int("gather_axis", 0), len(s))
	if err != nil {
		return err
	}
	if c.elem(0) == graph.Uint8 {
		if per := 8 / max(c.int("bits", 4), 1); per > 1 {
			s = with(s, len(s)-1, s[len(s)-1].Mul(graph.Int(per)))
		}
	}
	c.out(0, c.elem(2), concat(s[:axis], idx, s[axis+1:]))
	return nil
}

// dynamicQuantizeLSTM has transposed weights: W [dirs, in, 4*hidden], R
// [dirs, hidden, 4*hidden].
func dynamicQuantizeLSTM(c *call) error {
	hidden := graph.Int(c.int("hidden_size", 0))
	if c.int("hidden_size", 0) <= 0 {
		hidden = c.dim(2, 1)
	}
	dirs := graph.Int(1)
	if c.str("direction", "forward") == "bidirectional" {
		dirs = graph.Int(2)
	}
	seq, batch := c.dim(0, 0), c.dim(0, 1)
	c.out(0, c.elem(0), graph.Shape{seq, dirs, batch, hidden})
	c.out(1, c.elem(0), graph.Shape{dirs, batch, hidden})
	c.out(2, c.elem(0), graph.Shape{dirs, batch, hidden})
	return nil
}

// nhwcConv is a convolution with channels last, of weight [M, k..., C].
func nhwcConv(c *call) error {
	s, ws := c.shape(0), c.shape(1)
	if s == nil || ws == nil || len(s) < 3 || len(s) != len(ws) {
		c.out(0, c.elem(0), unknownLike(s))
		return nil
	}
	n := len(s) - 2
	w, err := windowOf(c, n, ws[1:n+1])
	if err != nil {
		return err
	}
	space, err := w.slideAll(s[1 : n+1])
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), concat(s[:1], space, ws[:1]))
	return nil
}

// halveLast splits the last axis in two and keeps one half.
func halveLast(c *call) error {
	s := c.shape(0)
	if len(s) == 0 {
		return same(c)
	}
	c.out(0, c.elem(0), with(s, len(s)-1, s[len(s)-1].FloorDiv(graph.Int(2))))
	return nil
}

// generate is a whole decoding loop: sequences [batch, (beams,) max_length].
func generate(beams bool) rule {
	return func(c *call) error {
		limit, _, err := scalarDim(c, 1)
		if err != nil {
			return err
		}
		out := graph.Shape{c.dim(0, 0)}
		if beams {
			n, _, err := scalarDim(c, 4)
			if err != nil {
				return err
			}
			out = append(out, n)
		}
		c.out(0, graph.Int32, append(out, limit))
		return nil
	}
}

// concatTraining also yields the lengths of its inputs.
func concatTraining(c *call) error {
	out, err := concatShape(c, c.int("axis", 0))
	if err != nil {
		return err
	}
	c.out(0, firstElem(c), out)
	c.out(1, graph.Int64, ints(int64(c.arity())))
	return nil
}

// bitmaskDropout packs its mask into 32-bit words.
func bitmaskDropout(c *call) error {
	c.outType(0, c.typ(0))
	n := graph.Dim{}
	if s := c.shape(0); s != nil {
		n = product(s).CeilDiv(graph.Int(32))
	}
	c.out(1, graph.Uint32, graph.Shape{n})
	return nil
}

// likeInput returns a rule for one output like input i.
func likeInput(i int) rule {
	return func(c *call) error {
		c.outType(0, c.typ(i))
		return nil
	}
}

// likeShape returns a rule for a gradient with the shape in input i and the
// element type of input j.
func likeShape(i, j int) rule {
	return func(c *call) error {
		shape, known := c.dimsIn(i)
		if !known {
			c.out(0, c.elem(j), nil)
			return nil
		}
		c.out(0, c.elem(j), shape)
		return nil
	}
}

// layerNormGrad: dy, x, scale, mean, inverse deviation; gradients of x, scale
// and bias.
func layerNormGrad(c *call) error {
	c.outType(0, c.typ(1))
	c.outType(1, c.typ(2))
	c.outType(2, c.typ(2))
	return nil
}

// convGrad: dy, x, w; gradients of x, w and bias.
func convGrad(c *call) error {
	c.outType(0, c.typ(1))
	c.outType(1, c.typ(2))
	c.out(2, c.elem(2), graph.Shape{c.dim(2, 0)})
	return nil
}

// accumulator: buffer and value; outputs are a flag and the new buffer.
func accumulator(c *call) error {
	c.out(0, graph.Bool, graph.Shape{graph.Int(1)})
	c.outType(1, c.typ(0))
	return nil
}

// expandDims inserts an axis.
func expandDims(c *call) error {
	s := c.shape(0)
	axis, ok := c.intsIn(1)
	if s == nil || !ok || len(axis) != 1 {
		c.out(0, c.elem(0), nil)
		if s != nil {
			c.out(0, c.elem(0), unknownDims(len(s)+1))
		}
		return nil
	}
	at, err := axisOf(axis[0], len(s)+1)
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), concat(s[:at], ints(1), s[at:]))
	return nil
}

// crop is the removed operator Crop: attributes border and scale.
func crop(c *call) error {
	s := c.shape(0)
	if err := c.wantRank(0, 4); err != nil || s == nil {
		c.out(0, c.elem(0), unknownDims(4))
		return err
	}
	border, _ := c.ints("border")
	if len(border) != 4 {
		return fmt.Errorf("border %v has not 4 elements", border)
	}
	if scale, ok := c.ints("scale"); ok && len(scale) == 2 {
		c.out(0, c.elem(0), concat(s[:2], ints(scale...)))
		return nil
	}
	h := s[2].Sub(graph.Int(border[1])).Sub(graph.Int(border[3]))
	w := s[3].Sub(graph.Int(border[0])).Sub(graph.Int(border[2]))
	c.out(0, c.elem(0), graph.Shape{s[0], s[1], h, w})
	return nil
}
