package planner

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/shard"
)

// meshKeys are what a framework's configuration says of a mesh, a key and a value each, in
// order. An error names what it has no key for.
type meshKeys func(c *Config, m *shard.Mesh) ([][2]string, error)

// keys are the framework's of a plan's mesh; none for a plan of one card.
func (f *Framework) keys(c *Config) ([][2]string, error) {
	if c.Parallel == "" {
		return nil, nil
	}
	m, err := ParseParallel(c.Parallel)
	if err != nil {
		return nil, err
	}
	if f.mesh == nil {
		return nil, fmt.Errorf("%s's configuration does not say on how many cards a step is spread: the plan is of %s; apply it by memplan.parallelize, or give --to fsdp2, torchtitan, deepspeed, megatron or accelerate", f.Name, m)
	}
	keys, err := f.mesh(c, &m)
	if err != nil {
		return nil, fmt.Errorf("%s's configuration cannot express the plan's mesh %s: %w", f.Name, m, err)
	}
	return keys, nil
}

// others is an error for settings of dimensions, by flags, that a configuration has no key for.
func others(c *Config, known ...string) error {
	for i := range Settings {
		s := &Settings[i]
		v := s.Values(c)
		if len(v) == 0 || v[0] == s.Default || slices.Contains(known, s.Flag) {
			continue
		}
		for _, d := range dimensionSettings {
			if strings.HasPrefix(s.Flag, d.prefix) {
				return fmt.Errorf("it has no key for --%s %s", s.Flag, v[0])
			}
		}
	}
	return nil
}

func count(n int) string { return fmt.Sprint(max(n, 1)) }

// reshard is whether gathered parameters go after forward, by the words of a framework.
func reshard(c *Config, on, off string) (string, error) {
	n, err := parseReshard(cmp.Or(c.FSDPReshard, "true"))
	switch {
	case err != nil:
		return "", err
	case n > 1:
		return "", fmt.Errorf("it has no key for --fsdp-reshard %d", n)
	case n == 1:
		return off, nil
	}
	return on, nil
}

// policy is an error for autocast beside fully_shard, which these frameworks replace by its policy.
func policy(c *Config, m *shard.Mesh) error {
	if m.Shards > 0 && strings.HasPrefix(c.Precision, "amp-") {
		return fmt.Errorf("its %s is fully_shard's policy, not autocast: plan with --fsdp-precision bf16", strings.TrimPrefix(c.Precision, "amp-"))
	}
	return nil
}

// titanMesh is torchtitan's [parallelism].
func titanMesh(c *Config, m *shard.Mesh) ([][2]string, error) {
	if m.ZeRO || m.Stage > 0 {
		return nil, errors.New("it shards by fully_shard alone")
	}
	if m.Experts > 0 && m.Shards == 0 {
		return nil, fmt.Errorf("it shards parameters beside experts in any case: plan with --parallel fsdp=%d,ep=%d", m.Experts, m.Experts)
	}
	if err := errors.Join(policy(c, m), others(c, "fsdp-reshard", "fsdp-precision", "fsdp-offload", "cp-dim", "ep-experts", "ep-imbalance", "pp-schedule", "pp-micros", "tp-sequence", "tp-loss")); err != nil {
		return nil, err
	}
	if m.Tensor > 0 && len(c.TPSequence) == 0 {
		return nil, errors.New("it divides sequences between split modules in any case: plan with --tp-sequence norms")
	}
	const p = "--parallelism."
	out := [][2]string{{p + "data_parallel_replicate_degree", count(m.Replicas)}, {p + "data_parallel_shard_degree", count(m.Shards)}, {p + "tensor_parallel_degree", count(m.Tensor)}, {p + "pipeline_parallel_degree", count(m.Pipeline)}}
	if m.Tensor > 0 && !c.TPLoss {
		out = append(out, [2]string{p + "disable_loss_parallel", "true"})
	}
	if m.Context > 0 {
		out = append(out, [2]string{p + "context_parallel_degree", count(m.Context)})
	}
	if m.Experts > 0 {
		out = append(out, [2]string{p + "expert_parallel_degree", count(m.Experts)})
	}
	if m.Shards > 0 {
		word, err := reshard(c, "always", "never")
		if err != nil {
			return nil, err
		}
		out = append(out, [2]string{p + "fsdp_reshard_after_forward", word})
	}
	if c.FSDPOffload {
		out = append(out, [2]string{"--training.enable_cpu_offload", "true"})
	}
	if m.Pipeline > 0 {
		names := map[string]string{"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "bfs": "LoopedBFS", "zero-bubble": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble"}
		out = append(out, [2]string{p + "pipeline_parallel_schedule", names[cmp.Or(c.PPSchedule, shard.Schedules[0].Name)]}, [2]string{p + "pipeline_parallel_microbatch_size", fmt.Sprint(c.Batch)})
	}
	return out, nil
}

