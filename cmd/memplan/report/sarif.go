package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
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

// Version is memplan's, for documents that name the tool that wrote them.
var Version = "devel"

// newRun returns a run of memplan without rules.
func newRun() *sarif.Run {
	run := sarif.NewRunWithInformationURI("memplan", home)
	v := strings.TrimPrefix(Version, "v")
	if v == "" || v[0] < '0' || v[0] > '9' { // readers compare versions, which begin with a number
		v = strings.ReplaceAll("0.0.0-"+v, " ", "+")
	}
	run.Tool.Driver.WithVersion(v)
	return run
}

// describe adds a rule or a kind of warning with what GitHub's code scanning asks for of each: two
// descriptions and a help text (rule GH2012 of its validator). doc may be empty for a warning.
func describe(run *sarif.Run, name, doc string) {
	help := "memplan help config-file describes the rules of .memplan.yaml, and what else fails a check (fail-on)."
	if doc == "" {
		doc = "memplan's warning " + name
		help = "The message says what was assumed. memplan analyze MODEL prints it with the step that it is about; fail-on in .memplan.yaml decides whether warnings fail a check."
	}
	run.AddRule(ruleID(name)).WithName(pascal(name)).WithDescription(sarifText(doc)).WithFullDescription(sarif.NewMultiformatMessageString().WithText(sarifText(doc))).
		WithHelp(sarif.NewMultiformatMessageString().WithText(help)).WithHelpURI(home + "/blob/main/docs/ci.md")
}

// pascal turns "max-peak" into "MaxPeak".
func pascal(name string) string {
	var sb strings.Builder
	for part := range strings.SplitSeq(name, "-") {
		if part != "" {
			sb.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return sb.String()
}

// kindOfWarning describes the kind of a warning: doubts have a text of their own.
func kindOfWarning(run *sarif.Run, code string) {
	doc := ""
	if i := slices.IndexFunc(planner.Doubts, func(d planner.Doubt) bool { return d.Code == code }); i >= 0 {
		doc = planner.Doubts[i].Doc
	}
	describe(run, code, doc)
}

func writeSARIF(w io.Writer, run *sarif.Run) error {
	r := report.NewV210Report()
	r.AddRun(run)
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		return err
	}
	var doc any
	d := json.NewDecoder(&b)
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return err
	}
	text, err := json.MarshalIndent(said(doc), "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", quote.JSON(text))
	return err
}

// said is a SARIF document without what says nothing: the library writes every property, with an
// empty list or object or -1 where there is none. The list of results stays: an empty one says
// that nothing was found.
func said(doc any) any {
	switch x := doc.(type) {
	case map[string]any:
		for name, v := range x {
			v = said(v)
			list, isList := v.([]any)
			object, isObject := v.(map[string]any)
			if n, ok := v.(json.Number); ok && n == "-1" || isList && len(list) == 0 && name != "results" || isObject && len(object) == 0 {
				delete(x, name)
				continue
			}
			x[name] = v
		}
	case []any:
		for i := range x {
			x[i] = said(x[i])
		}
	}
	return doc
}

// findingsSARIF writes the failed rules, and the table of all.
func findingsSARIF(w io.Writer, g *Gate, _ Style) error {
	run := newRun()
	for i := range planner.Rules {
		describe(run, planner.Rules[i].Name, planner.Rules[i].Doc)
	}
	describe(run, planner.Unreadable, "the model can be analyzed")
	models := g.labels()
	for i, f := range g.Findings {
		add := func(rule, level, message string) {
			x := sarifResult{rule: rule, level: level, message: models[i] + ": " + message, file: g.Path, line: f.Line,
				logical: f.Model, kind: "module", fingerprint: rule + ":" + models[i]}
			x.add(run)
		}
		if i == 0 || models[i-1] != models[i] { // the doubts of a model are in each of its findings
			for _, d := range f.Doubts {
				kindOfWarning(run, d.Code)
				add(d.Code, "warning", cannotTell+": "+d.Message)
			}
			for _, d := range f.Warnings {
				if !planner.IsDoubt(d.Code) {
					kindOfWarning(run, d.Code)
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
	run := newRun()
	describe(run, "fits", planner.Rules[0].Doc)
	if r.Fits != nil && !*r.Fits {
		x := sarifResult{rule: "fits", level: "error", message: Verdict(r), file: r.Model.Path, logical: r.Peak.Node, kind: "member", fingerprint: "fits:" + r.Model.Path}
		x.add(run)
	}
	for _, g := range grouped(r) {
		kindOfWarning(run, g.code)
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
