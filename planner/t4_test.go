package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// othersTable compares with peaks that others published, of a card that
// nothing here was measured on: each must be within 5%.
func othersTable(t *testing.T) string {
	dir := filepath.Join("testdata", "t4")
	c := &collection{name: "t4", models: map[string]*Model{}, model: func(name string) []byte {
		if name == "resnet50" {
			data, err := os.ReadFile(filepath.Join("..", "models", "resnet50.onnx"))
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
		return readFile(t, filepath.Join(dir, name+".onnx.xz"))
	}}
	var b strings.Builder
	b.WriteString("| model | batch | allocated: measured | predicted | reserved: measured | predicted |\n|---|---|---|---|---|---|\n")
	for _, r := range readLines[struct {
		Name, Loss            string
		Batch, Peak, Reserved int64
		Hold                  bool
	}](t, filepath.Join(dir, "runs.jsonl")) {
		rep, err := c.open(t, r.Name).Analyze(t.Context(), Config{Batch: r.Batch, Precision: "amp-bf16", GPU: "t4", Loss: r.Loss, Hold: r.Hold, Checkpoint: "none", Runtime: measuredRelease})
		if err != nil {
			t.Fatal(err)
		}
		a, re := relative(rep.Peak.AllocatedBytes, r.Peak), relative(rep.Peak.ReservedBytes, r.Reserved)
		fmt.Fprintf(&b, "| %s | %d | %d | %+.2f%% | %d | %+.2f%% |\n", r.Name, r.Batch, r.Peak, 100*a, r.Reserved, 100*re)
		if max(a, -a, re, -re) > 0.05 {
			t.Errorf("%s at batch %d: allocated %+.2f%%, reserved %+.2f%%", r.Name, r.Batch, 100*a, 100*re)
		}
	}
	t.Log("\n" + b.String())
	return b.String()
}
