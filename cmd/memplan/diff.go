package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/planner"
)

type diffOptions struct {
	modelFlags
	outputFlags
	base, head string
	failAbove  string
}

func newDiffCmd(s *streams, run func(context.Context, *streams, *diffOptions) error) *cobra.Command {
	o := &diffOptions{}
	c := &cobra.Command{
		Use:   "diff <base> <head>",
		Short: "Two models, plans or folders: what changed, by category, module and operator",
		Long: `diff attributes the change of the allocated peak between two models to categories
and modules, exactly, and lists the operators that came, went or changed. A plan
brings its own configuration; a model takes the flags. git:REF:PATH is a model, a plan
or a folder as it was committed, PATH as git takes it: from the repository's root, or
with ./ from the working directory. Of two folders it compares the models and plans
that both have, by their paths within them, and names the others. --fail-above makes it
exit 1 when the peak of one, or of all together, grew by more.`,
		Example: `  memplan diff old.onnx new.onnx --batch 32
  memplan diff git:main:model.onnx model.onnx --batch 32 --fail-above 2%
  memplan diff git:main:models models --batch 32
  memplan diff base-plan.json head-plan.json --format markdown`,
		Args:              exactly(2, "two models, plans or folders"),
		ValidArgsFunction: completeFiles(2, "onnx", "json"),
		RunE: func(c *cobra.Command, args []string) error {
			o.base, o.head = args[0], args[1]
			return run(c.Context(), s, o)
		},
	}
	o.modelFlags.add(c)
	o.limitFlags.add(c, boundedSearch)
	o.outputFlags.add(c, report.Names(report.Diffs))
	c.Flags().StringVar(&o.failAbove, "fail-above", "", "exit 1 if the allocated peak grows by more than `GROWTH`, 2% or 100M")
	noFiles(c, "fail-above")
	return c
}

// fromGit returns the file that an argument names, a copy if it lies in git. The
// copy lasts until remove is called.
func fromGit(ctx context.Context, arg string) (file string, remove func(), err error) {
	spec, ok := strings.CutPrefix(arg, "git:")
	switch {
	case !ok:
		return arg, func() {}, nil
	case strings.HasSuffix(strings.ToLower(spec), ".json"):
		return files.CommittedPlan(ctx, spec, planner.ModelOfPlan)
	}
	return files.Committed(ctx, spec)
}

// openedSide opens a side, which keeps the name that it was given.
func openedSide(ctx context.Context, s *streams, arg string, cfg planner.Config) (m *planner.Model, own planner.Config, unknown []string, remove func(), err error) {
	file, remove, err := fromGit(ctx, arg)
	if err != nil {
		return nil, cfg, nil, nil, err
	}
	m, own, unknown, err = opened(s, file, cfg)
	if err != nil {
		remove()
		if file != arg {
			err = errors.New(strings.ReplaceAll(err.Error(), file, arg))
		}
		return nil, own, nil, nil, err
	}
	if file != arg {
		m.Path = arg
	}
	return m, own, unknown, remove, nil
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
	limit, err := o.limit()
	if err != nil {
		return err
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	if tree, err := trees(ctx, s, o, cfg, limit); tree {
		return err
	}
	d, err := compared(ctx, s, o.base, o.head, cfg)
	if err != nil {
		return err
	}
	if err := emit(s, &o.outputFlags, report.Diffs, d); err != nil {
		return err
	}
	if limit != nil && limit.Exceeded(d) {
		s.err.line("the allocated peak grows by more than --fail-above %s", limit)
		return errNo
	}
	return nil
}

// compared compares two models or plans.
func compared(ctx context.Context, s *streams, from, to string, cfg planner.Config) (*planner.Diff, error) {
	base, baseCfg, baseLacks, removeBase, err := openedSide(ctx, s, from, cfg)
	if err != nil {
		return nil, err
	}
	defer removeBase()
	head, headCfg, headLacks, removeHead, err := openedSide(ctx, s, to, cfg)
	if err != nil {
		return nil, err
	}
	defer removeHead()
	if err := s.lacking(cfg.Dims, baseLacks, headLacks); err != nil {
		return nil, err
	}
	if err := base.Matches(&cfg); err != nil && head.Matches(&cfg) != nil { // both models can have it, and it was made for one of them
		return nil, err
	}
	show, clear := s.progress("diff")
	base.Progress, head.Progress = show, show
	d, err := planner.Compare(ctx, base, head, baseCfg, headCfg)
	clear()
	return d, err
}

// limit returns --fail-above, nil if it was not given.
func (o *diffOptions) limit() (*planner.Growth, error) {
	if o.failAbove == "" {
		return nil, nil
	}
	g, err := planner.ParseGrowth(o.failAbove)
	if err != nil {
		return nil, fmt.Errorf("--fail-above: %w", err)
	}
	return g, nil
}
