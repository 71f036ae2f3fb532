package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/memplan/memplan/cmd/memplan/report"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/python"
	"github.com/memplan/memplan/validate"
)

// A torchJob is what python/boot.py reads.
type torchJob struct {
	Sources  map[string]string `json:"sources"`
	Plan     string            `json:"plan"`
	Script   string            `json:"script"`
	Call     string            `json:"call"`
	Steps    int               `json:"steps"`
	CapBytes int64             `json:"capBytes"` // of PyTorch's allocator, 0 for no limit
}

// torchSteps is the default of --steps: five under the cap, as in docs/torch.md.
const torchSteps = 5

// validateTorch runs the user's own training under a plan in PyTorch.
func validateTorch(ctx context.Context, s *streams, o *validateOptions) error {
	job, p, limit, err := o.torchJob()
	if err != nil {
		return err
	}
	ctx, cancel := limited(ctx, o.timeout)
	defer cancel()
	measured, err := runTorch(ctx, s, job)
	if err != nil {
		return err
	}
	r, err := validate.JudgeTorch(p, o.path, measured, limit)
	if err != nil {
		return err
	}
	if err := emit(s, &o.outputFlags, report.Validations, r); err != nil {
		return err
	}
	if r.Verdict == validate.Refuted {
		return errNo
	}
	return nil
}

// torchJob returns the job of the flags, its plan, and the cap in bytes.
func (o *validateOptions) torchJob() (*torchJob, *planner.Plan, int64, error) {
	switch {
	case (o.script == "") == (o.call == ""):
		return nil, nil, 0, errors.New("--engine torch: give the training with --script FILE or --call MODULE:FUNCTION")
	case o.call != "" && !strings.Contains(o.call, ":"):
		return nil, nil, 0, fmt.Errorf("--call %q: want MODULE:FUNCTION", o.call)
	case !strings.EqualFold(filepath.Ext(o.path), ".json"):
		return nil, nil, 0, fmt.Errorf("%s: --engine torch runs a plan: make one with memplan plan", o.path)
	case o.steps < 1:
		return nil, nil, 0, fmt.Errorf("--steps %d: want a positive integer", o.steps)
	}
	if err := o.answered(); err != nil {
		return nil, nil, 0, err
	}
	p, err := planner.ReadPlan(o.path)
	if err != nil {
		return nil, nil, 0, err
	}
	if p.Config.Mode != "train" {
		return nil, nil, 0, fmt.Errorf("%s: a plan for inference: --engine torch runs training steps", o.path)
	}
	at, err := filepath.Abs(o.path)
	if err != nil {
		return nil, nil, 0, err
	}
	job := &torchJob{Sources: python.Sources(), Plan: at, Script: o.script, Call: o.call, Steps: o.steps}
	if !o.set.Changed("steps") {
		job.Steps = torchSteps
	}
	limit := int64(0)
	if o.cap != "" {
		if limit, err = planner.PositiveSize("--cap", o.cap); err != nil {
			return nil, nil, 0, err
		}
		context := p.Peak.ProcessBytes - p.Peak.ReservedBytes
		if job.CapBytes = limit - context; job.CapBytes <= 0 {
			return nil, nil, 0, fmt.Errorf("--cap %s: the CUDA context alone takes %d bytes", o.cap, context)
		}
	}
	return job, p, limit, nil
}

// runTorch runs the job in the Python that has PyTorch. The training's output
// goes to stderr.
func runTorch(ctx context.Context, s *streams, job *torchJob) (*validate.TorchMeasured, error) {
	name := cmp.Or(os.Getenv("MEMPLAN_PYTHON"), "python3")
	in, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, name, "-c", python.Boot)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &errs
	err = cmd.Run()
	for line := range strings.Lines(errs.String()) {
		s.err.line("%s", strings.TrimRight(line, "\r\n"))
	}
	if e := new(exec.ExitError); err != nil && !errors.As(err, &e) {
		return nil, fmt.Errorf("%w: name the Python that has PyTorch in MEMPLAN_PYTHON", err)
	}
	m := new(validate.TorchMeasured)
	if jerr := json.Unmarshal(out.Bytes(), m); jerr != nil {
		return nil, fmt.Errorf("%s ended without an answer (%w)", name, cmp.Or(err, jerr))
	}
	if m.Error != "" {
		return nil, errors.New(m.Error)
	}
	return m, nil
}
