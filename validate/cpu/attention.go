package cpu

import (
	"math"

	"github.com/memplan/memplan/validate"
)

// attentionKernels names the results of each kernel, the output and the
// log-sum-exp (the rest is the state of random numbers, which this device
// indexes instead), and the operands of each backward: the mask, and the key,
// which query, value, log-sum-exp and output follow.
func attentionKernels() map[string]kernel {
	const base = "_scaled_dot_product_"
	return map[string]kernel{
		base + "efficient_attention": attentionKernel(0, 1), base + "cudnn_attention": attentionKernel(2, 3), base + "flash_attention": attentionKernel(0, 1),
		base + "efficient_attention_backward": attentionBackward(1, 2), base + "cudnn_attention_backward": attentionBackward(1, 2), base + "flash_attention_backward": attentionBackward(-1, 1),
	}
}

// A heads is one attention call: [b, h, m, d] queries, [b, hk, n, d] keys and
// [b, hk, n, dv] values.
type heads struct {
	r              *run
	q, k, v, mask  []float32
	b, h, hk, m, n int
	d, dv          int
	scale, drop    float64
	causal         bool
}

func newHeads(r *run, q, k, v, mask int) *heads {
	sq, sk, sv := r.shape(q), r.shape(k), r.shape(v)
	a := &heads{r: r, q: r.floats(q), k: r.floats(k), v: r.floats(v), b: int(sq[0]), h: int(sq[1]), m: int(sq[2]), d: int(sq[3]), hk: int(sk[1]), n: int(sk[2]), dv: int(sv[3]),
		scale: r.scalar("scale"), causal: r.scalar("causal") != 0, drop: r.scalar("dropout")}
	if mask >= 0 && r.has(mask) {
		a.mask = r.floatsIn(mask, []int64{sq[0], sq[1], sq[2], sk[2]})
	}
	return a
}

// parts returns head i's operands.
func (a *heads) parts(i int) (q, k, v matrix) {
	kv := i/a.h*a.hk + i%a.h/(a.h/a.hk)
	return dense(a.q[i*a.m*a.d:(i+1)*a.m*a.d], a.m, a.d), dense(a.k[kv*a.n*a.d:(kv+1)*a.n*a.d], a.n, a.d), dense(a.v[kv*a.n*a.dv:(kv+1)*a.n*a.dv], a.n, a.dv)
}

// scores computes scaled and masked products of head i.
func (a *heads) scores(i int, s []float32) {
	q, k, _ := a.parts(i)
	gemm(float32(a.scale), q, k.t(), 0, dense(s, a.m, a.n))
	for y := range a.m {
		row := s[y*a.n : (y+1)*a.n]
		if a.mask != nil {
			for x, m := range a.mask[(i*a.m+y)*a.n : (i*a.m+y+1)*a.n] {
				row[x] += m
			}
		}
		if a.causal {
			for x := y + 1; x < a.n; x++ {
				row[x] = float32(math.Inf(-1))
			}
		}
	}
}

// kept returns the factor by which dropout multiplies probability x of head i.
func (a *heads) kept(i, x int) float32 {
	if a.drop == 0 {
		return 1
	}
	if validate.Uniform(a.r.c.Seed, uint64(i*a.m*a.n+x)) < a.drop {
		return 0
	}
	return float32(1 / (1 - a.drop))
}

