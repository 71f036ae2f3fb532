package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/aten"
)

// A region is a checkpointed segment with the segments nested in it.
type region struct {
	id     int32 // index of Options.Segments
	lo, hi int   // half-open range of calls
	inner  []*region
	seg    *aten.Segment // of the current or latest forward pass
}

// segments finds the calls of each checkpointed region and how regions nest: of
// two with the same calls, the one listed first is the outer one.
func (b *builder) segments() error {
	order := make([]*region, 0, len(b.opt.Segments))
	for i, s := range b.opt.Segments {
		lo, hi := Range(b.l, s.Modules)
		if lo >= hi {
			return fmt.Errorf("checkpoint: no calls in modules %v", s.Modules)
		}
		if i := Overwrites(b.l, lo, hi); i >= 0 && !s.Offload {
			b.e.Warn("recompute-overwrites", fmt.Sprintf("checkpoint %v: call %q updates in place what the modules before have computed: running it again gives wrong gradients", s.Modules, b.l.Graph.Nodes[i].Name))
		}
		b.ranges = append(b.ranges, [2]int{lo, hi})
		order = append(order, &region{id: int32(i), lo: lo, hi: hi})
	}
	own, err := b.ownRegions()
	if err != nil {
		return err
	}
	order = append(order, own...)
	slices.SortStableFunc(order, func(x, y *region) int {
		if x.lo != y.lo {
			return x.lo - y.lo
		}
		return y.hi - x.hi
	})
	var open []*region // the last region, after those that contain it
	for _, r := range order {
		for len(open) > 0 && open[len(open)-1].hi <= r.lo {
			open = open[:len(open)-1]
		}
		in := &b.regions
		if len(open) > 0 {
			outer := open[len(open)-1]
			if r.hi > outer.hi {
				return fmt.Errorf("checkpoint: regions %v and %v overlap at call %q, and neither lies within the other", b.opt.Segments[outer.id].Modules, b.opt.Segments[r.id].Modules, b.l.Graph.Nodes[r.lo].Name)
			}
			in = &outer.inner
			for _, x := range []*region{outer, r} {
				if s := &b.opt.Segments[x.id]; s.Offload {
					return fmt.Errorf("offload %v: a region that goes to the host has no others in it and stands in none", s.Modules)
				}
				if s := &b.opt.Segments[x.id]; len(s.Save) > 0 {
					return fmt.Errorf("checkpoint %v: a region that keeps results of calls has no others in it and stands in none", s.Modules)
				}
			}
		}
		*in = append(*in, r)
		open = append(open, r)
	}
	return nil
}

// ownRegions returns the regions that the model's own code checkpoints, according to
// its capture. They cannot be combined with others: what both together save is not
// known.
func (b *builder) ownRegions() (out []*region, err error) {
	if b.recorded == nil || !b.opt.Train {
		return nil, nil
	}
	asked := b.opt.Segments
	for i := range b.recorded.Regions {
		r := &b.recorded.Regions[i]
		n := &b.l.Graph.Nodes[r.First]
		switch {
		case r.Kind == "hooks":
			b.e.Warn("saved-tensor-hooks", fmt.Sprintf("module %q runs under the hooks %s on what autograd saves, from call %q on: what they save in its place is not known, and counts as without them", n.Module, r.Name, n.Name))
		case r.Kind == OwnCheckpoint && len(asked) > 0:
			return nil, fmt.Errorf("checkpoint %v: the model's code checkpoints by itself, in module %q from call %q on: take that out and export the model again", asked[0].Modules, n.Module, n.Name)
		case r.Kind == OwnCheckpoint:
			out = append(out, &region{id: int32(len(b.opt.Segments)), lo: r.First, hi: r.Last + 1})
			b.opt.Segments = append(b.opt.Segments, Segment{Modules: []string{n.Module}})
		}
	}
	return out, nil
}

// OwnCheckpoint is the kind of recorded regions that the model's code checkpoints.
const OwnCheckpoint = "checkpoint"

// arguments lists the values computed before a region that its calls read.
func (b *builder) arguments(r *region, env []*aten.Tensor) (out []*aten.Tensor) {
	g := b.l.Graph
	for i := r.lo; i < r.hi; i++ {
		for _, id := range g.Nodes[i].Inputs {
			if t := env[id]; int(g.Values[id].Def) >= 0 && int(g.Values[id].Def) < r.lo && t != nil && !slices.Contains(out, t) {
				out = append(out, t)
			}
		}
	}
	return out
}

// calls runs the calls [lo, hi) on env, with the given regions as checkpoints.
func (b *builder) calls(lo, hi int, regions []*region, env []*aten.Tensor) error {
	for i := lo; i < hi; {
		if to := b.skip(i, env); to > i {
			i = to
			continue
		}
		if len(regions) > 0 && regions[0].lo == i {
			if err := b.checkpoint(regions[0], env); err != nil {
				return err
			}
			i = regions[0].hi
			regions = regions[1:]
			continue
		}
		if b.left[i] {
			if d := b.sites[i]; d != nil {
				if err := b.dispatch(i, d, env); err != nil {
					return err
				}
			}
			i++
			continue
		}
		if f := b.fast[i]; f != nil && f.last < hi {
			done, err := b.fused(i, f, env)
			if err != nil {
				return err
			}
			if done {
				i = f.last + 1
				continue
			}
		}
		if err := b.call(i, env); err != nil {
			return err
		}
		i++
	}
	return nil
}

// skip returns the call that follows those left out at call i, or i.
func (b *builder) skip(i int, env []*aten.Tensor) int {
	for k := range b.opt.Skips {
		if s := &b.opt.Skips[k]; s.Lo == i {
			for id, same := range s.Same {
				env[id] = env[same]
			}
			return s.Hi
		}
	}
	return i
}

// checkpoint runs a region's calls so that backward runs them again.
func (b *builder) checkpoint(r *region, env []*aten.Tensor) error {
	if !b.opt.Train {
		return b.calls(r.lo, r.hi, r.inner, env)
	}
	if s := &b.opt.Segments[r.id]; s.Offload {
		var err error
		b.e.Offload(r.id, s.Keep, func() { err = b.calls(r.lo, r.hi, nil, env) })
		return err
	}
	again := b.e.Recomputing()
	if from := &b.opt.Segments[r.id]; !again {
		r.seg = &aten.Segment{ID: r.id, Name: strings.Join(from.Modules, " "), Save: from.kept()}
	}
	inputs := slices.Clone(env)
	var err error
	b.e.Checkpoint(r.seg, b.arguments(r, env), func() { err = b.calls(r.lo, r.hi, r.inner, env) }, func() {
		b.from = r.lo
		if e := b.calls(r.lo, r.hi, r.inner, inputs); e != nil && b.redo == nil {
			b.redo = e
		}
		b.from = 0
		b.e.ExitAutocast()
	})
	if err != nil || again {
		return err
	}
	return r.seg.Check()
}

// Depths returns, for each segment, the number of segments it is nested in, by
// the names of their modules: outer segments precede inner ones.
func Depths(segs []Segment) []int {
	out := make([]int, len(segs))
	var open []int
	for i := range segs {
		for len(open) > 0 && !inside(segs[i].Modules, segs[open[len(open)-1]].Modules) {
			open = open[:len(open)-1]
		}
		out[i] = len(open)
		open = append(open, i)
	}
	return out
}

// inside reports whether each of modules is one of others, or inside one.
func inside(modules, others []string) bool {
	return !slices.ContainsFunc(modules, func(m string) bool {
		return !slices.ContainsFunc(others, func(o string) bool { return Within(m, o) })
	})
}
