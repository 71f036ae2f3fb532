package testdata

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
