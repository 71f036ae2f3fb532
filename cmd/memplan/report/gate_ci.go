package report

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/quote"
)

// JUnit's elements, as Jenkins, GitLab and GitHub's reporters read them.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"` // the model
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Cases    []junitCase `xml:"testcase"`
		Output   string      `xml:"system-out,omitempty"` // the model's warnings
	}
	junitCase struct {
		Name    string       `xml:"name,attr"` // the rule
		Class   string       `xml:"classname,attr"`
		File    string       `xml:"file,attr"`
		Line    int          `xml:"line,attr,omitempty"`
		Failure *junitDetail `xml:"failure"`
		Error   *junitDetail `xml:"error"`
		Output  string       `xml:"system-out,omitempty"`
	}
	junitDetail struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// gateJUnit writes a suite for each model and a case for each of its rules. A
// rule that only warns is a case that passes, with its message as output.
func gateJUnit(w io.Writer, g *Gate, _ Style) error {
	doc := junitSuites{Name: "memplan"}
	lines := map[string][]string{}
	for _, x := range g.warnings() {
		lines[x.model] = append(lines[x.model], x.Message+" ["+x.Code+"]")
	}
	for _, d := range g.doubts() {
		lines[d.model] = append(lines[d.model], cannotTell+": "+d.text)
	}
	for i, model := range g.labels() {
		if n := len(doc.Suites); n == 0 || doc.Suites[n-1].Name != quote.Text(model) {
			doc.Suites = append(doc.Suites, junitSuite{Name: quote.Text(model), Output: quote.Text(strings.Join(lines[model], "; "))})
		}
		doc.add(junitCaseOf(g, &g.Findings[i], model))
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(&doc); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func junitCaseOf(g *Gate, f *planner.Finding, model string) junitCase {
	text := quote.Text(causeText(f))
	c := junitCase{Name: f.Rule, Class: quote.Text(model), File: quote.Text(repoPath(g.Path)), Line: f.Line}
	detail := &junitDetail{Message: text, Text: fmt.Sprintf("%s:%d", quote.Text(g.Path), f.Line)}
	switch {
	case f.OK == nil:
		c.Error = detail
	case f.Failed():
		c.Failure = detail
	default:
		c.Output = text
	}
	return c
}

// add puts a case into the last suite.
func (d *junitSuites) add(c junitCase) {
	s := &d.Suites[len(d.Suites)-1]
	s.Cases = append(s.Cases, c)
	s.Tests++
	d.Tests++
	if c.Failure != nil {
		s.Failures++
		d.Failures++
	}
	if c.Error != nil {
		s.Errors++
		d.Errors++
	}
}

// A codeQuality is one issue of GitLab's code quality report.
type codeQuality struct {
	Description string `json:"description"`
	CheckName   string `json:"check_name"`
	Fingerprint string `json:"fingerprint"`
	Severity    string `json:"severity"` // info, minor, major, critical, blocker
	Location    struct {
		Path  string `json:"path"`
		Lines struct {
			Begin int `json:"begin"`
		} `json:"lines"`
	} `json:"location"`
}

// gateCodeQuality writes the notices: failed and undetermined rules, doubts and
// warnings.
func gateCodeQuality(w io.Writer, g *Gate, _ Style) error {
	out := []codeQuality{}
	for _, n := range g.notices() {
		sum := sha256.Sum256([]byte(n.rule + "\x00" + n.model + "\x00" + n.key))
		q := codeQuality{Description: quote.Text(n.model + ": " + n.text), CheckName: "memplan/" + n.rule, Fingerprint: hex.EncodeToString(sum[:16]), Severity: n.level.gitlab}
		q.Location.Path, q.Location.Lines.Begin = quote.Text(repoPath(g.Path)), max(n.line, 1)
		out = append(out, q)
	}
	data, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", quote.JSON(data))
	return err
}

// gateAnnotations writes workflow commands of GitHub Actions, which shows them
// beside the configuration's lines; the last line is the summary.
func gateAnnotations(w io.Writer, g *Gate, _ Style) error {
	for _, n := range g.notices() {
		if _, err := fmt.Fprintf(w, "::%s file=%s,line=%d,title=%s::%s\n", n.level.github, commandProperty(repoPath(g.Path)), max(n.line, 1), commandProperty("memplan: "+n.rule), commandData(n.model+": "+n.text)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "memplan: %s\n", g.Summary())
	return err
}

// commandData and commandProperty escape what would end a workflow command, as
// GitHub's toolkit does it.
func commandData(s string) string {
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace(quote.Text(s))
}

func commandProperty(s string) string {
	return strings.NewReplacer(":", "%3A", ",", "%2C").Replace(commandData(s))
}

// A noticeLevel is the severity of a notice, in two vocabularies.
type noticeLevel struct{ gitlab, github string }

var (
	noticeError   = noticeLevel{"critical", "error"}
	noticeWarning = noticeLevel{"major", "warning"}
	noticeInfo    = noticeLevel{"info", "notice"}
)

// A notice is something that a person should look at.
type notice struct {
	rule, model, text string
	key               string // distinguishes notices of the same rule and model
	line              int
	level             noticeLevel
}

// notices returns the failed and undetermined rules, and the models' doubts and
// warnings, in the order of the findings.
func (g *Gate) notices() []notice {
	var out []notice
	seen := map[string]bool{}
	for i, model := range g.labels() {
		f := &g.Findings[i]
		if !seen[model] {
			seen[model] = true
			for _, d := range f.Doubts {
				out = append(out, notice{d.Code, model, cannotTell + ": " + d.Message, d.Message, f.Line, noticeWarning})
			}
			for _, d := range f.Warnings {
				if !planner.IsDoubt(d.Code) {
					out = append(out, notice{d.Code, model, d.Message, d.Node, f.Line, noticeInfo})
				}
			}
		}
		switch {
		case f.OK == nil:
			out = append(out, notice{f.Rule, model, "cannot tell: " + f.Message, "", f.Line, noticeError})
		case f.Failed():
			out = append(out, notice{f.Rule, model, causeText(f), "", f.Line, noticeError})
		case !*f.OK:
			out = append(out, notice{f.Rule, model, causeText(f), "", f.Line, noticeWarning})
		}
	}
	return out
}
