#!/usr/bin/env python3
"""Make the references that single kernels of package validate/cpu are tested against.

    python3 scripts/validation/kernel_reference.py [--out FILE]

Writes one .npz: cases, the UTF-8 bytes of a JSON list, and the arrays that it names.
A case is a kernel with its operands (names of arrays, numbers, or null), its
attributes as program.Attrs has them, and its results (names, or null where one is
not wanted), computed by PyTorch and its autograd. Beside it optimizers.npz: for
each optimizer NAME and parameter I, NAME:I:T is the parameter after some steps T, with
the gradients grad:I:T. Needs torch, numpy and lion-pytorch.
"""
import argparse
import json
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import torch
from torch.nn import functional as F

torch.manual_seed(0)
CASES, ARRAYS = [], {}


def keep(x):
    if x is None or isinstance(x, (int, float)):
        return x
    name = f"a{len(ARRAYS)}"
    ARRAYS[name] = x.detach().contiguous().numpy().copy()
    return name


def case(kernel, args, results, **attrs):
    CASES.append({"kernel": kernel, "args": [keep(a) for a in args], "results": [keep(r) for r in results], **attrs})


def rand(*shape, lo=-2.0, hi=2.0):
    return torch.rand(*shape) * (hi - lo) + lo


def grads(f, g, *xs):
    """Gradients of f(*xs) for a gradient g of its result."""
    xs = [x.detach().clone().requires_grad_() if x is not None and x.is_floating_point() else x for x in xs]
    y = f(*xs)
    wanted = [x for x in xs if x is not None and x.requires_grad]
    out = iter(torch.autograd.grad(y, wanted, g))
    return [next(out) if x is not None and x.requires_grad else None for x in xs]


def unaries():
    x, inner, positive, wide = rand(3, 5), rand(3, 5, lo=-0.9, hi=0.9), rand(3, 5, lo=0.1, hi=3), rand(4, 6, lo=-6, hi=6)
    above = rand(3, 5, lo=1.1, hi=3)
    for name in "neg abs exp expm1 sin cos tan atan sinh cosh tanh asinh erf erfc sinc exp2 floor ceil trunc frac sign sgn sigmoid square".split():
        case(name, [x], [getattr(torch, name)(x)])
    halves = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4])
    case("round", [halves], [torch.round(halves)])
    for name in "asin acos atanh erfinv".split():
        case(name, [inner], [getattr(torch, name)(inner)])
    for name in "log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma".split():
        case(name, [positive], [getattr(torch, name)(positive)])
    case("acosh", [above], [torch.acosh(above)])
    for name, f in {"silu": F.silu, "mish": F.mish, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "log_sigmoid": F.logsigmoid, "softsign": F.softsign, "relu": F.relu, "gelu": F.gelu}.items():
        case(name, [wide], [f(wide)])
    case("gelu", [wide], [F.gelu(wide, approximate="tanh")], mode="tanh")
    odd = torch.tensor([1.0, float("inf"), float("-inf"), float("nan"), 0.0])
    for name in ("isinf", "isnan", "isfinite", "logical_not"):
        case(name, [odd], [getattr(torch, name)(odd)])
    case("zeros_like", [x], [torch.zeros_like(x)])
    ints = torch.tensor([0, 1, 5, -3])
    case("bitwise_not", [ints], [~ints])
    case("bitwise_not", [ints > 0], [~(ints > 0)])
    for name, f, p in (("leaky_relu", lambda t: F.leaky_relu(t, 0.2), [0.2]), ("hardshrink", lambda t: F.hardshrink(t, 0.7), [0.7]), ("softshrink", lambda t: F.softshrink(t, 0.7), [0.7]),
                       ("clamp_min", lambda t: t.clamp(min=-0.5), [-0.5]), ("clamp_max", lambda t: t.clamp(max=0.5), [0.5]), ("clamp", lambda t: t.clamp(-1, 0.5), [-1, 0.5]),
                       ("hardtanh", lambda t: F.hardtanh(t, -1.5, 2), [-1.5, 2]), ("threshold", lambda t: F.threshold(t, 0.3, -7), [0.3, -7]), ("softplus", lambda t: F.softplus(t, 2, 5), [2, 5]),
                       ("elu", lambda t: F.elu(t, 1.3), [1.3, 1, 1]), ("elu", F.selu, [1.6732632423543772, 1.0507009873554805, 1]), ("elu", lambda t: F.celu(t, 1.5), [1.5, 1, 1 / 1.5])):
        case(name, [wide], [f(wide)], scalars=p)
        g = rand(4, 6)
        if name not in ("clamp_min", "clamp_max", "clamp"):
            case(name + "_backward", [g, wide], [grads(f, g, wide)[0]], scalars=p[:1] if name == "threshold" else p)
    g = rand(4, 6)
    case("elu_backward", [g, F.elu(wide, 1.3)], [grads(lambda t: F.elu(t, 1.3), g, wide)[0]], scalars=[1.3, 1, 1], mode="result")
    for name, f in {"silu": F.silu, "mish": F.mish, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "log_sigmoid": F.logsigmoid, "gelu": F.gelu}.items():
        case(name + "_backward", [g, wide], [grads(f, g, wide)[0]])
    case("gelu_backward", [g, wide], [grads(lambda t: F.gelu(t, approximate="tanh"), g, wide)[0]], mode="tanh")
    for name, f in {"tanh": torch.tanh, "sigmoid": torch.sigmoid}.items():
        case(name + "_backward", [g, f(wide)], [grads(f, g, wide)[0]])
    mask = torch.rand(4, 6) > 0.3
    case("native_dropout_backward", [g, mask], [g * mask / 0.7], scalars=[1 / 0.7])


