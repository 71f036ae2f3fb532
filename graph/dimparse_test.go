package graph

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// The functions that PyTorch's exporters print, and other ways to write the
// same number, are recognised as equal.
func TestParseDimEqual(t *testing.T) {
	for _, same := range [][]string{
		{"(s0 + 1)//2", "CeilToInt(IntTrueDiv(s0, 2))", "ceil(s0/2)", "CeilDiv(s0, 2)", "floor(s0/2 - 1/2) + 1", "-((-s0)//2)", "-FloorToInt(-s0/2)", "s0 - s0//2"},
		{"s0//2", "FloorToInt(IntTrueDiv(s0, 2))", "FloorDiv(s0, 2)", "TruncToInt(s0/2)", "TruncToInt(TruncToFloat(0.5*ToFloat(s0)))", "RShift(s0, 1)", "trunc(s0*0.5)"},
		{"s0//4", "FloorDiv(FloorDiv(s0, 2), 2)", "ModularIndexing(s0, 4, 1) + s0//4", "RShift(s0, 2)", "TruncToInt(FloorToInt(s0/2)/2)"},
		{"16*((s0 + 15)//16)", "16*CeilToInt(IntTrueDiv(s0, 16))", "LShift(CeilDiv(s0, 16), 4)", "s0 + Mod(-s0, 16)"},
		{"s0 % 4", "Mod(s0, 4)", "PythonMod(s0, 4)", "ModularIndexing(s0, 1, 4)", "s0 - 4*FloorDiv(s0, 4)", "Mod(s0 + 8, 4)"},
		{"s0", "ToFloat(s0)", "Identity(s0)", "CleanDiv(6*s0, 6)", "CleanDiv(s0*s1, s1)", "2*(s0//2) + s0 % 2", "FloatTrueDiv(s0, 0.25)/4", "Abs(-s0)", "Max(s0, 0)", "RoundToInt(s0)", "(s0**2)//s0"},
		{"s0*s0", "PowByNatural(s0, 2)", "FloatPow(s0, 2)", "s0**2"},
		{"(s0 + 3)//4", "(((s0 - 1)//2))//2 + 1", "CeilToInt(IntTrueDiv(CeilToInt(IntTrueDiv(s0, 2)), 2))", "floor(floor(s0/2 - 1/2)/2) + 1"},
		{"Max(1, s0)", "Max(s0, 1)", "Max(1, Max(s0, 1))", "Max(s0 - 1, 0) + 1"},
		{"s0 + s1", "s1 + s0", "Max(s0 + s1, s1)", "CleanDiv(s0*s0 + 2*s0*s1 + s1*s1, s0 + s1)"},
		{"RoundToInt(IntTrueDiv(s0, 2))", "round(0.5*s0)", "RoundToInt(s0/2)"},
		{"-(s0//3)", "TruncToInt(-s0/3)", "-TruncToInt(s0/3)", "CeilToInt(-s0/3)"},
	} {
		want := mustDim(t, same[0])
		for _, s := range same[1:] {
			if got := mustDim(t, s); !got.Equal(want) {
				t.Errorf("%s is %s, %s is %s", s, got, same[0], want)
			}
		}
	}
}

func TestParseDimRound(t *testing.T) {
	for s, want := range map[string]int64{
		"RoundToInt(1/2)": 0, "RoundToInt(3/2)": 2, "RoundToInt(5/2)": 2, "RoundToInt(-1/2)": 0, "RoundToInt(-3/2)": -2, "RoundToInt(2.6)": 3,
		"TruncToInt(-7/2)": -3, "TruncToInt(7/2)": 3, "CeilToInt(-7/2)": -3, "Abs(-7)": 7, "LShift(3, 4)": 48, "CeilToInt(IntTrueDiv(7, 2))": 4,
	} {
		if d := mustDim(t, s); !d.Equal(Int(want)) {
			t.Errorf("%s is %s, want %d", s, d, want)
		}
	}
	for _, s := range []string{"LShift(s0, s1)", "PowByNatural(s0, -1)", "CeilToInt(s0, 2)", "IntTrueDiv(s0, 0)", "ModularIndexing(s0, 2)"} {
		if d, err := ParseDim(s); err == nil {
			t.Errorf("%s is %s, want an error", s, d)
		}
	}
}

