package planner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/train"
)

// A Framework is a target of config --to: what it can checkpoint, and how its
// configuration says so.
type Framework struct {
	Name, Doc string

	ways  func([]block) ([]way, error) // nil: every plan as it is
	write func(*Expression) ([]byte, error)
}

// A way is one choice of what to checkpoint, among those that a framework has.
type way struct {
	setting string // as its users write it
	value   int    // of every_n_layers, recompute-num-layers
	blocks  []block
}

// A block is a module that a model repeats: an element of a list of modules of
// one class, no class of PyTorch's own, in no other such list.
type block struct{ list, name, class string }

// An Expression is the fastest of what a framework can checkpoint with which a
// plan's step still fits.
type Expression struct {
	Framework string
	Setting   string // such as "every_n_layers=3"; "" where nothing is checkpointed
	Value     int
	Classes   []string // of the blocks that are checkpointed, without their packages, each once
	Segments  []train.Segment
	Question  Config
	Price     float64 // extra time over the plan's step
}

// Frameworks lists the targets of config --to; the first takes any plan.
var Frameworks = []Framework{
	{Name: "torch", Doc: "any PyTorch script, by memplan's own function"},
	{Name: "huggingface", Doc: "transformers' TrainingArguments, as JSON", ways: everyN, write: writeHuggingFace},
	{Name: "axolotl", Doc: "keys of an axolotl configuration", ways: allOfTransformers, write: writeAxolotl},
	{Name: "torchtitan", Doc: "tables of a torchtitan configuration", ways: allOf("full"), write: writeTitan},
	{Name: "lightning", Doc: "a strategy of Lightning, as Python", ways: allOf("activation_checkpointing_policy"), write: writeLightning},
	{Name: "fsdp", Doc: "accelerate's fsdp_config, as YAML", ways: allOf("fsdp_activation_checkpointing"), write: writeFSDP},
	{Name: "megatron", Doc: "arguments of Megatron-LM", ways: firstN, write: writeMegatron},
	{Name: "deepspeed", Doc: "keys of a DeepSpeed configuration", ways: none, write: writeDeepSpeed},
}

// FrameworkNames lists the names of Frameworks.
func FrameworkNames() []string {
	names := make([]string, len(Frameworks))
	for i := range Frameworks {
		names[i] = Frameworks[i].Name
	}
	return names
}

// FindFramework returns the framework of a name of FrameworkNames.
func FindFramework(name string) *Framework {
	return &Frameworks[slices.Index(FrameworkNames(), name)]
}

// Any reports whether the framework takes every plan as it is.
func (f *Framework) Any() bool { return f.ways == nil }

// everyN are transformers' gradient_checkpointing_kwargs.every_n_layers: blocks
// 0, n, 2n, .. of all, counted together.
func everyN(blocks []block) ([]way, error) {
	if err := ofTransformers(blocks); err != nil {
		return nil, err
	}
	var out []way
	for n := len(blocks); n >= 1; n-- {
		w := way{setting: fmt.Sprintf("every_n_layers=%d", n), value: n}
		for i := 0; i < len(blocks); i += n {
			w.blocks = append(w.blocks, blocks[i])
		}
		if k := len(out); k == 0 || len(out[k-1].blocks) < len(w.blocks) {
			out = append(out, w)
		}
	}
	return out, nil
}

func ofTransformers(blocks []block) error {
	for _, b := range blocks {
		if !strings.HasPrefix(b.class, "transformers.") {
			return fmt.Errorf("it checkpoints layers of transformers, and %s is %s", b.name, b.class)
		}
	}
	return nil
}

// allOf is a framework that checkpoints every block or none.
func allOf(setting string) func([]block) ([]way, error) {
	return func(blocks []block) ([]way, error) { return []way{{setting: setting, blocks: blocks}}, nil }
}

// allOfTransformers are all blocks, which must be layers of transformers.
func allOfTransformers(blocks []block) ([]way, error) {
	return []way{{setting: "gradient_checkpointing", blocks: blocks}}, ofTransformers(blocks)
}

// firstN is Megatron's recompute-method block: the first layers of one stack.
func firstN(blocks []block) ([]way, error) {
	var out []way
	for n := range blocks {
		if blocks[n].list != blocks[0].list {
			return nil, fmt.Errorf("it recomputes layers of one stack, and the model has %s and %s", blocks[0].list, blocks[n].list)
		}
		out = append(out, way{setting: fmt.Sprintf("recompute-num-layers=%d", n+1), value: n + 1, blocks: blocks[:n+1]})
	}
	return out, nil
}

// none is a framework whose configuration checkpoints nothing by itself.
func none([]block) ([]way, error) {
	return nil, errors.New("its configuration checkpoints nothing by itself: apply memplan config --to torch in the script, beside it")
}

