package train

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/internal/testdata"
)

// An offloadCase is what scripts/pytorch/offload_reference.py saw PyTorch hold.
type offloadCase struct {
	Name, Model       string
	Regions           []string // ~ before those that are offloaded, = if they keep what they save
	Least             int64    // bytes of the smallest storage that is
	Host              int64    // bytes of the host's buffers
	Forward, Backward int64    // most bytes at once
}

func (c *offloadCase) options() Options {
	o := Options{Train: true, Loss: "sum", Config: aten.Config{Major: 9, Attention: []string{"math"}, LeastOffload: c.Least}}
	for _, r := range c.Regions {
		s := Segment{Modules: []string{strings.TrimLeft(r, "~=")}, Keep: r[0] == '='}
		s.Offload = r[0] == '~' || s.Keep
		o.Segments = append(o.Segments, s)
	}
	return o
}

// TestOffload compares offloaded regions, beside checkpoints too, with the most bytes that
// PyTorch holds with memplan's hooks, and with those that go to the host.
func TestOffload(t *testing.T) {
	_, models := nestedCases(t)
	n := 0
	for file, data := range testdata.Archived(t, filepath.Join("testdata", "offload.tar.xz")) {
		c := &offloadCase{}
		if err := json.Unmarshal(data, c); err != nil {
			t.Fatal(file, err)
		}
		n++
		l := (&nestedCase{Model: c.Model}).lift(t, models[c.Model])
		b, err := New(l, c.options())
		if err != nil {
			t.Fatal(c.Name, err)
		}
		if err := b.Check(); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		if f, bw := b.peaks(); f != c.Forward || bw != c.Backward {
			t.Errorf("%s: at most %d bytes in forward and %d in backward, PyTorch %d and %d", c.Name, f, bw, c.Forward, c.Backward)
		}
		if asked, pinned := b.HostBytes(); asked != c.Host || pinned < asked || pinned >= 2*asked {
			t.Errorf("%s: %d bytes on the host, %d pinned; PyTorch %d", c.Name, asked, pinned, c.Host)
		}
	}
	if n < 19 {
		t.Fatalf("%d cases", n)
	}
}

// Each copy to the host has one back, what comes back has been waited for, and the second
// micro-batch copies as much as the first.
func TestOffloadCopies(t *testing.T) {
	_, models := nestedCases(t)
	c := &offloadCase{Regions: []string{"~h.0", "~h.2", "h.3", "~h.4", "=h.5"}, Least: 64}
	o := c.options()
	o.Micros = 2
	b, err := New((&nestedCase{Model: "blocks"}).lift(t, models["blocks"]), o)
	if err != nil {
		t.Fatal(err)
	}
	var out, in [2]int64
	var waited []int32
	begun := map[int32]bool{}
	for i := range b.Nodes {
		n := &b.Nodes[i]
		for _, at := range n.Awaits {
			if !begun[at] || slices.Contains(waited, at) {
				t.Errorf("node %d waits for copies %d, which have not begun or were waited for before", i, at)
			}
			waited = append(waited, at)
		}
		for _, x := range n.Copies {
			begun[x.Ticket] = true
			if x.In {
				in[n.Micro] += b.Storages[x.Storage].Bytes
			} else {
				out[n.Micro] += b.Storages[x.Storage].Bytes
			}
		}
	}
	if out[0] == 0 || out != in || out[0] != out[1] || len(waited) != len(begun) {
		t.Errorf("%v bytes to the host and %v back; %d of %d copies waited for", out, in, len(waited), len(begun))
	}
}

// A region that goes to the host is one module and has no other region in it.
func TestOffloadRefused(t *testing.T) {
	_, models := nestedCases(t)
	l := (&nestedCase{Model: "chain"}).lift(t, models["chain"])
	for _, segs := range [][]Segment{
		{{Modules: []string{"1"}, Offload: true}, {Modules: []string{"1.0"}}},
		{{Modules: []string{"1", "2"}}, {Modules: []string{"2"}, Offload: true}},
	} {
		if _, err := New(l, Options{Train: true, Loss: "sum", Segments: segs}); err == nil || !strings.Contains(err.Error(), "goes to the host") {
			t.Errorf("%v: error %v", segs, err)
		}
	}
	for _, s := range []Segment{{Modules: []string{"1"}, Keep: true}, {Modules: []string{"1", "2"}, Offload: true}, {Modules: []string{"1"}, Offload: true, Save: []Saved{{Op: "aten.addmm", Calls: []int{0}}}}} {
		if s.Check() == nil {
			t.Errorf("%v passes", s)
		}
	}
}
