package planner

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/train"
)

// ExpertInfo is the part of a report about layers of experts whose ranks share them. What a rank receives
// depends on the router, which is not in the file: the answer is of Rows, between Balanced and Most.
type ExpertInfo struct {
	Modules   []string  `json:"modules"`   // whose experts are divided
	Local     int64     `json:"local"`     // experts of the first of them on a rank
	Imbalance float64   `json:"imbalance"` // rows that a rank receives, as a multiple of Balanced
	Rows      int64     `json:"rows"`      // that the answer is of, in the layer that receives most
	Balanced  ExpertEnd `json:"balanced"`  // where every rank receives as many rows as it sends
	Most      ExpertEnd `json:"most"`      // where one rank receives all that can go to it
}

// An ExpertEnd is what a rank needs at one end of what it may receive.
type ExpertEnd struct {
	Rows           int64 `json:"rows"` // of tokens and their choices, in the layer that receives most
	AllocatedBytes int64 `json:"allocatedBytes"`
	ReservedBytes  int64 `json:"reservedBytes"`
	ProcessBytes   int64 `json:"processBytes"`
	Fits           *bool `json:"fits,omitempty"` // without a card: not said
}

// allRows is the word of --ep-imbalance for all rows that can go to one rank.
const allRows = "all"

// parseImbalance parses --ep-imbalance.
func parseImbalance(text string) (float64, error) {
	if text == allRows {
		return math.Inf(1), nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n < 1 {
		return 0, fmt.Errorf("ep-imbalance %s: want a number from 1, how many times a balanced router's rows the rank receives, or %s", text, allRows)
	}
	return n, nil
}

// experts resolves the settings of expert parallelism.
func (s *meshed) experts(j *job) (err error) {
	c := &j.cfg
	if s.Experts == 0 {
		return nil
	}
	if s.imbalance = 1; c.EPImbalance != "" {
		if s.imbalance, err = parseImbalance(c.EPImbalance); err != nil {
			return fmt.Errorf("--%w", err)
		}
	}
	switch n, _ := parseReshard(c.FSDPReshard); {
	case c.FSDPOffload:
		return errors.New("--fsdp-offload with ep is not modelled: give it without")
	case n > 1:
		return fmt.Errorf("--fsdp-reshard %d with ep is not modelled: give true or false", n)
	case j.lora != nil:
		return errors.New("--lora with ep is not modelled: give it without")
	}
	return nil
}

// sites finds the layers of experts of the graph as it is bound.
func (m *Model) sites(j *job) ([]train.ExpertSite, error) {
	sites, err := train.FindExperts(m.lifted, j.cfg.EPExperts)
	if err == nil {
		return sites, nil
	}
	if len(j.cfg.EPExperts) > 0 {
		return nil, fmt.Errorf("--ep-experts: %w", err)
	}
	if m.lifted.Source != lift.Metadata { // names would not help
		return nil, fmt.Errorf("--parallel %s: %w", j.meshed.Mesh, err)
	}
	return nil, fmt.Errorf("--parallel %s: %w; if modules own experts in another way, --ep-experts PATTERN names them and says what is in the way", j.meshed.Mesh, err)
}

// expertUnits makes fully_shard's units of the layers of experts, once.
func (m *Model) expertUnits(j *job, batch int64) error {
	s := j.meshed
	if s.Experts == 0 || s.Shards == 0 || s.FSDP.Experts != nil {
		return nil
	}
	if err := m.boundFor(j, batch); err != nil {
		return err
	}
	sites, err := m.sites(j)
	if err != nil {
		return err
	}
	s.FSDP.Units = slices.Clone(s.FSDP.Units)
	for i := range sites {
		if name := sites[i].Module; !slices.Contains(s.FSDP.Experts, name) {
			s.FSDP.Experts = append(s.FSDP.Experts, name)
			if !slices.Contains(s.FSDP.Units, name) {
				s.FSDP.Units = append(s.FSDP.Units, name)
			}
		}
	}
	return nil
}

// expertRanks says which part of the experts a rank's step is built with, for what is kept of steps.
func (j *job) expertRanks() string {
	if j.meshed == nil || j.meshed.Experts == 0 {
		return ""
	}
	return fmt.Sprint(j.meshed.Experts, j.meshed.Expert(j.meshed.place), j.meshed.imbalance)
}

// expertOptions sets the options of a rank's step.
func (m *Model) expertOptions(j *job, o *train.Options) error {
	s := j.meshed
	if s == nil || s.Experts == 0 {
		return nil
	}
	sites, err := m.sites(j)
	if err != nil {
		return err
	}
	o.Experts = &train.Experts{Ranks: s.Experts, Rank: s.Expert(s.place), Sites: sites, Imbalance: s.imbalance}
	return nil
}

// expertEnds measures both ends of what the rank's experts may receive.
func (a *answer) expertEnds() error {
	s := a.j.meshed
	if s.Experts == 0 {
		return nil
	}
	sites, err := a.m.sites(a.j)
	if err != nil {
		return err
	}
	x := &ExpertInfo{Local: sites[0].Experts / int64(s.Experts), Imbalance: s.imbalance}
	for i := range sites {
		balanced, most := sites[i].Rows(s.Experts, sites[i].Tokens(a.m.lifted))
		x.Modules = append(x.Modules, sites[i].Module)
		x.Balanced.Rows, x.Most.Rows = max(x.Balanced.Rows, balanced), max(x.Most.Rows, most)
		x.Rows = max(x.Rows, train.Received(balanced, most, s.imbalance))
	}
	x.Imbalance = math.Round(1e3*float64(x.Rows)/float64(max(x.Balanced.Rows, 1))) / 1e3
	for _, end := range []struct {
		of *ExpertEnd
		at float64
	}{{&x.Balanced, 1}, {&x.Most, math.Inf(1)}} {
		if end.of.Rows == x.Rows {
			end.of.set(a.ev, a.j, a.fits)
			continue
		}
		other, on := *a.j, *s
		on.imbalance, other.meshed = end.at, &on
		b, err := plannedStep(func(segs []train.Segment) (*train.Build, error) { return a.m.build(&other, a.batch, segs) }, &other, a.segs, a.steps)
		if err != nil {
			return err
		}
		ev, fits, err := settled(b, &other)
		if err != nil {
			return err
		}
		end.of.set(ev, &other, fits)
	}
	a.ranks.Experts = x
	return nil
}

func (e *ExpertEnd) set(ev *evaluation, j *job, fits *bool) {
	e.AllocatedBytes, e.ReservedBytes, e.ProcessBytes, e.Fits = ev.res.Allocated, ev.res.Reserved, ev.res.Reserved+j.besides(), fits
}
