package lift

import (
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/bounded"
)

// CaptureKey is the metadata property of a model file that holds a capture: what
// memplan's Python package recorded when it ran the module's own code.
const CaptureKey = "memplan.capture"

// captureSchema is the schema version that this package reads.
const captureSchema = 1

// Limits of a capture.
const (
	maxCaptureText = 64 << 20 // bytes of JSON
	maxCaptureIDs  = 1 << 22  // tensors of a variant
	maxArgDepth    = 16       // lists in lists
)

// A Capture is the record of a module's code, run without a GPU.
type Capture struct {
	Schema   int               `json:"schema"`
	Torch    string            `json:"torch"`
	Memplan  string            `json:"memplan"`
	Class    string            `json:"class"`
	Dims     []CapturedDim     `json:"dims"`
	Modules  [][]string        `json:"modules"` // name, class
	Tensors  []capturedTensor  `json:"tensors"`
	Variants []capturedVariant `json:"variants"`
	Step     *CapturedStep     `json:"step"`
	Checks   []CapturedCheck   `json:"checks"`

	exprs map[string]graph.Dim // expressions by their text, parsed
}

// A CapturedDim is a free dimension of the inputs.
type CapturedDim struct {
	Name   string  `json:"name"`
	Traced []int64 `json:"traced"`
}

// A CapturedStep is the user's own training step.
type CapturedStep struct {
	Optimizer  string         `json:"optimizer"`
	Options    map[string]any `json:"options"`
	Accumulate int            `json:"accumulate"`
}

// A CapturedCheck holds the peak live bytes of each phase of a step that ran
// without a GPU, each storage rounded up to 512, without libraries' workspaces.
type CapturedCheck struct {
	Mode      string           `json:"mode"`
	Precision string           `json:"precision"`
	Optimizer string           `json:"optimizer"`
	Loss      string           `json:"loss"`
	Dims      map[string]int64 `json:"dims"`
	Forward   int64            `json:"forward"`
	Backward  int64            `json:"backward"`
	Update    int64            `json:"update"`
	First     int64            `json:"first"`
}

// A capturedTensor is a tensor that exists before the model is called.
type capturedTensor struct {
	Kind       string       `json:"kind"`
	Name       string       `json:"name"`
	Shape      capturedDims `json:"shape"`
	DType      string       `json:"dtype"`
	Grad       bool         `json:"grad"`
	Also       []string     `json:"also"`
	Persistent *bool        `json:"persistent"`
	Device     string       `json:"device"`
}

// A capturedVariant is one run: a mode and a precision.
type capturedVariant struct {
	Mode      string                  `json:"mode"`
	Precision string                  `json:"precision"`
	Error     string                  `json:"error"` // PyTorch's own error, if the variant does not run
	Same      *int                    `json:"same"`  // variant with the same calls
	Calls     []capturedCall          `json:"calls"`
	Types     map[string]capturedType `json:"types"`
	Outputs   []int32                 `json:"outputs"`
	Loss      *int32                  `json:"loss"`
	Forward   *int                    `json:"forward"` // calls of the model; later ones are the loss's
	Regions   []capturedRegion        `json:"regions"`
	Constants []int32                 `json:"constants"` // tensors on the device that no call makes, with types
}

// A capturedRegion is a range of calls that autograd treats in another way: a
// custom function with its backward in Python, a checkpoint, or hooks on what is
// saved.
type capturedRegion struct {
	Kind    string         `json:"kind"` // function, checkpoint, hooks
	Name    string         `json:"name"`
	In      *int           `json:"in"` // enclosing region
	Inputs  []int32        `json:"inputs"`
	Outputs []int32        `json:"outputs"`
	Saves   []capturedSave `json:"saves"`
}

// A capturedCast is the autocast type of a call; false turns autocast off.
type capturedCast struct{ to graph.DType }

