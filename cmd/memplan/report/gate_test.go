package report

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/memplan/memplan/planner"
)

// gate has n findings, every third of which failed.
func gate(n int) *Gate {
	g := &Gate{Path: ".memplan.yaml"}
	for i := range n {
		ok := i%3 != 0
		g.Findings = append(g.Findings, planner.Finding{
			Verdict: planner.Verdict{Model: fmt.Sprintf("models/m|%d.onnx", i), Rule: planner.Rules[i%len(planner.Rules)].Name, OK: &ok, Value: "1", Limit: "2", Message: "1, at most 2 allowed"},
			Line:    i + 1,
		})
	}
	return g
}

func TestGates(t *testing.T) {
	for _, n := range []int{0, 1, 2, 7, 500} {
		g := gate(n)
		failed := (n + 2) / 3
		if g.Failed() != failed {
			t.Errorf("%d of %d failed, want %d", g.Failed(), n, failed)
		}
		name := fmt.Sprint(n, " findings")
		checkMarkdown(t, name, written(t, Gates, "markdown", g, Style{}))
		if got := checkSARIF(t, name, written(t, Gates, "sarif", g, Style{})); got != failed {
			t.Errorf("%s: %d results, want %d", name, got, failed)
		}
		var doc GateDocument
		if err := json.Unmarshal([]byte(written(t, Gates, "json", g, Style{})), &doc); err != nil || doc.OK != (failed == 0) || len(doc.Verdicts) != n {
			t.Errorf("%s: JSON says ok %v with %d verdicts, %v", name, doc.OK, len(doc.Verdicts), err)
		}
		text := written(t, Gates, "text", g, Style{})
		if got := strings.Count(text, "FAIL"); got != failed {
			t.Errorf("%s: the text has %d failures, want %d", name, got, failed)
		}
	}
}

func TestSummary(t *testing.T) {
	for n, want := range map[int]string{0: "no rules apply", 1: "1 of 1 rule failed", 7: "3 of 7 rules failed"} {
		if got := gate(n).Summary(); got != want {
			t.Errorf("%d findings: %q, want %q", n, got, want)
		}
	}
	g := gate(3)
	if g.Findings = g.Findings[1:]; g.Summary() != "all 2 rules hold" {
		t.Error(g.Summary())
	}
	if g.Findings = g.Findings[1:]; g.Summary() != "1 rule holds" {
		t.Error(g.Summary())
	}
	g.Findings[0].OK = nil
	if word(&g.Findings[0]) != "?" {
		t.Error("a rule that cannot tell has an answer")
	}
}

// A difference in all formats: the parts add up to the whole in what is read
// back, and the text fits the page.
func TestDiffs(t *testing.T) {
	var models []*planner.Model
	for _, name := range []string{"mlp.onnx", "resnet50.onnx"} {
		m, err := planner.Open(filepath.Join("..", "..", "..", "models", name))
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, m)
	}
	d, err := planner.Compare(t.Context(), models[0], models[1], planner.Config{Batch: 8}, planner.Config{Batch: 4, Precision: "amp-bf16"})
	if err != nil {
		t.Fatal(err)
	}
	var back planner.Diff
	if err := json.Unmarshal([]byte(written(t, Diffs, "json", d, Style{})), &back); err != nil {
		t.Fatal(err)
	}
	var categories, modules int64
	for _, c := range back.Categories {
		categories += c.Delta
	}
	for _, m := range back.Modules {
		modules += m.Delta
	}
	if delta := back.Head.AllocatedBytes - back.Base.AllocatedBytes; categories != delta || modules != delta || back.DeltaBytes != delta {
		t.Errorf("categories %d, modules %d, deltaBytes %d, want %d", categories, modules, back.DeltaBytes, delta)
	}
	checkMarkdown(t, "diff", written(t, Diffs, "markdown", d, Style{}))
	for _, width := range []int{80, 120} {
		for _, line := range strings.Split(written(t, Diffs, "text", d, Style{Width: width}), "\n") {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("%d columns of %d: %q", n, width, line)
			}
		}
	}
}

func TestChange(t *testing.T) {
	for _, tt := range []struct {
		delta, base int64
		want        string
	}{
		{0, 5, "~"}, {0, 0, "~"}, {512, 0, "+512 B"}, {-512, 1024, "-512 B (-50.00%)"}, {1024, 1 << 20, "+1.000 KiB (+0.10%)"}, {1 << 20, 4, "+1.000 MiB"},
	} {
		if got := change(tt.delta, tt.base); got != tt.want {
			t.Errorf("change(%d, %d) = %q, want %q", tt.delta, tt.base, got, tt.want)
		}
	}
}

// A message in SARIF that has the syntax of a link has it no longer.
func TestSARIFText(t *testing.T) {
	g := gate(1)
	g.Findings[0].Message, g.Findings[0].Model = "see [here](http://evil)", "[m](http://evil)\x1b[2J"
	text := written(t, Gates, "sarif", g, Style{})
	checkSARIF(t, "links", text)
	if !strings.Contains(text, "[here] (http://evil)") || !strings.Contains(text, `[m] (http://evil)\\x1b[2J`) {
		t.Error(text)
	}
}
