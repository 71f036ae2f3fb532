#!/usr/bin/env python3
"""What autograd saves of plain modules that cast as people's own code does, in float32, half precision and under autocast.

    python3 scripts/pytorch/types_styles.py OUT.tar.xz [NAME ..]

Forty small modules, each with a habit of its own, written before anybody had seen what memplan says of them:
planner/types_styles_test.go compares, and keeps what was said first. A model that refuses bfloat16 parameters on the
processor, where mixed types in one product are an error as on a GPU, has no such run. The committed file is of torch 2.11.
Nothing is downloaded.
"""
import io
import json
import math
import os
import subprocess
import sys
import tarfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from types_models import PRECISIONS, exported, saved

import torch
import torch.nn.functional as F
from torch import nn

B, T, D, H, V = 4, 64, 32, 4, 99
MODELS, INPUTS = {}, {}


def tokens():
    return (torch.randint(0, V, (B, T)),)


def images():
    return (torch.randn(B, 3, 16, 16),)


def style(inputs=tokens):
    def add(cls):
        MODELS[cls.__name__.lower()], INPUTS[cls.__name__.lower()] = cls, inputs
        return cls

    return add


class Stack(nn.Module):
    """Embeddings, blocks made by block(), a head."""

    def __init__(self, depth=2):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.blocks = nn.ModuleList([self.block() for _ in range(depth)])
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, idx):
        x = self.tok(idx)
        for blk in self.blocks:
            x = x + blk(x)
        return self.head(x)


# Normalisations


class LitNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        dtype = x.dtype
        x = x.float()
        norm_x = torch.mean(x * x, dim=-1, keepdim=True)
        x_normed = x * torch.rsqrt(norm_x + self.eps)
        return (self.weight * x_normed).to(dtype=dtype)


@style()
class LitStack(Stack):
    def block(self):
        return nn.Sequential(LitNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))


class OneLineNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.scale


@style()
class OneLine(Stack):
    def block(self):
        return nn.Sequential(OneLineNorm(D), nn.Linear(D, 64), nn.SiLU(), nn.Linear(64, D))


class PlusOneNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


@style()
class PlusOne(Stack):
    def block(self):
        return nn.Sequential(PlusOneNorm(D), nn.Linear(D, 64), nn.GELU(approximate="tanh"), nn.Linear(64, D))


class Fp32LayerNorm(nn.LayerNorm):
    def forward(self, input):
        output = F.layer_norm(
            input.float(),
            self.normalized_shape,
            self.weight.float() if self.weight is not None else None,
            self.bias.float() if self.bias is not None else None,
            self.eps,
        )
        return output.type_as(input)


@style()
class Fairseq(Stack):
    def block(self):
        return nn.Sequential(Fp32LayerNorm(D), nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))


class AffinelessNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).type_as(x)


@style()
class Wan(nn.Module):
    """Modulation computed in float32, residuals gated in it."""

    def __init__(self):
        super().__init__()
        self.tok, self.mod = nn.Embedding(V, D), nn.Parameter(torch.randn(1, 6, D) / D**0.5)
        self.norm1, self.norm2 = AffinelessNorm(D, elementwise_affine=False), AffinelessNorm(D, elementwise_affine=False)
        self.a, self.f = nn.Linear(D, D), nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))
        self.head = nn.Linear(D, V)

    def forward(self, idx):
        x = self.tok(idx)
        e = self.mod.float().chunk(6, dim=1)
        y = self.a((self.norm1(x).float() * (1 + e[1]) + e[0]).to(x.dtype))
        x = (x.float() + y * e[2]).to(x.dtype)
        y = self.f((self.norm2(x).float() * (1 + e[4]) + e[3]).to(x.dtype))
        x = (x.float() + y * e[5]).to(x.dtype)
        return self.head(x)


class ChannelNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))

    def forward(self, x):
        orig_dtype = x.dtype
        x = x.float()
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        x = x.to(orig_dtype)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@style(images)
class SamNeck(nn.Module):
    def __init__(self):
        super().__init__()
        self.neck = nn.Sequential(nn.Conv2d(3, D, 3, padding=1), ChannelNorm(D), nn.GELU(), nn.Conv2d(D, D, 3, padding=1), ChannelNorm(D))
        self.out = nn.Conv2d(D, 3, 1)

    def forward(self, x):
        return self.out(self.neck(x))


