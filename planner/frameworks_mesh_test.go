package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// What a configuration says of a mesh is read back as the plan's, or refused by name; the
// answer is the same to the byte.
func TestMeshConfigs(t *testing.T) {
	testdata.Sequential(t)
	m := sample(t, "gpt2.onnx")
	files := map[string]string{"torchtitan": "run.sh", "accelerate": "accelerate.yaml", "deepspeed": "ds.json", "megatron": "run.sh"}
	for _, c := range []struct {
		cfg  Config
		said map[string]string // by framework: what is written of the mesh, or the error
		read []string          // frameworks whose files have the whole mesh
	}{
		{Config{Parallel: "fsdp=2", FSDPReshard: "false"}, map[string]string{
			"torchtitan": "--parallelism.data_parallel_shard_degree 2\n", "accelerate": "  fsdp_reshard_after_forward: false\n", "deepspeed": "plan with --parallel zero2=N", "megatron": "its sharding is of its own kind", "huggingface": "does not say on how many cards",
		}, []string{"torchtitan", "accelerate"}},
		{Config{Parallel: "hsdp=2x2", FSDPPrecision: "bf16", FSDPOffload: true}, map[string]string{
			"torchtitan": "--training.enable_cpu_offload true\n", "accelerate": "  parallelism_config_dp_replicate_size: 2\n",
		}, []string{"torchtitan", "accelerate"}},
		{Config{Parallel: "zero3=4", ZeROReuse: 1000000}, map[string]string{
			"deepspeed": `"stage3_max_reuse_distance": 1000000`, "accelerate": "it has no key for --zero-reuse 1000000", "torchtitan": "it shards by fully_shard alone",
		}, []string{"deepspeed"}},
		{Config{Parallel: "zero2=2"}, map[string]string{"deepspeed": `"overlap_comm": false`, "accelerate": "  zero_stage: 2\n"}, []string{"accelerate", "deepspeed"}},
		{Config{Parallel: "pp=2,ddp=2", PPSchedule: "1f1b", PPMicros: 4}, map[string]string{
			"torchtitan": "--parallelism.pipeline_parallel_schedule 1F1B\n", "megatron": "--pipeline-model-parallel-size 2\n", "accelerate": "it has no pipelines",
		}, []string{"torchtitan"}},
		{Config{Parallel: "fsdp=2", FSDPPrefetch: 2}, map[string]string{"torchtitan": "it has no key for --fsdp-prefetch 2", "accelerate": "it has no key for --fsdp-prefetch 2"}, nil},
		{Config{Parallel: "fsdp=2", Precision: "amp-bf16"}, map[string]string{"torchtitan": "plan with --fsdp-precision bf16", "accelerate": "plan with --fsdp-precision bf16"}, nil},
	} {
		cfg := c.cfg
		cfg.Batch, cfg.Optimizer, cfg.Checkpoint = 2, "adamw", "none"
		p, err := m.Plan(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range c.said {
			var got string
			e, err := m.Express(t.Context(), p, p.Question(), FindFramework(name))
			if err != nil {
				got = err.Error()
			} else {
				data, err := e.Config()
				if err != nil {
					t.Fatal(err)
				}
				got = string(data)
			}
			if !strings.Contains(got, want) {
				t.Errorf("%s of %s:\n%s\nwithout %q", name, cfg.Parallel, got, want)
			}
			if !slices.Contains(c.read, name) {
				continue
			}
			r, err := parseRecipe(files[name], []byte(got))
			if err != nil {
				t.Fatal(err)
			}
			read := Config{Optimizer: "adamw", Batch: 2}
			for _, s := range r.Settings {
				i := slices.IndexFunc(Settings, func(x Setting) bool { return x.Flag == s.Flag })
				if err := Settings[i].Read(&read, s.Value); err != nil {
					t.Fatal(err)
				}
			}
			a, err := m.Analyze(t.Context(), read)
			if err != nil {
				t.Fatal(err)
			}
			if a.Peak != p.Peak {
				t.Errorf("%s of %s is read as %s and peaks at %d bytes, not %d", name, cfg.Parallel, r, a.Peak.AllocatedBytes, p.Peak.AllocatedBytes)
			}
		}
	}
}

// torchtitan divides sequences beside split modules, which its file says nothing of, and takes
// the loss in parts unless told not to.
func TestMeshSequence(t *testing.T) {
	m, err := ParseParallel("fsdp=2,tp=2")
	if err != nil {
		t.Fatal(err)
	}
	for _, loss := range []bool{false, true} {
		cfg := Config{Parallel: "fsdp=2,tp=2", TPSequence: []string{"norms"}, TPLoss: loss}
		keys, err := titanMesh(&cfg, &m)
		if err != nil {
			t.Fatal(err)
		}
		r, err := parseRecipe("run.sh", []byte(argued(keys)))
		if err != nil {
			t.Fatal(err)
		}
		want := "parallel=fsdp=2,tp=2 tp-sequence=norms"
		if loss {
			want += " tp-loss=true"
		}
		if got := r.String(); got != want {
			t.Errorf("%v is read as %s, want %s", keys, got, want)
		}
	}
	m, err = ParseParallel("ddp=2,tp=2")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := megatronMesh(&Config{TPSequence: []string{"norms"}}, &m)
	if err != nil || !slices.Contains(keys, [2]string{"--sequence-parallel", ""}) {
		t.Errorf("%v, %v", keys, err)
	}
}

// torchtitan gets the ranks that share experts, others refuse them.
func TestMeshExperts(t *testing.T) {
	for _, c := range []struct {
		mesh  string
		keys  meshKeys
		wrong string
	}{
		{"fsdp=8,ep=4", titanMesh, ""},
		{"ep=4", titanMesh, "plan with --parallel fsdp=4,ep=4"},
		{"fsdp=8,ep=4", accelerateMesh, "no expert parallelism"},
		{"ep=4", megatronMesh, "dispatch of tokens is of its own kind"},
		{"ep=4", speedMesh, "DeepSpeed's own engine"},
	} {
		m, err := ParseParallel(c.mesh)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := c.keys(&Config{Parallel: c.mesh, EPImbalance: "2"}, &m)
		if c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", c.mesh, err, c.wrong)
		}
		if c.wrong == "" && (err != nil || !slices.Contains(keys, [2]string{"--parallelism.expert_parallel_degree", "4"}) || !slices.Contains(keys, [2]string{"--parallelism.data_parallel_shard_degree", "8"})) {
			t.Errorf("%s: %v, %v", c.mesh, keys, err)
		}
	}
}

