package shard

import (
	"cmp"
	"errors"
	"slices"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// Sizes of DistributedDataParallel, bytes.
const (
	DefaultBucket = 25 << 20  // bucket_cap_mb=25
	FirstBucket   = 1 << 20   // torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
	syncBucket    = 250 << 20 // broadcast_bucket_size, of parameters and buffers
)

// DDP is torch.nn.parallel.DistributedDataParallel. Each rank holds the whole
// model and, besides the gradients, buckets with a second copy of them.
type DDP struct {
	World
	Bucket int64 // bucket_cap_mb in bytes, 0 for the default
	First  int64 // size of the first bucket, 0 for its default; if only Bucket is set, that
	// Unused is find_unused_parameters=True: buckets are made once, in the order of the
	// parameters from the last, and which ones were used is counted on the device.
	Unused bool
	// BucketViews is gradient_as_bucket_view=True: gradients are views into the
	// buckets, so that there is no second copy.
	BucketViews bool
	// ZeRO is set if the optimizer is a ZeroRedundancyOptimizer, which updates
	// only this rank's share of the parameters and keeps state for that alone.
	ZeRO bool
	// LateFree frees the first buckets only at the end of the second step. NCCL's
	// work holds them until its watchdog, which polls ten times a second, has seen
	// the end of the all-reduce: whether it does in time differs between ranks and
	// runs.
	LateFree bool
	Update   Update
}

// Apply returns the step of a rank. The source is not changed.
func (o DDP) Apply(b *train.Build) (*train.Build, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	params := trained(b)
	if len(params) == 0 {
		return nil, errors.New("DistributedDataParallel needs a parameter that requires a gradient")
	}
	e := newEditor(b)
	var old, anew []program.Event
	for _, id := range o.construct(e, params) {
		old = append(old, free(id))
	}
	if o.Unused {
		old = nil
	} else {
		anew = o.rebuild(e, params)
	}
	if !o.LateFree {
		anew = append(old, anew...)
	}
	if o.BucketViews {
		e.viewGradients(params)
	}
	started := int32(-1)
	for i := range b.Nodes {
		n := &b.Nodes[i]
		e.follow(n)
		if n.Phase == program.Forward && n.Micro > started && !n.Recompute {
			started = n.Micro
			if n.Micro == 0 {
				e.second("rebuild_buckets", anew)
			}
			e.broadcastBuffers()
		}
		if !o.ZeRO || n.Phase != program.Update || n.Op != "step" {
			e.keep(n)
		} else if n.Only != program.LaterSteps {
			e.step(o.part(params), o.Update)
		}
		if n.Phase == program.Update && o.BucketViews {
			e.forget(params)
		}
	}
	if e.at.Phase = program.Update; o.LateFree {
		e.second("watchdog", old)
	}
	return e.build(), nil
}

// second adds a node that runs only in the second step.
func (e *editor) second(op string, events []program.Event) {
	if len(events) == 0 {
		return
	}
	e.node(op, "", events...)
	e.p.Nodes[len(e.p.Nodes)-1].Only = program.SecondStep
}

// construct adds the allocations of the wrapper's constructor: rank 0's parameters and
// buffers are broadcast in flat copies, then one bucket is made for all gradients of a
// type.
func (o DDP) construct(e *editor, params []train.Param) (buckets []program.StorageID) {
	var all []int64
	for _, id := range e.p.Statics {
		if s := &e.p.Storages[id]; s.Category == program.Parameters || s.Category == program.Buffers {
			all = append(all, s.Bytes)
		}
	}
	e.p.Setup = append(e.p.Setup, e.inFlight(fill(all, []int64{syncBucket}))...)
	var limits []int64
	if o.Unused {
		params, limits = slices.Clone(params), o.limits()
		slices.Reverse(params)
		used := e.storage(4*int64(len(params)), program.Buffers, compute, "used parameters")
		e.p.Storages[used].Life = program.Static
		e.p.Statics, e.p.Setup = append(e.p.Statics, used), append(e.p.Setup, alloc(used))
	}
	for _, n := range typed(params, limits) {
		buckets = append(buckets, e.bucket(n))
		e.p.Setup = append(e.p.Setup, alloc(buckets[len(buckets)-1]))
	}
	return buckets
}

// inFlight returns the flat copies of a broadcast, two of which are in flight at a
// time.
func (e *editor) inFlight(sizes []int64) (events []program.Event) {
	const most = 2
	var flight []program.StorageID
	for _, n := range sizes {
		if len(flight) == most {
			events, flight = append(events, free(flight[0])), flight[1:]
		}
		flight = append(flight, e.storage(n, program.Temporaries, compute, "broadcast"))
		events = append(events, alloc(flight[len(flight)-1]))
	}
	for _, id := range flight {
		events = append(events, free(id))
	}
	return events
}

// bucket adds a gradient bucket, which lives until buckets are rebuilt.
func (e *editor) bucket(bytes int64) program.StorageID {
	id := e.storage(bytes, program.Gradients, compute, "gradient bucket")
	e.p.Storages[id].Life = program.State
	return id
}

// rebuild returns what the wrapper does at the start of the second forward, when it
// knows the order of the gradients: buckets of at most the given size, in that
// order, replace the first.
func (o DDP) rebuild(e *editor, params []train.Param) (events []program.Event) {
	made := map[program.StorageID]int{}
	for i := range e.src.Nodes {
		for _, ev := range e.src.Nodes[i].Events {
			if !ev.Free {
				made[ev.Storage] = i
			}
		}
	}
	params = slices.Clone(params)
	slices.SortStableFunc(params, func(a, b train.Param) int { return cmp.Compare(made[a.Grad], made[b.Grad]) })
	for _, bytes := range typed(params, o.limits()) {
		events = append(events, alloc(e.bucket(bytes)))
	}
	return events
}

// limits returns the sizes at which buckets are closed.
func (o DDP) limits() []int64 {
	if o.Bucket > 0 && o.First == 0 {
		return []int64{o.Bucket}
	}
	return []int64{cmp.Or(o.First, FirstBucket), cmp.Or(o.Bucket, DefaultBucket)}
}

// typed returns the sizes of the buckets of gradients, grouped by type.
func typed(params []train.Param, limits []int64) (out []int64) {
	var types []string
	sizes := map[string][]int64{}
	for _, p := range params {
		d := p.Tensor.DType.String()
		if sizes[d] == nil {
			types = append(types, d)
		}
		sizes[d] = append(sizes[d], p.Tensor.DType.Bytes(numel(p.Tensor.Shape)))
	}
	for _, d := range types {
		out = append(out, fill(sizes[d], limits)...)
	}
	return out
}

// fill puts sizes into buckets in order; one that has reached its limit is closed.
// The last limit applies to all further buckets; without limits there is one
// bucket.
func fill(sizes, limits []int64) (out []int64) {
	var n int64
	for _, s := range sizes {
		n += s
		if len(limits) > 0 && n >= limits[min(len(out), len(limits)-1)] {
			out, n = append(out, n), 0
		}
	}
	if n > 0 {
		out = append(out, n)
	}
	return out
}

// broadcastBuffers adds the broadcast of rank 0's buffers in flat copies, one
// for each element type, at the start of forward.
func (e *editor) broadcastBuffers() {
	var counters, floats int64
	for _, id := range e.p.Statics {
		switch s := &e.p.Storages[id]; {
		case s.Category != program.Buffers:
		case s.Bytes == 8: // num_batches_tracked
			counters += s.Bytes
		default:
			floats += s.Bytes
		}
	}
	var events []program.Event
	for _, n := range []int64{floats, counters} {
		if id := e.storage(n, program.Temporaries, compute, "broadcast"); id != program.None {
			events = append(events, alloc(id))
		}
	}
	for _, ev := range slices.Clone(events) {
		events = append(events, free(ev.Storage))
	}
	e.node("broadcast_buffers", "", events...)
}

// viewGradients ends the life of gradients when they have been copied into their
// bucket.
func (e *editor) viewGradients(params []train.Param) {
	for _, p := range params {
		e.p.Storages[p.Grad].Life = program.Step
	}
	e.p.Carried = slices.DeleteFunc(e.p.Carried, func(id program.StorageID) bool { return e.p.Storages[id].Life != program.Carried })
}

// forget removes gradients that are views of buckets from the last node's
// reads.
func (e *editor) forget(params []train.Param) {
	n := &e.p.Nodes[len(e.p.Nodes)-1]
	n.Reads = slices.DeleteFunc(slices.Clone(n.Reads), func(id program.StorageID) bool {
		return slices.ContainsFunc(params, func(p train.Param) bool { return p.Grad == id })
	})
}

// part returns the parameters that this rank updates: the largest first, each
// goes to the rank with the fewest elements.
func (o DDP) part(params []train.Param) (out []local) {
	params = slices.Clone(params)
	slices.SortStableFunc(params, func(a, b train.Param) int {
		return cmp.Compare(numel(b.Tensor.Shape), numel(a.Tensor.Shape))
	})
	sizes := make([]int64, o.Size)
	for _, p := range params {
		rank := slices.Index(sizes, slices.Min(sizes))
		sizes[rank] += numel(p.Tensor.Shape)
		if rank == o.Rank {
			out = append(out, local{p.Name, p.Tensor.Storage, p.Grad, updateParam(p.Tensor.DType, p.Tensor.Shape)})
		}
	}
	return out
}
