//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// rows returns the indices of the operands and results of a call that its kernel
// requires row-major, which may include some that already are.
type rows func(*run) (args, results []int)

// all returns every operand and every result.
func all(r *run) (args, results []int) { return ascending(len(r.c.Args)), ascending(len(r.c.Results)) }

// only returns the given operands and results.
func only(args, results []int) rows {
	return func(*run) ([]int, []int) { return args, results }
}

// both merges two.
func both(a, b rows) rows {
	return func(r *run) (args, results []int) {
		args, results = a(r)
		more, further := b(r)
		return slices.Concat(args, more), slices.Concat(results, further)
	}
}

// unless returns nothing if the kernel handles the tensors' own layouts, else
// what another returns.
func unless(native func(*run) bool, what rows) rows {
	return func(r *run) (args, results []int) {
		if native(r) {
			return nil, nil
		}
		return what(r)
	}
}

// A relaid is the row-major copies of a call: of its operands first, then of
// results.
type relaid struct {
	*copies
	args, results []int
}

// relaid plans the copies of a call.
func (k *kernel) relaid(r *run) *relaid {
	l := &relaid{}
	if k.rows == nil {
		l.copies = copiesOf(formatNCHW)
		return l
	}
	args, results := k.rows(r)
	var list []*validate.ArenaView
	for _, i := range args {
		if t := r.arg(i); t != nil && !t.RowMajor() {
			list, l.args = append(list, t), append(l.args, i)
		}
	}
	for _, i := range results {
		if t := r.result(i); t != nil && !t.RowMajor() {
			list, l.results = append(list, t), append(l.results, i)
		}
	}
	l.copies = copiesOf(formatNCHW, list...)
	return l
}

// isResult reports whether tensor i of the list is a result.
func (l *relaid) isResult(i int) bool { return i >= len(l.args) }

// start runs a kernel's call, on copies if necessary.
func (k *kernel) start(r *run) error {
	l := k.relaid(r)
	if !l.needed() {
		return k.run(r)
	}
	list, err := k.place(r, l)
	if err != nil {
		return err
	}
	reads := func(i int) bool { return !l.isResult(i) }
	writes := func(i int) bool { return l.isResult(i) || slices.Contains(k.updates, l.args[i]) }
	return l.runOn(list, reads, writes, r.copyTo, func(list []validate.ArenaView) error {
		c := *r.c
		c.Args, c.Results = slices.Clone(c.Args), slices.Clone(c.Results)
		for i := range list {
			if l.isResult(i) {
				c.Results[l.results[i-len(l.args)]] = list[i]
			} else {
				c.Args[l.args[i]].Tensor = list[i]
			}
		}
		return k.run(&run{d: r.d, c: &c})
	})
}

// place finds memory for the copies: for operands the plan's scratch, then the
// part of the workspace after the kernel's own.
func (k *kernel) place(r *run, l *relaid) ([]validate.ArenaView, error) {
	at := int64(0)
	if k.work != nil {
		at = padded(k.work(r))
	}
	list := slices.Clone(l.tensors)
	taken := uint64(0) // scratch in use, as bits
	for i := range list {
		t := &list[i]
		bytes := t.DType.Bytes(t.Elems())
		if k.spare && !l.isResult(i) {
			if j := r.spare(bytes, taken); j >= 0 {
				taken |= 1 << j
				t.At = r.c.Scratch[j].At
				continue
			}
		}
		if at+bytes > r.c.Work.Bytes {
			return nil, fmt.Errorf("a tensor of %v with strides %v needs a row-major copy of %d bytes, and the plan has %d bytes of work for the call, of which %d are taken: give it what Device.Work asks for",
				t.Shape, l.given[i].Strides, bytes, r.c.Work.Bytes, at)
		}
		t.At = r.c.Work.At + at
		at += padded(bytes)
	}
	return list, nil
}

// spare returns the index of the first unused scratch of a call with that many
// bytes, or -1.
func (r *run) spare(bytes int64, taken uint64) int {
	for j := range r.c.Scratch {
		if taken&(1<<j) == 0 && r.c.Scratch[j].Bytes >= bytes {
			return j
		}
	}
	return -1
}

// Work returns the workspace of a node's kernel in bytes: its constant operands
// (arrays.go), then a convolution's passes, or row-major copies and the kernel's
// own needs.
func (d *Device) Work(n *program.Node) (int64, error) {
	c := sketch(n)
	bytes := arrayBytes(c)
	if n.Attrs != nil && n.Attrs.Conv != nil {
		more, err := d.convWork(n)
		return bytes + more, err
	}
	k, ok := kernels[n.Does()]
	if !ok || k.rows == nil && k.work == nil {
		return bytes, nil
	}
	r := &run{d: d, c: withArrays(c)}
	if k.work != nil {
		bytes += padded(k.work(r))
	}
	l := k.relaid(r)
	spare := k.spare && scratches(n) >= len(l.args)
	for i, t := range l.tensors {
		if !spare || l.isResult(i) {
			bytes += padded(t.DType.Bytes(t.Elems()))
		}
	}
	return bytes, nil
}

// Needs returns how much of its workspace a node cannot run without: all of it,
// except where memplan's own kernels for convolutions can replace cuDNN's.
func (d *Device) Needs(n *program.Node) (int64, error) {
	if a := n.Attrs; a != nil && a.Conv != nil {
		return arrayBytes(sketch(n)), nil
	}
	return d.Work(n)
}

// scratches returns the number of a node's allocations besides its results.
func scratches(n *program.Node) int {
	count := 0
	for _, e := range n.Events {
		if !e.Free && !slices.ContainsFunc(n.Out, func(t program.View) bool { return t.Storage == e.Storage }) {
			count++
		}
	}
	return count
}

// sketch returns a node's call without addresses.
func sketch(n *program.Node) *validate.Call {
	c := &validate.Call{Node: n, Kernel: n.Does(), Args: make([]validate.Operand, n.Args())}
	for i := range c.Args {
		switch a := n.Arg(i); a.In {
		case program.Absent, program.Unknown:
		case program.Number:
			c.Args[i] = number(a.Value)
		case program.Array:
			c.Args[i] = validate.Operand{Kind: validate.IsArray, DType: a.Array.DType, Shape: a.Array.Shape, Strides: a.Array.Strides, Values: a.Array.Values}
		default:
			c.Args[i] = onDevice(shown(n.In, int(a.In)))
		}
	}
	results := len(n.Out)
	if n.Attrs != nil && n.Attrs.Results != nil {
		results = len(n.Attrs.Results)
	}
	for i := range results {
		t := shown(n.Out, n.Result(i))
		if t == nil {
			t = &validate.ArenaView{At: -1}
		}
		c.Results = append(c.Results, *t)
	}
	return c
}
