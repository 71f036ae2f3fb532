package planner

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
)

// checkLimit is from which difference between the step that ran and the program
// built from it the prediction is in doubt, in parts.
const checkLimit = 0.01

// A checked run is how far the program of a capture is from what ran.
type checked struct {
	is    bool
	share float64 // of the largest phase's bytes, signed
	phase string
}

// check compares the program of a capture's run with the bytes that lived when the
// step ran, at the sizes of that run. It is done once a run.
func (m *Model) check(j *job) (checked, error) {
	c := m.capture
	if c == nil || m.lifted == nil || m.lifted.Source != lift.Captured {
		return checked{}, nil
	}
	if k, done := c.checks[c.run]; done {
		return k, nil
	}
	k := checked{}
	for i := range c.Checks {
		if r := &c.Checks[i]; r.Mode == j.cfg.Mode && r.Precision == j.precision.Name {
			var err error
			if k, err = m.compare(j, r); err != nil {
				return k, err
			}
			break
		}
	}
	c.checks[c.run] = k
	return k, nil
}

// compare builds the step of a check.
func (m *Model) compare(j *job, r *lift.CapturedCheck) (checked, error) {
	was := *j
	was.cfg = Config{Mode: r.Mode, Precision: r.Precision, Optimizer: r.Optimizer, Loss: r.Loss, Dims: r.Dims, GPU: j.cfg.GPU, Runtime: j.cfg.Runtime, Attention: j.cfg.Attention, Files: j.cfg.Files}
	own, err := was.cfg.resolve()
	if err != nil {
		return checked{}, nil // an optimizer or loss that is not known: nothing to compare
	}
	if j.cfg.Runtime != "" {
		own.runtime = j.runtime
	}
	l := m.lifted
	b, err := m.build(own, 0, nil)
	defer func() { m.bound, m.lifted = binding{}, l }()
	if err != nil {
		return checked{}, nil //nolint:nilerr // sizes that the file does not take: the question's own will say
	}
	return worst(r, b), nil
}

// worst is the largest difference of a phase.
func worst(r *lift.CapturedCheck, b *train.Build) checked {
	first, steady := liveness.Steps(b.Program)
	peaks, before := phasePeaks(steady), phasePeaks(first)
	ours := [...]int64{peaks[program.Forward], peaks[program.Backward], peaks[program.Update], 0}
	theirs := [...]int64{r.Forward, r.Backward, r.Update, r.First}
	for _, n := range before {
		ours[3] = max(ours[3], n)
	}
	if r.Mode != "train" {
		ours[1], ours[2] = 0, 0
	}
	names := [...]string{"forward", "backward", "optimizer", "first step"}
	k := checked{is: true}
	most := int64(1)
	for _, n := range theirs {
		most = max(most, n)
	}
	for i := range ours {
		if theirs[i] == 0 {
			continue
		}
		if d := float64(ours[i]-theirs[i]) / float64(most); math.Abs(d) > math.Abs(k.share) {
			k.share, k.phase = d, names[i]
		}
	}
	return k
}

// phasePeaks is the most bytes that live at once in each phase of a step, storages
// rounded as the allocator does, without what a kernel allocates for itself.
func phasePeaks(t *liveness.Timeline) []int64 {
	p := t.Program
	out := make([]int64, program.Update+1)
	live := int64(0)
	skip := func(id program.StorageID) bool { return p.Storages[id].Category == program.Workspace }
	for i := range p.Storages {
		s := &p.Storages[i]
		if s.Life == program.Static || !t.First && (s.Life == program.State || s.Life == program.Carried) {
			if !skip(program.StorageID(i)) {
				live += liveness.Rounded(s.Bytes)
			}
		}
	}
	inner := map[program.StorageID]int32{} // what a node both allocates and frees in its own events
	for i := range p.Nodes {
		made := map[program.StorageID]bool{}
		for _, ev := range p.Nodes[i].Events {
			if made[ev.Storage] && ev.Free {
				inner[ev.Storage] = int32(i)
			}
			made[ev.Storage] = true
		}
	}
	for _, ev := range t.Events {
		if _, own := inner[ev.Storage]; own || skip(ev.Storage) {
			continue
		}
		if n := liveness.Rounded(p.Storages[ev.Storage].Bytes); ev.Free {
			live -= n
		} else {
			live += n
		}
		ph := p.Nodes[ev.Node].Phase
		if ph == program.Loss {
			ph = program.Forward
		}
		out[ph] = max(out[ph], live)
	}
	return out
}

// checkNotes warns where the program is not what ran.
func (a *answer) checkNotes() []graph.Warning {
	if k := a.checked; k.is && math.Abs(k.share) > checkLimit {
		return []graph.Warning{{Code: "capture-differs", Message: fmt.Sprintf("the program built from the capture has %+.1f%% bytes in its %s against the step that ran when the file was exported", 100*k.share, k.phase)}}
	}
	return nil
}
