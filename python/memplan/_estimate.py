"""The memory of a step, as objects: the fields of `memplan analyze --format json`. Bytes are integers, times are milliseconds."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence, TypeVar, Union

from ._command import ask, flags

if typing.TYPE_CHECKING:
    import torch

ModelOrPath = Union["torch.nn.Module", str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Peak:
    """The peak of a step. The four numbers differ: `memplan help memory`."""

    requested_bytes: int
    allocated_bytes: int  # as torch.cuda.max_memory_allocated()
    reserved_bytes: int  # as torch.cuda.max_memory_reserved()
    process_bytes: int  # reserved and the CUDA context
    upper_bound_bytes: int  # that reserved memory will not exceed
    phase: str = ""
    step: int = 0
    node: str = ""


@dataclass(frozen=True)
class Phases:
    """Allocated bytes of a steady step: when phases end, and their peaks."""

    start: int = 0
    after_forward: int = 0
    after_backward: int = 0
    after_step: int = 0
    forward_peak: int = 0
    backward_peak: int = 0
    optimizer_peak: int = 0


@dataclass(frozen=True)
class Part:
    """The bytes of one category at the peak."""

    category: str
    bytes: int


@dataclass(frozen=True)
class Storage:
    """One of the largest storages that live at the peak."""

    value: str
    bytes: int
    category: str = ""
    node: str = ""
    module: str = ""


@dataclass(frozen=True)
class Source:
    """A guess in the prediction, and its possible error in bytes."""

    code: str
    bytes: int
    message: str = ""
    narrow: str = ""


@dataclass(frozen=True)
class Uncertainty:
    """The interval of reserved_bytes."""

    low_bytes: int = 0
    high_bytes: int = 0
    headroom_bytes: int = 0
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Batch:
    """The largest batch that fits, if requested."""

    max: int
    upper_bound: int = 0
    limited_by: str = ""


@dataclass(frozen=True)
class Kept:
    """Calls of an operator whose results a region keeps."""

    op: str
    calls: tuple[int, ...]
    of: int


@dataclass(frozen=True)
class Region:
    """Modules that are checkpointed together."""

    modules: tuple[str, ...]
    save: tuple[Kept, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """What is recomputed; overheads and bounds are relative to the step's time without checkpoints."""

    segments: tuple[Region, ...] = ()
    recompute_overhead: float = 0.0
    lower_bound: float = 0.0
    gap: float = 0.0
    optimal: bool = False


@dataclass(frozen=True)
class Time:
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    optimizer_ms: float = 0.0
    step_ms: float = 0.0
    samples_per_second: float = 0.0


@dataclass(frozen=True)
class Warning:
    code: str
    message: str
    node: str = ""


