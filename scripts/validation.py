#!/usr/bin/env python3
"""Run the validation on a machine with a GPU and write what it came to.

    CGO_ENABLED=1 go build -tags cuda -o memplan ./cmd/memplan
    python3 scripts/validation.py --memplan ./memplan --models DIR

DIR has NAME.onnx or NAME.dyn-train.onnx for every model of validation_zoo.py.
Each model trains in float32 and in bfloat16, without checkpoints and with all
blocks checkpointed, by memplan and by PyTorch eager; those without randomness
train for a step on PyTorch's weights, and their outputs and gradients are
compared with PyTorch's and onnxruntime's (validation_numbers.py); three train
under a cap of 16 GiB at half again the batch that PyTorch can do, and by the
same plan without the cap. Raw results go to docs/validation.jsonl, the tables
made of them to docs/validation.md.

    python3 scripts/validation.py --part 1/2 --memplan ./memplan --models DIR

measures every second model. Its results, as those of --only and --kinds, replace
the same ones of earlier calls and leave the others.

    python3 scripts/validation.py --tables
    python3 scripts/validation.py --predict --memplan ./memplan --models DIR

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

HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = os.path.join(os.path.dirname(HERE), "docs")
PRECISIONS = ("fp32", "bf16")
KINDS = ("steps", "numbers", "caps")
MODELS = ["mlp", "resnet18", "resnet50", "vgg16", "mobilenet_v2", "densenet121", "convnext_tiny", "vit_b_16", "unet", "bert_base_mlm", "gpt2", "llama_250m"]
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
            "command": "python3 scripts/validation.py --memplan ./memplan --models DIR"}


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
                r = trimmed(validate(a, os.path.join(tmp, name + ".json"), *cap, "--steps", "2")) if p.returncode == 0 else {"error": p.stderr.strip()}
                yield {"kind": kind, **row, **({"vramBytes": 16 * GIB} if cap else {}), **r}


def measure(a, out):
    start = time.perf_counter()

    def write(row):
        out.write(json.dumps(row) + "\n")
        out.flush()
        print("%4.0f s" % (time.perf_counter() - start), row["kind"], row.get("name", row.get("model", "")), row.get("precision", ""), row.get("checkpoint", ""), row.get("verdict", row.get("error", "")), file=sys.stderr)

    import torch
    sys.path.insert(0, HERE)
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


def mib(n):
    return "%.0f" % (n / (1 << 20))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in r) + " |" for r in rows]) + "\n"


def passed(r):
    return r.get("verdict") == "validated"


def capped(r):
    """Whether a run under a cap passed what can be checked: the step without checkpoints does not fit there."""
    return bool(r.get("checks")) and all(c["ok"] is not False for c in r["checks"]) and any(c["name"] == "cap" and c["ok"] for c in r["checks"])


def failed(r):
    if "error" in r:
        return r["error"]
    bad = [c["name"] for c in r.get("checks", []) if c["ok"] is False]
    return r.get("verdict", "?") + (": " + ", ".join(bad) if bad else "")


def check(r, name):
    """A check of a run by its name; empty where there is none."""
    return next((c for c in r.get("checks", []) if c["name"] == name), {})


def compared(r):
    """What a run with checkpoints says of the gradients of the run without."""
    c = check(r, "gradients")
    return "" if not c else "not compared" if c["ok"] is None else "equal" if c["value"] == 0 else "%.1e off" % c["value"]


def order(x):
    return MODELS.index(x["name"])


def off(v):
    return "" if v is None else "%.1e" % v if v else "0"


def within_numbers(n):
    """Whether our float32 is no further from float64 than twice PyTorch's."""
    return n["gradients"]["double"]["worst"] <= 2 * n["gradients"]["torchDouble"]["worst"]


