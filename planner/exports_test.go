package planner

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// An export is one file of testdata/exports.tar.xz, which scripts/export/exports.py wrote.
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
// the training export, though nothing in them says that it cannot be told. Without
// versions, all.
var exportsApart = []struct {
	model, way, versions string
	within               float64
	why                  string
}{
	{"gpt2", "train-opt", "2.6.0", 0.01, "optimised: PyTorch 2.6 gives calls that were joined no metadata, and they are recognised by patterns"},
	{"gpt2", "ts-train", "2.6.0", 0.017, "the TorchScript exporter cuts the windows of the causal masks, buffers of 1 MiB a layer in transformers 4, and leaves the masks out"},
	{"vit", "eval", "", 0.03, "Dropout of transformers' ViT has p = 0 unless one asks for more, as this one does: in evaluation mode the file cannot show it"},
	{"vit", "eval-opt", "", 0.03, "as eval"},
	{"vit", "eval-opt-23", "", 0.03, "as eval"},
	{"t5", "train-opt", "", 0.015, "optimised: the normalisations are products and means, of which PyTorch saves more than one call"},
	{"t5", "train-bare", "", 0.01, "by patterns"},
	{"t5", "train-conv", "", 0.01, "by patterns"},
	{"t5", "opt-bare", "", 0.01, "by patterns"},
	{"t5", "ts-train", "", 0.02, "by patterns"},
	{"t5", "ts-train-20", "", 0.02, "by patterns"},
	{"t5", "ts-train-sim", "", 0.02, "by patterns"},
	{"tagger", "train-sim", "", 0.011, "the simplifier writes the last layer as a product of matrices, which adds the bias without a copy"},
	{"tagger", "ts-train-sim", "", 0.011, "as train-sim"},
}

// exportsTold are ways of training exports about which a file says that it cannot be
// told; without versions, all.
var exportsTold = []struct{ model, way, versions, why string }{
	{"mixer", "train-bare", "", "no dropout, and no metadata: the same file as in evaluation mode"},
	{"mixer", "opt-bare", "", "as train-bare"},
	{"mixer", "train-conv", "", "as train-bare"},
	{"mixer", "train-sim", "", "as train-bare"},
	{"mixer", "ts-train-20", "", "do_constant_folding=True folds weights, as in evaluation mode, and there is no dropout"},
	{"mixer", "ts-train-sim", "", "as ts-train-20"},
	{"mobile", "opt-bare", "", "the normalisations are folded, and no metadata is left to name them"},
	{"t5", "train-sim", "", "the simplifier computed weights from others"},
	{"tagger", "train-opt", "2.6.0 2.8.0", "these exporters write a GRU step by step, and their optimizer leaves no trace of the call"},
	{"lstm", "train-opt", "2.6.0 2.8.0", "as tagger"},
	{"", "train-ort", "", "onnxruntime takes dropouts away"},
}

// exportsRefused are files that memplan cannot read as a training step of a batch.
var exportsRefused = []struct{ model, way, versions, why string }{
	{"swin", "", "2.6.0", "PyTorch 2.6 writes torch.roll as a window up to the number of elements, which is no size that memplan can tell for any batch"},
	{"unet2d", "train-opt", "2.6.0", "PyTorch 2.6's optimizer writes the example's batch into a Reshape"},
	{"unet2d", "eval-opt", "2.6.0", "as train-opt"},
}

// covers reports a table's row that is about an export.
func (x *export) covers(model, way, versions string) bool {
	return (model == "" || model == x.model) && (way == "" || way == x.way) && (versions == "" || slices.Contains(strings.Fields(versions), x.version))
}

// refused reports a row of exportsRefused. TorchScript's files are others.
func (x *export) refused() bool {
	for _, r := range exportsRefused {
		if x.covers(r.model, r.way, r.versions) && !strings.HasPrefix(x.way, "ts-") {
			return true
		}
	}
	return false
}

// libraryModels are those whose code is a library's: releases of PyTorch up to 2.9 were
// used with transformers 4, whose models compute otherwise. Their files are compared
// with the training export of the same release.
var libraryModels = []string{"bert", "gpt2", "t5"}

// base is the training export that a file is compared with: that of 2.11, or else the
// newest.
func (x *export) base(reports map[string]*Report) *Report {
	if slices.Contains(libraryModels, x.model) && len(x.version) == len("2.6.0") {
		if r := reports[x.model+x.version+"train"]; r != nil {
			return r
		}
	}
	for _, v := range []string{"2.11.0", "2.15.0", "2.13.0", "2.9.0", "2.8.0", "2.6.0"} {
		if r := reports[x.model+v+"train"]; r != nil {
			return r
		}
	}
	return reports[x.model+x.version+"ts-train"]
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
	for i := range list {
		list[i].check(t, reports)
	}
	checkExportsDoc(t, exportsTable(list, reports))
}

