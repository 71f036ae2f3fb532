"""More habits of plain PyTorch code, written before memplan was run on any of them: how well lifetimes are told of code that nobody looked at.

scripts/pytorch/lines_reference.py exports and runs them as "unseen/NAME". planner/testdata/lines_unseen.first.jsonl has what memplan told of them then.
"""
import contextlib
import dataclasses
import functools
import typing

import torch
import torch.nn as nn
import torch.nn.functional as F

STYLES = {}


def style(*shape):
    """Register a module class with the shape of its input behind the batch."""

    def add(cls):
        STYLES[cls.__name__] = (cls, shape)
        return cls

    return add


def conv(i, o, k=3, **kw):
    return nn.Conv2d(i, o, k, padding=k // 2, **kw)


@dataclasses.dataclass
class Encoded:
    features: torch.Tensor
    mask: torch.Tensor
    hidden: typing.Optional[list] = None


class EncoderOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 16)

    def forward(self, x):
        h1 = F.gelu(self.l1(x))
        h2 = F.gelu(self.l2(h1))
        return Encoded(features=self.l3(h2), mask=h2.mean(-1), hidden=[h1, h2])


@style(32, 16)
class DataclassOut(nn.Module):
    """A dataclass whose fields nobody reads stays while its variable does."""

    def __init__(self):
        super().__init__()
        self.encoder = EncoderOut()
        self.head = nn.Linear(16, 128)

    def forward(self, x):
        encoded = self.encoder(x)
        y = self.head(encoded.features)
        return torch.tanh(y) * encoded.mask.unsqueeze(-1)


class Pair(typing.NamedTuple):
    out: torch.Tensor
    attn: torch.Tensor


class PairAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        attn = torch.softmax(q @ k.transpose(1, 2) / 4.0, dim=-1)
        return Pair(out=self.o(attn @ v), attn=attn)


@style(48, 16)
class NamedTupleOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([PairAttention() for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            result = layer(x)
            x = x + result.out
        return x


class DictOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(3, 16), conv(16, 16), conv(16, 16)

    def forward(self, x):
        low = F.relu(self.a(x))
        mid = F.relu(self.b(low))
        high = self.c(mid)
        return {"low": low, "mid": mid, "high": high}


@style(3, 16, 16)
class DictOfFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = DictOut()
        self.p1, self.p2 = conv(16, 32), conv(32, 8)

    def forward(self, x):
        feats = self.backbone(x)
        y = self.p1(feats["high"])
        y = F.interpolate(y, scale_factor=2)
        return self.p2(y)


@style(16, 32)
class Generator(nn.Module):
    """Layers' results from a generator function."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])

    def run(self, x):
        for layer in self.layers:
            x = F.silu(layer(x))
            yield x

    def forward(self, x):
        total = 0
        for h in self.run(x):
            total = total + h.mean(dim=1, keepdim=True)
        return total


@style(16, 32)
class WithBlocks(nn.Module):
    """Context managers around parts of forward."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        with contextlib.nullcontext():
            h = self.a(x)
            g = F.relu(h)
        with torch.profiler.record_function("b") if False else contextlib.nullcontext():
            y = self.b(g)
            y = y.softmax(-1)
        return self.c(y)


@style(16, 32)
class Walrus(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 96), nn.Linear(96, 32)

    def forward(self, x):
        if (h := self.a(x)).shape[-1] > 10:
            h2 = F.gelu(h)
            y = self.b(h2)
        return y + (z := torch.sigmoid(y)) * z


@style(8, 16, 16)
class Swap(nn.Module):
    """Two streams that change places."""

    def __init__(self):
        super().__init__()
        self.f, self.g = nn.ModuleList([conv(4, 4) for _ in range(3)]), nn.ModuleList([conv(4, 4) for _ in range(3)])

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        for f, g in zip(self.f, self.g):
            a, b = b + torch.tanh(f(a)), a
            b = b * torch.sigmoid(g(a))
        return torch.cat((a, b), dim=1)


@style(8, 16, 16)
class InplaceOps(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(8, 16), conv(16, 16), conv(16, 8)

    def forward(self, x):
        y = self.a(x)
        y.relu_()
        z = self.b(y)
        z.add_(y).mul_(0.5)
        F.relu(z, inplace=True)
        w = self.c(z)
        w *= 2
        w = w.clamp_(0, 1)
        return w


@style(24, 16)
class KeywordCalls(nn.Module):
    """Modules called with keyword arguments, one a line."""

    def __init__(self):
        super().__init__()
        self.attn = Attn()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.fc1, self.fc2 = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, hidden_states):
        residual = hidden_states
        hidden_states = self.norm1(hidden_states)
        hidden_states, weights = self.attn(
            hidden_states=hidden_states,
            scale=0.25,
            output_attentions=True,
        )
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.norm2(hidden_states)
        hidden_states = self.fc2(F.gelu(self.fc1(hidden_states)))
        hidden_states = residual + hidden_states
        outputs = (hidden_states,)
        outputs += (weights,)
        return outputs[0]


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, hidden_states, scale=1.0, output_attentions=False):
        query_states = self.q(hidden_states)
        key_states = self.k(hidden_states)
        value_states = self.v(hidden_states)
        weights = torch.matmul(query_states, key_states.transpose(-1, -2)) * scale
        weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query_states.dtype)
        output = torch.matmul(weights, value_states)
        if not output_attentions:
            weights = None
        return output, weights


