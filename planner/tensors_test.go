package planner

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// A tensorRun is a step that scripts/steps/tensors.py counted under the fake process group.
type tensorRun struct {
	Name            string
	Batch           int64
	TP              int
	Sequence, Lossy bool
	Forward, Loss   int64
	Backward        int64
	Optimizer       int64
}

// TestTensors predicts steps under tensor, sequence and loss parallelism. What was counted has
// none of cuBLAS's workspaces.
func TestTensors(t *testing.T) {
	models := map[string]*Model{}
	for _, name := range []string{"llama", "gpt", "vit"} {
		path := filepath.Join(t.TempDir(), name+".onnx")
		if err := os.WriteFile(path, testdata.Unpacked(t, "testdata/distributed/tensors-"+name+".onnx.xz"), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		models[name] = m
	}
	data, err := os.ReadFile("testdata/distributed/tensors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); n++ {
		var r tensorRun
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		c := Config{Batch: r.Batch, Optimizer: "sgd", Runtime: measuredRelease, GPU: "h200", Attention: "efficient", Parallel: fmt.Sprint("tp=", r.TP), TPLoss: r.Lossy}
		if r.Name == "llama" {
			c.Dims = map[string]int64{"seq": 128}
		}
		if r.Sequence {
			c.TPSequence = []string{"norms"}
		}
		rep, err := models[r.Name].Analyze(t.Context(), c)
		if err != nil {
			t.Errorf("%+v: %v", r, err)
			continue
		}
		got, want := rep.Parallel.PerRank[0].AllocatedBytes, max(r.Forward, r.Loss, r.Backward, r.Optimizer)
		for _, c := range rep.Breakdown {
			if c.Category == "workspace" {
				got -= c.Bytes
			}
		}
		if off := relative(got, want); off > 0.003 || off < -0.003 {
			t.Errorf("%s at batch %d, tp=%d, sequence %v, loss %v: %d bytes, counted %d (%+.2f%%)", r.Name, r.Batch, r.TP, r.Sequence, r.Lossy, got, want, 100*off)
		}
	}
	if n != 40 {
		t.Errorf("%d runs", n)
	}
}
