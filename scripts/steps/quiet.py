"""The round trip with PyTorch on a quiet GPU: `memplan validate --engine torch` on the scripts of trainings/, memplan.fit, measure and compare, and
the time of steps with and without a plan, taken in turns in one process (docs/torch.md).

    python quiet.py all OUT SECONDS MODELS OLD [NAME ...]   MODELS: a folder of NAME.onnx.xz, as plans.py leaves them; OLD: plans.jsonl of that run
    python quiet.py pack FOLDER SITE MODELS OLD             what travels to the card

OUT gets quiet.jsonl, one JSON line a run, and log. First every core plans, and the scripts run; then nothing runs beside the timed steps but the
construction of the next model. A timed step is its time, that until Python had issued it (as long where the GPU waits for Python), and the GPU's time of
the forward pass, the backward pass and the optimizer."""
import contextlib, functools, json, lzma, multiprocessing, os, shutil, signal, statistics, subprocess, sys, tarfile, tempfile, time, traceback

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
TRACED = 'hf_layoutlm_text'  # which ran out of memory under its cap: every allocation and free of its first steps is recorded
TRAININGS = dict(  # the file, whether by --script, the card, settings, from where the batch is
    train_resnet50=dict(how='script', vram='8G', loss='cross-entropy', precision='fp32'), train_gpt2=dict(how='script', vram='12G', loss='auto', precision='amp-bf16'),
    train_vit=dict(how='call', vram='8G', loss='cross-entropy', precision='amp-bf16'), train_unet=dict(how='call', vram='12G', loss='mse', precision='fp32'))


def emit(out, record):
    """One line, whole or not at all, from any process."""
    with open(f'{out}/quiet.jsonl', 'ab', buffering=0) as f: f.write(json.dumps(record).encode() + b'\n')


def log(out, *words):
    with open(f'{out}/log', 'ab', buffering=0) as f: f.write((f'{time.time() - float(os.environ["BEGAN"]):5.0f} s ' + ' '.join(map(str, words)) + '\n').encode())


def said(e): return (type(e).__name__ + ': ' + str(e)).replace('\n', ' ')[:400]


class Late(Exception): pass


@contextlib.contextmanager
def within(seconds):
    def late(*_): raise Late(f'more than {seconds:.0f} s')
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(0.5, seconds))
    try: yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- plans ----

def cases(old):
    """Of each model the first case that an earlier run planned and timed, and what every block at its batch took. The one that ran out of
    memory is first, then those whose overhead was not as predicted."""
    with open(old) as f: records = [json.loads(l) for l in f]
    blocks = {r['name']: r.get('ways', {}).get('every block', {}) for r in records if r['kind'] == 'others'}
    out = {}
    for r in records:
        if r['kind'] != 'plan' or r['name'] in out or r['name'].startswith('dry'): continue
        ms = lambda k: statistics.median(r[k]['ms'][2:]) if 'ms' in r.get(k, {}) else 0.0
        off = abs(ms('plan') / ms('base') - 1 - r['predicted']['overhead']) if ms('plan') and ms('base') else 1.0
        block = blocks.get(r['name'], {})
        out[r['name']] = dict(name=r['name'], cap=r['cap'], batch=r['batch'], off=off, block={k: block[k] for k in ('allocated', 'reserved')} if 'allocated' in block else None)
    return sorted(out.values(), key=lambda c: (c['name'] != 'hf_layoutlm_text', c['off'] < 0.03, c['block'] is None, -c['off']))


def settings(m): return dict(gpu='h200', precision=m['precision'], loss=m['loss'], optimizer='adamw')


