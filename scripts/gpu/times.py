"""How long calls and whole steps take on a GPU: what planner/pace.go is fitted to, and what planner/time_test.go compares it with.

    python times.py calls OUT.jsonl.xz SECONDS     calls of the operator atlas, most of them of larger tensors than its own
    python times.py steps OUT.jsonl.xz SECONDS RUNS.jsonl... [--profile] [--seventh]   steps of the models of steps/unseen5.py and steps/rounds.py, or of
                                                   steps/unseen7.py

`calls`: a case a line as atlas.py writes it, with f and b, the microseconds that the GPU takes for its forward and its backward pass, and hf and hb,
those that the host takes to issue them. The GPU sleeps before each, so that kernels follow one another without waiting for the host; the least of
four. `steps`: of each run (RUNS has name, batch, prec, opt and mode) ms, the time of a step without waiting between its phases (median of nine), and
forward, backward and optimizer, those that the GPU takes with the gaps in it, host, that until Python has issued the step, and launches, its kernels.
With --profile: kernels, [operator, shapes, options, launches, microseconds, name of the first kernel] of one step.
"""
import gc, importlib, json, lzma, os, random, statistics, sys, time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), 'steps')]
SLEEP = 900_000  # cycles, half a millisecond


def head(out):
    q = torch.cuda.get_device_properties(0)
    out.write(json.dumps(dict(torch=torch.__version__, cudnn=torch.backends.cudnn.version(), card=q.name, date=time.strftime('%Y-%m-%d'), command='python ' + ' '.join([os.path.basename(sys.argv[0])] + sys.argv[1:]))) + '\n')


# ---- calls ----

def timed(atlas, run, c):
    op = getattr(torch.ops.aten, c['op'] + ('_' if c.get('in') else ''))
    over = c['over'] if not c.get('in') or c['over'] in op.overloads() else 'default'
    op, dev, leaf = getattr(op, over), 'cuda', run.leaf
    made, times = {}, []
    make = atlas.tensor
    atlas.tensor = lambda t, d: made[id(t)] if id(t) in made else made.setdefault(id(t), make(t, d))
    event = lambda: torch.cuda.Event(enable_timing=True)
    try:
        for i in range(5):
            a, k = atlas.operands(c['a'], dev, leaf), {n: atlas.operands(v, dev, leaf) for n, v in c['k'].items()}
            if c.get('flat'): atlas.flat_weights(a, dev)
            if not i:
                elements = sum(t.numel() for t in made.values())
                if elements > 1 << 29: raise ValueError('too large')
            es = [event() for _ in range(4)]
            torch.cuda.synchronize(); torch.cuda._sleep(SLEEP); es[0].record(); t0 = time.perf_counter()
            with torch.autocast(dev, dtype=atlas.DT[c.get('ac') or 'bf16'], enabled=bool(c.get('ac'))): out = op(*a, **k)
            t1 = time.perf_counter(); es[1].record()
            flat = [out] if torch.is_tensor(out) else list(out) if isinstance(out, (list, tuple)) else []
            c['out'] = [(list(o.shape), list(o.stride()), atlas.NAME.get(o.dtype, str(o.dtype))) if torch.is_tensor(o) else None for o in flat]
            outs = [o for o in flat if torch.is_tensor(o) and o.requires_grad]
            if c['which'] == 'first': del outs[1:]
            t2 = t3 = 0
            if outs:
                loss = atlas.Tail.apply([torch.zeros((), device=dev)], c['g'], *outs)
                torch.cuda.synchronize(); torch.cuda._sleep(SLEEP); es[2].record(); t2 = time.perf_counter()
                loss.backward(gradient=run.one)
                t3 = time.perf_counter(); es[3].record()
                del loss
            torch.cuda.synchronize()
            times.append((es[0].elapsed_time(es[1]), es[2].elapsed_time(es[3]) if outs else 0, t1 - t0, t3 - t2))
            for t in made.values(): t.grad = None
            leaf.grad = None
            del out, flat, outs, a, k
    finally: atlas.tensor = make
    f, b, hf, hb = (min(t[i] for t in times[1:]) for i in range(4))
    return dict(f=round(f * 1e3, 1), b=round(b * 1e3, 1), hf=round(hf * 1e6, 1), hb=round(hb * 1e6, 1))


def calls(path, seconds):
    import atlas
    class Larger(atlas.Gen):
        def shape(self, nd, top=None, low=0):
            return super().shape(nd, self.choices([15, 19, 22, 25, 27], [15, 15, 25, 30, 15])[0] if top is None else top, low)
    atlas.Gen = Larger
    t0, n, failed = time.time(), 0, 0
    todo = atlas.cases(set())
    atlas.warm()
    run = atlas.Runner('cuda')
    with lzma.open(path, 'wt', preset=6) as out:
        head(out)
        for i, c in enumerate(todo):
            if time.time() - t0 > seconds: break
            try: c.update(timed(atlas, run, c))
            except Exception as e:
                failed += 1
                if isinstance(e, torch.OutOfMemoryError): torch.cuda.empty_cache()
                if 'device-side' in str(e) or 'illegal' in str(e): print('lost', c, str(e)[:200]); break
                continue
            out.write(json.dumps(c, separators=(',', ':')) + '\n')
            n += 1
            if i % 200 == 0: gc.collect(); torch.cuda.empty_cache()
    print(n, 'of', len(todo), 'calls,', failed, 'failed,', round(time.time() - t0, 1), 's', flush=True)


