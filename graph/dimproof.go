package graph

import (
	"math"
	"sync"
)

// The normal form does not bring every pair of equal expressions together:
// H - H//2 and (H + 1)//2 are both worth keeping, for how they print and for
// their bounds. Two expressions that have the same value at two fixed points
// are therefore compared case by case: with H = 2*t + r both become
// polynomials in t, for each r.

// samples are the values of an expression at two points; ok is false where
// one of them is not known. Equal expressions have equal samples where both
// are known.
type samples struct {
	at [2]int64
	ok bool
}

// Limits on one comparison: the cases, and the cases times the bytes of the
// expression's text, so that none takes more than a few milliseconds.
const (
	maxCases = 512
	maxProof = 1 << 14
)

// proofs remembers what was shown of expressions, by their text: a model
// compares the same dims in every layer.
var proofs struct {
	sync.Mutex
	done map[string]bool
}

func sampleInt(n int64) samples { return samples{[2]int64{n, n}, true} }

// sampleSym places a symbol between 128 and 1024, so that a product of six
// does not overflow.
func sampleSym(name string) samples {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= h >> 29
	return samples{[2]int64{128 + int64(h%897), 128 + int64(h>>32%896)}, true}
}

func (d Dim) samples() samples {
	switch d.kind {
	case dimInt:
		return sampleInt(d.n)
	case dimExpr:
		return d.e.at
	}
	return samples{}
}

func (p poly) samples() samples {
	var out samples
	for i := range out.at {
		for _, t := range p {
			c := t.c
			for _, f := range t.m {
				for range f.pow {
					n, ok := mulInt(c, f.a.at.at[i])
					if !ok || !f.a.at.ok {
						return samples{}
					}
					c = n
				}
			}
			n, ok := addInt(out.at[i], c)
			if !ok {
				return samples{}
			}
			out.at[i] = n
		}
	}
	out.ok = true
	return out
}

func (a *atom) samples() samples {
	out := a.args[0].samples()
	for _, d := range a.args {
		out.ok = out.ok && d.samples().ok
	}
	if !out.ok {
		return samples{}
	}
	for i := range out.at {
		if a.op == opBroadcast { // undefined at most points: any symmetric function will do
			out.at[i] = 0
			for _, d := range a.args {
				n := d.samples().at[i] % 1021
				out.at[i] += n * n
			}
			continue
		}
		for _, d := range a.args[1:] {
			n, err := a.op.apply(out.at[i], d.samples().at[i])
			if err != nil {
				return samples{}
			}
			out.at[i] = n
		}
	}
	return out
}

// folded returns d as an integer if it can be shown to be one.
func (d Dim) folded() Dim {
	if d.kind != dimExpr || !d.e.at.ok || d.e.at.at[0] != d.e.at.at[1] {
		return d
	}
	c := Int(d.e.at.at[0])
	proofs.Lock()
	equal, done := proofs.done[d.e.key]
	proofs.Unlock()
	if !done {
		equal = d.always(c)
		proofs.Lock()
		if len(proofs.done) >= 1024 || proofs.done == nil {
			proofs.done = map[string]bool{}
		}
		proofs.done[d.e.key] = equal
		proofs.Unlock()
	}
	if equal {
		return c
	}
	return d
}

// always reports whether d is c in each case that the constant divisors in it
// tell apart.
func (d Dim) always(c Dim) bool {
	var split splits
	split.add(d, 1)
	cases := int64(1)
	for _, s := range split {
		if cases *= s.period; cases > maxCases || cases*int64(len(d.e.key)) > maxProof { // no overflow: a period is at most 2^31
			return false
		}
	}
	if cases == 1 {
		return false
	}
	env := make(map[string]Dim, len(split))
	for n := range cases {
		for _, s := range split {
			env[s.name] = Sym(s.name).Mul(Int(s.period)).Add(Int(n % s.period))
			n /= s.period
		}
		if got := d.Subst(env); got.kind != dimInt || got.n != c.n {
			return false
		}
	}
	return true
}

// splits lists symbols beside what their values are to be divided by.
type splits []struct {
	name   string
	period int64
}

// add finds the symbols of d, which stands within divisors whose product is
// the period.
func (s *splits) add(d Dim, period int64) {
	if d.kind != dimExpr {
		return
	}
	for _, t := range d.e.terms {
		for _, f := range t.m {
			if f.a.op == opSym {
				s.lcm(f.a.name, period)
			}
			for _, x := range f.a.args {
				p := period
				if c, ok := f.a.args[len(f.a.args)-1].Int(); ok && f.a.op == opFloor {
					if p, ok = mulInt(p, c); !ok || p < 1 || p > maxCases {
						p = maxCases + 1
					}
				}
				s.add(x, p)
			}
		}
	}
}

func (s *splits) lcm(name string, period int64) {
	for i, x := range *s {
		if x.name == name {
			(*s)[i].period = min(x.period/gcd(x.period, period)*period, math.MaxInt32)
			return
		}
	}
	*s = append(*s, struct {
		name   string
		period int64
	}{name, period})
}