@style(16, 32)
class SelfState(nn.Module):
    """State kept in attributes between methods."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 16)

    def encode(self):
        self.h = F.relu(self.a(self.x))
        self.h = F.relu(self.b(self.h))

    def forward(self, x):
        self.x = x
        self.encode()
        out = self.c(self.h)
        return out.exp()


@style(8, 16, 16)
class LambdaBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = conv(8, 8), conv(8, 8)

    def forward(self, x):
        act = lambda t: t * torch.sigmoid(t)
        pre = lambda t, m: act(m(t))
        y = pre(x, self.a)
        z = pre(y, self.b)
        return torch.cat([y, z], 1)


@style(16, 24)
class Reduce(nn.Module):
    """functools.reduce over modules."""

    def __init__(self):
        super().__init__()
        self.fs = nn.ModuleList([nn.Linear(24, 24) for _ in range(5)])

    def forward(self, x):
        y = functools.reduce(lambda h, f: torch.tanh(f(h)), self.fs, x)
        return y - x


@style(8, 16, 16)
class Recursive(nn.Module):
    """An hourglass that calls itself."""

    def __init__(self, n=3):
        super().__init__()
        self.up1, self.low1, self.low3 = conv(8, 8), conv(8, 8), conv(8, 8)
        self.low2 = Recursive(n - 1) if n > 1 else conv(8, 8)

    def forward(self, x):
        up1 = self.up1(x)
        pool1 = F.max_pool2d(x, 2)
        low1 = self.low1(pool1)
        low2 = self.low2(low1)
        low3 = self.low3(low2)
        up2 = F.interpolate(low3, scale_factor=2, mode="nearest")
        return up1 + up2


@style(3, 32, 32)
class FPN(nn.Module):
    """Results put at the front of a list."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([conv(3, 8, stride=2), conv(8, 16, stride=2), conv(16, 32, stride=2)])
        self.laterals = nn.ModuleList([nn.Conv2d(c, 16, 1) for c in (8, 16, 32)])
        self.smooth = nn.ModuleList([conv(16, 16) for _ in range(3)])
        self.head = conv(16, 4)

    def forward(self, x):
        cs = []
        for stage in self.stages:
            x = F.relu(stage(x))
            cs.append(x)
        last = self.laterals[-1](cs[-1])
        results = [self.smooth[-1](last)]
        for i in range(len(cs) - 2, -1, -1):
            lateral = self.laterals[i](cs[i])
            top_down = F.interpolate(last, size=lateral.shape[-2:], mode="nearest")
            last = lateral + top_down
            results.insert(0, self.smooth[i](last))
        return [self.head(r) for r in results][0]


