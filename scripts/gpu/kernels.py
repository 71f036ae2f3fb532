"""How long the kernels take that most of a step's time goes to, over random shapes: what planner/pace.go's rates are fitted to.

    python kernels.py OUT.jsonl.xz SECONDS [SEED] [--conv] [--cpu]

A case a line, [kind, type, shape, microseconds ...], kinds mixed, until the time is over: so any length of run has some of each; --conv: convolutions alone. The GPU sleeps
before each call, so that its kernels follow one another without waiting for the host; the least of three after one that is not counted. Types are
f32 (for products without TF32, as PyTorch's default has it; cuDNN's convolutions with it, which is their default), tf32, bf16 and f16.

| kind | shape | times |
|---|---|---|
| mm | layout (of aten::mm's operands: n as they lie, t transposed), m, n, k | one product |
| bmm | layout, matrices, m, n, k | one |
| addmm | layout, m, n, k | with a bias |
| sdpa | batch, heads, queries, keys, width, causal | forward, backward |
| conv | dims, batch, channels in, out, groups, sizes, window, stride, padding, dilation, transposed, channels last | forward, gradient of the input, of the weight |
| batch_norm, layer_norm, group_norm, rms_norm, softmax, gelu, silu | shape of the input | forward, backward |
| add, copy, transpose, sum, cat | shape | one |
| embedding | words, width, indices | forward, backward |
| pool | batch, channels, size | forward, backward |
"""
import json, lzma, math, random, sys, time

import torch

SLEEP = 900_000  # cycles, half a millisecond
DEV = 'cpu' if '--cpu' in sys.argv else 'cuda'
SCALE = 1e-3 if DEV == 'cpu' else 1  # to try the script
TYPES = dict(f32=torch.float32, tf32=torch.float32, bf16=torch.bfloat16, f16=torch.float16)
aten = torch.ops.aten


class Times:
    """The least of three of a function's device time, in microseconds."""

    def __call__(self, f):
        if DEV == 'cpu':
            t0 = time.perf_counter(); f(); return round(1e6 * (time.perf_counter() - t0), 1)
        best = None
        for i in range(4):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(); torch.cuda._sleep(SLEEP); a.record()
            f()
            b.record(); torch.cuda.synchronize()
            t = a.elapsed_time(b)
            if i and (best is None or t < best): best = t
            if i and t > 30: break
        return round(1e3 * (best or t), 2)


timed = Times()


class Gen(random.Random):
    def dim(self, low, high):
        """A size, over a logarithmic scale, in three of four cases a multiple of what people choose."""
        v = low * (high / low) ** self.random()
        for q in (64, 8):
            if v >= 4 * q and self.random() < 0.55: return int(v / q) * q
        return max(int(v), 1)

    def pick(self, *kinds): return self.choice(kinds)


def tensor(shape, t, transposed=False):
    if transposed: return torch.randn(*shape[:-2], shape[-1], shape[-2], device=DEV, dtype=TYPES[t]).transpose(-1, -2)
    return torch.randn(shape, device=DEV, dtype=TYPES[t])


def product(g, t):
    kind = g.choices(['mm', 'bmm', 'addmm'], [5, 3, 2])[0]
    most = 3e11 if t == 'f32' else 2e12
    while True:
        if kind == 'bmm': shape = [g.dim(2, 1024), g.dim(4, 4096), g.dim(4, 4096), g.dim(4, 2048)]
        else: shape = [g.dim(1, 100000), g.dim(8, 50000), g.dim(8, 20000)]
        b, (m, n, k) = (shape[0] if kind == 'bmm' else 1), shape[-3:]
        if 2 * b * m * n * k < most * SCALE and b * (m * k + k * n + m * n) < 1.5e9 * SCALE: break
    lay = g.pick('nn', 'nt', 'tn')
    lead = [b] if kind == 'bmm' else []
    a, c = tensor(lead + [m, k], t, lay[0] == 't'), tensor(lead + [k, n], t, lay[1] == 't')
    bias = tensor([n], t)
    f = {'mm': lambda: aten.mm(a, c), 'bmm': lambda: aten.bmm(a, c), 'addmm': lambda: aten.addmm(bias, a, c)}[kind]
    return kind, [lay, *shape], [timed(f)]


def both(f, x, *weights):
    """Forward and backward of a function of a tensor and its weights."""
    x.requires_grad_(True)
    y = f(x)
    g = torch.randn_like(y)
    with torch.no_grad(): forward = timed(lambda: f(x))
    back = timed(lambda: torch.autograd.grad(y, (x, *weights), g, retain_graph=True))
    return [forward, back]


