package planner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner/profile"
)

// Offloads are the values of --offload.
var Offloads = []string{"none", "activations", "optimizer", "both"}

// OffloadInfo is what a step keeps in its host's memory.
type OffloadInfo struct {
	Regions       int     `json:"regions"`       // modules whose activations go there
	Bytes         int64   `json:"bytes"`         // of activations that a micro-batch copies out, and back
	PinnedBytes   int64   `json:"pinnedBytes"`   // page-locked memory, as PyTorch's allocator rounds it to powers of two
	PageableBytes int64   `json:"pageableBytes"` // other memory of the process
	Bandwidth     float64 `json:"bandwidth"`     // of copies, bytes per second
	Measured      bool    `json:"measured"`      // whether the bandwidth was; else it is an estimate
	WaitMs        float64 `json:"waitMs"`        // of the step's time: the card waits for copies

	// Optimizer is the engine of an optimizer on the host; "" if it is on the card.
	Optimizer string `json:"optimizer,omitempty"`
}

// offloads reports what --offload asks for.
func (c *Config) offloads() (activations, optimizer bool) {
	return c.Offload == "activations" || c.Offload == "both", c.Offload == "optimizer" || c.Offload == "both"
}

// offloadRefused is an error if what --offload asks for has no engine.
func (j *job) offloadRefused() error {
	activations, optimizer := j.cfg.offloads()
	hosted := slices.ContainsFunc(j.cfg.Segments, func(s train.Segment) bool { return s.Offload })
	switch {
	case !activations && !optimizer && !hosted:
		return nil
	case j.cfg.Mode == "infer":
		return errors.New("--offload is about training steps: give it without --mode infer")
	case activations && (j.cfg.BatchMax || j.cfg.BatchBest || j.cfg.Target > 0):
		return fmt.Errorf("--offload %s with a batch of memplan's choice: batches are sought with recomputation alone: give --batch N", j.cfg.Offload)
	case j.meshed != nil:
		return fmt.Errorf("--offload %s with --parallel: the hooks copy whole storages of one card; FSDP2's own engine is --fsdp-offload", j.cfg.Offload)
	}
	if c := j.cfg.Checkpoint; activations && (c == "schedule" || c == "ops") {
		return fmt.Errorf("--offload %s with --checkpoint %s: memplan's executor recomputes only", j.cfg.Offload, c)
	}
	if optimizer {
		return j.hostOptimizer()
	}
	return nil
}

// stall is the time by which copies to the host and back lengthen a step, in seconds.
func stall(p *program.Program, m *TimeModel) float64 {
	if !slices.ContainsFunc(p.Nodes, func(n program.Node) bool { return len(n.Awaits) > 0 }) {
		return 0
	}
	free := *m
	free.Host = math.Inf(1)
	_, with := running(p, m)
	_, without := running(p, &free)
	return max(with.device, with.host) - max(without.device, without.host)
}

// offloadInfo describes what a step keeps on its host; nil: nothing.
func (a *answer) offloadInfo() *OffloadInfo {
	asked, pinned := a.ev.HostBytes()
	_, optimizer := a.j.cfg.offloads()
	if asked == 0 && !optimizer {
		return nil
	}
	o := &OffloadInfo{Bytes: asked, PinnedBytes: pinned, Bandwidth: a.j.time.Host, Measured: a.j.hostMeasured, WaitMs: 1e3 * stall(a.ev.Program, &a.j.time)}
	for i := range a.segs {
		if a.segs[i].Offload && !a.segs[i].Keep {
			o.Regions++
		}
	}
	if optimizer {
		o.Optimizer = hostOptimizerName
		p, q := a.optimizerHost()
		o.PinnedBytes, o.PageableBytes = o.PinnedBytes+p, o.PageableBytes+q
	}
	o.WaitMs = float64(int64(o.WaitMs*1e3+0.5)) / 1e3
	return o
}

// pinnedBytes is what PyTorch's allocator of pinned memory takes for a tensor
// (aten/src/ATen/core/CachingHostAllocator.h).
func pinnedBytes(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return 1 << bits.Len64(uint64(n-1))
}

