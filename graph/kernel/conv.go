package kernel

var conv = []Kernel{
	{Name: "convolution", Operands: "input weight bias?", Conv: true, Selectable: true, Ways: []Way{
		{Op: "cudnn_convolution", Dispatched: "convolution", Passes: 1.6, Depthwise: 8},
		{Op: "cudnn_convolution_transpose", Dispatched: "convolution", Passes: 1.6, Depthwise: 8},
		{Op: "_conv_depthwise2d", Dispatched: "convolution", Passes: 2, Depthwise: 10},
	}},
	{Name: "convolution_backward", Operands: "grad input weight", Conv: true, Ways: []Way{{Op: "convolution_backward", Passes: 2.2, Depthwise: 18}}},
}
