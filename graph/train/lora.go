package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/python"
)

// A LoRA selects the linear modules that get low-rank adapters, as PEFT
// attaches them (peft/tuners/lora/layer.py, Linear.forward): the model's own
// parameters are frozen, and a module's result becomes base(x) +
// B(A(dropout(x))) * scale.
type LoRA struct {
	Rank    int64
	Targets []string // last components of module names, or AllLinear alone
	Dropout float64  // probability; 0 draws nothing
}

// AllLinear targets every linear module except the last, the model's head.
const AllLinear = "all-linear"

// An adapter is the LoRA branch of one module.
type adapter struct {
	module  string
	in, out graph.ValueID // argument and result of the module
	a, b    *aten.Tensor  // [rank, in features], [out features, rank]
}

// linear reports whether PEFT's lora.Linear would wrap the module of a call; in
// a file without classes the operator decides.
func linear(class, op string) bool {
	if class == "" {
		return op == "linear.default"
	}
	return python.Linears.Of(class)
}

// adapters finds the modules to adapt, in the order of their calls, and creates
// the adapters' parameters. b.lora is keyed by the module's last call.
func (b *builder) adapters() error {
	lo := b.opt.LoRA
	if lo == nil {
		return nil
	}
	var mods []string
	at := map[string][2]int{}
	var wrong string
	for i := range b.l.Graph.Nodes {
		m := b.l.Graph.Nodes[i].Module
		if !lo.targets(m) {
			continue
		}
		if !linear(b.l.Classes[i], b.l.Graph.Nodes[i].Op) {
			if !slices.Contains(lo.Targets, AllLinear) && wrong == "" {
				wrong = m
			}
			continue
		}
		r, seen := at[m]
		if !seen {
			mods = append(mods, m)
			r[0] = i
		}
		r[1] = i + 1
		at[m] = r
	}
	if slices.Contains(lo.Targets, AllLinear) && len(mods) > 0 {
		mods = mods[:len(mods)-1]
	}
	if len(mods) == 0 {
		if wrong != "" {
			return fmt.Errorf("lora: module %s is not linear: only Linear and Conv1D modules take adapters here", wrong)
		}
		if slices.Contains(lo.Targets, AllLinear) {
			return fmt.Errorf("lora: %s: the file shows no linear module besides the last", AllLinear)
		}
		return fmt.Errorf("lora: no linear module is called %s", strings.Join(lo.Targets, " or "))
	}
	b.lora = map[int]*adapter{}
	for _, m := range mods {
		r := at[m]
		a, err := b.adapter(m, r[0], r[1])
		if err != nil && slices.Contains(lo.Targets, AllLinear) {
			b.e.Warn("lora-skipped", err.Error())
			continue
		}
		if err != nil {
			return err
		}
		b.lora[r[1]-1] = a
	}
	return nil
}

// targets reports whether a module gets an adapter.
func (l *LoRA) targets(module string) bool {
	return slices.ContainsFunc(l.Targets, func(t string) bool {
		return t == AllLinear || module == t || strings.HasSuffix(module, "."+t)
	})
}

// adapter makes the adapter of the module whose calls are [lo, hi).
func (b *builder) adapter(m string, lo, hi int) (*adapter, error) {
	g := b.l.Graph
	a := &adapter{module: m, in: graph.NoValue, out: g.Nodes[hi-1].Outputs[0]}
	for _, id := range g.Nodes[lo].Inputs {
		if v := &g.Values[id]; v.Kind != graph.Initializer && (v.Def < 0 || int(v.Def) < lo) {
			a.in = id
			break
		}
	}
	if a.in == graph.NoValue || a.out == graph.NoValue {
		return nil, fmt.Errorf("lora: module %s: its input is not in the graph", m)
	}
	features := func(id graph.ValueID) (int64, error) {
		s := g.Values[id].Type.Shape
		if len(s) > 0 {
			if n, ok := s[len(s)-1].Int(); ok {
				return n, nil
			}
		}
		return 0, fmt.Errorf("lora: module %s: the number of features of %q is not known", m, g.Values[id].Name)
	}
	in, err := features(a.in)
	if err != nil {
		return nil, err
	}
	out, err := features(a.out)
	if err != nil {
		return nil, err
	}
	param := func(name string, shape ...int64) *aten.Tensor { // PEFT keeps adapters in float32 (autocast_adapter_dtype)
		t := b.e.Resident(m+"."+name+".weight", m, program.Parameters, graph.Float32, shape, b.opt.Train)
		b.params = append(b.params, t)
		b.add(t.Name, t, graph.Float32)
		return t
	}
	a.a, a.b = param("lora_A", b.opt.LoRA.Rank, in), param("lora_B", out, b.opt.LoRA.Rank)
	return a, nil
}

// adapt adds the adapter's branch to the result of call i.
func (b *builder) adapt(i int, env []*aten.Tensor) error {
	a := b.lora[i]
	if a == nil {
		return nil
	}
	var failed error
	run := func(op, over string, args ...aten.Arg) *aten.Tensor {
		if failed != nil {
			return nil
		}
		out, err := b.e.Run(&aten.Call{Index: int32(i), Op: op, Over: over, Name: op, Module: a.module, Args: args})
		if err != nil {
			failed = fmt.Errorf("lora of %s: %w", a.module, err)
			return nil
		}
		return out[0]
	}
	tensor := func(t *aten.Tensor) aten.Arg { return aten.Arg{Kind: graph.ArgValue, T: t} }
	x, base := env[a.in], env[a.out]
	cast := func(t *aten.Tensor, d string) *aten.Tensor {
		return run("_to_copy", "default", tensor(t), aten.Arg{Name: "dtype", Kind: graph.ArgString, S: d})
	}
	if x.DType != graph.Float32 {
		x = cast(x, "float32")
	}
	if p := b.opt.LoRA.Dropout; p > 0 && b.opt.Train {
		x = run("dropout", "default", tensor(x), aten.Arg{Kind: graph.ArgFloat, F: p}, aten.Arg{Kind: graph.ArgBool, Int: 1})
	}
	y := run("linear", "default", tensor(x), tensor(a.a))
	y = run("linear", "default", tensor(y), tensor(a.b))
	y = run("mul", "Tensor", tensor(y), aten.Arg{Kind: graph.ArgFloat, F: 2})
	y = run("add", "Tensor", tensor(base), tensor(y))
	if failed == nil && y.DType != base.DType {
		y = cast(y, base.DType.String())
	}
	env[a.out] = y
	return failed
}
