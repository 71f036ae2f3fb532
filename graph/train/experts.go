package train

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
)

// Experts is expert parallelism: of every layer of experts a rank has its share, and tokens go to
// the ranks of their experts and back (aten.Dispatch).
type Experts struct {
	Ranks, Rank int
	// Sites are the layers, as FindExperts finds them.
	Sites []ExpertSite
	// Imbalance is how many times the rows of a balanced router this rank receives, from 1; more
	// than all that there are is all of them.
	Imbalance float64
}

// An ExpertSite is a layer of experts, and what of the graph is its call.
type ExpertSite struct {
	// Module is the one whose parameters the ranks divide.
	Module  string
	Experts int64 // all of them
	Best    int64 // experts that a token goes to

	first, last      int             // calls that the dispatch stands in place of
	x, index, scores graph.ValueID   // tokens, and for each the numbers of its experts and their scores
	out              graph.ValueID   // what the layer returns
	gone             map[int]bool    // calls from first to last and before, that do not run
	steps            []expertStep    // of fused experts, in order; nil for a list of modules
	input            graph.ValueID   // of steps: the rows, as the file's first call on them names them
	result           graph.ValueID   // of steps: the rows' results
	calls            [][]int         // of a list of modules: the calls of each
	results          []graph.ValueID // likewise, what each returns
	params           []graph.ValueID
}

// An expertStep is a call on the rows of a rank's experts.
type expertStep struct {
	call    int           // of the file, where weight is NoValue
	numbers graph.ValueID // likewise: the experts' numbers by which it picks vectors, or NoValue
	weight  graph.ValueID // experts' matrices, multiplied with the rows
	rows    graph.ValueID
	out     graph.ValueID
	swapped bool // matrices are [out, in]
}

// Rows returns the rows that a rank receives of n that each rank sends: balanced, and the most that there can
// be, which is all if a rank holds as many experts as a token goes to.
func (s *ExpertSite) Rows(ranks int, tokens int64) (balanced, most int64) {
	local := s.Experts / int64(ranks)
	return tokens * s.Best, tokens * int64(ranks) * min(s.Best, local)
}

// Received is the rows between balanced and most that a rank receives at an imbalance.
func Received(balanced, most int64, imbalance float64) int64 {
	if n := math.Ceil(float64(balanced) * max(imbalance, 1)); n < float64(most) {
		return int64(n)
	}
	return most
}

// Tokens returns how many tokens the layer is called with.
func (s *ExpertSite) Tokens(l *lift.Lifted) int64 {
	n, _ := graph.Product(static(l.Graph, s.index))
	return n / max(s.Best, 1)
}

// within reports the number of a list's expert that owns a parameter, -1 for none and for fused ones.
func (s *ExpertSite) within(name string) int {
	rest, ok := strings.CutPrefix(name, s.Module+".")
	if !ok || s.steps != nil {
		return -1
	}
	number, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	if err != nil {
		return -1
	}
	return n
}

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

