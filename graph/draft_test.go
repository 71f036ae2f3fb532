package graph

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomDraft returns nodes n0, n1, ... in random order, each with an output
// of its name and inputs from nodes of smaller number, some of them read by a
// subgraph, one or two deep.
func randomDraft(r *rand.Rand) *Draft {
	d := &Draft{Name: "random", Inputs: []DraftValue{{Name: "x"}}}
	for i := range 1 + r.IntN(12) {
		n := &DraftNode{Node: Node{Op: "Op", Name: fmt.Sprint("n", i)}, Out: []string{fmt.Sprint("n", i)}}
		for range r.IntN(4) {
			from := "x"
			if j := r.IntN(i + 1); j < i {
				from = fmt.Sprint("n", j)
			}
			if depth := r.IntN(4); depth < 2 {
				n.In = append(n.In, from)
			} else {
				n.capture(from, depth-1)
			}
		}
		d.Nodes = append(d.Nodes, n)
	}
	r.Shuffle(len(d.Nodes), func(i, j int) { d.Nodes[i], d.Nodes[j] = d.Nodes[j], d.Nodes[i] })
	return d
}

// capture gives n a subgraph that reads name at the given depth. Its own
// value hides nothing.
func (n *DraftNode) capture(name string, depth int) {
	inner := &DraftNode{Node: Node{Op: "Op"}, Out: []string{"inside " + name}}
	if depth == 1 {
		inner.In = []string{name}
	} else {
		inner.capture(name, depth-1)
	}
	n.Subs = append(n.Subs, DraftSub{Attr: len(n.Attrs), Body: &Draft{Nodes: []*DraftNode{inner}}})
	n.Attrs = append(n.Attrs, Attr{Name: fmt.Sprint("b", len(n.Attrs)), Kind: AttrGraph})
}

// reads returns the names that n reads, as randomDraft made it.
func (n *DraftNode) reads() []string {
	out := slices.Clone(n.In)
	for _, sub := range n.Subs {
		out = append(out, sub.Body.Nodes[0].reads()...)
	}
	return out
}

// naiveOrder repeats: take the first node whose inputs are all there.
func naiveOrder(d *Draft) []string {
	have := map[string]bool{"x": true}
	var order []string
	left := slices.Clone(d.Nodes)
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(n *DraftNode) bool {
			return !slices.ContainsFunc(n.reads(), func(name string) bool { return !have[name] })
		})
		order = append(order, left[i].Name)
		have[left[i].Name] = true
		left = slices.Delete(left, i, i+1)
	}
	return order
}

// TestResolveOrder compares the order of shuffled graphs with the naive one.
func TestResolveOrder(t *testing.T) {
	unsorted := 0
	for seed := range uint64(2000) {
		d := randomDraft(rand.New(rand.NewPCG(seed, 1)))
		want := naiveOrder(d)
		m := &Model{}
		g, err := Resolve(m, d, nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := Check(g); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var got []string
		for i := range g.Nodes {
			got = append(got, g.Nodes[i].Name)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: order %v, want %v", seed, got, want)
		}
		sorted := slices.IsSortedFunc(d.Nodes, func(a, b *DraftNode) int {
			return slices.Index(want, a.Name) - slices.Index(want, b.Name)
		})
		if warned := len(m.Warnings) == 1 && m.Warnings[0].Code == "unsorted"; warned == sorted {
			t.Fatalf("seed %d: warnings %v, sorted %v", seed, m.Warnings, sorted)
		}
		if !sorted {
			unsorted++
		}
	}
	if unsorted < 500 {
		t.Errorf("only %d graphs were unsorted", unsorted)
	}
}

// TestResolveCycles closes a cycle in random graphs and expects an error that
// walks along edges.
func TestResolveCycles(t *testing.T) {
	found := 0
	for seed := range uint64(500) {
		d := randomDraft(rand.New(rand.NewPCG(seed, 2)))
		index := map[string]*DraftNode{}
		for _, n := range d.Nodes {
			index[n.Name] = n
		}
		last := index[fmt.Sprint("n", len(d.Nodes)-1)]
		from := slices.IndexFunc(last.reads(), func(s string) bool { return s != "x" })
		if from < 0 {
			continue
		}
		index[last.reads()[from]].capture(last.Name, 1)
		_, err := Resolve(&Model{}, d, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "cycle: ") {
			t.Fatalf("seed %d: error %v", seed, err)
		}
		path := strings.Split(strings.TrimPrefix(err.Error(), "cycle: "), " -> ")
		for i := range len(path) - 1 {
			producer, consumer := strings.Trim(path[i], `Op "`), strings.Trim(path[i+1], `Op "`)
			if !slices.Contains(index[consumer].reads(), producer) {
				t.Fatalf("seed %d: %v: %s does not read %s", seed, err, consumer, producer)
			}
		}
		if path[0] != path[len(path)-1] {
			t.Fatalf("seed %d: %v does not close", seed, err)
		}
		found++
	}
	if found < 200 {
		t.Errorf("only %d graphs had a cycle", found)
	}
}

// TestLongCycle is cut short in the message.
func TestLongCycle(t *testing.T) {
	d := &Draft{}
	for i := range 100 {
		d.Nodes = append(d.Nodes, &DraftNode{Node: Node{Op: "Op"}, In: []string{fmt.Sprint(i)}, Out: []string{fmt.Sprint((i + 1) % 100)}})
	}
	_, err := Resolve(&Model{}, d, nil)
	if err == nil || !strings.Contains(err.Error(), "(92 more) -> ") || len(err.Error()) > 300 {
		t.Errorf("error %v", err)
	}
}

// BenchmarkResolve sorts a chain that stands in reverse.
func BenchmarkResolve(b *testing.B) {
	const n = 10000
	names := make([][]string, n+1)
	for i := range names {
		names[i] = []string{fmt.Sprint(i)}
	}
	for b.Loop() {
		d := &Draft{Inputs: []DraftValue{{Name: "0"}}}
		for i := range n {
			d.Nodes = append(d.Nodes, &DraftNode{Node: Node{Op: "Op"}, In: names[n-i-1], Out: names[n-i]})
		}
		if _, err := Resolve(&Model{}, d, nil); err != nil {
			b.Fatal(err)
		}
	}
}
