package monitor

import (
	"strings"
	"testing"
	"time"
)

// feed gives a watcher one sample a second and returns the codes of its
// warnings.
func feed(w *Watcher, used func(second int) int64, seconds int) []string {
	start := time.Unix(1_000_000, 0)
	for i := range seconds {
		w.Add(Sample{At: start.Add(time.Duration(i) * time.Second), Used: used(i), Total: 16 << 30})
	}
	var codes []string
	for _, x := range w.Summary(Target{}, "card").Warnings {
		codes = append(codes, x.Code)
	}
	return codes
}

func TestWatcher(t *testing.T) {
	const peak = 8 << 30
	saw := func(i int) int64 { return peak - int64(i%5)<<28 } // a step of five seconds
	band := Band{Peak: peak, Bound: peak + peak/10}
	for _, c := range []struct {
		name string
		band Band
		used func(int) int64
		want string
	}{
		{"as planned", band, saw, ""},
		{"no plan", Band{}, saw, ""},
		{"warming up", Band{}, func(i int) int64 { return min(saw(i), int64(i)<<28) }, ""},
		{"over", band, func(i int) int64 { return saw(i) + int64(i/100)<<31 }, "over-plan"},
		{"far under", band, func(i int) int64 { return saw(i) / 2 }, "under-plan"},
		{"a leak", Band{}, func(i int) int64 { return saw(i) + int64(i)<<22 }, "leak"},
		{"a leak beyond the plan", band, func(i int) int64 { return saw(i) + int64(i)<<24 }, "leak over-plan"},
		{"one step up", Band{}, func(i int) int64 { return saw(i) + int64(i/60)<<28 }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := strings.Join(feed(&Watcher{Band: c.band, Window: 10 * time.Second}, c.used, 110), " ")
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestSummaryOfNothing(t *testing.T) {
	s := (&Watcher{Band: Band{Peak: 1}, Window: time.Second}).Summary(Target{PID: 3}, "card")
	if s.Samples != 0 || s.Seconds != 0 || s.Warnings == nil || len(s.Warnings) != 0 {
		t.Errorf("%+v", s)
	}
}
