package planner

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Configurations of frameworks, what is taken from them, and what is not.
func TestRecipe(t *testing.T) {
	for _, c := range []struct {
		file, text      string
		framework, want string
		left            []string // how each begins
		unknown         []string
	}{
		{
			"config.yml", `base_model: NousResearch/Llama-3.2-1B
adapter: lora
lora_r: 16
lora_target_modules: &mods
  - q_proj
  - v_proj
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
learning_rate: 0.0002
`,
			"axolotl", "batch=2 accumulate=4 precision=bf16 optimizer=adamw-8bit checkpoint=axolotl:gradient_checkpointing lora=r=16,target=q_proj,v_proj", []string{"sequence_len: "}, []string{},
		},
		{
			"qlora.yml", "micro_batch_size: 1\nadapter: qlora\nlora_r: 8\nlora_target_linear: true\nload_in_4bit: true\nfp16: true\nbf16: false\noptimizer: muon\n",
			"axolotl", "batch=1 precision=amp-fp16 lora=r=8,target=all-linear", []string{"optimizer muon: ", "adapter qlora: quantised", "load_in_4bit true: "}, nil,
		},
		{
			"training_args.json", `{"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "fp16": true, "optim": "adamw_torch_fused", "gradient_checkpointing": true,
				"gradient_checkpointing_kwargs": {"every_n_layers": 2}, "fsdp": "", "fsdp_config": {"xla": false}, "deepspeed": null}`,
			"transformers", "batch=16 accumulate=2 precision=amp-fp16 optimizer=adamw-fused checkpoint=huggingface:every_n_layers=2", nil, nil,
		},
		{
			"ds.json", "{\n\t\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": 8, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.9}},\n\t\"zero_optimization\": {\"stage\": 3}, \"fp16\": {\"enabled\": false}}",
			"deepspeed", "accumulate=8 optimizer=sgd-momentum", []string{"train_micro_batch_size_per_gpu auto: ", "zero_optimization.stage 3: "}, []string{},
		},
		{
			"ranks.json", `{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8, "overlap_comm": true, "stage3_max_live_parameters": 5}}`,
			"deepspeed", "batch=8 accumulate=1 precision=bf16 parallel=zero2=4 zero-bucket=200000000 zero-overlap=true", nil, nil,
		},
		{
			"host.json", `{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}`,
			"deepspeed", "batch=2", []string{"zero_optimization.stage 3: with accumulation, or something on the host", "zero_optimization.offload_optimizer.device cpu: "}, nil,
		},
		{
			"whole.json", `{"train_batch_size": 64, "zero_optimization": {"stage": 0}}`,
			"deepspeed", "", []string{"train_batch_size 64: "}, nil,
		},
		{
			"trainer.yml", "trainer:\n  precision: bf16-mixed\n  accumulate_grad_batches: 2\n  max_epochs: 3\n  strategy:\n    class_path: lightning.pytorch.strategies.FSDPStrategy\n    init_args:\n      activation_checkpointing_policy:\n      - a.b.Late\n      - a.b.Early\n      cpu_offload: true\ndata:\n  class_path: my.Data\n  init_args: {batch_size: 8}\noptimizer:\n  class_path: torch.optim.SGD\n  init_args: {lr: 0.1, momentum: 0.9}\n",
			"lightning-cli", "batch=8 accumulate=2 precision=amp-bf16 optimizer=sgd-momentum checkpoint=lightning-cli:activation_checkpointing_policy=Early,Late",
			[]string{"trainer.strategy.class_path lightning", "trainer.strategy.init_args.cpu_offload true: "}, nil,
		},
		{
			"accelerate.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_activation_checkpointing: true\n  fsdp_transformer_layer_cls_to_wrap: B,A\n  fsdp_offload_params: false\n  fsdp_cpu_ram_efficient_loading: true\n",
			"accelerate", "precision=amp-bf16 checkpoint=fsdp:fsdp_transformer_layer_cls_to_wrap=A,B", []string{"distributed_type FSDP: "}, nil,
		},
		{
			"megatron.yaml", "language_model:\n  num_layers: 24\n  recompute_granularity: full\n  recompute_method: uniform\n  recompute_num_layers: 2\nmodel_parallel:\n  tensor_model_parallel_size: 4\n  bf16: true\nmicro_batch_size: 2\noptimizer: adam\n",
			"megatron", "batch=2 precision=bf16 optimizer=adamw-fused checkpoint=megatron:recompute-method=uniform,recompute-num-layers=2 parallel=tp=4", []string{"bf16 true: ", "tensor_model_parallel_size: the mesh is run"}, []string{"num_layers 24"},
		},
		{
			"args.txt", "--micro-batch-size 2 --bf16 \\\n  --recompute-granularity=selective\n--fp8-format hybrid --lr 1e-4\n",
			"megatron", "batch=2 precision=bf16", []string{"bf16 true: ", "recompute_granularity selective: "}, []string{"fp8_format hybrid"},
		},
		{
			"titan.txt", "--training.local_batch_size 4 --training.seq_len=2048 activation-checkpoint:selective --activation-checkpoint.preserve-rng-state\n",
			"torchtitan", "batch=4 checkpoint=torchtitan:selective", []string{"training.seq_len: "}, nil,
		},
		{
			"sac.yml", "base_model: x\nmicro_batch_size: 1\ngradient_checkpointing: true\nselective_checkpointing:\n  save: [\"aten::mm\", attention, flash]\nflash_attention: true\nema: 0\n",
			"axolotl", "batch=1 checkpoint=axolotl:selective_checkpointing.save=attention,aten::mm", []string{"selective_checkpointing.save aten::mm,attention,flash: "}, []string{"flash_attention true"},
		},
		{
			"debug.toml", "[training]\nlocal_batch_size = 8\nseq_len = 4096\nmixed_precision_param = 'bfloat16'\n[optimizer]\nname = 'AdamW'\nimplementation = 'foreach'\n[activation_checkpoint]\nmode = 'full'\n[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 1\n",
			"torchtitan", "batch=8 fsdp-precision=bf16 optimizer=adamw checkpoint=torchtitan:full parallel=fsdp=2", []string{"training.seq_len: "}, nil,
		},
		{
			"moe.toml", "[training]\nlocal_batch_size = 4\n[parallelism]\ndata_parallel_shard_degree = 8\nexpert_parallel_degree = 4\n",
			"torchtitan", "batch=4 parallel=fsdp=8,ep=4", nil, nil,
		},
	} {
		r, err := parseRecipe(c.file, []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		if r.Framework != c.framework || r.String() != c.want {
			t.Errorf("%s: %s: %s\nwant %s: %s", c.file, r.Framework, r, c.framework, c.want)
		}
		if !slices.EqualFunc(r.Left, c.left, strings.HasPrefix) {
			t.Errorf("%s: not taken over: %q\nwant %q", c.file, r.Left, c.left)
		}
		if c.unknown != nil && !slices.Equal(r.Unknown, c.unknown) {
			t.Errorf("%s: not known: %q\nwant %q", c.file, r.Unknown, c.unknown)
		}
	}
}

