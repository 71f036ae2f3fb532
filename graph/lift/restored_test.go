package lift

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// wired is namedCalls with what each call reads behind its name: "relu@a.0:linear,a.0.weight".
func wired(calls, parameters string) *Lifted {
	var bare []string
	for _, c := range strings.Fields(calls) {
		name, _, _ := strings.Cut(c, ":")
		bare = append(bare, name)
	}
	g := namedCalls(strings.Join(bare, " "), parameters)
	ids := map[string]graph.ValueID{}
	for i, c := range strings.Fields(calls) {
		n := &g.Nodes[i]
		n.Op, _ = numberOf(n.Name)
		g.Values[i].Type.Shape = graph.Shape{graph.Int(8)}
		_, reads, _ := strings.Cut(c, ":")
		for _, r := range strings.Split(reads, ",") {
			id, ok := ids[r]
			if !ok {
				id = graph.ValueID(len(g.Values))
				ids[r] = id
				g.Values = append(g.Values, graph.Value{ID: id, Name: r, Def: -1, Kind: graph.Initializer})
			}
			n.Args = append(n.Args, graph.Arg{Kind: graph.ArgValue, Value: id})
			n.Inputs = append(n.Inputs, id)
		}
		ids[n.Name] = n.Outputs[0]
	}
	l := &Lifted{Graph: g, Classes: make([]string, len(g.Nodes)), InPlace: make([]bool, len(g.Nodes)), Roles: make([]Role, len(g.Values)), from: make([]graph.ValueID, len(g.Values))}
	return l
}

// TestRestore: of two blocks the last lacks what nobody reads.
func TestRestore(t *testing.T) {
	first := "linear@l.0.a:x,l.0.a.weight linear_1@l.0.b:linear,l.0.b.weight silu@l.0:linear_1 "
	weights := "l.0.a.weight l.0.b.weight l.1.a.weight l.1.b.weight "
	for _, c := range []struct{ calls, want string }{
		// the gap is linear_3; silu has no call behind it
		{first + "linear_2@l.1.a:silu,l.1.a.weight linear_4@head:linear_2,head.weight", "l.1/linear_1:linear_2,l.1.b.weight l.1/silu:l.1/linear_1"},
		// no gap: the block did not run it
		{first + "linear_2@l.1.a:silu,l.1.a.weight linear_3@head:linear_2,head.weight", ""},
		// a gap of two is not one call
		{first + "linear_2@l.1.a:silu,l.1.a.weight linear_5@head:linear_2,head.weight", ""},
		// all behind it has no numbers
		{first + "linear_2@l.1.a:silu,l.1.a.weight", "l.1/linear_1:linear_2,l.1.b.weight l.1/silu:l.1/linear_1"},
		// a call that the first block lacks
		{first + "linear_2@l.1.a:silu,l.1.a.weight relu@l.1:linear_2 linear_4@head:relu,head.weight", ""},
	} {
		parameters := weights
		if strings.Contains(c.calls, "head") {
			parameters += "head.weight"
		}
		l := wired(c.calls, parameters)
		src := &graph.Graph{Nodes: slices.Clone(l.Graph.Nodes), Values: slices.Clone(l.Graph.Values), Meta: l.Graph.Meta}
		l.missing(src)
		l.restore(src)
		var put []string
		for i := range l.Graph.Nodes {
			n := &l.Graph.Nodes[i]
			if int(n.ID) != i || int(l.Graph.Values[n.Outputs[0]].Def) != i {
				t.Fatalf("%s: call %d has the number %d, its result comes from %d", c.calls, i, n.ID, l.Graph.Values[n.Outputs[0]].Def)
			}
			if !strings.Contains(n.Name, "/") {
				continue
			}
			var reads []string
			for _, id := range n.Inputs {
				v := &l.Graph.Values[id]
				if v.Def >= 0 {
					reads = append(reads, l.Graph.Nodes[v.Def].Name)
				} else {
					reads = append(reads, v.Name)
				}
				if int(v.Def) >= i {
					t.Errorf("%s: %s reads what comes later", c.calls, n.Name)
				}
			}
			put = append(put, n.Name+":"+strings.Join(reads, ","))
			if s := Scopes(n); !slices.Contains(s, "l.1") || slices.Contains(s, "l.0") {
				t.Errorf("%s: %s stands in %v", c.calls, n.Name, s)
			}
		}
		if got := strings.Join(put, " "); got != c.want {
			t.Errorf("%s: put back %q, want %q", c.calls, got, c.want)
		}
		if restored := c.want != ""; restored != (len(l.Warnings) == 1) || restored && (len(l.Gaps)+len(l.Idle) > 0 || fmt.Sprint(len(l.Unread)) != "1") {
			t.Errorf("%s: warnings %v, gaps %v, idle %v, unread %v", c.calls, l.Warnings, l.Gaps, l.Idle, l.Unread)
		}
	}
}
