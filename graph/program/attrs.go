package program

import "github.com/memplan/memplan/graph"

// Attrs are the arguments of a call that are not tensors on the device. A
// node's kernel (Node.Does), its tensors and its Attrs determine exactly what
// is computed; a nil *Attrs means no such arguments. Package kernel says what
// each kernel requires.
type Attrs struct {
	// Args are the operands in the kernel's order, needed where some are
	// absent, are numbers, or come in another order than In. If nil, the
	// operands are In.
	Args []Arg
	// Results are the indices in Out of the kernel's results, -1 for one that
	// is not wanted. If nil, the results are Out. In-place kernels that also
	// keep a copy of their operand return that copy as result 1.
	Results []int8
	// Dims are the dims a kernel works along, never negative: the reduced ones,
	// the dim of a softmax, cat, stack, gather, cumsum or flip; the normalized
	// ones of a layer norm; for index, the dims that have an index.
	Dims    []int64
	Scalars []float64 // numbers, which the kernel's row names (package kernel)
	Mode    string    // which of the kernel's modes, "" for none
	Conv    *Conv
	Pool    *Pool
	Window  *Window
	// Stream numbers the random stream of a call: a call that runs again draws
	// the same numbers, another call different ones.
	Stream uint32
	Rule   *Rule
	// Ring is set where the node is attention over the ranks of a sequence: the kernel is
	// called for the keys of each.
	Ring bool
	// Inexact says why the node stands for other kernels than those named: its
	// memory and time are right, but it cannot be computed.
	Inexact string
}

// Values of Arg.In that are not indices into Node.In.
const (
	Absent  = -1 // not given
	Number  = -2 // Arg.Value
	Array   = -3 // Arg.Array
	Unknown = -4 // on the host, with elements that the file does not show
)

// An Arg is an operand: Node.In[In], or one of the kinds above if In is
// negative.
type Arg struct {
	In    int32
	Value float64
	Array *HostArray
}

// A HostArray is a constant of more than one element. Strides count elements of
// Values: row-major, but 0 along a dim in which all elements are equal.
type HostArray struct {
	DType   graph.DType
	Shape   []int64
	Strides []int64
	Values  []float64
}

// Conv are the arguments of a convolution and of its backward.
type Conv struct {
	Stride, Pad, Dilation, OutPad []int64 // one entry a spatial dim
	Groups                        int64
	Transposed                    bool
}

// Pool are the arguments of a pooling over windows and of its backward.
type Pool struct {
	Kernel, Stride, Pad, Dilation []int64 // one entry a spatial dim
	ExcludePad                    bool    // averages leave padding out
	Divisor                       int64   // of averages, 0 for the window's size
}

// A Window is the part of the row-major result, in elements, into which the
// backward of a view adds its gradient, or at which a padded operand lies.
type Window struct {
	Strides []int64
	Offset  int64
}

// A Rule is an optimizer's update: Optimizer names its row in the table of
// optimizers.
type Rule struct {
	Optimizer string
	First     bool // the step that creates the state
	Params    []RuleParam
}

// A RuleParam is one parameter with its gradient and what the optimizer
// keeps for it, by name: "exp_avg", "exp_avg_sq", "momentum_buffer", "step".
type RuleParam struct {
	Name        string
	Param, Grad View
	States      []RuleState
}

// A RuleState is one state tensor of a parameter, of Bytes bytes, in Storage.
type RuleState struct {
	Name    string
	Storage StorageID
	Bytes   int64
}

// The cells of recurrent networks.
const (
	CellLSTM = iota
	CellGRU
	CellTanh
	CellReLU
)

// Does names the kernel that the node runs: Kernel if it is set, else Op.
func (n *Node) Does() string {
	if n.Kernel != "" {
		return n.Kernel
	}
	return n.Op
}

// Args returns how many operands the kernel has.
func (n *Node) Args() int {
	if n.Attrs == nil || n.Attrs.Args == nil {
		return len(n.In)
	}
	return len(n.Attrs.Args)
}

// Arg returns operand i of the kernel; absent beyond the last.
func (n *Node) Arg(i int) Arg {
	switch {
	case i >= n.Args():
		return Arg{In: Absent}
	case n.Attrs == nil || n.Attrs.Args == nil:
		return Arg{In: int32(i)}
	}
	return n.Attrs.Args[i]
}

// Result returns the index in Out of result i, or -1.
func (n *Node) Result(i int) int {
	if n.Attrs == nil || n.Attrs.Results == nil {
		if i < len(n.Out) {
			return i
		}
		return -1
	}
	if i < len(n.Attrs.Results) {
		return int(n.Attrs.Results[i])
	}
	return -1
}

// Scalar returns number i of the call, or def.
func (n *Node) Scalar(i int, def float64) float64 {
	if n.Attrs == nil || i >= len(n.Attrs.Scalars) {
		return def
	}
	return n.Attrs.Scalars[i]
}
