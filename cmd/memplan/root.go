package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/quote"
)

// The groups of commands in help.
const (
	groupPlan = "plan"
	groupGate = "gate"
	groupMore = "more"
)

func newRootCmd(s *streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "memplan <command>",
		Short: "Plan the GPU memory of a model before anything runs",
		Long: `memplan reads an ONNX model and says, before anything runs, how much GPU memory a
training step or an inference needs, operator by operator; which modules to
checkpoint and which batch to run for a memory budget; and gates model changes
in CI on machines without a GPU.`,
		Example: `  memplan analyze models/resnet50.onnx --vram 16G
  memplan plan models/gpt2.onnx --batch 48 --vram 16G -o plan.json
  memplan config plan.json --to torch
  memplan check`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.Version = version()
	root.SetVersionTemplate(versionLine())
	root.Args = cobra.ArbitraryArgs
	root.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(c, args[0])
		}
		return c.Help()
	}
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		if err := emptyValue(c); err != nil {
			return err
		}
		l, err := limitsOf(c)
		if err != nil {
			return err
		}
		s.watch.start(l)
		return s.spare(c, args)
	}
	root.SetOut(s.out)
	root.SetErr(quote.NewWriter(s.err.w))
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(func(c *cobra.Command) error { return usage(c.OutOrStdout(), c) })
	addEnum(root, root.PersistentFlags(), &s.color, "color", "auto", "colour `WHEN`", colors, nil)
	root.AddGroup(&cobra.Group{ID: groupPlan, Title: "Plan"}, &cobra.Group{ID: groupGate, Title: "Gate changes"}, &cobra.Group{ID: groupMore, Title: "Look inside"})
	for _, c := range []struct {
		group string
		cmd   *cobra.Command
	}{
		{groupPlan, newAnalyzeCmd(s, analyzeRun)}, {groupPlan, newPlanCmd(s, planRun)}, {groupPlan, newConfigCmd(s, configRun)}, {groupPlan, newValidateCmd(s, validateWith)}, {groupPlan, newMonitorCmd(s, monitorRun)}, {groupPlan, newCompareCmd(s, snapshotRun)}, {groupPlan, newSweepCmd(s, sweepRun)}, {groupPlan, newMergeCmd(s, mergeRun)},
		{groupGate, newCheckCmd(s, checkRun)}, {groupGate, newBaselineCmd(s, baselineRun)}, {groupGate, newDiffCmd(s, diffRun)},
		{groupMore, newShowCmd(s, showRun)}, {groupMore, newSolveCmd(s)}, {groupMore, newListCmd(s, listRun)}, {groupMore, newCalibrateCmd(s, calibrateRun)}, {groupMore, newVersionCmd(s)}, {groupMore, newCompletionCmd(s)}, {groupMore, newManCmd(s)},
	} {
		c.cmd.GroupID = c.group
		root.AddCommand(c.cmd)
	}
	for i := range topics {
		root.AddCommand(&cobra.Command{Use: topics[i].name, Short: topics[i].short, Long: topics[i].text})
	}
	root.SetHelpCommandGroupID(groupMore)
	root.SetHelpCommand(newHelpCmd(root))
	fill(root)
	return root
}

// newHelpCmd is cobra's help, except that an unknown topic is an error.
func newHelpCmd(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command or topic]",
		Short: "Help on a command or a topic",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return helpNames(root), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("no help on %q%s", strings.Join(args, " "), suggestion(args[0], helpNames(root), "memplan help lists commands and topics"))
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

func helpNames(root *cobra.Command) []string {
	var out []string
	for _, c := range root.Commands() {
		out = append(out, c.Name())
	}
	return out
}

// suggestion continues an error: with the intended name, or with what else to
// do.
func suggestion(name string, known []string, otherwise string) string {
	if near := planner.Nearest(name, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return ": " + otherwise
}

func unknownCommand(root *cobra.Command, name string) error {
	if strings.HasSuffix(name, ".onnx") {
		return fmt.Errorf("unknown command %q: did you mean memplan analyze %s?", name, name)
	}
	return fmt.Errorf("unknown command %q%s", name, suggestion(name, helpNames(root), "memplan help lists the commands"))
}

// flagError explains an error of a flag and what to do.
func flagError(c *cobra.Command, err error) error {
	if c == c.Root() && c.Flags().NArg() > 0 { // there is no command, so its flags are unknown, too
		return unknownCommand(c, c.Flags().Arg(0))
	}
	see := "see " + c.CommandPath() + " --help"
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		near := planner.Nearest(unknown.GetSpecifiedName(), known)
		if near != "" {
			return fmt.Errorf("unknown flag --%s: did you mean --%s?", unknown.GetSpecifiedName(), near)
		}
		return fmt.Errorf("unknown flag --%s: %s", unknown.GetSpecifiedName(), see)
	case errors.As(err, &invalid):
		return valueError("--"+invalid.GetFlag().Name, invalid)
	case errors.As(err, &missing):
		return fmt.Errorf("--%s needs a value: %s", missing.GetFlag().Name, see)
	}
	return fmt.Errorf("%w: %s", err, see)
}

// valueError says what a flag, or the key that sets it, wants instead of a value,
// which stands in the message once.
func valueError(name string, err error) error {
	invalid := (*pflag.InvalidValueError)(nil)
	if !errors.As(err, &invalid) {
		return fmt.Errorf("%s: %w", name, err)
	}
	value := fmt.Sprintf("%q", invalid.GetValue())
	if want := wanted[invalid.GetFlag().Value.Type()]; want != "" {
		return fmt.Errorf("%s %s: want %s", name, value, want)
	}
	err = errors.Unwrap(invalid)
	if strings.Contains(err.Error(), value) {
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("%s %s: %w", name, value, err)
}

// emptyValue returns the error of a flag with an empty value, as from an unset
// variable of a script: that differs from omitting the flag.
func emptyValue(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if _, ok := f.Annotations[mayBeEmpty]; err == nil && !ok && f.Value.Type() == "string" && f.Value.String() == "" {
			err = fmt.Errorf("--%s \"\": give it a value or leave it out: see %s --help", f.Name, c.CommandPath())
		}
	})
	return err
}

// wanted describes the values of flags by type, if cobra's own errors do not.
var wanted = map[string]string{"int": "a whole number", "float64": "a number", "duration": "a duration such as 30s or 2m"}

// exactly is cobra.ExactArgs with an error that names the missing arguments.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			if err := swallowed(c); err != nil {
				return err
			}
			return fmt.Errorf("%s wants %s, not %s: see %s --help", ownPath(c), what, report.Plural(len(args), "argument", "arguments"), c.CommandPath())
		}
		return nil
	}
}

// swallowed returns the error of a flag without a value that took the next flag for
// one, so that what belongs to that is left over: --timeline --batch 2.
func swallowed(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		name, _, _ := strings.Cut(strings.TrimPrefix(f.Value.String(), "--"), "=")
		if text := f.Value.String(); err == nil && strings.HasPrefix(text, "--") && c.Flags().Lookup(name) != nil {
			err = fmt.Errorf("--%s needs a value, and took %q for it: see %s --help", f.Name, text, c.CommandPath())
		}
	})
	return err
}

// ownPath returns the name of a command without the program's.
func ownPath(c *cobra.Command) string {
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
}

// atMost is cobra.MaximumNArgs with such an error.
func atMost(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			if err := swallowed(c); err != nil {
				return err
			}
			return fmt.Errorf("%s wants at most %s, not %s: see %s --help", ownPath(c), what, report.Plural(len(args), "argument", "arguments"), c.CommandPath())
		}
		return nil
	}
}
