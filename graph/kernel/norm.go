package kernel

// Dims are the normalized dims; training is 1 or 0.
var norm = []Kernel{
	{Name: "native_layer_norm", Operands: "input weight? bias?", Scalars: "eps", Dims: true, Selectable: true, Pace: LayerNorms},
	{Name: "native_layer_norm_backward", Operands: "grad input weight? mean rstd", Scalars: "eps", Dims: true, Pace: LayerNormsBackward},
	{Name: "_fused_rms_norm", Operands: "input weight?", Scalars: "eps", Dims: true, Selectable: true, Pace: LayerNorms},
	{Name: "_fused_rms_norm_backward", Operands: "grad input weight? rstd", Scalars: "eps", Dims: true, Pace: LayerNormsBackward},
	{Name: "native_group_norm", Operands: "input weight? bias?", Scalars: "eps", Selectable: true, Pace: GroupNorms},
	{Name: "native_group_norm_backward", Operands: "grad input weight? mean rstd", Scalars: "eps", Pace: GroupNormsBackward},
	{Name: "batch_norm", Operands: "input weight? bias? running_mean? running_var?", Scalars: "eps momentum training", Stateful: true, Pace: BatchNorms,
		Ways: []Way{{Op: "batch_norm", Dispatched: "cudnn_batch_norm"}}},
	{Name: "batch_norm_backward", Operands: "grad input weight? running_mean? running_var? mean? rstd?", Scalars: "eps momentum training", Pace: BatchNormsBackward},
	{Name: "_weight_norm_interface", Operands: "v g", Dims: true, Pace: Reductions},
	{Name: "_weight_norm_interface_backward", Operands: "grad g v norms", Dims: true, Pace: Reductions},
}
