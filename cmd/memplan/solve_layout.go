package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/layout"
)

type solveLayoutOptions struct {
	outputFlags
	limitFlags
	path, capacity string
}

func newSolveLayoutCmd(s *streams, run func(context.Context, *streams, *solveLayoutOptions) error) *cobra.Command {
	o := &solveLayoutOptions{}
	c := &cobra.Command{
		Use:   "layout <buffers.csv>",
		Short: "Static memory layout: offsets of buffers in the smallest arena",
		Long: `layout reads buffers as lines id,lower,upper,size (lifetimes are half-open) and
writes them with a column offset, so that buffers that live at the same time do
not overlap and the highest ends as low as can be found. It ends when it has
proved that no layout is lower, after a fixed effort of some seconds, or after
--timeout, with the best layout so far.

With --capacity it ends at the first layout that is no higher, and exits 1 if it
proves that there is none, 2 if it finds neither.`,
		Example: `  memplan solve layout buffers.csv -o offsets.csv
  memplan solve layout buffers.csv --capacity 1048576 -o offsets.csv
  memplan solve layout buffers.csv --timeout 60s --format json`,
		Args:              exactly(1, "one file of buffers"),
		ValidArgsFunction: completeFiles(1, "csv"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path = args[0]
			return run(c.Context(), s, o)
		},
	}
	c.Flags().StringVar(&o.capacity, "capacity", "", "height that must suffice, `N` or a size such as 16M (the least)")
	o.limitFlags.add(c, boundedSearch)
	o.outputFlags.add(c, report.Names(layouts))
	noFiles(c, "capacity")
	return c
}

// A layoutSolution is what solve layout writes.
type layoutSolution struct {
	SchemaVersion int            `json:"schemaVersion"`
	Buffers       int            `json:"buffers"`
	Capacity      int64          `json:"capacity"` // 0: the least height
	Feasible      bool           `json:"feasible"`
	Height        int64          `json:"height"`
	LowerBound    int64          `json:"lowerBound"`
	Gap           float64        `json:"gap"` // (height - lowerBound) / lowerBound
	Optimal       bool           `json:"optimal"`
	Method        string         `json:"method"`
	Seconds       float64        `json:"seconds"`
	Layout        []placedBuffer `json:"layout"` // empty if the capacity does not suffice

	Given   []layout.Buffer `json:"-"`
	Offsets []int64         `json:"-"` // of those that are given
}

type placedBuffer struct {
	ID     string `json:"id"`
	Offset int64  `json:"offset"`
}

// layouts are the formats of solve layout.
var layouts = []report.Format[*layoutSolution]{
	{Name: "csv", Write: func(w io.Writer, l *layoutSolution, _ report.Style) error {
		return layout.WriteCSV(w, l.Given, l.Offsets)
	}},
	{Name: "text", Write: func(w io.Writer, l *layoutSolution, _ report.Style) error {
		_, err := fmt.Fprintln(w, l.verdict())
		return err
	}},
	report.AsJSON(report.Itself[*layoutSolution]),
}

// verdict returns the answer in one line.
func (l *layoutSolution) verdict() string {
	switch buffers := report.Plural(l.Buffers, "buffer", "buffers"); {
	case !l.Feasible:
		return fmt.Sprintf("no layout fits %d: none is lower than %d", l.Capacity, l.LowerBound)
	case l.Optimal:
		return fmt.Sprintf("%s in %d, proved the least (%s)", buffers, l.Height, l.Method)
	default:
		return fmt.Sprintf("%s in %d; no layout is lower than %d: within %.4f%% (%s)", buffers, l.Height, l.LowerBound, 100*l.Gap, l.Method)
	}
}

func solveLayoutRun(ctx context.Context, s *streams, o *solveLayoutOptions) error {
	opt, err := o.options()
	if err != nil {
		return err
	}
	limit, cancel := limited(ctx, o.timeout)
	defer cancel()
	list, err := readBuffers(o.path)
	if err != nil {
		return err
	}
	_, stop := s.progress("solve layout")
	start := time.Now() //nolint:forbidigo // the search's time is part of the answer
	r, err := layout.Solve(limit, list, opt)
	seconds := time.Since(start).Seconds()
	stop()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%s: %w", o.path, err)
	case !r.Refuted && opt.Capacity > 0 && r.Height > opt.Capacity:
		return fmt.Errorf("%s: no layout within %d found (the lowest is %d), nor a proof that there is none: give it more time with --timeout", o.path, opt.Capacity, r.Height)
	}
	out := &layoutSolution{SchemaVersion: 1, Buffers: len(list), Capacity: opt.Capacity, Feasible: !r.Refuted, Height: r.Height, LowerBound: r.Bound,
		Optimal: r.Optimal, Method: r.Method, Seconds: math.Round(seconds*1e3) / 1e3, Given: list, Offsets: r.Offset}
	return out.emit(s, o)
}

// emit writes a layout, unless it does not fit.
func (l *layoutSolution) emit(s *streams, o *solveLayoutOptions) error {
	if l.LowerBound > 0 {
		l.Gap = float64(l.Height-l.LowerBound) / float64(l.LowerBound)
	}
	if l.Feasible {
		for i := range l.Given {
			l.Layout = append(l.Layout, placedBuffer{l.Given[i].ID, l.Offsets[i]})
		}
	}
	table := o.format == "csv"
	if l.Feasible || !table {
		if err := emit(s, &o.outputFlags, layouts, l); err != nil {
			return err
		}
	}
	if table {
		s.err.line("%s", l.verdict())
	}
	return answer(&l.Feasible)
}

func (o *solveLayoutOptions) options() (opt layout.Options, err error) {
	if o.timeout > 0 { // only time ends the search
		opt.Effort = math.MaxInt64
	}
	if o.capacity != "" {
		opt.Capacity, err = planner.PositiveSize("--capacity", o.capacity)
	}
	return opt, err
}

// readBuffers reads an instance.
func readBuffers(path string) ([]layout.Buffer, error) {
	data, err := files.Door{}.Read(path, files.Instance)
	if err != nil {
		return nil, err
	}
	list, err := layout.ReadCSV(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}
