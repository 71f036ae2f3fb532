"""How far memplan's numbers are from PyTorch's and onnxruntime's on the same weights and inputs.

numbers(name, ...) trains a model of validation_zoo.EXACT for one step in PyTorch, in
float32 without TF32 and again in float64, runs its file in onnxruntime, and
gives all of it to `memplan validate`. Differences are the largest of a tensor
relative to its largest number, as package validate has it.
"""
import copy
import gc
import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

from validation_zoo import EXACT, ZOO, comparable, in_double, target

# How far an output and a gradient may be off; a gradient also 3 times what PyTorch's float32 is off
# its float64, which is the distance of two programs of which one is twice as far off as the other.
# On a processor that is up to 1.5e-4 at batch 2 (DenseNet-121) and 2.5e-3 at batch 4, which rounding decides.
OUTPUT_TOLERANCE, TOLERANCE = 1e-4, 1e-3
# TF32 is off in the libraries of both.
PLAIN = {"NVIDIA_TF32_OVERRIDE": "0"}
EXPECTED = "expected "
# The models with batch norms and ReLU.
NORMED = ("resnet18", "resnet50", "densenet121", "unet")


class Float32:
    """Matrices and convolutions in float32, as long as it is entered."""

    def __enter__(self):
        self.was = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def __exit__(self, *_):
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self.was


def difference(a, b):
    top = b.abs().max().item()
    worst = (a.double() - b).abs().max().item()
    return worst / top if top else (0.0 if worst == 0 else float("inf"))


def step(model, x, logits, labels):
    """Output and gradients of a step."""
    out = model(x)
    F.cross_entropy(logits(out), labels).backward()
    return out.detach(), {k: p.grad for k, p in model.named_parameters()}


def host(tensors):
    return {k: v.detach().to(torch.float32 if v.is_floating_point() else v.dtype).cpu().contiguous().numpy() for k, v in tensors.items()}


def reference(name, batch, folder, shift=True):
    """One step in PyTorch: writes given.npz, torch.npz and double.npz, and says how far float32 is off float64."""
    build, inputs, logits, _ = ZOO[name]
    torch.manual_seed(0)
    x = inputs(batch)
    model = comparable(build(), shift).to(x.device).train()
    twin = in_double(copy.deepcopy(model))
    with torch.no_grad():  # a step of its own: it moves running statistics
        labels = target(logits(copy.deepcopy(model)(x)))
    state = {k: v for k, v in [*model.named_parameters(), *model.named_buffers()] if not k.endswith(("num_batches_tracked", "original_inv_freq"))}
    np.savez(os.path.join(folder, "given.npz"), input0=x.cpu().numpy(), target=labels.cpu().numpy(), **host(state))
    with Float32():
        out, grads = step(model, x, logits, labels)
    out64, grads64 = step(twin, x.double() if x.is_floating_point() else x, logits, labels)
    np.savez(os.path.join(folder, "torch.npz"), **host({"output": out, **{"grad:" + k: g for k, g in grads.items()}}))
    np.savez(os.path.join(folder, "double.npz"), **host({"grad:" + k: g for k, g in grads64.items()}))
    own = {k: difference(g, grads64[k]) for k, g in grads.items()}
    worst = max(own, key=own.get)
    return {"output": difference(out, out64), "gradient": own[worst], "gradientName": worst}


def runtime(path, folder):
    """The output by onnxruntime on the processor, written to runtime.npz; what it said, where it cannot."""
    try:
        import onnx
        import onnxruntime
    except ImportError as e:
        return "not installed: " + str(e)
    proto = onnx.load(path, load_external_data=False)
    with np.load(os.path.join(folder, "given.npz")) as given:
        for t in proto.graph.initializer:
            if t.name in given:
                t.CopyFrom(onnx.numpy_helper.from_array(given[t.name], t.name))
        x = given["input0"]
    for node in proto.graph.node:  # the exporter writes batch normalisation as for inference; training is asked for here
        if node.op_type == "BatchNormalization":
            node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
            node.output.extend("%s_%s" % (node.output[0], what) for what in ("mean", "var")[len(node.output) - 1:])
    try:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        np.savez(os.path.join(folder, "runtime.npz"), output=session.run(["output"], {"input0": x})[0])
    except Exception as e:  # a training operator that it lacks, a file that is too large
        return (str(e).strip().splitlines() or [repr(e)])[0]
    return None


