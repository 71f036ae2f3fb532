package shard

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/train"
)

// A Kind is a way to spread a step over ranks.
type Kind struct{ Name, Doc string }

// Kinds lists the dimensions of a mesh, outermost first.
var Kinds = []Kind{
	{"pp", "pipeline: each rank runs some of the modules, on one micro-batch after the other (torch.distributed.pipelining)"},
	{"ddp", "data parallel: each rank runs the whole model on its own batch (DistributedDataParallel)"},
	{"zero1", "ddp with the optimizer's state spread over the ranks (ZeroRedundancyOptimizer)"},
	{"fsdp", "parameters, gradients and optimizer state spread over the ranks, gathered block by block (fully_shard, FSDP2)"},
	{"hsdp", "hsdp=2x4: fsdp over 4 ranks, replicated twice"},
	{"zero2", "DeepSpeed's engine: gradients and optimizer state spread over the ranks"},
	{"zero3", "DeepSpeed's engine: parameters spread over them, too, gathered one by one"},
	{"cp", "context parallel: each rank has a part of every sequence, and attention goes round (context_parallel); beside ddp, zero1, fsdp and hsdp, which then spread over both"},
	{"ep", "expert parallel: each rank has some of the experts, and tokens go to theirs and back (torchtitan's ExpertParallel); the ranks are among those of fsdp or hsdp"},
	{"tp", "tensor parallel: linear modules split by outputs and by inputs (parallelize_module)"},
}

// A Mesh says how many ranks each dimension has; 0 is a dimension that there is not.
type Mesh struct {
	Pipeline, Replicas, Shards, Tensor int
	ZeRO                               bool // the replicas spread the optimizer's state
	DeepSpeed                          int  // ranks of DeepSpeed's engine
	Stage                              int  // of its ZeRO, 2 or 3; 0 without it
	Context                            int  // ranks that share a sequence
	Experts                            int  // ranks that share the experts of a layer, among those of Shards if there are any
}

// ParseMesh reads "fsdp=4,tp=2" and the like.
func ParseMesh(text string) (m Mesh, err error) {
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		outer, inner, two := strings.Cut(value, "x")
		n, err := ranks(outer)
		var k int
		if two && err == nil {
			k, err = ranks(inner)
		}
		switch {
		case !slices.ContainsFunc(Kinds, func(k Kind) bool { return k.Name == name }):
			return m, fmt.Errorf("unknown dimension %q of a mesh (known: %s)", name, kindNames())
		case err != nil || two != (name == "hsdp"):
			return m, fmt.Errorf("%q: want %s=RANKS, from 2 to 65536, or 1 of ddp, zero1 and fsdp beside cp; hsdp=REPLICASxSHARDS", part, name)
		}
		if err := m.set(name, n, k); err != nil {
			return m, err
		}
	}
	if one := m.Replicas == 1 || m.Shards == 1 || m.Context == 1; one && (m.Context < 2 || m.Replicas > 1) || min(cmp.Or(m.Pipeline, 2), cmp.Or(m.Tensor, 2), cmp.Or(m.DeepSpeed, 2)) < 2 {
		return m, fmt.Errorf("%q: a dimension has at least 2 ranks, but for ddp, zero1 and fsdp beside cp, which spread over its ranks, too", text)
	}
	if m.Experts == 1 {
		return m, fmt.Errorf("%q: a dimension has at least 2 ranks", text)
	}
	if m.Experts > 0 && m.Shards%m.Experts != 0 {
		return m, fmt.Errorf("%q: the ranks of ep are some of those of fsdp, which are a multiple of them: give fsdp=%d,ep=%d, say", text, max(m.Shards/m.Experts+1, 1)*m.Experts, m.Experts)
	}
	return m, nil
}

func kindNames() string {
	var names []string
	for _, k := range Kinds {
		names = append(names, k.Name)
	}
	return strings.Join(names, ", ")
}

func ranks(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err == nil && (n < 1 || n > 1<<16) {
		err = errors.New("out of range")
	}
	return n, err
}

func (m *Mesh) set(name string, n, k int) error {
	twice := func(at *int, n int) error {
		if *at != 0 {
			return fmt.Errorf("a mesh has at most one dimension %s, and one of ddp, zero1, zero2, zero3, fsdp and hsdp", name)
		}
		*at = n
		return nil
	}
	data := m.Replicas + m.Shards + m.DeepSpeed
	switch name {
	case "pp":
		return twice(&m.Pipeline, n)
	case "tp":
		return twice(&m.Tensor, n)
	case "cp":
		return twice(&m.Context, n)
	case "ep":
		return twice(&m.Experts, n)
	case "ddp", "zero1":
		m.ZeRO = name == "zero1"
		return errors.Join(twice(&data, n), twice(&m.Replicas, n))
	case "zero2", "zero3":
		m.Stage = int(name[4] - '0')
		return errors.Join(twice(&data, n), twice(&m.DeepSpeed, n))
	case "fsdp":
		return errors.Join(twice(&data, n), twice(&m.Shards, n))
	default:
		m.Replicas, m.Shards = n, k
		return twice(&data, n)
	}
}

