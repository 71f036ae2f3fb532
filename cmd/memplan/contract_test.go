package main

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// Every answer of analyze on every file at hand keeps what scripts rely on:
// exit codes, streams, and numbers of the document that agree with each other.
func TestAnalyzeContract(t *testing.T) {
	testdata.Sequential(t)
	answered := 0
	for _, folder := range []string{"models", "onnx/real"} {
		files, err := filepath.Glob(filepath.Join(testdata.Shared(t, strings.Split(folder, "/")...), "*.onnx"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(files), err)
		}
		for _, path := range files {
			for _, args := range [][]string{{"--batch", "3"}, {"--mode", "infer", "--batch", "3"}, {}, {"--vram", "16G", "--precision", "amp-bf16", "--timeout", "1ms"}} {
				args := append([]string{"analyze", path, "--format", "json"}, args...)
				code, out, errw := memplan(args...)
				if code == exitUnknown {
					if out != "" || strings.Contains(errw, "internal error") || strings.Count(errw, "memplan: ") != 1 {
						t.Errorf("%v: stdout %.80q, stderr %s", args, out, errw)
					}
					continue
				}
				answered++
				for _, fault := range faults(code, out) {
					t.Errorf("%v: %s", args, fault)
				}
			}
		}
	}
	if t.Logf("%d answers", answered); answered < 150 {
		t.Errorf("%d answers: too few files can be analyzed", answered)
	}
}

// A document of analyze, as the scripts of users see it.
type document struct {
	SchemaVersion int
	Model         struct{ Lift string }
	Config        struct {
		Mode             string
		Batch, VRAMBytes int64
		Accumulate       int64
	}
	Peak struct {
		RequestedBytes, AllocatedBytes, ReservedBytes, ProcessBytes, UpperBoundBytes int64
		Phase                                                                        string
	}
	Phases          struct{ Start, AfterForward, AfterBackward, AfterStep, ForwardPeak, BackwardPeak, OptimizerPeak int64 }
	Breakdown, Live []struct {
		Category string
		Bytes    int64
	}
	SavedBytes int64
	Fits       *bool
	Batch      *struct{ Max, UpperBound int64 }
	Checkpoint *struct{ RecomputeOverhead, LowerBound, Gap float64 }
	Time       struct{ ForwardMs, BackwardMs, OptimizerMs, StepMs, SamplesPerSecond float64 }
}

// faults lists what is wrong with an answer.
func faults(code exitCode, out string) (list []string) {
	var tree any
	d := &document{}
	if err := json.Unmarshal([]byte(out), &tree); err != nil {
		return []string{err.Error()}
	}
	if err := json.Unmarshal([]byte(out), d); err != nil {
		return []string{err.Error()}
	}
	list = spelling(tree, "")
	ok := func(good bool, format string, args ...any) {
		if !good {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	p, ph := &d.Peak, &d.Phases
	ok((code == exitNo) == (d.Fits != nil && !*d.Fits), "exit code %d, fits %v", code, d.Fits)
	ok(p.RequestedBytes <= p.AllocatedBytes && p.AllocatedBytes <= p.ReservedBytes && p.ReservedBytes <= min(p.ProcessBytes, p.UpperBoundBytes), "peak %+v", *p)
	ok(slices.Contains([]string{"forward", "loss", "backward", "optimizer"}, p.Phase), "phase %q", p.Phase)
	most := max(ph.Start, ph.AfterForward, ph.AfterBackward, ph.AfterStep, ph.ForwardPeak, ph.BackwardPeak, ph.OptimizerPeak)
	ok(most <= p.AllocatedBytes, "phases %+v over the peak %d", *ph, p.AllocatedBytes)
	ok(max(ph.Start, ph.AfterForward) <= ph.ForwardPeak, "phases %+v", *ph)
	if d.Config.Mode == "train" {
		ok(max(ph.AfterForward, ph.AfterBackward) <= ph.BackwardPeak && max(ph.AfterBackward, ph.AfterStep) <= ph.OptimizerPeak && d.SavedBytes <= ph.AfterForward, "phases %+v, saved %d", *ph, d.SavedBytes)
	}
	sum, by := int64(0), map[string]int64{}
	for _, b := range d.Breakdown {
		sum += b.Bytes
		by[b.Category] = b.Bytes
	}
	ok(sum == p.AllocatedBytes && len(by) == 9 && len(d.Breakdown) == 9, "%d categories add up to %d of %d", len(by), sum, p.AllocatedBytes)
	for i, l := range d.Live {
		by[l.Category] -= l.Bytes
		ok(by[l.Category] >= 0 && (i == 0 || l.Bytes <= d.Live[i-1].Bytes), "live[%d] %+v", i, l)
	}
	tm := &d.Time
	ok(math.Abs(tm.ForwardMs+tm.BackwardMs+tm.OptimizerMs-tm.StepMs) < 0.01, "time %+v", *tm)
	if d.Batch != nil {
		ok(d.Batch.Max <= d.Batch.UpperBound && d.Fits != nil && *d.Fits == (d.Batch.Max > 0 && d.Config.Batch == d.Batch.Max || d.Checkpoint != nil), "batch %+v, fits %v", *d.Batch, d.Fits)
	}
	if c := d.Checkpoint; c != nil {
		ok(c.LowerBound <= c.RecomputeOverhead && math.Abs(c.RecomputeOverhead-c.LowerBound-c.Gap) < 2e-6, "checkpoint %+v", *c)
	}
	if d.Fits != nil && *d.Fits {
		ok(p.ProcessBytes <= d.Config.VRAMBytes, "fits %d with a process of %d", d.Config.VRAMBytes, p.ProcessBytes)
	}
	return list
}

var camelCase = regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)

// spelling looks at keys and at what is under them: no null but for fits, and
// whole numbers of bytes.
func spelling(v any, path string) (list []string) {
	switch x := v.(type) {
	case map[string]any:
		for k, e := range x {
			at := path + "." + k
			n, number := e.(float64)
			switch {
			case path != ".model.opsets" && path != ".config.dims" && !camelCase.MatchString(k):
				list = append(list, at+" is not in camel case")
			case e == nil && at != ".fits":
				list = append(list, at+" is null")
			case (strings.HasSuffix(k, "Bytes") || k == "bytes") && (!number || n < 0 || n != math.Trunc(n)):
				list = append(list, fmt.Sprintf("%s is %v", at, e))
			}
			list = append(list, spelling(e, at)...)
		}
	case []any:
		for _, e := range x {
			list = append(list, spelling(e, path+"[]")...)
		}
	}
	return list
}
