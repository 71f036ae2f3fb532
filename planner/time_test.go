package planner

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// TestTimes prints the roofline's estimate beside the measured times. It is an
// estimate: a step may come out at 0.37 of its time (small kernels in mixed
// precision), never much too long.
func TestTimes(t *testing.T) {
	f, err := os.Open(testdata.Shared(t, "truth", "step_memory.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	models := map[string]*Model{}
	for sc.Scan() {
		var r struct {
			truth
			Ms [][3]float64
		}
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Mode != "train" || len(r.Ms) == 0 || r.Opt != "adamw" {
			continue
		}
		m := models[r.Name]
		if m == nil {
			if m, err = Open(testdata.Shared(t, "models", r.Name+".dyn-train.onnx")); err != nil {
				t.Fatal(err)
			}
			models[r.Name] = m
		}
		rep, err := m.Analyze(t.Context(), r.config())
		if err != nil {
			t.Fatal(err)
		}
		ms := r.Ms[len(r.Ms)-1]
		t.Logf("%-14s %5d %-9s %-7s forward %7.1f of %7.1f  backward %7.1f of %7.1f  optimizer %6.2f of %6.2f  step x%.2f", r.Name, r.Batch, r.Prec, r.Ckpt,
			rep.Time.ForwardMs, ms[0], rep.Time.BackwardMs, ms[1], rep.Time.OptimizerMs, ms[2], rep.Time.StepMs/(ms[0]+ms[1]+ms[2]))
		if x := rep.Time.StepMs / (ms[0] + ms[1] + ms[2]); x < 0.37 || x > 1.2 {
			t.Errorf("%s: the estimate is x%.2f of the measured step", r.Name, x)
		}
	}
}
