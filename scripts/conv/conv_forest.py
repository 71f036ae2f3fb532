"""Grows the trees of package graph/cudnn from what conv_survey.py measured: see conv_families.py for what trees and families are.

    cc -O3 -shared -fPIC scripts/conv/conv_tree.c -o conv_tree.so -lm
    python scripts/conv/conv_forest.py grow ROWS MODULES.json TABLE.npz FOREST SECONDS [PROCESSES] [SHARE] [TREES]
    python scripts/conv/conv_forest.py write graph/cudnn/h200.forest FOREST...

ROWS is the folder that `measure` filled (SURVEY_ROWS), TABLE.npz has the table's rows and workspaces (rows, ws) where it is there. SHARE is the part of the
random chunks to grow on, TREES which trees ("202,112": domain, kind of types, computation), the most wanted first. CANDIDATES names a JSON file of
families to choose from, {"kind and computation": [[base, kind, number]]}; without it all are tried, which takes longer. Nothing is grown on what
MODULES.json lists, nor on the tenth of the geometries that fnv tells. `write` takes the trees of each computation from the first FOREST that has them.
The labels are told by formulas; where none tells a row, its engine is the label, which `write` gives the formula of the fallback's engine 1, an index
of the window's elements, or copies.

Three trees vote on each computation: the first asks for any feature at each node, the others for one of TRIES drawn ones. Where they differ, the
workspace is a guess, and package graph/cudnn says so. The committed trees were grown in November 2026: of 102, 002, 012, 042, 032, 112, 202 and 212
on 75% of 6,500,000 rows and on the table; of 000, 001, 010, 011, 100, 101 and 110 on the 4,600,000 rows of SURVEY_FIRST=0 and on the table; the others
on those, one tree each.
"""
import collections, concurrent.futures, ctypes, json, multiprocessing, os, struct, sys, time, zlib

import numpy as np

import conv_families as cf, conv_survey as cs, conv_workspace as cw

cdiv = cf.cdiv
DOMAINS = ['two', 'one', 'three']
SUB = 15000
WORTH = 2  # rows that a split must explain beyond those that its halves do alone
SEEDS, TRIES = (0, 20264, 28183), 35  # of the trees that vote: the first asks for any feature at each node, the others for one of so many


def fnv(cols):
    """cw.fnv of each row of integers."""
    h = np.full(len(cols), 0xcbf29ce484222325, np.uint64)
    for c in cols.T.astype(np.uint64):
        for s in range(4): h = (h ^ (c >> np.uint64(8 * s) & np.uint64(255))) * np.uint64(0x100000001b3)
    return h ^ h >> np.uint64(32)


def geometry_hash(rows):
    flat = ((rows[:, 17:22] == np.array(cf.FLAT)).all(1)) & (rows[:, 16] <= 1)
    return np.where(flat, fnv(rows[:, :16]), fnv(rows[:, :22]))