// megatronMesh is Megatron-LM's arguments; its data-parallel ranks are those that are left.
func megatronMesh(c *Config, m *shard.Mesh) ([][2]string, error) {
	switch {
	case m.Experts > 0:
		return nil, errors.New("its dispatch of tokens is of its own kind, and the plan's torchtitan's: give a mesh without ep")
	case m.Context > 0:
		return nil, errors.New("its context parallelism is TransformerEngine's, and the plan's PyTorch's: give a mesh without cp")
	case m.Shards > 0 || m.Stage > 0:
		return nil, errors.New("its sharding is of its own kind: give a mesh of ddp, zero1, tp and pp")
	case c.PPSchedule == "gpipe" || m.Pipeline > 0 && c.PPSchedule == "":
		return nil, errors.New("it runs 1f1b alone: plan with --pp-schedule 1f1b")
	}
	if m.Pipeline > 0 && c.PPSchedule != "1f1b" && c.PPSchedule != "interleaved" {
		return nil, fmt.Errorf("it has no key for --pp-schedule %s", c.PPSchedule)
	}
	if err := others(c, "pp-schedule", "pp-micros", "tp-sequence"); err != nil {
		return nil, err
	}
	out := [][2]string{{"--tensor-model-parallel-size", count(m.Tensor)}, {"--pipeline-model-parallel-size", count(m.Pipeline)}}
	if len(c.TPSequence) > 0 {
		out = append(out, [2]string{"--sequence-parallel", ""})
	}
	if c.PPSchedule == "interleaved" {
		out = append(out, [2]string{"--num-virtual-stages-per-pipeline-rank", "2"})
	}
	if m.ZeRO {
		out = append(out, [2]string{"--use-distributed-optimizer", ""})
	}
	return out, nil
}

// accelerateMesh is accelerate's configuration, with dots in its keys.
func accelerateMesh(c *Config, m *shard.Mesh) ([][2]string, error) {
	if m.Pipeline > 0 || m.ZeRO || m.Experts > 0 {
		return nil, errors.New("it has no pipelines, no optimizer of that kind and no expert parallelism")
	}
	if err := errors.Join(policy(c, m), others(c, "fsdp-reshard", "fsdp-precision", "fsdp-offload", "cp-dim")); err != nil {
		return nil, err
	}
	out := [][2]string{{"num_processes", count(m.Ranks())}}
	switch {
	case m.Stage > 0:
		return append(out, [2]string{"distributed_type", "DEEPSPEED"}, [2]string{"deepspeed_config.zero_stage", count(m.Stage)}), nil
	case m.Context > 0 && m.Shards == 0:
		return nil, errors.New("context parallelism stands there beside FSDP: give fsdp=N,cp=M")
	case m.Shards == 0 && m.Tensor == 0:
		return append(out, [2]string{"distributed_type", "MULTI_GPU"}), nil
	case m.Shards == 0:
		return nil, errors.New("tensor parallelism stands there beside FSDP: give fsdp=N,tp=M")
	}
	word, err := reshard(c, "true", "false")
	if err != nil {
		return nil, err
	}
	out = append(out, [2]string{"distributed_type", "FSDP"}, [2]string{"fsdp_config.fsdp_version", "2"}, [2]string{"fsdp_config.fsdp_reshard_after_forward", word}, [2]string{"fsdp_config.fsdp_offload_params", fmt.Sprint(c.FSDPOffload)})
	if m.Replicas > 0 || m.Tensor > 0 || m.Context > 0 {
		const p = "parallelism_config.parallelism_config_"
		out = append(out, [2]string{p + "dp_replicate_size", count(m.Replicas)}, [2]string{p + "dp_shard_size", count(m.Shards)}, [2]string{p + "tp_size", count(m.Tensor)})
		if m.Context > 0 {
			out = append(out, [2]string{p + "cp_size", count(m.Context)})
		}
	}
	return out, nil
}

// speedMesh is DeepSpeed's zero_optimization.
func speedMesh(c *Config, m *shard.Mesh) ([][2]string, error) {
	if m.Stage == 0 {
		return nil, errors.New("it is of DeepSpeed's own engine: plan with --parallel zero2=N or zero3=N")
	}
	out := [][2]string{{"stage", count(m.Stage)}}
	for _, k := range []struct {
		key string
		n   int
	}{{"reduce_bucket_size", c.ZeROBucket}, {"stage3_param_persistence_threshold", c.ZeROPersistence}, {"stage3_max_reuse_distance", c.ZeROReuse}, {"stage3_prefetch_bucket_size", c.ZeROPrefetch}, {"stage3_max_live_parameters", c.ZeROLive}} {
		if k.n > 0 {
			out = append(out, [2]string{k.key, fmt.Sprint(k.n)})
		}
	}
	if m.Stage == 2 {
		out = append(out, [2]string{"overlap_comm", fmt.Sprint(c.ZeROOverlap)})
	}
	return out, nil
}

// argued writes keys as arguments of a command line.
func argued(keys [][2]string) string {
	var sb strings.Builder
	for _, k := range keys {
		sb.WriteString(strings.TrimSpace(k[0]+" "+k[1]) + "\n")
	}
	return sb.String()
}

// values are keys as JSON has them.
func values(keys [][2]string) map[string]any {
	out := map[string]any{}
	for _, k := range keys {
		out[k[0]] = json.RawMessage(k[1])
	}
	return out
}

// sections writes keys as YAML, those of a section together.
func sections(keys [][2]string) []byte {
	var sb strings.Builder
	var done []string
	for _, k := range keys {
		in, _, nested := strings.Cut(k[0], ".")
		if !nested {
			sb.WriteString(k[0] + ": " + k[1] + "\n")
			continue
		}
		if slices.Contains(done, in) {
			continue
		}
		done = append(done, in)
		sb.WriteString(in + ":\n")
		for _, other := range keys {
			if key, ok := strings.CutPrefix(other[0], in+"."); ok {
				sb.WriteString("  " + key + ": " + other[1] + "\n")
			}
		}
	}
	return []byte(sb.String())
}
