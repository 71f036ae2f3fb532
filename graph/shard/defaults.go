package shard

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/python"
	"github.com/memplan/memplan/graph/train"
)

// across are operators that need the whole dim that tensor parallelism splits.
var across = []string{"mean", "pow", "var", "var_mean", "sum", "embedding", "convolution", "cudnn_convolution", "native_layer_norm", "native_group_norm", "batch_norm", "rms_norm", "_fused_rms_norm"}

// A linear is a linear module as it runs.
type linear struct {
	module string
	from   []*linear // sources of its input, through operators that work on each part alone
	split  int       // byOutputs, byInputs or whole
}

const (
	whole = iota
	byOutputs
	byInputs
)

// DefaultTP finds the linear modules that tensor parallelism splits without
// communication between them: one whose input is computed from the outputs of
// others alone, element by element or head by head, is split by its inputs and those
// by their outputs. In a transformer block these are query, key and value with the
// projection after attention, and the MLP's first layers with its last.
func DefaultTP(b *train.Build) (t TP, err error) {
	list := linears(b)
	for _, p := range list {
		if p.split != whole || len(p.from) == 0 || slices.ContainsFunc(p.from, func(f *linear) bool { return f.split == byInputs }) {
			continue
		}
		p.split = byInputs
		for _, f := range p.from {
			f.split = byOutputs
		}
	}
	if t.Colwise, t.Rowwise = patterns(list, byOutputs), patterns(list, byInputs); len(t.Rowwise) == 0 {
		return t, errors.New("the file shows no linear modules one of which computes from the outputs of others alone" + instead(b))
	}
	return t, nil
}

// instead says what else can be split of a step without modules that DefaultTP finds.
func instead(b *train.Build) (text string) {
	if raise := others(b); len(raise) > 0 {
		var names, classes []string
		for _, x := range raise {
			if names = append(names, x[0]); !slices.Contains(classes, x[1]) {
				classes = append(classes, x[1])
			}
		}
		text = fmt.Sprintf(": ColwiseParallel and RowwiseParallel take nn.Linear and nn.Embedding, and raise for %s (%s); put nn.Linear in their place and export again", strings.Join(classes, ", "), few(names))
	}
	if head := Head(b); head != "" {
		return text + fmt.Sprintf("; to split the last one with its loss alone give --tp-loss --tp-colwise %s", head)
	}
	return text + "; tensor parallelism has nothing to split here"
}

// numbers matches numeric parts of a module's name.
var numbers = regexp.MustCompile(`\.[0-9]+(\.|$)`)

