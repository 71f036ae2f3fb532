package planner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// A torchSteps is training steps that scripts/steps/plans.py ran on a GPU: peaks
// in bytes over all of them, and milliseconds of each.
type torchSteps struct {
	Allocated int64     `json:"allocated"`
	Reserved  int64     `json:"reserved"`
	Ms        []float64 `json:"ms"`
	Err       string    `json:"err"`
}

func (s *torchSteps) ran() bool { return s != nil && s.Err == "" && len(s.Ms) > 0 }

// warm is the median step from the third on.
func (s *torchSteps) warm() float64 { return median(slices.Clone(s.Ms[min(2, len(s.Ms)-1):])) }

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// over is how much longer a step takes than another, a share of that.
func (s *torchSteps) over(base *torchSteps) float64 { return s.warm()/base.warm() - 1 }

// A torchWay is another way to save memory, and the plan that takes no more.
type torchWay struct {
	torchSteps
	Blocks    int             `json:"blocks"`
	Plan      *torchSteps     `json:"plan"`
	Refused   []string        `json:"refused"`
	Predicted *torchPredicted `json:"predicted"`
}

type torchPredicted struct {
	Allocated int64   `json:"allocated"`
	Reserved  int64   `json:"reserved"`
	Upper     int64   `json:"upper"`
	Overhead  float64 `json:"overhead"`
	Regions   int     `json:"regions"`
}

type torchEqual struct {
	Equal bool    `json:"equal"`
	Off   float64 `json:"off"`
}

// A torchRun is a line of plans.py.
type torchRun struct {
	Kind      string                 `json:"kind"` // about, prepare, refused, plan, others, compile, first
	Name      string                 `json:"name"`
	Library   string                 `json:"library"`
	Precision string                 `json:"precision"`
	Cap       int                    `json:"cap"` // GiB
	Factor    float64                `json:"factor"`
	Batch     int                    `json:"batch"`
	Err       string                 `json:"err"`
	Applied   bool                   `json:"applied"`
	Predicted torchPredicted         `json:"predicted"`
	Capped    *torchSteps            `json:"capped"`
	Plan      *torchSteps            `json:"plan"`
	Base      *torchSteps            `json:"base"`
	Ways      map[string]*torchWay   `json:"ways"`
	Budgets   map[string]*torchSteps `json:"budgets"`
	Gradients *struct {
		Again torchEqual `json:"again"` // two runs without checkpoints
		Plan  torchEqual `json:"plan"`
		Err   string     `json:"err"`
	} `json:"gradients"`
	GPU      string            `json:"gpu"`
	Versions map[string]string `json:"versions"`
	Seconds  float64           `json:"seconds"`
	Reason   []string          `json:"reason"`
	Commands []struct {
		Command string  `json:"command"`
		Seconds float64 `json:"seconds"`
		RC      int     `json:"rc"`
	} `json:"commands"`
}

// allocated is the measured peak under the plan: under the cap where that ran.
func (r *torchRun) allocated() int64 {
	for _, s := range []*torchSteps{r.Capped, r.Plan} {
		if s.ran() {
			return s.Allocated
		}
	}
	return 0
}

func readTorchRuns(t *testing.T, data []byte) []*torchRun {
	t.Helper()
	var out []*torchRun
	for line := range bytes.Lines(data) {
		r := new(torchRun)
		if err := json.Unmarshal(line, r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b *torchRun) int {
		return strings.Compare(fmt.Sprint(a.Library, " ", a.Name, fmt.Sprintf(" %02d %.1f", a.Cap, a.Factor)), fmt.Sprint(b.Library, " ", b.Name, fmt.Sprintf(" %02d %.1f", b.Cap, b.Factor)))
	})
	return out
}

func ofKind(runs []*torchRun, kind string) []*torchRun {
	return slices.DeleteFunc(slices.Clone(runs), func(r *torchRun) bool { return r.Kind != kind })
}

func percent(x float64) string {
	if math.IsNaN(x) {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*x)
}

