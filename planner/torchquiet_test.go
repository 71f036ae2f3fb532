package planner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// A quietStep is a timed step of scripts/steps/quiet.py in milliseconds: all of
// it, until Python had issued it, and the GPU's forward pass, backward pass and
// optimizer.
type quietStep [5]float64

// A quietRun is a line of quiet.py.
type quietRun struct {
	Kind      string                 `json:"kind"` // about, planned, engine, compare, turns
	Name      string                 `json:"name"`
	Precision string                 `json:"precision"`
	Batch     int                    `json:"batch"`
	Err       string                 `json:"err"`
	How       string                 `json:"how"`
	VRAM      string                 `json:"vram"`
	Ms        map[string][]quietStep `json:"ms"` // by way: base, plan, block, rival (a plan that reserves no more), both (one that allocates no more, too)
	Peaks     map[string]torchSteps  `json:"peaks"`
	Plan      *torchPredicted        `json:"predicted_plan"`
	Profile   map[string]struct {
		Kernels float64 `json:"kernels"` // ms that kernels ran in one step
	} `json:"profile"`
	Document *struct {
		Verdict string `json:"verdict"`
		Memory  struct {
			Predicted int64 `json:"predictedBytes"`
			Measured  int64 `json:"measuredBytes"`
		} `json:"memory"`
		Time struct {
			Predicted float64 `json:"predictedMs"`
			Measured  float64 `json:"measuredMs"`
		} `json:"time"`
		Model struct {
			Batch     int    `json:"batch"`
			Precision string `json:"precision"`
			Segments  int    `json:"segments"`
		} `json:"model"`
	} `json:"document"`
	Rows []json.RawMessage `json:"rows"` // of memplan.compare: name, predicted, measured, unit; then whether reserved memory stayed under the bound
}

// step is the median of what a way's steps took: 0 all of it, 1 Python's part.
func (r *quietRun) step(way string, part int) float64 {
	var v []float64
	for _, s := range r.Ms[way] {
		v = append(v, s[part])
	}
	return median(v)
}

// over is how much longer a way's step takes than that without checkpoints.
func (r *quietRun) over(way string) float64 { return r.step(way, 0)/r.step("base", 0) - 1 }

// faster is 1, 1 where a plan's steps take less time than every block's, 0, 1
// where they do not and 0, 0 where one of both did not run.
func (r *quietRun) faster(way string) (lower, of int) {
	switch {
	case len(r.Ms["block"]) == 0 || len(r.Ms[way]) == 0:
		return 0, 0
	case r.step(way, 0) < r.step("block", 0):
		return 1, 1
	}
	return 0, 1
}

// peaks are a way's highest bytes.
func (r *quietRun) peaks(way string) string {
	p, ok := r.Peaks[way]
	if !ok {
		return "-"
	}
	return gib(p.Reserved) + ", " + gib(p.Allocated)
}

// kernels is how much longer the kernels of the plan's step run.
func (r *quietRun) kernels() float64 {
	return r.Profile["plan"].Kernels/r.Profile["base"].Kernels - 1
}

