package cpu

import "github.com/memplan/memplan/graph/program"

// Where says which function of which file runs a kernel, "" for none.
func Where(name string) string {
	k := kernels[name]
	if k == nil {
		return ""
	}
	return program.Where(k)
}
