//go:build cuda

package cuda

import (
	"fmt"

	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/dnngraph"
)

// A graphPlan is the plan of cuDNN's graph interface for a pass.
type graphPlan struct {
	plan *dnngraph.Plan
	err  error // why there is none
}

// graphFor selects an engine for a pass, once. Like plan's, the choice depends
// only on the pass.
func (d *dnn) graphFor(k *convKey) (*dnngraph.Plan, error) {
	if d.graphs == nil {
		return nil, d.noGraphs
	}
	p, ok := d.graphPlan[*k]
	if !ok {
		p = &graphPlan{}
		p.plan, p.err = d.graphs.Plan(k.graph(), mostWork)
		d.graphPlan[*k] = p
	}
	return p.plan, p.err
}

// compiled counts the passes whose engines cuDNN compiles when they first run:
// that takes time and memory of the context.
func (d *dnn) compiled() int {
	n := 0
	for _, p := range d.graphPlan {
		if p.plan != nil && p.plan.Compiled {
			n++
		}
	}
	return n
}

func (d *dnn) closeGraphs() {
	for _, p := range d.graphPlan {
		if p.plan != nil {
			p.plan.Free()
		}
	}
}

// graph describes a pass to cuDNN's graph interface.
func (k *convKey) graph() *dnngraph.Conv {
	n, sp := int(k.dims), int(k.dims)-2
	tensor := func(i int, size, stride *[5]int32) dnngraph.Descriptor {
		return dnngraph.Descriptor{Size: long(size[:n]), Stride: long(stride[:n]), Align: int64(k.align[i])}
	}
	return &dnngraph.Conv{Pass: [...]dnngraph.Pass{forwardPass: dnngraph.Forward, dataPass: dnngraph.Data, filterPass: dnngraph.Filter}[k.pass],
		Type: k.dtype, X: tensor(0, &k.x, &k.xs), W: tensor(1, &k.w, &k.ws), Y: tensor(2, &k.y, &k.ys),
		Pad: long(k.pad[:sp]), Stride: long(k.stride[:sp]), Dilation: long(k.dil[:sp]), Full: k.full}
}

// long widens numbers.
func long(v []int32) []int64 {
	out := make([]int64, len(v))
	for i, n := range v {
		out[i] = int64(n)
	}
	return out
}

// graphWay runs a pass by cuDNN's graph interface, with its tensors in one format
// as in PyTorch.
func (d *Device) graphWay(q *convQuery) (way, error) {
	var out way
	x, w, y := q.x, q.w, q.y
	if relays(relayFormat) {
		to := copiesOf(q.format(), q.x, q.w, q.y)
		x, w, y = &to.tensors[0], &to.tensors[1], &to.tensors[2]
		if to.needed() {
			out.copies, out.bytes = to, to.bytes
		}
	}
	var err error
	if out.key, err = d.convKey(q.c, q.p, x, w, y); err != nil {
		return out, err
	}
	for i, t := range []*validate.ArenaView{x, w, y} {
		out.key.align[i] = alignment(t.At)
	}
	if out.graph, err = d.dnn.graphFor(&out.key); err != nil {
		return out, fmt.Errorf("%v pass: %w", q.p, err)
	}
	out.bytes += out.graph.Bytes
	return out, nil
}

// runGraph runs a planned pass in the workspace at an offset of the arena.
func runGraph(r *run, plan *dnngraph.Plan, p pass, x, w, y *validate.ArenaView, at int64) error {
	workspace := uint64(0)
	if plan.Bytes > 0 {
		workspace = uint64(r.d.at(at))
	}
	if err := r.d.dnn.graphs.Run(plan, r.ptr(x), r.ptr(w), r.ptr(y), workspace); err != nil {
		return fmt.Errorf("%v pass by engine %d: %w; %s=%s runs convolutions without cuDNN's graphs", p, plan.Engine, err, pathsEnv, pathLegacy)
	}
	return nil
}
