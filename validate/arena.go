package validate

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner"
)

// ErrOtherProgram is the error of an arena that was planned for other storages
// than the program has: the plan was made by another version of memplan.
var ErrOtherProgram = errors.New("the plan's arena is of another program")

// Arrange lays out a step as its plan says it: the best of the greedy orders,
// without what a device's libraries work in, which the plan does not know.
func Arrange(p *program.Program) *planner.Arena {
	l := NewLayout(p)
	return &planner.Arena{Bytes: l.Bytes, BoundBytes: l.Bound, GuardBytes: Guard, Order: l.Order, Program: digest(p), Offsets: writeOffsets(l.Offset)}
}

// Arranged returns the layout of a plan's arena. For each node as many bytes of
// work as are given find the lowest place beside what the plan has placed; only
// where there is none, the arena is larger than planned. The layout is not
// checked. The error is ErrOtherProgram, or about offsets that are no numbers.
func Arranged(a *planner.Arena, p *program.Program, work []int64) (*Layout, error) {
	if a.Program != digest(p) || a.GuardBytes != Guard {
		return nil, ErrOtherProgram
	}
	offset, err := readOffsets(a.Offsets)
	if err != nil {
		return nil, err
	}
	if len(offset) != len(p.Storages) {
		return nil, fmt.Errorf("the plan's arena has %d offsets for %d storages", len(offset), len(p.Storages))
	}
	list := blocks(p)
	in := newArea(len(p.Storages) + len(work))
	for i := range list {
		in.put(&list[i], offset[list[i].id])
	}
	if in.bytes != a.Bytes {
		return nil, fmt.Errorf("the plan's arena has %d bytes, its storages end at %d", a.Bytes, in.bytes)
	}
	for _, b := range workBlocks(p, work) {
		in.put(&b, in.lowest(&b))
		list = append(list, b)
	}
	l := &Layout{Offset: offset, Bytes: in.bytes, Bound: maxLive(list, len(p.Nodes)), Order: a.Order}
	l.Work = workSpans(in.offset[len(p.Storages):], work)
	return l, nil
}

// digest is a fingerprint of what a layout depends on: the storages' sizes and
// when they live.
func digest(p *program.Program) string {
	h := sha256.New()
	r := liveness.NewRanges(p)
	for i := range p.Storages {
		s := &p.Storages[i]
		fmt.Fprintln(h, s.Bytes, s.Life, s.Category, r.Start[i], r.End[i])
	}
	for i := range p.Nodes {
		fmt.Fprintln(h, p.Nodes[i].Op, p.Nodes[i].Does())
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// absent stands for a storage that never exists.
const absent = "-"

// writeOffsets writes offsets, in units of Align, in one line.
func writeOffsets(offset []int64) string {
	words := make([]string, len(offset))
	for i, at := range offset {
		if words[i] = absent; at >= 0 {
			words[i] = strconv.FormatInt(at/Align, 10)
		}
	}
	return strings.Join(words, " ")
}

func readOffsets(text string) ([]int64, error) {
	words := strings.Fields(text)
	out := make([]int64, len(words))
	for i, w := range words {
		if out[i] = -1; w == absent {
			continue
		}
		n, err := strconv.ParseUint(w, 10, 48)
		if err != nil {
			return nil, fmt.Errorf("the plan's arena: offset %d is %q: want units of %d bytes, or %s", i, w, Align, absent)
		}
		out[i] = int64(n) * Align
	}
	return out, nil
}
