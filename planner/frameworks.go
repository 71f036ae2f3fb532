package planner

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/python"
	"github.com/memplan/memplan/graph/train"
)

// A Framework is a target of config --to: what it can checkpoint, and the
// writer of its configuration.
type Framework struct {
	Name, Doc string
	Form      string // of the output: JSON, YAML, ..
	Does      string // what it can checkpoint
	Read      string // the one of Recipes that reads the output; "" for none

	ways  func(*anatomy) ([]way, error) // nil: any plan, unchanged
	write func(*Expression) ([]byte, error)
	mesh  meshKeys                    // nil: it is not in the configuration
	whole func(*Plan) ([]byte, error) // where ways is nil
	wraps bool                        // the classes that it checkpoints are those that fully_shard is called on
}

// A way is one of a framework's choices of what to checkpoint.
type way struct {
	setting string // in the notation of its users
	value   int    // of every_n_layers, recompute-num-layers
	method  string // of Megatron
	save    []string
	blocks  []block
	segs    []train.Segment // nil: each of blocks on its own
	wrap    string          // classes that fully_shard is called on, with commas; "": those of the question
	read    bool            // only in --config: older versions, and equivalents of other ways
}

// A block is a module with the calls that a policy may keep.
type block struct {
	list, name, class string // class with its package
	calls             map[string]int
}

// short is the class without its package.
func (b *block) short() string { return b.class[strings.LastIndexByte(b.class, '.')+1:] }

// An anatomy is what a framework can see of a model: modules and their classes.
type anatomy struct {
	modules []block // modules of libraries' and users' classes, in execution order
	blocks  []block // of these, the modules that the model repeats, in the order of its modules()
	layers  []block // of these, the modules that transformers checkpoints, likewise
	lora    bool
}

// Frameworks lists the targets of config --to. The first ones accept any plan.
var Frameworks = []Framework{
	{Name: "torch", Doc: "any PyTorch script, by memplan's own function", Form: "JSON", Does: "every plan"},
	{Name: "python", Doc: "a module that applies the plan where memplan is not installed", Form: "Python", Does: "every plan", whole: writePython},
	{Name: "fsdp2", Doc: "a module that shards a model, with its checkpoints, where memplan is not installed", Form: "Python", Does: "every plan of ddp, zero1, fsdp, hsdp and tp", whole: writeFSDP2},
	{Name: "jax", Doc: "policies for jax.checkpoint, by module", Form: "Python", Does: "every plan that keeps no results of fused attention", whole: writeJAX},
	{Name: "huggingface", Doc: "transformers' TrainingArguments", Form: "JSON", Does: "every n-th layer", Read: "transformers", ways: everyN, write: writeHuggingFace},
	{Name: "axolotl", Doc: "keys of an axolotl configuration", Form: "YAML", Does: "all layers, with results of some operators kept or none", Read: "axolotl", ways: axolotlWays, write: writeAxolotl},
	{Name: "torchtitan", Doc: "arguments of torchtitan 0.3", Form: "arguments", Does: "all of model.layers, with every other product kept or none", Read: "torchtitan", ways: titanWays, write: writeTitan, mesh: titanMesh},
	{Name: "lightning", Doc: "a strategy of Lightning's Trainer or Fabric", Form: "Python", Does: "all modules of some classes", ways: byClass("activation_checkpointing_policy"), write: writeLightning},
	{Name: "lightning-cli", Doc: "the trainer of a LightningCLI configuration", Form: "YAML", Does: "all modules of some classes", Read: "lightning-cli", ways: byClass("activation_checkpointing_policy"), write: writeLightningCLI},
	{Name: "fsdp", Doc: "accelerate's configuration with FSDP", Form: "YAML", Does: "all modules of some classes", Read: "accelerate", ways: byClass("fsdp_transformer_layer_cls_to_wrap"), write: writeFSDP, mesh: accelerateMesh, wraps: true},
	{Name: "accelerate", Doc: "the same, by the name of its program", Form: "YAML", Does: "all modules of some classes", Read: "accelerate", ways: byClass("fsdp_transformer_layer_cls_to_wrap"), write: writeFSDP, mesh: accelerateMesh, wraps: true},
	{Name: "megatron", Doc: "arguments of Megatron-LM", Form: "arguments", Does: "the first n layers of a stack, or all in runs of n", Read: "megatron", ways: megatronWays, write: writeMegatron, mesh: megatronMesh},
	{Name: "deepspeed", Doc: "DeepSpeed's configuration", Form: "JSON", Does: "nothing by itself", Read: "deepspeed", ways: none, write: writeDeepSpeed, mesh: speedMesh},
}

// FrameworkNames lists the names of Frameworks.
func FrameworkNames() []string {
	return texts(Frameworks, func(f *Framework) string { return f.Name })
}

// FindFramework returns the framework of that name.
func FindFramework(name string) *Framework {
	return &Frameworks[slices.Index(FrameworkNames(), name)]
}

// Any reports whether the framework accepts every plan unchanged.
func (f *Framework) Any() bool { return f.ways == nil }

// parseSetting parses a framework's setting in --checkpoint: its name, a colon and a
// setting, as config --to prints them.
func parseSetting(text string) (f *Framework, what string, ok bool) {
	name, what, ok := strings.Cut(text, ":")
	if !ok || !slices.Contains(FrameworkNames(), name) || FindFramework(name).ways == nil {
		return nil, "", false
	}
	return FindFramework(name), what, true
}