// lists lists the modules whose children are numbered and own parameters of the same shapes.
func (f *expertFinder) lists() (out []*candidate) {
	type list struct {
		children map[int]map[string][]int64
		order    []int
		calls    map[int][]int
	}
	found, names := map[string]*list{}, []string{}
	for i := range f.g.Values {
		if f.l.Roles[i] != lift.Parameter {
			continue
		}
		parts := strings.Split(f.g.Values[i].Name, ".")
		if len(parts) > deepest {
			continue
		}
		for k := 1; k+1 < len(parts); k++ {
			n, err := strconv.Atoi(parts[k])
			if err != nil || n < 0 {
				continue
			}
			name := strings.Join(parts[:k], ".")
			if found[name] == nil {
				found[name], names = &list{children: map[int]map[string][]int64{}, calls: map[int][]int{}}, append(names, name)
			}
			x := found[name]
			if x.children[n] == nil {
				x.children[n], x.order = map[string][]int64{}, append(x.order, n)
			}
			x.children[n][strings.Join(parts[k+1:], ".")] = static(f.g, graph.ValueID(i))
		}
	}
	for i := range f.g.Nodes {
		for m := f.g.Nodes[i].Module; m != "" && len(found) > 0; m = parent(m) {
			if n, err := strconv.Atoi(m[strings.LastIndexByte(m, '.')+1:]); err == nil && found[parent(m)] != nil {
				found[parent(m)].calls[n] = append(found[parent(m)].calls[n], i)
			}
		}
	}
	for _, name := range names {
		x := found[name]
		slices.Sort(x.order)
		alike := len(x.order) > 1
		for i, n := range x.order {
			alike = alike && n == i && sameShapes(x.children[n], x.children[0])
		}
		if !alike {
			continue
		}
		c := &candidate{ExpertSite: ExpertSite{Module: name, Experts: int64(len(x.order))}, expertFinder: f}
		for n := range x.order {
			c.owners, c.calls = append(c.owners, fmt.Sprint(name, ".", n)), append(c.calls, x.calls[n])
		}
		c.find = c.findList
		out = append(out, c)
	}
	return out
}

func sameShapes(a, b map[string][]int64) bool {
	for name, s := range a {
		if t, ok := b[name]; !ok || !slices.Equal(s, t) {
			return false
		}
	}
	return len(a) == len(b)
}

// findList finds the calls of a list's modules, and the one that completes the sum of their results.
func (c *candidate) findList() error {
	c.results = make([]graph.ValueID, len(c.owners))
	of := map[int]int{} // expert, by call
	c.first = len(c.g.Nodes)
	for e, owner := range c.owners {
		if len(c.calls[e]) == 0 {
			return fmt.Errorf("no call is of %s", owner)
		}
		for _, i := range c.calls[e] {
			of[i] = e
		}
		c.first = min(c.first, c.calls[e][0])
	}
	if err := c.shared(of); err != nil {
		return err
	}
	depends, err := c.completed(of)
	if err != nil {
		return err
	}
	if err := c.routed(of, depends); err != nil {
		return err
	}
	c.leave(of, depends)
	return nil
}

// shared finds the one value that all modules are called with, and what each returns.
func (c *candidate) shared(of map[int]int) error {
	c.x = graph.NoValue
	for e, calls := range c.calls {
		c.results[e] = graph.NoValue
		for _, i := range calls {
			for _, id := range c.g.Nodes[i].Inputs {
				if id < 0 {
					continue
				}
				v := &c.g.Values[id]
				if own, mine := of[int(v.Def)]; v.Kind == graph.Initializer || mine && own == e {
					continue
				}
				if c.x >= 0 && c.x != id {
					return fmt.Errorf("its modules are called with %s and %s", c.g.Values[c.x].Name, v.Name)
				}
				c.x = id
			}
			for _, id := range c.g.Nodes[i].Outputs {
				outside := func(u int) bool { own, mine := of[u]; return !mine || own != e }
				if id < 0 || !slices.ContainsFunc(c.uses[id], outside) {
					continue
				}
				if c.results[e] >= 0 {
					return fmt.Errorf("%s returns several values", c.owners[e])
				}
				c.results[e] = id
			}
		}
		if c.results[e] < 0 || c.x < 0 || !slices.Equal(static(c.g, c.results[e]), static(c.g, c.x)) {
			return fmt.Errorf("%s does not return a tensor of its argument's shape", c.owners[e])
		}
	}
	return nil
}

