"""Allocator event traces of one steady training step on the GPU: every alloc and free that the caching allocator saw, in order,
with the ATen call and the autograd node that made it. Output: OUT/NAME.bBATCH.PREC.OPT[.ckpt].trace.xz, which package internal/trace reads.

    python traces.py OUT [NAME ...]"""
import sys, json, time, os, re, lzma, subprocess, gc
os.environ.setdefault('TORCH_SYMBOLIZE_MODE', 'dladdr')
import torch
from zoo import ZOO
from measure import wrap_blocks, clear
dev = 'cuda'
OP = re.compile(r'at::_ops::([A-Za-z0-9_]+)::(?:call|redispatch)')
NODE = re.compile(r'torch::autograd::(?:generated::)?([A-Za-z0-9_]+)::apply')

def label(frames):
    """(outermost ATen op, innermost ATen op, autograd node) of an event; frames run from the innermost out."""
    ops = []; node = ''
    for f in frames:
        n = f['name']
        m = OP.search(n)
        if m: ops.append(m.group(1))
        m = NODE.search(n)
        if m and not node: node = m.group(1)
    ops = [o for i, o in enumerate(ops) if i == 0 or ops[i-1] != o]
    return (ops[-1] if ops else '-', ops[0] if ops else '-', node or '-')

def where(frames):
    """Innermost module or model source line in Python."""
    for f in frames:
        fn = f['filename']
        if fn.endswith('.py') and '/torch/' not in fn: return f'{os.path.basename(fn)}:{f["line"]}'
    return '-'

def run(name, batch, prec, opt, ckpt=None, out='.'):
    z = ZOO[name]; clear(); torch.manual_seed(0)
    model = z['build']().to(dev).train(); x = z['inputs'](batch, dev)
    if ckpt == 'blocks': wrap_blocks(model)
    P = [p for p in model.parameters() if p.requires_grad]
    o = {'sgd': lambda: torch.optim.SGD(P, lr=1e-3), 'adamw': lambda: torch.optim.AdamW(P, lr=1e-4)}[opt]()
    ac = lambda: torch.autocast('cuda', dtype=torch.bfloat16, enabled=prec == 'amp-bf16')
    names = {p.untyped_storage().data_ptr(): 'param ' + n for n, p in model.named_parameters()}
    names.update({b.untyped_storage().data_ptr(): 'buffer ' + n for n, b in model.named_buffers() if b.is_cuda})
    names.update({t.untyped_storage().data_ptr(): f'input {i}' for i, t in enumerate(x)})
    marks = []
    def mark(c): torch.cuda.synchronize(); time.sleep(0.002); marks.append((time.time_ns() // 1000, c)); time.sleep(0.002)
    for step in range(4):
        if step == 3:
            torch.cuda.synchronize(); a0 = torch.cuda.memory_allocated(); r0 = torch.cuda.memory_reserved()
            torch.cuda.memory._record_memory_history('all', context='alloc', stacks='all', max_entries=2_000_000, clear_history=True)
            names.update({q.grad.untyped_storage().data_ptr(): 'grad ' + n for n, q in model.named_parameters() if q.grad is not None})
            torch.cuda.reset_peak_memory_stats(); mark('Z')
        o.zero_grad(set_to_none=True)
        if step == 3: mark('F')
        with ac(): loss = z['loss'](model(*x), batch)
        if step == 3: mark('B')
        loss.backward()
        if step == 3: mark('O')
        o.step()
        if step == 3: mark('E')
        del loss
    torch.cuda.synchronize(); peak = torch.cuda.max_memory_allocated()
    for st in o.state.values():
        for k, v in st.items():
            if torch.is_tensor(v) and v.is_cuda: names.setdefault(v.untyped_storage().data_ptr(), 'optimizer ' + k)
    t = time.time(); snap = torch.cuda.memory._snapshot(0); ev = snap['device_traces'][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    ids = {}; lines = []; n = 0; ph = 'Z'; mi = 0; live = req = hi = 0
    for e in ev:
        while mi < len(marks) and e['time_us'] >= marks[mi][0]: ph = marks[mi][1]; mi += 1
        a = e['action']
        if a == 'alloc':
            ids[e['addr']] = (n, e['size']); o1, o2, nd = label(e['frames']); w = where(e['frames'])
            lines.append(f'{ph} + {n} {e["size"]} {o1} {o2} {nd} {w}'); n += 1; live += e['size']; hi = max(hi, live)
        elif a == 'free_completed':
            i = ids.pop(e['addr'], None)
            if i: lines.append(f'{ph} - {i[0]}'); live -= i[1]
            else: lines.append(f'{ph} - old {e["size"]} {names.get(e["addr"], "-")}'); live -= e['size']
        elif a in ('segment_alloc', 'segment_free'): lines.append(f'{ph} {"S" if a.endswith("alloc") else "s"} {e["size"]}')
    head = dict(name=name, batch=batch, prec=prec, opt=opt, ckpt=ckpt, torch=torch.__version__, allocated_before=a0, reserved_before=r0, allocated_peak=peak, requested_rise=hi, events=len(lines), marks=[c for _, c in marks])
    fn = f'{out}/{name}.b{batch}.{prec}.{opt}{".ckpt" if ckpt else ""}.trace.xz'
    with lzma.open(fn, 'wt', preset=9) as f: f.write(json.dumps(head) + '\n' + '\n'.join(lines) + '\n')
    print(name, batch, prec, opt, ckpt, 'events', len(lines), 'rise', hi, 'peak-before', peak - a0, 'kB', os.path.getsize(fn) // 1024, 'sym s', round(time.time() - t, 1), flush=True)
    if os.environ.get('SHOW'):
        print('\n'.join(lines[:40])); print('...'); k = next((i for i, l in enumerate(lines) if l.startswith('B')), 0); print('\n'.join(lines[k:k+40])); print('\n'.join(lines[-12:]))
        for e in [e for e in ev if e['action'] == 'alloc'][60:62]: print([f['name'][:90] for f in e['frames']][:40])
    del model, x, o, P, snap, ev; gc.collect()

if __name__ == '__main__':
    for name in sys.argv[2:] or ZOO: run(name, ZOO[name]['batches'][0], 'fp32', 'adamw', out=sys.argv[1])
