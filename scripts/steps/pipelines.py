"""Peak memory of pipeline stages, alone and with their parameters sharded, of every rank of a mesh, by one process (planner/testdata/distributed/pipelines.jsonl).

    python pipelines.py OUT.jsonl [REGEX]          without a GPU: under FakeTensorMode, the most bytes of storages that lived
    python pipelines.py OUT.jsonl [REGEX] --cuda   on one GPU: what the allocator says
    python pipelines.py --export FOLDER            gpt16.onnx.xz and mlp16.onnx.xz, models of meshes.py, as export.py writes them (planner/testdata/distributed)
    python pipelines.py --orders                   the orders of schedules of several stages a rank (graph/shard/testdata/orders.txt)

The process group is PyTorch's fake one: ranks come one after the other, collectives, sends and receives do nothing, and what is allocated for them is allocated as always. What
NCCL's works hold until they end is not seen. A line is a rank: name, strategy (SCHEDULE or SCHEDULE-SHARDING), the rank of the pipeline, `cut` (the first part of each stage), and of each of
four steps the most allocated bytes, with a GPU also the reserved ones. Without one, what lived at the highest moment is printed by the operator that made it.
Schedules: gpipe, 1f1b, interleaved, zero-bubble (both two stages a rank; interleaved3, interleaved4: more), bfs (ScheduleLoopedBFS), zbv. Shardings over two ranks within each stage: fsdp (fully_shard on every
block, then on the stage), keep (the same with reshard_after_forward=False, which torchtitan chooses beside pipelines), hsdp (2 x 2), ddp, zero1. AdamW, float32, four
micro-batches of a quarter of the batch, two ranks of the pipeline unless RANKS says more."""
import gc, json, os, re, sys, warnings, weakref
warnings.filterwarnings('ignore')
CUDA = '--cuda' in sys.argv
if not CUDA: os.environ['CUDA_VISIBLE_DEVICES'] = ''
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import pipelining as pp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

pp.stage.validate_tensors_metadata = lambda *a: None # a convolution's layout on the device is not that on the meta device, from which shapes are known here
DEV, MICROS = torch.device('cuda' if CUDA else 'cpu'), int(os.environ.get('MICROS', 4))
SCHEDULES = {'gpipe': (pp.ScheduleGPipe, 1), '1f1b': (pp.Schedule1F1B, 1), 'interleaved': (pp.ScheduleInterleaved1F1B, 2), 'interleaved3': (pp.ScheduleInterleaved1F1B, 3), 'interleaved4': (pp.ScheduleInterleaved1F1B, 4), 'bfs': (pp.ScheduleLoopedBFS, 2),
             'zero-bubble': (pp.ScheduleInterleavedZeroBubble, 2), 'zbv': (pp.ScheduleZBVZeroBubble, 2)}
SHARDINGS = {'': {}, 'fsdp': {'dp': 2}, 'keep': {'dp': 2}, 'hsdp': {'rep': 2, 'dp': 2}, 'ddp': {'dp': 2}, 'zero1': {'dp': 2}}


class Block(nn.Module):
    """The block of meshes.py's GPT."""
    def __init__(s, d, heads):
        super().__init__(); s.heads = heads; s.ln1 = nn.LayerNorm(d); s.qkv = nn.Linear(d, 3 * d); s.proj = nn.Linear(d, d); s.ln2 = nn.LayerNorm(d); s.up = nn.Linear(d, 4 * d); s.down = nn.Linear(4 * d, d)

    def forward(s, x):
        q, k, v = s.qkv(s.ln1(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (s.heads, -1)).transpose(1, 2) for t in (q, k, v))
        x = x + s.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + s.down(F.gelu(s.up(s.ln2(x))))


def tokens(o, t): return F.cross_entropy(o.flatten(0, 1), t.flatten())


def gpt(d=768, vocab=32000, seq=512):
    parts = {'emb': nn.Embedding(vocab, d), **{f'blocks.{i}': Block(d, 12) for i in range(12)}, 'ln': nn.LayerNorm(d), 'head': nn.Linear(d, vocab, bias=False)}
    return parts, lambda n: torch.randint(0, vocab, (n, seq), device=DEV), lambda n: torch.randint(0, vocab, (n, seq), device=DEV), tokens, [f'blocks.{i}' for i in range(12)]


def images(n): return torch.randn(n, 3, 224, 224, device=DEV)


def classes(n): return torch.randint(0, 1000, (n,), device=DEV)


def resnet101():
    import torchvision
    m = torchvision.models.resnet101(); parts = {k: getattr(m, k) for k in ('conv1', 'bn1', 'relu', 'maxpool')}; blocks = {f'layer{k}.{i}': b for k in range(1, 5) for i, b in enumerate(getattr(m, f'layer{k}'))}
    return {**parts, **blocks, 'avgpool': m.avgpool, 'flatten': nn.Flatten(), 'fc': m.fc}, images, classes, F.cross_entropy, list(blocks)