// completed finds the first call whose result depends on all modules and has their results' shape. It returns the
// calls outside of the modules that depend on one.
func (c *candidate) completed(of map[int]int) (map[int]bool, error) {
	on, depends := map[graph.ValueID]map[int]bool{}, map[int]bool{}
	for i := c.first; i < len(c.g.Nodes); i++ {
		n := &c.g.Nodes[i]
		var sets []map[int]bool
		if e, mine := of[i]; mine {
			sets = append(sets, map[int]bool{e: true})
		}
		for _, id := range n.Inputs {
			if id >= 0 && len(on[id]) > 0 {
				sets = append(sets, on[id])
			}
		}
		all := union(sets)
		if len(all) == 0 {
			continue
		}
		if _, mine := of[i]; !mine {
			depends[i] = true
		}
		for _, id := range n.Outputs {
			if id < 0 {
				continue
			}
			on[id] = all
			if len(all) == len(c.owners) && slices.Equal(static(c.g, id), static(c.g, c.x)) {
				c.out, c.last = id, i
				return depends, nil
			}
		}
	}
	return nil, fmt.Errorf("no call sums its modules' results")
}

// union is the union of sets, one of them where there is no other.
func union(sets []map[int]bool) map[int]bool {
	if len(sets) == 1 {
		return sets[0]
	}
	all := map[int]bool{}
	for _, s := range sets {
		maps.Copy(all, s)
	}
	return all
}

// routed finds the topk whose choice the results are multiplied by.
func (c *candidate) routed(of map[int]int, depends map[int]bool) error {
	seen, todo := map[graph.ValueID]bool{c.x: true}, []graph.ValueID{}
	ask := func(i int) {
		for _, id := range c.g.Nodes[i].Inputs {
			if id >= 0 && !seen[id] {
				seen[id], todo = true, append(todo, id)
			}
		}
	}
	for i := range depends {
		ask(i)
	}
	c.index = graph.NoValue
	var cone []graph.ValueID
	for len(todo) > 0 {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		def := int(c.g.Values[id].Def)
		if _, mine := of[def]; def < 0 || mine || depends[def] {
			continue
		}
		cone = append(cone, id)
		if n := &c.g.Nodes[def]; strings.HasPrefix(n.Op, "topk.") && len(n.Outputs) == 2 {
			if c.index >= 0 && c.index != n.Outputs[1] {
				return fmt.Errorf("more than one topk chooses its modules")
			}
			c.index = n.Outputs[1]
			cone = append(cone, n.Outputs[0])
			continue
		}
		ask(def)
	}
	if c.index < 0 {
		return fmt.Errorf("no topk chooses its modules: every token goes to all")
	}
	shape := static(c.g, c.index)
	c.scores = graph.NoValue
	for _, id := range cone {
		if v := &c.g.Values[id]; v.Type.Elem.IsFloat() && slices.Equal(static(c.g, id), shape) && (c.scores < 0 || v.Def > c.g.Values[c.scores].Def) {
			c.scores = id
		}
	}
	if c.scores < 0 || len(shape) == 0 {
		return fmt.Errorf("its topk's scores are not in the file")
	}
	c.Best = shape[len(shape)-1]
	return nil
}

// leave notes the calls that do not run: those of the modules, those that depend on them, and those that only they read.
func (c *candidate) leave(of map[int]int, depends map[int]bool) {
	c.gone = map[int]bool{}
	for i := range of {
		c.gone[i] = true
	}
	for i := range depends {
		if i <= c.last {
			c.gone[i] = true
		}
	}
	kept := func(id graph.ValueID) bool {
		return id == c.index || id == c.scores || id == c.x || slices.Contains(c.g.Outputs, id) || slices.ContainsFunc(c.uses[id], func(u int) bool { return !c.gone[u] })
	}
	for i := c.last; i >= 0; i-- {
		if outs := c.g.Nodes[i].Outputs; !c.gone[i] && len(outs) > 0 && !slices.ContainsFunc(outs, func(id graph.ValueID) bool { return id >= 0 && (kept(id) || len(c.uses[id]) == 0) }) {
			c.gone[i] = true
		}
	}
}

// A dispatched is a layer of experts that a step runs.
type dispatched struct {
	*ExpertSite
	routing aten.Routing
	prefix  []int64 // dims that count the tokens
}

