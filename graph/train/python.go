package train

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/python"
)

// A statement is what one line of Python shows about variables. The exporter
// writes the line of a call, which may be part of a statement over several
// lines.
type statement struct {
	targets []target // what is assigned to, in order; for a = b = c both
	chained bool     // more than one "="
	augment bool     // += and its like
	returns bool
	results []result // results of a return of several values
	adds    string   // variable of a list or dict that a method adds to: "feats" in feats.append(x)
	reads   []read   // variables whose values it reads, in order
	calls   []callee // what it calls, in the order of the text
	ops     map[string]int
	loops   bool // a comprehension, whose parts run any number of times
	list    bool // it assigns a literal list, tuple or dict
	open    bool // brackets stay open: the statement continues below
	comma   bool // it is an argument on a line of its own
	inner   bool // it begins inside brackets or an expression: the statement began above
	head    bool // it shows what becomes of the value: an assignment, a return, or a call that adds it
}

// A target is a name, element or attribute that an assignment stores to.
type target struct {
	name string // "x"; for an element or attribute, the variable before it
	text string // as written
	kind targetKind
}

type targetKind int

const (
	plainName   targetKind = iota
	starredName            // takes any number of values
	element                // x[...]
	attribute              // x.y
)

// A read is a variable that a statement reads.
type read struct {
	name    string
	element bool   // reads an element, or iterates
	pop     bool   // removes the element
	shape   bool   // reads only its shape, type or device
	index   bool   // used as an index
	field   string // field of a container: "logits" in x.logits, `"low"` in x["low"], "-1" in x[-1]; "" if unknown
}

// A callee is the function that a statement calls: "self.conv", "F.relu",
// "layer", ".view".
type callee struct {
	path string // dotted; a leading dot follows an expression: ".view"
	item bool   // calls an element: self.layers[i](x)
}

// A result is one of the values that a frame returns in a tuple, list, dict or
// object.
type result struct {
	name  string // the variable; "" for an expression
	field string // attribute or key, "" if none
}

// A pyKind is the kind of a token of Python.
type pyKind byte

const (
	pyName pyKind = iota
	pyValue
	pyOp
)

type pyToken struct {
	kind  pyKind
	text  string
	depth int // open brackets before it; for a closing bracket, after it
	at    int // offset in the line
}

// maxStatement is the longest line that is read, in bytes; the rest is cut off.
const maxStatement = 1024

// pyTokens splits a line into tokens without comments. low is the least depth
// of brackets, negative if some close that opened above; end is the depth at
// the end, relative to low.
func pyTokens(s string) (out []pyToken, low, end int) {
	s = s[:min(len(s), maxStatement)]
	depth := 0
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '#':
			i = len(s)
		case c == ' ' || c == '\t' || c == '\f' || c == '\\':
			i++
		case c == '"' || c == '\'':
			j := stringEnd(s, i)
			out = append(out, pyToken{pyValue, s[i:j], depth, i})
			i = j
		case nameByte(c):
			j := i
			for j < len(s) && (nameByte(s[j]) || digit(c) && (s[j] == '.' || exponent(s[i:j], s[j]))) {
				j++
			}
			kind := pyName
			if digit(c) {
				kind = pyValue
			} else if j < len(s) && (s[j] == '"' || s[j] == '\'') && j-i <= 2 { // r"", f"", rb""
				j = stringEnd(s, j)
				kind = pyValue
			}
			out = append(out, pyToken{kind, s[i:j], depth, i})
			i = j
		default:
			op := operator(s[i:])
			t := pyToken{pyOp, op, depth, i}
			switch op {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
				t.depth = depth
				low = min(low, depth)
			}
			out = append(out, t)
			i += len(op)
		}
	}
	return out, low, depth - low
}

