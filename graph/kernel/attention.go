package kernel

// numbers are the scalars of every attention kernel: causal is 1 or 0.
const numbers = "scale causal " + dropout

var attention = []Kernel{
	{Name: "_scaled_dot_product_efficient_attention", Operands: "query key value mask?", Scalars: numbers, Random: true, Selectable: true, Pace: Attentions},
	{Name: "_scaled_dot_product_efficient_attention_backward", Operands: "grad mask? key query value logsumexp output", Scalars: numbers, Random: true, Pace: AttentionsBackward},
	{Name: "_scaled_dot_product_cudnn_attention", Operands: "query key value mask?", Scalars: numbers, Random: true, Selectable: true, Pace: Attentions},
	{Name: "_scaled_dot_product_cudnn_attention_backward", Operands: "grad mask? key query value logsumexp output offset seed", Scalars: numbers, Random: true, Pace: AttentionsBackward},
	{Name: "_scaled_dot_product_flash_attention", Operands: "query key value", Scalars: numbers, Random: true, Selectable: true, Pace: Attentions},
	{Name: "_scaled_dot_product_flash_attention_backward", Operands: "grad key query value logsumexp output rng_state _", Scalars: numbers, Random: true, Pace: AttentionsBackward},
}
