package aten

import (
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// A Ring is context parallelism: each rank has a part of every sequence, and attention
// computes with the keys and values of the other ranks, too, as
// torch.distributed.tensor.experimental.context_parallel runs it: keys and values of all
// ranks are gathered at once, gradients of keys and values go round, and results are
// merged in float32. Under a causal mask a rank has two parts, one early and one
// late (load balance).
type Ring struct {
	Size int // ranks; 0 or 1: no ring
	Rank int
	// Folded is set where the tensors are those of fewer whole sequences instead of parts
	// of all: as many bytes in another shape.
	Folded bool
}

// A ringKernel is what a fused kernel allocates, as one step of a ring calls it.
type ringKernel struct {
	op, grad, autograd string
	operands           func(a *attention) []*Tensor
	saved              func(q, k, v, lse, o *Tensor) []*Tensor
	logsumexp          func(a *attention) int64 // bytes
	extras             []int64                  // bytes of further results, which the next step replaces
	forward            func(k *kernel, a *attention)
	backward           func(k *kernel, a *attention)
}

// masked are operands of the kernels that take a mask, and have none.
func masked(a *attention) []*Tensor { return []*Tensor{a.q, a.k, a.v, nil} }

var ringKernels = map[string]*ringKernel{
	"efficient": {"_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward", "ScaledDotProductEfficientAttentionBackward0", masked,
		func(q, k, v, lse, o *Tensor) []*Tensor { return []*Tensor{nil, k, q, v, lse, o} },
		func(a *attention) int64 { return 4 * a.q.Shape[0] * a.q.Shape[1] * efficientRows(a.q.Shape[2]) }, nil, (*kernel).efficientForward, (*kernel).efficientBackward},
	"flash": {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward", "ScaledDotProductFlashAttentionBackward0",
		func(a *attention) []*Tensor { return []*Tensor{a.q, a.k, a.v} },
		func(q, k, v, lse, o *Tensor) []*Tensor {
			return []*Tensor{k, q, v, lse, o, host(graph.Uint64, []int64{2}), host(graph.Uint64, nil)}
		},
		rowSums, []int64{16, 8}, (*kernel).flashForward, (*kernel).flashBackward},
	"cudnn": {"_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward", "ScaledDotProductCudnnAttentionBackward0", masked,
		func(q, k, v, lse, o *Tensor) []*Tensor {
			return []*Tensor{nil, k, q, v, lse, o, host(graph.Int64, nil), host(graph.Int64, nil)}
		},
		rowSums, []int64{8, 8}, (*kernel).cudnnForward, (*kernel).cudnnBackward},
}

// rowSums is a float for each query and head, in bytes.
func rowSums(a *attention) int64 { return 4 * a.q.Shape[0] * a.q.Shape[1] * a.q.Shape[2] }

// halved is a tensor's first or second part of two along the sequence.
func halved(t *Tensor) *Tensor {
	h := *t
	h.Shape = []int64{t.Shape[0], t.Shape[1], t.Shape[2] / 2, t.Shape[3]}
	return &h
}

// part is the attention of step i of the ring, and whether it is of the late queries
// alone.
func (r Ring) part(a *attention, i int) (p attention, late bool) {
	p = *a
	switch {
	case i == 0 || !a.causal:
	case i <= r.Rank: // earlier ranks' early keys, for all queries
		p.k, p.v, p.causal = halved(a.k), halved(a.v), false
	default: // all keys of later ranks, for the late queries
		p.q, p.causal, late = halved(a.q), false, true
	}
	return p, late
}

// check refuses what PyTorch's ring attention refuses.
func (r Ring) check(a *attention, kernel string) {
	m, n := a.q.Shape[2], a.k.Shape[2]
	switch parts := int64(2); {
	case ringKernels[kernel] == nil:
		fail("context parallelism needs a fused attention kernel, and none takes query %v and key %v of %s", a.q.Shape, a.k.Shape, a.q.DType)
	case a.mask != nil:
		fail("attention with a mask: context parallelism takes none but a causal one (is_causal)")
	case a.causal && m != n:
		fail("causal attention of %d queries and %d keys: context parallelism needs as many", m, n)
	case a.causal && (m%parts != 0 || kernel == "efficient" && efficientRows(m) != parts*efficientRows(m/parts)):
		fail("a rank's %d tokens: the efficient kernel's rows are padded to 32, and context parallelism needs two equal parts of them: give a sequence of a multiple of 64 tokens a rank", m)
	}
}

// ringWhy says why nodes of a ring are not the kernels that they name.
const ringWhy = "a ring of attention calls it for the keys of each rank"

// attendRing is attention over the ranks of a ring by one of the fused kernels.
func attendRing(e *Eager, a *attention, kernel string) *Tensor {
	r := e.Ring
	r.check(a, kernel)
	how := ringKernels[kernel]
	k := e.begin(how.op, how.operands(a)...).attention(a).inexact(ringWhy)
	at := k.n.Attrs
	at.Ring = true
	o, lse, flops := r.forward(k, a, how)
	k.setResults(o, lse)
	k.products(program.Fused, flops).end()
	saved := how.saved(a.q, a.k, a.v, lse, o)
	e.record(how.autograd, []*Tensor{o}, []*Tensor{a.q, a.k, a.v}, saved, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin(how.grad, append([]*Tensor{g[0]}, s...)...).repeats(at).inexact(ringWhy)
		k.n.Attrs.Ring = true
		outs := r.backward(k, a, how, g[0])
		k.products(program.Fused, 5*flops/2).end()
		return outs
	})
	return o
}

