package timeline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// The lives of tensors sum to the counter at every time, whose most is the
// step's peak, and every life ends once.
func TestTrace(t *testing.T) {
	for name, s := range steps(t) {
		var doc struct {
			TraceEvents []struct {
				Ph, Name, ID string
				TS, Dur, Tid int
				Args         struct{ Bytes int64 }
			}
		}
		if err := json.Unmarshal(file(t, ".trace", s), &doc); err != nil {
			t.Fatal(err)
		}
		change, bytes := make([]int64, len(s.Events)+2), map[string]int64{}
		var most, peak int64
		counter := map[int]int64{}
		covered := map[int]int{}
		for _, e := range doc.TraceEvents {
			switch {
			case e.Ph == "b":
				bytes[e.ID] = e.Args.Bytes
				change[e.TS] += e.Args.Bytes
			case e.Ph == "e":
				if _, ok := bytes[e.ID]; !ok {
					t.Fatalf("%s: %s ends without a beginning", name, e.ID)
				}
				change[e.TS] -= bytes[e.ID]
				delete(bytes, e.ID)
			case e.Ph == "C" && e.Name == "live bytes":
				counter[e.TS] = e.Args.Bytes
				most = max(most, e.Args.Bytes)
			case e.Ph == "X":
				covered[e.Tid] += e.Dur
			}
		}
		if len(bytes) > 0 || covered[trackPhases] != len(s.Events) || covered[trackOperators] != len(s.Events) {
			t.Errorf("%s: %d tensors do not end; slices cover %v of %d", name, len(bytes), covered, len(s.Events))
		}
		var now, shown int64
		for i := range s.Stack.Points {
			now += change[i]
			if n, ok := counter[i]; ok {
				shown = n
			}
			if peak = max(peak, s.Stack.Points[i].Total()); now != shown || shown != s.Stack.Points[i].Total() {
				t.Fatalf("%s: at %d tensors have %d bytes, the counter %d, the step %d", name, i, now, shown, s.Stack.Points[i].Total())
			}
		}
		if most != peak || peak == 0 {
			t.Errorf("%s: the counter's most is %d, want %d", name, most, peak)
		}
	}
}

// A perfetto holds what Perfetto's trace_processor makes of a JSON trace, by the rules of
// src/trace_processor/importers/json/json_trace_parser_impl.cc and importers/common/slice_tracker.cc:
// events in the order of their times; a slice must lie within the one that is open on its track, or after it; an
// asynchronous slice's track is its category and id; a counter's is its name and its argument's.
type perfetto struct {
	process  string
	threads  map[int]string
	counters map[string][]sample
	tracks   map[string][]interval // slices, in the order of their beginnings
	problems []string              // what its table stats would count
}

type sample struct {
	at    int
	value float64
}

type interval struct {
	name, category string
	from, to       int // to is -1 while it is open
}

// imported reads a trace as Perfetto does.
func imported(t *testing.T, data []byte) *perfetto {
	var doc struct{ TraceEvents []map[string]any }
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	p := &perfetto{threads: map[int]string{}, counters: map[string][]sample{}, tracks: map[string][]interval{}}
	number := func(e map[string]any, key string) int {
		n, ok := e[key].(float64)
		if !ok || n != float64(int(n)) || n < 0 {
			p.problems = append(p.problems, fmt.Sprintf("%s of %v", key, e))
		}
		return int(n)
	}
	slices.SortStableFunc(doc.TraceEvents, func(a, b map[string]any) int { return cmp.Compare(number(a, "ts"), number(b, "ts")) })
	for _, e := range doc.TraceEvents {
		at, args := number(e, "ts"), map[string]any{}
		if a, ok := e["args"].(map[string]any); ok {
			args = a
		}
		number(e, "pid")
		name, _ := e["name"].(string)
		category, _ := e["cat"].(string)
		switch e["ph"] {
		case "M":
			text, _ := args["name"].(string)
			if name == "process_name" {
				p.process = text
			} else {
				p.threads[number(e, "tid")] = text
			}
		case "C":
			for key, v := range args {
				n, ok := v.(float64)
				if !ok {
					p.problems = append(p.problems, fmt.Sprintf("counter %v", e))
				}
				p.counters[name+" "+key] = append(p.counters[name+" "+key], sample{at, n})
			}
		case "X":
			p.begin(fmt.Sprint("thread ", number(e, "tid")), interval{name, category, at, at + number(e, "dur")})
		case "b":
			p.begin(fmt.Sprint("async ", category, " ", e["id"]), interval{name, category, at, -1})
		case "e":
			p.end(fmt.Sprint("async ", category, " ", e["id"]), name, at)
		default:
			p.problems = append(p.problems, fmt.Sprintf("phase %v", e["ph"]))
		}
		if id, ok := e["id"].(string); (e["ph"] == "b" || e["ph"] == "e") && (!ok || id == "") {
			p.problems = append(p.problems, fmt.Sprintf("no id: %v", e))
		}
	}
	return p
}

