package profile

import "github.com/memplan/memplan/graph"

// A When is the time at which an optimizer allocates its state.
type When uint8

// The times.
const (
	// InFirstStep: at the start of the first step(), tensor by tensor: all
	// states of the first parameter, then those of the second.
	InFirstStep When = iota
	// AtConstruction: when the optimizer is made, before the first step.
	AtConstruction
	// InUpdate: in the first step's update, at the Create action.
	InUpdate
)

// A Shape is the shape and type of an optimizer's tensor relative to its
// parameter.
type Shape uint8

// The shapes. Unless said otherwise, the type is the parameter's.
const (
	Whole     Shape = iota // the parameter's
	Scalar                 // one float32
	Rows                   // matrices only: the parameter's, the last dim 1
	Cols                   // matrices only: the parameter's, the last but one dim 1
	Flat                   // parameters of less than two dims only: the parameter's
	Partials               // Param.Partials bytes
	Quantized              // uint8; float32 below 4096 elements
	Blocks                 // one float32 for each 256 elements; none below 4096 elements
)

// A State is a tensor that the optimizer keeps for each parameter.
type State struct {
	Name string
	Of   Shape
	CPU  bool // in host memory, no GPU memory
}

// An Op is the operation of an Action.
type Op uint8

// The operations. A list holds one tensor for each parameter of a group.
// Allocation runs in the order of the parameters, freeing in the reverse
// order (as Python empties a list).
const (
	// Alloc allocates a list and binds it to Name. If Name still holds the
	// previous group's list, that is freed after the allocation.
	Alloc Op = iota
	// Free frees the list bound to Name.
	Free
	// Move binds the list of Name to To; a list that To held is freed.
	Move
	// Create allocates the state called Name in the first step and keeps it.
	Create
)

// An Action is one line of an optimizer's update, reduced to its effect on
// memory.
type Action struct {
	Op   Op
	Name string
	To   string // Move: the new name
	Of   Shape  // Alloc; a parameter without that shape is skipped
}

// An Optimizer is a torch.optim class with its arguments.
type Optimizer struct {
	Name    string
	Aliases []string
	Class   string // the call in Python
	Doc     string
	States  []State
	When    When
	// Each is set if the update runs for one parameter at a time; otherwise it
	// runs once for each group of parameters of one dtype.
	Each bool
	// Update is what one update allocates and frees. Lists still bound at its
	// end are freed in the order in which their names first appear here.
	Update []Action
	// Source is the source of a row that was not measured.
	Source string
}

var (
	cpuStep = State{Name: "step", Of: Scalar, CPU: true}
	gpuStep = State{Name: "step", Of: Scalar}
	moments = []State{{Name: "exp_avg"}, {Name: "exp_avg_sq"}}
	buffer  = []State{{Name: "momentum_buffer"}}

	adamStates    = append([]State{cpuStep}, moments...)
	fusedStates   = append([]State{gpuStep}, moments...)
	amsgradStates = append([]State{cpuStep, {Name: "exp_avg"}, {Name: "exp_avg_sq"}}, State{Name: "max_exp_avg_sq"})

	sqrtList = []Action{{Op: Alloc, Name: "exp_avg_sq_sqrt"}}
	// exp_avg_sq.sqrt() / bias_correction2_sqrt: the square root is freed once
	// the quotient exists, the quotient lives until the next parameter's.
	sqrtEach = []Action{
		{Op: Alloc, Name: "sqrt"},
		{Op: Alloc, Name: "quotient"},
		{Op: Free, Name: "sqrt"},
		{Op: Move, Name: "quotient", To: "denom"},
	}
	createBuffer = []Action{{Op: Create, Name: "momentum_buffer"}}
	decayed      = Action{Op: Alloc, Name: "grads"} // _foreach_add(grads, params, alpha=weight_decay)
	dropDecayed  = Action{Op: Free, Name: "grads"}
)

