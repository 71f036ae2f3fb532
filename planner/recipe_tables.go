package planner

import (
	"fmt"
	"slices"
	"strings"
)

// A recipeKind is a framework whose configurations can be read. Keys are paths
// of names, joined by dots; the last name of one may be "*".
type recipeKind struct {
	name  string
	marks []string            // keys that only this framework's files have
	plain func(string) string // notation of keys; nil: unchanged
	keys  []recipeKey
}

// A recipeKey is a key that changes a step's memory. Keys are read in the order
// of the table.
type recipeKey struct {
	key  string
	read func(r *recipeReading, key, value string)
}

// recipeKinds are tried in this order: files of earlier ones may contain keys
// of later ones.
var recipeKinds = []recipeKind{
	{"torchtitan", []string{"training.local_batch_size", "training.mixed_precision_param", "activation_checkpoint.mode", "parallelism.*"}, nil, []recipeKey{
		{"training.local_batch_size", titanBatch},
		{"training.mixed_precision_param", titanPrecision},
		{"training.dtype", titanType},
		{"optimizer.name", titanOptimizer},
		{"optimizer.implementation", aside},
		{"activation_checkpoint.mode", titanCheckpoint},
		{"activation_checkpoint.selective_ac_option", aside},
		{"activation_checkpoint.memory_budget", aside},
		{"training.seq_len", leave("give it to the model's own dimension, as --dim NAME=%s")},
		{"training.enable_cpu_offload", when(leave("everything stays on the GPU"))},
		{"training.global_batch_size", leave("accumulation follows from the number of GPUs: give --accumulate")},
		{"compile.enable", when(leave(compiled))},
		{"training.compile", when(leave(compiled))},
		{"parallelism.*", titanParallel},
	}},
	{"lightning-cli", []string{"trainer.precision", "trainer.strategy", "trainer.strategy.class_path", "trainer.accumulate_grad_batches", "trainer.max_epochs"}, nil, []recipeKey{
		{"data.batch_size", flagOf("batch")},
		{"data.init_args.batch_size", flagOf("batch")},
		{"trainer.accumulate_grad_batches", flagOf("accumulate")},
		{"trainer.precision", lightningPrecision},
		{"optimizer.class_path", torchOptimizer},
		{"trainer.strategy.init_args.activation_checkpointing_policy", byClasses("checkpoint", "lightning-cli:activation_checkpointing_policy=")},
		{"trainer.strategy.init_args.activation_checkpointing", byClasses("checkpoint", "lightning-cli:activation_checkpointing_policy=")},
		{"trainer.strategy", lightningStrategy},
		{"trainer.strategy.class_path", lightningStrategy},
		{"trainer.strategy.init_args.cpu_offload", when(leave("everything stays on the GPU"))},
		{"trainer.strategy.init_args.sharding_strategy", unless("NO_SHARD", leave(sharded))},
	}},
	{"megatron", []string{arguments, "recompute_granularity", "recompute_num_layers", "tensor_model_parallel_size", "pipeline_model_parallel_size"}, megatronKey, []recipeKey{
		{arguments, aside},
		{"micro_batch_size", flagOf("batch")},
		{"bf16", when(both(flagTo("precision", "bf16"), leave(mains)))},
		{"fp16", when(both(flagTo("precision", "fp16"), leave(mains)))},
		{"optimizer", megatronOptimizer},
		{"recompute_granularity", megatronCheckpoint},
		{"recompute_activations", when(leave("attention alone is recomputed: give --checkpoint"))},
		{"recompute_method", aside}, {"recompute_num_layers", aside},
		{"recompute_modules", leave("parts of layers are recomputed whose names the file does not have: give --checkpoint")},
		{"seq_length", leave("give it to the model's own dimension, as --dim NAME=%s")},
		{"global_batch_size", leave("accumulation follows from the number of GPUs: give --accumulate")},
		{"tensor_model_parallel_size", unless("1", megatronParallel)}, {"pipeline_model_parallel_size", unless("1", megatronParallel)},
		{"context_parallel_size", unless("1", leave("its context parallelism is TransformerEngine's: cp=%s of --parallel is PyTorch's"))},
		{"expert_model_parallel_size", unless("1", leave("its dispatch of tokens is of its own kind: ep=%s of --parallel is torchtitan's"))},
		{"sequence_parallel", aside}, {"use_distributed_optimizer", when(leave(sharded))}, {"use_megatron_fsdp", when(leave(sharded))},
		{"optimizer_cpu_offload", when(leave("the optimizer's states stay on the GPU"))},
		{"cpu_offloading", when(leave("activations stay on the GPU"))},
		{"fine_grained_activation_offloading", when(leave("activations stay on the GPU"))},
		{"use_flash_attn", when(leave("give --attention"))},
	}},
	{"axolotl", []string{"micro_batch_size", "base_model", "sequence_len"}, nil, []recipeKey{
		{"micro_batch_size", flagOf("batch")},
		{"gradient_accumulation_steps", flagOf("accumulate")},
		{"bf16", when(flagTo("precision", "bf16"))}, // axolotl loads the model in this type
		{"fp16", when(flagTo("precision", "amp-fp16"))},
		{"optimizer", huggingOptimizer},
		{"gradient_checkpointing", when(axolotlCheckpoint)},
		{"gradient_checkpointing_kwargs.use_reentrant", when(leave("checkpoints are those of use_reentrant: false"))},
		{"selective_checkpointing", aside}, {"selective_checkpointing.save", aside},
		{"selective_checkpointing.offload", when(leave("results stay on the GPU"))},
		{"selective_checkpointing.*", when(leave("of attention all calls are kept or none"))},
		{"adapter", adapter},
		{"lora_r", aside}, {"lora_target_modules", aside}, {"lora_target_linear", aside},
		{"sequence_len", leave("give it to the model's own dimension, as --dim NAME=%s")},
		{"sample_packing", when(leave("batches are packed to sequence_len: the model's batch stays that of micro_batch_size"))},
		{"activation_offloading", when(leave("activations stay on the GPU"))},
		{"layer_offloading", when(leave("layers stay on the GPU"))},
		{"load_in_8bit", when(leave("quantised weights are counted in the element type of --precision"))},
		{"load_in_4bit", when(leave("quantised weights are counted in the element type of --precision"))},
		{"torch_compile", when(leave(compiled))},
		{"deepspeed", when(leave(sharded))}, {"fsdp", when(leave(sharded))}, {"fsdp_config.fsdp_version", leave(sharded)}, {"fsdp_version", leave(sharded)},
	}},
	{"transformers", []string{"per_device_train_batch_size"}, nil, []recipeKey{
		{"per_device_train_batch_size", flagOf("batch")},
		{"gradient_accumulation_steps", flagOf("accumulate")},
		{"bf16", when(flagTo("precision", "amp-bf16"))},
		{"fp16", when(flagTo("precision", "amp-fp16"))},
		{"optim", huggingOptimizer},
		{"activation_checkpointing", when(huggingCheckpoint)},
		{"gradient_checkpointing", when(huggingCheckpoint)},
		{"activation_checkpointing_kwargs.every_n_layers", aside}, {"gradient_checkpointing_kwargs.every_n_layers", aside},
		{"activation_checkpointing_kwargs.use_reentrant", when(leave("checkpoints are those of use_reentrant: false"))},
		{"gradient_checkpointing_kwargs.use_reentrant", when(leave("checkpoints are those of use_reentrant: false"))},
		{"activation_checkpointing_kwargs.offload", when(leave("checkpoints stay on the GPU"))},
		{"gradient_checkpointing_kwargs.offload", when(leave("checkpoints stay on the GPU"))},
		{"auto_find_batch_size", when(leave("the batch is that of per_device_train_batch_size"))},
		{"torch_compile", when(leave(compiled))},
		{"deepspeed", when(leave(sharded))}, {"fsdp", when(leave(sharded))}, {"fsdp_config.activation_checkpointing", when(leave("give --checkpoint"))},
	}},
	{"accelerate", []string{"distributed_type", "compute_environment", "fsdp_config.fsdp_version", "fsdp_config.fsdp_activation_checkpointing", "deepspeed_config.*"}, nil, []recipeKey{
		{"mixed_precision", acceleratePrecision},
		{"gradient_accumulation_steps", flagOf("accumulate")},
		{"deepspeed_config.gradient_accumulation_steps", flagOf("accumulate")},
		{"fsdp_config.fsdp_activation_checkpointing", when(fsdpCheckpoint)},
		{"fsdp_config.fsdp_transformer_layer_cls_to_wrap", aside}, {"fsdp_config.fsdp_auto_wrap_policy", aside},
		{"distributed_type", unless("NO", accelerateParallel)}, {"num_processes", aside},
		{"fsdp_config.fsdp_offload_params", aside},
		{"fsdp_config.fsdp_activation_checkpointing_offload", when(leave("checkpoints stay on the GPU"))},
		{"fsdp_config.fsdp_version", aside}, {"fsdp_config.fsdp_sharding_strategy", aside}, {"fsdp_config.fsdp_reshard_after_forward", aside},
		{"deepspeed_config.zero_stage", aside},
		{"deepspeed_config.offload_optimizer_device", unless("none", leave("the optimizer's states stay on the GPU"))},
		{"deepspeed_config.offload_param_device", unless("none", leave("parameters stay on the GPU"))},
		{"parallelism_config.*", aside},
		{"dynamo_config.dynamo_backend", unless("NO", leave(compiled))},
	}},
	{"deepspeed", []string{"train_micro_batch_size_per_gpu", "train_batch_size", "zero_optimization.*"}, nil, []recipeKey{
		{"train_micro_batch_size_per_gpu", flagOf("batch")},
		{"gradient_accumulation_steps", flagOf("accumulate")},
		{"bf16.enabled", when(both(flagTo("precision", "bf16"), speedMasters))},
		{"bfloat16.enabled", when(both(flagTo("precision", "bf16"), speedMasters))},
		{"fp16.enabled", when(both(flagTo("precision", "fp16"), speedMasters))},
		{"optimizer.type", speedOptimizer},
		{"optimizer.params.momentum", aside},
		{"train_batch_size", speedBatch},
		{"zero_optimization.stage", unless("0", speedParallel)},
		{"zero_optimization.reduce_bucket_size", aside}, {"zero_optimization.overlap_comm", aside}, {"zero_optimization.stage3_param_persistence_threshold", aside},
		{"zero_optimization.stage3_max_reuse_distance", aside}, {"zero_optimization.stage3_prefetch_bucket_size", aside}, {"zero_optimization.stage3_max_live_parameters", aside},
		{"zero_optimization.offload_optimizer.device", unless("none", leave("the optimizer's states stay on the GPU"))},
		{"zero_optimization.offload_param.device", unless("none", leave("parameters stay on the GPU"))},
		{"activation_checkpointing.*", leave("it takes effect where the model calls DeepSpeed's checkpoint: give --checkpoint")},
		{"compile.deepcompile", when(leave(compiled))},
	}},
}

