package profile

import (
	"fmt"
	"strings"
)

// A Capability is a CUDA compute capability: {9, 0} is sm_90.
type Capability struct{ Major, Minor int }

// String returns the architecture's name, such as "sm_90".
func (c Capability) String() string { return fmt.Sprintf("sm_%d%d", c.Major, c.Minor) }

// AtLeast reports whether c is the capability major.minor or a later one.
func (c Capability) AtLeast(major, minor int) bool {
	return c.Major > major || c.Major == major && c.Minor >= minor
}

// A Device is a GPU. Rates are the vendor's peaks without sparsity.
type Device struct {
	Name    string
	Aliases []string
	Title   string // the vendor's name
	Compute Capability
	SMs     int   // streaming multiprocessors
	L2      int64 // bytes

	// Memory is the card's total memory that the driver reports
	// (cudaMemGetInfo), in bytes: less than the nominal size, and the base of
	// PyTorch's fractions and out-of-memory messages. It varies slightly with
	// the driver.
	Memory int64
	// Bandwidth is the memory's, in bytes per second.
	Bandwidth float64
	// Host is the measured rate of copies to pinned memory of the host, or back, in bytes per
	// second; 0: HostBandwidth estimates it.
	Host float64
	// FP32 is the rate of plain float32 arithmetic, TF32 and Half those of
	// dense tensor-core products (Half: float16 and bfloat16 with float32
	// sums), in operations per second, two per multiply-add. It is 0 for a card
	// without such units.
	FP32, TF32, Half float64
	// BF16 is whether tensor cores take bfloat16 (they all take float16).
	BF16 bool
	// Context is what a training process holds outside PyTorch's allocator
	// once its kernels are loaded, in bytes: the CUDA context and modules.
	Context int64

	Source        string // of the rates and counts
	MemorySource  string // of Memory
	ContextSource string // of Context
	// Estimated names the fields (Memory, Context) that were not measured on
	// this card; their sources say how they were estimated.
	Estimated []string
}

const (
	giga = 1e9
	tera = 1e12
)

// Sources of estimates of Device.Context. Measured: T4 135 MiB, RTX 6000 Ada
// 426 MiB, H200 800 MiB; it grows with the card's multiprocessors and with the
// kernels that a release ships for its architecture.
const (
	contextAmpere = "estimate: the RTX 6000 Ada's 426 MiB (torch 2.10, nvidia-smi), rounded up"
	contextHopper = "estimate: the H200's"
	properties    = "torch.cuda.get_device_properties"
	oomMessage    = "total capacity in an out-of-memory message"
	memory16      = "estimate: the RTX A4000's of 16 GB, 15.61 GiB in an out-of-memory message"
)

