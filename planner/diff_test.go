package planner

import (
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

func sample(t *testing.T, name string) *Model {
	t.Helper()
	m, err := Open(filepath.Join("..", "models", name))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The deltas of a diff add up, whatever the models have in common.
func TestDiffAddsUp(t *testing.T) {
	testdata.Sequential(t)
	names := []string{"resnet50.onnx", "gpt2.onnx", "vit_b_16.onnx", "mlp.onnx"}
	for _, a := range names {
		for _, b := range names {
			d, err := Compare(t.Context(), sample(t, a), sample(t, b), Config{Batch: 4}, Config{Batch: 6})
			if err != nil {
				t.Fatal(err)
			}
			var cats, mods, base, head int64
			for _, c := range d.Categories {
				cats += c.Delta
				base += c.Base
				head += c.Head
			}
			for _, m := range d.Modules {
				mods += m.Delta
			}
			if cats != d.DeltaBytes || mods != d.DeltaBytes || base != d.Base.AllocatedBytes || head != d.Head.AllocatedBytes {
				t.Errorf("%s -> %s: categories %d, modules %d, delta %d", a, b, cats, mods, d.DeltaBytes)
			}
			if a == b && len(d.Ops.Added)+len(d.Ops.Removed) != 0 {
				t.Errorf("%s against itself: %d operators added, %d removed", a, len(d.Ops.Added), len(d.Ops.Removed))
			}
			if a != b && len(d.Ops.Added) == 0 {
				t.Errorf("%s -> %s adds no operator", a, b)
			}
		}
	}
}

// A breakdown adds up to the allocated peak, and the reserved peak is not
// below it; a report is the same from run to run.
func TestReportsAddUp(t *testing.T) {
	testdata.Sequential(t)
	for _, name := range []string{"resnet50.onnx", "gpt2.onnx", "vit_b_16.onnx", "mlp.onnx"} {
		for _, c := range []Config{{Batch: 3}, {Batch: 8, Precision: "amp-bf16"}, {Batch: 5, Mode: "infer"}, {Batch: 16, Checkpoint: "all"}, {Batch: 16, Checkpoint: "sqrt"}, {Batch: 4, Optimizer: "sgd-momentum"}} {
			r, err := sample(t, name).Analyze(t.Context(), c)
			if err != nil {
				t.Fatalf("%s %+v: %v", name, c, err)
			}
			var sum int64
			for _, b := range r.Breakdown {
				sum += b.Bytes
			}
			if sum != r.Peak.AllocatedBytes || r.Peak.ReservedBytes < r.Peak.AllocatedBytes || r.Peak.UpperBoundBytes < r.Peak.ReservedBytes || r.Peak.RequestedBytes > r.Peak.AllocatedBytes {
				t.Errorf("%s %+v: breakdown %d, peak %+v", name, c, sum, r.Peak)
			}
			again, err := sample(t, name).Analyze(t.Context(), c)
			if err != nil || again.Peak != r.Peak || len(again.Live) != len(r.Live) || again.Live[0] != r.Live[0] {
				t.Errorf("%s %+v: a second run differs: %+v, %v", name, c, again.Peak, err)
			}
		}
	}
}

// More of the same never needs less: a larger batch, and a budget that a
// smaller one satisfied.
func TestMonotone(t *testing.T) {
	testdata.Sequential(t)
	m := sample(t, "gpt2.onnx")
	var last int64
	for b := int64(1); b <= 16; b *= 2 {
		r, err := m.Analyze(t.Context(), Config{Batch: b})
		if err != nil {
			t.Fatal(err)
		}
		if r.Peak.AllocatedBytes < last {
			t.Errorf("batch %d needs %d, half of it %d", b, r.Peak.AllocatedBytes, last)
		}
		last = r.Peak.AllocatedBytes
	}
	cost := 1e9
	for _, g := range []int64{8, 10, 12, 16, 24} {
		r, err := m.Analyze(t.Context(), Config{Batch: 32, Headroom: "0", VRAM: g << 30})
		if err != nil {
			t.Fatal(err)
		}
		if !*r.Fits {
			continue
		}
		o := 0.0
		if r.Checkpoint != nil {
			o = r.Checkpoint.RecomputeOverhead
		}
		if o > cost {
			t.Errorf("%d GiB costs %.4f, less memory %.4f", g, o, cost)
		}
		cost = o
		if r.Peak.ProcessBytes > g<<30 {
			t.Errorf("%d GiB: fits, but the process needs %d", g, r.Peak.ProcessBytes)
		}
	}
	if cost == 1e9 {
		t.Error("nothing fits 24 GiB")
	}
}

// A comparison speaks of the peak that analyze reports, under a cap, too.
func TestDiffUnderCap(t *testing.T) {
	testdata.Sequential(t)
	for _, name := range []string{"resnet50.onnx", "mlp.onnx"} {
		for _, vram := range []int64{4 << 30, 8 << 30} {
			c := Config{Headroom: "0", VRAM: vram}
			r, err := sample(t, name).Analyze(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			d, err := Compare(t.Context(), sample(t, name), sample(t, name), c, c)
			if err != nil || d.Base.AllocatedBytes != r.Peak.AllocatedBytes || d.DeltaBytes != 0 {
				t.Errorf("%s in %d: %d, %+v, %v", name, vram, r.Peak.AllocatedBytes, d, err)
			}
		}
	}
}
