package validate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
)

// Weights are not read through a link out of the model's folder, unless that is
// allowed, and not from a folder.
func TestModelSourceLinks(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "secret"), filepath.Join(sub, "m.onnx")} {
		if err := os.WriteFile(path, []byte{0, 0, 0x20, 0x40}, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(sub, "link")); err != nil {
		t.Skip(err)
	}
	for location, want := range map[string]string{"link": "link: leads out of " + sub, "../secret": "leads out of", ".": "is a directory"} {
		g := &graph.Graph{Values: []graph.Value{{Name: "w", Kind: graph.Initializer,
			Const: &graph.Constant{Name: "w", Type: graph.Float32, Dims: []int64{1}, Ref: &graph.DataRef{Location: location, Length: 4}}}}}
		read := func(outside bool) (*Array, error) {
			return ModelSource(g, func() (*files.File, error) {
				return files.Door{Outside: outside}.Open(filepath.Join(sub, "m.onnx"), files.Model)
			})("w")
		}
		if a, err := read(false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %s", location, a, err, want)
		}
		if a, err := read(true); location != "." && (err != nil || a == nil || a.Values[0] != 2.5) {
			t.Errorf("%s with --allow-outside: %v, %v", location, a, err)
		}
	}
}
