#!/usr/bin/env python3
"""What autograd saves in a forward pass, from PyTorch itself: the reference of graph/train's TestSavedReference.

    python3 scripts/pytorch/saved_reference.py [--out .reference] [--pack] [--list] [--device fake|cuda] [--force] [REGEX ...]

A case is a module, its inputs and a loss. For each, this script

  - exports the module as a user would (dynamo exporter, train mode, optimize=False, symbolic batch), strips weights and stack
    traces, and writes OUT/NAME.onnx;
  - runs forward and loss under hooks on everything that autograd saves, and writes OUT/NAME.json: the distinct storages in
    the order in which they were saved.

With --device fake (the default) the run happens under FakeTensorMode on tensors of device type cuda, which dispatch as on a GPU
but have no elements: no GPU is needed. What PyTorch decides from the properties of the device is decided here as on a Hopper
GPU (sdpa below). With --device cuda the same runs happen for real.

--pack puts all of OUT into graph/train/testdata/saved.tar.xz; the archive's other cases stay. Cases of kind "model" need
torchvision, transformers, timm, diffusers or segmentation_models_pytorch.
"""
import argparse
import collections
import contextlib
import functools
import gc
import glob
import hashlib
import io
import json
import lzma
import os
import re
import sys
import tarfile
import time
import traceback
import warnings
import weakref

warnings.filterwarnings("ignore")
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

KEEP = 1024  # bytes: larger initializers become references to a file that is not written
DROP = ("pkg.torch.onnx.stack_trace", "namespace")  # node metadata that nothing reads
PRECISIONS = ("fp32", "amp-bf16")

CASES = {}


class Case:
    """A module, its inputs, and how to train it."""

    def __init__(self, name, build, inputs, kind, loss, batches, static, attention, frozen):
        self.name, self.build, self.inputs, self.kind, self.loss = name, build, inputs, kind, loss
        self.batches, self.static, self.attention, self.frozen = batches, static, attention, frozen


def case(name, build, inputs, kind="op", loss="auto", batches=(2, 5), static=False, attention="auto", frozen=()):
    """Add a case. build() returns a module; inputs(batch) returns the tensors it is called with, on the CPU."""
    if name in CASES:
        raise ValueError("listed twice: " + name)
    CASES[name] = Case(name, build, inputs, kind, loss, batches, static, attention, frozen)


# ---- measuring -----------------------------------------------------------------------------------------------------------


def loss_of(out, kind):
    """memplan's loss "auto": cross-entropy of class scores, else the sum; of the first output that has a gradient."""
    if isinstance(out, (tuple, list)):
        out = next(t for t in out if t.is_floating_point() and t.requires_grad)
    if kind == "sum" or out.dim() < 2 or out.shape[-1] <= 1:
        return out.sum()
    if out.dim() == 3:
        out = out.reshape(-1, out.shape[-1]).float()
    shape = (out.shape[0],) + tuple(out.shape[2:])
    return F.cross_entropy(out, torch.randint(0, out.shape[1], shape, device=out.device))


def efficient_mask(mask, q, k):
    """sdp::preprocess_mask: the mask expanded, its rows padded to a multiple of 8."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.where(mask, torch.scalar_tensor(0.0, dtype=q.dtype, device=q.device), torch.scalar_tensor(float("-inf"), dtype=q.dtype, device=q.device))
    if mask.shape[-1] % 8 != 0:
        n = mask.shape[-1]
        mask = F.pad(mask, (0, 8 - n % 8))[..., :n]
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, backend="auto"):
    """scaled_dot_product_attention with the choice of kernel that sdp_utils.cpp makes on compute capability 9.0."""
    q, k, v = query, key, value
    if torch.is_autocast_enabled("cuda"):
        low = lambda t: t if t is None or not t.is_floating_point() else t.to(torch.get_autocast_dtype("cuda"))
        q, k, v, attn_mask = low(q), low(k), low(v), low(attn_mask)
    enabled = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", False)
    try:
        return sdpa_lowered(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa, backend)
    finally:
        torch.set_autocast_enabled("cuda", enabled)


def sdpa_lowered(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa, backend):
    half, d = q.dtype in (torch.float16, torch.bfloat16), q.shape[-1]
    four = q.dim() == 4 and k.dim() == 4 and v.dim() == 4
    square = d == k.shape[-1] == v.shape[-1]
    heads = enable_gqa or q.shape[:2] == k.shape[:2] == v.shape[:2]
    aligned = d % (8 if half else 4) == 0 and v.shape[-1] % (8 if half else 4) == 0
    if backend == "auto":
        if not heads:
            backend = "math"
        elif four and half and d % 8 == 0 and d <= 256 and k.shape[2] > 1 and (q.shape[2] > 1 or dropout_p == 0):
            backend = "cudnn"
        elif four and half and attn_mask is None and square and d <= 256:
            backend = "flash"
        elif four and not enable_gqa and aligned:
            backend = "efficient"
        else:
            backend = "math"
    aten = torch.ops.aten
    if backend == "cudnn":
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, torch.scalar_tensor(0.0, dtype=q.dtype, device=q.device),
                                    torch.scalar_tensor(float("-inf"), dtype=q.dtype, device=q.device))
        return aten._scaled_dot_product_cudnn_attention(q, k, v, attn_mask, True, dropout_p, is_causal, False, scale=scale)[0]
    if backend == "flash":
        pad = lambda t: F.pad(t, (0, -d % 8)) if d % 8 else t
        s = scale if scale is not None else d**-0.5
        return aten._scaled_dot_product_flash_attention(pad(q), pad(k), pad(v), dropout_p, is_causal, False, scale=s)[0][..., :d]
    if backend == "efficient":
        mask = efficient_mask(attn_mask, q, k)
        STATE["efficient"] = True
        try:
            return aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, dropout_p, is_causal, scale=scale)[0]
        finally:
            STATE["efficient"] = False
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return SDPA(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)


SDPA = F.scaled_dot_product_attention
STATE = {"efficient": False}  # inside a fake call of the efficient kernel


@contextlib.contextmanager
def attention(backend, fake):
    """Decides the kernel of scaled_dot_product_attention."""
    if not fake:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        which = {"math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}.get(backend)
        with sdpa_kernel(which) if which else contextlib.nullcontext():
            yield
        return
    F.scaled_dot_product_attention = functools.partial(sdpa, backend=backend)
    try:
        yield
    finally:
        F.scaled_dot_product_attention = SDPA


def faked(module, device="cuda"):
    """Replaces parameters and buffers by fake ones on the device; shared ones stay shared."""
    memo = {}

    def fake(t):
        if t is None:
            return None
        if id(t) not in memo:
            f = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
            memo[id(t)] = nn.Parameter(f, requires_grad=t.requires_grad) if isinstance(t, nn.Parameter) else f
        return memo[id(t)]

    for m in module.modules():
        for d in (m._parameters, m._buffers):
            for k in d:
                d[k] = fake(d[k])
        for k, v in list(vars(m).items()):
            if isinstance(v, torch.Tensor):
                setattr(m, k, fake(v))
        if isinstance(m, nn.RNNBase):
            m._init_flat_weights()
    return module


def unmasked(f, *args, **kwargs):
    """f called without a padding mask; no indices of packed sequences."""
    if f.__name__.startswith("find"):
        return None
    if args:
        return f(None, *args[1:], **kwargs)
    return f(**{**kwargs, "padding_mask": None})


@contextlib.contextmanager
def nothing_masked():
    """transformers looks at the values of positions and masks to see that nothing is packed or padded; fake tensors have none."""
    masking = sys.modules.get("transformers.masking_utils")
    old = {}
    if masking is not None:
        for name in ("find_packed_sequence_indices", "_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"):
            if hasattr(masking, name):
                f = old[name] = getattr(masking, name)
                setattr(masking, name, functools.partial(unmasked, f))
    try:
        yield
    finally:
        for name, f in old.items():
            setattr(masking, name, f)


@contextlib.contextmanager
def autocast(dtype):
    """torch.autocast("cuda"), which turns itself off where there is no GPU."""
    old = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", old[0])
        torch.set_autocast_dtype("cuda", old[1])


def saved(c, module, batch, prec, device):
    """The saved tensors of forward and loss in order: [shape, dtype, bytes of the storage, new storage or not]."""
    held, rows = [], []
    fake = device == "fake"
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else contextlib.nullcontext()
    cast = autocast(torch.bfloat16) if prec == "amp-bf16" else contextlib.nullcontext()

    class Packed:
        """A saved tensor; it dies with a branch of the graph that leads nowhere."""

        def __init__(self, t):
            self.t = t

    def pack(t):
        # Without hooks a node holds its own result without the way back to itself; t would keep a branch that leads nowhere.
        p = Packed(t.detach())
        # The state of the efficient kernel's random numbers is on the CPU; the fake kernel says otherwise.
        if t.device.type == "cuda" and not (STATE["efficient"] and t.dtype == torch.int64):
            s = t.untyped_storage()
            held.append(s)  # so that no address is used twice
            rows.append((weakref.ref(p), [list(t.shape), str(t.dtype).removeprefix("torch."), s.nbytes()], s._cdata if fake else s.data_ptr()))
        return p

    with mode, torch.device("cuda"):
        xs = tuple(torch.empty_like(x, device="cuda") if fake else x.cuda() for x in c.inputs(batch))
        if not fake:
            xs = tuple(x.cuda() for x in c.inputs(batch))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p.t), attention(c.attention, fake), nothing_masked(), cast:
            loss = loss_of(module(*xs), c.loss)
        gc.collect()
        seen, out = set(), []
        for p, row, address in rows:
            if p() is not None:
                out.append(row + [int(address not in seen)])
                if row[2]:
                    seen.add(address)
        del loss
    return out


def digest(sizes):
    return hashlib.sha256(",".join(map(str, sizes)).encode()).hexdigest()[:16]


def summary(rows):
    sizes = sorted(r[2] for r in rows if r[3] and r[2])
    return {"bytes": sum(sizes), "storages": len(sizes), "digest": digest(sizes)}


def measure(c, device):
    """The saved tensors at every batch size and precision."""
    out = []
    for prec in PRECISIONS:
        for batch in c.batches:
            torch.manual_seed(0)
            module = prepared(c)
            if device == "fake":
                with FakeTensorMode(allow_non_fake_inputs=True):
                    module = faked(module)
            else:
                module = module.cuda()
            rows = saved(c, module, batch, prec, device)
            out.append({"batch": batch, "prec": prec, **summary(rows), "rows": rows})
    return out


def prepared(c):
    m = c.build().train()
    for n, p in m.named_parameters():
        if any(re.search(f, n) for f in c.frozen):
            p.requires_grad_(False)
    return m


# ---- exporting -----------------------------------------------------------------------------------------------------------


def export(c, path):
    """Writes the case's ONNX file, weights and stack traces stripped."""
    import onnx

    torch.manual_seed(0)
    module = prepared(c)
    batch = c.batches[0]
    args = c.inputs(batch)
    kw = dict(dynamo=True, optimize=False, verbose=False)
    if not c.static:
        kw["dynamic_shapes"] = tuple({0: torch.export.Dim("batch", min=1, max=4096)} for _ in args)
    program = torch.onnx.export(module, args, input_names=[f"input{i}" for i in range(len(args))], **kw)
    strip(program.model_proto if program_is_small(program) else proto_of(program), path)


def program_is_small(program):
    return sum(v.const_value.nbytes for v in program.model.graph.initializers.values() if v.const_value is not None) < 1 << 20


def proto_of(program):
    """The protobuf of a large model, its weights dropped before they are serialized."""
    import numpy as np
    import onnx_ir as ir

    for v in program.model.graph.initializers.values():
        t = v.const_value
        if t is not None and t.nbytes > KEEP:
            v.const_value = ir.ExternalTensor("weights.bin", 0, t.nbytes, t.dtype, shape=t.shape, name=v.name)
    return ir.to_proto(program.model)


def strip(m, path):
    import onnx

    offset = 0
    for t in m.graph.initializer:
        if t.data_location == onnx.TensorProto.EXTERNAL or len(t.raw_data) > KEEP:
            size = len(t.raw_data)
            if t.data_location == onnx.TensorProto.EXTERNAL:
                size = next(int(e.value) for e in t.external_data if e.key == "length")
            t.ClearField("raw_data")
            t.ClearField("external_data")
            t.data_location = onnx.TensorProto.EXTERNAL
            for k, v in (("location", "weights.bin"), ("offset", str(offset)), ("length", str(size))):
                e = t.external_data.add()
                e.key, e.value = k, v
            offset += size
    for n in m.graph.node:
        for p in list(n.metadata_props):
            if p.key in DROP:
                n.metadata_props.remove(p)
    m.ClearField("functions") if not used_functions(m) else None
    with open(path, "wb") as f:
        f.write(m.SerializeToString())


def used_functions(m):
    return {n.domain for n in m.graph.node} - {"", "ai.onnx"}


# ---- cases: one operator -------------------------------------------------------------------------------------------------


class Fn(nn.Module):
    """fn of an activation: input plus a parameter, so that it has a gradient and nothing but fn saves anything."""

    def __init__(self, fn, width, extra=None):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(width))
        self.fn = fn
        if extra:
            for k, v in extra.items():
                setattr(self, k, v)

    def forward(self, x):
        return self.fn(self, x + self.b)


class Fn2(Fn):
    def forward(self, x, y):
        return self.fn(self, x + self.b, y)


def shaped(*shapes, dtypes=(), high=None):
    """Inputs of the given shapes behind the batch dim."""

    def f(b):
        out = []
        for i, s in enumerate(shapes):
            d = dtypes[i] if i < len(dtypes) else torch.float32
            if d == torch.float32:
                out.append(torch.randn(b, *s))
            elif d == torch.bool:
                out.append(torch.rand(b, *s) > 0.5)
            else:
                out.append(torch.randint(0, high or 3, (b, *s), dtype=d))
        return tuple(out)

    return f


