"""Applies a checkpoint plan of memplan to a PyTorch model.

    memplan.checkpoint(model, "plan.json")   # before the first step
    memplan.remove(model)                    # as it was

A region is one module or several. Its modules run as the model calls them; what autograd would save of them is dropped, and computed
again by running them with the same arguments when backward first needs it. What the model computes between the modules of a region is
not run again, so it may be anything: a region of modules that are not called in a row still gives the right gradients, but keeps more.

An offloaded region is one module: what autograd saves of it goes to pinned memory of the host, and comes back before backward needs it.
Nothing is computed twice. The copies run on a stream of their own. One that keeps what it saves is there for the region before it, whose
tensors go when its forward has ended, and come back when backward reaches it.

Needs PyTorch 2.4 or newer. This file stands alone: it is what memplan help checkpoint.py prints, too.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import inspect
import json
import os
import sys
import threading
import types
import warnings
import weakref
from collections import Counter
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence, TypeVar, Union

import torch
from torch.multiprocessing.reductions import StorageWeakRef as _StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torch_checkpoint

Plan = Union[str, "os.PathLike[str]", Mapping[str, Any]]
Model = TypeVar("Model", bound=torch.nn.Module)


try:
    from ._error import MemplanError
except ImportError:  # this file alone

    class MemplanError(RuntimeError):  # type: ignore[no-redef]
        """A plan that cannot be applied, or a model that does not run as its plan says."""


def checkpoint(model: Model, plan: Plan, *, strip_prefix: str | None = None) -> Model:
    """Checkpoints the regions of a plan in a model, and returns the model.

    plan is what `memplan plan` or `memplan config --to torch` writes: a file or its content. Names of modules are those of
    named_modules(). Where the plan was made for the model in a wrapper, or the model is in one that the plan does not know, the names
    are matched by the module tree; strip_prefix says what to take off the plan's names instead. An earlier plan is taken off first.

    Raises MemplanError, and leaves the model as it is, for a plan that is not one, that does not fit its budget, or that was made for
    another model: the first module or weight that differs is named.
    """
    regions, weights = _regions(plan)
    found = _Names(model, weights).all([n for r in regions for n in r.names], strip_prefix)
    for name, m in found.items():
        if isinstance(m, torch.jit.ScriptModule):
            raise MemplanError(f"{name!r} is scripted and cannot be checkpointed: apply the plan before torch.jit.script")
        if type(m).forward is torch.nn.Module.forward:
            raise MemplanError(f"{name!r} is a {type(m).__name__}, which computes nothing itself: name the modules in it")
    remove(model)
    host = _Host()
    for r in reversed(regions):  # outer regions stand before those in them, and are put on last
        region = _Region(r.names, r.ops)
        for name in r.names:
            m = found[name]
            inner = m.__dict__.get("forward")
            m.forward = _Offloaded(m, host, inner, r.keep) if r.offload else _Part(m, region, inner)  # type: ignore[method-assign,assignment]
    if any(r.offload for r in regions):
        model.__dict__[_HOOKS] = [model.register_forward_pre_hook(host.begin, with_kwargs=True), model.register_forward_hook(host.end, always_call=True)]
    return model


def remove(model: Model) -> Model:
    """Removes what checkpoint() has applied, and returns the model."""
    for m in model.modules():
        for hook in m.__dict__.pop(_HOOKS, ()):
            hook.remove()
        while isinstance(part := m.__dict__.get("forward"), (_Part, _Offloaded)):
            if part.inner is None:
                del m.__dict__["forward"]
            else:
                m.__dict__["forward"] = part.inner
    return model


# ---- reading plans -------------------------------------------------------------------------------------------------------------


class _Planned(NamedTuple):
    """A region as a plan has it: its modules, the calls that it keeps, whether it is offloaded, and if so whether it keeps what it saves."""

    names: list[str]
    ops: list[dict[str, Any]]
    offload: bool
    keep: bool


_Read = tuple[list[_Planned], Mapping[str, Sequence[int]]]


def _regions(plan: Plan) -> _Read:
    """The regions of a plan or a configuration, each with its modules and the calls that it keeps; and the shapes of the model's weights."""
    plan = getattr(plan, "document", plan)  # what memplan.plan() returns
    where, doc = "the plan", plan
    if not isinstance(plan, Mapping):
        where = os.fspath(plan)
        try:
            with open(plan, encoding="utf-8") as f:
                doc = json.load(f)
        except (OSError, ValueError) as e:
            raise MemplanError(f"{where}: {e}") from e
    if not isinstance(doc, Mapping) or not ("checkpoint" in doc or "selection" in doc):
        raise MemplanError(f"{where} is no plan: want what memplan plan or memplan config --to torch writes")
    if doc.get("schemaVersion", 1) != 1:
        raise MemplanError(f"{where} has schemaVersion {doc['schemaVersion']}, this memplan reads 1: take the newer memplan")
    if doc.get("framework", "torch") != "torch":
        raise MemplanError(f"{where} is a configuration for {doc['framework']}: make one with memplan config --to torch")
    if doc.get("fits") is False:
        raise MemplanError(f"{where} does not fit its budget: ask for a smaller --batch, or a larger --vram")
    if doc.get("schedule"):
        raise MemplanError(f"{where} is a schedule of single operations, which PyTorch cannot run: make one with --checkpoint auto")
    try:
        if "selection" in doc:
            out = [_Planned(list(s["modules"]), [dict(o) for o in s.get("save") or []], bool(s.get("offload")), bool(s.get("keep"))) for s in doc["selection"] or []]
        else:
            out = [_Planned(list(e["modules"]), [dict(o) for o in doc.get("ops") or [] if o["region"] == i], bool(e.get("offload")), bool(e.get("keep"))) for i, e in enumerate(doc["checkpoint"])]
        for names, ops, offload, keep in out:
            if not names or any(not isinstance(n, str) for n in names) or any(not (o["op"] and o["calls"]) for o in ops) or offload and (ops or len(names) > 1) or keep and not offload:
                raise KeyError("modules")
    except (KeyError, TypeError, AttributeError) as e:
        raise MemplanError(f"{where} is no plan: {e} is missing or not what memplan writes") from e
    return out, doc.get("weights") or {}


