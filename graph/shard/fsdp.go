package shard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// FSDP is FSDP2: fully_shard on some modules and then on the root. A unit's
// parameters are gathered before it runs and freed after it, forward and backward;
// its gradients are reduced and scattered when its backward has run.
type FSDP struct {
	World
	Device
	// Units are the modules that fully_shard is called on, besides the root.
	Units []string
	// Keep is reshard_after_forward=False: gathered parameters stay from forward to backward.
	Keep bool
	// Within is reshard_after_forward=N: after forward a rank keeps its 1/N of the
	// parameters, which backward gathers from N ranks. 0 if it keeps only its shard.
	Within int
	// Prefetch is how many units ahead are gathered, in forward and in backward
	// (set_modules_to_forward_prefetch, set_modules_to_backward_prefetch); 0 is FSDP2's
	// default: none in forward and one in backward.
	Prefetch int
	// Stored is the type of the sharded parameters, gradients and optimizer state,
	// Undefined for that of the program's parameters. If it differs, the program's
	// is MixedPrecisionPolicy's param_dtype.
	Stored graph.DType
	// Reduced is reduce_dtype, Undefined for the type of the gradients.
	Reduced graph.DType
	// Offload is CPUOffloadPolicy: shards, gradients and the optimizer are on the host.
	Offload bool
	// Experts are units whose parameters only every Every-th rank shares: the others have other experts.
	Experts []string
	Every   int
	Update  Update
}

// A unit is a module whose parameters are gathered together.
type unit struct {
	name     string
	params   []*sharded          // in the order of the unit's modules, children first
	keep     bool                // parameters stay after forward
	whole    bool                // the whole parameters are gathered now
	gathered program.StorageID   // the all-gather's output before it is copied out, or None
	last     int                 // last node of its backward
	done     bool                // gradients have been reduced
	order    []int               // its positions in the order of forward
	parts    []program.StorageID // what Within keeps between forward and backward
	local    int                 // of a pipeline: which of the rank's stages it is in, from 0
	summed   bool                // likewise: gradients are in their reduction type
	ranks    int                 // that share its parameters; 1: its parameters are copied, and nothing is gathered
	ready    bool                // with one rank: gathering them has been asked for
}

// A sharded parameter.
type sharded struct {
	train.Param
	padded  int64 // elements of a rank's shard, padding included
	local   []int64
	shard   program.StorageID // None on the host
	reduced program.StorageID // where this rank's gradient is
}

// Apply returns the step of a rank. The source is not changed.
func (o FSDP) Apply(b *train.Build) (*train.Build, error) {
	if err := o.valid(); err != nil {
		return nil, err
	}
	w := &fsdp{FSDP: o, editor: newEditor(b)}
	if err := w.split(); err != nil {
		return nil, err
	}
	w.construct()
	w.walk()
	w.finish()
	return w.build(), nil
}

func (o FSDP) valid() error {
	if o.Within > 0 && (o.Size%o.Within != 0 || o.Within >= o.Size || o.Within < 2) {
		return fmt.Errorf("FSDP2: reshard_after_forward=%d over %d ranks: want a divisor of them between 2 and %d", o.Within, o.Size, o.Size-1)
	}
	return o.check()
}

type fsdp struct {
	FSDP
	*editor
	units  []*unit // in the order of Module.named_modules, the root first
	params map[program.StorageID]*sharded
	active []*unit             // those whose forward runs, outermost first
	state  program.StorageID   // the last all-gather's output, kept until the next copy out
	order  []*unit             // of forward
	input  program.StorageID   // the last reduce-scatter's input
	casts  []program.StorageID // inputs in the policy's type
	begun  bool                // backward has reached the model
	redone *unit               // in another one, recomputed now
	micro  int32               // the current micro-batch
	layers []*unit             // in the order of the first forward, for Prefetch
	spans  []span              // of a pipeline's stages
	stage  map[int]*stageUnits // likewise, by stage
	whole  []program.StorageID // likewise, inputs of all micro-batches in the policy's type
	cast   map[castOf]program.StorageID
}

