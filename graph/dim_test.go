package graph

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func mustDim(t testing.TB, s string) Dim {
	t.Helper()
	d, err := ParseDim(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDimNormalForm(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"N*4/4", "N"},
		{"X + c - X", "c"},
		{"floor((2*H)/2)", "H"},
		{"floor(H/2 - 1/2) + 1", "(H + 1)//2"},
		{"ceil(H/2)", "(H + 1)//2"},
		{"((H + 1)//2 + 1)//2", "(H + 3)//4"},
		{"floor(floor(H/2)/2)", "H//4"},
		{"a + b*2", "a + 2*b"},
		{"2*s0//3", "(2*s0)//3"},
		{"(4*s0 + 6)//4", "s0 + (s0*0 + 1)"},
		{"batch*seq*768/(batch*seq*12)", "64"},
		{"(a + b)*c/(a + b)", "c"},
		{"(a*a - b*b)/(a - b)", "a + b"},
		{"Max(1, s0)", "Max(1, s0)"},
		{"Max(s0 + 1, 1)", "s0 + 1"},
		{"Max(a, Max(b, a))", "Max(a, b)"},
		{"Max(x - 1, 0)", "Max(1, x) - 1"},
		{"Min(x + 3, x + 5)", "x + 3"},
		{"Min(4, 7)", "4"},
		{"s0 % 4 + 4*(s0//4)", "s0"},
		{"Mod(7, 4)", "3"},
		{"2**3*n**2", "8*n*n"},
		{"0.5*H", "H//2"},
		{"past + 1", "past + 1"},
		{"N/N", "1"},
		{"3*N/(6*N*M)", "1//(2*M)"},
		{"-(a - b)", "b - a"},
		{"Broadcast(a, 1)", "a"},
		{"Broadcast(a, 5)", "5"},
		{"Broadcast(a, Broadcast(b, a))", "Broadcast(a, b)"},
		{"floor((x//3)*2/2)", "x//3"},
		{"`odd name` + 1", "`odd name` + 1"},
	} {
		got, want := mustDim(t, c.in), mustDim(t, c.want)
		if !got.Equal(want) {
			t.Errorf("%s is %s, want %s", c.in, got, want)
		}
	}
}

func TestDimString(t *testing.T) {
	for _, s := range []string{
		"batch", "past + 1", "(H + 1)//2", "a*b + 2*c - 1", "-a + 1", "Max(1, s0)", "a**2*b",
		"2*(a//3)*b", "(a//b)//(c + 1)", "a//(b//c)", "`x y`*2 + 1", "Min(4, a//2) + 7", "Broadcast(a, b)",
	} {
		d := mustDim(t, s)
		if again := mustDim(t, d.String()); !again.Equal(d) {
			t.Errorf("%q prints as %q, which reads as %q", s, d, again)
		}
	}
	for _, c := range []struct {
		d    Dim
		want string
	}{
		{Dim{}, "?"}, {Int(-3), "-3"}, {Sym("batch size"), "batch size"},
		{Sym("batch size").Add(Int(1)), "`batch size` + 1"},
		{Sym("h").Add(Int(2)).Mul(Sym("b")), "b*h + 2*b"},
	} {
		if got := c.d.String(); got != c.want {
			t.Errorf("prints %q, want %q", got, c.want)
		}
	}
}

func TestParseDimErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "unexpected end"},
		{"a b", `unexpected "b"`},
		{"(a", "missing )"},
		{"a/0", "division by zero"},
		{"foo(a)", `unknown function "foo"`},
		{"floor(a, b)", "takes 1 arguments"},
		{"a +", "unexpected end"},
		{"`a", "unexpected"},
		{"99999999999999999999", "bad number"},
		{"9223372036854775807 + 1", "out of range"},
		{"2**64", "exponent 64"},
		{strings.Repeat("(", 500) + "a" + strings.Repeat(")", 500), "nested too deeply"},
		{strings.Repeat("-", 500) + "a", "nested too deeply"},
		{strings.Repeat("a+", 9000) + "a", "too long"},
		{"batch size", "unexpected"},
		{"a?", "unexpected"},
	} {
		d, err := ParseDim(c.in)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ParseDim(%.40q) = %s, %v; want an error with %q", c.in, d, err, c.want)
		}
	}
}

