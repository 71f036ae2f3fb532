package planner

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/shard"
)

// sizeOf is a size of a mesh; 0 where the file leaves it to the number of cards.
func (r *recipeReading) sizeOf(key string) int {
	v, ok := r.values[key]
	if !ok {
		return 1
	}
	if n, err := strconv.Atoi(v); err == nil && n > 0 {
		return n
	}
	return 0
}

// onMesh takes a mesh over by the sizes of its dimensions, and reports whether it did.
func (r *recipeReading) onMesh(key string, pipeline, replicas, shards, tensor, experts int) bool {
	var parts []string
	add := func(name string, n int) {
		if n > 1 {
			parts = append(parts, fmt.Sprintf("%s=%d", name, n))
		}
	}
	add("pp", pipeline)
	if replicas > 1 && shards > 1 {
		parts = append(parts, fmt.Sprintf("hsdp=%dx%d", replicas, shards))
	} else {
		add("ddp", replicas)
		add("fsdp", shards)
	}
	add("ep", experts)
	add("tp", tensor)
	if len(parts) == 0 {
		return false
	}
	text := strings.Join(parts, ",")
	if _, err := ParseParallel(text); err != nil {
		r.leave(key, text, err.Error())
		return false
	}
	r.set("parallel", text, key)
	return true
}

// gathered replaces autocast by the policy of fully_shard, which is what a sharded
// framework's precision is.
func (r *recipeReading) gathered() {
	i := slices.IndexFunc(r.Settings, func(s RecipeSetting) bool { return s.Flag == "precision" && s.Value == "amp-bf16" })
	if i >= 0 {
		r.Settings[i].Flag, r.Settings[i].Value = "fsdp-precision", "bf16"
	}
}