// split finds the units and their parameters.
func (w *fsdp) split() error {
	w.state, w.input = program.None, program.None
	w.params = map[program.StorageID]*sharded{}
	names := []string{""}
	for i := range w.src.Nodes { // in the order of forward
		if m := w.owner(w.src.Nodes[i].Module); m != "" && !slices.Contains(names, m) {
			names = append(names, m)
		}
	}
	for _, u := range w.Units {
		if !slices.Contains(names, u) {
			return fmt.Errorf("FSDP2: no operator runs in the module %q", u)
		}
	}
	for _, n := range names {
		w.units = append(w.units, w.newUnit(n, 0))
	}
	if err := w.assign(func(p train.Param) *unit { return w.unit(w.owner(module(p.Name))) }); err != nil {
		return err
	}
	for i := range w.src.Nodes { // the root is entered first
		for _, u := range w.around(w.src.Nodes[i].Module) {
			if w.src.Nodes[i].Phase == program.Forward && !slices.Contains(w.layers, u) {
				w.layers = append(w.layers, u)
			}
		}
	}
	w.ends(0)
	return nil
}

// assign gives each parameter of this rank to its unit.
func (w *fsdp) assign(unit func(p train.Param) *unit) error {
	for _, p := range childrenFirst(w.src.Params) {
		if !held(w.src, p) {
			continue
		}
		if len(p.Tensor.Shape) == 0 {
			return fmt.Errorf("FSDP2 cannot shard the scalar parameter %q: fully_shard raises", p.Name)
		}
		u := unit(p)
		s := w.sharded(p, w.among(u.name))
		u.params = append(u.params, s)
		w.params[p.Tensor.Storage] = s
	}
	return nil
}

// ends finds the last nodes of the units' backward of a micro-batch.
func (w *fsdp) ends(micro int32) {
	for _, u := range w.units {
		u.last = -1
	}
	for i := range w.src.Nodes {
		n := &w.src.Nodes[i]
		if n.Phase != program.Backward || n.Micro != micro {
			continue
		}
		for _, u := range w.around(n.Module) {
			u.last = i
		}
	}
}

// next begins a micro-batch after the first.
func (w *fsdp) next(micro int32) {
	w.last()
	w.micro, w.begun, w.order = micro, false, nil
	for _, u := range w.units {
		u.done, u.order = false, nil
	}
	w.ends(micro)
}

// reduces reports whether the current micro-batch is the step's last, at whose
// end gradients are reduced (set_requires_gradient_sync).
func (w *fsdp) reduces() bool {
	return int(w.micro) == max(1, min(w.src.Micros, program.MicrosBuilt))-1
}

// Apart reports whether a parameter is one of those that not all ranks share.
func (o *FSDP) Apart(param string) bool {
	return slices.ContainsFunc(o.Experts, func(unit string) bool { return train.Within(module(param), unit) })
}

// among is the ranks that share a unit's parameters.
func (w *fsdp) among(unit string) World {
	if w.Every > 1 && slices.Contains(w.Experts, unit) {
		return World{w.Size / w.Every, w.Rank / w.Every}
	}
	return w.World
}

// sharded divides a parameter along its first dim, as torch.chunk does.
func (w *fsdp) sharded(p train.Param, among World) *sharded {
	shape := p.Tensor.Shape
	chunk := ceilDiv(shape[0], int64(among.Size))
	s := &sharded{Param: p, local: slices.Clone(shape), shard: program.None, reduced: program.None}
	s.local[0] = Rows(shape, int64(among.Size), int64(among.Rank))
	s.padded = chunk * numel(shape[1:])
	return s
}

