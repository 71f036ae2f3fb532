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

// streams are the outputs of commands: out takes only the result, err all else.
type streams struct {
	args           []string // of the command line
	out            io.Writer
	err            messages
	outTTY, errTTY bool
	width          int           // columns of the terminal at out, or COLUMNS; 0: unknown
	color          string        // auto, always, never
	written        []string      // files to be written, according to flags
	kept           []fs.FileInfo // regular files that are read, and so never overwritten
	watch          *watchdog
}

// messages writes whole lines to stderr, in which texts from files are quoted.
// It is not an io.Writer, so that nothing can bypass that.
type messages struct{ w io.Writer }

// line writes a line.
func (m messages) line(format string, args ...any) {
	fmt.Fprintln(m.w, quote.Text(fmt.Sprintf(format, args...)))
}

// clearLine moves to the beginning of a terminal's line and erases it.
const clearLine = "\r\x1b[K"

// redraw replaces the line of a terminal that it wrote before.
func (m messages) redraw(text string) { fmt.Fprint(m.w, clearLine+quote.Text(text)) }

func newStreams(out, errw io.Writer) *streams {
	s := &streams{out: out, err: messages{errw}, color: "auto", watch: newWatchdog(errw)}
	s.width, _ = strconv.Atoi(os.Getenv("COLUMNS")) // 0 if it is not a number
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

// style returns the style of text for its destination: out, or a file.
func (s *streams) style(file bool) report.Style {
	st := report.Style{Color: s.colored(file, os.Getenv)}
	if !file {
		st.Width = s.width
	}
	return st
}

// colored decides whether to use colour: by the flag, then NO_COLOR,
// CLICOLOR_FORCE, CLICOLOR, then whether the destination is a terminal.
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

// errWidth returns the current number of columns of the terminal at err; 0:
// unknown.
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

// fitting returns the beginning of a text that fits the columns.
func fitting(text string, columns int) string {
	r := []rune(text)
	return string(r[:max(0, min(len(r), columns))])
}

// patience is the time after which a command shows progress.
const patience = 500 * time.Millisecond

// progress shows on a terminal what a command works on and, if a search reports
// it, how far it has come, once it takes long. stop removes the line. show is
// nil without a terminal.
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

// A progressLine is one line of a terminal that is written repeatedly.
type progressLine struct {
	w     messages
	width func() int // columns of the terminal, 0: unknown
	what  string
	done  chan struct{}

	mu      sync.Mutex
	message string
}

// set updates the progress.
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
		if width := p.width(); width > 0 { // wrapped lines would not be cleared
			line = fitting(line, width-1)
		}
		p.w.redraw(line)
	}
}
