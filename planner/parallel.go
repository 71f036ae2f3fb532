package planner

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
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

// ParallelInfo is the part of a report about a step over several cards.
type ParallelInfo struct {
	Mesh      map[string]int `json:"mesh"`  // ranks of each dimension; hsdp's are replicate and shard
	Ranks     int            `json:"ranks"` // all of them
	WorstRank int            `json:"worstRank"`
	PerRank   []RankInfo     `json:"perRank"`           // the ranks that can differ: all of up to eight, else the first and the last of each stage
	NCCLBytes int64          `json:"ncclBytes"`         // per rank, in processBytes
	HostBytes int64          `json:"hostBytes"`         // pinned host memory of a rank, for what is offloaded
	Wrapped   []string       `json:"wrapped,omitempty"` // modules that fully_shard is called on, besides the root

	Stages []string          `json:"stages,omitempty"` // modules that stages of a pipeline begin with, all but the first
	Tensor map[string]string `json:"tensor,omitempty"` // modules that tensor parallelism splits: colwise or rowwise

	Experts *ExpertInfo `json:"experts,omitempty"` // with ep
}

// RankInfo is one rank's memory.
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
	place  shard.Place
	wrap   string           // blocks, or a pattern of module names
	split  string           // blocks, or the modules that stages begin with
	dims   map[string]int64 // dims of the file on a rank, where sequences are divided; else nil
	found  bool             // the modules that tensor parallelism splits were looked for
	uneven []int64          // dims of parameters of which its ranks have different parts
	loop   bool             // the optimizer updates one parameter after the other
	meta   int64            // bytes that a card would hold before the model is cut, where that is more than it has; else 0

	imbalance float64 // rows that a rank's experts receive, as a multiple of a balanced router's

	stages []float64 // milliseconds of a pipeline's ranks, forward and backward alone
}

// ParseParallel parses --parallel.
func ParseParallel(text string) (shard.Mesh, error) {
	m, err := shard.ParseMesh(text)
	switch {
	case err != nil:
	case m.Experts > 0 && (m.Pipeline > 0 || m.Context > 0 || m.Tensor > 0 || m.Stage > 0 || m.Replicas > 0 && m.Shards == 0):
		err = errors.New("expert parallelism is modelled alone and among the ranks of fsdp or hsdp: give ep=N, fsdp=M,ep=N or hsdp=RxM,ep=N")
	case m.Context > 0 && m.Pipeline > 0:
		err = errors.New("context parallelism in a pipeline is not modelled: give cp with ddp, fsdp, hsdp or tp")
	case m.Stage > 0 && m.Data() < m.Ranks():
		err = errors.New("DeepSpeed's ZeRO with another dimension is not modelled: give it alone")
	}
	if err != nil {
		return m, fmt.Errorf("parallel %s: %w", text, err)
	}
	return m, nil
}

