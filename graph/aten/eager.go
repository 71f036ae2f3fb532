// Package aten executes ATen operators on tensors without elements, as
// PyTorch's eager mode and autograd engine would on a GPU: every kernel
// becomes a node of a program.Program with the allocations it makes, in
// PyTorch's order. It holds the operator table: shape and stride rules, what
// is a view and what a copy, what autograd saves, and what backward runs.
//
// Sources, where nothing else is said: PyTorch 2.11, aten/src/ATen/native,
// tools/autograd/derivatives.yaml, torch/csrc/autograd.
package aten

import (
	"fmt"
	"slices"

	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/cudnn"
	kernels "github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
)

// A Config holds settings of the framework and the device, not of the graph.
type Config struct {
	Autocast      graph.DType // Float16 or BFloat16 inside autocast; Undefined outside
	TF32          bool        // convolutions of float32 tensors use TF32 (PyTorch's default)
	GemmWorkspace int64       // bytes of a cuBLAS workspace, one per thread that multiplies
	LtWorkspace   int64       // bytes of a cuBLASLt workspace, which products with a bias use
	LtPerCall     bool        // that workspace lives as long as the call, not the thread
	GemmPerCall   bool        // a cuBLAS workspace lives as long as its call; products with a bias use cuBLASLt's alone
	SMs           int         // streaming multiprocessors
	ThreadsPerSM  int         // resident threads per multiprocessor
	Major         int         // compute capability, major
	Ring          Ring        // of attention's ranks; none by default
	Attention     []string    // kernels of scaled_dot_product_attention in the order they are tried; a single one is forced
	// RMSNormFloat32 is set where autocast gives rms_norm float32 operands, as PyTorch
	// 2.12 and later do (pytorch#174824); before, operands of two types take a formula
	// of several calls.
	RMSNormFloat32 bool
	// Hooks is set where hooks pack what autograd saves, as in checkpoints: a
	// backward function then releases it on return, not after the engine has
	// checked its results.
	Hooks bool
	// LeastOffload is the least storage that regions of Offload copy, in bytes; 0: MinOffload.
	LeastOffload int64
	// ConvWorkspace returns the scratch of a convolution's pass; nil means none.
	ConvWorkspace func(cudnn.Conv, cudnn.Pass) cudnn.Estimate
}

// Eager runs operators and records what they allocate.
type Eager struct {
	Config
	P *program.Program

	// AfterGrad is called as soon as backward has left a gradient on a parameter, as
	// register_post_accumulate_grad_hook has it, and the gradient goes when it returns. Nil:
	// gradients stay until the next step.
	AfterGrad func(p *Tensor)

	lookup   func(op string) *Op // of the operator table
	phase    program.Phase
	micro    int32
	name     string // lifted call being run
	module   string
	call     int32
	autograd string // autograd node being run, in backward

	grad      bool // autograd records
	seq       int64
	tape      []saver    // savers of the segment being run, in order
	segment   int32      // segment being recomputed, or -1
	dropping  *Segment   // segment whose first forward runs: saved tensors are dropped
	replay    *replay    // recomputing a segment
	sel       *selection // of the segment being run, nil outside
	casts     []*Tensor  // parameters with a cached autocast copy
	callCasts []*Tensor  // other copies that autocast made for the call being run
	draws     uint32     // random calls that the lifted call has made
	savedIDs  map[program.StorageID]bool
	warned    map[graph.Warning]bool
	noted     []*gradNode                  // nodes outside of segments, for the list of saved tensors
	off       *offloading                  // regions whose saved tensors are on the host; nil for none
	keeping   map[program.StorageID]string // outputs kept for a region's recomputation, with the call they come from
	fwdWS     program.StorageID
	bwdWS     program.StorageID
	ltWS      program.StorageID
	ltBackWS  program.StorageID
}

// New returns an Eager that appends to an empty program.
func New(cfg Config) *Eager {
	return &Eager{Config: cfg, P: &program.Program{}, lookup: Lookup, segment: -1, call: -1, fwdWS: program.None, bwdWS: program.None, ltWS: program.None, ltBackWS: program.None,
		savedIDs: map[program.StorageID]bool{}, warned: map[graph.Warning]bool{}, keeping: map[program.StorageID]string{}}
}

