package kernel

var scatter = []Kernel{
	{Name: "scatter", Operands: "self index src?", Scalars: "value=0", Dims: true}, // value is used without src
	{Name: "scatter_add", Operands: "self index src", Dims: true},
	{Name: "index_add", Operands: "self index source", Dims: true},
	{Name: "index_put", Operands: "self values indices...", Scalars: "accumulate", Dims: true},
}
