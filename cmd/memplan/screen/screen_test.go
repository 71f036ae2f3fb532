package screen

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/memplan/memplan/validate/monitor"
)

var start = time.Unix(1000, 0)

// shown is a screen of some size after readings, one each second, of every track.
func shown(width, height int, band monitor.Band, used ...[]int64) *Screen {
	s := &Screen{Stop: func() {}}
	for i := range used {
		s.Tracks = append(s.Tracks, &Track{Name: fmt.Sprintf("GPU %d", i), Band: band})
	}
	s.Update(tea.WindowSizeMsg{Width: width, Height: height})
	for i, list := range used {
		for k, n := range list {
			s.Update(Reading{i, monitor.Sample{At: start.Add(time.Duration(k) * time.Second), Used: n, Total: 1000}})
		}
	}
	return s
}

func press(s *Screen, key string) {
	for _, k := range keys {
		if k.names[0] == key {
			k.press(s)
		}
	}
}

// TestScreen: a rising line, the plan's peak and its bound, at the right heights.
func TestScreen(t *testing.T) {
	s := shown(31, 14, monitor.Band{Peak: 500, Bound: 800}, []int64{0, 100, 200, 300, 400, 500, 600, 700, 800, 900})
	s.span = len(spans) - 1 // all
	got := strings.Join(s.lines(), "\n")
	rows := strings.Split(got, "\n")
	if len(rows) != 14 {
		t.Fatalf("%d lines:\n%s", len(rows), got)
	}
	level := func(column int) (n float64) { // of bars, in bytes
		for _, r := range rows[1:11] {
			for i, e := range eighths {
				if x := []rune(r); column < len(x) && x[column] == e {
					n += float64(i) / 8 * 945 / 10
				}
			}
		}
		return n
	}
	for i, used := range []float64{0, 100, 200, 300, 400, 500, 600, 700, 800} {
		column := labelled + int(float64(i)/9*20+.01)
		if got := level(column); got < used-12 || got > used+12 {
			t.Errorf("at %d s the bar is %g high, want %g:\n%s", i, got, used, strings.Join(rows, "\n"))
		}
	}
	plan, bound := -1, -1
	for i, r := range rows {
		if strings.Contains(r, "plan ──") {
			plan = i
		}
		if strings.Contains(r, "bound ┄┄") {
			bound = i
		}
	}
	if plan != 1+4 || bound != 1+1 { // of ten rows of 94.5 bytes
		t.Errorf("the plan is in row %d, the bound in %d:\n%s", plan, bound, got)
	}
}

// TestFits: whatever the terminal's size, no line is wider and none too many, and
// colours do not change the text.
func TestFits(t *testing.T) {
	list := []int64{5, 0, 900, 1 << 50, 3}
	for _, tracks := range [][][]int64{{list}, {list, list, nil}, {nil}} {
		for width := range 90 {
			for height := range 30 {
				s := shown(width, height, monitor.Band{Peak: 700, Bound: 800}, tracks...)
				s.Update(Alert{0, monitor.Warning{Code: "leak", Message: strings.Repeat("long \x1b[31m ", 20)}})
				lines := s.lines()
				if len(lines) > height || width > 0 && height > 0 && len(lines) == 0 {
					t.Fatalf("%d by %d: %d lines", width, height, len(lines))
				}
				for _, l := range lines {
					if utf8.RuneCountInString(l) > width || strings.ContainsAny(l, "\x1b\n") {
						t.Fatalf("%d by %d: %q", width, height, l)
					}
				}
				s.Color = true
				for i, l := range s.lines() {
					for _, code := range []string{bold, green, yellow, red, "0"} {
						l = strings.ReplaceAll(l, "\x1b["+code+"m", "")
					}
					if l != lines[i] {
						t.Fatalf("%d by %d: %q in colour, %q without", width, height, l, lines[i])
					}
				}
			}
		}
	}
}

// TestKeys: each key does what the screen says.
func TestKeys(t *testing.T) {
	stopped := false
	s := shown(80, 30, monitor.Band{Peak: 100, Bound: 200}, []int64{50, 60}, []int64{70})
	s.Stop = func() { stopped = true }
	text := func() string { return strings.Join(s.lines(), "\n") }
	for _, c := range []struct{ key, want, not string }{
		{"+", "-1m0s", "-30s"}, {"-", "-30s", "-1m0s"}, {"-", "-30s", "-1m0s"}, {"tab", "GPU 0", "GPU 1"}, {"tab", "GPU 1", "GPU 0"}, {"tab", "GPU 0", "nothing"},
		{"space", "held", "nothing"}, {"space", "hold", "held"}, {"s", "    1000 B", "nothing"}, {"s", "bound ┄", "    1000 B"},
	} {
		press(s, c.key)
		if got := text(); !strings.Contains(got, c.want) || strings.Contains(got, c.not) {
			t.Errorf("after %s:\n%s", c.key, got)
		}
	}
	press(s, "space")
	before := s.chart(s.Tracks[0], 5)
	s.Update(Reading{0, monitor.Sample{At: start.Add(20 * time.Second), Used: 80, Total: 1000}})
	if after := s.chart(s.Tracks[0], 5); strings.Join(before, "") != strings.Join(after, "") {
		t.Error("a held chart moves")
	}
	if press(s, "q"); !stopped {
		t.Error("q does not end the watch")
	}
}

// TestLong: a watch of days keeps its highest readings in little memory.
func TestLong(t *testing.T) {
	k := &Track{}
	for i := range 5 * mostSamples {
		used := int64(i % 100)
		if i == 12345 {
			used = 5000
		}
		k.add(monitor.Sample{At: start.Add(time.Duration(i) * time.Second), Used: used})
	}
	most := int64(0)
	for i, x := range k.samples {
		most = max(most, x.Used)
		if i > 0 && !x.At.After(k.samples[i-1].At) {
			t.Fatal("out of order")
		}
	}
	if len(k.samples) >= mostSamples || most != 5000 || k.peak != 5000 {
		t.Errorf("%d samples, at most %d", len(k.samples), most)
	}
}
