"""Models of round 4 as people write them in repositories of their own: no library beside torch, every author another style.

UNSEEN: name -> (class, inputs(batch, device), loss)."""
import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from styles import floats, ids

UNSEEN = {}


def style(loss, inputs):
    def register(cls):
        UNSEEN[cls.__name__.lower()] = (cls, inputs, loss)
        return cls
    return register


# ---- a small GPT: one file, a dataclass of settings, attention by hand ----

@dataclass
class GPTConfig:
    block_size: int = 256
    vocab_size: int = 8192
    n_layer: int = 4
    n_head: int = 6
    n_embd: int = 384
    dropout: float = 0.1
    bias: bool = False


class LayerNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        self.register_buffer('bias', torch.tril(torch.ones(config.block_size, config.block_size)).view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.resid_dropout(self.c_proj(y))
        return y


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        x = self.dropout(x)
        return x


class GPTBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


@style('cross-entropy', ids(8000, 256))
class NanoGPT(nn.Module):
    def __init__(self, config=GPTConfig()):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd), wpe=nn.Embedding(config.block_size, config.n_embd), drop=nn.Dropout(config.dropout),
            h=nn.ModuleList([GPTBlock(config) for _ in range(config.n_layer)]), ln_f=LayerNorm(config.n_embd, bias=config.bias)))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        tok_emb = self.transformer.wte(idx)
        pos_emb = self.transformer.wpe(pos)
        x = self.transformer.drop(tok_emb + pos_emb)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        logits = self.lm_head(x)
        return logits


# ---- a small Llama: rotary numbers as cosines and sines, kept heads repeated ----

class RMSNorm(torch.nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end)
    freqs = torch.outer(t, freqs).float()
    return torch.cos(freqs), torch.sin(freqs)


def reshape_for_broadcast(freqs_cis: Tensor, x: Tensor):
    shape = [d if i == 1 or i == x.ndim - 1 else 1 for i, d in enumerate(x.shape)]
    return freqs_cis.view(shape)


def apply_rotary_emb(xq, xk, freqs_cos, freqs_sin):
    xq_r, xq_i = xq.float().reshape(xq.shape[:-1] + (-1, 2)).unbind(-1)
    xk_r, xk_i = xk.float().reshape(xk.shape[:-1] + (-1, 2)).unbind(-1)
    freqs_cos = reshape_for_broadcast(freqs_cos, xq_r)
    freqs_sin = reshape_for_broadcast(freqs_sin, xq_r)
    xq_out_r = xq_r * freqs_cos - xq_i * freqs_sin
    xq_out_i = xq_r * freqs_sin + xq_i * freqs_cos
    xk_out_r = xk_r * freqs_cos - xk_i * freqs_sin
    xk_out_i = xk_r * freqs_sin + xk_i * freqs_cos
    xq_out = torch.stack([xq_out_r, xq_out_i], dim=-1).flatten(3)
    xk_out = torch.stack([xk_out_r, xk_out_i], dim=-1).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


def repeat_kv(x: Tensor, n_rep: int):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1: return x
    return x[:, :, :, None, :].expand(bs, slen, n_kv_heads, n_rep, head_dim).reshape(bs, slen, n_kv_heads * n_rep, head_dim)


class LlamaAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, flash):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim, self.flash = n_heads, n_kv_heads, dim // n_heads, flash
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        if not flash:
            mask = torch.full((1, 1, 256, 256), float('-inf'))
            self.register_buffer('mask', torch.triu(mask, diagonal=1))

    def forward(self, x, freqs_cos, freqs_sin):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = xk.view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = xv.view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cos, freqs_sin)
        xk = repeat_kv(xk, self.n_heads // self.n_kv_heads)
        xv = repeat_kv(xv, self.n_heads // self.n_kv_heads)
        xq, xk, xv = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
        if self.flash:
            output = torch.nn.functional.scaled_dot_product_attention(xq, xk, xv, attn_mask=None, dropout_p=0.0, is_causal=True)
        else:
            scores = torch.matmul(xq, xk.transpose(2, 3)) / math.sqrt(self.head_dim)
            scores = scores + self.mask[:, :, :seqlen, :seqlen]
            scores = F.softmax(scores.float(), dim=-1).type_as(xq)
            output = torch.matmul(scores, xv)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(dim, hidden_dim, bias=False), nn.Linear(hidden_dim, dim, bias=False), nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    def __init__(self, dim, flash):
        super().__init__()
        self.attention, self.feed_forward = LlamaAttention(dim, 8, 4, flash), FeedForward(dim, 1024)
        self.attention_norm, self.ffn_norm = RMSNorm(dim, 1e-5), RMSNorm(dim, 1e-5)

    def forward(self, x, freqs_cos, freqs_sin):
        h = x + self.attention.forward(self.attention_norm(x), freqs_cos, freqs_sin)
        out = h + self.feed_forward.forward(self.ffn_norm(h))
        return out


@style('cross-entropy', ids(8000, 256))
class TinyLlama(nn.Module):
    def __init__(self, flash=True):
        super().__init__()
        self.tok_embeddings = nn.Embedding(8192, 384)
        self.dropout = nn.Dropout(0.0)
        self.layers = torch.nn.ModuleList()
        for layer_id in range(4): self.layers.append(LlamaBlock(384, flash))
        self.norm = RMSNorm(384, eps=1e-5)
        self.output = nn.Linear(384, 8192, bias=False)
        c, s = precompute_freqs_cis(384 // 8, 256)
        self.register_buffer('freqs_cos', c, persistent=False)
        self.register_buffer('freqs_sin', s, persistent=False)

    def forward(self, tokens):
        _bsz, seqlen = tokens.shape
        h = self.tok_embeddings(tokens)
        h = self.dropout(h)
        freqs_cos = self.freqs_cos[:seqlen]
        freqs_sin = self.freqs_sin[:seqlen]
        for layer in self.layers:
            h = layer(h, freqs_cos, freqs_sin)
        h = self.norm(h)
        return self.output(h)


@style('cross-entropy', ids(8000, 256))
class TinyLlamaEager(TinyLlama):
    def __init__(self): super().__init__(flash=False)


# ---- the Transformer of a tutorial: clones, sublayers, functions for attention ----

def clones(module, N): return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


class TutorialNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2, self.eps = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features)), eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class Sublayer(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm, self.dropout = TutorialNorm(size), nn.Dropout(dropout)

    def forward(self, x, sublayer): return x + self.dropout(sublayer(self.norm(x)))


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeaded(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h, self.linears, self.attn, self.dropout = d_model // h, h, clones(nn.Linear(d_model, d_model), 4), None, nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        nbatches = query.size(0)
        query, key, value = [lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2) for lin, x in zip(self.linears, (query, key, value))]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        del query
        del key
        del value
        return self.linears[-1](x)


class EncLayer(nn.Module):
    def __init__(self, size, self_attn, ff, dropout):
        super().__init__()
        self.self_attn, self.feed_forward, self.sublayer = self_attn, ff, clones(Sublayer(size, dropout), 2)

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, ff, dropout):
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward, self.sublayer = self_attn, src_attn, ff, clones(Sublayer(size, dropout), 3)

    def forward(self, x, memory, tgt_mask):
        m = memory
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, m, m))
        return self.sublayer[2](x, self.feed_forward)


class PositionwiseFF(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2, self.dropout = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model), nn.Dropout(dropout)

    def forward(self, x): return self.w_2(self.dropout(self.w_1(x).relu()))


@style('cross-entropy', lambda b, dev: (torch.randint(0, 4000, (b, 72), device=dev), torch.randint(0, 4000, (b, 71), device=dev)))
class AnnotatedTransformer(nn.Module):
    def __init__(self, d_model=256, n=3, h=8):
        super().__init__()
        c = copy.deepcopy
        attn, ff = MultiHeaded(h, d_model), PositionwiseFF(d_model, 1024)
        self.src_embed, self.tgt_embed = nn.Embedding(4000, d_model), nn.Embedding(4000, d_model)
        self.encoder, self.decoder = clones(EncLayer(d_model, c(attn), c(ff), 0.1), n), clones(DecLayer(d_model, c(attn), c(attn), c(ff), 0.1), n)
        self.norm, self.norm2, self.proj, self.d_model = TutorialNorm(d_model), TutorialNorm(d_model), nn.Linear(d_model, 4000), d_model

    def forward(self, src, tgt):
        src_mask = (src != -1).unsqueeze(-2).unsqueeze(1)
        tgt_mask = torch.tril(torch.ones(1, 1, tgt.shape[1], tgt.shape[1], device=tgt.device, dtype=torch.bool))
        memory = self.src_embed(src) * math.sqrt(self.d_model)
        for layer in self.encoder: memory = layer(memory, src_mask)
        memory = self.norm(memory)
        x = self.tgt_embed(tgt) * math.sqrt(self.d_model)
        for layer in self.decoder: x = layer(x, memory, tgt_mask)
        return F.log_softmax(self.proj(self.norm2(x)), dim=-1)


