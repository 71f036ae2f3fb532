package checkpointsel

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// A Composer puts steps together from parts of steps that were built: what a module runs,
// forward and backward, does not depend on the choice for others, and equal blocks run the
// same. A composed step allocates and frees what the built one would, in the same order; it
// knows no kernels and no names, and serves to find out whether a choice fits. What is adopted
// is to be built.
//
//	built      embed │ A₀ keep x │ A₁ keep x │ A₂ │ loss │ ...
//	composed   embed │ A₀ keep x │ A₁        │ A₂ │ loss │ ...
//
// The parts of a step are its groups, each a segment or a unit that none covers, and what runs
// outside of all. Its nodes refer to storages of other groups by the call that makes them.
type Composer struct {
	s       *Selective
	class   []int // of each unit: equal ones run the same calls
	unitOf  []int
	parts   map[string]*groupSteps
	others  []program.Storage // what no node makes: they come first, in the order of the build
	setup   []program.Event
	carried []far // in the order that ZeroGrad frees them
	scratch scratch
}

// A groupSteps is what one group runs.
type groupSteps struct {
	nodes [runs][]groupNode
	ahead []program.StorageID // released by the node before its backward
	made  []program.Storage   // by its nodes, in order
	at    map[local]int32     // index in made
	far   []far               // storages of other groups
}

// The runs of a group: forward and backward, neither of which is entered twice, and for
// what no call runs what precedes the forward pass, the loss, and what follows.
const (
	forthRun = iota
	backRun
	endRun
	runs
)

// A groupNode is a node of a group. Storages are indices of groupSteps.made or, negative, the
// complements of indices of groupSteps.far.
type groupNode struct {
	phase        program.Phase
	only         program.When
	call         int32 // from the group's first; -1: none
	events       []program.Event
	reads, holds []program.StorageID
}

// A local names a storage within its group: the nth that a call makes when it runs
// for the first time, again, or backward.
type local struct {
	call int32 // from the group's first
	kind int32
	nth  int32
}

// The kinds of runs of a call; nodes of no call belong to the one before.
const (
	forthKind = iota
	againKind
	backKind
	besideKind
	besideBackKind
	lastingKind
)

// A far is a storage of another group: of the unit before (-1) or after it (1), if near, or
// of any other; unit fixed: the nth of those that no node makes.
type far struct {
	unit  int
	near  bool
	local // call: from the unit's first
}

const fixed = -1

// scratch is what one composition after the other uses.
type scratch struct {
	p      program.Program
	events []program.Event
	ids    []program.StorageID
	refs   []program.StorageID
}

// A group is units [lo, hi) of a step: a segment, or one unit outside of all. The last
// group, of no units, is what no call runs.
type group struct {
	lo, hi int
	seg    *train.Segment
	key    string
}

// NewComposer takes the parts of the step without segments; nil: its parts mix.
func NewComposer(s *Selective) *Composer {
	b := s.m.b
	if b.Micros > 1 || b.Overlapping {
		return nil
	}
	c := &Composer{s: s, unitOf: s.m.unitOf, parts: map[string]*groupSteps{}, class: make([]int, len(s.Units))}
	for i := range c.class {
		c.class[i] = -1 - i // all differ
	}
	groups, ok := c.groups(nil)
	if !ok {
		return nil
	}
	w := c.cut(b, groups)
	if w == nil {
		return nil
	}
	for i := range b.Storages {
		if w.of[i] < 0 {
			c.others = append(c.others, b.Storages[i])
		}
	}
	for _, ev := range b.Setup {
		if w.of[ev.Storage] >= 0 {
			return nil
		}
		ev.Storage = w.index[ev.Storage]
		c.setup = append(c.setup, ev)
	}
	for _, id := range b.Carried {
		if w.of[id] < 0 {
			return nil
		}
		c.carried = append(c.carried, w.farOf(id, -1))
	}
	classes := map[string]int{}
	for u := range s.Units {
		text := w.text(u)
		if _, ok := classes[text]; !ok {
			classes[text] = len(classes)
		}
		c.class[u] = classes[text]
	}
	c.Learn(b, nil)
	return c
}

