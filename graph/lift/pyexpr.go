package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/aten"
)

// A pyExpr is an expression of Python as far as casts ask: names, calls and
// operators.
type pyExpr struct {
	text string    // a name with its dots, the function of a call, ATen's name of an operator
	kids []*pyExpr // a method's object, arguments, operands
	call bool
	self bool // a name is called, or an element: blk(x), blocks[i](x)

	// bound to the lifted calls [node, end), which a module or function of the model's makes or which are one
	node, end     int
	bound, module bool
}

// bind notes the calls that the expression makes.
func (e *pyExpr) bind(u sourceUnit) {
	e.node, e.end, e.bound, e.module = u.lo, u.hi, true, u.module
}

// ofModel reports a call of a module of the model's: self.norm(x), blk(x), blocks[i](x),
// super().forward(x).
func (e *pyExpr) ofModel() bool {
	if !e.call || e.cast() != "" || e.text == "super" {
		return false
	}
	if len(e.kids) == 0 {
		return false
	}
	on := e.kids[0]
	return e.self || e.text == "forward" || !on.call && (on.text == "self" || strings.HasPrefix(on.text, "self."))
}

// pyOperators are binary operators by what they call, the weakest first; powers
// bind tighter than a sign.
var pyOperators = [][]struct{ sign, op string }{
	{{"+", "add"}, {"-", "sub"}},
	{{"*", "mul"}, {"//", "//"}, {"/", "div"}, {"@", "matmul"}, {"%", "%"}},
}

// sizeOperators are those that code has for sizes, not for tensors.
var sizeOperators = []string{"//", "%"}

// libraries are modules whose functions are called with their operands alone.
var pyLibraries = []string{"torch", "F", "nn", "functional", "math", "np"}

// sharedCast is a cast in the table of statements that a variable names.
const sharedCast = "to__"

// casts reports a cast anywhere in the expression.
func (e *pyExpr) casts() bool {
	return e.cast() != "" || slices.ContainsFunc(e.kids, (*pyExpr).casts)
}

// indexes reports an index anywhere in the expression.
func (e *pyExpr) indexes() bool {
	return e.text == "[]" && !e.call || slices.ContainsFunc(e.kids, (*pyExpr).indexes)
}

// cast is what an expression casts to: "float32", an expression that names a
// type, such as x.dtype, or "" for none.
func (e *pyExpr) cast() string {
	if !e.call || len(e.kids) == 0 {
		return ""
	}
	switch e.text {
	case "float":
		if len(e.kids) == 1 {
			return "float32"
		}
	case "type_as":
		if on := e.kids[len(e.kids)-1]; len(e.kids) == 2 && !on.call && on.text != "" {
			return on.text + ".dtype"
		}
	case "to", "type", sharedCast:
		if len(e.kids) < 2 {
			return ""
		}
		switch t := e.kids[1].text; {
		case t == "torch.float32" || t == "torch.float":
			return "float32"
		case (strings.HasSuffix(t, "dtype") || strings.HasSuffix(t, "_type")) && !e.kids[1].call:
			return t
		}
	}
	return ""
}

// parameter reports what the names of parameters say: self.weight, bias.
func (e *pyExpr) parameter() bool {
	return !e.call && (strings.HasPrefix(e.text, "self.") || strings.HasSuffix(e.text, "weight") || strings.HasSuffix(e.text, "bias") || strings.HasSuffix(e.text, "scale"))
}

// ofModule reports the result of a module that is cast to the type of another
// tensor: self.drop(p).to(v.dtype).
func (e *pyExpr) ofModule() bool {
	to := e.cast()
	if to == "" || to == "float32" {
		return false
	}
	on := e.kids[0]
	return on.call && on.cast() == "" && len(on.kids) > 0 && (on.kids[0].text == "self" || strings.HasPrefix(on.kids[0].text, "self."))
}

// calls lists calls and operators in the order that Python evaluates them.
func (e *pyExpr) calls(list []*pyExpr) []*pyExpr {
	for _, k := range e.kids {
		list = k.calls(list)
	}
	if e.call {
		list = append(list, e)
	}
	return list
}

