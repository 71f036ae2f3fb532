package aten

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/memplan/memplan/graph/program"
)

// A Trait is a property of an operator that the lift or the builder of a step
// depends on. Each operator's row lists its traits; nothing else does.
type Trait uint32

// Traits, as bits.
const (
	Numbered Trait = 1 << iota // Traits explains each
	Traced
	TracedMask
	Weights
	InPlace
	Activated
	Writes
	IntoZeros
	Zeros
	Idempotent
	OneType
	WideWeights
	Casts
	DefaultType
	Positions
	Joins
	Multiplies
	Probabilities
	PassesOn
	AllOnce
	Indexes
	Truth
	Recurrent
	Augmented
	Viewed
)

// Traits explains each trait, in words that end the sentence "the operator
// ...".
var Traits = []struct {
	Trait Trait
	Name  string
	Doc   string
}{
	{Numbered, "numbered", "makes a tensor and has names in an exported graph that nothing else takes (add and mul share theirs with symbolic numbers), so that a number left out is a call left out"},
	{Traced, "traced", "makes, while it is traced, as many tensors as its export shows"},
	{TracedMask, "traced mask", "makes one more tensor than that: its mask"},
	{Weights, "weights", "reads parameters of the module that calls it"},
	{InPlace, "in place", "is called by a module that takes inplace=True"},
	{Activated, "activated", "has a result that backward does not need and that models overwrite by an activation"},
	{Writes, "writes", "stands, in an exported graph, for writing to its first operand or to a part of it"},
	{IntoZeros, "into zeros", "is called in place on zeros that were made for it"},
	{Zeros, "zeros", "makes a tensor of zeros"},
	{Idempotent, "idempotent", "changes nothing the second time, and has a gradient that can be told from its result"},
	{OneType, "one type", "refuses operands of two floating-point types"},
	{WideWeights, "wide weights", "takes parameters of float32 beside an input of half precision, and refuses the reverse"},
	{Casts, "casts", "gives its result a type of its own, whatever its operand's"},
	{DefaultType, "default type", "makes a tensor of PyTorch's default type, float32, unless the call says another"},
	{Positions, "positions", "makes positions, which code seldom gives another tensor's type"},
	{Joins, "joins", "brings its operands to the widest of their types without autocast's doing"},
	{Multiplies, "multiplies", "multiplies two activations"},
	{Probabilities, "probabilities", "makes probabilities along a dim"},
	{PassesOn, "passes on", "gives on the elements of its operand, in another type, shape or with some of them zero"},
	{AllOnce, "all once", "shows every element of its operand once, in another shape or order"},
	{Indexes, "indexes", "is what x[i, a:b, None] calls"},
	{Truth, "truth", "makes a tensor of bool"},
	{Recurrent, "recurrent", "is one call of cuDNN for a whole recurrent network; it runs in float16 under autocast to bfloat16, too (aten/src/ATen/autocast_mode.cpp, native/cudnn/RNN.cpp)"},
	{Viewed, "viewed", "is written by the exporter as a view where it needs no copy"},
	{Augmented, "augmented", "is what an assignment with its symbol calls on tensors, in place: x += y"},
}

// Facts are the traits of a row: of all its operators, or of those that are named.
type Facts []fact

type fact struct {
	trait Trait
	lines []string // words of source lines that call the one operator in names
	adds  int
	// position, counted from 1, of the argument that is true in training
	flag   int
	symbol string
	names  []string // none: all of the row
}

// is gives traits to all operators of a row, or to those that are named.
func is(t Trait, of ...string) Facts { return Facts{{trait: t, names: of}} }

// and adds traits.
func (f Facts) and(t Trait, of ...string) Facts { return append(f, fact{trait: t, names: of}) }

// lines adds words of a source line that calls an operator which code runs in float32
// for its precision.
func (f Facts) lines(name string, words ...string) Facts {
	return append(f, fact{lines: words, names: []string{name}})
}

// adds sets the value of InPlaceAdds.
func (f Facts) adds(n int) Facts { return append(f, fact{adds: n}) }

func lines(name string, words ...string) Facts { return Facts(nil).lines(name, words...) }

// trains gives the index, from 0, of the argument that is true in training.
func (f Facts) trains(at int, of ...string) Facts { return append(f, fact{flag: at + 1, names: of}) }

