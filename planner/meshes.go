package planner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/shard"
	"github.com/memplan/memplan/graph/train"
)

// A MeshPlan answers over which mesh to spread a step.
type MeshPlan struct {
	SchemaVersion int     `json:"schemaVersion"`
	GPU           string  `json:"gpu"`
	GPUs          int     `json:"gpus"`
	Batch         int64   `json:"batch"`                 // of a rank: the one asked about, or with --batch best that of Fastest
	Smallest      string  `json:"smallest"`              // the fitting mesh with the fewest cards, "" for none; "1" for one card
	Fastest       string  `json:"fastest"`               // the mesh with the most samples per second
	Bound         float64 `json:"boundSamplesPerSecond"` // if all cards only computed forward and backward, at any batch that was tried
	// MayFit is the smallest mesh of more cards, at most 1024, that the shares of parameters, gradients
	// and optimizer do not rule out, if none fits; "" if there is none.
	MayFit string       `json:"mayFit,omitempty"`
	Meshes []MeshChoice `json:"meshes"`
}

// A MeshChoice is one mesh with its memory and speed.
type MeshChoice struct {
	Mesh             string  `json:"mesh"`
	GPUs             int     `json:"gpus"`
	Batch            int64   `json:"batch"`                // of a rank
	Checkpoint       string  `json:"checkpoint"`           // none, all: every module that can be checkpointed, or auto: chosen, with --checkpoint auto
	Sequence         bool    `json:"sequence,omitempty"`   // with tp: sequences are divided, too (--tp-sequence norms)
	Dispatched       bool    `json:"dispatched,omitempty"` // with ep: experts run on the tokens that are sent to them, not as in the file; such a mesh is not chosen
	Fits             bool    `json:"fits"`
	ProcessBytes     int64   `json:"processBytes"`
	AtLeast          bool    `json:"atLeast,omitempty"` // processBytes is a lower bound, which is above the card's memory: nothing else was predicted
	StepMs           float64 `json:"stepMs"`
	WaitingMs        float64 `json:"waitingMs"`
	SamplesPerSecond float64 `json:"samplesPerSecond"` // of all cards together
	Why              string  `json:"why,omitempty"`    // why it is not predicted for this model

	stopped bool    // the next batch did not fit
	plain   float64 // samples per second without recomputation, which may not fit; +Inf if that was not predicted
}

// oneCard is the name of a single card in place of a mesh.
const oneCard = "1"

// meshesOf lists the meshes of at most n cards with one or two dimensions, the fewest cards first.
func meshesOf(n int) (out []string) {
	out = append(out, oneCard)
	for k := 2; k <= n; k *= 2 {
		out = append(out, fmt.Sprint("ddp=", k), fmt.Sprint("zero1=", k), fmt.Sprint("fsdp=", k), fmt.Sprint("tp=", k), fmt.Sprint("pp=", k))
		for t := 2; t <= k/2; t *= 2 {
			out = append(out, fmt.Sprintf("fsdp=%d,tp=%d", k/t, t), fmt.Sprintf("hsdp=%dx%d", t, k/t), fmt.Sprintf("pp=%d,ddp=%d", t, k/t), fmt.Sprintf("pp=%d,fsdp=%d", t, k/t))
		}
		out = append(out, fmt.Sprintf("fsdp=%d,ep=%d", k, min(k, cardsPerHost)))
		if 2*k > n { // each size of cp or ep is another step to build: few rows show what they buy
			out = append(out, fmt.Sprintf("fsdp=%d,cp=2", k/2))
			if k > 2 {
				out = append(out, fmt.Sprintf("fsdp=%d,ep=%d", k, min(k, cardsPerHost)/2))
			}
		}
	}
	return out
}

// A meshSearch compares meshes for one question.
type meshSearch struct {
	*Model
	cfg      Config
	policies []string        // values of --checkpoint, in the order in which they are tried
	all      []train.Segment // what checkpoint all stands for; nil where nothing can be checkpointed
	least    leastBytes
	norms    bool // the file shows norms, at which tensor parallelism can divide sequences
	attends  bool // and attention, whose sequences ranks can share
}