// groups divides the units among segments and what is left; false: a segment is none of
// the problem's.
func (c *Composer) groups(segs []train.Segment) (out []group, ok bool) {
	next := 0
	for u := 0; u < len(c.s.Units); {
		g := group{lo: u, hi: u + 1}
		if next < len(segs) {
			if oi := c.s.find(u, &segs[next]); oi >= 0 {
				g.hi, g.seg = c.s.segs[oi].hi, &segs[next]
				next++
			}
		}
		out = append(out, g)
		u = g.hi
	}
	out = append(out, group{lo: len(c.s.Units), hi: len(c.s.Units)})
	c.name(out)
	return out, next == len(segs)
}

// name sets the groups' keys: their units and what they keep, the units on both sides, and
// whether those are in segments.
func (c *Composer) name(groups []group) {
	side := func(i, u int) string {
		if i < 0 || i >= len(groups)-1 {
			return "end"
		}
		return fmt.Sprint(c.class[u], groups[i].seg != nil)
	}
	for i := range groups {
		g := &groups[i]
		var b strings.Builder
		for u := g.lo; u < g.hi; u++ {
			fmt.Fprint(&b, c.class[u], " ")
		}
		if g.seg != nil {
			fmt.Fprint(&b, g.seg.Save)
		}
		if g.lo == g.hi {
			fmt.Fprint(&b, "rest ", groups[0].seg != nil, i == 0 || groups[i-1].seg != nil)
		} else {
			fmt.Fprint(&b, "|", side(i-1, g.lo-1), "|", side(i+1, g.hi))
		}
		g.key = b.String()
	}
}

// A cutting is a build divided into groups.
type cutting struct {
	c      *Composer
	b      *train.Build
	groups []group
	by     []int32             // group by unit
	nodes  [][]int32           // by group
	of     []int32             // group by storage, -1: no node makes it
	index  []program.StorageID // of each storage in its group, or among what no node makes
	name   []local             // of each storage that a node makes
	made   []int               // by group
	ahead  map[int32]int       // how many of a node's Holds the group that runs next backward releases
	before []int32             // the node before each group's backward, -1: none
	makes  int32               // the segment that makes a library's workspace when it runs again, -1: none
}

// cut divides a build; nil: nodes of one group lie between those of another, or a
// storage is made by none of them.
func (c *Composer) cut(b *train.Build, groups []group) *cutting {
	n, rest := len(b.Storages), int32(len(groups)-1)
	w := &cutting{c: c, b: b, groups: groups, by: make([]int32, len(c.s.Units)), nodes: make([][]int32, len(groups)), of: make([]int32, n), index: make([]program.StorageID, n), name: make([]local, n), made: make([]int, len(groups)), ahead: map[int32]int{}, before: make([]int32, len(groups)), makes: -1}
	for i, g := range groups {
		for u := g.lo; u < g.hi; u++ {
			w.by[u] = int32(i)
		}
	}
	for i := range w.of {
		w.of[i] = -1
	}
	count := map[local]int32{}
	at, call, forth, back := rest, int32(-1), int32(-1), rest
	for i := range b.Nodes {
		nd := &b.Nodes[i]
		kind := int32(besideKind)
		if nd.Phase == program.Backward {
			kind = besideBackKind
		}
		switch {
		case nd.Phase != program.Forward && nd.Phase != program.Backward:
			at, call = rest, -1
		case nd.Call >= 0:
			call, kind = nd.Call, forthKind
			to := w.by[c.unitOf[call]]
			switch {
			case nd.Phase == program.Forward && to < forth, nd.Phase == program.Backward && to > back:
				return nil
			case nd.Phase == program.Forward:
				forth = to
			default:
				back, kind = to, backKind
			}
			if nd.Recompute {
				kind = againKind
			}
			at = to
		}
		w.nodes[at] = append(w.nodes[at], int32(i))
		name := local{call - int32(w.first(at)), kind, 0}
		for _, ev := range nd.Events {
			if ev.Free {
				continue
			}
			key := local{call, kind, 0}
			if b.Storages[ev.Storage].Life == program.State { // made wherever one is first needed
				key.kind = lastingKind
			}
			name.kind, name.nth = key.kind, count[key]
			count[key]++
			w.of[ev.Storage], w.name[ev.Storage] = at, name
			w.index[ev.Storage] = program.StorageID(w.made[at])
			w.made[at]++
			if kind == againKind && b.Storages[ev.Storage].Life == program.State {
				w.makes = max(w.makes, at)
			}
		}
	}
	w.boundaries()
	others := program.StorageID(0)
	for i := range w.of {
		if w.of[i] < 0 {
			w.index[i] = others
			others++
		}
	}
	return w
}

