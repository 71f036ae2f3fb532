#!/usr/bin/env python3
"""The most bytes that live at once in an inference, from PyTorch itself: the reference of planner's TestLive.

    python3 scripts/pytorch/live_reference.py [REGEX] > planner/testdata/live.jsonl

Runs the models of saved_reference.py in evaluation and without gradients under FakeTensorMode on tensors of device type cuda, and follows
every storage from the operator that makes it to the moment when Python lets go of it. Parameters, buffers and inputs are not counted,
nor what kernels allocate inside; sizes are rounded up to 512 bytes.
"""
import json
import re
import sys
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import saved_reference as reference


class Live(TorchDispatchMode):
    """Counts the storages that operators make."""

    def __init__(self, known):
        super().__init__()
        self.known, self.now, self.peak = known, 0, 0

    def gone(self, key, size):
        self.now -= size
        self.known.discard(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in torch.utils._pytree.tree_leaves(out):
            if not isinstance(t, torch.Tensor) or t.device.type != "cuda":
                continue
            storage = t.untyped_storage()
            key, size = storage._cdata, -(-storage.nbytes() // 512) * 512
            if key in self.known or size == 0:
                continue
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.gone, key, size)
        return out


def peak(c, batch):
    torch.manual_seed(0)
    module = c.build().eval()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        module = reference.faked(module)
    with mode, torch.device("cuda"), torch.no_grad():
        xs = tuple(torch.empty_like(x, device="cuda") for x in c.inputs(batch))
        known = {t.untyped_storage()._cdata for t in [*module.parameters(), *module.buffers(), *xs]}
        with reference.attention(c.attention, True), reference.nothing_masked(), Live(known) as live:
            out = module(*xs)
        del out
        return live.peak


def main():
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    reference.register()
    for c in reference.CASES.values():
        if c.kind != "model" or not re.search(pattern, c.name):
            continue
        try:
            print(json.dumps({"name": c.name, "batch": c.batches[-1], "peak": peak(c, c.batches[-1])}, separators=(",", ":")), flush=True)
        except Exception as e:
            print(c.name, type(e).__name__, str(e)[:150], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
