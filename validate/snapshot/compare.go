package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner"
)

// A Side is the peak of the plan or of the snapshot. Sizes are bytes.
type Side struct {
	Path           string `json:"path"`
	RequestedBytes int64  `json:"requestedBytes"`
	ReservedBytes  int64  `json:"reservedBytes"`
	Phase          string `json:"phase"` // of the step at the peak; "" if unknown
	Op             string `json:"op"`
	Module         string `json:"module"`
}

// A Share is what one category or module has at either peak, in bytes.
type Share struct {
	Name     string `json:"name"`
	Plan     int64  `json:"plan"`
	Snapshot int64  `json:"snapshot"`
	Delta    int64  `json:"delta"`
}

// A Group is tensors of one place that only one of the sides has at its peak.
type Group struct {
	Reason  string `json:"reason"`
	Where   string `json:"where"` // the line of code that allocated them; "" if the history does not say
	Module  string `json:"module"`
	Op      string `json:"op"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

// The reasons of groups.
const (
	NotPlanned  = "not in the plan"
	KeptLonger  = "in use longer than planned"
	Larger      = "larger than planned" // Bytes are those of the difference
	Smaller     = "smaller than planned"
	NotThere    = "not allocated"
	FreedBefore = "in use shorter than planned"
)

// A Matching counts the plan's allocations in a step that the history has, too.
type Matching struct {
	Allocations int   `json:"allocations"`
	Of          int   `json:"of"`
	Bytes       int64 `json:"bytes"`
	OfBytes     int64 `json:"ofBytes"`
}

// A Comparison says how the peak of a snapshot differs from that of a plan's steady
// step. The deltas of Categories and those of Modules add up to DeltaBytes, and so
// do Unplanned minus Missing.
type Comparison struct {
	SchemaVersion   int      `json:"schemaVersion"`
	Snapshot        Side     `json:"snapshot"`
	Plan            Side     `json:"plan"`
	Device          int      `json:"device"`
	Batch           int64    `json:"batch"`
	DeltaBytes      int64    `json:"deltaBytes"` // of requested bytes
	UpperBoundBytes int64    `json:"upperBoundBytes"`
	Within          bool     `json:"within"` // whether reserved memory stayed under the plan's upper bound
	Matched         Matching `json:"matched"`
	Categories      []Share  `json:"categories"`
	Modules         []Share  `json:"modules"`
	Unplanned       []Group  `json:"unplanned"`
	Missing         []Group  `json:"missing"`
	Warnings        []string `json:"warnings"`
}

// Unplanned is the category, and the module, of what the plan does not know.
const Unplanned = "(not in the plan)"

// Compare compares a device of a snapshot with a plan.
func Compare(s *Snapshot, device int, a *planner.Answer) (*Comparison, error) {
	if device < 0 || device >= len(s.Devices) {
		return nil, fmt.Errorf("the snapshot has no device %d: it has %d", device, len(s.Devices))
	}
	c := &comparer{s: s, d: &s.Devices[device], p: newPlanned(a.View()), planned: a.Config.Batch}
	c.tensors = c.d.Tensors()
	c.tokens()
	c.peak()
	c.match()
	out := &Comparison{SchemaVersion: planner.SchemaVersion, Device: device, Batch: a.Config.Batch, UpperBoundBytes: a.Peak.UpperBoundBytes, Categories: []Share{}, Modules: []Share{}, Unplanned: []Group{}, Missing: []Group{}, Warnings: []string{}}
	out.Snapshot.ReservedBytes, out.Plan.ReservedBytes = c.d.mostReserved(), a.Peak.ReservedBytes
	out.Within = out.Snapshot.ReservedBytes <= out.UpperBoundBytes
	c.sum(out)
	c.warn(out)
	return out, nil
}

// A planned step is the plan's side: its events as tokens, and what is live at its
// peak.
type planned struct {
	v      *planner.StepView
	tokens []int64 // bytes, negative for a free; of events that have any
	events []int   // index in v.Events of each token
	peak   int     // tokens before the peak's end; 0: the start of the step
	bytes  int64   // at the peak
	live   map[int32]bool
	born   map[int32]string // what allocates a storage, for messages
}

func newPlanned(v *planner.StepView) *planned {
	p := &planned{v: v, live: map[int32]bool{}, born: map[int32]string{}}
	var now int64
	for _, id := range v.Before {
		now += v.Storages[id][0]
	}
	p.bytes = now
	for i, e := range v.Events {
		id, sign := stored(e[1])
		if sign > 0 {
			p.born[id] = v.Strings[v.Nodes[e[0]][1]]
		}
		if n := v.Storages[id][0]; n != 0 {
			p.tokens, p.events = append(p.tokens, sign*n), append(p.events, i)
			if now += sign * n; now > p.bytes {
				p.bytes, p.peak = now, len(p.tokens)
			}
		}
	}
	for _, id := range v.Before {
		p.live[id] = true
		p.born[id] = p.category(id)
	}
	for _, at := range p.events[:p.peak] {
		id, sign := stored(v.Events[at][1])
		if p.live[id] = sign > 0; sign < 0 {
			delete(p.live, id)
		}
	}
	return p
}

// stored returns the storage of an event and 1 for an allocation, -1 for a free.
func stored(e int32) (id int32, sign int64) {
	if e < 0 {
		return -e - 1, -1
	}
	return e - 1, 1
}

func (p *planned) category(id int32) string { return p.v.Categories[p.v.Storages[id][1]] }
func (p *planned) module(id int32) string   { return p.v.Strings[p.v.Storages[id][3]] }

// at says where in the step a token is.
func (p *planned) at(token int) (phase, op, module string) {
	if token < 0 || token >= len(p.events) {
		return "", "", ""
	}
	n := p.v.Nodes[p.v.Events[p.events[token]][0]]
	return p.v.Phases[n[0]], p.v.Strings[n[1]], p.v.Strings[n[3]]
}

// A comparer matches a device's history with a plan.
type comparer struct {
	s       *Snapshot
	d       *Device
	p       *planned
	tensors []Tensor

	token  []int64 // of the history
	event  []int   // index in d.Events of each token
	made   map[int]int
	most   int   // event at the peak; -1: before the first
	bytes  int64 // at the peak
	ids    []int32
	placed []int // plan's token that each of the history's is matched with; -1: none

	planned int64 // batch of the plan
	scale   int64 // batch whose sizes the history has; 0: the plan's, or unknown
}

// tokens makes tokens of the events that allocate and free.
func (c *comparer) tokens() {
	for i, e := range c.d.Events {
		if e.Size == 0 || e.Kind != Alloc && e.Kind != Free {
			continue
		}
		n := e.Size
		if e.Kind == Free {
			n = -n
		}
		c.token, c.event = append(c.token, n), append(c.event, i)
	}
}

// peak finds the last moment of the most bytes in use.
func (c *comparer) peak() {
	change := make([]int64, len(c.d.Events)+2) // by the event, from -1 on
	for _, t := range c.tensors {
		change[t.Alloc+1] += t.Bytes
		change[t.Free+1] -= t.Bytes
	}
	var now int64
	c.bytes = -1
	for i, n := range change[:len(c.d.Events)+1] {
		if now += n; now >= c.bytes && (n > 0 || now > c.bytes) {
			c.bytes, c.most = now, i-1
		}
	}
}

// step finds the part of the history that the plan's step is matched with: the one
// around the peak in which the most of the plan's rare sizes have the places of the
// plan. It returns tokens [lo, hi).
func (c *comparer) step() (lo, hi int) {
	const rare = 4
	n := len(c.p.tokens)
	places := map[int64][]int{}
	for i, t := range rounded(c.p.tokens) {
		places[t] = append(places[t], i)
	}
	width := max(8, n/32)
	votes := map[int]int{}
	for j, t := range rounded(c.token) {
		if at := places[t]; len(at) <= rare {
			for _, i := range at {
				votes[(j-i+n)/width]++
			}
		}
	}
	top, _ := slices.BinarySearch(c.event, c.most)
	best, most := top-c.p.peak, 0
	for bucket, v := range votes {
		from := bucket*width - n
		if v += votes[bucket+1]; from <= top+width && top < from+n+2*width && (v > most || v == most && from > best) {
			best, most = from, v
		}
	}
	slack := n/8 + 2*width
	return max(0, min(best-slack, len(c.token))), max(0, min(best+n+slack, len(c.token)))
}

// match gives tensors the storages of the plan: ids, by the index of tensors; -1 for
// none.
func (c *comparer) match() {
	c.ids = make([]int32, len(c.tensors))
	c.made = map[int]int{}  // tensor by the event that allocates it
	freed := map[int]int{}  // and by the one that frees it
	old := map[int32]bool{} // storages from before the step
	for i := range c.tensors {
		c.ids[i], freed[c.tensors[i].Free] = -1, i
		if c.tensors[i].Alloc >= 0 {
			c.made[c.tensors[i].Alloc] = i
		}
	}
	holder := map[int32]int{} // tensor that is matched with a storage
	delete(freed, len(c.d.Events))
	for _, id := range c.p.v.Before {
		old[id] = true
	}
	lo, hi := c.step()
	there := rounded(c.token[lo:hi])
	m := align(rounded(c.p.tokens), there)
	if n := matches(m); 10*n < 9*len(m) { // of another batch, perhaps
		if c.scale = c.batch(); c.scale > 0 {
			if again := align(rounded(c.scaled()), there); matches(again) > n {
				m = again
			}
		}
	}
	m = paired(c.p.tokens, c.token[lo:hi], m)
	c.placed = make([]int, len(c.token))
	for j := range c.placed {
		c.placed[j] = -1
	}
	start := -1
	for i, j := range m {
		if j < 0 {
			continue
		}
		if start < 0 && i+1 < len(m) && m[i+1] == j+1 {
			start = c.event[lo+int(j)]
		}
		c.placed[lo+int(j)] = i
		id, sign := stored(c.p.v.Events[c.p.events[i]][1])
		if at := c.event[lo+int(j)]; sign > 0 {
			c.ids[c.made[at]], holder[id] = id, c.made[at]
		} else if t, ok := freed[at]; ok && c.ids[t] < 0 {
			if a, made := holder[id]; made { // of several allocations of that size this one has the plan's life
				c.ids[a], c.ids[t], holder[id] = -1, id, t
			} else if old[id] {
				c.ids[t] = id
			}
		}
		old[id] = false
	}
	if start < 0 {
		start = c.most + 1
	}
	end := len(c.d.Events)
	if hi < len(c.token) {
		end = c.event[hi]
	}
	c.standing(start, end)
}

// standing matches what is in use when the step starts by size: from the places in
// the code that explain most of what the plan has then, for a copy of the weights
// has the same sizes. What outlives the step comes first, for the plan keeps it, too.
func (c *comparer) standing(start, end int) {
	taken := map[int32]bool{}
	for i, id := range c.ids {
		if id >= 0 && c.tensors[i].Alloc < start {
			taken[id] = true
		}
	}
	freed := map[int32]bool{} // in the plan's step, before it allocates them again
	for i := len(c.p.v.Events) - 1; i >= 0; i-- {
		id, sign := stored(c.p.v.Events[i][1])
		freed[id] = sign < 0
	}
	for _, lasting := range []bool{true, false} {
		want := map[int64][]int32{}
		for _, id := range c.p.v.Before {
			if n := c.p.v.Storages[id][0]; n != 0 && !taken[id] && freed[id] != lasting {
				want[n] = append(want[n], id)
			}
		}
		for _, p := range c.places(start, func(t *Tensor) bool { return (t.Free >= end) == lasting }, want) {
			for _, i := range p.tensors {
				if ids := want[c.tensors[i].Bytes]; len(ids) > 0 {
					c.ids[i], want[c.tensors[i].Bytes] = ids[0], ids[1:]
				}
			}
		}
	}
}

// A place is a line of code, or "before the history".
type place struct {
	tensors  []int
	explains int64 // bytes of the plan
}

// places lists where the tensors were allocated that are in use at an event and not
// matched yet, those first that explain the most bytes of want.
func (c *comparer) places(start int, which func(*Tensor) bool, want map[int64][]int32) []*place {
	var order []*place
	by := map[string]*place{}
	for i := range c.tensors {
		t := &c.tensors[i]
		if c.ids[i] >= 0 || t.Alloc >= start || t.Free < start || !which(t) {
			continue
		}
		where := c.where(t.Stack)
		if by[where] == nil {
			by[where] = &place{}
			order = append(order, by[where])
		}
		by[where].tensors = append(by[where].tensors, i)
	}
	for _, p := range order {
		have := map[int64]int{}
		for _, i := range p.tensors {
			n := c.tensors[i].Bytes
			if have[n] < len(want[n]) {
				p.explains += n
			}
			have[n]++
		}
	}
	slices.SortStableFunc(order, func(a, b *place) int { return cmp.Compare(b.explains, a.explains) })
	return order
}

// where returns the line of code of a stack: the innermost that is neither PyTorch's
// nor Python's own.
func (c *comparer) where(stack int32) string {
	frames := c.s.Stacks[stack]
	if len(frames) == 0 {
		return ""
	}
	f := frames[0]
	for _, x := range frames {
		if !library(x.File) {
			f = x
			break
		}
	}
	return fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Name)
}

// library reports whether a file is PyTorch's or Python's own.
func library(file string) bool {
	file = strings.ReplaceAll(file, `\`, "/")
	if strings.Contains(file, "/torch/") || strings.HasPrefix(file, "torch/") || strings.HasPrefix(file, "<") || file == "" || file == "??" {
		return true
	}
	return strings.Contains(file, "lib/python3") && !strings.Contains(file, "-packages/")
}

// guess returns the module of an allocation that the plan does not have: that of the
// allocations around it, if it is one.
func (c *comparer) guess(t *Tensor) string {
	k, ok := slices.BinarySearch(c.event, t.Alloc)
	if !ok {
		return Unplanned
	}
	const near = 64
	found := [2]string{Unplanned, ""}
	for side, step := range []int{-1, 1} {
		for j := k + step; j >= 0 && j < len(c.placed) && j-k < near && k-j < near; j += step {
			if c.placed[j] >= 0 {
				_, _, found[side] = c.p.at(c.placed[j])
				break
			}
		}
	}
	if found[0] == found[1] && found[0] != "" {
		return found[0]
	}
	return Unplanned
}

// sum fills in the numbers of a comparison.
func (c *comparer) sum(out *Comparison) {
	categories, modules := shares{}, shares{}
	extra, lacking := groups{}, groups{}
	have, ever := map[int32]bool{}, map[int32]bool{}
	for i := range c.tensors {
		t, id := &c.tensors[i], c.ids[i]
		if id >= 0 {
			ever[id] = true
		}
		if t.Alloc > c.most || t.Free <= c.most {
			continue
		}
		out.Snapshot.RequestedBytes += t.Bytes
		category, module, g := Unplanned, "", Group{Reason: NotPlanned, Where: c.where(t.Stack)}
		if id >= 0 {
			category, module, g.Reason = c.p.category(id), c.p.module(id), KeptLonger
			g.Op = c.p.born[id]
		} else {
			module = c.guess(t)
		}
		categories.at(category).Snapshot += t.Bytes
		modules.at(module).Snapshot += t.Bytes
		if g.Module = module; id < 0 || !c.p.live[id] {
			extra.add(g, t.Bytes)
			continue
		}
		have[id] = true
		if more := t.Bytes - c.p.v.Storages[id][0]; more > 0 {
			g.Reason = Larger
			extra.add(g, more)
		} else if more < 0 {
			g.Reason = Smaller
			lacking.add(g, -more)
		}
	}
	for id := range c.p.v.Storages {
		n := c.p.v.Storages[id][0]
		if !c.p.live[int32(id)] || n == 0 {
			continue
		}
		out.Plan.RequestedBytes += n
		categories.at(c.p.category(int32(id))).Plan += n
		modules.at(c.p.module(int32(id))).Plan += n
		if !have[int32(id)] {
			reason := NotThere
			if ever[int32(id)] {
				reason = FreedBefore
			}
			lacking.add(Group{Reason: reason, Module: c.p.module(int32(id)), Op: c.p.born[int32(id)]}, n)
		}
	}
	out.DeltaBytes = out.Snapshot.RequestedBytes - out.Plan.RequestedBytes
	out.Categories, out.Modules = categories.list(append(slices.Clone(c.p.v.Categories), Unplanned)), modules.list(nil)
	out.Unplanned, out.Missing = extra.list(), lacking.list()
	out.Plan.Phase, out.Plan.Op, out.Plan.Module = c.p.at(c.p.peak - 1)
	out.Snapshot.Phase, out.Snapshot.Op, out.Snapshot.Module = c.p.at(c.nearest())
	out.Matched = c.matched()
}

// nearest returns the plan's token at the snapshot's peak, or the last before it.
func (c *comparer) nearest() int {
	k, _ := slices.BinarySearch(c.event, c.most+1)
	for j := k - 1; j >= 0; j-- {
		if c.placed[j] >= 0 {
			return c.placed[j]
		}
	}
	return -1
}

// matched counts the step's allocations.
func (c *comparer) matched() Matching {
	var m Matching
	for _, t := range c.p.tokens {
		if t > 0 {
			m.Of++
			m.OfBytes += t
		}
	}
	for j, i := range c.placed {
		if i >= 0 && c.p.tokens[i] > 0 && liveness.Rounded(c.p.tokens[i]) == liveness.Rounded(c.token[j]) {
			m.Allocations++
			m.Bytes += c.p.tokens[i]
		}
	}
	return m
}

// warn says what makes a comparison doubtful.
func (c *comparer) warn(out *Comparison) {
	if len(c.token) == 0 {
		out.Warnings = append(out.Warnings, "the snapshot has no history: it is compared as it was when it was taken; call torch.cuda.memory._record_memory_history() before the first step")
		return
	}
	m := out.Matched
	found := fmt.Sprintf("%d of the %d allocations of the plan's step are in the history: ", m.Allocations, m.Of)
	switch {
	case c.scale > 0:
		out.Warnings = append(out.Warnings, fmt.Sprintf("%sthe sizes are those of batch %d, and the plan is for %d", found, c.scale, c.planned))
	case m.Of > 0 && m.Bytes < m.OfBytes/2:
		out.Warnings = append(out.Warnings, found+"another model, batch, precision, optimizer or release of PyTorch (--runtime), or no whole step was recorded")
	}
	empty := int64(0)
	for i := range c.tensors {
		if t := &c.tensors[i]; t.Stack == 0 && t.Alloc < 0 && c.ids[i] < 0 && t.Free > c.most {
			empty += t.Bytes
		}
	}
	if empty > c.bytes/1000 { // less matters to nobody
		out.Warnings = append(out.Warnings, fmt.Sprintf("%.1f MiB that are not in the plan were allocated before the history begins, so that nothing says where: record from before the model is made", float64(empty)/(1<<20)))
	}
}

// batch returns the batch whose sizes the history has, if they are those of the plan
// times one number; 0 if not.
func (c *comparer) batch() int64 {
	planned := c.planned
	if planned <= 0 {
		return 0
	}
	there, theirs := distinct(c.token)
	_, ours := distinct(c.p.tokens)
	holds := func(batch int64) (n int) {
		for _, t := range ours {
			if there[t] || t%planned == 0 && there[t/planned*batch] {
				n++
			}
		}
		return n
	}
	const largest = 32 // sizes that batches are tried by
	best, most := planned, holds(planned)
	enough := most + most/8 // sizes of another batch occur by chance, too
	for _, t := range ours[:min(len(ours), largest)] {
		for _, s := range theirs[:min(len(theirs), largest)] {
			if t%planned != 0 || s%(t/planned) != 0 {
				continue
			}
			if b := s / (t / planned); b != best {
				if n := holds(b); n > most || n == most && best != planned && b < best {
					best, most = b, n
				}
			}
		}
	}
	if best == planned || most < enough || 2*most < len(ours) {
		return 0
	}
	return best
}

// scaled returns the plan's tokens as they would be at the batch that was found: what
// lives as long as the model has no batch.
func (c *comparer) scaled() []int64 {
	there, _ := distinct(c.token)
	out := slices.Clone(c.p.tokens)
	for i, t := range out {
		id, _ := stored(c.p.v.Events[c.p.events[i]][1])
		switch c.p.category(id) {
		case "parameters", "gradients", "optimizer", "buffers":
			continue
		}
		if s := t / c.planned * c.scale; t%c.planned == 0 && there[max(s, -s)] {
			out[i] = s
		}
	}
	return out
}

// matches counts what an alignment matched.
func matches(m []int32) (n int) {
	for _, j := range m {
		if j >= 0 {
			n++
		}
	}
	return n
}

// distinct returns the sizes of allocations as a set, and the largest first.
func distinct(tokens []int64) (map[int64]bool, []int64) {
	set, list := map[int64]bool{}, []int64(nil)
	for _, t := range tokens {
		if t > 0 && !set[t] {
			set[t] = true
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b int64) int { return cmp.Compare(b, a) })
	return set, list
}

// shares are sums by name.
type shares map[string]*Share

func (s shares) at(name string) *Share {
	if s[name] == nil {
		s[name] = &Share{Name: name}
	}
	return s[name]
}

// list returns those that are not 0, in the given order or by the size of the
// difference.
func (s shares) list(order []string) []Share {
	out := []Share{}
	for _, x := range s {
		x.Delta = x.Snapshot - x.Plan
		if x.Plan != 0 || x.Snapshot != 0 {
			out = append(out, *x)
		}
	}
	slices.SortFunc(out, func(a, b Share) int {
		if order != nil {
			return slices.Index(order, a.Name) - slices.Index(order, b.Name)
		}
		return cmp.Or(cmp.Compare(max(b.Delta, -b.Delta), max(a.Delta, -a.Delta)), strings.Compare(a.Name, b.Name))
	})
	return out
}

// groups are sums of tensors of one place.
type groups map[Group]*Group

func (g groups) add(key Group, bytes int64) {
	if g[key] == nil {
		k := key
		g[key] = &k
	}
	g[key].Tensors++
	g[key].Bytes += bytes
}

// list returns the largest first.
func (g groups) list() []Group {
	out := []Group{}
	for _, x := range g {
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Where, b.Where), strings.Compare(a.Module, b.Module), strings.Compare(a.Op, b.Op), strings.Compare(a.Reason, b.Reason))
	})
	return out
}
