package infer

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/memplan/memplan/graph"
)

// schemaText is what ONNX says of its operators; scripts/onnx_spec/onnx_schemas.py
// wrote it and explains it.
//
//go:embed schemas.txt
var schemaText string

// A schema is ONNX's definition of one version of an operator.
type schema struct {
	since     int64
	withdrawn bool // this version ends the operator
	in, out   []parameter
	attrs     []attribute // by name
	variables int
}

// A parameter is a formal input or output.
type parameter struct {
	name     string
	variable int // index of its type variable, or -1
	allowed  typeSet
	optional bool
	variadic bool // stands for least or more; last of its list
	mixed    bool // each has a type of its own
	least    int
}

// An attribute is a formal attribute.
type attribute struct {
	name     string
	kind     graph.AttrKind
	required bool
}

// A typeSet is a set of types: tensors as bits of their element types, others
// by their names.
type typeSet struct {
	tensors uint64
	others  []string
}

// A catalog indexes the lines of schemaText by operator, oldest version first,
// with the sets of types and the newest version of each domain that introduced
// an operator.
type catalog struct {
	lines  map[string][]string
	sets   []typeSet
	newest map[string]int64
}

var schemas = sync.OnceValue(func() *catalog {
	c := &catalog{lines: map[string][]string{}, newest: map[string]int64{}}
	for line := range strings.Lines(schemaText) {
		line = strings.TrimSuffix(line, "\n")
		switch name, rest, _ := strings.Cut(line, " "); {
		case strings.HasPrefix(name, "="):
			c.sets = append(c.sets, parseTypes(strings.Fields(rest)))
		case name != "#":
			c.lines[name] = append(c.lines[name], rest)
			domain := name[:max(strings.LastIndexByte(name, '.'), 0)]
			since, _ := sinceOf(rest)
			c.newest[domain] = max(c.newest[domain], since)
		}
	}
	return c
})

func parseTypes(names []string) typeSet {
	var s typeSet
	for _, name := range names {
		if d, ok := graph.ParseDType(name); ok && d < 64 {
			s.tensors |= 1 << d
		} else {
			s.others = append(s.others, name)
		}
	}
	return s
}

// find returns the schema of an operator in a version of its domain: the newest
// that is not newer. It is nil if the version has none; first is then the
// version that introduces one, or 0.
func (c *catalog) find(domain, op string, version int64) (s *schema, first int64) {
	name := op
	if domain != "" {
		name = domain + "." + op
	}
	lines := c.lines[name]
	for i := len(lines) - 1; i >= 0; i-- {
		since, _ := sinceOf(lines[i])
		if since <= version {
			return c.parse(lines[i]), since
		}
		first = since
	}
	return nil, first
}

// sinceOf parses the version at the beginning of a line.
func sinceOf(line string) (since int64, withdrawn bool) {
	text, _, _ := strings.Cut(line, " ")
	text, withdrawn = strings.CutSuffix(text, "!")
	since, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("infer: schemas.txt: %v", err))
	}
	return since, withdrawn
}

// parse parses a line without the operator's name.
func (c *catalog) parse(line string) *schema {
	s := &schema{}
	s.since, s.withdrawn = sinceOf(line)
	parts := strings.SplitN(line, "|", 3)
	var variables []string
	sets := map[string]typeSet{}
	for _, f := range strings.Fields(parts[2]) {
		name, set, _ := strings.Cut(f, "=")
		variables = append(variables, name)
		sets[name] = c.sets[whole(set)]
	}
	s.variables = len(variables)
	in, out, _ := strings.Cut(parts[0], "->")
	for _, f := range strings.Fields(in)[1:] {
		s.in = append(s.in, parseParameter(f, variables, sets))
	}
	for _, f := range strings.Fields(out) {
		s.out = append(s.out, parseParameter(f, variables, sets))
	}
	for _, f := range strings.Fields(parts[1]) {
		f, required := strings.CutSuffix(f, "!")
		name, kind, _ := strings.Cut(f, ":")
		s.attrs = append(s.attrs, attribute{name, graph.AttrKind(whole(kind)), required})
	}
	return s
}

// whole parses a number of the embedded file.
func whole(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(fmt.Sprintf("infer: schemas.txt: %v", err))
	}
	return n
}

func parseParameter(f string, variables []string, sets map[string]typeSet) parameter {
	name, typ, _ := strings.Cut(f, ":")
	p := parameter{name: name}
	typ, p.optional = strings.CutSuffix(typ, "?")
	if i := strings.IndexAny(typ, "*~"); i >= 0 {
		p.variadic, p.mixed, p.least = true, typ[i] == '~', whole(typ[i+1:])
		typ = typ[:i]
	}
	if p.variable = slices.Index(variables, typ); p.variable >= 0 {
		p.allowed = sets[typ]
	} else {
		p.allowed = parseTypes([]string{typ})
	}
	return p
}

// attr returns the formal attribute called name, or nil.
func (s *schema) attr(name string) *attribute {
	i, ok := slices.BinarySearchFunc(s.attrs, name, func(a attribute, name string) int { return strings.Compare(a.name, name) })
	if !ok {
		return nil
	}
	return &s.attrs[i]
}

// arity returns the least and the largest number of operands for a list of
// parameters; most is -1 if there is no limit.
func arity(list []parameter) (least, most int) {
	most = len(list)
	for i, p := range list {
		switch {
		case p.variadic:
			return max(least, i+p.least), -1
		case !p.optional:
			least = i + 1
		}
	}
	return least, most
}

// at returns the parameter of operand i, or nil.
func at(list []parameter, i int) *parameter {
	if n := len(list) - 1; i >= n && n >= 0 && list[n].variadic {
		return &list[n]
	}
	if i >= len(list) {
		return nil
	}
	return &list[i]
}

// has reports whether a type is in the set; known is false if too little is
// known about it.
func (s typeSet) has(t graph.Type) (in, known bool) {
	if t.Kind == graph.TensorType {
		return s.tensors>>uint(t.Elem)&1 != 0, t.Elem.Valid()
	}
	name := schemaName(t)
	return slices.Contains(s.others, name), name != ""
}

// schemaName writes a type without its dims in the notation of schemas, "" if
// it is not wholly known.
func schemaName(t graph.Type) string {
	of := ""
	if t.Of != nil {
		if of = schemaName(*t.Of); t.Of.Kind == graph.TensorType && of != "" && t.Kind != graph.MapType {
			of = "tensor(" + of + ")"
		}
	}
	switch {
	case t.Kind == graph.TensorType && t.Elem.Valid():
		return t.Elem.String()
	case t.Kind == graph.SparseType && t.Elem.Valid():
		return "sparse_tensor(" + t.Elem.String() + ")"
	case t.Kind == graph.SequenceType && of != "":
		return "seq(" + of + ")"
	case t.Kind == graph.OptionalType && of != "":
		return "optional(" + of + ")"
	case t.Kind == graph.MapType && of != "" && t.Elem.Valid():
		return "map(" + t.Elem.String() + "," + of + ")"
	}
	return ""
}
