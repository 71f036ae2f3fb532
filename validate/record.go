package validate

import (
	"fmt"
	"time"

	"github.com/memplan/memplan/graph/program"
)

// TargetName is the name of the loss's target in sources.
const TargetName = "target"

// target overwrites the target that a node has drawn by the source's.
func (r *runner) target(n *program.Node) error {
	if r.o.Source == nil || !takesTarget(r.p, n) {
		return nil
	}
	t := &n.Out[0]
	a, err := r.o.Source(TargetName)
	if a == nil || err != nil {
		return err
	}
	if int64(len(a.Values)) != Elems(t.Shape) {
		return fmt.Errorf("%s: an array of shape %v, the step takes %v", TargetName, a.Shape, t.Shape)
	}
	if !t.DType.IsFloat() { // drawn from 0 to the number of classes
		if err := a.integers(int64(n.Scalar(1, 0)), ignored); err != nil {
			return fmt.Errorf("%s: %w", TargetName, err)
		}
	}
	raw, err := encode(t.DType, Elems(t.Shape), func(i uint64) float64 { return float64(a.Values[i]) })
	if err != nil {
		return err
	}
	if err := r.d.Sync(); err != nil {
		return err
	}
	return r.d.Upload(r.l.Offset[t.Storage], raw)
}

// outputs copies the model's outputs that are due after node i.
func (r *runner) outputs(i int32) error {
	for k := range r.o.Outputs {
		o := &r.o.Outputs[k]
		if o.Tensor.Storage < 0 || min(o.Node, r.end[o.Tensor.Storage]) != i && (r.end[o.Tensor.Storage] >= 0 || o.Node != i) {
			continue
		}
		if err := r.d.Sync(); err != nil {
			return err
		}
		start := time.Now() //nolint:forbidigo // steps are measured without this
		a, err := r.download(&o.Tensor)
		if err != nil {
			return err
		}
		r.aside += time.Since(start)
		r.res.Outputs[k] = a
	}
	return nil
}

// gradients passes the gradients of a step to Options.Gradient.
func (r *runner) gradients(step int) error {
	a := r.p.Nodes[r.update].Attrs
	if r.o.Gradient == nil || a == nil || a.Rule == nil {
		return nil
	}
	for i := range a.Rule.Params {
		q := &a.Rule.Params[i]
		g, err := r.download(&q.Grad)
		if err != nil {
			return err
		}
		r.o.Gradient(step, q.Name, g)
	}
	return nil
}

// download reads a tensor.
func (r *runner) download(t *program.View) (*Array, error) {
	if err := r.d.Sync(); err != nil {
		return nil, err
	}
	last := int64(1)
	for i, n := range t.Shape {
		if n == 0 {
			return &Array{Shape: t.Shape, DType: t.DType}, nil
		}
		last += (n - 1) * t.Strides[i]
	}
	raw := make([]byte, t.DType.Bytes(last))
	if err := r.d.Download(raw, r.l.Offset[t.Storage]+t.DType.Bytes(t.Offset)); err != nil {
		return nil, err
	}
	return decode(raw, t)
}
