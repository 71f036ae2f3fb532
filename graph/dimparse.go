package graph

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ParseDim reads a dimension as exporters write it: an integer, a symbol, or
// an expression such as "past + 1", "floor(H/2 - 1/2) + 1", "2*s0//3" or
// "Max(1, s0)". It knows + - * / // % ** and parentheses, decimal fractions,
// and the functions of dimFuncs in either case: those that SymPy prints, and
// those that PyTorch adds to it, such as CeilToInt(IntTrueDiv(s0, 2)). A
// quotient is exact inside floor and ceil and rounded down where it remains. Names consist of letters, digits, "_", ".",
// ":", "@" and "$"; any other name stands in backquotes.
func ParseDim(s string) (Dim, error) {
	if len(s) > maxText {
		return Dim{}, fmt.Errorf("dim expression of %d bytes is too long", len(s))
	}
	p := dimParser{s: s}
	p.next()
	v, err := p.sum(0)
	if err == nil && p.tok != "" {
		err = fmt.Errorf("unexpected %q", p.tok)
	}
	if err != nil {
		return Dim{}, fmt.Errorf("dim %q: %w", s, err)
	}
	d := v.num.FloorDiv(v.den)
	if !d.Known() {
		return Dim{}, fmt.Errorf("dim %q: out of range", s)
	}
	return d, nil
}

// maxText bounds the text of an expression, in bytes.
const maxText = 4096

// A ratio is an exact quotient of two polynomials.
type ratio struct{ num, den Dim }

func (x ratio) add(y ratio) ratio {
	if x.den.Equal(y.den) {
		return ratio{x.num.Add(y.num), x.den}
	}
	return ratio{x.num.Mul(y.den).Add(y.num.Mul(x.den)), x.den.Mul(y.den)}
}

func (x ratio) mul(y ratio) ratio { return ratio{x.num.Mul(y.num), x.den.Mul(y.den)} }

// over returns x/y.
func (x ratio) over(y ratio) ratio {
	if n, ok := y.num.Int(); ok && n < 0 {
		y.num, y.den = y.num.Neg(), y.den.Neg()
	}
	return x.mul(ratio{y.den, y.num})
}

func (x ratio) floor() ratio { return whole(x.num.FloorDiv(x.den)) }
func (x ratio) ceil() ratio  { return whole(x.num.CeilDiv(x.den)) }

// trunc rounds towards zero: floor(x) from zero up, ceil(x) below.
func (x ratio) trunc() ratio {
	zero := Int(0)
	return whole(x.floor().num.Max(zero).Add(x.ceil().num.Min(zero)))
}

// round rounds to the nearest integer, halves to the even one:
// floor(x/2 + 1/4) + ceil(x/2 - 1/4).
func (x ratio) round() ratio {
	half, quarter := ratio{Int(1), Int(2)}, ratio{Int(1), Int(4)}
	x = x.mul(half)
	return x.add(quarter).floor().add(x.add(quarter.mul(whole(Int(-1)))).ceil())
}

// abs returns the magnitude, rounded down where the divisor is not a constant.
func (x ratio) abs() ratio {
	if !positive(x.den) {
		return whole(x.floor().num.Max(x.ceil().num.Neg()))
	}
	return ratio{x.num.Max(x.num.Neg()), x.den}
}

// mod returns x - y*floor(x/y).
func (x ratio) mod(y ratio) ratio {
	return x.add(x.over(y).floor().mul(y).mul(whole(Int(-1))))
}

func whole(d Dim) ratio { return ratio{d, Int(1)} }

type dimParser struct {
	s    string // what is left
	tok  string // current token, "" at the end
	kind byte   // of tok: 'n'umber, 'i'dentifier, 'q'uoted or 'o'perator
}

// maxDepth bounds the nesting of parentheses and signs.
const maxDepth = 64

func (p *dimParser) next() {
	p.s = strings.TrimLeft(p.s, " \t\r\n")
	if p.s == "" {
		p.tok = ""
		return
	}
	r, _ := utf8.DecodeRuneInString(p.s)
	switch {
	case r >= '0' && r <= '9':
		p.take('n', func(r rune) bool { return r >= '0' && r <= '9' || r == '.' })
	case identRune(r, true):
		p.take('i', func(r rune) bool { return identRune(r, false) })
	case r == '`':
		p.quoted()
	case strings.HasPrefix(p.s, "**") || strings.HasPrefix(p.s, "//"):
		p.kind, p.tok, p.s = 'o', p.s[:2], p.s[2:]
	default:
		n := utf8.RuneLen(r)
		if r == utf8.RuneError {
			n = 1
		}
		p.kind, p.tok, p.s = 'o', p.s[:n], p.s[n:]
	}
}