// UnmarshalJSON reads false, true or a type name.
func (c *capturedCast) UnmarshalJSON(b []byte) error {
	if string(b) == "false" || string(b) == "true" {
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	var err error
	c.to, err = capturedDType(s)
	return err
}

// A capturedCall is one call of an operator.
type capturedCall struct {
	Op       string                 `json:"op"`
	Args     []capturedArg          `json:"args"`
	Kwargs   map[string]capturedArg `json:"kwargs"`
	Out      []*int32               `json:"out"`
	Module   *int                   `json:"module"`
	At       string                 `json:"at"`
	Autocast *capturedCast          `json:"autocast"` // if it differs from the variant's
	Grad     *bool                  `json:"grad"`     // if it differs from the variant's
	Region   *int                   `json:"region"`
	Dies     []int32                `json:"dies"`
	Saves    []capturedSave         `json:"saves"`

	names []string // keys of Kwargs, sorted
}

// A capturedType is a tensor's element type, shape and storage.
type capturedType struct {
	dtype   graph.DType
	shape   capturedDims
	storage int32 // id of the tensor whose storage it shares, -1 for its own
	device  string
	strides capturedDims
	offset  capturedSize
	bytes   *capturedSize // bytes of its storage, if the tensor shows only a part of it
	grad    bool          // whether it requires a gradient
}

// UnmarshalJSON reads ["bfloat16", [dims], storage, more].
func (t *capturedType) UnmarshalJSON(b []byte) error {
	t.storage = -1
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	if len(list) < 2 {
		return errors.New("a type has at least an element type and a shape")
	}
	var dtype string
	var storage *int32
	var more struct {
		Device  string        `json:"device"`
		Strides capturedDims  `json:"strides"`
		Offset  capturedSize  `json:"offset"`
		Bytes   *capturedSize `json:"bytes"`
		Grad    bool          `json:"grad"`
	}
	into := []any{&dtype, &t.shape, &storage, &more}
	for i := range min(len(list), len(into)) {
		if err := json.Unmarshal(list[i], into[i]); err != nil {
			return err
		}
	}
	if storage != nil {
		t.storage = *storage
	}
	t.device, t.strides, t.offset, t.bytes, t.grad = more.Device, more.Strides, more.Offset, more.Bytes, more.Grad
	var err error
	t.dtype, err = capturedDType(dtype)
	return err
}

// capturedDType parses PyTorch's name of an element type.
func capturedDType(s string) (graph.DType, error) {
	if d, ok := capturedTypes[strings.TrimPrefix(s, "torch.")]; ok {
		return d, nil
	}
	return graph.Undefined, fmt.Errorf("unknown element type %q", s)
}

var capturedTypes = map[string]graph.DType{
	"float32": graph.Float32, "float64": graph.Float64, "float16": graph.Float16, "bfloat16": graph.BFloat16,
	"int64": graph.Int64, "int32": graph.Int32, "int16": graph.Int16, "int8": graph.Int8, "uint8": graph.Uint8, "bool": graph.Bool,
	"uint16": graph.Uint16, "uint32": graph.Uint32, "uint64": graph.Uint64, "complex64": graph.Complex64, "complex128": graph.Complex128,
	"complex32":     graph.Uint32, // of its size; a capture has what computing with it saves and makes
	"float8_e4m3fn": graph.Float8E4M3, "float8_e5m2": graph.Float8E5M2,
}

// A capturedSize is an integer, or an expression in dims.
type capturedSize struct {
	n    int64
	expr string
}

type capturedDims []capturedSize

// UnmarshalJSON reads 12 or {"e": "8*batch"}.
func (s *capturedSize) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var o struct {
			E *string `json:"e"`
		}
		if err := json.Unmarshal(b, &o); err != nil {
			return err
		}
		if o.E == nil || *o.E == "" {
			return errors.New(`a size is a number or {"e": expression}`)
		}
		s.expr = *o.E
		return nil
	}
	return json.Unmarshal(b, &s.n)
}

// A capturedSave is a tensor that autograd saves: its id, or the bytes of one
// that no call returns.
type capturedSave struct {
	id    int32
	bytes capturedSize
}

// UnmarshalJSON reads 12 or {"new": bytes}.
func (s *capturedSave) UnmarshalJSON(b []byte) error {
	s.id = -1
	if len(b) > 0 && b[0] == '{' {
		var o struct {
			New *capturedSize `json:"new"`
		}
		if err := json.Unmarshal(b, &o); err != nil {
			return err
		}
		if o.New == nil {
			return errors.New(`a saved tensor is an id or {"new": bytes}`)
		}
		s.bytes = *o.New
		return nil
	}
	return json.Unmarshal(b, &s.id)
}

// A capturedArg is an argument of a call.
type capturedArg struct {
	kind  graph.ArgKind
	i     int64 // ArgInt, ArgBool; ArgValue: the tensor's id
	f     float64
	s     string
	size  string // ArgInt: an expression instead of i
	list  []capturedArg
	depth int

	dtype graph.DType // of a CPU tensor, whose id is -1
	shape capturedDims
}

