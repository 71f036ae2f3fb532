//go:build cuda

package cuda

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// emulatorEnv names the folder of the emulated card where tests shall run on
// that one; see emulator/build.sh.
const emulatorEnv = "MEMPLAN_EMULATOR"

// needsDNN skips what runs by cuDNN on the emulated card, which has none.
func needsDNN(t *testing.T, d *Device) {
	t.Helper()
	if os.Getenv(emulatorEnv) != "" && d.dnn == nil {
		t.Skip("the emulated card has no cuDNN")
	}
}

// TestEmulator: the card asked for is the one that runs, and it has every kernel
// but those on tensor cores.
func TestEmulator(t *testing.T) {
	dir := os.Getenv(emulatorEnv)
	if dir == "" {
		t.Skipf("%s names no emulated card", emulatorEnv)
	}
	d, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if d.info.Name != "emulated" || d.blas.version != 130000 {
		t.Fatalf("the card is %q with %v: set LD_LIBRARY_PATH and MEMPLAN_CUBLAS to %s, and build what is there with emulator/build.sh", d.info.Name, d.blas, dir)
	}
	files, err := filepath.Glob(filepath.Join("kernels", "*.ptx.gz"))
	if err != nil {
		t.Fatal(err)
	}
	entry := regexp.MustCompile(`\.entry (\w+)\(`)
	kernels := 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".ptx.gz")
		if strings.HasSuffix(name, "_sm80") {
			continue
		}
		text, err := unpack(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range entry.FindAllStringSubmatch(text, -1) {
			kernels++
			if _, err := d.function(name, m[1]); err != nil {
				t.Error(err)
			}
		}
	}
	if kernels < 200 { // there are 225
		t.Errorf("%d kernels in %d files", kernels, len(files))
	}
}
