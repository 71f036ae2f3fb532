package profile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
)

// An Allocator holds the constants of PyTorch's caching allocator, in bytes.
type Allocator struct {
	MinBlock      int64 // requests are rounded up to a multiple of it
	SmallSize     int64 // larger rounded requests do not use the small pool
	SmallBuffer   int64 // segment of the small pool
	LargeBuffer   int64 // segment for a large request below MinLargeAlloc
	MinLargeAlloc int64 // requests from here on get a segment of their own
	RoundLarge    int64 // ... rounded up to a multiple of it
}

// allocator has not changed from 2.6 to 2.15. c10/cuda/CUDACachingAllocator.cpp
// to 2.8, c10/core/AllocatorConfig.h from 2.9 on.
var allocator = Allocator{
	MinBlock: 512, SmallSize: 1 * MiB, SmallBuffer: 2 * MiB,
	LargeBuffer: 20 * MiB, MinLargeAlloc: 10 * MiB, RoundLarge: 2 * MiB,
}

// An LtRegime says how cuBLASLt, which runs linear layers with a bias, gets
// its workspace.
type LtRegime uint8

// The regimes.
const (
	// LtPerCall allocates the workspace for each call and frees it after.
	LtPerCall LtRegime = iota
	// LtPersistent allocates one for each (thread, stream) at its first
	// cuBLASLt call, right after the cuBLAS workspace of the same thread if
	// that did not exist, and keeps it.
	LtPersistent
	// LtShared takes the cuBLAS workspace of the same (thread, stream).
	LtShared
)

// String returns "per call", "persistent" or "shared".
func (r LtRegime) String() string { return [...]string{"per call", "persistent", "shared"}[r] }

// Kernels of scaled_dot_product_attention, the values of --attention. Math is
// what "eager" runs: separate products and softmax.
const (
	CuDNN     = "cudnn"
	Flash     = "flash"
	Efficient = "efficient"
	Math      = "math"
)

// A Runtime is a PyTorch release for CUDA as installed from PyPI on Linux.
type Runtime struct {
	Name    string // "torch-2.11"
	Aliases []string
	CUDA    string // version the wheel was built with
	CuDNN   string // version the wheel requires

	Allocator Allocator
	// CuBLAS is the workspace in bytes of a (thread, stream) that ran a matrix
	// product, kept until the process ends: one in inference, two in training,
	// where the backward pass has a thread of its own. CuBLASLarge applies to
	// the capabilities in LargeOn. With CuBLASPerCall, each product allocates
	// its own workspace instead and frees it after the launch.
	CuBLAS, CuBLASLarge int64
	LargeOn             []Capability
	CuBLASPerCall       bool
	// Lt is cuBLASLt's regime, LtBytes the size of its workspace. Only the
	// forward thread of a usual model calls cuBLASLt.
	Lt      LtRegime
	LtBytes int64

	// CuDNNFirst lists the capabilities on which attention tries cuDNN before
	// flash, efficient and math; elsewhere cuDNN comes last and is never
	// reached.
	CuDNNFirst []Capability
	// ConvTF32 and MatmulTF32 are set if float32 convolutions and matrix
	// products may use TF32 tensor cores, Benchmark if cuDNN times its kernels,
	// Foreach if optimizers work on lists of tensors.
	ConvTF32, MatmulTF32, Benchmark, Foreach bool

	// RMSNormFull is set if autocast casts the operands of rms_norm to
	// float32 (pytorch#174824).
	RMSNormFull bool

	// Measured is set if the row was measured on a GPU; the others were read
	// from the release's sources.
	Measured bool
	Source   string
}

const (
	cublasSmall = 4096*1024*2 + 16*1024*8 // CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8
	cublasLarge = 4096 * 8 * 1024         // ...=:4096:8
)

var (
	hopper    = []Capability{{9, 0}}
	hopperOn  = []Capability{{9, 0}, {10, 0}}
	ultraOn   = []Capability{{9, 0}, {10, 0}, {10, 3}} // with GB300 and B300
	largeOn   = []Capability{{9, 0}, {10, 0}, {10, 3}, {12, 0}, {12, 1}}
	largeAll  = []Capability{{9, 0}, {10, 0}, {10, 3}, {11, 0}, {12, 0}, {12, 1}}
	poolFile  = "aten/src/ATen/cuda/CublasHandlePool.cpp"
	sdpaFile  = "aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"
	wheelNote = "; CUDA and cuDNN from the wheel's requirements"
	unchanged = "; the allocator's constants and the optimizers' code are those of 2.11; attention: pytorch#170800" + wheelNote
)

