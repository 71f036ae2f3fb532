//go:build cuda

package cuda

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

var modelDir = flag.String("models", filepath.Join("..", "testdata", "golden"), "folder of the models that run on both devices")

// A tandem runs every call on two devices: on the GPU with the operands as they
// are on the processor, so that errors do not add up, and compares what both
// make.
type tandem struct {
	*cpu.Device
	gpu    *Device
	by     func(c *validate.Call) error // what runs a call on the GPU
	size   int64                        // of the arena, bytes
	worst  map[string]float64           // largest difference of each kernel, relative to its tolerance
	calls  map[string]int
	faults []string
}

// open opens the GPU for as long as a test runs.
func open(t *testing.T, o Options) *Device {
	t.Helper()
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// newTandem makes a tandem for as long as a test runs.
func newTandem(t *testing.T, o Options) *tandem {
	t.Helper()
	gpu := open(t, o)
	return &tandem{Device: cpu.New(), gpu: gpu, by: gpu.Run, worst: map[string]float64{}, calls: map[string]int{}}
}

// onBoth makes a bench of so many bytes on both devices. Each of its calls must
// give the same on both, and the same bits when the GPU runs it again.
func onBoth(t *testing.T, o Options, bytes int64) (*bench, *tandem) {
	t.Helper()
	d := newTandem(t, o)
	if err := d.Reserve(bytes); err != nil {
		t.Fatal(err)
	}
	do := func(b *bench, c *validate.Call) {
		b.t.Helper()
		if d.compared(b.t, c) {
			d.again(b.t, c)
		}
	}
	return (&bench{memory: d, do: do, number: units(8, 1./8)}).in(t), d
}

// shifted is the same bench for tensors that lie some elements behind a multiple
// of layout.Align.
func (b *bench) shifted(elements int64) *bench {
	sub := *b
	sub.shift = elements
	return &sub
}

// clear gives the place of all tensors to those that come.
func (b *bench) clear() { *b.top = 0 }

var trainingTypes = []graph.DType{graph.Float32, graph.Float16, graph.BFloat16}

// eachType runs a test on both devices for every training type, with tensors
// where packs may start and one element behind.
func eachType(t *testing.T, test func(b *bench, dt graph.DType)) {
	bench, d := onBoth(t, Options{FP32: true}, 256<<20)
	bench.number = units(64, 1./64)
	for _, dt := range trainingTypes {
		for shift := range int64(2) {
			t.Run(fmt.Sprintf("%v/%d", dt, shift), func(t *testing.T) {
				b := bench.in(t)
				b.shift = shift
				test(b, dt)
			})
		}
	}
	t.Logf("largest differences, relative to what is allowed: %v", d.worst)
}

// compared runs a call on both devices and reports whether they agree; where they
// do not, the test fails.
func (d *tandem) compared(t *testing.T, c *validate.Call) bool {
	t.Helper()
	d.faults = nil
	if err := d.Run(c); err != nil {
		t.Fatal(err)
	}
	for _, f := range d.faults {
		t.Error(f)
	}
	return len(d.faults) == 0
}

// again runs a call on the GPU once more, as a recomputation that finds NaNs
// where the results go: they must have the bits of the first run.
func (d *tandem) again(t *testing.T, c *validate.Call) {
	t.Helper()
	first := d.results(t, c)
	for i := range c.Results {
		if x := &c.Results[i]; x.At >= 0 {
			if err := d.gpu.Upload(x.At, nans(extent(x))); err != nil {
				t.Fatal(err)
			}
		}
	}
	recomputed := *c
	recomputed.Again = true
	if err := d.by(&recomputed); err != nil {
		t.Fatal(err)
	}
	for i, bits := range d.results(t, c) {
		if !bytes.Equal(first[i], bits) {
			t.Errorf("%s: result %d has other bits when it runs again (%s)", c.Kernel, i, operands(c))
		}
	}
}

// results are the bytes of a call's results on the GPU.
func (d *tandem) results(t *testing.T, c *validate.Call) [][]byte {
	out := make([][]byte, len(c.Results))
	for i := range c.Results {
		if x := &c.Results[i]; x.At >= 0 {
			out[i] = make([]byte, extent(x))
			if err := d.gpu.Download(out[i], x.At); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

// room gives a call scratch, more than any plan does, and the work that the GPU
// asks for, from an address of the arena on.
func (d *tandem) room(t *testing.T, c *validate.Call, at int64) {
	t.Helper()
	for range 4 {
		c.Scratch = append(c.Scratch, validate.Span{At: at, Bytes: 1 << 20})
		at += 1 << 20
	}
	work, err := d.gpu.Work(c.Node)
	if err != nil {
		t.Fatal(err)
	}
	if at+work > d.size {
		t.Fatalf("%s works in %d bytes", c.Kernel, work)
	}
	c.Work = validate.Span{At: at, Bytes: work}
}

func (d *tandem) Supports(n *program.Node) error {
	if err := d.Device.Supports(n); err != nil {
		return err
	}
	return d.gpu.Supports(n)
}

func (d *tandem) Prepare(calls []*validate.Call) error { return d.gpu.Prepare(calls) }

func (d *tandem) Reserve(bytes int64) error {
	if err := d.gpu.Reserve(bytes); err != nil {
		return err
	}
	d.size = bytes
	return d.Device.Reserve(bytes)
}

// within gives how far a kernel's results of a type may be off, relative to the
// largest number of the tensor.
func within(kernel string, d graph.DType) float64 {
	long := strings.Contains(kernel, "backward") || strings.HasPrefix(kernel, "_scaled") || kernel == "convolution" || strings.HasSuffix(kernel, "mm")
	switch d {
	case graph.Float16:
		return 2.5e-3
	case graph.BFloat16:
		return 2e-2
	case graph.Float32:
		if long {
			return 5e-5
		}
		return 1e-5
	}
	return 0
}

// written are the tensors that a call may write: in-place kernels their operands, an
// optimizer parameters and states.
func written(c *validate.Call) []validate.ArenaView {
	var out []validate.ArenaView
	for i := range c.Results {
		if c.Results[i].At >= 0 && c.Kernel != "empty" {
			out = append(out, c.Results[i])
		}
	}
	switch c.Kernel {
	case "batch_norm":
		for _, i := range []int{3, 4} {
			if c.Args[i].Kind == validate.OnDevice {
				out = append(out, c.Args[i].Tensor)
			}
		}
	case "step":
		for i, states := range c.States {
			p := c.Args[2*i].Tensor
			out = append(out, p)
			for _, s := range states {
				if s.Bytes == p.DType.Bytes(p.Elems()) {
					q := p
					q.At = s.At
					out = append(out, q)
				}
			}
		}
	}
	return out
}

// share brings a tensor's bytes from the processor to the GPU.
func (d *tandem) share(t *validate.ArenaView) error {
	buf := make([]byte, extent(t))
	if err := d.Device.Download(buf, t.At); err != nil {
		return err
	}
	return d.gpu.Upload(t.At, buf)
}

func (d *tandem) Run(c *validate.Call) error {
	for i := range c.Args {
		if c.Args[i].Kind == validate.OnDevice {
			if err := d.share(&c.Args[i].Tensor); err != nil {
				return err
			}
		}
	}
	out := written(c)
	for i := range out {
		if err := d.share(&out[i]); err != nil {
			return err
		}
	}
	if err := d.by(c); err != nil {
		d.faults = append(d.faults, err.Error())
		return d.Device.Run(c)
	}
	if err := d.gpu.Sync(); err != nil {
		return fmt.Errorf("%s: %w", c.Kernel, err)
	}
	if err := d.Device.Run(c); err != nil {
		return err
	}
	d.calls[c.Kernel]++
	for i := range out {
		if err := d.compare(c, &out[i]); err != nil {
			return err
		}
	}
	return nil
}

func (d *tandem) compare(c *validate.Call, t *validate.ArenaView) error {
	a, b := make([]byte, extent(t)), make([]byte, extent(t))
	if err := d.Device.Download(a, t.At); err != nil {
		return err
	}
	if err := d.gpu.Download(b, t.At); err != nil {
		return err
	}
	if len(a) == 0 {
		return nil
	}
	top, far, at := 0.0, 0.0, -1
	cases.Each(t.Shape, t.Strides, func(i int, off int64) {
		x, y := cases.Number(a, t.DType, off), cases.Number(b, t.DType, off)
		if !math.IsInf(x, 0) {
			top = max(top, math.Abs(x))
		}
		if diff := math.Abs(x - y); diff > far || diff != diff && !(math.IsNaN(x) && math.IsNaN(y)) && x != y {
			far, at = diff, i
			if diff != diff {
				far = math.Inf(1)
			}
		}
	})
	if far == 0 {
		return nil
	}
	for i := range c.Args { // sums of large numbers may be small
		if i < 3 && c.Args[i].Kind == validate.OnDevice && c.Args[i].Tensor.DType.IsFloat() {
			top = max(top, d.largest(&c.Args[i].Tensor)/16)
		}
	}
	rel := far / max(top, 1e-6)
	limit := within(c.Kernel, t.DType)
	if limit > 0 {
		d.worst[c.Kernel] = max(d.worst[c.Kernel], rel/limit)
	}
	if rel > limit && len(d.faults) < 40 {
		d.faults = append(d.faults, fmt.Sprintf("%s %q to %v%v strides %v: element %d is off by %.3g, the largest number is %.3g (%s)", c.Kernel, c.Node.Name, t.DType, t.Shape, t.Strides, at, far, top, operands(c)))
	}
	return nil
}

// largest is the largest number of a contiguous run of a tensor on the processor.
func (d *tandem) largest(t *validate.ArenaView) float64 {
	buf := make([]byte, extent(t))
	if err := d.Device.Download(buf, t.At); err != nil {
		return 0
	}
	top := 0.0
	for i := range int64(len(buf)) / t.DType.Bytes(1) {
		if x := math.Abs(cases.Number(buf, t.DType, i)); !math.IsInf(x, 0) && x == x {
			top = max(top, x)
		}
	}
	return top
}

func operands(c *validate.Call) string {
	var s []string
	for i := range c.Args {
		if t := &c.Args[i].Tensor; c.Args[i].Kind == validate.OnDevice && i < 6 {
			s = append(s, fmt.Sprintf("%v%v%v", t.DType, t.Shape, t.Strides))
		}
	}
	return strings.Join(s, " ")
}

// TestTandem runs training steps call by call on the GPU and on the processor.
func TestTandem(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(*modelDir, "*.onnx"))
	if err != nil || len(files) == 0 {
		t.Fatal("no models", err)
	}
	for _, f := range files {
		for _, precision := range []string{"fp32", "amp-bf16", "bf16", "fp16"} {
			for _, own := range []bool{false, true} {
				if own && precision == "amp-bf16" {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/own=%v", strings.TrimSuffix(filepath.Base(f), ".onnx"), precision, own), func(t *testing.T) { runTandem(t, f, precision, own) })
			}
		}
	}
}

func runTandem(t *testing.T, file, precision string, own bool) {
	start := time.Now()
	m, err := planner.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.Program(planner.Config{Batch: 2, Optimizer: "adamw", Precision: precision})
	if err != nil {
		t.Fatal(err)
	}
	d := newTandem(t, Options{FP32: true, NoDNN: own})
	if list := validate.Unsupports(d, p.Program); len(list) > 0 {
		t.Skipf("neither device runs it: %v", list)
	}
	work, err := validate.Works(d.gpu, p.Program)
	if err != nil {
		t.Fatal(err)
	}
	l, err := validate.NewLayout(p.Program, work)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := validate.Execute(context.Background(), d, p.Program, l, validate.Options{Seed: 3, Steps: 2}); err != nil {
		t.Error(err)
	}
	for _, f := range d.faults {
		t.Error(f)
	}
	n := 0
	for _, c := range d.calls {
		n += c
	}
	t.Logf("%d calls of %d kernels in %v with %v", n, len(d.calls), time.Since(start).Round(time.Millisecond), d.gpu.Libraries())
}
