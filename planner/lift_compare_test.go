package planner

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/internal/testdata"
)

// liftPairs are exports of one model: the file without metadata, how far its
// predictions may be from those of the training export with metadata, and the
// warning that must explain a larger distance.
var liftPairs = []struct {
	model, kind string
	within      float64
	warns       string
}{
	{"resnet18", "ts-train", 0.01, ""}, {"resnet50", "ts-train", 0.01, ""}, {"densenet121", "ts-train", 0.01, ""},
	{"bert_base_mlm", "ts-train", 0.01, ""}, {"vit_b_16", "ts-train", 0.01, ""},
	{"resnet18", "dyn-eval", 0.01, ""}, {"resnet50", "dyn-eval", 0.01, ""}, {"densenet121", "dyn-eval", 0.01, ""},
	{"bert_base_mlm", "dyn-eval", 0.01, lift.EvalMode}, {"vit_b_16", "dyn-eval", 0.01, ""}, {"gpt2", "dyn-eval", 0.01, lift.EvalMode},
	{"llama_250m", "dyn-train-23", 0, ""}, {"vit_b_16", "dyn-train-23", 0, ""},
}

// TestLiftCompare predicts the same training step from exports with and
// without metadata.
func TestLiftCompare(t *testing.T) {
	cfg := Config{Batch: 8, Runtime: measuredRelease, Mode: "train", Precision: "fp32", Optimizer: "adamw", Checkpoint: "none"}
	for _, p := range liftPairs {
		want := analyzeShared(t, p.model+".dyn-train.onnx", cfg)
		got := analyzeShared(t, p.model+"."+p.kind+".onnx", cfg)
		if got == nil || want == nil {
			continue
		}
		e, es := relative(got.Peak.AllocatedBytes, want.Peak.AllocatedBytes), relative(got.SavedBytes, want.SavedBytes)
		t.Logf("%-14s %-12s %-8s allocated %12d of %12d %+7.3f%%  saved %12d of %12d %+7.3f%%  params %d of %d", p.model, p.kind, got.Model.Lift,
			got.Peak.AllocatedBytes, want.Peak.AllocatedBytes, 100*e, got.SavedBytes, want.SavedBytes, 100*es, got.Model.Parameters, want.Model.Parameters)
		for _, w := range got.Warnings {
			t.Logf("    %s: %s", w.Code, w.Message)
		}
		off := max(e, -e) > p.within || max(es, -es) > p.within
		if off && (p.warns == "" || !warned(got.Warnings, p.warns)) {
			t.Errorf("%s.%s: peak off by %.2f%%, saved by %.2f%%, without the warning %q", p.model, p.kind, 100*e, 100*es, p.warns)
		}
	}
}

func warned(ws []graph.Warning, code string) bool {
	return slices.ContainsFunc(ws, func(w graph.Warning) bool { return w.Code == code })
}

func analyzeShared(t *testing.T, name string, cfg Config) *Report {
	t.Helper()
	m, err := Open(testdata.Shared(t, "models", name))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return nil
	}
	r, err := m.Analyze(t.Context(), cfg)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return nil
	}
	return r.Report
}

// TestLiftReal analyses an inference of every real model.
func TestLiftReal(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testdata.Shared(t, "onnx", "real"), "*.onnx"))
	if err != nil || len(files) == 0 {
		t.Fatal("no models", err)
	}
	ok := liftAll(t, files)
	t.Logf("%d of %d real models", ok, len(files))
	if ok < 50 {
		t.Errorf("only %d of %d real models can be analysed", ok, len(files))
	}
}

// TestLiftBackend analyses an inference of ONNX's own test models.
func TestLiftBackend(t *testing.T) {
	testdata.Sequential(t)
	files, err := filepath.Glob(filepath.Join(testdata.Shared(t, "onnx", "backend", "models"), "*.onnx"))
	if err != nil || len(files) == 0 {
		t.Fatal("no models", err)
	}
	ok := liftAll(t, files)
	t.Logf("%d of %d backend models", ok, len(files))
}

// analyzeInfer analyses an inference at batch 1, or, where the file's batch is
// fixed or other dims are free, with every free dim at 64, or at 512.
func analyzeInfer(t *testing.T, m *Model) error {
	cfg := Config{Batch: 1, Runtime: measuredRelease, Mode: "infer", Precision: "fp32", Optimizer: "none", Checkpoint: "none"}
	_, first := m.Analyze(t.Context(), cfg)
	if first == nil {
		return nil
	}
	cfg.Batch, cfg.Dims = 0, map[string]int64{}
	if err := m.bind(0, nil, nil); err != nil {
		return err
	}
	free := infer.Unbound(m.g)
	var err error
	for _, n := range []int64{64, 512} {
		for _, s := range free {
			cfg.Dims[s] = n
		}
		if _, err = m.Analyze(t.Context(), cfg); err == nil {
			break
		}
	}
	return err
}

// liftAll analyses each file, logs why one cannot be and which operators stay
// as they are, and returns how many could.
func liftAll(t *testing.T, files []string) int {
	ok := 0
	kept := map[string]int{}
	for _, f := range files {
		m, err := Open(f)
		if err != nil {
			t.Logf("%s: open: %v", filepath.Base(f), err)
			continue
		}
		if err := analyzeInfer(t, m); err != nil {
			t.Logf("%s: %v", filepath.Base(f), err)
		} else {
			ok++
		}
		if m.lifted != nil {
			for _, op := range m.lifted.Unlifted {
				kept[op]++
			}
		}
	}
	ops := make([]string, 0, len(kept))
	for op := range kept {
		ops = append(ops, op)
	}
	slices.SortFunc(ops, func(a, b string) int {
		if kept[a] != kept[b] {
			return kept[b] - kept[a]
		}
		return strings.Compare(a, b)
	})
	for _, op := range ops[:min(len(ops), 40)] {
		t.Logf("not lifted in %3d models: %s", kept[op], op)
	}
	return ok
}
