#!/usr/bin/env python3
"""Make the references that package validate is tested against.

    python3 scripts/validation/training_reference.py [--out DIR] [NAME ...]

Each model is small enough for its weights to stay in its file. It is built from
a seed, exported in train mode by PyTorch's dynamo exporter as
scripts/export/export_models.py does, and trained for two steps by PyTorch on the CPU.
NAME.onnx is the model and NAME.npz holds:

    input0, target        what it was trained on
    output0               its output in the first step, by PyTorch
    ort:output0           the same by onnxruntime on NAME.onnx
    loss                  of both steps
    grad1:PARAM, grad2:   gradients of the first and of the second step
    meta                  the optimizer

Of dropout, whose numbers are random, there is only the model.
Needs torch, onnx, onnxscript, onnxruntime, numpy.
"""
import argparse
import os
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.nn import functional as F

from torch.nn.utils.parametrizations import weight_norm

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "export"))
from export_models import export, TRACE  # noqa: E402

BATCH = 2


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.GELU(approximate="tanh"), nn.LayerNorm(16), nn.Linear(16, 24), nn.GLU(), nn.Linear(12, 5))

    def forward(self, x):
        return self.net(x)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.down(x), inplace=True)


class ResNet(nn.Module):
    """A stem, two residual blocks, a mean over the image."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.layer1, self.layer2 = Block(4, 6, 1), Block(6, 8, 2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.layer2(self.layer1(self.stem(x))), 1), 1))


class Mobile(nn.Module):
    """Depthwise, grouped and dilated convolutions, clamped and hard activations, average pooling, a frozen scale."""

    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
        self.b = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 2, dilation=2, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.c = nn.Sequential(nn.Conv2d(8, 12, 1, groups=4), nn.GroupNorm(3, 12), nn.SiLU(), nn.AvgPool2d(3, 2, 1))
        self.se = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 4, 1), nn.ReLU(), nn.Conv2d(4, 12, 1), nn.Hardsigmoid())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 5))

    def forward(self, x):
        y = self.c(self.b(self.a(x)))
        return self.head(y * self.se(y))


class UNet(nn.Module):
    """One level down and up again, concatenated; a class for each pixel."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.mid = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ELU())
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x):
        a = self.down(x)
        b = self.up(self.mid(F.max_pool2d(a, 2)))
        return self.out(torch.cat([a, b], 1))


class GPT(nn.Module):
    """A causal transformer block with attention written out, tied to its table of tokens."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(17, 12), nn.Embedding(6, 12)
        self.ln1, self.ln2, self.ln3 = nn.LayerNorm(12), nn.LayerNorm(12), nn.LayerNorm(12)
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)
        self.up, self.dn = nn.Linear(12, 24), nn.Linear(24, 12)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6, dtype=torch.bool)))

    def forward(self, ids):
        n, s = ids.shape
        x = self.tok(ids) + self.pos(torch.arange(s))
        q, k, v = (t.view(n, s, 3, 4).transpose(1, 2) for t in self.qkv(self.ln1(x)).split(12, dim=2))
        a = (q @ k.transpose(-1, -2)) / 2.0
        a = a.masked_fill(~self.mask, float("-inf")).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(n, s, 12))
        x = x + self.dn(F.gelu(self.up(self.ln2(x))))
        return F.linear(self.ln3(x), self.tok.weight)


class Llama(nn.Module):
    """RMS norms written out, rotary positions, grouped heads in one fused attention, a gated product."""

    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(19, 16)
        self.n1, self.n2 = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(16))
        self.q, self.k, self.v, self.o = nn.Linear(16, 16, False), nn.Linear(16, 8, False), nn.Linear(16, 8, False), nn.Linear(16, 16, False)
        self.g, self.u, self.d = nn.Linear(16, 24, False), nn.Linear(16, 24, False), nn.Linear(24, 16, False)
        self.head = nn.Linear(16, 19, False)
        self.register_buffer("inv_freq", 1.0 / 100 ** (torch.arange(0, 4, 2) / 4))

    def norm(self, x, w):
        return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def rotate(self, x, cos, sin):
        a, b = x[..., :2], x[..., 2:]
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, ids):
        n, s = ids.shape
        x = self.tok(ids)
        f = torch.arange(s)[:, None].float() * self.inv_freq[None]
        f = torch.cat((f, f), -1)
        cos, sin = f.cos(), f.sin()
        h = self.norm(x, self.n1)
        q, k, v = (m(h).view(n, s, -1, 4).transpose(1, 2) for m in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(n, s, 16))
        h = self.norm(x, self.n2)
        x = x + self.d(F.silu(self.g(h)) * self.u(h))
        return self.head(x)


class ConvNeXt(nn.Module):
    """A patch stem, a depthwise block with its norm over the last dim and a scale."""

    def __init__(self):
        super().__init__()
        self.stem, self.dw = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.up, self.dn = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.full((8, 1, 1), 0.5))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.dn(F.gelu(self.up(self.norm(self.dw(x).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)
        x = x + self.scale * y
        return self.head(x.mean((2, 3)))


class Pointwise(nn.Module):
    """Elementwise functions, views, reductions and picks."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 12), nn.Linear(12, 5)
        self.w = nn.Parameter(torch.rand(12) + 0.5)

    def forward(self, x):
        y = self.a(x)
        u, v, w = y.split(4, 1)
        u = torch.tanh(u) * torch.sigmoid(v) + F.softplus(w) / (1 + v.abs()) - F.leaky_relu(u, 0.1)
        v = torch.exp(v.clamp(-1, 1)) + torch.log(1 + w * w) + torch.sqrt(w.abs() + 0.5) - (3 - v).pow(3) / 8
        w = torch.where(w > 0, torch.sin(w), torch.cos(v)) + F.mish(v) + torch.erf(w) - torch.rsqrt(u * u + 1)
        s = torch.stack([u, v, w], 1)
        s = s[:, 1:] - s[:, :-1] * s[:, 1:].amax(2, keepdim=True)
        z = torch.cat([s.flatten(1), u.index_select(1, torch.tensor([3, 0, 0, 1]))], 1) * self.w
        z = F.elu(z) + F.pad(z[:, 2:], (1, 1)) + F.log_softmax(z, 1) + z.softmax(1) * z.mean(1, keepdim=True) + z.var(1, keepdim=True)
        return self.b(z)


