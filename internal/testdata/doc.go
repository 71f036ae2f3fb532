package testdata

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Generated fails a test where a file does not hold what the test makes of it;
// with update, the value of the test's flag -update, it writes that. command is
// how the test is run.
func Generated(t testing.TB, path, want, command string, update bool) {
	t.Helper()
	if update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // a page for everybody to read
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is stale (%v): run %s -update", path, err, command)
	}
}

// WriteSection replaces one section of a generated page of docs/: what stands
// between the lines <!-- name --> and <!-- /name -->.
func WriteSection(t testing.TB, page, name, text string) {
	t.Helper()
	path := filepath.Join(root(), "docs", page)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	open, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->\n"
	before, rest, ok := strings.Cut(string(old), open)
	if !ok {
		t.Fatalf("%s has no section %q", path, name)
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s: section %q does not end", path, name)
	}
	if err := os.WriteFile(path, []byte(before+open+text+end+after), 0o644); err != nil { //nolint:gosec // a page for everybody to read
		t.Fatal(err)
	}
}
