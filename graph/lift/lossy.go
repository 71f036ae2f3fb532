package lift

import (
	"math"
	"slices"

	"github.com/memplan/memplan/graph"
)

// InexactKey is the property of a lifted call that drops attributes of its ONNX
// nodes and so computes other numbers, with the same memory and time. Its value
// names the attributes.
const InexactKey = "memplan.inexact"

// InexactTrainKey is the same for a call that is exact in an inference: only its
// gradients drop attributes.
const InexactTrainKey = "memplan.inexact.train"

// lossy reports, by ONNX operator, whether calls made by patterns drop
// attributes.
var lossy = map[string]func(p *patLift, n *graph.Node) bool{
	"Attention": func(p *patLift, n *graph.Node) bool {
		past := input(n, 4) >= 0 || input(n, 5) >= 0
		return attrFloat(n, "softcap", 0) != 0 || past && attrInt(n, "is_causal", 0) != 0 || hasOtherScale(p, n) && attrFloat(n, "scale", 0) < 0
	},
	"AveragePool": oddAverage,
	"MaxPool":     oddMax,
	"ConvTranspose": func(_ *patLift, n *graph.Node) bool {
		return autoPadsSame(n) || n.Attr("output_shape") != nil
	},
	"CumSum": func(p *patLift, n *graph.Node) bool {
		_, ok := p.number(input(n, 1))
		return !ok || attrInt(n, "exclusive", 0)+attrInt(n, "reverse", 0) != 0
	},
	"GatherND": func(p *patLift, n *graph.Node) bool { return !indexes(p, n) },
	"Gemm":     lostFactors, "com.microsoft.FusedGemm": lostFactors,
	"GridSample": func(_ *patLift, n *graph.Node) bool {
		bilinear := slices.Contains([]string{"bilinear", "linear"}, attrStr(n, "mode", "linear"))
		return !bilinear || attrStr(n, "padding_mode", "zeros") != "zeros" || attrInt(n, "align_corners", 0) != 0
	},
	"HardSigmoid": func(_ *patLift, n *graph.Node) bool { // torch's is x/6 + 1/2
		return !near(attrFloat(n, "alpha", 0.2), 1.0/6) || !near(attrFloat(n, "beta", 0.5), 0.5)
	},
	"Pad": func(p *patLift, n *graph.Node) bool {
		_, ok := pads(p, n)
		_, known := padValue(p, n)
		return !ok || !known
	},
	"Trilu": func(p *patLift, n *graph.Node) bool {
		_, ok := p.ints(input(n, 1))
		return !ok && input(n, 1) >= 0
	},
}

// lossyTrained reports, by ONNX operator, whether only the gradients of calls drop
// attributes.
var lossyTrained = map[string]func(n *graph.Node) bool{"Gemm": scaledSum, "com.microsoft.FusedGemm": scaledSum}

// lostFactors reports whether a Gemm has factors but is not lifted to an addmm:
// mm and linear have none, and autocast treats an addmm differently from a
// linear.
func lostFactors(p *patLift, n *graph.Node) bool {
	if input(n, 2) < 0 {
		return attrFloat(n, "alpha", 1) != 1
	}
	return asLinear(p, n) && len(gemmFactors(n)) > 0
}

// scaledSum reports whether an addmm has factors; training steps drop them, since
// its backward would otherwise run products with them.
func scaledSum(n *graph.Node) bool { return input(n, 2) >= 0 && len(gemmFactors(n)) > 0 }

// near reports whether numbers are equal up to the rounding of attributes.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-4*math.Abs(b) }

// autoPadsSame reports whether the padding depends on the input's size.
func autoPadsSame(n *graph.Node) bool {
	mode := attrStr(n, "auto_pad", "NOTSET")
	return mode == "SAME_UPPER" || mode == "SAME_LOWER"
}

// padsBefore reports whether a pool pads its sides differently, so that a
// separate call pads.
func padsBefore(p *patLift, n *graph.Node) bool {
	w, ok := windowOf(p, n, attrInts(n, "kernel_shape", nil), p.dims(input(n, 0)))
	return !ok || !slices.Equal(w.begin, w.end)
}

// oddMax reports whether a separate call pads before a max pool whose last window
// may begin in the padding, or whose type has no value below all others; or
// whether its indices are read, which torch counts within a plane.
func oddMax(p *patLift, n *graph.Node) bool {
	if len(n.Outputs) > 1 && n.Outputs[1] >= 0 {
		return true
	}
	return padsBefore(p, n) && (attrInt(n, "ceil_mode", 0) != 0 || !p.typeOf(input(n, 0)).Elem.IsFloat())
}

// oddAverage reports whether a separate call pads an average pool with zeros that
// ONNX does not count, or the last window may extend beyond them.
func oddAverage(p *patLift, n *graph.Node) bool {
	return padsBefore(p, n) && (attrInt(n, "ceil_mode", 0) != 0 || attrInt(n, "count_include_pad", 0) == 0)
}

// hasOtherScale reports whether an attention's scale differs from 1/sqrt of its head
// size.
func hasOtherScale(p *patLift, n *graph.Node) bool {
	scale := attrFloat(n, "scale", 0)
	if scale == 0 {
		return false
	}
	q := p.dims(input(n, 0))
	if len(q) == 0 {
		return true
	}
	size := float64(q[len(q)-1])
	if len(q) == 3 {
		size /= float64(max(attrInt(n, "q_num_heads", 1), 1))
	}
	return !near(scale, 1/math.Sqrt(size))
}

// markInexact marks the calls from since on, which replace the nodes of a match, if
// they drop an attribute.
func markInexact(p *patLift, since int, m *match) {
	why := ""
	if scale, other := otherScale(p, m); other && scale <= 0 {
		why = "the scale of attention"
	}
	trained := ""
	for _, i := range m.nodes {
		n := &p.src.Nodes[i]
		if f := lossy[p.ops[i]]; f != nil && f(p, n) {
			why = "attributes of " + n.Op
		}
		if f := lossyTrained[p.ops[i]]; f != nil && f(n) {
			trained = "attributes of " + n.Op + " in training"
		}
	}
	markOf(p, since, InexactKey, why)
	markOf(p, since, InexactTrainKey, trained)
}

// markOf adds a property to the calls from since on, unless why is empty.
func markOf(p *patLift, since int, key, why string) {
	if why == "" {
		return
	}
	for j := since; j < len(p.l.Graph.Nodes); j++ {
		c := &p.l.Graph.Nodes[j]
		c.Meta = append(slices.Clone(c.Meta), graph.Prop{Key: key, Value: why})
	}
}

// otherScale returns the scale of attention that is written out in the file, the product
// of the query's scale s and the key's t, and whether it differs from the call's
// default, 1/sqrt of the head size. A scale that is not a constant of the file counts as
// the default.
func otherScale(p *patLift, m *match) (scale float64, other bool) {
	if m.rule.name != "attention" {
		return 0, false
	}
	scale = 1
	for _, name := range []string{"s", "t"} {
		id := m.value(name)
		if id < 0 {
			return 0, false
		}
		x, ok := p.number(id)
		if !ok {
			return 0, false
		}
		if slices.ContainsFunc(m.nodes, func(i int32) bool {
			n := &p.src.Nodes[i]
			return p.ops[i] == "Div" && p.resolve(n.Inputs[1]) == p.resolve(id)
		}) {
			x = 1 / x
		}
		scale *= x
	}
	q := p.dims(m.value("q"))
	return scale, len(q) == 0 || !near(scale, 1/math.Sqrt(float64(q[len(q)-1])))
}
