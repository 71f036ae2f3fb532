package cudnn

import (
	"strings"
	"testing"
)

var stem = Conv{N: 32, C: 3, H: 224, W: 224, K: 64, R: 7, S: 7, StrideH: 2, StrideW: 2, PadH: 3, PadW: 3, DilH: 1, DilW: 1, Groups: 1}

func TestOutSize(t *testing.T) {
	up := Conv{N: 1, C: 8, H: 14, W: 10, K: 4, R: 2, S: 3, StrideH: 2, StrideW: 3, PadH: 0, PadW: 1, DilH: 1, DilW: 1, Groups: 1, Transposed: true, OutPadW: 1}
	for _, c := range []struct {
		conv Conv
		p, q int64
	}{{stem, 112, 112}, {up, 28, 29}} {
		if p, q := c.conv.OutSize(); p != c.p || q != c.q {
			t.Errorf("%+v: output %d x %d, want %d x %d", c.conv, p, q, c.p, c.q)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Conv)
		want string
	}{
		{"good", func(*Conv) {}, ""},
		{"no batch", func(c *Conv) { c.N = 0 }, "batch 0"},
		{"negative padding", func(c *Conv) { c.PadW = -1 }, "column padding -1"},
		{"groups", func(c *Conv) { c.Groups = 2 }, "2 groups do not divide 3"},
		{"kernel larger than input", func(c *Conv) { c.R = 500 }, "output of 0 x 112"},
		{"huge", func(c *Conv) { c.N, c.H, c.W = 1<<30, 1<<30, 1<<30 }, "2^60"},
		{"huge stride product", func(c *Conv) { c.StrideH = 1 << 40 }, "row stride 1099511627776 above"},
		{"type", func(c *Conv) { c.Type = 9 }, "unknown type 9"},
	} {
		conv := stem
		c.set(&conv)
		err := conv.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
		if e := Workspace(conv, Forward); err != nil && e != (Estimate{}) {
			t.Errorf("%s: estimate %+v of what fails Check", c.name, e)
		}
	}
}

func TestBoundNotBelowBytes(t *testing.T) {
	for p := Forward; p < numPasses; p++ {
		for ty := TF32; ty < numTypes; ty++ {
			c := stem
			c.Type = ty
			if e := Workspace(c, p); e.Bound < e.Bytes || e.Source == None {
				t.Errorf("%v %v: %+v", ty, p, e)
			}
		}
	}
}
