package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner/layout"
)

// ErrOtherProgram is the error of an arena that was planned for other storages
// than the program has: the plan was made by another version of memplan.
var ErrOtherProgram = errors.New("the plan's arena is of another program")

// An Arena says where every storage of a plan's step lies in one allocation,
// without what a device's libraries work in, which the plan does not know.
// Plans of versions that did not have it, and of steps without a batch that
// fits, have none.
type Arena struct {
	Bytes      int64  `json:"bytes"`
	BoundBytes int64  `json:"boundBytes"` // no layout of these storages is smaller
	GuardBytes int64  `json:"guardBytes"` // behind every storage, included in its size
	Order      string `json:"order"`      // layout.Result.Method: how it was found
	Program    string `json:"program"`    // fingerprint of the storages and of when they live
	Offsets    string `json:"offsets"`    // of each storage in units of 256 bytes, - for one that never exists
}

// NewArena places the storages of a step.
func NewArena(p *program.Program) (*Arena, error) {
	r, err := layout.Arena(p, nil)
	if err != nil {
		return nil, err
	}
	return &Arena{Bytes: r.Height, BoundBytes: r.Bound, GuardBytes: layout.Guard, Order: r.Method, Program: digest(p), Offsets: writeOffsets(r.Offset)}, nil
}

// Places returns the offset of each storage of a program, which need not be
// right. The error is ErrOtherProgram, or about offsets that are no numbers.
func (a *Arena) Places(p *program.Program) ([]int64, error) {
	if a.Program != digest(p) || a.GuardBytes != layout.Guard {
		return nil, ErrOtherProgram
	}
	offset, err := readOffsets(a.Offsets)
	if err == nil && len(offset) != len(p.Storages) {
		err = fmt.Errorf("the plan's arena has %d offsets for %d storages", len(offset), len(p.Storages))
	}
	return offset, err
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

// writeOffsets writes offsets, in units of layout.Align, in one line.
func writeOffsets(offset []int64) string {
	words := make([]string, len(offset))
	for i, at := range offset {
		if words[i] = absent; at >= 0 {
			words[i] = strconv.FormatInt(at/layout.Align, 10)
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
			return nil, fmt.Errorf("the plan's arena: offset %d is %q: want units of %d bytes, or %s", i, w, layout.Align, absent)
		}
		out[i] = int64(n) * layout.Align
	}
	return out, nil
}
