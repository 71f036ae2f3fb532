package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	gpus                       string // as given
	pid                        int
	plan, csv, record, replay  string
	view                       string
	interval, window, duration time.Duration
}

// views are how monitor shows readings while they come.
var views = []string{"auto", "screen", "line", "none"}

func newMonitorCmd(s *streams, run func(context.Context, *streams, *monitorOptions) error) *cobra.Command {
	o := &monitorOptions{}
	c := &cobra.Command{
		Use:   "monitor {--gpu N,... | --pid N | --replay FILE}",
		Short: "Watch the memory of GPUs or a process, against a plan",
		Long: `monitor reads the memory of GPUs, or of one process on them, until interrupted,
until --duration is over or until the process ends, draws it on a terminal, and
says what it came to. With --plan it warns when use leaves what the plan
predicts; with or without, when the peak grows window after window, as it does
when a training loop keeps something from every step. It exits 1 after a warning.

A terminal shows charts with the plan's peak and bound; their keys are named
below them. --record keeps every reading, and --replay judges a recording again,
with another plan or window.

It reads NVML in a build with CUDA, else through nvidia-smi.`,
		Example: `  memplan monitor --gpu 0 --duration 1m
  memplan monitor --gpu all --plan plan.json --record run.jsonl
  memplan monitor --pid 4242 --plan plan.json --csv memory.csv`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(c); err != nil {
				return err
			}
			return run(c.Context(), s, o)
		},
	}
	fl := c.Flags()
	fl.StringVar(&o.gpus, "gpu", "0", "devices `N,...`, as nvidia-smi numbers them, or all")
	fl.IntVar(&o.pid, "pid", 0, "process `N`")
	fl.StringVar(&o.plan, "plan", "", "compare with the plan in `FILE`")
	fl.StringVar(&o.csv, "csv", "", "write every reading to `FILE`")
	fl.StringVar(&o.record, "record", "", "write every reading to `FILE`, a line of JSON each, for --replay")
	fl.StringVar(&o.replay, "replay", "", "judge the readings of `FILE`, which --record wrote, and watch nothing")
	addEnum(c, fl, &o.view, "view", "auto", "what a terminal shows meanwhile, a `NAME`", views, nil)
	fl.DurationVar(&o.interval, "interval", 500*time.Millisecond, "`TIME` between readings")
	fl.DurationVar(&o.window, "window", 10*time.Second, "`TIME` whose peaks are compared; some training steps long")
	fl.DurationVar(&o.duration, "duration", 0, "watch for this `TIME`; 0: until interrupted")
	_ = c.RegisterFlagCompletionFunc("plan", completeFiles(1, "json")) // fails only for a flag that does not exist
	for _, name := range []string{"csv", "record", "replay"} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	}
	noFiles(c, "gpu", "pid", "interval", "window", "duration")
	o.limitFlags.add(c, boundedMeasure)
	o.outputFlags.add(c, report.Names(report.Watches))
	return c
}

// check returns an error for flags that contradict each other.
func (o *monitorOptions) check(c *cobra.Command) error {
	given := c.Flags().Changed
	switch {
	case o.replay != "" && (given("gpu") || given("pid") || given("record") || given("interval") || given("duration")):
		return errors.New("--replay reads a recording and watches nothing: give it without --gpu, --pid, --record, --interval and --duration")
	case o.replay == "" && !given("gpu") && !given("pid"):
		return errors.New("give --gpu N, --pid N or both")
	case o.pid < 0 || given("pid") && o.pid == 0:
		return fmt.Errorf("--pid %d: want a positive integer", o.pid)
	case o.interval <= 0 || o.window < o.interval || o.duration < 0:
		return errors.New("--interval and --window want positive durations, the window the longer, and --duration none below 0")
	}
	_, err := o.targets()
	return err
}

// targets lists what to watch; nil for all devices.
func (o *monitorOptions) targets() ([]monitor.Target, error) {
	if o.gpus == "all" {
		return nil, nil
	}
	var out []monitor.Target
	seen := map[int]bool{}
	for _, text := range strings.Split(o.gpus, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 0 || seen[n] {
			return nil, fmt.Errorf("--gpu %s: want the numbers of devices, from 0 and each once, or all", o.gpus)
		}
		seen[n] = true
		out = append(out, monitor.Target{GPU: n, PID: o.pid})
	}
	return out, nil
}

