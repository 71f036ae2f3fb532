"""Records the calls of a model's training step and inference in every precision: the document in an exported file."""

from __future__ import annotations

import base64
import contextlib
import gc
import inspect
import json
import logging
import sys
import zlib
from typing import Any, Callable, Iterator, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map

from . import _card, _engine, _fake, _kernels, _real, _sizes
from ._checkpoint import MemplanError
from ._fake import World
from ._record import Id, NoKernel, Recorder, Unknown, place, plain
from ._record import tensors as tensors_of
from ._sizes import Differs, Point

SCHEMA = 1
# mode, precision, type of parameters and inputs, type of autocast
Variant = tuple[str, str, "torch.dtype | None", "torch.dtype | None"]
VARIANTS: list[Variant] = [
    ("train", "fp32", None, None),
    ("train", "amp-bf16", None, torch.bfloat16),
    ("train", "amp-fp16", None, torch.float16),
    ("train", "bf16", torch.bfloat16, None),
    ("train", "fp16", torch.float16, None),
    ("infer", "fp32", None, None),
    ("infer", "bf16", torch.bfloat16, None),
]


class Stop(BaseException):
    """Stops a step at its optimizer."""


class Job:
    """A model, its arguments, and the step that trains it."""

    def __init__(self, model: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any], step: Callable[..., Any] | None, axes: dict[str, dict[int, str]]) -> None:
        self.model, self.args, self.kwargs, self.step = model, tuple(args), kwargs, step
        self.signature = signature(model) if step is None or not self.with_step()[1] else signature(step)[1:]
        self.named = _fake.names(self.signature, args, kwargs)
        self.called: tuple[Any, Any] | None = None  # what a step calls the model with
        self.axes = {id(t): axes[n] for n, t in self.named if n in axes}
        self.stored = _fake.stored(model)
        self.ran: set[int] = set()  # modules whose forward runs; a ModuleList's does not
        self.everything = False  # whether tensors that .to() would leave on the CPU are taken along
        self.notes: list[str] = []
        self.info: dict[str, Any] | None = None  # about the step
        self.fast = True  # whether attention's fused path of evaluation mode may be taken
        self.real: dict[Any, Any] | None = None  # what runs on the processor showed, by mode and sizes, where they are needed
        self.own = False  # whether the step casts by itself

    def modules(self) -> dict[int, int]:
        return {id(m): i for i, (_, m) in enumerate(self.model.named_modules())}

    def with_step(self) -> tuple[bool, bool]:
        """Whether step takes the model and the arguments."""
        assert self.step is not None
        try:
            parameters = inspect.signature(self.step).parameters.values()
        except (TypeError, ValueError):
            return True, True
        free = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        return bool(free), len(free) > 1 or any(p.kind == p.VAR_POSITIONAL for p in free)


def signature(f: Any) -> list[str]:
    """Names of the positional parameters of a function, or of a module's forward."""
    try:
        parameters = inspect.signature(f.forward if isinstance(f, torch.nn.Module) else f).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def encoded(doc: dict[str, Any]) -> str:
    """The document in the form of the file's metadata."""
    return base64.b64encode(zlib.compress(json.dumps(doc, separators=(",", ":")).encode(), 9)).decode()


def capture(job: Job, at: Point) -> dict[str, Any]:
    """The document, but for what the exporter adds."""
    where, known, first = _first(job, at)
    variants = [first]
    asked = [VARIANTS[0]] if job.step is not None and job.own else VARIANTS if job.step is None else VARIANTS[:5]
    before = set(known.fixed)
    variants += [variant(job, v, where, known) for v in asked[1:]]
    if known.fixed != before:  # by a later one, so that earlier ones have a size that is not free
        variants = [variant(job, v, where, known) for v in asked]
    where = [p for p in where if all(p[d] == where[0][d] for d in known.fixed)]
    return {
        "schema": SCHEMA,
        "torch": torch.__version__.split("+")[0],
        "class": _class(job.model),
        "dims": [{"name": d, "traced": sorted({p[d] for p in where})} for d in at if d not in known.fixed],
        "points": where,
        "modules": [[n, _class(m) if i in job.ran else ""] for i, (n, m) in enumerate(job.model.named_modules())],
        "tensors": tensors(job, where, known.fixed),
        "variants": variants,
        "step": job.info,
        "notes": job.notes,
        "checks": checks(job, where[0], variants[0]),
    }