@dataclass(frozen=True)
class Module:
    """The live bytes of a module's calls and of those in it at the peak of a steady step."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Estimate:
    """The answer of memplan analyze; document has all of it."""

    peak: Peak
    fits: bool | None = None  # None: no budget was given
    phases: Phases = field(default_factory=Phases)
    breakdown: tuple[Part, ...] = ()
    live: tuple[Storage, ...] = ()
    modules: tuple[Module, ...] = ()
    saved_bytes: int = 0
    uncertainty: Uncertainty = field(default_factory=Uncertainty)
    batch: Batch | None = None
    checkpoint: Checkpoint | None = None
    time: Time = field(default_factory=Time)
    warnings: tuple[Warning, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def interval(self) -> tuple[int, int]:
        """Reserved bytes: lower and upper bound."""
        return self.uncertainty.low_bytes, self.uncertainty.high_bytes

    def __str__(self) -> str:
        p = self.peak
        lines = [f"batch {self.config.get('batch')}, {self.config.get('precision')}, {self.config.get('optimizer')}: peak {size(p.allocated_bytes)} allocated, {size(p.reserved_bytes)} reserved "
                 f"({size(self.interval[0])} to {size(self.interval[1])}), {size(p.process_bytes)} with the CUDA context, in the {p.phase} pass at {p.node}"]
        return "\n".join(lines + [f"warning: {w.message} [{w.code}]" for w in self.warnings])


@dataclass(frozen=True)
class Plan(Estimate):
    """The answer of memplan plan. memplan.checkpoint() accepts it, its path or its document."""

    path: str = ""


def estimate(model: ModelOrPath, args: Sequence[Any] | torch.Tensor = (), kwargs: Mapping[str, Any] | None = None, *, path: str | os.PathLike[str] | None = None, **settings: Any) -> Estimate:
    """The memory of one training step of a model, or one inference, on a GPU. Runs nothing on one.

    model is a module, which is exported with args and kwargs (to path, where one is given), or the path of an ONNX file. settings have
    the names of the flags of `memplan analyze`: vram="16G", gpu="t4", batch=64 (or "max"), precision="amp-bf16", optimizer="sgd", ...
    The batch is that of args unless it is given.

    Raises MemplanError with the command's message where there is no answer.
    """
    with _onnx(model, args, kwargs, path) as (file, batch), tempfile.TemporaryDirectory(prefix="memplan-") as folder:
        timeline = os.path.join(folder, "timeline.json")
        doc = ask("analyze", [file, *flags(_settings(settings, batch)), "--format=json", f"--timeline={timeline}"])
        return _read(Estimate, {**doc, "document": doc, "modules": _modules(timeline)})


def plan(model: ModelOrPath, args: Sequence[Any] | torch.Tensor = (), kwargs: Mapping[str, Any] | None = None, *, output: str | os.PathLike[str] | None = None, path: str | os.PathLike[str] | None = None, **settings: Any) -> Plan:
    """Chooses what to checkpoint so that a step fits a budget: `memplan plan`. output is a file for the plan; the rest is as for estimate().

    A step that does not fit is a plan whose fits is False.
    """
    with _onnx(model, args, kwargs, path) as (file, batch):
        doc = ask("plan", [file, *flags(_settings(settings, batch))])
    if output is not None:
        with open(output, "w", encoding="utf-8") as f:
            json.dump(doc, f)
    return _read(Plan, {**doc, "document": doc, "path": "" if output is None else os.fspath(output)})


def _settings(settings: Mapping[str, Any], batch: int | None) -> dict[str, Any]:
    return {**({} if batch is None else {"batch": batch}), **settings}


class _onnx:
    """The ONNX file of a model: the path given, or a temporary export; and the batch of the arguments."""

    def __init__(self, model: ModelOrPath, args: Sequence[Any] | torch.Tensor, kwargs: Mapping[str, Any] | None, path: str | os.PathLike[str] | None) -> None:
        self.model, self.args, self.kwargs, self.path = model, args, kwargs, path
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> tuple[str, int | None]:
        if isinstance(self.model, (str, os.PathLike)):
            return os.fspath(self.model), None
        from ._inputs import batch_of, exported

        if self.path is None:
            self.folder = tempfile.TemporaryDirectory(prefix="memplan-")
            self.path = os.path.join(self.folder.name, "model.onnx")
        exported(self.model, self.args, self.kwargs, os.fspath(self.path))
        return os.fspath(self.path), batch_of(self.args, self.kwargs)

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.cleanup()


def _modules(timeline: str) -> list[dict[str, Any]]:
    """The bytes of each module at the peak of a timeline, the largest first, including those of the modules inside."""
    with open(timeline, encoding="utf-8") as f:
        events = json.load(f)["events"]
    live: dict[int, tuple[str, int]] = {}
    total = most = 0
    peak: dict[int, tuple[str, int]] = {}
    at = -1
    for i, e in enumerate(events):
        total += e["bytes"] if e["kind"] == "alloc" else -e["bytes"]
        if total > most:
            most, at = total, i
    for e in events[: at + 1]:
        if e["kind"] == "alloc":
            live[e["id"]] = (e.get("module") or "", e["bytes"])
        else:
            live.pop(e["id"], None)
    peak = live
    out: dict[str, int] = {}
    for name, n in peak.values():
        parts = name.split(".")
        for i in range(len(parts) + 1 if name else 1):
            key = ".".join(parts[:i])
            out[key] = out.get(key, 0) + n
    return [{"name": k, "bytes": v} for k, v in sorted(out.items(), key=lambda kv: (-kv[1], kv[0]))]


T = TypeVar("T")


def _read(kind: type[T], doc: Mapping[str, Any]) -> T:
    """A dataclass from a document's fields, whose names are in camel case; unknown fields are ignored."""
    hints = typing.get_type_hints(kind)
    out: dict[str, Any] = {}
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = re.sub(r"_(.)", lambda m: m.group(1).upper(), f.name)
        if name in doc:
            out[f.name] = _value(hints[f.name], doc[name])
    return kind(**out)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return None if value is None else _value(next(t for t in hint.__args__ if t is not type(None)), value)
    if dataclasses.is_dataclass(hint):
        return _read(typing.cast(type, hint), value)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(hint.__args__[0], v) for v in value or ())
    return value


def size(n: int) -> str:
    """Bytes as memplan prints them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(n) >= unit:
            return f"{n / unit:.4g} {name}"
    return f"{n} B"
