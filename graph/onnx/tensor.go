package onnx

import (
	"io"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/graph"
)

// Elements are decoded only for tensors up to these sizes. Shapes depend on
// integers; floats matter as scales, epsilons and thresholds.
const (
	maxInts    = 4096
	maxFloats  = 1024
	maxStrings = 1024
	maxRaw     = maxInts * 8 // bytes of raw data worth reading
)

// A payload is a TensorProto's description of its elements.
type payload struct {
	raw      bool // raw_data is present: in decoder.raw when short enough
	rawOff   int64
	rawLen   int64
	typed    protowire.Number // the typed field in use; its elements in decoder.elems
	count    int64            // elements of the typed field
	span     field            // the packed field, when there is exactly one
	spans    int
	strings  []string
	external []graph.Prop
	outside  bool // data_location is EXTERNAL
}

// ReadTensor reads a file that is one TensorProto, as the ONNX project stores test data.
// Elements stored in the file raw or packed get a reference to their bytes; all others
// are decoded.
func ReadTensor(r io.ReaderAt, size int64, path string, opts ...Option) (*graph.Constant, error) {
	o := options{memory: DefaultMemory}
	for _, set := range opts {
		set(&o)
	}
	most := min(MaxElements(o.memory), size) // an element takes at least a byte
	d := &decoder{reader: newReader(r, size, path, o.memory), model: &graph.Model{Path: path}, strings: map[string]string{}, whole: max(most, 1)}
	t, _, err := d.tensor(field{typ: protowire.BytesType, end: size})
	if err == nil && t.Type == graph.Undefined {
		err = d.fail(0, "not an ONNX tensor: it has no type")
	}
	return t, err
}

// MaxElements returns how many elements ReadTensor can decode in that much memory: in
// a list that grows, and its copy.
func MaxElements(memory int64) int64 { return memory / (3 * costInt) }

// tensor reads a TensorProto and its metadata.
func (d *decoder) tensor(f field) (*graph.Constant, []graph.Prop, error) {
	if err := d.open(f, costTensor); err != nil {
		return nil, nil, err
	}
	at := f.off
	t := &graph.Constant{}
	var p payload
	props := d.props.mark()
	d.elems, d.raw = d.elems[:0], d.raw[:0]
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.dims(t, f)
		case 2:
			t.Type, err = d.dtype(f)
		case 3:
			err = d.fail(f.off, "segmented tensors are not supported")
		case 8:
			err = d.set(&t.Name, f)
		case 16:
			err = d.prop(f)
		default:
			err = d.payload(&p, f)
		}
		return err
	})
	meta := d.props.take(props)
	if err != nil {
		return t, nil, err
	}
	return t, meta, d.elements(t, &p, at)
}

// dims reads the repeated field dims.
func (d *decoder) dims(t *graph.Constant, f field) error {
	bad := false
	if err := d.list(f); err != nil {
		return err
	}
	err := d.numbers(f, protowire.VarintType, func(v uint64) bool {
		t.Dims = append(t.Dims, int64(v))
		bad = bad || int64(v) < 0
		return true
	})
	if err == nil && bad {
		err = d.fail(f.off, "tensor has a negative dimension")
	}
	return err
}

// payload reads one of the fields that hold elements.
func (d *decoder) payload(p *payload, f field) error {
	switch f.num {
	case 4:
		return d.typed(p, f, protowire.Fixed32Type)
	case 5, 7, 11:
		return d.typed(p, f, protowire.VarintType)
	case 10:
		return d.typed(p, f, protowire.Fixed64Type)
	case 6:
		if p.count++; p.count > maxStrings {
			return d.expect(f, protowire.BytesType)
		}
		return d.add(&p.strings, f)
	case 9:
		p.raw, p.rawOff, p.rawLen = true, f.off, f.end-f.off
		if p.rawLen > maxRaw {
			return d.expect(f, protowire.BytesType)
		}
		b, err := d.bytes(f)
		d.raw = append(d.raw[:0], b...)
		return err
	case 13:
		mark := d.props.mark()
		err := d.prop(f)
		p.external = append(p.external, d.props.take(mark)...)
		return err
	case 14:
		n, err := d.number(f)
		p.outside = n == 1
		return err
	}
	return nil
}