// parseReshard parses --fsdp-reshard: 0 for true, 1 for false, or the number of ranks over which
// gathered parameters stay sharded.
func parseReshard(text string) (int, error) {
	if on, err := strconv.ParseBool(text); err == nil && len(text) > 1 {
		return map[bool]int{true: 0, false: 1}[on], nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 {
		return 0, fmt.Errorf("fsdp-reshard %s: want true, false or a number of ranks from 2", text)
	}
	return n, nil
}

// scheduleNames lists the schedules of pipelines.
func scheduleNames() []string {
	return texts(shard.Schedules, func(s *shard.Schedule) string { return s.Name })
}

// dimensionSettings are the settings that belong to one dimension of a mesh.
var dimensionSettings = []struct {
	prefix, dimension string
	in                func(m *shard.Mesh) bool
}{
	{"fsdp-", "fsdp or hsdp", func(m *shard.Mesh) bool { return m.Shards > 0 }},
	{"ddp-", "ddp or zero1", func(m *shard.Mesh) bool { return m.Replicas > 0 && m.Shards == 0 }},
	{"zero-", "zero2 or zero3", func(m *shard.Mesh) bool { return m.Stage > 0 }},
	{"tp-", "tp", func(m *shard.Mesh) bool { return m.Tensor > 0 }},
	{"cp-", "cp", func(m *shard.Mesh) bool { return m.Context > 0 }},
	{"ep-", "ep", func(m *shard.Mesh) bool { return m.Experts > 0 }},
	{"pp-", "pp", func(m *shard.Mesh) bool { return m.Pipeline > 0 }},
}

// needless returns an error for a setting of a dimension that the mesh lacks.
func needless(c *Config, m *shard.Mesh) (err error) {
	given(c, func(s *Setting, dimension string, in func(m *shard.Mesh) bool) {
		if err == nil && !in(m) {
			err = fmt.Errorf("--%s needs a mesh with %s: give --parallel %s=N", s.Flag, dimension, strings.Fields(dimension)[0])
		}
	})
	return err
}

// given visits the settings of dimensions that a question changes, with the dimension of each.
func given(c *Config, visit func(s *Setting, dimension string, in func(m *shard.Mesh) bool)) {
	for _, d := range dimensionSettings {
		for i := range Settings {
			s := &Settings[i]
			if v := s.Values(c); strings.HasPrefix(s.Flag, d.prefix) && len(v) > 0 && v[0] != s.Default {
				visit(s, d.dimension, d.in)
			}
		}
	}
}

// suited is a question without the settings of dimensions that a mesh lacks.
func suited(c Config, m *shard.Mesh) Config {
	out := c
	given(&c, func(s *Setting, _ string, in func(m *shard.Mesh) bool) {
		if !in(m) {
			reflect.ValueOf(s.At(&out)).Elem().SetZero()
		}
	})
	return out
}

// unasked clears the settings of dimensions that a mesh lacks.
func (s *meshed) unasked(c *Config) {
	if s == nil || s.Shards == 0 {
		c.FSDPWrap, c.FSDPReshard, c.FSDPPrecision = "", "", ""
	}
	if s == nil || s.Mesh.Pipeline == 0 {
		c.PPSplit, c.PPSchedule = "", ""
	}
}

// spreads resolves the settings of a mesh; nil without one.
func (j *job) spreads() (*meshed, error) {
	c := &j.cfg
	if c.Parallel == "" {
		return nil, needless(c, &shard.Mesh{})
	}
	mesh, err := ParseParallel(c.Parallel)
	if err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	s := &meshed{wrap: c.FSDPWrap, split: c.PPSplit}
	s.Mesh = mesh
	switch err := needless(c, &mesh); {
	case !j.train:
		return nil, errors.New("--parallel is of a training step: give --mode train")
	case err != nil:
		return nil, err
	case mesh.Stage > 0 && c.Accumulate > 1:
		return nil, errors.New("--accumulate with DeepSpeed's ZeRO is not modelled: give it without")
	case mesh.Pipeline > 0 && c.Accumulate > 1:
		return nil, errors.New("--accumulate with pp: a pipeline's step has micro-batches; give --pp-micros")
	case c.FSDPPrecision == "bf16" && j.precision.Name != "fp32":
		return nil, fmt.Errorf("--fsdp-precision bf16 casts float32 parameters: give it without --precision %s", j.precision.Name)
	}
	s.DDP = shard.DDP{Bucket: c.DDPBucket, First: c.DDPFirst, BucketViews: c.DDPViews, Unused: c.DDPUnused, LateFree: true} // the larger of two: what must fit
	s.Engine = shard.DeepSpeed{Bucket: int64(c.ZeROBucket), Overlap: c.ZeROOverlap, Persistence: int64(c.ZeROPersistence), Reuse: int64(c.ZeROReuse), Prefetch: int64(c.ZeROPrefetch), Live: int64(c.ZeROLive)}
	s.TP = shard.TP{Colwise: c.TPColwise, Rowwise: c.TPRowwise, Sequence: slices.Clone(c.TPSequence), Loss: c.TPLoss}
	if o := j.optimizer; mesh.Tensor+mesh.Experts > 0 && mesh.Shards == 0 && o != nil && o.Name == profile.Optimizers[0].Name {
		s.loop = true // foreach kernels refuse DTensors beside plain parameters
		if j.optimizer, err = profile.FindOptimizer(o.Name + "-loop"); err != nil {
			return nil, err
		}
	}
	if s.dims, err = divided(c, mesh.Context); err != nil {
		return nil, err
	}
	if err := s.experts(j); err != nil {
		return nil, err
	}
	if mesh.Pipeline > 0 {
		s.Pipeline.Schedule, s.Pipeline.Micros, s.Pipeline.Stages = c.PPSchedule, cmp.Or(c.PPMicros, mesh.Pipeline), c.PPStages
	}
	return s, s.fsdp(j)
}

// divided returns the dims of a question as a rank has them that shares its sequences with
// others; nil without such ranks, and where the file's sequences have one length.
func divided(c *Config, ranks int) (map[string]int64, error) {
	names := c.CPDim
	if len(names) == 0 && len(c.Dims) == 1 {
		names = slices.Collect(maps.Keys(c.Dims))
	}
	if ranks == 0 || len(names) == 0 {
		return nil, nil
	}
	out := maps.Clone(c.Dims)
	for _, name := range names {
		n, ok := c.Dims[name]
		switch {
		case !ok:
			return nil, fmt.Errorf("--cp-dim %s: give the whole length of the sequence, --dim %s=N", name, name)
		case n%int64(ranks) != 0:
			return nil, fmt.Errorf("--dim %s=%d: not a multiple of the %d ranks that share a sequence", name, n, ranks)
		}
		out[name] = n / int64(ranks)
	}
	return out, nil
}

// folded is how many ranks share a sequence whose length the question does not divide: a
// rank's step then is that of so many times fewer whole sequences, which are as many
// tokens. 1 where it does, and without such ranks.
func (j *job) folded() int64 {
	if j.meshed == nil || j.meshed.dims != nil {
		return 1
	}
	return int64(max(j.meshed.Mesh.Context, 1))
}

// boundFor binds the shapes of the question's step on a rank.
func (m *Model) boundFor(j *job, batch int64) error {
	dims := j.cfg.Dims
	if j.meshed != nil && j.meshed.dims != nil {
		dims = j.meshed.dims
	}
	n := j.folded()
	return m.bind((batch+n-1)/n, dims, j.cfg.Shapes)
}

// ring is the ring of attention that a rank takes part in.
func (j *job) ring() aten.Ring {
	if j.meshed == nil {
		return aten.Ring{}
	}
	return aten.Ring{Size: j.meshed.Mesh.Context, Rank: j.meshed.place.Context, Folded: j.folded() > 1}
}

// rings returns an error for a step without attention that context parallelism can spread.
func (s *meshed) rings(b *train.Build) error {
	if s.Mesh.Context == 0 {
		return nil
	}
	for i := range b.Nodes {
		if a := b.Nodes[i].Attrs; a != nil && a.Ring {
			return nil
		}
	}
	return fmt.Errorf("--parallel %s: the file has no scaled_dot_product_attention, which alone context_parallel spreads over the ranks of a sequence", s.Mesh)
}

// fsdp resolves the settings of sharded parameters.
func (s *meshed) fsdp(j *job) error {
	c := &j.cfg
	n, err := parseReshard(c.FSDPReshard)
	if err != nil {
		return fmt.Errorf("--%w", err)
	}
	s.FSDP = shard.FSDP{Keep: n == 1, Offload: c.FSDPOffload, Prefetch: c.FSDPPrefetch}
	if n > 1 {
		s.FSDP.Within = n
	}
	s.FSDP.Device = shard.Device{SMs: j.device.SMs, ThreadsPerSM: threadsPerSM(j.device)}
	if c.FSDPPrecision == "bf16" {
		s.FSDP.Stored, s.FSDP.Reduced = graph.Float32, graph.Float32
		j.precision, err = profile.FindPrecision("bf16")
	}
	return err
}

// micros returns the number of micro-batches in a step.
func (j *job) micros() int {
	if j.meshed != nil && j.meshed.Mesh.Pipeline > 0 {
		return j.meshed.Pipeline.Micros
	}
	return j.cfg.Accumulate
}

// nccl returns the bytes that communicators take of a rank's card.
func (s *meshed) nccl() int64 {
	n := s.Groups()
	if n > 1 { // the world's, and one for each dimension
		n++
	}
	if s.Mesh.Context+s.Experts > 0 { // sends and receives have buffers of their own
		n++
	}
	return ncclFirst + int64(n-1)*ncclFurther
}

// wrap finds the modules that the dimensions of a mesh apply to, once.
func (m *Model) wrap(j *job, batch int64) (err error) {
	s := j.meshed
	if s == nil {
		return nil
	}
	if s.Shards > 0 && s.FSDP.Units == nil {
		if s.FSDP.Units, err = m.units(j, s.wrap, batch); err != nil {
			return err
		}
	}
	if err := m.expertUnits(j, batch); err != nil {
		return err
	}
	if n := s.Mesh.Pipeline; n > 0 && s.Pipeline.Splits == nil {
		if s.Pipeline.Splits, err = m.stages(j, s.split, n*s.Pipeline.Each(), batch); err != nil {
			return err
		}
	}
	if s.Tensor > 0 && !s.found {
		s.found = true
		return m.tensor(j, batch)
	}
	return nil
}

// stages returns the first modules of a pipeline's stages, except of the first
// stage.
func (m *Model) stages(j *job, split string, n int, batch int64) (out []string, err error) {
	if split != "blocks" {
		if out = strings.Split(split, ","); len(out) != n-1 {
			return nil, fmt.Errorf("--pp-split %s: want %d modules for %d stages: those that all stages but the first begin with", split, n-1, n)
		}
		return out, nil
	}
	blocks, err := m.repeatedBlocks(j, batch)
	if err != nil {
		return nil, err
	}
	if out, err = shard.Even(blocks, n); err != nil {
		return nil, fmt.Errorf("--parallel pp=%d: %w: give --pp-split", n, err)
	}
	return out, nil
}

// tensor finds the modules that tensor parallelism splits.
func (m *Model) tensor(j *job, batch int64) error {
	one := *j.single()
	var err error
	if one.precision, err = profile.FindPrecision("fp32"); err != nil { // autocast's casts stand between modules and weights
		return err
	}
	b, err := m.build(&one, batch, nil)
	if err != nil {
		return err
	}
	s := j.meshed
	if len(s.TP.Colwise)+len(s.TP.Rowwise) == 0 {
		t, err := shard.DefaultTP(b)
		if err != nil {
			return fmt.Errorf("--parallel %s: %w", s.Mesh, err)
		}
		s.TP.Colwise, s.TP.Rowwise = t.Colwise, t.Rowwise
	}
	if head := shard.Head(b); s.TP.Loss && head != "" {
		if s.TP.Head = head; !slices.Contains(s.TP.Colwise, head) {
			s.TP.Colwise = append(slices.Clone(s.TP.Colwise), head)
		}
	}
	if slices.Contains(s.TP.Sequence, shard.Norms) {
		s.TP.Sequence = shard.DefaultSequence(b)
	}
	o := s.TP
	o.World.Size = s.Tensor
	s.uneven = o.Uneven(b)
	if err := s.TP.Check(b); err != nil {
		return fmt.Errorf("--parallel %s: %w", s.Mesh, err)
	}
	return nil
}

// repeatedBlocks returns the blocks that the model repeats.
func (m *Model) repeatedBlocks(j *job, batch int64) (out []string, err error) {
	a, err := m.anatomy(j.single(), batch)
	if err != nil {
		return nil, err
	}
	for _, b := range a.blocks {
		out = append(out, b.name)
	}
	return out, nil
}

// units returns the modules that fully_shard is called on beside the root: the blocks that
// the model repeats, those of some classes, none, or those that match a pattern.
func (m *Model) units(j *job, wrap string, batch int64) (out []string, err error) {
	if wrap == "root" {
		return []string{}, nil
	}
	if err := m.bind(batch, j.cfg.Dims, j.cfg.Shapes); err != nil {
		return nil, err
	}
	if names, ok := strings.CutPrefix(wrap, classPrefix); ok {
		return m.ofClasses(j, batch, strings.Split(names, ","))
	}
	if wrap != "blocks" {
		return m.matching(wrap)
	}
	if out, err = m.repeatedBlocks(j, batch); err == nil && len(out) == 0 {
		err = errors.New("--fsdp-wrap blocks: the file shows no blocks that the model repeats; give a pattern of module names, or root")
	}
	return out, err
}

// classPrefix begins a value of --fsdp-wrap that names classes.
const classPrefix = "class:"

// ofClasses returns the modules of some classes, by their names without packages.
func (m *Model) ofClasses(j *job, batch int64, names []string) (out []string, err error) {
	a, err := m.anatomy(j.single(), batch)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		before := len(out)
		for i := range a.modules {
			if a.modules[i].short() == strings.TrimSpace(name) {
				out = append(out, a.modules[i].name)
			}
		}
		if len(out) == before {
			var known []string
			for i := range a.modules {
				known = append(known, a.modules[i].short())
			}
			slices.Sort(known)
			if known = slices.Compact(known); len(known) == 0 {
				return nil, fmt.Errorf("--fsdp-wrap %s%s: the file does not say of which classes its modules are: give a pattern of their names", classPrefix, name)
			}
			return nil, fmt.Errorf("--fsdp-wrap %s%s: no module is of that class (there are %s)", classPrefix, name, strings.Join(known, ", "))
		}
	}
	return out, nil
}

