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
	c := &memoryChart{s: &streams{err: messages{&b}, errTTY: true}, last: make([]monitor.Sample, 1)}
	for _, used := range []int64{0, 1, 1 << 62, 50, 1 << 61} {
		c.add(0, monitor.Sample{Used: used, Total: 100})
	}
	lines := strings.Split(b.String(), "\r\x1b[K")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, " ▁█▁▄ ") {
		t.Errorf("%q", last)
	}
	c = &memoryChart{s: &streams{err: messages{&b}, errTTY: true}, last: make([]monitor.Sample, 2)}
	b.Reset()
	c.add(0, monitor.Sample{Used: 70, Total: 100})
	if b.Len() > 0 {
		t.Errorf("%q before the second device is read", b.String())
	}
	if c.add(1, monitor.Sample{Used: 3, Total: 100}); !strings.Contains(b.String(), "70 B of 100 B") {
		t.Errorf("%q: want the fullest", b.String())
	}
	c = &memoryChart{s: &streams{err: messages{&b}}, last: make([]monitor.Sample, 1)}
	b.Reset()
	if c.add(0, monitor.Sample{Used: 1, Total: 2}); b.Len() > 0 {
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
