"""The kernel families of package graph/cudnn: which formula gives a convolution's workspace that was not measured.

    python scripts/conv/conv_families.py grid NETWORKS.jsonl SHAPES.jsonl
    python scripts/conv/conv_families.py wide SHAPES.jsonl
    python scripts/conv/conv_families.py deep SHAPES.jsonl
    python scripts/conv/conv_workspace.py measure ./conv_heuristic SHAPES.jsonl GRID.jsonl.xz
    python scripts/conv/conv_families.py train MEASURED.jsonl.xz,GRID.jsonl.xz graph/cudnn/h200.trees

(numpy and scikit-learn; ten minutes and 10 GB on one core, less time with more processes, train's last argument.) `grid` lists
convolutions with usual extents (images of 4 to 256, 3 to 2048 channels, kernels of 1, 3, 5 and 7 with stride 1 and 2, dilated, grouped,
transposed, of patches) and, from the output of conv_workspace.py's `collect`, networks' convolutions with one or two extents changed.
`train` explains each measured workspace by a formula (`family`), grows for each kind of types and each computation a decision tree that
tells the formula from the geometry, and writes them. The committed trees were grown on the table's convolutions and 2,400,000 of such
lists, as many as eleven minutes were enough for. Convolutions with fnv(geometry) % 10 == 0 are never trained on: the tests in Go and
`train` measure with those.

These trees are for images of the extents of `grid`; conv_forest.py grows those for all others, on rows of conv_survey.py. `deep` and `wide` list the
convolutions of graph/cudnn/testdata/random.jsonl.

Convolutions are described as cuDNN computes them: x[n,C,H,W] * w[K,C/g,R,S] -> y[n,K,P,Q], so that a transposed one's forward is a
data gradient (OP 1). A family is a base (bytes of operands' copies, or transforms) and a rest:

    0        nothing
    1 m      m partial sums of the weight in fp32
    2 m      m MiB
    3 i      partial sums of stream-K: the tiles of the last, partial wave over 132 multiprocessors, split along the inner dimension;
             i numbers tile, cluster and the least iterations of a split
    4 m      m partial sums of the weight in fp32 with input channels padded to 32
    5 m, 6 m and with input and output channels padded to 64, to 128
    7 m      m partial sums of the weight as a matrix in fp32, output channels padded to 256 and its other extent to 128

and a constant, the most frequent one.

Everything is integer arithmetic, the same in graph/cudnn/family.go.
"""
import collections, concurrent.futures, json, multiprocessing, random, struct, sys

import numpy as np

import conv_workspace as cw

KINDS = [['tf32'], ['fp16', 'bf16'], ['fp32'], ['tf32n'], ['fp16n', 'bf16n']]  # types that share trees
TILES = [(128, 128), (128, 64), (256, 128), (256, 64), (64, 64), (128, 256), (64, 128), (64, 256)]
CLUSTERS = [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 2), (1, 5), (5, 1), (1, 6), (6, 1), (1, 7), (7, 1), (1, 8), (8, 1),
            (2, 4), (4, 2), (2, 3), (3, 2), (2, 8), (8, 2), (4, 4)]
SPLITS = [7, 14, 24, 48, 100]  # iterations of a split, at least
PARTS = list(range(1, 65)) + list(range(66, 133, 2)) + [144, 160, 176, 192, 196, 208, 224, 256, 264, 288, 320, 352]
FLAT = [1, 1, 0, 1, 0]  # kernel's depth, stride, pad, dilation and output pad of two dims
SMALL = 4096  # bytes of constants, below
WORTH = 1  # rows that a split must explain beyond those that its halves do alone
MIB = [1, 2, 4, 8, 16, 24, 32, 64, 96, 128]


