package liveness

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness/alloc"
)

// step is a small training step: a parameter w, an input x, the activation a
// (saved for backward), scratch s inside forward, the gradient g of a, the
// gradient d of w, and state m that the first update creates.
func step() *program.Program {
	const (
		w, x, a, s, g, d, m = 0, 1, 2, 3, 4, 5, 6
	)
	st := func(bytes int64, c program.Category, l program.Lifetime, name string) program.Storage {
		return program.Storage{Bytes: bytes, Category: c, Life: l, Name: name}
	}
	ev := func(id program.StorageID, free bool) program.Event { return program.Event{Storage: id, Free: free} }
	return &program.Program{
		Train: true,
		Storages: []program.Storage{
			st(1000, program.Parameters, program.Static, "w"), st(600, program.Inputs, program.Static, "x"), st(2000, program.Activations, program.Step, "a"),
			st(5000, program.Temporaries, program.Step, "s"), st(2000, program.Temporaries, program.Step, "g"), st(1000, program.Gradients, program.Carried, "d"),
			st(4000, program.Optimizer, program.State, "m"),
		},
		Statics: []program.StorageID{w, x},
		Setup:   []program.Event{ev(w, false), ev(x, false)},
		Carried: []program.StorageID{d},
		Nodes: []program.Node{
			{Phase: program.ZeroGrad, Op: "zero_grad"},
			{Phase: program.Forward, Op: "mm", Reads: []program.StorageID{w, x}, Events: []program.Event{ev(a, false), ev(s, false), ev(s, true)}},
			{Phase: program.Backward, Op: "ones_like", Events: []program.Event{ev(g, false)}},
			{Phase: program.Backward, Op: "mm", Reads: []program.StorageID{g, a}, Holds: []program.StorageID{g, a}, Events: []program.Event{ev(d, false)}},
			{Phase: program.Update, Op: "step", Only: program.FirstStep, Reads: []program.StorageID{w, d}, Events: []program.Event{ev(m, false)}},
			{Phase: program.Update, Op: "step", Only: program.LaterSteps, Reads: []program.StorageID{w, d, m}},
		},
	}
}

func text(t *Timeline) string {
	s := ""
	for _, e := range t.Events {
		sign := "+"
		if e.Free {
			sign = "-"
		}
		if e.Old {
			sign = "old-"
		}
		s += sign + t.Program.Storages[e.Storage].Name + " "
	}
	return s
}

func TestSteps(t *testing.T) {
	first, steady := Steps(step())
	if got, want := text(first), "+a +s -s +g +d -g -a +m "; got != want {
		t.Errorf("first step: %s, want %s", got, want)
	}
	if got, want := text(steady), "old-d +a +s -s +g +d -g -a "; got != want {
		t.Errorf("steady step: %s, want %s", got, want)
	}
	for _, tl := range []*Timeline{first, steady} {
		if err := Check(tl); err != nil {
			t.Error(err)
		}
	}
}

// Rounded sizes: w, d 1024, x 1024 (600), a, g 2048, s 5120, m 4096.
func TestLevels(t *testing.T) {
	_, steady := Steps(step())
	l := LevelsOf(steady)
	// Start: w + x + m + the old d. Peak: in forward w + x + m + a + s.
	if l.Start != 1024+1024+4096+1024 || l.Max != 1024+1024+4096+2048+5120 {
		t.Errorf("start %d, max %d", l.Start, l.Max)
	}
	if got := LiveBound(steady); got != l.Max {
		t.Errorf("live bound %d: no workspace is in this step, so it is the peak %d", got, l.Max)
	}
	var names []string
	for _, id := range LiveAt(steady, 2) { // after +s
		names = append(names, steady.Program.Storages[id].Name)
	}
	if got := fmt.Sprint(names); got != "[w x a s m]" {
		t.Errorf("live at the peak: %s", got)
	}
}