// typed reads elements of a typed field, keeping the first maxInts. Packed
// fixed-width elements beyond them are counted without being read.
func (d *decoder) typed(p *payload, f field, typ protowire.Type) error {
	p.typed, p.span = f.num, f
	p.spans++
	width := map[protowire.Type]int64{protowire.Fixed32Type: 4, protowire.Fixed64Type: 8}[typ]
	if f.typ == protowire.BytesType && width > 0 {
		if (f.end-f.off)%width != 0 {
			return d.fail(f.off, "packed field %d has %d bytes, not a multiple of %d", f.num, f.end-f.off, width)
		}
		p.count += (f.end - f.off) / width
		return d.numbers(f, typ, d.keep)
	}
	return d.numbers(f, typ, func(v uint64) bool {
		p.count++
		d.keep(v)
		return true
	})
}

// keep stores one element; it returns false when no more are wanted.
func (d *decoder) keep(v uint64) bool {
	if int64(len(d.elems)) < d.most() {
		d.elems = append(d.elems, v)
	}
	return int64(len(d.elems)) < d.most()
}

// most returns how many elements of a typed field are kept.
func (d *decoder) most() int64 {
	if d.whole > 0 {
		return d.whole
	}
	return maxInts
}

// elements decodes what p holds, or records where it is.
func (d *decoder) elements(t *graph.Constant, p *payload, at int64) error {
	n, ok := t.Elems()
	size, fits := t.Bytes()
	if !ok || !fits {
		return d.fail(at, "tensor %q: the size of %s%v overflows", t.Name, t.Type, t.Dims)
	}
	if p.outside || len(p.external) > 0 && !p.raw && p.count == 0 {
		return d.external(t, p, at)
	}
	switch {
	case p.raw:
		t.Ref = &graph.DataRef{Offset: p.rawOff, Length: p.rawLen}
		if p.rawLen == 0 && n > 0 { // stripped of its weights
			t.Ref = nil
			return nil
		}
		if t.Type == graph.String || p.rawLen != size {
			return d.fail(at, "tensor %q: %s%v takes %d bytes, raw_data has %d", t.Name, t.Type, t.Dims, size, p.rawLen)
		}
		if p.rawLen <= maxRaw {
			decodeRaw(t, n, d.raw)
		}
	case p.count > 0:
		return d.decodeTyped(t, n, p, at)
	}
	return nil
}

// external records a reference to a file beside the model.
func (d *decoder) external(t *graph.Constant, p *payload, at int64) error {
	ref := &graph.DataRef{Length: -1}
	for _, e := range p.external {
		var err error
		switch e.Key {
		case "location":
			ref.Location = e.Value
		case "offset":
			ref.Offset, err = strconv.ParseInt(e.Value, 10, 64)
		case "length":
			ref.Length, err = strconv.ParseInt(e.Value, 10, 64)
		}
		if err != nil || ref.Offset < 0 || ref.Length < -1 {
			return d.fail(at, "tensor %q: external_data %s %q is not a size in bytes", t.Name, e.Key, e.Value)
		}
	}
	if ref.Location == "" {
		return d.fail(at, "tensor %q: external_data names no location", t.Name)
	}
	t.Ref = ref
	return nil
}

// limit returns how many elements of type t are decoded if a tensor is part of a model.
func limit(t graph.DType) int64 {
	switch {
	case t.IsFloat():
		return maxFloats
	case t == graph.String:
		return maxStrings
	case t == graph.Complex64 || t == graph.Complex128 || t == graph.Undefined:
		return 0
	}
	return maxInts
}

// decodeRaw sets the n elements of t from little-endian bytes.
func decodeRaw(t *graph.Constant, n int64, raw []byte) {
	if n > limit(t.Type) {
		return
	}
	bits := int(t.Type.Bits())
	fill(t, int(n), func(i int) uint64 {
		if bits < 8 {
			per := 8 / bits
			return uint64(raw[i/per]) >> (i % per * bits)
		}
		return little(raw[i*bits/8 : (i+1)*bits/8])
	})
}

