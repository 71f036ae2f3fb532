package cuda

import "slices"

// Where returns what runs a kernel: the C expression of an elementwise one, which reads
// the operands a, b and c; or the function and file, in builds with the cuda tag. It is ""
// if unknown.
func Where(name string) string {
	if i := slices.IndexFunc(Operators, func(o Operator) bool { return o.Name == name }); i >= 0 {
		return "validate/cuda/pointwise.go " + Operators[i].Real
	}
	return function(name)
}
