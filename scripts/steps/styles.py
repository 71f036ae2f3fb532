"""Models of the rounds as people write them in a repository of their own: no library beside torch, every author another style.

STYLES: name -> (round, class, inputs(batch, device), loss)."""
import math
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import einsum

STYLES = {}


def style(round, loss, inputs):
    def register(cls):
        STYLES[cls.__name__.lower()] = (round, cls, inputs, loss)
        return cls
    return register


def floats(*shape):
    return lambda b, dev: (torch.randn(b, *shape, device=dev),)


def ids(n, *shape):
    return lambda b, dev: (torch.randint(0, n, (b, *shape), device=dev),)


# ---- round 1 ----

@style(1, 'cross-entropy', lambda b, dev: (torch.randint(0, 50000, (b,), device=dev), torch.randint(0, 20000, (b,), device=dev), torch.randint(0, 1000, (b, 50), device=dev)))
class Recommender(nn.Module):
    """Two towers of embeddings and the history's mean, crossed in an MLP."""

    def __init__(self, users=50000, items=20000, dim=256):
        super().__init__()
        self.user_embedding = nn.Embedding(users, dim)
        self.item_embedding = nn.Embedding(items, dim)
        self.user_bias = nn.Embedding(users, 1)
        self.mlp = nn.Sequential(nn.Linear(3 * dim, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Dropout(0.3), nn.Linear(2048, 512), nn.LayerNorm(512), nn.LeakyReLU(0.1), nn.Linear(512, 5))

    def forward(self, user, item, history):
        u = self.user_embedding(user)
        i = self.item_embedding(item)
        h = self.item_embedding(history)
        mask = (history != 0).unsqueeze(-1).float()
        h = (h * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        x = torch.cat([u, i, u * i + h], dim=1)
        return self.mlp(x) + self.user_bias(user)


@style(1, 'cross-entropy', ids(5000, 120))
class BiLSTMTagger(nn.Module):
    def __init__(self, vocab=20000, tags=40, emb=300, hidden=384):
        super().__init__()
        self.hidden = hidden
        self.emb = nn.Embedding(vocab, emb, padding_idx=0)
        self.drop = nn.Dropout(0.5)
        self.lstm = nn.LSTM(emb, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=0.25)
        self.fc = nn.Linear(2 * hidden, tags)

    def forward(self, sentence):
        embeds = self.drop(self.emb(sentence))
        lstm_out, _ = self.lstm(embeds)
        tag_space = self.fc(self.drop(lstm_out))
        return tag_space


class GatedBlock(nn.Module):
    def __init__(self, res, skip, k, d):
        super().__init__()
        self.pad = (k - 1) * d
        self.filter = nn.utils.parametrizations.weight_norm(nn.Conv1d(res, res, k, dilation=d))
        self.gate = nn.utils.parametrizations.weight_norm(nn.Conv1d(res, res, k, dilation=d))
        self.to_res = nn.Conv1d(res, res, 1)
        self.to_skip = nn.Conv1d(res, skip, 1)

    def forward(self, x):
        y = F.pad(x, (self.pad, 0))
        y = torch.tanh(self.filter(y)) * torch.sigmoid(self.gate(y))
        return x + self.to_res(y), self.to_skip(y)


@style(1, 'cross-entropy', floats(1, 8000))
class WaveNet(nn.Module):
    """Dilated gated convolutions over 8000 samples; a class of every 50th."""

    def __init__(self, layers=8, stacks=2, res=64, skip=128, classes=256):
        super().__init__()
        self.causal = nn.Conv1d(1, res, 1)
        self.blocks = nn.ModuleList([GatedBlock(res, skip, 2, 2 ** i) for _ in range(stacks) for i in range(layers)])
        self.end1 = nn.Conv1d(skip, skip, 1)
        self.end2 = nn.Conv1d(skip, classes, 1, stride=50)

    def forward(self, wav):
        x = self.causal(wav)
        skips = 0
        for block in self.blocks:
            x, s = block(x)
            skips = skips + s
        out = F.relu(skips)
        out = F.relu(self.end1(out))
        return self.end2(out)


class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.conv1, self.conv2, self.conv3 = nn.Conv1d(k, 64, 1), nn.Conv1d(64, 128, 1), nn.Conv1d(128, 1024, 1)
        self.fc1, self.fc2, self.fc3 = nn.Linear(1024, 512), nn.Linear(512, 256), nn.Linear(256, k * k)
        self.bn1, self.bn2, self.bn3, self.bn4, self.bn5 = (nn.BatchNorm1d(n) for n in (64, 128, 1024, 512, 256))

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 1024)
        x = F.relu(self.bn4(self.fc1(x)))
        x = F.relu(self.bn5(self.fc2(x)))
        x = self.fc3(x)
        iden = torch.eye(self.k, device=x.device).flatten().view(1, -1)
        x = x + iden
        return x.view(-1, self.k, self.k)


@style(1, 'cross-entropy', floats(3, 1024))
class PointNet(nn.Module):
    def __init__(self, classes=40):
        super().__init__()
        self.stn, self.fstn = TNet(3), TNet(64)
        self.c1, self.c2, self.c3 = nn.Conv1d(3, 64, 1), nn.Conv1d(64, 128, 1), nn.Conv1d(128, 1024, 1)
        self.b1, self.b2, self.b3 = nn.BatchNorm1d(64), nn.BatchNorm1d(128), nn.BatchNorm1d(1024)
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Dropout(0.4), nn.Linear(512, classes))

    def forward(self, x):
        trans = self.stn(x)
        x = x.transpose(2, 1)
        x = torch.bmm(x, trans)
        x = x.transpose(2, 1)
        x = F.relu(self.b1(self.c1(x)))
        trans_feat = self.fstn(x)
        x = x.transpose(2, 1)
        x = torch.bmm(x, trans_feat)
        x = x.transpose(2, 1)
        x = F.relu(self.b2(self.c2(x)))
        x = self.b3(self.c3(x))
        x, _ = torch.max(x, 2)
        return self.head(x)


