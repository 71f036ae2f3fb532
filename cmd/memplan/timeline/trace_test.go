package timeline

import (
	"encoding/json"
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
