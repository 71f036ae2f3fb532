package remat

import (
	"errors"
	"fmt"
	"math/big"
)

// VerifyCertificate checks a certificate against the instance and returns the
// proved lower bound on the cost of every schedule, or an error if it proves
// less than it claims. It shares no code with the solver: it derives every row
// from its rule, in integers of any size.
func VerifyCertificate(in *Instance, c *Certificate) (bound int64, err error) {
	if err := in.Validate(); err != nil {
		return 0, err
	}
	if c.SchemaVersion != CertificateVersion {
		return 0, fmt.Errorf("certificate of version %d: this program reads version %d", c.SchemaVersion, CertificateVersion)
	}
	v := newVerifier(in, c)
	if err := v.rowsOf(c); err != nil {
		return 0, err
	}
	total := in.Total()
	bound = total
	if len(c.Tree) > 0 {
		more, err := v.tree(c.Tree, 0, map[CertVar]int64{}, 0)
		if err != nil {
			return 0, err
		}
		if c.Infeasible && more != nil {
			return 0, fmt.Errorf("the certificate does not exclude all schedules")
		}
		if more != nil && more.Sign() > 0 {
			bound += more.Int64()
		}
	} else if c.Infeasible {
		return 0, errors.New("the certificate has no cases")
	}
	if bound < c.LowerBound {
		return 0, fmt.Errorf("the certificate proves a cost of %d, less than the %d that it says", bound, c.LowerBound)
	}
	return bound, nil
}

// A verifier holds the instance in the form of the rules: costs and sizes
// divided by their common divisors, and the outputs to keep as the inputs of
// one more node that costs nothing.
type verifier struct {
	nodes   []Node
	readers [][]int
	cuts    []int
	unit    int64 // common divisor of the costs
	free    int64 // memory for outputs
	useful  []map[int]bool
	rows    []verifiedRow
}

type verifiedRow struct { // sum of terms >= bound
	terms map[CertVar]int64
	bound int64
}

func newVerifier(in *Instance, c *Certificate) *verifier {
	v := &verifier{nodes: append([]Node(nil), in.Nodes...), cuts: c.Cuts, free: c.Budget - in.Fixed}
	var keep []int
	var size int64 // common divisor of the sizes
	for u := range in.Nodes {
		n := &in.Nodes[u]
		if n.Keep {
			keep = append(keep, u)
		}
		v.unit, size = divisor(v.unit, n.Cost), divisor(divisor(size, n.Size), n.Work)
	}
	v.unit, size = max(v.unit, 1), max(size, -size, 1)
	for u := range v.nodes {
		n := &v.nodes[u]
		n.Cost, n.Size, n.Work = n.Cost/v.unit, n.Size/size, n.Work/size
	}
	v.free, _ = euclid(v.free, size)
	if keep != nil {
		v.nodes = append(v.nodes, Node{Preds: keep})
	}
	v.readers = make([][]int, len(v.nodes))
	for u := range v.nodes {
		for _, p := range v.nodes[u].Preds {
			v.readers[p] = append(v.readers[p], u)
		}
	}
	return v
}

func divisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// rowsOf derives all rows.
func (v *verifier) rowsOf(c *Certificate) error {
	for i, t := range v.cuts {
		if t < 0 || t >= len(v.nodes) || i > 0 && t <= v.cuts[i-1] {
			return fmt.Errorf("cut %d: node %d is out of order or range", i, t)
		}
	}
	v.findUseful()
	simple := len(v.cuts) == 1
	for i := range c.Rows {
		r := &c.Rows[i]
		if r.Rule != "memory" && r.Rule != "need" && r.Rule != "input" && r.Rule != "either" {
			simple = false
		}
	}
	for i := range c.Rows {
		r := &c.Rows[i]
		if r.Rule == "either" && !simple {
			return fmt.Errorf("row %d: rule either beside rules that cannot do without", i)
		}
		row, err := v.row(r)
		if err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		v.rows = append(v.rows, row)
	}
	return nil
}

// findUseful finds the executions that a window may have in a schedule without
// useless ones.
func (v *verifier) findUseful() {
	v.useful = make([]map[int]bool, len(v.cuts))
	for i := len(v.cuts) - 1; i >= 0; i-- {
		useful := map[int]bool{}
		for u := v.end(i) - 1; u >= 0; u-- {
			later := i+1 < len(v.cuts) && v.useful[i+1][u] && u < v.cuts[i+1]
			if u < v.cuts[i] {
				later = later || v.readIn(u, i)
			} else {
				later = later || v.lastReader(u) > u+1
			}
			useful[u] = later
		}
		for u := v.end(i) - 1; u >= 0; u-- {
			if !useful[u] || v.nodes[u].Once {
				continue
			}
			for _, p := range v.nodes[u].Preds {
				useful[p] = true
			}
		}
		v.useful[i] = useful
	}
}

// end returns the node that ends window i.
func (v *verifier) end(i int) int {
	if i+1 < len(v.cuts) {
		return v.cuts[i+1]
	}
	return len(v.nodes)
}

