"""True largest batch under an allocator cap, by doubling then bisection; three steps must pass.

    python maxbatch.py CAP_GIB OUT.jsonl NAME ..."""
import sys, json, time, gc, torch
from zoo import ZOO
dev='cuda'
cap = int(float(sys.argv[1]) * 2**30); out = open(sys.argv[2], 'a'); names = sys.argv[3:]
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(cap / total)
def attempt(name, b, prec):
    z = ZOO[name]; ok = False; peak = 0
    gc.collect(); torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
    model = opt = x = loss = None
    try:
        torch.manual_seed(0); model = z['build']().to(dev).train(); x = z['inputs'](b, dev); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(3):
            opt.zero_grad(set_to_none=True)
            with torch.autocast('cuda', dtype=torch.bfloat16, enabled=prec != 'fp32'): loss = z['loss'](model(*x), b)
            loss.backward(); opt.step(); loss = None
        torch.cuda.synchronize(); ok = True; peak = torch.cuda.max_memory_allocated()
    except torch.OutOfMemoryError: pass
    except Exception as e: return None, str(e)[:200]
    del model, opt, x, loss
    return ok, (peak, torch.cuda.max_memory_reserved())
for name in names:
    for prec in ('fp32', 'amp-bf16'):
        t0 = time.time(); lo, hi, b, info, tries = 0, None, ZOO[name]['batches'][0], None, 0
        while hi is None or hi - lo > max(1, lo // 64):
            ok, i = attempt(name, b, prec); tries += 1
            if ok is None: info = i; break
            if ok: lo, info = b, i
            else: hi = b
            b = lo * 2 if hi is None else (lo + hi) // 2
            if tries > 16 or b > 65536: break
        r = dict(name=name, prec=prec, opt='adamw', cap=cap, ok_batch=lo, fail_batch=hi, at_ok=info, tries=tries, secs=round(time.time()-t0, 1))
        out.write(json.dumps(r) + '\n'); out.flush(); print(r, flush=True)
