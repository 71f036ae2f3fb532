// Package testdata is what tests of several packages need: above all the shared
// test data that is not part of the repository, in the directory shared/data
// beside its root.
package testdata

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Shared returns the absolute path of a file or directory under shared/data.
// Where it is absent the test is skipped, or fails when the environment says
// CI=true.
func Shared(t testing.TB, elem ...string) string {
	t.Helper()
	path := filepath.Join(append([]string{root(), "..", "shared", "data"}, elem...)...)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("shared test data is absent: %v", err)
		}
		t.Skipf("shared test data is absent: %v", err)
	}
	return path
}

// root returns the repository's root, two directories above this file.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
