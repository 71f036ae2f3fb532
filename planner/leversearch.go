package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/profile"
)

// A LeverReport says what each allowed lever saves, and what they do together.
type LeverReport struct {
	SchemaVersion int             `json:"schemaVersion"`
	Model         string          `json:"model"`
	Config        Config          `json:"config"` // of the step without a lever
	Allowed       []string        `json:"allowed"`
	Base          LeverPoint      `json:"base"`
	Rows          []LeverRow      `json:"levers"` // each setting alone, by price
	Refused       []RefusedLever  `json:"refused"`
	Best          *LeverChoice    `json:"best"`     // with a budget: the most samples per second that fit it; null: nothing fits, or no budget
	Least         *LeverChoice    `json:"least"`    // the least memory of all
	Search        string          `json:"search"`   // how both were found
	Replayed      int             `json:"replayed"` // steps that were predicted for it
	Warnings      []graph.Warning `json:"warnings"` // of the step without a lever
}

// A LeverPoint is the memory and time of a step.
type LeverPoint struct {
	Fits             *bool   `json:"fits"` // null without a budget
	AllocatedBytes   int64   `json:"allocatedBytes"`
	ReservedBytes    int64   `json:"reservedBytes"`
	ProcessBytes     int64   `json:"processBytes"`
	StepMs           float64 `json:"stepMs"`
	SamplesPerSecond float64 `json:"samplesPerSecond"`
	Overhead         float64 `json:"recomputeOverhead"` // of the step's time

	sampleMs float64
}

// A LeverRow is what one setting of a lever does by itself.
type LeverRow struct {
	Lever   string   `json:"lever"`
	Setting string   `json:"setting"`
	Args    []string `json:"args"` // flags that ask for it
	LeverPoint
	SavedBytes int64    `json:"savedBytes"` // of the process's peak
	ExtraMs    float64  `json:"extraMs"`    // for as many samples as a step without the lever has
	TimeRatio  float64  `json:"timeRatio"`  // 1.2: a sample takes 1.2 times as long
	MsPerGiB   *float64 `json:"msPerGiB"`   // ExtraMs for each GiB saved, at least 0: free; null: it saves nothing
	Changes    string   `json:"changes"`    // what of the training it changes
	Chosen     bool     `json:"chosen"`     // it may be part of the best configuration; false: only if named, as optimizer=sgd
	Why        string   `json:"why"`        // why there is no prediction; "" if there is
}

// A LeverChoice is a configuration of several levers.
type LeverChoice struct {
	Levers  []string `json:"levers"` // as "precision amp-bf16"
	Args    []string `json:"args"`
	Changes []string `json:"changes"`
	LeverPoint
	SavedBytes int64   `json:"savedBytes"`
	TimeRatio  float64 `json:"timeRatio"`
}

// An allowedLever is a lever with the settings that a question allows.
type allowedLever struct {
	name     string
	settings []LeverSetting // the first is none: the question's own
}

// ParseLevers reads the words of --allow: levers, all, or LEVER=SETTING for some settings
// of a lever alone.
func ParseLevers(words []string) (map[string][]string, error) {
	if len(words) == 0 {
		return nil, errors.New("--allow: want levers such as precision,checkpoint, or all")
	}
	out := map[string][]string{}
	for _, word := range words {
		name, setting, some := strings.Cut(word, "=")
		if name == "all" && !some {
			for _, n := range LeverNames() {
				out[n] = append(out[n], "")
			}
			continue
		}
		if !slices.Contains(LeverNames(), name) {
			return nil, fmt.Errorf("--allow %s: want all or some of %s", word, strings.Join(LeverNames(), ", "))
		}
		out[name] = append(out[name], setting)
	}
	return out, nil
}

