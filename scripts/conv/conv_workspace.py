"""The table of package graph/cudnn: the workspaces that cuDNN's heuristic asks for.

Commands, in order (Linux, x86-64; step 2 needs an H200 with torch 2.11.0+cu130 and cuDNN 9.19, the others no GPU):

    python scripts/conv/conv_workspace.py collect SHAPES.jsonl
    gcc -O1 -w -I"$CUDNN/include" -I"$CUDA/include" scripts/conv/conv_heuristic.c -o conv_heuristic -L"$CUDNN/lib" -l:libcudnn.so.9
    python scripts/conv/conv_workspace.py measure ./conv_heuristic SHAPES.jsonl MEASURED.jsonl.xz [PROCESSES]
    python scripts/conv/conv_workspace.py build MEASURED.jsonl.xz graph/cudnn/h200.table graph/cudnn/testdata/sample.jsonl

$CUDNN is the folder nvidia/cudnn of site-packages, $CUDA the toolkit's; at run time its lib and that of nvidia/cu13 are in LD_LIBRARY_PATH. `collect` needs
torch, torchvision and timm on a CPU; `measure` takes about a minute for each 500,000 rows on 16 cores; several MEASURED files may be
given to `build`, separated by commas.

PyTorch (benchmark off) takes the first engine configuration of cuDNN's instant heuristic, or else of the fallback list, that its
filter lets pass, and asks the allocator for that plan's workspace (aten/src/ATen/native/cudnn/Conv_v8.cpp). `measure` asks the same
question through cuDNN's backend interface without running a convolution. Run it on the GPU: without one and its driver, cuDNN gave other
workspaces for up to half of the passes, though told the same device in JSON. Its answers were equal to what PyTorch took from its
allocator in 47,000 contiguous passes and in 3,583 of 3,585 channels-last ones (it had none for the other two), but where PyTorch runs
a depthwise kernel of its own or the plan does not fit the card.

A convolution is 16 integers C H W K R S strideH strideW padH padW dilH dilW groups transposed outPadH outPadW, of three dims six more
(depths of input and kernel, strideD padD dilD outPadD), a batch N and a type:
tf32, fp16, bf16, fp32 (TF32 forbidden), and tf32n, fp16n, bf16n for channels-last tensors. A line of MEASURED is
[convolution, class, {type: [[N...], [forward...], [data gradient...], [weight gradient...]]}] in bytes, null for no answer; classes: 0
a network at its own resolution, 1 at another, 2 a grid around them.

The committed table holds, besides what `measure` gives now, rows of earlier lists of shapes (transformers' and segmentation models, more
batches) in the same format, so that a new one differs in the shapes that it knows.

conv_families.py learns from the same files what convolutions take that are not in the table.

The table never sees the convolutions of `held_out`: `build` writes a sample of them, and of others, for the tests in Go.
"""
import collections, json, lzma, random, struct, sys

TYPES = ['tf32', 'fp16', 'bf16', 'fp32', 'tf32n', 'fp16n', 'bf16n']  # their numbers in the table
ELEM = {'tf32': 4, 'bf16': 2, 'fp16': 2, 'fp32': 4}
BATCHES = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512]
FEW = [1, 4, 16, 32, 64, 256]
SMALL = 4096


def read_lines(paths):
    for path in paths.split(','):
        with (lzma.open(path, 'rt') if path.endswith('.xz') else open(path)) as f:
            for line in f:
                if line.strip(): yield json.loads(line)


# ---- convolutions ---------------------------------------------------------------------------------------------------------------------

def out_size(k):
    c, h, w, K, r, s, sh, sw, ph, pw, dh, dw, g, tr, oh, ow = k[:16]
    if tr: return (h - 1) * sh - 2 * ph + dh * (r - 1) + 1 + oh, (w - 1) * sw - 2 * pw + dw * (s - 1) + 1 + ow
    return (h + 2 * ph - dh * (r - 1) - 1) // sh + 1, (w + 2 * pw - dw * (s - 1) - 1) // sw + 1


def depth(k):
    """The input's and output's depth, 1 of two dims."""
    if len(k) == 16: return 1, 1
    d, t, stride, pad, dil, more = k[16:]
    return d, (d - 1) * stride - 2 * pad + dil * (t - 1) + 1 + more if k[13] else (d + 2 * pad - dil * (t - 1) - 1) // stride + 1


