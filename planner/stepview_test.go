package planner

import (
	"path/filepath"
	"slices"
	"testing"
)

// Over a step, what a page shows in the segments does not overlap, does not leave
// its segment, and the segments are what the step reserves.
func TestPlacesOfView(t *testing.T) {
	for name, cfg := range map[string]Config{"mlp": {Batch: 4}, "resnet50": {Batch: 2}, "gpt2": {Batch: 1, VRAM: 6 << 30}} {
		m, err := Open(filepath.Join("..", "models", name+".onnx"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := m.Analyze(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		v := r.View()
		var all int64
		ends := []int64{}
		for _, s := range v.Segments {
			all += s[0]
			ends = append(ends, all)
		}
		if all != r.Peak.ReservedBytes {
			t.Errorf("%s: segments of %d bytes, %d reserved", name, all, r.Peak.ReservedBytes)
		}
		held := map[int64][2]int64{} // place and end, by storage
		take := func(id, at int64) {
			end := at + v.Storages[id][0]
			i, _ := slices.BinarySearch(ends, at+1)
			if at < 0 || i == len(ends) || end > ends[i] {
				t.Fatalf("%s: storage %d of %d bytes at %d: in no segment", name, id, v.Storages[id][0], at)
			}
			for other, h := range held {
				if other != id && at < h[1] && h[0] < end {
					t.Fatalf("%s: storage %d at %d to %d overlaps %d at %d to %d", name, id, at, end, other, h[0], h[1])
				}
			}
			held[id] = [2]int64{at, end}
		}
		next := 0
		for _, id := range v.Before {
			take(int64(id), v.Places[next])
			next++
		}
		for _, e := range v.Events {
			if e[1] < 0 {
				delete(held, int64(-e[1]-1))
				continue
			}
			take(int64(e[1]-1), v.Places[next])
			next++
		}
		if next != len(v.Places) {
			t.Errorf("%s: %d places, %d allocations", name, len(v.Places), next)
		}
	}
}

// A page knows the shape of what a linear layer makes, and which node of backward its
// input is saved for.
func TestTypesOfView(t *testing.T) {
	m, err := Open(filepath.Join("..", "models", "mlp.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Analyze(t.Context(), Config{Batch: 4})
	if err != nil {
		t.Fatal(err)
	}
	v := r.View()
	saved := map[string]string{} // of activations and inputs, by name and type
	for _, s := range v.Storages {
		if c := v.Categories[s[1]]; c == "activations" || c == "inputs" {
			saved[v.Strings[s[2]]+" "+v.Strings[s[4]]] = v.Strings[s[5]]
		}
	}
	// torch.nn.functional.linear and relu, as derivatives.yaml has them; each result is
	// read first by the backward of the layer after it.
	for name, want := range map[string]string{"input0 float[4,4096]": "AddmmBackward0 of linear", "relu float[4,4096]": "AddmmBackward0 of linear_1"} {
		if got, ok := saved[name]; !ok || got != want {
			t.Errorf("%s: %q, want %q; there are %v", name, got, want, saved)
		}
	}
}
