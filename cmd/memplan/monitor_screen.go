package main

import (
	"fmt"
	"os"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/term"

	"github.com/memplan/memplan/cmd/memplan/screen"
	"github.com/memplan/memplan/validate/monitor"
)

// viewOf returns how readings are shown: on the whole screen where there is one and a
// keyboard, else on a line. stop ends the watch.
func (s *streams) viewOf(name string, list []*watched, stop func()) memoryView {
	whole := s.errTTY && term.IsTerminal(int(os.Stdin.Fd())) && os.Getenv("TERM") != "dumb"
	switch {
	case name == "none":
		return noView{s}
	case name == "screen" && s.errTTY, name == "auto" && whole:
		return newScreenView(s, list, stop)
	}
	return &memoryChart{s: s, band: list[0].w.Band, last: make([]monitor.Sample, len(list))}
}

// A noView shows warnings alone.
type noView struct{ s *streams }

func (noView) add(int, monitor.Sample)         {}
func (v noView) warn(_ int, w monitor.Warning) { v.s.err.line("warning: %s", w.Message) }
func (noView) end()                            {}

// A screenView shows charts on the whole screen, and once it ends the warnings.
type screenView struct {
	s        *streams
	program  *tea.Program
	done     chan struct{}
	warnings []string
	failed   error // known once done
}

func newScreenView(s *streams, list []*watched, stop func()) *screenView {
	model := &screen.Screen{Color: s.colored(false, os.Getenv) || s.color == "auto" && os.Getenv("NO_COLOR") == "", Stop: stop}
	for _, d := range list {
		name := fmt.Sprintf("GPU %d, %s", d.GPU, d.device)
		if d.PID != 0 {
			name = fmt.Sprintf("process %d on %s", d.PID, name)
		}
		model.Tracks = append(model.Tracks, &screen.Track{Name: name, Band: d.w.Band})
	}
	v := &screenView{s: s, program: tea.NewProgram(model, tea.WithOutput(s.err.w), tea.WithoutSignalHandler()), done: make(chan struct{})}
	go func() {
		defer close(v.done)
		defer stop() // if the terminal goes, so does the watch
		_, v.failed = v.program.Run()
	}()
	return v
}

func (v *screenView) add(i int, r monitor.Sample) {
	v.program.Send(screen.Reading{Track: i, Sample: r})
}

func (v *screenView) warn(i int, w monitor.Warning) {
	v.program.Send(screen.Alert{Track: i, Warning: w})
	v.warnings = append(v.warnings, w.Message)
}

func (v *screenView) end() {
	v.program.Quit()
	<-v.done
	if v.failed != nil {
		v.s.err.line("warning: the screen: %v", v.failed)
	}
	for _, w := range v.warnings {
		v.s.err.line("warning: %s", w)
	}
}
