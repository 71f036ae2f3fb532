package planner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/bounded"
)

// CasesFileName is the list of a sweep's cases, in the folder of its documents.
const CasesFileName = "cases.json"

// A Sweep is the list of the cases that a configuration asks for. Every shard of
// it writes the same list.
type Sweep struct {
	SchemaVersion int    `json:"schemaVersion"`
	Cases         []Case `json:"cases"` // in the configuration's order
}

// A Case is one model with one set of settings.
type Case struct {
	Path     string `json:"path"`     // as the configuration names it
	Settings string `json:"settings"` // such as "batch=64 gpu=t4"
	Document string `json:"document"` // file of its answer, named after everything that the answer depends on
}

// NewSweep lists a configuration's cases. A case's document is named by the
// SHA-256 of the model's file, the settings, the plan that they name and the
// program's version: an unchanged case keeps its name, a changed one gets
// another. A file that cannot be read is an error of the whole sweep.
func (f *ConfigFile) NewSweep(version string) (*Sweep, error) {
	sums := map[string]string{}
	s := &Sweep{SchemaVersion: SchemaVersion}
	for i := range f.Entries {
		e := &f.Entries[i]
		h := sha256.New()
		for _, part := range []string{version, e.Path, e.Settings()} {
			fmt.Fprintf(h, "%d %s\n", len(part), part)
		}
		for _, name := range []string{e.Path, e.Config.Made.Document} {
			if name == "" {
				continue
			}
			sum, err := f.sum(sums, name)
			if err != nil {
				return nil, err
			}
			fmt.Fprintln(h, sum)
		}
		s.Cases = append(s.Cases, Case{Path: e.Path, Settings: e.Settings(), Document: hex.EncodeToString(h.Sum(nil))[:32] + ".json"})
	}
	return s, nil
}

// sum returns the SHA-256 of a file that the configuration names, cached in sums.
func (f *ConfigFile) sum(sums map[string]string, name string) (string, error) {
	if s, ok := sums[name]; ok {
		return s, nil
	}
	file, err := f.door.Open(name, files.Model)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	sums[name] = hex.EncodeToString(h.Sum(nil))
	return sums[name], nil
}

// A Shard is one job's share of a sweep.
type Shard struct{ Index, Of int }

// ParseShard parses "i/n": the jobs of n count from 0 to n-1 or from 1 to n, which
// gives the same set of shares. "i" may be "auto", for own.
func ParseShard(text string, own Shard) (Shard, error) {
	wrong := fmt.Errorf("shard %q: want i/n, such as 0/8, with i from 0 to n", text)
	a, b, ok := strings.Cut(text, "/")
	n, err := strconv.Atoi(b)
	if !ok || err != nil || n < 1 {
		return Shard{}, wrong
	}
	if a == "auto" {
		if own.Index < 0 {
			return Shard{}, fmt.Errorf("shard %q: none of %s says which job this is: give i/n", text, strings.Join(schedulerNames(), ", "))
		}
		return Shard{own.Index % n, n}, nil
	}
	i, err := strconv.Atoi(a)
	if err != nil || i < 0 || i > n {
		return Shard{}, wrong
	}
	return Shard{i % n, n}, nil
}

// schedulers are the environment variables for a job's index and the number of
// jobs; count is "" if the scheduler does not give it.
var schedulers = []struct{ index, first, step, count string }{
	{"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT"},
	{"JOB_COMPLETION_INDEX", "", "", ""}, // Kubernetes' indexed Jobs
	{"RANK", "", "", "WORLD_SIZE"},       // torchrun
}

func schedulerNames() (out []string) {
	for _, s := range schedulers {
		out = append(out, s.index)
	}
	return out
}

// SchedulersShard reads this job's share from a scheduler's environment
// variables: Index is -1 if there are none, and Of is 0 if the number of jobs is
// not given.
func SchedulersShard(env func(string) string) (Shard, error) {
	number := func(name string, without int) (int, error) {
		text := env(name)
		if name == "" || text == "" {
			return without, nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%s=%q: want a number from 0: give --shard i/n", name, text)
		}
		return n, nil
	}
	for _, s := range schedulers {
		if env(s.index) == "" {
			continue
		}
		index, err1 := number(s.index, 0)
		first, err2 := number(s.first, 0)
		step, err3 := number(s.step, 1)
		of, err4 := number(s.count, 0)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return Shard{}, err
		}
		index = (index - first) / max(step, 1)
		if index < 0 || of > 0 && index >= of {
			return Shard{}, fmt.Errorf("%s=%s is not one of %d jobs: give --shard i/n", s.index, env(s.index), of)
		}
		return Shard{index, of}, nil
	}
	return Shard{-1, 0}, nil
}

