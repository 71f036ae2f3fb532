package planner

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner/profile"
)

// AutoHeadroom is the --headroom that covers a prediction's guesses.
const AutoHeadroom = "auto"

// A Headroom is the memory that a verdict, a plan or a batch leaves free.
type Headroom struct {
	Auto  bool
	Bytes int64
	Part  float64 // of the card's memory
}

// ParseHeadroom parses auto, 0, a size or a percentage; "" is auto.
func ParseHeadroom(s string) (Headroom, error) {
	if s == "" || s == AutoHeadroom {
		return Headroom{Auto: true}, nil
	}
	if percent, ok := strings.CutSuffix(s, "%"); ok {
		p, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(p >= 0 && p < 100) {
			return Headroom{}, fmt.Errorf("headroom %q: want auto, 0, a size or a percentage below 100%%", s)
		}
		return Headroom{Part: p / 100}, nil
	}
	n, err := profile.ParseSize(s)
	if err != nil || n < 0 {
		return Headroom{}, fmt.Errorf("headroom %q: want auto, 0, a size or a percentage below 100%%", s)
	}
	if n > 0 && n <= mostGigabytes {
		return Headroom{}, fmt.Errorf("headroom %q is a size in bytes: did you mean %sG or %s%%?", s, s, s)
	}
	return Headroom{Bytes: n}, nil
}

// runsDiffer is the share of the cap that headroom reserves for the difference
// between two runs of a step, due to the driver's placement of segments and the
// choice of kernels: the least with which every chosen batch ran, of those
// whose largest was measured (TestMaxBatch).
const runsDiffer = 0.016

// mostKept bounds the share of the cap that headroom reserves for guesses:
// beyond it an answer is useless, and the interval says how wide it is.
const mostKept = 0.25

// guessedWorkspaces is the share of the cap that headroom reserves if large
// workspaces of convolutions are guesses. Under a cap cuDNN chooses kernels
// with smaller ones, so that their bounds need not be covered.
const guessedWorkspaces = 1. / 12

// kept returns the share of a step's allocations that headroom reserves for the
// guesses in a.ev.
func (a *answer) kept() float64 {
	x := runsDiffer
	for s := range a.findings() {
		switch {
		case s.Code == "workspace-guessed":
			x += guessedWorkspaces
		case s.Code == "not-the-step": // no headroom makes up for this: the report says that there is no answer
		case !s.workspace:
			x += calibrated.share(s).kept
		}
	}
	return min(x, mostKept)
}

// reserveHeadroom subtracts the headroom from the cap for everything that
// follows: the searches and the verdict. For a prediction it is a share of what
// the step takes, up to the largest that the headroom leaves.
func (a *answer) reserveHeadroom(batch int64, segs []train.Segment) error {
	j := a.j
	if !j.headroom.Auto {
		a.headroom = max(j.headroom.Bytes, part(j.vram, j.headroom.Part))
		return j.lower(a.headroom)
	}
	b, err := a.planned(batch, segs)
	if err != nil {
		return err
	}
	if a.ev, err = replay(b, j, false); err != nil {
		return err
	}
	x, need := a.kept(), float64(a.ev.res.Reserved)
	if j.cap > 0 {
		need = min(need, float64(j.cap)/(1+x))
	}
	a.headroom = int64(math.Ceil(need * x))
	return j.lower(a.headroom)
}

// lower subtracts headroom from the cap, if there is one.
func (j *job) lower(n int64) error {
	if j.cap == 0 {
		return nil
	}
	if j.cap -= n; j.cap <= 0 {
		return errors.New("--headroom leaves nothing of the budget")
	}
	return nil
}
