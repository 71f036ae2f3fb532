"""Plans for PyTorch on a GPU: what a model of plans_zoo.py takes under the plan of memplan for a card of 8, 16 or 24 GiB, beside what the plan
says, beside the model without checkpoints, and beside other ways to save memory (docs/torch.md).

    python plans.py list                             names the models
    python plans.py all OUT SECONDS [NAME ...]       everything, until the time is over; --dry: on the processor, to try the script
    python plans.py pack FOLDER SITE                 what travels to the card: the wheel of memplan, these scripts, libraries of a --target folder

`memplan` (the wheel) must be installed. OUT gets plans.jsonl, one JSON line a run, written as runs end; models.tar (NAME.onnx.xz, what plans were made
of), and log. Workers on the processor export and plan; workers on the GPU take what is ready, one at a time on the GPU itself, so that times are not
disturbed. Everything is repeated in the order of importance: each model once, then other ways, then other caps and batches."""
import contextlib, fcntl, functools, gc, json, lzma, multiprocessing, os, random, shutil, signal, statistics, subprocess, sys, tarfile, tempfile, time, traceback, warnings

warnings.filterwarnings('ignore')
HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
CAPS, FACTORS = (8, 16, 24), (1.2, 1.5, 2.0)
STEPS = 5  # under the cap; others are timed over STEPS too
OFFLOAD, EVERY = 3, 2  # blocks between which nothing is kept on the GPU; every n-th layer


# ---- jobs: files in a folder, taken by renaming ----

class Jobs:
    """A folder of jobs. A job's name begins with its priority; who renames it has it."""

    def __init__(self, folder):
        self.folder = folder
        for d in ('ready', 'taken'): os.makedirs(f'{folder}/{d}', exist_ok=True)

    def put(self, name, job):
        with open(f'{self.folder}/{name}.part', 'w') as f: json.dump(job, f)
        os.rename(f'{self.folder}/{name}.part', f'{self.folder}/ready/{name}')

    def take(self, kinds=None):
        for name in sorted(os.listdir(f'{self.folder}/ready')):
            if kinds and name.split('-')[1] not in kinds: continue
            try: os.rename(f'{self.folder}/ready/{name}', f'{self.folder}/taken/{name}')
            except OSError: continue
            with open(f'{self.folder}/taken/{name}') as f: return json.load(f)

    def waiting(self): return len(os.listdir(f'{self.folder}/ready'))


def emit(folder, record):
    """One line, whole or not at all, from any process."""
    with open(f'{folder}/plans.jsonl', 'ab', buffering=0) as f: f.write(json.dumps(record).encode() + b'\n')


def log(folder, *words):
    with open(f'{folder}/log', 'ab', buffering=0) as f: f.write((f'{time.time() - float(os.environ["BEGAN"]):5.0f} s ' + ' '.join(map(str, words)) + '\n').encode())


class Late(Exception): pass


@contextlib.contextmanager
def within(seconds):
    def late(*_): raise Late(f'more than {seconds} s')
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(max(1, int(seconds * float(os.environ.get('SLOW', 1)))))
    try: yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def said(e): return (type(e).__name__ + ': ' + str(e)).replace('\n', ' ')[:400]


# ---- on the processor: exports and plans ----

def settings(m): return dict(gpu='h200', precision=m['precision'], loss=m['loss'], optimizer='adamw')


