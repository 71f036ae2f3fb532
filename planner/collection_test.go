package planner

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
)

// A truth is one measured run of step_memory.jsonl.
type truth struct {
	Name, Prec, Opt, Mode, Ckpt string
	Batch                       int64
	Peak, Reserved              int64
	CkptModules                 []string `json:"ckpt_modules"`
	Saved                       int64    `json:"saved_unique_storage"`
	Steady                      struct {
		AfterForward  int64 `json:"after_fwd"`
		ForwardPeak   int64 `json:"fwd_peak"`
		BackwardPeak  int64 `json:"bwd_peak"`
		OptimizerPeak int64 `json:"opt_peak"`
	}
}

// optimizers maps the names of the measurements to ours.
var optimizers = map[string]string{"sgdm": "sgd-momentum"}

func (r *truth) config() Config {
	c := Config{Batch: r.Batch, Mode: r.Mode, Precision: r.Prec, Optimizer: r.Opt, Checkpoint: "none", Runtime: measuredRelease}
	if o := optimizers[r.Opt]; o != "" {
		c.Optimizer = o
	}
	for _, m := range r.CkptModules {
		c.Segments = append(c.Segments, train.Segment{Modules: []string{m}})
	}
	return c
}

// A maxTruth is one measured largest batch.
type maxTruth struct {
	Name, Prec, Opt string
	Cap             int64
	OK              int64 `json:"ok_batch"`   // ran
	Fail            int64 `json:"fail_batch"` // did not
}

// A collection is a set of models with what a GPU showed of them.
type collection struct {
	name                   string
	steps, batches, traces string // a file of runs, one of largest batches, a folder
	model                  func(name string) []byte
	models                 map[string]*Model
}

// collections are the zoo and the models held apart, both in the repository,
// and the twelve models of the shared data, which are absent on machines
// without it.
func collections(t *testing.T) []*collection {
	var list []*collection
	for _, name := range []string{"zoo", "held"} {
		dir := filepath.Join("testdata", name)
		list = append(list, &collection{name: name, steps: filepath.Join(dir, "steps.jsonl.xz"), batches: filepath.Join(dir, "max_batch.jsonl"), traces: filepath.Join(dir, "traces"),
			model: func(name string) []byte { return readFile(t, filepath.Join(dir, "models", name+".onnx.xz")) }})
	}
	if dir := sharedDir(t); dir != "" {
		list = append(list, &collection{name: "twelve", steps: filepath.Join(dir, "truth", "step_memory.jsonl"), batches: filepath.Join(dir, "truth", "max_batch.jsonl"),
			traces: filepath.Join(dir, "truth", "traces"), model: func(name string) []byte { return readFile(t, filepath.Join(dir, "models", name+".dyn-train.onnx")) }})
	}
	for _, c := range list {
		c.models = map[string]*Model{}
	}
	return list
}

// sharedDir is the shared data, or "" where it is absent.
func sharedDir(t *testing.T) (dir string) {
	t.Run("shared", func(t *testing.T) { dir = testdata.Shared(t) })
	return dir
}

// readFile reads a file, decompressed by its extension.
func readFile(t *testing.T, path string) []byte {
	t.Helper()
	if filepath.Ext(path) == ".xz" {
		return testdata.Unpacked(t, path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// open loads a model of the collection, once.
func (c *collection) open(t *testing.T, name string) *Model {
	t.Helper()
	if m := c.models[name]; m != nil {
		return m
	}
	path := filepath.Join(t.TempDir(), name+".onnx")
	if err := os.WriteFile(path, c.model(name), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	c.models[name] = m
	return m
}

func readLines[T any](t *testing.T, path string) []T {
	t.Helper()
	var out []T
	sc := bufio.NewScanner(bytes.NewReader(readFile(t, path)))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var r T
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func (c *collection) runs(t *testing.T) []truth { return readLines[truth](t, c.steps) }
