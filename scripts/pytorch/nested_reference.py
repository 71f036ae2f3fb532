#!/usr/bin/env python3
"""What nested checkpoints run again and hold, from PyTorch itself: the reference of graph/train's TestNested.

    python3 scripts/pytorch/nested_reference.py [-o graph/train/testdata/nested.tar.xz]

A case is a small module on the CPU and the regions that it is checkpointed in, outer before inner. They are applied by
memplan.checkpoint, of python/. For each case one step runs (forward, sum of the outputs,
backward), and this script records

  - the operators of each recomputation, in order, with the module that calls them;
  - the most bytes that live at once in forward and in backward, of what the step has made: tensors that operators return, by weak
    references to their storages.

It also trains torchvision models with and without nested checkpoints, and fails unless losses, gradients and running statistics are
the same to the bit.
"""
import argparse
import io
import json
import os
import sys
import tarfile
import tempfile

import torch
import torch.nn as nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]
from memplan import _checkpoint as applied  # noqa: E402
from saved_reference import proto_of, strip  # noqa: E402

# ---- models --------------------------------------------------------------------------------------------------------------


class Layer(nn.Sequential):
    def __init__(self, n, m):
        super().__init__(nn.Linear(n, m), nn.ReLU(), nn.Linear(m, n))


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)  # no variables: a file does not show them


class ConvNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.layer1 = nn.Sequential(Residual(c), Residual(c), Residual(c))
        self.down = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.layer2 = nn.Sequential(Residual(2 * c), Residual(2 * c))
        self.head = nn.Linear(2 * c, 5)

    def forward(self, x):
        x = self.layer2(self.down(self.layer1(self.stem(x))))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.mix = nn.LayerNorm(d), nn.Linear(d, d)
        self.ln2, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.mix(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Blocks(nn.Module):
    def __init__(self, d=16, n=6):
        super().__init__()
        self.h = nn.ModuleList(Block(d) for _ in range(n))
        self.out = nn.Linear(d, 3)

    def forward(self, x):
        for b in self.h:
            x = b(x)
        return self.out(x)


def chain():
    return nn.Sequential(*[Layer(12, 40 + 4 * i) for i in range(6)])


MODELS = {"chain": (chain, (96, 12)), "conv": (ConvNet, (16, 3, 12, 12)), "blocks": (Blocks, (24, 10, 16))}
CASES = [
    ("flat", "chain", [["0", "1"], ["3"]]),
    ("run in a run", "chain", [["0", "1", "2", "3"], ["1", "2"]]),
    ("inner first", "chain", [["1", "2", "3"], ["1"]]),
    ("inner last", "chain", [["1", "2", "3"], ["3"]]),
    ("inner runs last, of two", "chain", [["1", "2", "3", "4"], ["1"], ["3", "4"]]),
    ("same calls twice", "chain", [["2", "3"], ["2", "3"]]),
    ("three deep", "chain", [["0", "1", "2", "3", "4"], ["1", "2", "3"], ["2"]]),
    ("three deep, inner last", "chain", [["0", "1", "2", "3", "4"], ["2", "3", "4"], ["4"]]),
    ("all and each", "chain", [["0", "1", "2", "3", "4", "5"], ["0"], ["1"], ["2"], ["3"], ["4"], ["5"]]),
    ("parts of modules", "chain", [["1", "2"], ["1.0", "1.1"], ["2.1", "2.2"]]),
    ("layer and block", "conv", [["layer1"], ["layer1.0"], ["layer1.1"]]),
    ("layer, block, convolution", "conv", [["layer1"], ["layer1.1"], ["layer1.1.conv1", "layer1.1.bn1"], ["layer2.0"]]),
    ("layers", "conv", [["stem", "layer1", "down", "layer2"], ["layer1"], ["layer1.1", "layer1.2"], ["layer2.0"]]),
    ("last block", "conv", [["layer2"], ["layer2.1"]]),
    ("blocks", "blocks", [["h.0", "h.1", "h.2", "h.3"], ["h.0", "h.1"], ["h.2"]]),
    ("parts of blocks", "blocks", [["h.1", "h.2", "h.3", "h.4"], ["h.2"], ["h.2.mlp"], ["h.3.ln2", "h.3.mlp"], ["h.4.mlp"]]),
]

# ---- recording -----------------------------------------------------------------------------------------------------------

VIEWS = {"view", "t", "transpose", "detach", "expand", "unsqueeze", "alias", "_unsafe_view", "slice", "select", "permute", "squeeze"}


class Recorder(TorchDispatchMode):
    """Notes operators with their modules, and the bytes that live after each."""

    def __init__(self, model, inputs):
        super().__init__()
        self.runs, self.peaks, self.phase, self.again = [], {"forward": 0, "backward": 0}, "forward", False
        self.names, self.stack, self.live = {m: n for n, m in model.named_modules()}, [], {}
        self.known = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers(), *inputs]}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if self.again and name not in VIEWS:
            self.runs[-1].append((self.stack[-1] if self.stack else "") + " " + name)
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                s = t.untyped_storage()
                if s._cdata not in self.known and s._cdata not in self.live:
                    self.live[s._cdata] = (StorageWeakRef(s), s.nbytes())
        self.live = {k: v for k, v in self.live.items() if not v[0].expired()}
        self.peaks[self.phase] = max(self.peaks[self.phase], sum(n for _, n in self.live.values()))
        return out

    def frame(self):
        """The frames of memplan.checkpoint, whose recomputations are noted."""
        recorder = self

        class Frame(applied._Frame):
            def run_again(self, given):
                if recorder.again:
                    raise AssertionError("a recomputation inside another")
                recorder.again, old, recorder.stack = True, recorder.stack, []
                recorder.runs.append([])
                try:
                    super().run_again(given)
                finally:
                    recorder.again, recorder.stack = False, old

        return Frame

    def hooks(self):
        def leave(*_):
            if self.stack:
                self.stack.pop()

        modules = nn.modules.module
        return [modules.register_module_forward_pre_hook(lambda m, _: self.stack.append(self.names[m])), modules.register_module_forward_hook(leave, always_call=True)]