def _first(job: Job, at: Point) -> tuple[list[Point], Known, dict[str, Any]]:
    """The first variant: at lengths that are no parts of each other, so that what pads them shows, or at parts where the model takes no others."""
    where, known = _sizes.points(at, False), Known()
    found = variant(job, VARIANTS[0], where, known)
    lost = [d for d in known.fixed if d != "batch"]
    if not lost:
        return where, known, found
    job.notes = [n for n in job.notes if not any(n.startswith(f"{d} is fixed at") for d in known.fixed)]
    where, known = _sizes.points(at), Known()
    found = variant(job, VARIANTS[0], where, known)
    job.notes += [f"{d} is free among lengths such as {', '.join(str(n) for n in sorted({p[d] for p in where}))}; at others the model calls something else" for d in lost if d not in known.fixed]
    return where, known, found


def checks(job: Job, point: Point, first: dict[str, Any]) -> list[dict[str, Any]]:
    """Peak live bytes of a step, each storage rounded up to 512, if the step's backward can run without a GPU."""
    if job.step is not None or "error" in first:
        return []
    if any(c["op"].split(".")[1] in ("lstm", "gru", "rnn_tanh", "rnn_relu") for c in first["calls"]):
        job.notes.append("no check of the peak: what cuDNN reserves for recurrent layers is known on a GPU alone")
        return []
    try:
        found = recorded(job, VARIANTS[0], point, True)
    except Exception as e:
        job.notes.append(f"no check of the peak: {_said(e)}")
        return []
    return [{"mode": "train", "precision": "fp32", "optimizer": "adamw", "loss": "sum", "dims": point, **found.peaks}]


def _class(m: torch.nn.Module) -> str:
    return f"{type(m).__module__}.{type(m).__qualname__}"


def tensors(job: Job, where: Sequence[Point], fixed: set[str]) -> list[dict[str, Any]]:
    """Parameters, buffers and inputs, in the order of their ids."""
    persistent = set(job.model.state_dict(keep_vars=True))
    out = []
    for name, (t, kind, also) in job.stored.items():
        row: dict[str, Any] = {"kind": kind, "name": name, "shape": list(t.shape), "dtype": _dtype(t)}
        if t.requires_grad:
            row["grad"] = True
        if also:
            row["also"] = also
        if kind == "buffer":
            row["persistent"] = name in persistent
        out.append(row)
    for name, t in job.named:
        axes = job.axes.get(id(t), {})
        row = {"kind": "input", "name": name, "shape": [where[0][axes[i]] if i in axes and axes[i] in fixed else {"e": axes[i]} if i in axes else n for i, n in enumerate(t.shape)], "dtype": _dtype(t)}
        if t.requires_grad:
            row["grad"] = True
        out.append(row)
    return out