// boundaries finds what a group's backward releases before its first node, as that of the node
// before.
func (w *cutting) boundaries() {
	for g, list := range w.nodes {
		w.before[g] = -1
		for _, i := range list {
			if w.b.Nodes[i].Phase != program.Backward || i == 0 || w.groups[g].lo == w.groups[g].hi {
				continue
			}
			holds := w.b.Nodes[i-1].Holds
			n := 0
			for n < len(holds) && w.of[holds[len(holds)-1-n]] == int32(g) {
				n++
			}
			if n > 0 {
				w.ahead[i-1] = n
			}
			w.before[g] = i - 1
			break
		}
	}
}

// first is the first call of a group; 0 for what no call runs.
func (w *cutting) first(g int32) int {
	if lo := w.groups[g].lo; lo < len(w.c.s.Units) {
		return w.c.s.Units[lo].Lo
	}
	return 0
}

// farOf names a storage for another group.
func (w *cutting) farOf(id program.StorageID, from int32) far {
	g := w.of[id]
	if g < 0 {
		return far{unit: fixed, local: local{nth: int32(w.index[id])}}
	}
	f := far{unit: w.groups[g].lo, local: w.name[id]}
	if f.unit == len(w.c.s.Units) {
		return f
	}
	call := int(f.call) + w.first(g) // from the group's first to the unit's
	f.unit = w.c.unitOf[call]
	f.call = int32(call - w.c.s.Units[f.unit].Lo)
	if from < 0 {
		return f
	}
	switch last := int32(len(w.groups) - 1); {
	case from == last:
	case from > 0 && f.unit == w.groups[from-1].hi-1:
		f.near, f.unit = true, -1
	case from < last-1 && f.unit == w.groups[from+1].lo:
		f.near, f.unit = true, 1
	}
	return f
}

// text says what a unit outside of all segments runs.
func (w *cutting) text(u int) string {
	g := w.by[u]
	p := w.part(g)
	var b strings.Builder
	for _, i := range w.nodes[g] {
		n := &w.b.Nodes[i]
		fmt.Fprint(&b, n.Op, n.Kernel, n.FLOPs, n.Traffic, n.Scratch, n.Unit, ";")
	}
	for _, s := range p.made {
		fmt.Fprint(&b, s.Bytes, s.Life, s.Stream, s.Optional, ";")
	}
	fmt.Fprint(&b, p.nodes, p.far, w.c.s.Units[u].Hi-w.c.s.Units[u].Lo)
	return b.String()
}