def binaries():
    a, b = rand(2, 3, 4), rand(3, 1)
    for name in "maximum minimum atan2 mul div".split():
        case(name, [a, b], [getattr(torch, name)(a, b)])
    case("remainder", [a, b], [torch.remainder(a, b)])
    case("fmod", [a, b], [torch.fmod(a, b)])
    case("floor_divide", [a, b], [torch.floor_divide(a, b)])
    case("div", [a, b], [torch.div(a, b, rounding_mode="trunc")], mode="trunc")
    holed = b * (b > 0)
    case("div_or_zero", [a, holed], [(a / holed).masked_fill(holed == 0, 0)])
    case("div", [a, b], [torch.div(a, b, rounding_mode="floor")], mode="floor")
    case("pow", [a.abs() + 0.1, b], [torch.pow(a.abs() + 0.1, b)])
    case("pow", [a, 3.0], [a ** 3])
    case("add", [a, b], [torch.add(a, b, alpha=0.5)], scalars=[0.5])
    case("sub", [a, b], [torch.sub(a, b, alpha=0.5)], scalars=[0.5])
    case("rsub", [a, b], [torch.rsub(a, b, alpha=0.5)], scalars=[0.5])
    i, j = torch.randint(-3, 4, (2, 5)), torch.randint(-3, 4, (5,))
    for name in "eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor".split():
        case(name, [i, j], [getattr(torch, name)(i, j)])
    c = rand(4)
    case("addcmul", [a, b, c], [torch.addcmul(a, b, c, value=0.3)], scalars=[0.3])
    case("addcdiv", [a, b, c + 3], [torch.addcdiv(a, b, c + 3, value=0.3)], scalars=[0.3])
    case("where", [a > 0, a, b], [torch.where(a > 0, a, b)])
    case("masked_fill", [a, a > 0, 2.5], [a.masked_fill(a > 0, 2.5)])
    case("copy", [a], [a.to(torch.float64)])
    case("copy", [a * 10], [(a * 10).to(torch.int64)])


def products():
    a, b, c = rand(3, 4), rand(4, 5), rand(5)
    case("mm", [a, b], [a @ b])
    case("addmm", [c, a, b], [torch.addmm(c, a, b)])
    case("addmm", [c, a, b], [torch.addmm(c, a, b, beta=0.5, alpha=-2)], scalars=[0.5, -2])
    a, b, c = rand(2, 3, 4), rand(2, 4, 5), rand(2, 3, 5)
    case("bmm", [a, b], [torch.bmm(a, b)])
    case("baddbmm", [c, a, b], [torch.baddbmm(c, a, b)])
    case("baddbmm", [c, a, b], [torch.baddbmm(c, a, b, beta=1, alpha=0.125)], scalars=[1, 0.125])
    case("mv", [a[0], b[0, :, 0]], [torch.mv(a[0], b[0, :, 0])])
    case("dot", [a[0, 0], b[0, :, 0]], [torch.dot(a[0, 0], b[0, :, 0])])


