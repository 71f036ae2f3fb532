package snapshot

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/planner"
)

// A history makes a device as an allocator would that never uses an address twice.
type history struct {
	s    Snapshot
	d    Device
	next int64
	at   map[int32]Block // by storage
	live map[int64]Block
}

func newHistory() *history {
	return &history{s: Snapshot{Stacks: [][]Frame{nil}}, next: 1 << 40, at: map[int32]Block{}, live: map[int64]Block{}}
}

func (h *history) stack(file string, line int64) int32 {
	h.s.Stacks = append(h.s.Stacks, []Frame{{"empty_strided", "/x/site-packages/torch/a.py", 1}, {"f", file, line}, {"main", "main.py", 9}})
	return int32(len(h.s.Stacks) - 1)
}

// alloc allocates, with an event if recorded.
func (h *history) alloc(bytes int64, stack int32, recorded bool) Block {
	b := Block{h.next, bytes, stack}
	h.next += bytes + 512
	h.live[b.Addr] = b
	if recorded {
		h.d.Events = append(h.d.Events, Event{Alloc, b.Addr, bytes, stack})
	}
	return b
}

func (h *history) free(b Block) {
	delete(h.live, b.Addr)
	h.d.Events = append(h.d.Events, Event{Free, b.Addr, b.Size, 0})
}

// step runs the plan's step; change may run something else before an event, and says
// whether it still happens.
func (h *history) step(v *planner.StepView, change func(i int) bool) {
	gone := map[int32]bool{}
	for i, e := range v.Events {
		id, sign := stored(e[1])
		n := v.Storages[id][0]
		if n == 0 || gone[id] && sign < 0 {
			delete(gone, id)
			continue
		}
		if !change(i) && sign > 0 {
			gone[id] = true
			continue
		}
		if sign > 0 {
			h.at[id] = h.alloc(n, 0, true)
		} else {
			h.free(h.at[id])
		}
	}
}

// snapshot ends the history.
func (h *history) snapshot() *Snapshot {
	for _, b := range h.live {
		h.d.Blocks = append(h.d.Blocks, b)
		h.d.Reserved += b.Size
	}
	s := h.s
	s.Devices = []Device{{}, h.d}
	return &s
}

func answer(t *testing.T, model string, cfg planner.Config) *planner.Answer {
	t.Helper()
	m, err := planner.Open(filepath.Join("..", "..", "models", model))
	if err != nil {
		t.Fatal(err)
	}
	a, err := m.Analyze(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// consistent fails unless the parts of a comparison add up.
func consistent(t *testing.T, c *Comparison) {
	t.Helper()
	if c.DeltaBytes != c.Snapshot.RequestedBytes-c.Plan.RequestedBytes {
		t.Errorf("the delta is %d", c.DeltaBytes)
	}
	for name, list := range map[string][]Share{"categories": c.Categories, "modules": c.Modules} {
		var plan, run, delta int64
		for _, x := range list {
			plan, run, delta = plan+x.Plan, run+x.Snapshot, delta+x.Delta
		}
		if plan != c.Plan.RequestedBytes || run != c.Snapshot.RequestedBytes || delta != c.DeltaBytes {
			t.Errorf("%s add up to %d and %d, %d", name, plan, run, delta)
		}
	}
	sum := int64(0)
	for _, g := range c.Unplanned {
		sum += g.Bytes
	}
	for _, g := range c.Missing {
		sum -= g.Bytes
	}
	if sum != c.DeltaBytes {
		t.Errorf("groups add up to %d, want %d", sum, c.DeltaBytes)
	}
}

// before allocates what is there when the step starts, in any order.
func (h *history) before(v *planner.StepView, r *rand.Rand, recorded bool) {
	stack := h.stack("train.py", 5)
	for _, i := range r.Perm(len(v.Before)) {
		if id := v.Before[i]; v.Storages[id][0] > 0 {
			h.at[id] = h.alloc(v.Storages[id][0], stack, recorded)
		}
	}
}

func always(int) bool { return true }

// A run of the plan itself does not differ, wherever its history begins.
func TestCompareSame(t *testing.T) {
	for _, model := range []string{"mlp.onnx", "resnet50.onnx", "gpt2.onnx"} {
		for _, cfg := range []planner.Config{{Batch: 4}, {Batch: 8, Checkpoint: "all", Precision: "amp-bf16", Optimizer: "sgd-momentum"}} {
			a := answer(t, model, cfg)
			for _, steps := range []int{1, 3} {
				for _, recorded := range []bool{true, false} {
					h := newHistory()
					h.before(a.View(), rand.New(rand.NewPCG(1, 1)), recorded)
					for range steps {
						h.step(a.View(), always)
					}
					c, err := Compare(h.snapshot(), 1, a)
					if err != nil {
						t.Fatal(err)
					}
					consistent(t, c)
					if c.DeltaBytes != 0 || len(c.Unplanned)+len(c.Missing)+len(c.Warnings) > 0 || c.Matched.Allocations != c.Matched.Of || c.Matched.Of == 0 {
						t.Errorf("%s %+v, %d steps: %+d bytes, %v and %v, %+v, %v", model, cfg, steps, c.DeltaBytes, c.Unplanned, c.Missing, c.Matched, c.Warnings)
					}
					if c.Snapshot.Phase != c.Plan.Phase || c.Snapshot.Op != c.Plan.Op || c.Snapshot.Module != c.Plan.Module {
						t.Errorf("%s: the peaks are in %+v and %+v", model, c.Snapshot, c.Plan)
					}
				}
			}
		}
	}
}

// What a run keeps from step to step, and a copy of its weights, are named by the
// line that allocated them, to the byte.
func TestCompareKept(t *testing.T) {
	a := answer(t, "gpt2.onnx", planner.Config{Batch: 4})
	v, h := a.View(), newHistory()
	h.before(v, rand.New(rand.NewPCG(1, 1)), true)
	ema, hook := h.stack("ema.py", 7), h.stack("hook.py", 3)
	want := map[string]Group{}
	add := func(where string, bytes int64) {
		g := want[where]
		g.Tensors, g.Bytes = g.Tensors+1, g.Bytes+bytes
		want[where] = g
	}
	for _, id := range v.Before {
		if v.Categories[v.Storages[id][1]] == "parameters" {
			h.alloc(v.Storages[id][0], ema, true)
			add("ema.py:7 f", v.Storages[id][0])
		}
	}
	middle := len(v.Events) / 4
	const steps, kept = 4, 3 << 20
	for range steps {
		h.step(v, func(i int) bool {
			if i == middle {
				h.alloc(kept, hook, true)
			}
			return true
		})
		add("hook.py:3 f", kept)
	}
	c, err := Compare(h.snapshot(), 1, a)
	if err != nil {
		t.Fatal(err)
	}
	consistent(t, c)
	if len(c.Missing) > 0 || c.Matched.Allocations != c.Matched.Of {
		t.Errorf("%v missing, %+v: %+v", c.Missing, c.Matched, c.Unplanned)
	}
	found := map[string]Group{}
	for _, g := range c.Unplanned {
		x := found[g.Where]
		found[g.Where] = Group{Tensors: x.Tensors + g.Tensors, Bytes: x.Bytes + g.Bytes}
	}
	if fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", found, want)
	}
}

// Allocations that a run does not make, makes twice or keeps longer: what is
// counted stays exact, and most of the step is still recognised.
func TestCompareChanged(t *testing.T) {
	a := answer(t, "resnet50.onnx", planner.Config{Batch: 8})
	v := a.View()
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 5))
		h := newHistory()
		h.before(v, r, seed%2 == 0)
		for range 3 {
			h.step(v, func(int) bool {
				if r.IntN(40) == 0 {
					b := h.alloc(1+r.Int64N(1<<22), 0, true)
					if r.IntN(2) == 0 {
						h.free(b)
					}
				}
				return r.IntN(40) > 0
			})
		}
		c, err := Compare(h.snapshot(), 1, a)
		if err != nil {
			t.Fatal(err)
		}
		consistent(t, c)
		if c.Matched.Bytes < c.Matched.OfBytes*3/4 || c.Matched.Allocations < c.Matched.Of*3/4 {
			t.Errorf("seed %d: %+v", seed, c.Matched)
		}
	}
}

