package planner

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/bounded"
)

// A Recipe is what the configuration of a training framework says about
// memory: settings in the words of memplan's flags, and what memplan cannot
// take over.
type Recipe struct {
	Path      string
	Framework string // one of Recipes
	Settings  []RecipeSetting
	Left      []string // settings that change memory and are not taken over, each with why
	Others    int      // keys that were not looked at
}

// A RecipeSetting is a flag's value and the key that asks for it.
type RecipeSetting struct{ Flag, Value, Key string }

// String lists the settings, such as "batch=4 precision=bf16".
func (r *Recipe) String() string {
	parts := make([]string, len(r.Settings))
	for i, s := range r.Settings {
		parts[i] = s.Flag + "=" + s.Value
	}
	return strings.Join(parts, " ")
}

// Warning says what was taken and what was not.
func (r *Recipe) Warning() graph.Warning {
	text := fmt.Sprintf("%s (%s) sets %s", filepath.Base(r.Path), r.Framework, cmp.Or(r.String(), "nothing that is not given"))
	if len(r.Left) > 0 {
		text += "; not taken over: " + strings.Join(r.Left, "; ")
	}
	if r.Others > 0 {
		text += fmt.Sprintf("; keys that were not looked at: %d", r.Others)
	}
	return graph.Warning{Code: "config-file", Message: text}
}

// A recipeKind is a framework whose configurations are read. Keys are paths of
// names, with dots between them; the last name of one may be "*".
type recipeKind struct {
	name  string
	marks []string // keys that only this framework's files have
	keys  []recipeKey
}

// A recipeKey is a key that changes how much memory a step takes. Keys are read
// in the order of the table.
type recipeKey struct {
	key  string
	read func(r *recipeReading, key, value string)
}

// recipeKinds are read in this order: DeepSpeed's keys may stand in files of the others.
var recipeKinds = []recipeKind{
	{"axolotl", []string{"micro_batch_size", "base_model", "sequence_len"}, []recipeKey{
		{"micro_batch_size", flagOf("batch")},
		{"gradient_accumulation_steps", flagOf("accumulate")},
		{"bf16", when(flagTo("precision", "bf16"))}, // axolotl loads the model in it
		{"fp16", when(flagTo("precision", "amp-fp16"))},
		{"optimizer", huggingOptimizer},
		{"gradient_checkpointing", when(flagTo("checkpoint", "all"))},
		{"adapter", adapter},
		{"sequence_len", leave("give it to the model's own dimension, as --dim NAME=%s")},
		{"sample_packing", when(leave("batches are packed to sequence_len: the model's batch stays that of micro_batch_size"))},
		{"activation_offloading", when(leave("activations stay on the GPU"))},
		{"layer_offloading", when(leave("layers stay on the GPU"))},
		{"selective_checkpointing.*", leave("whole blocks are checkpointed")},
		{"load_in_8bit", when(leave("quantised weights are counted in the element type of --precision"))},
		{"load_in_4bit", when(leave("quantised weights are counted in the element type of --precision"))},
		{"torch_compile", when(leave(compiled))},
		{"deepspeed", when(leave(sharded))}, {"fsdp", when(leave(sharded))}, {"fsdp_config.fsdp_version", leave(sharded)},
	}},
	{"transformers", []string{"per_device_train_batch_size"}, []recipeKey{
		{"per_device_train_batch_size", flagOf("batch")},
		{"gradient_accumulation_steps", flagOf("accumulate")},
		{"bf16", when(flagTo("precision", "amp-bf16"))},
		{"fp16", when(flagTo("precision", "amp-fp16"))},
		{"optim", huggingOptimizer},
		{"gradient_checkpointing", when(flagTo("checkpoint", "all"))},
		{"gradient_checkpointing_kwargs.every_n_layers", leave("every block is checkpointed")},
		{"gradient_checkpointing_kwargs.offload", when(leave("checkpoints stay on the GPU"))},
		{"auto_find_batch_size", when(leave("the batch is that of per_device_train_batch_size"))},
		{"torch_compile", when(leave(compiled))},
		{"deepspeed", when(leave(sharded))}, {"fsdp", when(leave(sharded))},
	}},
	{"torchtitan", []string{"training.local_batch_size", "activation_checkpoint.mode", "parallelism.*"}, []recipeKey{
		{"training.local_batch_size", flagOf("batch")},
		{"training.mixed_precision_param", titanPrecision},
		{"training.dtype", titanType},
		{"optimizer.name", titanOptimizer},
		{"activation_checkpoint.mode", titanCheckpoint},
		{"training.seq_len", leave("give it to the model's own dimension, as --dim NAME=%s")},
		{"training.enable_cpu_offload", when(leave("everything stays on the GPU"))},
		{"training.global_batch_size", leave("accumulation follows from the number of GPUs: give --accumulate")},
		{"compile.enable", when(leave(compiled))},
		{"training.compile", when(leave(compiled))},
		{"parallelism.*", degree},
	}},
	{"deepspeed", []string{"train_micro_batch_size_per_gpu", "train_batch_size", "zero_optimization.*"}, []recipeKey{
		{"train_micro_batch_size_per_gpu", flagOf("batch")},
		{"gradient_accumulation_steps", flagOf("accumulate")},
		{"bf16.enabled", when(both(flagTo("precision", "bf16"), leave(masters)))},
		{"bfloat16.enabled", when(both(flagTo("precision", "bf16"), leave(masters)))},
		{"fp16.enabled", when(both(flagTo("precision", "fp16"), leave(masters)))},
		{"optimizer.type", speedOptimizer},
		{"train_batch_size", speedBatch},
		{"zero_optimization.stage", unless("0", leave(sharded))},
		{"zero_optimization.offload_optimizer.device", unless("none", leave("the optimizer's states stay on the GPU"))},
		{"zero_optimization.offload_param.device", unless("none", leave("parameters stay on the GPU"))},
		{"activation_checkpointing.*", leave("it takes effect where the model calls DeepSpeed's checkpoint: give --checkpoint")},
		{"compile.deepcompile", when(leave(compiled))},
	}},
}