// symbol gives the Python operator that calls the operator.
func (f Facts) symbol(s string, of ...string) Facts { return append(f, fact{symbol: s, names: of}) }

func (f *fact) of(name string) bool { return len(f.names) == 0 || slices.Contains(f.names, name) }

// Is reports whether the operator called name, without overload, has all of the traits. An
// operator that the table lacks has none.
func Is(name string, t Trait) bool { return byName[name].is(name, t) }

func (o *Op) is(name string, t Trait) bool {
	if o == nil {
		return false
	}
	var has Trait
	for i := range o.Facts {
		if o.Facts[i].of(name) {
			has |= o.Facts[i].trait
		}
	}
	return has&t == t
}

// find returns the first fact about an operator that satisfies has, or nil.
func find(name string, has func(*fact) bool) *fact {
	if o := byName[name]; o != nil {
		for i := range o.Facts {
			if f := &o.Facts[i]; f.of(name) && has(f) {
				return f
			}
		}
	}
	return nil
}

// TrainingFlag returns the index, from 0, of an operator's argument that is true in
// training.
func TrainingFlag(name string) (at int, ok bool) {
	if f := find(name, func(f *fact) bool { return f.flag > 0 }); f != nil {
		return f.flag - 1, true
	}
	return 0, false
}

// Symbol returns the Python operator that calls an operator, "" if none does.
func Symbol(name string) string {
	if f := find(name, func(f *fact) bool { return f.symbol != "" }); f != nil {
		return f.symbol
	}
	return ""
}

// Precise returns words of source lines that call an operator which code runs in
// float32 for its precision; nil for others.
func Precise(name string) []string {
	if f := find(name, func(f *fact) bool { return f.lines != nil }); f != nil {
		return f.lines
	}
	return nil
}

// InPlaceAdds returns the number of symbolic additions that tracing an operator in
// place makes besides those for its tensors, as measured for PyTorch 2.8, 2.9, 2.11,
// 2.13 and 2.15.
func InPlaceAdds(name string) int {
	if f := find(name, func(f *fact) bool { return f.adds > 0 }); f != nil {
		return f.adds
	}
	return 0
}

// Saved describes what autograd keeps for backward, without the marks of memory that
// is allocated only for that.
func (o *Op) Saved() string { return strings.ReplaceAll(o.Saves, "+", "") }

// SavesResult reports whether backward always needs an operator's first result, so
// that overwriting it makes autograd raise an error.
func SavesResult(name string) bool {
	o := byName[name]
	return o != nil && slices.Contains(strings.Split(o.Saves, ", "), "result")
}

// Where returns the file and the function that run a row's operators.
func (o *Op) Where() string {
	if slices.ContainsFunc(pointwises, func(p pointwise) bool { return p.name == o.Names[0] }) {
		return program.Where((*pointwise).run)
	}
	return program.Where(o.run)
}

// Has describes the traits of the operator called name, in the order of Traits.
func (o *Op) Has(name string) (out []string) {
	for _, x := range Traits {
		if o.is(name, x.Trait) {
			out = append(out, x.Doc)
		}
	}
	if at, ok := TrainingFlag(name); ok {
		out = append(out, "has an argument that is true in training: number "+strconv.Itoa(at+1))
	}
	if s := Symbol(name); s != "" {
		out = append(out, "is what "+s+" calls")
	}
	if words := Precise(name); words != nil {
		out = append(out, "is run in float32 for its precision by code whose lines say "+strings.Join(words, " or "))
	}
	return out
}

// atlas has, for each measured call, the cases and those whose bytes are exact.
//
//go:embed testdata/atlas.tsv
var atlas string

// measured is the atlas by name.
var measured = sync.OnceValue(func() map[string][2]int {
	out := map[string][2]int{}
	for l := range strings.Lines(atlas) {
		f := strings.Fields(l)
		cases, err1 := strconv.Atoi(f[1])
		exact, err2 := strconv.Atoi(f[2])
		if err1 != nil || err2 != nil {
			panic("aten: atlas.tsv: " + l)
		}
		out[f[0]] = [2]int{cases, exact}
	}
	return out
})

// Measured returns how many calls of an operator were run on a card (docs/atlas.md), and in how many
// of them this package's bytes are PyTorch's.
func Measured(name string) (cases, exact int) {
	if name == "normal_functional" { // measured in place
		name = "normal"
	}
	m := measured()[name]
	return m[0], m[1]
}
