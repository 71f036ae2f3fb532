package lift

import (
	"testing"

	"github.com/memplan/memplan/graph"
)

// Code that applies an autograd function of the model's own is warned of once,
// other code is not.
func TestOwnFunctions(t *testing.T) {
	for text, want := range map[string]int{"return SwishImplementation.apply(x)": 1, "return x * torch.sigmoid(x)": 0, "self.apply(x)": 0} {
		n := graph.Node{Meta: []graph.Prop{{Key: keyLines, Value: "File \"m.py\", line 7, in forward\n    " + text}}}
		l := &Lifted{Graph: &graph.Graph{Nodes: []graph.Node{n, n}}}
		l.warnOwnFunctions()
		if len(l.Warnings) != want {
			t.Errorf("%s: %d warnings, want %d", text, len(l.Warnings), want)
		}
	}
}

// A forward beyond those of modules is an autograd function's, unless a line calls a
// base class's, or it is the one expression of a module that nobody registered.
func TestOwnForward(t *testing.T) {
	in := Line{File: "m.py", Number: 9, Text: "y = self.ssm(x)"}
	for _, c := range []struct {
		lines  []Line
		scopes int
		want   string
	}{
		{[]Line{in, {"scan.py", 3, "a = x.clone()"}}, 1, "a forward in scan.py, line 3"},
		{[]Line{in, {"scan.py", 3, "a = x.clone()"}}, 2, ""},
		{[]Line{in, {"m.py", 3, "a = x.clone()"}}, 1, ""},
		{[]Line{in, {"act.py", 3, "return F.silu(x)"}}, 1, ""},
		{[]Line{{"m.py", 9, "y = super().forward(x)"}, {"base.py", 3, "a = x.clone()"}}, 1, ""},
		{[]Line{in, {"site-packages/torch/nn/functional.py", 3, "a = x.clone()"}}, 1, ""},
	} {
		if got := ownForward(c.lines, make([]string, c.scopes)); got != c.want {
			t.Errorf("%v in %d modules: %q, want %q", c.lines, c.scopes, got, c.want)
		}
	}
}
