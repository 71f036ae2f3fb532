package onnx

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/internal/testdata"
)

// TestWindows decodes with windows of other sizes, so that every field falls
// across a window's edge in one of them.
func TestWindows(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testdata.Shared(t, "onnx", "real"), "*.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 300<<10 {
			continue
		}
		want := decodeWith(t, data, windowSize)
		for _, size := range []int{16, 61, 1000} {
			if got := decodeWith(t, data, size); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: another result with a window of %d bytes", filepath.Base(path), size)
			}
		}
	}
}

// decodeWith decodes through a window of size bytes, compared without NaNs.
func decodeWith(t *testing.T, data []byte, size int) *file {
	t.Helper()
	r := newReader(bytes.NewReader(data), int64(len(data)), "m.onnx", DefaultMemory)
	r.buf = make([]byte, 0, size)
	d := &decoder{reader: r, model: &graph.Model{}, strings: map[string]string{}}
	f, err := d.decode()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestBudget finds that no real model comes near the bound on memory, which
// protects from files made of empty messages.
func TestBudget(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testdata.Shared(t, "models"), "*.onnx"))
	if err != nil || len(files) == 0 {
		t.Fatal("no models", err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r := newReader(bytes.NewReader(data), int64(len(data)), path, DefaultMemory)
		whole := r.budget
		d := &decoder{reader: r, model: &graph.Model{}, strings: map[string]string{}}
		if _, err := d.decode(); err != nil {
			t.Fatal(err)
		}
		if used := whole - r.budget; used > budgetRatio/2*int64(len(data)) {
			t.Errorf("%s: %d bytes charged for a file of %d", filepath.Base(path), used, len(data))
		}
	}
}