def expected(r):
    """Differences by what was expected."""
    return {c["name"][len(EXPECTED):]: c["value"] for c in r.get("checks", []) if c["name"].startswith(EXPECTED)}


def gradients(found):
    worst = max(found, key=found.get)
    return {"count": len(found), "worst": found[worst], "worstName": worst}


def initial(run, path, name, batch):
    """The same on the batch norms that PyTorch starts with, where rounding decides about some activations: what came of it, without a verdict."""
    with tempfile.TemporaryDirectory() as folder:
        own = reference(name, batch, folder, shift=False)
        gc.collect()
        torch.cuda.empty_cache()
        out = {"torchDouble": own["gradient"]}
        for source in ("torch", "double"):
            r = run(["validate", path, "--batch", str(batch), "--steps", "1", "--input", os.path.join(folder, "given.npz"), "--checkpoint", "none", "--expect", os.path.join(folder, source + ".npz")], PLAIN)
            if "error" in r:
                return {**out, "error": r["error"]}
            found = expected(r)
            if source == "torch":
                out["output"] = found.pop("output")
            out[source] = gradients(found)["worst"]
    return out


def numbers(run, path, name, how="all", batch=None):
    """A row of results, with checkpoints as how says; run runs memplan with arguments and an environment and returns its JSON."""
    batch = batch or EXACT[name]
    row = {"kind": "numbers", "name": name, "batch": batch, "precision": "fp32", "outputTolerance": OUTPUT_TOLERANCE, "torch": torch.__version__, "torchDevice": "cuda" if torch.cuda.is_available() else "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        own = reference(name, batch, folder)
        row["tolerance"] = max(TOLERANCE, 3 * own["gradient"])
        gc.collect()
        torch.cuda.empty_cache()
        lacks = runtime(path, folder)
        at = lambda f: os.path.join(folder, f + ".npz")
        common = [path, "--batch", str(batch), "--steps", "1", "--input", at("given"), "--tolerance", str(row["tolerance"])]
        r = run(["validate", *common, "--checkpoint", how, "--expect", at("torch")], PLAIN)
        if "error" in r:
            return {**row, "error": r["error"]}
        double = run(["validate", *common, "--checkpoint", "none", "--expect", at("double"), *([] if lacks else ["--expect", at("runtime")])], PLAIN)
        if "error" in double:
            return {**row, "error": double["error"]}
    found, exact = expected(r), expected(double)
    row["outputs"] = {"torch": found.pop("output"), "torchDouble": own["output"]}
    row["outputs"].update({"onnxruntimeLacks": lacks} if lacks else {"onnxruntime": exact.pop("output")})
    row["gradients"] = {"torch": gradients(found), "double": gradients(exact), "torchDouble": {"count": len(exact), "worst": own["gradient"], "worstName": own["gradientName"]}}
    bad = {c["name"] for c in r["checks"] if c["ok"] is False} | {c["name"] for c in double["checks"] if c["ok"] is False and not c["name"].startswith(EXPECTED)}
    bad |= {"output, from " + k for k in ("torch", "onnxruntime") if row["outputs"].get(k, 0) > OUTPUT_TOLERANCE}
    recomputed = next((c for c in r["checks"] if c["name"] == "gradients"), {})
    if name in NORMED:
        row["initial"] = initial(run, path, name, batch)
    return {**row, "verdict": "refuted" if bad else "validated", "failed": sorted(bad), "checkpointed": recomputed.get("value"), "nodesAgain": r.get("recompute", {}).get("nodes", 0), "segments": r["model"]["segments"],
            "device": r["device"], "wallSeconds": r["wallSeconds"]}