def cdiv(a, b): return -(-a // b)


def up(a, b): return cdiv(a, b) * b


# ---- convolutions to measure ----------------------------------------------------------------------------------------------------------

def grid(networks, out):
    images = [4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224, 256]
    channels = [3, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 960, 1024, 1280, 2048]
    outputs = [k for k in channels if k not in (3, 40, 80, 112, 960)]
    batches = [1, 2, 4, 6, 8, 16, 32, 64, 128]
    rng = random.Random(11)
    want = collections.defaultdict(lambda: collections.defaultdict(set))

    def add(types, ns, c, h, k, r, s, stride, dil=1, g=1, tr=0):
        if h < r: return
        pad = (dil * (r - 1) // 2, dil * (s - 1) // 2) if stride != r or r == 1 else (0, 0)
        for t in types:
            want[c, h, h, k, r, s, stride, stride, *pad, dil, dil, g, tr, 0, 0][t].update(n for n in ns if n * h * h * max(c, k) <= 4e8)
    tensor = ['tf32', 'bf16', 'fp16']
    for h in images:
        for c in channels:
            for k in outputs:
                for r in (1, 3, 5, 7):
                    for stride in (1, 2): add(tensor, batches, c, h, k, r, r, stride); add(['fp32'], [1, 8, 64], c, h, k, r, r, stride)
                for dil in (2, 4): add(tensor, batches, c, h, k, 3, 3, 1, dil)
                add(tensor, batches, c, h, k, 2, 2, 2, tr=1)
                if c in (3, 96, 192, 384):
                    for r in (4, 8, 16): add(tensor, batches, c, h, k, r, r, r)
            for stride in (1, 2):
                for r in (3, 5, 7): add(['fp16'], batches, max(c, 16), h, max(c, 16), r, r, stride, g=max(c, 16))
    for _ in range(420000):
        g = rng.choice([2, 4, 8, 16, 32])
        c, k = (max(g, v // g * g) for v in (rng.choice(channels), rng.choice(outputs)))
        add([rng.choice(tensor)], [rng.choice(batches)], c, rng.choice(images), k, 3, 3, rng.choice([1, 1, 1, 2]), g=g)
    for _ in range(220000):
        r, s = rng.choice([(1, 3), (1, 7), (3, 1), (7, 1)])
        add([rng.choice(tensor)], [rng.choice(batches)], rng.choice(channels), rng.choice(images), rng.choice(outputs), r, s, rng.choice([1, 1, 1, 2]))
    for k, _ in cw.read_lines(networks):
        for _ in range(64):
            q = list(k)
            for i in rng.sample([0, 1, 3], rng.choice([1, 1, 2])):
                v = max(1, q[i] * rng.choice([1, 2, 3, 4, 5, 6, 7, 9, 10, 12]) // rng.choice([2, 4, 8]))
                if i == 1: q[1] = q[2] = max(v, 2 * q[4])
                elif q[12] == 1: q[i] = v if rng.random() < .3 or v < 16 else v // 8 * 8
            last = ['tf32n', 'bf16n', 'fp16n']
            t, n = rng.choice(last if cw.depthwise(q) else tensor + last), rng.choice(batches + [12, 24, 48, 96, 192, 256])
            if min(cw.out_size(q)) > 0: want[tuple(q)][t].add(n)
    with open(out, 'w') as f:
        for k, types in sorted(want.items()): f.write(json.dumps([k, 2, {t: sorted(ns) for t, ns in sorted(types.items())}], separators=(',', ':')) + '\n')


def extent(rng, low, high):
    """A number between low and high, each magnitude as likely; three in four are multiples of 8 or another usual number."""
    v = int(low * (high / low) ** rng.random())
    kind = rng.random()
    if kind < .4: v = 1 << max(v.bit_length() - 1, 0)
    elif kind < .6: v = v // 8 * 8 or v
    elif kind < .8 and v >= 16: v = (v >> v.bit_length() - 2) << v.bit_length() - 2
    return max(low, min(v, high))


def write_random(out, count, draw, batch):
    rng, want = random.Random(12), collections.defaultdict(lambda: collections.defaultdict(set))
    for _ in range(count):
        k = draw(rng)
        out_depth = cw.depth(k)
        p, q = cw.out_size(k)
        if min(p, q, *out_depth) < 1: continue
        each = max(k[0] * out_depth[0] * k[1] * k[2], k[3] * out_depth[1] * p * q)
        for t in rng.sample(cw.TYPES, 3):
            ns = {extent(rng, 1, batch) for _ in range(3)}
            want[k][t].update(n for n in ns if n * each <= 1.5e9)
    with open(out, 'w') as f:
        for k, types in sorted(want.items()):
            if types := {t: sorted(ns) for t, ns in sorted(types.items()) if ns}: f.write(json.dumps([k, 2, types], separators=(',', ':')) + '\n')


def usual_groups(rng, c, k, tr):
    g = rng.choice([1] * 14 + [2, 4, 8, 32, c])
    if g == c and tr == 0: k = c * rng.choice([1, 1, 1, 2])
    return max(1, c // g) * g, max(1, k // g) * g, g


def wide(out, count='60000'):
    """Convolutions of one dim, and of two with extents and batches beyond `grid`."""
    def draw(rng):
        tr = int(rng.random() < .12)
        c, k, g = usual_groups(rng, extent(rng, 1, 4096), extent(rng, 1, 4096), tr)
        if rng.random() < .6:
            r, s = 1, rng.choice([1, 1, 2, 3, 3, 3, 4, 5, 5, 7, 8, 9, 11, 13, 15, 16, 17, 20, 25, 31, 32, 48, 63, 64, 80])
            h, w = 1, extent(rng, 1, 200000 if c < 64 else 8192)
        else:
            r = s = rng.choice([1, 1, 2, 3, 3, 3, 4, 5, 5, 7, 7, 8, 9, 10, 11, 14, 16, 32])
            h = extent(rng, 1, 1024)
            w = h if rng.random() < .8 else extent(rng, 1, 1024)
        dil = rng.choice([1] * 8 + [2, 4, 8, 16, 64])
        stride = rng.choice([1, 1, 1, 2, 2, max(s // 2, 1), s])
        pad = rng.choice([0, dil * (s - 1) // 2, dil * (s - 1) // 2, dil * (s - 1) if h == 1 and not tr else 0])
        more = rng.choice([0, min(1, stride - 1)]) if tr else 0
        one = h == 1 and r == 1
        return c, h, w, k, r, s, 1 if one else stride, stride, 0 if one else pad, pad, 1 if one else dil, dil, g, tr, 0 if one else more, more
    write_random(out, int(count), draw, 4096)


def deep(out, count='80000'):
    """Convolutions of three dims."""
    kernels = [(1, 1, 1)] * 4 + [(3, 3, 3)] * 8 + [(1, 3, 3), (3, 1, 1)] * 3 + [(2, 2, 2)] * 2 + [(5, 5, 5), (7, 7, 7), (3, 7, 7), (1, 7, 7), (7, 1, 1), (1, 5, 5), (5, 1, 1), (4, 4, 4),
                                                                                             (2, 16, 16), (16, 16, 16), (2, 4, 4), (1, 2, 2), (8, 8, 8), (5, 7, 7), (3, 5, 5)]

    def draw(rng):
        tr = int(rng.random() < .2)
        c, k, g = usual_groups(rng, extent(rng, 1, 1024), extent(rng, 1, 1024), tr)
        t, r, s = rng.choice(kernels)
        h = extent(rng, 1, 256)
        w = h if rng.random() < .85 else extent(rng, 1, 256)
        d = h if rng.random() < .4 else extent(rng, 1, 128)
        stride = rng.choice([1, 1, 1, 2, 2, r])
        sd = rng.choice([stride, stride, 1, t])
        dil = rng.choice([1] * 12 + [2, 4])
        pads = [rng.choice([0, dil * (m - 1) // 2, dil * (m - 1) // 2])] * 2 if (m := s) else []
        pd = dil * (t - 1) // 2 if pads[0] or r == 1 else 0
        more, md = (rng.choice([0, min(1, v - 1)]) if tr else 0 for v in (stride, sd))
        return c, h, w, k, r, s, stride, stride, *pads, dil, dil, g, tr, more, more, d, t, sd, pd, dil, md
    write_random(out, int(count), draw, 512)


# ---- geometry ---------------------------------------------------------------------------------------------------------------------------

class Geometry:
    """Columns of extents as cuDNN sees them, for rows (22 extents, type, batch); depths are multiplied into the rows."""

    def __init__(self, rows):
        c, h, w, k, r, s, sh, sw, ph, pw, dh, dw, g, tr, oh, ow, d, depth, sd, pd, dd, od, t, n = rows.T
        p = np.where(tr == 1, (h - 1) * sh - 2 * ph + dh * (r - 1) + 1 + oh, (h + 2 * ph - dh * (r - 1) - 1) // sh + 1)
        q = np.where(tr == 1, (w - 1) * sw - 2 * pw + dw * (s - 1) + 1 + ow, (w + 2 * pw - dw * (s - 1) - 1) // sw + 1)
        p = p * np.where(tr == 1, (d - 1) * sd - 2 * pd + dd * (depth - 1) + 1 + od, (d + 2 * pd - dd * (depth - 1) - 1) // sd + 1)
        h, r = h * d, r * depth
        swap = lambda a, b: (np.where(tr == 1, b, a), np.where(tr == 1, a, b))
        self.n, self.R, self.S, self.G, self.stride, self.dil, self.pad = n, r, s, g, sh, np.maximum(dh, dw), ph
        (self.C, self.K), (self.H, self.P), (self.W, self.Q) = swap(c, k), swap(h, p), swap(w, q)
        self.fp16 = (t % 4 == 1).astype(np.int64)
        self.last = t >= 4
        self.e = np.array([4, 2, 2, 4, 4, 2, 2])[t]
        self.align = 16 // self.e


def features(o):
    """What the trees may ask for. Kept equal to features in Go."""
    low = lambda v: np.minimum(64, v & -v)
    n, C, K, R, S = o.n, o.C, o.K, o.R, o.S
    hw, pq, cg, kg, rs = o.H * o.W, o.P * o.Q, C // o.G, K // o.G, R * S
    tiles = lambda m, k, a, b: cdiv(m, a) * cdiv(k, b)
    f = [n, C, K, hw, pq, n * pq, n * hw, R, S, rs, o.stride, o.dil, o.G, cg, kg, low(cg), low(kg), low(hw), low(pq), o.W, o.Q,
         tiles(n * pq, K, 128, 128), tiles(n * hw, C, 128, 128), tiles(cg, kg, 128, 128) * rs, tiles(cg * rs, kg, 128, 128), cg * rs, kg * rs,
         (o.pad * 2 + 1 == R).astype(np.int64), cg * kg * rs, n * pq * cg * kg * rs // 1000, n * pq // (cg * rs), n * pq * 1024 // kg,
         cg * 1024 // kg, tiles(n * pq, K, 64, 64), tiles(n * hw, C, 64, 64), tiles(n * pq, K, 128, 128) % 132, tiles(cg, kg, 64, 64) * rs, o.fp16, o.pad]
    return np.stack(f, 1).astype(np.float32)


# ---- families ---------------------------------------------------------------------------------------------------------------------------

def bases(o, op):
    """Bytes of each base, by its number. Kept equal to baseBytes in Go."""
    n, C, K, G, R, S, e, al = o.n, o.C, o.K, o.G, o.R, o.S, o.e, o.align
    cg, kg, hw, pq, rs = C // G, K // G, o.H * o.W, o.P * o.Q, R * S
    x, w, y = n * C * hw * e, K * cg * rs * e, n * K * pq * e
    xp, yp, wp = n * up(C, al) * hw * e, n * up(K, al) * pq * e, up(cg, al) * up(kg, al) * G * rs * e
    # copies into channels-last order: none where that changes nothing
    xn, wn, yn = np.where(o.last | (hw == 1) | (C == 1), 0, x), np.where(o.last | (rs == 1) | (cg == 1), 0, w), np.where(o.last | (pq == 1) | (K == 1), 0, y)
    odd = lambda v: v % al != 0
    px, py, pw = np.where(odd(cg), xp, xn), np.where(odd(kg), yp, yn), np.where(odd(cg) | odd(kg), wp, wn)
    pad = px + pw + py
    u = np.full_like(n, 8)  # channels of a group padded to one power of two
    for b in range(3, 12): u = np.where((u < cg) | (u < kg), 2 << b, u)
    chunk = np.minimum(8, G)  # groups at a time
    oh, ow = (o.H, o.W) if op == 1 else (o.P, o.Q)  # the computation's output
    f4, f2 = n * cdiv(oh, 4) * cdiv(ow, 4) * 144 * (C + K), n * cdiv(oh, 2) * cdiv(ow, 2) * 64 * (C + K)
    f = np.full_like(n, 32)  # a power of two for Fourier transforms; in float32, out of place
    reach = np.maximum(o.H + R, o.W + S) - 1
    for b in range(6, 12): f = np.where(f < reach, 1 << b, f)
    f = f * (f // 2 + 1) * 16
    y32, x32 = n * up(K, 32) * pq * 4, n * up(C, 32) * hw * 4
    return [0 * x, xn + wn + yn, pad, px + pw + yn, xn + pw + py, x, w, y, x + w, x + y, w + y, x + w + y, xn + yn, xp + yp, xp + wp + yp, xp + wp, wp + yp, xp, yp, wp,
            xn + 2 * wn + yn, n * u * G * (hw + pq) * e + u * u * G * rs * e, n * u * G * (hw + pq) * e, (xp + wp + yp) * chunk // G, (xp + wp + yp) // G,
            f4 + K * cg * 144, f4 + K * cg * 72, f2 + K * cg * 64, up(C, 32) * up(K, 32) * rs * G // 128, up(C, 64) * up(K, 64) * rs * G // 16,
            pad + y32, pad + 2 * y32, pad + 4 * y32, pad + 8 * y32, pad + x32, pad + 2 * x32, pad + 4 * x32, pad + 8 * x32,
            n * up(C, 32) * rs * 32,
            w + np.maximum(K * cg + n * C, n * K) * f, w + np.maximum(K * cg + n * K, n * C) * f, y + np.maximum(n * C + n * K, K * cg) * f, n * K * cg * rs * 4, cg * rs * 4,
            (K * cg + 2 * n * (C + K)) * 4352, up(n, 16) * cdiv(oh, 4) * cdiv(ow, 4) * 144 * (C + K) + K * cg * 144]


def stream_k(o, op, i):
    i, least = divmod(i, len(SPLITS)); (tm, tn), (cm, cn) = TILES[i // len(CLUSTERS)], CLUSTERS[i % len(CLUSTERS)]
    hw, pq, rs, tk = o.H * o.W, o.P * o.Q, o.R * o.S, 128 // o.e
    if op == 0: a, b, its = cdiv(o.n * pq, tm), cdiv(o.K, tn), rs * cdiv(o.C, tk)
    elif op == 1: a, b, its = cdiv(o.n * hw, tm), cdiv(o.C, tn), rs * cdiv(o.K, tk)
    else: a, b, its = cdiv(o.K, tm), rs * cdiv(o.C, tn), cdiv(o.n * pq, tk)
    c = cm * cn
    wave = c * (6 * (18 // c) + 16 // c + 8 // c)  # of 132 multiprocessors in clusters of 18, 16 and 8, those that whole thread-block clusters fill
    tiles = up(a, cm) * up(b, cn)
    rest = tiles % wave
    most = np.where(rest > 0, wave // np.maximum(rest, 1), 1)
    least = np.where(tiles > wave, SPLITS[least] // 2, SPLITS[least])
    s = np.ones_like(its)
    for p in (2, 4, 8, 16, 32, 64): s = np.where((its >= p * least) & (most >= p), p, s)
    s = np.where((most > s) & (its * 20 >= most * least * 21), most, s)
    s = cdiv(its, cdiv(its, s))
    sums = rest * s
    return np.where(s > 1, sums * tm * tn * 4 + 4 * (sums - rest) + 4 * (tiles > wave) + 159, np.where(tiles >= 2 * wave, 131, 0))


def family(o, op, f, base):
    """Bytes of a family (base, kind, number and perhaps a constant)."""
    b, kind, i, *plus = f
    v, cg, kg, rs = base[b] + sum(plus), o.C // o.G, o.K // o.G, o.R * o.S
    if kind == 1: v = v + i * o.K * cg * rs * 4
    if kind == 2: v = v + (i << 20)
    if kind == 3: v = v + stream_k(o, op, i)
    if kind == 4: v = v + i * up(cg, 32) * o.K * rs * 4
    if kind == 5: v = v + i * up(cg, 64) * up(kg, 64) * o.G * rs * 4
    if kind == 6: v = v + i * up(cg, 128) * up(kg, 128) * o.G * rs * 4
    if kind == 7: v = v + i * up(kg, 256) * up(cg * rs, 128) * o.G * 4
    return v


def all_families(o):
    fs = [(b, 0, 0) for b in range(len(bases(o, 0)))]
    fs += [(b, 1, m) for b in (0, 1, 2, 9, 12, 21) for m in PARTS] + [(1, 2, m) for m in MIB] + [(0, kind, m) for kind in (4, 5, 6) for m in PARTS] + [(b, 7, m) for b in (0, 1, 2) for m in PARTS[:8]]
    return fs + [(b, 3, i) for i in range(len(TILES) * len(CLUSTERS) * len(SPLITS)) for b in (1, 2, 21)]


# ---- training ---------------------------------------------------------------------------------------------------------------------------

def load(measured):
    """Rows (22 extents, type, batch), their three workspaces (-1: none) and whether they are held out."""
    at = {t: i for i, t in enumerate(cw.TYPES)}
    seen = {}
    for k, _, rec in cw.read_lines(measured):
        k = tuple(k)
        full = k if len(k) == 22 else k + (1, 1, 1, 0, 1, 0)
        for t, (ns, *ws) in rec.items():
            for i, n in enumerate(ns):
                if not cw.own_depthwise(k, n, t): seen[full + (at[t], n)] = tuple(-1 if w[i] is None else w[i] for w in ws)
    rows, ws = np.array(list(seen), dtype=np.int64), np.array(list(seen.values()), dtype=np.int64)
    held = {}
    for r in rows[:, :22].tolist():
        if tuple(r) not in held: held[tuple(r)] = cw.fnv(r if r[17:] != FLAT or r[16] > 1 else r[:16]) % 10 == 0
    return rows, ws, np.array([held[tuple(r)] for r in rows[:, :22].tolist()])


def near(v, ws): return np.abs(v - ws) <= ws // 100 + 512


def choose(o, op, ws, sub):
    """Families that explain the rows, the most useful first; greedy, on a sample."""
    s = Geometry.__new__(Geometry); s.__dict__ = {k: v[sub] for k, v in o.__dict__.items()}
    fs, base, w = all_families(s), bases(s, op), ws[sub]
    rest = {}  # stream-K is the same on each base
    for f in fs:
        if f[1] == 3 and f[2] not in rest: rest[f[2]] = stream_k(s, op, f[2])
    hit = np.stack([near(base[f[0]] + rest[f[2]] if f[1] == 3 else family(s, op, f, base), w) for f in fs])
    count, chosen = hit.sum(1), []
    while len(chosen) < 255:
        b = int(np.argmax(count))
        if count[b] < max(6, len(w) // 40000): break
        chosen.append(fs[b])
        new = hit[b].copy()
        count = count - hit[:, new].sum(1)
        hit[:, new] = False
    return chosen


def with_constants(fs, rests):
    """The families with their most frequent constants, from what they leave of the rows that they explain."""
    first, more = [], []
    for f, rest in zip(fs, rests):
        count = collections.Counter(rest[(rest >= 0) & (rest < SMALL)].tolist()).most_common(4) or [(0, 0)]
        first.append((*f, count[0][0]))
        more += [(n, (*f, plus)) for plus, n in count[1:] if n > max(20, len(rest) // 50)]
    return first + [f for _, f in sorted(more, reverse=True)[:255 - len(first)]]


def pack_families(families):
    """uvarints: base, kind, number and constant of each."""
    return cw.varint(len(families)) + b''.join(bytes([b, kind]) + cw.varint(i) + cw.varint(plus) for b, kind, i, plus in families)


class Tree:
    """A decision tree over families; nodes by number, -1 no child."""

    def __init__(self, x, score, label, worth):
        from sklearn.tree import DecisionTreeClassifier
        t = DecisionTreeClassifier(criterion='entropy', random_state=1).fit(x, label).tree_
        self.left, self.right, self.feature = t.children_left.copy(), t.children_right, t.feature
        self.threshold = np.floor(t.threshold).astype(np.int64)
        at = t.apply(x)
        order = np.argsort(at, kind='stable')
        start = np.concatenate([[0], np.nonzero(np.diff(at[order]))[0] + 1])
        # the scores of each family in each node
        self.count = np.zeros((t.node_count, score.shape[1]), np.int32)
        self.count[at[order][start]] = np.add.reduceat(score[order], start, axis=0, dtype=np.int32)
        best = np.zeros(t.node_count, np.int64)
        for i in reversed(range(t.node_count)):  # a child's number is above its parent's
            l, r = self.left[i], self.right[i]
            if l < 0:
                best[i] = self.count[i].max()
                continue
            self.count[i] = self.count[l] + self.count[r]
            best[i] = best[l] + best[r]
            m = self.count[i].max()
            if m + worth >= best[i] and self.left[l] < 0 and self.left[r] < 0: self.left[i], best[i] = -1, m
        self.label = (self.count + score.mean(0) / 8).argmax(1)

    def mark_bounds(self, x, values, ws, most, cover):
        """For the topmost nodes of at most `most` rows the family whose bytes suffice for a share `cover` of their rows and are the fewest."""
        self.bound = np.full(len(self.left), -1)
        todo = [(0, np.arange(len(x)))]
        while todo:
            i, rows = todo.pop()
            if len(rows) > most and self.left[i] >= 0:
                below = x[rows, self.feature[i]] <= self.threshold[i]
                todo += [(self.left[i], rows[below]), (self.right[i], rows[~below])]
                continue
            v, w = values[rows], ws[rows]
            share = (v >= w[:, None] * .999 - 512).mean(0)
            cost = np.log(v + float(1 << 20)).mean(0)
            self.bound[i] = np.where(share >= min(cover, share.max()), cost, np.inf).argmin()

    def walk(self, x):
        """The leaf and the family of the bound for each row."""
        at, bound = np.zeros(len(x), np.int64), np.full(len(x), -1)
        while True:
            bound = np.where(self.bound[at] >= 0, self.bound[at], bound)
            inner = self.left[at] >= 0
            if not inner.any(): return self.label[at], bound
            low = x[np.arange(len(x)), np.maximum(self.feature[at], 0)] <= self.threshold[at]
            at = np.where(inner, np.where(low, self.left[at], self.right[at]), at)

    def pack(self):
        """uvarints: per feature its thresholds as increments, and the nodes in preorder as three sequences:
        bytes feature + 1 or 0 for a leaf, plus 64 where a bound follows; thresholds' numbers; families' numbers of leaves and bounds."""
        order, todo = [], [0]
        while todo:
            i = todo.pop(); order.append(i)
            if self.left[i] >= 0: todo += [self.right[i], self.left[i]]
        marks, cuts, labels, used = bytearray(), bytearray(), bytearray(), collections.defaultdict(set)
        for i in order:
            if self.left[i] >= 0: used[self.feature[i]].add(int(self.threshold[i]))
        number = {f: {v: i for i, v in enumerate(sorted(vs))} for f, vs in used.items()}
        for i in order:
            inner = self.left[i] >= 0
            marks.append((self.feature[i] + 1 if inner else 0) + (64 if self.bound[i] >= 0 else 0))
            if inner: cuts += cw.varint(number[self.feature[i]][int(self.threshold[i])])
            else: labels.append(self.label[i])
            if self.bound[i] >= 0: labels.append(self.bound[i])
        out = bytearray(cw.varint(max(used, default=-1) + 1))
        for f in range(max(used, default=-1) + 1):
            out += cw.varint(len(used[f])); last = 0
            for v in sorted(used[f]): out += cw.varint(v - last); last = v
        out += cw.varint(len(marks)) + marks + cuts + labels
        return bytes(out)


def laid(grove):
    """A grove, the packed families and trees, as nodes that are walked without decoding the others (graph/cudnn/family.go)."""
    at = 0
    def next():
        nonlocal at
        v = shift = 0
        while True:
            b = grove[at]; at += 1; v |= (b & 127) << shift; shift += 7
            if b < 128: return v
    for _ in range(next()):
        at += 2; next(); next()
    out = bytearray(grove[:at])
    while at < len(grove):
        thresholds = []
        for _ in range(next()):
            values, last = [], 0
            for _ in range(next()): last += next(); values.append(last)
            thresholds.append(values)
        n = next()
        marks = grove[at:at + n]; at += n
        cuts = [cw.varint(thresholds[m % 64 - 1][next()]) if m % 64 else b'' for m in marks]
        tails = []  # bounds, and the families of leaves
        for m in marks:
            k = (m % 64 == 0) + (m >= 64)
            leaf = grove[at:at + k]; at += k
            tails.append(leaf if m % 64 else leaf[1:] + leaf[:1])
        built = []  # from the last node to the first: subtrees that no node has taken yet
        for i in range(n - 1, -1, -1):
            node = bytes([marks[i]]) + tails[i]
            if marks[i] % 64:
                yes, no = built.pop(), built.pop()
                node += cuts[i] + cw.varint(len(yes)) + yes + no
            built.append(node)
        out += cw.varint(len(built[0])) + built[0]
    return bytes(out)


def write_groves(out, groves):
    """The number of groves, their lengths, and the groves: a reader touches only those that it walks."""
    with open(out, 'wb') as f: f.write(struct.pack(f'<{1 + len(groves)}I', len(groves), *map(len, groves)) + b''.join(groves))


def grow(kind, op):
    """The tree of one kind of types and one computation, packed, and a line on how it does on what is held out."""
    rows, ws, held = DATA
    types = [cw.TYPES.index(t) for t in kind]
    x, w, h = [], [], []
    for p in range(3):
        i = np.isin(rows[:, 22], types) & (np.where(rows[:, 13] == 1, (1, 0, 2)[p], p) == op) & (ws[:, p] >= 0)
        x.append(rows[i]); w.append(ws[i, p]); h.append(held[i])
    x, w, h = map(np.concatenate, (x, w, h))
    o = Geometry(x)
    fs = choose(o, op, w, np.random.default_rng(1).choice(np.nonzero(~h)[0], min(40000, (~h).sum()), replace=False))
    base = bases(o, op)
    left, rests = np.ones(len(w), bool), []
    for f in fs:
        v = family(o, op, f, base)
        mine = left & near(v, w)
        rests.append((w - v)[mine & ~h])
        left &= ~mine
    fs = with_constants(fs, rests)
    # a family that gives the same number of 512-byte blocks, which the allocator counts, is better by a quarter than one within 1 %
    score, values = np.zeros((len(w), len(fs)), np.uint8), np.zeros((len(w), len(fs)), np.float32)
    for j, f in enumerate(fs):
        v = family(o, op, f, base)
        score[:, j] = np.where(near(v, w), np.where(cdiv(v, 512) == cdiv(w, 512), 5, 4), 0)
        values[:, j] = v
    explained = score.any(1)
    feats = features(o)
    known = explained & ~h
    tree = Tree(feats[known], score[known], score[known].argmax(1), 4 * WORTH)
    tree.mark_bounds(feats[~h], values[~h], w[~h], 1000, .998)
    label, bound = tree.walk(feats[h])
    at = np.nonzero(h)[0]
    data = laid(pack_families(fs) + tree.pack())
    top = np.maximum(values[at, bound], values[at, label]) * (65 / 64) + 512
    return data, (f'{"+".join(kind)} {op}: {len(x)} rows, {len(fs)} families explain {explained.mean():.1%}, {len(data)} bytes; of {len(at)} held out '
                  f'{(score[at, label] > 0).mean():.1%} within 1 %, {(score[at, label] == 5).mean():.1%} same blocks, bound too low for {(top < w[at]).mean():.2%}, {np.median(top / (w[at] + (1 << 20))):.2f} times')


def train(measured, out, processes='2'):
    global DATA
    DATA = load(measured)
    print(len(DATA[0]), 'rows,', DATA[2].sum(), 'held out', flush=True)
    with concurrent.futures.ProcessPoolExecutor(int(processes), multiprocessing.get_context('fork')) as pool:
        groves = []
        for data, line in pool.map(grow, *zip(*((kind, op) for kind in KINDS for op in range(3)))):
            print(line, flush=True)
            groves.append(data)
    write_groves(out, groves)


if __name__ == '__main__':
    commands = {'grid': grid, 'wide': wide, 'deep': deep, 'train': train}
    if len(sys.argv) < 3 or sys.argv[1] not in commands: sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