// matching returns the modules whose names match a pattern of --fsdp-wrap.
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

// mostRanks is the largest number of ranks that a report lists.
const mostRanks = 8

// places returns the ranks that a report lists, with their coordinates: all if they are
// few, else the first and the last of each stage. Ranks of tensor parallelism are
// innermost, those of a pipeline's stages outermost.
func (s *meshed) places() (out []shard.Place, ranks []int) {
	inner := max(s.Tensor, 1)
	data, parts := s.Data()*max(s.Mesh.Context, 1), max(s.Mesh.Context, 1)
	n := s.Ranks()
	for r := range n {
		stage, d := r/(inner*data), r/inner%data
		part := d % parts
		if s.Shards > 0 {
			d %= s.Sharded()
		}
		if at := r % (inner * data); n <= mostRanks || at == 0 || at == inner*data-1 {
			out, ranks = append(out, shard.Place{Pipeline: stage, Data: d, Context: part, Tensor: s.chunk(r % inner)}), append(ranks, r)
		}
	}
	return out, ranks
}

// chunk is the first rank of tensor parallelism whose parts are as large as those of a rank.
func (s *meshed) chunk(rank int) int {
	same := func(of int) bool {
		return !slices.ContainsFunc(s.uneven, func(n int64) bool {
			shape, ranks := []int64{n}, int64(s.Tensor)
			return shard.Rows(shape, ranks, int64(of)) != shard.Rows(shape, ranks, int64(rank))
		})
	}
	of := 0
	for of < rank && !same(of) {
		of++
	}
	return of
}

