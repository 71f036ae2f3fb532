package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/device"
)

type validateOptions struct {
	modelFlags
	outputFlags
	path, device, cap, profile string
	inputs, expect             []string
	tolerance                  float64
	seed                       uint64
	steps                      int
	given                      map[string]bool // flags that the user gave
}

func newValidateCmd(s *streams, run func(context.Context, *streams, *validateOptions) error) *cobra.Command {
	o := &validateOptions{}
	c := &cobra.Command{
		Use:   "validate <plan.json|model.onnx>",
		Short: "Run it on a device, predicted against measured",
		Long: `validate runs training steps on a device as the plan's schedule says, in one
arena, at the offsets of the plan, and checks: no buffer is written beyond its end,
every byte planned was enough, gradients with checkpoints are those without,
memory and time are as predicted. A model file is run as analyze would count
it; a plan as it was made. Weights are the file's own, or made from the seed
where it has none. What the device cannot run is listed; nothing is left out.

--expect compares with what another program computed: an output of the model by
its name, or a gradient as grad:PARAMETER, both of the first step.`,
		Example: `  memplan validate plan.json --device cuda --cap 16G
  memplan validate models/mlp.onnx --batch 2 --device cpu
  memplan validate models/mlp.onnx --batch 64 --device cuda:1
  memplan validate small.onnx --device cpu --input input0=x.npy --input target=y.npy --expect output0=out.npy`,
		Args:              exactly(1, "one plan or model file"),
		ValidArgsFunction: completeFiles(1, "json", "onnx"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path, o.given = args[0], map[string]bool{}
			for _, name := range planFlags {
				o.given[name] = c.Flags().Changed(name)
			}
			return run(c.Context(), s, o)
		},
	}
	o.modelFlags.add(c)
	fl := c.Flags()
	addDevice(c, fl, &o.device)
	fl.StringVar(&o.cap, "cap", "", "take no more than `SIZE` of the device's memory")
	fl.StringArrayVar(&o.inputs, "input", nil, "elements of an input, a weight or the loss's target from a .npy or .pb file, `NAME=FILE`; repeatable")
	fl.StringArrayVar(&o.expect, "expect", nil, "what an output, or a gradient as grad:NAME, should be, `NAME=FILE`; repeatable")
	fl.Float64Var(&o.tolerance, "tolerance", 1e-4, "how far what is expected may be off, relative to the largest number")
	fl.Uint64Var(&o.seed, "seed", 0, "`N` of which weights, inputs and dropout are made")
	fl.IntVar(&o.steps, "steps", 2, "training steps of each run, `N`")
	fl.StringVar(&o.profile, "profile", "", "write the measured times of all nodes to `FILE`, for --times to read")
	noFiles(c, "cap", "tolerance", "seed", "steps")
	o.outputFlags.add(c, report.Names(report.Validations))
	return c
}

// addDevice adds the flag that names a device of the table, or one of several.
func addDevice(c *cobra.Command, fl *pflag.FlagSet, at *string) {
	addEnum(c, fl, at, "device", device.Names()[0], "`DEVICE` to run on, cuda:1 for the second GPU", device.Names(), func(s string) error {
		_, err := device.Find(s)
		if errors.Is(err, device.ErrUnknown) {
			return oneOf(s, device.Names())
		}
		return err
	})
}

// planFlags are the flags that a plan has answered.
var planFlags = []string{"vram", "gpu", "batch", "dim", "shape", "mode", "precision", "optimizer", "loss", "attention", "accumulate", "checkpoint", "runtime", "freeze", "lora", "hold-outputs", "alloc-conf", "times"}