// torchPage is docs/torch.md.
func torchPage(runs []*torchRun, quiet []*quietRun) string {
	var b strings.Builder
	b.WriteString("# Plans in PyTorch, measured\n\nWritten by `go test ./planner -run TorchDoc -update` from `planner/testdata/torch/plans.jsonl.xz`, which `scripts/steps/plans.py` measured.")
	for _, r := range ofKind(runs, "about") {
		fmt.Fprintf(&b, " %s; PyTorch %s, transformers %s, timm %s, diffusers %s, torchvision %s.", r.GPU, r.Versions["torch"], r.Versions["transformers"], r.Versions["timm"], r.Versions["diffusers"], r.Versions["torchvision"])
	}
	b.WriteString("\n\nEach model is exported and planned by the Python package on that machine, for a card of 8, 16 or 24 GiB and a batch of 1.2, 1.5 or 2 times the largest that fits it without checkpoints (as predicted).\n" +
		"PyTorch's allocator may reserve the card's memory less the CUDA context. Weights are random, AdamW, times the median of the third to fifth step; overhead is the step's time over that of\n" +
		"the same batch without checkpoints and without a cap. Gradients are compared to the bit at two samples, with the same random numbers.\n\n")
	torchTargets(&b, runs)
	torchPlans(&b, ofKind(runs, "plan"))
	torchOthers(&b, runs)
	b.WriteString(quietPage(quiet))
	torchFailures(&b, runs)
	return b.String()
}

// torchTargets is what was to be reached, and what was.
func torchTargets(b *strings.Builder, runs []*torchRun) {
	plans := ofKind(runs, "plan")
	applied, capped, exact, gradients, unrepeatable := 0, 0, 0, 0, 0
	models, libraries := map[string]bool{}, map[string]bool{}
	var off, over []float64
	for _, r := range plans {
		models[r.Name], libraries[r.Library] = true, true
		if r.Applied {
			applied++
		}
		if r.Capped.ran() {
			capped++
		}
		if n := r.allocated(); n > 0 {
			off = append(off, math.Abs(float64(r.Predicted.Allocated)/float64(n)-1))
		}
		if r.Plan.ran() && r.Base.ran() {
			over = append(over, 100*math.Abs(r.Plan.over(r.Base)-r.Predicted.Overhead))
		}
		switch g := r.Gradients; {
		case g == nil || g.Err != "":
		case g.Plan.Equal:
			exact++
			gradients++
		case !g.Again.Equal:
			unrepeatable++
		default:
			gradients++
		}
	}
	within := len(slices.DeleteFunc(slices.Clone(over), func(x float64) bool { return x > 3 }))
	worst := 0.0
	if len(off) > 0 {
		worst = slices.Max(off)
	}
	fmt.Fprintf(b, "%d plans of %d models of %d libraries.\n\n| what | target | measured |\n|---|---|---|\n", len(plans), len(models), len(libraries))
	fmt.Fprintf(b, "| plan applied | all | %d of %d |\n| five steps under the cap | all | %d of %d |\n", applied, len(plans), capped, len(plans))
	fmt.Fprintf(b, "| allocated peak against the plan | median 0.1%%, worst 2%% | median %.2f%%, worst %.2f%% |\n", 100*median(slices.Clone(off)), 100*worst)
	fmt.Fprintf(b, "| overhead against the plan | within 3 points | %d of %d; median %.1f points |\n", within, len(over), median(slices.Clone(over)))
	for _, way := range []string{"every block", "every_n_layers", "offload"} {
		lower, of := 0, 0
		for _, r := range ofKind(runs, "others") {
			if w := r.Ways[way]; w.compared(r.Base) {
				of++
				if w.Plan.warm() < w.warm() {
					lower++
				}
			}
		}
		fmt.Fprintf(b, "| less time than %s at its peak | every model | %d of %d |\n", way, lower, of)
	}
	fmt.Fprintf(b, "| gradients as without checkpoints, to the bit | all | %d of %d", exact, gradients)
	if unrepeatable > 0 {
		fmt.Fprintf(b, "; %d more do not repeat without checkpoints either", unrepeatable)
	}
	b.WriteString(" |\n")
	for _, r := range ofKind(runs, "first") {
		fmt.Fprintf(b, "| from `pip install` to a fitting step, %s | 60 s | %s |\n", r.Name, firstOf(r))
	}
	b.WriteString("\n")
}

// firstOf is what a new user's commands took.
func firstOf(r *torchRun) string {
	parts := []string{}
	for _, c := range r.Commands {
		parts = append(parts, fmt.Sprintf("%.0f s", c.Seconds))
		if c.RC != 0 {
			return "failed"
		}
	}
	if r.Err != "" {
		return r.Err
	}
	return fmt.Sprintf("%.0f s (%s), beside the other measurements", r.Seconds, strings.Join(parts, " and "))
}

// compared reports that a way and its plan ran, the plan with no higher peak.
func (w *torchWay) compared(base *torchSteps) bool {
	return w != nil && w.ran() && w.Plan.ran() && base.ran() && float64(w.Plan.Allocated) <= 1.005*float64(w.Allocated)
}

func gib(n int64) string { return fmt.Sprintf("%.2f", float64(n)/(1<<30)) }

