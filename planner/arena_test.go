package planner

import (
	"errors"
	"slices"
	"testing"
)

// TestPlanArena: the arena of a plan is that of the program which its question
// builds again, and is of no other.
func TestPlanArena(t *testing.T) {
	for _, cfg := range []Config{{Batch: 8, Checkpoint: "none"}, {Batch: 64, Checkpoint: "all", Precision: "amp-bf16"}, {Batch: 4, Mode: "infer", Checkpoint: "none"}} {
		m := sample(t, "resnet50.onnx")
		p, err := m.Plan(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.Program(p.Question())
		if err != nil {
			t.Fatal(err)
		}
		offset, err := p.Arena.Places(s.Program)
		if err != nil {
			t.Fatalf("%+v: %v", cfg, err)
		}
		end := int64(0)
		for i, at := range offset {
			if at >= 0 {
				end = max(end, at+(s.Storages[i].Bytes+p.Arena.GuardBytes+255)/256*256)
			}
		}
		if end != p.Arena.Bytes || end < p.Arena.BoundBytes || float64(end) > 1.02*float64(p.Arena.BoundBytes) || p.Arena.Order == "" {
			t.Errorf("%+v: %d bytes, ends at %d, at least %d, by %q", cfg, p.Arena.Bytes, end, p.Arena.BoundBytes, p.Arena.Order)
		}
		other := *s.Program
		other.Storages = slices.Clone(other.Storages)
		other.Storages[0].Bytes++
		if _, err := p.Arena.Places(&other); !errors.Is(err, ErrOtherProgram) {
			t.Errorf("%+v: another program: %v", cfg, err)
		}
	}
}

// TestPlanWithoutArena: where not even a batch of one fits there is no step to place.
func TestPlanWithoutArena(t *testing.T) {
	p, err := sample(t, "resnet50.onnx").Plan(t.Context(), Config{VRAM: 1000 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if p.Batch.Max != 0 || p.Arena != nil {
		t.Errorf("batch %d, arena %+v", p.Batch.Max, p.Arena)
	}
}
