//go:build cuda

package cuda

import (
	"fmt"
	"strconv"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// attentionArgs is Attention of attention.cuh.
type attentionArgs struct {
	b, h, hk, m, n, d, dv                          int64
	qStride, kStride, vStride, oStride, maskStride [4]int64
	gStride, dqStride, dkStride, dvStride          [4]int64
	q, k, v, mask, o, g                            uint64
	out, dq, dk, dvOut                             uint64
	lse, delta                                     uint64
	lseRows                                        int64
	seed                                           uint64
	scale, drop                                    float32
	causal, dtype, maskDType, _                    int32
}

// attentionTiles are the tiles of attention_*.cu by head width: queries and keys
// at a time, forward and backward.
var attentionTiles = []struct{ width, rows, cols, backRows, backCols int64 }{
	{32, 64, 64, 64, 64}, {64, 64, 64, 64, 64}, {128, 64, 32, 32, 32}, {256, 32, 16, 16, 16},
}

// attentionKernels are the kernels of this file.
func attentionKernels(register func(k kernel, names ...string)) {
	const base = "_scaled_dot_product_"
	narrow := func(n *program.Node) error {
		for _, t := range n.In[:min(3, len(n.In))] {
			if len(t.Shape) == 4 && t.Shape[3] > 256 {
				return fmt.Errorf("%s: heads of %d columns, at most 256", n.Does(), t.Shape[3])
			}
		}
		return nil
	}
	// Results: the output and the log-sum-exp. Operands of the backward:
	// gradient, mask, key, query, value, log-sum-exp, output.
	register(kernel{accepts: narrow, rows: only(nil, []int{1}), run: func(r *run) error { return attention(r, 0, 1) }, work: func(r *run) int64 { return unkeptSums(r, 1) }}, base+"efficient_attention", base+"flash_attention")
	register(kernel{accepts: narrow, rows: only(nil, []int{3}), run: func(r *run) error { return attention(r, 2, 3) }, work: func(r *run) int64 { return unkeptSums(r, 3) }}, base+"cudnn_attention")
	register(kernel{accepts: narrow, rows: only([]int{5}, nil), run: func(r *run) error { return attentionBackward(r, 1, 2) }}, base+"efficient_attention_backward", base+"cudnn_attention_backward")
	register(kernel{accepts: narrow, rows: only([]int{4}, nil), run: func(r *run) error { return attentionBackward(r, -1, 1) }}, base+"flash_attention_backward")
}

// heads describes queries, keys, values and mask.
func heads(r *run, q, k, v, mask *validate.ArenaView) (attentionArgs, error) {
	if q == nil || k == nil || v == nil || len(q.Shape) != 4 || !isTraining(q.DType) || k.DType != q.DType || v.DType != q.DType {
		return attentionArgs{}, fmt.Errorf("attention on operands that are no heads of one type")
	}
	a := attentionArgs{b: q.Shape[0], h: q.Shape[1], hk: k.Shape[1], m: q.Shape[2], n: k.Shape[2], d: q.Shape[3], dv: v.Shape[3],
		qStride: [4]int64(q.Strides), kStride: [4]int64(k.Strides), vStride: [4]int64(v.Strides), q: r.ptr(q), k: r.ptr(k), v: r.ptr(v),
		scale: float32(r.scalar("scale")), causal: int32(r.scalar("causal")), drop: float32(r.scalar("dropout")), seed: r.c.Seed, dtype: dtype(q)}
	if mask != nil {
		s, err := broadcast(mask, []int64{a.b, a.h, a.m, a.n})
		if err != nil {
			return a, err
		}
		a.mask, a.maskDType, a.maskStride = r.ptr(mask), dtype(mask), [4]int64(s)
	}
	return a, nil
}

// unkeptSums returns the bytes of the log-sum-exp of a call whose results omit it,
// as in inference.
func unkeptSums(r *run, lse int) int64 {
	if q := r.arg(0); r.result(lse) == nil && q != nil && len(q.Shape) == 4 {
		return 4 * q.Shape[0] * q.Shape[1] * q.Shape[2]
	}
	return 0
}

// sums sets the log-sum-exp, with one row for each head.
func (a *attentionArgs) sums(r *run, lse *validate.ArenaView) error {
	if lse == nil || lse.DType != graph.Float32 || !lse.RowMajor() || a.b*a.h == 0 {
		return fmt.Errorf("attention without its log-sum-exp")
	}
	a.lse, a.lseRows = r.ptr(lse), lse.Elems()/(a.b*a.h)
	return nil
}

// tiles selects the narrowest kernel for the heads.
func (a *attentionArgs) tiles() (i int, err error) {
	for i := range attentionTiles {
		if max(a.d, a.dv) <= attentionTiles[i].width {
			return i, nil
		}
	}
	return 0, fmt.Errorf("heads of %d columns", max(a.d, a.dv))
}

// attention runs the forward; output and lse are results: the output and the
// logarithms of the sums of exponentials.
func attention(r *run, output, lse int) error {
	a, err := heads(r, r.arg(0), r.arg(1), r.arg(2), r.arg(3))
	if err != nil {
		return err
	}
	out := r.result(output)
	sums := r.result(lse)
	if sums == nil {
		if need := unkeptSums(r, lse); r.c.Work.Bytes < need {
			return fmt.Errorf("attention works in %d bytes, and the plan has %d for it: give it what Device.Work asks for", need, r.c.Work.Bytes)
		}
		rows := []int64{a.b, a.h, a.m}
		sums = &validate.ArenaView{At: r.c.Work.At, DType: graph.Float32, Shape: rows, Strides: validate.RowMajor(rows)}
	}
	if err := a.sums(r, sums); err != nil {
		return err
	}
	for i := range r.c.Results { // state of random numbers, which are indexed here, and padding
		if t := r.result(i); t != nil && i != output && (i != lse || a.lseRows != a.m) {
			if err := zero(r, t); err != nil {
				return err
			}
		}
	}
	a.out, a.oStride = r.ptr(out), [4]int64(out.Strides)
	if width := cores(r, &a, r.arg(0), r.arg(1), r.arg(2), out); width > 0 {
		g := grid{x: (a.m + coreTile - 1) / coreTile, y: a.b * a.h, tx: 128, attribute: true, shared: int(2 * 3 * coreTile * (width + 8))}
		return launch(r.d, "attention_sm80", "attention_forward_"+strconv.Itoa(int(width)), g, &a)
	}
	i, err := a.tiles()
	if err != nil {
		return err
	}
	t := attentionTiles[i]
	g := grid{x: (a.m + t.rows - 1) / t.rows, y: a.b * a.h, tx: 256, attribute: true, shared: int(4 * ((t.rows+2*t.cols)*(t.width+1) + t.rows*(t.cols+1)))}
	return launch(r.d, "attention_"+strconv.Itoa(int(t.width)), "attention_forward", g, &a)
}

// attentionBackward makes the gradients of query, key and value. mask, -1 for
// none, and key are operands; query, value, sums and output follow the key.
func attentionBackward(r *run, mask, key int) error {
	a, err := heads(r, r.arg(key+1), r.arg(key), r.arg(key+2), operand(r, mask))
	if err != nil {
		return err
	}
	if err := a.sums(r, r.arg(key+3)); err != nil {
		return err
	}
	g, o, dq, dk, dv := r.arg(0), r.arg(key+4), r.result(0), r.result(1), r.result(2)
	if dq == nil || dk == nil || dv == nil {
		return fmt.Errorf("attention whose gradients are not all wanted")
	}
	a.g, a.gStride, a.o, a.oStride = r.ptr(g), [4]int64(g.Strides), r.ptr(o), [4]int64(o.Strides)
	a.dq, a.dk, a.dvOut = r.ptr(dq), r.ptr(dk), r.ptr(dv)
	a.dqStride, a.dkStride, a.dvStride = [4]int64(dq.Strides), [4]int64(dk.Strides), [4]int64(dv.Strides)
	need := 4 * a.b * a.h * a.m
	for _, s := range r.c.Scratch {
		if s.Bytes >= need {
			a.delta = uint64(r.d.at(s.At))
			break
		}
	}
	if a.delta == 0 {
		return fmt.Errorf("the plan has no memory for the row sums of attention's gradient")
	}
	if width := cores(r, &a, g, r.arg(key), r.arg(key+1), r.arg(key+2), o, dq, dk, dv); width > 0 {
		return coresBackward(r, &a, width)
	}
	i, err := a.tiles()
	if err != nil {
		return err
	}
	t := attentionTiles[i]
	file := "attention_" + strconv.Itoa(int(t.width))
	if err := launch(r.d, file, "attention_delta", grid{x: (a.b*a.h*a.m + 7) / 8, tx: 256}, &a); err != nil {
		return err
	}
	shared := int(4 * (2*(t.backRows+t.backCols)*(t.width+1) + 2*t.backRows*(t.backCols+1)))
	if err := launch(r.d, file, "attention_keys", grid{x: (a.n + t.backCols - 1) / t.backCols, y: a.b * a.hk, tx: 256, attribute: true, shared: shared}, &a); err != nil {
		return err
	}
	return launch(r.d, file, "attention_queries", grid{x: (a.m + t.backRows - 1) / t.backRows, y: a.b * a.h, tx: 256, attribute: true, shared: shared}, &a)
}

// coreTile is the number of queries, or keys, that a block of attention_sm80.cu
// holds.
const coreTile = 64

// cores returns the head width of the tensor-core kernels for a call, 0 if they
// do not apply: they need half types in rows of sixteen bytes, a mask of a
// training type, and a card with such cores.
func cores(r *run, a *attentionArgs, list ...*validate.ArenaView) int64 {
	if r.d.major < 8 || a.dtype == dtypes[graph.Float32] || a.d%8 != 0 || a.dv%8 != 0 || max(a.d, a.dv) > 128 || a.maskDType > 2 {
		return 0
	}
	for _, t := range list {
		if t.Strides[3] != 1 || t.Strides[0]%8 != 0 || t.Strides[1]%8 != 0 || t.Strides[2]%8 != 0 || !aligned(r.ptr(t)) {
			return 0
		}
	}
	if max(a.d, a.dv) <= 64 {
		return 64
	}
	return 128
}

// coresBackward is the backward on tensor cores, for heads of at most width
// columns.
func coresBackward(r *run, a *attentionArgs, width int64) error {
	const file = "attention_sm80"
	if err := launch(r.d, file, "attention_delta", grid{x: (a.b*a.h*a.m + 7) / 8, tx: 256}, a); err != nil {
		return err
	}
	other := coreTile * 64 / width // the operand that is streamed
	g := grid{x: (a.n + coreTile - 1) / coreTile, y: a.b * a.hk, tx: 128, attribute: true, shared: int(2 * 2 * (coreTile + other) * (width + 8))}
	if err := launch(r.d, file, "attention_keys_"+strconv.Itoa(int(width)), g, a); err != nil {
		return err
	}
	g.x, g.y = (a.m+coreTile-1)/coreTile, a.b*a.h
	return launch(r.d, file, "attention_queries_"+strconv.Itoa(int(width)), g, a)
}
