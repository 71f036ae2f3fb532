#!/usr/bin/env python3
"""Writes planner/testdata/llama_70b.onnx.xz and moe_8x7b.onnx.xz: models too large for one card, exported without ever having weights.

    python3 scripts/export/large_samples.py    # with torch, transformers, onnx and onnxscript; two minutes
    python3 scripts/export/large_samples.py 10,20,40,160 DIR    # Llamas of so many layers, as DIR/llama_10.onnx, for the growth in docs/selection.md

The first is a Llama of 80 layers as transformers has it. The second has Mixtral's layers with the experts as linear modules, each of which runs on all tokens (dense
dispatch): transformers' own experts either do not export or copy their weights for each token.
"""

from __future__ import annotations

import lzma
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Expert(nn.Module):
    """Mixtral's MLP."""

    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False), nn.Linear(d, f, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """A sum of experts, weighted by a router: 0 for all but the best."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.best, self.gate = c.num_experts_per_tok, nn.Linear(c.hidden_size, c.num_local_experts, bias=False)
        self.experts = nn.ModuleList(Expert(c.hidden_size, c.intermediate_size) for _ in range(c.num_local_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(self.gate(x).float(), -1)
        w, i = torch.topk(p, self.best, -1)
        w = torch.zeros_like(p).scatter(-1, i, w / w.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(x)
        for n, e in enumerate(self.experts):
            out = out + e(x) * w[..., n : n + 1]
        return out


def llama_70b(layers: int = 80) -> Any:
    import transformers as t

    return t.LlamaForCausalLM(
        t.LlamaConfig(
            hidden_size=8192, intermediate_size=28672, num_hidden_layers=layers, num_attention_heads=64, num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, use_cache=False
        )
    )


def moe_8x7b() -> Any:
    import transformers as t

    c = t.MixtralConfig(use_cache=False)  # its defaults are those of the 8x7B
    m = t.MixtralForCausalLM(c)
    for layer in m.model.layers:
        layer.mlp = Experts(c)
    return m


def exported(build: Any) -> bytes:
    """The file of a model, with the places of weights that nobody has."""
    import onnx_ir as ir
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        dims = {"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}}
        program = torch.onnx.export(build().train(), (), kwargs={"input_ids": torch.zeros(2, 1024, dtype=torch.long)}, dynamo=True, optimize=False, opset_version=23, dynamic_shapes=dims)
        offset = 0
        for name, value in program.model.graph.initializers.items():
            t = value.const_value
            size = int(math.prod(t.shape) * t.dtype.itemsize)
            value.const_value = ir.ExternalTensor("weights", offset, size, t.dtype, shape=ir.Shape(t.shape), name=name)
            offset += size
        m = ir.to_proto(program.model)
    for n in m.graph.node:
        for p in list(n.metadata_props):  # the machine's own paths, and what nothing reads
            if p.key in ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node"):
                n.metadata_props.remove(p)
    return m.SerializeToString()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for layers in map(int, sys.argv[1].split(",")):
            Path(sys.argv[2], f"llama_{layers}.onnx").write_bytes(exported(lambda n=layers: llama_70b(n)))
        sys.exit()
    data = Path(__file__).resolve().parents[2] / "planner" / "testdata"
    for build in (llama_70b, moe_8x7b):
        (data / f"{build.__name__}.onnx.xz").write_bytes(lzma.compress(exported(build), preset=9))