// part takes what a group runs.
func (w *cutting) part(g int32) *groupSteps {
	p := &groupSteps{at: map[local]int32{}, made: make([]program.Storage, w.made[g])}
	seen := map[program.StorageID]int{}
	ref := func(id program.StorageID) program.StorageID {
		if w.of[id] == g {
			return w.index[id]
		}
		k, ok := seen[id]
		if !ok {
			k = len(p.far)
			seen[id] = k
			p.far = append(p.far, w.farOf(id, g))
		}
		return program.StorageID(-1 - k)
	}
	lasting := func(ids []program.StorageID) (out []program.StorageID) {
		for _, id := range ids {
			if w.of[id] >= 0 && w.b.Storages[id].Life == program.Step {
				out = append(out, ref(id))
			}
		}
		return out
	}
	if i := w.before[g]; i >= 0 && w.ahead[i] > 0 {
		holds := w.b.Nodes[i].Holds
		p.ahead = lasting(holds[len(holds)-w.ahead[i]:])
	}
	rest := w.groups[g].lo == w.groups[g].hi
	for _, i := range w.nodes[g] {
		n := &w.b.Nodes[i]
		x := groupNode{phase: n.Phase, only: n.Only, call: -1, reads: lasting(n.Reads), holds: lasting(n.Holds[:len(n.Holds)-w.ahead[i]])}
		if n.Call >= 0 {
			x.call = n.Call - int32(w.first(g))
		}
		for _, ev := range n.Events {
			if w.of[ev.Storage] == g && !ev.Free {
				k := w.index[ev.Storage]
				s := w.b.Storages[ev.Storage]
				p.made[k] = program.Storage{Bytes: s.Bytes, Category: s.Category, Life: s.Life, Optional: s.Optional, Stream: s.Stream}
				p.at[w.name[ev.Storage]] = int32(k)
			}
			x.events = append(x.events, program.Event{Storage: ref(ev.Storage), Free: ev.Free})
		}
		run := forthRun
		switch {
		case n.Phase == program.Update:
			run = endRun
		case n.Phase == program.Backward, rest && n.Phase == program.Loss:
			run = backRun
		}
		p.nodes[run] = append(p.nodes[run], x)
	}
	return p
}

// Learn takes the parts of a built step that are not known yet.
func (c *Composer) Learn(b *train.Build, segs []train.Segment) {
	if groups, ok := c.groups(segs); ok {
		c.learn(b, groups)
	}
}

func (c *Composer) learn(b *train.Build, groups []group) {
	var w *cutting
	for i := range groups {
		g := &groups[i]
		if w == nil {
			if c.known(g) {
				continue
			}
			if w = c.cut(b, groups); w == nil {
				return
			}
		}
		if key := g.key + w.workspace(i); c.parts[key] == nil {
			c.parts[key] = w.part(int32(i))
		}
	}
}

// known reports whether no build can teach more of a group.
func (c *Composer) known(g *group) bool {
	if g.seg == nil {
		return c.parts[g.key] != nil
	}
	for _, when := range []string{beforeMade, makes, afterMade} {
		if c.parts[g.key+when] == nil {
			return false
		}
	}
	return true
}

// A Short is a step of which equal blocks are left out, from which a Composer learns as much.
type Short struct {
	Segments []train.Segment
	Skips    []train.Skip
	groups   []group
}

// shortEnough is the share of the calls that is worth the while.
const shortEnough = 0.5

// Shorten leaves out of a choice what lies between two groups that run the same, if nothing in
// it is unknown; nil: that is too little, or the parts outside of all groups are not known.
func (c *Composer) Shorten(segs []train.Segment) *Short {
	groups, ok := c.groups(segs)
	rest := len(groups) - 1
	if !ok || c.parts[groups[rest].key] == nil {
		return nil
	}
	missing := c.missing(groups)
	out := &Short{}
	at := map[string]int{} // place in out.groups
	calls := 0
	for i := range rest {
		g := groups[i]
		if k, again := at[g.key]; again {
			if skip := c.skip(&out.groups[k], &g); skip != nil {
				for _, x := range out.groups[k:] {
					delete(at, x.key)
				}
				out.groups = out.groups[:k]
				out.drop(skip)
			}
		}
		if missing[g.key] { // what lies before the first of these stays
			clear(at)
			delete(missing, g.key)
		}
		at[g.key] = len(out.groups)
		out.groups = append(out.groups, g)
	}
	for i := range out.groups {
		g := &out.groups[i]
		calls += c.s.Units[g.hi-1].Hi - c.s.Units[g.lo].Lo
		if g.seg != nil {
			out.Segments = append(out.Segments, *g.seg)
		}
	}
	if float64(calls) > shortEnough*float64(len(c.unitOf)) {
		return nil
	}
	out.groups = append(out.groups, groups[rest])
	return out
}