# ---- a U-Net in parts ----

class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels, mid_channels=None):
        super().__init__()
        mid_channels = mid_channels or out_channels
        self.double_conv = nn.Sequential(nn.Conv2d(in_channels, mid_channels, 3, padding=1, bias=False), nn.BatchNorm2d(mid_channels), nn.ReLU(inplace=True),
                                         nn.Conv2d(mid_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))

    def forward(self, x): return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(a, b))

    def forward(self, x): return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, a, b, bilinear):
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode='bilinear', align_corners=True)
            self.conv = DoubleConv(a, b, a // 2)
        else:
            self.up = nn.ConvTranspose2d(a, a // 2, kernel_size=2, stride=2)
            self.conv = DoubleConv(a, b)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diffY = x2.size()[2] - x1.size()[2]
        diffX = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2])
        x = torch.cat([x2, x1], dim=1)
        return self.conv(x)


@style('cross-entropy', floats(3, 130, 98))
class UNet(nn.Module):
    def __init__(self, n_channels=3, n_classes=4, bilinear=False):
        super().__init__()
        self.inc = DoubleConv(n_channels, 32)
        factor = 2 if bilinear else 1
        self.down1, self.down2, self.down3, self.down4 = Down(32, 64), Down(64, 128), Down(128, 256), Down(256, 512 // factor)
        self.up1, self.up2, self.up3, self.up4 = Up(512, 256 // factor, bilinear), Up(256, 128 // factor, bilinear), Up(128, 64 // factor, bilinear), Up(64, 32, bilinear)
        self.outc = nn.Conv2d(32, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x5 = self.down4(x4)
        x = self.up1(x5, x4)
        x = self.up2(x, x3)
        x = self.up3(x, x2)
        x = self.up4(x, x1)
        logits = self.outc(x)
        return logits


@style('cross-entropy', floats(3, 128, 96))
class UNetBilinear(UNet):
    def __init__(self): super().__init__(bilinear=True)


# ---- CIFAR's residual networks, each in a line or two ----

class PreActBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_planes), nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(planes), nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride, bias=False))

    def forward(self, x):
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, 'shortcut') else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        out += shortcut
        return out


@style('cross-entropy', floats(3, 32, 32))
class PreActResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        planes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
        self.layers = nn.Sequential(*[PreActBlock(*p) for p in planes])
        self.linear = nn.Linear(256, 10)

    def forward(self, x):
        out = self.layers(self.conv1(x))
        out = F.avg_pool2d(out, 8)
        out = out.view(out.size(0), -1)
        return self.linear(out)


