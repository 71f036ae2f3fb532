#!/usr/bin/env python3
"""Run the validation on a machine with a GPU and write what it came to.

    CGO_ENABLED=1 go build -tags cuda -o memplan ./cmd/memplan
    python3 scripts/validation/validation.py --memplan ./memplan --models DIR

DIR has NAME.onnx or NAME.dyn-train.onnx for every model of validation_zoo.py.
Each model trains in float32 and in bfloat16, without checkpoints and with all
blocks checkpointed, by memplan and by PyTorch eager; those without randomness
train for a step on PyTorch's weights, and their outputs and gradients are
compared with PyTorch's and onnxruntime's (validation_numbers.py); three train
under a cap of 16 GiB at half again the batch that PyTorch can do, and by the
same plan without the cap. Raw results go to docs/validation.jsonl, the tables
made of them (validation_tables.py) to docs/validation.md.

    python3 scripts/validation/validation.py --part 1/2 --memplan ./memplan --models DIR

measures every second model. Its results, as those of --only and --kinds, replace
the same ones of earlier calls and leave the others.

    python3 scripts/validation/validation.py --tables
    python3 scripts/validation/validation.py --predict --memplan ./memplan --models DIR

make the tables again: the first from the results alone, the second with what
this memplan predicts of the same steps, without a GPU. Measuring needs torch,
torchvision and transformers; onnx and onnxruntime for its outputs. With
--device cpu the flow runs without a GPU, on the processor device: there is no
time of PyTorch and no cap then.
"""
import argparse
import concurrent.futures
import datetime
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

from validation_tables import MODELS, PRECISIONS, tables

HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = os.path.join(HERE, "..", "..", "docs")
KINDS = ("steps", "numbers", "caps")
# PyTorch's largest batch under a cap of 16 GiB less the context, AdamW, float32, measured on an H200.
LARGEST = {"resnet50": 180, "gpt2": 27, "vit_b_16": 114}
GIB = 1 << 30
# Models whose layers are one sequence.
UNREPEATED = ("mlp", "vgg16")


def torch_step(name, precision):
    """A training step's time and memory in PyTorch eager."""
    import torch
    import torch.nn.functional as F
    from validation_zoo import ZOO, target
    build, inputs, logits, batch = ZOO[name]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, x = build().cuda().train(), inputs(batch)
    if precision == "bf16":
        model = model.to(torch.bfloat16)
        x = x.to(torch.bfloat16) if x.is_floating_point() else x
    opt = torch.optim.AdamW(model.parameters())

    def loss():  # the logits are gone when backward begins
        out = logits(model(x))
        return F.cross_entropy(out, target(out))

    def step():
        opt.zero_grad(set_to_none=True)
        loss().backward()
        opt.step()

    def took(steps):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - t) / steps

    took(3)
    alone, queued = sorted(took(1) for _ in range(10))[5], took(10)
    return {"kind": "torch", "model": name, "precision": precision, "batch": batch, "ms": min(alone, queued), "aloneMs": alone, "queuedMs": queued, "allocatedBytes": torch.cuda.max_memory_allocated(),
            "reservedBytes": torch.cuda.max_memory_reserved()}


def memplan(binary, args, seconds=300, env=None):
    """Run memplan and return its JSON, with the time that it took, or what it said instead."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        start = time.perf_counter()
        try:
            p = subprocess.run([binary, *args, "-o", out.name], capture_output=True, text=True, timeout=seconds, env={**os.environ, **(env or {})})
        except subprocess.TimeoutExpired:
            return {"error": "took more than %d s" % seconds}
        took = time.perf_counter() - start
        text = open(out.name).read()
    if text:
        return {**json.loads(text), "wallSeconds": round(took, 2)}
    return {"error": (p.stderr.strip().splitlines() or ["exit %d" % p.returncode])[-1]}


def trimmed(r):
    """A validation's numbers without those of single nodes, which are summed by operator."""
    if "time" in r:
        ops = {}
        for o in r["time"].pop("perOp"):
            s = ops.setdefault(o["op"], [0, 0.0, 0.0])
            s[0] += 1
            s[1] += o["measuredMs"]
            s[2] += o["predictedMs"]
        r["ops"] = [{"op": k, "nodes": v[0], "measuredMs": round(v[1], 4), "predictedMs": round(v[2], 4)} for k, v in sorted(ops.items(), key=lambda e: -e[1][1])]
    return r


