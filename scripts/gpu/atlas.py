"""Operator atlas: drives every call that graph/aten knows, forward and backward, on a GPU and writes what the caching allocator saw.

    python atlas.py OUT.jsonl.xz [--seconds N] [--only OP,...] [--device cpu]
    python atlas.py OUT.jsonl.xz --compose N     random compositions of 10 to 40 calls

The cases are drawn from a fixed seed, operator by operator: shapes, types, autocast, memory formats, expanded, sliced and transposed
operands, which operands require gradients, the operator's options. Each runs alone: operands exist before it. An operand of kind "a"
is an activation (the result of a node that lets go of its gradient), "p" a parameter, "c" requires no gradient. The results go to a
node that makes their gradients when backward comes to it and keeps nothing.

Line 1 of the output: versions, card, date, command. Then one case a line:
  calls      of a composition (op is compose), calls as below, in which {v: [call, result]} is a result; it lives until its last use
  op, over   ATen name and overload; a trailing _ of an in-place call is in "in": 1
  a, k       positional and keyword arguments. A tensor is {s shape, t strides unless contiguous, o offset, n elements of its storage if
             more or fewer than its own, d type, k kind}; {"dtype": x} and {"mf": x} are a dtype and a memory format
  ac         autocast type, if any; g: layout of the gradients (like, contig, expand); which: "first" if only the first result gets one
  out        shape, strides and type of each result (null: none)
  f, b       events of forward and backward in order: "+BYTES" an allocation (requested bytes), "-I" the free of allocation I of the case
  l          of every allocation the index of its label: outermost ATen call, innermost, autograd node; {"label": ...} lines define them
"""
import argparse, gc, itertools, json, lzma, math, os, random, re, sys, time
os.environ.setdefault('TORCH_SYMBOLIZE_MODE', 'dladdr')
import torch

DT = dict(f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16, f64=torch.float64, i64=torch.int64, i32=torch.int32, u8=torch.uint8, b=torch.bool, c64=torch.complex64)
NAME = {v: k for k, v in DT.items()}
MARKS = dict(F=77771, B=77773, E=77777)
ROWS = []  # (operator, cases, generator)


def row(names, n):
    def add(f):
        for name in names.split(): ROWS.append((name, n, f))
        return f
    return add


def contiguous(s):
    st, n = [], 1
    for d in reversed(s): st.append(n); n *= max(d, 1)
    return st[::-1]


class Gen(random.Random):
    """Draws the operands of one case."""
    def start(self):
        self.mode = self.choices(['f32', 'amp', 'bf16', 'f16'], [42, 28, 18, 12])[0]
        self.p = {'f32': 'f32', 'amp': 'f32'}.get(self.mode, self.mode)
        self.x = self.choice(['f32', 'bf16']) if self.mode == 'amp' else self.p
        self.extra = {}

    def yes(self, p): return self.random() < p

    def shape(self, nd, top=None, low=0):
        """nd dims whose product is about 2 to a power drawn up to top."""
        if nd == 0: return []
        if top is None: top = 27 if self.yes(.03) else 23 if self.yes(.3) else 16
        total = self.uniform(min(2, top), top)
        cuts = [0] + sorted(self.uniform(0, total) for _ in range(nd - 1)) + [total]
        out = []
        for a, b in zip(cuts, cuts[1:]):
            v = 2 ** (b - a)
            out.append(max(1 + low, 2 ** round(b - a) if self.yes(.4) else int(v + .5)))
        return out

    def kind(self, p=.85): return 'a' if self.yes(p) else 'c'

    def T(self, s, k=None, d=None, lay=None, hi=None):
        """A tensor; lay: c contiguous, cl channels last, t transposed, p permuted, s sliced, e expanded, None any of them."""
        s = list(s); nd = len(s); t = dict(s=s, d=d or self.x, k=k or self.kind())
        if hi is not None: t['hi'] = hi
        if lay is None: lay = self.choices(['c', 't', 'p', 's', 'e', 'cl'], [70, 7, 5, 8, 4, 6])[0]
        st = contiguous(s); n = math.prod(s); off = 0
        if lay == 'cl' and nd in (4, 5):
            order = [0] + list(range(2, nd)) + [1]
            st = self.strides(s, order)
        elif lay == 't' and nd >= 2: st = self.strides(s, list(range(nd - 2)) + [nd - 1, nd - 2])
        elif lay == 'p' and nd >= 2: o = list(range(nd)); self.shuffle(o); st = self.strides(s, o)
        elif lay == 's' and nd >= 1:
            d_ = self.randrange(nd); big = list(s); big[d_] += self.randint(1, 5)
            st = contiguous(big); n = math.prod(big); off = self.randint(0, big[d_] - s[d_]) * st[d_]
        elif lay == 'e' and nd >= 1:
            d_ = self.randrange(nd)
            if s[d_] > 1 and n:
                one = list(s); one[d_] = 1; st = contiguous(one); st[d_] = 0; n = math.prod(one)
        if st != contiguous(s): t['t'] = st
        if n != math.prod(s): t['n'] = n
        if off: t['o'] = off
        return t

    def strides(self, s, order):
        st, n = [0] * len(s), 1
        for d in reversed(order): st[d] = n; n *= max(s[d], 1)
        return st

    def P(self, s, prob=.85): return self.T(s, 'p' if self.yes(prob) else 'c', self.p, 'c')
    def I(self, s, hi, d='i64', lay='c'): return self.T(s, 'c', d, lay, hi)
    def M(self, s, lay=None): return self.T(s, 'c', 'b', lay)


def call(op, over, *a, **k): return dict(op=op, over=over, a=list(a), k=k)


# -- elementwise ------------------------------------------------------------------------------------------------------------------
UNARY = ('relu relu6 hardtanh threshold tanh sigmoid silu gelu mish hardswish hardsigmoid leaky_relu elu celu selu softplus log_sigmoid exp expm1 log log2 log10 log1p sqrt rsqrt '
         'reciprocal square sin cos tan atan sinh cosh erf abs neg floor ceil round sign asin acos asinh acosh atanh erfc erfinv sinc exp2 logit hardshrink softshrink nan_to_num frac '
         'trunc lgamma sgn clamp_min clamp_max deg2rad rad2deg')
OPT = dict(hardtanh=lambda r: [-r.random(), r.random()], threshold=lambda r: [.1, .5], leaky_relu=lambda r: [.2], elu=lambda r: [1.5], celu=lambda r: [1.5], softplus=lambda r: r.choice([[], [2.0, 10.0]]),
           logit=lambda r: r.choice([[], [1e-6]]), clamp_min=lambda r: [.1], clamp_max=lambda r: [.1])


@row(UNARY, 10)
def unary(r, op):
    x = r.T(r.shape(r.randint(0, 5)))
    a = OPT.get(op, lambda r: [])(r)
    k = {'approximate': 'tanh'} if op == 'gelu' and r.yes(.4) else {}
    c = call(op, 'default', x, *a, **k)
    if r.yes(.25) and hasattr(torch.ops.aten, op + '_') and x.get('n', 0) >= 0 and 0 not in x.get('t', [1]): c['in'] = 1
    return c


def pairs(r, op=None):
    s = r.shape(r.randint(0, 5)); a = r.T(s); u = r.random()
    if u < .35: b = r.T(s)
    elif u < .6:
        t = [d if r.yes(.5) else 1 for d in s][r.randint(0, len(s)):] if s else []
        b = r.T(t, lay='c') if r.yes(.5) else r.P(t)
    elif u < .7: b = r.T(s, d=r.choice(['f32', 'bf16', 'f16', 'i64']), k='c')
    elif u < .8: b = r.T([], lay='c', d=r.choice(['f32', r.x]))
    else: return a, r.choice([2, .5, 3])
    return (b, a) if r.yes(.15) else (a, b)


@row('add sub mul div', 40)
def arithmetic(r, op):
    a, b = pairs(r)
    k = {'alpha': 2} if op in ('add', 'sub') and r.yes(.15) else {}
    c = call(op, 'Tensor', a, b, **k)
    sb = b['s'] if isinstance(b, dict) else []
    if r.yes(.25) and 0 not in a.get('t', [1]) and a['k'] != 'p' and len(sb) <= len(a['s']) and all(y in (1, x) for x, y in zip(a['s'][::-1], sb[::-1])) and not (isinstance(b, dict) and b['d'] not in (a['d'], 'i64')):
        c['in'] = 1
    return c


@row('rsub', 8)
def rsub(r, op): return call(op, 'Scalar', r.T(r.shape(r.randint(0, 4))), r.choice([1, .5]))


@row('pow', 30)
def power(r, op):
    a, b = pairs(r)
    if isinstance(b, dict): return call('pow', 'Tensor_Tensor', a, b)
    return call('pow', 'Tensor_Scalar', a, r.choice([2, 3, .5, 2.0, -1, 1, 0, 4.5, -0.5]))


@row('maximum minimum atan2 xlogy hypot', 16)
def binary(r, op):
    while True:
        a, b = pairs(r)
        if isinstance(b, dict) and 'i64' not in (a['d'], b['d']): break
    return call(op, 'Tensor' if op == 'xlogy' else 'default', a, b)


@row('remainder fmod', 12)
def modulo(r, op):
    a, b = pairs(r)
    return call(op, 'Tensor' if isinstance(b, dict) else 'Scalar', a, b)


@row('addcmul addcdiv', 16)
def addc(r, op):
    s = r.shape(r.randint(1, 4))
    sub = lambda: r.T([d if r.yes(.7) else 1 for d in s])
    return call(op, 'default', r.T(s), sub(), sub(), **({'value': .5} if r.yes(.4) else {}))


