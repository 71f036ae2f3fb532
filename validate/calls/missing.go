package calls

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
)

// A missing is one reason why a device refuses calls.
type missing struct {
	Op, Reason string
	Models     []string // models that have such calls in a training step
	Calls      []string // of the table
}

// precisions are those of the models' programs.
var precisions = []string{"fp32", "amp-bf16"}

// A model is a model with the programs of its training step, one for each
// precision.
type model struct {
	Name     string
	Programs []*program.Program
}

// models opens files and builds their training steps at batch 2, leaving out files
// that have no training step or need flags.
func models(dir string, files []string) ([]model, error) {
	var out []model
	for _, file := range files {
		name, packed := strings.CutSuffix(filepath.Base(file), ".xz")
		if packed {
			plain := filepath.Join(dir, name)
			if err := unpack(plain, file); err != nil {
				return nil, err
			}
			file = plain
		}
		m, err := planner.Open(file)
		if err != nil {
			continue
		}
		one := model{Name: strings.TrimSuffix(name, ".onnx")}
		for _, precision := range precisions {
			if p, err := m.Program(planner.Config{Batch: 2, Optimizer: "adamw", Precision: precision}); err == nil {
				one.Programs = append(one.Programs, p.Program)
			}
		}
		if len(one.Programs) > 0 {
			out = append(out, one)
		}
	}
	return out, nil
}

// unpack decompresses a file.
func unpack(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	r, err := xz.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if data, err = io.ReadAll(r); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, data, 0o600)
}

// kept is the prefix of the names of operators that the lift keeps unchanged.
const kept = "onnx."

// find returns what a device refuses of models and samples: what most models have
// first, then what most calls have.
func find(d validate.Device, models []model, samples []Sample) []missing {
	rows := map[[2]string]*missing{}
	add := func(p *program.Program, list func(*missing) *[]string, name string) {
		for _, u := range validate.Unsupports(d, p) {
			if strings.HasPrefix(u.Op, kept) {
				u.Op, u.Reason = kept+"*", "an ONNX operator that stays one: its PyTorch calls are not known"
			}
			key := [2]string{u.Op, u.Reason}
			if rows[key] == nil {
				rows[key] = &missing{Op: u.Op, Reason: u.Reason}
			}
			if l := list(rows[key]); !slices.Contains(*l, name) {
				*l = append(*l, name)
			}
		}
	}
	for _, m := range models {
		for _, p := range m.Programs {
			add(p, func(r *missing) *[]string { return &r.Models }, m.Name)
		}
	}
	for _, s := range samples {
		add(s.Program, func(r *missing) *[]string { return &r.Calls }, s.Op)
	}
	var out []missing
	for _, r := range rows {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b missing) int {
		if c := len(b.Models) - len(a.Models); c != 0 {
			return c
		}
		if c := len(b.Calls) - len(a.Calls); c != 0 {
			return c
		}
		return strings.Compare(a.Op+"\x00"+a.Reason, b.Op+"\x00"+b.Reason)
	})
	return out
}

// markdown writes a table of what is missing, with the first three models and calls of
// each.
func markdown(list []missing) string {
	var b strings.Builder
	b.WriteString("| node | why not | models | which | calls |\n|---|---|---|---|---|\n")
	for _, m := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %d | %s | %s |\n", m.Op, strings.TrimPrefix(m.Reason, m.Op+": "), len(m.Models), some(m.Models), some(m.Calls))
	}
	return b.String()
}

func some(list []string) string {
	if len(list) > 3 {
		return strings.Join(list[:3], ", ") + fmt.Sprintf(" and %d more", len(list)-3)
	}
	return strings.Join(list, ", ")
}

// Runs reports, for each operator of the table, whether a device runs all its calls,
// forward and backward.
func Runs(d validate.Device, samples []Sample) map[string]bool {
	out := map[string]bool{}
	for _, s := range samples {
		before, asked := out[s.Op]
		out[s.Op] = (before || !asked) && len(validate.Unsupports(d, s.Program)) == 0
	}
	return out
}

// A page is docs/kernels.md: one section for each device, written by that device's test.
type page string

// section returns the text below a heading, up to the next.
func (p page) section(heading string) (string, error) {
	_, body, _, err := p.split(heading)
	return body, err
}

// write replaces a section.
func (p page) write(heading, body string) error {
	before, _, after, err := p.split(heading)
	if err != nil {
		return err
	}
	return os.WriteFile(string(p), []byte(before+body+after), 0o644)
}

func (p page) split(heading string) (before, body, after string, err error) {
	data, err := os.ReadFile(string(p))
	if err != nil {
		return "", "", "", err
	}
	head := "\n## " + heading + "\n\n"
	before, rest, ok := strings.Cut(string(data), head)
	if !ok {
		return "", "", "", fmt.Errorf("%s has no section %q", p, heading)
	}
	body, after = rest, ""
	if i := strings.Index(rest, "\n## "); i >= 0 {
		body, after = rest[:i], rest[i:]
	}
	return before + head, body, after, nil
}

// files lists all models of the repository, whose root is given, and of the shared
// data.
func files(root, shared string) ([]string, error) {
	var out []string
	for _, pattern := range []string{filepath.Join(root, "models", "*.onnx"), filepath.Join(root, "planner", "testdata", "zoo", "models", "*.xz"),
		filepath.Join(root, "planner", "testdata", "held", "models", "*.xz"), filepath.Join(shared, "models", "*.onnx"), filepath.Join(shared, "onnx", "real", "*.onnx")} {
		list, err := filepath.Glob(pattern)
		if err != nil || len(list) == 0 {
			return nil, fmt.Errorf("no models in %s: %w", pattern, os.ErrNotExist)
		}
		out = append(out, list...)
	}
	return out, nil
}

// CheckPage fails a test if docs/kernels.md does not list below a heading what a
// device refuses of all models and calls; with update it writes the list. The test
// is in a package two folders below the repository's root, and command runs it;
// shared is the folder of the shared data.
func CheckPage(t *testing.T, d validate.Device, shared, heading, command string, update bool) {
	t.Helper()
	root := filepath.Join("..", "..")
	paths, err := files(root, shared)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := models(t.TempDir(), paths)
	if err != nil {
		t.Fatal(err)
	}
	samples, err := All()
	if err != nil {
		t.Fatal(err)
	}
	docs := page(filepath.Join(root, "docs", "kernels.md"))
	want := fmt.Sprintf("Written by `%s -update`.\n\n%s", command, section(find(d, asked, samples), len(asked), len(samples)))
	if update {
		if err := docs.write(heading, want); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := docs.section(heading); err != nil || got != want {
		t.Errorf("docs/kernels.md is stale (%v); run %s -update", err, command)
	}
}

// section returns the text of one device's section.
func section(list []missing, models, samples int) string {
	return fmt.Sprintf("Of the training steps of %d models and of %d calls, forward and backward, these nodes are refused (%d):\n\n%s", models, samples, len(list), markdown(list))
}

// CheckTable fails a test if a device lacks a function for a kernel that its row does not
// refuse, or has one for another kernel.
func CheckTable[K any](t *testing.T, functions map[string]K) {
	t.Helper()
	for i := range kernel.Table {
		k := &kernel.Table[i]
		if _, ok := functions[k.Name]; ok == (k.Refused != "") {
			t.Errorf("%s: refused for %q, on the device: %v", k.Name, k.Refused, ok)
		}
	}
	for name := range functions {
		if kernel.Find(name) == nil {
			t.Errorf("%s is in no row", name)
		}
	}
}
