package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/planner"
)

type planOptions struct {
	modelFlags
	outputFlags
	path string
	gpus int
}

// meshPlans are the formats of plan --gpus.
var meshPlans = []report.Format[*planner.MeshPlan]{
	report.AsJSON(report.Itself[*planner.MeshPlan]),
}

// plans are the formats of plan.
var plans = []report.Format[*planner.Plan]{
	report.AsJSON(report.Itself[*planner.Plan]),
}

func newPlanCmd(s *streams, run func(context.Context, *streams, *planOptions) error) *cobra.Command {
	o := &planOptions{}
	c := &cobra.Command{
		Use:   "plan <model.onnx>",
		Short: "The same search as analyze; writes the Plan document",
		Long: `plan answers the question that analyze answers and writes the answer as a
document, for config, check, diff and validate to read. The document also says
where every buffer of the step lies in one arena, for an executor.

With --gpus N it predicts the meshes of up to N cards instead and names the smallest
that fits and the one of the most samples per second; --batch is each rank's. A mesh
whose cards have less than its share of parameters, gradients, optimizer and what
blocks gather is ruled out with that bound ("> 132.7 GiB"), not replayed. --batch best
gives each mesh the batch of its most samples per second among 1, 2, 3, 4, 6, 8, 12, ...
Meshes have no checkpoints or every module's; --checkpoint auto selects those of
meshes that may then be the fastest.`,
		Example: `  memplan plan models/gpt2.onnx --batch 48 --vram 16G -o plan.json
  memplan plan llama.onnx --gpus 8 --gpu h100 --precision bf16 --batch best
  memplan config plan.json --to torch`,
		Args:              exactly(1, "one model file"),
		ValidArgsFunction: completeFiles(1, "onnx"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path = args[0]
			return run(c.Context(), s, o)
		},
	}
	o.modelFlags.add(c)
	o.limitFlags.add(c, boundedSearch)
	o.outputFlags.add(c, report.Names(plans))
	c.Flags().IntVar(&o.gpus, "gpus", 0, "choose the mesh for up to `N` cards of --gpu")
	noFiles(c, "gpus")
	return c
}

// meshRun answers plan --gpus: the document, and a table of it on stderr.
func meshRun(ctx context.Context, s *streams, o *planOptions, m *planner.Model, cfg planner.Config) error {
	show, clear := s.progress(filepath.Base(m.Path))
	m.Progress = show
	p, err := m.Meshes(ctx, cfg, o.gpus)
	clear()
	if err != nil {
		return err
	}
	if err := emit(s, &o.outputFlags, meshPlans, p); err != nil {
		return err
	}
	for _, line := range report.MeshTable(p) {
		s.err.line("%s", line)
	}
	fits := p.Smallest != ""
	return answer(&fits)
}

func planRun(ctx context.Context, s *streams, o *planOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	m, err := s.open(o.path, &cfg)
	if err != nil {
		return err
	}
	if o.gpus != 0 {
		return meshRun(ctx, s, o, m, cfg)
	}
	p, err := planned(ctx, s, m, cfg)
	if err != nil {
		return err
	}
	if err := emit(s, &o.outputFlags, plans, p); err != nil {
		return err
	}
	s.err.line("%s", report.Verdict(&p.Report))
	return answer(p.Fits)
}

// planned returns the plan of a question about a model, showing progress if it
// takes long. Without a budget it checkpoints only what was asked for.
func planned(ctx context.Context, s *streams, m *planner.Model, cfg planner.Config) (*planner.Plan, error) {
	if cfg.VRAM == 0 && cfg.GPU == "" && cfg.Checkpoint == "" {
		cfg.Checkpoint = "none"
	}
	show, clear := s.progress(filepath.Base(m.Path))
	defer clear()
	m.Progress = show
	return m.Plan(ctx, cfg)
}

type configOptions struct {
	outputFlags
	limitFlags
	path, to string
	outside  bool
}

// configs are the formats of config.
var configs = []report.Format[*planner.TorchConfig]{
	report.AsJSON(report.Itself[*planner.TorchConfig]),
}

