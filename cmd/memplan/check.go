package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
)

type checkOptions struct {
	outputFlags
	strict bool
	args   []string // the configuration, if it is named
}

func newCheckCmd(s *streams, run func(context.Context, *streams, *checkOptions) error) *cobra.Command {
	o := &checkOptions{}
	c := &cobra.Command{
		Use:   "check [config file]",
		Short: "CI gate: budget and regression rules from .memplan.yaml",
		Long: `check applies the rules of .memplan.yaml (found upward from the working directory)
to its models, on a machine without a GPU. It exits 1 when a rule fails and 2
when one cannot tell, for instance for want of a baseline.
memplan help config-file describes the file.`,
		Example:           "  memplan check\n  memplan check ci/.memplan.yaml --format markdown",
		Args:              atMost(1, "one configuration"),
		ValidArgsFunction: completeFiles(1, "yaml", "yml"),
		RunE: func(c *cobra.Command, args []string) error {
			o.args = args
			return run(c.Context(), s, o)
		},
	}
	o.outputFlags.add(c, report.Names(report.Gates))
	addStrict(c, &o.strict)
	return c
}

// configFile reads the file named, or the one found upward.
func configFile(args []string) (*planner.ConfigFile, error) {
	if len(args) == 1 {
		return planner.ReadConfigFile(args[0])
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	path, err := planner.FindConfigFile(dir)
	if err != nil {
		return nil, err
	}
	return planner.ReadConfigFile(path)
}

func checkRun(ctx context.Context, s *streams, o *checkOptions) error {
	f, err := configFile(o.args)
	if err != nil {
		return err
	}
	f.Strict(o.strict)
	_, clear := s.progress(f.Path)
	found, err := f.Check(ctx)
	clear()
	if err != nil {
		return err
	}
	for i := range found {
		if v := &found[i]; v.OK == nil {
			return fmt.Errorf("%s:%d: %s: rule %s cannot tell: %s", f.Path, v.Line, v.Model, v.Rule, v.Message)
		}
	}
	g := &report.Gate{Path: f.Path, Findings: found}
	if err := emit(s, &o.outputFlags, report.Gates, g); err != nil {
		return err
	}
	if g.Failed() > 0 {
		return errNo
	}
	return nil
}

type baselineOptions struct {
	file string
	args []string // the configuration, if it is named
}

func newBaselineCmd(s *streams, run func(context.Context, *streams, *baselineOptions) error) *cobra.Command {
	o := &baselineOptions{}
	c := &cobra.Command{
		Use:               "baseline [config file]",
		Short:             "Write the baseline that check compares with",
		Example:           "  memplan baseline && git add .memplan-baseline.json",
		Args:              atMost(1, "one configuration"),
		ValidArgsFunction: completeFiles(1, "yaml", "yml"),
		RunE: func(c *cobra.Command, args []string) error {
			o.args = args
			return run(c.Context(), s, o)
		},
	}
	c.Flags().StringVarP(&o.file, "output", "o", "", "write to `FILE` (- is stdout) instead of the configuration's baseline")
	return c
}

// baselines are the formats of baseline.
var baselines = []report.Format[*planner.Baseline]{
	{Name: "json", Write: func(w io.Writer, b *planner.Baseline, _ report.Style) error { return report.JSON(w, b) }},
}

func baselineRun(ctx context.Context, s *streams, o *baselineOptions) error {
	f, err := configFile(o.args)
	if err != nil {
		return err
	}
	_, clear := s.progress(f.Path)
	b, err := f.NewBaseline(ctx)
	clear()
	if err != nil {
		return err
	}
	out := outputFlags{format: "json", file: o.file}
	if o.file == "" {
		out.file = f.Baseline
	}
	if err := emit(s, &out, baselines, b); err != nil || !out.toFile() {
		return err
	}
	fmt.Fprintf(s.err, "wrote %s: %s\n", out.file, report.Plural(len(b.Models), "model", "models"))
	return nil
}
