package cpu_test

import (
	"context"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

// goldens are the models that scripts/validation/training_reference.py trained with PyTorch
// for two steps.
var goldens = []struct {
	name, optimizer string
}{
	{"mlp", "sgd-momentum"}, {"resnet", "adamw"}, {"mobile", "adam"}, {"unet", "sgd"}, {"gpt", "adamw"}, {"llama", "adamw"}, {"convnext", "sgd-nesterov"}, {"pointwise", "adam-wd"},
	{"places", "adagrad"}, {"selection", "adam"}, {"video", "rmsprop"}, {"recurrent", "adamw"},
}

// tolerance is how far a number may be from PyTorch's, relative to the largest
// of its tensor: both compute in float32, in other orders.
const tolerance = 2e-5

// relevant is the part of a model's largest gradient below which a gradient's
// own size does not count: a bias before a batch norm has the gradient 0, of
// which either side computes rounding errors.
const relevant = 1e-2

// trained is what a run left.
type trained struct {
	*validate.Result
	grads []map[string]*validate.Array
}

func train(t *testing.T, path string, cfg planner.Config, data map[string]*validate.Array) *trained {
	t.Helper()
	m, err := planner.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.Program(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := validate.NewLayout(p.Program, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(p.Program); err != nil {
		t.Fatal(err)
	}
	weights := validate.ModelSource(m.Graph(), m.File)
	r := &trained{grads: []map[string]*validate.Array{{}, {}}}
	o := validate.Options{Seed: 1, Steps: 2, Guarded: true, Gradient: func(step int, name string, a *validate.Array) { r.grads[step-1][name] = a },
		Source: func(name string) (*validate.Array, error) {
			if a := data[name]; a != nil {
				return a, nil
			}
			return weights(name)
		}}
	for _, out := range p.Outputs {
		o.Outputs = append(o.Outputs, validate.Output{Name: out.Name, Tensor: out.Tensor, Node: p.Forward})
	}
	d := cpu.New()
	if r.Result, err = validate.Execute(context.Background(), d, p.Program, l, o); err != nil {
		t.Fatal(err)
	}
	if len(r.Broken) > 0 {
		t.Errorf("buffers written beyond their ends: %v", r.Broken)
	}
	if r.Used != l.Bytes {
		t.Errorf("%d bytes of the arena used, %d planned", r.Used, l.Bytes)
	}
	return r
}

// top is the largest absolute value.
func top(a *validate.Array) float32 {
	var t float32
	for _, v := range a.Values {
		t = max(t, max(v, -v))
	}
	return t
}

// TestGolden trains small models for two steps and compares outputs, losses and
// gradients with PyTorch's, and outputs with onnxruntime's.
func TestGolden(t *testing.T) {
	for _, g := range goldens {
		for _, attention := range []string{"auto", "eager"} {
			if attention == "eager" && g.name != "llama" { // the only one with a fused kernel
				continue
			}
			t.Run(g.name+"/"+attention, func(t *testing.T) {
				path := filepath.Join("..", "testdata", "golden", g.name)
				want, err := validate.ReadNPZ(path + ".npz")
				if err != nil {
					t.Fatal(err)
				}
				got := train(t, path+".onnx", planner.Config{Batch: 2, Optimizer: g.optimizer, Attention: attention}, want)
				near := func(what string, a, b *validate.Array) {
					if d := validate.Difference(a, b); d > tolerance {
						t.Errorf("%s differs by %.3g of its largest number", what, d)
					}
				}
				near("output", got.Outputs[0], want["output0"])
				if ort := want["ort:output0"]; ort != nil {
					near("onnxruntime's output", got.Outputs[0], ort)
				} else {
					t.Error("no output of onnxruntime")
				}
				for i, l := range want["loss"].Values {
					if d := math.Abs(got.Loss[i] - float64(l)); d > tolerance*math.Abs(float64(l)) {
						t.Errorf("loss %d is %v, PyTorch's %v", i+1, got.Loss[i], l)
					}
				}
				n, largest := 0, float32(0)
				for name, a := range want {
					if strings.HasPrefix(name, "grad") {
						largest = max(largest, top(a))
					}
				}
				for _, name := range slices.Sorted(maps.Keys(want)) {
					for i, prefix := range []string{"grad1:", "grad2:"} {
						if p, ok := strings.CutPrefix(name, prefix); ok {
							n++
							a, b := got.grads[i][p], want[name]
							if d := validate.Difference(a, b); d*float64(top(b)) > tolerance*max(float64(top(b)), relevant*float64(largest)) {
								t.Errorf("%s differs by %.3g of its largest number, %.3g", name, d, top(b))
							}
						}
					}
				}
				if n != len(got.grads[0])+len(got.grads[1]) || n == 0 {
					t.Errorf("%d gradients, PyTorch has %d", len(got.grads[0])+len(got.grads[1]), n)
				}
			})
		}
	}
}