// Rows is how much of a parameter's first dim a rank of fully_shard has.
func Rows(shape []int64, ranks, rank int64) int64 {
	if len(shape) == 0 {
		return 0
	}
	chunk := ceilDiv(shape[0], ranks)
	return min(max(shape[0]-rank*chunk, 0), chunk)
}

// owner is the innermost unit around a module, the root's "" for none.
func (w *fsdp) owner(module string) (best string) {
	for _, u := range w.Units {
		if len(u) > len(best) && train.Within(module, u) {
			best = u
		}
	}
	return best
}

func (w *fsdp) unit(name string) *unit {
	return w.units[slices.IndexFunc(w.units, func(u *unit) bool { return u.name == name })]
}

// around returns the units around a module, the root first.
func (w *fsdp) around(module string) (out []*unit) {
	for _, u := range w.units {
		if u.name == "" || train.Within(module, u.name) {
			out = append(out, u)
		}
	}
	slices.SortStableFunc(out, func(a, b *unit) int { return cmp.Compare(len(a.name), len(b.name)) })
	return out
}

// stored returns the type in which a shard is kept.
func (w *fsdp) stored(s *sharded) graph.DType {
	if w.Stored != graph.Undefined && s.Tensor.DType.IsFloat() {
		return w.Stored
	}
	return s.Tensor.DType
}

// construct replaces the whole parameters by shards: the model is on the device, then one
// unit after the other is sharded, the root last.
func (w *fsdp) construct() {
	whole := map[program.StorageID]program.StorageID{}
	w.p.Statics = slices.DeleteFunc(w.p.Statics, func(id program.StorageID) bool { return w.params[id] != nil })
	for id, s := range w.params {
		w.p.Storages[id].Life = program.Step // what the program reads is gathered
		if !w.Offload {
			whole[id] = w.storage(w.stored(s).Bytes(numel(s.Tensor.Shape)), program.Temporaries, compute, s.Name)
		}
	}
	w.unconvert()
	setup := w.p.Setup[:0:0]
	for _, ev := range w.p.Setup {
		switch id, ok := whole[ev.Storage]; {
		case ok:
			setup = append(setup, alloc(id))
		case w.params[ev.Storage] == nil:
			setup = append(setup, ev)
		}
	}
	for first := 0; first < len(w.units); {
		last := first + 1
		for last < len(w.units) && w.units[last].name != "" {
			setup = append(setup, w.cut(w.units[last], whole)...)
			last++
		}
		setup = append(setup, w.cut(w.units[first], whole)...)
		first = last
	}
	w.p.Setup = setup
}

// unconvert reverts the program's conversions of the model and its inputs before the
// first step: the policy casts parameters when it gathers them, and inputs when forward
// begins; buffers keep their type.
func (w *fsdp) unconvert() {
	if w.Stored == graph.Undefined {
		return
	}
	from := map[program.StorageID]program.StorageID{} // the storage before a conversion, by the one after it
	gone := map[program.StorageID]bool{}
	for i, ev := range w.p.Setup {
		if i > 0 && ev.Free && !w.p.Setup[i-1].Free {
			from[w.p.Setup[i-1].Storage], gone[ev.Storage] = ev.Storage, true
		}
	}
	setup := w.p.Setup[:0:0]
	for _, ev := range w.p.Setup {
		if gone[ev.Storage] {
			continue
		}
		if old, ok := from[ev.Storage]; ok && w.params[ev.Storage] == nil {
			whole := w.p.Storages[old].Bytes
			if s := &w.p.Storages[ev.Storage]; s.Category == program.Inputs {
				w.casts = append(w.casts, ev.Storage)
				s.Life = program.Step
				w.p.Statics = slices.DeleteFunc(w.p.Statics, func(id program.StorageID) bool { return id == ev.Storage })
				ev.Storage = w.storage(whole, program.Inputs, compute, s.Name)
				w.p.Storages[ev.Storage].Life = program.Static
				w.p.Statics = append(w.p.Statics, ev.Storage)
			} else {
				s.Bytes = whole
			}
		}
		setup = append(setup, ev)
	}
	w.p.Setup = setup
}

