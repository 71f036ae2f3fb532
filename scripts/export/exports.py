#!/usr/bin/env python3
"""Export the same small models in every way that PyTorch's exporters have.

    python3 scripts/export/exports.py --out DIR [--model NAME ...] [--way NAME ...] [--list]

Each model is built with random weights and written as DIR/MODEL.VERSION.WAY.onnx,
VERSION being that of the torch that runs the script: run it once with every
version to compare. Files are stripped as scripts/export/export_models.py strips them.
A way that this version cannot export is one line "MODEL WAY: error" and no file.

docs/exports.md holds what memplan predicts of them, planner/testdata/exports.tar.xz
the files. Needs torch, onnx, onnxscript, of versions that belong together;
torchvision for resnet18, convnext, swin and densenet; transformers for bert, gpt2,
vit and t5; diffusers for unet2d; onnxsim and onnxruntime for what they rewrite.
Nothing is downloaded.
"""
import argparse
import functools
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


def swin():
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.1)


def densenet():
    from torchvision.models import DenseNet

    return DenseNet(growth_rate=8, block_config=(2, 2), num_init_features=16, bn_size=2, drop_rate=0.1)


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = T5ForConditionalGeneration(T5Config(num_layers=2, d_model=128, d_kv=32, num_heads=4, d_ff=512, vocab_size=2000))

        def forward(self, x):
            return self.m(input_ids=x, decoder_input_ids=x, use_cache=False)[0]

    return Pair()


class Tagger(nn.Module):
    """Embedding with dropout, a GRU that reads both ways, a class for each word."""

    def __init__(self):
        super().__init__()
        self.embed, self.drop = nn.Embedding(1000, 64), nn.Dropout(0.3)
        self.gru = nn.GRU(64, 48, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 20)

    def forward(self, ids):
        h, _ = self.gru(self.drop(self.embed(ids)))
        return self.head(self.drop(h))


class Mixing(nn.Module):
    """One block of an MLP-Mixer with GroupNorm."""

    def __init__(self, tokens, channels):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(1, channels)
        self.token = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channel = nn.Sequential(nn.Conv1d(channels, 2 * channels, 1), nn.SiLU(), nn.Conv1d(2 * channels, channels, 1))

    def forward(self, x):
        x = x + self.token(self.norm1(x))
        return x + self.channel(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 8, 8)
        self.blocks = nn.Sequential(Mixing(64, 64), Mixing(64, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).flatten(2)).mean(-1))