def prepare(case, folder, models, out):
    """Plans a case for its card, and for the memory that every block took."""
    import memplan
    from plans_zoo import PLANS
    m, began = PLANS[case['name']], time.time()
    try:
        file = f'{folder}/{case["name"]}.onnx'
        with lzma.open(f'{models}/{case["name"]}.onnx.xz') as r, open(file, 'wb') as w: shutil.copyfileobj(r, w)
        plan = memplan.plan(file, batch=case['batch'], vram=case['cap'] * GIB, timeout='20s', **settings(m))
        job = dict(case, plan=plan.document if plan.fits else None, context=plan.peak.process_bytes - plan.peak.reserved_bytes)
        if case['block']: job.update(rivals(file, m, case, job['context']))
        job['planned'] = round(time.time() - began, 1)
        with open(f'{folder}/{case["name"]}.part', 'w') as f: json.dump(job, f)
        os.rename(f'{folder}/{case["name"]}.part', f'{folder}/{case["name"]}.job')
    except BaseException as e: emit(out, dict(kind='prepare', name=case['name'], err=said(e)))


BUDGETS = 6  # that rivals() tries for a plan that allocates no more, too


def rivals(file, m, case, context):
    """Two plans beside every block: the cheapest that reserves no more, which is what a card bounds and a plan is made for, and, where it allocates
    more than every block, the cheapest of smaller budgets that does not; which is the same where it is None."""
    import memplan
    block, out = case['block'], {}
    for i in range(BUDGETS):
        plan = memplan.plan(file, batch=case['batch'], vram=round(block['reserved'] * (1 - 0.04 * i)) + context, headroom=0, timeout='7s', **settings(m))
        if not plan.fits: break
        out.setdefault('rival', plan.document)
        if plan.peak.allocated_bytes <= 1.001 * block['allocated']: return dict(out, both=plan.document if i else None)
    return out


# ---- time, in turns ----

class Arm:
    """A way to run a model, put on and taken off again."""

    def __init__(self, model, plan=None, blocks=False): self.model, self.plan, self.blocks, self.off = model, plan, blocks, None

    def __enter__(self):
        import memplan
        from plans import way_blocks
        if self.blocks: self.off = way_blocks(self.model)[0]
        elif self.plan and self.plan.get('selection'):
            memplan.checkpoint(self.model, self.plan)
            self.off = lambda: memplan.remove(self.model)

    def __exit__(self, *_):
        if self.off: self.off()
        self.off = None


class Trainer:
    def __init__(self, model, m, batch):
        import torch
        from rounds import loss_of
        self.torch, self.model, self.m, self.loss_of = torch, model, m, loss_of
        self.anew()
        self.x = m['inputs'](batch, 'cuda')

    def anew(self):
        """The optimizer without state, as before the first step: where a step's state lies among what the allocator keeps depends on that step."""
        for p in self.model.parameters(): p.grad = None
        self.optimizer = self.torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-5)

    def step(self):
        """[the step, until Python had issued it, forward, backward, optimizer], milliseconds."""
        torch = self.torch
        e = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        torch.cuda.synchronize(); t = time.perf_counter()
        e[0].record()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cuda', dtype=torch.bfloat16, enabled=self.m['precision'] == 'amp-bf16'): loss = self.loss_of(self.m['loss'], self.model(*self.x))
        e[1].record()
        loss.backward()
        e[2].record()
        self.optimizer.step()
        e[3].record()
        del loss
        issued = time.perf_counter() - t
        torch.cuda.synchronize(); whole = time.perf_counter() - t
        return [round(v, 2) for v in (1e3 * whole, 1e3 * issued, *(e[i].elapsed_time(e[i + 1]) for i in range(3)))]

    def profiled(self):
        """Milliseconds that kernels ran in one step, and the operators of most of them."""
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p: self.step()
        rows = sorted(((a.key[:60], round(a.self_device_time_total / 1e3, 3), a.count) for a in p.key_averages() if a.self_device_time_total and str(a.device_type).endswith('CPU')), key=lambda r: -r[1])
        return dict(kernels=round(sum(r[1] for r in rows), 2), operators=rows[:14], launches=sum(a.count for a in p.key_averages() if a.key.startswith(('cudaLaunchKernel', 'cuLaunchKernel'))))