class Geometry(cf.Geometry):
    def __init__(self, rows):
        super().__init__(rows[:, :24])
        c, h, w, k, r, s, sh, sw, ph, pw, dh, dw, g, tr, oh, ow, d, depth, sd, pd, dd, od, t, n, dims = rows.T
        self.sw, self.pw, self.dh, self.dw, self.sd, self.pd, self.T, self.dims = sw, pw, dh, dw, sd, pd, depth, dims
        d_out = np.where(tr == 1, (d - 1) * sd - 2 * pd + dd * (depth - 1) + 1 + od, (d + 2 * pd - dd * (depth - 1) - 1) // sd + 1)
        self.D, self.O = np.where(tr == 1, d_out, d), np.where(tr == 1, d, d_out)


def features(o):
    """What the trees may ask for: those of conv_families.py and more. Kept equal to features in Go."""
    low = lambda v: np.minimum(64, v & -v)
    n, C, K, R, S = o.n, o.C, o.K, o.R, o.S
    hw, pq, cg, kg, rs = o.H * o.W, o.P * o.Q, C // o.G, K // o.G, R * S
    tiles = lambda m, k, a, b: cdiv(m, a) * cdiv(k, b)
    more = [o.sw, o.pw, (o.pw * 2 + 1 == S).astype(np.int64), o.H // o.D, o.P // o.O, o.D, o.O, o.T, o.sd, o.pd, o.dw, (hw == pq).astype(np.int64), low(n), low(o.W), low(o.Q),
            n * hw * C, n * pq * K, tiles(n * pq, kg, 256, 128), tiles(n * hw, cg, 256, 128), cdiv(cg * rs, 128), cdiv(kg * rs, 128), cdiv(n * pq, 128) // np.maximum(tiles(kg, cg * rs, 128, 128), 1),
            tiles(kg, cg * rs, 256, 128)]
    return np.concatenate([cf.features(o), np.stack(more, 1).astype(np.float32)], 1)


def domain(rows): return np.where(rows[:, 24] == 3, 2, np.where((rows[:, 1] == 1) & (rows[:, 4] == 1), 1, 0))


def load(folder, listed, share):
    parts, names = [], {'': 0}
    for f in sorted(os.listdir(folder)):
        if not f.endswith('.npz') or int(f[:-4]) >= listed and int(f[:-4]) * 617 % 1000 >= share * 1000: continue
        try: z = np.load(os.path.join(folder, f))
        except Exception as e: print(f, e); continue
        local = [names.setdefault(str(s), len(names)) for s in z['names']]
        a = np.full(len(z['rows']), int(z['chunk']) < listed)
        parts.append((z['rows'].astype(np.int32), z['ws'], np.array(local, np.int32)[z['engines']], a))
    return (*map(np.concatenate, zip(*parts)), list(names))


def ranks(x):
    """Each column's values as numbers of at most 65,536 cuts, and those."""
    out, values = np.zeros(x.shape, np.uint16), []
    for j in range(x.shape[1]):
        v = np.unique(x[:, j])
        if len(v) > 60000: v = np.unique(np.quantile(x[:, j], np.linspace(0, 1, 60000), method='lower'))
        out[:, j] = np.searchsorted(v, x[:, j], 'left').clip(0, len(v) - 1)
        values.append(v)
    return out, values


def fit(ranked, label, seed):
    """A tree that tells all rows apart, by conv_tree.c, and the rows' leaves."""
    r, values = ranked
    n = len(r)
    feature, low, above, right, leaf = (np.full(2 * n, -1, np.int32) for _ in range(5))
    p = lambda a: a.ctypes.data_as(ctypes.c_void_p)
    label = np.ascontiguousarray(label.astype(np.uint8))
    m = ctypes.CDLL(os.environ.get('CONV_TREE', './conv_tree.so')).grow
    m.restype = ctypes.c_int64
    nodes = m(p(r), ctypes.c_int64(n), r.shape[1], p(label), ctypes.c_uint64(seed), TRIES, p(feature), p(low), p(above), p(right), p(leaf))
    feature, low, above, right = feature[:nodes], low[:nodes], above[:nodes], right[:nodes]
    threshold = np.zeros(nodes, np.int64)
    for i in np.nonzero(feature >= 0)[0]: threshold[i] = int((float(values[feature[i]][low[i]]) + float(values[feature[i]][above[i]])) / 2)
    return (np.where(feature >= 0, np.arange(nodes) + 1, -1), right, feature, threshold), leaf[:n]


class Tree(cf.Tree):
    def __init__(self, fitted, at, score, worth):
        self.left, self.right, self.feature, self.threshold = (v.copy() for v in fitted)
        order = np.argsort(at, kind='stable')
        start = np.concatenate([[0], np.nonzero(np.diff(at[order]))[0] + 1])
        self.count = np.zeros((len(self.left), score.shape[1]), np.int32)
        self.count[at[order][start]] = np.add.reduceat(score[order], start, axis=0, dtype=np.int32)
        best = np.zeros(len(self.left), np.int64)
        for i in reversed(range(len(self.left))):  # a child's number is above its parent's
            l, r = self.left[i], self.right[i]
            if l < 0: best[i] = self.count[i].max(); continue
            self.count[i] = self.count[l] + self.count[r]
            best[i] = best[l] + best[r]
            m = self.count[i].max()
            if m + worth >= best[i] and self.left[l] < 0 and self.left[r] < 0: self.left[i], best[i] = -1, m
        self.label = (self.count + score.mean(0) / 8).argmax(1)
        self.bound = np.full(len(self.left), -1)


CANDIDATES = json.load(open(os.environ['CANDIDATES'])) if 'CANDIDATES' in os.environ else {}
UNKNOWN = 99  # kind of a family whose formula is not known: an engine


def choose(o, op, kind, ws, sub):
    """Families that explain the rows, the most useful first; greedy, on a sample."""
    s = Geometry.__new__(Geometry); s.__dict__ = {k: v[sub] for k, v in o.__dict__.items()}
    base, w, fs = cf.bases(s, op), ws[sub], [tuple(f) for f in CANDIDATES.get(f'{kind}{op}') or cf.all_families(s)]
    hit = np.stack([cf.near(cf.family(s, op, f, base), w) for f in fs])
    count, chosen = hit.sum(1), []
    while len(chosen) < 255:
        b = int(np.argmax(count))
        if count[b] < 4: break
        chosen.append(fs[b])
        new = hit[b].copy()
        count = count - hit[:, new].sum(1)
        hit[:, new] = False
    keep = chosen[:140]
    hit = np.stack([cf.near(cf.family(s, op, f, base), w) for f in keep])
    return keep, hit


def grow(job):
    dom, kind, op = job
    start = time.time()
    rows, ws, engines, listed, held, doms, names = DATA
    types = [cw.TYPES.index(t) for t in cf.KINDS[kind]]
    sel, w, e = [], [], []
    for p in range(3):
        i = np.nonzero(np.isin(rows[:, 22], types) & (doms == dom) & (np.where(rows[:, 13] == 1, (1, 0, 2)[p], p) == op) & (ws[:, p] >= 0))[0]
        sel.append(i); w.append(ws[i, p]); e.append(engines[i, p])
    sel, w, e = map(np.concatenate, (sel, w, e))
    x, h, li = rows[sel].astype(np.int64), held[sel], listed[sel]
    o = Geometry(x)
    learn = ~h & ~li
    number = np.array([hash_number(s.split(';')[0]) for s in names])[e]
    sub = np.random.default_rng(1).choice(np.nonzero(learn)[0], min(SUB, learn.sum()), replace=False)
    fs, hit = choose(o, op, kind, w, sub)
    # each engine's rows are compared with the families of that engine alone; rows without one with those that most rows have
    groups = [(c, np.nonzero(number == c)[0]) for c in np.unique(number)]
    score, left, rests = np.zeros((len(w), 255), np.uint8), np.ones(len(w), bool), [[] for _ in fs]
    told = lambda v, w: np.where(v == w, 6, np.where(cdiv(v, 512) == cdiv(w, 512), 5, 4)) * cf.near(v, w)
    parts = []
    for c, i in groups:
        of = np.nonzero(hit[:, number[sub] == c].sum(1) > 0)[0]
        if c == 0 or not len(of): of = np.arange(min(40, len(fs)))
        g = Geometry.__new__(Geometry); g.__dict__ = {k: v[i] for k, v in o.__dict__.items()}
        base, free = cf.bases(g, op), np.ones(len(i), bool)
        for j in of:
            v = cf.family(g, op, fs[j], base)
            score[i, j] = told(v, w[i])
            mine = free & (score[i, j] > 0)
            rests[j].append((w[i] - v)[mine & learn[i]])
            free &= ~mine
        parts.append((i, of, g, base))
    chosen, fs = len(fs), cf.with_constants(fs, [np.concatenate(r or [np.zeros(0, np.int64)]) for r in rests])[:190]
    at = {f[:3]: j for j, f in enumerate(fs[:chosen])}
    for i, of, g, base in parts:
        for j, f in enumerate(fs):
            if f[3] and at[f[:3]] in of: score[i, j] = told(cf.family(g, op, f, base), w[i])
    del parts
    explained = score.any(1)
    # engines without a formula
    coarse, count = np.unique(number[~explained & learn], return_counts=True)
    coarse = coarse[np.argsort(-count)][:60]
    extra = [(0, UNKNOWN, int(c), 0) for c in coarse]
    for j, c in enumerate(coarse): score[:, len(fs) + j] = 3 * (~explained & (number == c))
    fs = fs + extra
    score = score[:, :len(fs)]
    # of families that tell a row as well, the engine's most frequent one is its label
    label = np.zeros(len(w), np.uint8)
    for c, i in groups:
        s = score[i]
        often = (s > 0).sum(0)
        label[i] = np.where(s == s.max(1)[:, None], often + 1, 0).argmax(1)
    feats = features(o)
    known = score.any(1) & learn
    i = np.random.default_rng(2).choice(np.nonzero(learn)[0], min(150000, learn.sum()), replace=False)
    sub = Geometry(x[i])
    b, values = cf.bases(sub, op), np.zeros((len(i), len(fs)), np.float32)
    for j, f in enumerate(fs):
        if f[1] != UNKNOWN: values[:, j] = cf.family(sub, op, f, b)
    ranked, trees = ranks(feats[known]), []
    for seed in SEEDS:
        fitted, at = fit(ranked, label[known], seed)
        trees.append(Tree(fitted, at, score[known], 6 * WORTH))
    trees[0].mark_bounds(feats[i], values, w[i], 1000, .998)
    z = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = z.compress(cf.pack_families(fs) + b''.join(t.pack() for t in trees)) + z.flush()
    line = f'{DOMAINS[dom]} {"+".join(cf.KINDS[kind])} {op}: {len(w)} rows, {len(fs) - len(extra)}+{len(extra)} families, explained {explained.mean():.1%}, {len(data)} bytes; '
    for name, m in (('held', h & ~li), ('listed', li)):
        q = np.nonzero(m)[0]
        if not len(q): continue
        votes = np.stack([t.walk(feats[q])[0] for t in trees], 1)
        most = np.where(votes[:, 1] == votes[:, 2], votes[:, 1], votes[:, 0])
        one, got, same = score[q, votes[:, 0]], score[q, most], (votes == votes[:, :1]).all(1)
        line += (f'{len(q)} {name}: near {(got > 3).mean():.1%} (first {(one > 3).mean():.1%}) exact {(got == 6).mean():.1%} engine {(got == 3).mean():.1%}, '
                 f'{same.mean():.1%} agree: near {(got[same] > 3).mean():.1%}, others {(got[~same] > 3).mean():.1%}; ')
    return job, data, line, time.time() - start


def hash_number(s): return int(s[1:]) + 1000 if s.startswith('f') else int(s) if s else 2000


def grow_all(folder, modules, table, out, seconds, processes='16', share='1', only=''):
    global DATA
    start = time.time()
    listed = len(cs.lists(modules)[0])
    rows, ws, engines, is_listed, names = load(folder, listed, float(share))
    print(len(rows), 'rows', f'{time.time() - start:.0f} s', flush=True)
    if os.path.exists(table):
        z = np.load(table)
        rows, ws = np.concatenate([rows, z['rows'].astype(np.int32)]), np.concatenate([ws, z['ws']])
        m = len(rows) - len(engines)
        engines, is_listed = np.concatenate([engines, np.zeros((m, 3), np.int32)]), np.concatenate([is_listed, np.zeros(m, bool)])
    g = geometry_hash(rows)
    held = g % np.uint64(10) == 0
    known = np.isin(g, np.unique(g[is_listed]))
    keep = is_listed | ~known  # nothing of what is listed is trained on
    rows, ws, engines, is_listed, held = rows[keep], ws[keep], engines[keep], is_listed[keep], held[keep]
    DATA = rows, ws, engines, is_listed, held, domain(rows), names
    print(len(rows), 'rows,', is_listed.sum(), 'listed,', (held & ~is_listed).sum(), 'held out', f'{time.time() - start:.0f} s', flush=True)
    jobs = [(d, k, p) for d in range(3) for k in range(5) for p in range(3)]
    if only: jobs = [j for j in jobs if ''.join(map(str, j)) in only.split(',')]
    size = collections.Counter(zip(DATA[5].tolist(), rows[:, 22].tolist()))
    kinds = [[cw.TYPES.index(t) for t in k] for k in cf.KINDS]
    order = only.split(',')
    jobs.sort(key=lambda j: order.index(''.join(map(str, j))) if only else ((0, 0, 2, 1, 1)[j[1]], -j[2]))
    pool = concurrent.futures.ProcessPoolExecutor(int(processes), multiprocessing.get_context('fork'))
    pending = {pool.submit(grow, j) for j in jobs}
    f = open(out, 'wb')
    while pending and time.time() - start < float(seconds):
        done, pending = concurrent.futures.wait(pending, timeout=2, return_when=concurrent.futures.FIRST_COMPLETED)
        for r in done:
            try: job, data, line, took = r.result()
            except Exception as e: print('lost', repr(e), flush=True); continue
            print(line, f'{took:.0f} s', flush=True)
            f.write(struct.pack('<BBBI', *job, len(data)) + data); f.flush()
    print(len(pending), 'trees missing', f'{time.time() - start:.0f} s', flush=True)
    f.close()
    for p in list(pool._processes.values()): p.kill()
    os._exit(0)


def write(out, *forests):
    jobs = {}
    for path in forests:
        data = open(path, 'rb').read()
        while data:
            n = struct.unpack('<I', data[3:7])[0]
            jobs.setdefault(tuple(data[:3]), named(data[7:7 + n]))
            data = data[7 + n:]
    cf.write_groves(out, [jobs[d, k, p] for d in range(3) for k in range(5) for p in range(3)])


def named(deflated):
    """Trees whose families all have formulas, as nodes to walk."""
    raw, at = zlib.decompress(deflated, -15), 0
    def next():
        nonlocal at
        v = shift = 0
        while True:
            b = raw[at]; at += 1; v |= (b & 127) << shift; shift += 7
            if b < 128: return v
    n, out = next(), bytearray()
    out += cw.varint(n)
    for _ in range(n):
        b, kind = raw[at], raw[at + 1]; at += 2
        number, plus = next(), next()
        if kind == UNKNOWN: b, kind, number, plus = 43 if number == 1001 else 2, 0, 0, 0
        out += bytes([b, kind]) + cw.varint(number) + cw.varint(plus)
    return cf.laid(bytes(out) + raw[at:])


if __name__ == '__main__':
    commands = {'grow': grow_all, 'write': write}
    if len(sys.argv) < 4 or sys.argv[1] not in commands: sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
