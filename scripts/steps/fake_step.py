"""Peak memory of whole training steps and inferences without a GPU, one JSON line a run.

    python fake_step.py RUNS.jsonl OUT.jsonl [REGEX]     runs of rounds.py's models: name, batch, prec, opt, mode
    python fake_step.py traces OUT.jsonl TRACES          holds them against the allocator's traces of the same runs

Runs the real module, its loss, backward and optimizer under FakeTensorMode on tensors of device type cuda, which dispatch as CUDA's do on a
machine that has none, and follows every storage from the operator that makes it to the moment when the last reference goes: Python's,
autograd's or the optimizer's. Each storage counts with its bytes rounded up to 512. The first step and a steady one are run; per phase the
most bytes that lived, parameters, buffers, inputs, gradients and optimizer state included.

What it does not see: what kernels allocate inside (library workspaces, cuDNN's and cuBLAS's scratch, temporaries of one ATen kernel,
layouts that cuDNN chooses), and how the caching allocator rounds, splits and keeps blocks. Temporaries between two ATen calls of a backward
formula are seen.

The autograd engine asks a device for a stream, which no machine without a GPU has. `Engine` does its work here: nodes by
sequence number, accumulation in place where it may be, saved tensors let go after their node, gradients taken over by AccumulateGrad."""
import gc, heapq, json, os, re, signal, sys, traceback, warnings, weakref

warnings.filterwarnings('ignore')
os.environ['CUDA_VISIBLE_DEVICES'] = ''
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', 'pytorch')]
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import saved_reference as reference

torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # autocast on a machine without a GPU
torch.cuda.is_bf16_supported = lambda *a, **k: True
sys.modules['torch.optim.adam']._get_value = lambda step: 1.0  # steps are fake: they have no value
PHASES = ('zero_grad', 'forward', 'backward', 'optimizer')


def rounded(n): return -(-n // 512) * 512


def kept_by_mse(args):
    """The scalar that CUDA's mse_loss returns keeps the storage of the squared differences."""
    return args[0].numel() * args[0].element_size() if len(args) < 3 or args[2] else 0


class Recorder(TorchDispatchMode):
    """Counts the storages on the device."""

    def __init__(self):
        super().__init__()
        self.known, self.now, self.peak, self.most, self.at, self.live = {}, 0, 0, 0, None, None

    def meet(self, t, op, least=0):
        if not isinstance(t, torch.Tensor) or t.device.type != 'cuda': return
        storage = t.untyped_storage()
        key, size = storage._cdata, rounded(max(storage.nbytes(), least))
        if key in self.known or size == 0: return
        self.known[key] = (size, op)
        self.now += size
        self.peak = max(self.peak, self.now)
        if self.now > self.most:
            self.most, self.at = self.now, op
            if self.live is not None: self.live = dict(self.known)
        weakref.finalize(storage, self.gone, key, size)

    def gone(self, key, size):
        if self.known.pop(key, None): self.now -= size

    def take(self):
        """The peak since the last call."""
        peak, self.peak = self.peak, self.now
        return peak

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        least = kept_by_mse(args) if func is torch.ops.aten.mse_loss.default else 0
        for t in torch.utils._pytree.tree_leaves(out): self.meet(t, str(func), least)
        if reference.STATE['efficient'] and isinstance(out, tuple) and 'efficient' in str(func):
            for t in out[2:]:  # the state of its random numbers is on the CPU; the fake kernel says otherwise
                self.gone(t.untyped_storage()._cdata, rounded(t.untyped_storage().nbytes()))
        return out


class Packed:
    """A saved tensor, and way to let go of it."""

    def __init__(self, t): self.t = t


class Engine:
    """torch::autograd::Engine for one device."""

    def __init__(self):
        self.unpacked = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: Packed(t.detach()), self.unpack)

    def unpack(self, p):
        self.unpacked.append(p)
        return p.t

    def backward(self, loss):
        root = loss.grad_fn
        dependencies, stack, seen = {}, [root], {root}
        while stack:
            for n, _ in stack.pop().next_functions:
                if n is None: continue
                dependencies[n] = dependencies.get(n, 0) + 1
                if n not in seen: seen.add(n); stack.append(n)
        one = torch.ones_like(loss)
        buffers, queue, count = {root: {0: one}}, [(-root._sequence_nr(), 0, root)], 0
        with torch.no_grad():
            while queue:
                _, _, node = heapq.heappop(queue)
                outs = self.call(node, buffers.pop(node))
                self.release(node)
                for i, (n, nr) in enumerate(node.next_functions):
                    if n is None: continue
                    out, outs[i] = (outs[i], None) if i < len(outs) else (None, None)
                    accumulate(buffers.setdefault(n, {}), nr, out)
                    out = None
                    dependencies[n] -= 1
                    if dependencies[n] == 0:
                        count += 1
                        heapq.heappush(queue, (-n._sequence_nr(), count, n))

    def call(self, node, grads):
        """The node's outputs; its inputs are gone when it returns."""
        if type(node).__name__ == 'AccumulateGrad':
            g = grads.pop(0, None)
            if g is not None: keep_gradient(node.variable, g, sys.getrefcount(g) > 3)  # the name, the argument, the question
            return []
        args = [grads.pop(i, None) for i in range(max(grads, default=0) + 1)]
        if all(a is None for a in args): return [None] * len(node.next_functions)
        if hasattr(node, 'apply'):
            outs = python_outputs(node, args)
        else:
            outs = node(*args, *[None] * (len(node._input_metadata) - len(args)))
            outs = list(outs) if isinstance(outs, tuple) else [outs]
        validate(node, outs)
        return outs

    def release(self, node):
        for p in self.unpacked: p.t = None
        self.unpacked.clear()
        for name in dir(node):
            if name.startswith('_raw_saved_'):
                saved = getattr(node, name)
                for s in saved if isinstance(saved, (tuple, list)) else [saved]:
                    p = getattr(s, 'data', None)
                    if isinstance(p, Packed): p.t = None