def op(name, fn, *shapes, extra=None, dtypes=(), high=None, **kw):
    """A case of one operator: fn(module, activation, other inputs ..)."""
    shapes = shapes or ((6, 8),)
    kw.setdefault("loss", "sum")
    case("op/" + name, lambda: (Fn if len(shapes) == 1 else Fn2)(fn, shapes[0][-1:], extra() if extra else None), shaped(*shapes, dtypes=dtypes, high=high), **kw)


def mod(name, build, *shapes, **kw):
    """A case of one module applied to an activation."""
    op(name, lambda m, x, *r: m.m(x, *r), *shapes, extra=lambda: {"m": build()}, **kw)


IMG = (4, 10, 12)
VOL = (4, 6, 7, 8)


def pointwise_cases():
    for n in "relu relu6 tanh sigmoid silu gelu mish hardswish hardsigmoid leaky_relu elu celu selu softplus logsigmoid softsign tanhshrink".split():
        op(n, lambda m, x, f=getattr(F, n): f(x))
    op("hardtanh", lambda m, x: F.hardtanh(x, -2, 2))
    op("threshold", lambda m, x: F.threshold(x, 0.1, 20.0))
    op("hardshrink", lambda m, x: F.hardshrink(x))
    op("softshrink", lambda m, x: F.softshrink(x))
    op("gelu_tanh", lambda m, x: F.gelu(x, approximate="tanh"))
    op("glu", lambda m, x: F.glu(x))
    op("glu_dim1", lambda m, x: F.glu(x, 1))
    mod("prelu", lambda: nn.PReLU(6), (6, 8))
    mod("prelu_one", lambda: nn.PReLU(), (6, 8))
    op("rrelu", lambda m, x: F.rrelu(x, training=True))
    for n in "exp expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh cosh asinh atanh erf erfc abs neg floor ceil round sign trunc frac exp2 sigmoid_ tanh_ relu_".split():
        op("torch_" + n, lambda m, x, f=n: getattr(x, f)() if f.endswith("_") else getattr(torch, f)(x))
    op("clamp", lambda m, x: x.clamp(-1, 1))
    op("clamp_min", lambda m, x: x.clamp(min=0.5))
    op("clamp_max", lambda m, x: x.clamp(max=0.5))
    op("clamp_min_op", lambda m, x: x.clamp_min(0.5))
    op("clamp_tensor", lambda m, x, y: torch.clamp(x, y, y + 1), (6, 8), (6, 8))
    op("nan_to_num", lambda m, x: torch.nan_to_num(x))
    op("logit", lambda m, x: torch.logit(x, eps=1e-6))
    op("erfinv", lambda m, x: torch.erfinv(x))
    op("sinc", lambda m, x: torch.sinc(x))
    op("deg2rad", lambda m, x: torch.deg2rad(x))
    op("rad2deg", lambda m, x: torch.rad2deg(x))
    op("xlogy", lambda m, x, y: torch.xlogy(x, y), (6, 8), (6, 8))
    op("add", lambda m, x, y: x + y, (6, 8), (6, 8))
    op("add_broadcast", lambda m, x: x + m.w, (6, 8), extra=lambda: {"w": nn.Parameter(torch.zeros(6, 1))})
    op("add_alpha", lambda m, x: torch.add(x, m.w, alpha=2), (6, 8), extra=lambda: {"w": nn.Parameter(torch.zeros(8))})
    op("add_scalar", lambda m, x: x + 1)
    op("sub", lambda m, x, y: y - x, (6, 8), (6, 8))
    op("rsub", lambda m, x: 1 - x)
    op("mul", lambda m, x, y: x * y, (6, 8), (6, 8))
    op("mul_both", lambda m, x: x * m.w, (6, 8), extra=lambda: {"w": nn.Parameter(torch.zeros(6, 1))})
    op("mul_self", lambda m, x: x * x)
    op("mul_scalar", lambda m, x: x * 3)
    op("mul_mask", lambda m, x, y: x * (y > 0), (6, 8), (6, 8))
    op("mul_int", lambda m, x, y: x * y, (6, 8), (6, 8), dtypes=(torch.float32, torch.int64))
    op("div", lambda m, x, y: x / y, (6, 8), (6, 8))
    op("div_both", lambda m, x: m.w / x, (6, 8), extra=lambda: {"w": nn.Parameter(torch.ones(6, 1))})
    op("div_scalar", lambda m, x: x / 3)
    op("rdiv", lambda m, x: 3 / x)
    op("div_sqrt", lambda m, x: x / torch.sqrt(torch.tensor(8.0)))
    op("floor_div", lambda m, x: x * (x // 2))
    op("remainder", lambda m, x: torch.remainder(x, 2.0))
    op("pow2", lambda m, x: x**2)
    op("pow3", lambda m, x: x.pow(3))
    op("pow_half", lambda m, x: x.pow(0.5))
    op("pow_neg", lambda m, x: x.pow(-0.5))
    op("pow_tensor", lambda m, x: x.pow(m.w), (6, 8), extra=lambda: {"w": nn.Parameter(torch.ones(8))})
    op("pow_scalar_base", lambda m, x: 2.0**x)
    op("maximum", lambda m, x, y: torch.maximum(x, y), (6, 8), (6, 8))
    op("minimum_both", lambda m, x: torch.minimum(x, m.w), (6, 8), extra=lambda: {"w": nn.Parameter(torch.ones(8))})
    op("max_other", lambda m, x, y: torch.max(x, y), (6, 8), (6, 8))
    op("where", lambda m, x, y: torch.where(y > 0, x, y), (6, 8), (6, 8))
    op("where_scalar", lambda m, x: torch.where(x > 0, x, 0.0))
    op("where_both", lambda m, x: torch.where(x > 0, x, m.w), (6, 8), extra=lambda: {"w": nn.Parameter(torch.ones(8))})
    op("masked_fill", lambda m, x, y: x.masked_fill(y, -1e9), (6, 8), (6, 8), dtypes=(torch.float32, torch.bool))
    op("masked_fill_broadcast", lambda m, x, y: x.masked_fill(y, -1e9), (6, 8), (1, 8), dtypes=(torch.float32, torch.bool))
    op("lerp", lambda m, x, y: torch.lerp(x, y, 0.3), (6, 8), (6, 8))
    op("lerp_tensor", lambda m, x, y: torch.lerp(x, y, m.w), (6, 8), (6, 8), extra=lambda: {"w": nn.Parameter(torch.ones(8))})
    op("addcmul", lambda m, x, y: torch.addcmul(x, x, y, value=0.5), (6, 8), (6, 8))
    op("addcdiv", lambda m, x, y: torch.addcdiv(x, x, y, value=0.5), (6, 8), (6, 8))
    op("atan2", lambda m, x, y: torch.atan2(x, y), (6, 8), (6, 8))
    op("hypot", lambda m, x, y: torch.hypot(x, y), (6, 8), (6, 8))
    op("float_noop", lambda m, x: F.softmax(x.float(), -1).to(x.dtype))
    op("half_cast", lambda m, x: (x.to(torch.float16) * 2).float())
    op("bf16_cast", lambda m, x: x.bfloat16().tanh().float())
    op("type_as", lambda m, x, y: (x * 2).type_as(y), (6, 8), (6, 8))
    op("inplace_add", lambda m, x, y: (x * 2).add_(y), (6, 8), (6, 8))
    op("inplace_mul", lambda m, x, y: x.sin().mul_(y), (6, 8), (6, 8))
    op("detach", lambda m, x: x * x.detach())
    op("dropout", lambda m, x: F.dropout(x, 0.1, True))
    op("dropout_inplace", lambda m, x: F.dropout(x * 2, 0.1, True, inplace=True))
    op("dropout_zero", lambda m, x: F.dropout(x.sin(), 0.0, True).cos())
    op("dropout_one", lambda m, x: F.dropout(x.sin(), 1.0, True))
    op("dropout2d", lambda m, x: F.dropout2d(x, 0.1, True), IMG)
    op("dropout1d", lambda m, x: F.dropout1d(x, 0.1, True))
    op("alpha_dropout", lambda m, x: F.alpha_dropout(x, 0.1, True))
    mod("dropout_module", lambda: nn.Dropout(0.2))
    mod("dropout_module_inplace", lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2, inplace=True)))
    op("cos_sim", lambda m, x, y: F.cosine_similarity(x, y, -1), (6, 8), (6, 8))
    op("pairwise", lambda m, x, y: F.pairwise_distance(x, y), (6, 8), (6, 8))
    op("normalize", lambda m, x: F.normalize(x, dim=-1))
    op("gumbel", lambda m, x: F.gumbel_softmax(x, tau=0.5))


