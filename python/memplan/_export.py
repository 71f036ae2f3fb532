"""memplan.export: a model as an ONNX file that needs no guesses."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Callable, Mapping, Sequence, Union

import torch

from . import _capture, _fake, _onnx, _sizes
from ._checkpoint import MemplanError

Args = Union[torch.Tensor, Sequence[Any], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Export:
    """What export() wrote, and how."""

    path: str
    exporter: str  # "dynamo, free batch", "TorchScript", or "placeholder" where neither could
    dims: dict[str, list[int]]  # free sizes, and those that were run
    captured: list[str]  # variants, as "train fp32"
    missing: dict[str, str]  # variants that PyTorch refuses, and why
    notes: list[str]
    refused: list[str]  # exporters that could not, and why

    def __str__(self) -> str:
        free = ", ".join(self.dims) or "no size"
        lines = [f"{self.path}: exported by {self.exporter}; {free} free; captured: {', '.join(self.captured) or 'nothing'}"]
        lines += [f"  {name} raises {why}" for name, why in self.missing.items()]
        lines += [f"  {n}" for n in self.notes]
        lines += [f"  {n}" for n in self.refused]
        return "\n".join(lines)


def export(
    model: torch.nn.Module,
    args: Args = (),
    kwargs: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] = "model.onnx",
    step: Callable[..., Any] | None = None,
    dims: Mapping[str, Mapping[int, str]] | None = None,
) -> Export:
    """Writes a model as ONNX, without weights, with all that it calls in training and in inference.

    args and kwargs are what the model is called with: a tensor, a tuple, or a dictionary of keywords; small ones will do, memplan asks for a batch later.
    step, where it is given, is one training step, called as step(model, *args) or step(): forward, loss, backward() and optimizer.step(), of
    which nothing has an effect. dims names free axes of inputs, as {"input_ids": {0: "batch", 1: "seq"}}; left out, they are found: axis 0 is the batch,
    axis 1 of whole numbers the sequence.

    Nothing runs on a GPU, no weight is copied or changed, and no random number is drawn; a model in evaluation mode is exported as model.train() makes it.
    """
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        raise MemplanError(f"export() needs a newer PyTorch, 2.11 is tested, and this is {torch.__version__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise MemplanError("the model is scripted, so its calls cannot be seen: export it before torch.jit.script or trace")
    folder = os.path.dirname(os.fspath(path)) or "."
    if not os.path.isdir(folder):  # found out before the work, not after it
        raise MemplanError(f"{os.fspath(path)}: there is no folder {folder}: make it, or name another")
    model = getattr(model, "_orig_mod", model)
    if scripted := [n for n, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)]:
        raise MemplanError(f"module {scripted[0]} is scripted, so its weights and calls cannot be seen: export the model before torch.jit.script or trace (functions may be scripted)")
    if any(isinstance(t, torch.nn.parameter.UninitializedTensorMixin) for t in [*model.parameters(), *model.buffers()]):
        raise MemplanError("a parameter has no shape yet: call the model once, so that its lazy modules know their sizes")
    args, kwargs = _called(args, kwargs)
    job, at = _job(model, args, dict(kwargs), step, dims)
    with _fake.unchanged():
        doc = _capture.capture(job, at)
        good = [v for v in doc["variants"] if "error" not in v]
        if not good:
            raise MemplanError(f"the model does not run with these arguments: {doc['variants'][0]['error']}")
        doc["memplan"] = _version()
        free = [d for d in at if len({p[d] for p in doc["points"]}) > 1]
        gc.collect()
        with _fake.training(model, True):
            proto, how, refused = _onnx.exported(_called_by(job), free, doc["points"][0])
    proto = _onnx.strip(proto)
    entry = proto.metadata_props.add()
    entry.key, entry.value = _onnx.KEY, _capture.encoded(doc)
    _onnx.write(proto, os.fspath(path))
    return Export(
        os.fspath(path), how, {d: sorted({p[d] for p in doc["points"]}) for d in free}, [f"{v['mode']} {v['precision']}" for v in good],
        {f"{v['mode']} {v['precision']}": v["error"] for v in doc["variants"] if "error" in v}, doc["notes"], refused,
    )


def _called_by(job: _capture.Job) -> _capture.Job:
    """The job of exporting: for a step, including the model's arguments."""
    if job.called is None:
        return job
    args, kwargs = job.called
    return _capture.Job(job.model, args, kwargs, None, _sizes.found(_fake.names(_capture.signature(job.model), args, kwargs)))


def _version() -> str:
    try:
        return version("memplan")
    except PackageNotFoundError:
        return "0"


def _called(args: Args, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and keyword arguments, in any form."""
    if isinstance(args, Mapping):
        if kwargs:
            raise MemplanError("args is a dictionary and kwargs is given, too: give keywords once")
        return (), dict(args)
    return (args,) if isinstance(args, torch.Tensor) else tuple(args), kwargs or {}


def _job(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], step: Any, dims: Any) -> tuple[_capture.Job, _sizes.Point]:
    """What to run, and the sizes of the inputs."""
    notes = []
    if step is None:
        try:
            signature = inspect.signature(model.forward)
            if "use_cache" in signature.parameters and "use_cache" not in kwargs:
                kwargs["use_cache"] = False
                notes.append("use_cache=False was added: a cache of keys and values is for generating; pass use_cache=True to have it")
            signature.bind(*args, **kwargs)
        except TypeError as e:
            raise MemplanError(f"forward cannot be called so: {e}; give export() the arguments of a call of the model, as args or kwargs") from e
        except ValueError:
            pass  # forward has no signature
    elif not callable(step):
        raise MemplanError("step is not a function: give one that runs forward, loss, backward() and the optimizer's step(), called as step(model, *args) or step()")
    named = _capture.Job(model, args, kwargs, step, {}).named
    axes = {n: dict(a) for n, a in dims.items()} if dims is not None else _sizes.found(named)
    if unknown := sorted(set(axes) - {n for n, _ in named}):
        raise MemplanError(f"dims names {unknown[0]!r}, which is no tensor among the arguments: they are {', '.join(n for n, _ in named) or 'none'}")
    try:
        at = _sizes.traced(named, axes)
    except (ValueError, IndexError) as e:
        raise MemplanError(f"dims: {e}") from e
    job = _capture.Job(model, args, kwargs, step, axes)
    job.notes += notes
    return job, at
