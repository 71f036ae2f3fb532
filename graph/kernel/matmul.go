package kernel

var matmul = []Kernel{
	{Name: "mm", Operands: "self mat2", Selectable: true},
	{Name: "bmm", Operands: "self mat2", Selectable: true},
	{Name: "addmm", Operands: "self mat1 mat2", Scalars: "beta=1 alpha=1", Selectable: true},
	{Name: "baddbmm", Operands: "self batch1 batch2", Scalars: "beta=1 alpha=1", Selectable: true},
	{Name: "mv", Operands: "self vec"},
	{Name: "dot", Operands: "self tensor"},
}
