package graph

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/memplan/memplan/quote"
)

// Format writes g in ONNX's text syntax (docs/Syntax.md of onnx), one line a
// node, with the model's header and functions when g is a main graph:
//
//	<
//	  ir_version: 10,
//	  opset_import: ["" : 18]
//	>
//	mlp (float[batch,64] x) => (float[batch,10] y)
//	<
//	  float[64,10] w = ["location": "w.bin", "offset": "0", "length": "2560"],
//	  float[batch,10] h
//	>
//	{
//	  [node_1] h = MatMul (x, w)
//	  y = Softmax <axis = 1> (h)
//	}
//
// The syntax is extended where ONNX's does not reach:
//
//   - names that are not identifiers, of ops and domains too, stand in double
//     quotes with the escapes \" \\ \n \r \t \xHH \uHHHH \UHHHHHHHH, which
//     stand for all that quote.Text escapes;
//   - elements of 16-bit and smaller floating-point tensors are numbers with a
//     decimal point, not bit patterns; Parse reads both;
//   - a tensor whose elements are unknown has none: float[2] w = {}, and a
//     sparse one reads float[10] w = sparse({1.0}, int64[1] {3});
//   - a lifted call shows its arguments and its module:
//     y = aten::conv2d.default(x, w, None, [1, 1], groups=1) in layer1.conv;
//   - a sequence may have a length: seq(float[2], 3).
//
// Values print with their current types. Metadata is left out, but for the
// framework operator that a node came from, in a comment; so are references
// to the bytes of tensors whose elements are known. Values without a name of
// their own get one that Parse can tell apart.
func Format(w io.Writer, g *Graph) error { return (&formatter{w: bufio.NewWriter(w)}).format(g) }

// FormatSizes is Format for readers: the types of results stand beside their
// nodes, in a comment, with the bytes that they take.
func FormatSizes(w io.Writer, g *Graph) error {
	return (&formatter{w: bufio.NewWriter(w), sizes: true}).format(g)
}

func (f *formatter) format(g *Graph) error {
	if g.Model != nil && g.Parent == nil {
		f.header(g.Model)
	}
	f.graph(g, f.names(g, outerNames(f, g)), "")
	f.print("\n")
	if g.Model != nil && g.Parent == nil {
		for _, fn := range g.Model.Functions {
			f.function(fn)
		}
	}
	return f.w.Flush()
}

// outerNames returns the names of a subgraph's parent.
func outerNames(f *formatter, g *Graph) []string {
	if g.Parent == nil {
		return nil
	}
	return f.names(g.Parent, outerNames(f, g.Parent))
}

// A formatter writes text. Errors stay in w until it is flushed.
type formatter struct {
	w     *bufio.Writer
	sizes bool
}

func (f *formatter) print(parts ...string) {
	for _, s := range parts {
		f.w.WriteString(s)
	}
}

// names returns what the values of g are called, by id: their own names where
// those are unique, captured ones as in the outer graph.
func (f *formatter) names(g *Graph, outer []string) []string {
	names := make([]string, len(g.Values))
	taken := make(map[string]bool, len(g.Values))
	for i := range g.Values {
		if v := &g.Values[i]; v.Kind == Captured && int(v.Outer) < len(outer) {
			names[i] = outer[v.Outer]
			taken[names[i]] = true
		}
	}
	next := map[string]int{}
	for i := range g.Values {
		if names[i] != "" {
			continue
		}
		base := g.Values[i].Name
		name := base
		for name == "" || taken[name] {
			next[base]++
			name = fmt.Sprintf("%s_%d", base, next[base])
		}
		names[i] = name
		taken[name] = true
	}
	return names
}

func (f *formatter) header(m *Model) {
	lines := []string{fmt.Sprintf("ir_version: %d", m.IRVersion)}
	if len(m.Opsets) > 0 {
		lines = append(lines, "opset_import: "+opsetList(m.Opsets))
	}
	if m.Producer != "" {
		lines = append(lines, "producer_name: "+quoted(m.Producer))
	}
	f.print("<\n  ", strings.Join(lines, ",\n  "), "\n>\n")
}

