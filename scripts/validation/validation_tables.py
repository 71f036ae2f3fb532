"""The tables of docs/validation.md, from the results that validation.py writes.

tables(rows) makes all of it. A row is a line of docs/validation.jsonl: its kind says what was measured.
"""
from functools import cached_property

MODELS = ["mlp", "resnet18", "resnet50", "vgg16", "mobilenet_v2", "densenet121", "convnext_tiny", "vit_b_16", "unet", "bert_base_mlm", "gpt2", "llama_250m"]
PRECISIONS = ("fp32", "bf16")
# What predictions of the recomputation overhead are made from.
SOURCES = ("roofline", "times")


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


class Results:
    """The rows of all kinds, by what they are of."""

    def __init__(self, rows):
        self.environment = next(r for r in rows if r["kind"] == "environment")
        self.steps = {(r["name"], r["precision"], r["checkpoint"]): r for r in rows if r["kind"] == "step"}
        self.numbers = [r for r in rows if r["kind"] == "numbers"]
        self.caps = sorted((r for r in rows if r["kind"] == "cap"), key=order)
        self.uncapped = {r["name"]: r for r in rows if r["kind"] == "cap-gradients"}
        self.guess = {(r["name"], r["precision"], r["source"]): r["recomputeOverhead"] for r in rows if r["kind"] == "prediction" and "recomputeOverhead" in r}
        self.torch = {}
        for r in rows:  # of several measurements the fastest
            if r["kind"] == "torch" and r["ms"] < self.torch.get((r["model"], r["precision"]), {"ms": 1e9})["ms"]:
                self.torch[r["model"], r["precision"]] = r

    @cached_property
    def names(self):
        return [m for m in MODELS if any(k[0] == m for k in self.steps)]

    @cached_property
    def pairs(self):
        return [(m, p) for m in self.names for p in PRECISIONS]

    def step(self, model, precision, checkpoint="none"):
        return self.steps.get((model, precision, checkpoint), {})

    def passing(self, *checkpoints):
        """How many models pass in both precisions."""
        return sum(all(passed(self.step(m, p, c)) for p in PRECISIONS for c in checkpoints) for m in self.names)

    def ratio(self, model, precision):
        """A step's time in PyTorch's."""
        return self.step(model, precision)["time"]["stepMs"] / self.torch[model, precision]["ms"]

    def within(self, precision, limit):
        """How many models' steps take at most so many times PyTorch's."""
        have = {m: self.ratio(m, precision) for m in self.names if "time" in self.step(m, precision) and (m, precision) in self.torch}
        worst = max(have, key=have.get, default=None)
        return "%d of %d" % (sum(v <= limit for v in have.values()), len(have)) + (", at worst %.2fx (%s)" % (have[worst], worst) if worst else "")

    def points(self, source):
        """How far predictions of the recomputation overhead are off."""
        measured = {(m, p): r["recompute"]["measured"] for (m, p, c), r in self.steps.items() if c == "all" and r.get("recompute", {}).get("nodes")}
        have = [100 * abs(v - self.guess[k + (source,)]) for k, v in measured.items() if k + (source,) in self.guess]
        return "%d of %d runs, %.1f points on average, at worst %.1f" % (sum(p <= 5 for p in have), len(have), sum(have) / len(have), max(have)) if have else "not measured"

    def smaller(self):
        """How many arenas are smaller than what PyTorch reserves, and by how much."""
        saving = [1 - self.step(*k)["arena"]["plannedBytes"] / self.torch[k]["reservedBytes"] for k in self.pairs if "arena" in self.step(*k) and k in self.torch]
        return "%d of %d, by %.0f%% to %.0f%%" % (sum(s > 0 for s in saving), len(saving), 100 * min(saving), 100 * max(saving)) if saving else "-"


def introduction(env):
    text = ["# Validation on a GPU\n",
            "Measured on %s: %s, PyTorch %s, cuDNN %s. Written by `%s` from `validation.jsonl`, which has every number behind these tables.\n" %
            (env["date"], env["card"], env["torch"], env["cudnn"], "python3 scripts/validation/validation.py")]
    if env.get("parts"):
        text.append("It was run in parts: %s. The steps without checkpoints are those of the last.\n" % ", ".join("`%s`" % p for p in env["parts"]))
    return "\n".join(text)


