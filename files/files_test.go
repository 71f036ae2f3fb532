//go:build unix

package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// secret is what no test may see through a door.
const secret = "what lies outside"

var small = &Kind{"a small document", 64}

// place makes a folder in with files, links and special files, and a folder out
// beside it, and returns in. Links are relative unless they say otherwise.
func place(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	in, out := filepath.Join(base, "in"), filepath.Join(base, "out")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(in, "sub"), 0o700), os.MkdirAll(filepath.Join(in, "folder"), 0o700), os.Mkdir(out, 0o700),
		os.WriteFile(filepath.Join(out, "secret"), []byte(secret), 0o600),
		os.WriteFile(filepath.Join(in, "here"), []byte("here"), 0o600),
		os.WriteFile(filepath.Join(in, "sub", "below"), []byte("below"), 0o600),
		os.WriteFile(filepath.Join(in, `C:\x`), []byte("odd"), 0o600),
		os.WriteFile(filepath.Join(in, "full"), make([]byte, small.Limit), 0o600),
		os.WriteFile(filepath.Join(in, "large"), make([]byte, small.Limit+1), 0o600),
		os.Symlink("here", filepath.Join(in, "link")),
		os.Symlink("../here", filepath.Join(in, "sub", "up")),
		os.Symlink("../out/secret", filepath.Join(in, "leak")),
		os.Symlink(filepath.Join(out, "secret"), filepath.Join(in, "absolute-leak")),
		os.Symlink("chain2", filepath.Join(in, "chain1")), os.Symlink("sub/chain3", filepath.Join(in, "chain2")),
		os.Symlink("../leak", filepath.Join(in, "sub", "chain3")),
		os.Symlink("sub", filepath.Join(in, "subfolder")), os.Symlink("../out", filepath.Join(in, "outfolder")),
		os.Symlink("loop", filepath.Join(in, "loop")), os.Symlink("nowhere", filepath.Join(in, "dangling")),
		os.Symlink("/dev/zero", filepath.Join(in, "zero")),
		syscall.Mkfifo(filepath.Join(in, "pipe"), 0o600), os.Symlink("pipe", filepath.Join(in, "pipelink")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return in
}

// within fails a test that takes longer than a pipe should be waited for.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: still waiting", what)
	}
}

// Every way out of a folder, and everything in it that is no document.
func TestBeside(t *testing.T) {
	in := place(t)
	socket := filepath.Join(in, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Logf("no socket here: %v", err) // its path may be too long
	} else {
		defer func() { _ = l.Close() }()
	}
	outside, irregular := "leads out of "+in, "is not a regular file"
	for _, tt := range []struct{ name, want, err string }{
		{"here", "here", ""}, {"./sub/below", "below", ""}, {"sub/../here", "here", ""}, {"link", "here", ""}, {"sub/up", "here", ""}, {"subfolder/below", "below", ""}, {`C:\x`, "odd", ""},
		{"full", strings.Repeat("\x00", int(small.Limit)), ""},
		{"../out/secret", "", outside}, {"..", "", outside}, {"sub/../../out/secret", "", outside}, {"sub/../../in/here", "here", ""},
		{filepath.Join(in, "here"), "", outside}, {filepath.Join(in, "..", "out", "secret"), "", outside}, {"/etc/passwd", "", outside}, {"/dev/stdin", "", outside},
		{"leak", "", outside}, {"absolute-leak", "", outside}, {"chain1", "", outside}, {"outfolder/secret", "", outside}, {"zero", "", outside},
		{"pipe", "", irregular}, {"pipelink", "", irregular}, {"sub", "", "is a directory, not a small document"}, {"subfolder", "", "is a directory"}, {"", "", "is a directory"}, {".", "", "is a directory"},
		{"large", "", "65 bytes are larger than a small document may be, 64"},
		{"missing", "", "no such file"}, {"missing/here", "", "no such file"}, {"dangling", "", "no such file"}, {"here/below", "", "not a directory"}, {"loop", "", "too many levels of symbolic links"},
		{"nul\x00", "", "invalid argument"}, {`..\out\secret`, "", "no such file"}, {strings.Repeat("x", 300), "", "file name too long"},
	} {
		within(t, tt.name, func() {
			got, err := Beside(filepath.Join(in, "doc"), false).Read(tt.name, small)
			if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: %q, %v, want %q, %s", tt.name, got, err, tt.want, tt.err)
			}
			if out := new(OutsideError); errors.As(err, &out) != strings.HasPrefix(tt.err, "leads out") {
				t.Errorf("%q: error %T", tt.name, err)
			}
		})
	}
	if l != nil {
		if _, err := Beside(filepath.Join(in, "doc"), false).Read("s", small); err == nil || !strings.Contains(err.Error(), irregular) {
			t.Errorf("a socket: %v", err)
		}
	}
}

