"""Habits of plain PyTorch code that keep results beyond the line that computes them, written before memplan was run on any of them.

scripts/pytorch/lines_reference.py exports and runs them as "kept/NAME". planner/testdata/lines_kept.first.jsonl has what memplan told of them then.
"""
import collections
import contextlib
import dataclasses
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


def linears(*widths):
    return nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))


@dataclasses.dataclass
class Stages:
    last: torch.Tensor
    all: list = dataclasses.field(default_factory=list)
    gate: typing.Optional[torch.Tensor] = None


class StagesEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = linears(32, 64, 64, 64)
        self.gate = nn.Linear(64, 64)

    def forward(self, x):
        stages = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            stages.append(x)
        gate = torch.sigmoid(self.gate(x))
        return Stages(last=x * gate, all=stages, gate=gate)


@style(40, 32)
class StagesInDataclass(nn.Module):
    """A dataclass with a list of hidden states, of which the head reads the last."""

    def __init__(self):
        super().__init__()
        self.encoder, self.wide, self.head = StagesEncoder(), nn.Linear(64, 256), nn.Linear(256, 8)

    def forward(self, x):
        out = self.encoder(x)
        y = F.gelu(self.wide(out.last))
        return self.head(y)


class Scores(typing.NamedTuple):
    out: torch.Tensor
    scores: torch.Tensor
    probs: torch.Tensor


class ScoringAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(1, 2)
        probs = F.softmax(scores, dim=-1)
        return Scores(self.o(probs @ v), scores, probs)


@style(96, 16)
class ScoresOfBlocks(nn.Module):
    """NamedTuples of attention that a list takes over blocks; the result is the last one's."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(ScoringAttention(16) for _ in range(3))

    def forward(self, x):
        record = []
        for block in self.blocks:
            result = block(x)
            record.append(result.probs)
            x = x + result.out
        return x.mean(1)


@style(64, 16)
class LastAttention(nn.Module):
    """An attribute names the probabilities until the next step."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.last_attn = None

    def forward(self, x):
        attn = torch.softmax(self.q(x) @ self.k(x).transpose(-2, -1), -1)
        self.last_attn = attn
        return attn @ self.v(x)


@style(64, 16)
class StoredFeature(nn.Module):
    """An attribute is assigned on the line of the call."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 128), nn.Linear(128, 128), nn.Linear(128, 16)

    def forward(self, x):
        self.feature = torch.relu(self.a(x))
        y = torch.relu(self.b(self.feature))
        return self.c(y)


@style(32, 32)
class HooksThatAppend(nn.Module):
    """A forward hook appends what a layer returns to a list of the module."""

    def __init__(self):
        super().__init__()
        self.layers = linears(32, 64, 96, 64, 32)
        self.seen = []
        self.layers[1].register_forward_hook(lambda m, args, out: self.seen.append(out))

    def forward(self, x):
        self.seen.clear()
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@style(32, 32)
class DictCache(nn.Module):
    """A dict keeps every stage by name, two of which are read again."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleDict({n: nn.Linear(32, 32) for n in ("low", "mid", "high", "top")})

    def forward(self, x):
        cache = {}
        for name, stage in self.stages.items():
            x = F.silu(stage(x))
            cache[name] = x
        return cache["low"] + cache["top"]


