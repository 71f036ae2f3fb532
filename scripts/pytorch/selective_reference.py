#!/usr/bin/env python3
"""What selective activation checkpointing keeps and runs again, from PyTorch itself: the reference of planner's TestSelectiveReference.

    python3 scripts/pytorch/selective_reference.py [REGEX] | xz > planner/testdata/selective.jsonl.xz
    python3 scripts/pytorch/selective_reference.py --apply ./memplan

Runs models of saved_reference.py with modules checkpointed (use_reentrant=False) under FakeTensorMode on tensors of device type cuda, and
saves the outputs of operators' calls by several policies. A line of the result has, for each region, the calls of every operator that
makes storage; the calls that were saved; the bytes that live between forward and backward, parameters, buffers and inputs aside; and
for each region, the last first, what runs again when one of its saved tensors is asked for, and by how many bytes memory grows.
Autograd's engine does not run on fake tensors of a device that is not there: the first tensor that a region saved is asked for here.

With --apply, small models train a step on the CPU as a plan says: they are exported, the memplan that is named plans them for less
memory than they need, and `memplan.checkpoint` applies its configuration. Gradients must be those of the step without
checkpoints to the last bit; the bytes between forward and backward are compared with memplan's by planner's TestApplied. The files,
the configurations and the bytes go to planner/testdata/applied.
"""
import argparse
import collections
import contextlib
import gc
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
import weakref

warnings.filterwarnings("ignore")
import torch
import torch.utils.checkpoint as cp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import saved_reference as reference

# Models of saved_reference.py, and the modules of each that are checkpointed.
MODELS = [
    ("net/block_geglu", r"blocks.\d"),
    ("net/transformer_encoder", r".*layers.\d"),
    ("net/unet_bilinear", r"d1|d2|mid"),
    ("hf/bert_eager", r"m.bert.encoder.layer.\d"),
    ("hf/bert_sdpa", r"m.bert.encoder.layer.\d"),
    ("hf/bloom", r"m.transformer.h.\d"),
    ("hf/dinov2_sdpa", r"m.*layers?.\d"),
    ("hf/gemma2_eager", r"m.model.layers.\d"),
    ("hf/gpt2_eager", r"m.transformer.h.\d"),
    ("hf/gpt2_sdpa", r"m.transformer.h.\d"),
    ("hf/gpt_neox_sdpa", r"m.*layers.\d"),
    ("hf/llama_eager", r"m.model.layers.\d"),
    ("hf/llama_sdpa", r"m.model.layers.\d"),
    ("hf/opt_sdpa", r"m.model.decoder.layers.\d"),
    ("hf/phi_sdpa", r"m.model.layers.\d"),
    ("hf/qwen2_sdpa", r"m.model.layers.\d"),
    ("hf/t5_encoder", r"m.encoder.block.\d"),
    ("hf/vit_sdpa", r"m.vit.layers.\d"),
    ("tv/mobilenet_v3_small", r"features.\d+"),
    ("tv/resnet34", r"layer[1-4]\.[0-9]"),
    ("tv/swin_t", r"features.[1357].\d"),
    ("tv/vit_b_32", r"encoder.layers.encoder_layer_\d+"),
]

# Operators whose calls are saved: those of graph/aten's selectable.
SELECTABLE = """addmm mm bmm baddbmm convolution _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention
native_layer_norm native_group_norm _fused_rms_norm _softmax native_dropout
gelu silu tanh sigmoid hardswish hardsigmoid pow rsqrt mul sub div neg cat mean""".split()


class Live(TorchDispatchMode):
    """Follows the storages that operators make, and lists the operators that make any."""

    def __init__(self, known, device="cuda"):
        super().__init__()
        self.device = device
        self.known, self.now, self.peak, self.ran = set(known), 0, 0, []

    def gone(self, key, size):
        self.now -= size
        self.known.discard(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = False
        for t in torch.utils._pytree.tree_leaves(out):
            if not isinstance(t, torch.Tensor) or t.device.type != self.device:
                continue
            storage = t.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self.known or size == 0 or reference.STATE["efficient"] and t.dtype == torch.int64:
                continue
            made = True
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.gone, key, size)
        if made:
            self.ran.append(name(func))
        return out


