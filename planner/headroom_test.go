package planner

import (
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

func TestParseHeadroom(t *testing.T) {
	for _, c := range []struct {
		text string
		want Headroom
	}{
		{"", Headroom{Auto: true}},
		{"auto", Headroom{Auto: true}},
		{"0", Headroom{}},
		{"2G", Headroom{Bytes: 2 << 30}},
		{"2.5%", Headroom{Part: 0.025}},
	} {
		if got, err := ParseHeadroom(c.text); err != nil || got != c.want {
			t.Errorf("%q: %+v, %v", c.text, got, err)
		}
	}
	for _, bad := range []string{"100%", "-1%", "%", "NaN%", "x", "-2G"} {
		if got, err := ParseHeadroom(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

// What fits with more kept free fits with less, down to none; a verdict that
// holds leaves at least the headroom of the predicted need; a plan repeats it.
func TestHeadroom(t *testing.T) {
	testdata.Sequential(t)
	m := sample(t, "resnet50.onnx")
	fits := func(vram int64, headroom string) bool {
		r, err := m.Analyze(t.Context(), Config{Batch: 16, Checkpoint: "none", Runtime: measuredRelease, VRAM: vram, Headroom: headroom})
		return err == nil && *r.Fits
	}
	const step = 4 << 20
	need := int64(1 << 30) // the least that it runs in with nothing kept free
	for !fits(need, "0") {
		need += 32 << 20
	}
	for fits(need-step, "0") {
		need -= step
	}
	for _, c := range []struct {
		headroom string
		vram     int64
		fits     bool
	}{
		{"0", need, true},
		{"0", need - step, false},
		{AutoHeadroom, need, false},
		{AutoHeadroom, need + need/8, true},
		{"64M", need + 64<<20 - step, false},
		{"64M", need + 64<<20, true},
		{"5%", need + need/50, false},
		{"5%", need + need/15, true},
	} {
		p, err := m.Plan(t.Context(), Config{Batch: 16, Checkpoint: "none", Runtime: measuredRelease, VRAM: c.vram, Headroom: c.headroom})
		if err != nil {
			t.Fatal(err)
		}
		if *p.Fits != c.fits {
			t.Errorf("--headroom %s --vram %d: fits %v, of %d needed", c.headroom, c.vram, *p.Fits, need)
		}
		if q := p.Question(); p.Config.Headroom != c.headroom || q.Headroom != c.headroom {
			t.Errorf("--headroom %s: the plan has %q, its question %q", c.headroom, p.Config.Headroom, q.Headroom)
		}
		if u := &p.Uncertainty; u.HighBytes != p.Peak.UpperBoundBytes || u.LowBytes > p.Peak.ReservedBytes || u.HighBytes < p.Peak.ReservedBytes {
			t.Errorf("--headroom %s: interval %d to %d around %d", c.headroom, u.LowBytes, u.HighBytes, p.Peak.ReservedBytes)
		}
	}
	if _, err := m.Analyze(t.Context(), Config{Batch: 16, VRAM: 2 << 30, Headroom: "2G"}); err == nil {
		t.Error("a headroom of the whole card is no error")
	}
	if q := (&Plan{}).Question(); q.Headroom != "0" {
		t.Errorf("a plan of a version without headroom: %q", q.Headroom)
	}
}

// The bytes of the sources add up to the interval.
func TestUncertaintyAddsUp(t *testing.T) {
	for _, cfg := range []Config{{Batch: 4}, {Batch: 4, Mode: "infer"}, {Batch: 4, Runtime: "torch-2.15", GPU: "t4", Precision: "amp-fp16"}} {
		r, err := sample(t, "resnet50.onnx").Analyze(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		high := r.Peak.ReservedBytes
		for _, s := range r.Uncertainty.Sources {
			high += s.Bytes
			if s.Bytes < 0 || s.LowBytes < 0 || s.Message == "" {
				t.Errorf("%+v", s)
			}
		}
		if high != r.Uncertainty.HighBytes || len(r.Uncertainty.Sources) == 0 {
			t.Errorf("%+v: sources to %d, interval to %d", cfg, high, r.Uncertainty.HighBytes)
		}
	}
}