func (p *dimParser) take(kind byte, in func(rune) bool) {
	n := strings.IndexFunc(p.s, func(r rune) bool { return !in(r) })
	if n < 0 {
		n = len(p.s)
	}
	p.kind, p.tok, p.s = kind, p.s[:n], p.s[n:]
}

// quoted reads a name in backquotes, a doubled one standing for itself. An
// unterminated name is left as the operator "`", which no rule accepts.
func (p *dimParser) quoted() {
	var name strings.Builder
	for i := 1; i < len(p.s); i++ {
		if p.s[i] != '`' {
			name.WriteByte(p.s[i])
			continue
		}
		if i+1 < len(p.s) && p.s[i+1] == '`' {
			name.WriteByte('`')
			i++
			continue
		}
		p.kind, p.tok, p.s = 'q', "`"+name.String(), p.s[i+1:]
		return
	}
	p.kind, p.tok, p.s = 'o', "`", ""
}

func identRune(r rune, first bool) bool {
	if unicode.IsLetter(r) || r == '_' {
		return true
	}
	return !first && (unicode.IsDigit(r) || r == '.' || r == ':' || r == '@' || r == '$')
}

func (p *dimParser) op(tok string) bool {
	if p.kind != 'o' || p.tok != tok {
		return false
	}
	p.next()
	return true
}

func (p *dimParser) sum(depth int) (ratio, error) {
	x, err := p.product(depth)
	for err == nil {
		sign := int64(1)
		switch {
		case p.op("+"):
		case p.op("-"):
			sign = -1
		default:
			return x, nil
		}
		var y ratio
		if y, err = p.product(depth); err == nil {
			x = x.add(y.mul(whole(Int(sign))))
		}
	}
	return x, err
}

func (p *dimParser) product(depth int) (ratio, error) {
	x, err := p.unary(depth)
	for err == nil {
		op := p.tok
		if p.kind != 'o' || (op != "*" && op != "/" && op != "//" && op != "%") {
			return x, nil
		}
		p.next()
		var y ratio
		if y, err = p.unary(depth); err != nil {
			break
		}
		if op != "*" && y.num.isInt(0) {
			return x, fmt.Errorf("division by zero")
		}
		switch op {
		case "*":
			x = x.mul(y)
		case "/":
			x = x.over(y)
		case "//":
			x = x.over(y).floor()
		case "%":
			x = x.mod(y)
		}
	}
	return x, err
}

func (p *dimParser) unary(depth int) (ratio, error) {
	if depth > maxDepth {
		return ratio{}, fmt.Errorf("nested too deeply")
	}
	if p.op("-") {
		x, err := p.unary(depth + 1)
		return x.mul(whole(Int(-1))), err
	}
	x, err := p.primary(depth)
	if err != nil || !p.op("**") {
		return x, err
	}
	y, err := p.unary(depth + 1)
	if err != nil {
		return x, err
	}
	if !y.natural() {
		return x, fmt.Errorf("exponent %s is not in 0..%d", y.num, maxPow)
	}
	return x.pow(y), nil
}

// natural reports whether x is an exponent that pow accepts.
func (x ratio) natural() bool {
	n, ok := x.num.Int()
	return ok && x.den.isInt(1) && n >= 0 && n <= maxPow
}

// pow returns x to the power of n, unknown unless n is natural.
func (x ratio) pow(n ratio) ratio {
	if !n.natural() {
		return ratio{}
	}
	out := whole(Int(1))
	for range n.num.n {
		out = out.mul(x)
	}
	return out
}

func (p *dimParser) primary(depth int) (ratio, error) {
	kind, tok := p.kind, p.tok
	if tok == "" {
		return ratio{}, fmt.Errorf("unexpected end")
	}
	p.next()
	switch {
	case kind == 'n':
		return number(tok)
	case kind == 'q':
		return whole(Sym(tok[1:])), nil
	case kind == 'i' && p.op("("):
		return p.call(tok, depth+1)
	case kind == 'i':
		return whole(Sym(tok)), nil
	case tok == "(":
		x, err := p.sum(depth + 1)
		if err == nil && !p.op(")") {
			err = fmt.Errorf("missing )")
		}
		return x, err
	}
	return ratio{}, fmt.Errorf("unexpected %q", tok)
}

