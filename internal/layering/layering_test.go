package layering

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestRepository(t *testing.T) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..")
	faults, err := Check(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Error(f)
	}
}

// Every kind of violation, planted in a tree of one file.
func TestPlanted(t *testing.T) {
	const cu = "gorgonia.org/cu"
	for _, tt := range []struct {
		name, file, header, imp string // a header that names no package gets package p
		fault                   string // "" for an import that is fine
	}{
		{"to the left", "planner/a.go", "", Module + "/graph", ""},
		{"to the right", "graph/a.go", "", Module + "/planner", "a later layer"},
		{"to the right from a test", "graph/a_test.go", "", Module + "/planner", "a later layer"},
		{"to the right from an external test", "graph/a_test.go", "package graph_test", Module + "/planner", ""},
		{"to the right from code in a package named so", "graph/a.go", "package graph_test", Module + "/planner", "a later layer"},
		{"own package from an external test", "graph/a_test.go", "", Module + "/graph", ""},
		{"room to root", "graph/onnx/a.go", "", Module + "/graph", ""},
		{"root to room", "graph/a.go", "", Module + "/graph/onnx", "a later layer"},
		{"room to later room", "graph/aten/a.go", "", Module + "/graph/lift", "a later layer"},
		{"root after its room", "planner/a.go", "", Module + "/planner/profile", ""},
		{"room before its root", "planner/profile/a.go", "", Module + "/planner", "a later layer"},
		{"unknown package", "utils/a.go", "", "fmt", "not in the import order"},
		{"unknown room", "graph/misc/a.go", "", "fmt", "not in the import order"},
		{"import of an unknown package", "planner/a.go", "", Module + "/utils", "not in the import order"},
		{"inside the command", "cmd/memplan/a.go", "", Module + "/cmd/memplan/report", ""},
		{"library to the command", "validate/a.go", "", Module + "/cmd/memplan/report", "a later layer"},
		{"internal from a test", "graph/a_test.go", "", Module + "/internal/testdata", ""},
		{"internal from code", "graph/a.go", "", Module + "/internal/testdata", "only tests"},
		{"internal to graph", "internal/x/a.go", "", Module + "/graph", ""},
		{"internal to planner", "internal/x/a.go", "", Module + "/planner", "graph at most"},
		{"to models", "planner/a.go", "", Module + "/models", "nothing imports"},
		{"others' packages", "graph/a.go", "", "gonum.org/v1/gonum/stat", ""},
		{"cu with the tag", "validate/a.go", "//go:build cuda", cu, ""},
		{"cu with more tags", "validate/a.go", "//go:build linux && cuda", cu, ""},
		{"cu's sub-package with the tag", "validate/a.go", "//go:build cuda", cu + "/blas", ""},
		{"cu without the tag", "validate/a.go", "", cu, "lacks //go:build cuda"},
		{"cu with a choice of tags", "validate/a.go", "//go:build cuda || linux", cu, "lacks //go:build cuda"},
		{"cu with the opposite tag", "validate/a.go", "//go:build !cuda", cu, "lacks //go:build cuda"},
		{"cu elsewhere", "planner/a.go", "//go:build cuda", cu, "only validate"},
		{"not cu", "planner/a.go", "", "gorgonia.org/cubic", ""},
		{"test data", "graph/testdata/a.go", "", Module + "/planner", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := tt.header + "\n\n"
			if !strings.HasPrefix(tt.header, "package") {
				src += "package p\n\n"
			}
			src += "import _ \"" + tt.imp + "\"\n"
			faults, err := Check(fstest.MapFS{tt.file: {Data: []byte(src)}})
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.fault == "" && len(faults) > 0:
				t.Errorf("faults %q, want none", faults)
			case tt.fault != "" && (len(faults) != 1 || !strings.Contains(faults[0], tt.fault)):
				t.Errorf("faults %q, want one with %q", faults, tt.fault)
			}
		})
	}
}

// The line is a line: no package twice, every room beside its house.
func TestOrder(t *testing.T) {
	for i, p := range Order {
		if slices.Index(Order, p) != i {
			t.Errorf("%s stands in the order twice", p)
		}
	}
	houses := []string{}
	for _, p := range Order {
		house, _, _ := strings.Cut(p, "/")
		if len(houses) == 0 || houses[len(houses)-1] != house {
			houses = append(houses, house)
		}
	}
	want := []string{"quote", "files", "heap", "python", "graph", "liveness", "checkpointsel", "planner", "validate", "cmd"}
	if !slices.Equal(houses, want) {
		t.Errorf("houses %v, want %v", houses, want)
	}
}

func TestUnparsable(t *testing.T) {
	if _, err := Check(fstest.MapFS{"graph/a.go": {Data: []byte("package")}}); err == nil {
		t.Error("no error for a file that is not Go")
	}
}
