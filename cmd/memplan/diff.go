package main

import (
	"context"
	"errors"
	"maps"
	"slices"
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

// opened opens a model, or the model and configuration of a plan. unknown are
// messages about dimensions that it lacks.
func opened(s *streams, path string, cfg planner.Config) (m *planner.Model, own planner.Config, unknown []string, err error) {
	if !strings.HasSuffix(strings.ToLower(path), ".json") {
		m, unknown, err = s.openAny(path, &cfg)
		return m, cfg, unknown, err
	}
	m, own, err = s.openPlan(path, &cfg)
	return m, own, nil, err
}

// lacking warns of dimensions that one of two models lacks, and returns an error
// for one that both lack.
func (s *streams) lacking(dims map[string]int64, base, head []string) error {
	for _, name := range slices.Sorted(maps.Keys(dims)) {
		named := func(text string) bool { return strings.Contains(text, " has no dimension "+name+": ") }
		if i := slices.IndexFunc(base, named); i >= 0 && slices.ContainsFunc(head, named) {
			return errors.New("--dim: " + base[i])
		}
	}
	for _, text := range slices.Concat(base, head) {
		s.err.line("warning: --dim: %s", text)
	}
	return nil
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
	base, baseCfg, baseLacks, err := opened(s, o.base, cfg)
	if err != nil {
		return err
	}
	head, headCfg, headLacks, err := opened(s, o.head, cfg)
	if err != nil {
		return err
	}
	if err := s.lacking(cfg.Dims, baseLacks, headLacks); err != nil {
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
