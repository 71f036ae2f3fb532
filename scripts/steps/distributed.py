"""Peak memory of training steps on several GPUs, each rank and each step (planner/testdata/distributed).

    torchrun --nproc_per_node 2 distributed.py OUT SECONDS [NAME ...]

writes OUT/steps.jsonl, a line a run, and OUT/traces/NAME.bBATCH.STRATEGY.trace.xz, rank 0's allocator events of the fourth step with the
stream's number before the operator. Strategies: ddp; ddp-view (gradient_as_bucket_view); zero1 (ZeroRedundancyOptimizer over DDP); fsdp (fully_shard on
every block, then the root); fsdp-keep (reshard_after_forward=False); fsdp-bf16 (MixedPrecisionPolicy bfloat16, reduced in float32); fsdp-offload
(CPUOffloadPolicy); ddp-ckpt, fsdp-ckpt (every block checkpointed); tp (plans below, AdamW one parameter at a time). `driver` in the first line: the
driver's bytes in use with the CUDA context, with NCCL's first communicator, and with each of three more."""
import datetime, gc, json, lzma, os, re, sys, time
os.environ.setdefault('TORCH_SYMBOLIZE_MODE', 'dladdr')
import torch, torch.distributed as dist, torch.utils.checkpoint as cp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy, CPUOffloadPolicy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel as C, RowwiseParallel as R
from zoo import ZOO
from measure import clear
from traces import label

KINDS = ('BasicBlock', 'Bottleneck', 'EncoderBlock', 'TransformerBlock', 'GPT2Block', 'BertLayer', 'RobertaLayer', 'ElectraLayer', 'LlamaDecoderLayer', 'Qwen2DecoderLayer', 'OPTDecoderLayer', 'GPTNeoXLayer',
         'SwinTransformerBlock', 'CNBlock', 'MBConv', 'T5Block', 'ResBottleneckBlock', 'WhisperEncoderLayer', 'WhisperDecoderLayer', 'PartitionAttentionLayer')
NAMES = ['resnet101', 'efficientnet_b0', 'regnet_y_400mf', 'vit_b_32', 'swin_t', 'convnext_small', 'maxvit_t', 'distilbert', 'roberta_sdpa', 'opt_125m', 'qwen2', 'gpt_neox', 't5_small', 'whisper_tiny', 'electra']
PLAN = {
    'qwen2': {'m.model.layers.*.self_attn.' + k: v for k, v in dict(q_proj=C, k_proj=C, v_proj=C, o_proj=R).items()} | {'m.model.layers.*.mlp.' + k: v for k, v in dict(gate_proj=C, up_proj=C, down_proj=R).items()},
    'opt_125m': {'m.model.decoder.layers.*.self_attn.' + k: v for k, v in dict(q_proj=C, k_proj=C, v_proj=C, out_proj=R).items()} | {'m.model.decoder.layers.*.' + k: v for k, v in dict(fc1=C, fc2=R).items()},
    'roberta_sdpa': {'m.roberta.encoder.layer.*.attention.self.' + k: C for k in ('query', 'key', 'value')} | {'m.roberta.encoder.layer.*.attention.output.dense': R, 'm.roberta.encoder.layer.*.intermediate.dense': C, 'm.roberta.encoder.layer.*.output.dense': R},
    'distilbert': {'m.distilbert.transformer.layer.*.attention.' + k: v for k, v in dict(q_lin=C, k_lin=C, v_lin=C, out_lin=R).items()} | {'m.distilbert.transformer.layer.*.ffn.' + k: v for k, v in dict(lin1=C, lin2=R).items()},
}
TRACED = {('qwen2', 'fsdp'), ('qwen2', 'fsdp-ckpt'), ('swin_t', 'fsdp'), ('t5_small', 'fsdp'), ('regnet_y_400mf', 'ddp-view'), ('distilbert', 'tp'), ('qwen2', 'tp'), ('opt_125m', 'fsdp-bf16')}


def strategies(name): return ['ddp', 'ddp-view', 'zero1', 'fsdp', 'fsdp-keep', 'fsdp-bf16', 'fsdp-offload', 'ddp-ckpt', 'fsdp-ckpt'] + (['tp'] if name in PLAN else [])


def checkpointed(model, blocks):
    for n in blocks:
        m = model.get_submodule(n)
        m.forward = (lambda f: lambda *a, **k: cp.checkpoint(f, *a, use_reentrant=False, **k))(m.forward)


def wrapped(model, blocks, kind, dev):
    """The model as its strategy wants it, and its optimizer."""
    if kind == 'tp':
        model = model.to(dev)
        parallelize_module(model, init_device_mesh('cuda', (dist.get_world_size(),)), {k: v() for k, v in PLAN[model.memplan_name].items()})
    elif kind.startswith('fsdp'):
        kw = {'fsdp-keep': dict(reshard_after_forward=False), 'fsdp-bf16': dict(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)), 'fsdp-offload': dict(offload_policy=CPUOffloadPolicy())}.get(kind, {})
        if kind != 'fsdp-offload': model = model.to(dev)
        for n in blocks: fully_shard(model.get_submodule(n), **kw)
        fully_shard(model, **kw)
        if kind == 'fsdp-offload':
            for n, b in list(model.named_buffers()):
                owner, _, key = n.rpartition('.'); setattr(model.get_submodule(owner), key, b.to(dev))
    else: model = DDP(model.to(dev), device_ids=[dev.index], gradient_as_bucket_view=kind == 'ddp-view')
    P = [p for p in model.parameters() if p.requires_grad]
    if kind == 'zero1': return model, ZeroRedundancyOptimizer(P, optimizer_class=torch.optim.AdamW, lr=1e-4)
    return model, torch.optim.AdamW(P, lr=1e-4, foreach=False if kind == 'tp' else None)


