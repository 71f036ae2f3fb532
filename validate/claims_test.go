package validate

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// What a header claims and the file does not have takes no memory, and what
// would take more than is granted is refused before it is made.
func TestArrayClaims(t *testing.T) {
	made := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	n := made(func() {
		if _, err := ReadNPY(bytes.NewReader(npy("<f4", "(500000000,)", "False", []byte("few")))); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
			t.Errorf("2 GB claimed: %v", err)
		}
		if _, err := ReadNPY(bytes.NewReader(npy("<f8", "(2000000000,)", "False", nil))); err == nil || !strings.Contains(err.Error(), "more than --max-memory") {
			t.Errorf("16 GB claimed: %v", err)
		}
		if _, err := ReadNPY(bytes.NewReader(npy("<f4", "("+strings.Repeat("1,", 65)+")", "False", nil))); err == nil || !strings.Contains(err.Error(), "more than 64 dimensions") {
			t.Errorf("65 dimensions: %v", err)
		}
	})
	if n > 16<<20 {
		t.Errorf("claims took %d MiB", n>>20)
	}
	file := filepath.Join(t.TempDir(), "x.npy")
	if err := os.WriteFile(file, npy("<f4", "(1024,)", "False", make([]byte, 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err := ReadArray(file, 1<<20); err != nil || len(a.Values) != 1024 {
		t.Errorf("4 KB within 1 MB: %v", err)
	}
	if _, err := ReadArray(file, 8190); err == nil {
		t.Error("4 KB read, 4 KB of numbers within 8190 bytes")
	}
}
