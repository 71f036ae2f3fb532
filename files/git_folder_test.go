package files

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// What cannot be copied of a plan in git is an error, and nothing is left of it.
func TestCommittedPlan(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir, temp := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	t.Setenv("TMPDIR", temp)
	for name, text := range map[string]string{"plan.json": "here.onnx", "away.json": "../here.onnx", "absent.json": "none.onnx", "own.json": "own.json", "here.onnx": "model"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main", "."}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-q", "-m", "x"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	for _, c := range []struct{ spec, want string }{
		{"main:plan.json", ""},
		{"main:away.json", "leads out of its folder"},
		{"main:absent.json", "its model"},
		{"main:own.json", "the document itself"},
		{"main:nowhere.json", "git:main:nowhere.json"},
	} {
		file, remove, err := CommittedPlan(t.Context(), c.spec, func(data []byte) (string, error) { return string(data), nil })
		switch {
		case (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %v, want %q", c.spec, err, c.want)
		case err == nil:
			if data, err := os.ReadFile(filepath.Join(filepath.Dir(file), "here.onnx")); string(data) != "model" {
				t.Errorf("%s: its model is %q (%v)", c.spec, data, err)
			}
			remove()
		}
		if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v (%v)", c.spec, left, err)
		}
	}
}
