package validate_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

// array is a reader of an array made of one number.
func array(v float32, shape ...int64) validate.Reader {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	a := &validate.Array{Shape: shape, Values: slices.Repeat([]float32{v}, int(n))}
	return func() (*validate.Array, error) { return a, nil }
}

// TestGivenWrong: what is given is of the right shape and range, or nothing runs.
func TestGivenWrong(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		model, loss, name string
		given             validate.Reader
		want              string // part of the error; empty: none
	}{
		{"mlp", "", "input0", array(1, 2, 12), ""},
		{"mlp", "", "input0", array(1, 12, 2), "an array of shape [12 2], the model takes [2 12]"},
		{"mlp", "", "input0", array(nan, 2, 12), "element 0 is NaN"},
		{"mlp", "", "net.0.weight", array(1, 12, 16), "the model takes [16 12]"},
		{"mlp", "", "target", array(4, 2), ""},
		{"mlp", "", "target", array(5, 2), "want 0 to 4"}, // five classes
		{"mlp", "", "target", array(-1, 2), "want 0 to 4"},
		{"mlp", "", "target", array(1.5, 2), "want integers"},
		{"mlp", "", "target", array(1, 3), "the step takes [2]"},
		{"mlp", "sum", "target", array(1, 2), "draws no target"},
		{"gpt", "", "input0", array(16, 2, 6), ""},
		{"gpt", "", "input0", array(17, 2, 6), "want 0 to 16"}, // a table of 17 rows
		{"gpt", "", "input0", array(0.5, 2, 6), "want integers"},
	} {
		q := question(t, c.model, planner.Config{Batch: 2, Loss: c.loss})
		q.Source = validate.ModelSource(q.Model.Graph(), q.Model.File)
		q.Inputs = map[string]validate.Reader{c.name: c.given}
		r, err := validate.Validate(t.Context(), q)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "" && r.Verdict != validate.Validated:
			t.Errorf("%s: %s: %v", c.name, r.Verdict, failed(r))
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestUnread: what is given and not read is said.
func TestUnread(t *testing.T) {
	q := question(t, "pointwise", planner.Config{Batch: 2})
	const folded = "lifted_tensor_0" // a constant of the model, part of a shape
	q.Inputs = map[string]validate.Reader{folded: array(1)}
	r := answer(t, q)
	if !slices.ContainsFunc(r.Device.Notes, func(s string) bool { return strings.Contains(s, folded) }) {
		t.Errorf("notes %q", r.Device.Notes)
	}
}

// TestExpectedShape: an array of as many numbers in another shape is not what
// the step computes.
func TestExpectedShape(t *testing.T) {
	q := question(t, "mlp", planner.Config{Batch: 2})
	q.Tolerance = 1e300
	for shape, verdict := range map[[3]int64]string{{1, 2, 5}: validate.Validated, {2, 5, 1}: validate.Validated, {5, 2, 1}: validate.Refuted, {1, 1, 10}: validate.Refuted} {
		q.Expect = map[string]validate.Reader{"output": array(1, shape[:]...)}
		if r := answer(t, q); r.Verdict != verdict {
			t.Errorf("%v: %s: %v", shape, r.Verdict, failed(r))
		}
	}
}

// forgetful is a device that leaves what a kernel makes as the memory was.
type forgetful struct {
	*cpu.Device
	kernel string
}

func (d forgetful) Run(c *validate.Call) error {
	if c.Kernel == d.kernel {
		return nil
	}
	return d.Device.Run(c)
}

// TestInference: without a loss it is the outputs that are looked at.
func TestInference(t *testing.T) {
	q := question(t, "mlp", planner.Config{Batch: 2, Mode: "infer"})
	q.Steps = 1
	if r := answer(t, q); r.Verdict != validate.Validated {
		t.Errorf("%s: %v", r.Verdict, failed(r))
	}
	q.Open = func() (validate.Device, error) { return forgetful{cpu.New(), "native_layer_norm"}, nil }
	if r := answer(t, q); r.Verdict != validate.Refuted || !slices.Equal(failed(r), []string{"finite", "repeated"}) {
		t.Errorf("outputs that nothing wrote: %s: %v", r.Verdict, failed(r))
	}
}

// TestDifference: infinities that are equal do not hide what is not.
func TestDifference(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		a, b []float32
		want float64
	}{
		{[]float32{1, 2}, []float32{1, 2}, 0},
		{[]float32{1, 3}, []float32{1, 2}, 0.5},
		{[]float32{inf, 3}, []float32{inf, 2}, 0.5},
		{[]float32{-inf, 1}, []float32{-inf, 1}, 0},
		{[]float32{inf, 1}, []float32{2, 1}, math.Inf(1)},
		{[]float32{2, 1}, []float32{inf, 1}, math.Inf(1)},
		{[]float32{inf, 1}, []float32{-inf, 1}, math.Inf(1)},
		{[]float32{nan}, []float32{nan}, math.Inf(1)},
		{[]float32{1e-30}, []float32{0}, math.Inf(1)},
		{[]float32{1}, []float32{1, 1}, math.Inf(1)},
	} {
		if got := validate.Difference(&validate.Array{Values: c.a}, &validate.Array{Values: c.b}); got != c.want {
			t.Errorf("%v and %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// TestEmptyBuffer: a buffer without bytes has a place, which counts as used.
func TestEmptyBuffer(t *testing.T) {
	p := &program.Program{Storages: make([]program.Storage, 1), Nodes: []program.Node{{Op: "empty",
		Out: []program.View{{DType: graph.Float32, Shape: []int64{0}, Strides: []int64{1}}}, Events: []program.Event{{Storage: 0}}}}}
	l := layoutOf(t, p, nil)
	r, err := validate.Execute(t.Context(), cpu.New(), p, l, validate.Options{Guarded: true})
	if err != nil || r.Used != l.Bytes || l.Bytes == 0 {
		t.Errorf("%d bytes of %d used: %v", r.Used, l.Bytes, err)
	}
}
