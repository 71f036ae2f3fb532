package planner

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/python"
	"github.com/memplan/memplan/quote"
)

// precision returns the framework's name of the plan's precision, from names;
// an error if it has none.
func (e *Expression) precision(names map[string]string) (string, error) {
	key, ok := names[e.Question.Precision]
	if !ok {
		return "", fmt.Errorf("%s's configuration has no setting for --precision %s", e.Framework, e.Question.Precision)
	}
	return key, nil
}

// optimizer returns the name that transformers' trainer has for the plan's.
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
		out["gradient_checkpointing_kwargs"] = map[string]any{"use_reentrant": false, "every_n_layers": e.way.value}
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
	if _, save, ok := strings.Cut(e.Setting, "selective_checkpointing.save="); ok {
		fmt.Fprintf(&b, "selective_checkpointing:\n  save: [%s]\n", quotedList(save))
	}
	return b.Bytes(), nil
}

// quotedList quotes the names of a comma-separated list.
func quotedList(names string) string {
	return `"` + strings.ReplaceAll(names, ",", `", "`) + `"`
}

func writeTitan(e *Expression) ([]byte, error) {
	param, err := e.precision(map[string]string{"fp32": "float32", "amp-bf16": "bfloat16", "bf16": "bfloat16"})
	if err != nil {
		return nil, err
	}
	dtype := "float32"
	if e.Question.Precision == "bf16" {
		dtype = "bfloat16"
	}
	var b bytes.Buffer
	if e.Question.FSDPPrecision == "bf16" {
		param = "bfloat16"
	}
	fmt.Fprintf(&b, "--training.local_batch_size %d\n", e.Question.Batch*e.micros())
	if n := int64(e.Question.Accumulate); n > 1 {
		fmt.Fprintf(&b, "--training.global_batch_size %d\n", n*e.Question.Batch*e.data())
	}
	mode := "none"
	if e.Setting != "" {
		mode = e.Setting
	}
	fmt.Fprintf(&b, "--training.dtype %s\n--training.mixed_precision_param %s\n%sactivation-checkpoint:%s\n", dtype, param, argued(e.mesh), mode)
	return b.Bytes(), nil
}

// lightningPrecisions are Lightning's names of precisions.
var lightningPrecisions = map[string]string{"fp32": "32-true", "amp-bf16": "bf16-mixed", "amp-fp16": "16-mixed", "bf16": "bf16-true", "fp16": "16-true"}

func writeLightning(e *Expression) ([]byte, error) {
	precision, err := e.precision(lightningPrecisions)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy  # of lightning.fabric for Fabric\n\n")
	strategy := ""
	if e.Setting != "" {
		var names []string
		for _, c := range e.Classes {
			at := strings.LastIndexByte(c, '.')
			names = append(names, c[at+1:])
			switch module := c[:max(at, 0)]; module {
			case "", "__main__":
				fmt.Fprintf(&b, "# %s is a class of your script\n", c[at+1:])
			default:
				fmt.Fprintf(&b, "from %s import %s\n", module, c[at+1:])
			}
		}
		fmt.Fprintf(&b, "\nstrategy = FSDPStrategy(activation_checkpointing_policy={%s})\n", strings.Join(names, ", "))
		strategy = "strategy=strategy, "
	}
	fmt.Fprintf(&b, "trainer = L.Trainer(%sprecision=%q, accumulate_grad_batches=%d)  # batch_size=%d in the data loader\n", strategy, precision, max(e.Question.Accumulate, 1), e.Question.Batch)
	return b.Bytes(), nil
}

func writeLightningCLI(e *Expression) ([]byte, error) {
	precision, err := e.precision(lightningPrecisions)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# batch_size: %d in the data loader\ntrainer:\n  precision: %s\n  accumulate_grad_batches: %d\n", e.Question.Batch, precision, max(e.Question.Accumulate, 1))
	if e.Setting != "" {
		b.WriteString("  strategy:\n    class_path: lightning.pytorch.strategies.FSDPStrategy\n    init_args:\n      activation_checkpointing_policy:\n")
		for _, c := range e.Classes {
			fmt.Fprintf(&b, "      - %s\n", c)
		}
	}
	return b.Bytes(), nil
}

