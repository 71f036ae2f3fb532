package train

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

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
