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

// AutoHeadroom is the --headroom that leaves what a prediction's guesses ask for.
const AutoHeadroom = "auto"

// A Headroom is what a verdict, a plan or a batch leaves free of the card.
type Headroom struct {
	Auto  bool
	Bytes int64
	Part  float64 // of the card's memory
}

// ParseHeadroom reads auto, 0, a size or a percentage; "" is auto.
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
	return Headroom{Bytes: n}, nil
}

// runsDiffer is the part of the cap that headroom leaves for what two runs of
// one step differ by, where the driver places segments and what kernels take:
// the least for which every batch chosen ran, of those of which the largest
// was measured (TestMaxBatch).
const runsDiffer = 0.016

// mostKept bounds the part of the cap that headroom leaves for guesses: beyond
// it an answer is of no use, and the interval says how wide it is.
const mostKept = 0.25

// guessedWorkspaces is the part of the cap that headroom leaves where large
// workspaces of convolutions are guesses. Under a cap cuDNN takes kernels with
// smaller ones, so that their bounds need not be covered.
const guessedWorkspaces = 1. / 12

// kept is the share of what a step allocates that headroom leaves for the
// guesses of the step that the answer has in ev.
func (a *answer) kept() float64 {
	x := runsDiffer
	for s := range a.findings() {
		switch {
		case s.Code == "workspace-guessed":
			x += guessedWorkspaces
		case s.Code == "not-the-step": // no headroom makes up for it: the report says that it cannot be told
		case !s.workspace:
			x += calibrated.share(s).kept
		}
	}
	return min(x, mostKept)
}

// reserveHeadroom takes the headroom off the cap for all that follows, the
// searches and the verdict. Of a prediction it is a share of what the step
// takes, as much as that can be.
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

// lower takes headroom off the cap, if there is one.
func (j *job) lower(n int64) error {
	if j.cap == 0 {
		return nil
	}
	if j.cap -= n; j.cap <= 0 {
		return errors.New("--headroom leaves nothing of the budget")
	}
	return nil
}
