// Package layering checks the import order of this repository's packages:
// a line, not a graph. It parses files itself; a test that shells out to
// "go list" would be answered from the test cache.
package layering

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Module is the import path of the repository's root.
const Module = "github.com/memplan/memplan"

// Order lists the packages from left to right; a package imports only
// packages before it (external tests may look to the right). quote, files and heap are
// for all others; python is the Python package, whose text the command prints. Rooms of a house stand in line with it: the root of graph, the
// IR, comes first of its rooms, the roots of liveness, checkpointsel and planner
// come after theirs.
var Order = []string{
	"quote", "files", "heap", "python",
	"graph", "graph/python", "graph/bounded", "graph/cudnn", "graph/program", "graph/kernel", "graph/onnx", "graph/infer", "graph/aten", "graph/lift", "graph/train", "graph/shard",
	"liveness/alloc", "liveness",
	"checkpointsel/remat", "checkpointsel",
	"planner/profile", "planner/layout", "planner/ort", "planner",
	"validate",
	"cmd/memplan",
}

// open are the layers at the right end whose sub-packages need no entry of
// their own: the compiler already forbids cycles between them.
var open = []string{"validate", "cmd/memplan"}

// aside are folders with Go files outside the line. Nothing may import them,
// except that tests may import internal packages.
var aside = []string{"internal", "models", "scripts"}

// cuda is the one import path that only validate may use, behind the build
// tag of the same name: its init function ends processes that have no GPU.
const cuda = "gorgonia.org/cu"

// Check returns one line for each import that breaks the order, in the order
// of the files' paths. fsys is the repository's root.
func Check(fsys fs.FS) ([]string, error) {
	var out []string
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && ignored(name):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		faults, err := checkFile(fsys, name)
		out = append(out, faults...)
		return err
	})
	return out, err
}

// ignored reports whether the go command, too, would pass over the folder.
func ignored(dir string) bool {
	base := path.Base(dir)
	return dir != "." && (base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_')
}

func checkFile(fsys fs.FS, name string) ([]string, error) {
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	dir := path.Dir(name)
	if rank(dir) < 0 && !isAside(dir) {
		return []string{fmt.Sprintf("%s: package %s is not in the import order", name, dir)}, nil
	}
	var out []string
	for _, spec := range file.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if fault := checkImport(name, file, imp); fault != "" {
			out = append(out, fmt.Sprintf("%s imports %s: %s", name, imp, fault))
		}
	}
	return out, nil
}

// checkImport returns what is wrong with one import, or "".
func checkImport(name string, file *ast.File, imp string) string {
	dir, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
	if within(imp, cuda) {
		return checkCUDA(dir, file)
	}
	to, ours := strings.CutPrefix(imp, Module+"/")
	if !ours || to == dir {
		return ""
	}
	from, target := rank(dir), rank(to)
	external := test && strings.HasSuffix(file.Name.Name, "_test") // a package of its own: it may check one layer with a later one
	switch {
	case within(to, "internal"):
		if !test && !within(dir, "internal") {
			return "only tests import internal packages"
		}
	case isAside(to):
		return "nothing imports this folder"
	case target < 0:
		return "the package is not in the import order"
	case within(dir, "internal"):
		if !test && target > rank("graph") {
			return "internal packages import graph at most"
		}
	case from < 0:
		return "" // tests beside the line, such as models, may use all of it
	case target > from && !external:
		return "a later layer"
	case target == from && !isOpen(dir):
		return "the same layer"
	}
	return ""
}

func checkCUDA(dir string, file *ast.File) string {
	if !within(dir, "validate") {
		return "only validate drives the GPU"
	}
	if !needsTag(file, "cuda") {
		return "the file lacks //go:build cuda"
	}
	return ""
}

// needsTag reports whether the file is built with the tag and, whatever other
// tags are set, never without.
func needsTag(file *ast.File, tag string) bool {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if c.Pos() > file.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			if err != nil {
				return false
			}
			all := expr.Eval(func(string) bool { return true })
			without := expr.Eval(func(t string) bool { return t != tag })
			return all && !without
		}
	}
	return false
}

// rank returns the place of a package in Order, or -1.
func rank(dir string) int {
	if i := slices.Index(Order, dir); i >= 0 {
		return i
	}
	for _, house := range open {
		if within(dir, house) {
			return slices.Index(Order, house)
		}
	}
	return -1
}

func isOpen(dir string) bool {
	return slices.ContainsFunc(open, func(house string) bool { return within(dir, house) })
}

func isAside(dir string) bool {
	return slices.ContainsFunc(aside, func(house string) bool { return within(dir, house) })
}

// within reports whether p is dir or lies below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