@style(1, 'mse', floats(100, 1, 1))
class DCGANGenerator(nn.Module):
    def __init__(self, nz=100, ngf=64, nc=3):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 8), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, input):
        return self.main(input)


@style(1, 'cross-entropy', ids(8000, 256))
class EinsumTransformer(nn.Module):
    """A decoder written with einsum and a mask of its own."""

    class Block(nn.Module):
        def __init__(self, d, heads):
            super().__init__()
            self.h, self.scale = heads, (d // heads) ** -0.5
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv = nn.Linear(d, 3 * d, bias=False)
            self.proj = nn.Linear(d, d)
            self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * d, d), nn.Dropout(0.1))

        def forward(self, x, mask):
            b, n, d = x.shape
            q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
            q, k, v = (t.reshape(b, n, self.h, -1) for t in (q, k, v))
            dots = einsum('bihd,bjhd->bhij', q, k) * self.scale
            dots = dots.masked_fill(mask, float('-inf'))
            attn = F.dropout(dots.softmax(dim=-1), 0.1, self.training)
            out = einsum('bhij,bjhd->bihd', attn, v).reshape(b, n, d)
            x = x + self.proj(out)
            return x + self.ff(self.ln2(x))

    def __init__(self, vocab=16000, d=512, depth=6, heads=8, n=256):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.randn(1, n, d) * 0.02)
        self.blocks = nn.ModuleList(self.Block(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.register_buffer('mask', torch.triu(torch.ones(n, n, dtype=torch.bool), 1), persistent=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[:, :ids.shape[1]]
        for blk in self.blocks:
            x = blk(x, self.mask)
        return self.norm(x) @ self.tok.weight.t()


# ---- round 2 ----

class DoubleConv3D(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv3d(i, o, 3, padding=1, bias=False), nn.BatchNorm3d(o), nn.ReLU(inplace=True), nn.Conv3d(o, o, 3, padding=1, bias=False), nn.BatchNorm3d(o), nn.ReLU(inplace=True))


@style(2, 'cross-entropy', floats(1, 48, 48, 48))
class UNet3D(nn.Module):
    def __init__(self, classes=4, f=24):
        super().__init__()
        self.e1, self.e2, self.e3, self.e4 = DoubleConv3D(1, f), DoubleConv3D(f, 2 * f), DoubleConv3D(2 * f, 4 * f), DoubleConv3D(4 * f, 8 * f)
        self.pool = nn.MaxPool3d(2)
        self.u3, self.u2, self.u1 = (nn.ConvTranspose3d(2 * c, c, 2, stride=2) for c in (4 * f, 2 * f, f))
        self.d3, self.d2, self.d1 = DoubleConv3D(8 * f, 4 * f), DoubleConv3D(4 * f, 2 * f), DoubleConv3D(2 * f, f)
        self.out = nn.Conv3d(f, classes, 1)

    def forward(self, x):
        e1 = self.e1(x)
        e2 = self.e2(self.pool(e1))
        e3 = self.e3(self.pool(e2))
        x = self.e4(self.pool(e3))
        x = self.d3(torch.cat([self.u3(x), e3], dim=1))
        x = self.d2(torch.cat([self.u2(x), e2], dim=1))
        x = self.d1(torch.cat([self.u1(x), e1], dim=1))
        return self.out(x)


@style(2, 'cross-entropy', lambda b, dev: (torch.randn(b, 1, 105, 105, device=dev), torch.randn(b, 1, 105, 105, device=dev)))
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(OrderedDict(c1=nn.Conv2d(1, 64, 10), r1=nn.ReLU(), p1=nn.MaxPool2d(2), c2=nn.Conv2d(64, 128, 7), r2=nn.ReLU(), p2=nn.MaxPool2d(2), c3=nn.Conv2d(128, 128, 4), r3=nn.ReLU(),
                                              p3=nn.MaxPool2d(2), c4=nn.Conv2d(128, 256, 4), r4=nn.ReLU()))
        self.liner = nn.Sequential(nn.Linear(9216, 2048), nn.Sigmoid())
        self.out = nn.Linear(2048, 2)

    def forward_one(self, x):
        x = self.conv(x)
        x = x.view(x.size()[0], -1)
        x = self.liner(x)
        return x

    def forward(self, x1, x2):
        out1 = self.forward_one(x1)
        out2 = self.forward_one(x2)
        dis = torch.abs(out1 - out2)
        out = self.out(dis)
        return out


class Experts(nn.Module):
    def __init__(self, d, hidden, n):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(n, d, hidden) * 0.02), nn.Parameter(torch.randn(n, hidden, d) * 0.02)

    def forward(self, x):
        hidden = F.silu(torch.einsum('bd,edh->ebh', x, self.w1))
        return torch.einsum('ebh,ehd->ebd', hidden, self.w2)


@style(2, 'cross-entropy', floats(768))
class MixtureOfExperts(nn.Module):
    """Two layers of eight experts, of which the gate keeps two."""

    def __init__(self, d=768, hidden=1536, n=8, k=2, classes=100):
        super().__init__()
        self.k, self.n = k, n
        self.gates = nn.ModuleList([nn.Linear(d, n, bias=False) for _ in range(2)])
        self.experts = nn.ModuleList([Experts(d, hidden, n) for _ in range(2)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        for gate, experts in zip(self.gates, self.experts):
            logits = gate(self.norm(x))
            top, index = logits.topk(self.k, dim=-1)
            weights = torch.zeros_like(logits).scatter(1, index, F.softmax(top, dim=-1))
            y = experts(x)
            x = x + (weights.t().unsqueeze(-1) * y).sum(0)
        return self.head(x)


@style(2, 'mse', floats(512))
class NeuralODE(nn.Module):
    """Eight steps of Runge-Kutta 4."""

    def __init__(self, d=512, hidden=1024, steps=8):
        super().__init__()
        self.steps = steps
        self.f = nn.Sequential(nn.Linear(d + 1, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Softplus(), nn.Linear(hidden, d))

    def func(self, t, y):
        tt = torch.ones_like(y[:, :1]) * t
        return self.f(torch.cat([tt, y], 1))

    def forward(self, y):
        h = 1.0 / self.steps
        for s in range(self.steps):
            t = s * h
            k1 = self.func(t, y)
            k2 = self.func(t + h / 2, y + h / 2 * k1)
            k3 = self.func(t + h / 2, y + h / 2 * k2)
            k4 = self.func(t + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y


@style(2, 'cross-entropy', floats(200, 64))
class GraphConvNet(nn.Module):
    """Message passing over the edges of a fixed graph by gather and index_add."""

    def __init__(self, nodes=200, edges=1600, f=64, hidden=128, classes=12):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer('src', torch.randint(0, nodes, (edges,), generator=g))
        self.register_buffer('dst', torch.randint(0, nodes, (edges,), generator=g))
        self.lin = nn.ModuleList([nn.Linear(f, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)])
        self.msg = nn.ModuleList([nn.Linear(2 * f, hidden), nn.Linear(2 * hidden, hidden), nn.Linear(2 * hidden, hidden)])
        self.cls = nn.Linear(hidden, classes)

    def forward(self, x):
        for lin, msg in zip(self.lin, self.msg):
            m = F.elu(msg(torch.cat([x[:, self.src], x[:, self.dst]], dim=-1)))
            agg = torch.zeros(x.size(0), x.size(1), m.size(-1), dtype=m.dtype, device=x.device)
            agg = agg.index_add(1, self.dst, m)
            x = F.relu(lin(x) + agg)
        return self.cls(x.mean(dim=1))


@style(2, 'cross-entropy', lambda b, dev: (torch.randint(0, 5000, (b, 40), device=dev), torch.randint(0, 5000, (b, 20), device=dev)))
class Seq2Seq(nn.Module):
    """GRU encoder, a decoder step by step with additive attention."""

    def __init__(self, vocab=8000, emb=256, hid=512):
        super().__init__()
        self.enc_emb, self.dec_emb = nn.Embedding(vocab, emb), nn.Embedding(vocab, emb)
        self.rnn = nn.GRU(emb, hid, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hid, hid)
        self.attn, self.v = nn.Linear(3 * hid, hid), nn.Linear(hid, 1, bias=False)
        self.cell = nn.GRUCell(2 * hid + emb, hid)
        self.out = nn.Linear(3 * hid + emb, vocab)

    def forward(self, src, trg):
        enc, h = self.rnn(self.enc_emb(src))
        h = torch.tanh(self.bridge(torch.cat((h[-2], h[-1]), dim=1)))
        outputs = []
        for t in range(trg.size(1)):
            e = self.dec_emb(trg[:, t])
            rep = h.unsqueeze(1).repeat(1, enc.size(1), 1)
            energy = torch.tanh(self.attn(torch.cat((rep, enc), dim=2)))
            a = F.softmax(self.v(energy).squeeze(2), dim=1)
            ctx = torch.bmm(a.unsqueeze(1), enc).squeeze(1)
            h = self.cell(torch.cat((e, ctx), dim=1), h)
            outputs.append(self.out(torch.cat((h, ctx, e), dim=1)))
        return torch.stack(outputs, dim=1)


@style(2, 'mse', floats(3, 48, 48))
class EDSR(nn.Module):
    class ResBlock(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(n, n, 3, padding=1), nn.ReLU(True), nn.Conv2d(n, n, 3, padding=1))

        def forward(self, x):
            res = self.body(x).mul(0.1)
            res += x
            return res

    def __init__(self, n=64, blocks=16):
        super().__init__()
        self.register_buffer('mean', torch.tensor([0.4488, 0.4371, 0.4040]).view(1, 3, 1, 1))
        self.head = nn.Conv2d(3, n, 3, padding=1)
        self.body = nn.Sequential(*[self.ResBlock(n) for _ in range(blocks)], nn.Conv2d(n, n, 3, padding=1))
        self.tail = nn.Sequential(nn.Conv2d(n, 4 * n, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(n, 4 * n, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(n, 3, 3, padding=1))

    def forward(self, x):
        x = x - self.mean
        x = self.head(x)
        res = self.body(x)
        res += x
        x = self.tail(res)
        x = x + self.mean
        return x


@style(2, 'cross-entropy', floats(1, 32, 256))
class CRNN(nn.Module):
    """Text lines: convolutions, then bidirectional LSTMs over columns."""

    def __init__(self, classes=96, nh=256):
        super().__init__()
        cnn, ks, ps, ss, nm = nn.Sequential(), [3, 3, 3, 3, 3, 3, 2], [1, 1, 1, 1, 1, 1, 0], [1] * 7, [64, 128, 256, 256, 512, 512, 512]
        for i in range(7):
            cnn.add_module(f'conv{i}', nn.Conv2d(1 if i == 0 else nm[i - 1], nm[i], ks[i], ss[i], ps[i]))
            if i in (2, 4, 6):
                cnn.add_module(f'batchnorm{i}', nn.BatchNorm2d(nm[i]))
            cnn.add_module(f'relu{i}', nn.ReLU(True))
            if i in (0, 1):
                cnn.add_module(f'pooling{i}', nn.MaxPool2d(2, 2))
            elif i in (3, 5):
                cnn.add_module(f'pooling{i}', nn.MaxPool2d((2, 2), (2, 1), (0, 1)))
        self.cnn = cnn
        self.rnn1, self.rnn2 = nn.LSTM(512, nh, bidirectional=True), nn.LSTM(nh, nh, bidirectional=True)
        self.lin1, self.lin2 = nn.Linear(2 * nh, nh), nn.Linear(2 * nh, classes)

    def forward(self, img):
        conv = self.cnn(img)
        conv = conv.squeeze(2)
        conv = conv.permute(2, 0, 1)
        out, _ = self.rnn1(conv)
        T, b, h = out.size()
        out = self.lin1(out.view(T * b, h)).view(T, b, -1)
        out, _ = self.rnn2(out)
        return self.lin2(out).transpose(0, 1)


# ---- round 3 ----

@style(3, 'cross-entropy', lambda b, dev: (torch.randn(b, 13, device=dev), torch.randint(0, 20000, (b, 12, 8), device=dev)))
class DLRM(nn.Module):
    """Dense features, twelve bags of embeddings, pairwise dot products."""

    def __init__(self, tables=12, rows=20000, d=64):
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(rows, d, mode='sum') for _ in range(tables)])
        self.bot = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, d), nn.ReLU())
        n = tables + 1
        self.register_buffer('li', torch.tril_indices(n, n, -1)[0])
        self.register_buffer('lj', torch.tril_indices(n, n, -1)[1])
        self.top = nn.Sequential(nn.Linear(d + n * (n - 1) // 2, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 2))

    def forward(self, dense, sparse):
        x = self.bot(dense)
        ly = [bag(sparse[:, k]) for k, bag in enumerate(self.bags)]
        T = torch.stack([x] + ly, dim=1)
        Z = torch.bmm(T, T.transpose(1, 2))
        flat = Z[:, self.li, self.lj]
        R = torch.cat([x, flat], dim=1)
        return self.top(R)


def wn_conv(i, o, k, **kw):
    return nn.utils.weight_norm(nn.Conv2d(i, o, k, **kw))


class WNBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1, self.c2 = wn_conv(i, o, 3, stride=stride, padding=1), wn_conv(o, o, 3, padding=1)
        self.short = wn_conv(i, o, 1, stride=stride) if stride != 1 or i != o else None

    def forward(self, x):
        out = self.c2(F.leaky_relu(self.c1(F.leaky_relu(x, 0.2)), 0.2))
        if self.short is not None:
            x = self.short(x)
        return out + x


@style(3, 'cross-entropy', floats(3, 64, 64))
class WeightNormResNet(nn.Module):
    def __init__(self, classes=200):
        super().__init__()
        self.stem = wn_conv(3, 64, 3, padding=1)
        self.layers = nn.ModuleList()
        i = 64
        for o, s in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
            self.layers.append(WNBlock(i, o, s))
            i = o
        self.fc = nn.utils.weight_norm(nn.Linear(i, classes))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        x = F.adaptive_avg_pool2d(F.relu(x), 1)
        return self.fc(torch.flatten(x, 1))


@style(3, 'mse', floats(3, 64, 64))
class ConvVAE(nn.Module):
    def __init__(self, z=128):
        super().__init__()
        hidden = [32, 64, 128, 256]
        enc, i = [], 3
        for h in hidden:
            enc.append(nn.Sequential(nn.Conv2d(i, h, 3, 2, 1), nn.BatchNorm2d(h), nn.LeakyReLU()))
            i = h
        self.encoder = nn.Sequential(*enc)
        self.fc_mu, self.fc_var, self.decoder_input = nn.Linear(i * 16, z), nn.Linear(i * 16, z), nn.Linear(z, i * 16)
        dec = []
        for h in hidden[-2::-1] + [32]:
            dec.append(nn.Sequential(nn.ConvTranspose2d(i, h, 3, 2, 1, output_padding=1), nn.BatchNorm2d(h), nn.LeakyReLU()))
            i = h
        self.decoder = nn.Sequential(*dec)
        self.final_layer = nn.Sequential(nn.Conv2d(i, 3, 3, padding=1), nn.Tanh())

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return eps * std + mu

    def forward(self, x):
        h = torch.flatten(self.encoder(x), start_dim=1)
        mu, log_var = self.fc_mu(h), self.fc_var(h)
        z = self.reparameterize(mu, log_var)
        h = self.decoder_input(z).view(-1, 256, 4, 4)
        return self.final_layer(self.decoder(h))


@style(3, 'cross-entropy', floats(3, 64, 64))
class SpectralCritic(nn.Module):
    def __init__(self, ch=64):
        super().__init__()
        sn = nn.utils.spectral_norm
        self.l1, self.l2, self.l3, self.l4 = sn(nn.Conv2d(3, ch, 3, 1, 1)), sn(nn.Conv2d(ch, 2 * ch, 4, 2, 1)), sn(nn.Conv2d(2 * ch, 4 * ch, 4, 2, 1)), sn(nn.Conv2d(4 * ch, 8 * ch, 4, 2, 1))
        self.fc = sn(nn.Linear(8 * ch * 64, 2))

    def forward(self, x):
        m = x
        for l in (self.l1, self.l2, self.l3, self.l4):
            m = nn.LeakyReLU(0.1)(l(m))
        return self.fc(m.view(m.size(0), -1))


class SelfAttention2d(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(8, c)
        self.q, self.k, self.v, self.o = (nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x):
        h_ = self.norm(x)
        q, k, v = self.q(h_), self.k(h_), self.v(h_)
        b, c, h, w = q.shape
        q = q.reshape(b, c, h * w).permute(0, 2, 1)
        k = k.reshape(b, c, h * w)
        w_ = torch.bmm(q, k) * (int(c) ** -0.5)
        w_ = F.softmax(w_, dim=2)
        v = v.reshape(b, c, h * w)
        w_ = w_.permute(0, 2, 1)
        h_ = torch.bmm(v, w_).reshape(b, c, h, w)
        return x + self.o(h_)


class TimeResBlock(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.norm1, self.conv1, self.temb = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1), nn.Linear(t, o)
        self.norm2, self.drop, self.conv2 = nn.GroupNorm(8, o), nn.Dropout(0.1), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, temb):
        h = x
        h = self.norm1(h)
        h = h * torch.sigmoid(h)
        h = self.conv1(h)
        h = h + self.temb(temb * torch.sigmoid(temb))[:, :, None, None]
        h = self.norm2(h)
        h = h * torch.sigmoid(h)
        h = self.conv2(self.drop(h))
        return self.skip(x) + h


@style(3, 'mse', lambda b, dev: (torch.randn(b, 3, 32, 32, device=dev), torch.randint(0, 1000, (b,), device=dev)))
class DDPM(nn.Module):
    """A diffusion U-Net as the paper's code has it: nonlinearities spelled out, attention by bmm, a list of skips."""

    def __init__(self, ch=64):
        super().__init__()
        t = 4 * ch
        self.ch = ch
        self.dense = nn.ModuleList([nn.Linear(ch, t), nn.Linear(t, t)])
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.down1, self.down2, self.down3 = TimeResBlock(ch, ch, t), TimeResBlock(ch, 2 * ch, t), TimeResBlock(2 * ch, 4 * ch, t)
        self.attn, self.mid = SelfAttention2d(2 * ch), TimeResBlock(4 * ch, 4 * ch, t)
        self.up3, self.up2, self.up1 = TimeResBlock(8 * ch, 2 * ch, t), TimeResBlock(4 * ch, ch, t), TimeResBlock(2 * ch, ch, t)
        self.norm_out, self.out = nn.GroupNorm(8, ch), nn.Conv2d(ch, 3, 3, padding=1)

    def timestep(self, t):
        half = self.ch // 2
        emb = torch.exp(torch.arange(half, dtype=torch.float32, device=t.device) * -(math.log(10000) / (half - 1)))
        emb = t.float()[:, None] * emb[None, :]
        return torch.cat([torch.sin(emb), torch.cos(emb)], dim=1)

    def forward(self, x, t):
        temb = self.dense[0](self.timestep(t).to(self.dense[0].weight.dtype))
        temb = self.dense[1](temb * torch.sigmoid(temb))
        hs = [self.inp(x)]
        h = self.down1(hs[-1], temb)
        hs.append(h)
        h = self.down2(F.avg_pool2d(h, 2), temb)
        h = self.attn(h)
        hs.append(h)
        h = self.down3(F.avg_pool2d(h, 2), temb)
        h = self.mid(h, temb)
        h = self.up3(torch.cat([h, h], dim=1), temb)
        h = F.interpolate(h, scale_factor=2.0, mode='nearest')
        h = self.up2(torch.cat([h, hs.pop()], dim=1), temb)
        h = F.interpolate(h, scale_factor=2.0, mode='nearest')
        h = self.up1(torch.cat([h, hs.pop()], dim=1), temb)
        h = self.norm_out(h)
        return self.out(h * torch.sigmoid(h))


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


def rotate(x, cos, sin):
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class LlamaLayer(nn.Module):
    def __init__(self, d, heads, kv):
        super().__init__()
        self.heads, self.kv, self.hd = heads, kv, d // heads
        self.wq, self.wk, self.wv, self.wo = nn.Linear(d, d, bias=False), nn.Linear(d, kv * self.hd, bias=False), nn.Linear(d, kv * self.hd, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w2, self.w3 = nn.Linear(d, 3 * d, bias=False), nn.Linear(3 * d, d, bias=False), nn.Linear(d, 3 * d, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(d), RMSNorm(d)

    def attention(self, x, cos, sin):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bsz, seqlen, self.heads, self.hd)
        xk = xk.view(bsz, seqlen, self.kv, self.hd)
        xv = xv.view(bsz, seqlen, self.kv, self.hd)
        xq, xk = rotate(xq, cos, sin), rotate(xk, cos, sin)
        keys = torch.repeat_interleave(xk, self.heads // self.kv, dim=2)
        values = torch.repeat_interleave(xv, self.heads // self.kv, dim=2)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        output = F.scaled_dot_product_attention(xq, keys, values, is_causal=True)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)

    def forward(self, x, cos, sin):
        h = x + self.attention(self.attention_norm(x), cos, sin)
        out = h + self.w2(F.silu(self.w1(self.ffn_norm(h))) * self.w3(self.ffn_norm(h)))
        return out


@style(3, 'cross-entropy', ids(8000, 256))
class TinyLlama(nn.Module):
    def __init__(self, vocab=16000, d=512, layers=6, heads=8, kv=2, n=256):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList([LlamaLayer(d, heads, kv) for _ in range(layers)])
        self.norm, self.output = RMSNorm(d), nn.Linear(d, vocab, bias=False)
        hd = d // heads
        angles = torch.outer(torch.arange(n), 1.0 / 10000 ** (torch.arange(0, hd, 2).float() / hd))
        self.register_buffer('cos', angles.cos()[:, None], persistent=False)
        self.register_buffer('sin', angles.sin()[:, None], persistent=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        h = self.norm(h)
        return self.output(h).float()


@style(3, 'mse', floats(3, 128, 128))
class StyleNet(nn.Module):
    """Fast style transfer: reflection padding, instance normalisation, nearest upsampling."""

    class ConvLayer(nn.Module):
        def __init__(self, i, o, k, s, up=None):
            super().__init__()
            self.up, self.pad, self.conv = up, nn.ReflectionPad2d(k // 2), nn.Conv2d(i, o, k, s)

        def forward(self, x):
            if self.up:
                x = nn.functional.interpolate(x, mode='nearest', scale_factor=self.up)
            out = self.pad(x)
            out = self.conv(out)
            return out

    class Residual(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.conv1, self.in1 = StyleNet.ConvLayer(c, c, 3, 1), nn.InstanceNorm2d(c, affine=True)
            self.conv2, self.in2 = StyleNet.ConvLayer(c, c, 3, 1), nn.InstanceNorm2d(c, affine=True)
            self.relu = nn.ReLU()

        def forward(self, x):
            residual = x
            out = self.relu(self.in1(self.conv1(x)))
            out = self.in2(self.conv2(out))
            out = out + residual
            return out

    def __init__(self):
        super().__init__()
        L, R = StyleNet.ConvLayer, StyleNet.Residual
        self.conv1, self.in1 = L(3, 32, 9, 1), nn.InstanceNorm2d(32, affine=True)
        self.conv2, self.in2 = L(32, 64, 3, 2), nn.InstanceNorm2d(64, affine=True)
        self.conv3, self.in3 = L(64, 128, 3, 2), nn.InstanceNorm2d(128, affine=True)
        self.res = nn.Sequential(*[R(128) for _ in range(5)])
        self.deconv1, self.in4 = L(128, 64, 3, 1, up=2), nn.InstanceNorm2d(64, affine=True)
        self.deconv2, self.in5 = L(64, 32, 3, 1, up=2), nn.InstanceNorm2d(32, affine=True)
        self.deconv3, self.relu = L(32, 3, 9, 1), nn.ReLU()

    def forward(self, X):
        y = self.relu(self.in1(self.conv1(X)))
        y = self.relu(self.in2(self.conv2(y)))
        y = self.relu(self.in3(self.conv3(y)))
        y = self.res(y)
        y = self.relu(self.in4(self.deconv1(y)))
        y = self.relu(self.in5(self.deconv2(y)))
        y = self.deconv3(y)
        return y


@style(3, 'cross-entropy', floats(1, 28, 28))
class CapsNet(nn.Module):
    """Capsules with three rounds of routing."""

    def __init__(self, caps=10, dim=16):
        super().__init__()
        self.conv1, self.primary = nn.Conv2d(1, 128, 9), nn.Conv2d(128, 128, 9, stride=2)
        self.W = nn.Parameter(0.01 * torch.randn(1, 576, caps, dim, 8))

    @staticmethod
    def squash(s, dim=-1):
        norm = torch.norm(s, dim=dim, keepdim=True)
        return norm ** 2 / (1 + norm ** 2) * s / (norm + 1e-8)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        u = self.squash(self.primary(x).view(x.size(0), -1, 8))
        u_hat = torch.matmul(self.W, u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(u_hat.shape[:3], device=x.device, dtype=u_hat.dtype).unsqueeze(-1)
        for r in range(3):
            c = F.softmax(b, dim=2)
            v = self.squash((c * u_hat).sum(dim=1))
            if r < 2:
                b = b + (u_hat * v.unsqueeze(1)).sum(-1, keepdim=True)
        return torch.norm(v, dim=-1)