func validateRun(ctx context.Context, s *streams, o *validateOptions) error {
	open, err := device.Find(o.device)
	if err != nil {
		return fmt.Errorf("--device %s: %w", o.device, err)
	}
	q := &validate.Question{Open: open, Seed: o.seed, Steps: o.steps, Tolerance: o.tolerance}
	if o.cap != "" {
		if q.Cap, err = positiveSize("cap", o.cap); err != nil {
			return err
		}
	}
	switch {
	case o.steps < 1:
		return fmt.Errorf("--steps %d: want a positive integer", o.steps)
	case o.tolerance < 0 || o.tolerance != o.tolerance:
		return fmt.Errorf("--tolerance %v: want a number that is not negative", o.tolerance)
	}
	if err := opens(q.Open); err != nil {
		return err
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	if err = o.question(ctx, s, q); err != nil {
		return err
	}
	if q.Config.Mode == "infer" {
		q.Steps = 1
	}
	if err := o.files(q); err != nil {
		return err
	}
	show, clear := s.progress(filepath.Base(o.path))
	if show != nil {
		q.Progress = show
	}
	r, err := validate.Validate(ctx, q)
	clear()
	if err != nil {
		return err
	}
	if o.profile != "" {
		if err := writeProfile(o.profile, r); err != nil {
			return err
		}
	}
	if err := emit(s, &o.outputFlags, report.Validations, r); err != nil {
		return err
	}
	if r.Verdict == validate.Refuted {
		return errNo
	}
	return nil
}

// opens fails early where there is no device.
func opens(open func() (validate.Device, error)) error {
	d, err := open()
	if err != nil {
		return err
	}
	return d.Close()
}

// question is what a plan answers, or what the flags ask of a model.
func (o *validateOptions) question(ctx context.Context, s *streams, q *validate.Question) error {
	if strings.EqualFold(filepath.Ext(o.path), ".json") {
		for _, name := range planFlags {
			if o.given[name] {
				return fmt.Errorf("--%s: the plan has decided that", name)
			}
		}
		p, err := planner.ReadPlan(o.path)
		if err != nil {
			return err
		}
		q.Framework, q.Arena = p.Peak.ReservedBytes, p.Arena
		q.Model, q.Config, err = planner.OpenPlan(o.path)
		return err
	}
	cfg, err := o.config()
	if err != nil {
		return err
	}
	if q.Model, err = s.open(o.path, &cfg); err != nil {
		return err
	}
	if cfg.VRAM == 0 && cfg.GPU == "" && cfg.Checkpoint == "" {
		cfg.Checkpoint = "none"
	}
	show, clear := s.progress(filepath.Base(o.path))
	q.Model.Progress = show
	p, err := q.Model.Plan(ctx, cfg)
	clear()
	if err != nil {
		return err
	}
	q.Framework, q.Config = p.Peak.ReservedBytes, p.Question()
	q.Config.Shapes = cfg.Shapes
	return nil
}

// files reads the weights that the model has, and the arrays that the flags name.
func (o *validateOptions) files(q *validate.Question) error {
	inputs, err := readArrays("input", o.inputs)
	if err != nil {
		return err
	}
	if q.Expect, err = readArrays("expect", o.expect); err != nil {
		return err
	}
	if err := known(q.Model, inputs); err != nil {
		return err
	}
	weights := validate.ModelSource(q.Model.Graph(), q.Model.Path)
	q.Source = func(name string) (*validate.Array, error) {
		if a, ok := inputs[name]; ok {
			return &a, nil
		}
		return weights(name)
	}
	return nil
}

// known reports arrays that the model has no place for.
func known(m *planner.Model, inputs map[string]validate.Array) error {
	rest := maps.Clone(inputs)
	delete(rest, validate.TargetName)
	g := m.Graph()
	names := []string{validate.TargetName}
	for i := range g.Values {
		delete(rest, g.Values[i].Name)
	}
	for _, id := range g.Inputs {
		names = append(names, g.Values[id].Name)
	}
	for name := range rest {
		return fmt.Errorf("--input %s: the model has no such input or weight%s", name, suggestion(name, names, "its inputs are "+strings.Join(names[1:], ", ")))
	}
	return nil
}

// readArrays reads NAME=FILE.
func readArrays(flag string, list []string) (map[string]validate.Array, error) {
	out := map[string]validate.Array{}
	for _, s := range list {
		name, file, ok := strings.Cut(s, "=")
		if !ok || name == "" || file == "" {
			return nil, fmt.Errorf("--%s %q: want NAME=FILE", flag, s)
		}
		a, err := validate.ReadArray(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("--%s %s: no such file %s", flag, name, file)
		}
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag, name, err)
		}
		out[name] = *a
	}
	return out, nil
}

// A measuredProfile is what --profile writes.
type measuredProfile struct {
	SchemaVersion int                    `json:"schemaVersion"`
	Device        validate.DeviceInfo    `json:"device"`
	Model         validate.ModelInfo     `json:"model"`
	StepMs        float64                `json:"stepMs"`
	Nodes         []planner.MeasuredNode `json:"nodes"`
}

func writeProfile(file string, r *validate.Report) error {
	var b bytes.Buffer
	if err := report.JSON(&b, measuredProfile{r.SchemaVersion, r.Device, r.Model, r.Time.MeasuredMs, r.Profile}); err != nil {
		return err
	}
	return writeFile(file, b.Bytes())
}
