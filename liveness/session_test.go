package liveness

import (
	"errors"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness/alloc"
)

// sized is step with inputs, activations and temporaries of n times the bytes.
func sized(n int64) *program.Program {
	p := step()
	for i := range p.Storages {
		switch p.Storages[i].Category {
		case program.Inputs, program.Activations, program.Temporaries:
			p.Storages[i].Bytes *= n
		}
	}
	return p
}

// A hand writes requests down: named blocks of an allocator.
type hand struct {
	c    *alloc.Caching
	held map[string]alloc.Handle
}

func (h *hand) do(t *testing.T, bytes map[string]int64, names ...string) {
	t.Helper()
	for _, name := range names {
		if name[0] == '-' {
			h.c.Free(h.held[name[1:]])
			continue
		}
		got, err := h.c.Alloc(bytes[name])
		if err != nil {
			t.Fatal(err)
		}
		h.held[name] = got
	}
}

// Two shapes that alternate take what their requests take, written down by hand: weights,
// gradients and state pass from one to the other, and inputs of the next shape are made
// before those of the last go.
func TestSessionAlternates(t *testing.T) {
	const small, large = 700, 2900
	bytes := map[string]int64{"w": 1000, "d": 1000, "d2": 1000, "m": 4000}
	for name, n := range map[string]int64{"x": 600, "a": 2000, "s": 5000, "g": 2000} {
		bytes[name], bytes["X"+name] = n*small, n*large
	}
	h := &hand{alloc.NewCaching(alloc.Conf{}, 0), map[string]alloc.Handle{}}
	a := alloc.NewCaching(alloc.Conf{}, 0)
	s := NewSession[alloc.Handle](a)
	var tr Tracer
	tiny, huge := tr.Trace(sized(small)), tr.Trace(sized(large))
	for i, x := range []struct {
		t     *Trace
		wrote []string
	}{
		{tiny, []string{"w", "x", "a", "s", "-s", "g", "d", "-g", "-a", "m"}},
		{huge, []string{"Xx", "-x", "-d", "Xa", "Xs", "-Xs", "Xg", "d2", "-Xg", "-Xa"}},
		{tiny, []string{"x", "-Xx", "-d2", "a", "s", "-s", "g", "d", "-g", "-a"}},
		{huge, []string{"Xx", "-x", "-d", "Xa", "Xs", "-Xs", "Xg", "d2", "-Xg", "-Xa"}},
		{huge, []string{"-d2", "Xa", "Xs", "-Xs", "Xg", "d2", "-Xg", "-Xa"}},
	} {
		if err := s.Step(x.t); err != nil {
			t.Fatal(err)
		}
		h.do(t, bytes, x.wrote...)
		if got, want := a.Stats(), h.c.Stats(); got != want || s.Reserved() != want.Reserved || s.Peak() != want.PeakAllocated {
			t.Errorf("step %d: %+v, by hand %+v", i, got, want)
		}
	}
}

// Steps of one shape take what their replay takes.
func TestSessionIsReplay(t *testing.T) {
	const n = 4
	p := sized(3000)
	want, err := Replay[alloc.Handle](p, alloc.NewCaching(alloc.Conf{}, 0), n)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSession[alloc.Handle](alloc.NewCaching(alloc.Conf{}, 0))
	var tr Tracer
	x := tr.Trace(p)
	for i := range n {
		if err := s.Step(x); err != nil {
			t.Fatal(err)
		}
		if s.Reserved() != want.Steps[i].Reserved {
			t.Errorf("step %d: %d reserved, replayed %d", i, s.Reserved(), want.Steps[i].Reserved)
		}
	}
	if s.Peak() != want.Allocated {
		t.Errorf("%d allocated, replayed %d", s.Peak(), want.Allocated)
	}
}

// An inference between steps leaves gradients where they are, and an allocator without room
// ends the session.
func TestSessionInference(t *testing.T) {
	infer := step()
	infer.Train, infer.Nodes, infer.Carried = false, infer.Nodes[1:2], nil
	a := alloc.NewCaching(alloc.Conf{}, 0)
	s := NewSession[alloc.Handle](a)
	var tr Tracer
	train, eval := tr.Trace(step()), tr.Trace(infer)
	before := int64(0)
	for i, x := range []*Trace{train, eval, train, eval} {
		if err := s.Step(x); err != nil {
			t.Fatal(err)
		}
		// w, x, d 1024 each (600 and 1000 rounded), m 4096
		if now := a.Allocated(); now != 3*1024+4096 || i > 0 && now != before {
			t.Errorf("after step %d: %d", i, now)
		}
		before = a.Allocated()
	}
	if err := s.Clone([]int64{1000, 600}); err != nil || a.Allocated() != before || s.Peak() < before+2048 {
		t.Errorf("%v, %d allocated, peak %d", err, a.Allocated(), s.Peak())
	}
	s = NewSession[alloc.Handle](alloc.NewCaching(alloc.Conf{}, 24<<20))
	if err := s.Step(tr.Trace(sized(1000))); err != nil {
		t.Fatal(err)
	}
	if err := s.Step(tr.Trace(sized(9000))); !errors.Is(err, alloc.ErrOutOfMemory) {
		t.Errorf("%v", err)
	}
}
