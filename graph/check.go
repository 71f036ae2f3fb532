package graph

import (
	"fmt"
	"slices"
)

// Check verifies the invariants that every stage keeps, and returns an error
// that names the first place where one is broken:
//
//   - ids are dense: Values[i].ID and Nodes[i].ID are i;
//   - every computed value is output once, by Nodes[Def]; other values have
//     no producer; Inputs are the values of kind Input, once each; an
//     initializer has its tensor;
//   - nodes stand in execution order: what one reads is an input, an
//     initializer, captured, or computed by an earlier node;
//   - a captured value is one of Parent's that exists before the node whose
//     subgraph captures it;
//   - types, tensors, attributes and arguments are well formed; an argument's
//     values are among its node's inputs;
//   - the same holds in subgraphs and in the bodies of functions, which share
//     the main graph's Model.
//
// It takes O(n log n) time for a graph of n values, nodes and attributes.
func Check(g *Graph) error {
	if g == nil {
		return fmt.Errorf("graph is nil")
	}
	if err := checkGraph(g, 0); err != nil {
		return fmt.Errorf("graph %q: %w", g.Name, err)
	}
	if g.Parent != nil || g.Model == nil {
		return nil
	}
	return checkFunctions(g.Model)
}

const maxNesting = 256 // of graphs, types and arguments; deeper is a cycle of pointers

func checkFunctions(m *Model) error {
	seen := map[[3]string]bool{}
	for i, f := range m.Functions {
		key := [3]string{f.Domain, f.Name, f.Overload}
		var err error
		switch {
		case f.Name == "":
			err = fmt.Errorf("no name")
		case seen[key]:
			err = fmt.Errorf("defined twice")
		case f.Body == nil:
			err = fmt.Errorf("no body")
		case f.Body.Parent != nil:
			err = fmt.Errorf("body has a parent")
		case f.Body.Model != m:
			err = fmt.Errorf("body has another model")
		default:
			err = checkGraph(f.Body, 0)
		}
		if err != nil {
			return fmt.Errorf("function %d (%s): %w", i, f.label(), err)
		}
		seen[key] = true
	}
	return nil
}

func checkGraph(g *Graph, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("graphs nested more than %d deep", maxNesting)
	}
	if err := checkValues(g); err != nil {
		return err
	}
	if err := checkInputs(g); err != nil {
		return err
	}
	if err := checkProducers(g); err != nil {
		return err
	}
	for i := range g.Nodes {
		if err := checkNode(g, int32(i), depth); err != nil {
			return fmt.Errorf("node %d (%s): %w", i, g.Nodes[i].Label(), err)
		}
	}
	for i, id := range g.Outputs {
		if !g.has(id) {
			return fmt.Errorf("output %d: no value %d", i, id)
		}
	}
	return nil
}

// has reports whether id indexes Values.
func (g *Graph) has(id ValueID) bool { return id >= 0 && int(id) < len(g.Values) }

func checkValues(g *Graph) error {
	for i := range g.Values {
		v := &g.Values[i]
		if err := checkValue(g, v, ValueID(i)); err != nil {
			return fmt.Errorf("value %d (%q): %w", i, v.Name, err)
		}
	}
	return nil
}

func checkValue(g *Graph, v *Value, id ValueID) error {
	switch {
	case v.ID != id:
		return fmt.Errorf("ID is %d", v.ID)
	case v.Kind > Captured:
		return fmt.Errorf("kind is %d", v.Kind)
	case v.Kind == Computed && (v.Def < 0 || int(v.Def) >= len(g.Nodes)):
		return fmt.Errorf("Def %d is no node", v.Def)
	case v.Kind != Computed && v.Def != -1:
		return fmt.Errorf("%s with Def %d", v.Kind, v.Def)
	case v.Kind == Initializer && v.Const == nil:
		return fmt.Errorf("initializer without a tensor")
	case v.Kind == Captured && g.Parent == nil:
		return fmt.Errorf("captured, but the graph has no parent")
	case v.Kind == Captured && !g.Parent.has(v.Outer):
		return fmt.Errorf("captured, but Outer %d is no value of the parent", v.Outer)
	}
	for _, t := range []*Type{&v.Type, &v.Decl} {
		if err := checkType(t, 0); err != nil {
			return err
		}
	}
	if v.Const == nil {
		return nil
	}
	if err := checkTensor(v.Const); err != nil {
		return err
	}
	return checkConst(v)
}

// checkConst verifies that a value's type is its constant's, where known.
func checkConst(v *Value) error {
	if v.Type.Kind != TensorType {
		return nil
	}
	if v.Type.Elem != Undefined && v.Type.Elem != v.Const.Type {
		return fmt.Errorf("type is %s, constant is %s", v.Type.Elem, v.Const.Type)
	}
	dims, ok := v.Type.Shape.Static()
	if ok && !slices.Equal(dims, v.Const.Dims) {
		return fmt.Errorf("shape is %v, constant is %v", dims, v.Const.Dims)
	}
	return nil
}

