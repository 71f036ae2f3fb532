"""Asks cuDNN's heuristic about millions of convolutions in minutes: which engine it takes, with which knobs and which workspace.

    python scripts/conv/conv_survey.py measure ./conv_heuristic OUT SECONDS [PROCESSES] [MODULES.json]
    python scripts/conv/conv_survey.py rows OUT ROWS.npz

`measure` needs a GPU, numpy and what conv_workspace.py says of conv_heuristic; OUT is a folder for at most three files of 14 MB. Rows come in chunks,
each drawn from its own number, so that `rows` draws them again and adds what was answered. First come the chunks of MODULES.json: {"listed": [[16 or 22
integers of a convolution, types, batches]], "modules": [[dims, channels, outputs, kernel, strides, pads, dilations, groups, transposed, output pads]]}:
convolutions of models, and convolution modules of libraries, which are tried on images and batches of many sizes. The other chunks are random: of
one, two and three dims, usual ones and odd ones. Chunks from LARGE on (SURVEY_FIRST=1000) are at batches whose tensors fill a card: what is wrong there
costs most.
"""
import collections, concurrent.futures, json, lzma, os, random, struct, subprocess, sys, time

import numpy as np

import conv_workspace as cw

CHUNK = 20000
FILES, ROOM = int(os.environ.get('SURVEY_FILES', 3)), int(os.environ.get('SURVEY_ROOM', 14_300_000))
MOST = int(os.environ.get('SURVEY_CHUNKS', 1 << 30))
FIRST, LARGE = int(os.environ.get('SURVEY_FIRST', 0)), 1000
FLAT = (1, 1, 1, 0, 1, 0)
ELEMENTS = (1 << 31) - 1
# of 24 chunks 12 of modules, 6 of two dims, 3 of one and of three
KINDS = ['module', 'two', 'one', 'module', 'three', 'module', 'two', 'module', 'one', 'three', 'module', 'two',
         'module', 'two', 'module', 'module', 'module', 'module', 'two', 'module', 'one', 'three', 'module', 'two']
BATCHES = [1, 1, 1, 2, 2, 3, 4, 4, 4, 5, 6, 8, 8, 8, 10, 12, 16, 16, 16, 20, 24, 32, 32, 32, 40, 48, 64, 64, 96, 128, 128, 192, 256, 256, 512, 1024]
TYPES2 = ['tf32'] * 27 + ['bf16'] * 20 + ['fp16'] * 14 + ['fp32'] * 7 + ['tf32n'] * 11 + ['bf16n'] * 13 + ['fp16n'] * 8
TYPES1 = ['tf32'] * 36 + ['bf16'] * 28 + ['fp16'] * 20 + ['fp32'] * 8 + ['tf32n'] * 3 + ['bf16n'] * 3 + ['fp16n'] * 2
TYPES3 = ['tf32'] * 34 + ['bf16'] * 27 + ['fp16'] * 19 + ['fp32'] * 8 + ['tf32n'] * 4 + ['bf16n'] * 5 + ['fp16n'] * 3
USUAL = [1, 2, 3, 3, 4, 6, 8, 10, 12, 16, 16, 20, 24, 32, 32, 32, 36, 40, 48, 48, 56, 64, 64, 64, 64, 72, 80, 96, 96, 100, 112, 120, 128, 128, 128, 128, 144, 160, 160, 168, 176, 192, 192,
         200, 216, 224, 240, 256, 256, 256, 256, 272, 288, 300, 320, 320, 336, 352, 368, 384, 384, 400, 432, 448, 480, 512, 512, 512, 512, 528, 576, 600, 640, 640, 672, 720, 768, 768, 768,
         800, 832, 896, 960, 1000, 1024, 1024, 1152, 1200, 1280, 1280, 1408, 1536, 1600, 1792, 1920, 2000, 2048, 2304, 2560, 2688, 3072, 3840, 4096]
