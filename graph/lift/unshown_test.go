package lift

import (
	"fmt"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// doubted lifts calls of one frame of a model's own module, given as "LINE NUMBER|OP|TEXT",
// each of the one before and of a parameter, and returns the numbers of those in doubt.
func doubted(class string, calls ...string) string {
	g := &graph.Graph{}
	value := func(name string) graph.ValueID {
		id := graph.ValueID(len(g.Values))
		g.Values = append(g.Values, graph.Value{ID: id, Name: name, Type: graph.Type{Elem: graph.Float32}, Def: -1})
		return id
	}
	last, weight := value("x"), value("weight")
	var classes []string
	for _, c := range calls {
		f := strings.SplitN(c, "|", 3)
		trace := fmt.Sprintf("File \"model.py\", line %s, in forward\n    %s", f[0], f[2])
		n := graph.Node{ID: int32(len(g.Nodes)), Name: f[1], Op: f[1] + ".default", Module: "m", Meta: []graph.Prop{{Key: keyLines, Value: trace}}, Args: []graph.Arg{valueArg(last)}}
		if f[1] == "mul" {
			n.Args = append(n.Args, valueArg(weight))
		}
		last = value(f[1])
		n.Outputs = []graph.ValueID{last}
		collect(n.Args, &n.Inputs)
		g.Nodes, classes = append(g.Nodes, n), append(classes, class)
	}
	roles := make([]Role, len(g.Values))
	roles[weight] = Parameter
	r := &rewriter{l: &Lifted{Graph: g, Classes: classes, Roles: roles, InPlace: make([]bool, len(classes)), from: make([]graph.ValueID, len(g.Values))}, before: map[int][]graph.Node{}, after: map[int][]graph.Node{}}
	r.count()
	r.sourceCasts()
	var out []string
	for i := range g.Nodes {
		if r.l.Unshown[g.Nodes[i].Outputs[0]] {
			out = append(out, fmt.Sprint(i))
		}
	}
	return strings.Join(out, " ")
}

// TestUnshown doubts the types of calls in functions without lines, beside variables
// that name parameters and in normalisations that lack a line, and of no others.
func TestUnshown(t *testing.T) {
	for _, c := range []struct {
		class string
		calls []string
		want  string
	}{
		{"model.Mish", []string{"5|softplus|x = self.act(x)", "5|tanh|x = self.act(x)", "6|relu|x = F.relu(x)"}, "0 1"},
		{"model.Mish", []string{"5|softplus|x = torch.tanh(F.softplus(x))", "5|tanh|x = torch.tanh(F.softplus(x))"}, ""},
		{"model.Heads", []string{"5|view|x = self.split(x)", "5|transpose|x = self.split(x)"}, ""},
		{"timm.layers.Mish", []string{"5|softplus|x = self.act(x)"}, ""},
		{"model.Scale", []string{"5|sin|y = a * torch.sin(y)", "5|mul|y = a * torch.sin(y)"}, "0 1"},
		{"model.Scale", []string{"5|sin|y = self.a * torch.sin(y)", "5|mul|y = self.a * torch.sin(y)"}, ""},
		{"model.Norm", []string{"5|mean|s = x.mean(1)", "6|sqrt|x = x / torch.sqrt(s)", "8|mul|return self.weight * x"}, "0 1 2"},
		{"model.Norm", []string{"5|mean|s = x.mean(1)", "6|sqrt|x = x / torch.sqrt(s)", "7|mul|return self.weight * x"}, ""},
		{"model.Norm", []string{"5|mean|s = x.float().mean(1)", "6|sqrt|x = x / torch.sqrt(s)", "8|mul|return self.weight * x"}, ""},
	} {
		if got := doubted(c.class, c.calls...); got != c.want {
			t.Errorf("%s %v: doubts %q, want %q", c.class, c.calls, got, c.want)
		}
	}
}

// TestLoraFirst tells the first of LoRA's layers by the modules' names.
func TestLoraFirst(t *testing.T) {
	for name, want := range map[string]bool{"q_proj.lora_A.default": true, "a.lora_down": true, "a.lora_B.default": false, "flora_a": false, "": false} {
		if loraFirst(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}
