"""Models of round 7 as people write them in repositories of their own: tutorials, Kaggle kernels, code of papers.

UNSEEN: name -> (class, inputs(batch, device), loss)."""
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import List, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from styles import floats, ids

UNSEEN = {}


def style(loss, inputs):
    def register(cls):
        UNSEEN[cls.__name__.lower()] = (cls, inputs, loss)
        return cls
    return register


# ---- a GPT of the speedrun kind: functional norms, relu squared, value residuals, capped logits ----

def norm(x): return F.rms_norm(x, (x.size(-1),))


class Rotary(nn.Module):
    def __init__(self, dim, max_len=512, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        freqs = torch.outer(torch.arange(max_len).float(), inv_freq)
        self.register_buffer('cos', freqs.cos(), persistent=False)
        self.register_buffer('sin', freqs.sin(), persistent=False)

    def forward(self, x):
        cos, sin = self.cos[None, :x.size(1), None, :], self.sin[None, :x.size(1), None, :]
        x1, x2 = x.to(dtype=torch.float32).chunk(2, dim=-1)
        y1 = x1 * cos + x2 * sin
        y2 = x1 * (-sin) + x2 * cos
        return torch.cat((y1, y2), 3).type_as(x)


class SpeedAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.c_q, self.c_k, self.c_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.lambdas = nn.Parameter(torch.tensor([0.5, 0.5]))
        self.rotary = Rotary(self.head_dim)
        self.c_proj = nn.Linear(dim, dim, bias=False)
        self.c_proj.weight.data.zero_()

    def forward(self, x, v1=None):
        B, T = x.size(0), x.size(1)
        q = self.c_q(x).view(B, T, self.num_heads, self.head_dim)
        k = self.c_k(x).view(B, T, self.num_heads, self.head_dim)
        v = self.c_v(x).view(B, T, self.num_heads, self.head_dim)
        if v1 is None:
            v1 = v
        v = self.lambdas[0] * v + self.lambdas[1] * v1.view_as(v)
        q, k = norm(q), norm(k)
        q, k = self.rotary(q), self.rotary(k)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        y = y.transpose(1, 2).contiguous().view_as(x)
        return self.c_proj(y), v1


class SpeedMLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.c_fc = nn.Linear(dim, 4 * dim, bias=False)
        self.c_proj = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        x = self.c_fc(x)
        x = F.relu(x).square()
        x = self.c_proj(x)
        return x


class SpeedBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn, self.mlp = SpeedAttention(dim, heads), SpeedMLP(dim)
        self.lambdas = nn.Parameter(torch.tensor([1., 0.]))

    def forward(self, x, v1, x0):
        x = self.lambdas[0] * x + self.lambdas[1] * x0
        x1, v1 = self.attn(norm(x), v1)
        x = x + x1
        x = x + self.mlp(norm(x))
        return x, v1


@style('cross-entropy', ids(8000, 256))
class SpeedGPT(nn.Module):
    def __init__(self, vocab=8192, dim=384, layers=6, heads=6):
        super().__init__()
        self.num_encoder_layers = layers // 2
        self.num_decoder_layers = layers - self.num_encoder_layers
        self.skip_weights = nn.Parameter(torch.ones(self.num_decoder_layers))
        self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(vocab, dim), h=nn.ModuleList([SpeedBlock(dim, heads) for _ in range(layers)])))
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        x = self.transformer.wte(idx)
        x = norm(x)
        x0 = x
        v1 = None
        skip_connections = []
        for i in range(self.num_encoder_layers):
            x, v1 = self.transformer.h[i](x, v1, x0)
            skip_connections.append(x)
        for i in range(self.num_decoder_layers):
            x = x + self.skip_weights[i] * skip_connections.pop()
            x, v1 = self.transformer.h[self.num_encoder_layers + i](x, v1, x0)
        x = norm(x)
        logits = self.lm_head(x)
        logits = 30 * torch.tanh(logits / 30)
        logits = logits.float()
        return logits


# ---- Mamba in one file: the scan is a loop ----

@dataclass
class ModelArgs:
    d_model: int = 192
    n_layer: int = 3
    vocab_size: int = 4000
    d_state: int = 16
    expand: int = 2
    dt_rank: int = 12
    d_conv: int = 4

    def __post_init__(self):
        self.d_inner = int(self.expand * self.d_model)


class MiniRMSNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x):
        output = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return output


class MambaBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.in_proj = nn.Linear(args.d_model, args.d_inner * 2, bias=False)
        self.conv1d = nn.Conv1d(args.d_inner, args.d_inner, bias=True, kernel_size=args.d_conv, groups=args.d_inner, padding=args.d_conv - 1)
        self.x_proj = nn.Linear(args.d_inner, args.dt_rank + args.d_state * 2, bias=False)
        self.dt_proj = nn.Linear(args.dt_rank, args.d_inner, bias=True)
        A = torch.arange(1, args.d_state + 1).float().repeat(args.d_inner, 1)
        self.A_log = nn.Parameter(torch.log(A))
        self.D = nn.Parameter(torch.ones(args.d_inner))
        self.out_proj = nn.Linear(args.d_inner, args.d_model, bias=False)

    def forward(self, x):
        (b, l, d) = x.shape
        x_and_res = self.in_proj(x)
        (x, res) = x_and_res.split(split_size=[self.args.d_inner, self.args.d_inner], dim=-1)
        x = x.transpose(1, 2)
        x = self.conv1d(x)[:, :, :l]
        x = x.transpose(1, 2)
        x = F.silu(x)
        y = self.ssm(x)
        y = y * F.silu(res)
        output = self.out_proj(y)
        return output

    def ssm(self, x):
        (d_in, n) = self.A_log.shape
        A = -torch.exp(self.A_log.float())
        D = self.D.float()
        x_dbl = self.x_proj(x)
        (delta, B, C) = x_dbl.split(split_size=[self.args.dt_rank, n, n], dim=-1)
        delta = F.softplus(self.dt_proj(delta))
        y = self.selective_scan(x, delta, A, B, C, D)
        return y

    def selective_scan(self, u, delta, A, B, C, D):
        (b, l, d_in) = u.shape
        n = A.shape[1]
        deltaA = torch.exp(torch.einsum('bld,dn->bldn', delta, A))
        deltaB_u = torch.einsum('bld,bln,bld->bldn', delta, B, u)
        x = torch.zeros((b, d_in, n), device=deltaA.device)
        ys = []
        for i in range(l):
            x = deltaA[:, i] * x + deltaB_u[:, i]
            y = torch.einsum('bdn,bn->bd', x, C[:, i, :])
            ys.append(y)
        y = torch.stack(ys, dim=1)
        y = y + u * D
        return y


class ResidualBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.mixer = MambaBlock(args)
        self.norm = MiniRMSNorm(args.d_model)

    def forward(self, x):
        output = self.mixer(self.norm(x)) + x
        return output