IMAGES = [1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 7, 8, 8, 8, 9, 10, 11, 12, 13, 14, 14, 14, 15, 16, 16, 16, 17, 18, 19, 20, 24, 25, 26, 28, 28, 28, 30, 32, 32, 32, 33, 35, 36, 38, 40, 42, 45, 48, 50, 52, 56, 56,
          56, 60, 64, 64, 64, 65, 72, 75, 76, 80, 84, 90, 96, 96, 100, 112, 112, 112, 120, 128, 128, 128, 129, 144, 150, 160, 160, 168, 180, 192, 192, 200, 208, 224, 224, 224, 230, 240, 256,
          256, 256, 257, 272, 288, 299, 300, 320, 336, 352, 360, 368, 384, 400, 416, 448, 480, 500, 512, 512, 513, 576, 600, 608, 640, 672, 720, 736, 768, 800, 832, 896, 1024, 1024, 1280, 1333]


def log_uniform(rng, low, high): return int(low * (high / low) ** rng.random() + .5)


def channels(rng, low=1, high=4096):
    if rng.random() < .7:
        v = rng.choice(USUAL)
        if low <= v <= high: return v
    v = log_uniform(rng, low, high)
    kind = rng.random()
    if kind < .35 and v >= 8: v = v // 8 * 8
    elif kind < .5 and v >= 4: v = v // 4 * 4
    return max(low, min(v, high))


def image(rng, high=2048):
    v = rng.choice(IMAGES) if rng.random() < .75 else log_uniform(rng, 1, high)
    return min(v, high)


def length(rng):
    v = rng.choice([16, 24, 32, 48, 50, 64, 75, 96, 100, 120, 128, 150, 160, 197, 200, 224, 249, 250, 256, 300, 320, 336, 384, 400, 480, 499, 500, 512, 600, 640, 720, 750, 768, 800, 960, 999, 1000, 1024, 1200,
                    1500, 1600, 1920, 2000, 2048, 3000, 3200, 4000, 4096, 4800, 5000, 8000, 8192, 10000, 16000, 16384, 22050, 24000, 32000, 40000, 44100, 48000, 64000, 65536, 80000, 96000, 131072, 160000, 240000, 320000, 480000])
    if rng.random() < .5: return v
    return max(1, log_uniform(rng, 1, 20000) if rng.random() < .8 else log_uniform(rng, 1, 500000))


