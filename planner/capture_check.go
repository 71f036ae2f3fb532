package planner

import (
	"fmt"
	"math"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
)

// checkLimit is the relative difference between the step that ran and the program
// built from it above which the prediction is in doubt.
const checkLimit = 0.01

// A checked is the difference between a capture's program and its run.
type checked struct {
	is    bool
	share float64 // of what the step itself holds in its largest phase, signed
	phase string
}

// check compares the program of a capture's run with the bytes that were live when
// the step ran, at the sizes of that run, once for each run.
func (m *Model) check(j *job, batch int64) (checked, error) {
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
	return k, m.bind(batch, j.cfg.Dims, j.cfg.Shapes)
}

// compare builds the step of a check.
func (m *Model) compare(j *job, r *lift.CapturedCheck) (checked, error) {
	was := *j
	was.cfg = Config{Mode: r.Mode, Precision: r.Precision, Optimizer: r.Optimizer, Loss: r.Loss, Dims: r.Dims, GPU: j.cfg.GPU, Runtime: j.cfg.Runtime, Attention: j.cfg.Attention, Files: j.cfg.Files}
	own, err := was.cfg.resolve()
	if err != nil {
		return checked{}, nil // an unknown optimizer or loss: nothing to compare
	}
	if j.cfg.Runtime != "" {
		own.runtime = j.runtime
	}
	b, err := m.build(own, 0, nil)
	if err != nil {
		return checked{}, nil //nolint:nilerr // sizes that the file does not accept: the question's own sizes report that
	}
	return worst(r, b), nil
}

// worst returns the largest difference of a phase. The recorder sees only part
// of what a node allocates and frees itself, between two ATen calls but not
// within a kernel: anything from none to all of it is not a difference.
func worst(r *lift.CapturedCheck, b *train.Build) checked {
	first, steady := liveness.Steps(b.Program)
	least, most := phasePeaks(steady, true), phasePeaks(steady, false)
	theirs := []int64{program.Forward: r.Forward, program.Backward: r.Backward, program.Update: r.Update}
	if r.Mode != "train" {
		theirs = theirs[:program.Backward]
	}
	k := checked{is: true}
	// At the few samples of a check the parameters are most of the bytes, at a batch that
	// fills a card what the step makes is.
	all := max(max(slices.Max(theirs), r.First)-resident(steady), 1)
	differ := func(low, high, want int64, phase string) {
		d := float64(0)
		switch {
		case want <= 0:
		case low > want:
			d = float64(low-want) / float64(all)
		case high < want:
			d = float64(high-want) / float64(all)
		}
		if math.Abs(d) > math.Abs(k.share) {
			k.share, k.phase = d, phase
		}
	}
	for i, n := range theirs {
		differ(least[i], most[i], n, program.Phase(i).String())
	}
	differ(slices.Max(phasePeaks(first, true)), slices.Max(phasePeaks(first, false)), r.First, "first step")
	return k
}

// resident is what lives before a step and after it.
func resident(t *liveness.Timeline) (n int64) {
	for i := range t.Program.Storages {
		if s := &t.Program.Storages[i]; s.Category != program.Workspace && s.Life != program.Step {
			n += liveness.Rounded(s.Bytes)
		}
	}
	return n
}

// phasePeaks is the most bytes that live at once in each phase of a step, storages
// rounded as the allocator does, without libraries' workspaces, and on request
// without what a node allocates and frees itself. The loss counts as forward.
func phasePeaks(t *liveness.Timeline, outside bool) []int64 {
	p := t.Program
	out := make([]int64, program.NumPhases)
	skip := make([]bool, len(p.Storages))
	live := int64(0)
	for i := range p.Storages {
		s := &p.Storages[i]
		skip[i] = s.Category == program.Workspace
		if !skip[i] && (s.Life == program.Static || !t.First && s.Life != program.Step) {
			live += liveness.Rounded(s.Bytes)
		}
	}
	for i := range p.Nodes {
		for _, ev := range p.Nodes[i].Events {
			skip[ev.Storage] = skip[ev.Storage] || outside && ev.Free && p.Storages[ev.Storage].Category == program.Temporaries
		}
	}
	for _, ev := range t.Events {
		if skip[ev.Storage] {
			continue
		}
		if n := liveness.Rounded(t.Bytes(ev)); ev.Free {
			live -= n
		} else {
			live += n
		}
		phase := p.Nodes[ev.Node].Phase
		if phase == program.Loss {
			phase = program.Forward
		}
		out[phase] = max(out[phase], live)
	}
	return out
}

// checkNotes warns if the program differs from the run.
func (a *answer) checkNotes() []graph.Warning {
	if k := a.checked; k.is && math.Abs(k.share) > checkLimit {
		return []graph.Warning{{Code: "capture-differs", Message: fmt.Sprintf("the program built from the capture has %+.1f%% bytes in its %s, beside parameters and the optimizer's state, against the step that ran when the file was exported", 100*k.share, k.phase)}}
	}
	return nil
}