func TestDimUnknownAndOverflow(t *testing.T) {
	big, x := Int(1<<62), Sym("x")
	for name, d := range map[string]Dim{
		"unknown + 1":  Dim{}.Add(Int(1)),
		"2^62 + 2^62":  big.Add(big),
		"2^62 * 4":     big.Mul(Int(4)),
		"-2^62 - 2^63": Int(-1 << 62).Sub(big).Sub(big),
		"x*2^62*4":     x.Mul(big).Mul(Int(4)),
		"x/0":          x.FloorDiv(Int(0)),
		"min / -1":     Int(-1 << 63).FloorDiv(Int(-1)),
		"-min":         Int(-1 << 63).Neg(),
		"2, 3":         Int(2).Broadcast(Int(3)),
	} {
		if d.Known() || d.Equal(d) {
			t.Errorf("%s is %s, want unknown", name, d)
		}
	}
	if _, err := x.Mul(x).Eval(map[string]int64{"x": 1 << 40}); err == nil || !strings.Contains(err.Error(), "overflows") {
		t.Errorf("x*x at 2^40: %v", err)
	}
	if _, err := x.Eval(nil); err == nil || !strings.Contains(err.Error(), `"x" is unbound`) {
		t.Errorf("unbound: %v", err)
	}
	if _, err := Int(4).FloorDiv(x).Eval(map[string]int64{"x": 0}); err == nil || !strings.Contains(err.Error(), "division by zero") {
		t.Errorf("4/0: %v", err)
	}
	grown := Sym("a")
	for i := range 200 {
		grown = grown.Mul(grown.Add(Sym(fmt.Sprint("b", i))))
	}
	if grown.Known() {
		t.Errorf("an expression of %d bytes was kept", len(grown.String()))
	}
}

func TestDimSymbolsSubstJSON(t *testing.T) {
	d := mustDim(t, "Max(b, a*2)//3 + a*c")
	if got := d.Symbols(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("symbols %v", got)
	}
	got := d.Subst(map[string]Dim{"a": Int(4), "b": Int(5)})
	if want := mustDim(t, "4*c + 2"); !got.Equal(want) {
		t.Errorf("substituted: %s, want %s", got, want)
	}
	if got := mustDim(t, "n + 1").Subst(map[string]Dim{"n": mustDim(t, "m - 1")}); !got.Equal(Sym("m")) {
		t.Errorf("n+1 at n = m-1 is %s", got)
	}
	for _, d := range []Dim{{}, Int(7), d, Sym("odd name!")} {
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var back Dim
		if err := json.Unmarshal(b, &back); err != nil || (d.Known() && !back.Equal(d)) || back.Known() != d.Known() {
			t.Errorf("%s goes through JSON as %s: %s, %v", d, b, back, err)
		}
	}
}

func TestDimConstantsDoNotAllocate(t *testing.T) {
	a, b, n := Int(24), Int(7), Int(0)
	allocs := testing.AllocsPerRun(100, func() {
		n = a.Add(b).Sub(b).Mul(b).FloorDiv(b).CeilDiv(b).Mod(b).Min(a).Max(b).Neg().Neg()
	})
	if allocs != 0 || !n.Equal(Int(7)) {
		t.Errorf("%v allocations, result %s", allocs, n)
	}
}

// A tree is an expression evaluated independently of Dim, over big integers.
type tree struct {
	op   byte // 'c', 's', + - * / % m(in) M(ax) b(roadcast)
	n    int64
	x, y *tree
}

func randomTree(r *rand.Rand, depth int) *tree {
	if depth == 0 || r.IntN(5) == 0 {
		if r.IntN(2) == 0 {
			return &tree{op: 'c', n: int64(r.IntN(13) - 4)}
		}
		return &tree{op: 's', n: int64(r.IntN(4))}
	}
	const ops = "+++---***///%mMb"
	return &tree{op: ops[r.IntN(len(ops))], x: randomTree(r, depth-1), y: randomTree(r, depth-1)}
}

func (e *tree) dim() Dim {
	switch e.op {
	case 'c':
		return Int(e.n)
	case 's':
		return Sym(string(rune('p' + e.n)))
	}
	x, y := e.x.dim(), e.y.dim()
	switch e.op {
	case '+':
		return x.Add(y)
	case '-':
		return x.Sub(y)
	case '*':
		return x.Mul(y)
	case '/':
		return x.FloorDiv(y)
	case '%':
		return x.Mod(y)
	case 'm':
		return x.Min(y)
	case 'M':
		return x.Max(y)
	}
	return x.Broadcast(y)
}