def groups_of(rng, c, k, tr, depthwise=.12):
    u = rng.random()
    if u < depthwise:
        if tr and rng.random() < .5: return c, c, c
        return c, c * rng.choice([1, 1, 1, 1, 2, 4, 8]), c
    if u < depthwise + .1:
        g = rng.choice([2, 2, 4, 4, 8, 8, 16, 32, 32, 64, 3, 6, 12])
        return max(1, c // g) * g, max(1, k // g) * g, g
    return c, k, 1


def draw2(rng):
    """Two dims."""
    tr = int(rng.random() < .12)
    u = rng.random()
    if tr:
        r = s = rng.choice([2, 2, 2, 3, 3, 4, 4, 4, 4, 5, 6, 7, 8, 9, 16])
        stride = rng.choice([2, 2, 2, 1, r, max(1, r // 2), 4])
    elif u < .2: r = s = 1; stride = rng.choice([1, 1, 1, 1, 2])
    elif u < .6: r = s = 3; stride = rng.choice([1, 1, 1, 2])
    elif u < .75: r = s = rng.choice([2, 4, 5, 5, 7, 7, 9, 11, 13, 15, 17, 21, 27, 31]); stride = rng.choice([1, 1, 1, 2, 2, 3, 4])
    elif u < .85: r = s = rng.choice([2, 2, 4, 4, 7, 8, 8, 10, 12, 14, 16, 16, 20, 32]); stride = rng.choice([r, r, r, max(1, r // 2)])
    else:
        r, s = rng.choice([(1, 3), (3, 1), (1, 5), (5, 1), (1, 7), (7, 1), (1, 9), (9, 1), (1, 11), (11, 1), (1, 15), (15, 1), (1, 21), (21, 1), (2, 1), (1, 2), (1, 31), (31, 1), (1, 64), (1, 25), (20, 8), (10, 4), (11, 41), (21, 11), (3, 5), (5, 3),
                           (3, 7), (2, 3), (4, 1), (3, 300), (4, 300), (5, 300), (2, 128), (3, 9), (1, 125), (64, 1), (22, 1), (1, 16)])
        stride = rng.choice([1, 1, 1, 1, 2])
    c, k = channels(rng), channels(rng)
    if rng.random() < .3: k = c
    if rng.random() < .06: c = rng.choice([1, 2, 3, 4])
    if rng.random() < .06: k = rng.choice([1, 2, 3, 4])
    c, k, g = groups_of(rng, c, k, tr)
    h = image(rng)
    w = h if rng.random() < .72 else image(rng)
    sw = stride if rng.random() < .93 else rng.choice([1, 2, 3])
    dil = 1 if tr or r * s == 1 or rng.random() < .88 else rng.choice([2, 2, 3, 4, 4, 5, 6, 8, 12, 16, 18, 24, 36])
    dh, dw = (dil if r > 1 else 1), (dil if s > 1 else 1)
    v = rng.random()
    if tr: ph = rng.choice([0, max(0, (r - stride) // 2), r // 2, min(1, r - 1)]); pw = min(ph, s - 1)
    elif v < .7: ph, pw = dh * (r - 1) // 2, dw * (s - 1) // 2
    elif v < .85: ph = pw = 0
    else: ph, pw = rng.randint(0, r), rng.randint(0, s)
    more = rng.choice([0, 0, min(1, stride - 1)]) if tr else 0
    return (c, h, w, k, r, s, stride, sw, ph, pw, dh, dw, g, tr, more, min(more, sw - 1) if tr else 0), 2


def draw1(rng):
    """One dim."""
    tr = int(rng.random() < .14)
    l = length(rng)
    c, k = channels(rng), channels(rng)
    u = rng.random()
    if tr:
        stride = rng.choice([2, 2, 2, 3, 4, 4, 5, 6, 8, 8, 10, 16, 1])
        s = rng.choice([2 * stride, 2 * stride, 2 * stride, stride, 4, 3, 2 * stride + 1, 16, 20]); pad = rng.choice([0, (s - stride) // 2 if s > stride else 0, s // 2, min(1, s - 1)]); dil = 1
        if rng.random() < .5: k = max(1, c // 2)
    elif u < .2: s = 1; stride = rng.choice([1, 1, 1, 1, 2]); pad = 0; dil = 1
    elif u < .55:  # residual blocks, dilated or not
        s = rng.choice([3, 3, 3, 3, 5, 5, 7, 7, 9, 2, 4, 11]); dil = rng.choice([1, 1, 1, 1, 2, 3, 4, 5, 8, 9, 16, 27, 32, 64, 128]); stride = rng.choice([1, 1, 1, 1, 2, 3]) if dil == 1 else 1
        pad = rng.choice([dil * (s - 1) // 2] * 4 + [dil * (s - 1)] * 2 + [0])
        if rng.random() < .5: k = c
    elif u < .72:  # filters of waveforms and spectra
        c = rng.choice([1, 1, 1, 2, 3, 4, 7, 8, 12, 13, 16, 21, 22, 32, 39, 40, 64, 80, 80, 128, 161, 201, 257, 321, 513])
        s = rng.choice([3, 3, 5, 7, 7, 8, 9, 10, 11, 15, 16, 20, 20, 24, 31, 32, 40, 48, 64, 80, 128, 250, 251, 256, 400, 512, 1024]); stride = rng.choice([1, 1, 2, 2, 4, 5, 8, 10, 16, max(1, s // 2), s, max(1, s // 4)])
        pad = rng.choice([0, s // 2, s // 2, (s - 1) // 2]); dil = 1
    elif u < .86:  # wide kernels
        s = rng.choice([8, 9, 10, 11, 12, 13, 15, 16, 17, 19, 21, 23, 25, 29, 31, 32, 33, 35, 39, 41, 48, 51, 63, 64, 75, 87, 96, 100, 128]); stride = rng.choice([1, 1, 1, 2]); dil = rng.choice([1, 1, 1, 1, 2]); pad = rng.choice([0, s // 2, s // 2, dil * (s - 1)])
    else:
        s = rng.randint(1, 40); stride = rng.choice([1, 1, 2, 3, 4, s]); dil = rng.choice([1, 1, 1, 2, 4]); pad = rng.choice([0, dil * (s - 1) // 2, rng.randint(0, s)])
    c, k, g = groups_of(rng, c, k, tr, .14)
    more = rng.choice([0, 0, 0, min(1, stride - 1)]) if tr else 0
    return (c, 1, l, k, 1, s, 1, stride, 0, pad, 1, dil, g, tr, 0, more), 2


def draw3(rng):
    """Three dims."""
    tr = int(rng.random() < .13)
    kernels = [(3, 3, 3)] * 16 + [(1, 1, 1)] * 6 + [(1, 3, 3)] * 4 + [(3, 1, 1)] * 4 + [(2, 2, 2)] * 2 + [(5, 5, 5), (7, 7, 7), (3, 7, 7), (1, 7, 7), (7, 1, 1), (1, 5, 5), (5, 1, 1), (4, 4, 4), (2, 16, 16), (16, 16, 16), (2, 4, 4), (1, 2, 2), (8, 8, 8), (5, 7, 7), (3, 5, 5), (1, 16, 16),
               (1, 4, 4), (2, 14, 14), (4, 4, 1), (3, 3, 1), (9, 9, 9), (1, 1, 3), (1, 3, 1), (2, 1, 1), (6, 6, 6)]
    t, r, s = rng.choice([(2, 2, 2)] * 4 + [(3, 3, 3)] * 3 + [(4, 4, 4)] * 2 + [(1, 2, 2), (1, 3, 3), (3, 1, 1), (4, 1, 1), (1, 1, 1), (5, 5, 5), (1, 4, 4)]) if tr else rng.choice(kernels)
    c, k = (min(channels(rng, 1, 2048), rng.choice([512, 1024, 2048])) for _ in 'ck')
    if rng.random() < .35: k = c
    if rng.random() < .12: c = rng.choice([1, 1, 2, 3, 3, 4])
    if rng.random() < .07: k = rng.choice([1, 2, 3, 4, 5, 14])
    c, k, g = groups_of(rng, c, k, tr, .06)
    h = image(rng, 512)
    w = h if rng.random() < .8 else image(rng, 512)
    d = h if rng.random() < .45 else rng.choice([1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 10, 12, 14, 16, 16, 16, 18, 20, 24, 25, 28, 32, 32, 40, 48, 49, 64, 64, 80, 96, 128, 160])
    if max(t, r, s) >= 4 and t == r == s and not tr or (r == s and r >= 14): stride = rng.choice([r, r, r, 2, 1])
    elif tr: stride = rng.choice([2, 2, 2, r, 1])
    else: stride = rng.choice([1, 1, 1, 1, 2, 2])
    sd = rng.choice([stride, stride, stride, 1, t])
    dil = 1 if tr or rng.random() < .93 else rng.choice([2, 2, 3, 4])
    if t == r == s == 1: dil = 1
    same = rng.random() < .72
    pads = [(dil * (m - 1) // 2 if same else 0) for m in (t, r, s)]
    if tr: pads = [rng.choice([0, min(1, m - 1)]) for m in (t, r, s)]
    elif rng.random() < .06: pads = [rng.randint(0, m // 2 + 1) for m in (t, r, s)]
    more = rng.choice([0, 0, 1]) if tr else 0
    dils = [dil if m > 1 else 1 for m in (t, r, s)]
    return (c, h, w, k, r, s, stride, stride, pads[1], pads[2], dils[1], dils[2], g, tr, min(more, stride - 1), min(more, stride - 1), d, t, sd, pads[0], dils[0], min(more, sd - 1)), 3


def draw_module(rng, modules):
    """A module of a library on an image of some size."""
    m = rng.choice(modules)
    nd, c, k = m[:3]
    part = lambda i: m[3 + i * nd:3 + (i + 1) * nd]
    kernel, stride, pad, dil = (part(i) for i in range(4))
    g, tr = m[3 + 4 * nd], m[4 + 4 * nd]
    more = m[5 + 4 * nd:]
    if g == 1 and rng.random() < .3:  # others of its family
        if rng.random() < .5: c = max(1, c * rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 12, 16]) // 4)
        else: k = max(1, k * rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 12, 16]) // 4)
    elif g > 1 and g == c and rng.random() < .3: f = rng.choice([1, 2, 3, 5, 6, 8]); c = k = g = max(1, c * f // 4)
    if nd == 1: return (c, 1, length(rng), k, 1, kernel[0], 1, stride[0], 0, pad[0], 1, dil[0], g, tr, 0, more[0]), 2
    h = image(rng)
    if c <= 4 and not tr and rng.random() < .8: h = rng.choice([28, 32, 48, 64, 96, 112, 128, 160, 192, 224, 224, 240, 256, 288, 299, 320, 384, 416, 448, 480, 512, 600, 640, 768, 800, 896, 1024])
    w = h if rng.random() < .75 else image(rng)
    if nd == 2: return (c, h, w, k, *kernel, *stride, *pad, *dil, g, tr, *more), 2
    h, w = min(h, 256), min(w, 256)
    d = h if rng.random() < .45 else rng.choice([1, 2, 4, 8, 8, 16, 16, 20, 24, 32, 48, 64, 96, 128])
    return (c, h, w, k, *kernel[1:], *stride[1:], *pad[1:], *dil[1:], g, tr, *more[1:], d, kernel[0], stride[0], pad[0], dil[0], more[0]), 3


def elements(k):
    """Of the largest tensor of one image, and of the weight; 0 of what is no convolution."""
    p, q = cw.out_size(k)
    d_in, d_out = cw.depth(k)
    if min(p, q, d_in, d_out) < 1 or not k[13] and (k[1] + 2 * k[8] < k[10] * (k[4] - 1) + 1 or k[2] + 2 * k[9] < k[11] * (k[5] - 1) + 1): return 0, 0
    if len(k) > 16 and not k[13] and k[16] + 2 * k[19] < k[20] * (k[17] - 1) + 1: return 0, 0
    return max(k[0] * d_in * k[1] * k[2], k[3] * d_out * p * q), k[3] * (k[0] // k[12]) * k[4] * k[5] * (k[17] if len(k) > 16 else 1)


def large_batch(rng, each):
    """A batch of at most 4096 whose largest tensor has 3 million to 2 billion elements where it can, each magnitude as likely."""
    n = log_uniform(rng, 3e6, ELEMENTS) / each
    if n < 2: return 1
    if n > 4096: n = log_uniform(rng, 16, 4096)
    kind = rng.random()
    if kind < .45 and n >= 8: n = n // 8 * 8
    elif kind < .85: n = 1 << int(n).bit_length() - 1
    return int(n)


def chunk_rows(number, listed, modules):
    """The rows (convolution, type, batch) of a chunk."""
    rows = []
    if number < len(listed): return listed[number]
    rng = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    if kind == 'module' and not modules: kind = 'two'
    while len(rows) < CHUNK:
        k, nd = {'module': lambda: draw_module(rng, modules), 'two': lambda: draw2(rng), 'one': lambda: draw1(rng), 'three': lambda: draw3(rng)}[kind]()
        each, weight = elements(k)
        if not each or weight > 4e8: continue
        most = ELEMENTS if number >= LARGE or rng.random() < .06 else 4e8
        types = TYPES3 if nd == 3 else TYPES1 if k[1] == k[4] == 1 else TYPES2
        if k[12] > 1 and k[12] == k[0] and not k[13] and nd == 2 and rng.random() < .8: types = ['fp16'] * 3 + ['tf32n', 'bf16n', 'bf16n', 'fp16n', 'fp16n'] if k[1] > 1 else ['fp16'] * 6 + ['tf32n', 'bf16n', 'fp16n']
        seen = set()
        for _ in range(3):
            if number >= LARGE: n = large_batch(rng, each)
            else: n = rng.choice(BATCHES) if rng.random() < .85 else log_uniform(rng, 1, 600)
            while n > 1 and n * each > most: n = max(1, n // rng.choice([2, 3, 4]))
            if n * each > most: continue
            t = rng.choice(types)
            if cw.own_depthwise(k, n, t) or (t, n) in seen: continue
            seen.add((t, n))
            rows.append((k, t, n))
    return rows[:CHUNK]


def lists(path):
    if not path: return [], []
    with (lzma.open(path, 'rt') if path.endswith('.xz') else open(path)) as f: d = json.load(f)
    rows = []
    for k, types, ns in d['listed']:
        k = tuple(k)
        each, _ = elements(k)
        if each: rows += [(k, t, n) for t in types for n in ns if n * each <= ELEMENTS and not cw.own_depthwise(k, n, t)]
    random.Random(5).shuffle(rows)
    return [rows[i:i + CHUNK] for i in range(0, len(rows), CHUNK)], [tuple(m) for m in d['modules']]


def table(rows):
    """Rows as integers: 22 of the geometry, type, batch, dims."""
    out = np.zeros((len(rows), 25), np.int64)
    for i, (k, t, n) in enumerate(rows): out[i] = (*(k if len(k) > 16 else k + FLAT), cw.TYPES.index(t), n, 3 if len(k) > 16 else 2)
    return out


def ask(job):
    number, program, until, listed, modules = job
    rows = chunk_rows(number, listed, modules)
    ws, engines, names = np.full((len(rows), 3), -1, np.int64), np.zeros((len(rows), 3), np.uint16), {'': 0}
    start = 0
    while start < len(rows) and time.time() < until - 5:
        text = ''.join(' '.join(map(str, (n, *k[:14], t, *k[14:]))) + '\n' for k, t, n in rows[start:])
        p = subprocess.Popen([program] + os.environ.get('CONV_DEVICE', '').split(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try: out, _ = p.communicate(text, timeout=max(1, until - time.time()))
        except subprocess.TimeoutExpired:
            p.kill()
            out, _ = p.communicate()
        last = start
        for line in out.split('\n'):
            a = line.split(' ')
            if len(a) == 4 and a[3]:
                i, op = start + int(a[0]) - 1, int(a[1])
                ws[i, op] = int(a[2])
                engines[i, op] = names.setdefault(a[3], len(names))
                last = i
        if p.returncode == 0: break
        ws[last + 1:min(last + 2, len(rows))] = -2  # it ended there
        start = last + 2
    else: ws[start:] = -2
    if os.environ.get('SURVEY_ROWS'):
        part = os.path.join(os.environ['SURVEY_ROWS'], f'{number}.part')
        with open(part, 'wb') as f: np.savez(f, rows=table(rows), ws=ws, engines=engines, names=np.array(list(names)), chunk=number)
        os.rename(part, part.replace('.part', '.npz'))
    digest = cw.fnv([int(v) for v in table(rows[:50]).ravel() & 0xffffffff])
    body = ws.T.copy().view(np.uint8).reshape(3, -1, 8).transpose(0, 2, 1)[:, :5].tobytes() + engines.T.copy().view(np.uint8).reshape(3, -1, 2).transpose(0, 2, 1).tobytes()
    head = json.dumps(dict(chunk=number, rows=len(rows), digest=digest, engines=list(names))).encode()
    return number, lzma.compress(struct.pack('<I', len(head)) + head + body, preset=6)


def measure(program, out, seconds, processes='16', path=''):
    start = time.time()
    until = start + float(seconds)
    listed, modules = lists(path)
    os.makedirs(out, exist_ok=True)
    files, used = [open(os.path.join(out, f'survey{i}.bin'), 'wb') for i in range(FILES)], [0] * FILES
    print(len(listed), 'listed chunks,', len(modules), 'modules', flush=True)
    number, running, done = FIRST, set(), 0
    with concurrent.futures.ProcessPoolExecutor(int(processes)) as pool:
        while running or time.time() < until - 20 and number - FIRST < MOST:
            while len(running) < int(processes) + 2 and time.time() < until - 20 and number - FIRST < MOST:
                running.add(pool.submit(ask, (number, program, until, [()] * number + [listed[number]] if number < len(listed) else [()] * len(listed), modules)))
                number += 1
            ready, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for r in ready:
                try: n, data = r.result()
                except Exception as e: print('lost', e, flush=True); continue
                at = min(range(FILES), key=lambda i: used[i])
                if used[at] + len(data) + 4 > ROOM: continue
                files[at].write(struct.pack('<I', len(data)) + data); files[at].flush()
                used[at] += len(data) + 4
                done += 1
                if done % 16 == 0: print(f'{time.time() - start:.0f} s, {done} chunks, {sum(used)} bytes', flush=True)
    print(f'{time.time() - start:.0f} s, {done} chunks, {sum(used)} bytes', flush=True)


def read(out, path=''):
    """Yields of each chunk rows (as `table`), workspaces (-1 no answer, -2 not asked), engines' numbers and their names."""
    listed, modules = lists(path)
    for name in sorted(os.listdir(out)):
        if not name.startswith('survey'): continue
        with open(os.path.join(out, name), 'rb') as f: data = f.read()
        while len(data) > 4:
            n = struct.unpack('<I', data[:4])[0]
            if len(data) < 4 + n: break
            raw, data = lzma.decompress(data[4:4 + n]), data[4 + n:]
            h = struct.unpack('<I', raw[:4])[0]
            head, body = json.loads(raw[4:4 + h]), np.frombuffer(raw[4 + h:], np.uint8)
            m = head['rows']
            b = body[:15 * m].reshape(3, 5, m).transpose(0, 2, 1)
            ws = np.zeros((3, m, 8), np.uint8)
            ws[:, :, :5] = b
            ws[:, :, 5:] = np.where(b[:, :, 4:] == 255, 255, 0)
            engines = np.ascontiguousarray(body[15 * m:].reshape(3, 2, m).transpose(0, 2, 1)).view(np.uint16).reshape(3, m)
            rows = table(chunk_rows(head['chunk'], listed, modules))
            if cw.fnv([int(v) for v in rows[:50].ravel() & 0xffffffff]) != head['digest']: raise SystemExit(f'chunk {head["chunk"]} was drawn from another list')
            yield head['chunk'], rows, np.ascontiguousarray(ws).view(np.int64).reshape(3, m).T, engines.T, head['engines']


def rows(out, to, path=''):
    names, parts = {'': 0}, []
    for number, r, ws, e, local in read(out, path):
        parts.append((np.full(len(r), number), r, ws, np.array([names.setdefault(s, len(names)) for s in local], np.int32)[e]))
    number, r, ws, e = (np.concatenate(v) for v in zip(*parts))
    np.savez(to, chunk=number, rows=r, ws=ws, engines=e, names=np.array(list(names)))
    print(len(r), 'rows,', len(names), 'engines and knobs')


if __name__ == '__main__':
    commands = {'measure': measure, 'rows': rows}
    if len(sys.argv) < 4 or sys.argv[1] not in commands: sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
