package timeline

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"
)

// A traceEvent is one of the Trace Event Format, which Perfetto and
// chrome://tracing read. Times are indices of the step's events: one
// microsecond each.
type traceEvent struct {
	Phase    string         `json:"ph"`
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	ID       string         `json:"id,omitempty"`
	Time     int            `json:"ts"`
	Duration int            `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Args     map[string]any `json:"args,omitempty"`
}

// Tracks of the trace.
const (
	trackPhases    = 1
	trackOperators = 2
	trackTensors   = 3
)

// A tracer writes the events of a trace, one a line.
type tracer struct {
	w   *bufio.Writer
	n   int
	err error
}

func (t *tracer) add(e traceEvent) {
	e.Process = 1
	b, err := json.Marshal(e)
	if err != nil && t.err == nil {
		t.err = err
	}
	if t.n++; t.n > 1 {
		_, _ = t.w.WriteString(",\n") // bufio keeps the error until Flush
	}
	_, _ = t.w.Write(b)
}

// writeTrace writes a step for Perfetto: counters of live bytes, slices of phases
// and operators, and one asynchronous slice for the life of each tensor.
func writeTrace(w io.Writer, s *Step) error {
	t := &tracer{w: bufio.NewWriter(w)}
	_, _ = t.w.WriteString("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")
	t.add(traceEvent{Phase: "M", Name: "process_name", Args: map[string]any{"name": s.Title}})
	for i, name := range []string{"phases", "operators", "tensors"} {
		t.add(traceEvent{Phase: "M", Name: "thread_name", Thread: trackPhases + i, Args: map[string]any{"name": name}})
	}
	t.counters(s)
	t.slices(s, trackPhases, func(i int) traceEvent { return traceEvent{Name: s.Events[i].Phase} }, func(i, k int) bool { return s.Events[i].Phase == s.Events[k].Phase })
	t.slices(s, trackOperators, func(i int) traceEvent {
		e := &s.Events[i]
		return traceEvent{Name: e.Op, Args: map[string]any{"node": e.Node, "module": e.Module}}
	}, func(i, k int) bool {
		a, b := &s.Events[i], &s.Events[k]
		return a.Phase == b.Phase && a.Op == b.Op && a.Node == b.Node && a.Module == b.Module
	})
	t.tensors(s)
	_, _ = t.w.WriteString("\n]}\n")
	if t.err != nil {
		return t.err
	}
	return t.w.Flush()
}

// counters writes the levels where they change.
func (t *tracer) counters(s *Step) {
	for i := range s.Stack.Points {
		p := &s.Stack.Points[i]
		for k, n := range p.Bytes {
			if i == 0 || n != s.Stack.Points[i-1].Bytes[k] {
				t.add(traceEvent{Phase: "C", Name: s.Stack.Categories[k], Time: i, Args: map[string]any{"bytes": n}})
			}
		}
		if i == 0 || p.Total() != s.Stack.Points[i-1].Total() {
			t.add(traceEvent{Phase: "C", Name: "live bytes", Time: i, Args: map[string]any{"bytes": p.Total()}})
		}
	}
}

// slices writes one slice for each run of events that are the same.
func (t *tracer) slices(s *Step, track int, slice func(i int) traceEvent, same func(i, k int) bool) {
	for i := 0; i < len(s.Events); {
		end := i + 1
		for end < len(s.Events) && same(i, end) {
			end++
		}
		e := slice(i)
		e.Phase, e.Time, e.Duration, e.Thread = "X", i+1, end-i, track
		t.add(e)
		i = end
	}
}

// tensors writes the lives of tensors; those that the step does not free last
// until its end.
func (t *tracer) tensors(s *Step) {
	type life struct{ id, name string }
	live, order := map[int64]life{}, []int64{}
	begin := func(id int64, name string, at int, args map[string]any) {
		l := life{strconv.FormatInt(id, 10), name}
		live[id] = l
		order = append(order, id)
		t.add(traceEvent{Phase: "b", Name: name, Category: "tensor", ID: l.id, Time: at, Thread: trackTensors, Args: args})
	}
	end := func(id int64, at int) {
		if l, ok := live[id]; ok {
			delete(live, id)
			t.add(traceEvent{Phase: "e", Name: l.name, Category: "tensor", ID: l.id, Time: at, Thread: trackTensors})
		}
	}
	for i := range s.Before {
		b := &s.Before[i]
		begin(b.ID, b.Category+" "+b.Value, 0, map[string]any{"bytes": b.Bytes, "module": b.Module})
	}
	for i := range s.Events {
		e := &s.Events[i]
		if e.Kind == "free" {
			end(e.ID, i+1)
			continue
		}
		begin(e.ID, e.Op+" "+e.Node, i+1, map[string]any{"bytes": e.Bytes, "module": e.Module})
	}
	for _, id := range order {
		end(id, len(s.Events)+1)
	}
}
