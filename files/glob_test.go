package files

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestGlob(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "in")
	for _, name := range []string{"in/a.onnx", "in/b.onnx", "in/deep/er/c.onnx", "in/notes.txt", "out.onnx"} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir, filepath.Join(inside, "up")); err != nil {
		t.Log("no symbolic links here:", err)
	}
	door := Beside(filepath.Join(inside, ".memplan.yaml"), false)
	for pattern, want := range map[string][]string{
		"*.onnx":            {"a.onnx", "b.onnx"},
		"**/*.onnx":         {"a.onnx", "b.onnx", "deep/er/c.onnx"},
		"{a,b}.*":           {"a.onnx", "b.onnx"},
		"up/*.onnx":         nil,
		"de*":               nil, // a folder is no file
		"[ab].onnx":         {"a.onnx", "b.onnx"},
		"deep/**/c.onnx":    {"deep/er/c.onnx"},
		"nothing/here/*.on": nil,
	} {
		got, err := door.Glob(pattern)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", pattern, got, err, want)
		}
	}
	out := new(OutsideError)
	for _, pattern := range []string{"../*.onnx", filepath.Join(dir, "*.onnx")} {
		if _, err := door.Glob(pattern); !errors.As(err, &out) {
			t.Errorf("%s: %v", pattern, err)
		}
		got, err := Beside(filepath.Join(inside, ".memplan.yaml"), true).Glob(pattern)
		if filepath.IsAbs(pattern) && (err != nil || len(got) != 1) {
			t.Errorf("%s, allowed outside: %v, %v", pattern, got, err)
		}
	}
	if _, err := door.Glob("[a"); err == nil {
		t.Error("a bad pattern is taken")
	}
}
