package cpu_test

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

// TestArena: what lies outside the arena is an error, not a crash.
func TestArena(t *testing.T) {
	d := cpu.New()
	if err := d.Reserve(1 << 50); err == nil || !strings.Contains(err.Error(), "smaller batch") {
		t.Errorf("more than there is: %v", err)
	}
	if err := d.Reserve(1024); err != nil {
		t.Fatal(err)
	}
	if err := d.Reserve(1024); err == nil {
		t.Error("a second arena")
	}
	for name, err := range map[string]error{
		"upload": d.Upload(1020, make([]byte, 8)), "download": d.Download(make([]byte, 8), -1), "fill": d.Fill(0, 1025, 0),
	} {
		if err == nil || !strings.Contains(err.Error(), "outside the arena") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := kernelCase{Case: cases.Case{Kernel: "neg"}}
	far := validate.ArenaView{At: 1000, DType: 1, Shape: []int64{16}, Strides: []int64{1}}
	if err := d.Run(c.call(far)); err == nil || !strings.Contains(err.Error(), "outside the arena") {
		t.Errorf("a tensor that reaches out: %v", err)
	}
}