class DenseLayer(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.bn1, self.conv1, self.bn2, self.conv2 = nn.BatchNorm2d(n), nn.Conv2d(n, 4 * k, 1, bias=False), nn.BatchNorm2d(4 * k), nn.Conv2d(4 * k, k, 3, padding=1, bias=False)

    def forward(self, x):
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        out = torch.cat([out, x], 1)
        return out


@style('cross-entropy', floats(3, 32, 32))
class DenseNetCifar(nn.Module):
    def __init__(self, k=12):
        super().__init__()
        n, parts = 24, []
        self.conv1 = nn.Conv2d(3, n, 3, padding=1, bias=False)
        for stage in range(3):
            for _ in range(6): parts.append(DenseLayer(n, k)); n += k
            if stage < 2: parts += [nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, n // 2, 1, bias=False), nn.AvgPool2d(2)]; n //= 2
        self.body, self.bn, self.fc = nn.Sequential(*parts), nn.BatchNorm2d(n), nn.Linear(n, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.body(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


# ---- pictures made and mended ----

@style('mse', floats(3, 48, 48))
class RCAN(nn.Module):
    """Residual channel attention, twice the size by pixel shuffle."""

    class CALayer(nn.Module):
        def __init__(self, channel, reduction=16):
            super().__init__()
            self.avg_pool = nn.AdaptiveAvgPool2d(1)
            self.conv_du = nn.Sequential(nn.Conv2d(channel, channel // reduction, 1), nn.ReLU(inplace=True), nn.Conv2d(channel // reduction, channel, 1), nn.Sigmoid())

        def forward(self, x):
            y = self.avg_pool(x)
            y = self.conv_du(y)
            return x * y

    class RCAB(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(n, n, 3, padding=1), nn.ReLU(True), nn.Conv2d(n, n, 3, padding=1), RCAN.CALayer(n))

        def forward(self, x):
            res = self.body(x)
            res += x
            return res

    def __init__(self, n=64, blocks=6):
        super().__init__()
        self.head = nn.Conv2d(3, n, 3, padding=1)
        self.body = nn.Sequential(*[RCAN.RCAB(n) for _ in range(blocks)], nn.Conv2d(n, n, 3, padding=1))
        self.tail = nn.Sequential(nn.Conv2d(n, 4 * n, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(n, 3, 3, padding=1))

    def forward(self, x):
        x = self.head(x)
        res = self.body(x)
        res += x
        return self.tail(res)


@style('mse', floats(3, 96, 96))
class CycleGenerator(nn.Module):
    def __init__(self, ngf=32, n_blocks=4):
        super().__init__()
        norm = nn.InstanceNorm2d
        model = [nn.ReflectionPad2d(3), nn.Conv2d(3, ngf, 7), norm(ngf), nn.ReLU(True)]
        for i in range(2): model += [nn.Conv2d(ngf * 2 ** i, ngf * 2 ** (i + 1), 3, stride=2, padding=1), norm(ngf * 2 ** (i + 1)), nn.ReLU(True)]
        for i in range(n_blocks): model += [self.Block(ngf * 4, norm)]
        for i in (2, 1): model += [nn.ConvTranspose2d(ngf * 2 ** i, ngf * 2 ** (i - 1), 3, stride=2, padding=1, output_padding=1), norm(ngf * 2 ** (i - 1)), nn.ReLU(True)]
        self.model = nn.Sequential(*model, nn.ReflectionPad2d(3), nn.Conv2d(ngf, 3, 7), nn.Tanh())

    class Block(nn.Module):
        def __init__(self, dim, norm):
            super().__init__()
            self.conv_block = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(dim, dim, 3), norm(dim), nn.ReLU(True), nn.Dropout(0.5), nn.ReflectionPad2d(1), nn.Conv2d(dim, dim, 3), norm(dim))

        def forward(self, x):
            out = x + self.conv_block(x)
            return out

    def forward(self, input): return self.model(input)


@style('mse', floats(3, 64, 64))
class VQVAE(nn.Module):
    """Vectors of a codebook by the least distance, gradients straight through."""

    def __init__(self, dim=64, codes=512):
        super().__init__()
        self._enc = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.Conv2d(128, dim, 3, 1, 1))
        self._embedding = nn.Embedding(codes, dim)
        self._dec = nn.Sequential(nn.Conv2d(dim, 128, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1))

    def forward(self, x):
        inputs = self._enc(x)
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        input_shape = inputs.shape
        flat_input = inputs.view(-1, 64)
        distances = (torch.sum(flat_input ** 2, dim=1, keepdim=True) + torch.sum(self._embedding.weight ** 2, dim=1) - 2 * torch.matmul(flat_input, self._embedding.weight.t()))
        encoding_indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(encoding_indices.shape[0], 512, device=inputs.device)
        encodings.scatter_(1, encoding_indices, 1)
        quantized = torch.matmul(encodings.to(self._embedding.weight.dtype), self._embedding.weight).view(input_shape)
        quantized = inputs + (quantized - inputs).detach()
        return self._dec(quantized.permute(0, 3, 1, 2).contiguous())


@style('mse', lambda b, dev: (torch.rand(b, 64, 3, device=dev), torch.rand(b, 64, 3, device=dev)))
class NeRF(nn.Module):
    def __init__(self, D=8, W=256, skips=(4,)):
        super().__init__()
        self.skips = skips
        self.pts_linears = nn.ModuleList([nn.Linear(63, W)] + [nn.Linear(W, W) if i not in skips else nn.Linear(W + 63, W) for i in range(D - 1)])
        self.views_linears = nn.ModuleList([nn.Linear(27 + W, W // 2)])
        self.feature_linear, self.alpha_linear, self.rgb_linear = nn.Linear(W, W), nn.Linear(W, 1), nn.Linear(W // 2, 3)

    def embed(self, x, freqs):
        fns = [x]
        for i in range(freqs):
            for fn in [torch.sin, torch.cos]: fns.append(fn(x * 2.0 ** i))
        return torch.cat(fns, -1)

    def forward(self, pts, views):
        input_pts, input_views = self.embed(pts, 10), self.embed(views, 4)
        h = input_pts
        for i, l in enumerate(self.pts_linears):
            h = self.pts_linears[i](h)
            h = F.relu(h)
            if i in self.skips:
                h = torch.cat([input_pts, h], -1)
        alpha = self.alpha_linear(h)
        feature = self.feature_linear(h)
        h = torch.cat([feature, input_views], -1)
        for i, l in enumerate(self.views_linears):
            h = self.views_linears[i](h)
            h = F.relu(h)
        rgb = self.rgb_linear(h)
        outputs = torch.cat([rgb, alpha], -1)
        return outputs


@style('mse', floats(1024, 2))
class Siren(nn.Module):
    class SineLayer(nn.Module):
        def __init__(self, i, o, omega_0=30):
            super().__init__()
            self.omega_0, self.linear = omega_0, nn.Linear(i, o)

        def forward(self, input): return torch.sin(self.omega_0 * self.linear(input))

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*[Siren.SineLayer(a, 256) for a in (2, 256, 256, 256)], nn.Linear(256, 3))

    def forward(self, coords):
        coords = coords.clone()
        output = self.net(coords)
        return output


# ---- graphs, tables, series, words ----

@style('cross-entropy', lambda b, dev: (torch.randn(b, 80, 64, device=dev), torch.rand(b, 80, 80, device=dev)))
class GAT(nn.Module):
    """Graph attention over a dense adjacency."""

    class Layer(nn.Module):
        def __init__(self, i, o, concat=True):
            super().__init__()
            self.W, self.a, self.concat = nn.Parameter(torch.randn(i, o)), nn.Parameter(torch.randn(2 * o, 1)), concat
            self.leakyrelu, self.o = nn.LeakyReLU(0.2), o

        def forward(self, h, adj):
            Wh = torch.matmul(h, self.W)
            Wh1 = torch.matmul(Wh, self.a[:self.o, :])
            Wh2 = torch.matmul(Wh, self.a[self.o:, :])
            e = self.leakyrelu(Wh1 + Wh2.transpose(1, 2))
            zero_vec = -9e15 * torch.ones_like(e)
            attention = torch.where(adj > 0.5, e, zero_vec)
            attention = F.softmax(attention, dim=-1)
            attention = F.dropout(attention, 0.6, training=self.training)
            h_prime = torch.matmul(attention, Wh)
            if self.concat: return F.elu(h_prime)
            else: return h_prime

    def __init__(self):
        super().__init__()
        self.attentions = [GAT.Layer(64, 32) for _ in range(8)]
        for i, attention in enumerate(self.attentions): self.add_module('attention_{}'.format(i), attention)
        self.out_att = GAT.Layer(256, 16, concat=False)

    def forward(self, x, adj):
        x = F.dropout(x, 0.6, training=self.training)
        x = torch.cat([att(x, adj) for att in self.attentions], dim=2)
        x = F.dropout(x, 0.6, training=self.training)
        x = F.elu(self.out_att(x, adj))
        return F.log_softmax(x, dim=2)


@style('mse', floats(384))
class NBeats(nn.Module):
    class Block(nn.Module):
        def __init__(self, units, theta, back, fore):
            super().__init__()
            self.fc1, self.fc2, self.fc3, self.fc4 = nn.Linear(back, units), nn.Linear(units, units), nn.Linear(units, units), nn.Linear(units, units)
            self.theta_b, self.theta_f, self.backcast, self.forecast = nn.Linear(units, theta, bias=False), nn.Linear(units, theta, bias=False), nn.Linear(theta, back), nn.Linear(theta, fore)

        def forward(self, x):
            x = F.relu(self.fc1(x))
            x = F.relu(self.fc2(x))
            x = F.relu(self.fc3(x))
            x = F.relu(self.fc4(x))
            return self.backcast(self.theta_b(x)), self.forecast(self.theta_f(x))

    def __init__(self, back=384, fore=96):
        super().__init__()
        self.fore = fore
        self.stacks = nn.ModuleList([nn.ModuleList([NBeats.Block(512, 32, back, fore) for _ in range(3)]) for _ in range(2)])

    def forward(self, backcast):
        forecast = torch.zeros(size=(backcast.size(0), self.fore), device=backcast.device)
        for stack in self.stacks:
            for block in stack:
                b, f = block(backcast)
                backcast = backcast - b
                forecast = forecast + f
        return forecast


@style('mse', floats(336, 21))
class DLinear(nn.Module):
    """Trend by a moving average, a linear layer for each channel."""

    def __init__(self, seq_len=336, pred_len=96, channels=21, kernel=25):
        super().__init__()
        self.avg, self.kernel, self.pred_len, self.channels = nn.AvgPool1d(kernel_size=kernel, stride=1, padding=0), kernel, pred_len, channels
        self.Linear_Seasonal = nn.ModuleList([nn.Linear(seq_len, pred_len) for _ in range(channels)])
        self.Linear_Trend = nn.ModuleList([nn.Linear(seq_len, pred_len) for _ in range(channels)])

    def forward(self, x):
        front = x[:, 0:1, :].repeat(1, (self.kernel - 1) // 2, 1)
        end = x[:, -1:, :].repeat(1, (self.kernel - 1) // 2, 1)
        mean = self.avg(torch.cat([front, x, end], dim=1).permute(0, 2, 1)).permute(0, 2, 1)
        seasonal_init, trend_init = (x - mean).permute(0, 2, 1), mean.permute(0, 2, 1)
        seasonal_output = torch.zeros([seasonal_init.size(0), seasonal_init.size(1), self.pred_len], dtype=seasonal_init.dtype).to(seasonal_init.device)
        trend_output = torch.zeros([trend_init.size(0), trend_init.size(1), self.pred_len], dtype=trend_init.dtype).to(trend_init.device)
        for i in range(self.channels):
            seasonal_output[:, i, :] = self.Linear_Seasonal[i](seasonal_init[:, i, :])
            trend_output[:, i, :] = self.Linear_Trend[i](trend_init[:, i, :])
        x = seasonal_output + trend_output
        return x.permute(0, 2, 1)


@style('cross-entropy', ids(8000, 128))
class TextCNN(nn.Module):
    def __init__(self, V=10000, D=200, Co=100, Ks=(3, 4, 5)):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.convs = nn.ModuleList([nn.Conv2d(1, Co, (K, D)) for K in Ks])
        self.dropout = nn.Dropout(0.5)
        self.fc1 = nn.Linear(len(Ks) * Co, 5)

    def forward(self, x):
        x = self.embed(x)
        x = x.unsqueeze(1)
        x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        x = [F.max_pool1d(i, i.size(2)).squeeze(2) for i in x]
        x = torch.cat(x, 1)
        x = self.dropout(x)
        logit = self.fc1(x)
        return logit


@style('sum', lambda b, dev: (torch.randint(0, 1000, (b, 20), device=dev), torch.randn(b, 13, device=dev)))
class DeepCross(nn.Module):
    """Crossed features of a click model."""

    def __init__(self, fields=20, dim=16, layers=3):
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(1000, dim) for _ in range(fields)])
        d = fields * dim + 13
        self.w = nn.ModuleList([nn.Linear(d, 1, bias=False) for _ in range(layers)])
        self.b = nn.ParameterList([nn.Parameter(torch.zeros(d)) for _ in range(layers)])
        self.deep = nn.Sequential(nn.Linear(d, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Dropout(0.2), nn.Linear(400, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Dropout(0.2))
        self.out = nn.Linear(d + 400, 1)

    def forward(self, cats, dense):
        embs = []
        for i, e in enumerate(self.emb):
            embs.append(e(cats[:, i]))
        x0 = torch.cat(embs + [dense], dim=1)
        x = x0
        for w, b in zip(self.w, self.b):
            xw = w(x)
            x = x0 * xw + b + x
        return torch.sigmoid(self.out(torch.cat([x, self.deep(x0)], dim=1)).squeeze(1))


@style('cross-entropy', floats(4, 84, 84))
class DuelingDQN(nn.Module):
    def __init__(self, n_actions=18):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(), nn.Conv2d(64, 64, 3, stride=1), nn.ReLU())
        self.advantage = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, n_actions))
        self.value = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, x):
        x = x / 255.0
        x = self.features(x)
        x = x.reshape(x.size(0), -1)
        advantage = self.advantage(x)
        value = self.value(x)
        return value + advantage - advantage.mean(1, keepdim=True)


@style('mse', lambda b, dev: (torch.randn(b, 2, 64, device=dev), torch.linspace(0, 1, 20).to(dev).expand(b, 20)))
class OdeNet(nn.Module):
    """An Euler and a Runge-Kutta solver's steps written out."""

    def __init__(self, dim=64, hidden=512):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, dim))

    def forward(self, y0, t):
        y, out = y0, [y0]
        for i in range(9):
            h = (t[:, i + 1] - t[:, i]).view(-1, 1, 1)
            k1 = self.f(y)
            k2 = self.f(y + 0.5 * h * k1)
            k3 = self.f(y + 0.5 * h * k2)
            k4 = self.f(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            out.append(y)
        return torch.stack(out, dim=1)


@style('cross-entropy', floats(1, 64, 101))
class KeywordResNet(nn.Module):
    """Speech commands, filters made wider by dilation, layers by setattr."""

    def __init__(self, n_layers=6, n_maps=45):
        super().__init__()
        self.conv0 = nn.Conv2d(1, n_maps, (3, 3), padding=(1, 1), bias=False)
        self.n_layers = n_layers
        self.convs = [nn.Conv2d(n_maps, n_maps, (3, 3), padding=int(2 ** (i // 3)), dilation=int(2 ** (i // 3)), bias=False) for i in range(n_layers)]
        for i, conv in enumerate(self.convs):
            self.add_module('bn{}'.format(i + 1), nn.BatchNorm2d(n_maps, affine=False))
            self.add_module('conv{}'.format(i + 1), conv)
        self.output = nn.Linear(n_maps, 12)

    def forward(self, x):
        for i in range(self.n_layers + 1):
            y = F.relu(getattr(self, 'conv{}'.format(i))(x))
            if i == 0:
                old_x = y
            if i > 0 and i % 2 == 0:
                x = y + old_x
                old_x = x
            else:
                x = y
            if i > 0:
                x = getattr(self, 'bn{}'.format(i))(x)
        x = x.view(x.size(0), x.size(1), -1)
        x = torch.mean(x, 2)
        return self.output(x)


@style('cross-entropy', lambda b, dev: (torch.randn(b, 3, 512, device=dev),))
class DGCNN(nn.Module):
    """Edge convolutions over the nearest neighbours of points."""

    def __init__(self, k=16):
        super().__init__()
        self.k = k
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(64), nn.BatchNorm2d(128), nn.BatchNorm1d(512)
        self.conv1 = nn.Sequential(nn.Conv2d(6, 64, kernel_size=1, bias=False), self.bn1, nn.LeakyReLU(negative_slope=0.2))
        self.conv2 = nn.Sequential(nn.Conv2d(128, 128, kernel_size=1, bias=False), self.bn2, nn.LeakyReLU(negative_slope=0.2))
        self.conv3 = nn.Sequential(nn.Conv1d(192, 512, kernel_size=1, bias=False), self.bn3, nn.LeakyReLU(negative_slope=0.2))
        self.linear = nn.Linear(1024, 40)

    def graph_feature(self, x):
        batch_size, num_dims, num_points = x.size()
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        xx = torch.sum(x ** 2, dim=1, keepdim=True)
        pairwise_distance = -xx - inner - xx.transpose(2, 1)
        idx = pairwise_distance.topk(k=self.k, dim=-1)[1]
        idx_base = torch.arange(0, batch_size, device=x.device).view(-1, 1, 1) * num_points
        idx = idx + idx_base
        idx = idx.view(-1)
        x = x.transpose(2, 1).contiguous()
        feature = x.view(batch_size * num_points, -1)[idx, :]
        feature = feature.view(batch_size, num_points, self.k, num_dims)
        x = x.view(batch_size, num_points, 1, num_dims).repeat(1, 1, self.k, 1)
        feature = torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()
        return feature

    def forward(self, x):
        batch_size = x.size(0)
        x = self.graph_feature(x)
        x = self.conv1(x)
        x1 = x.max(dim=-1, keepdim=False)[0]
        x = self.graph_feature(x1)
        x = self.conv2(x)
        x2 = x.max(dim=-1, keepdim=False)[0]
        x = torch.cat((x1, x2), dim=1)
        x = self.conv3(x)
        x1 = F.adaptive_max_pool1d(x, 1).view(batch_size, -1)
        x2 = F.adaptive_avg_pool1d(x, 1).view(batch_size, -1)
        x = torch.cat((x1, x2), 1)
        return self.linear(x)
