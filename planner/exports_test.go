package planner

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/internal/testdata"
)

// An export is one file of testdata/exports.tar.xz, which scripts/exports.py wrote.
type export struct {
	model, version, way string
	data                []byte
}

// readExports unpacks the archive in its order.
func readExports(t *testing.T) []export {
	t.Helper()
	var list []export
	for name, data := range testdata.Archived(t, filepath.Join("testdata", "exports.tar.xz")) {
		parts := strings.Split(strings.TrimSuffix(name, ".onnx"), ".")
		if len(parts) != 5 {
			t.Fatalf("%s: want model.version.way.onnx", name)
		}
		list = append(list, export{model: parts[0], version: strings.Join(parts[1:4], "."), way: parts[4], data: data})
	}
	return list
}

// exportsApart are files whose prediction may be further than exportsWithin from that of
// the training export, though nothing in them says that it cannot be told.
var exportsApart = []struct {
	model, way string
	within     float64
	why        string
}{
	{"bert", "train-opt", 0.005, "optimised: calls that the metadata of others names are gone, and what remains is recognised by patterns"},
	{"gpt2", "train-opt", 0.005, "optimised"},
	{"lstm", "train-opt", 0.06, "optimised: a call for each layer, whose workspaces are estimated apart, and its weights in the file's order"},
	{"vit", "train-opt", 0.02, "optimised"},
	{"vit", "eval", 0.03, "Dropout of transformers' ViT has p = 0 unless one asks for more, as this one does: in evaluation mode the file cannot show it"},
	{"vit", "eval-opt", 0.03, "as eval"},
	{"vit", "eval-opt-23", 0.03, "as eval"},
}

// exportsWithin is how far the peaks predicted of one model may be apart.
const exportsWithin = 0.002

// TestExports predicts one training step from files that every exporter of several
// versions wrote, in every mode: one peak, or the warning that it cannot be told.
func TestExports(t *testing.T) {
	testdata.Sequential(t)
	list := readExports(t)
	reports := map[string]*Report{}
	for _, x := range list {
		reports[x.model+x.version+x.way] = x.analyze(t)
	}
	for _, x := range list {
		base, rep := reports[x.model+list[0].version+"train"], reports[x.model+x.version+x.way]
		if base == nil || rep == nil {
			t.Errorf("%s.%s.%s: not analyzed, or no training export", x.model, x.version, x.way)
			continue
		}
		e := relative(rep.Peak.AllocatedBytes, base.Peak.AllocatedBytes)
		limit := exportsWithin
		for _, a := range exportsApart {
			if a.model == x.model && a.way == x.way {
				limit = a.within
			}
		}
		told := len(rep.Doubts()) == 0
		if told && math.Abs(e) > limit {
			t.Errorf("%s.%s.%s: peak off by %+.2f%% from the training export's, and no doubt", x.model, x.version, x.way, 100*e)
		}
		if !told && strings.Contains(x.way, "train") {
			t.Errorf("%s.%s.%s: %v", x.model, x.version, x.way, rep.Doubts())
		}
		if d := rep.Doubts(); !told && d[0].Code != lift.EvalMode {
			t.Errorf("%s.%s.%s: the first doubt is %s", x.model, x.version, x.way, d[0].Code)
		}
	}
	checkExportsDoc(t, exportsTable(list, reports))
}

// analyze predicts the step that the file is compared by.
func (x *export) analyze(t *testing.T) *Report {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := os.WriteFile(path, x.data, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Errorf("%s.%s.%s: %v", x.model, x.version, x.way, err)
		return nil
	}
	rep, err := m.Analyze(t.Context(), Config{Batch: 64, Precision: "fp32", Optimizer: "sgd", Checkpoint: "none", Runtime: measuredRelease})
	if err != nil {
		t.Errorf("%s.%s.%s: %v", x.model, x.version, x.way, err)
		return nil
	}
	return rep
}

// exportsTable has a row for each model and way, and a column for each version.
func exportsTable(list []export, reports map[string]*Report) string {
	versions, rows := map[string]bool{}, map[string]bool{}
	var order [][2]string
	for _, x := range list {
		versions[x.version] = true
		if key := x.model + " " + x.way; !rows[key] {
			rows[key] = true
			order = append(order, [2]string{x.model, x.way})
		}
	}
	columns := slices.SortedFunc(maps.Keys(versions), func(a, b string) int {
		return len(a) - len(b) + strings.Compare(a, b)
	})
	var b strings.Builder
	fmt.Fprintf(&b, "| model | export | %s |\n|---|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, row := range order {
		fmt.Fprintf(&b, "| %s | %s |", row[0], row[1])
		for _, v := range columns {
			fmt.Fprintf(&b, " %s |", exportCell(reports[row[0]+v+row[1]], reports[row[0]+list[0].version+"train"]))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// exportCell compares the peak predicted of a file with that of the training export.
func exportCell(rep, base *Report) string {
	if rep == nil || base == nil {
		return "not exported"
	}
	e := fmt.Sprintf("%+.2f%%", 100*relative(rep.Peak.AllocatedBytes, base.Peak.AllocatedBytes))
	switch {
	case len(rep.Doubts()) > 0:
		return "cannot tell (" + e + ")"
	case rep.Peak.AllocatedBytes == base.Peak.AllocatedBytes:
		return "same"
	}
	return e
}

// exportsPage is docs/exports.md around its table.
const exportsPage = `# Exports of every version

Small models, exported in every way that PyTorch's exporters have, by several versions of it: the peak (allocated, batch 64, float32, SGD) that memplan predicts
of each file, against the one of the training export (` + "`train`" + `: dynamo, train mode, ` + "`optimize=False`" + `) by the first version. "cannot tell" is the warning ` + "`eval-mode`" + `:
the file does not show the training step, the number is of what it shows, and with ` + "`--strict`" + ` there is no answer.

| export | how |
|---|---|
| train, train-18, train-23 | ` + "`torch.onnx.export(model.train(), dynamo=True, optimize=False)`" + `, default opset, 18, 23 |
| train-opt | the same with ` + "`optimize=True`" + `, the exporter's default: batch normalisations are folded, what remains is recognised by patterns |
| eval, eval-opt, eval-opt-23 | ` + "`model.eval()`" + ` |
| ts-train, ts-eval | ` + "`dynamo=False`" + `, opset 17, in training and evaluation mode |

scripts/exports.py writes the files, which planner/testdata/exports.tar.xz holds; this page is written by

    go test ./planner -run Exports -update

What differs, and why:

%s
%s`

func checkExportsDoc(t *testing.T, table string) {
	t.Helper()
	var why strings.Builder
	for _, a := range exportsApart {
		fmt.Fprintf(&why, "- %s, %s (within %.1f%%): %s.\n", a.model, a.way, 100*a.within, a.why)
	}
	testdata.Generated(t, filepath.Join("..", "docs", "exports.md"), fmt.Sprintf(exportsPage, why.String(), table), "go test ./planner -run Exports", *update)
}
