#!/usr/bin/env python3
"""Writes planner/testdata/levers/chunked.txt: what a cross-entropy in checkpointed parts allocates and frees, in order.

    python3 scripts/pytorch/chunked_loss.py    # with torch 2.11 and, for the model of export/lever_samples.py, onnx and onnxscript

One steady step of SGD on the processor, batch 2 of 64 tokens, with the loop of `memplan help chunked-loss`; of the profiler's memory events those
of the sizes of one part's scores (16 x 4096 float32) and of the head's weight (4096 x 256). It fails unless loss and gradients are those of
F.cross_entropy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "export"))

from lever_samples import LM  # noqa: E402

SIZES = (16 * 4096 * 4, 4096 * 256 * 4)


def hidden(m: LM, ids: torch.Tensor) -> torch.Tensor:
    x = m.emb(ids)
    for b in m.blocks:
        x = b(x)
    return m.norm(x)


def chunked(m: LM, h: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    def part(h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(h, m.head.weight, m.head.bias).float(), y, reduction="sum")

    h, target = h.view(-1, h.shape[-1]), target.view(-1)
    total = None
    for x, y in zip(h.chunk(8), target.chunk(8), strict=True):
        one = checkpoint(part, x, y, use_reentrant=False)
        total = one if total is None else total + one
    return total / target.numel()


def step(m: LM, opt: torch.optim.Optimizer, ids: torch.Tensor, target: torch.Tensor) -> None:
    opt.zero_grad()
    h = hidden(m, ids)
    loss = chunked(m, h, target)
    del h
    loss.backward()
    opt.step()


def main() -> None:
    torch.manual_seed(0)
    m = LM().train()
    ids, target = torch.zeros(2, 64, dtype=torch.long), torch.randint(0, 4096, (2, 64))
    usual = F.cross_entropy(m(ids).view(-1, 4096), target.view(-1))
    usual.backward()
    want = [p.grad.clone() for p in m.parameters()]
    m.zero_grad()
    loss = chunked(m, hidden(m, ids), target)
    loss.backward()
    worst = max((a - p.grad).abs().max().item() for a, p in zip(want, m.parameters(), strict=True))
    print("loss", usual.item(), loss.item(), "largest difference of a gradient", worst)
    if abs(usual.item() - loss.item()) > 1e-5 or worst > 1e-5:
        sys.exit("the loss in parts is another")
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    m.zero_grad()
    step(m, opt, ids, target)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        step(m, opt, ids, target)
    events = sorted((e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    lines = [f"{e.nbytes():+d}" for e in events if abs(e.nbytes()) in SIZES]
    while lines[0].startswith("-"):  # gradients of the step before
        lines.pop(0)
    (ROOT / "planner" / "testdata" / "levers" / "chunked.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