def run(name, batch, kind, out):
    z = ZOO[name]; rank = dist.get_rank(); dev = torch.device('cuda', rank); clear(); torch.manual_seed(0)
    base = torch.cuda.memory_allocated()
    model = z['build']().train(); model.memplan_name = name; x = z['inputs'](batch, dev)
    params = sum(p.numel() * p.element_size() for p in model.parameters())
    blocks = [n for n, m in model.named_modules() if type(m).__name__ in KINDS]
    if kind.endswith('-ckpt'): checkpointed(model, blocks)
    model, opt = wrapped(model, blocks, kind, dev)
    steps, times, lines = [], [], []
    for step in range(6):
        tr = rank == 0 and step == 3 and (name, kind) in TRACED; marks = []
        torch.cuda.synchronize(); dist.barrier(); torch.cuda.reset_peak_memory_stats(); t0 = time.time()
        if tr: torch.cuda.memory._record_memory_history('all', context='alloc', stacks='all', max_entries=2_000_000, clear_history=True)
        def mark(c):
            if tr: torch.cuda.synchronize(); time.sleep(.002); marks.append((time.time_ns() // 1000, c)); time.sleep(.002)
        mark('Z'); opt.zero_grad(set_to_none=True); mark('F')
        loss = z['loss'](model(*x), batch)
        mark('B'); loss.backward()
        mark('O'); opt.step()
        mark('E'); del loss
        torch.cuda.synchronize(); times.append(time.time() - t0)
        steps.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
        if tr: lines = events(marks)
    free, total = torch.cuda.mem_get_info()
    got = [None] * dist.get_world_size(); dist.all_gather_object(got, dict(base=base, steps=steps, driver=total - free, ms=[round(1000 * t, 2) for t in times]))
    rec = dict(name=name, batch=batch, strategy=kind, world=dist.get_world_size(), params=params, blocks=blocks, ranks=got)
    if lines:
        os.makedirs(out + '/traces', exist_ok=True)
        with lzma.open(f'{out}/traces/{name}.b{batch}.{kind}.trace.xz', 'wt', preset=9) as f: f.write(json.dumps({k: v for k, v in rec.items() if k != 'blocks'}) + '\n' + '\n'.join(lines) + '\n')
    return rec


def events(marks):
    ev = torch.cuda.memory._snapshot(0)['device_traces'][0]; torch.cuda.memory._record_memory_history(enabled=None)
    lines, ids, n, ph, mi, streams = [], {}, 0, 'Z', 0, {}
    for e in ev:
        while mi < len(marks) and e['time_us'] >= marks[mi][0]: ph = marks[mi][1]; mi += 1
        if e['action'] == 'alloc':
            s = streams.setdefault(e['stream'], len(streams)); ids[e['addr']] = n; o1, o2, nd = label(e['frames'])
            lines.append(f'{ph} + {n} {e["size"]} s{s} {o1} {o2} {nd}'); n += 1
        elif e['action'] == 'free_completed': i = ids.pop(e['addr'], None); lines.append(f'{ph} - {i}' if i is not None else f'{ph} - old {e["size"]}')
    return lines


def driver():
    free, total = torch.cuda.mem_get_info(); return total - free - torch.cuda.memory_reserved()


if __name__ == '__main__':
    out, end = sys.argv[1], time.time() + float(sys.argv[2]); os.makedirs(out, exist_ok=True)
    rank = int(os.environ['RANK']); torch.cuda.set_device(rank); torch.zeros(1, device='cuda'); torch.cuda.synchronize(); used = [driver()]
    dist.init_process_group('nccl', timeout=datetime.timedelta(seconds=60), device_id=torch.device('cuda', rank))
    t = torch.ones(1 << 20, device='cuda'); dist.all_reduce(t); torch.cuda.synchronize(); used.append(driver())
    for _ in range(3):
        g = dist.new_group(list(range(dist.get_world_size()))); dist.all_reduce(t, group=g); torch.cuda.synchronize(); used.append(driver())
    dist.barrier(); got = [None] * dist.get_world_size(); dist.all_gather_object(got, used)
    f = open(out + '/steps.jsonl', 'a') if rank == 0 else None
    if f: f.write(json.dumps(dict(driver=got, nccl='.'.join(map(str, torch.cuda.nccl.version())), torch=torch.__version__, gpu=torch.cuda.get_device_name())) + '\n')
    names = sys.argv[3:] or NAMES
    jobs = [(n, k) for k in ('fsdp', 'ddp', 'zero1', 'tp', 'fsdp-keep', 'fsdp-bf16', 'fsdp-ckpt', 'fsdp-offload', 'ddp-view', 'ddp-ckpt') for n in names if k in strategies(n)]
    for n, k in jobs:
        stop = torch.tensor([time.time() > end], device='cuda', dtype=torch.int32); dist.all_reduce(stop)
        if stop.item(): break
        t0 = time.time()
        try: r = run(n, ZOO[n]['batches'][0], k, out)
        except Exception as e: torch.cuda.memory._record_memory_history(enabled=None); r = dict(name=n, batch=ZOO[n]['batches'][0], strategy=k, err=(type(e).__name__ + ': ' + str(e))[:300])
        gc.collect(); torch.cuda.empty_cache()
        if f: f.write(json.dumps(r) + '\n'); f.flush(); print(n, k, [[s[0] >> 20 for s in g['steps'][:3]] for g in r.get('ranks', [])], f'{time.time() - t0:.1f} s', r.get('err', '')[:120], flush=True)
    dist.destroy_process_group()
