#!/usr/bin/env python3
"""Measure what planner/profile says of a runtime and a GPU, on that GPU.

    python3 scripts/gpu/measure_profile.py OUT.json

Writes one JSON document: the device as the driver describes it, the memory
that the process takes outside PyTorch's allocator, the cuBLAS and cuBLASLt
workspaces, the scaled-dot-product-attention priorities, and, for every
optimizer of the table, each allocation and free of the first and of a steady
step, in order. planner/profile/testdata holds one such document and the tests
of that package replay it.
"""
import gc
import json
import subprocess
import sys
import threading

import torch
import torch.nn.functional as F

# Distinct sizes, so that an event names its parameter. () is a scalar.
SHAPES = [(64, 32), (64,), (), (300, 100), (16, 8, 3, 3), (1000, 1100)]

# name -> (constructor, keyword arguments); the names of planner/profile.Optimizers.
OPTIMIZERS = {
    "sgd": ("SGD", dict(lr=1e-3)),
    "sgd-momentum": ("SGD", dict(lr=1e-3, momentum=0.9)),
    "sgd-nesterov": ("SGD", dict(lr=1e-3, momentum=0.9, nesterov=True)),
    "sgd-wd": ("SGD", dict(lr=1e-3, weight_decay=1e-2)),
    "sgd-momentum-wd": ("SGD", dict(lr=1e-3, momentum=0.9, weight_decay=1e-2)),
    "sgd-loop": ("SGD", dict(lr=1e-3, momentum=0.9, foreach=False)),
    "sgd-fused": ("SGD", dict(lr=1e-3, momentum=0.9, fused=True)),
    "adam": ("Adam", dict(lr=1e-4)),
    "adam-wd": ("Adam", dict(lr=1e-4, weight_decay=1e-2)),
    "adam-amsgrad": ("Adam", dict(lr=1e-4, amsgrad=True)),
    "adam-fused": ("Adam", dict(lr=1e-4, fused=True)),
    "adam-loop": ("Adam", dict(lr=1e-4, foreach=False)),
    "adamw": ("AdamW", dict(lr=1e-4)),
    "adamw-foreach": ("AdamW", dict(lr=1e-4, foreach=True)),
    "adamw-fused": ("AdamW", dict(lr=1e-4, fused=True)),
    "adamw-loop": ("AdamW", dict(lr=1e-4, foreach=False)),
    "adamw-capturable": ("AdamW", dict(lr=1e-4, capturable=True)),
    "adamw-amsgrad": ("AdamW", dict(lr=1e-4, amsgrad=True)),
    "adagrad": ("Adagrad", dict(lr=1e-2)),
    "rmsprop": ("RMSprop", dict(lr=1e-3)),
    "rmsprop-momentum": ("RMSprop", dict(lr=1e-3, momentum=0.9)),
    "rmsprop-centered": ("RMSprop", dict(lr=1e-3, centered=True)),
    "adadelta": ("Adadelta", dict(lr=1e-3)),
    "adamax": ("Adamax", dict(lr=1e-3)),
    "nadam": ("NAdam", dict(lr=1e-3)),
    "radam": ("RAdam", dict(lr=1e-3)),
    "adafactor": ("Adafactor", dict(lr=1e-2)),
    }


def record(fn):
    """Run fn and return its allocator events: [["+", id, bytes] | ["-", id | "old", bytes] | ["S", bytes] | ["s", bytes]]."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=1_000_000, clear_history=True)
    fn()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot(0)["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    ids, out, n = {}, [], 0
    for e in trace:
        if e["action"] == "alloc":
            ids[e["addr"]] = n
            out.append(["+", n, e["size"]])
            n += 1
        elif e["action"] == "free_completed":
            out.append(["-", ids.pop(e["addr"], "old"), e["size"]])
        elif e["action"] in ("segment_alloc", "segment_free"):
            out.append(["S" if e["action"].endswith("alloc") else "s", e["size"]])
    return out


def alloc_only(events):
    return [e for e in events if e[0] in "+-"]


def optimizer_events(kind, kwargs, dtypes, scaler=False):
    """Events of the first and the third step over SHAPES, the i-th parameter in dtypes[i % len]."""
    params = []
    for i, s in enumerate(SHAPES):
        p = torch.zeros(s, device="cuda", dtype=dtypes[i % len(dtypes)], requires_grad=True)
        p.grad = torch.ones_like(p)
        params.append(p)
    opt = getattr(torch.optim, kind)(params, **kwargs)
    out = {}
    sc = torch.amp.GradScaler("cuda") if scaler else None
    if sc:
        out["scale"] = alloc_only(record(lambda: sc.scale(torch.ones((), device="cuda"))))
    for step in range(3):
        if sc:
            ev = alloc_only(record(lambda: sc.step(opt)))
            up = alloc_only(record(lambda: sc.update()))
        else:
            ev = alloc_only(record(opt.step))
        if step == 0:
            out["first"] = ev
        if step == 2:
            out["steady"] = ev
            if sc:
                out["update"] = up
    out["state"] = [[(k, str(v.device.type), str(v.dtype), list(v.shape)) for k, v in opt.state[p].items() if torch.is_tensor(v)] for p in params]
    return out


def used():
    """Bytes the driver counts as used on the card, less what the allocator reserved."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def context():
    """The process outside the allocator, growing as kernels load."""
    out = []
    x = torch.zeros(1, device="cuda")
    out.append(["first allocation", used()])
    a = torch.randn(512, 512, device="cuda")
    (a @ a).sum().item()
    out.append(["fp32 matmul", used()])
    b = a.bfloat16()
    F.linear(b, b, b[0]).sum().item()
    out.append(["bf16 linear", used()])
    c = torch.nn.Conv2d(3, 64, 7).cuda()
    c(torch.randn(8, 3, 64, 64, device="cuda")).sum().backward()
    out.append(["conv step", used()])
    import torchvision
    m = torchvision.models.resnet18().cuda()
    o = torch.optim.AdamW(m.parameters())
    for _ in range(2):
        F.cross_entropy(m(torch.randn(8, 3, 224, 224, device="cuda")), torch.zeros(8, dtype=torch.long, device="cuda")).backward()
        o.step()
    out.append(["resnet18 adamw steps", used()])
    q = torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    out.append(["bf16 attention step", used()])
    del x
    return out