def cases(i):
    """The caps and batches of the i-th model: nine models have all nine pairs in their first case."""
    return [(CAPS[(i + j) % 3], FACTORS[(i // 3 + j) % 3]) for j in range(3)]


def prepare(job):
    """Exports a model and plans its cases; each is a job for the GPU as soon as it is there."""
    name, i, out, folder = job
    import memplan, torch
    from plans_zoo import PLANS
    from rounds import uninitialised
    torch.set_num_threads(1)
    m, jobs, began = PLANS[name], Jobs(folder), time.time()
    sys.stdout = open(os.devnull, 'w')
    record = dict(kind='prepare', name=name, library=m['library'], precision=m['precision'])
    try:
        file = f'{folder}/models/{name}.onnx'
        torch.manual_seed(0)
        model, x = uninitialised(m['build']).train(), m['inputs'](2, 'cpu')
        carried = f'{HERE}/models/{name}.onnx.xz'  # what an earlier run exported
        if os.path.exists(carried):
            with lzma.open(carried) as r, open(file, 'wb') as w: shutil.copyfileobj(r, w)
        try:
            with within(150): first = memplan.estimate(file, batch=2, **settings(m)) if os.path.exists(carried) else memplan.estimate(model, x, path=file, batch=2, **settings(m))
        except Exception as e:
            record['export'] = said(e)
            with within(120): plain(model, x, file)
            first = memplan.estimate(file, batch=2, **settings(m))
        record.update(exported=round(time.time() - began, 1), parameters=first.document['model']['parameters'], warnings=[w.code for w in first.warnings])
        for j, (cap, factor) in enumerate(cases(i)):
            with within(150): case(jobs, name, m, file, cap, factor, j, i, out)
    except BaseException as e: record['err'] = said(e)
    emit(out, dict(record, seconds=time.time() - began))


def plain(model, x, file):
    """The exporter of PyTorch alone, where memplan.export fails."""
    import onnx, torch
    from plans_zoo import Call
    from rounds import strip
    batch = torch.export.Dim('batch', min=1, max=4096)
    shapes = tuple({0: batch} for _ in x)
    torch.onnx.export(model, x, file, dynamo=True, external_data=False, optimize=False, verbose=False, dynamic_shapes=(shapes,) if isinstance(model, Call) else shapes)
    onnx.save(strip(onnx.load(file)), file)


def case(jobs, name, m, file, cap, factor, j, i, out):
    import memplan
    vram = cap * GIB
    largest = memplan.estimate(file, batch='max', checkpoint='none', vram=vram, **settings(m)).batch.max
    for factor in [factor, *(f for f in FACTORS[::-1] if f < factor)]:  # a smaller batch where this one cannot fit
        began, batch = time.time(), max(largest + 1, round(largest * factor))
        plan = memplan.plan(file, batch=batch, vram=vram, timeout='20s', **settings(m))
        job = dict(name=name, cap=cap, factor=factor, largest=largest, batch=batch, file=file, planned=round(time.time() - began, 1))
        if plan.fits: break
        emit(out, dict(job, kind='refused', library=m['library'], reason=[w.message for w in plan.warnings]))
    else: return
    job.update(context=plan.peak.process_bytes - plan.peak.reserved_bytes)
    doc = {k: v for k, v in plan.document.items() if k != 'arena'}
    jobs.put(f'{2 * j}-plan-{i:03d}-{name}', dict(job, kind='plan', bits=j == 0, plan=doc))
    if j == 0: jobs.put(f'1-others-{i:03d}-{name}', dict(job, kind='others'))


# ---- on the GPU ----

class Card:
    """The GPU. One process at a time is on it while its lock is held; the system takes the lock off a process that dies."""
    device = 'cuda'

    def __init__(self, folder): self.path = f'{folder}/lock'

    @contextlib.contextmanager
    def alone(self):
        with open(self.path, 'a') as f:
            left = signal.alarm(0)  # waiting does not count
            fcntl.flock(f, fcntl.LOCK_EX)
            signal.alarm(left)
            try: yield
            finally: self.clear()

    def clear(self):
        import torch
        gc.collect(); torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()

    def cap(self, bytes_):
        import torch
        torch.cuda.set_per_process_memory_fraction(1.0 if bytes_ is None else bytes_ / torch.cuda.get_device_properties(0).total_memory)

    def sync(self):
        import torch
        torch.cuda.synchronize()

    def peaks(self):
        import torch
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    def retries(self):
        """How often the allocator gave back what it had cached to find memory, which takes time."""
        import torch
        return torch.cuda.memory_stats().get('num_alloc_retries', 0)

    def batch(self, n): return n


class Dry(Card):
    """The processor in place of the GPU: two samples, and peaks that are made up."""
    device = 'cpu'

    def clear(self): gc.collect()

    def cap(self, bytes_): pass

    def sync(self): pass

    def peaks(self): return 7 * GIB, 8 * GIB

    def retries(self): return 0

    def batch(self, n): return 2


def built(name):
    """A model on the processor; weights are not initialised, which takes most of the time."""
    import torch
    from plans_zoo import PLANS
    from rounds import uninitialised
    torch.manual_seed(0)
    return uninitialised(PLANS[name]['build']).train()


def settled(model, device):
    """The model on the device, with weights of a usual size."""
    import torch
    model.to(device)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.dim() > 1: p.normal_(0, 0.02)
            elif n.endswith('bias'): p.zero_()
            else: p.nan_to_num_(0.5, 0.5, 0.5).clamp_(-1, 1)
    return model


def autocast(m, device):
    import torch
    return torch.autocast(device, dtype=torch.bfloat16, enabled=m['precision'] == 'amp-bf16')


def steps(card, model, m, batch, count=STEPS):
    """Training steps: allocated and reserved peaks over all of them, milliseconds of each."""
    import torch
    from rounds import loss_of
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    x, ms, retries = m['inputs'](card.batch(batch), card.device), [], card.retries()
    for _ in range(count):
        card.sync(); t = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with autocast(m, card.device): loss = loss_of(m['loss'], model(*x))
        loss.backward()
        optimizer.step()
        del loss
        card.sync(); ms.append(round(1e3 * (time.perf_counter() - t), 3))
    allocated, reserved = card.peaks()
    del optimizer, x
    for p in model.parameters(): p.grad = None
    return dict(allocated=allocated, reserved=reserved, ms=ms, retries=card.retries() - retries)


def tried(card, model, m, batch, **kw):
    """steps, or what they raised. What was on the card of them is gone."""
    try: out = steps(card, model, m, batch, **kw)
    except Late: raise
    except Exception as e:
        out = dict(err=said(e))
        e.__traceback__ = None
        for p in model.parameters(): p.grad = None
    card.clear()
    return out


def fatal(record): return any(s in json.dumps(record) for s in ('CUDA error', 'device-side assert', 'illegal memory'))


def gradients(card, model, m, batch):
    """A training step's loss and gradients, always with the same random numbers; BatchNorm's statistics move."""
    import torch
    from rounds import loss_of
    torch.manual_seed(1)
    x = m['inputs'](batch, card.device)
    with autocast(m, card.device): loss = loss_of(m['loss'], model(*x))
    loss.backward()
    out = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters(): p.grad = None
    return loss.detach(), out


def equal(a, b):
    """Whether all bits are alike; else the largest difference, relative to the largest gradient of its tensor."""
    import torch
    bits = lambda t: t.contiguous().view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[t.element_size()])
    if a[1].keys() != b[1].keys(): return dict(equal=False, missing=sorted(a[1].keys() ^ b[1].keys())[:5])
    pairs = [(a[0], b[0]), *((a[1][n], b[1][n]) for n in a[1])]
    if all(torch.equal(bits(x), bits(y)) for x, y in pairs): return dict(equal=True, tensors=len(pairs), finite=all(bool(torch.isfinite(x).all()) for x, _ in pairs))
    off = max(float((x.float() - y.float()).abs().max() / x.float().abs().max().clamp_min(1e-30)) for x, y in pairs)
    return dict(equal=False, tensors=len(pairs), off=off)


def bits(card, model, m, plan):
    """Gradients of two runs without checkpoints, and of one with them, at two samples, where PyTorch chooses kernels that repeat."""
    import memplan, torch
    kept = {n: b.clone() for n, b in model.named_buffers()}
    def fresh():
        with torch.no_grad():
            for n, b in model.named_buffers(): b.copy_(kept[n])
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first = gradients(card, model, m, 2); fresh()
        again = gradients(card, model, m, 2); fresh()
        memplan.checkpoint(model, plan)
        planned = gradients(card, model, m, 2)
        fresh()
        return dict(again=equal(first, again), plan=equal(first, planned))
    finally: torch.use_deterministic_algorithms(False)


def run_plan(card, job, folder):
    """A plan: applied, under its cap, against itself, against no checkpoints."""
    import memplan
    from plans_zoo import PLANS
    name, m, plan = job['name'], PLANS[job['name']], job['plan']
    peak = plan['peak']
    context, model = job['context'], built(name)
    selection = plan.get('selection') or []
    record = {k: job[k] for k in ('kind', 'name', 'cap', 'factor', 'largest', 'batch', 'planned')}
    record.update(library=m['library'], precision=m['precision'], optimizer='adamw', predicted=dict(
        allocated=peak['allocatedBytes'], reserved=peak['reservedBytes'], upper=peak['upperBoundBytes'], context=context, overhead=(plan.get('checkpoint') or {}).get('recomputeOverhead', 0.0),
        ms=plan['time']['stepMs'], regions=len(selection), keeping=sum(bool(s.get('save')) for s in selection), warnings=[w['code'] for w in plan['warnings']]))
    with card.alone():
        model = settled(model, card.device)
        if job['bits']:
            try: record['gradients'] = bits(card, model, m, plan)
            except Late: raise
            except Exception as e: record['gradients'] = dict(err=said(e))
            memplan.remove(model)
        card.clear()
        try: memplan.checkpoint(model, plan)
        except Exception as e:
            record.update(applied=False, err=said(e))
            return record
        record['applied'] = True
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter('always')
            card.cap(job['cap'] * GIB - context)
            try: record['capped'] = tried(card, model, m, job['batch'])
            finally: card.cap(None)
            record['warned'] = sorted({str(w.message)[:200] for w in heard if 'memplan' in str(w.filename) or 'memplan' in str(w.message)})[:3]
        if 'ms' in record['capped'] and not record['capped']['retries']: record['plan'] = record['capped']
        elif not fatal(record['capped']): record['plan'] = tried(card, model, m, job['batch'])
        memplan.remove(model)
        if not fatal(record): record['base'] = tried(card, model, m, job['batch'])
        del model
    return record


# ---- other ways to save memory ----

def lists(module):
    """Blocks: entries of a list that are of one class, which is not PyTorch's own; of lists in lists, those inside."""
    import torch
    def own(m): return type(m).__module__.startswith('torch.nn.')
    def inside(m):
        out = []
        kids = list(m.named_children())
        kinds = [type(c) for n, c in kids if n.isdigit() and not own(c)]
        for n, c in kids:
            deeper = inside(c)
            if n.isdigit() and not own(c) and kinds.count(type(c)) > 1: out += deeper if len(deeper) > 1 else [c]
            else: out += deeper
        return out
    found = inside(module)
    if found: return found
    kinds = [type(c) for c in module.modules() if not own(c)]
    out, taken = [], set()
    for c in module.modules():
        if c is not module and not own(c) and kinds.count(type(c)) > 1 and id(c) not in taken and type(c).forward is not torch.nn.Module.forward:
            out.append(c)
            taken.update(id(x) for x in c.modules())
    return out


def blocks_on(model, wrap):
    """Runs every block through wrap(forward)."""
    found = lists(model)
    for b in found: b.forward = wrap(b.forward)
    return found


def blocks_off(found):
    for b in found: b.__dict__.pop('forward', None)


def checkpointed(forward):
    from torch.utils.checkpoint import checkpoint
    return lambda *a, **k: checkpoint(forward, *a, use_reentrant=False, **k)


def offloaded(forward):
    """What a checkpointed block is given lies in the processor's memory until the backward pass, as Unsloth does it."""
    from torch.autograd.graph import save_on_cpu
    from torch.utils.checkpoint import checkpoint
    def run(*a, **k):
        with save_on_cpu(pin_memory=True): return checkpoint(forward, *a, use_reentrant=False, **k)
    return run


def way_blocks(model): return functools.partial(blocks_off, blocks_on(model, checkpointed)), dict(blocks=len(lists(model)))


def way_offload(model):
    found = blocks_on(model, offloaded)
    return functools.partial(blocks_off, found), dict(blocks=len(found))


def way_every(model):
    """every_n_layers of transformers: every second of the layers that it can checkpoint."""
    from transformers.modeling_layers import GradientCheckpointingLayer
    layers = [c for c in model.modules() if isinstance(c, GradientCheckpointingLayer)]
    if not layers: return None
    model.m.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    for i, c in enumerate(layers): c.gradient_checkpointing = i % EVERY == 0
    return model.m.gradient_checkpointing_disable, dict(blocks=len(layers), every=EVERY)


WAYS = {'every block': way_blocks, 'every_n_layers': way_every, 'offload': way_offload}


def rival(job, m, peaks, context):
    """The plan that takes no more than another way took: less allocated, less reserved."""
    import memplan
    vram, began = peaks['reserved'] + context, time.time()
    for _ in range(3):
        plan = memplan.plan(job['file'], batch=job['batch'], vram=vram, headroom=0, timeout='12s', **settings(m))
        if not plan.fits: return None, [w.message for w in plan.warnings if w.code.startswith('no-')][:2], time.time() - began
        over = plan.peak.allocated_bytes - peaks['allocated']
        if over <= 0: break
        vram -= over
    return plan, None, time.time() - began


def run_others(card, job, folder):
    """Every other way at the first case's batch, and for each the plan at its peak."""
    import memplan
    from plans_zoo import PLANS
    name, m = job['name'], PLANS[job['name']]
    record = dict(kind='others', name=name, library=m['library'], precision=m['precision'], batch=job['batch'], ways={})
    model = built(name)
    with card.alone():
        settled(model, card.device)
        card.clear()
        record['base'] = tried(card, model, m, job['batch'])
        model.to('cpu')
    for way, put in WAYS.items():
        if time.time() > job['deadline'] - 15 or fatal(record): break  # what there is counts
        if way == 'every_n_layers' and m['library'] != 'transformers': continue
        try: on = put(model)
        except Exception as e:
            record['ways'][way] = dict(err=said(e))
            continue
        if on is None or not on[1]['blocks']: continue
        with card.alone():
            model.to(card.device)
            card.clear()
            r = record['ways'][way] = dict(on[1], **tried(card, model, m, job['batch']))
            on[0]()
            model.to('cpu')
        if 'err' in r: continue
        plan, reason, r['planned'] = rival(job, m, r, job['context'])
        if plan is None:
            r['refused'] = reason
            continue
        r['predicted'] = dict(allocated=plan.peak.allocated_bytes, reserved=plan.peak.reserved_bytes, overhead=plan.checkpoint.recompute_overhead if plan.checkpoint else 0.0)
        try: memplan.checkpoint(model, plan.document) if plan.checkpoint and plan.checkpoint.segments else None
        except Exception as e:
            r['plan'] = dict(err=said(e))
            continue
        with card.alone():
            model.to(card.device)
            card.clear()
            r['plan'] = tried(card, model, m, job['batch'])
            memplan.remove(model)
            model.to('cpu')
    return record


def run_compile(card, job, folder):
    """torch.compile with a share of the activations' memory, and the plan at its peak, which eager PyTorch runs."""
    import memplan, torch
    from plans_zoo import PLANS
    name, m = job['name'], PLANS[job['name']]
    record = dict(kind='compile', name=name, library=m['library'], precision=m['precision'], batch=job['batch'], budgets={})
    for budget in (1.0, 0.5):
        if time.time() > job['deadline'] - 40: break
        torch._dynamo.reset()
        with torch._functorch.config.patch(activation_memory_budget=budget):
            model = settled(built(name), card.device)
            run, began = (model if card.device == 'cpu' else torch.compile(model)), time.time()
            warm = tried(card, run, m, job['batch'], count=2)  # compiles, beside others
            if 'err' in warm: record['budgets'][str(budget)] = warm
            else:
                with card.alone(): record['budgets'][str(budget)] = dict(tried(card, run, m, job['batch']), compiled=time.time() - began)
            del run, model
            card.clear()
    half = record['budgets'].get('0.5', {})
    if 'allocated' not in half: return record
    plan, reason, record['planned'] = rival(job, m, half, job['context'])
    with card.alone():
        model = settled(built(name), card.device)
        card.clear()
        record['base'] = tried(card, model, m, job['batch'])
        if plan is None: record['refused'] = reason
        else:
            record['predicted'] = dict(allocated=plan.peak.allocated_bytes, reserved=plan.peak.reserved_bytes, overhead=plan.checkpoint.recompute_overhead if plan.checkpoint else 0.0)
            if plan.checkpoint and plan.checkpoint.segments: memplan.checkpoint(model, plan.document)
            record['plan'] = tried(card, model, m, job['batch'])
        del model
    return record


RUNS = dict(plan=run_plan, others=run_others, compile=run_compile)


def worker(k, kinds, folder, out, deadline, dry):
    """Takes jobs until the time is over."""
    import torch
    import plans_zoo, memplan._fit
    torch.set_num_threads(2)
    jobs, card = Jobs(folder), (Dry if dry else Card)(folder)
    sys.stdout = sys.stderr = open(os.devnull, 'w')
    if not dry: torch.zeros(1, device='cuda')
    log(out, f'worker {k} is ready')
    if k == 0: about(out, dry)
    while time.time() < deadline - 6:
        job = jobs.take(kinds)
        if job is None:
            if os.path.exists(f'{folder}/prepared') and not jobs.waiting(): break
            time.sleep(0.3)
            continue
        began, limit = time.time(), dict(plan=75, others=100, compile=220)[job['kind']]
        job['deadline'] = deadline
        record = {k: job[k] for k in ('kind', 'name', 'cap', 'factor', 'batch') if k in job}
        try:
            with within(min(limit, max(1, deadline - 4 - time.time()))): record = RUNS[job['kind']](card, job, folder)
        except BaseException as e:
            record.update(err=said(e), where=traceback.format_exc()[-600:])
            with contextlib.suppress(Exception): card.cap(None); card.clear()
        record['seconds'] = round(time.time() - began, 1)
        emit(out, record)
        if fatal(record): os._exit(3)  # nothing runs in this process any more
    log(out, f'worker {k} ends')


# ---- from pip install to a step that fits ----

FIRST = '''
import sys, time, torch, memplan
which, dry = sys.argv[1], sys.argv[2] == 'dry'
if which == 'resnet50':
    import torchvision
    model, args, kwargs, batch = torchvision.models.resnet50(), (torch.randn(2, 3, 224, 224),), {}, 150
else:
    import transformers
    model, args, kwargs, batch = transformers.GPT2LMHeadModel(transformers.GPT2Config()), (), dict(input_ids=torch.randint(0, 50257, (2, 256)), use_cache=False), 32
fitted = memplan.fit(model, args, kwargs, vram='8G' if which == 'resnet50' else '12G', batch=batch, **({'gpu': 'h200'}))
print(fitted)
if not dry:
    p = fitted.plan
    print(memplan.measure(model, args, kwargs, plan=p, steps=1, vram_bytes=p.config['vramBytes'] - (p.peak.process_bytes - p.peak.reserved_bytes)))
'''


def first(which, out, wheel, dry):
    """The commands that a new user types, and what they take."""
    folder, took = tempfile.mkdtemp(), []
    with open(f'{folder}/train.py', 'w') as f: f.write(FIRST)
    env = dict(os.environ, PYTHONPATH=f'{folder}/site:' + os.environ.get('PYTHONPATH', ''))
    record = dict(kind='first', name=which, commands=[])
    commands = [[sys.executable, '-m', 'pip', 'install', '-q', '--no-index', '--no-deps', '--target', f'{folder}/site', wheel]] if wheel else []
    for c in commands + [[sys.executable, f'{folder}/train.py', which, 'dry' if dry else 'card']]:
        t = time.time()
        try: done = subprocess.run(c, env=env, capture_output=True, text=True, timeout=200)
        except subprocess.TimeoutExpired:
            record['err'] = 'more than 200 s'
            break
        record['commands'].append(dict(command=' '.join(os.path.basename(a) for a in c if not a.startswith('-'))[:120], seconds=round(time.time() - t, 1), rc=done.returncode, said=(done.stdout + done.stderr)[-700:]))
        if done.returncode: break
    record['seconds'] = round(sum(c['seconds'] for c in record['commands']), 1)
    emit(out, record)


# ---- all of it ----

def everything(out, seconds, names, dry):
    from plans_zoo import DRY, ORDER, PLANS
    began = time.time(); deadline = began + seconds - 12
    os.environ.update(BEGAN=str(began), TORCHINDUCTOR_COMPILE_THREADS='4')
    folder, spawn = tempfile.mkdtemp(), multiprocessing.get_context('spawn')
    os.makedirs(f'{folder}/models')
    os.makedirs(out, exist_ok=True)
    Jobs(folder)
    names = names or list(DRY if dry else ORDER)
    if dry: os.environ['SLOW'] = '20'
    cores = os.cpu_count() or 4
    wheels = [f for f in os.listdir(HERE) if f.startswith('memplan-') and f.endswith('.whl')]
    running = {}
    def start(k, target, *args):
        running[k] = (spawn.Process(target=target, args=args), target, args)
        running[k][0].start()
    gpu = 1 if dry else int(os.environ.get('WORKERS', 4))
    for k in range(gpu): start(k, worker, k, ('plan', 'others'), folder, out, deadline, dry)
    for k in range(1 if dry else 2): start(f'c{k}', worker, f'c{k}', ('compile',), folder, out, deadline, dry)
    if not dry or 'first' in os.environ.get('DRY', ''):
        for which in ('resnet50', 'gpt2'): start(which, first, which, out, f'{HERE}/{wheels[0]}' if wheels else '', dry)
    todo = [(n, i, out, folder) for i, n in enumerate(names)]
    preparing, most = [], max(1, min(11, cores - 5) if not dry else 2)
    hidden = dict(CUDA_VISIBLE_DEVICES='')
    died = 0
    try:
        while time.time() < deadline:
            preparing = [p for p in preparing if p.is_alive()]
            while todo and len(preparing) < most:
                os.environ.update(hidden)
                p = spawn.Process(target=prepare, args=(todo.pop(0),))
                p.start()
                os.environ.pop('CUDA_VISIBLE_DEVICES')
                preparing.append(p)
            if not todo and not preparing and not os.path.exists(f'{folder}/prepared'):
                compiles(folder, PLANS)
                open(f'{folder}/prepared', 'w').close()
                log(out, 'everything is prepared')
            elif not os.path.exists(f'{folder}/compiles'): compiles(folder, PLANS)
            for k, (p, target, args) in list(running.items()):
                if p.exitcode not in (None, 0) and died < 20:
                    died += 1
                    log(out, f'worker {k} died: {p.exitcode}')
                    if target is worker: start(k, target, *args)
                    else: running.pop(k)
            if all(p.exitcode == 0 for p, _, _ in running.values()) and not preparing and not todo: break
            time.sleep(0.5)
    finally:
        for p in [*preparing, *(p for p, _, _ in running.values())]:
            if p.is_alive():
                p.join(max(0.1, min(5, began + seconds - 6 - time.time())))
                if p.is_alive(): p.kill()
    log(out, f'jobs left: {Jobs(folder).waiting()}, models not begun: {len(todo)}')
    pack_models(out, f'{folder}/models', began + seconds - 1)
    shutil.rmtree(folder, ignore_errors=True)
    summary(out)


def compiles(folder, zoo):
    """The first cases of the models to compile become jobs of their own, once they are there."""
    seen = {f.split('-', 3)[3]: f for d in ('ready', 'taken') for f in os.listdir(f'{folder}/{d}') if f.startswith('1-others-')}
    for name in [n for n in zoo if zoo[n]['compiled']]:
        if name in seen and not os.path.exists(f'{folder}/compile-{name}'):
            path = next((p for d in ('ready', 'taken') if os.path.exists(p := f'{folder}/{d}/{seen[name]}')), None)
            if path is None: continue
            with open(path) as f: job = json.load(f)
            open(f'{folder}/compile-{name}', 'w').close()
            Jobs(folder).put(f'3-compile-000-{name}', dict(job, kind='compile'))


def about(out, dry):
    """The machine and its libraries."""
    import importlib.metadata as meta
    versions = {}
    for n in ('torch', 'torchvision', 'torchaudio', 'transformers', 'timm', 'diffusers', 'monai', 'vit-pytorch', 'memplan'):
        with contextlib.suppress(Exception): versions[n] = meta.version(n)
    import torch
    gpu = 'dry' if dry else f'{torch.cuda.get_device_name()}, {torch.cuda.get_device_properties(0).total_memory / GIB:.1f} GiB'
    emit(out, dict(kind='about', versions=versions, gpu=gpu, cores=os.cpu_count()))


def pack_models(out, folder, until):
    total = 0
    with tarfile.open(f'{out}/models.tar', 'w') as t:
        for f in sorted(os.listdir(folder)):
            if time.time() > until - 3 or total > 14 << 20 or not f.endswith('.onnx'): continue
            with open(f'{folder}/{f}', 'rb') as r, lzma.open(f'{folder}/{f}.xz', 'wb', preset=1) as w: shutil.copyfileobj(r, w)
            total += os.path.getsize(f'{folder}/{f}.xz')
            t.add(f'{folder}/{f}.xz', f + '.xz')


def summary(out):
    """A table for the eye."""
    with open(f'{out}/plans.jsonl') as f: records = [json.loads(l) for l in f]
    of = lambda kind: [r for r in records if r['kind'] == kind]
    plans = of('plan')
    print(f'{len(of("prepare"))} models prepared, {sum("err" in r for r in of("prepare"))} failed; {len(plans)} plans run, {len(of("refused"))} refused')
    print(f'applied {sum(bool(r.get("applied")) for r in plans)}, five steps under the cap {sum("allocated" in r.get("capped", {}) for r in plans)}')
    off = [abs(r['predicted']['allocated'] / r['plan']['allocated'] - 1) for r in plans if 'allocated' in r.get('plan', {})]
    if off: print(f'allocated peak off: median {100 * statistics.median(off):.2f}%, worst {100 * max(off):.2f}%')
    for r in plans:
        if 'ms' in r.get('plan', {}) and 'ms' in r.get('base', {}):
            o = statistics.median(r['plan']['ms'][2:]) / statistics.median(r['base']['ms'][2:]) - 1
            print(f'{r["name"]:28s} {r["cap"]:2d} GiB x{r["factor"]} batch {r["batch"]:5d}: overhead {100 * o:5.1f}% ({100 * r["predicted"]["overhead"]:5.1f}%), allocated off {100 * (r["predicted"]["allocated"] / r["plan"]["allocated"] - 1):+.2f}%, '
                  f'cap {"ok" if "allocated" in r["capped"] else r["capped"]["err"][:60]}, bits {r.get("gradients", {}).get("plan", {}).get("equal", "-")}')
        else: print(f'{r["name"]:28s} {r.get("err") or r.get("plan", {}).get("err") or r.get("base", {}).get("err")}')
    for r in records:
        if 'err' in r and r['kind'] != 'plan': print(r['kind'], r['name'], r['err'][:160])


def pack(folder, site):
    """A folder to carry: run.sh OUT SECONDS runs everything there."""
    os.makedirs(folder, exist_ok=True)
    for f in ('plans.py', 'plans_zoo.py', 'rounds.py', 'styles.py'): shutil.copy(f'{HERE}/{f}', folder)
    subprocess.run([sys.executable, f'{HERE}/../../python/wheels.py', '--platform', 'linux/amd64', '--out', folder], check=True)
    skip = lambda t: None if any(p in ('__pycache__', 'tests', 'bin', 'docs', 'test') for p in t.name.split('/')) else t
    with tarfile.open(f'{folder}/site.tar.xz', 'w:xz') as t:
        for d in sorted(os.listdir(site)):
            if d.split('-')[0].split('.')[0] in ('timm', 'diffusers', 'monai', 'vit_pytorch', 'einops'): t.add(f'{site}/{d}', d, filter=skip)
    with open(f'{folder}/run.sh', 'w') as f:
        f.write('set -e\nhere=$(cd "$(dirname "$0")" && pwd)\nmkdir -p /tmp/site /tmp/memplan\ntar -xJf "$here/site.tar.xz" -C /tmp/site\n'
                'python3 -m pip install -q --no-index --no-deps --upgrade --target /tmp/memplan "$here"/memplan-*.whl\nexport PYTHONPATH=/tmp/memplan:/tmp/site PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1\nexec python3 "$here/plans.py" all "$@"\n')
    print(subprocess.run(['du', '-sh', folder], capture_output=True, text=True).stdout.strip())


if __name__ == '__main__':
    if sys.argv[1] == 'list':
        from plans_zoo import ORDER, PLANS
        for n in ORDER: print(PLANS[n]['library'], n, PLANS[n]['precision'])
        print(len(ORDER))
    elif sys.argv[1] == 'pack': pack(sys.argv[2], sys.argv[3])
    elif sys.argv[1] == 'all':
        rest = [a for a in sys.argv[3:] if a != '--dry']
        everything(os.path.abspath(sys.argv[2]), float(rest[0]), rest[1:], '--dry' in sys.argv)