def turns(job, until, share):
    """Times of a model's steps, each way in turn, until the share of time is over; what each way takes, and one profiled step."""
    import torch
    from plans import built, settled
    from plans_zoo import PLANS
    m, began = PLANS[job['name']], time.time()
    if job['name'] == TRACED: torch.cuda.memory._record_memory_history('all', context=None, stacks='python', max_entries=400000)
    model = settled(job.pop('model', None) or built(job['name']), 'cuda')
    trainer, cap = Trainer(model, m, job['batch']), None
    if job['name'] == TRACED and job['plan']: cap = capped(job, model, Arm(model, job['plan']), trainer)
    arms = dict(base=Arm(model), plan=Arm(model, job['plan']), block=Arm(model, blocks=True), rival=Arm(model, job.get('rival')), both=Arm(model, job.get('both')))
    if not job['plan']: del arms['plan']
    if not job['block']: del arms['block']
    for k in ('rival', 'both'):
        if not job.get(k): arms.pop(k)
    record = dict(kind='turns', name=job['name'], cap=job['cap'], batch=job['batch'], planned=job['planned'], library=m['library'], precision=m['precision'], ms={k: [] for k in arms}, peaks={}, errors={}, **(dict(capped=cap) if cap else {}))
    for k in ('plan', 'rival', 'both'):
        if job.get(k):
            p = job[k]
            record['predicted_' + k] = dict(allocated=p['peak']['allocatedBytes'], reserved=p['peak']['reservedBytes'], upper=p['peak']['upperBoundBytes'], overhead=(p.get('checkpoint') or {}).get('recomputeOverhead', 0.0), time=p['time'],
                                            regions=len(p.get('selection') or []), keeping=sum(bool(s.get('save')) for s in p.get('selection') or []))
    for k, arm in list(arms.items()):  # warm, and peaks
        trainer.anew()
        torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
        try:
            with arm:
                for _ in range(3): trainer.step()
        except Late: raise
        except Exception as e:
            record['errors'][k] = said(e)
            e.__traceback__ = None
            del arms[k]
            continue
        record['peaks'][k] = dict(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())
    timed = time.time()
    record['settled'] = round(timed - began, 1)
    end, rounds = min(until, timed + share * len(arms)), 0
    while rounds < 12 and (time.time() < end or rounds < 2):
        for k, arm in arms.items():
            with arm:
                trainer.step()
                record['ms'][k] += [trainer.step() for _ in range(3)]
        rounds += 1
    record['profile'] = {}
    for k in ('base', 'plan'):
        if k in arms and time.time() < until:
            with contextlib.suppress(Exception), arms[k]: record['profile'][k] = trainer.profiled()
    record['seconds'] = round(time.time() - began, 1)
    return record


def capped(job, model, arm, trainer):
    """Steps under the cap as they begin, what the allocator held as they failed, and every allocation and free of them."""
    import torch
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((job['cap'] * GIB - job['context']) / total)
    out, stats = {}, lambda: {k: v for k, v in torch.cuda.memory_stats().items() if k in ('allocated_bytes.all.current', 'reserved_bytes.all.current', 'inactive_split_bytes.all.current', 'reserved_bytes.all.peak', 'allocated_bytes.all.peak', 'num_alloc_retries')}
    out['before'] = stats()
    try:
        with arm:
            for _ in range(5):
                torch.cuda.reset_peak_memory_stats()
                trainer.step()
                out.setdefault('steps', []).append(stats())
    except Exception as e:
        out.update(err=said(e), failed=stats())
        e.__traceback__ = None
        for p in model.parameters(): p.grad = None
    finally: torch.cuda.set_per_process_memory_fraction(1.0)
    try:
        events = [[t['action'], t.get('addr', 0), t['size'], t.get('stream', 0)] for d in torch.cuda.memory._snapshot()['device_traces'] for t in d]
        with lzma.open(f'{job["out"]}/trace_{job["name"]}.json.xz', 'wt', preset=1) as f: json.dump(events, f)
        out['events'] = len(events)
    except Exception as e: out['untraced'] = said(e)
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.empty_cache()
    return out


