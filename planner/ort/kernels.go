package ort

import "github.com/memplan/memplan/graph"

// operandsFirst lists what a kernel allocates for itself before its result.
func (p *plan) operandsFirst(n *graph.Node) []int64 {
	if n.Domain != "" || n.Op != "Where" || len(n.Inputs) != 3 {
		return nil
	}
	// where_op.cc: each side is selected by itself, then both are merged.
	var out []int64
	for _, side := range n.Inputs[1:] {
		elems, ok := broadcast(p.g.Values[n.Inputs[0]].Type.Shape, p.g.Values[side].Type.Shape)
		if !ok {
			return nil
		}
		out = append(out, p.g.Values[side].Type.Elem.Bytes(elems))
	}
	return out
}

// broadcast returns the number of elements of two shapes together.
func broadcast(x, y graph.Shape) (int64, bool) {
	a, ok := x.Static()
	b, also := y.Static()
	if !ok || !also {
		return 0, false
	}
	if len(a) < len(b) {
		a, b = b, a
	}
	n := int64(1)
	for i, d := range a {
		if k := i - (len(a) - len(b)); k >= 0 {
			d = max(d, b[k])
		}
		n *= d
	}
	return n, true
}

// workspace lists what a kernel allocates for itself after its result.
func (p *plan) workspace(n *graph.Node) []int64 {
	if n.Domain == "" && n.Op == "Conv" {
		return p.columns(n)
	}
	return nil
}

// segment is the working buffer of a convolution for each thread:
// MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD floats.
const segment = 16384 * 4

// columns is the working buffer of a convolution in float32, after
// MlasConvPrepare of onnxruntime/core/mlas/lib/convolve.cpp: none if the image
// is its own matrix of columns, all columns if there are more filters than
// places, otherwise a segment of them.
func (p *plan) columns(n *graph.Node) []int64 {
	if len(n.Inputs) < 2 {
		return nil
	}
	x, ok := p.g.Values[n.Inputs[0]].Type.Shape.Static()
	w, known := p.g.Values[n.Inputs[1]].Type.Shape.Static()
	y, also := p.g.Values[n.Outputs[0]].Type.Shape.Static()
	if !ok || !known || !also || len(x) < 3 || p.g.Values[n.Inputs[0]].Type.Elem != graph.Float32 {
		return nil
	}
	groups := int64(1)
	if a := n.Attr("group"); a != nil {
		groups = a.I
	}
	taps, places, ones, direct := int64(1), int64(1), true, true
	for i, k := range w[2:] {
		taps *= k
		places *= y[2+i]
		ones = ones && k == 1
		direct = direct && x[2+i]-k+1 == y[2+i] // no padding, steps of one
	}
	switch filters := w[0] / groups; {
	case ones && direct:
		return nil
	case filters > places:
		return []int64{4 * places * w[1] * taps}
	default:
		return []int64{segment}
	}
}
