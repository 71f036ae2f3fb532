package planner

import (
	"cmp"
	"slices"
	"strings"
)

// A Cause is a part of a change of the allocated peak: the change of one
// category in the modules under one name.
type Cause struct {
	Module   string `json:"module"` // "" for what belongs to no module, and for the whole model
	Category string `json:"category"`
	Delta    int64  `json:"delta"` // bytes
}

// grown lists the differences between a model's peak and the baseline's, the
// largest first; none if the baseline has no parts.
func grown(s *subject) []Cause {
	if s.base == nil || len(s.base.Parts) == 0 {
		return nil
	}
	return causes(s.base.Parts, s.report.Attribution().Parts)
}

// causes groups the differences of two lists of parts by category and by the
// first component of a module's name after the prefix of all changed modules.
// Their sum is the difference of the lists' sums.
func causes(base, head []Part) []Cause {
	deltas := partDeltas(base, head)
	depth := commonDepth(deltas)
	sums := map[Cause]int64{}
	for key, n := range deltas {
		key.Module = cutModule(key.Module, depth+1)
		sums[key] += n
	}
	out := []Cause{}
	for key, n := range sums {
		if n != 0 {
			key.Delta = n
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(x, y Cause) int {
		return cmp.Or(cmp.Compare(abs(y.Delta), abs(x.Delta)), strings.Compare(x.Module, y.Module), strings.Compare(x.Category, y.Category))
	})
	return out
}

// partDeltas returns the differences that are not zero.
func partDeltas(base, head []Part) map[Cause]int64 {
	deltas := map[Cause]int64{}
	for sign, list := range map[int64][]Part{-1: base, 1: head} {
		for _, p := range list {
			deltas[Cause{Module: p.Module, Category: p.Category}] += sign * p.Bytes
		}
	}
	for key, n := range deltas {
		if n == 0 {
			delete(deltas, key)
		}
	}
	return deltas
}

// commonDepth returns the number of leading components that the names of all
// changed modules share, ignoring names without a dot.
func commonDepth(deltas map[Cause]int64) int {
	var shared []string
	first := true
	for key := range deltas {
		if !strings.Contains(key.Module, ".") {
			continue
		}
		parts := strings.Split(key.Module, ".")
		parts = parts[:len(parts)-1] // the last component distinguishes modules
		if first {
			shared, first = parts, false
			continue
		}
		n := 0
		for n < min(len(shared), len(parts)) && shared[n] == parts[n] {
			n++
		}
		shared = shared[:n]
	}
	return len(shared)
}

// cutModule keeps the first n components of a name.
func cutModule(name string, n int) string {
	parts := strings.SplitN(name, ".", n+1)
	return strings.Join(parts[:min(n, len(parts))], ".")
}
