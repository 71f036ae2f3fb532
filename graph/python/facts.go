package python

import (
	"slices"
	"strings"
	"sync"
)

// Facts that a class has or has not; libraries.txt says what each means.
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

	// FunctionModules is asked of what code calls a module of functions: "F".
	FunctionModules = fact("function-modules")

	recurrent  = fact("recurrent")
	pools      = fact("adaptive-pools")
	cells      = fact("cells")
	inPlace    = fact("activations-in-place")
	localNames = fact("locals")
)

// BatchNorm is what the operator's module is taken to be where a file names none.
const BatchNorm = "torch.nn.modules.batchnorm.BatchNorm"

// SelectiveScan is the function of transformers that runs a selective scan step by step.
const SelectiveScan = "mamba_selective_scan"

// Recurrent returns the one call that a recurrent module makes, which exporters take
// apart; "" where the activation of its steps says which. It is false for other classes.
func Recurrent(class string) (call string, ok bool) {
	v, ok := recurrent.Values(&Place{Class: class})
	return strings.Join(v, ""), ok
}

// Cell returns which cell a module is that computes one step of a recurrent network, gru
// or lstm; "" for other classes.
func Cell(class string) string {
	v, _ := cells.Values(&Place{Class: class})
	return strings.Join(v, "")
}

// AdaptivePool returns the operator of a module of adaptive pooling, and over how
// many dims it pools, 0 for other classes.
func AdaptivePool(class string) (op string, dims int) {
	v, ok := pools.Values(&Place{Class: class})
	if !ok {
		return "", 0
	}
	return v[0], int(v[0][len(v[0])-2] - '0')
}

// ActivatesInPlace tells whether modules of a class apply an activation in place;
// known is false for classes that the file does not have.
func ActivatesInPlace(op string, p *Place) (in, known bool) {
	v, known := inPlace.Values(p)
	return known && (v[0] == "all" || slices.Contains(strings.Split(v[0], ","), op)), known
}

// A Local is a variable of a forward function that names results of operators.
type Local struct {
	Op    string // prefix of the operators
	Until string // prefix of the operator whose last call ends it; "" until the forward returns
	Which int    // 1: the first call of Op alone, -1: the last, 0: all
}

// Locals returns such variables of a class.
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

// Layer reports a class whose modules transformers checkpoints.
func Layer(class string) bool {
	return Transformers.Of(class) && layers()[class[strings.LastIndexByte(class, '.')+1:]]
}

var frames = sync.OnceValue(func() string { return section("frames") })

// Frame returns what the variables of a class's forward function keep alive, nil for
// a class that is not known or keeps nothing. libraries.txt has the notation.
func Frame(class string) []string {
	lines := from(frames(), class, " ")
	line, _, _ := strings.Cut(lines, "\n")
	if name, rest, _ := strings.Cut(line, " "); name == class {
		return strings.Fields(rest)
	}
	return nil
}

// A Cast is the whole statement that a line of source is a part of, with the casts
// that make no call in a file of float32; in one class of its file where Class is not "".
type Cast struct{ Class, Whole string }

var casts = sync.OnceValue(func() string { return section("casts") })

// Casts returns the statements of a line, without the spaces around it, in files of a
// name without folders.
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

// from returns the rest of sorted lines from the first on whose key, what stands before
// sep, is not less.
func from(lines, key, sep string) string {
	lo, hi := 0, len(lines)
	for lo < hi { // lo and hi are starts of lines, or the end
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