// Meshes predicts the meshes of at most n cards of the question's kind, each without
// checkpoints and, where that does not fit, with all of them. What a card must hold in any
// case rules meshes out before their steps are built. With BatchBest each mesh has the batch
// of its most samples per second among 1, 2, 3, 4, 6, 8, 12, ...; with --checkpoint auto
// meshes that may be the fastest have selected checkpoints in place of all.
func (m *Model) Meshes(ctx context.Context, cfg Config, n int) (*MeshPlan, error) {
	switch {
	case n < 2 || n > mostCards:
		return nil, fmt.Errorf("--gpus %d: want 2 to %d cards", n, mostCards)
	case cfg.Parallel != "":
		return nil, fmt.Errorf("--gpus chooses the mesh: give it without --parallel")
	case cfg.GPU == "" && cfg.VRAM == 0:
		return nil, fmt.Errorf("--gpus needs the cards: give --gpu NAME")
	case cfg.Target > 0:
		return nil, fmt.Errorf("--target-batch is for one card: give --gpus with --batch N or --batch best")
	case cfg.BatchMax:
		return nil, fmt.Errorf("--batch max is for one mesh: give --gpus with --batch N or --batch best")
	}
	if err := unmet(&cfg, n); err != nil {
		return nil, err
	}
	s := &meshSearch{Model: m, cfg: cfg, policies: []string{"none", "all"}}
	switch cfg.Checkpoint {
	case "", "auto":
	case "none", "all":
		s.policies = []string{cfg.Checkpoint}
	default:
		return nil, fmt.Errorf("--checkpoint %s: --gpus compares none, all and, of meshes that may be the fastest, auto", cfg.Checkpoint)
	}
	batches := []int64{max(cfg.Batch, 1)}
	if s.cfg.Checkpoint, s.cfg.BatchBest = "", false; cfg.BatchBest {
		batches = meshBatches()
	}
	p := &MeshPlan{SchemaVersion: SchemaVersion, GPU: cfg.GPU, GPUs: n, Batch: batches[0], Meshes: []MeshChoice{}}
	defer func() { m.wholes = nil }()
	for _, mesh := range meshesOf(n) {
		p.Meshes = append(p.Meshes, MeshChoice{Mesh: mesh})
	}
	tried := make([][]MeshChoice, len(p.Meshes)) // those that fit
	for k, batch := range batches {
		more, err := s.at(ctx, p, tried, batch, k == 0)
		if err != nil {
			return nil, err
		}
		if !more || ctx.Err() != nil {
			break
		}
	}
	tried = p.spread(tried)
	p.choose()
	if cfg.Checkpoint == "auto" && p.Fastest != "" {
		s.refine(ctx, p, tried)
	}
	if cfg.BatchBest && p.Fastest != "" {
		p.Batch = p.Meshes[p.index(p.Fastest)].Batch
	}
	if p.Smallest == "" {
		p.MayFit = s.larger(n)
	}
	return p, nil
}

// unmet returns an error for a setting of a dimension that no mesh of at most n cards has.
func unmet(cfg *Config, n int) (err error) {
	given(cfg, func(s *Setting, dimension string, in func(m *shard.Mesh) bool) {
		some := slices.ContainsFunc(meshesOf(n), func(text string) bool {
			m, err := shard.ParseMesh(text)
			return err == nil && in(&m)
		})
		if err == nil && !some {
			err = fmt.Errorf("--%s: --gpus compares no mesh with %s: give it with --parallel", s.Flag, dimension)
		}
	})
	return err
}

// spread leaves out meshes with context parallelism if the model's sequences cannot be divided, and with expert
// parallelism if it has no experts that so many ranks can share.
func (p *MeshPlan) spread(tried [][]MeshChoice) [][]MeshChoice {
	var meshes []MeshChoice
	var rest [][]MeshChoice
	for i, c := range p.Meshes {
		if m, err := shard.ParseMesh(c.Mesh); err != nil || m.Context+m.Experts == 0 || c.Why == "" {
			meshes, rest = append(meshes, c), append(rest, tried[i])
		}
	}
	p.Meshes = meshes
	return rest
}

// mostCards bounds the cards of a mesh that is chosen.
const mostCards = 1 << 10