func (p *perfetto) begin(track string, s interval) {
	for _, open := range p.tracks[track] {
		if open.to < 0 || s.from < open.to && (s.to < 0 || s.to > open.to) {
			p.problems = append(p.problems, fmt.Sprintf("%s: %v overlaps %v", track, s, open))
		}
	}
	p.tracks[track] = append(p.tracks[track], s)
}

func (p *perfetto) end(track, name string, at int) {
	list := p.tracks[track]
	if n := len(list); n > 0 && list[n-1].to < 0 && list[n-1].name == name && at > list[n-1].from {
		list[n-1].to = at
		return
	}
	p.problems = append(p.problems, fmt.Sprintf("%s: %s ends at %d", track, name, at))
}

// TestTraceImport reads every trace by Perfetto's rules: nothing is dropped, cut or
// left open, every tensor has a track of its own, and the counters and slices are the step's.
func TestTraceImport(t *testing.T) {
	for name, s := range steps(t) {
		p := imported(t, file(t, ".trace", s))
		if len(p.problems) > 0 {
			t.Errorf("%s: Perfetto drops %d things, such as %s", name, len(p.problems), p.problems[0])
		}
		if p.process != s.Title || p.threads[trackPhases] != "phases" || p.threads[trackOperators] != "operators" {
			t.Errorf("%s: process %q, threads %v", name, p.process, p.threads)
		}
		tensors, allocated := 0, len(s.Before)
		for i := range s.Events {
			if s.Events[i].Kind != "free" {
				allocated++
			}
		}
		for track, list := range p.tracks {
			if track == fmt.Sprint("thread ", trackPhases) || track == fmt.Sprint("thread ", trackOperators) {
				continue
			}
			tensors++
			if len(list) != 1 || list[0].to < 0 {
				t.Errorf("%s: %s has %v", name, track, list)
			}
		}
		if tensors != allocated {
			t.Errorf("%s: %d tracks of tensors, %d were allocated", name, tensors, allocated)
		}
		var phases []string
		for _, x := range p.tracks[fmt.Sprint("thread ", trackPhases)] {
			phases = append(phases, x.name)
			for i := x.from; i < x.to; i++ {
				if s.Events[i-1].Phase != x.name {
					t.Fatalf("%s: event %d is of %s, shown in %s", name, i, s.Events[i-1].Phase, x.name)
				}
			}
		}
		if len(phases) == 0 || len(slices.Compact(slices.Clone(phases))) != len(phases) {
			t.Errorf("%s: phases %v", name, phases)
		}
		var peak, most float64
		for i := range s.Stack.Points {
			peak = max(peak, float64(s.Stack.Points[i].Total()))
		}
		for _, v := range p.counters["live bytes bytes"] {
			most = max(most, v.value)
		}
		if most != peak || len(p.counters) != len(s.Stack.Categories)+1 {
			t.Errorf("%s: %d counters, the highest of live bytes %v, want %d and %v", name, len(p.counters), most, len(s.Stack.Categories)+1, peak)
		}
	}
}