// Runtimes lists the releases, the newest first.
var Runtimes = []Runtime{
	{
		Name: "torch-2.15", Aliases: []string{"torch-2.15.0"}, CUDA: "13.2", CuDNN: "9.26.0", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: largeAll, CuBLASPerCall: true, Lt: LtPerCall, LtBytes: 1 * MiB, CuDNNFirst: ultraOn,
		ConvTF32: true, Foreach: true, RMSNormFull: true,
		Source: "workspaces of an operation: pytorch#194311 (August 2026), in the headers and libtorch_cuda of the wheel, " + poolFile + unchanged,
	},
	{
		Name: "torch-2.14", Aliases: []string{"torch-2.14.0"}, CUDA: "13.0", CuDNN: "9.24.0", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: largeAll, Lt: LtShared, CuDNNFirst: ultraOn,
		ConvTF32: true, Foreach: true, RMSNormFull: true,
		Source: "32 MiB on capabilities 9 to 12, one workspace for cuBLAS and cuBLASLt: libtorch_cuda of the wheel, parseChosenWorkspaceSize" + unchanged,
	},
	{
		Name: "torch-2.13", Aliases: []string{"torch-2.13.0"}, CUDA: "13.0", CuDNN: "9.20.0", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: largeOn, Lt: LtShared, CuDNNFirst: ultraOn,
		ConvTF32: true, Foreach: true, RMSNormFull: true,
		Source: "32 MiB on capabilities 9, 10 and 12, one workspace for cuBLAS and cuBLASLt: libtorch_cuda of the wheel, parseChosenWorkspaceSize" + unchanged,
	},
	{
		Name: "torch-2.12", Aliases: []string{"torch-2.12.0"}, CUDA: "13.0", CuDNN: "9.20.0", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: largeOn, Lt: LtShared, CuDNNFirst: ultraOn,
		ConvTF32: true, Foreach: true, RMSNormFull: true,
		Source: "32 MiB on capabilities 9, 10 and 12 (pytorch#175344), one workspace for cuBLAS and cuBLASLt (pytorch#168175, #175879): libtorch_cuda of the wheel, parseChosenWorkspaceSize and unified_cublas_and_lt_workspaces" + unchanged,
	},
	{
		Name: "torch-2.11", Aliases: []string{"torch-2.11.0"}, CUDA: "13.0", CuDNN: "9.19.0", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: hopper, Lt: LtPersistent, LtBytes: 1 * MiB, CuDNNFirst: hopperOn,
		ConvTF32: true, Foreach: true, Measured: true,
		Source: "measured on an H200 (testdata/torch-2.11-h200.json); other capabilities from " + poolFile + " and " + sdpaFile + wheelNote,
	},
	{
		Name: "torch-2.10", Aliases: []string{"torch-2.10.0"}, CUDA: "12.8", CuDNN: "9.10.2", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: hopper, Lt: LtPersistent, LtBytes: 1 * MiB,
		ConvTF32: true, Foreach: true,
		Source: poolFile + " of November 2025; " + sdpaFile + ": cuDNN first only above cuDNN 9.15.0" + wheelNote,
	},
	{
		Name: "torch-2.9", Aliases: []string{"torch-2.9.0", "torch-2.9.1"}, CUDA: "12.8", CuDNN: "9.10.2", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: hopper, Lt: LtPersistent, LtBytes: 1 * MiB, CuDNNFirst: hopperOn,
		ConvTF32: true, Foreach: true,
		Source: "persistent cublasLt workspace: pytorch#156495 (July 2025); " + sdpaFile + " of 2.9.1: cuDNN first from cuDNN 9.9.0 on" + wheelNote,
	},
	{
		Name: "torch-2.8", Aliases: []string{"torch-2.8.0"}, CUDA: "12.8", CuDNN: "9.10.2", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: hopper, Lt: LtPerCall, LtBytes: 1 * MiB,
		ConvTF32: true, Foreach: true,
		Source: "before pytorch#156495 and, for attention, pytorch#162073" + wheelNote,
	},
	{
		Name: "torch-2.7", Aliases: []string{"torch-2.7.0", "torch-2.7.1"}, CUDA: "12.6", CuDNN: "9.5.1", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: hopper, Lt: LtPerCall, LtBytes: 1 * MiB,
		ConvTF32: true, Foreach: true,
		Source: "before pytorch#156495 and, for attention, pytorch#162073" + wheelNote,
	},
	{
		Name: "torch-2.6", Aliases: []string{"torch-2.6.0"}, CUDA: "12.4", CuDNN: "9.1.0", Allocator: allocator,
		CuBLAS: cublasSmall, CuBLASLarge: cublasLarge, LargeOn: hopper, Lt: LtPerCall, LtBytes: 1 * MiB,
		ConvTF32: true, Foreach: true,
		Source: "source of commit 001074d25; before pytorch#156495 and, for attention, pytorch#162073" + wheelNote,
	},
}

func runtimeNames(r *Runtime) []string { return append([]string{r.Name}, r.Aliases...) }