def reduction_cases():
    for n in "sum mean amax amin var std logsumexp prod".split():
        op(f"{n}_dim", lambda m, x, f=n: getattr(x, f)(-1))
    op("sum_all", lambda m, x: x.sin() * x.sum())
    op("mean_all", lambda m, x: x.sin() * x.mean())
    op("mean_keep", lambda m, x: x - x.mean((1, 2), keepdim=True))
    op("sum_two", lambda m, x: x.sin().sum((0, 2)))
    op("max_all", lambda m, x: x * x.max())
    op("max_dim", lambda m, x: x.max(-1)[0])
    op("min_dim_keep", lambda m, x: x.min(1, keepdim=True).values)
    op("max_dim_both", lambda m, x: x.max(-1)[0] * x.max(-1)[1])
    op("amax_two", lambda m, x: x.amax((1, 2), keepdim=True))
    op("argmax", lambda m, x: x + x.argmax(-1, keepdim=True))
    op("var_mean", lambda m, x: sum(torch.var_mean(x, -1)))
    op("var_all", lambda m, x: x.var())
    op("std_keep", lambda m, x: x / (x.std(-1, keepdim=True) + 1e-5))
    op("var_biased", lambda m, x: x.var(-1, unbiased=False, keepdim=True) * x)
    op("norm", lambda m, x: x.norm(dim=-1))
    op("norm1", lambda m, x: x.norm(p=1, dim=-1))
    op("norm_all", lambda m, x: x / x.norm())
    op("linalg_norm", lambda m, x: torch.linalg.vector_norm(x, dim=-1, keepdim=True))
    op("softmax", lambda m, x: F.softmax(x, -1))
    op("softmax_dim1", lambda m, x: F.softmax(x, 1))
    op("softmax_dtype", lambda m, x: F.softmax(x, -1, dtype=torch.float32))
    op("softmin", lambda m, x: F.softmin(x, -1))
    op("log_softmax", lambda m, x: F.log_softmax(x, -1))
    op("cumsum", lambda m, x: x.cumsum(1))
    op("cumprod", lambda m, x: x.cumprod(1))
    op("topk", lambda m, x: x.topk(3, -1)[0])
    op("sort", lambda m, x: x.sort(-1)[0])
    op("median", lambda m, x: x.median(-1)[0])
    op("any", lambda m, x: x * (x > 0).any(-1, keepdim=True))
    op("mse_loss", lambda m, x, y: F.mse_loss(x, y), (6, 8), (6, 8))
    op("mse_none", lambda m, x, y: F.mse_loss(x, y, reduction="none"), (6, 8), (6, 8))
    op("l1_loss", lambda m, x, y: F.l1_loss(x, y), (6, 8), (6, 8))
    op("smooth_l1", lambda m, x, y: F.smooth_l1_loss(x, y), (6, 8), (6, 8))
    op("huber", lambda m, x, y: F.huber_loss(x, y), (6, 8), (6, 8))
    op("bce", lambda m, x, y: F.binary_cross_entropy_with_logits(x, y), (6, 8), (6, 8))
    op("kl_div", lambda m, x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"), (6, 8), (6, 8))
    op("nll_loss", lambda m, x, y: F.nll_loss(F.log_softmax(x, -1), y), (8,), (), dtypes=(torch.float32, torch.int64))
    op("cross_entropy", lambda m, x, y: F.cross_entropy(x, y), (8,), (), dtypes=(torch.float32, torch.int64))
    op("cross_entropy_smooth", lambda m, x, y: F.cross_entropy(x, y, label_smoothing=0.1), (8,), (), dtypes=(torch.float32, torch.int64))
    op("cross_entropy_2d", lambda m, x, y: F.cross_entropy(x, y), IMG, (10, 12), dtypes=(torch.float32, torch.int64))


def view_cases():
    op("view", lambda m, x: x.view(x.shape[0], -1).sin())
    op("reshape_copy", lambda m, x: x.transpose(1, 2).reshape(x.shape[0], -1).sin())
    op("flatten", lambda m, x: x.flatten(1).sin())
    op("unflatten", lambda m, x: x.unflatten(2, (2, 4)).sin())
    op("transpose_sin", lambda m, x: x.transpose(1, 2).sin())
    op("permute_contiguous", lambda m, x: x.permute(2, 0, 1).contiguous().sin())
    op("mT", lambda m, x: x.mT.sin())
    op("expand", lambda m, x: x.mean(1, keepdim=True).expand(-1, 5, -1).sin())
    op("expand_as", lambda m, x: x * x.mean(1, keepdim=True).expand_as(x))
    op("squeeze", lambda m, x: x.mean(1, keepdim=True).squeeze(1).sin())
    op("unsqueeze", lambda m, x: (x.unsqueeze(1) * x.unsqueeze(2)))
    op("slice", lambda m, x: x[:, 1:4, ::2].sin())
    op("select", lambda m, x: x[:, 0].sin())
    op("split", lambda m, x: (lambda a, b: a * b)(*x.split(4, -1)))
    op("split_sizes", lambda m, x: (lambda a, b, c: a.sin().sum() + (b * c).sum())(*x.split([2, 3, 3], -1)))
    op("chunk", lambda m, x: (lambda a, b: a * b.sigmoid())(*x.chunk(2, -1)))
    op("tensor_split", lambda m, x: (lambda a, b, c: (a * b).sum() + c.sin().sum())(*x.tensor_split(3, -1)))
    op("unbind", lambda m, x: (lambda p: p[0] * p[1])(x.unbind(1)))
    op("narrow", lambda m, x: x.narrow(1, 1, 3).sin())
    op("cat", lambda m, x: torch.cat([x, x.sin()], 1).cos())
    op("stack", lambda m, x: torch.stack([x, x.sin()], 1).cos())
    op("hstack", lambda m, x: torch.hstack([x, x.sin()]).cos())
    op("repeat", lambda m, x: x.repeat(1, 2, 3).sin())
    op("tile", lambda m, x: x.tile(1, 2).sin())
    op("repeat_interleave", lambda m, x: x.repeat_interleave(2, dim=1).sin())
    op("roll", lambda m, x: x.roll(1, 1).sin())
    op("roll_two", lambda m, x: x.roll((1, 2), (1, 2)).sin())
    op("flip", lambda m, x: x.flip(1).sin())
    op("rot90", lambda m, x: x.rot90(1, (1, 2)).sin())
    op("triu", lambda m, x: x.triu().sin())
    op("tril", lambda m, x: x.tril(-1).sin())
    op("diagonal", lambda m, x: x.diagonal(dim1=1, dim2=2).sin())
    op("diag_embed", lambda m, x: x.diag_embed().sin(), (5,))
    op("movedim", lambda m, x: x.movedim(1, 2).sin())
    op("unfold_dim", lambda m, x: x.unfold(1, 3, 2).sin())
    op("clone", lambda m, x: x.clone().sin())
    op("pixel_shuffle", lambda m, x: F.pixel_shuffle(x, 2).sin(), IMG)
    op("pixel_unshuffle", lambda m, x: F.pixel_unshuffle(x, 2).sin(), IMG)
    op("channel_shuffle", lambda m, x: F.channel_shuffle(x, 2).sin(), IMG)
    op("channels_last", lambda m, x: x.to(memory_format=torch.channels_last).sin(), IMG)
    op("meshgrid", lambda m, x: sum(t.sin().sum() for t in torch.meshgrid(x[0], x[0, :4], indexing="ij")), (8,))
    op("outer", lambda m, x: torch.outer(x[0, 0], x[0, 1]).sin())
    op("pad_constant", lambda m, x: F.pad(x, (1, 2, 3, 0)).sin())
    op("pad_reflect", lambda m, x: F.pad(x, (1, 2), mode="reflect").sin())
    op("pad_reflect2d", lambda m, x: F.pad(x, (1, 2, 1, 1), mode="reflect").sin(), IMG)
    op("pad_replicate2d", lambda m, x: F.pad(x, (1, 2, 1, 1), mode="replicate").sin(), IMG)
    op("pad_circular", lambda m, x: F.pad(x, (1, 2, 1, 1), mode="circular").sin(), IMG)


def index_cases():
    ids = dict(dtypes=(torch.float32, torch.int64))
    op("embedding", lambda m, x, y: m.e(y), (6, 8), (5,), extra=lambda: {"e": nn.Embedding(10, 4)}, **ids)
    op("embedding_pad", lambda m, x, y: m.e(y), (6, 8), (5,), extra=lambda: {"e": nn.Embedding(10, 4, padding_idx=0)}, **ids)
    op("embedding_bag", lambda m, x, y: m.e(y), (6, 8), (5,), extra=lambda: {"e": nn.EmbeddingBag(10, 4)}, **ids)
    op("index_list", lambda m, x: x[:, [0, 2, 1]].sin())
    op("index_tensor", lambda m, x, y: x[y].sin(), (6, 8), (), high=2, **ids)
    op("index_two", lambda m, x, y: x[torch.arange(x.shape[0], device=x.device), y].sin(), (6, 8), (), **ids)
    op("index_mid", lambda m, x: x[:, :, m.i].sin(), extra=lambda: {"i": nn.Buffer(torch.tensor([0, 1, 1]))})
    op("index_select", lambda m, x: x.index_select(1, m.i).sin(), extra=lambda: {"i": nn.Buffer(torch.tensor([0, 1, 1]))})
    op("gather", lambda m, x, y: x.gather(1, y).sin(), (6, 8), (3, 8), **ids)
    op("take_along", lambda m, x, y: x.take_along_dim(y, 1).sin(), (6, 8), (3, 8), **ids)
    op("scatter", lambda m, x, y: x.scatter(1, y, 1.5).sin(), (6, 8), (3, 8), **ids)
    op("scatter_src", lambda m, x, y: torch.zeros_like(x).scatter(1, y, x.sin()).cos(), (6, 8), (6, 8), **ids)
    op("scatter_add", lambda m, x, y: torch.zeros_like(x).scatter_add(1, y, x.sin()).cos(), (6, 8), (6, 8), **ids)
    op("index_add", lambda m, x: torch.zeros_like(x).index_add(1, m.i, x[:, :3]).sin(), extra=lambda: {"i": nn.Buffer(torch.tensor([0, 1, 1]))})
    op("index_put", lambda m, x: torch.index_put(x, (m.i,), x[:1].sum() * 2).sin(), extra=lambda: {"i": nn.Buffer(torch.tensor([0, 1, 1]))})
    op("one_hot", lambda m, x, y: x[:, 0, :3] * F.one_hot(y, 3), (6, 8), (), **ids)
    op("assign_slice", lambda m, x: assign(x))
    op("masked_select_sum", lambda m, x, y: (x * y.unsqueeze(-1)).sum(1) / y.sum(1, keepdim=True), (6, 8), (6,))
    op("arange_mul", lambda m, x: x * torch.arange(8, device=x.device))
    op("ones_like", lambda m, x: x * torch.ones_like(x))
    op("randn_noise", lambda m, x: x * torch.randn_like(x))
    op("full_mask", lambda m, x: x.masked_fill(torch.ones(6, 8, dtype=torch.bool, device=x.device).triu(1), 0.0).sin())


def assign(x):
    y = torch.zeros_like(x)
    y[:, 1:3] = x[:, 1:3].sin()
    return y.cos()


def matmul_cases():
    P = nn.Parameter
    op("linear", lambda m, x: m.l(x), extra=lambda: {"l": nn.Linear(8, 5)})
    op("linear_nobias", lambda m, x: m.l(x), extra=lambda: {"l": nn.Linear(8, 5, bias=False)})
    op("linear_2d", lambda m, x: m.l(x), (8,), extra=lambda: {"l": nn.Linear(8, 5)})
    op("linear_transposed", lambda m, x: m.l(x.transpose(1, 2)), extra=lambda: {"l": nn.Linear(6, 5)})
    op("linear_transposed_nobias", lambda m, x: m.l(x.transpose(1, 2)), extra=lambda: {"l": nn.Linear(6, 5, bias=False)})
    op("linear_4d_permuted", lambda m, x: m.l(x.permute(0, 2, 3, 1)), IMG, extra=lambda: {"l": nn.Linear(4, 5)})
    op("linear_slice", lambda m, x: m.l(x[:, 0]), extra=lambda: {"l": nn.Linear(8, 5)})
    op("linear_frozen", lambda m, x: m.l(x), extra=lambda: {"l": nn.Linear(8, 5)}, frozen=("l\\.",))
    op("bilinear", lambda m, x, y: m.l(x, y), (8,), (8,), extra=lambda: {"l": nn.Bilinear(8, 8, 5)})
    op("matmul_22", lambda m, x: x @ m.w, (8,), extra=lambda: {"w": P(torch.zeros(8, 3))})
    op("matmul_32", lambda m, x: x @ m.w, (6, 8), extra=lambda: {"w": P(torch.zeros(8, 3))})
    op("matmul_32t", lambda m, x: x.transpose(1, 2) @ m.w, (6, 8), extra=lambda: {"w": P(torch.zeros(6, 3))})
    op("matmul_23", lambda m, x: m.w @ x, (6, 8), extra=lambda: {"w": P(torch.zeros(3, 6))})
    op("matmul_23_const", lambda m, x: m.w @ x, (6, 8), extra=lambda: {"w": nn.Buffer(torch.zeros(3, 6))})
    op("matmul_32_const", lambda m, x: x @ m.w, (6, 8), extra=lambda: {"w": nn.Buffer(torch.zeros(8, 3))})
    op("matmul_33", lambda m, x: x @ x.transpose(1, 2))
    op("matmul_44", lambda m, x: x @ x.transpose(2, 3), IMG)
    op("matmul_44_broadcast", lambda m, x: x @ m.w, IMG, extra=lambda: {"w": P(torch.zeros(1, 4, 12, 3))})
    op("matmul_43", lambda m, x: x @ m.w, IMG, extra=lambda: {"w": P(torch.zeros(4, 12, 3))})
    op("matmul_31", lambda m, x: x @ m.w, (6, 8), extra=lambda: {"w": P(torch.zeros(8))})
    op("matmul_13", lambda m, x: m.w @ x, (6, 8), extra=lambda: {"w": P(torch.zeros(6))})
    op("matmul_11", lambda m, x: x[0, 0] @ x[0, 1])
    op("matmul_heads", lambda m, x: heads(x) @ heads(x).transpose(2, 3))
    op("bmm", lambda m, x: torch.bmm(x, x.transpose(1, 2)))
    op("bmm_const", lambda m, x, y: torch.bmm(x, y), (6, 8), (8, 3))
    op("baddbmm", lambda m, x, y: torch.baddbmm(y, x, x.transpose(1, 2), beta=0.5, alpha=2), (6, 8), (6, 6))
    op("addmm", lambda m, x: torch.addmm(m.b2, x, m.w), (8,), extra=lambda: {"w": P(torch.zeros(8, 3)), "b2": P(torch.zeros(3))})
    op("addmm_scaled", lambda m, x: torch.addmm(m.b2, x, m.w, beta=0.5, alpha=3), (8,), extra=lambda: {"w": P(torch.zeros(8, 3)), "b2": P(torch.zeros(3))})
    op("mv", lambda m, x: torch.mv(x, m.w), (8,), extra=lambda: {"w": P(torch.zeros(8))})
    op("dot", lambda m, x: torch.dot(x[0], x[1]), (8,))
    for i, (eq, ws) in enumerate({"bij,jk->bik": (8, 3), "bij,kj->bik": (3, 8), "bij,ij->bi": (6, 8), "bij,bkj->bik": None, "bij,bij->b": None,
                                  "bij,bij->bij": None, "bij->bj": (), "bij,i->bj": (6,), "bij,bik->bijk": None, "bij,jkl->bikl": (8, 2, 3)}.items()):
        if ws:
            op(f"einsum{i}", lambda m, x, eq=eq: torch.einsum(eq, x, m.w), extra=lambda ws=ws: {"w": P(torch.zeros(ws))})
        else:
            op(f"einsum{i}", lambda m, x, eq=eq: torch.einsum(eq, *([x] * (1 + eq.count(",")))))
    op("einsum_attn", lambda m, x: torch.einsum("bhqk,bkhd->bqhd", torch.einsum("bqhd,bkhd->bhqk", x, x).softmax(-1), x), (6, 2, 4))
    op("einsum_three", lambda m, x: torch.einsum("bi,ij,bj->b", x, m.w, x), (8,), extra=lambda: {"w": P(torch.zeros(8, 8))})
    op("tensordot", lambda m, x: torch.tensordot(x, m.w, dims=([2], [0])), extra=lambda: {"w": P(torch.zeros(8, 3))})
    op("cdist", lambda m, x, y: torch.cdist(x, y), (6, 8), (5, 8))
    for n in ("auto", "math", "efficient"):
        kw = dict(attention=n)
        op(f"sdpa_{n}", lambda m, x: sdp(x), (16, 64), **kw)
        op(f"sdpa_{n}_causal", lambda m, x: sdp(x, is_causal=True), (16, 64), **kw)
        op(f"sdpa_{n}_dropout", lambda m, x: sdp(x, dropout_p=0.1), (16, 64), **kw)
        op(f"sdpa_{n}_mask", lambda m, x, y: sdp(x, attn_mask=y), (10, 64), (1, 10, 10), **kw)
        op(f"sdpa_{n}_boolmask", lambda m, x, y: sdp(x, attn_mask=y), (16, 64), (1, 1, 16), dtypes=(torch.float32, torch.bool), **kw)
        op(f"sdpa_{n}_bias", lambda m, x: sdp(x, attn_mask=m.w), (16, 64), extra=lambda: {"w": P(torch.zeros(1, 4, 16, 16))}, **kw)
        op(f"sdpa_{n}_scale", lambda m, x: sdp(x, scale=0.5), (16, 64), **kw)
    op("sdpa_odd", lambda m, x: sdp(x), (10, 44))
    op("sdpa_gqa", lambda m, x: sdp_gqa(x), (16, 64))
    op("sdpa_3d", lambda m, x: F.scaled_dot_product_attention(x, x, x), (16, 8))
    op("sdpa_cross", lambda m, x, y: F.scaled_dot_product_attention(heads(x, 4), heads(y, 4), heads(y, 4)), (16, 64), (9, 64))
    op("sdpa_contiguous", lambda m, x: F.scaled_dot_product_attention(*(x.unflatten(-1, (4, -1)).transpose(1, 2).contiguous(),) * 3), (16, 64))


def heads(x, n=2):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def sdp(x, **kw):
    h = heads(x, 4)
    return F.scaled_dot_product_attention(h, h * 2, h.sin(), **kw).transpose(1, 2).flatten(2)


def sdp_gqa(x):
    h = heads(x, 4)
    return F.scaled_dot_product_attention(h, h[:, :2], h[:, 2:].sin(), is_causal=True, enable_gqa=True)


def conv_cases():
    mod("conv1d", lambda: nn.Conv1d(6, 4, 3, padding=1), (6, 8))
    mod("conv1d_same", lambda: nn.Conv1d(6, 4, 3, padding="same"), (6, 8))
    mod("conv1d_same_even", lambda: nn.Conv1d(6, 4, 4, padding="same"), (6, 8))
    mod("conv2d", lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), IMG)
    mod("conv2d_same", lambda: nn.Conv2d(4, 6, 5, padding="same", dilation=2), IMG)
    mod("conv2d_valid", lambda: nn.Conv2d(4, 6, 3, padding="valid"), IMG)
    mod("conv2d_depthwise", lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), IMG)
    mod("conv2d_grouped", lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), IMG)
    mod("conv2d_reflect", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMG)
    mod("conv2d_circular", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), IMG)
    mod("conv2d_last", lambda: nn.Conv2d(4, 6, 3, padding=1).to(memory_format=torch.channels_last), IMG)
    mod("conv3d", lambda: nn.Conv3d(4, 6, 3, padding=1), VOL)
    mod("conv_transpose1d", lambda: nn.ConvTranspose1d(6, 4, 3, stride=2), (6, 8))
    mod("conv_transpose2d", lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1), IMG)
    mod("conv_transpose2d_output", lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), IMG)
    mod("conv_transpose3d", lambda: nn.ConvTranspose3d(4, 6, 2, stride=2), VOL)
    op("conv2d_permuted", lambda m, x: m.m(x.permute(0, 3, 1, 2)), (10, 12, 4), extra=lambda: {"m": nn.Conv2d(4, 6, 3)})
    op("unfold", lambda m, x: F.unfold(x, 3, padding=1, stride=2).sin(), IMG)
    op("fold", lambda m, x: F.fold(x.sin(), (6, 8), 2, stride=2).sin(), (8, 12))
    mod("weight_norm", lambda: torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 4, 3)), (6, 8))
    mod("spectral_norm", lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)), (6, 8))