func writeFSDP(e *Expression) ([]byte, error) {
	precision, err := e.precision(map[string]string{"fp32": "no", "amp-bf16": "bf16", "amp-fp16": "fp16"})
	if err != nil {
		return nil, err
	}
	if e.Question.FSDPPrecision == "bf16" {
		precision = "bf16"
	}
	keys := slices.Clone(e.mesh)
	if keys == nil {
		keys = [][2]string{{"distributed_type", "FSDP"}, {"fsdp_config.fsdp_version", "2"}}
	}
	_, names, classes := strings.Cut(e.Setting, "=")
	if !classes && e.wrap != nil {
		names, classes = strings.Join(e.wrap, ","), true
	}
	sharded := slices.Contains(keys, [2]string{"distributed_type", "FSDP"})
	switch {
	case sharded:
		keys = append(keys, [2]string{"fsdp_config.fsdp_activation_checkpointing", fmt.Sprint(e.Setting != "")})
	case e.Setting != "":
		return nil, fmt.Errorf("%s checkpoints under FSDP alone: plan with --parallel fsdp=N", e.Framework)
	}
	switch {
	case classes:
		keys = append(keys, [2]string{"fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"}, [2]string{"fsdp_config.fsdp_transformer_layer_cls_to_wrap", names})
	case e.mesh != nil && sharded:
		keys = append(keys, [2]string{"fsdp_config.fsdp_auto_wrap_policy", "NO_WRAP"})
	}
	return append([]byte("mixed_precision: '"+precision+"'\n"), sections(keys)...), nil
}

// data is how many ranks have batches of their own.
func (e *Expression) data() int64 {
	m, err := ParseParallel(e.Question.Parallel)
	if err != nil {
		return 1
	}
	return int64(m.Data())
}

// micros is how many micro-batches a pipeline's step has; 1 without one.
func (e *Expression) micros() int64 {
	m, err := ParseParallel(e.Question.Parallel)
	if err != nil || m.Pipeline == 0 {
		return 1
	}
	return int64(cmp.Or(e.Question.PPMicros, m.Pipeline))
}

func writeMegatron(e *Expression) ([]byte, error) {
	flag, err := e.precision(map[string]string{"fp32": "", "bf16": "--bf16\n", "fp16": "--fp16\n"})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "--micro-batch-size %d\n%s%s", e.Question.Batch, flag, argued(e.mesh))
	if n := int64(max(e.Question.Accumulate, 1)) * e.micros(); n > 1 {
		fmt.Fprintf(&b, "--global-batch-size %d\n", n*e.Question.Batch*e.data())
	}
	if e.Setting != "" {
		fmt.Fprintf(&b, "--recompute-granularity full\n--recompute-method %s\n--recompute-num-layers %d\n", e.way.method, e.way.value)
	}
	return b.Bytes(), nil
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
	if e.mesh != nil {
		out["zero_optimization"] = values(e.mesh)
		out["train_batch_size"] = int64(max(e.Question.Accumulate, 1)) * e.Question.Batch * e.data() // which says how many ranks there are
	}
	data, err := json.MarshalIndent(out, "", "  ")
	return append(data, '\n'), err
}

// Whole returns the configuration of a framework that accepts every plan
// unchanged.
func (f *Framework) Whole(p *Plan) ([]byte, error) { return f.whole(p) }

// pythonJSON writes a document as an argument of Python's json.loads: a raw
// string, in which JSON's own escapes protect every quote.
func pythonJSON(doc any) (string, error) {
	data, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return "", err
	}
	return "r'''" + strings.ReplaceAll(string(quote.JSON(data)), "'", `\u0027`) + "'''", nil
}

// writePython writes the Python code that applies plans, with one plan in it.
func writePython(p *Plan) ([]byte, error) {
	t, err := p.ToTorch()
	if err != nil {
		return nil, err
	}
	doc, err := pythonJSON(t)
	if err != nil {
		return nil, err
	}
	return []byte(python.Checkpoint + `

# ---- the plan ----------------------------------------------------------------------------------------------------------------

# What memplan config --to torch writes. Before the first step: import this file and call apply(model).
PLAN: dict[str, Any] = json.loads(
    ` + doc + `
)


def apply(model: Model, *, strip_prefix: str | None = None) -> Model:
    """checkpoint() with the plan of this file; remove(model) takes it off again."""
    return checkpoint(model, PLAN, strip_prefix=strip_prefix)
`), nil
}

// ownImports are lines of python.Parallel that a file which has python.Checkpoint, too, does without.
var ownImports = regexp.MustCompile(`(?m)^from (__future__|\._\w+) import .*\n`)

