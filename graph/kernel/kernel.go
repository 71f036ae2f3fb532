// Package kernel is the contract between package aten, which issues the nodes of a
// program, and the devices that run them: one row for each kernel, in one file a family.
// A row says what a node that names the kernel (program.Node.Does) must have, and what
// is true of all such nodes. The same file names lead to the operators in graph/aten and
// to the functions in validate/cpu and validate/cuda.
package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/program"
)

// A Kernel is one row of the table.
type Kernel struct {
	Name string
	// Operands are the operands' names, in order. A "?" follows one that may be
	// absent, "..." a last one that may be repeated. An operand called "_" may be
	// present but is never read.
	Operands string
	// Scalars are the names of program.Attrs.Scalars, in order. "alpha=1" may be left
	// out and is then 1; "..." follows a last one that may be repeated.
	Scalars string
	Modes   string // values that program.Attrs.Mode may have besides ""
	Dims    bool   // program.Attrs.Dims must be set
	Conv    bool
	Pool    bool
	Window  bool
	Rule    bool
	Refused string // why no device runs the kernel; empty if devices do

	Elementwise bool // element i of result 0 depends on element i of the broadcast operands alone
	Nothing     bool // no computation at all
	Random      bool // it draws random numbers, unless it has a dropout of 0
	Stateful    bool // it updates running statistics
	Selectable  bool // selective checkpoints may keep calls: PyTorch makes them as often, and in the order, as they stand here (scripts/pytorch/selective_reference.py)
	Pace        Pace
	Ways        []Way

	operands, scalars []word
}

// A Way is one of the PyTorch names (program.Node.Op) of calls of a kernel, with what
// is true of these calls alone.
type Way struct {
	Op         string
	Dispatched string // the operator that PyTorch's dispatcher sees, where Op is called inside of that
}

// A Pace is how a kernel's work is laid out on a card, on which depends how long it
// takes: package planner has a row for each.
type Pace uint8

// The paces. One that is called Backward is that of the gradients of the one before it.
const (
	Elements     Pace = iota // memory is read and written once, element by element
	Products                 // of matrices
	Convolutions             // by cuDNN, or, of single channels, by PyTorch
	ConvolutionsBackward
	BatchNorms // one block of threads for each channel
	BatchNormsBackward
	LayerNorms // one for each row
	LayerNormsBackward
	GroupNorms // one for each group of a sample
	GroupNormsBackward
	Attentions
	AttentionsBackward
	Reductions
	Softmaxes
	Windows // pooling and resizing
	WindowsBackward
	Lookups // of rows in a table
	LookupsBackward
	Indices     // single elements by index, sorting
	Recurrences // one time step after the other
	NumPaces
)

// A word is one of Operands or of Scalars.
type word struct {
	name           string
	optional, more bool
	value          float64 // default of a scalar
}

const (
	unread  = "_"              // name of an operand that no kernel reads
	nowhere = "no such kernel" // reason to refuse kernels that no device has
	dropout = "dropout"        // name of the probability that an element is dropped
)

// Table lists all kernels.
var Table = slices.Concat(pointwise, fill, view, paced(Indices, index, scatter), paced(Products, matmul), conv, attention, paced(Recurrences, rnn), norm, paced(Windows, pool, sample),
	paced(Reductions, reduce), loss, optimizer)

// paced gives rows a pace that have none of their own.
func paced(p Pace, rows ...[]Kernel) []Kernel {
	all := slices.Concat(rows...)
	for i := range all {
		if all[i].Pace == Elements {
			all[i].Pace = p
		}
	}
	return all
}

// Rows by name, ways by operator, and rows by the operator that the dispatcher sees.
var byName, byWay, byDispatched = indexTable(Table)

func indexTable(rows []Kernel) (names map[string]*Kernel, ways map[string]*Way, seen map[string]*Kernel) {
	names, ways, seen = map[string]*Kernel{}, map[string]*Way{}, map[string]*Kernel{}
	for i := range rows {
		k, own := &rows[i], true
		if names[k.Name] != nil {
			panic("kernel: listed twice: " + k.Name)
		}
		names[k.Name], k.operands, k.scalars = k, words(k.Operands), words(k.Scalars)
		for j := range k.Ways {
			w := &k.Ways[j]
			if ways[w.Op] = w; w.Dispatched != "" {
				seen[w.Dispatched], own = k, own && w.Op != k.Name
			}
		}
		if own {
			seen[k.Name] = k
		}
	}
	return names, ways, seen
}

