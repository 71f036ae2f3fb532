package planner

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/internal/testdata"
)

// withCapture is a model file with a capture in its metadata: a repeated field of
// a protobuf message may stand anywhere, also at its end.
func withCapture(t testing.TB, model, capture []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	if _, err := w.Write(capture); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	field := func(number int, b []byte) []byte {
		out := binary.AppendUvarint(nil, uint64(number)<<3|2)
		return append(binary.AppendUvarint(out, uint64(len(b))), b...)
	}
	prop := append(field(1, []byte(lift.CaptureKey)), field(2, []byte(base64.StdEncoding.EncodeToString(z.Bytes())))...)
	return append(slices.Clone(model), field(14, prop)...)
}

// captured are the models of testdata/captured.tar.xz, by the folder that has
// their exports: captures of rounds 1 to 3 (models) and 4 (round4).
func captured(t *testing.T) map[string]*collection {
	docs := map[string][]byte{}
	for name, data := range testdata.Archived(t, filepath.Join("testdata", "captured.tar.xz")) {
		docs[strings.TrimSuffix(name, ".json")] = data
	}
	out := map[string]*collection{}
	for name := range docs {
		folder := path.Dir(name)
		if out[folder] == nil {
			out[folder] = &collection{name: "captured", models: map[string]*Model{}}
			out[folder].model = func(name string) []byte {
				doc, ok := docs[folder+"/"+name]
				if !ok {
					return nil
				}
				return withCapture(t, readFile(t, filepath.Join(roundsDir, folder, name+".onnx.xz")), doc)
			}
		}
	}
	return out
}

// TestCaptured predicts runs from files with captures: those that a GPU ran, and
// those that were recorded without one.
func TestCaptured(t *testing.T) {
	testdata.Sequential(t)
	all := captured(t)
	var measured, live []float64
	refused := 0
	for round := 1; round <= 3; round++ {
		for _, r := range readLines[roundRun](t, filepath.Join(roundsDir, fmt.Sprintf("round%d.steps.jsonl.xz", round))) {
			c := all["models"]
			if c.model(r.Name) == nil {
				continue
			}
			rep, err := c.open(t, r.Name).Analyze(t.Context(), r.config())
			if err != nil {
				refused++
				t.Logf("%s %s %s: %v", r.Name, r.Prec, r.Mode, err)
				continue
			}
			if rep.Model.Lift != string(lift.Captured) {
				t.Errorf("%s: lift from %s, %v", r.Name, rep.Model.Lift, rep.Model.Capture)
			}
			e := relative(rep.Peak.AllocatedBytes, r.Peak)
			measured = append(measured, math.Abs(e))
			t.Logf("%-26s %5d %-8s %-5s %-5s allocated %+8.3f%% reserved %+7.2f%%", r.Name, r.Batch, r.Prec, r.Opt, r.Mode, 100*e, 100*relative(rep.Peak.ReservedBytes, r.Reserved))
		}
	}
	for _, r := range readLines[recorded](t, filepath.Join(roundsDir, "recorded.jsonl.xz")) {
		c := all["round4"]
		if c.model(r.Name) == nil {
			continue
		}
		n := nearTo(&r, foretell(t, c, &r))
		if n.refused {
			refused++
			continue
		}
		live = append(live, math.Abs(n.error))
		t.Logf("4 %-26s %5d %-8s %-5s %-5s live %+8.3f%%", r.Name, r.Batch, r.Prec, r.Opt, r.Mode, 100*n.error)
	}
	am, a95, aw := summary(measured)
	lm, l95, lw := summary(live)
	t.Logf("allocated, %d runs of a GPU: median %.3f%%, 95%% within %.3f%%, worst %.3f%%", len(measured), 100*am, 100*a95, 100*aw)
	t.Logf("live, %d runs recorded without one: median %.3f%%, 95%% within %.3f%%, worst %.3f%%; %d refused", len(live), 100*lm, 100*l95, 100*lw, refused)
	if len(measured) < 100 || am > 0.0005 || a95 > 0.007 || len(live) < 40 || l95 > 0.0005 || refused > 0 {
		t.Error("it got worse")
	}
}

// openCaptured opens the sample with a capture of its own.
func openCaptured(t *testing.T, doc string) (*Model, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(file, withCapture(t, readFile(t, filepath.Join("..", "models", "mlp.onnx")), []byte(doc)), 0o644); err != nil {
		t.Fatal(err)
	}
	return Open(file)
}

// A file whose capture cannot be read is an error that says so, not a file without
// one; without the run that is asked for, the file's graph stands in; and what PyTorch
// refuses is an error in its words.
func TestCaptureMissing(t *testing.T) {
	if _, err := openCaptured(t, `{"schema": 1, "tensors": [{}]}`); err == nil || !strings.Contains(err.Error(), `memplan.capture: tensor 0, "": unknown kind ""`) {
		t.Errorf("a broken capture: %v", err)
	}
	m, err := openCaptured(t, `{"schema": 1, "torch": "2.11.0", "class": "own.MLP", "tensors": [{"kind": "input", "name": "x", "shape": [1, 2, 3], "dtype": "float32"}],
		"variants": [{"mode": "train", "precision": "fp32"}, {"mode": "train", "precision": "bf16", "error": "RuntimeError: no such kernel\nTraceback"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ precision, want string }{{"fp32", "in the capture"}, {"amp-bf16", "the capture has no run in train, amp-bf16 (it has: train fp32)"}} {
		rep, err := m.Analyze(t.Context(), Config{Batch: 8, Precision: c.precision})
		if err != nil {
			t.Fatal(err)
		}
		if rep.Model.Lift != string(lift.Metadata) || rep.Model.Capture == nil || !strings.Contains(rep.Model.Capture.Unused, c.want) ||
			!slices.ContainsFunc(rep.Warnings, func(w graph.Warning) bool { return w.Code == "capture-unused" }) {
			t.Errorf("%s: lift from %s, %+v, %v", c.precision, rep.Model.Lift, rep.Model.Capture, rep.Warnings)
		}
	}
	if _, err := m.Analyze(t.Context(), Config{Batch: 8, Precision: "bf16"}); err == nil || !strings.HasSuffix(err.Error(), "PyTorch says: RuntimeError: no such kernel") {
		t.Errorf("a refused precision: %v", err)
	}
}