// nextReader returns the first node from s on that reads u, or the number of
// nodes.
func (v *verifier) nextReader(u, s int) int {
	for _, r := range v.readers[u] {
		if r >= s {
			return r
		}
	}
	return len(v.nodes)
}

func (v *verifier) lastReader(u int) int {
	if n := len(v.readers[u]); n > 0 {
		return v.readers[u][n-1]
	}
	return u
}

func (v *verifier) readIn(u, i int) bool {
	r := v.nextReader(u, v.cuts[i]+1)
	return r < len(v.nodes) && r <= v.end(i)
}

// windowOf returns the window of stage s.
func (v *verifier) windowOf(s int) int {
	for i := range v.cuts {
		if s <= v.end(i) {
			return i
		}
	}
	return len(v.cuts) - 1
}

// leaves returns the bytes of memory that an execution of u leaves free.
func (v *verifier) leaves(u int) int64 {
	n := v.free - v.nodes[u].Size - v.nodes[u].Work
	for _, p := range v.nodes[u].Preds {
		n -= v.nodes[p].Size
	}
	return n
}

func (v *verifier) reads(u, p int) bool {
	for _, q := range v.nodes[u].Preds {
		if p == q {
			return true
		}
	}
	return false
}

var errRow = errors.New("names something that does not exist")

// row derives the inequality of a rule.
func (v *verifier) row(r *CertRow) (verifiedRow, error) {
	row := verifiedRow{terms: map[CertVar]int64{}}
	i, u := r.Window, r.Node
	if i < 0 || i >= len(v.cuts) || u < 0 || u >= len(v.nodes) || r.Other < 0 || r.Rule != "rounded" && r.Other >= len(v.nodes) {
		return row, errRow
	}
	add := func(kind string, window, node int, a int64) {
		row.terms[CertVar{Kind: kind, Window: window, Node: node}] += a
	}
	t := v.cuts[i]
	switch r.Rule {
	case "memory":
		row.bound = -v.leaves(t)
		for u := range t {
			if !v.reads(t, u) {
				add("resident", i, u, -v.nodes[u].Size)
			}
		}
	case "need", "either":
		if u >= t || !v.readIn(u, i) && r.Rule == "need" {
			return row, errRow
		}
		row.bound = 1
		if r.Rule == "either" {
			row.bound = -1
		}
		add("resident", i, u, row.bound)
		add("again", i, u, row.bound)
	case "carry":
		if u >= t || i+1 >= len(v.cuts) {
			return row, errRow
		}
		add("resident", i+1, u, -1)
		add("resident", i, u, 1)
		add("again", i, u, 1)
	case "input":
		if !v.reads(u, r.Other) || r.Other >= t {
			return row, errRow
		}
		add("again", i, u, -1)
		add("resident", i, r.Other, 1)
		add("again", i, r.Other, 1)
	case "hold":
		if r.Other <= v.cuts[0] {
			return row, errRow
		}
		v.held(&row, r.Other, r.Other, r.Other+1, false)
	case "when":
		s := v.nextReader(u, t+1)
		if u >= t || s == len(v.nodes) {
			return row, errRow
		}
		row.bound = 1
		add("resident", i, u, 1)
		for stage := t + 1; stage <= s; stage++ {
			row.terms[CertVar{"event", i, u, stage}] = 1
		}
	case "room":
		if u >= t || r.Other <= t {
			return row, errRow
		}
		v.held(&row, r.Other, u, r.Other, true)
		row.terms[CertVar{"event", i, u, r.Other}] = -row.bound
		row.bound = 0
	case "path":
		return v.path(r)
	case "rounded":
		return v.rounded(r)
	default:
		return row, fmt.Errorf("unknown rule %q", r.Rule)
	}
	return row, nil
}

// held adds to row the sizes of outputs that are read from node reads on and
// not executed again between stage s and their reader: they must fit beside
// node u.
func (v *verifier) held(row *verifiedRow, s, u, reads int, itself bool) {
	row.bound = -v.leaves(u)
	for p := range s {
		next := v.nextReader(p, reads)
		if next == len(v.nodes) || v.reads(u, p) || itself && p == u {
			continue
		}
		row.bound += v.nodes[p].Size
		for j := v.windowOf(s); j <= v.windowOf(next); j++ {
			row.terms[CertVar{Kind: "again", Window: j, Node: p}] += v.nodes[p].Size
		}
	}
}

// path derives the row of a chain of inputs, the first of which is needed.
func (v *verifier) path(r *CertRow) (verifiedRow, error) {
	row := verifiedRow{terms: map[CertVar]int64{}, bound: 1}
	t := v.cuts[r.Window]
	if r.Until < r.Window || r.Until >= len(v.cuts) || len(r.Nodes) == 0 {
		return row, errRow
	}
	for k, u := range r.Nodes {
		if u < 0 || u >= t || k > 0 && !v.reads(r.Nodes[k-1], u) {
			return row, errRow
		}
		row.terms[CertVar{Kind: "resident", Window: r.Window, Node: u}]++
	}
	first, last := r.Nodes[0], r.Nodes[len(r.Nodes)-1]
	switch next := v.nextReader(first, t+1); {
	case r.Carried && r.Until+1 < len(v.cuts):
		row.bound = 0
		row.terms[CertVar{Kind: "resident", Window: r.Until + 1, Node: first}]--
	case r.Carried || next == len(v.nodes) || next > v.end(r.Until):
		return row, errRow
	}
	for j := r.Window; j <= r.Until; j++ {
		row.terms[CertVar{Kind: "again", Window: j, Node: last}]++
	}
	return row, nil
}