@style(8, 32)
class HRBranches(nn.Module):
    """Branches in lists that are made anew each stage."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)]) for _ in range(3)])
        self.fuse = nn.ModuleList([nn.Linear(64, 32) for _ in range(3)])

    def forward(self, x):
        xs = [x, torch.relu(x)]
        for stage, fuse in zip(self.stages, self.fuse):
            ys = []
            for i, branch in enumerate(stage):
                ys.append(branch(xs[i]))
            fused = fuse(torch.cat(ys, -1))
            xs = [ys[0] + fused, ys[1] * fused]
        return xs[0] - xs[1]


@style(12, 32)
class AuxHeads(nn.Module):
    """Every layer's output goes to a head, all are returned."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
        self.heads = nn.ModuleList([nn.Linear(32, 8) for _ in range(4)])

    def forward(self, x):
        intermediate = []
        for layer in self.layers:
            x = x + F.gelu(layer(x))
            intermediate.append(x)
        hs = torch.stack(intermediate)
        outs = [head(h) for head, h in zip(self.heads, hs)]
        return outs[-1], torch.stack(outs[:-1])


@style(20, 16)
class LSTMByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.x2h, self.h2h, self.out = nn.Linear(16, 128), nn.Linear(32, 128), nn.Linear(32, 4)

    def forward(self, x):
        b, t, _ = x.size()
        h = torch.zeros(b, 32, device=x.device)
        c = torch.zeros(b, 32, device=x.device)
        for i in range(t):
            gates = self.x2h(x[:, i, :]) + self.h2h(h)
            ig, fg, gg, og = gates.chunk(4, 1)
            ig, fg, og = torch.sigmoid(ig), torch.sigmoid(fg), torch.sigmoid(og)
            gg = torch.tanh(gg)
            c = fg * c + ig * gg
            h = og * torch.tanh(c)
        return self.out(h)


@style(8, 64)
class WaveBlocks(nn.Module):
    """Skips added up in a loop, a residual whose last result nobody needs."""

    def __init__(self):
        super().__init__()
        self.dil = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=2**i, padding=2**i) for i in range(3)])
        self.res, self.skip = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(3)]), nn.ModuleList([nn.Conv1d(8, 16, 1) for _ in range(3)])
        self.end = nn.Conv1d(16, 4, 1)

    def forward(self, x):
        skips = 0
        for dil, res, skip in zip(self.dil, self.res, self.skip):
            y = dil(x)[..., : x.size(-1)]
            a, b = y.chunk(2, dim=1)
            z = torch.tanh(a) * torch.sigmoid(b)
            skips = skips + skip(z)
            x = x + res(z)
        return self.end(F.relu(skips))


@style(3, 32, 32)
class Siamese(nn.Module):
    """One network on two inputs."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(conv(3, 8), nn.ReLU(), nn.MaxPool2d(2), conv(8, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def one(self, x):
        return self.net(x)

    def forward(self, x):
        left = self.one(x)
        right = self.one(x.flip(-1))
        distance = torch.abs(left - right)
        return distance.sum(1)


@style(16, 24)
class TryFinally(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(24, 72), nn.Linear(72, 24)

    def forward(self, x):
        try:
            y = self.a(x)
            y = F.leaky_relu(y, 0.1)
        finally:
            done = True
        try:
            z = self.b(y)
        except RuntimeError:
            z = y
        return z if done else y


@style(16, 24)
class StarArgs(nn.Module):
    """*args and **kwargs passed on."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.mix = nn.Linear(24, 48), nn.Linear(24, 48), Mixer()

    def forward(self, x, *rest, **kw):
        parts = [self.a(x), self.b(x)]
        opts = {"scale": parts[0].mean(-1, keepdim=True)}
        return self.mix(*parts, **opts)


