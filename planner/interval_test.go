package planner

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// A calibrationRun is a measured run beside what its prediction rests on.
type calibrationRun struct {
	library, model       string
	train                bool
	reserved, allocated  int64 // predicted
	measured, measuredAt int64 // reserved and allocated bytes
	found                map[string]finding
	ops                  []string
}

// transformersModels are those of the zoo, of the models held apart and of the twelve
// that come from transformers, by their architectures; plainModels are plain
// code. The others are torchvision's.
var (
	transformersModels = regexp.MustCompile(`bert|gpt|llama|bart|bloom|deit|dinov2|gemma|mistral|phi|qwen|mpnet|electra|opt_|t5_|whisper|mobilevit|hf_resnet`)
	plainModels        = regexp.MustCompile(`^(mlp|unet|lstm_lm|transformer|convnet_h|segnet_h)$`)
)

func libraryOf(name string) string {
	switch {
	case plainModels.MatchString(name):
		return "plain"
	case transformersModels.MatchString(name):
		return "transformers"
	}
	return "torchvision"
}

// calibrationRuns predicts every run that was measured, and keeps what its
// interval is made of.
func calibrationRuns(t *testing.T) (runs []*calibrationRun) {
	for _, c := range collections(t) {
		for _, r := range c.runs(t) {
			if a, err := c.open(t, r.Name).answer(t.Context(), r.config()); err == nil {
				runs = append(runs, calibrationOf(c, libraryOf(r.Name), &r, a))
			}
		}
	}
	for round := 1; round <= allRounds; round++ {
		c := roundOf(t, round)
		for _, r := range exportedRuns(t, round) {
			if _, run := askedOnce(t, c, &r); run != nil { // TestRounds counts what is refused
				runs = append(runs, run)
			}
		}
	}
	return runs
}

// calibrationOf is what an answer about a measured run says of it.
func calibrationOf(c *collection, library string, r *truth, a *answer) *calibrationRun {
	x := &calibrationRun{library: library, model: c.name + " " + r.Name, train: r.Mode == "train", reserved: a.ev.res.Reserved, allocated: a.ev.res.Allocated,
		measured: r.Reserved, measuredAt: r.Peak, found: map[string]finding{}, ops: a.ev.operators()}
	for s, f := range a.findings() {
		if s.Code != unproven {
			x.found[s.Code] = f
		}
	}
	return x
}

const (
	unproven     = "unproven-operator"
	history      = "allocator-history"
	provenWithin = 0.05 // of a model's runs that prove its operators, above what is predicted
	covered      = 0.99 // of the runs with a source, by its share
)

// excess is what a run took above its prediction and the bytes that its
// sources add, as a part of the prediction; below, what it did not take.
func (r *calibrationRun) excess() float64 {
	n := r.measured - r.reserved
	for _, f := range r.found {
		n -= f.high
	}
	return float64(n) / float64(r.reserved)
}

func (r *calibrationRun) below() float64 {
	n := r.reserved - r.measured
	for _, f := range r.found {
		n -= f.low
	}
	return float64(n) / float64(r.reserved)
}

// A prover says which operators models of other libraries prove.
type prover map[bool]map[string]map[string]bool // training, operator, libraries

// provers finds the models all of whose runs are as predicted.
func provers(runs []*calibrationRun) prover {
	p := prover{true: {}, false: {}}
	type key struct {
		model string
		train bool
	}
	wrong := map[key]bool{}
	for _, r := range runs {
		if r.excess() > provenWithin {
			wrong[key{r.model, r.train}] = true
		}
	}
	for _, r := range runs {
		if wrong[key{r.model, r.train}] {
			continue
		}
		for _, op := range r.ops {
			if p[r.train][op] == nil {
				p[r.train][op] = map[string]bool{}
			}
			p[r.train][op][r.library] = true
		}
	}
	return p
}

// unproven reports whether a run has an operator that no library but its own
// and the one left out proves.
func (p prover) unproven(r *calibrationRun, out string) bool {
	return slices.ContainsFunc(r.ops, func(op string) bool {
		for l := range p[r.train][op] {
			if l != r.library && l != out {
				return false
			}
		}
		return true
	})
}

// quantile is that of a list, which it sorts; 0 of none.
func quantile(list []float64, p float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[min(int(float64(len(list))*p), len(list)-1)]
}