def _dtype(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


# ---- one variant ----


def variant(job: Job, v: Variant, where: Sequence[Point], known: Known) -> dict[str, Any]:
    """A variant merged from runs at all sizes; an error if it does not run."""
    mode, precision, _, _ = v
    used = [p for p in where if all(p[d] == where[0][d] for d in known.fixed)]
    try:
        docs = [run(job, v, used[0])]
    except Exception as e:
        if not job.everything and "device" in str(e) and not isinstance(e, MemplanError):
            job.everything = True  # tensors that modules hold beside parameters and buffers are meant to be on the GPU, too
            return variant(job, v, where, known)
        if isinstance(e, NoKernel) and job.fast and ("_transformer_encoder" in str(e) or "_native_multi_head" in str(e)):
            job.fast = False
            job.notes.append("nn.TransformerEncoder's fused kernel of evaluation mode has no fake one: its modules' own calls are captured")
            return variant(job, v, where, known)
        if isinstance(e, Unknown) and job.real is None and job.step is None:
            job.real = {}  # from now on a real run is asked first
            return variant(job, v, where, known)
        return {"mode": mode, "precision": precision, "error": _said(e)}
    done = [used[0]]
    for p in used[1:] if known.solver is None else _sizes.fewer(used)[1:]:
        try:
            docs.append(run(job, v, p))
            done.append(p)
        except Exception as e:
            changed = [d for d in p if p[d] != used[0][d]]
            if len(changed) == 1:
                known.fix(job, changed[0], f"at {p[changed[0]]} the model raises {_said(e)}", used[0])
                return variant(job, v, where, known)
            if known.solver is not None:  # sizes that change one at a time say which it is
                known.solver = None
                return variant(job, v, where, known)
    try:
        solver = _sizes.Solver(done, known.solver)
        doc = _sizes.merged(docs, solver)
    except Differs as why:
        if known.solver is not None:  # at fewer sizes than it takes
            known.solver = None
        else:
            known.fix(job, *_blamed(docs, done, why), done[0])
        return variant(job, v, where, known)
    known.solver = known.solver or solver
    return {"mode": mode, "precision": _own(doc["calls"]) if job.own else precision, **doc}


def _own(calls: list[dict[str, Any]]) -> str:
    """The precision of a step that casts by itself; its calls then record where they differ."""
    kind = next(c["autocast"] for c in calls if c.get("autocast"))
    for c in calls:
        if c.pop("autocast", None) != kind:
            c["autocast"] = False
    return {"bfloat16": "amp-bf16", "float16": "amp-fp16"}[kind]


class Known:
    """What earlier variants have shown."""

    def __init__(self) -> None:
        self.fixed: set[str] = set()  # sizes that are not free
        self.solver: _sizes.Solver | None = None

    def fix(self, job: Job, dim: str, why: str, base: Point) -> None:
        self.fixed.add(dim)
        self.solver = None
        job.notes.append(f"{dim} is fixed at {base[dim]}: {why}" + ("; give export() every tensor that the step reads as args" if job.step is not None else ""))


def _blamed(docs: list[Any], done: list[Point], why: Differs) -> tuple[str, str]:
    """The size with which more than numbers change, and where."""
    free = [d for d in done[0] if any(p[d] != done[0][d] for p in done)]
    if not free:
        raise MemplanError(f"two runs at the same sizes differ: {why}")
    for d in free:
        only = [i for i, p in enumerate(done) if all(p[e] == done[0][e] for e in p if e != d)]
        try:
            _sizes.merged([docs[i] for i in only], _sizes.Solver([done[i] for i in only]))
        except Differs as e:
            return d, f"with another the model calls something else ({e})"
    return free[-1], f"with another the model calls something else ({why})"


def _said(e: BaseException) -> str:
    lines = str(e).strip().splitlines()
    text = f"{type(e).__name__}: {lines[0]}" if lines else type(e).__name__
    return text[:400]


def run(job: Job, v: Variant, point: Point) -> dict[str, Any]:
    """One run: its calls and types as a document of plain numbers."""
    recorder = recorded(job, v, point)
    job.notes += [n for n in recorder.notes if n not in job.notes]
    first = len(job.stored) + len(job.named)
    types = {str(int(k)): t for k, t in recorder.types.items() if k >= first or _differs(job, int(k), t)}
    out: dict[str, Any] = {"calls": recorder.calls, "forward": Id(recorder.forward), "types": types, "outputs": recorder.outputs, "loss": recorder.loss}
    made = {n for c in recorder.calls for n in c["out"]}
    if constants := [Id(n) for n in recorder.types if n >= first and n not in made]:
        out["constants"] = constants  # tensors of the user's that are no input
    if recorder.regions:
        out["regions"] = recorder.regions
    for c in recorder.calls:
        for k in ("dies", "saves"):
            if not c[k]:
                del c[k]
    return out


def _differs(job: Job, n: int, t: list[Any]) -> bool:
    real = [*(x for x, _, _ in job.stored.values()), *(x for _, x in job.named)][n]
    more = t[3] if len(t) > 3 else {}
    return t[0] != _dtype(real) or (len(t) > 2 and t[2] is not None) or "strides" in more


def recorded(job: Job, v: Variant, point: Point, measure: bool = False) -> Recorder:
    """Runs the model once; with measure, a whole step with its peaks, without its calls."""
    mode, _, dtype, cast = v
    fake = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)  # no kernel runs, also where there is a GPU
    names = job.modules()
    home = next((t.device for t, _, _ in job.stored.values()), torch.device("cpu"))
    recorder = Recorder(fake, names, len(job.stored) + len(job.named), home if job.step is not None and home.type == "cpu" else None)
    recorder.autocast, recorder.grad = cast is not None, mode == "train"
    with _fake.unchanged(), _fake.training(job.model, mode == "train"), _pretending(), _card.unfused(), _fused(job.fast), contextlib.ExitStack() as stack:
        args, kwargs = _sizes.resized((job.args, job.kwargs), job.axes, point)
        inputs: dict[int, torch.Tensor] = {}
        xs, kw = _fake.inputs(fake, (args, kwargs), dtype, inputs)
        stand = dict(inputs)
        for old, new in zip((t for _, t in job.named), (t for _, t in _fake.names(job.signature, xs, kw))):
            stand[id(old)] = new  # a closure may hold the arguments themselves
        if job.real is not None:
            recorder.shown = _real.Shown(_shown(job, mode, point), place)
        memo = stack.enter_context(_fake.swapped(fake, job.model, dtype, job.everything, stand, *([job.step] if job.step else [])))
        for i, (t, _, _) in enumerate(job.stored.values()):
            recorder.know(memo[id(t)], i)
        for i, (_, t) in enumerate(_fake.names(job.signature, xs, kw)):
            recorder.know(t, len(job.stored) + i)
        if measure:
            stored = [memo[id(t)] for t, _, _ in job.stored.values()]
            recorder.peaks = _engine.peaks(recorder, lambda: _again(recorder, job.model, xs, kw), [t for t in stored if isinstance(t, torch.nn.Parameter)], [*stored, *tensors_of((xs, kw))])
            return recorder
        del inputs, stand, memo
        collecting = gc.isenabled()
        gc.disable()  # what dies in a cycle dies at a moment that nobody knows
        stack.callback(gc.enable if collecting else gc.disable)
        with recorder.active(), _fake.autocast(cast):
            if mode == "infer":
                with torch.no_grad():
                    out = job.model(*xs, **kw)
            elif job.step is None:
                out = job.model(*xs, **kw)
            else:
                out = None
                _step(job, recorder, xs, kw)
            recorder.on = False
        if recorder.shown is not None:
            recorder.notes += [f"{at} depends on values that a run of the example inputs on the processor showed, with the weights as they are; other values may make other sizes" for at in recorder.shown.used]
        job.ran |= recorder.ran
        del out, xs, kw, args, kwargs
    return recorder


