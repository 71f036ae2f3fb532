"""What a run of the example inputs on the processor shows: numbers that a model reads, and sizes that follow from values.

A run without elements cannot know them where they depend on weights (a prior's quantiles) or on what a layer computed (which expert gets a row). Then, and
only then, copies of the weights run once, in float32, and what they show is given to the run without elements, place by place.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch
from torch._ops import _pop_mode_from_pre_dispatch, _set_mode_pre_dispatch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from . import _values

Key = tuple[str, str, int]  # operator, source line, how often it was called there before
READS = {"aten.item.default", "aten._local_scalar_dense.default", "aten.is_nonzero.default", "aten.equal.default"}
# Calls whose results' sizes may depend on values (fake_impls.py, dynamic_output_shape).
SHAPED = {f"aten.{n}" for n in ("nonzero.default", "repeat_interleave.Tensor", "masked_select.default", "index.Tensor", "_unique2.default", "unique_dim.default", "unique_consecutive.default", "unique_dim_consecutive.default")}


class Shown:
    """What a run showed, and which of it another has come to."""

    def __init__(self, known: dict[Key, Any], place: Callable[[], str]) -> None:
        self.known, self.place = known, place
        self.counts: dict[tuple[str, str], int] = {}
        self.used: list[str] = []

    def key(self, name: str) -> Key:
        at = self.place()
        n = self.counts.get((name, at), 0)
        self.counts[name, at] = n + 1
        return name, at, n

    def take(self, key: Key) -> Any:
        """What was shown there; None where the other run did not come by."""
        if (found := self.known.get(key)) is not None and key[1] not in self.used:
            self.used.append(key[1])
        return found


class Watch(SchemaCheckMode):  # type: ignore[misc]
    """Writes down the numbers that Python reads in a real run, and puts it on the processor."""

    def __init__(self, shown: Shown) -> None:
        TorchDispatchMode.__init__(self)
        self.shown = shown

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _values.moved((args, kwargs or {}), torch.device("cuda"), torch.device("cpu"))
        key = self.shown.key(str(func)) if str(func) in READS else None
        out = func(*args, **kwargs)
        if key is not None:
            self.shown.known[key] = out
        return out


class Sizes(TorchDispatchMode):
    """Below autograd: writes down the sizes of a real run, or gives them to one without elements."""

    def __init__(self, shown: Shown, real: bool) -> None:
        super().__init__()
        self.shown, self.real = shown, real

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name not in SHAPED or _values.computing():
            return func(*args, **(kwargs or {}))
        key = self.shown.key(name)
        if self.real:
            out = func(*args, **(kwargs or {}))
            self.shown.known[key] = tree_map(_shape, out)
            return out
        try:
            return func(*args, **(kwargs or {}))
        except (DynamicOutputShapeException, DataDependentOutputException):
            if (found := self.shown.take(key)) is None:
                raise
            return tree_map(_values.like, found)


def _shape(t: torch.Tensor) -> torch.Tensor:
    """A result: indices with their values, of other numbers the size alone."""
    return torch.empty(t.shape, dtype=t.dtype, device="meta") if t.is_floating_point() else t.detach().clone()


@contextlib.contextmanager
def watched(shown: Shown) -> Iterator[None]:
    """A real run inside is written down."""
    _set_mode_pre_dispatch(Watch(shown))
    on = torch._C._EnablePythonDispatcher()  # type: ignore[attr-defined]
    try:
        with Sizes(shown, True):
            yield
    finally:
        del on
        _pop_mode_from_pre_dispatch()


def copies(tensors: Any) -> dict[int, torch.Tensor]:
    """Copies on the processor, by the ids of what they are copies of."""
    out: dict[int, torch.Tensor] = {}
    for t in tree_leaves(tensors):
        if isinstance(t, torch.Tensor) and id(t) not in out:
            c = t.detach().to("cpu", copy=True)
            out[id(t)] = torch.nn.Parameter(c, t.requires_grad) if isinstance(t, torch.nn.Parameter) else c.requires_grad_(t.requires_grad)
    return out
