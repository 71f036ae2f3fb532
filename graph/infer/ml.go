package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// floatLike: 32-bit floats shaped like the input.
func floatLike(c *call) error {
	c.out(0, graph.Float32, c.shape(0))
	return nil
}

// arrayFeatures picks columns of the last axis.
func arrayFeatures(c *call) error {
	s, idx := c.shape(0), c.shape(1)
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if len(s) == 0 {
		return fmt.Errorf("the input is a scalar")
	}
	n := graph.Dim{}
	if idx != nil {
		n = product(idx)
	}
	if len(s) == 1 {
		c.out(0, c.elem(0), graph.Shape{graph.Int(1), n})
		return nil
	}
	c.out(0, c.elem(0), with(s, len(s)-1, n))
	return nil
}

// listLen returns the length of a list attribute, or -1.
func listLen(c *call, name string) int {
	a := c.attr(name)
	if a == nil {
		return -1
	}
	return max(len(a.Ints), len(a.Floats), len(a.Strings))
}

func categoryMapper(c *call) error {
	m, n := listLen(c, "cats_int64s"), listLen(c, "cats_strings")
	if m < 0 || n < 0 || m != n {
		return fmt.Errorf("cats_int64s and cats_strings must both be given, with the same length")
	}
	switch c.elem(0) {
	case graph.String:
		c.out(0, graph.Int64, c.shape(0))
	case graph.Int64:
		c.out(0, graph.String, c.shape(0))
	default:
		if c.elem(0) != graph.Undefined {
			return fmt.Errorf("input element type %s is neither int64 nor string", c.elem(0))
		}
	}
	return nil
}

// castMap turns a map into a row.
func castMap(c *call) error {
	elem := map[string]graph.DType{"TO_STRING": graph.String, "TO_INT64": graph.Int64}[c.str("cast_to", "TO_FLOAT")]
	if elem == graph.Undefined {
		elem = graph.Float32
	}
	n := graph.Dim{}
	if c.str("map_form", "DENSE") == "SPARSE" {
		n = graph.Int(c.int("max_map", 1))
	}
	c.out(0, elem, graph.Shape{graph.Int(1), n})
	return nil
}

// dictVectorizer turns a map into a row over the vocabulary.
func dictVectorizer(c *call) error {
	n := max(listLen(c, "string_vocabulary"), listLen(c, "int64_vocabulary"))
	if n < 0 {
		return fmt.Errorf("no vocabulary is given")
	}
	elem := graph.Undefined
	if of := c.typ(0).Of; of != nil {
		elem = of.Elem
	}
	c.out(0, elem, ints(1, int64(n)))
	return nil
}

func featureVectorizer(c *call) error {
	sizes, _ := c.ints("inputdimensions")
	total := int64(0)
	for _, n := range sizes {
		total += n
	}
	c.out(0, graph.Float32, graph.Shape{c.dim(0, 0), graph.Int(total)})
	return nil
}

// labelTypes are the attributes of LabelEncoder by element type.
var labelTypes = []struct {
	suffix string
	elem   graph.DType
}{{"strings", graph.String}, {"int64s", graph.Int64}, {"floats", graph.Float32}, {"tensor", graph.Undefined}}

// labelEncoder maps keys to values.
func labelEncoder(c *call) error {
	if c.ver < 2 {
		switch c.elem(0) {
		case graph.String:
			c.out(0, graph.Int64, c.shape(0))
		case graph.Int64:
			c.out(0, graph.String, c.shape(0))
		}
		return nil
	}
	keys, m, err := labels(c, "keys_")
	if err != nil {
		return err
	}
	values, n, err := labels(c, "values_")
	if err != nil {
		return err
	}
	if m != n {
		return fmt.Errorf("%d keys for %d values", m, n)
	}
	if e := c.elem(0); e != graph.Undefined && keys != e {
		return fmt.Errorf("keys are %s, the input %s", keys, e)
	}
	if a := c.attr("default_tensor"); a != nil && a.Tensor != nil {
		if a.Tensor.Type != values {
			return fmt.Errorf("the default is %s, the values are %s", a.Tensor.Type, values)
		}
		if n, ok := a.Tensor.Elems(); !ok || n != 1 || len(a.Tensor.Dims) != 1 {
			return fmt.Errorf("the default tensor is no vector of one element")
		}
	}
	c.out(0, values, c.shape(0))
	return nil
}

// labels returns the element type and length of the only label list given.
func labels(c *call, prefix string) (elem graph.DType, n int64, err error) {
	found := 0
	for _, t := range labelTypes {
		a := c.attr(prefix + t.suffix)
		if a == nil {
			continue
		}
		found++
		elem, n = t.elem, int64(listLen(c, prefix+t.suffix))
		if a.Tensor != nil {
			elem = a.Tensor.Type
			n, _ = a.Tensor.Elems()
		}
	}
	if found != 1 {
		return elem, n, fmt.Errorf("exactly one of %sstrings, %sint64s, %sfloats and %stensor must be given", prefix, prefix, prefix, prefix)
	}
	return elem, n, nil
}

