//go:build linux

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if launched() {
		return
	}
	os.Exit(m.Run())
}

// tempFolder is a folder that goes with the test; t.TempDir lets nobody pass.
func tempFolder(t *testing.T) string {
	t.Helper()
	dir, err := newFolder()
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// lab is a world with a launcher of a shell script in place of memplan.
func lab(t *testing.T, script string) (*world, *launcher) {
	t.Helper()
	dir := tempFolder(t)
	w, err := newWorldIn(dir, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	binary := filepath.Join(dir, "fake")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := newLauncher(binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return w, l
}

// observe runs the script once and returns the checks that fired, with what
// they say.
func observe(t *testing.T, script string, args ...string) map[string]string {
	t.Helper()
	w, l := lab(t, script)
	g := generator{"fake", 1, func(b *builder) { b.run(args...) }}
	r, err := runOnce(l, w, nil, g, 1)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range r.Findings {
		out[f.Check] = f.What
	}
	return out
}

// TestChecksFire has a fake memplan break each promise: the check of that
// promise fires, and no other.
func TestChecksFire(t *testing.T) {
	tests := []struct {
		name, script string
		want         string
		args         []string
	}{
		{"nothing wrong", `echo fits`, "", nil},
		{"a refusal", `echo "memplan: x.onnx: no model" >&2; exit 2`, "", nil},
		{"a refusal after a warning", `echo "warning: odd" >&2; echo "memplan: no" >&2; exit 2`, "", nil},
		{"its own files", `echo '{}' > out.json; rm -f out.json; echo x > new`, "", nil},
		{"writes a new file outside", `echo x > ../../outside/new`, "written", nil},
		{"overwrites a file outside", `echo x > ../../outside/sub/victim.json`, "written", nil},
		{"writes and removes", `echo x > ../../tmp/new; rm ../../tmp/new`, "written", nil},
		{"writes to HOME", `echo x > "$HOME/.cache"`, "written", nil},
		{"changes a mode", `chmod 600 ../secret.json`, "written", nil},
		{"removes a file outside", `rm ../../outside/secret.csv`, "written", nil},
		{"links outside", `ln -s x ../other`, "written", nil},
		{"reads outside", `read x < ../../outside/secret.bin`, "read", nil},
		{"reads its parent", `read x < ../secret.json`, "read", nil},
		{"prints its environment", `echo "$SECRET"`, "leak", nil},
		{"prints it in hex", `printf "$SECRET" | od -An -tx1 | tr -d ' \n'; echo`, "leak", nil},
		{"prints it in base64", `printf "x$SECRET" | base64 -w0; echo`, "leak", nil},
		{"prints a canary's number", `echo 'shape [417264950474,2]'`, "leak", nil},
		{"writes a canary", `echo "$SECRET" > out.json`, "leak", nil},
		{"an escape", `printf 'a\033[2Jb\n'`, "control", nil},
		{"an escape in stderr", `printf 'memplan: \033]0;x\007\n' >&2; exit 2`, "control", nil},
		{"a C1 control in a file", `printf '\302\233x' > out.json`, "control", nil},
		{"an override", `printf '\342\200\256x\n'`, "control", nil},
		{"a broken rune", `printf 'a\377b\n'`, "control", nil},
		{"a carriage return", `printf 'a\rb\n'`, "control", nil},
		{"an image in Markdown", `echo 'the ![x](http://hostile.example/x.png) node'`, "markup", []string{"--format", "markdown", "x"}},
		{"a mention in a table", "echo '| `a|b @hostile.example` | 1 |'", "markup", []string{"--format", "markdown", "x"}},
		{"a mention in code", "echo '| `a\\|b @hostile.example` | `` ` @hostile.example `` |'", "", []string{"--format", "markdown", "x"}},
		{"a mention in text", `echo '@hostile.example'`, "", []string{"--format", "text", "x"}},
		{"a script in a page", `echo '<p><script>hostile.example</script>'`, "markup", []string{"--format", "html", "x"}},
		{"a script in a drawing", `echo '<svg><img src=x onerror=hostile.example>' > step.svg`, "markup", nil},
		{"two lines", `echo "memplan: a" >&2; echo "b" >&2; exit 2`, "line", nil},
		{"no line", `exit 2`, "line", nil},
		{"a line of another", `echo "sh: no" >&2; exit 2`, "line", nil},
		{"a result beside exit 2", `echo x; echo "memplan: a" >&2; exit 2`, "line", nil},
		{"another exit", `exit 3`, "exit", nil},
		{"a signal", `kill -SEGV $$`, "exit", nil},
		{"a panic", `echo "memplan: runtime error: nil map" >&2; exit 2`, "internals", nil},
		{"a Go type", `echo "memplan: json: cannot unmarshal x into Go struct field Plan.a of type int" >&2; exit 2`, "internals", nil},
		{"a format verb", `echo "x: %!d(string=a)"`, "internals", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := observe(t, tt.script, tt.args...)
			delete(got, "time") // of a busy machine
			keys := strings.Join(slices.Sorted(maps.Keys(got)), " ")
			if keys != tt.want {
				t.Errorf("found %q, want %q: %v", keys, tt.want, got)
			}
		})
	}
}

// TestLimitsFire shows the checks of time and memory: a process that waits,
// one that computes, one that does not end, one that is large.
func TestLimitsFire(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	if got := judgeLimits(&outcome{Wall: 3 * time.Second}); len(got) != 1 || got[0].Check != "time" {
		t.Errorf("three seconds of waiting: %v", got)
	}
	if got := judgeLimits(&outcome{Wall: 3 * time.Second, CPU: time.Second, Stall: 2 * time.Second}); len(got) != 0 {
		t.Errorf("two of three seconds without a processor: %v", got)
	}
	if got := judgeLimits(&outcome{Wall: 3 * time.Second, CPU: 2100 * time.Millisecond, Stall: 2 * time.Second}); len(got) != 1 {
		t.Errorf("more than two seconds of a processor: %v", got)
	}
	if got := observe(t, `x=aaaaaaaa; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26; do x=$x$x; done`); got["memory"] == "" {
		t.Errorf("half a gigabyte of a shell's variable: %v", got)
	}
	var c capped
	for range 3 {
		if n, err := c.Write(make([]byte, mostOutput/2)); n != mostOutput/2 || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := judgeLimits(&outcome{Cut: c.cut}); len(got) != 1 || got[0].Check != "output" || c.Len() != mostOutput {
		t.Errorf("much output: %v, %d bytes kept", got, c.Len())
	}
	defer func(d time.Duration) { killAfter = d }(killAfter)
	killAfter = 2500 * time.Millisecond
	start := time.Now()
	if got := observe(t, `sleep 60`); !strings.HasPrefix(got["time"], "no end") || time.Since(start) > 30*time.Second {
		t.Errorf("sleep: %v after %v", got, time.Since(start))
	}
}

// TestAllowedReads shows that a read is seen, and not held against a case
// whose command line names the file.
func TestAllowedReads(t *testing.T) {
	w, l := lab(t, `cat ../../outside/secret.txt`)
	r, err := runOnce(l, w, nil, generator{"fake", 1, func(b *builder) { b.mayRead = true }}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if !r.read || len(r.Findings) > 0 {
		t.Errorf("seen %v, findings %v", r.read, r.Findings)
	}
}

// TestSurroundingsComeBack shows that one case's damage is not the next one's.
func TestSurroundingsComeBack(t *testing.T) {
	w, l := lab(t, `[ -n "$1" ] || rm -r ../../outside/sub`)
	for i, args := range [][]string{nil, {"leave"}} {
		r, err := runOnce(l, w, nil, generator{"fake", 1, func(b *builder) { b.args = args }}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if (len(r.Findings) > 0) != (i == 0) {
			t.Errorf("run %d: %v", i, r.Findings)
		}
	}
}

// TestSameSeedSameCase builds cases twice and compares folders and command
// lines.
func TestSameSeedSameCase(t *testing.T) {
	_, s, w := workshop(t)
	for seed := range uint64(150) {
		g := chosen(seed)
		var got [2]string
		for i := range got {
			b, err := newCase(w, s, g, seed)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = fmt.Sprint(b.args, b.mayRead, tree(t, b.dir))
		}
		if got[0] != got[1] {
			t.Errorf("%s:%d differs", g.name, seed)
		}
	}
}

// tree is what lies in a folder.
func tree(t *testing.T, dir string) string {
	var out strings.Builder
	files, err := contents(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%q %v", name, info.Mode())
		if info.Mode().IsRegular() && info.Size() < 1<<24 {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, " %x", data)
		}
	}
	return out.String()
}

// workshop is memplan with its samples and a world.
func workshop(t *testing.T) (binary string, s *samples, w *world) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds memplan")
	}
	dir := tempFolder(t)
	binary, s, err := prepare("", dir)
	if err != nil {
		t.Fatal(err)
	}
	if w, err = newWorldIn(dir, 0, 1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return binary, s, w
}

// TestProtoRoundTrip reads the sample models as trees and writes them again.
func TestProtoRoundTrip(t *testing.T) {
	for _, name := range smallModels {
		data, err := os.ReadFile(filepath.Join(repository(), "validate", "testdata", "golden", name))
		if err != nil {
			t.Fatal(err)
		}
		if got := encode(parse("Model", data)); !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes became %d", name, len(data), len(got))
		}
	}
}

// TestHostile runs memplan on the first cases; go run ./internal/hostile runs
// as many as one likes.
func TestHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("builds memplan and runs it 300 times")
	}
	var out bytes.Buffer
	failed, err := run(options{cases: 300, seed: 1, workers: 2}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if failed {
		t.Error(out.String())
	}
}
