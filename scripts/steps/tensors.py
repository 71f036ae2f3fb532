"""Peak memory of training steps under tensor parallelism with its sequence and loss parallel parts, of one rank on one device (planner/testdata/distributed/tensors.jsonl).

    python tensors.py OUT                on the CPU: storages are counted as operators of this rank make them and as their last reference goes
    python tensors.py OUT --device cuda  on one GPU: the allocator's own peaks
    python tensors.py OUT --export       writes OUT/NAME.onnx, the same models as files

The process group is PyTorch's fake one: its collectives allocate as NCCL's do and move nothing, so that one device shows the step of one rank of 2 or 4. Plans are
torchtitan's: norms are SequenceParallel, what they feed is gathered once (PrepareModuleInput), attention's and the MLP's last linear layers scatter their sums along the sequence, embeddings are
split by their rows. VOCAB=N gives another vocabulary, which the ranks may not divide, with --uneven RANK for one rank of 4, with loss_parallel alone (a process a rank: DTensor remembers shapes); --export with PARTS=N writes
models whose split layers are as wide as a rank's parts. A line a run: name, batch, tp, sequence, lossy (loss_parallel), and bytes of the second step: before it, and its highest by phase. SGD, float32, or bfloat16 with BF16=1."""
import argparse, contextlib, gc, json, os, sys, weakref
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, PrepareModuleOutput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DTYPE = torch.bfloat16 if os.environ.get('BF16') else torch.float32
D, HEADS, LAYERS, VOCAB, LENGTH = 256, 8, 4, int(os.environ.get('VOCAB', 8192)), 128
PARTS = int(os.environ.get('PARTS', 1))