// Allow says what the levers that a question allows save of its step's memory, what they
// cost in time, and which configuration of them is the fastest under its budget. Levers
// that are not allowed stay as the question has them: without checkpoint among them the
// step has those of --checkpoint, or none.
func (m *Model) Allow(ctx context.Context, cfg Config, words []string) (*LeverReport, error) {
	allowed, err := ParseLevers(words)
	if err != nil {
		return nil, err
	}
	s, err := m.leverSearch(ctx, cfg, allowed)
	if err != nil {
		return nil, err
	}
	return s.run()
}

// run fills in the report.
func (s *leverSearch) run() (_ *LeverReport, err error) {
	if err := s.alone(); err != nil {
		return nil, err
	}
	if s.scope.cap > 0 {
		if s.report.Best, err = s.optimum(true); err != nil {
			return nil, err
		}
	}
	s.report.Least, err = s.optimum(false)
	s.report.Search = "every combination of the settings"
	if !s.small() {
		s.report.Search = "settings by price, then every pair of levers exactly, until no pair is better"
	}
	s.report.Replayed = len(s.seen)
	return s.report, err
}

// A leverSearch predicts configurations, each once.
type leverSearch struct {
	m      *Model
	ctx    context.Context //nolint:containedctx // of one question
	scope  leverScope
	levers []allowedLever
	report *LeverReport
	seen   map[string]*leverTry
	most   int // combinations times nodes up to which all are tried
}

// A leverTry is the outcome of one configuration.
type leverTry struct {
	LeverPoint
	err error
}