def convolutions():
    cases = [  # input, weight, bias, stride, pad, dilation, out pad, groups, transposed
        ((2, 3, 9), (4, 3, 3), True, [2], [1], [1], [0], 1, False),
        ((2, 4, 7, 6), (6, 2, 3, 2), True, [1, 2], [2, 0], [1, 1], [0, 0], 2, False),
        ((1, 4, 9, 9), (4, 1, 3, 3), False, [1, 1], [2, 2], [2, 2], [0, 0], 4, False),
        ((1, 2, 5, 4), (3, 2, 3, 3), True, [1, 1], [7, 6], [7, 6], [0, 0], 1, False),
        ((2, 3, 5, 5), (5, 3, 1, 1), True, [1, 1], [0, 0], [1, 1], [0, 0], 1, False),
        ((2, 3, 5, 5), (5, 3, 1, 1), True, [2, 3], [1, 0], [1, 1], [0, 0], 1, False),
        ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), True, [1, 2, 1], [1, 0, 1], [1, 1, 2], [0, 0, 0], 1, False),
        ((2, 4, 3, 4), (4, 3, 2, 3), True, [2, 1], [0, 1], [1, 1], [1, 0], 1, True),
        ((1, 4, 5, 4), (4, 2, 3, 3), False, [2, 2], [1, 1], [1, 1], [1, 1], 2, True),
        ((2, 3, 6), (3, 2, 4), True, [3], [1], [2], [2], 1, True),
    ]
    for ins, ws, bias, stride, pad, dil, out, groups, transposed in cases:
        x, w = rand(*ins), rand(*ws)
        b = rand(ws[1] * groups if transposed else ws[0]) if bias else None
        f = lambda x, w, b: torch.ops.aten.convolution(x, w, b, stride, pad, dil, transposed, out, groups)
        y = f(x, w, b)
        conv = {"stride": stride, "pad": pad, "dilation": dil, "outPad": out, "groups": groups, "transposed": transposed}
        case("convolution", [x, w, b], [y], conv=conv)
        g = rand(*y.shape)
        case("convolution_backward", [g, x, w], grads(f, g, x, w, b), conv=conv)


def norms():
    x, w, b, g = rand(2, 3, 6), rand(6), rand(6), rand(2, 3, 6)
    for ww, bb in ((w, b), (None, None)):
        y, mean, rstd = torch.native_layer_norm(x, [6], ww, bb, 1e-3)
        case("native_layer_norm", [x, ww, bb], [y, mean, rstd], scalars=[1e-3], dims=[2])
        case("native_layer_norm_backward", [g, x, ww, mean, rstd], grads(lambda x, w, b: F.layer_norm(x, [6], w, b, 1e-3), g, x, ww, bb), scalars=[1e-3], dims=[2])
    rms = lambda x, w: F.rms_norm(x, [6], w, 1e-3)
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-3)
    case("_fused_rms_norm", [x, w], [rms(x, w), rstd], scalars=[1e-3], dims=[2])
    case("_fused_rms_norm_backward", [g, x, w, rstd], grads(rms, g, x, w), scalars=[1e-3], dims=[2])
    x, w, b, g = rand(2, 6, 3, 2), rand(6), rand(6), rand(2, 6, 3, 2)
    y, mean, rstd = torch.native_group_norm(x, w, b, 2, 6, 6, 3, 1e-3)
    case("native_group_norm", [x, w, b], [y, mean, rstd], scalars=[1e-3])
    case("native_group_norm_backward", [g, x, w, mean, rstd], grads(lambda x, w, b: F.group_norm(x, 3, w, b, 1e-3), g, x, w, b), scalars=[1e-3])
    rm, rv = rand(6), rand(6, lo=0.5, hi=2)
    for train in (1, 0):
        y = F.batch_norm(x, rm.clone(), rv.clone(), w, b, bool(train), 0.1, 1e-3)
        mean, rstd = x.mean((0, 2, 3)), 1 / torch.sqrt(x.var((0, 2, 3), correction=0) + 1e-3)
        rm2, rv2 = rm.clone(), rv.clone()
        F.batch_norm(x, rm2, rv2, w, b, bool(train), 0.1, 1e-3)
        case("batch_norm", [x, w, b, rm, rv], [y] + [mean, rstd] * train, scalars=[1e-3, 0.1, train], after={"3": keep(rm2), "4": keep(rv2)})
        d = grads(lambda x, w, b: F.batch_norm(x, rm.clone(), rv.clone(), w, b, bool(train), 0.1, 1e-3), g, x, w, b)
        case("batch_norm_backward", [g, x, w, rm, rv] + [mean, rstd] * train, d, scalars=[1e-3, 0.1, train])


