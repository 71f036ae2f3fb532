package planner

import (
	"slices"
	"testing"

	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
)

// sizesInOrder are the bytes that a steady step allocates, and below zero frees.
func sizesInOrder(p *program.Program) []int64 {
	_, steady := liveness.Steps(p)
	out := make([]int64, len(steady.Events))
	for i, e := range steady.Events {
		if out[i] = steady.Bytes(e); e.Free {
			out[i] = -out[i]
		}
	}
	return out
}

// TestAtBounds: a program with its workspaces at their bounds allocates what the
// step does that is built with those, also where a schedule runs calls again.
func TestAtBounds(t *testing.T) {
	larger := 0
	for _, name := range []string{"resnet18.dyn-train", "convnext_tiny.dyn-train", "mobilenet_v2.dyn-train", "unet.dyn-train"} {
		m, err := Open(testdata.Shared(t, "models", name+".onnx"))
		if err != nil {
			t.Fatal(err)
		}
		for _, cfg := range []Config{{Batch: 8}, {Batch: 33, Precision: "amp-bf16", Checkpoint: "all"}, {Batch: 5, Accumulate: 4}, {Batch: 16, Mode: "infer"}, {Batch: 64, Headroom: "0", VRAM: 2400 << 20, Checkpoint: "schedule"}} {
			if cfg.VRAM > 0 && name != "resnet18.dyn-train" {
				continue
			}
			a, err := m.answer(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			o, err := m.options(a.j, a.segs)
			if err != nil {
				t.Fatal(err)
			}
			o.Config.ConvWorkspace = func(c cudnn.Conv, p cudnn.Pass) cudnn.Estimate {
				return cudnn.Estimate{Bytes: m.convWorkspace(c, p).Bound}
			}
			b, err := plannedStep(func([]train.Segment) (*train.Build, error) { return train.New(m.lifted, o) }, a.j, a.segs, a.steps)
			if err != nil {
				t.Fatal(err)
			}
			got, want := sizesInOrder(a.ev.Program.AtBounds()), sizesInOrder(b.Program)
			if !slices.Equal(got, want) {
				t.Errorf("%s %+v: %d events, built at the bounds %d", name, cfg, len(got), len(want))
			}
			if !slices.Equal(got, sizesInOrder(a.ev.Program)) {
				larger++
			}
		}
	}
	if larger < 5 {
		t.Errorf("%d programs have larger workspaces: the test shows little", larger)
	}
}

// TestAnswer: what an answer's step shows is what its report says, whatever the
// budget, also where the step fits the card alone without headroom.
func TestAnswer(t *testing.T) {
	m := sample(t, "resnet50.onnx")
	free, err := m.Analyze(t.Context(), Config{Batch: 32})
	if err != nil {
		t.Fatal(err)
	}
	budgets := []int64{0, free.Peak.ProcessBytes * 2, free.Peak.ProcessBytes / 2}
	for n := range int64(8) { // about the least with which it fits
		budgets = append(budgets, free.Peak.ProcessBytes-(300+15*n)<<20)
	}
	for _, vram := range budgets {
		r, err := m.Analyze(t.Context(), Config{Batch: 32, VRAM: vram, Checkpoint: "none"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Analyze(t.Context(), Config{Batch: 3}); err != nil { // an answer does not change with the model's next one
			t.Fatal(err)
		}
		a := r.Attribution()
		modules, categories := int64(0), int64(0)
		for _, x := range a.Modules {
			modules += x.Bytes
		}
		for i, x := range a.Categories {
			if categories += x.Bytes; x != r.Breakdown[i] {
				t.Errorf("%d: %+v, the report has %+v", vram, x, r.Breakdown[i])
			}
		}
		if want := r.Peak.AllocatedBytes; a.AllocatedBytes != want || modules != want || categories != want {
			t.Errorf("%d: %d bytes by modules, %d by categories, %d in all of %d", vram, modules, categories, a.AllocatedBytes, want)
		}
		if n := len(r.Timeline()); n != len(r.View().Events) || n+1 != len(r.Stack().Points) {
			t.Errorf("%d: %d events, %d in the page, %d points", vram, n, len(r.View().Events), len(r.Stack().Points))
		}
	}
}