def warm():
    """Brings the clocks up, and leaves nothing behind."""
    import torch
    a = torch.randn(4096, 4096, device='cuda')
    for _ in range(40): a @ a
    torch.cuda.synchronize()
    del a
    torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache()


def worker(k, names, folder, out, until, lock, turn):
    """Takes models in order; builds one while another worker times."""
    import torch
    from plans import built
    torch.set_num_threads(2)
    sys.stdout = sys.stderr = open(os.devnull, 'w')
    torch.zeros(1, device='cuda')
    log(out, f'worker {k} is ready')
    while time.time() < until - 6:
        with turn.get_lock():
            i = turn.value
            turn.value += 1
        if i >= len(names): break
        path = f'{folder}/{names[i]}.job'
        if not os.path.exists(path): continue
        with open(path) as f: job = json.load(f)
        job['out'] = out
        try:
            job['model'] = built(job['name'])
            with lock:
                if time.time() > until - 4: break
                warm()
                with within(min(40, until - time.time())): emit(out, turns(job, until - 1, float(os.environ.get('SHARE', 1.3))))
                import gc
                gc.collect(); torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache()
        except BaseException as e:
            emit(out, dict(kind='turns', name=names[i], err=said(e), where=traceback.format_exc()[-500:]))
            if 'CUDA error' in said(e): os._exit(3)
            job.clear()
            import gc
            gc.collect(); torch.cuda.empty_cache()
    log(out, f'worker {k} ends')


# ---- validate --engine torch ----

def export(name, folder, out):
    """The file of a training script's model, and its plan."""
    import importlib, memplan, torch
    torch.set_num_threads(1)
    sys.path.insert(0, f'{HERE}/trainings')
    t, module, began = TRAININGS[name], importlib.import_module(name), time.time()
    try:
        x = module.example()
        args, kwargs = ((), x) if isinstance(x, dict) else (x, {})
        plan = memplan.plan(module.model(), args, kwargs, path=f'{folder}/{name}.onnx', output=f'{folder}/{name}.part', vram=t['vram'], batch=module.BATCH, gpu='h200', precision=t['precision'], loss=t['loss'], optimizer='adamw', timeout='20s')
        emit(out, dict(kind='planned', name=name, fits=plan.fits, seconds=round(time.time() - began, 1), regions=len(plan.checkpoint.segments) if plan.checkpoint else 0, warnings=[w.code for w in plan.warnings]))
        os.rename(f'{folder}/{name}.part', f'{folder}/{name}.json')
    except BaseException as e: emit(out, dict(kind='planned', name=name, err=said(e)))


def engine(name, folder, out):
    """Runs a training script under its plan, as a user would."""
    t, began = TRAININGS[name], time.time()
    how = ['--script', f'{HERE}/trainings/{name}.py'] if t['how'] == 'script' else ['--call', f'{name}:train']
    command = [sys.executable, '-m', 'memplan', 'validate', f'{folder}/{name}.json', '--engine', 'torch', *how, '--cap', t['vram'], '--format', 'json']
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=f'{HERE}/trainings', env=dict(os.environ, MEMPLAN_PYTHON=sys.executable))
        emit(out, dict(kind='engine', name=name, how=t['how'], vram=t['vram'], rc=done.returncode, seconds=round(time.time() - began, 1), said=done.stderr[-600:], document=json.loads(done.stdout) if done.stdout else None))
    except Exception as e: emit(out, dict(kind='engine', name=name, err=said(e)))


FITTED = '''
import importlib, json, sys, torch, memplan
module = importlib.import_module(sys.argv[1])
x = module.example(); args, kwargs = ((), x) if isinstance(x, dict) else (x, {})
settings = dict(precision=sys.argv[3], loss=sys.argv[4])
fitted = memplan.fit(module.model(), args, kwargs, vram=sys.argv[2], gpu='h200', batch=module.BATCH, **settings)
print(fitted)
memplan.remove(fitted.model)
p = fitted.plan
measured = memplan.measure(fitted.model, args, kwargs, plan=p, steps=6, vram_bytes=p.config['vramBytes'] - (p.peak.process_bytes - p.peak.reserved_bytes))
print(measured)
compared = memplan.compare(p, measured)
print(compared)
print(json.dumps([[r.name, r.predicted, r.measured, r.unit] for r in compared.rows] + [compared.within]), file=sys.stderr)
'''


