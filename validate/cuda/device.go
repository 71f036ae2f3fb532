//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	_ "github.com/memplan/memplan/validate/driver" // before cu
	"github.com/memplan/memplan/validate/monitor"
)

// Options choose a device and how it computes.
type Options struct {
	Ordinal int
	FP32    bool // float32 convolutions in full precision, not in TF32 as PyTorch's default
	NoDNN   bool // convolutions by memplan's own kernels, as if cuDNN were missing
}

// Device is an NVIDIA GPU. Its methods may be called from any goroutine, one
// at a time.
type Device struct {
	opt       Options
	info      validate.Info
	dev       cu.Device
	ctx       cu.CUContext
	stream    cu.Stream
	modules   map[string]cu.Module
	functions map[kernelID]cu.Function
	blas      *blas
	dnn       *dnn
	noDNN     error // why there is none
	fallbacks map[string]int
	paths     []string // how convolutions run, names of Paths

	arena  cu.DevicePtr
	size   int64
	blasAt validate.Span // cuBLAS's workspace in the arena
	major  int           // compute capability
	sms    int64

	timing bool
	events []cu.Event // two for each call
	spare  []cu.Event

	arrays map[arrayID][]byte // constants, in the form that the driver copies
	pinned runtime.Pinner     // memory that it may read from
}

// granularity is the driver's rounding of allocations.
const granularity = 2 << 20

