package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// A list is a Python list or tuple, a dict a dictionary: keys and values in turn.
// The other values are nil, bool, int64, float64 and string.
type (
	list struct{ items []any }
	dict struct{ items []any }
)

// get returns the value of a key; of several that of the last, as in Python.
func (d *dict) get(key string) any {
	for i := len(d.items) - 2; i >= 0; i -= 2 {
		if k, ok := d.items[i].(string); ok && k == key {
			return d.items[i+1]
		}
	}
	return nil
}

// Bytes of memory that values are charged with, at least what Go needs for them.
const (
	costSlot   = 32 // in a stack, list or dictionary, which grow by doubling
	costBox    = 16 // a number or the head of a string
	costHolder = 64 // a list or dictionary, empty
	costMemo   = 64 // in a map
)

// An unpickler runs the opcodes of a pickle that make plain data. Those that
// import, call or build objects are errors: nothing is ever run.
type unpickler struct {
	data  []byte
	at    int   // of the next byte
	left  int64 // bytes of memory that values may still take
	stack []any
	marks []int
	memo  []any          // by index, as far as they come in order
	rest  map[uint64]any // of other indices
}

// unpickle decodes a pickle of any protocol that takes at most most bytes of
// memory. Lists may be shared, and contain themselves.
func unpickle(data []byte, most int64) (any, error) {
	u := &unpickler{data: data, left: most, rest: map[uint64]any{}}
	for {
		at := u.at
		op, err := u.byte()
		if err != nil {
			return nil, err
		}
		if op == '.' {
			return u.pop()
		}
		if err := u.run(op); err != nil {
			return nil, fmt.Errorf("byte %d: %w", at, err)
		}
	}
}

var (
	errShort  = errors.New("the file ends within the pickle: it is cut off, or no pickle")
	errStack  = errors.New("an opcode lacks its operands: the pickle is damaged")
	errMemory = errors.New("the snapshot needs more memory than --max-memory leaves: raise that, or record fewer events (max_entries)")
)

// makers are the opcodes that make objects other than plain data
// (Lib/pickletools.py).
var makers = map[byte]string{
	'c': "GLOBAL", 'i': "INST", 'o': "OBJ", 'R': "REDUCE", 'b': "BUILD", 'P': "PERSID", 'Q': "BINPERSID", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x93: "STACK_GLOBAL",
	0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}

// run executes one opcode.
func (u *unpickler) run(op byte) error {
	switch op {
	case 0x80: // PROTO
		_, err := u.take(1)
		return err
	case 0x95: // FRAME
		_, err := u.take(8)
		return err
	case '(': // MARK
		u.marks = append(u.marks, len(u.stack))
		return u.charge(costSlot)
	case '0': // POP
		_, err := u.pop()
		return err
	case '1': // POP_MARK
		_, err := u.marked()
		return err
	case '2': // DUP
		v, err := u.top()
		if err != nil {
			return err
		}
		return u.push(v, 0)
	}
	if name, ok := makers[op]; ok {
		return fmt.Errorf("the opcode %s makes a Python object, of which a memory snapshot has none: memplan runs no code of a file", name)
	}
	for _, part := range []func(byte) (bool, error){u.holder, u.scalar, u.text, u.memory} {
		if ok, err := part(op); ok {
			return err
		}
	}
	return fmt.Errorf("%#02x is no opcode of a memory snapshot: want the file of torch.cuda.memory._dump_snapshot()", op)
}

// holder runs the opcodes of lists, tuples and dictionaries.
func (u *unpickler) holder(op byte) (bool, error) {
	switch op {
	case ']', ')': // EMPTY_LIST, EMPTY_TUPLE
		return true, u.push(&list{}, costHolder)
	case '}': // EMPTY_DICT
		return true, u.push(&dict{}, costHolder)
	case 'l', 't', 'd': // LIST, TUPLE, DICT
		items, err := u.marked()
		if err != nil {
			return true, err
		}
		if op == 'd' {
			d := &dict{}
			return true, errors.Join(d.add(items), u.push(d, costHolder))
		}
		return true, u.push(&list{items}, costHolder)
	case 0x85, 0x86, 0x87: // TUPLE1, 2, 3
		n := int(op - 0x84)
		if len(u.stack) < n {
			return true, errStack
		}
		l := &list{append([]any(nil), u.stack[len(u.stack)-n:]...)}
		u.stack = u.stack[:len(u.stack)-n]
		return true, u.push(l, costHolder+int64(n)*costSlot)
	case 'a', 'e', 's', 'u': // APPEND, APPENDS, SETITEM, SETITEMS
		return true, u.extend(op)
	}
	return false, nil
}