def find(models, name):
    for ending in (".onnx", ".dyn-train.onnx"):
        path = os.path.join(models, name + ending)
        if os.path.exists(path):
            return path
    sys.exit("no model %s in %s" % (name, models))


def how(name, checkpoint):
    """The flag's value for steps with all blocks checkpointed: models without repeated blocks are cut into parts of equal memory."""
    return "sqrt" if checkpoint == "all" and name in UNREPEATED else checkpoint


def prediction(a, name, precision, batch, times=None):
    """What memplan predicts of a step with all blocks checkpointed: from the roofline, or from the times of the step without."""
    r = memplan(a.memplan, ["analyze", find(a.models, name), "--batch", str(batch), "--precision", precision, "--checkpoint", how(name, "all"), "--format", "json", *(["--times", times] if times else [])])
    row = {"kind": "prediction", "name": name, "precision": precision, "batch": batch, "source": "times" if times else "roofline"}
    if "error" in r:
        return {**row, "error": r["error"]}
    return {**row, "recomputeOverhead": r["checkpoint"]["recomputeOverhead"], "stepMs": r["time"]["stepMs"], **({"sources": r["time"]["sources"]} if times else {})}


def predicted(a, rows):
    """The results with the roofline's predictions replaced by what memplan says now."""
    rows = [r for r in rows if not (r["kind"] == "prediction" and r["source"] == "roofline")]
    return rows + [prediction(a, r["name"], r["precision"], r["batch"]) for r in rows if r["kind"] == "step" and r["checkpoint"] == "all"]


def merged(rows):
    """Of results of the same thing the last; of PyTorch's all, as its steps depend on the host."""
    return list({(r["kind"], r.get("name", r.get("model")), r.get("precision"), r.get("checkpoint"), r.get("source"), r["ms"] if r["kind"] == "torch" else None): r for r in rows}.values())


def environment(a, torch):
    card = platform.processor() or platform.machine()
    if a.device.startswith("cuda"):
        card = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], capture_output=True, text=True).stdout.splitlines()[0]
    return {"kind": "environment", "date": a.date, "card": card, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "python": platform.python_version(),
            "command": "python3 scripts/validation/validation.py --memplan ./memplan --models DIR"}


def validate(a, path, *args, env=None):
    return memplan(a.memplan, ["validate", path, *args, "--device", a.device, "--format", "json"], env=env)


def measure_steps(a, name, batch, pool):
    """Rows of a model's steps, PyTorch's where there is a GPU, and of what is predicted of them."""
    import torch
    jobs = []
    with tempfile.TemporaryDirectory() as tmp:
        for precision in PRECISIONS:
            if a.device.startswith("cuda") and torch.cuda.is_available() and not a.batch:
                yield torch_step(name, precision)
                gc.collect()
                torch.cuda.empty_cache()
            times = os.path.join(tmp, precision + ".json")
            for checkpoint in ("none", "all")[:1 if a.plain else 2]:
                r = validate(a, find(a.models, name), "--batch", str(batch), "--precision", precision, "--checkpoint", how(name, checkpoint), "--steps", "4", *(["--profile", times] if checkpoint == "none" else []))
                yield {"kind": "step", "name": name, "precision": precision, "checkpoint": checkpoint, "batch": batch, **trimmed(r)}
            jobs += [(a, name, precision, batch, t) for t in (None, times) if t is None or os.path.exists(t)]
        if not a.plain:
            yield from pool.map(lambda job: prediction(*job), jobs)  # nothing is measured meanwhile