// UnmarshalJSON reads one argument, whose kind shows in its first byte.
func (a *capturedArg) UnmarshalJSON(b []byte) error {
	if len(b) == 0 {
		return errors.New("an empty argument")
	}
	switch b[0] {
	case 'n':
		a.kind = graph.ArgNone
		return nil
	case 't', 'f':
		a.kind = graph.ArgBool
		if b[0] == 't' {
			a.i = 1
		}
		return nil
	case '"':
		a.kind = graph.ArgString
		return json.Unmarshal(b, &a.s)
	case '[':
		a.kind = graph.ArgList
		if err := json.Unmarshal(b, &a.list); err != nil {
			return err
		}
		for i := range a.list {
			a.depth = max(a.depth, a.list[i].depth+1)
		}
		if a.depth > maxArgDepth {
			return fmt.Errorf("an argument of lists nested more than %d deep", maxArgDepth)
		}
		return nil
	case '{':
		return a.object(b)
	}
	return a.number(string(b))
}

// number reads an integer or a float.
func (a *capturedArg) number(s string) error {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		a.kind, a.i = graph.ArgInt, i
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	a.kind, a.f = graph.ArgFloat, f
	if errors.Is(err, strconv.ErrRange) { // beyond 64 bits, as a fill value may be
		err = nil
	}
	return err
}

