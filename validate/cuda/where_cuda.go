//go:build cuda

package cuda

import "github.com/memplan/memplan/graph/program"

// Functions is set in builds that know the functions of all kernels.
const Functions = true

func function(name string) string {
	k, ok := kernels[name]
	if !ok {
		return ""
	}
	return program.Where(k.run)
}
