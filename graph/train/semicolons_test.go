package train

import (
	"slices"
	"testing"
)

// Statements of a line are told apart, but not those of a block.
func TestSimple(t *testing.T) {
	for line, want := range map[string][]string{
		`x = a`:                             {`x = a`},
		`x = a(1, "b;c"); y = x[1:2];`:      {`x = a(1, "b;c")`, `y = x[1:2]`},
		`x = a; y = 1e-5 # z; w`:            {`x = a`, `y = 1e-5 # z; w`},
		`if a: x = b; y = c`:                {`if a: x = b; y = c`},
		`b); y = c(`:                        {`b)`, `y = c(`},
		`f(lambda: (a); b`:                  {`f(lambda: (a); b`},
		`for i in x: y.append(i); z = i`:    {`for i in x: y.append(i); z = i`},
		`h = self.a(x) ; h = self.b(h) ;  `: {`h = self.a(x)`, `h = self.b(h)`},
	} {
		if got := simple(line); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// The sign of an exponent is no operator.
func TestExponent(t *testing.T) {
	list, _ := readLine("x = y.sqrt() + 1e-5 - 2.5E+3 - 0x1e-z")
	if ops := list[0].ops; ops["-"] != 3 || ops["+"] != 1 {
		t.Errorf("%v", ops)
	}
}