def norm_cases():
    mod("layer_norm", lambda: nn.LayerNorm(8))
    mod("layer_norm_two", lambda: nn.LayerNorm((6, 8)))
    mod("layer_norm_plain", lambda: nn.LayerNorm(8, elementwise_affine=False))
    mod("layer_norm_nobias", lambda: nn.LayerNorm(8, bias=False))
    op("layer_norm_transposed", lambda m, x: m.m(x.transpose(1, 2)), extra=lambda: {"m": nn.LayerNorm(6)})
    op("layer_norm_permuted", lambda m, x: m.m(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), IMG, extra=lambda: {"m": nn.LayerNorm(4)})
    mod("batch_norm1d", lambda: nn.BatchNorm1d(6))
    mod("batch_norm1d_2d", lambda: nn.BatchNorm1d(8), (8,))
    mod("batch_norm2d", lambda: nn.BatchNorm2d(4), IMG)
    mod("batch_norm2d_plain", lambda: nn.BatchNorm2d(4, affine=False), IMG)
    mod("batch_norm2d_untracked", lambda: nn.BatchNorm2d(4, track_running_stats=False), IMG)
    mod("batch_norm3d", lambda: nn.BatchNorm3d(4), VOL)
    mod("batch_norm2d_eval", lambda: EvalBN(), IMG)
    op("batch_norm_last", lambda m, x: m.m(x.to(memory_format=torch.channels_last)), IMG, extra=lambda: {"m": nn.BatchNorm2d(4)})
    op("batch_norm_transposed", lambda m, x: m.m(x.transpose(1, 2)), extra=lambda: {"m": nn.BatchNorm1d(8)})
    mod("group_norm", lambda: nn.GroupNorm(2, 4), IMG)
    mod("group_norm_plain", lambda: nn.GroupNorm(2, 4, affine=False), IMG)
    op("group_norm_last", lambda m, x: m.m(x.to(memory_format=torch.channels_last)), IMG, extra=lambda: {"m": nn.GroupNorm(2, 4)})
    op("group_norm_transposed", lambda m, x: m.m(x.transpose(1, 2)), extra=lambda: {"m": nn.GroupNorm(2, 8)})
    mod("instance_norm", lambda: nn.InstanceNorm2d(4), IMG)
    mod("instance_norm_affine", lambda: nn.InstanceNorm2d(4, affine=True), IMG)
    mod("instance_norm_tracked", lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), IMG)
    mod("instance_norm1d", lambda: nn.InstanceNorm1d(6))
    mod("instance_norm3d", lambda: nn.InstanceNorm3d(4), VOL)
    mod("rms_norm", lambda: nn.RMSNorm(8))
    mod("rms_norm_plain", lambda: nn.RMSNorm(8, elementwise_affine=False))
    op("rms_norm_fn", lambda m, x: F.rms_norm(x, (8,), m.w, 1e-6), extra=lambda: {"w": nn.Parameter(torch.ones(8))})
    mod("rms_norm_llama", lambda: LlamaNorm(8))
    mod("local_response_norm", lambda: nn.LocalResponseNorm(2), IMG)
    mod("frozen_bn", lambda: FrozenBN(4), IMG)
    mod("layer_norm_2d", lambda: LayerNorm2d(4), IMG)
    mod("layer_norm_hand", lambda: HandNorm(8))


class EvalBN(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.BatchNorm2d(4)

    def forward(self, x):
        return F.batch_norm(x, self.m.running_mean, self.m.running_var, self.m.weight, self.m.bias, False, 0.1, 1e-5)


class LlamaNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        d = x.dtype
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(d)


class HandNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.weight * (x - mean) / (std + 1e-6) + self.bias


class LayerNorm2d(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class FrozenBN(nn.Module):
    def __init__(self, n):
        super().__init__()
        for k in ("weight", "bias", "mean", "var"):
            self.register_buffer(k, torch.ones(n))

    def forward(self, x):
        w, b, rv, rm = (t.reshape(1, -1, 1, 1) for t in (self.weight, self.bias, self.var, self.mean))
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


def pool_cases():
    mod("max_pool1d", lambda: nn.MaxPool1d(2), (6, 8))
    mod("max_pool2d", lambda: nn.MaxPool2d(3, 2, 1), IMG)
    mod("max_pool2d_ceil", lambda: nn.MaxPool2d(3, 2, ceil_mode=True), IMG)
    mod("max_pool2d_odd", lambda: nn.MaxPool2d(3, 2), (4, 11, 12))
    mod("max_pool3d", lambda: nn.MaxPool3d(2), VOL)
    op("max_pool2d_last", lambda m, x: F.max_pool2d(x.to(memory_format=torch.channels_last), 2).sin(), IMG)
    op("max_pool2d_indices", lambda m, x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2).sin(), IMG)
    mod("avg_pool1d", lambda: nn.AvgPool1d(2), (6, 8))
    mod("avg_pool2d", lambda: nn.AvgPool2d(3, 2, 1), IMG)
    mod("avg_pool3d", lambda: nn.AvgPool3d(2), VOL)
    mod("lp_pool", lambda: nn.LPPool2d(2, 3), IMG)
    for n in (1, 2):
        mod(f"adaptive_avg1d_{n}", lambda n=n: nn.AdaptiveAvgPool1d(n), (6, 8))
        mod(f"adaptive_avg2d_{n}", lambda n=n: nn.AdaptiveAvgPool2d(n), IMG)
        mod(f"adaptive_avg3d_{n}", lambda n=n: nn.AdaptiveAvgPool3d(n), VOL)
        mod(f"adaptive_max1d_{n}", lambda n=n: nn.AdaptiveMaxPool1d(n), (6, 8))
        mod(f"adaptive_max2d_{n}", lambda n=n: nn.AdaptiveMaxPool2d(n), IMG)
    mod("adaptive_avg2d_uneven", lambda: nn.AdaptiveAvgPool2d((3, 5)), IMG)
    mod("adaptive_avg2d_same", lambda: nn.AdaptiveAvgPool2d((10, 12)), IMG)
    op("adaptive_last", lambda m, x: F.adaptive_avg_pool2d(x.to(memory_format=torch.channels_last), 1), IMG)
    for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
        op(f"interpolate_{mode}", lambda m, x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode).sin(), IMG)
    op("interpolate_size", lambda m, x: F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True).sin(), IMG)
    op("interpolate_linear", lambda m, x: F.interpolate(x, scale_factor=2, mode="linear").sin())
    op("interpolate_nearest1d", lambda m, x: F.interpolate(x, scale_factor=2).sin())
    op("interpolate_nearest3d", lambda m, x: F.interpolate(x, scale_factor=2).sin(), VOL)
    op("interpolate_trilinear", lambda m, x: F.interpolate(x, scale_factor=2, mode="trilinear").sin(), VOL)
    op("interpolate_antialias", lambda m, x: F.interpolate(x, size=(5, 6), mode="bilinear", antialias=True).sin(), IMG)
    mod("upsample", lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), IMG)
    op("grid_sample", lambda m, x: F.grid_sample(x, torch.tanh(x[:, :2].permute(0, 2, 3, 1)), align_corners=False), IMG)
    op("affine_grid", lambda m, x: F.grid_sample(x, F.affine_grid(m.t.expand(x.shape[0], -1, -1), list(x.shape), align_corners=False), align_corners=False), IMG,
       extra=lambda: {"t": nn.Parameter(torch.eye(2, 3)[None])})


def rnn_cases():
    kw = dict(loss="auto")
    for n, c in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)):
        first = (lambda m, x: m.m(x)[0])
        op(n, first, (6, 8), extra=lambda c=c: {"m": c(8, 5, batch_first=True)}, **kw)
        op(n + "_two", first, (6, 8), extra=lambda c=c: {"m": c(8, 5, num_layers=2, batch_first=True)}, **kw)
        op(n + "_bi", first, (6, 8), extra=lambda c=c: {"m": c(8, 5, bidirectional=True, batch_first=True)}, **kw)
        op(n + "_seq", lambda m, x: m.m(x.transpose(0, 1).contiguous())[0], (6, 8), extra=lambda c=c: {"m": c(8, 5)}, **kw)
        op(n + "_dropout", first, (6, 8), extra=lambda c=c: {"m": c(8, 5, num_layers=2, dropout=0.1, batch_first=True)}, **kw)
    op("lstm_cell", lambda m, x: m.m(x)[0], (8,), extra=lambda: {"m": nn.LSTMCell(8, 5)}, **kw)
    op("gru_cell", lambda m, x: m.m(x), (8,), extra=lambda: {"m": nn.GRUCell(8, 5)}, **kw)


# ---- cases: small nets ---------------------------------------------------------------------------------------------------


def net(name, build, inputs, **kw):
    case("net/" + name, build, inputs, kind="net", **kw)


class Residual(nn.Module):
    def __init__(self, fn, *mods):
        super().__init__()
        self.m = nn.Sequential(*mods)
        self.fn = fn

    def forward(self, x):
        return self.fn(self.m(x), x)


class SE(nn.Module):
    """Squeeze and excite."""

    def __init__(self, c, r=4):
        super().__init__()
        self.pool, self.fc1, self.fc2 = nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c // r, 1), nn.Conv2d(c // r, c, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(self.pool(x)))))


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        keep = 1 - self.p
        mask = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep)
        return x * mask.div_(keep)


class UNet(nn.Module):
    """A U-Net of two levels; up is transposed, bilinear, nearest or shuffle."""

    def __init__(self, up="transposed", norm="batch", act=nn.ReLU, skip="cat", w=8):
        super().__init__()
        def unit(i, o):
            n = {"batch": nn.BatchNorm2d, "instance": nn.InstanceNorm2d, "group": lambda c: nn.GroupNorm(4, c), "none": lambda c: nn.Identity()}[norm]
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), n(o), act(), nn.Conv2d(o, o, 3, padding=1), n(o), act())
        def grow(i, o):
            return {"transposed": lambda: nn.ConvTranspose2d(i, o, 2, 2), "shuffle": lambda: nn.Sequential(nn.Conv2d(i, 4 * o, 1), nn.PixelShuffle(2)),
                    "bilinear": lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(i, o, 1)),
                    "nearest": lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 1))}[up]()
        self.skip = skip
        self.d1, self.d2, self.mid = unit(3, w), unit(w, 2 * w), unit(2 * w, 4 * w)
        self.u2, self.u1 = grow(4 * w, 2 * w), grow(2 * w, w)
        k = 2 if skip == "cat" else 1
        self.c2, self.c1 = unit(k * 2 * w, 2 * w), unit(k * w, w)
        self.out, self.pool = nn.Conv2d(w, 5, 1), nn.MaxPool2d(2)

    def join(self, a, b):
        return torch.cat([a, b], 1) if self.skip == "cat" else a + b

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(self.pool(a))
        m = self.mid(self.pool(b))
        b = self.c2(self.join(self.u2(m), b))
        return self.out(self.c1(self.join(self.u1(b), a)))


class Mixer(nn.Module):
    def __init__(self, n=16, d=24, depth=2):
        super().__init__()
        self.stem = nn.Conv2d(3, d, 4, 4)
        mlp = lambda i, h: nn.Sequential(nn.Linear(i, h), nn.GELU(), nn.Dropout(0.1), nn.Linear(h, i), nn.Dropout(0.1))
        self.token, self.channel = nn.ModuleList(mlp(n, 32) for _ in range(depth)), nn.ModuleList(mlp(d, 48) for _ in range(depth))
        self.n1, self.n2 = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth)), nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 7)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for t, c, n1, n2 in zip(self.token, self.channel, self.n1, self.n2):
            x = x + t(n1(x).transpose(1, 2)).transpose(1, 2)
            x = x + c(n2(x))
        return self.head(self.norm(x).mean(1))


class Block(nn.Module):
    """A pre-norm transformer block written by hand."""

    def __init__(self, d=32, h=4, attn="einsum", norm=nn.LayerNorm, mlp="gelu", p=0.0):
        super().__init__()
        self.h, self.attn, self.mlp = h, attn, mlp
        self.n1, self.n2, self.qkv, self.proj = norm(d), norm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.up, self.down, self.drop = nn.Linear(d, 4 * d if mlp == "gelu" else 8 * d), nn.Linear(4 * d, d), nn.Dropout(p)

    def attend(self, x):
        b, n, d = x.shape
        if self.attn == "einsum":
            q, k, v = (t.view(b, n, self.h, -1) for t in self.qkv(x).chunk(3, -1))
            a = torch.einsum("bqhd,bkhd->bhqk", q, k) * (d // self.h) ** -0.5
            o = torch.einsum("bhqk,bkhd->bqhd", self.drop(a.softmax(-1)), v)
            return o.reshape(b, n, d)
        q, k, v = self.qkv(x).reshape(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.attn == "matmul":
            a = (q @ k.transpose(-2, -1)) * (d // self.h) ** -0.5
            mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), 1)
            a = a.masked_fill(mask, float("-inf")).softmax(-1)
            return (self.drop(a) @ v).transpose(1, 2).reshape(b, n, d)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d)

    def forward(self, x):
        x = x + self.drop(self.proj(self.attend(self.n1(x))))
        h = self.up(self.n2(x))
        if self.mlp == "gelu":
            h = F.gelu(h)
        else:
            a, b = h.chunk(2, -1)
            h = {"geglu": lambda: F.gelu(a) * b, "swiglu": lambda: F.silu(a) * b, "glu": lambda: F.glu(h)}[self.mlp]()
        return x + self.drop(self.down(h))