// meshBatches are the batches of a rank that --batch best tries: powers of two and the
// means of neighbouring ones.
func meshBatches() (out []int64) {
	out = []int64{1}
	for b := int64(2); b <= mostBatch; b *= 2 {
		out = append(out, b, b+b/2)
	}
	return out
}

// at predicts one batch of every mesh: the first one of all meshes, another of those that the one
// before fitted. more is whether some fit.
func (s *meshSearch) at(ctx context.Context, p *MeshPlan, tried [][]MeshChoice, batch int64, first bool) (more bool, err error) {
	s.wholes, s.cfg.Batch = map[string]*train.Build{}, batch
	bound, err := s.perfect(p.GPUs)
	if err != nil {
		return false, err
	}
	if first {
		p.Bound = bound
	}
	for i := range p.Meshes {
		best := &p.Meshes[i]
		if ctx.Err() != nil {
			break
		}
		if !first && (len(tried[i]) == 0 || tried[i][len(tried[i])-1].stopped) {
			continue
		}
		s.progress(i, len(p.Meshes), best.Mesh)
		c := s.choice(ctx, best.Mesh)
		if first || c.Fits && c.SamplesPerSecond > best.SamplesPerSecond {
			*best = c
		}
		if c.Fits {
			tried[i], more = append(tried[i], c), true
			p.Bound = max(p.Bound, bound)
		} else if n := len(tried[i]); n > 0 {
			tried[i][n-1].stopped = true
		}
	}
	return more, nil
}

// refine selects checkpoints where every module was checkpointed and the step would be faster than
// the fastest without recomputation: those that may be the fastest first, until no other may.
func (s *meshSearch) refine(ctx context.Context, p *MeshPlan, tried [][]MeshChoice) {
	type candidate struct {
		mesh int
		c    MeshChoice
	}
	var list []candidate
	for i := range tried {
		for _, c := range tried[i] {
			if c.Checkpoint == "all" {
				list = append(list, candidate{i, c})
			}
		}
	}
	slices.SortStableFunc(list, func(x, y candidate) int { return cmp.Compare(y.c.plain, x.c.plain) })
	s.wholes, s.policies = map[string]*train.Build{}, []string{"auto"}
	fastest := p.Meshes[p.index(p.Fastest)].SamplesPerSecond
	for i, x := range list {
		if s.cfg.Batch = x.c.Batch; x.c.plain <= fastest || ctx.Err() != nil {
			break
		}
		s.progress(i, len(list), "checkpoints of "+x.c.Mesh)
		if a := s.choice(ctx, x.c.Mesh); a.Fits && a.SamplesPerSecond > p.Meshes[x.mesh].SamplesPerSecond {
			p.Meshes[x.mesh], fastest = a, max(fastest, a.SamplesPerSecond)
		}
	}
	p.choose()
}

// larger is the smallest mesh of more than n cards that is not ruled out by what a card must
// hold; "" for none.
func (s *meshSearch) larger(n int) string {
	for k := 2; k <= mostCards; k *= 2 {
		for t := 1; k > n && t <= min(k, 8); t *= 2 {
			name := fmt.Sprint("fsdp=", k)
			if t == k {
				name = fmt.Sprint("tp=", t)
			} else if t > 1 {
				name = fmt.Sprintf("fsdp=%d,tp=%d", k/t, t)
			}
			mesh, _ := shard.ParseMesh(name)
			cfg := suited(s.cfg, &mesh)
			cfg.Parallel = name
			if j, err := s.resolve(cfg); err == nil && s.least.of(&j.meshed.Mesh, &cfg, false) <= j.cap {
				return name
			}
		}
	}
	return ""
}

func (s *meshSearch) progress(done, total int, mesh string) {
	if s.Model.Progress != nil {
		s.Model.Progress(done, total, fmt.Sprintf("%s, batch %d", mesh, s.cfg.Batch))
	}
}

func (p *MeshPlan) index(mesh string) int {
	return slices.IndexFunc(p.Meshes, func(c MeshChoice) bool { return c.Mesh == mesh })
}