// writeFSDP2 writes the Python code that spreads a model over a mesh and applies a plan's
// checkpoints, with one plan in it.
func writeFSDP2(p *Plan) ([]byte, error) {
	if p.Config.Parallel == "" {
		return nil, errors.New("the plan is of one card: make one with --parallel fsdp=N, or give --to python")
	}
	m, err := ParseParallel(p.Config.Parallel)
	if err != nil {
		return nil, err
	}
	if m.Experts > 0 {
		return nil, fmt.Errorf("fully_shard cannot express the plan's mesh %s: the tokens of experts are sent by the model's own code; give --to torchtitan", m)
	}
	if m.Context > 0 {
		return nil, fmt.Errorf("the file cannot express the plan's mesh %s: context_parallel is put around a training step, with its inputs; give --to torchtitan or accelerate", m)
	}
	if m.Pipeline > 0 || m.Stage > 0 {
		return nil, fmt.Errorf("fully_shard cannot express the plan's mesh %s: memplan.parallelize applies a pipeline's plan, DeepSpeed's engine has scripts of its own; give a mesh of ddp, zero1, fsdp, hsdp and tp", m)
	}
	if _, err := p.ToTorch(); err != nil { // a schedule of single operations
		return nil, err
	}
	c := &p.Config
	doc, err := pythonJSON(map[string]any{
		"schemaVersion": SchemaVersion, "selection": p.Selection, "schedule": []any{}, "weights": p.Weights, "parallel": p.Parallel,
		"config": map[string]any{"parallel": c.Parallel, "fsdpReshard": c.FSDPReshard, "fsdpPrecision": c.FSDPPrecision, "fsdpOffload": c.FSDPOffload, "fsdpPrefetch": c.FSDPPrefetch,
			"ddpBucket": c.DDPBucket, "ddpFirst": c.DDPFirst, "ddpViews": c.DDPViews, "ddpUnused": c.DDPUnused},
	})
	if err != nil {
		return nil, err
	}
	return []byte(python.Checkpoint + "\n\n# ---- the mesh " + strings.Repeat("-", 110) + "\n\n" + ownImports.ReplaceAllString(python.Parallel, "") + `

# ---- the plan ----------------------------------------------------------------------------------------------------------------

# Under torchrun, before the optimizer is made: import this file and train what apply(model) returns.
PLAN: dict[str, Any] = json.loads(
    ` + doc + `
)


def apply(model: torch.nn.Module, mesh: Union[str, DeviceMesh, None] = None) -> torch.nn.Module:
    """parallelize() with the plan of this file, on its mesh or the one given."""
    return parallelize(model, mesh, PLAN)
`), nil
}

// jaxOps maps operators whose results a JAX policy can keep by name to JAX's.
// Fused attention is not among them: what its backward pass needs is made
// inside the kernel, where no name reaches.
var jaxOps = map[string]string{
	"addmm": "x @ w + b", "mm": "x @ w", "bmm": "batched products", "baddbmm": "batched products with an added term", "convolution": "lax.conv_general_dilated",
	"_softmax": "jax.nn.softmax", "gelu": "jax.nn.gelu", "silu": "jax.nn.silu", "tanh": "jnp.tanh", "sigmoid": "jax.nn.sigmoid", "hardswish": "jax.nn.hard_swish",
	"hardsigmoid": "jax.nn.hard_sigmoid", "pow": "x ** n", "rsqrt": "lax.rsqrt", "mul": "x * y", "sub": "x - y", "div": "x / y", "neg": "-x", "cat": "jnp.concatenate", "mean": "jnp.mean",
	"native_layer_norm": "(y, mean, rstd)", "native_group_norm": "(y, mean, rstd)", "_fused_rms_norm": "(y, rstd)", "native_dropout": "(y, mask)",
}

// writeJAX writes a module that wraps functions in jax.checkpoint according to
// a plan.
func writeJAX(p *Plan) ([]byte, error) {
	t, err := p.ToTorch()
	if err != nil {
		return nil, fmt.Errorf("jax cannot express the plan: %w", err)
	}
	if slices.ContainsFunc(t.Checkpoint, func(s train.Segment) bool { return s.Offload }) {
		return nil, errors.New("jax cannot express the plan: the hooks that offload are PyTorch's (JAX's own policy is save_and_offload_only_these_names): make a plan without --offload")
	}
	maps := ""
	var ops []string
	for _, o := range t.Ops {
		op := strings.TrimPrefix(o.Op, "aten.")
		what, ok := jaxOps[op]
		if !ok {
			return nil, fmt.Errorf("jax cannot express the plan: %s keeps results of %s, and no policy has a name for what a fused kernel saves inside: make a plan with --checkpoint segments", strings.Join(t.Checkpoint[o.Region].Modules, ", "), o.Op)
		}
		if !slices.Contains(ops, op) {
			ops = append(ops, op)
			maps += fmt.Sprintf("    %-24s keep(.., %q) around %s\n", o.Op, op, what)
		}
	}
	doc, err := pythonJSON(t)
	if err != nil {
		return nil, err
	}
	return []byte(strings.NewReplacer("@OPS@", maps, "@PLAN@", doc).Replace(python.JAX)), nil
}