class Tokens(nn.Module):
    """Embedding, blocks, a head tied to the embedding or not."""

    def __init__(self, *blocks, vocab=50, d=32, tied=False, positions=True):
        super().__init__()
        self.e, self.blocks, self.norm, self.head = nn.Embedding(vocab, d), nn.ModuleList(blocks), nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        self.p = nn.Embedding(64, d) if positions else None
        if tied:
            self.head.weight = self.e.weight

    def forward(self, ids):
        x = self.e(ids)
        if self.p is not None:
            x = x + self.p(torch.arange(ids.shape[1], device=ids.device))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


class TorchTransformer(nn.Module):
    def __init__(self, kind, **kw):
        super().__init__()
        self.kind, self.e = kind, nn.Embedding(50, 32)
        args = dict(d_model=32, nhead=4, dim_feedforward=64, batch_first=True, **kw)
        if kind == "encoder":
            self.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(**args), 2, enable_nested_tensor=False)
        elif kind == "decoder":
            self.t = nn.TransformerDecoder(nn.TransformerDecoderLayer(**args), 2)
        else:
            self.t = nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **args)
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        x = self.e(ids)
        n = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n, device=ids.device)
        y = {"encoder": lambda: self.t(x), "decoder": lambda: self.t(x, x * 2, tgt_mask=mask, tgt_is_causal=True),
             "both": lambda: self.t(x, x, tgt_mask=mask, src_is_causal=False, tgt_is_causal=True, memory_is_causal=False)}[self.kind]()
        return self.head(y)


class Rotary(nn.Module):
    """Rotary positions with an interleaved rotation and a cached table."""

    def __init__(self, d=8):
        super().__init__()
        self.register_buffer("inv", 1.0 / (10000 ** (torch.arange(0, d, 2).float() / d)))
        self.l = nn.Linear(32, 32)

    def forward(self, x):
        b, n, d = x.shape
        q = self.l(x).view(b, n, 4, 8)
        t = torch.arange(n, device=x.device, dtype=torch.float32)
        f = torch.outer(t, self.inv).repeat_interleave(2, -1)
        cos, sin = f.cos()[None, :, None], f.sin()[None, :, None]
        r = torch.stack((-q[..., 1::2], q[..., ::2]), -1).reshape(q.shape)
        return (q * cos + r * sin).flatten(2)


class Recurrent(nn.Module):
    def __init__(self, cls, **kw):
        super().__init__()
        self.e, self.r, self.head = nn.Embedding(50, 16), cls(16, 24, batch_first=True, **kw), nn.Linear(24 * (2 if kw.get("bidirectional") else 1), 50)

    def forward(self, ids):
        return self.head(self.r(self.e(ids))[0])


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.var, self.dec = nn.Sequential(nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 8), nn.Linear(32, 8), nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.var(h)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.dec(z), mu, logvar


class Graph(nn.Module):
    """Graph convolution with a dense adjacency, and attention over edges."""

    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.a = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x, adj):
        h = F.relu(adj @ self.l1(x))
        e = F.leaky_relu(self.a(h) + self.a(h).transpose(1, 2), 0.2)
        w = e.masked_fill(adj == 0, -1e9).softmax(-1)
        return self.l2(w @ h)


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.f, self.g, self.r = nn.Conv1d(1, 8, 1), nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(3)), \
            nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(3)), nn.ModuleList(nn.Conv1d(8, 8, 1) for i in range(3))
        self.out = nn.Conv1d(8, 4, 1)

    def forward(self, x):
        x = self.inp(x)
        skip = 0
        for i, (f, g, r) in enumerate(zip(self.f, self.g, self.r)):
            p = F.pad(x, (2**i, 0))
            h = r(torch.tanh(f(p)) * torch.sigmoid(g(p)))
            skip = skip + h
            x = x + h
        return self.out(F.relu(skip))


def seq(*m):
    return lambda: nn.Sequential(*m)


def net_cases():
    img = shaped((3, 16, 16))
    ids = lambda n=12: shaped((n,), dtypes=(torch.int64,), high=50)
    bn = lambda i, o, s=1: nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
    net("mlp", lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 7)), shaped((20,)))
    net("mlp_inplace", lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(inplace=True), nn.Linear(32, 32), nn.SiLU(inplace=True), nn.Linear(32, 7)), shaped((20,)))
    net("autoencoder", lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(),
                                             nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Sigmoid()), img)
    net("vae", VAE, shaped((64,)))
    net("cnn", lambda: nn.Sequential(bn(3, 8), bn(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 7)), img)
    net("cnn_gap_mean", lambda: nn.Sequential(bn(3, 8), Residual(lambda y, x: F.relu(y + x), bn(8, 8), bn(8, 8)), Mean(), nn.Linear(8, 7)), img)
    net("residual_inplace", lambda: nn.Sequential(bn(3, 8), Residual(lambda y, x: y.add_(x).relu_(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)), Mean(), nn.Linear(8, 7)), img)
    net("dense", lambda: nn.Sequential(bn(3, 8), Residual(lambda y, x: torch.cat([x, y], 1), bn(8, 4)), Residual(lambda y, x: torch.cat([x, y], 1), bn(12, 4)), Mean(), nn.Linear(16, 7)), img)
    net("se", lambda: nn.Sequential(bn(3, 16), SE(16), nn.Hardswish(inplace=True), Mean(), nn.Linear(16, 7)), img)
    net("drop_path", lambda: nn.Sequential(bn(3, 8), Residual(lambda y, x: x + y, bn(8, 8), DropPath(0.1)), Mean(), nn.Linear(8, 7)), img)
    net("group_norm", lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(4, 8), nn.SiLU(), Mean(), nn.Linear(8, 7)), img)
    net("instance_norm", lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3, padding=1), nn.Tanh()), img)
    net("gan_d", lambda: nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(16, 1, 4), nn.Flatten()), img)
    net("gan_g", lambda: nn.Sequential(nn.ConvTranspose2d(10, 16, 4), nn.BatchNorm2d(16), nn.ReLU(True), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()), shaped((10, 1, 1)))
    net("channels_last", lambda: nn.Sequential(bn(3, 8), bn(8, 16, 2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 7)).to(memory_format=torch.channels_last), img)
    for up in ("transposed", "bilinear", "nearest", "shuffle"):
        net("unet_" + up, lambda up=up: UNet(up), img)
    net("unet_instance", lambda: UNet(norm="instance", act=nn.LeakyReLU), img)
    net("unet_group", lambda: UNet(norm="group", act=nn.SiLU, skip="add"), img)
    net("unet_plain", lambda: UNet(norm="none", act=nn.ELU), img)
    net("conv1d", lambda: nn.Sequential(nn.Conv1d(4, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 8, 3), nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 7)), shaped((4, 32)))
    net("wavenet", WaveNet, shaped((1, 24)))
    net("conv3d", lambda: nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 7)), shaped((1, 8, 8, 8)))
    net("mixer", Mixer, img)
    for a in ("einsum", "matmul", "sdpa"):
        net("block_" + a, lambda a=a: Tokens(Block(attn=a, p=0.1), Block(attn=a, p=0.1)), ids())
    for g in ("geglu", "swiglu", "glu"):
        net("block_" + g, lambda g=g: Tokens(Block(attn="sdpa", mlp=g)), ids())
    net("block_rms", lambda: Tokens(Block(attn="sdpa", norm=nn.RMSNorm)), ids())
    net("block_llama_norm", lambda: Tokens(Block(attn="sdpa", norm=LlamaNorm, mlp="swiglu")), ids())
    net("tied", lambda: Tokens(Block(attn="sdpa"), tied=True), ids())
    net("frozen_embedding", lambda: Tokens(Block(attn="sdpa")), ids(), frozen=("^e\\.", "^p\\."))
    net("frozen_block", lambda: Tokens(Block(attn="sdpa"), Block(attn="sdpa")), ids(), frozen=("^e\\.", "^p\\.", "^blocks\\.0"))
    net("lora", lambda: Tokens(Lora(), tied=False), ids(), frozen=("^e\\.", "^p\\.", "^head", "^norm", "base"))
    net("rotary", lambda: Tokens(Rotary(), positions=False), ids())
    for k in ("encoder", "decoder", "both"):
        net("transformer_" + k, lambda k=k: TorchTransformer(k), ids())
    net("transformer_norm_first", lambda: TorchTransformer("encoder", norm_first=True, activation="gelu", dropout=0.0), ids())
    net("mha", lambda: MHA(), shaped((12, 32)))
    net("mha_weights", lambda: MHA(need_weights=True), shaped((12, 32)))
    net("mha_seq_first", lambda: MHA(batch_first=False), shaped((12, 32)))
    net("mha_mask", lambda: MHA(mask=True), shaped((12, 32)))
    for n, c in (("lstm", nn.LSTM), ("gru", nn.GRU)):
        net(n, lambda c=c: Recurrent(c), ids())
        net(n + "_deep", lambda c=c: Recurrent(c, num_layers=2, bidirectional=True, dropout=0.1), ids())
    net("graph", Graph, shaped((10, 8), (10, 10)))
    net("moe", MoE, shaped((12, 16)))
    net("diffusion", Diffusion, lambda b: (torch.randn(b, 3, 16, 16), torch.randint(0, 100, (b,))))
    net("two_towers", Towers, lambda b: (torch.randn(b, 3, 16, 16), torch.randint(0, 50, (b, 12))))
    net("weight_shared", Shared, shaped((16,)))
    net("ssm", SSM, shaped((12, 8)))
    conv = lambda *fn, **mods: lambda: Between(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), *fn, **mods)
    lin = lambda *fn, **mods: lambda: Between(nn.Linear(16, 16), nn.Linear(16, 4), *fn, **mods)
    tokens = shaped((6, 16))
    net("spectral_norm", lambda: nn.Sequential(*(nn.utils.parametrizations.spectral_norm(m) for m in (nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))), nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(1152, 5))), img)
    net("cosine_scores", lin(lambda m, x: F.cosine_similarity(x.unsqueeze(1), x.unsqueeze(2), dim=-1) @ x), tokens)
    net("max_gate", conv(lambda m, x: x * (F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, 1)).sigmoid()), img)
    net("spatial_gate", conv(lambda m, x: x * m.c(torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)).sigmoid(), c=lambda: nn.Conv2d(2, 1, 7, padding=3)), img)
    net("generalized_mean", conv(lambda m, x: F.avg_pool2d(x.clamp(min=1e-6).pow(3), 2).pow(1 / 3)), img)
    net("minibatch_std", conv(lambda m, x: x + x.std(0, unbiased=False).mean()), img)
    net("cast_mask", lin(lambda m, x: x * (x > 0).to(x.dtype)), tokens)
    net("stop_gradient", conv(lambda m, x: m.n(x).detach() + x, n=lambda: nn.BatchNorm2d(8)), img)
    net("bags", lin(lambda m, x, i: x + m.e(i).unsqueeze(1), e=lambda: nn.EmbeddingBag(50, 16, mode="sum")), lambda b: (torch.randn(b, 6, 16), torch.randint(0, 50, (b, 5))))
    net("bags_max", lin(lambda m, x, i: x + m.e(i).unsqueeze(1), e=lambda: nn.EmbeddingBag(50, 16, mode="max")), lambda b: (torch.randn(b, 6, 16), torch.randint(0, 50, (b, 5))))
    net("cross_padding", lin(lambda m, x, k: m.a(x, x[:, :4], x[:, :4], key_padding_mask=k, need_weights=False)[0], a=lambda: nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)), shaped((6, 16), (4,), dtypes=(torch.float32, torch.bool)))


class Between(nn.Module):
    """fn(module, activation, other inputs) between two layers; mods makes the modules that fn calls."""

    def __new__(cls, first, last, fn, **mods):
        return super().__new__(Between2 if fn.__code__.co_argcount > 2 else cls)

    def __init__(self, first, last, fn, **mods):
        super().__init__()
        self.first, self.last, self.fn = first, last, fn
        for k, build in mods.items():
            setattr(self, k, build())

    def forward(self, x):
        return self.last(self.fn(self, self.first(x)))


class Between2(Between):
    def forward(self, x, y):
        return self.last(self.fn(self, self.first(x), y))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class Lora(nn.Module):
    def __init__(self, d=32, r=4):
        super().__init__()
        self.base, self.a, self.b = nn.Linear(d, d), nn.Linear(d, r, bias=False), nn.Linear(r, d, bias=False)

    def forward(self, x):
        return x + F.gelu(self.base(x) + self.b(self.a(x)) * 2.0)


class MHA(nn.Module):
    def __init__(self, need_weights=False, batch_first=True, mask=False):
        super().__init__()
        self.m, self.head, self.w, self.mask = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=batch_first), nn.Linear(32, 7), need_weights, mask

    def forward(self, x):
        if not self.m.batch_first:
            x = x.transpose(0, 1)
        x = x + self.head.weight.sum()
        mask = torch.triu(torch.full((12, 12), float("-inf"), device=x.device), 1) if self.mask else None
        y = self.m(x, x, x, need_weights=self.w, attn_mask=mask)[0]
        return self.head(y)


