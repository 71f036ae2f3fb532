package onnx_test

import (
	"bufio"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// models returns the model files in a folder of the shared data, sorted.
func models(t testing.TB, elem ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(testdata.Shared(t, elem...), func(path string, e fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".onnx") || strings.HasSuffix(path, ".model.pb") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestLoadAll loads every shared model. The only ones that may fail are those
// that the onnx package's own tests want rejected.
func TestLoadAll(t *testing.T) {
	rejected := rejectedCases(t)
	warnings := map[string]int{}
	for _, folder := range []struct {
		name  string
		files int
	}{
		{"models", 25}, {"onnx/backend", 1951}, {"onnx/real", 58}, {"onnx/shape-cases", 1144},
	} {
		files := models(t, filepath.FromSlash(folder.name))
		if len(files) < folder.files {
			t.Errorf("%s: %d files, want %d", folder.name, len(files), folder.files)
		}
		failed := 0
		for _, path := range files {
			g, err := onnx.Load(path)
			if err != nil {
				failed++
				if !rejected[filepath.Base(path)] || !strings.HasPrefix(err.Error(), path+": ") || strings.Contains(err.Error(), "\n") {
					t.Error(err)
				}
				continue
			}
			if err := graph.Check(g); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if len(g.Model.SHA256) != 64 || g.Model.Path != path {
				t.Errorf("%s: Path %q, SHA256 %q", path, g.Model.Path, g.Model.SHA256)
			}
			for _, w := range g.Model.Warnings {
				warnings[w.Code]++
			}
		}
		t.Logf("%s: %d files, %d rejected", folder.name, len(files), failed)
	}
	for _, code := range []string{"unsorted", "no-opset", "no-ir-version", "overridable-initializer"} {
		if warnings[code] == 0 {
			t.Errorf("no file has warning %q, so nothing tests it: %v", code, warnings)
		}
	}
}

// rejectedCases returns the shape-inference models that must be rejected.
func rejectedCases(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	jsonLines(t, testdata.Shared(t, "onnx", "shape-cases", "cases.jsonl"), func(line []byte) {
		var c struct{ Model, Error string }
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if c.Error != "" {
			out[filepath.Base(c.Model)] = true
		}
	})
	return out
}

func jsonLines(t *testing.T, path string, visit func(line []byte)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		visit(s.Bytes())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestSHA256 compares with the sums of coreutils' sha256sum.
func TestSHA256(t *testing.T) {
	path := filepath.Join(t.TempDir(), "abc")
	if err := os.WriteFile(path, []byte("abc"), 0o666); err != nil {
		t.Fatal(err)
	}
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if got, err := onnx.SHA256(path); got != want || err != nil {
		t.Errorf("SHA256 = %s, %v; want %s", got, err, want)
	}
	if _, err := onnx.SHA256(path + ".no"); err == nil {
		t.Error("no error for a missing file")
	}
}

// TestExporterMetadata looks for what lifting needs of the exporter's metadata.
func TestExporterMetadata(t *testing.T) {
	g, err := onnx.Load(testdata.Shared(t, "models", "llama_250m.dyn-train.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.MetaValue("namespace") != "" && n.MetaValue("pkg.torch.onnx.fx_node") != "" {
			kept++
		}
	}
	if kept < len(g.Nodes)/2 {
		t.Errorf("%d of %d nodes have a namespace and an fx node", kept, len(g.Nodes))
	}
}

// TestLoadMemory bounds what loading the largest file allocates.
func TestLoadMemory(t *testing.T) {
	path := testdata.Shared(t, "models", "llama_250m.dyn-train.onnx")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := onnx.Load(path); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("%d bytes allocated for a file of 2.5 MB", used)
	}
}