// perfect is the samples per second of n cards that compute forward and backward alone. From
// the step of one card it takes what bounds and checkpoints of all meshes rest on.
func (s *meshSearch) perfect(n int) (float64, error) {
	j, err := s.resolve(suited(s.cfg, &shard.Mesh{}))
	if err != nil {
		return 0, err
	}
	b, err := s.build(j, s.cfg.Batch, nil)
	if err != nil {
		return 0, err
	}
	sel, err := s.selectorOf(j, b)
	if err != nil {
		return 0, err
	}
	s.all, s.least, s.norms = sel.problem.All(), leastOf(b), len(shard.DefaultSequence(b)) > 0
	s.attends = slices.ContainsFunc(b.Nodes, func(n program.Node) bool { return paceOf(&n) == kernel.Attentions })
	if blocks, err := s.repeatedBlocks(j, s.cfg.Batch); err == nil { // without blocks fsdp is refused, not bounded
		s.least.gathers(b, blocks)
	}
	t := timeOf(b.Program, &j.time, s.cfg.Batch)
	if t.ForwardMs+t.BackwardMs == 0 {
		return 0, nil
	}
	return round(float64(n) * t.SamplesPerSecond * t.StepMs / (t.ForwardMs + t.BackwardMs)), nil
}

// choice predicts one mesh.
func (s *meshSearch) choice(ctx context.Context, text string) MeshChoice {
	c, cfg := MeshChoice{Mesh: text, GPUs: 1, Batch: s.cfg.Batch, plain: math.Inf(1)}, s.cfg
	var mesh shard.Mesh
	if text != oneCard {
		var err error
		if mesh, err = shard.ParseMesh(text); err != nil {
			return c.without(err)
		}
		cfg.Parallel, c.GPUs = text, mesh.Ranks()
	}
	cfg = suited(cfg, &mesh)
	data := mesh.Data()
	if mesh.Tensor > 0 && s.norms && len(cfg.TPSequence) == 0 { // what is divided is never more than the whole
		cfg.TPSequence = []string{shard.Norms}
	}
	c.Dispatched = mesh.Experts > 0
	c.Sequence = len(cfg.TPSequence) > 0 && mesh.Tensor > 0
	for _, c.Checkpoint = range s.policies {
		if cfg.Checkpoint, cfg.Segments = c.Checkpoint, nil; c.Checkpoint == "all" {
			cfg.Segments = s.all
		}
		j, err := s.resolve(cfg)
		if err == nil {
			err = s.applies(j)
		}
		if err != nil {
			return c.without(err)
		}
		if least := s.least.of(&mesh, &cfg, c.Checkpoint == "none"); least > j.cap {
			c.AtLeast, c.ProcessBytes = true, least+j.besides()
			continue
		}
		a, err := s.decided(ctx, cfg)
		if err != nil {
			return c.without(err)
		}
		t := timeOf(a.ev.Program, &a.j.time, max(a.batch, 1))
		a.j.spread(&t, a.ev.Build)
		t.round()
		c.AtLeast, c.ProcessBytes, c.StepMs, c.WaitingMs, c.SamplesPerSecond = false, a.ev.res.Reserved+a.j.besides(), t.StepMs, t.WaitingMs, round(float64(data)*t.SamplesPerSecond)
		if c.Checkpoint == "none" {
			c.plain = c.SamplesPerSecond
		}
		if c.Fits = a.fits != nil && *a.fits; c.Fits {
			break
		}
	}
	return c
}

// without is a mesh that is not predicted, for a reason.
func (c MeshChoice) without(why error) MeshChoice {
	c.Why, c.Sequence = why.Error(), false
	return c
}

// applies returns an error for a mesh with a dimension that has nothing to spread in the model: what a card would hold
// at least is not asked of it.
func (s *meshSearch) applies(j *job) error {
	switch m := j.meshed; {
	case m == nil:
	case m.Mesh.Context > 0 && !s.attends:
		return fmt.Errorf("the file has no scaled_dot_product_attention, which alone context_parallel spreads")
	case m.Experts > 0:
		if err := s.boundFor(j, s.cfg.Batch); err != nil {
			return err
		}
		sites, err := s.sites(j)
		for i := range sites {
			if n := sites[i].Experts; n%int64(m.Experts) != 0 {
				return fmt.Errorf("the %d experts of %s are not a multiple of %d ranks", n, sites[i].Module, m.Experts)
			}
		}
		return err
	}
	return nil
}

