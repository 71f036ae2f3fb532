// Package trace reads allocator event traces of real training steps: every
// allocation and free of PyTorch's caching allocator in order, with the ATen
// call that made it. Tests compare predicted timelines with them, and replay
// them on allocator models: Run rebuilds from the trace of one steady step
// what the process did since its start.
package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"
)

// A Trace is one steady training step.
type Trace struct {
	Name            string  `json:"name"` // of the model
	Batch           int64   `json:"batch"`
	Prec            string  `json:"prec"` // fp32, amp-bf16
	Opt             string  `json:"opt"`  // sgd, adamw
	Ckpt            string  `json:"ckpt"` // "" or "blocks": every repeated block checkpointed
	Torch           string  `json:"torch"`
	Strategy        string  `json:"strategy"`         // of a distributed run, else ""
	AllocatedBefore int64   `json:"allocated_before"` // bytes at the start, the last step's gradients still alive
	ReservedBefore  int64   `json:"reserved_before"`  // bytes
	AllocatedPeak   int64   `json:"allocated_peak"`   // bytes
	RequestedRise   int64   `json:"requested_rise"`   // bytes: highest sum of the events above the start
	Events          []Event `json:"-"`
	Allocations     int     `json:"-"` // ids are in [0, Allocations)
}

// A Kind is what an event is.
type Kind uint8

// The kinds of events.
const (
	Alloc       Kind = iota
	Free             // of an allocation of this step
	FreeOld          // of something older than the step
	TakeSegment      // a segment taken from the driver
	GiveSegment      // a segment given back to the driver
)

// An Event is one allocation or free.
type Event struct {
	Kind   Kind
	Phase  byte   // Z zero_grad, F forward and loss, B backward, O optimizer step, E after it
	Free   bool   // Kind is Free or FreeOld
	ID     int    // allocations count from 0; -1 unless Kind is Alloc or Free
	Bytes  int64  // as requested, before rounding; of a free, of what is freed
	Stream int    // of an allocation, in distributed runs
	Op     string // outermost ATen call, "-" for none; of FreeOld, what it was: "grad conv1.weight"
	Inner  string // innermost ATen call
	Node   string // autograd node, in backward
	Where  string // line of the model's source
}

// Grad returns the name of the parameter whose gradient the event frees, if
// it does.
func (e *Event) Grad() (string, bool) {
	if e.Kind != FreeOld {
		return "", false
	}
	return strings.CutPrefix(e.Op, "grad ")
}

// phases in the order in which they come.
const phases = "ZFBOE"

// Read reads a .trace.xz file.
func Read(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := xz.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t, err := Parse(z)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Parse reads a trace as text: a line of JSON, then an event a line. Errors
// name the line, counting from 1.
func Parse(r io.Reader) (*Trace, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	t, p := &Trace{}, parser{}
	for n := 1; sc.Scan(); n++ {
		var err error
		if n == 1 {
			err = json.Unmarshal(bytes.TrimSpace(sc.Bytes()), t)
		} else {
			err = p.line(t, sc.Text())
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	t.Allocations = len(p.live)
	return t, sc.Err()
}

// A parser holds what is known of the allocations so far.
type parser struct {
	live []int64 // bytes of each allocation, -1 once it is freed
}

// line adds one event.
func (p *parser) line(t *Trace, s string) error {
	w := strings.Fields(s)
	if len(w) < 3 || len(w[0]) != 1 {
		return fmt.Errorf("%q is no event", s)
	}
	e := Event{Phase: w[0][0], ID: -1}
	at := strings.IndexByte(phases, e.Phase)
	if at < 0 || len(t.Events) > 0 && at < strings.IndexByte(phases, t.Events[len(t.Events)-1].Phase) {
		return fmt.Errorf("phase %q is unknown or comes too late", w[0])
	}
	if err := p.event(&e, w[1], w[2:]); err != nil {
		return err
	}
	e.Free = e.Kind == Free || e.Kind == FreeOld
	t.Events = append(t.Events, e)
	return nil
}

func (p *parser) event(e *Event, sign string, w []string) (err error) {
	switch {
	case sign == "+":
		return p.alloc(e, w)
	case sign == "-" && w[0] == "old" && len(w) >= 2:
		e.Kind, e.Op = FreeOld, strings.Join(w[2:], " ")
		e.Bytes, err = number(w[1])
	case sign == "-":
		return p.free(e, w)
	case sign == "S":
		e.Kind = TakeSegment
		e.Bytes, err = number(w[0])
	case sign == "s":
		e.Kind = GiveSegment
		e.Bytes, err = number(w[0])
	default:
		err = fmt.Errorf("event %q is unknown", sign)
	}
	return err
}

// alloc reads ID BYTES [sSTREAM] OP INNER NODE [WHERE].
func (p *parser) alloc(e *Event, w []string) error {
	if len(w) < 5 {
		return fmt.Errorf("allocation with %d fields", len(w))
	}
	id, err := number(w[0])
	if err != nil {
		return err
	}
	if id != int64(len(p.live)) {
		return fmt.Errorf("allocation %d follows %d others", id, len(p.live))
	}
	if e.Bytes, err = number(w[1]); err != nil {
		return err
	}
	w = w[2:]
	if n, err := strconv.Atoi(strings.TrimPrefix(w[0], "s")); err == nil && len(w) >= 4 {
		e.Stream, w = n, w[1:]
	}
	e.ID, e.Op, e.Inner, e.Node = int(id), w[0], w[1], w[2]
	if len(w) > 3 {
		e.Where = w[3]
	}
	p.live = append(p.live, e.Bytes)
	return nil
}

func (p *parser) free(e *Event, w []string) error {
	id, err := number(w[0])
	if err != nil {
		return err
	}
	if id >= int64(len(p.live)) || p.live[id] < 0 {
		return fmt.Errorf("free of allocation %d, which is not live", id)
	}
	e.Kind, e.ID, e.Bytes = Free, int(id), p.live[id]
	p.live[id] = -1
	return nil
}

// number reads a number of at least 0.
func number(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return n, nil
}