def attentions():
    def attend(q, k, v, mask, causal, scale):
        if k.shape[1] != q.shape[1]:
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        s = q @ k.transpose(-1, -2) * scale
        if mask is not None:
            s = s + mask
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        return s.softmax(-1) @ v, s.logsumexp(-1)

    for heads, causal, masked in ((2, False, False), (2, True, False), (2, False, True), (4, True, False)):
        q, k, v = rand(2, heads, 5, 8), rand(2, 2, 5, 8), rand(2, 2, 5, 8)
        mask = rand(2, 1, 5, 5) if masked else None
        scale = 0.3
        y, lse = attend(q, k, v, mask, causal, scale)
        g = rand(*y.shape)
        dq, dk, dv = grads(lambda q, k, v: attend(q, k, v, mask, causal, scale)[0], g, q, k, v)
        p = [scale, int(causal), 0]
        padded = torch.zeros(2, heads, 32)
        padded[:, :, :5] = lse
        zero, pair = torch.zeros((), dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        if not masked:
            case("_scaled_dot_product_flash_attention", [q, k, v], [y, lse, pair, zero], scalars=p)
            case("_scaled_dot_product_flash_attention_backward", [g, k, q, v, lse, y, pair, zero], [dq, dk, dv], scalars=p)
        case("_scaled_dot_product_efficient_attention", [q, k, v, mask], [y, padded], scalars=p)
        case("_scaled_dot_product_efficient_attention_backward", [g, mask, k, q, v, padded, y], [dq, dk, dv], scalars=p)
        case("_scaled_dot_product_cudnn_attention", [q, k, v, mask], [zero, zero, y, lse.unsqueeze(-1)], scalars=p)
        case("_scaled_dot_product_cudnn_attention_backward", [g, mask, k, q, v, lse.unsqueeze(-1), y, zero, zero], [dq, dk, dv], scalars=p)


def recurrents():
    for cell, (build, states) in enumerate(((torch.nn.LSTM, 2), (torch.nn.GRU, 1), (torch.nn.RNN, 1), (lambda *a, **k: torch.nn.RNN(*a, nonlinearity="relu", **k), 1))):
        for layers, two, bias, first in ((1, False, True, False), (2, True, False, True), (2, True, True, False)):
            net = build(3, 4, layers, bias=bias, batch_first=first, bidirectional=two)
            dirs = 1 + two
            x, h = rand(2, 5, 3) if first else rand(5, 2, 3), [rand(layers * dirs, 2, 4) for _ in range(states)]
            params = [p.detach() * 1.5 for p in net.parameters()]

            def f(x, *rest):
                named = dict(zip([n for n, _ in net.named_parameters()], rest[states:]))
                y, end = torch.func.functional_call(net, named, (x, tuple(rest[:states]) if states == 2 else rest[0]))
                return (y, *(end if states == 2 else (end,)))

            y, *ends = f(x, *h, *params)
            said = {"scalars": [cell, layers, dirs, int(bias), int(first)]}
            turn = lambda t: t.transpose(0, 1).contiguous() if first else t  # cuDNN's result has the time first
            case("_cudnn_rnn", [x, *h, *params], [turn(y), *ends], **said)
            for with_ends in (False, True):
                g, gs = rand(*y.shape), [rand(*e.shape) for e in ends]
                loss = lambda *xs: sum((a * b).sum() for a, b in list(zip(f(*xs), (g, *gs)))[:None if with_ends else 1])
                d = grads(loss, torch.tensor(1.0), x, *h, *params)
                d = [torch.zeros_like(v) if w is None else w for v, w in zip((x, *h, *params), d)]
                case("_cudnn_rnn_backward", [turn(g), *(gs if with_ends else [None] * states), x, *h, *params], [*d[:1 + states], torch.cat([p.flatten() for p in d[1 + states:]])], **said)


def pools():
    x = rand(2, 3, 7, 8)
    for kernel, stride, pad, dil, ceil in (([3, 2], [2, 2], [1, 0], [1, 1], False), ([2, 2], [3, 2], [0, 1], [2, 1], True)):
        pool = {"kernel": kernel, "stride": stride, "pad": pad, "dilation": dil}
        y, idx = F.max_pool2d(x, kernel, stride, pad, dil, ceil, return_indices=True)
        g = rand(*y.shape)
        case("max_pool_with_indices", [x], [y, idx], pool=pool)
        case("max_pool2d_with_indices_backward", [g, x, idx], grads(lambda x: F.max_pool2d(x, kernel, stride, pad, dil, ceil), g, x), dims=[2, 3], pool=pool)
    for kernel, stride, pad, ceil, include, divisor in (([3, 2], [2, 2], [1, 0], False, True, None), ([3, 3], [2, 3], [1, 1], True, False, None), ([2, 3], [2, 2], [1, 1], True, True, 5)):
        f = lambda x: F.avg_pool2d(x, kernel, stride, pad, ceil, include, divisor)
        pool = {"kernel": kernel, "stride": stride, "pad": pad, "dilation": [1, 1], "excludePad": not include, "divisor": divisor or 0}
        y = f(x)
        g = rand(*y.shape)
        case("avg_pool2d", [x], [y], pool=pool)
        case("avg_pool2d_backward", [g, x], grads(f, g, x), pool=pool)
    f = lambda x: F.adaptive_avg_pool2d(x, (3, 5))
    g = rand(2, 3, 3, 5)
    case("adaptive_avg_pool2d", [x], [f(x)])
    case("adaptive_avg_pool2d_backward", [g, x], grads(f, g, x))


def reductions():
    x = rand(2, 3, 4)
    for name in ("sum", "mean", "amax", "amin", "logsumexp"):
        case(name, [x], [getattr(torch, name)(x, (0, 2))], dims=[0, 2])
        case(name, [x], [getattr(torch, name)(x, (2,), True)], dims=[2])
    case("argmax", [x], [x.argmax(1)], dims=[1])
    case("argmin", [x], [x.argmin(1)], dims=[1])
    case("var", [x], [x.var((0, 1))], dims=[0, 1], scalars=[1])
    case("var", [x], [x.var(2, correction=0)], dims=[2], scalars=[0])
    case("cumsum", [x], [x.cumsum(1)], dims=[1])
    case("flip", [x], [x.flip(1)], dims=[1])
    case("flip", [x], [x.flip(2, 0)], dims=[2, 0])
    for dims, keepdim in (([1], False), ([0, 2], True)):
        case("euclidean_norm", [x], [torch.linalg.vector_norm(x, 2, dims, keepdim)], dims=dims)
    g = rand(2, 3, 4)
    for d in (0, 1, 2):
        y, ly = x.softmax(d), x.log_softmax(d)
        case("softmax", [x], [y], dims=[d])
        case("log_softmax", [x], [ly], dims=[d])
        case("_softmax_backward_data", [g, y], grads(lambda x: x.softmax(d), g, x), dims=[d])
        case("_log_softmax_backward_data", [g, ly], grads(lambda x: x.log_softmax(d), g, x), dims=[d])
    y = rand(2, 6, 3)
    case("glu", [y], [F.glu(y, 1)], dims=[1])
    g = rand(2, 3, 3)
    case("glu_backward", [g, y], grads(lambda y: F.glu(y, 1), g, y), dims=[1])
    for shape, t, op in (((5, 4), (5,), "nll_loss"), ((2, 4, 3, 2), (2, 3, 2), "nll_loss2d")):
        ls, target = rand(*shape).log_softmax(1), torch.randint(0, 4, t)
        target.view(-1)[1] = 2
        for reduction, name in ((1, "mean"), (2, "sum")):
            f = lambda ls: F.nll_loss(ls, target, ignore_index=2, reduction=name)
            count = (target != 2).sum().float()
            g = torch.tensor(1.7)
            case(op + "_forward", [ls, target], [f(ls), count], scalars=[reduction, 2])
            case(op + "_backward", [g, ls, target, count], grads(f, g, ls), scalars=[reduction, 2])
    a, b = rand(3, 4), rand(3, 4)
    for reduction, name in ((0, "none"), (1, "mean"), (2, "sum")):
        f = lambda a: F.mse_loss(a, b, reduction=name)
        g = torch.linspace(-1, 1, 12).reshape(3, 4) if name == "none" else torch.tensor(0.6)
        case("mse_loss", [a, b], [f(a)], scalars=[reduction])
        case("mse_loss_backward", [g, a, b], grads(f, g, a), scalars=[reduction])
        f = lambda a: F.smooth_l1_loss(a, b, reduction=name, beta=0.7)
        case("smooth_l1_loss", [a, b], [f(a)], scalars=[reduction, 0.7])
        case("smooth_l1_loss_backward", [g, a, b], grads(f, g, a), scalars=[reduction, 0.7])


def moves():
    a, b = rand(2, 3, 4), rand(2, 5, 4)
    case("cat", [a, b], [torch.cat([a, b], 1)], dims=[1])
    case("stack", [a, a + 1], [torch.stack([a, a + 1], 2)], dims=[2])
    case("repeat", [a], [a.repeat(2, 1, 3, 2)])
    g = rand(2, 2, 9, 8)
    case("repeat_backward", [g], grads(lambda a: a.repeat(2, 1, 3, 2), g, a))
    case("tril", [a], [a.tril(1)], scalars=[1])
    case("triu", [a], [a.triu(-1)], scalars=[-1])
    w, i = rand(7, 3), torch.tensor([[1, 0, 6], [1, 4, 1]])
    g = rand(2, 3, 3)
    case("embedding", [w, i], [F.embedding(i, w)], scalars=[-1])
    case("embedding_dense_backward", [g, i], grads(lambda w: F.embedding(i, w), g, w), scalars=[-1])
    case("embedding_dense_backward", [g, i], grads(lambda w: F.embedding(i, w, padding_idx=1), g, w), scalars=[1])
    x = rand(4, 5, 6)
    r, c = torch.tensor([[0], [-1]]), torch.tensor([1, 3, 3])
    for dims, f in (([0, 1], lambda x: x[r, c]), ([1, 2], lambda x: x[:, r, c]), ([0, 2], lambda x: x[r, :, c])):
        y = f(x)
        g = rand(*y.shape)
        case("index", [x, r, c], [y], dims=dims)
        case("index_backward", [g, r, c], grads(f, g, x), dims=dims)
    s = torch.tensor([3, 0, 0])
    y, g = x.index_select(1, s), rand(4, 3, 6)
    case("index_select", [x, s], [y], dims=[1])
    case("index_select_backward", [g, s], grads(lambda x: x.index_select(1, s), g, x), dims=[1])
    k = torch.randint(0, 5, (4, 2, 6))
    y, g = x.gather(1, k), rand(4, 2, 6)
    case("gather", [x, k], [y], dims=[1])
    case("gather_backward", [g, k], grads(lambda x: x.gather(1, k), g, x), dims=[1])
    once = torch.rand(4, 5, 6).argsort(1)[:, :3]
    src = rand(4, 4, 6)
    case("scatter", [x, once, src], [x.scatter(1, once, src)], dims=[1])
    case("scatter", [x, once, None], [x.scatter(1, once, 1.5)], dims=[1], scalars=[1.5])
    case("scatter_add", [x, k, src], [x.scatter_add(1, k, src)], dims=[1])
    case("index_add", [x, s, src[:, :3]], [x.index_add(1, s, src[:, :3])], dims=[1])
    one, other = torch.tensor([[0], [-1]]), torch.tensor([1, 3, 4])
    for dims, at, v in (([0, 1], (one, other), rand(2, 3, 6)), ([1, 2], (slice(None), one, other), rand(3)), ([0, 2], (one, slice(None), other), rand(1, 3, 5))):
        for accumulate in (False, True):
            y = torch.ops.aten.index_put(x, [None if isinstance(i, slice) else i for i in at], v, accumulate)
            case("index_put", [x, v] + [i for i in at if not isinstance(i, slice)], [y], dims=dims, scalars=[int(accumulate)])
    case("index_put", [x, 0.0, s], [x.index_fill(1, s, 0.0)], dims=[1], scalars=[0])
    g = rand(4, 2, 6)
    case("unview", [g], grads(lambda x: x[:, 1:5:3], g, x), window={"strides": [30, 18, 1], "offset": 6})
    y = x.unfold(2, 3, 2)
    g = rand(*y.shape)
    case("unview", [g], grads(lambda x: x.unfold(2, 3, 2), g, x), window={"strides": [30, 6, 2, 1], "offset": 0})
    case("constant_pad_nd", [x], [F.pad(x, (1, 2, 0, 1), value=0.5)], window={"strides": [54, 9, 1], "offset": 1}, scalars=[0.5])
    m = torch.tensor([[True, False, True], [False, False, True]])
    case("mask_bias", [m], [torch.zeros(2, 3).masked_fill(~m, float("-inf"))])
    case("causal_bias", [], [torch.zeros(3, 4).masked_fill(torch.ones(3, 4, dtype=torch.bool).triu(1), float("-inf"))])
    case("roll", [x], [x.roll([2, -1], [0, 2])], dims=[0, 2], scalars=[2, -1])
    image = rand(2, 3, 4, 5)
    for mode, size, scale, align in (("nearest", (7, 10), None, None), ("nearest", None, (2.0, 1.5), None), ("bilinear", (7, 10), None, False), ("bilinear", (3, 8), None, True), ("bilinear", None, (1.5, 2.5), False),
                                    ("bicubic", (7, 10), None, False), ("bicubic", (3, 8), None, True), ("bicubic", None, (1.5, 2.5), False)):
        f = lambda image: F.interpolate(image, size=size, scale_factor=scale, mode=mode, align_corners=align)
        y = f(image)
        g = rand(*y.shape)
        p = [int(bool(align))] + list(scale or (0, 0))
        case(f"upsample_{mode}2d", [image], [y], scalars=p)
        case(f"upsample_{mode}2d_backward", [g], grads(f, g, image), scalars=p)
    grid = rand(2, 6, 5, 2, lo=-1.4, hi=1.4)
    for mode, name in enumerate(("bilinear", "nearest")):
        for padding, edge in enumerate(("zeros", "border", "reflection")):
            for align in (False, True):
                f = lambda image, grid: F.grid_sample(image, grid, name, edge, align)
                y = f(image, grid)
                g = rand(*y.shape)
                dx, dg = grads(f, g, image, grid)
                case("grid_sampler_2d", [image, grid], [y], scalars=[mode, padding, int(align)])
                case("grid_sampler_2d_backward", [g, grid, image], [dg, dx], scalars=[mode, padding, int(align)])
    e = rand(3, 4)
    e[1] = float("-inf")
    p = e.softmax(-1)
    case("empty_rows", [e, p], [torch.nan_to_num(p, 0.0)])
    case("arange", [], [torch.arange(3, 10, 2)], scalars=[3, 2])
    case("fill", [], [torch.full((2, 3), 1.5)], scalars=[1.5])


def selections():
    x = torch.randint(-4, 5, (3, 6, 4)).float()  # with equals
    x[1, 2, 3] = float("nan")
    for d in (0, 1, 2):
        for keepdim in (False, True):
            case("amax_with_indices", [x], x.max(d, keepdim), dims=[d])
            case("amin_with_indices", [x], x.min(d, keepdim), dims=[d])
    v, i = x.max(1, True)
    g = rand(*v.shape)
    case("gather_backward", [g, i], grads(lambda x: x.max(1, True)[0], g, x), dims=[1])
    whole = torch.randint(-9, 9, (5, 7))
    case("amax_with_indices", [whole], whole.max(1), dims=[1])
    y = rand(3, 6, 4)
    for d, largest in ((0, True), (1, False), (2, True)):
        case("topk", [y], y.topk(2, d, largest), dims=[d], scalars=[int(largest)])
        v, i = y.topk(2, d, largest)
        g = rand(*v.shape)
        case("gather_backward", [g, i], grads(lambda y: y.topk(2, d, largest)[0], g, y), dims=[d])
    for descending in (False, True):  # with equals and what is not a number
        case("topk", [x], x.sort(dim=1, descending=descending, stable=True), dims=[1], scalars=[int(descending)])
        case("topk", [whole], whole.sort(dim=1, descending=descending, stable=True), dims=[1], scalars=[int(descending)])
    long = rand(2, 700)
    case("topk", [long], long.topk(300, 1), dims=[1], scalars=[1])
    times = torch.tensor([2, 0, 3, 1, 0, 0, 5])
    case("repeat_interleave", [times], [torch.repeat_interleave(times)])
    many = torch.randint(0, 4, (300,), dtype=torch.int32)
    case("repeat_interleave", [many], [torch.repeat_interleave(many)])
    image = rand(2, 3, 7, 5)
    y, i = F.adaptive_max_pool2d(image, (3, 4), return_indices=True)
    g = rand(*y.shape)
    case("adaptive_max_pool2d", [image], [y, i], dims=[2, 3])
    case("gather_backward", [g.flatten(2), i.flatten(2)], [grads(lambda t: F.adaptive_max_pool2d(t, (3, 4)), g, image)[0].flatten(2)], dims=[2])
    for kernel, dilation, padding, stride in (((2, 3), (1, 1), (0, 0), (2, 3)), ((3, 2), (2, 1), (2, 1), (1, 2))):
        y = F.unfold(image, kernel, dilation, padding, stride)
        g = rand(*y.shape)
        pool = {"kernel": kernel, "stride": stride, "pad": padding, "dilation": dilation}
        case("im2col", [image], [y], pool=pool)
        case("col2im", [g], grads(lambda t: F.unfold(t, kernel, dilation, padding, stride), g, image), pool=pool)
    line = rand(2, 3, 9)
    case("adaptive_max_pool2d", [line], F.adaptive_max_pool1d(line, 4, return_indices=True), dims=[2])
    cube = rand(1, 2, 5, 4, 6)
    case("adaptive_max_pool2d", [cube], F.adaptive_max_pool3d(cube, (2, 3, 4), return_indices=True), dims=[2, 3, 4])
    for mode in ("reflect", "replicate", "circular"):  # as the operator table says them: by indices
        f = lambda image: F.pad(image, (2, 1, 1, 3), mode=mode)
        rows = torch.nn.functional.pad(torch.arange(7.0).view(1, 1, 7), (1, 3), mode=mode).long().view(-1, 1)
        cols = torch.nn.functional.pad(torch.arange(5.0).view(1, 1, 5), (2, 1), mode=mode).long().view(1, -1)
        y = f(image)
        g = rand(*y.shape)
        case("index", [image, rows, cols], [y], dims=[2, 3])
        case("index_backward", [g, rows, cols], grads(f, g, image), dims=[2, 3])


def scaled():
    for shape, d in (((5, 3, 4), 0), ((5, 3, 4), 2), ((6, 300), 0)):
        v = rand(*shape)
        size = [1] * len(shape)
        size[d] = shape[d]
        g, dw = rand(*size, lo=0.5, hi=2), rand(*shape)
        w, norms = torch.ops.aten._weight_norm_interface(v, g, d) if d in (0, len(shape) - 1) else (None, None)
        dv, dg = grads(lambda v, g: v * (g / v.norm(2, [k for k in range(len(shape)) if k != d], True)), dw, v, g)
        case("_weight_norm_interface", [v, g], [w, norms], dims=[d])
        case("_weight_norm_interface_backward", [dw, g, v, norms], [dv, dg], dims=[d])
    a, b, c = rand(3, 5), rand(3, 5), rand(5, lo=-0.2, hi=1.2)
    case("lerp", [a, b, c], [torch.lerp(a, b, c.expand(3, 5))])
    case("lerp", [a, b, 0.3], [torch.lerp(a, b, 0.3)])
    case("hypot", [a, b], [torch.hypot(a, b)])
    case("_cudnn_rnn_flatten_weight", [a, b, c], [torch.cat([a.flatten(), b.flatten(), c])])
    zero, inner = a * (a > 0), rand(3, 5, lo=-0.1, hi=1.1)
    case("xlogy", [zero, b.abs()], [torch.xlogy(zero, b.abs())])
    for eps in (0.2, 0.05):
        case("logit", [inner], [torch.logit(inner, eps)], scalars=[eps])
        case("logit_backward", [b, inner], grads(lambda x: torch.logit(x, eps), b, inner), scalars=[eps])
    safe = rand(3, 5, lo=0.1, hi=0.9)
    case("logit", [safe], [torch.logit(safe)], scalars=[-1])
    case("logit_backward", [b, safe], grads(torch.logit, b, safe), scalars=[-1])
    x, w, g = rand(2, 3, 4), rand(1, 3, 1), rand(2, 3, 4)
    case("_prelu_kernel", [x, w], [torch.ops.aten._prelu_kernel(x, w)])
    dx, dw = torch.ops.aten._prelu_kernel_backward(g, x, w)
    case("_prelu_kernel_backward", [g, x, w], [dx, dw])
    case("_prelu_kernel_backward", [g, x, w], [None, dw])
    for dims, correction in (([1], 1), ([0, 2], 0)):
        case("std", [x], [x.std(dims, correction=correction)], dims=dims, scalars=[correction])
    p = rand(2, 3, lo=0.3, hi=3)
    for b in (2.0, 0.0, -1.5):
        case("pow", [p, b], [p ** b])


# The rows of the table of optimizers, as its column Class has them.
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p), "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True), "adamw-loop": lambda p: torch.optim.AdamW(p, foreach=False),
    "adamw-capturable": lambda p: torch.optim.AdamW(p), "adamw-amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "adam": lambda p: torch.optim.Adam(p), "adam-wd": lambda p: torch.optim.Adam(p, weight_decay=1e-2), "adam-fused": lambda p: torch.optim.Adam(p, fused=True),
    "adam-loop": lambda p: torch.optim.Adam(p, foreach=False), "adam-amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p), "sgd-wd": lambda p: torch.optim.SGD(p, weight_decay=1e-2), "sgd-momentum": lambda p: torch.optim.SGD(p, momentum=0.9),
    "sgd-momentum-wd": lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=1e-2), "sgd-nesterov": lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True),
    "sgd-loop": lambda p: torch.optim.SGD(p, momentum=0.9, foreach=False), "sgd-fused": lambda p: torch.optim.SGD(p, momentum=0.9, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p), "rmsprop": lambda p: torch.optim.RMSprop(p), "rmsprop-momentum": lambda p: torch.optim.RMSprop(p, momentum=0.9),
    "rmsprop-centered": lambda p: torch.optim.RMSprop(p, centered=True), "adadelta": lambda p: torch.optim.Adadelta(p), "adafactor": lambda p: torch.optim.Adafactor(p),
    "lion": lambda p: __import__("lion_pytorch").Lion(p), "adamax": lambda p: torch.optim.Adamax(p), "nadam": lambda p: torch.optim.NAdam(p), "radam": lambda p: torch.optim.RAdam(p),
}
STEPS, KEPT = 8, (1, 2, 6, 8)  # RAdam rectifies from the sixth


