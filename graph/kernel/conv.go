package kernel

var conv = []Kernel{
	{Name: "convolution", Operands: "input weight bias?", Conv: true, Selectable: true, Pace: Convolutions, Ways: []Way{
		{Op: "cudnn_convolution", Dispatched: "convolution"},
		{Op: "cudnn_convolution_transpose", Dispatched: "convolution"},
		{Op: "_conv_depthwise2d", Dispatched: "convolution"},
	}},
	{Name: "convolution_backward", Operands: "grad input weight", Conv: true, Pace: ConvolutionsBackward},
}