def name(func):
    return str(getattr(func, "overloadpacket", func)).removeprefix("aten.")


class Region:
    """Counts the calls of one region and says which of them are saved."""

    def __init__(self, save, device="cuda"):
        self.save, self.device, self.calls, self.outs = save, device, collections.Counter(), []

    def policy(self, ctx, func, *args, **kwargs):
        n = name(func)
        if ctx.is_recompute:
            raise AssertionError("the policy is asked again")
        i = self.calls[n]
        self.calls[n] += 1
        if self.save is None:
            inputs = {t.untyped_storage()._cdata for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
            for t in torch.utils._pytree.tree_leaves(ctx.op_output):
                if isinstance(t, torch.Tensor) and t.device.type == self.device and t.untyped_storage().nbytes():
                    self.outs.append((n, i, cp._VersionWrapper(cp._detach_helper(t)), t.untyped_storage()._cdata in inputs))
        return cp.CheckpointPolicy.MUST_SAVE if self.save and (n, i) in self.save else cp.CheckpointPolicy.PREFER_RECOMPUTE


def wrap(module, names, saves, device="cuda"):
    """Checkpoints modules; saves are the calls of each that keep their outputs, None to look at them."""
    modules, regions = dict(module.named_modules()), []
    for n, save in zip(names, saves):
        r = Region(save, device)
        regions.append(r)

        def checkpointed(*args, _r=r, _f=modules[n].forward, **kwargs):
            return cp.checkpoint(_f, *args, use_reentrant=False, context_fn=lambda: cp.create_selective_checkpoint_contexts(_r.policy), **kwargs)

        modules[n].forward = checkpointed
    return regions


def run(c, batch, prec, names, saves):
    torch.manual_seed(0)
    module = reference.prepared(c)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        module = reference.faked(module)
    regions = wrap(module, names, saves)
    cast = reference.autocast(torch.bfloat16) if prec == "amp-bf16" else contextlib.nullcontext()
    with mode, torch.device("cuda"):
        xs = tuple(torch.empty_like(x, device="cuda") for x in c.inputs(batch))
        known = {t.untyped_storage()._cdata for t in [*module.parameters(), *module.buffers(), *xs]}
        with reference.attention(c.attention, True), reference.nothing_masked(), Live(known) as live:
            with cast:
                loss = reference.loss_of(module(*xs), c.loss)
            gc.collect()
            result = {"kept": live.now, "again": []}
            if saves and saves[0] is not None:
                for frame in frames():
                    gc.collect()
                    live.ran.clear()
                    live.peak = before = live.now
                    holder = frame.weak_holders[first(frame)]()
                    with recasting():
                        kept = frame.unpack(holder)
                    gc.collect()
                    result["again"].append({"ran": list(live.ran), "peak": live.peak - before, "end": live.now - before})
                    del kept, holder
    for r in regions:
        r.calls = {n: k for n, k in sorted(r.calls.items())}
    return regions, result


@contextlib.contextmanager
def recasting():
    """Recomputation under autocast, which turns itself off where there is no GPU."""
    old = torch.amp.autocast
    torch.amp.autocast = lambda device_type, enabled=True, dtype=None, **_: reference.autocast(dtype) if device_type == "cuda" and enabled else contextlib.nullcontext()
    try:
        yield
    finally:
        torch.amp.autocast = old


FRAMES = []


class Hook(cp._checkpoint_hook):
    """Remembers the frame of a region and how its tensors are unpacked."""

    def __init__(self, frame):
        super().__init__(frame)
        frame.unpack = self.unpack_hook
        FRAMES.append(weakref.ref(frame))


cp._checkpoint_hook = Hook


def frames():
    """The regions' frames, the last first."""
    out = [f() for f in FRAMES]
    FRAMES.clear()
    return [f for f in reversed(out) if f is not None and f.weak_holders]


def first(frame):
    return next(i for i in reversed(range(len(frame.weak_holders))) if frame.weak_holders[i]() is not None)


def candidates(regions):
    """The calls of each region whose outputs are storage of their own that nothing writes to later."""
    out = []
    for r in regions:
        bad = {(n, i) for n, i, t, alias in r.outs if alias or t.val._version != t.version or n.endswith("_") or n == "detach"}
        out.append(sorted({(n, i) for n, i, *_ in r.outs} - bad))
        out[-1] = [x for x in out[-1] if x[0] in SELECTABLE]
        r.outs = []
    return out


def policies(cands, seed):
    """What to save: nothing, products, everything that can be, and at random."""
    products = ("addmm", "mm", "bmm", "convolution", "baddbmm")
    rng = random.Random(seed)
    yield [set() for _ in cands]
    yield [{x for x in c if x[0] in products} for c in cands]
    yield [set(c) for c in cands]
    for part in (0.15, 0.5):
        yield [{x for x in c if rng.random() < part} for c in cands]


def grouped(save):
    """{op: indices of its calls}."""
    out = collections.defaultdict(list)
    for n, i in sorted(save):
        out[n].append(i)
    return dict(out)


# ---- applying plans ------------------------------------------------------------------------------------------------------


class Logits(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, ids):
        return self.m(input_ids=ids, use_cache=False).logits


def gpt2():
    import transformers

    c = transformers.GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=500, n_positions=64, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False)
    return Logits(transformers.GPT2LMHeadModel._from_config(c, attn_implementation="eager"))


