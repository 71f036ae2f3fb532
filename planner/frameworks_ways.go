package planner

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/train"
)

// layersOf returns the layers that transformers checkpoints.
func layersOf(a *anatomy) ([]block, error) {
	if len(a.layers) == 0 {
		b := &a.blocks[0]
		return nil, fmt.Errorf("it checkpoints layers of transformers, and %s is %s", b.name, b.class)
	}
	return a.layers, nil
}

// everyN lists transformers' gradient_checkpointing_kwargs.every_n_layers:
// layers 0, n, 2n, .. of all, counted together.
func everyN(a *anatomy) ([]way, error) {
	layers, err := layersOf(a)
	if err != nil {
		return nil, err
	}
	var out []way
	for n := len(layers); n >= 1; n-- {
		w := way{setting: fmt.Sprintf("every_n_layers=%d", n), value: n}
		for i := 0; i < len(layers); i += n {
			w.blocks = append(w.blocks, layers[i])
		}
		out = append(out, w)
	}
	return out, nil
}

// axolotlSaves are the values of selective_checkpointing.save with their
// operators (axolotl/monkeypatch/selective_checkpointing.py).
var axolotlSaves = []struct {
	name string
	ops  []string
}{
	{"attention", []string{"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"}},
	{"aten::mm", []string{"mm"}},
	{"aten::addmm", []string{"addmm"}},
	{"aten::bmm", []string{"bmm"}},
	{"aten::convolution", []string{"convolution"}},
}

// axolotlWays checkpoint all layers, with any choice of operators whose results
// are kept. every_n_layers is not available in axolotl 0.19: its transformers,
// 5.16, lacks it.
func axolotlWays(a *anatomy) ([]way, error) {
	layers, err := layersOf(a)
	if err != nil {
		return nil, err
	}
	has := func(ops []string) bool {
		return slices.ContainsFunc(layers, func(b block) bool {
			return slices.ContainsFunc(ops, func(op string) bool { return b.calls[op] > 0 })
		})
	}
	var out []way
	for set := range 1 << len(axolotlSaves) {
		w := way{setting: "gradient_checkpointing", blocks: layers}
		var names []string
		present := 0 // operators in the layers
		for i, s := range axolotlSaves {
			if set>>i&1 == 0 {
				continue
			}
			names = append(names, s.name)
			if has(s.ops) {
				w.save = append(w.save, s.ops...)
				present++
			}
		}
		w.read = present < len(names)
		if len(names) > 0 {
			w.setting = "selective_checkpointing.save=" + strings.Join(names, ",")
		}
		out = append(out, w)
	}
	return out, nil
}

// titanSaves are the operators whose results torchtitan's SelectiveAC keeps, all
// calls except every second mm: compute_intensive_ops of
// torch/_functorch/partitioners.py and the attention of
// torchtitan/distributed/activation_checkpoint.py.
var titanSaves = []string{
	"addmm", "bmm", "convolution", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
}

// titanWays checkpoint the children of model.layers, whole or with some results
// kept.
func titanWays(a *anatomy) ([]way, error) {
	var layers []block
	for _, b := range a.modules {
		if b.list == "layers" || strings.HasSuffix(b.list, ".layers") {
			layers = append(layers, b)
		}
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("it checkpoints the modules in the model's layers, and those of this model lie in %s", a.blocks[0].list)
	}
	if list := layers[0].list; slices.ContainsFunc(layers, func(b block) bool { return b.list != list }) {
		return nil, fmt.Errorf("it checkpoints the modules of one list, and the model has %s and others", list)
	}
	out := []way{{setting: "full", blocks: layers}}
	for n := 1; n <= len(layers); n++ { // selective_ac_option of torchtitan 0.2
		w := way{setting: fmt.Sprintf("selective_ac_option=%d", n), read: true}
		for i := n - 1; i < len(layers); i += n {
			w.blocks = append(w.blocks, layers[i])
		}
		out = append(out, w)
	}
	for _, b := range a.modules { // with save set, SelectiveAC counts products by their shapes
		if strings.Contains(b.name, "moe.router.gate") {
			return out, nil
		}
	}
	w := way{setting: "selective", blocks: layers}
	for _, b := range layers {
		s := train.Segment{Modules: []string{b.name}, Save: b.kept(titanSaves)}
		if n := b.calls["mm"]; n > 0 {
			second := train.Saved{Op: "aten.mm", Of: n}
			for i := 0; i < n; i += 2 {
				second.Calls = append(second.Calls, i)
			}
			s.Save = append(s.Save, second)
		}
		w.segs = append(w.segs, s)
	}
	return append(out, w), nil
}

