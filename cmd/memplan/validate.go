package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/device"
)

type validateOptions struct {
	modelFlags
	outputFlags
	path, device, cap, profile string
	engine, script, call       string
	inputs, expect             []string
	tolerance                  float64
	seed                       uint64
	steps                      int
}

func newValidateCmd(s *streams, run func(context.Context, *streams, *validateOptions) error) *cobra.Command {
	o := &validateOptions{}
	c := &cobra.Command{
		Use:   "validate <plan.json|model.onnx>",
		Short: "Run it on a device, predicted against measured",
		Long: `validate runs training steps on a device as the plan's schedule says, in one
arena, at the offsets of the plan, and checks: no buffer is written beyond its end,
every byte planned was enough, gradients with checkpoints are those without,
memory is as predicted; where there is no loss, outputs come out alike in two
runs. Measured times stand beside predicted ones, and refute nothing. A model
file is run as analyze would count it; a plan as it was made. Weights are the
file's own, or made from the seed where it has none. What the device cannot run
is listed; nothing is left out.

--expect compares with what another program computed: an output of the model by
its name, or a gradient as grad:PARAMETER, both of the first step. --input gives
an input, a weight, a buffer or the loss's target (target). Both take one array as
NAME=FILE, or FILE.npz alone: an archive as numpy.savez writes it, of which every
array counts by its name. Shapes are the model's, a target's classes those of its
output; of inputs of one name the last counts. Save float32 (integers as they are): where the step
has another precision, values are rounded to it when they are uploaded.

--engine torch runs your own training in PyTorch instead: --script as Python would
start it, or --call, a function without arguments. The plan is put on the first model
that it fits when that is first called; the first steps, each ended by an optimizer,
are measured, and then the script ends. It needs a GPU, and the interpreter that has
PyTorch: $MEMPLAN_PYTHON, or python3. Checked are batch, allocated peak, reserved
memory and the cap. Compare at the plan's batch and precision.`,
		Example: `  memplan validate plan.json --device cuda --cap 16G
  memplan validate models/mlp.onnx --batch 2 --device cpu
  memplan validate models/mlp.onnx --batch 64 --device cuda:1
  memplan validate plan.json --engine torch --script "train.py --epochs 1" --steps 5
  memplan validate plan.json --engine torch --call project.training:main --cap 16G
  memplan validate small.onnx --device cpu --input input0=x.npy --input target=y.npy --expect output=out.npy
  memplan validate models/mlp.onnx --batch 2 --device cpu --input given.npz --expect computed.npz --tolerance 1e-3`,
		Args:              exactly(1, "one plan or model file"),
		ValidArgsFunction: completeFiles(1, "json", "onnx"),
		RunE: func(c *cobra.Command, args []string) error {
			o.path = args[0]
			return run(c.Context(), s, o)
		},
	}
	o.modelFlags.add(c)
	o.limitFlags.add(c, boundedDevice)
	fl := c.Flags()
	addDevice(c, fl, &o.device)
	addEnum(c, fl, &o.engine, "engine", engines[0].name, "what runs the step, `ENGINE`", engineNames(), nil)
	fl.StringVar(&o.script, "script", "", "with --engine torch: training script and its arguments, `\"FILE ARGS\"`")
	_ = c.RegisterFlagCompletionFunc("script", completeFiles(1, "py")) // fails only for a flag that does not exist
	fl.StringVar(&o.call, "call", "", "with --engine torch: function that trains, `MODULE:FUNCTION`")
	fl.StringVar(&o.cap, "cap", "", "take no more than `SIZE` of the device's memory")
	fl.StringArrayVar(&o.inputs, "input", nil, "elements of an input, a weight or the loss's target from a .npy or .pb file, `NAME=FILE`, or of all in a FILE.npz; repeatable")
	fl.StringArrayVar(&o.expect, "expect", nil, "expected output, or gradient as grad:NAME, `NAME=FILE`, or all in a FILE.npz; repeatable")
	fl.Float64Var(&o.tolerance, "tolerance", 1e-4, "tolerated error of expected values, a `NUMBER` relative to the largest of each array")
	fl.Uint64Var(&o.seed, "seed", 0, "seed `N` of weights, inputs and dropout")
	fl.IntVar(&o.steps, "steps", 2, "training steps of each run, `N`")
	fl.StringVar(&o.profile, "profile", "", "write the measured times of all nodes to `FILE`, for --times to read")
	noFiles(c, "cap", "tolerance", "seed", "steps", "call")
	o.outputFlags.add(c, report.Names(report.Validations))
	return c
}

