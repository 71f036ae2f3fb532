package kernel

import "slices"

// align_corners is 1 or 0; a scale is the call's own, or 0 to take it from the sizes.
// nearest is 1 or 0 for bilinear; padding, beyond the edges, is 0 for zeros, 1 for the
// border, 2 for reflection.
var sample = slices.Concat(
	each(Kernel{Operands: "self", Scalars: "align_corners scale_h scale_w"}, "upsample_bilinear2d upsample_nearest2d upsample_bicubic2d"),
	each(Kernel{Operands: "grad", Scalars: "align_corners scale_h scale_w", Pace: WindowsBackward}, "upsample_bilinear2d_backward upsample_nearest2d_backward upsample_bicubic2d_backward"),
	[]Kernel{
		{Name: "grid_sampler_2d", Operands: "input grid", Scalars: "nearest padding align_corners"},
		{Name: "grid_sampler_2d_backward", Operands: "grad input grid", Scalars: "nearest padding align_corners", Pace: WindowsBackward},
	},
)