func TestCheckFindsFaults(t *testing.T) {
	p := step()
	p.Nodes[1].Reads = append(p.Nodes[1].Reads, 4) // g does not exist yet
	_, steady := Steps(p)
	if err := Check(steady); err == nil {
		t.Error("a read of a storage that does not exist yet passed")
	}
	_, steady = Steps(step())
	steady.Events = steady.Events[:len(steady.Events)-1] // a is never freed
	if err := Check(steady); err == nil {
		t.Error("a storage that is never freed passed")
	}
}

func TestReplay(t *testing.T) {
	res, err := Replay[alloc.Handle](step(), alloc.NewCaching(alloc.Conf{}, 0), 3)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Steps) != 3 || res.Steps[1] != res.Steps[2] {
		t.Errorf("the third step differs from the second: %+v", res.Steps)
	}
	if res.Reserved != 2<<20 || res.Allocated != 13312 || res.Step != 1 || res.Requested != 1000+600+2000+5000+4000 {
		t.Errorf("reserved %d, allocated %d at step %d, requested %d", res.Reserved, res.Allocated, res.Step, res.Requested)
	}
	s := res.Steps[2]
	if s.AfterForward != 1024+1024+4096+2048 || s.OptimizerPeak != 1024+1024+4096+1024 || s.ForwardPeak != 13312 {
		t.Errorf("steady step: %+v", s)
	}
	_, err = Replay[alloc.Handle](step(), alloc.NewCaching(alloc.Conf{}, 1), 3)
	var f *Failure
	if !errors.As(err, &f) || f.Node != -1 || !errors.Is(err, ErrOutOfMemory) || !errors.Is(err, alloc.ErrOutOfMemory) {
		t.Errorf("under a cap of one byte: %v", err)
	}
}

// Optional scratch that does not fit is done without, from then on, and is
// not among what lives at the peak.
func TestReplayRefused(t *testing.T) {
	p := step()
	p.Storages[3].Bytes, p.Storages[3].Optional = 30<<20, true
	res, err := Replay[alloc.Handle](p, alloc.NewCaching(alloc.Conf{}, 20<<20), 3)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(res.Refused) != "[{3 0 1}]" || res.Reserved > 20<<20 || res.Requested != 1000+600+2000+2000+1000+4000 {
		t.Errorf("refused %v, reserved %d, requested %d", res.Refused, res.Reserved, res.Requested)
	}
	if live := res.LivePeak(); slices.Contains(live, 3) {
		t.Errorf("live at the peak: %v", live)
	}
	p.Storages[3].Optional = false
	if _, err = Replay[alloc.Handle](p, alloc.NewCaching(alloc.Conf{}, 20<<20), 3); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("scratch that is needed: %v", err)
	}
}

// x, y and z are made one after the other, each from the one before; Python
// holds x to the end. Without that, two of them live at once.
func TestIdeal(t *testing.T) {
	const w, x, y, z = 0, 1, 2, 3
	ev := func(id program.StorageID) []program.Event { return []program.Event{{Storage: id}} }
	p := &program.Program{
		Storages: []program.Storage{
			{Bytes: 512, Life: program.Static, Name: "w"}, {Bytes: 1000, Name: "x"}, {Bytes: 2000, Name: "y"}, {Bytes: 3000, Name: "z"},
		},
		Statics: []program.StorageID{w},
		Setup:   ev(w),
		Nodes: []program.Node{
			{Phase: program.Forward, Reads: []program.StorageID{w}, Events: ev(x)},
			{Phase: program.Forward, Reads: []program.StorageID{x}, Events: ev(y)},
			{Phase: program.Forward, Reads: []program.StorageID{y}, Events: ev(z), Holds: []program.StorageID{x}},
			{Phase: program.Update, Op: "del", Holds: []program.StorageID{z}},
		},
	}
	if got, want := Ideal(p), int64(512+2048+3072); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	if _, steady := Steps(p); LevelsOf(steady).Max != 512+1024+2048+3072 {
		t.Errorf("with the hold: %d bytes", LevelsOf(steady).Max)
	}
}
