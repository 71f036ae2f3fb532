package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner/profile"
)

// An Expression is the setting of a framework with which a plan's step fits and
// takes the least time.
type Expression struct {
	Framework string
	Setting   string   // such as "every_n_layers=3"; "" if nothing is checkpointed
	Classes   []string // of the modules that are checkpointed, with their packages, each once
	Segments  []train.Segment
	Question  Config
	Price     float64 // extra time relative to the plan's step
	Higher    int64   // bytes by which the allocated peak exceeds the plan's

	way  way
	mesh [][2]string // what the configuration says of the mesh; nil on one card
	wrap []string    // classes that fully_shard is called on, of frameworks that have one list for both; nil: the root alone
}

// Express finds the setting of a framework with which the plan's step fits and
// takes the least time. The error says why there is none.
func (m *Model) Express(ctx context.Context, p *Plan, q Config, f *Framework) (*Expression, error) {
	e := &Expression{Framework: f.Name, Question: q}
	if q.Mode == "infer" {
		return nil, errors.New("the plan is of an inference: there is nothing to checkpoint")
	}
	if _, hosted := q.offloads(); hosted {
		return nil, fmt.Errorf("the plan has its optimizer on the host, by %s, which no configuration of %s names: make the optimizer in the script, and a plan without --offload %s", hostOptimizerName, f.Name, q.Offload)
	}
	var err error
	if e.mesh, err = f.keys(&q); err != nil {
		return nil, err
	}
	sharded := f.wraps && shardsBy(&q)
	if len(p.Selection) == 0 && len(p.Schedule) == 0 {
		if sharded {
			e.wrap, err = m.wrappedClasses(q)
		}
		return e, err
	}
	if p.Fits == nil {
		return nil, errors.New("the plan has no budget that could tell which choice of " + f.Name + " is enough: make it with --vram or --gpu")
	}
	plan, err := m.Analyze(ctx, q)
	if err != nil {
		return nil, err
	}
	ways, err := m.waysFor(q, f)
	if err != nil {
		return nil, err
	}
	if sharded {
		for i := range ways {
			_, ways[i].wrap, _ = strings.Cut(ways[i].setting, "=")
		}
	}
	best, err := m.fastest(ctx, q, ways)
	if err != nil {
		return nil, err
	}
	if best == nil {
		return nil, fmt.Errorf("%s cannot express the plan: with none of %d settings, %s the last, the step fits at batch %d: apply memplan config --to torch, or take a smaller batch",
			f.Name, len(ways), ways[len(ways)-1].setting, q.Batch)
	}
	e.way, e.Setting, e.Segments, e.Classes = *best.way, best.way.setting, best.way.segs, classesOf(best.way.blocks)
	e.Price = best.Time.StepMs/plan.Time.StepMs - 1
	e.Higher = best.Peak.AllocatedBytes - plan.Peak.AllocatedBytes
	return e, nil
}

// shardsBy reports whether a question's mesh calls fully_shard on modules.
func shardsBy(q *Config) bool {
	mesh, err := ParseParallel(q.Parallel)
	return q.Parallel != "" && err == nil && mesh.Shards > 0
}

