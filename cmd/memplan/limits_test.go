package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// Every command that reads files has both limits, but for those that watch or
// measure for as long as it takes.
func TestLimitFlags(t *testing.T) {
	root := newRootCmd(newStreams(&bytes.Buffer{}, &bytes.Buffer{}))
	for _, name := range strings.Fields("analyze plan config check baseline diff validate show list calibrate solve-remat solve-layout") {
		c, _, err := root.Find(strings.Split(name, "-"))
		if err != nil || c.Flags().Lookup("max-memory") == nil || c.Flags().Lookup("timeout") == nil {
			t.Errorf("%s lacks a limit: %v", name, err)
		}
	}
}

// What --timeout and --max-memory come to.
func TestLimitsOf(t *testing.T) {
	for _, c := range []struct {
		kind limitKind
		line string
		run  time.Duration
		mem  int64
		want string // of the error
	}{
		{boundedSearch, "", defaultRun, 4 << 30, ""},
		{boundedSearch, "--timeout 2s", 17 * time.Second, 4 << 30, ""},
		{boundedSearch, "--timeout 10m", 12*time.Minute + 30*time.Second, 4 << 30, ""},
		{boundedSearch, "--timeout 0", 0, 4 << 30, ""},
		{boundedRun, "--timeout 2s", 2 * time.Second, 4 << 30, ""},
		{boundedRun, "--max-memory 1G", defaultRun, 1 << 30, ""},
		{boundedRun, "--max-memory 0", defaultRun, 0, ""},
		{boundedDevice, "", defaultRun, 0, ""},
		{boundedMeasure, "", 0, 4 << 30, ""},
		{boundedRun, "--max-memory 1M", 0, 0, "memplan itself takes"},
		{boundedRun, "--max-memory much", 0, 0, "--max-memory"},
		{boundedSearch, "--timeout -1s", 0, 0, "want a positive duration"},
	} {
		var f limitFlags
		cmd := &cobra.Command{Use: "x"}
		f.add(cmd, c.kind)
		if err := cmd.ParseFlags(strings.Fields(c.line)); err != nil {
			t.Fatal(err)
		}
		l, err := limitsOf(cmd)
		switch {
		case c.want != "":
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %q: %v, want %q", c.kind, c.line, err, c.want)
			}
		case err != nil || l.run != c.run || l.memory != c.mem:
			t.Errorf("%s %q: %+v, %v", c.kind, c.line, l, err)
		}
	}
}

// The watchdog ends a run that takes too long or too much with one line, and
// not once its result is being written.
func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		l     limits
		armed bool
		want  string
	}{
		{limits{run: time.Millisecond, said: "1ms"}, true, "memplan: no answer within --timeout 1ms: give it more time\n"},
		{limits{memory: 1 << 20}, true, "memplan: no answer within --max-memory 1.000 MiB: raise the limit\n"},
		{limits{run: time.Millisecond, said: "1ms"}, false, ""},
	} {
		var out bytes.Buffer
		ended := make(chan int, 1)
		w := newWatchdog(&out)
		w.exit = func(code int) {
			select {
			case ended <- code:
			default:
			}
		}
		if !c.armed {
			w.disarm()
		}
		w.start(c.l)
		code := -1
		select {
		case code = <-ended:
		case <-time.After(map[bool]time.Duration{true: time.Minute, false: 50 * time.Millisecond}[c.armed]):
		}
		w.end()
		line, _, _ := strings.Cut(out.String(), "\n")
		if want := strings.TrimSuffix(c.want, "\n"); line != want || c.armed != (code == int(exitUnknown)) {
			t.Errorf("%+v: code %d, %q, want %q", c.l, code, line, want)
		}
	}
}

// While a file is replaced the process does not end.
func TestNoHalfFile(t *testing.T) {
	writing.Lock()
	w := newWatchdog(&bytes.Buffer{})
	ended := make(chan int, 1)
	w.exit = func(code int) { ended <- code }
	go w.give("over")
	select {
	case <-ended:
		t.Error("ended in the middle of a file")
	case <-time.After(50 * time.Millisecond):
	}
	writing.Unlock()
	if code := <-ended; code != int(exitUnknown) {
		t.Errorf("code %d", code)
	}
	file := filepath.Join(t.TempDir(), "a")
	if err := (&streams{}).writeFile(file, []byte("b")); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "b" {
		t.Errorf("%q, %v", data, err)
	}
}
