package planner

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/shard"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner/profile"
)

// What NCCL keeps on a card outside PyTorch's allocator, bytes: the first
// communicator of a process, and each further one (NCCL 2.28.9, H200s over NVLink;
// testdata/distributed/steps.jsonl.xz, its first line).
const (
	ncclFirst   = 840 << 20
	ncclFurther = 486 << 20
)

// ParallelInfo is the part of a report about a step spread over several cards.
type ParallelInfo struct {
	Mesh      map[string]int `json:"mesh"`  // ranks of each dimension; hsdp's are replicate and shard
	Ranks     int            `json:"ranks"` // all of them
	WorstRank int            `json:"worstRank"`
	PerRank   []RankInfo     `json:"perRank"`           // those that can differ, at most eight of them
	NCCLBytes int64          `json:"ncclBytes"`         // per rank, in processBytes
	HostBytes int64          `json:"hostBytes"`         // pinned memory of a rank's host, for what is offloaded
	Wrapped   []string       `json:"wrapped,omitempty"` // modules that fully_shard is called on, beside the root
}

// RankInfo is what one rank needs.
type RankInfo struct {
	Rank           int   `json:"rank"`
	Stage          int   `json:"stage"`
	AllocatedBytes int64 `json:"allocatedBytes"`
	ReservedBytes  int64 `json:"reservedBytes"`
	ProcessBytes   int64 `json:"processBytes"`
}

// A meshed is a question's mesh and the rank whose step is built.
type meshed struct {
	shard.Setup
	place shard.Place
	wrap  string // blocks, or a pattern of module names
}

// modelled are the dimensions that a question may name.
var modelled = []string{"ddp", "zero1", "fsdp", "hsdp"}

// ParseParallel reads --parallel.
func ParseParallel(text string) (shard.Mesh, error) {
	for part := range strings.SplitSeq(text, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(part), "=")
		if slices.Contains([]string{"zero2", "zero3", "tp", "pp", "cp", "ep"}, name) {
			return shard.Mesh{}, fmt.Errorf("parallel %s: %s is not modelled (known: %s)", text, name, strings.Join(modelled, ", "))
		}
	}
	m, err := shard.ParseMesh(text)
	if err != nil {
		return m, fmt.Errorf("parallel %s: %w", text, err)
	}
	return m, nil
}

var errOnlyFSDP = errors.New("--fsdp-wrap, --fsdp-reshard, --fsdp-precision and --fsdp-offload need a mesh with fsdp or hsdp: give --parallel fsdp=N")