// addDevice adds the flag for a device of the table, or one of several of a
// kind.
func addDevice(c *cobra.Command, fl *pflag.FlagSet, at *string) {
	addEnum(c, fl, at, "device", device.Names()[0], "`DEVICE` to run on, cuda:1 for the second GPU", device.Names(), func(s string) error {
		_, err := device.Find(s)
		if errors.Is(err, device.ErrUnknown) {
			return oneOf(s, device.Names())
		}
		return err
	})
}

// An engine runs a step.
type engine struct {
	name string
	run  func(context.Context, *streams, *validateOptions) error
}

// engines are memplan's own executor and PyTorch.
var engines = []engine{{"memplan", validateRun}, {"torch", validateTorch}}

func engineNames() []string {
	names := make([]string, len(engines))
	for i, e := range engines {
		names[i] = e.name
	}
	return names
}

// validateWith runs the engine given by the flags.
func validateWith(ctx context.Context, s *streams, o *validateOptions) error {
	if o.engine != "torch" && (o.script != "" || o.call != "") {
		return errors.New("--script and --call are for --engine torch")
	}
	return engines[slices.Index(engineNames(), o.engine)].run(ctx, s, o)
}

func validateRun(ctx context.Context, s *streams, o *validateOptions) error {
	open, err := device.Find(o.device)
	if err != nil {
		return fmt.Errorf("--device %s: %w", o.device, err)
	}
	if err := s.withCUDA(o.device); err != nil {
		return err
	}
	q := &validate.Question{Open: open, Seed: o.seed, Steps: o.steps, Tolerance: o.tolerance}
	if o.cap != "" {
		if q.Cap, err = planner.PositiveSize("--cap", o.cap); err != nil {
			return err
		}
	}
	switch {
	case o.steps < 1:
		return fmt.Errorf("--steps %d: want a positive integer", o.steps)
	case o.tolerance < 0 || o.tolerance-o.tolerance != 0:
		return fmt.Errorf("--tolerance %v: want a number from 0", o.tolerance)
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
	given, err := o.files(q)
	defer given.close()
	if err != nil {
		return err
	}
	show, clear := s.progress(filepath.Base(o.path))
	if show != nil {
		q.Progress = show
	}
	r, err := validate.Validate(ctx, q)
	clear()
	var unknown *validate.UnknownError
	if errors.As(err, &unknown) {
		return fmt.Errorf("--expect %s: %w%s", unknown.Name, err, suggestion(unknown.Name, unknown.Known, "it has "+some(unknown.Known)))
	}
	if err != nil {
		return err
	}
	switch {
	case o.profile != "" && len(r.Profile) == 0:
		s.err.line("warning: --profile: nothing was run, and %s is not written", o.profile)
	case o.profile != "":
		if err := s.writeProfile(o.profile, r); err != nil {
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

// opens returns an early error if there is no device.
func opens(open func() (validate.Device, error)) error {
	d, err := open()
	if err != nil {
		return err
	}
	return d.Close()
}

// question returns the question of a plan, or of the flags about a model.
func (o *validateOptions) question(ctx context.Context, s *streams, q *validate.Question) error {
	if strings.EqualFold(filepath.Ext(o.path), ".json") {
		if err := o.answered(); err != nil {
			return err
		}
		p, err := planner.ReadPlan(o.path)
		if err != nil {
			return err
		}
		if o.strict {
			if err := planner.Strictly(p.Model.Path, p.Warnings, p.Config.Mode == "train"); err != nil {
				return fmt.Errorf("%s: %w", o.path, err)
			}
		}
		q.Framework, q.Arena = p.Peak.ReservedBytes, p.Arena
		q.Model, q.Config, err = s.openPlan(o.path, &planner.Config{Files: &files.Door{Outside: o.outside}, Memory: o.reading()})
		return err
	}
	cfg, err := o.config()
	if err != nil {
		return err
	}
	if q.Model, err = s.open(o.path, &cfg); err != nil {
		return err
	}
	p, err := planned(ctx, s, q.Model, cfg)
	if err != nil {
		return err
	}
	q.Framework, q.Config = p.Peak.ReservedBytes, p.Question()
	q.Config.Shapes = cfg.Shapes
	return nil
}

// files opens the weights that the model has, and the arrays given by flags.
// The archives stay open, even after an error.
func (o *validateOptions) files(q *validate.Question) (*arrays, error) {
	given := &arrays{memory: o.reading()}
	var err error
	if q.Inputs, err = given.read("input", o.inputs, false); err != nil {
		return given, err
	}
	if q.Expect, err = given.read("expect", o.expect, true); err != nil {
		return given, err
	}
	q.Source = validate.ModelSource(q.Model.Graph(), q.Model.File)
	return given, known(q.Model, q.Inputs)
}

// known returns an error for arrays that the model has no input or weight for.
func known(m *planner.Model, inputs map[string]validate.Reader) error {
	names := []string{validate.TargetName}
	g := m.Graph()
	for _, id := range g.Inputs {
		names = append(names, g.Values[id].Name)
	}
	for i := range g.Values {
		if g.Values[i].Kind == graph.Initializer {
			names = append(names, g.Values[i].Name)
		}
	}
	rest := maps.Clone(inputs)
	for _, name := range names {
		delete(rest, name)
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		return fmt.Errorf("--input %s: the model has no such input or weight%s", name, suggestion(name, names, "it has "+some(names[1:])))
	}
	return nil
}

// some writes the first few of many names, and the number of the others.
func some(names []string) string {
	const enough = 4
	if len(names) <= enough {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:enough], ", "), len(names)-enough)
}

// arrays are the archives given by flags, open until they have been used.
type arrays struct {
	open   []*validate.Archive
	memory int64 // limit of the memory for reading one, bytes
}

func (a *arrays) close() {
	for _, z := range a.open {
		_ = z.Close() // it was only read
	}
}

// read parses NAME=FILE and finds the arrays of FILE.npz. Of inputs with one
// name the last counts; expected arrays are all compared, so a name may occur
// once.
func (a *arrays) read(flag string, list []string, once bool) (map[string]validate.Reader, error) {
	out := map[string]validate.Reader{}
	add := func(name string, f validate.Reader) error {
		if once && out[name] != nil {
			return fmt.Errorf("%s: given twice", name)
		}
		out[name] = f
		return nil
	}
	for _, s := range list {
		name, file, ok := strings.Cut(s, "=")
		switch {
		case !ok && strings.EqualFold(filepath.Ext(s), ".npz"):
			if err := a.archive(s, add); err != nil {
				return nil, fileError("--"+flag, s, err)
			}
			continue
		case !ok || name == "" || file == "":
			return nil, fmt.Errorf("--%s %q: want NAME=FILE or FILE.npz", flag, s)
		}
		array, err := validate.ReadArray(file, a.memory)
		if err != nil {
			return nil, fileError("--"+flag+" "+name, file, err)
		}
		if err := add(name, func() (*validate.Array, error) { return array, nil }); err != nil {
			return nil, fmt.Errorf("--%s %w", flag, err)
		}
	}
	return out, nil
}

// archive lists the arrays of a .npz file; they are read on demand.
func (a *arrays) archive(file string, add func(string, validate.Reader) error) error {
	z, err := validate.OpenNPZ(file)
	if err != nil {
		return err
	}
	z.Memory = a.memory
	a.open = append(a.open, z)
	if len(z.Names()) == 0 {
		return fmt.Errorf("%s: holds no arrays", file)
	}
	for _, name := range z.Names() {
		if err := z.Check(name); err != nil {
			return err
		}
		if err := add(name, func() (*validate.Array, error) { return z.Read(name) }); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

func fileError(flag, file string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: no such file %s", flag, file)
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// A measuredProfile is what --profile writes.
type measuredProfile struct {
	SchemaVersion int                    `json:"schemaVersion"`
	Device        validate.DeviceInfo    `json:"device"`
	Model         validate.ModelInfo     `json:"model"`
	StepMs        float64                `json:"stepMs"`
	Nodes         []planner.MeasuredNode `json:"nodes"`
}

func (s *streams) writeProfile(file string, r *validate.Report) error {
	var b bytes.Buffer
	if err := report.JSON(&b, measuredProfile{r.SchemaVersion, r.Device, r.Model, r.Time.MeasuredMs, r.Profile}); err != nil {
		return err
	}
	return s.writeFile(file, b.Bytes())
}
