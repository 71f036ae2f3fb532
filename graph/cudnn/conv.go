// Package cudnn predicts the workspace that cuDNN requests from PyTorch's
// allocator for a convolution: memory taken when the call starts and given back
// when it returns, and often as large as the call's operands together.
//
// Which kernel cuDNN takes is its own heuristic's choice and cannot be derived
// from the graph; given the kernel, the size is a formula of the shapes. The
// package holds what the heuristic chose for the convolutions that were
// measured, the formulas, and for all others decision trees that tell which
// formula holds.
package cudnn

import (
	"fmt"
	"math"
	"math/bits"
)

// A Pass is one of the three computations of a convolution. Each has a kernel
// and a workspace of its own.
type Pass uint8

// The passes. For a transposed convolution they are named from its own point
// of view: Forward computes its output.
const (
	Forward    Pass = iota
	DataGrad        // gradient of the input
	WeightGrad      // gradient of the weight
	numPasses  = iota
)

var passNames = [numPasses]string{"forward", "data gradient", "weight gradient"}

// String returns the pass's name in words.
func (p Pass) String() string {
	if int(p) < len(passNames) {
		return passNames[p]
	}
	return fmt.Sprintf("Pass(%d)", uint8(p))
}

// A Type is the arithmetic of a convolution: its operands' type, and whether
// 32-bit products may be rounded to TF32.
type Type uint8

// The types. PyTorch allows TF32 in convolutions by default, so a float32
// model's convolutions are TF32 unless it turned that off.
const (
	TF32 Type = iota
	Float16
	BFloat16
	Float32  // float32 with TF32 forbidden
	numTypes = iota
)

var types = [numTypes]struct {
	name string
	size int64 // bytes of an element
}{
	TF32:     {"tf32", 4},
	Float16:  {"float16", 2},
	BFloat16: {"bfloat16", 2},
	Float32:  {"float32", 4},
}