@style(images)
class PlainGroup(nn.Module):
    """GroupNorm without parameters on float32."""

    def __init__(self):
        super().__init__()
        self.c = nn.ModuleList([nn.Conv2d(3 if k == 0 else D, D, 3, padding=1) for k in range(3)])
        self.n, self.o = nn.GroupNorm(8, D, affine=False), nn.Conv2d(D, 3, 1)

    def forward(self, x):
        for c in self.c:
            x = c(x)
            x = F.silu(self.n(x.float()).to(x.dtype))
        return self.o(x)


class OffNorm(nn.Module):
    """A normalisation under a decorator that turns autocast off."""

    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    @torch.autocast("cuda", enabled=False)
    def forward(self, x):
        h = x.float()
        h = h / (h.norm(dim=-1, keepdim=True) * h.shape[-1] ** -0.5 + 1e-6)
        return (h * self.g.float()).to(x.dtype)


@style()
class Decorated(Stack):
    def block(self):
        return nn.Sequential(OffNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))


# Attention


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def split(self, x):
        return x.view(x.shape[0], -1, H, D // H).transpose(1, 2)

    def merge(self, x):
        return self.o(x.transpose(1, 2).reshape(x.shape[0], -1, D))

    def qkv(self, x):
        x = self.norm(x)
        return self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))


