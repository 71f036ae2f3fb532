package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

// modelFlags are the flags of every command that looks at a model.
type modelFlags struct {
	graphFlags
	limitFlags
	vram, gpu, mode, precision, optimizer, loss, attention, runtime, checkpoint string
	accumulate                                                                  int
	freeze                                                                      []string
	headroom, lora, allocConf, times, recipe                                    string
	hold, outside, strict                                                       bool
	set                                                                         *pflag.FlagSet
}

// graphFlags bind the dimensions of a graph.
type graphFlags struct {
	batch        string
	dims, shapes []string
}

// add defines the flags on a command.
func (f *graphFlags) add(c *cobra.Command, batch string) {
	fl := c.Flags()
	fl.StringVar(&f.batch, "batch", "", batch)
	fl.StringArrayVar(&f.dims, "dim", nil, "bind a symbolic dimension, `NAME=N`; repeatable")
	fl.StringArrayVar(&f.shapes, "shape", nil, "shape of a value that inference does not know, `NAME=D0,D1,..`; repeatable")
	noFiles(c, "dim", "shape")
	_ = c.RegisterFlagCompletionFunc("batch", cobra.FixedCompletions([]string{"max"}, cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that does not exist
}

// add defines the flags on a command.
func (f *modelFlags) add(c *cobra.Command) {
	f.graphFlags.add(c, "batch size `N`, or max: the largest that fits")
	fl := c.Flags()
	f.set = fl
	fl.StringVar(&f.vram, "vram", "", "memory of the card, a `SIZE`: 16G = 16GiB = 16*2^30, 16GB = 16*10^9; the CUDA context is taken off it")
	fl.StringVar(&f.headroom, "headroom", planner.AutoHeadroom, "what verdicts, plans and batches leave free of the card: auto, what the uncertainty of the prediction asks for, 0, a `SIZE` or P%")
	addEnum(c, fl, &f.gpu, "gpu", "", "card `NAME`, or a file that calibrate wrote (h200 unless --vram is given)", profile.DeviceNames(), orFile(found(profile.FindDevice)))
	addEnum(c, fl, &f.mode, "mode", "train", "`WHAT` runs", []string{"train", "infer"}, nil)
	addEnum(c, fl, &f.precision, "precision", profile.Precisions[0].Name, "element types, `NAME`", profile.PrecisionNames(), found(profile.FindPrecision))
	addEnum(c, fl, &f.optimizer, "optimizer", profile.Optimizers[0].Name, "optimizer `NAME`", profile.OptimizerNames(), found(profile.FindOptimizer))
	addEnum(c, fl, &f.loss, "loss", "auto", "loss function `NAME`", lossNames(), nil)
	addEnum(c, fl, &f.attention, "attention", "auto", "`KERNEL` of attention", planner.Attentions, nil)
	addEnum(c, fl, &f.runtime, "runtime", "", "what PyTorch and its libraries do, `NAME` or a file that calibrate wrote (the release that exported the model)", profile.RuntimeNames(), orFile(found(profile.FindRuntime)))
	fl.IntVar(&f.accumulate, "accumulate", 1, "gradient accumulation over `N` batches a step")
	fl.StringArrayVar(&f.freeze, "freeze", nil, "parameters that are not trained: a name, a module, or a `PATTERN` such as '*.bias'; repeatable")
	fl.StringVar(&f.lora, "lora", "", "low-rank adapters on a frozen model, `r=16,target=q_proj,v_proj` (or target=all-linear), as PEFT attaches them")
	fl.BoolVar(&f.hold, "hold-outputs", false, "the training loop holds the model's outputs until the update")
	fl.StringVar(&f.allocConf, "alloc-conf", "", "PyTorch's allocator options, as in PYTORCH_ALLOC_CONF: `expandable_segments:True,..`")
	fl.StringVar(&f.checkpoint, "checkpoint", "", "what is recomputed, `HOW`: "+strings.Join(planner.Checkpoints, "|")+", a framework's setting such as huggingface:every_n_layers=2, or a file, a plan or a configuration; auto, and segments, which keep nothing, for PyTorch, schedule and ops for memplan's executor (what the budget asks for)")
	fl.StringVar(&f.times, "times", "", "measured operator times, a `FILE` that validate --profile wrote: predict times and recomputation from them (the roofline)")
	fl.StringVar(&f.recipe, "config", "", "settings of a training framework's own `FILE` ("+strings.Join(planner.Recipes(), ", ")+"): batch, precision, optimizer, accumulation, checkpointing, adapters; flags go before it")
	_ = c.MarkFlagFilename("config", "yml", "yaml", "json", "toml") // fails only for a flag that does not exist
	addStrict(c, &f.strict)
	addOutside(c, &f.outside)
	noFiles(c, "vram", "headroom", "accumulate", "freeze", "lora", "alloc-conf")
	_ = c.RegisterFlagCompletionFunc("checkpoint", completeNames(planner.Checkpoints...)) // fails only for a flag that does not exist
}

// addOutside adds the flag that lets documents name files anywhere.
func addOutside(c *cobra.Command, at *bool) {
	c.Flags().BoolVar(at, "allow-outside", false, "what a document names (models, external data, baselines, ...) may lie outside its folder: only for files that you trust")
}

// addStrict defines the flag that turns some warnings into errors.
func addStrict(c *cobra.Command, at *bool) {
	c.Flags().BoolVar(at, "strict", false, "no answer (exit 2) on a file that breaks the rules of ONNX, nor on a training step that the file does not show")
}

// noFiles keeps the shell from offering files as values of flags.
func noFiles(c *cobra.Command, names ...string) {
	for _, name := range names {
		_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions) // fails only for a flag that does not exist
	}
}

func lossNames() []string {
	out := make([]string, len(train.Losses))
	for i, l := range train.Losses {
		out[i] = l.Name
	}
	return out
}

// apply reads the flags into a configuration.
func (f *graphFlags) apply(c *planner.Config) (err error) {
	if f.batch != "" {
		if c.Batch, c.BatchMax, err = planner.ParseBatch(f.batch); err != nil {
			return fmt.Errorf("--%w", err)
		}
	}
	if c.Dims, err = parseDims(f.dims); err != nil {
		return err
	}
	c.Shapes, err = parseShapes(f.shapes)
	return err
}

// follow sets the flags that the configuration of a training framework asks
// for and that are not given, and returns what is to be said about it.
func (f *modelFlags) follow() ([]graph.Warning, error) {
	if f.recipe == "" {
		return nil, nil
	}
	r, err := planner.ReadRecipe(f.recipe)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	taken := r.Settings[:0]
	for _, x := range r.Settings {
		if f.set.Changed(x.Flag) {
			continue
		}
		if err := f.set.Set(x.Flag, x.Value); err != nil {
			return nil, fmt.Errorf("--config: %s: %s: %w", r.Path, x.Key, err)
		}
		taken = append(taken, x)
	}
	r.Settings = taken
	return []graph.Warning{r.Warning()}, nil
}

// config turns the flags into a configuration.
func (f *modelFlags) config() (planner.Config, error) {
	notes, err := f.follow()
	if err != nil {
		return planner.Config{}, err
	}
	c := planner.Config{Mode: f.mode, Precision: f.precision, Optimizer: f.optimizer, Loss: f.loss, GPU: f.gpu, Runtime: f.runtime, Attention: f.attention, Accumulate: f.accumulate,
		Freeze: f.freeze, LoRA: f.lora, Hold: f.hold, AllocConf: f.allocConf, Times: f.times, Headroom: f.headroom, Strict: f.strict, Memory: f.reading(), Files: files.Door{Outside: f.outside}, Notes: notes}
	if !f.set.Changed("optimizer") { // a capture may say which
		c.Optimizer = ""
	}
	if !f.set.Changed("accumulate") {
		c.Accumulate = 0
	}
	err = f.apply(&c)
	if err != nil {
		return c, err
	}
	if _, err := planner.ParseHeadroom(f.headroom); err != nil {
		return c, fmt.Errorf("--%w", err)
	}
	if f.vram != "" {
		if c.VRAM, err = positiveSize("vram", f.vram); err != nil {
			return c, err
		}
	}
	switch {
	case f.accumulate < 1:
		return c, fmt.Errorf("--accumulate %d: want a positive integer", f.accumulate)
	case f.checkpoint == "" || slices.Contains(planner.Checkpoints, f.checkpoint) || planner.IsSetting(f.checkpoint):
		c.Checkpoint = f.checkpoint
		return c, nil
	}
	if err := planner.ReadSelection(f.checkpoint, &c); errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("--checkpoint %s: neither one of %s nor a file that exists", f.checkpoint, strings.Join(planner.Checkpoints, ", "))
	} else if err != nil {
		return c, fmt.Errorf("--checkpoint: %w", err)
	}
	return c, nil
}

