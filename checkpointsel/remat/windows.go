package remat

import (
	"math"
	"slices"
)

// A windows relaxation looks at the problem at several moments, the first
// executions of its cut nodes. They divide the time from the first of them
// to the end into windows: window i goes from the execution of cuts[i] to
// that of cuts[i+1], the last one to the end. For every node u there are the
// binary variables
//
//	resident(u, i)  u is resident when cuts[i] is executed, u < cuts[i]
//	again(u, i)     u is executed in window i, and not for the first time
//	event(u, i, s)  not being resident at cut i, u is executed in stage s,
//	                between the first executions of s-1 and s
//
// and whoever has a schedule can read off values that satisfy all rules in
// the table below. The cost of the repeated executions is therefore bounded
// by the optimum of the linear program, and by branch and bound on it.
//
// With next(v, s) for the window that contains the first reader of v from s
// on, and "held" for 1 - the sum of again(v, j) over the windows j from i to
// that one (what is read later and not executed again before must be
// resident now), the rules are:
//
//	memory(i)      sum of size resident(u, i) <= what cut i leaves
//	need(u, i)     resident(u, i) + again(u, i) >= 1, if u is read in window i
//	carry(u, i)    resident(u, i+1) <= resident(u, i) + again(u, i)
//	input(u, i, v) again(u, i) <= resident(v, i) + again(v, i), v an input of u
//	hold(s)        sum of size held(v, s) <= what the first execution of s
//	               leaves, over all v < s read after s
//	when(u, i)     1 - resident(u, i) <= sum of event(u, i, s), over the
//	               stages s up to the first reader of u after cut i
//	room(u, i, s)  sum of size held(v, s) <= what an execution of u leaves,
//	               if event(u, i, s), over all other v < s read from s on
//	path           1 <= sum of resident(v, i) over a path of inputs + sum of
//	               again(u, j) over windows, for the path's end u; see there
type windows struct {
	p    *problem
	cuts []int32

	l        program
	vars     []variable // by x of the program
	resident [][]int32  // by window and node: x, -1 if it is useless
	again    [][]int32
	spare    []int32 // x that may become events

	rules []rule
	int   []integerRow
	have  map[rule]bool
	held  []int32 // stages whose hold rule can bind
	quiet map[rule]bool

	roundings []rounding
	paths     []path

	reduced []int64 // scratch
	last    weights // the multipliers used last
	derived integerRow

	rounds int  // how often rows may still be derived
	plain  bool // omits the path rows, and searches less long for others

	scale float64 // cost units per unit of cost in the program
}

// A variable names one binary variable of a windows relaxation.
type variable struct {
	kind         varKind
	window, node int32
	stage        int32 // of an event
}

type varKind int8

const (
	residentVar varKind = iota
	againVar
	eventVar
)

// A rule names one row of a windows relaxation.
type rule struct {
	kind         ruleKind
	window, node int32
	other        int32 // input: the input; hold, room: the stage
}

type ruleKind int8

const (
	memoryRule ruleKind = iota
	needRule
	carryRule
	inputRule
	holdRule
	whenRule
	roomRule
	roundedRule // other: which rounding
	pathRule    // other: which path
)

// An integerRow is a row before it is scaled for the program: sum of its terms
// >= bound.
type integerRow struct {
	terms []term
	bound int64
	unit  float64 // the row was divided by this
	norm  float64 // sum of the absolute values of all its numbers
}

type term struct {
	x int32
	a int64
}

// newWindows returns the relaxation for the given cuts, which ascend. spare is
// the number of events it has room for.
func newWindows(p *problem, cuts []int32, spare int) *windows {
	w := &windows{
		p: p, cuts: cuts, scale: max(float64(p.total), 1) / 100,
		have: map[rule]bool{}, quiet: map[rule]bool{},
	}
	w.variables(spare)
	for i := range w.cuts {
		w.add(rule{kind: memoryRule, window: int32(i)})
		for u := range w.cuts[i] {
			if w.resident[i][u] >= 0 && w.readIn(u, i) {
				w.add(rule{kind: needRule, window: int32(i), node: u})
			}
		}
	}
	w.stages()
	return w
}

// end returns the last node whose first execution belongs to window i, plus
// one, where that of the next cut does.
func (w *windows) end(i int) int32 {
	if i+1 < len(w.cuts) {
		return w.cuts[i+1]
	}
	return int32(w.p.n)
}

// readIn reports whether u is read by a first execution after that of cut i
// and up to that of the next cut.
func (w *windows) readIn(u int32, i int) bool {
	return w.p.readWithin(u, w.cuts[i], w.end(i)+1)
}

// windowOf returns the window that stage s belongs to, for s > cuts[0].
func (w *windows) windowOf(s int32) int {
	i, _ := slices.BinarySearch(w.cuts, s)
	return i - 1
}