// rounded derives a row by mixed-integer rounding: with y for x, or for 1 - x
// where that is complemented, sum a y >= b becomes sum (floor(a/d) f +
// min(a mod d, f)) y >= (floor(b/d) + 1) f for f = b mod d.
func (v *verifier) rounded(r *CertRow) (verifiedRow, error) {
	out := verifiedRow{terms: map[CertVar]int64{}}
	if r.Other >= len(v.rows) || r.Divisor <= 0 {
		return out, errRow
	}
	base := v.rows[r.Other]
	flip := map[CertVar]bool{}
	b := base.bound
	for _, x := range r.Complement {
		if flip[x] {
			return out, errRow
		}
		flip[x] = true
		b -= base.terms[x]
	}
	whole, f := euclid(b, r.Divisor)
	out.bound = (whole + 1) * f
	for x, a := range base.terms {
		if flip[x] {
			whole, rest := euclid(-a, r.Divisor)
			out.terms[x] = -(whole*f + min(rest, f))
			out.bound += out.terms[x]
			continue
		}
		whole, rest := euclid(a, r.Divisor)
		out.terms[x] = whole*f + min(rest, f)
	}
	if f == 0 {
		return base, nil
	}
	return out, nil
}

func euclid(a, d int64) (quotient, remainder int64) {
	quotient, remainder = a/d, a%d
	if remainder < 0 {
		return quotient - 1, remainder + d
	}
	return quotient, remainder
}

// tree returns the cost of recomputation that a case proves, nil if the case
// has no schedule.
func (v *verifier) tree(tree []CertNode, at int, fixed map[CertVar]int64, depth int) (*big.Int, error) {
	if at < 0 || at >= len(tree) || depth > len(tree) {
		return nil, fmt.Errorf("case %d does not exist", at)
	}
	n := &tree[at]
	if n.Split == nil {
		return v.leaf(n, fixed)
	}
	if _, twice := fixed[*n.Split]; twice {
		return nil, fmt.Errorf("case %d splits on a decided variable", at)
	}
	var least *big.Int
	for value, next := range n.Cases {
		fixed[*n.Split] = int64(value)
		b, err := v.tree(tree, next, fixed, depth+1)
		if err != nil {
			return nil, err
		}
		if b != nil && (least == nil || b.Cmp(least) < 0) {
			least = b
		}
	}
	delete(fixed, *n.Split)
	return least, nil
}

// leaf combines rows: the least value, over all admissible variables, of scale
// times the cost plus what the rows lack.
func (v *verifier) leaf(n *CertNode, fixed map[CertVar]int64) (*big.Int, error) {
	if n.Scale < 0 {
		return nil, errors.New("a negative scale")
	}
	sum := new(big.Int)
	reduced := map[CertVar]*big.Int{}
	for i := range v.cuts {
		for u, useful := range v.useful[i] {
			if useful && v.nodes[u].Cost > 0 {
				reduced[CertVar{Kind: "again", Window: i, Node: u}] = product(n.Scale, v.nodes[u].Cost)
			}
		}
	}
	for _, m := range n.Multipliers {
		if m[0] < 0 || m[0] >= int64(len(v.rows)) || m[1] < 0 {
			return nil, fmt.Errorf("multiplier %d of row %d", m[1], m[0])
		}
		row := &v.rows[m[0]]
		sum.Add(sum, product(m[1], row.bound))
		for x, a := range row.terms {
			if reduced[x] == nil {
				reduced[x] = new(big.Int)
			}
			reduced[x].Sub(reduced[x], product(m[1], a))
		}
	}
	for x, d := range reduced {
		low, high := v.domain(x, fixed)
		if d.Sign() > 0 {
			sum.Add(sum, d.Mul(d, big.NewInt(low)))
		} else {
			sum.Add(sum, d.Mul(d, big.NewInt(high)))
		}
	}
	if n.Scale == 0 {
		if sum.Sign() > 0 {
			return nil, nil //nolint:nilnil // the case is empty
		}
		return sum, nil
	}
	whole, rest := new(big.Int).DivMod(sum, big.NewInt(n.Scale), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole.Mul(whole, big.NewInt(v.unit)), nil
}

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

// domain returns the values that a variable may have in a case.
func (v *verifier) domain(x CertVar, fixed map[CertVar]int64) (low, high int64) {
	if value, ok := fixed[x]; ok {
		return value, value
	}
	switch {
	case x.Kind == "resident" && v.reads(v.cuts[x.Window], x.Node):
		return 1, 1
	case x.Kind != "event" && !v.useful[x.Window][x.Node]:
		return 0, 0
	case x.Kind == "again" && v.nodes[x.Node].Once:
		return 0, 0
	}
	return 0, 1
}