// titanDegrees are the dimensions of torchtitan's mesh that are taken over.
var titanDegrees = []string{"pipeline_parallel", "data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "expert_parallel"}

// titanParallel reads torchtitan's mesh, once: at the first of its keys.
func titanParallel(r *recipeReading, key, value string) {
	name, degree := strings.CutSuffix(strings.TrimPrefix(key, "parallelism."), "_degree")
	if degree && !slices.Contains(titanDegrees, name) && value != "1" {
		r.leave(key, value, "this dimension is not modelled")
	}
	if !degree || !slices.Contains(titanDegrees, name) || slices.ContainsFunc(r.Settings, func(s RecipeSetting) bool { return s.Flag == "parallel" }) {
		return
	}
	var n [5]int
	for i, d := range titanDegrees {
		n[i] = r.sizeOf("parallelism." + d + "_degree")
	}
	if slices.Contains(n[:], 0) {
		if value == "-1" {
			r.leave(key, value, "how many cards there are is not in the file: give --parallel")
		}
		return
	}
	if !r.onMesh(key, n[0], n[1], n[2], n[3], n[4]) {
		return
	}
	if n[2] > 1 {
		r.gathered()
		if word := r.values["parallelism.fsdp_reshard_after_forward"]; word == "never" || word != "always" && n[0] > 1 { // its default beside a pipeline
			r.set("fsdp-reshard", "false", key)
		}
		if strings.EqualFold(r.values["training.enable_cpu_offload"], "true") {
			r.set("fsdp-offload", "true", key)
		}
	}
	if n[3] > 1 {
		const tensor = "parallelism.tensor_parallel_degree" // torchtitan divides sequences between split modules in any case
		r.set("tp-sequence", shard.Norms, tensor)
		if !strings.EqualFold(r.values["parallelism.disable_loss_parallel"], "true") {
			r.set("tp-loss", "true", tensor)
		}
	}
	if n[0] > 1 {
		r.titanPipeline()
	}
}

// titanPipeline reads the schedule and the micro-batches of a pipeline.
func (r *recipeReading) titanPipeline() {
	const key = "parallelism.pipeline_parallel_schedule"
	names := map[string]string{"": "1f1b", "1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved", "LoopedBFS": "bfs", "InterleavedZeroBubble": "zero-bubble", "ZBVZeroBubble": "zbv"}
	if name, ok := names[r.values[key]]; ok {
		r.set("pp-schedule", name, key)
	} else {
		r.leave(key, r.values[key], "this schedule is not modelled: give --pp-schedule")
	}
}

// titanBatch reads the batch of a rank: of a pipeline that of a micro-batch, and how many
// there are.
func titanBatch(r *recipeReading, key, value string) {
	const size = "parallelism.pipeline_parallel_microbatch_size"
	each, local := r.sizeOf(size), 0
	if n, err := strconv.Atoi(value); err == nil {
		local = n
	}
	if r.sizeOf("parallelism.pipeline_parallel_degree") <= 1 || each == 0 || local < 1 {
		flagOf("batch")(r, key, value)
		return
	}
	if local%each != 0 {
		r.fail(key, "%d is no multiple of %s %d", local, size, each)
		return
	}
	r.set("batch", fmt.Sprint(each), key)
	r.set("pp-micros", fmt.Sprint(local/each), key)
}

// accelerateParallel reads accelerate's mesh.
func accelerateParallel(r *recipeReading, key, value string) {
	const p = "parallelism_config.parallelism_config_"
	n := r.sizeOf("num_processes")
	stage := r.values["deepspeed_config.zero_stage"]
	switch {
	case n <= 1:
		r.leave(key, value, sharded)
	case value == "MULTI_GPU":
		r.onMesh(key, 1, n, 1, 1, 1)
	case value == "DEEPSPEED" && (stage == "2" || stage == "3") && r.first("none", "deepspeed_config.offload_optimizer_device") == "none" && r.first("none", "deepspeed_config.offload_param_device") == "none":
		r.set("parallel", "zero"+stage+"="+fmt.Sprint(n), key)
	case value == "FSDP" && r.values["fsdp_config.fsdp_version"] == "2":
		replicas, tensor := r.sizeOf(p+"dp_replicate_size"), r.sizeOf(p+"tp_size")
		shards := n / max(1, replicas*tensor)
		if given := r.sizeOf(p + "dp_shard_size"); given > 1 {
			shards = given
		}
		if replicas*shards*tensor != n || r.sizeOf(p+"cp_size") != 1 || r.sizeOf(p+"sp_size") != 1 {
			r.leave(key, value, fmt.Sprintf("the sizes of parallelism_config do not make %d processes of fsdp, hsdp and tp: give --parallel", n))
			return
		}
		if r.onMesh(key, 1, replicas, shards, tensor, 1) && shards > 1 {
			r.gathered()
			r.accelerateWrap(key)
			if strings.EqualFold(r.values["fsdp_config.fsdp_reshard_after_forward"], "false") {
				r.set("fsdp-reshard", "false", key)
			}
			if strings.EqualFold(r.values["fsdp_config.fsdp_offload_params"], "true") {
				r.set("fsdp-offload", "true", key)
			}
		}
	default:
		r.leave(key, value, sharded)
	}
}

// speedRanks is how many ranks DeepSpeed's batches ask for: the whole batch is that of a
// rank, times accumulation, times ranks (deepspeed/runtime/config.py,
// _batch_assertion); 0 where the file leaves one of them open.
func (r *recipeReading) speedRanks() int {
	number := func(key, or string) int {
		n, err := strconv.Atoi(r.first(or, key))
		if err != nil || n < 1 {
			return 0
		}
		return n
	}
	whole, each, times := number("train_batch_size", ""), number("train_micro_batch_size_per_gpu", ""), number("gradient_accumulation_steps", "1")
	if whole == 0 || each == 0 || times == 0 || whole%(each*times) != 0 {
		return 0
	}
	return whole / (each * times)
}

// speedOnRanks reports a mesh that speedParallel takes over.
func (r *recipeReading) speedOnRanks() bool {
	const z = "zero_optimization."
	stage := r.values[z+"stage"]
	return (stage == "2" || stage == "3") && r.speedRanks() > 1 && r.first("1", "gradient_accumulation_steps") == "1" && r.first("none", z+"offload_optimizer.device") == "none" && r.first("none", z+"offload_param.device") == "none"
}

// speedSizes are the sizes of DeepSpeed's stages, and the flags for them.
var speedSizes = []struct{ key, stage, flag string }{
	{"reduce_bucket_size", "", "zero-bucket"}, {"overlap_comm", "2", "zero-overlap"}, {"stage3_param_persistence_threshold", "3", "zero-persistence"},
	{"stage3_max_reuse_distance", "3", "zero-reuse"}, {"stage3_prefetch_bucket_size", "3", "zero-prefetch"}, {"stage3_max_live_parameters", "3", "zero-live"},
}

// speedParallel reads DeepSpeed's stage, on as many ranks as its batches ask for.
func speedParallel(r *recipeReading, key, stage string) {
	if !r.speedOnRanks() {
		why := fmt.Sprintf("this is what one GPU needs; how many there are is not in the file (train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps together tell): give --parallel zero%s=N", stage)
		switch {
		case stage != "2" && stage != "3":
			why = "this is what one GPU needs: of DeepSpeed's stages 2 and 3 are modelled, and zero1=N is PyTorch's"
		case r.speedRanks() == 1:
			why = "the batches are those of one GPU, which keeps everything"
		case r.speedRanks() > 1:
			why = fmt.Sprintf("with accumulation, or something on the host, it is not modelled: this is what one GPU needs; --parallel zero%s=%d --accumulate 1 is without them", stage, r.speedRanks())
		}
		r.leave(key, stage, why)
		for _, s := range speedSizes {
			if value := r.first("", "zero_optimization."+s.key); value != "" && (s.stage == "" || s.stage == stage) {
				r.leave("zero_optimization."+s.key, value, "it is --"+s.flag+" with a mesh")
			}
		}
		return
	}
	r.set("parallel", fmt.Sprintf("zero%s=%d", stage, r.speedRanks()), key)
	for _, s := range speedSizes {
		key := "zero_optimization." + s.key
		value := r.first("", key)
		switch n, err := strconv.ParseFloat(value, 64); {
		case value == "" || s.stage != "" && s.stage != stage:
		case s.key == "overlap_comm":
			if strings.EqualFold(value, "true") {
				r.set(s.flag, "true", key)
			}
		case value == "auto":
			r.leave(key, value, "the Trainer computes it from the model: give --"+s.flag)
		case err != nil || n < 1 || n > 1e15:
			r.leave(key, value, "it is no number of elements: give --"+s.flag)
		default:
			r.set(s.flag, strconv.FormatInt(int64(n), 10), key)
		}
	}
}

// speedMasters says what a single GPU's prediction leaves out.
func speedMasters(r *recipeReading, key, value string) {
	if !r.speedOnRanks() {
		leave(masters)(r, key, value)
	}
}

// megatronParallel reads Megatron-LM's mesh, once: at the first of its sizes.
func megatronParallel(r *recipeReading, key, _ string) {
	if slices.ContainsFunc(r.Settings, func(s RecipeSetting) bool { return s.Flag == "parallel" }) {
		return
	}
	var parts []string
	for _, d := range [][2]string{{"pp", "pipeline_model_parallel_size"}, {"tp", "tensor_model_parallel_size"}} {
		if n := r.sizeOf(d[1]); n > 1 {
			parts = append(parts, fmt.Sprintf("%s=%d", d[0], n))
		}
	}
	text := strings.Join(parts, ",")
	if text == "" {
		return
	}
	if _, err := ParseParallel(text); err != nil {
		r.leave(key, "", err.Error())
		return
	}
	r.set("parallel", text, key)
	r.leave(key, "", engine)
	if r.sizeOf("pipeline_model_parallel_size") > 1 {
		r.set("pp-schedule", "1f1b", "pipeline_model_parallel_size") // its only one
	}
	if on := strings.ToLower(r.values["sequence_parallel"]); r.sizeOf("tensor_model_parallel_size") > 1 && on != "" && on != "false" {
		r.set("tp-sequence", shard.Norms, "sequence_parallel")
	}
}

// accelerateWrap reads what accelerate calls fully_shard on.
func (r *recipeReading) accelerateWrap(key string) {
	switch policy := r.values["fsdp_config.fsdp_auto_wrap_policy"]; {
	case policy == "NO_WRAP":
		r.set("fsdp-wrap", "root", key)
	case policy == "SIZE_BASED_WRAP":
		r.leave("fsdp_config.fsdp_auto_wrap_policy", policy, "give the modules that are large enough as --fsdp-wrap")
	case r.values["fsdp_config.fsdp_transformer_layer_cls_to_wrap"] != "":
		byClasses("fsdp-wrap", classPrefix)(r, "fsdp_config.fsdp_transformer_layer_cls_to_wrap", r.values["fsdp_config.fsdp_transformer_layer_cls_to_wrap"])
	}
}
