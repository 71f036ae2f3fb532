//go:build !cuda

package cuda

// Functions is set in builds that know the functions of all kernels.
const Functions = false

func function(string) string { return "" }
