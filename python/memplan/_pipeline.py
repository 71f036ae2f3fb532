"""Cuts a model into the stages of a pipeline as a plan says, and trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import torch

from ._checkpoint import _Names, checkpoint
from ._error import MemplanError
from ._losses import LOSSES
from ._parallel import _SPREAD, _replicate, _said, _shard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# --pp-schedule: PyTorch's class, and whether a rank has several stages
_SCHEDULES = {
    "gpipe": ("ScheduleGPipe", False),
    "1f1b": ("Schedule1F1B", False),
    "interleaved": ("ScheduleInterleaved1F1B", True),
    "bfs": ("ScheduleLoopedBFS", True),
    "zero-bubble": ("ScheduleInterleavedZeroBubble", True),
    "zbv": ("ScheduleZBVZeroBubble", True),
}


class Pipeline(torch.nn.Module):
    """The stages of a model that this process has, and their schedule. Make the optimizer of its parameters."""

    def __init__(self, modules: Sequence[torch.nn.Module], indices: Sequence[int], of: int, micros: int) -> None:
        super().__init__()
        self.stages = torch.nn.ModuleList(modules)
        self.indices, self.first, self.last, self.micros = tuple(indices), 0 in indices, of - 1 in indices, micros
        self.schedule: Any = None
        self.targeted = False

    def forward(self, *args: Any) -> Any:
        raise MemplanError("a pipeline runs forward and backward of all micro-batches at once: call step()")

    def step(self, *args: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor | None:
        """Runs forward and backward of a whole batch, which is cut into the micro-batches along its first dim, and leaves the mean's gradients. Every process
        calls it, with the same batch or, where it has neither the first stage nor the last, with none. Returns the mean of the
        micro-batches' losses in the process that has the last stage, None in others."""
        losses: list[torch.Tensor] = []
        self.targeted = target is not None
        how: dict[str, Any] = {}
        if self.last:
            how = dict(losses=losses, target=target if target is not None else torch.zeros(self.micros))
        self.schedule.step(*(args if self.first else ()), **how)
        return torch.stack([x.detach() for x in losses]).mean() if self.last else None


def staged(model: torch.nn.Module, mesh: DeviceMesh, document: Mapping[str, Any], device: torch.device, args: Sequence[Any], loss: Callable[..., torch.Tensor] | None) -> Pipeline:
    """The stages of this process under the plan's schedule."""
    from torch.distributed import pipelining

    config, info = document.get("config", {}), document.get("parallel") or {}
    name, starts = config.get("ppSchedule") or "gpipe", list(info.get("stages") or [])
    if name not in _SCHEDULES:
        raise MemplanError(f"the plan's schedule {name!r}: want one of {', '.join(_SCHEDULES)}")
    if not starts:
        raise MemplanError(f"mesh {_said(mesh)}: a pipeline needs a plan that says where its stages begin: make one with memplan plan --parallel pp=N")
    if not args:
        raise MemplanError("a pipeline needs args, the model's arguments for one micro-batch, with which it is traced")
    if "tp" in (mesh.mesh_dim_names or ()):
        raise MemplanError("parallelize does not apply tensor parallelism within a pipeline's stages")
    if config.get("fsdpPrecision") == "bf16" or (config.get("precision") or "fp32") != "fp32":
        raise MemplanError("parallelize does not apply precisions within a pipeline: what stages send has the type in which the model was traced; convert the model and plan it so")
    kind, several = _SCHEDULES[name]
    size, stages = mesh["pp"].size(), len(starts) + 1
    if stages % size or (stages > size) != several:
        raise MemplanError(f"the plan has {stages} stages, the mesh {size} ranks of a pipeline with schedule {name}")
    rank = mesh["pp"].get_local_rank()
    mine = [rank, stages - 1 - rank] if name == "zbv" else list(range(rank, stages, size))
    names = _named(model, document, starts + list(info.get("wrapped") or []))
    pipe = _traced(model, [names[n] for n in starts], args)
    _whole(model, pipe, [names[n] for n in starts], several)
    micros = config.get("ppMicros") or size
    modules = [_prepared(pipe.get_stage_module(i).to(device), mesh, document, names, device) for i in mine]
    out = Pipeline(modules, mine, stages, micros)
    built = [pipelining.stage.build_stage(m, i, pipe.info(), device, mesh["pp"].get_group()) for m, i in zip(modules, mine)]
    out.schedule = getattr(pipelining, kind)(built if several else built[0], n_microbatches=micros, loss_fn=_loss(out, loss))
    out.__dict__[_SPREAD] = document
    return out