# Components of module names that wrappers add: DataParallel and DDP, torch.compile, FSDP, checkpoint wrappers, PEFT.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class _Names:
    """Finds the modules that a plan names in a model that may be wrapped differently."""

    def __init__(self, model: torch.nn.Module, weights: Mapping[str, Sequence[int]]) -> None:
        self.exact = dict(model.named_modules(remove_duplicate=False))
        self.bare: dict[str, torch.nn.Module] = {}  # without what wrappers add
        for name, m in self.exact.items():
            self.bare.setdefault(_unwrapped(name), m)
        self.weights = weights  # the plan's
        self.shapes = {_unwrapped(n): _stored(p) for n, p in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))}

    def all(self, names: Sequence[str], strip: str | None) -> dict[str, torch.nn.Module]:
        """The modules by name."""
        ways = [(strip.rstrip("."), "")] if strip is not None else list(dict.fromkeys(self.ways(names)))
        found = {how: every for how in ways if (every := self.every(names, how)) is not None}
        if not found:
            self.refuse(names, max(ways, key=lambda how: sum(self.renamed(n, how) is not None for n in names)))
        differences = {how: self.difference(how) for how in found}
        fitting = [how for how in found if not differences[how]]
        if not fitting:
            raise MemplanError("the plan is for another model: " + differences[min(found, key=lambda how: (len(self.missing(how)), _length(how)))] + "; export and plan again with this one")
        least = min(map(_length, fitting))
        best = [how for how in fitting if _length(how) == least]
        if len({tuple(map(id, found[how].values())) for how in best}) > 1:
            raise MemplanError(f"the plan's {names[0]!r} could be " + " or ".join(repr(_renamed(names[0], how)) for how in best) + " in this model: give checkpoint() the one that the plan was made for")
        return found[best[0]]

    def missing(self, how: tuple[str, str]) -> list[str]:
        """Weights of the plan that the model lacks or has in another shape."""
        return [n for n, shape in self.weights.items() if not _alike(self.shapes.get(_unwrapped(_renamed(n, how)), _ABSENT), shape)]

    def difference(self, how: tuple[str, str]) -> str:
        """The first difference between the weights that the plan knows and those of the model, "" for none."""
        if missing := self.missing(how):
            there = self.shapes.get(_unwrapped(name := _renamed(missing[0], how)))
            return f"{missing[0]!r} has shape {list(self.weights[missing[0]])} there, " + (f"here {list(there)}" if there is not None else f"and here {name!r} does not exist")
        known = {_unwrapped(_renamed(n, how)) for n in self.weights}
        blocks = {c for n in known for c in _numbered(n)}
        lists = {c.rpartition(".")[0] for c in blocks}
        for n in self.shapes:
            for c in _numbered(n):
                if c not in blocks and c.rpartition(".")[0] in lists:
                    return f"this one has {c!r}, that one only " + ", ".join(sorted((b for b in blocks if b.rpartition(".")[0] == c.rpartition(".")[0]), key=lambda b: int(b.rpartition(".")[2]))[-3:])
        return ""

    def get(self, name: str) -> torch.nn.Module | None:
        if name in self.exact:
            return self.exact[name]
        return self.bare.get(_unwrapped(name))

    def renamed(self, name: str, how: tuple[str, str]) -> torch.nn.Module | None:
        off, _ = how
        return self.get(_renamed(name, how)) if not off or name == off or name.startswith(off + ".") else None

    def every(self, names: Sequence[str], how: tuple[str, str]) -> dict[str, torch.nn.Module] | None:
        out: dict[str, torch.nn.Module] = {}
        for n in names:
            if (m := self.renamed(n, how)) is None:
                return None
            out[n] = m
        return out

    def ways(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Prefixes that could be removed from the names and added to them, the shortest first."""
        yield "", ""
        if not names:
            return
        common = os.path.commonprefix([n.split(".")[:-1] for n in names])
        offs = [".".join(common[:i]) for i in range(len(common) + 1)]
        first = names[0]
        for off in offs:
            rest = first[len(off) :].lstrip(".")
            if off and all(p.isdigit() for p in rest.split(".")):
                continue  # a number says nothing
            for name in self.bare:
                if name == rest or name.endswith("." + rest):
                    yield off, name[: len(name) - len(rest)].rstrip(".")

    def refuse(self, names: Sequence[str], how: tuple[str, str]) -> None:
        """Raises for the first name that the model does not have."""
        missing = next(n for n in names if self.renamed(n, how) is None)
        parts = _renamed(missing, how).split(".")
        there = next(i for i in range(len(parts) - 1, -1, -1) if i == 0 or self.get(".".join(parts[:i])) is not None)
        at = self.get(".".join(parts[:there])) if there else self.exact[""]
        children = [n for n, _ in at.named_children()] if at is not None else []
        listed = ", ".join(children[:8]) + (f" and {len(children) - 8} more" if len(children) > 8 else "") if children else "no modules"
        inside = f"{type(at).__name__} at {'.'.join(parts[:there])!r}" if there else type(at).__name__
        raise MemplanError(f"the plan is for another model: it checkpoints {missing!r}, and {inside} has no {parts[there]!r} but {listed}")


# Components that adapters and parametrizations put before a parameter's own name.
_INNER = (*_WRAPPERS, "base_layer")


def _stored(p: torch.Tensor) -> tuple[int, ...] | None:
    """The shape of a parameter as the model was built; None if it is stored differently: quantized, or not there yet."""
    if isinstance(p, torch.nn.parameter.UninitializedTensorMixin) or not (p.is_floating_point() or p.is_complex()):
        return None
    return tuple(getattr(p, "ds_shape", p.shape))  # ds_shape: what DeepSpeed's ZeRO-3 has shared out


_ABSENT: Any = object()


def _alike(here: tuple[int, ...] | None, there: Sequence[int]) -> bool:
    return here is None or here is not _ABSENT and list(here) == list(there)


def _numbered(name: str) -> list[str]:
    """The list entries that contain a weight: h.3 of h.3.mlp.weight."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i, p in enumerate(parts) if p.isdigit()]


def _length(how: tuple[str, str]) -> int:
    """How much a way changes a name."""
    return sum(len(x.split(".")) for x in how if x)


def _unwrapped(name: str) -> str:
    return ".".join(p for p in name.split(".") if p not in _INNER)


def _renamed(name: str, how: tuple[str, str]) -> str:
    off, on = how
    rest = name[len(off) :].lstrip(".") if not off or name == off or name.startswith(off + ".") else name
    return f"{on}.{rest}" if on and rest else on or rest


# ---- running regions -------------------------------------------------------------------------------------------------------------


# Fused attention, of which a GPU has several kernels and the processor another.
_ATTENTION = frozenset(f"aten._scaled_dot_product_{kind}_attention" for kind in ("efficient", "flash", "cudnn"))


class _Region:
    """The modules that run again together, and the calls whose results are kept. Holds no module, so that copies are independent."""

    def __init__(self, names: list[str], ops: list[dict[str, Any]]) -> None:
        self.names, self.ops = names, ops
        self.title = f"checkpointed {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "")
        self.keep = tuple((o["op"], i) for o in ops for i in o["calls"])
        self.warned = False

    def warn(self, text: str) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(f"{self.title}: {text}", stacklevel=6)

    def contexts(self, seen: Counter[str], again: Counter[str]) -> tuple[Any, Any]:
        """The contexts of a call's first and second run: a policy that keeps the results of some operators."""
        if not self.keep:
            return contextlib.nullcontext(), contextlib.nullcontext()
        keep = frozenset(self.keep)
        states: dict[tuple[str, int], list[tuple[torch.device, torch.Tensor]]] = {}  # of random numbers, where a call that is kept took some before
        skipped = False

        def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            nonlocal skipped
            counts = again if ctx.is_recompute else seen
            verdict = _policy(keep, counts, op)
            written = ctx.is_recompute and verdict is CheckpointPolicy.MUST_SAVE and _written(second, op)
            name, random = _operator(op)
            if random:
                at = name, counts[name]
                skipped = skipped or verdict is CheckpointPolicy.MUST_SAVE
                if skipped and not ctx.is_recompute:
                    states[at] = _random(args)
                elif at in states and (written or verdict is not CheckpointPolicy.MUST_SAVE):
                    _restore_random(states[at])
            return CheckpointPolicy.PREFER_RECOMPUTE if written else verdict

        first, second = create_selective_checkpoint_contexts(policy)
        return first, second

    def check(self, seen: Counter[str], processor: bool) -> None:
        """processor: the region ran without a GPU, whose attention is another kernel: nothing of it is kept then."""
        for o in self.ops:
            if not o.get("of") or seen[o["op"]] == o["of"] or (processor and o["op"] in _ATTENTION):
                continue
            other = sorted(n for n in seen if n in _ATTENTION)
            if o["op"] in _ATTENTION and other:
                raise MemplanError(f"{self.title} calls {other[0]} where the plan says {o['op']}: train with the attention backend, precision and mask that the model was exported with, or export and plan again with those of now")
            raise MemplanError(f"{self.title} calls {o['op']} {seen[o['op']]} times, the plan says {o['of']}: it was made for another model, version or setting; export and plan again with the model as it is now")


def _random(args: Sequence[Any]) -> list[tuple[torch.device, torch.Tensor]]:
    """The random number states of the devices of an operator's arguments."""
    devices = {x.device for x in args if isinstance(x, torch.Tensor) and x.device.type != "meta"}
    return [(d, torch.get_rng_state() if d.type == "cpu" else torch.get_device_module(d).get_rng_state(d)) for d in devices]


def _restore_random(states: list[tuple[torch.device, torch.Tensor]]) -> None:
    for d, s in states:
        if d.type == "cpu":
            torch.set_rng_state(s)
        else:
            torch.get_device_module(d).set_rng_state(s, d)


@functools.lru_cache(maxsize=None)
def _operator(op: Any) -> tuple[str, bool]:
    """An operator's name, and whether it uses random numbers. Cached, because it is needed for every call under a policy."""
    return str(getattr(op, "overloadpacket", op)), torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def _policy(keep: Any, seen: Counter[str], op: Any) -> CheckpointPolicy:
    name, _ = _operator(op)
    seen[name] += 1
    return CheckpointPolicy.MUST_SAVE if (name, seen[name] - 1) in keep else CheckpointPolicy.PREFER_RECOMPUTE


def _written(second: Any, op: Any) -> bool:
    """Whether the model has written to the kept results of an operator's next call, which then cannot be used: they are released, and the call runs again."""
    kept = getattr(second, "storage", {}).get(op)
    if not kept or not any(isinstance(x := getattr(w, "val", w), torch.Tensor) and getattr(w, "version", None) not in (None, x._version) for w in tree_leaves(kept[0])):
        return False
    kept.pop(0)
    return True


class _Part:
    """The forward of a module in a region, stored as the module's attribute forward."""

    def __init__(self, module: torch.nn.Module, region: _Region, inner: Callable[..., Any] | None) -> None:
        self.module, self.region = module, region
        self.inner = inner  # what stood there before: another region's part, or what another library has put on

    @property
    def __signature__(self) -> Any:
        return inspect.signature(self.inner or types.MethodType(type(self.module).forward, self.module))

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.traced(args, kwargs)
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        return _frame(self).call(self, args, kwargs)

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Under torch.compile each module is checkpointed by itself: the compiler sees functions, not what runs between them."""
        if len(self.region.names) == 1 and self.region.keep:
            return torch_checkpoint(self.plain, *args, use_reentrant=False, context_fn=self.compiled_contexts(), **kwargs)
        return torch_checkpoint(self.plain, *args, use_reentrant=False, **kwargs)

    def compiled_contexts(self) -> Callable[[], Any]:
        return functools.partial(_compiled_contexts, self.region.keep)


def _compiled_contexts(keep: tuple[tuple[str, int], ...]) -> Any:
    seen: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    return create_selective_checkpoint_contexts(lambda ctx, op, *args, **kwargs: _policy(keep, seen[ctx.is_recompute], op))


class _Local(threading.local):
    def __init__(self) -> None:
        self.open: dict[int, _Frame] = {}  # frames that wait for the other modules of their region, by the region's id


_local = _Local()


def _frame(part: _Part) -> _Frame:
    """The frame of a call: the open one of its region unless that has already run this module, else a new one."""
    f = _local.open.get(id(part.region))
    if f is None or f.region is not part.region or f.ran or any(c.part is part for c in f.calls):
        f = _Frame(part.region)
        if len(part.region.names) > 1:
            _local.open[id(part.region)] = f
    return f


class _Stop(Exception):
    """Stops a second run when everything that backward needs exists."""


class _Holder:
    """Stands for a saved tensor; value is set between the second run and its use."""

    __slots__ = ("value", "version", "__weakref__")

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None
        self.version = 0


class _Keep(torch.autograd.Function):
    """Saves a call's arguments as autograd saves tensors, so that an enclosing region drops them and hooks see them."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise AssertionError("nothing depends on it")


class _Call:
    """One call of a region's module, in a form that can be repeated."""

    def __init__(self, part: _Part, spec: Any, leaves: list[tuple[str, Any]], kept: dict[int, torch.Tensor], state: _State) -> None:
        self.part, self.spec, self.state = part, spec, state
        self.leaves = leaves  # of the arguments: "known" and a number, "shard" and how it is one of a known tensor, or "is" and what it is
        self.numbers, self.grads = list(kept), [x.requires_grad for x in kept.values()]
        self.saved = _Keep.apply(torch.empty(0, requires_grad=True), *[x.detach() for x in kept.values()])
        self.second: Any = None  # the policy of its second run
        self.wanted: dict[int, int] = {}  # leaves of the result that later calls may take, and their numbers
        self.replaced = _computed(part.module)  # what stood in the module before it

    def tensors(self) -> Iterator[tuple[int, torch.Tensor]]:
        for n, x, grad in zip(self.numbers, self.saved.grad_fn.saved_tensors, self.grads):
            yield n, x.detach().requires_grad_(grad)


class _Known:
    """An object that calls of a frame have taken or returned, in its latest state."""

    def __init__(self, x: Any, number: int, outside: bool) -> None:
        self.ref, self.number, self.outside = weakref.ref(x), number, outside
        self.left = _content(x)

    def same(self, x: Any) -> bool:
        now = _content(x)
        return len(now) == len(self.left) and all(a is b or a == b and isinstance(a, int) for a, b in zip(now, self.left))


class _Frame:
    """One run of a region: its calls, and the holders of the tensors that autograd has saved."""

    def __init__(self, region: _Region) -> None:
        self.region, self.calls, self.ran = region, list[_Call](), False
        self.holders: list[weakref.ref[_Holder]] = []
        self.shapes: list[Any] = []
        self.known: dict[int, _Known] = {}  # by id
        self.count = 0  # numbers given to objects
        self.objects: dict[int, Any] = {}  # those from outside that are no tensors, as they were
        self.seen: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.began = _sequence(torch.empty(0, requires_grad=True).view(0)) if len(region.names) > 1 else 0

    # the first run

    def call(self, part: _Part, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a module of the region; what autograd saves is replaced by holders."""
        try:
            call = self.note(part, args, kwargs)
            self.calls.append(call)
            buffers = _buffers(part.module)
            first, call.second = self.region.contexts(self.seen, self.again)
            with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack), first:
                out = part.plain(*args, **kwargs)
            call.replaced += _replaced(self.region, buffers)
            self.left(call, out)
        except BaseException:
            self.close()
            raise
        if len(self.calls) == len(self.region.names):
            self.close()
            self.region.check(self.seen, not any(isinstance(t, torch.Tensor) and t.device.type != "cpu" for t in tree_leaves(out)))
        return out

    def close(self) -> None:
        """No further call belongs to this frame."""
        if _local.open.get(id(self.region)) is self:
            del _local.open[id(self.region)]
        self.known.clear()

    def note(self, part: _Part, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Records how a module is called: known objects by number, outside tensors to be kept, other objects as copies."""
        flat, spec = tree_flatten((args, kwargs))
        leaves: list[tuple[str, Any]] = []
        kept: dict[int, torch.Tensor] = {}
        memo: dict[int, Any] = {}
        for x in flat:
            if not (isinstance(x, torch.Tensor) or _is_object(x)):
                leaves.append(("is", x))
                continue
            if (n := self.number(x)) is None:
                if (shard := self.shard(x)) is not None:
                    leaves.append(("shard", shard))
                    continue
                n = self.enter(x, True)
                if isinstance(x, torch.Tensor):
                    kept[n] = x
                else:
                    self.objects[n] = _snapshot(x, memo)
            leaves.append(("known", n))
        if self.calls and any(_sequence(x) > self.began for x in kept.values()):
            self.region.warn(f"what the model computes between these modules, for {type(part.module).__name__} to take, is kept: the plan does not count that")
        return _Call(part, spec, leaves, kept, _State(flat, part.module))

    def number(self, x: Any) -> int | None:
        """The number of an object that calls of this frame have taken or returned, if nothing has changed it since."""
        k = self.known.get(id(x))
        if k is None and isinstance(x, torch.Tensor) and x.grad_fn is not None and x.grad_fn.name() == _HANDED_ON:
            k = next((k for k in self.known.values() if _handed_on(k.ref(), x)), None)
            x = k.ref() if k is not None else x
        return k.number if k is not None and k.ref() is x and k.same(x) else None

    def shard(self, x: Any) -> _Shard | None:
        """A known tensor as tensor parallelism hands it to a module: as this rank's part of a DTensor, made by a function that computes nothing."""
        dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
        if not isinstance(x, dtensor) or x.grad_fn is None or x.grad_fn.name() != _MADE_WHOLE:
            return None
        for k in self.known.values():
            local, known = x._local_tensor, k.ref()  # type: ignore[attr-defined]
            if isinstance(known, torch.Tensor) and any(f is known.grad_fn for f, _ in x.grad_fn.next_functions) and (known.data_ptr(), known.shape, known.stride()) == (local.data_ptr(), local.shape, local.stride()) and k.same(known):
                return _Shard(k.number, x.device_mesh, x.placements, x.shape, x.stride())  # type: ignore[attr-defined]
        return None

    def enter(self, x: Any, outside: bool) -> int:
        """Numbers an object. One without weak references is not found again."""
        n, self.count = self.count, self.count + 1
        with contextlib.suppress(TypeError):
            self.known[id(x)] = _Known(x, n, outside)
        return n

    def left(self, call: _Call, out: Any) -> None:
        """Records what a call has changed, and numbers its results."""
        for k in list(self.known.values()):
            x = k.ref()
            if x is None or k.same(x):
                continue
            if k.outside and isinstance(x, torch.Tensor):
                raise MemplanError(f"{self.region.title}: {type(call.part.module).__name__} writes to a tensor that it is given; running it again would give wrong gradients. Leave it out of the regions")
            k.left = _content(x)
        if len(self.calls) == len(self.region.names):
            return
        for i, x in enumerate(tree_leaves(out)):
            if (isinstance(x, torch.Tensor) or _is_object(x)) and self.number(x) is None:
                call.wanted[i] = self.enter(x, False)

    def pack(self, x: torch.Tensor) -> _Holder:
        h = _Holder()
        self.holders.append(weakref.ref(h))
        self.shapes.append(_shape(x))
        return h

    def unpack(self, h: _Holder) -> torch.Tensor:
        if h.value is None:
            self.run_again([dict(c.tensors()) for c in self.calls])
        x, h.value = h.value, None
        if x is None:
            raise MemplanError(f"{self.region.title}: the second run saved fewer tensors than the first one: its modules do not compute the same again; turn off what differs between two runs, such as a cache, a counter or a random generator of their own")
        if x._version != h.version:
            raise MemplanError(f"{self.region.title}: what its modules save is written to after that; leave the module that does so out of the regions")
        return x

    # the second run

    def run_again(self, given: list[dict[int, Any]]) -> None:
        """Repeats the calls with what was kept for each, up to the last tensor that was saved."""
        self.ran = True
        opened, _local.open = _local.open, {}
        self.again.clear()
        saved = 0

        def pack(x: torch.Tensor) -> torch.Tensor:
            nonlocal saved
            h = self.holders[saved]()
            if self.shapes[saved] != _shape(x):
                raise MemplanError(f"{self.region.title}: the second run saved {_shape(x)} where the first one saved {self.shapes[saved]}: its modules do not compute the same again; turn off what differs between two runs, such as a cache, a counter or a random generator of their own")
            x = x.detach() if x.requires_grad else x
            if h is not None:
                h.value, h.version = x, x._version
            saved += 1
            if saved == len(self.holders):
                raise _Stop
            return x

        try:
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                self.replay(given)
        except _Stop:
            pass
        finally:
            _local.open = opened

    def replay(self, given: list[dict[int, Any]]) -> None:
        """Repeats the modules' calls; a value is released after its last use."""
        values: dict[int, Any] = {}
        memo: dict[int, Any] = {}
        last = {n.number if kind == "shard" else n: i for i, c in enumerate(self.calls) for kind, n in c.leaves if kind in ("known", "shard")}
        for i, c in enumerate(self.calls):
            values.update(given[i])
            given[i] = {}
            flat = [self.value(n, values, memo) if kind == "known" else n.whole(values[n.number]) if kind == "shard" else n for kind, n in c.leaves]
            for n in [n for n in values if last.get(n, -1) <= i]:
                del values[n]
            args, kwargs = tree_unflatten(flat, c.spec)
            del flat
            with c.state.restored(), _quiet(c.part.module), _before(c.replaced), c.second:
                if len(self.calls) > 1:
                    _unshard(c.part.module)
                out = c.part.plain(*args, **kwargs)
            del args, kwargs
            if c.wanted:
                values.update({c.wanted[k]: x for k, x in enumerate(tree_leaves(out)) if last.get(c.wanted.get(k, -1), -1) > i})
            del out

    def value(self, n: int, values: dict[int, Any], memo: dict[int, Any]) -> Any:
        """An argument for the second run: objects in their original state, copied again."""
        if n not in values:
            values[n] = _snapshot(self.objects[n], memo)
        return values[n]


def _shape(x: torch.Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.dtype, x.device


class _State:
    """Random number states and autocast at a call."""

    def __init__(self, args: list[Any], module: torch.nn.Module) -> None:
        devices = {x.device for x in (*args, next(module.parameters(), None)) if isinstance(x, torch.Tensor)}
        self.devices = sorted((d for d in devices if d.type not in ("cpu", "meta")), key=str)
        self.cpu = torch.get_rng_state()
        self.states = [(d, torch.get_device_module(d).get_rng_state(d)) for d in self.devices if _initialized(d)]
        self.casts = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in sorted({"cpu", *(d.type for d in self.devices)}) if torch.amp.is_autocast_available(kind)
        ]
        self.cache = torch.is_autocast_cache_enabled()

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        old = torch.get_rng_state(), [(d, torch.get_device_module(d).get_rng_state(d)) for d, _ in self.states]
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self.casts:
                stack.enter_context(torch.autocast(kind, enabled=enabled, dtype=dtype, cache_enabled=self.cache))
            _set_random(self.cpu, self.states)
            try:
                yield
            finally:
                _set_random(*old)


def _initialized(d: torch.device) -> bool:
    f = getattr(torch.get_device_module(d), "is_initialized", None)
    return bool(f()) if f is not None else True


def _set_random(cpu: torch.Tensor, states: list[tuple[torch.device, torch.Tensor]]) -> None:
    torch.set_rng_state(cpu)
    for d, s in states:
        torch.get_device_module(d).set_rng_state(s, d)


def _norms(module: torch.nn.Module) -> list[Any]:
    """The normalisations of a module that keep running statistics."""
    return [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase)]


@contextlib.contextmanager
def _quiet(module: torch.nn.Module) -> Iterator[None]:
    """Keeps a second run from updating running statistics, as the first has done."""
    norms = _norms(module)
    old = [(n.momentum, n.num_batches_tracked) for n in norms]
    for n in norms:
        n.momentum, n.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for n, (momentum, count) in zip(norms, old):
            n.momentum, n.num_batches_tracked = momentum, count


_Buffers = list[tuple[torch.nn.Module, str, torch.Tensor, int]]


def _buffers(module: torch.nn.Module) -> _Buffers:
    """The buffers of a module, without running statistics, and how often each has been written to."""
    norms = torch.nn.modules.batchnorm._NormBase
    return [
        (m, name, b, b._version)
        for m in module.modules()
        if m._buffers and not isinstance(m, norms)
        for name, b in m._buffers.items()
        if b is not None and not b.is_inference()
    ]


_Places = list[tuple[dict[str, Any], str, Any]]


def _computed(module: torch.nn.Module) -> _Places:
    """Tensors that hooks set in a module for a call, as spectral_norm does with its weight."""
    return [(vars(module), k, v.detach().requires_grad_(v.requires_grad)) for k, v in vars(module).items() if isinstance(v, torch.Tensor)] if module._forward_pre_hooks else []


def _replaced(region: _Region, buffers: _Buffers) -> _Places:
    """The buffers that a run has replaced; it may not write to one."""
    for m, name, b, version in buffers:
        if b._version != version:
            raise MemplanError(f"{region.title}: {type(m).__name__} writes to its buffer {name!r} as it runs; running it again would write twice and compute something else. Leave it out of the regions")
    return [(m._buffers, name, b) for m, name, b, _ in buffers if m._buffers.get(name) is not b]


@contextlib.contextmanager
def _before(replaced: _Places) -> Iterator[None]:
    """The attributes of modules before the first run."""
    now = [(where, name, where.get(name)) for where, name, _ in replaced]
    for where, name, x in replaced:
        where[name] = x
    try:
        yield
    finally:
        for where, name, x in now:
            where[name] = x


def _unshard(module: torch.nn.Module) -> None:
    """Gathers the parameters of a module that FSDP has sharded: in backward FSDP does so only for the region's last module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(module, getattr(fsdp, "FSDPModule", ())):
        module.unshard()


_HANDED_ON = "RegisterPostBackwardFunctionBackward"
_MADE_WHOLE = "_FromTorchTensorBackward"


class _Shard(NamedTuple):
    """How a known tensor is a part of a DTensor."""

    number: int
    mesh: Any
    placements: Any
    shape: torch.Size
    stride: tuple[int, ...]

    def whole(self, local: torch.Tensor) -> Any:
        return sys.modules["torch.distributed.tensor"].DTensor.from_local(local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride)


def _handed_on(known: Any, x: torch.Tensor) -> bool:
    """Whether x is a known tensor as FSDP hands it to the module that it wraps: an alias, made by a function that computes nothing."""
    return (isinstance(known, torch.Tensor) and any(f is known.grad_fn for f, _ in x.grad_fn.next_functions)  # type: ignore[union-attr]
            and (known.data_ptr(), known.shape, known.stride(), known.dtype) == (x.data_ptr(), x.shape, x.stride(), x.dtype))


def _sequence(x: torch.Tensor) -> int:
    """When a tensor was computed, among those that need gradients; -1 for others."""
    return -1 if x.grad_fn is None else x.grad_fn._sequence_nr()


_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, enum.Enum, torch.Tensor, torch.nn.Module, torch.dtype, torch.device, torch.Size, torch.Generator)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def _is_object(x: Any) -> bool:
    """Whether x could change while a module runs: caches, lists in objects."""
    return hasattr(x, "__dict__") and not isinstance(x, (*_LEAVES, *_CODE))


def _parts(x: Any) -> Any:
    """The contents of a list, dictionary or object; None for all others."""
    if isinstance(x, (*_LEAVES, *_CODE)):
        return None
    if isinstance(x, dict):
        return [*x.values(), *getattr(x, "__dict__", {}).values()]
    if isinstance(x, (list, tuple, set)):
        return list(x)
    return list(vars(x).values()) if hasattr(x, "__dict__") else None


def _content(x: Any) -> list[Any]:
    """A fingerprint of an object's state: for a tensor the number of writes, else its contents."""
    if isinstance(x, torch.Tensor):
        return [0 if x.is_inference() else x._version]
    out: list[Any] = []
    todo, done = [x], set[int]()
    while todo:
        y = todo.pop()
        parts = _parts(y)
        if parts is None:
            out.append(y)
            if isinstance(y, torch.Tensor) and not y.is_inference():
                out.append(y._version)
        elif id(y) not in done:
            done.add(id(y))
            out.append(len(parts))
            todo += reversed(parts)
    return out


def _snapshot(x: Any, memo: dict[int, Any]) -> Any:
    """A copy of an object and of the lists, dictionaries and objects in it, as modules add to caches when they run. Its tensors
    are the same ones, without what autograd knows of them."""
    if id(x) in memo:
        return memo[id(x)][0]
    new = x
    if isinstance(x, torch.Tensor):
        new = x.detach().requires_grad_() if x.grad_fn is not None else x
    elif type(x) is tuple:
        new = tuple(_snapshot(v, memo) for v in x)
    elif _parts(x) is not None:
        with contextlib.suppress(Exception):  # what cannot be copied is passed as it is
            new = copy.copy(x)
    memo[id(x)] = new, x  # x stays, so that its id does
    if new is not x and not isinstance(x, (torch.Tensor, tuple)):
        if type(x) is list:
            new[:] = [_snapshot(v, memo) for v in x]
        elif isinstance(x, dict):
            for k, v in x.items():
                dict.__setitem__(new, k, _snapshot(v, memo))
        for k, v in getattr(x, "__dict__", {}).items():
            new.__dict__[k] = _snapshot(v, memo)
    return new


# ---- offloading ------------------------------------------------------------------------------------------------------------------

_HOOKS = "_memplan_offload_hooks"
_LEAST = 1 << 20  # bytes of the smallest storage that is offloaded


class _Host:
    """What the offloaded regions of a model share: pinned buffers, streams for copies, and the forward pass that runs."""

    def __init__(self) -> None:
        self.free: dict[tuple[torch.device, int], list[torch.Tensor]] = {}  # buffers that no tensor is in, by device and bytes
        self.streams: dict[torch.device, Any] = {}
        self.now: _Pass | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Host:
        new = memo[id(self)] = _Host()
        return new

    def __reduce__(self) -> Any:
        return _Host, ()

    def begin(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Before the model's forward: weights, buffers and what the caller gives stay on the device."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        stay = [x for x in (*model.parameters(), *model.buffers(), *tree_leaves((args, kwargs))) if isinstance(x, torch.Tensor)]
        self.now = _Pass(self, {_storage(x) for x in stay}, next((x.device.type for x in stay), "cpu"))

    def end(self, model: torch.nn.Module, args: Any, out: Any) -> None:
        """After the model's forward: what was copied to the host is released."""
        if self.now is not None:
            self.now.release()

    def stream(self, device: torch.device) -> Any:
        """The stream for copies; None where copies end before the call returns."""
        if not _asynchronous(device):
            return None
        if device not in self.streams:
            self.streams[device] = torch.get_device_module(device).Stream(device)
        return self.streams[device]

    def buffer(self, device: torch.device, n: int) -> torch.Tensor:
        """A pinned buffer. The copy stream orders its uses: the copy out of it, then the next one into it."""
        free = self.free.setdefault((device, n), [])
        return free.pop() if free else torch.empty(n, dtype=torch.uint8, pin_memory=_asynchronous(device))


class _Pass:
    """One forward pass and its backward."""

    def __init__(self, host: _Host, stay: set[int], kind: str) -> None:
        self.host, self.stay, self.kind = host, stay, kind
        self.runs: list[weakref.ref[_Run]] = []  # which the saved tensors own: buffers are free when backward is over
        self.copies: dict[int, _Copy] = {}  # by storage
        self.stash: list[_Run] = []  # whose tensors are still on the device

    def release(self) -> None:
        """Lets go of what has been copied to the host, once the copies have ended for the compute stream."""
        for run in self.stash:
            if run.out is not None:
                _current(run.device).wait_event(run.out)
            for c in run.made:
                if c.there is not None and c.there._version != c.version:
                    raise MemplanError(f"offloaded {run.title}: what it saves is written to after that; leave the module that does so out of the offloaded regions")
                c.there = None
        self.stash = []


class _Copy:
    """A storage on the host, and on the device while forward or backward needs it there."""

    def __init__(self, host: _Host, x: torch.Tensor, storage: Any) -> None:
        self.host, self.device, self.bytes, self.version = host, x.device, storage.nbytes(), x._version
        self.there: torch.Tensor | None = x.detach()
        self.ref = _StorageWeakRef(storage)  # no other storage has its address as long as this lives
        self.buffer = host.buffer(x.device, self.bytes)
        self.back: torch.Tensor | None = None
        self.left = 0  # saved tensors in it that backward has not asked for

    def __del__(self) -> None:
        if hasattr(self, "buffer"):
            self.host.free.setdefault((self.device, self.bytes), []).append(self.buffer)

    def forget(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.back = None


class _Saved:
    """Stands for a saved tensor whose storage is on the host."""

    __slots__ = ("copy", "run", "meta", "asked")

    def __init__(self, copy: _Copy, run: _Run, x: torch.Tensor) -> None:
        self.copy, self.run, self.asked = copy, run, False
        self.meta = x.dtype, x.storage_offset(), x.size(), x.stride()
        copy.left += 1

    def __del__(self) -> None:
        if not self.asked:
            self.copy.forget()


class _Kept(NamedTuple):
    """A saved tensor that stays on the device, in a region that keeps."""

    tensor: torch.Tensor


class _Run:
    """One call of an offloaded module."""

    def __init__(self, within: _Pass, title: str, keep: bool) -> None:
        self.within, self.title, self.keep, self.at = within, title, keep, len(within.runs)
        self.needed: list[_Copy] = []  # in backward
        self.made: list[_Copy] = []  # those that no run before had
        self.device: Any = None
        self.out: Any = None  # events of the copies' ends
        self.back: Any = None
        self.fetching = self.reached = False
        within.runs.append(weakref.ref(self))

    def pack(self, x: torch.Tensor) -> Any:
        p = self.within
        if x.device.type != p.kind or x.layout is not torch.strided or x.is_conj() or x.is_neg() or type(x) not in _PLAIN:
            return x
        storage = x.untyped_storage()
        at = storage._cdata
        if storage.nbytes() < _LEAST or at in p.stay:
            return x
        if self.keep:
            return _Kept(x)
        c = p.copies.get(at)
        if c is None or c.version != x._version:
            with torch.no_grad():
                c = p.copies[at] = _Copy(p.host, x, storage)
                self.made.append(c)
                self.device = x.device
                _copied(p.host.stream(x.device), x.device, c.buffer, _bytes(x, storage))
        if c not in self.needed:
            self.needed.append(c)
        return _Saved(c, self, x)

    def end(self) -> None:
        """After the call: the run before it lets go of its tensors."""
        self.out = _recorded(self.within.host, self.device) if self.made else None
        self.within.release()
        self.within.stash.append(self)

    def unpack(self, h: Any) -> torch.Tensor:
        if isinstance(h, _Kept):
            with torch.no_grad():
                self.reach()
            return h.tensor
        if not isinstance(h, _Saved):
            return h  # type: ignore[no-any-return]
        with torch.no_grad():
            self.reach()
            c = h.copy
            if c.back is None:  # asked for again
                self.bring([c])
                _wait(self)
            dtype, offset, size, stride = h.meta
            x = torch.empty(0, dtype=dtype, device=c.device).set_(c.back.untyped_storage(), offset, size, stride)  # type: ignore[union-attr]
        if not h.asked:
            h.asked = True
            c.forget()
        return x

    def reach(self) -> None:
        """When backward first needs something of this run: waits for all of it, and starts the copies of the run before."""
        if self.reached:
            return
        self.reached = True
        self.within.release()
        self.fetch()
        _wait(self)
        before = self.within.runs[self.at - 1]() if self.at > 0 else None
        if before is not None:
            before.fetch()

    def fetch(self) -> None:
        if not self.fetching:
            self.fetching = True
            self.bring([c for c in self.needed if c.back is None and c.left > 0])

    def bring(self, copies: list[_Copy]) -> None:
        """Copies to the device. The memory is the compute stream's, which has to wait for the copies before it uses or frees it."""
        if not copies:
            return
        self.device = copies[0].device
        host = self.within.host
        for c in copies:
            c.back = torch.empty(c.bytes, dtype=torch.uint8, device=c.device)
        for c in copies:
            _copied(host.stream(c.device), c.device, c.back, c.buffer)
        self.back = _recorded(host, self.device)


class _Offloaded:
    """The forward of an offloaded module, stored as the module's attribute forward."""

    def __init__(self, module: torch.nn.Module, host: _Host, inner: Callable[..., Any] | None, keep: bool) -> None:
        self.module, self.host, self.inner, self.keep = module, host, inner, keep

    __signature__ = _Part.__signature__
    plain = _Part.plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        if self.host.now is None:
            self.host.begin(self.module, args, kwargs)
        run = _Run(self.host.now, type(self.module).__name__, self.keep)  # type: ignore[arg-type]
        with torch.autograd.graph.saved_tensors_hooks(run.pack, run.unpack):
            out = self.plain(*args, **kwargs)
        run.end()
        return out


_PLAIN = {torch.Tensor, torch.nn.Parameter}


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata if type(x) in _PLAIN and x.layout is torch.strided else 0


def _bytes(x: torch.Tensor, storage: Any) -> torch.Tensor:
    """All bytes of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage, 0, (storage.nbytes(),), (1,))


def _asynchronous(device: torch.device) -> bool:
    return device.type != "cpu" and bool(torch.get_device_module(device).is_available())


def _current(device: torch.device) -> Any:
    return torch.get_device_module(device).current_stream(device)


def _copied(stream: Any, device: torch.device, to: torch.Tensor, of: torch.Tensor) -> None:
    """Copies on the stream for copies what the compute stream has made."""
    if stream is None:
        to.copy_(of)
        return
    stream.wait_stream(_current(device))
    with torch.get_device_module(device).stream(stream):
        to.copy_(of, non_blocking=True)


def _recorded(host: _Host, device: torch.device) -> Any:
    stream = host.stream(device)
    return None if stream is None else stream.record_event()


def _wait(run: _Run) -> None:
    if run.back is not None:
        _current(run.device).wait_event(run.back)