class MoE(nn.Module):
    """Dense mixture: every expert on every token, weighted by the top two gates."""

    def __init__(self, d=16, n=4):
        super().__init__()
        self.gate, self.experts = nn.Linear(d, n), nn.ModuleList(nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d)) for _ in range(n))

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        v, i = p.topk(2, -1)
        w = torch.zeros_like(p).scatter(-1, i, v)
        return torch.stack([e(x) for e in self.experts], -1).mul(w.unsqueeze(-2)).sum(-1)


class Diffusion(nn.Module):
    """A U-Net block with time embedding and attention over pixels."""

    def __init__(self, c=8):
        super().__init__()
        self.inp, self.t1, self.t2 = nn.Conv2d(3, c, 3, padding=1), nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.n1, self.c1, self.n2, self.c2 = nn.GroupNorm(4, c), nn.Conv2d(c, c, 3, padding=1), nn.GroupNorm(4, c), nn.Conv2d(c, c, 3, padding=1)
        self.an, self.qkv, self.proj, self.out = nn.GroupNorm(4, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1), nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t):
        f = torch.exp(-9.2 * torch.arange(4, device=x.device) / 4)
        a = t[:, None].float() * f[None]
        emb = self.t2(F.silu(self.t1(torch.cat([a.sin(), a.cos()], -1))))
        x = self.inp(x)
        h = self.c1(F.silu(self.n1(x))) + emb[:, :, None, None]
        x = x + self.c2(F.silu(self.n2(h)))
        b, c, hh, ww = x.shape
        q, k, v = self.qkv(self.an(x)).reshape(b, 3, c, hh * ww).unbind(1)
        w = torch.einsum("bcq,bck->bqk", q * c**-0.25, k * c**-0.25).softmax(-1)
        return self.out(x + self.proj(torch.einsum("bqk,bck->bcq", w, v).reshape(b, c, hh, ww)))


class Towers(nn.Module):
    """Contrastive image and text encoders."""

    def __init__(self):
        super().__init__()
        self.img = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), Mean(), nn.Linear(8, 16))
        self.e, self.txt, self.scale = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Parameter(torch.tensor(2.6))

    def forward(self, x, ids):
        a = F.normalize(self.img(x), dim=-1)
        b = self.txt(self.e(ids).mean(1))
        b = b / b.norm(dim=-1, keepdim=True)
        return self.scale.exp() * a @ b.t()


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.n, self.out = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 7)

    def forward(self, x):
        for _ in range(3):
            x = x + torch.tanh(self.l(self.n(x)))
        return self.out(x)


class SSM(nn.Module):
    """A selective state space layer as an unrolled scan."""

    def __init__(self, d=8, n=4):
        super().__init__()
        self.a, self.b, self.c, self.dt, self.d = nn.Parameter(torch.randn(d, n)), nn.Linear(d, n), nn.Linear(d, n), nn.Linear(d, d), nn.Parameter(torch.ones(d))

    def forward(self, x):
        dt = F.softplus(self.dt(x))
        da = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.a))
        db = dt.unsqueeze(-1) * self.b(x).unsqueeze(2) * x.unsqueeze(-1)
        c, h, ys = self.c(x), torch.zeros(x.shape[0], 8, 4, device=x.device), []
        for i in range(x.shape[1]):
            h = da[:, i] * h + db[:, i]
            ys.append((h * c[:, i, None]).sum(-1))
        return torch.stack(ys, 1) + x * self.d


# ---- cases: models of libraries ------------------------------------------------------------------------------------------


def model(name, build, inputs, **kw):
    kw.setdefault("batches", (2, 8))
    case(name, build, inputs, kind="model", **kw)


class First(nn.Module):
    """The first tensor of what a model returns, or its logits or last hidden state."""

    def __init__(self, m, pick=None, **kw):
        super().__init__()
        self.m, self.pick, self.kw = m, pick, kw

    def forward(self, x):
        out = self.m(x, **self.kw)
        for k in (self.pick,) if self.pick else ("logits", "last_hidden_state", "out"):
            if isinstance(out, dict) and k in out or hasattr(out, k or "?"):
                return out[k] if isinstance(out, dict) else getattr(out, k)
        return out[0] if isinstance(out, (tuple, list)) else out


TORCHVISION = """alexnet convnext_small densenet169 efficientnet_b0 efficientnet_v2_s googlenet:224 inception_v3:299 maxvit_t mnasnet0_5 mnasnet1_0
mobilenet_v3_large mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet34 resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1 squeezenet1_0 swin_t swin_v2_t
swin_b vgg11_bn vgg13 vit_b_32 wide_resnet50_2 resnet101 efficientnet_b3 convnext_base densenet121 densenet201 efficientnet_b1 mnasnet1_3 mobilenet_v2
regnet_y_800mf regnet_x_8gf resnet18 resnet50 resnext101_32x8d shufflenet_v2_x0_5 swin_v2_s vgg19_bn vgg16 vit_l_32 convnext_tiny"""


def torchvision_cases():
    import torchvision.models as tv

    for s in TORCHVISION.split():
        n, _, size = s.partition(":")
        kw = {"aux_logits": False} if n in ("googlenet", "inception_v3") else {}
        if n == "googlenet" or n == "inception_v3":
            kw["init_weights"] = False
        model("tv/" + n, lambda n=n, kw=kw: getattr(tv, n)(**kw), shaped((3, int(size or 224), int(size or 224))))
    model("tv/inception_v3_aux", lambda: First(tv.inception_v3(init_weights=False), "logits"), shaped((3, 299, 299)))
    for n in "deeplabv3_resnet50 deeplabv3_mobilenet_v3_large fcn_resnet50 lraspp_mobilenet_v3_large".split():
        model("tv/" + n, lambda n=n: First(getattr(tv.segmentation, n)(weights=None, weights_backbone=None), "out"), shaped((3, 128, 128)))
    for n in "r3d_18 mc3_18 r2plus1d_18".split():
        model("tv/" + n, lambda n=n: getattr(tv.video, n)(), shaped((3, 8, 56, 56)))
    for n in "s3d mvit_v2_s swin3d_t".split():
        model("tv/" + n, lambda n=n: getattr(tv.video, n)(), shaped((3, 16, 224, 224)), batches=(2, 3))


def text(name, cls, config, seq=48, pick=None, attn=("sdpa", "eager"), extra=None, **kw):
    """A model of transformers on token ids."""

    def build(a):
        import transformers

        c = config(transformers)
        c.use_cache = False
        for k in ("_attn_implementation",):
            pass
        m = getattr(transformers, cls)._from_config(c, attn_implementation=a)
        more = {"use_cache": False} if "use_cache" in c.to_dict() and not getattr(m, "no_cache", False) and takes(m, "use_cache") else {}
        return First(m, pick, **more, **(extra or {}))

    for a in attn:
        model(f"hf/{name}_{a}" if len(attn) > 1 else f"hf/{name}", lambda a=a: build(a), shaped((seq,), dtypes=(torch.int64,), high=400), **kw)


def takes(m, name):
    import inspect

    return name in inspect.signature(m.forward).parameters


def image(name, cls, config, size=64, pick=None, attn=("sdpa", "eager"), channels=3, shape=None, **kw):
    def build(a):
        import transformers

        return First(getattr(transformers, cls)._from_config(config(transformers), attn_implementation=a), pick)

    for a in attn:
        model(f"hf/{name}_{a}" if len(attn) > 1 else f"hf/{name}", lambda a=a: build(a), shaped(shape or (channels, size, size)), **kw)


def transformers_cases():
    s = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, vocab_size=512)
    g = dict(s, num_key_value_heads=2)
    text("qwen2", "Qwen2ForCausalLM", lambda t: t.Qwen2Config(**g))
    text("qwen3", "Qwen3ForCausalLM", lambda t: t.Qwen3Config(**g, head_dim=32))
    text("llama", "LlamaForCausalLM", lambda t: t.LlamaConfig(**g))
    text("llama_tied", "LlamaForCausalLM", lambda t: t.LlamaConfig(**g, tie_word_embeddings=True, attention_bias=True), attn=("sdpa",))
    text("mistral", "MistralForCausalLM", lambda t: t.MistralConfig(**g))
    text("mistral_window", "MistralForCausalLM", lambda t: t.MistralConfig(**g, sliding_window=16), attn=("sdpa",))
    text("mixtral", "MixtralForCausalLM", lambda t: t.MixtralConfig(**g, num_local_experts=4), attn=("sdpa",))
    text("gemma", "GemmaForCausalLM", lambda t: t.GemmaConfig(**g, head_dim=32))
    text("gemma2", "Gemma2ForCausalLM", lambda t: t.Gemma2Config(**g, head_dim=32))
    text("gemma3", "Gemma3ForCausalLM", lambda t: t.Gemma3TextConfig(**g, head_dim=32))
    text("phi", "PhiForCausalLM", lambda t: t.PhiConfig(**s, partial_rotary_factor=0.5))
    text("phi3", "Phi3ForCausalLM", lambda t: t.Phi3Config(**g, pad_token_id=0))
    text("stablelm", "StableLmForCausalLM", lambda t: t.StableLmConfig(**g), attn=("sdpa",))
    text("olmo2", "Olmo2ForCausalLM", lambda t: t.Olmo2Config(**g), attn=("sdpa",))
    text("granite", "GraniteForCausalLM", lambda t: t.GraniteConfig(**g), attn=("sdpa",))
    text("cohere", "CohereForCausalLM", lambda t: t.CohereConfig(**g), attn=("sdpa",))
    text("starcoder2", "Starcoder2ForCausalLM", lambda t: t.Starcoder2Config(**g), attn=("sdpa",))
    text("opt", "OPTForCausalLM", lambda t: t.OPTConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, ffn_dim=256, vocab_size=512, word_embed_proj_dim=128, max_position_embeddings=128))
    text("gpt2", "GPT2LMHeadModel", lambda t: t.GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=512, n_positions=128))
    text("gpt_neo", "GPTNeoForCausalLM", lambda t: t.GPTNeoConfig(hidden_size=128, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], vocab_size=512, window_size=16), attn=("eager",))
    text("gpt_neox", "GPTNeoXForCausalLM", lambda t: t.GPTNeoXConfig(**s))
    text("gptj", "GPTJForCausalLM", lambda t: t.GPTJConfig(n_embd=128, n_layer=2, n_head=4, rotary_dim=16, vocab_size=512), attn=("eager",))
    text("bloom", "BloomForCausalLM", lambda t: t.BloomConfig(hidden_size=128, n_layer=2, n_head=4, vocab_size=512), attn=("eager",))
    text("falcon", "FalconForCausalLM", lambda t: t.FalconConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=512))
    text("mpt", "MptForCausalLM", lambda t: t.MptConfig(d_model=128, n_layers=2, n_heads=4, vocab_size=512), attn=("eager",))
    text("mamba", "MambaForCausalLM", lambda t: t.MambaConfig(hidden_size=64, num_hidden_layers=2, state_size=8, vocab_size=512), seq=8, attn=("eager",))
    text("bert", "BertForMaskedLM", lambda t: t.BertConfig(**s))
    text("bert_cls", "BertForSequenceClassification", lambda t: t.BertConfig(**s, num_labels=3), attn=("sdpa",))
    text("roberta", "RobertaForMaskedLM", lambda t: t.RobertaConfig(**s))
    text("distilbert", "DistilBertForMaskedLM", lambda t: t.DistilBertConfig(dim=128, n_layers=2, n_heads=4, hidden_dim=256, vocab_size=512))
    text("albert", "AlbertForMaskedLM", lambda t: t.AlbertConfig(**s, embedding_size=64))
    text("deberta", "DebertaV2ForMaskedLM", lambda t: t.DebertaV2Config(**s, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=64, position_buckets=32), attn=("eager",))
    text("electra", "ElectraForMaskedLM", lambda t: t.ElectraConfig(**s, embedding_size=64))
    text("mpnet", "MPNetForMaskedLM", lambda t: t.MPNetConfig(**s), attn=("eager",))
    text("modernbert", "ModernBertForMaskedLM", lambda t: t.ModernBertConfig(**s, pad_token_id=0, cls_token_id=1, sep_token_id=2, eos_token_id=2, bos_token_id=1))
    text("longformer", "LongformerForMaskedLM", lambda t: t.LongformerConfig(**s, attention_window=16), attn=("eager",))
    text("xlm_roberta", "XLMRobertaForTokenClassification", lambda t: t.XLMRobertaConfig(**s, num_labels=5), attn=("sdpa",))
    text("clip_text", "CLIPTextModel", lambda t: t.CLIPTextConfig(**s, max_position_embeddings=77))
    text("t5_encoder", "T5EncoderModel", lambda t: t.T5Config(d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, vocab_size=512), attn=("eager",))
    pair(
        "t5", "T5ForConditionalGeneration", lambda t: t.T5Config(d_model=128, d_kv=32, d_ff=256, num_layers=1, num_decoder_layers=1, num_heads=4, vocab_size=512), ("eager",))
    pair("t5_gated", "T5ForConditionalGeneration", lambda t: t.T5Config(d_model=128, d_kv=32, d_ff=256, num_layers=1, num_heads=4, vocab_size=512, feed_forward_proj="gated-gelu", tie_word_embeddings=False), ("eager",))
    pair("bart", "BartForConditionalGeneration", lambda t: t.BartConfig(d_model=128, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256,
                                                                        decoder_ffn_dim=256, vocab_size=512, max_position_embeddings=128))
    pair("marian", "MarianMTModel", lambda t: t.MarianConfig(d_model=128, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256,
                                                             decoder_ffn_dim=256, vocab_size=512, max_position_embeddings=128, pad_token_id=0), ("sdpa",))
    v = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, image_size=64, patch_size=8)
    image("vit", "ViTForImageClassification", lambda t: t.ViTConfig(**v))
    image("deit", "DeiTForImageClassification", lambda t: t.DeiTConfig(**v))
    image("beit", "BeitForImageClassification", lambda t: t.BeitConfig(**v))
    image("dinov2", "Dinov2ForImageClassification", lambda t: t.Dinov2Config(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=8))
    image("swin", "SwinForImageClassification", lambda t: t.SwinConfig(image_size=64, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4), attn=("eager",))
    image("convnext", "ConvNextForImageClassification", lambda t: t.ConvNextConfig(hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1], drop_path_rate=0.1), attn=("eager",))
    image("convnextv2", "ConvNextV2ForImageClassification", lambda t: t.ConvNextV2Config(hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1]), attn=("eager",))
    image("resnet", "ResNetForImageClassification", lambda t: t.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 2]), attn=("eager",))
    image("segformer", "SegformerForSemanticSegmentation", lambda t: t.SegformerConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=64), attn=("eager",))
    image("mobilevit", "MobileViTForImageClassification", lambda t: t.MobileViTConfig(image_size=64), attn=("eager",))
    image("clip_vision", "CLIPVisionModel", lambda t: t.CLIPVisionConfig(**v))
    image("siglip_vision", "SiglipVisionModel", lambda t: t.SiglipVisionConfig(**v), attn=("sdpa",))
    image("whisper_encoder", "WhisperModel", lambda t: t.WhisperConfig(d_model=128, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256,
                                                                      max_source_positions=50, num_mel_bins=20), shape=(20, 100)) if False else None
    speech()
    more_text(s, g)
    more_images(v)