def _loss(pipeline: Pipeline, loss: Callable[..., torch.Tensor] | None) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    def of(output: Any, target: torch.Tensor) -> torch.Tensor:
        if loss is None:
            return LOSSES["auto"](output)
        return loss(output, target) if pipeline.targeted else loss(output)

    return of


def _named(model: torch.nn.Module, document: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """The names in this model of modules that a plan names, its regions' included."""
    regions = [m for r in document.get("selection") or document.get("checkpoint") or [] for m in r["modules"]]
    here = {id(m): n for n, m in model.named_modules()}
    return {n: here[id(m)] for n, m in _Names(model, document.get("weights") or {}).all([*names, *regions], None).items()}


def _traced(model: torch.nn.Module, starts: Sequence[str], args: Sequence[Any]) -> Any:
    from torch.distributed import pipelining

    try:
        return pipelining.pipeline(model, tuple(args), split_spec={n: pipelining.SplitPoint.BEGINNING for n in starts})
    except Exception as e:
        raise MemplanError(f"the model cannot be traced and cut at {', '.join(starts)}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}") from e


def _whole(model: torch.nn.Module, pipe: Any, starts: Sequence[str], several: bool) -> None:
    """Raises for a model that stages cannot run one after the other: with weights in two, or, where a rank has several
    stages, with a value that passes one by."""
    begun = ["the input", *(repr(n) for n in starts)]
    owner: dict[int, str] = {}
    for n, p in model.named_parameters(remove_duplicate=False):
        owner.setdefault(id(p), n)
    first = {n: owner[id(p)] for n, p in model.named_parameters(remove_duplicate=False)}
    used: dict[str, int] = {}
    for i in range(pipe.num_stages):
        for n, _ in pipe.get_stage_module(i).named_parameters(remove_duplicate=False):
            if used.setdefault(first.get(n, n), i) != i:
                raise MemplanError(f"the model cannot be cut at {', '.join(starts)}: {first.get(n, n)!r} is used on both sides; tied weights have no place in two stages")
    at: dict[Any, int] = {}
    for node in pipe.split_gm.graph.nodes:
        if node.op == "call_module":
            at[node] = len(set(at.values()))
        elif node.op == "call_function" and node.args and node.args[0] in at:  # one of several results
            at[node] = at[node.args[0]]
            continue
        for value in node.all_input_nodes if node.op == "call_module" else ():
            if several and value.op != "placeholder" and at[node] - at[value] > 1:
                raise MemplanError(f"the model cannot be cut at {starts[at[value]]!r} under a schedule of several stages a rank: what the stage from {begun[at[value]]} computes is used again by "
                                   f"the one from {begun[at[node]]}; give modules that a single value passes (--pp-split), or the schedule gpipe or 1f1b")
            if value.op == "placeholder" and at[node] > 0:
                raise MemplanError(f"the model cannot be cut at {starts[0]!r}: its argument {value.name!r} is used again by the stage from {begun[at[node]]}, and only the first one has arguments")


def _prepared(module: torch.nn.Module, mesh: DeviceMesh, document: Mapping[str, Any], names: Mapping[str, str], device: torch.device) -> torch.nn.Module:
    """A stage with its checkpoints, and sharded or replicated."""
    config, info = document.get("config", {}), document.get("parallel") or {}
    here = dict(module.named_modules())
    regions = []
    for r in document.get("selection") or document.get("checkpoint") or []:
        inside = [names[m] for m in r["modules"] if names[m] in here]
        if inside and len(inside) < len(r["modules"]):
            raise MemplanError(f"the plan's region {', '.join(r['modules'])} lies in two stages")
        if inside:
            regions.append({**r, "modules": inside})
    if regions:
        checkpoint(module, {"schemaVersion": 1, "selection": regions})
    dims = mesh.mesh_dim_names or ()
    sharded = tuple(n for n in dims if n in ("replicate", "fsdp", "shard"))
    if sharded:
        wrapped = [names[n] for n in info.get("wrapped") or [] if names[n] in here]
        _shard(module, mesh[sharded] if len(sharded) > 1 else mesh[sharded[0]], {}, wrapped, config, bool(config.get("fsdpOffload")), device)
    elif "ddp" in dims or "zero1" in dims:
        outer = _replicate(module, mesh["ddp" if "ddp" in dims else "zero1"], config, device)
        outer.graph = module.graph  # type: ignore[assignment] # which a traced stage reads
        return outer
    return module