def fitted(name, out):
    """memplan.fit, measure and compare."""
    t, began = TRAININGS[name], time.time()
    try:
        done = subprocess.run([sys.executable, '-c', FITTED, name, t['vram'], t['precision'], t['loss']], capture_output=True, text=True, timeout=75, cwd=f'{HERE}/trainings')
        rows = [l for l in done.stderr.splitlines() if l.startswith('[[')]
        emit(out, dict(kind='compare', name=name, rc=done.returncode, seconds=round(time.time() - began, 1), said=done.stdout[-2500:], err=done.stderr[-600:] if done.returncode else '', rows=json.loads(rows[-1]) if rows else None))
    except Exception as e: emit(out, dict(kind='compare', name=name, err=said(e)))


# ---- all of it ----

def everything(out, seconds, models, old, names):
    began = time.time(); until = began + seconds - 6
    os.environ['BEGAN'] = str(began)
    out = os.path.abspath(out)
    os.makedirs(out, exist_ok=True)
    folder, spawn = tempfile.mkdtemp(), multiprocessing.get_context('spawn')
    todo = [c for c in cases(old) if os.path.exists(f'{models}/{c["name"]}.onnx.xz') and (not names or c['name'] in names)]
    os.environ['CUDA_VISIBLE_DEVICES'], hidden = '', os.environ.get('CUDA_VISIBLE_DEVICES')
    trainings = [] if names else list(TRAININGS)
    work = [(export, (n, folder, out)) for n in trainings] + [(prepare, (c, folder, models, out)) for c in todo]
    running, planning = [], time.time() + 0.4 * seconds
    def show():
        if hidden is None: os.environ.pop('CUDA_VISIBLE_DEVICES', None)
        else: os.environ['CUDA_VISIBLE_DEVICES'] = hidden
    checks = multiprocessing.get_context('fork').Process(target=checked, args=(trainings, folder, out, until, hidden))
    checks.start()
    most = max(1, (os.cpu_count() or 4) - 2)
    while (work or running) and time.time() < planning:
        running = [p for p in running if p.is_alive()]
        while work and len(running) < most:
            f, a = work.pop(0)
            running.append(spawn.Process(target=f, args=a))
            running[-1].start()
        time.sleep(0.1)
    for p in running: p.kill()
    log(out, f'planned; {len(work)} not begun, {len(running)} not ended')
    checks.join(max(1, began + 0.5 * seconds - time.time()))
    show()
    import torch
    if torch.cuda.is_available():
        emit(out, dict(kind='about', gpu=torch.cuda.get_device_name(), torch=torch.__version__, cores=os.cpu_count(), **{n: versions(n) for n in ('transformers', 'timm', 'diffusers', 'torchvision')}))
        lock, turn, order = spawn.Lock(), spawn.Value('i', 0), [c['name'] for c in todo]
        workers = [spawn.Process(target=worker, args=(k, order, folder, out, until, lock, turn)) for k in range(2)]
        for w in workers: w.start()
        for w in workers:
            w.join(max(0.5, began + seconds - 2 - time.time()))
            if w.is_alive(): w.kill()
    if checks.is_alive(): checks.kill()
    log(out, 'ends')
    shutil.rmtree(folder, ignore_errors=True)
    summary(out)