class SoftmaxAs(Heads):
    def forward(self, x):
        q, k, v = self.qkv(x)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(D // H)
        scores = F.softmax(scores.float(), dim=-1).type_as(q)
        return self.merge(torch.matmul(scores, v))


@style()
class MetaLlama(Stack):
    block = SoftmaxAs


class SoftmaxKind(Heads):
    def forward(self, x):
        q, k, v = self.qkv(x)
        attn = (q @ k.transpose(-2, -1)) * (D // H) ** -0.5
        attn = torch.softmax(attn, dim=-1, dtype=torch.float32).to(v)
        return self.merge(attn @ v)


@style()
class ToTensor(Stack):
    block = SoftmaxKind


class MaskPromotes(Heads):
    """A mask of torch's default type, which promotes the scores."""

    def forward(self, x):
        q, k, v = self.qkv(x)
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device), diagonal=1)
        w = q @ k.mT / math.sqrt(D // H) + mask
        w = w.softmax(-1).to(v.dtype)
        return self.merge(w @ v)


@style()
class DefaultMask(Stack):
    block = MaskPromotes


class MaskTyped(Heads):
    def forward(self, x):
        q, k, v = self.qkv(x)
        mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(q.dtype).min, dtype=q.dtype, device=x.device).triu(1)
        w = q @ k.mT / math.sqrt(D // H) + mask
        return self.merge(w.softmax(-1) @ v)


@style()
class TypedMask(Stack):
    block = MaskTyped


class Alibi(Heads):
    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([2.0 ** -(8 / H * (i + 1)) for i in range(H)]), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(x)
        pos = torch.arange(x.shape[1], device=x.device)
        bias = (pos[None] - pos[:, None]).float() * self.slopes.float()[:, None, None]
        att = (q @ k.transpose(-1, -2)) / math.sqrt(D // H) + bias.to(q.dtype)
        return self.merge(att.softmax(dim=-1) @ v)


@style()
class AlibiStack(Stack):
    block = Alibi


class KeepFloat(Heads):
    """Scores in float32 from the product on."""

    def forward(self, x):
        q, k, v = self.qkv(x)
        dots = torch.einsum("bhid,bhjd->bhij", q.float(), k.float()) * (D // H) ** -0.5
        attn = dots.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn.to(v.dtype), v)
        return self.merge(out)


@style()
class Lucid(Stack):
    block = KeepFloat


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rope_table(t, d, device):
    inv = 1.0 / (10000 ** (torch.arange(0, d, 2, device=device).float() / d))
    f = torch.outer(torch.arange(t, device=device).float(), inv)
    f = torch.cat((f, f), dim=-1)
    return f.cos(), f.sin()


def apply_rope_wide(x, cos, sin):
    xf = x.float()
    out = xf * cos + rotate_half(xf) * sin
    return out.to(x.dtype)


class RopeWide(Heads):
    def forward(self, x):
        q, k, v = self.qkv(x)
        cos, sin = rope_table(x.shape[1], D // H, x.device)
        q, k = apply_rope_wide(q, cos, sin), apply_rope_wide(k, cos, sin)
        return self.merge(F.softmax(q @ k.transpose(2, 3) * 0.35, dim=-1) @ v)


@style()
class RopeHelper(Stack):
    block = RopeWide


class RopeTyped(Heads):
    def forward(self, x):
        q, k, v = self.qkv(x)
        cos, sin = rope_table(x.shape[1], D // H, x.device)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        return self.merge(F.softmax(q @ k.transpose(2, 3) * 0.35, dim=-1) @ v)


@style()
class RopeNarrow(Stack):
    block = RopeTyped


class RopeLoose(Heads):
    """Tables in float32 promote query and key; attention gets them cast."""

    def forward(self, x):
        q, k, v = self.qkv(x)
        cos, sin = rope_table(x.shape[1], D // H, x.device)
        q = (q * cos) + (rotate_half(q) * sin)
        k = (k * cos) + (rotate_half(k) * sin)
        q, k = q.to(v.dtype), k.to(v.dtype)
        return self.merge(F.softmax(q @ k.transpose(2, 3) * 0.35, dim=-1) @ v)


@style()
class RopePromotes(Stack):
    block = RopeLoose


class QKNorm(Heads):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.ones(H, 1, 1))

    def forward(self, x):
        q, k, v = self.qkv(x)
        q = F.normalize(q.float(), dim=-1).to(v.dtype)
        k = F.normalize(k.float(), dim=-1).to(v.dtype)
        a = (q @ k.transpose(-2, -1)) * self.s.clamp(max=4.6).exp()
        return self.merge(a.softmax(-1) @ v)


@style()
class SwinLike(Stack):
    block = QKNorm


class RegionScores(Heads):
    def forward(self, x):
        q, k, v = self.qkv(x)
        with torch.autocast(device_type="cuda", enabled=False):
            s = q.float() @ k.float().transpose(-2, -1) * 0.35
            p = s.softmax(-1)
        return self.merge(p.to(v.dtype) @ v)


@style()
class RegionAttention(Stack):
    block = RegionScores


# Feed-forward parts


class WideGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(D, 64), nn.Linear(64, D), nn.Linear(D, 64)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x).float()).to(x.dtype) * self.w3(x))


@style()
class WideSwiglu(Stack):
    block = WideGate


class WoType(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wi, self.wo, self.drop = nn.LayerNorm(D), nn.Linear(D, 64, bias=False), nn.Linear(64, D, bias=False), nn.Dropout(0.1)

    def forward(self, x):
        h = F.gelu(self.wi(self.norm(x)).to(torch.float32))
        h = self.drop(h)
        h = h.to(self.wo.weight.dtype)
        return self.wo(h)


@style()
class T5Wo(Stack):
    block = WoType


class Router(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(D), nn.Linear(D, n, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D)) for _ in range(n)])

    def forward(self, x):
        x = self.norm(x)
        logits = F.linear(x.float(), self.gate.weight.float())
        weights = F.softmax(logits, dim=-1).to(x.dtype)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + expert(x) * weights[..., i : i + 1]
        return out


@style()
class SoftMoe(Stack):
    block = Router


class LoraLinear(nn.Module):
    def __init__(self, i, o, r=4):
        super().__init__()
        self.base, self.lora_a, self.lora_b, self.drop = nn.Linear(i, o), nn.Linear(i, r, bias=False), nn.Linear(r, o, bias=False), nn.Dropout(0.05)

    def forward(self, x):
        previous_dtype = x.dtype
        result = self.base(x)
        x = x.to(self.lora_a.weight.dtype)
        result = result + self.lora_b(self.lora_a(self.drop(x))) * 2.0
        return result.to(previous_dtype)


@style()
class PeftLike(Stack):
    def block(self):
        return nn.Sequential(nn.LayerNorm(D), LoraLinear(D, 64), nn.GELU(), LoraLinear(64, D))