// Optimizers lists the optimizers, the default first. Each row is checked
// against every allocation and free that PyTorch 2.11 made on an H200 in the
// first and in a steady step, with parameters of one, two and three dtypes
// (testdata/torch-2.11-h200.json). The files in torch/optim agree from 2.6 to
// 2.11. Learning rates and betas are Python numbers; weight decay is 0 except
// for Adam with decoupled decay (AdamW), which costs nothing, and for the rows
// ending in "-wd".
var Optimizers = []Optimizer{
	{Name: "adamw", Aliases: []string{"adamw-foreach"}, Class: "AdamW(params)", Doc: "AdamW as PyTorch runs it on CUDA by default: over lists, with one temporary the size of the parameters", States: adamStates, Update: sqrtList},
	{Name: "adamw-fused", Class: "AdamW(params, fused=True)", Doc: "one kernel, no temporaries; the step counters are on the GPU", States: fusedStates},
	{Name: "adamw-loop", Class: "AdamW(params, foreach=False)", Doc: "one parameter after the other, with two temporaries of its size", States: adamStates, Each: true, Update: sqrtEach},
	{Name: "adamw-capturable", Class: "AdamW(params, capturable=True)", Doc: "over lists, for CUDA graphs; the step counters are on the GPU", States: fusedStates, Update: []Action{
		{Op: Alloc, Name: "bias_correction1", Of: Scalar},
		{Op: Alloc, Name: "bias_correction2", Of: Scalar},
		{Op: Move, Name: "bias_correction1", To: "step_size"},
		{Op: Move, Name: "bias_correction2", To: "bias_correction2_sqrt"},
		{Op: Alloc, Name: "exp_avg_sq_sqrt"},
	}},
	{Name: "adamw-amsgrad", Class: "AdamW(params, amsgrad=True)", Doc: "AdamW with a third state", States: amsgradStates, Update: sqrtList},
	{Name: "adam", Aliases: []string{"adam-foreach"}, Class: "Adam(params)", Doc: "Adam, memory as adamw", States: adamStates, Update: sqrtList},
	{Name: "adam-wd", Class: "Adam(params, weight_decay=1e-2)", Doc: "Adam with L2 decay: a copy of the gradients, freed before the other temporary", States: adamStates, Update: []Action{decayed, dropDecayed, sqrtList[0]}},
	{Name: "adam-fused", Class: "Adam(params, fused=True)", Doc: "Adam, memory as adamw-fused", States: fusedStates},
	{Name: "adam-loop", Class: "Adam(params, foreach=False)", Doc: "Adam, memory as adamw-loop", States: adamStates, Each: true, Update: sqrtEach},
	{Name: "adam-amsgrad", Class: "Adam(params, amsgrad=True)", Doc: "Adam with a third state", States: amsgradStates, Update: sqrtList},
	{Name: "sgd", Class: "SGD(params)", Doc: "plain gradient descent: no state, no temporaries"},
	{Name: "sgd-wd", Class: "SGD(params, weight_decay=1e-2)", Doc: "gradient descent with decay: a copy of the gradients", Update: []Action{decayed, dropDecayed}},
	{Name: "sgd-momentum", Aliases: []string{"sgdm"}, Class: "SGD(params, momentum=0.9)", Doc: "gradient descent with momentum: one state", States: buffer, When: InUpdate, Update: createBuffer},
	{Name: "sgd-momentum-wd", Class: "SGD(params, momentum=0.9, weight_decay=1e-2)", Doc: "momentum and decay: one state, a copy of the gradients", States: buffer, When: InUpdate, Update: []Action{decayed, createBuffer[0], dropDecayed}},
	{Name: "sgd-nesterov", Class: "SGD(params, momentum=0.9, nesterov=True)", Doc: "Nesterov momentum: one state", States: buffer, When: InUpdate, Update: createBuffer},
	{Name: "sgd-loop", Class: "SGD(params, momentum=0.9, foreach=False)", Doc: "momentum, one parameter after the other", States: buffer, When: InUpdate, Each: true, Update: createBuffer},
	{Name: "sgd-fused", Class: "SGD(params, momentum=0.9, fused=True)", Doc: "momentum in one kernel", States: buffer, When: InUpdate, Each: true, Update: createBuffer},
	{Name: "adagrad", Class: "Adagrad(params)", Doc: "one state, made with the optimizer; two temporaries", States: []State{cpuStep, {Name: "sum"}}, When: AtConstruction, Update: []Action{
		{Op: Alloc, Name: "std"},
		{Op: Alloc, Name: "numerator"},
	}},
	{Name: "rmsprop", Class: "RMSprop(params)", Doc: "one state, one temporary", States: []State{cpuStep, {Name: "square_avg"}}, Update: []Action{{Op: Alloc, Name: "avg"}}},
	{Name: "rmsprop-momentum", Class: "RMSprop(params, momentum=0.9)", Doc: "two states, one temporary", States: []State{cpuStep, {Name: "square_avg"}, buffer[0]}, Update: []Action{{Op: Alloc, Name: "avg"}}},
	{Name: "rmsprop-centered", Class: "RMSprop(params, centered=True)", Doc: "two states, one temporary", States: []State{cpuStep, {Name: "square_avg"}, {Name: "grad_avg"}}, Update: []Action{{Op: Alloc, Name: "avg"}}},
	{Name: "adadelta", Class: "Adadelta(params)", Doc: "two states, two temporaries", States: []State{cpuStep, {Name: "square_avg"}, {Name: "acc_delta"}}, Update: []Action{
		{Op: Alloc, Name: "std"},
		{Op: Alloc, Name: "deltas"},
	}},
	{Name: "adafactor", Class: "Adafactor(params)", Doc: "factored second moments, one parameter after the other: a row and a column of a matrix, with a temporary of its size", States: []State{cpuStep, {Name: "row_var", Of: Rows}, {Name: "col_var", Of: Cols}, {Name: "variance", Of: Flat}}, Each: true, Update: []Action{
		{Op: Alloc, Name: "row_mean", Of: Rows},
		{Op: Alloc, Name: "col_mean", Of: Cols},
		{Op: Alloc, Name: "partials", Of: Partials},
		{Op: Free, Name: "partials"},
		{Op: Alloc, Name: "grad_squared", Of: Flat},
		{Op: Alloc, Name: "var_estimate"},
		{Op: Move, Name: "var_estimate", To: "update"},
	}},
	{Name: "lion", Class: "lion_pytorch.Lion(params)", Doc: "one state, two temporaries of one parameter's size", States: []State{{Name: "exp_avg"}}, When: InUpdate, Each: true, Update: []Action{
		{Op: Create, Name: "exp_avg"},
		{Op: Alloc, Name: "clone"},
		{Op: Alloc, Name: "update"},
		{Op: Free, Name: "clone"},
		{Op: Free, Name: "update"},
	}, Source: "lion_pytorch/lion_pytorch.py, update_fn"},
	{Name: "adamw-8bit", Aliases: []string{"adam-8bit"}, Class: "bitsandbytes.optim.AdamW8bit(params)", Doc: "states of one byte an element, in blocks of 256; small parameters keep float32", States: []State{{Name: "state1", Of: Quantized}, {Name: "state2", Of: Quantized}, {Name: "absmax1", Of: Blocks}, {Name: "absmax2", Of: Blocks}}, Source: "bitsandbytes/optim/optimizer.py, Optimizer2State.init_state (0.45); its two tables of 1 KiB are left out"},
	{Name: "adamax", Class: "Adamax(params)", Doc: "two states, one temporary", States: []State{cpuStep, {Name: "exp_avg"}, {Name: "exp_inf"}}, Update: []Action{
		{Op: Alloc, Name: "grads"}, // _foreach_abs(grads)
		{Op: Free, Name: "grads"},
	}},
	{Name: "nadam", Class: "NAdam(params)", Doc: "memory as adam", States: append([]State{cpuStep, {Name: "mu_product", Of: Scalar, CPU: true}}, moments...), Update: sqrtList},
	{Name: "radam", Class: "RAdam(params)", Doc: "memory as adam", States: adamStates, Update: sqrtList},
	{Name: "none", Class: "", Doc: "no update: gradients only"},
}

