package remat

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/memplan/memplan/internal/testdata"
)

// TestCertificate solves instances with certificates, which the checker must
// accept as proofs of the bounds reported.
func TestCertificate(t *testing.T) {
	for _, tt := range []struct {
		file  string
		ratio int64
		kind  string
	}{
		{"checkmate_vgg16_b256.json", 90, "cut"},
		{"checkmate_vgg16_b256.json", 80, "infeasible"},
		{"checkmate_mobilenet_b512.json", 60, "cut"},
		{"checkmate_resnet50_b256.json", 80, "cut"},
		{"checkmate_fcn8_b32.json", 65, "cut"},
		{"checkmate_mobilenet_b512.json", 25, "windows"},
	} {
		in := load(t, tt.file)
		r, err := Solve(context.Background(), in, Options{Budget: in.Peak() * tt.ratio / 100, Patience: 1, Certificate: true})
		var c *Certificate
		if e, ok := err.(*InfeasibleError); ok { //nolint:errorlint // it is returned as it is
			c = e.Certificate
		} else if err != nil {
			t.Fatal(err)
		} else {
			c = r.Certificate
			if c.LowerBound < r.LowerBound {
				t.Errorf("%s at %d%%: the certificate proves %d, the result says %d", tt.file, tt.ratio, c.LowerBound, r.LowerBound)
			}
		}
		bound, err := VerifyCertificate(in, c)
		data, _ := json.Marshal(c)
		t.Logf("%s at %d%%: %v: %d, %v; %d cuts, %d rows, %d cases, %d bytes", tt.file, tt.ratio, c, bound, err, len(c.Cuts), len(c.Rows), len(c.Tree), len(data))
		if kind := kindOf(c); err != nil || kind != tt.kind {
			t.Errorf("%s at %d%%: kind %s, want %s; %v", tt.file, tt.ratio, kind, tt.kind, err)
		}
	}
}

// TestHardCertificates: the bounds of the instances whose gaps are open have
// proofs that the checker accepts, at every budget.
func TestHardCertificates(t *testing.T) {
	testdata.Sequential(t)
	for _, tt := range []struct {
		file  string
		ratio int64
	}{
		{"checkmate_resnet50_b256.json", 30}, {"checkmate_resnet50_b256.json", 25}, {"checkmate_resnet50_b256.json", 20}, {"checkmate_resnet50_b256.json", 15},
		{"checkmate_resnet50_b256.json", 12}, {"rl2_n250.json", 80}, {"rl3_n500.json", 80},
	} {
		in := load(t, tt.file)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		r, err := Solve(ctx, in, Options{Budget: in.Peak() * tt.ratio / 100, Certificate: true})
		cancel()
		if r == nil {
			t.Fatalf("%s at %d%%: %v", tt.file, tt.ratio, err)
		}
		bound, err := VerifyCertificate(in, r.Certificate)
		if err != nil || bound < r.LowerBound {
			t.Errorf("%s at %d%%: the certificate proves %d of %d: %v", tt.file, tt.ratio, bound, r.LowerBound, err)
		}
		t.Logf("%s at %d%%: %.2f%% over the step without recomputation, at least %.2f%%", tt.file, tt.ratio, 100*r.Overhead, 100*float64(bound-in.Total())/float64(in.Total()))
	}
}

func kindOf(c *Certificate) string {
	switch {
	case c.Infeasible:
		return "infeasible"
	case len(c.Cuts) == 1:
		return "cut"
	}
	return "windows"
}

// TestCertificateOracle checks the certificates of small graphs against
// exhaustive search, and that no certificate with one number changed proves
// more than the optimum.
func TestCertificateOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	var rejected, accepted int // changed certificates that prove less, or as much
	for i := range *graphs / 2 {
		in := random(rng)
		need, _ := in.WorkingSet()
		budget := need - 1 + rng.Int64N(max(in.Peak()-need, 1)+1)
		want := exhaustive(in, budget)
		r, err := Solve(context.Background(), in, Options{Budget: budget, Patience: 2, Seed: uint64(i), Certificate: true})
		var c *Certificate
		if e, ok := err.(*InfeasibleError); ok { //nolint:errorlint // it is returned as it is
			c = e.Certificate
		} else if r != nil {
			c = r.Certificate
		}
		if c == nil {
			continue
		}
		if want >= 0 && c.Infeasible || r != nil && c.LowerBound < r.LowerBound {
			t.Fatalf("graph %d, budget %d: %v; the bound is %+v, the optimum %d", i, budget, c, r, want)
		}
		if want < 0 || len(c.Tree) == 0 {
			continue
		}
		for range 8 {
			bad := tampered(t, rng, c)
			bound, err := VerifyCertificate(in, bad)
			if err != nil || bound < c.LowerBound {
				rejected++
				continue
			}
			accepted++ // it may still prove as much
			if bad.Infeasible || bound > want {
				t.Fatalf("graph %d, budget %d: a changed certificate proves %d (infeasible %v), the optimum is %d", i, budget, bound, bad.Infeasible, want)
			}
		}
	}
	t.Logf("%d changed certificates prove less, %d as much", rejected, accepted)
	if rejected < accepted/4 {
		t.Errorf("only %d of %d changed certificates were rejected", rejected, rejected+accepted)
	}
}

// tampered returns a certificate with one thing changed.
func tampered(t *testing.T, rng *rand.Rand, c *Certificate) *Certificate {
	t.Helper()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	bad := &Certificate{}
	if err := json.Unmarshal(data, bad); err != nil {
		t.Fatal(err)
	}
	n := &bad.Tree[rng.IntN(len(bad.Tree))]
	bad.LowerBound = 0
	switch k := rng.IntN(8); {
	case k == 0:
		bad.LowerBound = c.LowerBound + 1 + rng.Int64N(3)
	case k == 1:
		bad.Infeasible = true
	case k == 2 && len(n.Multipliers) > 0:
		m := &n.Multipliers[rng.IntN(len(n.Multipliers))]
		m[1] += rng.Int64N(2*m[1]+3) - m[1]
	case k == 3 && n.Split != nil:
		n.Split.Node = rng.IntN(10)
	case k == 4 && n.Split != nil:
		n.Cases[rng.IntN(2)] = rng.IntN(len(bad.Tree) + 1)
	case k == 5 && len(bad.Rows) > 0:
		r := &bad.Rows[rng.IntN(len(bad.Rows))]
		r.Node, r.Other = rng.IntN(10), rng.IntN(10)
		if len(r.Nodes) > 0 {
			r.Nodes[rng.IntN(len(r.Nodes))], r.Until = rng.IntN(10), rng.IntN(3)
		}
	case k == 6:
		bad.Cuts[rng.IntN(len(bad.Cuts))] = rng.IntN(10)
	default:
		n.Scale /= 2
	}
	return bad
}
