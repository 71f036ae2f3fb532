package planner

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner/profile"
)

// A Link is a connection between the cards of a mesh.
type Link struct {
	Name   string
	Bytes  float64 // peak rate of a card's sends, bytes a second
	Source string
	cards  func(d *profile.Device) bool
}

// linkEfficiency is the share of a link's rate that NCCL's rings reach.
const linkEfficiency = 0.8

// Links lists the connections within a host, of which the first row that a card
// has applies, and last the one between hosts of cardsPerHost cards.
var Links = []Link{
	{"NVLink 4", 450e9, "NVIDIA H100 and H200 datasheets: 900 GB/s both ways", named("h100", "h200")},
	{"NVLink 3", 300e9, "NVIDIA A100 SXM datasheet: 600 GB/s both ways", named("a100-80gb", "a100-40gb")},
	{"NVLink 2", 150e9, "NVIDIA V100 SXM2 datasheet: 300 GB/s both ways", named("v100-16gb", "v100-32gb")},
	{"PCIe 4", 32e9, "PCI Express 4.0, 16 lanes", func(*profile.Device) bool { return true }},
	{"InfiniBand NDR", 50e9, "400 Gb/s a card", func(*profile.Device) bool { return false }},
}

// cardsPerHost is the number of cards of a host.
const cardsPerHost = 8

func named(names ...string) func(*profile.Device) bool {
	return func(d *profile.Device) bool { return slices.Contains(names, d.Name) }
}

// linkOf returns the link between the cards of a mesh.
func linkOf(d *profile.Device, ranks int) *Link {
	if ranks > cardsPerHost {
		return &Links[len(Links)-1]
	}
	for i := range Links {
		if Links[i].cards(d) {
			return &Links[i]
		}
	}
	return &Links[len(Links)-1]
}

// A traffic is the seconds of a rank's communication in a step.
type traffic struct {
	beside  [program.NumPhases]float64 // while the phase computes
	waiting float64                    // while nothing computes
}

// communication sums what a rank's program sends. FSDP2 gathers the next block while
// one computes and DDP reduces a bucket while backward continues; the step waits for
// the sums of tensor parallelism and for ZeRO-1's parameters.
func (j *job) communication(b *train.Build) (t traffic) {
	s := j.meshed
	rate := linkOf(j.device, s.Ranks()).Bytes * linkEfficiency
	ring := func(bytes int64, ranks int) float64 { return float64(bytes) * float64(ranks-1) / float64(ranks) / rate }
	for i := range b.Nodes {
		n := &b.Nodes[i]
		if n.Only == program.FirstStep || len(n.Events) == 0 {
			continue
		}
		runs := float64(b.Runs(n))
		switch largest := largestAlloc(b, n); n.Op {
		case "fsdp::all_gather_copy_in", "fsdp::reduce_scatter":
			t.beside[n.Phase] += runs * ring(largest, s.Sharded())
		case aten.AllToAll:
			t.waiting += runs * ring(largest, s.Experts)
		case "deepspeed::all_gather":
			t.beside[n.Phase] += runs * ring(largest, s.DeepSpeed)
		case "deepspeed::reduce":
			t.beside[program.Backward] += 2 * runs * ring(largest, s.DeepSpeed)
		case "_c10d_functional::all_reduce":
			t.waiting += 2 * runs * ring(largest, s.Tensor)
		case "_c10d_functional::all_gather_into_tensor", "_c10d_functional::reduce_scatter_tensor":
			t.waiting += runs * ring(largest, s.Tensor)
		}
	}
	if s.Replicas > 1 {
		bytes := gradientBytes(b)
		t.beside[program.Backward] += 2 * ring(bytes, s.Replicated())
		if s.ZeRO {
			t.waiting += ring(bytes, s.Replicated())
		}
	}
	j.attention(b, &t, rate)
	return t
}