// Expect makes room for the nodes and storages of a program of so many, which may
// be any number.
func (e *Eager) Expect(nodes, storages int) {
	e.P.Nodes, e.P.Storages = slices.Grow(e.P.Nodes, nodes), slices.Grow(e.P.Storages, storages)
}

// Warn records a guess or a gap in the model, once for each code and node.
func (e *Eager) Warn(code, msg string) {
	w := graph.Warning{Code: code, Message: msg, Node: e.name}
	if !e.warned[w] {
		e.warned[w] = true
		e.P.Warnings = append(e.P.Warnings, w)
	}
}

// SetPhase starts a phase of the step.
func (e *Eager) SetPhase(p program.Phase) { e.phase = p }

// SetMicro starts micro-batch i of the step, counted from 0; gradients of later
// ones are added to those of the first.
func (e *Eager) SetMicro(i int) {
	e.micro = int32(i)
	e.P.Saved, e.noted = nil, nil
	clear(e.savedIDs)
	e.nextOffloads()
}

// SetGrad turns autograd's recording on or off.
func (e *Eager) SetGrad(on bool) { e.grad = on }

// newStorage adds a storage that no node has allocated yet.
func (e *Eager) newStorage(s program.Storage) program.StorageID {
	e.P.Storages = append(e.P.Storages, s)
	return program.StorageID(len(e.P.Storages) - 1)
}

// Resident returns a tensor that exists before the first step: a parameter, a
// buffer or an input. Parameters of floating-point type require a gradient
// unless frozen.
func (e *Eager) Resident(name, module string, cat program.Category, d graph.DType, shape []int64, grad bool) *Tensor {
	t := &Tensor{Name: name, View: program.View{DType: d, Shape: shape, Strides: contiguousStrides(shape)}}
	t.Storage = e.newStorage(program.Storage{Bytes: t.Bytes(), Category: cat, Life: program.Static, Name: name, Module: module})
	e.P.Statics = append(e.P.Statics, t.Storage)
	if grad && d.IsFloat() {
		t.leaf = &gradNode{name: "AccumulateGrad", seq: 1 << 62, param: t, outs: []outMeta{{t.Shape, d}}, call: -1, module: module}
	}
	return t
}

// MarkRequiresGrad marks a parameter of an inference as one that requires a gradient, so
// that its views do, too, although nothing is recorded.
func (e *Eager) MarkRequiresGrad(t *Tensor) { t.requiresGrad = t.DType.IsFloat() }

// MaxBytes bounds one tensor, in bytes: more than any device has.
const MaxBytes = 1<<40 - 1

// A kernel is a node under construction.
type kernel struct {
	e     *Eager
	n     program.Node
	outs  []*Tensor
	kept  *keptCall           // the call's entry in a selection if its outputs are kept; nil for most
	after []program.StorageID // scratch that outlives the call's other memory
}

// begin starts a call of op that reads in; nil and host tensors are skipped.
func (e *Eager) begin(op string, in ...*Tensor) *kernel {
	k := &kernel{e: e, n: program.Node{Phase: e.phase, Micro: e.micro, Op: op, Autograd: e.autograd, Name: e.name, Module: e.module, Call: e.call, Segment: -1}}
	if e.replay != nil {
		k.n.Recompute, k.n.Segment = true, e.segment
	}
	k.kept = e.sel.begin(op)
	if len(in) > 0 {
		k.n.In, k.n.Reads = make([]program.View, 0, len(in)), make([]program.StorageID, 0, len(in))
	}
	listed := true
	for _, t := range in {
		k.read(t)
		listed = listed && t != nil && t.Storage != program.None
	}
	if !listed {
		k.operands(in)
	}
	return k
}

// attrs returns the node's attributes, to be filled in.
func (k *kernel) attrs() *program.Attrs {
	if k.n.Attrs == nil {
		k.n.Attrs = &program.Attrs{}
	}
	return k.n.Attrs
}

// does names the kernel, where op names the call that launches it.
func (k *kernel) does(kernel string) *kernel { k.n.Kernel = kernel; return k }

// scalars sets the call's numbers.
func (k *kernel) scalars(v ...float64) *kernel { k.attrs().Scalars = v; return k }