// arguments marks a command line.
const arguments = "--"

// Reasons why settings are not adopted.
const (
	sharded  = "this is the need of one GPU that shares nothing with others"
	compiled = "the step is that of eager PyTorch: a compiled one fuses operators and may keep other tensors"
	mains    = "Megatron-LM keeps float32 copies of the parameters and float32 gradients beside them, which are not counted"
	engine   = "the mesh is run by PyTorch's own engine: Megatron-LM keeps other buffers, and its data-parallel ranks are not in its arguments"
	masters  = "DeepSpeed keeps float32 copies of the parameters and float32 optimizer states beside them, which --parallel zero2=N and zero3=N count alone"
)

// huggingOptimizers pairs the optimizers of transformers' trainer with memplan's
// names, the most usual name first (transformers/training_args.py,
// OptimizerNames).
var huggingOptimizers = [][2]string{
	{"adamw_torch", "adamw"}, {"adamw_torch_fused", "adamw-fused"}, {"adamw_hf", "adamw-loop"},
	{"adamw_bnb_8bit", "adamw-8bit"}, {"adamw_8bit", "adamw-8bit"}, {"adafactor", "adafactor"}, {"sgd", "sgd"},
	{"adagrad", "adagrad"}, {"rmsprop", "rmsprop"}, {"lion_32bit", "lion"}, {"lion", "lion"},
}

