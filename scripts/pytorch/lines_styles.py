"""Small modules in many habits of plain PyTorch code: what scripts/pytorch/lines_reference.py exports beside models of libraries.

Each is written the way somebody writes it, not the way memplan would like it: how long its variables keep tensors alive is the question.
"""
import functools

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


@style(3, 32, 32)
class UNetList(nn.Module):
    """Skips in a list, taken from its end."""

    def __init__(self):
        super().__init__()
        self.downs = nn.ModuleList([conv(3, 8), conv(8, 16), conv(16, 32)])
        self.mid = conv(32, 32)
        self.ups = nn.ModuleList([conv(64, 16), conv(32, 8), conv(16, 4)])

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = F.relu(down(x))
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.mid(x)
        for up in self.ups:
            x = F.interpolate(x, scale_factor=2)
            skip = skips.pop()
            x = torch.cat([x, skip], dim=1)
            x = F.relu(up(x))
        return x


class DoubleConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.double_conv = nn.Sequential(conv(i, o, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True), conv(o, o, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.up = nn.ConvTranspose2d(i, i // 2, 2, stride=2)
        self.conv = DoubleConv(i, o)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy = x2.size()[2] - x1.size()[2]
        dx = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        x = torch.cat([x2, x1], dim=1)
        return self.conv(x)


@style(3, 36, 36)
class UNetNames(nn.Module):
    """Skips in numbered variables."""

    def __init__(self):
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(3, 8), DoubleConv(8, 16), DoubleConv(16, 32)
        self.pool = nn.MaxPool2d(2)
        self.up1, self.up2 = Up(32, 16), Up(16, 8)
        self.outc = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(self.pool(x1))
        x3 = self.down2(self.pool(x2))
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        logits = self.outc(x)
        return logits


@style(8, 16, 16)
class Dense(nn.Module):
    """Features in a list, concatenated again and again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.BatchNorm2d(8 + 4 * i), nn.ReLU(), conv(8 + 4 * i, 4)) for i in range(4)])
        self.head = conv(24, 10, 1)

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            new = layer(torch.cat(features, 1))
            features.append(new)
        out = torch.cat(features, 1)
        return self.head(out).mean((2, 3))


@style(8, 16, 16)
class DenseGrow(nn.Module):
    """Concatenation into the same name."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([conv(8 + 4 * i, 4) for i in range(4)])

    def forward(self, x):
        for layer in self.layers:
            out = layer(F.relu(x))
            x = torch.cat([x, out], dim=1)
        return x


@style(16, 12)
class While(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(12, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x):
        i = 0
        h = x
        while i < 4:
            h_new = torch.tanh(self.lin(h))
            h = h + 0.5 * h_new
            i += 1
        return self.out(h)


def gelu_new(x):
    cubed = x**3
    inner = 0.79 * (x + 0.044 * cubed)
    return 0.5 * x * (1.0 + torch.tanh(inner))


def channel_shuffle(x, groups):
    b, c, h, w = x.shape
    x = x.view(b, groups, c // groups, h, w)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(b, c, h, w)


@style(8, 16, 16)
class Helpers(nn.Module):
    """Functions outside the class."""

    def __init__(self):
        super().__init__()
        self.a, self.b = conv(8, 8), conv(8, 8)

    def forward(self, x):
        y = gelu_new(self.a(x))
        y = channel_shuffle(y, 2)
        z = self.b(y)
        return gelu_new(z) + y


@style(3, 32, 32)
class FeatureDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.c2, self.c3, self.c4 = conv(3, 8, stride=2), conv(8, 8, stride=2), conv(8, 8, stride=2), conv(8, 8, stride=2)
        self.lat = nn.ModuleDict({k: nn.Conv2d(8, 8, 1) for k in ("c2", "c3", "c4")})

    def forward(self, x):
        feats = {}
        x = self.stem(x)
        feats["c2"] = self.c2(x)
        feats["c3"] = self.c3(feats["c2"])
        feats["c4"] = self.c4(feats["c3"])
        out = self.lat["c4"](feats["c4"])
        for k in ("c3", "c2"):
            out = F.interpolate(out, scale_factor=2.0) + self.lat[k](feats[k])
        return out


@style(8, 16, 16)
class Comprehension(nn.Module):
    """Branches in a list comprehension, as Inception and ASPP do."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([conv(8, 4, 1), conv(8, 4, 3), conv(8, 4, 5)])
        self.fuse = conv(12, 8)

    def forward(self, x):
        outs = [F.relu(b(x)) for b in self.branches]
        y = torch.cat(outs, dim=1)
        y = self.fuse(y)
        return sum([y.mean(1, keepdim=True), y.amax(1, keepdim=True)])


@style(32, 16)
class Deletes(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = torch.matmul(q, k.transpose(-2, -1)); del q, k
        probs = F.softmax(scores, dim=-1); del scores
        ctx = torch.matmul(probs, v)
        del probs, v
        return self.o(ctx)


@style(16)
class EarlyReturn(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.deep = False

    def features(self, x):
        x = F.relu(self.a(x))
        if not self.deep:
            return x
        return self.b(x)

    def forward(self, x):
        f = self.features(x)
        g = F.gelu(f)
        if g.shape[-1] == 64:
            return self.c(g)
        return f


class TwoOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x):
        h = self.a(x)
        gate, value = h.chunk(2, dim=-1)
        y = torch.sigmoid(gate) * value
        return self.b(y), gate.exp()


@style(16)
class TupleOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = TwoOut(), TwoOut()

    def forward(self, x):
        x, aux = self.one(x)
        y, aux2 = self.two(x)
        loss = (aux * aux2).mean(-1, keepdim=True)
        return y * loss


@style(6, 8)
class Recurrent(nn.Module):
    """A cell in a loop, its outputs stacked."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.ih, self.hh = nn.Linear(8, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 8)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 16)
        outputs = []
        for t in range(x.size(1)):
            xt = x[:, t]
            h = torch.tanh(self.ih(xt) + self.hh(h))
            outputs.append(self.out(h))
        return torch.stack(outputs, dim=1)


@style(8, 16, 16)
class Residuals(nn.Module):
    """The residual named before, the usual way."""

    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.c1, self.c2, self.c3 = conv(8, 16), conv(16, 8), conv(8, 8)

    def forward(self, x):
        residual = x
        x = self.n1(x)
        x = F.relu(self.c1(x))
        x = self.c2(x)
        x = x + residual
        residual = x
        x = self.n2(x)
        x = self.c3(x)
        x = residual + x
        return F.relu(x)


@style(8, 16, 16)
class ManyLines(nn.Module):
    """Statements over several lines."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(8, 8), conv(8, 8), conv(24, 8)

    def forward(self, x):
        left = self.a(
            F.relu(x)
        )
        right = (
            self.b(left)
            .relu()
            .clamp(max=6.0)
        )
        merged = torch.cat(
            [
                left,
                right,
                left * right,
            ],
            dim=1,
        )
        out = self.c(
            merged
        )
        return (
            out
            + left
        )


def traced(f):
    @functools.wraps(f)
    def wrapper(self, *args, **kwargs):
        out = f(self, *args, **kwargs)
        return out

    return wrapper


@style(16, 16)
class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 48), nn.Linear(16, 16)

    @traced
    def forward(self, x):
        a, b, c = self.a(x).split(16, dim=-1)
        d = a * b
        e = d.softmax(-1)
        out = self.b(e + c)
        return out


@style(8, 16, 16)
class Nested(nn.Module):
    """Functions inside forward."""

    def __init__(self):
        super().__init__()
        self.a, self.b = conv(8, 8), conv(8, 8)

    def forward(self, x):
        def block(t, layer):
            u = layer(t)
            v = torch.sigmoid(u)
            return u * v

        y = block(x, self.a)
        z = block(y, self.b)
        return y + z


@style(8, 16, 16)
class Branches(nn.Module):
    """A sum of branches in one expression, and conditional expressions."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(8, 8), conv(8, 8, 1), conv(8, 8)
        self.short = None

    def forward(self, x):
        skip = self.short(x) if self.short is not None else self.b(x)
        y = self.a(x) + self.b(x) + skip
        scale = y.mean((2, 3), keepdim=True) if y.shape[1] > 4 else 1.0
        y = self.c(y) * scale
        return y if self.short is None else y + skip


@style(24, 16)
class Cached(nn.Module):
    """Tensors in attributes."""

    def __init__(self):
        super().__init__()
        self.lin, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = None

    def forward(self, x):
        h = F.silu(self.lin(x))
        self.last = h.norm(dim=-1)
        g = h * torch.sigmoid(h)
        return self.out(g)


@style(24, 16)
class Block(nn.Module):
    """A transformer block, written out by hand."""

    def __init__(self, d=16, heads=2):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def attn(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (C // self.heads) ** -0.5
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(y)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        x = x + self.fc2(F.gelu(self.fc1(self.ln2(x))))
        return x


class Attention(nn.Module):
    def __init__(self, d=16, heads=2):
        super().__init__()
        self.h = heads
        self.to_q, self.to_k, self.to_v, self.to_out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = map(lambda t: t.reshape(b, n, self.h, -1).transpose(1, 2), (self.to_q(x), self.to_k(x), self.to_v(x)))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) / d**0.5
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)


@style(24, 16)
class ViTStyle(nn.Module):
    """Attention in a module of its own, pairs of modules in a list."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleList([Attention(), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))]) for _ in range(2)])
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        return self.norm(x)


@style(12, 16, 16)
class Steps(nn.Module):
    """One call of step after another, each with its own name."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.c3 = conv(12, 24), conv(24, 24), conv(24, 12)
        self.bn1, self.bn2 = nn.BatchNorm2d(24), nn.BatchNorm2d(24)
        self.fc = nn.Linear(12, 4)

    def forward(self, x):
        conv1 = self.c1(x)
        norm1 = self.bn1(conv1)
        act1 = F.relu(norm1)
        conv2 = self.c2(act1)
        norm2 = self.bn2(conv2)
        act2 = F.relu(norm2)
        conv3 = self.c3(act2)
        pooled = F.adaptive_avg_pool2d(conv3, 1)
        flat = torch.flatten(pooled, 1)
        return self.fc(flat)


@style(8, 16, 16)
class Gate(nn.Module):
    """Squeeze and excitation, tensors multiplied in place."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2 = conv(8, 16), conv(16, 8)
        self.down, self.up = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x):
        y = self.c1(x)
        s = y.mean((2, 3), keepdim=True)
        s = self.up(F.relu(self.down(s)))
        y = y * s.sigmoid()
        out = self.c2(y)
        out += x
        return F.relu(out)


@style(10, 16)
class Pyramid(nn.Module):
    """A list filled by index, and read backwards."""

    def __init__(self):
        super().__init__()
        self.ins = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.outs = nn.ModuleList([nn.Linear(16, 8) for _ in range(3)])

    def forward(self, x):
        feats = [None] * 3
        for i, m in enumerate(self.ins):
            feats[i] = m(x)
            x = F.relu(feats[i])
        for i in range(2, 0, -1):
            feats[i - 1] = feats[i - 1] + feats[i]
        results = []
        for f, m in zip(feats, self.outs):
            results += [m(f)]
        return torch.cat(results, -1)


@style(16, 32)
class Mixture(nn.Module):
    """Experts weighted and summed in a loop."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 3)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)) for _ in range(3)])

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y = expert(x)
            out = out + w[..., i : i + 1] * y
        return out
