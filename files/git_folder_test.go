package files

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// A committed folder is copied without what leads out of it: symbolic links, and files of other endings.
func TestCommittedFolder(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"m/a.onnx": "a", "m/in/B.ONNX": "b", "m/c.txt": "c", "d.onnx": "d"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../d.onnx", "m/link.onnx"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main", "."}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-q", "-m", "x"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	got, remove, err := CommittedFolder(t.Context(), "main:m", ".onnx")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	err = filepath.WalkDir(got, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, err := filepath.Rel(got, path)
			names = append(names, filepath.ToSlash(rel))
			return err
		}
		return err
	})
	if want := []string{"a.onnx", "in/B.ONNX"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("copied %q (%v), want %q", names, err, want)
	}
	if remove(); exists(got) {
		t.Error("the copy was left behind")
	}
	for _, spec := range []string{"m", "main:none", "--help:m", ":m"} {
		if _, _, err := CommittedFolder(t.Context(), spec, ".onnx"); err == nil {
			t.Errorf("%q: no error", spec)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
