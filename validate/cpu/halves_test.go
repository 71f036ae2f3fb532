package cpu

import (
	"math"
	"testing"

	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/calls"
)

// TestHalves: every half number is itself again, the middle of two becomes the
// one with the even code, and what is nearer to one becomes that.
func TestHalves(t *testing.T) {
	for name, c := range map[string]struct {
		decode func(uint16) float32
		encode func(float32) uint16
		finite uint16 // codes of finite numbers that are not negative
	}{"float16": {fromF16, toF16, 0x7c00}, "bfloat16": {fromBF16, validate.BF16, 0x7f80}} {
		for code := range c.finite {
			v := c.decode(code)
			if c.encode(v) != code || c.encode(-v) != code|0x8000 {
				t.Fatalf("%s: %v is %04x and becomes %04x", name, v, code, c.encode(v))
			}
			if code+1 == c.finite {
				break
			}
			next := float64(c.decode(code + 1))
			mid := (float64(v) + next) / 2
			if f := float32(mid); float64(f) == mid { // else float32 cannot say it
				if got := c.encode(f); got != code+code&1 {
					t.Fatalf("%s: %v, between %04x and %04x, becomes %04x", name, mid, code, code+1, got)
				}
				if got := c.encode(math.Nextafter32(f, float32(next))); got != code+1 {
					t.Fatalf("%s: more than the middle of %04x and %04x becomes %04x", name, code, code+1, got)
				}
			}
		}
		if v := c.decode(c.encode(float32(math.NaN()))); v == v {
			t.Errorf("%s: NaN becomes %v", name, v)
		}
		if v := c.decode(c.encode(math.MaxFloat32)); !math.IsInf(float64(v), 1) {
			t.Errorf("%s: too large a number becomes %v", name, v)
		}
	}
}

// TestTable: the table of kernels is this device's.
func TestTable(t *testing.T) { calls.CheckTable(t, kernels) }