// dims sets the dims that the call works along.
func (k *kernel) dims(dims ...int) *kernel {
	a := k.attrs()
	a.Dims = make([]int64, len(dims))
	for i, d := range dims {
		a.Dims[i] = int64(d)
	}
	return k
}

// inexact marks the node as standing for other kernels than those named.
func (k *kernel) inexact(why string) *kernel { k.attrs().Inexact = why; return k }

func (k *kernel) inexactIf(is bool, why string) *kernel {
	if is {
		k.inexact(why)
	}
	return k
}

// random gives the call a stream of random numbers.
func (k *kernel) random() *kernel {
	k.e.draws++
	k.attrs().Stream = uint32(k.e.call+1)<<8 | k.e.draws&0xff
	return k
}

// operands lists the operands of a call if not all are on the device.
func (k *kernel) operands(in []*Tensor) {
	args, next := make([]program.Arg, len(in)), int32(0)
	for i, t := range in {
		switch {
		case t == nil:
			args[i].In = program.Absent
		case t.Storage != program.None:
			args[i].In = next
			next++
		default:
			args[i] = t.onHost()
		}
	}
	k.attrs().Args = args
}

// dropOperand marks operand i as absent: the call reads it, but its result does not depend
// on it.
func (k *kernel) dropOperand(i int) *kernel {
	args := make([]program.Arg, k.n.Args())
	for j := range args {
		args[j] = k.n.Arg(j)
	}
	k.attrs().Args = slices.Delete(args, i, i+1)
	return k
}

// setResults lists which of its kernel's results a call has.
func (k *kernel) setResults(results ...*Tensor) {
	at, next := make([]int8, len(results)), int8(0)
	for i, t := range results {
		if at[i] = -1; t != nil {
			at[i] = next
			next++
		}
	}
	if int(next) < len(results) {
		k.attrs().Results = at
	}
}

func (k *kernel) read(t *Tensor) {
	if t == nil || t.Storage == program.None {
		return
	}
	k.n.In = append(k.n.In, t.View)
	k.n.Reads = append(k.n.Reads, t.Storage)
	k.n.Traffic += t.Bytes()
}

// category returns the category of new tensors in the current phase.
func (e *Eager) category() program.Category {
	if e.inBackward() || e.phase == program.Update {
		return program.Temporaries
	}
	return program.Activations
}

// alloc adds an output of the given strides (nil: contiguous).
func (k *kernel) alloc(shape, strides []int64, d graph.DType) *Tensor {
	if strides == nil {
		strides = contiguousStrides(shape)
	}
	if !d.Valid() {
		fail("the element type of a result of shape %v is not known", shape)
	}
	if n, ok := graph.Product(shape); !ok || n > MaxBytes/max(d.Bytes(1), 1) {
		fail("a result of shape %v: more bytes than any device has", shape)
	}
	t := &Tensor{View: program.View{DType: d, Shape: slices.Clone(shape), Strides: strides}}
	if k.reuses() {
		t.Storage = k.kept.outs[len(k.outs)]
		k.outs = append(k.outs, t)
		return t
	}
	t.Storage = k.e.newStorage(program.Storage{Bytes: t.Bytes(), Category: k.e.category(), Name: k.e.name, Module: k.e.module})
	k.event(t.Storage, false)
	k.out(t)
	if k.kept != nil {
		k.kept.outs = append(k.kept.outs, t.Storage)
	}
	return t
}

// makes completes a call with one output.
func (k *kernel) makes(shape, strides []int64, d graph.DType) *Tensor {
	k.alloc(shape, strides, d)
	return k.end()
}

// out adds an output in existing storage.
func (k *kernel) out(t *Tensor) {
	if what := k.e.keeping[t.Storage]; what != "" {
		fail("it writes to the result of %s, which is kept: PyTorch refuses to recompute from it", what)
	}
	k.outs = append(k.outs, t)
	k.n.Out = append(k.n.Out, t.View)
	k.n.Traffic += t.Bytes()
}

// like adds a contiguous output of t's dtype.
func (k *kernel) like(t *Tensor) *Tensor { return k.alloc(t.Shape, t.denseStrides(), t.DType) }

func (k *kernel) event(id program.StorageID, free bool) {
	k.n.Events = append(k.n.Events, program.Event{Storage: id, Free: free})
}