// oneHotEncoder appends an axis of the categories.
func oneHotEncoder(c *call) error {
	m, n := listLen(c, "cats_int64s"), listLen(c, "cats_strings")
	if (m > 0) == (n > 0) {
		return fmt.Errorf("exactly one of cats_int64s and cats_strings must be given")
	}
	s := c.shape(0)
	if s == nil {
		c.out(0, graph.Float32, nil)
		return nil
	}
	c.out(0, graph.Float32, concat(s, ints(int64(max(m, n)))))
	return nil
}

// rows returns the number of samples in a classifier's input.
func rows(c *call) graph.Dim {
	if c.rank(0) == 1 {
		return graph.Int(1)
	}
	return c.dim(0, 0)
}

// classifier yields labels [N] and scores [N, classes].
func classifier(strings, numbers string) rule {
	return func(c *call) error {
		if r := c.rank(0); r == 0 || r > 2 {
			return fmt.Errorf("input %s is no matrix", text(c.shape(0)))
		}
		label, classes := graph.Int64, listLen(c, numbers)
		if n := listLen(c, strings); n > 0 {
			label, classes = graph.String, n
		}
		count := graph.Dim{}
		if classes > 0 {
			count = graph.Int(int64(classes))
		}
		c.out(0, label, graph.Shape{rows(c)})
		c.out(1, graph.Float32, graph.Shape{rows(c), count})
		return nil
	}
}

// regressor yields [N, targets].
func regressor(attr string) rule {
	return func(c *call) error {
		if r := c.rank(0); r > 2 {
			return fmt.Errorf("input %s is no matrix", text(c.shape(0)))
		}
		c.out(0, graph.Float32, graph.Shape{rows(c), graph.Int(c.int(attr, 1))})
		return nil
	}
}

// treeEnsemble checks that the lists of nodes and leaves match.
func treeEnsemble(c *call) error {
	nodes := listLen(c, "nodes_featureids")
	for _, name := range []string{"nodes_falseleafs", "nodes_falsenodeids", "nodes_trueleafs", "nodes_truenodeids", "nodes_hitrates", "nodes_missing_value_tracks_true", "nodes_modes", "nodes_splits"} {
		if n := attrLen(c, name); n >= 0 && n != nodes {
			return fmt.Errorf("attribute %s has %d elements, nodes_featureids %d", name, n, nodes)
		}
	}
	if m, n := attrLen(c, "leaf_targetids"), attrLen(c, "leaf_weights"); m != n {
		return fmt.Errorf("%d leaf_targetids for %d leaf_weights", m, n)
	}
	for _, name := range []string{"leaf_weights", "nodes_splits", "nodes_hitrates"} {
		if a := c.attr(name); a != nil && a.Tensor != nil && c.elem(0) != graph.Undefined && a.Tensor.Type != c.elem(0) {
			return fmt.Errorf("attribute %s is %s, the input %s", name, a.Tensor.Type, c.elem(0))
		}
	}
	if err := c.wantRank(0, 2); err != nil {
		return err
	}
	c.out(0, c.elem(0), graph.Shape{c.dim(0, 0), graph.Int(c.int("n_targets", 1))})
	return nil
}

// attrLen is listLen that also counts a tensor's elements.
func attrLen(c *call, name string) int {
	if a := c.attr(name); a != nil && a.Tensor != nil {
		n, _ := a.Tensor.Elems()
		return int(n)
	}
	return listLen(c, name)
}

// zipMap turns rows into maps from labels to numbers.
func zipMap(c *call) error {
	key := graph.Int64
	if listLen(c, "classlabels_strings") > 0 {
		key = graph.String
	} else if listLen(c, "classlabels_int64s") <= 0 {
		return fmt.Errorf("no class labels are given")
	}
	of := tensorOf(graph.Float32, graph.Shape{})
	m := graph.Type{Kind: graph.MapType, Elem: key, Of: &of}
	n := graph.Int(1)
	if c.rank(0) != 1 {
		n = c.dim(0, 0)
	}
	c.outType(0, graph.Type{Kind: graph.SequenceType, Of: &m, Len: n})
	return nil
}

// optimizer returns a rule for updating groups of tensors. Inputs are the rate,
// the step count, then all parameters, all gradients and each state's tensors;
// outputs are the new parameters and states.
func optimizer(states int) rule {
	return func(c *call) error {
		groups := states + 2
		n := (c.arity() - 2) / groups
		if n*groups != c.arity()-2 || n < 1 {
			return fmt.Errorf("%d inputs do not divide into %d groups", c.arity()-2, groups)
		}
		for i := range c.n.Outputs {
			in := 2 + i
			if i >= n { // after the gradients
				in += n
			}
			c.outType(i, c.typ(in))
		}
		return nil
	}
}