def summary(r):
    redone = [check(s, "gradients") for (_, _, c), s in r.steps.items() if c == "all" and check(s, "gradients")]
    arenas = [s["arena"] for s in r.steps.values() if "arena" in s]
    walls = sorted(s["wallSeconds"] for s in r.steps.values() if "wallSeconds" in s)
    return table(["what", "target", "measured"], [
        ["models whose training step runs and passes all checks, in both precisions, with and without checkpoints", "%d of %d" % (len(MODELS), len(MODELS)),
         "%d of %d; without checkpoints %d" % (r.passing("none", "all"), len(MODELS), r.passing("none"))],
        ["gradients with every block checkpointed against the step without", "equal", "equal bits in %d of %d runs" % (sum(bool(c["value"] == 0 and c["ok"]) for c in redone), len(redone))],
        *summary_of_numbers(r.numbers),
        ["arena used / planned", "exactly 1", "%d of %d runs" % (sum(a["plannedBytes"] == a["usedBytes"] for a in arenas), len(arenas))],
        ["step time against PyTorch eager, fp32", "at most 1.2x", r.within("fp32", 1.2)],
        ["step time against PyTorch eager, bf16", "at most 1.5x", r.within("bf16", 1.5)],
        ["recomputation overhead, predicted by the roofline, against measured", "within 5 points", r.points("roofline")],
        ["the same from the operator times of the step without checkpoints (`--times`)", "within 5 points", r.points("times")],
        ["arena against PyTorch's reserved memory, same step", "smaller on all", r.smaller()],
        ["a plan for 16 GiB at PyTorch's largest batch + 50%", "runs under the cap", "%d of %d" % (sum(capped(c) for c in r.caps), len(r.caps))],
        *([["time that `validate` takes", "", "%.1f s in the middle, at most %.1f s" % (walls[len(walls) // 2], walls[-1])]] if walls else []),
    ])


def plain_steps(r):
    rows = []
    for m, p in r.pairs:
        s, t = r.step(m, p), r.torch.get((m, p))
        if "time" not in s:
            rows.append([m, p, s.get("batch", ""), failed(s)] + [""] * 7)
            continue
        rows.append([m, p, s["batch"], failed(s), "%.2f" % s["time"]["stepMs"], *(["%.2f" % t["ms"], "%.2f" % r.ratio(m, p)] if t else ["", ""]),
                     "%.2f" % s["time"]["predictedMs"], mib(s["arena"]["plannedBytes"]), mib(t["reservedBytes"]) if t else "", s.get("wallSeconds", "")])
    return "## Steps without checkpoints\n\n" + table(
        ["model", "precision", "batch", "verdict", "step, ms", "PyTorch, ms", "ratio", "predicted, ms", "arena, MiB", "PyTorch reserved, MiB", "validate, s"], rows) + """
PyTorch's time is the fastest of its measurements on several hosts with such a card: launching kernels takes its steps up to twice as long on a slow one, and memplan's time is that of the last host. `predicted` is what the planner says of PyTorch on this card; `validate` is the time of the whole command.
"""


def checkpointed_steps(r):
    rows = []
    for m, p in r.pairs:
        s, n = r.step(m, p, "all"), r.step(m, p)
        if "time" not in s:
            rows.append([m, p, failed(s) if s else "not measured"] + [""] * (5 + len(SOURCES)))
            continue
        rows.append([m, p, failed(s), compared(s), mib(s["arena"]["plannedBytes"]), mib(n["arena"]["plannedBytes"]) if "arena" in n else "",
                     *("%.1f%%" % (100 * r.guess[m, p, source]) if (m, p, source) in r.guess else "" for source in SOURCES), "%.1f%%" % (100 * s["recompute"]["measured"]), s.get("wallSeconds", "")])
    return "## Steps with every block checkpointed\n\nThe MLP and VGG-16 have no repeated blocks: theirs are parts of the sequence (`--checkpoint sqrt`).\n\n" + table(
        ["model", "precision", "verdict", "gradients", "arena, MiB", "without, MiB", "overhead predicted by the roofline", "from operator times", "measured", "validate, s"], rows)


def drivers_count(r):
    rows = []
    for (m, p, c), s in sorted(r.steps.items(), key=lambda e: (MODELS.index(e[0][0]), e[0][1:])):
        if c == "none" and "memory" in s:
            memory = s["memory"]
            rows.append([m, p, mib(s["arena"]["plannedBytes"]), mib(memory["measuredBytes"]), mib(memory.get("contextBytes", 0)), mib(memory.get("besidesBytes", 0)), "%d" % check(s, "steady").get("value", -1)])
    return "## The driver's count\n\n" + table(["model", "precision", "arena, MiB", "driver's count of it, MiB", "context and handles, MiB", "code and libraries, first step, MiB", "later steps, bytes"], rows)


def under_caps(r):
    rows = []
    for c in r.caps:
        free = r.uncapped.get(c["name"], {})
        rows.append([c["name"], c["batch"], c["torchBatch"], failed(c), mib(c["arena"]["plannedBytes"]) if "arena" in c else "",
                     "%.1f%%" % (100 * c["recompute"]["measured"]) if "recompute" in c else "", *([failed(free), compared(free)] if r.uncapped else [])])
    return "## Under a cap of 16 GiB\n\nA verdict is partial where the step without checkpoints, which gradients are compared with, does not fit under the cap.\n" + (
        "The same plan runs again without the cap, where it does.\n" if r.uncapped else "") + "\n" + table(
        ["model", "batch", "PyTorch's largest", "verdict", "arena, MiB", "recomputation", *(["without the cap", "gradients there"] if r.uncapped else [])], rows)


def tables(rows):
    """The whole document."""
    r = Results(rows)
    return "\n".join([introduction(r.environment), summary(r), plain_steps(r), checkpointed_steps(r), *([table_of_numbers(r.numbers)] if r.numbers else []), drivers_count(r), *([under_caps(r)] if r.caps else [])])
