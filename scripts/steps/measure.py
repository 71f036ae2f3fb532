"""Peak memory of training steps and inferences of zoo.py on the GPU, one JSON line a run (planner/testdata/zoo/steps.jsonl.xz).

    python measure.py OUT.jsonl [PROCESS PROCESSES]

Parameters are left as they are allocated (initialisation is skipped: it takes most of the time and no memory), except for amp-fp16, where
GradScaler would skip every update of an uninitialised model."""
import sys, gc, json, time, os
import torch, torch.nn as nn
from zoo import ZOO
import torch.utils.checkpoint as cp
dev = 'cuda'
MB = 1 << 20

def clear():
    gc.collect(); torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()

def saved_bytes(fn):
    seen = {}
    def pack(t):
        if t.is_cuda:
            s = t.untyped_storage(); seen[s.data_ptr()] = s.nbytes()
        return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        r = fn()
    return r, sum(seen.values())

def run(name, batch, prec, optname, ckpt=None, mode='train'):
    z = ZOO[name]
    clear()
    base0 = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    model = z['build']().to(dev)
    if prec == 'bf16': model = model.to(torch.bfloat16)
    x = z['inputs'](batch, dev)
    if prec == 'bf16': x = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in x)
    rec = dict(name=name, batch=batch, prec=prec, opt=optname, ckpt=ckpt, mode=mode, base0=base0,
               params=sum(p.numel()*p.element_size() for p in model.parameters()), buffers=sum(b.numel()*b.element_size() for b in model.buffers()),
               inputs=sum(t.numel()*t.element_size() for t in x))
    ac = lambda: torch.autocast('cuda', dtype={'amp-bf16': torch.bfloat16, 'amp-fp16': torch.float16}[prec], enabled=True) if prec.startswith('amp') else torch.autocast('cuda', enabled=False)
    if mode == 'infer':
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
                with ac(): out = model(*x)
                torch.cuda.synchronize(); rec['peak'] = torch.cuda.max_memory_allocated(); rec['reserved'] = torch.cuda.max_memory_reserved()
                del out
        del model, x
        return rec
    model.train()
    if ckpt == 'blocks':
        rec['ckpt_modules'] = wrap_blocks(model)
    P = [p for p in model.parameters() if p.requires_grad]
    opt = {'sgd': lambda: torch.optim.SGD(P, lr=1e-3), 'sgdm': lambda: torch.optim.SGD(P, lr=1e-3, momentum=0.9), 'adamw': lambda: torch.optim.AdamW(P, lr=1e-4),
           'adamw-fused': lambda: torch.optim.AdamW(P, lr=1e-4, fused=True), 'adamw-loop': lambda: torch.optim.AdamW(P, lr=1e-4, foreach=False)}[optname]()
    scaler = torch.amp.GradScaler('cuda') if prec == 'amp-fp16' else None
    times = []
    for step in range(5):
        torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
        ev = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        opt.zero_grad(set_to_none=True)
        a0 = torch.cuda.memory_allocated(); ev[0].record()
        def fwd():
            with ac():
                out = model(*x)
                return z['loss'](out, batch)
        if step == 4: loss, sb = saved_bytes(fwd); rec['saved_unique_storage'] = sb
        else: loss = fwd()
        ev[1].record(); torch.cuda.synchronize(); f_peak = torch.cuda.max_memory_allocated(); a1 = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
        (scaler.scale(loss) if scaler else loss).backward()
        ev[2].record(); torch.cuda.synchronize(); b_peak = torch.cuda.max_memory_allocated(); a2 = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
        if scaler: scaler.step(opt); scaler.update()
        else: opt.step()
        ev[3].record(); torch.cuda.synchronize(); o_peak = torch.cuda.max_memory_allocated(); a3 = torch.cuda.memory_allocated()
        del loss
        p = dict(before=a0, after_fwd=a1, after_bwd=a2, after_opt=a3, fwd_peak=f_peak, bwd_peak=b_peak, opt_peak=o_peak, peak=max(f_peak, b_peak, o_peak))
        if step == 0: rec['first_step'] = p
        if step == 3: rec['steady'] = p
        if step in (2, 3): times.append([round(ev[i].elapsed_time(ev[i+1]), 3) for i in range(3)])
    rec['ms'] = times
    rec['peak'] = max(rec['first_step']['peak'], rec['steady']['peak']); rec['reserved'] = torch.cuda.max_memory_reserved()
    free, total = torch.cuda.mem_get_info(); rec['device_used'] = total - free
    rec['ws'] = None
    del model, x, opt, P
    return rec

def wrap_blocks(model):
    """Checkpoint each repeated block (HF layers, torchvision residual blocks/layers)."""
    names = []
    import torchvision.models as tv
    kinds = ('BasicBlock', 'Bottleneck', 'EncoderBlock', 'GPT2Block', 'BertLayer', 'LlamaDecoderLayer', 'Qwen2DecoderLayer', 'OPTDecoderLayer', 'SwinTransformerBlock', 'CNBlock', 'InvertedResidual', 'TransformerBlock', 'T5Block', 'MBConv', '_InvertedResidual', 'ResBottleneckBlock', 'WhisperEncoderLayer', 'WhisperDecoderLayer', 'Fire')
    for n, m in model.named_modules():
        if type(m).__name__ in kinds:
            names.append(n)
            f = m.forward
            m.forward = (lambda f: lambda *a, **k: cp.checkpoint(f, *a, use_reentrant=False, **k))(f)
    return names

def jobs(name):
    small, large = ZOO[name]['batches']
    yield dict(name=name, batch=small, prec='fp32', optname='adamw')
    yield dict(name=name, batch=large, prec='fp32', optname='sgd')
    yield dict(name=name, batch=small, prec='amp-bf16', optname='adamw')
    yield dict(name=name, batch=small, prec='fp32', optname='adamw', ckpt='blocks')
    yield dict(name=name, batch=large, prec='fp32', optname='adamw')
    yield dict(name=name, batch=large, prec='fp32', optname='sgd', mode='infer')
    yield dict(name=name, batch=large, prec='fp32', optname='adamw', ckpt='blocks')
    yield dict(name=name, batch=small, prec='bf16', optname='adamw')

INITIALISED = [dict(name=n, batch=ZOO[n]['batches'][k], prec=p, optname='adamw') for n in ('swin_t', 'efficientnet_b0', 'resnet34', 'opt_125m', 'distilbert', 't5_small', 'qwen2')
               for p, k in (('amp-fp16', 0), ('bf16', 1))]

if __name__ == '__main__':
    out = open(sys.argv[1], 'a'); k, n = map(int, sys.argv[2:4] or (0, 1))
    def one(j):
        try: r = run(**j)
        except Exception as e: r = dict(j, err=(type(e).__name__ + ': ' + str(e))[:300])
        out.write(json.dumps(r) + '\n'); out.flush()
    if k == 0:
        for j in INITIALISED: one(j)
    for f in ('kaiming_uniform_', 'kaiming_normal_', 'xavier_uniform_', 'normal_', 'uniform_', 'trunc_normal_', 'orthogonal_'):
        setattr(nn.init, f, lambda t, *a, **kw: t)
    for name in list(ZOO)[k::n]:
        for j in jobs(name): one(j)
