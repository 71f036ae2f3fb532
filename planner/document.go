package planner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/graph/train"
)

// A TorchConfig is the checkpoint configuration that a training script
// applies: each entry of Checkpoint is one region, its modules run one after
// the other, named as in named_modules().
type TorchConfig struct {
	SchemaVersion int             `json:"schemaVersion"`
	Framework     string          `json:"framework"`
	Model         TorchModel      `json:"model"`
	Checkpoint    []train.Segment `json:"checkpoint"`
	Ops           []TorchOps      `json:"ops"`
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

// Frameworks lists the targets of config --to.
var Frameworks = []string{"torch"}

// ToTorch writes a plan's selection as a configuration. PyTorch checkpoints
// modules: a schedule of single operations is not for it.
func (p *Plan) ToTorch() (*TorchConfig, error) {
	if len(p.Schedule) > 0 {
		return nil, errors.New("the plan is a schedule of single operations, which PyTorch cannot run: make one with --checkpoint auto")
	}
	c := &TorchConfig{SchemaVersion: SchemaVersion, Framework: "torch", Model: TorchModel{p.Model.SHA256}, Checkpoint: []train.Segment{}, Ops: []TorchOps{}}
	for i, s := range p.Selection {
		c.Checkpoint = append(c.Checkpoint, train.Segment{Modules: s.Modules})
		for _, o := range s.Save {
			c.Ops = append(c.Ops, TorchOps{i, o})
		}
	}
	return c, nil
}

// maxDocument bounds the size of a document that is read, in bytes.
const maxDocument = 64 << 20

// readDocument reads a JSON document of a version that this program knows.
func readDocument(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%s: larger than %d bytes: not a memplan document", path, maxDocument)
	}
	var head struct {
		SchemaVersion *int `json:"schemaVersion"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("%s: not a JSON document: %w", path, err)
	}
	switch v := head.SchemaVersion; {
	case v == nil:
		return nil, fmt.Errorf("%s: no schemaVersion: not a memplan document", path)
	case *v != SchemaVersion:
		return nil, fmt.Errorf("%s: schemaVersion %d: this memplan reads version %d", path, *v, SchemaVersion)
	}
	return data, nil
}

// ReadPlan reads a Plan document.
func ReadPlan(path string) (*Plan, error) {
	data, err := readDocument(path)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(data, []byte(`"selection"`)) {
		return nil, fmt.Errorf("%s: has no selection: not a plan (make one with memplan plan)", path)
	}
	p := &Plan{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// OpenPlan opens the model of a plan, and returns it with the question that
// the plan answers. The model lies where it was when the plan was made, or
// likewise beside the plan, and must not have changed.
func OpenPlan(path string) (*Model, Config, error) {
	p, err := ReadPlan(path)
	if err != nil {
		return nil, Config{}, err
	}
	m, err := Open(p.Model.Path)
	if errors.Is(err, fs.ErrNotExist) && !filepath.IsAbs(p.Model.Path) {
		if beside, e := Open(filepath.Join(filepath.Dir(path), p.Model.Path)); e == nil {
			m, err = beside, nil
		}
	}
	if err != nil {
		return nil, Config{}, fmt.Errorf("%s: its model: %w", path, err)
	}
	if m.info.SHA256 != p.Model.SHA256 {
		return nil, Config{}, fmt.Errorf("%s: its model %s has changed since: make the plan again", path, p.Model.Path)
	}
	q := p.Question()
	if q.Times, err = findTimes(path, q.Times); err != nil {
		return nil, Config{}, err
	}
	return m, q, nil
}

// findTimes looks for the measured times that a plan was made with, where they
// were then, or likewise beside the plan.
func findTimes(plan, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	for _, f := range []string{file, filepath.Join(filepath.Dir(plan), file)} {
		if _, err := os.Stat(f); err == nil {
			return f, nil
		}
	}
	return "", fmt.Errorf("%s: the measured times that it was made with, %s, are not there: bring the file back, or make the plan again without --times", plan, file)
}

// ReadSelection adds to c what a Plan or a configuration recomputes, its
// segments or its schedule.
func ReadSelection(path string, c *Config) error {
	data, err := readDocument(path)
	if err != nil {
		return err
	}
	var d struct {
		Selection  []train.Segment  `json:"selection"`
		Schedule   []remat.Step     `json:"schedule"`
		Framework  string           `json:"framework"`
		Checkpoint *json.RawMessage `json:"checkpoint"`
		Ops        []TorchOps       `json:"ops"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	segs := d.Selection
	if d.Framework != "" && d.Checkpoint != nil {
		if err := json.Unmarshal(*d.Checkpoint, &segs); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, o := range d.Ops {
		if o.Region < 0 || o.Region >= len(segs) {
			return fmt.Errorf("%s: calls of %s in region %d, of %d", path, o.Op, o.Region, len(segs))
		}
		segs[o.Region].Save = append(segs[o.Region].Save, o.Saved)
	}
	for i := range segs {
		if err := segs[i].Check(); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if segs == nil {
		return errors.New(path + ": neither a plan nor a checkpoint configuration")
	}
	c.Segments, c.Schedule = segs, d.Schedule
	if c.Checkpoint = ""; len(segs) == 0 && len(d.Schedule) == 0 { // a plan that recomputes nothing
		c.Checkpoint = "none"
	}
	return nil
}

// Question returns the configuration that a plan answers.
func (p *Plan) Question() Config {
	c := &p.Config
	gpu := c.GPU
	if c.GPUAssumed {
		gpu = ""
	}
	q := Config{Batch: c.Batch, Dims: c.Dims, Mode: c.Mode, Precision: c.Precision, Optimizer: c.Optimizer, Loss: c.Loss, GPU: gpu, VRAM: c.VRAMBytes,
		Runtime: c.Runtime, Attention: c.Attention, Accumulate: c.Accumulate, Checkpoint: "none", Segments: p.Selection, Schedule: p.Schedule,
		Freeze: c.Freeze, LoRA: c.LoRA, Hold: c.Hold, AllocConf: c.AllocConf, Times: c.Times}
	if q.Mode == "infer" {
		q.Optimizer, q.Loss = "", ""
	}
	return q
}
