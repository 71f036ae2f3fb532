package report

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/memplan/memplan/graph"
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
		checkGateCI(t, name, g)
		text := written(t, Gates, "text", g, Style{})
		if got := strings.Count(text, "FAIL"); got != failed {
			t.Errorf("%s: the text has %d failures, want %d", name, got, failed)
		}
	}
}

// checkGateCI reads back what CI systems read: each counts the same failures.
func checkGateCI(t *testing.T, name string, g *Gate) {
	t.Helper()
	var suites struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Suites   []struct {
			Tests int `xml:"tests,attr"`
			Cases []struct {
				Name    string    `xml:"name,attr"`
				Failure *struct{} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal([]byte(written(t, Gates, "junit", g, Style{})), &suites); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	cases, failed := 0, 0
	for _, s := range suites.Suites {
		if s.Tests != len(s.Cases) {
			t.Errorf("%s: a suite of %d cases says %d", name, len(s.Cases), s.Tests)
		}
		for _, c := range s.Cases {
			if cases++; c.Failure != nil {
				failed++
			}
		}
	}
	if cases != len(g.Findings) || failed != g.Failed() || suites.Tests != cases || suites.Failures != failed {
		t.Errorf("%s: JUnit has %d cases and %d failures and says %d and %d", name, cases, failed, suites.Tests, suites.Failures)
	}
	var issues []codeQuality
	if err := json.Unmarshal([]byte(written(t, Gates, "gitlab", g, Style{})), &issues); err != nil || len(issues) != failed {
		t.Errorf("%s: %d code quality issues of %d failures, %v", name, len(issues), failed, err)
	}
	prints := map[string]bool{}
	for _, i := range issues {
		if prints[i.Fingerprint] || i.Severity != "critical" || i.Location.Path == "" || i.Location.Lines.Begin < 1 {
			t.Errorf("%s: issue %+v", name, i)
		}
		prints[i.Fingerprint] = true
	}
	annotations := written(t, Gates, "github", g, Style{})
	if n := strings.Count(annotations, "::error file="); n != failed || !strings.HasSuffix(annotations, "memplan: "+g.Summary()+"\n") {
		t.Errorf("%s: %d annotations of %d failures: %s", name, n, failed, annotations)
	}
}

// What a model is called cannot end an annotation or begin another, and a rule
// that only warns is no failure in any format.
func TestGateNames(t *testing.T) {
	g := gate(1)
	g.Findings[0].Model, g.Findings[0].Message = "a\n::error::b%,:", "x\r\n::set-output name=y::z"
	g.Findings[0].Severity = planner.SeverityWarning
	g.Findings[0].Warnings = []graph.Warning{{Code: "code", Message: "]]> <b>&"}}
	text := written(t, Gates, "github", g, Style{})
	if n := strings.Count(text, "\n"); n != 3 || strings.Contains(text, "\n::error") || strings.Contains(text, "\n::set-output") || !strings.Contains(text, "::warning file=") || !strings.Contains(text, "::notice file=") {
		t.Errorf("%d lines: %s", n, text)
	}
	checkGateCI(t, "a warning", &Gate{Path: g.Path, Findings: nil})
	junit := written(t, Gates, "junit", g, Style{})
	if err := xml.Unmarshal([]byte(junit), new(struct{})); err != nil || strings.Contains(junit, "<failure") || !strings.Contains(junit, "]]&gt; &lt;b&gt;&amp;") {
		t.Errorf("%v: %s", err, junit)
	}
	if g.Failed() != 0 || g.Summary() != "1 rule holds, 1 only as warnings" {
		t.Error(g.Summary())
	}
}

// The text of a growth names the largest parts.
func TestCauseText(t *testing.T) {
	g := gate(1)
	f := &g.Findings[0]
	f.Why = []planner.Cause{{Module: "layer3", Category: "activations", Delta: 3 << 20, Reason: "conv 256 to 512 channels"}, {Category: "optimizer", Delta: -1 << 20}, {Module: "a", Category: "b", Delta: 2}, {Module: "c", Category: "d", Delta: 1}}
	if got, want := causeText(f), "1, at most 2 allowed; allocated +2.000 MiB: layer3 +3.000 MiB of activations (conv 256 to 512 channels), (model) -1.000 MiB of optimizer, a +2 B of b, 1 more"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A comment is no longer than GitHub takes, whatever the names and numbers of
// models, and says how much it leaves out.
func TestCommentLength(t *testing.T) {
	for _, n := range []int{1, 40, 3000} {
		for _, long := range []int{1, 300, 50_000} {
			g := gate(n)
			for i := range g.Findings {
				f := &g.Findings[i]
				f.Model += strings.Repeat("m", long)
				f.Doubts = []graph.Warning{{Code: "eval-mode", Message: strings.Repeat("d", long)}}
				f.Warnings = []graph.Warning{{Code: "x", Message: strings.Repeat("w", long)}}
			}
			text := written(t, Gates, "markdown", g, Style{})
			if len(text) > 65_536 || !strings.Contains(text, g.Summary()) || !strings.Contains(text, "| model | rule |") {
				t.Errorf("%d findings of %d: %d bytes", n, long, len(text))
			}
			if n == 1 && long < 1000 && strings.Contains(text, " more") {
				t.Errorf("%d findings of %d: %s", n, long, text)
			}
			if n*long > 200_000 && !strings.Contains(text, " more") {
				t.Errorf("%d findings of %d: nothing is said of what is left out", n, long)
			}
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