@style('cross-entropy', ids(4000, 40))
class MambaMinimal(nn.Module):
    def __init__(self):
        super().__init__()
        self.args = args = ModelArgs()
        self.embedding = nn.Embedding(args.vocab_size, args.d_model)
        self.layers = nn.ModuleList([ResidualBlock(args) for _ in range(args.n_layer)])
        self.norm_f = MiniRMSNorm(args.d_model)
        self.lm_head = nn.Linear(args.d_model, args.vocab_size, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        x = self.norm_f(x)
        logits = self.lm_head(x)
        return logits


# ---- Real NVP with alternating masks; the negative log-likelihood is the output ----

class CouplingLayer(nn.Module):
    def __init__(self, dim, hidden, mask):
        super().__init__()
        self.register_buffer('mask', mask)
        self.s = nn.Sequential(nn.Linear(dim, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU(), nn.Linear(hidden, dim), nn.Tanh())
        self.t = nn.Sequential(nn.Linear(dim, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU(), nn.Linear(hidden, dim))

    def forward(self, x):
        x_ = x * self.mask
        s = self.s(x_) * (1 - self.mask)
        t = self.t(x_) * (1 - self.mask)
        z = x_ + (1 - self.mask) * (x * torch.exp(s) + t)
        return z, s.sum(dim=1)


@style('sum', floats(128))
class RealNVP(nn.Module):
    def __init__(self, dim=128, hidden=512, n=6):
        super().__init__()
        masks = [torch.arange(dim) % 2 if i % 2 == 0 else 1 - torch.arange(dim) % 2 for i in range(n)]
        self.layers = nn.ModuleList([CouplingLayer(dim, hidden, m.float()) for m in masks])

    def forward(self, x):
        log_det_inv = x.new_zeros(x.shape[0])
        z = x
        for layer in self.layers:
            z, ld = layer(z)
            log_det_inv += ld
        log_p = -0.5 * (z ** 2 + math.log(2 * math.pi)).sum(dim=1)
        return -(log_p + log_det_inv)


# ---- a dense detector: FPN, shared towers, lists of levels ----

def conv3x3(i, o, s=1): return nn.Conv2d(i, o, 3, stride=s, padding=1, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes, planes, stride=1, downsample=None):
        super().__init__()
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x):
        residual = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            residual = self.downsample(x)
        out += residual
        out = self.relu(out)
        return out


class PyramidFeatures(nn.Module):
    def __init__(self, C3_size, C4_size, C5_size, feature_size=256):
        super().__init__()
        self.P5_1 = nn.Conv2d(C5_size, feature_size, kernel_size=1)
        self.P5_2 = nn.Conv2d(feature_size, feature_size, kernel_size=3, padding=1)
        self.P4_1 = nn.Conv2d(C4_size, feature_size, kernel_size=1)
        self.P4_2 = nn.Conv2d(feature_size, feature_size, kernel_size=3, padding=1)
        self.P3_1 = nn.Conv2d(C3_size, feature_size, kernel_size=1)
        self.P3_2 = nn.Conv2d(feature_size, feature_size, kernel_size=3, padding=1)
        self.P6 = nn.Conv2d(C5_size, feature_size, kernel_size=3, stride=2, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode='nearest')

    def forward(self, inputs):
        C3, C4, C5 = inputs
        P5_x = self.P5_1(C5)
        P5_upsampled_x = self.up(P5_x)
        P5_x = self.P5_2(P5_x)
        P4_x = self.P4_1(C4)
        P4_x = P5_upsampled_x + P4_x
        P4_upsampled_x = self.up(P4_x)
        P4_x = self.P4_2(P4_x)
        P3_x = self.P3_1(C3)
        P3_x = P3_x + P4_upsampled_x
        P3_x = self.P3_2(P3_x)
        P6_x = self.P6(C5)
        return [P3_x, P4_x, P5_x, P6_x]


class ClassificationModel(nn.Module):
    def __init__(self, num_features_in, num_anchors=9, num_classes=20, feature_size=256):
        super().__init__()
        self.num_classes, self.num_anchors = num_classes, num_anchors
        self.conv1 = nn.Conv2d(num_features_in, feature_size, kernel_size=3, padding=1)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(feature_size, feature_size, kernel_size=3, padding=1)
        self.act2 = nn.ReLU()
        self.output = nn.Conv2d(feature_size, num_anchors * num_classes, kernel_size=3, padding=1)
        self.output_act = nn.Sigmoid()

    def forward(self, x):
        out = self.conv1(x)
        out = self.act1(out)
        out = self.conv2(out)
        out = self.act2(out)
        out = self.output(out)
        out = self.output_act(out)
        out1 = out.permute(0, 2, 3, 1)
        batch_size, width, height, channels = out1.shape
        out2 = out1.view(batch_size, width, height, self.num_anchors, self.num_classes)
        return out2.contiguous().view(x.shape[0], -1, self.num_classes)


@style('mse', floats(3, 128, 128))
class RetinaNet(nn.Module):
    def __init__(self, layers=(2, 2, 2, 2)):
        super().__init__()
        self.inplanes = 64
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(64, layers[0])
        self.layer2 = self._make_layer(128, layers[1], 2)
        self.layer3 = self._make_layer(256, layers[2], 2)
        self.layer4 = self._make_layer(512, layers[3], 2)
        self.fpn = PyramidFeatures(128, 256, 512)
        self.classificationModel = ClassificationModel(256)
        self.freeze_bn()

    def _make_layer(self, planes, blocks, stride=1):
        downsample = None
        if stride != 1 or self.inplanes != planes:
            downsample = nn.Sequential(nn.Conv2d(self.inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))
        layers = [BasicBlock(self.inplanes, planes, stride, downsample)]
        self.inplanes = planes
        for _ in range(1, blocks):
            layers.append(BasicBlock(planes, planes))
        return nn.Sequential(*layers)

    def freeze_bn(self):
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()

    def forward(self, img_batch):
        x = self.conv1(img_batch)
        x = self.bn1(x)
        x = self.relu(x)
        x = self.maxpool(x)
        x1 = self.layer1(x)
        x2 = self.layer2(x1)
        x3 = self.layer3(x2)
        x4 = self.layer4(x3)
        features = self.fpn([x2, x3, x4])
        classification = torch.cat([self.classificationModel(feature) for feature in features], dim=1)
        return classification


# ---- SimCLR: two views through one encoder, the NT-Xent loss is the output ----

@style('sum', lambda b, dev: (torch.randn(b, 3, 32, 32, device=dev), torch.randn(b, 3, 32, 32, device=dev)))
class SimCLR(nn.Module):
    def __init__(self, dim=128, temperature=0.5):
        super().__init__()
        self.temperature = temperature
        widths = [64, 128, 256]
        layers, c = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
        for w in widths:
            down = nn.Sequential(nn.Conv2d(c, w, 1, 2, bias=False), nn.BatchNorm2d(w))
            layers += [BasicBlock(c, w, 2, down), BasicBlock(w, w)]
            c = w
        self.f = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))
        self.g = nn.Sequential(nn.Linear(256, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Linear(512, dim, bias=True))

    def encode(self, x):
        x = self.f(x)
        feature = torch.flatten(x, start_dim=1)
        out = self.g(feature)
        return F.normalize(feature, dim=-1), F.normalize(out, dim=-1)

    def forward(self, pos_1, pos_2):
        feature_1, out_1 = self.encode(pos_1)
        feature_2, out_2 = self.encode(pos_2)
        batch_size = pos_1.shape[0]
        out = torch.cat([out_1, out_2], dim=0)
        sim_matrix = torch.exp(torch.mm(out, out.t().contiguous()) / self.temperature)
        mask = (torch.ones_like(sim_matrix) - torch.eye(2 * batch_size, device=sim_matrix.device)).bool()
        sim_matrix = sim_matrix.masked_fill(~mask, 0).sum(dim=-1)
        pos_sim = torch.exp(torch.sum(out_1 * out_2, dim=-1) / self.temperature)
        pos_sim = torch.cat([pos_sim, pos_sim], dim=0)
        loss = (- torch.log(pos_sim / sim_matrix)).mean()
        return loss


# ---- DiT as its paper's repository has it ----

def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class TimestepEmbedder(nn.Module):
    def __init__(self, hidden_size, frequency_embedding_size=256):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(frequency_embedding_size, hidden_size, bias=True), nn.SiLU(), nn.Linear(hidden_size, hidden_size, bias=True))
        self.frequency_embedding_size = frequency_embedding_size

    @staticmethod
    def timestep_embedding(t, dim, max_period=10000):
        half = dim // 2
        freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32) / half).to(device=t.device)
        args = t[:, None].float() * freqs[None]
        embedding = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
        if dim % 2:
            embedding = torch.cat([embedding, torch.zeros_like(embedding[:, :1])], dim=-1)
        return embedding

    def forward(self, t):
        t_freq = self.timestep_embedding(t, self.frequency_embedding_size).to(self.mlp[0].weight.dtype)
        t_emb = self.mlp(t_freq)
        return t_emb


class DiTAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class DiTBlock(nn.Module):
    def __init__(self, hidden_size, num_heads, mlp_ratio=4.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.attn = DiTAttention(hidden_size, num_heads)
        self.norm2 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        mlp_hidden_dim = int(hidden_size * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, mlp_hidden_dim), nn.GELU(approximate='tanh'), nn.Linear(mlp_hidden_dim, hidden_size))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 6 * hidden_size, bias=True))

    def forward(self, x, c):
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa))
        x = x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))
        return x


@style('mse', lambda b, dev: (torch.randn(b, 4, 32, 32, device=dev), torch.randint(0, 1000, (b,), device=dev), torch.randint(0, 100, (b,), device=dev)))
class PaperDiT(nn.Module):
    def __init__(self, hidden_size=384, depth=6, num_heads=6, patch=2, channels=4):
        super().__init__()
        self.patch, self.channels = patch, channels
        self.x_embedder = nn.Conv2d(channels, hidden_size, patch, patch)
        self.t_embedder = TimestepEmbedder(hidden_size)
        self.y_embedder = nn.Embedding(101, hidden_size)
        self.pos_embed = nn.Parameter(torch.zeros(1, 256, hidden_size), requires_grad=False)
        self.blocks = nn.ModuleList([DiTBlock(hidden_size, num_heads) for _ in range(depth)])
        self.norm_final = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(hidden_size, patch * patch * channels, bias=True)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 2 * hidden_size, bias=True))

    def unpatchify(self, x):
        c, p = self.channels, self.patch
        h = w = int(x.shape[1] ** 0.5)
        x = x.reshape(shape=(x.shape[0], h, w, p, p, c))
        x = torch.einsum('nhwpqc->nchpwq', x)
        return x.reshape(shape=(x.shape[0], c, h * p, h * p))

    def forward(self, x, t, y):
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        t = self.t_embedder(t)
        y = self.y_embedder(y)
        c = t + y
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        x = modulate(self.norm_final(x), shift, scale)
        x = self.linear(x)
        x = self.unpatchify(x)
        return x


# ---- domain adaptation: a gradient reversal written as an autograd.Function ----

class ReverseLayerF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        output = grad_output.neg() * ctx.alpha
        return output, None


@style('cross-entropy', floats(3, 28, 28))
class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential()
        self.feature.add_module('f_conv1', nn.Conv2d(3, 64, kernel_size=5))
        self.feature.add_module('f_bn1', nn.BatchNorm2d(64))
        self.feature.add_module('f_pool1', nn.MaxPool2d(2))
        self.feature.add_module('f_relu1', nn.ReLU(True))
        self.feature.add_module('f_conv2', nn.Conv2d(64, 50, kernel_size=5))
        self.feature.add_module('f_bn2', nn.BatchNorm2d(50))
        self.feature.add_module('f_drop1', nn.Dropout2d())
        self.feature.add_module('f_pool2', nn.MaxPool2d(2))
        self.feature.add_module('f_relu2', nn.ReLU(True))
        self.class_classifier = nn.Sequential(OrderedDict([('c_fc1', nn.Linear(50 * 4 * 4, 100)), ('c_bn1', nn.BatchNorm1d(100)), ('c_relu1', nn.ReLU(True)), ('c_drop1', nn.Dropout()),
                                                           ('c_fc2', nn.Linear(100, 100)), ('c_bn2', nn.BatchNorm1d(100)), ('c_relu2', nn.ReLU(True)), ('c_fc3', nn.Linear(100, 10)), ('c_softmax', nn.LogSoftmax(dim=1))]))
        self.domain_classifier = nn.Sequential(nn.Linear(50 * 4 * 4, 100), nn.BatchNorm1d(100), nn.ReLU(True), nn.Linear(100, 2), nn.LogSoftmax(dim=1))

    def forward(self, input_data):
        feature = self.feature(input_data)
        feature = feature.view(-1, 50 * 4 * 4)
        reverse_feature = ReverseLayerF.apply(feature, 0.5)
        class_output = self.class_classifier(feature)
        domain_output = self.domain_classifier(reverse_feature)
        return torch.cat([class_output, domain_output], 1)


