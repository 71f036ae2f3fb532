// Package planner answers users' questions: how much memory a step needs and
// where each byte goes, whether it fits, the largest batch that does, and what
// to checkpoint so that it fits. It holds the time model, the searches over
// batch and checkpoints, the Plan document, budget rules and diffs.
package planner

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/graph/shard"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/liveness/alloc"
	"github.com/memplan/memplan/planner/profile"
)

// ErrDoesNotFit is the error of a plan that fits with no selection.
var ErrDoesNotFit = errors.New("does not fit")

// steps is the number of training steps that are replayed: the first creates
// state, the fourth is as steady as any later one.
const steps = 4

// A Model is a loaded file. Its methods are not safe for concurrent use.
type Model struct {
	Path     string
	Progress func(done, total int, message string) // of long searches; nil: none

	door files.Door // through which it was opened
	name string     // by which it was opened

	g       *graph.Graph
	lifted  *lift.Lifted
	info    ModelInfo
	bound   binding
	conv    map[convKey]cudnn.Estimate
	scratch *cudnn.Predictor

	capture *capture                // what the file holds of the code's own run, nil without
	wholes  map[string]*train.Build // while meshes are compared: steps of one card that they start from

	made int // effort of all steps that were built, in nodes

	ready  *train.Prepared // of the graph as bound is, for steps of one mode; nil: not yet
	trains bool            // that mode

	shared *sharing // while questions that differ in little are answered; nil: nothing is kept

	conformed bool
	invalid   []graph.Warning // nodes that break ONNX's rules
}

type convKey struct {
	c cudnn.Conv
	p cudnn.Pass
}

// A binding is the current binding of the graph's dims.
type binding struct {
	sizes
	warnings []graph.Warning // from shape inference
}

// sizes are the sizes that a question asks for.
type sizes struct {
	set    bool
	batch  int64
	dims   string
	shapes string
	run    string // the capture's variant, "" for none
}

// Open opens the user's model file without reading its weights.
func Open(path string, opts ...onnx.Option) (*Model, error) {
	return OpenFrom(files.Door{}, path, opts...)
}