// cut allocates the shards of a unit's parameters; the whole ones are freed
// when fully_shard returns, from the end of its list.
func (w *fsdp) cut(u *unit, whole map[program.StorageID]program.StorageID) (setup []program.Event) {
	if w.Offload {
		return nil
	}
	for _, s := range u.params {
		s.shard = w.storage(w.stored(s).Bytes(s.padded), program.Parameters, compute, s.Name)
		if s.shard != program.None {
			w.p.Storages[s.shard].Life = program.Static
			w.p.Statics = append(w.p.Statics, s.shard)
			setup = append(setup, alloc(s.shard))
		}
	}
	for _, s := range slices.Backward(u.params) {
		setup = append(setup, free(whole[s.Tensor.Storage]))
	}
	return setup
}

// walk copies the program, gathers before a unit runs and reduces after it.
func (w *fsdp) walk() {
	for i := range w.src.Nodes {
		n := &w.src.Nodes[i]
		if n.Phase > program.Forward {
			w.leave(nil)
		}
		if n.Phase != program.Update && n.Micro > w.micro {
			w.next(n.Micro)
		}
		if n.Phase > program.Backward {
			w.last()
		}
		w.follow(n)
		switch n.Phase {
		case program.Forward:
			w.enter(w.around(n.Module))
		case program.Backward:
			if w.begun = w.begun || n.Call >= 0 || n.Module != ""; w.begun { // calls before it are the loss's
				w.recomputed(n)
				for _, u := range w.around(n.Module) {
					if n.Recompute && w.nested(u) {
						w.again(u)
					} else {
						w.unshardBackward(u)
					}
				}
			}
		case program.Update:
			if n.Op == "step" {
				if n.Only != program.LaterSteps {
					w.update()
				}
				continue
			}
		}
		w.keep(n)
		if n.Phase == program.Backward {
			for _, u := range slices.Backward(w.around(n.Module)) {
				if u.last == i && w.follows(i, u) {
					w.postBackward(u)
				}
			}
		}
	}
}

// nested reports whether a unit is within another than the root: where that is checkpointed, its
// hooks run in the recomputation.
func (w *fsdp) nested(u *unit) bool {
	return slices.ContainsFunc(w.units, func(o *unit) bool { return o.name != "" && o != u && train.Within(u.name, o.name) })
}

// again gathers such a unit in the recomputation as forward does: the gathered copy lives until
// the unit's forward has ended again. Its parameters then stay for its backward (FSDPParamGroup.post_forward).
func (w *fsdp) again(u *unit) {
	if w.redone == u || len(u.order) == 0 || u.done {
		return
	}
	w.redone = u
	w.unshard(u)
	w.copyOut(u, true)
}

// recomputed ends the recomputation of a nested unit that node n is no longer in.
func (w *fsdp) recomputed(n *program.Node) {
	if w.redone == nil || n.Recompute && train.Within(n.Module, w.redone.name) {
		return
	}
	if w.redone = nil; w.state != program.None {
		w.node("fsdp::free_all_gather", "", free(w.state))
		w.state = program.None
	}
}

// follows reports whether operators of other units run backward after node i,
// where unit u ends: otherwise none of its inputs requires a gradient, and it
// is finished when backward ends.
func (w *fsdp) follows(i int, u *unit) bool {
	for _, n := range w.src.Nodes[i+1:] {
		if n.Phase != program.Backward {
			return false
		}
		if u.name != "" && !train.Within(n.Module, u.name) {
			return true
		}
	}
	return false
}

