package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/planner"
)

type showOptions struct {
	modelFlags
	outputFlags
	path, timeline string
}

// A shown is what show writes.
type shown struct {
	graph  *graph.Graph
	values []planner.ValueInfo
	nodes  []planner.NodeInfo
}

// showDocument is the JSON form. If the rank of a value is unknown its shape is
// empty, and static false.
type showDocument struct {
	SchemaVersion int                 `json:"schemaVersion"`
	Values        []planner.ValueInfo `json:"values"`
	Nodes         []planner.NodeInfo  `json:"nodes"`
}

// shows are the formats of show.
var shows = []report.Format[*shown]{
	{Name: "text", Write: func(w io.Writer, s *shown, _ report.Style) error { return graph.FormatSizes(w, s.graph) }, Exact: true},
	report.AsJSON(func(s *shown) any { return showDocument{planner.SchemaVersion, s.values, s.nodes} }),
}

func newShowCmd(s *streams, run func(context.Context, *streams, *showOptions) error) *cobra.Command {
	o := &showOptions{}
	c := &cobra.Command{
		Use:   "show <model.onnx>",
		Short: "Values, shapes and timeline of a model",
		Long: `show prints the graph, a node a line with the type, shape and bytes of its results,
as far as --batch and --dim bind them; what is left are expressions. With --timeline it also writes the allocations and frees of a
steady step, under the same flags as analyze.`,
		Example: `  memplan show models/mlp.onnx --batch 32
  memplan show models/gpt2.onnx --format json
  memplan show models/resnet50.onnx --batch 64 --timeline step.svg`,
		Args:              exactly(1, "one model file"),
		ValidArgsFunction: completeFiles(1, "onnx"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path = args[0]
			return run(c.Context(), s, o)
		},
	}
	o.modelFlags.add(c)
	o.limitFlags.add(c, boundedSearch)
	o.outputFlags.add(c, report.Names(shows))
	addTimeline(c, &o.timeline)
	return c
}

func showRun(ctx context.Context, s *streams, o *showOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	if err := checkTimeline(o.timeline); err != nil {
		return err
	}
	if (cfg.BatchMax || cfg.BatchBest || cfg.Target > 0) && o.timeline == "" {
		return errors.New("--batch max, --batch best and --target-batch go with --timeline: give show a number")
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	m, err := s.open(o.path, &cfg)
	if err != nil {
		return err
	}
	if o.timeline != "" {
		r, err := analyzed(ctx, s, m, cfg)
		if err != nil {
			return err
		}
		cfg.Batch = r.Config.Batch
		if err := s.writeTimeline(r, o.timeline); err != nil {
			return err
		}
	}
	v := &shown{graph: m.Graph(), nodes: m.Nodes()}
	if v.values, err = m.Values(cfg); err != nil {
		return err
	}
	for _, text := range report.Warnings(m.Warnings()) {
		s.err.line("warning: %s", text)
	}
	return emit(s, &o.outputFlags, shows, v)
}
