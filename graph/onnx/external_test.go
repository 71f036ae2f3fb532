package onnx_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/onnx"
)

// External data is not followed out of the model's folder by links (finding 12
// of the review of hostile files: a shape showed 16 bytes of another file), and
// what lies outside is read only where that is allowed.
func TestExternalLinks(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "secret"), filepath.Join(sub, "w.bin")} {
		if err := os.WriteFile(path, []byte("\x07\x00\x00\x00\x00\x00\x00\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"inside": "w.bin", "outside": "../secret", "absolute": filepath.Join(dir, "secret"), "chain": "outside", "folder": ".."} {
		if err := os.Symlink(target, filepath.Join(sub, name)); err != nil {
			t.Skip(err)
		}
	}
	path := filepath.Join(sub, "m.onnx")
	for location, ok := range map[string]bool{"w.bin": true, "inside": true, "outside": false, "absolute": false, "chain": false, "folder/secret": false, "../secret": false} {
		w := pb{}.int(1, 1).int(2, 7).str(8, "w").int(14, 1).msg(13, entry("location", location))
		if err := os.WriteFile(path, model(pb{}.msg(1, node("Relu", in("w"), in("y"))).msg(5, w)), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, outside := range []bool{false, true} {
			g, err := onnx.LoadFrom(files.Door{Outside: outside}, path)
			if err != nil {
				t.Fatal(err)
			}
			read := slices.Equal(g.Values[0].Const.Ints, []int64{7})
			if read != (ok || outside) || warned(g, "external-data") == read {
				t.Errorf("%s, outside %v: read %v, warnings %v", location, outside, read, g.Model.Warnings)
			}
			if !read && !strings.Contains(g.Model.Warnings[0].Message, "--allow-outside") {
				t.Errorf("%s: %s", location, g.Model.Warnings[0].Message)
			}
		}
	}
}