// enter starts the units around a node.
func (w *fsdp) enter(units []*unit) {
	w.leave(units)
	for _, u := range units[len(w.active):] {
		if len(w.active) == 0 {
			w.castInputs()
		}
		w.active = append(w.active, u)
		w.unshard(u)
		w.copyOut(u, true)
		at := slices.Index(w.layers, u)
		for _, next := range w.layers[at+1 : min(at+1+w.Prefetch, len(w.layers))] {
			w.unshard(next)
		}
	}
}

// castInputs adds copies of the inputs in the policy's type.
func (w *fsdp) castInputs() {
	var events []program.Event
	for _, id := range w.casts {
		events = append(events, alloc(id))
	}
	w.node("fsdp::cast_forward_inputs", "", events...)
}

// leave ends the forward of units that are not around the next node.
func (w *fsdp) leave(units []*unit) {
	for len(w.active) > 0 {
		n := len(w.active) - 1
		u := w.active[n]
		if n < len(units) && units[n] == u {
			return
		}
		w.active = w.active[:n]
		if !u.keep {
			w.keepParts(u)
			w.reshard(u)
		}
		u.order = append(u.order, len(w.order))
		w.order = append(w.order, u)
		if n == 0 && w.state != program.None {
			w.node("fsdp::free_all_gather", u.name, free(w.state))
			w.state = program.None
		}
	}
}

// unshard starts a unit's all-gather.
func (w *fsdp) unshard(u *unit) { w.unshardOn(u, gather+2*uint8(u.local)) }

// unshardOn does so on a stream.
func (w *fsdp) unshardOn(u *unit, gather uint8) {
	if u.whole || u.gathered != program.None || u.ready || len(u.params) == 0 {
		return
	}
	if u.ranks == 1 {
		u.ready = true
		return
	}
	if len(u.parts) > 0 {
		var total int64
		for _, id := range u.parts {
			total += w.p.Storages[id].Bytes * int64(w.Within)
		}
		u.gathered = w.storage(total, program.Parameters, gather, u.name+" all-gather")
		w.node("fsdp::all_gather_copy_in", u.name, alloc(u.gathered))
		return
	}
	var events, frees []program.Event
	var total, cast int64
	for _, s := range u.params {
		total += s.Tensor.DType.Bytes(s.padded) * int64(u.ranks)
		switch {
		case w.Offload:
			id := w.storage(w.stored(s).Bytes(s.padded), program.Parameters, gather, s.Name)
			events, frees = append(events, alloc(id)), append(frees, free(id))
		case w.stored(s) != s.Tensor.DType:
			cast += s.Tensor.DType.Bytes(s.padded)
		}
	}
	if id := w.storage(cast, program.Parameters, gather, u.name+" shards"); id != program.None {
		events, frees = append(events, alloc(id)), append(frees, free(id))
	}
	u.gathered = w.storage(total, program.Parameters, gather, u.name+" all-gather")
	events = append(events, alloc(u.gathered))
	slices.Reverse(frees)
	w.node("fsdp::all_gather_copy_in", u.name, append(events, frees...)...)
}

// copyOut waits for a unit's all-gather and copies it into whole parameters. In
// forward the gathered copy lives until the next unit's has been copied out.
func (w *fsdp) copyOut(u *unit, forward bool) {
	if u.ready {
		w.copyOwn(u, forward)
	}
	if u.gathered == program.None {
		return
	}
	var events []program.Event
	var chunks []int64
	for _, s := range u.params {
		id := w.storage(s.Tensor.DType.Bytes(s.padded)*int64(u.ranks), program.Parameters, compute, s.Name)
		w.name[s.Tensor.Storage] = id
		if id != program.None {
			events = append(events, alloc(id))
		}
		chunks = append(chunks, s.Tensor.DType.Bytes(s.padded))
	}
	events = append(events, passing(w.storage(w.splitTable(chunks, int64(u.ranks)), program.Temporaries, compute, "split_with_sizes_copy"))...)
	if !forward {
		events = append(events, free(u.gathered))
	} else {
		if w.state != program.None {
			events = append(events, free(w.state))
		}
		w.state = u.gathered
	}
	for _, id := range u.parts {
		events = append(events, free(id))
	}
	u.gathered, u.whole, u.parts = program.None, true, nil
	w.node("fsdp::all_gather_copy_out", u.name, events...)
}

