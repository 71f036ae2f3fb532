//go:build unix

package testdata

import (
	"context"
	"syscall"
	"time"
)

// CPU returns the processor time that the process has used.
func CPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// share is how much of the processor a search of two threads, which wait for
// each other now and then, uses per second of its time, at least.
const share = 1.25

// WithinCPU returns a context that ends when the process has used as much of
// the processor as a search uses on two idle cores within d, whatever else the
// machine is doing; it ends after eight times d in any case.
func WithinCPU(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, 8*d)
	until := CPU() + time.Duration(share*float64(d))
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for CPU() < until && ctx.Err() == nil {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		cancel()
	}()
	return ctx, cancel
}

// OnIdle returns how long what used so much of the processor takes on two idle
// cores, at most.
func OnIdle(cpu time.Duration) time.Duration { return time.Duration(float64(cpu) / share) }
