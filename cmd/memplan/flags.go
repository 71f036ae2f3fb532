package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

// modelFlags are the flags of every command that reads a model: those of
// planner.Settings, and other sources of its question.
type modelFlags struct {
	limitFlags
	recipe          string
	outside, strict bool
	set             *pflag.FlagSet
}

// mayBeEmpty marks flags that take an empty value.
const mayBeEmpty = "memplan.empty"

// addSetting defines the flag of a setting on a command.
func addSetting(c *cobra.Command, s *planner.Setting) {
	fl := c.Flags()
	switch s.At(&noConfig).(type) {
	case *bool:
		fl.Bool(s.Flag, false, s.Doc)
		return
	case *int:
		fl.Int(s.Flag, 0, s.Doc)
	case *[]string, *map[string]int64, *map[string]graph.Shape:
		fl.StringArray(s.Flag, nil, s.Doc)
	default:
		if find := s.Find; s.Names != nil {
			if s.File {
				find = func(name string) error {
					if profile.IsCalibration(name) { // which is read later
						return nil
					}
					return s.Find(name)
				}
			}
			addEnum(c, fl, new(string), s.Flag, s.Default, s.Doc, s.Names, find)
			return
		}
		fl.String(s.Flag, "", s.Doc)
	}
	if s.Default != "" {
		fl.Lookup(s.Flag).DefValue = s.Default
	}
	if s.Empty {
		_ = fl.SetAnnotation(s.Flag, mayBeEmpty, nil) // fails only for a flag that does not exist
	}
	directive := map[bool]cobra.ShellCompDirective{true: cobra.ShellCompDirectiveDefault, false: cobra.ShellCompDirectiveNoFileComp}[s.File]
	_ = c.RegisterFlagCompletionFunc(s.Flag, cobra.FixedCompletions(s.Offer, directive)) // fails only for a flag that does not exist
}

// noConfig is only asked for the types of its fields.
var noConfig planner.Config

// add defines the flags on a command.
func (f *modelFlags) add(c *cobra.Command) {
	f.set = c.Flags()
	for i := range planner.Settings {
		addSetting(c, &planner.Settings[i])
	}
	f.set.StringVar(&f.recipe, "config", "", "settings of a training framework's own `FILE` ("+strings.Join(planner.Recipes(), ", ")+"): batch, precision, optimizer, accumulation, checkpointing, adapters; flags take precedence")
	_ = c.MarkFlagFilename("config", "yml", "yaml", "json", "toml") // fails only for a flag that does not exist
	addStrict(c, &f.strict)
	addOutside(c, &f.outside)
}

// addOutside adds the flag that lets documents name files anywhere.
func addOutside(c *cobra.Command, at *bool) {
	c.Flags().BoolVar(at, "allow-outside", false, "what a document names (models, external data, baselines, ...) may lie outside its folder: only for files that you trust")
}

// addStrict defines the flag that turns some warnings into errors.
func addStrict(c *cobra.Command, at *bool) {
	c.Flags().BoolVar(at, "strict", false, "an error (exit 2) for a file that breaks ONNX's rules, or that does not show the training step asked about")
}

// noFiles keeps the shell from offering files as values of flags.
func noFiles(c *cobra.Command, names ...string) {
	for _, name := range names {
		_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions) // fails only for a flag that does not exist
	}
}

// follow sets the flags that the configuration of a training framework implies
// and that are not given, and returns warnings about it.
func (f *modelFlags) follow() ([]graph.Warning, error) {
	if f.recipe == "" {
		return nil, nil
	}
	r, err := planner.ReadRecipe(f.recipe)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	r.Settings = slices.DeleteFunc(r.Settings, func(x planner.RecipeSetting) bool { return f.set.Changed(x.Flag) })
	for _, x := range r.Settings {
		if err := f.set.Set(x.Flag, x.Value); err != nil {
			return nil, fmt.Errorf("--config: %s: %w", r.Path, valueError(x.Key, err))
		}
	}
	return []graph.Warning{r.Warning()}, nil
}

// config converts the flags to a configuration.
func (f *modelFlags) config() (planner.Config, error) {
	notes, err := f.follow()
	if err != nil {
		return planner.Config{}, err
	}
	c := planner.Config{Strict: f.strict, Memory: f.reading(), Files: &files.Door{Outside: f.outside}, Notes: notes}
	for i := range planner.Settings {
		s := &planner.Settings[i]
		for _, word := range given(f.set.Lookup(s.Flag)) {
			if err := s.Read(&c, word); err != nil {
				return c, fmt.Errorf("--%w", err)
			}
		}
	}
	if err := c.ReadCheckpoint(); errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("--checkpoint %s: not one of %s, nor an existing file", c.Checkpoint, strings.Join(planner.Checkpoints, ", "))
	} else if err != nil {
		return c, fmt.Errorf("--checkpoint: %w", err)
	}
	return c, nil
}

// given returns the values that a flag was given, nil if none.
func given(f *pflag.Flag) []string {
	if !f.Changed {
		return nil
	}
	if v, ok := f.Value.(pflag.SliceValue); ok {
		return v.GetSlice()
	}
	return []string{f.Value.String()}
}

// answered returns an error if a setting is given with a plan, which has fixed it.
func (f *modelFlags) answered() error {
	for i := range planner.Settings {
		if name := planner.Settings[i].Flag; f.set.Changed(name) {
			return fmt.Errorf("--%s: the plan already fixes this setting", name)
		}
	}
	if f.recipe != "" {
		return errors.New("--config: the plan already fixes this setting")
	}
	return nil
}

// limited bounds a search by --timeout; 0 is no bound.
func limited(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
