"""Peak memory and time of steps on several GPUs that distributed.py does not run (planner/testdata/distributed/meshes.jsonl.xz).

    torchrun --nproc_per_node 2 meshes.py OUT SECONDS

writes OUT/meshes.jsonl, a line a run: every rank's highest allocated and reserved bytes, the driver's bytes and milliseconds of each of five steps.
Strategies: ds1, ds2, ds3 (DeepSpeed's engine, stage 1 to 3, its own defaults, AdamW of PyTorch) and ds1-bf16 ...; cp (context_parallel around scaled_dot_product_attention,
the sequence in as many parts as ranks), ring (the same of models of zoo.py, also with FSDP2 over the ranks); accum (two micro-batches: DDP under no_sync, FSDP2 with set_requires_gradient_sync); lora (rank 8 beside every linear layer of
a block, everything else frozen); gpipe, 1f1b, interleaved, zb (pipelines of stacked blocks, two stages a rank for the last two, four micro-batches; zb is the interleaved zero-bubble
schedule). BATCHES=file.json runs instead, under the cap of each row, [[name, strategy, cap, batch], ...]: whether five steps run."""
import datetime, gc, json, os, sys, time
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed import pipelining as pp
from torch.nn.parallel import DistributedDataParallel as DDP
from zoo import ZOO
from measure import clear
from distributed import KINDS, checkpointed, driver, wrapped


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""
    def __init__(s, d, heads):
        super().__init__(); s.heads = heads; s.ln1 = nn.LayerNorm(d); s.qkv = nn.Linear(d, 3 * d); s.proj = nn.Linear(d, d); s.ln2 = nn.LayerNorm(d); s.up = nn.Linear(d, 4 * d); s.down = nn.Linear(4 * d, d)

    def forward(s, x):
        q, k, v = s.qkv(s.ln1(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (s.heads, -1)).transpose(1, 2) for t in (q, k, v))
        x = x + s.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + s.down(F.gelu(s.up(s.ln2(x))))


class GPT(nn.Module):
    def __init__(s, d=768, heads=12, layers=12, vocab=32000):
        super().__init__(); s.emb = nn.Embedding(vocab, d); s.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers)); s.ln = nn.LayerNorm(d); s.head = nn.Linear(d, vocab, bias=False)

    def forward(s, ids):
        x = s.emb(ids)
        for b in s.blocks: x = b(x)
        return s.head(s.ln(x))


class Lora(nn.Module):
    def __init__(s, linear, rank=8):
        super().__init__(); s.base = linear; s.a = nn.Linear(linear.in_features, rank, bias=False); s.b = nn.Linear(rank, linear.out_features, bias=False)

    def forward(s, x): return s.base(x) + s.b(s.a(x))


def measured(rec, step, n=5):
    base = torch.cuda.memory_allocated(); steps, times = [], []
    for _ in range(n):
        torch.cuda.synchronize(); dist.barrier(); torch.cuda.reset_peak_memory_stats(); t = time.time(); step(); torch.cuda.synchronize(); times.append(round(1000 * (time.time() - t), 2))
        steps.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
    free, total = torch.cuda.mem_get_info(); got = [None] * dist.get_world_size()
    dist.all_gather_object(got, dict(steps=steps, ms=times, driver=total - free, before=base)); rec['ranks'] = got
    return rec


def plain(model, x, loss, batch, opt):
    def step():
        opt.zero_grad(set_to_none=True); l = loss(model(*x), batch); l.backward(); opt.step(); del l
    return step


def zoo(name): return ZOO[name]['build']().train(), ZOO[name]['loss'], ZOO[name]['inputs']


def engine(name, batch, stage, dtype, dev):
    import deepspeed
    model, loss, inputs = zoo(name); x = inputs(batch, dev)
    conf = dict(train_micro_batch_size_per_gpu=batch, zero_optimization=dict(stage=stage), zero_allow_untested_optimizer=True)
    if dtype == 'bf16': conf['bf16'] = dict(enabled=True); x = tuple(t.bfloat16() if t.is_floating_point() else t for t in x)
    model, opt, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4), config=conf)

    def step(): l = loss(model(*x), batch); model.backward(l); model.step(); del l
    return step


def context(batch, seq, dtype, dev):
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import sdpa_kernel, SDPBackend
    w = dist.get_world_size(); mesh = init_device_mesh('cuda', (w,), mesh_dim_names=('cp',)); model = GPT().to(dev, dtype); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 32000, (batch, seq), device=dev); y = torch.randint(0, 32000, (batch, seq), device=dev)

    def step():
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION if dtype == torch.bfloat16 else SDPBackend.EFFICIENT_ATTENTION]), context_parallel(mesh, buffers=[ids, y], buffer_seq_dims=[1, 1], no_restore_buffers=set()):
            opt.zero_grad(set_to_none=True); l = F.cross_entropy(model(ids).flatten(0, 1).float(), y.flatten()); l.backward(); opt.step(); del l
    return step