func huggingOptimizer(r *recipeReading, key, value string) {
	i := slices.IndexFunc(huggingOptimizers, func(o [2]string) bool { return o[0] == value })
	if i < 0 {
		r.leave(key, value, "memplan has no such optimizer: give the nearest of memplan list optimizers as --optimizer")
		return
	}
	r.set("optimizer", huggingOptimizers[i][1], key)
}

// adapter reads axolotl's low-rank adapters.
func adapter(r *recipeReading, key, value string) {
	if value != "lora" && value != "qlora" {
		leave("adapters other than lora are not counted: give --lora")(r, key, value)
		return
	}
	target := r.values["lora_target_modules"]
	if strings.EqualFold(r.values["lora_target_linear"], "true") {
		target = "all-linear"
	}
	if target == "" {
		r.leave(key, value, "it names no modules (lora_target_modules, lora_target_linear): give --lora")
		return
	}
	rank := r.values["lora_r"]
	if rank == "" {
		r.leave(key, value, "it has no rank (lora_r): give --lora")
		return
	}
	r.set("lora", "r="+rank+",target="+target, key)
	if value == "qlora" {
		r.leave(key, value, "quantised weights are counted in the element type of --precision")
	}
}

func titanPrecision(r *recipeReading, key, value string) {
	if value == "bfloat16" { // FSDP casts parameters as autocast does; on one GPU torchtitan uses autocast
		r.set("precision", "amp-bf16", key)
	}
}