// number reads an integer or a decimal fraction.
func number(tok string) (ratio, error) {
	whole, frac, dot := strings.Cut(tok, ".")
	n, err := strconv.ParseInt(whole+frac, 10, 64)
	if err != nil || (dot && len(frac) > 18) || strings.Contains(frac, ".") {
		return ratio{}, fmt.Errorf("bad number %q", tok)
	}
	den := int64(1)
	for range frac {
		den *= 10
	}
	g := gcd(n, den)
	return ratio{Int(n / g), Int(den / g)}, nil
}

// dimFuncs is the table of functions: arguments it takes (-1: one or more)
// and meaning. Names are in lower case.
var dimFuncs = []struct {
	name string
	args int
	f    func(a []ratio) ratio
}{
	{"floor", 1, func(a []ratio) ratio { return a[0].floor() }},
	{"ceil", 1, func(a []ratio) ratio { return a[0].ceil() }},
	{"ceiling", 1, func(a []ratio) ratio { return a[0].ceil() }},
	{"trunc", 1, func(a []ratio) ratio { return a[0].trunc() }},
	{"round", 1, func(a []ratio) ratio { return a[0].round() }},
	{"abs", 1, func(a []ratio) ratio { return a[0].abs() }},
	{"floordiv", 2, func(a []ratio) ratio { return a[0].over(a[1]).floor() }},
	{"ceildiv", 2, func(a []ratio) ratio { return a[0].over(a[1]).ceil() }},
	{"mod", 2, func(a []ratio) ratio { return a[0].mod(a[1]) }},
	{"min", -1, fold(Dim.Min)},
	{"max", -1, fold(Dim.Max)},
	{"broadcast", -1, fold(Dim.Broadcast)},
	// torch/utils/_sympy/functions.py
	{"floortoint", 1, func(a []ratio) ratio { return a[0].floor() }},
	{"ceiltoint", 1, func(a []ratio) ratio { return a[0].ceil() }},
	{"trunctoint", 1, func(a []ratio) ratio { return a[0].trunc() }},
	{"trunctofloat", 1, func(a []ratio) ratio { return a[0].trunc() }},
	{"roundtoint", 1, func(a []ratio) ratio { return a[0].round() }},
	{"tofloat", 1, func(a []ratio) ratio { return a[0] }},
	{"identity", 1, func(a []ratio) ratio { return a[0] }},
	{"inttruediv", 2, func(a []ratio) ratio { return a[0].over(a[1]) }},
	{"floattruediv", 2, func(a []ratio) ratio { return a[0].over(a[1]) }},
	{"cleandiv", 2, func(a []ratio) ratio { return a[0].over(a[1]).floor() }},
	{"pythonmod", 2, func(a []ratio) ratio { return a[0].mod(a[1]) }},
	{"modularindexing", 3, func(a []ratio) ratio { return a[0].over(a[1]).floor().mod(a[2]) }},
	{"lshift", 2, func(a []ratio) ratio { return a[0].mul(whole(Int(2)).pow(a[1])) }},
	{"rshift", 2, func(a []ratio) ratio { return a[0].over(whole(Int(2)).pow(a[1])).floor() }},
	{"powbynatural", 2, func(a []ratio) ratio { return a[0].pow(a[1]) }},
	{"floatpow", 2, func(a []ratio) ratio { return a[0].pow(a[1]) }},
}

// fold applies f from left to right over a common positive denominator;
// other quotients are rounded down first.
func fold(f func(Dim, Dim) Dim) func(a []ratio) ratio {
	return func(a []ratio) ratio {
		x := a[0]
		for _, y := range a[1:] {
			if !positive(x.den) || !positive(y.den) {
				x, y = x.floor(), y.floor()
			}
			x = ratio{f(x.num.Mul(y.den), y.num.Mul(x.den)), x.den.Mul(y.den)}
		}
		return x
	}
}

func positive(d Dim) bool {
	n, ok := d.Int()
	return ok && n > 0
}

func (p *dimParser) call(name string, depth int) (ratio, error) {
	var args []ratio
	for {
		x, err := p.sum(depth)
		if err != nil {
			return x, err
		}
		args = append(args, x)
		if p.op(")") {
			break
		}
		if !p.op(",") {
			return x, fmt.Errorf("missing )")
		}
	}
	for _, f := range dimFuncs {
		if f.name != strings.ToLower(name) {
			continue
		}
		if f.args >= 0 && f.args != len(args) {
			return ratio{}, fmt.Errorf("%s takes %d arguments, not %d", name, f.args, len(args))
		}
		return f.f(args), nil
	}
	return ratio{}, fmt.Errorf("unknown function %q", name)
}
