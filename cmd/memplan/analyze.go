package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/cmd/memplan/timeline"
	"github.com/memplan/memplan/planner"
)

type analyzeOptions struct {
	modelFlags
	outputFlags
	path, timeline string
}

func newAnalyzeCmd(s *streams, run func(context.Context, *streams, *analyzeOptions) error) *cobra.Command {
	o := &analyzeOptions{}
	c := &cobra.Command{
		Use:   "analyze <model.onnx>",
		Short: "What one step needs, whether it fits, which batch and checkpoints",
		Long: `analyze says how much GPU memory one training step or inference of a model needs
and where each byte goes. With a budget (--vram or --gpu) it says whether it
fits; without --batch it finds the largest batch that does; and when the batch
asked for does not fit, it chooses the modules to checkpoint so that it does.`,
		Example: `  memplan analyze models/resnet50.onnx --vram 16G
  memplan analyze models/gpt2.onnx --batch 16 --precision amp-bf16
  memplan analyze models/vit_b_16.onnx --batch 256 --vram 16G --format json
  memplan analyze models/resnet50.onnx --batch 64 --timeline step.svg`,
		Args:              exactly(1, "one model file"),
		ValidArgsFunction: completeFiles(1, "onnx"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path = args[0]
			return run(c.Context(), s, o)
		},
	}
	o.modelFlags.add(c)
	o.limitFlags.add(c, boundedSearch)
	o.outputFlags.add(c, report.Names(report.Analyses))
	addTimeline(c, &o.timeline)
	return c
}

// addTimeline adds the flag that writes the events of the step.
func addTimeline(c *cobra.Command, at *string) {
	c.Flags().StringVar(at, "timeline", "", "write the steady step's events to `FILE`, which ends in "+timeline.Endings())
}

func analyzeRun(ctx context.Context, s *streams, o *analyzeOptions) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	if err := checkTimeline(o.timeline); err != nil {
		return err
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	m, err := s.open(o.path, &cfg)
	if err != nil {
		return err
	}
	r, err := analyzed(ctx, s, m, cfg)
	if err != nil {
		return err
	}
	if err := s.writeTimeline(r, o.timeline); err != nil {
		return err
	}
	chart := func(w io.Writer) error { return timeline.SVG(w, &timeline.Step{Stack: r.Stack()}) }
	if err := emit(s, &o.outputFlags, report.Analyses, &report.Analysis{Report: r.Report, Chart: chart, Step: r.View}); err != nil {
		return err
	}
	return answer(r.Fits)
}

// open opens a model for a question and checks that the question's selection
// was made for it.
func (s *streams) open(path string, cfg *planner.Config) (*planner.Model, error) {
	m, unknown, err := s.openAny(path, cfg)
	if err == nil && len(unknown) > 0 {
		err = errors.New("--dim: " + unknown[0])
	}
	if err == nil {
		err = m.Matches(cfg)
	}
	return m, err
}

// openAny opens a model for a question, whatever its selection was made for, and
// returns warnings of dimensions that the model lacks.
func (s *streams) openAny(path string, cfg *planner.Config) (*planner.Model, []string, error) {
	m, unknown, err := planner.OpenFor(path, cfg)
	if err != nil {
		return nil, nil, err
	}
	return m, unknown, s.keep(m.Files()...)
}

// analyzed answers a question about a model, showing progress if it takes long.
func analyzed(ctx context.Context, s *streams, m *planner.Model, cfg planner.Config) (*planner.Answer, error) {
	show, clear := s.progress(filepath.Base(m.Path))
	defer clear()
	m.Progress = show
	return m.Analyze(ctx, cfg)
}

// answer converts a report's answer to a command's.
func answer(fits *bool) error {
	if fits != nil && !*fits {
		return errNo
	}
	return nil
}

// checkTimeline returns an error for a file that no timeline can be written to,
// before anything else is done.
func checkTimeline(file string) error {
	if file == "" {
		return nil
	}
	if _, err := timeline.FormatOf(file); err != nil {
		return fmt.Errorf("--timeline %w", err)
	}
	return nil
}

// writeTimeline writes the events of the step that a report is about.
func (s *streams) writeTimeline(r *planner.Answer, file string) error {
	if file == "" {
		return nil
	}
	f, err := timeline.FormatOf(file)
	if err != nil {
		return err
	}
	step := &timeline.Step{Title: title(r.Report), Events: r.Timeline(), Before: r.Standing(), Stack: r.Stack()}
	var b bytes.Buffer
	if err := f.Write(&b, step); err != nil {
		return err
	}
	return s.writeFile(file, b.Bytes())
}

// title returns the title of a step's drawing.
func title(r *planner.Report) string {
	t := filepath.Base(r.Model.Path) + ", " + r.Config.Mode
	if r.Config.Batch > 0 {
		t += fmt.Sprintf(", batch %d", r.Config.Batch)
	}
	t += ", " + r.Config.Precision
	if r.Config.Mode == "train" {
		t += ", " + r.Config.Optimizer
	}
	return t
}
