"""Arguments of a model: their batch, the file that they are exported to, and the same arguments at another batch or on another device."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch.utils._pytree import tree_leaves, tree_map


def listed(args: Sequence[Any] | torch.Tensor) -> tuple[Any, ...]:
    """Positional arguments; a single tensor may stand alone."""
    return (args,) if isinstance(args, torch.Tensor) else tuple(args)


def batch_of(args: Sequence[Any] | torch.Tensor, kwargs: Mapping[str, Any] | None = None) -> int | None:
    """The first dimension of the first tensor that has one."""
    return next((t.shape[0] for t in tree_leaves((listed(args), dict(kwargs or {}))) if isinstance(t, torch.Tensor) and t.dim()), None)


def resized(args: Any, old: int | None, new: int | None) -> Any:
    """The arguments with every tensor of batch old repeated, or cut, to batch new."""
    if old is None or new is None or old == new:
        return args
    return tree_map(lambda t: t[torch.arange(new, device=t.device) % old] if isinstance(t, torch.Tensor) and t.dim() and t.shape[0] == old else t, args)


def moved(args: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """The arguments with every tensor on a device, floating-point ones in a dtype if one is given."""
    return tree_map(lambda t: t.to(device, dtype if t.is_floating_point() else None) if isinstance(t, torch.Tensor) else t, args)


def exported(model: torch.nn.Module, args: Sequence[Any] | torch.Tensor, kwargs: Mapping[str, Any] | None, path: str) -> None:
    """Exports a model with the batch as its only free size: all others are those of the arguments."""
    from . import _capture, _fake, _sizes  # here: not where a training script runs
    from ._export import export

    named = _fake.names(_capture.signature(model), listed(args), dict(kwargs or {}))
    axes = {name: {axis: dim for axis, dim in a.items() if dim == "batch"} for name, a in _sizes.found(named).items()}
    export(model, listed(args), kwargs, path, dims={name: a for name, a in axes.items() if a})
