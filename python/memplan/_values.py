"""Values of tensors that are known although the run has none: those of inputs, and what follows only from them.

Masks, positions and lengths decide what a model calls: whether a mask is needed, which rows are taken. A fake tensor carries such a value, on the
CPU, as long as every call that led to it had known values, drew no random numbers and was small.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

MOST = 1 << 20  # elements of a tensor whose value is followed

# Questions about numbers that detect overflow: a model that is not trained has none.
_SANE = {"aten.isnan.default": False, "aten.isinf.default": False, "aten.isfinite.default": True, "aten.isposinf.default": False, "aten.isneginf.default": False}


def give(fake: torch.Tensor, value: torch.Tensor) -> None:
    """Tells what the elements of a fake tensor are."""
    if value.numel() <= MOST and not fake.requires_grad:
        fake._memplan_value = value  # type: ignore[attr-defined]


def known(t: torch.Tensor) -> torch.Tensor | None:
    if isinstance(t, FakeTensor):
        return getattr(t, "_memplan_value", None)
    if t.device.type != "cpu" or t.numel() > MOST:
        return None
    with unset_fake_temporarily():  # or the value would itself be a tensor without elements
        return t.detach()


def of(tree: Any) -> Any:
    """The tree with known values instead of fake tensors; None if one is not known."""
    leaves, _ = tree_flatten(tree)
    if any(isinstance(t, torch.Tensor) and known(t) is None for t in leaves):
        return None
    return tree_map(lambda t: known(t) if isinstance(t, torch.Tensor) else t, tree)


def real(tree: Any) -> Any:
    """The tree with real tensors on the CPU instead of fake ones, with their values if known."""
    with unset_fake_temporarily(), torch.no_grad():
        return tree_map(lambda t: (known(t) if known(t) is not None else torch.zeros(t.shape, dtype=t.dtype)) if isinstance(t, torch.Tensor) else t, tree)


def moved(tree: Any, a: torch.device, b: torch.device) -> Any:
    """The tree with one device instead of another."""
    return tree_map(lambda x: b if isinstance(x, torch.device) and x.type == a.type else x, tree)


def follow(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Gives the outputs of a call their values, if known."""
    try:
        outs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if (sane := _SANE.get(str(func))) is not None and isinstance(outs[0], FakeTensor):
            with unset_fake_temporarily():
                outs[0]._memplan_value = torch.tensor(sane).expand(outs[0].shape)  # type: ignore[attr-defined]  # one element, however many it stands for
            return
        if not outs or any(t.numel() > MOST for t in outs):
            _forget(func, args, kwargs)
            return
        value = None if torch.Tag.nondeterministic_seeded in func.tags else of((args, kwargs))
        if value is None or any(t.requires_grad for t in outs):
            _forget(func, args, kwargs)
            return
        for t, v in zip(outs, _compute(func, value)):
            if t.shape == v.shape and t.dtype == v.dtype and isinstance(t, FakeTensor):
                give(t, v)
    except (RuntimeError, TypeError, NotImplementedError, IndexError):  # what the CPU cannot compute is not known
        _forget(func, args, kwargs)


_depth = [0]  # of computations of values


def computing() -> bool:
    """Whether a call is one that computes values, and no call of the model's."""
    return _depth[0] > 0


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    _depth[0] += 1
    try:
        with unset_fake_temporarily(), torch.no_grad():
            yield
    finally:
        _depth[0] -= 1


def _compute(func: Any, value: Any) -> list[torch.Tensor]:
    value = moved(value, torch.device("cuda"), torch.device("cpu"))
    with _aside():
        return [t for t in tree_leaves(func(*value[0], **value[1])) if isinstance(t, torch.Tensor)]


def _forget(func: Any, args: Any, kwargs: Any) -> None:
    """Forgets the values of what a call writes to."""
    for a, s in zip(args, func._schema.arguments):
        if s.alias_info is not None and s.alias_info.is_write:
            for t in tree_leaves(a):
                if isinstance(t, FakeTensor) and hasattr(t, "_memplan_value"):
                    del t._memplan_value


def shaped(func: Any, args: Any, kwargs: Any) -> Any:
    """The results of a call whose sizes depend on values, if these are known; else None."""
    name = str(func)
    if name == "aten.index.Tensor":
        indices = [_where(i) for i in args[1]]
        if any(i is None for i in indices):
            return None
        return func(args[0], [j for i in indices for j in i])  # type: ignore[union-attr]
    value = of((args, kwargs))
    if value is not None:
        real = _compute(func, value)
        outs = [like(v) for v in real]
        return outs[0] if len(outs) == 1 and len(func._schema.returns) == 1 and "[]" not in str(func._schema.returns[0].type) else tuple(outs)
    if name == "aten.masked_select.default" and (mask := known(args[1])) is not None:
        return args[0].new_empty(int(mask.expand(torch.broadcast_shapes(args[0].shape, mask.shape)).sum()))
    return None


def _where(index: Any) -> list[Any] | None:
    """The indices that a mask stands for."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    mask = known(index)
    if mask is None:
        return None
    with _aside():
        places = mask.nonzero(as_tuple=True)
    return [like(p) for p in places]


def like(v: torch.Tensor) -> torch.Tensor:
    """A fake tensor of a real one's size, with its value where it has one."""
    t = torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="cuda")
    if v.device.type != "meta":
        give(t, v)
    return t
