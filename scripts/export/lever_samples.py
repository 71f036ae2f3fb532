#!/usr/bin/env python3
"""Writes planner/testdata/levers/lm.onnx and conv.onnx: small models with free sizes besides the batch, without their weights.

    python3 scripts/export/lever_samples.py    # with torch 2.11, onnx and onnxscript

lm is a transformer of four blocks over `seq` tokens with fused attention, conv three convolutions with batch
normalisation over images of 8 `h8` by 8 `w8`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (y.reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.n1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(y)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self, words: int = 4096, width: int = 256, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.emb, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        c = [3, 32, 64, 128]
        self.stages = nn.ModuleList(nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)) for a, b in zip(c, c[1:], strict=False))
        self.fc = nn.Linear(128, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for m in self.stages:
            x = m(x)
        return self.fc(x.mean((2, 3)))


def main() -> None:
    import onnx
    from export_models import strip

    out = Path(__file__).resolve().parents[2] / "planner" / "testdata" / "levers"
    out.mkdir(exist_ok=True)
    dim = torch.export.Dim
    ids, image = torch.zeros(2, 16, dtype=torch.int64), torch.zeros(2, 3, 64, 64)
    for name, model, x, free in (
        ("lm", LM(), ids, {0: dim("batch"), 1: dim("seq", max=4096)}),
        ("conv", Conv(), image, {0: dim("batch"), 2: 8 * dim("h8", max=256), 3: 8 * dim("w8", max=256)}),
    ):
        with tempfile.TemporaryDirectory() as scratch:
            path = f"{scratch}/{name}.onnx"
            torch.onnx.export(model.train(), (x,), path, dynamo=True, optimize=False, dynamic_shapes=(free,), external_data=False)
            proto = onnx.load(path)
        strip(proto)
        (out / f"{name}.onnx").write_bytes(proto.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