// What is no configuration of a framework, or contradicts itself, is an error
// that says so.
func TestRecipeRefused(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"a.yml", "", "empty"},
		{"a.yml", "- micro_batch_size\n", "want a mapping"},
		{"a.yml", "models:\n  - path: a.onnx\n", "no key that identifies its framework"},
		{"a.yml", "micro_batch_size: 1\nbf16: true\nfp16: true\n", "fp16: asks for --precision amp-fp16 where bf16 asks for bf16"},
		{"a.json", `{"per_device_train_batch_size": `, "unexpected end"},
		{"a.toml", "training = [[[", "not TOML"},
		{"a.toml", "a = " + strings.Repeat("[", 100_000), "nested more than"},
		{"a.json", strings.Repeat(`{"a":`, 30) + "1" + strings.Repeat("}", 30), "nested more than"},
		{"a.txt", "--training.local_batch_size 1 activation-checkpoint:full stray", "neither an option"},
		{"a.yml", "micro_batch_size: &a {b: *a}\n", "nested more than"},
	} {
		if r, err := parseRecipe(c.file, []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %.40q: %v, %v; want %s", c.file, c.text, r, err, c.want)
		}
	}
	if _, err := ReadRecipe(filepath.Join(t.TempDir(), "none.yml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// A configuration that is read sets each flag once, and names the framework.
func FuzzRecipe(f *testing.F) {
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		r, err := parseRecipe([]string{"a.yml", "a.json", "a.toml"}[kind%3], data)
		if refused(t, err) {
			return
		}
		flags := map[string]bool{}
		for _, s := range r.Settings {
			if flags[s.Flag] || s.Value == "" || s.Key == "" {
				t.Errorf("%+v", r.Settings)
			}
			flags[s.Flag] = true
		}
		if !slices.Contains(Recipes(), r.Framework) || r.Others < 0 {
			t.Errorf("%+v", r)
		}
	})
}
