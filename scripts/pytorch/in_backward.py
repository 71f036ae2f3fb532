#!/usr/bin/env python3
"""Writes planner/testdata/levers/in_backward.txt: what a step allocates and frees whose parameters are updated in hooks of backward.

    python3 scripts/pytorch/in_backward.py    # with torch 2.11 and, for the model of export/lever_samples.py, onnx and onnxscript

One steady step on the processor, batch 2 of 64 tokens, with the hooks of `memplan help in-backward`, of SGD, SGD with momentum and AdamW; of
the profiler's memory events those of the sizes of the model's matrices, and the most bytes of the step above its beginning. It fails unless the
parameters after two steps are those of an update at the step's end.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "export"))

from lever_samples import LM  # noqa: E402

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "sgd-loop": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, foreach=False),
    "adamw-loop": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
}


def hooked(m: torch.nn.Module, make: Callable) -> None:
    optimizers = {p: make([p]) for p in m.parameters()}

    def update(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(update)


def backward(m: LM, ids: torch.Tensor, target: torch.Tensor) -> None:
    F.cross_entropy(m(ids).view(-1, 4096), target.view(-1)).backward()


def main() -> None:
    torch.manual_seed(0)
    ids, target = torch.randint(0, 4096, (2, 64)), torch.randint(0, 4096, (2, 64))
    first = LM().train()
    sizes = {p.numel() * 4 for p in first.parameters() if p.dim() == 2}
    lines = []
    for name, make in OPTIMIZERS.items():
        usual, m = copy.deepcopy(first), copy.deepcopy(first)
        o = make(usual.parameters())
        hooked(m, make)
        for _ in range(2):
            o.zero_grad()
            backward(usual, ids, target)
            o.step()
            backward(m, ids, target)
        if any(not torch.equal(a, b) for a, b in zip(usual.parameters(), m.parameters(), strict=True)):
            sys.exit(f"{name}: other parameters than those of an update at the end")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            backward(m, ids, target)
        events = sorted((e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
        now = most = 0
        for e in events:
            now += e.nbytes()
            most = max(most, now)
        lines.append(f"{name} {most} " + " ".join(f"{e.nbytes():+d}" for e in events if abs(e.nbytes()) in sizes))
        print(name, most, now, len(events))
    (ROOT / "planner" / "testdata" / "levers" / "in_backward.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