def llama():
    import transformers

    c = transformers.LlamaConfig(num_hidden_layers=4, hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=4, vocab_size=500, use_cache=False)
    return Logits(transformers.LlamaForCausalLM._from_config(c, attn_implementation="eager"))


def resnet18():
    import torchvision

    return torchvision.models.resnet18(num_classes=100)


APPLIED_IN = os.path.join(reference.root(), "planner", "testdata", "applied")
APPLIED = [  # model, example input for a batch, batch, modules to checkpoint
    ("gpt2", gpt2, lambda b: torch.randint(0, 500, (b, 64)), 64, r"m.transformer.h.\d"),
    ("llama", llama, lambda b: torch.randint(0, 500, (b, 64)), 64, r"m.model.layers.\d"),
    ("resnet18", resnet18, lambda b: torch.randn(b, 3, 64, 64), 64, r"layer\d.\d"),
]


def step(module, x, device):
    """One forward and backward pass: the bytes kept between them, the gradients, and how often regions ran again."""
    loss = gradients = None
    known = {t.untyped_storage()._cdata for t in [*module.parameters(), *module.buffers(), x]}
    torch.manual_seed(1)
    with Live(known, device) as live:
        out = module(x)
        target = torch.randint(0, out.shape[-1], (out.shape[0] * (out.shape[1] if out.dim() == 3 else 1),))
        loss = torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), target)
        del out, target
        kept = live.now
        loss.backward()
    gradients = {n: p.grad for n, p in module.named_parameters()}
    return kept, loss.item(), gradients


def command(args, codes=(0, 1)):
    r = subprocess.run(args, capture_output=True, text=True)
    if r.returncode not in codes:
        raise RuntimeError(" ".join(args) + ": " + r.stderr)
    return r.stdout


def planned(memplan, path, batch, folder):
    """The configuration of a plan for 80% less than what checkpoints can save."""
    ask = [memplan, "analyze", path, "--batch", str(batch), "--optimizer", "none", "--format", "json"]
    high, low = (json.loads(command([*ask, "--checkpoint", how]))["peak"]["processBytes"] for how in ("none", "all"))
    plan = os.path.join(folder, "plan.json")
    command([memplan, "plan", path, "--batch", str(batch), "--optimizer", "none", "--vram", str(int(high - 0.8 * (high - low))), "-o", plan])
    return json.loads(command([memplan, "config", plan, "--to", "torch"]))