def more_text(s, g):
    moe = dict(g, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    for n, cls, conf in (
            ("olmo", "OlmoForCausalLM", g), ("olmoe", "OlmoeForCausalLM", dict(g, num_experts=4)), ("qwen2_moe", "Qwen2MoeForCausalLM", moe), ("qwen3_moe", "Qwen3MoeForCausalLM", moe),
            ("nemotron", "NemotronForCausalLM", g), ("persimmon", "PersimmonForCausalLM", s), ("glm", "GlmForCausalLM", dict(g, head_dim=32, pad_token_id=0)), ("glm4", "Glm4ForCausalLM", dict(g, head_dim=32, pad_token_id=0)),
            ("smollm3", "SmolLM3ForCausalLM", dict(g, pad_token_id=0)), ("helium", "HeliumForCausalLM", dict(g, head_dim=32)), ("cohere2", "Cohere2ForCausalLM", g), ("exaone4", "Exaone4ForCausalLM", g),
            ("gpt_oss", "GptOssForCausalLM", dict(g, num_local_experts=4, head_dim=32)), ("arcee", "ArceeForCausalLM", g), ("bitnet", "BitNetForCausalLM", g), ("diffllama", "DiffLlamaForCausalLM", g),
            ("granitemoe", "GraniteMoeForCausalLM", dict(g, num_local_experts=4)), ("jetmoe", "JetMoeForCausalLM", dict(hidden_size=128, num_hidden_layers=2, num_key_value_heads=2, kv_channels=32, intermediate_size=128, num_local_experts=4, vocab_size=512)),
            ("gpt_bigcode", "GPTBigCodeForCausalLM", dict(n_embd=128, n_layer=2, n_head=4, vocab_size=512, n_positions=128)), ("codegen", "CodeGenForCausalLM", dict(n_embd=128, n_layer=2, n_head=4, rotary_dim=16, vocab_size=512)),
            ("openai_gpt", "OpenAIGPTLMHeadModel", dict(n_embd=128, n_layer=2, n_head=4, vocab_size=512, n_positions=128)), ("ctrl", "CTRLLMHeadModel", dict(n_embd=128, n_layer=2, n_head=4, dff=256, vocab_size=512)),
            ("xglm", "XGLMForCausalLM", dict(d_model=128, num_layers=2, attention_heads=4, ffn_dim=256, vocab_size=512)), ("biogpt", "BioGptForCausalLM", s), ("rembert", "RemBertForMaskedLM", dict(s, input_embedding_size=64, output_embedding_size=64)),
            ("camembert", "CamembertForMaskedLM", s), ("ernie", "ErnieForMaskedLM", s), ("roformer", "RoFormerForMaskedLM", s), ("squeezebert", "SqueezeBertForMaskedLM", dict(s, embedding_size=128)), ("mobilebert", "MobileBertForMaskedLM", dict(s, embedding_size=64, intra_bottleneck_size=64, true_hidden_size=64)),
            ("fnet", "FNetForMaskedLM", s), ("xlnet", "XLNetLMHeadModel", dict(d_model=128, n_layer=2, n_head=4, d_inner=256, vocab_size=512)), ("funnel", "FunnelForMaskedLM", dict(vocab_size=512, d_model=128, n_head=4, d_head=32, d_inner=256, block_sizes=[1, 1, 1], num_decoder_layers=1)),
            ("convbert", "ConvBertForMaskedLM", s), ("deberta_v1", "DebertaForMaskedLM", dict(s, relative_attention=True, pos_att_type=["p2c", "c2p"])), ("big_bird", "BigBirdForMaskedLM", dict(s, attention_type="original_full")), ("nystromformer", "NystromformerForMaskedLM", dict(s, num_landmarks=8, segment_means_seq_len=48)),
            ("megatron_bert", "MegatronBertForMaskedLM", s), ("ibert", "IBertForMaskedLM", s), ("luke", "LukeForMaskedLM", dict(s, entity_vocab_size=10, entity_emb_size=16)), ("xmod", "XmodForMaskedLM", dict(s, languages=["en_XX"], default_language="en_XX")), ("esm", "EsmForMaskedLM", dict(s, pad_token_id=1, mask_token_id=2)),
            ("bert_qa", "BertForQuestionAnswering", s), ("bert_tokens", "BertForTokenClassification", s), ("gpt2_cls", "GPT2ForSequenceClassification", dict(n_embd=128, n_layer=2, n_head=4, vocab_size=512, pad_token_id=0)), ("splinter", "SplinterForPreTraining", s),
            ("mamba2", "Mamba2ForCausalLM", dict(hidden_size=64, num_hidden_layers=2, state_size=8, vocab_size=512, num_heads=8, head_dim=16, n_groups=1, chunk_size=16)), ("rwkv", "RwkvForCausalLM", dict(hidden_size=64, num_hidden_layers=2, vocab_size=512, context_length=64)), ("lfm2", "Lfm2ForCausalLM", dict(g, layer_types=["conv", "full_attention"]))):
        text(n, cls, lambda t, c=cls, k=conf: getattr(t, getattr(t, c).config_class.__name__)(**k), attn=("sdpa",) if n not in ("fnet", "mamba2", "rwkv") else ("eager",))
    for n, cls in (("mbart", "MBartForConditionalGeneration"), ("pegasus", "PegasusForConditionalGeneration"), ("blenderbot", "BlenderbotForConditionalGeneration"), ("m2m_100", "M2M100ForConditionalGeneration"), ("plbart", "PLBartForConditionalGeneration")):
        pair(n, cls, lambda t, c=cls: getattr(t, c).config_class(d_model=128, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, vocab_size=512, max_position_embeddings=128, pad_token_id=0), ("sdpa",))
    for n, cls in (("mt5", "MT5ForConditionalGeneration"), ("umt5", "UMT5ForConditionalGeneration"), ("longt5", "LongT5ForConditionalGeneration"), ("switch", "SwitchTransformersForConditionalGeneration")):
        pair(n, cls, lambda t, c=cls: getattr(t, c).config_class(d_model=128, d_kv=32, d_ff=256, num_layers=1, num_decoder_layers=1, num_heads=4, vocab_size=512), ("eager",))


def more_images(v):
    for n, cls, conf in (
            ("dinov2_registers", "Dinov2WithRegistersForImageClassification", dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=8)), ("vit_msn", "ViTMSNForImageClassification", v), ("data2vec_vision", "Data2VecVisionForImageClassification", v),
            ("poolformer", "PoolFormerForImageClassification", dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1])), ("pvt", "PvtForImageClassification", dict(image_size=64, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4])),
            ("pvt_v2", "PvtV2ForImageClassification", dict(image_size=64, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4])), ("levit", "LevitForImageClassification", dict(image_size=64)), ("cvt", "CvtForImageClassification", dict(depth=[1, 1, 1], embed_dim=[16, 32, 64], num_heads=[1, 2, 4])),
            ("efficientnet", "EfficientNetForImageClassification", dict(image_size=64, width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640)), ("mobilenet_v1", "MobileNetV1ForImageClassification", dict(image_size=64)), ("mobilenet_v2", "MobileNetV2ForImageClassification", dict(image_size=64)),
            ("regnet", "RegNetForImageClassification", dict(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], groups_width=16)), ("focalnet", "FocalNetForImageClassification", dict(image_size=64, embed_dim=32, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3])), ("bit", "BitForImageClassification", dict(embedding_size=32, hidden_sizes=[64, 128], depths=[1, 1])),
            ("swinv2", "Swinv2ForImageClassification", dict(image_size=64, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4)), ("dpt", "DPTForSemanticSegmentation", dict(v, neck_hidden_sizes=[16, 32, 48, 64], fusion_hidden_size=32, backbone_out_indices=[0, 0, 1, 1], is_hybrid=False)), ("glpn", "GLPNForDepthEstimation", dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=32)),
            ("yolos", "YolosForObjectDetection", dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, image_size=[64, 64], patch_size=8, num_detection_tokens=10)), ("ijepa", "IJepaForImageClassification", v), ("hiera", "HieraForImageClassification", dict(image_size=[64, 64], embed_dim=32, depths=[1, 1, 2, 1])),
            ("mobilevitv2", "MobileViTV2ForImageClassification", dict(image_size=64, base_attn_unit_dims=[32, 48, 64])), ("upernet", "UperNetForSemanticSegmentation", dict(hidden_size=64)), ("vit_hybrid", "ViTForMaskedImageModeling", v), ("textnet", "TextNetForImageClassification", {}), ("dinov3", "DINOv3ViTModel", dict(v, num_register_tokens=2))):
        image(n, cls, lambda t, c=cls, k=conf: getattr(t, c).config_class(**k), attn=("eager",) if n in ("poolformer", "pvt", "levit", "cvt", "glpn", "hiera", "segformer") else ("sdpa",))
    for n, cls in (("hubert", "HubertForCTC"), ("wavlm", "WavLMForCTC"), ("unispeech", "UniSpeechForCTC"), ("data2vec_audio", "Data2VecAudioForCTC"), ("sew", "SEWForCTC")):
        def build(cls=cls):
            import transformers
            c = getattr(transformers, cls).config_class(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, conv_dim=(32, 32), conv_kernel=(10, 3), conv_stride=(5, 2), num_feat_extract_layers=2,
                                                        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, vocab_size=32, mask_time_prob=0.0, layerdrop=0.0, apply_spec_augment=False)
            return First(getattr(transformers, cls)._from_config(c, attn_implementation="eager"))
        model("hf/" + n, build, shaped((400,)))
    model("hf/ast", lambda: hf("ASTForAudioClassification", hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, max_length=64, num_mel_bins=32), shaped((64, 32)))
    model("hf/whisper", lambda: Whisper(), lambda b: (torch.randn(b, 20, 100), torch.randint(0, 400, (b, 16))))
    model("hf/speech_to_text", lambda: Whisper("Speech2TextForConditionalGeneration", input_feat_per_channel=20, max_source_positions=100, max_target_positions=64, num_conv_layers=2), lambda b: (torch.randn(b, 100, 20), torch.randint(0, 400, (b, 16))))
    model("hf/clip", lambda: Clip(), lambda b: (torch.randint(0, 400, (b, 12)), torch.randn(b, 3, 64, 64)))


def hf(cls, **kw):
    import transformers

    c = getattr(transformers, cls)
    return First(c._from_config(c.config_class(**kw), attn_implementation="sdpa"))


class Whisper(nn.Module):
    def __init__(self, cls="WhisperForConditionalGeneration", **kw):
        super().__init__()
        kw = kw or dict(max_source_positions=50, num_mel_bins=20)
        self.m = hf(cls, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, vocab_size=512,
                    pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **kw).m

    def forward(self, x, ids):
        return self.m(x, decoder_input_ids=ids, use_cache=False).logits


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        s = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
        self.m = hf("CLIPModel", text_config=dict(s, vocab_size=512, eos_token_id=2), vision_config=dict(s, image_size=64, patch_size=8), projection_dim=64).m

    def forward(self, ids, x):
        return self.m(input_ids=ids, pixel_values=x).logits_per_image


def diffusers_cases():
    import diffusers

    class Unet(nn.Module):
        def __init__(self, m, context=False):
            super().__init__()
            self.m, self.context = m, context

        def forward(self, x, t, *c):
            return self.m(x, t, *c).sample if not self.context else self.m(x, t, encoder_hidden_states=c[0]).sample

    class Cross(Unet):
        def forward(self, x, t, c):
            return self.m(x, t, encoder_hidden_states=c).sample

    class Plain(Unet):
        def forward(self, x, t):
            return self.m(x, t).sample

    class VAE(Unet):
        def forward(self, x):
            return self.m(x, sample_posterior=True).sample

    class DiT(Unet):
        def forward(self, x, t, y):
            return self.m(x, timestep=t, class_labels=y).sample

    steps = lambda b: torch.randint(0, 100, (b,))
    small = dict(sample_size=32, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8)
    kw = dict(loss="sum")
    model("diffusers/unet2d", lambda: Plain(diffusers.UNet2DModel(in_channels=3, out_channels=3, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), **small)), lambda b: (torch.randn(b, 3, 32, 32), steps(b)), **kw)
    model("diffusers/unet2d_condition", lambda: Cross(diffusers.UNet2DConditionModel(in_channels=4, out_channels=4, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=64,
                                                                                     attention_head_dim=8, **small)), lambda b: (torch.randn(b, 4, 32, 32), steps(b), torch.randn(b, 7, 64)), **kw)
    model("diffusers/vae", lambda: VAE(diffusers.AutoencoderKL(in_channels=3, out_channels=3, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, block_out_channels=(32, 64), norm_num_groups=8, latent_channels=4)),
          lambda b: (torch.randn(b, 3, 32, 32),), **kw)
    model("diffusers/dit", lambda: DiT(diffusers.DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=16, patch_size=2, num_embeds_ada_norm=100)),
          lambda b: (torch.randn(b, 4, 16, 16), steps(b), torch.randint(0, 100, (b,))), **kw)
    model("diffusers/pixart", lambda: Cross(diffusers.PixArtTransformer2DModel(num_attention_heads=4, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=16, patch_size=2, cross_attention_dim=64, caption_channels=64, out_channels=8)),
          lambda b: (torch.randn(b, 4, 16, 16), steps(b), torch.randn(b, 7, 64)), **kw)