// born is a rank's step with what comes before the first: the model lies whole on the card and
// is cut and converted, or, where the card has too little for that, is made on the meta
// device and comes to the card as parts (Module.to_empty).
func (s *meshed) born(b *train.Build, card int64) *train.Build {
	most, freed := setupPeak(b.Program)
	if most <= card {
		return b
	}
	s.meta = most
	p, out := *b.Program, *b
	p.Setup = slices.DeleteFunc(slices.Clone(p.Setup), func(ev program.Event) bool { return freed[ev.Storage] })
	out.Program = &p
	return &out
}

// setupPeak is the most that is live before the first step, in bytes, and which storages go
// before it.
func setupPeak(p *program.Program) (most int64, freed map[program.StorageID]bool) {
	var live int64
	freed = map[program.StorageID]bool{}
	for _, ev := range p.Setup {
		if n := p.Storages[ev.Storage].Bytes; ev.Free {
			live, freed[ev.Storage] = live-n, true
		} else {
			live += n
			most = max(most, live)
		}
	}
	return most, freed
}

// alike is the first rank whose step is that of rank d of a stage: ranks of fully_shard
// differ by what of each parameter is theirs, those of ZeroRedundancyOptimizer and of
// DeepSpeed's stage 2 by which parameters are, others not at all.
func (s *meshed) alike(d int, params []train.Param) int {
	switch n := int64(s.Sharded()); {
	case n > 0:
		same := func(of int) bool {
			return !slices.ContainsFunc(params, func(p train.Param) bool {
				ranks, a, b := n, int64(of), int64(d)
				if s.Experts > 0 && s.FSDP.Apart(p.Name) {
					ranks, a, b = n/int64(s.Experts), a/int64(s.Experts), b/int64(s.Experts)
				}
				return shard.Rows(p.Tensor.Shape, ranks, a) != shard.Rows(p.Tensor.Shape, ranks, b)
			})
		}
		of := 0
		for of < d && !same(of) {
			of++
		}
		return of
	case s.ZeRO, s.Stage == 2:
		return d
	}
	return 0
}

