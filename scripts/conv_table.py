"""The table of package graph/cudnn: what cuDNN's heuristic asks for the convolutions of real networks.

    python conv_table.py collect SHAPES.json                      convolutions of torchvision and timm, run on the meta device
    ./conv_heuristic describe > h200.json                         on the GPU that the table is for; conv_heuristic.c says how to build it
    python conv_table.py ask SHAPES.json h200.json OUT.jsonl      the workspaces, without a GPU: minutes
    python conv_table.py table OUT.jsonl... ../graph/cudnn/h200.flate

PyTorch (benchmark off) takes the first engine configuration of cuDNN's instant heuristic that its filter lets pass, and asks the
allocator for that plan's workspace; conv_heuristic asks the same question. Its answers were compared with what PyTorch really took
(torch 2.11, cuDNN 9.19, H200; shared with the tests as conv_workspace.jsonl.xz): all but four of 15,905 random convolutions agree.

A line of OUT.jsonl is [geometry, class, {type: [batches, forward, data gradient, weight gradient]}], a geometry 16 integers: C H W K R S
strideH strideW padH padW dilH dilW groups transposed outPadH outPadW. Types: tf32, fp16, bf16; with an n, channels last. Depthwise
convolutions are asked for channels-last only: PyTorch runs a kernel of its own for the others (aten/src/ATen/native/Convolution.cpp,
use_cudnn_depthwise).
"""
import json, lzma, struct, subprocess, sys, zlib

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
CODES = {'tf32': 0, 'fp16': 1, 'bf16': 2, 'tf32n': 3, 'fp16n': 4, 'bf16n': 5}
SIZES = {'tf32': 4, 'fp16': 2, 'bf16': 2}
BASES = [(1, 1, 1), (1, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0)]  # of x, w, y; as in graph/cudnn/table.go
SMALL = 4096  # bytes, below which a workspace is kept as it is


def lines(path):
    with (lzma.open(path, 'rt') if path.endswith('.xz') else open(path)) as f:
        for line in f: yield json.loads(line)


def depthwise(k): return k[12] > 1 and k[12] == k[0] and k[3] % k[0] == 0 and not k[13]


def collect(out):
    import torch, torchvision.models as tv
    from torch.utils._python_dispatch import TorchDispatchMode
    found = set()
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kw=None):
            if f is torch.ops.aten.convolution.default:
                x, w, _, st, pad, dil, tr, op, g = args
                two = lambda v, one: (one, v[0]) if len(v) == 1 else tuple(v)
                if x.dim() in (3, 4):
                    c, (h, wd), (r, s) = x.shape[1], two(x.shape[2:], 1), two(w.shape[2:], 1)
                    found.add((c, h, wd, w.shape[1] * g if tr else w.shape[0], r, s, *two(st, 1), *two(pad, 0), *two(dil, 1), g, int(tr), *two(op, 0)))
            return f(*args, **(kw or {}))
    def run(name, build):
        for size in (224, 160, 192, 256, 288, 299, 384, 512):
            try:
                with torch.device('meta'), torch.no_grad(), Watch(): build().eval()(torch.empty(1, 3, size, size))
            except Exception as e: print(name, size, str(e)[:80], file=sys.stderr)
    for n in tv.list_models(): run(n, lambda: tv.get_model(n, weights=None))
    try:
        import timm
        for n in timm.list_models(): run(n, lambda: timm.create_model(n))
    except ImportError: print('no timm: its models are left out', file=sys.stderr)
    json.dump(sorted(found), open(out, 'w'))


def ask(shapes, device, out):
    todo = [(k, t) for k in json.load(open(shapes)) for t in (('tf32n', 'fp16n', 'bf16n') if depthwise(k) else CODES)]
    text = '\n'.join(' '.join(map(str, [n, *k, t])) for k, t in todo for n in BATCHES) + '\n'
    answers = subprocess.run(['./conv_heuristic', device], input=text, capture_output=True, text=True, check=True).stdout.split('\n')
    with open(out, 'w') as f:
        for i, (k, t) in enumerate(todo):
            sizes = [list(map(int, answers[i * len(BATCHES) + j].split())) for j in range(len(BATCHES))]
            f.write(json.dumps([k, 0, {t: [BATCHES] + [[s[p] if s[p] >= 0 else None for s in sizes] for p in range(3)]}], separators=(',', ':')) + '\n')


def uvarint(v):
    out = bytearray()
    while v >= 128: out.append(v & 127 | 128); v >>= 7
    out.append(v)
    return bytes(out)


def operands(k, n, size):
    c, h, w, K, r, s, sh, sw, ph, pw, dh, dw, g, tr, oh, ow = k
    if tr: p, q = (h - 1) * sh - 2 * ph + dh * (r - 1) + 1 + oh, (w - 1) * sw - 2 * pw + dw * (s - 1) + 1 + ow
    else: p, q = (h + 2 * ph - dh * (r - 1) - 1) // sh + 1, (w + 2 * pw - dw * (s - 1) - 1) // sw + 1
    return n * c * h * w * size, K * (c // g) * r * s * size, n * K * p * q * size


def regime(ws, xwy):
    """The base that leaves the least rest, as the byte of the table and what follows it."""
    if ws is None: return b'\xff'
    if ws == 0: return b'\x00'
    best = (len(BASES) - 1, ws)
    for i, b in enumerate(BASES):
        rest = ws - sum(m * v for m, v in zip(b, xwy))
        if 0 <= rest < best[1]: best = (i, rest)
    return bytes([best[0] + 1]) + uvarint(best[1])


def table(inputs, out):
    groups = {}
    for path in inputs:
        for k, _, rec in lines(path):
            for t, (ns, *ws) in rec.items():
                if t in CODES and (t.endswith('n') or not depthwise(k) or t == 'fp16'): groups.setdefault((CODES[t], *k), {}).update((n, (t, [p[i] for p in ws])) for i, n in enumerate(ns))
    index, data = [], bytearray()
    for key in sorted(groups):
        index.append(len(data))
        data += b''.join(map(uvarint, key)) + uvarint(len(groups[key]))
        last = 0
        for n, (t, ws) in sorted(groups[key].items()):
            data += uvarint(n - last) + b''.join(regime(w, operands(key[1:], n, SIZES[t.rstrip('n')])) for w in ws)
            last = n
    raw = struct.pack('<II', len(index), len(data)) + struct.pack('<%dI' % len(index), *index) + bytes(data)
    z = zlib.compressobj(9, zlib.DEFLATED, -15)
    open(out, 'wb').write(z.compress(raw) + z.flush())
    print(len(index), 'geometries and types,', len(raw), 'bytes')


if __name__ == '__main__':
    cmd, args = sys.argv[1], sys.argv[2:]
    {'collect': lambda: collect(*args), 'ask': lambda: ask(*args), 'table': lambda: table(args[:-1], args[-1])}[cmd]()