func newConfigCmd(s *streams, run func(context.Context, *streams, *configOptions) error) *cobra.Command {
	o := &configOptions{}
	c := &cobra.Command{
		Use:   "config <plan.json>",
		Short: "Checkpoint configuration for a training framework",
		Long: `config writes what a plan checkpoints as a configuration that a training script
or framework applies.

  torch          each entry is one checkpointed region, its modules run one after
                 the other, named as in named_modules(). An entry whose modules lie
                 in those of one before it is nested in that. memplan help torch
                 says how a script applies the file
` + frameworkHelp() + `
Most frameworks can checkpoint less than a plan asks for: config looks for the fastest
of its settings with which the step still fits, and says on stderr how much more time
that takes than the plan, and how much higher it peaks. For that it reads the plan's
model again. Where no setting fits it is an error. A plan that does not fit is no
configuration: exit 1, and nothing is written. memplan help frameworks has what each
can do, and which of its keys --config reads.`,
		Example: `  memplan config plan.json --to torch -o checkpoint.json
  memplan config plan.json --to huggingface`,
		Args:              exactly(1, "one plan, as memplan plan writes it"),
		ValidArgsFunction: completeFiles(1, "json"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path = args[0]
			return run(c.Context(), s, o)
		},
	}
	names := planner.FrameworkNames()
	addEnum(c, c.Flags(), &o.to, "to", names[0], "`FRAMEWORK`", names, nil)
	o.limitFlags.add(c, boundedRun)
	o.outputFlags.add(c, report.Names(configs))
	addOutside(c, &o.outside)
	return c
}

// frameworkHelp lists the frameworks after the first.
func frameworkHelp() string {
	var b strings.Builder
	for _, f := range planner.Frameworks[1:] {
		fmt.Fprintf(&b, "  %-14s %s, %s\n", f.Name, f.Doc, formName(f.Form))
	}
	return b.String()
}

func configRun(ctx context.Context, s *streams, o *configOptions) (err error) {
	p, err := planner.ReadPlan(o.path)
	if err != nil {
		return err
	}
	defer func() {
		if list := p.InScript(); err == nil && len(list) > 0 {
			s.err.line("the plan holds if the script does more than is written: %s", strings.Join(list, "; "))
		}
	}()
	if p.Fits != nil && !*p.Fits {
		s.err.line("%s: %s: nothing to apply; ask for a smaller --batch or a larger --vram", o.path, report.Verdict(&p.Report))
		return errNo
	}
	f := planner.FindFramework(o.to)
	if !f.Any() {
		return expressed(ctx, s, o, p, f)
	}
	if err := whole(s, o, p, f); err != nil {
		return err
	}
	s.err.line("%s", planner.Unchanged(p, f))
	return nil
}

// whole writes a plan for a framework that can apply every plan.
func whole(s *streams, o *configOptions, p *planner.Plan, f *planner.Framework) error {
	if f.Name == planner.Frameworks[0].Name {
		t, err := p.ToTorch()
		if err != nil {
			return fmt.Errorf("%s: %w", o.path, err)
		}
		return emit(s, &o.outputFlags, configs, t)
	}
	data, err := f.Whole(p)
	if err != nil {
		return fmt.Errorf("%s: %w", o.path, err)
	}
	return o.write(s, data)
}

// expressed writes the best configuration of a framework for a plan.
func expressed(ctx context.Context, s *streams, o *configOptions, p *planner.Plan, f *planner.Framework) error {
	m, q, err := planner.OpenPlan(o.path, o.outside, onnx.Within(o.reading()))
	if err != nil {
		return err
	}
	if err := s.keep(m.Files()...); err != nil {
		return err
	}
	_, clear := s.progress(f.Name)
	e, err := m.Express(ctx, p, q, f)
	clear()
	if err != nil {
		return fmt.Errorf("%s: %w", o.path, err)
	}
	data, err := e.Config()
	if err != nil {
		return fmt.Errorf("%s: %w", o.path, err)
	}
	if err := o.write(s, data); err != nil {
		return err
	}
	s.err.line("%s", e.Verdict())
	return nil
}