// makes reports an expression that runs an operator.
func (e *pyExpr) makes(op string) bool {
	name := strings.TrimSuffix(e.text, "_")
	return e.call && e.cast() == "" && (name == op || "_"+name == op || name == "sub" && op == "rsub" || op == "view" && aten.Is(name, aten.Viewed))
}

// maxLine bounds a line that is parsed: longer ones are data.
const maxLine = 1 << 10

// parsePy parses what a line of Python assigns or returns; nil where it is no
// whole expression.
func parsePy(line string) *pyExpr {
	if len(line) > maxLine {
		return nil
	}
	line = strings.TrimSpace(uncommented(line))
	if _, body, ok := strings.Cut(line, "): "); ok && strings.HasPrefix(line, "def ") {
		line = body
	}
	line = strings.TrimPrefix(line, "return ")
	p := &pyParser{s: line}
	e := p.tuple()
	if op := p.augmented(); e != nil && op != "" {
		if right := p.tuple(); right != nil {
			e = &pyExpr{text: op, call: true, kids: []*pyExpr{e, right}}
		} else {
			e = nil
		}
	} else if e != nil && p.eat("=") && !p.eat("=") {
		e = p.tuple()
	}
	if e == nil || p.at != len(p.s) {
		return nil
	}
	return e
}

// tuple parses expressions between commas: one of them alone is itself.
func (p *pyParser) tuple() *pyExpr {
	e := p.sum(0)
	p.space()
	if e == nil || p.at == len(p.s) || p.s[p.at] != ',' {
		return e
	}
	all := &pyExpr{text: "()", kids: []*pyExpr{e}}
	for p.eat(",") {
		if p.space(); p.at == len(p.s) || p.s[p.at] == '=' {
			break
		}
		if e = p.sum(0); e == nil {
			return nil
		}
		all.kids = append(all.kids, e)
		p.space()
	}
	return all
}

// augmented reads the sign of x += y and returns what it calls; "" for another sign.
func (p *pyParser) augmented() string {
	for _, level := range pyOperators {
		for _, o := range level {
			if p.eat(o.sign + "=") {
				return o.op
			}
		}
	}
	return ""
}

// uncommented is a line without the comment behind it.
func uncommented(line string) string {
	quote := byte(0)
	for i := range len(line) {
		switch b := line[i]; {
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case b == '\'' || b == '"':
			quote = b
		case b == '#':
			return line[:i]
		}
	}
	return line
}

type pyParser struct {
	s         string
	at, depth int
}

func (p *pyParser) space() {
	for p.at < len(p.s) && p.s[p.at] == ' ' {
		p.at++
	}
}

func (p *pyParser) eat(s string) bool {
	if strings.HasPrefix(p.s[p.at:], s) {
		p.at += len(s)
		return true
	}
	return false
}

// sum parses operators from a level of pyOperators on.
func (p *pyParser) sum(level int) *pyExpr {
	if level == len(pyOperators) {
		return p.unary()
	}
	left := p.sum(level + 1)
	for left != nil {
		p.space()
		op := ""
		for _, o := range pyOperators[level] {
			rest := p.s[p.at:]
			if strings.HasPrefix(rest, o.sign) && (len(rest) == len(o.sign) || !strings.ContainsRune("*/=", rune(rest[len(o.sign)]))) {
				op = o.op
				p.at += len(o.sign)
				break
			}
		}
		if op == "" {
			return left
		}
		right := p.sum(level + 1)
		if right == nil {
			return nil
		}
		left = &pyExpr{text: op, call: !slices.Contains(sizeOperators, op), kids: []*pyExpr{left, right}}
	}
	return nil
}