// parallel replays the ranks that can differ from the one that was analysed.
func (a *answer) parallel() error {
	s := a.j.meshed
	if s == nil {
		return nil
	}
	a.ranks = &ParallelInfo{Mesh: meshMap(s.Mesh), Ranks: s.Ranks(), NCCLBytes: s.nccl(), HostBytes: a.hostBytes(), Wrapped: s.FSDP.Units, Stages: s.Pipeline.Splits, Tensor: s.TP.Styles(a.ev.Params)}
	places, ranks := s.places()
	seen := map[shard.Place]*evaluation{s.place: a.ev}
	for i, p := range places {
		p.Data = s.alike(p.Data, a.ev.Params)
		places[i] = p
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
		if s.Mesh.Pipeline > 0 {
			s.stage(p.Pipeline, timeOf(ev.Program, &a.j.time, 1))
		}
		r := RankInfo{Rank: ranks[i], Stage: p.Pipeline, AllocatedBytes: ev.res.Allocated, ReservedBytes: ev.res.Reserved, ProcessBytes: ev.res.Reserved + a.j.besides()}
		if a.ranks.PerRank = append(a.ranks.PerRank, r); r.ReservedBytes > a.ranks.PerRank[a.ranks.worst()].ReservedBytes {
			a.ranks.WorstRank = r.Rank
		}
	}
	if err := a.expertEnds(); err != nil {
		return err
	}
	if worst := places[a.ranks.worst()]; worst != s.place { // the rest of the answer is about the worst rank
		on := *s
		on.place = worst
		a.j.meshed, a.made = &on, nil
		var err error
		a.ev, a.fits, err = settled(seen[worst].Build, a.j)
		return err
	}
	return nil
}