// With --allow-outside, and on the command line, names lead anywhere, to regular
// files of the kind's size alone.
func TestOutside(t *testing.T) {
	in := place(t)
	t.Chdir(in)
	for _, d := range []Door{Beside("doc", true), OfPlan("doc", true), {}, {Outside: true}} {
		for _, name := range []string{"../out/secret", "leak", "absolute-leak", "chain1", "outfolder/secret", filepath.Join(in, "leak")} {
			if got, err := d.Read(name, small); err != nil || string(got) != secret {
				t.Errorf("%+v %s: %q, %v", d, name, got, err)
			}
		}
		for name, want := range map[string]string{"pipe": "is not a regular file", "zero": "is not a regular file", "/dev/zero": "is not a regular file", "sub": "is a directory", "large": "65 bytes", "missing": "no such file"} {
			within(t, name, func() {
				if got, err := d.Read(name, small); err == nil || !strings.HasPrefix(err.Error(), name+": ") || !strings.Contains(err.Error(), want) {
					t.Errorf("%+v %s: %q, %v, want %s", d, name, got, err, want)
				}
			})
		}
	}
}

// A plan's names are read from the working directory and from the plan's folder,
// and stay in the two.
func TestOfPlan(t *testing.T) {
	in := place(t)
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "mine"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(work)
	d := OfPlan(filepath.Join(in, "sub", "plan.json"), false)
	outside := "leads out of the working directory and " + filepath.Join(in, "sub")
	for _, tt := range []struct{ name, want, err string }{
		{"mine", "mine", ""}, {filepath.Join(work, "mine"), "mine", ""}, {"below", "below", ""}, {filepath.Join(in, "sub", "below"), "below", ""},
		{"../here", "", outside}, {"up", "", outside}, {filepath.Join(in, "here"), "", outside}, {"/dev/zero", "", outside}, {"chain3", "", outside},
		{"missing", "", "missing: no such file"},
	} {
		got, err := d.Read(tt.name, small)
		if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: %q, %v, want %q, %s", tt.name, got, err, tt.want, tt.err)
		}
	}
	t.Chdir(in) // where ../here, seen from the plan, lies in the working directory
	if got, err := OfPlan(filepath.Join("sub", "plan.json"), false).Read("../here", small); err != nil || string(got) != "here" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := OfPlan("plan.json", false).Read("leak", small); err == nil {
		t.Errorf("%q through a link", got)
	}
}

// What a file names lies in its own folder, within the one that it was found in.
func TestBesideFile(t *testing.T) {
	in := place(t)
	for _, tt := range []struct {
		d       Door
		name    string
		sibling string
		ok      bool
	}{
		{Beside(filepath.Join(in, "doc"), false), "sub/below", "below", true},
		{Beside(filepath.Join(in, "doc"), false), "sub/below", "up", false},
		{Beside(filepath.Join(in, "doc"), false), "subfolder/below", "below", true},
		{Beside(filepath.Join(in, "doc"), false), "sub/below", "../here", false},
		{Beside(filepath.Join(in, "doc"), true), "sub/below", "../here", true},
		{Door{}, filepath.Join(in, "sub", "below"), "../here", false},
		{Door{}, filepath.Join(in, "sub", "below"), "up", false},
		{Door{Outside: true}, filepath.Join(in, "sub", "below"), "up", true},
	} {
		f, err := tt.d.Open(tt.name, small)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if _, err := f.Beside().Read(tt.sibling, small); (err == nil) != tt.ok {
			t.Errorf("%+v %s beside %s: %v", tt.d, tt.sibling, tt.name, err)
		}
	}
}

// A name that means something else at every look never shows what lies outside,
// and is never waited for.
func TestSwapped(t *testing.T) {
	in := place(t)
	name, next := filepath.Join(in, "swapped"), filepath.Join(in, "next")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Remove(next)
			switch i % 4 {
			case 0:
				_ = os.WriteFile(next, []byte("here"), 0o600)
			case 1:
				_ = os.Symlink("../out/secret", next)
			case 2:
				_ = syscall.Mkfifo(next, 0o600)
			default:
				_ = os.Symlink("/dev/zero", next)
			}
			_ = os.Rename(next, name)
		}
	})
	seen := map[bool]int{}
	within(t, "a swapped name", func() {
		for range 20_000 {
			got, err := Beside(filepath.Join(in, "doc"), false).Read("swapped", small)
			seen[err == nil]++
			if err == nil && string(got) != "here" && len(got) > 0 { // empty: not yet written
				t.Errorf("read %q", got)
				return
			}
		}
	})
	close(stop)
	wg.Wait()
	if t.Logf("read and refused: %v", seen); seen[false] == 0 {
		t.Error("nothing was swapped")
	}
}

// ours takes what begins with "ours".
func ours(old []byte) error {
	if !bytes.HasPrefix(old, []byte("ours")) {
		return errors.New("not ours")
	}
	return nil
}