// temp allocates scratch that the call frees itself; 0 bytes is no allocation.
func (k *kernel) temp(bytes int64, cat program.Category) program.StorageID {
	if bytes <= 0 || k.reuses() {
		return program.None
	}
	if cat == program.Workspace {
		k.n.Scratch += bytes
	}
	id := k.e.newStorage(program.Storage{Bytes: bytes, Category: cat, Name: k.n.Op, Module: k.e.module})
	k.event(id, false)
	return id
}

// free frees temporaries, in the order given.
func (k *kernel) free(ids ...program.StorageID) {
	for _, id := range ids {
		if id != program.None {
			k.event(id, true)
		}
	}
}

// scratch allocates and frees at once.
func (k *kernel) scratch(bytes int64, cat program.Category) { k.free(k.temp(bytes, cat)) }

// flops sets the work of the call, two per multiply-add.
func (k *kernel) flops(n int64) *kernel { k.n.FLOPs = n; return k }

// products sets the work of a call that multiplies matrices.
func (k *kernel) products(u program.Unit, flops int64) *kernel {
	k.n.Unit = u
	return k.flops(flops)
}

// gemm notes that the call multiplies through cuBLAS: the first such call of a
// thread allocates that thread's workspace, which stays; or each call allocates
// its own (aten/src/ATen/cuda/CublasHandlePool.cpp: handles are thread-local,
// and autograd runs backward in a thread of its own).
func (k *kernel) gemm() *kernel {
	e := k.e
	if e.GemmPerCall {
		if e.GemmWorkspace > 0 {
			k.scratch(e.GemmWorkspace, program.Workspace)
		}
		return k
	}
	ws := &e.fwdWS
	if e.phase == program.Backward {
		ws = &e.bwdWS
	}
	if *ws == program.None && e.GemmWorkspace > 0 {
		*ws = k.library("cuBLAS workspace", e.GemmWorkspace)
	}
	return k
}

// lt notes a product with a bias, which cuBLASLt runs: the first such call of a
// thread allocates a workspace that stays; or each call allocates its own.
// Backward multiplies with a bias only where it recomputes.
func (k *kernel) lt() {
	e := k.e
	ws := &e.ltWS
	if e.phase == program.Backward {
		ws = &e.ltBackWS
	}
	switch {
	case e.LtWorkspace == 0:
	case e.LtPerCall:
		k.scratch(e.LtWorkspace, program.Workspace)
	case *ws == program.None:
		*ws = k.library("cuBLASLt workspace", e.LtWorkspace)
	}
}

// library allocates a library's workspace, which lives as long as the process.
func (k *kernel) library(name string, bytes int64) program.StorageID {
	if k.reuses() {
		return program.None
	}
	id := k.e.newStorage(program.Storage{Bytes: bytes, Category: program.Workspace, Life: program.State, Name: name})
	k.event(id, false)
	return id
}

// end appends the node and returns its first output.
func (k *kernel) end() *Tensor {
	e := k.e
	if err := kernels.Check(&k.n); err != nil {
		if testing.Testing() {
			panic(fmt.Sprintf("aten: node %q computes kernel %s: %v (rows of kernels: graph/kernel; CONTRIBUTING.md, \"Add a kernel\")", k.n.Name, k.n.Does(), err))
		}
		k.inexact(err.Error())
	}
	switch {
	case k.reuses():
		k.take()
	case e.replay == nil || !e.replay.stopped:
		e.P.Nodes = append(e.P.Nodes, k.n)
		if k.kept != nil {
			k.keep()
		}
		if e.sel != nil {
			e.sel.latest = nil
		}
	default:
		e.unmake(&k.n)
		e.holdStorages(k.n.Reads...) // the frames that are left held what the kernel would have read
	}
	if len(k.outs) == 0 {
		return nil
	}
	return k.outs[0]
}

// hold keeps storages alive until the last node appended so far has run; they
// are then released in the order given.
func (e *Eager) hold(ts ...*Tensor) {
	for _, t := range ts {
		if t != nil && t.Storage != program.None {
			e.holdStorages(t.Storage)
		}
	}
}

