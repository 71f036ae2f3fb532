package graph

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"
)

// TestFloatBits compares every bit pattern of the small types with NumPy 2 and
// ml_dtypes: the digest is of the values as big-endian float64, NaNs alike:
//
//	a = np.arange(1 << bits, dtype=uint).view(type).astype(np.float64)
func TestFloatBits(t *testing.T) {
	for _, c := range []struct {
		typ    DType
		bits   int
		most   float64 // the largest finite number
		digest string
	}{
		{Float16, 16, 65504, "3fb8a0d0646f4465"},
		{BFloat16, 16, 3.3895313892515355e+38, "0e0de2c95cbaeea7"},
		{Float8E4M3, 8, 448, "52785f89a21c5d8a"},
		{Float8E4M3UZ, 8, 240, "61ec12596e1b6fc8"},
		{Float8E5M2, 8, 57344, "29aa2d63a7ddcfa6"},
		{Float8E5M2UZ, 8, 57344, "442f6b428af899cf"},
		{Float4E2M1, 4, 6, "282ce7c8ef9dc07e"},
		{Float8E8M0, 8, math.Ldexp(1, 127), "35b6a891bbb00d31"},
	} {
		h := sha256.New()
		most := math.Inf(-1)
		for b := range uint64(1) << c.bits {
			v := c.typ.Float(b)
			if v != v {
				v = math.Float64frombits(0x7ff8000000000000)
			}
			if v == v && !math.IsInf(v, 0) {
				most = max(most, v)
			}
			if err := binary.Write(h, binary.BigEndian, v); err != nil {
				t.Fatal(err)
			}
			if again := c.typ.Float(b | 0xffff<<c.bits); again != v && v == v {
				t.Fatalf("%s: %#x with bits above its width is %v, not %v", c.typ, b, again, v)
			}
		}
		if most != c.most {
			t.Errorf("%s: the largest number is %v, want %v", c.typ, most, c.most)
		}
		if got := hex.EncodeToString(h.Sum(nil))[:16]; got != c.digest {
			t.Errorf("%s: digest %s, want %s", c.typ, got, c.digest)
		}
	}
	for _, c := range []struct {
		typ  DType
		bits uint64
		want float64
	}{
		{Float32, 0xbf000000, -0.5}, {Float64, 0x3ff8000000000000, 1.5}, {Int32, 7, 0}, {Undefined, 7, 0}, {String, 7, 0},
		{Float8E4M3, 0x7e, 448}, {Float8E5M2, 0x7b, 57344}, {Float4E2M1, 0x7, 6}, {Float16, 0x0001, math.Ldexp(1, -24)},
	} {
		if got := c.typ.Float(c.bits); got != c.want {
			t.Errorf("%s %#x is %v, want %v", c.typ, c.bits, got, c.want)
		}
	}
}
