package onnx_test

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// models returns the model files of the shared data, by folder.
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

func TestLoadAll(t *testing.T) {
	for _, folder := range []string{"models", "onnx/backend", "onnx/real", "onnx/shape-cases"} {
		files := models(t, filepath.FromSlash(folder))
		bad := 0
		for _, f := range files {
			g, err := onnx.Load(f)
			if err != nil {
				t.Log(err)
				bad++
				continue
			}
			if err := graph.Check(g); err != nil {
				t.Errorf("%s: %v", f, err)
			}
			if len(g.Nodes) == 0 {
				t.Logf("%s: no nodes", f)
			}
			for _, w := range g.Model.Warnings {
				t.Log(filepath.Base(f), w)
			}
		}
		t.Logf("%s: %d files, %d errors", folder, len(files), bad)
	}
}
