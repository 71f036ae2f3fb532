// Package validate executes a training step on a device, node by node, and
// checks the plan: every buffer lies in one arena at its planned offset, the
// numbers are those of the step without checkpoints, and memory and time are as
// predicted.
//
// A device is a Device: package validate/cpu is one in plain Go.
package validate

import (
	"errors"
	"fmt"
	"time"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
)

// A Device runs the calls of a step in one allocation of its memory. Calls
// run in the order they are given; Sync waits for them. Offsets are bytes
// from the start of the arena.
type Device interface {
	Info() Info
	// Supports returns the error that running n would end with because of its
	// kernel, types or attributes, not its numbers. It needs no arena.
	Supports(n *program.Node) error
	// Work returns the workspace in bytes that a library of the device wants
	// while n runs, besides what n allocates itself. It needs no arena.
	Work(n *program.Node) (int64, error)
	// Needs returns how many bytes of Work n cannot run without: the rest only
	// makes it faster. It needs no arena.
	Needs(n *program.Node) (int64, error)
	// Prepare receives all calls before the first of them runs.
	Prepare(calls []*Call) error
	// Memory returns the free and the total memory that the driver reports, in
	// bytes.
	Memory() (free, total int64, err error)
	// Reserve allocates the arena. It is called once, before any call.
	Reserve(bytes int64) error
	Upload(offset int64, data []byte) error
	Download(data []byte, offset int64) error
	// Fill sets bytes of the arena to a value.
	Fill(offset, bytes int64, value byte) error
	// Run starts a call. Its errors may appear in a later Run or in Sync.
	Run(c *Call) error
	Sync() error
	// Timing starts (on) or ends the measurement of calls: each Run adds one
	// entry to Times.
	Timing(on bool) error
	// Times waits for all calls and returns the time of each since Timing(true).
	Times() ([]time.Duration, error)
	Close() error
}

// An Info describes a device.
type Info struct {
	Name   string // "NVIDIA H200"
	Kind   string // cuda, cpu
	Driver string
	// Exact is set if the same call always gives the same bits.
	Exact bool
	// Extra is the memory that the process takes of the device besides the
	// arena, in bytes: the context and those of the libraries' workspaces that
	// come with it.
	Extra int64
	// Context is what the driver counted before the arena was allocated: the
	// context and the libraries' handles, in bytes; 0 if unknown.
	Context int64
	// Notes are further remarks: versions of libraries, and what ran in an
	// unusual way.
	Notes []string
	// Granularity is the resolution of Memory, in bytes.
	Granularity int64
}

// A Call is one node with its memory resolved. Operands and results are in
// the kernel's own order (program.Node.Arg and Result).
type Call struct {
	Node    *program.Node
	Kernel  string // Node.Does()
	Args    []Operand
	Results []ArenaView // without memory if the result is not wanted
	Scratch []Span      // storages that the node allocates besides results, in order of allocation
	Work    Span        // as Device.Work asked for
	States  [][]Span    // optimizer's step: for each parameter of Node.Attrs.Rule its states
	Seed    uint64      // of the call's random numbers: the same when the call runs again
	Step    int         // 1 in the first training step
	// Again is set if the call has already run in the step, in a schedule that
	// must leave everything as if it had not: running statistics stay unchanged.
	// Calls of checkpointed modules update them again, as PyTorch does.
	Again bool
}

// Scalar returns a scalar of the call by its name in the kernel's row.
func (c *Call) Scalar(name string) float64 { return kernel.Find(c.Kernel).Scalar(c.Node, name) }

// Numbers returns all scalars of the call, and one number for each of its
// kernel's modes.
func (c *Call) Numbers() []float64 { return kernel.Find(c.Kernel).Numbers(c.Node) }

// Complete returns why no device can run a node, or nil: it stands for other kernels
// than the one it names, or lacks something that the kernel needs.
func Complete(n *program.Node) error {
	if why := lacks(n); why != nil {
		return fmt.Errorf("%s: %w", n.Does(), why)
	}
	return nil
}

func lacks(n *program.Node) error {
	k := kernel.Find(n.Does())
	switch {
	case n.Attrs != nil && n.Attrs.Inexact != "":
		return errors.New(n.Attrs.Inexact)
	case k != nil && k.Refused != "":
		return errors.New(k.Refused)
	}
	if err := kernel.Check(n); err != nil {
		return err
	}
	for i := range n.Args() {
		if n.Arg(i).In == program.Unknown && k.Reads(i) {
			return fmt.Errorf("operand %d is a constant that the file does not show", i)
		}
	}
	return nil
}

// An Operand is a tensor on the device, a number, a constant, or absent.
type Operand struct {
	Kind    OperandKind
	Tensor  ArenaView   // OnDevice
	Value   float64     // IsNumber
	DType   graph.DType // IsArray
	Shape   []int64     // IsArray
	Strides []int64     // IsArray, in elements of Values
	Values  []float64   // IsArray
}

// An OperandKind is the kind of an Operand.
type OperandKind uint8

// The kinds.
const (
	IsAbsent OperandKind = iota
	OnDevice
	IsNumber
	IsArray
)

// An ArenaView is a strided view of the arena. Strides count elements; At is
// the byte offset of the element with all indices 0, -1 for no tensor.
type ArenaView struct {
	At      int64
	DType   graph.DType
	Shape   []int64
	Strides []int64
}

// A Span is a range of bytes of the arena.
type Span struct{ At, Bytes int64 }

// Elems returns the number of elements.
func (t *ArenaView) Elems() int64 { return Elems(t.Shape) }
