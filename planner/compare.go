package planner

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/planner/profile"
)

// A Comparison answers one question in several ways, beside one another.
type Comparison struct {
	SchemaVersion int        `json:"schemaVersion"`
	Model         string     `json:"model"`
	Precision     string     `json:"precision"`
	VRAMBytes     int64      `json:"vramBytes,omitempty"` // the budget, where all ways have one
	Ways          []Compared `json:"ways"`
	Fastest       string     `json:"fastest"`            // the way that fits with the most samples per second, "" for none
	Cheapest      string     `json:"cheapest,omitempty"` // with prices: the one with the least price for a number of samples
}

// A Compared is one way with its memory and speed.
type Compared struct {
	Name             string  `json:"name"` // a value of --checkpoint, or a card
	Fits             *bool   `json:"fits"` // nil without a budget
	Batch            int64   `json:"batch,omitempty"`
	AllocatedBytes   int64   `json:"allocatedBytes,omitempty"`
	ReservedBytes    int64   `json:"reservedBytes,omitempty"`
	ProcessBytes     int64   `json:"processBytes,omitempty"`
	Checkpoint       string  `json:"checkpoint,omitempty"` // what is recomputed: none, or a plan's class
	Overhead         float64 `json:"recomputeOverhead"`    // of the step's time, 0.05 is 5%
	StepMs           float64 `json:"stepMs,omitempty"`
	SamplesPerSecond float64 `json:"samplesPerSecond,omitempty"`
	PerHour          float64 `json:"pricePerHour,omitempty"`
	PerMillion       float64 `json:"pricePerMillionSamples,omitempty"`
	Why              string  `json:"why,omitempty"` // why there is no answer
}

// everyBlock is another name of the checkpoints called all.
const everyBlock = "blocks"

// CompareCheckpoints answers a question once for each value of --checkpoint, or blocks,
// which is all. Without a batch each way has the largest that fits with it.
func (m *Model) CompareCheckpoints(ctx context.Context, cfg Config, ways []string) (*Comparison, error) {
	if cfg.Checkpoint != "" || len(cfg.Segments) > 0 || len(cfg.Schedule) > 0 {
		return nil, errors.New("--compare chooses the checkpoints: give it without --checkpoint")
	}
	for _, way := range ways {
		if way != everyBlock && !slices.Contains(Checkpoints, way) && !IsSetting(way) {
			return nil, fmt.Errorf("--compare %s: not one of %s, %s, nor a framework's setting", way, strings.Join(Checkpoints, ", "), everyBlock)
		}
	}
	defer m.share()()
	return m.compareWays(ctx, cfg, ways, func(c *Config, way string) {
		if c.Checkpoint = way; way == everyBlock {
			c.Checkpoint = "all"
		}
	})
}

// CompareCards answers a question once for each card, with the memory of that card; prices
// are those of an hour by card, in any currency, nil for none.
func (m *Model) CompareCards(ctx context.Context, cfg Config, cards []string, prices map[string]float64) (*Comparison, error) {
	if cfg.VRAM != 0 {
		return nil, errors.New("--gpu with several cards takes the memory of each: give it without --vram")
	}
	c, err := m.compareWays(ctx, cfg, cards, func(c *Config, card string) { c.GPU = card })
	if err != nil {
		return nil, err
	}
	least := math.Inf(1)
	for i := range c.Ways {
		w := &c.Ways[i]
		p, ok := prices[w.Name]
		if !ok || w.SamplesPerSecond == 0 {
			continue
		}
		w.PerHour, w.PerMillion = p, round(p/3600/w.SamplesPerSecond*1e6)
		if w.Fits != nil && *w.Fits && w.PerMillion < least {
			least, c.Cheapest = w.PerMillion, w.Name
		}
	}
	return c, nil
}

// compareWays answers a question that set changes for each way. A way without an answer says
// why; without any answer the first way's reason is the error.
func (m *Model) compareWays(ctx context.Context, cfg Config, ways []string, set func(c *Config, way string)) (*Comparison, error) {
	out := &Comparison{SchemaVersion: SchemaVersion, Model: m.Path, Precision: cfg.Precision, VRAMBytes: cfg.VRAM}
	var first error
	most := 0.0
	for i, way := range ways {
		if slices.Contains(ways[:i], way) {
			return nil, fmt.Errorf("%s is compared twice", way)
		}
		c := cfg
		set(&c, way)
		w, err := m.compared(ctx, c)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			w.Why, first = err.Error(), cmp.Or(first, err)
		}
		if w.Name = way; (w.Fits == nil || *w.Fits) && w.SamplesPerSecond > most {
			most, out.Fastest = w.SamplesPerSecond, way
		}
		out.Ways = append(out.Ways, w)
	}
	if most == 0 && first != nil && !slices.ContainsFunc(out.Ways, func(w Compared) bool { return w.Why == "" }) {
		return nil, first
	}
	return out, nil
}

// compared answers one of the questions.
func (m *Model) compared(ctx context.Context, cfg Config) (w Compared, err error) {
	a, err := m.Analyze(ctx, cfg)
	if err != nil {
		return Compared{}, err
	}
	r := a.Report
	w = Compared{Fits: r.Fits, Batch: r.Config.Batch, AllocatedBytes: r.Peak.AllocatedBytes, ReservedBytes: r.Peak.ReservedBytes, ProcessBytes: r.Peak.ProcessBytes,
		Checkpoint: "none", StepMs: r.Time.StepMs, SamplesPerSecond: r.Time.SamplesPerSecond}
	if b := r.Batch; b != nil && w.Batch == 0 {
		w.Batch = b.Max
	}
	if c := r.Checkpoint; c != nil && len(c.Segments)+len(c.Recomputed) > 0 {
		w.Checkpoint, w.Overhead = c.Class, round(c.RecomputeOverhead)
	}
	return w, nil
}

// allCards stands for all cards of the table.
const allCards = "all"

// Cards are the cards that --gpu names, with commas between them, or all.
func Cards(list string) ([]string, error) {
	if list == allCards {
		return profile.DeviceNames(), nil
	}
	out := strings.Split(list, ",")
	for _, name := range out {
		if _, err := profile.FindDevice(name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Several reports a value of --gpu that names more than one card.
func Several(gpu string) bool { return gpu == allCards || strings.Contains(gpu, ",") }

// ReadPrices reads a table of two columns, a card's name and the price of an hour of it,
// with commas between them; lines that begin with # say what a reader wants to know.
func ReadPrices(cfg *Config, path string) (map[string]float64, error) {
	data, err := cfg.door().Read(path, files.Document)
	if err != nil {
		return nil, err
	}
	r := csv.NewReader(strings.NewReader(string(data)))
	r.Comment, r.FieldsPerRecord, r.TrimLeadingSpace = '#', 2, true
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: want lines such as a100-80gb,1.89", path, err)
	}
	out := map[string]float64{}
	for i, row := range rows {
		d, err := profile.FindDevice(strings.TrimSpace(row[0]))
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, i+1, err)
		}
		p, err := strconv.ParseFloat(strings.TrimSpace(row[1]), 64)
		if err != nil || !(p > 0) || math.IsInf(p, 0) {
			return nil, fmt.Errorf("%s: %s: %q is no price of an hour", path, row[0], row[1])
		}
		out[d.Name] = p
	}
	return out, nil
}