// Open creates a context on a device, without an arena.
func Open(opt Options) (*Device, error) {
	n, err := cu.NumDevices()
	if err != nil {
		return nil, explain("counting the devices", err)
	}
	if opt.Ordinal < 0 || opt.Ordinal >= n {
		return nil, fmt.Errorf("there is no device %d: the driver shows %d, counted from 0; nvidia-smi lists them, CUDA_VISIBLE_DEVICES hides some", opt.Ordinal, n)
	}
	paths, err := pathsOn(os.Getenv)
	if err != nil {
		return nil, err
	}
	before := used(opt.Ordinal)
	d := &Device{paths: paths, opt: opt, modules: map[string]cu.Module{}, functions: map[kernelID]cu.Function{}, fallbacks: map[string]int{}, arrays: map[arrayID][]byte{}}
	if d.dev, err = cu.GetDevice(opt.Ordinal); err != nil {
		return nil, explain("opening the device", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if d.ctx, err = d.dev.MakeContext(cu.SchedAuto); err != nil {
		return nil, explain("making a context", err)
	}
	if err := d.start(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if after := used(opt.Ordinal); before > 0 && after > before {
		d.info.Context = after - before
	}
	return d, nil
}

// used returns the memory in use on a device according to NVML, 0 if unknown.
// NVML numbers all devices, the driver only visible ones.
func used(ordinal int) int64 {
	if os.Getenv("CUDA_VISIBLE_DEVICES") != "" {
		return 0
	}
	src, err := monitor.Open(monitor.Target{GPU: ordinal})
	if err != nil {
		return 0
	}
	s, err := src.Sample()
	if err = errors.Join(err, src.Close()); err != nil {
		return 0
	}
	return s.Used
}

// start describes the device and opens the libraries.
func (d *Device) start() error {
	name, err := d.dev.Name()
	if err != nil {
		return explain("naming the device", err)
	}
	v := cu.Version()
	d.info = validate.Info{Name: strings.TrimRight(name, "\x00"), Kind: "cuda", Driver: fmt.Sprintf("CUDA %d.%d", v/1000, v%1000/10), Exact: true, Granularity: granularity}
	if d.major, err = d.dev.Attribute(cu.ComputeCapabilityMajor); err != nil {
		return explain("asking for the compute capability", err)
	}
	sms, err := d.dev.Attribute(cu.MultiprocessorCount)
	if err != nil {
		return explain("counting multiprocessors", err)
	}
	d.sms = int64(sms)
	if d.stream, err = cu.MakeStream(cu.NonBlocking); err != nil {
		return explain("making a stream", err)
	}
	if d.blas, err = openBLAS(d.stream); err != nil {
		return err
	}
	if d.opt.NoDNN {
		d.noDNN = errors.New("cuDNN is switched off")
	} else {
		d.dnn, d.noDNN = openDNN(d.stream)
	}
	return nil
}

// Libraries lists the libraries that compute products and convolutions.
func (d *Device) Libraries() []string {
	out := []string{d.blas.String()}
	if d.dnn == nil {
		return append(out, "convolutions by memplan's own kernels: "+d.noDNN.Error())
	}
	out = append(out, d.dnn.String())
	if d.dnn.graphs == nil {
		out = append(out, "convolutions without cuDNN's graphs: "+d.dnn.noGraphs.Error())
	}
	if n := d.dnn.compiled(); n > 0 {
		out = append(out, fmt.Sprintf("%d kinds of convolutions by engines that cuDNN compiles at run time", n))
	}
	if v := os.Getenv(pathsEnv); v != "" {
		out = append(out, "convolutions by "+pathsEnv+"="+v)
	}
	for _, why := range slices.Sorted(maps.Keys(d.fallbacks)) {
		out = append(out, fmt.Sprintf("%d convolutions by memplan's own kernels: %s", d.fallbacks[why], why))
	}
	return out
}

// enter makes the context current on this thread until leave.
func (d *Device) enter() error {
	runtime.LockOSThread()
	return explain("entering the context", cu.SetCurrentContext(d.ctx))
}

// leave releases the thread that enter locked.
func (d *Device) leave() { runtime.UnlockOSThread() }

// Info describes the device.
func (d *Device) Info() validate.Info {
	info := d.info
	info.Notes = d.Libraries()
	return info
}

// Memory returns the free and the total memory that the driver reports.
func (d *Device) Memory() (free, total int64, err error) {
	defer d.leave()
	if err := d.enter(); err != nil {
		return 0, 0, err
	}
	free, total, err = cu.MemInfo()
	return free, total, explain("asking for free memory", err)
}

// Reserve allocates the arena.
func (d *Device) Reserve(bytes int64) error {
	if d.size != 0 {
		return errors.New("cuda: the arena is there already")
	}
	defer d.leave()
	if err := d.enter(); err != nil {
		return err
	}
	p, err := cu.MemAlloc(max(bytes, 1))
	if err != nil {
		return explain(fmt.Sprintf("allocating an arena of %d bytes", bytes), err)
	}
	d.arena, d.size = p, bytes
	return nil
}

// span returns an error for bytes outside the arena.
func (d *Device) span(offset, n int64) error {
	if offset < 0 || n < 0 || offset+n > d.size {
		return fmt.Errorf("cuda: bytes %d to %d are outside the arena of %d", offset, offset+n, d.size)
	}
	return nil
}

// at returns the address of an offset of the arena.
func (d *Device) at(offset int64) cu.DevicePtr { return d.arena + cu.DevicePtr(offset) }

// Upload copies data into the arena, in the order of the calls: a copy outside
// the stream may end after the next call has begun (CUDA driver API, API
// synchronization behavior).
func (d *Device) Upload(offset int64, data []byte) error {
	if err := d.span(offset, int64(len(data))); err != nil || len(data) == 0 {
		return err
	}
	defer d.leave()
	if err := d.enter(); err != nil {
		return err
	}
	if err := cu.MemcpyHtoDAsync(d.at(offset), unsafe.Pointer(&data[0]), int64(len(data)), d.stream); err != nil {
		return explain("copying to the device", err)
	}
	return explain("copying to the device", d.stream.Synchronize())
}

// Download waits for all calls and copies from the arena.
func (d *Device) Download(data []byte, offset int64) error {
	if err := d.span(offset, int64(len(data))); err != nil || len(data) == 0 {
		return err
	}
	if err := d.Sync(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.enter(); err != nil {
		return err
	}
	return explain("copying from the device", cu.MemcpyDtoH(unsafe.Pointer(&data[0]), d.at(offset), int64(len(data))))
}

// Fill sets bytes of the arena after the calls before it.
func (d *Device) Fill(offset, n int64, value byte) error {
	if err := d.span(offset, n); err != nil || n == 0 {
		return err
	}
	defer d.leave()
	if err := d.enter(); err != nil {
		return err
	}
	return explain("filling memory", cu.MemsetD8Async(d.at(offset), value, n, d.stream))
}

// Supports returns why a node cannot run here, or nil.
func (d *Device) Supports(n *program.Node) error {
	if err := validate.Complete(n); err != nil {
		return err
	}
	name := n.Does()
	k, ok := kernels[name]
	if !ok {
		return fmt.Errorf("%s: not on this device", name)
	}
	for _, t := range slices.Concat(n.In, n.Out, constants(n)) {
		if _, ok := dtypes[t.DType]; !ok && name != "step" {
			return fmt.Errorf("%s: elements of type %v", name, t.DType)
		}
		if len(t.Shape) > maxDims {
			return fmt.Errorf("%s: %d dims, at most %d", name, len(t.Shape), maxDims)
		}
	}
	if k.accepts != nil {
		return k.accepts(n)
	}
	return nil
}

// Run starts a call.
func (d *Device) Run(c *validate.Call) error {
	k, ok := kernels[c.Kernel]
	if !ok {
		return fmt.Errorf("cuda: no kernel %s", c.Kernel)
	}
	defer d.leave()
	if err := d.enter(); err != nil {
		return err
	}
	if err := d.mark(); err != nil {
		return err
	}
	given, err := d.bring(c)
	if err == nil {
		err = k.start(&run{d: d, c: given})
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", c.Kernel, c.Node.Name, err)
	}
	return d.mark()
}

// mark records an event if calls are timed.
func (d *Device) mark() error {
	if !d.timing {
		return nil
	}
	var ev cu.Event
	if n := len(d.spare); n > 0 {
		ev, d.spare = d.spare[n-1], d.spare[:n-1]
	} else {
		var err error
		if ev, err = cu.MakeEvent(cu.DefaultEvent); err != nil {
			return explain("making an event", err)
		}
	}
	d.events = append(d.events, ev)
	return explain("recording an event", ev.Record(d.stream))
}

// Sync waits for all calls and returns the first error that one of them had.
func (d *Device) Sync() error {
	defer d.leave()
	if err := d.enter(); err != nil {
		return err
	}
	return explain("running the step", d.stream.Synchronize())
}

// Timing starts or ends the measuring of calls.
func (d *Device) Timing(on bool) error {
	d.spare, d.events = append(d.spare, d.events...), nil
	d.timing = on
	return nil
}

// Times waits for all calls and returns how long each ran on the device.
func (d *Device) Times() ([]time.Duration, error) {
	if err := d.Sync(); err != nil {
		return nil, err
	}
	defer d.leave()
	if err := d.enter(); err != nil {
		return nil, err
	}
	out := make([]time.Duration, len(d.events)/2)
	for i := range out {
		ms, err := d.events[2*i].Elapsed(d.events[2*i+1])
		if err != nil {
			return nil, explain("reading an event", err)
		}
		out[i] = time.Duration(ms * float64(time.Millisecond))
	}
	return out, nil
}

// Close gives back the arena, the libraries' handles and the context.
func (d *Device) Close() error {
	defer d.leave()
	err := d.enter()
	if d.dnn != nil {
		d.dnn.close()
	}
	if d.blas != nil {
		d.blas.close()
	}
	if d.size > 0 {
		err = errors.Join(err, cu.MemFree(d.arena))
		d.size = 0
	}
	err = errors.Join(err, d.ctx.Destroy())
	d.pinned.Unpin()
	return err
}

// broken describes a driver's status by number.
func (d *Device) broken(doing string, status int) error {
	if err := cu.Synchronize(); err != nil {
		return explain(doing, err)
	}
	return fmt.Errorf("%s: driver error %d", doing, status)
}

// dtypes are the element types as kernels number them (common.cuh).
var dtypes = map[graph.DType]int32{graph.Float32: 0, graph.Float16: 1, graph.BFloat16: 2, graph.Float64: 3, graph.Int64: 4, graph.Int32: 5, graph.Int16: 6,
	graph.Int8: 7, graph.Uint8: 8, graph.Bool: 9, graph.Uint64: 4}

// A run is one call on the device.
type run struct {
	d *Device
	c *validate.Call
}

// A kernel runs calls of one kernel name.
type kernel struct {
	run func(*run) error
	// accepts returns why a complete node cannot run; nil: all can.
	accepts func(*program.Node) error
	// rows returns the tensors that must be row-major; nil: none. Others are
	// copied (rows.go).
	rows rows
	// updates are the operands that the kernel also writes.
	updates []int
	// spare is set if the plan has memory for row-major operands, because
	// PyTorch's operator makes them contiguous: copies use that first.
	spare bool
	// work returns the kernel's own workspace in bytes; nil: none.
	work func(*run) int64
}

var kernels = collect(pointwiseKernels, fillKernels, viewKernels, indexKernels, scatterKernels, matmulKernels, convKernels, attentionKernels, rnnKernels, normKernels, poolKernels,
	sampleKernels, reduceKernels, lossKernels, optimizerKernels)

// collect merges the files' tables.
func collect(files ...func(register func(k kernel, names ...string))) map[string]kernel {
	all := map[string]kernel{}
	for _, f := range files {
		f(func(k kernel, names ...string) {
			for _, n := range names {
				if _, ok := all[n]; ok {
					panic("cuda: kernel registered twice: " + n)
				}
				all[n] = k
			}
		})
	}
	return all
}

// arg returns operand i if it is on the device, else nil.
func (r *run) arg(i int) *validate.ArenaView {
	if i >= len(r.c.Args) || r.c.Args[i].Kind != validate.OnDevice {
		return nil
	}
	return &r.c.Args[i].Tensor
}

// result returns result i if it is wanted, else nil.
func (r *run) result(i int) *validate.ArenaView {
	if i >= len(r.c.Results) || r.c.Results[i].At < 0 {
		return nil
	}
	return &r.c.Results[i]
}

// ptr returns the address of a tensor, 0 for none.
func (r *run) ptr(t *validate.ArenaView) uint64 {
	if t == nil {
		return 0
	}
	return uint64(r.d.at(t.At))
}

// dtype returns a tensor's type in the kernels' numbering, float32 for no
// tensor.
func dtype(t *validate.ArenaView) int32 {
	if t == nil {
		return 0
	}
	return dtypes[t.DType]
}

// scalar returns a scalar of the call, by its name in the kernel's row.
func (r *run) scalar(name string) float64 { return r.c.Scalar(name) }

// attrs returns the node's attributes, empty ones if it has none.
func (r *run) attrs() *program.Attrs {
	if r.c.Node.Attrs == nil {
		return &program.Attrs{}
	}
	return r.c.Node.Attrs
}

// isTraining reports whether a type is one that most kernels compute with.
func isTraining(d graph.DType) bool {
	return d == graph.Float32 || d == graph.Float16 || d == graph.BFloat16
}
