package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/memplan/memplan/planner/profile"
)

// RuleSet are the limits of .memplan.yaml, for all models or for one.
type RuleSet struct {
	MaxPeak       string `yaml:"max-peak"`
	MaxIncrease   string `yaml:"max-increase"`
	MinBatch      string `yaml:"min-batch"`
	MaxOverhead   string `yaml:"max-overhead"`
	MaxParameters string `yaml:"max-parameters"`
}

// A ModelRule is one model that check looks at.
type ModelRule struct {
	Path       string           `yaml:"path"`
	Batch      string           `yaml:"batch"`
	Dims       map[string]int64 `yaml:"dims"`
	Mode       string           `yaml:"mode"`
	Precision  string           `yaml:"precision"`
	Optimizer  string           `yaml:"optimizer"`
	Checkpoint string           `yaml:"checkpoint"`
	GPU        string           `yaml:"gpu"`
	VRAM       string           `yaml:"vram"`
	Rules      RuleSet          `yaml:"rules"`
}

// A RulesFile is .memplan.yaml.
type RulesFile struct {
	Version  int         `yaml:"version"`
	Models   []ModelRule `yaml:"models"`
	Rules    RuleSet     `yaml:"rules"`
	Baseline string      `yaml:"baseline"`

	Path string `yaml:"-"`
}

// A Baseline is the document that max-increase compares with.
type Baseline struct {
	SchemaVersion int             `json:"schemaVersion"`
	Models        []BaselineModel `json:"models"`
}

// A BaselineModel is one model's numbers when the baseline was made.
type BaselineModel struct {
	Path           string `json:"path"`
	ReservedBytes  int64  `json:"reservedBytes"`
	AllocatedBytes int64  `json:"allocatedBytes"`
	Batch          int64  `json:"batch"`
}

// RulesFileName is looked for upward from the working directory.
const RulesFileName = ".memplan.yaml"

// FindRulesFile looks for RulesFileName in dir and the folders above it.
func FindRulesFile(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		p := filepath.Join(d, RulesFileName)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no %s in %s or a folder above it: write one, or name it", RulesFileName, dir)
		}
	}
}

// ReadRulesFile reads a rules file; unknown keys are errors with their line.
func ReadRulesFile(path string) (*RulesFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &RulesFile{Path: path, Baseline: ".memplan-baseline.json"}
	if err := yaml.UnmarshalWithOptions(data, f, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	if len(f.Models) == 0 {
		return nil, fmt.Errorf("%s: no models", path)
	}
	for i := range f.Models {
		if f.Models[i].Path == "" {
			return nil, fmt.Errorf("%s: model %d has no path", path, i+1)
		}
	}
	return f, nil
}

// resolve returns a path relative to the rules file's folder.
func (f *RulesFile) resolve(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(filepath.Dir(f.Path), p)
}

// config turns a model's entry into a question.
func (r *ModelRule) config() (Config, error) {
	c := Config{Dims: r.Dims, Mode: r.Mode, Precision: r.Precision, Optimizer: r.Optimizer, Checkpoint: r.Checkpoint, GPU: r.GPU}
	var err error
	switch {
	case r.Batch == "max":
		c.BatchMax = true
	case r.Batch != "":
		if c.Batch, err = strconv.ParseInt(r.Batch, 10, 64); err != nil || c.Batch < 1 {
			return c, fmt.Errorf("%s: batch %q: want a positive integer or max", r.Path, r.Batch)
		}
	}
	if r.VRAM != "" {
		if c.VRAM, err = profile.ParseSize(r.VRAM); err != nil {
			return c, fmt.Errorf("%s: vram: %w", r.Path, err)
		}
	}
	return c, nil
}

// A subject is a model with what rules look at.
type subject struct {
	rule     *ModelRule
	report   *Report
	baseline *BaselineModel // nil: not in the baseline
}

// A Rule is one kind of limit.
type Rule struct {
	Name  string
	Doc   string
	limit func(*RuleSet) string
	apply func(limit string, s *subject) (ok bool, value, message string, err error)
}

// errNoBaseline makes a rule that cannot tell.
var errNoBaseline = errors.New("no baseline for this model: run memplan baseline and commit the file")

// Rules lists the budget rules.
var Rules = []Rule{
	{"max-peak", "reserved bytes at most", func(r *RuleSet) string { return r.MaxPeak }, func(limit string, s *subject) (bool, string, string, error) {
		most, err := profile.ParseSize(limit)
		got := s.report.Peak.ReservedBytes
		return got <= most, profile.FormatBytes(got), fmt.Sprintf("reserves %s of at most %s", profile.FormatBytes(got), limit), err
	}},
	{"max-increase", "growth of reserved bytes over the baseline at most, a percentage", func(r *RuleSet) string { return r.MaxIncrease }, func(limit string, s *subject) (bool, string, string, error) {
		most, err := percent(limit)
		if err == nil && s.baseline == nil {
			err = errNoBaseline
		}
		if err != nil {
			return false, "", "", err
		}
		got := 100 * float64(s.report.Peak.ReservedBytes-s.baseline.ReservedBytes) / float64(max(s.baseline.ReservedBytes, 1))
		v := fmt.Sprintf("%+.2f%%", got)
		return got <= most, v, fmt.Sprintf("reserves %s, %s against the baseline's %s", profile.FormatBytes(s.report.Peak.ReservedBytes), v, profile.FormatBytes(s.baseline.ReservedBytes)), nil
	}},
	{"min-batch", "largest batch that fits at least", func(r *RuleSet) string { return r.MinBatch }, func(limit string, s *subject) (bool, string, string, error) {
		least, err := strconv.ParseInt(limit, 10, 64)
		if err == nil && s.report.Batch == nil {
			err = errors.New("needs batch: max and a vram or gpu")
		}
		if err != nil {
			return false, "", "", err
		}
		got := s.report.Batch.Max
		return got >= least, strconv.FormatInt(got, 10), fmt.Sprintf("largest batch %d of at least %d", got, least), nil
	}},
	{"max-overhead", "time of recomputation at most, a percentage of the step", func(r *RuleSet) string { return r.MaxOverhead }, func(limit string, s *subject) (bool, string, string, error) {
		most, err := percent(limit)
		got := 0.0
		if s.report.Checkpoint != nil {
			got = 100 * s.report.Checkpoint.RecomputeOverhead
		}
		v := fmt.Sprintf("%.2f%%", got)
		return got <= most, v, fmt.Sprintf("recomputation takes %s of the step, of at most %s", v, limit), err
	}},
	{"max-parameters", "number of parameters at most", func(r *RuleSet) string { return r.MaxParameters }, func(limit string, s *subject) (bool, string, string, error) {
		most, err := count(limit)
		got := s.report.Model.Parameters
		return got <= most, strconv.FormatInt(got, 10), fmt.Sprintf("%d parameters of at most %s", got, limit), err
	}},
}

func percent(s string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(s), "%"), 64)
	if err != nil {
		return 0, fmt.Errorf("%q: want a percentage such as 2%%", s)
	}
	return v, nil
}