class Snake(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(d))

    def forward(self, x):
        a = self.alpha.float()
        y = x.float()
        y = y + (a + 1e-9).reciprocal() * torch.sin(a * y).pow(2)
        return y.to(x.dtype)


@style()
class SnakeNet(Stack):
    def block(self):
        return nn.Sequential(nn.Linear(D, 64), Snake(64), nn.Linear(64, D))


class Ssm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.dt, self.out = nn.Linear(D, 2 * D), nn.Linear(D, D), nn.Linear(D, D)
        self.a_log, self.d = nn.Parameter(torch.zeros(D)), nn.Parameter(torch.ones(D))

    def forward(self, x):
        u, z = self.inp(x).chunk(2, dim=-1)
        a = -torch.exp(self.a_log.float())
        dt = F.softplus(self.dt(u).float())
        h = torch.zeros(x.shape[0], u.shape[-1], device=x.device, dtype=torch.float32)
        ys = []
        for t in range(8):
            h = torch.exp(dt[:, t] * a) * h + dt[:, t] * u[:, t].float()
            ys.append(h)
        y = torch.stack(ys, dim=1).repeat(1, x.shape[1] // 8, 1)
        y = (y + u.float() * self.d.float()).to(x.dtype)
        return self.out(y * F.silu(z))


@style()
class MambaLike(Stack):
    block = Ssm


class PathDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x):
        y = self.f(x)
        keep = 0.9
        mask = keep + torch.rand((y.shape[0], 1, 1), dtype=y.dtype, device=y.device)
        return y.div(keep) * mask.floor()


@style()
class DropPaths(Stack):
    block = PathDrop


class CellLoop(nn.Module):
    """A recurrence whose state has its input's type."""

    def __init__(self):
        super().__init__()
        self.x2h, self.h2h = nn.Linear(D, 3 * D), nn.Linear(D, 3 * D)

    def forward(self, x):
        h = torch.zeros(x.size(0), D, device=x.device, dtype=x.dtype)
        out = []
        for t in range(6):
            xr, xz, xn = self.x2h(x[:, t]).chunk(3, 1)
            hr, hz, hn = self.h2h(h).chunk(3, 1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            n = torch.tanh(xn + r * hn)
            h = (1 - z) * n + z * h
            out.append(h)
        return torch.stack(out, 1).mean(1, keepdim=True)


@style()
class OwnGru(Stack):
    block = CellLoop


# Heads and losses


@style()
class SoftCap(Stack):
    def block(self):
        return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, idx):
        x = self.tok(idx)
        for blk in self.blocks:
            x = x + blk(x)
        logits = self.head(x).float()
        return 30.0 * torch.tanh(logits / 30.0)


@style(lambda: (torch.randint(0, V, (B, T)), torch.randint(0, V, (B, T))))
class LossInside(Stack):
    def block(self):
        return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, idx, targets):
        x = self.tok(idx)
        for blk in self.blocks:
            x = x + blk(x)
        logits = self.head(x)
        return F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.view(-1))


@style()
class PooledContrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.f, self.p = nn.Embedding(V, D), nn.Sequential(nn.Linear(D, 128), nn.GELU(), nn.Linear(128, D)), nn.Linear(D, D)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, idx):
        x = self.tok(idx)
        x = self.p(self.f(x)).float()
        z = x / x.norm(dim=-1, keepdim=True)
        return self.scale.float().exp() * z @ z.transpose(1, 2)


# Images, sounds, diffusion


