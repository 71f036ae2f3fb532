package cudnn

import "fmt"

// A Source is the basis of an estimate.
type Source uint8

// The sources, from the most to the least reliable.
const (
	None     Source = iota // the convolution fails Check
	Rule                   // no workspace: PyTorch or cuDNN runs another kernel
	Measured               // this very convolution was measured
	Formula                // between or beyond measured batches of this geometry
	Family                 // the kernel that a decision tree predicts for this geometry
)

var sourceNames = [...]string{"none", "rule", "measured", "formula", "family"}

// String returns the source's name.
func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return fmt.Sprintf("Source(%d)", uint8(s))
}

// An Estimate is a predicted workspace.
type Estimate struct {
	Bytes int64 // most likely request, before the allocator rounds it
	Bound int64 // too low for at most one convolution in a hundred; never below Bytes
	// Other is the largest workspace of a kernel that may run instead, at a batch
	// between or beyond measured ones; 0 if none may.
	Other  int64
	Source Source
}

// Workspace predicts the bytes that pass p of c requests.
func Workspace(c Conv, p Pass) Estimate { return NewPredictor().Workspace(c, p) }

// tensorBytes returns the bytes of input, weight and output in c's type.
func (c Conv) tensorBytes() (x, w, y int64) {
	p, q := c.OutSize()
	d, t, o := c.Depth.sizes(c.Transposed)
	size := types[c.Type].size
	return c.N * c.C * d * c.H * c.W * size, c.K * (c.C / c.Groups) * t * c.R * c.S * size, c.N * c.K * o * p * q * size
}
