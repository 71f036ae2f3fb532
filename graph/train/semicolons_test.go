package train

import (
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
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

// Items belong to the statements that call them, over several runs of the line and where the file
// lacks calls (chunk is split, the last run's x is not computed).
func TestPlace(t *testing.T) {
	for _, c := range []struct{ line, items, want string }{
		{"a, b = d(x).chunk(2, 1); h = torch.tanh(a) * torch.sigmoid(b); rs, sk = r(h).split(64, 1); x = (x + rs) * c; s = s + sk",
			"d.0: split tanh sigmoid mul r.0: split add mul add d.1: split tanh sigmoid mul r.1: split add", "0 0 1 1 1 2 2 3 3 4 0 0 1 1 1 2 2 3"},
		{"mu = x.mean(1).detach(); sd = torch.sqrt(x.var(1) + 1e-5); x = (x - mu) / sd", "mean detach var broadcast_in_dim add sqrt sub div", "0 0 1 1 1 1 2 2"},
		{"p = torch.cat([x[:, :1].repeat(1), x], 1); t = self.k(p.permute(0)).permute(1); r = x - t", "slice repeat cat permute k: permute sub", "0 0 0 1 1 1 2"},
		{"x = self.a(x); x = self.b(x)", "a: b: a: b:", "0 1 0 1"},
		{"x = F.relu(x); y = x", "relu", "0"},
	} {
		s := &sources{g: &graph.Graph{}, read: map[string][]statement{}, dels: map[string][]string{}}
		var items []item
		for i, word := range strings.Fields(c.items) {
			op, child := word, ""
			if name, ok := strings.CutSuffix(word, ":"); ok {
				op, child = "conv1d", name
			}
			s.g.Nodes = append(s.g.Nodes, graph.Node{Op: op + ".default"})
			items = append(items, item{first: i, last: i, child: child, line: lift.Line{Number: 7, Text: c.line}})
		}
		s.apart(items)
		parts := simple(c.line)
		var got []string
		for _, it := range items {
			got = append(got, string(rune('0'+slices.Index(parts, it.line.Text))))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: %s, want %s", c.line, g, c.want)
		}
	}
}
