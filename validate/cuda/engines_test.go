//go:build cuda

package cuda

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// engineCases are convolutions of ResNet, VGG, ResNeXt and ConvNeXt: batch 16,
// squares; channels, rows, result channels, window, stride, padding and groups.
var engineCases = [][7]int64{
	{64, 56, 64, 3, 1, 1, 1}, {3, 224, 64, 7, 2, 3, 1}, {3, 224, 64, 3, 1, 1, 1}, {64, 56, 256, 1, 1, 0, 1}, {256, 56, 64, 1, 1, 0, 1}, {512, 14, 512, 3, 1, 1, 1},
	{256, 28, 256, 3, 2, 1, 1}, {96, 56, 96, 7, 1, 3, 96}, {384, 14, 384, 7, 1, 3, 384}, {128, 56, 128, 3, 1, 1, 32}, {96, 56, 192, 2, 2, 0, 1}, {3, 224, 96, 4, 4, 0, 1},
}

// TestEngines: the engines that are picked ask for the workspace that PyTorch was
// measured to take, on the card and with the cuDNN that the table was measured
// with (graph/cudnn); all but those that PyTorch takes though they are not
// deterministic.
func TestEngines(t *testing.T) {
	predictor := cudnn.NewPredictor()
	same, all := 0, 0
	for _, full := range []bool{false, true} {
		d := open(t, Options{FP32: full})
		if d.dnn == nil || d.dnn.version/100 != 919 || !strings.Contains(d.info.Name, "H200") {
			t.Skipf("the table is that of cuDNN 9.19 on an H200, not of %v on %s", d.Libraries(), d.info.Name)
		}
		types := map[cudnn.Type]graph.DType{cudnn.TF32: graph.Float32, cudnn.Float16: graph.Float16, cudnn.BFloat16: graph.BFloat16}
		if full {
			types = map[cudnn.Type]graph.DType{cudnn.Float32: graph.Float32}
		}
		for _, g := range engineCases {
			for _, last := range []bool{false, true} {
				for arithmetic, dtype := range types {
					c := cudnn.Conv{N: 16, C: g[0], H: g[1], W: g[1], K: g[2], R: g[3], S: g[3], StrideH: g[4], StrideW: g[4], PadH: g[5], PadW: g[5], DilH: 1, DilW: 1, Groups: g[6],
						Type: arithmetic, ChannelsLast: last}
					for p := forwardPass; p <= filterPass; p++ {
						want := predictor.Workspace(c, [...]cudnn.Pass{forwardPass: cudnn.Forward, dataPass: cudnn.DataGrad, filterPass: cudnn.WeightGrad}[p])
						if want.Source != cudnn.Measured {
							continue
						}
						all++
						if got := engine(t, d, &c, p, dtype); got == want.Bytes {
							same++
						} else {
							t.Logf("%+v, %v pass: %d bytes, PyTorch %d", c, p, got, want.Bytes)
						}
					}
				}
			}
		}
	}
	if t.Logf("%d of %d workspaces are PyTorch's", same, all); all == 0 || same*10 < all*9 {
		t.Errorf("%d of %d workspaces are PyTorch's", same, all)
	}
}

// engine is the workspace of what is picked for a convolution, -1 for nothing.
func engine(t *testing.T, d *Device, c *cudnn.Conv, p pass, dtype graph.DType) int64 {
	if err := d.enter(); err != nil {
		t.Fatal(err)
	}
	defer d.leave()
	f := formatNCHW
	if c.ChannelsLast {
		f = formatNHWC
	}
	rows, columns := c.OutSize()
	tensor := func(shape ...int64) *validate.ArenaView {
		return &validate.ArenaView{DType: dtype, Shape: shape, Strides: f.strides(shape)}
	}
	q := &convQuery{&program.Conv{Stride: []int64{c.StrideH, c.StrideW}, Pad: []int64{c.PadH, c.PadW}, Dilation: []int64{1, 1}, OutPad: []int64{0, 0}, Groups: c.Groups}, p,
		tensor(c.N, c.C, c.H, c.W), tensor(c.K, c.C/c.Groups, c.R, c.S), tensor(c.N, c.K, rows, columns)}
	v, err := d.graphWay(q)
	if err != nil {
		t.Log(err)
		return -1
	}
	return v.graph.Bytes
}