// eval returns nil where the expression is undefined.
func (e *tree) eval(env []int64) *big.Int {
	switch e.op {
	case 'c':
		return big.NewInt(e.n)
	case 's':
		return big.NewInt(env[e.n])
	}
	x, y := e.x.eval(env), e.y.eval(env)
	if x == nil || y == nil {
		return nil
	}
	one := big.NewInt(1)
	switch e.op {
	case '+':
		return x.Add(x, y)
	case '-':
		return x.Sub(x, y)
	case '*':
		return x.Mul(x, y)
	case 'm', 'M':
		if (x.Cmp(y) < 0) == (e.op == 'm') {
			return x
		}
		return y
	case 'b':
		switch {
		case x.Cmp(y) == 0 || y.Cmp(one) == 0:
			return x
		case x.Cmp(one) == 0:
			return y
		}
		return nil
	}
	if y.Sign() == 0 {
		return nil
	}
	q, m := new(big.Int).DivMod(x, y, new(big.Int)) // Euclidean: 0 <= m
	if y.Sign() < 0 && m.Sign() != 0 {
		q.Sub(q, one)
		m.Add(m, y)
	}
	if e.op == '/' {
		return q
	}
	return m
}

// checkTree compares Dim's value with the independent one at random points,
// before and after printing and parsing, and after partial substitution.
func checkTree(t *testing.T, r *rand.Rand, e *tree) (points int) {
	d := e.dim()
	if !d.Known() {
		return 0
	}
	again, err := ParseDim(d.String())
	if err != nil || !again.Equal(d) {
		t.Fatalf("%s reads back as %s, %v", d, again, err)
	}
	lo, hi := d.Bounds()
	for range 8 {
		env := []int64{r.Int64N(20), r.Int64N(20), r.Int64N(5), r.Int64N(200)}
		want := e.eval(env)
		if want == nil || !want.IsInt64() {
			continue
		}
		m, half := map[string]int64{}, map[string]Dim{}
		for i, n := range env {
			m[string(rune('p'+i))] = n
			if i%2 == 0 {
				half[string(rune('p'+i))] = Int(n)
			}
		}
		for _, d := range []Dim{d, d.Subst(half)} {
			got, err := d.Eval(m)
			if err != nil && (strings.Contains(err.Error(), "overflow") || !d.Known()) {
				continue
			}
			if err != nil || got != want.Int64() {
				t.Fatalf("%s at %v is %d, %v; want %s", d, m, got, err, want)
			}
			if got < lo || got > hi {
				t.Fatalf("%s at %v is %d, outside its bounds [%d, %d]", d, m, got, lo, hi)
			}
			points++
		}
	}
	return points
}

func TestDimAgainstBigIntegers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	points := 0
	for range 20000 {
		points += checkTree(t, r, randomTree(r, 1+r.IntN(4)))
	}
	if points < 100000 {
		t.Errorf("only %d points compared", points)
	}
}

// Ring laws must hold in the normal form, not only in value.
func TestDimRingLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	checked := 0
	for range 5000 {
		a, b, c := randomTree(r, 2).dim(), randomTree(r, 2).dim(), randomTree(r, 2).dim()
		for name, p := range map[string][2]Dim{
			"a+b = b+a":         {a.Add(b), b.Add(a)},
			"(a+b)-b = a":       {a.Add(b).Sub(b), a},
			"(a+b)*c = ac+bc":   {a.Add(b).Mul(c), a.Mul(c).Add(b.Mul(c))},
			"max(a,b)=max(b,a)": {a.Max(b), b.Max(a)},
			"(4a+b)/4 = a+b/4":  {a.Mul(Int(4)).Add(b).FloorDiv(Int(4)), a.Add(b.FloorDiv(Int(4)))},
			"6a/6 = a":          {a.Mul(Int(6)).FloorDiv(Int(6)), a},
		} {
			if !p[0].Known() || !p[1].Known() {
				continue
			}
			checked++
			if !p[0].Equal(p[1]) {
				t.Fatalf("%s: a=%s b=%s c=%s: %s and %s", name, a, b, c, p[0], p[1])
			}
		}
	}
	if checked < 10000 {
		t.Errorf("only %d checked", checked)
	}
}

func FuzzParseDim(f *testing.F) {
	for _, s := range []string{"batch", "floor(H/2 - 1/2) + 1", "2*s0//3", "Max(1, s0)", "`a b`**2 % -3", "(((a", "1.5*x/(y - 2)", "A/2/A%A/200", "-9223372036854775808"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDim(s)
		if err != nil {
			return
		}
		again, err := ParseDim(d.text())
		if err != nil || !again.Equal(d) {
			t.Fatalf("%q is %q, which reads as %q, %v", s, d.text(), again, err)
		}
	})
}