def apply(model, regions):
    return applied.checkpoint(model, {"checkpoint": [{"modules": r} for r in regions], "ops": []})


def record(model, regions, x):
    r = Recorder(model, [x])
    apply(model, regions)
    plain, applied._Frame = applied._Frame, r.frame()
    hooks = r.hooks()
    try:
        with r:
            loss = model(x).sum()
            r.phase, r.stack = "backward", []
            loss.backward()
    finally:
        applied._Frame = plain
        for h in hooks:
            h.remove()
    return r


def export(model, x):
    program = torch.onnx.export(model, (x,), input_names=["input0"], dynamo=True, optimize=False, verbose=False)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "m.onnx")
        strip(program.model_proto, path)
        with open(path, "rb") as f:
            return f.read()


# ---- the code that users copy ----------------------------------------------------------------------------------------------


def step(model, x, classes):
    torch.manual_seed(1)
    loss = nn.functional.cross_entropy(model(x), torch.arange(x.shape[0]) % classes)
    loss.backward()
    return [loss.detach()] + [p.grad for p in model.parameters()] + list(model.buffers())


def same(name, build, size, regions):
    """Fails unless a step with nested checkpoints gives what one without gives."""
    x = torch.randn(4, 3, size, size)
    results = []
    for with_regions in (False, True):
        torch.manual_seed(0)
        m = build().train()
        if with_regions:
            apply(m, regions)
        results.append(step(m, x, 10))
    for a, b in zip(*results, strict=True):
        if not torch.equal(a, b):
            raise SystemExit(f"{name}: checkpoints change the result by {(a - b).abs().max()}")
    print(f"{name}: {len(results[0])} tensors equal with {len(regions)} regions")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", default=os.path.join(HERE, "..", "..", "graph", "train", "testdata", "nested.tar.xz"))
    out = p.parse_args().o
    import torchvision.models as tv

    same("resnet18", lambda: tv.resnet18(num_classes=10), 32, [["layer1"], ["layer1.0"], ["layer2", "layer3"], ["layer2.1"], ["layer3"], ["layer3.0"], ["layer3.0.conv1", "layer3.0.bn1"]])
    same("mobilenet_v2", lambda: tv.mobilenet_v2(num_classes=10), 32, [["features"], [f"features.{i}" for i in range(2, 9)], ["features.4", "features.5"], ["features.12"]])
    same("vgg11", lambda: tv.vgg11(num_classes=10), 32, [["features"], [f"features.{i}" for i in range(3, 10)], ["classifier"], ["classifier.2", "classifier.3"]])
    with tarfile.open(out, "w:xz") as tar:
        def add(name, data):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        for name, (build, shape) in MODELS.items():
            torch.manual_seed(0)
            add(name + ".onnx", export(build().train(), torch.randn(shape)))
        for name, model, regions in CASES:
            build, shape = MODELS[model]
            r = record(build().train(), regions, torch.randn(shape))
            case = {"name": name, "model": model, "regions": regions, "runs": r.runs, **r.peaks}
            print(name, [len(x) for x in r.runs], r.peaks)
            add(name + ".json", (json.dumps(case) + "\n").encode())


if __name__ == "__main__":
    main()