// Frameworks that have context parallelism of PyTorch's get its ranks, others refuse it.
func TestMeshContext(t *testing.T) {
	for _, c := range []struct {
		mesh              string
		keys              meshKeys
		key, value, wrong string
	}{
		{"fsdp=2,cp=4", titanMesh, "--parallelism.context_parallel_degree", "4", ""},
		{"fsdp=2,tp=2", titanMesh, "", "", "plan with --tp-sequence norms"},
		{"fsdp=2,cp=4", accelerateMesh, "parallelism_config.parallelism_config_cp_size", "4", ""},
		{"ddp=2,cp=4", accelerateMesh, "", "", "beside FSDP"},
		{"ddp=2,cp=4", megatronMesh, "", "", "TransformerEngine"},
	} {
		m, err := ParseParallel(c.mesh)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := c.keys(&Config{Parallel: c.mesh, CPDim: []string{"seq"}[:min(m.Context, 1)]}, &m)
		at := slices.IndexFunc(keys, func(k [2]string) bool {
			return strings.Contains(k[0], "context_parallel") || strings.HasSuffix(k[0], "cp_size")
		})
		switch {
		case c.wrong != "":
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want %q", c.mesh, err, c.wrong)
			}
		case err != nil, (at >= 0) != (c.key != ""), at >= 0 && keys[at] != [2]string{c.key, c.value}:
			t.Errorf("%s: %v, %v", c.mesh, keys, err)
		}
	}
}

// accelerate has one list of classes for fully_shard and for checkpoints: what config writes is predicted with
// both, and --config reads both.
func TestMeshClasses(t *testing.T) {
	m, err := Open("../models/gpt2.onnx")
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.Plan(t.Context(), Config{Parallel: "fsdp=4", Batch: 16, GPU: "h100", VRAM: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	e, err := m.Express(t.Context(), p, p.Question(), FindFramework("accelerate"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := e.Config()
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseRecipe("accelerate.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	read := Config{Optimizer: "adamw", Batch: 16, GPU: "h100", VRAM: 8 << 30}
	for _, s := range r.Settings {
		i := slices.IndexFunc(Settings, func(x Setting) bool { return x.Flag == s.Flag })
		if err := Settings[i].Read(&read, s.Value); err != nil {
			t.Fatal(err)
		}
	}
	a, err := m.Analyze(t.Context(), read)
	if err != nil {
		t.Fatal(err)
	}
	if want := p.Peak.AllocatedBytes + e.Higher; a.Peak.AllocatedBytes != want || read.FSDPWrap != classPrefix+strings.Join(e.wrapped(), ",") {
		t.Errorf("%s\nis read as %s and peaks at %d bytes, predicted %d", data, r, a.Peak.AllocatedBytes, want)
	}
}

// wrapped are the classes of a configuration's checkpoints.
func (e *Expression) wrapped() (out []string) {
	for i := range e.way.blocks {
		out = append(out, e.way.blocks[i].short())
	}
	slices.Sort(out)
	return slices.Compact(out)
}
