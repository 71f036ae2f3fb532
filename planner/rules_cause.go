package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/train"
)

// A Cause is a part of a change of the allocated peak: the change of one
// category in the modules under one name.
type Cause struct {
	Module   string `json:"module"` // "" for what belongs to no module, and for the whole model
	Category string `json:"category"`
	Delta    int64  `json:"delta"` // bytes
	// Reason is what changed most among the module's parameters, "conv 256 to 512
	// channels"; "" if their shapes are the same, or not known.
	Reason string `json:"reason,omitempty"`
}

// grown lists the differences between a model's peak and the baseline's, the
// largest first; none if the baseline has no parts.
func grown(s *subject) []Cause {
	if s.base == nil || len(s.base.Parts) == 0 {
		return nil
	}
	out := causes(s.base.Parts, s.report.Attribution().Parts)
	if len(s.base.Weights) == 0 {
		return out
	}
	head := s.model.weights().texts()
	for i := range out {
		if out[i].Module != "" {
			out[i].Reason = reason(out[i].Module, s.base.Weights, head)
		}
	}
	return out
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

// texts writes the shapes as a baseline has them, "512x256x1x1".
func (w Weights) texts() map[string]string {
	out := make(map[string]string, len(w))
	for name, dims := range w {
		parts := make([]string, len(dims))
		for i, n := range dims {
			parts[i] = strconv.FormatInt(n, 10)
		}
		out[name] = strings.Join(parts, "x")
	}
	return out
}

// reason tells what changed in the shapes of a module's parameters: of those
// that have another shape, the one whose size changed most, or else how many
// came and went.
func reason(module string, base, head map[string]string) string {
	var most, added, gone int64
	best := ""
	for name, shape := range head {
		old, had := base[name]
		switch {
		case !train.Within(name, module) || shape == old:
		case !had:
			added++
		default:
			if n := abs(elementsOf(shape) - elementsOf(old)); best == "" || n > most || n == most && name < best {
				best, most = name, n
			}
		}
	}
	for name := range base {
		if _, has := head[name]; !has && train.Within(name, module) {
			gone++
		}
	}
	switch {
	case best != "":
		return shapeChange(best, base[best], head[best])
	case added > 0 && gone > 0:
		return fmt.Sprintf("%s, %d gone", countOf(added, "new parameter"), gone)
	case added > 0:
		return countOf(added, "new parameter")
	case gone > 0:
		return countOf(gone, "parameter") + " gone"
	}
	return ""
}

func countOf(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// elementsOf returns the number of elements of a written shape, 0 for one that is
// none: baselines are files that anybody can edit.
func elementsOf(shape string) int64 {
	const most = 1 << 53
	n := int64(1)
	for part := range strings.SplitSeq(shape, "x") {
		d, err := strconv.ParseInt(part, 10, 64)
		if err != nil || d < 0 || d > 0 && n > most/d {
			return 0
		}
		n *= d
	}
	return n
}

// shapeChange tells what a parameter's new shape means: the weight of a
// convolution has its output channels first.
func shapeChange(name, base, head string) string {
	x, y := strings.Split(base, "x"), strings.Split(head, "x")
	own := name[strings.LastIndexByte(name, '.')+1:]
	if own != "weight" || len(x) != len(y) || len(x) < 3 {
		return fmt.Sprintf("%s %s to %s", own, base, head)
	}
	switch {
	case x[0] != y[0]:
		return fmt.Sprintf("conv %s to %s channels", x[0], y[0])
	case x[1] != y[1]:
		return fmt.Sprintf("conv %s to %s input channels", x[1], y[1])
	}
	return fmt.Sprintf("conv kernel %s to %s", strings.Join(x[2:], "x"), strings.Join(y[2:], "x"))
}