// dense makes a copy of keys or values unless they lie in order.
func (k *kernel) dense(t *Tensor) program.StorageID {
	if t.contiguous() {
		return program.None
	}
	return k.temp(t.Bytes(), program.Temporaries)
}

// A merger adds up the results of a ring's steps (_SDPAMerger).
type merger struct {
	k        *kernel
	a        *attention
	how      *ringKernel
	wide     bool              // results are converted to float32
	out, lse program.StorageID // so far
	o        *Tensor           // the last of them
	sums     *Tensor
}

// forward is _templated_ring_attention: the result, the log-sum-exp and the work.
func (r Ring) forward(k *kernel, a *attention, how *ringKernel) (o, lse *Tensor, flops int64) {
	own := []program.StorageID{k.dense(a.k), k.dense(a.v)}
	kv := a.k.Bytes() + a.v.Bytes()
	sent := k.temp(kv, program.Temporaries)
	all := k.temp(kv*int64(r.Size), program.Temporaries)
	m := &merger{k: k, a: a, how: how, wide: half(a.q), out: program.None, lse: program.None}
	var last []program.StorageID // of the step before, in variables
	for i := range r.Size {
		if i == 1 { // the gathering has ended
			k.free(sent)
			k.free(own...)
		}
		if i > 0 && i < r.Size-1 {
			k.scratch(kv, program.Temporaries) // concatenated again, and not sent
		}
		p, late := r.part(a, i)
		flops += p.flops()
		made := []program.StorageID{k.temp(a.q.DType.Bytes(numel(p.outShape())), program.Temporaries), k.temp(how.logsumexp(&p), program.Temporaries)}
		for _, n := range how.extras {
			made = append(made, k.temp(n, program.Temporaries))
		}
		how.forward(k, &p)
		k.free(last...)
		if last = made; i == 0 {
			last = m.first(made)
		} else {
			m.add(&p, late, i == r.Size-1)
		}
	}
	if m.wide {
		m.o = k.alloc(a.outShape(), m.strides(r.ends(a)), a.q.DType)
		k.free(m.out)
	}
	k.free(last...)
	k.free(all)
	return m.o, m.sums, flops
}

