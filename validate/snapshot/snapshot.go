// Package snapshot reads the memory snapshots that PyTorch writes
// (torch.cuda.memory._dump_snapshot) and says, module by module, how what was
// allocated differs from a plan. A snapshot is a pickle; the reader knows plain
// data alone and never runs what a pickle can.
package snapshot

import (
	"fmt"
	"math"
	"slices"

	"github.com/memplan/memplan/files"
)

// A Frame is one line of a Python stack.
type Frame struct {
	Name, File string
	Line       int64
}

// A Kind is what an event of the allocator does.
type Kind uint8

// The kinds of events that change memory. A block stays in use until its free is
// completed, which other streams can delay.
const (
	Alloc Kind = iota
	Free
	Reserve // memory taken from the driver
	Release // memory given back to it
)

// An Event is one of the allocator's history. Size is in bytes: as requested for
// Alloc and Free.
type Event struct {
	Kind  Kind
	Addr  int64
	Size  int64
	Stack int32 // index in Snapshot.Stacks
}

// A Block is memory in use when the snapshot was taken. Size is as requested.
type Block struct {
	Addr, Size int64
	Stack      int32
}

// A Device is the part of one GPU.
type Device struct {
	Reserved int64 // bytes of all segments when the snapshot was taken
	Blocks   []Block
	Events   []Event // the oldest may be lost
}

// A Snapshot is what a file holds. Stacks[0] is the empty stack.
type Snapshot struct {
	Devices []Device
	Stacks  [][]Frame // innermost frame first
}

