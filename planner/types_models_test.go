package planner

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// typesOff are runs of the models of libraries whose saved bytes are not PyTorch's,
// and by what share at most: what functions and regions without lines compute in another type.
var typesOff = map[string]float64{
	"hf_olmo bf16": 0.007, "hf_nanochat bf16": 0.152, "hf_nemotron amp-bf16": 0.147,
	"diff_auraflow amp-bf16": 0.002, "diff_hunyuan_dit bf16": 0.0001, "diff_hunyuan_dit amp-bf16": 0.0001,
	"diff_ltx bf16": 0.051, "diff_ltx amp-bf16": 0.007, "diff_wan bf16": 0.034, "diff_wan amp-bf16": 0.029,
	"diff_sana bf16": 0.089, "diff_sana amp-bf16": 0.037,
}

// TestTypesModels compares what autograd saves of small models of transformers and
// diffusers with PyTorch's fake tensors (scripts/pytorch/types_models.py), from float32 files.
func TestTypesModels(t *testing.T) {
	testdata.Sequential(t)
	compareTypes(t, "types_models.tar.xz", 20, typesOff)
}

// TestTypesLines compares it of plain modules whose casts only source lines show
// (scripts/pytorch/types_lines.py).
func TestTypesLines(t *testing.T) {
	testdata.Sequential(t)
	compareTypes(t, "types_lines.tar.xz", 5, nil)
}

// compareTypes compares the bytes that the models of an archive save with PyTorch's.
func compareTypes(t *testing.T, archive string, least int, off map[string]float64) {
	dir, want := t.TempDir(), map[string]map[string]int64{}
	for name, data := range testdata.Archived(t, filepath.Join("testdata", archive)) {
		var err error
		if name == "saved.json" {
			err = json.Unmarshal(data, &want)
		} else {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(want) < least {
		t.Fatalf("%d models", len(want))
	}
	for name, runs := range want {
		m, err := Open(filepath.Join(dir, name+".onnx"))
		if err != nil {
			t.Fatal(err)
		}
		for precision, n := range runs {
			rep, err := m.Analyze(t.Context(), Config{Precision: precision, Loss: "sum", Attention: "eager", Optimizer: "none", Checkpoint: "none", Runtime: measuredRelease})
			if err != nil {
				t.Errorf("%s %s: %v", name, precision, err)
				continue
			}
			if d := relative(rep.SavedBytes, n); math.Abs(d) > off[name+" "+precision] {
				t.Errorf("%s %s: saves %d bytes, PyTorch %d (%+.2f%%)", name, precision, rep.SavedBytes, n, 100*d)
			}
		}
	}
}
