"""Measures what a prediction needs to know of this machine's GPU and PyTorch; prints one JSON document (planner/profile/calibration.go).

memplan calibrate runs it. By hand: python3 calibrate.py > gpu.json, on an idle GPU; it takes a few seconds and 2 GiB."""
import json, sys, threading, time

try:
    import torch
except ImportError as e:
    sys.exit(f"this Python has no torch: {e}")
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} sees no CUDA device")
import torch.nn.functional as F


def used():
    """Bytes the driver counts as used on the card, less what the allocator reserved."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def sizes(fn):
    """Bytes that each allocation in fn asked for, of those that stay and of those that were freed in it."""
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=100_000, clear_history=True)
    fn()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot(0)["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    live, gone = {}, []
    for e in trace:
        if e["action"] == "alloc":
            live[e["addr"]] = e["size"]
        elif e["action"] == "free_completed" and e["addr"] in live:
            gone.append(live.pop(e["addr"]))
    return sorted(live.values()), sorted(gone)


def in_thread(fn):
    t = threading.Thread(target=fn)
    t.start()
    t.join()


def workspaces():
    """What the first product, and the first linear layer with a bias, take in a thread of their own: what stays, and what does not."""
    a = torch.ones(256, 256, device="cuda")
    out = torch.empty_like(a)
    bias = a[0].clone()
    gemm = sizes(lambda: in_thread(lambda: torch.mm(a, a, out=out)))
    lt = sizes(lambda: in_thread(lambda: torch.addmm(bias, a, a, out=out)))
    again = sizes(lambda: torch.addmm(bias, a, a, out=out))
    return {"gemm": gemm, "linear": lt, "linearAgain": again}


def rate(fn, work):
    """Work a second, the best of several runs."""
    fn()
    best = 0.0
    for _ in range(5):
        torch.cuda.synchronize()
        t = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        best = max(best, work / (time.perf_counter() - t))
    return best


def rates():
    n, out = 4096, {}
    def product(dtype, tf32):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a = torch.randn(n, n, device="cuda").to(dtype)
        return rate(lambda: torch.mm(a, a), 2.0 * n ** 3)
    old = torch.backends.cuda.matmul.allow_tf32
    out["fp32"], out["tf32"] = product(torch.float32, False), product(torch.float32, True)
    torch.backends.cuda.matmul.allow_tf32 = old
    out["half"] = product(torch.float16, old)
    x = torch.empty(1 << 28, dtype=torch.float32, device="cuda")  # 1 GiB
    out["bandwidth"] = rate(lambda: x.mul_(1.0), 2.0 * x.numel() * 4)
    here, there = torch.empty(1 << 26, dtype=torch.float32, pin_memory=True), x[:1 << 26]
    out["host"] = min(rate(lambda: here.copy_(there, non_blocking=True), here.nbytes), rate(lambda: there.copy_(here, non_blocking=True), here.nbytes))
    return out


def context():
    """The process outside the allocator, once kernels of every kind are loaded."""
    c = torch.nn.Conv2d(3, 64, 7).cuda()
    o = torch.optim.AdamW(c.parameters())
    c(torch.randn(8, 3, 64, 64, device="cuda")).sum().backward()
    o.step()
    l = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True).cuda()
    l(torch.randn(4, 64, 256, device="cuda")).sum().backward()
    with torch.autocast("cuda", dtype=torch.float16):
        l(torch.randn(4, 64, 256, device="cuda")).sum().backward()
    return used()


p = torch.cuda.get_device_properties(0)
doc = {"schemaVersion": 1, "tool": "memplan calibrate", "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
       "tf32": {"conv": torch.backends.cudnn.allow_tf32, "matmul": torch.backends.cuda.matmul.allow_tf32}, "benchmark": torch.backends.cudnn.benchmark}
doc["workspaces"] = workspaces()  # first: a thread's workspace is made by its first product
doc["contextBytes"] = context()
doc["rates"] = rates()
F.scaled_dot_product_attention(*[torch.zeros(1, 1, 8, 8, device="cuda", dtype=torch.float16)] * 3)
order = getattr(torch._C, "_get_sdp_priority_order", None)
doc["attention"] = [{0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}[int(x)] for x in order() if int(x) < 4] if order else []
doc["device"] = {"name": p.name, "capability": [p.major, p.minor], "sms": p.multi_processor_count, "l2Bytes": getattr(p, "L2_cache_size", 0), "memoryBytes": torch.cuda.mem_get_info()[1],
                 "bf16": torch.cuda.is_bf16_supported(including_emulation=False)}
json.dump(doc, sys.stdout, indent=1)
print()