func torchPlans(b *strings.Builder, plans []*torchRun) {
	b.WriteString("## Plans\n\nPeaks are GiB allocated. \"off\" is the prediction over the measurement.\n\n| model | precision | card | batch | regions | allocated | off | reserved | step, ms | overhead | predicted | five steps under the cap | gradients |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range plans {
		under := "no"
		if r.Capped.ran() {
			under = "yes"
		} else if r.Capped != nil {
			under = "`" + clipped(r.Capped.Err) + "`"
		}
		allocated, off, reserved, ms, overhead := "-", "-", "-", "-", "-"
		if n := r.allocated(); n > 0 {
			allocated, off = gib(n), fmt.Sprintf("%+.2f%%", 100*(float64(r.Predicted.Allocated)/float64(n)-1))
		}
		if r.Capped.ran() {
			reserved = gib(r.Capped.Reserved)
		}
		if r.Plan.ran() {
			ms = fmt.Sprintf("%.0f", r.Plan.warm())
			if r.Base.ran() {
				overhead = percent(r.Plan.over(r.Base))
			}
		}
		bits := ""
		switch g := r.Gradients; {
		case g == nil:
		case g.Err != "":
			bits = "`" + clipped(g.Err) + "`"
		case g.Plan.Equal:
			bits = "equal"
		case !g.Again.Equal:
			bits = "do not repeat"
		default:
			bits = fmt.Sprintf("off by %.1g", g.Plan.Off)
		}
		if !r.Applied {
			under = "not applied: `" + clipped(r.Err) + "`"
		}
		fmt.Fprintf(b, "| %s | %s | %d GiB | %d (%.1fx) | %d | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Name, r.Precision, r.Cap, r.Batch, r.Factor, r.Predicted.Regions, allocated, off, reserved, ms, overhead, percent(r.Predicted.Overhead), under, bits)
	}
	b.WriteString("\n")
}

// clipped is the beginning of an error, for a cell.
func clipped(s string) string {
	s = strings.NewReplacer("|", "/", "`", "'", "\n", " ").Replace(s)
	return s[:min(len(s), 80)]
}

func torchOthers(b *strings.Builder, runs []*torchRun) {
	b.WriteString("## Other ways, and the plan at their peak\n\n\"every block\" is `torch.utils.checkpoint` around each block; `every_n_layers` around every second layer, as transformers has it; \"offload\" keeps what blocks are given in\n" +
		"the processor's memory (`save_on_cpu`), as Unsloth does. The plan is made for a budget at which it allocates and reserves no more than the other way did.\n\n| model | batch | way | blocks | allocated, GiB | overhead | plan's allocated | plan's overhead |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range ofKind(runs, "others") {
		for _, way := range []string{"every block", "every_n_layers", "offload"} {
			w := r.Ways[way]
			if w == nil {
				continue
			}
			if !w.ran() || !r.Base.ran() {
				fmt.Fprintf(b, "| %s | %d | %s | %d | `%s` | | | |\n", r.Name, r.Batch, way, w.Blocks, clipped(w.Err))
				continue
			}
			plan, overhead := "none fits", ""
			if w.Plan.ran() {
				plan, overhead = gib(w.Plan.Allocated), percent(w.Plan.over(r.Base))
			} else if w.Plan != nil {
				plan = "`" + clipped(w.Plan.Err) + "`"
			}
			fmt.Fprintf(b, "| %s | %d | %s | %d | %s | %s | %s | %s |\n", r.Name, r.Batch, way, w.Blocks, gib(w.Allocated), percent(w.over(r.Base)), plan, overhead)
		}
	}
	b.WriteString("\n### torch.compile\n\n`activation_memory_budget` of 0.5 under `torch.compile`, and the plan in eager PyTorch at its peak.\n\n| model | batch | eager, ms | compiled, ms | GiB | budget 0.5, ms | GiB | plan, ms | GiB |\n|---|---|---|---|---|---|---|---|---|\n")
	cell := func(s *torchSteps) (string, string) {
		switch {
		case s == nil:
			return "-", "-"
		case s.ran():
			return fmt.Sprintf("%.0f", s.warm()), gib(s.Allocated)
		}
		return "`" + clipped(s.Err) + "`", "-"
	}
	for _, r := range ofKind(runs, "compile") {
		eager, _ := cell(r.Base)
		whole, wholeGiB := cell(r.Budgets["1.0"])
		half, halfGiB := cell(r.Budgets["0.5"])
		plan, planGiB := cell(r.Plan)
		fmt.Fprintf(b, "| %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", r.Name, r.Batch, eager, whole, wholeGiB, half, halfGiB, plan, planGiB)
	}
	b.WriteString("\n")
}

// torchFailures lists what did not run, and why.
func torchFailures(b *strings.Builder, runs []*torchRun) {
	b.WriteString("## What did not run\n\n")
	n := 0
	for _, r := range runs {
		switch {
		case r.Kind == "refused" && len(r.Reason) > 0:
			fmt.Fprintf(b, "- %s at batch %d (%.1fx) for %d GiB: no plan; %s\n", r.Name, r.Batch, r.Factor, r.Cap, r.Reason[len(r.Reason)-1])
		case r.Err != "" && r.Kind != "about":
			fmt.Fprintf(b, "- %s (%s): `%s`\n", r.Name, r.Kind, clipped(r.Err))
		default:
			n++
		}
	}
	if n == len(runs) {
		b.WriteString("Nothing.\n")
	}
}

// TestTorchDoc holds docs/torch.md against its measurements.
func TestTorchDoc(t *testing.T) {
	data := filepath.Join("testdata", "torch", "plans.jsonl.xz")
	page, path := torchPage(readTorchRuns(t, testdata.Unpacked(t, data)), quietRuns(t)), filepath.Join("..", "docs", "torch.md")
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old, err := os.ReadFile(path); err != nil || string(old) != page {
		t.Errorf("docs/torch.md is stale (%v): run go test ./planner -run TorchDoc -update\n%s", err, page)
	}
}

// TestTorchPage: the page counts what the lines say.
func TestTorchPage(t *testing.T) {
	const steps = `{"allocated": %d, "reserved": 5000, "ms": [90, 80, %v, %v, %v]}`
	s := func(allocated int, ms float64) string { return fmt.Sprintf(steps, allocated, ms, ms, ms) }
	lines := []string{
		`{"kind": "about", "gpu": "a card", "versions": {"torch": "2.11.0"}}`,
		`{"kind": "plan", "name": "b", "library": "two", "cap": 8, "factor": 1.2, "batch": 12, "applied": true, "predicted": {"allocated": 1010, "overhead": 0.1, "regions": 3}, "capped": ` + s(1000, 9) + `, "plan": ` + s(1000, 11) + `, "base": ` + s(3000, 10) + `, "gradients": {"again": {"equal": true}, "plan": {"equal": true}}}`,
		`{"kind": "plan", "name": "a", "library": "one", "cap": 16, "factor": 2, "batch": 20, "applied": true, "predicted": {"allocated": 900, "overhead": 0.1}, "capped": {"err": "OutOfMemoryError: no"}, "plan": ` + s(1000, 15) + `, "base": ` + s(3000, 10) + `, "gradients": {"again": {"equal": false}, "plan": {"equal": false, "off": 0.5}}}`,
		`{"kind": "plan", "name": "c", "library": "one", "cap": 24, "factor": 1.5, "applied": false, "err": "MemplanError: why | not"}`,
		`{"kind": "others", "name": "a", "library": "one", "batch": 20, "base": ` + s(3000, 10) + `, "ways": {"every block": {"blocks": 4, "allocated": 1000, "reserved": 5000, "ms": [1, 1, 13], "plan": ` + s(1001, 11) + `}, "offload": {"blocks": 4, "allocated": 900, "reserved": 5000, "ms": [1, 1, 14], "plan": ` + s(1000, 11) + `}}}`,
		`{"kind": "first", "name": "gpt2", "seconds": 31, "commands": [{"command": "pip", "seconds": 3, "rc": 0}, {"command": "python", "seconds": 28, "rc": 0}]}`,
		`{"kind": "refused", "name": "c", "library": "one", "cap": 8, "factor": 2, "batch": 4, "reason": ["too much"]}`,
	}
	page := torchPage(readTorchRuns(t, []byte(strings.Join(lines, "\n"))), nil)
	for _, want := range []string{
		"3 plans of 3 models of 2 libraries.",
		"| plan applied | all | 2 of 3 |",
		"| five steps under the cap | all | 1 of 3 |",
		"| median 5.50%, worst 10.00% |",
		"| within 3 points | 1 of 2; median 20.0 points |",
		"| less time than every block at its peak | every model | 1 of 1 |",
		"| less time than offload at its peak | every model | 0 of 0 |", // its plan took more
		"to the bit | all | 1 of 1; 1 more do not repeat without checkpoints either |",
		"gpt2 | 60 s | 31 s (3 s and 28 s), beside the other measurements |",
		"| yes | equal |",
		"not applied: `MemplanError: why / not`",
		"- c at batch 4 (2.0x) for 8 GiB: no plan; too much",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}
