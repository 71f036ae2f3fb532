package testdata

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"iter"
	"os"
	"testing"

	"github.com/ulikunitz/xz"
)

// Unpacked returns what an .xz file holds.
func Unpacked(t testing.TB, path string) []byte {
	t.Helper()
	packed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := xz.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return data
}

// Archived yields the names and contents of the files of a .tar.xz archive, in
// its order.
func Archived(t testing.TB, path string) iter.Seq2[string, []byte] {
	t.Helper()
	return func(yield func(string, []byte) bool) {
		for r := tar.NewReader(bytes.NewReader(Unpacked(t, path))); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatalf("%s: %s: %v", path, h.Name, err)
			}
			if !yield(h.Name, data) {
				return
			}
		}
	}
}
