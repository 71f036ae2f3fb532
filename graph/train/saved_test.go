package train

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/graph/program"
)

var oracle = flag.String("oracle", "", "directory that scripts/saved_oracle.py wrote: check every case in it instead of testdata's")

// A savedCase is one line of testdata/saved.jsonl: what PyTorch saves for a
// module, at several batch sizes and precisions.
type savedCase struct {
	Name, Kind, Loss, Attention string
	Frozen                      []string
	Runs                        []savedRun
	path                        string
}

type savedRun struct {
	Batch    int64
	Prec     string
	Bytes    int64
	Storages int
	Digest   string
	Sizes    []int64
	Rows     []json.RawMessage
}

// options configures the step as the oracle runs it.
func (c *savedCase) options(r *savedRun) Options {
	o := Options{Train: true, Loss: c.Loss, Config: aten.Config{Major: 9, Attention: []string{"cudnn", "flash", "efficient", "math"}}}
	if c.Attention != "auto" {
		o.Config.Attention = []string{c.Attention, "math"}
	}
	if r.Prec == "amp-bf16" {
		o.Config.Autocast = graph.BFloat16
	}
	if len(c.Frozen) > 0 {
		re := regexp.MustCompile(strings.Join(c.Frozen, "|"))
		o.Frozen = re.MatchString
	}
	return o
}

// build loads the case's file and runs one step of it.
func (c *savedCase) build(r *savedRun) (*Build, error) {
	g, err := onnx.Load(c.path)
	if err != nil {
		return nil, err
	}
	if _, err := infer.Infer(g, infer.Options{Batch: r.Batch}); err != nil {
		return nil, err
	}
	l, err := lift.Lift(g)
	if err != nil {
		return nil, err
	}
	return New(l, c.options(r))
}

// savedSizes lists the bytes of the storages that autograd holds, in order of
// size, and what they hold in the order in which they were saved.
func savedSizes(p *program.Program) (sizes []int64, names []string) {
	for _, id := range p.Saved {
		if s := &p.Storages[id]; s.Bytes > 0 {
			sizes = append(sizes, s.Bytes)
			names = append(names, fmt.Sprintf("%d %s %s", s.Bytes, s.Name, s.Module))
		}
	}
	slices.Sort(sizes)
	return sizes, names
}

// difference returns the elements of the sorted lists that the other lacks.
func difference(a, b []int64) (onlyA, onlyB []int64) {
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0] < b[0]:
			onlyA, a = append(onlyA, a[0]), a[1:]
		case len(a) == 0 || b[0] < a[0]:
			onlyB, b = append(onlyB, b[0]), b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	return onlyA, onlyB
}

// TestSavedOracle compares what autograd saves, storage by storage, with
// PyTorch: scripts/saved_oracle.py made the files and the numbers.
func TestSavedOracle(t *testing.T) {
	cases := readCases(t)
	if *oracle != "" {
		cases = oracleCases(t, *oracle)
	}
	type key struct{ kind, prec string }
	runs, exact := map[key]int{}, map[key]int{}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			for i := range c.Runs {
				r := &c.Runs[i]
				k := key{c.Kind, r.Prec}
				runs[k]++
				if s := compareSaved(c, r); s != "" {
					t.Errorf("batch %d %s: %s", r.Batch, r.Prec, s)
				} else {
					exact[k]++
				}
			}
		})
	}
	for _, kind := range []string{"op", "net", "model"} {
		for _, prec := range []string{"fp32", "amp-bf16"} {
			if k := (key{kind, prec}); runs[k] > 0 {
				t.Logf("%-5s %-8s exact %d of %d", kind, prec, exact[k], runs[k])
			}
		}
	}
}

// compareSaved returns what is wrong with a run, "" if nothing is.
func compareSaved(c *savedCase, r *savedRun) string {
	b, err := c.build(r)
	if err != nil {
		return err.Error()
	}
	if err := b.Check(); err != nil {
		return err.Error()
	}
	var out []string
	got, names := savedSizes(b.Program)
	sum := int64(0)
	for _, n := range got {
		sum += n
	}
	if extra, missing := difference(got, r.Sizes); len(extra) > 0 || len(missing) > 0 {
		out = append(out, fmt.Sprintf("%d bytes saved, PyTorch %d (%+.3f%%): saved too much %v, too little %v\nsaved: %s",
			sum, r.Bytes, 100*(float64(sum)/float64(r.Bytes)-1), extra, missing, strings.Join(names, "; ")))
	}
	for _, w := range b.Warnings {
		if w.Code == "unknown-operator" || w.Code == "shape-differs" || w.Code == "unknown-shape" {
			out = append(out, w.Code+": "+w.Message)
		}
	}
	return strings.Join(out, "\n")
}

// readCases reads the numbers of the small cases whose files are here.
func readCases(t *testing.T) []*savedCase {
	f, err := os.Open(filepath.Join("testdata", "saved.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []*savedCase
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<22)
	for sc.Scan() {
		c := &savedCase{}
		if err := json.Unmarshal(sc.Bytes(), c); err != nil {
			t.Fatal(err)
		}
		c.path = filepath.Join("testdata", "saved", strings.ReplaceAll(c.Name, "/", "_")+".onnx")
		if c.Kind != "model" {
			out = append(out, c)
		}
	}
	return out
}

// oracleCases reads a directory of the oracle's.
func oracleCases(t *testing.T, dir string) []*savedCase {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no cases: %v", dir, err)
	}
	var out []*savedCase
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		c := &savedCase{path: strings.TrimSuffix(p, ".json") + ".onnx"}
		if err := json.Unmarshal(data, c); err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		if _, err := os.Stat(c.path); err != nil || len(c.Runs) == 0 {
			continue
		}
		for i := range c.Runs {
			c.Runs[i].Sizes = rowSizes(t, c.Runs[i].Rows)
		}
		out = append(out, c)
	}
	return out
}

// rowSizes reads the bytes of the distinct storages of a run.
func rowSizes(t *testing.T, rows []json.RawMessage) []int64 {
	sizes := []int64{}
	for _, raw := range rows {
		var shape []int64
		var dtype string
		var n, fresh int64
		if err := json.Unmarshal(raw, &[]any{&shape, &dtype, &n, &fresh}); err != nil {
			t.Fatal(err)
		}
		if fresh == 1 && n > 0 {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	return sizes
}