// A phrase is the text of an expression beside its value, which is computed
// independently of Dim over rational numbers; nil where it has none.
type phrase struct {
	text string
	eval func(env []int64) *big.Rat
}

func floorRat(x *big.Rat) *big.Rat {
	q, _ := new(big.Int).DivMod(x.Num(), x.Denom(), new(big.Int)) // Euclidean: floors, for the denominator is positive
	return new(big.Rat).SetInt(q)
}

func ceilRat(x *big.Rat) *big.Rat { return new(big.Rat).Neg(floorRat(new(big.Rat).Neg(x))) }

func truncRat(x *big.Rat) *big.Rat {
	return new(big.Rat).SetInt(new(big.Int).Quo(x.Num(), x.Denom()))
}

// roundRat takes the nearer of two integers, the even one when both are near.
func roundRat(x *big.Rat) *big.Rat {
	lo := floorRat(x)
	switch new(big.Rat).Sub(x, lo).Cmp(big.NewRat(1, 2)) {
	case -1:
		return lo
	case 1:
		return ceilRat(x)
	}
	if lo.Num().Bit(0) == 0 {
		return lo
	}
	return ceilRat(x)
}

func modRat(x, y *big.Rat) *big.Rat {
	if y.Sign() == 0 {
		return nil
	}
	q := floorRat(new(big.Rat).Quo(x, y))
	return new(big.Rat).Sub(x, q.Mul(q, y))
}

// A sentence is an operation of phrases: how it is written, and its value.
type sentence struct {
	form string
	args string // of each argument: 'i' an integer, 'q' any number, 'n' a small natural number
	eval func(a []*big.Rat) *big.Rat
}

var sentences = []sentence{
	{"(%s + %s)", "qq", func(a []*big.Rat) *big.Rat { return new(big.Rat).Add(a[0], a[1]) }},
	{"(%s - %s)", "qq", func(a []*big.Rat) *big.Rat { return new(big.Rat).Sub(a[0], a[1]) }},
	{"%s*%s", "ii", func(a []*big.Rat) *big.Rat { return new(big.Rat).Mul(a[0], a[1]) }},
	{"-%s", "q", func(a []*big.Rat) *big.Rat { return new(big.Rat).Neg(a[0]) }},
	{"IntTrueDiv(%s, %s)", "in", quoRat},
	{"FloatTrueDiv(%s, %s)", "in", quoRat},
	{"(%s/%s)", "qn", quoRat},
	{"FloorToInt(%s)", "q", func(a []*big.Rat) *big.Rat { return floorRat(a[0]) }},
	{"floor(%s)", "q", func(a []*big.Rat) *big.Rat { return floorRat(a[0]) }},
	{"CeilToInt(%s)", "q", func(a []*big.Rat) *big.Rat { return ceilRat(a[0]) }},
	{"ceiling(%s)", "q", func(a []*big.Rat) *big.Rat { return ceilRat(a[0]) }},
	{"TruncToInt(%s)", "q", func(a []*big.Rat) *big.Rat { return truncRat(a[0]) }},
	{"RoundToInt(%s)", "q", func(a []*big.Rat) *big.Rat { return roundRat(a[0]) }},
	{"FloorDiv(%s, %s)", "ii", func(a []*big.Rat) *big.Rat { return floorOf(quoRat(a)) }},
	{"CeilDiv(%s, %s)", "in", func(a []*big.Rat) *big.Rat { return ceilRat(quoRat(a)) }},
	{"(%s//%s)", "ii", func(a []*big.Rat) *big.Rat { return floorOf(quoRat(a)) }},
	{"(%s %% %s)", "in", func(a []*big.Rat) *big.Rat { return modRat(a[0], a[1]) }},
	{"PythonMod(%s, %s)", "ii", func(a []*big.Rat) *big.Rat { return modRat(a[0], a[1]) }},
	{"ModularIndexing(%s, %s, %s)", "inn", func(a []*big.Rat) *big.Rat { return modRat(floorRat(quoRat(a)), a[2]) }},
	{"Max(%s, %s)", "qq", func(a []*big.Rat) *big.Rat {
		if a[0].Cmp(a[1]) > 0 {
			return a[0]
		}
		return a[1]
	}},
	{"Min(%s, %s)", "qq", func(a []*big.Rat) *big.Rat {
		if a[0].Cmp(a[1]) < 0 {
			return a[0]
		}
		return a[1]
	}},
	{"Abs(%s)", "q", func(a []*big.Rat) *big.Rat { return new(big.Rat).Abs(a[0]) }},
	{"ToFloat(%s)", "i", func(a []*big.Rat) *big.Rat { return a[0] }},
	{"PowByNatural(%s, 2)", "i", func(a []*big.Rat) *big.Rat { return new(big.Rat).Mul(a[0], a[0]) }},
	{"LShift(%s, 3)", "i", func(a []*big.Rat) *big.Rat { return new(big.Rat).Mul(a[0], big.NewRat(8, 1)) }},
	{"RShift(%s, 1)", "i", func(a []*big.Rat) *big.Rat { return floorRat(new(big.Rat).Mul(a[0], big.NewRat(1, 2))) }},
}

