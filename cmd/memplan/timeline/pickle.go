package timeline

import (
	"bufio"
	"encoding/binary"
	"io"
)

// A pickler writes Python objects in pickle's protocol 2: the few opcodes that
// dictionaries, lists, strings and integers need (Lib/pickletools.py).
type pickler struct {
	w *bufio.Writer
}

const (
	opProto      = '\x80'
	opEmptyDict  = '}'
	opEmptyList  = ']'
	opMark       = '('
	opSetItems   = 'u' // of the pairs since the mark
	opAppends    = 'e' // of the objects since the mark
	opBinUnicode = 'X' // length in four bytes, UTF-8
	opBinInt     = 'J' // four bytes, signed
	opLong1      = '\x8a'
	opStop       = '.'
)

func (p pickler) op(b byte) { _ = p.w.WriteByte(b) } // bufio keeps the error until Flush

func (p pickler) str(s string) {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(s)))
	p.op(opBinUnicode)
	_, _ = p.w.Write(n[:])
	_, _ = p.w.WriteString(s)
}

func (p pickler) int(v int64) {
	if int64(int32(v)) == v {
		var n [4]byte
		binary.LittleEndian.PutUint32(n[:], uint32(int32(v)))
		p.op(opBinInt)
		_, _ = p.w.Write(n[:])
		return
	}
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(v))
	p.op(opLong1)
	p.op(8) // bytes, two's complement
	_, _ = p.w.Write(n[:])
}

// dict writes a dictionary: items writes keys and values in turn.
func (p pickler) dict(items func()) {
	p.op(opEmptyDict)
	p.op(opMark)
	items()
	p.op(opSetItems)
}

func (p pickler) list(items func()) {
	p.op(opEmptyList)
	p.op(opMark)
	items()
	p.op(opAppends)
}

// alignment and firstAddress lay out made-up addresses: what a snapshot shows
// is which free belongs to which allocation.
const (
	alignment    = 512
	firstAddress = 0x7f0000000000
)

// writePickle writes the events as torch.cuda.memory._snapshot() would have
// recorded them: a trace of one device. What is freed without having been
// allocated in the step was there before, as memory_viz understands it.
func writePickle(w io.Writer, s *Step) error {
	p := pickler{bufio.NewWriter(w)}
	next := int64(firstAddress)
	addresses := map[int64]int64{}
	address := func(id, bytes int64) int64 {
		a, ok := addresses[id]
		if !ok {
			a = next
			addresses[id] = a
			next += (bytes + alignment - 1) / alignment * alignment
		}
		return a
	}
	p.op(opProto)
	p.op(2)
	p.dict(func() {
		p.str("segments")
		p.list(func() {})
		p.str("device_traces")
		p.list(func() {
			p.list(func() {
				for i := range s.Events {
					e := &s.Events[i]
					actions := []string{"alloc"}
					if e.Kind == "free" {
						actions = []string{"free_requested", "free_completed"}
					}
					for _, a := range actions {
						p.event(a, address(e.ID, e.Bytes), e.Bytes, int64(i), e.Op, place(e.Phase, e.Module))
					}
				}
			})
		})
	})
	p.op(opStop)
	return p.w.Flush()
}

// place names where an event happened, in place of a file.
func place(phase, module string) string {
	if module == "" {
		return phase
	}
	return phase + " " + module
}

// event writes one trace entry; at stands for its time.
func (p pickler) event(action string, address, bytes, at int64, op, where string) {
	p.dict(func() {
		p.str("action")
		p.str(action)
		p.str("addr")
		p.int(address)
		p.str("size")
		p.int(bytes)
		p.str("stream")
		p.int(0)
		p.str("time_us")
		p.int(at)
		p.str("frames")
		p.list(func() {
			p.dict(func() {
				p.str("name")
				p.str(op)
				p.str("filename")
				p.str(where)
				p.str("line")
				p.int(0)
			})
		})
	})
}