class Mixer(nn.Module):
    def forward(self, a, b, scale=None):
        a = F.relu(a)
        b = F.relu(b)
        out = a + b
        if scale is not None:
            out = out * scale
        return out.log1p()


@style(16, 16, 16)
class Ghost(nn.Module):
    """Cheap features concatenated, cut off by a slice."""

    def __init__(self):
        super().__init__()
        self.primary, self.cheap = conv(16, 12, 1), conv(12, 12, 3, groups=12)
        self.se = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(20, 4, 1), nn.ReLU(), nn.Conv2d(4, 20, 1), nn.Hardsigmoid())

    def forward(self, x):
        x1 = self.primary(x)
        x2 = self.cheap(x1)
        out = torch.cat([x1, x2], dim=1)
        out = out[:, :20]
        return out * self.se(out)


@style(10, 32)
class MoE(nn.Module):
    """Experts stacked and weighted with an einsum."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(4)])
        self.gate = nn.Linear(32, 4)

    def forward(self, x):
        weights = torch.softmax(self.gate(x), dim=-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-2)
        mixed = torch.einsum("bse,bsed->bsd", weights, outputs)
        return mixed + x


@style(24, 16)
class Performer(nn.Module):
    """Linear attention with helper functions of its own."""

    def __init__(self):
        super().__init__()
        self.to_qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    @staticmethod
    def feature(x):
        return F.elu(x) + 1

    def attend(self, q, k, v):
        q, k = self.feature(q), self.feature(k)
        kv = torch.einsum("bnd,bne->bde", k, v)
        z = 1 / (torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6)
        return torch.einsum("bnd,bde,bn->bne", q, kv, z)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, -1)
        return self.out(self.attend(q, k, v)) + x


@style(3, 32, 32)
class Inception(nn.Module):
    """Branches in numbered variables."""

    def __init__(self):
        super().__init__()
        self.b1, self.b2a, self.b2b, self.b3 = conv(3, 8, 1), conv(3, 8, 1), conv(8, 8), conv(3, 8, 5)
        self.bn = nn.BatchNorm2d(27)

    def _forward(self, x):
        branch1x1 = self.b1(x)
        branch3x3 = self.b2a(x)
        branch3x3 = self.b2b(branch3x3)
        branch5x5 = F.relu(self.b3(x), inplace=True)
        branch_pool = F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)
        outputs = [branch1x1, branch3x3, branch5x5, branch_pool]
        return outputs

    def forward(self, x):
        outputs = self._forward(x)
        return self.bn(torch.cat(outputs, 1))


@style(16, 24)
class Conditional(nn.Module):
    """Conditional expressions and boolean operators."""

    def __init__(self):
        super().__init__()
        self.pre, self.a, self.post = None, nn.Linear(24, 96), nn.Linear(96, 24)

    def forward(self, x, mask=None):
        h = self.pre(x) if self.pre else x
        h = self.a(h)
        m = mask if mask is not None else torch.ones_like(h)
        h = h * m
        h = h and self.post(h) if False else self.post(h)
        return h.relu() if h.dim() > 2 else h


@style(3, 32, 32)
class UNetDict(nn.Module):
    """Skips in a dict, taken out by key."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleDict({"a": conv(3, 8), "b": conv(8, 16), "c": conv(16, 32)})
        self.up = nn.ModuleDict({"c": conv(64, 16), "b": conv(32, 8), "a": conv(16, 4)})

    def forward(self, x):
        saved = {}
        for name, block in self.down.items():
            x = saved[name] = F.relu(block(x))
            x = F.avg_pool2d(x, 2)
        x = F.pad(x, (0, 0, 0, 0)) + 1
        for name in ("c", "b", "a"):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            if name == "c":
                x = torch.cat((x, saved.pop(name)), 1)
            else:
                x = torch.cat((x, saved.pop(name)), 1)
            x = F.relu(self.up[name](x))
        return x