// fit calibrates on the runs of all libraries but one.
func (p prover) fit(runs []*calibrationRun, out string) *calibration {
	c := &calibration{shares: map[string]share{}}
	var of [][3]float64 // what is left of each run: above, below, allocated above
	var in []*calibrationRun
	for _, r := range runs {
		if r.library != out {
			in = append(in, r)
			of = append(of, [3]float64{r.excess(), r.below(), relative(r.measuredAt, r.allocated)})
		}
	}
	for i := range Sources {
		s := &Sources[i]
		var left [3][]float64
		for k, r := range in {
			has := r.found[s.Code].is || s.Code == unproven && p.unproven(r, out)
			if s.Code == history { // of runs that rest on nothing else
				has = len(slices.DeleteFunc(slices.Collect(maps.Keys(r.found)), func(c string) bool { return c == history || c == "workspace-bound" })) == 0 && !p.unproven(r, out)
			}
			if has {
				for j := range left {
					left[j] = append(left[j], of[k][j])
				}
			}
		}
		x := c.limit(s, share{quantile(left[0], covered), quantile(left[1], covered), quantile(left[2], covered)})
		c.shares[s.Code] = x
		x = c.share(s)
		for k, r := range in {
			if r.found[s.Code].is || s.Code == unproven && p.unproven(r, out) {
				of[k][0], of[k][1], of[k][2] = of[k][0]-x.high, of[k][1]-x.low, of[k][2]-x.kept
			}
		}
	}
	return c
}

// limit rounds shares up to half a percent and keeps them within sense.
func (*calibration) limit(s *Source, x share) share {
	up := func(v float64) float64 { return max(float64(int(v*200+0.999))/200, 0) }
	x = share{up(x.high), min(up(x.low), 1), min(up(x.kept), mostKept)}
	switch {
	case s.Code == history:
		x.kept = 0 // headroomShare
	case s.exact:
		x = share{}
	case s.workspace:
		x.kept = 0
	}
	return x
}

// interval is that of a run by a calibration.
func (c *calibration) interval(r *calibrationRun, unprovenToo bool) (low, high int64) {
	low, high = r.reserved, r.reserved
	for i := range Sources {
		s := &Sources[i]
		f := r.found[s.Code]
		if s.Code == unproven {
			f.is = unprovenToo
		}
		if f.is {
			x := c.share(s)
			high += f.high + part(r.reserved, x.high)
			low -= f.low + part(r.reserved, x.low)
		}
	}
	return max(low, 0), high
}

// A coverage counts how often intervals hold.
type coverage struct {
	runs, above, below int
	widths             []float64 // of the upper ends over what was measured
}

func (v *coverage) add(r *calibrationRun, low, high int64) {
	v.runs++
	if r.measured > high {
		v.above++
	}
	if r.measured < low {
		v.below++
	}
	v.widths = append(v.widths, relative(high, r.measured))
}

func (v *coverage) row(name string) string {
	return fmt.Sprintf("| %s | %d | %d (%.1f%%) | %d (%.1f%%) | %.1f%% |\n", name, v.runs, v.above, 100*float64(v.above)/float64(v.runs), v.below, 100*float64(v.below)/float64(v.runs), 100*quantile(v.widths, 0.5))
}

// TestIntervalCalibration calibrates the sources of uncertainty without one
// library after the other, and asks whether the intervals hold for the runs of
// the one left out; what is built in is calibrated on all.
func TestIntervalCalibration(t *testing.T) {
	testdata.Sequential(t)
	if sharedDir(t) == "" {
		t.Skip("the calibration is about all collections")
	}
	runs := calibrationRuns(t)
	p := provers(runs)
	libraries := map[string]bool{}
	for _, r := range runs {
		libraries[r.library] = true
	}
	var b strings.Builder
	b.WriteString("| library left out | runs | above the interval | below it | upper end above what was measured: median |\n|---|---|---|---|---|\n")
	all, today := &coverage{}, &coverage{}
	for _, l := range slices.Sorted(maps.Keys(libraries)) {
		c, v := p.fit(runs, l), &coverage{}
		for _, r := range runs {
			if r.library == l {
				low, high := c.interval(r, p.unproven(r, l))
				v.add(r, low, high)
				all.add(r, low, high)
				if r.measured > high {
					t.Logf("%s: %s train %v: measured %d, predicted %d, interval to %d", l, r.model, r.train, r.measured, r.reserved, high)
				}
			}
		}
		b.WriteString(v.row(l))
	}
	b.WriteString(all.row("**all, each with its library left out**"))
	fitted := p.fit(runs, "")
	fitted.proven = p.all()
	offloadMeasured(t, func(r, _ offloadRun, a, _ *answer) { // within half a percent each, or TestOffloadMeasured fails
		if a.ev.res.Reserved == r.Reserved {
			for _, op := range a.ev.operators() {
				fitted.proven[true][op] = true
			}
		}
	})
	for _, r := range runs {
		low, high := fitted.interval(r, slices.ContainsFunc(r.ops, func(op string) bool { return !fitted.proven[r.train][op] }))
		today.add(r, low, high)
	}
	b.WriteString(today.row("none: the intervals that memplan prints"))
	if low := float64(all.above) / float64(all.runs); low > 0.01 {
		t.Errorf("the upper end is too low for %d of %d runs of libraries left out, more than 1%%", all.above, all.runs)
	}
	b.WriteString("\n" + sourcesTable(fitted, runs, p))
	writeSection(t, b.String())
	checkCalibration(t, fitted)
}