func attentionKernel(output, lse int) kernel {
	return func(r *run) error {
		a := newHeads(r, 0, 1, 2, 3)
		out, done := r.out(output)
		sums, doneSums := make([]float32, a.b*a.h*a.m), func() {} // not needed outside of training
		if r.wants(lse) {
			sums, doneSums = r.out(lse)
		}
		clear(sums)
		for i := range r.c.Results {
			if i != output && i != lse && r.wants(i) {
				if err := r.generate(i, func(uint64) float64 { return 0 }); err != nil {
					return err
				}
			}
		}
		rows := len(sums) / (a.b * a.h)
		r.parallel(a.b*a.h, 1, func(lo, hi int) {
			s := make([]float32, a.m*a.n)
			for i := lo; i < hi; i++ {
				a.scores(i, s)
				for y := range a.m {
					sums[i*rows+y] = softmaxRow(s[y*a.n : (y+1)*a.n])
				}
				if a.drop > 0 {
					for x := range s {
						s[x] *= a.kept(i, x)
					}
				}
				_, _, v := a.parts(i)
				gemm(1, dense(s, a.m, a.n), v, 0, dense(out[i*a.m*a.dv:(i+1)*a.m*a.dv], a.m, a.dv))
			}
		})
		done()
		doneSums()
		return nil
	}
}

// softmaxRow normalizes a row in place and returns its log-sum-exp; a row of
// -inf becomes zeros.
func softmaxRow(row []float32) float32 {
	top := math.Inf(-1)
	for _, v := range row {
		top = max(top, float64(v))
	}
	if math.IsInf(top, -1) {
		clear(row)
		return float32(top)
	}
	var sum float64
	for _, v := range row {
		sum += math.Exp(float64(v) - top)
	}
	for i, v := range row {
		row[i] = float32(math.Exp(float64(v)-top) / sum)
	}
	return float32(top + math.Log(sum))
}

// attentionBackward makes the gradients of query, key and value; query, value,
// log-sum-exp and output follow the operand key. Flash attention has no mask
// operand.
func attentionBackward(mask, key int) kernel {
	return func(r *run) error {
		g := r.floats(0)
		a := newHeads(r, key+1, key, key+2, mask)
		o, done := r.outs(3)
		for _, b := range o {
			clear(b)
		}
		each := a.h / a.hk
		r.parallel(a.b*a.hk, 1, func(lo, hi int) {
			s, dp := make([]float32, a.m*a.n), make([]float32, a.m*a.n)
			for kv := lo; kv < hi; kv++ {
				for j := range each {
					a.gradients(kv/a.hk*a.h+kv%a.hk*each+j, kv, g, s, dp, o)
				}
			}
		})
		done()
		return nil
	}
}

// gradients adds those of head i, with keys and values kv, to o.
func (a *heads) gradients(i, kv int, g, s, dp []float32, o [][]float32) {
	q, k, v := a.parts(i)
	a.scores(i, s)
	for y := range a.m {
		softmaxRow(s[y*a.n : (y+1)*a.n])
	}
	grad := dense(g[i*a.m*a.dv:(i+1)*a.m*a.dv], a.m, a.dv)
	gemm(1, grad, v.t(), 0, dense(dp, a.m, a.n))
	dropped := s
	if a.drop > 0 {
		dropped = make([]float32, len(s))
		for x := range s {
			m := a.kept(i, x)
			dropped[x], dp[x] = s[x]*m, dp[x]*m
		}
	}
	if o[2] != nil {
		gemm(1, dense(dropped, a.m, a.n).t(), grad, 1, dense(o[2][kv*a.n*a.dv:(kv+1)*a.n*a.dv], a.n, a.dv))
	}
	for y := range a.m {
		var dot float64
		for x := y * a.n; x < (y+1)*a.n; x++ {
			dot += float64(s[x]) * float64(dp[x])
		}
		for x := y * a.n; x < (y+1)*a.n; x++ {
			dp[x] = float32(float64(s[x]) * (float64(dp[x]) - dot))
		}
	}
	ds := dense(dp, a.m, a.n)
	if o[0] != nil {
		gemm(float32(a.scale), ds, k, 0, dense(o[0][i*a.m*a.d:(i+1)*a.m*a.d], a.m, a.d))
	}
	if o[1] != nil {
		gemm(float32(a.scale), ds.t(), q, 1, dense(o[1][kv*a.n*a.d:(kv+1)*a.n*a.d], a.n, a.d))
	}
}