// blocks lists the modules that the model repeats, in the order in which they run.
func (m *Model) blocks() []block {
	count := map[[2]string]int{}
	var all []block
	for _, x := range m.lifted.Modules() {
		at := strings.LastIndexByte(x.Name, '.')
		if _, err := strconv.Atoi(x.Name[at+1:]); err != nil || at < 0 || strings.HasPrefix(x.Class, "torch.nn.") {
			continue
		}
		b := block{x.Name[:at], x.Name, x.Class}
		all = append(all, b)
		count[[2]string{b.list, b.class}]++
	}
	var out []block
	for _, b := range all {
		within := slices.ContainsFunc(out, func(o block) bool { return strings.HasPrefix(b.name, o.name+".") })
		if !within && count[[2]string{b.list, b.class}] > 1 {
			out = append(out, b)
		}
	}
	return out
}

// Express finds the fastest of what a framework can checkpoint with which the
// plan's step still fits. An error says why there is none.
func (m *Model) Express(ctx context.Context, p *Plan, q Config, f *Framework) (*Expression, error) {
	e := &Expression{Framework: f.Name, Question: q}
	if q.Mode == "infer" {
		return nil, errors.New("the plan is of an inference: there is nothing to checkpoint")
	}
	if len(p.Selection) == 0 && len(p.Schedule) == 0 {
		return e, nil
	}
	if p.Fits == nil {
		return nil, errors.New("the plan has no budget that could tell which choice of " + f.Name + " is enough: make it with --vram or --gpu")
	}
	plan, err := m.Analyze(ctx, q)
	if err != nil {
		return nil, err
	}
	blocks := m.blocks()
	if len(blocks) == 0 {
		return nil, fmt.Errorf("%s checkpoints the blocks that a model repeats, and the file shows none", f.Name)
	}
	ways, err := f.ways(blocks)
	if err != nil {
		return nil, fmt.Errorf("%s cannot express the plan: %w", f.Name, err)
	}
	q.Checkpoint, q.Schedule = "", nil
	for _, w := range ways {
		q.Segments = nil
		for _, b := range w.blocks {
			q.Segments = append(q.Segments, train.Segment{Modules: []string{b.name}})
		}
		r, err := m.Analyze(ctx, q)
		if err != nil {
			return nil, err
		}
		if r.Fits == nil || !*r.Fits {
			continue
		}
		e.Setting, e.Value, e.Segments, e.Classes = w.setting, w.value, q.Segments, classes(w.blocks)
		e.Price = r.Time.StepMs/plan.Time.StepMs - 1
		return e, nil
	}
	return nil, fmt.Errorf("%s cannot express the plan: with %s the step does not fit at batch %d: apply memplan config --to torch, or take a smaller batch", f.Name, ways[len(ways)-1].setting, q.Batch)
}

