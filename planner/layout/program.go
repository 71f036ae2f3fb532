package layout

import (
	"context"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
)

// Align is the alignment of every storage in an arena, in bytes: what
// cudaMalloc and PyTorch's allocator give, and more than any library asks for.
const Align = 256

// Guard is the least number of bytes after every storage that nothing may
// write.
const Guard = 256

// RoundUp rounds bytes up to a multiple of Align.
func RoundUp(bytes int64) int64 { return (bytes + Align - 1) / Align * Align }

// arenaEffort is the effort spent on a program's arena, about a tenth of a
// second.
const arenaEffort = 50_000_000

// Arena places all storages of a program and, for each node, the given bytes of
// workspace (nil: none), each with its guard. Offsets are by storage, -1 for one
// that never exists, followed by those of nodes' workspaces, -1 for none.
func Arena(p *program.Program, work []int64) (*Result, error) {
	list, ids := Storages(p)
	list, ids = withWork(p, work, list, ids)
	r, err := Solve(context.Background(), list, Options{Effort: arenaEffort})
	if err != nil {
		return nil, err
	}
	r.Offset = byID(len(p.Storages)+len(work), ids, r.Offset)
	return r, nil
}

// Beside is Arena for storages with given offsets: each workspace gets the lowest
// offset that is free while its node runs. The given offsets are not checked.
func Beside(p *program.Program, offset, work []int64) *Result {
	list, ids := Storages(p)
	storages := len(list)
	list, ids = withWork(p, work, list, ids)
	all := newProblem(list)
	r := &Result{Bound: (all.bound + all.ground) * all.unit}
	var there shelf
	at := make([]int64, len(list))
	for i := range list {
		x := placed{to: list[i].Size, a: int32(list[i].Lower), b: int32(list[i].Upper)}
		if i < storages {
			x.from = offset[ids[i]]
		} else {
			x.from = there.gap(x, false)
		}
		x.to += x.from
		there.insert(x)
		at[i], r.Height = x.from, max(r.Height, x.to)
	}
	r.Offset = byID(len(p.Storages)+len(work), ids, at)
	return r
}

// byID returns n offsets, with those of buffers at the indices ids.
func byID(n int, ids []int, offset []int64) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = -1
	}
	for i, id := range ids {
		out[id] = offset[i]
	}
	return out
}

// Storages lists the storages of a program that exist, as buffers including
// their guards, and the storage of each. Times are nodes. A buffer lives through
// whole nodes: those that a node allocates inside share nothing, as its kernel
// may use them all at once. What outlives a step lives always.
func Storages(p *program.Program) (list []Buffer, ids []int) {
	r := liveness.NewRanges(p)
	end := int64(len(p.Nodes)) + 1
	for i := range p.Storages {
		s := &p.Storages[i]
		b := Buffer{ID: s.Name, Lower: int64(r.Start[i]), Upper: int64(r.End[i]) + 1, Size: RoundUp(s.Bytes + Guard)}
		switch {
		case s.Life == program.Static, s.Life == program.State && b.Lower >= 0:
			b.Lower, b.Upper = 0, end
		case s.Life == program.Carried:
			b.Upper = end
		}
		if b.Lower >= 0 { // allocated in a step
			list, ids = append(list, b), append(ids, i)
		}
	}
	if p.Micros > program.MicrosBuilt {
		repeated(p, list)
	}
	return list, ids
}

// repeated extends to the end of the last micro-batch built what each of its
// repetitions frees.
func repeated(p *program.Program, list []Buffer) {
	first, end := int64(-1), int64(-1)
	for i := range p.Nodes {
		if p.Runs(&p.Nodes[i]) > 1 {
			if first < 0 {
				first = int64(i)
			}
			end = int64(i) + 1
		}
	}
	for i := range list {
		if b := &list[i]; b.Lower < first && b.Upper > first && b.Upper <= end {
			b.Upper = end
		}
	}
}

// withWork appends the workspaces of nodes, numbered after the storages.
func withWork(p *program.Program, work []int64, list []Buffer, ids []int) ([]Buffer, []int) {
	for n, bytes := range work {
		if bytes > 0 {
			list = append(list, Buffer{ID: "work of " + p.Nodes[n].Op, Lower: int64(n), Upper: int64(n) + 1, Size: RoundUp(bytes + Guard)})
			ids = append(ids, len(p.Storages)+n)
		}
	}
	return list, ids
}
