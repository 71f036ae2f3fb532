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
			"axolotl", "batch=2 accumulate=4 precision=bf16 optimizer=adamw-8bit checkpoint=all lora=r=16,target=q_proj,v_proj", []string{"sequence_len: "},
		},
		{
			"qlora.yml", "micro_batch_size: 1\nadapter: qlora\nlora_r: 8\nlora_target_linear: true\nload_in_4bit: true\nfp16: true\nbf16: false\noptimizer: muon\n",
			"axolotl", "batch=1 precision=amp-fp16 lora=r=8,target=all-linear", []string{"optimizer muon: ", "adapter qlora: quantised", "load_in_4bit true: "},
		},
		{
			"training_args.json", `{"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "fp16": true, "optim": "adamw_torch_fused", "gradient_checkpointing": true,
				"gradient_checkpointing_kwargs": {"every_n_layers": 2}, "fsdp": "", "fsdp_config": {"xla": false}, "deepspeed": null}`,
			"transformers", "batch=16 accumulate=2 precision=amp-fp16 optimizer=adamw-fused checkpoint=all", []string{"gradient_checkpointing_kwargs.every_n_layers 2: "},
		},
		{
			"ds.json", "{\n\t\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": 8, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.9}},\n\t\"zero_optimization\": {\"stage\": 3}, \"fp16\": {\"enabled\": false}}",
			"deepspeed", "accumulate=8 optimizer=sgd-momentum", []string{"train_micro_batch_size_per_gpu auto: ", "zero_optimization.stage 3: "},
		},
		{
			"whole.json", `{"train_batch_size": 64, "zero_optimization": {"stage": 0}}`,
			"deepspeed", "", []string{"train_batch_size 64: "},
		},
		{
			"debug.toml", "[training]\nlocal_batch_size = 8\nseq_len = 4096\nmixed_precision_param = 'bfloat16'\n[optimizer]\nname = 'AdamW'\nimplementation = 'foreach'\n[activation_checkpoint]\nmode = 'full'\n[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 1\n",
			"torchtitan", "batch=8 precision=amp-bf16 optimizer=adamw checkpoint=all", []string{"training.seq_len: ", "parallelism.data_parallel_shard_degree 2: "},
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
	}
}

// What is no configuration of a framework, or contradicts itself, is an error
// that says so.
func TestRecipeRefused(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"a.yml", "", "empty"},
		{"a.yml", "- micro_batch_size\n", "want a mapping"},
		{"a.yml", "models:\n  - path: a.onnx\n", "no key that tells what framework"},
		{"a.yml", "micro_batch_size: 1\nbf16: true\nfp16: true\n", "fp16: asks for --precision amp-fp16 where bf16 asks for bf16"},
		{"a.json", `{"per_device_train_batch_size": `, "unexpected end"},
		{"a.toml", "training = [[[", "not TOML"},
		{"a.toml", "a = " + strings.Repeat("[", 100_000), "nested more than"},
		{"a.json", strings.Repeat(`{"a":`, 30) + "1" + strings.Repeat("}", 30), "nested more than"},
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