// classes lists the classes of blocks without their packages, each once.
func classes(blocks []block) []string {
	var out []string
	for _, b := range blocks {
		if name := b.class[strings.LastIndexByte(b.class, '.')+1:]; !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Verdict says in a line what the framework does, and what that costs.
func (e *Expression) Verdict() string {
	if e.Setting == "" {
		return e.Framework + ": nothing is checkpointed"
	}
	n := fmt.Sprintf("%d blocks", len(e.Segments))
	if len(e.Segments) == 1 {
		n = "1 block"
	}
	if math.Abs(e.Price) < 5e-5 {
		return fmt.Sprintf("%s: %s checkpoints %s, which costs no more time than the plan", e.Framework, e.Setting, n)
	}
	word := "more"
	if e.Price < 0 {
		word = "less"
	}
	return fmt.Sprintf("%s: %s checkpoints %s, which costs %.1f%% %s time than the plan", e.Framework, e.Setting, n, 100*math.Abs(e.Price), word)
}

// Config is the framework's configuration.
func (e *Expression) Config() ([]byte, error) { return FindFramework(e.Framework).write(e) }

// precision is the framework's word for the plan's, by names; an error where it
// has none.
func (e *Expression) precision(names map[string]string) (string, error) {
	key, ok := names[e.Question.Precision]
	if !ok {
		return "", fmt.Errorf("%s's configuration has no setting for --precision %s", e.Framework, e.Question.Precision)
	}
	return key, nil
}

// optimizer is the name that transformers' trainer has for the plan's.
func (e *Expression) optimizer() (string, error) {
	i := slices.IndexFunc(huggingOptimizers, func(o [2]string) bool { return o[1] == e.Question.Optimizer })
	if i < 0 {
		return "", fmt.Errorf("%s has no name for --optimizer %s", e.Framework, e.Question.Optimizer)
	}
	return huggingOptimizers[i][0], nil
}

func writeHuggingFace(e *Expression) ([]byte, error) {
	key, err := e.precision(map[string]string{"fp32": "", "amp-bf16": "bf16", "amp-fp16": "fp16"})
	if err != nil {
		return nil, err
	}
	optim, err := e.optimizer()
	if err != nil {
		return nil, err
	}
	out := map[string]any{"per_device_train_batch_size": e.Question.Batch, "gradient_accumulation_steps": max(e.Question.Accumulate, 1), "optim": optim, "gradient_checkpointing": e.Setting != ""}
	if key != "" {
		out[key] = true
	}
	if e.Setting != "" {
		out["gradient_checkpointing_kwargs"] = map[string]any{"use_reentrant": false, "every_n_layers": e.Value}
	}
	data, err := json.MarshalIndent(out, "", "  ")
	return append(data, '\n'), err
}

func writeAxolotl(e *Expression) ([]byte, error) {
	key, err := e.precision(map[string]string{"fp32": "", "bf16": "bf16", "amp-fp16": "fp16"})
	if err != nil {
		return nil, err
	}
	optim, err := e.optimizer()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "micro_batch_size: %d\ngradient_accumulation_steps: %d\noptimizer: %s\n", e.Question.Batch, max(e.Question.Accumulate, 1), optim)
	if key != "" {
		fmt.Fprintf(&b, "%s: true\n", key)
	}
	fmt.Fprintf(&b, "gradient_checkpointing: %t\n", e.Setting != "")
	if e.Setting != "" {
		b.WriteString("gradient_checkpointing_kwargs:\n  use_reentrant: false\n")
	}
	return b.Bytes(), nil
}

func writeTitan(e *Expression) ([]byte, error) {
	param, err := e.precision(map[string]string{"fp32": "float32", "amp-bf16": "bfloat16", "bf16": "bfloat16"})
	if err != nil {
		return nil, err
	}
	mode := "none"
	if e.Setting != "" {
		mode = e.Setting
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "[training]\nlocal_batch_size = %d\nmixed_precision_param = %q\n", e.Question.Batch, param)
	if e.Question.Precision == "bf16" {
		b.WriteString("dtype = \"bfloat16\"\n")
	}
	fmt.Fprintf(&b, "\n[activation_checkpoint]\nmode = %q\n", mode)
	return b.Bytes(), nil
}

func writeLightning(e *Expression) ([]byte, error) {
	precision, err := e.precision(map[string]string{"fp32": "32-true", "amp-bf16": "bf16-mixed", "amp-fp16": "16-mixed", "bf16": "bf16-true", "fp16": "16-true"})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\n\n")
	strategy := ""
	if e.Setting != "" {
		fmt.Fprintf(&b, "# %s: the classes of your model's blocks\n", strings.Join(e.Classes, ", "))
		fmt.Fprintf(&b, "strategy = FSDPStrategy(activation_checkpointing_policy={%s})\n", strings.Join(e.Classes, ", "))
		strategy = "strategy=strategy, "
	}
	fmt.Fprintf(&b, "trainer = L.Trainer(%sprecision=%q, accumulate_grad_batches=%d)  # batch_size=%d in the data loader\n", strategy, precision, max(e.Question.Accumulate, 1), e.Question.Batch)
	return b.Bytes(), nil
}

func writeFSDP(e *Expression) ([]byte, error) {
	precision, err := e.precision(map[string]string{"fp32": "no", "amp-bf16": "bf16", "amp-fp16": "fp16"})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "mixed_precision: '%s'\nfsdp_config:\n  fsdp_version: 2\n  fsdp_activation_checkpointing: %t\n", precision, e.Setting != "")
	if len(e.Classes) > 0 {
		fmt.Fprintf(&b, "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: %s\n", strings.Join(e.Classes, ","))
	}
	return b.Bytes(), nil
}

func writeMegatron(e *Expression) ([]byte, error) {
	flag, err := e.precision(map[string]string{"fp32": "", "bf16": " --bf16", "fp16": " --fp16"})
	if err != nil {
		return nil, err
	}
	out := fmt.Sprintf("--micro-batch-size %d%s", e.Question.Batch, flag)
	if e.Setting != "" {
		out += fmt.Sprintf(" --recompute-granularity full --recompute-method block --recompute-num-layers %d", e.Value)
	}
	return []byte(out + "\n"), nil
}

func writeDeepSpeed(e *Expression) ([]byte, error) {
	key, err := e.precision(map[string]string{"fp32": "", "bf16": "bf16", "fp16": "fp16"})
	if err != nil {
		return nil, err
	}
	out := map[string]any{"train_micro_batch_size_per_gpu": e.Question.Batch, "gradient_accumulation_steps": max(e.Question.Accumulate, 1)}
	if key != "" {
		out[key] = map[string]any{"enabled": true}
	}
	data, err := json.MarshalIndent(out, "", "  ")
	return append(data, '\n'), err
}
