#!/usr/bin/env python3
"""What autograd saves of plain modules whose casts only source lines show, in float32, half precision and under autocast.

    python3 scripts/pytorch/types_lines.py OUT.tar.xz

Casts at what modules are called with and at what they return, in statements of outer frames, in functions of
the model's own and in regions of torch.autocast(enabled=False), which the exporter makes graphs of their own.
planner/types_lines_test.go compares. The committed file is of torch 2.11. Nothing is downloaded.
"""
import io
import json
import os
import subprocess
import sys
import tarfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from types_models import PRECISIONS, exported, saved

import torch
import torch.nn.functional as F
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.l1, self.l2 = nn.Embedding(99, 32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.n, self.h, self.drop = nn.LayerNorm(32), nn.Linear(32, 99), nn.Dropout(0.1)


class NormOut(Base):
    """What modules return is cast."""

    def forward(self, i):
        x = self.e(i)
        x = x + self.drop(self.l2(F.gelu(self.l1(self.n(x).to(x.dtype)))))
        return self.h(self.n(x).type_as(x))


class Rms(nn.Module):
    """A method of the module's own between two casts."""

    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    def _n(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def forward(self, x):
        return self._n(x.float()).type_as(x) * self.w


class RmsCalls(Base):
    def __init__(self):
        super().__init__()
        self.r, self.blocks = Rms(32), nn.ModuleList([Rms(32) for _ in range(3)])

    def forward(self, i):
        x = self.e(i)
        for b in self.blocks:
            x = x + self.l2(F.silu(self.l1(b(x))))
        return self.h(self.r(x)).float()


class FloatIn(Base):
    """What modules are called with is cast."""

    def __init__(self):
        super().__init__()
        self.act, self.sm = nn.GELU(), nn.Softmax(-1)

    def forward(self, i):
        x = self.e(i)
        y = self.act(self.l1(x).float()).to(x.dtype)
        y = self.sm(y.float()).type_as(y) * y
        return self.h(x + self.l2(y))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o, self.d = nn.Linear(32, 96), nn.Linear(32, 32), nn.Dropout(0.1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        a = (q.float() @ k.float().transpose(-2, -1)) * 8**-0.5
        a = self.d(a.softmax(-1)).to(v.dtype)
        return self.o((a @ v).transpose(1, 2).reshape(b, t, c))


class AttentionNet(Base):
    def __init__(self):
        super().__init__()
        self.a = nn.ModuleList([Attention() for _ in range(2)])

    def forward(self, i):
        x = self.e(i)
        for a in self.a:
            x = x + a(self.n(x).to(x.dtype))
            x = x + self.l2(F.gelu(self.l1(self.n(x).to(x.dtype))))
        return self.h(x).float()


class Region(Base):
    def forward(self, i):
        x = self.e(i)
        for _ in range(2):
            y = self.l1(x)
            with torch.autocast("cuda", enabled=False):
                z = y.float()
                z = z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-5)
                z = F.linear(z, self.l2.weight.float())
            x = x + z.to(x.dtype)
        return self.h(x)


class RegionFunction(Base):
    def forward(self, i):
        x = self.e(i)

        @torch.autocast("cuda", enabled=False)
        def turn(q):
            h = q.float()
            return (h * h.cos() + h.sin() * h).type_as(q)

        for _ in range(2):
            x = x + self.l2(F.gelu(turn(self.l1(x))))
        return self.h(x)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.ModuleList([nn.Conv2d(3 if k == 0 else 16, 16, 3, padding=1) for k in range(3)])
        self.g, self.o = nn.ModuleList([nn.GroupNorm(4, 16) for _ in range(3)]), nn.Linear(16, 10)

    def forward(self, x):
        for c, g in zip(self.c, self.g):
            x = F.silu(g(c(x)).to(x.dtype))
        return self.o(x.float().mean((2, 3)).to(x.dtype)).float()


MODELS = {
    "normout": NormOut, "rmscalls": RmsCalls, "floatin": FloatIn, "attention": AttentionNet, "region": Region, "regionfunction": RegionFunction,
    "convolutions": Convolutions,
}


def inputs(name):
    return (torch.randn(2, 3, 16, 16),) if name == "convolutions" else (torch.randint(0, 99, (2, 32)),)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data, runs = io.BytesIO(), {}
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:

        def add(path, content):
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        for name, build in MODELS.items():
            runs[name] = {p: saved(build(), inputs(name), p) for p in PRECISIONS}
            print(name, runs[name], flush=True)
            add(name + ".onnx", exported(build(), inputs(name)))
        add("saved.json", json.dumps(runs, indent=1).encode())
    with open(sys.argv[1], "wb") as f:
        subprocess.run(["xz", "-6e", "-c"], input=data.getvalue(), stdout=f, check=True)


if __name__ == "__main__":
    main()
