"""Records the calls that a module makes, as Python makes them, on tensors that have no elements.

A call is seen at the dispatcher's key PreDispatch: before autocast casts its operands, before autograd writes it down and before ATen takes it
apart, and every call once, also those that Python makes without a function of torch (indexing, operators, factories) and those of C++ modules.
The recorder holds no tensor: ids hang on weak references, so that a tensor dies here when it dies in a real run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from typing import Any, Callable, Iterator, Sequence

import torch
from torch._ops import _pop_mode_from_pre_dispatch, _set_mode_pre_dispatch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode, UnsupportedOperatorException, unset_fake_temporarily
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from . import _kernels, _real, _values
from ._checkpoint import MemplanError

aten = torch.ops.aten
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Calls that only read: they make no tensor of the model's.
_READS = _real.READS
# Calls that change nothing but what autograd thinks of a tensor.
_NOTHING = {"aten.detach_.default", "aten.lift_fresh.default", "aten.requires_grad_.default", "aten.retain_grad.default"}


class Id(int):
    """The id of a tensor, as opposed to a size."""


class NoKernel(MemplanError):
    """A call with unknown outputs."""


class Unknown(MemplanError):
    """A branch or a size by values that this run does not have, and that a real one may show."""


class _Row(dict[str, Any]):
    """A saved tensor without an id, with a storage of its own."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class Recorder(SchemaCheckMode):  # type: ignore[misc]  # of the three kinds of mode that PreDispatch takes the one that does least
    """The calls, types, deaths and saved tensors of one run."""

    def __init__(self, fake: FakeTensorMode, modules: dict[int, int], first: int, home: torch.device | None = None) -> None:
        TorchDispatchMode.__init__(self)
        self.fake, self.modules, self.home = fake, modules, home
        self.shown: _real.Shown | None = None  # by a real run
        self.on = True  # after the first backward of a step nothing more is recorded
        self.calls: list[dict[str, Any]] = []
        self.types: dict[int, list[Any]] = {}
        self.regions: list[dict[str, Any]] = []
        self.outputs: list[Any] = []
        self.called_with: Any = None  # arguments of the model itself, with real tensors
        self.notes: list[str] = []
        self.peaks: dict[str, int] = {}
        self.forward = 0  # calls until the model returned
        self.loss: Id | None = None
        self.stack: list[int] = []  # of modules that run
        self.ran: set[int] = set()  # modules that ran
        self.inside: list[int] = []  # of custom autograd functions that run
        self.autocast = self.grad = True
        self._next = first
        self._ids: dict[int, tuple[weakref.ref[torch.Tensor], Id]] = {}
        self._storages: dict[int, tuple[Any, Id, list[tuple[Any, Id]]]] = {}  # storage -> its first tensor, all that live
        self._unknown: dict[int, tuple[Any, int]] = {}  # storages that autograd saved and no call returned
        self._hooks: dict[int, int] = {}  # regions of saved_tensors_hooks
        self._given = _nothing()  # of a checkpoint that begins
        self._early: list[Id] = []  # deaths before the first call
        self._serial = 0

    # ---- tensors ----

    def know(self, t: torch.Tensor, at: int | None = None) -> Id:
        """The id of a tensor, a new one if it has none."""
        entry = self._ids.get(id(t))
        if entry is not None and entry[0]() is t:
            return entry[1]
        stored = at is not None
        n = Id(self._next if at is None else at)
        if at is None:
            self._next += 1
        key = id(t)

        def gone(_: Any, self: weakref.ref[Recorder] = weakref.ref(self), n: Id = n, key: int = key, cdata: int = t.untyped_storage()._cdata) -> None:
            if (r := self()) is not None:
                r._gone(n, key, cdata, stored)

        self._ids[key] = (weakref.ref(t, gone), n)
        self.types[n] = self._type(t, n)
        return n

    def _gone(self, n: Id, key: int, cdata: int, stored: bool) -> None:
        entry = self._ids.get(key)
        if entry is not None and entry[1] == n:
            del self._ids[key]
        if (s := self._storages.get(cdata)) is not None:
            s[2][:] = [e for e in s[2] if e[1] != n]
        if stored or not self.on:
            return
        (self.calls[-1]["dies"] if self.calls else self._early).append(n)

    def _type(self, t: torch.Tensor, n: Id) -> list[Any]:
        storage = t.untyped_storage()
        cdata = storage._cdata
        root = None
        if cdata in self._storages:
            root = self._storages[cdata][1]
        else:
            table = self._storages
            self._storages[cdata] = (weakref.ref(storage, lambda _: table.pop(cdata, None)), n, [])
        self._storages[cdata][2].append((_shape(t), n))
        more: dict[str, Any] = {}
        if not t.is_contiguous():
            more["strides"] = list(t.stride())
        if t.storage_offset():
            more["offset"] = t.storage_offset()
        if t.requires_grad:
            more["grad"] = True
        if t.device.type == "cpu":
            more["device"] = "cpu"
        if root is None and storage.nbytes() != t.numel() * t.element_size():
            more["bytes"] = storage.nbytes()
        out = [str(t.dtype).removeprefix("torch."), list(t.shape), root, more or None]
        while out[-1] is None:
            out.pop()
        return out

    # ---- what autograd saves ----

    def pack(self, t: torch.Tensor) -> None:
        if self.on:
            self._saved(t)

    def _saved(self, t: torch.Tensor) -> None:
        where = self._saving()
        if where is None or t.device.type != "cuda":
            return
        entry = self._ids.get(id(t))
        if entry is not None and entry[0]() is t:
            where.append(entry[1])
            return
        storage = t.untyped_storage()
        cdata = storage._cdata
        if (known := self._storages.get(cdata)) is not None:
            same = [n for sig, n in known[2] if sig == _shape(t)]
            where.append(same[-1] if same else known[1])
            return
        if self._now is not None and self._now.get("attention") == "efficient" and t.dtype in (torch.int64, torch.uint64):
            return  # the state of its random numbers is on the CPU; the fake kernel says otherwise
        if cdata not in self._unknown:
            self._serial += 1
            table = self._unknown
            self._unknown[cdata] = (weakref.ref(storage, lambda _: table.pop(cdata, None)), self._serial)
        row = {"new": storage.nbytes(), "id": Id(self._unknown[cdata][1]), "dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)}
        if row not in where:
            where.append(row)

    def _saving(self) -> list[Any] | None:
        """The list of saved tensors of the current call, or of the function that has returned."""
        if self._now is not None:
            return self._now["saves"]
        return self._last["saves"] if self._last is not None else None

    _now: dict[str, Any] | None = None
    _last: dict[str, Any] | None = None  # the custom function that returns

    # ---- calls ----

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        with torch._C._DisablePythonDispatcher():  # type: ignore[attr-defined]
            # Many composite calls have other kernels in Python, for tracers: a real run uses C++'s.
            return self._seen(func, args, kwargs or {})

    def _seen(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.home is not None and not self.stack:
            args, kwargs = _values.moved((args, kwargs), self.home, torch.device("cuda"))
        name = str(func)
        if _on_cpu(args, kwargs):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if name in _READS:
            return self._read(func, args, kwargs)
        if not self.on or name in _NOTHING:
            return self._run(func, args, kwargs)
        if (parts := _kernels.parts(name)) is not None:
            return parts(lambda f, *a: self._seen(f, a, {}), *args, **kwargs)
        call = self._call(name, args, kwargs)
        self.calls.append(call)
        self._now = call
        try:
            out = self._run(func, args, kwargs, call)
        except BaseException:
            self.calls.pop()
            raise
        finally:
            self._now = None
        outs = tree_leaves(out)
        if not any(isinstance(t, torch.Tensor) for t in outs):
            self.calls.pop()
            if len(self.calls):
                self.calls[-1]["dies"] += call["dies"]
            return out
        call["out"] = [self._made(call, t) if isinstance(t, torch.Tensor) else None for t in outs]
        return out

    def _made(self, call: dict[str, Any], t: torch.Tensor) -> Id:
        """The id of a call's result, even if autograd has saved it before it was returned."""
        n = self.know(t)
        entry = self._unknown.pop(t.untyped_storage()._cdata, None)
        if entry is not None:
            call["saves"] = list(dict.fromkeys(n if isinstance(s, dict) and s["id"] == entry[1] else _Row(s) if isinstance(s, dict) else s for s in call["saves"]))
        return n

    def _read(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = _values.of((args, kwargs))
        key = self.shown.key(str(func)) if self.shown is not None else None
        if value is None:
            if self.shown is not None and key is not None and (found := self.shown.take(key)) is not None:
                return found
            t = args[0]
            if t.dtype == torch.bool or not (t.is_floating_point() or t.dtype.is_complex):
                raise Unknown(f"{place()}: the model takes a branch, or a size, by a tensor whose value depends on weights or on random numbers: what it calls cannot be known without "
                                   "running it; give that tensor as an input, or take the branch by a Python number while it is exported")
            note = f"{place()} reads a number that depends on weights or on random numbers; it was taken for 1.0, so what it decides may be otherwise"
            if note not in self.notes:
                self.notes.append(note)
            return 1.0
        with unset_fake_temporarily():
            return func(*value[0], **value[1])

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: dict[str, Any] | None = None) -> Any:
        special = _kernels.special(str(func))
        try:
            out = special(self.fake, call, *args, **kwargs) if special else func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException) as e:
            out = _values.shaped(func, args, kwargs)
            if out is None:
                raise Unknown(f"{place()}: the size of what {func} returns depends on values that nobody knows without running the model: give the tensor it reads as an input, or "
                                   "take a fixed size") from e
        except UnsupportedOperatorException as e:
            raise NoKernel(f"{place()}: {func} has no fake kernel, so that its outputs' shapes are not known: register one with torch.library.register_fake") from e
        _values.follow(func, args, kwargs, out)
        return out

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        call: dict[str, Any] = {"op": name, "args": [self._arg(a) for a in args]}
        if kwargs:
            call["kwargs"] = {k: self._arg(v) for k, v in kwargs.items()}
        call["out"] = []
        if self.stack:
            call["module"] = Id(self.stack[-1])
        call["at"] = place()
        cast = torch.is_autocast_enabled("cuda")
        if cast != self.autocast:
            call["autocast"] = str(torch.get_autocast_dtype("cuda")).removeprefix("torch.") if cast else False
        if torch.is_grad_enabled() != self.grad:
            call["grad"] = torch.is_grad_enabled()
        region = self._region()
        if region is not None:
            call["region"] = Id(region)
        call["dies"], call["saves"] = [], []
        return call

    def _arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            if not isinstance(a, FakeTensor) or a.device.type == "cpu":
                return {"cpu": [str(a.dtype).removeprefix("torch."), list(a.shape)]}
            return {"t": self.know(a)}
        if isinstance(a, (list, tuple)):
            return [self._arg(x) for x in a]
        return plain(a)

    def _region(self) -> int | None:
        """The innermost running custom function, or region of hooks on saved tensors (as of checkpoints)."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
        if hooks is not None and getattr(hooks[0], "__self__", None) is not self:
            key = id(hooks[0])
            if key not in self._hooks:
                name = getattr(hooks[0], "__qualname__", type(hooks[0]).__name__)
                kind = "checkpoint" if "checkpoint" in name.lower() else "hooks"
                self._hooks[key] = len(self.regions)
                self.regions.append({"kind": kind, "name": f"{getattr(hooks[0], '__module__', '')}.{name}", **self._outer(), **self._given})
                self._given = _nothing()
                # Another hook may get this one's address once it is gone.
                weakref.finalize(hooks[0], self._hooks.pop, key, None)
            return self._hooks[key]
        return self.inside[-1] if self.inside else None

    def _outer(self) -> dict[str, Any]:
        return {"in": Id(self.inside[-1])} if self.inside else {}

    # ---- modules and custom functions ----

    def ids_of(self, tree: Any) -> list[Any]:
        return [self.know(t) for t in tensors(tree) if isinstance(t, FakeTensor) and t.device.type == "cuda"]

    def called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """nn.Module.__call__ that records which module runs."""
        recorder = self

        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            n = recorder.modules.get(id(module))
            if n is None:
                return original(module, *args, **kwargs)
            if n == 0 and recorder.called_with is None:
                recorder.called_with = _values.real((args, kwargs))
            recorder.stack.append(n)
            recorder.ran.add(n)
            try:
                out = original(module, *args, **kwargs)
            finally:
                recorder.stack.pop()
            if n == 0 and recorder.on and not recorder.stack:
                recorder.outputs, recorder.forward = recorder.ids_of(out), len(recorder.calls)
            return out

        return __call__

    def applied(self, original: Callable[..., Any]) -> Any:
        """torch.autograd.Function.apply that records which function runs."""
        recorder = self

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.on:
                return original.__func__(cls, *args, **kwargs)  # type: ignore[attr-defined]
            name = f"{cls.__module__}.{cls.__qualname__}"
            if name == "torch.utils.checkpoint._NoopSaveInputs":  # what the region that comes now is called with
                recorder._last = recorder._given = {**_nothing(), "inputs": recorder.ids_of(args)}
                try:
                    return original.__func__(cls, *args, **kwargs)  # type: ignore[attr-defined]
                finally:
                    recorder._last = None
            row = {"kind": "checkpoint" if name == "torch.utils.checkpoint.CheckpointFunction" else "function", "name": name, **recorder._outer(), "inputs": recorder.ids_of(args), "outputs": [], "saves": []}
            recorder.inside.append(len(recorder.regions))
            recorder.regions.append(row)
            recorder._last, before = row, recorder._last
            try:
                out = original.__func__(cls, *args, **kwargs)  # type: ignore[attr-defined]
            finally:
                recorder.inside.pop()
                recorder._last = before
            row["outputs"] = recorder.ids_of(out)
            return out

        return classmethod(apply)

    @contextlib.contextmanager
    def active(self, pack: Callable[[torch.Tensor], Any] | None = None, unpack: Callable[[Any], Any] = lambda p: p) -> Iterator[None]:
        """Sees the calls made inside."""
        from torch.autograd.function import Function

        call, apply = torch.nn.Module.__call__, Function.__dict__["apply"]
        _set_mode_pre_dispatch(self)
        on = torch._C._EnablePythonDispatcher()  # type: ignore[attr-defined]
        torch.nn.Module.__call__ = self.called(call)  # type: ignore[method-assign]
        Function.apply = self.applied(apply)  # type: ignore[method-assign,assignment]
        try:
            with self.fake, _real.Sizes(self.shown, False) if self.shown is not None else contextlib.nullcontext(), torch.autograd.graph.saved_tensors_hooks(pack or self.pack, unpack):
                yield
        finally:
            torch.nn.Module.__call__ = call  # type: ignore[method-assign]
            Function.apply = apply  # type: ignore[method-assign]
            del on
            _pop_mode_from_pre_dispatch()


def _nothing() -> dict[str, Any]:
    return {"inputs": [], "outputs": [], "saves": []}


def plain(a: Any) -> Any:
    """An argument other than a tensor, as JSON."""
    if a is None or isinstance(a, (bool, str)):
        return {"s": a} if isinstance(a, str) else a
    if isinstance(a, int):
        return int(a)
    if isinstance(a, float):
        return a if abs(a) < float("inf") else {"f": "nan" if a != a else "inf" if a > 0 else "-inf"}
    for kind, name in ((torch.dtype, "dtype"), (torch.memory_format, "format"), (torch.layout, "layout")):
        if isinstance(a, kind):
            return {name: str(a).removeprefix("torch.")}
    if isinstance(a, torch.device):
        return {"device": a.type}
    if isinstance(a, torch.Generator):
        return None
    return {"s": str(a)}


def tensors(tree: Any, seen: set[int] | None = None, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor of a structure, including dataclasses and objects that models return (caches, distributions)."""
    seen = set() if seen is None else seen
    if isinstance(tree, torch.Tensor):
        yield tree
        return
    if id(tree) in seen or depth > 8:
        return
    seen.add(id(tree))
    if isinstance(tree, dict):
        children = list(tree.values())
    elif isinstance(tree, (list, tuple, set)):
        children = list(tree)
    elif hasattr(tree, "__dict__") and not isinstance(tree, (type, torch.nn.Module)) and not callable(tree):
        children = list(vars(tree).values())
    else:
        return
    for c in children:
        yield from tensors(c, seen, depth + 1)


def _shape(t: torch.Tensor) -> Any:
    return t.dtype, tuple(t.shape), t.stride(), t.storage_offset()


def _on_cpu(args: Any, kwargs: Any) -> bool:
    """Whether a call only has tensors on the CPU, whose values are known."""
    device, some = None, False
    for a in tree_leaves((args, kwargs)):
        if isinstance(a, torch.Tensor):
            if isinstance(a, FakeTensor):
                return False
            some = some or a.device.type == "cpu"
        elif isinstance(a, torch.device):
            device = a.type
    return device == "cpu" or (device is None)


def place() -> str:
    """File and line of the innermost frame that is not PyTorch's."""
    f: Any = sys._getframe(1)
    while f is not None:
        name = f.f_code.co_filename
        if not name.startswith((_TORCH, _HERE)) and not name.startswith("<"):
            return f"{os.path.basename(name)}:{f.f_lineno}"
        f = f.f_back
    return ""


__all__ = ["Id", "Recorder", "plain", "tensors", "tree_map"]
