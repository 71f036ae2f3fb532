// Package screen shows the memory of GPUs on a terminal while it changes, with what
// a plan predicts.
package screen

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner/profile"
	"github.com/memplan/memplan/quote"
	"github.com/memplan/memplan/validate/monitor"
)

// A Reading is the message of a sample of a track.
type Reading struct {
	Track  int
	Sample monitor.Sample
}

// An Alert is the message of a warning about a track.
type Alert struct {
	Track   int
	Warning monitor.Warning
}

// A Track is one device or process that is watched.
type Track struct {
	Name string
	Band monitor.Band

	samples []monitor.Sample
	last    monitor.Sample
	peak    int64
}

// mostSamples bounds what a track keeps: beyond, the higher of each two stays.
const mostSamples = 1 << 16

func (t *Track) add(s monitor.Sample) {
	t.last, t.peak = s, max(t.peak, s.Used)
	if t.samples = append(t.samples, s); len(t.samples) < mostSamples {
		return
	}
	for i := range len(t.samples) / 2 {
		t.samples[i] = slices.MaxFunc(t.samples[2*i:2*i+2], func(a, b monitor.Sample) int { return cmp.Compare(a.Used, b.Used) })
	}
	t.samples = t.samples[:len(t.samples)/2]
}

// spans are the times that a chart can show; 0 is all.
var spans = []time.Duration{30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 0}

// A Screen is the view of all tracks. It implements tea.Model.
type Screen struct {
	Tracks []*Track
	Color  bool
	Stop   func() // ends the watch

	width, height int
	span          int       // index in spans
	alone         int       // the only track shown, plus one; 0: all
	device        bool      // the scale is the device's memory, not the plan's
	held          bool      // the charts stand still
	frozen        time.Time // where
	now           time.Time // of the last sample
	alerts        []Alert
}

// Init implements tea.Model.
func (s *Screen) Init() tea.Cmd { return nil }

// keys are what can be pressed; the first names each on the screen.
var keys = []struct {
	names []string
	does  string
	press func(s *Screen)
}{
	{[]string{"q", "esc", "ctrl+c"}, "end", func(s *Screen) { s.Stop() }},
	{[]string{"+", "=", "right"}, "longer", func(s *Screen) { s.span = min(s.span+1, len(spans)-1) }},
	{[]string{"-", "left"}, "shorter", func(s *Screen) { s.span = max(s.span-1, 0) }},
	{[]string{"s"}, "scale", func(s *Screen) { s.device = !s.device }},
	{[]string{"tab", "down"}, "one GPU", func(s *Screen) { s.alone = (s.alone + 1) % (len(s.Tracks) + 1) }},
	{[]string{"space"}, "hold", func(s *Screen) { s.held, s.frozen = !s.held, s.now }},
}

// Update implements tea.Model.
func (s *Screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case Reading:
		s.Tracks[m.Track].add(m.Sample)
		if m.Sample.At.After(s.now) {
			s.now = m.Sample.At
		}
	case Alert:
		s.alerts = append(s.alerts, m)
	case tea.KeyPressMsg:
		for _, k := range keys {
			if slices.Contains(k.names, m.String()) {
				k.press(s)
			}
		}
	}
	return s, nil
}