// drop adds a skip, in place of those within it.
func (s *Short) drop(skip *train.Skip) {
	s.Skips = slices.DeleteFunc(s.Skips, func(x train.Skip) bool { return x.Lo >= skip.Lo })
	s.Skips = append(s.Skips, *skip)
}

// missing lists the keys of groups whose part is not known.
func (c *Composer) missing(groups []group) map[string]bool {
	out, made := map[string]bool{}, false
	for i := len(groups) - 1; i >= 0; i-- {
		if c.part(&groups[i], &made) == nil {
			out[groups[i].key] = true
		}
	}
	return out
}

// skip leaves out the calls from one group up to another that runs the same: what the latter reads
// of the unit before it is then what the former reads. Nil: it or a later one reads more.
func (c *Composer) skip(from, to *group) *train.Skip {
	units, g := c.s.Units, c.s.m.b.Lifted.Graph
	lo, hi := units[from.lo].Lo, units[to.lo].Lo
	if from.lo == 0 {
		return nil
	}
	out := &train.Skip{Lo: lo, Hi: hi, Same: map[graph.ValueID]graph.ValueID{}}
	before := units[to.lo-1].Lo
	alias := func(id graph.ValueID) bool {
		if id < 0 {
			return true
		}
		def := int(g.Values[id].Def)
		if def < lo || def >= hi {
			return true
		}
		if def < before {
			return false
		}
		twin := def - hi + lo
		for k, o := range g.Nodes[def].Outputs {
			if o == id && twin >= 0 && k < len(g.Nodes[twin].Outputs) {
				out.Same[id] = g.Nodes[twin].Outputs[k]
				return true
			}
		}
		return false
	}
	for i := hi; i < len(g.Nodes); i++ {
		for _, id := range g.Nodes[i].Inputs {
			if !alias(id) {
				return nil
			}
		}
	}
	for _, id := range g.Outputs {
		if id >= 0 && int(g.Values[id].Def) >= lo && int(g.Values[id].Def) < hi {
			return nil
		}
	}
	return out
}

// LearnShort is Learn of a shortened step. What no group runs is not as in the whole one.
func (c *Composer) LearnShort(b *train.Build, s *Short) { c.learn(b, s.groups) }

// A segment that runs again before any other made a library's workspace for backward's thread may
// make it, or do without.
const (
	beforeMade = " before"
	makes      = " makes"
	afterMade  = " after"
)

// workspace says which of these a group is.
func (w *cutting) workspace(g int) string {
	switch {
	case w.groups[g].seg == nil:
		return ""
	case w.makes < int32(g):
		return beforeMade
	case w.makes == int32(g):
		return makes
	}
	return afterMade
}

// part returns what a group runs, nil if it is not known; made is whether there is a workspace.
func (c *Composer) part(g *group, made *bool) *groupSteps {
	switch {
	case g.seg == nil:
		return c.parts[g.key]
	case *made:
		return cmp.Or(c.parts[g.key+afterMade], c.parts[g.key+beforeMade])
	}
	p := c.parts[g.key+makes]
	*made = p != nil
	return cmp.Or(p, c.parts[g.key+beforeMade])
}

