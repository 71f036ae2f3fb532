package train

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// FindExperts finds the layers of experts in a bound graph, in order: modules that own matrices [E, in, out] of which
// a router's choice picks some, and lists of modules alike that are called with one value and whose results
// are summed by what a topk chose. Patterns, if any, say by which names the modules go.
func FindExperts(l *lift.Lifted, patterns []string) ([]ExpertSite, error) {
	if l.Recording != nil {
		return nil, fmt.Errorf("a capture shows the calls of the run that it was made of: give the model's export as ONNX")
	}
	f := &expertFinder{l: l, g: l.Graph}
	f.readers()
	var out []ExpertSite
	var refused error
	for _, c := range append(f.fused(), f.lists()...) {
		ok, err := named(patterns, c.Module)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if err := c.find(); err != nil {
			if len(patterns) > 0 || c.sure {
				refused = fmt.Errorf("experts %s: %w", c.Module, err)
			}
			continue
		}
		out = append(out, c.ExpertSite)
	}
	slices.SortStableFunc(out, func(a, b ExpertSite) int { return a.first - b.first })
	switch {
	case refused != nil:
		return nil, refused
	case len(out) == 0 && len(patterns) > 0:
		return nil, fmt.Errorf("%s (* is one part of a name): no module of that name has matrices [experts, in, out] of which numbers pick some, or is a list of modules with parameters of the same shapes", strings.Join(patterns, " or "))
	case len(out) == 0 && l.Source != lift.Metadata:
		return nil, errors.New("the file shows no experts: it was optimised after export, or has no metadata, and parameters have lost their names: export it with torch.onnx.export(..., dynamo=True, optimize=False)")
	case len(out) == 0:
		return nil, errors.New("the file shows no experts, neither matrices [experts, in, out] of which a router's topk picks some (transformers' batched_mm) nor lists of modules alike whose results on the same tokens a topk chooses")
	}
	return out, nil
}

// named reports whether a module's name matches one of the patterns, or there are none.
func named(patterns []string, module string) (bool, error) {
	for _, p := range patterns {
		if ok, err := path.Match(strings.ReplaceAll(p, ".", "/"), strings.ReplaceAll(module, ".", "/")); err != nil || ok {
			return ok, err
		}
	}
	return len(patterns) == 0, nil
}

type expertFinder struct {
	l    *lift.Lifted
	g    *graph.Graph
	uses [][]int // by value, the calls that read it
}

// readers finds which calls read each value.
func (f *expertFinder) readers() {
	f.uses = make([][]int, len(f.g.Values))
	for i := range f.g.Nodes {
		for _, id := range f.g.Nodes[i].Inputs {
			if id >= 0 {
				f.uses[id] = append(f.uses[id], i)
			}
		}
	}
}

// A candidate is a module that may be a layer of experts.
type candidate struct {
	ExpertSite
	*expertFinder
	sure   bool // it picks matrices by numbers: nothing else does
	find   func() error
	owners []string // of a list: the names of its modules, by number
}

// static are the dims of a value, nil where they are not known.
func static(g *graph.Graph, id graph.ValueID) []int64 {
	s, _ := g.Values[id].Type.Shape.Static()
	return s
}

// fused lists the modules that own matrices [E, in, out] of which calls pick some by one list of numbers.
func (f *expertFinder) fused() (out []*candidate) {
	at := map[string]*candidate{}
	for i := range f.g.Nodes {
		w := f.picked(i)
		if w < 0 || len(static(f.g, w)) != 3 {
			continue
		}
		m := parent(f.g.Values[w].Name)
		if at[m] != nil || m == "" {
			continue
		}
		c := &candidate{ExpertSite: ExpertSite{Module: m, Experts: static(f.g, w)[0]}, expertFinder: f, sure: true}
		c.first = -1
		c.find = c.findFused
		at[m], out = c, append(out, c)
	}
	if len(out) == 0 {
		return nil
	}
	for i := range f.g.Nodes {
		for m := f.g.Nodes[i].Module; m != ""; m = parent(m) {
			if c := at[m]; c != nil {
				if c.first < 0 {
					c.first = i
				}
				c.last = i
			}
		}
	}
	for i := range f.g.Values {
		if f.l.Roles[i] != lift.Parameter {
			continue
		}
		for m := parent(f.g.Values[i].Name); m != ""; m = parent(m) {
			if c := at[m]; c != nil {
				c.params = append(c.params, graph.ValueID(i))
			}
		}
	}
	return out
}

