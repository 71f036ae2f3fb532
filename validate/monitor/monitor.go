// Package monitor watches the memory that a GPU, or a process on it, holds, and
// compares it with a plan. It reads NVML in builds that open libraries (tag
// cuda), otherwise it runs nvidia-smi, which comes with every driver.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrGone is the error of a process that has ended, or holds no memory yet.
var ErrGone = errors.New("the process holds no memory of this GPU")

// unlisted returns the error of a process that the driver does not list on a
// device.
func unlisted(t Target, listed int) error {
	if p, err := os.FindProcess(t.PID); err == nil && p.Signal(syscall.Signal(0)) == nil {
		return fmt.Errorf("process %d runs, and is none of the %d that the driver lists on GPU %d: it has not used that GPU yet, or a container or virtual machine hides processes; watch the device with --gpu: %w", t.PID, listed, t.GPU, ErrGone)
	}
	return fmt.Errorf("process %d: %w", t.PID, ErrGone)
}

// A Target is the device or process to watch.
type Target struct {
	GPU int
	PID int // 0: the whole device
}

// A Sample is one reading.
type Sample struct {
	At    time.Time
	Used  int64 // of the process, or of the device if no process is watched
	Total int64 // of the device
}

// A Source reads memory.
type Source interface {
	Device() string
	Sample() (Sample, error)
	Close() error
}

// sources are the ways to read, the best first.
var sources = []struct {
	name string
	open func(context.Context, Target) (Source, error)
}{
	{"NVML", func(_ context.Context, t Target) (Source, error) { return openNVML(t) }},
	{"nvidia-smi", openSMI},
}

// errNotBuilt is the reason why a source is missing from this build.
var errNotBuilt = errors.New("not in this build")

// Open opens the first source that works; the error is that of the last.
func Open(t Target) (Source, error) { return OpenContext(context.Background(), t) }

// OpenContext is Open for a source whose samples end with the context, with its
// error.
func OpenContext(ctx context.Context, t Target) (Source, error) {
	var last error
	for _, s := range sources {
		src, err := s.open(ctx, t)
		if err == nil {
			return src, nil
		}
		if !errors.Is(err, errNotBuilt) {
			last = err
		}
	}
	return nil, last
}
