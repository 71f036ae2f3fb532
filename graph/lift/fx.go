package lift

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
)

// An fxCall is one node of the exporter's FX graph as its text form gives it:
//
//	%conv2d : [num_users=1] = call_function[target=torch.ops.aten.conv2d.default](args = (%x, %p_w, None, [2, 2]), kwargs = {})
type fxCall struct {
	name   string
	target string // "aten.conv2d.default", "operator.mul"
	args   []fxArg
}

// An fxArg is an argument: like graph.Arg, with references still by name.
type fxArg struct {
	name string // keyword
	kind graph.ArgKind
	ref  string // ArgValue: the FX node's name
	i    int64
	f    float64
	s    string
	list []fxArg
}

// parseFX parses the text of one FX node.
func parseFX(text string) (*fxCall, error) {
	p := &fxParser{s: text}
	c := &fxCall{}
	if !p.eat("%") {
		return nil, p.errorf("expected %%")
	}
	c.name = p.word()
	at := strings.Index(p.s[p.at:], "[target=")
	if at < 0 {
		return nil, p.errorf("no target")
	}
	p.at += at + len("[target=")
	end := strings.Index(p.s[p.at:], "](")
	if end < 0 {
		return nil, p.errorf("no arguments")
	}
	c.target = strings.TrimPrefix(p.s[p.at:p.at+end], "torch.ops.")
	p.at += end + 2
	if !p.eat("args = ") {
		return nil, p.errorf("expected args")
	}
	if err := p.arguments(c); err != nil {
		return nil, err
	}
	if p.eat(", kwargs = ") {
		kw, err := p.keywords()
		if err != nil {
			return nil, err
		}
		c.args = append(c.args, kw...)
	}
	return c, nil
}

// arguments parses the positional arguments. The equation of einsum comes
// first and unquoted, with any commas and spaces that it has.
func (p *fxParser) arguments(c *fxCall) error {
	var equation []fxArg
	if end := strings.Index(p.s[p.at:], ", ["); strings.HasPrefix(c.target, "aten.einsum.") && p.peek() == '(' && end > 0 {
		equation = []fxArg{{kind: graph.ArgString, s: p.s[p.at+1 : p.at+end]}}
		p.s = "(" + p.s[p.at+end+2:]
		p.at = 0
	}
	list, err := p.sequence()
	c.args = append(equation, list...)
	return err
}

type fxParser struct {
	s     string
	at    int
	depth int
}

func (p *fxParser) errorf(format string, args ...any) error {
	return fmt.Errorf("fx node %.40q: offset %d: %s", p.s, p.at, fmt.Sprintf(format, args...))
}

func (p *fxParser) eat(s string) bool {
	if strings.HasPrefix(p.s[p.at:], s) {
		p.at += len(s)
		return true
	}
	return false
}

func (p *fxParser) peek() byte {
	if p.at < len(p.s) {
		return p.s[p.at]
	}
	return 0
}

func wordByte(b byte) bool {
	return b == '_' || b == '.' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

func (p *fxParser) word() string {
	start := p.at
	for p.at < len(p.s) && wordByte(p.s[p.at]) {
		p.at++
	}
	return p.s[start:p.at]
}

// sequence parses a tuple or list.
func (p *fxParser) sequence() ([]fxArg, error) {
	open := p.peek()
	closing := map[byte]byte{'(': ')', '[': ']', '{': '}'}[open]
	if closing == 0 {
		return nil, p.errorf("expected a list")
	}
	if p.depth++; p.depth > 32 {
		return nil, p.errorf("nested too deeply")
	}
	defer func() { p.depth-- }()
	p.at++
	var out []fxArg
	for {
		p.spaces()
		if p.peek() == closing {
			p.at++
			return out, nil
		}
		a, err := p.value()
		if err != nil {
			return nil, err
		}
		out = append(out, a)
		p.spaces()
		if !p.eat(",") && p.peek() != closing {
			return nil, p.errorf("expected , or %c", closing)
		}
	}
}

func (p *fxParser) spaces() {
	for p.peek() == ' ' {
		p.at++
	}
}

// keywords parses {name: value, ..}.
func (p *fxParser) keywords() ([]fxArg, error) {
	if !p.eat("{") {
		return nil, p.errorf("expected {")
	}
	var out []fxArg
	for {
		p.spaces()
		if p.eat("}") {
			return out, nil
		}
		name := p.word()
		if name == "" || !p.eat(":") {
			return nil, p.errorf("expected a keyword")
		}
		p.spaces()
		a, err := p.value()
		if err != nil {
			return nil, err
		}
		a.name = name
		out = append(out, a)
		p.spaces()
		if !p.eat(",") && p.peek() != '}' {
			return nil, p.errorf("expected , or }")
		}
	}
}

// value parses one value; unknown syntax is kept as a string.
func (p *fxParser) value() (fxArg, error) {
	switch b := p.peek(); {
	case b == '%':
		p.at++
		return fxArg{kind: graph.ArgValue, ref: p.word()}, nil
	case b == '(' || b == '[' || b == '{':
		l, err := p.sequence()
		return fxArg{kind: graph.ArgList, list: l}, err
	case b == '\'' || b == '"':
		end := strings.IndexByte(p.s[p.at+1:], b)
		if end < 0 {
			return fxArg{}, p.errorf("unterminated string")
		}
		s := p.s[p.at+1 : p.at+1+end]
		p.at += end + 2
		return fxArg{kind: graph.ArgString, s: s}, nil
	}
	start := p.at
	for p.at < len(p.s) && !strings.ContainsRune(",)]}", rune(p.s[p.at])) {
		p.at++
	}
	if p.at == start {
		return fxArg{}, p.errorf("expected a value")
	}
	return literal(strings.TrimSpace(p.s[start:p.at])), nil
}

func literal(s string) fxArg {
	switch s {
	case "None":
		return fxArg{kind: graph.ArgNone}
	case "True":
		return fxArg{kind: graph.ArgBool, i: 1}
	case "False":
		return fxArg{kind: graph.ArgBool}
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return fxArg{kind: graph.ArgInt, i: i}
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return fxArg{kind: graph.ArgFloat, f: f}
	}
	return fxArg{kind: graph.ArgString, s: s}
}