def _again(recorder: Recorder, model: torch.nn.Module, xs: Any, kw: Any) -> Any:
    """One of several runs: each comes to the same places."""
    if recorder.shown is not None:
        recorder.shown.counts.clear()
    return model(*xs, **kw)


def _shown(job: Job, mode: str, point: Point) -> dict[Any, Any]:
    """What a real run in a mode at these sizes shows: copies of weights and inputs, the same random numbers each time."""
    assert job.real is not None
    key = mode, *point.items()
    if key in job.real:
        return job.real[key]
    shown = _real.Shown({}, place)
    with unset_fake_temporarily():
        args, kwargs = _sizes.resized((job.args, job.kwargs), job.axes, point)
        memo = _real.copies([[t for t, _, _ in job.stored.values()], args, kwargs])
        world = World(job.model)
        world.replace(memo)
        try:
            torch.default_generator.manual_seed(0)
            xs, kw = tree_map(lambda t: memo.get(id(t), t) if isinstance(t, torch.Tensor) else t, (args, kwargs))
            with _real.watched(shown), torch.set_grad_enabled(mode == "train"):
                job.model(*xs, **kw)
        except Exception as e:
            job.notes.append(f"a run of the example inputs on the processor, which would show values that decide sizes, ended with {_said(e)}")
        finally:
            world.restore()
    job.real[key] = shown.known
    return shown.known