def summary_of_numbers(numbers):
    """Rows of the first table about outputs and gradients against other programs."""
    have = [n for n in numbers if "error" not in n]
    runtime = [n for n in have if "onnxruntime" in n["outputs"]]

    def line(list_, value, ok):
        if not list_:
            return "not measured"
        worst = max(list_, key=value)
        return "%d of %d models, at worst %s (%s)" % (sum(ok(n) for n in list_), len(numbers), off(value(worst)), worst["name"])

    def under(value, tolerance="outputTolerance"):
        return lambda n: value(n) <= n[tolerance]

    ort, out, grad = (lambda n: n["outputs"]["onnxruntime"]), (lambda n: n["outputs"]["torch"]), (lambda n: n["gradients"]["torch"]["worst"])
    outputs = "at most %s of the largest number" % off(numbers[0]["outputTolerance"]) if numbers else ""
    gradients = "at most %s, or what the table below allows" % off(min(n["tolerance"] for n in numbers)) if numbers else ""
    return [
        ["outputs against onnxruntime, float32, same weights and inputs", outputs, line(runtime, ort, under(ort))],
        ["outputs against PyTorch, float32", outputs, line(have, out, under(out))],
        ["gradients of the checkpointed step against PyTorch autograd, float32", gradients, line(have, grad, under(grad, "tolerance"))],
        ["the same gradients against float64, beside PyTorch's float32", "at most twice as far off", "%d of %d models" % (sum(within_numbers(n) for n in have), len(numbers)) if have else "not measured"],
    ]


def table_of_numbers(numbers):
    rows = []
    for n in sorted(numbers, key=order):
        if "error" in n:
            rows.append([n["name"], n["batch"], n["error"]] + [""] * 10)
            continue
        o, g = n["outputs"], n["gradients"]
        rows.append([n["name"], n["batch"], n["verdict"], off(o["onnxruntime"]) if "onnxruntime" in o else o["onnxruntimeLacks"], off(o["torch"]), off(o["torchDouble"]), g["torch"]["count"], off(g["torch"]["worst"]), off(n["tolerance"]),
                     g["torch"]["worstName"], off(g["double"]["worst"]), off(g["torchDouble"]["worst"]), off(n["checkpointed"]) if n["segments"] else "no blocks"])
    return "## Numbers against PyTorch and onnxruntime\n\n" + table(
        ["model", "batch", "verdict", "output, from onnxruntime", "from PyTorch", "PyTorch from float64", "gradients", "worst, from PyTorch", "allowed", "of", "worst, from float64", "PyTorch's worst, from float64", "from the step without checkpoints"],
        rows) + """
The models whose training step has no randomness: PyTorch's initial weights but for the two changes below, one step in float32 with every block checkpointed; TF32 is off in both.
A difference is the largest of a tensor relative to its largest number; of the gradients the tensor that is furthest off. Float64 is PyTorch's of the same step; a gradient may be
1.0e-03 off PyTorch's float32, or 3 times what that is off float64. onnxruntime
runs the file on the processor, batch norms in training mode. Every other channel of a batch norm is shifted by 3 and the others by -3 instead of by 0: at 0 some activations are so
close to the kink of ReLU that rounding decides about their gradients, and PyTorch's own float32 is percents off its float64 (the second table, which has no verdict for that reason).
The shifts were chosen after these differences had been seen, 2 to 4 and both patterns of signs tried; larger batches have more such activations (PyTorch's DenseNet-121 is 2.5e-3 off at 4).
The head of ViT is random instead of 0, with which all other gradients are 0.
""" + initial_numbers(numbers)


def initial_numbers(numbers):
    rows = [[n["name"], n["batch"], *([off(i["output"]), off(i["torch"]), off(i["double"]), off(i["torchDouble"])] if "error" not in i else [i["error"], "", "", ""])]
            for n in sorted(numbers, key=order) if (i := n.get("initial"))]
    if not rows:
        return ""
    return "\n" + table(["batch norms as PyTorch starts them", "batch", "output, from PyTorch", "worst gradient, from PyTorch", "from float64", "PyTorch's, from float64"], rows)