// IsSetting reports whether text names a setting of a framework, such as
// huggingface:every_n_layers=2.
func IsSetting(text string) bool {
	_, _, ok := parseSetting(text)
	return ok
}

// segmentsOf returns the regions that a framework's setting checkpoints in the
// model.
func (m *Model) segmentsOf(j *job, batch int64, text string) ([]train.Segment, error) {
	f, what, _ := parseSetting(text)
	ways, err := m.waysOf(j, batch, f)
	if err != nil {
		return nil, fmt.Errorf("--checkpoint %s: %w", text, err)
	}
	i := slices.IndexFunc(ways, func(w way) bool { return w.setting == what })
	if i < 0 {
		known := make([]string, 0, mostWays)
		for _, w := range ways[:min(len(ways), mostWays)] {
			known = append(known, w.setting)
		}
		return nil, fmt.Errorf("--checkpoint %s: %s has no such setting for this model (known: %s)", text, f.Name, strings.Join(known, ", "))
	}
	return ways[i].segs, nil
}

// mostWays bounds how many settings an error lists.
const mostWays = 12

// waysOf lists what a framework can checkpoint in the model.
func (m *Model) waysOf(j *job, batch int64, f *Framework) ([]way, error) {
	a, err := m.anatomy(j, batch)
	if err != nil {
		return nil, err
	}
	if len(a.blocks) == 0 {
		return nil, fmt.Errorf("%s checkpoints the blocks that a model repeats, and the file shows none", f.Name)
	}
	ways, err := f.ways(a)
	for i := range ways {
		if w := &ways[i]; w.segs == nil {
			for _, b := range w.blocks {
				w.segs = append(w.segs, train.Segment{Modules: []string{b.name}, Save: b.kept(w.save)})
			}
		}
	}
	return ways, err
}

// kept returns all calls of some operators, for a policy to keep.
func (b *block) kept(ops []string) (out []train.Saved) {
	for _, op := range ops {
		n := b.calls[op]
		s := train.Saved{Op: "aten." + op, Of: n}
		for i := range n {
			s.Calls = append(s.Calls, i)
		}
		if n > 0 {
			out = append(out, s)
		}
	}
	return out
}

// nameable matches names that need no quoting in any configuration or in code.
var nameable = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_0-9]+)*$`)

// anatomy reads the model's modules, except those whose names in the file are
// not valid in Python.
func (m *Model) anatomy(j *job, batch int64) (*anatomy, error) {
	b, err := m.build(j, batch, nil)
	if err != nil {
		return nil, err
	}
	calls := make([]string, len(m.lifted.Graph.Nodes)) // operators of each lifted call
	for i := range b.Nodes {
		if n := &b.Nodes[i]; n.Phase == program.Forward && n.Micro == 0 && n.Call >= 0 && n.Only == program.EveryStep {
			if op := kernel.Dispatched(n.Op); kernel.Selectable(op) {
				calls[n.Call] += op + " "
			}
		}
	}
	a := &anatomy{lora: j.cfg.LoRA != ""}
	for _, x := range m.lifted.Modules() {
		if !nameable.MatchString("model."+x.Name) || !nameable.MatchString(x.Class) { // elements of an nn.Sequential begin with digits
			continue
		}
		k := block{list: x.Name[:max(strings.LastIndexByte(x.Name, '.'), 0)], name: x.Name, class: x.Class, calls: map[string]int{}}
		for _, s := range x.Calls {
			for _, ops := range calls[s.First : s.Last+1] {
				for _, op := range strings.Fields(ops) {
					k.calls[op]++
				}
			}
		}
		if !python.PyTorch.Of(x.Class) {
			a.modules = append(a.modules, k)
		}
	}
	a.blocks = repeated(a.modules)
	for _, b := range a.modules {
		if python.Layer(b.class) {
			a.layers = append(a.layers, b)
		}
	}
	m.registered(a.blocks)
	m.registered(a.layers)
	return a, nil
}

// repeated lists the modules that the model repeats: numbered elements of a list, which
// may be the model itself, or numbered attributes of a part such as encoder_layer_0, of
// one class, and not inside another such module.
func repeated(modules []block) []block {
	type row struct{ list, stem, class string }
	rowOf := func(b *block) (r row, numbered bool) {
		last := b.name[strings.LastIndexByte(b.name, '.')+1:]
		stem := strings.TrimRight(last, "0123456789")
		return row{b.list, stem, b.class}, stem != last && (b.list != "" || stem == "")
	}
	count := map[row]int{}
	for i := range modules {
		if r, ok := rowOf(&modules[i]); ok {
			count[r]++
		}
	}
	var out []block
	for i := range modules {
		b := &modules[i]
		within := slices.ContainsFunc(out, func(o block) bool { return strings.HasPrefix(b.name, o.name+".") })
		if r, ok := rowOf(b); ok && !within && count[r] > 1 {
			out = append(out, *b)
		}
	}
	return out
}

// registered sorts blocks by their lists' first parameters in the file, which
// are in the order of the model's modules().
func (m *Model) registered(blocks []block) {
	at := map[string]int{}
	for i, v := range m.lifted.Graph.Values {
		for _, b := range blocks {
			if _, ok := at[b.list]; !ok && strings.HasPrefix(v.Name, strings.TrimPrefix(b.list+".", ".")) {
				at[b.list] = i
			}
		}
		if len(at) == len(blocks) {
			break
		}
	}
	slices.SortStableFunc(blocks, func(x, y block) int { return at[x.list] - at[y.list] })
}
