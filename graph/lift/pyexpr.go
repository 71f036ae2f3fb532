package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/aten"
)

// A pyExpr is a Python expression, reduced to what casts depend on: names,
// calls and operators.
type pyExpr struct {
	text string    // a dotted name, the function of a call, ATen's name of an operator
	kids []*pyExpr // a method's object, arguments, operands
	call bool
	self bool // the callee or indexed object is a name: blk(x), blocks[i](x)

	// the lifted calls [node, end) that a module or function of the model makes, or a single call
	node, end     int
	bound, module bool
}

// bind records the calls that the expression makes.
func (e *pyExpr) bind(u sourceUnit) {
	e.node, e.end, e.bound, e.module = u.lo, u.hi, true, u.module
}

// ofModel reports whether the expression calls a module of the model: self.norm(x),
// blk(x), blocks[i](x), super().forward(x).
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

// pyOperators are binary operators with what they call, the weakest first;
// powers bind tighter than a sign.
var pyOperators = [][]struct{ sign, op string }{
	{{"+", "add"}, {"-", "sub"}},
	{{"*", "mul"}, {"//", "//"}, {"/", "div"}, {"@", "matmul"}, {"%", "%"}},
}

// sizeOperators are operators that code applies to sizes, not to tensors.
var sizeOperators = []string{"//", "%"}

// pyLibraries are modules of functions that are called with their operands
// alone.
var pyLibraries = []string{"torch", "F", "nn", "functional", "math", "np"}

// sharedCast is a cast, in the table of statements, that a variable names.
const sharedCast = "to__"

// casts reports whether the expression contains a cast.
func (e *pyExpr) casts() bool {
	return e.cast() != "" || slices.ContainsFunc(e.kids, (*pyExpr).casts)
}

// indexes reports whether the expression contains an index.
func (e *pyExpr) indexes() bool {
	return e.text == "[]" && !e.call || slices.ContainsFunc(e.kids, (*pyExpr).indexes)
}

// cast returns what an expression casts to: "float32", an expression that names
// a type, such as x.dtype, or "".
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

// parameter reports whether a name is that of a parameter: self.weight, bias.
func (e *pyExpr) parameter() bool {
	return !e.call && (strings.HasPrefix(e.text, "self.") || strings.HasSuffix(e.text, "weight") || strings.HasSuffix(e.text, "bias") || strings.HasSuffix(e.text, "scale"))
}

// ofModule reports whether the expression casts a module's result to the type
// of another tensor: self.drop(p).to(v.dtype).
func (e *pyExpr) ofModule() bool {
	to := e.cast()
	if to == "" || to == "float32" {
		return false
	}
	on := e.kids[0]
	return on.call && on.cast() == "" && len(on.kids) > 0 && (on.kids[0].text == "self" || strings.HasPrefix(on.kids[0].text, "self."))
}

// calls lists calls and operators in Python's order of evaluation.
func (e *pyExpr) calls(list []*pyExpr) []*pyExpr {
	for _, k := range e.kids {
		list = k.calls(list)
	}
	if e.call {
		list = append(list, e)
	}
	return list
}

// makes reports whether the expression runs an operator.
func (e *pyExpr) makes(op string) bool {
	name := strings.TrimSuffix(e.text, "_")
	return e.call && e.cast() == "" && (name == op || "_"+name == op || name == "sub" && op == "rsub" || op == "view" && aten.Is(name, aten.Viewed))
}

// maxLine bounds a line that is parsed: longer ones are data.
const maxLine = 1 << 10

// parsePy parses the expression that a line of Python assigns or returns; nil
// if the line is not a whole statement.
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

// tuple parses expressions between commas; a single one is returned as itself.
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

// augmented parses the sign of x += y and returns the operator it calls; "" for
// another sign.
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

// uncommented returns a line without its trailing comment.
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

// postfix parses an atom with the attributes, calls and indices that follow it.
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

// method parses the arguments of a method call.
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

// list parses the contents of brackets; keywords, slices and unpacked sequences
// count as their values.
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
