package validate_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

// offsetsCheck is the outcome of the check of a plan's offsets.
func offsetsCheck(t *testing.T, r *validate.Report) validate.Check {
	t.Helper()
	for _, c := range r.Checks {
		if c.Name == "offsets" {
			return c
		}
	}
	t.Fatal("no check of the plan's offsets")
	return validate.Check{}
}

// planned is the arena that a plan has for a program.
func planned(t *testing.T, p *program.Program) *planner.Arena {
	t.Helper()
	a, err := planner.NewArena(p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestPlannedArena runs steps where their plans place them: every call finds its
// operands at the offsets that the document has.
func TestPlannedArena(t *testing.T) {
	for _, cfg := range []planner.Config{{Batch: 2}, {Batch: 2, Checkpoint: "all"}, {Batch: 2, Accumulate: 3, Optimizer: "sgd-momentum"}} {
		for _, name := range []string{"mlp", "resnet"} {
			q := question(t, name, cfg)
			s := build(t, golden(name)+".onnx", cfg)
			q.Arena = planned(t, s.Program)
			words := strings.Fields(q.Arena.Offsets)
			d := &placed{Device: cpu.New(), at: map[int64]bool{}}
			for _, w := range words {
				if n, err := strconv.ParseInt(w, 10, 64); err == nil {
					d.at[256*n] = true
				}
			}
			q.Open = func() (validate.Device, error) { return d, nil }
			r := answer(t, q)
			c := offsetsCheck(t, r)
			if r.Verdict != validate.Validated || c.OK == nil || !*c.OK || r.Arena.PlannedBytes != q.Arena.Bytes || r.Arena.UsedBytes != q.Arena.Bytes {
				t.Errorf("%s %+v: %s, %+v, arena %+v of %d planned", name, cfg, r.Verdict, c, r.Arena, q.Arena.Bytes)
			}
			if d.elsewhere != "" && cfg.Checkpoint == "" { // the run without checkpoints, which others are compared with, has its own layout
				t.Errorf("%s: %s", name, d.elsewhere)
			}
		}
	}
}

// placed looks where results lie.
type placed struct {
	*cpu.Device
	at        map[int64]bool
	elsewhere string
}

func (d *placed) Run(c *validate.Call) error {
	for i := range c.Results {
		n := c.Node.Result(i)
		if n < 0 {
			continue
		}
		out := &c.Node.Out[n]
		if start := c.Results[i].At - out.DType.Bytes(out.Offset); !d.at[start] {
			d.elsewhere = fmt.Sprintf("%s writes to a storage at %d, where the plan has none", c.Node.Op, start)
		}
	}
	return d.Device.Run(c)
}

// TestWrongArena: wrong offsets refute a plan before anything runs, an arena of
// another program is not used, and plans without one run as ever.
func TestWrongArena(t *testing.T) {
	cfg := planner.Config{Batch: 2}
	s := build(t, golden("resnet")+".onnx", cfg)
	right := planned(t, s.Program)
	words := strings.Fields(right.Offsets)
	for _, tt := range []struct {
		name   string
		change func(a *planner.Arena)
		want   string // what the detail says
	}{
		{"onto another", func(a *planner.Arena) {
			w := append([]string{}, words...)
			w[s.Statics[1]] = w[s.Statics[0]]
			a.Offsets = strings.Join(w, " ")
		}, "overlap"},
		{"nowhere", func(a *planner.Arena) {
			w := append([]string{}, words...)
			w[s.Statics[0]] = "-"
			a.Offsets = strings.Join(w, " ")
		}, "at -1"},
		{"too small", func(a *planner.Arena) { a.Bytes -= 256 }, "its storages end at"},
		{"too few", func(a *planner.Arena) { a.Offsets = strings.Join(words[1:], " ") }, "offsets for"},
		{"no number", func(a *planner.Arena) { a.Offsets = "x" + a.Offsets[1:] }, "want units of 256 bytes"},
	} {
		q := question(t, "resnet", cfg)
		a := *right
		tt.change(&a)
		q.Arena = &a
		r := answer(t, q)
		if c := offsetsCheck(t, r); r.Verdict != validate.Refuted || c.OK == nil || *c.OK || !strings.Contains(c.Detail, tt.want) || len(r.Loss) > 0 {
			t.Errorf("%s: %s, %+v, losses %v", tt.name, r.Verdict, c, r.Loss)
		}
	}
	q := question(t, "resnet", cfg)
	other := *right
	other.Program = "0"
	q.Arena = &other
	if r := answer(t, q); r.Verdict != validate.Partial || offsetsCheck(t, r).OK != nil || len(r.Loss) == 0 {
		t.Errorf("an arena of another program: %s, %+v", r.Verdict, offsetsCheck(t, r))
	}
}

// TestArenaWork: what libraries work in finds room beside the planned buffers,
// gives way under a cap, and where the planned arena itself is too large the
// storages are placed anew.
func TestArenaWork(t *testing.T) {
	q := question(t, "resnet", planner.Config{Batch: 2})
	q.Open = func() (validate.Device, error) { return greedy{cpu.New()}, nil }
	q.Arena = planned(t, build(t, golden("resnet")+".onnx", planner.Config{Batch: 2}).Program)
	r := answer(t, q)
	if r.Verdict != validate.Validated || r.Arena.PlannedBytes < 256<<20 || !*offsetsCheck(t, r).OK {
		t.Errorf("%s in %d bytes: %v", r.Verdict, r.Arena.PlannedBytes, failed(r))
	}
	q.Cap = 128 << 20
	if r = answer(t, q); r.Verdict != validate.Validated || r.Arena.PlannedBytes > q.Cap || !*offsetsCheck(t, r).OK {
		t.Errorf("under a cap: %s in %d bytes: %v", r.Verdict, r.Arena.PlannedBytes, failed(r))
	}
}
