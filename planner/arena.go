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

// ErrOtherProgram is the error of an arena planned for other storages than the
// program's: another version of memplan made the plan.
var ErrOtherProgram = errors.New("the plan's arena is of another program")

// An Arena gives the place of every storage of a plan's step in one allocation,
// without the workspaces of a device's libraries, which the plan does not know.
// Plans of older versions, and of steps for which no batch fits, have none.
type Arena struct {
	Bytes      int64  `json:"bytes"`
	BoundBytes int64  `json:"boundBytes"` // no layout of these storages is smaller
	GuardBytes int64  `json:"guardBytes"` // after every storage, included in its size
	Order      string `json:"order"`      // layout.Result.Method: the algorithm that found the layout
	Program    string `json:"program"`    // fingerprint of the storages and their lifetimes
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

// Places returns the offset of each storage of a program, without verifying
// them. The error is ErrOtherProgram, or about offsets that are not numbers.
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
// lifetimes.
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

// absent marks a storage that never exists.
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
