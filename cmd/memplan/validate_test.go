package main

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entries are the .npy files of a .npz file by their names without the ending.
func entries(t *testing.T, path string) map[string][]byte {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = z.Close() }() // it is only read
	out := map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if out[strings.TrimSuffix(f.Name, ".npy")], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// npz writes a .npz file as numpy.savez does: stored, each array as NAME.npy.
func npz(t *testing.T, arrays map[string][]byte) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, data := range arrays {
		e, err := w.CreateHeader(&zip.FileHeader{Name: name + ".npy", Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "arrays.npz")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestArchives: what PyTorch was given and what it computed, as two files.
func TestArchives(t *testing.T) {
	golden := filepath.Join("..", "..", "validate", "testdata", "golden", "gpt")
	data := entries(t, golden+".npz")
	want := map[string][]byte{"output": data["output0"]}
	for name, a := range data {
		if p, ok := strings.CutPrefix(name, "grad1:"); ok {
			want["grad:"+p] = a
		}
	}
	given := npz(t, map[string][]byte{"input0": data["input0"], "target": data["target"]})
	validate := func(args ...string) (exitCode, string, string) {
		return memplan(append([]string{"validate", golden + ".onnx", "--batch", "2", "--device", "cpu", "--checkpoint", "all", "--steps", "1"}, args...)...)
	}
	code, out, errw := validate("--input", given, "--expect", npz(t, want), "--tolerance", "1e-5")
	if n := strings.Count(out, "expected "); code != exitYes || n != len(want) {
		t.Errorf("code %d, %d of %d arrays compared\n%s%s", code, n, len(want), out, errw)
	}

	// The archive's weights count: those of another parameter make other numbers. A later flag wins.
	other := npz(t, map[string][]byte{"ln3.weight": data["grad1:ln3.weight"]})
	if code, out, _ := validate("--input", given, "--input", other, "--expect", npz(t, want)); code != exitNo || !strings.Contains(out, "expected output") {
		t.Errorf("other weights: code %d\n%s", code, out)
	}
	one := filepath.Join(t.TempDir(), "one.npy")
	if err := os.WriteFile(one, data["grad1:ln3.weight"], 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errw := validate("--input", given, "--input", other, "--input", "ln3.weight="+one, "--expect", "grad:ln3.weight="+one, "--tolerance", "1000"); code != exitYes {
		t.Errorf("both kinds: code %d\n%s", code, errw)
	}
}

// TestBadArchives: one line says what is wrong, and nothing runs.
func TestBadArchives(t *testing.T) {
	golden := filepath.Join("..", "..", "validate", "testdata", "golden", "gpt")
	data := entries(t, golden+".npz")
	whole, err := os.ReadFile(npz(t, map[string][]byte{"input0": data["input0"]}))
	if err != nil {
		t.Fatal(err)
	}
	file := func(b []byte) string {
		path := filepath.Join(t.TempDir(), "bad.npz")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	flipped := bytes.Clone(whole)
	flipped[bytes.Index(whole, data["input0"])+len(data["input0"])-8] ^= 1
	for name, c := range map[string]struct{ flag, file, want string }{
		"none":                {"--input", filepath.Join(t.TempDir(), "none.npz"), "no such file"},
		"no archive":          {"--expect", file(data["input0"]), "not a .npz file"},
		"cut":                 {"--input", file(whole[:len(whole)/2]), "not a .npz file"},
		"a bit flipped":       {"--input", file(flipped), "input0: zip: checksum error"},
		"short array":         {"--input", npz(t, map[string][]byte{"input0": data["input0"][:len(data["input0"])-4]}), "an array of shape [2 6] takes 224: is the file whole?"},
		"no numbers":          {"--input", npz(t, map[string][]byte{"input0": data["meta"]}), "NumPy's type"},
		"no .npy":             {"--expect", npz(t, map[string][]byte{"output": []byte("text")}), "output: not a .npy file"},
		"other size":          {"--input", npz(t, map[string][]byte{"input0": data["grad1:up.bias"]}), "input0: an array of shape [24], the model takes [2 6]"},
		"other input":         {"--input", npz(t, map[string][]byte{"tokens": data["input0"]}), "--input tokens: the model has no such input or weight: it has input0, "},
		"an inner value":      {"--input", npz(t, map[string][]byte{"output": data["output0"]}), "--input output: the model has no such input or weight"},
		"misspelled gradient": {"--expect", npz(t, map[string][]byte{"grad:ln3.wieght": data["grad1:ln3.weight"]}), "did you mean grad:ln3.weight?"},
		"other gradient":      {"--expect", npz(t, map[string][]byte{"grad:nothing/like:it": data["grad1:ln3.weight"]}), "the step has no output or gradient grad:nothing/like:it: it has output, grad:tok.weight"},
		"named archive":       {"--expect", "output=" + file(whole), "give the file alone"},
		"no arrays":           {"--expect", npz(t, nil), "holds no arrays"},
		"neither":             {"--expect", "output.npy", "want NAME=FILE or FILE.npz"},
	} {
		code, out, errw := memplan("validate", golden+".onnx", "--batch", "2", "--device", "cpu", c.flag, c.file)
		if code != exitUnknown || out != "" || strings.Count(errw, "\n") != 1 || !strings.Contains(errw, c.want) {
			t.Errorf("%s: code %d\n%s%s", name, code, out, errw)
		}
	}

	// Of two arrays of one name only one would be compared.
	output := npz(t, map[string][]byte{"output": data["output0"]})
	code, out, errw := memplan("validate", golden+".onnx", "--batch", "2", "--device", "cpu", "--expect", output, "--expect", output)
	if code != exitUnknown || out != "" || !strings.Contains(errw, "output: given twice") {
		t.Errorf("twice: code %d\n%s%s", code, out, errw)
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for range 2 {
		if e, err := w.Create("output.npy"); err != nil {
			t.Fatal(err)
		} else if _, err := e.Write(data["output0"]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	code, out, errw = memplan("validate", golden+".onnx", "--batch", "2", "--device", "cpu", "--expect", file(b.Bytes()))
	if code != exitUnknown || out != "" || !strings.Contains(errw, "two arrays are called output") {
		t.Errorf("an archive with two: code %d\n%s%s", code, out, errw)
	}
}
