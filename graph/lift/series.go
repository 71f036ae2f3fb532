package lift

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// In-place updates that the names of calls reveal.
//
// torch.export computes the length of the storage of every tensor that a call
// makes: 1 + Σ (size-1)·stride. If the batch is a symbol, these are additions of
// symbolic numbers, one for each dim and one for the sum, and they are named in the
// same series as calls: add, add_1, add_2. They are not in the file, but the names
// of the tensors' own additions are, and so are those that count a batch
// normalisation's batches: between two such names the series shows how many tensors
// were made. A call in place makes one more than the same call out of place.
//
// A stretch between two names counts only if it holds nothing but calls whose
// number of tensors is known (traced), and if exactly one choice of in-place
// activations, the same for all of one class and operator, explains the difference.

// traced returns how many tensors tracing a call makes, 0 if unknown.
func traced(op string) int {
	switch {
	case aten.Is(op, aten.Traced|aten.TracedMask):
		return 2
	case aten.Is(op, aten.Traced):
		return 1
	}
	return 0
}

// A mark is a name of the series, and the call before which it was assigned.
type mark struct{ at, number int }

// A suspect is the additions that activations of one class may make in a
// stretch.
type suspect struct {
	key   string
	calls []int
	takes int
}

// series returns, for activations whose names tell, whether they are in place.
func (r *rewriter) series() map[int]bool {
	var known bool
	if r.fresh, known = countsFresh(r.l.Graph.Model.Producer); !known {
		return nil
	}
	marks := r.marks()
	out, votes := map[int]bool{}, map[string][2]int{}
	for k := 0; k+1 < len(marks); k++ {
		for _, s := range r.stretch(marks[k], marks[k+1]) {
			v := votes[s.key]
			for _, i := range s.calls {
				out[i] = s.takes > 0
			}
			if s.takes > 0 {
				v[1]++
			} else {
				v[0]++
			}
			votes[s.key] = v
		}
	}
	for i := range r.l.Graph.Nodes {
		n := r.node(i)
		if _, ok := out[i]; ok || !aten.Is(opName(n), aten.InPlace) {
			continue
		}
		if v := votes[suspectKey(n)]; (v[0] > 0) != (v[1] > 0) { // as for others of its class
			out[i] = v[1] > 0
		}
	}
	return out
}

// countsFresh reports whether a version of PyTorch assigns names for every tensor
// that a call makes, or, from 2.15 on, only for those of calls in place; known is
// whether it was measured.
func countsFresh(producer string) (fresh, known bool) {
	var minor int
	if _, err := fmt.Sscanf(producer, "pytorch 2.%d.", &minor); err != nil {
		return false, false
	}
	return minor <= 13, minor >= 8 && minor <= 13 || minor == 15
}

// marks lists the names of the series in the order of their assignment.
func (r *rewriter) marks() []mark {
	out := []mark{{0, -1}}
	counters := r.counters()
	for i := range r.l.Graph.Nodes {
		n := r.node(i)
		if k, ok := inSeries(n.Name); ok {
			out = append(out, mark{i, k})
		}
		if strings.Contains(opName(n), "batch_norm") {
			if k, ok := counters[n.Module]; ok {
				out = append(out, mark{i, k})
				delete(counters, n.Module)
			}
		}
	}
	return out
}

// inSeries returns the number of a name of the series: 3 of "add_3", 0 of
// "add".
func inSeries(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "add")
	if !ok || rest == "" {
		return 0, ok
	}
	rest, ok = strings.CutPrefix(rest, "_")
	k, err := strconv.Atoi(rest)
	return k, ok && err == nil && k > 0
}

// counters returns the names of the additions that count the batches of
// modules.
func (r *rewriter) counters() map[string]int {
	out := map[string]int{}
	for _, p := range r.l.Graph.Meta {
		if p.Key != keySignature {
			continue
		}
		for _, line := range strings.Split(p.Value, "\n") {
			name, target, ok := strings.Cut(line, ": BUFFER_MUTATION target='")
			module, is := strings.CutSuffix(target, ".num_batches_tracked'")
			if k, series := inSeries(name); ok && is && series {
				out[module] = k
			}
		}
	}
	return out
}

const keySignature = "pkg.torch.export.ExportedProgram.graph_signature"

// stretch decides which activations between two marks are in place: each with
// its additions, 0 if it makes a new tensor; nil if no unique choice explains
// the numbers.
func (r *rewriter) stretch(from, to mark) []suspect {
	rest := to.number - from.number - 1
	var list []suspect
	for i := from.at; i < to.at; i++ {
		n := r.node(i)
		made, each := traced(opName(n)), r.additions(n)
		if made == 0 && each > 0 {
			return nil
		}
		if r.fresh {
			rest -= made * each
		}
		if i > from.at && r.writtenInPlace(i) {
			rest -= r.rewritten(n)
		}
		switch {
		case each == 0 || r.writtenInPlace(i):
		case aten.Is(opName(n), aten.InPlace) && !callsOutOfPlace(n):
			list = suspected(list, suspectKey(n), i, each+aten.InPlaceAdds(opName(n)))
		}
	}
	if r.writtenInPlace(to.at) {
		rest -= r.rewritten(r.node(to.at))
	}
	if rest < 0 || len(list) == 0 || len(list) > maxSuspects {
		return nil
	}
	return uniqueSubset(list, rest)
}

// rewritten returns the additions before the name of a call that its line writes
// in place: for its result once more, and for another tensor that it reads.
func (r *rewriter) rewritten(n *graph.Node) int {
	out := r.additions(n) + aten.InPlaceAdds(opName(n))
	if len(n.Inputs) > 1 {
		out += r.additions(n)
	}
	return out
}

// maxSuspects bounds the kinds of activations in a stretch: every subset of them is
// tried.
const maxSuspects = 8

// suspectKey identifies activations that are either all in place or all not: those of one
// operator in one class.
func suspectKey(n *graph.Node) string { return opName(n) + " " + ownerClass(n) }

func suspected(list []suspect, key string, call, takes int) []suspect {
	for i := range list {
		if list[i].key == key {
			list[i].calls, list[i].takes = append(list[i].calls, call), list[i].takes+takes
			return list
		}
	}
	return append(list, suspect{key, []int{call}, takes})
}

// uniqueSubset returns the suspects with the additions of the one subset that adds up
// to want, 0 for those outside; nil if there is none or more than one.
func uniqueSubset(list []suspect, want int) []suspect {
	found := -1
	for set := range 1 << len(list) {
		sum := 0
		for k := range list {
			if set>>k&1 == 1 {
				sum += list[k].takes
			}
		}
		if sum == want {
			if found >= 0 {
				return nil
			}
			found = set
		}
	}
	if found < 0 {
		return nil
	}
	for k := range list {
		if found>>k&1 == 0 {
			list[k].takes = 0
		}
	}
	return list
}

// additions returns the number of additions for one tensor of a call's result:
// none if no dim is a symbol.
func (r *rewriter) additions(n *graph.Node) int {
	if len(n.Outputs) == 0 || n.Outputs[0] < 0 {
		return 0
	}
	shape := r.l.Graph.Values[n.Outputs[0]].Decl.Shape
	if _, static := shape.Static(); static {
		return 0
	}
	return len(shape) + 1
}
