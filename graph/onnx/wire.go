package onnx

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	windowSize = 256 << 10 // bytes of the file held at once
	maxString  = 64 << 20  // bytes of one string field
	maxDepth   = 64        // nested graphs or types
	maxOpsets  = 256       // operator sets that a model, or a function, imports
)

// A FormatError is a violation of ONNX's wire format.
type FormatError struct {
	Path   string // the file
	Offset int64  // bytes from its beginning
	Where  string // the message, such as "graph.node[3].attribute[0]"
	Reason string
}

func (e *FormatError) Error() string {
	where := ""
	if e.Where != "" {
		where = " (" + e.Where + ")"
	}
	return fmt.Sprintf("%s: byte %d%s: %s", e.Path, e.Offset, where, e.Reason)
}

// within adds to err the part of a message in which it arose: its field, and
// the index of the entry in a repeated one, else single.
func within(err error, part string, index int) error {
	if err == nil {
		return nil
	}
	var fe *FormatError
	if !errors.As(err, &fe) {
		return err
	}
	if index != single {
		part = fmt.Sprintf("%s[%d]", part, index)
	}
	if fe.Where != "" {
		part += "."
	}
	fe.Where = part + fe.Where
	return err
}

const single = -1

// A reader reads protobuf fields from a window that slides over a file. It
// holds windowSize bytes, whatever the file's size, and never reads what it
// is told to skip.
type reader struct {
	src  io.ReaderAt
	size int64
	path string

	buf  []byte // the window
	base int64  // offset of buf[0]
	pos  int    // next byte, in buf; may lie behind its end after a skip

	budget int64 // bytes that messages may still take in memory
}

// Approximate memory of messages, in bytes. A message may take two bytes in a
// hostile file, so the limit of what is built from a file depends on its size
// as well as on the caller's limit: real models take a tenth of it, and nodes
// of a dozen bytes, with names of one letter, are within it.
const (
	costNode   = 1024
	costAttr   = 320
	costValue  = 512
	costType   = 192
	costDim    = 64
	costTensor = 384
	costProp   = 64
	costString = 32

	costInt   = 16 // of a list: an element, and its share of a growing list's spare room
	costOther = 2  // bytes that later stages take for one of the reader's

	budgetBase  = 96 << 20
	budgetRatio = 96 // times the file's size
)

// newReader reads a file and limits what is built from it so that later stages
// have enough of the given memory, in bytes.
func newReader(src io.ReaderAt, size int64, path string, memory int64) *reader {
	budget := memory / (1 + costOther)
	if size < budget/budgetRatio {
		budget = min(budget, budgetBase+size*budgetRatio)
	}
	return &reader{src: src, size: size, path: path, budget: budget, buf: make([]byte, 0, min(size, windowSize))}
}

// offset returns the position in the file.
func (r *reader) offset() int64 { return r.base + int64(r.pos) }

// seek moves to the file offset off without reading.
func (r *reader) seek(off int64) {
	if d := off - r.base; d >= 0 && d <= int64(len(r.buf)) {
		r.pos = int(d)
		return
	}
	r.base, r.pos, r.buf = off, 0, r.buf[:0]
}

func (r *reader) fail(off int64, format string, args ...any) error {
	return &FormatError{Path: r.path, Offset: off, Reason: fmt.Sprintf(format, args...)}
}