@style(3, 32, 32)
class UNetTuple(nn.Module):
    """Skips collected in a tuple and iterated backwards."""

    def __init__(self):
        super().__init__()
        self.enc = nn.ModuleList([conv(3, 8), conv(8, 16), conv(16, 32)])
        self.dec = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(32, 8, 2, 2)])
        self.out = conv(16, 2)

    def encode(self, x):
        res_samples = ()
        for i, e in enumerate(self.enc):
            if i:
                x = F.max_pool2d(x, 2)
            x = F.silu(e(x))
            res_samples += (x,)
        return x, res_samples

    def forward(self, x):
        x, skips = self.encode(x)
        for d, s in zip(self.dec, reversed(skips[:-1])):
            x = torch.cat([d(x), s], dim=1)
        return self.out(x)


@style(16, 32)
class Semicolons(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        u = self.w1(x); v = self.w2(x)
        if True: u = F.silu(u)
        z = u * v; return self.w3(z)


@style(16, 32)
class Chains(nn.Module):
    """Methods on methods."""

    def __init__(self):
        super().__init__()
        self.fc, self.fc2 = nn.Linear(32, 128), nn.Linear(64, 32)

    def forward(self, x):
        y = self.fc(x).view(x.shape[0], 16, 2, 64).transpose(1, 2).contiguous().pow(2).mean(1).sqrt()
        return (self.fc2(y)
                .softmax(dim=-1)
                .mul(2)
                .sub(1)
                .tanh())


class Base(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.body = nn.Linear(d, 2 * d)

    def forward(self, x):
        h = self.body(x)
        return F.relu(h)


@style(16, 32)
class Derived(Base):
    """super().forward and a method overridden."""

    def __init__(self):
        super().__init__()
        self.tail = nn.Linear(64, 8)

    def forward(self, x):
        feats = super().forward(x)
        pooled = feats.mean(dim=1)
        scale = pooled.sigmoid()
        return self.tail(feats * scale.unsqueeze(1))


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(x, **kwargs) + x


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x, **kwargs):
        x = self.norm(x)
        return self.fn(x, **kwargs)


@style(24, 16)
class Wrappers(nn.Module):
    """Modules around modules."""

    def __init__(self):
        super().__init__()
        ff = lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.net = nn.Sequential(*[Residual(PreNorm(16, ff())) for _ in range(3)])

    def forward(self, x):
        return self.net(x)


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.mid, self.head = conv(3, 8), conv(8, 16), conv(16, 8)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(self.mid(x))
        return self.head(x)


@style(3, 24, 24)
class FeatureList(nn.Module):
    """A backbone that returns a list of its features, of which some are used."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([conv(3, 8), conv(8, 8), conv(8, 8), conv(8, 8)])
        self.head = conv(16, 4)

    def features(self, x):
        out = []
        for layer in self.layers:
            x = F.relu(layer(x))
            out.append(x)
        return out

    def forward(self, x):
        f = self.features(x)
        y = torch.cat([f[1], f[3]], 1)
        y = self.head(y)
        return y.sigmoid()


class StageOuts(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.ModuleList([conv(3, 8), conv(8, 16), conv(16, 16)])

    def forward(self, x):
        outs = []
        for m in self.s:
            x = F.relu(m(x))
            outs.append(x)
        return outs


@style(3, 24, 24)
class UsesLast(nn.Module):
    """A list of features of which the last alone is used."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = StageOuts(), nn.Sequential(conv(16, 32), nn.ReLU(inplace=True), conv(32, 4))

    def forward(self, x):
        feats = self.backbone(x)
        out = self.head(feats[-1])
        out = F.interpolate(out, scale_factor=2, mode="bilinear", align_corners=False)
        return out


@style(16, 24)
class Aug(nn.Module):
    """x += y of values that others still name."""

    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(24, 24) for _ in range(4)])

    def forward(self, x):
        acc = self.l[0](x)
        for layer in self.l[1:]:
            h = layer(acc)
            acc = acc + h
            h += 1
            acc *= h
        return acc