// count reads a number with an optional K, M or B of parameters.
func count(s string) (int64, error) {
	t, unit := strings.TrimSpace(s), 1.0
	for suffix, n := range map[string]float64{"K": 1e3, "M": 1e6, "B": 1e9} {
		if rest, ok := strings.CutSuffix(t, suffix); ok {
			t, unit = rest, n
		}
	}
	v, err := strconv.ParseFloat(t, 64)
	if err != nil || v < 0 {
		return 0, fmt.Errorf("%q: want a number such as 25M", s)
	}
	return int64(v * unit), nil
}

// Check applies the rules of a file to its models.
func (f *RulesFile) Check(ctx context.Context) ([]Verdict, error) {
	base, err := f.readBaseline()
	if err != nil {
		return nil, err
	}
	out := []Verdict{}
	for i := range f.Models {
		r := &f.Models[i]
		rep, err := f.analyze(ctx, r)
		if err != nil {
			return nil, err
		}
		s := &subject{rule: r, report: rep, baseline: base[r.Path]}
		out = append(out, f.verdicts(s)...)
	}
	return out, nil
}

func (f *RulesFile) analyze(ctx context.Context, r *ModelRule) (*Report, error) {
	c, err := r.config()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	m, err := Open(f.resolve(r.Path))
	if err != nil {
		return nil, err
	}
	return m.Analyze(ctx, c)
}

// verdicts applies a model's own rules, and the file's where it has none.
func (f *RulesFile) verdicts(s *subject) []Verdict {
	var out []Verdict
	if fits := s.report.Fits; fits != nil {
		out = append(out, Verdict{Model: s.rule.Path, Rule: "fits", OK: fits, Value: profile.FormatBytes(s.report.Peak.ProcessBytes), Limit: profile.FormatBytes(s.report.Config.VRAMBytes),
			Message: fmt.Sprintf("needs %s of %s", profile.FormatBytes(s.report.Peak.ProcessBytes), profile.FormatBytes(s.report.Config.VRAMBytes))})
	}
	for _, rule := range Rules {
		limit := rule.limit(&s.rule.Rules)
		if limit == "" {
			limit = rule.limit(&f.Rules)
		}
		if limit == "" {
			continue
		}
		v := Verdict{Model: s.rule.Path, Rule: rule.Name, Limit: limit}
		ok, value, msg, err := rule.apply(limit, s)
		if err != nil {
			v.Message = err.Error()
		} else {
			v.OK, v.Value, v.Message = &ok, value, msg
		}
		out = append(out, v)
	}
	return out
}

// readBaseline reads the baseline, by model path; none is no error.
func (f *RulesFile) readBaseline() (map[string]*BaselineModel, error) {
	out := map[string]*BaselineModel{}
	data, err := readDocument(f.resolve(f.Baseline))
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	var b Baseline
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Baseline, err)
	}
	for i := range b.Models {
		out[b.Models[i].Path] = &b.Models[i]
	}
	return out, nil
}

// NewBaseline analyzes all models of the file. Path is where the document
// belongs.
func (f *RulesFile) NewBaseline(ctx context.Context) (b *Baseline, path string, err error) {
	b = &Baseline{SchemaVersion: SchemaVersion, Models: []BaselineModel{}}
	for i := range f.Models {
		r, err := f.analyze(ctx, &f.Models[i])
		if err != nil {
			return nil, "", err
		}
		b.Models = append(b.Models, BaselineModel{f.Models[i].Path, r.Peak.ReservedBytes, r.Peak.AllocatedBytes, r.Config.Batch})
	}
	return b, f.resolve(f.Baseline), nil
}
