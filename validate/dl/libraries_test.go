package dl

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCandidates(t *testing.T) {
	venv := t.TempDir()
	lib := filepath.Join(venv, "lib/python3.12/site-packages/nvidia/cu13/lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"libcublas.so.13", "libcublas.so.12"} {
		if err := os.WriteFile(filepath.Join(lib, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"VIRTUAL_ENV": venv}
	got := find("cublas").candidates(func(k string) string { return env[k] })
	if !slices.Equal(got[:3], []string{"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"}) {
		t.Errorf("the loader's own search does not come first: %q", got)
	}
	newer, older := slices.Index(got, filepath.Join(lib, "libcublas.so.13")), slices.Index(got, filepath.Join(lib, "libcublas.so.12"))
	if newer < 3 || older < newer {
		t.Errorf("wheels: %q", got)
	}
	env["MEMPLAN_CUBLAS"] = lib
	if got := find("cublas").candidates(func(k string) string { return env[k] }); got[0] != filepath.Join(lib, "libcublas.so.13") || len(got) != 3 {
		t.Errorf("a folder by variable: %q", got)
	}
	env["MEMPLAN_CUBLAS"] = "/opt/libcublas.so"
	if got := find("cublas").candidates(func(k string) string { return env[k] }); !slices.Equal(got, []string{"/opt/libcublas.so"}) {
		t.Errorf("a file by variable: %q", got)
	}
}

func TestMissingLibrarySaysWhatToDo(t *testing.T) {
	msg := find("cudnn").missing("not found").Error()
	for _, want := range []string{"9, 8", "pip install", "MEMPLAN_CUDNN"} {
		if !strings.Contains(msg, want) {
			t.Errorf("%q lacks %q", msg, want)
		}
	}
}