func BenchmarkDim(b *testing.B) {
	b.Run("constants", func(b *testing.B) {
		x, y := Int(12), Int(5)
		for b.Loop() {
			x.Mul(y).Add(x).FloorDiv(y)
		}
	})
	b.Run("symbols", func(b *testing.B) {
		x, y := Sym("batch"), Sym("seq")
		for b.Loop() {
			x.Mul(y).Mul(Int(768)).FloorDiv(x.Mul(y))
		}
	})
}

// rewritten returns a tree of the same value, by identities of floors that
// the normal form does not know.
func (e *tree) rewritten(r *rand.Rand) *tree {
	if e.op == 'c' || e.op == 's' {
		return e
	}
	out := &tree{op: e.op, x: e.x.rewritten(r), y: e.y.rewritten(r)}
	if e.op != '/' || e.y.op != 'c' || e.y.n <= 0 {
		return out
	}
	minus := func(x, y *tree) *tree { return &tree{op: '-', x: x, y: y} }
	plus := func(x *tree, n int64) *tree { return &tree{op: '+', x: x, y: &tree{op: 'c', n: n}} }
	d := e.y.n
	switch r.IntN(3) {
	case 0: // floor(x/d) = -floor((d - 1 - x)/d)
		return minus(&tree{op: 'c'}, &tree{op: '/', x: minus(&tree{op: 'c', n: d - 1}, out.x), y: out.y})
	case 1: // floor(x/d) = floor(x/(2*d)) + floor((x + d)/(2*d))
		double := &tree{op: 'c', n: 2 * d}
		return &tree{op: '+', x: &tree{op: '/', x: out.x, y: double}, y: &tree{op: '/', x: plus(out.x, d), y: double}}
	}
	return out
}

// quasi returns a tree of sums, products by constants and floors, over one
// or two symbols.
func quasi(r *rand.Rand, depth int) *tree {
	if depth == 0 || r.IntN(6) == 0 {
		return &tree{op: 's', n: int64(r.IntN(2))}
	}
	constant := func(lo, n int) *tree { return &tree{op: 'c', n: int64(lo + r.IntN(n))} }
	switch r.IntN(4) {
	case 0:
		return &tree{op: '+', x: quasi(r, depth-1), y: constant(-3, 8)}
	case 1:
		return &tree{op: '-', x: quasi(r, depth-1), y: quasi(r, depth-1)}
	case 2:
		return &tree{op: '*', x: quasi(r, depth-1), y: constant(-2, 6)}
	}
	return &tree{op: '/', x: quasi(r, depth-1), y: constant(2, 3)}
}

// Equal knows an expression again however its floors are written, and never
// calls two expressions equal that differ at some point.
func TestDimEqual(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	same, apart, missed, differ := 0, 0, 0, 0
	for range 4000 {
		e := quasi(r, 3)
		a, b, other := e.dim(), e.rewritten(r).dim(), quasi(r, 2)
		if !a.Known() || !b.Known() {
			continue
		}
		if a.String() != b.String() {
			apart++
		}
		if a.Equal(b) && b.Equal(a) && a.Sub(b).isInt(0) {
			same++
		} else {
			missed++
			t.Logf("%s and %s are not found equal", a, b)
		}
		if !a.Equal(other.dim()) {
			continue
		}
		differ++
		for n := range int64(400) {
			env := []int64{n % 20, n / 20}
			if x, y := e.eval(env), other.eval(env); x.Cmp(y) != 0 {
				t.Fatalf("%s and %s are called equal, but are %s and %s at %v", a, other.dim(), x, y, env)
			}
		}
	}
	t.Logf("%d found equal, of which %d have two normal forms; %d missed; %d of independent pairs equal", same, apart, missed, differ)
	if apart < 300 || differ < 50 || missed*100 > same {
		t.Error("too few cases, or too many missed")
	}
}

func BenchmarkDimEqual(b *testing.B) {
	for _, c := range [][2]string{{"(H + 1)//2", "H - H//2"}, {"(H + 1)//2", "(W + 1)//2"}, {"16*((s0 + 15)//16)", "s0 + Mod(-s0, 16)"}} {
		x, y := mustDim(b, c[0]), mustDim(b, c[1])
		b.Run(c[0]+" and "+c[1], func(b *testing.B) {
			for b.Loop() {
				x.Equal(y)
			}
		})
	}
}
