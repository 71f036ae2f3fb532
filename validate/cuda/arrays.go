//go:build cuda

package cuda

import (
	"fmt"
	"slices"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// Constant operands (validate.IsArray) are copied to the start of a call's
// workspace while it runs: kernels see tensors.

// An arrayID identifies a constant: programs share their numbers.
type arrayID struct {
	values *float64
	n      int
	dtype  graph.DType
}

// constants returns a node's constant operands as tensors without memory.
func constants(n *program.Node) []program.View {
	var out []program.View
	for i := range n.Args() {
		if a := n.Arg(i); a.In == program.Array {
			out = append(out, program.View{Storage: program.None, DType: a.Array.DType, Shape: a.Array.Shape, Strides: a.Array.Strides})
		}
	}
	return out
}

// arrayBytes returns the bytes of a call's constants in its workspace, a
// multiple of layout.Align.
func arrayBytes(c *validate.Call) int64 {
	bytes := int64(0)
	for i := range c.Args {
		if a := &c.Args[i]; a.Kind == validate.IsArray {
			bytes += padded(a.DType.Bytes(int64(len(a.Values))))
		}
	}
	return bytes
}

// withArrays returns a call with its constants as tensors, and with the rest of
// its workspace.
func withArrays(c *validate.Call) *validate.Call {
	if !slices.ContainsFunc(c.Args, func(a validate.Operand) bool { return a.Kind == validate.IsArray }) {
		return c
	}
	out := *c
	out.Args = slices.Clone(c.Args)
	for i := range c.Args {
		a := &c.Args[i]
		if a.Kind != validate.IsArray {
			continue
		}
		out.Args[i] = onDevice(&validate.ArenaView{At: out.Work.At, DType: a.DType, Shape: a.Shape, Strides: a.Strides})
		bytes := padded(a.DType.Bytes(int64(len(a.Values))))
		out.Work.At += bytes
		out.Work.Bytes -= bytes
	}
	return &out
}

// bring copies a call's constants to the device, after the preceding calls, and
// returns the call in the form for its kernel.
func (d *Device) bring(c *validate.Call) (*validate.Call, error) {
	out := withArrays(c)
	if out == c {
		return c, nil
	}
	if out.Work.Bytes < 0 {
		return nil, fmt.Errorf("the constant operands take %d bytes of work, and the plan has %d for the call: give it what Device.Needs asks for", arrayBytes(c), c.Work.Bytes)
	}
	for i := range c.Args {
		if c.Args[i].Kind != validate.IsArray {
			continue
		}
		data, err := d.encoded(&c.Args[i])
		if err != nil {
			return nil, fmt.Errorf("operand %d: %w", i, err)
		}
		if len(data) == 0 {
			continue
		}
		if err := cu.MemcpyHtoDAsync(d.at(out.Args[i].Tensor.At), unsafe.Pointer(&data[0]), int64(len(data)), d.stream); err != nil {
			return nil, explain("copying a constant to the device", err)
		}
	}
	return out, nil
}

// encoded returns a constant in the device's format. It stays in place until
// the device is closed: the copy may begin after the call has returned.
func (d *Device) encoded(a *validate.Operand) ([]byte, error) {
	id := arrayID{unsafe.SliceData(a.Values), len(a.Values), a.DType}
	if data, ok := d.arrays[id]; ok {
		return data, nil
	}
	data, err := validate.Encode(a.DType, a.Values)
	if err != nil {
		return nil, err
	}
	if len(data) > 0 {
		d.pinned.Pin(&data[0])
	}
	d.arrays[id] = data
	return data, nil
}
