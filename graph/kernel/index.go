package kernel

// Dims are the dims that have an index.
var index = []Kernel{
	{Name: "embedding", Operands: "weight indices", Scalars: "padding_idx", Pace: Lookups}, // an index without gradient, -1 for none
	{Name: "embedding_dense_backward", Operands: "grad indices", Scalars: "padding_idx", Pace: LookupsBackward},
	{Name: "index", Operands: "self indices...", Dims: true},
	{Name: "index_backward", Operands: "grad indices...", Dims: true},
	{Name: "index_select", Operands: "self index", Dims: true},
	{Name: "index_select_backward", Operands: "grad index", Dims: true},
	{Name: "gather", Operands: "self index", Dims: true},
	{Name: "gather_backward", Operands: "grad index", Dims: true},
}