def workspaces():
    """What the first products allocate and keep, in this thread and in another."""
    def mm(dt):
        a = torch.ones(256, 256, device="cuda", dtype=dt)
        return lambda: (a @ a).sum()

    def lin(dt):
        a = torch.ones(256, 256, device="cuda", dtype=dt)
        return lambda: F.linear(a, a, a[0]).sum()

    def other(fn):
        def run():
            t = threading.Thread(target=fn)
            t.start()
            t.join()
        return run

    out = {}
    for name, fn in [("mm fp32", mm(torch.float32)), ("mm fp32 again", mm(torch.float32)), ("linear fp32", lin(torch.float32)), ("linear fp32 again", lin(torch.float32)),
                     ("linear bf16", lin(torch.bfloat16)), ("linear bf16 again", lin(torch.bfloat16)), ("mm other thread", other(mm(torch.float32))),
                     ("linear bf16 other thread", other(lin(torch.bfloat16)))]:
        out[name] = record(fn)
    out["allocated after"] = torch.cuda.memory_allocated()
    return out


def workspaces_linear_first():
    a = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
    return {"linear bf16 first": record(lambda: F.linear(a, a, a[0]).sum()), "then mm": record(lambda: (a @ a).sum())}


def attention():
    """Which backend scaled_dot_product_attention takes, by dtype, mask, dropout, head size and length."""
    rows = []
    names = {int(v): k for k, v in torch.nn.attention.SDPBackend.__members__.items()}
    for dt in (torch.float32, torch.bfloat16, torch.float16):
        for mask in ("none", "causal", "bool", "float"):
            for drop in (0.0, 0.1):
                for d in (32, 64, 72, 80, 96, 128, 160, 192, 256, 320):
                    for s in (128, 197, 256):
                        for grad in (True, False):
                            q = torch.zeros(1, 2, s, d, device="cuda", dtype=dt, requires_grad=grad)
                            m = {"bool": torch.ones(s, s, device="cuda", dtype=torch.bool), "float": torch.zeros(s, s, device="cuda", dtype=dt)}.get(mask)
                            c = torch._fused_sdp_choice(q, q, q, m, drop, mask == "causal")
                            rows.append([str(dt)[6:], mask, drop, d, s, grad, names[int(c)]])
    return rows


def sub(part):
    """One part in a process of its own, so that nothing is warm."""
    r = subprocess.run([sys.executable, __file__, "--part", part], capture_output=True, text=True)
    try:
        return json.loads(r.stdout)
    except json.JSONDecodeError:
        return {"error": (r.stderr or r.stdout)[-600:]}


def optimizers():
    out = {}
    for name, (kind, kwargs) in OPTIMIZERS.items():
        row = {"class": kind, "args": kwargs}
        for label, dts in (("fp32", [torch.float32]), ("mixed", [torch.float32, torch.bfloat16]),
                           ("three", [torch.float16, torch.float32, torch.bfloat16])):
            try:
                row[label] = optimizer_events(kind, kwargs, dts)
            except Exception as e:
                row[label] = {"error": f"{type(e).__name__}: {e}"[:300]}
        out[name] = row
    for name in ("adamw", "sgd", "adamw-fused"):
        kind, kwargs = OPTIMIZERS[name]
        out[name]["scaler"] = optimizer_events(kind, kwargs, [torch.float32], scaler=True)
    return out


PARTS = {"context": context, "workspaces": workspaces, "workspaces_linear_first": workspaces_linear_first, "attention": attention, "optimizers": optimizers}


def device():
    p = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return dict(name=p.name, capability=[p.major, p.minor], sms=p.multi_processor_count, l2=p.L2_cache_size, totalMemory=p.total_memory, driverTotal=total,
                torch=torch.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(),
                tf32={"conv": torch.backends.cudnn.allow_tf32, "matmul": torch.backends.cuda.matmul.allow_tf32}, benchmark=torch.backends.cudnn.benchmark)


if __name__ == "__main__":
    if sys.argv[1] == "--part":
        print(json.dumps(PARTS[sys.argv[2]]()))
        sys.exit()
    doc = {"shapes": SHAPES}
    for part in PARTS:  # before this process has a context of its own
        doc[part] = sub(part)
    doc["device"] = device()
    F.scaled_dot_product_attention(*[torch.zeros(1, 1, 8, 8, device="cuda", dtype=torch.bfloat16)] * 3)
    doc["sdpPriority"] = [int(x) for x in torch._C._get_sdp_priority_order()] if hasattr(torch._C, "_get_sdp_priority_order") else None
    with open(sys.argv[1], "w") as f:
        json.dump(doc, f, separators=(",", ":"))
        f.write("\n")
