package profile

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/files"
)

// calibrated was written by memplan calibrate on an H200 with PyTorch 2.11 on
// 2026-11-21.
const calibrated = "testdata/calibration-h200.json"

// A machine that the tables know measures what they say of it.
func TestCalibration(t *testing.T) {
	c, err := ReadCalibration(files.Door{}, calibrated)
	if err != nil {
		t.Fatal(err)
	}
	r, known := c.Runtime()
	d := c.GPU()
	row, _ := FindRuntime("torch-2.11")
	card, _ := FindDevice("h200")
	if !known || r.Allocator != row.Allocator || r.CuBLASBytes(d.Compute) != row.CuBLASBytes(card.Compute) || r.Lt != row.Lt || r.LtBytes != row.LtBytes || r.CuDNN != row.CuDNN ||
		r.ConvTF32 != row.ConvTF32 || r.MatmulTF32 != row.MatmulTF32 || !slices.Equal(r.AttentionOrder(d.Compute), row.AttentionOrder(card.Compute)) {
		t.Errorf("measured %+v, the table says %+v", r, row)
	}
	if d.Compute != card.Compute || d.SMs != card.SMs || d.Memory != card.Memory || d.L2 != card.L2 || d.BF16 != card.BF16 {
		t.Errorf("measured %+v, the table says %+v", d, card)
	}
	// A card reaches 60 to 100 % of its peaks, and other contexts differ by the kernels loaded.
	for _, x := range [][2]float64{{d.Bandwidth, card.Bandwidth}, {d.FP32, card.FP32}, {d.TF32, card.TF32}, {d.Half, card.Half}} {
		if x[0] < 0.6*x[1] || x[0] > x[1] {
			t.Errorf("measured a rate of %g of %g", x[0], x[1])
		}
	}
	if f := float64(d.Context) / float64(card.Context); f < 0.9 || f > 1.1 {
		t.Errorf("measured a context of %d, the table says %d", d.Context, card.Context)
	}
}

func TestCalibrationErrors(t *testing.T) {
	good, err := os.ReadFile(calibrated)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ old, new, want string }{
		{`{`, `[`, "no calibration: "},
		{`"schemaVersion": 1`, `"schemaVersion": 2`, "no calibration of version 1"},
		{`"sms": 132`, `"sms": 0`, `device "NVIDIA H200" is not described`},
		{`"contextBytes": 8`, `"contextBytes": -8`, "a CUDA context of -8"},
		{`"bandwidth": 4`, `"bandwidth": -4`, "rates that are not positive"},
		{`"flash"`, `"flush"`, `unknown attention kernel "flush"`},
		{`33554432`, `-33554432`, "a workspace of -33554432 bytes"},
		{`"name"`, `"nom"`, `the device "" is not described`},
	} {
		data := strings.Replace(string(good), x.old, x.new, 1)
		if _, err := ParseCalibration([]byte(data)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s for %s: %v, want %q", x.new, x.old, err, x.want)
		}
	}
	if _, err := ReadCalibration(files.Door{}, "testdata/none.json"); err == nil {
		t.Error("a missing file is no error")
	}
}

// The release decides what is not measured.
func TestCalibrationRelease(t *testing.T) {
	for _, x := range []struct {
		torch string
		known bool
	}{{"2.9.1+cu128", true}, {"2.6.0", true}, {"2.60.0", false}, {"3.0.0a0+git1", false}} {
		c := &Calibration{Torch: x.torch}
		if r, known := c.Runtime(); known != x.known || r.Name != "torch-"+x.torch {
			t.Errorf("%s: %s, known %v", x.torch, r.Name, known)
		}
	}
	for n, want := range map[int]string{91900: "9.19.0", 8907: "8.9.7", 90100: "9.1.0"} {
		if got := cudnnVersion(n); got != want {
			t.Errorf("cuDNN %d is %s, want %s", n, got, want)
		}
	}
}

func FuzzParseCalibration(f *testing.F) {
	good, err := os.ReadFile(calibrated)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCalibration(data)
		if err != nil {
			return
		}
		r, _ := c.Runtime()
		d := c.GPU()
		if d.Memory <= 0 || d.Context <= 0 || r.CuBLASBytes(d.Compute) < 0 || r.LtBytes < 0 || len(r.AttentionOrder(d.Compute)) == 0 {
			t.Errorf("%+v %+v", d, r)
		}
	})
}