def depthwise(k): return k[12] > 1 and k[12] == k[0] and k[3] % k[0] == 0 and not k[13]


def pointwise(k): return k[4] == k[5] == k[6] == k[7] == k[12] == 1 and k[8] == k[9] == 0


def own_depthwise(k, n, t):
    """PyTorch runs its own kernel, without workspace, for depthwise convolutions other than some of fp16 and most channels-last ones
    (aten/src/ATen/native/Convolution.cpp, use_cudnn_depthwise). Kept equal to OwnDepthwise in Go."""
    c, h, w, K, r, s, sh, sw, ph, pw, dh, dw, g, tr = k[:14]
    if not depthwise(k): return False
    if len(k) > 16: return not t.endswith('n')
    if t.endswith('n'): return n * c * h * w >= 1 << 31
    if t != 'fp16' or c < 32 or (dh, dw) != (1, 1) or not (sh == sw or h == 1): return True
    if h == 1 and sw == 1: return False
    if r != s or s not in (1, 3, 5) or w < 7: return True
    if sw == 1: return False
    if sw != 2: return True
    if n == 1: return not (s != 1 or w <= 28)
    return not (n <= 16 and c >= 128 and w <= 7 if s == 1 else c >= 512 or c >= 256 and w >= 28)


def fnv(ints):
    h = 0xcbf29ce484222325
    for v in ints:
        for b in v.to_bytes(4, 'little'): h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return h ^ h >> 32


def held_out(k, cls): return cls == 2 and fnv(k) % 10 == 0


# ---- measuring ------------------------------------------------------------------------------------------------------------------------

def collect(out):
    """The convolutions of torchvision's and timm's models, run on the meta device, and the same at other resolutions."""
    import timm, torch, torchvision
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = {}

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            if f is torch.ops.aten.convolution.default and args[0].dim() == 4:
                x, w, _, st, pad, dil, tr, op, g = args
                k = (*x.shape[1:], w.shape[1] * g if tr else w.shape[0], *w.shape[2:], *st, *pad, *dil, g, int(tr), *op)
                seen[k] = min(seen.get(k, 2), self.cls)
            return f(*args, **(kwargs or {}))
    models = [(f'torchvision.{n}', lambda n=n: torchvision.models.get_model(n, weights=None)) for n in torchvision.models.list_models()]
    models += [(f'timm.{n}', lambda n=n: timm.create_model(n)) for n in timm.list_models()]
    record = Record()
    for name, make in models:
        try:
            with torch.device('meta'): model = make().eval()
        except Exception as e: print(name, 'skipped:', str(e)[:80]); continue
        own = getattr(model, 'default_cfg', {}).get('input_size', (3, 224, 224))[-1]
        for size in [own] + [s for s in (128, 160, 192, 224, 256, 288, 320, 384, 448, 512, 640) if s != own]:
            record.cls = 0 if size == own else 1
            try:
                with record, torch.no_grad(): model(torch.empty(1, 3, size, size, device='meta'))
            except Exception: pass
    rng = random.Random(1)
    for k in sorted(seen):  # around them: one extent changed
        for _ in range(2):
            q, i = list(k), rng.choice([0, 1, 3])
            v = q[i] * rng.choice([1, 3, 5, 7, 9]) // rng.choice([2, 4, 8])
            if i == 1: q[1] = q[2] = max(v, 2 * q[4])
            elif q[12] == 1 and v > 0: q[i] = v
            if min(out_size(q)) > 0: seen.setdefault(tuple(q), 2)
    with open(out, 'w') as f:
        for k, cls in sorted(seen.items()): f.write(json.dumps([k, cls], separators=(',', ':')) + '\n')


def wanted(k, cls):
    """The batches to ask for, by type."""
    if depthwise(k): return {'fp16': [4, 32, 128], 'tf32n': BATCHES, 'bf16n': BATCHES, 'fp16n': BATCHES}
    half = {'fp16': [2, 8, 32, 128], 'fp16n': [2, 8, 32, 128]}
    if not pointwise(k): return {'tf32': BATCHES, 'bf16': BATCHES, 'tf32n': BATCHES, 'bf16n': BATCHES, 'fp32': [1, 8, 64], **half}
    if cls < 2: return {'tf32': FEW, 'bf16': FEW, 'tf32n': FEW, 'bf16n': FEW, 'fp16': [8, 64]}
    return {'tf32': [2, 16, 128], 'bf16': [2, 16, 128]}