func opsetList(opsets []Opset) string {
	parts := make([]string, len(opsets))
	for i, o := range opsets {
		parts[i] = fmt.Sprintf("%s : %d", quoted(o.Domain), o.Version)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func (f *formatter) function(fn *Function) {
	f.print("\n<\n  domain: ", quoted(fn.Domain))
	if fn.Overload != "" {
		f.print(",\n  overload: ", quoted(fn.Overload))
	}
	if len(fn.Opsets) > 0 {
		f.print(",\n  opset_import: ", opsetList(fn.Opsets))
	}
	f.print("\n>\n", id(fn.Name))
	for i := range fn.Attrs {
		f.print([]string{" <", ", "}[min(i, 1)])
		if fn.Attrs[i].Kind == AttrNone {
			f.print(id(fn.Attrs[i].Name))
		} else {
			f.attr(&fn.Attrs[i], nil, "")
		}
	}
	if len(fn.Attrs) > 0 {
		f.print(">")
	}
	f.body(fn.Body, f.names(fn.Body, nil), "")
	f.print("\n")
}

// graph writes g, whose values have the given names, without a line's end.
func (f *formatter) graph(g *Graph, names []string, indent string) {
	f.print(id(g.Name))
	f.body(g, names, indent)
}

// body writes what follows the name of a graph or function.
func (f *formatter) body(g *Graph, names []string, indent string) {
	f.print(" ")
	f.declarations(g, names, g.Inputs)
	f.print(" => ")
	f.declarations(g, names, g.Outputs)
	f.values(g, names, indent)
	if len(g.Nodes) == 0 {
		f.print(" {}")
		return
	}
	f.print("\n", indent, "{\n")
	for i := range g.Nodes {
		f.print(indent, "  ")
		f.node(g, &g.Nodes[i], names, indent+"  ")
		f.print(f.comment(g, &g.Nodes[i]), "\n")
	}
	f.print(indent, "}")
}

func (f *formatter) declarations(g *Graph, names []string, ids []ValueID) {
	f.print("(")
	for i, v := range ids {
		if i > 0 {
			f.print(", ")
		}
		f.print(declaration(&g.Values[v], names[v]))
	}
	f.print(")")
}

func declaration(v *Value, name string) string {
	if t := typeText(&v.Type); t != "" {
		return t + " " + id(name)
	}
	return id(name)
}

// values writes initializers and the types of values that are neither inputs
// nor outputs.
func (f *formatter) values(g *Graph, names []string, indent string) {
	output := make([]bool, len(g.Values))
	for _, v := range g.Outputs {
		output[v] = true
	}
	sep := "\n" + indent + "<\n" + indent + "  "
	for i := range g.Values {
		v := &g.Values[i]
		switch {
		case v.Kind == Initializer:
			f.print(sep, tensorHead(v.Const, names[i]), " = ", tensorData(v.Const))
		case v.Kind == Computed && v.Type.Kind != NoType && !output[i] && !f.sizes:
			f.print(sep, declaration(v, names[i]))
		default:
			continue
		}
		sep = ",\n" + indent + "  "
	}
	if sep[0] == ',' {
		f.print("\n", indent, ">")
	}
}

// node writes n without a line's end.
func (f *formatter) node(g *Graph, n *Node, names []string, indent string) {
	if n.Name != "" {
		f.print("[", id(n.Name), "] ")
	}
	if len(n.Outputs) > 0 {
		f.print(idList(n.Outputs, names), " ")
	}
	f.print("= ")
	if n.Args != nil {
		f.call(g, n, names, indent)
	} else {
		f.print(qualified(n), overload(n), " ")
		sub := len(n.Subgraphs()) > 0
		if !sub && f.attrs(g, n, names, indent) {
			f.print(" ")
		}
		f.print("(", idList(n.Inputs, names), ")")
		if sub {
			f.print(" ")
			f.attrs(g, n, names, indent)
		}
	}
	if n.Module != "" {
		f.print(" in ", dotted(n.Module))
	}
}

// call writes a lifted call.
func (f *formatter) call(g *Graph, n *Node, names []string, indent string) {
	f.print(dotted(n.Domain), "::", dotted(n.Op), overload(n), "(", argList(n.Args, names), ")")
	if len(n.Attrs) > 0 {
		f.print(" ")
		f.attrs(g, n, names, indent)
	}
	if !slices.Equal(argValues(nil, n.Args), n.Inputs) {
		f.print(" uses (", idList(n.Inputs, names), ")")
	}
}

// argValues appends the values in args, in order.
func argValues(list []ValueID, args []Arg) []ValueID {
	for i := range args {
		if args[i].Kind == ArgValue {
			list = append(list, args[i].Value)
		}
		list = argValues(list, args[i].List)
	}
	return list
}

func argList(args []Arg, names []string) string {
	parts := make([]string, len(args))
	for i := range args {
		parts[i] = argText(&args[i], names)
		if args[i].Name != "" {
			parts[i] = id(args[i].Name) + "=" + parts[i]
		}
	}
	return strings.Join(parts, ", ")
}

func argText(a *Arg, names []string) string {
	switch a.Kind {
	case ArgValue:
		return id(names[a.Value])
	case ArgInt:
		return strconv.FormatInt(a.Int, 10)
	case ArgFloat:
		return floatText(a.Float, 64)
	case ArgBool:
		return [...]string{"False", "True"}[a.Int&1]
	case ArgString:
		return "'" + escape(a.Str, '\'') + "'"
	case ArgList:
		return "[" + argList(a.List, names) + "]"
	}
	return "None"
}

// qualified writes domain and op of an ONNX node, joined by a dot.
func qualified(n *Node) string {
	if n.Domain == "" {
		return id(n.Op)
	}
	return dotted(n.Domain) + "." + id(n.Op)
}

func overload(n *Node) string {
	if n.Overload == "" {
		return ""
	}
	return ":" + id(n.Overload)
}

// attrs writes n's attributes in angle brackets, unless there are none.
func (f *formatter) attrs(g *Graph, n *Node, names []string, indent string) bool {
	for i := range n.Attrs {
		f.print([]string{"<", ", "}[min(i, 1)])
		f.attr(&n.Attrs[i], names, indent)
	}
	if len(n.Attrs) > 0 {
		f.print(">")
	}
	return len(n.Attrs) > 0
}

// attrTypes are the names of attribute kinds.
var attrTypes = [...]string{
	AttrNone: "undefined", AttrFloat: "float", AttrInt: "int", AttrString: "string", AttrTensor: "tensor", AttrGraph: "graph",
	AttrFloats: "floats", AttrInts: "ints", AttrStrings: "strings", AttrTensors: "tensors", AttrGraphs: "graphs",
	AttrSparseTensor: "sparse_tensor", AttrSparseTensors: "sparse_tensors", AttrType: "type_proto", AttrTypes: "type_protos",
}

// attr writes an attribute, with its type only where the value does not show
// it.
func (f *formatter) attr(a *Attr, names []string, indent string) {
	f.print(id(a.Name))
	if a.Ref != "" {
		f.print(": ", attrTypes[a.Kind], " = @", id(a.Ref))
		return
	}
	parts, list := attrParts(a)
	graphs := a.Graphs
	if a.Graph != nil {
		graphs = []*Graph{a.Graph}
	}
	if a.Kind == AttrNone || a.Kind == AttrType || a.Kind == AttrTypes || list && len(parts)+len(graphs) == 0 {
		f.print(": ", attrTypes[a.Kind])
	}
	if a.Kind == AttrNone {
		return
	}
	f.print(" = ")
	if list {
		f.print("[")
	}
	f.print(strings.Join(parts, ", "))
	for i, g := range graphs {
		if i > 0 {
			f.print(", ")
		}
		f.graph(g, f.names(g, names), indent)
	}
	if list {
		f.print("]")
	}
}

// attrParts returns an attribute's values other than graphs as text, and
// whether the attribute is a list.
func attrParts(a *Attr) (parts []string, list bool) {
	float := func(v float32) string { return floatText(float64(v), 32) }
	typ := func(t Type) string {
		if s := typeText(&t); s != "" {
			return s
		}
		return "none"
	}
	switch a.Kind {
	case AttrFloat:
		return []string{float(a.F)}, false
	case AttrInt:
		return []string{strconv.FormatInt(a.I, 10)}, false
	case AttrString:
		return []string{quoted(a.S)}, false
	case AttrTensor, AttrSparseTensor:
		return []string{tensorText(a.Tensor)}, false
	case AttrType:
		return each(a.Types, typ), false
	case AttrGraph:
		return nil, false
	case AttrFloats:
		parts = each(a.Floats, float)
	case AttrInts:
		parts = each(a.Ints, func(n int64) string { return strconv.FormatInt(n, 10) })
	case AttrStrings:
		parts = each(a.Strings, quoted)
	case AttrTensors, AttrSparseTensors:
		parts = each(a.Tensors, tensorText)
	case AttrTypes:
		parts = each(a.Types, typ)
	}
	return parts, true
}

func each[T any](items []T, text func(T) string) []string {
	parts := make([]string, len(items))
	for i, x := range items {
		parts[i] = text(x)
	}
	return parts
}

func idList(ids []ValueID, names []string) string {
	return strings.Join(each(ids, func(v ValueID) string {
		if v == NoValue {
			return `""`
		}
		return id(names[v])
	}), ", ")
}

// comment returns the comment after a node: the types and sizes of its outputs,
// and the framework operator that it came from, according to the last component
// of the exporter's namespace.
func (f *formatter) comment(g *Graph, n *Node) string {
	var parts []string
	for _, id := range n.Outputs {
		if f.sizes && id != NoValue {
			parts = append(parts, sizeText(&g.Values[id].Type))
		}
	}
	if ns := n.MetaValue("namespace"); ns != "" {
		parts = append(parts, quote.Text(ns[strings.LastIndexByte(ns, '/')+1:]))
	}
	if len(parts) == 0 {
		return ""
	}
	return "  # " + strings.Join(parts, "; ")
}

// sizeText returns the text of a type with its bytes.
func sizeText(t *Type) string {
	text := typeText(t)
	if text == "" {
		return "?"
	}
	if b := t.Bytes(); b.Known() {
		text += " " + quote.Text(b.String()) + " B"
	}
	return text
}

// typeText returns the text of a type, "" if nothing is known.
func typeText(t *Type) string {
	inner := ""
	if t.Of != nil {
		inner = typeText(t.Of)
	}
	switch t.Kind {
	case TensorType:
		return t.Elem.String() + shapeText(t.Shape)
	case SparseType:
		return "sparse_tensor(" + t.Elem.String() + shapeText(t.Shape) + ")"
	case SequenceType:
		if t.Len.Known() {
			inner += ", " + dimText(t.Len)
		}
		return "seq(" + inner + ")"
	case OptionalType:
		return "optional(" + inner + ")"
	case MapType:
		return "map(" + t.Elem.String() + ", " + inner + ")"
	case OpaqueType:
		return "opaque()"
	}
	return ""
}

// shapeText returns dims in brackets: nothing for a scalar, [] for an unknown
// rank.
func shapeText(s Shape) string {
	if s != nil && len(s) == 0 {
		return ""
	}
	return "[" + strings.Join(each(s, dimText), ",") + "]"
}

func dimText(d Dim) string {
	if _, ok := d.Int(); ok || !d.Known() {
		return d.String()
	}
	return id(d.String())
}

// tensorText returns a tensor with its name, as attributes hold it.
func tensorText(t *Constant) string {
	head := tensorHead(t, t.Name)
	if t.Name == "" {
		head = strings.TrimSuffix(head, ` ""`)
	}
	return head + " = " + tensorData(t)
}

func tensorHead(t *Constant, name string) string {
	dims := ""
	if len(t.Dims) > 0 {
		dims = "[" + strings.Join(each(t.Dims, func(n int64) string { return strconv.FormatInt(n, 10) }), ",") + "]"
	}
	return t.Type.String() + dims + " " + id(name)
}

// tensorData returns the elements of t, or where they are.
func tensorData(t *Constant) string {
	if t.Sparse == nil {
		return elementText(t)
	}
	return "sparse(" + elementText(t) + ", " + tensorText(t.Sparse) + ")"
}

func elementText(t *Constant) string {
	var parts []string
	switch {
	case t.Ints != nil:
		parts = each(t.Ints, func(n int64) string {
			if t.Type == Uint64 {
				return strconv.FormatUint(uint64(n), 10)
			}
			return strconv.FormatInt(n, 10)
		})
	case t.Floats != nil:
		bits := 32
		if t.Type == Float64 {
			bits = 64
		}
		parts = each(t.Floats, func(v float64) string { return floatText(v, bits) })
	case t.Strings != nil:
		parts = each(t.Strings, quoted)
	case t.Ref != nil:
		return refText(t.Ref)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func refText(r *DataRef) string {
	s := fmt.Sprintf(`["location": %s, "offset": "%d"`, quoted(r.Location), r.Offset)
	if r.Length >= 0 {
		s += fmt.Sprintf(`, "length": "%d"`, r.Length)
	}
	return s + "]"
}

// floatText returns the shortest text that reads back as v rounded to bits,
// and is no integer.
func floatText(v float64, bits int) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(v, 'g', -1, bits)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// id returns a name unchanged if Parse reads it as one, else quoted.
func id(name string) string {
	if isID(name) && !isKeyword(name) {
		return name
	}
	return quoted(name)
}

// dotted returns a name of components joined by dots; it is quoted as a whole
// when one of them is not an identifier.
func dotted(name string) string {
	for part := range strings.SplitSeq(name, ".") {
		if !isID(part) || isKeyword(part) {
			return quoted(name)
		}
	}
	return name
}

func isID(s string) bool {
	for i := range len(s) {
		if !idByte(s[i], i == 0) {
			return false
		}
	}
	return s != ""
}

func idByte(c byte, first bool) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || !first && '0' <= c && c <= '9'
}

// isKeyword reports whether a bare word has another meaning than a name
// somewhere in the syntax.
func isKeyword(s string) bool {
	switch s {
	case "seq", "map", "optional", "sparse_tensor", "opaque", "sparse", "none", "undefined",
		"None", "True", "False", "in", "uses":
		return true
	}
	_, ok := ParseDType(s)
	return ok || isFloatWord(s)
}

func quoted(s string) string { return `"` + escape(s, '"') + `"` }

// plain reports whether escape changes nothing, for ASCII.
func plain(s string, delimiter byte) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == delimiter || c == '\\' {
			return false
		}
	}
	return true
}

// escape replaces what quote.Text does, the delimiter and the backslash.
func escape(s string, delimiter byte) string {
	if plain(s, delimiter) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case s[0] == delimiter || s[0] == '\\':
			b.WriteByte('\\')
			b.WriteByte(s[0])
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case strconv.IsPrint(r):
			b.WriteString(s[:n])
		default:
			b.WriteString(quote.Escape(r))
		}
		s = s[n:]
	}
	return b.String()
}
