package train

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// A sourced builds graphs whose calls have source lines.
type sourced struct{ lift.Lifted }

// call adds a call with one result, whose frames are given from the outside as
// "module:line text".
func (s *sourced) call(op string, in []graph.ValueID, frames ...string) graph.ValueID {
	if s.Graph == nil {
		s.Graph = &graph.Graph{}
	}
	g := s.Graph
	id := graph.ValueID(len(g.Values))
	g.Values = append(g.Values, graph.Value{ID: id, Def: int32(len(g.Nodes))})
	var scopes, classes, trace []string
	module := ""
	for _, f := range frames {
		var rest string
		module, rest, _ = strings.Cut(f, ":")
		number, text, _ := strings.Cut(rest, " ")
		scopes, classes = append(scopes, "'"+module+"'"), append(classes, "'a.Class'")
		trace = append(trace, fmt.Sprintf("File \"m.py\", line %s, in forward\n    %s", number, text))
	}
	g.Nodes = append(g.Nodes, graph.Node{Op: op, Module: module, Inputs: in, Outputs: []graph.ValueID{id}, Meta: []graph.Prop{
		{Key: "pkg.torch.onnx.name_scopes", Value: "[" + strings.Join(append(scopes, "'x'"), ", ") + "]"},
		{Key: "pkg.torch.onnx.class_hierarchy", Value: "[" + strings.Join(append(classes, "'aten.x'"), ", ") + "]"},
		{Key: "pkg.torch.onnx.stack_trace", Value: strings.Join(trace, "\n")},
	}})
	return id
}

// gone lists what is let go after a call.
func (s *sourced) gone(at int) []graph.ValueID {
	holds := holder{after: make([][]held, len(s.Graph.Nodes))}
	sourceHolds(&s.Lifted, s.Modules(), holds)
	return holds.values()[at]
}

// An encoder appends what it computes to a list, on lines without a call; the
// caller reads the first and the last of the list, and holds all.
func TestCollectedValues(t *testing.T) {
	for _, gaps := range []bool{true, false} { // whether lines without a call stand behind all
		s := &sourced{}
		outer := ":1 features = self.encoder(x)"
		var x []graph.ValueID
		line := 10
		for i := range 4 {
			var in []graph.ValueID
			if i > 0 {
				in = x[i-1 : i]
			}
			x = append(x, s.call("relu.default", in, outer, fmt.Sprintf("encoder:%d x = torch.relu(x)", line)))
			line++
			if gaps || i == 0 {
				line += 2
			}
		}
		s.call("add.Tensor", []graph.ValueID{x[0], x[3]}, ":2 y = features[0] + features[-1]")
		end := s.gone(4)
		for i, id := range x {
			if want := gaps || i == 0 || i == 3; slices.Contains(end, id) != want {
				t.Errorf("gaps %t: value %d let go at the end: %t, want %t", gaps, i, !want, want)
			}
		}
	}
}

// A module that computes nothing, as nn.Identity does, is no method with
// variables of its own.
func TestIdentityIsNoMethod(t *testing.T) {
	s := &sourced{}
	x := s.call("relu.default", nil, ":1 x = torch.relu(x)")
	a := s.call("tanh.default", []graph.ValueID{x}, ":2 x = x + self.drop(torch.tanh(x))")
	b := s.call("add.Tensor", []graph.ValueID{x, a}, ":2 x = x + self.drop(torch.tanh(x))")
	c := s.call("add.Tensor", []graph.ValueID{b}, ":3 x = x + 1")
	s.call("add.Tensor", []graph.ValueID{c}, ":4 x = x + 1")
	holds := holder{after: make([][]held, 5)}
	settled, _ := sourceHolds(&s.Lifted, s.Modules(), holds)
	if !settled[settledAt(a)] {
		t.Error("the lines leave open how long the sum's operand lives")
	}
}

func settledAt(id graph.ValueID) settled { return settled{id, 0} }

// A function returns a second result that only an attribute takes: it is guessed
// to be what the function made its first result of, and lasts.
func TestAttributeKeepsWhatAFunctionReturns(t *testing.T) {
	for _, line := range []string{"x, self.attn = attention(q, v)", "self.attn, x = attention(q, v)"} {
		s := &sourced{}
		q := s.call("relu.default", nil, ":1 q = torch.relu(y)")
		p := s.call("softmax.int", []graph.ValueID{q}, ":2 "+line)
		x := s.call("matmul.default", []graph.ValueID{p, q}, ":2 "+line)
		s.call("relu.default", []graph.ValueID{x}, ":3 return torch.relu(x)")
		_, vars := sourceHolds(&s.Lifted, s.Modules(), holder{after: make([][]held, len(s.Graph.Nodes))})
		if kept := vars.Kept(); !slices.Equal(kept, []graph.ValueID{p}) || !slices.Equal(vars.Supposed, kept) {
			t.Errorf("%s: keeps %v, supposed %v, want value %d", line, kept, vars.Supposed, p)
		}
		if !slices.Contains(s.gone(3), p) {
			t.Errorf("%s: the attribute lets go of its value before forward ends", line)
		}
	}
}

// A function that the file does not show is called with a module's result, which its
// parameter names until it returns; one of many calls may give that another value.
func TestParameterOfASmallFunction(t *testing.T) {
	for _, calls := range []int{2, 3, 6} {
		s := &sourced{}
		x := s.call("relu.default", nil, ":1 x = torch.relu(x)")
		line := ":2 return clamp(self.head(x))"
		head := s.call("linear.default", []graph.ValueID{x}, line, "head:9 return F.linear(x, self.weight)")
		v := head
		for range calls {
			v = s.call("tanh.default", []graph.ValueID{v}, line)
		}
		if got, want := slices.Contains(s.gone(1+calls), head), calls < 5; got != want {
			t.Errorf("%d calls: the parameter holds until the function returns: %t, want %t", calls, got, want)
		}
	}
}

// A loop keeps every second sum in a variable, on a line without a call. It was given
// the sum while x named that, not when it is read two rounds later.
func TestGivenWhileAnotherNamesIt(t *testing.T) {
	s := &sourced{}
	relu := func(in ...graph.ValueID) graph.ValueID {
		return s.call("relu.default", in, ":2 y = torch.relu(x)")
	}
	tanh := func(x graph.ValueID) graph.ValueID {
		return s.call("tanh.default", []graph.ValueID{x}, ":8 x = torch.tanh(x)")
	}
	add := func(y, old graph.ValueID) graph.ValueID {
		return s.call("add.Tensor", []graph.ValueID{y, old}, ":4 x = y + old")
	}
	y0 := relu()
	x := tanh(relu(y0))
	sum := add(relu(x), y0)
	at := len(s.Graph.Nodes) - 1
	x = tanh(relu(tanh(sum)))
	add(relu(x), sum)
	if !slices.Contains(s.gone(at), y0) {
		t.Error("the variable names its first value for longer than until the first sum")
	}
}
