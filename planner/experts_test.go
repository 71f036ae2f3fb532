package planner

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
)

// An expertRun is a measured run of scripts/steps/experts.py: rank 0 beside a fake process group on an H200.
type expertRun struct {
	Name, Mesh, Dtype string
	Batch             int64
	How               string // worst, checkpoint, autocast, policy, keep, accumulate or ""
	Before            int64
	Steps             [][3]int64 // allocated, reserved and afterwards allocated
}

func expertRuns(t *testing.T) (out []expertRun) {
	for line := range strings.Lines(string(testdata.Unpacked(t, "testdata/experts/runs.jsonl.xz"))) {
		var r expertRun
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// mixture opens one of the models that scripts/steps/experts.py exports.
func mixture(t *testing.T, name string) *Model {
	path := filepath.Join(t.TempDir(), name+".onnx")
	if err := os.WriteFile(path, testdata.Unpacked(t, "testdata/experts/"+name+".onnx.xz"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (r *expertRun) question() Config {
	c := Config{Batch: r.Batch, Optimizer: "adamw", Runtime: measuredRelease, GPU: "h200", Parallel: r.Mesh}
	if r.Dtype != "fp32" {
		c.Precision = r.Dtype
	}
	switch r.How {
	case "worst":
		c.EPImbalance = allRows
	case "checkpoint":
		for i := range 4 {
			c.Segments = append(c.Segments, train.Segment{Modules: []string{fmt.Sprint("model.layers.", i)}})
		}
	case "autocast":
		c.Precision = "amp-bf16"
	case "policy":
		c.FSDPPrecision = "bf16"
	case "keep":
		c.FSDPReshard = "false"
	case "accumulate":
		c.Accumulate = 2
	}
	return c
}

// TestExperts predicts a rank of expert parallelism.
func TestExperts(t *testing.T) {
	testdata.Sequential(t)
	models := map[string]*Model{}
	var balanced, worst, others, held []float64
	var sb strings.Builder
	for _, r := range expertRuns(t) {
		if models[r.Name] == nil {
			models[r.Name] = mixture(t, r.Name)
		}
		rep, err := models[r.Name].Analyze(t.Context(), r.question())
		if err != nil {
			t.Errorf("%s %s: %v", r.Name, r.Mesh, err)
			continue
		}
		var allocated, reserved int64
		for _, s := range r.Steps {
			allocated, reserved = max(allocated, s[0]), max(reserved, s[1])
		}
		got := rep.Parallel.PerRank[0]
		off, more := relative(got.AllocatedBytes, allocated), relative(got.ReservedBytes, reserved)
		held = append(held, math.Abs(more))
		switch r.How {
		case "":
			balanced = append(balanced, math.Abs(off))
		case "worst":
			worst = append(worst, math.Abs(off))
		default:
			others = append(others, math.Abs(off))
		}
		fmt.Fprintf(&sb, "| %s | %s | %s | %s | %.1f | %.1f | %+.2f%% | %+.1f%% |\n", r.Name, r.Mesh, r.Dtype, r.How, float64(allocated)/(1<<20), float64(got.AllocatedBytes)/(1<<20), 100*off, 100*more)
	}
	t.Log("\n" + sb.String())
	for _, c := range []struct {
		name         string
		all          []float64
		median, most float64
	}{{"balanced", balanced, 0.005, 0.03}, {"worst", worst, 0.005, 0.03}, {"others", others, 0.005, 0.03}, {"reserved", held, 0.05, 0.15}} {
		slices.Sort(c.all)
		median, most := c.all[len(c.all)/2], c.all[len(c.all)-1]
		t.Logf("%s: %d runs, median %.2f%%, worst %.2f%%", c.name, len(c.all), 100*median, 100*most)
		if median > c.median || most > c.most {
			t.Errorf("%s: median %.2f%%, worst %.2f%%, want %.1f%% and %.1f%%", c.name, 100*median, 100*most, 100*c.median, 100*c.most)
		}
	}
}