class Places(nn.Module):
    """Elements that are looked up, put elsewhere and resampled: grids, cubics, scattering, writes into windows, norms, sums along a dim."""

    def __init__(self):
        super().__init__()
        self.a, self.loc, self.w, self.out = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 6), nn.Parameter(torch.randn(4, 3)), nn.Linear(144, 5)

    def forward(self, x):
        y = F.interpolate(F.normalize(self.a(x), dim=1), scale_factor=1.5, mode="bicubic", align_corners=False)
        grid = F.affine_grid(torch.tanh(self.loc(y.mean((2, 3)))).view(-1, 2, 3), (x.shape[0], 4, 6, 6), align_corners=False)
        z = F.grid_sample(y, grid, align_corners=False).flatten(2).flip(2)
        z = z + z.cumsum(2) / 36
        z[:, 1:3, 4:12:2] = 0.5
        z[:, :, 20:24] = z[:, :, :4] * 2
        at = torch.arange(36).flip(0).view(1, 1, 36).expand(z.shape[0], 4, 36)
        z = z.scatter_add(2, at, z * z)
        z = z.scatter(2, at[:, :, :5], z[:, :, 7:12])
        z = z.index_add(2, torch.tensor([1, 1, 9]), z[:, :, 30:33])
        z = torch.ops.aten.index_put(z, [None, None, torch.tensor([3, 30, 8])], self.w)
        return self.out(z.flatten(1))


class Selection(nn.Module):
    """Weights of a given norm, largest and sorted elements with their indices, elements that are repeated, paddings and shuffles."""

    def __init__(self):
        super().__init__()
        self.conv = weight_norm(nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"))
        self.act, self.p, self.out = nn.PReLU(2), nn.Parameter(torch.tensor(1.7)), weight_norm(nn.Linear(322, 5))
        self.register_buffer("times", torch.tensor([2, 0, 1, 3, 1, 1, 4, 1]))

    def forward(self, x):
        y = F.pad(self.act(F.pixel_shuffle(self.conv(x), 2)), (1, 2, 0, 1), mode="replicate")
        z = F.interpolate(y, size=(9, 10), mode="nearest-exact").flatten(2)
        a, b, c, d = z.max(2)[0], z.min(1, keepdim=True)[0], z.topk(12, 2)[0], z.sort(2, descending=True)[0]
        r, e = z[:, :, :8].repeat_interleave(self.times, 2), z[:, :, :6].repeat_interleave(2, 2)
        w = torch.lerp(c, e, 0.3) + torch.maximum(c, 2 * e) * torch.lerp(c, e, torch.sigmoid(e)) - torch.atan2(c, e + 3)
        w = torch.addcmul(w, c, e, value=0.5) + torch.addcdiv(w, e, 2 + c * c) + (0.1 + c.abs()).pow(self.p) + torch.clamp(e, min=c.mean())
        return self.out(torch.cat([t.flatten(1) for t in (a, b, w, d / d.std(2, keepdim=True), r)], 1))


class Video(nn.Module):
    """Convolutions, norms and pooling in three dims."""

    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 6, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)), nn.GELU(), nn.AvgPool3d((2, 1, 1)),
                               nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 5))

    def forward(self, x):
        return self.f(x)


class Recurrent(nn.Module):
    """A bidirectional LSTM of two layers and a GRU after one another."""

    def __init__(self):
        super().__init__()
        self.e, self.a = nn.Embedding(17, 6), nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
        self.b, self.out = nn.GRU(10, 6, batch_first=True), nn.Linear(6, 17)

    def forward(self, ids):
        return self.out(self.b(self.a(self.e(ids))[0])[0])