// fill sets the n elements of t from their bit patterns. Bits above an
// element's width are ignored.
func fill(t *graph.Constant, n int, bits func(i int) uint64) {
	if t.Type.IsFloat() {
		t.Floats = make([]float64, n)
		for i := range n {
			t.Floats[i] = t.Type.Float(bits(i))
		}
		return
	}
	t.Ints = make([]int64, n)
	for i := range n {
		t.Ints[i] = integer(t.Type, bits(i))
	}
}

// integer extends the low bits of v to 64, by sign or by zero as t is signed.
// A uint64 of 2^63 or more comes out negative.
func integer(t graph.DType, v uint64) int64 {
	shift := 64 - t.Bits()
	switch t {
	case graph.Bool:
		if v != 0 {
			return 1
		}
		return 0
	case graph.Int2, graph.Int4, graph.Int8, graph.Int16, graph.Int32, graph.Int64:
		return int64(v<<shift) >> shift
	}
	return int64(v << shift >> shift)
}

// typedField returns the field with the elements of a type, and how many
// entries of it one element takes (or, if negative, how many share one).
func typedField(t graph.DType) (num protowire.Number, entries int64) {
	switch t {
	case graph.Float32:
		return 4, 1
	case graph.Complex64:
		return 4, 2
	case graph.Float64:
		return 10, 1
	case graph.Complex128:
		return 10, 2
	case graph.Int64:
		return 7, 1
	case graph.Uint32, graph.Uint64:
		return 11, 1
	case graph.String:
		return 6, 1
	case graph.Int4, graph.Uint4, graph.Float4E2M1:
		return 5, -2
	case graph.Int2, graph.Uint2:
		return 5, -4
	}
	return 5, 1
}

// decodeTyped sets t's n elements from the typed field that p found.
func (d *decoder) decodeTyped(t *graph.Constant, n int64, p *payload, at int64) error {
	num, entries := typedField(t.Type)
	want := n * entries
	if entries < 0 {
		want = (n - entries - 1) / -entries
	}
	found := p.typed
	if found == 0 {
		found = 6
	}
	if found != num || p.count != want {
		return d.fail(at, "tensor %q: %s%v needs %d entries of field %d, field %d has %d",
			t.Name, t.Type, t.Dims, want, num, found, p.count)
	}
	if (num == 4 || num == 10) && p.spans == 1 && p.span.typ == protowire.BytesType {
		t.Ref = &graph.DataRef{Offset: p.span.off, Length: p.span.end - p.span.off}
	}
	if n > limit(t.Type) && (d.whole < n || limit(t.Type) == 0) {
		return nil
	}
	if num == 6 {
		t.Strings = p.strings
		return nil
	}
	fill(t, int(n), func(i int) uint64 {
		if entries < 0 {
			per := int(-entries)
			return d.elems[i/per] >> (i % per * int(t.Type.Bits()))
		}
		return d.elems[i]
	})
	return nil
}

// sparse reads a SparseTensorProto: values, indices and the dense dims.
func (d *decoder) sparse(f field) (*graph.Constant, []graph.Prop, error) {
	if err := d.open(f, costTensor); err != nil {
		return nil, nil, err
	}
	at := f.off
	values, indices, dense := &graph.Constant{}, &graph.Constant{}, &graph.Constant{}
	var meta []graph.Prop
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			values, meta, err = d.tensor(f)
			err = within(err, "values", single)
		case 2:
			indices, _, err = d.tensor(f)
			err = within(err, "indices", single)
		case 3:
			err = d.dims(dense, f)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	values.Dims, values.Sparse = dense.Dims, indices
	if _, ok := values.Bytes(); !ok {
		return nil, nil, d.fail(at, "tensor %q: the size of %s%v overflows", values.Name, values.Type, values.Dims)
	}
	return values, meta, nil
}