// peek returns the next n bytes, n <= windowSize, or fewer at the file's end.
// They are valid until the next call.
func (r *reader) peek(n int) ([]byte, error) {
	if len(r.buf)-r.pos < n {
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
	return r.buf[r.pos:min(r.pos+n, len(r.buf))], nil
}

// fill slides the window so that it begins at the current position.
func (r *reader) fill() error {
	keep := copy(r.buf[:cap(r.buf)], r.buf[r.pos:])
	r.base += int64(r.pos)
	r.pos = 0
	want := int(min(int64(cap(r.buf)), r.size-r.base))
	if want <= keep {
		r.buf = r.buf[:keep]
		return nil
	}
	n, err := r.src.ReadAt(r.buf[keep:want], r.base+int64(keep))
	r.buf = r.buf[:keep+n]
	if n == want-keep {
		return nil
	}
	if err == nil || err == io.EOF {
		return r.fail(r.base+int64(keep+n), "the file ends here, before its size of %d bytes", r.size)
	}
	return fmt.Errorf("%s: byte %d: %w", r.path, r.base+int64(keep+n), err)
}

// varint reads one varint that must lie before end.
func (r *reader) varint(end int64) (uint64, error) {
	if r.pos < len(r.buf) && r.buf[r.pos] < 0x80 && r.offset() < end {
		r.pos++
		return uint64(r.buf[r.pos-1]), nil
	}
	at := r.offset()
	b, err := r.peek(int(min(10, end-at)))
	if err != nil {
		return 0, err
	}
	v, n := protowire.ConsumeVarint(b)
	if n < 0 {
		if len(b) < 10 {
			return 0, r.fail(at, "truncated number")
		}
		return 0, r.fail(at, "number of more than 64 bits")
	}
	r.pos += n
	return v, nil
}

// A field is one field of a message: its number, its wire type and, for a
// scalar, its bits. For a length-delimited field the reader stands at the
// payload, which ends at end.
type field struct {
	num  protowire.Number
	typ  protowire.Type
	bits uint64
	off  int64 // of the payload
	end  int64 // of the payload
}

// field reads a field's tag and, unless it is length-delimited, its value.
func (r *reader) field(end int64) (field, error) {
	at := r.offset()
	tag, err := r.varint(end)
	if err != nil {
		return field{}, err
	}
	num, typ := protowire.DecodeTag(tag)
	if num < protowire.MinValidNumber {
		return field{}, r.fail(at, "invalid field number")
	}
	f := field{num: num, typ: typ, off: r.offset()}
	switch typ {
	case protowire.VarintType:
		f.bits, err = r.varint(end)
	case protowire.Fixed32Type:
		f.bits, err = r.fixed(4, end)
	case protowire.Fixed64Type:
		f.bits, err = r.fixed(8, end)
	case protowire.BytesType:
		f.bits, err = r.varint(end)
		f.off = r.offset()
		if left := end - f.off; err == nil && f.bits > uint64(max(left, 0)) {
			return f, r.fail(at, "field %d takes %d bytes, %d are left: the file is cut short or damaged, copy or export it again", num, f.bits, left)
		}
		f.end = f.off + int64(f.bits)
		return f, err
	default:
		return f, r.fail(at, "field %d has wire type %d, which ONNX does not use", num, typ)
	}
	f.end = r.offset()
	return f, err
}

// fixed reads n little-endian bytes.
func (r *reader) fixed(n int, end int64) (uint64, error) {
	at := r.offset()
	if int64(n) > end-at {
		return 0, r.fail(at, "truncated number")
	}
	b, err := r.peek(n)
	if err != nil {
		return 0, err
	}
	r.pos += n
	return little(b), nil
}

// little returns the little-endian number in b, at most 8 bytes.
func little(b []byte) uint64 {
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	return v
}

// message calls visit for each field up to end. visit may leave a
// length-delimited payload unread.
func (r *reader) message(end int64, visit func(f field) error) error {
	for r.offset() < end {
		f, err := r.field(end)
		if err != nil {
			return err
		}
		if err := visit(f); err != nil {
			return err
		}
		r.seek(f.end)
	}
	return nil
}

// expect returns an error unless f has wire type typ.
func (r *reader) expect(f field, typ protowire.Type) error {
	if f.typ != typ {
		return r.fail(f.off, "field %d has wire type %d, not %d", f.num, f.typ, typ)
	}
	return nil
}

// open checks that f is a message, and charges cost, in bytes, for it.
func (r *reader) open(f field, cost int64) error {
	if err := r.expect(f, protowire.BytesType); err != nil {
		return err
	}
	return r.charge(f, cost)
}

// charge subtracts cost from the budget.
func (r *reader) charge(f field, cost int64) error {
	if r.budget -= cost; r.budget < 0 {
		return r.fail(f.off, "too many nodes, values and attributes for a file of %d bytes, or for --max-memory", r.size)
	}
	return nil
}

// list charges for the elements of a repeated number, of at least a byte each.
func (r *reader) list(f field) error { return r.charge(f, costInt*max(f.end-f.off, 1)) }

// bytes returns the payload of f, valid until the next read.
func (r *reader) bytes(f field) ([]byte, error) {
	if err := r.expect(f, protowire.BytesType); err != nil {
		return nil, err
	}
	n := f.end - f.off
	if n > maxString {
		return nil, r.fail(f.off, "string of %d bytes, more than %d", n, maxString)
	}
	if n <= int64(cap(r.buf)) {
		b, err := r.peek(int(n))
		if err == nil {
			r.pos += len(b)
		}
		return b, err
	}
	b := make([]byte, n)
	if k, err := r.src.ReadAt(b, f.off); int64(k) != n {
		return nil, fmt.Errorf("%s: byte %d: %w", r.path, f.off+int64(k), err)
	}
	return b, nil
}

// number reads f as an integer.
func (r *reader) number(f field) (int64, error) {
	return int64(f.bits), r.expect(f, protowire.VarintType)
}

// numbers visits the elements of a repeated scalar field, packed or not. It
// stops reading, without error, when visit returns false.
func (r *reader) numbers(f field, typ protowire.Type, visit func(bits uint64) bool) error {
	if f.typ != protowire.BytesType {
		visit(f.bits)
		return r.expect(f, typ)
	}
	for r.offset() < f.end {
		var v uint64
		var err error
		switch typ {
		case protowire.Fixed32Type:
			v, err = r.fixed(4, f.end)
		case protowire.Fixed64Type:
			v, err = r.fixed(8, f.end)
		default:
			v, err = r.varint(f.end)
		}
		if err != nil || !visit(v) {
			return err
		}
	}
	return nil
}
