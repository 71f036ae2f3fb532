package monitor

import (
	"fmt"
	"time"
)

// A Band is what a plan predicts for the watched memory, in bytes: its peak and
// an upper bound. Zero: no prediction.
type Band struct{ Peak, Bound int64 }

// A Warning is an observation of a watcher.
type Warning struct {
	Code    string  `json:"code"` // over-plan, under-plan, leak
	Message string  `json:"message"`
	Seconds float64 `json:"seconds"` // since watching began
}

// A Watcher judges samples: use above the plan's bound, peaks that grow from
// window to window, and at the end a peak far below the plan's.
type Watcher struct {
	Band   Band
	Window time.Duration // long enough for some steps

	start         time.Time
	last          Sample
	n             int
	peak, least   int64
	windowPeak    int64
	windowEnd     time.Time
	peaks         []int64 // of the windows that have ended
	over, leaking bool
	warnings      []Warning
}

// leakWindows is the number of consecutive windows that must each peak above
// the one before.
const leakWindows = 4

// slack is the largest growth of a window's peak that is ignored, in bytes.
const slack = mebi

// Add adds a sample and returns the warnings it causes.
func (w *Watcher) Add(s Sample) []Warning {
	if w.n == 0 {
		w.start, w.least = s.At, s.Used
		w.windowEnd = s.At.Add(w.Window)
	}
	w.n++
	w.last, w.peak, w.least = s, max(w.peak, s.Used), min(w.least, s.Used)
	before := len(w.warnings)
	if bound := max(w.Band.Bound, w.Band.Peak); bound > 0 && s.Used > bound && !w.over {
		w.over = true
		w.warn("over-plan", s, fmt.Sprintf("%s in use, the plan's bound is %s", size(s.Used), size(bound)))
	}
	if !s.At.Before(w.windowEnd) {
		w.endWindow(s)
	}
	w.windowPeak = max(w.windowPeak, s.Used)
	return w.warnings[before:]
}

// endWindow checks whether the last windows' peaks grew each time.
func (w *Watcher) endWindow(s Sample) {
	w.peaks = append(w.peaks, w.windowPeak)
	w.windowPeak = 0
	for !s.At.Before(w.windowEnd) {
		w.windowEnd = w.windowEnd.Add(w.Window)
	}
	n := len(w.peaks)
	if w.leaking || n <= leakWindows {
		return
	}
	for i := n - leakWindows; i < n; i++ {
		if w.peaks[i] <= w.peaks[i-1]+slack {
			return
		}
	}
	w.leaking = true
	grown := w.peaks[n-1] - w.peaks[n-1-leakWindows]
	w.warn("leak", s, fmt.Sprintf("the peak grew in each of %d windows of %v, by %s in all: something keeps memory from step to step", leakWindows, w.Window, size(grown)))
}

func (w *Watcher) warn(code string, s Sample, message string) {
	w.warnings = append(w.warnings, Warning{code, message, s.At.Sub(w.start).Seconds()})
}

// A Report is the result of watching one or several GPUs.
type Report struct {
	SchemaVersion int        `json:"schemaVersion"`
	GPUs          []*Summary `json:"gpus"`
}

// Warned reports whether there are warnings.
func (r *Report) Warned() bool {
	for _, s := range r.GPUs {
		if len(s.Warnings) > 0 {
			return true
		}
	}
	return false
}

// A Summary is the result of watching a GPU.
type Summary struct {
	SchemaVersion  int       `json:"schemaVersion"`
	Device         string    `json:"device"`
	GPU            int       `json:"gpu"` // as nvidia-smi numbers them
	PID            int       `json:"pid"` // 0: the whole device
	Seconds        float64   `json:"seconds"`
	Samples        int       `json:"samples"`
	PeakBytes      int64     `json:"peakBytes"`
	LeastBytes     int64     `json:"leastBytes"`
	LastBytes      int64     `json:"lastBytes"`
	TotalBytes     int64     `json:"totalBytes"`
	PredictedBytes int64     `json:"predictedBytes"` // 0: no plan
	BoundBytes     int64     `json:"boundBytes"`
	Warnings       []Warning `json:"warnings"`
}

// Summary ends the watch.
func (w *Watcher) Summary(t Target, device string) *Summary {
	if p := w.Band.Peak; p > 0 && w.n > 0 && w.peak < p-p/10 {
		w.warn("under-plan", w.last, fmt.Sprintf("the peak of %s is more than 10%% under the plan's %s: another batch or precision than the plan's, or no whole step was seen", size(w.peak), size(p)))
	}
	s := &Summary{SchemaVersion: 1, Device: device, GPU: t.GPU, PID: t.PID, Samples: w.n, PeakBytes: w.peak, LeastBytes: w.least, LastBytes: w.last.Used, TotalBytes: w.last.Total,
		PredictedBytes: w.Band.Peak, BoundBytes: w.Band.Bound, Warnings: w.warnings}
	if s.Warnings == nil {
		s.Warnings = []Warning{}
	}
	if w.n > 0 {
		s.Seconds = w.last.At.Sub(w.start).Seconds()
	}
	return s
}

// size writes bytes in mebibytes.
func size(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/mebi) }