// stage notes how long forward and backward of a pipeline's rank take alone, in milliseconds, once.
func (s *meshed) stage(rank int, t TimeInfo) {
	if rank == len(s.stages) {
		s.stages = append(s.stages, t.ForwardMs+t.BackwardMs)
	}
}

// filled returns how long forward and backward of a pipeline take, in milliseconds: the slowest
// rank's, and what it waits before the first and after the last micro-batch if the others take
// as long. (The sum of what the others do take was 8% too short for the measured GPT, whose ranks differ by a third.)
func (s *meshed) filled() float64 {
	return slices.Max(s.stages) * (1 + shard.FindSchedule(s.Pipeline.Schedule).Idle*float64(s.Mesh.Pipeline-1)/float64(s.Pipeline.Micros*s.Pipeline.Each()))
}

// worst is the index of the worst rank.
func (p *ParallelInfo) worst() int {
	return max(0, slices.IndexFunc(p.PerRank, func(r RankInfo) bool { return r.Rank == p.WorstRank }))
}

// besides returns the bytes that a process takes of its card outside the
// allocator.
func (j *job) besides() int64 {
	if j.meshed == nil {
		return j.device.Context
	}
	return j.device.Context + j.meshed.nccl()
}

// meshMap returns the mesh in the form of documents.
func meshMap(m shard.Mesh) map[string]int {
	out := map[string]int{}
	for name, n := range map[string]int{"pp": m.Pipeline, "cp": m.Context, "ep": m.Experts, "tp": m.Tensor} {
		if n > 0 {
			out[name] = n
		}
	}
	switch {
	case m.Replicas > 0 && m.Shards > 0:
		out["replicate"], out["shard"] = m.Replicas, m.Shards
	case m.Shards > 0:
		out["fsdp"] = m.Shards
	case m.ZeRO:
		out["zero1"] = m.Replicas
	case m.Stage > 0:
		out[fmt.Sprint("zero", m.Stage)] = m.DeepSpeed
	case m.Replicas > 0:
		out["ddp"] = m.Replicas
	}
	return out
}