// Effort of the joint search, in steps built.
const (
	offloadTries  = 192
	offloadLevels = 24 // of recomputation beside one choice of what is offloaded
	boundLevels   = 8  // at which the joint bound is evaluated
)

// A jointSearch chooses for each region whether its activations stay, are computed again or
// go to the host.
type jointSearch struct {
	a       *answer
	s       *selector
	modules []string // that may be offloaded, in the order of forward
	plans   []candidate
	best    []train.Segment
	cost    float64 // seconds
	tries   int
	dear    bool // the last choice tried costs as much as the best
}

// joint improves on segments that recompute alone, which may be nil: some modules that the
// model repeats go to the host in their place. It returns the cheapest choice found whose
// replay fits, and a lower bound on the seconds of any. plans are recomputations to combine.
func (a *answer) joint(ctx context.Context, s *selector, segs []train.Segment, plans []candidate) ([]train.Segment, float64, error) {
	parts, err := a.m.anatomy(a.j, a.batch)
	if err != nil {
		return nil, 0, err
	}
	q := &jointSearch{a: a, s: s, best: segs, cost: math.Inf(1), tries: offloadTries}
	q.modules = a.m.offloadable(parts)
	if segs != nil {
		if q.cost, err = q.seconds(segs); err != nil {
			return nil, 0, err
		}
	}
	q.plans = append([]candidate{{}}, plans...)
	for stride := 1; stride <= 3 && stride <= len(q.modules); stride++ {
		if err := q.stride(ctx, stride); err != nil {
			return nil, 0, err
		}
	}
	bound, err := q.bound()
	return q.best, min(bound, q.cost), err
}

// offloadable lists the modules that the model repeats, in the order in which they run, of
// those within each other the outermost.
func (m *Model) offloadable(parts *anatomy) []string {
	type run struct {
		name   string
		lo, hi int
	}
	var runs []run
	for _, b := range parts.blocks {
		if lo, hi := train.Range(m.lifted, []string{b.name}); lo < hi {
			runs = append(runs, run{b.name, lo, hi})
		}
	}
	slices.SortStableFunc(runs, func(x, y run) int {
		if x.lo != y.lo {
			return x.lo - y.lo
		}
		return y.hi - x.hi
	})
	var out []string
	end := 0
	for _, r := range runs {
		if r.lo >= end {
			out, end = append(out, r.name), r.hi
		}
	}
	return out
}

// seconds is what a choice adds to the step: recomputation and waiting.
func (q *jointSearch) seconds(segs []train.Segment) (float64, error) {
	b, err := q.a.m.build(q.a.j, q.a.batch, segs)
	if err != nil {
		return 0, err
	}
	return addedSeconds(b.Program, &q.a.j.time), nil
}

// addedSeconds sums the seconds of recomputation and of waiting for the host.
func addedSeconds(p *program.Program, m *TimeModel) float64 {
	t := stall(p, m)
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Recompute && n.Only != program.FirstStep {
			t += float64(p.Runs(n)) * m.Seconds(n)
		}
	}
	return t
}

// stride offloads more and more of every stride-th module, the first ones first: their
// activations live longest, and their copies have the most time.
func (q *jointSearch) stride(ctx context.Context, stride int) error {
	var host []train.Segment
	for i := 0; i < len(q.modules); i += stride {
		host = append(host, train.Segment{Modules: []string{q.modules[i]}, Offload: true})
		ahead := q.modules[min(i+stride, len(q.modules)):]
		b, err := q.a.m.build(q.a.j, q.a.batch, q.merged(host, nil, ahead))
		if err != nil {
			return err
		}
		if addedSeconds(b.Program, &q.a.j.time) >= q.cost || q.tries <= 0 || q.a.late(ctx) {
			return nil
		}
		asked, _ := b.HostBytes()
		again, fits, err := q.beside(ctx, host, ahead, asked)
		if err != nil || fits && !again { // nothing is computed again: more on the host costs more
			return err
		}
	}
	return nil
}

