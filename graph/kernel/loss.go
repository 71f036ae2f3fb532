package kernel

import "slices"

// reduction is 0 for none, 1 for the mean, 2 for the sum.
var loss = slices.Concat(
	each(Kernel{Operands: "input target", Scalars: "reduction ignore_index"}, "nll_loss_forward nll_loss2d_forward"),
	each(Kernel{Operands: "grad input target total_weight", Scalars: "reduction ignore_index"}, "nll_loss_backward nll_loss2d_backward"),
	each(Kernel{Operands: "input target", Scalars: "reduction", Refused: nowhere}, "binary_cross_entropy binary_cross_entropy_with_logits"),
	each(Kernel{Operands: "grad input target", Scalars: "reduction", Refused: nowhere}, "binary_cross_entropy_backward binary_cross_entropy_with_logits_backward"),
	[]Kernel{
		{Name: "mse_loss", Operands: "input target", Scalars: "reduction"},
		{Name: "mse_loss_backward", Operands: "grad input target", Scalars: "reduction"},
		{Name: "smooth_l1_loss", Operands: "input target", Scalars: "reduction beta"},
		{Name: "smooth_l1_loss_backward", Operands: "grad input target", Scalars: "reduction beta"},
	},
)
