package lift

import "testing"

// A half-precision capture of a model with a Fourier transform has complex numbers of 32 bits.
func TestCapturedComplex(t *testing.T) {
	for name, bits := range map[string]int64{"torch.complex32": 32, "torch.complex64": 64, "torch.complex128": 128} {
		if d, err := capturedDType(name); err != nil || d.Bits() != bits || d.IsFloat() {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}
