package remat

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"
)

// TestDeterministic runs searches that no clock ends twice.
func TestDeterministic(t *testing.T) {
	for _, tt := range []struct {
		file  string
		ratio int64
	}{{"checkmate_vgg19_b256.json", 80}, {"checkmate_mobilenet_b512.json", 45}, {"rl1_n100.json", 85}} {
		in := load(t, tt.file)
		opt := Options{Budget: in.Peak() * tt.ratio / 100, Patience: 1, Seed: 5, Gap: 0.001}
		a, err := Solve(context.Background(), in, opt)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := Solve(context.Background(), in, opt); err != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s at %d%%: cost %d and bound %d, then %d and %d; %v", tt.file, tt.ratio, a.Cost, a.LowerBound, b.Cost, b.LowerBound, err)
		}
	}
}

// TestTimeout: a search that is given no time, or little, says what it has.
func TestTimeout(t *testing.T) {
	in := load(t, "checkmate_resnet50_b256.json")
	for _, d := range []time.Duration{1, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond} {
		r, err := Solve(context.Background(), in, Options{Budget: in.Peak() * 15 / 100, Timeout: d, Certificate: true})
		if err != nil && !errors.Is(err, ErrNoPlan) {
			t.Errorf("%v: %v", d, err)
			continue
		}
		if _, err := VerifyCertificate(in, r.Certificate); err != nil || r.LowerBound > r.Cost || r.LowerBound < in.Total() {
			t.Errorf("%v: cost %d, bound %d; %v", d, r.Cost, r.LowerBound, err)
		}
	}
}

// TestOpSet checks that plans of ClassOpSet execute nothing more than twice,
// and nothing again before the backward pass.
func TestOpSet(t *testing.T) {
	for _, tt := range []struct {
		file  string
		ratio int64
	}{{"checkmate_resnet50_b256.json", 55}, {"checkmate_mobilenet_b512.json", 60}, {"checkmate_fcn8_b32.json", 75}} {
		in := load(t, tt.file)
		r, err := Solve(context.Background(), in, Options{Budget: in.Peak() * tt.ratio / 100, Class: ClassOpSet, Patience: 1, Gap: 0.001})
		if err != nil {
			t.Errorf("%s at %d%%: %v", tt.file, tt.ratio, err)
			continue
		}
		runs, backward := make([]int, len(in.Nodes)), false
		for _, s := range r.Schedule {
			backward = backward || in.Nodes[s.Node].Backward
			if runs[s.Node]++; runs[s.Node] > 2 || runs[s.Node] == 2 && !backward {
				t.Errorf("%s at %d%%: %s runs %d times", tt.file, tt.ratio, in.label(s.Node), runs[s.Node])
			}
		}
	}
}

// TestFrontier checks that more memory never costs more and that the ends are
// right.
func TestFrontier(t *testing.T) {
	in := load(t, "checkmate_fcn8_b32.json")
	f, err := Trace(context.Background(), in, Options{Timeout: 2 * time.Second}, 6)
	if err != nil || len(f.Points) != 6 {
		t.Fatalf("%+v, %v", f, err)
	}
	need, v := in.WorkingSet()
	if f.Floor.Bound != need || f.Floor.Node != v || !f.Floor.Alone || f.Floor.Budget < need {
		t.Errorf("floor %+v, the working set is %d of node %d", f.Floor, need, v)
	}
	if _, err := Solve(context.Background(), in, Options{Budget: f.Floor.Bound - 1}); !errors.Is(err, ErrInfeasible) {
		t.Errorf("below the floor: %v", err)
	}
	for i, p := range f.Points {
		if p.Peak > p.Budget || p.LowerBound > p.Cost || i > 0 && (p.Cost < f.Points[i-1].Cost || p.LowerBound < f.Points[i-1].LowerBound) {
			t.Errorf("point %d: %+v after %+v", i, p, f.Points[max(i-1, 0)])
		}
	}
	if f.Points[0].Cost != in.Total() {
		t.Errorf("without need of recomputation: %+v", f.Points[0])
	}
}
