package profile

import (
	_ "embed" // the script
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/bounded"
)

// CalibrateScript is the Python program that measures a machine; what it
// prints is a Calibration.
//
//go:embed calibrate.py
var CalibrateScript string

// A Calibration is what calibrate.py measured of one machine's GPU and PyTorch.
// Sizes are bytes, rates operations or bytes a second.
type Calibration struct {
	SchemaVersion int
	Torch         string // version, "2.11.0+cu130"
	CUDA          string
	CuDNN         int
	TF32          struct{ Conv, Matmul bool }
	Benchmark     bool
	Workspaces    struct{ GEMM, Linear, LinearAgain taken }
	ContextBytes  int64
	Rates         struct{ FP32, TF32, Half, Bandwidth, Host float64 } // Host: of the slower direction, 0 if it was not measured
	Attention     []string                                            // kernels in the order tried; empty if PyTorch does not report it
	Device        struct {
		Name        string
		Capability  [2]int
		SMs         int
		L2Bytes     int64
		MemoryBytes int64
		BF16        bool
	}
}

// taken are the sizes of allocations that stayed, and of those that were freed.
type taken [2][]int64

// IsCalibration reports whether the value of a flag is a file instead of a
// row's name.
func IsCalibration(name string) bool {
	return strings.HasSuffix(name, ".json") || strings.ContainsAny(name, `/\`)
}

// ReadCalibration reads a file that memplan calibrate wrote, through the door of
// the command line or document that names it.
func ReadCalibration(d files.Door, name string) (*Calibration, error) {
	data, err := d.Read(name, files.Calibration)
	if err != nil {
		return nil, err
	}
	c, err := ParseCalibration(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// ParseCalibration parses the output of calibrate.py.
func ParseCalibration(data []byte) (*Calibration, error) {
	c := &Calibration{}
	if int64(len(data)) > files.Calibration.Limit {
		return nil, fmt.Errorf("no calibration has more than %d bytes", files.Calibration.Limit)
	}
	if err := bounded.Decode(data, c); err != nil {
		return nil, fmt.Errorf("no calibration: %w", err)
	}
	d := &c.Device
	switch {
	case c.SchemaVersion != 1:
		return nil, fmt.Errorf("no calibration of version 1 (schemaVersion %d)", c.SchemaVersion)
	case d.Name == "" || d.SMs <= 0 || d.SMs > 1<<16 || d.MemoryBytes <= 0 || d.MemoryBytes > 1<<50 || d.Capability[0] <= 0:
		return nil, fmt.Errorf("the device %q is not described", d.Name)
	case c.ContextBytes <= 0 || c.ContextBytes >= d.MemoryBytes:
		return nil, fmt.Errorf("a CUDA context of %d bytes on a card of %d", c.ContextBytes, d.MemoryBytes)
	case !(c.Rates.Bandwidth > 0 && c.Rates.FP32 > 0 && c.Rates.TF32 >= 0 && c.Rates.Half >= 0 && c.Rates.Host >= 0):
		return nil, fmt.Errorf("rates that are not positive: %+v", c.Rates)
	}
	for _, k := range c.Attention {
		if !slices.Contains([]string{CuDNN, Flash, Efficient, Math}, k) {
			return nil, fmt.Errorf("unknown attention kernel %q", k)
		}
	}
	for _, w := range []taken{c.Workspaces.GEMM, c.Workspaces.Linear, c.Workspaces.LinearAgain} {
		for _, n := range slices.Concat(w[0], w[1]) {
			if n < 0 || n > d.MemoryBytes {
				return nil, fmt.Errorf("a workspace of %d bytes", n)
			}
		}
	}
	return c, nil
}

// capability returns the device's compute capability.
func (c *Calibration) capability() Capability {
	return Capability{c.Device.Capability[0], c.Device.Capability[1]}
}

// GPU returns the measured device: its rates are those that large products and
// copies reached.
func (c *Calibration) GPU() *Device {
	d := &c.Device
	return &Device{Name: d.Name, Title: d.Name, Compute: c.capability(), SMs: d.SMs, L2: d.L2Bytes, Memory: d.MemoryBytes, Bandwidth: c.Rates.Bandwidth, Host: c.Rates.Host,
		FP32: c.Rates.FP32, TF32: max(c.Rates.TF32, 0), Half: c.Rates.Half, BF16: d.BF16, Context: c.ContextBytes,
		Source: "memplan calibrate", MemorySource: "memplan calibrate", ContextSource: "memplan calibrate"}
}

// Runtime returns the measured release. The allocator's constants, which
// calibrate.py does not measure, are those of the table's release of the same
// version, or of the newest; known reports which.
func (c *Calibration) Runtime() (r *Runtime, known bool) {
	base := Runtimes[0]
	release, _, _ := strings.Cut(c.Torch, "+")
	for i := range Runtimes {
		if release == strings.TrimPrefix(Runtimes[i].Name, "torch-") || strings.HasPrefix(release, strings.TrimPrefix(Runtimes[i].Name, "torch-")+".") {
			base, known = Runtimes[i], true
		}
	}
	base.Name, base.Aliases, base.CUDA, base.CuDNN = "torch-"+c.Torch, nil, c.CUDA, cudnnVersion(c.CuDNN)
	base.ConvTF32, base.MatmulTF32, base.Benchmark = c.TF32.Conv, c.TF32.Matmul, c.Benchmark
	base.Measured, base.Source = true, "memplan calibrate on "+c.Device.Name
	base.LargeOn = nil
	gemm := slices.Clone(c.Workspaces.GEMM[0])
	base.CuBLAS = last(gemm)
	// A linear layer in a thread of its own allocates the product's workspace
	// and cuBLASLt's; what stayed is the persistent one, what was freed that of
	// each call.
	rest := slices.DeleteFunc(slices.Clone(c.Workspaces.Linear[0]), func(n int64) bool { return n == base.CuBLAS })
	if n := last(rest); n > 0 {
		base.Lt, base.LtBytes = LtPersistent, n
	} else {
		base.Lt, base.LtBytes = LtPerCall, last(c.Workspaces.LinearAgain[1])
	}
	base.CuDNNFirst = nil
	if len(c.Attention) > 0 && c.Attention[0] == CuDNN {
		base.CuDNNFirst = []Capability{c.capability()}
	}
	return &base, known
}

// last returns the largest of sorted sizes, 0 for none.
func last(sizes []int64) int64 {
	if len(sizes) == 0 {
		return 0
	}
	return sizes[len(sizes)-1]
}

// cudnnVersion writes 91900 as 9.19.0 (and 8907 as 8.9.7).
func cudnnVersion(n int) string {
	if n < 10000 {
		return fmt.Sprintf("%d.%d.%d", n/1000, n/100%10, n%100)
	}
	return fmt.Sprintf("%d.%d.%d", n/10000, n/100%100, n%100)
}