def optimizers():
    """Steps of every optimizer on a matrix, a vector and the weight of a convolution."""
    torch.manual_seed(1)
    start = [rand(5, 7), rand(6), rand(4, 3, 2, 3)]
    gradients = [[rand(*p.shape) * 10 ** -t for p in start] if t == 2 else [rand(*p.shape) for p in start] for t in range(STEPS)]
    out = {f"start:{i}": p.numpy().copy() for i, p in enumerate(start)}
    for t, gs in enumerate(gradients):
        for i, g in enumerate(gs):
            out[f"grad:{i}:{t + 1}"] = g.numpy()
    for name, make in OPTIMIZERS.items():
        params = [torch.nn.Parameter(p.clone()) for p in start]
        optimizer = make(params)
        for t, gs in enumerate(gradients):
            for p, g in zip(params, gs):
                p.grad = g.clone()
            optimizer.step()
            if t + 1 in KEPT:
                out.update({f"{name}:{i}:{t + 1}": p.detach().numpy().copy() for i, p in enumerate(params)})
    return out


def main():
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.path.join(here, "validate", "cpu", "testdata", "kernels.npz"), help="file to write")
    args = parser.parse_args()
    for f in (unaries, binaries, products, convolutions, norms, attentions, pools, reductions, moves, recurrents, selections, scaled):
        f()
    ARRAYS["cases"] = np.frombuffer(json.dumps(CASES).encode(), dtype=np.uint8)
    os.makedirs(os.path.dirname(args.out), exist_ok=True)
    np.savez_compressed(args.out, **ARRAYS)
    beside = os.path.join(os.path.dirname(args.out), "optimizers.npz")
    np.savez_compressed(beside, **optimizers())
    print(f"{beside}: {len(OPTIMIZERS)} optimizers, {os.path.getsize(beside)} bytes")
    print(f"{args.out}: {len(CASES)} cases of {len({c['kernel'] for c in CASES})} kernels, {os.path.getsize(args.out)} bytes")


if __name__ == "__main__":
    main()
