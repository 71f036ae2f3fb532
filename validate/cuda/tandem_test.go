//go:build cuda

package cuda

import (
	"context"
	"encoding/binary"
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
)

var modelDir = flag.String("models", filepath.Join("..", "testdata", "golden"), "folder of the models that run on both devices")

// A tandem runs every call on two devices: on the GPU with the operands as they
// are on the processor, so that errors do not add up, and compares what both
// make.
type tandem struct {
	*cpu.Device
	gpu    *Device
	size   int64
	worst  map[string]float64 // largest difference of each kernel, relative to its tolerance
	calls  map[string]int
	faults []string
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

// tensors are what a call may write: in-place kernels their operands, an
// optimizer parameters and states.
func written(c *validate.Call) []validate.Tensor {
	var out []validate.Tensor
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

func extent(t *validate.Tensor) int64 {
	n := int64(1)
	for i := range t.Shape {
		if t.Shape[i] == 0 {
			return 0
		}
		n += (t.Shape[i] - 1) * t.Strides[i]
	}
	return t.DType.Bytes(n)
}

// share brings a tensor's bytes from the processor to the GPU.
func (d *tandem) share(t *validate.Tensor) error {
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
	if err := d.gpu.Run(c); err != nil {
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

func (d *tandem) compare(c *validate.Call, t *validate.Tensor) error {
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
	index := make([]int64, len(t.Shape))
	for i := range int(t.Elems()) {
		off := int64(0)
		for k, v := range index {
			off += v * t.Strides[k]
		}
		x, y := element(t.DType, a, off), element(t.DType, b, off)
		if !math.IsInf(x, 0) {
			top = max(top, math.Abs(x))
		}
		if diff := math.Abs(x - y); diff > far || diff != diff && !(math.IsNaN(x) && math.IsNaN(y)) && x != y {
			far, at = diff, i
			if diff != diff {
				far = math.Inf(1)
			}
		}
		for k := len(index) - 1; k >= 0; k-- {
			if index[k]++; index[k] < t.Shape[k] {
				break
			}
			index[k] = 0
		}
	}
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
func (d *tandem) largest(t *validate.Tensor) float64 {
	buf := make([]byte, extent(t))
	if err := d.Device.Download(buf, t.At); err != nil {
		return 0
	}
	top := 0.0
	for i := range int64(len(buf)) / t.DType.Bytes(1) {
		if x := math.Abs(element(t.DType, buf, i)); !math.IsInf(x, 0) && x == x {
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

// element reads one number.
func element(d graph.DType, b []byte, i int64) float64 {
	switch d {
	case graph.Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	case graph.Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	case graph.BFloat16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
	case graph.Float16:
		h := binary.LittleEndian.Uint16(b[2*i:])
		s, e, m := 1.0, int(h>>10&31), float64(h&1023)
		if h>>15 != 0 {
			s = -1
		}
		switch e {
		case 0:
			return s * math.Ldexp(m, -24)
		case 31:
			if m != 0 {
				return math.NaN()
			}
			return math.Inf(int(s))
		}
		return s * math.Ldexp(1024+m, e-25)
	case graph.Int64, graph.Uint64:
		return float64(int64(binary.LittleEndian.Uint64(b[8*i:])))
	case graph.Int32:
		return float64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return float64(b[i])
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
	gpu, err := Open(Options{FP32: true, NoDNN: own})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	}()
	d := &tandem{Device: cpu.New(), gpu: gpu, worst: map[string]float64{}, calls: map[string]int{}}
	if list := validate.Unsupports(d, p.Program); len(list) > 0 {
		t.Skipf("neither device runs it: %v", list)
	}
	work, err := validate.Works(gpu, p.Program)
	if err != nil {
		t.Fatal(err)
	}
	l := validate.NewLayoutFor(p.Program, work)
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
	t.Logf("%d calls of %d kernels in %v with %v", n, len(d.calls), time.Since(start).Round(time.Millisecond), gpu.Libraries())
}
