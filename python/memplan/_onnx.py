"""Writes a model as ONNX without its weights, by the first exporter that can."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import tempfile
import warnings
from typing import Any, Callable, Iterator, Sequence

import torch

from ._capture import Job, signature
from ._checkpoint import MemplanError
from ._sizes import Point, resized

KEEP = 1024  # bytes: smaller weights stay in the file, since shapes may be computed from them
KEY = "memplan.capture"
_TRACE = "pkg.torch.onnx.stack_trace"


def exported(job: Job, dims: Sequence[str], at: Point) -> tuple[Any, str, list[str]]:
    """The model as protobuf, how it was exported, and why other exporters failed."""
    _needed()
    refused: list[str] = []
    ways: list[tuple[str, Callable[[], Any]]] = [(f"dynamo, free {' and '.join(dims)}" if dims else "dynamo, fixed sizes", lambda: _dynamo(job, dims, at))]
    if len(dims) > 1:
        ways.append((f"dynamo, free {dims[0]}", lambda: _dynamo(job, dims[:1], at)))
    ways.append(("TorchScript", lambda: _script(job, dims, at)))
    if dims:
        ways.append(("dynamo, fixed sizes", lambda: _dynamo(job, (), at)))
    for how, make in ways:
        try:
            with _quiet():
                return make(), how, refused
        except Exception as e:  # exporters raise anything
            refused.append(f"{how} cannot: {_reason(e)}")
    return placeholder(job), "placeholder", refused


def _reason(e: BaseException) -> str:
    """The first line of the original error."""
    while e.__cause__ is not None:
        e = e.__cause__
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return f"{type(e).__name__}: {lines[0][:200]}" if lines else type(e).__name__


def _needed() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as e:
        raise MemplanError("exporting needs the packages onnx and onnxscript: pip install onnx onnxscript") from e


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences exporters, which print progress and warn of harmless things."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    sys.stdout.flush()
    out = os.dup(1)  # the old exporter prints whole graphs from C++
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(out, 1)
        os.close(out)
        os.close(null)
        logging.disable(level)


def _dynamo(job: Job, dims: Sequence[str], at: Point) -> Any:
    args, kwargs = resized((job.args, job.kwargs), job.axes, at)
    free = {d: torch.export.Dim(d, min=1, max=1 << 20 if d == "batch" else max(at[d], 2)) for d in dims}
    more: dict[str, Any] = {"dynamic_shapes": _shapes(job, args, kwargs, free)} if dims else {}
    program = torch.onnx.export(job.model, args, kwargs=kwargs or None, dynamo=True, optimize=False, external_data=False, verbose=False, **more)
    assert program is not None
    return _without_weights(program)


def _shapes(job: Job, args: Any, kwargs: Any, free: dict[str, Any]) -> Any:
    """The free axes in the structure of the arguments, by parameter if there are keywords."""
    axes = {id(new): job.axes.get(id(old), {}) for new, old in zip(_tensors((args, kwargs)), _tensors((job.args, job.kwargs)))}

    def spec(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return {i: free[d] for i, d in axes[id(x)].items() if d in free}
        if isinstance(x, dict):
            return {k: spec(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return type(x)(spec(v) for v in x)
        return None

    names = signature(job.model)
    if len(names) < len(args):  # forward(*args)
        return (*(spec(a) for a in args[: len(names)]), tuple(spec(a) for a in args[len(names) :]))
    if kwargs:
        return {**{n: spec(a) for n, a in zip(names, args)}, **{k: spec(v) for k, v in kwargs.items()}}
    return tuple(spec(a) for a in args)


def _tensors(tree: Any) -> list[torch.Tensor]:
    from torch.utils._pytree import tree_leaves

    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _script(job: Job, dims: Sequence[str], at: Point) -> Any:
    import onnx

    args, kwargs = resized((job.args, job.kwargs), job.axes, at)
    named = [n for n, _ in job.named]
    axes = {n: {i: d for i, d in job.axes.get(id(t), {}).items() if d in dims} for n, t in job.named}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(job.model, (*args, kwargs) if kwargs else args, path, dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17, input_names=named,
                          dynamic_axes={n: a for n, a in axes.items() if a})
        return onnx.load(path, load_external_data=False)


def _without_weights(program: Any) -> Any:
    """The protobuf of an exported program, its weights left where they are."""
    import onnx_ir as ir

    for v in program.model.graph.initializers.values():
        t = v.const_value
        if t is not None and t.nbytes > KEEP:
            v.const_value = ir.ExternalTensor("weights.bin", 0, t.nbytes, t.dtype, shape=t.shape, name=v.name)
    return ir.to_proto(program.model)


def placeholder(job: Job) -> Any:
    """A graph with the right inputs and parameters that computes nothing: the capture beside it says what runs."""
    from onnx import TensorProto, helper

    def kind(t: torch.Tensor) -> int:
        return int(getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE", "bool": "BOOL"}.get(str(t.dtype)[6:], str(t.dtype)[6:].upper())))

    inputs = [helper.make_tensor_value_info(n, kind(t), [job.axes.get(id(t), {}).get(i, s) for i, s in enumerate(t.shape)]) for n, t in job.named]
    if not inputs:
        raise MemplanError("the model has no tensor among its arguments: give export() the arguments that forward is called with")
    output = helper.make_tensor_value_info("output", inputs[0].type.tensor_type.elem_type, [d.dim_param or d.dim_value for d in inputs[0].type.tensor_type.shape.dim])
    graph = helper.make_graph([helper.make_node("Identity", [inputs[0].name], ["output"])], "placeholder", inputs, [output])
    for name, (t, _, _) in job.stored.items():
        w = graph.initializer.add()
        w.name, w.data_type = name, kind(t)
        w.dims.extend(t.shape)
        w.data_location = TensorProto.EXTERNAL
        for k, v in (("location", "weights.bin"), ("offset", "0"), ("length", str(t.numel() * t.element_size()))):
            e = w.external_data.add()
            e.key, e.value = k, v
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="memplan")


# ---- what a file must not have ----


def strip(m: Any) -> Any:
    """Weights become references to a file that is not written; paths lose what is specific to one machine."""
    from onnx import TensorProto

    offset = 0
    for t in m.graph.initializer:
        external = t.data_location == TensorProto.EXTERNAL
        size = next(int(e.value) for e in t.external_data if e.key == "length") if external else len(t.raw_data)
        if not external and size <= KEEP:
            continue
        t.ClearField("raw_data")
        t.ClearField("external_data")
        t.data_location = TensorProto.EXTERNAL
        for k, v in (("location", "weights.bin"), ("offset", str(offset)), ("length", str(size))):
            e = t.external_data.add()
            e.key, e.value = k, v
        offset += size
    for nodes in [m.graph.node, *(f.node for f in m.functions)]:
        _places(nodes)
    return m


def _places(nodes: Any) -> None:
    for node in nodes:
        for p in node.metadata_props:
            if p.key == _TRACE:
                p.value = re.sub(r'File "([^"]*)"', lambda f: f'File "{place(f.group(1))}"', p.value)
        for a in node.attribute:
            _places(a.g.node)


def place(path: str) -> str:
    """A path without what is specific to one machine: that of an installed package begins there, another is reduced to its last part."""
    path = path.replace("\\", "/")
    head, mark, tail = path.rpartition("/site-packages/")
    return f"/usr/lib/python3/site-packages/{tail}" if mark else "/home/user/" + path.rpartition("/")[2]


def write(m: Any, path: str) -> None:
    """Writes the file as a whole, or leaves the old one."""
    path = os.path.abspath(path)
    data = m.SerializeToString(deterministic=True)
    try:
        number, part = tempfile.mkstemp(prefix=".memplan-", suffix=".onnx", dir=os.path.dirname(path))
    except OSError as e:
        raise MemplanError(f"{path}: {e.strerror}") from e
    try:
        with os.fdopen(number, "wb") as f:
            f.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)
        os.replace(part, path)
    except BaseException as e:
        os.unlink(part)
        if isinstance(e, OSError):
            raise MemplanError(f"{path}: {e.strerror}") from e
        raise