// attention adds what attention over the ranks of a sequence sends: keys and values of all
// ranks beside the first of its kernels, in forward and in backward, and float32 gradients
// of them to the next rank after each, of which the last is waited for.
func (j *job) attention(b *train.Build, t *traffic, rate float64) {
	n := j.meshed.Mesh.Context
	if n == 0 {
		return
	}
	for i := range b.Nodes {
		switch x := &b.Nodes[i]; x.Autograd {
		case "ScaledDotProductEfficientAttentionBackward0", "ScaledDotProductFlashAttentionBackward0", "ScaledDotProductCudnnAttentionBackward0":
			var elems, bytes int64
			for _, k := range x.In[len(x.In)-5 : len(x.In)-2] { // key, query and value
				n, _ := graph.Product(k.Shape)
				elems, bytes = elems+n, bytes+k.DType.Bytes(n)
			}
			gathered, sums := float64(bytes)*2/3*float64(n-1)/rate, 4*float64(elems)*2/3/rate
			runs := float64(b.Runs(x))
			t.beside[program.Forward] += runs * gathered
			t.beside[program.Backward] += runs * (gathered + float64(n-1)*sums)
			t.waiting += runs * sums
		}
	}
}

// largestAlloc returns the largest storage that a node allocates, in bytes.
func largestAlloc(b *train.Build, n *program.Node) (most int64) {
	for _, ev := range n.Events {
		if !ev.Free {
			most = max(most, b.Storages[ev.Storage].Bytes)
		}
	}
	return most
}

// gradientBytes returns the bytes of a rank's gradients.
func gradientBytes(b *train.Build) (n int64) {
	for i := range b.Storages {
		if s := &b.Storages[i]; s.Category == program.Gradients && s.Life == program.Carried {
			n += s.Bytes
		}
	}
	return n
}

// What FSDP2 takes of the host: for a module that is sharded, each time it is gathered; for a
// parameter, where it is gathered in forward, where its gradient is reduced, and half as
// much where it is gathered in backward; and for a parameter in the optimizer's step, whose
// operators are dispatched as of DTensors. Fitted to 41 measured steps of 15 models
// (docs/distributed.md).
const (
	unitHost  = 0.5e-3
	paramHost = 0.04e-3
	shardHost = 0.05e-3
)

// hooks are the seconds that the host takes to start a phase of FSDP2.
func hooks(m *TimeModel, b *train.Build, phase program.Phase) (t float64) {
	micros, params, trained := float64(max(b.Micros, 1)), 0.0, 0.0
	for _, p := range b.Params {
		if b.Storages[p.Tensor.Storage].Life == program.Static { // not sharded: another stage's
			continue
		}
		params++
		if p.Grad != program.None {
			trained++
		}
	}
	if phase == program.Update {
		return shardHost * trained
	}
	gathers := 0.0
	for i := range b.Nodes {
		n := &b.Nodes[i]
		if n.Only == program.FirstStep || n.Phase != phase && !(phase == program.Forward && n.Phase == program.Loss) {
			continue
		}
		t += float64(b.Runs(n)) * m.hostSeconds(n)
		if n.Op == "fsdp::all_gather_copy_out" {
			gathers += float64(b.Runs(n))
		}
	}
	t += unitHost * gathers
	if phase == program.Forward {
		return t + paramHost*params*micros
	}
	if gathers > 0 {
		t += paramHost / 2 * params * micros
	}
	return t + paramHost*trained*micros
}

// spread adds a mesh's effects to a step's time: communication that takes longer than
// the computation beside it, and the idle time of a pipeline's stages before the
// first micro-batch and after the last.
func (j *job) spread(t *TimeInfo, b *train.Build) {
	s := j.meshed
	if s == nil || t.StepMs == 0 {
		return
	}
	samples := t.SamplesPerSecond * t.StepMs
	c := j.communication(b)
	before := t.StepMs
	t.ForwardMs = max(t.ForwardMs, 1e3*c.beside[program.Forward])
	t.BackwardMs = max(t.BackwardMs, 1e3*c.beside[program.Backward])
	if s.Shards > 0 {
		t.ForwardMs = max(t.ForwardMs, 1e3*hooks(&j.time, b, program.Forward))
		t.BackwardMs = max(t.BackwardMs, 1e3*hooks(&j.time, b, program.Backward))
		t.OptimizerMs = max(t.OptimizerMs, 1e3*hooks(&j.time, b, program.Update))
	}
	if s.Mesh.Pipeline > 0 && len(s.stages) == s.Mesh.Pipeline {
		longer := max(1, s.filled()/max(t.ForwardMs+t.BackwardMs, 1e-9))
		t.ForwardMs, t.BackwardMs = t.ForwardMs*longer, t.BackwardMs*longer
	}
	t.StepMs = t.ForwardMs + t.BackwardMs + t.OptimizerMs + 1e3*c.waiting
	t.WaitingMs = t.StepMs - before
	t.SamplesPerSecond = samples / t.StepMs
}
