package infer

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph"
)

// matmul multiplies the last two axes and broadcasts the others.
func matmul(c *call) error {
	shape, err := matmulShape(c.shape(0), c.shape(1))
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), shape)
	return nil
}

func matmulShape(a, b graph.Shape) (graph.Shape, error) {
	if a == nil || b == nil {
		return nil, nil
	}
	if len(a) == 0 || len(b) == 0 {
		return nil, fmt.Errorf("a scalar operand: %s x %s", text(a), text(b))
	}
	x, y := a, b
	if len(a) == 1 {
		x = graph.Shape{graph.Int(1), a[0]}
	}
	if len(b) == 1 {
		y = graph.Shape{b[0], graph.Int(1)}
	}
	m, n := len(x), len(y)
	if _, ok := mergeDim(x[m-1], y[n-2]); !ok {
		return nil, fmt.Errorf("inner dimensions differ: %s x %s", text(a), text(b))
	}
	batch, err := broadcast(x[:m-2], y[:n-2])
	if err != nil {
		return nil, fmt.Errorf("batch dimensions differ: %s x %s", text(a), text(b))
	}
	out := append(graph.Shape{}, batch...)
	if len(a) > 1 {
		out = append(out, x[m-2])
	}
	if len(b) > 1 {
		out = append(out, y[n-1])
	}
	return out, nil
}

// matmulInteger accumulates in int32.
func matmulInteger(c *call) error {
	shape, err := matmulShape(c.shape(0), c.shape(1))
	if err != nil {
		return err
	}
	if err := zeroPoint(c, 2, 0); err != nil {
		return err
	}
	if err := zeroPoint(c, 3, 1); err != nil {
		return err
	}
	c.out(0, graph.Int32, shape)
	return nil
}

// zeroPoint checks the zero point in input i of the tensor in input of.
func zeroPoint(c *call, i, of int) error {
	e, want := c.elem(i), c.elem(of)
	if e != graph.Undefined && want != graph.Undefined && e != want {
		return fmt.Errorf("the zero point has element type %s, the tensor %s", e, want)
	}
	return nil
}

// qlinearMatMul: a, scale, zero point, b, scale, zero point, y scale, y zero point.
func qlinearMatMul(c *call) error {
	shape, err := matmulShape(c.shape(0), c.shape(3))
	if err != nil {
		return err
	}
	if err := zeroPoint(c, 2, 0); err != nil {
		return err
	}
	if err := zeroPoint(c, 5, 3); err != nil {
		return err
	}
	c.out(0, c.elem(7), shape)
	return nil
}

// gemm is A'*B' + C of matrices.
func gemm(c *call) error {
	if err := c.wantRank(0, 2); err != nil {
		return err
	}
	if err := c.wantRank(1, 2); err != nil {
		return err
	}
	m, k := c.dim(0, 0), c.dim(0, 1)
	if c.int("transA", 0) != 0 {
		m, k = k, m
	}
	k2, n := c.dim(1, 0), c.dim(1, 1)
	if c.int("transB", 0) != 0 {
		k2, n = n, k2
	}
	if _, ok := mergeDim(k, k2); !ok {
		return fmt.Errorf("inner dimensions differ: %s x %s (transA %d, transB %d)", text(c.shape(0)), text(c.shape(1)), c.int("transA", 0), c.int("transB", 0))
	}
	out := graph.Shape{m, n}
	if s := c.shape(2); s != nil && c.ver >= 7 {
		sum, err := broadcast(out, s)
		if err != nil || len(sum) > 2 {
			return fmt.Errorf("operand C %s does not broadcast to %s", text(s), text(out))
		}
	}
	c.out(0, firstElem(c), out)
	return nil
}

