package timeline

import (
	"bufio"
	"encoding/binary"
	"io"
	"slices"
	"strings"

	"github.com/memplan/memplan/liveness/alloc"
	"github.com/memplan/memplan/planner"
)

// A pickler writes Python objects in pickle's protocol 2: the few opcodes that
// dictionaries, lists, strings and integers need (Lib/pickletools.py).
type pickler struct {
	w    *bufio.Writer
	memo map[string]int // of strings
}

const (
	opProto      = '\x80'
	opEmptyDict  = '}'
	opEmptyList  = ']'
	opMark       = '('
	opSetItems   = 'u' // of the pairs since the mark
	opAppends    = 'e' // of the objects since the mark
	opBinUnicode = 'X' // length in four bytes, UTF-8
	opLongPut    = 'r' // into the memo, at an index of four bytes
	opLongGet    = 'j'
	opBinInt     = 'J' // four bytes, signed
	opLong1      = '\x8a'
	opStop       = '.'
)

func (p pickler) op(b byte) { _ = p.w.WriteByte(b) } // bufio keeps the error until Flush

// str writes a string, or where it was written before.
func (p pickler) str(s string) {
	if i, ok := p.memo[s]; ok {
		p.op(opLongGet)
		p.four(uint32(i))
		return
	}
	p.op(opBinUnicode)
	p.four(uint32(len(s)))
	_, _ = p.w.WriteString(s)
	p.op(opLongPut)
	p.four(uint32(len(p.memo)))
	p.memo[s] = len(p.memo)
}

func (p pickler) four(v uint32) {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], v)
	_, _ = p.w.Write(n[:])
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

// A pair is an entry of a dictionary: value writes it.
type pair struct {
	key   string
	value func()
}

// dict writes a dictionary.
func (p pickler) dict(items ...pair) {
	p.op(opEmptyDict)
	p.op(opMark)
	for _, x := range items {
		p.str(x.key)
		x.value()
	}
	p.op(opSetItems)
}

// longestBatch is the number of objects that are appended at once, as Python's pickle
// does it: memory_viz cannot take many more.
const longestBatch = 1000

// list writes a list of n objects.
func (p pickler) list(n int, item func(i int)) {
	p.op(opEmptyList)
	for i := 0; i < n; {
		p.op(opMark)
		for end := min(i+longestBatch, n); i < end; i++ {
			item(i)
		}
		p.op(opAppends)
	}
}

func (p pickler) number(key string, v int64) pair { return pair{key, func() { p.int(v) }} }
func (p pickler) text(key, v string) pair         { return pair{key, func() { p.str(v) }} }

// writePickle writes a step as torch.cuda.memory._snapshot() would have recorded it:
// a trace of one device, and its segments when the trace ends. What the trace frees
// without having allocated it, and the other blocks of segments, were live before: so
// memory_viz shows the peak of the whole step, and the reserved memory of the report.
func writePickle(w io.Writer, s *Step) error {
	x := &snapshot{pickler: pickler{bufio.NewWriter(w), map[string]int{}}, s: s, held: map[int64]stack{}}
	x.trace()
	x.op(opProto)
	x.op(2)
	x.dict(
		pair{"segments", func() { x.list(len(s.Placement.Segments), x.segment) }},
		pair{"device_traces", func() { x.list(1, func(int) { x.list(len(x.events), x.event) }) }},
	)
	x.op(opStop)
	return x.w.Flush()
}

// A frame is one line of a stack; memory_viz shows it as FILE:LINE:NAME.
type frame struct {
	name, file string
	line       int64
}

// A stack says where memory was allocated, the innermost frame first.
type stack []frame

// An entry is one of the trace.
type entry struct {
	action      string
	addr, bytes int64
	stream      uint8
	at          int // time: the index of the step's event
	stack       stack
}

// A snapshot is the pickle of a step.
type snapshot struct {
	pickler
	s      *Step
	events []entry
	held   map[int64]stack // by address, of what is live
}

// trace makes the entries of the events.
func (x *snapshot) trace() {
	for i := range x.s.Before {
		t := &x.s.Before[i]
		x.held[x.s.Placement.Before[i]] = within(stack{{t.Category + " " + t.Value, "tensor", 0}}, t.Module, "before the step")
	}
	for i := range x.s.Events {
		e, p := &x.s.Events[i], &x.s.Placement.Events[i]
		if p.Addr == 0 {
			continue
		}
		where := stackOf(e, p)
		add := func(action string, addr, bytes int64) {
			x.events = append(x.events, entry{action, addr, bytes, p.Stream, i, where})
		}
		if e.Kind == "free" {
			add("free_requested", p.Addr, e.Bytes)
			add("free_completed", p.Addr, e.Bytes)
			delete(x.held, p.Addr)
			continue
		}
		for _, g := range p.Given {
			add("segment_free", g.Addr, g.Size)
		}
		for _, g := range p.Taken {
			add("segment_alloc", g.Addr, g.Size)
		}
		add("alloc", p.Addr, e.Bytes)
		x.held[p.Addr] = where
	}
}

// stackOf says where an event happens: its operator, the model's lines, the modules
// from the inner to the outer, and the phase.
func stackOf(e *planner.TimelineEvent, p *planner.Placed) stack {
	out := stack{{e.Op, e.Node, 0}}
	for _, l := range slices.Backward(p.Sources) {
		out = append(out, frame{l.Text, l.File, int64(l.Number)})
	}
	return within(out, e.Module, e.Phase)
}

// within ends a stack with the modules around it, and the phase.
func within(s stack, module, phase string) stack {
	for module != "" {
		s = append(s, frame{module, "module", 0})
		module = module[:max(0, strings.LastIndexByte(module, '.'))]
	}
	return append(s, frame{phase, "phase", 0})
}

func (x *snapshot) event(i int) {
	e := &x.events[i]
	x.dict(x.text("action", e.action), x.number("addr", e.addr), x.number("size", e.bytes), x.number("stream", int64(e.stream)), x.number("time_us", int64(e.at)), x.frames(e.stack))
}

func (x *snapshot) segment(i int) {
	g := &x.s.Placement.Segments[i]
	kind, used, requested := "large", int64(0), int64(0)
	if g.Small {
		kind = "small"
	}
	for _, b := range g.Blocks {
		if !b.Free {
			used, requested = used+b.Size, requested+b.Requested
		}
	}
	x.dict(x.number("device", 0), x.number("address", g.Addr), x.number("total_size", g.Size), x.number("allocated_size", used), x.number("active_size", used),
		x.number("requested_size", requested), x.number("stream", int64(g.Stream)), x.text("segment_type", kind), x.frames(nil),
		pair{"blocks", func() { x.list(len(g.Blocks), func(k int) { x.block(&g.Blocks[k]) }) }})
}

func (x *snapshot) block(b *alloc.Block) {
	state, where := "inactive", stack(nil)
	if !b.Free {
		state, where = "active_allocated", x.held[b.Addr]
	}
	x.dict(x.number("address", b.Addr), x.number("size", b.Size), x.number("requested_size", b.Requested), x.text("state", state), x.frames(where))
}

func (x *snapshot) frames(s stack) pair {
	return pair{"frames", func() {
		x.list(len(s), func(i int) {
			x.dict(x.text("name", s[i].name), x.text("filename", s[i].file), x.number("line", s[i].line))
		})
	}}
}
