package planner

import (
	"context"
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/shard"
)

// A MeshPlan answers over which mesh to spread a step.
type MeshPlan struct {
	SchemaVersion int          `json:"schemaVersion"`
	GPU           string       `json:"gpu"`
	GPUs          int          `json:"gpus"`
	Batch         int64        `json:"batch"`                 // of a rank
	Smallest      string       `json:"smallest"`              // the fitting mesh with the fewest cards, "" for none; "1" for one card
	Fastest       string       `json:"fastest"`               // the mesh with the most samples per second
	Bound         float64      `json:"boundSamplesPerSecond"` // if all cards only computed forward and backward
	Meshes        []MeshChoice `json:"meshes"`
}

// A MeshChoice is one mesh with its memory and speed.
type MeshChoice struct {
	Mesh             string  `json:"mesh"`
	GPUs             int     `json:"gpus"`
	Checkpoint       string  `json:"checkpoint"` // none, or all: every module that can be checkpointed
	Fits             bool    `json:"fits"`
	ProcessBytes     int64   `json:"processBytes"`
	StepMs           float64 `json:"stepMs"`
	WaitingMs        float64 `json:"waitingMs"`
	SamplesPerSecond float64 `json:"samplesPerSecond"` // of all cards together
	Why              string  `json:"why,omitempty"`    // why it is not predicted for this model
}

// oneCard is the name of a single card in place of a mesh.
const oneCard = "1"

// meshesOf lists the meshes of at most n cards with one or two dimensions, the fewest cards first.
func meshesOf(n int) (out []string) {
	out = append(out, oneCard)
	for k := 2; k <= n; k *= 2 {
		out = append(out, fmt.Sprint("ddp=", k), fmt.Sprint("zero1=", k), fmt.Sprint("fsdp=", k), fmt.Sprint("tp=", k), fmt.Sprint("pp=", k))
		for t := 2; t <= k/2; t *= 2 {
			out = append(out, fmt.Sprintf("fsdp=%d,tp=%d", k/t, t), fmt.Sprintf("hsdp=%dx%d", t, k/t), fmt.Sprintf("pp=%d,ddp=%d", t, k/t))
		}
	}
	return out
}

// Meshes predicts the meshes of at most n cards of the question's kind, each without
// checkpoints and, if that does not fit, with all of them.
func (m *Model) Meshes(ctx context.Context, cfg Config, n int) (*MeshPlan, error) {
	switch {
	case n < 2 || n > 1<<10:
		return nil, fmt.Errorf("--gpus %d: want 2 to 1024 cards", n)
	case cfg.Parallel != "":
		return nil, fmt.Errorf("--gpus chooses the mesh: give it without --parallel")
	case cfg.GPU == "" && cfg.VRAM == 0:
		return nil, fmt.Errorf("--gpus needs the cards: give --gpu NAME")
	case cfg.BatchMax || cfg.Batch == 0:
		cfg.Batch, cfg.BatchMax = 1, false
	}
	p := &MeshPlan{SchemaVersion: SchemaVersion, GPU: cfg.GPU, GPUs: n, Batch: cfg.Batch, Meshes: []MeshChoice{}}
	var err error
	if p.Bound, err = m.perfect(cfg, n); err != nil {
		return nil, err
	}
	for _, mesh := range meshesOf(n) {
		if ctx.Err() != nil {
			break
		}
		p.Meshes = append(p.Meshes, m.choice(ctx, cfg, mesh))
	}
	p.choose()
	return p, nil
}

// perfect returns the samples per second of n cards that only compute forward and
// backward.
func (m *Model) perfect(cfg Config, n int) (float64, error) {
	j, err := m.resolve(cfg)
	if err != nil {
		return 0, err
	}
	b, err := m.build(j, cfg.Batch, nil)
	if err != nil {
		return 0, err
	}
	t := timeOf(b.Program, &j.time, cfg.Batch)
	if t.ForwardMs+t.BackwardMs == 0 {
		return 0, nil
	}
	return round(float64(n) * t.SamplesPerSecond * t.StepMs / (t.ForwardMs + t.BackwardMs)), nil
}

// choice predicts one mesh.
func (m *Model) choice(ctx context.Context, cfg Config, text string) MeshChoice {
	c := MeshChoice{Mesh: text, GPUs: 1}
	data := 1
	if text != oneCard {
		mesh, err := shard.ParseMesh(text)
		if err != nil {
			c.Why = err.Error()
			return c
		}
		cfg.Parallel, c.GPUs = text, mesh.Ranks()
		data = max(mesh.Replicas, 1) * max(mesh.Shards, 1)
	}
	for _, c.Checkpoint = range []string{"none", "all"} {
		cfg.Checkpoint = c.Checkpoint
		a, err := m.answer(ctx, cfg)
		if err != nil {
			c.Why = err.Error()
			return c
		}
		t := timeOf(a.ev.Program, &a.j.time, max(a.batch, 1))
		a.j.spread(&t, a.ev.Build)
		t.round()
		c.ProcessBytes, c.StepMs, c.WaitingMs, c.SamplesPerSecond = a.ev.res.Reserved+a.j.besides(), t.StepMs, t.WaitingMs, round(float64(data)*t.SamplesPerSecond)
		if c.Fits = a.fits != nil && *a.fits; c.Fits {
			break
		}
	}
	return c
}

// choose selects the smallest and the fastest mesh that fit.
func (p *MeshPlan) choose() {
	fits := slices.DeleteFunc(slices.Clone(p.Meshes), func(c MeshChoice) bool { return !c.Fits })
	var small, fast MeshChoice
	for _, c := range fits {
		if small.Mesh == "" || c.GPUs < small.GPUs || c.GPUs == small.GPUs && c.SamplesPerSecond > small.SamplesPerSecond {
			small = c
		}
		if fast.Mesh == "" || c.SamplesPerSecond > fast.SamplesPerSecond {
			fast = c
		}
	}
	p.Smallest, p.Fastest = small.Mesh, fast.Mesh
}