@style(16, 24)
class Assigned(nn.Module):
    """Slices written to."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x):
        out = torch.zeros(x.shape[0], 16, 48, device=x.device)
        a = self.a(x)
        out[..., :24] = a
        b = self.b(torch.tanh(a))
        out[..., 24:] = b
        return out * 2


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


@style(24, 16)
class AdaLN(nn.Module):
    """The block of a DiT."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16, elementwise_affine=False), nn.LayerNorm(16, elementwise_affine=False)
        self.mod = nn.Sequential(nn.SiLU(), nn.Linear(16, 96))
        self.attn, self.mlp = Attn(), nn.Sequential(nn.Linear(16, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 16))

    def forward(self, x):
        c = x.mean(1)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.mod(c).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa))[0]
        x = x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))
        return x


@style(16, 32)
class Memory(nn.Module):
    """The caller's variable is given the callee's result."""

    def __init__(self):
        super().__init__()
        self.e1, self.e2, self.d = Base(32), Base(64), nn.Linear(128, 16)

    def forward(self, src):
        memory = self.e1(src)
        memory = self.e2(memory)
        tgt = self.d(memory)
        logits = torch.matmul(tgt, tgt.transpose(1, 2))
        attn = logits.softmax(-1)
        return attn @ tgt


@style(6, 16, 16)
class DictComp(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"cls": conv(6, 8), "box": conv(6, 12), "obj": conv(6, 4)})

    def forward(self, x):
        out = {name: head(x) for name, head in self.heads.items()}
        out = {k: v.sigmoid() for k, v in out.items()}
        y = torch.cat(list(out.values()), dim=1)
        return y.flatten(2).transpose(1, 2).contiguous()


@style(32, 16)
class Lookup(nn.Module):
    """Positions and masks made on the way."""

    def __init__(self):
        super().__init__()
        self.pos = nn.Embedding(32, 16)
        self.attn, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))

    def forward(self, x):
        B, T, C = x.shape
        pos_emb = self.pos(torch.arange(T, device=x.device))
        x = x + pos_emb
        q, k, v = self.attn(self.norm(x)).split(C, dim=-1)
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        out = wei @ v
        return out


@style(8, 20, 20)
class SPP(nn.Module):
    """Pools of pools in one list literal, as YOLO does."""

    def __init__(self):
        super().__init__()
        self.cv1, self.cv2 = conv(8, 4, 1), conv(16, 8, 1)
        self.m = nn.MaxPool2d(5, 1, 2)

    def forward(self, x):
        x = self.cv1(x)
        y1 = self.m(x)
        y2 = self.m(y1)
        return self.cv2(torch.cat((x, y1, y2, self.m(y2)), 1))


@style(8, 20, 20)
class C2f(nn.Module):
    """A list that grows from its own last element."""

    def __init__(self):
        super().__init__()
        self.cv1, self.cv2 = conv(8, 8, 1), conv(20, 8, 1)
        self.m = nn.ModuleList([nn.Sequential(conv(4, 4), nn.SiLU(), conv(4, 4)) for _ in range(3)])

    def forward(self, x):
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class Cell:
    """A helper that is no module."""

    def __init__(self, lin):
        self.lin = lin

    def __call__(self, x, h):
        z = torch.cat([x, h], -1)
        g = torch.sigmoid(self.lin(z))
        return g * h + (1 - g) * x


@style(8, 16)
class PlainClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(32, 16)

    def forward(self, x):
        cell = Cell(self.lin)
        h = torch.zeros_like(x)
        for _ in range(3):
            h = cell(x, h)
        return h