// String returns the type's name.
func (t Type) String() string {
	if int(t) < len(types) {
		return types[t].name
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// rounded returns t with TF32 allowed. Depthwise kernels do not use tensor
// cores, so that channels-last float32 tensors get the same kernels either way.
func (t Type) rounded() Type {
	if t == Float32 {
		return TF32
	}
	return t
}

// A Conv is a two-dimensional convolution without bias. A one-dimensional one
// is a Conv with H, R, StrideH and DilH of 1 and PadH of 0, which is how
// PyTorch runs it.
//
// A three-dimensional one has a Depth; its families are those of the
// two-dimensional convolution whose rows are its slices' rows together.
type Conv struct {
	N, C, H, W       int64 // input: batch, channels, rows, columns
	K, R, S          int64 // output channels, kernel's rows and columns
	StrideH, StrideW int64
	PadH, PadW       int64 // on each side
	DilH, DilW       int64
	Groups           int64
	Transposed       bool
	OutPadH, OutPadW int64 // rows and columns added to a transposed convolution's output
	Type             Type
	ChannelsLast     bool // NHWC tensors
	Depth            Extent
}

// An Extent is one more spatial dim; the zero Extent means there is none.
type Extent struct{ In, Kernel, Stride, Pad, Dil, OutPad int64 }

// sizes returns the input's, kernel's and output's lengths, 1 for the zero
// Extent.
func (e *Extent) sizes(transposed bool) (in, kernel, out int64) {
	if e.In == 0 {
		return 1, 1, 1
	}
	return e.In, e.Kernel, outExtent(transposed, e.In, e.Kernel, max(e.Stride, 1), e.Pad, max(e.Dil, 1), e.OutPad)
}

// Check returns an error naming the field if c is not a valid convolution: an
// extent below 1, a negative padding, channels that the groups do not divide,
// an output without elements, or a tensor of 2^62 bytes or more.
func (c Conv) Check() error {
	for _, f := range []struct {
		name  string
		value int64
		least int64
	}{
		{"batch", c.N, 1}, {"input channels", c.C, 1}, {"input rows", c.H, 1}, {"input columns", c.W, 1},
		{"output channels", c.K, 1}, {"kernel rows", c.R, 1}, {"kernel columns", c.S, 1},
		{"row stride", c.StrideH, 1}, {"column stride", c.StrideW, 1},
		{"row padding", c.PadH, 0}, {"column padding", c.PadW, 0},
		{"row dilation", c.DilH, 1}, {"column dilation", c.DilW, 1}, {"groups", c.Groups, 1},
		{"output row padding", c.OutPadH, 0}, {"output column padding", c.OutPadW, 0},
	} {
		if f.value < f.least {
			return fmt.Errorf("convolution: %s %d below %d", f.name, f.value, f.least)
		}
		if f.value > math.MaxInt32 {
			return fmt.Errorf("convolution: %s %d above 2^31-1", f.name, f.value)
		}
	}
	if int(c.Type) >= len(types) {
		return fmt.Errorf("convolution: unknown type %d", c.Type)
	}
	if c.C%c.Groups != 0 || c.K%c.Groups != 0 {
		return fmt.Errorf("convolution: %d groups do not divide %d input and %d output channels", c.Groups, c.C, c.K)
	}
	p, q := c.OutSize()
	d, t, o := c.Depth.sizes(c.Transposed)
	if min(d, t, o) < 1 || max(d, t, o) > math.MaxInt32 {
		return fmt.Errorf("convolution: depth %d, kernel %d, output %d", d, t, o)
	}
	if p < 1 || q < 1 {
		return fmt.Errorf("convolution: output of %d x %d", p, q)
	}
	for _, t := range [...][4]int64{{c.N, c.C, c.H * d, c.W}, {c.K, c.C / c.Groups, c.R * t, c.S}, {c.N, c.K, p * o, q}} {
		if _, ok := product(t); !ok {
			return fmt.Errorf("convolution: tensor %v has 2^60 elements or more", t)
		}
	}
	return nil
}

// OutSize returns the rows and columns of the output.
func (c Conv) OutSize() (rows, cols int64) {
	return outExtent(c.Transposed, c.H, c.R, c.StrideH, c.PadH, c.DilH, c.OutPadH),
		outExtent(c.Transposed, c.W, c.S, c.StrideW, c.PadW, c.DilW, c.OutPadW)
}

func outExtent(transposed bool, in, kernel, stride, pad, dil, outPad int64) int64 {
	reach := dil*(kernel-1) + 1
	if transposed {
		return (in-1)*stride - 2*pad + reach + outPad
	}
	room := in + 2*pad - reach
	if room < 0 {
		return 0
	}
	return room/stride + 1
}

// product multiplies extents; ok is false at 2^60 and above.
func product(t [4]int64) (n int64, ok bool) {
	u := uint64(1)
	for _, d := range t {
		hi, lo := bits.Mul64(u, uint64(d))
		if hi != 0 || lo >= 1<<60 {
			return 0, false
		}
		u = lo
	}
	return int64(u), true
}

// OwnDepthwise reports whether PyTorch runs the convolution on a depthwise kernel of
// its own, which takes no workspace: true of all depthwise ones except some of fp16
// and those of channels-last tensors (use_cudnn_depthwise and
// check_cudnn_depthwise_workload_with_filter, aten/src/ATen/native/Convolution.cpp).
func (c *Conv) OwnDepthwise() bool {
	if c.Groups <= 1 || c.Groups != c.C || c.K%c.C != 0 || c.Transposed {
		return false
	}
	if c.Depth.In > 0 {
		return !c.ChannelsLast
	}
	if c.ChannelsLast {
		return c.N*c.C*c.H*c.W > math.MaxInt32 // cuDNN 9.11 and later cannot
	}
	if c.Type != Float16 || c.C < 32 || c.DilH != 1 || c.DilW != 1 || c.StrideH != c.StrideW && c.H != 1 {
		return true
	}
	switch {
	case c.H == 1 && c.StrideW == 1:
		return false
	case c.R != c.S || c.S != 1 && c.S != 3 && c.S != 5 || c.W < 7 || c.StrideW > 2:
		return true
	case c.StrideW == 1:
		return false
	case c.N == 1:
		return c.S == 1 && c.W > 28
	case c.S == 1:
		return c.N > 16 || c.C < 128 || c.W > 7
	}
	return c.C < 512 && (c.C < 256 || c.W < 28)
}