// copyOwn copies the parameters of a unit that one rank has alone: nothing is gathered.
func (w *fsdp) copyOwn(u *unit, forward bool) {
	var events []program.Event
	if forward && w.state != program.None {
		events = append(events, free(w.state))
		w.state = program.None
	}
	for _, s := range u.params {
		cast := program.None
		if w.stored(s) != s.Tensor.DType {
			cast = w.storage(s.Tensor.DType.Bytes(s.padded), program.Parameters, compute, s.Name)
			events = append(events, alloc(cast))
		}
		id := w.storage(s.Tensor.DType.Bytes(s.padded), program.Parameters, compute, s.Name)
		w.name[s.Tensor.Storage] = id
		if id != program.None {
			events = append(events, alloc(id))
		}
		if cast != program.None {
			events = append(events, free(cast))
		}
	}
	u.ready, u.whole = false, true
	w.node("fsdp::copy_own", u.name, events...)
}

// keepParts copies this rank's part (Within) of a unit's whole parameters.
func (w *fsdp) keepParts(u *unit) {
	if w.Within == 0 || !u.whole {
		return
	}
	var events []program.Event
	for _, s := range u.params {
		all := w.p.Storages[w.now(s.Tensor.Storage)].Bytes
		if id := w.storage(all/int64(w.Within), program.Parameters, compute, s.Name+" part"); id != program.None {
			u.parts, events = append(u.parts, id), append(events, alloc(id))
		}
	}
	w.node("fsdp::reshard_part", u.name, events...)
}

// reshard frees a unit's whole parameters.
func (w *fsdp) reshard(u *unit) {
	if !u.whole {
		return
	}
	var events []program.Event
	for _, s := range u.params {
		if id := w.now(s.Tensor.Storage); id != program.None {
			events = append(events, free(id))
		}
	}
	u.whole = false
	w.node("fsdp::reshard", u.name, events...)
}

// unshardBackward gathers a unit before its backward and starts the all-gather
// of the unit that ran before it.
func (w *fsdp) unshardBackward(u *unit) {
	if len(u.order) == 0 || u.done {
		return
	}
	w.unshard(u)
	w.copyOut(u, false)
	at := u.order[len(u.order)-1]
	u.order = nil
	for k := 1; k <= max(w.Prefetch, 1) && k <= at; k++ {
		w.unshard(w.order[at-k])
	}
}

// postBackward frees a unit's parameters and scatters the sums of its gradients.
func (w *fsdp) postBackward(u *unit) {
	if u.done {
		return
	}
	u.done = true
	if !w.reduces() {
		w.reshard(u)
		w.accumulate(u)
		return
	}
	w.reshard(u)
	w.scatter(u)
}