// hostBytes returns the bytes that a rank pins on its host: its shards, their
// gradients and the optimizer's state.
func (a *answer) hostBytes() int64 {
	if !a.j.cfg.FSDPOffload {
		return 0
	}
	d := graph.Float32
	var elems []train.UpdateParam
	var n int64
	for _, p := range a.ev.Params {
		shape := slices.Clone(p.Tensor.Shape)
		shape[0] = (shape[0] + int64(a.j.meshed.Sharded()) - 1) / int64(a.j.meshed.Sharded())
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

// parallelNotes warns of what a prediction over several cards leaves out.
func (a *answer) parallelNotes() (out []graph.Warning) {
	s := a.j.meshed
	if s == nil {
		return nil
	}
	out = append(out, graph.Warning{Code: "parallel-time", Message: fmt.Sprintf("communication is counted at %.0f%% of what %s sends, beside what it overlaps; what the host takes to start it is not", 100*linkEfficiency, linkOf(a.j.device, s.Ranks()).Name)})
	if s.meta > 0 {
		out = append(out, graph.Warning{Code: "parallel-meta", Message: fmt.Sprintf("a card has less than the model takes before it is cut, %s: it must be made on the meta device and come to the card in parts (Module.to_empty)", profile.FormatBytes(s.meta))})
	}
	if s.loop {
		out = append(out, graph.Warning{Code: "parallel-foreach", Message: "PyTorch's foreach kernels refuse parameters that tensor or expert parallelism divides beside others: AdamW is counted with foreach=False, which the script must give (--optimizer adamw-loop)"})
	}
	if a.j.folded() > 1 {
		out = append(out, graph.Warning{Code: "parallel-tokens", Message: fmt.Sprintf("a rank's part of each sequence is counted as one in %d of the sequences, which are as many tokens; what depends on the length alone is counted whole: --dim NAME=N, where the file leaves it open, makes that exact", s.Mesh.Context)})
	}
	if s.Replicas > 0 && s.Shards == 0 {
		out = append(out, graph.Warning{Code: "parallel-buckets", Message: "DDP makes its gradient buckets anew in the second step; until NCCL's watchdog, which looks ten times a second, lets go of the first ones, both are there: the peak counts both, and ranks whose steps take longer show less"})
	}
	return out
}

// single returns the question about one card.
func (j *job) single() *job {
	if j.meshed == nil {
		return j
	}
	one := *j
	one.meshed = nil
	return &one
}
