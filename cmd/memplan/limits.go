package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/planner/profile"
)

// Default limits of a run, which --timeout and --max-memory change:
// docs/adr/0012-limits.md has the reasons.
const (
	defaultRun    = 30 * time.Minute
	defaultMemory = "4G"
)

// leastGrace is the least time for writing an answer after a search has ended
// at --timeout; otherwise a quarter of that.
const leastGrace = 15 * time.Second

// limitFlags bound a run, whatever its files contain.
type limitFlags struct {
	timeout time.Duration // of a search, and of the run; 0: see the flag
	memory  string        // as given
}

// A limitKind is the meaning of --timeout for a command.
type limitKind string

const (
	boundedSearch  limitKind = "search"  // it searches, and ends with the best result so far
	boundedRun     limitKind = "run"     // its answer is complete or missing
	boundedDevice  limitKind = "device"  // a search, and then a step that runs on a device, in memory given by the plan
	boundedMeasure limitKind = "measure" // it measures, or watches: only memory is bounded
)

// add defines the flags on a command.
func (f *limitFlags) add(c *cobra.Command, kind limitKind) {
	if kind != boundedMeasure {
		c.Flags().DurationVar(&f.timeout, "timeout", 0, timeoutHelp(kind))
		noFiles(c, "timeout")
	}
	memory := defaultMemory
	help := "limit on memplan's own memory, a `SIZE`, 0 for no limit; exceeding it is exit 2"
	if kind == boundedDevice {
		memory, help = "0", "limit on memplan's own memory, a `SIZE`, including the step on a processor; exceeding it is exit 2 (no limit on the step, "+defaultMemory+" to read files)"
	}
	c.Flags().StringVar(&f.memory, "max-memory", memory, help)
	noFiles(c, "max-memory")
	annotate(c, kind)
}

func timeoutHelp(kind limitKind) string {
	if kind == boundedRun {
		return "limit on the run, a `DURATION` such as 30s, then exit 2; 0 for none (30m)"
	}
	return "limit on a search, a `DURATION` such as 30s, which then ends with the best it has; a run without an answer a quarter later, 15s at least, is exit 2; 0 for none (no limit on a search, 30m on the run)"
}

// boundedKey is the annotation of a command with its limitKind.
const boundedKey = "memplan.bounded"

func annotate(c *cobra.Command, kind limitKind) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[boundedKey] = string(kind)
}

// reading returns the limit of the memory for the content of one file, in
// bytes: --max-memory, or the default if that is 0 or not a size, which
// limitsOf refuses.
func (f *limitFlags) reading() int64 {
	n, err := profile.ParseSize(f.memory)
	if err != nil || n <= 0 {
		return onnx.DefaultMemory
	}
	return n
}

// limits are the limits of one run.
type limits struct {
	run    time.Duration // 0: no limit
	memory int64         // bytes; 0: no limit
	said   string        // --timeout as given, for the message
}

// limitsOf reads the limits of a command; a command that reads no files has
// none.
func limitsOf(c *cobra.Command) (l limits, err error) {
	kind := limitKind(c.Annotations[boundedKey])
	if kind == "" {
		return l, nil
	}
	text, err := c.Flags().GetString("max-memory")
	if err != nil {
		return l, err
	}
	if l.memory, err = profile.ParseSize(text); err != nil {
		return l, fmt.Errorf("--max-memory: %w", err)
	}
	if l.memory > 0 && l.memory < leastMemory {
		return l, fmt.Errorf("--max-memory %s: memplan itself takes %s: want more", text, profile.FormatBytes(leastMemory))
	}
	if kind == boundedMeasure {
		return l, nil
	}
	d, err := c.Flags().GetDuration("timeout")
	switch {
	case err != nil:
		return l, err
	case d < 0:
		return l, fmt.Errorf("--timeout %v: want a positive duration such as 30s", d)
	case !c.Flags().Changed("timeout"):
		d = defaultRun
		l.run = d
	case kind == boundedRun || d == 0:
		l.run = d
	default:
		if l.run = d + max(d/4, leastGrace); l.run < 0 { // beyond the range of a duration
			l.run = math.MaxInt64
		}
	}
	l.said = d.String()
	return l, nil
}

// leastMemory is the memory of a run that does nothing: tables and the
// runtime's own.
const leastMemory = 64 << 20

// A watchdog ends the process when a run exceeds its limits. It is the second
// line of defence: readers count what they build and refuse before that.
type watchdog struct {
	limits
	errw io.Writer
	exit func(code int)
	stop context.CancelFunc
	done sync.WaitGroup
	held atomic.Bool // the result is being written: too late to end without one
}

// writing is locked while a file is replaced, so that the process does not end
// in between and leave half of one.
var writing sync.Mutex

// poll is the interval between readings of memory: new memory is touched at a
// few gigabytes a second, so that a run overshoots by little.
const poll = 10 * time.Millisecond

// Percentages of the garbage collector. Most runs need some 5 MB at once, of
// which it would make eight collections, a fifth of the processor's time, to
// save 2 MB of a process of 35. Those that grow take a tenth less memory with
// more collections, in the same time.
const (
	smallRunGC = 150
	largeRunGC = 60
	smallRun   = 24 << 20 // bytes of the runtime's memory up to which a run is small
)

// start begins to watch. The garbage collector works harder near the limit.
func (w *watchdog) start(l limits) {
	w.limits = l
	debug.SetGCPercent(smallRunGC)
	if l.memory > 0 {
		debug.SetMemoryLimit(l.memory - l.memory/8)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.done.Go(func() { w.watch(ctx) })
}

// end stops watching.
func (w *watchdog) end() {
	if w.stop == nil {
		return
	}
	w.stop()
	w.done.Wait()
	debug.SetMemoryLimit(math.MaxInt64)
}

// disarm is called once the result is being written.
func (w *watchdog) disarm() { w.held.Store(true) }

func (w *watchdog) watch(ctx context.Context) {
	over := make(<-chan time.Time)
	if w.run > 0 {
		timer := time.NewTimer(w.run)
		defer timer.Stop()
		over = timer.C
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	large := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-over:
			w.give(fmt.Sprintf("no answer within --timeout %s: give it more time", w.said))
		case <-tick.C:
			n := inUse()
			if n > smallRun && !large {
				large = true
				debug.SetGCPercent(largeRunGC)
			}
			if w.memory > 0 && n > w.memory {
				w.give(fmt.Sprintf("no answer within --max-memory %s: raise the limit", profile.FormatBytes(w.memory)))
			}
		}
	}
}

// give ends the process with one line, unless its result is being written.
func (w *watchdog) give(line string) {
	writing.Lock()
	defer writing.Unlock()
	if w.held.Load() {
		return
	}
	fmt.Fprintf(w.errw, "memplan: %s\n", line)
	w.exit(int(exitUnknown))
}

// inUse returns the bytes of memory that the Go runtime holds.
func inUse() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

func newWatchdog(errw io.Writer) *watchdog { return &watchdog{errw: errw, exit: os.Exit} }