// leastBytes are parts of one card's step that every rank of a mesh holds a share of.
type leastBytes struct {
	parameters, gradients, optimizer, saved int64
	gathered                                int64 // what fully_shard has whole at once: the root's parameters and one block's
}

// leastOf measures the step of one card without checkpoints.
func leastOf(b *train.Build) (l leastBytes) {
	seen := map[program.StorageID]bool{}
	for _, p := range b.Params {
		if seen[p.Tensor.Storage] {
			continue
		}
		seen[p.Tensor.Storage] = true
		l.parameters += b.Storages[p.Tensor.Storage].Bytes
		if p.Grad != program.None {
			l.gradients += b.Storages[p.Grad].Bytes
		}
	}
	for i := range b.Storages {
		if s := &b.Storages[i]; s.Category == program.Optimizer && s.Life == program.State {
			l.optimizer += s.Bytes
		}
	}
	for _, id := range b.Saved {
		if s := &b.Storages[id]; s.Life == program.Step {
			l.saved += s.Bytes
		}
	}
	return l
}

// gathers measures what fully_shard has whole where the largest block runs.
func (l *leastBytes) gathers(b *train.Build, blocks []string) {
	each := make([]int64, len(blocks))
	var root, most int64
	for _, p := range b.Params {
		n := b.Storages[p.Tensor.Storage].Bytes
		if i := slices.IndexFunc(blocks, func(m string) bool { return train.Within(p.Name, m) }); i >= 0 {
			each[i] += n
			most = max(most, each[i])
		} else {
			root += n
		}
	}
	l.gathered = root + most
}

// wholeStages reports whether a rank has its stage's gradients and their parameters whole when backward of the last
// micro-batch ends, as fully_shard has them in a pipeline whose ranks run one stage (shard.FSDP's stages).
func (l *leastBytes) wholeStages(m *shard.Mesh, cfg *Config) bool {
	p := shard.Pipeline{Schedule: cfg.PPSchedule, Stages: cfg.PPStages}
	return m.Pipeline > 1 && m.Shards > 1 && p.Each() == 1 && cfg.PPMicros != 1 && cfg.FSDPPrecision != "bf16" && !cfg.FSDPOffload
}

// of is a lower bound on what the rank of a mesh that holds most has allocated: its share of
// parameters and optimizer with that of gradients at the end of backward, with what
// fully_shard gathers, which in a pipeline is all of a rank's stage, or with what autograd saves without checkpoints. Stages of
// a pipeline hold an equal share where none holds more, and tensor parallelism divides no
// further than by its ranks.
func (l *leastBytes) of(m *shard.Mesh, cfg *Config, saves bool) int64 {
	model := int64(max(m.Pipeline, 1) * max(m.Tensor, 1))
	shards, states, grads := int64(max(m.Sharded(), 1)), int64(max(m.Sharded(), 1)), l.gradients
	if m.ZeRO {
		states = int64(m.Replicated())
	}
	if m.Replicas > 0 && m.Shards == 0 && !cfg.DDPViews {
		grads *= 2 // the buckets
	}
	kept := l.parameters/shards + l.optimizer/states
	most := grads / shards
	if m.Shards > 0 {
		if cfg.FSDPOffload {
			kept, most = 0, 0
		}
		if m.Experts == 0 { // a rank gathers its own experts alone
			most = max(most, l.gathered)
		}
		if l.wholeStages(m, cfg) {
			most = max(most, 2*l.gradients)
		}
	}
	if saves && m.Experts == 0 { // what experts save is another program's
		most = max(most, l.saved/int64(max(m.Context, 1)))
	}
	return (kept + most) / model
}

// choose names the smallest and the fastest mesh that fit. Those with expert parallelism run another program than
// the file's, whose experts may all run on all tokens: what they gain is not the mesh's alone.
func (p *MeshPlan) choose() {
	fits := slices.DeleteFunc(slices.Clone(p.Meshes), func(c MeshChoice) bool { return !c.Fits || c.Dispatched })
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