func quoRat(a []*big.Rat) *big.Rat {
	if a[1].Sign() == 0 {
		return nil
	}
	return new(big.Rat).Quo(a[0], a[1])
}

func floorOf(x *big.Rat) *big.Rat {
	if x == nil {
		return nil
	}
	return floorRat(x)
}

// randomPhrase returns an expression of the kind, as in sentence.args.
func randomPhrase(r *rand.Rand, kind byte, depth int) phrase {
	if kind == 'n' || depth == 0 || r.IntN(5) == 0 {
		n := int64(1 + r.IntN(7))
		if kind == 'n' || r.IntN(3) == 0 {
			return phrase{fmt.Sprint(n), func([]int64) *big.Rat { return big.NewRat(n, 1) }}
		}
		i := r.IntN(3)
		return phrase{fmt.Sprint("s", i), func(env []int64) *big.Rat { return big.NewRat(env[i], 1) }}
	}
	s := sentences[r.IntN(len(sentences))]
	texts := make([]any, len(s.args))
	args := make([]phrase, len(s.args))
	for i := range s.args {
		args[i] = randomPhrase(r, s.args[i], depth-1)
		texts[i] = args[i].text
	}
	p := phrase{fmt.Sprintf(s.form, texts...), func(env []int64) *big.Rat {
		vals := make([]*big.Rat, len(args))
		for i, a := range args {
			if vals[i] = a.eval(env); vals[i] == nil {
				return nil
			}
		}
		return s.eval(vals)
	}}
	if kind == 'i' { // a quotient there would have to be rounded
		return phrase{"floor(" + p.text + ")", func(env []int64) *big.Rat { return floorOf(p.eval(env)) }}
	}
	return p
}

// What ParseDim makes of a text has the text's value at random points, rounded
// down where it is no integer.
func TestParseDimAgainstRationals(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	parsed, points := 0, 0
	for range 30000 {
		p := randomPhrase(r, 'q', 1+r.IntN(4))
		d, err := ParseDim(p.text)
		if err != nil {
			if !strings.Contains(err.Error(), "out of range") && !strings.Contains(err.Error(), "division by zero") {
				t.Fatal(err)
			}
			continue
		}
		parsed++
		for range 6 {
			env := []int64{r.Int64N(40), 1 + r.Int64N(9), 1 + r.Int64N(300)}
			want := floorOf(p.eval(env))
			if want == nil || !want.Num().IsInt64() {
				continue
			}
			got, err := d.Eval(map[string]int64{"s0": env[0], "s1": env[1], "s2": env[2]})
			if err != nil && (strings.Contains(err.Error(), "overflow") || strings.Contains(err.Error(), "division by zero")) {
				continue
			}
			if err != nil || got != want.Num().Int64() {
				t.Fatalf("%s at %v, read as %s, is %d, %v; want %s", p.text, env, d, got, err, want.Num())
			}
			points++
		}
	}
	t.Logf("%d expressions, %d points", parsed, points)
	if parsed < 25000 || points < 120000 {
		t.Errorf("only %d expressions and %d points compared", parsed, points)
	}
}