// byClass returns the ways of frameworks that checkpoint all modules of some
// classes: any one class, and any choice of those of blocks.
func byClass(key string) func(*anatomy) ([]way, error) {
	return func(a *anatomy) ([]way, error) {
		repeated := classesOf(a.blocks)
		if len(repeated) > mostClasses {
			return nil, fmt.Errorf("it checkpoints by classes, and the model's blocks have %d", len(repeated))
		}
		sets := [][]string{}
		for set := 1; set < 1<<len(repeated); set++ {
			var s []string
			for i, c := range repeated {
				if set>>i&1 == 1 {
					s = append(s, c)
				}
			}
			sets = append(sets, s)
		}
		for _, c := range classesOf(a.modules) {
			if !slices.Contains(repeated, c) {
				sets = append(sets, []string{c})
			}
		}
		var out []way
		for _, s := range sets {
			w := way{}
			var names []string
			for _, b := range a.modules {
				if !slices.Contains(s, b.class) {
					continue
				}
				w.blocks = append(w.blocks, b)
				if !slices.Contains(names, b.short()) {
					names = append(names, b.short())
				}
			}
			slices.Sort(names)
			w.setting = key + "=" + strings.Join(names, ",")
			if len(w.blocks) > 1 && distinct(a.modules, s) {
				out = append(out, w)
			}
		}
		return out, nil
	}
}

// distinct reports whether no other class of the model shares a name with one
// of these: configurations name classes without their packages.
func distinct(modules []block, classes []string) bool {
	for _, c := range classes {
		for _, b := range modules {
			if b.class != c && b.short() == c[strings.LastIndexByte(c, '.')+1:] {
				return false
			}
		}
	}
	return true
}

// mostClasses bounds the choices of byClass.
const mostClasses = 4

// classesOf lists the classes of modules, each once.
func classesOf(blocks []block) (out []string) {
	for _, b := range blocks {
		if !slices.Contains(out, b.class) {
			out = append(out, b.class)
		}
	}
	return out
}

// megatronWays lists Megatron's recompute methods: block, the first n layers of
// a stack, and uniform, all of it in runs of n.
func megatronWays(a *anatomy) ([]way, error) {
	for _, b := range a.blocks {
		if b.list != a.blocks[0].list {
			return nil, fmt.Errorf("it recomputes layers of one stack, and the model has %s and %s", a.blocks[0].list, b.list)
		}
	}
	var out []way
	name := func(method string, n int) string {
		return fmt.Sprintf("recompute-method=%s,recompute-num-layers=%d", method, n)
	}
	for i := range a.blocks {
		out = append(out, way{setting: name("block", i+1), method: "block", value: i + 1, blocks: a.blocks[:i+1]})
	}
	for n := 1; n <= len(a.blocks); n++ {
		w := way{setting: name("uniform", n), method: "uniform", value: n, blocks: a.blocks}
		if len(a.blocks)%n != 0 {
			continue // Megatron requires whole runs
		}
		for i := 0; i < len(a.blocks); i += n {
			var s train.Segment
			for _, b := range a.blocks[i : i+n] {
				s.Modules = append(s.Modules, b.name)
			}
			w.segs = append(w.segs, s)
		}
		out = append(out, w)
	}
	return out, nil
}

// none is for a framework whose configuration checkpoints nothing by itself.
func none(*anatomy) ([]way, error) {
	return nil, errors.New("its configuration checkpoints nothing by itself: apply memplan config --to torch in the script, beside it")
}