// OpenFrom is Open through the door of a document that names the model.
func OpenFrom(d files.Door, name string, opts ...onnx.Option) (*Model, error) {
	g, err := onnx.LoadFrom(d, name, opts...)
	if err != nil {
		return nil, err
	}
	path := g.Model.Path
	m := &Model{Path: path, door: d, name: name, g: g, conv: map[convKey]cudnn.Estimate{}}
	m.info = ModelInfo{Path: path, SHA256: g.Model.SHA256, IRVersion: g.Model.IRVersion, Producer: g.Model.Producer,
		Nodes: len(g.Nodes), Opsets: map[string]int64{}}
	for _, o := range g.Model.Opsets {
		d := o.Domain
		if d == "" {
			d = "ai.onnx"
		}
		m.info.Opsets[d] = o.Version
	}
	if m.capture, err = readCapture(g); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if m.info.SHA256 == "" {
		if m.info.SHA256, err = onnx.SHA256(d, name); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// File opens the model's file again.
func (m *Model) File() (*files.File, error) { return m.door.Open(m.name, files.Model) }

// Files lists the paths of the model's file and of its tensors' external data,
// which may not exist.
func (m *Model) Files() []string {
	out := []string{m.Path}
	for i := range m.g.Values {
		if t := m.g.Values[i].Const; t != nil && t.Ref != nil && t.Ref.Location != "" {
			out = append(out, filepath.Join(filepath.Dir(m.Path), filepath.FromSlash(t.Ref.Location)))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Graph returns the graph with its shapes inferred as far as it is bound.
func (m *Model) Graph() *graph.Graph { return m.g }

// bind infers all shapes for a batch size (0: the file's), other dims and given
// shapes, and lifts the graph. Dims that depend on data are bound to their
// upper bounds.
func (m *Model) bind(batch int64, dims map[string]int64, shapes map[string]graph.Shape) error {
	asked := sizes{true, batch, fmt.Sprint(dims), fmt.Sprint(shapes), m.capture.asked()} // fmt prints maps in key order
	if m.bound.sizes == asked {
		return nil
	}
	m.bound, m.ready = binding{}, nil
	switch done, err := m.bindCapture(batch, dims, shapes); {
	case err != nil:
		return err
	case done:
		m.bound.sizes = asked
		return nil
	}
	opt := infer.Options{Batch: batch, Dims: dims, Shapes: shapes}
	res, err := infer.Infer(m.g, opt)
	if long := (*infer.TooLong)(nil); errors.As(err, &long) {
		return fmt.Errorf("%w (at %s)", err, strings.Join(bindings(dims), ", "))
	}
	if err != nil && len(dims) > 0 {
		return fmt.Errorf("%w (at %s: not every size suits a model; sides that halve often are multiples of 32)", err, strings.Join(bindings(dims), ", "))
	}
	if err != nil {
		return err
	}
	warnings := res.Warnings
	if more := atBounds(res, dims); len(more) > len(dims) {
		opt.Dims = more
		if res, err = infer.Infer(m.g, opt); err != nil {
			return err
		}
		warnings = append(res.Warnings, graph.Warning{Code: "data-dependent", Message: "dimensions that depend on data are counted at their upper bounds: " + strings.Join(added(more, dims), ", ")})
	}
	m.conform()
	if m.lifted == nil || m.lifted.Source == lift.Captured {
		if m.lifted, err = lift.Lift(m.g); err != nil {
			return err
		}
	} else {
		m.lifted.Refresh(m.g)
	}
	m.bound = binding{asked, warnings}
	return nil
}

// bindings lists dimensions as NAME=N, by name.
func bindings(dims map[string]int64) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(dims)) {
		out = append(out, fmt.Sprintf("%s=%d", name, dims[name]))
	}
	return out
}

// atBounds adds to dims the symbols that inference created, at their largest
// values if those are known.
func atBounds(res *infer.Result, dims map[string]int64) map[string]int64 {
	out := map[string]int64{}
	for k, v := range dims {
		out[k] = v
	}
	for _, b := range res.Bounds {
		if n, err := b.Max.Eval(out); err == nil && n >= 0 {
			if _, given := out[b.Symbol]; !given {
				out[b.Symbol] = n
			}
		}
	}
	return out
}

// added lists the names in more that base lacks, sorted.
func added(more, base map[string]int64) []string {
	var names []string
	for k := range more {
		if _, ok := base[k]; !ok {
			names = append(names, fmt.Sprintf("%s=%d", k, more[k]))
		}
	}
	slices.Sort(names)
	return names
}

// A job is a configuration with its names resolved.
type job struct {
	cfg          Config
	device       *profile.Device
	runtime      *profile.Runtime
	optimizer    *profile.Optimizer
	precision    *profile.Precision
	order        []string // attention kernels
	vram         int64    // the card's memory; 0: no budget
	cap          int64    // what the allocator may reserve, without the headroom; 0: no limit
	hard         int64    // what it may reserve on the card
	headroom     Headroom
	train        bool
	time         TimeModel
	conf         alloc.Conf
	lora         *train.LoRA
	meshed       *meshed // distributed over several cards; nil: one
	assumed      string  // why the runtime is not that of the file's producer; "" if it is
	hostMeasured bool    // time.Host was measured, or given
	arena        bool    // the report is about onnxruntime's arena
}

// resolve is Config.resolve for this model: the default runtime is the release
// that exported the file or, for a file without a graph, its capture.
func (m *Model) resolve(c Config) (*job, error) {
	assumed := ""
	arena := c.OnArena()
	if arena {
		if err := c.arenaRefused(); err != nil {
			return nil, err
		}
		c.Runtime = "" // what else the report says is PyTorch's
	}
	if c.Runtime == "" {
		producer := m.info.Producer
		if m.capture != nil && !strings.HasPrefix(producer, "pytorch") {
			producer = "pytorch " + m.capture.Torch
		}
		r, why := profile.RuntimeOf(producer)
		c.Runtime, assumed = r.Name, why
	}
	m.capture.usual(&c)
	j, err := c.resolve()
	if err != nil {
		return nil, err
	}
	j.assumed, j.arena = assumed, arena
	return j, m.capture.ask(j)
}

// resolve looks all names up and fills in defaults.
func (c Config) resolve() (*job, error) {
	if len(c.Lengths) > 0 {
		return nil, errors.New("--dim: only analyze --phases draws sizes from a file: give NAME=N")
	}
	j := &job{cfg: c}
	if err := j.cfg.fill(); err != nil {
		return nil, err
	}
	gpu, door := cmp.Or(j.cfg.GPU, profile.Devices[0].Name), c.door()
	j.cfg.Accumulate = max(j.cfg.Accumulate, 1) // a plan may contain any number
	j.cfg.Runtime = cmp.Or(j.cfg.Runtime, profile.Runtimes[0].Name)
	var err error
	if j.device, err = device(door, gpu); err != nil {
		return nil, err
	}
	if j.runtime, err = runtime(door, j.cfg.Runtime); err != nil {
		return nil, err
	}
	if j.precision, err = profile.FindPrecision(j.cfg.Precision); err != nil {
		return nil, err
	}
	if j.cfg.Optimizer != "none" {
		if j.optimizer, err = profile.FindOptimizer(j.cfg.Optimizer); err != nil {
			return nil, err
		}
	}
	j.train = j.cfg.Mode == "train"
	j.order = attentionOrder(j.cfg.Attention, j.runtime, j.device)
	if j.headroom, err = ParseHeadroom(j.cfg.Headroom); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	if j.conf, err = alloc.ParseConf(j.cfg.AllocConf); err != nil {
		return nil, fmt.Errorf("--alloc-conf: %w", err)
	}
	if j.cfg.LoRA != "" {
		if j.lora, err = ParseLoRA(j.cfg.LoRA); err != nil {
			return nil, fmt.Errorf("--lora %w", err)
		}
	}
	if j.meshed, err = j.spreads(); err != nil {
		return nil, err
	}
	j.time = TimeModel{Device: j.device, TF32: j.runtime.MatmulTF32, Autocast: j.precision.Autocast}
	if j.time.Times, err = times(door, j.cfg.Times); err != nil {
		return nil, err
	}
	if j.time.Host, j.hostMeasured = j.device.HostBandwidth(); j.cfg.HostBandwidth > 0 {
		j.time.Host, j.hostMeasured = float64(j.cfg.HostBandwidth), true
	}
	if err := cmp.Or(j.offloadRefused(), j.inBackwardRefused()); err != nil {
		return nil, err
	}
	return j, j.budget()
}

// device finds a row of the table, or reads a calibration.
func device(d files.Door, name string) (*profile.Device, error) {
	if Several(name) {
		return nil, errors.New("--gpu: analyze compares several cards, everything else takes one")
	}
	if !profile.IsCalibration(name) {
		return profile.FindDevice(name)
	}
	c, err := profile.ReadCalibration(d, name)
	if err != nil {
		return nil, fmt.Errorf("--gpu: %w", err)
	}
	return c.GPU(), nil
}

// runtime finds a row of the table, or reads a calibration.
func runtime(d files.Door, name string) (*profile.Runtime, error) {
	if !profile.IsCalibration(name) {
		return profile.FindRuntime(name)
	}
	c, err := profile.ReadCalibration(d, name)
	if err != nil {
		return nil, fmt.Errorf("--runtime: %w", err)
	}
	r, _ := c.Runtime()
	return r, nil
}

// mostGigabytes is the largest number without a unit that is taken to be meant
// in gigabytes.
const mostGigabytes = 4096

// budget subtracts the CUDA context from the card's memory.
func (j *job) budget() error {
	j.vram = j.cfg.VRAM
	if j.vram == 0 && j.cfg.GPU != "" {
		j.vram = j.device.Memory
	}
	if j.vram == 0 {
		return nil
	}
	if j.cap = j.vram - j.besides(); j.cap <= 0 && j.vram <= mostGigabytes {
		return fmt.Errorf("--vram %d is a size in bytes: did you mean %dG?", j.vram, j.vram)
	}
	if j.cap <= 0 {
		what := "context"
		if j.meshed != nil {
			what = "context with NCCL's communicators"
		}
		return fmt.Errorf("--vram %s is less than the CUDA %s of %s alone takes, %s", profile.FormatBytes(j.vram), what, j.device.Name, profile.FormatBytes(j.besides()))
	}
	j.hard = j.cap
	return nil
}

// Attentions lists the values of --attention.
var Attentions = []string{"auto", "eager", "efficient", "flash", "cudnn"}

func attentionOrder(name string, r *profile.Runtime, d *profile.Device) []string {
	switch name {
	case "auto":
		return r.AttentionOrder(d.Compute)
	case "eager":
		return []string{profile.Math}
	}
	return []string{name}
}

// options returns the options of package train.
func (m *Model) options(j *job, segs []train.Segment) (train.Options, error) {
	if m.ready == nil || m.trains != j.train {
		m.ready, m.trains = train.Prepare(m.lifted, j.train), j.train
	}
	o := train.Options{Prepared: m.ready, Train: j.train, Loss: j.cfg.Loss, Segments: segs, Micros: j.micros(), Hold: j.cfg.Hold, InBackward: j.cfg.InBackward, Retrain: m.lifted.Eval, LoRA: j.lora, Config: aten.Config{
		TF32: j.runtime.ConvTF32, GemmWorkspace: j.runtime.CuBLASBytes(j.device.Compute),
		LtWorkspace: j.runtime.LtBytes, LtPerCall: j.runtime.Lt == profile.LtPerCall, GemmPerCall: j.runtime.CuBLASPerCall, SMs: j.device.SMs, ThreadsPerSM: threadsPerSM(j.device),
		Major: j.device.Compute.Major, Ring: j.ring(), Attention: j.order, ConvWorkspace: m.convWorkspace, RMSNormFloat32: j.runtime.RMSNormFull,
	}}
	if j.precision.Autocast {
		o.Config.Autocast = j.precision.Compute
	} else {
		o.Storage = j.precision.Storage
	}
	if err := m.expertOptions(j, &o); err != nil {
		return o, err
	}
	o.Rule = "none"
	if opt := j.optimizer; opt != nil {
		o.Rule = opt.Name
		o.Update = func(ps []train.UpdateParam, first bool) []train.UpdateEvent {
			return updateEvents(opt.Step(profileParams(ps, o.Config), first))
		}
		o.Construct = func(ps []train.UpdateParam) []train.UpdateEvent {
			return updateEvents(opt.Construct(profileParams(ps, o.Config)))
		}
	}
	if _, hosted := j.cfg.offloads(); hosted && o.Update != nil {
		o.Update = j.hostedUpdate(o.Update)
	}
	if len(j.cfg.Freeze) == 0 {
		return o, nil
	}
	off, notes, err := m.frozen(j.cfg.Freeze)
	o.Frozen, o.Warnings = func(name string) bool { return off[name] }, notes
	return o, err
}

// threadsPerSM is the number of resident threads of a multiprocessor (CUDA C
// Programming Guide, compute capabilities).
func threadsPerSM(d *profile.Device) int {
	switch {
	case d.Compute == profile.Capability{Major: 7, Minor: 5}:
		return 1024
	case d.Compute.Major == 8 && d.Compute.Minor != 0, d.Compute.Major == 12:
		return 1536
	}
	return 2048
}

func profileParams(ps []train.UpdateParam, c aten.Config) []profile.Param {
	list := make([]profile.Param, len(ps))
	for i, p := range ps {
		list[i] = profile.Param{Elems: p.Elems, DType: p.DType, Dims: p.Shape}
		if n := len(p.Shape); n > 1 {
			list[i].Partials = c.ReduceScratch(p.DType, p.Shape, n-2)
		}
	}
	return list
}

func updateEvents(evs []profile.Event) []train.UpdateEvent {
	out := make([]train.UpdateEvent, len(evs))
	for i, e := range evs {
		out[i] = train.UpdateEvent{ID: e.ID, Free: e.Free, Bytes: e.Bytes, Param: e.Param, Name: e.Name, State: e.State}
	}
	return out
}

// convWorkspace caches the workspaces of a model's convolutions.
func (m *Model) convWorkspace(c cudnn.Conv, p cudnn.Pass) cudnn.Estimate {
	k := convKey{c, p}
	w, ok := m.conv[k]
	if !ok {
		if m.scratch == nil {
			m.scratch = cudnn.NewPredictor()
		}
		w = m.scratch.Workspace(c, p)
		m.conv[k] = w
	}
	return w
}

// An evaluation is one configuration's program and its replay.
type evaluation struct {
	*train.Build
	res  *liveness.Result
	fail *liveness.Failure // the point at which the replay exceeded the cap, or nil

	conf  alloc.Conf // of the replay's allocator
	limit int64      // its cap, 0 for none
}

// build builds the program of a step at one batch size.
func (m *Model) build(j *job, batch int64, segs []train.Segment) (*train.Build, error) {
	if err := m.wrap(j, batch); err != nil {
		return nil, err
	}
	if err := m.boundFor(j, batch); err != nil {
		return nil, err
	}
	o, err := m.options(j, segs)
	if err != nil {
		return nil, err
	}
	b, err := m.whole(j, batch, segs, o)
	if err != nil {
		return nil, err
	}
	m.made += len(b.Nodes) + stepEffort
	return j.rank(b, o.Update)
}

// rank turns the program of a step on one card into that of the job's rank.
func (j *job) rank(b *train.Build, update shard.Update) (*train.Build, error) {
	if j.meshed == nil {
		return b, nil
	}
	err := j.meshed.rings(b)
	if err != nil {
		return nil, err
	}
	if b, err = j.meshed.Apply(b, j.meshed.place, update); err != nil {
		return nil, fmt.Errorf("--parallel %s: %w", j.meshed.Mesh, err)
	}
	return j.meshed.born(b, cmp.Or(j.hard, j.device.Memory)), nil
}

// whole makes the program of a step on one card, which the ranks of many meshes start from.
func (m *Model) whole(j *job, batch int64, segs []train.Segment, o train.Options) (*train.Build, error) {
	if m.wholes == nil {
		return train.New(m.lifted, o)
	}
	key := fmt.Sprint(j.precision.Name, j.micros(), batch, j.ring(), j.expertRanks(), segs)
	if b := m.wholes[key]; b != nil {
		return b, nil
	}
	b, err := train.New(m.lifted, o)
	if err == nil {
		m.wholes[key] = b
	}
	return b, err
}

// evaluate builds and replays a step, under the job's cap or without limit.
func (m *Model) evaluate(j *job, batch int64, segs []train.Segment, capped bool) (*evaluation, error) {
	b, err := m.build(j, batch, segs)
	if err != nil {
		return nil, err
	}
	return replay(b, j, capped)
}

func replay(b *train.Build, j *job, capped bool) (*evaluation, error) {
	limit := int64(0)
	if capped {
		limit = j.cap
	}
	res, err := liveness.Replay[alloc.Handle](b.Program, alloc.NewCaching(j.conf, limit), steps)
	ev := &evaluation{Build: b, res: res, conf: j.conf, limit: limit}
	if err != nil && !errors.As(err, &ev.fail) {
		return nil, err
	}
	return ev, nil
}

// needsBatch reports whether the model has an unbound batch dimension.
func (m *Model) needsBatch(c *Config) (bool, error) {
	if err := m.bind(0, c.Dims, c.Shapes); err != nil {
		return false, err
	}
	return len(infer.Unbound(m.g)) > 0, nil
}

// fixedBatch returns the batch of a question that does not search for one.
func (m *Model) fixedBatch(j *job) (int64, error) {
	if j.cfg.Batch > 0 {
		return j.cfg.Batch, nil
	}
	open, err := m.needsBatch(&j.cfg)
	if err != nil {
		return 0, err
	}
	if open {
		names := infer.Unbound(m.g)
		if err := m.bind(1, j.cfg.Dims, j.cfg.Shapes); err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("%s: %s", m.Path, unboundText(names, infer.Unbound(m.g)))
	}
	return m.leadingDim(), nil
}

// unboundText says which dims are not bound, and which of them a batch would leave open.
func unboundText(names, open []string) string {
	is := "dimension " + names[0] + " is"
	if n := len(names) - 1; n > 0 {
		is = "dimensions " + strings.Join(names[:n], ", ") + " and " + names[n] + " are"
	}
	var give []string
	switch {
	case len(open) == 0:
		give = []string{fmt.Sprintf("--batch N, --batch max with --vram, or --dim %s=N", names[0])}
	case len(open) < len(names):
		give = []string{"--batch N (or max, with --vram)"}
	}
	for _, s := range open {
		give = append(give, fmt.Sprintf("--dim %s=N", s))
	}
	return is + " not bound: give " + strings.Join(give, " and ")
}

// leadingDim returns the batch that the file fixes: the first dim of the first
// input, or 0.
func (m *Model) leadingDim() int64 {
	for _, id := range m.g.Inputs {
		if s := m.g.Values[id].Type.Shape; len(s) > 0 {
			if n, ok := s[0].Int(); ok {
				return n
			}
		}
	}
	return 0
}