// positiveSize reads the size that a flag gives.
func positiveSize(flag, text string) (int64, error) {
	n, err := profile.ParseSize(text)
	if err != nil {
		return 0, fmt.Errorf("--%s: %w", flag, err)
	}
	if n <= 0 {
		return 0, fmt.Errorf("--%s %s: want a positive size", flag, text)
	}
	return n, nil
}

// limited bounds a search by --timeout; 0 is no bound.
func limited(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

func parseDims(list []string) (map[string]int64, error) {
	dims := map[string]int64{}
	for _, s := range list {
		name, val, ok := strings.Cut(s, "=")
		n, err := strconv.ParseInt(val, 10, 64)
		if !ok || name == "" || err != nil || n < 0 {
			return nil, fmt.Errorf("--dim %q: want NAME=N with a non-negative integer", s)
		}
		if old, given := dims[name]; given && old != n {
			return nil, fmt.Errorf("--dim %q: %s is already %d", s, name, old)
		}
		dims[name] = n
	}
	return dims, nil
}

// parseShapes reads NAME=D0,D1,..: integers or expressions; NAME= is a scalar.
func parseShapes(list []string) (map[string]graph.Shape, error) {
	shapes := map[string]graph.Shape{}
	for _, s := range list {
		i := strings.LastIndexByte(s, '=')
		if i < 1 {
			return nil, fmt.Errorf("--shape %q: want NAME=D0,D1,..", s)
		}
		shape := graph.Shape{}
		for _, d := range strings.FieldsFunc(s[i+1:], func(r rune) bool { return r == ',' }) {
			dim, err := graph.ParseDim(d)
			if err != nil {
				return nil, fmt.Errorf("--shape %q: %w", s, err)
			}
			shape = append(shape, dim)
		}
		shapes[s[:i]] = shape
	}
	return shapes, nil
}