@style(48, 32)
class ClosureScale(nn.Module):
    """A nested function reads a variable of the forward around it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.gate = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(32, 64)

    def forward(self, x):
        g = torch.sigmoid(self.gate(x))

        def scaled(t):
            return t * g

        y = scaled(self.a(x))
        y = torch.relu(self.b(y))
        z = y.exp()
        return z.sum(-1)


@style(32, 32)
class GeneratorOfStages(nn.Module):
    """A generator yields stages; the loop's variable names each."""

    def __init__(self):
        super().__init__()
        self.layers = linears(32, 64, 64, 64)

    def stages(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
            yield x

    def forward(self, x):
        total = 0
        for stage in self.stages(x):
            total = total + stage.mean(-1)
        return total


@style(48, 24)
class DefaultArgument(nn.Module):
    """A lambda holds a tensor by a default argument."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(24, 96), nn.Linear(96, 96), nn.Linear(96, 24)

    def forward(self, x):
        h = self.a(x).relu()
        back = lambda t, skip=h: t + skip
        h = self.b(h).relu()
        h = back(h)
        return self.c(h)


@style(48, 24)
class DelBetween(nn.Module):
    """del on lines of its own, behind what is read last."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(24, 200), nn.Linear(24, 200), nn.Linear(200, 200), nn.Linear(200, 8)

    def forward(self, x):
        left = self.a(x)
        right = self.b(x)
        both = left * right
        del left, right
        h = torch.relu(self.c(both))
        del both
        h = torch.exp(h)
        return self.d(h)


@style(48, 24)
class NameReused(nn.Module):
    """One name for everything, and another that keeps the first."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(24, 120), nn.Linear(120, 120), nn.Linear(120, 24)

    def forward(self, x):
        identity = x
        x = self.a(x)
        x = F.gelu(x)
        x = self.b(x)
        x = F.gelu(x)
        x = self.c(x)
        x = x + identity
        return x


@style(24, 24)
class EarlyExit(nn.Module):
    """Branches on settings return early; a helper variable stays."""

    def __init__(self, deep=True, aux=False):
        super().__init__()
        self.deep, self.aux = deep, aux
        self.a, self.b, self.c = nn.Linear(24, 96), nn.Linear(96, 96), nn.Linear(96, 8)

    def forward(self, x):
        feat = torch.relu(self.a(x))
        if self.aux:
            return feat.mean(1), feat
        pooled = feat.amax(1)
        if not self.deep:
            return self.c(pooled)
        feat2 = torch.relu(self.b(feat))
        return self.c(feat2.mean(1) + pooled)


@style(32, 24)
class ContextManagers(nn.Module):
    """Code within autocast(enabled=False), nullcontext and no_grad."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(24, 96), nn.Linear(96, 96), nn.Linear(96, 24)

    def forward(self, x):
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True)
        with contextlib.nullcontext():
            h = torch.relu(self.a(x / (scale + 1)))
            h = torch.relu(self.b(h))
        return self.c(h) * scale


class LayerWithState(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, states):
        h = F.gelu(self.up(x))
        states.append(h)
        return x + self.down(h)


@style(32, 24)
class ListPassedDown(nn.Module):
    """Layers append to a list that their caller gave them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(LayerWithState(24) for _ in range(4))

    def forward(self, x):
        states = []
        for layer in self.layers:
            x = layer(x, states)
        return x


class KVBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(x).split(x.shape[-1], dim=-1)
        out = torch.softmax(q @ k.mT, -1) @ v
        return x + self.o(out), (k, v)


@style(40, 32)
class KVTuples(nn.Module):
    """Blocks return a cache of views beside their result; a tuple grows by it."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(KVBlock(32) for _ in range(3))

    def forward(self, x):
        past = ()
        for block in self.blocks:
            x, kv = block(x)
            past += (kv,)
        return x


class TwoOut(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, y):
        x = x + torch.tanh(self.a(y))
        y = y + torch.tanh(self.b(x))
        return x, y


@style(40, 64)
class TwoStreams(nn.Module):
    """Two streams, of which the second's last update nobody reads."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(TwoOut(64) for _ in range(4))

    def forward(self, x):
        y = x.flip(1)
        for layer in self.layers:
            x, y = layer(x, y)
        return x.mean(1)


@style(32, 48)
class SideOutputs(nn.Module):
    """Heads of all stages are computed, and the last is returned."""

    def __init__(self):
        super().__init__()
        self.stages = linears(48, 48, 48, 48)
        self.heads = nn.ModuleList(nn.Linear(48, 96) for _ in range(3))

    def forward(self, x):
        outputs = []
        for stage, head in zip(self.stages, self.heads):
            x = torch.relu(stage(x))
            outputs.append(head(x))
        return outputs[-1]


@style(32, 48)
class OrderedResults(nn.Module):
    """An OrderedDict of results; a property of the result is read."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(48, 96), nn.Linear(96, 96), nn.Linear(96, 12)

    def forward(self, x):
        out = collections.OrderedDict()
        out["a"] = F.relu(self.a(x))
        out["b"] = F.relu(self.b(out["a"]))
        out["c"] = self.c(out["b"])
        return list(out.values())[-1]