def validate(node, outs):
    """validate_outputs: gradients get the shapes and types of what they are gradients of."""
    for i, (n, nr) in enumerate(node.next_functions):
        if n is None or i >= len(outs) or outs[i] is None: continue
        meta = n.variable if type(n).__name__ == 'AccumulateGrad' else n._input_metadata[nr]
        if outs[i].shape != meta.shape: outs[i] = outs[i].sum_to_size(meta.shape)
        if outs[i].dtype != meta.dtype: outs[i] = outs[i].to(meta.dtype)


def python_outputs(node, args):
    """Outputs of a torch.autograd.Function written in Python, one for each tensor of its inputs."""
    meta = node._input_metadata
    args += [None] * (len(meta) - len(args))
    if getattr(node, 'materialize_grads', True):
        args = [torch.zeros(m.shape, dtype=m.dtype, device=m.device) if a is None else a for a, m in zip(args, meta)]
    outs = node.apply(*args)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    edges = node.next_functions
    while len(outs) > len(edges) and None in outs: outs.remove(None)
    return outs


def accumulate(buffer, nr, var):
    """InputBuffer::add."""
    old = buffer.get(nr)
    if old is None or var is None:
        buffer[nr] = var if old is None else old
        return
    del buffer[nr]
    if sole(old, 4): old.add_(var); buffer[nr] = old
    elif sole(var, 5): var.add_(old); buffer[nr] = var
    else: buffer[nr] = old + var


def sole(t, refs):
    """Whether only the caller's buffer holds t and its storage."""
    storage = t.untyped_storage()
    return sys.getrefcount(t) <= refs and torch._C._storage_Use_Count(storage._cdata) <= 2 and torch.ops.aten.is_non_overlapping_and_dense(t)


def keep_gradient(variable, g, shared):
    """AccumulateGrad: takes the gradient over where nobody else holds it and its strides are the variable's."""
    if variable.grad is not None:
        variable.grad.add_(g)
    else:
        fits = all(s == 1 or a == b for s, a, b in zip(g.shape, g.stride(), variable.stride())) and g.dtype == variable.dtype
        variable.grad = g.detach() if fits and not shared else torch.empty_like(variable).copy_(g)


def step(model, x, loss, optimizer, prec, recorder):
    """One training step: the peak of each phase, bytes after each."""
    r = {}

    def end(phase):
        gc.collect() if phase == 'zero_grad' else None
        r[phase], r['after_' + phase] = recorder.take(), recorder.now
    optimizer.zero_grad(set_to_none=True)
    end('zero_grad')
    engine = Engine()

    def forward():
        with reference.autocast(torch.bfloat16) if prec == 'amp-bf16' else reference.contextlib.nullcontext():
            out = model(*x)
            return loss(out)
    with engine.hooks: l = forward()
    end('forward')
    engine.backward(l)
    end('backward')
    optimizer.step()
    end('optimizer')
    del l
    return r


OPT = {'sgd': lambda p: torch.optim.SGD(p, lr=1e-3, foreach=True), 'adamw': lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True)}