class Dropout(nn.Module):
    """A transformer block that drops activations, probabilities and whole branches."""

    def __init__(self):
        super().__init__()
        self.a, self.qkv, self.o = nn.Linear(10, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.ln, self.up, self.dn, self.head = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 5)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        n = x.shape[0]
        x = self.drop(F.relu(self.a(x)))
        q, k, v = (t.view(n, 6, 4, 4).transpose(1, 2) for t in self.qkv(x).split(16, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
        x = x + self.drop(self.o(y.transpose(1, 2).reshape(n, 6, 16)))
        keep = torch.empty(n, 1, 1).bernoulli_(0.8)
        x = x + keep.div_(0.8) * self.dn(F.gelu(self.up(self.ln(x))))
        return self.head(x.mean(1))


MODELS = {
    "mlp": (MLP, lambda: torch.randn(BATCH, 12), 5, "sgd-momentum"),
    "resnet": (ResNet, lambda: torch.randn(BATCH, 3, 20, 20), 5, "adamw"),
    "mobile": (Mobile, lambda: torch.randn(BATCH, 3, 12, 14), 5, "adam"),
    "unet": (UNet, lambda: torch.randn(BATCH, 2, 8, 8), 3, "sgd"),
    "gpt": (GPT, lambda: torch.randint(0, 17, (BATCH, 6)), 17, "adamw"),
    "llama": (Llama, lambda: torch.randint(0, 19, (BATCH, 7)), 19, "adamw"),
    "convnext": (ConvNeXt, lambda: torch.randn(BATCH, 3, 16, 16), 5, "sgd-nesterov"),
    "places": (Places, lambda: torch.randn(BATCH, 3, 8, 8), 5, "adagrad"),
    "selection": (Selection, lambda: torch.randn(BATCH, 3, 8, 8), 5, "adam"),
    "video": (Video, lambda: torch.randn(BATCH, 2, 4, 8, 8), 5, "rmsprop"),
    "recurrent": (Recurrent, lambda: torch.randint(0, 17, (BATCH, 5)), 17, "adamw"),
    "dropout": (Dropout, lambda: torch.randn(BATCH, 6, 10), 5, None),
    "pointwise": (Pointwise, lambda: torch.randn(BATCH, 10), 5, "adam-wd"),
}

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p),
    "sgd-momentum": lambda p: torch.optim.SGD(p, momentum=0.9),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p),
    "adam-wd": lambda p: torch.optim.Adam(p, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
}


def make(name, out):
    build, example, classes, optimizer = MODELS[name]
    torch.manual_seed(0)
    model, x = build().train(), example()
    path = os.path.join(out, name + ".onnx")
    with tempfile.TemporaryDirectory() as scratch:
        whole = os.path.join(scratch, "m.onnx")
        state = {k: v.clone() for k, v in model.state_dict().items()}
        export(model, x, whole)
        model.load_state_dict(state)
        proto = onnx.load(whole)
    for nodes in [proto.graph.node] + [f.node for f in proto.functions]:
        for node in nodes:
            kept = [p for p in node.metadata_props if p.key != TRACE]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
    with open(path, "wb") as f:
        f.write(proto.SerializeToString(deterministic=True))
    if optimizer is None:  # random: there is nothing to compare with
        print(f"{path}: {os.path.getsize(path)} bytes, {len(proto.graph.node)} nodes")
        return
    data = {"input0": x.numpy(), "meta": np.array(optimizer)}
    try:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # The exporter writes batch normalisation as for inference; training is asked for here.
        for node in proto.graph.node:
            if node.op_type == "BatchNormalization":
                node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
                node.output.extend(f"{node.output[0]}_{what}" for what in ("mean", "var")[len(node.output) - 1:])
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        data["ort:output0"] = session.run(None, {"input0": x.numpy()})[0]
    except Exception as e:  # a train-mode operator that the runtime lacks
        print(f"{name}: onnxruntime: {e}", file=sys.stderr)
    step = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for i in (1, 2):
        step.zero_grad(set_to_none=True)
        y = model(x)
        if i == 1:
            shape = (y.shape[0] * y.shape[1],) if y.dim() == 3 else (y.shape[0],) + tuple(y.shape[2:])
            target = torch.randint(0, classes, shape)
            data["target"], data["output0"] = target.numpy(), y.detach().numpy().copy()
        loss = F.cross_entropy(y.reshape(-1, y.shape[2]) if y.dim() == 3 else y, target)
        loss.backward()
        losses.append(loss.item())
        for k, p in model.named_parameters():
            data[f"grad{i}:{k}"] = p.grad.numpy().copy()
        step.step()
    data["loss"] = np.array(losses, dtype=np.float64)
    np.savez_compressed(os.path.join(out, name + ".npz"), **data)
    print(f"{path}: {os.path.getsize(path)} bytes, {len(proto.graph.node)} nodes, references {os.path.getsize(os.path.join(out, name + '.npz'))} bytes")


def main():
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", nargs="*", help="models to make, default all")
    parser.add_argument("--out", default=os.path.join(here, "validate", "testdata", "golden"), help="folder to write to")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name in args.name or MODELS:
        make(name, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
