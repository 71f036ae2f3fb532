package report

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/inert"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

// questions are what the sample models are asked: every shape that a report
// can have.
var questions = []struct {
	name, model string
	cfg         planner.Config
}{
	{"open", "mlp.onnx", planner.Config{Batch: 8}},
	{"fits", "resnet50.onnx", planner.Config{Batch: 32, VRAM: 16 << 30, Precision: "amp-bf16"}},
	{"batch", "resnet50.onnx", planner.Config{GPU: "t4", Optimizer: "sgd-momentum"}},
	{"checkpoints", "gpt2.onnx", planner.Config{Batch: 48, VRAM: 16 << 30}},
	{"too-large", "vit_b_16.onnx", planner.Config{Batch: 512, GPU: "t4", Checkpoint: "none"}},
	{"no-batch", "mlp.onnx", planner.Config{VRAM: 1 << 30}},
	{"infer", "gpt2.onnx", planner.Config{Batch: 4, Mode: "infer"}},
	{"best", "mlp.onnx", planner.Config{VRAM: 3600 << 20, BatchBest: true}},
}

// answers are those to the questions, once for all tests.
var answers = sync.OnceValues(func() (map[string]*planner.Report, error) {
	out := map[string]*planner.Report{}
	for _, q := range questions {
		m, err := planner.Open(filepath.Join("..", "..", "..", "models", q.model))
		if err != nil {
			return nil, err
		}
		r, err := m.Analyze(context.Background(), q.cfg)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", q.name, err)
		}
		out[q.name] = r.Report
	}
	return out, nil
})

// reports returns the answers, for the test to add to.
func reports(t testing.TB) map[string]*planner.Report {
	t.Helper()
	rs, err := answers()
	if err != nil {
		t.Fatal(err)
	}
	return maps.Clone(rs)
}

func written[T any](t testing.TB, table []Format[T], format string, v T, s Style) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, table, format, v, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// No line of the text is longer than the terminal, except commands to copy.
func TestTextFits(t *testing.T) {
	for name, r := range reports(t) {
		for _, width := range []int{60, 80, 120} {
			text := written(t, Analyses, "text", &Analysis{Report: r}, Style{Width: width})
			for _, line := range strings.Split(text, "\n") {
				if n := utf8.RuneCountInString(line); n > width && !strings.Contains(line, "memplan plan ") {
					t.Errorf("%s at %d columns: %d in %q", name, width, n, line)
				}
				if strings.HasSuffix(line, " ") {
					t.Errorf("%s: blanks at the end of %q", name, line)
				}
			}
		}
	}
}

// Colour adds escapes and nothing else.
func TestColourIsOnlyColour(t *testing.T) {
	for name, r := range reports(t) {
		plain := written(t, Analyses, "text", &Analysis{Report: r}, Style{})
		colored := written(t, Analyses, "text", &Analysis{Report: r}, Style{Color: true})
		if strings.Contains(plain, "\x1b") || !strings.Contains(colored, "\x1b") {
			t.Errorf("%s: escapes where there should be none, or none where there should be", name)
		}
		if got := unpainted(colored); got != plain {
			t.Errorf("%s: without escapes, coloured text differs:\n%s\n%s", name, got, plain)
		}
	}
}

// unpainted takes escapes off a text, without regular expressions of ours.
func unpainted(s string) string {
	var sb strings.Builder
	for i, part := range strings.Split(s, "\x1b[") {
		if i > 0 {
			_, part, _ = strings.Cut(part, "m")
		}
		sb.WriteString(part)
	}
	return sb.String()
}