func readQuietRuns(t *testing.T, data []byte) (out []*quietRun) {
	t.Helper()
	for line := range bytes.Lines(data) {
		r := new(quietRun)
		if err := json.Unmarshal(line, r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b *quietRun) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// quietPage is what docs/torch.md says of quiet.py's runs.
func quietPage(runs []*quietRun) string {
	var b strings.Builder
	quietTurns(&b, runs)
	quietEngine(&b, runs)
	return b.String()
}

func quietTurns(b *strings.Builder, runs []*quietRun) {
	b.WriteString("## In turns, with nothing beside\n\n`scripts/steps/quiet.py` on the same kind of GPU, from `planner/testdata/torch/quiet.jsonl.xz`: models whose overhead was not as predicted above, and what is left of the time with others. One process runs three steps without\n" +
		"checkpoints, three under the plan, three with every block checkpointed, three under the plan for a card that leaves as many reserved bytes, three under one that allocates no more, either, and again; medians. A card bounds what is reserved, and a plan is made for that. These steps had no\n" +
		"such bound: where one reserves more, the allocator kept what it gives back under it, or cuDNN took larger workspaces. \"GPU\" is the time of the kernels alone in a profiled step, \"Python\" the share of\n" +
		"the plan's step until Python had issued it: near 100%, the GPU waits for Python, which the prediction does not count.\n\n" +
		"| model | batch | no checkpoints, ms | plan, ms | overhead | of the GPU | predicted | Python | every block | GiB reserved, allocated | plan that reserves no more | GiB | plan that allocates no more, too |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	count := struct{ all, wall, gpu, waits, lower, of, lowerBoth, ofBoth int }{}
	for _, r := range runs {
		if r.Kind != "turns" || r.Plan == nil || len(r.Ms["base"]) == 0 || len(r.Ms["plan"]) == 0 {
			continue
		}
		count.all++
		within := func(x float64) bool { return math.Abs(x-r.Plan.Overhead) <= 0.03 }
		host := r.step("plan", 1) / r.step("plan", 0)
		if within(r.over("plan")) {
			count.wall++
		} else if host > 0.75 {
			count.waits++
		}
		if within(r.kernels()) {
			count.gpu++
		}
		lower, of := r.faster("rival")
		count.lower, count.of = count.lower+lower, count.of+of
		both := "both"
		if p := r.Peaks["rival"].Allocated; p > 0 && float64(p) <= 1.002*float64(r.Peaks["block"].Allocated) {
			both = "rival" // which allocates no more itself
		}
		lower, of = r.faster(both)
		count.lowerBoth, count.ofBoth = count.lowerBoth+lower, count.ofBoth+of
		fmt.Fprintf(b, "| %s | %d | %.1f | %.1f | %s | %s | %s | %.0f%% | %s | %s | %s | %s | %s |\n", r.Name, r.Batch, r.step("base", 0), r.step("plan", 0), percent(r.over("plan")), percent(r.kernels()), percent(r.Plan.Overhead), 100*host,
			percent(r.over("block")), r.peaks("block"), percent(r.over("rival")), r.peaks("rival"), percent(r.over(both)))
	}
	fmt.Fprintf(b, "\nWithin 3 points of the prediction: %d of %d by the step's time, %d of %d by the GPU's. Of the %d others by the step's time, Python takes more than three quarters of the step in %d. Plans for the reserved bytes of every block take less time in %d of %d; those that allocate no more, either, in %d of %d.\n\n",
		count.wall, count.all, count.gpu, count.all, count.all-count.wall, count.waits, count.lower, count.of, count.lowerBoth, count.ofBoth)
}

func quietEngine(b *strings.Builder, runs []*quietRun) {
	b.WriteString("## A training script under its plan\n\nThe scripts of `scripts/steps/trainings` under `memplan validate PLAN --engine torch --script FILE` or `--call MODULE:FUNCTION`, with `--cap` the card's memory; GiB reserved. Other processes planned beside these runs, which disturbs their times.\n\n" +
		"| script | how | precision | batch | card | regions | predicted | measured | predicted, ms | measured, ms | verdict |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range runs {
		if d := r.Document; r.Kind == "engine" && d != nil {
			fmt.Fprintf(b, "| %s | --%s | %s | %d | %s | %d | %s | %s | %.1f | %.1f | %s |\n", r.Name, r.How, d.Model.Precision, d.Model.Batch, r.VRAM, d.Model.Segments, gib(d.Memory.Predicted), gib(d.Memory.Measured), d.Time.Predicted, d.Time.Measured, d.Verdict)
		}
	}
	b.WriteString("\n`memplan.fit`, `memplan.measure` under the cap, and `memplan.compare`:\n\n| model | | predicted | measured | off |\n|---|---|---|---|---|\n")
	for _, r := range runs {
		for _, raw := range r.Rows {
			var name, unit string
			var predicted, measured float64
			if json.Unmarshal(raw, &[]any{&name, &predicted, &measured, &unit}) != nil {
				continue
			}
			show := func(x float64) string {
				if unit == "bytes" {
					return gib(int64(x)) + " GiB"
				}
				return fmt.Sprintf("%.1f ms", x)
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %+.2f%% |\n", r.Name, name, show(predicted), show(measured), 100*(predicted/measured-1))
		}
	}
	b.WriteString("\n")
}

// TestQuietPage: the page counts what the lines say.
func TestQuietPage(t *testing.T) {
	lines := `{"kind": "turns", "name": "a", "batch": 4, "predicted_plan": {"overhead": 0.1}, "ms": {"base": [[10, 2, 4, 5, 1]], "plan": [[11, 3, 4, 6, 1]], "block": [[13, 3, 4, 8, 1]], "rival": [[14, 3, 4, 9, 1]], "both": [[12, 3, 4, 9, 1]]}, "peaks": {"block": {"allocated": 1073741824, "reserved": 2147483648}}, "profile": {"base": {"kernels": 9}, "plan": {"kernels": 13.5}}}
{"kind": "turns", "name": "b", "batch": 8, "predicted_plan": {"overhead": 0.1}, "ms": {"base": [[10, 9, 4, 5, 1], [30, 9, 4, 5, 1], [10, 9, 4, 5, 1]], "plan": [[20, 19, 4, 6, 1]]}, "profile": {"base": {"kernels": 10}, "plan": {"kernels": 11}}}
{"kind": "engine", "name": "c", "how": "script", "vram": "8G", "document": {"verdict": "validated", "memory": {"predictedBytes": 1073741824, "measuredBytes": 2147483648}, "time": {"predictedMs": 1, "measuredMs": 2}, "model": {"batch": 3, "precision": "fp32", "segments": 5}}}
{"kind": "compare", "name": "c", "rows": [["reserved", 1073741824, 2147483648, "bytes"], ["step time", 2, 1, "ms"], true]}`
	page := quietPage(readQuietRuns(t, []byte(lines)))
	for _, want := range []string{
		"| a | 4 | 10.0 | 11.0 | 10.0% | 50.0% | 10.0% | 27% | 30.0% | 2.00, 1.00 | 40.0% | - | 20.0% |",
		"| b | 8 | 10.0 | 20.0 | 100.0% | 10.0% | 10.0% | 95% | - | - | - | - | - |",
		"1 of 2 by the step's time, 1 of 2 by the GPU's. Of the 1 others by the step's time, Python takes more than three quarters of the step in 1. Plans for the reserved bytes of every block take less time in 0 of 1; those that allocate no more, either, in 1 of 1.",
		"| c | --script | fp32 | 3 | 8G | 5 | 1.00 | 2.00 | 1.0 | 2.0 | validated |",
		"| c | reserved | 1.00 GiB | 2.00 GiB | -50.00% |", "| c | step time | 2.0 ms | 1.0 ms | +100.00% |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}

func quietRuns(t *testing.T) []*quietRun {
	t.Helper()
	return readQuietRuns(t, testdata.Unpacked(t, "testdata/torch/quiet.jsonl.xz"))
}
