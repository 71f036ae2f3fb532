#!/usr/bin/env python3
"""Export the same small models in every way that PyTorch's exporters have.

    python3 scripts/exports.py --out DIR [--model NAME ...] [--way NAME ...] [--list]

Each model is built with random weights and written as DIR/MODEL.VERSION.WAY.onnx,
VERSION being that of the torch that runs the script: run it once with every
version to compare. Files are stripped as scripts/export_models.py strips them.
A way that this version cannot export is one line "MODEL WAY: error" and no file.

docs/exports.md and planner/testdata/exports hold what memplan predicts of them.
Needs torch, onnx, onnxscript; torchvision for resnet18 and convnext;
transformers for bert, gpt2 and vit; diffusers for unet2d. Nothing is downloaded.
"""
import argparse
import os
import sys
import tempfile
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # exporting needs no GPU
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import onnx
import torch
from torch import nn

from export_models import strip

BATCH = 2  # of the example input; the exported batch dimension is symbolic


class MLP(nn.Module):
    """Three hidden layers with dropout, the second of them switched off (p = 0)."""

    def __init__(self):
        super().__init__()
        layers = []
        for p in (0.1, 0.0, 0.2):
            layers += [nn.Linear(256, 256), nn.ReLU(), nn.Dropout(p)]
        self.net = nn.Sequential(*layers, nn.Linear(256, 10))

    def forward(self, x):
        return self.net(x)


class Double(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Two levels with batch normalisation and skip connections."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.mid = Double(3, 16), Double(16, 32), Double(32, 64)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.dec2, self.dec1 = Double(64, 32), Double(32, 16)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        m = self.mid(self.pool(b))
        m = self.dec2(torch.cat([self.up2(m), b], 1))
        return self.out(self.dec1(torch.cat([self.up1(m), a], 1)))


class Recurrent(nn.Module):
    """Embedding, two layers of LSTM with dropout between them, a classifier."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 64, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(64, 1000)

    def forward(self, ids):
        return self.head(self.lstm(self.embed(ids))[0])


class Logits(nn.Module):
    """A model of transformers that takes and returns one tensor."""

    def __init__(self, m, **call):
        super().__init__()
        self.m, self.call = m, call

    def forward(self, x):
        return self.m(x, **self.call)[0]


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return Logits(BertForMaskedLM(BertConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=4, intermediate_size=512, vocab_size=2000)))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    c = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=2000, use_cache=False)
    return Logits(GPT2LMHeadModel._from_config(c, attn_implementation="eager"), use_cache=False)


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    c = ViTConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=4, intermediate_size=512, image_size=64, patch_size=8,
                  hidden_dropout_prob=0.1)
    return Logits(ViTForImageClassification(c))


def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(32, 64, 1), CNBlockConfig(64, None, 1)], stochastic_depth_prob=0.1)


def unet2d():
    from diffusers import UNet2DModel

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = UNet2DModel(sample_size=32, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
                                 down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"))

        def forward(self, x):
            return self.m(x, torch.full((x.shape[0],), 10, device=x.device), return_dict=False)[0]

    return Step()


def resnet18():
    import torchvision

    return torchvision.models.resnet18()


def ids():
    return torch.randint(0, 1000, (BATCH, 32))


def image(n):
    return lambda: torch.randn(BATCH, 3, n, n)


# name -> (constructor, example input)
MODELS = {
    "mlp": (MLP, lambda: torch.randn(BATCH, 256)),
    "resnet18": (resnet18, image(64)),
    "unet": (UNet, image(32)),
    "convnext": (convnext, image(64)),
    "lstm": (Recurrent, ids),
    "bert": (bert, ids),
    "gpt2": (gpt2, ids),
    "vit": (vit, image(64)),
    "unet2d": (unet2d, image(32)),
}

# name -> (training mode, arguments of torch.onnx.export)
WAYS = {
    "train": (True, {"dynamo": True, "optimize": False}),
    "train-18": (True, {"dynamo": True, "optimize": False, "opset_version": 18}),
    "train-23": (True, {"dynamo": True, "optimize": False, "opset_version": 23}),
    "train-opt": (True, {"dynamo": True, "optimize": True}),
    "eval": (False, {"dynamo": True, "optimize": False}),
    "eval-opt": (False, {"dynamo": True, "optimize": True}),
    "eval-opt-23": (False, {"dynamo": True, "optimize": True, "opset_version": 23}),
    "ts-train": (True, {"dynamo": False, "opset_version": 17, "do_constant_folding": False}),
    "ts-eval": (False, {"dynamo": False, "opset_version": 17}),
}


def export(model, example, train, options, path):
    model.train(train)
    if options["dynamo"]:
        options = dict(options, external_data=False, verbose=False, dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4096)},))
    else:
        mode = torch.onnx.TrainingMode.TRAINING if train else torch.onnx.TrainingMode.EVAL
        options = dict(options, training=mode, dynamic_axes={"input0": {0: "batch"}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (example,), path, input_names=["input0"], output_names=["output"], **options)


def make(name, way, out):
    """Export one model in one way; returns the line printed about it."""
    build, example = MODELS[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        whole = os.path.join(scratch, "m.onnx")
        try:
            export(build(), example(), *WAYS[way], whole)
        except Exception as e:  # whatever an exporter raises is the answer
            return f"{name} {way}: {type(e).__name__}: {str(e).strip().splitlines()[0][:160] if str(e).strip() else ''}"
        proto = onnx.load(whole)
    strip(proto)
    target = os.path.join(out, f"{name}.{torch.__version__.split('+')[0]}.{way}.onnx")
    with open(target, "wb") as f:
        f.write(proto.SerializeToString(deterministic=True))
    return f"{target}: {len(proto.graph.node)} nodes"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="*", choices=MODELS, default=list(MODELS), help="models to export, default all")
    parser.add_argument("--way", nargs="*", choices=WAYS, default=list(WAYS), help="ways to export them, default all")
    parser.add_argument("--out", required=True, help="folder to write to")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    args = parser.parse_args()
    if args.list:
        print(" ".join(MODELS), " ".join(WAYS), sep="\n")
        return 0
    os.makedirs(args.out, exist_ok=True)
    for name in args.model:
        for way in args.way:
            print(make(name, way, args.out), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