// variables makes the variables that can be useful: what is needed, what is
// carried to a later window, and what the executions of these may read.
func (w *windows) variables(spare int) {
	k := len(w.cuts)
	w.resident, w.again = make([][]int32, k), make([][]int32, k)
	later := make([]bool, w.p.n) // residence at the next cut is useful
	for i := k - 1; i >= 0; i-- {
		t := w.cuts[i]
		use := make([]bool, w.end(i))
		for u := w.end(i) - 1; u >= 0; u-- {
			use[u] = use[u] || later[u] || u < t && w.readIn(u, i) || u >= t && w.p.last[u] > u+1
			if !use[u] || w.p.once[u] {
				continue
			}
			for _, v := range w.p.preds[u] {
				use[v] = true
			}
		}
		w.resident[i], w.again[i] = none(w.p.n), none(w.p.n)
		for u := range w.end(i) {
			if !use[u] {
				continue
			}
			high := 1.0
			if w.p.once[u] {
				high = 0
			}
			w.again[i][u] = w.variable(variable{againVar, int32(i), u, 0}, float64(w.p.cost[u])/w.scale, 0, high)
			if u < t {
				low := 0.0
				if slices.Contains(w.p.preds[t], u) {
					low = 1
				}
				w.resident[i][u] = w.variable(variable{residentVar, int32(i), u, 0}, 0, low, 1)
			}
		}
		clear(later)
		for u := range t {
			later[u] = use[u]
		}
	}
	for range spare {
		w.spare = append(w.spare, w.variable(variable{kind: eventVar}, 0, 0, 0))
	}
}

func (w *windows) variable(v variable, cost, low, high float64) int32 {
	w.vars = append(w.vars, v)
	return w.l.variable(cost, low, high)
}

func none(n int) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = -1
	}
	return s
}

// add adds the row of a rule, unless it is there or can never bind.
func (w *windows) add(r rule) {
	if w.have[r] {
		return
	}
	w.have[r] = true
	row := integerRow{unit: 1}
	switch i := int(r.window); r.kind {
	case memoryRule:
		row = w.memory(i)
	case needRule:
		row.terms = []term{{w.resident[i][r.node], 1}, {w.again[i][r.node], 1}}
		row.bound = 1
	case carryRule:
		row.terms = []term{{w.resident[i+1][r.node], -1}, {w.resident[i][r.node], 1}, {w.again[i][r.node], 1}}
	case inputRule:
		row.terms = []term{{w.again[i][r.node], -1}, {w.resident[i][r.other], 1}, {w.again[i][r.other], 1}}
	case holdRule:
		row = w.occupied(r.other, w.p.preds[r.other], r.other+1, w.p.cap-w.p.need(r.other))
	case whenRule:
		row.terms = []term{{w.resident[i][r.node], 1}}
		for _, x := range w.spare {
			if v := w.vars[x]; v.window == r.window && v.node == r.node && v.stage > 0 {
				row.terms = append(row.terms, term{x, 1})
			}
		}
		row.bound = 1
	case roomRule:
		row = w.room(r)
	case pathRule:
		row = w.along(i, &w.paths[r.other])
	}
	w.append(r, row)
}

// append adds a row to the program, scaled.
func (w *windows) append(r rule, row integerRow) {
	row.norm = math.Abs(float64(row.bound))
	largest := int64(1)
	for _, t := range row.terms {
		row.norm += math.Abs(float64(t.a))
		largest = max(largest, t.a, -t.a)
	}
	row.unit = float64(largest)
	entries := make([]entry, len(row.terms))
	for i, t := range row.terms {
		entries[i] = entry{t.x, float64(t.a) / row.unit}
	}
	w.rules = append(w.rules, r)
	w.int = append(w.int, row)
	w.l.row(entries, float64(row.bound)/row.unit)
}

func (w *windows) memory(i int) integerRow {
	t := w.cuts[i]
	row := integerRow{unit: float64(max(w.p.cap, 1)), bound: w.p.need(t) - w.p.cap}
	for u := range t {
		if x := w.resident[i][u]; x >= 0 && w.p.size[u] > 0 && !slices.Contains(w.p.preds[t], u) {
			row.terms = append(row.terms, term{x, -w.p.size[u]})
		}
	}
	return row
}

// occupied returns the row by which what must be resident in stage s is at most
// room: all v before s that are read by a node from reads on, except the given
// ones, which ascend.
func (w *windows) occupied(s int32, without []int32, reads int32, room int64) integerRow {
	row := integerRow{unit: float64(max(w.p.cap, 1)), bound: -room}
	from := w.windowOf(s)
	for v := range s {
		if w.p.last[v] < reads || w.p.size[v] == 0 {
			continue
		}
		if _, out := slices.BinarySearch(without, v); out {
			continue
		}
		row.bound += w.p.size[v]
		for j := from; j <= w.windowOf(w.reader(v, reads)); j++ {
			if x := w.again[j][v]; x >= 0 {
				row.terms = append(row.terms, term{x, w.p.size[v]})
			}
		}
	}
	return row
}

// reader returns the first node from s on that reads v.
func (w *windows) reader(v, s int32) int32 {
	i, _ := slices.BinarySearch(w.p.succs[v], s)
	return w.p.succs[v][i]
}