// Read reads a file, in at most most bytes of memory beside its own size.
func Read(path string, most int64) (*Snapshot, error) {
	data, err := files.Door{}.Read(path, files.Snapshot)
	if err != nil {
		return nil, err
	}
	s, err := Decode(data, most)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Decode decodes a pickle.
func Decode(data []byte, most int64) (*Snapshot, error) {
	v, err := unpickle(data, most)
	if err != nil {
		return nil, err
	}
	d := &decoder{s: &Snapshot{Stacks: [][]Frame{nil}}, left: most, stacks: map[*list]int32{}, texts: map[string]string{}}
	root, ok := v.(*dict)
	if !ok {
		return nil, notSnapshot("the pickle is no dictionary")
	}
	if err := d.segments(root); err != nil {
		return nil, err
	}
	if err := d.traces(root); err != nil {
		return nil, err
	}
	return d.s, nil
}

func notSnapshot(why string) error {
	return fmt.Errorf("%s: want the file of torch.cuda.memory._dump_snapshot()", why)
}

// A decoder turns values into a Snapshot. Lists can be shared, so that a small
// pickle may stand for much: what it builds is charged, too.
type decoder struct {
	s      *Snapshot
	left   int64
	stacks map[*list]int32
	texts  map[string]string
}

// mostDevices is more than one machine has.
const mostDevices = 1024

// costEntry is at least the memory of a block, event or frame.
const costEntry = 64

func (d *decoder) charge(n int) error {
	if d.left -= int64(n) * costEntry; d.left < 0 {
		return errMemory
	}
	return nil
}

// device returns the part of a GPU.
func (d *decoder) device(i int64) (*Device, error) {
	if i < 0 || i >= mostDevices {
		return nil, notSnapshot(fmt.Sprintf("a segment is of device %d", i))
	}
	for int64(len(d.s.Devices)) <= i {
		d.s.Devices = append(d.s.Devices, Device{})
	}
	return &d.s.Devices[i], nil
}

func (d *decoder) segments(root *dict) error {
	all, ok := root.get("segments").(*list)
	if !ok {
		return notSnapshot("it has no list of segments")
	}
	for i, v := range all.items {
		seg, ok := v.(*dict)
		if !ok {
			return notSnapshot(fmt.Sprintf("segment %d is no dictionary", i))
		}
		if err := d.segment(seg); err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
	}
	return nil
}

func (d *decoder) segment(seg *dict) error {
	dev, _ := seg.get("device").(int64)
	to, err := d.device(dev)
	if err != nil {
		return err
	}
	at, size := seg.get("address"), seg.get("total_size")
	addr, ok := at.(int64)
	total, ok2 := size.(int64)
	blocks, ok3 := seg.get("blocks").(*list)
	if !ok || !ok2 || !ok3 {
		return notSnapshot("it lacks an address, a size or blocks")
	}
	if err := sane(total); err != nil {
		return err
	}
	if err := d.charge(1 + len(blocks.items)); err != nil {
		return err
	}
	if to.Reserved += total; to.Reserved > mostBytes {
		return sane(to.Reserved)
	}
	for i, v := range blocks.items {
		b, ok := v.(*dict)
		if !ok {
			return notSnapshot(fmt.Sprintf("block %d is no dictionary", i))
		}
		n, ok := b.get("size").(int64)
		if !ok {
			return notSnapshot(fmt.Sprintf("block %d has no size", i))
		}
		if err := sane(n); err != nil {
			return err
		}
		if at, ok := b.get("address").(int64); ok {
			addr = at
		}
		switch b.get("state") {
		case "active_allocated", "active_pending_free", "active_awaiting_free":
			requested, stack, err := d.block(b, n)
			if err != nil {
				return err
			}
			to.Blocks = append(to.Blocks, Block{addr, requested, stack})
		}
		if addr > math.MaxInt64-n {
			return notSnapshot(fmt.Sprintf("block %d ends beyond the address space", i))
		}
		addr += n
	}
	return nil
}

// block returns a block's requested size and stack; old versions of PyTorch have
// both in its history.
func (d *decoder) block(b *dict, size int64) (int64, int32, error) {
	frames := b.get("frames")
	requested, ok := b.get("requested_size").(int64)
	if h, is := b.get("history").(*list); is && len(h.items) > 0 {
		if last, is := h.items[0].(*dict); is {
			if n, is := last.get("real_size").(int64); is && !ok {
				requested, ok = n, true
			}
			if frames == nil {
				frames = last.get("frames")
			}
		}
	}
	if !ok {
		requested = size
	}
	stack, err := d.stack(frames)
	return requested, stack, errorsFirst(err, sane(requested))
}

func errorsFirst(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// mostBytes is more memory than any GPU has, and sums of it do not overflow.
const mostBytes = 1 << 50

func sane(n int64) error {
	if n < 0 || n > mostBytes {
		return notSnapshot(fmt.Sprintf("%d bytes are no size of GPU memory", n))
	}
	return nil
}

// actions are the names of events that change memory.
var actions = map[string]Kind{
	"alloc": Alloc, "free_completed": Free, "segment_alloc": Reserve, "segment_map": Reserve, "segment_free": Release, "segment_unmap": Release,
}

func (d *decoder) traces(root *dict) error {
	all, ok := root.get("device_traces").(*list)
	if !ok {
		return nil // no history was recorded
	}
	for i, v := range all.items {
		events, ok := v.(*list)
		if !ok {
			return notSnapshot(fmt.Sprintf("the trace of device %d is no list", i))
		}
		to, err := d.device(int64(i))
		if err != nil {
			return err
		}
		if err := d.charge(len(events.items)); err != nil {
			return err
		}
		for k, v := range events.items {
			if err := d.event(to, v); err != nil {
				return fmt.Errorf("event %d of device %d: %w", k, i, err)
			}
		}
	}
	return nil
}

func (d *decoder) event(to *Device, v any) error {
	e, ok := v.(*dict)
	if !ok {
		return notSnapshot("it is no dictionary")
	}
	action, ok := e.get("action").(string)
	if !ok {
		return notSnapshot("it has no action")
	}
	kind, ok := actions[action]
	if !ok {
		return nil // free_requested, oom, snapshot and what later versions add
	}
	addr, ok := e.get("addr").(int64)
	size, ok2 := e.get("size").(int64)
	if !ok || !ok2 {
		return notSnapshot("it has no address or size")
	}
	if err := sane(size); err != nil {
		return err
	}
	stack, err := d.stack(e.get("frames"))
	to.Events = append(to.Events, Event{kind, addr, size, stack})
	return err
}

// stack returns the index of a list of frames; lists are shared by events.
func (d *decoder) stack(v any) (int32, error) {
	l, ok := v.(*list)
	if !ok || len(l.items) == 0 {
		return 0, nil
	}
	if i, ok := d.stacks[l]; ok {
		return i, nil
	}
	if err := d.charge(2 + len(l.items)); err != nil {
		return 0, err
	}
	var frames []Frame
	for _, v := range l.items {
		f, ok := v.(*dict)
		if !ok {
			return 0, notSnapshot("a frame is no dictionary")
		}
		name, _ := f.get("name").(string)
		file, _ := f.get("filename").(string)
		line, _ := f.get("line").(int64)
		frames = append(frames, Frame{d.text(name), d.text(file), line})
	}
	i := int32(len(d.s.Stacks))
	d.s.Stacks = append(d.s.Stacks, frames)
	d.stacks[l] = i
	return i, nil
}

// text returns a string that equal ones share.
func (d *decoder) text(s string) string {
	if t, ok := d.texts[s]; ok {
		return t
	}
	d.texts[s] = s
	return s
}

// Busiest returns the device with the most memory.
func (s *Snapshot) Busiest() int {
	best := 0
	for i := range s.Devices {
		if size := func(d *Device) int64 { return d.Reserved + int64(len(d.Events)) }; size(&s.Devices[i]) > size(&s.Devices[best]) {
			best = i
		}
	}
	return best
}

// A Tensor is memory of the snapshot in use from one event to another.
type Tensor struct {
	Bytes       int64 // as requested
	Alloc, Free int   // events; -1 for before the first, len(Events) for never
	Stack       int32 // of the allocation; of the free if Alloc is -1 and it was freed
}

// Tensors returns all memory in use at some time, in the order of allocation.
func (d *Device) Tensors() []Tensor {
	var out, old []Tensor
	at := map[int64]int{} // the index in out by address
	for i, e := range d.Events {
		switch k, live := at[e.Addr]; {
		case e.Kind == Alloc:
			if live { // its free is not in the trace
				out[k].Free = i
			}
			at[e.Addr] = len(out)
			out = append(out, Tensor{e.Size, i, len(d.Events), e.Stack})
		case e.Kind == Free && live:
			out[k].Free = i
			delete(at, e.Addr)
		case e.Kind == Free:
			old = append(old, Tensor{e.Size, -1, i, e.Stack})
		}
	}
	blocks := slices.Clone(d.Blocks)
	slices.SortStableFunc(blocks, func(a, b Block) int { return compare64(a.Addr, b.Addr) })
	var held []Tensor
	for _, b := range blocks {
		if _, live := at[b.Addr]; !live {
			held = append(held, Tensor{b.Size, -1, len(d.Events), b.Stack})
		}
	}
	return slices.Concat(held, old, out)
}

func compare64(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// reserved returns the bytes taken from the driver after each event, and their
// most.
func (d *Device) mostReserved() int64 {
	now, most := d.Reserved, d.Reserved
	for _, e := range slices.Backward(d.Events) {
		switch e.Kind {
		case Reserve:
			now -= e.Size
		case Release:
			now += e.Size
		}
		most = max(most, now)
	}
	return most
}
