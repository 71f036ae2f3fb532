package planner

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/liveness/alloc"
)

const lmModel = "testdata/levers/lm.onnx"

// lengthsIn writes a file of lengths.
func lengthsIn(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lengths.csv")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Steps that all have one length take what the steady step takes.
func TestLengthsAlike(t *testing.T) {
	path := lengthsIn(t, "# all alike\n256,40\n")
	for _, vram := range []int64{0, 1400 << 20, 1100 << 20} {
		m := openLever(t, lmModel)
		cfg := Config{Batch: 8, VRAM: vram, Headroom: "0", Checkpoint: "none", Lengths: map[string]string{"seq": path}}
		r, err := m.Phases(t.Context(), cfg, LengthOptions{Steps: 12, Seed: 7, Padded: true})
		if err != nil {
			t.Fatal(err)
		}
		a, err := m.Analyze(t.Context(), Config{Batch: 8, VRAM: vram, Headroom: "0", Checkpoint: "none", Dims: map[string]int64{"seq": 256}})
		if err != nil {
			t.Fatal(err)
		}
		unlimited, err := m.Analyze(t.Context(), Config{Batch: 8, Checkpoint: "none", Dims: map[string]int64{"seq": 256}})
		if err != nil {
			t.Fatal(err)
		}
		l := r.Lengths
		want := unlimited.Peak.ReservedBytes
		if got := l.Reserved[len(l.Reserved)-1]; got != want || l.Allocators[0].ReservedBytes != want || l.Allocators[0].MeanBytes != want || l.Sizes != 1 || l.Epoch != 5 {
			t.Errorf("%d reserved, the steady step %d: %+v", got, want, l.Allocators[0])
		}
		for i, s := range unlimited.ev.res.Steps {
			if l.Reserved[i] != s.Reserved {
				t.Errorf("step %d: %d reserved, replayed %d", i, l.Reserved[i], s.Reserved)
			}
		}
		if vram == 0 {
			if r.Fits != nil || l.Allocators[0].RanOut != 0 {
				t.Errorf("without a budget: %+v", l.Allocators[0])
			}
			continue
		}
		ranOut := map[bool]int{true: 0, false: lengthRuns}[*a.Fits]
		if *r.Fits != *a.Fits || l.Allocators[0].RanOut != ranOut {
			t.Errorf("%d: fits %v, runs out %d times; the steady step fits: %v", vram, *r.Fits, l.Allocators[0].RanOut, *a.Fits)
		}
	}
}

// Phases of a run: the steps are those of the report, and what is between them is beside
// what the steps leave.
func TestPhases(t *testing.T) {
	m := openLever(t, lmModel)
	cfg := Config{Batch: 8, Dims: map[string]int64{"seq": 128}, Checkpoint: "none"}
	r, err := m.Phases(t.Context(), cfg, LengthOptions{Steps: 1})
	if err != nil {
		t.Fatal(err)
	}
	a, err := m.Analyze(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	infer, err := m.Analyze(t.Context(), Config{Batch: 8, Dims: map[string]int64{"seq": 128}, Mode: "infer"})
	if err != nil {
		t.Fatal(err)
	}
	st := a.ev.res.Steps
	last := st[len(st)-1]
	by := map[string]Moment{}
	for _, x := range r.Moments {
		if by[strings.Fields(x.Name)[0]+" "+strings.Fields(x.Name)[len(strings.Fields(x.Name))-1]] = x; x.Why != "" {
			t.Errorf("%+v", x)
		}
	}
	if x := by["first step"]; x.AllocatedBytes != st[0].Peak() || x.ReservedBytes != st[0].Reserved {
		t.Errorf("first step: %+v, want %+v", x, st[0])
	}
	if x := by["steady step"]; x.AllocatedBytes != last.Peak() || x.ReservedBytes != last.Reserved {
		t.Errorf("steady step: %+v, want %+v", x, last)
	}
	// An inference beside gradients and optimizer state: what it takes beyond what stands
	// before it, parameters and inputs among that.
	beyond := infer.Peak.RequestedBytes - infer.Phases.Start
	if x := by["evaluation evaluation"]; x.AllocatedBytes < last.AfterStep+beyond/2 || x.AllocatedBytes > last.AfterStep+beyond+64<<20 {
		t.Errorf("evaluation: %+v, want about %d beside %d", x, beyond, last.AfterStep)
	}
	weights := int64(0)
	for _, shape := range m.weights() {
		n := int64(4)
		for _, d := range shape {
			n *= d
		}
		weights += n
	}
	if x := by["state GPU"]; x.AllocatedBytes < last.AfterStep+weights || x.AllocatedBytes > last.AfterStep+weights*11/10+1<<20 {
		t.Errorf("state dict on the GPU: %+v, want %d beside %d", x, weights, last.AfterStep)
	}
	if x := by["state host"]; x.HostBytes < 3*weights || x.HostBytes > 3*weights+1<<20 || x.ReservedBytes != last.Reserved {
		t.Errorf("state dict to the host: %+v, want three times %d", x, weights)
	}
	found := false
	for name, x := range by {
		if strings.HasPrefix(name, "last ") {
			found = true
			if x.ReservedBytes < last.Reserved || x.AllocatedBytes >= last.Peak() {
				t.Errorf("%+v, of the whole batch %+v", x, last)
			}
		}
	}
	if !found {
		t.Error("no last batch")
	}
}

// Runs of two lengths take what a replay of the same steps takes, drawn and made here.
func TestLengthsDrawn(t *testing.T) {
	m := openLever(t, lmModel)
	const n, seed = 30, 3
	path := lengthsIn(t, "64\n512\n64\n")
	r, err := m.Phases(t.Context(), Config{Batch: 4, Checkpoint: "none", Lengths: map[string]string{"seq": path}}, LengthOptions{Steps: n, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	var tr liveness.Tracer
	traces := map[string]*liveness.Trace{}
	for word, size := range map[string]int64{"seq=64": 64, "seq=512": 512} {
		step, err := m.Program(Config{Batch: 4, Dims: map[string]int64{"seq": size}})
		if err != nil {
			t.Fatal(err)
		}
		traces[word] = tr.Trace(step.Program)
	}
	s := liveness.NewSession[alloc.Handle](alloc.NewCaching(alloc.Conf{}, 0))
	long := 0
	for i, word := range r.Lengths.Drawn {
		if word == "seq=512" {
			long++
		}
		if err := s.Step(traces[word]); err != nil || s.Reserved() != r.Lengths.Reserved[i] {
			t.Fatalf("step %d: %v, %d reserved, want %d", i, err, r.Lengths.Reserved[i], s.Reserved())
		}
	}
	if long == 0 || long == n {
		t.Errorf("%d of %d steps are long, a third of the lengths is", long, n)
	}
	again, err := m.Phases(t.Context(), Config{Batch: 4, Checkpoint: "none", Lengths: map[string]string{"seq": path}}, LengthOptions{Steps: n, Seed: seed + 1})
	if err != nil || slices.Equal(again.Lengths.Drawn, r.Lengths.Drawn) || again.Lengths.Epoch != 0 {
		t.Errorf("another seed draws the same: %v", err)
	}
}

// The longest of n draws is at most v with the n-th power of the share of lengths up to v.
func TestDraw(t *testing.T) {
	cfg := Config{}
	l, err := ReadLengths(&cfg, lengthsIn(t, "length,count\n10,5\n20,3\n\n40,0\n30, 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	if l.Total() != 10 || l.Longest() != 30 {
		t.Fatalf("%+v", l)
	}
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // draws that repeat
	for _, n := range []int64{1, 3} {
		const draws = 20000
		count := map[int64]int{}
		for range draws {
			count[l.draw(rng, n)]++
		}
		upTo := 0
		for v, share := range map[int64]float64{10: 0.5, 20: 0.8, 30: 1} {
			upTo = 0
			for w, c := range count {
				if w <= v {
					upTo += c
				}
			}
			if want := math.Pow(share, float64(n)); math.Abs(float64(upTo)/draws-want) > 0.015 {
				t.Errorf("longest of %d up to %d: %v, want %v", n, v, float64(upTo)/draws, want)
			}
		}
	}
	for text, want := range map[string]string{"": "no lengths", "length\n": "no lengths", "12\nx\n": `line 2: "x" is no length`, "0\n": "no length", "5,-1\n": "no number of samples", "1.5\n": `"1.5" is no length`,
		"5,0\n": "no lengths", "9,9999999999999\n": "no number of samples", "a\nb\n": `line 2: "b"`} {
		if _, err := ReadLengths(&cfg, lengthsIn(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Clopper and Pearson's intervals, from tables of the beta distribution: 0 and 20 of 20, 5 of
// 20, 1 of 20 (R's binom.test).
func TestClopperPearson(t *testing.T) {
	for _, x := range []struct {
		k, n      int
		low, high float64
	}{{0, 20, 0, 0.16843347}, {20, 20, 0.83156653, 1}, {5, 20, 0.08657147, 0.49104587}, {1, 20, 0.00126509, 0.24873276}} {
		if low, high := clopperPearson(x.k, x.n); math.Abs(low-x.low) > 1e-5 || math.Abs(high-x.high) > 1e-5 {
			t.Errorf("%d of %d: %v to %v, want %v to %v", x.k, x.n, low, high, x.low, x.high)
		}
	}
}

// A file of batch sizes is one of steps.
func TestLengthsOfBatches(t *testing.T) {
	m := openLever(t, "../models/mlp.onnx")
	r, err := m.Phases(t.Context(), Config{Lengths: map[string]string{"batch": lengthsIn(t, "64\n4096\n")}}, LengthOptions{Steps: 20, Seed: 1, Padded: true})
	if err != nil || r.Lengths.Sizes != 2 || r.Lengths.Padded {
		t.Fatalf("%+v, %v", r, err)
	}
	a, err := m.Analyze(t.Context(), Config{Batch: 4096})
	if err != nil || r.Moments[1].ReservedBytes != a.Peak.ReservedBytes || r.Moments[5].Why == "" {
		t.Errorf("%+v, %v", r.Moments, err)
	}
}

func TestPhaseErrors(t *testing.T) {
	m := openLever(t, lmModel)
	path := lengthsIn(t, "16\n")
	lengths := map[string]string{"seq": path}
	if _, err := m.Analyze(t.Context(), Config{Batch: 8, Lengths: lengths}); err == nil || !strings.Contains(err.Error(), "NAME=N") {
		t.Errorf("Analyze: %v", err)
	}
	for _, x := range []struct {
		cfg   Config
		steps int
		want  string
	}{
		{Config{Batch: 8, Mode: "infer", Lengths: lengths}, 9, "training"},
		{Config{Batch: 8, Parallel: "ddp=2", Lengths: lengths}, 9, "one card"},
		{Config{Batch: 8, Lengths: lengths}, 0, "--draws 0"},
		{Config{Lengths: lengths}, 9, "--batch N"},
		{Config{Batch: 8, Lengths: map[string]string{"seq": path + "x"}}, 9, "no such file"},
	} {
		if _, err := m.Phases(t.Context(), x.cfg, LengthOptions{Steps: x.steps}); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v, want %q", x.cfg, err, x.want)
		}
	}
}
