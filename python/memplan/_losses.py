"""Losses as the planner has them."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from torch.utils._pytree import tree_leaves


def _output(out: Any) -> torch.Tensor:
    """The tensor from which a loss is computed: the first that a model returns."""
    if isinstance(out, Mapping) and out.get("logits") is not None:
        return out["logits"]  # type: ignore[no-any-return]
    return next(t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.is_floating_point())


def _cross_entropy(out: Any) -> torch.Tensor:
    t = _output(out)
    if t.dim() == 3:
        t = t.reshape(-1, t.shape[-1]).float()  # as language models do it
    return torch.nn.functional.cross_entropy(t, torch.randint(0, t.shape[1], (t.shape[0], *t.shape[2:]), device=t.device))


def _mse(out: Any) -> torch.Tensor:
    t = _output(out)
    return torch.nn.functional.mse_loss(t, torch.randn_like(t))


def _sum(out: Any) -> torch.Tensor:
    return _output(out).sum()


def _auto(out: Any) -> torch.Tensor:
    """The model's own loss; else cross-entropy for an output [N,C], [N,S,V] or [N,C,H,W], the sum for any other."""
    own = out.get("loss") if isinstance(out, Mapping) else None
    if own is not None:
        return own  # type: ignore[no-any-return]
    return _cross_entropy(out) if _output(out).dim() in (2, 3, 4) else _sum(out)


LOSSES: dict[str, Callable[[Any], torch.Tensor]] = {"auto": _auto, "cross-entropy": _cross_entropy, "mse": _mse, "sum": _sum}