# ---- a network of one bit: signs with a straight-through gradient ----

class BinaryActivation(nn.Module):
    def forward(self, x):
        out_forward = torch.sign(x)
        mask1 = x < -1
        mask2 = x < 0
        mask3 = x < 1
        out1 = (-1) * mask1.type(torch.float32) + (x * x + 2 * x) * (1 - mask1.type(torch.float32))
        out2 = out1 * mask2.type(torch.float32) + (-x * x + 2 * x) * (1 - mask2.type(torch.float32))
        out3 = out2 * mask3.type(torch.float32) + 1 * (1 - mask3.type(torch.float32))
        out = out_forward.detach() - out3.detach() + out3
        return out


class HardBinaryConv(nn.Module):
    def __init__(self, in_chn, out_chn, kernel_size=3, stride=1, padding=1):
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.rand((out_chn, in_chn, kernel_size, kernel_size)) * 0.001, requires_grad=True)

    def forward(self, x):
        real_weights = self.weight
        scaling_factor = torch.mean(torch.mean(torch.mean(abs(real_weights), dim=3, keepdim=True), dim=2, keepdim=True), dim=1, keepdim=True)
        scaling_factor = scaling_factor.detach()
        binary_weights_no_grad = scaling_factor * torch.sign(real_weights)
        cliped_weights = torch.clamp(real_weights, -1.0, 1.0)
        binary_weights = binary_weights_no_grad.detach() - cliped_weights.detach() + cliped_weights
        return F.conv2d(x, binary_weights, stride=self.stride, padding=self.padding)


class LearnableBias(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(self, x):
        return x + self.bias.expand_as(x)


class ReActBlock(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.move0, self.binary_activation, self.binary_conv, self.bn1 = LearnableBias(i), BinaryActivation(), HardBinaryConv(i, o, stride=stride), nn.BatchNorm2d(o)
        self.move1, self.prelu, self.move2 = LearnableBias(o), nn.PReLU(o), LearnableBias(o)
        self.downsample = nn.Sequential(nn.AvgPool2d(stride), nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o)) if stride != 1 else None

    def forward(self, x):
        residual = x
        out = self.move0(x)
        out = self.binary_activation(out)
        out = self.binary_conv(out)
        out = self.bn1(out)
        if self.downsample is not None:
            residual = self.downsample(x)
        out += residual
        out = self.move1(out)
        out = self.prelu(out)
        out = self.move2(out)
        return out


@style('cross-entropy', floats(3, 64, 64))
class ReActNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64)
        self.layers = nn.Sequential(ReActBlock(64, 64), ReActBlock(64, 64), ReActBlock(64, 128, 2), ReActBlock(128, 128), ReActBlock(128, 256, 2), ReActBlock(256, 256))
        self.fc = nn.Linear(256, 100)

    def forward(self, x):
        x = self.bn1(self.conv1(x))
        x = self.layers(x)
        x = F.adaptive_avg_pool2d(x, 1)
        x = x.view(x.size(0), -1)
        return self.fc(x)


# ---- messages on edges: gather, an MLP, index_add, a GRU; every graph of a batch has the same edges ----

@style('sum', lambda b, dev: (torch.randn(b, 60, 32, device=dev), torch.randn(b, 240, 8, device=dev)))
class MPNN(nn.Module):
    def __init__(self, hidden=128, steps=3, nodes=60, edges=240):
        super().__init__()
        g = torch.Generator().manual_seed(1)
        self.register_buffer('src', torch.randint(0, nodes, (edges,), generator=g))
        self.register_buffer('dst', torch.randint(0, nodes, (edges,), generator=g))
        self.steps = steps
        self.embed = nn.Linear(32, hidden)
        self.edge_net = nn.Sequential(nn.Linear(2 * hidden + 8, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.update = nn.GRUCell(hidden, hidden)
        self.gate, self.readout = nn.Linear(2 * hidden, 1), nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 12))

    def forward(self, nodes, edges):
        h = self.embed(nodes)
        h0 = h
        for _ in range(self.steps):
            m = self.edge_net(torch.cat([h[:, self.src], h[:, self.dst], edges], dim=-1))
            agg = torch.zeros_like(h)
            index = self.dst.view(1, -1, 1).expand(m.size(0), -1, m.size(-1))
            agg = agg.scatter_add(1, index, m)
            h = self.update(agg.reshape(-1, agg.size(-1)), h.reshape(-1, h.size(-1))).view_as(h)
        a = torch.sigmoid(self.gate(torch.cat([h, h0], -1)))
        return (a * self.readout(h)).sum(1)


# ---- skeletons: ST-GCN ----

