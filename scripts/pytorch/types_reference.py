#!/usr/bin/env python3
"""What autograd saves of models in float32, in half precision and under autocast.

    python3 scripts/pytorch/types_reference.py OUT.tar.xz

Runs each model under FakeTensorMode on the device type cuda, which dispatches as CUDA
does on a machine that has none, and adds up the distinct storages that its forward
pass saves; exports it in float32 beside, weights stripped, source lines kept without
the paths of their files. Float32 files do not show the casts that these models make
in half precision. planner/types_test.go compares. Fake tensors do not refuse mixed
types, as a GPU does: models must run there.

Needs torch, onnx, onnxscript, xz; diffusers for unetcond and dit. Nothing is downloaded.
"""
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "export"))

import onnx
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from export_models import KEEP, TRACE

warnings.filterwarnings("ignore")
torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # autocast on a machine without a GPU
torch.cuda.is_bf16_supported = lambda *a, **k: True
BATCH = 2


class Sinusoid(nn.Module):
    """Embeddings of time steps in float32, cast to the weights' type."""

    def __init__(self):
        super().__init__()
        self.t1, self.t2 = nn.Linear(32, 64), nn.Linear(64, 32)
        self.c1, self.c2, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1), nn.GroupNorm(8, 32)

    def forward(self, x, t):
        f = torch.exp(-torch.arange(16, device=x.device, dtype=torch.float32) * 0.5)
        a = t[:, None].float() * f[None]
        e = torch.cat([a.sin(), a.cos()], -1).to(self.t1.weight.dtype)
        e = self.t2(F.silu(self.t1(e)))
        h = F.silu(self.norm(self.c1(x))) + e[:, :, None, None]
        return self.c2(h)


class Table(nn.Module):
    """A normalisation in float32 that casts back to its input's type."""

    def __init__(self):
        super().__init__()
        self.e, self.l, self.n, self.h = nn.Embedding(99, 32), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 99)
        self.register_buffer("pe", torch.randn(64, 32))

    def forward(self, i):
        x = self.e(i) + self.pe[: i.shape[1]]
        x = F.layer_norm(x.float(), (32,), self.n.weight.float(), self.n.bias.float()).to(x.dtype)
        return self.h(F.gelu(self.l(x)))


class Norm32(nn.GroupNorm):
    def forward(self, x):
        return F.group_norm(x.float(), self.num_groups, self.weight.float(), self.bias.float(), self.eps).to(x.dtype)


class Guided(nn.Module):
    """GroupNorm32, as in guided diffusion."""

    def __init__(self):
        super().__init__()
        self.i = nn.Conv2d(3, 32, 3, padding=1)
        self.n = nn.ModuleList([nn.Sequential(Norm32(8, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1)) for _ in range(3)])

    def forward(self, x):
        x = self.i(x.type(self.i.weight.dtype))
        for b in self.n:
            x = x + b(x)
        return x


class Call(nn.Module):
    def __init__(self, m, **call):
        super().__init__()
        self.m, self.call = m, call

    def forward(self, *args):
        return self.m(*args, return_dict=False, **self.call)[0]


def unetcond():
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention_processor import AttnProcessor

    m = UNet2DConditionModel(sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, cross_attention_dim=32, attention_head_dim=8,
                             down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
    m.set_attn_processor(AttnProcessor())
    return Call(m)


def dit():
    from diffusers import DiTTransformer2DModel
    from diffusers.models.attention_processor import AttnProcessor

    m = DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2, sample_size=16, patch_size=2, num_embeds_ada_norm=100)
    for x in m.modules():
        if hasattr(x, "set_processor"):
            x.set_processor(AttnProcessor())
    return Call(m)


def steps():
    return torch.randint(0, 99, (BATCH,))


# name -> (constructor, example inputs)
MODELS = {
    "sinusoid": (Sinusoid, lambda: (torch.randn(BATCH, 3, 16, 16), steps())),
    "table": (Table, lambda: (torch.randint(0, 99, (BATCH, 32)),)),
    "guided": (Guided, lambda: (torch.randn(BATCH, 3, 16, 16),)),
    "unetcond": (unetcond, lambda: (torch.randn(BATCH, 4, 16, 16), steps(), torch.randn(BATCH, 7, 32))),
    "dit": (dit, lambda: (torch.randn(BATCH, 4, 16, 16), steps(), steps())),
}


def saved(model, inputs, precision):
    """Bytes of the distinct storages that the forward pass saves."""
    held = {}

    def pack(t):
        s = t.untyped_storage()
        held[s._cdata] = s  # kept alive, so that the key stays its own
        return t

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = model.train().to(dtype)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = model.to("cuda")
        inputs = [mode.from_tensor(t.to(dtype) if t.is_floating_point() else t).to("cuda") for t in inputs]
        cast = torch.autocast("cuda", dtype=torch.bfloat16) if precision == "amp-bf16" else contextlib.nullcontext()
        with torch.device("cuda"), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), cast:
            out = model(*inputs)
    del out
    return sum(s.nbytes() for s in held.values())


def exported(model, inputs):
    """The training export without weights and without paths."""
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "m.onnx")
        torch.onnx.export(model.train(), inputs, path, dynamo=True, optimize=False, external_data=False, verbose=False)
        proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > KEEP:
            size = len(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", 0), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
    for node in proto.graph.node:
        for p in node.metadata_props:
            if p.key == TRACE:
                p.value = re.sub(r'File "[^"]*/', 'File "', p.value)
    return proto.SerializeToString(deterministic=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        runs = {}
        for name, (build, inputs) in MODELS.items():
            files = {name + ".onnx": exported(build(), inputs())}
            runs[name] = {p: saved(build(), inputs(), p) for p in ("fp32", "bf16", "amp-bf16")}
            print(name, runs[name], flush=True)
            for path, content in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        content = json.dumps(runs, indent=1).encode()
        info = tarfile.TarInfo("saved.json")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with open(sys.argv[1], "wb") as f:
        subprocess.run(["xz", "-6e", "-c"], input=data.getvalue(), stdout=f, check=True)


if __name__ == "__main__":
    main()