// beside looks for the cheapest recomputation of other modules with which a choice of
// offloaded ones fits; again is whether that computes anything. ahead are modules after the
// last offloaded one, the first of which that is not computed again starts its copies back.
func (q *jointSearch) beside(ctx context.Context, host []train.Segment, ahead []string, asked int64) (again, fits bool, err error) {
	for _, c := range q.plans {
		if c.cost >= q.cost || q.tries <= 0 || q.a.late(ctx) {
			break
		}
		if peak, _, ok := q.s.problem.Levels(c.segs, checkpointsel.Hoped); ok && peak-asked > q.a.j.cap {
			continue
		}
		if ok, err := q.try(ctx, q.merged(host, c.segs, ahead)); ok || err != nil {
			return len(c.segs) > 0, ok, err
		}
	}
	if len(q.plans) == 1 { // nothing may be computed again
		return false, false, nil
	}
	return true, false, q.fewest(ctx, host, ahead)
}

// fewest looks, by bisection, for the fewest of the last modules that have to be computed
// again beside a choice of offloaded ones.
func (q *jointSearch) fewest(ctx context.Context, host []train.Segment, ahead []string) error {
	var rest []train.Segment
	for _, name := range q.modules {
		if !slices.ContainsFunc(host, func(s train.Segment) bool { return s.Modules[0] == name }) {
			rest = append(rest, train.Segment{Modules: []string{name}})
		}
	}
	for lo, hi := 0, len(rest)+1; hi-lo > 1 && q.tries > 0 && !q.a.late(ctx); {
		k := (lo + hi) / 2
		ok, err := q.try(ctx, q.merged(host, rest[len(rest)-k:], ahead))
		if err != nil {
			return err
		}
		if ok || q.dear {
			hi = k
		} else {
			lo = k
		}
	}
	return nil
}

// try adopts a choice if it costs less than the best and its replay fits; dear is whether it
// costs as much.
func (q *jointSearch) try(ctx context.Context, segs []train.Segment) (bool, error) {
	q.tries--
	t, err := q.seconds(segs)
	if err != nil {
		return false, err
	}
	if q.dear = t >= q.cost; q.dear {
		return false, nil
	}
	ok, err := q.a.replays(ctx, segs)
	if ok {
		q.best, q.cost = segs, t
	}
	return ok, err
}

// merged adds to what is offloaded the recomputed segments that share no call with it, and
// the first of ahead that shares none with these.
func (q *jointSearch) merged(host, again []train.Segment, ahead []string) []train.Segment {
	l := q.a.m.lifted
	apart := func(s train.Segment, list []train.Segment) bool {
		lo, hi := train.Range(l, s.Modules)
		return !slices.ContainsFunc(list, func(x train.Segment) bool {
			a, b := train.Range(l, x.Modules)
			return a < hi && lo < b
		})
	}
	out := slices.Clone(host)
	for _, s := range again {
		if apart(s, host) {
			out = append(out, s)
		}
	}
	for _, name := range ahead {
		if s := (train.Segment{Modules: []string{name}, Offload: true, Keep: true}); apart(s, out) {
			out = append(out, s)
			break
		}
	}
	slices.SortStableFunc(out, func(x, y train.Segment) int {
		a, _ := train.Range(l, x.Modules)
		b, _ := train.Range(l, y.Modules)
		return a - b
	})
	return out
}