class ConvTemporalGraphical(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.conv = nn.Conv2d(in_channels, out_channels * kernel_size, kernel_size=(1, 1))

    def forward(self, x, A):
        assert A.size(0) == self.kernel_size
        x = self.conv(x)
        n, kc, t, v = x.size()
        x = x.view(n, self.kernel_size, kc // self.kernel_size, t, v)
        x = torch.einsum('nkctv,kvw->nctw', (x, A))
        return x.contiguous(), A


class STBlock(nn.Module):
    def __init__(self, i, o, stride=1, residual=True):
        super().__init__()
        self.gcn = ConvTemporalGraphical(i, o, 3)
        self.tcn = nn.Sequential(nn.BatchNorm2d(o), nn.ReLU(inplace=True), nn.Conv2d(o, o, (9, 1), (stride, 1), (4, 0)), nn.BatchNorm2d(o), nn.Dropout(0.1, inplace=True))
        if not residual: self.residual = lambda x: 0
        elif i == o and stride == 1: self.residual = lambda x: x
        else: self.residual = nn.Sequential(nn.Conv2d(i, o, kernel_size=1, stride=(stride, 1)), nn.BatchNorm2d(o))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x, A):
        res = self.residual(x)
        x, A = self.gcn(x, A)
        x = self.tcn(x) + res
        return self.relu(x), A


@style('cross-entropy', floats(3, 64, 18, 2))
class STGCN(nn.Module):
    def __init__(self, in_channels=3, num_class=60):
        super().__init__()
        A = torch.rand(3, 18, 18)
        self.register_buffer('A', A)
        self.data_bn = nn.BatchNorm1d(in_channels * A.size(1))
        self.st_gcn_networks = nn.ModuleList((STBlock(in_channels, 64, residual=False), STBlock(64, 64), STBlock(64, 64), STBlock(64, 128, 2), STBlock(128, 128), STBlock(128, 256, 2), STBlock(256, 256)))
        self.edge_importance = nn.ParameterList([nn.Parameter(torch.ones(self.A.size())) for i in self.st_gcn_networks])
        self.fcn = nn.Conv2d(256, num_class, kernel_size=1)

    def forward(self, x):
        N, C, T, V, M = x.size()
        x = x.permute(0, 4, 3, 1, 2).contiguous()
        x = x.view(N * M, V * C, T)
        x = self.data_bn(x)
        x = x.view(N, M, V, C, T)
        x = x.permute(0, 1, 3, 4, 2).contiguous()
        x = x.view(N * M, C, T, V)
        for gcn, importance in zip(self.st_gcn_networks, self.edge_importance):
            x, _ = gcn(x, self.A * importance)
        x = F.avg_pool2d(x, x.size()[2:])
        x = x.view(N, M, -1, 1, 1).mean(dim=1)
        x = self.fcn(x)
        x = x.view(x.size(0), -1)
        return x


# ---- pix2pix: a U-Net of blocks inside blocks ----

class UnetSkipConnectionBlock(nn.Module):
    def __init__(self, outer_nc, inner_nc, input_nc=None, submodule=None, outermost=False, innermost=False, use_dropout=False):
        super().__init__()
        self.outermost = outermost
        if input_nc is None:
            input_nc = outer_nc
        downconv = nn.Conv2d(input_nc, inner_nc, kernel_size=4, stride=2, padding=1, bias=False)
        downrelu, downnorm = nn.LeakyReLU(0.2, True), nn.BatchNorm2d(inner_nc)
        uprelu, upnorm = nn.ReLU(True), nn.BatchNorm2d(outer_nc)
        if outermost:
            upconv = nn.ConvTranspose2d(inner_nc * 2, outer_nc, kernel_size=4, stride=2, padding=1)
            model = [downconv] + [submodule] + [uprelu, upconv, nn.Tanh()]
        elif innermost:
            upconv = nn.ConvTranspose2d(inner_nc, outer_nc, kernel_size=4, stride=2, padding=1, bias=False)
            model = [downrelu, downconv] + [uprelu, upconv, upnorm]
        else:
            upconv = nn.ConvTranspose2d(inner_nc * 2, outer_nc, kernel_size=4, stride=2, padding=1, bias=False)
            model = [downrelu, downconv, downnorm] + [submodule] + [uprelu, upconv, upnorm]
            if use_dropout: model += [nn.Dropout(0.5)]
        self.model = nn.Sequential(*model)

    def forward(self, x):
        if self.outermost:
            return self.model(x)
        else:
            return torch.cat([x, self.model(x)], 1)


@style('mse', floats(3, 128, 128))
class Pix2Pix(nn.Module):
    def __init__(self, ngf=48, num_downs=7):
        super().__init__()
        b = UnetSkipConnectionBlock(ngf * 8, ngf * 8, innermost=True)
        for i in range(num_downs - 5):
            b = UnetSkipConnectionBlock(ngf * 8, ngf * 8, submodule=b, use_dropout=True)
        b = UnetSkipConnectionBlock(ngf * 4, ngf * 8, submodule=b)
        b = UnetSkipConnectionBlock(ngf * 2, ngf * 4, submodule=b)
        b = UnetSkipConnectionBlock(ngf, ngf * 2, submodule=b)
        self.model = UnetSkipConnectionBlock(3, ngf, input_nc=3, submodule=b, outermost=True)

    def forward(self, input):
        return self.model(input)


# ---- deformable attention in plain PyTorch: grid_sample over levels ----

def ms_deform_attn_core_pytorch(value, value_spatial_shapes, sampling_locations, attention_weights):
    N_, S_, M_, D_ = value.shape
    _, Lq_, M_, L_, P_, _ = sampling_locations.shape
    value_list = value.split([H_ * W_ for H_, W_ in value_spatial_shapes], dim=1)
    sampling_grids = 2 * sampling_locations - 1
    sampling_value_list = []
    for lid_, (H_, W_) in enumerate(value_spatial_shapes):
        value_l_ = value_list[lid_].flatten(2).transpose(1, 2).reshape(N_ * M_, D_, H_, W_)
        sampling_grid_l_ = sampling_grids[:, :, :, lid_].transpose(1, 2).flatten(0, 1)
        sampling_value_l_ = F.grid_sample(value_l_, sampling_grid_l_, mode='bilinear', padding_mode='zeros', align_corners=False)
        sampling_value_list.append(sampling_value_l_)
    attention_weights = attention_weights.transpose(1, 2).reshape(N_ * M_, 1, Lq_, L_ * P_)
    output = (torch.stack(sampling_value_list, dim=-2).flatten(-2) * attention_weights).sum(-1).view(N_, M_ * D_, Lq_)
    return output.transpose(1, 2).contiguous()


class MSDeformAttn(nn.Module):
    def __init__(self, d_model=192, n_levels=2, n_heads=6, n_points=4):
        super().__init__()
        self.n_levels, self.n_heads, self.n_points, self.d_model = n_levels, n_heads, n_points, d_model
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj, self.output_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, query, reference_points, input_flatten, shapes):
        N, Len_q, _ = query.shape
        N, Len_in, _ = input_flatten.shape
        value = self.value_proj(input_flatten)
        value = value.view(N, Len_in, self.n_heads, self.d_model // self.n_heads)
        sampling_offsets = self.sampling_offsets(query).view(N, Len_q, self.n_heads, self.n_levels, self.n_points, 2)
        attention_weights = self.attention_weights(query).view(N, Len_q, self.n_heads, self.n_levels * self.n_points)
        attention_weights = F.softmax(attention_weights, -1).view(N, Len_q, self.n_heads, self.n_levels, self.n_points)
        offset_normalizer = torch.tensor([[w, h] for h, w in shapes], dtype=query.dtype, device=query.device)
        sampling_locations = reference_points[:, :, None, :, None, :] + sampling_offsets / offset_normalizer[None, None, None, :, None, :]
        output = ms_deform_attn_core_pytorch(value, shapes, sampling_locations, attention_weights)
        return self.output_proj(output)


class DeformableLayer(nn.Module):
    def __init__(self, d=192, ffn=512):
        super().__init__()
        self.self_attn, self.dropout1, self.norm1 = MSDeformAttn(d), nn.Dropout(0.1), nn.LayerNorm(d)
        self.linear1, self.dropout2, self.linear2, self.dropout3, self.norm2 = nn.Linear(d, ffn), nn.Dropout(0.1), nn.Linear(ffn, d), nn.Dropout(0.1), nn.LayerNorm(d)

    @staticmethod
    def with_pos_embed(tensor, pos): return tensor if pos is None else tensor + pos

    def forward(self, src, pos, reference_points, shapes):
        src2 = self.self_attn(self.with_pos_embed(src, pos), reference_points, src, shapes)
        src = src + self.dropout1(src2)
        src = self.norm1(src)
        src2 = self.linear2(self.dropout2(F.relu(self.linear1(src))))
        src = src + self.dropout3(src2)
        src = self.norm2(src)
        return src


@style('cross-entropy', lambda b, dev: (torch.randn(b, 64, 32, 32, device=dev), torch.randn(b, 128, 16, 16, device=dev)))
class DeformableEncoder(nn.Module):
    def __init__(self, d=192):
        super().__init__()
        self.p1, self.p2 = nn.Sequential(nn.Conv2d(64, d, 1), nn.GroupNorm(32, d)), nn.Sequential(nn.Conv2d(128, d, 1), nn.GroupNorm(32, d))
        self.level_embed = nn.Parameter(torch.randn(2, d))
        self.layers = nn.ModuleList([DeformableLayer(d) for _ in range(3)])
        self.head = nn.Linear(d, 30)

    @staticmethod
    def get_reference_points(shapes, device):
        reference_points_list = []
        for H_, W_ in shapes:
            ref_y, ref_x = torch.meshgrid(torch.linspace(0.5, H_ - 0.5, H_, device=device), torch.linspace(0.5, W_ - 0.5, W_, device=device), indexing='ij')
            ref_y = ref_y.reshape(-1)[None] / H_
            ref_x = ref_x.reshape(-1)[None] / W_
            reference_points_list.append(torch.stack((ref_x, ref_y), -1))
        return torch.cat(reference_points_list, 1)[:, :, None].repeat(1, 1, len(shapes), 1)

    def forward(self, a, b):
        shapes, flat, pos = [], [], []
        for i, src in enumerate([self.p1(a), self.p2(b)]):
            h, w = src.shape[2:]
            shapes.append((h, w))
            flat.append(src.flatten(2).transpose(1, 2))
            pos.append(self.level_embed[i].view(1, 1, -1).expand(1, h * w, -1))
        output = torch.cat(flat, 1)
        pos = torch.cat(pos, 1)
        reference_points = self.get_reference_points(shapes, output.device).to(output.dtype)
        for layer in self.layers:
            output = layer(output, pos, reference_points, shapes)
        return self.head(output)


# ---- ConvLSTM over frames ----

class ConvLSTMCell(nn.Module):
    def __init__(self, input_dim, hidden_dim, kernel_size=3, bias=True):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.conv = nn.Conv2d(in_channels=input_dim + hidden_dim, out_channels=4 * hidden_dim, kernel_size=kernel_size, padding=kernel_size // 2, bias=bias)

    def forward(self, input_tensor, cur_state):
        h_cur, c_cur = cur_state
        combined = torch.cat([input_tensor, h_cur], dim=1)
        combined_conv = self.conv(combined)
        cc_i, cc_f, cc_o, cc_g = torch.split(combined_conv, self.hidden_dim, dim=1)
        i = torch.sigmoid(cc_i)
        f = torch.sigmoid(cc_f)
        o = torch.sigmoid(cc_o)
        g = torch.tanh(cc_g)
        c_next = f * c_cur + i * g
        h_next = o * torch.tanh(c_next)
        return h_next, c_next

    def init_hidden(self, batch_size, image_size):
        height, width = image_size
        return (torch.zeros(batch_size, self.hidden_dim, height, width, device=self.conv.weight.device, dtype=self.conv.weight.dtype),
                torch.zeros(batch_size, self.hidden_dim, height, width, device=self.conv.weight.device, dtype=self.conv.weight.dtype))


@style('mse', floats(8, 1, 48, 48))
class ConvLSTM(nn.Module):
    def __init__(self, input_dim=1, hidden_dim=(32, 32)):
        super().__init__()
        self.num_layers = len(hidden_dim)
        self.cell_list = nn.ModuleList([ConvLSTMCell(input_dim if i == 0 else hidden_dim[i - 1], hidden_dim[i]) for i in range(self.num_layers)])
        self.out = nn.Conv2d(hidden_dim[-1], 1, 1)

    def forward(self, input_tensor):
        b, _, _, h, w = input_tensor.size()
        hidden_state = [cell.init_hidden(b, (h, w)) for cell in self.cell_list]
        layer_output_list = []
        last_state_list = []
        seq_len = input_tensor.size(1)
        cur_layer_input = input_tensor
        for layer_idx in range(self.num_layers):
            h, c = hidden_state[layer_idx]
            output_inner = []
            for t in range(seq_len):
                h, c = self.cell_list[layer_idx](input_tensor=cur_layer_input[:, t, :, :, :], cur_state=[h, c])
                output_inner.append(h)
            layer_output = torch.stack(output_inner, dim=1)
            cur_layer_input = layer_output
            layer_output_list.append(layer_output)
            last_state_list.append([h, c])
        return self.out(layer_output_list[-1][:, -1])


# ---- slot attention ----

@style('mse', floats(3, 64, 64))
class SlotAttentionAutoEncoder(nn.Module):
    def __init__(self, num_slots=5, iters=3, dim=64, eps=1e-8):
        super().__init__()
        self.num_slots, self.iters, self.eps, self.scale = num_slots, iters, eps, dim ** -0.5
        self.encoder = nn.Sequential(nn.Conv2d(3, dim, 5, padding=2), nn.ReLU(), nn.Conv2d(dim, dim, 5, padding=2, stride=2), nn.ReLU(), nn.Conv2d(dim, dim, 5, padding=2), nn.ReLU())
        self.encoder_pos, self.decoder_pos = nn.Linear(4, dim), nn.Linear(4, dim)
        r = torch.linspace(0., 1., 32)
        g = torch.stack(torch.meshgrid(r, r, indexing='ij'), -1)
        self.register_buffer('grid', torch.cat([g, 1 - g], -1)[None])
        r = torch.linspace(0., 1., 8)
        g = torch.stack(torch.meshgrid(r, r, indexing='ij'), -1)
        self.register_buffer('grid8', torch.cat([g, 1 - g], -1)[None])
        self.slots_mu, self.slots_sigma = nn.Parameter(torch.randn(1, 1, dim)), nn.Parameter(torch.rand(1, 1, dim))
        self.to_q, self.to_k, self.to_v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.gru = nn.GRUCell(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 128), nn.Linear(128, dim)
        self.norm_input, self.norm_slots, self.norm_pre_ff = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(dim, dim, 5, stride=2, padding=2, output_padding=1), nn.ReLU(), nn.ConvTranspose2d(dim, dim, 5, stride=2, padding=2, output_padding=1), nn.ReLU(),
                                     nn.ConvTranspose2d(dim, dim, 5, stride=2, padding=2, output_padding=1), nn.ReLU(), nn.ConvTranspose2d(dim, 4, 3, stride=1, padding=1))

    def slot_attention(self, inputs):
        b, n, d = inputs.shape
        mu = self.slots_mu.expand(b, self.num_slots, -1)
        sigma = self.slots_sigma.expand(b, self.num_slots, -1)
        slots = mu + sigma * torch.randn_like(mu)
        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)
        for _ in range(self.iters):
            slots_prev = slots
            slots = self.norm_slots(slots)
            q = self.to_q(slots)
            dots = torch.einsum('bid,bjd->bij', q, k) * self.scale
            attn = dots.softmax(dim=1) + self.eps
            attn = attn / attn.sum(dim=-1, keepdim=True)
            updates = torch.einsum('bjd,bij->bid', v, attn)
            slots = self.gru(updates.reshape(-1, d), slots_prev.reshape(-1, d))
            slots = slots.reshape(b, -1, d)
            slots = slots + self.fc2(F.relu(self.fc1(self.norm_pre_ff(slots))))
        return slots

    def forward(self, image):
        x = self.encoder(image)
        x = x.permute(0, 2, 3, 1) + self.encoder_pos(self.grid)
        x = torch.flatten(x, 1, 2)
        slots = self.slot_attention(x)
        slots = slots.reshape((-1, slots.shape[-1])).unsqueeze(1).unsqueeze(2)
        slots = slots.repeat((1, 8, 8, 1))
        x = slots + self.decoder_pos(self.grid8)
        x = self.decoder(x.permute(0, 3, 1, 2))
        recons, masks = x.reshape(image.shape[0], -1, 4, x.shape[2], x.shape[3]).split([3, 1], dim=2)
        masks = nn.Softmax(dim=1)(masks)
        recon_combined = torch.sum(recons * masks, dim=1)
        return recon_combined


