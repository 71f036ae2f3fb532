package timeline

import (
	"bufio"
	"encoding/binary"
	"io"

	"github.com/memplan/memplan/planner"
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

// alignment and firstAddress lay out artificial addresses: a snapshot only
// needs to show which free belongs to which allocation.
const (
	alignment    = 512
	firstAddress = 0x7f0000000000
)

// writePickle writes a step as torch.cuda.memory._snapshot() would have recorded
// it: a trace of one device and what is live when it ends. memory_viz assumes
// that what the trace frees without having allocated it, and the other blocks of
// segments, were live before the trace; so its peak is that of the whole step.
func writePickle(w io.Writer, s *Step) error {
	x := &snapshot{pickler: pickler{bufio.NewWriter(w)}, next: firstAddress, addresses: map[int64]int64{}}
	for i := range s.Before {
		x.address(s.Before[i].ID, s.Before[i].Bytes)
	}
	x.op(opProto)
	x.op(2)
	x.dict(func() {
		x.str("segments")
		x.list(func() { x.segment(s) })
		x.str("device_traces")
		x.list(func() { x.list(func() { x.trace(s) }) })
	})
	x.op(opStop)
	return x.w.Flush()
}

// A snapshot is a pickle with the addresses of storages in it.
type snapshot struct {
	pickler
	next      int64
	addresses map[int64]int64 // by the ids of timelines
}

func (x *snapshot) address(id, bytes int64) int64 {
	a, ok := x.addresses[id]
	if !ok {
		a = x.next
		x.addresses[id] = a
		x.next += aligned(bytes)
	}
	return a
}

func aligned(bytes int64) int64 { return (bytes + alignment - 1) / alignment * alignment }

// trace writes the events.
func (x *snapshot) trace(s *Step) {
	for i := range s.Events {
		e := &s.Events[i]
		actions := []string{"alloc"}
		if e.Kind == "free" {
			actions = []string{"free_requested", "free_completed"}
		}
		for _, a := range actions {
			x.event(a, x.address(e.ID, e.Bytes), e.Bytes, int64(i), e.Op, place(e.Phase, e.Module))
		}
	}
}

// segment writes one segment with a block for each storage that is live before
// the step; blocks freed in the step are free in it.
func (x *snapshot) segment(s *Step) {
	if len(s.Before) == 0 {
		return
	}
	freed := map[int64]bool{}
	for i := range s.Events {
		if e := &s.Events[i]; e.Kind == "free" {
			freed[e.ID] = true
		}
	}
	var total, active int64
	for i := range s.Before {
		n := aligned(s.Before[i].Bytes)
		if total += n; !freed[s.Before[i].ID] {
			active += n
		}
	}
	x.dict(func() {
		for _, f := range []struct {
			name  string
			value int64
		}{{"device", 0}, {"address", firstAddress}, {"total_size", total}, {"allocated_size", active}, {"active_size", active}, {"requested_size", active}, {"stream", 0}} {
			x.str(f.name)
			x.int(f.value)
		}
		x.str("segment_type")
		x.str("large")
		x.str("blocks")
		x.list(func() {
			for i := range s.Before {
				x.block(&s.Before[i], freed[s.Before[i].ID])
			}
		})
	})
}

func (x *snapshot) block(t *planner.StandingTensor, freed bool) {
	state := "active_allocated"
	if freed {
		state = "inactive"
	}
	x.dict(func() {
		x.str("address")
		x.int(x.addresses[t.ID])
		x.str("size")
		x.int(aligned(t.Bytes))
		x.str("requested_size")
		x.int(t.Bytes)
		x.str("state")
		x.str(state)
		x.str("frames")
		x.frames(t.Category+" "+t.Value, t.Module)
	})
}

// place names the place of an event, instead of a file.
func place(phase, module string) string {
	if module == "" {
		return phase
	}
	return phase + " " + module
}

// event writes one trace entry; at is its time.
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
		p.frames(op, where)
	})
}

// frames writes a stack of one frame.
func (p pickler) frames(name, where string) {
	p.list(func() {
		p.dict(func() {
			p.str("name")
			p.str(name)
			p.str("filename")
			p.str(where)
			p.str("line")
			p.int(0)
		})
	})
}
