#!/usr/bin/env python3
"""What offloaded regions hold on the device, from PyTorch itself: the reference of graph/train's TestOffload.

    python3 scripts/pytorch/offload_reference.py [-o graph/train/testdata/offload.tar.xz]

A case is one of nested_reference.py's modules on the CPU, and its regions: offloaded (~name; =name if it keeps what it saves), or checkpointed. memplan.checkpoint applies
them, with every storage of 64 bytes and more offloaded. One step runs (forward, sum of the outputs, backward), and this script records the
most bytes that live at once in forward and in backward, of what the step has made, without the host's buffers; and the bytes of those.
It fails unless the gradients are those of the step without regions, to the bit.
"""
import argparse
import io
import json
import os
import tarfile

import torch

import nested_reference as nested
from memplan import _checkpoint as applied

LEAST = 64
CASES = [
    ("one in the middle", "chain", ["~2"]),
    ("the first", "chain", ["~0"]),
    ("the last", "chain", ["~5"]),
    ("neighbours", "chain", ["~1", "~2", "~3"]),
    ("all", "chain", ["~0", "~1", "~2", "~3", "~4", "~5"]),
    ("every second", "chain", ["~0", "~2", "~4"]),
    ("beside checkpoints", "chain", ["~0", "1", "~2", "3"]),
    ("parts of modules", "chain", ["~1.0", "~1.1", "~3.2"]),
    ("residual blocks", "conv", ["~layer1.0", "~layer1.1", "~layer1.2"]),
    ("layers", "conv", ["~stem", "~layer1", "~layer2"]),
    ("all residual blocks", "conv", ["~layer1.0", "~layer1.1", "~layer1.2", "~layer2.0", "~layer2.1"]),
    ("block and checkpoint", "conv", ["~layer1.0", "layer1.1", "~layer2.0"]),
    ("blocks", "blocks", ["~h.0", "~h.1", "~h.2", "~h.3", "~h.4", "~h.5"]),
    ("some blocks", "blocks", ["~h.0", "h.1", "~h.3", "h.4"]),
    ("one, fetched two ahead", "chain", ["~1", "=3"]),
    ("kept before and after", "chain", ["=0", "~1", "=2", "~3", "=4"]),
    ("fetched ahead", "blocks", ["~h.0", "=h.2", "h.3", "~h.4", "=h.5"]),
    ("kept residual block", "conv", ["~layer1.0", "=layer1.2", "layer2.0"]),
    ("parts of blocks", "blocks", ["~h.0.mlp", "~h.1.mix", "~h.1.mlp", "~h.4"]),
]


def plan(regions):
    return {"selection": [{"modules": [r.lstrip("~=")], "offload": r[0] in "~=", "keep": r[0] == "="} for r in regions]}


class Recorder(nested.Recorder):
    """Notes the bytes that live, without the buffers of the host."""

    making = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.making:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def buffer(self, host, device, n):
        self.making = True
        b = plain(host, device, n)
        self.making = False
        self.known.add(b.untyped_storage()._cdata)
        if all(b is not x for x in self.buffers):
            self.buffers.append(b)
        return b


plain = applied._Host.buffer


def step(build, shape, regions, record):
    torch.manual_seed(0)
    model, x = build().train(), torch.randn(shape)
    r = Recorder(model, [x])
    r.buffers = []
    applied.checkpoint(model, plan(regions))
    if not record:
        model(x).sum().backward()
        return r, model
    applied._Host.buffer = lambda host, device, n: r.buffer(host, device, n)
    try:
        with r:
            loss = model(x).sum()
            r.phase = "backward"
            loss.backward()
    finally:
        applied._Host.buffer = plain
    return r, model


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", default=os.path.join(nested.HERE, "..", "..", "graph", "train", "testdata", "offload.tar.xz"))
    out = p.parse_args().o
    applied._LEAST = LEAST
    with tarfile.open(out, "w:xz") as tar:
        for name, model, regions in CASES:
            build, shape = nested.MODELS[model]
            _, want = step(build, shape, [], False)
            r, got = step(build, shape, regions, True)
            for (n, a), (_, b) in zip(want.named_parameters(), got.named_parameters(), strict=True):
                if not torch.equal(a.grad, b.grad):
                    raise SystemExit(f"{name}: the gradient of {n} differs")
            case = {"name": name, "model": model, "regions": regions, "least": LEAST, "host": sum(b.nbytes for b in r.buffers), **r.peaks}
            print(case)
            data = (json.dumps(case) + "\n").encode()
            info = tarfile.TarInfo(name + ".json")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main()