# ---- a Kaggle kernel: embeddings, LSTM and GRU, attention, pools ----

class KaggleAttention(nn.Module):
    def __init__(self, feature_dim, step_dim, bias=True):
        super().__init__()
        self.bias, self.feature_dim, self.step_dim = bias, feature_dim, step_dim
        self.weight = nn.Parameter(torch.zeros(feature_dim, 1))
        if bias:
            self.b = nn.Parameter(torch.zeros(step_dim))

    def forward(self, x, mask=None):
        feature_dim = self.feature_dim
        step_dim = self.step_dim
        eij = torch.mm(x.contiguous().view(-1, feature_dim), self.weight).view(-1, step_dim)
        if self.bias:
            eij = eij + self.b
        eij = torch.tanh(eij)
        a = torch.exp(eij)
        if mask is not None:
            a = a * mask
        a = a / (torch.sum(a, 1, keepdim=True) + 1e-10)
        weighted_input = x * torch.unsqueeze(a, -1)
        return torch.sum(weighted_input, 1)


@style('sum', ids(20000, 70))
class QuoraNet(nn.Module):
    def __init__(self, max_features=20000, embed_size=300, hidden_size=64, maxlen=70):
        super().__init__()
        self.embedding = nn.Embedding(max_features, embed_size)
        self.embedding_dropout = nn.Dropout2d(0.1)
        self.lstm = nn.LSTM(embed_size, hidden_size, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(hidden_size * 2, hidden_size, bidirectional=True, batch_first=True)
        self.lstm_attention = KaggleAttention(hidden_size * 2, maxlen)
        self.gru_attention = KaggleAttention(hidden_size * 2, maxlen)
        self.linear = nn.Linear(512, 16)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        h_embedding = self.embedding(x)
        h_embedding = torch.squeeze(self.embedding_dropout(torch.unsqueeze(h_embedding, 0)), 0)
        h_lstm, _ = self.lstm(h_embedding)
        h_gru, _ = self.gru(h_lstm)
        h_lstm_atten = self.lstm_attention(h_lstm)
        h_gru_atten = self.gru_attention(h_gru)
        avg_pool = torch.mean(h_gru, 1)
        max_pool, _ = torch.max(h_gru, 1)
        conc = torch.cat((h_lstm_atten, h_gru_atten, avg_pool, max_pool), 1)
        conc = self.relu(self.linear(conc))
        conc = self.dropout(conc)
        out = self.out(conc)
        return out


# ---- swish with a backward of its own, drop connect ----

class SwishImplementation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        i = ctx.saved_tensors[0]
        sigmoid_i = torch.sigmoid(i)
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))


class EffSwish(nn.Module):
    def forward(self, x):
        return SwishImplementation.apply(x)


def drop_connect(inputs, p, training):
    if not training:
        return inputs
    batch_size = inputs.shape[0]
    keep_prob = 1 - p
    random_tensor = keep_prob
    random_tensor += torch.rand([batch_size, 1, 1, 1], dtype=inputs.dtype, device=inputs.device)
    binary_tensor = torch.floor(random_tensor)
    output = inputs / keep_prob * binary_tensor
    return output


class KaggleMBConv(nn.Module):
    def __init__(self, i, o, k, s, e, rate):
        super().__init__()
        m = i * e
        self.skip, self.rate = s == 1 and i == o, rate
        self.expand = nn.Sequential(nn.Conv2d(i, m, 1, bias=False), nn.BatchNorm2d(m), EffSwish())
        self.depthwise = nn.Sequential(nn.Conv2d(m, m, k, s, k // 2, groups=m, bias=False), nn.BatchNorm2d(m), EffSwish())
        self.se_reduce, self.se_expand, self.swish = nn.Conv2d(m, i // 4, 1), nn.Conv2d(i // 4, m, 1), EffSwish()
        self.project = nn.Sequential(nn.Conv2d(m, o, 1, bias=False), nn.BatchNorm2d(o))

    def forward(self, inputs):
        x = self.expand(inputs)
        x = self.depthwise(x)
        x_squeezed = F.adaptive_avg_pool2d(x, 1)
        x_squeezed = self.se_expand(self.swish(self.se_reduce(x_squeezed)))
        x = torch.sigmoid(x_squeezed) * x
        x = self.project(x)
        if self.skip:
            x = drop_connect(x, p=self.rate, training=self.training)
            x = x + inputs
        return x


class GeM(nn.Module):
    def __init__(self, p=3, eps=1e-6):
        super().__init__()
        self.p, self.eps = nn.Parameter(torch.ones(1) * p), eps

    def forward(self, x):
        return F.avg_pool2d(x.clamp(min=self.eps).pow(self.p), (x.size(-2), x.size(-1))).pow(1. / self.p)


@style('cross-entropy', floats(1, 96, 96))
class BengaliNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), EffSwish())
        self.blocks = nn.ModuleList([KaggleMBConv(32, 32, 3, 1, 4, 0.05), KaggleMBConv(32, 48, 3, 2, 6, 0.1), KaggleMBConv(48, 48, 5, 1, 6, 0.1), KaggleMBConv(48, 96, 5, 2, 6, 0.15), KaggleMBConv(96, 96, 3, 1, 6, 0.2)])
        self.pool = GeM()
        self.head1, self.head2, self.head3 = nn.Linear(96, 168), nn.Linear(96, 11), nn.Linear(96, 7)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks: x = b(x)
        x = self.pool(x).view(x.size(0), -1)
        return torch.cat([self.head1(x), self.head2(x), self.head3(x)], 1)


# ---- a discrete VAE: gumbel softmax over a codebook ----

class DResBlock(nn.Module):
    def __init__(self, chan):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(chan, chan, 3, padding=1), nn.ReLU(), nn.Conv2d(chan, chan, 3, padding=1), nn.ReLU(), nn.Conv2d(chan, chan, 1))

    def forward(self, x):
        return self.net(x) + x