// titanType reads the type of the parameters.
func titanType(r *recipeReading, key, value string) {
	if value == "bfloat16" {
		r.Settings = slices.DeleteFunc(r.Settings, func(s RecipeSetting) bool { return s.Flag == "precision" })
		r.set("precision", "bf16", key)
	}
}

func titanOptimizer(r *recipeReading, key, value string) {
	name := strings.ToLower(value)
	how := map[string]string{"fused": "-fused", "foreach": "", "for-loop": "-loop", "": "-fused"}
	suffix, ok := how[r.values["optimizer.implementation"]]
	if !ok || name != "adam" && name != "adamw" {
		r.leave(key, value, "give the nearest of memplan list optimizers as --optimizer")
		return
	}
	r.set("optimizer", name+suffix, key)
}

func titanCheckpoint(r *recipeReading, key, value string) {
	option := r.values["activation_checkpoint.selective_ac_option"]
	switch {
	case value == "none":
		r.set("checkpoint", "none", key)
	case value == "full", value == "selective" && (option == "" || option == "op"):
		r.set("checkpoint", "torchtitan:"+value, key)
	case value == "selective":
		r.set("checkpoint", "torchtitan:selective_ac_option="+option, key)
	default:
		r.leave(key, value, "the compiler decides what is kept: give --checkpoint")
	}
}

// speedOptimizer reads the optimizer that DeepSpeed makes itself: Adam and
// AdamW are its FusedAdam.
func speedOptimizer(r *recipeReading, key, value string) {
	switch strings.ToLower(value) {
	case "adamw", "adam", "fusedadam":
		r.set("optimizer", "adamw-fused", key)
	case "sgd":
		name := "sgd"
		if m := r.values["optimizer.params.momentum"]; m != "" && m != "0" && m != "0.0" {
			name = "sgd-momentum"
		}
		r.set("optimizer", name, key)
	case "lion":
		r.set("optimizer", "lion", key)
	default:
		r.leave(key, value, "memplan has no such optimizer: give the nearest of memplan list optimizers as --optimizer")
	}
}

// speedBatch reads the total batch of all GPUs and accumulation steps.
func speedBatch(r *recipeReading, key, value string) {
	if r.values["train_micro_batch_size_per_gpu"] == "" {
		r.leave(key, value, "it is the total of all GPUs: give --batch, the batch of one of them")
	}
}

// aside is for keys that the functions of other keys read.
func aside(*recipeReading, string, string) {}

// first returns the value of the first of some keys that the file has, or def.
func (r *recipeReading) first(def string, keys ...string) string {
	for _, k := range keys {
		if v := r.values[k]; v != "" && v != "null" {
			return v
		}
	}
	return def
}

// huggingCheckpoint reads which layers transformers checkpoints.
func huggingCheckpoint(r *recipeReading, key, _ string) {
	n := r.first("1", "activation_checkpointing_kwargs.every_n_layers", "gradient_checkpointing_kwargs.every_n_layers")
	r.set("checkpoint", "huggingface:every_n_layers="+n, key)
}

// axolotlCheckpoint reads what axolotl's layers keep; true means attention.
func axolotlCheckpoint(r *recipeReading, key, _ string) {
	on := strings.EqualFold(r.values["selective_checkpointing"], "true")
	list, named := r.values["selective_checkpointing.save"]
	for k := range r.values {
		on = on || strings.HasPrefix(k, "selective_checkpointing.")
	}
	switch {
	case !on:
		r.set("checkpoint", "axolotl:gradient_checkpointing", key)
		return
	case !named:
		list = axolotlSaves[0].name
	}
	given := strings.Split(list, ",")
	var names []string
	for _, s := range axolotlSaves {
		if slices.Contains(given, s.name) {
			names = append(names, s.name)
		}
	}
	if len(names) != len(given) {
		r.leave("selective_checkpointing.save", list, "the others are recomputed: memplan knows attention and the products and convolutions of aten")
	}
	what := "gradient_checkpointing"
	if len(names) > 0 {
		what = "selective_checkpointing.save=" + strings.Join(names, ",")
	}
	r.set("checkpoint", "axolotl:"+what, key)
}