func (w *windows) room(r rule) integerRow {
	row := w.occupied(r.other, w.inputsAnd(r.node), r.other, w.p.cap-w.p.need(r.node))
	excess := row.bound // without repeated executions
	row.bound = 0
	for _, x := range w.spare {
		if v := w.vars[x]; v.window == r.window && v.node == r.node && v.stage == r.other {
			row.terms = append(row.terms, term{x, -excess})
		}
	}
	return row
}

// inputsAnd returns u's inputs and u, ascending.
func (w *windows) inputsAnd(u int32) []int32 {
	return append(slices.Clone(w.p.preds[u]), u)
}

// stages lists the stages where not everything that is read later fits.
func (w *windows) stages() {
	for s := w.cuts[0] + 1; s < int32(w.p.n); s++ {
		if row := w.occupied(s, w.p.preds[s], s+1, w.p.cap-w.p.need(s)); row.bound > 0 {
			w.held = append(w.held, s)
		}
	}
}

// separate adds the rows that the current solution violates and returns how
// many there were.
func (w *windows) separate() int {
	before := len(w.rules)
	w.separateFlows()
	if !w.plain {
		w.separatePaths()
	}
	for _, s := range w.held {
		r := rule{kind: holdRule, other: s}
		if !w.have[r] && w.violated(w.occupied(s, w.p.preds[s], s+1, w.p.cap-w.p.need(s))) {
			w.add(r)
		}
	}
	if len(w.rules) == before {
		w.separateEvents()
	}
	if len(w.rules) == before && w.rounds > 0 {
		w.rounds--
		w.separateRoundings()
	}
	return len(w.rules) - before
}

// violation is the fraction of its scale by which a row must be violated to be
// added.
const violation = 1e-5

func (w *windows) violated(row integerRow) bool {
	sum := -float64(row.bound)
	for _, t := range row.terms {
		sum += float64(t.a) * w.l.at(t.x)
	}
	return sum < -violation*row.unit
}

func (w *windows) value(x int32) float64 {
	if x < 0 {
		return 0
	}
	return w.l.at(x)
}

// separateFlows adds carry and input rows.
func (w *windows) separateFlows() {
	for i := range w.cuts {
		t := w.cuts[i]
		for u := range w.end(i) {
			if i+1 < len(w.cuts) && u < t && w.value(w.resident[i+1][u]) > w.value(w.resident[i][u])+w.value(w.again[i][u])+violation {
				w.add(rule{carryRule, int32(i), u, 0})
			}
			a := w.value(w.again[i][u])
			if a <= violation {
				continue
			}
			for _, v := range w.p.preds[u] {
				if v < t && a > w.value(w.resident[i][v])+w.value(w.again[i][v])+violation {
					w.add(rule{inputRule, int32(i), u, v})
				}
			}
		}
	}
}

// separateRoundings adds rows derived from those about memory.
func (w *windows) separateRoundings() {
	for r := range w.rules {
		switch w.rules[r].kind {
		case memoryRule, holdRule, roomRule:
			w.round(int32(r))
		}
	}
}

// longest is the largest number of stages by which an execution may be
// postponed for its event rules to be worth their variables.
const longest = 6

// separateEvents adds the when and room rules of nodes that the solution does
// not keep resident at a cut although they are read soon after it.
func (w *windows) separateEvents() {
	for i := range w.cuts {
		t := w.cuts[i]
		for u := range t {
			x := w.resident[i][u]
			if x < 0 || w.l.at(x) > 0.999 || w.p.last[u] <= t {
				continue
			}
			r := rule{whenRule, int32(i), u, 0}
			if w.have[r] || w.quiet[r] {
				continue
			}
			if !w.addEvents(i, u) {
				w.quiet[r] = true
			}
		}
	}
}

// addEvents adds the event variables of u at cut i with their rules; it returns
// false if there are too many, or one that nothing prevents.
func (w *windows) addEvents(i int, u int32) bool {
	t := w.cuts[i]
	last := w.reader(u, t+1)
	if last-t > longest || int(last-t) > w.unused() {
		return false
	}
	for s := t + 1; s <= last; s++ {
		if row := w.occupied(s, w.inputsAnd(u), s, w.p.cap-w.p.need(u)); row.bound <= 0 {
			return false
		}
	}
	for s := t + 1; s <= last; s++ {
		x := w.spare[len(w.spare)-w.unused()]
		w.vars[x] = variable{eventVar, int32(i), u, s}
		w.l.restrict(x, 0, 1)
		w.add(rule{roomRule, int32(i), u, s})
	}
	w.add(rule{whenRule, int32(i), u, 0})
	return true
}

// unused returns how many spare variables are left.
func (w *windows) unused() int {
	k, _ := slices.BinarySearchFunc(w.spare, 0, func(x int32, _ int) int {
		if w.vars[x].stage > 0 {
			return -1
		}
		return 1
	})
	return len(w.spare) - k
}

// fractional reports whether v is neither 0 nor 1.
func fractional(v float64) bool { return math.Abs(v-math.Round(v)) > 1e-6 }
