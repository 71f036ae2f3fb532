package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPreCommit has pre-commit (pip install pre-commit) install the hook of this
// repository as it stands, and run it: on models that hold their rules, and on some that do not.
func TestPreCommit(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program")
	}
	for _, tool := range []string{"pre-commit", "git", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed")
		}
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("not a clone")
	}
	modules, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	model, err := os.ReadFile(filepath.Join(root, "models", "mlp.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		peak, want string
		code       int
	}{{"4G", "1 rule holds", 0}, {"1K", "FAIL  mlp.onnx", 1}} {
		dir := t.TempDir()
		for name, data := range map[string]string{"mlp.onnx": string(model), ".memplan.yaml": "models:\n  - {path: mlp.onnx, batch: 64}\nrules: {max-peak: " + c.peak + "}\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, line := range [][]string{{"git", "init", "-q", "."}, {"git", "add", "."}, {"pre-commit", "try-repo", root, "memplan-check", "--verbose", "--color=never", "--files", ".memplan.yaml"}} {
			cmd := exec.Command(line[0], line[1:]...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOMODCACHE="+strings.TrimSpace(string(modules)), "PRE_COMMIT_HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if line[0] == "git" {
				if err != nil {
					t.Fatalf("%v: %v: %s", line, err, out)
				}
				continue
			}
			if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(string(out), c.want) || !strings.Contains(string(out), "memplan check...") {
				t.Errorf("at most %s: exit %d, want %d and %q:\n%s", c.peak, got, c.code, c.want, out)
			}
		}
	}
}
