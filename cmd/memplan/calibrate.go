package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/planner/profile"
	"github.com/memplan/memplan/quote"
)

type calibrateOptions struct {
	limitFlags
	python, file string
}

func newCalibrateCmd(s *streams, run func(*cobra.Command, *streams, *calibrateOptions) error) *cobra.Command {
	o := &calibrateOptions{}
	c := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure a runtime profile on this machine",
		Long: `calibrate runs a small Python script on this machine's GPU, with the torch that is
installed there, and writes what it measured: the card's memory and rates, the
CUDA context, the libraries' workspaces, the choice of attention kernels. Other
commands take the file as --runtime FILE and --gpu FILE. It needs a few seconds
and 2 GiB of the card's memory, which nothing else should use meanwhile.`,
		Example: "  memplan calibrate -o gpu.json\n  memplan analyze model.onnx --batch 8 --gpu gpu.json --runtime gpu.json",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return run(c, s, o) },
	}
	o.limitFlags.add(c, boundedRun)
	c.Flags().StringVar(&o.python, "python", "python3", "the interpreter `PROGRAM`, which has torch")
	c.Flags().StringVarP(&o.file, "output", "o", "", "write the profile to `FILE` instead of stdout")
	_ = c.RegisterFlagCompletionFunc("python", cobra.NoFileCompletions) // fails only for a flag that does not exist
	return c
}

func calibrateRun(c *cobra.Command, s *streams, o *calibrateOptions) error {
	s.err.line("measuring; this takes a few seconds")
	cmd := exec.CommandContext(c.Context(), o.python, "-")
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(profile.CalibrateScript), &out, &errs
	if err := cmd.Run(); err != nil {
		if e := new(exec.ExitError); !errors.As(err, &e) {
			return fmt.Errorf("%w: give the interpreter that has torch with --python", err)
		}
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		if lines[0] == "" {
			return fmt.Errorf("%s: %w, and it says nothing: give the interpreter that has torch with --python", o.python, err)
		}
		return fmt.Errorf("%s: %s", o.python, lines[len(lines)-1])
	}
	cal, err := profile.ParseCalibration(out.Bytes())
	if err != nil {
		return fmt.Errorf("what the script printed is %w", err)
	}
	if r, known := cal.Runtime(); !known {
		s.err.line("warning: %s is not among the releases memplan knows: the allocator of %s is assumed", r.Name, profile.Runtimes[0].Name)
	}
	return (&outputFlags{file: o.file}).write(s, quote.JSON(out.Bytes()))
}
