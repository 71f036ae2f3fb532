package planner

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/internal/testdata"
)

// optimizedApart are models of which the optimized file does not tell all: the
// difference of the bytes requested that is accepted, which a range must hold.
var optimizedApart = map[string]int64{
	"hf_gptneox": 2048, // the tables of sines and cosines, and the frequencies that they are computed from
	"gates":      8,    // a function of a parameter runs where its result is read first
}

// A file that the exporter's optimizer went over is the same model: its parameters, which PyTorch
// counted, its step's bytes at every size, its lift by the exporter's metadata
// (scripts/export/optimized_samples.py).
func TestOptimizedExports(t *testing.T) {
	dir, parameters := t.TempDir(), map[string]int64{}
	for name, data := range testdata.Archived(t, filepath.Join("testdata", "optimized.tar.xz")) {
		name = filepath.Base(name)
		if model, ok := strings.CutSuffix(name, ".txt"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			parameters[model] = n
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(parameters) != 13 {
		t.Fatalf("%d models", len(parameters))
	}
	for _, model := range slices.Sorted(maps.Keys(parameters)) {
		t.Run(model, func(t *testing.T) {
			optimized, plain := answersOf(t, filepath.Join(dir, model+".optimized.onnx")), answersOf(t, filepath.Join(dir, model+".onnx"))
			for i, a := range optimized {
				b := plain[i]
				if a.Model.Parameters != parameters[model] || a.Model.Lift != string(lift.Metadata) {
					t.Errorf("%d parameters by %s, want %d by metadata", a.Model.Parameters, a.Model.Lift, parameters[model])
				}
				sameStep(t, optimizedApart[model], a, b)
				if eval := strings.HasPrefix(model, "eval_"); eval != warned(a.Warnings, lift.IdleDropout) || eval != warned(b.Warnings, lift.IdleDropout) {
					t.Errorf("batch %d: warnings %v and %v, want those of evaluation mode: %t", a.Config.Batch, a.Warnings, b.Warnings, eval)
				}
			}
		})
	}
}

// sameStep compares the step of an optimized file with the other's.
func sameStep(t *testing.T, apart int64, a, b *Answer) {
	t.Helper()
	d := a.Peak.RequestedBytes - b.Peak.RequestedBytes
	if max(d, -d) > apart {
		t.Errorf("batch %d: %d bytes requested, want %d", a.Config.Batch, a.Peak.RequestedBytes, b.Peak.RequestedBytes)
	}
	if apart > 8 && !warned(a.Warnings, lift.Optimised) {
		t.Errorf("batch %d: no warning of what the file does not show: %v", a.Config.Batch, a.Warnings)
	}
	if a.Peak.UpperBoundBytes < b.Peak.ReservedBytes {
		t.Errorf("batch %d: at most %d bytes, want at least %d", a.Config.Batch, a.Peak.UpperBoundBytes, b.Peak.ReservedBytes)
	}
}

// answersOf asks one open model for several batches.
func answersOf(t *testing.T, file string) (out []*Answer) {
	t.Helper()
	m, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, batch := range []int64{2, 64, 3} {
		c := Config{Batch: batch}
		if base := filepath.Base(file); strings.HasPrefix(base, "positions") || strings.HasPrefix(base, "attention_dynamic") {
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
