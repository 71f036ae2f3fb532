"""The allocator's whole history in four training steps, from the model's first tensor on: python record_steps.py ZOO_DIR JOBS.json OUT_DIR

ZOO_DIR holds zoo.py and measure.py of scripts/steps; a job is {"name", "batch", "prec", "opt", "ckpt", "cap"}: cap is in bytes, 0
for none. The jobs of a file run one after the other in one process. Each becomes OUT_DIR/NAME.bBATCH.PREC.OPT[.ckpt][.capMIB][.OPTION].steps.xz,
OPTION being the first of PYTORCH_ALLOC_CONF: first line JSON: the job, PYTORCH_ALLOC_CONF, "heads": [allocated before, peak allocated, reserved before, peak reserved] of each step in
bytes. Then a line an event:
    # PHASE            M model.to, I inputs, then for each step Z zero_grad, F forward and loss, B backward, O optimizer, E after it
    + ADDRESS SIZE     an allocation of SIZE bytes       - ADDRESS    its free
    S ADDRESS SIZE     a segment taken from the driver   s ADDRESS    given back
    ! SIZE             a request that failed
ADDRESS counts 512 bytes from the first one, S and s count MiB.

python record_steps.py segments DIR > segments.jsonl keeps of each file of DIR only the heads and the segments: address and size in MiB."""
import sys, os, json, time, lzma, gc, glob
if sys.argv[1] == 'segments':
    for f in sorted(glob.glob(sys.argv[2] + '/*.steps.xz')):
        head, *lines = lzma.open(f, 'rt').read().splitlines()
        seg = [[int(n) for n in l.split()[1:]] for l in lines if l[0] == 'S']
        print(json.dumps(dict(run=os.path.basename(f)[:-9], heads=json.loads(head)['heads'], segments=seg), separators=(',', ':')))
    sys.exit()
import torch
sys.path.insert(0, sys.argv[1])
from zoo import ZOO
from measure import wrap_blocks, clear
dev, MiB = 'cuda', 1 << 20

def run(name, batch, prec, opt, ckpt=None, cap=0, out='.'):
    z = ZOO[name]; clear()
    total = torch.cuda.mem_get_info()[1]
    f = cap / total if cap else 1.0
    torch.cuda.set_per_process_memory_fraction(f); cap = int(f * total) if cap else 0
    marks, heads, failed = [], [], ''
    def mark(c):
        torch.cuda.synchronize(); time.sleep(.001); marks.append((time.time_ns() // 1000, c)); time.sleep(.001)
    torch.cuda.memory._record_memory_history('all', context=None, max_entries=2_000_000, clear_history=True)
    torch.manual_seed(0); mark('M'); model = x = o = loss = None
    try:
        model = z['build']().to(dev).train(); mark('I'); x = z['inputs'](batch, dev)
        if ckpt: wrap_blocks(model)
        P = [p for p in model.parameters() if p.requires_grad]
        o = {'sgd': lambda: torch.optim.SGD(P, lr=1e-3), 'adamw': lambda: torch.optim.AdamW(P, lr=1e-4)}[opt]()
        for step in range(4):
            torch.cuda.synchronize(); before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(); torch.cuda.reset_peak_memory_stats()
            mark('Z'); o.zero_grad(set_to_none=True); mark('F')
            with torch.autocast('cuda', dtype=torch.bfloat16, enabled=prec == 'amp-bf16'): loss = z['loss'](model(*x), batch)
            mark('B'); loss.backward(); mark('O'); o.step(); mark('E'); loss = None
            heads.append((before[0], torch.cuda.max_memory_allocated(), before[1], torch.cuda.max_memory_reserved()))
    except torch.OutOfMemoryError: failed = 'out of memory'
    torch.cuda.synchronize()
    ev = torch.cuda.memory._snapshot(0)['device_traces'][0]; torch.cuda.memory._record_memory_history(enabled=None)
    lines, mi, base = [], 0, ev[0]['addr']
    for e in ev:
        while mi < len(marks) and e['time_us'] >= marks[mi][0]: lines.append(f'# {marks[mi][1]}'); mi += 1
        a, at, n = e['action'], (e.get('addr', base) - base) // 512, e['size']
        if a == 'alloc': lines.append(f'+ {at} {n}')
        elif a == 'free_completed': lines.append(f'- {at}')
        elif a in ('segment_alloc', 'segment_map'): lines.append(f'S {at // 2048} {n // MiB}')
        elif a in ('segment_free', 'segment_unmap'): lines.append(f's {at // 2048}')
        elif a == 'oom': lines.append(f'! {n}')
    conf = os.environ.get('PYTORCH_ALLOC_CONF', '')
    key = '.'.join([name, f'b{batch}', prec, opt] + ['ckpt'] * bool(ckpt) + [f'cap{cap // MiB}'] * bool(cap) + [conf.split(':')[0]] * bool(conf))
    job = dict(name=name, batch=batch, prec=prec, opt=opt, ckpt=ckpt, cap=cap, torch=torch.__version__, device=torch.cuda.get_device_name(),
               conf=conf, failed=failed, heads=heads)
    with lzma.open(f'{out}/{key}.steps.xz', 'wt', preset=9) as w: w.write(json.dumps(job) + '\n' + '\n'.join(lines) + '\n')
    print(json.dumps(dict(key=key, failed=failed, heads=heads)), flush=True)
    del model, x, o, loss, ev; gc.collect()

for j in json.load(open(sys.argv[2])): run(**j, out=sys.argv[3])
