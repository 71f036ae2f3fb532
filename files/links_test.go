package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/files"
)

// A result is written through a link to a file of the same folder, and through
// no other: the target keeps what it has.
func TestWriteThroughLinks(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "own"))
	write(filepath.Join(outside, "theirs"))
	for _, c := range []struct {
		name, target string
		want         string // in the error, "" where it is written
	}{
		{"relative", "own", ""},
		{"absolute", filepath.Join(dir, "own"), ""},
		{"out", filepath.Join(outside, "theirs"), "leads out of its folder"},
		{"chain", "out", "leads out of its folder"},
		{"dangling", filepath.Join(outside, "none"), "does not exist"},
	} {
		link := filepath.Join(dir, c.name)
		if err := os.Symlink(c.target, link); err != nil {
			t.Fatal(err)
		}
		err := files.Write(link, []byte("new "+c.name))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if data, _ := os.ReadFile(filepath.Join(dir, "own")); c.want == "" && string(data) != "new "+c.name {
			t.Errorf("%s: the target has %q", c.name, data)
		}
		if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s: the link is gone", c.name)
		}
		if f, err := files.Create(link); c.name != "dangling" && (err == nil) != (c.want == "") {
			t.Errorf("%s: Create: %v", c.name, err)
		} else if err == nil {
			f.Close()
		}
		_ = os.Remove(filepath.Join(outside, "none"))
	}
	if data, err := os.ReadFile(filepath.Join(outside, "theirs")); err != nil || string(data) != "old" {
		t.Errorf("a file outside has %q, %v", data, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("files outside: %v", entries)
	}
}

func TestFolderThroughLinks(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	for link, target := range map[string]string{"out": outside, "own": "real", "dangling": "none"} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ path, want string }{{"real", ""}, {"own", ""}, {"new/below", ""}, {"out", "leads out of its folder"}, {"dangling", "dangling"}} {
		if err := files.Folder(c.path); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
}
