package planner

import (
	"slices"
	"testing"
)

// A steady step ends as it began, in every category, and its highest point is
// the requested peak that the replay finds.
func TestStack(t *testing.T) {
	for _, c := range []Config{{Batch: 4}, {Batch: 3, Mode: "infer"}, {Batch: 4, Precision: "amp-bf16", Optimizer: "sgd-momentum"}, {Batch: 8, Checkpoint: "all"}} {
		for _, name := range []string{"resnet50.onnx", "gpt2.onnx", "mlp.onnx"} {
			m := sample(t, name)
			r, err := m.Analyze(t.Context(), c)
			if err != nil {
				t.Fatalf("%s %+v: %v", name, c, err)
			}
			s := r.Stack()
			if n := len(r.Timeline()); len(s.Points) != n+1 {
				t.Errorf("%s %+v: %d points for %d events", name, c, len(s.Points), n)
			}
			first, last := s.Points[0], s.Points[len(s.Points)-1]
			if c.Mode != "infer" && !slices.Equal(first.Bytes, last.Bytes) {
				t.Errorf("%s %+v: begins with %v, ends with %v", name, c, first.Bytes, last.Bytes)
			}
			var most int64
			for i := range s.Points {
				most = max(most, s.Points[i].Total())
				if slices.Min(s.Points[i].Bytes) < 0 {
					t.Fatalf("%s %+v: point %d: %v", name, c, i, s.Points[i].Bytes)
				}
			}
			if r.Peak.Step > 0 && most != r.Peak.RequestedBytes {
				t.Errorf("%s %+v: highest point %d, requested peak %d", name, c, most, r.Peak.RequestedBytes)
			}
		}
	}
}