// bound is a lower bound on the seconds that any fitting choice adds. A choice that sends B
// bytes to the host has, without them, at most B bytes more at any moment: its
// recomputation costs at least as much as the least at the cap plus B. All copies out end
// within forward and all copies back within backward, one after the other, so waiting takes
// at least what B needs beyond forward's time, and recomputation and waiting together what
// B needs beyond backward's. The minimum over B is bounded between neighbouring levels by
// the recomputation of the higher and the waiting of the lower one.
func (q *jointSearch) bound() (float64, error) {
	plain := q.s.base
	t := timeOf(plain.Program, &q.a.j.time, 1)
	micros := float64(max(plain.Micros, 1))
	forward, backward := t.ForwardMs/1e3/micros, t.BackwardMs/1e3/micros
	if micros > 1 { // times are those of the last micro-batch's ends: no phase takes longer than all
		forward, backward = t.StepMs/1e3/micros, t.StepMs/1e3/micros
	}
	rate := q.a.j.time.Host
	recompute := func(extra float64) float64 {
		best, cap := math.Inf(1), q.a.j.cap+int64(extra)
		for _, p := range []choice{q.s.problem, q.s.selective, q.s.nested()} {
			if _, c, ok := p.Solve(cap, checkpointsel.Hoped); ok {
				best = min(best, c)
			}
		}
		return best
	}
	waiting := func(bytes, redo float64) float64 {
		out := max(0, bytes/rate-forward)
		return micros * max(redo/micros+out, out+bytes/rate-backward)
	}
	var all float64
	for _, id := range plain.Saved {
		if s := &plain.Storages[id]; s.Life == program.Step {
			all += float64(s.Bytes)
		}
	}
	low := math.Inf(1)
	for i := range boundLevels {
		from, to := all*float64(i)/boundLevels, all*float64(i+1)/boundLevels
		low = min(low, waiting(from, recompute(to)))
	}
	return max(low, 0), nil
}

// selectJoint is the end of selectFor where activations may go to the host, too: segs are
// those that recompute alone, nil if none fit, and bound is theirs.
func (a *answer) selectJoint(ctx context.Context, s *selector, segs []train.Segment, bound float64) (bool, error) {
	if on, _ := a.j.cfg.offloads(); !on {
		return false, nil
	}
	segs, low, err := a.joint(ctx, s, segs, candidates(s.problem, offloadLevels, math.MaxInt64))
	if err != nil || segs == nil {
		return false, err
	}
	return true, a.adoptJoint(s, segs, min(low, bound))
}

// adoptJoint describes a choice of what stays, is computed again or goes to the host.
func (a *answer) adoptJoint(s *selector, segs []train.Segment, bound float64) error {
	a.segs = segs
	a.proof = fmt.Sprintf("least recomputation and waiting of any choice of segments and of storages on the host, at %d bytes and %.3g bytes a second each way: %.6f s", a.j.cap, a.j.time.Host, bound)
	if err := a.describe(s, bound, true); err != nil {
		return err
	}
	a.check.Class = "offload"
	return nil
}

// offloadAlone sends activations to the host where nothing may be computed again.
func (a *answer) offloadAlone(ctx context.Context) error {
	if on, _ := a.j.cfg.offloads(); !on || a.j.cap == 0 {
		return nil
	}
	b, err := a.build(a.batch, nil)
	if err != nil {
		return err
	}
	if _, fits, err := capped(b, a.j); err != nil || fits {
		return err
	}
	s, err := a.selector()
	if err != nil {
		return err
	}
	segs, bound, err := a.joint(ctx, s, nil, nil)
	if err != nil {
		return err
	}
	if segs == nil {
		a.note("no-selection", "no choice of modules on the host fits that keeps or offloads whole modules which the model repeats; without --checkpoint none others may be computed again")
		return nil
	}
	return a.adoptJoint(s, segs, bound)
}

// offloadNotes says what the figures of the host rest on.
func (a *answer) offloadNotes() (out []graph.Warning) {
	if o := a.offloadInfo(); o != nil {
		if !o.Measured {
			out = append(out, graph.Warning{Code: "host-bandwidth", Message: fmt.Sprintf("copies to the host and back are counted at %.3g GB/s, an estimate from the card's link: --host-bandwidth says what this host reaches, memplan calibrate measures it", o.Bandwidth/1e9)})
		}
		if o.Optimizer != "" {
			out = append(out, graph.Warning{Code: "host-optimizer", Message: fmt.Sprintf("%s updates %s on the host: counted at %.3g parameters a second, an estimate that depends on its processor", o.Optimizer, profile.FormatBytes(a.hostedParameters()), hostUpdates)})
		}
	}
	return out
}

