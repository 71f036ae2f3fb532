package planner

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/train"
)

// A planned is a plan and its model.
type planned struct {
	*Model
	plan *Plan
}

func plan(t *testing.T, model string, cfg Config) planned {
	t.Helper()
	m := sample(t, model)
	p, err := m.Plan(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return planned{m, p}
}

func (p planned) express(t *testing.T, framework string) (*Expression, error) {
	t.Helper()
	return p.Express(t.Context(), p.plan, p.plan.Question(), FindFramework(framework))
}

// What a framework gets fits, the next faster of its settings does not, and
// what it costs more than the plan is no less than nothing by much.
func TestExpress(t *testing.T) {
	m := plan(t, "gpt2.onnx", Config{Batch: 32, VRAM: 16 << 30})
	for _, framework := range []string{"huggingface", "megatron"} {
		e, err := m.express(t, framework)
		if err != nil {
			t.Fatal(err)
		}
		if e.Price < -0.01 || e.Setting == "" {
			t.Errorf("%s: %+v", framework, e)
		}
		fits := func(segs []train.Segment) bool {
			q := e.Question
			q.Checkpoint, q.Segments = "", segs
			r, err := m.Analyze(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			return *r.Fits
		}
		if !fits(e.Segments) {
			t.Errorf("%s: %s does not fit", framework, e.Setting)
		}
		if len(e.Segments) < 2 || fits(e.Segments[:len(e.Segments)-1]) {
			t.Errorf("%s: %d blocks, and fewer fit, too", framework, len(e.Segments))
		}
	}
}

// transformers checkpoints the layers whose index is a multiple of
// every_n_layers (modeling_utils.py, _set_gradient_checkpointing).
func TestExpressHuggingFace(t *testing.T) {
	e, err := plan(t, "gpt2.onnx", Config{Batch: 32, VRAM: 16 << 30, Precision: "amp-bf16", Optimizer: "adamw-fused", Accumulate: 2, Checkpoint: "all"}).express(t, "huggingface")
	if err != nil {
		t.Fatal(err)
	}
	data, err := e.Config()
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Batch  int64 `json:"per_device_train_batch_size"`
		Steps  int   `json:"gradient_accumulation_steps"`
		BF16   bool  `json:"bf16"`
		Optim  string
		On     bool `json:"gradient_checkpointing"`
		Kwargs struct {
			EveryN int `json:"every_n_layers"`
		} `json:"gradient_checkpointing_kwargs"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	if c.Batch != 32 || c.Steps != 2 || !c.BF16 || c.Optim != "adamw_torch_fused" || c.On != (len(e.Segments) > 0) {
		t.Errorf("%s", data)
	}
	for i := range e.Segments {
		if want := "m.transformer.h." + string(rune('0'+i*c.Kwargs.EveryN)); i*c.Kwargs.EveryN < 10 && e.Segments[i].Modules[0] != want {
			t.Errorf("%d: %s, want %s", i, e.Segments[i].Modules, want)
		}
	}
	// what is written is read, by --config
	r, err := parseRecipe("training_args.json", data)
	if err != nil || !strings.HasPrefix(r.String(), "batch=32 accumulate=2 precision=amp-bf16 optimizer=adamw-fused") {
		t.Errorf("%v, %v", r, err)
	}
}

// Every framework either writes a configuration or says why it cannot.
func TestExpressAll(t *testing.T) {
	m := plan(t, "resnet50.onnx", Config{Batch: 300, VRAM: 16 << 30, Checkpoint: "all"})
	for _, c := range []struct{ framework, want, refused string }{
		{"huggingface", "", "layer1.0 is torchvision.models.resnet.Bottleneck"},
		{"axolotl", "", "it checkpoints layers of transformers"},
		{"megatron", "", "layers of one stack"},
		{"deepspeed", "", "checkpoints nothing by itself"},
		{"lightning", "activation_checkpointing_policy={Bottleneck}", ""},
		{"torchtitan", "mode = \"full\"", ""},
		{"fsdp", "fsdp_transformer_layer_cls_to_wrap: Bottleneck", ""},
	} {
		e, err := m.express(t, c.framework)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v, want %s", c.framework, err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.framework, err)
			continue
		}
		if data, err := e.Config(); err != nil || !strings.Contains(string(data), c.want) {
			t.Errorf("%s: %s, %v, want %s", c.framework, data, err, c.want)
		}
		if len(e.Segments) != 16 {
			t.Errorf("%s: %v", c.framework, e.Segments)
		}
	}
}

// A plan that recomputes nothing needs nothing of any framework but the batch.
func TestExpressNothing(t *testing.T) {
	m := plan(t, "gpt2.onnx", Config{Batch: 4, VRAM: 16 << 30})
	for _, f := range Frameworks[1:] {
		e, err := m.express(t, f.Name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := e.Config()
		if err != nil || f.Name != "fsdp" && !strings.Contains(string(data), "4") || len(e.Segments) > 0 || strings.Contains(e.Verdict(), "costs") {
			t.Errorf("%s: %s, %v, %s", f.Name, data, err, e.Verdict())
		}
	}
}
