package kernel

// Dims are the normalized dims; training is 1 or 0.
var norm = []Kernel{
	{Name: "native_layer_norm", Operands: "input weight? bias?", Scalars: "eps", Dims: true, Selectable: true, Float32: true},
	{Name: "native_layer_norm_backward", Operands: "grad input weight? mean rstd", Scalars: "eps", Dims: true, Float32: true,
		Ways: []Way{{Op: "native_layer_norm_backward", Passes: 1.6}}},
	{Name: "_fused_rms_norm", Operands: "input weight?", Scalars: "eps", Dims: true, Selectable: true, Float32: true},
	{Name: "_fused_rms_norm_backward", Operands: "grad input weight? rstd", Scalars: "eps", Dims: true, Float32: true},
	{Name: "native_group_norm", Operands: "input weight? bias?", Scalars: "eps", Selectable: true, Float32: true},
	{Name: "native_group_norm_backward", Operands: "grad input weight? mean rstd", Scalars: "eps", Float32: true, Ways: []Way{{Op: "native_group_norm_backward", Passes: 1.6}}},
	{Name: "batch_norm", Operands: "input weight? bias? running_mean? running_var?", Scalars: "eps momentum training", Stateful: true, Float32: true,
		Ways: []Way{{Op: "batch_norm", Dispatched: "cudnn_batch_norm", Passes: 1.5}}},
	{Name: "batch_norm_backward", Operands: "grad input weight? running_mean? running_var? mean? rstd?", Scalars: "eps momentum training", Float32: true,
		Ways: []Way{{Op: "cudnn_batch_norm_backward", Passes: 1.7}}},
	{Name: "_weight_norm_interface", Operands: "v g", Dims: true, Float32: true},
	{Name: "_weight_norm_interface_backward", Operands: "grad g v norms", Dims: true, Float32: true},
}