@row('lerp', 16)
def lerp(r, op):
    s = r.shape(r.randint(1, 4))
    if r.yes(.5): return call(op, 'Scalar', r.T(s), r.T(s), .3)
    return call(op, 'Tensor', r.T(s), r.T(s), r.T(s if r.yes(.6) else s[-1:]))


@row('clamp', 20)
def clamp(r, op):
    s = r.shape(r.randint(1, 4)); x = r.T(s); u = r.random()
    if u < .6: return call(op, 'default', x, *r.choice([[.1, .8], [.1], [None, .8], [0, 1]]))
    return call(op, 'Tensor', x, *r.choice([[r.T(s)], [r.T(s), r.T(s)], [None, r.T(s[-1:], lay='c')], [r.T([], 'c', lay='c'), r.T([], 'c', lay='c')]]))


@row('glu', 16)
def glu(r, op):
    s = r.shape(r.randint(1, 4)); d = r.randrange(len(s)); s[d] *= 2
    return call(op, 'default', r.T(s), *([] if d == len(s) - 1 else [d]))


@row('prelu', 24)
def prelu(r, op):
    s = r.shape(r.randint(2, 5))
    return call(op, 'default', r.T(s), r.P([s[1] if r.yes(.6) else 1]))


@row('where', 30)
def where(r, op):
    s = r.shape(r.randint(1, 4)); m = r.M(s if r.yes(.6) else [d if r.yes(.5) else 1 for d in s]); u = r.random()
    if u < .6: return call(op, 'self', m, r.T(s), r.T(s if r.yes(.6) else s[-1:]))
    return call(op, *r.choice([('ScalarSelf', m, 0.0, r.T(s)), ('ScalarOther', m, r.T(s), 0.0), ('self', m, r.T(s), r.T([], 'c', lay='c'))]))


@row('masked_fill', 24)
def masked_fill(r, op):
    s = r.shape(r.randint(1, 4)); x = r.T(s); m = r.M(s if r.yes(.5) else [d if r.yes(.5) else 1 for d in s])
    if r.yes(.2): return call(op, 'Tensor', x, m, r.T([], r.choice('ca'), r.x, 'c'))
    c = call(op, 'Scalar', x, m, r.choice([0.0, -1e9 if r.x != 'f16' else -1e4]))
    if r.yes(.3) and 0 not in x.get('t', [1]): c['in'] = 1
    return c


@row('eq ne lt le gt ge', 8)
def compare(r, op):
    a, b = pairs(r)
    return call(op, 'Tensor' if isinstance(b, dict) else 'Scalar', a, b)


@row('logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor', 6)
def logical(r, op):
    s = r.shape(r.randint(0, 4)); d = r.choice(['b', 'i64']) if 'bit' in op else r.choice(['b', r.x])
    return call(op, 'Tensor' if 'bit' in op else 'default', r.T(s, 'c', d, hi=5), r.T(s, 'c', d, hi=5))


@row('logical_not isnan isinf isfinite bitwise_not', 6)
def tests(r, op): return call(op, 'default', r.T(r.shape(r.randint(0, 4)), 'c', 'b' if 'not' in op else r.x))


@row('floor_divide', 6)
def floor_divide(r, op): s = r.shape(2); return call(op, 'default', r.T(s, 'c'), r.T(s, 'c'))


@row('dropout native_dropout', 20)
def dropout(r, op):
    x = r.T(r.shape(r.randint(1, 5))); p = r.choice([0.0, .1, .5]) if op == 'dropout' else r.choice([.1, .5])
    return call(op, 'default', x, p, r.yes(.85) if op == 'dropout' else True)


@row('alpha_dropout feature_dropout', 8)
def odd_dropout(r, op): return call(op, 'default', r.T(r.shape(r.randint(2, 5))), r.choice([.1, .5]), True)


@row('bernoulli uniform normal_functional exponential', 4)
def random_fill(r, op):
    op = dict(normal_functional='normal').get(op, op); x = r.T(r.shape(r.randint(0, 3)), 'c', lay='c')
    c = call(op, 'float' if op == 'bernoulli' else 'default', x, *dict(bernoulli=[.3], uniform=[0.0, 1.0], normal=[0.0, 1.0], exponential=[1.0])[op]); c['in'] = 1
    return c


@row('zeros_like ones_like empty_like rand_like randn_like full_like', 5)
def likes(r, op): return call(op, 'default', r.T(r.shape(r.randint(0, 4)), 'c'), *([1.5] if op == 'full_like' else []))


@row('new_zeros new_ones new_empty new_full', 4)
def news(r, op): return call(op, 'default', r.T(r.shape(1), 'c'), r.shape(r.randint(0, 3)), *([1.5] if op == 'new_full' else []))


@row('arange zeros ones full empty rand randn randint scalar_tensor linspace eye tril_indices triu_indices', 5)
def creation(r, op):
    s = r.shape(r.randint(1, 3)); n = r.choice([3, 100, 4097])
    a = dict(arange=[n], full=[s, 2.0], randint=[7, s], scalar_tensor=[2.0], linspace=[0.0, 1.0, n], eye=[min(n, 1000)], tril_indices=[min(n, 300), min(n, 300)], triu_indices=[min(n, 300), min(n, 300)]).get(op, [s])
    return call(op, dict(zeros='default', ones='default', arange='default', empty='memory_format').get(op, 'default'), *a, device={'device': 1})


# -- reductions --------------------------------------------------------------------------------------------------------------------
def rdims(r, s): return sorted(r.sample(range(len(s)), r.randint(1, len(s)))) if s else []


@row('sum mean', 40)
def total(r, op):
    s = r.shape(r.randint(0, 5)); x = r.T(s)
    if r.yes(.25): return call(op, 'default', x)
    d = rdims(r, s)
    k = {'dtype': {'dtype': 'float32'}} if r.yes(.1) else {}
    return call(op, 'dim_IntList' if op == 'sum' else 'dim', x, d, r.yes(.5), **k)


@row('amax amin', 16)
def amax(r, op): s = r.shape(r.randint(1, 4)); return call(op, 'default', r.T(s), rdims(r, s), r.yes(.5))


@row('max min', 24)
def extreme(r, op):
    s = r.shape(r.randint(1, 4))
    if r.yes(.25): return call(op, 'default', r.T(s))
    return call(op, 'dim', r.T(s), r.randrange(len(s)), r.yes(.5))


@row('argmax argmin', 10)
def arg(r, op): s = r.shape(r.randint(1, 4)); return call(op, 'default', r.T(s, 'c'), r.choice([None, r.randrange(len(s))]), r.yes(.5))


@row('var std var_mean', 20)
def var(r, op):
    s = r.shape(r.randint(1, 4), low=1); x = r.T(s)
    return call(op, 'correction', x, r.choice([None, rdims(r, s), rdims(r, s)]), correction=r.choice([0, 1]), keepdim=r.yes(.5))


@row('linalg_vector_norm norm', 30)
def vector_norm(r, op):
    s = r.shape(r.randint(1, 4)); d = r.choice([None, rdims(r, s)]); o = r.choice([2, 2, 2, 1, 3, {'inf': 1}, 0.5])
    if op == 'norm':
        if d is None: return call(op, 'Scalar', r.T(s), o)
        return call(op, 'ScalarOpt_dim', r.T(s), o, d, r.yes(.5))
    return call(op, 'default', r.T(s), o, d, r.yes(.5), **({'dtype': {'dtype': 'float32'}} if r.yes(.1) else {}))


@row('logsumexp', 20)
def logsumexp(r, op): s = r.shape(r.randint(1, 4)); return call(op, 'default', r.T(s), rdims(r, s), r.yes(.5))


@row('prod', 20)
def prod(r, op):
    s = r.shape(r.randint(1, 3), top=16)
    return call(op, 'default', r.T(s)) if r.yes(.4) else call(op, 'dim_int', r.T(s), r.randrange(len(s)), r.yes(.5))


@row('softmax log_softmax', 50)
def softmax(r, op):
    s = r.shape(r.randint(1, 5)); d = len(s) - 1 if r.yes(.7) else r.randrange(len(s))
    return call(op, 'int', r.T(s), r.choice([d, d - len(s)]), *([{'dtype': 'float32'}] if r.yes(.2) else []))


@row('cumsum cumprod', 20)
def cumulative(r, op):
    s = r.shape(r.randint(1, 4), top=None if op == 'cumsum' else 16)
    return call(op, 'default', r.T(s) if r.yes(.8) or op == 'cumprod' else r.I(s, 9), r.randrange(len(s)))


@row('topk', 24)
def topk(r, op):
    s = r.shape(r.randint(1, 4)); d = len(s) - 1 if r.yes(.8) else r.randrange(len(s))
    return call(op, 'default', r.T(s), r.randint(1, min(s[d], 300)), d, True, r.yes(.7))


@row('sort', 24)
def sort(r, op): s = r.shape(r.randint(1, 4)); return call(op, 'default', r.T(s), r.choice([len(s) - 1, r.randrange(len(s))]), r.yes(.5))


@row('any all', 8)
def anyall(r, op):
    s = r.shape(r.randint(1, 3)); x = r.T(s, 'c', r.choice(['b', r.x]))
    return call(op, 'default', x) if r.yes(.5) else call(op, 'dim', x, r.randrange(len(s)))


@row('nonzero count_nonzero', 6)
def nonzero(r, op): x = r.M(r.shape(r.randint(1, 3)), 'c'); return call(op, 'default', x)


@row('bincount', 4)
def bincount(r, op): return call(op, 'default', r.I(r.shape(1), 50))


