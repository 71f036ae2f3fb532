// Package program is the last stage of the one IR: a training step (or an
// inference) as one ordered list of nodes over storages. Forward, recomputed,
// backward and update nodes are all just nodes. Their events say what they
// allocate and in which order; a storage dies after its last reader. Package
// liveness turns a Program into allocation events.
package program

import (
	"fmt"
	"math/bits"

	"github.com/memplan/memplan/graph"
)

// A StorageID indexes Program.Storages.
type StorageID int32

// None is the id of a tensor without device memory (a CPU scalar).
const None StorageID = -1

// A Category says what a storage holds, for reports.
type Category uint8

// The categories, in the order of reports.
const (
	Parameters Category = iota
	Gradients
	Optimizer
	Activations
	Inputs
	Buffers
	Workspace
	Temporaries
	NumCategories int = iota
)

var categoryNames = [...]string{"parameters", "gradients", "optimizer", "activations", "inputs", "buffers", "workspace", "temporaries"}

func (c Category) String() string { return categoryNames[c] }

// A Phase is a part of the training step.
type Phase uint8

// The phases in the order they run. ZeroGrad frees the gradients of the step
// before (zero_grad(set_to_none=True) stands at the start of the loop).
const (
	ZeroGrad Phase = iota
	Forward
	Loss
	Backward
	Update
	NumPhases int = iota
)

var phaseNames = [...]string{"zero_grad", "forward", "loss", "backward", "optimizer"}

func (p Phase) String() string { return phaseNames[p] }

// A Lifetime says when a storage is allocated and who frees it.
type Lifetime uint8

// The lifetimes.
const (
	Step    Lifetime = iota // allocated by a node's step, freed after its last reader
	Static                  // allocated before the first step, never freed: parameters, buffers, inputs
	State                   // allocated by a node in the first step, never freed: optimizer state, library workspaces
	Carried                 // allocated in a step, freed in the next step's ZeroGrad: parameter gradients
)

// A Storage is one allocation.
type Storage struct {
	Bytes    int64 // as requested, before the allocator rounds
	Category Category
	Life     Lifetime
	Name     string // parameter, input or value that it holds
	Module   string // qualified name of the owning module
	Optional bool   // scratch that the library makes do without when the allocator refuses it
	Stream   uint8  // pool of the allocator: 0 for the compute stream, others for those of collectives
	Reshaped bool   // the tensor gets other strides in place after its allocation, which PyTorch counts as a write to it
}

// A View is a strided view of a storage; strides and offset count elements.
type View struct {
	Storage StorageID
	DType   graph.DType
	Shape   []int64
	Strides []int64
	Offset  int64
}

// A Unit is the hardware or library path that computes a node's FLOPs and so
// sets their rate.
type Unit uint8

// The units.
const (
	Vector      Unit = iota // element by element
	Product                 // cuBLAS
	Convolution             // cuDNN
	Fused                   // a kernel with products inside: attention, depthwise convolution
)

// An Event is an allocation or a free inside a node.
type Event struct {
	Storage StorageID
	Free    bool
}

// A When says in which training steps a node runs.
type When uint8

// The values of When.
const (
	EveryStep  When = iota
	FirstStep       // creates optimizer state
	LaterSteps      // uses it
	SecondStep      // replaces what the first step had made
)

// A Node is one framework operator call as it runs.
type Node struct {
	Phase    Phase
	Op       string // ATen operator without namespace and overload: "convolution_backward"
	Autograd string // backward: the autograd node that issues the call, "ConvolutionBackward0"
	Name     string // the lifted call it stems from, "conv2d_3"
	Module   string
	Call     int32 // index of the lifted call, -1 for none

	In, Out []View
	Kernel  string      // the kernel, where Op names the call that launches it: "copy"
	Attrs   *Attrs      // arguments that are not tensors, nil if none
	Events  []Event     // allocations and frees inside the call, in order
	Reads   []StorageID // storages that must be alive until the call returns
	Holds   []StorageID // storages released right after the call, in this order, unless read again later

	FLOPs   int64 // two per multiply-add
	Unit    Unit
	Traffic int64  // bytes read and written, each counted once
	Scratch int64  // bytes of library workspace taken inside the call
	Passes  []Pass // of a convolution

	Copies []HostCopy // what the copy stream begins once the node has run
	Awaits []int32    // tickets of copies that the compute stream waits for before the node

	Only      When  // the steps it runs in
	Micro     int32 // forward, loss and backward: the micro-batch of the step, 0 the first
	Recompute bool  // runs again what a checkpointed segment had dropped
	Segment   int32 // checkpointed segment of a recomputed node, else -1
}

