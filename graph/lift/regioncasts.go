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

// regionCast matches the exporter's names of the results of casts.
var regionCast = regexp.MustCompile(`^(to|float|type_as)(_\d+)?$`)

// keyRegion marks calls that autocast leaves alone.
const keyRegion = "memplan.region"

// AutocastOff reports whether a call is in a region where code casts to float32
// itself: torch.autocast(enabled=False).
func AutocastOff(n *graph.Node) bool { return n.MetaValue(keyRegion) == "autocast off" }

// GradOff reports whether a call is in a region where gradients are assumed to be
// off: torch.no_grad.
func GradOff(n *graph.Node) bool { return n.MetaValue(keyRegion) == "grad off" }

// region restores the casts of the calls [lo, hi), whose frame d is that of a region.
func (s *sources) region(lo, hi, d int) {
	s.regions = append(s.regions, [2]int{lo, hi})
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

// trains reports whether a call reads a parameter.
func (s *sources) trains(n graph.Node) bool {
	return slices.ContainsFunc(n.Inputs, func(id graph.ValueID) bool { return s.r.l.Roles[id] == Parameter })
}

// RegionUnknown is the code of the warning that calls with parameters are in a
// region of torch.no_grad or torch.autocast, and the file does not say which.
const RegionUnknown = "region-unknown"

// gradOff marks the calls of regions all of whose parameters are also read outside of
// regions: code that runs the same modules with and without gradients, as for the cycles
// before the last one of a recurrent step.
func (s *sources) gradOff() {
	within := make([]bool, len(s.r.l.Graph.Nodes))
	for _, x := range s.regions {
		for i := x[0]; i < x[1]; i++ {
			within[i] = true
		}
	}
	outside := map[graph.ValueID]bool{}
	for i := range within {
		for _, id := range s.r.node(i).Inputs {
			if !within[i] {
				outside[id] = true
			}
		}
	}
	for _, x := range s.regions {
		trains, other := false, false
		for i := x[0]; i < x[1]; i++ {
			for _, id := range s.r.node(i).Inputs {
				if id >= 0 && s.r.l.Roles[id] == Parameter {
					trains, other = true, other || !outside[id]
				}
			}
		}
		if !trains || other {
			continue
		}
		s.unknown = true
		for i := x[0]; i < x[1]; i++ {
			n := s.r.node(i)
			n.Meta = slices.DeleteFunc(slices.Clone(n.Meta), func(p graph.Prop) bool { return p.Key == keyRegion })
			n.Meta = append(n.Meta, graph.Prop{Key: keyRegion, Value: "grad off"})
		}
	}
}

// warnRegions adds that warning.
func (s *sources) warnRegions() {
	s.gradOff()
	if s.unknown {
		s.r.l.Warnings = append(s.r.l.Warnings, graph.Warning{Code: RegionUnknown,
			Message: "forward runs parameters in a region of torch.no_grad or torch.autocast, and the file does not say which of them: they are taken to be trained in the step's precision, but where the same parameters are read outside, too, not to be recorded for backward"})
	}
}

// regionOperands returns the arguments of the call in a line of a region.
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