// spreads resolves the settings of a mesh; nil without one.
func (j *job) spreads() (*meshed, error) {
	c := &j.cfg
	plain := c.FSDPWrap == "blocks" && c.FSDPReshard == "true" && c.FSDPPrecision == "none" && !c.FSDPOffload
	if c.Parallel == "" {
		if !plain {
			return nil, errOnlyFSDP
		}
		return nil, nil
	}
	mesh, err := ParseParallel(c.Parallel)
	if err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	s := &meshed{wrap: c.FSDPWrap}
	s.Mesh = mesh
	switch {
	case !j.train:
		return nil, errors.New("--parallel is of a training step: give --mode train")
	case mesh.Shards == 0 && !plain:
		return nil, errOnlyFSDP
	case mesh.Shards > 0 && c.Accumulate > 1:
		return nil, errors.New("--accumulate with fsdp: accumulation of sharded gradients is not modelled")
	case c.FSDPPrecision == "bf16" && j.precision.Name != "fp32":
		return nil, fmt.Errorf("--fsdp-precision bf16 casts float32 parameters: give it without --precision %s", j.precision.Name)
	}
	s.FSDP.Keep, s.FSDP.Offload = c.FSDPReshard == "false", c.FSDPOffload
	s.DDP.LateFree = true // the larger of two: what must fit
	s.FSDP.Device = shard.Device{SMs: j.device.SMs, ThreadsPerSM: threadsPerSM(j.device)}
	if c.FSDPPrecision == "bf16" {
		s.FSDP.Stored, s.FSDP.Reduced = graph.Float32, graph.Float32
		if j.precision, err = profile.FindPrecision("bf16"); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// nccl is what communicators take of a rank's card, bytes.
func (s *meshed) nccl() int64 {
	n := s.Groups()
	if n > 1 { // the world's, and one a dimension
		n++
	}
	return ncclFirst + int64(n-1)*ncclFurther
}

// wrap finds the modules that fully_shard is called on, once.
func (m *Model) wrap(j *job, batch int64) (err error) {
	if s := j.meshed; s != nil && s.Shards > 0 && s.FSDP.Units == nil {
		s.FSDP.Units, err = m.units(j, s.wrap, batch)
	}
	return err
}

// units are the blocks that the model repeats, or the modules that match a pattern.
func (m *Model) units(j *job, wrap string, batch int64) (out []string, err error) {
	if err := m.bind(batch, j.cfg.Dims, j.cfg.Shapes); err != nil {
		return nil, err
	}
	if wrap != "blocks" {
		return m.matching(wrap)
	}
	a, err := m.anatomy(j.single(), batch)
	if err != nil {
		return nil, err
	}
	for _, b := range a.blocks {
		out = append(out, b.name)
	}
	if len(out) == 0 {
		return nil, errors.New("--fsdp-wrap blocks: the file shows no blocks that the model repeats; give a pattern of module names")
	}
	return out, nil
}

// matching are the modules whose names match a pattern of --fsdp-wrap.
func (m *Model) matching(wrap string) (out []string, err error) {
	for _, x := range m.lifted.Modules() {
		if ok, err := path.Match(strings.ReplaceAll(wrap, ".", "/"), strings.ReplaceAll(x.Name, ".", "/")); err != nil {
			return nil, fmt.Errorf("--fsdp-wrap %s: %w", wrap, err)
		} else if ok {
			out = append(out, x.Name)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("--fsdp-wrap %s: no module has such a name", wrap)
	}
	return out, nil
}

// mostRanks is how many ranks a report lists.
const mostRanks = 8

// places are the ranks that a report lists: all of a few, else the first and the last.
func (s *meshed) places() (out []shard.Place, ranks []int) {
	n := s.Ranks()
	for _, r := range ranksOf(n) {
		d := r
		if s.Shards > 0 {
			d = r % s.Shards
		}
		out, ranks = append(out, shard.Place{Data: d}), append(ranks, r)
	}
	return out, ranks
}

func ranksOf(n int) (out []int) {
	if n > mostRanks {
		return []int{0, n - 1}
	}
	for r := range n {
		out = append(out, r)
	}
	return out
}

// parallel replays the ranks that can differ from the one that was analysed.
func (a *answer) parallel() error {
	s := a.j.meshed
	if s == nil {
		return nil
	}
	a.ranks = &ParallelInfo{Mesh: meshMap(s.Mesh), Ranks: s.Ranks(), NCCLBytes: s.nccl(), HostBytes: a.hostBytes(), Wrapped: s.FSDP.Units}
	places, ranks := s.places()
	seen := map[shard.Place]*evaluation{s.place: a.ev}
	for i, p := range places {
		ev := seen[p]
		if ev == nil {
			other, on := *a.j, *s
			on.place, other.meshed = p, &on
			b, err := plannedStep(func(segs []train.Segment) (*train.Build, error) { return a.m.build(&other, a.batch, segs) }, &other, a.segs, a.steps)
			if err != nil {
				return err
			}
			if ev, _, err = settled(b, &other); err != nil {
				return err
			}
			seen[p] = ev
		}
		r := RankInfo{Rank: ranks[i], Stage: p.Pipeline, AllocatedBytes: ev.res.Allocated, ReservedBytes: ev.res.Reserved, ProcessBytes: ev.res.Reserved + a.j.besides()}
		if a.ranks.PerRank = append(a.ranks.PerRank, r); r.ReservedBytes > a.ranks.PerRank[a.ranks.worst()].ReservedBytes {
			a.ranks.WorstRank = r.Rank
		}
	}
	if worst := places[a.ranks.worst()]; worst != s.place { // the rest of the answer is about it
		on := *s
		on.place = worst
		a.j.meshed, a.made = &on, nil
		var err error
		a.ev, a.fits, err = settled(seen[worst].Build, a.j)
		return err
	}
	return nil
}

// worst is the index of the worst rank.
func (p *ParallelInfo) worst() int {
	return max(0, slices.IndexFunc(p.PerRank, func(r RankInfo) bool { return r.Rank == p.WorstRank }))
}

// besides is what a process takes of its card beside the allocator, bytes.
func (j *job) besides() int64 {
	if j.meshed == nil {
		return j.device.Context
	}
	return j.device.Context + j.meshed.nccl()
}

// meshMap is the mesh as documents have it.
func meshMap(m shard.Mesh) map[string]int {
	out := map[string]int{}
	switch {
	case m.Replicas > 0 && m.Shards > 0:
		out["replicate"], out["shard"] = m.Replicas, m.Shards
	case m.Shards > 0:
		out["fsdp"] = m.Shards
	case m.ZeRO:
		out["zero1"] = m.Replicas
	case m.Replicas > 0:
		out["ddp"] = m.Replicas
	}
	return out
}

// hostBytes is what a rank pins on its host: its shards, their gradients and the
// optimizer's state.
func (a *answer) hostBytes() int64 {
	if !a.j.cfg.FSDPOffload {
		return 0
	}
	d := graph.Float32
	var elems []train.UpdateParam
	var n int64
	for _, p := range a.ev.Params {
		shape := slices.Clone(p.Tensor.Shape)
		shape[0] = (shape[0] + int64(a.j.meshed.Shards) - 1) / int64(a.j.meshed.Shards)
		size, _ := graph.Product(shape)
		n += d.Bytes(size)
		if p.Grad != program.None {
			n += d.Bytes(size)
			elems = append(elems, train.UpdateParam{Elems: size, DType: d, Shape: shape})
		}
	}
	if a.j.optimizer != nil {
		for _, ev := range updateEvents(a.j.optimizer.Step(profileParams(elems, aten.Config{}), true)) {
			if ev.State && !ev.Free {
				n += ev.Bytes
			}
		}
	}
	return n
}

// parallelNotes says what a prediction over several cards leaves out.
func (a *answer) parallelNotes() (out []graph.Warning) {
	s := a.j.meshed
	if s == nil {
		return nil
	}
	out = append(out, graph.Warning{Code: "parallel-time", Message: "times are those of a rank's own operators: communication is not counted"})
	if s.Replicas > 0 && s.Shards == 0 {
		out = append(out, graph.Warning{Code: "parallel-buckets", Message: "DDP makes its gradient buckets anew in the second step; until NCCL's watchdog, which looks ten times a second, lets go of the first ones, both are there: the peak counts both, and ranks whose steps take longer show less"})
	}
	return out
}

// single is the question about one card.
func (j *job) single() *job {
	if j.meshed == nil {
		return j
	}
	one := *j
	one.meshed = nil
	return &one
}
