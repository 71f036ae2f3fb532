package lift

import (
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// Calls that the model makes but the file lacks, because nothing reads their
// results: the exporter drops them after tracing.
//
// Tracing numbers the calls of each operator (linear, linear_1, linear_2), so
// that a number missing between two calls of the file is a dropped call. After
// the last call no number shows anything; but the file lists every parameter of
// the model, and if no call reads a module's parameters, its forward may have run
// there.

// A Gap is a run of calls of an operator that are missing between two others.
type Gap struct {
	Op     string
	First  int // number of the first missing call
	Calls  int
	After  int // the call of the graph before the gap, -1 for none
	Before int // the call after the gap
}

// An Idle is a module with parameters but without a call in the file.
type Idle struct {
	Module string
	Within string // innermost enclosing module that has calls, "" for the model
}

// pythonNames are numbered operators that share names with Python's functions: the first call of
// sum is sum_1.
var pythonNames = []string{"abs", "max", "min", "sum"}

// firstNumber is the number of an operator's first call; counted is whether its calls
// are numbered.
func firstNumber(op string) (first int, counted bool) {
	if slices.Contains(pythonNames, op) {
		first = 1
	}
	return first, aten.Is(op, aten.Numbered)
}

// maxGap is the longest run of calls that is believed to be missing.
const maxGap = 1 << 10

// missing records the calls of the model that the file lacks, unless the file was
// rewritten after export and lost names of other calls.
func (l *Lifted) missing(g *graph.Graph) {
	if rewritten(g) {
		return
	}
	l.Gaps, l.Idle = slices.DeleteFunc(l.gaps(g), func(x Gap) bool { return l.filled[callName(x.Op, x.First)] }), l.idle(g)
	of := 0 // missing calls that read parameters
	for _, gap := range l.Gaps {
		if aten.Is(gap.Op, aten.Weights) {
			of += gap.Calls
		}
	}
	if of >= len(l.Idle) { // they are the modules' own
		l.Idle = nil
	}
}

// rewritten reports whether a file has nodes that the exporter did not write as
// part of a call.
func rewritten(g *graph.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n graph.Node) bool { return n.Op != "Constant" && n.MetaValue(keyFX) == "" })
}

// gaps finds missing numbers.
func (l *Lifted) gaps(g *graph.Graph) (out []Gap) {
	at := map[string]int{}
	for i := range l.Graph.Nodes {
		at[l.Graph.Nodes[i].Name] = i
	}
	type taken struct{ number, at int }
	names := map[string][]taken{}
	last, call := "", -1
	for i := range g.Nodes {
		name, _, _ := strings.Cut(strings.TrimPrefix(g.Nodes[i].MetaValue(keyFX), "%"), " ")
		if name == last || name == "" {
			continue
		}
		last = name
		if k, ok := at[name]; ok {
			call = k
		}
		if op, k := numberOf(name); k >= 0 {
			names[op] = append(names[op], taken{k, call})
		}
	}
	for op, list := range names {
		first, _ := firstNumber(op)
		before := taken{first - 1, -1}
		for _, t := range list {
			if n := t.number - before.number - 1; n > 0 && n <= maxGap {
				out = append(out, Gap{op, before.number + 1, n, before.at, t.at})
			}
			if t.number > before.number {
				before = t
			}
		}
	}
	slices.SortFunc(out, func(a, b Gap) int {
		if a.Before != b.Before {
			return a.Before - b.Before
		}
		return strings.Compare(a.Op, b.Op)
	})
	return out
}

// callName returns the name of a numbered call.
func callName(op string, number int) string { return op + "_" + strconv.Itoa(number) }

// numberOf splits the name of a call into operator and number, -1 for operators
// without numbers.
func numberOf(name string) (string, int) {
	if first, ok := firstNumber(name); ok && first == 0 {
		return name, 0
	}
	dash := strings.LastIndexByte(name, '_')
	if dash < 0 {
		return name, -1
	}
	k, err := strconv.Atoi(name[dash+1:])
	if _, ok := firstNumber(name[:dash]); !ok || err != nil || k < 1 {
		return name, -1
	}
	return name[:dash], k
}

// idle finds modules with parameters but without calls, which may have run
// after the last call of their enclosing module.
func (l *Lifted) idle(g *graph.Graph) (out []Idle) {
	ends := map[string]int{"": len(l.Graph.Nodes)} // last call of each module that runs
	final := map[string]int{}                      // last call of each numbered operator
	for i := range l.Graph.Nodes {
		n := &l.Graph.Nodes[i]
		for _, m := range Scopes(n) {
			ends[m] = max(ends[m], i)
		}
		if op, k := numberOf(n.Name); k >= 0 {
			final[op] = i
		}
	}
	seen := map[string]bool{}
	for i := range g.Values { // other code reads one of their parameters
		if v := &g.Values[i]; v.Kind == graph.Initializer {
			seen[v.Name[:max(strings.LastIndexByte(v.Name, '.'), 0)]] = true
		}
	}
	for _, target := range parameterTargets(g) {
		module := target[:max(strings.LastIndexByte(target, '.'), 0)]
		if _, ran := ends[module]; ran || seen[module] {
			continue
		}
		seen[module] = true
		within := around(module, ends)
		for _, at := range final {
			if at <= ends[within] {
				out = append(out, Idle{module, within})
				break
			}
		}
	}
	return out
}

// around returns the innermost module around another that ran.
func around(module string, ran map[string]int) string {
	for module != "" {
		if _, ok := ran[module]; ok {
			return module
		}
		module = module[:max(strings.LastIndexByte(module, '.'), 0)]
	}
	return ""
}

// parameterTargets lists the parameters of the exported model.
func parameterTargets(g *graph.Graph) (out []string) {
	for _, p := range g.Meta {
		if p.Key != keySignature {
			continue
		}
		for line := range strings.Lines(p.Value) {
			if _, target, ok := strings.Cut(line, ": PARAMETER target='"); ok {
				target, _, _ = strings.Cut(target, "'")
				out = append(out, target)
			}
		}
	}
	return out
}

// MissingBytes estimates the memory of missing calls, in bytes: for each, the
// largest result of the calls between the two around it.
func (l *Lifted) MissingBytes() (sum int64) {
	for _, gap := range l.Gaps {
		sum += int64(gap.Calls) * l.largest(max(gap.After, 0), gap.Before, "")
	}
	return sum
}

// IdleBytes estimates the memory of modules whose calls are missing, in bytes: for
// each, the largest result within the enclosing module.
func (l *Lifted) IdleBytes() (sum int64) {
	most := map[string]int64{}
	for _, x := range l.Idle {
		n, ok := most[x.Within]
		if !ok {
			n = l.largest(0, len(l.Graph.Nodes)-1, x.Within)
			most[x.Within] = n
		}
		sum += n
	}
	return sum
}

// largest returns the bytes of the largest result of a range's numbered calls
// that belong to a module.
func (l *Lifted) largest(first, last int, module string) (most int64) {
	for i := first; i <= last; i++ {
		n := &l.Graph.Nodes[i]
		if _, k := numberOf(n.Name); k < 0 || module != "" && n.Module != module && !strings.HasPrefix(n.Module, module+".") {
			continue
		}
		for _, id := range n.Outputs {
			if id < 0 {
				continue
			}
			if b, ok := l.Graph.Values[id].Type.Bytes().Int(); ok {
				most = max(most, b)
			}
		}
	}
	return most
}