// Compose returns the step with segments, valid until the next composition; nil: one of its parts
// is not known.
func (c *Composer) Compose(segs []train.Segment) *program.Program {
	groups, ok := c.groups(segs)
	if !ok {
		return nil
	}
	w := &composition{c: c, groups: groups, parts: make([]*groupSteps, len(groups)), base: make([]int, len(groups)), by: make([]int32, len(c.s.Units))}
	p := &c.scratch.p
	p.Train, p.Micros, p.Setup = true, 1, c.setup
	p.Storages, p.Nodes, p.Carried = append(p.Storages[:0], c.others...), p.Nodes[:0], p.Carried[:0]
	c.scratch.events, c.scratch.ids = c.scratch.events[:0], c.scratch.ids[:0]
	made := false
	for i := len(groups) - 1; i >= 0; i-- {
		if w.parts[i] = c.part(&groups[i], &made); w.parts[i] == nil {
			return nil
		}
	}
	for i, g := range groups {
		for u := g.lo; u < g.hi; u++ {
			w.by[u] = int32(i)
		}
		w.base[i] = len(p.Storages)
		p.Storages = append(p.Storages, w.parts[i].made...)
	}
	rest := len(groups) - 1
	ok = w.run(rest, forthRun)
	for i := range rest {
		ok = ok && w.run(i, forthRun)
	}
	ok = ok && w.run(rest, backRun)
	for i := rest - 1; i >= 0; i-- {
		ok = ok && w.run(i, backRun)
	}
	if !ok || !w.run(rest, endRun) {
		return nil
	}
	for i := range c.carried {
		id, ok := w.find(rest, &c.carried[i])
		if !ok || p.Storages[id].Life != program.Carried {
			return nil
		}
		p.Carried = append(p.Carried, id)
	}
	return p
}

// A composition is a step in the making.
type composition struct {
	c      *Composer
	groups []group
	parts  []*groupSteps
	base   []int   // first storage of each group
	by     []int32 // group by unit
}

// find returns the storage that a group refers to.
func (w *composition) find(from int, f *far) (program.StorageID, bool) {
	if f.unit == fixed && !f.near {
		return program.StorageID(f.nth), true
	}
	units, unit := w.c.s.Units, f.unit
	switch {
	case f.near && f.unit < 0:
		unit = w.groups[from].lo - 1
	case f.near:
		unit = w.groups[from].hi
	}
	g, at := int32(len(w.groups)-1), f.local
	if unit < len(units) {
		g = w.by[unit]
		at.call += int32(units[unit].Lo - units[w.groups[g].lo].Lo)
	}
	k, ok := w.parts[g].at[at]
	return program.StorageID(w.base[g] + int(k)), ok
}

// run appends the nodes of one run of a group.
func (w *composition) run(g, run int) bool {
	part, x := w.parts[g], &w.c.scratch
	if len(part.nodes[run]) == 0 {
		return true
	}
	x.refs = x.refs[:0]
	for i := range part.far {
		id, ok := w.find(g, &part.far[i])
		if !ok {
			return false
		}
		x.refs = append(x.refs, id)
	}
	first, base := int32(0), program.StorageID(w.base[g])
	if lo := w.groups[g].lo; lo < len(w.c.s.Units) {
		first = int32(w.c.s.Units[lo].Lo)
	}
	id := func(k program.StorageID) program.StorageID {
		if k < 0 {
			return x.refs[-1-k]
		}
		return base + k
	}
	list := func(of []program.StorageID) []program.StorageID {
		from := len(x.ids)
		for _, k := range of {
			x.ids = append(x.ids, id(k))
		}
		return x.ids[from:len(x.ids):len(x.ids)]
	}
	if run == backRun && len(part.ahead) > 0 {
		last := &x.p.Nodes[len(x.p.Nodes)-1]
		last.Holds = slices.Concat(last.Holds, list(part.ahead))
	}
	for i := range part.nodes[run] {
		n := &part.nodes[run][i]
		call, from := n.call, len(x.events)
		if call >= 0 {
			call += first
		}
		for _, ev := range n.events {
			x.events = append(x.events, program.Event{Storage: id(ev.Storage), Free: ev.Free})
		}
		x.p.Nodes = append(x.p.Nodes, program.Node{Phase: n.phase, Only: n.only, Call: call, Events: x.events[from:len(x.events):len(x.events)], Reads: list(n.reads), Holds: list(n.holds)})
	}
	return true
}
