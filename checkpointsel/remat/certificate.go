package remat

import (
	"fmt"
	"slices"
)

// A Certificate is the proof of a lower bound, for VerifyCertificate to check.
//
// It considers the schedule at the first executions of a few nodes, the cuts;
// window i lasts from that of Cuts[i] to that of the next cut or to the end. A
// schedule is described by variables that are 0 or 1: whether a node's output
// is resident at a cut, whether the node is executed again in a window, and
// when. Rows are inequalities between them that hold for every schedule within
// the budget. Tree is a complete case analysis: a node of it either splits on
// one of the variables, or is a leaf with a combination of rows, weighted by
// their multipliers, that no variables satisfy at a lower cost. At the one cut
// of a simple certificate the multipliers are the price of memory (of the row
// "memory") and a flow through the graph (of the rows "input").
type Certificate struct {
	SchemaVersion int        `json:"schemaVersion"`
	Instance      string     `json:"instance"`
	Budget        int64      `json:"budget"`
	LowerBound    int64      `json:"lowerBound"` // on the cost of the whole schedule
	Infeasible    bool       `json:"infeasible"` // no schedule fits at all
	Cuts          []int      `json:"cuts"`
	Rows          []CertRow  `json:"rows"`
	Tree          []CertNode `json:"tree"` // the root first
}

// A CertRow names one inequality by its rule:
//
//	memory   what is resident at cut Window fits beside what the cut needs
//	need     Node is resident at cut Window or executed again in the window, which reads it
//	either   Node is not both of it; for one cut and rules that can do without
//	carry    Node is resident at the next cut only if it was at this one or is executed again
//	input    Node is executed again only if its input Other is there or is executed again
//	hold     what is read after the first execution of Other and not executed again is resident
//	when     Node, not resident at cut Window, is executed in some stage before its next reader
//	room     the same as hold, when Node is executed in stage Other
//	path     where none of Nodes is resident at cut Window, its last node is executed
//	         again by the end of window Until: the first is read by then, or resident
//	         at the next cut (Carried), and each of the others is an input of the one before
//	rounded  of the earlier row Other, by mixed-integer rounding
type CertRow struct {
	Rule       string    `json:"rule"`
	Window     int       `json:"window"`
	Node       int       `json:"node"`
	Other      int       `json:"other"`
	Until      int       `json:"until,omitempty"`      // of a path
	Carried    bool      `json:"carried,omitempty"`    // of a path
	Nodes      []int     `json:"nodes,omitempty"`      // of a path
	Divisor    int64     `json:"divisor,omitempty"`    // of a rounding
	Complement []CertVar `json:"complement,omitempty"` // of a rounding: numbers x that 1 - x stands for
}

// A CertVar names one variable: Kind is "resident" (at cut Window), "again" (in
// the window) or "event" (in stage Stage, between the first executions of
// Stage-1 and Stage).
type CertVar struct {
	Kind   string `json:"kind"`
	Window int    `json:"window"`
	Node   int    `json:"node"`
	Stage  int    `json:"stage,omitempty"`
}

// A CertNode is one case: Split with Cases, the indices in Tree for 0 and for
// 1; or Multipliers, pairs of a row and its multiplier, and Scale, that of the
// cost.
type CertNode struct {
	Split       *CertVar   `json:"split,omitempty"`
	Cases       [2]int     `json:"cases"`
	Scale       int64      `json:"scale"`
	Multipliers [][2]int64 `json:"multipliers,omitempty"`
}

// CertificateVersion is the schema version of certificates.
const CertificateVersion = 1

var varKinds = [...]string{residentVar: "resident", againVar: "again", eventVar: "event"}

var ruleKinds = [...]string{memoryRule: "memory", needRule: "need", carryRule: "carry", inputRule: "input", holdRule: "hold",
	whenRule: "when", roomRule: "room", roundedRule: "rounded", pathRule: "path"}

// weights are the multipliers that prove a bound: of rows, in ascending order.
type weights struct {
	scale int64
	rows  []weight
}

type weight struct {
	row int32
	y   int64
}

func (w weights) clone() weights { return weights{w.scale, slices.Clone(w.rows)} }

