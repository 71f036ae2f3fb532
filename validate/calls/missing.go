package calls

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ulikunitz/xz"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
)

// A Missing is what a device refuses of calls, for one reason.
type Missing struct {
	Op, Reason string
	Models     []string // that have it in a training step
	Calls      []string // of the table
}

// Precisions are those that models are asked about.
var Precisions = []string{"fp32", "amp-bf16"}

// A Model is a model with the programs of its training step, one a precision.
type Model struct {
	Name     string
	Programs []*program.Program
}

// Models opens files and builds their training steps at batch 2. Those that are no
// training steps, or that need flags, are left out.
func Models(dir string, files []string) ([]Model, error) {
	var out []Model
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
		one := Model{Name: strings.TrimSuffix(name, ".onnx")}
		for _, precision := range Precisions {
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

// unpack writes what a compressed file holds.
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

// kept begins the names of operators that the lift keeps as they are.
const kept = "onnx."

// Find asks a device about models and samples and returns what it refuses: what most
// models have first, then what most calls have.
func Find(d validate.Device, models []Model, samples []Sample) []Missing {
	rows := map[[2]string]*Missing{}
	add := func(p *program.Program, list func(*Missing) *[]string, name string) {
		for _, u := range validate.Unsupports(d, p) {
			if strings.HasPrefix(u.Op, kept) {
				u.Op, u.Reason = kept+"*", "an ONNX operator that stays one: its PyTorch calls are not known"
			}
			key := [2]string{u.Op, u.Reason}
			if rows[key] == nil {
				rows[key] = &Missing{Op: u.Op, Reason: u.Reason}
			}
			if l := list(rows[key]); !slices.Contains(*l, name) {
				*l = append(*l, name)
			}
		}
	}
	for _, m := range models {
		for _, p := range m.Programs {
			add(p, func(r *Missing) *[]string { return &r.Models }, m.Name)
		}
	}
	for _, s := range samples {
		add(s.Program, func(r *Missing) *[]string { return &r.Calls }, s.Op)
	}
	var out []Missing
	for _, r := range rows {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b Missing) int {
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

// Markdown is a table of what is missing. Of models and calls it names the first three.
func Markdown(list []Missing) string {
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

// Runs says of each operator of the table whether a device runs all its calls, forward
// and backward.
func Runs(d validate.Device, samples []Sample) map[string]bool {
	out := map[string]bool{}
	for _, s := range samples {
		before, asked := out[s.Op]
		out[s.Op] = (before || !asked) && len(validate.Unsupports(d, s.Program)) == 0
	}
	return out
}

// Page is docs/kernels.md: one section for each device, which that device's test writes.
type Page struct{ Path string }

// Section is what the page has below a heading, up to the next.
func (p Page) Section(heading string) (string, error) {
	_, body, _, err := p.split(heading)
	return body, err
}

// Write replaces a section.
func (p Page) Write(heading, body string) error {
	before, _, after, err := p.split(heading)
	if err != nil {
		return err
	}
	return os.WriteFile(p.Path, []byte(before+body+after), 0o644)
}

func (p Page) split(heading string) (before, body, after string, err error) {
	data, err := os.ReadFile(p.Path)
	if err != nil {
		return "", "", "", err
	}
	head := "\n## " + heading + "\n\n"
	before, rest, ok := strings.Cut(string(data), head)
	if !ok {
		return "", "", "", fmt.Errorf("%s has no section %q", p.Path, heading)
	}
	body, after = rest, ""
	if i := strings.Index(rest, "\n## "); i >= 0 {
		body, after = rest[:i], rest[i:]
	}
	return before + head, body, after, nil
}

// Files are all models of the repository, whose root is given, and those of the shared
// data.
func Files(root, shared string) ([]string, error) {
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

// Section is the text of one device's section.
func Section(list []Missing, models, samples int) string {
	return fmt.Sprintf("Of the training steps of %d models and of %d calls, forward and backward, these nodes are refused (%d):\n\n%s", models, samples, len(list), Markdown(list))
}
