package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
)

type checkOptions struct {
	outputFlags
	limitFlags
	args    []string // the configuration, if given
	outside bool
	strict  bool
}

func newCheckCmd(s *streams, run func(context.Context, *streams, *checkOptions) error) *cobra.Command {
	o := &checkOptions{}
	c := &cobra.Command{
		Use:   "check [config file]",
		Short: "CI gate: budget and regression rules from .memplan.yaml",
		Long: `check applies the rules of .memplan.yaml (found upward from the working directory)
to its models, on a machine without a GPU. It exits 1 when a rule fails and 2
when one cannot tell, for instance for want of a baseline, or when a model cannot
be read; all models are looked at first.
memplan help config-file describes the file.`,
		Example:           "  memplan check\n  memplan check ci/.memplan.yaml --format markdown",
		Args:              atMost(1, "one configuration"),
		ValidArgsFunction: completeFiles(1, "yaml", "yml"),
		RunE: func(c *cobra.Command, args []string) error {
			o.args = args
			return run(c.Context(), s, o)
		},
	}
	o.limitFlags.add(c, boundedRun)
	o.outputFlags.add(c, report.Names(report.Gates))
	addOutside(c, &o.outside)
	addStrict(c, &o.strict)
	return c
}

// configFile reads the named file, or the one found upward.
func configFile(args []string, outside bool) (*planner.ConfigFile, error) {
	if len(args) == 1 {
		return planner.ReadConfigFile(args[0], outside)
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	path, err := planner.FindConfigFile(dir)
	if err != nil {
		return nil, err
	}
	if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) { // as the user knows it
		path = rel
	}
	return planner.ReadFoundConfigFile(path, outside)
}

func checkRun(ctx context.Context, s *streams, o *checkOptions) error {
	f, err := configFile(o.args, o.outside)
	if err != nil {
		return err
	}
	if err := s.keep(append(f.Files(), f.Baseline)...); err != nil {
		return err
	}
	f.Strict(o.strict)
	f.Memory = o.reading()
	show, clear := s.progress(f.Path)
	found, err := f.Check(ctx, show)
	clear()
	if err != nil {
		return err
	}
	g := &report.Gate{Path: f.Path, Findings: found}
	if n, reasons := g.Unknown(); n > 0 {
		return undecided(s, o, g, n, reasons)
	}
	if err := emit(s, &o.outputFlags, report.Gates, g); err != nil {
		return err
	}
	if g.Failed() > 0 {
		return errNo
	}
	return nil
}

// undecided reports on stderr what could not be determined, and what failed
// besides: a command without an answer prints no result. A file given by
// --output gets the whole report.
func undecided(s *streams, o *checkOptions, g *report.Gate, unknown int, reasons []string) error {
	if o.toFile() {
		if err := emit(s, &o.outputFlags, report.Gates, g); err != nil {
			return err
		}
	}
	failed := g.Failures()
	if len(reasons) == 1 && len(failed) == 0 {
		return errors.New(reasons[0])
	}
	for _, line := range slices.Concat(reasons, failed) {
		s.err.line("%s", line)
	}
	return fmt.Errorf("%s: %s, %d of %s cannot tell", g.Path, g.Outcome(), unknown, report.Plural(len(g.Findings), "rule", "rules"))
}

type baselineOptions struct {
	limitFlags
	file    string
	args    []string // the configuration, if given
	outside bool
	strict  bool
}

func newBaselineCmd(s *streams, run func(context.Context, *streams, *baselineOptions) error) *cobra.Command {
	o := &baselineOptions{}
	c := &cobra.Command{
		Use:   "baseline [config file]",
		Short: "Write the baseline that check compares with",
		Long: `baseline writes what each model of .memplan.yaml (found upward from the working
directory) needs now, to the file that the configuration names, in its own folder.
An existing file is replaced if it is a baseline, and otherwise left alone.`,
		Example:           "  memplan baseline && git add .memplan-baseline.json",
		Args:              atMost(1, "one configuration"),
		ValidArgsFunction: completeFiles(1, "yaml", "yml"),
		RunE: func(c *cobra.Command, args []string) error {
			o.args = args
			return run(c.Context(), s, o)
		},
	}
	addStrict(c, &o.strict)
	o.limitFlags.add(c, boundedRun)
	c.Flags().StringVarP(&o.file, "output", "o", "", "write to `FILE` (- is stdout) instead of the configuration's baseline")
	addOutside(c, &o.outside)
	return c
}

// baselines are the formats of baseline.
var baselines = []report.Format[*planner.Baseline]{
	report.AsJSON(report.Itself[*planner.Baseline]),
}

func baselineRun(ctx context.Context, s *streams, o *baselineOptions) error {
	f, err := configFile(o.args, o.outside)
	if err != nil {
		return err
	}
	if err := s.keep(f.Files()...); err != nil {
		return err
	}
	f.Strict(o.strict)
	f.Memory = o.reading()
	show, clear := s.progress(f.Path)
	b, err := f.NewBaseline(ctx, show)
	clear()
	if err != nil {
		return err
	}
	out := outputFlags{format: "json", file: o.file}
	if o.file != "" {
		err = emit(s, &out, baselines, b)
	} else {
		out.file = f.Baseline
		s.watch.disarm()
		err = replaceBaseline(f, b)
	}
	if err != nil || !out.toFile() {
		return err
	}
	s.err.line("wrote %s: %s", out.file, report.Plural(len(b.Models), "model", "models"))
	return nil
}

// replaceBaseline writes a baseline to the configuration's path for it.
func replaceBaseline(f *planner.ConfigFile, b *planner.Baseline) error {
	var data bytes.Buffer
	if err := report.JSON(&data, b); err != nil {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	return f.ReplaceBaseline(data.Bytes())
}