// ends reports whether the last step of a ring is of the late queries alone.
func (r Ring) ends(a *attention) bool { return a.causal && r.Rank < r.Size-1 }

// strides are those of the result: a concatenation of two parts lies in order.
func (m *merger) strides(late bool) []int64 {
	if late {
		return nil
	}
	return rowsFirst(m.a.outShape())
}

// first takes the result of the first step, and returns what of it goes when the second has run.
func (m *merger) first(made []program.StorageID) []program.StorageID {
	m.out, m.lse = made[0], made[1]
	if !m.wide {
		return made[2:]
	}
	m.out = m.k.temp(4*numel(m.a.outShape()), program.Temporaries)
	return append([]program.StorageID{made[0]}, made[2:]...)
}

// add merges the result of step p: out - sigmoid(block_lse - lse) * (out - block_out), and
// lse - logsigmoid(lse - block_lse).
func (m *merger) add(p *attention, late, final bool) {
	k := m.k
	temp := func(n int64) program.StorageID { return k.temp(n, program.Temporaries) }
	block, rows := 4*numel(p.outShape()), m.how.logsumexp(p)
	converted := program.None
	if m.wide {
		converted = temp(block)
	}
	below := temp(rows)
	weight := temp(rows)
	k.free(below)
	apart := temp(block)
	share := temp(block)
	k.free(weight, apart)
	out := m.output(final && !late, block, late)
	k.free(share)
	less := temp(rows)
	log := temp(rows)
	k.free(less)
	sums := m.rows(final && !late, rows)
	k.free(log)
	if !late {
		k.free(m.lse, m.out, converted)
		m.out, m.lse = out, sums
		return
	}
	whole := m.rows(final, m.how.logsumexp(m.a))
	k.free(m.lse)
	all := m.output(final, 4*numel(m.a.outShape()), late)
	k.free(m.out, out, sums, converted)
	m.out, m.lse = all, whole
}

// output allocates a sum of results; the last one is attention's, unless it is converted.
func (m *merger) output(final bool, bytes int64, late bool) program.StorageID {
	if !final || m.wide {
		return m.k.temp(bytes, program.Temporaries)
	}
	m.o = m.k.alloc(m.a.outShape(), m.strides(late), m.a.q.DType)
	return program.None
}

// rows allocates a log-sum-exp; the last one is attention's.
func (m *merger) rows(final bool, bytes int64) program.StorageID {
	if !final {
		return m.k.temp(bytes, program.Temporaries)
	}
	m.sums = m.k.alloc([]int64{bytes / 4}, nil, graph.Float32)
	return program.None
}

// A ringGrads is the state of _templated_ring_attention_backward.
type ringGrads struct {
	k            *kernel
	a            *attention
	how          *ringKernel
	wide, ends   bool              // gradients are added in float32 and converted; the last step is of late queries alone
	q            program.StorageID // the sum of the query's gradients
	keys, values program.StorageID // sums of those of keys and values, where they are tensors of their own
	viewed       program.StorageID // else what they are views of
	sent, came   program.StorageID // such sums on their way to the next rank, and from the one before
	last         []program.StorageID
}

