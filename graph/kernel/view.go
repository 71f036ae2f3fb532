package kernel

var view = []Kernel{
	{Name: "cat", Operands: "tensors...", Dims: true, Selectable: true},
	{Name: "stack", Operands: "tensors...", Dims: true},
	{Name: "repeat", Operands: "self"},
	{Name: "repeat_backward", Operands: "grad"},
	{Name: "flip", Operands: "self", Dims: true},
	{Name: "roll", Operands: "self", Scalars: "shifts...", Dims: true}, // one shift for each dim
	{Name: "unview", Operands: "grad", Window: true},
	{Name: "constant_pad_nd", Operands: "self", Scalars: "value", Window: true, Ways: []Way{{Op: "pad", Dispatched: "constant_pad_nd"}}},
}
