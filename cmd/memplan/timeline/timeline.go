// Package timeline writes the events of a steady step to files: as data, as a
// chart, as a snapshot for PyTorch's memory_viz, and as a trace for Perfetto.
package timeline

import (
	"encoding/csv"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/quote"
)

// A Step is a steady step for files.
type Step struct {
	Title  string // of the chart: model and configuration
	Before []planner.StandingTensor
	Events []planner.TimelineEvent
	Stack  *planner.Stack

	Placement *planner.Placement // where they lie
}

// A Format is one kind of file. Its function's argument is quoted for a line of
// text, as report.Format says, unless it is exact.
type Format struct {
	Ending string // ending of the file's name, which selects the format
	Doc    string
	write  func(w io.Writer, s *Step) error
	exact  bool
}

// Write writes a step.
func (f *Format) Write(w io.Writer, s *Step) error {
	if !f.exact {
		s = quote.All(s)
	}
	return f.write(w, s)
}

// Formats lists the kinds of file.
var Formats = []Format{
	{".json", "the events in order", writeJSON, true},
	{".csv", "the events in order, one a line", writeCSV, false},
	{".svg", "a chart of live bytes by category", SVG, false},
	{".png", "the same chart as pixels", PNG, false},
	{".pickle", "a snapshot for PyTorch's memory_viz (python -m torch.cuda._memory_viz trace_plot FILE)", writePickle, false},
	{".trace", "counters and slices for Perfetto (ui.perfetto.dev) and chrome://tracing, in JSON", writeTrace, false},
}

// FormatOf returns the format for a file's ending.
func FormatOf(file string) (*Format, error) {
	for i := range Formats {
		if strings.EqualFold(filepath.Ext(file), Formats[i].Ending) {
			return &Formats[i], nil
		}
	}
	return nil, fmt.Errorf("%s: the ending decides the format: want %s", file, Endings())
}

// Endings lists the endings for messages.
func Endings() string {
	var list []string
	for i := range Formats {
		list = append(list, Formats[i].Ending)
	}
	return report.Either(list)
}

// Document is the JSON form.
type Document struct {
	SchemaVersion int                      `json:"schemaVersion"`
	Before        []planner.StandingTensor `json:"before"` // live when the step begins
	Events        []planner.TimelineEvent  `json:"events"`
}

func writeJSON(w io.Writer, s *Step) error {
	return report.JSON(w, Document{planner.SchemaVersion, s.Before, s.Events})
}

func writeCSV(w io.Writer, s *Step) error {
	c := csv.NewWriter(w)
	if err := c.Write([]string{"phase", "kind", "id", "bytes", "op", "node", "module"}); err != nil {
		return err
	}
	for i := range s.Events {
		e := &s.Events[i]
		if err := c.Write([]string{e.Phase, e.Kind, strconv.FormatInt(e.ID, 10), strconv.FormatInt(e.Bytes, 10), quote.CSV(e.Op), quote.CSV(e.Node), quote.CSV(e.Module)}); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}
