// Command memplan plans the GPU memory of training and inference from an ONNX
// file, without running it. See `memplan help` and the README.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// The exit codes, the same for every command and format.
const (
	exitYes   = 0 // fits, no regression, validated
	exitNo    = 1 // does not fit, rule failed, prediction refuted
	exitError = 2 // could not tell: usage, unreadable model, no GPU
)

// errNo is returned by a command whose answer is no; its result is printed.
var errNo = errors.New("no")

// streams are where a command reads and writes.
type streams struct {
	out, err io.Writer
	color    bool // out takes colour
	tty      bool // err is a terminal: progress may be drawn
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes the command line and returns the exit code.
func run(args []string, out, errw io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	root := newRoot(&streams{out: out, err: errw, tty: isTerminal(errw)})
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errw)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return exitYes
	case errors.Is(err, errNo):
		return exitNo
	default:
		fmt.Fprintf(errw, "memplan: %v\n", err)
		return exitError
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colored decides about colour: the flag, then NO_COLOR, CLICOLOR_FORCE,
// CLICOLOR, then whether the output is a terminal.
func colored(flag string, w io.Writer) (bool, error) {
	env := func(k string) string { return os.Getenv(k) }
	switch {
	case flag == "always":
		return true, nil
	case flag == "never":
		return false, nil
	case flag != "auto":
		return false, fmt.Errorf("--color %q: want auto, always or never", flag)
	case env("NO_COLOR") != "":
		return false, nil
	case env("CLICOLOR_FORCE") != "" && env("CLICOLOR_FORCE") != "0":
		return true, nil
	case env("CLICOLOR") == "0" || env("TERM") == "dumb":
		return false, nil
	}
	return isTerminal(w), nil
}

func newRoot(s *streams) *cobra.Command {
	var color string
	root := &cobra.Command{
		Use:   "memplan <command>",
		Short: "Plan the GPU memory of a model before anything runs",
		Long: `memplan reads an ONNX model and says, before anything runs, how much GPU memory a
training step or an inference needs, operator by operator; which modules to
checkpoint and which batch to run for a memory budget; and gates model changes
in CI on machines without a GPU.`,
		Example: `  memplan analyze models/resnet50.onnx --vram 16G
  memplan plan models/gpt2.onnx --batch 48 --vram 16G -o plan.json
  memplan config plan.json --to torch`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			s.color, err = colored(color, s.out)
			return err
		},
	}
	root.PersistentFlags().StringVar(&color, "color", "auto", "colour: auto, always or never")
	root.AddCommand(newAnalyze(s), newPlan(s), newConfig(s), newCheck(s), newBaseline(s), newDiff(s), newShow(s), newList(s), newValidate(s), newVersion(s))
	for _, t := range topics {
		root.AddCommand(&cobra.Command{Use: t.name, Short: t.short, Long: t.text})
	}
	root.CompletionOptions.DisableDefaultCmd = false
	return root
}

// exactly is cobra.ExactArgs with an error that says what is missing.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s wants %s: see memplan %s --help", cmd.Name(), what, cmd.Name())
		}
		return nil
	}
}