// unary parses a sign, or a power.
func (p *pyParser) unary() *pyExpr {
	if p.depth++; p.depth > 32 {
		return nil
	}
	defer func() { p.depth-- }()
	p.space()
	if p.at < len(p.s) && p.s[p.at] == '-' {
		p.at++
		e := p.unary()
		if e == nil || !e.call && (e.text == "" || e.text[0] >= '0' && e.text[0] <= '9') {
			return e
		}
		return &pyExpr{text: "neg", call: true, kids: []*pyExpr{e}}
	}
	base := p.postfix()
	if p.space(); base == nil || !p.eat("**") {
		return base
	}
	exponent := p.unary()
	if exponent == nil {
		return nil
	}
	return &pyExpr{text: "pow", call: true, kids: []*pyExpr{base, exponent}}
}

// postfix parses an atom with what follows it: attributes, calls and indices.
func (p *pyParser) postfix() *pyExpr {
	e := p.atom()
	for e != nil && p.at < len(p.s) {
		switch p.s[p.at] {
		case '.':
			p.at++
			name := p.word()
			if name == "" {
				return nil
			}
			if p.at < len(p.s) && p.s[p.at] == '(' {
				e = p.method(e, name)
			} else {
				e = &pyExpr{text: e.text + "." + name, kids: e.kids, call: false}
			}
		case '(':
			args, ok := p.list(')')
			if !ok {
				return nil
			}
			e = &pyExpr{text: e.text, call: true, kids: args, self: true}
		case '[':
			if _, ok := p.list(']'); !ok {
				return nil
			}
			e = &pyExpr{text: "[]", kids: []*pyExpr{e}}
		default:
			return e
		}
	}
	return e
}

// method parses the arguments of a call of an attribute.
func (p *pyParser) method(on *pyExpr, name string) *pyExpr {
	args, ok := p.list(')')
	if !ok {
		return nil
	}
	root, _, _ := strings.Cut(on.text, ".")
	if !on.call && slices.Contains(pyLibraries, root) {
		return &pyExpr{text: name, call: true, kids: args}
	}
	return &pyExpr{text: name, call: true, kids: append([]*pyExpr{on}, args...)}
}

func (p *pyParser) atom() *pyExpr {
	p.space()
	if p.at >= len(p.s) {
		return nil
	}
	switch b := p.s[p.at]; b {
	case '(', '[':
		kids, ok := p.list(map[byte]byte{'(': ')', '[': ']'}[b])
		switch {
		case !ok:
			return nil
		case b == '(' && len(kids) == 1:
			return kids[0]
		}
		return &pyExpr{text: "()", kids: kids}
	case '\'', '"':
		end := strings.IndexByte(p.s[p.at+1:], b)
		if end < 0 {
			return nil
		}
		p.at += end + 2
		return &pyExpr{}
	}
	start := p.at
	if w := p.word(); w != "" {
		if w[0] >= '0' && w[0] <= '9' { // a number, with point and exponent
			for p.at < len(p.s) && (wordByte(p.s[p.at]) || p.s[p.at] == '-' && p.s[p.at-1] == 'e') {
				p.at++
			}
		}
		return &pyExpr{text: p.s[start:p.at]}
	}
	return nil
}

func (p *pyParser) word() string {
	start := p.at
	for p.at < len(p.s) && wordByte(p.s[p.at]) && p.s[p.at] != '.' {
		p.at++
	}
	return p.s[start:p.at]
}

// list parses what stands between brackets; keywords, slices and unpacked sequences
// count as what they name.
func (p *pyParser) list(closing byte) ([]*pyExpr, bool) {
	p.at++
	var out []*pyExpr
	for {
		p.space()
		if p.at >= len(p.s) {
			return nil, false
		}
		if p.s[p.at] == closing {
			p.at++
			return out, true
		}
		if strings.ContainsRune(",:", rune(p.s[p.at])) {
			p.at++
			continue
		}
		if p.eat("**") || p.eat("*") { // f(*shape): the elements stand in its place
			p.space()
		}
		e := p.sum(0)
		if e == nil {
			return nil, false
		}
		if p.space(); p.at < len(p.s) && p.s[p.at] == '=' {
			p.at++
			if e = p.sum(0); e == nil {
				return nil, false
			}
		}
		out = append(out, e)
	}
}