// object reads an argument that is a JSON object.
func (a *capturedArg) object(b []byte) error {
	var o struct {
		T      *int32  `json:"t"`
		E      *string `json:"e"`
		S      *string `json:"s"`
		DType  *string `json:"dtype"`
		Device *string `json:"device"`
		Format *string `json:"format"`
		Layout *string `json:"layout"`
		F      *string `json:"f"`

		CPU []json.RawMessage `json:"cpu"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	a.kind = graph.ArgString
	switch {
	case len(o.CPU) > 0:
		if len(o.CPU) != 2 {
			return errors.New("a tensor of the CPU has an element type and a shape")
		}
		var dtype string
		if err := errors.Join(json.Unmarshal(o.CPU[0], &dtype), json.Unmarshal(o.CPU[1], &a.shape)); err != nil {
			return err
		}
		var err error
		a.kind, a.i = graph.ArgValue, -1
		a.dtype, err = capturedDType(dtype)
		return err
	case o.T != nil:
		a.kind, a.i = graph.ArgValue, int64(*o.T)
	case o.E != nil:
		a.kind, a.size = graph.ArgInt, *o.E
	case o.S != nil:
		a.s = *o.S
	case o.DType != nil:
		a.s = "torch." + strings.TrimPrefix(*o.DType, "torch.")
	case o.Device != nil:
		a.s = *o.Device
	case o.Format != nil:
		a.s = "torch." + strings.TrimPrefix(*o.Format, "torch.")
	case o.Layout != nil:
		a.s = *o.Layout
	case o.F != nil:
		f, err := strconv.ParseFloat(*o.F, 64)
		if err != nil {
			return fmt.Errorf("%q is no number", *o.F)
		}
		a.kind, a.f = graph.ArgFloat, f
	default:
		return errors.New("an argument of an unknown kind: this capture was written by a newer memplan")
	}
	return nil
}

// ReadCapture decodes the value of CaptureKey: base64 of zlib of JSON. The error
// says which call of which variant is wrong.
func ReadCapture(text string) (*Capture, error) {
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("not base64: %w", err)
	}
	z, err := zlib.NewReader(strings.NewReader(string(packed)))
	if err != nil {
		return nil, fmt.Errorf("not zlib: %w", err)
	}
	data, err := bounded.ReadAll(z, maxCaptureText)
	if err != nil {
		return nil, err
	}
	return DecodeCapture(data)
}

// DecodeCapture reads the JSON of a capture.
func DecodeCapture(data []byte) (*Capture, error) {
	var head struct {
		Schema *int `json:"schema"`
	}
	c := &Capture{exprs: map[string]graph.Dim{}}
	if err := bounded.Decode(data, &head); err != nil {
		return nil, err
	}
	if head.Schema == nil {
		return nil, errors.New("it has no schema")
	}
	if *head.Schema != captureSchema {
		return nil, fmt.Errorf("schema %d, and this memplan reads schema %d: use the memplan that exported the file", *head.Schema, captureSchema)
	}
	if err := bounded.Decode(data, c); err != nil {
		return nil, err
	}
	return c, c.check()
}

// check validates what the variants share, and then each of them.
func (c *Capture) check() error {
	for i, m := range c.Modules {
		if len(m) != 2 {
			return fmt.Errorf("module %d: want a name and a class", i)
		}
	}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		if !slices.Contains([]string{"parameter", "buffer", "input", "constant"}, t.Kind) {
			return fmt.Errorf("tensor %d, %q: unknown kind %q", i, t.Name, t.Kind)
		}
		if _, err := capturedDType(t.DType); err != nil {
			return fmt.Errorf("tensor %d, %q: %w", i, t.Name, err)
		}
		if err := c.sizes(t.Shape); err != nil {
			return fmt.Errorf("tensor %d, %q: %w", i, t.Name, err)
		}
	}
	for i := range c.Variants {
		if err := c.Variants[i].check(c, i); err != nil {
			v := &c.Variants[i]
			return fmt.Errorf("variant %d, %s %s: %w", i, v.Mode, v.Precision, err)
		}
	}
	return nil
}

// sizes parses the expressions of a shape.
func (c *Capture) sizes(list capturedDims) error {
	for i := range list {
		if err := c.expr(list[i].expr); err != nil {
			return err
		}
	}
	return nil
}

// expr parses an expression, once for each text.
func (c *Capture) expr(text string) error {
	if _, done := c.exprs[text]; done || text == "" {
		return nil
	}
	d, err := graph.ParseDim(text)
	if err != nil {
		return err
	}
	for _, s := range d.Symbols() {
		if !slices.ContainsFunc(c.Dims, func(k CapturedDim) bool { return k.Name == s }) {
			return fmt.Errorf("size %q: no dim is called %s", text, s)
		}
	}
	c.exprs[text] = d
	return nil
}

// check validates that calls read only tensors that exist.
func (v *capturedVariant) check(c *Capture, index int) error {
	if v.Error != "" {
		return nil
	}
	if v.Same != nil {
		k := *v.Same
		if k < 0 || k >= index || c.Variants[k].Error != "" || c.Variants[k].Same != nil && len(v.Calls) == 0 && c.Variants[k].Calls == nil {
			return fmt.Errorf("same %d: want an earlier variant with calls", k)
		}
		o := &c.Variants[k]
		v.Calls, v.Forward, v.Regions, v.Constants = o.Calls, o.Forward, o.Regions, o.Constants
		if v.Types == nil {
			v.Types = map[string]capturedType{}
		}
		for id, t := range o.Types {
			if _, own := v.Types[id]; !own {
				v.Types[id] = t
			}
		}
		if v.Outputs == nil {
			v.Outputs, v.Loss = o.Outputs, o.Loss
		}
	}
	for key := range v.Types {
		n, err := strconv.ParseInt(key, 10, 32)
		if err != nil || n < 0 || n >= maxCaptureIDs {
			return fmt.Errorf("types: %q is no id below %d", key, maxCaptureIDs)
		}
		t := v.Types[key]
		more := capturedDims{t.offset}
		if t.bytes != nil {
			more = append(more, *t.bytes)
		}
		if err := errors.Join(c.sizes(t.shape), c.sizes(t.strides), c.sizes(more)); err != nil {
			return fmt.Errorf("type of %s: %w", key, err)
		}
	}
	if v.Forward != nil && (*v.Forward < 0 || *v.Forward > len(v.Calls)) {
		return fmt.Errorf("forward %d: want at most the %d calls", *v.Forward, len(v.Calls))
	}
	k := callChecker{c: c, v: v, known: make(map[int32]bool, len(c.Tensors)+len(v.Types))}
	for i := range c.Tensors {
		k.known[int32(i)] = true
	}
	for _, id := range v.Constants {
		if _, ok := v.Types[strconv.Itoa(int(id))]; !ok || k.known[id] {
			return fmt.Errorf("constant %d: want an id of its own, with a type", id)
		}
		k.known[id] = true
	}
	for i := range v.Calls {
		if err := k.call(&v.Calls[i]); err != nil {
			return fmt.Errorf("call %d, %.60q: %w", i, v.Calls[i].Op, err)
		}
	}
	for i := range v.Regions {
		if err := k.region(i); err != nil {
			return fmt.Errorf("region %d, %.60q: %w", i, v.Regions[i].Name, err)
		}
	}
	for _, id := range v.Outputs {
		if !k.known[id] {
			return fmt.Errorf("output %d is no tensor", id)
		}
	}
	if v.Loss != nil && !k.known[*v.Loss] {
		return fmt.Errorf("loss %d is no tensor", *v.Loss)
	}
	return nil
}

// A callChecker validates the calls of a variant in order.
type callChecker struct {
	c     *Capture
	v     *capturedVariant
	known map[int32]bool
}

func (k *callChecker) call(call *capturedCall) error {
	if !strings.HasPrefix(call.Op, "aten.") && strings.Count(call.Op, ".") < 1 {
		return errors.New("want an operator as aten.linear.default")
	}
	if call.Module != nil && (*call.Module < 0 || *call.Module >= len(k.c.Modules)) {
		return fmt.Errorf("no module %d", *call.Module)
	}
	if err := k.args(call.Args); err != nil {
		return err
	}
	call.names = call.names[:0]
	for name, a := range call.Kwargs {
		if err := k.args([]capturedArg{a}); err != nil {
			return err
		}
		call.names = append(call.names, name)
	}
	slices.Sort(call.names)
	for _, o := range call.Out {
		if o == nil {
			continue
		}
		if *o < 0 || *o >= maxCaptureIDs {
			return fmt.Errorf("result %d: want an id below %d", *o, maxCaptureIDs)
		}
		if !k.known[*o] {
			t, ok := k.v.Types[strconv.Itoa(int(*o))]
			if !ok {
				return fmt.Errorf("result %d has no type", *o)
			}
			if t.storage == *o {
				return fmt.Errorf("result %d shares its own storage", *o)
			}
		}
		k.known[*o] = true
	}
	for _, id := range call.Dies {
		if !k.known[id] {
			return fmt.Errorf("tensor %d dies and was never made", id)
		}
	}
	if r := call.Region; r != nil && (*r < 0 || *r >= len(k.v.Regions)) {
		return fmt.Errorf("no region %d", *r)
	}
	return k.saves(call.Saves)
}

func (k *callChecker) saves(list []capturedSave) error {
	for _, s := range list {
		if s.id >= 0 && !k.known[s.id] {
			return fmt.Errorf("tensor %d is saved and was never made", s.id)
		}
		if err := k.c.expr(s.bytes.expr); err != nil {
			return err
		}
	}
	return nil
}

// region validates one region, once all calls are known.
func (k *callChecker) region(i int) error {
	r := &k.v.Regions[i]
	if r.In != nil && (*r.In < 0 || *r.In >= i) {
		return fmt.Errorf("in %d: want an earlier region", *r.In)
	}
	for _, id := range slices.Concat(r.Inputs, r.Outputs) {
		if !k.known[id] {
			return fmt.Errorf("tensor %d was never made", id)
		}
	}
	return k.saves(r.Saves)
}

func (k *callChecker) args(list []capturedArg) error {
	for i := range list {
		a := &list[i]
		if a.kind == graph.ArgValue && a.i == -1 && a.dtype.Valid() {
			if err := k.c.sizes(a.shape); err != nil {
				return err
			}
			continue
		}
		if a.kind == graph.ArgValue && (a.i < 0 || a.i > math.MaxInt32 || !k.known[int32(a.i)]) {
			return fmt.Errorf("argument: tensor %d was never made", a.i)
		}
		if err := k.c.expr(a.size); err != nil {
			return err
		}
		if err := k.args(a.list); err != nil {
			return err
		}
	}
	return nil
}

// Variant returns the index of the variant of a mode and a precision. ok is
// whether the capture has it; err is PyTorch's own error if it does not run.
func (c *Capture) Variant(mode, precision string) (index int, ok bool, err error) {
	for i := range c.Variants {
		if v := &c.Variants[i]; v.Mode == mode && v.Precision == precision {
			if v.Error != "" {
				return i, true, errors.New(firstLine(v.Error))
			}
			return i, true, nil
		}
	}
	return -1, false, nil
}

// Ran lists the variants that the capture has, as "train fp32".
func (c *Capture) Ran() []string {
	var out []string
	for i := range c.Variants {
		if v := &c.Variants[i]; v.Error == "" {
			out = append(out, v.Mode+" "+v.Precision)
		}
	}
	return out
}

// firstLine returns the first line of an error's text, at most 300 bytes.
func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return strings.ToValidUTF8(s[:min(len(s), 300)], "")
}