func words(list string) (out []word) {
	for _, w := range strings.Fields(list) {
		text, value, given := strings.Cut(w, "=")
		text, more := strings.CutSuffix(text, "...")
		text, may := strings.CutSuffix(text, "?")
		v, err := strconv.ParseFloat(value, 64)
		if given && err != nil {
			panic("kernel: " + err.Error())
		}
		out = append(out, word{name: text, optional: may || given || text == unread, more: more, value: v})
	}
	return out
}

// each returns rows that differ in name only.
func each(like Kernel, names string) (out []Kernel) {
	for _, like.Name = range strings.Fields(names) {
		out = append(out, like)
	}
	return out
}

// Find returns the row of that name, or nil.
func Find(name string) *Kernel { return byName[name] }

// WayOf returns what is particular to an operator's calls, nil for most.
func WayOf(op string) *Way { return byWay[op] }

// Dispatched returns, for a node's Op, the operator that PyTorch's dispatcher
// sees and passes to a policy of selective checkpoints.
func Dispatched(op string) string {
	if w := byWay[op]; w != nil && w.Dispatched != "" {
		return w.Dispatched
	}
	return op
}

// Selectable reports whether a plan may keep the calls of an operator, by its name in
// the dispatcher.
func Selectable(op string) bool {
	k := byDispatched[op]
	return k != nil && k.Selectable
}

// place returns the index of a scalar, or -1.
func (k *Kernel) place(scalar string) int {
	return slices.IndexFunc(k.scalars, func(w word) bool { return w.name == scalar })
}

// Scalar returns a number of a node by its name, or the value that it has where the node
// leaves it out. It panics where the row has no such name.
func (k *Kernel) Scalar(n *program.Node, name string) float64 {
	i := k.place(name)
	return n.Scalar(i, k.scalars[i].value)
}

// Numbers returns all numbers of a node, followed by one for each mode: 1 for that
// which the node has, 0 for others.
func (k *Kernel) Numbers(n *program.Node) (out []float64) {
	for i, w := range k.scalars {
		out = append(out, n.Scalar(i, w.value))
	}
	for _, m := range strings.Fields(k.Modes) {
		if out = append(out, 0); n.Attrs != nil && n.Attrs.Mode == m {
			out[len(out)-1] = 1
		}
	}
	return out
}

// Drops reports whether a kernel drops elements at random.
func (k *Kernel) Drops() bool { return k.Random && k.place(dropout) >= 0 }

// Draws reports whether a node draws random numbers.
func (k *Kernel) Draws(n *program.Node) bool {
	return k.Random && (!k.Drops() || n.Scalar(k.place(dropout), 1) > 0)
}

// bounds returns how many items a list of words allows, at least and at most.
func bounds(list []word) (least, most int) {
	for i, w := range list {
		if most = i + 1; !w.optional {
			least = most
		}
		if w.more {
			most = 1 << 30
		}
	}
	return least, most
}

// Check returns what is wrong with a node, to be read after its kernel's name: the
// kernel is not in the table, or operands, scalars or attributes are not those of its
// row. A node that is marked inexact may have any.
func Check(n *program.Node) error {
	k, a := Find(n.Does()), n.Attrs
	if a == nil {
		a = &program.Attrs{}
	}
	switch {
	case a.Inexact != "":
		return nil
	case k == nil:
		return errors.New(nowhere)
	}
	least, most := bounds(k.operands)
	fewest, numbers := bounds(k.scalars)
	switch args := n.Args(); {
	case args < least || args > most:
		return fmt.Errorf("%d operands, not %d to %d", args, least, most)
	case len(a.Scalars) < fewest || len(a.Scalars) > numbers:
		return fmt.Errorf("%d numbers, not %d to %d", len(a.Scalars), fewest, numbers)
	case a.Mode != "" && !slices.Contains(strings.Fields(k.Modes), a.Mode):
		return fmt.Errorf("no mode %q", a.Mode)
	case k.Dims && a.Dims == nil:
		return errors.New("no dims")
	case k.Conv && a.Conv == nil, k.Pool && a.Pool == nil, k.Window && a.Window == nil, k.Rule && a.Rule == nil:
		return errors.New("no attributes")
	}
	for i := range n.Args() {
		if w := k.operands[min(i, len(k.operands)-1)]; !w.optional && n.Arg(i).In == program.Absent {
			return fmt.Errorf("operand %d, %s, is absent", i, w.name)
		}
	}
	return nil
}

// Arity returns the least number of operands of a kernel.
func (k *Kernel) Arity() int {
	n, _ := bounds(k.operands)
	return n
}

// Reads reports whether a kernel's result depends on operand i.
func (k *Kernel) Reads(i int) bool { return k.operands[min(i, len(k.operands)-1)].name != unread }
