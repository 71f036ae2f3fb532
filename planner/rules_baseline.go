package planner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/bounded"
)

// A Baseline is the document that max-increase compares with: the memory of
// each model of a configuration when the baseline was made.
type Baseline struct {
	SchemaVersion int             `json:"schemaVersion"`
	Models        []BaselineModel `json:"models"`
}

// A BaselineModel is one entry's numbers.
type BaselineModel struct {
	Path           string `json:"path"`     // as written in the configuration
	Settings       string `json:"settings"` // the entry's, "batch=64 gpu=t4"
	SHA256         string `json:"sha256"`   // of the model
	Batch          int64  `json:"batch"`
	AllocatedBytes int64  `json:"allocatedBytes"`
	ReservedBytes  int64  `json:"reservedBytes"`
	ProcessBytes   int64  `json:"processBytes"`
	Parameters     int64  `json:"parameters"`

	// Ranks are those of a mesh that reports list; none for one card.
	Ranks []BaselineRank `json:"ranks,omitempty"`

	Warnings []string `json:"warnings"` // codes, each once, sorted
	Parts    []Part   `json:"parts"`    // of the allocated peak, which they add up to

	// Weights are the shapes of the parameters by name, "512x256x1x1": they tell
	// what changed in a module that grew.
	Weights map[string]string `json:"weights,omitempty"`
}

// A BaselineRank is what a rank of a mesh reserves.
type BaselineRank struct {
	Rank          int   `json:"rank"`
	ReservedBytes int64 `json:"reservedBytes"`
}

// NewBaseline analyzes all models of a configuration, several at a time. done,
// if not nil, is called after each.
func (f *ConfigFile) NewBaseline(ctx context.Context, done func(n, of int, model string)) (*Baseline, error) {
	b := &Baseline{SchemaVersion: SchemaVersion, Models: make([]BaselineModel, len(f.Entries))}
	err := f.each(ctx, done, func(ctx context.Context, i int) error {
		e := &f.Entries[i]
		m, r, err := f.analyze(ctx, e)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", f.Path, e.Line, err)
		}
		b.Models[i] = BaselineModel{Path: e.Path, Settings: e.Settings(), SHA256: r.Model.SHA256, Batch: r.Config.Batch,
			AllocatedBytes: r.Peak.AllocatedBytes, ReservedBytes: r.Peak.ReservedBytes, ProcessBytes: r.Peak.ProcessBytes, Parameters: r.Model.Parameters,
			Ranks: baselineRanks(r.Parallel), Warnings: warningCodes(r.Warnings), Parts: r.Attribution().Parts, Weights: m.weights().texts()}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// readBaseline reads the configuration's baseline, nil if there is none.
func (f *ConfigFile) readBaseline() (*Baseline, error) {
	data, err := readDocument(f.door, f.baseline)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := parseBaseline(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Baseline, err)
	}
	return b, nil
}

func parseBaseline(data []byte) (*Baseline, error) {
	b := &Baseline{}
	if err := bounded.Decode(data, b); err != nil {
		return nil, fmt.Errorf("not a baseline: %w", err)
	}
	if b.Models == nil {
		return nil, errors.New("no models: not a baseline (make one with memplan baseline)")
	}
	return b, nil
}

// ReplaceBaseline writes a baseline to the configuration's path for it. An
// existing file is replaced only if it is a baseline and nothing else.
func (f *ConfigFile) ReplaceBaseline(data []byte) error {
	path, err := f.door.Replace(f.baseline, data, files.Document, ownBaseline)
	if errors.Is(err, errNoBaseline) {
		return fmt.Errorf("%s: exists and is no baseline of memplan: remove it, or name another file with -o", path)
	}
	return err
}

var errNoBaseline = errors.New("no baseline")

// ownBaseline returns an error for anything that memplan baseline does not
// write.
func ownBaseline(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	b := &Baseline{}
	err := d.Decode(b)
	if err == nil {
		if _, end := d.Token(); !errors.Is(end, io.EOF) {
			err = errNoBaseline
		}
	}
	if err != nil || b.SchemaVersion < 1 || b.Models == nil {
		return errNoBaseline
	}
	return nil
}

// find returns the numbers to compare an entry with: those of the same file
// with the same settings, or of the same file if each side lists it once. moved
// is then the baseline's settings, if they differ.
func (b *Baseline) find(f *ConfigFile, e *Entry) (m *BaselineModel, moved string, err error) {
	if b == nil {
		return nil, "", fmt.Errorf("no baseline %s: run memplan baseline and commit the file", f.Baseline)
	}
	var same []*BaselineModel
	for i := range b.Models {
		m := &b.Models[i]
		if m.Path != e.Path {
			continue
		}
		if m.Settings == e.Settings() {
			return m, "", nil
		}
		same = append(same, m)
	}
	listed := 0
	for i := range f.Entries {
		if f.Entries[i].Path == e.Path {
			listed++
		}
	}
	if len(same) == 1 && listed == 1 {
		return same[0], orDefaults(same[0].Settings), nil
	}
	return nil, "", fmt.Errorf("the baseline %s does not have this model with %s: run memplan baseline and commit the file", f.Baseline, orDefaults(e.Settings()))
}

func orDefaults(settings string) string {
	if settings == "" {
		return "default settings"
	}
	return settings
}

func baselineRanks(p *ParallelInfo) (out []BaselineRank) {
	if p == nil {
		return nil
	}
	for _, r := range p.PerRank {
		out = append(out, BaselineRank{Rank: r.Rank, ReservedBytes: r.ReservedBytes})
	}
	return out
}