// A HostCopy is a copy of a storage to pinned memory of the host, or back, on the stream
// for copies, where they run one after the other.
type HostCopy struct {
	Storage StorageID
	In      bool  // from the host
	Ticket  int32 // by which a later node waits for it, alone or with others
}

// HostBytes returns the pinned memory that a process holds for the storages that are copied
// to the host, in bytes as asked for and as PyTorch's allocator of pinned memory takes them,
// in powers of two (aten/src/ATen/core/CachingHostAllocator.h). Buffers are kept from one
// micro-batch and step to the next.
func (p *Program) HostBytes() (asked, pinned int64) {
	for i := range p.Nodes {
		for _, c := range p.Nodes[i].Copies {
			if n := p.Storages[c.Storage].Bytes; !c.In && p.Nodes[i].Micro == 0 && n > 0 {
				asked += n
				pinned += 1 << bits.Len64(uint64(n-1))
			}
		}
	}
	return asked, pinned
}

// A Program is what one training step runs. Nodes stand in execution order,
// phases one after the other.
type Program struct {
	Storages []Storage
	Nodes    []Node
	Statics  []StorageID // Static storages
	Setup    []Event     // what happens before the first step, in order: Statics, and what they were converted from
	Carried  []StorageID // Carried storages in the order ZeroGrad frees them
	Saved    []StorageID // distinct storages autograd holds at the end of forward
	Train    bool
	Warnings []graph.Warning
	// Micros is the number of micro-batches whose gradients a step adds up, at
	// least 1. Nodes holds at most MicrosBuilt of them; the others repeat the
	// last.
	Micros int
	// Overlapping is set if the forward of a micro-batch may run before the backward
	// of an earlier one, as in a pipeline: nodes are then in execution order, phases
	// are not.
	Overlapping bool
}

// MicrosBuilt is the largest number of micro-batches that a Program spells out:
// the first creates the gradients, the second adds to them, and the third finds
// memory as the second left it, as all later ones do.
const MicrosBuilt = 3

// Runs returns how often node n runs in a step: once, or, in the last
// micro-batch built, once for each that it stands for.
func (p *Program) Runs(n *Node) int {
	if !p.Overlapping && p.Micros > MicrosBuilt && n.Micro == MicrosBuilt-1 && n.Phase != Update {
		return p.Micros - MicrosBuilt + 1
	}
	return 1
}

// Last reports whether n runs in the last micro-batch of a step, or outside of
// all.
func (p *Program) Last(n *Node) bool {
	return n.Phase == ZeroGrad || n.Phase == Update || int(n.Micro) == max(1, min(p.Micros, MicrosBuilt))-1
}

// Check verifies the program's invariants: ids in range, phases in order, a
// Step storage allocated once before it is read and freed at most once, no
// allocation twice. It returns an error naming the node.
func (p *Program) Check() error {
	const (
		absent = iota
		live
		freed
	)
	state := make([]uint8, len(p.Storages))
	for _, id := range p.Statics {
		if p.Storages[id].Life != Static {
			return fmt.Errorf("storage %d (%s) is listed as static but is not", id, p.Storages[id].Name)
		}
		state[id] = live
	}
	for _, ev := range p.Setup {
		if !ev.Free && p.Storages[ev.Storage].Life == State {
			state[ev.Storage] = live
		}
	}
	phase, micro := ZeroGrad, int32(0)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		next := n.Phase == Forward && phase == Backward && n.Micro == micro+1
		if !next && !p.Overlapping && (n.Phase < phase || n.Micro != micro && n.Phase != Update) {
			return fmt.Errorf("node %d (%s): phase %v of micro-batch %d after %v of %d", i, n.Op, n.Phase, n.Micro, phase, micro)
		}
		phase, micro = n.Phase, n.Micro
		for _, ev := range n.Events {
			s := &state[ev.Storage]
			switch {
			case !ev.Free && *s != absent:
				return fmt.Errorf("node %d (%s): storage %d allocated twice", i, n.Op, ev.Storage)
			case ev.Free && *s != live:
				return fmt.Errorf("node %d (%s): storage %d freed while not live", i, n.Op, ev.Storage)
			case ev.Free:
				*s = freed
			default:
				*s = live
			}
		}
		for _, id := range n.Reads {
			if state[id] == absent {
				return fmt.Errorf("node %d (%s): reads storage %d (%s) before it exists", i, n.Op, id, p.Storages[id].Name)
			}
		}
	}
	return nil
}