// holdStorages is hold for storages. Once a recomputation has stopped, it holds
// only those that exist: all frames are left at once.
func (e *Eager) holdStorages(ids ...program.StorageID) {
	if len(e.P.Nodes) == 0 {
		return
	}
	n := &e.P.Nodes[len(e.P.Nodes)-1]
	for _, id := range ids {
		if e.replay == nil || !e.replay.stopped || id < e.replay.end {
			n.Holds = append(n.Holds, id)
		}
	}
}

// Hold keeps t alive until the last node so far, as a variable of the caller
// does.
func (e *Eager) Hold(ts ...*Tensor) { e.hold(ts...) }

// inBackward reports whether the engine runs: its calls record no graph of
// their own, and a view keeps its base alive.
func (e *Eager) inBackward() bool { return e.phase == program.Backward && e.replay == nil }

// view returns another view of t's storage.
func (e *Eager) view(t *Tensor, shape, strides []int64, offset int64) *Tensor {
	return &Tensor{Name: t.Name, keepsBase: e.inBackward(), requiresGrad: t.requiresGrad, values: t.values, View: program.View{Storage: t.Storage, DType: t.DType, Shape: shape, Strides: strides, Offset: t.Offset + offset}}
}

// host returns a CPU tensor: it takes no device memory.
func host(d graph.DType, shape []int64) *Tensor {
	return &Tensor{View: program.View{Storage: program.None, DType: d, Shape: shape, Strides: contiguousStrides(shape)}}
}

// number returns a CPU scalar of known value.
func number(d graph.DType, v float64) *Tensor {
	t := host(d, nil)
	t.values = []float64{v}
	return t
}

// onHost describes a host tensor as an operand.
func (t *Tensor) onHost() program.Arg {
	if len(t.values) == 1 {
		return program.Arg{In: program.Number, Value: t.values[0]}
	}
	if a := t.seen(); a != nil {
		return program.Arg{In: program.Array, Array: a}
	}
	return program.Arg{In: program.Unknown}
}

// seen returns the elements of a CPU tensor that a view shows, nil if they are
// not known. A dim in which all are equal is listed once.
func (t *Tensor) seen() *program.HostArray {
	a := &program.HostArray{DType: t.DType, Shape: t.Shape}
	if t.contiguous() && t.Offset == 0 && int64(len(t.values)) == t.Numel() {
		a.Strides, a.Values = contiguousStrides(t.Shape), t.values
		return a
	}
	once := slices.Clone(t.Shape)
	for d, stride := range t.Strides {
		if stride == 0 {
			once[d] = min(once[d], 1)
		}
	}
	if a.Strides = contiguousStrides(once); numel(once) > int64(len(t.values)) {
		return nil
	}
	places := []int64{t.Offset}
	for d, n := range once {
		if once[d] != t.Shape[d] {
			a.Strides[d] = 0
		}
		next := make([]int64, 0, int64(len(places))*n)
		for _, at := range places {
			for i := range n {
				next = append(next, at+i*t.Strides[d])
			}
		}
		places = next
	}
	for _, at := range places {
		if at < 0 || at >= int64(len(t.values)) {
			return nil
		}
		a.Values = append(a.Values, t.values[at])
	}
	return a
}

// unary appends one kernel that reads in and makes one output laid out by
// TensorIterator; the output has type d, or that of the first input.
func (e *Eager) unary(op string, d graph.DType, in ...*Tensor) *Tensor {
	return e.elementwise(op, d, in...).end()
}

// elementwise is unary without the end of the call.
func (e *Eager) elementwise(op string, d graph.DType, in ...*Tensor) *kernel {
	shape := common(in...)
	k := e.begin(op, in...)
	if d == graph.Undefined {
		d = in[0].DType
	}
	k.alloc(shape, iteratorStrides(shape, in...), d)
	return k
}

// contig returns t, or a contiguous copy made by op.
func (e *Eager) contig(op string, t *Tensor) *Tensor {
	if t.contiguous() {
		return t
	}
	return e.begin(op, t).does("copy").makes(t.Shape, nil, t.DType)
}

// Host returns a CPU tensor: it takes no device memory. Values are its elements,
// if they are known.
func Host(d graph.DType, shape []int64, values ...float64) *Tensor {
	t := host(d, shape)
	t.values = values
	return t
}

// Mark appends a node that neither reads nor allocates.
func (e *Eager) Mark(op string) { e.begin(op).end() }