@style(3, 32, 32)
class VAE(nn.Module):
    """Encoder, reparameterization, decoder in methods, several results."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(conv(3, 8, stride=2), nn.LeakyReLU(), conv(8, 16, stride=2), nn.LeakyReLU())
        self.mu, self.var = nn.Linear(1024, 32), nn.Linear(1024, 32)
        self.di, self.dec = nn.Linear(32, 1024), nn.Sequential(nn.ConvTranspose2d(16, 8, 2, 2), nn.LeakyReLU(), nn.ConvTranspose2d(8, 3, 2, 2), nn.Tanh())

    def encode(self, input):
        result = self.enc(input)
        result = torch.flatten(result, start_dim=1)
        mu = self.mu(result)
        log_var = self.var(result)
        return [mu, log_var]

    def decode(self, z):
        result = self.di(z)
        result = result.view(-1, 16, 8, 8)
        result = self.dec(result)
        return result

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return std * 0.3 + mu

    def forward(self, input):
        mu, log_var = self.encode(input)
        z = self.reparameterize(mu, log_var)
        return [self.decode(z), input, mu, log_var]


class ScanRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.h = nn.Linear(24, 32), nn.Linear(32, 32)

    def forward(self, x):
        xs = self.i(x)
        h, ys = torch.zeros_like(xs[:, 0]), []
        for x_t in xs.unbind(1):
            h = torch.tanh(x_t + self.h(h))
            ys += [h]
        return torch.stack(ys, 1), (h, xs)


@style(16, 24)
class TwoOuts(nn.Module):
    """An underscore for what nobody wants."""

    def __init__(self):
        super().__init__()
        self.lstm = ScanRNN()
        self.fc = nn.Linear(32, 96)

    def forward(self, x):
        out, (hn, _) = self.lstm(x)
        last = out[:, -1, :]
        y = self.fc(F.dropout(out, 0.1, self.training))
        _, idx = y.max(-1)
        return y * last.mean(-1)[:, None, None]


@style(8, 16, 16)
class DropPathStyle(nn.Module):
    """ConvNeXt's block: the input named, the branch rebound on and on."""

    def __init__(self):
        super().__init__()
        self.dw = conv(8, 8, 7, groups=8)
        self.norm, self.pw1, self.pw2 = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.gamma = nn.Parameter(torch.ones(8))

    def forward(self, x):
        input = x
        x = self.dw(x)
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.pw1(x)
        x = F.gelu(x)
        x = self.pw2(x)
        if self.gamma is not None:
            x = self.gamma * x
        x = x.permute(0, 3, 1, 2)
        x = input + x
        return x


@style(3, 32, 32)
class ASPPStyle(nn.Module):
    """A list appended to in a loop of convolutions."""

    def __init__(self):
        super().__init__()
        self.stem = conv(3, 8)
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=d, dilation=d) for d in (1, 2, 4)])
        self.pool, self.project = nn.Conv2d(8, 8, 1), nn.Sequential(conv(32, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x):
        x = self.stem(x)
        _res = []
        for c in self.convs:
            _res.append(F.relu(c(x)))
        size = x.shape[-2:]
        g = F.adaptive_avg_pool2d(x, 1)
        g = F.relu(self.pool(g))
        _res.append(F.interpolate(g, size=size, mode="nearest"))
        res = torch.cat(_res, dim=1)
        return self.project(res)


@style(16, 32)
class EncoderDecoder(nn.Module):
    """Layers called with the memory again and again, each keeps intermediate names."""

    def __init__(self):
        super().__init__()
        self.enc = nn.ModuleList([Base(32), nn.Linear(64, 32)])
        self.dec = nn.ModuleList([Cross() for _ in range(2)])
        self.out = nn.Linear(32, 64)

    def forward(self, x):
        mem = x
        for layer in self.enc:
            mem = layer(mem)
        output = x
        for mod in self.dec:
            output, w = mod(output, mem)
        return self.out(output)


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.norm = nn.Linear(32, 32), nn.Linear(32, 64), nn.LayerNorm(32)

    def forward(self, tgt, memory):
        q = self.q(tgt)
        k, v = self.kv(memory).chunk(2, -1)
        w = (q @ k.mT).softmax(-1)
        tgt2 = w @ v
        tgt = tgt + tgt2
        tgt = self.norm(tgt)
        return tgt, w
