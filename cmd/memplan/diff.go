package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/planner"
)

type diffOptions struct {
	modelFlags
	outputFlags
	base, head string
}

func newDiffCmd(s *streams, run func(context.Context, *streams, *diffOptions) error) *cobra.Command {
	o := &diffOptions{}
	c := &cobra.Command{
		Use:   "diff <base> <head>",
		Short: "Two models or plans: what changed, by category, module and operator",
		Long: `diff attributes the change of the allocated peak between two models to categories
and modules, exactly, and lists the operators that came, went or changed. A plan
brings its own configuration; a model takes the flags.`,
		Example: `  memplan diff old.onnx new.onnx --batch 32
  memplan diff base-plan.json head-plan.json --format markdown`,
		Args:              exactly(2, "two models or plans"),
		ValidArgsFunction: completeFiles(2, "onnx", "json"),
		RunE: func(c *cobra.Command, args []string) error {
			o.base, o.head = args[0], args[1]
			return run(c.Context(), s, o)
		},
	}
	o.modelFlags.add(c)
	o.limitFlags.add(c, boundedSearch)
	o.outputFlags.add(c, report.Names(report.Diffs))
	return c
}

// opened opens a model, or the model and configuration of a plan.
func opened(s *streams, path string, cfg planner.Config) (*planner.Model, planner.Config, error) {
	if !strings.HasSuffix(strings.ToLower(path), ".json") {
		m, unknown, err := s.openAny(path, &cfg)
		for _, text := range unknown { // the other model may have it
			s.err.line("warning: --dim: %s", text)
		}
		return m, cfg, err
	}
	return s.openPlan(path, &cfg)
}

// openPlan opens a plan's model for the plan's question, with files, memory and
// warnings as asked.
func (s *streams) openPlan(path string, asked *planner.Config) (*planner.Model, planner.Config, error) {
	m, cfg, err := planner.OpenPlan(path, asked.Files.Outside, onnx.Within(asked.Memory))
	if err != nil {
		return nil, cfg, err
	}
	cfg.Strict, cfg.Memory = asked.Strict, asked.Memory
	return m, cfg, s.keep(m.Files()...)
}

func diffRun(ctx context.Context, s *streams, o *diffOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	base, baseCfg, err := opened(s, o.base, cfg)
	if err != nil {
		return err
	}
	head, headCfg, err := opened(s, o.head, cfg)
	if err != nil {
		return err
	}
	if err := base.Matches(&cfg); err != nil && head.Matches(&cfg) != nil { // both models can have it, and it was made for one of them
		return err
	}
	show, clear := s.progress("diff")
	base.Progress, head.Progress = show, show
	d, err := planner.Compare(ctx, base, head, baseCfg, headCfg)
	clear()
	if err != nil {
		return err
	}
	return emit(s, &o.outputFlags, report.Diffs, d)
}
