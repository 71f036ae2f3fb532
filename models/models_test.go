// Package models holds sample models; this test keeps its README true.
package models

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// Rows of the two tables of README.md that begin with a file's name.
var (
	shapeRow  = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+\\.onnx)` \\| [^|]+ \\| ([0-9]+) \\| [0-9]+ \\| [0-9]+ \\|")
	originRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+\\.onnx)` \\| `([0-9a-f]{64})` \\|")
)

func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	sizes, sums := rows(t, shapeRow, text), rows(t, originRow, text)
	files, err := filepath.Glob("*.onnx")
	if err != nil || len(files) == 0 {
		t.Fatalf("no models: %v", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		if got := hex.EncodeToString(sum[:]); got != sums[name] {
			t.Errorf("%s: sha256 %s, README.md has %q", name, got, sums[name])
		}
		if got := strconv.Itoa(len(data)); got != sizes[name] {
			t.Errorf("%s: %s bytes, README.md has %q", name, got, sizes[name])
		}
	}
	if len(sums) != len(files) || len(sizes) != len(files) {
		t.Errorf("%d files, %d rows of sizes, %d rows of origins", len(files), len(sizes), len(sums))
	}
}

// rows maps a file's name to the value in its row.
func rows(t *testing.T, re *regexp.Regexp, text []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range re.FindAllSubmatch(text, -1) {
		name := string(m[1])
		if _, twice := out[name]; twice {
			t.Errorf("README.md lists %s twice in one table", name)
		}
		out[name] = string(m[2])
	}
	return out
}