def chosen(first, build, x, pattern):
    """Configurations that checkpoint every module of a pattern and keep calls at random, or all products."""
    module = build().train()
    names = [n for n, _ in module.named_modules() if re.fullmatch(pattern, n)]
    regions = wrap(module, names, [None] * len(names), "cpu")
    out = module(x)
    cands = candidates(regions)
    del out
    for saves in list(policies(cands, first))[1:]:
        ops = [{"region": i, "op": "aten." + n, "calls": calls, "of": r.calls[n]} for i, (r, s) in enumerate(zip(regions, saves)) for n, calls in grouped(s).items()]
        yield {"schemaVersion": 1, "framework": "torch", "checkpoint": [{"modules": [n]} for n in names], "ops": ops}


def applied(memplan, name, build, inputs, batch, pattern):
    """Plans, applies and compares; yields a line for each configuration."""
    sys.path.insert(0, os.path.join(reference.root(), "python"))
    import memplan as package

    torch.manual_seed(0)
    first = build().train()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name + ".onnx")
        program = torch.onnx.export(first, (inputs(2),), dynamo=True, optimize=False, verbose=False, dynamic_shapes=({0: torch.export.Dim("batch")},))
        reference.strip(reference.proto_of(program), path)
        with lzma.open(os.path.join(APPLIED_IN, name + ".onnx.xz"), "wb") as f:
            f.write(open(path, "rb").read())
        x = inputs(batch)
        configs = [planned(memplan, path, batch, folder), *chosen(name, build, x, pattern)]
        plain, loss, want = step(fresh(build, first), x, "cpu")
        for c in configs:
            kept, again, got = step(package.checkpoint(fresh(build, first), c), x, "cpu")
            if loss != again or not all(torch.equal(want[n], got[n]) for n in want):
                raise RuntimeError(f"{name}: gradients differ from those without checkpoints")
            print(f"{name}: {len(c['checkpoint'])} regions keep {sum(len(o['calls']) for o in c['ops'])} calls: the same gradients; {kept} bytes kept of {plain}", file=sys.stderr)
            yield {"name": name, "batch": batch, "kept": kept, "plain": plain, "config": c}


def fresh(build, like):
    torch.manual_seed(0)
    m = build().train()
    m.load_state_dict(like.state_dict())
    return m


def apply_all(memplan):
    with open(os.path.join(APPLIED_IN, "runs.jsonl"), "w") as f:
        for name, *how in APPLIED:
            for line in applied(memplan, name, *how):
                f.write(json.dumps(line, separators=(",", ":")) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("pattern", nargs="?", default="", metavar="REGEX", help="only models whose name matches")
    ap.add_argument("--apply", metavar="MEMPLAN", help="apply plans of this memplan on the CPU")
    args = ap.parse_args()
    if args.apply:
        apply_all(args.apply)
        return
    reference.register()
    gc.collect()
    gc.freeze()
    for model, pattern in MODELS:
        if not re.search(args.pattern, model):
            continue
        c = reference.CASES[model]
        names = [n for n, _ in reference.prepared(c).named_modules() if re.fullmatch(pattern, n)]
        for prec in reference.PRECISIONS:
            batch = c.batches[-1]
            FRAMES.clear()
            start = time.time()
            looked, _ = run(c, batch, prec, names, [None] * len(names))
            FRAMES.clear()
            cands = candidates(looked)
            for k, saves in enumerate(policies(cands, model)):
                regions, r = run(c, batch, prec, names, saves)
                line = {"name": model, "prec": prec, "batch": batch, "regions": [
                    {"modules": [m], "calls": g.calls, "can": grouped(cs) if k == 0 else {}, "save": grouped(s)} for m, g, cs, s in zip(names, regions, cands, saves)], **r}
                print(json.dumps(line, separators=(",", ":")), flush=True)
            print(f"{model:30s} {prec:9s} {time.time() - start:6.1f}s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
