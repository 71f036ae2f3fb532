package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// batchNorm: x, scale, bias, mean, var; with training also the running mean
// and variance, before opset 14 the saved ones too.
func batchNorm(c *call) error {
	s := c.shape(0)
	channels := graph.Dim{}
	if len(s) == 1 {
		channels = graph.Int(1) // a vector counts as one channel
	} else if s != nil {
		channels = c.dim(0, 1)
	}
	for i := 1; i < c.arity() && i < 5; i++ {
		if err := c.wantRank(i, 1); err != nil {
			return err
		}
		merged, ok := mergeDim(c.dim(i, 0), channels)
		if !ok {
			return fmt.Errorf("input %s has %s channels, input %d %s", text(s), channels, i, text(c.shape(i)))
		}
		channels = merged
	}
	c.outType(0, c.typ(0))
	for i := 1; i < len(c.n.Outputs); i++ {
		elem := c.elem(min(i, 4))
		if c.has(i + 2) {
			elem = c.elem(i + 2)
		}
		c.out(i, elem, graph.Shape{channels})
	}
	return nil
}

// instanceNorm: x, scale, bias.
func instanceNorm(c *call) error {
	channels := c.dim(0, 1)
	for i := 1; i < 3; i++ {
		if err := c.wantRank(i, 1); err != nil {
			return err
		}
		if _, ok := mergeDim(c.dim(i, 0), channels); !ok && c.rank(0) > 1 {
			return fmt.Errorf("input %s and input %d %s differ in channels", text(c.shape(0)), i, text(c.shape(i)))
		}
	}
	return same(c)
}

// layerNorm also yields the mean and the inverse deviation, in the precision of
// attribute stash_type, with the normalised axes kept as 1.
//
// Before LayerNormalization was ONNX's, ONNX Runtime defined it in ONNX's
// domain: there, as in SimplifiedLayerNormalization, the result has the scale's
// element type. Since version 17 both types must be equal.
func layerNorm(c *call) error {
	t := c.typ(0)
	if e := c.elem(1); e != graph.Undefined && t.Kind == graph.TensorType {
		t.Elem = e
	}
	c.outType(0, t)
	stash := c.dtype("stash_type", graph.Float32)
	s := c.shape(0)
	if s == nil {
		for i := 1; i < len(c.n.Outputs); i++ {
			c.out(i, stash, nil)
		}
		return nil
	}
	axis, err := axisOf(c.int("axis", -1), len(s))
	if err != nil {
		return err
	}
	stat := append(graph.Shape{}, s...)
	for i := axis; i < len(stat); i++ {
		stat[i] = graph.Int(1)
	}
	for i := 1; i < len(c.n.Outputs); i++ {
		c.out(i, stash, stat)
	}
	return nil
}

// rotary rotates pairs of components; the shape stays.
func rotary(c *call) error {
	if err := c.wantRank(0, 4, 3); err != nil {
		return err
	}
	if c.rank(0) == 3 && c.int("num_heads", 0) <= 0 && c.n.Domain == "" {
		return fmt.Errorf("input %s needs attribute num_heads", text(c.shape(0)))
	}
	return same(c)
}

// quantize: the element type comes from the zero point, or attribute
// output_dtype.
func quantize(c *call) error {
	elem := graph.Uint8
	declared := c.dtype("output_dtype", graph.Undefined)
	if declared != graph.Undefined {
		elem = declared
	}
	if c.has(2) {
		elem = c.elem(2)
		if declared != graph.Undefined && elem != graph.Undefined && elem != declared {
			return fmt.Errorf("output_dtype is %s, the zero point has %s", declared, elem)
		}
	}
	c.out(0, elem, c.shape(0))
	return nil
}

// dequantize: the element type is the scale's, or attribute output_dtype.
func dequantize(c *call) error {
	elem := c.elem(1)
	if elem == graph.Undefined || c.ver < 19 && c.n.Domain == "" {
		elem = graph.Float32
	}
	c.out(0, c.dtype("output_dtype", elem), c.shape(0))
	return nil
}

// dynamicQuantize yields uint8, a scale and a zero point.
func dynamicQuantize(c *call) error {
	c.out(0, graph.Uint8, c.shape(0))
	c.out(1, graph.Float32, graph.Shape{})
	c.out(2, graph.Uint8, graph.Shape{})
	return nil
}

// logLikelihood is NegativeLogLikelihoodLoss: input [N,C,d...], target
// [N,d...], weight [C].
func logLikelihood(c *call) error {
	x, t := c.shape(0), c.shape(1)
	if x != nil && len(x) < 2 {
		return fmt.Errorf("input %s has fewer than 2 dims", text(x))
	}
	if x != nil && t != nil {
		want := concat(x[:1], x[2:])
		merged, ok := mergeShapes(want, t)
		if !ok {
			return fmt.Errorf("input %s and target %s do not fit", text(x), text(t))
		}
		t = merged
	}
	if err := c.wantRank(2, 1); err != nil {
		return err
	}
	if _, ok := mergeDim(c.dim(2, 0), c.dim(0, 1)); !ok && x != nil {
		return fmt.Errorf("weight %s for %s classes", text(c.shape(2)), c.dim(0, 1))
	}
	if t == nil && x != nil {
		t = concat(x[:1], x[2:])
	}
	return loss(c, t)
}

// loss sets output 0 to the losses in the target's shape, or to their mean or
// sum.
func loss(c *call, t graph.Shape) error {
	switch how := c.str("reduction", "mean"); how {
	case "none":
		c.out(0, c.elem(0), t)
	case "mean", "sum":
		c.out(0, c.elem(0), graph.Shape{})
	default:
		return fmt.Errorf("attribute reduction is %q, which is none of none, mean and sum", how)
	}
	return nil
}

// crossEntropy is SoftmaxCrossEntropyLoss; it also yields log probabilities.
func crossEntropy(c *call) error {
	x, t := c.shape(0), c.shape(1)
	if x != nil && len(x) < 2 {
		return fmt.Errorf("scores %s have fewer than 2 dims", text(x))
	}
	if x != nil && t != nil {
		merged, ok := mergeShapes(concat(x[:1], x[2:]), t)
		if !ok {
			return fmt.Errorf("scores %s and labels %s do not fit", text(x), text(t))
		}
		t = merged
	}
	if err := c.wantRank(2, 1); err != nil {
		return err
	}
	c.out(1, c.elem(0), x)
	return loss(c, t)
}