// picked is the parameter of which a call picks some by one list of numbers along the first dim, or -1.
func (f *expertFinder) picked(i int) graph.ValueID {
	n := &f.g.Nodes[i]
	if op, _, _ := strings.Cut(n.Op, "."); op != "index" || len(n.Args) < 2 || n.Args[0].Kind != graph.ArgValue || n.Args[1].Kind != graph.ArgList || len(n.Args[1].List) != 1 {
		return graph.NoValue
	}
	w := n.Args[0].Value
	if f.l.Roles[w] != lift.Parameter || n.Args[1].List[0].Kind != graph.ArgValue || f.g.Values[n.Args[1].List[0].Value].Type.Elem.IsFloat() {
		return graph.NoValue
	}
	return w
}

// divided returns an error for a fused layer with parameters that do not have the experts as their first dim.
func (c *candidate) divided() error {
	for _, id := range c.params {
		if s := static(c.g, id); len(s) == 0 || s[0] != c.Experts {
			return fmt.Errorf("its parameter %s is not of %d experts", c.g.Values[id].Name, c.Experts)
		}
	}
	return nil
}

// span returns an error if other modules' calls stand between the first and the last call of the module.
func (c *candidate) span() error {
	if c.first < 0 {
		return errors.New("no call is the module's own")
	}
	for i := c.first; i <= c.last; i++ {
		if !Within(c.g.Nodes[i].Module, c.Module) {
			return fmt.Errorf("call %s of another module stands between its own", c.g.Nodes[i].Name)
		}
	}
	return nil
}

// findFused follows the rows through the calls of a fused layer.
func (c *candidate) findFused() error {
	if err := c.divided(); err != nil {
		return err
	}
	if err := c.span(); err != nil {
		return err
	}
	if err := c.arguments(); err != nil {
		return err
	}
	if err := c.returned(); err != nil {
		return err
	}
	c.gone = map[int]bool{}
	for i := c.first; i <= c.last; i++ {
		c.gone[i] = true
	}
	return c.follow()
}

// arguments finds the tokens [T, D], the numbers of their experts [T, K] and their scores [T, K].
func (c *candidate) arguments() error {
	c.x, c.index, c.scores = graph.NoValue, graph.NoValue, graph.NoValue
	var floats []graph.ValueID
	for i := c.first; i <= c.last; i++ {
		for _, id := range c.g.Nodes[i].Inputs {
			if id < 0 {
				continue
			}
			v := &c.g.Values[id]
			switch {
			case v.Kind == graph.Initializer || int(v.Def) >= c.first || slices.Contains(floats, id) || id == c.index || len(static(c.g, id)) == 0:
			case v.Type.Elem.IsFloat():
				floats = append(floats, id)
			case c.index >= 0:
				return fmt.Errorf("it reads the numbers %s and %s", c.g.Values[c.index].Name, v.Name)
			default:
				c.index = id
			}
		}
	}
	if c.index < 0 || len(floats) != 2 || len(static(c.g, c.index)) != 2 {
		return fmt.Errorf("want it called with tokens, the numbers of their experts, [tokens, K], and their scores: it reads %d tensors beside its parameters", len(floats)+1)
	}
	for _, id := range floats {
		if slices.Equal(static(c.g, id), static(c.g, c.index)) {
			c.scores = id
		} else {
			c.x = id
		}
	}
	if s := static(c.g, c.index); c.x < 0 || c.scores < 0 || len(static(c.g, c.x)) != 2 || static(c.g, c.x)[0] != s[0] {
		return fmt.Errorf("its tokens %v, their experts' numbers %v and scores do not fit each other", static(c.g, c.x), s)
	}
	c.Best = static(c.g, c.index)[1]
	return nil
}

// returned finds what the layer returns: the one value that others read.
func (c *candidate) returned() error {
	c.out = graph.NoValue
	for i := c.first; i <= c.last; i++ {
		for _, id := range c.g.Nodes[i].Outputs {
			if id < 0 || !slices.ContainsFunc(c.uses[id], func(u int) bool { return u > c.last }) && !slices.Contains(c.g.Outputs, id) {
				continue
			}
			if c.out >= 0 {
				return fmt.Errorf("it returns both %s and %s", c.g.Values[c.out].Name, c.g.Values[id].Name)
			}
			c.out = id
		}
	}
	if c.out < 0 || !slices.Equal(static(c.g, c.out), static(c.g, c.x)) {
		return fmt.Errorf("it does not return a tensor of its tokens' shape")
	}
	return nil
}