// Devices lists the GPUs, the default first.
var Devices = []Device{
	{
		Name: "h200", Aliases: []string{"h200-sxm", "h200-141gb"}, Title: "NVIDIA H200 SXM 141 GB", Compute: Capability{9, 0}, SMs: 132, L2: 60 * MiB,
		Memory: 150109880320, Bandwidth: 4.8 * tera, FP32: 67 * tera, TF32: 494.7 * tera, Half: 989.4 * tera, BF16: true, Context: 800 * MiB,
		Source: "NVIDIA H200 datasheet; multiprocessors and L2 as the driver reports them", MemorySource: "measured, driver 580",
		ContextSource: "measured: driver's used less reserved, torch 2.11.0+cu130, 767 MiB after two ResNet-18 steps, 801 to 809 MiB in a process that trained five models",
	},
	{
		Name: "h100", Aliases: []string{"h100-sxm", "h100-80gb"}, Title: "NVIDIA H100 SXM 80 GB", Compute: Capability{9, 0}, SMs: 132, L2: 50 * MiB,
		Memory: 81089 * MiB, Bandwidth: 3.35 * tera, FP32: 66.9 * tera, TF32: 494.7 * tera, Half: 989.4 * tera, BF16: true, Context: 800 * MiB,
		Source: "NVIDIA H100 datasheet and architecture whitepaper", MemorySource: properties + ", torch 2.7.0+cu128", ContextSource: contextHopper, Estimated: []string{"Context"},
	},
	{
		Name: "h100-pcie", Title: "NVIDIA H100 PCIe 80 GB", Compute: Capability{9, 0}, SMs: 114, L2: 50 * MiB,
		Memory: 81008 * MiB, Bandwidth: 2.0 * tera, FP32: 51.2 * tera, TF32: 378 * tera, Half: 756 * tera, BF16: true, Context: 800 * MiB,
		Source: "NVIDIA H100 datasheet and architecture whitepaper", MemorySource: properties, ContextSource: contextHopper, Estimated: []string{"Context"},
	},
	{
		Name: "b200", Aliases: []string{"b200-sxm", "b200-180gb"}, Title: "NVIDIA B200 SXM 180 GB", Compute: Capability{10, 0}, SMs: 148, L2: 126 * MiB,
		Memory: 182631 * MiB, Bandwidth: 8 * tera, FP32: 75 * tera, TF32: 1125 * tera, Half: 2250 * tera, BF16: true, Context: 800 * MiB,
		Source: "NVIDIA DGX B200 and HGX B200 datasheets, an eighth of the system", MemorySource: properties, ContextSource: contextHopper, Estimated: []string{"Context"},
	},
	{
		Name: "a100-80gb", Aliases: []string{"a100", "a100-sxm-80gb"}, Title: "NVIDIA A100 SXM 80 GB", Compute: Capability{8, 0}, SMs: 108, L2: 40 * MiB,
		Memory: 81050 * MiB, Bandwidth: 2039 * giga, FP32: 19.5 * tera, TF32: 156 * tera, Half: 312 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA A100 datasheet", MemorySource: oomMessage + ", 79.15 GiB; other drivers 79.25 and 79.33", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "a100-40gb", Aliases: []string{"a100-sxm-40gb"}, Title: "NVIDIA A100 40 GB", Compute: Capability{8, 0}, SMs: 108, L2: 40 * MiB,
		Memory: 40326 * MiB, Bandwidth: 1555 * giga, FP32: 19.5 * tera, TF32: 156 * tera, Half: 312 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA A100 datasheet", MemorySource: properties + " of the PCIe card; out-of-memory messages say 39.50 and 39.59 GiB", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "a10", Title: "NVIDIA A10 24 GB", Compute: Capability{8, 6}, SMs: 72, L2: 6 * MiB,
		Memory: 22517 * MiB, Bandwidth: 600 * giga, FP32: 31.2 * tera, TF32: 62.5 * tera, Half: 125 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA A10 datasheet", MemorySource: oomMessage + ", 21.99 GiB", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "l4", Title: "NVIDIA L4 24 GB", Compute: Capability{8, 9}, SMs: 58, L2: 48 * MiB,
		Memory: 22517 * MiB, Bandwidth: 300 * giga, FP32: 30.3 * tera, TF32: 60 * tera, Half: 121 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA L4 datasheet", MemorySource: "estimate: the A10's, as nvidia-smi says 23034 MiB of the one and 23028 MiB of the other", ContextSource: contextAmpere, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "l40s", Title: "NVIDIA L40S 48 GB", Compute: Capability{8, 9}, SMs: 142, L2: 96 * MiB,
		Memory: 45589 * MiB, Bandwidth: 864 * giga, FP32: 91.6 * tera, TF32: 183 * tera, Half: 362 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA L40S datasheet", MemorySource: properties, ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "t4", Aliases: []string{"tesla-t4"}, Title: "NVIDIA T4 16 GB", Compute: Capability{7, 5}, SMs: 40, L2: 4 * MiB,
		Memory: 15095 * MiB, Bandwidth: 320 * giga, FP32: 8.1 * tera, Half: 65 * tera, Context: 135 * MiB,
		Source: "NVIDIA T4 datasheet", MemorySource: properties + "; other drivers 14930 to 15109 MiB", ContextSource: "measured: 135 MiB after cuBLAS and cuDNN, torch 2.10 and 2.11, three hosts",
	},
	{
		Name: "v100-32gb", Aliases: []string{"v100-sxm-32gb"}, Title: "NVIDIA V100 SXM2 32 GB", Compute: Capability{7, 0}, SMs: 80, L2: 6 * MiB,
		Memory: 32510 * MiB, Bandwidth: 900 * giga, FP32: 15.7 * tera, Half: 125 * tera, Context: 450 * MiB,
		Source: "NVIDIA V100 datasheet", MemorySource: oomMessage + ", 31.75 GiB", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "v100-16gb", Aliases: []string{"v100", "v100-sxm-16gb"}, Title: "NVIDIA V100 SXM2 16 GB", Compute: Capability{7, 0}, SMs: 80, L2: 6 * MiB,
		Memory: 16151 * MiB, Bandwidth: 900 * giga, FP32: 15.7 * tera, Half: 125 * tera, Context: 450 * MiB,
		Source: "NVIDIA V100 datasheet", MemorySource: properties + "; other drivers 16130 to 16160 MiB", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "rtx5090", Title: "NVIDIA GeForce RTX 5090 32 GB", Compute: Capability{12, 0}, SMs: 170, L2: 96 * MiB,
		Memory: 32123 * MiB, Bandwidth: 1792 * giga, FP32: 104.8 * tera, TF32: 104.8 * tera, Half: 209.5 * tera, BF16: true, Context: 800 * MiB,
		Source: "NVIDIA RTX Blackwell architecture whitepaper", MemorySource: oomMessage + ", 31.37 GiB", ContextSource: contextHopper, Estimated: []string{"Context"},
	},
	{
		Name: "rtx4090", Title: "NVIDIA GeForce RTX 4090 24 GB", Compute: Capability{8, 9}, SMs: 128, L2: 72 * MiB,
		Memory: 24207 * MiB, Bandwidth: 1008 * giga, FP32: 82.6 * tera, TF32: 82.6 * tera, Half: 165.2 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA Ada architecture whitepaper", MemorySource: oomMessage + ", 23.64 GiB", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "rtx4060", Title: "NVIDIA GeForce RTX 4060 8 GB", Compute: Capability{8, 9}, SMs: 24, L2: 24 * MiB,
		Memory: 7800 * MiB, Bandwidth: 272 * giga, FP32: 15.1 * tera, TF32: 15.1 * tera, Half: 30.2 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA Ada architecture whitepaper, scaled by multiprocessors and clock", MemorySource: "estimate: 8188 MiB less 5%, as the RTX 4090 loses 1.5% and smaller cards more", ContextSource: contextAmpere, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "rtx3090", Title: "NVIDIA GeForce RTX 3090 24 GB", Compute: Capability{8, 6}, SMs: 82, L2: 6 * MiB,
		Memory: 24114 * MiB, Bandwidth: 936 * giga, FP32: 35.6 * tera, TF32: 35.6 * tera, Half: 71 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA GA102 architecture whitepaper", MemorySource: properties + " of the RTX 3090 Ti with driver 590; an older driver said 24259 MiB of the 3090", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "rtx3060", Aliases: []string{"rtx3060-12gb"}, Title: "NVIDIA GeForce RTX 3060 12 GB", Compute: Capability{8, 6}, SMs: 28, L2: 3 * MiB,
		Memory: 11931 * MiB, Bandwidth: 360 * giga, FP32: 12.7 * tera, TF32: 12.7 * tera, Half: 25.5 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA GA102 architecture whitepaper, scaled by multiprocessors and clock", MemorySource: properties + ", torch 2.4.1+cu124; other drivers 11938 to 12044 MiB", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
	{
		Name: "gh200", Aliases: []string{"gh200-96gb"}, Title: "NVIDIA GH200 Grace Hopper 96 GB", Compute: Capability{9, 0}, SMs: 132, L2: 50 * MiB,
		Memory: 97306 * MiB, Bandwidth: 4 * tera, FP32: 67 * tera, TF32: 494 * tera, Half: 990 * tera, BF16: true, Context: 800 * MiB,
		Source: "NVIDIA GH200 datasheet", MemorySource: "estimate: nvidia-smi's 97871 MiB less the share that the H100 loses", ContextSource: contextHopper, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "a40", Title: "NVIDIA A40 48 GB", Compute: Capability{8, 6}, SMs: 84, L2: 6 * MiB,
		Memory: 45589 * MiB, Bandwidth: 696 * giga, FP32: 37.4 * tera, TF32: 74.8 * tera, Half: 149.7 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA A40 datasheet", MemorySource: "estimate: the L40S's, which has as much with ECC", ContextSource: contextAmpere, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "a6000", Aliases: []string{"rtx-a6000", "rtxa6000"}, Title: "NVIDIA RTX A6000 48 GB", Compute: Capability{8, 6}, SMs: 84, L2: 6 * MiB,
		Memory: 48599 * MiB, Bandwidth: 768 * giga, FP32: 38.7 * tera, TF32: 77.4 * tera, Half: 154.8 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA RTX A6000 datasheet", MemorySource: "estimate: the Quadro RTX 8000's, 47.46 GiB in an out-of-memory message, without ECC", ContextSource: contextAmpere, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "l40", Title: "NVIDIA L40 48 GB", Compute: Capability{8, 9}, SMs: 142, L2: 96 * MiB,
		Memory: 45589 * MiB, Bandwidth: 864 * giga, FP32: 90.5 * tera, TF32: 90.5 * tera, Half: 181 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA L40 datasheet", MemorySource: "estimate: the L40S's", ContextSource: contextAmpere, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "p100", Aliases: []string{"p100-16gb", "tesla-p100"}, Title: "NVIDIA P100 PCIe 16 GB", Compute: Capability{6, 0}, SMs: 56, L2: 4 * MiB,
		Memory: 16130 * MiB, Bandwidth: 732 * giga, FP32: 9.3 * tera, Half: 18.7 * tera, Context: 450 * MiB,
		Source: "NVIDIA P100 datasheet; no tensor cores, float16 at twice the rate of float32", MemorySource: "estimate: the V100's of 16 GB, least of several drivers", ContextSource: contextAmpere, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "rtx5080", Title: "NVIDIA GeForce RTX 5080 16 GB", Compute: Capability{12, 0}, SMs: 84, L2: 64 * MiB,
		Memory: 15985 * MiB, Bandwidth: 960 * giga, FP32: 56.3 * tera, TF32: 56.3 * tera, Half: 112.6 * tera, BF16: true, Context: 800 * MiB,
		Source: "NVIDIA RTX Blackwell architecture whitepaper", MemorySource: memory16, ContextSource: contextHopper, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "rtx4080", Title: "NVIDIA GeForce RTX 4080 16 GB", Compute: Capability{8, 9}, SMs: 76, L2: 64 * MiB,
		Memory: 15985 * MiB, Bandwidth: 716.8 * giga, FP32: 48.7 * tera, TF32: 48.7 * tera, Half: 97.5 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA Ada architecture whitepaper", MemorySource: memory16, ContextSource: contextAmpere, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "rtx4070", Title: "NVIDIA GeForce RTX 4070 12 GB", Compute: Capability{8, 9}, SMs: 46, L2: 36 * MiB,
		Memory: 11931 * MiB, Bandwidth: 504 * giga, FP32: 29.1 * tera, TF32: 29.1 * tera, Half: 58.3 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA Ada architecture whitepaper, scaled by multiprocessors and clock", MemorySource: "estimate: the RTX 3060's of 12 GB", ContextSource: contextAmpere, Estimated: []string{"Memory", "Context"},
	},
	{
		Name: "rtx3080", Aliases: []string{"rtx3080-10gb"}, Title: "NVIDIA GeForce RTX 3080 10 GB", Compute: Capability{8, 6}, SMs: 68, L2: 5 * MiB,
		Memory: 10014 * MiB, Bandwidth: 760 * giga, FP32: 29.8 * tera, TF32: 29.8 * tera, Half: 59.5 * tera, BF16: true, Context: 450 * MiB,
		Source: "NVIDIA GA102 architecture whitepaper", MemorySource: oomMessage + ", 9.78 GiB", ContextSource: contextAmpere, Estimated: []string{"Context"},
	},
}

func deviceNames(d *Device) []string { return append([]string{d.Name}, d.Aliases...) }

// unsupported are cards that users may ask for but memplan cannot plan for.
var unsupported = []struct{ prefix, why string }{
	{"mi300", "AMD's MI300 runs PyTorch for ROCm, whose libraries take other workspaces; memplan knows PyTorch for CUDA alone"},
	{"mi250", "AMD's MI250 runs PyTorch for ROCm, whose libraries take other workspaces; memplan knows PyTorch for CUDA alone"},
	{"gaudi", "Intel's Gaudi runs no CUDA; memplan knows PyTorch for CUDA alone"},
	{"tpu", "a TPU runs XLA; memplan knows PyTorch for CUDA alone"},
}

// FindDevice returns the GPU called name.
func FindDevice(name string) (*Device, error) {
	for _, u := range unsupported {
		if strings.HasPrefix(strings.ToLower(name), u.prefix) {
			return nil, fmt.Errorf("unsupported gpu %q: %s", name, u.why)
		}
	}
	return find("gpu", Devices, deviceNames, name)
}

// DeviceNames returns the names of Devices in order.
func DeviceNames() []string { return ownNames(Devices, deviceNames) }
