package monitor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/memplan/memplan/files"
)

// A Recording is a file of readings: a line of what is watched, and then a line for
// each reading, in JSON.
type Recording struct {
	w io.Writer
}

// A recordHead is a recording's first line.
type recordHead struct {
	SchemaVersion int            `json:"schemaVersion"`
	PID           int            `json:"pid"`
	GPUs          []recordDevice `json:"gpus"`
}

type recordDevice struct {
	GPU    int    `json:"gpu"`
	Device string `json:"device"`
}

// A recordLine is one reading. GPU is an index in the first line's list.
type recordLine struct {
	Seconds float64 `json:"seconds"` // since the first
	GPU     int     `json:"gpu"`
	Used    int64   `json:"usedBytes"`
	Total   int64   `json:"totalBytes"`
}

// NewRecording writes the first line.
func NewRecording(w io.Writer, targets []Target, devices []string) (*Recording, error) {
	h := recordHead{SchemaVersion: 1}
	for i, t := range targets {
		h.PID = t.PID
		h.GPUs = append(h.GPUs, recordDevice{t.GPU, devices[i]})
	}
	r := &Recording{w}
	return r, r.line(h)
}

// Add writes a reading of the target with that index.
func (r *Recording) Add(target int, since time.Duration, s Sample) error {
	return r.line(recordLine{math.Round(since.Seconds()*1e3) / 1e3, target, s.Used, s.Total})
}

func (r *Recording) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = r.w.Write(append(b, '\n'))
	return err
}

// A Replay is what was watched, as a recording has it.
type Replay struct {
	Targets []Target
	Devices []string
	next    func() (recordLine, bool, error)
	last    []float64 // seconds of each target
	n       int
}

// mostDevices is more than one machine has.
const mostDevices = 1024

// ReadRecording opens a recording.
func ReadRecording(path string) (*Replay, func() error, error) {
	f, err := files.Door{}.Open(path, files.Document)
	if err != nil {
		return nil, nil, err
	}
	r, err := newReplay(f)
	if err != nil {
		_ = f.Close() // it was only read
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, f.Close, nil
}

// longestLine bounds a line: the first has the names of devices.
const longestLine = 1 << 20

func newReplay(in io.Reader) (*Replay, error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longestLine)
	r := &Replay{}
	if !lines.Scan() {
		return nil, fmt.Errorf("it has no lines: want a file that memplan monitor --record wrote")
	}
	var h recordHead
	if err := json.Unmarshal(lines.Bytes(), &h); err != nil || h.SchemaVersion != 1 || len(h.GPUs) == 0 || len(h.GPUs) > mostDevices {
		return nil, fmt.Errorf("line 1 does not say what was watched: want a file that memplan monitor --record wrote")
	}
	for _, g := range h.GPUs {
		r.Targets, r.Devices = append(r.Targets, Target{GPU: g.GPU, PID: h.PID}), append(r.Devices, g.Device)
	}
	r.last = make([]float64, len(r.Targets))
	r.next = func() (l recordLine, ok bool, err error) {
		if !lines.Scan() {
			return l, false, lines.Err()
		}
		err = json.Unmarshal(lines.Bytes(), &l)
		return l, true, err
	}
	return r, nil
}

// Next returns the next reading and the index of its target; io.EOF after the last.
func (r *Replay) Next() (target int, s Sample, err error) {
	l, ok, err := r.next()
	r.n++
	const longest = 1e9 // seconds: 30 years
	switch {
	case err != nil:
		return 0, s, fmt.Errorf("line %d is no reading: it is damaged, or cut off", r.n+1)
	case !ok:
		return 0, s, io.EOF
	case l.GPU < 0 || l.GPU >= len(r.Targets):
		return 0, s, fmt.Errorf("line %d is of device %d of %d", r.n+1, l.GPU, len(r.Targets))
	case !(l.Seconds >= r.last[l.GPU] && l.Seconds < longest): // a NaN is neither
		return 0, s, fmt.Errorf("line %d is at %g s, after one at %g s", r.n+1, l.Seconds, r.last[l.GPU])
	case l.Used < 0 || l.Total < 0 || l.Used > mostMemory || l.Total > mostMemory:
		return 0, s, fmt.Errorf("line %d: %d bytes of %d are no GPU's memory", r.n+1, l.Used, l.Total)
	}
	r.last[l.GPU] = l.Seconds
	return l.GPU, Sample{At: time.Unix(0, 0).Add(time.Duration(l.Seconds * float64(time.Second))), Used: l.Used, Total: l.Total}, nil
}

// mostMemory is more than any device has, in bytes.
const mostMemory = 1 << 60