// String writes the mesh as ParseMesh reads it.
func (m Mesh) String() string {
	var out []string
	add := func(name string, n int) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%s=%d", name, n))
		}
	}
	add("pp", m.Pipeline)
	switch {
	case m.Replicas > 0 && m.Shards > 0:
		out = append(out, fmt.Sprintf("hsdp=%dx%d", m.Replicas, m.Shards))
	case m.ZeRO:
		add("zero1", m.Replicas)
	case m.Stage > 0:
		add(fmt.Sprintf("zero%d", m.Stage), m.DeepSpeed)
	default:
		add("ddp", m.Replicas)
		add("fsdp", m.Shards)
	}
	add("cp", m.Context)
	add("ep", m.Experts)
	add("tp", m.Tensor)
	return strings.Join(out, ",")
}

// Ranks returns the number of ranks.
func (m Mesh) Ranks() int {
	return max(m.Pipeline, 1) * m.Data() * max(m.Context, 1) * max(m.Tensor, 1)
}

// Data returns how many ranks have a batch of their own.
func (m Mesh) Data() int {
	return max(m.Replicas, 1) * max(m.Shards, m.Experts, 1) * max(m.DeepSpeed, 1)
}

// Sharded returns over how many ranks fully_shard spreads parameters: those of a sequence, too.
func (m Mesh) Sharded() int { return m.Shards * max(m.Context, 1) }

// Replicated returns over how many ranks DDP adds gradients up, likewise.
func (m Mesh) Replicated() int {
	if m.Shards > 0 {
		return m.Replicas
	}
	return m.Replicas * max(m.Context, 1)
}

// Groups returns how many process groups a rank takes part in, each of which is a
// communicator with memory of its own.
func (m Mesh) Groups() int {
	n := 0
	for _, d := range []int{m.Pipeline, m.Replicas, m.Shards, m.DeepSpeed, m.Context, m.Experts, m.Tensor} {
		if d > 1 {
			n++
		}
	}
	if m.Experts > 1 && m.Shards > m.Experts { // the ranks with the same experts
		n++
	}
	return n
}

// A Setup is a mesh with what its dimensions need to know.
type Setup struct {
	Mesh
	DDP      DDP
	FSDP     FSDP
	Engine   DeepSpeed
	TP       TP
	Pipeline Pipeline
}

// A Place is a rank's coordinate in each dimension. Data counts the ranks of a sequence,
// too: those of Context are innermost.
type Place struct{ Pipeline, Data, Context, Tensor int }

// Expert is the rank at a place among those that share experts, which are next to each other.
func (m Mesh) Expert(at Place) int { return at.Data % max(m.Experts, 1) }

// Apply returns the step that the rank at a place runs. b is the step of one GPU at
// the rank's own batch; the source is not changed.
func (s *Setup) Apply(b *train.Build, at Place, update Update) (*train.Build, error) {
	var err error
	if s.Tensor > 0 {
		t := s.TP
		t.World, t.Update = World{s.Tensor, at.Tensor}, update
		if b, err = t.Apply(b); err != nil {
			return nil, err
		}
	}
	var spans []span
	if s.Mesh.Pipeline > 0 {
		p := s.Pipeline
		p.Rank, p.Update = at.Pipeline, update
		p.Inferred = s.Shards == 0 // fully_shard's hooks would gather
		if n := s.Mesh.Pipeline * p.Each(); len(p.Splits) != n-1 {
			return nil, fmt.Errorf("a pipeline of %d stages with %d split points", n, len(p.Splits))
		}
		if b, spans, err = p.apply(b); err != nil {
			return nil, err
		}
	}
	switch {
	case s.Shards > 0:
		f := s.FSDP
		f.World, f.Update, f.Every = World{s.Sharded(), at.Data}, update, max(s.Experts, 1)
		if spans != nil {
			return f.stages(b, spans)
		}
		return f.Apply(b)
	case s.Stage > 0:
		e := s.Engine
		e.World, e.Stage, e.Update = World{s.DeepSpeed, at.Data}, s.Stage, update
		return e.Apply(b)
	case s.Replicas > 0:
		d := s.DDP
		d.World, d.ZeRO, d.Update = World{s.Replicated(), at.Data}, s.ZeRO, update
		return d.Apply(b)
	}
	return b, nil
}