def tables(rows):
    env = next(r for r in rows if r["kind"] == "environment")
    torch = {}
    for r in rows:  # of several measurements the fastest
        if r["kind"] == "torch" and r["ms"] < torch.get((r["model"], r["precision"]), {"ms": 1e9})["ms"]:
            torch[r["model"], r["precision"]] = r
    steps = {(r["name"], r["precision"], r["checkpoint"]): r for r in rows if r["kind"] == "step"}
    caps = sorted((r for r in rows if r["kind"] == "cap"), key=order)
    free = {r["name"]: r for r in rows if r["kind"] == "cap-gradients"}
    numbers = [r for r in rows if r["kind"] == "numbers"]
    names = [m for m in MODELS if any(k[0] == m for k in steps)]
    text = ["# Validation on a GPU\n",
            "Measured on %s: %s, PyTorch %s, cuDNN %s. Written by `%s` from `validation.jsonl`, which has every number behind these tables.\n" %
            (env["date"], env["card"], env["torch"], env["cudnn"], "python3 scripts/validation.py")]
    if env.get("parts"):
        text.append("It was run in parts: %s. The steps without checkpoints are those of the last.\n" % ", ".join("`%s`" % p for p in env["parts"]))
    ok = [m for m in names if all(passed(steps.get((m, p, c), {})) for p in PRECISIONS for c in ("none", "all"))]
    plain = [m for m in names if all(passed(steps.get((m, p, "none"), {})) for p in PRECISIONS)]
    arenas = [r for r in steps.values() if "arena" in r]
    redone = [r for (m, p, c), r in steps.items() if c == "all" and check(r, "gradients")]

    def ratio(m, p):
        return steps[m, p, "none"]["time"]["stepMs"] / torch[m, p]["ms"]

    def within(p, limit):
        have = [m for m in names if "time" in steps.get((m, p, "none"), {}) and (m, p) in torch]
        good = [m for m in have if ratio(m, p) <= limit]
        worst = max(have, key=lambda m: ratio(m, p), default=None)
        return "%d of %d" % (len(good), len(have)) + (", at worst %.2fx (%s)" % (ratio(worst, p), worst) if worst else "")

    guess = {(r["name"], r["precision"], r["source"]): r["recomputeOverhead"] for r in rows if r["kind"] == "prediction" and "recomputeOverhead" in r}
    over = {(m, p): r["recompute"] for (m, p, c), r in steps.items() if c == "all" and r.get("recompute", {}).get("nodes")}

    def points(source):
        """How far predictions of the overhead are off."""
        have = [100 * abs(over[k]["measured"] - guess[k + (source,)]) for k in over if k + (source,) in guess]
        return "%d of %d runs, %.1f points on average, at worst %.1f" % (sum(p <= 5 for p in have), len(have), sum(have) / len(have), max(have)) if have else "not measured"

    # Steps that an older roofline predicted: --predict has what it says now.
    older = any(abs(guess[k + ("roofline",)] - o["predicted"]) > 1e-3 for k, o in over.items() if k + ("roofline",) in guess)
    if older:
        guess.update({k + ("then",): o["predicted"] for k, o in over.items()})
    both = [(m, p) for m in names for p in PRECISIONS if "arena" in steps.get((m, p, "none"), {}) and (m, p) in torch]
    smaller = [(m, p) for m, p in both if steps[m, p, "none"]["arena"]["plannedBytes"] < torch[m, p]["reservedBytes"]]
    saving = [1 - steps[k + ("none",)]["arena"]["plannedBytes"] / torch[k]["reservedBytes"] for k in both]
    walls = [r["wallSeconds"] for r in steps.values() if "wallSeconds" in r]
    text.append(table(["what", "target", "measured"], [
        ["models whose training step runs and passes all checks, in both precisions, with and without checkpoints", "12 of 12", "%d of %d; without checkpoints %d" % (len(ok), len(MODELS), len(plain))],
        ["gradients with every block checkpointed against the step without", "equal", "equal bits in %d of %d runs" % (sum(check(r, "gradients")["value"] == 0 and check(r, "gradients")["ok"] for r in redone), len(redone))],
        *summary_of_numbers(numbers),
        ["arena used / planned", "exactly 1", "%d of %d runs" % (sum(r["arena"]["plannedBytes"] == r["arena"]["usedBytes"] for r in arenas), len(arenas))],
        ["step time against PyTorch eager, fp32", "at most 1.2x", within("fp32", 1.2)],
        ["step time against PyTorch eager, bf16", "at most 1.5x", within("bf16", 1.5)],
        ["recomputation overhead, predicted by the roofline, against measured", "within 5 points", points("roofline")],
        *([["the same by the roofline as it was when this was measured", "", points("then")]] if older else []),
        ["the same from the operator times of the step without checkpoints (`--times`)", "within 5 points", points("times")],
        ["arena against PyTorch's reserved memory, same step", "smaller on all", "%d of %d, by %.0f%% to %.0f%%" % (len(smaller), len(both), 100 * min(saving), 100 * max(saving)) if both else "-"],
        ["a plan for 16 GiB at PyTorch's largest batch + 50%", "runs under the cap", "%d of %d" % (sum(capped(r) for r in caps), len(LARGEST))],
        *([["time that `validate` takes", "", "%.1f s in the middle, at most %.1f s" % (sorted(walls)[len(walls) // 2], max(walls))]] if walls else []),
    ]))
    text.append("## Steps without checkpoints\n")
    rows_ = []
    for m in names:
        for p in PRECISIONS:
            r, t = steps.get((m, p, "none"), {}), torch.get((m, p))
            if "time" not in r:
                rows_.append([m, p, r.get("batch", ""), failed(r), "", "", "", "", "", "", ""])
                continue
            rows_.append([m + ("*" if "earlier" in r else ""), p, r["batch"], failed(r), "%.2f" % r["time"]["stepMs"], "%.2f" % t["ms"] if t else "", "%.2f" % ratio(m, p) if t else "",
                          "%.2f" % r["time"]["predictedMs"], mib(r["arena"]["plannedBytes"]), mib(t["reservedBytes"]) if t else "", r.get("wallSeconds", "")])
    text.append(table(["model", "precision", "batch", "verdict", "step, ms", "PyTorch, ms", "ratio", "predicted, ms", "arena, MiB", "PyTorch reserved, MiB", "validate, s"], rows_))
    text.append("PyTorch's time is the fastest of its measurements on several hosts with such a card: launching kernels takes its steps up to twice as long on a slow one, and memplan's time is that of the last host. `predicted` is what the planner says of PyTorch on this card; `validate` is the time of the whole command." +
                "".join("\n\n\\* " + e + "." for e in sorted({r["earlier"] for r in steps.values() if "earlier" in r})) + "\n\n## Steps with every block checkpointed\n\nThe MLP and VGG-16 have no repeated blocks: theirs are parts of the sequence (`--checkpoint sqrt`).\n")
    rows_ = []
    sources = ("roofline", "then", "times") if older else ("roofline", "times")
    for m in names:
        for p in PRECISIONS:
            r, n = steps.get((m, p, "all"), {}), steps.get((m, p, "none"), {})
            if "time" not in r:
                rows_.append([m, p, failed(r) if r else "not measured"] + [""] * (5 + len(sources)))
                continue
            o = r["recompute"]
            rows_.append([m, p, failed(r), compared(r), mib(r["arena"]["plannedBytes"]), mib(n["arena"]["plannedBytes"]) if "arena" in n else "",
                          *("%.1f%%" % (100 * guess[m, p, s]) if (m, p, s) in guess else "" for s in sources), "%.1f%%" % (100 * o["measured"]), r.get("wallSeconds", "")])
    text.append(table(["model", "precision", "verdict", "gradients", "arena, MiB", "without, MiB", "overhead predicted by the roofline", *(["as it was then"] if older else []), "from operator times", "measured", "validate, s"], rows_))
    if older:
        text.append("Since then the roofline has three more terms, set by the times of single operators in these runs: a longer launch, depthwise convolutions, and normalisations, which\n"
                    "take as long in bfloat16 as in float32. These overheads were looked at when the terms were chosen, so they are no independent test of them; PyTorch's steps, which\n"
                    "were not, are (`TestTimes`). ConvNeXt's convolutions run by memplan's own kernels, which are slower than PyTorch's: the roofline is of PyTorch.\n")
    if numbers:
        text.append(table_of_numbers(numbers))
    text.append("## The driver's count\n")
    text.append(table(["model", "precision", "arena, MiB", "driver's count of it, MiB", "context and handles, MiB", "code and libraries, first step, MiB", "later steps, bytes"],
                      [[m, p, mib(r["arena"]["plannedBytes"]), mib(r["memory"]["measuredBytes"]), mib(r["memory"].get("contextBytes", 0)), mib(r["memory"].get("besidesBytes", 0)),
                        "%d" % check(r, "steady").get("value", -1)] if "contextBytes" in r["memory"] else [m + "*", p, mib(r["arena"]["plannedBytes"]), mib(r["memory"]["measuredBytes"]), "", "", ""]
                       for (m, p, c), r in sorted(steps.items(), key=lambda e: (MODELS.index(e[0][0]), e[0][1:])) if c == "none" and "memory" in r]))
    if caps:
        text.append("## Under a cap of 16 GiB\n\nA verdict is partial where the step without checkpoints, which gradients are compared with, does not fit under the cap.\n" +
                    ("The same plan runs again without the cap, where it does.\n" if free else ""))
        more = ["without the cap", "gradients there"] if free else []
        text.append(table(["model", "batch", "PyTorch's largest", "verdict", "arena, MiB", "recomputation", *more],
                          [[r["name"], r["batch"], r["torchBatch"], failed(r), mib(r["arena"]["plannedBytes"]) if "arena" in r else "", "%.1f%%" % (100 * r["recompute"]["measured"]) if "recompute" in r else "",
                            *([failed(free.get(r["name"], {})), compared(free.get(r["name"], {}))] if free else [])] for r in caps]))
    return "\n".join(text)


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
