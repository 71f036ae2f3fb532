//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/dnngraph"
)

// A way is how a pass runs: by cuDNN if there is a plan, else by an own kernel,
// on the tensors themselves or on copies.
type way struct {
	key    convKey
	graph  *dnngraph.Plan
	plan   *convPlan
	copies *copies
	bytes  int64 // of workspace: the copies, followed by cuDNN's
	err    error // why cuDNN does not run it although it should
}

// own reports whether the way uses an own kernel.
func (v *way) own() bool { return v.graph == nil && v.plan == nil }

// A convQuery is a pass for which a way is sought.
type convQuery struct {
	c       *program.Conv
	p       pass
	x, w, y *validate.ArenaView
}

// format returns PyTorch's memory format of all three tensors.
func (q *convQuery) format() format { return formatOf(q.c, q.x, q.w, q.y) }

// errNotMine is returned by a path for a pass that it does not handle.
var errNotMine = errors.New("not of this kind")

// pathWays are the ways of paths to run a pass; the error says why one cannot.
var pathWays = map[string]func(d *Device, q *convQuery) (way, error){
	pathDepthwise: func(_ *Device, q *convQuery) (way, error) {
		if v, well := ownWay(q); well || torchDepthwise(q) {
			return v, nil
		}
		return way{}, errNotMine
	},
	pathFilter: func(_ *Device, q *convQuery) (way, error) {
		if q.p != filterPass || q.x.DType != graph.Float32 || !depthwise(q.c, q.w) {
			return way{}, errNotMine
		}
		v, _ := ownWay(q)
		return v, nil
	},
	pathGraph: (*Device).graphWay,
	pathLegacy: func(d *Device, q *convQuery) (way, error) {
		if depthwise(q.c, q.w) { // own kernels are faster than its algorithms
			return way{}, errNotMine
		}
		return d.legacyWay(q)
	},
}

// ways lists the ways to run a pass, the best first; the last needs no workspace.
// They depend only on the call, not on the available memory.
func (d *Device) ways(c *program.Conv, p pass, x, w, y *validate.ArenaView) []way {
	q := &convQuery{c, p, x, w, y}
	paths := d.paths
	if d.dnn == nil {
		paths = nil
	}
	var why error
	for _, name := range paths {
		v, err := pathWays[name](d, q)
		switch {
		case err == nil && v.bytes == 0:
			return []way{v}
		case err == nil && v.own():
			return []way{v, {}}
		case err == nil:
			return []way{v, {err: fmt.Errorf("cuDNN: under the cap there is no room for the %d bytes that the %v pass works in", v.bytes, p)}}
		case !errors.Is(err, errNotMine):
			why = err
		}
	}
	if !depthwise(c, w) {
		return []way{{err: why}}
	}
	if v, _ := ownWay(q); v.bytes > 0 {
		return []way{v, {err: why}}
	}
	return []way{{err: why}}
}

// ownWay runs a depthwise pass by an own kernel, on row-major copies if none
// handles the tensors' layout; fast reports whether it is one of the fast
// kernels.
func ownWay(q *convQuery) (way, bool) {
	if !depthwise(q.c, q.w) {
		return way{}, false
	}
	direct, well := servesWell(q.c, q.p, q.x, q.w, q.y)
	if to := copiesOf(formatNCHW, q.x, q.w, q.y); !well && to.needed() && relays(relayDepthwise) {
		t := to.tensors
		behind, well := servesWell(q.c, q.p, &t[0], &t[1], &t[2])
		return way{copies: to, bytes: to.bytes + behind}, well
	}
	return way{bytes: direct}, well
}

// legacyWay runs a pass by cuDNN's interface of version 7, on row-major copies
// if it has no algorithm for the tensors' layout.
func (d *Device) legacyWay(q *convQuery) (way, error) {
	direct, err := d.legacyOn(q, q.x, q.w, q.y)
	if err == nil {
		return direct, nil
	}
	to := copiesOf(formatNCHW, q.x, q.w, q.y)
	if !to.needed() || !relays(relayRefused) {
		return way{}, err
	}
	on, other := d.legacyOn(q, &to.tensors[0], &to.tensors[1], &to.tensors[2])
	if other != nil {
		return way{}, err
	}
	on.copies = to
	on.bytes += to.bytes
	return on, nil
}

// legacyOn plans a pass by version 7 on the given tensors.
func (d *Device) legacyOn(q *convQuery, x, w, y *validate.ArenaView) (out way, err error) {
	if out.key, err = d.convKey(q.c, q.p, x, w, y); err != nil {
		return out, err
	}
	if !dense(w) {
		return out, fmt.Errorf("cuDNN: a weight with strides %v", w.Strides)
	}
	if out.plan = d.dnn.plan(&out.key); out.plan.err != nil {
		return out, out.plan.err
	}
	out.bytes = int64(out.plan.bytes)
	return out, nil
}

// torchDepthwise reports whether PyTorch runs a depthwise convolution by a kernel
// of its own.
func torchDepthwise(q *convQuery) bool {
	c, x, w := q.c, q.x, q.w
	if !depthwise(c, w) {
		return false
	}
	k := cudnn.Conv{N: x.Shape[0], C: x.Shape[1], K: q.y.Shape[1], Groups: c.Groups, ChannelsLast: q.format() == formatNHWC, H: 1, R: 1, StrideH: 1, DilH: 1}
	i := len(c.Stride) - 1
	if i > 0 {
		k.H, k.R, k.StrideH, k.PadH, k.DilH = x.Shape[2], w.Shape[2], c.Stride[0], c.Pad[0], c.Dilation[0]
	}
	k.W, k.S, k.StrideW, k.PadW, k.DilW = x.Shape[2+i], w.Shape[2+i], c.Stride[i], c.Pad[i], c.Dilation[i]
	k.Type = map[graph.DType]cudnn.Type{graph.Float16: cudnn.Float16, graph.BFloat16: cudnn.BFloat16, graph.Float32: cudnn.Float32}[x.DType]
	return k.OwnDepthwise()
}
