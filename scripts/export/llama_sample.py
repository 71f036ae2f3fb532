#!/usr/bin/env python3
"""Writes planner/testdata/llama.onnx.xz: a small Llama of transformers with 4 layers, without its weights.

    python3 scripts/export/llama_sample.py    # with torch, transformers, onnx and onnxscript
"""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any


def llama() -> Any:
    """The model, with weights of this process's random numbers."""
    import transformers

    c = transformers.LlamaConfig(num_hidden_layers=4, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=4, vocab_size=100, max_position_embeddings=64, use_cache=False)
    return transformers.LlamaForCausalLM(c).train()


def main() -> None:
    import onnx
    import torch
    from onnx.external_data_helper import convert_model_to_external_data

    path = Path(__file__).resolve().parents[2] / "planner" / "testdata" / "llama.onnx.xz"
    program = torch.onnx.export(
        llama(), (), kwargs={"input_ids": torch.zeros(2, 64, dtype=torch.long)}, dynamo=True, optimize=False, dynamic_shapes={"input_ids": {0: torch.export.Dim("batch")}}
    )
    m = program.model_proto
    convert_model_to_external_data(m, all_tensors_to_one_file=True, location="weights", size_threshold=1024)
    for x in m.graph.initializer:
        if x.external_data:
            x.ClearField("raw_data")
    for n in m.graph.node:
        for p in list(n.metadata_props):  # the machine's own paths
            if p.key.startswith("pkg.torch.onnx.stack_trace"):
                n.metadata_props.remove(p)
    path.write_bytes(lzma.compress(m.SerializeToString(), preset=9))


if __name__ == "__main__":
    main()