// certificate writes the proof of the solver's bound.
func (s *solver) certificate(bound int64) *Certificate {
	c := newCertificate(s.in, s.opt.Budget)
	c.Infeasible = bound >= infinite
	if bound <= 0 {
		c.LowerBound = s.in.Total()
		return c
	}
	if s.windows != nil && s.windows.bound() >= bound {
		s.windows.proof.certify(c, bound)
	} else {
		s.cuts[0].certify(c, bound)
	}
	proved, err := VerifyCertificate(s.in, c)
	if err != nil {
		panic("remat: the checker rejects a certificate: " + err.Error())
	}
	c.LowerBound = proved
	return c
}

func newCertificate(in *Instance, budget int64) *Certificate {
	return &Certificate{SchemaVersion: CertificateVersion, Instance: in.Name, Budget: budget, Cuts: []int{}, Rows: []CertRow{}, Tree: []CertNode{}}
}

// certifyFloor proves that nothing fits: node t, or the cut at t, needs more
// than the budget.
func (s *solver) certifyFloor(t int32) *Certificate {
	c := newCertificate(s.in, s.opt.Budget)
	c.Infeasible = true
	w := cutCertifier{c: c, cut: newCut(s.p, t, int32(s.p.n)), rows: map[rule]int{}}
	w.cut.build()
	c.Cuts = []int{int(t)}
	w.leaf(price{1, 0}, nil)
	if _, err := VerifyCertificate(s.in, c); err != nil {
		panic("remat: the checker rejects a certificate: " + err.Error())
	}
	return c
}

// A cutCertifier writes the proof of a search at one cut.
type cutCertifier struct {
	c    *Certificate
	cut  *cut
	rows map[rule]int
}

// certify writes the proof that the cut's value is at least bound.
func (s *search) certify(c *Certificate, bound int64) {
	c.Cuts = []int{int(s.cut.at)}
	w := cutCertifier{c: c, cut: s.cut, rows: map[rule]int{}}
	w.node(s, 0, nil, bound)
}

// node writes the case of node id of the search, -1 for one without solutions,
// and returns its index.
func (w *cutCertifier) node(s *search, id int32, fixed []decision, bound int64) int {
	if id < 0 {
		return w.leaf(price{1, 0}, fixed)
	}
	n := &s.nodes[id]
	if n.bound >= bound || n.children == [2]int32{} {
		return w.leaf(n.at, fixed)
	}
	at := len(w.c.Tree)
	split := CertVar{Kind: varKinds[residentVar], Node: int(w.cut.nodes[n.place])}
	w.c.Tree = append(w.c.Tree, CertNode{Split: &split})
	for i, kept := range [2]bool{true, false} {
		child := w.node(s, n.children[i], append(fixed[:len(fixed):len(fixed)], decision{n.place, kept}), bound)
		w.c.Tree[at].Cases[1-i] = child
	}
	return at
}

// leaf solves the cut at a price and writes price and flow.
func (w *cutCertifier) leaf(l price, fixed []decision) int {
	cut, p := w.cut, w.cut.p
	cut.load(l, fixed)
	cut.net.maxflow()
	n := CertNode{Scale: l.size}
	add := func(r rule, y int64) {
		if y > 0 {
			n.Multipliers = append(n.Multipliers, [2]int64{int64(w.row(r)), y})
		}
	}
	decided := map[int32]bool{}
	for _, d := range fixed {
		decided[d.place] = d.kept
	}
	in, out := make([]int64, len(cut.nodes)), make([]int64, len(cut.nodes))
	for _, a := range cut.implied {
		y := cut.net.res[a.arc^1]
		add(rule{inputRule, 0, cut.nodes[a.from], cut.nodes[a.to]}, y)
		out[a.from] += y
		in[a.to] += y
	}
	add(rule{kind: memoryRule}, l.money)
	for i, u := range cut.nodes {
		need := int64(0)
		if kept, ok := decided[int32(i)]; cut.needed[i] && ok && !kept {
			need = l.size*p.cost[u] + out[i]
		} else if cut.needed[i] {
			need = l.money * p.size[u]
		}
		add(rule{kind: needRule, node: u}, need)
		if decided[int32(i)] {
			add(rule{kind: eitherRule, node: u}, in[i]+need-out[i]-l.size*p.cost[u])
		}
	}
	w.c.Tree = append(w.c.Tree, n)
	return len(w.c.Tree) - 1
}