@style(images)
class SqueezeFloat(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.fc1, self.fc2, self.o = nn.Conv2d(3, D, 3, padding=1), nn.Conv2d(D, D, 3, padding=1), nn.Conv2d(D, 8, 1), nn.Conv2d(8, D, 1), nn.Linear(D, 10)

    def forward(self, x):
        x = F.relu(self.c1(x))
        s = x.float().mean((2, 3), keepdim=True).to(x.dtype)
        s = torch.sigmoid(self.fc2(F.relu(self.fc1(s))).float())
        x = (x * s).to(x.dtype)
        x = F.relu(self.c2(x))
        return self.o(x.flatten(2).mean(-1))


@style(images)
class UpFloat(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, D, 3, padding=1), nn.Conv2d(D, 3, 3, padding=1)

    def forward(self, x):
        h = F.silu(self.c1(x))
        dtype = h.dtype
        if dtype == torch.bfloat16:
            h = h.to(torch.float32)
        h = F.interpolate(h, scale_factor=2.0, mode="nearest")
        if dtype == torch.bfloat16:
            h = h.to(dtype)
        return self.c2(h)


def timestep_embedding(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(0, half, dtype=torch.float32, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ResBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.c, self.e = nn.GroupNorm(8, D), nn.Conv2d(D, D, 3, padding=1), nn.Linear(D, 2 * D)

    def forward(self, x, emb):
        emb_out = self.e(F.silu(emb)).type(x.dtype)
        scale, shift = emb_out[:, :, None, None].chunk(2, dim=1)
        return x + self.c(F.silu(self.n(x) * (1 + scale) + shift))


@style(lambda: (torch.randn(B, 3, 16, 16), torch.randint(0, 99, (B,))))
class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.dtype_of = nn.Linear(D, D)
        self.inp, self.blocks, self.out = nn.Conv2d(3, D, 3, padding=1), nn.ModuleList([ResBlock() for _ in range(2)]), nn.Conv2d(D, 3, 3, padding=1)

    def forward(self, x, t):
        emb = self.dtype_of(timestep_embedding(t, D).to(self.dtype_of.weight.dtype))
        h = self.inp(x)
        for b in self.blocks:
            h = b(h, emb)
        return self.out(h)


@style(images)
class VectorQuant(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.book, self.dec = nn.Conv2d(3, 16, 3, padding=1), nn.Embedding(32, 16), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x):
        z = self.enc(x).permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, 16).float()
        w = self.book.weight.float()
        d = flat.pow(2).sum(1, keepdim=True) + w.pow(2).sum(1) - 2 * flat @ w.t()
        q = F.embedding(d.argmin(1), w).view(z.shape)
        q = (z + (q - z).detach()).to(x.dtype)
        return self.dec(q.permute(0, 3, 1, 2).contiguous())


@style(lambda: (torch.randn(B, 80, T),))
class LogMel(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.o = nn.Conv1d(80, D, 3, padding=1), nn.Conv1d(D, D, 3, padding=1), nn.Linear(D, 10)

    def forward(self, mel):
        x = torch.log(mel.float().abs().clamp(min=1e-5))
        x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
        x = x.to(self.c1.weight.dtype)
        x = F.gelu(self.c1(x))
        x = F.gelu(self.c2(x)).transpose(1, 2)
        return self.o(x.mean(1))


@style(lambda: (torch.rand(512, 3),))
class FourierField(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("freqs", 2.0 ** torch.arange(6))
        self.l1, self.l2, self.sigma, self.rgb = nn.Linear(3 + 36, 64), nn.Linear(64, 64), nn.Linear(64, 1), nn.Linear(64, 3)

    def embed(self, x):
        a = x[..., None].float() * self.freqs.float()
        a = torch.cat([a.sin(), a.cos()], -1).flatten(-2)
        return torch.cat([x, a.to(x.dtype)], -1)

    def forward(self, x):
        h = F.relu(self.l2(F.relu(self.l1(self.embed(x)))))
        density = F.softplus(self.sigma(h).float())
        alpha = 1.0 - torch.exp(-density)
        return torch.sigmoid(self.rgb(h)).float() * alpha


@style(lambda: (torch.randn(B, 3, 16, 16),))
class CbamFloat(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.sp, self.o = nn.Conv2d(3, D, 3, padding=1), nn.Conv2d(2, 1, 7, padding=3), nn.Conv2d(D, 3, 1)

    def forward(self, x):
        x = F.leaky_relu(self.c1(x), 0.1)
        xf = x.float()
        pooled = torch.cat([xf.mean(1, keepdim=True), xf.amax(1, keepdim=True)], dim=1).to(x.dtype)
        gate = self.sp(pooled).sigmoid()
        return self.o(x * gate)


# Types that other things decide


class OwnType(nn.Module):
    @property
    def dtype(self):
        return next(self.parameters()).dtype


@style()
class PropertyType(OwnType):
    def __init__(self):
        super().__init__()
        self.tok, self.l, self.o = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, V)

    def forward(self, idx):
        t = idx.shape[1]
        pe = torch.zeros(t, D, device=idx.device)
        p = torch.arange(t, device=idx.device, dtype=torch.float32)[:, None]
        w = torch.exp(torch.arange(0, D, 2, device=idx.device).float() * (-math.log(1e4) / D))
        pe = torch.cat([torch.sin(p * w), torch.cos(p * w)], dim=-1) + pe
        x = self.tok(idx) + pe[None].to(self.dtype)
        return self.o(F.gelu(self.l(x)))


@style()
class PositionsLoose(nn.Module):
    """Positions in float32 make all that follows float32, up to a cast."""

    def __init__(self):
        super().__init__()
        self.tok, self.norm, self.l, self.o = nn.Embedding(V, D), nn.LayerNorm(D, elementwise_affine=False), nn.Linear(D, D), nn.Linear(D, V)

    def forward(self, idx):
        pos = torch.linspace(0, 1, idx.shape[1], device=idx.device)
        x = self.tok(idx) + pos[None, :, None]
        x = self.norm(x)
        x = x.to(self.l.weight.dtype)
        return self.o(F.gelu(self.l(x)))


def float_fn(fn):
    def run(x, *args):
        return fn(x.float(), *args).to(x.dtype)

    return run


class Wrapped(nn.Module):
    """A decorator of the code's own casts."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(D, 64), nn.Linear(64, D)

    @staticmethod
    @float_fn
    def act(x):
        return x * torch.tanh(F.softplus(x))

    def forward(self, x):
        return self.b(self.act(self.a(x)))


@style()
class WrappedStack(Stack):
    block = Wrapped


class Residual32(nn.Module):
    """A residual stream that stays in float32."""

    def __init__(self):
        super().__init__()
        self.n, self.a, self.b = nn.LayerNorm(D), nn.Linear(D, 64), nn.Linear(64, D)

    def forward(self, x):
        h = self.n(x.to(self.n.weight.dtype))
        return self.b(F.gelu(self.a(h))).float()


@style()
class FloatStream(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.layers, self.head = nn.Embedding(V, D), nn.ModuleList([Residual32() for _ in range(3)]), nn.Linear(D, V)

    def forward(self, idx):
        residual = self.tok(idx).float()
        for layer in self.layers:
            residual = residual + layer(residual)
        return self.head(residual.to(self.head.weight.dtype))


class Clamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.a, self.b = nn.LayerNorm(D), nn.Linear(D, 128), nn.Linear(64, D)

    def forward(self, x):
        g, u = self.a(self.n(x)).chunk(2, -1)
        g, u = g.float().clamp(max=7.0), u.float().clamp(-7.0, 7.0)
        y = (u + 1) * (g * torch.sigmoid(g * 1.702))
        return self.b(y.type_as(x))


@style()
class OssGlu(Stack):
    block = Clamped


class Entropy(Heads):
    """Nothing is cast: autocast and the parameters decide alone."""

    def forward(self, x):
        q, k, v = self.qkv(x)
        p = F.softmax(q @ k.transpose(-1, -2) * 0.35, dim=-1)
        p = p * torch.sigmoid(p.sum(-1, keepdim=True) - p.mean(-1, keepdim=True))
        return self.merge(p @ v)


@style()
class Castless(Stack):
    block = Entropy


def runs(build, inputs):
    """Whether the model runs with bfloat16 parameters on the processor."""
    try:
        build().to(torch.bfloat16)(*[t.to(torch.bfloat16) if t.is_floating_point() else t for t in inputs])
    except RuntimeError as e:
        print(build.__name__, str(e).splitlines()[0], file=sys.stderr)
        return False
    return True


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    data, figures = io.BytesIO(), {}
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:

        def add(path, content):
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        for name in sys.argv[2:] or MODELS:
            build, inputs = MODELS[name], INPUTS[name]
            figures[name] = {p: saved(build(), inputs(), p) for p in PRECISIONS if p != "bf16" or runs(build, inputs())}
            print(name, figures[name], flush=True)
            add(name + ".onnx", exported(build(), inputs()))
        add("saved.json", json.dumps(figures, indent=1).encode())
    with open(sys.argv[1], "wb") as f:
        subprocess.run(["xz", "-6e", "-c"], input=data.getvalue(), stdout=f, check=True)


if __name__ == "__main__":
    main()
