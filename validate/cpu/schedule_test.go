package cpu_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/planner"
)

// TestSchedules trains by schedules that run any operation again at any time, for
// budgets down to the least that one is found for: outputs, losses and
// gradients have the same bits as without, with micro-batches too.
func TestSchedules(t *testing.T) {
	if testing.Short() {
		t.Skip("many runs")
	}
	again := 0
	for _, tt := range []struct {
		name   string
		micros int
	}{{"resnet", 1}, {"mobile", 1}, {"unet", 1}, {"gpt", 1}, {"llama", 1}, {"convnext", 1}, {"dropout", 1}, {"places", 1}, {"resnet", 2}, {"dropout", 3}, {"convnext", 5}} {
		t.Run(fmt.Sprintf("%s/%d", tt.name, tt.micros), func(t *testing.T) {
			path := filepath.Join("..", "testdata", "golden", tt.name+".onnx")
			cfg := planner.Config{Batch: 16, Optimizer: "adamw", Accumulate: tt.micros}
			m, err := planner.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			s, err := m.Program(cfg)
			if err != nil {
				t.Fatal(err)
			}
			g, err := checkpointsel.NewStepGraph(s.Program, s.Time.Seconds)
			if err != nil {
				t.Fatal(err)
			}
			least, err := remat.Least(context.Background(), g.Instance, 0, 4)
			if err != nil {
				t.Fatal(err)
			}
			plain := train(t, path, cfg, nil)
			schedules := [][]remat.Step{least.Schedule}
			for _, class := range []remat.Class{remat.ClassSchedule, remat.ClassOpSet} {
				for _, extra := range []int64{0, 32 << 10} {
					r, err := remat.Solve(context.Background(), g.Instance, remat.Options{Budget: least.Budget + extra, Class: class, Patience: 1, PlanOnly: true})
					if err == nil && r.Schedule != nil { // op sets need more
						schedules = append(schedules, r.Schedule)
					}
				}
			}
			for _, cfg.Schedule = range schedules {
				again += len(cfg.Schedule) - len(g.Instance.Nodes)
				got := train(t, path, cfg, nil)
				if !slices.Equal(got.Loss, plain.Loss) {
					t.Errorf("losses %v, without a schedule %v", got.Loss, plain.Loss)
				}
				for i := range plain.Outputs {
					same(t, "output", got.Outputs[i], plain.Outputs[i])
				}
				for step := range plain.grads {
					for _, k := range slices.Sorted(maps.Keys(plain.grads[step])) {
						same(t, "gradient of "+k, got.grads[step][k], plain.grads[step][k])
					}
				}
			}
		})
	}
	if again < 100 {
		t.Errorf("only %d operations ran again in all schedules", again)
	}
	t.Logf("%d operations ran again", again)
}