// The text says what the JSON says: verdict, the numbers, every category.
func TestTextSaysAll(t *testing.T) {
	for name, r := range reports(t) {
		text := strings.Join(strings.Fields(written(t, Analyses, "text", &Analysis{Report: r}, Style{Width: 120})), " ")
		want := []string{
			profile.FormatBytes(r.Peak.RequestedBytes), profile.FormatBytes(r.Peak.AllocatedBytes), profile.FormatBytes(r.Peak.ReservedBytes),
			profile.FormatBytes(r.Peak.ProcessBytes), profile.FormatBytes(r.Peak.UpperBoundBytes), r.Peak.Node, r.Model.Path, r.Config.Precision,
		}
		for _, c := range r.Breakdown {
			if c.Bytes != 0 {
				want = append(want, c.Category+" "+profile.FormatBytes(c.Bytes))
			}
		}
		for _, x := range r.Warnings {
			want = append(want, x.Code)
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in\n%s", name, w, text)
			}
		}
		switch {
		case r.Fits == nil && !strings.HasPrefix(text, "one "), r.Fits != nil && *r.Fits && !strings.HasPrefix(text, "fits "), r.Fits != nil && !*r.Fits && !strings.HasPrefix(text, "does not fit "):
			t.Errorf("%s: the verdict is not first: %.80s", name, text)
		}
	}
}

// JSON reads back as the same report; categories add up to the peak.
func TestJSONRoundTrip(t *testing.T) {
	for name, r := range reports(t) {
		text := written(t, Analyses, "json", &Analysis{Report: r}, Style{})
		back := &planner.Report{}
		if err := json.Unmarshal([]byte(text), back); err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, c := range back.Breakdown {
			sum += c.Bytes
		}
		if sum != back.Peak.AllocatedBytes {
			t.Errorf("%s: categories sum to %d, the peak is %d", name, sum, back.Peak.AllocatedBytes)
		}
		back.Curve = r.Curve // not in the document
		if !reflect.DeepEqual(filled(reflect.ValueOf(r)).Interface(), filled(reflect.ValueOf(back)).Interface()) {
			t.Errorf("%s: does not read back", name)
		}
	}
}

