package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/memplan/memplan/validate/monitor"
)

// TestMemoryChart: bars are within their scale, and little use is not drawn as none.
func TestMemoryChart(t *testing.T) {
	var b bytes.Buffer
	c := &memoryChart{s: &streams{err: messages{&b}, errTTY: true}}
	for _, used := range []int64{0, 1, 1 << 62, 50, 1 << 61} {
		c.draw(monitor.Sample{Used: used, Total: 100}, monitor.Band{})
	}
	lines := strings.Split(b.String(), "\r\x1b[K")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, " ▁█▁▄ ") {
		t.Errorf("%q", last)
	}
	c = &memoryChart{s: &streams{err: messages{&b}}}
	b.Reset()
	if c.draw(monitor.Sample{Used: 1, Total: 2}, monitor.Band{}); b.Len() > 0 {
		t.Errorf("%q where there is no terminal", b.String())
	}
}

func TestFitting(t *testing.T) {
	for columns, want := range map[int]string{-1: "", 0: "", 2: "a▁", 3: "a▁b", 9: "a▁b"} {
		if got := fitting("a▁b", columns); got != want {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
}