// A document's name is written to only in its folder, only over what memplan
// wrote, and nothing else changes.
func TestReplace(t *testing.T) {
	for _, tt := range []struct{ name, old, err string }{
		{"new", "", ""}, {"sub/new", "", ""}, {"subfolder/new", "", ""}, {"mine", "ours", ""}, {`C:\y`, "", ""},
		{"here", "", "not ours"}, {"link", "", "is a symbolic link"}, {"leak", "", "is a symbolic link"}, {"dangling", "", "is a symbolic link"}, {"zero", "", "is a symbolic link"},
		{"../out/new", "", "leads out of"}, {"../out/secret", "", "leads out of"}, {"outfolder/new", "", "leads out of"}, {"outfolder/secret", "", "leads out of"}, {"/tmp/memplan-new", "", "leads out of"},
		{"pipe", "", "is not a regular file"}, {"sub", "", "is a directory"}, {"..", "", "leads out of"}, {".", "", "is a directory"}, {"", "", "is a directory"},
		{"large", "", "larger than"}, {"missing/new", "", "no such file"}, {"nul\x00", "", "invalid argument"},
	} {
		in := place(t)
		if tt.old != "" {
			if err := os.WriteFile(filepath.Join(in, tt.name), []byte(tt.old), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		before := listing(t, filepath.Dir(in))
		within(t, tt.name, func() {
			path, err := Beside(filepath.Join(in, "doc"), false).Replace(tt.name, []byte("ours, new"), small, ours)
			after := listing(t, filepath.Dir(in))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || before != after {
					t.Errorf("%q: %v, want %s; before and after\n%s\n%s", tt.name, err, tt.err, before, after)
				}
				return
			}
			got, e := os.ReadFile(path)
			info, _ := os.Stat(path)
			if err != nil || e != nil || string(got) != "ours, new" || tt.old != "" && info.Mode().Perm() != 0o640 {
				t.Errorf("%q: %v, %v, %q", tt.name, err, e, got)
			}
			if n := strings.Count(after, "\n") - strings.Count(before, "\n"); n > 1 || n == 1 && tt.old != "" {
				t.Errorf("%q: left files behind\n%s", tt.name, after)
			}
		})
	}
}

// --allow-outside lets a name lead out; what is no document of memplan is kept
// even so.
func TestReplaceOutside(t *testing.T) {
	in := place(t)
	d := Beside(filepath.Join(in, "doc"), true)
	if path, err := d.Replace("../out/new", []byte("ours"), small, ours); err != nil || path != filepath.Join(filepath.Dir(in), "out", "new") {
		t.Errorf("%s, %v", path, err)
	}
	for _, name := range []string{"../out/secret", "leak", filepath.Join(in, "here")} {
		if _, err := d.Replace(name, []byte("ours"), small, ours); err == nil {
			t.Errorf("%s was replaced", name)
		}
	}
	if got, err := os.ReadFile(filepath.Join(in, "..", "out", "secret")); err != nil || string(got) != secret {
		t.Errorf("%q, %v", got, err)
	}
}

// A link that appears after the look is replaced itself, not its target.
func TestReplaceSwapped(t *testing.T) {
	in := place(t)
	name := filepath.Join(in, "mine")
	swap := func([]byte) error {
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.Symlink("../out/secret", name)
	}
	if err := os.WriteFile(name, []byte("ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Beside(filepath.Join(in, "doc"), false).Replace("mine", []byte("new"), small, swap); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(in, "..", "out", "secret"))
	if info, e := os.Lstat(name); err != nil || e != nil || string(got) != secret || !info.Mode().IsRegular() {
		t.Errorf("outside %q, %v, %v", got, err, e)
	}
}

// listing is every path below a folder, with its type, size and what it holds.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var data []byte
		if d.Type().IsRegular() {
			if data, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(&b, "%s %v %q\n", path, d.Type(), data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A pipe is standard input where the user names it, and bounded.
func TestStdin(t *testing.T) {
	in := place(t)
	old := os.Stdin
	defer func() { os.Stdin = old }()
	for text, ok := range map[string]bool{"a document": true, strings.Repeat("x", int(small.Limit)+1): false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		os.Stdin = r
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if got, err := (Door{}).Read("/dev/stdin", small); (err == nil) != ok || ok && string(got) != text {
			t.Errorf("%.20q: %.20q, %v", text, got, err)
		}
		r.Close()
	}
	for _, path := range []string{in, os.DevNull} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		os.Stdin = f
		if _, err := (Door{}).Read("/dev/stdin", small); err == nil {
			t.Errorf("%s as standard input was read", path)
		}
		f.Close()
	}
}

// What grows beyond its limit after it was opened is not read on.
func TestGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(path, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Door{}.Open(path, small)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.WriteFile(path, make([]byte, small.Limit+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAll(); err == nil || !strings.Contains(err.Error(), "larger than a small document may be, 64 bytes") {
		t.Error(err)
	}
}
