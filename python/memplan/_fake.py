"""Runs a real module on tensors without elements, and leaves it as it was.

The module's own objects run, so that what refers to it (closures, optimizers, hooks) sees the same module. While they run, its parameters and
buffers are fake ones on a GPU; every dictionary and list that can be reached from it is noted before and put back after.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
from typing import Any, Iterator, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import _values
from ._checkpoint import MemplanError

_DEEP = 12  # of containers in containers
_MANY = 300_000  # objects that are looked at


class World:
    """Every container in a model and its arguments."""

    def __init__(self, *roots: Any) -> None:
        self.kept: list[tuple[Any, Any]] = []
        self.cells: list[tuple[types.CellType, Any]] = []
        self.globals: list[tuple[dict[str, Any], str, Any]] = []
        self._seen: set[int] = set()
        self._held: list[Any] = []  # objects whose ids are in seen
        for r in roots:
            self._look(r, 0)

    def _look(self, x: Any, depth: int) -> None:
        if (depth > _DEEP and not isinstance(x, torch.nn.Module)) or id(x) in self._seen or len(self._seen) > _MANY or isinstance(x, (int, float, str, bytes, type, types.ModuleType, torch.Tensor, type(None))):
            return
        self._seen.add(id(x))
        self._held.append(x)
        if isinstance(x, (dict, list, set)):
            self.kept.append((x, x.copy()))
            for c in list(x.values()) if isinstance(x, dict) else list(x):
                self._look(c, depth + 1)
        elif isinstance(x, (tuple, frozenset)):
            for c in x:
                self._look(c, depth + 1)
        elif isinstance(x, types.FunctionType):
            self._function(x, depth)
        elif isinstance(x, types.MethodType):
            self._look(x.__self__, depth + 1)
            self._look(x.__func__, depth)
        elif isinstance(x, functools.partial):
            self._look([x.func, x.args, x.keywords], depth + 1)
        elif isinstance(d := getattr(x, "__dict__", None), dict) and not type(x).__module__.startswith(("torch._C", "builtins")):
            self._look(d, 0 if isinstance(x, torch.nn.Module) else depth + 1)

    def _function(self, f: types.FunctionType, depth: int) -> None:
        for cell in f.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                self.cells.append((cell, cell.cell_contents))
                self._look(cell.cell_contents, depth + 1)
        if f.__module__ == "__main__" or not _installed(f.__code__.co_filename):
            for name in f.__code__.co_names:
                if name in f.__globals__:
                    self.globals.append((f.__globals__, name, f.__globals__[name]))
                    self._look(f.__globals__[name], depth + 1)

    def replace(self, memo: dict[int, torch.Tensor]) -> None:
        """Replaces some tensors by others."""
        for container, copy in self.kept:
            items = copy.items() if isinstance(copy, dict) else enumerate(copy) if isinstance(copy, list) else ()
            for k, v in items:
                new = _replaced(v, memo)
                if new is not v:
                    container[k] = new
        for cell, v in self.cells:
            new = _replaced(v, memo)
            if new is not v:
                cell.cell_contents = new
        for names, name, v in self.globals:
            new = _replaced(v, memo)
            if new is not v:
                names[name] = new

    def tensors(self) -> Iterator[torch.Tensor]:
        for container, copy in self.kept:
            yield from (v for v in (copy.values() if isinstance(copy, dict) else copy) if isinstance(v, torch.Tensor))
        yield from (v for _, v in self.cells if isinstance(v, torch.Tensor))
        yield from (v for _, _, v in self.globals if isinstance(v, torch.Tensor))

    def restore(self) -> None:
        for container, copy in self.kept:
            if isinstance(container, dict):
                if container.keys() != copy.keys() or any(container[k] is not v for k, v in copy.items()):
                    container.clear()
                    container.update(copy)
            elif isinstance(container, list):
                if len(container) != len(copy) or any(a is not b for a, b in zip(container, copy)):
                    container[:] = copy
            elif container != copy:
                container.clear()
                container.update(copy)
        for cell, v in self.cells:
            if cell.cell_contents is not v:
                cell.cell_contents = v
        for names, name, v in self.globals:
            if names.get(name) is not v:
                names[name] = v


def _replaced(v: Any, memo: dict[int, torch.Tensor]) -> Any:
    if isinstance(v, torch.Tensor):
        return memo.get(id(v), v)
    if type(v) is tuple and any(isinstance(t, torch.Tensor) and id(t) in memo for t in v):
        return tuple(_replaced(t, memo) for t in v)
    return v


def _installed(path: str) -> bool:
    return "site-packages" in path or path.startswith(sys.prefix) or path.startswith("<frozen")


def faked(mode: FakeTensorMode, t: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor like t on a GPU, with another floating-point type if one is given."""
    kind = dtype if dtype is not None and t.is_floating_point() else t.dtype
    if t.layout != torch.strided:
        raise MemplanError(f"a tensor of the model has layout {t.layout}, which cannot be captured")
    with mode:
        f = torch.empty_strided(t.shape, t.stride(), dtype=kind, device="cuda")
        if isinstance(t, torch.nn.Parameter):
            return torch.nn.Parameter(f, requires_grad=t.requires_grad)
    f.requires_grad_(t.requires_grad and kind.is_floating_point)
    return f