func checkInputs(g *Graph) error {
	listed := make([]bool, len(g.Values))
	for i, id := range g.Inputs {
		switch {
		case !g.has(id):
			return fmt.Errorf("input %d: no value %d", i, id)
		case g.Values[id].Kind != Input:
			return fmt.Errorf("input %d: value %d (%q) is %s", i, id, g.Values[id].Name, g.Values[id].Kind)
		case listed[id]:
			return fmt.Errorf("input %d: value %d (%q) is listed twice", i, id, g.Values[id].Name)
		}
		listed[id] = true
	}
	for i := range g.Values {
		if g.Values[i].Kind == Input && !listed[i] {
			return fmt.Errorf("value %d (%q) is an input, but not in Inputs", i, g.Values[i].Name)
		}
	}
	return nil
}

// checkProducers verifies that outputs and Def agree both ways.
func checkProducers(g *Graph) error {
	produced := make([]bool, len(g.Values))
	for i := range g.Nodes {
		for j, id := range g.Nodes[i].Outputs {
			if id == NoValue {
				continue
			}
			err := error(nil)
			switch {
			case !g.has(id):
				err = fmt.Errorf("no value %d", id)
			case produced[id]:
				err = fmt.Errorf("value %d (%q) is produced twice", id, g.Values[id].Name)
			case g.Values[id].Kind != Computed:
				err = fmt.Errorf("value %d (%q) is %s", id, g.Values[id].Name, g.Values[id].Kind)
			case int(g.Values[id].Def) != i:
				err = fmt.Errorf("value %d (%q) is said to come from node %d", id, g.Values[id].Name, g.Values[id].Def)
			}
			if err != nil {
				return fmt.Errorf("node %d (%s): output %d: %w", i, g.Nodes[i].Label(), j, err)
			}
			produced[id] = true
		}
	}
	for i := range g.Values {
		if v := &g.Values[i]; v.Kind == Computed && !produced[i] {
			return fmt.Errorf("value %d (%q) is not an output of its node %d", i, v.Name, v.Def)
		}
	}
	return nil
}

func checkNode(g *Graph, i int32, depth int) error {
	n := &g.Nodes[i]
	if n.ID != i {
		return fmt.Errorf("ID is %d", n.ID)
	}
	if n.Op == "" {
		return fmt.Errorf("no op")
	}
	for j, id := range n.Inputs {
		if id == NoValue {
			continue
		}
		if err := g.checkUse(id, i); err != nil {
			return fmt.Errorf("input %d: %w", j, err)
		}
	}
	inputs := slices.Clone(n.Inputs)
	slices.Sort(inputs)
	if err := checkArgs(n.Args, inputs, 0); err != nil {
		return err
	}
	for j := range n.Attrs {
		a := &n.Attrs[j]
		if j > 0 && n.Attrs[j-1].Name >= a.Name {
			return fmt.Errorf("attribute %q is not sorted after %q", a.Name, n.Attrs[j-1].Name)
		}
		if err := checkAttr(a); err != nil {
			return fmt.Errorf("attribute %q: %w", a.Name, err)
		}
	}
	for _, sub := range n.Subgraphs() {
		if err := checkSubgraph(g, sub, i, depth+1); err != nil {
			return fmt.Errorf("subgraph %q: %w", sub.Name, err)
		}
	}
	return nil
}

// checkUse verifies that value id exists before node i runs.
func (g *Graph) checkUse(id ValueID, i int32) error {
	if !g.has(id) {
		return fmt.Errorf("no value %d", id)
	}
	if v := &g.Values[id]; v.Kind == Computed && v.Def >= i {
		return fmt.Errorf("value %d (%q) is computed later, by node %d", id, v.Name, v.Def)
	}
	return nil
}

func checkSubgraph(g, sub *Graph, i int32, depth int) error {
	if sub.Parent != g {
		return fmt.Errorf("has another parent")
	}
	if sub.Model != g.Model {
		return fmt.Errorf("has another model")
	}
	if err := checkGraph(sub, depth); err != nil {
		return err
	}
	for j := range sub.Values {
		v := &sub.Values[j]
		if v.Kind != Captured {
			continue
		}
		if err := g.checkUse(v.Outer, i); err != nil {
			return fmt.Errorf("value %d (%q): captured: %w", j, v.Name, err)
		}
	}
	return nil
}

// checkArgs verifies a call's arguments against its inputs, which are sorted.
func checkArgs(args []Arg, inputs []ValueID, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("arguments nested more than %d deep", maxNesting)
	}
	for i := range args {
		a := &args[i]
		if a.Kind > ArgList {
			return fmt.Errorf("argument %d: kind is %d", i, a.Kind)
		}
		if a.Kind == ArgBool && a.Int != 0 && a.Int != 1 {
			return fmt.Errorf("argument %d: boolean %d", i, a.Int)
		}
		if a.Kind == ArgValue {
			if _, ok := slices.BinarySearch(inputs, a.Value); !ok || a.Value == NoValue {
				return fmt.Errorf("argument %d: value %d is not among the inputs", i, a.Value)
			}
		}
		if err := checkArgs(a.List, inputs, depth+1); err != nil {
			return fmt.Errorf("argument %d: %w", i, err)
		}
	}
	return nil
}