// dispatches checks that the ranks can share each layer's experts, and finds what each receives.
func (b *builder) dispatches() error {
	x := b.opt.Experts
	if x == nil {
		return nil
	}
	b.sites = map[int]*dispatched{}
	b.left = map[int]bool{}
	for i := range x.Sites {
		s := &x.Sites[i]
		if s.Experts%int64(x.Ranks) != 0 {
			return fmt.Errorf("ep=%d: %s has %d experts, which as many ranks cannot share evenly: give a divisor of %d", x.Ranks, s.Module, s.Experts, s.Experts)
		}
		shape := static(b.l.Graph, s.x)
		if len(shape) < 2 {
			return fmt.Errorf("%s: tokens of shape %v", s.Module, shape)
		}
		d := &dispatched{s, aten.Routing{Ranks: x.Ranks, Experts: s.Experts, Best: s.Best}, shape[:len(shape)-1]}
		balanced, most := s.Rows(x.Ranks, s.Tokens(b.l))
		d.routing.Rows = Received(balanced, most, x.Imbalance)
		if err := b.uncut(s); err != nil {
			return err
		}
		b.sites[s.last] = d
		for call := range s.gone {
			b.left[call] = true
		}
	}
	return nil
}

// whole lists the calls that each layer of experts stands in place of.
func (b *builder) whole() (out [][2]int) {
	if b.opt.Experts == nil {
		return nil
	}
	for _, s := range b.opt.Experts.Sites {
		out = append(out, [2]int{s.first, s.last + 1})
	}
	return out
}

// uncut returns an error for checkpoints that begin or end within a layer of experts: it runs as a whole.
func (b *builder) uncut(s *ExpertSite) error {
	for i, r := range b.ranges {
		if r[0] <= s.last && r[1] > s.first && (r[0] > s.first || r[1] <= s.last) {
			return fmt.Errorf("checkpoint %v: it begins or ends within the experts %s, which run as a whole where ranks share them: checkpoint the module around them, or none of them", b.opt.Segments[i].Modules, s.Module)
		}
	}
	return nil
}

// share returns the shape that this rank has of a parameter, nil for none.
func (b *builder) share(id graph.ValueID, shape []int64) []int64 {
	x := b.opt.Experts
	if x == nil {
		return shape
	}
	for i := range x.Sites {
		s := &x.Sites[i]
		local := int(s.Experts) / x.Ranks
		if n := s.within(b.l.Graph.Values[id].Name); n >= 0 && (n < x.Rank*local || n >= (x.Rank+1)*local) {
			return nil
		}
		if slices.Contains(s.params, id) {
			out := slices.Clone(shape)
			out[0] = int64(local)
			return out
		}
	}
	return shape
}

// dispatch runs a layer of experts in place of its calls; i is the last of them.
func (b *builder) dispatch(i int, s *dispatched, env []*aten.Tensor) error {
	x, index, scores := env[s.x], env[s.index], env[s.scores]
	if x == nil || index == nil || scores == nil {
		return fmt.Errorf("experts %s: a checkpoint begins or ends between the router and its experts: take in both, or neither", s.Module)
	}
	before := &aten.Call{Index: int32(i), Name: "dispatch", Module: parent(s.Module)}
	inside := &aten.Call{Index: int32(i), Name: "experts", Module: s.Module}
	var d *aten.Dispatch
	var rows *aten.Tensor
	width := x.Shape[len(x.Shape)-1]
	err := b.e.On(before, func() {
		tokens := b.e.Reshape(x, []int64{x.Numel() / width, width})
		d = b.e.NewDispatch(s.routing, tokens, b.e.Reshape(index, []int64{index.Numel() / s.Best, s.Best}), b.e.Reshape(scores, []int64{index.Numel() / s.Best, s.Best}))
	})
	if err == nil {
		err = b.e.On(inside, func() { rows = d.Send() })
	}
	if err != nil {
		return fmt.Errorf("experts %s: %w", s.Module, err)
	}
	inner := slices.Clone(env)
	var out *aten.Tensor
	if s.steps != nil {
		out, err = b.fusedExperts(s, d, rows, inner, inside)
	} else {
		out, err = b.listedExperts(s, d, inner, inside)
	}
	if err != nil {
		return fmt.Errorf("experts %s: %w", s.Module, err)
	}
	var back *aten.Tensor
	if err = b.e.On(inside, func() { back = d.Return(out) }); err == nil {
		err = b.e.On(before, func() { env[s.out] = b.e.Reshape(d.Sum(back), x.Shape) })
	}
	if err != nil {
		return fmt.Errorf("experts %s: %w", s.Module, err)
	}
	b.e.Hold(x, index, scores)
	for k := s.first; k <= i; k++ {
		if s.gone[k] {
			for _, id := range b.holds[k] {
				b.e.Hold(env[id])
			}
		}
	}
	return nil
}