// extend adds to the list or dictionary below the operands.
func (u *unpickler) extend(op byte) error {
	var items []any
	var err error
	if n := map[byte]int{'a': 1, 's': 2}[op]; n > 0 {
		if len(u.stack) <= n {
			return errStack
		}
		items = append(items, u.stack[len(u.stack)-n:]...)
		u.stack = u.stack[:len(u.stack)-n]
		err = u.charge(int64(n) * costSlot)
	} else {
		items, err = u.marked()
	}
	v, top := u.top()
	if err := errorsFirst(err, top); err != nil {
		return err
	}
	switch h := v.(type) {
	case *list:
		if op == 'a' || op == 'e' {
			h.items = append(h.items, items...)
			return nil
		}
	case *dict:
		if op == 's' || op == 'u' {
			return h.add(items)
		}
	}
	return errStack
}

// add adds keys and values in turn.
func (d *dict) add(items []any) error {
	if len(items)%2 != 0 {
		return errStack
	}
	d.items = append(d.items, items...)
	return nil
}

// scalar runs the opcodes of numbers and constants.
func (u *unpickler) scalar(op byte) (bool, error) {
	switch op {
	case 'N': // NONE
		return true, u.push(nil, 0)
	case 0x88, 0x89: // NEWTRUE, NEWFALSE
		return true, u.push(op == 0x88, 0)
	case 'J', 'K', 'M': // BININT, BININT1, BININT2: little-endian, BININT signed
		b, err := u.take(map[byte]uint64{'J': 4, 'K': 1, 'M': 2}[op])
		if err != nil {
			return true, err
		}
		var wide [4]byte
		copy(wide[:], b)
		v := int64(binary.LittleEndian.Uint32(wide[:]))
		if op == 'J' {
			v = int64(int32(v))
		}
		return true, u.push(v, costBox)
	case 0x8a, 0x8b: // LONG1, LONG4: two's complement
		n, err := u.length(map[byte]uint64{0x8a: 1, 0x8b: 4}[op])
		if err != nil {
			return true, err
		}
		return true, u.long(n)
	case 'I', 'L', 'F': // INT, LONG, FLOAT in text
		line, err := u.line()
		if err != nil {
			return true, err
		}
		return true, u.number(op, string(line))
	case 'G': // BINFLOAT
		b, err := u.take(8)
		if err != nil {
			return true, err
		}
		return true, u.push(math.Float64frombits(binary.BigEndian.Uint64(b)), costBox)
	}
	return false, nil
}

// long pushes an integer of n bytes. Those beyond eight must repeat the sign.
func (u *unpickler) long(n uint64) error {
	b, err := u.take(n)
	if err != nil {
		return err
	}
	fill := byte(0)
	if n > 0 && b[n-1]&0x80 != 0 {
		fill = 0xff
	}
	wide := bytes.Repeat([]byte{fill}, 8)
	copy(wide, b)
	for i := 8; i < len(b); i++ {
		if b[i] != fill || (wide[7]^fill)&0x80 != 0 {
			return errors.New("an integer needs more than 64 bits: no address or size does")
		}
	}
	return u.push(int64(binary.LittleEndian.Uint64(wide)), costBox)
}

// number pushes a number in decimal. Protocol 0 writes booleans as 00 and 01.
func (u *unpickler) number(op byte, text string) error {
	if op == 'F' {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%.40q is no number", text)
		}
		return u.push(v, costBox)
	}
	if op == 'I' && (text == "00" || text == "01") {
		return u.push(text == "01", 0)
	}
	if n := len(text); op == 'L' && n > 0 && text[n-1] == 'L' {
		text = text[:n-1]
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%.40q is no integer of 64 bits", text)
	}
	return u.push(v, costBox)
}

// text runs the opcodes of strings.
func (u *unpickler) text(op byte) (bool, error) {
	if op == 'V' { // UNICODE
		line, err := u.line()
		if err != nil {
			return true, err
		}
		return true, u.push(rawUnescape(line), costBox+2*int64(len(line)))
	}
	size, ok := map[byte]uint64{0x8c: 1, 'X': 4, 0x8d: 8}[op] // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
	if !ok {
		return false, nil
	}
	n, err := u.length(size)
	if err != nil {
		return true, err
	}
	b, err := u.take(n)
	if err != nil {
		return true, err
	}
	if err := u.charge(costBox + int64(n)); err != nil {
		return true, err
	}
	return true, u.push(string(b), 0)
}

