#!/usr/bin/env python3
"""Export the sample models of models/ anew.

    python3 scripts/export/export_models.py [--out DIR] [--list] [NAME ...]

Each model is built with random weights, traced in train mode by PyTorch's
dynamo exporter with a symbolic batch dimension and optimize=False (with
optimize=True the exporter folds BatchNormalization into Conv, and the file no
longer describes the training step), and then stripped: every initializer above
1 KiB becomes a reference to external data that is not shipped, so that a file
keeps shapes, names and small constants only, and the Python stack traces go.

Needs torch, onnx, onnxscript; torchvision for resnet50 and vit_b_16;
transformers for gpt2. Nothing is downloaded. Another version of any of these
writes another file: models/README.md records the versions and the sha256 of the
files in the repository.
"""
import argparse
import hashlib
import os
import sys
import tempfile
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # exporting needs no GPU

import onnx
import torch

KEEP = 1024  # bytes: initializers up to this size stay in the file
BATCH = 2  # of the example input; the exported batch dimension is symbolic
TRACE = "pkg.torch.onnx.stack_trace"  # node metadata that names files of the exporting machine


class MLP(torch.nn.Module):
    """Eight hidden layers of 4096 units with ReLU, 1000 classes."""

    def __init__(self):
        super().__init__()
        layers = []
        for _ in range(8):
            layers += [torch.nn.Linear(4096, 4096), torch.nn.ReLU()]
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(4096, 1000))

    def forward(self, x):
        return self.net(x)


class GPT2(torch.nn.Module):
    """GPT-2 small as transformers builds it, token ids to logits, without a cache."""

    def __init__(self):
        super().__init__()
        import transformers

        config = transformers.GPT2Config(use_cache=False)
        self.m = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager")

    def forward(self, ids):
        return self.m(input_ids=ids, use_cache=False).logits


def torchvision_model(name):
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def image():
    return torch.randn(BATCH, 3, 224, 224)


# name -> (constructor, example input)
MODELS = {
    "mlp": (MLP, lambda: torch.randn(BATCH, 4096)),
    "resnet50": (lambda: torchvision_model("resnet50"), image),
    "vit_b_16": (lambda: torchvision_model("vit_b_16"), image),
    "gpt2": (GPT2, lambda: torch.randint(0, 1000, (BATCH, 256))),
}


def export(model, example, path):
    """Write model to path in train mode with a symbolic batch dimension."""
    batch = torch.export.Dim("batch", min=1, max=4096)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.train(), (example,), path, dynamo=True, optimize=False, external_data=False, verbose=False,
                          input_names=["input0"], output_names=["output"], dynamic_shapes=({0: batch},))


def strip(proto):
    """Replace each large initializer by an external reference, drop stack traces; returns the bytes taken out."""
    offset = 0
    for tensor in proto.graph.initializer:
        size = len(tensor.raw_data)
        if size <= KEEP:
            continue
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        offset += size
    for nodes in [proto.graph.node] + [f.node for f in proto.functions]:
        for node in nodes:
            kept = [p for p in node.metadata_props if p.key != TRACE]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
    return offset


def make(name, out):
    """Export one model into out; returns the line printed about it."""
    build, example = MODELS[name]
    torch.manual_seed(0)
    model = build()
    with tempfile.TemporaryDirectory() as scratch:
        whole = os.path.join(scratch, name + ".onnx")
        export(model, example(), whole)
        proto = onnx.load(whole)
    taken = strip(proto)
    data = proto.SerializeToString(deterministic=True)
    target = os.path.join(out, name + ".onnx")
    with open(target, "wb") as f:
        f.write(data)
    parameters = sum(p.numel() for p in model.parameters())
    return f"{target}: {len(data)} bytes, {len(proto.graph.node)} nodes, {parameters} parameters, {taken} bytes of weights left out, sha256 {hashlib.sha256(data).hexdigest()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", nargs="*", help="models to export, default all")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "models"), help="folder to write to")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    args = parser.parse_args()
    if args.list:
        print("\n".join(MODELS))
        return 0
    unknown = [n for n in args.name if n not in MODELS]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r} (known: {', '.join(MODELS)})")
    os.makedirs(args.out, exist_ok=True)
    for name in args.name or MODELS:
        print(make(name, args.out), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