func (m *Model) leverSearch(ctx context.Context, cfg Config, allowed map[string][]string) (*leverSearch, error) {
	if cfg.Mode == "infer" {
		return nil, errors.New("--allow is about training steps: give it without --mode infer")
	}
	if len(cfg.Segments)+len(cfg.Schedule) > 0 {
		return nil, errors.New("--allow: a plan fixes the batch and what is recomputed: give it without --checkpoint FILE")
	}
	if cfg.BatchMax || cfg.BatchBest || cfg.Target > 0 {
		return nil, errors.New("--allow prices levers at one batch: give --batch N")
	}
	j, err := m.resolve(cfg)
	if err != nil {
		return nil, err
	}
	if _, err := m.fixedBatch(j); err != nil {
		return nil, err
	}
	cfg.Checkpoint = cmp.Or(cfg.Checkpoint, "none")
	cfg.Precision, cfg.Optimizer, cfg.Attention = j.cfg.Precision, j.cfg.Optimizer, j.cfg.Attention
	s := &leverSearch{m: m, ctx: ctx, scope: leverScope{base: cfg, device: j.device, cap: j.cap}, seen: map[string]*leverTry{}, most: mostExhaustive}
	a, err := m.Analyze(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.scope.batchNorms = slices.ContainsFunc(a.ev.Nodes, func(n program.Node) bool { return paceOf(&n) == kernel.BatchNorms })
	s.report = &LeverReport{SchemaVersion: SchemaVersion, Model: m.Path, Config: a.Config, Base: pointOf(a.Report), Warnings: a.Warnings}
	for _, l := range Levers {
		if names, ok := allowed[l.Name]; ok {
			s.report.Allowed = append(s.report.Allowed, l.Name)
			if err := s.admit(&l, names, a.Report); err != nil {
				return nil, err
			}
		}
	}
	s.seen[fmt.Sprint(make([]int, len(s.levers)))] = &leverTry{LeverPoint: s.report.Base}
	return s, nil
}

// admit adds the settings of a lever that a question allows, and what of it is refused.
func (s *leverSearch) admit(l *Lever, names []string, base *Report) error {
	for _, r := range l.Refused {
		if r.Lever = l.Name; l.Name == "loss" {
			if n := lossBytes(base); n > 0 {
				r.Why = fmt.Sprintf("%s of the peak are the loss's; %s", profile.FormatBytes(n), r.Why)
			}
		}
		s.report.Refused = append(s.report.Refused, r)
	}
	if l.Settings == nil {
		return nil
	}
	list, why := l.Settings(&s.scope)
	if why != "" {
		s.report.Refused = append(s.report.Refused, RefusedLever{Lever: l.Name, What: "all", Why: why})
		return nil
	}
	if !slices.Contains(names, "") {
		var some []LeverSetting
		for _, name := range names {
			i := slices.IndexFunc(list, func(x LeverSetting) bool { return x.Name == name })
			if i < 0 {
				return fmt.Errorf("--allow %s=%s: want one of %s", l.Name, name, strings.Join(texts(list, func(x *LeverSetting) string { return x.Name }), ", "))
			}
			some = append(some, list[i])
		}
		list = some
	}
	for i := range list {
		list[i].Asked = list[i].Asked && !slices.Contains(names, list[i].Name)
	}
	s.levers = append(s.levers, allowedLever{l.Name, append([]LeverSetting{{Set: func(*Config) error { return nil }}}, list...)})
	return nil
}

// lossBytes are the bytes of the loss among the largest storages at the peak.
func lossBytes(r *Report) (n int64) {
	for i := range r.Live {
		if r.Live[i].Value == "loss" {
			n += r.Live[i].Bytes
		}
	}
	return n
}

func pointOf(r *Report) LeverPoint {
	p := LeverPoint{Fits: r.Fits, AllocatedBytes: r.Peak.AllocatedBytes, ReservedBytes: r.Peak.ReservedBytes, ProcessBytes: r.Peak.ProcessBytes,
		StepMs: r.Time.StepMs, SamplesPerSecond: r.Time.SamplesPerSecond}
	if r.Checkpoint != nil {
		p.Overhead = r.Checkpoint.RecomputeOverhead
	}
	p.sampleMs = r.Time.StepMs / float64(max(r.Config.Batch, 1)*int64(max(r.Config.Accumulate, 1)))
	return p
}

// config is the question with a setting of each lever. The batch changes before it is
// divided, whatever the order of the table.
func (s *leverSearch) config(combo []int) (Config, error) {
	c := s.scope.base
	for _, late := range []bool{false, true} {
		for i, k := range combo {
			if late == (s.levers[i].name == "accumulate") {
				if err := s.levers[i].settings[k].Set(&c); err != nil {
					return c, err
				}
			}
		}
	}
	return c, nil
}

// try predicts a configuration. Only an interruption is an error.
func (s *leverSearch) try(combo []int) (*leverTry, error) {
	key := fmt.Sprint(combo)
	if t := s.seen[key]; t != nil {
		return t, nil
	}
	t := &leverTry{}
	var c Config
	if c, t.err = s.config(combo); t.err == nil {
		var a *Answer
		if a, t.err = s.m.Analyze(s.ctx, c); t.err == nil {
			t.LeverPoint = pointOf(a.Report)
		}
	}
	if err := s.ctx.Err(); err != nil {
		return nil, fmt.Errorf("%d configurations were predicted: %w", len(s.seen), err)
	}
	s.seen[key] = t
	if s.m.Progress != nil {
		s.m.Progress(len(s.seen), 0, "configurations")
	}
	return t, nil
}

// alone fills in what each setting does by itself, by price.
func (s *leverSearch) alone() error {
	combo := make([]int, len(s.levers))
	base := &s.report.Base
	for i := range s.levers {
		for k := range s.levers[i].settings {
			if k == 0 {
				continue
			}
			x := &s.levers[i].settings[k]
			combo[i] = k
			t, err := s.try(combo)
			if err != nil {
				return err
			}
			r := LeverRow{Lever: s.levers[i].name, Setting: x.Name, Changes: x.Changes, Chosen: !x.Asked, Args: s.args(combo)}
			if t.err != nil {
				r.Why = t.err.Error()
			} else {
				r.LeverPoint = t.LeverPoint
				r.SavedBytes, r.TimeRatio = base.ProcessBytes-t.ProcessBytes, ratio(t.sampleMs, base.sampleMs)
				r.ExtraMs = signedRound(base.StepMs * (r.TimeRatio - 1))
				if r.SavedBytes > 0 {
					price := signedRound(max(r.ExtraMs, 0) / (float64(r.SavedBytes) / (1 << 30)))
					r.MsPerGiB = &price
				}
			}
			s.report.Rows = append(s.report.Rows, r)
		}
		combo[i] = 0
	}
	slices.SortStableFunc(s.report.Rows, byPrice)
	return nil
}

func ratio(x, y float64) float64 {
	if y == 0 {
		return 1
	}
	return signedRound(x / y)
}

// signedRound is round for numbers of either sign.
func signedRound(x float64) float64 { return math.Round(x*1e6) / 1e6 }

// byPrice orders settings by the time of a GiB, of free ones what saves most first, then
// those that save nothing, then those without a prediction.
func byPrice(x, y LeverRow) int {
	class := func(r *LeverRow) int {
		switch {
		case r.Why != "":
			return 2
		case r.MsPerGiB == nil:
			return 1
		}
		return 0
	}
	price := func(r *LeverRow) float64 {
		if r.MsPerGiB == nil {
			return 0
		}
		return *r.MsPerGiB
	}
	return cmp.Or(cmp.Compare(class(&x), class(&y)), cmp.Compare(price(&x), price(&y)), cmp.Compare(y.SavedBytes, x.SavedBytes))
}

// args are the flags in which a configuration differs from the question.
func (s *leverSearch) args(combo []int) (out []string) {
	c, err := s.config(combo)
	if err != nil {
		return nil
	}
	for i := range Settings {
		x := &Settings[i]
		is, was := x.Values(&c), x.Values(&s.scope.base)
		for _, v := range is {
			if slices.Contains(was, v) {
				continue
			}
			if out = append(out, "--"+x.Flag); !x.bare(&c) {
				out = append(out, v)
			}
		}
	}
	return out
}

// mostExhaustive is the number of combinations, times the model's nodes, up to which all
// are predicted: some seconds.
const mostExhaustive = 1 << 16

// small reports whether every combination is tried.
func (s *leverSearch) small() bool {
	n := max(s.m.info.Nodes, 1)
	for i := range s.levers {
		if n *= len(s.levers[i].settings); n > s.most {
			return false
		}
	}
	return true
}

// A leverGoal compares configurations: the fastest that fits, or the least memory.
type leverGoal struct{ fastest bool }

// better reports whether x is a better outcome than y; nil is none.
func (g leverGoal) better(x, y *leverTry) bool {
	if x.err != nil || y == nil || y.err != nil {
		return x.err == nil
	}
	if !g.fastest {
		return cmp.Or(cmp.Compare(x.ProcessBytes, y.ProcessBytes), cmp.Compare(x.sampleMs, y.sampleMs)) < 0
	}
	switch a, b := *x.Fits, *y.Fits; {
	case a != b:
		return a
	case !a:
		return x.ProcessBytes < y.ProcessBytes
	}
	return cmp.Or(cmp.Compare(x.sampleMs, y.sampleMs), cmp.Compare(x.ProcessBytes, y.ProcessBytes)) < 0
}

// usable reports whether a configuration may be chosen: it has no setting that must be
// named, and for the least memory none that the budget decides, which stops at the budget.
func (s *leverSearch) usable(g leverGoal, combo []int) bool {
	for i, k := range combo {
		x := &s.levers[i].settings[k]
		if x.Asked || !g.fastest && s.levers[i].name == "checkpoint" && x.Name == budgetChosen {
			return false
		}
	}
	return true
}

// lighter is a configuration without the checkpoints of another. They only add to the time
// of a step: with nothing to run again one that fits is at least as fast. nil: there are none.
func (s *leverSearch) lighter(g leverGoal, combo []int) []int {
	at := slices.IndexFunc(s.levers, func(l allowedLever) bool { return l.name == "checkpoint" })
	if !g.fastest || at < 0 || combo[at] == 0 || s.scope.base.Checkpoint != "none" {
		return nil
	}
	out := slices.Clone(combo)
	out[at] = 0
	return out
}

// A leverBest is the best configuration so far.
type leverBest struct {
	combo []int
	*leverTry
}

// offer makes a configuration the best if it is better.
func (s *leverSearch) offer(g leverGoal, combo []int, best *leverBest) (bool, error) {
	if !s.usable(g, combo) {
		return false, nil
	}
	if light := s.lighter(g, combo); light != nil {
		won, err := s.offer(g, light, best)
		t := s.seen[fmt.Sprint(light)]
		if err != nil || t.err == nil && (*t.Fits || best.err == nil && *best.Fits && best.sampleMs < t.sampleMs) {
			return won, err
		}
	}
	t, err := s.try(combo)
	if err != nil || !g.better(t, best.leverTry) {
		return false, err
	}
	best.combo, best.leverTry = slices.Clone(combo), t
	return true, nil
}

// optimum finds the best configuration: of all combinations where these are few, else from
// the cheapest settings that together fit by changing the levers two at a time.
func (s *leverSearch) optimum(fastest bool) (*LeverChoice, error) {
	g := leverGoal{fastest}
	combo := make([]int, len(s.levers))
	best := leverBest{combo: slices.Clone(combo), leverTry: s.seen[fmt.Sprint(combo)]}
	var err error
	if s.small() {
		err = s.every(g, combo, 0, &best)
	} else if err = s.greedy(g, &best); err == nil {
		err = s.pairs(g, &best)
	}
	if err != nil || fastest && !*best.Fits {
		return nil, err
	}
	return s.choice(&best), nil
}

// every offers all combinations of the levers from the i-th on.
func (s *leverSearch) every(g leverGoal, combo []int, i int, best *leverBest) error {
	if i == len(combo) {
		_, err := s.offer(g, combo, best)
		return err
	}
	for k := range s.levers[i].settings {
		combo[i] = k
		if err := s.every(g, combo, i+1, best); err != nil {
			return err
		}
	}
	combo[i] = 0
	return nil
}

// greedy adds settings in the order of their prices, as long as they make it better.
func (s *leverSearch) greedy(g leverGoal, best *leverBest) error {
	for _, r := range s.report.Rows {
		i := slices.IndexFunc(s.levers, func(l allowedLever) bool { return l.name == r.Lever })
		combo := slices.Clone(best.combo)
		combo[i] = slices.IndexFunc(s.levers[i].settings, func(x LeverSetting) bool { return x.Name == r.Setting })
		if _, err := s.offer(g, combo, best); err != nil {
			return err
		}
	}
	return nil
}

// pairs changes two levers at a time, to all of their settings, until that is no better.
func (s *leverSearch) pairs(g leverGoal, best *leverBest) error {
	for better := true; better; {
		better = false
		for i := range s.levers {
			for j := range i + 1 { // i alone, where both are one
				from := slices.Clone(best.combo)
				for k := range s.levers[i].settings {
					for l := range s.levers[j].settings {
						combo := slices.Clone(from)
						combo[j], combo[i] = l, k
						won, err := s.offer(g, combo, best)
						if err != nil {
							return err
						}
						better = better || won
						if i == j {
							break
						}
					}
				}
			}
		}
	}
	return nil
}

// choice describes a configuration.
func (s *leverSearch) choice(b *leverBest) *LeverChoice {
	base := &s.report.Base
	c := &LeverChoice{Args: s.args(b.combo), LeverPoint: b.LeverPoint, SavedBytes: base.ProcessBytes - b.ProcessBytes, TimeRatio: ratio(b.sampleMs, base.sampleMs)}
	for i, k := range b.combo {
		if k > 0 {
			x := &s.levers[i].settings[k]
			c.Levers = append(c.Levers, s.levers[i].name+" "+x.Name)
			if x.Changes != "" {
				c.Changes = append(c.Changes, x.Changes)
			}
		}
	}
	return c
}