// scatter scatters the sums of a unit's gradients.
func (w *fsdp) scatter(u *unit) {
	var with []*sharded
	for _, s := range u.params {
		if s.Grad != program.None {
			with = append(with, s)
		}
	}
	if len(with) == 0 {
		return
	}
	var events []program.Event
	if w.input != program.None {
		events = append(events, free(w.input))
	}
	var elems int64
	var chunks []int64
	d := cmp.Or(w.Reduced, with[0].Tensor.DType)
	for _, s := range with {
		elems += s.padded
		chunks = append(chunks, d.Bytes(s.padded))
	}
	w.input = w.storage(d.Bytes(elems*int64(u.ranks)), program.Gradients, compute, u.name+" reduce-scatter")
	events = append(events, alloc(w.input))
	events = append(events, passing(w.storage(chunkCatTable(chunks), program.Temporaries, compute, "_chunk_cat"))...)
	n := len(with) - 1 // a list's items are freed from its end; the last has a variable of its own
	for _, s := range slices.Backward(with[:n]) {
		events = append(events, w.freeGradient(s))
	}
	out := w.storage(d.Bytes(elems), program.Gradients, reduce+2*uint8(u.local), u.name+" gradients")
	events = append(events, alloc(out))
	if stored := w.stored(with[0]); stored != d {
		sum := w.storage(stored.Bytes(elems), program.Gradients, reduce+2*uint8(u.local), u.name+" gradients")
		events = append(events, alloc(sum), free(out))
		out = sum
	}
	events = append(events, w.freeGradient(with[n]))
	if w.Offload {
		events = append(events, free(out))
	} else {
		w.p.Storages[out].Life = program.Carried
		w.p.Carried = append(w.p.Carried, out)
		for _, s := range with {
			s.reduced = out
		}
	}
	w.node("fsdp::reduce_scatter", u.name, events...)
}

// accumulate keeps a unit's whole gradients for the next micro-batch, in their
// reduction type.
func (w *fsdp) accumulate(u *unit) {
	var events []program.Event
	for _, s := range u.params {
		if s.Grad == program.None || w.Reduced == graph.Undefined || w.Reduced == s.Tensor.DType {
			continue
		}
		sum := w.storage(w.Reduced.Bytes(numel(s.Tensor.Shape)), program.Gradients, compute, s.Name+" gradient")
		events = append(events, alloc(sum), w.freeGradient(s))
		w.name[s.Grad] = sum
	}
	w.node("fsdp::accumulate", u.name, events...)
}

// freeGradient frees a parameter's whole gradient.
func (w *fsdp) freeGradient(s *sharded) program.Event {
	w.p.Storages[s.Grad].Life = program.Step
	w.p.Carried = slices.DeleteFunc(w.p.Carried, func(id program.StorageID) bool { return id == s.Grad })
	return free(w.now(s.Grad))
}

// last ends backward for the units whose backward no input's gradient ended.
func (w *fsdp) last() {
	for _, u := range w.units {
		w.postBackward(u)
	}
	w.freeInput()
}

// freeInput frees what the last reduce-scatter read.
func (w *fsdp) freeInput() {
	if w.input != program.None {
		w.node("fsdp::root_post_backward", "", free(w.input))
		w.input = program.None
	}
}

// finish ends a program without an update.
func (w *fsdp) finish() { w.last() }

// update adds the optimizer's step over this rank's shards.
func (w *fsdp) update() {
	if w.Offload {
		return
	}
	var list []local
	for _, p := range w.src.Params {
		s := w.params[p.Tensor.Storage]
		if s == nil || s.Grad == program.None || numel(s.local) == 0 {
			continue
		}
		list = append(list, local{s.Name, s.shard, s.reduced, updateParam(w.stored(s), s.local)})
	}
	w.step(list, w.Update)
}

// module returns the module that owns a parameter.
func module(param string) string {
	if i := strings.LastIndexByte(param, '.'); i >= 0 {
		return param[:i]
	}
	return ""
}

// childrenFirst sorts parameters as a walk over modules that visits children
// before their module.
func childrenFirst(list []train.Param) (out []train.Param) {
	type node struct {
		children []string
		own      []train.Param
	}
	tree := map[string]*node{}
	var get func(name string) *node
	get = func(name string) *node {
		m := tree[name]
		if m == nil {
			m = &node{}
			tree[name] = m
			if name != "" {
				up := get(module(name))
				up.children = append(up.children, name)
			}
		}
		return m
	}
	for _, p := range list {
		m := get(module(p.Name))
		m.own = append(m.own, p)
	}
	var visit func(m *node)
	visit = func(m *node) {
		for _, c := range m.children {
			visit(tree[c])
		}
		out = append(out, m.own...)
	}
	visit(get(""))
	return out
}