# -- losses -------------------------------------------------------------------------------------------------------------------------
@row('binary_cross_entropy binary_cross_entropy_with_logits', 20)
def bce(r, op):
    if op == 'binary_cross_entropy' and r.mode == 'amp': r.mode = 'f32'; r.x = r.p = 'f32'
    s = r.shape(r.randint(1, 4)); w = r.choice([None, None, r.T(s, 'c', lay='c')]); red = r.choice([0, 1, 1, 2])
    if op == 'binary_cross_entropy': return call(op, 'default', r.T(s), r.T(s, 'c'), w, red)
    return call(op, 'default', r.T(s), r.T(s, 'c'), w, r.choice([None, None, r.T(s[-1:], 'c', lay='c')]), red)


def classes(r):
    s = r.shape(r.choice([2, 2, 2, 1, 3, 4])); s = s if len(s) == 1 else [s[0], min(s[1], 50000)] + s[2:]
    c = s[0] if len(s) == 1 else s[1]
    return s, c, [] if len(s) == 1 else s[:1] + s[2:]


@row('cross_entropy_loss', 60)
def cross_entropy(r, op):
    s, c, t = classes(r); soft = r.yes(.12)
    target = r.T(s, r.choice('cca'), lay='c') if soft else r.I(t, c)
    return call(op, 'default', r.T(s), target, r.choice([None, None, None, r.T([c], 'c', r.p, 'c')]), r.choice([1, 1, 1, 2, 0]), -100, r.choice([0.0, 0.0, .1]))


@row('nll_loss_nd', 30)
def nll(r, op):
    s, c, t = classes(r)
    return call(op, 'default', r.T(s), r.I(t, c), r.choice([None, None, r.T([c], 'c', 'f32' if r.mode == 'amp' else r.x, 'c')]), r.choice([1, 1, 2, 0]), -100)


@row('mse_loss', 24)
def mse(r, op): s = r.shape(r.randint(0, 4)); return call(op, 'default', r.T(s), r.T(s, r.choice('cca')), r.choice([1, 1, 0, 2]))
@row('smooth_l1_loss', 24)
def smooth_l1(r, op): s = r.shape(r.randint(0, 4)); return call(op, 'default', r.T(s), r.T(s, r.choice('cca')), r.choice([1, 1, 0, 2]), r.choice([1.0, .5]))


