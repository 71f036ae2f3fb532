package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// smi reads through nvidia-smi, in whole mebibytes.
type smi struct {
	t    Target
	name string
}

const mebi = 1 << 20

func openSMI(t Target) (Source, error) {
	s := &smi{t: t}
	row, err := s.device()
	if err != nil {
		return nil, err
	}
	s.name = row[0]
	_, err = s.Sample()
	return s, err
}

func (s *smi) Device() string { return s.name }
func (s *smi) Close() error   { return nil }

// device returns the device's name, used and total memory.
func (s *smi) device() ([]string, error) {
	rows, err := query("--id="+strconv.Itoa(s.t.GPU), "--query-gpu=name,memory.used,memory.total")
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) != 3 {
		return nil, fmt.Errorf("nvidia-smi: %d devices where one was asked for", len(rows))
	}
	return rows[0], nil
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
	rows, err := query("--id="+strconv.Itoa(s.t.GPU), "--query-compute-apps=pid,used_memory")
	if err != nil {
		return out, err
	}
	for _, r := range rows {
		if len(r) == 2 && r[0] == strconv.Itoa(s.t.PID) {
			out.Used, err = mebibytes(r[1])
			return out, err
		}
	}
	return out, unlisted(s.t, len(rows))
}

func mebibytes(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("nvidia-smi says %q for memory: in a container it may not see processes; watch the device with --gpu", s)
	}
	return n * mebi, nil
}

// query runs nvidia-smi and splits what it prints.
func query(args ...string) ([][]string, error) {
	cmd := exec.Command("nvidia-smi", append(args, "--format=csv,noheader,nounits")...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if e := new(exec.ExitError); errors.As(err, &e) {
		return nil, fmt.Errorf("nvidia-smi: %s", strings.TrimSpace(string(out)+errs.String()))
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
