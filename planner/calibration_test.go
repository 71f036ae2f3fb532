package planner

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// A calibration of a machine that the tables describe gives their prediction.
func TestCalibration(t *testing.T) {
	testdata.Sequential(t)
	file := filepath.Join("profile", "testdata", "calibration-h200.json")
	for _, precision := range []string{"fp32", "amp-bf16"} {
		for _, model := range []string{"resnet50", "gpt2", "vit_b_16"} {
			m, err := Open(filepath.Join("..", "models", model+".onnx"))
			if err != nil {
				t.Fatal(err)
			}
			cfg := Config{Batch: 4, Precision: precision, GPU: "h200", Runtime: measuredRelease}
			table, err := m.Analyze(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			cfg.GPU, cfg.Runtime = file, file
			measured, err := m.Analyze(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			table.Peak.ProcessBytes += measured.Peak.ProcessBytes - measured.Peak.ReservedBytes - (table.Peak.ProcessBytes - table.Peak.ReservedBytes) // the contexts differ
			if table.Peak != measured.Peak || !reflect.DeepEqual(table.Breakdown, measured.Breakdown) {
				t.Errorf("%s %s: %+v, by the tables %+v", model, precision, measured.Peak, table.Peak)
			}
		}
	}
}
