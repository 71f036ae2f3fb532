package kernel

var pool = []Kernel{
	{Name: "max_pool_with_indices", Operands: "self", Pool: true},
	{Name: "max_pool2d_with_indices_backward", Operands: "grad self indices", Dims: true, Pool: true, Pace: WindowsBackward},
	{Name: "avg_pool2d", Operands: "self", Pool: true},
	{Name: "avg_pool2d_backward", Operands: "grad self", Pool: true, Pace: WindowsBackward},
	{Name: "adaptive_avg_pool2d", Operands: "self"},
	{Name: "adaptive_avg_pool2d_backward", Operands: "grad self", Pace: WindowsBackward},
	{Name: "adaptive_max_pool2d", Operands: "self", Dims: true},
	{Name: "im2col", Operands: "self", Pool: true, Pace: Indices},
	{Name: "col2im", Operands: "self", Pool: true, Pace: Indices},
}
