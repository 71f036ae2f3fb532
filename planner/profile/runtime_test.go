package profile

import (
	"strings"
	"testing"
)

// A file's producer chooses the release; one that the table lacks is said.
func TestRuntimeOf(t *testing.T) {
	for _, tt := range []struct{ producer, want, assumed string }{
		{"pytorch 2.11.0+cu130", "torch-2.11", ""},
		{"pytorch 2.6.0", "torch-2.6", ""},
		{"pytorch 2.15.0+cu132", "torch-2.15", ""},
		{"pytorch 2.16.1", "torch-2.15", "exported by PyTorch 2.16, which is newer than torch-2.15"},
		{"pytorch 3.0.0", "torch-2.15", "exported by PyTorch 3.0, which is newer"},
		{"pytorch 1.13.1", "torch-2.6", "exported by PyTorch 1.13, which is older than torch-2.6"},
		{"pytorch 2.5.1", "torch-2.6", "older"},
		{"pytorch", "torch-2.15", ""},
		{"pytorch nightly", "torch-2.15", ""},
		{"tf2onnx 1.16.1", "torch-2.15", ""},
		{"", "torch-2.15", ""},
	} {
		r, assumed := RuntimeOf(tt.producer)
		if r.Name != tt.want || !strings.Contains(assumed, tt.assumed) || (assumed == "") != (tt.assumed == "") {
			t.Errorf("%q: %s, %q", tt.producer, r.Name, assumed)
		}
	}
}

// Cards that memplan cannot answer for are refused by name, not misspelt.
func TestUnsupportedDevices(t *testing.T) {
	for _, name := range []string{"mi300x", "MI250", "gaudi2", "tpu-v5e"} {
		if _, err := FindDevice(name); err == nil || !strings.HasPrefix(err.Error(), "unsupported gpu") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
