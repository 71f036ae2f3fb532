package train

import (
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

func TestMatchChild(t *testing.T) {
	for _, tt := range []struct {
		module  string
		depth   int
		pattern string
		want    string
	}{
		{"m.h.0.attn.c_attn", 3, "attn", "attn"},
		{"m.h.0.attn.c_attn", 2, "*", "0"},
		{"m.h.0.attn.c_attn", 1, "h.*", "h.0"},
		{"m.h.0.attn", 3, "mlp", ""},
		{"m.h", 1, "h.*", ""},
		{"m", 1, "h", ""},
		{"attn", 0, "attn", "attn"},
		{"m.h.10.attn", 1, "h.1", ""},
	} {
		if got := matchChild(tt.module, tt.depth, tt.pattern); got != tt.want {
			t.Errorf("%s at %d, %s: %q, want %q", tt.module, tt.depth, tt.pattern, got, tt.want)
		}
	}
}

// A block of GPT-2: the result of attn lives until the block returns, although
// the sum reads it last.
func TestFrameHolds(t *testing.T) {
	const block = "transformers.models.gpt2.modeling_gpt2.GPT2Block"
	g := &graph.Graph{}
	l := &lift.Lifted{Graph: g}
	scopes := "['', 'h.0', 'h.0.%s', 'x']"
	classes := "['Model', '" + block + "', 'Child', 'aten.x']"
	call := func(module string, in ...graph.ValueID) graph.ValueID {
		id := graph.ValueID(len(g.Values))
		g.Values = append(g.Values, graph.Value{ID: id, Def: int32(len(g.Nodes))})
		s, c := strings.ReplaceAll(scopes, "%s", strings.TrimPrefix(module, "h.0.")), classes
		if module == "h.0" {
			s, c = "['', 'h.0', 'x']", "['Model', '"+block+"', 'aten.x']"
		}
		g.Nodes = append(g.Nodes, graph.Node{Module: module, Inputs: in, Outputs: []graph.ValueID{id},
			Meta: []graph.Prop{{Key: "pkg.torch.onnx.name_scopes", Value: s}, {Key: "pkg.torch.onnx.class_hierarchy", Value: c}}})
		return id
	}
	x := call("h.0.ln_1")
	a := call("h.0.attn", x)
	sum := call("h.0", a)
	y := call("h.0.ln_2", sum)
	z := call("h.0.mlp", y)
	call("h.0", sum, z)
	kept := holder{after: make([][]held, len(g.Nodes))}
	frameHolds(g, l.Modules(), kept)
	holds := kept.values()
	if end := holds[5]; !slices.Contains(end, a) || !slices.Contains(end, z) || slices.Contains(end, x) {
		t.Errorf("let go at the end: %v, want %d (attn) and %d (mlp), not %d", end, a, z, x)
	}
	// hidden_states is given the sum once that is computed.
	if !slices.Equal(holds[2], []graph.ValueID{x}) || holds[5][0] != y {
		t.Errorf("let go after the sums: %v and %v, want %d and first %d", holds[2], holds[5], x, y)
	}
}