// Run answers the cases of a shard whose documents do not exist yet, several at a
// time, and hands each answer to write. A case that cannot be answered does not
// stop the others: refused has the errors, in the order of the cases.
func (f *ConfigFile) Run(ctx context.Context, s *Sweep, of Shard, there func(*Case) bool, write func(*Case, *Answer) error, done func(n, of int, model string)) (ran int, refused []error, err error) {
	var cases []*Case
	part := *f
	part.Entries = nil
	for i := range s.Cases {
		if i%of.Of == of.Index && !there(&s.Cases[i]) {
			cases = append(cases, &s.Cases[i])
			part.Entries = append(part.Entries, f.Entries[i])
		}
	}
	failed := make([]error, len(cases))
	err = part.each(ctx, done, func(ctx context.Context, i int) error {
		_, r, err := part.analyze(ctx, &part.Entries[i])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed[i] = caseError(cases[i], err)
			return nil
		}
		return write(cases[i], r)
	})
	for _, e := range failed {
		if e != nil {
			refused = append(refused, e)
		}
	}
	return len(cases) - len(refused), refused, err
}

// caseError adds the case to an error.
func caseError(c *Case, err error) error {
	message := strings.TrimPrefix(err.Error(), c.Path+": ")
	if c.Settings == "" {
		return fmt.Errorf("%s: %s", c.Path, message)
	}
	return fmt.Errorf("%s (%s): %s", c.Path, c.Settings, message)
}

// Merged are the answers of a sweep's cases.
type Merged struct {
	SchemaVersion int          `json:"schemaVersion"`
	Cases         []MergedCase `json:"cases"`
	Missing       int          `json:"missing"` // cases without an answer yet
}

// A MergedCase is a case with its answer; Answer is nil where there is none yet.
type MergedCase struct {
	Case
	Answer *CaseAnswer     `json:"-"`
	Raw    json.RawMessage `json:"answer"` // the document that analyze writes
}

// A CaseAnswer is the part of an answer that a table shows.
type CaseAnswer struct {
	Config struct {
		Batch     int64  `json:"batch"`
		Precision string `json:"precision"`
	} `json:"config"`
	Peak struct {
		AllocatedBytes int64 `json:"allocatedBytes"`
		ReservedBytes  int64 `json:"reservedBytes"`
		ProcessBytes   int64 `json:"processBytes"`
	} `json:"peak"`
	Fits *bool    `json:"fits"`
	Time TimeInfo `json:"time"`
}

// Merge reads the documents of a sweep from its folder: the answers of all cases
// of its list, in the list's order.
func Merge(dir string) (*Merged, error) {
	door := sweepDoor(dir)
	data, err := readDocument(door, CasesFileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no %s: name the folder that memplan sweep wrote", dir, CasesFileName)
	}
	if err != nil {
		return nil, err
	}
	var s Sweep
	if err := bounded.Decode(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", CasesFileName, err)
	}
	m := &Merged{SchemaVersion: SchemaVersion, Cases: []MergedCase{}}
	for _, c := range s.Cases {
		if filepath.Base(c.Document) != c.Document || c.Document == CasesFileName {
			return nil, fmt.Errorf("%s: %q is no name of a document", CasesFileName, c.Document)
		}
		got := MergedCase{Case: c}
		if err := got.read(door); err != nil {
			return nil, err
		}
		if got.Answer == nil {
			m.Missing++
		}
		m.Cases = append(m.Cases, got)
	}
	return m, nil
}

// read reads the case's answer, if it is there.
func (c *MergedCase) read(door files.Door) error {
	data, err := readDocument(door, c.Document)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c.Raw, c.Answer = data, &CaseAnswer{}
	if err := bounded.Decode(data, c.Answer); err != nil {
		return fmt.Errorf("%s: %w", c.Document, err)
	}
	return nil
}

// Answered reports whether a folder has a case's complete document.
func (c *Case) Answered(dir string) bool {
	_, err := readDocument(sweepDoor(dir), c.Document)
	return err == nil
}

// Listed reports whether a folder has the list of these cases.
func (s *Sweep) Listed(dir string) bool {
	var o Sweep
	data, err := readDocument(sweepDoor(dir), CasesFileName)
	return err == nil && bounded.Decode(data, &o) == nil && slices.Equal(s.Cases, o.Cases)
}

// sweepDoor is the door to a sweep's folder.
func sweepDoor(dir string) files.Door { return files.Beside(filepath.Join(dir, CasesFileName), false) }
