package python

import (
	"slices"
	"strings"
	"sync"
)

// Facts that hold of a class or do not; libraries.txt explains each.
var (
	PyTorch       = fact("pytorch")
	Transformers  = fact("transformers")
	PEFT          = fact("peft")
	KnownNorms    = fact("known-norms")
	RarelyClones  = fact("rarely-clones")
	RarelyDrops   = fact("rarely-drops")
	DropsOut      = fact("drops-out")
	AddsInPlace   = fact("adds-in-place")
	FloorsInPlace = fact("floors-in-place")
	DropsPaths    = fact("drops-paths")

	Dropouts      = fact("dropouts")
	BatchNorms    = fact("batch-norms")
	Sequentials   = fact("sequentials")
	NeverRun      = fact("never-run")
	Attention     = fact("attention")
	Linears       = fact("linears")
	Splits        = fact("splits")
	WeightNorms   = fact("weight-norms")
	SpectralNorms = fact("spectral-norms")

	WideNorms          = fact("wide-norms")
	CastsToWeight      = fact("casts-to-weight")
	RoundsLast         = fact("rounds-last")
	TypedProbabilities = fact("typed-probabilities")
	WideScores         = fact("wide-scores")
	RotaryEmbeddings   = fact("rotary-embeddings")
	FrozenPositions    = fact("frozen-positions")
	CustomGELU         = fact("custom-gelu")

	ReturnsProbabilities = fact("returns-probabilities")
	NamesProjections     = fact("names-projections")
	TurnsParts           = fact("turns-parts")

	// FunctionModules holds of names under which code calls a module of
	// functions: "F".
	FunctionModules = fact("function-modules")

	recurrent  = fact("recurrent")
	pools      = fact("adaptive-pools")
	cells      = fact("cells")
	inPlace    = fact("activations-in-place")
	localNames = fact("locals")
)

// BatchNorm is the class assumed for the operator's module where a file names
// none.
const BatchNorm = "torch.nn.modules.batchnorm.BatchNorm"

// SelectiveScan is the function of transformers that runs a selective scan step by step.
const SelectiveScan = "mamba_selective_scan"

// Recurrent returns the one call that a recurrent module makes and exporters take apart;
// "" if the cell's activation decides which. ok is false for other classes.
func Recurrent(class string) (call string, ok bool) {
	v, ok := recurrent.Values(&Place{Class: class})
	return strings.Join(v, ""), ok
}

// Cell returns the cell, gru or lstm, of a module that computes one step of a recurrent
// network; "" for other classes.
func Cell(class string) string {
	v, _ := cells.Values(&Place{Class: class})
	return strings.Join(v, "")
}

// AdaptivePool returns the operator of a module of adaptive pooling and the
// number of dims it pools, 0 for other classes.
func AdaptivePool(class string) (op string, dims int) {
	v, ok := pools.Values(&Place{Class: class})
	if !ok {
		return "", 0
	}
	return v[0], int(v[0][len(v[0])-2] - '0')
}

// ActivatesInPlace reports whether modules at a place apply an activation in
// place; known is false if libraries.txt has no row for it.
func ActivatesInPlace(op string, p *Place) (in, known bool) {
	v, known := inPlace.Values(p)
	return known && (v[0] == "all" || slices.Contains(strings.Split(v[0], ","), op)), known
}

// A Local is a variable of a forward function that holds results of operators.
type Local struct {
	Op    string // prefix of the operators
	Until string // prefix of the operator whose last call ends its life; "": the forward's return does
	Which int    // 1: only the first call of Op, -1: only the last, 0: all
}

// Locals returns the variables listed for a class.
func Locals(class string) (list []Local) {
	p := &Place{Class: class}
	for i := range localNames.rows() {
		r := &localNames.rows()[i]
		if !r.holds(p) {
			continue
		}
		v := Local{Op: r.values[0]}
		for _, word := range r.values[1:] {
			switch word {
			case "first":
				v.Which = 1
			case "last":
				v.Which = -1
			default:
				v.Until = word
			}
		}
		list = append(list, v)
	}
	return list
}

var layers = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	for name := range strings.FieldsSeq(section("layers")) {
		out[name] = true
	}
	return out
})

// Layer reports whether transformers checkpoints modules of a class.
func Layer(class string) bool {
	return Transformers.Of(class) && layers()[class[strings.LastIndexByte(class, '.')+1:]]
}

var frames = sync.OnceValue(func() string { return section("frames") })

// Frame returns what the variables of a class's forward function keep alive; nil if
// the class is unknown or keeps nothing. libraries.txt has the notation.
func Frame(class string) []string {
	lines := from(frames(), class, " ")
	line, _, _ := strings.Cut(lines, "\n")
	if name, rest, _ := strings.Cut(line, " "); name == class {
		return strings.Fields(rest)
	}
	return nil
}

// A Cast is a whole statement of source code with casts that leave no call in a float32
// file. Unless Class is "", it is meant only inside that class.
type Cast struct{ Class, Whole string }

var casts = sync.OnceValue(func() string { return section("casts") })

// Casts returns the statements that a source line, without surrounding spaces, may be
// part of, in files of the given base name.
func Casts(file, line string) (list []Cast) {
	for row := range strings.Lines(from(casts(), line, "\t")) {
		f := strings.Split(strings.TrimSuffix(row, "\n"), "\t")
		if len(f) != 3 || f[0] != line {
			break
		}
		for name := range strings.FieldsSeq(f[2]) {
			if in, class, _ := strings.Cut(name, ":"); in == file {
				list = append(list, Cast{class, f[1]})
			}
		}
	}
	return list
}

// from returns the part of sorted lines that starts at the first line whose key, the
// text before sep, is not below key.
func from(lines, key, sep string) string {
	lo, hi := 0, len(lines)
	for lo < hi { // lo and hi are starts of lines, or the end of the text
		mid := max(lo, strings.LastIndexByte(lines[:(lo+hi)/2], '\n')+1)
		line, _, _ := strings.Cut(lines[mid:], "\n")
		if k, _, _ := strings.Cut(line, sep); k < key {
			lo = mid + len(line) + 1
		} else {
			hi = mid
		}
	}
	return lines[lo:]
}
