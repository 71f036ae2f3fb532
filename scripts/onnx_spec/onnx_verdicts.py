#!/usr/bin/env python3
"""Writes graph/infer/testdata/invalid.txt: the models that ONNX's own checker, or its strict shape inference with types, refuses.

    pip install onnx==1.23.2
    python3 scripts/onnx_spec/onnx_verdicts.py ../shared/data/onnx > graph/infer/testdata/invalid.txt

The models lie in the folder given and below it. External data is not there and is not asked for. A line is a path.
"""

import pathlib
import sys

import onnx


def messages(m):
    """All messages inside a message, itself included, but nothing inside tensors."""
    yield m
    if isinstance(m, onnx.TensorProto):
        return
    for field, value in m.ListFields():
        if field.message_type is not None:
            for x in value if hasattr(value, "__len__") else [value]:
                yield from messages(x)


def accepted(path):
    try:
        model = onnx.load(path, load_external_data=False)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        for m in messages(model):
            if isinstance(m, onnx.TensorProto) and m.data_location == onnx.TensorProto.EXTERNAL:
                m.ClearField("external_data")
                m.ClearField("data_location")
                m.dims[:] = [0]
                for field in ("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data"):
                    m.ClearField(field)
                m.raw_data = b""
        onnx.checker.check_model(model)
    except Exception:  # each kind of fault has a class of its own
        return False
    return True


def main():
    root = pathlib.Path(sys.argv[1])
    print(f"# Models that onnx {onnx.__version__} refuses; scripts/onnx_spec/onnx_verdicts.py wrote this.")
    for path in sorted(root.rglob("*.onnx")):
        if not accepted(path):
            print(path.relative_to(root).as_posix())


if __name__ == "__main__":
    main()