def stored(model: torch.nn.Module) -> dict[str, tuple[torch.Tensor, str, list[str]]]:
    """Parameters and buffers by their first names, with kind and further names."""
    out: dict[str, tuple[torch.Tensor, str, list[str]]] = {}
    first: dict[int, str] = {}
    for kind, named in (("parameter", model.named_parameters(remove_duplicate=False)), ("buffer", model.named_buffers(remove_duplicate=False))):
        for name, t in named:
            if id(t) in first:
                out[first[id(t)]][2].append(name)
            else:
                first[id(t)] = name
                out[name] = (t, kind, [])
    return out


@contextlib.contextmanager
def swapped(mode: FakeTensorMode, model: torch.nn.Module, dtype: torch.dtype | None, everything: bool, more: dict[int, torch.Tensor], *roots: Any) -> Iterator[dict[int, torch.Tensor]]:
    """Puts fake tensors in the places of the model's; more are others that stand in for real ones. everything includes tensors that modules hold and .to() leaves."""
    world = World(model, *roots)
    memo = dict(more)
    views: dict[int, torch.Tensor] = {}
    for t, _, _ in stored(model).values():
        memo[id(t)] = _shared(mode, t, dtype, views)
    if everything:
        for v in world.tensors():
            if id(v) not in memo and v.layout == torch.strided:
                memo[id(v)] = faked(mode, v, None)
                _values.give(memo[id(v)], v.detach().cpu())
    world.replace(memo)
    try:
        yield memo
    finally:
        world.restore()


def _shared(mode: FakeTensorMode, t: torch.Tensor, dtype: torch.dtype | None, views: dict[int, torch.Tensor]) -> torch.Tensor:
    """A fake tensor; fakes of tensors that share a storage share one, too."""
    out = faked(mode, t, dtype)
    key = t.untyped_storage()._cdata
    if key not in views:
        views[key] = out
    elif (base := views[key]).dtype == out.dtype and out.numel() <= base.numel():
        with mode, torch.no_grad():
            out.set_(base.untyped_storage(), t.storage_offset(), t.shape, t.stride())  # type: ignore[call-overload]
    return out


def inputs(mode: FakeTensorMode, tree: Any, dtype: torch.dtype | None, memo: dict[int, torch.Tensor]) -> Any:
    """The arguments with fake tensors, which carry the values of the real ones."""
    leaves, spec = tree_flatten(tree)
    out = []
    for t in leaves:
        if isinstance(t, torch.Tensor) and id(t) not in memo:
            memo[id(t)] = faked(mode, t, dtype)
            value = t.detach().cpu()
            _values.give(memo[id(t)], value.to(dtype) if dtype is not None and value.is_floating_point() else value)
        out.append(memo[id(t)] if isinstance(t, torch.Tensor) else t)
    return tree_unflatten(out, spec)


@contextlib.contextmanager
def autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """torch.autocast("cuda"), which otherwise turns itself off without a GPU."""
    if dtype is None:
        yield
        return
    old = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", old[0])
        torch.set_autocast_dtype("cuda", old[1])


@contextlib.contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes that have other values inside."""
    old = [(o, name, getattr(o, name)) for o, name, _ in changes if hasattr(o, name)]
    try:
        for o, name, value in changes:
            if hasattr(o, name):
                setattr(o, name, value)
        yield
    finally:
        for o, name, value in old:
            setattr(o, name, value)


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Restores the states of random numbers afterwards."""
    numpy = sys.modules.get("numpy")
    state = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        with unset_fake_temporarily():
            torch.set_rng_state(state[0])
        random.setstate(state[1])
        if numpy:
            numpy.random.set_state(state[2])


@contextlib.contextmanager
def training(model: torch.nn.Module, train: bool) -> Iterator[None]:
    """The model in a mode. One that trains already keeps its modules in evaluation mode there."""
    modes = [(m, m.training) for m in model.modules()]
    if train != model.training:
        model.train(train)
    try:
        yield
    finally:
        for m, t in modes:
            m.training = t


def names(signature: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The tensors among the arguments with the names of their parameters."""
    out: list[tuple[str, Any]] = []

    def walk(name: str, x: Any) -> None:
        if isinstance(x, torch.Tensor):
            out.append((name, x))
        elif isinstance(x, dict):
            for k, v in x.items():
                walk(f"{name}.{k}", v)
        elif isinstance(x, (list, tuple)):
            for i, v in enumerate(x):
                walk(f"{name}.{i}", v)

    for i, a in enumerate(args):
        walk(signature[i] if i < len(signature) else f"input{i}", a)
    for k, v in kwargs.items():
        walk(k, v)
    return out
