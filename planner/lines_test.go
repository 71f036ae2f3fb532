package planner

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
)

// A lives is what PyTorch made in an inference of a model, as scripts/lines_oracle.py
// writes it.
type lives struct {
	Name     string
	Batch    int64
	Storages [][3]any // bytes, how many there were when it went, operator
}

// A life is a storage: its bytes, and how many had been made when it went, -1
// if it outlived the inference.
type life struct {
	bytes int64
	gone  int
	op    string
}

func (l *lives) list() (out []life) {
	for _, s := range l.Storages {
		out = append(out, life{int64(s[0].(float64)), int(s[1].(float64)), s[2].(string)})
	}
	return out
}

// predictedLives are the storages of a predicted inference, without library
// scratch.
func predictedLives(t *testing.T, m *Model, batch int64) []life {
	j, err := Config{Batch: batch, Mode: "infer", Precision: "fp32"}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.build(j, batch, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, steady := liveness.Steps(b.Program)
	var out []life
	at := map[program.StorageID]int{}
	for _, ev := range steady.Events {
		s := &b.Storages[ev.Storage]
		if s.Category == program.Workspace || s.Life != program.Step || s.Bytes == 0 || b.Nodes[ev.Node].Phase != program.Forward {
			continue
		}
		if ev.Free {
			if i, ok := at[ev.Storage]; ok {
				out[i].gone = len(out)
			}
			continue
		}
		at[ev.Storage] = len(out)
		n := &b.Nodes[ev.Node]
		out = append(out, life{s.Bytes, -1, n.Op + " " + n.Name})
	}
	return out
}

// alike tells whether two storages may be the same one.
func alike(a, b life) bool { return a.bytes == b.bytes && kindOf(a.op) == kindOf(b.op) }

// kinds are parts of the names of operators that are one.
var kinds = []string{"conv", "norm", "scaled_dot_product", "upsample", "pool", "softmax", "pow", "gelu", "mm", "cat", "pad"}

// kindOf is what an operator is, under PyTorch's name or memplan's.
func kindOf(op string) string {
	op, _, _ = strings.Cut(strings.TrimPrefix(op, "aten."), " ")
	op, _, _ = strings.Cut(op, ".")
	switch op {
	case "contiguous", "reshape", "matmul", "einsum", "layer_norm", "copy", "_to_copy": // the copies that these make of operands
		return "clone"
	}
	for _, k := range kinds {
		if strings.Contains(op, k) {
			return k
		}
	}
	return strings.Trim(op, "_")
}

// paired aligns two lists by their bytes: for each of got the index of its
// partner in want, -1 for none.
func paired(got, want []life) []int {
	n, m := len(got), len(want)
	table := make([][]int, n+1)
	for i := range table {
		table[i] = make([]int, m+1)
	}
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			table[i][j] = max(table[i+1][j], table[i][j+1])
			if alike(got[i], want[j]) {
				table[i][j] = max(table[i][j], table[i+1][j+1]+1)
			}
		}
	}
	out := make([]int, n)
	for i, j := 0, 0; i < n; {
		switch {
		case j == m || table[i+1][j] == table[i][j] && (j == m || !alike(got[i], want[j])):
			out[i] = -1
			i++
		case alike(got[i], want[j]) && table[i][j] == table[i+1][j+1]+1:
			out[i] = j
			i++
			j++
		case table[i][j] == table[i][j+1]:
			j++
		default:
			out[i] = -1
			i++
		}
	}
	return out
}

func peakOf(list []life) int64 {
	var now, most int64
	for k := range list {
		now += list[k].bytes
		most = max(most, now)
		for i := range list[:k+1] {
			if list[i].gone == k+1 {
				now -= list[i].bytes
			}
		}
	}
	return most
}

func eachPacked(t *testing.T, path string, do func(name string, model, truth []byte)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := xz.NewReader(bufio.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	truths := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if name, ok := strings.CutSuffix(h.Name, ".json"); ok {
			truths[name] = data
		} else if name, ok := strings.CutSuffix(h.Name, ".onnx"); ok {
			do(name, data, truths[name])
		}
	}
}

func TestLinesDev(t *testing.T) {
	dir := os.Getenv("LINES_DIR")
	if dir == "" {
		t.Skip()
	}
	pat := os.Getenv("LINES_PAT")
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	var exactAll, nAll, matchedPeak int
	var errs []float64
	for _, p := range files {
		if pat != "" && !strings.Contains(p, pat) {
			continue
		}
		base := strings.TrimSuffix(p, ".json")
		var w lives
		if err := json.Unmarshal(readFile(t, p), &w); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(base + ".onnx"); err != nil {
			continue
		}
		m, err := Open(base + ".onnx")
		if err != nil {
			t.Logf("%s: %v", w.Name, err)
			continue
		}
		got, want := predictedLives(t, m, w.Batch), w.list()
		pairs := paired(got, want)
		ok := func(gone, is int) bool { // between the same two that both have made
			lo, hi := 0, len(want)
			if gone < 0 {
				gone = len(got)
			}
			if is < 0 {
				is = len(want)
			}
			for i := gone - 1; i >= 0; i-- {
				if pairs[i] >= 0 {
					lo = pairs[i] + 1
					break
				}
			}
			for i := gone; i < len(got); i++ {
				if pairs[i] >= 0 {
					hi = pairs[i]
					break
				}
			}
			return lo <= is && is <= hi
		}
		exact, found := 0, 0
		for i, g := range got {
			j := pairs[i]
			if j >= 0 {
				found++
			}
			if j >= 0 && ok(g.gone, want[j].gone) {
				exact++
			} else if pat != "" {
				if j < 0 {
					t.Logf("  %3d %9d %-40s unpaired %d", i, g.bytes, g.op, g.gone)
				} else {
					t.Logf("  %3d %9d %-40s gone %d, %d is %d %s", i, g.bytes, g.op, g.gone, j, want[j].gone, want[j].op)
				}
			}
		}
		if pat != "" {
			for _, g := range got {
				t.Log(g)
			}
			for _, g := range want {
				t.Log("want", g)
			}
		}
		e := relative(peakOf(got), peakOf(want))
		errs = append(errs, e)
		if e < 0.01 && e > -0.01 {
			matchedPeak++
		}
		n := found
		exactAll += exact
		nAll += n
		t.Logf("%-36s %4d of %4d exact %5.1f%%  peak %+6.2f%% unpaired %d %d", w.Name, exact, n, 100*float64(exact)/float64(n), 100*e, len(got)-found, len(want)-found)
	}
	med, p95, worst := summary(errs)
	t.Logf("TOTAL %d models, %d of %d = %.1f%%; peaks within 1%%: %d, median %.2f%% p95 %.1f%% worst %.1f%%", len(errs), exactAll, nAll, 100*float64(exactAll)/float64(nAll), matchedPeak, 100*med, 100*p95, 100*worst)
}