def checked(left, folder, out, until, hidden):
    """The scripts, one after the other, as their plans come; then memplan.fit and compare."""
    if hidden is None: os.environ.pop('CUDA_VISIBLE_DEVICES', None)
    else: os.environ['CUDA_VISIBLE_DEVICES'] = hidden
    both = 'train_resnet50', 'train_gpt2'
    wanted = [n for n in both if n in left]
    while left and time.time() < until:
        ready = [n for n in left if os.path.exists(f'{folder}/{n}.json')]
        if not ready:
            time.sleep(0.2)
            if time.time() > float(os.environ['BEGAN']) + 75: break
            continue
        left.remove(ready[0])
        engine(ready[0], folder, out)
        log(out, f'{ready[0]} ran')
    for n in wanted: fitted(n, out)
    log(out, 'scripts end')


def versions(name):
    import importlib.metadata as meta
    with contextlib.suppress(Exception): return meta.version(name)


def summary(out):
    """A table for the eye."""
    with open(f'{out}/quiet.jsonl') as f: records = [json.loads(l) for l in f]
    for r in records:
        if 'err' in r and r['err']: print(r['kind'], r['name'], r['err'][:200])
        elif r['kind'] == 'engine': print('engine', r['name'], r['rc'], (r['document'] or {}).get('verdict'), r['said'][-200:])
        elif r['kind'] == 'compare': print('compare', r['name'], r['rc'], r['rows'])
        elif r['kind'] == 'turns':
            ms = {k: statistics.median(s[0] for s in v) for k, v in r['ms'].items() if v}
            print(r['name'], {k: f'{v:.1f}' for k, v in ms.items()}, f'{100 * (ms.get("plan", 0) / ms["base"] - 1):.1f}%' if ms.get('base') else '', f'predicted {100 * r.get("predicted_plan", {}).get("overhead", 0):.1f}%', r['errors'])


def pack(folder, site, models, old):
    """A folder to carry: run.sh OUT [SECONDS] runs everything there."""
    os.makedirs(f'{folder}/models', exist_ok=True)
    for f in ('quiet.py', 'plans.py', 'plans_zoo.py', 'rounds.py', 'styles.py'): shutil.copy(f'{HERE}/{f}', folder)
    shutil.copytree(f'{HERE}/trainings', f'{folder}/trainings', dirs_exist_ok=True, ignore=shutil.ignore_patterns('__pycache__'))
    with tarfile.open(models) as t: t.extractall(f'{folder}/models', filter='data')
    with lzma.open(old) as r, open(f'{folder}/plans.jsonl', 'wb') as w: shutil.copyfileobj(r, w)
    subprocess.run([sys.executable, f'{HERE}/../../python/wheels.py', '--platform', 'linux/amd64', '--out', folder], check=True)
    if not os.path.exists(f'{folder}/site.tar.xz'):
        skip = lambda t: None if any(p in ('__pycache__', 'tests', 'bin', 'docs', 'test') for p in t.name.split('/')) else t
        with tarfile.open(f'{folder}/site.tar.xz', 'w:xz', preset=1) as t:
            for d in sorted(os.listdir(site)):
                if d.split('-')[0].split('.')[0] in ('timm', 'diffusers', 'monai', 'vit_pytorch', 'einops'): t.add(f'{site}/{d}', d, filter=skip)
    with open(f'{folder}/run.sh', 'w') as f:
        f.write('set -e\nhere=$(cd "$(dirname "$0")" && pwd)\nmkdir -p /tmp/site /tmp/memplan "$1"\ntar -xJf "$here/site.tar.xz" -C /tmp/site\n'
                'python3 -m pip install -q --no-index --no-deps --upgrade --target /tmp/memplan "$here"/memplan-*.whl\n'
                'export PYTHONPATH=/tmp/memplan:/tmp/site PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1\n'
                'timeout -k 2 $((${2:-228} + 2)) python3 "$here/quiet.py" all "$1" "${2:-228}" "$here/models" "$here/plans.jsonl" ${@:3} > "$1/said.txt" 2>&1 || true\ntail -60 "$1/said.txt"\n')


if __name__ == '__main__':
    if sys.argv[1] == 'pack': pack(*sys.argv[2:6])
    else: everything(sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6:])
