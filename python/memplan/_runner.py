"""Runs a user's own training script under a plan, for `memplan validate --engine torch`, and measures its first steps."""

from __future__ import annotations

import importlib
import os
import runpy
import shlex
import sys
import traceback
from typing import Any, Callable, Mapping

import torch
from torch._guards import detect_fake_mode
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from ._checkpoint import checkpoint
from ._error import MemplanError
from ._inputs import batch_of
from ._meter import Meter


class _Done(BaseException):
    """Ends the script once enough steps have run. No handler of Exception catches it."""


class Watch:
    """Applies the plan to the first model that it fits, and marks the phases of each step, which an optimizer ends."""

    def __init__(self, plan: Mapping[str, Any] | str, steps: int, meter: Meter) -> None:
        self.plan, self.steps, self.meter = plan, steps, meter
        self.batch: int | None = None
        self.applied = False
        self.refused: MemplanError | None = None  # by the first model
        self.tried: set[int] = set()

    def run(self, script: Callable[[], object]) -> None:
        """Runs a script until it has made its steps. Raises MemplanError if it ends before, or if the plan fits none of its models."""
        call, backward = torch.nn.Module.__call__, torch.autograd.backward
        watch = self

        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not watch.applied and module.training:
                watch.offer(module, args, kwargs)
            return call(module, *args, **kwargs)

        def began(*args: Any, **kwargs: Any) -> Any:
            watch.reach(1)
            return backward(*args, **kwargs)

        torch.nn.Module.__call__ = called  # type: ignore[method-assign,assignment]
        torch.autograd.backward = began
        hooks = [register_optimizer_step_pre_hook(lambda *_: self.reach(2)), register_optimizer_step_post_hook(lambda *_: self.end())]
        try:
            self.meter.begin()
            script()
        except _Done:
            return
        finally:
            torch.nn.Module.__call__, torch.autograd.backward = call, backward  # type: ignore[method-assign]
            for h in hooks:
                h.remove()
        if not self.meter.steps:
            raise MemplanError("the script ended before an optimizer's first step")

    def offer(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Applies the plan to a called module if it is the plan's model."""
        if id(module) in self.tried or torch.compiler.is_compiling() or detect_fake_mode(tree_leaves((args, kwargs))) is not None:
            return  # an export or a compiler calls it, not the training
        self.tried.add(id(module))
        try:
            checkpoint(module, self.plan)
        except MemplanError as e:
            self.refused = self.refused or e
            return
        self.applied, self.batch = True, batch_of(args, kwargs)

    def reach(self, phases: int) -> None:
        """Ends phases up to the given one; further backward passes of a step belong to its first."""
        while len(self.meter.phases) < phases:
            self.meter.end_of_phase()

    def end(self) -> None:
        if not self.applied:
            raise self.refused or MemplanError("no module ran in training mode before the optimizer's first step")
        self.reach(3)
        if len(self.meter.steps) >= self.steps:
            raise _Done
        self.meter.begin()


def run(job: Mapping[str, Any], cuda: Any = torch.cuda) -> dict[str, Any]:
    """The answer to a job of the command: a measurement, or an error in one line."""
    if not cuda.is_available():
        return {"error": "there is no GPU here (torch.cuda.is_available() is False): run this on the machine that trains; memplan analyze says here what the step takes"}
    if job["capBytes"]:
        cuda.set_per_process_memory_fraction(min(1.0, job["capBytes"] / cuda.get_device_properties(cuda.current_device()).total_memory))
    watch = Watch(job["plan"], job["steps"], Meter(cuda))
    memory = ""
    try:
        watch.run(_script(job))
    except torch.OutOfMemoryError as e:
        memory = str(e).splitlines()[0]
    except MemplanError as e:
        return {"error": str(e).replace("\n", "; ")}
    except SystemExit as e:
        return {"error": f"the script ended itself ({e.code}) before {job['steps']} steps"}
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        return {"error": f"the script raised {type(e).__name__}: {' '.join(str(e).split())[:300]} ({os.path.basename(at.filename)}:{at.lineno})"}
    measured = watch.meter.measurement(watch.batch, []) if watch.meter.steps else None
    return {
        "device": cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.executable,
        "batch": watch.batch or 0,
        "contextBytes": measured.context_bytes if measured else 0,
        "outOfMemory": memory,
        "steps": [[{"name": p.name, "allocatedBytes": p.allocated_bytes, "reservedBytes": p.reserved_bytes, "ms": p.ms} for p in s.phases] for s in watch.meter.steps],
    }


def _script(job: Mapping[str, Any]) -> Callable[[], object]:
    """The function that runs the training: a file as a main program, or a function without arguments."""
    sys.path.insert(0, os.getcwd())
    if call := job["call"]:
        name, _, function = call.partition(":")
        try:
            found = getattr(importlib.import_module(name), function)
        except (ImportError, AttributeError) as e:
            raise MemplanError(f"--call {call}: {e}") from e
        return found  # type: ignore[no-any-return]
    words = [job["script"]] if os.path.exists(job["script"]) else shlex.split(job["script"])
    if not words or not os.path.exists(words[0]):
        raise MemplanError(f"--script {job['script']}: no such file")
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    return lambda: runpy.run_path(words[0], run_name="__main__")
