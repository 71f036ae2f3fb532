"""Writes the ONNX file of a model for the planner."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
from torch.utils._pytree import tree_map

from ._error import MemplanError
from ._inputs import batch_of, resized


def to_onnx(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> None:
    """Exports a model in training mode with a dynamic batch and without its weights. The model is left as it was."""
    old = batch_of(args, kwargs)
    if old is None:
        raise MemplanError("there is no tensor in args and kwargs whose first dimension could be the batch: give the inputs of a step")
    args, kwargs = resized((args, kwargs), old, 2 if old == 1 else old)  # an exporter takes 1 for a constant
    batch = batch_of(args, kwargs)
    dim = torch.export.Dim("batch", min=1, max=1 << 16)
    shapes = tree_map(lambda t: ({0: dim} if t.dim() and t.shape[0] == batch else {}) if isinstance(t, torch.Tensor) else None, (args, kwargs))
    with _as_trained(model), torch.random.fork_rng(devices=[]):
        try:
            out = torch.onnx.export(model, args, kwargs=kwargs, dynamo=True, optimize=False, verbose=False, dynamic_shapes=_by_name(model, *shapes))
        except Exception as e:
            raise MemplanError(f"torch.onnx.export cannot export {type(model).__name__}: {_last(e)}") from e
    assert out is not None
    _without_weights(out.model)
    import onnx_ir as ir

    ir.save(out.model, path)


def _by_name(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Shapes by parameter names of forward, as torch.export wants them."""
    import inspect

    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    out = dict(bound.arguments)
    for p in bound.signature.parameters.values():
        if p.kind is p.VAR_KEYWORD and p.name in out:
            out.update(out.pop(p.name))
    return out


@contextlib.contextmanager
def _as_trained(model: torch.nn.Module) -> Iterator[None]:
    """Training mode and no caches, for a while."""
    modes = {m: m.training for m in model.modules()}
    configs = [c for m in model.modules() if getattr(c := getattr(m, "config", None), "use_cache", False) is True]
    try:
        model.train()
        for c in configs:
            c.use_cache = False
        yield
    finally:
        for m, training in modes.items():
            m.training = training
        for c in configs:
            c.use_cache = True


def _without_weights(model: Any) -> None:
    """Weights over 1 KiB become references to a file that is not there: memplan needs their shapes."""
    import onnx_ir as ir

    offset = 0
    for value in model.graph.initializers.values():
        t = value.const_value
        if t is not None and t.nbytes > 1024:
            value.const_value = ir.ExternalTensor("weights.bin", offset, t.nbytes, t.dtype, shape=t.shape, name=value.name)
            offset += t.nbytes


def _last(e: BaseException) -> str:
    """The first line of the innermost cause."""
    while e.__cause__ is not None:
        e = e.__cause__
    return next(iter(str(e).strip().splitlines()), type(e).__name__)[:300]
