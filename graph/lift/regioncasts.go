package lift

import (
	"regexp"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// A region of torch.autocast or torch.no_grad within forward is a graph of its own
// to the exporter, and the lines of its calls are those of the code that it writes
// for that graph:
//
//	File "<eval_with_key>.75", line 11, in forward
//	    mul = torch.ops.aten.mul.Tensor(to, rsqrt);  rsqrt = None
//
// They name each operand, also the casts that make no call: to is the float32 of
// something, and no call of the region makes it.
const regionFile = "<eval_with_key>"

// regionCast is what the exporter names the result of a cast.
var regionCast = regexp.MustCompile(`^(to|float|type_as)(_\d+)?$`)

// keyRegion marks calls that autocast leaves alone.
const keyRegion = "memplan.region"

// AutocastOff reports a call that stands in a region where code casts to float32
// itself: torch.autocast(enabled=False).
func AutocastOff(n *graph.Node) bool { return n.MetaValue(keyRegion) == "autocast off" }

// region puts the casts of the calls [lo, hi) back, whose frame d is that of a region.
func (s *sources) region(lo, hi, d int) {
	made := map[string]bool{}
	for i := lo; i < hi; i++ {
		name, _, _ := strings.Cut(s.lines[i][d].Text, " = ")
		made[name] = true
	}
	casts := map[string]graph.ValueID{}
	for i := lo; i < hi; i++ {
		args := regionOperands(s.lines[i][d].Text)
		n := s.r.node(i)
		for j := range min(len(args), len(n.Args)) {
			a := &n.Args[j]
			if made[args[j]] || !regionCast.MatchString(args[j]) || a.Kind != graph.ArgValue || a.Value < 0 || s.r.l.Graph.Values[a.Value].Type.Elem != graph.Float32 {
				continue
			}
			w, ok := casts[args[j]]
			if !ok {
				w = s.r.widened(i, a.Value)
				casts[args[j]] = w
			}
			a.Value = w
		}
		s.r.relink(n)
	}
	if len(casts) == 0 {
		s.unknown = s.unknown || slices.ContainsFunc(s.r.l.Graph.Nodes[lo:hi], s.trains)
		return
	}
	off := graph.Prop{Key: keyRegion, Value: "autocast off"}
	for i := lo; i < hi; i++ {
		n := s.r.node(i)
		n.Meta = append(slices.Clone(n.Meta), off)
	}
}

// trains reports a call that reads a parameter.
func (s *sources) trains(n graph.Node) bool {
	return slices.ContainsFunc(n.Inputs, func(id graph.ValueID) bool { return s.r.l.Roles[id] == Parameter })
}

// RegionUnknown is the code of the warning that calls with parameters stand in a
// region of torch.no_grad or torch.autocast, of which the file does not say which.
const RegionUnknown = "region-unknown"

// warnRegions adds the warning.
func (s *sources) warnRegions() {
	if s.unknown {
		s.r.l.Warnings = append(s.r.l.Warnings, graph.Warning{Code: RegionUnknown,
			Message: "forward runs parameters in a region of torch.no_grad or torch.autocast, and the file does not say which of them: they are taken to be trained in the step's precision"})
	}
}

// regionOperands are the arguments of the call in a line of a region.
func regionOperands(text string) []string {
	_, text, _ = strings.Cut(text, " = torch.ops.")
	_, text, _ = strings.Cut(text, "(")
	end := strings.LastIndex(text, ")")
	if end < 0 {
		return nil
	}
	var out []string
	depth, start := 0, 0
	for i, c := range text[:end] {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(text[start:i]))
				start = i + 1
			}
		}
	}
	return append(out, strings.TrimSpace(text[start:end]))
}