// Reasons for which settings are left.
const (
	sharded  = "this is what one GPU needs that shares nothing with others"
	compiled = "the step is that of eager PyTorch: a compiled one fuses operators and may keep other tensors"
	masters  = "DeepSpeed keeps float32 copies of the parameters and float32 optimizer states beside them, which are not counted"
)

// Recipes lists the frameworks whose configurations ReadRecipe reads.
func Recipes() []string {
	names := make([]string, len(recipeKinds))
	for i, k := range recipeKinds {
		names[i] = k.name
	}
	return names
}

// A recipeReading is a configuration while it is read.
type recipeReading struct {
	*Recipe
	values map[string]string
	err    error // the first
}

func (r *recipeReading) set(flag, value, key string) {
	for i := range r.Settings {
		if s := &r.Settings[i]; s.Flag == flag {
			if s.Value != value {
				r.fail(key, "asks for --%s %s where %s asks for %s", flag, value, s.Key, s.Value)
			}
			return
		}
	}
	r.Settings = append(r.Settings, RecipeSetting{flag, value, key})
}

func (r *recipeReading) leave(key, value, why string) {
	if value != "" {
		key += " " + value
	}
	r.Left = append(r.Left, key+": "+why)
}

func (r *recipeReading) fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %w", key, fmt.Errorf(format, args...))
	}
}

// flagOf gives a key's value to a flag; auto and null leave it.
func flagOf(name string) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		switch value {
		case "", "null":
		case "auto":
			r.leave(key, value, "the script decides: give --"+name)
		default:
			r.set(name, value, key)
		}
	}
}

// flagTo gives a flag a value, whatever the key's.
func flagTo(name, to string) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, _ string) { r.set(name, to, key) }
}

// when reads a key that is on: auto is, for what frameworks turn on by it.
func when(read func(*recipeReading, string, string)) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		switch strings.ToLower(value) {
		case "", "false", "null", "none", "no", "off", "0", "[]", "{}":
		default:
			read(r, key, value)
		}
	}
}

// unless reads a key whose value is another.
func unless(plain string, read func(*recipeReading, string, string)) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		if value != plain {
			read(r, key, value)
		}
	}
}

func both(a, b func(*recipeReading, string, string)) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		a(r, key, value)
		b(r, key, value)
	}
}

// leave notes that a key is not taken over; why may have the value as %s.
func leave(why string) func(*recipeReading, string, string) {
	return func(r *recipeReading, key, value string) {
		switch strings.ToLower(value) {
		case "", "null", "none", "[]", "{}":
			return
		}
		if strings.Contains(why, "%s") {
			r.leave(key, "", fmt.Sprintf(why, value))
			return
		}
		r.leave(key, value, why)
	}
}

// huggingOptimizers pairs the optimizers of transformers' trainer with memplan's
// names, its usual name first (transformers/training_args.py, OptimizerNames).
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

// titanType is the type of the parameters.
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
	switch value {
	case "none":
		r.set("checkpoint", "none", key)
	case "full":
		r.set("checkpoint", "all", key)
	default:
		r.leave(key, value, "give --checkpoint")
	}
}