@style('sum', floats(3, 64, 64))
class DiscreteVAE(nn.Module):
    def __init__(self, num_tokens=1024, codebook_dim=128, hidden=64, kl_div_loss_weight=0.1):
        super().__init__()
        self.num_tokens, self.weight = num_tokens, kl_div_loss_weight
        self.codebook = nn.Embedding(num_tokens, codebook_dim)
        self.encoder = nn.Sequential(nn.Conv2d(3, hidden, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(hidden, hidden, 4, stride=2, padding=1), nn.ReLU(), DResBlock(hidden), nn.Conv2d(hidden, num_tokens, 1))
        self.decoder = nn.Sequential(nn.Conv2d(codebook_dim, hidden, 1), DResBlock(hidden), nn.ConvTranspose2d(hidden, hidden, 4, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(hidden, hidden, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(hidden, 3, 1))

    def forward(self, img):
        logits = self.encoder(img)
        soft_one_hot = F.gumbel_softmax(logits, tau=0.9, dim=1, hard=False)
        sampled = torch.einsum('b n h w, n d -> b d h w', soft_one_hot, self.codebook.weight)
        out = self.decoder(sampled)
        recon_loss = F.smooth_l1_loss(img, out)
        logits = logits.flatten(2).transpose(1, 2)
        log_qy = F.log_softmax(logits, dim=-1)
        log_uniform = torch.log(torch.tensor([1. / self.num_tokens], device=img.device))
        kl_div = F.kl_div(log_uniform, log_qy, None, None, 'batchmean', log_target=True)
        loss = recon_loss + (kl_div * self.weight)
        return loss


# ---- HiFi-GAN's generator ----

LRELU_SLOPE = 0.1


def get_padding(kernel_size, dilation=1): return int((kernel_size * dilation - dilation) / 2)


class HResBlock(nn.Module):
    def __init__(self, channels, kernel_size=3, dilation=(1, 3, 5)):
        super().__init__()
        wn = torch.nn.utils.weight_norm
        self.convs1 = nn.ModuleList([wn(nn.Conv1d(channels, channels, kernel_size, 1, dilation=d, padding=get_padding(kernel_size, d))) for d in dilation])
        self.convs2 = nn.ModuleList([wn(nn.Conv1d(channels, channels, kernel_size, 1, dilation=1, padding=get_padding(kernel_size, 1))) for d in dilation])

    def forward(self, x):
        for c1, c2 in zip(self.convs1, self.convs2):
            xt = F.leaky_relu(x, LRELU_SLOPE)
            xt = c1(xt)
            xt = F.leaky_relu(xt, LRELU_SLOPE)
            xt = c2(xt)
            x = xt + x
        return x


@style('mse', floats(80, 32))
class HifiGenerator(nn.Module):
    def __init__(self, rates=(8, 8, 2), kernels=(16, 16, 4), ch=256, res=(3, 7)):
        super().__init__()
        wn = torch.nn.utils.weight_norm
        self.num_kernels, self.num_upsamples = len(res), len(rates)
        self.conv_pre = wn(nn.Conv1d(80, ch, 7, 1, padding=3))
        self.ups = nn.ModuleList([wn(nn.ConvTranspose1d(ch // (2 ** i), ch // (2 ** (i + 1)), k, u, padding=(k - u) // 2)) for i, (u, k) in enumerate(zip(rates, kernels))])
        self.resblocks = nn.ModuleList([HResBlock(ch // (2 ** (i + 1)), k) for i in range(len(rates)) for k in res])
        self.conv_post = wn(nn.Conv1d(ch // 2 ** len(rates), 1, 7, 1, padding=3))

    def forward(self, x):
        x = self.conv_pre(x)
        for i in range(self.num_upsamples):
            x = F.leaky_relu(x, LRELU_SLOPE)
            x = self.ups[i](x)
            xs = None
            for j in range(self.num_kernels):
                if xs is None:
                    xs = self.resblocks[i * self.num_kernels + j](x)
                else:
                    xs += self.resblocks[i * self.num_kernels + j](x)
            x = xs / self.num_kernels
        x = F.leaky_relu(x)
        x = self.conv_post(x)
        x = torch.tanh(x)
        return x


# ---- Tacotron 2's decoder: an LSTMCell loop with location-sensitive attention ----

class LocationAttention(nn.Module):
    def __init__(self, rnn, emb, dim, filters=32, k=31):
        super().__init__()
        self.query_layer, self.memory_layer, self.v = nn.Linear(rnn, dim, bias=False), nn.Linear(emb, dim, bias=False), nn.Linear(dim, 1, bias=False)
        self.location_conv, self.location_dense = nn.Conv1d(2, filters, k, padding=(k - 1) // 2, bias=False), nn.Linear(filters, dim, bias=False)

    def forward(self, hidden, memory, processed_memory, weights_cat):
        processed_query = self.query_layer(hidden.unsqueeze(1))
        processed = self.location_conv(weights_cat)
        processed = processed.transpose(1, 2)
        processed = self.location_dense(processed)
        energies = self.v(torch.tanh(processed_query + processed + processed_memory))
        alignment = energies.squeeze(-1)
        attention_weights = F.softmax(alignment, dim=1)
        attention_context = torch.bmm(attention_weights.unsqueeze(1), memory)
        attention_context = attention_context.squeeze(1)
        return attention_context, attention_weights


@style('mse', lambda b, dev: (torch.randn(b, 48, 256, device=dev), torch.randn(b, 24, 80, device=dev)))
class TacotronDecoder(nn.Module):
    def __init__(self, emb=256, rnn=512, mel=80):
        super().__init__()
        self.prenet = nn.ModuleList([nn.Linear(mel, 128, bias=False), nn.Linear(128, 128, bias=False)])
        self.attention_rnn, self.attention_layer = nn.LSTMCell(128 + emb, rnn), LocationAttention(rnn, emb, 128)
        self.decoder_rnn = nn.LSTMCell(rnn + emb, rnn)
        self.linear_projection = nn.Linear(rnn + emb, mel)
        self.rnn, self.emb = rnn, emb

    def initialize_decoder_states(self, memory):
        B, T = memory.size(0), memory.size(1)
        self.attention_hidden, self.attention_cell = memory.new_zeros(B, self.rnn), memory.new_zeros(B, self.rnn)
        self.decoder_hidden, self.decoder_cell = memory.new_zeros(B, self.rnn), memory.new_zeros(B, self.rnn)
        self.attention_weights, self.attention_weights_cum = memory.new_zeros(B, T), memory.new_zeros(B, T)
        self.attention_context = memory.new_zeros(B, self.emb)
        self.memory = memory
        self.processed_memory = self.attention_layer.memory_layer(memory)

    def decode(self, decoder_input):
        cell_input = torch.cat((decoder_input, self.attention_context), -1)
        self.attention_hidden, self.attention_cell = self.attention_rnn(cell_input, (self.attention_hidden, self.attention_cell))
        self.attention_hidden = F.dropout(self.attention_hidden, 0.1, self.training)
        attention_weights_cat = torch.cat((self.attention_weights.unsqueeze(1), self.attention_weights_cum.unsqueeze(1)), dim=1)
        self.attention_context, self.attention_weights = self.attention_layer(self.attention_hidden, self.memory, self.processed_memory, attention_weights_cat)
        self.attention_weights_cum = self.attention_weights_cum + self.attention_weights
        decoder_input = torch.cat((self.attention_hidden, self.attention_context), -1)
        self.decoder_hidden, self.decoder_cell = self.decoder_rnn(decoder_input, (self.decoder_hidden, self.decoder_cell))
        self.decoder_hidden = F.dropout(self.decoder_hidden, 0.1, self.training)
        return self.linear_projection(torch.cat((self.decoder_hidden, self.attention_context), dim=1))

    def forward(self, memory, mels):
        x = mels
        for linear in self.prenet:
            x = F.dropout(F.relu(linear(x)), p=0.5, training=True)
        x = x.transpose(0, 1)
        self.initialize_decoder_states(memory)
        mel_outputs = []
        while len(mel_outputs) < x.size(0):
            decoder_input = x[len(mel_outputs)]
            mel_output = self.decode(decoder_input)
            mel_outputs += [mel_output]
        return torch.stack(mel_outputs, dim=1)


# ---- linear attention ----

def elu_feature_map(x): return F.elu(x) + 1


class LinearAttention(nn.Module):
    def __init__(self, d, h, eps=1e-6):
        super().__init__()
        self.h, self.eps = h, eps
        self.query_projection, self.key_projection, self.value_projection, self.out_projection = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, mask):
        N, L, D = x.shape
        Q = elu_feature_map(self.query_projection(x).view(N, L, self.h, -1))
        K = elu_feature_map(self.key_projection(x).view(N, L, self.h, -1))
        V = self.value_projection(x).view(N, L, self.h, -1)
        K = K * mask[:, :, None, None]
        KV = torch.einsum('nshd,nshm->nhmd', K, V)
        Z = 1 / (torch.einsum('nlhd,nhd->nlh', Q, K.sum(dim=1)) + self.eps)
        out = torch.einsum('nlhd,nhmd,nlh->nlhm', Q, KV, Z)
        return self.out_projection(out.contiguous().view(N, L, -1))


class LinearLayer(nn.Module):
    def __init__(self, d, h, dropout=0.1):
        super().__init__()
        self.attention = LinearAttention(d, h)
        self.linear1, self.linear2, self.norm1, self.norm2, self.dropout = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.LayerNorm(d), nn.LayerNorm(d), nn.Dropout(dropout)

    def forward(self, x, mask):
        x = x + self.dropout(self.attention(x, mask))
        y = x = self.norm1(x)
        y = self.dropout(F.gelu(self.linear1(y)))
        y = self.dropout(self.linear2(y))
        return self.norm2(x + y)


@style('cross-entropy', ids(6000, 256))
class LinearTransformer(nn.Module):
    def __init__(self, d=256, h=8, n=4):
        super().__init__()
        self.emb, self.pos = nn.Embedding(6000, d, padding_idx=0), nn.Parameter(torch.randn(1, 256, d) * 0.02)
        self.layers = nn.ModuleList([LinearLayer(d, h) for _ in range(n)])
        self.cls = nn.Linear(d, 50)

    def forward(self, tokens):
        mask = (tokens != 0).float()
        x = self.emb(tokens) * math.sqrt(self.emb.embedding_dim) + self.pos
        for layer in self.layers: x = layer(x, mask)
        x = (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1.0)
        return self.cls(x)


# ---- SlowFast: two pathways over one clip ----

class Bottleneck3D(nn.Module):
    def __init__(self, i, p, stride=1, t=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv3d(i, p, (t, 1, 1), padding=(t // 2, 0, 0), bias=False), nn.BatchNorm3d(p)
        self.conv2, self.bn2 = nn.Conv3d(p, p, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False), nn.BatchNorm3d(p)
        self.conv3, self.bn3 = nn.Conv3d(p, p * 4, 1, bias=False), nn.BatchNorm3d(p * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv3d(i, p * 4, 1, (1, stride, stride), bias=False), nn.BatchNorm3d(p * 4)) if i != p * 4 else None

    def forward(self, x):
        residual = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            residual = self.downsample(x)
        out += residual
        return self.relu(out)


@style('cross-entropy', floats(3, 16, 64, 64))
class SlowFast(nn.Module):
    def __init__(self):
        super().__init__()
        self.fast_conv1, self.fast_bn1 = nn.Conv3d(3, 8, (5, 7, 7), (1, 2, 2), (2, 3, 3), bias=False), nn.BatchNorm3d(8)
        self.slow_conv1, self.slow_bn1 = nn.Conv3d(3, 64, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False), nn.BatchNorm3d(64)
        self.pool, self.relu = nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)), nn.ReLU(inplace=True)
        self.lateral1, self.lateral2 = nn.Conv3d(8, 16, (5, 1, 1), (4, 1, 1), (2, 0, 0), bias=False), nn.Conv3d(32, 64, (5, 1, 1), (4, 1, 1), (2, 0, 0), bias=False)
        self.fast_res2, self.fast_res3 = Bottleneck3D(8, 8, 1, 3), Bottleneck3D(32, 16, 2, 3)
        self.slow_res2, self.slow_res3 = Bottleneck3D(80, 64), Bottleneck3D(320, 128, 2)
        self.fc = nn.Linear(512 + 64, 50)

    def fast_path(self, x):
        lateral = []
        x = self.pool(self.relu(self.fast_bn1(self.fast_conv1(x))))
        lateral.append(self.lateral1(x))
        x = self.fast_res2(x)
        lateral.append(self.lateral2(x))
        x = self.fast_res3(x)
        return nn.AdaptiveAvgPool3d(1)(x).view(-1, x.size(1)), lateral

    def forward(self, input):
        fast, lateral = self.fast_path(input)
        x = self.pool(self.relu(self.slow_bn1(self.slow_conv1(input[:, :, ::4]))))
        x = torch.cat([x, lateral[0]], dim=1)
        x = self.slow_res2(x)
        x = torch.cat([x, lateral[1]], dim=1)
        x = self.slow_res3(x)
        x = nn.AdaptiveAvgPool3d(1)(x).view(-1, x.size(1))
        x = torch.cat([x, fast], dim=1)
        return self.fc(x)


# ---- perceptual loss: features of a VGG kept by name, Gram matrices ----

def gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    features_t = features.transpose(1, 2)
    gram = features.bmm(features_t) / (ch * h * w)
    return gram


@style('sum', lambda b, dev: (torch.rand(b, 3, 96, 96, device=dev), torch.rand(b, 3, 96, 96, device=dev)))
class FastStyle(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.ReflectionPad2d(4), nn.Conv2d(3, 32, 9), nn.InstanceNorm2d(32, affine=True), nn.ReLU(), nn.ReflectionPad2d(1), nn.Conv2d(32, 64, 3, 2), nn.InstanceNorm2d(64, affine=True), nn.ReLU(),
                                 nn.Upsample(scale_factor=2, mode='nearest'), nn.ReflectionPad2d(4), nn.Conv2d(64, 3, 9))
        slices, c = [], 3
        for n, w in ((2, 64), (2, 128), (3, 256)):
            layers = [] if not slices else [nn.MaxPool2d(2)]
            for _ in range(n):
                layers += [nn.Conv2d(c, w, 3, padding=1), nn.ReLU(inplace=False)]
                c = w
            slices.append(nn.Sequential(*layers))
        self.slice1, self.slice2, self.slice3 = slices
        for s in slices:
            for p in s.parameters(): p.requires_grad = False
        self.register_buffer('mean', torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1))
        self.register_buffer('std', torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1))

    def features(self, X):
        h = self.slice1((X - self.mean) / self.std)
        h_relu1_2 = h
        h = self.slice2(h)
        h_relu2_2 = h
        h = self.slice3(h)
        h_relu3_3 = h
        return OrderedDict(relu1_2=h_relu1_2, relu2_2=h_relu2_2, relu3_3=h_relu3_3)

    def forward(self, x, style):
        y = self.net(x)
        features_y = self.features(y)
        features_x = self.features(x)
        gram_style = [gram_matrix(f) for f in self.features(style).values()]
        content_loss = 1e5 * F.mse_loss(features_y['relu2_2'], features_x['relu2_2'])
        style_loss = 0.
        for ft_y, gm_s in zip(features_y.values(), gram_style):
            gm_y = gram_matrix(ft_y)
            style_loss += F.mse_loss(gm_y, gm_s)
        style_loss *= 1e10
        return content_loss + style_loss


# ---- Swin by hand: windows, rolls, masks ----

def window_partition(x, window_size):
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    windows = x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size, window_size, C)
    return windows


def window_reverse(windows, window_size, H, W):
    B = windows.shape[0] // (H * W // window_size // window_size)
    x = windows.view(B, H // window_size, W // window_size, window_size, window_size, -1)
    x = x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)
    return x


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        coords = torch.stack(torch.meshgrid([torch.arange(window_size), torch.arange(window_size)], indexing='ij')).flatten(1)
        relative_coords = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative_coords[:, :, 0] += window_size - 1
        relative_coords[:, :, 1] += window_size - 1
        relative_coords[:, :, 0] *= 2 * window_size - 1
        self.register_buffer('relative_position_index', relative_coords.sum(-1))
        self.qkv, self.proj, self.attn_drop, self.proj_drop, self.softmax = nn.Linear(dim, dim * 3), nn.Linear(dim, dim), nn.Dropout(0.), nn.Dropout(0.), nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q * self.scale
        attn = (q @ k.transpose(-2, -1))
        relative_position_bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(N, N, -1)
        relative_position_bias = relative_position_bias.permute(2, 0, 1).contiguous()
        attn = attn + relative_position_bias.unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
            attn = self.softmax(attn)
        else:
            attn = self.softmax(attn)
        attn = self.attn_drop(attn)
        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        x = self.proj(x)
        x = self.proj_drop(x)
        return x


class SwinBlock(nn.Module):
    def __init__(self, dim, res, heads, window=7, shift=0):
        super().__init__()
        self.res, self.window, self.shift = res, window, shift
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), WindowAttention(dim, window, heads), nn.LayerNorm(dim)
        self.fc1, self.act, self.fc2, self.drop = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(0.)
        mask = None
        if shift > 0:
            img_mask, cnt = torch.zeros((1, res, res, 1)), 0
            for h in (slice(0, -window), slice(-window, -shift), slice(-shift, None)):
                for w in (slice(0, -window), slice(-window, -shift), slice(-shift, None)):
                    img_mask[:, h, w, :] = cnt
                    cnt += 1
            m = window_partition(img_mask, window).view(-1, window * window)
            mask = m.unsqueeze(1) - m.unsqueeze(2)
            mask = mask.masked_fill(mask != 0, float(-100.0)).masked_fill(mask == 0, float(0.0))
        self.register_buffer('attn_mask', mask)

    def forward(self, x):
        H = W = self.res
        B, L, C = x.shape
        shortcut = x
        x = self.norm1(x)
        x = x.view(B, H, W, C)
        if self.shift > 0:
            shifted_x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        else:
            shifted_x = x
        x_windows = window_partition(shifted_x, self.window)
        x_windows = x_windows.view(-1, self.window * self.window, C)
        attn_windows = self.attn(x_windows, mask=self.attn_mask)
        attn_windows = attn_windows.view(-1, self.window, self.window, C)
        shifted_x = window_reverse(attn_windows, self.window, H, W)
        if self.shift > 0:
            x = torch.roll(shifted_x, shifts=(self.shift, self.shift), dims=(1, 2))
        else:
            x = shifted_x
        x = x.view(B, H * W, C)
        x = shortcut + x
        x = x + self.drop(self.fc2(self.drop(self.act(self.fc1(self.norm2(x))))))
        return x


class PatchMerging(nn.Module):
    def __init__(self, dim, res):
        super().__init__()
        self.res, self.reduction, self.norm = res, nn.Linear(4 * dim, 2 * dim, bias=False), nn.LayerNorm(4 * dim)

    def forward(self, x):
        B, L, C = x.shape
        x = x.view(B, self.res, self.res, C)
        x0 = x[:, 0::2, 0::2, :]
        x1 = x[:, 1::2, 0::2, :]
        x2 = x[:, 0::2, 1::2, :]
        x3 = x[:, 1::2, 1::2, :]
        x = torch.cat([x0, x1, x2, x3], -1)
        x = x.view(B, -1, 4 * C)
        return self.reduction(self.norm(x))


@style('cross-entropy', floats(3, 112, 112))
class PaperSwin(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.patch, self.norm0 = nn.Conv2d(3, dim, 4, 4), nn.LayerNorm(dim)
        self.layers = nn.Sequential(SwinBlock(dim, 28, 2), SwinBlock(dim, 28, 2, shift=3), PatchMerging(dim, 28), SwinBlock(2 * dim, 14, 4), SwinBlock(2 * dim, 14, 4, shift=3), PatchMerging(2 * dim, 14), SwinBlock(4 * dim, 7, 8), SwinBlock(4 * dim, 7, 8))
        self.norm, self.avgpool, self.head = nn.LayerNorm(4 * dim), nn.AdaptiveAvgPool1d(1), nn.Linear(4 * dim, 200)

    def forward(self, x):
        x = self.norm0(self.patch(x).flatten(2).transpose(1, 2))
        x = self.layers(x)
        x = self.norm(x)
        x = self.avgpool(x.transpose(1, 2))
        x = torch.flatten(x, 1)
        return self.head(x)


# ---- RWKV's time mixing, one token after the other ----

class RWKVTimeMix(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.time_decay, self.time_first = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.time_mix_k, self.time_mix_v, self.time_mix_r = (nn.Parameter(torch.ones(1, 1, d) * 0.5) for _ in range(3))
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.key, self.value, self.receptance, self.output = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        B, T, C = x.size()
        xx = self.time_shift(x)
        xk = x * self.time_mix_k + xx * (1 - self.time_mix_k)
        xv = x * self.time_mix_v + xx * (1 - self.time_mix_v)
        xr = x * self.time_mix_r + xx * (1 - self.time_mix_r)
        k, v, r = self.key(xk).float(), self.value(xv).float(), torch.sigmoid(self.receptance(xr))
        w, u = -torch.exp(self.time_decay.float()), self.time_first.float()
        aa, bb, pp = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), torch.full_like(k[:, 0], -1e38)
        out = []
        for t in range(T):
            kt, vt = k[:, t], v[:, t]
            ww = u + kt
            p = torch.maximum(pp, ww)
            e1, e2 = torch.exp(pp - p), torch.exp(ww - p)
            out.append((e1 * aa + e2 * vt) / (e1 * bb + e2))
            ww = w + pp
            p = torch.maximum(ww, kt)
            e1, e2 = torch.exp(ww - p), torch.exp(kt - p)
            aa, bb, pp = e1 * aa + e2 * vt, e1 * bb + e2, p
        wkv = torch.stack(out, 1).type_as(x)
        return self.output(r * wkv)


class RWKVChannelMix(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.time_shift, self.time_mix = nn.ZeroPad2d((0, 0, 1, -1)), nn.Parameter(torch.ones(1, 1, d) * 0.5)
        self.key, self.receptance, self.value = nn.Linear(d, 4 * d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        xx = self.time_shift(x)
        xk = x * self.time_mix + xx * (1 - self.time_mix)
        k = self.key(xk)
        k = torch.square(torch.relu(k))
        kv = self.value(k)
        return torch.sigmoid(self.receptance(xk)) * kv


@style('cross-entropy', ids(4000, 24))
class RWKV(nn.Module):
    def __init__(self, d=256, n=3):
        super().__init__()
        self.emb, self.ln0 = nn.Embedding(4000, d), nn.LayerNorm(d)
        self.blocks = nn.ModuleList([nn.ModuleDict(dict(ln1=nn.LayerNorm(d), att=RWKVTimeMix(d), ln2=nn.LayerNorm(d), ffn=RWKVChannelMix(d))) for _ in range(n)])
        self.ln_out, self.head = nn.LayerNorm(d), nn.Linear(d, 4000, bias=False)

    def forward(self, idx):
        x = self.ln0(self.emb(idx))
        for b in self.blocks:
            x = x + b['att'](b['ln1'](x))
            x = x + b['ffn'](b['ln2'](x))
        return self.head(self.ln_out(x))


# ---- offline RL: states, actions and returns as one sequence ----

@style('mse', lambda b, dev: (torch.randn(b, 40, 17, device=dev), torch.randn(b, 40, 6, device=dev), torch.randn(b, 40, 1, device=dev), torch.arange(40, device=dev).expand(b, 40)))
class DecisionTransformer(nn.Module):
    def __init__(self, h=128, heads=4, n=3, context=40, drop_p=0.1):
        super().__init__()
        self.h = h
        self.embed_ln, self.embed_timestep = nn.LayerNorm(h), nn.Embedding(1000, h)
        self.embed_rtg, self.embed_state, self.embed_action = nn.Linear(1, h), nn.Linear(17, h), nn.Linear(6, h)
        self.blocks = nn.Sequential(*[MaskedBlock(h, 3 * context, heads, drop_p) for _ in range(n)])
        self.predict_action = nn.Sequential(nn.Linear(h, 6), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps):
        B, T, _ = states.shape
        time_embeddings = self.embed_timestep(timesteps)
        state_embeddings = self.embed_state(states) + time_embeddings
        action_embeddings = self.embed_action(actions) + time_embeddings
        returns_embeddings = self.embed_rtg(returns_to_go) + time_embeddings
        h = torch.stack((returns_embeddings, state_embeddings, action_embeddings), dim=1).permute(0, 2, 1, 3).reshape(B, 3 * T, self.h)
        h = self.embed_ln(h)
        h = self.blocks(h)
        h = h.reshape(B, T, 3, self.h).permute(0, 2, 1, 3)
        action_preds = self.predict_action(h[:, 1])
        return action_preds


class MaskedCausalAttention(nn.Module):
    def __init__(self, h_dim, max_T, n_heads, drop_p):
        super().__init__()
        self.n_heads = n_heads
        self.q_net, self.k_net, self.v_net, self.proj_net = (nn.Linear(h_dim, h_dim) for _ in range(4))
        self.att_drop, self.proj_drop = nn.Dropout(drop_p), nn.Dropout(drop_p)
        self.register_buffer('mask', torch.tril(torch.ones((max_T, max_T))).view(1, 1, max_T, max_T))

    def forward(self, x):
        B, T, C = x.shape
        N, D = self.n_heads, C // self.n_heads
        q = self.q_net(x).view(B, T, N, D).transpose(1, 2)
        k = self.k_net(x).view(B, T, N, D).transpose(1, 2)
        v = self.v_net(x).view(B, T, N, D).transpose(1, 2)
        weights = q @ k.transpose(2, 3) / math.sqrt(D)
        weights = weights.masked_fill(self.mask[..., :T, :T] == 0, float('-inf'))
        normalized_weights = F.softmax(weights, dim=-1)
        attention = self.att_drop(normalized_weights @ v)
        attention = attention.transpose(1, 2).contiguous().view(B, T, N * D)
        out = self.proj_drop(self.proj_net(attention))
        return out


class MaskedBlock(nn.Module):
    def __init__(self, h_dim, max_T, n_heads, drop_p):
        super().__init__()
        self.attention = MaskedCausalAttention(h_dim, max_T, n_heads, drop_p)
        self.mlp = nn.Sequential(nn.Linear(h_dim, 4 * h_dim), nn.GELU(), nn.Linear(4 * h_dim, h_dim), nn.Dropout(drop_p))
        self.ln1, self.ln2 = nn.LayerNorm(h_dim), nn.LayerNorm(h_dim)

    def forward(self, x):
        x = x + self.attention(x)
        x = self.ln1(x)
        x = x + self.mlp(x)
        x = self.ln2(x)
        return x


# ---- time series: Inception ----

class InceptionModule(nn.Module):
    def __init__(self, ni, nf=32, ks=(39, 19, 9)):
        super().__init__()
        self.bottleneck = nn.Conv1d(ni, nf, 1, bias=False) if ni > 1 else (lambda x: x)
        self.convs = nn.ModuleList([nn.Conv1d(nf if ni > 1 else ni, nf, k, padding=k // 2, bias=False) for k in ks])
        self.maxconvpool = nn.Sequential(nn.MaxPool1d(3, stride=1, padding=1), nn.Conv1d(ni, nf, 1, bias=False))
        self.bn, self.act = nn.BatchNorm1d(nf * 4), nn.ReLU()

    def forward(self, x):
        input_tensor = x
        x = self.bottleneck(input_tensor)
        x = torch.cat([l(x) for l in self.convs] + [self.maxconvpool(input_tensor)], dim=1)
        return self.act(self.bn(x))


@style('cross-entropy', floats(1, 500))
class InceptionTime(nn.Module):
    def __init__(self, depth=6, nf=32, classes=10):
        super().__init__()
        self.inception, self.shortcut = nn.ModuleList(), nn.ModuleList()
        for d in range(depth):
            self.inception.append(InceptionModule(1 if d == 0 else nf * 4, nf))
            if d % 3 == 2:
                n_in = 1 if d == 2 else nf * 4
                self.shortcut.append(nn.BatchNorm1d(n_in) if n_in == nf * 4 else nn.Sequential(nn.Conv1d(n_in, nf * 4, 1, bias=False), nn.BatchNorm1d(nf * 4)))
        self.act, self.fc = nn.ReLU(), nn.Linear(nf * 4, classes)

    def forward(self, x):
        res = x
        for d, l in enumerate(self.inception):
            x = l(x)
            if d % 3 == 2:
                res = x = self.act(torch.add(x, self.shortcut[d // 3](res)))
        x = x.mean(-1)
        return self.fc(x)


# ---- point clouds: sampling, gathers, pools ----

def square_distance(src, dst):
    B, N, _ = src.shape
    _, M, _ = dst.shape
    dist = -2 * torch.matmul(src, dst.permute(0, 2, 1))
    dist += torch.sum(src ** 2, -1).view(B, N, 1)
    dist += torch.sum(dst ** 2, -1).view(B, 1, M)
    return dist


def index_points(points, idx):
    raw_size = idx.size()
    idx = idx.reshape(raw_size[0], -1)
    res = torch.gather(points, 1, idx[..., None].expand(-1, -1, points.size(-1)))
    return res.reshape(*raw_size, -1)


class PointTransformerBlock(nn.Module):
    def __init__(self, d_points, d_model, k):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(d_points, d_model), nn.Linear(d_model, d_points)
        self.fc_delta = nn.Sequential(nn.Linear(3, d_model), nn.ReLU(), nn.Linear(d_model, d_model))
        self.fc_gamma = nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU(), nn.Linear(d_model, d_model))
        self.w_qs, self.w_ks, self.w_vs = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.k = k

    def forward(self, xyz, features):
        dists = square_distance(xyz, xyz)
        knn_idx = dists.argsort()[:, :, :self.k]
        knn_xyz = index_points(xyz, knn_idx)
        pre = features
        x = self.fc1(features)
        q, k, v = self.w_qs(x), index_points(self.w_ks(x), knn_idx), index_points(self.w_vs(x), knn_idx)
        pos_enc = self.fc_delta(xyz[:, :, None] - knn_xyz)
        attn = self.fc_gamma(q[:, :, None] - k + pos_enc)
        attn = F.softmax(attn / math.sqrt(k.size(-1)), dim=-2)
        res = torch.einsum('bmnf,bmnf->bmf', attn, v + pos_enc)
        res = self.fc2(res) + pre
        return res, attn


@style('cross-entropy', floats(256, 3))
class PointTransformer(nn.Module):
    def __init__(self, classes=40):
        super().__init__()
        self.fc1 = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32))
        self.transformer1, self.transformer2 = PointTransformerBlock(32, 128, 16), PointTransformerBlock(32, 128, 16)
        self.fc2 = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, classes))

    def forward(self, x):
        xyz = x[..., :3]
        points, attn = self.transformer1(xyz, self.fc1(x))
        points, attn = self.transformer2(xyz, points)
        return self.fc2(points.mean(1))
