package planner

import (
	"testing"

	"github.com/memplan/memplan/graph/program"
)

// The workspaces of a step of linear layers on an H200, by release: cuBLAS keeps
// one of 32 MiB a thread, cuBLASLt one of its own, shares that one, or takes 1 MiB
// for each call; from 2.15 on each product takes its own.
func TestWorkspacesByRelease(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		release string
		kept    map[int64]int // how many of each size live as long as the process
		large   bool          // products take 32 MiB each
		small   bool          // layers with a bias take 1 MiB each
	}{
		{"torch-2.8", map[int64]int{32 * mib: 2}, false, true},
		{"torch-2.11", map[int64]int{32 * mib: 2, mib: 1}, false, false},
		{"torch-2.12", map[int64]int{32 * mib: 2}, false, false},
		{"torch-2.14", map[int64]int{32 * mib: 2}, false, false},
		{"torch-2.15", map[int64]int{}, true, true},
	} {
		s, err := sample(t, "mlp.onnx").Program(Config{Batch: 8, Runtime: c.release})
		if err != nil {
			t.Fatal(err)
		}
		kept := map[int64]int{}
		var large, small bool
		for i := range s.Storages {
			st := &s.Storages[i]
			switch {
			case st.Category != program.Workspace:
			case st.Life == program.State:
				kept[st.Bytes]++
			case st.Bytes == 32*mib:
				large = true
			case st.Bytes == mib:
				small = true
			}
		}
		if len(kept) != len(c.kept) || large != c.large || small != c.small {
			t.Errorf("%s: kept %v, large %v, small %v", c.release, kept, large, small)
		}
		for size, n := range c.kept {
			if kept[size] != n {
				t.Errorf("%s: %d of %d bytes, want %d", c.release, kept[size], size, n)
			}
		}
	}
}

// A file's producer chooses the release, unless --runtime names one; the report
// names the card it assumed.
func TestAssumed(t *testing.T) {
	m := sample(t, "mlp.onnx")
	for _, c := range []struct {
		cfg     Config
		runtime string
		gpu     string
		assumed bool
	}{
		{Config{Batch: 4}, "torch-2.11", "h200", true},
		{Config{Batch: 4, VRAM: 8 << 30}, "torch-2.11", "h200", true},
		{Config{Batch: 4, GPU: "t4", Runtime: "torch-2.9"}, "torch-2.9", "t4", false},
	} {
		r, err := m.Analyze(t.Context(), c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r.Config.Runtime != c.runtime || r.Config.GPU != c.gpu || r.Config.GPUAssumed != c.assumed {
			t.Errorf("%+v: %s on %s, assumed %v", c.cfg, r.Config.Runtime, r.Config.GPU, r.Config.GPUAssumed)
		}
	}
}
