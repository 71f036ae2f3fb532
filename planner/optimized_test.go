package planner

import (
	"path/filepath"
	"strings"
	"testing"
)

// A file that the exporter's optimizer went over is the same model: its parameters, its step's bytes, its
// names, at every size (scripts/export/optimized_samples.py).
func TestOptimizedExports(t *testing.T) {
	files, err := filepath.Glob("testdata/optimized/*.optimized.onnx")
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		optimized, plain := answersOf(t, file), answersOf(t, strings.Replace(file, ".optimized", "", 1))
		for i, a := range optimized {
			b := plain[i]
			if a.Model.Parameters != b.Model.Parameters || a.Model.Lift != b.Model.Lift {
				t.Errorf("%s: %d parameters by %s, want %d by %s", file, a.Model.Parameters, a.Model.Lift, b.Model.Parameters, b.Model.Lift)
			}
			// numbers such as the ends of a slice lie in the file as tensors of eight bytes
			if d := a.Peak.RequestedBytes - b.Peak.RequestedBytes; d < 0 || d > 64 {
				t.Errorf("%s: %d bytes requested at batch %d, want %d", file, a.Peak.RequestedBytes, a.Config.Batch, b.Peak.RequestedBytes)
			}
		}
	}
}

// answersOf asks one open model for several batches.
func answersOf(t *testing.T, file string) (out []*Answer) {
	m, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, batch := range []int64{2, 64, 3} {
		c := Config{Batch: batch}
		if strings.Contains(file, "positions") {
			c.Dims = map[string]int64{"seq": 8}
		}
		a, err := m.Analyze(t.Context(), c)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, a)
	}
	return out
}
