package monitor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// smi reads through nvidia-smi, in whole mebibytes.
type smi struct {
	query func(args ...string) ([][]string, error)
	t     Target
	name  string
}

const mebi = 1 << 20

func openSMI(ctx context.Context, t Target) (Source, error) {
	s := &smi{query: func(args ...string) ([][]string, error) { return query(ctx, args...) }, t: t}
	row, err := s.device()
	if err != nil {
		return nil, err
	}
	s.name = row[0]
	if _, err := s.Sample(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *smi) Device() string { return s.name }
func (s *smi) Close() error   { return nil }

// device returns the device's name, used and total memory.
func (s *smi) device() ([]string, error) {
	rows, err := s.query("--id="+strconv.Itoa(s.t.GPU), "--query-gpu=name,memory.used,memory.total")
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) < 3 {
		return nil, fmt.Errorf("nvidia-smi: %d lines about GPU %d, want one with a name and two numbers: %.80q", len(rows), s.t.GPU, rows)
	}
	row := rows[0]
	n := len(row) - 2 // a name may have commas
	return []string{strings.Join(row[:n], ", "), row[n], row[n+1]}, nil
}

// Sample reads once.
func (s *smi) Sample() (Sample, error) {
	row, err := s.device()
	if err != nil {
		return Sample{}, err
	}
	out := Sample{At: time.Now()} //nolint:forbidigo // readings have their time
	if out.Used, err = mebibytes(row[1]); err != nil {
		return out, err
	}
	if out.Total, err = mebibytes(row[2]); err != nil || s.t.PID == 0 {
		return out, err
	}
	rows, err := s.query("--id="+strconv.Itoa(s.t.GPU), "--query-compute-apps=pid,used_memory")
	if err != nil {
		return out, err
	}
	for _, r := range rows {
		if len(r) == 2 && r[0] == strconv.Itoa(s.t.PID) {
			if out.Used, err = mebibytes(r[1]); err != nil {
				err = fmt.Errorf("process %d: %w: in a container it may not see processes; watch the device with --gpu", s.t.PID, err)
			}
			return out, err
		}
	}
	return out, unlisted(s.t, len(rows))
}

// mebibytes reads a size, in MiB: no memory has 2^40 of them.
func mebibytes(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 40)
	if err != nil {
		return 0, fmt.Errorf("nvidia-smi says %q for memory, want MiB", s)
	}
	return int64(n) * mebi, nil
}

// longestQuery is the time limit of nvidia-smi: it takes some seconds if a
// driver has to start first.
const longestQuery = 10 * time.Second

// ended returns the context's error if it ended the command. An interrupt from
// a terminal also reaches the command, perhaps earlier.
func ended(ctx, limited context.Context, err error) error {
	if err == nil {
		return nil
	}
	if e := new(exec.ExitError); errors.As(err, &e) && e.ExitCode() < 0 {
		select {
		case <-limited.Done():
		case <-time.After(longestSignal):
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		return fmt.Errorf("nvidia-smi gave no answer in %v: does it on its own?", longestQuery)
	}
	return nil
}

// longestSignal is how much earlier a command may receive an interrupt.
const longestSignal = 200 * time.Millisecond

// query runs nvidia-smi and splits what it prints.
func query(ctx context.Context, args ...string) ([][]string, error) {
	limited, cancel := context.WithTimeout(ctx, longestQuery)
	defer cancel()
	cmd := exec.CommandContext(limited, "nvidia-smi", append(args, "--format=csv,noheader,nounits")...)
	cmd.WaitDelay = 100 * time.Millisecond // for processes that it started
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err := ended(ctx, limited, err); err != nil {
		return nil, err
	}
	if e := new(exec.ExitError); errors.As(err, &e) {
		text := strings.TrimSpace(string(out) + errs.String())
		if text == "" {
			text = e.Error()
		}
		return nil, fmt.Errorf("nvidia-smi: %s", text)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: install the NVIDIA driver, which nvidia-smi comes with", err)
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			rows = append(rows, strings.Split(line, ", "))
		}
	}
	return rows, nil
}