// backward is _templated_ring_attention_backward: gradients of query, key and value, of
// which the latter two are views of one tensor.
func (r Ring) backward(k *kernel, a *attention, how *ringKernel, g *Tensor) []*Tensor {
	none := program.None
	s := &ringGrads{k: k, a: a, how: how, wide: half(a.q), ends: r.ends(a), q: none, viewed: none, sent: none, came: none}
	temp := s.temp
	var dq, both *Tensor
	if s.ends || s.wide {
		s.q = temp(4 * a.q.Numel())
	} else {
		dq = k.alloc(a.q.Shape, a.q.denseStrides(), graph.Float32)
	}
	s.keys, s.values = temp(4*a.k.Numel()), temp(4*a.v.Numel())
	own := []program.StorageID{k.dense(a.k), k.dense(a.v)}
	kv, sums := a.k.Bytes()+a.v.Bytes(), 4*(a.k.Numel()+a.v.Numel())
	next, all, lse := none, none, none
	for i := range r.Size {
		final := i == r.Size-1
		if i == 1 {
			k.free(own...)
		}
		if !final {
			cat := temp(kv)
			k.free(next)
			if next = cat; i == 0 {
				all = temp(kv * int64(r.Size))
			}
		}
		p, late := r.part(a, i)
		if late {
			part := temp(how.logsumexp(&p))
			k.free(lse)
			lse = part
		}
		s.call(&p, late, g)
		if i > 0 {
			s.take(a.causal && i <= r.Rank)
		}
		s.sent = s.flat(i == 0, sums)
		before := s.came
		if s.came = none; final && !s.wide {
			both = k.alloc([]int64{sums / 4}, nil, graph.Float32)
		} else {
			s.came = temp(sums)
		}
		if s.keys != none {
			k.free(before)
		} else {
			s.viewed = before
		}
		switch {
		case !late:
		case final && !s.wide:
			dq = k.alloc(a.q.Shape, nil, graph.Float32)
			k.free(s.q)
		default:
			sum := temp(4 * a.q.Numel())
			k.free(s.q)
			s.q = sum
		}
	}
	if s.wide {
		strides := a.q.denseStrides()
		if s.ends {
			strides = nil
		}
		dq = k.alloc(a.q.Shape, strides, a.q.DType)
		k.free(s.q)
		both = k.alloc([]int64{sums / 4}, nil, a.k.DType)
	}
	k.free(s.sent, s.keys, s.values, s.viewed, s.came)
	k.free(s.last...)
	k.free(lse, next, all)
	return []*Tensor{dq, k.e.view(both, a.k.Shape, contiguousStrides(a.k.Shape), 0), k.e.view(both, a.v.Shape, contiguousStrides(a.v.Shape), a.k.Numel())}
}

func (s *ringGrads) temp(bytes int64) program.StorageID { return s.k.temp(bytes, program.Temporaries) }

// call runs the kernel of step p. What the step before it made goes then.
func (s *ringGrads) call(p *attention, late bool, g *Tensor) {
	whole := !late || p.q.Shape[0] == 1 && !s.k.e.Ring.Folded // a part of the sequences is in order where there is one sequence
	var copies []program.StorageID
	if !whole || !swap12(s.k.e, g).contiguous() {
		copies = append(copies, s.temp(p.q.DType.Bytes(numel(p.outShape()))))
	}
	if s.how == ringKernels["flash"] && (!whole || s.ends) {
		copies = append(copies, s.temp(p.q.DType.Bytes(numel(p.outShape()))))
	}
	made := []program.StorageID{s.temp(p.q.Bytes()), s.temp(p.k.Bytes()), s.temp(p.v.Bytes())}
	s.how.backward(s.k, p)
	s.k.free(copies...)
	s.k.free(s.last...)
	s.last = made
}

// take waits for the sums of the rank before, and adds to them: in place, or into new tensors
// where the step was of early keys alone.
func (s *ringGrads) take(early bool) {
	s.k.free(s.sent, s.keys, s.values, s.viewed)
	s.keys, s.values, s.viewed = program.None, program.None, program.None
	if early {
		s.keys, s.values = s.temp(4*s.a.k.Numel()), s.temp(4*s.a.v.Numel())
	}
}

// flat joins the sums of keys and values; the first ones lie as keys and values do.
func (s *ringGrads) flat(first bool, bytes int64) program.StorageID {
	var copies []program.StorageID
	for _, t := range []*Tensor{s.a.k, s.a.v} {
		if first && !t.contiguous() {
			copies = append(copies, s.temp(4*t.Numel()))
		}
	}
	all := s.temp(bytes)
	s.k.free(copies...)
	return all
}
