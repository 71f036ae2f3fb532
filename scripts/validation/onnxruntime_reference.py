#!/usr/bin/env python3
"""Run a model in onnxruntime, for memplan validate to be compared with.

    python3 scripts/validation/onnxruntime_reference.py MODEL.onnx --batch N --out DIR

Gives a file whose weights were left out (as those of models/) weights from a seed,
and runs it with random inputs. DIR then holds model.onnx, weights.bin beside it,
each input and each output as .npy, and the command to run. Dropout is set to drop
nothing in model.onnx; batch normalisation, which exporters write as for inference,
is run as in training, as memplan runs it. Models with other random numbers
(stochastic depth) are refused. Needs onnx, onnxruntime and numpy.
"""
import argparse
import os
import re
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

RANDOM = {"RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Bernoulli", "Multinomial"}


def weight(rng, tensor):
    """Elements for an initializer that the file leaves out, as memplan makes them."""
    name, shape = tensor.name.split(".")[-1], tuple(tensor.dims)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if dtype.kind in "iu":
        return np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape).copy() if name == "position_ids" else np.zeros(shape, dtype)
    if len(shape) < 2:
        return np.full(shape, 0 if "bias" in name or name == "running_mean" else 1, dtype)
    if len(shape) == 2 and shape[0] > 8 * shape[1]:
        return (0.02 * rng.standard_normal(shape)).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype) / np.sqrt(np.prod(shape[1:])).astype(dtype)


def fill(model, out, rng):
    offset = 0
    with open(os.path.join(out, "weights.bin"), "wb") as f:
        for t in model.graph.initializer:
            if t.data_location != onnx.TensorProto.EXTERNAL:
                continue
            data = weight(rng, t).tobytes()
            f.write(data)
            del t.external_data[:]
            for key, value in (("location", "weights.bin"), ("offset", offset), ("length", len(data))):
                t.external_data.add(key=key, value=str(value))
            offset += len(data)


def inputs(model, batch, rng):
    gathered = {}  # rows of the tables that an input indexes
    sizes = {t.name: t.dims for t in model.graph.initializer}
    for n in model.graph.node:
        if n.op_type == "Gather" and n.input[0] in sizes:
            gathered[n.input[1]] = int(sizes[n.input[0]][0])
    out = {}
    for v in model.graph.input:
        shape = [d.dim_value or batch for d in v.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        if dtype.kind in "iu":
            out[v.name] = rng.integers(0, gathered.get(v.name, 2), shape).astype(dtype)
        else:
            out[v.name] = rng.standard_normal(shape).astype(dtype)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = onnx.load(args.model, load_external_data=False)
    odd = sorted({n.op_type for n in model.graph.node} & RANDOM)
    if odd:
        sys.exit(f"{args.model}: {', '.join(odd)}: random numbers that no two programs share")
    os.makedirs(args.out, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    fill(model, args.out, rng)
    zero = None
    for n in model.graph.node:
        if n.op_type == "Dropout" and len(n.input) > 1:
            if zero is None:
                zero = "no_dropout"
                model.graph.initializer.append(numpy_helper.from_array(np.float32(0), zero))
            n.input[1] = zero
            for p in n.metadata_props:  # which repeat the call as PyTorch made it
                p.value = re.sub(r"(dropout\S*\]?\(args = \(%\w+, )[0-9.]+", r"\g<1>0.0", p.value)
    path = os.path.join(args.out, "model.onnx")
    onnx.save(model, path)
    for n in model.graph.node:
        if n.op_type == "BatchNormalization":
            n.attribute.append(helper.make_attribute("training_mode", 1))
            n.output.extend(f"{n.output[0]}_{what}" for what in ("mean", "var")[len(n.output) - 1:])
    training = os.path.join(args.out, "training.onnx")
    onnx.save(model, training)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(training, options, providers=["CPUExecutionProvider"])
    given = inputs(model, args.batch, rng)
    results = session.run(None, given)
    os.remove(training)
    command = ["memplan", "validate", path, "--batch", str(args.batch), "--device", "cpu", "--steps", "1"]
    for flag, arrays in (("--input", given), ("--expect", {o.name: r for o, r in zip(session.get_outputs(), results)})):
        for name, value in arrays.items():
            file = os.path.join(args.out, name + ".npy")
            np.save(file, value)
            command += [flag, f"{name}={file}"]
    print(" ".join(command))


if __name__ == "__main__":
    main()
