package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
)

// A yamlValue is a node of a document with its line and the anchors that its
// aliases may name.
type yamlValue struct {
	node    ast.Node
	key     string // key whose value it is, "" for others
	line    int    // from 1
	anchors map[string]ast.Node
}

// A yamlPair is an entry of a mapping.
type yamlPair struct {
	key   string
	value yamlValue // its line is the key's
}

// A yamlKey is a key that a mapping may have, with the function that reads its
// value into t.
type yamlKey[T any] struct {
	name string
	read func(t *T, v yamlValue) error
}

// parseYAML returns the body of a document. Errors begin with the line.
func parseYAML(data []byte) (v yamlValue, err error) {
	defer func() {
		if r := recover(); r != nil { // from the parser, on text far from YAML
			err = fmt.Errorf("1: not YAML: %v", r)
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if err := boundYAML(tokens); err != nil {
		return v, err
	}
	f, err := parser.Parse(tokens, 0)
	if err != nil {
		return v, positioned(err)
	}
	var bodies []ast.Node
	for _, d := range f.Docs {
		if d.Body != nil && d.Body.Type() != ast.CommentType && d.Body.Type() != ast.DirectiveType {
			bodies = append(bodies, d.Body)
		}
	}
	switch len(bodies) {
	case 0:
		return v, fmt.Errorf("1: the file is empty: want models and rules (see memplan help config-file)")
	case 1:
		v = yamlValue{bodies[0], "", lineOf(bodies[0]), map[string]ast.Node{}}
		ast.Walk(anchorVisitor{v.anchors}, bodies[0])
		return v, nil
	}
	return v, fmt.Errorf("%d: a second document: want one", lineOf(bodies[1]))
}

// positioned turns the parser's "[2:3] message" into "2: message".
func positioned(err error) error {
	text := yaml.FormatError(err, false, false)
	if i := strings.IndexByte(text, '\n'); i >= 0 {
		text = text[:i]
	}
	pos, msg, ok := strings.Cut(strings.TrimPrefix(text, "["), "] ")
	line, _, _ := strings.Cut(pos, ":")
	if !ok {
		return fmt.Errorf("1: %s", text)
	}
	return fmt.Errorf("%s: not YAML: %s", line, msg)
}

// anchorVisitor collects anchors by name.
type anchorVisitor struct{ anchors map[string]ast.Node }

func (a anchorVisitor) Visit(n ast.Node) ast.Visitor {
	if x, ok := n.(*ast.AnchorNode); ok {
		a.anchors[x.Name.String()] = x.Value
	}
	return a
}

func lineOf(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 1
}

// at returns the value of a node below v, with tags, anchors and aliases
// resolved. An alias to an enclosing node counts as absent.
func (v yamlValue) at(n ast.Node) yamlValue {
	line := lineOf(n)
	for range 8 {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.TagNode:
			n = x.Value
		case *ast.AliasNode:
			n = v.anchors[x.Value.String()]
		default:
			return yamlValue{n, "", line, v.anchors}
		}
	}
	return yamlValue{nil, "", line, v.anchors}
}

func (v yamlValue) errorf(format string, args ...any) error {
	return fmt.Errorf("%d: %w", v.line, fmt.Errorf(format, args...))
}

// wrong returns the error of a value that its key does not accept.
func (v yamlValue) wrong(format string, args ...any) error {
	if v.key != "" {
		format, args = "%s: "+format, append([]any{v.key}, args...)
	}
	return v.errorf(format, args...)
}

// text returns a scalar as it is written, without quotes.
func (v yamlValue) text() (string, error) {
	switch x := v.node.(type) {
	case *ast.StringNode:
		return x.Value, nil
	case *ast.LiteralNode:
		return strings.TrimSpace(x.Value.Value), nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return strings.TrimSpace(x.GetToken().Value), nil
	case nil, *ast.NullNode:
		return "", v.wrong("no value")
	}
	return "", v.wrong("want a single value, not a %s", strings.ToLower(v.node.Type().String()))
}

// list returns the elements of a sequence.
func (v yamlValue) list() ([]yamlValue, error) {
	seq, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return nil, v.wrong("want a list")
	}
	var out []yamlValue
	for _, n := range seq.Values {
		out = append(out, v.at(n))
	}
	return out, nil
}