// View implements tea.Model.
func (s *Screen) View() tea.View {
	v := tea.NewView(strings.Join(s.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "memplan monitor"
	return v
}

// lines draws the screen, no more lines and columns than the terminal has.
func (s *Screen) lines() []string {
	if s.width < 1 || s.height < 1 {
		return nil
	}
	shown := s.Tracks
	if s.alone > 0 {
		shown = shown[s.alone-1 : s.alone]
	}
	const mostAlerts = 4
	alerts := s.alerts[max(0, len(s.alerts)-mostAlerts):]
	rows := (s.height - len(alerts) - 1) / max(len(shown), 1)
	var out []string
	for _, t := range shown {
		out = append(out, s.track(t, rows)...)
	}
	for _, a := range alerts {
		out = append(out, s.paint(red, s.cut(fmt.Sprintf("%s at %.0f s: %s", a.Warning.Code, a.Warning.Seconds, quote.Text(a.Warning.Message)))))
	}
	return append(out[:min(len(out), s.height-1)], s.cut(s.help()))
}

// help lists the keys.
func (s *Screen) help() string {
	var out []string
	for _, k := range keys {
		if k.does != "one GPU" || len(s.Tracks) > 1 {
			out = append(out, k.names[0]+" "+k.does)
		}
	}
	text := strings.Join(out, " · ")
	if s.held {
		text = "held · " + text
	}
	return text
}

// track draws one track in so many rows.
func (s *Screen) track(t *Track, rows int) []string {
	head := fmt.Sprintf("%s  %s  peak %s", quote.Text(t.Name), report.Watched(t.last.Used, t.last.Total, t.Band.Peak), profile.FormatBytes(t.peak))
	if t.Band.Bound > 0 {
		head += ", bound " + profile.FormatBytes(t.Band.Bound)
	}
	out := []string{s.paint(bold, s.cut(head))}
	if rows < 4 || s.width < 24 { // no room for a chart
		return append(out, s.paint(t.colour(t.last.Used), strings.Repeat("█", s.filled(t))))[:min(max(rows, 1), 2)]
	}
	return append(append(out, s.chart(t, rows-3)...), s.axis(t), "")
}

// filled returns the columns of a bar of the last reading.
func (s *Screen) filled(t *Track) int {
	return int(math.Round(float64(s.width) * min(1, float64(t.last.Used)/float64(max(s.top(t), 1)))))
}

// top returns the bytes at the upper edge of a chart.
func (s *Screen) top(t *Track) int64 {
	if s.device || t.Band.Peak == 0 {
		return max(t.last.Total, t.peak, 1)
	}
	return max(t.Band.Peak, t.Band.Bound, t.peak) / 20 * 21
}

// labelled is the width of a chart's labels.
const labelled = 11

// window returns the span of time that is shown.
func (s *Screen) window(t *Track) (from, to time.Time) {
	to = s.now
	if s.held {
		to = s.frozen
	}
	if d := spans[s.span]; d > 0 {
		return to.Add(-d), to
	}
	if len(t.samples) > 0 && t.samples[0].At.Before(to) {
		return t.samples[0].At, to
	}
	return to.Add(-time.Second), to
}

// columns returns the most bytes in each column's time; -1 where nothing was read.
// A time without a reading between two has that before it.
func (s *Screen) columns(t *Track, n int) []int64 {
	out := slices.Repeat([]int64{-1}, n)
	from, to := s.window(t)
	width := to.Sub(from)
	before := int64(-1)
	for _, x := range t.samples {
		switch at := x.At.Sub(from); {
		case at < 0:
			before = x.Used
		case x.At.After(to):
		default:
			i := min(int(float64(at)/float64(width)*float64(n)), n-1)
			out[i] = max(out[i], x.Used)
		}
	}
	last := len(out)
	for last > 0 && out[last-1] < 0 {
		last--
	}
	for i := range out[:last] {
		if out[i] < 0 {
			out[i] = before
		}
		before = out[i]
	}
	return out
}

// eighths are parts of a row, from below.
var eighths = []rune(" ▁▂▃▄▅▆▇█")

// chart draws the readings of a track in rows, with lines at the plan's peak and bound.
func (s *Screen) chart(t *Track, rows int) []string {
	n := s.width - labelled
	columns, top := s.columns(t, n), s.top(t)
	row := func(bytes int64) int { return rows - 1 - min(int(float64(bytes)/float64(top)*float64(rows)), rows-1) }
	labels := map[int]string{rows - 1: "0 B", 0: profile.FormatBytes(top)}
	marks := map[int]rune{}
	if t.Band.Bound > 0 {
		labels[row(t.Band.Bound)], marks[row(t.Band.Bound)] = "bound", '┄'
	}
	if t.Band.Peak > 0 {
		labels[row(t.Band.Peak)], marks[row(t.Band.Peak)] = "plan", '─'
	}
	out := make([]string, rows)
	for r := range rows {
		var b strings.Builder
		fmt.Fprintf(&b, "%*s ", labelled-1, labels[r])
		for i := 0; i < n; {
			run, code := []rune(nil), t.colour(columns[i])
			for ; i < n && t.colour(columns[i]) == code; i++ {
				run = append(run, cell(columns[i], top, rows, r, marks[r]))
			}
			b.WriteString(s.paint(code, string(run)))
		}
		out[r] = b.String()
	}
	return out
}

// cell is the part of a column in a row, which the mark of the row fills where
// nothing is.
func cell(bytes, top int64, rows, r int, mark rune) rune {
	level := 0
	if bytes > 0 {
		level = max(1, int(math.Round(float64(bytes)/float64(top)*float64(8*rows)))) // a little use shows, too
	}
	level = min(max(level-8*(rows-1-r), 0), 8)
	if level == 0 && mark != 0 {
		return mark
	}
	return eighths[level]
}

// axis names the times at both ends of a chart.
func (s *Screen) axis(t *Track) string {
	from, to := s.window(t)
	left := "-" + to.Sub(from).Round(time.Second).String()
	return s.cut(strings.Repeat(" ", labelled) + left + strings.Repeat(" ", max(1, s.width-labelled-len(left)-3)) + "now")
}

// The colours of a terminal (ECMA-48).
const (
	plain  = ""
	bold   = "1"
	green  = "32"
	yellow = "33"
	red    = "31"
)

// colour returns that of a reading: within the plan's peak, within its bound, above.
func (t *Track) colour(bytes int64) string {
	switch {
	case t.Band.Peak == 0 || bytes < 0:
		return plain
	case bytes <= t.Band.Peak:
		return green
	case bytes <= t.Band.Bound:
		return yellow
	}
	return red
}

func (s *Screen) paint(code, text string) string {
	if !s.Color || code == plain {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// cut returns the beginning of a text that fits the screen.
func (s *Screen) cut(text string) string {
	if utf8.RuneCountInString(text) <= s.width {
		return text
	}
	return string([]rune(text)[:max(0, s.width-1)]) + "…"
}