// einsum evaluates the equation on the inputs' dims.
func einsum(c *call) error {
	eq := strings.ReplaceAll(c.str("equation", ""), " ", "")
	left, right, explicit := strings.Cut(eq, "->")
	terms := strings.Split(left, ",")
	if len(terms) != c.arity() {
		return fmt.Errorf("equation %q has %d operands, the node %d", eq, len(terms), c.arity())
	}
	e := einsumDims{dims: map[rune]graph.Dim{}, count: map[rune]int{}}
	for i, term := range terms {
		s := c.shape(i)
		if s == nil {
			c.out(0, c.elem(0), nil)
			return nil
		}
		if err := e.operand(term, s); err != nil {
			return fmt.Errorf("equation %q: operand %d %s: %w", eq, i, text(s), err)
		}
	}
	if !explicit {
		right = e.implicit()
	}
	shape, err := e.result(right)
	if err != nil {
		return fmt.Errorf("equation %q: %w", eq, err)
	}
	c.out(0, c.elem(0), shape)
	return nil
}

// An einsumDims collects what the operands determine about the labels.
type einsumDims struct {
	dims     map[rune]graph.Dim
	count    map[rune]int // occurrences on the left
	ellipsis graph.Shape  // broadcast dims, nil when there are none
}

func (e *einsumDims) operand(term string, s graph.Shape) error {
	head, tail, dots := strings.Cut(term, "...")
	if strings.Contains(head+tail, ".") {
		return fmt.Errorf("stray dots in %q", term)
	}
	n := len(head) + len(tail)
	if len(s) < n || !dots && len(s) != n {
		return fmt.Errorf("rank %d for %q", len(s), term)
	}
	for i, r := range head {
		if err := e.index(r, s[i]); err != nil {
			return err
		}
	}
	for i, r := range tail {
		if err := e.index(r, s[len(s)-len(tail)+i]); err != nil {
			return err
		}
	}
	if dots {
		mid := append(graph.Shape{}, s[len(head):len(s)-len(tail)]...)
		if e.ellipsis == nil {
			e.ellipsis = mid
			return nil
		}
		var err error
		if e.ellipsis, err = broadcast(e.ellipsis, mid); err != nil {
			return err
		}
	}
	return nil
}

func (e *einsumDims) index(r rune, d graph.Dim) error {
	if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
		return fmt.Errorf("%q is not an index", r)
	}
	e.count[r]++
	old, seen := e.dims[r]
	if !seen {
		e.dims[r] = d
		return nil
	}
	m, ok1 := old.Int()
	n, ok2 := d.Int()
	if ok1 && ok2 && m != n && m != 1 && n != 1 {
		return fmt.Errorf("index %q is both %d and %d", r, m, n)
	}
	e.dims[r] = broadcastDim(old, d)
	return nil
}

// implicit returns the output if the equation has none: the ellipsis, then
// labels that occur once, in alphabetical order.
func (e *einsumDims) implicit() string {
	out := ""
	if e.ellipsis != nil {
		out = "..."
	}
	for r := 'A'; r <= 'z'; r++ {
		if e.count[r] == 1 {
			out += string(r)
		}
	}
	return out
}

func (e *einsumDims) result(right string) (graph.Shape, error) {
	out := graph.Shape{}
	head, tail, dots := strings.Cut(right, "...")
	for part, list := range []string{head, tail} {
		if part == 1 && dots {
			out = append(out, e.ellipsis...)
		}
		for _, r := range list {
			d, ok := e.dims[r]
			if !ok {
				return nil, fmt.Errorf("output index %q is in no operand", r)
			}
			out = append(out, d)
		}
	}
	return out, nil
}

// det removes the last two axes, which are square.
func det(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if len(s) < 2 {
		return fmt.Errorf("input %s is not a matrix", text(s))
	}
	if _, ok := mergeDim(s[len(s)-1], s[len(s)-2]); !ok {
		return fmt.Errorf("matrices of %s are not square", text(s))
	}
	c.out(0, c.elem(0), append(graph.Shape{}, s[:len(s)-2]...))
	return nil
}