// pairs returns the entries of a mapping, those of a merged mapping (<<)
// where it has none of its own.
func (v yamlValue) pairs() ([]yamlPair, error) {
	return v.pairsTo(4)
}

// pairsTo follows at most depth nested merges.
func (v yamlValue) pairsTo(depth int) ([]yamlPair, error) {
	var values []*ast.MappingValueNode
	switch x := v.node.(type) {
	case *ast.MappingNode:
		values = x.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{x}
	default:
		return nil, v.wrong("want a mapping")
	}
	var out, merged []yamlPair
	seen := map[string]bool{}
	for _, m := range values {
		value := v.at(m.Value)
		value.line, value.key = lineOf(m.Key), keyText(m.Key)
		if m.Key.IsMergeKey() {
			if depth == 0 {
				return nil, value.errorf("<<: merged too deep")
			}
			more, err := value.pairsTo(depth - 1)
			if err != nil {
				return nil, err
			}
			merged = append(merged, more...)
			continue
		}
		key := keyText(m.Key)
		if seen[key] {
			return nil, value.errorf("%s: given twice", key)
		}
		seen[key] = true
		out = append(out, yamlPair{key, value})
	}
	for _, p := range merged {
		if !seen[p.key] {
			seen[p.key] = true
			out = append(out, p)
		}
	}
	return out, nil
}

func keyText(k ast.MapKeyNode) string {
	if s, ok := k.(*ast.StringNode); ok {
		return s.Value
	}
	return k.String()
}

// decodeMap reads a mapping into t, in the order of keys. An unknown key is
// an error.
func decodeMap[T any](v yamlValue, what string, keys []yamlKey[T], t *T) error {
	pairs, err := v.pairs()
	if err != nil {
		return fmt.Errorf("%w in %s", err, what)
	}
	for _, p := range pairs {
		if !slices.ContainsFunc(keys, func(k yamlKey[T]) bool { return k.name == p.key }) {
			return p.value.errorf("unknown key %q in %s: %s", p.key, what, advice(keys, p.key))
		}
	}
	for _, k := range keys {
		for _, p := range pairs {
			if p.key != k.name {
				continue
			}
			if err := k.read(t, p.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// advice suggests the intended key, or lists all keys.
func advice[T any](keys []yamlKey[T], name string) string {
	names := texts(keys, func(k *yamlKey[T]) string { return k.name })
	if slices.ContainsFunc(Rules, func(r Rule) bool { return r.Name == name && !r.Implied && !r.FailOn }) && slices.Contains(names, "rules") {
		return "it is a rule: write it under rules"
	}
	if near := Nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "want one of " + strings.Join(names, ", ")
}

// Nearest returns the known name that a misspelt one most likely means: one
// that begins with it, or the fewest edits away, at most a third of its
// letters; "" if there is none.
func Nearest(name string, known []string) string {
	const longest = 64 // bytes; longer names are not typing errors
	if name == "" || len(name) > longest {
		return ""
	}
	best, least := "", max(1, len(name)/3)+1
	for _, k := range known {
		d := edits(strings.ToLower(name), strings.ToLower(k))
		if strings.HasPrefix(k, name) {
			d = min(d, 1)
		}
		if d < least {
			best, least = k, d
		}
	}
	return best
}

// edits returns how many insertions, deletions, substitutions and swaps of
// neighbours turn a into b (optimal string alignment). It takes O(|a|·|b|).
func edits(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+1)
			if a[i-1] == b[j-1] {
				d[i][j] = d[i-1][j-1]
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