def sdpa(g, t):
    while True:
        b, h, q, d = g.dim(1, 64), g.pick(1, 4, 6, 8, 12, 16, 20, 32), g.dim(16, 8192), g.pick(16, 32, 40, 64, 64, 64, 80, 96, 128, 128, 256)
        k = q if g.random() < 0.8 else g.dim(16, 4096)
        if b * h * q * k * d * 4 < (1e12 if t != 'f32' else 2e11) * SCALE and b * h * (q + k) * d < 3e8 * SCALE: break
    causal = q == k and g.random() < 0.5
    x = [tensor([b, h, s, d], t).requires_grad_(True) for s in (q, k, k)]
    y = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal)
    go = torch.randn_like(y)
    forward = timed(lambda: torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal))
    return 'sdpa', [b, h, q, k, d, int(causal)], [forward, timed(lambda: torch.autograd.grad(y, x, go, retain_graph=True))]


def conv(g, t):
    """Half are 3 x 3 or 1 x 1 as most are; others have windows, strides, dilations, groups and sizes of all kinds, or are transposed."""
    F = torch.nn.functional
    dims = g.choices([1, 2, 3], [3, 14, 3])[0]
    plain = g.random() < 0.5
    while True:
        b, cin, cout = g.dim(1, 512), g.dim(8, 2048) if g.random() < 0.92 else g.pick(1, 2, 3, 4), g.dim(8, 2048) if g.random() < 0.95 else g.pick(1, 2, 3, 10)
        size = [g.dim(4, {1: 20000, 2: 384, 3: 128}[dims])] * dims
        if not plain and dims > 1 and g.random() < 0.3: size[-1] = g.dim(4, 384)
        k, groups = g.choices([1, 3], [1, 1])[0] if plain else g.choices([1, 2, 3, 4, 5, 7, 9, 11, 16, 31], [3, 3, 4, 3, 3, 3, 1, 1, 1, 1 if dims < 3 else 0])[0], 1
        if g.random() < 0.15: groups, cout = cin, cin
        elif g.random() < 0.1:
            groups = g.pick(2, 4, 8, 16, 32)
            cin, cout = max(cin // groups, 1) * groups, max(cout // groups, 1) * groups
        stride = g.choices([1, 2], [4, 1])[0] if plain else g.choices([1, 2, 4, k], [5, 3, 1, 2])[0]
        dilation = 1 if plain else g.choices([1, 2, 4, 8], [8, 1, 1, 1])[0]
        pad = 0 if g.random() < 0.15 else dilation * (k - 1) // 2
        turned = groups == 1 and dilation == 1 and g.random() < 0.12
        if min(size) + 2 * pad < dilation * (k - 1) + 1: continue
        if turned: out = [(n - 1) * stride - 2 * pad + k for n in size]
        else: out = [(n + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for n in size]
        if min(out) < 1: continue
        x, y = b * cin * math.prod(size), b * cout * math.prod(out)
        work = 2 * b * (math.prod(size) if turned else math.prod(out)) * cin * cout // groups * k ** dims
        if work < 1.5e12 * SCALE and x + y < 4e8 * SCALE: break
    w = tensor([cin, cout] + [k] * dims if turned else [cout, cin // groups] + [k] * dims, t).requires_grad_(True)
    f = getattr(F, f'conv{"_transpose" if turned else ""}{dims}d')
    call = (lambda x: f(x, w, None, stride, pad)) if turned else (lambda x: f(x, w, None, stride, pad, dilation, groups))
    x, last = tensor([b, cin] + size, t), dims == 2 and g.random() < 0.2
    if last: x, w = x.to(memory_format=torch.channels_last), w.detach().to(memory_format=torch.channels_last).requires_grad_(True)
    x.requires_grad_(True)
    y = call(x)
    go = torch.randn_like(y)
    with torch.no_grad(): us = [timed(lambda: call(x))]
    us += [timed(lambda: torch.autograd.grad(y, of, go, retain_graph=True)) for of in (x, w)]
    return 'conv', [dims, b, cin, cout, groups, size, k, stride, pad, dilation, int(turned), int(last)], us


def rows(g):
    w = g.dim(16, 16384)
    n = g.dim(16, max(2e8 * SCALE / w, 17))
    return [n, w]


def image(g):
    c, s = g.dim(3, 2048), g.dim(4, 256)
    return [g.dim(1, max(2e8 * SCALE / (c * s * s), 2)), c, s, s]


def norm(g, t):
    F = torch.nn.functional
    kind = g.pick('batch_norm', 'layer_norm', 'layer_norm', 'group_norm', 'rms_norm')
    s = image(g) if kind in ('batch_norm', 'group_norm') else rows(g)
    c = s[1]
    if kind == 'group_norm': c = s[1] = max(c // 32, 1) * 32
    w, b = (torch.ones(c, device=DEV, dtype=TYPES[t]).requires_grad_(True) for _ in range(2))
    wb, bb = w.float().detach().requires_grad_(True), b.float().detach().requires_grad_(True)
    if kind == 'batch_norm': return kind, s, both(lambda x: F.batch_norm(x, None, None, wb, bb, True), tensor(s, t), wb, bb)
    if kind == 'group_norm': return kind, s, both(lambda x: F.group_norm(x, 32, w, b), tensor(s, t), w, b)
    if kind == 'rms_norm': return kind, s, both(lambda x: F.rms_norm(x, [c], w), tensor(s, t), w)
    return kind, s, both(lambda x: F.layer_norm(x, [c], w, b), tensor(s, t), w, b)


def pointwise(g, t):
    F = torch.nn.functional
    s = rows(g)
    x = tensor(s, t)
    kind = g.pick('softmax', 'gelu', 'silu', 'add', 'copy', 'transpose', 'sum', 'cat', 'cross_entropy')
    if kind in ('softmax', 'gelu', 'silu'): return kind, s, both({'softmax': lambda x: F.softmax(x, -1), 'gelu': F.gelu, 'silu': F.silu}[kind], x)
    if kind == 'cross_entropy':
        target = torch.randint(0, s[1], [s[0]], device=DEV)
        return kind, s, both(lambda x: F.cross_entropy(x, target), x)
    if kind == 'transpose':
        s = [g.dim(1, 64), g.dim(16, 1024), g.dim(2, 32), g.dim(8, 128)]
        x = tensor(s, t).transpose(1, 2)
    return kind, s, [timed({'add': lambda: x + x, 'copy': lambda: x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32), 'transpose': lambda: x.contiguous(),
                            'sum': lambda: x.sum(0), 'cat': lambda: torch.cat((x, x), -1)}[kind])]


def lookup(g, t):
    F = torch.nn.functional
    if g.random() < 0.5:
        words, width, n = g.dim(100, 200000), g.dim(16, 4096), g.dim(64, 100000)
        while words * width > 4e8 or n * width > 2e8: words, n = words // 2, n // 2
        w = tensor([words, width], t).requires_grad_(True)
        ids = torch.randint(0, words, [n], device=DEV)
        y = F.embedding(ids, w)
        go = torch.randn_like(y)
        return 'embedding', [words, width, n], [timed(lambda: F.embedding(ids, w)), timed(lambda: torch.autograd.grad(y, w, go, retain_graph=True))]
    s = image(g)
    return 'pool', s, both(lambda x: F.max_pool2d(x, 3, 2, 1), tensor(s, t))


def main(path, seconds, seed):
    g, t0, n, failed = Gen(seed), time.time(), 0, 0
    warm = torch.randn(4096, 4096, device=DEV)
    for _ in range(30 if DEV == 'cuda' else 0): warm @ warm
    with lzma.open(path, 'wt', preset=6) as out:
        card = torch.cuda.get_device_name() if DEV == 'cuda' else 'cpu'
        out.write(json.dumps(dict(torch=torch.__version__, cudnn=torch.backends.cudnn.version(), card=card, date=time.strftime('%Y-%m-%d'), command='python ' + ' '.join(['kernels.py', *sys.argv[1:]]))) + '\n')
        while time.time() - t0 < seconds:
            make, types = g.choices([(product, ['f32', 'f32', 'tf32', 'bf16', 'bf16', 'f16']), (sdpa, ['f32', 'bf16', 'bf16', 'f16']), (conv, ['f32', 'f32', 'bf16', 'f16']), (norm, ['f32', 'bf16']), (pointwise, ['f32', 'bf16']), (lookup, ['f32', 'bf16'])],
                                    [0, 0, 1, 0, 0, 0] if '--conv' in sys.argv else [40, 8, 26, 10, 12, 4])[0]
            t = g.choice(types)
            torch.backends.cuda.matmul.allow_tf32 = t == 'tf32'
            try: kind, shape, us = make(g, t)
            except Exception as e:
                failed += 1
                if 'out of memory' in str(e): torch.cuda.empty_cache()
                elif failed < 9: print(make.__name__, t, str(e)[:150], flush=True)
                if 'device-side' in str(e) or 'illegal' in str(e): break
                continue
            out.write(json.dumps([kind, t, shape, *us], separators=(',', ':')) + '\n')
            n += 1
            if n % 300 == 0 and DEV == 'cuda': torch.cuda.empty_cache()
    print(n, 'calls,', failed, 'failed,', round(time.time() - t0, 1), 's', flush=True)


if __name__ == '__main__':
    words = [a for a in sys.argv[1:] if not a.startswith('--')]
    if len(words) < 2: sys.exit(__doc__)
    main(words[0], float(words[1]), int(words[2]) if len(words) > 2 else 1)