func (w *cutCertifier) row(r rule) int {
	i, ok := w.rows[r]
	if !ok {
		i = len(w.c.Rows)
		w.rows[r] = i
		name := "either"
		if r.kind != eitherRule {
			name = ruleKinds[r.kind]
		}
		w.c.Rows = append(w.c.Rows, CertRow{Rule: name, Window: int(r.window), Node: int(r.node), Other: int(r.other)})
	}
	return i
}

// eitherRule is the rule of rows that only certificates have.
const eitherRule ruleKind = -1

// certify writes the proof that the relaxation's value is at least bound.
func (s *windowSearch) certify(c *Certificate, bound int64) {
	for _, t := range s.w.cuts {
		c.Cuts = append(c.Cuts, int(t))
	}
	for r := range s.w.rules {
		c.Rows = append(c.Rows, s.w.certRow(int32(r)))
	}
	children := make([][2]int32, len(s.nodes))
	for id := range s.nodes {
		if n := &s.nodes[id]; n.parent >= 0 {
			children[n.parent][int(n.value)] = int32(id)
		}
	}
	s.certifyNode(c, 0, children, bound)
	c.dropRows()
}

func (s *windowSearch) certifyNode(c *Certificate, id int32, children [][2]int32, bound int64) int {
	n := &s.nodes[id]
	at := len(c.Tree)
	if n.proved >= bound || children[id] == [2]int32{} {
		leaf := CertNode{Scale: n.proof.scale}
		for _, w := range n.proof.rows {
			leaf.Multipliers = append(leaf.Multipliers, [2]int64{int64(w.row), w.y})
		}
		c.Tree = append(c.Tree, leaf)
		return at
	}
	split := s.w.certVar(s.nodes[children[id][0]].x)
	c.Tree = append(c.Tree, CertNode{Split: &split})
	for i, child := range children[id] {
		place := s.certifyNode(c, child, children, bound)
		c.Tree[at].Cases[i] = place
	}
	return at
}

func (w *windows) certVar(x int32) CertVar {
	v := w.vars[x]
	return CertVar{Kind: varKinds[v.kind], Window: int(v.window), Node: int(v.node), Stage: int(v.stage)}
}

func (w *windows) certRow(r int32) CertRow {
	u := w.rules[r]
	row := CertRow{Rule: ruleKinds[u.kind], Window: int(u.window), Node: int(u.node), Other: int(u.other)}
	if u.kind == pathRule {
		d := &w.paths[u.other]
		row.Other, row.Until, row.Carried = 0, int(d.until), d.carried
		for _, v := range d.nodes {
			row.Nodes = append(row.Nodes, int(v))
		}
	}
	if u.kind == roundedRule {
		d := &w.roundings[u.other]
		row.Other, row.Divisor = int(d.base), d.divisor
		for _, x := range d.complement {
			row.Complement = append(row.Complement, w.certVar(x))
		}
	}
	return row
}

// dropRows removes the rows that no leaf uses.
func (c *Certificate) dropRows() {
	used := make([]bool, len(c.Rows))
	for i := range c.Tree {
		for _, m := range c.Tree[i].Multipliers {
			used[m[0]] = true
		}
	}
	for i := len(c.Rows) - 1; i >= 0; i-- {
		if used[i] && c.Rows[i].Rule == ruleKinds[roundedRule] {
			used[c.Rows[i].Other] = true
		}
	}
	place := make([]int, len(c.Rows))
	var rows []CertRow
	for i, r := range c.Rows {
		place[i] = len(rows)
		if !used[i] {
			continue
		}
		if r.Rule == ruleKinds[roundedRule] {
			r.Other = place[r.Other]
		}
		rows = append(rows, r)
	}
	c.Rows = rows
	for i := range c.Tree {
		for j := range c.Tree[i].Multipliers {
			m := &c.Tree[i].Multipliers[j]
			m[0] = int64(place[m[0]])
		}
	}
}

// String says what a certificate proves.
func (c *Certificate) String() string {
	if c.Infeasible {
		return fmt.Sprintf("%s: no schedule fits %d bytes", c.Instance, c.Budget)
	}
	return fmt.Sprintf("%s: no schedule within %d bytes costs less than %d", c.Instance, c.Budget, c.LowerBound)
}