// wrappedClasses returns the classes of the modules that a question calls fully_shard on; nil for
// the root alone. It is an error if other modules are of them, too.
func (m *Model) wrappedClasses(q Config) ([]string, error) {
	j, err := m.resolve(q)
	if err != nil {
		return nil, err
	}
	batch, err := m.fixedBatch(j)
	if err != nil {
		return nil, err
	}
	units, err := m.units(j, cmp.Or(q.FSDPWrap, "blocks"), batch)
	if err != nil || len(units) == 0 {
		return nil, err
	}
	a, err := m.anatomy(j.single(), batch)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range a.modules {
		if slices.Contains(units, a.modules[i].name) {
			names = append(names, a.modules[i].short())
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	same, err := m.ofClasses(j, batch, names)
	slices.Sort(same)
	if sorted := slices.Sorted(slices.Values(units)); err != nil || len(names) == 0 || !slices.Equal(same, sorted) {
		return nil, fmt.Errorf("it calls fully_shard on all modules of some classes: plan with --fsdp-wrap %sNAMES", classPrefix)
	}
	return names, nil
}

// waysFor lists what a framework can checkpoint in a step.
func (m *Model) waysFor(q Config, f *Framework) ([]way, error) {
	j, err := m.resolve(q)
	if err != nil {
		return nil, err
	}
	batch, err := m.fixedBatch(j)
	if err != nil {
		return nil, err
	}
	ways, err := m.waysOf(j, batch, f)
	if err != nil {
		return nil, fmt.Errorf("%s cannot express the plan: %w", f.Name, err)
	}
	return ways, nil
}

// A triedWay is a way with the memory and time of its step.
type triedWay struct {
	way *way
	*Report
}

// fastest returns the way that fits and takes the least time, nil if none fits.
// It skips ways that checkpoint more of the same classes than one that fits.
func (m *Model) fastest(ctx context.Context, q Config, ways []way) (*triedWay, error) {
	var best *triedWay
	q.Checkpoint, q.Schedule = "", nil
	for i := range ways {
		if m.Progress != nil {
			m.Progress(i, len(ways), ways[i].setting)
		}
		if ways[i].read || best != nil && more(&ways[i], best.way) {
			continue
		}
		if q.Segments = ways[i].segs; ways[i].wrap != "" {
			q.FSDPWrap = classPrefix + ways[i].wrap
		}
		r, err := m.Analyze(ctx, q)
		if err != nil {
			return nil, err
		}
		if r.Fits != nil && *r.Fits && (best == nil || r.Time.StepMs < best.Time.StepMs) {
			best = &triedWay{&ways[i], r.Report}
		}
	}
	return best, nil
}

// more reports whether w recomputes all that o does and further layers of the same
// classes. Ways that keep results recompute less than their modules suggest.
func more(w, o *way) bool {
	if len(w.save) > 0 || len(o.save) > 0 || w.method != o.method || len(w.blocks) <= len(o.blocks) {
		return false
	}
	count := func(w *way, class string) (n int) {
		for _, b := range w.blocks {
			if b.class == class {
				n++
			}
		}
		return n
	}
	return !slices.ContainsFunc(o.blocks, func(b block) bool { return count(w, b.class) < count(o, b.class) })
}

// Verdict describes in a line what the framework does, and its cost.
func (e *Expression) Verdict() string {
	if e.Setting == "" {
		return e.Framework + ": nothing is checkpointed"
	}
	n := fmt.Sprintf("%d blocks", len(e.way.blocks))
	if len(e.way.blocks) == 1 {
		n = "1 block"
	}
	return fmt.Sprintf("%s: %s checkpoints %s, which costs %s the plan and peaks %s", e.Framework, e.Setting, n, dearer(e.Price), higher(e.Higher))
}

// InScript lists what a plan rests on that no configuration of checkpoints writes: code of the
// training script, with the topic that has it.
func (p *Plan) InScript() (out []string) {
	c := &p.Config
	if c.InBackward {
		out = append(out, "parameters are updated in backward (memplan help in-backward)")
	}
	if c.Loss == train.ChunkedLoss || c.Loss == train.LigerLoss {
		out = append(out, "the loss is "+c.Loss+" (memplan help chunked-loss)")
	}
	if _, hosted := c.offloads(); hosted {
		out = append(out, "the optimizer is on the host (memplan help offload)")
	}
	return out
}

// Unchanged is the verdict for a framework that accepts every plan.
func Unchanged(p *Plan, f *Framework) string {
	if len(p.Selection) == 0 {
		return f.Name + ": nothing is checkpointed"
	}
	return fmt.Sprintf("%s: the plan as it is, all %d regions", f.Name, len(p.Selection))
}

func dearer(price float64) string {
	switch {
	case math.Abs(price) < 5e-4:
		return "no more time than"
	case price < 0:
		return fmt.Sprintf("%.1f%% less time than", -100*price)
	}
	return fmt.Sprintf("%.1f%% more time than", 100*price)
}

func higher(bytes int64) string {
	switch {
	case bytes == 0:
		return "as high"
	case bytes < 0:
		return profile.FormatBytes(-bytes) + " lower"
	}
	return profile.FormatBytes(bytes) + " higher"
}

// Config returns the framework's configuration.
func (e *Expression) Config() ([]byte, error) { return FindFramework(e.Framework).write(e) }