// The rest of this file is about an optimizer on the host.

const (
	// hostOptimizerName is the engine of --offload optimizer (torchao/optim/cpu_offload.py,
	// 0.19): AdamW fused on the processor, one optimizer for each parameter.
	hostOptimizerName = "torchao.optim.CPUOffloadOptimizer"
	// leastHosted is its minimal_size: parameters of fewer elements stay on the card.
	leastHosted = 4096
	// hostUpdates is how many parameters a second it updates, an estimate.
	hostUpdates = 1e9
)

// hostRules are the optimizers that it takes here: it makes AdamW fused by itself.
var hostRules = []string{"adamw", "adamw-fused"}

// hostOptimizer checks that the optimizer on the host is one of torchao's engine, and gives
// the small parameters' update, on the card, the kernels that it takes.
func (j *job) hostOptimizer() error {
	if j.optimizer == nil || !slices.Contains(hostRules, j.optimizer.Name) {
		name := "none"
		if j.optimizer != nil {
			name = j.optimizer.Name
		}
		return fmt.Errorf("--offload %s with --optimizer %s: the engine is %s with AdamW; DeepSpeed's CPUAdam and others are not predicted (with --parallel fsdp=N, --fsdp-offload is)", j.cfg.Offload, name, hostOptimizerName)
	}
	if j.cfg.Accumulate > 1 {
		return fmt.Errorf("--offload %s with --accumulate %d: %s copies gradients to the host after every backward, which is not predicted", j.cfg.Offload, j.cfg.Accumulate, hostOptimizerName)
	}
	fused, err := profile.FindOptimizer("adamw-fused")
	j.optimizer = fused
	return err
}

// onHost reports whether the host has a parameter's copy and state.
func (j *job) onHost(elems int64) bool {
	_, optimizer := j.cfg.offloads()
	return optimizer && elems >= leastHosted
}

// hostedUpdate leaves the parameters on the host out of an update on the card.
func (j *job) hostedUpdate(update func([]train.UpdateParam, bool) []train.UpdateEvent) func([]train.UpdateParam, bool) []train.UpdateEvent {
	return func(ps []train.UpdateParam, first bool) []train.UpdateEvent {
		var small []train.UpdateParam
		var at []int32
		for i, p := range ps {
			if !j.onHost(p.Elems) {
				small, at = append(small, p), append(at, int32(i))
			}
		}
		if len(small) == 0 {
			return nil
		}
		out := update(small, first)
		for i := range out {
			if out[i].Param >= 0 {
				out[i].Param = at[out[i].Param]
			}
		}
		return out
	}
}

// hosted lists the bytes of the trained parameters on the host.
func (a *answer) hosted() (sizes, elems []int64) {
	for _, p := range a.ev.Params {
		n, _ := graph.Product(p.Tensor.Shape)
		if p.Grad != program.None && a.j.onHost(n) {
			sizes, elems = append(sizes, p.Tensor.DType.Bytes(n)), append(elems, n)
		}
	}
	return sizes, elems
}

func (a *answer) hostedParameters() (n int64) {
	sizes, _ := a.hosted()
	for _, b := range sizes {
		n += b
	}
	return n
}

// optimizerHost is the host's memory for an optimizer there: a pinned copy of each
// parameter and of its gradient, and pageable state: two moments and a step of float32.
func (a *answer) optimizerHost() (pinned, pageable int64) {
	sizes, _ := a.hosted()
	for _, b := range sizes {
		pinned += 2 * pinnedBytes(b)
		pageable += 2*b + 4
	}
	return pinned, pageable
}

// hostUpdateSeconds is how long the step waits for the update on the host: gradients come
// while backward runs; each parameter is updated and copied back, one after the other.
func (a *answer) hostUpdateSeconds() float64 {
	sizes, elems := a.hosted()
	var update, last float64
	for i := range sizes {
		update += float64(elems[i]) / hostUpdates
		last = float64(sizes[i]) / a.j.time.Host
	}
	return update + last
}