// fusedExperts runs the calls of a fused layer on the rows of this rank's experts.
func (b *builder) fusedExperts(s *dispatched, d *aten.Dispatch, rows *aten.Tensor, env []*aten.Tensor, c *aten.Call) (*aten.Tensor, error) {
	n := static(b.l.Graph, s.input)[0]
	b.rows = &reshaped{from: []int64{n}, to: rows.Shape[0]}
	defer func() { b.rows = nil }()
	env[s.input] = rows
	var offsets *aten.Tensor
	if err := b.e.On(c, func() {
		for _, id := range s.params { // before the products: their gradients are added up after all of them
			env[id] = b.e.Local(env[id])
		}
		offsets = d.Offsets()
	}); err != nil {
		return nil, err
	}
	for _, st := range s.steps {
		switch {
		case st.weight >= 0:
			call := *c
			call.Name = b.l.Graph.Values[st.out].Name
			if err := b.e.On(&call, func() { env[st.out] = b.e.GroupedProduct(env[st.rows], env[st.weight], offsets, st.swapped) }); err != nil {
				return nil, err
			}
		case st.call < 0:
			env[st.out] = env[st.rows]
		default:
			if st.numbers >= 0 && env[st.numbers] == nil {
				if err := b.e.On(c, func() { env[st.numbers] = d.Numbers() }); err != nil {
					return nil, err
				}
			}
			if err := b.call(st.call, env); err != nil {
				return nil, err
			}
		}
	}
	b.e.Hold(offsets)
	return env[s.result], nil
}

// listedExperts runs each of this rank's modules on its rows.
func (b *builder) listedExperts(s *dispatched, d *aten.Dispatch, env []*aten.Tensor, c *aten.Call) (*aten.Tensor, error) {
	var parts, results []*aten.Tensor
	if err := b.e.On(c, func() { parts = d.Parts() }); err != nil {
		return nil, err
	}
	defer func() { b.rows = nil }()
	local := int(s.routing.Local())
	for k, part := range parts {
		e := b.opt.Experts.Rank*local + k
		b.rows = &reshaped{from: s.prefix, to: part.Shape[0]}
		own := slices.Clone(env)
		own[s.x] = part
		for _, i := range s.calls[e] {
			if err := b.call(i, own); err != nil {
				return nil, err
			}
		}
		results = append(results, own[s.results[e]])
	}
	b.rows = nil
	var out *aten.Tensor
	err := b.e.On(c, func() { out = d.Join(results) })
	return out, err
}

// A reshaped says how shapes of the file differ in a call: the leading dims are others.
type reshaped struct {
	from []int64
	to   int64
}

// shape returns a shape as it is in such a call.
func (r *reshaped) shape(s []int64) []int64 {
	if r == nil || len(s) < len(r.from) || !slices.Equal(s[:len(r.from)], r.from) {
		return s
	}
	return append([]int64{r.to}, s[len(r.from):]...)
}
