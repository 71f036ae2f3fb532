package shard

import (
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
		return t, errors.New("the file shows no linear modules one of which computes from the outputs of others alone: say which are split by outputs and by inputs")
	}
	return t, nil
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
	w := &walker{b: b, weights: map[program.StorageID]string{}, maker: map[program.StorageID]*program.Node{}, at: map[program.StorageID]*source{}}
	for _, p := range b.Params {
		if w.weights[p.Tensor.Storage] = ""; len(p.Tensor.Shape) == 2 && strings.HasSuffix(p.Name, ".weight") {
			w.weights[p.Tensor.Storage] = module(p.Name)
		}
	}
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