// check compares a prediction with that of the training export.
func (x *export) check(t *testing.T, reports map[string]*Report) {
	t.Helper()
	base, rep := x.base(reports), reports[x.model+x.version+x.way]
	if rep == nil && x.refused() {
		return
	}
	if base == nil || rep == nil {
		t.Errorf("%s.%s.%s: not analyzed, or no training export", x.model, x.version, x.way)
		return
	}
	e, limit := relative(rep.Peak.AllocatedBytes, base.Peak.AllocatedBytes), exportsWithin
	for _, a := range exportsApart {
		if x.covers(a.model, a.way, a.versions) {
			limit = a.within
		}
	}
	allowed := strings.HasPrefix(x.way, "eval") || strings.HasPrefix(x.way, "ts-eval")
	for _, a := range exportsTold {
		allowed = allowed || x.covers(a.model, a.way, a.versions)
	}
	switch doubts := rep.Doubts(); {
	case len(doubts) == 0 && math.Abs(e) > limit:
		t.Errorf("%s.%s.%s: peak off by %+.2f%% from the training export's, and no doubt", x.model, x.version, x.way, 100*e)
	case len(doubts) > 0 && !allowed:
		t.Errorf("%s.%s.%s: %v", x.model, x.version, x.way, doubts)
	}
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
	if err != nil && x.refused() {
		return nil
	}
	if err != nil {
		t.Errorf("%s.%s.%s: %v", x.model, x.version, x.way, err)
		return nil
	}
	return rep.Report
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
	slices.SortFunc(order, func(a, b [2]string) int { return strings.Compare(a[0]+" "+a[1], b[0]+" "+b[1]) })
	columns := slices.SortedFunc(maps.Keys(versions), func(a, b string) int {
		return cmp.Or(len(a)-len(b), strings.Compare(a, b))
	})
	var b strings.Builder
	fmt.Fprintf(&b, "| model | export | %s |\n|---|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, row := range order {
		fmt.Fprintf(&b, "| %s | %s |", row[0], row[1])
		for _, v := range columns {
			x := export{model: row[0], version: v, way: row[1]}
			cell := exportCell(reports[row[0]+v+row[1]], x.base(reports))
			if x.refused() {
				cell = "refused"
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// exportCell compares the peak predicted of a file with that of the training export.
func exportCell(rep, base *Report) string {
	if rep == nil || base == nil {
		return "-"
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
of each file, against the one of the training export (` + "`train`" + `: dynamo, train mode, ` + "`optimize=False`" + `) by 2.11, or else by the newest. Releases up to 2.9 were used with transformers 4
(4.49, 4.55, 4.57), whose bert, gpt2 and t5 compute otherwise than those of 5.23: these are compared with the training export of their own release. "cannot tell" is a warning
(` + "`eval-mode`, `idle-dropout`, `folded-batchnorm`, `unrolled-rnn`" + `): the file does not show the training step, the number is of what it shows, and with ` + "`--strict`" + ` there is no answer. "-" is not exported:
that release cannot, or nobody has asked it to.

| export | how |
|---|---|
| train, train-17, ..., train-23 | ` + "`torch.onnx.export(model.train(), dynamo=True, optimize=False)`" + `, default opset, or another |
| train-opt | the same with ` + "`optimize=True`" + `, the exporter's default: weights are merged and lose their names, calls are folded and left out |
| eval, eval-opt, eval-opt-23 | ` + "`model.eval()`" + ` |
| ts-train, ts-eval | ` + "`dynamo=False`" + `, opset 17, in training and evaluation mode |
| ts-train-20 | opset 20, ` + "`do_constant_folding=True`" + ` |
| -bare | all metadata taken away |
| -sim | onnxsim |
| -ort | onnxruntime's optimizer, as it saves a file: its basic level, extended for eval-ort |
| -conv | onnx.version_converter, to opset 22 |

scripts/export/exports.py writes the files, which planner/testdata/exports.tar.xz holds; this page is written by

    go test ./planner -run Exports -update

What differs, and why:

%s
%s`

// since names the versions that a row is about.
func since(versions string) string {
	if versions == "" {
		return ""
	}
	return " by " + strings.ReplaceAll(versions, " ", ", ")
}

func checkExportsDoc(t *testing.T, table string) {
	t.Helper()
	var why strings.Builder
	for _, a := range exportsApart {
		fmt.Fprintf(&why, "- %s, %s%s (within %.1f%%): %s.\n", a.model, a.way, since(a.versions), 100*a.within, a.why)
	}
	for _, a := range exportsTold {
		fmt.Fprintf(&why, "- %s, %s%s (cannot tell): %s.\n", cmp.Or(a.model, "all"), a.way, since(a.versions), a.why)
	}
	for _, a := range exportsRefused {
		fmt.Fprintf(&why, "- %s, %s%s (refused): %s.\n", a.model, cmp.Or(a.way, "dynamo"), since(a.versions), a.why)
	}
	testdata.Generated(t, filepath.Join("..", "docs", "exports.md"), fmt.Sprintf(exportsPage, why.String(), table), "go test ./planner -run Exports", *update)
}
