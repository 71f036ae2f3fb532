package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate/snapshot"
)

type compareOptions struct {
	modelFlags
	outputFlags
	snapshot, plan string
	device         int
}

func newCompareCmd(s *streams, run func(context.Context, *streams, *compareOptions) error) *cobra.Command {
	o := &compareOptions{}
	c := &cobra.Command{
		Use:   "compare <snapshot.pickle> <plan.json>",
		Short: "Why a run's memory differs from a plan, from PyTorch's memory snapshot",
		Long: `compare reads a memory snapshot that PyTorch wrote, finds the plan's training step
in its history, and says by category, module and line of code what the run holds
at its peak that the plan does not, and the other way. A plan brings its own
configuration; a model in its place takes the flags. In the training script:

  torch.cuda.memory._record_memory_history(stacks="python")  # before the model
  ...                                                        # two steps or three
  torch.cuda.memory._dump_snapshot("snapshot.pickle")

It exits 1 where the run reserved more than the plan's upper bound. No code in the
file is run: a snapshot is plain data, and anything else is refused.`,
		Example: `  memplan compare snapshot.pickle plan.json
  memplan compare snapshot.pickle model.onnx --batch 32 --format json`,
		Args:              exactly(2, "a memory snapshot and a plan or model"),
		ValidArgsFunction: completeFiles(2, "pickle", "json", "onnx"),
		RunE: func(c *cobra.Command, args []string) error {
			o.snapshot, o.plan = args[0], args[1]
			return run(c.Context(), s, o)
		},
	}
	c.Flags().IntVar(&o.device, "snapshot-gpu", -1, "GPU `N` of the snapshot; -1: the one with the most memory")
	noFiles(c, "snapshot-gpu")
	o.modelFlags.add(c)
	o.limitFlags.add(c, boundedSearch)
	o.outputFlags.add(c, report.Names(report.Snapshots))
	return c
}

func snapshotRun(ctx context.Context, s *streams, o *compareOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	snap, err := snapshot.Read(o.snapshot, o.reading()/3)
	if err != nil {
		return err
	}
	m, cfg, unknown, err := opened(s, o.plan, cfg)
	if err != nil {
		return err
	}
	if len(unknown) > 0 {
		return errors.New("--dim: " + unknown[0])
	}
	show, clear := s.progress("compare")
	m.Progress = show
	a, err := m.Analyze(ctx, cfg)
	clear()
	if err != nil {
		return err
	}
	if a.Parallel != nil {
		return fmt.Errorf("%s is for several cards: compare a snapshot with a plan for one", o.plan)
	}
	return s.compared(o, snap, a)
}

// compared writes the comparison and returns the verdict.
func (s *streams) compared(o *compareOptions, snap *snapshot.Snapshot, a *planner.Answer) error {
	device := o.device
	if device < 0 {
		device = snap.Busiest()
	}
	c, err := snapshot.Compare(snap, device, a)
	if err != nil {
		return fmt.Errorf("%s: %w", o.snapshot, err)
	}
	c.Snapshot.Path, c.Plan.Path = o.snapshot, o.plan
	for _, w := range c.Warnings {
		s.err.line("warning: %s", w)
	}
	if err := emit(s, &o.outputFlags, report.Snapshots, c); err != nil {
		return err
	}
	if !c.Within {
		return errNo
	}
	return nil
}
