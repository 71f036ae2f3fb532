//go:build cuda

package monitor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeNVML compiles a library with NVML's functions and makes Open find it.
func fakeNVML(t *testing.T, flags ...string) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to compile the library with")
	}
	lib := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command(gcc, append(flags, "-shared", "-fPIC", "-o", lib, filepath.Join("testdata", "nvml.c"))...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("MEMPLAN_NVML", lib)
}

// The library has one card of 16 GiB; each reading of the device adds 1 MiB; of
// the processes, 100 on, the last has 3 MiB and one hides its memory.
func TestNVML(t *testing.T) {
	fakeNVML(t)
	src, err := Open(Target{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := src.Sample()
	if err != nil {
		t.Fatal(err)
	}
	b, err := src.Sample()
	if err != nil || b.Used != a.Used+1<<20 || b.Total != 16<<30 || src.Device() != "Fake card" {
		t.Errorf("%s: %+v after %+v, %v", src.Device(), b, a, err)
	}
	if err := src.Close(); err != nil {
		t.Error(err)
	}
	src, err = openNVML(Target{PID: 199}) // beyond what is asked for at first
	if err != nil {
		t.Fatal(err)
	}
	if s, err := src.Sample(); err != nil || s.Used != 3<<20 {
		t.Errorf("process: %+v, %v", s, err)
	}
	if _, err := openNVML(Target{PID: 7}); !errors.Is(err, ErrGone) {
		t.Errorf("a process that is not there: %v", err)
	}
	if _, err := openNVML(Target{PID: 100}); err == nil || !strings.Contains(err.Error(), "--gpu") {
		t.Errorf("a process whose memory is hidden: %v", err)
	}
	if _, err := openNVML(Target{GPU: 1}); err == nil || !strings.Contains(err.Error(), "NVML shows 1") {
		t.Errorf("a device that is not there: %v", err)
	}
}

// TestNVMLReserved: what the driver keeps for itself is not in use, where the
// driver tells them apart.
func TestNVMLReserved(t *testing.T) {
	for _, flags := range [][]string{nil, {"-DSECOND"}} {
		fakeNVML(t, flags...)
		src, err := openNVML(Target{})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := src.Sample(); err != nil || s.Used > 10<<20 || s.Used < 1<<20 || s.Total != 16<<30 {
			t.Errorf("%v: %+v, %v", flags, s, err)
		}
	}
}

// TestNVMLUnlisted: a process that runs and is not listed may be hidden.
func TestNVMLUnlisted(t *testing.T) {
	fakeNVML(t)
	if _, err := openNVML(Target{PID: os.Getpid()}); !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "none of the 100") || !strings.Contains(err.Error(), "--gpu") {
		t.Errorf("%v", err)
	}
}

func TestNVMLStatus(t *testing.T) {
	fakeNVML(t)
	t.Setenv("FAKE_NVML_STATUS", "9")
	if _, err := openNVML(Target{}); err == nil || !strings.Contains(err.Error(), "fake status 9") {
		t.Errorf("%v", err)
	}
}