@contextlib.contextmanager
def _fused(allowed: bool) -> Iterator[None]:
    """Turns nn.MultiheadAttention's fused path on or off."""
    old = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(old and allowed)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(old)


def _pretending() -> Any:
    """Answers PyTorch's questions about a GPU that may be missing, and transformers' about tensors that may be fake, which would otherwise take other branches for a tracer."""
    transformers: Any = [(m, "is_fake_tensor", lambda x: False) for name, m in list(sys.modules.items()) if name.startswith("transformers.") and "is_fake_tensor" in vars(m)]
    cudnn: Any = [] if torch.cuda.is_available() else [(getattr(torch.backends.cudnn, "m", torch.backends.cudnn), "_init", lambda: False)]  # the library may be absent, or another one
    return _fake.patched(*transformers, *cudnn, *_card.pretended(), *_kernels.grouped_mm(), (logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True), (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False), (torch.cuda, "is_bf16_supported", lambda *a, **k: True))


# ---- the user's step ----


def _step(job: Job, recorder: Recorder, xs: Any, kw: Any) -> None:
    """Runs the step up to its first optimizer, recording losses and options."""
    info: dict[str, Any] = {"optimizer": None, "options": {}, "accumulate": 0}
    before = recorder.autocast

    def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        info["accumulate"] += 1
        if recorder.on:
            recorder.loss = recorder.know(loss)
            recorder.on = False

    def several(losses: Any, *args: Any, **kwargs: Any) -> None:
        for t in losses if isinstance(losses, (list, tuple)) else [losses]:
            backward(t)

    def grad(*args: Any, **kwargs: Any) -> Any:
        raise MemplanError("the step calls torch.autograd.grad, whose memory cannot be captured: leave it out of the step that you give to export()")

    def optimize(optimizer: Any, *args: Any) -> None:
        info["optimizer"] = type(optimizer).__name__
        info["options"] = {k: [plain(y) for y in x] if isinstance(x, (list, tuple)) else plain(x) for k, x in optimizer.defaults.items()}
        raise Stop

    from torch.optim.optimizer import register_optimizer_step_pre_hook

    assert job.step is not None
    takes_model, takes_args = job.with_step()
    given = [*([job.model] if takes_model else []), *(xs if takes_args else [])]
    hook = register_optimizer_step_pre_hook(optimize)
    try:
        with _fake.patched((torch.Tensor, "backward", backward), (torch.autograd, "backward", several), (torch.autograd, "grad", grad), (torch.optim.Optimizer, "zero_grad", lambda *a, **k: None)):
            job.step(*given, **(kw if takes_args else {}))
    except Stop:
        pass
    finally:
        hook.remove()
    if recorder.loss is None:
        raise MemplanError("the step called no backward(): give a step that runs the model, its loss, backward() and the optimizer")
    info["accumulate"] = max(info["accumulate"], 1)
    if any("autocast" in c for c in recorder.calls) and not before:
        job.own = True  # the step says itself how it casts
    if job.info is None:
        job.info, job.called = info, recorder.called_with


def left(model: torch.nn.Module, *more: Any) -> Iterator[str]:
    """Where fake tensors are left in a model: there should be none."""
    from torch._subclasses.fake_tensor import FakeTensor

    for container, _ in World(model, *more).kept:
        for k, v in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(v, FakeTensor):
                yield str(k)


__all__ = ["Id", "Job", "capture", "encoded", "signature"]
