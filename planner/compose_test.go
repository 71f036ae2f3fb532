package planner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
)

// TestCompose compares steps that are put together from parts of others with those that are
// built for the same choice: both must allocate and free the same bytes in the same order.
func TestCompose(t *testing.T) {
	testdata.Sequential(t)
	for _, name := range []string{"resnet50", "gpt2", "vit_b_16", "unet", "densenet121", "mobilenet_v2", "vgg16", "llama_250m", "convnext_tiny", "bert_base_mlm"} {
		m, err := Open(testdata.Shared(t, "models", name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		j, err := Config{Batch: 16, Runtime: measuredRelease}.resolve()
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.selector(j, 16)
		if err != nil {
			t.Fatal(err)
		}
		c := checkpointsel.NewComposer(s.selective)
		if c == nil {
			t.Errorf("%s: its step's parts mix", name)
			continue
		}
		rng, composed, shorter := rand.New(rand.NewPCG(3, 4)), 0, 0
		palette := [][]train.Segment{s.selective.Sample(rng), s.selective.Sample(rng), s.selective.Alike(s.selective.Rates()[len(s.selective.Rates())/2]), s.problem.All()}
		for range 60 {
			segs := mixed(rng, palette)
			b, err := m.build(j, 16, segs)
			if err != nil {
				t.Fatal(err)
			}
			p := c.Compose(segs)
			if p == nil && learnShort(t, m, j, c, segs) {
				p = c.Compose(segs)
				shorter++
			}
			if p != nil {
				composed++
				sameEvents(t, name, p, b.Program)
			}
			c.Learn(b, segs)
			if p := c.Compose(segs); p == nil {
				t.Errorf("%s: %v was built, and cannot be composed", name, segs)
			} else {
				sameEvents(t, name, p, b.Program)
			}
		}
		if t.Logf("%s: %d of 60 steps composed before they were built, %d after shorter ones", name, composed, shorter); composed < 5 {
			t.Errorf("%s: %d of 60 steps composed before they were built, want 5", name, composed)
		}
	}
}

// learnShort builds a shortened step, if there is one.
func learnShort(t *testing.T, m *Model, j *job, c *checkpointsel.Composer, segs []train.Segment) bool {
	t.Helper()
	a := &answer{m: m, j: j, batch: 16, composer: c}
	short := c.Shorten(segs)
	if short == nil {
		return false
	}
	if err := a.learn(short); err != nil {
		t.Fatal(err)
	}
	return true
}

// mixed draws each segment from one of several choices, in execution order.
func mixed(rng *rand.Rand, from [][]train.Segment) (out []train.Segment) {
	taken := map[string]bool{}
	for _, seg := range from[rng.IntN(len(from))] {
		if rng.IntN(8) == 0 {
			continue
		}
		if len(seg.Modules) == 1 { // what another choice keeps of the module
			if other := from[rng.IntN(len(from))]; rng.IntN(2) == 0 {
				if i := slices.IndexFunc(other, func(x train.Segment) bool { return slices.Equal(x.Modules, seg.Modules) }); i >= 0 {
					seg = other[i]
				}
			}
		}
		if !taken[seg.Modules[0]] {
			taken[seg.Modules[0]] = true
			out = append(out, seg)
		}
	}
	return out
}

// sameEvents compares the first and the steady steps of two programs.
func sameEvents(t *testing.T, name string, got, want *program.Program) {
	t.Helper()
	if len(got.Nodes) != len(want.Nodes) || len(got.Setup) != len(want.Setup) {
		t.Fatalf("%s: composed %d nodes after %d events, built %d after %d", name, len(got.Nodes), len(got.Setup), len(want.Nodes), len(want.Setup))
	}
	at := map[program.StorageID]program.StorageID{}
	same := func(x, y program.StorageID, where string, i int) {
		if z, ok := at[x]; ok && z != y || !ok && (got.Storages[x].Bytes != want.Storages[y].Bytes || got.Storages[x].Life != want.Storages[y].Life || got.Storages[x].Optional != want.Storages[y].Optional) {
			t.Fatalf("%s: event %d of the %s: composed storage %d %+v, built %d %+v", name, i, where, x, got.Storages[x], y, want.Storages[y])
		}
		at[x] = y
	}
	for i := range want.Setup {
		same(got.Setup[i].Storage, want.Setup[i].Storage, "setup", i)
	}
	first, steady := liveness.Steps(got)
	firstBuilt, steadyBuilt := liveness.Steps(want)
	for k, pair := range [][2]*liveness.Timeline{{first, firstBuilt}, {steady, steadyBuilt}} {
		where := []string{"first step", "steady step"}[k]
		if len(pair[0].Events) != len(pair[1].Events) {
			t.Errorf("%s: %s: %d events composed, %d built", name, where, len(pair[0].Events), len(pair[1].Events))
		}
		for i := range min(len(pair[0].Events), len(pair[1].Events)) {
			x, y := pair[0].Events[i], pair[1].Events[i]
			same(x.Storage, y.Storage, where, i)
			if x.Free != y.Free || x.Old != y.Old || x.Node != y.Node {
				t.Fatalf("%s: event %d of the %s: composed %+v, built %+v: %s of %q", name, i, where, x, y, want.Nodes[y.Node].Op, want.Nodes[y.Node].Module)
			}
		}
	}
}
