package cpu

import "github.com/memplan/memplan/graph/program"

// Where returns the function and file that run a kernel, "" if none does.
func Where(name string) string {
	k := kernels[name]
	if k == nil {
		return ""
	}
	return program.Where(k)
}