def measure(program, shapes, out, processes=16):
    import concurrent.futures, subprocess
    rows = []
    for k, cls, *types in read_lines(shapes):
        p, q = out_size(k)
        for t, ns in (types[0] if types else wanted(k, cls)).items():
            for n in ns:
                d_in, d_out = depth(k)
                if max(n * k[0] * d_in * k[1] * k[2], n * k[3] * d_out * p * q) < 1 << 31: rows.append((tuple(k), cls, t, n))
    random.Random(1).shuffle(rows)

    def ask(part):
        text = ''.join(' '.join(map(str, (n, *k[:14], t, *k[14:]))) + '\n' for k, _, t, n in part)
        got = [[None] * 3 for _ in part]
        for line in subprocess.run([program], input=text, capture_output=True, text=True).stdout.split('\n'):
            a = line.split(' ')
            if len(a) == 4: got[int(a[0]) - 1][int(a[1])] = int(a[2])
        return got
    parts = [rows[i:i + 3000] for i in range(0, len(rows), 3000)]
    table = collections.defaultdict(lambda: collections.defaultdict(dict))
    with concurrent.futures.ThreadPoolExecutor(int(processes)) as pool:
        for part, got in zip(parts, pool.map(ask, parts)):
            for (k, cls, t, n), ws in zip(part, got): table[k, cls][t][n] = ws
    write_measured(table, out)


def write_measured(table, out):
    with lzma.open(out, 'wt', preset=9) as f:
        for (k, cls), rec in sorted(table.items()):
            rec = {t: [sorted(d)] + [[d[n][p] for n in sorted(d)] for p in range(3)] for t, d in sorted(rec.items())}
            f.write(json.dumps([k, cls, rec], separators=(',', ':')) + '\n')


# ---- the table ------------------------------------------------------------------------------------------------------------------------

# Workspaces are copies of tensors in another layout and a rest: for x, w and y 0 none, 1 a copy, 2 one with channels padded to 16 bytes.
BASES = [(1, 1, 1), (1, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0),
         (2, 2, 2), (2, 1, 2), (2, 2, 0), (2, 0, 2), (2, 0, 0), (2, 2, 1), (1, 2, 2), (1, 2, 1), (2, 1, 0), (2, 0, 1), (2, 1, 1), (1, 1, 2), (1, 0, 2), (0, 2, 2)]