def measure_caps(a, names, pool):
    """Rows of steps under a cap, and by the same plan without it, where gradients can be compared with the step without checkpoints."""
    with tempfile.TemporaryDirectory() as tmp:
        def plan(name):
            return subprocess.run([a.memplan, "plan", find(a.models, name), "--batch", str(LARGEST[name] * 3 // 2), "--vram", "16G", "--timeout", "20s", "-o", os.path.join(tmp, name + ".json")],
                                  capture_output=True, text=True, timeout=300)

        for name, p in zip(names, pool.map(plan, names)):
            row = {"name": name, "precision": "fp32", "batch": LARGEST[name] * 3 // 2, "torchBatch": LARGEST[name]}
            for kind, cap in (("cap", ["--cap", "16G"]), ("cap-gradients", [])):
                r = trimmed(validate(a, os.path.join(tmp, name + ".json"), *cap, "--steps", "2", "--allow-outside")) if p.returncode == 0 else {"error": p.stderr.strip()}
                yield {"kind": kind, **row, **({"vramBytes": 16 * GIB} if cap else {}), **r}


def measure(a, out):
    start = time.perf_counter()

    def write(row):
        out.write(json.dumps(row) + "\n")
        out.flush()
        print("%4.0f s" % (time.perf_counter() - start), row["kind"], row.get("name", row.get("model", "")), row.get("precision", ""), row.get("checkpoint", ""), row.get("verdict", row.get("error", "")), file=sys.stderr)

    import torch
    from validation_numbers import numbers
    from validation_zoo import EXACT, ZOO
    write(environment(a, torch))
    names = [m for i, m in enumerate(MODELS) if (not a.only or m in a.only) and i % a.part[1] == a.part[0] - 1]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for name in names:
            if "steps" in a.kinds:
                for row in measure_steps(a, name, a.batch or ZOO[name][3], pool):
                    write(row)
            if "numbers" in a.kinds and name in EXACT:
                write(numbers(lambda args, env: validate(a, *args[1:], env=env), find(a.models, name), name, how(name, "all"), a.batch))
        if "caps" in a.kinds and a.device.startswith("cuda"):
            for row in measure_caps(a, [m for m in LARGEST if m in names], pool):
                write(row)


def part(text):
    try:
        i, n = (int(v) for v in text.split("/"))
    except ValueError:
        i, n = 0, 0
    if not 1 <= i <= n:
        raise argparse.ArgumentTypeError("%s: want I/N, as 1/2" % text)
    return i, n


def read(data):
    if not os.path.exists(data):
        return []
    with open(data) as f:
        return merged(json.loads(l) for l in f)


def write_all(data, rows):
    with open(data, "w") as out:
        out.writelines(json.dumps(r) + "\n" for r in rows)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--memplan", default="./memplan", help="the binary, built with -tags cuda")
    p.add_argument("--models", default="models", help="folder of the models")
    p.add_argument("--device", default="cuda", help="device that memplan runs on")
    p.add_argument("--only", nargs="*", help="these models alone")
    p.add_argument("--part", type=part, default=(1, 1), metavar="I/N", help="the I-th of N parts of the models")
    p.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS, help="what to measure")
    p.add_argument("--plain", action="store_true", help="of the steps only those without checkpoints, beside PyTorch's")
    p.add_argument("--batch", type=int, help="another batch for all models; PyTorch's time is not measured then")
    p.add_argument("--date", default=datetime.date.today().isoformat())
    p.add_argument("--docs", default=DOCS, help="folder that the results go to")
    p.add_argument("--tables", action="store_true", help="make the tables from the results that are there")
    p.add_argument("--predict", action="store_true", help="predict the steps of the results again, and make the tables")
    a = p.parse_args()
    data = os.path.join(a.docs, "validation.jsonl")
    if a.predict:
        write_all(data, predicted(a, read(data)))
    elif not a.tables:
        whole = not a.only and a.part[1] == 1 and len(a.kinds) == len(KINDS)
        with open(data, "w" if whole else "a") as out:
            measure(a, out)
        write_all(data, read(data))
    with open(os.path.join(a.docs, "validation.md"), "w") as out:
        out.write(tables(read(data)))


if __name__ == "__main__":
    main()