def convnext_small():
    import torchvision
    m = torchvision.models.convnext_small(); parts = {}
    for i, f in enumerate(m.features):
        if i % 2: parts |= {f'features.{i}.{j}': b for j, b in enumerate(f)}
        else: parts[f'features.{i}'] = f
    return {**parts, 'avgpool': m.avgpool, **{f'classifier.{i}': c for i, c in enumerate(m.classifier)}}, images, classes, F.cross_entropy, [k for k in parts if k.count('.') == 2]


# name: (builder, batch, the modules that stages begin with by the number of stages; else the blocks are split evenly)
MODELS = {'gpt': (gpt, 16, {}), 'resnet101': (resnet101, 32, {2: ['layer3.9'], 4: ['layer3.0', 'layer3.9', 'layer3.18']}), 'convnext_small': (convnext_small, 32, {2: ['features.5.9'], 4: ['features.5.0', 'features.5.9', 'features.5.18']})}


RESIZE = torch.UntypedStorage.resize_


class Recorder(TorchDispatchMode):
    """Follows the storages that operators make, fully_shard's resizes of them included."""
    def __init__(s):
        super().__init__(); s.known, s.now, s.peak, s.at = {}, 0, 0, {}

        def resize(storage, n):
            RESIZE(storage, n)
            if storage._cdata in s.known: s.change(storage._cdata, -(-n // 512) * 512, '')
        if not CUDA: torch.UntypedStorage.resize_ = resize

    def change(s, key, size, op):
        old = s.known.get(key, (0, op)); s.known[key] = (size, old[1]); s.now += size - old[0]
        if s.now > s.peak: s.peak, s.at = s.now, dict(s.known)

    def gone(s, key):
        if key in s.known: s.now -= s.known.pop(key)[0]

    def meet(s, t, op):
        if not isinstance(t, torch.Tensor) or t.device.type != 'cpu': return
        if hasattr(t, '_local_tensor'): return s.meet(t._local_tensor, op)
        storage = t.untyped_storage(); key = storage._cdata
        if key in s.known or storage.nbytes() == 0: return
        s.change(key, -(-storage.nbytes() // 512) * 512, op); weakref.finalize(storage, s.gone, key)

    def __torch_dispatch__(s, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in torch.utils._pytree.tree_leaves(out): s.meet(t, str(func))
        return out

    def take(s):
        by = {}
        for size, op in s.at.values(): by[op] = by.get(op, 0) + size
        peak, s.peak, s.at = s.peak, s.now, dict(s.known)
        return [peak], dict(sorted(by.items(), key=lambda x: -x[1])[:12])


def pieces(parts, blocks, splits, n):
    """The parts of each stage: those before the first split, and so on."""
    names = list(parts); starts = [0] + [names.index(x) for x in splits.get(n, [blocks[i * len(blocks) // n] for i in range(1, n)])] + [len(names)]
    return [names[a:b] for a, b in zip(starts, starts[1:])]


def shapes(mods, x):
    """What goes into each stage, and comes out of the last one."""
    out = [x]
    with torch.no_grad():
        for m in mods: out.append(m(out[-1]))
    return out


def fill(mods):
    for m in mods:
        m.to_empty(device=DEV)
        with torch.no_grad():
            for p in m.parameters(): p.uniform_(-0.02, 0.02)
            for b in m.buffers(): b.fill_(1)


def sharded(mod, kind, mesh, blocks):
    if kind in ('fsdp', 'keep', 'hsdp'):
        kw = dict(mesh=mesh['rep', 'dp'] if kind == 'hsdp' else mesh['dp'], **(dict(reshard_after_forward=False) if kind == 'keep' else {}))
        for b in mod.children():
            if b in blocks: fully_shard(b, **kw)
        return fully_shard(mod, **kw)
    return DDP(mod, process_group=mesh['dp'].get_group()) if kind in ('ddp', 'zero1') else mod


def rank(name, strategy, r, ranks):
    schedule, _, kind = strategy.partition('/'); make, each = SCHEDULES[schedule]; build, batch, splits = MODELS[name]
    dims = {'pp': ranks, **SHARDINGS[kind]}; world = 1
    for d in dims.values(): world *= d
    dist.init_process_group('fake', rank=r * world // ranks, world_size=world, store=FakeStore())
    mesh = init_device_mesh(DEV.type, tuple(dims.values()), mesh_dim_names=tuple(dims)); n = ranks * each
    with torch.device('meta'): parts, inputs, _, _, blocks = build()
    cut = pieces(parts, blocks, splits, n); passed = shapes([nn.Sequential(*(parts[k] for k in c)) for c in cut], inputs(batch // MICROS).to('meta'))
    mine = [r, n - 1 - r] if schedule == 'zbv' else list(range(r, n, ranks))
    rec = Recorder()
    with (rec if not CUDA else torch.enable_grad()), (FakeTensorMode() if not CUDA else torch.enable_grad()):
        with torch.device('meta' if CUDA else 'cpu'): parts, inputs, targets, loss, _ = build()
        chosen = [parts[b] for b in blocks]; mods = [nn.Sequential(*(parts[k] for k in cut[i])).train() for i in mine]; del parts
        if CUDA: fill(mods)
        mods = [sharded(m, kind, mesh, chosen) for m in mods]; del chosen
        stages = [pp.PipelineStage(m, i, n, DEV, input_args=(passed[i],), output_args=(passed[i + 1],), group=mesh['pp'].get_group()) for m, i in zip(mods, mine)]
        sc = make(stages if each > 1 else stages[0], n_microbatches=MICROS, loss_fn=loss)
        P = [p for m in mods for p in m.parameters()]
        opt = ZeroRedundancyOptimizer(P, optimizer_class=torch.optim.AdamW, lr=1e-4, process_group=mesh['dp'].get_group()) if kind == 'zero1' else torch.optim.AdamW(P, lr=1e-4)
        x, y = inputs(batch), targets(batch); steps, at = [], {}; gc.collect(); rec.take()
        for _ in range(4):
            if CUDA: torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
            opt.zero_grad(set_to_none=True); sc.step(*((x,) if 0 in mine else ()), **(dict(target=y) if n - 1 in mine else {})); opt.step()
            if CUDA: torch.cuda.synchronize(); steps.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
            else:
                got, at = rec.take(); steps.append(got)
    return dict(cut=[c[0] for c in cut], steps=steps, **({} if CUDA else dict(at=at)))


def orders():
    for ranks, each, micros in ((2, 2, 4), (2, 3, 4), (3, 2, 6), (4, 2, 8), (4, 2, 4), (4, 3, 9), (2, 2, 1), (3, 2, 10)):
        for name in ('interleaved', 'bfs', 'zero-bubble', 'zbv'):
            for r in range(ranks):
                dist.init_process_group('fake', rank=r, world_size=ranks, store=FakeStore()); n = ranks * each
                mine = [r, n - 1 - r] if name == 'zbv' else list(range(r, n, ranks))
                try: sc = SCHEDULES[name][0]([pp.PipelineStage(nn.Identity(), i, n, DEV, input_args=(torch.empty(1),), output_args=(torch.empty(1),)) for i in mine], n_microbatches=micros, loss_fn=F.mse_loss)
                except (ValueError, AssertionError): sc = None
                dist.destroy_process_group()
                if sc: print(name, ranks, each, micros, r, *(a for a in sc.pipeline_order[r] if a and a.microbatch_index is not None))


class GPT(nn.Module):
    """The GPT of meshes.py's pipelines."""
    def __init__(s, d=768, vocab=32000): super().__init__(); s.emb = nn.Embedding(vocab, d); s.blocks = nn.ModuleList(Block(d, 12) for _ in range(16)); s.ln = nn.LayerNorm(d); s.head = nn.Linear(d, vocab, bias=False)

    def forward(s, ids):
        x = s.emb(ids)
        for b in s.blocks: x = b(x)
        return s.head(s.ln(x))


def export(folder):
    import export as e
    mlp = nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(16)), nn.Linear(4096, 1000))
    e.ZOO = {'mlp16': dict(build=lambda: mlp, inputs=lambda n, dev: (torch.randn(n, 4096),)), 'gpt16': dict(build=GPT, inputs=lambda n, dev: (torch.randint(0, 32000, (n, 512)),))}
    for name in e.ZOO: e.export(name, folder)


def main():
    if '--orders' in sys.argv: return orders()
    if '--export' in sys.argv: return export(sys.argv[2])
    out, pattern = [a for a in sys.argv[1:] if a != '--cuda'][0], ([a for a in sys.argv[2:] if a != '--cuda'] or ['.'])[0]; ranks = int(os.environ.get('RANKS', 2))
    for strategy in [s + ('/' + k if k else '') for k in SHARDINGS for s in SCHEDULES]:
        for name in MODELS:
            if not re.search(pattern, f'{name} {strategy}'): continue
            for r in range(ranks):
                gc.collect()
                if CUDA: torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache()
                rec = dict(name=name, strategy=strategy, batch=MODELS[name][1], micros=MICROS, rank=r, ranks=ranks, torch=torch.__version__, **(dict(gpu=torch.cuda.get_device_name(), base=torch.cuda.memory_allocated()) if CUDA else {}))
                try: rec |= rank(name, strategy, r, ranks)
                except Exception as e: rec['err'] = (type(e).__name__ + ': ' + str(e))[:300]
                if dist.is_initialized(): dist.destroy_process_group()
                with open(out, 'a') as f: f.write(json.dumps({k: v for k, v in rec.items() if k != 'at'}) + '\n')
                print({k: v for k, v in rec.items() if k not in ('at', 'cut', 'torch', 'gpu')}, list(rec.get('at', {}).items())[:6], flush=True)


if __name__ == '__main__': main()
