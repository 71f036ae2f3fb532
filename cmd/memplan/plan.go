package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/planner"
)

func newPlan(s *streams) *cobra.Command {
	var f modelFlags
	var o output
	cmd := &cobra.Command{
		Use:   "plan <model.onnx>",
		Short: "The same search as analyze; writes the Plan document",
		Example: `  memplan plan models/gpt2.onnx --batch 48 --vram 16G -o plan.json
  memplan config plan.json --to torch`,
		Args: exactly(1, "one model file"),
		RunE: func(cmd *cobra.Command, args []string) error { return runPlan(cmd.Context(), s, args[0], &f, &o) },
	}
	f.add(cmd)
	o.add(cmd, "json")
	return cmd
}

func runPlan(ctx context.Context, s *streams, path string, f *modelFlags, o *output) error {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	if cfg.VRAM == 0 && cfg.GPU == "" && cfg.Checkpoint == "" {
		cfg.Checkpoint = "none"
	}
	ctx, cancel := withTimeout(ctx, f.timeout)
	defer cancel()
	m, err := planner.Open(path)
	if err != nil {
		return err
	}
	p, err := m.Plan(ctx, cfg)
	if err != nil {
		return err
	}
	data, err := jsonBytes(p)
	if err != nil {
		return err
	}
	if err := o.write(s, data); err != nil {
		return err
	}
	fmt.Fprintln(s.err, verdict(&p.Report))
	if p.Fits != nil && !*p.Fits {
		return errNo
	}
	return nil
}

func newConfig(s *streams) *cobra.Command {
	var o output
	var to string
	cmd := &cobra.Command{
		Use:     "config <plan.json>",
		Short:   "Checkpoint configuration for a training framework",
		Example: "  memplan config plan.json --to torch -o checkpoint.json",
		Args:    exactly(1, "one plan, as memplan plan writes it"),
		RunE: func(_ *cobra.Command, args []string) error {
			if !slices.Contains(planner.Frameworks, to) {
				return fmt.Errorf("--to %q: want one of %s", to, strings.Join(planner.Frameworks, ", "))
			}
			p, err := planner.ReadPlan(args[0])
			if err != nil {
				return err
			}
			data, err := jsonBytes(p.ToTorch())
			if err != nil {
				return err
			}
			return o.write(s, data)
		},
	}
	cmd.Flags().StringVar(&to, "to", "torch", "framework: "+strings.Join(planner.Frameworks, "|"))
	o.add(cmd, "json")
	return cmd
}

// cudaHint is what validate answers in a build without CUDA.
const cudaHint = "built without CUDA; build with: go install -tags cuda github.com/memplan/memplan/cmd/memplan"

func newValidate(_ *streams) *cobra.Command {
	var device, capSize string
	cmd := &cobra.Command{
		Use:   "validate <plan.json|model.onnx>",
		Short: "Run it on a device, predicted against measured",
		Args:  exactly(1, "one plan or model file"),
		RunE:  func(*cobra.Command, []string) error { return errors.New(cudaHint) },
	}
	cmd.Flags().StringVar(&device, "device", "cuda", "device: cuda|cpu")
	cmd.Flags().StringVar(&capSize, "cap", "", "take no more than `SIZE` of the device's memory")
	return cmd
}