// degree leaves a mesh of more than one GPU.
func degree(r *recipeReading, key, value string) {
	if n, err := strconv.Atoi(value); strings.HasSuffix(key, "_degree") && (err != nil || n != 1) {
		r.leave(key, value, sharded)
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

// speedBatch is of all GPUs and accumulated batches together.
func speedBatch(r *recipeReading, key, value string) {
	if r.values["train_micro_batch_size_per_gpu"] == "" {
		r.leave(key, value, "it is of all GPUs together: give --batch, what one of them takes at a time")
	}
}

// ReadRecipe reads the configuration of a training framework: JSON, TOML by
// its ending, and else YAML. Errors name the file and the key.
func ReadRecipe(path string) (*Recipe, error) {
	data, err := files.Door{}.Read(path, files.Config)
	if err != nil {
		return nil, err
	}
	r, err := parseRecipe(path, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func parseRecipe(path string, data []byte) (*Recipe, error) {
	values, err := recipeValues(path, data)
	if err != nil {
		return nil, err
	}
	r := &recipeReading{Recipe: &Recipe{Path: path}, values: values}
	keys := slices.Sorted(maps.Keys(values))
	at := slices.IndexFunc(recipeKinds, func(k recipeKind) bool {
		return slices.ContainsFunc(k.marks, func(mark string) bool {
			return slices.ContainsFunc(keys, func(key string) bool { return matchesKey(mark, key) })
		})
	})
	if at < 0 {
		return nil, fmt.Errorf("has no key that tells what framework it is of (known: %s)", strings.Join(Recipes(), ", "))
	}
	r.Framework = recipeKinds[at].name
	read := map[string]bool{}
	for _, k := range recipeKinds[at].keys {
		for _, key := range keys {
			if matchesKey(k.key, key) {
				k.read(r, key, values[key])
				read[key] = true
			}
		}
	}
	r.Others = len(keys) - len(read)
	return r.Recipe, r.err
}

// matchesKey tells whether a key is one of a table's.
func matchesKey(pattern, key string) bool {
	prefix, family := strings.CutSuffix(pattern, "*")
	return key == pattern || family && strings.HasPrefix(key, prefix)
}

// maxRecipe bounds how many values a configuration has, and how deep they lie.
const (
	maxRecipe      = 10_000
	maxRecipeDepth = 8
)

var errRecipeSize = fmt.Errorf("has more than %d values, or some nested more than %d deep", maxRecipe, maxRecipeDepth)

// recipeValues reads the scalars of a configuration, by the paths of their keys.
// Lists of scalars are one value, with commas.
func recipeValues(path string, data []byte) (map[string]string, error) {
	values := map[string]string{}
	trimmed := bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\ufeff")))
	switch {
	case len(trimmed) == 0:
		return nil, errors.New("the file is empty")
	case strings.EqualFold(filepath.Ext(path), ".toml"):
		if err := boundTOML(data); err != nil {
			return nil, err
		}
		tree := map[string]any{}
		if err := toml.Unmarshal(data, &tree); err != nil {
			return nil, fmt.Errorf("not TOML: %w", err)
		}
		return values, flatten(values, "", tree, 0)
	case trimmed[0] == '{':
		tree := map[string]any{}
		if err := bounded.Decode(trimmed, &tree); err != nil {
			return nil, err
		}
		return values, flatten(values, "", tree, 0)
	}
	v, err := parseYAML(data)
	if err != nil {
		return nil, fmt.Errorf("line %w", err)
	}
	return values, v.flatten(values, "", 0)
}

// maxTOMLDepth bounds brackets within each other, on which the parser recurses.
const maxTOMLDepth = 64

// boundTOML is an error for brackets that are nested too deep. Those in strings
// and comments count, too.
func boundTOML(data []byte) error {
	depth := 0
	for _, c := range data {
		switch c {
		case '[', '{':
			if depth++; depth > maxTOMLDepth {
				return fmt.Errorf("nested more than %d deep", maxTOMLDepth)
			}
		case ']', '}':
			depth = max(depth-1, 0)
		}
	}
	return nil
}

// flatten adds the scalars of a decoded tree to values.
func flatten(values map[string]string, key string, v any, depth int) error {
	if depth > maxRecipeDepth || len(values) > maxRecipe {
		return errRecipeSize
	}
	switch x := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(x)) {
			if err := flatten(values, under(key, name), x[name], depth+1); err != nil {
				return err
			}
		}
	case []any:
		parts := make([]string, len(x))
		for i := range x {
			parts[i] = fmt.Sprint(x[i])
		}
		values[key] = strings.Join(parts, ",")
	case nil:
		values[key] = ""
	case float64:
		values[key] = strconv.FormatFloat(x, 'g', -1, 64)
	default:
		values[key] = fmt.Sprint(x)
	}
	return nil
}

// flatten adds the scalars of a YAML document to values.
func (v yamlValue) flatten(values map[string]string, key string, depth int) error {
	if depth > maxRecipeDepth || len(values) > maxRecipe {
		return errRecipeSize
	}
	if pairs, err := v.pairs(); err == nil {
		for _, p := range pairs {
			if err := p.value.flatten(values, under(key, p.key), depth+1); err != nil {
				return err
			}
		}
		return nil
	} else if key == "" {
		return err
	}
	if list, err := v.list(); err == nil {
		var parts []string
		for _, item := range list {
			if s, err := item.text(); err == nil {
				parts = append(parts, s)
			}
		}
		values[key] = strings.Join(parts, ",")
		return nil
	}
	values[key], _ = v.text() // no value is ""
	return nil
}

func under(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}
