#!/usr/bin/env python3
"""Writes planner/testdata/levers/liger.txt: what liger-kernel's fused linear cross-entropy allocates and frees, in order.

    pip download --no-deps liger-kernel==0.8.5 && unzip liger_kernel-*.whl -d liger
    python3 scripts/pytorch/liger_loss.py liger    # with torch 2.11, triton and, for the model of export/lever_samples.py, onnx and onnxscript

The library's own forward pass runs on tensors without memory (FakeTensorMode) of a GPU of compute capability 9.0; its Triton kernels, which
allocate nothing, do not run. A line has precision, with +frozen where the head is not trained, batch, the peak of two steps with AdamW, and the bytes of 4096 and more that the loss of lever_samples.LM over 64 tokens a
sample allocates (+) and frees (-), rounded to 512 as PyTorch's allocator does.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / d) for d in ("export", "steps", "pytorch")] + [sys.argv[1]]

import fake_step  # noqa: E402
from lever_samples import LM  # noqa: E402
from liger_kernel.ops import fused_linear_cross_entropy as liger  # noqa: E402

LEAST = 4096


class Log(fake_step.Recorder):
    """Counts the storages on the device, and lists those of the loss."""

    on, lines = False, []  # noqa: RUF012

    def meet(self, t, op, least=0):
        before = self.now
        super().meet(t, op, least)
        if Log.on and self.now - before >= LEAST:
            Log.lines.append(f"+{self.now - before}")

    def gone(self, key, size):
        if Log.on and key in self.known and size >= LEAST:
            Log.lines.append(f"-{size}")
        super().gone(key, size)


class Hidden(LM):
    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.norm(x), self.head.weight


class Frozen(Hidden):
    """A head that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(requires_grad=False)


class Kernel:
    """A Triton kernel that does not run."""

    def __getitem__(self, grid):
        return lambda *a, **k: None


def loss(out):
    h, weight = out
    x, target = h.view(-1, h.shape[-1]), torch.zeros(h.shape[0] * h.shape[1], dtype=torch.long, device=h.device)
    Log.lines, Log.on = [], True
    value = liger.LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)[0]
    gc.collect()
    Log.on = False
    return value


def main() -> None:
    fake_step.Recorder = Log
    liger.liger_cross_entropy_kernel = Kernel()
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.Tensor.item = lambda _: 1
    torch.equal = lambda *_: True
    addmm = torch.addmm  # FakeTensorMode cannot do addmm(.., out_dtype=..), which writes to out
    torch.addmm = lambda *a, **k: k["out"] if "out_dtype" in k else addmm(*a, **k)
    out = []
    for model, prec in [(m, p) for m in (Hidden, Frozen) for p in ("fp32", "bf16", "amp-bf16")]:
        for batch in (2, 50):
            got = fake_step.record(model, lambda n, device: (torch.zeros(n, 64, dtype=torch.long, device=device),), loss, batch, prec)
            print(model.__name__, prec, batch, got["peak"], len(Log.lines))
            out.append(f"{prec}{'+frozen' if model is Frozen else ''} {batch} {got['peak']} " + " ".join(Log.lines))
    (ROOT / "planner" / "testdata" / "levers" / "liger.txt").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