// patterns returns the names of the modules with that split, with stars for
// numbers if all modules of such names have it.
func patterns(list []*linear, split int) (out []string) {
	starred := func(p *linear) string { return numbers.ReplaceAllString(p.module, ".*$1") }
	mixed := map[string]bool{}
	for _, p := range list {
		if p.split != split {
			mixed[starred(p)] = true
		}
	}
	for _, p := range list {
		name := starred(p)
		if mixed[name] {
			name = p.module
		}
		if p.split == split && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// linears returns the linear modules of the first forward, in order.
func linears(b *train.Build) (out []*linear) {
	w := newWalker(b)
	for i := range b.Nodes {
		n := &b.Nodes[i]
		if n.Phase > program.Forward {
			break
		}
		for _, ev := range n.Events {
			if !ev.Free {
				w.maker[ev.Storage] = n
			}
		}
		if p := w.linear(n); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// A source is the origin of a tensor's values.
type source struct {
	linears []*linear
	whole   bool // other sources, or all of a dim that would be split
}

type walker struct {
	b       *train.Build
	weights map[program.StorageID]string // parameters, with the module of a matrix
	maker   map[program.StorageID]*program.Node
	at      map[program.StorageID]*source
}

func newWalker(b *train.Build) *walker {
	w := &walker{b: b, weights: map[program.StorageID]string{}, maker: map[program.StorageID]*program.Node{}, at: map[program.StorageID]*source{}}
	for _, p := range b.Params {
		if w.weights[p.Tensor.Storage] = ""; len(p.Tensor.Shape) == 2 && strings.HasSuffix(p.Name, ".weight") {
			w.weights[p.Tensor.Storage] = module(p.Name)
		}
	}
	return w
}

// linear returns the module that a node runs, or nil; the node's result becomes
// its output.
func (w *walker) linear(n *program.Node) *linear {
	if n.Phase != program.Forward || !slices.Contains(products, n.Does()) {
		return nil
	}
	var p *linear
	for _, t := range n.In {
		if m := w.weights[t.Storage]; m != "" && w.splittable(n) {
			p = &linear{module: m}
		}
	}
	if p == nil {
		return nil
	}
	s := &source{}
	for _, t := range n.In {
		if _, param := w.weights[t.Storage]; !param {
			s.add(w.source(t.Storage))
		}
	}
	if !s.whole {
		p.from = s.linears
	}
	for _, t := range n.Out {
		w.at[t.Storage] = &source{linears: []*linear{p}}
	}
	return p
}

// splittable reports whether PyTorch can split the module of a node, as far as the
// file shows.
func (w *walker) splittable(n *program.Node) bool {
	if c := w.b.Lifted.Classes; n.Call >= 0 && int(n.Call) < len(c) && c[n.Call] != "" {
		return python.Splits.Of(c[n.Call])
	}
	return true
}

func (s *source) add(x *source) {
	s.whole = s.whole || x.whole
	for _, p := range x.linears {
		if !slices.Contains(s.linears, p) {
			s.linears = append(s.linears, p)
		}
	}
}

// source returns the origin of a storage of the forward pass.
func (w *walker) source(id program.StorageID) *source {
	if s := w.at[id]; s != nil {
		return s
	}
	s := &source{}
	w.at[id] = s
	n := w.maker[id]
	if n == nil { // an input or a buffer
		return s
	}
	if slices.Contains(across, n.Does()) || slices.Contains(across, n.Op) {
		s.whole = true
		return s
	}
	for _, t := range n.In {
		if _, param := w.weights[t.Storage]; !param && t.Storage != id && !s.whole {
			s.add(w.source(t.Storage))
		}
	}
	return s
}

// others are the modules of products that PyTorch does not split, with their classes, sorted.
func others(b *train.Build) (out [][2]string) {
	w := newWalker(b)
	for i := range b.Nodes {
		n := &b.Nodes[i]
		if n.Phase != program.Forward || !slices.Contains(products, n.Does()) || w.splittable(n) {
			continue
		}
		for _, v := range n.In {
			x := [2]string{w.weights[v.Storage], b.Lifted.Classes[n.Call]}
			if x[0] != "" && !slices.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	slices.SortFunc(out, func(x, y [2]string) int { return cmp.Compare(x[0], y[0]) })
	return out
}

// few writes names with stars for their numbers, each once, and the first of them alone where there are many.
func few(names []string) string {
	const most = 6
	all := starred(names, func(string) bool { return false })
	if more := len(all) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), more)
	}
	return strings.Join(all, ", ")
}

// named returns an error for a pattern of modules to split that names none that PyTorch splits.
func (o TP) named(b *train.Build) error {
	var linear []string
	for _, p := range linears(b) {
		linear = append(linear, p.module)
	}
	raise := others(b)
	for _, pattern := range slices.Concat(o.Colwise, o.Rowwise) {
		some := false
		for _, p := range b.Params {
			m := module(p.Name)
			if !matches([]string{pattern}, m) {
				continue
			}
			some = true
			at := slices.IndexFunc(raise, func(x [2]string) bool { return x[0] == m })
			switch {
			case at >= 0:
				return fmt.Errorf("%s names %s, of class %s, for which PyTorch's ColwiseParallel and RowwiseParallel raise: they take nn.Linear and nn.Embedding; put an nn.Linear in its place and export again", pattern, m, raise[at][1])
			case len(linear) > 0 && !slices.Contains(linear, m):
				return fmt.Errorf("%s names %s, which is no linear module: those of the file are %s", pattern, m, few(linear))
			}
		}
		switch {
		case some:
		case len(linear) > 0:
			return fmt.Errorf("no module with parameters matches %s; the file's linear modules that PyTorch splits are %s", pattern, few(linear))
		default:
			return fmt.Errorf("no module with parameters matches %s", pattern)
		}
	}
	return nil
}

// Even splits a list of modules into stages of equal length, and returns the first
// module of each stage but the first.
func Even(modules []string, stages int) (out []string, err error) {
	if len(modules) < stages {
		return nil, fmt.Errorf("the model repeats %d blocks, too few for %d stages", len(modules), stages)
	}
	for i := 1; i < stages; i++ {
		out = append(out, modules[i*len(modules)/stages])
	}
	return out, nil
}