// byClasses reads a list of classes, with or without their packages.
func byClasses(flag, prefix string) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		var names []string
		for _, c := range strings.Split(value, ",") {
			if c = strings.TrimSpace(c); c != "" {
				names = append(names, c[strings.LastIndexByte(c, '.')+1:])
			}
		}
		slices.Sort(names)
		if len(names) > 0 {
			r.set(flag, prefix+strings.Join(slices.Compact(names), ","), key)
		}
	}
}

// fsdpCheckpoint reads the classes that accelerate checkpoints.
func fsdpCheckpoint(r *recipeReading, key, value string) {
	const classes = "fsdp_config.fsdp_transformer_layer_cls_to_wrap"
	if r.values[classes] == "" {
		r.leave(key, value, "it names no classes ("+classes+"): give --checkpoint")
		return
	}
	byClasses("checkpoint", "fsdp:fsdp_transformer_layer_cls_to_wrap=")(r, key, r.values[classes])
}

func acceleratePrecision(r *recipeReading, key, value string) {
	switch value {
	case "bf16", "fp16":
		r.set("precision", "amp-"+value, key)
	case "fp8":
		r.leave(key, value, "memplan has no such precision")
	}
}

func lightningPrecision(r *recipeReading, key, value string) {
	for name, theirs := range lightningPrecisions {
		if value == theirs {
			r.set("precision", name, key)
			return
		}
	}
	switch value { // in the notation of older versions
	case "32":
		r.set("precision", "fp32", key)
	case "16", "bf16":
		r.set("precision", map[string]string{"16": "amp-fp16", "bf16": "amp-bf16"}[value], key)
	case "", "null":
	default:
		r.leave(key, value, "memplan has no such precision")
	}
}

func lightningStrategy(r *recipeReading, key, value string) {
	if low := strings.ToLower(value); strings.Contains(low, "fsdp") || strings.Contains(low, "deepspeed") || strings.Contains(low, "modelparallel") {
		r.leave(key, value, sharded)
	}
}

// torchOptimizer reads the class of an optimizer of PyTorch.
func torchOptimizer(r *recipeReading, key, value string) {
	name, ok := strings.CutPrefix(value, "torch.optim.")
	name = strings.ToLower(name)
	if m := r.values["optimizer.init_args.momentum"]; name == "sgd" && m != "" && m != "0" && m != "0.0" {
		name = "sgd-momentum"
	}
	if !ok || !slices.Contains([]string{"adam", "adamw", "sgd", "sgd-momentum", "adagrad", "rmsprop", "adafactor"}, name) {
		r.leave(key, value, "give the nearest of memplan list optimizers as --optimizer")
		return
	}
	r.set("optimizer", name, key)
}

// megatronKey is a key of Megatron-LM's command line, its YAML file, or the
// configurations of its tests.
func megatronKey(key string) string {
	for _, prefix := range []string{"MODEL_ARGS.", "language_model.", "model_parallel."} {
		key = strings.TrimPrefix(key, prefix)
	}
	if key == arguments {
		return key
	}
	return strings.ReplaceAll(strings.TrimPrefix(key, "--"), "-", "_")
}

func megatronOptimizer(r *recipeReading, key, value string) {
	switch value {
	case "adam":
		r.set("optimizer", "adamw-fused", key)
	case "sgd":
		r.set("optimizer", "sgd-momentum", key)
	default:
		r.leave(key, value, "give the nearest of memplan list optimizers as --optimizer")
	}
}

// megatronCheckpoint reads what Megatron-LM recomputes.
func megatronCheckpoint(r *recipeReading, key, value string) {
	method, n := r.values["recompute_method"], r.values["recompute_num_layers"]
	switch {
	case value == "full" && method != "" && n != "":
		r.set("checkpoint", fmt.Sprintf("megatron:recompute-method=%s,recompute-num-layers=%s", method, n), key)
	default:
		when(leave("parts of layers are recomputed whose names the file does not have: give --checkpoint"))(r, key, value)
	}
}
