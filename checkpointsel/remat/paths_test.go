package remat

import (
	"context"
	"math/rand/v2"
	"testing"
)

// TestPathsOracle bounds small graphs at random sets of cuts with rows over
// spans of windows, and compares bounds and certificates with exhaustive
// search. One in four is bounded by its linear program alone, where those rows
// matter most.
func TestPathsOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 1))
	var bounded, tight, paths, inProofs int
	for i := range *graphs {
		in := random(rng)
		need, _ := in.WorkingSet()
		budget := need + rng.Int64N(max(in.Peak()-need, 1))
		p := newProblem(in, budget)
		var cuts []int32
		for range 2 + rng.IntN(3) {
			cuts = with(cuts, 1+rng.Int32N(int32(p.n-1)))
		}
		w := newWindows(p, cuts, 16)
		w.rounds = 2
		s := newWindowSearch(w)
		s.record = true
		s.improve(context.Background(), infinite, 1+(i%4)*20)
		for _, r := range w.rules {
			if r.kind == pathRule {
				paths++
			}
		}
		want := exhaustive(in, budget)
		b := s.bound()
		if b >= infinite {
			b = 1 << 40 // no schedule
		}
		if want >= 0 && in.Total()+b*p.costUnit > want {
			t.Fatalf("graph %d, budget %d, cuts %v: bound %d above the optimum %d:\n%+v", i, budget, cuts, in.Total()+b*p.costUnit, want, in)
		}
		if want < 0 || b == 0 {
			continue
		}
		bounded++
		if in.Total()+b*p.costUnit == want {
			tight++
		}
		c := newCertificate(in, budget)
		c.LowerBound = in.Total() + b*p.costUnit
		s.certify(c, b)
		if proved, err := VerifyCertificate(in, c); err != nil || proved > want {
			t.Fatalf("graph %d, budget %d, cuts %v: %v; it proves %d, the bound is %d, the optimum %d:\n%+v", i, budget, cuts, err, proved, c.LowerBound, want, in)
		}
		for _, r := range c.Rows {
			if r.Rule == ruleKinds[pathRule] {
				inProofs++
			}
		}
	}
	t.Logf("%d bounds above nothing, %d of them exact; %d path rows, %d in proofs", bounded, tight, paths, inProofs)
	if paths == 0 || inProofs == 0 {
		t.Error("no path rows")
	}
}

// TestPathRowsChecked: the checker takes no path that is none.
func TestPathRowsChecked(t *testing.T) {
	in := &Instance{Name: "chain", Nodes: []Node{
		{Cost: 1, Size: 1}, {Cost: 1, Size: 1, Preds: []int{0}}, {Cost: 1, Size: 1, Preds: []int{1}}, {Cost: 1, Size: 1, Preds: []int{2}}, {Cost: 1, Size: 1, Preds: []int{1, 3}},
	}}
	for _, tt := range []struct {
		row CertRow
		ok  bool
	}{
		{CertRow{Rule: "path", Until: 1, Nodes: []int{1, 0}}, true},
		{CertRow{Rule: "path", Until: 1, Nodes: []int{1}}, true},
		{CertRow{Rule: "path", Until: 0, Carried: true, Nodes: []int{0}}, true},
		{CertRow{Rule: "path", Until: 1, Nodes: []int{0}}, false},                // nobody reads it any longer
		{CertRow{Rule: "path", Until: 0, Nodes: []int{1, 0}}, false},             // read later only
		{CertRow{Rule: "path", Until: 1, Nodes: []int{0, 1}}, false},             // the wrong way round
		{CertRow{Rule: "path", Until: 1, Nodes: []int{3, 1}}, false},             // no input, and after the cut
		{CertRow{Rule: "path", Until: 1, Nodes: nil}, false},                     // empty
		{CertRow{Rule: "path", Until: 1, Carried: true, Nodes: []int{1}}, false}, // there is no next cut
		{CertRow{Rule: "path", Until: 2, Nodes: []int{1}}, false},                // nor so many windows
	} {
		c := newCertificate(in, 3)
		c.Cuts = []int{2, 3}
		c.Rows = []CertRow{tt.row}
		if _, err := VerifyCertificate(in, c); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.row, err)
		}
	}
}