// FindRuntime returns the runtime called name.
func FindRuntime(name string) (*Runtime, error) {
	return find("runtime", AllRuntimes(), runtimeNames, name)
}

// ONNXRuntime is the release of onnxruntime whose arena on a processor an inference may be asked
// about, as a runtime.
const ONNXRuntime = "ort-1.31"

// AllRuntimes are the releases of PyTorch, and ONNXRuntime, which has none of their fields.
func AllRuntimes() []Runtime {
	return append(slices.Clone(Runtimes), Runtime{Name: ONNXRuntime, Aliases: []string{"ort", "onnxruntime"}, Measured: true})
}

// RuntimeOf returns the release named by a model's producer, such as "pytorch
// 2.11.0+cu130": the row of its version, or the nearest row if the table lacks
// it. assumed then describes the substitution; it is "" if the row is the
// release's own. A producer other than PyTorch, or one without a version, gets
// the newest row.
func RuntimeOf(producer string) (r *Runtime, assumed string) {
	name, version, _ := strings.Cut(producer, " ")
	newest, oldest := &Runtimes[0], &Runtimes[len(Runtimes)-1]
	v, ok := release(version)
	if name != "pytorch" || !ok {
		return newest, ""
	}
	for i := range Runtimes {
		if at, _ := release(strings.TrimPrefix(Runtimes[i].Name, "torch-")); at == v {
			return &Runtimes[i], ""
		}
	}
	if at, _ := release(strings.TrimPrefix(oldest.Name, "torch-")); v[0] < at[0] || v[0] == at[0] && v[1] < at[1] {
		return oldest, fmt.Sprintf("the file was exported by PyTorch %d.%d, which is older than %s, the oldest release that memplan knows; that one is assumed", v[0], v[1], oldest.Name)
	}
	return newest, fmt.Sprintf("the file was exported by PyTorch %d.%d, which is newer than %s, the newest release that memplan knows; that one is assumed", v[0], v[1], newest.Name)
}

// release parses the first two numbers of a version such as "2.11.0+cu130".
func release(version string) (v [2]int, ok bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return v, false
	}
	for i := range v {
		n, err := strconv.Atoi(parts[i])
		if err != nil || n < 0 {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

// RuntimeNames returns the names of Runtimes in order.
func RuntimeNames() []string { return ownNames(AllRuntimes(), runtimeNames) }

// CuBLASBytes returns the cuBLAS workspace of one thread on c, in bytes.
func (r *Runtime) CuBLASBytes(c Capability) int64 {
	if slices.Contains(r.LargeOn, c) {
		return r.CuBLASLarge
	}
	return r.CuBLAS
}

// AttentionOrder returns the kernels that scaled_dot_product_attention tries
// on c, in order. It takes the first that supports the call.
func (r *Runtime) AttentionOrder(c Capability) []string {
	if slices.Contains(r.CuDNNFirst, c) {
		return []string{CuDNN, Flash, Efficient, Math}
	}
	return []string{Flash, Efficient, Math}
}

// An AttentionCall is the properties of a call on which the choice of an
// attention kernel depends. Query, key and value have the same head size and
// dtype.
type AttentionCall struct {
	DType   graph.DType
	HeadDim int64
	Mask    bool // an attn_mask tensor is given (is_causal is not one)
}

// Attention returns the kernel that scaled_dot_product_attention runs on c.
func (r *Runtime) Attention(c Capability, call AttentionCall) string {
	for _, k := range r.AttentionOrder(c) {
		if supports(k, c, call) {
			return k
		}
	}
	return Math
}

// largestHead is the largest head size of the flash and cuDNN kernels.
const largestHead = 256

// supports reports whether kernel k can run the call on c, after the filters
// in sdp_utils.cpp that concern equal head sizes and dense tensors.
func supports(k string, c Capability, call AttentionCall) bool {
	half := call.DType == graph.Float16 || call.DType == graph.BFloat16
	switch k {
	case CuDNN:
		return half && c.AtLeast(8, 0) && call.HeadDim%8 == 0 && call.HeadDim <= largestHead
	case Flash:
		return half && c.AtLeast(8, 0) && call.HeadDim <= largestHead && !call.Mask
	case Efficient:
		known := half || call.DType == graph.Float32
		bf16 := call.DType != graph.BFloat16 || c.AtLeast(8, 0)
		return known && bf16 && call.HeadDim > 0 && call.HeadDim%headAlign(c, half) == 0
	}
	return true
}

// headAlign returns the number of which the efficient kernel requires head
// sizes to be multiples.
func headAlign(c Capability, half bool) int64 {
	switch {
	case half && c.AtLeast(7, 0):
		return 8
	case c.AtLeast(8, 0):
		return 4
	}
	return 1
}
