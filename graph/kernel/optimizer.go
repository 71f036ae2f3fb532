package kernel

var optimizer = []Kernel{{Name: "step", Operands: "tensors?...", Rule: true}}
