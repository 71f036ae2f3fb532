package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
)

// An enumValue is a flag whose value is one of some names. Help and completion
// show them, and a name is checked before any file is read.
type enumValue struct {
	at   *string
	find func(name string) error
}

// String implements pflag.Value.
func (e *enumValue) String() string { return *e.at }

// Type implements pflag.Value.
func (e *enumValue) Type() string { return "name" }

// Set implements pflag.Value.
func (e *enumValue) Set(s string) error {
	if err := e.find(s); err != nil {
		return err
	}
	*e.at = s
	return nil
}

// addEnum adds a flag whose value is one of values. find, if not nil, decides
// which names are valid, aliases included.
func addEnum(c *cobra.Command, flags *pflag.FlagSet, at *string, name, standard, doc string, values []string, find func(string) error) {
	*at = standard
	if find == nil {
		find = func(s string) error { return oneOf(s, values) }
	}
	f := flags.VarPF(&enumValue{at, find}, name, "", doc+choices(name, values))
	f.DefValue = standard
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that does not exist
}

// meant are names that people give, which resemble none or the wrong one.
var meant = map[string]string{"gpu": "cuda", "nvidia": "cuda", "pytorch": "torch", "hf": "huggingface", "transformers": "huggingface", "md": "markdown", "training": "train", "inference": "infer", "eval": "infer"}

// oneOf returns nil if values has s, else an error with the intended name.
func oneOf(s string, values []string) error {
	if slices.Contains(values, s) {
		return nil
	}
	if to := meant[strings.ToLower(s)]; slices.Contains(values, to) {
		return fmt.Errorf("did you mean %s?", to)
	}
	if near := planner.Nearest(s, values); near != "" {
		return fmt.Errorf("did you mean %s?", near)
	}
	const most = 40 // the most that an error lists
	if len(values) > most {
		return fmt.Errorf("want one of %d, such as %s", len(values), report.Either(values[:3]))
	}
	return fmt.Errorf("want %s", report.Either(values))
}

// completeFiles completes file names with the given endings for the first n
// arguments.
func completeFiles(n int, endings ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return endings, cobra.ShellCompDirectiveFilterFileExt
	}
}