def ring(name, batch, strategy, dev):
    """A model of zoo.py under context_parallel, its inputs cut along the sequence: ring-efficient, ring-flash-bf16, ring-fsdp-efficient ... Without a causal mask there is no load balance."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention
    from torch.nn.attention import sdpa_kernel, SDPBackend
    words = strategy.split('-'); w = dist.get_world_size(); mesh = init_device_mesh('cuda', (w,), mesh_dim_names=('cp',)); model, loss, inputs = zoo(name); model.memplan_name = name; x = inputs(batch, dev)
    if words[-1] == 'bf16': model = model.to(torch.bfloat16)
    blocks = [n for n, m in model.named_modules() if type(m).__name__ in KINDS]; model, opt = wrapped(model, blocks, 'fsdp', dev) if 'fsdp' in words else (model.to(dev), None)
    opt = opt or torch.optim.AdamW(model.parameters(), lr=1e-4); kernel = {'efficient': SDPBackend.EFFICIENT_ATTENTION, 'flash': SDPBackend.FLASH_ATTENTION, 'cudnn': SDPBackend.CUDNN_ATTENTION}[next(k for k in words if k in ('efficient', 'flash', 'cudnn'))]
    _attention._cp_options.enable_load_balance = name in CAUSAL

    def step():
        with sdpa_kernel([kernel]), context_parallel(mesh, buffers=[*x], buffer_seq_dims=[1] * len(x), no_restore_buffers=set()):
            opt.zero_grad(set_to_none=True); l = loss(model(*x), batch); l.backward(); opt.step(); del l
    return step


CAUSAL = ('gpt2_sdpa', 'qwen2', 'opt_125m', 'gpt_neox')


def accumulated(name, batch, kind, dev):
    model, loss, inputs = zoo(name); model.memplan_name = name; x = inputs(batch, dev); blocks = [n for n, m in model.named_modules() if type(m).__name__ in KINDS]; model, opt = wrapped(model, blocks, kind, dev)

    def step():
        opt.zero_grad(set_to_none=True)
        if kind == 'ddp':
            with model.no_sync(): l = loss(model(*x), batch); l.backward(); del l
        else: model.set_requires_gradient_sync(False); l = loss(model(*x), batch); l.backward(); del l; model.set_requires_gradient_sync(True)
        l = loss(model(*x), batch); l.backward(); opt.step(); del l
    return step


def lora(name, batch, kind, dev):
    model, loss, inputs = zoo(name); model.memplan_name = name; x = inputs(batch, dev); blocks = [n for n, m in model.named_modules() if type(m).__name__ in KINDS]
    model.requires_grad_(False)
    for b in blocks:
        for n, m in list(model.get_submodule(b).named_modules()):
            if isinstance(m, nn.Linear): owner, _, key = n.rpartition('.'); setattr(model.get_submodule(b).get_submodule(owner) if owner else model.get_submodule(b), key, Lora(m))
    model, opt = wrapped(model, blocks, kind, dev)
    return plain(model, x, loss, batch, opt)


def pipe(what, batch, sched, dev, micro=4):
    import torchvision
    w, r = dist.get_world_size(), dist.get_rank(); torch.manual_seed(0)
    if what == 'gpt':
        m = GPT(layers=16); parts = [m.emb, *m.blocks, nn.Sequential(m.ln, m.head)]; x = torch.randint(0, 32000, (batch, 512), device=dev); y = torch.randint(0, 32000, (batch, 512), device=dev); lossf = lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten())
    elif what == 'mlp':
        parts = [nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(16)] + [nn.Linear(4096, 1000)]; x = torch.randn(batch, 4096, device=dev); y = torch.randint(0, 1000, (batch,), device=dev); lossf = F.cross_entropy
    else:
        m = torchvision.models.resnet101(); parts = [nn.Sequential(m.conv1, m.bn1, m.relu, m.maxpool), *m.layer1, *m.layer2, *m.layer3, *m.layer4, nn.Sequential(m.avgpool, nn.Flatten(), m.fc)]
        x = torch.randn(batch, 3, 224, 224, device=dev); y = torch.randint(0, 1000, (batch,), device=dev); lossf = F.cross_entropy
    each = 2 if sched in ('interleaved', 'zb') else 1; n = w * each; cut = [len(parts) * i // n for i in range(n + 1)]
    mods = [nn.Sequential(*parts[cut[i]:cut[i + 1]]).train().to(dev) for i in range(r, n, w)]; stages = [pp.PipelineStage(m, i, n, dev) for m, i in zip(mods, range(r, n, w))]
    make = {'gpipe': pp.ScheduleGPipe, '1f1b': pp.Schedule1F1B, 'interleaved': pp.ScheduleInterleaved1F1B, 'zb': pp.ScheduleInterleavedZeroBubble}[sched]
    sc = make(stages if each > 1 else stages[0], n_microbatches=micro, loss_fn=lossf); opt = torch.optim.AdamW([p for m in mods for p in m.parameters()], lr=1e-4)

    def step():
        opt.zero_grad(set_to_none=True); a = (x,) if r == 0 else (); k = dict(target=y) if r == w - 1 else {}
        sc.step(*a, **k); opt.step()
    return step, cut


def capped(name, kind, batch, dev):
    model, loss, inputs = zoo(name); model.memplan_name = name; x = inputs(batch, dev); blocks = [n for n, m in model.named_modules() if type(m).__name__ in KINDS]
    if kind.endswith('-ckpt'): checkpointed(model, blocks)
    model, opt = wrapped(model, blocks, kind, dev)
    return plain(model, x, loss, batch, opt)


def jobs():
    yield from (('ds', n, b, f'ds{s}' + t) for t in ('', '-bf16') for s in (2, 3, 1) for n, b in (('qwen2', 4), ('opt_125m', 8), ('vit_b_32', 32), ('resnet101', 16), ('t5_small', 8)))
    yield from (('cp', 'gpt', b, f'cp-{s}' + t) for b, s in ((2, 2048), (1, 4096), (4, 1024)) for t in ('', '-bf16'))
    yield from (('ring', n, b, s) for n, b in (('distilbert', 8), ('gpt2_sdpa', 8), ('transformer', 16), ('qwen2', 8), ('roberta_sdpa', 8)) for s in ('ring-efficient', 'ring-fsdp-efficient', 'ring-flash-bf16', 'ring-cudnn-bf16'))
    yield from (('pp', n, b, s) for s in ('gpipe', '1f1b', 'interleaved', 'zb') for n, b in (('gpt', 16), ('mlp', 2048), ('resnet101', 32)))
    yield from (('accum', n, b, k) for k in ('fsdp', 'ddp') for n, b in (('qwen2', 4), ('vit_b_32', 32), ('convnext_small', 8)))
    yield from (('lora', n, b, k) for k in ('fsdp', 'ddp') for n, b in (('qwen2', 4), ('opt_125m', 8), ('roberta_sdpa', 8)))


def start(kind, name, batch, strategy, dev, rec):
    if kind == 'ds': return engine(name, batch, int(strategy[2]), 'bf16' if strategy.endswith('bf16') else 'float32', dev)
    if kind == 'cp': return context(batch, int(strategy.split('-')[1]), torch.bfloat16 if strategy.endswith('bf16') else torch.float32, dev)
    if kind == 'ring': return ring(name, batch, strategy, dev)
    if kind == 'pp': step, rec['cut'] = pipe(name, batch, strategy, dev); return step
    return (accumulated if kind == 'accum' else lora)(name, batch, strategy, dev)


def caps(rows, dev, write):
    """Whether five steps run under a cap, in bytes, on what the process may reserve and what the driver holds for it beside that."""
    for name, strategy, cap, batch in rows:
        clear(); torch.manual_seed(0); outside = driver(); total = torch.cuda.mem_get_info()[1]; torch.cuda.set_per_process_memory_fraction((cap - outside) / total); err = ''
        try: rec = measured(dict(kind='cap', name=name, batch=batch, strategy=strategy, cap=cap, outside=outside), capped(name, strategy, batch, dev))
        except torch.OutOfMemoryError: rec = dict(kind='cap', name=name, batch=batch, strategy=strategy, cap=cap, outside=outside, ran=False)
        torch.cuda.set_per_process_memory_fraction(1.0); write(rec)
        if 'ran' in rec: return # the other rank may wait in a collective: a process that ran out is started anew


if __name__ == '__main__':
    out, end = sys.argv[1], time.time() + float(sys.argv[2]); os.makedirs(out, exist_ok=True)
    rank = int(os.environ['RANK']); dev = torch.device('cuda', rank); torch.cuda.set_device(rank); torch.zeros(1, device='cuda'); torch.cuda.synchronize()
    dist.init_process_group('nccl', timeout=datetime.timedelta(seconds=60), device_id=dev); dist.all_reduce(torch.ones(1 << 20, device='cuda')); torch.cuda.synchronize()

    def write(r):
        if rank == 0:
            with open(out + '/meshes.jsonl', 'a') as f: f.write(json.dumps(r) + '\n')
            print({k: v for k, v in r.items() if k != 'ranks'}, [(max(s[0] for s in g['steps']) >> 20, max(s[1] for s in g['steps']) >> 20, min(g['ms'])) for g in r.get('ranks', [])], flush=True)
    if os.environ.get('BATCHES'): caps(json.load(open(os.environ['BATCHES'])), dev, write); os._exit(0)
    for kind, name, batch, strategy in jobs():
        if os.environ.get('ONLY') and kind not in os.environ['ONLY'].split(','): continue
        stop = torch.tensor([time.time() > end], device='cuda', dtype=torch.int32); dist.all_reduce(stop)
        if stop.item(): break
        clear(); torch.manual_seed(0); rec = dict(kind=kind, name=name, batch=batch, strategy=strategy, world=dist.get_world_size(), base=torch.cuda.memory_allocated())
        try: rec = measured(rec, start(kind, name, batch, strategy, dev, rec))
        except Exception as e: rec['err'] = (type(e).__name__ + ': ' + str(e))[:300]
        write(rec); gc.collect(); torch.cuda.empty_cache()
    dist.destroy_process_group()