// Another batch is named, and a snapshot without history or device.
func TestCompareDoubts(t *testing.T) {
	a := answer(t, "resnet50.onnx", planner.Config{Batch: 8})
	run := answer(t, "resnet50.onnx", planner.Config{Batch: 24})
	h := newHistory()
	h.before(run.View(), rand.New(rand.NewPCG(1, 1)), true)
	h.step(run.View(), always)
	s := h.snapshot()
	c, err := Compare(s, 1, a)
	if err != nil {
		t.Fatal(err)
	}
	consistent(t, c)
	if len(c.Warnings) != 1 || c.Warnings[0] != fmt.Sprintf("%d of the %d allocations of the plan's step are in the history: the sizes are those of batch 24, and the plan is for 8", c.Matched.Allocations, c.Matched.Of) {
		t.Errorf("%q", c.Warnings)
	}
	for _, x := range c.Categories { // the step is recognised all the same
		if x.Name == Unplanned && x.Snapshot*20 > c.Snapshot.RequestedBytes {
			t.Errorf("%d of %d bytes are not in the plan", x.Snapshot, c.Snapshot.RequestedBytes)
		}
	}
	s.Devices[1].Events = nil
	if c, err = Compare(s, 1, a); err != nil || len(c.Warnings) != 1 || c.Snapshot.Phase != "" {
		t.Errorf("%v %+v", err, c)
	}
	consistent(t, c)
	for _, device := range []int{-1, 2} {
		if _, err := Compare(s, device, a); err == nil {
			t.Errorf("device %d is compared", device)
		}
	}
	if s.Busiest() != 1 {
		t.Errorf("the busiest is %d", s.Busiest())
	}
}

// TestWhere: the line of a stack is the user's, not PyTorch's or Python's.
func TestWhere(t *testing.T) {
	for _, c := range []struct {
		files []string
		want  string
	}{
		{nil, ""},
		{[]string{"/usr/lib/python3.12/copy.py", "/v/lib/python3.12/site-packages/torch/_tensor.py", "/home/me/train.py", "/home/me/main.py"}, "/home/me/train.py:2 f"},
		{[]string{"/v/lib/python3.12/site-packages/torch/nn/functional.py", "/v/lib/python3.12/site-packages/transformers/gpt2.py"}, "/v/lib/python3.12/site-packages/transformers/gpt2.py:1 f"},
		{[]string{`C:\v\Lib\site-packages\torch\nn\a.py`, `C:\me\train.py`}, `C:\me\train.py:1 f`},
		{[]string{"torch/nn/a.py", "<string>"}, "torch/nn/a.py:0 f"},
	} {
		s := &Snapshot{Stacks: [][]Frame{{}}}
		for i, f := range c.files {
			s.Stacks[0] = append(s.Stacks[0], Frame{"f", f, int64(i)})
		}
		if got := (&comparer{s: s}).where(0); got != c.want {
			t.Errorf("%q: %q, want %q", c.files, got, c.want)
		}
	}
}
