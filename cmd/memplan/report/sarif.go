package report

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/owenrumney/go-sarif/v3/pkg/report"
	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"

	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/quote"
)

// home is the tool's address for SARIF readers.
const home = "https://github.com/memplan/memplan"

// ruleID returns a rule's or a warning's name in SARIF.
func ruleID(name string) string { return "memplan/" + name }

// A sarifResult is one finding in SARIF: the physical location is a line of a
// text file, the logical one a model or a node of it.
type sarifResult struct {
	rule, level, message string
	file                 string
	line                 int
	logical, kind        string
	fingerprint          string
}

func (x *sarifResult) add(run *sarif.Run) {
	place := sarif.NewPhysicalLocation().WithArtifactLocation(sarif.NewSimpleArtifactLocation((&url.URL{Path: repoPath(x.file)}).String()))
	if x.line > 0 {
		place.WithRegion(sarif.NewRegion().WithStartLine(x.line))
	}
	where := sarif.NewLocationWithPhysicalLocation(place)
	if x.logical != "" {
		where.AddLogicalLocation(sarif.NewLogicalLocation().WithFullyQualifiedName(x.logical).WithKind(x.kind))
	}
	run.CreateResultForRule(ruleID(x.rule)).WithLevel(x.level).WithMessage(sarif.NewTextMessage(sarifText(x.message))).
		WithLocations([]*sarif.Location{where}).WithPartialFingerprints(map[string]string{"memplan/v1": x.fingerprint})
}

// sarifText returns a message for SARIF: "[text](place)" would be a link.
func sarifText(s string) string { return strings.ReplaceAll(quote.Text(s), "](", "] (") }

func writeSARIF(w io.Writer, run *sarif.Run) error {
	r := report.NewV210Report()
	r.AddRun(run)
	var b bytes.Buffer
	if err := r.PrettyWrite(&b); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s\n", quote.JSON(b.Bytes()))
	return err
}

// findingsSARIF writes the failed rules, and the table of all.
func findingsSARIF(w io.Writer, g *Gate, _ Style) error {
	run := sarif.NewRunWithInformationURI("memplan", home)
	for i := range planner.Rules {
		run.AddRule(ruleID(planner.Rules[i].Name)).WithDescription(planner.Rules[i].Doc)
	}
	run.AddRule(ruleID(planner.Unreadable)).WithDescription("the model can be analyzed")
	models := g.labels()
	for i, f := range g.Findings {
		add := func(rule, level, message string) {
			x := sarifResult{rule: rule, level: level, message: models[i] + ": " + message, file: g.Path, line: f.Line,
				logical: f.Model, kind: "module", fingerprint: rule + ":" + models[i]}
			x.add(run)
		}
		if i == 0 || models[i-1] != models[i] { // the doubts of a model are in each of its findings
			for _, d := range f.Doubts {
				run.AddRule(ruleID(d.Code))
				add(d.Code, "warning", cannotTell+": "+d.Message)
			}
			for _, d := range f.Warnings {
				if !planner.IsDoubt(d.Code) {
					run.AddRule(ruleID(d.Code))
					add(d.Code, "note", d.Message)
				}
			}
		}
		switch {
		case f.OK == nil:
			add(f.Rule, "error", "cannot tell: "+f.Message)
		case !*f.OK:
			add(f.Rule, f.Severity, f.Rule+": "+causeText(&g.Findings[i]))
		}
	}
	return writeSARIF(w, run)
}

// analysisSARIF writes a step that does not fit, and the warnings.
func analysisSARIF(w io.Writer, a *Analysis, _ Style) error {
	r := a.Report
	run := sarif.NewRunWithInformationURI("memplan", home)
	run.AddRule(ruleID("fits")).WithDescription(planner.Rules[0].Doc)
	if r.Fits != nil && !*r.Fits {
		x := sarifResult{rule: "fits", level: "error", message: Verdict(r), file: r.Model.Path, logical: r.Peak.Node, kind: "member", fingerprint: "fits:" + r.Model.Path}
		x.add(run)
	}
	for _, g := range grouped(r) {
		run.AddRule(ruleID(g.code))
	}
	for _, m := range r.Warnings {
		x := sarifResult{rule: m.Code, level: level(m.Code), message: m.Message, file: r.Model.Path, logical: m.Node, kind: "member", fingerprint: m.Code + ":" + m.Node + ":" + r.Model.Path}
		x.add(run)
	}
	return writeSARIF(w, run)
}

// level returns the severity of a warning: a note, except for doubts.
func level(code string) string {
	if planner.IsDoubt(code) {
		return "warning"
	}
	return "note"
}

// repoPath returns a path relative to its repository, as code scanning
// requires, or to the working directory.
func repoPath(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return filepath.ToSlash(path)
	}
	for dir := filepath.Dir(abs); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
			rel, err := filepath.Rel(dir, abs)
			if err == nil {
				return filepath.ToSlash(rel)
			}
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, abs); err == nil {
			return filepath.ToSlash(rel)
		}
	}
	return filepath.ToSlash(path)
}