class Attention(nn.Module):
    def __init__(s, causal, bias):
        super().__init__(); s.causal = causal; s.q, s.k, s.v = (nn.Linear(D, D // PARTS, bias=bias) for _ in range(3)); s.o = nn.Linear(D // PARTS, D, bias=bias)

    def forward(s, x):
        q, k, v = (m(x).unflatten(-1, (-1, D // HEADS)).transpose(1, 2) for m in (s.q, s.k, s.v))
        return s.o(F.scaled_dot_product_attention(q, k, v, is_causal=s.causal).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(s): super().__init__(); s.up = nn.Linear(D, 4 * D // PARTS); s.down = nn.Linear(4 * D // PARTS, D)
    def forward(s, x): return s.down(F.gelu(s.up(x)))


class Gated(nn.Module):
    def __init__(s): super().__init__(); s.gate, s.up = (nn.Linear(D, 3 * D // PARTS, bias=False) for _ in range(2)); s.down = nn.Linear(3 * D // PARTS, D, bias=False)
    def forward(s, x): return s.down(F.silu(s.gate(x)) * s.up(x))


class RMSNorm(nn.Module):
    """nn.RMSNorm written out: its kernel on the GPU saves other tensors than the CPU's."""
    def __init__(s, d): super().__init__(); s.weight = nn.Parameter(torch.ones(d))
    def forward(s, x): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * s.weight


class Block(nn.Module):
    def __init__(s, llama, causal):
        super().__init__(); norm = RMSNorm if llama else nn.LayerNorm
        s.norm1, s.attention, s.norm2, s.mlp = norm(D), Attention(causal, not llama), norm(D), Gated() if llama else MLP()

    def forward(s, x): x = x + s.attention(s.norm1(x)); return x + s.mlp(s.norm2(x))


class Patches(nn.Module):
    def __init__(s): super().__init__(); s.linear = nn.Linear(192, D); s.position = nn.Parameter(torch.zeros(LENGTH, D))
    def forward(s, x): return s.linear(x) + s.position


class Model(nn.Module):
    def __init__(s, name):
        super().__init__(); s.name = name; s.tokens = Patches() if name == 'vit' else nn.Embedding(VOCAB, D)
        if name == 'gpt': s.positions = nn.Embedding(LENGTH, D)
        s.blocks = nn.ModuleList(Block(name == 'llama', name != 'vit') for _ in range(LAYERS)); s.norm = (RMSNorm if name == 'llama' else nn.LayerNorm)(D); s.head = nn.Linear(D, 1000 if name == 'vit' else VOCAB, bias=False)

    def forward(s, x):
        h = s.tokens(x)
        if s.name == 'gpt': h = h + s.positions(torch.arange(LENGTH, device=x.device).unsqueeze(0))
        for b in s.blocks: h = b(h)
        h = s.norm(h)
        return s.head(h.mean(1) if s.name == 'vit' else h)


def inputs(name, batch, dev):
    torch.manual_seed(0)
    if name == 'vit': return torch.randn(batch, LENGTH, 192, device=dev), torch.randint(0, 1000, (batch,), device=dev)
    return torch.randint(0, VOCAB, (batch, LENGTH), device=dev), torch.randint(0, VOCAB, (batch * LENGTH,), device=dev)


def spread(model, mesh, sequence, lossy):
    one, rows = (Shard(1),), dict(output_layouts=Shard(1)) if sequence else {}
    plan = {}
    for m in ('attention', 'mlp'):
        if sequence: plan[f'blocks.*.{m}'] = PrepareModuleInput(input_layouts=one, desired_input_layouts=(Replicate(),))
    plan |= {f'blocks.*.attention.{k}': ColwiseParallel() for k in 'qkv'} | {f'blocks.*.mlp.{k}': ColwiseParallel() for k in ('up', 'gate')}
    plan |= {'blocks.*.attention.o': RowwiseParallel(**rows), 'blocks.*.mlp.down': RowwiseParallel(**rows)}
    if sequence:
        plan |= {f'blocks.*.norm{i}': SequenceParallel() for i in (1, 2)} | {'norm': SequenceParallel()}
        if model.name == 'vit':
            plan['tokens'] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
            model.norm.register_forward_hook(lambda m, x, y: y.redistribute(placements=[Replicate()]).to_local())
        else:
            for k in ('tokens', 'positions'): plan[k] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if lossy: plan['head'] = ColwiseParallel(input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Shard(-1), use_local_output=False)
    elif sequence and model.name != 'vit':
        model.norm.register_forward_hook(lambda m, x, y: y.redistribute(placements=[Replicate()]).to_local())
    hooks = dict(model.norm._forward_hooks); model.norm._forward_hooks.clear()
    parallelize_module(model, mesh, {k: v for k, v in plan.items() if any(n == k or k.startswith('blocks.*') and n.endswith(k[9:]) and n.startswith('blocks.') for n, _ in model.named_modules())})
    model.norm._forward_hooks.update(hooks)  # behind those of SequenceParallel


class Recorder(TorchDispatchMode):
    """Counts the storages that this rank's operators make."""

    def __init__(self): super().__init__(); self.known, self.now, self.peak, self.op = {}, 0, 0, ''

    def meet(self, t):
        if not isinstance(t, torch.Tensor) or isinstance(t, DTensor) or type(t).__name__ == 'AsyncCollectiveTensor': return
        storage = t.untyped_storage(); key, size = storage._cdata, -(-storage.nbytes() // 512) * 512
        if key in self.known or size == 0: return
        self.known[key] = size; self.now += size; self.peak = max(self.peak, self.now)
        if os.environ.get('EVENTS') and size >= int(os.environ['EVENTS']): print('+', size, self.op, self.now, flush=True)
        weakref.finalize(storage, self.gone, key, size)

    def gone(self, key, size):
        if self.known.pop(key, None):
            self.now -= size
            if os.environ.get('EVENTS') and size >= int(os.environ['EVENTS']): print('-', size, self.now, flush=True)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t is DTensor for t in types): return NotImplemented  # its own operators come next
        out = func(*args, **(kwargs or {})); self.op = str(func)
        for t in tree_leaves(out): self.meet(t)
        return out


def run(name, batch, size, sequence, lossy, dev):
    torch.manual_seed(0); mesh = init_device_mesh(dev, (size,)); model = Model(name).to(dev, DTYPE).train(); x, y = inputs(name, batch, dev)
    if x.is_floating_point(): x = x.to(DTYPE)
    spread(model, mesh, sequence, lossy); opt = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False); rec, phases = Recorder(), {}
    for t in [*model.parameters(), *model.buffers(), x, y]: rec.meet(t.to_local() if isinstance(t, DTensor) else t)

    def phase(what):
        if dev == 'cuda': phases[what] = torch.cuda.max_memory_allocated(); torch.cuda.reset_peak_memory_stats()
        else: phases[what] = rec.peak; rec.peak = rec.now

    def step():
        opt.zero_grad(set_to_none=True); before = rec.now if dev == 'cpu' else torch.cuda.memory_allocated(); phase('zero_grad')
        logits = model(x); phase('forward')
        with loss_parallel() if lossy else contextlib.nullcontext():
            loss = F.cross_entropy(logits.flatten(0, -2), y); del logits; phase('loss')
            loss.backward(); phase('backward')
        opt.step(); phase('optimizer')
        return before
    gc.collect()
    with rec if dev == 'cpu' else contextlib.nullcontext():
        for i in range(2): before = step()
    return dict(name=name, batch=batch, tp=size, sequence=sequence, lossy=lossy, device=dev, torch=torch.__version__.split('+')[0], before=before, **phases)


if __name__ == '__main__':
    a = argparse.ArgumentParser(); a.add_argument('out'); a.add_argument('--device', default='cpu'); a.add_argument('--export', action='store_true'); a.add_argument('--uneven', type=int); a.add_argument('--only', default=''); a = a.parse_args(); os.makedirs(a.out, exist_ok=True)
    if a.export:
        import memplan
        for name in ('llama', 'gpt', 'vit'): memplan.export(Model(name), (inputs(name, 2, 'cpu')[0],), path=f'{a.out}/{name}.onnx')
        sys.exit()
    with open(f'{a.out}/tensors.jsonl', 'a') as f:
        for rank in () if a.uneven is None else (a.uneven,):
            dist.init_process_group('fake', rank=rank, world_size=4, store=FakeStore())
            for name, sequence in (('llama', False), ('llama', True), ('gpt', False)):
                r = dict(run(name, 4, 4, sequence, True, a.device), vocab=VOCAB, rank=rank); f.write(json.dumps(r) + '\n'); f.flush(); print(r, flush=True)
            dist.destroy_process_group()
        for size in (2, 4) if a.uneven is None else ():
            dist.init_process_group('fake', rank=0, world_size=size, store=FakeStore())
            for name in ('llama', 'gpt', 'vit'):
                for sequence, lossy in ((False, False), (True, False), (False, True), (True, True)):
                    if lossy and name == 'vit' or a.only and a.only != f'{name}-{size}-{sequence:d}{lossy:d}': continue
                    for batch in (1, 4):
                        r = run(name, batch, size, sequence, lossy, a.device); f.write(json.dumps(r) + '\n'); f.flush(); print(r, flush=True)
            dist.destroy_process_group()