// What a value in a fused layer is.
type expertRole uint8

const (
	ofNone    expertRole = iota
	ofRows               // a row for each token and expert
	ofColumn             // the same with a dim of 1 beside
	ofChoice             // experts' matrices, picked for each row
	ofNumbers            // the numbers of experts
	ofScores             // their scores
)

// follow makes steps of the calls on the rows, up to where scores multiply them.
func (c *candidate) follow() error {
	role := map[graph.ValueID]expertRole{c.index: ofNumbers, c.scores: ofScores}
	same := map[graph.ValueID]graph.ValueID{} // rows, by what shows them with a dim of 1
	c.steps, c.input, c.result = []expertStep{}, graph.NoValue, graph.NoValue
	rows := static(c.g, c.x)[0] * c.Best
	for i := c.first; i <= c.last; i++ {
		n := &c.g.Nodes[i]
		if len(n.Outputs) == 0 || n.Outputs[0] < 0 {
			return fmt.Errorf("its call %s has no result", n.Name)
		}
		op, _, _ := strings.Cut(n.Op, ".")
		var has [ofScores + 1]graph.ValueID
		for k := range has {
			has[k] = graph.NoValue
		}
		for _, id := range n.Inputs {
			if id >= 0 {
				has[role[id]] = id
			}
		}
		out := n.Outputs[0]
		set := func(r expertRole) {
			for _, o := range n.Outputs {
				if o >= 0 {
					role[o] = r
				}
			}
		}
		switch {
		case slices.Contains(n.Inputs, c.x):
			if s := static(c.g, out); c.input >= 0 || len(s) != 2 || s[0] != rows {
				return fmt.Errorf("call %s on its tokens does not make a row for each expert of each", n.Name)
			}
			c.input = out
			set(ofRows)
		case c.picked(i) >= 0 && len(static(c.g, c.picked(i))) > 2:
			role[out] = ofChoice
			same[out] = c.picked(i)
		case c.picked(i) >= 0:
			c.steps = append(c.steps, expertStep{call: i, numbers: n.Args[1].List[0].Value, weight: graph.NoValue, rows: graph.NoValue, out: out})
			role[out] = ofRows
		case has[ofRows] >= 0 && has[ofScores] >= 0 && op == "mul":
			c.result = has[ofRows]
			return nil
		case has[ofChoice] >= 0 && has[ofColumn] >= 0 && (op == "bmm" || op == "matmul"):
			c.steps = append(c.steps, expertStep{numbers: graph.NoValue, weight: same[has[ofChoice]], rows: same[has[ofColumn]], out: out, swapped: n.Inputs[0] == has[ofChoice]})
			role[out], same[out] = ofColumn, out
		case has[ofRows] >= 0 && op == "unsqueeze", has[ofColumn] >= 0 && op == "squeeze":
			from := has[ofRows]
			if from < 0 {
				from = same[has[ofColumn]]
				role[out] = ofRows
				c.steps = append(c.steps, expertStep{call: -1, numbers: graph.NoValue, weight: graph.NoValue, rows: from, out: out})
			} else {
				role[out], same[out] = ofColumn, from
			}
		case has[ofRows] >= 0 && has[ofScores] < 0 && has[ofChoice] < 0 && has[ofColumn] < 0:
			c.steps = append(c.steps, expertStep{call: i, numbers: graph.NoValue, weight: graph.NoValue, rows: graph.NoValue, out: out})
			set(ofRows)
		case has[ofRows] < 0 && has[ofChoice] < 0 && has[ofColumn] < 0 && has[ofScores] >= 0:
			set(ofScores)
		case has[ofRows] < 0 && has[ofChoice] < 0 && has[ofColumn] < 0 && has[ofNumbers] >= 0:
			set(ofNumbers)
		default:
			return fmt.Errorf("its call %s (%s) is not one that memplan can follow rows through", n.Name, n.Op)
		}
	}
	return fmt.Errorf("its scores multiply no rows")
}
