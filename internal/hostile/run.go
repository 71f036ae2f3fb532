//go:build linux

package main

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	mostTime   = 2 * time.Second
	mostMemory = 500_000_000   // bytes
	killAbove  = 3_000_000_000 // bytes
	mostOutput = 64 << 20      // bytes of a stream that are kept
)

// killAfter is when a process is ended.
var killAfter = 10 * time.Second

// An outcome is what a process did.
type outcome struct {
	Stdout, Stderr []byte
	Cut            bool // it printed more than is kept
	Exit           int  // -1: by a signal
	Signal         string
	Killed         string // why the harness ended it, or ""
	Wall, CPU      time.Duration
	Stall          time.Duration // how long some process of the machine waited for a processor
	Memory         int64         // peak bytes resident
}

// took is the time that is held against the limit: by the clock, less what the
// process may have waited for a processor that others had.
func (o *outcome) took() time.Duration { return min(o.Wall, max(o.CPU, o.Wall-o.Stall)) }

// A capped buffer keeps the beginning of what is written.
type capped struct {
	bytes.Buffer
	cut bool
}

func (c *capped) Write(p []byte) (int, error) {
	if room := mostOutput - c.Len(); len(p) > room {
		c.cut = true
		c.Buffer.Write(p[:room])
		return len(p), nil
	}
	return c.Buffer.Write(p)
}

// An order is a command line that a launcher runs.
type order struct {
	Binary, Dir string
	Args, Env   []string
}

// A launcher is a process that runs others: the peak of a process counts that
// of the one that started it, and the one that makes the cases is large.
type launcher struct {
	binary string
	cmd    *exec.Cmd
	in     *gob.Encoder
	out    *gob.Decoder
}

// launching is set in the environment of a launcher, to its killAfter.
const launching = "MEMPLAN_HOSTILE_LAUNCHER"

// newLauncher starts this program again.
func newLauncher(binary string) (*launcher, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), launching+"="+killAfter.String())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &launcher{binary, cmd, gob.NewEncoder(in), gob.NewDecoder(out)}, cmd.Start()
}

// close ends the process.
func (l *launcher) close() {
	_ = l.cmd.Process.Kill()
	_ = l.cmd.Wait()
}

// execute runs a case's command line in its folder.
func (l *launcher) execute(b *builder) (*outcome, error) {
	env := []string{"HOME=" + b.w.path("home"), "TMPDIR=" + b.w.path("tmp"), "PATH=/usr/bin:/bin", "LANG=C.UTF-8", "PWD=" + b.dir, "SECRET=" + b.w.token}
	if err := l.in.Encode(order{l.binary, b.dir, b.args, env}); err != nil {
		return nil, err
	}
	o := new(outcome)
	if err := l.out.Decode(o); err != nil {
		return nil, err
	}
	if o.Wall == 0 {
		return nil, fmt.Errorf("%s: %s", l.binary, o.Killed)
	}
	return o, nil
}

// launched does a launcher's work, where the environment makes this program one.
func launched() bool {
	kill, err := time.ParseDuration(os.Getenv(launching))
	if err != nil {
		return false
	}
	killAfter = kill
	launch()
	return true
}

// launch is what a launcher does: it takes orders until there are no more.
func launch() {
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	for {
		var c order
		if in.Decode(&c) != nil {
			return
		}
		o, err := c.run()
		if err != nil {
			o = &outcome{Killed: err.Error()} // of no duration
		}
		if out.Encode(o) != nil {
			return
		}
	}
}

// run runs a command line.
func (c *order) run() (*outcome, error) {
	cmd := exec.Command(c.Binary, c.Args...)
	cmd.Dir, cmd.Env = c.Dir, c.Env
	var stdout, stderr capped
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	start, stalled := time.Now(), stall()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan string, 1)
	stop := make(chan struct{})
	go func() { done <- guard(cmd.Process.Pid, stop) }()
	err := cmd.Wait()
	o := &outcome{Wall: time.Since(start), Stall: stall() - stalled}
	close(stop)
	o.Killed = <-done
	if e := new(exec.ExitError); err != nil && !errors.As(err, &e) && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, err
	}
	o.Stdout, o.Stderr, o.Cut = stdout.Bytes(), stderr.Bytes(), stdout.cut || stderr.cut
	o.Exit = cmd.ProcessState.ExitCode()
	if st := cmd.ProcessState.Sys().(syscall.WaitStatus); st.Signaled() {
		o.Signal = st.Signal().String()
	}
	o.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	o.Memory = cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss * 1024
	return o, nil
}

// stall is how long some process of this machine has waited for a processor
// since it started; 0 where the kernel does not say.
func stall() time.Duration {
	data, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(data), "\n")
	_, total, _ := strings.Cut(first, "total=")
	us, _ := strconv.ParseInt(total, 10, 64)
	return time.Duration(us) * time.Microsecond
}

// guard ends a process that takes too long or too much, and says why.
func guard(pid int, stop chan struct{}) string {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	start, stalled := time.Now(), stall()
	for {
		select {
		case <-stop:
			return ""
		case <-tick.C:
		}
		why := ""
		switch {
		case time.Since(start) > killAfter+min(stall()-stalled, 2*killAfter): // a busy machine takes longer
			why = fmt.Sprintf("no end after %v", killAfter)
		case resident(pid) > killAbove:
			why = fmt.Sprintf("more than %d bytes", int64(killAbove))
		}
		if why != "" {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			<-stop
			return why
		}
	}
}

// resident is how many bytes of a process are in memory, 0 where that is not
// known.
func resident(pid int) int64 {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
