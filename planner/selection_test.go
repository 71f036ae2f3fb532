//go:build unix

package planner

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/planner/profile"
)

// TestSelectionDoc measures plans of both classes on training steps of models
// and writes its section of docs/selection.md.
func TestSelectionDoc(t *testing.T) {
	if !*update {
		t.Skip("writes docs/selection.md; run with -update")
	}
	var text strings.Builder
	text.WriteString("\n| model, batch | nodes | activations left | overhead, % | bound, % | gap, points | seconds | segments: overhead, % | seconds | nested: overhead, % | seconds | least, % left: segments, nested |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, tt := range []struct {
		name  string
		batch int64
	}{{"gpt2", 16}, {"bert_base_mlm", 16}, {"vit_b_16", 64}, {"llama_250m", 8}, {"resnet50", 64}, {"densenet121", 64}} {
		m, err := Open(testdata.Shared(t, "models", tt.name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []int64{50, 25} {
			text.WriteString(modelRow(t, m, tt.name, tt.batch, part))
		}
	}
	testdata.WriteSection(t, "selection.md", "models", text.String())
}

// modelRow plans a step whose budget leaves so many percent of what autograd
// saves, or the least that any schedule needs and one percent more.
func modelRow(t *testing.T, m *Model, name string, batch, part int64) string {
	t.Helper()
	j, err := Config{Batch: batch, Runtime: measuredRelease}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.build(j, batch, nil)
	if err != nil {
		t.Fatal(err)
	}
	var saved int64
	for _, id := range b.Saved {
		saved += b.Storages[id].Bytes
	}
	limit := 5 * time.Second
	if part < 50 {
		limit = 30 * time.Second
	}
	start, cpu := time.Now(), testdata.CPU()
	g, err := checkpointsel.NewStepGraph(b.Program, j.time.Seconds)
	if err != nil {
		t.Fatal(err)
	}
	in := g.Instance
	budget, left := in.Peak()-saved*(100-part)/100, fmt.Sprintf("%d%%", part)
	if need, _ := in.WorkingSet(); budget < need+need/100 {
		left = fmt.Sprintf("%d%%: the least", 100-100*(in.Peak()-need-need/100)/saved)
		budget = need + need/100
	}
	ctx, cancel := testdata.WithinCPU(context.Background(), limit)
	defer cancel()
	r, err := remat.Solve(ctx, in, remat.Options{Budget: budget, Gap: 1e-4})
	took := min(time.Since(start), testdata.OnIdle(testdata.CPU()-cpu)).Seconds()
	if err != nil {
		return fmt.Sprintf("| %s, %d | %d | %s | %v | | | %.1f | | | | | |\n", name, batch, len(in.Nodes), left, err, took)
	}
	s, err := m.selector(j, batch)
	if err != nil {
		t.Fatal(err)
	}
	n := s.nested()
	least := func(c choice) float64 {
		return 100 - 100*float64(in.Peak()-c.MinBudget(checkpointsel.Sure))/float64(saved)
	}
	flat, nested := classCells(s.problem, budget, s.step), classCells(n, budget, s.step)
	t.Logf("%s, batch %d, %s (%s): overhead %.4f, gap %.4f, %.1f s", name, batch, left, profile.FormatBytes(budget), r.Overhead, r.Gap, took)
	return fmt.Sprintf("| %s, %d | %d | %s | %.3f | %.3f | %.3f | %.1f | %s | %s | %.0f, %.0f |\n", name, batch, len(in.Nodes), left, 100*r.Overhead,
		100*(r.Overhead-r.Gap), 100*r.Gap, took, flat, nested, least(s.problem), least(n))
}

// classCells solves a class of selections at a budget: the overhead in percent
// of the step, and the time that took.
func classCells(c choice, budget int64, step float64) string {
	start, cpu := time.Now(), testdata.CPU()
	_, cost, ok := c.Solve(budget, checkpointsel.Hoped)
	took := min(time.Since(start), testdata.CPU()-cpu).Seconds()
	if !ok {
		return fmt.Sprintf("none fit | %.3f", took)
	}
	return fmt.Sprintf("%.2f | %.3f", 100*cost/step, took)
}
