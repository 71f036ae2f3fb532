package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/quote"
)

// streams are where commands write: out takes the result alone, err all else.
type streams struct {
	out            io.Writer
	err            messages
	outTTY, errTTY bool
	width          int           // columns of the terminal at out, or what COLUMNS says; 0: not known
	color          string        // auto, always, never
	written        []string      // files that flags say to write
	kept           []fs.FileInfo // regular files that are read, and so not written over
	watch          *watchdog
}

// messages are what is said on stderr, whole lines, in which what came from a
// file is text. It is no io.Writer: nothing is said past that.
type messages struct{ w io.Writer }

// line writes a line.
func (m messages) line(format string, args ...any) {
	fmt.Fprintln(m.w, quote.Text(fmt.Sprintf(format, args...)))
}

// clearLine goes to the beginning of a terminal's line and empties it.
const clearLine = "\r\x1b[K"

// redraw writes text over the line of a terminal that it wrote before.
func (m messages) redraw(text string) { fmt.Fprint(m.w, clearLine+quote.Text(text)) }

func newStreams(out, errw io.Writer) *streams {
	s := &streams{out: out, err: messages{errw}, color: "auto", watch: newWatchdog(errw)}
	s.width, _ = strconv.Atoi(os.Getenv("COLUMNS")) // 0 where it is no number
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.outTTY = true
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			s.width = width
		}
	}
	if f, ok := errw.(*os.File); ok {
		s.errTTY = term.IsTerminal(int(f.Fd()))
	}
	return s
}

// colors lists the values of --color.
var colors = []string{"auto", "always", "never"}

// style is how text may look at its destination: out, or a file.
func (s *streams) style(file bool) report.Style {
	st := report.Style{Color: s.colored(file, os.Getenv)}
	if !file {
		st.Width = s.width
	}
	return st
}

// colored decides about colour: the flag, then NO_COLOR, CLICOLOR_FORCE,
// CLICOLOR, then whether a terminal takes the text.
func (s *streams) colored(file bool, env func(string) string) bool {
	force := env("CLICOLOR_FORCE")
	switch {
	case s.color != "auto":
		return s.color == "always"
	case env("NO_COLOR") != "":
		return false
	case force != "" && force != "0":
		return true
	case env("CLICOLOR") == "0" || env("TERM") == "dumb":
		return false
	}
	return s.outTTY && !file
}

// errWidth is how many columns the terminal at err has now; 0: not known.
func (s *streams) errWidth() int {
	f, ok := s.err.w.(*os.File)
	if !ok || !s.errTTY {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// fitting is the beginning of a text that has so many columns.
func fitting(text string, columns int) string {
	r := []rune(text)
	return string(r[:max(0, min(len(r), columns))])
}

// patience is how long a command may take before it shows progress.
const patience = 500 * time.Millisecond

// progress shows on a terminal what a command works on and, where a search
// says so, how far it has come; not before it takes long. stop removes the
// line again. show is nil where there is no terminal.
func (s *streams) progress(what string) (show func(done, total int, message string), stop func()) {
	if !s.errTTY {
		return nil, func() {}
	}
	p := &progressLine{w: s.err, width: s.errWidth, what: what, done: make(chan struct{})}
	var wait sync.WaitGroup
	wait.Go(p.run)
	return p.set, func() {
		close(p.done)
		wait.Wait()
	}
}

// A progressLine is one line of a terminal that is written again and again.
type progressLine struct {
	w     messages
	width func() int // columns of the terminal, 0: not known
	what  string
	done  chan struct{}

	mu      sync.Mutex
	message string
}

// set says how far the work has come.
func (p *progressLine) set(done, total int, message string) {
	if total > 0 {
		message = fmt.Sprintf("%d of %d  %s", done, total, message)
	}
	p.mu.Lock()
	p.message = message
	p.mu.Unlock()
}

// run draws the line until the work is done.
func (p *progressLine) run() {
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for ticks := 1; ; ticks++ {
		select {
		case <-p.done:
			if ticks > 1 {
				p.w.redraw("")
			}
			return
		case <-tick.C:
		}
		p.mu.Lock()
		message := p.message
		p.mu.Unlock()
		line := quote.Text(fmt.Sprintf("%s: %.0f s  %s", p.what, (time.Duration(ticks) * patience).Seconds(), message))
		if width := p.width(); width > 0 { // what wraps would not be cleared
			line = fitting(line, width-1)
		}
		p.w.redraw(line)
	}
}