def record(build, inputs, loss, batch, prec='fp32', opt='adamw', mode='train', live=False):
    """The peaks of a training step or of an inference of the module that build() makes."""
    torch.manual_seed(0)
    model = build()
    if prec == 'bf16': model = model.to(torch.bfloat16)
    model.train() if mode == 'train' else model.eval()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake: model = reference.faked(model)
    recorder = Recorder()
    with fake, reference.attention('auto', True), reference.nothing_masked():
        x = inputs(batch, 'cuda')
        if prec == 'bf16': x = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in x)
        with recorder:
            for t in [*model.parameters(), *model.buffers(), *x]: recorder.meet(t, 'resident')
            if live: recorder.live = {}
            if mode == 'infer':
                with torch.no_grad(), reference.autocast(torch.bfloat16) if prec == 'amp-bf16' else reference.contextlib.nullcontext():
                    for _ in range(2):  # what modules keep of the call before is there
                        recorder.take()
                        start = recorder.now
                        out = model(*x)
                        del out
                return dict(peak=recorder.take(), at=recorder.at, start=start, **(dict(live=recorder.live) if live else {}))
            o = OPT[opt]([p for p in model.parameters() if p.requires_grad])
            r = [step(model, x, loss, o, prec, recorder) for _ in range(2)]
    return dict(peak=max(v for s in r for k, v in s.items() if not k.startswith('after_')), at=recorder.at, first_step=r[0], steady=r[1], **(dict(live=recorder.live) if live else {}))


class Late(Exception): pass


def late(*_): raise Late('too late')


def main():
    from rounds import ROUNDS, loss_of, uninitialised
    signal.signal(signal.SIGALRM, late)
    torch.set_num_threads(1)
    with open(sys.argv[2], 'a') as out:
        for r in map(json.loads, open(sys.argv[1])):
            if len(sys.argv) > 3 and not re.search(sys.argv[3], r['name']): continue
            z = ROUNDS[r['name']]
            key = {k: r[k] for k in ('name', 'batch', 'prec', 'opt', 'mode')}
            signal.alarm(300)
            try: got = record(lambda: uninitialised(z['build']), z['inputs'], lambda o: loss_of(z['loss'], o), r['batch'], r['prec'], r['opt'], r['mode'])
            except Exception as e:
                got = dict(err=(type(e).__name__ + ': ' + str(e)).replace('\n', ' ')[:300])
                if os.environ.get('SHOW'): traceback.print_exc()
            finally: signal.alarm(0)
            out.write(json.dumps({**key, **got}) + '\n'); out.flush()
            gc.collect()


def rise(path):
    """The most that a traced step's live bytes rise, without and with what a call frees itself: freed before the next call's first
    allocation, and not all that the call made. And the peak that the allocator showed."""
    import lzma
    lines = lzma.open(path, 'rt').read().split('\n')
    call, last, of, size, freed, made = 0, None, {}, {}, {}, {}
    events = [l.split(' ') for l in lines[1:] if l]
    for e in events:
        if e[1] == '+':
            label = (e[0], e[4], e[6], e[7])
            call, last = call + (label != last), label
            of[e[2]], size[e[2]], made[call] = call, rounded(int(e[3])), made.get(call, 0) + 1
        elif e[1] == '-' and e[2] != 'old': freed[e[2]] = call
    inner = {i for i, c in of.items() if freed.get(i) == c and made[c] > 1}
    now, most = [0, 0], [0, 0]
    for e in events:
        if e[1] not in '+-': continue
        n = rounded(int(e[3])) if e[2] == 'old' else size[e[2]]
        for k in (0, 1):
            if k or e[2] not in inner: now[k] += n if e[1] == '+' else -n
            most[k] = max(most[k], now[k])
    return (*most, json.loads(lines[0])['allocated_peak'])


def traces(out, folder):
    """How far the recorded rise is from the traced one, in parts of the peak, by kind of run; a call's temporaries may be between two ATen calls."""
    errors = {}
    for r in map(json.loads, open(out)):
        path = f"{folder}/{r['name']}.b{r['batch']}.{r['prec']}.{r['opt'] if r['mode'] == 'train' else 'infer'}.trace.xz"
        if 'err' in r or 'steady' not in r and 'start' not in r or not os.path.exists(path): continue
        s = r.get('steady')
        got = max(s[p] for p in PHASES[1:]) - s['zero_grad'] if s else r['peak'] - r['start']
        least, most, peak = rise(path)
        e = (min(got - least, 0) + max(got - most, 0)) / peak
        errors.setdefault((r['mode'], r['prec']), []).append(abs(e))
        if abs(e) > 0.002: print(f"{100 * e:+.2f}% {r['name']} {r['batch']} {r['prec']} {r['mode']}: {got}, traced {least} to {most}")
    print('| runs | | median | 95% of runs | worst |\n|---|---|---|---|---|')
    for (mode, prec), e in errors.items():
        e.sort()
        print(f'| {mode} {prec} | {len(e)} | {100 * e[len(e) // 2]:.3f}% | {100 * e[int(0.95 * (len(e) - 1))]:.2f}% | {100 * e[-1]:.2f}% |')


if __name__ == '__main__':
    if sys.argv[1] == 'traces': traces(*sys.argv[2:])
    else: main()
