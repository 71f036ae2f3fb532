package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/planner"
)

func newAnalyze(s *streams) *cobra.Command {
	var f modelFlags
	var o output
	var timeline string
	cmd := &cobra.Command{
		Use:   "analyze <model.onnx>",
		Short: "What one step needs, whether it fits, which batch and checkpoints for a budget",
		Long: `analyze says how much GPU memory one training step or inference of a model needs
and where each byte goes. With a budget (--vram or --gpu) it says whether it
fits; without --batch it finds the largest batch that does; and when the batch
asked for does not fit, it chooses the modules to checkpoint so that it does.`,
		Example: `  memplan analyze models/resnet50.onnx --vram 16G
  memplan analyze models/gpt2.onnx --batch 16 --precision amp-bf16
  memplan analyze models/vit_b_16.onnx --batch 256 --vram 16G --format json`,
		Args: exactly(1, "one model file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAnalyze(cmd.Context(), s, args[0], &f, &o, timeline)
		},
	}
	f.add(cmd)
	o.add(cmd, "text", "json", "markdown", "html")
	cmd.Flags().StringVar(&timeline, "timeline", "", "write the steady step's events to `FILE`: .json, .csv or .svg")
	return cmd
}

func runAnalyze(ctx context.Context, s *streams, path string, f *modelFlags, o *output, timeline string) error {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(ctx, f.timeout)
	defer cancel()
	m, err := planner.Open(path)
	if err != nil {
		return err
	}
	r, err := m.Analyze(ctx, cfg)
	if err != nil {
		return err
	}
	data, err := renderReport(s, r, o)
	if err != nil {
		return err
	}
	if timeline != "" {
		if err := writeTimeline(m, cfg, r, timeline); err != nil {
			return err
		}
	}
	if err := o.write(s, data); err != nil {
		return err
	}
	if r.Fits != nil && !*r.Fits {
		return errNo
	}
	return nil
}

// withTimeout bounds a search; 0 is no bound.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

func renderReport(s *streams, r *planner.Report, o *output) ([]byte, error) {
	if o.format == "json" {
		return jsonBytes(r)
	}
	var b bytes.Buffer
	switch o.format {
	case "markdown":
		markdownReport(&b, r)
	case "html":
		htmlReport(&b, r)
	default:
		textReport(&b, r, s.color && o.file == "")
	}
	return b.Bytes(), nil
}

// timelineFormats maps a file's ending to its writer.
var timelineFormats = []struct {
	ending string
	write  func(w io.Writer, evs []planner.TimelineEvent) error
}{
	{".json", timelineJSON}, {".csv", timelineCSV}, {".svg", timelineSVG},
}

// writeTimeline writes the events of the step that the report is about.
func writeTimeline(m *planner.Model, cfg planner.Config, r *planner.Report, file string) error {
	for _, f := range timelineFormats {
		if strings.EqualFold(filepath.Ext(file), f.ending) {
			cfg.Batch, cfg.BatchMax = r.Config.Batch, false
			if r.Checkpoint != nil {
				cfg.Segments = r.Checkpoint.Segments
			}
			evs, err := m.Timeline(cfg)
			if err != nil {
				return err
			}
			var b bytes.Buffer
			if err := f.write(&b, evs); err != nil {
				return err
			}
			return writeAtomic(file, b.Bytes())
		}
	}
	return fmt.Errorf("--timeline %s: the ending decides the format: .json, .csv or .svg", file)
}

func timelineJSON(w io.Writer, evs []planner.TimelineEvent) error {
	data, err := jsonBytes(struct {
		SchemaVersion int                     `json:"schemaVersion"`
		Events        []planner.TimelineEvent `json:"events"`
	}{planner.SchemaVersion, evs})
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}

func timelineCSV(w io.Writer, evs []planner.TimelineEvent) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"phase", "kind", "id", "bytes", "op", "node", "module"})
	for _, e := range evs {
		_ = c.Write([]string{e.Phase, e.Kind, strconv.FormatInt(e.ID, 10), strconv.FormatInt(e.Bytes, 10), e.Op, e.Node, e.Module})
	}
	c.Flush()
	return c.Error()
}