// all are the operators that any library proves.
func (p prover) all() map[bool]map[string]bool {
	out := map[bool]map[string]bool{true: {}, false: {}}
	for train, ops := range p {
		for op := range ops {
			out[train][op] = true
		}
	}
	return out
}

// sourcesTable lists the sources with their rules and what they rest on.
func sourcesTable(c *calibration, runs []*calibrationRun, p prover) string {
	var b strings.Builder
	b.WriteString("| source | adds above | and below | bytes beside | measured with it |\n|---|---|---|---|---|\n")
	for i := range Sources {
		s := &Sources[i]
		n, of := 0, map[string]bool{}
		for _, r := range runs {
			if r.found[s.Code].is || s.Code == unproven && p.unproven(r, "") {
				n++
				of[r.library] = true
			}
		}
		rests := "nothing: the shares are chosen"
		if n > 0 {
			rests = fmt.Sprintf("%d runs of %d libraries", n, len(of))
		}
		x := c.share(s)
		fmt.Fprintf(&b, "| %s | %.1f%% | %.1f%% | %s | %s |\n", s.Code, 100*x.high, 100*x.low, s.Rule, rests)
	}
	return b.String()
}

// The section of docs/accuracy.md that this test writes.
const sectionBegin, sectionEnd = "<!-- interval: go test ./planner -run IntervalCalibration -update -->\n", "<!-- end of interval -->\n"

// intervalSection is what a page has between the marks, with them.
func intervalSection(page string) string {
	_, rest, _ := strings.Cut(page, sectionBegin)
	section, _, ok := strings.Cut(rest, sectionEnd)
	if !ok {
		return ""
	}
	return sectionBegin + section + sectionEnd
}

func writeSection(t *testing.T, table string) {
	path := filepath.Join("..", "docs", "accuracy.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := intervalSection(string(page))
	section := sectionBegin + table + sectionEnd
	switch {
	case old == section:
	case *update && old != "":
		if err := os.WriteFile(path, []byte(strings.Replace(string(page), old, section, 1)), 0o644); err != nil { //nolint:gosec // a page for everybody to read
			t.Fatal(err)
		}
	default:
		t.Errorf("docs/accuracy.md is stale: run go test ./planner -run IntervalCalibration -update\n%s", section)
	}
}

// checkCalibration compares what is built in with a calibration.
func checkCalibration(t *testing.T, c *calibration) {
	var b strings.Builder
	b.WriteString("# How far measured runs lie from predictions, by source of uncertainty: written by go test ./planner -run IntervalCalibration -update.\n" +
		"# share CODE: parts of reserved bytes above and below a prediction, and of allocated bytes that a budget keeps free.\n" +
		"# proven MODE: operators of which a model was measured whose runs are all as predicted.\n")
	for i := range Sources {
		x := c.shares[Sources[i].Code]
		fmt.Fprintf(&b, "share %s %.3f %.3f %.3f\n", Sources[i].Code, x.high, x.low, x.kept)
	}
	for _, train := range []bool{true, false} {
		mode := map[bool]string{true: "train", false: "infer"}[train]
		for list := range slices.Chunk(slices.Sorted(maps.Keys(c.proven[train])), 10) {
			fmt.Fprintf(&b, "proven %s %s\n", mode, strings.Join(list, " "))
		}
	}
	testdata.Generated(t, "calibration.txt", b.String(), "go test ./planner -run IntervalCalibration", *update)
}
