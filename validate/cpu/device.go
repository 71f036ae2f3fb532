// Package cpu is a device in plain Go: slow, exact, with every kernel. Numbers
// are kept in the tensors' types; products and sums are computed in float32,
// elementwise kernels in float64 and rounded once.
package cpu

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/profile"
	"github.com/memplan/memplan/validate"
)

// Device is the processor that this program runs on.
type Device struct {
	arena   []byte
	timing  bool
	times   []time.Duration
	workers int
}

// New returns the device.
func New() *Device { return &Device{workers: runtime.GOMAXPROCS(0)} }

// Info describes the device.
func (d *Device) Info() validate.Info {
	return validate.Info{Name: runtime.GOARCH + ", " + fmt.Sprint(d.workers) + " threads", Kind: "cpu", Driver: runtime.Version(), Exact: true}
}

// Supports returns why the device cannot run n, or nil.
func (d *Device) Supports(n *program.Node) error {
	if err := validate.Complete(n); err != nil {
		return err
	}
	if _, ok := kernels[n.Does()]; !ok {
		return fmt.Errorf("%s: not on this device", n.Does())
	}
	for _, t := range append(n.In, n.Out...) {
		if _, ok := codecs[t.DType]; !ok && n.Does() != "step" {
			return fmt.Errorf("%s: elements of type %v", n.Does(), t.DType)
		}
	}
	if c := n.Attrs; c != nil && c.Conv != nil && len(c.Conv.Stride) > 3 {
		return fmt.Errorf("%s: %d spatial dims", n.Does(), len(c.Conv.Stride))
	}
	if n.Does() == "step" {
		if rules[n.Attrs.Rule.Optimizer] == nil {
			return fmt.Errorf("step: optimizer %s", n.Attrs.Rule.Optimizer)
		}
	}
	return nil
}

// Work returns 0: no library runs here.
func (d *Device) Work(*program.Node) (int64, error) { return 0, nil }

// Needs returns 0.
func (d *Device) Needs(*program.Node) (int64, error) { return 0, nil }

// Prepare has nothing to do.
func (d *Device) Prepare([]*validate.Call) error { return nil }

// Memory counts the arena: the processor has no driver that limits it.
func (d *Device) Memory() (free, total int64, err error) {
	return math.MaxInt64 - int64(len(d.arena)), math.MaxInt64, nil
}

// Reserve allocates the arena.
func (d *Device) Reserve(bytes int64) error {
	if d.arena != nil {
		return errors.New("cpu: the arena is there already")
	}
	if free := available(); bytes > math.MaxInt-8 || free > 0 && bytes > free {
		return fmt.Errorf("cpu: the arena takes %s, and %s of memory are free: take a smaller batch", profile.FormatBytes(bytes), profile.FormatBytes(free))
	}
	d.arena = aligned(bytes)
	return nil
}