// attrFields returns which fields of a are set, as bits by the kinds they
// belong to.
func attrFields(a *Attr) uint {
	var set uint
	mark := func(kind AttrKind, is bool) {
		if is {
			set |= 1 << kind
		}
	}
	mark(AttrFloat, a.F != 0)
	mark(AttrInt, a.I != 0)
	mark(AttrString, a.S != "")
	mark(AttrFloats, len(a.Floats) > 0)
	mark(AttrInts, len(a.Ints) > 0)
	mark(AttrStrings, len(a.Strings) > 0)
	mark(AttrTensor, a.Tensor != nil)
	mark(AttrTensors, len(a.Tensors) > 0)
	mark(AttrGraph, a.Graph != nil)
	mark(AttrGraphs, len(a.Graphs) > 0)
	mark(AttrType, len(a.Types) > 0)
	return set
}

// fieldOf returns the kind whose field holds attributes of kind k.
func fieldOf(k AttrKind) AttrKind {
	switch k {
	case AttrSparseTensor:
		return AttrTensor
	case AttrSparseTensors:
		return AttrTensors
	case AttrTypes:
		return AttrType
	}
	return k
}

func checkAttr(a *Attr) error {
	set, own := attrFields(a), uint(1)<<fieldOf(a.Kind)
	required := a.Kind == AttrTensor || a.Kind == AttrSparseTensor || a.Kind == AttrGraph || a.Kind == AttrType
	switch {
	case a.Name == "":
		return fmt.Errorf("no name")
	case a.Kind > AttrTypes:
		return fmt.Errorf("kind is %d", a.Kind)
	case a.Ref != "" && set != 0:
		return fmt.Errorf("has a value and refers to %q", a.Ref)
	case set&^own != 0:
		return fmt.Errorf("holds a value of another kind than %d", a.Kind)
	case a.Ref == "" && required && set == 0:
		return fmt.Errorf("no value of kind %d", a.Kind)
	case a.Kind == AttrType && len(a.Types) > 1:
		return fmt.Errorf("%d types", len(a.Types))
	}
	tensors := a.Tensors
	if a.Tensor != nil {
		tensors = []*Constant{a.Tensor}
	}
	for _, t := range tensors {
		if err := checkTensor(t); err != nil {
			return err
		}
	}
	for i := range a.Types {
		if err := checkType(&a.Types[i], 0); err != nil {
			return err
		}
	}
	if slices.Contains(a.Graphs, nil) {
		return fmt.Errorf("nil graph")
	}
	return nil
}

func checkType(t *Type, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("types nested more than %d deep", maxNesting)
	}
	tensor := t.Kind == TensorType || t.Kind == SparseType
	switch {
	case t.Kind > OpaqueType:
		return fmt.Errorf("type kind is %d", t.Kind)
	case t.Elem != Undefined && !t.Elem.Valid():
		return fmt.Errorf("element type is %d", t.Elem)
	case !tensor && t.Kind != MapType && t.Elem != Undefined:
		return fmt.Errorf("type of kind %d has element type %s", t.Kind, t.Elem)
	case !tensor && t.Shape != nil:
		return fmt.Errorf("type of kind %d has a shape", t.Kind)
	case (tensor || t.Kind == NoType || t.Kind == OpaqueType) && t.Of != nil:
		return fmt.Errorf("type of kind %d has an inner type", t.Kind)
	}
	for i, d := range t.Shape {
		if n, ok := d.Int(); ok && n < 0 {
			return fmt.Errorf("dim %d is %d", i, n)
		}
	}
	if n, ok := t.Len.Int(); ok && n < 0 {
		return fmt.Errorf("length is %d", n)
	}
	if t.Of != nil {
		return checkType(t.Of, depth+1)
	}
	return nil
}

func checkTensor(t *Constant) error {
	if t == nil {
		return fmt.Errorf("nil tensor")
	}
	if _, ok := t.Bytes(); !ok {
		return fmt.Errorf("tensor %q: the size of %s%v overflows or is negative", t.Name, t.Type, t.Dims)
	}
	if t.Type != Undefined && !t.Type.Valid() {
		return fmt.Errorf("tensor %q: element type is %d", t.Name, t.Type)
	}
	if r := t.Ref; r != nil && (r.Offset < 0 || r.Length < -1) {
		return fmt.Errorf("tensor %q: %d bytes at %d", t.Name, r.Length, r.Offset)
	}
	if t.Sparse != nil {
		return checkTensor(t.Sparse)
	}
	return checkElements(t)
}

func checkElements(t *Constant) error {
	n, _ := t.Elems()
	ints, floats, strs := t.Ints != nil, t.Floats != nil, t.Strings != nil
	held := int64(len(t.Ints) + len(t.Floats) + len(t.Strings))
	switch {
	case !ints && !floats && !strs:
		return nil
	case held != n:
		return fmt.Errorf("tensor %q: %d elements for %s%v", t.Name, held, t.Type, t.Dims)
	case floats != t.Type.IsFloat() || strs != (t.Type == String) || ints && (floats || strs):
		return fmt.Errorf("tensor %q: elements are not of type %s", t.Name, t.Type)
	}
	return nil
}
