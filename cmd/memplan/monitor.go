package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate/monitor"
)

type monitorOptions struct {
	limitFlags
	outputFlags
	target                     monitor.Target
	plan, csv                  string
	interval, window, duration time.Duration
}

func newMonitorCmd(s *streams, run func(context.Context, *streams, *monitorOptions) error) *cobra.Command {
	o := &monitorOptions{}
	c := &cobra.Command{
		Use:   "monitor {--gpu N | --pid N}",
		Short: "Watch the memory of a GPU or a process, against a plan",
		Long: `monitor reads the memory of a GPU, or of one process on it, until interrupted,
until --duration is over or until the process ends, draws it on a terminal, and
says what it came to. With --plan it warns when use leaves what the plan
predicts; with or without, when the peak grows window after window, as it does
when a training loop keeps something from every step. It exits 1 after a warning.

It reads NVML in a build with CUDA, else through nvidia-smi.`,
		Example: `  memplan monitor --gpu 0 --duration 1m
  memplan monitor --pid 4242 --plan plan.json --csv memory.csv`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("gpu") && !c.Flags().Changed("pid") {
				return errors.New("give --gpu N, --pid N or both")
			}
			if o.target.PID < 0 || c.Flags().Changed("pid") && o.target.PID == 0 {
				return fmt.Errorf("--pid %d: want a positive integer", o.target.PID)
			}
			if o.target.GPU < 0 {
				return fmt.Errorf("--gpu %d: want the number of a device, from 0", o.target.GPU)
			}
			if o.interval <= 0 || o.window < o.interval || o.duration < 0 {
				return errors.New("--interval and --window want positive durations, the window the longer, and --duration none below 0")
			}
			return run(c.Context(), s, o)
		},
	}
	fl := c.Flags()
	fl.IntVar(&o.target.GPU, "gpu", 0, "device `N`, as nvidia-smi numbers them")
	fl.IntVar(&o.target.PID, "pid", 0, "process `N`")
	fl.StringVar(&o.plan, "plan", "", "compare with the plan in `FILE`")
	fl.StringVar(&o.csv, "csv", "", "write every reading to `FILE`")
	fl.DurationVar(&o.interval, "interval", 500*time.Millisecond, "`TIME` between readings")
	fl.DurationVar(&o.window, "window", 10*time.Second, "`TIME` whose peaks are compared; some training steps long")
	fl.DurationVar(&o.duration, "duration", 0, "watch for this `TIME`; 0: until interrupted")
	_ = c.RegisterFlagCompletionFunc("plan", completeFiles(1, "json")) // fails only for a flag that does not exist
	_ = c.RegisterFlagCompletionFunc("csv", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	noFiles(c, "gpu", "pid", "interval", "window", "duration")
	o.limitFlags.add(c, boundedMeasure)
	o.outputFlags.add(c, report.Names(report.Watches))
	return c
}

func monitorRun(ctx context.Context, s *streams, o *monitorOptions) error {
	w := &monitor.Watcher{Window: o.window}
	if o.plan != "" {
		p, err := planner.ReadPlan(o.plan)
		if err != nil {
			return err
		}
		w.Band = monitor.Band{Peak: p.Peak.ProcessBytes, Bound: p.Peak.ProcessBytes - p.Peak.ReservedBytes + p.Peak.UpperBoundBytes}
	}
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	src, err := monitor.OpenContext(ctx, o.target)
	if err == nil {
		err = recorded(ctx, s, o, src, w)
		if e := src.Close(); err == nil {
			err = e
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no reading within --duration %v: give it more time", o.duration)
	}
	if err != nil {
		return err
	}
	sum := w.Summary(o.target, src.Device())
	if err := emit(s, &o.outputFlags, report.Watches, sum); err != nil {
		return err
	}
	if len(sum.Warnings) > 0 {
		return errNo
	}
	return nil
}

// recorded watches and writes the readings to the file of --csv as they come:
// it has all of them however the watch ends.
func recorded(ctx context.Context, s *streams, o *monitorOptions, src monitor.Source, w *monitor.Watcher) (err error) {
	if o.csv == "" {
		return watch(ctx, s, o, src, w, io.Discard)
	}
	f, err := files.Create(o.csv)
	if err != nil {
		return fmt.Errorf("--csv %w", err)
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	return watch(ctx, s, o, src, w, f)
}

// watch reads until the context or the process ends.
func watch(ctx context.Context, s *streams, o *monitorOptions, src monitor.Source, w *monitor.Watcher, csv io.Writer) error {
	if _, err := fmt.Fprintln(csv, "seconds,usedBytes,totalBytes"); err != nil {
		return err
	}
	chart := &memoryChart{s: s}
	defer chart.end()
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	var start time.Time
	for {
		r, err := src.Sample()
		if !start.IsZero() && (errors.Is(err, monitor.ErrGone) || ctx.Err() != nil) {
			return nil
		}
		if err != nil {
			return err
		}
		if start.IsZero() {
			start = r.At
		}
		if _, err := fmt.Fprintf(csv, "%.3f,%d,%d\n", r.At.Sub(start).Seconds(), r.Used, r.Total); err != nil {
			return err
		}
		for _, warning := range w.Add(r) {
			chart.end()
			s.err.line("warning: %s", warning.Message)
		}
		chart.draw(r, w.Band)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// A memoryChart is one line of a terminal: the last readings as bars, and the
// last one in words. Without a terminal it draws nothing.
type memoryChart struct {
	s     *streams
	used  []int64
	drawn bool
}

// bars are eighths of a line's height.
var bars = []rune(" ▁▂▃▄▅▆▇█")

// chartWidth is the largest number of readings drawn.
const chartWidth = 60

func (c *memoryChart) draw(r monitor.Sample, band monitor.Band) {
	if !c.s.errTTY {
		return
	}
	c.used = append(c.used, r.Used)
	c.used = c.used[max(0, len(c.used)-chartWidth):]
	top := max(r.Total, 1)
	if band.Peak > 0 {
		top = band.Peak
	}
	for _, u := range c.used {
		top = max(top, u)
	}
	var b []rune
	for _, u := range c.used {
		level := int(float64(u) / float64(top) * float64(len(bars)-1))
		if u > 0 { // a little use shows, too
			level = max(level, 1)
		}
		b = append(b, bars[level])
	}
	text := report.Watched(r.Used, r.Total, band.Peak)
	if width := c.s.errWidth(); width > 0 { // wrapped lines would not be cleared
		text = fitting(text, width-2)
		b = b[max(0, len(b)-max(0, width-2-utf8.RuneCountInString(text))):]
	}
	c.s.err.redraw(string(b) + " " + text)
	c.drawn = true
}

func (c *memoryChart) end() {
	if c.drawn {
		c.s.err.line("")
		c.drawn = false
	}
}
