// Package trace reads allocator event traces of real training steps: every
// allocation and free of PyTorch's caching allocator in order, with the ATen
// call that made it. Tests compare predicted timelines with them.
package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"
)

// A Trace is one steady training step.
type Trace struct {
	Name            string  `json:"name"`
	Batch           int64   `json:"batch"`
	Prec            string  `json:"prec"` // fp32, amp-bf16
	Opt             string  `json:"opt"`  // sgd, adamw
	Ckpt            string  `json:"ckpt"` // "" or "blocks"
	AllocatedBefore int64   `json:"allocated_before"`
	ReservedBefore  int64   `json:"reserved_before"`
	AllocatedPeak   int64   `json:"allocated_peak"`
	RequestedRise   int64   `json:"requested_rise"`
	Events          []Event `json:"-"`
}

// An Event is one allocation or free.
type Event struct {
	Phase byte // Z zero_grad, F forward and loss, B backward, O optimizer step, E after it
	Free  bool
	ID    int    // allocations count from 0; -1: a free of something older than the step
	Bytes int64  // as requested
	Op    string // outermost ATen call; of a free of something older, what it was
	Inner string // innermost ATen call
	Node  string // autograd node
}

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
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 1<<20)
	t := &Trace{}
	sizes := map[int]int64{}
	for n := 0; sc.Scan(); n++ {
		if n == 0 {
			if err := json.Unmarshal(sc.Bytes(), t); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			continue
		}
		if err := t.line(strings.Fields(sc.Text()), sizes); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n+1, err)
		}
	}
	return t, sc.Err()
}

// line adds one event; lines about segments are left out.
func (t *Trace) line(w []string, sizes map[int]int64) error {
	if len(w) < 3 {
		return fmt.Errorf("%d fields", len(w))
	}
	e := Event{Phase: w[0][0], ID: -1}
	num := func(s string) int64 { n, _ := strconv.ParseInt(s, 10, 64); return n }
	switch {
	case w[1] == "+" && len(w) >= 7:
		e.ID, e.Bytes, e.Op, e.Inner, e.Node = int(num(w[2])), num(w[3]), w[4], w[5], w[6]
		sizes[e.ID] = e.Bytes
	case w[1] == "-" && w[2] == "old" && len(w) >= 4:
		e.Free, e.Bytes, e.Op = true, num(w[3]), strings.Join(w[4:], " ")
	case w[1] == "-":
		e.Free, e.ID = true, int(num(w[2]))
		e.Bytes = sizes[e.ID]
	case w[1] == "S" || w[1] == "s":
		return nil
	default:
		return fmt.Errorf("unknown event %q", w[1])
	}
	t.Events = append(t.Events, e)
	return nil
}
