package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	src, err := openSMI(Target{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := src.Sample()
	if err != nil || src.Device() != "NVIDIA H200" || s.Used != 1024<<20 || s.Total != 143771<<20 {
		t.Errorf("%s: %+v, %v", src.Device(), s, err)
	}
	src, err = openSMI(Target{PID: 78})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := src.Sample(); err != nil || s.Used != 640<<20 {
		t.Errorf("process: %+v, %v", s, err)
	}
	if _, err := openSMI(Target{PID: 99}); !errors.Is(err, ErrGone) {
		t.Errorf("a process that is not there: %v", err)
	}
	if _, err := openSMI(Target{GPU: 4}); err == nil || !strings.Contains(err.Error(), "No devices were found") {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestSMIWithoutProcesses(t *testing.T) {
	fakeSMI(t, `case "$*" in *query-gpu*) echo "card, 1, 2" ;; *) echo "78, [N/A]" ;; esac`)
	if _, err := openSMI(Target{PID: 78}); err == nil || !strings.Contains(err.Error(), "--gpu") {
		t.Errorf("%v", err)
	}
}

func TestNoSMI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := openSMI(Target{}); err == nil || !strings.Contains(err.Error(), "driver") {
		t.Errorf("%v", err)
	}
}
