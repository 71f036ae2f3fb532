package monitor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeSMI puts a script in front of PATH that answers as nvidia-smi does.
func fakeSMI(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

const twoProcesses = `
case "$*" in
*--id=0*--query-gpu*) echo "NVIDIA H200, 1024, 143771" ;;
*--id=0*--query-compute-apps*) echo "77, 100"; echo "78, 640" ;;
*) echo "No devices were found"; exit 6 ;;
esac
`

func TestSMI(t *testing.T) {
	fakeSMI(t, twoProcesses)
	src, err := openSMI(t.Context(), Target{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := src.Sample()
	if err != nil || src.Device() != "NVIDIA H200" || s.Used != 1024<<20 || s.Total != 143771<<20 {
		t.Errorf("%s: %+v, %v", src.Device(), s, err)
	}
	src, err = openSMI(t.Context(), Target{PID: 78})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := src.Sample(); err != nil || s.Used != 640<<20 {
		t.Errorf("process: %+v, %v", s, err)
	}
	if _, err := openSMI(t.Context(), Target{PID: 99}); !errors.Is(err, ErrGone) {
		t.Errorf("a process that is not there: %v", err)
	}
	if _, err := openSMI(t.Context(), Target{GPU: 4}); err == nil || !strings.Contains(err.Error(), "No devices were found") {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestSMIWithoutProcesses(t *testing.T) {
	fakeSMI(t, `case "$*" in *query-gpu*) echo "card, 1, 2" ;; *) echo "78, [N/A]" ;; esac`)
	if _, err := openSMI(t.Context(), Target{PID: 78}); err == nil || !strings.Contains(err.Error(), "--gpu") {
		t.Errorf("%v", err)
	}
}

// TestSMIOdd: what no memory can be is no reading, and a name may have a comma.
func TestSMIOdd(t *testing.T) {
	for line, want := range map[string]string{
		"card, of two words, 1, 2":     "",
		"card, -5, 7":                  `says "-5"`,
		"card, 9223372036854775807,":   "lines about GPU 0",
		"card, 1, 9223372036854775807": `says "9223372036854775807"`,
		"card, [N/A], [N/A]":           `says "[N/A]"`,
		"":                             "0 lines about GPU 0",
		"card":                         "1 lines about GPU 0",
	} {
		fakeSMI(t, `echo "`+line+`"`)
		src, err := openSMI(t.Context(), Target{})
		switch {
		case want == "" && (err != nil || src.Device() != "card, of two words"):
			t.Errorf("%q: %v", line, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
}

// TestSMISlow: a program that hangs, with one that it started, ends with the watch.
func TestSMISlow(t *testing.T) {
	fakeSMI(t, `sleep 60; echo "card, 1, 2"`)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := openSMI(ctx, Target{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}

// TestSMIInterrupted: a terminal's interrupt that reaches the program first is
// the watch's end, not the program's failure.
func TestSMIInterrupted(t *testing.T) {
	fakeSMI(t, `kill -INT $$; sleep 60`)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := openSMI(ctx, Target{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestNoSMI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := openSMI(t.Context(), Target{}); err == nil || !strings.Contains(err.Error(), "driver") {
		t.Errorf("%v", err)
	}
}
