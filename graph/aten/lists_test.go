package aten_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/infer"
)

// elsewhere are the lists of operator names that are another table's own knowledge.
var elsewhere = map[string]string{
	"capture_lift.go:captureNames":  "Python's names of operators",
	"idioms_types.go:narrowSoftmax": "a chain of calls that one idiom matches",
	"idioms_types.go:noiseType":     "a chain of calls that one idiom matches",
	"patterns_conv.go:resizeNames":  "what one rule of the lift makes of modes",
	"lossy.go:lossy":                "what rules of the lift leave out",
	"patterns.go:sameAs":            "how ONNX passes one operand on",
	"idioms_cell.go:cellCalls":      "the calls that an exporter takes a cell apart into",
	"patterns_rnn.go:rnnOps":        "what one rule of the lift makes of operators",
	"patterns_tensor.go:reductions": "what one rule of the lift makes of operators",
	"patterns_tensor.go:fills":      "what one rule of the lift makes of operators",
	"missing.go:pythonNames":        "functions of Python itself",
	"unshown.go:builtins":           "functions of Python itself",
	"execution.go:builtin":          "functions of Python itself",
	"patterns_tensor.go:filled":     "what one rule of the lift makes of names",
	"fastpath.go:fastPath":          "a chain of calls that one fused kernel stands for",
	"frameworks_ways.go:titanSaves": "torchtitan's setting",
	"frameworks_write.go:jaxOps":    "what JAX calls them",
}

// TestNoLists: what is true of an operator stands in its row. A list of operator names in the
// packages that read rows drifts from them: of three in a variable, or of five in a function,
// where fewer are a chain of calls to match.
func TestNoLists(t *testing.T) {
	used, onnx := map[string]bool{}, map[string]bool{}
	for i := range infer.Ops {
		onnx[infer.Ops[i].Name] = true
	}
	for _, dir := range []string{"../lift", "../train", "../../checkpointsel", "../../planner"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "patterns_rules.go" { // the table of the lift's rules
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range f.Decls {
				ast.Inspect(decl, func(n ast.Node) bool {
					_, function := decl.(*ast.FuncDecl)
					if list := namesIn(n, onnx); len(list) > 4 || len(list) > 2 && !function {
						where := filepath.Base(path) + ":" + declared(decl)
						used[where] = true
						if elsewhere[where] == "" {
							t.Errorf("%s: a list of operators (%s): make it a trait of their rows", fset.Position(n.Pos()), strings.Join(list, ", "))
						}
					}
					return true
				})
			}
		}
	}
	for where := range elsewhere {
		if !used[where] {
			t.Errorf("%s has no list", where)
		}
	}
}

// declared is the name of a declaration.
func declared(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Name.Name
	case *ast.GenDecl:
		if v, ok := d.Specs[0].(*ast.ValueSpec); ok {
			return v.Names[0].Name
		}
	}
	return ""
}

// namesIn are the names of PyTorch or ONNX operators among the elements of a literal, or the cases of one clause.
func namesIn(n ast.Node, onnx map[string]bool) (out []string) {
	var list []ast.Expr
	switch n := n.(type) {
	case *ast.CompositeLit:
		list = n.Elts
	case *ast.CaseClause:
		list = n.List
	}
	for _, e := range list {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Key
		}
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && (aten.Lookup(s) != nil || onnx[s]) && !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}