class Graph(nn.Module):
    """Three rounds of messages along 256 fixed edges of 64 vertices, normalised and summed."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer("src", torch.randint(0, 64, (256,), generator=g))
        self.register_buffer("dst", torch.randint(0, 64, (256,), generator=g))
        self.enter = nn.Linear(16, 64)
        self.message = nn.ModuleList(nn.Linear(128, 64) for _ in range(3))
        self.norm = nn.ModuleList(nn.BatchNorm1d(64) for _ in range(3))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(64, 4)

    def forward(self, x):
        h = self.enter(x)
        for message, norm in zip(self.message, self.norm):
            m = torch.relu(message(torch.cat([h[:, self.src], h[:, self.dst]], -1)))
            a = torch.zeros_like(h).index_add(1, self.dst, m)
            h = h + self.drop(norm(a.transpose(1, 2)).transpose(1, 2))
        return self.head(h.sum(1))


class Mobile(nn.Module):
    """Inverted residuals with squeeze and excitation, as MobileNetV3's: every convolution has its normalisation."""

    class Block(nn.Module):
        def __init__(self, c, stride):
            super().__init__()
            self.expand = nn.Sequential(nn.Conv2d(c, 4 * c, 1, bias=False), nn.BatchNorm2d(4 * c), nn.Hardswish())
            self.depth = nn.Sequential(nn.Conv2d(4 * c, 4 * c, 3, stride, 1, groups=4 * c, bias=False), nn.BatchNorm2d(4 * c), nn.Hardswish())
            self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4 * c, c, 1), nn.ReLU(), nn.Conv2d(c, 4 * c, 1), nn.Hardsigmoid())
            self.project = nn.Sequential(nn.Conv2d(4 * c, c, 1, bias=False), nn.BatchNorm2d(c))
            self.stride = stride

        def forward(self, x):
            y = self.depth(self.expand(x))
            y = self.project(y * self.squeeze(y))
            return x + y if self.stride == 1 else y

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.blocks = nn.Sequential(self.Block(16, 1), self.Block(16, 2), self.Block(16, 1))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Encoder(nn.Module):
    """Two layers of torch.nn.TransformerEncoder, whose evaluation mode takes a path of its own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
        self.head = nn.Linear(64, 1000)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


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
    "swin": (swin, image(64)),
    "densenet": (densenet, image(64)),
    "t5": (t5, ids),
    "tagger": (Tagger, ids),
    "mixer": (Mixer, image(64)),
    "graph": (Graph, lambda: torch.randn(BATCH, 64, 16)),
    "mobile": (Mobile, image(64)),
    "encoder": (Encoder, ids),
}

# name -> (training mode, arguments of torch.onnx.export)
WAYS = {
    "train": (True, {"dynamo": True, "optimize": False}),
    "train-18": (True, {"dynamo": True, "optimize": False, "opset_version": 18}),
    "train-23": (True, {"dynamo": True, "optimize": False, "opset_version": 23}),
    "train-17": (True, {"dynamo": True, "optimize": False, "opset_version": 17}),
    "train-20": (True, {"dynamo": True, "optimize": False, "opset_version": 20}),
    "train-opt": (True, {"dynamo": True, "optimize": True}),
    "eval": (False, {"dynamo": True, "optimize": False}),
    "eval-opt": (False, {"dynamo": True, "optimize": True}),
    "eval-opt-23": (False, {"dynamo": True, "optimize": True, "opset_version": 23}),
    "ts-train": (True, {"dynamo": False, "opset_version": 17, "do_constant_folding": False}),
    "ts-train-20": (True, {"dynamo": False, "opset_version": 20, "do_constant_folding": True}),
    "ts-eval": (False, {"dynamo": False, "opset_version": 17}),
}


def bare(proto):
    """Take the metadata away, as tools do that rebuild nodes."""
    for nodes in [proto.graph.node] + [f.node for f in proto.functions]:
        for node in nodes:
            del node.metadata_props[:]
    for value in list(proto.graph.value_info) + list(proto.graph.input) + list(proto.graph.output) + list(proto.graph.initializer):
        del value.metadata_props[:]
    return proto


def simplified(proto):
    import onnxsim

    return onnxsim.simplify(proto)[0]


def runtime(level):
    """Return the pass of onnxruntime that writes what it would run."""

    def run(proto):
        import onnxruntime as ort

        with tempfile.TemporaryDirectory() as scratch:
            options = ort.SessionOptions()
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, "ORT_ENABLE_" + level)
            options.optimized_model_filepath = os.path.join(scratch, "m.onnx")
            ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return onnx.load(options.optimized_model_filepath)

    return run


def converted(opset):
    def run(proto):
        from onnx import version_converter

        return version_converter.convert_version(proto, opset)

    return run


# name -> (the way that the file was exported, the pass run over it)
PASSES = {
    "train-bare": ("train", bare),
    "train-sim": ("train", simplified),
    "train-ort": ("train", runtime("BASIC")),
    "train-conv": ("train", converted(22)),
    "opt-bare": ("train-opt", bare),
    "ts-train-sim": ("ts-train", simplified),
    "eval-bare": ("eval", bare),
    "eval-sim": ("eval", simplified),
    "eval-ort": ("eval", runtime("EXTENDED")),
    "ts-eval-ort": ("ts-eval", runtime("BASIC")),
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


@functools.lru_cache(maxsize=2 * len(WAYS))
def written(name, way):
    """Return the file of one export, whole."""
    build, example = MODELS[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "m.onnx")
        export(build(), example(), *WAYS[way], path)
        with open(path, "rb") as f:
            return f.read()


def exported(name, way):
    return onnx.load_from_string(written(name, way))


def make(name, way, out):
    """Export one model in one way; returns the line printed about it."""
    first, after = PASSES.get(way, (way, lambda proto: proto))
    try:
        proto = after(exported(name, first))
    except Exception as e:  # whatever an exporter or a pass raises is the answer
        return f"{name} {way}: {type(e).__name__}: {str(e).strip().splitlines()[0][:160] if str(e).strip() else ''}"
    strip(proto)
    target = os.path.join(out, f"{name}.{torch.__version__.split('+')[0]}.{way}.onnx")
    with open(target, "wb") as f:
        f.write(proto.SerializeToString(deterministic=True))
    return f"{target}: {len(proto.graph.node)} nodes"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="*", choices=MODELS, default=list(MODELS), help="models to export, default all")
    parser.add_argument("--way", nargs="*", choices=[*WAYS, *PASSES], default=[*WAYS, *PASSES], help="ways to export them, default all")
    parser.add_argument("--out", required=True, help="folder to write to")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    args = parser.parse_args()
    if args.list:
        print(" ".join(MODELS), " ".join([*WAYS, *PASSES]), sep="\n")
        return 0
    os.makedirs(args.out, exist_ok=True)
    for name in args.model:
        for way in args.way:
            print(make(name, way, args.out), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