// exponent reports whether a byte is the sign of a number's exponent, as in 1e-5.
func exponent(number string, sign byte) bool {
	last := number[len(number)-1]
	return (sign == '-' || sign == '+') && (last == 'e' || last == 'E') && !strings.HasPrefix(number, "0x")
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func nameByte(c byte) bool {
	return c == '_' || digit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// stringEnd returns the offset after the string that begins at i, which may be
// unterminated.
func stringEnd(s string, i int) int {
	q := s[i : i+1]
	if strings.HasPrefix(s[i:], strings.Repeat(q, 3)) {
		if j := strings.Index(s[i+3:], strings.Repeat(q, 3)); j >= 0 {
			return i + j + 6
		}
		return len(s)
	}
	for j := i + 1; j < len(s); j++ {
		switch {
		case s[j] == '\\':
			j++
		case s[j] == q[0]:
			return j + 1
		}
	}
	return len(s)
}

// operators of more than one byte, longer ones first.
var operators = []string{"**=", "//=", ">>=", "<<=", "...", "**", "//", ">>", "<<", "<=", ">=", "==", "!=", "->", ":=", "+=", "-=", "*=", "/=", "@=", "&=", "|=", "^=", "%="}

func operator(s string) string {
	for _, op := range operators {
		if strings.HasPrefix(s, op) {
			return op
		}
	}
	return s[:1]
}

// keywords are not variables; those set to true may begin a statement.
var keywords = map[string]bool{
	"False": true, "None": true, "True": true, "and": true, "as": true, "assert": true, "async": true, "await": true, "break": true,
	"class": true, "continue": true, "def": true, "del": true, "elif": true, "else": true, "except": true, "finally": true, "for": true,
	"from": true, "global": true, "if": true, "import": true, "in": true, "is": true, "lambda": true, "nonlocal": true, "not": true,
	"or": true, "pass": true, "raise": true, "return": true, "try": true, "while": true, "with": true, "yield": true,
}

// readLine parses the statements of a line: those between semicolons, and what
// follows the colon of if, for and the like. dels are the names in del
// statements.
func readLine(text string) (list []statement, dels []string) {
	tokens, low, open := pyTokens(text)
	base := min(low, 0)
	for len(tokens) > 0 {
		n := len(tokens)
		for i, t := range tokens {
			if t.depth == base && t.kind == pyOp && (t.text == ";" || t.text == ":" && i > 0 && compound(tokens[0].text) && !lambda(tokens[:i])) {
				n = i
				break
			}
		}
		part := tokens[:n]
		tokens = tokens[min(n+1, len(tokens)):]
		if len(part) == 0 {
			continue
		}
		if part[0].kind == pyName && part[0].text == "del" {
			for _, t := range part[1:] {
				if t.kind == pyName && t.depth == base {
					dels = append(dels, t.text)
				}
			}
			continue
		}
		list = append(list, readStatement(text, part, base))
	}
	if n := len(list); n > 0 {
		list[n-1].open = open > 0
		list[0].inner = list[0].inner || low < 0
	}
	return list, dels
}

func compound(word string) bool {
	switch word {
	case "if", "elif", "else", "for", "while", "with", "try", "except", "finally", "async", "def", "class":
		return true
	}
	return false
}

// lambda reports whether the colon after the tokens is a lambda's.
func lambda(tokens []pyToken) bool {
	n := 0
	for _, t := range tokens {
		if t.kind == pyName && t.text == "lambda" {
			n++
		}
	}
	return n > 0
}

// readStatement parses one statement; depth is that of its own brackets.
func readStatement(text string, tokens []pyToken, depth int) statement {
	s := statement{ops: map[string]int{}}
	first := tokens[0]
	switch {
	case first.kind == pyOp && strings.ContainsAny(first.text[:1], ".)]}+-*/@%|&^<>=,!:"):
		s.inner = true
	case first.kind == pyName && (first.text == "and" || first.text == "or" || first.text == "else" || first.text == "in" || first.text == "for" && depth < 0):
		s.inner = first.text != "else" || len(tokens) > 1
	case first.kind == pyName && (first.text == "if" || first.text == "for" || first.text == "while" || first.text == "with" || first.text == "elif"):
		s.head = true // its values go nowhere else
	}
	if last := tokens[len(tokens)-1]; last.text == "," && depth == last.depth && !s.inner {
		s.inner, s.comma = true, true
	}
	if !s.inner && arguments(tokens, depth) {
		s.inner, s.comma = true, true
	}
	from := 0
	if first.kind == pyName && (first.text == "return" || first.text == "yield") {
		s.returns, s.head, from = true, true, 1
		s.results = readResults(tokens[1:], depth)
	}
	for i, t := range tokens {
		if t.kind != pyOp || t.depth != depth || s.returns || s.inner {
			continue
		}
		if t.text == "=" || len(t.text) > 1 && t.text[len(t.text)-1] == '=' && !strings.Contains("<=>===!=:=", t.text) {
			s.chained = s.chained || s.head
			s.augment, s.head = t.text != "=", true
			s.targets = append(s.targets, readTargets(text, tokens[from:i], depth)...)
			from = i + 1
		}
	}
	value := tokens[min(from, len(tokens)):]
	if len(value) > 0 && value[0].kind == pyOp && (value[0].text == "[" || value[0].text == "{") {
		s.list = true
	}
	for _, t := range value {
		if t.kind == pyOp && t.text == "," && t.depth == depth && !s.inner {
			s.list = true
		}
	}
	if s.augment { // the target is read, too
		value = tokens
	}
	s.expression(tokens, value)
	return s
}

// readResults parses the values after return, if there are several: a tuple, a
// list, a dict or the arguments of a class.
func readResults(tokens []pyToken, depth int) (out []result) {
	if i := made(tokens); i >= 0 {
		tokens, depth = bracketed(tokens, i), tokens[i].depth+1
		if len(tokens) == 0 {
			return nil
		}
	} else if !slices.ContainsFunc(tokens, func(t pyToken) bool { return t.text == "," && t.depth == depth }) {
		return nil
	}
	for len(tokens) > 0 {
		n := len(tokens)
		if i := slices.IndexFunc(tokens, func(t pyToken) bool { return t.text == "," && t.depth == depth }); i >= 0 {
			n = i
		}
		out = append(out, readResult(tokens[:n])...)
		tokens = tokens[min(n+1, len(tokens)):]
	}
	return out
}

// readResult parses one of them: "x", "key=x", `"key": x`, or a list.
func readResult(part []pyToken) []result {
	r := result{}
	if len(part) > 2 && (part[1].text == "=" || part[1].text == ":") {
		r.field, part = strings.Trim(part[0].text, `"'`), part[2:]
	}
	switch {
	case len(part) == 0:
		return nil
	case len(part) == 1 && part[0].kind == pyName && !keywords[part[0].text]:
		r.name = part[0].text
	case part[0].text == "[" || part[0].text == "(" || part[0].text == "{":
		if list := readResults(part, part[0].depth); len(list) > 0 {
			return list
		}
	}
	return []result{r}
}

// made returns the index of the bracket that begins a list, tuple or dict, or
// the arguments of a class; -1 for another expression.
func made(tokens []pyToken) int {
	if len(tokens) == 0 {
		return -1
	}
	i := 0
	for i < len(tokens) && (tokens[i].kind == pyName || tokens[i].text == ".") {
		i++
	}
	if i == len(tokens) || !strings.Contains("([{", tokens[i].text) || skipBrackets(tokens, i) < len(tokens) {
		return -1
	}
	if i == 0 {
		if tokens[0].text == "(" && !slices.ContainsFunc(tokens, func(t pyToken) bool { return t.text == "," && t.depth == tokens[0].depth+1 }) {
			return -1
		}
		return 0
	}
	name := tokens[i-1].text
	if tokens[i].text != "(" || tokens[0].text == "self" || !(name[0] >= 'A' && name[0] <= 'Z' || name == "dict" || name == "tuple" || name == "list") {
		return -1
	}
	return i
}

// bracketed returns the tokens between the bracket at i and its counterpart.
func bracketed(tokens []pyToken, i int) []pyToken {
	end := skipBrackets(tokens, i)
	if closing(tokens[end-1].text) && tokens[end-1].depth == tokens[i].depth {
		end--
	}
	return tokens[min(i+1, end):end]
}

// arguments reports whether a line ends a call's arguments rather than assigns:
// the text before its first "=" is f(x), key; or a comma separates one "=" from
// the next; or the names before it have commas and the "=" no spaces around it.
func arguments(tokens []pyToken, depth int) bool {
	before, commas := 0, false
	for i, t := range tokens {
		if t.kind != pyOp || t.depth != depth {
			continue
		}
		switch {
		case t.text == ",":
			commas = true
			if before == 0 && i > 0 && i+2 < len(tokens) && tokens[i-1].text == ")" && tokens[i+2].text == "=" && calls(tokens[:i]) {
				return true
			}
		case t.text == "=":
			if commas && (before > 0 || i > 0 && i+1 < len(tokens) && t.at == tokens[i-1].at+len(tokens[i-1].text) && tokens[i+1].at == t.at+1) {
				return true
			}
			before, commas = before+1, false
		}
	}
	return false
}

// calls reports whether tokens that end with a bracket end with a call.
func calls(tokens []pyToken) bool {
	last := tokens[len(tokens)-1]
	for i := len(tokens) - 2; i > 0; i-- {
		if t := tokens[i]; t.text == "(" && t.depth == last.depth {
			return tokens[i-1].kind == pyName || closing(tokens[i-1].text)
		}
	}
	return false
}

// readTargets parses what precedes a "=".
func readTargets(text string, tokens []pyToken, depth int) (out []target) {
	for len(tokens) > 0 {
		n := len(tokens)
		for i, t := range tokens {
			if t.kind == pyOp && t.text == "," && (t.depth == depth || t.depth == depth+1 && tokens[0].text == "(") {
				n = i
				break
			}
		}
		if x, ok := readTarget(text, tokens[:n]); ok {
			out = append(out, x)
		}
		tokens = tokens[min(n+1, len(tokens)):]
	}
	return out
}

// readTarget parses one target, without the brackets around it.
func readTarget(text string, tokens []pyToken) (target, bool) {
	for len(tokens) > 0 && tokens[0].kind == pyOp && (tokens[0].text == "(" || tokens[0].text == "[") {
		tokens = tokens[1:]
	}
	t := target{}
	if len(tokens) > 0 && tokens[0].text == "*" {
		t.kind, tokens = starredName, tokens[1:]
	}
	if len(tokens) == 0 || tokens[0].kind != pyName {
		return t, false
	}
	t.name = tokens[0].text
	last := tokens[len(tokens)-1]
	t.text = strings.TrimRight(text[tokens[0].at:last.at+len(last.text)], ") ")
	for _, x := range tokens[1:] {
		switch {
		case x.text == ":": // a type
			return t, true
		case x.text == "[":
			t.kind = element
			return t, true
		case x.text == ".":
			t.kind = attribute
		}
	}
	return t, true
}

// expression records the variables that a statement's expression reads and the
// functions it calls.
func (s *statement) expression(all, tokens []pyToken) {
	bound := map[string]bool{} // variables of comprehensions, lambdas and :=
	for i, t := range tokens {
		if t.kind != pyName {
			continue
		}
		switch {
		case (t.text == "for" || t.text == "lambda") && (i > 0 || s.inner):
			s.loops = s.loops || t.text == "for"
			for _, x := range tokens[i+1:] {
				if x.text == "in" || x.text == ":" {
					break
				}
				if x.kind == pyName {
					bound[x.text] = true
				}
			}
		case i+1 < len(tokens) && tokens[i+1].text == ":=":
			s.targets = append(s.targets, target{name: t.text, text: t.text})
			bound[t.text] = true
		}
	}
	for i, t := range tokens {
		switch {
		case t.kind == pyOp:
			if i > 0 && !(tokens[i-1].kind == pyOp && !closing(tokens[i-1].text)) {
				s.ops[strings.TrimSuffix(t.text, "=")]++
			}
		case t.kind == pyName && !keywords[t.text]:
			s.name(tokens, i, bound)
		}
	}
	if len(all) > 3 && all[0].kind == pyName && all[1].text == "." && all[2].kind == pyName && all[3].text == "(" && adding(all[2].text) && all[0].text != "self" {
		s.adds, s.head = all[0].text, true
	}
}

// adding reports whether a method adds to a list, dict or set.
func adding(method string) bool {
	switch method {
	case "append", "extend", "insert", "appendleft", "update", "add", "setdefault":
		return true
	}
	return false
}

func closing(op string) bool { return op == ")" || op == "]" || op == "}" }

// name records the name at token i: a variable, or a callee.
func (s *statement) name(tokens []pyToken, i int, bound map[string]bool) {
	is := func(j int, text string) bool {
		return j >= 0 && j < len(tokens) && tokens[j].kind == pyOp && tokens[j].text == text
	}
	if is(i-1, ".") {
		if i == 1 || tokens[i-2].kind == pyOp { // a method of an expression, or of what is on the line above
			s.called(tokens, i, ".")
		}
		return // else its path has been read
	}
	if is(i+1, "=") && (s.inner || tokens[i].depth > tokens[0].depth) { // a keyword argument
		return
	}
	path, j := tokens[i].text, i+1
	for is(j, ".") && j+1 < len(tokens) && tokens[j+1].kind == pyName {
		path += "." + tokens[j+1].text
		j += 2
	}
	name := tokens[i].text
	method := path != name
	switch {
	case is(j, "("):
		s.calls = append(s.calls, callee{path: path})
	case is(j, "["):
		if k := skipBrackets(tokens, j); is(k, "(") {
			s.calls = append(s.calls, callee{path: path, item: true})
		}
	}
	if bound[name] || name == "self" || is(j, "(") && !method || python.FunctionModules.Of(name) {
		return
	}
	r := read{name: name, element: is(i+1, "[") || is(i-1, "*") && (i < 2 || tokens[i-2].kind == pyOp && !closing(tokens[i-2].text)) || i > 0 && tokens[i-1].text == "in"}
	if method && is(j, "(") && strings.HasPrefix(path, name+".pop") && path[len(name)+1:] != "" {
		r.element, r.pop = true, true
	}
	r.shape = method && shapely(path[len(name)+1:])
	r.index = subscript(tokens, i)
	r.field = field(tokens, i)
	s.reads = append(s.reads, r)
}

// subscript reports whether token i is inside the brackets after another name.
func subscript(tokens []pyToken, i int) bool {
	for j := i - 1; j > 0; j-- {
		if t := tokens[j]; t.text == "[" && t.depth < tokens[i].depth {
			return tokens[j-1].kind == pyName && !keywords[tokens[j-1].text] || closing(tokens[j-1].text)
		} else if t.kind == pyOp && t.depth < tokens[i].depth && (t.text == "(" || t.text == "{") {
			return false
		}
	}
	return false
}

// field returns the field that is read from the name at token i, a container:
// an attribute that tensors do not have, or an element with a constant key or
// index.
func field(tokens []pyToken, i int) string {
	is := func(j int, text string) bool {
		return j < len(tokens) && tokens[j].kind == pyOp && tokens[j].text == text
	}
	switch {
	case is(i+1, ".") && i+2 < len(tokens) && tokens[i+2].kind == pyName && !is(i+3, "(") && !slices.Contains(tensorAttributes, tokens[i+2].text):
		return tokens[i+2].text
	case is(i+1, "[") && i+3 < len(tokens) && tokens[i+2].kind == pyValue && is(i+3, "]"):
		return tokens[i+2].text
	case is(i+1, "[") && is(i+2, "-") && i+4 < len(tokens) && tokens[i+3].kind == pyValue && is(i+4, "]"):
		return "-" + tokens[i+3].text
	}
	return ""
}

// tensorAttributes are attributes of tensors.
var tensorAttributes = []string{"T", "mT", "H", "mH", "data", "grad", "real", "imag", "shape", "ndim", "device", "dtype", "is_cuda", "requires_grad", "itemsize", "nbytes", "layout", "names"}

// shapely reports whether an attribute or method of a tensor reads none of its
// elements.
func shapely(path string) bool {
	first, _, _ := strings.Cut(path, ".")
	switch first {
	case "shape", "size", "dim", "ndim", "device", "dtype", "numel", "is_cuda", "new_zeros", "new_ones", "new_full", "new_empty", "requires_grad", "stride":
		return true
	}
	return false
}

// called records a method of an expression, if it is called.
func (s *statement) called(tokens []pyToken, i int, prefix string) {
	if i+1 < len(tokens) && tokens[i+1].text == "(" {
		s.calls = append(s.calls, callee{path: prefix + tokens[i].text})
	}
}

// skipBrackets returns the index after the bracket that opens at j and its
// counterpart.
func skipBrackets(tokens []pyToken, j int) int {
	d := tokens[j].depth
	for k := j + 1; k < len(tokens); k++ {
		if tokens[k].kind == pyOp && closing(tokens[k].text) && tokens[k].depth == d {
			return k + 1
		}
	}
	return len(tokens)
}
