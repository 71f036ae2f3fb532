package planner

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// An optionTruth is one measured run of options.jsonl: what was asked, in the
// words of the command line, and the last step's bytes.
type optionTruth struct {
	Name, Precision, Optimizer, LoRA, AllocConf    string
	Batch                                          int64
	Accumulate                                     int
	HoldOutputs                                    bool
	Freeze                                         []string
	Base, Peak, Reserved                           int64
	Start, AfterForward, ForwardPeak, BackwardPeak int64
	OptimizerPeak                                  int64
}

// group says which option a run is about.
func (r *optionTruth) group() string {
	switch {
	case r.AllocConf != "":
		return "--alloc-conf " + r.AllocConf
	case r.LoRA != "":
		return "--lora"
	case len(r.Freeze) > 0:
		return "--freeze"
	case r.HoldOutputs:
		return "--hold-outputs"
	case r.Accumulate > 1:
		return "--accumulate"
	}
	return "--optimizer " + r.Optimizer
}

// optionErrors are the errors of one group of runs.
type optionErrors struct{ allocated, reserved, phases []float64 }

// options compares predictions under options with what a GPU showed and
// returns the table of docs/accuracy.md.
func (c *collection) options(t *testing.T) string {
	groups := map[string]*optionErrors{}
	for _, r := range readLines[optionTruth](t, filepath.Join("testdata", "zoo", "options.jsonl.xz")) {
		rep, err := c.open(t, r.Name).Analyze(t.Context(), Config{Batch: r.Batch, Precision: r.Precision, Optimizer: r.Optimizer, Accumulate: r.Accumulate, Checkpoint: "none", Runtime: measuredRelease,
			Freeze: r.Freeze, LoRA: r.LoRA, Hold: r.HoldOutputs, AllocConf: r.AllocConf})
		if err != nil {
			t.Errorf("%+v: %v", r, err)
			continue
		}
		p, ph := &rep.Peak, &rep.Phases
		name := r.group()
		if slices.ContainsFunc(rep.Warnings, func(w graph.Warning) bool { return w.Code == "tied-parameter" }) {
			name += ", with a tied parameter that memplan warns of"
		}
		g := groups[name]
		if g == nil {
			g = &optionErrors{}
			groups[name] = g
		}
		a, re := relative(p.AllocatedBytes, r.Peak), relative(p.ReservedBytes, r.Reserved)
		g.allocated, g.reserved = append(g.allocated, a), append(g.reserved, re)
		for _, x := range [][2]int64{{ph.Start, r.Start}, {ph.AfterForward, r.AfterForward}, {ph.ForwardPeak, r.ForwardPeak}, {ph.BackwardPeak, r.BackwardPeak}, {ph.OptimizerPeak, r.OptimizerPeak}} {
			g.phases = append(g.phases, relative(x[0], x[1]))
		}
		t.Logf("%-18s %-8s %-12s x%d %-60s allocated %+7.3f%%  reserved %+7.2f%%  start %+d forward %+d %+d backward %+d optimizer %+d", r.Name, r.Precision, r.Optimizer, r.Accumulate,
			fmt.Sprint(name, r.Freeze, r.LoRA), 100*a, 100*re, ph.Start-r.Start, ph.AfterForward-r.AfterForward, ph.ForwardPeak-r.ForwardPeak, ph.BackwardPeak-r.BackwardPeak, ph.OptimizerPeak-r.OptimizerPeak)
	}
	var b strings.Builder
	b.WriteString("| option | runs | allocated: median | worst | reserved: median | worst | phases: median | worst |\n|---|---|---|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := groups[name]
		am, _, aw := summary(g.allocated)
		rm, _, rw := summary(g.reserved)
		pm, _, pw := summary(g.phases)
		fmt.Fprintf(&b, "| %s | %d | %.3f%% | %.2f%% | %.2f%% | %.2f%% | %.3f%% | %.2f%% |\n", name, len(g.allocated), 100*am, 100*aw, 100*rm, 100*rw, 100*pm, 100*pw)
		if !strings.Contains(name, "tied") && (aw > 0.01 || pw > 0.03 || rw > 0.1) {
			t.Errorf("%s: allocated %.2f%% of at most 1%%, phases %.2f%% of at most 3%%, reserved %.2f%% of at most 10%%", name, 100*aw, 100*pw, 100*rw)
		}
	}
	t.Log("\n" + b.String())
	return b.String()
}
