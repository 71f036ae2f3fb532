package planner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/bounded"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/graph/train"
)

// A TorchConfig is the checkpoint configuration that a training script applies:
// each entry of Checkpoint is one region, its modules run one after the other,
// named as in named_modules().
type TorchConfig struct {
	SchemaVersion int             `json:"schemaVersion"`
	Framework     string          `json:"framework"`
	Model         TorchModel      `json:"model"`
	Checkpoint    []train.Segment `json:"checkpoint"`
	Ops           []TorchOps      `json:"ops"`
	Weights       Weights         `json:"weights,omitempty"` // of the model that it was made for
}

// TorchOps are calls of one operator within a region whose outputs a policy
// keeps (torch.utils.checkpoint.create_selective_checkpoint_contexts).
type TorchOps struct {
	Region int `json:"region"` // index of Checkpoint
	train.Saved
}

// TorchModel names the file that the configuration was made for.
type TorchModel struct {
	SHA256 string `json:"sha256"`
}

// ToTorch converts a plan's selection to a configuration. PyTorch checkpoints
// modules: it cannot run a schedule of single operations.
func (p *Plan) ToTorch() (*TorchConfig, error) {
	if len(p.Schedule) > 0 {
		return nil, errors.New("the plan is a schedule of single operations, which PyTorch cannot run: make one with --checkpoint auto")
	}
	c := &TorchConfig{SchemaVersion: SchemaVersion, Framework: "torch", Model: TorchModel{p.Model.SHA256}, Checkpoint: []train.Segment{}, Ops: []TorchOps{}, Weights: p.Weights}
	for i, s := range p.Selection {
		c.Checkpoint = append(c.Checkpoint, train.Segment{Modules: s.Modules})
		for _, o := range s.Save {
			c.Ops = append(c.Ops, TorchOps{i, o})
		}
	}
	return c, nil
}

