package testdata

import "testing"

// Sequential marks a test of code that runs nothing side by side: it is left
// out of runs with -short, which is how the race detector runs the tests.
func Sequential(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing here runs side by side")
	}
}