// A watched device is one that monitor reads.
type watched struct {
	monitor.Target
	src    monitor.Source // nil for a replay
	device string
	w      *monitor.Watcher
	gone   bool // the process has ended there
}

func monitorRun(ctx context.Context, s *streams, o *monitorOptions) (err error) {
	band, err := o.band()
	if err != nil {
		return err
	}
	if o.replay != "" {
		return o.replayed(s, band)
	}
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	list, err := o.open(ctx, band)
	if err == nil {
		err = recorded(ctx, s, o, list)
	}
	for _, d := range list {
		if e := d.src.Close(); err == nil {
			err = e
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no reading within --duration %v: give it more time", o.duration)
	}
	if err != nil {
		return err
	}
	return s.watchedAll(o, list)
}

// band is what the plan predicts.
func (o *monitorOptions) band() (monitor.Band, error) {
	if o.plan == "" {
		return monitor.Band{}, nil
	}
	p, err := planner.ReadPlan(o.plan)
	if err != nil {
		return monitor.Band{}, err
	}
	return monitor.Band{Peak: p.Peak.ProcessBytes, Bound: p.Peak.ProcessBytes - p.Peak.ReservedBytes + p.Peak.UpperBoundBytes}, nil
}

// mostGPUs is more than one machine has.
const mostGPUs = 256

// open opens what is to be watched. Of all devices those are left out that the
// process does not use. What is open is returned with an error, too.
func (o *monitorOptions) open(ctx context.Context, band monitor.Band) (list []*watched, err error) {
	targets, err := o.targets()
	if err != nil {
		return nil, err
	}
	all := targets == nil
	for i := 0; i < len(targets) || all && i < mostGPUs; i++ {
		t := monitor.Target{GPU: i, PID: o.pid}
		if !all {
			t = targets[i]
		}
		src, e := monitor.OpenContext(ctx, t)
		switch {
		case e == nil:
			list = append(list, &watched{Target: t, src: src, device: src.Device(), w: &monitor.Watcher{Window: o.window, Band: band}})
		case all && errors.Is(e, monitor.ErrGone):
			err = e // unless it uses another
		case all && len(list) > 0 && ctx.Err() == nil: // there are no more
			return list, nil
		default:
			return list, firstError(err, e)
		}
	}
	if len(list) == 0 {
		return nil, err
	}
	return list, nil
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// watchedAll writes what the watch came to.
func (s *streams) watchedAll(o *monitorOptions, list []*watched) error {
	r := &monitor.Report{SchemaVersion: planner.SchemaVersion}
	for _, d := range list {
		r.GPUs = append(r.GPUs, d.w.Summary(d.Target, d.device))
	}
	if err := emit(s, &o.outputFlags, report.Watches, r); err != nil {
		return err
	}
	if r.Warned() {
		return errNo
	}
	return nil
}

// replayed judges a recording.
func (o *monitorOptions) replayed(s *streams, band monitor.Band) error {
	r, done, err := monitor.ReadRecording(o.replay)
	if err != nil {
		return err
	}
	defer done() //nolint:errcheck // it was only read
	var list []*watched
	for i, t := range r.Targets {
		list = append(list, &watched{Target: t, device: r.Devices[i], w: &monitor.Watcher{Window: o.window, Band: band}})
	}
	for {
		i, sample, err := r.Next()
		if errors.Is(err, io.EOF) {
			return s.watchedAll(o, list)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", o.replay, err)
		}
		list[i].w.Add(sample)
	}
}

// recorded watches and writes the readings to the files of --csv and --record as they
// come: these have all of them however the watch ends.
func recorded(ctx context.Context, s *streams, o *monitorOptions, list []*watched) (err error) {
	k := &keeper{csv: io.Discard, several: len(list) > 1}
	for _, x := range []struct {
		flag, path string
		open       func(w io.Writer) error
	}{{"csv", o.csv, k.intoCSV}, {"record", o.record, func(w io.Writer) error { return k.intoRecord(w, list) }}} {
		if x.path == "" {
			continue
		}
		f, err := files.Create(x.path)
		if err != nil {
			return fmt.Errorf("--%s %w", x.flag, err)
		}
		defer func() {
			if e := f.Close(); err == nil {
				err = e
			}
		}()
		if err := x.open(f); err != nil {
			return err
		}
	}
	return watch(ctx, s, o, list, k)
}

// A keeper writes readings to files.
type keeper struct {
	csv     io.Writer
	record  *monitor.Recording // nil without
	several bool
}

func (k *keeper) intoCSV(w io.Writer) error {
	k.csv = w
	head := "seconds,usedBytes,totalBytes"
	if k.several {
		head = "seconds,gpu,usedBytes,totalBytes"
	}
	_, err := fmt.Fprintln(w, head)
	return err
}

func (k *keeper) intoRecord(w io.Writer, list []*watched) (err error) {
	var targets []monitor.Target
	var devices []string
	for _, d := range list {
		targets, devices = append(targets, d.Target), append(devices, d.device)
	}
	k.record, err = monitor.NewRecording(w, targets, devices)
	return err
}

func (k *keeper) add(i, gpu int, since time.Duration, r monitor.Sample) error {
	which := ""
	if k.several {
		which = strconv.Itoa(gpu) + ","
	}
	if _, err := fmt.Fprintf(k.csv, "%.3f,%s%d,%d\n", since.Seconds(), which, r.Used, r.Total); err != nil || k.record == nil {
		return err
	}
	return k.record.Add(i, since, r)
}

// A memoryView shows readings while they come.
type memoryView interface {
	add(i int, r monitor.Sample)
	warn(i int, w monitor.Warning)
	end()
}

// watch reads until the context or the processes end.
func watch(ctx context.Context, s *streams, o *monitorOptions, list []*watched, k *keeper) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	view := s.viewOf(o.view, list, stop)
	defer view.end()
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	var start time.Time
	for {
		samples, errs := readings(list)
		for i, d := range list {
			r, err := samples[i], errs[i]
			switch {
			case d.gone || !start.IsZero() && ctx.Err() != nil:
				continue
			case errors.Is(err, monitor.ErrGone) && (!start.IsZero() || len(list) > 1):
				d.gone = true
				continue
			case err != nil:
				return err
			}
			if start.IsZero() {
				start = r.At
			}
			if err := k.add(i, d.GPU, max(0, r.At.Sub(start)), r); err != nil {
				return err
			}
			for _, warning := range d.w.Add(r) {
				if len(list) > 1 {
					warning.Message = fmt.Sprintf("GPU %d: %s", d.GPU, warning.Message)
				}
				view.warn(i, warning)
			}
			view.add(i, r)
		}
		if allGone(list) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func allGone(list []*watched) bool {
	for _, d := range list {
		if !d.gone {
			return false
		}
	}
	return true
}

// readings reads all devices at once: nvidia-smi takes a while for each.
func readings(list []*watched) ([]monitor.Sample, []error) {
	samples, errs := make([]monitor.Sample, len(list)), make([]error, len(list))
	var wait sync.WaitGroup
	for i, d := range list {
		if !d.gone {
			wait.Go(func() { samples[i], errs[i] = d.src.Sample() })
		}
	}
	wait.Wait()
	return samples, errs
}

// A memoryChart is one line of a terminal: the last readings as bars, and the
// last one in words; of several devices the fullest. Without a terminal it draws nothing.
type memoryChart struct {
	s     *streams
	band  monitor.Band
	last  []monitor.Sample // of each device
	used  []int64
	drawn bool
}

func (c *memoryChart) warn(_ int, w monitor.Warning) {
	c.end()
	c.s.err.line("warning: %s", w.Message)
}

// bars are eighths of a line's height.
var bars = []rune(" ▁▂▃▄▅▆▇█")

// chartWidth is the largest number of readings drawn.
const chartWidth = 60

func (c *memoryChart) add(i int, r monitor.Sample) {
	if !c.s.errTTY {
		return
	}
	if c.last[i] = r; len(c.last) > 1 { // the fullest of several
		if i < len(c.last)-1 {
			return
		}
		r = slices.MaxFunc(c.last, func(a, b monitor.Sample) int { return cmp.Compare(a.Used, b.Used) })
	}
	band := c.band
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
