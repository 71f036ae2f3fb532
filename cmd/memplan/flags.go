package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

// modelFlags are the flags of every command that looks at a model.
type modelFlags struct {
	vram, gpu, batch, mode, precision, optimizer, loss, attention, runtime, checkpoint string
	dims, shapes                                                                       []string
	accumulate                                                                         int
	timeout                                                                            time.Duration
}

// enum is a flag with a fixed set of values: help, completion and check read
// the same list.
type enum struct {
	name, def, doc string
	values         func() []string
	at             func(f *modelFlags) *string
}

func lossNames() []string {
	out := make([]string, len(train.Losses))
	for i, l := range train.Losses {
		out[i] = l.Name
	}
	return out
}

var enums = []enum{
	{"gpu", "", "device profile (default h200 until --vram is given)", profile.DeviceNames, func(f *modelFlags) *string { return &f.gpu }},
	{"mode", "train", "what runs", func() []string { return []string{"train", "infer"} }, func(f *modelFlags) *string { return &f.mode }},
	{"precision", "fp32", "element types", profile.PrecisionNames, func(f *modelFlags) *string { return &f.precision }},
	{"optimizer", "adamw", "optimizer", func() []string { return append(profile.OptimizerNames(), "none") }, func(f *modelFlags) *string { return &f.optimizer }},
	{"loss", "auto", "loss function", lossNames, func(f *modelFlags) *string { return &f.loss }},
	{"attention", "auto", "kernel of scaled_dot_product_attention", func() []string { return planner.Attentions }, func(f *modelFlags) *string { return &f.attention }},
	{"runtime", "", "runtime profile (default the newest PyTorch)", profile.RuntimeNames, func(f *modelFlags) *string { return &f.runtime }},
}

// add defines the flags on a command.
func (f *modelFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.vram, "vram", "", "device memory `SIZE`: 16G = 16GiB = 16*2^30, 16GB = 16*10^9")
	fl.StringVar(&f.batch, "batch", "", "batch size `N`, or max: the largest that fits")
	fl.StringArrayVar(&f.dims, "dim", nil, "bind a symbolic dimension, `NAME=N`; repeatable")
	fl.StringArrayVar(&f.shapes, "shape", nil, "shape of a value that inference does not know, `NAME=D0,D1,..`; repeatable")
	fl.IntVar(&f.accumulate, "accumulate", 1, "gradient accumulation steps `N`")
	fl.StringVar(&f.checkpoint, "checkpoint", "", "none, auto, all, sqrt, or a `FILE`: a plan or a configuration")
	fl.DurationVar(&f.timeout, "timeout", 0, "limit on a search, such as 30s")
	for _, e := range enums {
		values := e.values()
		doc := e.doc + ": " + strings.Join(values, "|")
		fl.StringVar(e.at(f), e.name, e.def, doc)
		_ = cmd.RegisterFlagCompletionFunc(e.name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// config turns the flags into a configuration.
func (f *modelFlags) config() (planner.Config, error) {
	c := planner.Config{Mode: f.mode, Precision: f.precision, Optimizer: f.optimizer, Loss: f.loss, GPU: f.gpu, Runtime: f.runtime, Attention: f.attention, Accumulate: f.accumulate}
	var err error
	if f.vram != "" {
		if c.VRAM, err = profile.ParseSize(f.vram); err != nil {
			return c, fmt.Errorf("--vram: %w", err)
		}
		if c.VRAM <= 0 {
			return c, fmt.Errorf("--vram %s: want a positive size", f.vram)
		}
	}
	switch {
	case f.batch == "max":
		c.BatchMax = true
	case f.batch != "":
		if c.Batch, err = strconv.ParseInt(f.batch, 10, 64); err != nil || c.Batch < 1 {
			return c, fmt.Errorf("--batch %q: want a positive integer or max", f.batch)
		}
	}
	if f.accumulate < 1 {
		return c, fmt.Errorf("--accumulate %d: want a positive integer", f.accumulate)
	}
	if c.Dims, err = parseDims(f.dims); err != nil {
		return c, err
	}
	if c.Shapes, err = parseShapes(f.shapes); err != nil {
		return c, err
	}
	switch f.checkpoint {
	case "", "none", "auto", "all", "sqrt":
		c.Checkpoint = f.checkpoint
	default:
		c.Segments, err = planner.ReadSegments(f.checkpoint)
	}
	return c, err
}

func parseDims(list []string) (map[string]int64, error) {
	dims := map[string]int64{}
	for _, s := range list {
		name, val, ok := strings.Cut(s, "=")
		n, err := strconv.ParseInt(val, 10, 64)
		if !ok || name == "" || err != nil || n < 0 {
			return nil, fmt.Errorf("--dim %q: want NAME=N with a non-negative integer", s)
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

// output is where and how a result is written.
type output struct {
	format, file string
}

func (o *output) add(cmd *cobra.Command, formats ...string) {
	cmd.Flags().StringVar(&o.format, "format", formats[0], "output format: "+strings.Join(formats, "|"))
	cmd.Flags().StringVarP(&o.file, "output", "o", "", "write the result to `FILE` instead of stdout")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	pre := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		for _, f := range formats {
			if o.format == f {
				if pre != nil {
					return pre(cmd, args)
				}
				return nil
			}
		}
		return fmt.Errorf("--format %q: want one of %s", o.format, strings.Join(formats, ", "))
	}
}

// write sends a finished result to the file or to stdout.
func (o *output) write(s *streams, data []byte) error {
	if o.file == "" || o.file == "-" {
		_, err := s.out.Write(data)
		return err
	}
	return writeAtomic(o.file, data)
}

// writeAtomic replaces a file as a whole, or leaves it as it was.
func writeAtomic(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err = tmp.Write(data); err == nil {
		err = tmp.Chmod(0o644)
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// jsonBytes is the one way JSON is written: indented, without HTML escapes.
func jsonBytes(v any) ([]byte, error) {
	var sb strings.Builder
	enc := json.NewEncoder(&sb)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return []byte(sb.String()), err
}