// readDocument reads a JSON document of a version that this program knows.
func readDocument(d files.Door, path string) ([]byte, error) {
	data, err := d.Read(path, files.Document)
	if err != nil {
		return nil, err
	}
	if err := bounded.JSON(data, bounded.Decoded); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := checkVersion(data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// checkVersion returns an error unless data is a document of SchemaVersion.
func checkVersion(data []byte) error {
	var head struct {
		SchemaVersion *int `json:"schemaVersion"`
	}
	if err := bounded.Explain(json.Unmarshal(data, &head)); err != nil {
		return fmt.Errorf("not a JSON document: %w", err)
	}
	switch v := head.SchemaVersion; {
	case v == nil:
		return errors.New("no schemaVersion: not a memplan document")
	case *v != SchemaVersion:
		return fmt.Errorf("schemaVersion %d: this memplan reads version %d", *v, SchemaVersion)
	}
	return nil
}

// ReadPlan reads the user's Plan document.
func ReadPlan(path string) (*Plan, error) {
	if strings.HasSuffix(path, ".onnx") {
		return nil, fmt.Errorf("%s: a model, not a plan: memplan plan %s -o plan.json makes one", path, path)
	}
	data, err := readDocument(files.Door{}, path)
	if err != nil {
		return nil, err
	}
	p, err := parsePlan(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// ModelOfPlan returns the path of the model that a plan names.
func ModelOfPlan(data []byte) (string, error) {
	if err := bounded.JSON(data, bounded.Decoded); err != nil {
		return "", err
	}
	if err := checkVersion(data); err != nil {
		return "", err
	}
	p, err := parsePlan(data)
	if err != nil {
		return "", err
	}
	return p.Model.Path, nil
}

// IsPlan reports whether a document looks like a plan: a folder may have others beside.
func IsPlan(data []byte) bool {
	return bytes.Contains(data, []byte(`"schemaVersion"`)) && bytes.Contains(data, []byte(`"selection"`)) && bytes.Contains(data, []byte(`"sha256"`))
}

func parsePlan(data []byte) (*Plan, error) {
	if !bytes.Contains(data, []byte(`"selection"`)) {
		return nil, errors.New("has no selection: not a plan (make one with memplan plan)")
	}
	p := &Plan{}
	if err := bounded.Decode(data, p); err != nil {
		return nil, err
	}
	return p, nil
}

// OpenPlan opens the model of a plan, and returns it with the question that the
// plan answers. The model and the other files that the plan names are sought at
// their paths from the working directory, or else from the plan's folder, and
// within one of the two unless outside is set (files.OfPlan). The model must
// not have changed.
func OpenPlan(path string, outside bool, opts ...onnx.Option) (*Model, Config, error) {
	p, err := ReadPlan(path)
	if err != nil {
		return nil, Config{}, err
	}
	door := files.OfPlan(path, outside)
	m, err := OpenFrom(door, p.Model.Path, opts...)
	if err != nil {
		return nil, Config{}, fmt.Errorf("%s: its model: %w", path, err)
	}
	if m.info.SHA256 != p.Model.SHA256 {
		return nil, Config{}, fmt.Errorf("%s: its model %s has changed since: make the plan again", path, p.Model.Path)
	}
	q := p.Question()
	q.Files = &door
	if err := findTimes(door, path, q.Times); err != nil {
		return nil, Config{}, err
	}
	return m, q, nil
}

// findTimes returns an error if the plan's measured times are missing.
func findTimes(d files.Door, plan, file string) error {
	if file == "" {
		return nil
	}
	f, err := d.Open(file, files.Document)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: the measured times that it was made with, %s, are not there: bring the file back, or make the plan again without --times", plan, file)
	case err != nil:
		return fmt.Errorf("%s: its measured times: %w", plan, err)
	}
	return f.Close()
}

// ReadCheckpoint adds to c what the Plan or configuration named by Checkpoint
// recomputes, its segments or schedule, and its origin. It is opened through
// the question's door. Other values of Checkpoint stay.
func (c *Config) ReadCheckpoint() error {
	path := c.Checkpoint
	if path == "" || slices.Contains(Checkpoints, path) || IsSetting(path) {
		return nil
	}
	data, err := readDocument(c.door(), path)
	if err == nil {
		if err = parseSelection(data, c); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	c.Made.Document = path
	return err
}

func parseSelection(data []byte, c *Config) error {
	var d struct {
		Model      struct{ Path, SHA256 string } `json:"model"`
		Selection  []train.Segment               `json:"selection"`
		Schedule   []remat.Step                  `json:"schedule"`
		Framework  string                        `json:"framework"`
		Checkpoint *json.RawMessage              `json:"checkpoint"`
		Ops        []TorchOps                    `json:"ops"`
	}
	if err := bounded.Decode(data, &d); err != nil {
		return err
	}
	segs := d.Selection
	if d.Framework != "" && d.Checkpoint != nil {
		if err := bounded.Decode(*d.Checkpoint, &segs); err != nil {
			return err
		}
	}
	for _, o := range d.Ops {
		if o.Region < 0 || o.Region >= len(segs) {
			return fmt.Errorf("calls of %s in region %d, of %d", o.Op, o.Region, len(segs))
		}
		segs[o.Region].Save = append(segs[o.Region].Save, o.Saved)
	}
	for i := range segs {
		if err := segs[i].Check(); err != nil {
			return err
		}
	}
	if segs == nil {
		return errors.New("neither a plan nor a checkpoint configuration")
	}
	c.Segments, c.Schedule, c.Made = segs, d.Schedule, Origin{Path: d.Model.Path, SHA256: d.Model.SHA256}
	if c.Checkpoint = ""; len(segs) == 0 && len(d.Schedule) == 0 { // a plan that recomputes nothing
		c.Checkpoint = "none"
	}
	return nil
}

// Matches returns an error if a question's selection was made for another
// model, by their hashes.
func (m *Model) Matches(c *Config) error {
	made := &c.Made
	if made.SHA256 == "" || strings.EqualFold(made.SHA256, m.info.SHA256) {
		return nil
	}
	of := "a model"
	if made.Path != "" {
		of = made.Path
	}
	return fmt.Errorf("--checkpoint %s: was made for %s with SHA-256 %.12s, and %s has %.12s: make it again for this model", made.Document, of, made.SHA256, m.Path, m.info.SHA256)
}

// Question returns the configuration that a plan answers.
func (p *Plan) Question() Config {
	q := p.Config.settled()
	if q.GPUAssumed {
		q.GPU, q.GPUAssumed = "", false
	}
	q.Checkpoint, q.Segments, q.Schedule = "none", p.Selection, p.Schedule
	if q.Headroom == "" { // a plan of a version without headroom
		q.Headroom = "0"
	}
	q.inference("")
	return q
}
