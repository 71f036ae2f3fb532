package shard

import (
	"cmp"
	"errors"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// Sizes of DeepSpeed's ZeRO, elements (deepspeed/runtime/zero/config.py).
const (
	ZeROBucket      = 500_000_000   // reduce_bucket_size
	ZeROPersistence = 100_000       // stage3_param_persistence_threshold
	ZeROReuse       = 1_000_000_000 // stage3_max_reuse_distance
	ZeROPrefetch    = 50_000_000    // stage3_prefetch_bucket_size
	ZeROLive        = 1_000_000_000 // stage3_max_live_parameters
)

// DeepSpeed is DeepSpeed's engine with ZeRO's stage 2 or 3 around an optimizer of
// PyTorch: gradients are copied into one bucket while backward runs, and each rank
// updates a flat part in float32. In stage 3 the parameters are parts, too, gathered one
// by one when a module runs (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py,
// partitioned_param_coordinator.py; 0.19).
type DeepSpeed struct {
	World
	Stage  int   // 2 or 3
	Bucket int64 // elements of a bucket; 0: ZeROBucket
	// Overlap is overlap_comm: stage 2 has two buckets. Stage 3 always reduces on a stream of
	// its own.
	Overlap bool
	// Persistence is the largest parameter of stage 3, in elements, that stays whole; 0: ZeROPersistence.
	Persistence int64
	// Reuse is how many elements may run before a gathered parameter is used again, for it to
	// stay; 0: ZeROReuse.
	Reuse int64
	// Prefetch is how many elements are gathered ahead; 0: ZeROPrefetch. Live stops that
	// where as many are whole; 0: ZeROLive.
	Prefetch, Live int64
	Update         Update
}

// Apply returns the step of a rank. The source is not changed.
func (o DeepSpeed) Apply(b *train.Build) (*train.Build, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Bucket, o.Persistence, o.Reuse = cmp.Or(o.Bucket, ZeROBucket), cmp.Or(o.Persistence, ZeROPersistence), cmp.Or(o.Reuse, ZeROReuse)
	o.Prefetch, o.Live = cmp.Or(o.Prefetch, ZeROPrefetch), cmp.Or(o.Live, ZeROLive)
	d := &deepSpeed{DeepSpeed: o, editor: newEditor(b), params: trained(b)}
	switch {
	case len(d.params) == 0:
		return nil, errors.New("DeepSpeed's ZeRO needs a parameter that requires a gradient")
	case o.Stage == 3 && len(d.params) < len(b.Params):
		return nil, errors.New("parameters that are not trained are not modelled under DeepSpeed's ZeRO 3: train all, or give zero2")
	case b.Micros > 1:
		return nil, errors.New("gradient accumulation under DeepSpeed's ZeRO is not modelled: give --accumulate 1")
	}
	d.layout()
	d.engine()
	d.walk()
	return d.build(), nil
}

type deepSpeed struct {
	DeepSpeed
	*editor
	params  []train.Param
	dtype   graph.DType // of parameters and gradients
	part    int64       // elements of a rank's part of all parameters
	mine    int64       // elements of the parameters that this rank's part begins, ends or holds
	largest int64       // elements of the largest of them
	master  program.StorageID
	buckets []program.StorageID // while backward runs; for good in stage 3
	parts   program.StorageID   // gradients of this rank's part
	filled  int64               // elements in the bucket

	// Of stage 3:
	queue     []use // all uses of parameters, in order
	gathers   map[int][]int
	next      int // in queue: those before are gathered or were
	whole     map[program.StorageID]bool
	coming    map[program.StorageID]*bundle
	available int64 // elements of parameters that are whole
}

// layout divides the parameters, laid one behind the other, among the ranks.
func (d *deepSpeed) layout() {
	d.master, d.parts, d.dtype = program.None, program.None, d.params[0].Tensor.DType
	var all int64
	for _, p := range d.params {
		all += numel(p.Tensor.Shape)
	}
	align := 2 * int64(d.Size) // nccl_start_alignment_factor
	d.part = ceilDiv(all, align) * align / int64(d.Size)
	from, at := d.part*int64(d.Rank), int64(0)
	for _, p := range d.params {
		n := numel(p.Tensor.Shape)
		if at < from+d.part && at+n > from {
			d.mine, d.largest = d.mine+n, max(d.largest, n)
		}
		at += n
	}
	if d.Stage == 3 { // each parameter is divided by itself
		d.part = 0
		for _, p := range d.params {
			d.part += ceilDiv(numel(p.Tensor.Shape), int64(d.Size))
		}
	}
}

// lasting adds a storage that is made before the first step and stays.
func (d *deepSpeed) lasting(bytes int64, cat program.Category, name string) program.StorageID {
	id := d.storage(bytes, cat, compute, name)
	d.p.Storages[id].Life = program.Static
	d.p.Statics, d.p.Setup = append(d.p.Statics, id), append(d.p.Setup, alloc(id))
	return id
}

// engine makes the engine: parameters move into flat buffers, and the part that this rank
// updates is copied to float32.
func (d *deepSpeed) engine() {
	flat := program.None
	if d.Stage == 2 {
		flat = d.lasting(d.dtype.Bytes(d.part*int64(d.Size)), program.Parameters, "flat parameters")
	} else {
		d.lasting(d.dtype.Bytes(d.part), program.Parameters, "parts of parameters")
	}
	var gone []program.Event
	for _, p := range d.params {
		id := p.Tensor.Storage
		d.p.Statics = slices.DeleteFunc(d.p.Statics, func(s program.StorageID) bool { return s == id })
		d.p.Storages[id].Life = program.Step
		d.name[id] = flat
		before := d.storage(d.p.Storages[id].Bytes, program.Temporaries, compute, p.Name)
		for i, ev := range d.p.Setup {
			if ev.Storage == id {
				d.p.Setup[i].Storage = before
			}
		}
		gone = append(gone, free(before))
	}
	d.p.Setup = append(d.p.Setup, gone...)
	d.master = d.lasting(4*d.part, program.Parameters, "float32 part")
	if d.Stage == 3 {
		d.buckets = []program.StorageID{d.lasting(d.dtype.Bytes(d.Bucket), program.Gradients, "bucket")}
		d.parts = d.lasting(d.dtype.Bytes(d.part), program.Gradients, "gradients' part")
		d.uses()
	}
}

// walk adds what the engine does to the nodes of the step.
func (d *deepSpeed) walk() {
	after := d.hooks()
	ended := false
	for i := range d.src.Nodes {
		n := &d.src.Nodes[i]
		d.follow(n)
		if n.Phase > program.Backward && !ended {
			ended, d.at.Phase = true, program.Backward
			d.epilogue()
			d.follow(n)
		}
		if n.Phase == program.Update && n.Op == "step" {
			if n.Only != program.LaterSteps {
				d.optimize()
			}
			continue
		}
		d.gather(i)
		d.keep(n)
		d.release(i)
		for _, p := range after[i] {
			d.hook(p)
		}
	}
}

// hooks lists, by node, the parameters whose gradients are complete after it.
func (d *deepSpeed) hooks() map[int][]train.Param {
	last := map[program.StorageID]int{}
	for i := range d.src.Nodes {
		n := &d.src.Nodes[i]
		if n.Phase != program.Backward {
			continue
		}
		for _, ev := range n.Events {
			if !ev.Free {
				last[ev.Storage] = i
			}
		}
		for _, t := range slices.Concat(n.In, n.Out) {
			last[t.Storage] = i
		}
		for _, id := range n.Reads {
			last[id] = i
		}
	}
	out := map[int][]train.Param{}
	for _, p := range d.params {
		i := last[p.Grad]
		for i+1 < len(d.src.Nodes) && together(&d.src.Nodes[i], &d.src.Nodes[i+1]) {
			i++
		}
		out[i] = append(out[i], p)
	}
	return out
}

// together reports whether one autograd node issues two nodes: hooks of a gradient run when it
// has ended.
func together(a, b *program.Node) bool {
	return a.Phase == b.Phase && a.Micro == b.Micro && a.Call >= 0 && a.Call == b.Call && a.Autograd == b.Autograd
}

// hook copies a gradient into the bucket, which is reduced first where it is full.
func (d *deepSpeed) hook(p train.Param) {
	if d.Stage == 2 && len(d.buckets) == 0 {
		d.prologue()
	}
	n := numel(p.Tensor.Shape)
	if d.filled > 0 && d.filled+n > d.Bucket {
		d.reduce()
	}
	d.filled += n
	d.p.Storages[p.Grad].Life = program.Step
	d.p.Carried = slices.DeleteFunc(d.p.Carried, func(id program.StorageID) bool { return id == p.Grad })
	d.node("deepspeed::copy_to_bucket", module(p.Name), free(d.now(p.Grad)))
}

// prologue makes the buckets of stage 2 at the first gradient.
func (d *deepSpeed) prologue() {
	n := 1
	if d.Overlap {
		n = 2
	}
	var events []program.Event
	for range n {
		id := d.storage(d.dtype.Bytes(d.Bucket), program.Gradients, compute, "bucket")
		d.buckets, events = append(d.buckets, id), append(events, alloc(id))
	}
	d.node("deepspeed::setup_buckets", "", events...)
}

// reduce sums a bucket over the ranks, in a flat copy; gradients of this rank's part are
// kept.
func (d *deepSpeed) reduce() {
	if d.filled == 0 {
		return
	}
	stream := compute
	if d.Stage == 3 || d.Overlap {
		stream = reduce
	}
	events := passing(d.storage(d.dtype.Bytes(d.filled), program.Temporaries, stream, "reduce-scatter"))
	if d.parts == program.None {
		d.parts = d.storage(d.dtype.Bytes(d.mine), program.Gradients, compute, "gradients in part")
		events = append(events, alloc(d.parts))
	}
	d.filled = 0
	d.node("deepspeed::reduce", "", events...)
}

// epilogue ends backward.
func (d *deepSpeed) epilogue() {
	d.reduce()
	if d.Stage == 2 {
		var events []program.Event
		for _, id := range d.buckets {
			events = append(events, free(id))
		}
		d.node("deepspeed::release_buckets", "", events...)
	}
}

// optimize adds the norm of the gradients, the flat gradient in float32 and the step of
// the optimizer over this rank's part.
func (d *deepSpeed) optimize() {
	d.at.Phase = program.Update
	norm := d.storage(8*d.largest, program.Temporaries, compute, "norm") // in float64
	d.node("deepspeed::norm", "", passing(norm)...)
	grad := d.storage(d.dtype.Bytes(d.part), program.Gradients, compute, "flat gradients")
	events := []program.Event{alloc(grad)}
	if d.dtype.Bytes(1) < 4 {
		wide := d.storage(4*d.part, program.Gradients, compute, "flat gradients")
		events = append(events, alloc(wide), free(grad))
		grad = wide
	}
	if d.Stage == 2 {
		events = append(events, free(d.parts))
	}
	d.node("deepspeed::flatten", "", events...)
	d.step([]local{{"part", d.master, grad, updateParam(graph.Float32, []int64{d.part})}}, d.Update)
	d.node("deepspeed::free_gradients", "", free(grad))
}

// A use is a parameter of stage 3 that a node needs whole.
type use struct {
	train.Param
	node int
	last bool // nothing needs it again soon enough for it to stay
}

// A bundle is parameters that are gathered together ahead of their use.
type bundle struct {
	flat program.StorageID // None for one parameter, which is gathered where it stays
	of   []use
	left int // of them have not been used yet
}

// uses finds the nodes that need a parameter, in order, and after which of them it goes: where
// more elements than Reuse run before it is needed again.
func (d *deepSpeed) uses() {
	d.gathers, d.whole, d.coming = map[int][]int{}, map[program.StorageID]bool{}, map[program.StorageID]*bundle{}
	of := map[program.StorageID]train.Param{}
	owned := map[string][]program.StorageID{} // hooks gather a module's parameters in backward, whether it needs them or not
	for _, p := range d.params {
		of[p.Tensor.Storage] = p
		owned[module(p.Name)] = append(owned[module(p.Name)], p.Tensor.Storage)
	}
	before, when := map[program.StorageID]int{}, map[program.StorageID]int64{}
	var run int64
	for i := range d.src.Nodes {
		n := &d.src.Nodes[i]
		if n.Phase > program.Backward {
			break
		}
		var seen []program.StorageID
		for _, id := range slices.Concat(storages(n.In), n.Reads, owned[n.Module]) {
			p, ok := of[id]
			if !ok || slices.Contains(seen, id) {
				continue
			}
			seen = append(seen, id)
			run += numel(p.Tensor.Shape)
			if b, ok := before[id]; ok {
				d.queue[b].last = run-when[id] > d.Reuse
			}
			before[id], when[id] = len(d.queue), run
			d.gathers[i] = append(d.gathers[i], len(d.queue))
			d.queue = append(d.queue, use{p, i, true})
		}
	}
}

func storages(ts []program.View) (out []program.StorageID) {
	for _, t := range ts {
		out = append(out, t.Storage)
	}
	return out
}

// gather makes the parameters whole that a node needs, and starts to gather those after it.
func (d *deepSpeed) gather(i int) {
	if len(d.gathers[i]) == 0 {
		return
	}
	for _, at := range d.gathers[i] {
		d.next = max(d.next, at+1)
		u := d.queue[at]
		id := u.Tensor.Storage
		if b := d.coming[id]; b != nil {
			d.arrive(b, id)
		} else if !d.whole[id] {
			d.bring(u, compute)
		}
	}
	d.prefetch()
}

// bytes are those of a parameter gathered from parts of one size.
func (d *deepSpeed) bytes(u use) int64 {
	return d.dtype.Bytes(ceilDiv(numel(u.Tensor.Shape), int64(d.Size)) * int64(d.Size))
}

// bring makes a parameter whole, for good if it is small.
func (d *deepSpeed) bring(u use, stream uint8) {
	id := u.Tensor.Storage
	d.whole[id] = true
	if n := numel(u.Tensor.Shape); n <= d.Persistence {
		d.name[id] = d.lasting(d.bytes(u), program.Parameters, u.Name)
		return
	}
	d.name[id] = d.storage(d.bytes(u), program.Parameters, stream, u.Name)
	d.available += numel(u.Tensor.Shape)
	d.node("deepspeed::all_gather", module(u.Name), alloc(d.name[id]))
}

// arrive waits for the bundle of a parameter: its parameters are copied out of the flat
// tensor, which stays until each of them has been waited for.
func (d *deepSpeed) arrive(b *bundle, id program.StorageID) {
	if b.left == len(b.of) && b.flat != program.None {
		for _, u := range b.of {
			d.name[u.Tensor.Storage] = d.storage(d.bytes(u), program.Parameters, gather, u.Name)
			d.node("deepspeed::copy_out", module(u.Name), alloc(d.name[u.Tensor.Storage]))
		}
	}
	b.left--
	delete(d.coming, id)
	if b.left == 0 && b.flat != program.None {
		d.node("deepspeed::free_flat", "", free(b.flat))
	}
}

// prefetch starts to gather the parameters that are needed next.
func (d *deepSpeed) prefetch() {
	b := &bundle{flat: program.None}
	var n, bytes int64
	for limit := min(d.Live-d.available, d.Prefetch); d.next < len(d.queue) && n < limit; d.next++ {
		u := d.queue[d.next]
		id, k := u.Tensor.Storage, numel(u.Tensor.Shape)
		if d.whole[id] {
			continue
		}
		if k <= d.Persistence {
			d.bring(u, gather)
			continue
		}
		d.whole[id], d.coming[id] = true, b
		b.of, n, bytes = append(b.of, u), n+k, bytes+d.bytes(u)
	}
	d.available += n
	if b.left = len(b.of); b.left == 0 {
		return
	}
	id := d.storage(bytes, program.Parameters, gather, "all-gather")
	d.node("deepspeed::all_gather", module(b.of[0].Name), alloc(id))
	if b.left == 1 {
		d.name[b.of[0].Tensor.Storage] = id
	} else {
		b.flat = id
	}
}

// release frees the parameters that nothing needs soon after a node.
func (d *deepSpeed) release(i int) {
	for _, at := range d.gathers[i] {
		u := d.queue[at]
		id := u.Tensor.Storage
		if !u.last || numel(u.Tensor.Shape) <= d.Persistence {
			continue
		}
		d.whole[id] = false
		d.available -= numel(u.Tensor.Shape)
		d.node("deepspeed::release", module(u.Name), free(d.name[id]))
	}
}
