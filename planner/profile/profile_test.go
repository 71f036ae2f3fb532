package profile

import (
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// table is one table as its users see it.
type table struct {
	kind  string
	names []string   // own names
	all   [][]string // own name and aliases, by row
	find  func(string) (string, error)
}

func tables() []table {
	return []table{
		{"gpu", DeviceNames(), allNames(Devices, deviceNames), func(n string) (string, error) { return found(FindDevice, deviceNames, n) }},
		{"runtime", RuntimeNames(), allNames(AllRuntimes(), runtimeNames), func(n string) (string, error) { return found(FindRuntime, runtimeNames, n) }},
		{"optimizer", OptimizerNames(), allNames(Optimizers, optimizerNames), func(n string) (string, error) { return found(FindOptimizer, optimizerNames, n) }},
		{"precision", PrecisionNames(), allNames(Precisions, precisionNames), func(n string) (string, error) { return found(FindPrecision, precisionNames, n) }},
	}
}

func allNames[T any](rows []T, names func(*T) []string) [][]string {
	var out [][]string
	for i := range rows {
		out = append(out, names(&rows[i]))
	}
	return out
}

func found[T any](find func(string) (*T, error), names func(*T) []string, name string) (string, error) {
	row, err := find(name)
	if err != nil {
		return "", err
	}
	return names(row)[0], nil
}

// Names are unique across a table, found in any case, and lead to their row.
func TestTables(t *testing.T) {
	for _, tb := range tables() {
		seen := map[string]bool{}
		if len(tb.names) != len(tb.all) || len(tb.names) == 0 {
			t.Errorf("%s: %d names, %d rows", tb.kind, len(tb.names), len(tb.all))
		}
		for i, names := range tb.all {
			if tb.names[i] != names[0] {
				t.Errorf("%s %d: name %s, want %s", tb.kind, i, tb.names[i], names[0])
			}
			for _, n := range names {
				if seen[n] || n != strings.ToLower(n) || n == "" {
					t.Errorf("%s: bad or repeated name %q", tb.kind, n)
				}
				seen[n] = true
				for _, spelled := range []string{n, strings.ToUpper(n)} {
					if got, err := tb.find(spelled); err != nil || got != names[0] {
						t.Errorf("%s %q: found %q, %v, want %q", tb.kind, spelled, got, err, names[0])
					}
				}
			}
		}
	}
}

func TestUnknownNames(t *testing.T) {
	for _, tt := range []struct{ kind, name, want string }{
		{"gpu", "h20", `unknown gpu "h20": did you mean h200?`},
		{"gpu", "A100-40g", `unknown gpu "A100-40g": did you mean a100-40gb?`},
		{"gpu", "4090", `unknown gpu "4090": did you mean rtx4090?`},
		{"gpu", "RTX 4090", `unknown gpu "RTX 4090": did you mean rtx4090?`},
		{"optimizer", "adamw-fuse", `unknown optimizer "adamw-fuse": did you mean adamw-fused?`},
		{"optimizer", "adma", `unknown optimizer "adma" (known: adamw, `},
		{"precision", "bf17", `unknown precision "bf17": did you mean bf16?`},
		{"precision", "int8", `unknown precision "int8" (known: fp32, amp-bf16, amp-fp16, bf16, fp16)`},
		{"runtime", "torch-2.16", `unknown runtime "torch-2.16": did you mean torch-2.15?`},
		{"gpu", "", `unknown gpu "" (known: h200, `},
		{"gpu", strings.Repeat("h", 1000), `unknown gpu "hhh`},
	} {
		for _, tb := range tables() {
			if tb.kind != tt.kind {
				continue
			}
			if _, err := tb.find(tt.name); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%s %.20q: %.100v, want %s", tt.kind, tt.name, err, tt.want)
			}
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"h20", "h200", 1}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

// The names that the command line promises exist.
func TestPromisedNames(t *testing.T) {
	for kind, names := range map[string]string{
		"gpu":       "h200 h100 h100-pcie a100-40gb a100-80gb a10 l4 l40s t4 v100-16gb v100-32gb rtx3060 rtx3090 rtx4060 rtx4090 rtx5090 b200",
		"runtime":   "torch-2.6 torch-2.7 torch-2.8 torch-2.9 torch-2.10 torch-2.11 torch-2.12 torch-2.13 torch-2.14 torch-2.15",
		"optimizer": "sgd sgd-momentum adam adamw adamw-fused adamw-foreach adamw-loop none",
		"precision": "fp32 amp-bf16 amp-fp16 bf16 fp16",
	} {
		for _, tb := range tables() {
			for _, n := range strings.Fields(names) {
				if tb.kind != kind {
					continue
				}
				if _, err := tb.find(n); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if Devices[0].Name != "h200" || Runtimes[0].Name != "torch-2.15" || Optimizers[0].Name != "adamw" || Precisions[0].Name != "fp32" {
		t.Error("a table does not begin with its default")
	}
}

// Every figure of a card is there, sourced and of a sensible size.
func TestDevices(t *testing.T) {
	for _, d := range Devices {
		if d.Memory < 4*GiB || d.Memory > 512*GiB || d.Context < 100*MiB || d.Context > 1*GiB || d.L2 < MiB || d.SMs < 10 {
			t.Errorf("%s: memory %d, context %d, L2 %d, %d SMs", d.Name, d.Memory, d.Context, d.L2, d.SMs)
		}
		if d.Bandwidth < 1e11 || d.Bandwidth > 1e13 || d.FP32 < 1e12 || d.Half < 2*d.FP32*0.99 {
			t.Errorf("%s: bandwidth %g, FP32 %g, half %g", d.Name, d.Bandwidth, d.FP32, d.Half)
		}
		// TF32 and bfloat16 came with Ampere.
		if ampere := d.Compute.AtLeast(8, 0); ampere != (d.TF32 > 0) || ampere != d.BF16 || d.TF32 > d.Half {
			t.Errorf("%s (%v): TF32 %g, bf16 %v", d.Name, d.Compute, d.TF32, d.BF16)
		}
		if d.Source == "" || d.MemorySource == "" || d.ContextSource == "" || d.Title == "" {
			t.Errorf("%s: a figure without a source", d.Name)
		}
		for field, source := range map[string]string{"Memory": d.MemorySource, "Context": d.ContextSource} {
			if slices.Contains(d.Estimated, field) != strings.HasPrefix(source, "estimate") {
				t.Errorf("%s: %s from %q, estimated %v", d.Name, field, source, d.Estimated)
			}
		}
	}
}

func TestCapability(t *testing.T) {
	c := Capability{8, 6}
	if c.String() != "sm_86" || !c.AtLeast(8, 6) || !c.AtLeast(7, 9) || c.AtLeast(8, 9) || c.AtLeast(9, 0) {
		t.Errorf("capability %v", c)
	}
}

// Facts of single releases that the sources state.
func TestRuntimes(t *testing.T) {
	sm80, sm90, sm100, sm120 := Capability{8, 0}, Capability{9, 0}, Capability{10, 0}, Capability{12, 0}
	for i := range Runtimes {
		r := &Runtimes[i]
		blackwell := int64(8_519_680) // from 2.12 on as large as Hopper's
		if r.Lt == LtShared || r.CuBLASPerCall {
			blackwell = 33_554_432
		}
		if r.CuBLASBytes(sm80) != 8_519_680 || r.CuBLASBytes(sm90) != 33_554_432 || r.CuBLASBytes(sm100) != blackwell || r.CuBLASBytes(sm120) != blackwell {
			t.Errorf("%s: cuBLAS workspaces %d, %d, %d, %d", r.Name, r.CuBLASBytes(sm80), r.CuBLASBytes(sm90), r.CuBLASBytes(sm100), r.CuBLASBytes(sm120))
		}
		if r.Source == "" || r.CUDA == "" || r.CuDNN == "" || !r.ConvTF32 || r.MatmulTF32 || !r.Foreach {
			t.Errorf("%s: %+v", r.Name, r)
		}
		if r.Allocator != (Allocator{512, 1048576, 2097152, 20971520, 10485760, 2097152}) {
			t.Errorf("%s: allocator %+v", r.Name, r.Allocator)
		}
	}
	for _, tt := range []struct {
		name  string
		lt    LtRegime
		first string // kernel tried first on sm_90
	}{
		{"torch-2.6", LtPerCall, Flash}, {"torch-2.7", LtPerCall, Flash}, {"torch-2.8", LtPerCall, Flash},
		{"torch-2.9", LtPersistent, CuDNN}, {"torch-2.10", LtPersistent, Flash}, {"torch-2.11", LtPersistent, CuDNN},
		{"torch-2.12", LtShared, CuDNN}, {"torch-2.13", LtShared, CuDNN}, {"torch-2.14", LtShared, CuDNN}, {"torch-2.15", LtPerCall, CuDNN},
	} {
		r, err := FindRuntime(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		if r.Lt != tt.lt || r.AttentionOrder(sm90)[0] != tt.first || r.AttentionOrder(sm80)[0] != Flash {
			t.Errorf("%s: cuBLASLt %v, attention %v", r.Name, r.Lt, r.AttentionOrder(sm90))
		}
	}
}

func TestAttention(t *testing.T) {
	r := &Runtimes[0]
	for _, tt := range []struct {
		c    Capability
		call AttentionCall
		want string
	}{
		{Capability{8, 0}, AttentionCall{graph.BFloat16, 64, false}, Flash},
		{Capability{8, 0}, AttentionCall{graph.BFloat16, 64, true}, Efficient},
		{Capability{8, 0}, AttentionCall{graph.BFloat16, 60, true}, Math},
		{Capability{8, 0}, AttentionCall{graph.Float32, 60, false}, Efficient},
		{Capability{8, 0}, AttentionCall{graph.Float32, 63, false}, Math},
		{Capability{8, 0}, AttentionCall{graph.Float64, 64, false}, Math},
		{Capability{7, 5}, AttentionCall{graph.Float16, 64, false}, Efficient},
		{Capability{7, 5}, AttentionCall{graph.BFloat16, 64, false}, Math},
		{Capability{7, 5}, AttentionCall{graph.Float32, 63, false}, Efficient},
		{Capability{9, 0}, AttentionCall{graph.Float16, 64, true}, CuDNN},
		{Capability{9, 0}, AttentionCall{graph.Float16, 320, false}, Efficient},
		{Capability{9, 0}, AttentionCall{graph.Float32, 0, false}, Math},
	} {
		if got := r.Attention(tt.c, tt.call); got != tt.want {
			t.Errorf("%v %+v: %s, want %s", tt.c, tt.call, got, tt.want)
		}
	}
}

func TestPrecisions(t *testing.T) {
	for _, p := range Precisions {
		if p.Autocast != strings.HasPrefix(p.Name, "amp-") || p.Autocast == (p.Storage == p.Compute) || p.Doc == "" {
			t.Errorf("%+v", p)
		}
		if p.Scaler != (p.Name == "amp-fp16") {
			t.Errorf("%s: gradient scaler %v", p.Name, p.Scaler)
		}
	}
}