func TestJSONHasNoNullArrays(t *testing.T) {
	type inner struct {
		List []int          `json:"list"`
		Map  map[string]int `json:"map"`
	}
	v := struct {
		Fits  *bool             `json:"fits"`
		In    inner             `json:"in"`
		Ptr   *inner            `json:"ptr"`
		Lists [][]int           `json:"lists"`
		ByKey map[string]*inner `json:"byKey"`
		Raw   json.Number       `json:"raw"`
		HTML  string            `json:"html"`
	}{Ptr: &inner{}, Lists: [][]int{nil}, ByKey: map[string]*inner{"a": {}}, Raw: "1", HTML: "<a>&"}
	var b bytes.Buffer
	if err := JSON(&b, v); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(b.String()), "")
	want := `{"fits":null,"in":{"list":[],"map":{}},"ptr":{"list":[],"map":{}},"lists":[[]],"byKey":{"a":{"list":[],"map":{}}},"raw":1,"html":"<a>&"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if v.In.List != nil || v.Lists[0] != nil {
		t.Error("the value itself was changed")
	}
}

// hostile is a report whose names try to break out of every format.
func hostile(bad string) *planner.Report {
	no := false
	return &planner.Report{
		SchemaVersion: 1, Fits: &no, Model: planner.ModelInfo{Path: "dir/" + bad + ".onnx"}, Config: planner.Config{Batch: 3, VRAM: 1, Checkpoint: bad},
		Peak:       planner.Peak{AllocatedBytes: 3, Node: bad, Phase: "forward"},
		Breakdown:  []planner.CategoryBytes{{Category: "parameters", Bytes: 3}},
		Live:       []planner.LiveValue{{Value: bad, Bytes: 3, Category: "parameters", Node: bad, Module: bad}},
		Checkpoint: &planner.CheckpointInfo{Segments: []train.Segment{{Modules: []string{bad, bad}}}},
		Warnings:   []graph.Warning{{Code: "code", Message: bad, Node: bad}},
		Curve:      []planner.CurvePoint{{Phase: "forward", Bytes: 1}, {Phase: bad, Bytes: 3}},
	}
}

func all(t testing.TB) map[string]*planner.Report {
	rs := reports(t)
	for _, bad := range inert.Names() {
		rs[fmt.Sprintf("%q", bad)] = hostile(bad)
	}
	return rs
}

// Markdown begins with its tag, fits into a comment, and its tables have as
// many cells in each row as in the first.
func TestMarkdown(t *testing.T) {
	for name, r := range all(t) {
		text := written(t, Analyses, "markdown", &Analysis{Report: r}, Style{})
		checkMarkdown(t, name, text)
	}
}

func checkMarkdown(t *testing.T, name, text string) {
	t.Helper()
	if !strings.HasPrefix(text, "<!-- memplan:") || strings.Count(strings.SplitN(text, "\n", 2)[0], "-->") != 1 {
		t.Errorf("%s: begins with %.60q", name, text)
	}
	if len(text) > 65536 {
		t.Errorf("%s: %d characters do not fit a comment", name, len(text))
	}
	for _, fault := range inert.Markdown([]byte(text)) {
		t.Errorf("%s: %s in\n%s", name, fault, text)
	}
	if strings.Count(text, "\n<details>") != strings.Count(text, "\n</details>") {
		t.Errorf("%s: tags that do not belong:\n%s", name, text)
	}
}

// The page is well-formed, loads nothing and runs nothing.
func TestHTML(t *testing.T) {
	chart := func(w io.Writer) error {
		_, err := io.WriteString(w, "<?xml version=\"1.0\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\"><rect/></svg>")
		return err
	}
	for name, r := range all(t) {
		text := written(t, Analyses, "html", &Analysis{Report: r, Chart: chart}, Style{})
		tags := map[string]int{}
		d := xml.NewDecoder(strings.NewReader(text))
		d.Strict, d.AutoClose, d.Entity = false, []string{"meta"}, xml.HTMLEntity
		for {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e, ok := tok.(xml.StartElement); ok {
				tags[e.Name.Local]++
				for _, a := range e.Attr {
					if a.Name.Local == "src" || a.Name.Local == "href" || strings.HasPrefix(a.Name.Local, "on") {
						t.Errorf("%s: <%s %s>", name, e.Name.Local, a.Name.Local)
					}
				}
			}
		}
		pictures := 1
		if r.Batch != nil && r.Batch.Best != nil {
			pictures++
		}
		if tags["html"] != 1 || tags["svg"] != pictures || tags["rect"] < 1 || tags["table"] < 2 || tags["script"]+tags["link"]+tags["img"] != 0 {
			t.Errorf("%s: elements %v", name, tags)
		}
	}
	if err := analysisHTML(io.Discard, &Analysis{Report: hostile("x"), Chart: func(io.Writer) error { return io.ErrShortWrite }}, Style{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("error of the chart: %v", err)
	}
}

// A page with the step carries its data, whose levels end where they should, and
// runs the one script that its policy allows, whatever names there are.
func TestStepPage(t *testing.T) {
	m, err := planner.Open(filepath.Join("..", "..", "..", "models", "resnet50.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Analyze(t.Context(), planner.Config{Batch: 2, VRAM: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	view := r.View()
	view.Strings[1] = "</script><script>alert(1)</script>]]>"
	text := written(t, Analyses, "html", &Analysis{Report: r.Report, Step: func() *planner.StepView { return view }}, Style{})
	for _, fault := range inert.HTML([]byte(text), StepScript) {
		t.Error(fault)
	}
	if strings.Count(text, "<script") != 2 || !strings.Contains(html.UnescapeString(text), policy()) {
		t.Errorf("%d scripts", strings.Count(text, "<script"))
	}
	_, rest, _ := strings.Cut(text, `id="step-data">`)
	data, _, _ := strings.Cut(rest, "</script>")
	var got struct {
		planner.StepView
		Lines []stepLine
	}
	if err := json.Unmarshal([]byte(data), &got); err != nil || !reflect.DeepEqual(got.Events, view.Events) || len(got.Lines) != 2 {
		t.Fatalf("%v: %d events, %d lines", err, len(got.Events), len(got.Lines))
	}
	var now, most int64
	for _, id := range got.Before {
		now += got.Storages[id][0]
	}
	for _, e := range got.Events {
		if e[1] < 0 {
			now -= got.Storages[-e[1]-1][0]
		} else {
			now += got.Storages[e[1]-1][0]
		}
		most = max(most, now)
	}
	if most != r.Peak.RequestedBytes {
		t.Errorf("the page's peak is %d, the report's %d", most, r.Peak.RequestedBytes)
	}
}

// SARIF satisfies the schema of version 2.1.0, and every result names a rule
// that is described.
func TestSARIF(t *testing.T) {
	for name, r := range all(t) {
		results := checkSARIF(t, name, written(t, Analyses, "sarif", &Analysis{Report: r}, Style{}))
		want := len(r.Warnings)
		if r.Fits != nil && !*r.Fits {
			want++
		}
		if results != want {
			t.Errorf("%s: %d results, want %d", name, results, want)
		}
	}
}

func checkSARIF(t *testing.T, name, text string) (results int) {
	t.Helper()
	doc := &sarif.Report{}
	if err := json.Unmarshal([]byte(text), doc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	fill(reflect.ValueOf(doc))
	if err := doc.Validate(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if filler := saysNothing.FindString(strings.ReplaceAll(text, `"results": []`, "")); filler != "" {
		t.Errorf("%s: %s", name, filler)
	}
	if !strings.HasSuffix(text, "}\n") {
		t.Errorf("%s: no end of line at the end", name)
	}
	prints := map[string]bool{}
	for _, run := range doc.Runs {
		known := map[string]bool{}
		for _, rule := range run.Tool.Driver.Rules {
			known[*rule.ID] = true
			if rule.ShortDescription == nil || rule.FullDescription == nil || rule.Help == nil || rule.Name == nil || rule.HelpURI == nil {
				t.Errorf("%s: rule %s lacks what GitHub asks for", name, *rule.ID)
			}
		}
		for _, res := range run.Results {
			results++
			if !known[*res.RuleID] {
				t.Errorf("%s: result of an undescribed rule %s", name, *res.RuleID)
			}
			print := fmt.Sprint(res.PartialFingerprints)
			if prints[print] {
				t.Errorf("%s: fingerprint %s twice", name, print)
			}
			prints[print] = true
			if uri := *res.Locations[0].PhysicalLocation.ArtifactLocation.URI; filepath.IsAbs(uri) {
				t.Errorf("%s: absolute place %s", name, uri)
			}
		}
	}
	return results
}

// fill makes lists that a document leaves out empty ones: the library writes them before it validates.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			fill(v.Index(i))
		}
	}
}

// saysNothing finds properties with the library's values for none.
var saysNothing = regexp.MustCompile(`"[a-zA-Z]+": (-1|\[\]|\{\})`)

// The validator of Microsoft's SARIF multitool has no objections, with GitHub's rules for code scanning.
func TestGitHubValidator(t *testing.T) {
	tool, err := exec.LookPath("sarif-multitool")
	if err != nil {
		t.Skip("sarif-multitool is not installed (npm install -g @microsoft/sarif-multitool)")
	}
	texts := map[string]string{"gate": written(t, Gates, "sarif", gate(2), Style{})}
	for name, r := range reports(t) {
		texts[name] = written(t, Analyses, "sarif", &Analysis{Report: r}, Style{})
	}
	dir := t.TempDir()
	for name, text := range texts {
		file := filepath.Join(dir, "x.sarif")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), tool, "validate", file, "--rule-kind", "Ghas", "--level", "Error;Warning;Note", "--output", filepath.Join(dir, "out.sarif"), "--log", "ForceOverwrite").CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("Analysis completed successfully")) || bytes.Contains(out, []byte(": error ")) || bytes.Contains(out, []byte(": warning ")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// The curve's columns keep the peak and the order of phases at every width.
func TestColumns(t *testing.T) {
	for name, r := range reports(t) {
		for _, n := range []int{1, 2, 17, 67, 5000} {
			levels, phases := columns(r.Curve, n)
			top, order := int64(0), []string{}
			for i := range levels {
				top = max(top, levels[i])
				if len(order) == 0 || order[len(order)-1] != phases[i] {
					order = append(order, phases[i])
				}
			}
			if top != r.Peak.AllocatedBytes {
				t.Errorf("%s in %d columns: peak %d, want %d", name, n, top, r.Peak.AllocatedBytes)
			}
			if want := []string{"zero_grad", "forward", "loss", "backward", "optimizer"}; !subsequence(order, want) {
				t.Errorf("%s in %d columns: phases %v", name, n, order)
			}
		}
	}
}

func subsequence(list, of []string) bool {
	for _, x := range of {
		if len(list) > 0 && list[0] == x {
			list = list[1:]
		}
	}
	return len(list) == 0
}

func TestBar(t *testing.T) {
	last := 0
	for part := range int64(1001) {
		n := utf8.RuneCountInString(bar(part, 1000, 20))
		if n > 20 || n < last || part > 0 && n == 0 {
			t.Fatalf("bar of %d/1000 has %d columns after %d", part, n, last)
		}
		last = n
	}
	if bar(5, 0, 20) != "" || bar(9, 3, 4) != "████" {
		t.Error("bars beyond the whole")
	}
}

// Lines of segments name each segment: runs by their ends and their number.
func TestSegmentLines(t *testing.T) {
	one := func(names ...string) (segs []train.Segment) {
		for _, n := range names {
			segs = append(segs, train.Segment{Modules: strings.Split(n, "+")})
		}
		return segs
	}
	for _, tt := range []struct {
		segs []train.Segment
		want string
	}{
		{one("a.0", "a.1"), "a.0; a.1"},
		{one("a.8", "a.9", "a.10", "a.11"), "a.8 to a.11, 4 segments of one module each"},
		{one("a.0", "a.1", "a.2", "a.4", "b.5"), "a.0 to a.2, 3 segments of one module each; a.4; b.5"},
		{one("a.0+a.1", "a.2", "x", "y."), "a.0 + a.1; a.2; x; y."},
		{one("0", "1", "2"), "0 to 2, 3 segments of one module each"},
		{one("a", "a.0", "a.1", "a.2", "b"), "a; .a.0 to a.2, 3 segments of one module each; b"},
		{one("a.0+a.1+a.2", "a.0+a.1", "a.1.c", "a.2", "a.3"), "a.0 + a.1 + a.2; .a.0 + a.1; ..a.1.c; .a.2; a.3"},
		{nil, ""},
	} {
		var lines []string
		for _, l := range segmentLines(tt.segs) {
			lines = append(lines, strings.Repeat(".", l.depth)+l.text)
		}
		if got := strings.Join(lines, "; "); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// A shell reads a quoted word as the word.
func TestQuoted(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh")
	}
	for _, word := range []string{"model.onnx", "my model.onnx", "it's", "a\"b$c`d`\\e", "*", "-n", "~x", "", "new\nline", "ünï"} {
		out, err := exec.CommandContext(t.Context(), sh, "-c", "printf %s "+quoted(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q as %s is read as %q, %v", word, quoted(word), out, err)
		}
	}
}

func TestGroupedWarnings(t *testing.T) {
	r := &planner.Report{Warnings: []graph.Warning{{Code: "a", Message: "m", Node: "n"}, {Code: "b", Message: "k"}, {Code: "a", Message: "l"}}}
	var got []string
	for _, g := range grouped(r) {
		got = append(got, g.String())
	}
	if want := "n: m [a] and 1 more like it|k [b]"; strings.Join(got, "|") != want {
		t.Errorf("got %s, want %s", strings.Join(got, "|"), want)
	}
}

func TestWriteKnowsItsFormats(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a format that is not in the table was written")
		}
	}()
	_ = Write(io.Discard, Analyses, "yaml", &Analysis{}, Style{})
}