def sizes(k, n, t):
    c, h, w, K, r, s, g = *k[:6], k[12]
    e = ELEM[t.rstrip('n')]; al = 16 // e; up = lambda v: -(-v // al) * al
    p, q = out_size(k)
    return ((0, n * c * h * w * e, n * up(c) * h * w * e), (0, K * (c // g) * r * s * e, (up(c) * up(K) if g == 1 else up(c // g) * up(K // g) * g) * r * s * e),
            (0, n * K * p * q * e, n * up(K) * p * q * e))


def base_bytes(b, sz): return sum(s[i] for s, i in zip(sz, BASES[b]))


def regimes(k, t, ns, ws):
    """For each batch (base, rest), None unknown, (-1, 0) nothing at all; the base whose rest most batches share, then the one with the least rest."""
    cands = []
    for n, w in zip(ns, ws):
        sz = sizes(k, n, t)
        cands.append({b: w - base_bytes(b, sz) for b in range(len(BASES)) if w >= base_bytes(b, sz)} if w else {})
    count = collections.Counter(item for c in cands for item in c.items())
    return [None if w is None else (-1, 0) if w == 0 else min(c.items(), key=lambda i: (-count[i] if i[1] < SMALL or count[i] > 1 else 0, i[1], i[0]))
            for w, c in zip(ws, cands)]


def interpolate(samples, k, t, n, p):
    """As interpolate in Go."""
    known = [(m, r[p]) for m, r in samples if r[p] is not None]
    if not known: return None
    def of(r, m=n): return 0 if r[0] < 0 else r[1] + base_bytes(r[0], sizes(k, m, t))
    def at(m, r): return of(r, m) if of(r, m) < SMALL else of(r)
    i = next((i for i, (m, _) in enumerate(known) if m >= n), len(known))
    if i < len(known) and (known[i][0] == n or i == 0): return at(*known[i])
    if i == len(known): return at(*known[-1])
    (lo, a), (hi, b) = known[i - 1:i + 1]
    if a[0] == b[0] >= 0 and of(a, lo) >= SMALL:
        return of(a) if a[1] == b[1] else of(a, lo) + (of(b, hi) - of(a, lo)) * (n - lo) // (hi - lo)
    return at(lo, a) if n * n < lo * hi else at(hi, b)


def thin(samples, k, t, ws):
    """Leaves out samples that the others give within 0.1 %."""
    kept = list(range(len(samples)))
    for j in range(len(samples)):
        if len(kept) == 1: break
        rest = [i for i in kept if i != j]
        at = [samples[i] for i in rest]
        lo = max((i for i in rest if i < j), default=-1); hi = min((i for i in rest if i > j), default=len(samples))
        if all(ws[p][i] is None or abs(interpolate(at, k, t, samples[i][0], p) - ws[p][i]) * 1000 <= ws[p][i]
               for i in range(lo + 1, hi) for p in range(3)
               if any(s[1][p] is not None for s in at) or ws[p][i] is not None and any(ws[p][m] is not None for m in rest)) \
                and all(any(s[1][p] is not None for s in at) or all(v is None for v in ws[p]) for p in range(3)):
            kept = rest
    return [samples[i] for i in kept]


def varint(v):
    out = bytearray()
    while v > 127: out.append(v & 127 | 128); v >>= 7
    return bytes(out + bytes([v]))


def groups(measured):
    for k, cls, rec in read_lines(measured):
        k = tuple(k)
        for t, (ns, *ws) in rec.items():
            keep = [i for i, n in enumerate(ns) if not own_depthwise(k, n, t)]
            if keep: yield k, cls, t, [ns[i] for i in keep], [[w[i] for i in keep] for w in ws]


BLOCK = 64  # groups of a block


def packed(bodies):
    """Blocks of groups, sorted by their keys: what a reader needs of one group is found without reading the others (graph/cudnn/table.go)."""
    index, starts, blocks = sorted(bodies), [], bytearray()
    for i, key in enumerate(index):
        last = index[i - 1] if i % BLOCK else (-1,) * len(key)
        if i % BLOCK == 0: starts.append(len(blocks))
        blocks += varint(sum(1 << c for c, (a, b) in enumerate(zip(key, last)) if a != b))
        for a, b in zip(key, last):
            if a != b: blocks += varint(a)
        blocks += varint(len(bodies[key])) + bodies[key]
    return struct.pack(f'<I{len(starts)}I', len(starts), *starts) + bytes(blocks)


def build(measured, table, sample):
    merged, least = {}, {}
    for k, cls, _ in read_lines(measured): least[tuple(k)] = min(cls, least.get(tuple(k), 2))
    for k, cls, t, ns, ws in groups(measured):
        rows = merged.setdefault((t, k), [least[k], {}])[1]
        rows.update(zip(ns, zip(*ws)))
    bodies, points, tests = {}, 0, []
    for (t, k), (cls, rows) in merged.items():
        ns = sorted(rows); ws = list(zip(*(rows[n] for n in ns)))
        if fnv(k) % 10 == 0: tests += [(held_out(k, cls), k, t, n, rows[n]) for n in ns]
        if held_out(k, cls): continue
        rs = [regimes(k, t, ns, w) for w in ws]
        samples = thin([(n, [r[i] for r in rs]) for i, n in enumerate(ns)], k, t, ws)
        points += len(samples)
        body, last = bytearray(varint(len(samples))), 0
        for n, r in samples:
            body += varint(n - last); last = n
            for x in r: body += b'\xff' if x is None else bytes([x[0] + 1]) + (varint(x[1]) if x[0] >= 0 else b'')
        bodies[(TYPES.index(t),) + k] = bytes(body)
    data = packed(bodies)
    with open(table, 'wb') as f: f.write(data)
    print(len(bodies), 'convolutions,', points, 'samples,', len(data), 'bytes')
    rng = random.Random(1)
    with open(sample, 'w') as f:
        for held, most in ((True, 1600), (False, 400)):
            rows = [q for q in tests if q[0] == held]
            for _, k, t, n, ws in sorted(rng.sample(rows, min(most, len(rows)))):
                f.write(json.dumps(dict(held=held, conv=k, type=t, n=n, ws=ws), separators=(',', ':')) + '\n')


if __name__ == '__main__':
    commands = {'collect': collect, 'measure': measure, 'build': build}
    if len(sys.argv) < 3 or sys.argv[1] not in commands: sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