func optimizerNames(o *Optimizer) []string { return append([]string{o.Name}, o.Aliases...) }

// FindOptimizer returns the optimizer called name.
func FindOptimizer(name string) (*Optimizer, error) {
	return find("optimizer", Optimizers, optimizerNames, name)
}

// OptimizerNames returns the names of Optimizers in order.
func OptimizerNames() []string { return ownNames(Optimizers, optimizerNames) }

// StateBytes returns the GPU memory of the state of one parameter in bytes,
// before the allocator rounds each tensor.
func (o *Optimizer) StateBytes(p Param) int64 {
	var sum int64
	for _, s := range o.States {
		if !s.CPU {
			sum += p.bytes(s.Of)
		}
	}
	return sum
}

// A Param is a parameter with a gradient, in the order of the optimizer's list.
type Param struct {
	Elems int64
	DType graph.DType
	// Dims is the shape, which factored states need.
	Dims []int64
	// Partials is the scratch of a reduction over the last but one dim, in
	// bytes.
	Partials int64
}

// Sizes of 8-bit states, in elements.
const (
	quantizedFrom = 4096
	quantBlock    = 256
)

// bytes returns the size of a tensor of the given shape, 0 if the parameter has
// none.
func (p Param) bytes(s Shape) int64 {
	n := len(p.Dims)
	switch s {
	case Scalar:
		return graph.Float32.Bytes(1)
	case Rows, Cols:
		if n < 2 || p.Elems == 0 {
			return 0
		}
		return p.DType.Bytes(p.Elems / p.Dims[map[Shape]int{Rows: n - 1, Cols: n - 2}[s]])
	case Flat:
		if n >= 2 {
			return 0
		}
	case Partials:
		return p.Partials
	case Quantized:
		if p.Elems < quantizedFrom {
			return graph.Float32.Bytes(p.Elems)
		}
		return p.Elems
	case Blocks:
		if p.Elems < quantizedFrom {
			return 0
		}
		return graph.Float32.Bytes((p.Elems + quantBlock - 1) / quantBlock)
	}
	return p.DType.Bytes(p.Elems)
}