# ---- steps ----

def step_times(rounds, r, profile):
    z, _, model, x = rounds.prepared(r['name'], r['batch'], r['prec'])
    train = r['mode'] == 'train'
    model.train(train)
    o = rounds.OPT[r['opt']]([p for p in model.parameters() if p.requires_grad]) if train else None
    event = lambda: torch.cuda.Event(enable_timing=True)

    def step(es=None):
        mark = lambda i: es and es[i].record()
        mark(0)
        if not train:
            with torch.no_grad(), rounds.AUTOCAST(r['prec']): model(*x)
            return mark(1)
        o.zero_grad(set_to_none=True)
        with rounds.AUTOCAST(r['prec']): loss = rounds.loss_of(z['loss'], model(*x))
        mark(1)
        loss.backward()
        mark(2)
        o.step()
        mark(3)
    for _ in range(3): step()
    rows = []
    for _ in range(9):
        es = [event() for _ in range(4)]
        torch.cuda.synchronize(); t0 = time.perf_counter()
        step(es)
        t1 = time.perf_counter()
        torch.cuda.synchronize(); t2 = time.perf_counter()
        rows.append([1e3 * (t2 - t0), 1e3 * (t1 - t0)] + [es[i].elapsed_time(es[i + 1]) for i in range(3 if train else 1)])
        if sum(q[0] for q in rows) > 4000: break
    m = [round(statistics.median(q), 3) for q in zip(*rows)]
    out = dict(r, loss=z['loss'], ms=m[0], host=m[1], forward=m[2], backward=m[3] if train else 0, optimizer=m[4] if train else 0)
    if profile: out.update(kernels_of(step))
    return out


def kernels_of(step):
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as p:
        step()
        torch.cuda.synchronize()
    rows = {}
    for e in p.events():
        if not e.kernels: continue
        key = json.dumps([e.name, e.input_shapes, [c for c in e.concrete_inputs or []]])
        row = rows.setdefault(key, [0, 0, e.kernels[0].name[:70]])
        row[0] += len(e.kernels)
        row[1] += sum(k.duration for k in e.kernels)
    return dict(launches=sum(v[0] for v in rows.values()), kernels=[json.loads(k) + [v[0], round(v[1], 1), v[2]] for k, v in rows.items()])


def steps(path, seconds, files, profile, seventh):
    import rounds
    t0 = time.time()
    known = dict(rounds.ROUNDS)
    for module, draw in (('unseen7', ''),) if seventh else (('unseen5', '5'), ('unseen5', '6')):  # each replaces the table
        os.environ['DRAW'] = draw
        sys.modules.pop(module, None)
        importlib.import_module(module)
        known.update(rounds.ROUNDS)
    rounds.ROUNDS.update(known)
    os.environ.pop('CUDA_VISIBLE_DEVICES', None)  # they hide the card from commands other than their own
    import numpy  # rounds.prepared makes inputs with it
    runs = [json.loads(l) for f in files for l in (lzma.open(f, 'rt') if f.endswith('.xz') else open(f))]
    runs = [{k: r[k] for k in ('name', 'library', 'batch', 'prec', 'opt', 'mode')} for r in runs if 'err' not in r and r.get('name') in rounds.ROUNDS]
    by = {}
    for r in runs: by.setdefault(r['name'], []).append(r)
    names = sorted(by)
    random.Random(1).shuffle(names)
    failed = 0
    with lzma.open(path, 'wt', preset=6) as out:
        head(out)
        for name in names:
            for r in by[name]:
                if time.time() - t0 > seconds: break
                try:
                    rounds.limit(25)
                    q = step_times(rounds, r, profile)
                except BaseException as e:
                    failed += 1
                    print(name, type(e).__name__, str(e)[:120].replace('\n', ' '), flush=True)
                    continue
                finally: __import__('signal').alarm(0)
                out.write(json.dumps(q, separators=(',', ':')) + '\n')
    print(len(runs), 'runs,', failed, 'failed,', round(time.time() - t0, 1), 's', flush=True)


if __name__ == '__main__':
    if len(sys.argv) < 4 or sys.argv[1] not in ('calls', 'steps'): sys.exit(__doc__)
    if sys.argv[1] == 'calls': calls(sys.argv[2], float(sys.argv[3]))
    else: steps(sys.argv[2], float(sys.argv[3]), [a for a in sys.argv[4:] if not a.startswith('--')], '--profile' in sys.argv, '--seventh' in sys.argv)