@style(3, 24, 24)
class PoppedSkips(nn.Module):
    """A stack of skips that the way up pops."""

    def __init__(self):
        super().__init__()
        c = lambda i, o: nn.Conv2d(i, o, 3, padding=1)
        self.down, self.up, self.head = nn.ModuleList([c(3, 8), c(8, 16), c(16, 32)]), nn.ModuleList([c(48, 16), c(24, 8)]), c(8, 2)

    def forward(self, x):
        skips = []
        for i, layer in enumerate(self.down):
            x = torch.relu(layer(x))
            if i < 2:
                skips.append(x)
                x = F.max_pool2d(x, 2)
        for layer in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = torch.cat([x, skips.pop()], 1)
            x = torch.relu(layer(x))
        return self.head(x)


@style(32, 32)
class TryFinally(nn.Module):
    """try with a finally, and a variable of the with line."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(32, 128), nn.Linear(128, 128), nn.Linear(128, 4)

    def forward(self, x):
        try:
            h = self.a(x)
            g = torch.sigmoid(h)
            h = h * g
        finally:
            self.calls = 1
        h = self.b(h)
        return self.c(torch.tanh(h))


class Swap(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f, self.g = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, a, b):
        a, b = b, a + F.silu(self.f(b))
        a, b = b, a + F.silu(self.g(b))
        return a, b


@style(32, 64)
class SwappedNames(nn.Module):
    """Tuple assignments that exchange names; a reversible network's code."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Swap(32) for _ in range(3))

    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        for layer in self.layers:
            a, b = layer(a, b)
        return torch.cat([a, b], -1)


class AverageAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, need_weights=True):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
        out = self.o((weights @ v).transpose(1, 2).reshape(b, n, d))
        if need_weights:
            return out, weights.mean(1)
        return out, None


@style(64, 32)
class AveragedWeights(nn.Module):
    """Averaged attention weights that nobody reads."""

    def __init__(self):
        super().__init__()
        self.attn, self.up, self.down = AverageAttention(32, 4), nn.Linear(32, 256), nn.Linear(256, 32)

    def forward(self, x):
        a, w = self.attn(x)
        x = x + a
        h = F.gelu(self.up(x))
        return self.down(h)


@style(32, 32)
class Conditionals(nn.Module):
    """Conditional expressions and chained comparisons with tensors as defaults."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(32, 96), nn.Linear(96, 96), nn.Linear(96, 32)
        self.skip = None

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        h = F.relu(self.a(memory))
        gate = torch.sigmoid(h) if self.skip is None else self.skip
        h = self.b(h * gate)
        return self.c(F.relu(h)) + (x if self.skip is None else 0)


@style(16, 32)
class RunningList(nn.Module):
    """Time steps by hand: states in a list that is stacked, gates unread."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(64, 64), nn.Linear(32, 8)

    def forward(self, x):
        h = torch.zeros_like(x[:, 0])
        hs, gates = [], []
        for t in range(x.shape[1]):
            z, n = self.cell(torch.cat([x[:, t], h], -1)).chunk(2, -1)
            z = torch.sigmoid(z)
            h = (1 - z) * h + z * torch.tanh(n)
            hs.append(h)
            gates.append(z)
        return self.head(torch.stack(hs, 1))


@style(32, 32)
class HelperMethod(nn.Module):
    """A method with variables of its own computes a part of forward."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(32, 128), nn.Linear(32, 128), nn.Linear(128, 32)

    def mix(self, x):
        left = torch.relu(self.a(x))
        right = torch.sigmoid(self.b(x))
        mixed = left * right
        norm = mixed / (mixed.norm(dim=-1, keepdim=True) + 1e-6)
        return norm

    def forward(self, x):
        y = self.mix(x)
        return self.c(y) + x