# -- pooling, resizing -----------------------------------------------------------------------------------------------------------------
def image(r, n, top=None, low=0, lay=None, ch=None):
    s = [r.choice([1, 2, 3, 8, 32]), ch or r.choice([1, 3, 8, 16, 64, 129])]
    side = {1: [5, 17, 100, 1000, 16000], 2: [3, 7, 14, 33, 64, 112, 224], 3: [2, 5, 8, 16, 28, 40]}[n]
    s += [max(low, r.choice(side)) for _ in range(n)]
    while math.prod(s) > (1 << 26): s[0] = max(1, s[0] // 2); s[1] = max(1, s[1] // 2)
    if r.yes(.1): s = s[1:]
    if lay is None: lay = r.choices(['c', 'cl', 's', 'e', 't'], [66, 20, 7, 4, 3])[0]
    return r.T(s, lay=lay), s


def win(r, n, hi=4): v = r.randint(1, hi); return [v] * n if r.yes(.7) else [r.randint(1, hi) for _ in range(n)]


def nd(op): return int(re.search(r'(\d)d', op).group(1))


@row('max_pool1d max_pool2d max_pool3d', 30)
def max_pool(r, op):
    n = nd(op); x, s = image(r, n, low=9); k = win(r, n); k = [max(v, 2) for v in k]
    return call(op, 'default', x, k, r.choice([[], win(r, n, 3)]), [v // 2 if r.yes(.4) else 0 for v in k], r.choice([1, 1, 1, 2]) if n > 1 else 1, r.yes(.2)) if n > 1 else \
        call(op, 'default', x, k, r.choice([[], win(r, n, 3)]), [0], [1], r.yes(.2))


@row('avg_pool1d avg_pool2d avg_pool3d', 24)
def avg_pool(r, op):
    n = nd(op); x, s = image(r, n, low=9); k = win(r, n)
    return call(op, 'default', x, k, r.choice([[], win(r, n, 3)]), [v // 2 if r.yes(.4) else 0 for v in k], r.yes(.2), r.yes(.7))


@row('adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d', 24)
def adaptive(r, op):
    n = nd(op); x, s = image(r, n)
    return call(op, 'default', x, [1] * n if r.yes(.35) else [r.choice([1, 2, 3, 5, 7]) for _ in range(n)])


@row('upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d', 20)
def nearest(r, op):
    n = nd(op); x, s = image(r, n, top=20); x = batched(x, n)
    return call(op, 'vec', x, *(([max(1, int(d * r.choice([.5, 2, 1.5]))) for d in x['s'][2:]], None) if r.yes(.5) else (None, [r.choice([2.0, 1.5, .5])] * n)))


def batched(x, n):
    if len(x['s']) == n + 1:
        x['s'] = [1] + x['s']
        if 't' in x: x['t'] = [x.get('n', math.prod(x['s']))] + x['t']
    return x


@row('upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa', 36)
def linear_resize(r, op):
    n = {'upsample_linear1d': 1, 'upsample_trilinear3d': 3}.get(op, 2); x, s = image(r, n); x = batched(x, n)
    return call(op, 'vec', x, *(([max(1, int(d * r.choice([.5, 2, 1.5, 1]))) for d in x['s'][2:]], r.yes(.4), None) if r.yes(.6) else (None, r.yes(.3), [r.choice([2.0, 1.5, .5])] * n)))


@row('constant_pad_nd', 24)
def constant_pad(r, op):
    s = r.shape(r.randint(1, 5)); m = r.randint(1, len(s))
    return call(op, 'default', r.T(s), [r.choice([0, 1, 2, 3]) for _ in range(2 * m)], 0.0)


@row('pad', 16)
def pad(r, op):
    n = r.randint(1, 3); x, s = image(r, n, low=5)
    return call(op, 'default', x, [r.randint(0, 3) for _ in range(2 * n)], r.choice(['constant', 'reflect', 'replicate', 'circular']), None)


@row('reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d', 14)
def edge_pad(r, op): n = nd(op); x, s = image(r, n, low=5); return call(op, 'default', x, [r.randint(0, 3) for _ in range(2 * n)])


@row('grid_sampler', 30)
def grid(r, op):
    n = r.choice([2, 2, 3]); x, s = image(r, n); x = batched(x, n)
    return call(op, 'default', x, r.T([x['s'][0]] + [r.choice([4, 16, 33]) for _ in range(n)] + [n], d=x['d'] if r.mode != 'amp' else 'f32', lay='c'), r.choice([0, 1] + [2] * (n == 2)), r.choice([0, 1, 2]), r.yes(.5))


@row('im2col', 12)
def im2col(r, op): x, s = image(r, 2, low=9); return call(op, 'default', x, [3, 3], [1, 1], [r.randint(0, 1)] * 2, [r.randint(1, 2)] * 2)


@row('col2im', 10)
def col2im(r, op): n, c, h = r.choice([1, 4]), r.choice([3, 16]), r.choice([8, 20]); return call(op, 'default', r.T([n, c * 9, (h - 2) ** 2], lay='c'), [h, h], [3, 3], [1, 1], [0, 0], [1, 1])


# -- indexing --------------------------------------------------------------------------------------------------------------------------
@row('scatter', 24)
def scatter(r, op):
    s = r.shape(r.randint(1, 3)); d = r.randrange(len(s)); t = [max(1, int(v * r.random())) if r.yes(.5) else v for v in s]
    if r.yes(.4): return call(op, 'value', r.T(s), d, r.I(t, s[d]), 1.0)
    return call(op, 'src', r.T(s), d, r.I(t, s[d]), r.T(t))


@row('scatter_add', 20)
def scatter_add(r, op):
    s = r.shape(r.randint(1, 3)); d = r.randrange(len(s)); t = list(s); t[d] = r.randint(1, 2 * s[d])
    return call(op, 'default', r.T(s, d=r.x), d, r.I(t, s[d]), r.T(t, d=r.x))


@row('scatter_reduce', 16)
def scatter_reduce(r, op):
    s = r.shape(r.randint(1, 3), top=16); d = r.randrange(len(s))
    return call(op, 'two', r.T(s), d, r.I(s, s[d]), r.T(s), r.choice(['sum', 'mean', 'amax', 'amin', 'prod']), **({} if r.yes(.7) else {'include_self': False}))


@row('index_add', 16)
def index_add(r, op):
    s = r.shape(r.randint(1, 3)); d = r.randrange(len(s)); t = list(s); t[d] = r.randint(1, 2 * s[d])
    return call(op, 'default', r.T(s), d, r.I([t[d]], s[d]), r.T(t), **({'alpha': 2} if r.yes(.2) else {}))


def indices(r, s, masks=False):
    m = r.randint(1, len(s)); at = [r.randint(1, 5000)] if r.yes(.7) else r.shape(2, top=12)
    out = []
    for d in range(m):
        if r.yes(.3) and d < m - 1 and len(s) > 1: out.append(None)
        else: out.append(r.I(at if r.yes(.8) else [1] * len(at), s[d]))
    return out


@row('index', 50)
def index(r, op):
    s = r.shape(r.randint(1, 4), top=18); x = r.T(s) if r.yes(.7) else r.P(s)
    if r.yes(.15): return call(op, 'Tensor', x, [r.M(s[:r.randint(1, len(s))], 'c')])
    return call(op, 'Tensor', x, indices(r, s))


@row('index_put', 40)
def index_put(r, op):
    s = r.shape(r.randint(1, 3), top=16); idx = indices(r, s); x = r.T(s, lay='c')
    at = list(torch.broadcast_shapes(*[tuple(t['s']) for t in idx if t])); dims = [d for d, t in enumerate(idx) if t]
    lead = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    rest = [v for d, v in enumerate(s) if d not in dims]; sh = rest[:lead] + at + rest[lead:]
    v = r.T(sh, d=r.x, lay='c') if r.yes(.6) else r.T([], d=r.x, lay='c', k='c')
    c = call(op, 'default', x, idx, v, r.yes(.3)); c['in'] = 1
    return c


@row('embedding', 40)
def embedding(r, op):
    n, d = r.choice([10, 1000, 50257]), r.choice([8, 64, 768, 1023])
    s = r.shape(r.randint(0, 3), top=16 if r.yes(.9) else 20)
    return call(op, 'default', r.P([n, d]), r.I(s, n, r.choice(['i64', 'i64', 'i32']), r.choice(['c', 'c', 'c', 't'])), *r.choice([[], [], [0], [-1, True]]))


@row('embedding_bag', 20)
def embedding_bag(r, op):
    n, d = r.choice([10, 1000, 50257]), r.choice([8, 64, 128]); m = r.choice([5, 300, 5000, 20000]); bags = max(1, m // r.choice([1, 3, 8]))
    off = dict(s=[bags], d='i64', k='c', seq=m // bags); mode = r.choice([0, 0, 1, 2])
    psw = r.choice([None, r.T([m], d=r.p, lay='c')]) if mode == 0 else None
    return call(op, 'padding_idx' if r.yes(0) else 'default', r.P([n, d]), r.I([m], n), off, False, mode, False, psw, False)


@row('index_select', 30)
def index_select(r, op):
    s = r.shape(r.randint(1, 4)); d = r.randrange(len(s))
    return call(op, 'default', r.T(s) if r.yes(.7) else r.P(s), d, r.I([r.randint(1, 3000)], s[d], r.choice(['i64', 'i32'])) if math.prod(s) < 1 << 16 else r.I([r.randint(1, 2 * s[d])], s[d]))


@row('gather', 30)
def gather(r, op):
    s = r.shape(r.randint(1, 4)); d = r.randrange(len(s)); t = list(s); t[d] = r.randint(1, 2 * s[d])
    return call(op, 'default', r.T(s), d, r.I(t, s[d]))


@row('take_along_dim', 10)
def take_along(r, op):
    s = r.shape(r.randint(1, 3)); d = r.randrange(len(s)); t = list(s); t[d] = r.randint(1, s[d])
    return call(op, 'default', r.T(s), r.I(t, s[d]), d)


# -- normalisation ------------------------------------------------------------------------------------------------------------------------
@row('layer_norm', 60)
def layer_norm(r, op):
    s = r.shape(r.randint(1, 4)); m = 1 if r.yes(.7) else r.randint(1, len(s)); n = s[-m:]; w = r.yes(.85)
    return call(op, 'default', r.T(s), n, r.P(n) if w else None, r.P(n) if w and r.yes(.85) else None, 1e-5)


@row('rms_norm', 40)
def rms_norm(r, op):
    s = r.shape(r.randint(1, 4)); m = 1 if r.yes(.7) else r.randint(1, len(s)); n = s[-m:]
    return call(op, 'default', r.T(s), n, r.P(n) if r.yes(.85) else None, *r.choice([[], [1e-6]]))


@row('batch_norm', 140)
def batch_norm(r, op):
    n = r.randint(0, 3); u = r.yes(.85)
    if n == 0: s = [r.choice([2, 17, 300, 40000]), r.choice([1, 8, 64, 513, 2048])]; x = r.T(s)
    else:
        x, s = image(r, n); x = batched(x, n); s = x['s']
    c = s[1]; w = r.yes(.9); run = r.yes(.92); train = r.yes(.8) or not run; pd = r.p if r.yes(.75) else 'f32'
    par = lambda: dict(r.P([c]), d=pd); st = lambda: r.T([c], 'c', pd, 'c')
    return call(op, 'default', x, par() if w else None, par() if w else None, st() if run else None, st() if run else None, train, .1, 1e-5, True)


@row('group_norm', 70)
def group_norm(r, op):
    n = r.randint(0, 3); c = r.choice([4, 32, 64, 96, 320]); g = r.choice([g for g in (1, 2, 4, 8, 16, 32, c) if c % g == 0])
    if n == 0: x = r.T([r.choice([1, 2, 17, 300]), c]); s = x['s']
    else: x, s = image(r, n, ch=c); x = batched(x, n)
    w = r.yes(.9)
    return call(op, 'default', x, g, r.P([c]) if w else None, r.P([c]) if w else None, 1e-5)


@row('instance_norm', 50)
def instance_norm(r, op):
    n = r.randint(1, 3); x, s = image(r, n, low=3); x = batched(x, n); c = x['s'][1]; w = r.yes(.5); run = r.yes(.2)
    st = lambda: r.T([c], 'c', r.p, 'c')
    return call(op, 'default', x, r.P([c]) if w else None, r.P([c]) if w else None, st() if run else None, st() if run else None, True, .1, 1e-5, True)


@row('_weight_norm', 40)
def weight_norm(r, op):
    s = r.choice([[r.choice([8, 64, 512]), r.choice([8, 100, 512])], [r.choice([8, 64, 512]), r.choice([8, 32]), r.choice([1, 3, 7])], [32, 16, 3, 3]]); d = 0 if r.yes(.75) else len(s) - 1 if r.yes(.6) else r.randrange(len(s))
    g = [1] * len(s); g[d] = s[d]
    return call(op, 'default', r.P(s), r.P(g), d)


# -- products --------------------------------------------------------------------------------------------------------------------------------
def mk(r): return [r.choice([1, 2, 3, 7, 16, 31, 64, 100, 257, 768]) for _ in range(3)]


@row('linear', 70)
def linear(r, op):
    i, o = r.choice([1, 3, 16, 64, 100, 768]), r.choice([1, 3, 16, 64, 100, 3072]); s = r.shape(r.randint(0, 3), top=12) + [i]
    return call(op, 'default', r.T(s), r.P([o, i]), r.P([o]) if r.yes(.7) else None)


@row('matmul', 80)
def matmul(r, op):
    m, k, n = mk(r); b = r.shape(r.choice([0, 1, 2]), top=7); u = r.random()
    B = lambda: [d if r.yes(.85) else 1 for d in b]
    if u < .5: return call(op, 'default', r.T(B() + [m, k]), r.T(B() + [k, n]))
    if u < .65: return call(op, 'default', r.T(b + [m, k]), r.P([k, n]))
    if u < .75: return call(op, 'default', r.T(b + [m, k]), r.T([k, n]))
    if u < .83: return call(op, 'default', r.T([m, k]), r.T(b + [k, n]))
    if u < .9: return call(op, 'default', r.T(b + [m, k]), r.T([k]))
    if u < .96: return call(op, 'default', r.T([k]), r.T(b + [k, n]))
    return call(op, 'default', r.T([k]), r.T([k]))


@row('mm', 24)
def mm(r, op): m, k, n = mk(r); return call(op, 'default', r.T([m, k]), r.T([k, n]) if r.yes(.5) else r.P([k, n]))


@row('bmm', 24)
def bmm(r, op): m, k, n = mk(r); b = r.choice([1, 2, 12, 96]); return call(op, 'default', r.T([b, m, k]), r.T([b, k, n]))


@row('addmm', 40)
def addmm(r, op):
    m, k, n = mk(r); f = r.choice([{}, {}, dict(beta=.5), dict(alpha=2), dict(beta=2, alpha=.5)])
    return call(op, 'default', r.P(r.choice([[n], [n], [m, n], [1], [1, n]])), r.T([m, k]), r.T([k, n]) if r.yes(.5) else r.T([k, n], 'p', r.p, 't'), **f)


@row('baddbmm', 30)
def baddbmm(r, op):
    m, k, n = mk(r); b = r.choice([1, 2, 12, 96]); f = r.choice([{}, dict(beta=0), dict(alpha=.5), dict(beta=0, alpha=.125), dict(beta=2)])
    return call(op, 'default', r.T(r.choice([[b, m, n], [1, m, n], [m, n], [b, 1, n]])), r.T([b, m, k]), r.T([b, k, n]), **f)


@row('mv', 12)
def mv(r, op): m, k, n = mk(r); return call(op, 'default', r.T([m, k]), r.T([k]))


@row('dot vdot', 8)
def dot(r, op): k = r.choice([1, 100, 100000]); return call(op, 'default', r.T([k]), r.T([k]))


EINSUM = ['ij,jk->ik', 'bij,bjk->bik', 'bhid,bhjd->bhij', 'bhij,bhjd->bhid', 'bthd,bshd->bhts', 'bnd,hd->bnh', 'bnd,dhk->bhnk', 'i,j->ij', 'bi,bj->bij', 'bij->bji', 'bij->bi', 'ii->i', 'bij,bij->b',
          'nctv,vw->nctw', 'nkctv,kvw->nctw', 'bchw,cd->bdhw', 'bld,bld->bl', '...ij,jk->...ik', 'bhwc,hkc->bhwk', 'bhwc,wkc->bhwk', 'ij,ij->', 'bqd,bkd->bqk', 'b i, j i -> b j', 'i,i->', 'ij,jk', 'bn,bnd->bd']


@row('einsum', 80)
def einsum(r, op):
    eq = r.choice(EINSUM); size = {l: r.choice([1, 2, 3, 8, 16, 33, 64]) for l in 'abcdefghijklmnopqrstuvwxyz'}; lhs = eq.replace(' ', '').split('->')[0]
    ops = [r.T([size[l] for l in t.replace('...', 'xy')]) for t in lhs.split(',')]
    return call(op, 'default', eq, ops)


@row('lstm gru rnn_tanh rnn_relu', 60)
def rnn(r, op):
    g = dict(lstm=4, gru=3).get(op, 1); L = r.choice([1, 1, 2, 3]); D = r.choice([1, 2]); H = r.choice([16, 64, 100, 256, 512]); I = r.choice([8, 40, 128, 256]); B = r.choice([1, 4, 32, 64]); Tn = r.choice([1, 7, 50, 128])
    bias = r.yes(.85); first = r.yes(.6); drop = r.choice([0.0, 0.0, .3]) if L > 1 else 0.0; par = []; fz = .92
    k = 'p' if r.yes(.9) else 'c'
    for l in range(L):
        for _ in range(D):
            i = I if l == 0 else H * D
            par += [[g * H, i], [g * H, H]] + ([[g * H], [g * H]] if bias else [])
    x = r.T([B, Tn, I] if first else [Tn, B, I], lay=r.choice(['c', 'c', 'c', 't', 's']))
    xd = r.x if r.mode != 'amp' else r.choice(['f32', 'bf16'])
    h = lambda: r.T([L * D, B, H], r.choice('cca'), r.x if r.mode != 'amp' else 'f32', 'c')
    c = call(op, 'input', x, [h(), h()] if op == 'lstm' else h(), [r.T(s, k, r.p, 'c') for s in par], bias, L, drop, r.yes(.9), D == 2, first)
    c['flat'] = 1 if r.yes(.9) and r.p != 'bf16' else 0  # bfloat16 parameters are never kept in one buffer
    if r.yes(.6): c['which'] = 'first'
    return c


@row('scaled_dot_product_attention', 320)
def sdpa(r, op):
    d = r.choice([16, 32, 40, 64, 64, 64, 80, 96, 128, 128, 160, 192, 256, 6, 13, 100, 264]); h = r.choice([1, 2, 8, 12, 16]); b = r.choice([1, 2, 4, 8]); m = r.choice([1, 2, 16, 63, 128, 197, 256, 512, 1024]); n = m if r.yes(.6) else r.choice([1, 7, 77, 128, 300, 512])
    gqa = r.yes(.12); hk = r.choice([v for v in (1, 2, 4, h) if h % v == 0]) if gqa else h; dv = d if r.yes(.93) else r.choice([32, 64, 128])
    causal = r.yes(.25); kw = {}
    if gqa: kw['enable_gqa'] = True
    if r.yes(.1): kw['scale'] = .2
    def q(hh, ll, dd):
        u = r.random()
        if u < .45: return r.T([b, hh, ll, dd], k, lay='c')
        if u < .9:  # [b, l, h, d] seen as [b, h, l, d]
            t = r.T([b, hh, ll, dd], k, lay='c'); t['t'] = [ll * hh * dd, dd, hh * dd, 1]; return t
        t = r.T([b, hh, ll, dd], k, lay='c'); t['t'] = [ll * 3 * hh * dd, dd, 3 * hh * dd, 1]; t['n'] = b * ll * 3 * hh * dd; return t  # a slice of qkv
    k = 'a' if r.yes(.9) else 'c'
    mask = None
    if not causal and r.yes(.45):
        ms = r.choice([[b, 1, m, n], [b, h, m, n], [1, 1, m, n], [m, n], [b, 1, 1, n], [1, h, m, n]])
        if r.yes(.4): mask = r.M(ms, 'c')
        else: mask = r.T(ms, r.choice('cccap'), r.x if r.mode != 'amp' else r.choice([r.x, 'bf16', 'f32']), 'c')
        if mask['k'] == 'p': mask['d'] = r.p
        if r.yes(.25) and len(ms) == 4 and ms[1] == 1:  # expanded over the heads
            mask['t'] = [m * n if ms[2] != 1 else n, 0, n if ms[2] != 1 else 0, 1]; mask['n'] = math.prod(ms); mask['s'] = [b, h, m, n]
            if ms[0] == 1 and b > 1: mask['t'][0] = 0
    c = call(op, 'default', q(h, m, d), q(hk, n, d), q(hk, n, dv), mask, r.choice([0.0, 0.0, 0.0, .1]), causal, **kw)
    if r.yes(.06) and mask is None and not gqa:
        for t in c['a'][:3]: t['s'] = t['s'][1:]; t.pop('t', None); t.pop('n', None)
    return c


def conv_case(r, n, transposed, s, k, kern, stride, pad, dil, groups, outpad, bias, lay):
    c = s[1]; w = [c, k // groups] + kern if transposed else [k, c // groups] + kern
    x = r.T(s, 'a' if r.yes(.88) else 'c', lay=lay); W = r.P(w, .93)
    if lay == 'cl' and n > 1 and r.yes(.6): W = r.T(w, W['k'], r.p, 'cl')
    b = r.P([k], .95) if bias else None
    return call(f'conv_transpose{n}d', 'default' if n == 1 else 'input', x, W, b, stride, pad, outpad, groups, dil) if transposed else call(f'conv{n}d', 'default', x, W, b, stride, pad, dil, groups)


@row('conv1d', 110)
@row('conv2d', 220)
@row('conv3d', 330)
@row('conv_transpose1d', 70)
@row('conv_transpose2d', 120)
@row('conv_transpose3d', 170)
def conv(r, op):
    n = nd(op); tr = 'transpose' in op; ch = [1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256]
    side = {1: [4, 16, 63, 100, 500, 4000, 16000], 2: [4, 7, 8, 14, 16, 28, 32, 56, 64, 112], 3: [2, 4, 7, 8, 14, 16, 28, 32, 56]}[n]
    while True:
        c, k = r.choice(ch), r.choice(ch); groups = 1; u = r.random()
        if u < .15: groups = c; k = c * r.choice([1, 1, 1, 2])
        elif u < .22:
            groups = r.choice([2, 4, 8])
            if c % groups or k % groups: continue
        ks = r.choice([1, 1, 2, 3, 3, 3, 3, 4, 5, 7]); kern = [ks] * n
        if r.yes(.2): kern = [r.choice([1, 2, 3, 4, 5, 7]) for _ in range(n)]
        st = r.choice([1, 1, 1, 2, 2, 3]); stride = [st] * n
        if r.yes(.1): stride = [r.choice([1, 2]) for _ in range(n)]
        pad = [v // 2 for v in kern] if r.yes(.7) else [r.choice([0, 1]) for _ in kern]; pad = [min(p, v) for p, v in zip(pad, kern)]
        dil = [1] * n if r.yes(.88) else [r.choice([2, 3])] * n; outpad = [0] * n
        if tr and r.yes(.3): outpad = [1 if v > 1 else 0 for v in stride]
        h = r.choice(side); sp = [h] * n if r.yes(.7) else [r.choice(side) for _ in range(n)]; b = r.choice([1, 2, 3, 4, 8, 16, 32, 64, 258])
        if not tr and any(x + 2 * p < d * (q - 1) + 1 for x, p, d, q in zip(sp, pad, dil, kern)): continue
        if tr and any((x - 1) * s_ - 2 * p + d * (q - 1) + o + 1 < 1 for x, s_, p, d, q, o in zip(sp, stride, pad, dil, kern, outpad)): continue
        out = math.prod((x - 1) * s_ + d * (q - 1) + 1 for x, s_, d, q in zip(sp, stride, dil, kern)) if tr else math.prod(-(-x // s_) for x, s_ in zip(sp, stride))
        e = max(b * c * math.prod(sp), b * k * out)
        if e > (1 << 28 if r.yes(.03) else 1 << 23): continue
        if e * math.prod(kern) * (c if tr else c // groups) > 1 << 36: continue
        lay = r.choices(['c', 'cl', 's', 't', 'e'], [70, 22, 4, 2, 2])[0]
        return conv_case(r, n, tr, [b, c] + sp, k, kern, stride, pad, dil, groups, outpad, r.yes(.5), lay)


@row('_depthwise', 60)
def depthwise(r, op):
    n = r.choice([1, 2, 2, 2, 3]); c = r.choice([16, 32, 96, 144, 192, 384, 960]); ks = r.choice([3, 3, 5, 7]); b = r.choice([8, 64, 128, 200, 256, 258]); h = {1: r.choice([100, 1000]), 2: r.choice([7, 14, 28, 56, 112]), 3: r.choice([7, 14])}[n]
    while b * c * h ** n > 1 << 28: b //= 2
    return conv_case(r, n, False, [b, c] + [h] * n, c, [ks] * n, [r.choice([1, 2])] * n, [ks // 2] * n, [1] * n, c, None, r.yes(.4), r.choice(['c', 'c', 'cl']))


@row('_biasmap', 24)
def biasmap(r, op):
    n = r.choice([2, 2, 3]); c = r.choice([8, 16, 64]); h = r.choice([128, 256, 512]) if n == 2 else r.choice([32, 48, 64]); b = r.choice([1, 2, 8, 16])
    while b * c * h ** n > 1 << 28: b = max(1, b // 2); c = c if b > 1 else c // 2
    return conv_case(r, n, r.yes(.3), [b, c] + [h] * n, r.choice([1, 8, 32]), [r.choice([1, 3])] * n, [1] * n, [0] * n, [1] * n, 1, [0] * n, True, r.choice(['c', 'c', 'cl']))


# -- views and copies ------------------------------------------------------------------------------------------------------------------------
def fac(r, n):
    out = []
    for p in (2, 3, 5, 7):
        while n % p == 0 and r.yes(.5): out.append(p); n //= p
    return out + [n]


@row('view reshape', 16)
def view(r, op):
    s = r.shape(r.randint(1, 4)); t = fac(r, math.prod(s)); r.shuffle(t)
    return call('reshape', 'default', r.T(s), r.choice([t, [-1] + t[1:], [-1]]))


@row('flatten', 12)
def flatten(r, op): s = r.shape(r.randint(1, 4)); a = r.randrange(len(s)); return call(op, 'using_ints', r.T(s), a, r.randint(a, len(s) - 1))


@row('unflatten', 8)
def unflatten(r, op): s = r.shape(3); s[1] *= 4; return call(op, 'int', r.T(s), 1, r.choice([[4, -1], [2, -1, 2]]))


@row('transpose', 6)
def transpose(r, op): s = r.shape(r.randint(2, 4)); return call(op, 'int', r.T(s), *r.sample(range(len(s)), 2))


@row('permute', 6)
def permute(r, op): s = r.shape(r.randint(1, 4)); o = list(range(len(s))); r.shuffle(o); return call(op, 'default', r.T(s), o)


@row('expand', 16)
def expand(r, op):
    s = [d if r.yes(.6) else 1 for d in r.shape(r.randint(1, 4), top=12)]
    return call(op, 'default', r.T(s), [r.randint(1, 5)] * r.randint(0, 1) + [r.choice([-1, d]) if d > 1 else r.randint(1, 9) for d in s])


@row('unsqueeze', 5)
def unsqueeze(r, op): s = r.shape(r.randint(0, 3)); return call(op, 'default', r.T(s), r.randint(0, len(s)))


@row('squeeze', 6)
def squeeze(r, op): s = r.shape(3); s[1] = 1; return call(op, *r.choice([('dim', r.T(s), 1), ('default', r.T(s)), ('dim', r.T(s), 0)]))


@row('slice', 12)
def slice_(r, op):
    s = r.shape(r.randint(1, 4), low=1); d = r.randrange(len(s)); a = r.randrange(s[d])
    return call(op, 'Tensor', r.T(s), d, a, r.choice([s[d], 9223372036854775807, r.randint(a + 1, s[d])]), r.choice([1, 1, 2]))


@row('narrow', 6)
def narrow(r, op): s = r.shape(3, low=2); return call(op, 'default', r.T(s), 1, 1, s[1] - 1)


@row('select', 8)
def select(r, op): s = r.shape(r.randint(1, 4)); d = r.randrange(len(s)); return call(op, 'int', r.T(s), d, r.randrange(s[d]))


@row('unfold', 8)
def unfold(r, op): s = r.shape(3, low=4); d = r.randrange(3); return call(op, 'default', r.T(s), d, r.randint(1, 4), r.randint(1, 3))


@row('diagonal', 8)
def diagonal(r, op): s = r.shape(3, low=3); return call(op, 'default', r.T(s), r.choice([0, 1, -1]), *r.sample(range(3), 2))


@row('split chunk', 12)
def split(r, op):
    s = r.shape(r.randint(1, 4), low=2); d = r.randrange(len(s))
    if op == 'chunk': return call(op, 'default', r.T(s), r.choice([2, 3]), d)
    n = r.choice([-(-s[d] // 2), -(-s[d] // 3), max(1, s[d] - 1)])
    return call(op, 'Tensor', r.T(s), n, d)


@row('split_with_sizes', 10)
def split_sizes(r, op):
    s = r.shape(r.randint(1, 4), low=3); d = r.randrange(len(s))
    return call(op, 'default', r.T(s), [1, s[d] - 2, 1], d)


@row('unbind', 8)
def unbind(r, op): s = r.shape(3, top=12); d = r.randrange(3); s[d] = r.randint(1, 4); return call(op, 'int', r.T(s), d)


@row('atleast_1d atleast_2d atleast_3d', 4)
def atleast(r, op): return call(op, 'default', r.T(r.shape(r.randint(0, 3))))


@row('alias detach', 4)
def alias(r, op): return call(op, 'default', r.T(r.shape(2)))


@row('clone', 14)
def clone(r, op):
    s = r.shape(r.randint(0, 5))
    return call(op, 'default', r.T(s), **r.choice([{}, {}, {'memory_format': {'mf': 'torch.contiguous_format'}}] + [{'memory_format': {'mf': 'torch.channels_last'}}] * (len(s) == 4)))


@row('contiguous', 12)
def contig(r, op): return call(op, 'default', r.T(r.shape(r.randint(0, 5))))


@row('type_as', 8)
def type_as(r, op): s = r.shape(2); return call(op, 'default', r.T(s), r.T([2], 'c', r.choice(['f32', 'bf16', 'f16']), 'c'))


@row('_to_copy to', 14)
def to(r, op):
    x = r.T(r.shape(r.randint(0, 5))); d = {'dtype': r.choice(['float32', 'bfloat16', 'float16', 'int64'])}
    return call('to', 'dtype', x, d) if op == 'to' else call(op, 'default', x, dtype=d)


@row('cat', 40)
def cat(r, op):
    s = r.shape(r.randint(1, 5)); d = r.randrange(len(s)); ts = []; lay = r.choice(['c', 'cl', None])
    for _ in range(r.randint(1, 4)):
        t = list(s); t[d] = max(1, t[d] + r.randint(-1, 2)); ts.append(r.T(t, lay=lay, d=r.x if r.yes(.9) else r.choice(['f32', 'bf16'])))
    return call(op, 'default', ts, d)


@row('stack', 20)
def stack(r, op):
    s = r.shape(r.randint(0, 4))
    return call(op, 'default', [r.T(s) for _ in range(r.randint(1, 4))], r.randint(0, len(s)))


@row('repeat tile', 14)
def repeat(r, op):
    s = r.shape(r.randint(1, 3), top=14); k = [r.randint(1, 3) for _ in range(len(s) + r.randint(0, 1))]
    return call(op, 'default', r.T(s), k)


@row('roll', 12)
def roll(r, op): s = r.shape(r.randint(1, 4)); d = rdims(r, s); return call(op, 'default', r.T(s), [r.randint(-2, 2) for _ in d], d)


@row('flip', 8)
def flip(r, op): s = r.shape(r.randint(1, 4)); return call(op, 'default', r.T(s), rdims(r, s))


@row('pixel_shuffle pixel_unshuffle', 12)
def pixel(r, op):
    f = r.choice([2, 3]); c = r.choice([1, 3, 16]); h = r.choice([4, 16, 33])
    s = [2, c * f * f, h, h] if op == 'pixel_shuffle' else [2, c, h * f, h * f]
    return call(op, 'default', r.T(s), f)


@row('channel_shuffle', 6)
def channel_shuffle(r, op): return call(op, 'default', r.T([2, 12, 9, 9]), 3)


@row('repeat_interleave', 16)
def repeat_interleave(r, op):
    s = r.shape(r.randint(1, 3), top=14); d = r.randrange(len(s))
    if r.yes(.6): return call(op, 'self_int', r.T(s), r.randint(1, 3), d)
    return call(op, 'self_Tensor', r.T(s), r.I([s[d]], 4), d)


@row('triu tril', 10)
def triu(r, op): return call(op, 'default', r.T(r.shape(r.randint(2, 4))), r.choice([0, 1, -1]))


# -- compositions -----------------------------------------------------------------------------------------------------------------------------
class Program:
    """A random composition: calls on the results of earlier ones, {"v": [call, result]}."""
    def __init__(self, r):
        self.r, self.calls, self.seen = r, [], []  # seen: (value, shape)
        b = r.choice([1, 2, 4, 8])
        s = r.choice([[b, r.choice([3, 8, 16]), r.choice([16, 33, 56])], [b, r.choice([7, 64, 128]), r.choice([32, 64, 96])], [b * 8, r.choice([32, 64])]])
        if len(s) == 3 and s[1] in (3, 8, 16): s = s + s[2:]
        self.cur = self.put('mul', 'Tensor', s, r.T(s, r.choice('ac'), lay=r.choice(['c', 'c', 'cl'])), 1.0 if r.yes(.5) else 2)

    def put(self, op, over, s, *a, **k):
        self.calls.append(call(op, over, *a, **k)); v = ({'v': [len(self.calls) - 1, 0]}, s); self.seen.append(v)
        return v

    def step(self):
        r, (v, s) = self.r, self.cur; q = self.put
        earlier = [w for w, t in self.seen if t == s and w != v]
        anys = ['act', 'act', 'scale', 'dropout'] + ['join'] * 3 * bool(earlier)
        kind = r.choice(anys + {4: ['conv'] * 5 + ['bn'] * 3 + ['gn', 'pool', 'up', 'se', 'cat', 'tokens', 'relu_'], 3: ['linear'] * 3 + ['ln'] * 2 + ['attend', 'glu', 'soft', 'cut', 'flip', 'pool1', 'norm', 'gram'], 2: ['linear'] * 3 + ['bn', 'ln', 'gate', 'l2']}[len(s)])
        n = s[-1]
        if kind == 'act': return q(*r.choice([('relu', 'default', s, v), ('gelu', 'default', s, v), ('silu', 'default', s, v), ('sigmoid', 'default', s, v), ('tanh', 'default', s, v), ('hardswish', 'default', s, v), ('leaky_relu', 'default', s, v, .1), ('softplus', 'default', s, v)]))
        if kind == 'relu_':
            if self.calls[-1]['op'] not in ('batch_norm', 'conv2d'): return self.cur
            w = q('relu', 'default', s, v); self.calls[-1]['in'] = 1; self.seen = [x for x in self.seen if x[0] != v]
            return w
        if kind == 'scale': return q(r.choice(['mul', 'add', 'div']), 'Tensor', s, v, r.choice([.5, 2]))
        if kind == 'dropout': return q('dropout', 'default', s, v, .1, True)
        if kind == 'join': return q(r.choice(['add', 'add', 'mul', 'sub']), 'Tensor', s, v, r.choice(earlier))
        if kind == 'conv':
            g = s[1] if r.yes(.2) else 1; k = s[1] * r.choice([1, 1, 2]) if g > 1 else r.choice([8, 16, 32, 64]); ks = r.choice([1, 3, 3]); st = r.choice([1, 1, 2])
            return q('conv2d', 'default', [s[0], k] + [(d + 2 * (ks // 2) - ks) // st + 1 for d in s[2:]], v, r.P([k, s[1] // g, ks, ks], 1), r.P([k], 1) if r.yes(.4) else None, [st] * 2, [ks // 2] * 2, [1, 1], g)
        if kind == 'bn':
            st = lambda: r.T([s[1]], 'c', 'f32' if r.mode == 'amp' else r.p, 'c')
            return q('batch_norm', 'default', s, v, r.P([s[1]], 1), r.P([s[1]], 1), st(), st(), True, .1, 1e-5, True) if s[0] > 1 else self.cur
        if kind == 'gn': return q('group_norm', 'default', s, v, 1, r.P([s[1]], 1), r.P([s[1]], 1), 1e-5)
        if kind == 'pool': return q(*r.choice([('max_pool2d', 'default', [s[0], s[1]] + [d // 2 for d in s[2:]], v, [2, 2]), ('avg_pool2d', 'default', [s[0], s[1]] + [d // 2 for d in s[2:]], v, [2, 2])])) if min(s[2:]) > 3 else self.cur
        if kind == 'up': t = [d * 2 for d in s[2:]]; return q('upsample_' + r.choice(['nearest2d', 'bilinear2d']), 'vec', s[:2] + t, v, t, *((False,) if 0 else ()), None) if 0 else self.up(v, s, t)
        if kind == 'se':
            w, t = q('mean', 'dim', s[:2] + [1, 1], v, [2, 3], True); w, t = q('conv2d', 'default', t, w, r.P([s[1], s[1], 1, 1], 1), r.P([s[1]], 1)); w, t = q('sigmoid', 'default', t, w)
            return q('mul', 'Tensor', s, v, w)
        if kind == 'cat': return q('cat', 'default', [s[0], s[1] * 2] + s[2:], [v, r.choice(earlier or [v])], 1) if s[1] < 128 else self.cur
        if kind == 'tokens':
            w, t = q('flatten', 'using_ints', s[:2] + [s[2] * s[3]], v, 2, -1)
            return q('transpose', 'int', [s[0], t[2], s[1]], w, 1, 2)
        if kind == 'linear':
            o = r.choice([n, n, 32, 64, 128]); return q('linear', 'default', s[:-1] + [o], v, r.P([o, n], 1), r.P([o], 1) if r.yes(.7) else None)
        if kind == 'ln': return q('layer_norm', 'default', s, v, [n], r.P([n], 1), r.P([n], 1), 1e-5)
        if kind == 'soft': return q(r.choice(['softmax', 'log_softmax']), 'int', s, v, -1)
        if kind == 'flip': return q('transpose', 'int', [s[0], s[2], s[1]], v, 1, 2) if s[1] <= 256 else self.cur
        if kind == 'cut': return q('slice', 'Tensor', [s[0], s[1] - 1, n], v, 1, 1, s[1]) if s[1] > 2 else self.cur
        if kind == 'pool1': return q('mean', 'dim', [s[0], n], v, [1], False)
        if kind == 'norm': w, _ = q('linalg_vector_norm', 'default', s[:-1] + [1], v, 2, [-1], True); return q('div', 'Tensor', s, v, w)
        if kind == 'l2': w, _ = q('linalg_vector_norm', 'default', s[:-1] + [1], v, 2, [-1], True); w, t = q('clamp_min', 'default', s[:-1] + [1], w, 1e-6); return q('div', 'Tensor', s, v, w)
        if kind == 'gate': w, _ = q('linear', 'default', s, v, r.P([n, n], 1), r.P([n], 1)); w, _ = q('sigmoid', 'default', s, w); return q('mul', 'Tensor', s, v, w)
        if kind == 'glu':
            if n % 2: return self.cur
            return q('glu', 'default', s[:-1] + [n // 2], v, -1)
        if kind == 'gram':
            if s[1] > 512: return self.cur
            w, t = q('transpose', 'int', [s[0], n, s[1]], v, 1, 2); w, t = q('matmul', 'default', [s[0], s[1], s[1]], v, w); w, t = q('softmax', 'int', t, w, -1)
            return q('matmul', 'default', s, w, v)
        if kind == 'attend':
            h = r.choice([1, 2, 4]); d = n // h
            if d * h != n or s[1] > 1024: return self.cur
            heads = []
            for _ in range(3):
                w, t = q('linear', 'default', s, v, r.P([n, n], 1), r.P([n], 1)); w, t = q('reshape', 'default', [s[0], s[1], h, d], w, [s[0], s[1], h, d]); w, t = q('transpose', 'int', [s[0], h, s[1], d], w, 1, 2); heads.append(w)
            w, t = q('scaled_dot_product_attention', 'default', t, *heads, None, 0.0, r.yes(.3)); w, t = q('transpose', 'int', [s[0], s[1], h, d], w, 1, 2); w, t = q('reshape', 'default', s, w, s)
            w, t = q('linear', 'default', s, w, r.P([n, n], 1), r.P([n], 1))
            return q('add', 'Tensor', s, v, w)

    def up(self, v, s, t):
        if math.prod(t) > 1 << 14: return self.cur
        if self.r.yes(.5): return self.put('upsample_nearest2d', 'vec', s[:2] + t, v, t, None)
        return self.put('upsample_bilinear2d', 'vec', s[:2] + t, v, t, False, None)


def composition(r):
    p = Program(r); n = r.randint(10, 40)
    while len(p.calls) < n: p.cur = p.step()
    p.cur = p.put('mul', 'Tensor', p.cur[1], p.cur[0], 1.0)
    return dict(op='compose', calls=p.calls)


# -- running ------------------------------------------------------------------------------------------------------------------------------------
def cases(only):
    """All cases, one of each operator in turn, so that a run that is cut covers every operator."""
    lists = []
    for name, n, f in ROWS:
        if only and name not in only: continue
        out, seen, tries = [], set(), 0
        r = Gen(f'atlas {name}')
        while len(out) < n and tries < 40 * n:
            tries += 1; r.start(); c = f(r, name)
            if r.mode == 'amp': c['ac'] = 'bf16'
            c['g'] = r.choices(['like', 'contig', 'expand'], [75, 15, 10])[0]
            c.setdefault('which', r.choices(['all', 'first'], [7, 3])[0])
            key = json.dumps(c)
            if key not in seen: seen.add(key); out.append(c)
        lists.append(out)
    order = sorted(((i + .5) / len(l), j, i) for j, l in enumerate(lists) for i in range(len(l)))
    return [lists[j][i] for _, j, i in order]


def compositions(n):
    r, out = Gen('atlas compositions'), []
    for _ in range(n):
        r.start(); c = composition(r); c['g'] = 'like'; c['which'] = 'all'
        if r.mode == 'amp': c['ac'] = 'bf16'
        out.append(c)
    return out


class Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx, leaf, held): ctx.set_materialize_grads(False); return held[0]

    @staticmethod
    def backward(ctx, g): return None, None


class Tail(torch.autograd.Function):
    @staticmethod
    def forward(ctx, held, how, *outs):
        ctx.like = [(tuple(o.shape), o.stride(), o.dtype, o.device) for o in outs]; ctx.how = how
        return held[0]

    @staticmethod
    def backward(ctx, g): return None, None, *[gradient(ctx.how, *l) for l in ctx.like]


def dense(shape, strides):
    n = 1
    for st, d in sorted((st, d) for st, d in zip(strides, shape) if d != 1):
        if st != n: return 0 in shape
        n *= d
    return True


def gradient(how, shape, strides, dtype, device):
    if how == 'expand': return torch.empty((1,) * len(shape), dtype=dtype, device=device).expand(shape)
    if how == 'like' and dense(shape, strides): return torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return torch.empty(shape, dtype=dtype, device=device)


def tensor(t, dev):
    n = t.get('n', math.prod(t['s'])); dt = DT[t['d']]
    if 'seq' in t: return torch.arange(0, t['s'][0] * t['seq'], t['seq'], device=dev)
    if dt.is_floating_point: st = torch.full((n,), .5, dtype=dt, device=dev) if n > 1 << 20 else torch.rand(n, device=dev).mul_(.8).add_(.1).to(dt)
    else: st = torch.randint(0, t.get('hi', 2), (n,), device=dev).to(dt)
    return st.as_strided(t['s'], t.get('t', contiguous(t['s'])), t.get('o', 0)).detach()


def operands(a, dev, leaf):
    if isinstance(a, list): return [operands(x, dev, leaf) for x in a]
    if not isinstance(a, dict): return a
    if 'dtype' in a: return getattr(torch, a['dtype'])
    if 'mf' in a: return getattr(torch, a['mf'].split('.')[1])
    if 'device' in a: return torch.device(dev)
    if 'inf' in a: return math.inf
    if 'v' in a: return a
    t = tensor(a, dev)
    if a['k'] == 'p': return t.requires_grad_()
    if a['k'] == 'a': return Head.apply(leaf, [t])
    return t


def flat_weights(a, dev):
    """Parameters of a recurrent network as views of one buffer, as its module keeps them."""
    g = {4: 4, 3: 3, 1: 1}
    par = a[2]; buf = torch.zeros(sum(p.numel() for p in par), dtype=par[0].dtype, device=dev); at = 0; order = sorted(range(len(par)), key=lambda i: par[i].dim() < 2)
    views = [None] * len(par)
    for i in order: views[i] = buf[at:at + par[i].numel()].view(par[i].shape).detach().requires_grad_(par[i].requires_grad); at += par[i].numel()
    a[2] = views


def used(a): return [j for x in a for j in ([x['v'][0]] if isinstance(x, dict) and 'v' in x else used(x) if isinstance(x, list) else [])]


def fill(a, vals): return [vals[x['v'][0]] if isinstance(x, dict) else fill(x, vals) if isinstance(x, list) else x for x in a]


class Runner:
    def __init__(self, dev):
        self.dev, self.cuda = dev, dev == 'cuda'
        self.leaf = torch.ones(1, device=dev, requires_grad=True); self.one = torch.ones((), device=dev)
        self.labels, self.names, self.pending = {}, {}, []

    def mark(self, m):
        if self.cuda: torch.empty(MARKS[m], dtype=torch.uint8, device='cuda')

    def compose(self, c):
        """Runs the calls; a value goes after the last call that takes it."""
        dev, last, ready, vals = self.dev, {}, [], {}
        for i, q in enumerate(c['calls']):
            q['v'] = [i]
            for j in used(q['a']): last[j] = i
        last[len(c['calls']) - 1] = len(c['calls'])
        for q in c['calls']:
            o = getattr(torch.ops.aten, q['op'] + ('_' if q.get('in') else ''))
            ready.append((getattr(o, q['over']), operands(q['a'], dev, self.leaf), {n: operands(v, dev, self.leaf) for n, v in q['k'].items()}))
        for q in c['calls']: del q['v']
        loss = torch.zeros((), device=dev)
        self.mark('F')
        with torch.autocast('cuda' if dev == 'cuda' else 'cpu', dtype=torch.bfloat16, enabled=bool(c.get('ac')) and dev != 'meta'):
            for i, (f, a, k) in enumerate(ready):
                out = f(*fill(a, vals), **k)
                vals[i] = out[0] if isinstance(out, (tuple, list)) else out
                del out
                for j in sorted(vals):
                    if last.get(j, j) == i: vals[j] = None
        out = vals.pop(len(ready) - 1)
        c['out'] = [(list(out.shape), list(out.stride()), NAME.get(out.dtype, str(out.dtype)))]
        if out.requires_grad: loss = Tail.apply([loss], c['g'], out)
        del out
        self.mark('B')
        if loss.requires_grad: loss.backward(gradient=self.one)
        self.mark('E')

    def run(self, c):
        if 'calls' in c: return self.compose(c)
        op = getattr(torch.ops.aten, c['op'] + ('_' if c.get('in') else ''))
        over = c['over']
        if c.get('in') and over not in op.overloads(): over = 'default'
        op = getattr(op, over); dev = self.dev
        a, k = operands(c['a'], dev, self.leaf), {n: operands(v, dev, self.leaf) for n, v in c['k'].items()}
        if c.get('flat'): flat_weights(a, dev)
        loss = torch.zeros((), device=dev)
        self.mark('F')
        if c.get('ac') and dev != 'meta':
            with torch.autocast(dev, dtype=DT[c['ac']]): out = op(*a, **k)
        else: out = op(*a, **k)
        flat = [out] if torch.is_tensor(out) else list(out) if isinstance(out, (list, tuple)) else []
        del out
        c['out'] = [(list(o.shape), list(o.stride()), NAME.get(o.dtype, str(o.dtype))) if torch.is_tensor(o) else None for o in flat]
        outs = [o for o in flat if torch.is_tensor(o) and o.requires_grad]
        del flat
        if c['which'] == 'first': del outs[1:]
        o = None
        if outs: loss = Tail.apply([loss], c['g'], *outs)
        del outs, o
        self.mark('B')
        if loss.requires_grad: loss.backward(gradient=self.one)
        self.mark('E')

    def label(self, frames):
        ops, node = [], ''
        for f in frames:
            n = f['name']
            p = self.names.get(n)
            if p is None:
                m, q = OP.search(n), NODE.search(n)
                p = self.names[n] = (m.group(1) if m else '', q.group(1) if q else '')
            if p[0] and (not ops or ops[-1] != p[0]): ops.append(p[0])
            if p[1] and not node: node = p[1]
        return (ops[-1] if ops else '-', ops[0] if ops else '-', node or '-')

    def flush(self, out):
        """Slices the trace by the marks and writes the cases since the last time."""
        if not self.pending: return
        torch.cuda.synchronize()
        ev = torch.cuda.memory._snapshot()['device_traces'][0]
        torch.cuda.memory._record_memory_history(enabled=None); record()
        parts, cur, size = [], None, {v: m for m, v in MARKS.items()}
        for e in ev:
            m = size.get(e['size'])
            if m and e['action'] == 'alloc':
                if m == 'F': cur = dict(F=[], B=[], ended=False, ph='F'); parts.append(cur)
                elif cur: cur['ph'] = m; cur['ended'] = m == 'E'
            elif cur and not m and cur['ph'] in 'FB' and e['action'] in ('alloc', 'free_completed'): cur[cur['ph']].append(e)
        good = [p for p in parts if p['ended']]
        done = [c for c in self.pending if 'err' not in c]
        if len(good) != len(done): print('MISMATCH', len(good), len(done), len(parts), flush=True); raise SystemExit(3)
        for c, p in zip(done, good):
            ids, n, labels = {}, 0, []
            for ph in 'FB':
                row = []
                for e in p[ph]:
                    if e['action'] == 'alloc':
                        ids[e['addr']] = n; n += 1; row.append(f'+{e["size"]}')
                        l = self.label(e['frames'])
                        if l not in self.labels: self.labels[l] = len(self.labels); out.write(json.dumps(dict(label=' '.join(l))) + '\n')
                        labels.append(self.labels[l])
                    else: row.append(f'-{ids.pop(e["addr"], "old")}')
                c[ph.lower()] = ' '.join(row)
            c['l'] = labels
            out.write(json.dumps(c, separators=(',', ':')) + '\n')
        for c in self.pending:
            if 'err' in c: out.write(json.dumps(dict(op=c['op'], err=c['err']), separators=(',', ':')) + '\n')
        self.pending = []


OP = re.compile(r'at::_ops::([A-Za-z0-9_]+)::(?:call|redispatch)')
NODE = re.compile(r'torch::autograd::(?:generated::)?([A-Za-z0-9_]+)::apply')


def record(): torch.cuda.memory._record_memory_history('all', context='alloc', stacks='all', max_entries=4_000_000, clear_history=True)


def warm():
    """Handles, workspaces and states that a process makes once."""
    for dt in (torch.float32, torch.bfloat16, torch.float16):
        for f in (lambda x, w: x @ w, lambda x, w: torch.addmm(w[0], x, w), lambda x, w: torch.nn.functional.linear(x, w, w[0]), lambda x, w: torch.bmm(x[None], w[None])):
            x = torch.ones(32, 32, device='cuda', dtype=dt, requires_grad=True); f(x, x).sum().backward()
    n = torch.nn.LSTM(8, 8, 2, dropout=.5).cuda(); n(torch.ones(3, 2, 8, device='cuda'))[0].sum().backward()
    torch.ones(2, 2, 8, 8, device='cuda', requires_grad=True).sum().backward()


def main():
    p = argparse.ArgumentParser(); p.add_argument('out'); p.add_argument('--seconds', type=float, default=1e9); p.add_argument('--only', default=''); p.add_argument('--device', default='cuda'); p.add_argument('--count', action='store_true'); p.add_argument('--limit', type=int, default=0); p.add_argument('--compose', type=int, default=0)
    o = p.parse_args(); t0 = time.time(); todo = cases(set(filter(None, o.only.split(','))))
    if o.limit: todo = todo[:o.limit]
    if o.compose: todo = compositions(o.compose)
    print(len(todo), 'cases', round(time.time() - t0, 1), 's', flush=True)
    if o.count: return
    run = Runner(o.device); bad = {}; gc.disable()
    with lzma.open(o.out, 'wt', preset=6) as out:
        head = dict(torch=torch.__version__, command=' '.join(['python', 'atlas.py'] + sys.argv[1:]), date=time.strftime('%Y-%m-%d'))
        if run.cuda: q = torch.cuda.get_device_properties(0); head.update(card=q.name, sms=q.multi_processor_count, cudnn=torch.backends.cudnn.version(), cuda=torch.version.cuda); warm(); record()
        out.write(json.dumps(head) + '\n')
        n = 0
        for i, c in enumerate(todo):
            if time.time() - t0 > o.seconds: print('time is up after', i, flush=True); break
            ts = time.time()
            try: run.run(c); n += 1
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError) as e:
                c['err'] = str(e).strip().split('\n')[0][:200]; bad.setdefault((c['op'], c['err'][:100]), []).append(i)
                if isinstance(e, torch.OutOfMemoryError): torch.cuda.empty_cache()
            if time.time() - ts > 2: print('slow', c['op'], round(time.time() - ts, 1), json.dumps(c)[:300], flush=True)
            run.pending.append(c)
            if i % 50 == 0: gc.collect()
            if run.cuda:
                if torch.cuda.memory_reserved() > 40 << 30: torch.cuda.empty_cache()
                if len(run.pending) >= 400: run.flush(out); print(i + 1, round(time.time() - t0, 1), 's', flush=True)
        if run.cuda: run.flush(out)
        else:
            for c in run.pending: out.write(json.dumps(c, separators=(',', ':')) + '\n')
    print(n, 'ran,', sum(map(len, bad.values())), 'failed,', round(time.time() - t0, 1), 's,', os.path.getsize(o.out) // 1024, 'KiB')
    for (op, e), l in sorted(bad.items(), key=lambda x: -len(x[1]))[:60]: print(len(l), op, e)


if __name__ == '__main__': main()
