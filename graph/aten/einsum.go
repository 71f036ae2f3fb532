package aten

import (
	"slices"
	"strings"
)

// runEinsum contracts its operands from the left, two at a time
// (aten/src/ATen/native/Linear.cpp, einsum and sumproduct_pair).
func runEinsum(e *Eager, c *Call) []*Tensor {
	eq, ops := c.arg(0, "equation"), c.tensors(1, "tensors")
	if eq == nil || len(ops) == 0 {
		return nil
	}
	lhs, out, explicit := strings.Cut(strings.ReplaceAll(eq.S, " ", ""), "->")
	terms := strings.Split(lhs, ",")
	if len(terms) != len(ops) {
		return nil
	}
	if !explicit {
		out = implicitOutput(strings.ReplaceAll(lhs, ellipsis, ""))
		if strings.Contains(lhs, ellipsis) {
			out = ellipsis + out
		}
	}
	if out = spellEllipsis(terms, out, ops); out == ellipsis {
		return nil
	}
	lhs = strings.Join(terms, ",")
	order := out // labels of the result, then those summed over, in alphabetic order
	var summed []string
	for _, r := range strings.ReplaceAll(lhs, ",", "") {
		if s := string(r); !strings.Contains(out, s) && !slices.Contains(summed, s) {
			summed = append(summed, s)
		}
	}
	slices.SortFunc(summed, compareLabels)
	order += strings.Join(summed, "")
	last := map[byte]int{} // the last operand with each label
	in := make([]*Tensor, len(ops))
	for i, t := range ops {
		if len(terms[i]) != t.dim() || repeats(terms[i]) {
			return nil
		}
		for j := range terms[i] {
			last[terms[i][j]] = i
		}
		in[i] = aligned(e, t, terms[i], order)
	}
	res := in[0]
	for d := len(order) - 1; d >= len(out); d-- { // sum over labels that only the first operand has
		if last[order[d]] == 0 && res.Shape[d] >= 1 {
			res = sumDims(e, res, []int{d}, true)
		}
	}
	for i := 1; i < len(in); i++ {
		var dims []int
		for d := len(out); d < len(order); d++ {
			if last[order[d]] == i {
				dims = append(dims, d)
			}
		}
		res = sumProduct(e, res, in[i], dims)
	}
	shape := res.Shape[:len(out)]
	if len(out) < res.dim() {
		drop := make([]int, 0, len(order))
		for d := len(out); d < len(order); d++ {
			drop = append(drop, d)
		}
		res = squeeze(e, res, drop...)
	}
	if !slices.Equal(res.Shape, shape) {
		fail("einsum %q gives %v", eq.S, res.Shape)
	}
	return []*Tensor{res}
}

// ellipsis stands for the dims of an operand that have no label.
const ellipsis = "..."

// spellEllipsis labels the dims that an ellipsis stands for with digits, in terms and in the
// result; where operands have different numbers of them, the last ones coincide. It returns the
// result's labels, or an ellipsis alone if there are too many or the result sums over them.
func spellEllipsis(terms []string, out string, ops []*Tensor) string {
	const digits = "0123456789"
	most := 0
	var has []int
	for i, t := range terms {
		if strings.Contains(t, ellipsis) {
			n := ops[i].dim() - (len(t) - len(ellipsis))
			if n < 0 {
				return ellipsis
			}
			most, has = max(most, n), append(has, i)
		}
	}
	if most > len(digits) || len(has) > 0 && !strings.Contains(out, ellipsis) {
		return ellipsis
	}
	for _, i := range has {
		n := ops[i].dim() - (len(terms[i]) - len(ellipsis))
		terms[i] = strings.Replace(terms[i], ellipsis, digits[most-n:most], 1)
	}
	return strings.Replace(out, ellipsis, digits[:most], 1)
}

// implicitOutput returns the labels that occur once, in order.
func implicitOutput(lhs string) string {
	var out []string
	for _, r := range strings.ReplaceAll(lhs, ",", "") {
		if s := string(r); strings.Count(lhs, s) == 1 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, compareLabels)
	return strings.Join(out, "")
}

// compareLabels orders labels as einsum does: upper case first.
func compareLabels(a, b string) int { return strings.Compare(a, b) }

func repeats(term string) bool {
	for i := range term {
		if strings.IndexByte(term[i+1:], term[i]) >= 0 {
			return true
		}
	}
	return false
}

// aligned permutes an operand to the order of labels and gives it dims of
// size 1 for those it lacks.
func aligned(e *Eager, t *Tensor, term, order string) *Tensor {
	perm := make([]int, 0, len(order))
	n := t.dim()
	for i := range order {
		at := strings.IndexByte(term, order[i])
		if at < 0 {
			t = unsqueeze(e, t, t.dim())
			at, n = n, n+1
		}
		perm = append(perm, at)
	}
	return permute(e, t, perm)
}

func sumDims(e *Eager, t *Tensor, dims []int, keep bool) *Tensor {
	o := reduceKernel(e, "sum", t, dims, keep, t.DType)
	in := t.Shape
	e.record("SumBackward1", []*Tensor{o}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{expand(e, keepDims(e, g[0], in, dims), in)}
	})
	return o
}

// sumProduct multiplies two aligned operands and sums over dims, keeping them
// with size 1: a batched product of matrices made by permuting and flattening.
func sumProduct(e *Eager, a, b *Tensor, dims []int) *Tensor {
	if len(dims) == 0 {
		return product(e, a, b)
	}
	var lro, lo, ro, sum []int // dims of both operands, of the left, of the right; and those summed over
	n := a.dim()
	var lroN, loN, roN, sumN int64 = 1, 1, 1, 1
	left, right := a, b
	for d := range n {
		l, r := a.Shape[d] != 1, b.Shape[d] != 1
		switch {
		case slices.Contains(dims, d):
			switch {
			case l && r:
				sum = append(sum, d)
				sumN *= a.Shape[d]
			case l:
				left = sumDims(e, left, []int{d}, true)
			case r:
				right = sumDims(e, right, []int{d}, true)
			}
		case l && r:
			lro = append(lro, d)
			lroN *= a.Shape[d]
		case l:
			lo = append(lo, d)
			loN *= a.Shape[d]
		default:
			ro = append(ro, d)
			roN *= b.Shape[d]
		}
	}
	var out []int64
	for _, d := range slices.Concat(lro, lo) {
		out = append(out, a.Shape[d])
	}
	for range dims {
		out = append(out, 1)
	}
	for _, d := range ro {
		out = append(out, b.Shape[d])
	}
	// The result's dims as the product leaves them, and where each stands.
	order := slices.Concat(lro, lo, dims, ro)
	back := make([]int, n)
	for i, d := range order {
		back[d] = i
	}
	rest := slices.DeleteFunc(slices.Clone(dims), func(d int) bool { return slices.Contains(sum, d) })
	left = reshape(e, "einsum", permute(e, left, slices.Concat(lro, lo, sum, rest, ro)), []int64{lroN, loN, sumN})
	right = reshape(e, "einsum", permute(e, right, slices.Concat(lro, sum, rest, ro, lo)), []int64{lroN, sumN, roN})
	o := bmm(e, left, right)
	return permute(e, reshape(e, "einsum", o, out), back)
}

// product multiplies elementwise.
func product(e *Eager, a, b *Tensor) *Tensor {
	return runMul(e, &Call{Op: "mul", Args: []Arg{tensorArg(a), tensorArg(b)}})[0]
}