def latest_cases():
    """Families that came later."""
    import diffusers
    import torchvision.models as tv
    import transformers

    s = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
    w, g = dict(s, vocab_size=512), dict(s, vocab_size=512, num_key_value_heads=2)
    v = dict(s, image_size=64, patch_size=8)
    for n, cls, conf in (("bert_lm", "BertLMHeadModel", dict(w, is_decoder=True)), ("ernie4_5", "Ernie4_5ForCausalLM", dict(g, head_dim=32)), ("olmo3", "Olmo3ForCausalLM", g), ("phi4", "Phi3ForCausalLM", dict(g, pad_token_id=0, partial_rotary_factor=0.5)),
                         ("layoutlm", "LayoutLMForTokenClassification", w), ("roberta_cls", "RobertaForSequenceClassification", w), ("roberta_prelayernorm", "RobertaPreLayerNormForMaskedLM", w)):
        text(n, cls, lambda t, c=cls, k=conf: getattr(t, c).config_class(**k), attn=("sdpa",))
    for n, cls, conf, a, shape in (("vit_mae", "ViTMAEModel", v, "sdpa", None), ("donut_swin", "DonutSwinModel", dict(image_size=64, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4), "eager", None),
                                   ("sam_vision", "SamVisionModel", dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=8, window_size=4, global_attn_indexes=[1], output_channels=32, mlp_dim=256), "eager", None),
                                   ("segformer_cls", "SegformerForImageClassification", dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4]), "eager", None),
                                   ("videomae", "VideoMAEForVideoClassification", dict(s, image_size=32, patch_size=8, num_frames=4), "sdpa", (4, 3, 32, 32)), ("timesformer", "TimesformerForVideoClassification", dict(s, image_size=32, patch_size=8, num_frames=4), "eager", (4, 3, 32, 32))):
        image(n, cls, lambda t, c=cls, k=conf: getattr(t, c).config_class(**k), attn=(a,), shape=shape)

    def pairs(name, build, f, inputs, **kw):
        model(name, lambda: Given(build(), f), inputs, **kw)

    images = lambda b: (torch.randint(0, 400, (b, 12)), torch.randn(b, 3, 64, 64))
    captions = lambda b: (torch.randn(b, 3, 64, 64), torch.randint(0, 400, (b, 12)))
    pairs("hf/siglip", lambda: hf("SiglipModel", text_config=dict(w, max_position_embeddings=64), vision_config=v).m, lambda m, i, x: m(input_ids=i, pixel_values=x).logits_per_image, images)

    def blip():
        c = transformers.BlipConfig(text_config=dict(w, encoder_hidden_size=128, bos_token_id=1, sep_token_id=2, pad_token_id=0), vision_config=v)
        return transformers.BlipForConditionalGeneration._from_config(c, attn_implementation="eager")

    def vision_text():
        e = transformers.ViTConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128, image_size=64, patch_size=8)
        d = transformers.TrOCRConfig(d_model=64, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=128, vocab_size=512, max_position_embeddings=64, cross_attention_hidden_size=64)
        return transformers.VisionEncoderDecoderModel(config=transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(e, d))

    pairs("hf/blip_caption", blip, lambda m, x, i: m(pixel_values=x, input_ids=i).logits, captions)
    pairs("hf/vision_encoder_decoder", vision_text, lambda m, x, i: m(pixel_values=x, decoder_input_ids=i, use_cache=False).logits, lambda b: (torch.randn(b, 3, 64, 64), torch.randint(0, 400, (b, 16))))

    class SSD(nn.Module):
        def __init__(self):
            super().__init__()
            m = tv.detection.ssd300_vgg16(weights=None, weights_backbone=None, num_classes=5)
            self.b, self.h = m.backbone, m.head

        def forward(self, x):
            return self.h(list(self.b(x).values()))["cls_logits"]

    model("tv/ssd300", SSD, shaped((3, 300, 300)), loss="sum")
    model("diffusers/flux", lambda: Flux(diffusers.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
                                                                         guidance_embeds=False)), lambda b: (torch.randn(b, 16, 4), torch.randn(b, 7, 32), torch.randn(b, 32), torch.rand(b)), loss="sum")


class Given(nn.Module):
    """f(model, two inputs)."""

    def __init__(self, m, f):
        super().__init__()
        self.m, self.f = m, f

    def forward(self, a, b):
        return self.f(self.m, a, b)


class Flux(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, x, c, p, t):
        return self.m(hidden_states=x, encoder_hidden_states=c, pooled_projections=p, timestep=t, img_ids=torch.zeros(16, 3, device=x.device), txt_ids=torch.zeros(7, 3, device=x.device)).sample


def pair(name, cls, config, attn=("sdpa", "eager")):
    """An encoder-decoder of transformers: ids and decoder ids."""

    def build(a):
        import transformers

        c = config(transformers)
        c.use_cache = False
        return Pair(getattr(transformers, cls)._from_config(c, attn_implementation=a))

    for a in attn:
        model(f"hf/{name}_{a}" if len(attn) > 1 else f"hf/{name}", lambda a=a: build(a), shaped((24,), (16,), dtypes=(torch.int64, torch.int64), high=400))


class Pair(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, a, b):
        return self.m(input_ids=a, decoder_input_ids=b, use_cache=False).logits


def speech():
    for a in ("sdpa", "eager"):
        def build(a=a):
            import transformers

            c = transformers.WhisperConfig(d_model=128, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256,
                                           decoder_ffn_dim=256, max_source_positions=50, num_mel_bins=20, vocab_size=512, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
            return First(transformers.WhisperModel._from_config(c, attn_implementation=a).encoder)
        model(f"hf/whisper_encoder_{a}", build, shaped((20, 100)))

        def wav(a=a):
            import transformers

            c = transformers.Wav2Vec2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, conv_dim=(32, 32), conv_kernel=(10, 3), conv_stride=(5, 2),
                                            num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, vocab_size=32, mask_time_prob=0.0, layerdrop=0.0, apply_spec_augment=False)
            return First(transformers.Wav2Vec2ForCTC._from_config(c, attn_implementation=a))
        model(f"hf/wav2vec2_{a}", wav, shaped((400,)))


TIMM = """resnet26d resnetv2_50 seresnet33ts efficientnet_lite0 mobilenetv4_conv_small ghostnet_100 repvgg_a0 vit_tiny_patch16_224 deit_tiny_patch16_224
convnextv2_atto mixer_s32_224 gmlp_ti16_224 poolformer_s12 cait_xxs24_224 xcit_nano_12_p16_224 eva02_tiny_patch14_224 regnetz_b16 nfnet_l0 coat_tiny
convnext_atto swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 beit_base_patch16_224 maxvit_nano_rw_256 coatnet_nano_rw_224 davit_tiny efficientformer_l1 efficientformerv2_s0
efficientvit_b0 efficientvit_m0 mobilevit_s mobilevitv2_050 ghostnetv2_100 hgnet_tiny inception_v4 inception_resnet_v2 lcnet_050 mixnet_s mobilenetv3_large_100 nf_resnet50
pvt_v2_b0 rdnet_tiny regnetx_002 regnety_002 repvit_m1 resmlp_12_224 resnest14d rexnet_100 sebotnet33ts_256 selecsls42 sequencer2d_s skresnet18 tf_efficientnet_b0 tinynet_e
tiny_vit_5m_224 tnt_s_legacy_patch16_224 tresnet_m twins_svt_small visformer_tiny ese_vovnet19b_dw xception41 gcvit_xxtiny focalnet_tiny_srf hiera_tiny_224 caformer_s18 gernet_s
eca_nfnet_l0 cspresnet50 cspdarknet53 darknet53 dpn68 densenet121 ecaresnet26t mambaout_femto starnet_s1 swiftformer_xs vit_small_patch16_dinov3 vit_base_patch16_siglip_224
convmixer_768_32 resnet50d wide_resnet50_2 legacy_seresnet18 res2next50 regnetv_040 vovnet39a nasnetalarge
mobileone_s0 fastvit_t8 edgenext_xx_small hrnet_w18_small res2net50_26w_4s dla34 levit_128s crossvit_tiny_240 pit_ti_224 volo_d1_224"""


def timm_cases():
    for n in TIMM.split():
        size = {"crossvit_tiny_240": 240, "eva02_tiny_patch14_224": 224, "fastvit_t8": 128, "maxvit_nano_rw_256": 256, "sebotnet33ts_256": 256, "nasnetalarge": 331}.get(n, 224)

        def build(n=n):
            import timm

            return timm.create_model(n, pretrained=False)
        model("timm/" + n, build, shaped((3, size, size)))


def smp_cases():
    for n in "Unet FPN DeepLabV3Plus PSPNet Linknet MAnet UnetPlusPlus Segformer".split():
        def build(n=n):
            import segmentation_models_pytorch as smp

            return getattr(smp, n)(encoder_name="resnet18", encoder_weights=None, classes=4)
        model("smp/" + n.lower(), build, shaped((3, 64, 64)))


def register(models=True):
    for f in (pointwise_cases, reduction_cases, view_cases, index_cases, matmul_cases, conv_cases, norm_cases, pool_cases, rnn_cases, net_cases):
        f()
    if models:
        for f in (torchvision_cases, transformers_cases, timm_cases, smp_cases, diffusers_cases, latest_cases):
            f()


# ---- main ----------------------------------------------------------------------------------------------------------------


def root():
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(c, args):
    base = os.path.join(args.out, c.name.replace("/", "_"))
    result = {"name": c.name, "kind": c.kind, "loss": c.loss, "attention": c.attention, "frozen": list(c.frozen)}
    if args.device == "cuda":
        result["torch"] = torch.__version__
        try:
            result["runs"] = measure(c, "cuda")
        except Exception as e:
            result["error"] = f"{type(e).__name__}: {e}"[:300]
        for r in result.get("runs", []):
            r["rows"] = [x for x in r["rows"] if x[3]]
        return result
    if args.force or not os.path.exists(base + ".json"):
        try:
            result["runs"] = measure(c, "fake")
        except Exception as e:
            result["error"] = f"{type(e).__name__}: {e}"[:300]
            if args.verbose:
                traceback.print_exc()
        with open(base + ".json", "w") as f:
            json.dump(result, f)
    if args.export and (args.force or not os.path.exists(base + ".onnx")):
        try:
            export(c, base + ".onnx")
            if os.path.exists(base + ".err"):
                os.remove(base + ".err")
        except Exception as e:
            result["export"] = f"{type(e).__name__}: {e}"
            with open(base + ".err", "w") as f:
                f.write(result["export"])
            if args.verbose:
                traceback.print_exc()
    return result


def pack(out):
    """Gathers the results of all cases into one archive: NAME.json, the sizes as [bytes, count], and NAME.onnx.

    A case that OUT lacks keeps what the archive has.
    """
    path = os.path.join(root(), "graph", "train", "testdata", "saved.tar.xz")
    files = {}
    if os.path.exists(path):
        with tarfile.open(path) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive}
    for name in CASES:
        flat = name.replace("/", "_")
        base = os.path.join(out, flat)
        if not os.path.exists(base + ".json"):
            continue
        r = json.load(open(base + ".json"))
        if not r.get("runs") or not (os.path.exists(base + ".onnx") or flat + ".onnx" in files):
            continue
        for run_ in r["runs"]:
            rows = run_.pop("rows")
            run_["sizes"] = sorted(collections.Counter(x[2] for x in rows if x[3] and x[2]).items())
        files[flat + ".json"] = json.dumps({k: v for k, v in r.items() if v != []}, separators=(",", ":")).encode()
        if os.path.exists(base + ".onnx"):
            files[flat + ".onnx"] = open(base + ".onnx", "rb").read()
    with tarfile.open(path + ".new", "w:xz", preset=9 | lzma.PRESET_EXTREME, format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(n.replace("/", "_") for n in CASES):
            for suffix in (".json", ".onnx"):
                if name + suffix in files:
                    info = tarfile.TarInfo(name + suffix)
                    info.size = len(files[name + suffix])
                    archive.addfile(info, io.BytesIO(files[name + suffix]))
    os.replace(path + ".new", path)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("patterns", nargs="*", metavar="REGEX", help="only cases whose name matches one of these")
    ap.add_argument("--out", default=os.path.join(root(), ".reference"))
    ap.add_argument("--device", choices=("fake", "cuda"), default="fake")
    ap.add_argument("--pack", action="store_true", help="put OUT into graph/train/testdata/saved.tar.xz and exit")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--force", action="store_true", help="run cases that OUT has already")
    ap.add_argument("--no-export", dest="export", action="store_false")
    ap.add_argument("--verbose", action="store_true")
    args = ap.parse_args()
    register()
    cases = [c for c in CASES.values() if not args.patterns or any(re.search(p, c.name) for p in args.patterns)]
    if args.list:
        print("\n".join(c.name for c in cases))
        return
    os.makedirs(args.out, exist_ok=True)
    if args.pack:
        pack(args.out)
        return
    log = open(os.path.join(args.out, "cuda.jsonl"), "a") if args.device == "cuda" else None
    for c in cases:
        t = time.time()
        r = run(c, args)
        if log:
            log.write(json.dumps(r) + "\n")
            log.flush()
        bad = "; ".join(f"{k}: {r[k][:150]}" for k in ("error", "export") if k in r)
        print(f"{c.name:32s} {time.time() - t:6.1f}s {bad}", flush=True)


if __name__ == "__main__":
    main()
