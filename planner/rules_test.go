package planner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/planner/profile"
)

// gate reads a configuration that lies beside copies of two sample models.
func gate(t *testing.T, text string) *ConfigFile {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"mlp.onnx", "resnet50.onnx"} {
		data, err := os.ReadFile(filepath.Join("..", "models", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := ParseConfigFile(filepath.Join(dir, ConfigFileName), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func check(t *testing.T, f *ConfigFile) []Finding {
	t.Helper()
	found, err := f.Check(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// outcome writes findings as "rule ok|FAIL|?", in order.
func outcome(found []Finding) string {
	var parts []string
	for _, f := range found {
		word := "?"
		if f.OK != nil {
			word = map[bool]string{true: "ok", false: "FAIL"}[*f.OK]
		}
		parts = append(parts, f.Rule+" "+word)
	}
	return strings.Join(parts, ", ")
}

// Every rule holds at its limit and fails just beyond it.
func TestRuleLimits(t *testing.T) {
	r, err := sample(t, "mlp.onnx").Analyze(t.Context(), Config{Batch: 64})
	if err != nil {
		t.Fatal(err)
	}
	most, err := sample(t, "mlp.onnx").Analyze(t.Context(), Config{BatchMax: true, VRAM: 4 << 30})
	if err != nil {
		t.Fatal(err)
	}
	all, err := sample(t, "resnet50.onnx").Analyze(t.Context(), Config{Batch: 64, Checkpoint: "all"})
	if err != nil || all.Checkpoint.RecomputeOverhead <= 0 {
		t.Fatalf("all modules checkpointed: %+v, %v", all.Checkpoint, err)
	}
	over := 100 * all.Checkpoint.RecomputeOverhead
	for _, tt := range []struct{ settings, rules, want string }{ // settings may name another model
		{"", fmt.Sprintf("max-peak: %d", r.Peak.ReservedBytes), "max-peak ok"},
		{"", fmt.Sprintf("max-peak: %d", r.Peak.ReservedBytes-1), "max-peak FAIL"},
		{"", "max-parameters: 138347496", "max-parameters ok"}, // models/README.md
		{"", "max-parameters: 138347495", "max-parameters FAIL"},
		{"", "max-parameters: 138.4M", "max-parameters ok"},
		{"vram: 4G", fmt.Sprintf("min-batch: %d", most.Batch.Max), "fits ok, min-batch ok"},
		{"vram: 4G", fmt.Sprintf("min-batch: %d", most.Batch.Max+1), "fits ok, min-batch FAIL"},
		{"", "min-batch: 1", "min-batch ?"},
		{"vram: 2G", "max-peak: 16G", "fits FAIL, max-peak ok"},
		{"resnet50 checkpoint: all", fmt.Sprintf("max-overhead: %.4f%%", over+0.001), "max-overhead ok"},
		{"resnet50 checkpoint: all", fmt.Sprintf("max-overhead: %.4f%%", over-0.001), "max-overhead FAIL"},
		{"", "max-overhead: 0%", "max-overhead ok"},
		{"", "max-increase: 5%", "max-increase ?"},
	} {
		model := "mlp.onnx"
		settings, other := strings.CutPrefix(tt.settings, "resnet50 ")
		if other {
			model = "resnet50.onnx"
		}
		text := fmt.Sprintf("models:\n- path: %s\n  batch: 64\n  %s\nrules: {%s}\n", model, settings, tt.rules)
		found := check(t, gate(t, text))
		if got := outcome(found); got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.settings, tt.rules, got, tt.want)
		}
		for _, f := range found {
			if f.Message == "" || f.Line < 2 || f.Model != model || (f.OK != nil) != (f.Value != "") {
				t.Errorf("%s %s: finding %+v", tt.settings, tt.rules, f)
			}
		}
	}
}

// writeBaseline makes f's baseline and changes its reserved bytes by a factor.
func writeBaseline(t *testing.T, f *ConfigFile, factor float64) {
	t.Helper()
	b, err := f.NewBaseline(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.Models {
		b.Models[i].ReservedBytes = int64(float64(b.Models[i].ReservedBytes) * factor)
	}
	data, err := json.Marshal(b)
	if err == nil {
		err = os.WriteFile(f.Baseline, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestIncrease(t *testing.T) {
	f := gate(t, "models: [{path: mlp.onnx, batch: 64}]\nrules: {max-increase: 5%}\n")
	for _, tt := range []struct {
		factor float64
		want   string
	}{{1, "max-increase ok"}, {0.96, "max-increase ok"}, {0.95, "max-increase FAIL"}, {2, "max-increase ok"}, {0, "max-increase ?"}} {
		writeBaseline(t, f, tt.factor)
		if got := outcome(check(t, f)); got != tt.want {
			t.Errorf("baseline of %g times: %s, want %s", tt.factor, got, tt.want)
		}
	}
}

// Entries find their own numbers; an entry whose settings changed is compared
// as long as it is clear with what.
func TestBaselineEntries(t *testing.T) {
	const two = "models: [{path: mlp.onnx, batch: 64}, {path: mlp.onnx, batch: 8192}]\nrules: {max-increase: 0%}\n"
	f := gate(t, two)
	writeBaseline(t, f, 1)
	if got := outcome(check(t, f)); got != "max-increase ok, max-increase ok" {
		t.Errorf("two settings: %s", got)
	}
	again := func(text string) *ConfigFile {
		g, err := ParseConfigFile(f.Path, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	found := check(t, again(strings.Replace(two, "8192", "32", 1)))
	if got := outcome(found); got != "max-increase ok, max-increase ?" || !strings.Contains(found[1].Message, "batch=32") {
		t.Errorf("one of two changed: %s: %s", got, found[1].Message)
	}
	f = again("models: [{path: mlp.onnx, batch: 64}]\nrules: {max-increase: 0%}\n")
	writeBaseline(t, f, 1)
	found = check(t, again("models: [{path: mlp.onnx, batch: 16384}]\nrules: {max-increase: 0%}\n"))
	if got := outcome(found); got != "max-increase FAIL" || !strings.Contains(found[0].Message, "batch=64") {
		t.Errorf("the only one changed: %s: %s", got, found[0].Message)
	}
}

func TestBadBaselines(t *testing.T) {
	f := gate(t, "models: [{path: mlp.onnx, batch: 64}]\nrules: {max-increase: 5%}\n")
	for text, want := range map[string]string{
		"":                                   "not a JSON document",
		"{}":                                 "no schemaVersion",
		`{"schemaVersion": 2}`:               "schemaVersion 2: this memplan reads version 1",
		`{"schemaVersion": 1}`:               "not a baseline",
		`{"schemaVersion": 1, "models": {}}`: "not a baseline",
	} {
		if err := os.WriteFile(f.Baseline, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Check(t.Context(), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// A rule with the severity warning does not fail the check, and is told apart.
func TestSeverity(t *testing.T) {
	found := check(t, gate(t, "models: [{path: mlp.onnx, batch: 64}]\nrules:\n  max-peak: {limit: 1K, severity: warning}\n  max-parameters: {limit: 1}\n"))
	if got := outcome(found); got != "max-peak FAIL, max-parameters FAIL" {
		t.Fatal(got)
	}
	if found[0].Severity != SeverityWarning || found[0].Failed() || found[1].Severity != SeverityError || !found[1].Failed() {
		t.Errorf("%+v", found)
	}
	for text, want := range map[string]string{
		"{limit: 1K, severity: loud}": "unknown severity",
		"{severity: error}":           "no limit",
		"{limit: 1K, colour: red}":    "unknown key",
	} {
		_, err := ParseConfigFile("c.yaml", []byte("models: [{path: a.onnx, batch: 1}]\nrules: {max-peak: "+text+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Warnings of a model fail the check where the file asks for it, are compared
// with the baseline's, and are in every finding.
func TestFailOn(t *testing.T) {
	f := gate(t, "models: [{path: mlp.onnx, batch: 64}]\nfail-on: [warnings, cannot-tell]\nrules: {no-new-warnings: true}\n")
	if got := outcome(check(t, f)); got != "no-new-warnings ?, warnings ok, cannot-tell ok" {
		t.Fatal(got)
	}
	writeBaseline(t, f, 1)
	if got := outcome(check(t, f)); got != "no-new-warnings ok, warnings ok, cannot-tell ok" {
		t.Error(got)
	}
	s := &subject{report: &Answer{Report: &Report{Warnings: []graph.Warning{{Code: lift.EvalMode}, {Code: "new"}, {Code: "new"}, {Code: "old"}}}}, base: &BaselineModel{Warnings: []string{"old"}}}
	for i := range Rules {
		r := &Rules[i]
		want := map[string]string{"no-new-warnings": "2 (" + lift.EvalMode + ", new)", "warnings": "4 (" + lift.EvalMode + ", new, old)", "cannot-tell": "1 (" + lift.EvalMode + ")"}[r.Name]
		if want == "" {
			continue
		}
		if v, err := r.value(t.Context(), s); err != nil || r.text(v)+r.note(s) != want {
			t.Errorf("%s: %v%s, %v; want %s", r.Name, v, r.note(s), err, want)
		}
	}
	if _, err := ParseConfigFile("c.yaml", []byte("models: [{path: a.onnx, batch: 1}]\nfail-on: [anything]\n")); err == nil || !strings.Contains(err.Error(), "unknown fail-on") {
		t.Error(err)
	}
}

// A model that cannot be read is a finding beside those of the others, and
// patterns list models in the order of their names.
func TestUnreadable(t *testing.T) {
	f := gate(t, "models: [{path: mlp.onnx, batch: 64}]\n")
	dir := filepath.Dir(f.Path)
	data, err := os.ReadFile(filepath.Join(dir, "mlp.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string][]byte{"a.onnx": data, "b.onnx": data[:100], "c.onnx": data} {
		if err := os.WriteFile(filepath.Join(dir, name), d, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err = ParseConfigFile(f.Path, []byte("models: [{path: '[abc].onnx', batch: 64}]\nrules: {max-peak: 4G}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var calls int
	found, err := f.Check(t.Context(), func(n, of int, _ string) {
		if calls++; n != calls || of != 3 {
			t.Errorf("call %d says %d of %d", calls, n, of)
		}
	})
	if err != nil || outcome(found) != "max-peak ok, readable ?, max-peak ok" || found[0].Model != "a.onnx" || found[1].Model != "b.onnx" || !strings.Contains(found[1].Message, "b.onnx") || calls != 3 {
		t.Errorf("%s, %v: %+v", outcome(found), err, found)
	}
	if err := os.WriteFile(filepath.Join(dir, "odd[1].onnx"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	odd, err := ParseConfigFile(f.Path, []byte("models: [{path: 'odd[1].onnx', batch: 64}]"))
	if err != nil || len(odd.Entries) != 1 || odd.Entries[0].Path != "odd[1].onnx" {
		t.Error(odd, err)
	}
	if _, err := ParseConfigFile(f.Path, []byte("models: [{path: 'no*.onnx'}]\n")); err == nil || !strings.Contains(err.Error(), "no file matches no*.onnx") {
		t.Error(err)
	}
}

// Messages speak of the configuration's keys.
func TestInKeys(t *testing.T) {
	for message, want := range map[string]string{
		"give --batch N, --batch max with --vram, or --dim batch=N":  "give batch: N, batch: max with vram, or dims: {batch: N}",
		"--batch max needs a budget: give --vram SIZE or --gpu NAME": "batch: max needs a budget: give vram: SIZE or gpu: NAME",
		"--vram is less than that; try --checkpoint schedule":        "vram is less than that; try checkpoint: schedule",
		"--gpu: unknown":            "gpu: unknown",
		"make it with --times FILE": "make it with --times FILE",
		"--headroom leaves nothing": "headroom leaves nothing",
	} {
		if got := inKeys(message); got != want {
			t.Errorf("%s: %s, want %s", message, got, want)
		}
	}
}

// What a peak grew by adds up to the growth, whatever changed.
func TestCauses(t *testing.T) {
	f := gate(t, "models: [{path: resnet50.onnx, batch: 4}]\nrules: {max-increase: 1%}\n")
	b, err := f.NewBaseline(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, p := range b.Models[0].Parts {
		sum += p.Bytes
	}
	if sum != b.Models[0].AllocatedBytes {
		t.Fatalf("parts add up to %d, the peak is %d", sum, b.Models[0].AllocatedBytes)
	}
	writeBaseline(t, f, 1)
	f, err = ParseConfigFile(f.Path, []byte("models: [{path: resnet50.onnx, batch: 8}]\nrules: {max-increase: 1%}\n"))
	if err != nil {
		t.Fatal(err)
	}
	found := check(t, f)
	_, r, err := f.analyze(t.Context(), &f.Entries[0])
	if err != nil {
		t.Fatal(err)
	}
	sum = 0
	for _, c := range found[0].Why {
		sum += c.Delta
	}
	if want := r.Peak.AllocatedBytes - b.Models[0].AllocatedBytes; sum != want || want <= 0 || outcome(found) != "max-increase FAIL" {
		t.Errorf("%s: causes add up to %d, want %d: %+v", outcome(found), sum, want, found[0].Why)
	}
	got := causes([]Part{{"m.h.0.a", "x", 5}, {"m.h.1.b", "x", 7}, {"out", "y", 1}}, []Part{{"m.h.0.a", "x", 15}, {"m.h.0.c", "x", 1}, {"m.h.1.b", "x", 4}, {"out", "y", 1}})
	if want := []Cause{{Module: "m.h.0", Category: "x", Delta: 11}, {Module: "m.h.1", Category: "x", Delta: -3}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The causes between variants of one architecture, exported by other exporters
// or in other shapes, add up to the difference of their peaks, and a module
// whose weights changed says so.
func TestCausesOfVariants(t *testing.T) {
	for _, tt := range []struct{ base, head string }{
		{"resnet50.dyn-train.onnx", "resnet18.dyn-train.onnx"},
		{"resnet50.dyn-train.onnx", "resnet50.ts-train.onnx"},
		{"gpt2.dyn-train.onnx", "gpt2.dyn-eval.onnx"},
	} {
		dir := t.TempDir()
		put := func(name string) {
			data, err := os.ReadFile(filepath.Join(testdata.Shared(t, "models"), name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "m.onnx"), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		put(tt.base)
		f, err := ParseConfigFile(filepath.Join(dir, ConfigFileName), []byte("models: [{path: m.onnx, batch: 4}]\nrules: {max-increase: -99%}\n"))
		if err != nil {
			t.Fatal(err)
		}
		writeBaseline(t, f, 1)
		base, err := f.readBaseline()
		if err != nil {
			t.Fatal(err)
		}
		put(tt.head)
		found := check(t, f)
		_, r, err := f.analyze(t.Context(), &f.Entries[0])
		if err != nil {
			t.Fatal(err)
		}
		var sum int64
		reasons := map[string]string{}
		for _, c := range found[0].Why {
			sum += c.Delta
			reasons[c.Module] = c.Reason
		}
		if want := r.Peak.AllocatedBytes - base.Models[0].AllocatedBytes; sum != want || outcome(found) != "max-increase FAIL" {
			t.Errorf("%s: %s: causes add up to %d, want %d", tt.head, outcome(found), sum, want)
		}
		if tt.head == "resnet18.dyn-train.onnx" && !strings.Contains(fmt.Sprint(reasons), "conv 1024 to 256 channels") {
			t.Errorf("%s: reasons %v", tt.head, reasons)
		}
	}
}

func TestReason(t *testing.T) {
	base := map[string]string{"a.conv.weight": "256x128x3x3", "a.conv.bias": "256", "b.weight": "8x4x3x3", "c.weight": "8x4x3x3", "d.fc.weight": "10x5", "e.old": "3", "f.x": "3"}
	head := map[string]string{"a.conv.weight": "512x128x3x3", "a.conv.bias": "512", "b.weight": "8x2x3x3", "c.weight": "8x4x5x5", "d.fc.weight": "20x5", "f.x": "3", "f.y": "1", "f.z": "1", "e.new": "3"}
	for module, want := range map[string]string{
		"a": "conv 256 to 512 channels", "a.conv": "conv 256 to 512 channels", "b": "conv 4 to 2 input channels", "c": "conv kernel 3x3 to 5x5",
		"d": "weight 10x5 to 20x5", "e": "1 new parameter, 1 gone", "f": "2 new parameters", "g": "",
	} {
		if got := reason(module, base, head); got != want {
			t.Errorf("%s: %q, want %q", module, got, want)
		}
	}
	for shape, want := range map[string]int64{"2x3": 6, "": 0, "x": 0, "-1x2": 0, "9999999999x9999999999": 0, "0x5": 0} {
		if got := elementsOf(shape); got != want {
			t.Errorf("%q: %d, want %d", shape, got, want)
		}
	}
}

// Every rule has what help, list and messages need.
func TestRulesTable(t *testing.T) {
	seen := map[string]bool{}
	for i := range Rules {
		r := &Rules[i]
		if r.Name == "" || r.Doc == "" || r.Form == "" || r.value == nil || r.text == nil || seen[r.Name] || r.Implied != (r.limit != nil) || (r.Implied || r.FailOn) == (r.parse != nil) {
			t.Errorf("rule %+v", r)
		}
		seen[r.Name] = true
	}
	for _, name := range strings.Fields("max-peak max-process max-increase min-batch max-overhead max-parameters no-new-warnings warnings cannot-tell") {
		if !seen[name] {
			t.Errorf("no rule %s", name)
		}
	}
	if profile.FormatBytes(1<<30) != bytesText(1<<30) {
		t.Error("sizes are written in two ways")
	}
}

// max-increase is of the rank that grew most, though another needs most; the other limits are of that.
func TestRankRules(t *testing.T) {
	dir := t.TempDir()
	model, err := filepath.Abs("../models/gpt2.onnx")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, ".memplan.yaml")
	text := "models:\n  - path: " + model + "\n    batch: 4\n    parallel: pp=2\n    gpu: h100\nrules:\n  max-increase: 2%\n  max-peak: 1G\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := ReadConfigFile(path, true)
	if err != nil {
		t.Fatal(err)
	}
	base, err := f.NewBaseline(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ranks := base.Models[0].Ranks
	if len(ranks) != 2 || max(ranks[0].ReservedBytes, ranks[1].ReservedBytes) != base.Models[0].ReservedBytes {
		t.Fatalf("ranks %+v of a step that reserves %d", ranks, base.Models[0].ReservedBytes)
	}
	less := 0
	if ranks[1].ReservedBytes < ranks[0].ReservedBytes {
		less = 1
	}
	verdict := func() (text string, ok bool) {
		data, err := json.Marshal(base)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.ReplaceBaseline(data); err != nil {
			t.Fatal(err)
		}
		found, err := f.Check(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range found {
			if x.Rule == "max-peak" && (len(x.Ranks) != 2 || *x.OK || !strings.Contains(x.Message, fmt.Sprintf("on rank %d of 2", 1-less))) {
				t.Errorf("max-peak: %+v", x)
			}
			if x.Rule == "max-increase" {
				text, ok = x.Message, *x.OK
			}
		}
		return text, ok
	}
	if text, ok := verdict(); !ok {
		t.Error(text)
	}
	ranks[less].ReservedBytes = ranks[less].ReservedBytes / 2
	if text, ok := verdict(); ok || !strings.Contains(text, fmt.Sprintf("on rank %d", less)) {
		t.Errorf("the lesser rank doubled: %s", text)
	}
}
