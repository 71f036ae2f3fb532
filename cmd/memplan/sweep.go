package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/planner"
)

type sweepOptions struct {
	limitFlags
	file, dir, shard string
	outside, strict  bool
}

func newSweepCmd(s *streams, run func(context.Context, *streams, *sweepOptions) error) *cobra.Command {
	o := &sweepOptions{}
	c := &cobra.Command{
		Use:   "sweep <config file>",
		Short: "Answer many cases, one document each, as one of many jobs",
		Long: `sweep answers every case of a file like .memplan.yaml (a model with its settings, or
with a matrix of them) and writes the JSON document that analyze writes for it to a
folder, under a name made of all that the answer depends on. A case whose document
is there is not answered again, so a sweep goes on where it was stopped, and its
jobs may share a folder. Each job does a share: --shard, or what Slurm's arrays,
Kubernetes' indexed Jobs and torchrun tell it. A case that cannot be answered does
not stop the others: the exit code is 2 at the end.
memplan merge joins the documents; docs/sweep.md has scripts for schedulers.`,
		Example: `  memplan sweep cases.yaml -o answers
  memplan sweep cases.yaml -o answers --shard 3/16
  memplan merge answers --format csv`,
		Args:              exactly(1, "one configuration"),
		ValidArgsFunction: completeFiles(1, "yaml", "yml"),
		RunE: func(c *cobra.Command, args []string) error {
			o.file = args[0]
			return run(c.Context(), s, o)
		},
	}
	c.Flags().StringVarP(&o.dir, "output", "o", "memplan-sweep", "write the documents to this `FOLDER`")
	c.Flags().StringVar(&o.shard, "shard", "", "the share of this job, `I/N`, I from 0 or from 1; auto/N where the scheduler says I alone (default: what the scheduler says, or all)")
	noFiles(c, "shard")
	o.limitFlags.add(c, boundedRun)
	addOutside(c, &o.outside)
	addStrict(c, &o.strict)
	return c
}

func sweepRun(ctx context.Context, s *streams, o *sweepOptions) error {
	shard, err := ownShard(o.shard, os.Getenv)
	if err != nil {
		return err
	}
	f, err := planner.ReadConfigFile(o.file, o.outside)
	if err != nil {
		return err
	}
	f.Strict(o.strict)
	f.Memory = o.reading()
	w, err := f.NewSweep(version())
	if err != nil {
		return err
	}
	if err := listCases(o.dir, w); err != nil {
		return err
	}
	show, clear := s.progress(o.file)
	write := func(c *planner.Case, r *planner.Answer) error {
		var b bytes.Buffer
		if err := report.JSON(&b, r.Report); err != nil {
			return err
		}
		return files.Write(filepath.Join(o.dir, c.Document), b.Bytes())
	}
	ran, refused, err := f.Run(ctx, w, shard, func(c *planner.Case) bool { return c.Answered(o.dir) }, write, show)
	clear()
	if err != nil {
		return err
	}
	s.watch.disarm()
	for _, e := range refused {
		s.err.line("%s", e)
	}
	s.err.line("%s: %s of shard %d of %d answered now, in %s", o.file, report.Plural(ran, "case", "cases"), shard.Index, shard.Of, o.dir)
	if len(refused) > 0 {
		return fmt.Errorf("%s: %s could not be answered", o.file, report.Plural(len(refused), "case", "cases"))
	}
	return nil
}

// ownShard returns the share given by the flag, or by the scheduler, or all.
func ownShard(flag string, env func(string) string) (planner.Shard, error) {
	own, err := planner.SchedulersShard(env)
	switch {
	case flag != "":
		shard, err := planner.ParseShard(flag, own)
		if err != nil {
			return shard, fmt.Errorf("--%w", err)
		}
		return shard, nil
	case err != nil:
		return own, err
	case own.Index < 0:
		return planner.Shard{Index: 0, Of: 1}, nil
	case own.Of == 0:
		return own, errors.New("--shard: the scheduler says which job this is and not how many there are: give auto/N")
	}
	return own, nil
}

// listCases writes the list of cases, unless it exists.
func listCases(dir string, w *planner.Sweep) error {
	if err := files.Folder(dir); err != nil {
		return err
	}
	if w.Listed(dir) {
		return nil
	}
	var b bytes.Buffer
	if err := report.JSON(&b, w); err != nil {
		return err
	}
	return files.Write(filepath.Join(dir, planner.CasesFileName), b.Bytes())
}

type mergeOptions struct {
	outputFlags
	dir string
}

func newMergeCmd(s *streams, run func(context.Context, *streams, *mergeOptions) error) *cobra.Command {
	o := &mergeOptions{}
	c := &cobra.Command{
		Use:   "merge <folder>",
		Short: "One table of the documents that sweep wrote",
		Long: `merge joins the documents of a sweep in the order of its cases. Where some are
missing it says how many and exits with 2; a file (--output) gets what is there.`,
		Example: "  memplan merge answers\n  memplan merge answers --format csv -o answers.csv",
		Args:    exactly(1, "one folder"),
		RunE: func(c *cobra.Command, args []string) error {
			o.dir = args[0]
			return run(c.Context(), s, o)
		},
	}
	o.outputFlags.add(c, report.Names(report.Sweeps))
	return c
}

func mergeRun(_ context.Context, s *streams, o *mergeOptions) error {
	m, err := planner.Merge(o.dir)
	if err != nil {
		return err
	}
	if m.Missing == 0 || o.toFile() {
		if err := emit(s, &o.outputFlags, report.Sweeps, m); err != nil {
			return err
		}
	}
	if m.Missing > 0 {
		return fmt.Errorf("%s: %d of %s have no answer yet: run memplan sweep again", o.dir, m.Missing, report.Plural(len(m.Cases), "case", "cases"))
	}
	return nil
}