// available returns the bytes that Linux can allocate; 0 elsewhere.
func available() int64 {
	text, _ := os.ReadFile("/proc/meminfo") //nolint:forbidigo // the system's own, which no document names
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

func (d *Device) span(offset, n int64) ([]byte, error) {
	if offset < 0 || n < 0 || offset+n > int64(len(d.arena)) {
		return nil, fmt.Errorf("cpu: bytes %d to %d are outside the arena of %d", offset, offset+n, len(d.arena))
	}
	return d.arena[offset : offset+n], nil
}

// Upload copies data into the arena.
func (d *Device) Upload(offset int64, data []byte) error {
	to, err := d.span(offset, int64(len(data)))
	copy(to, data)
	return err
}

// Download copies from the arena.
func (d *Device) Download(data []byte, offset int64) error {
	from, err := d.span(offset, int64(len(data)))
	copy(data, from)
	return err
}

// Fill sets bytes of the arena.
func (d *Device) Fill(offset, n int64, value byte) error {
	to, err := d.span(offset, n)
	if len(to) > 0 {
		to[0] = value
		for n := 1; n < len(to); n *= 2 {
			copy(to[n:], to[:n])
		}
	}
	return err
}

// Run runs a call to its end.
func (d *Device) Run(c *validate.Call) (err error) {
	f := kernels[c.Kernel]
	if f == nil {
		return fmt.Errorf("cpu: no kernel %s", c.Kernel)
	}
	start := time.Now() //nolint:forbidigo // calls are measured
	if err := d.inside(c); err != nil {
		return err
	}
	if err := f(&run{d, c}); err != nil {
		return fmt.Errorf("cpu: %s %q: %w", c.Kernel, c.Node.Name, err)
	}
	if d.timing {
		d.times = append(d.times, time.Since(start))
	}
	return nil
}

// inside returns an error for a tensor that is not entirely in the arena:
// kernels do not check.
func (d *Device) inside(c *validate.Call) error {
	check := func(t *validate.ArenaView) error {
		if t.At < 0 || t.Elems() == 0 {
			return nil
		}
		last := int64(1)
		for i, n := range t.Shape {
			last += (n - 1) * t.Strides[i]
		}
		_, err := d.span(t.At, t.DType.Bytes(last))
		return err
	}
	for i := range c.Args {
		if c.Args[i].Kind == validate.OnDevice {
			if err := check(&c.Args[i].Tensor); err != nil {
				return err
			}
		}
	}
	for i := range c.Results {
		if err := check(&c.Results[i]); err != nil {
			return err
		}
	}
	return nil
}

// Sync does nothing: calls have ended.
func (d *Device) Sync() error { return nil }

// Timing starts or ends measuring.
func (d *Device) Timing(on bool) error {
	d.timing, d.times = on, nil
	return nil
}

// Times returns the measured times.
func (d *Device) Times() ([]time.Duration, error) { return d.times, nil }

// Close releases the arena.
func (d *Device) Close() error {
	d.arena = nil
	return nil
}

// A run is one call on the device.
type run struct {
	d *Device
	c *validate.Call
}

func (r *run) attrs() *program.Attrs { return r.c.Node.Attrs }

// scalar returns a scalar of the call, by its name in the kernel's row.
func (r *run) scalar(name string) float64 { return r.c.Scalar(name) }

// has reports whether operand i is present.
func (r *run) has(i int) bool { return i < len(r.c.Args) && r.c.Args[i].Kind != validate.IsAbsent }

// wants reports whether result i is wanted.
func (r *run) wants(i int) bool { return i < len(r.c.Results) && r.c.Results[i].At >= 0 }

// shape returns the shape of operand i.
func (r *run) shape(i int) []int64 {
	switch a := &r.c.Args[i]; a.Kind {
	case validate.OnDevice:
		return a.Tensor.Shape
	case validate.IsArray:
		return a.Shape
	}
	return nil
}

// parallel splits [0, n) over the workers in pieces of at least grain.
func (r *run) parallel(n, grain int, f func(lo, hi int)) {
	w := min(r.d.workers, (n+grain-1)/max(grain, 1))
	if w <= 1 {
		if n > 0 {
			f(0, n)
		}
		return
	}
	var wg sync.WaitGroup
	for i := range w {
		lo, hi := n*i/w, n*(i+1)/w
		wg.Go(func() { f(lo, hi) })
	}
	wg.Wait()
}

func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

func fromF16(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 0:
		f := float32(frac) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 255<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// toF16 rounds to nearest, ties to even; too large numbers become infinite.
func toF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	a := b & 0x7fffffff
	switch {
	case a > 0x7f800000:
		return sign | 0x7e00
	case a >= 0x477ff000: // 65520 and more
		return sign | 0x7c00
	case a < 0x38800000: // less than 2^-14: a multiple of 2^-24
		x := math.Float32frombits(a) * (1 << 24)
		return sign | uint16(math.RoundToEven(float64(x)))
	}
	a -= 112 << 23
	return sign | uint16((a+0xfff+a>>13&1)>>13)
}

// codecs lists the element types, with their size in bytes.
var codecs = map[graph.DType]int64{
	graph.Float32: 4, graph.Float64: 8, graph.Float16: 2, graph.BFloat16: 2, graph.Int64: 8, graph.Int32: 4, graph.Int16: 2, graph.Int8: 1, graph.Uint8: 1, graph.Bool: 1, graph.Uint64: 8,
}