// rawUnescape decodes Python's raw-unicode-escape: Latin-1 and \uHHHH,
// \UHHHHHHHH.
func rawUnescape(b []byte) string {
	var out []byte
	for i := 0; i < len(b); {
		if b[i] == '\\' && i+1 < len(b) {
			n := map[byte]int{'u': 4, 'U': 8}[b[i+1]]
			if n > 0 && i+2+n <= len(b) {
				if v, err := strconv.ParseUint(string(b[i+2:i+2+n]), 16, 32); err == nil {
					out = utf8.AppendRune(out, rune(min(v, utf8.MaxRune+1)))
					i += 2 + n
					continue
				}
			}
		}
		out = utf8.AppendRune(out, rune(b[i]))
		i++
	}
	return string(out)
}

// memory runs the opcodes of the memo.
func (u *unpickler) memory(op byte) (bool, error) {
	if op == 0x94 { // MEMOIZE
		return true, u.put(uint64(len(u.memo) + len(u.rest)))
	}
	size, binary := map[byte]uint64{'q': 1, 'r': 4, 'h': 1, 'j': 4}[op] // BINPUT, LONG_BINPUT, BINGET, LONG_BINGET
	var i uint64
	var err error
	switch {
	case binary:
		i, err = u.length(size)
	case op == 'p' || op == 'g': // PUT, GET
		var line []byte
		if line, err = u.line(); err == nil {
			if i, err = strconv.ParseUint(string(line), 10, 32); err != nil {
				err = fmt.Errorf("%.40q is no index of the memo", line)
			}
		}
	default:
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if op == 'q' || op == 'r' || op == 'p' {
		return true, u.put(i)
	}
	return true, u.recall(i)
}

func (u *unpickler) put(i uint64) error {
	v, err := u.top()
	if err != nil {
		return err
	}
	switch n := uint64(len(u.memo)); {
	case i < n:
		u.memo[i] = v
		return nil
	case i == n:
		u.memo = append(u.memo, v)
		return u.charge(costSlot)
	}
	u.rest[i] = v
	return u.charge(costMemo)
}

func (u *unpickler) recall(i uint64) error {
	if i < uint64(len(u.memo)) {
		return u.push(u.memo[i], 0)
	}
	v, ok := u.rest[i]
	if !ok {
		return errStack
	}
	return u.push(v, 0)
}

func (u *unpickler) charge(n int64) error {
	if u.left -= n; u.left < 0 {
		return errMemory
	}
	return nil
}

// push pushes a value that takes n bytes beside its place.
func (u *unpickler) push(v any, n int64) error {
	u.stack = append(u.stack, v)
	return u.charge(n + costSlot)
}

func (u *unpickler) top() (any, error) {
	if len(u.stack) == 0 || len(u.marks) > 0 && u.marks[len(u.marks)-1] >= len(u.stack) {
		return nil, errStack
	}
	return u.stack[len(u.stack)-1], nil
}

func (u *unpickler) pop() (any, error) {
	v, err := u.top()
	if err == nil {
		u.stack = u.stack[:len(u.stack)-1]
	}
	return v, err
}

// marked removes the last mark and what was pushed since, a copy of which it
// returns.
func (u *unpickler) marked() ([]any, error) {
	if len(u.marks) == 0 {
		return nil, errStack
	}
	at := u.marks[len(u.marks)-1]
	u.marks = u.marks[:len(u.marks)-1]
	if at > len(u.stack) {
		return nil, errStack
	}
	items := append([]any(nil), u.stack[at:]...)
	clear(u.stack[at:])
	u.stack = u.stack[:at]
	return items, u.charge(int64(len(items)) * costSlot)
}

func (u *unpickler) byte() (byte, error) {
	b, err := u.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// take returns the next n bytes of the file.
func (u *unpickler) take(n uint64) ([]byte, error) {
	if n > uint64(len(u.data)-u.at) {
		return nil, errShort
	}
	b := u.data[u.at : u.at+int(n)]
	u.at += int(n)
	return b, nil
}

// length reads an unsigned number of size bytes.
func (u *unpickler) length(size uint64) (uint64, error) {
	b, err := u.take(size)
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[:], b)
	return binary.LittleEndian.Uint64(wide[:]), nil
}

// line reads to the end of the line.
func (u *unpickler) line() ([]byte, error) {
	n := bytes.IndexByte(u.data[u.at:], '\n')
	if n < 0 {
		return nil, errShort
	}
	b := u.data[u.at : u.at+n]
	u.at += n + 1
	return b, nil
}
