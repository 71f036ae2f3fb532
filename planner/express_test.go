package planner

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
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

// What a framework gets fits, and no other of its settings that fits takes less
// time; what it costs more than the plan is no less than nothing by much.
func TestExpress(t *testing.T) {
	testdata.Sequential(t)
	m := plan(t, "gpt2.onnx", Config{Batch: 32, VRAM: 16 << 30})
	for _, framework := range []string{"huggingface", "axolotl", "megatron", "lightning"} {
		e, err := m.express(t, framework)
		if err != nil {
			t.Fatal(err)
		}
		if e.Price < -0.01 || e.Setting == "" {
			t.Errorf("%s: %+v", framework, e)
		}
		ways, err := m.waysFor(m.plan.Question(), FindFramework(framework))
		if err != nil {
			t.Fatal(err)
		}
		least := math.Inf(1)
		for _, w := range ways {
			q := m.plan.Question()
			q.Segments = nil
			q.Checkpoint = framework + ":" + w.setting
			r, err := m.Analyze(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if *r.Fits {
				least = min(least, r.Time.StepMs)
			}
			if w.setting == e.Setting && (!*r.Fits || math.Abs(r.Time.StepMs/m.plan.Time.StepMs-1-e.Price) > 1e-9 || r.Peak.AllocatedBytes-m.plan.Peak.AllocatedBytes != e.Higher) {
				t.Errorf("%s: %s: fits %t, %.3f ms, %d bytes; the plan %.3f ms, %d bytes; price %v, higher %d", framework, w.setting, *r.Fits, r.Time.StepMs, r.Peak.AllocatedBytes, m.plan.Time.StepMs, m.plan.Peak.AllocatedBytes, e.Price, e.Higher)
			}
		}
		if got := m.plan.Time.StepMs * (1 + e.Price); math.Abs(got/least-1) > 1e-9 {
			t.Errorf("%s: %s takes %.3f ms, the fastest that fits %.3f ms", framework, e.Setting, got, least)
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
	if err != nil || r.String() != "batch=32 accumulate=2 precision=amp-bf16 optimizer=adamw-fused checkpoint=huggingface:"+e.Setting {
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
		{"lightning", "from torchvision.models.resnet import Bottleneck\n\nstrategy = FSDPStrategy(activation_checkpointing_policy={Bottleneck})", ""},
		{"lightning-cli", "      - torchvision.models.resnet.Bottleneck\n", ""},
		{"torchtitan", "", "it checkpoints the modules in the model's layers, and those of this model lie in layer1"},
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
	for _, f := range Frameworks {
		if f.Any() {
			continue
		}
		e, err := m.express(t, f.Name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := e.Config()
		if err != nil || f.write != nil && f.Name != "fsdp" && f.Name != "accelerate" && !strings.Contains(string(data), "4") || len(e.Segments) > 0 || strings.Contains(e.Verdict(), "costs") {
			t.Errorf("%s: %s, %v, %s", f.Name, data, err, e.Verdict())
		}
	}
}

// Where a file says how a framework trains, it is read as it was written: the
// step that the framework's setting was chosen for, to the byte.
func TestExpressReadBack(t *testing.T) {
	testdata.Sequential(t)
	llama := filepath.Join(t.TempDir(), "llama.onnx")
	if err := os.WriteFile(llama, testdata.Unpacked(t, "testdata/llama.onnx.xz"), 0o600); err != nil {
		t.Fatal(err)
	}
	small, err := Open(llama)
	if err != nil {
		t.Fatal(err)
	}
	gpt2 := sample(t, "gpt2.onnx")
	for _, c := range []struct {
		model *Model
		cfg   Config
	}{
		{gpt2, Config{Batch: 40, VRAM: 16 << 30, Checkpoint: "all"}},
		{small, Config{Batch: 4096, VRAM: 9 << 29}},
		{small, Config{Batch: 4096, VRAM: 7 << 29, Precision: "bf16", Optimizer: "adamw-fused", Checkpoint: "all"}},
		{small, Config{Batch: 4096, VRAM: 7 << 29, Precision: "amp-bf16", Optimizer: "sgd", Checkpoint: "all"}},
	} {
		p, err := c.model.Plan(t.Context(), c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		for _, f := range Frameworks {
			if f.Read == "" {
				continue
			}
			e, err := c.model.Express(t.Context(), p, p.Question(), &f)
			if err != nil {
				continue // TestExpressAll has these
			}
			data, err := e.Config()
			if err != nil {
				continue
			}
			r, err := parseRecipe("x."+map[string]string{"JSON": "json", "YAML": "yml", "arguments": "txt"}[f.Form], data)
			if err != nil || r.Framework != f.Read {
				t.Errorf("%s: %v, %v\n%s", f.Name, r, err, data)
				continue
			}
			q := p.Question() // what the file does not say is given
			q.Segments, q.Checkpoint = nil, "none"
			for _, s := range r.Settings {
				at := slices.IndexFunc(Settings, func(row Setting) bool { return row.Flag == s.Flag })
				err := Settings[at].Read(&q, s.Value)
				if err != nil {
					t.Fatal(err)
				}
			}
			got, err := c.model.Analyze(t.Context(), q)
			if err != nil {
				t.Errorf("%s: %v", f.Name, err)
				continue
			}
			if q.Precision != p.Config.Precision || q.Batch != p.Config.Batch || q.Optimizer != p.Config.Optimizer {
				t.Errorf("%s: read as %s\n%s", f.Name, r, data)
			}
			if got.Peak.AllocatedBytes != p.Peak.AllocatedBytes+e.Higher || !*got.Fits {
				t.Errorf("%s: %s peaks at %d when read, %d when written", f.Name, r, got.Peak.AllocatedBytes, p.Peak.AllocatedBytes+e.Higher)
			}
			if e.Setting != "" {
				read++
			}
		}
		if read < 3 {
			t.Errorf("%s: %d settings read back", p.Config.Precision, read)
		}
	}
}

// Names that come from a file end up in configurations only where they are
// names of Python's.
func TestExpressNames(t *testing.T) {
	for _, c := range []struct {
		name string
		ok   bool
	}{
		{"m.transformer.h.0", true}, {"transformers.models.gpt2.modeling_gpt2.GPT2Block", true}, {"__main__.Block", true},
		{"a\"});import os", false}, {"h.0\n  evil: true", false}, {"h..0", false}, {"", false}, {"0", false}, {"a b", false}, {"a'''", false},
	} {
		if nameable.MatchString(c.name) != c.ok {
			t.Errorf("%q: %t", c.name, !c.ok)
		}
	}
	p := &Plan{Selection: []train.Segment{{Modules: []string{"a'''+__import__('os')+r'''\\", "\u202e\U000e0001"}}}}
	p.Config.Parallel = "fsdp=2"
	for _, f := range []func(*Plan) ([]byte, error){writePython, writeFSDP2, writeJAX} {
		data, err := f(p)
		if err != nil {
			t.Fatal(err)
		}
		_, doc, _ := strings.Cut(string(data), "json.loads(\n    r'''")
		doc, _, ok := strings.Cut(doc, "'''")
		var c struct{ Checkpoint, Selection []train.Segment }
		if err := json.Unmarshal([]byte(doc), &c); err != nil || !ok || !slices.Equal(append(c.Checkpoint, c.Selection...)[0].Modules, p.Selection[0].Modules) || strings.Contains(string(data), "\u202e") {
			t.Errorf("%v, %q", err, doc)
		}
	}
}

// A script of FSDP2 is of a plan with a mesh that it can make.
func TestExpressFSDP2(t *testing.T) {
	for mesh, want := range map[string]string{"": "the plan is of one card", "fsdp=1,cp=2": "context_parallel is put around a training step", "pp=2": "cannot express the plan's mesh pp=2", "zero3=2": "cannot express the plan's mesh zero3=2", "hsdp=2x2": "", "ddp=2": "", "fsdp=2,tp=2": ""} {
		p := &Plan{}
		p.Config.Parallel = mesh
		data, err := writeFSDP2(p)
		if want == "" && (err != nil || !strings.Contains(string(data), `"parallel": "`+mesh+`"`) || strings.Contains(string(data), "from ._error import MemplanError\nif")) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", mesh, err)
		}
	}
}

// The elements of a model that is an nn.Sequential itself are repeated, like those of a
// list in it; attributes of the model that end in digits are not.
func TestRepeated(t *testing.T) {
	var all []block
	for _, name := range []string{"0", "1", "1.up", "layer1", "layer2", "body.stage1", "body.stage2", "h.0"} {
		all = append(all, block{list: name[:max(strings.LastIndexByte(name, '.'), 0)], name: name, class: "Block"})
	}
	got := texts(repeated(all), func(b *block) string { return b.name })
	if want := []string{"0", "1", "body.stage1", "body.stage2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What a fused kernel saves has no name in JAX, nor has a schedule of single
// operations.
func TestExpressJAX(t *testing.T) {
	for op, want := range map[string]string{
		"addmm": "", "native_layer_norm": "", "_scaled_dot_product_flash_attention": "h.0 keeps results of aten._scaled_dot_product_flash_attention",
	} {
		_, err := writeJAX(&Plan{Selection: []train.Segment{{Modules: []string{"h.0"}, Save: []train.Saved{{Op: "aten." + op, Calls: []int{0}, Of: 1}}}}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", op, err)
		}
	}
	if _, err := writeJAX(&Plan{Schedule: []remat.Step{{}}}); err == nil || !strings.Contains(err.Error(), "schedule of single operations") {
		t.Errorf("a schedule: %v", err)
	}
}
