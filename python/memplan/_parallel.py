"""Spreads a model over the GPUs of a mesh according to a plan."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence, Union

import torch
import torch.distributed as dist

from ._checkpoint import Plan, _Names, checkpoint
from ._error import MemplanError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The dimensions in --parallel, with the dimensions of a device mesh that each becomes, outermost first.
_DIMENSIONS = {"pp": ("pp",), "ddp": ("ddp",), "zero1": ("zero1",), "fsdp": ("fsdp",), "hsdp": ("replicate", "shard"), "cp": ("cp",), "tp": ("tp",)}
_ORDER = ("pp", "ddp", "zero1", "replicate", "fsdp", "shard", "cp", "tp")
_SEQUENCES = "_memplan_sequences"
_SPREAD = "_memplan_spread"


def parallelize(model: torch.nn.Module, mesh: Union[str, DeviceMesh, None] = None, plan: Plan | None = None, *, tp_plan: Mapping[str, str] | None = None,
                args: Sequence[Any] = (), loss: Callable[..., torch.Tensor] | None = None) -> torch.nn.Module:
    """Spreads a model over the GPUs of a mesh in one call under torchrun, and returns the model to train.

    mesh is a text as --parallel takes it ("fsdp=4", "hsdp=2x4", "fsdp=4,tp=2", "ddp=8"), or a DeviceMesh whose dimensions are named so
    (pp, ddp, zero1, replicate, fsdp, shard, cp, tp); without one it is the plan's. With a plan its checkpoints are put on, and FSDP2 wraps the modules that
    the plan names, with its reshard_after_forward, precision, offload and prefetch; without one the root alone is wrapped. DDP gets the
    plan's buckets. tp_plan gives modules, by patterns of their names, "colwise", "rowwise" or, norms, "sequence"; without it they are the plan's. Under a plan
    with --tp-loss the script runs the loss and backward within torch.distributed.tensor.parallel.loss_parallel().

    A mesh with pp needs a plan, which says where stages begin, and args, the arguments of one micro-batch: torch.distributed.pipelining traces
    the model with them and cuts it there. What is returned is a memplan.Pipeline, which trains by step(). loss is a function of the
    model's output and of step()'s target; without one, of `memplan list losses` auto.

    Where ranks share sequences (cp), FSDP2 and DDP spread over them, too, and steps run within memplan.sequences().

    In order: tensor parallelism, checkpoints, fully_shard on each module and then the root, or DDP. Make the optimizer afterwards, of
    the parameters of what is returned: torch.distributed.optim.ZeroRedundancyOptimizer for zero1. The process group is made where there is
    none, from torchrun's variables. Raises MemplanError for a mesh that is not of this many processes, or a plan of another model.
    """
    document = _read(plan)
    config, info = document.get("config", {}), document.get("parallel") or {}
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise MemplanError("there is no process group, and no RANK in the environment: run this under torchrun")
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = _device()
    given = _mesh(mesh if mesh is not None else config.get("parallel") or "", device)
    names = given.mesh_dim_names or ()
    root = model
    if "pp" in names:
        try:
            from ._pipeline import staged
        except ImportError as e:
            raise MemplanError(f"{__name__} has no pipelines: apply the plan by memplan.parallelize") from e
        return staged(model, given, document, device, args, loss)
    if tuple(args) or loss:
        raise MemplanError(f"args and loss are of pipelines: give a mesh with pp, not {_said(given)}")
    if not (offload := bool(config.get("fsdpOffload"))) or "fsdp" not in names and "shard" not in names:
        model.to(device)
    if "tp" in names:
        _tensor(model, given["tp"], tp_plan, info.get("tensor") or {}, document)
    elif tp_plan:
        raise MemplanError(f"tp_plan needs a mesh with tp, not {_said(given)}")
    if document.get("selection") or document.get("checkpoint"):
        checkpoint(model, document)
    sharded = tuple(n for n in names if n in ("replicate", "fsdp", "shard"))
    if sharded:
        _shard(model, _over(given, sharded), document, info.get("wrapped") or [], config, offload, device)
    elif "ddp" in names or "zero1" in names:
        root = _replicate(model, _over(given, ("ddp" if "ddp" in names else "zero1",)), config, device)
    root.__dict__[_SPREAD] = document
    if "cp" in names:
        root.__dict__[_SEQUENCES] = given["cp"]
    return root


def _over(mesh: DeviceMesh, dims: tuple[str, ...]) -> DeviceMesh:
    """The mesh over some dimensions, the last of which spreads over the ranks of a sequence, too."""
    if "cp" in (mesh.mesh_dim_names or ()):
        mesh[dims[-1], "cp"]._flatten("spread")
        dims = (*dims[:-1], "spread")
    return mesh[dims] if len(dims) > 1 else mesh[dims[0]]


def sequences(model: torch.nn.Module, *tensors: torch.Tensor, dim: int = 1, causal: bool = True) -> AbstractContextManager[None]:
    """Within it a model that parallelize() spread over a mesh with cp runs forward and backward on this rank's part of each sequence: PyTorch's
    context_parallel. tensors are all that have a sequence, inputs and labels, and dim where; they are cut in place, and whole again afterwards.
    causal=False is for attention without a causal mask, whose parts PyTorch does not balance. Without cp it does nothing."""
    mesh = model.__dict__.get(_SEQUENCES)
    if mesh is None:
        return nullcontext()
    from torch.distributed.tensor.experimental import context_parallel

    from torch.distributed.tensor.experimental._context_parallel import _attention

    _attention._cp_options.enable_load_balance = causal
    return context_parallel(mesh, buffers=list(tensors), buffer_seq_dims=[dim] * len(tensors))  # type: ignore[no-any-return]


def spread(model: torch.nn.Module) -> bool:
    """Whether parallelize() prepared a model."""
    return _SPREAD in model.__dict__


def _read(plan: Plan | None) -> Mapping[str, Any]:
    if plan is None:
        return {}
    document = getattr(plan, "document", plan)
    if isinstance(document, Mapping):
        return document
    try:
        with open(document, encoding="utf-8") as f:
            read = json.load(f)
    except (OSError, ValueError) as e:
        raise MemplanError(f"{os.fspath(document)}: {e}") from e
    if not isinstance(read, Mapping):
        raise MemplanError(f"{os.fspath(document)} is no plan: want what memplan plan writes")
    return read


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", dist.get_rank() % torch.cuda.device_count()))
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _mesh(mesh: Union[str, DeviceMesh], device: torch.device) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    if not isinstance(mesh, str):
        unknown = [n for n in mesh.mesh_dim_names or ("without names",) if n not in _ORDER]
        if unknown:
            raise MemplanError(f"mesh dimension {unknown[0]!r}: want names of {', '.join(_ORDER)}")
        return mesh
    sizes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in mesh.split(","))):
        name, _, text = part.partition("=")
        if name not in _DIMENSIONS:
            raise MemplanError(f"mesh {mesh!r}: parallelize applies {', '.join(_DIMENSIONS)}, not {name}")
        numbers = text.split("x")
        if len(numbers) != len(_DIMENSIONS[name]) or not all(n.isdigit() and int(n) > 0 for n in numbers):
            raise MemplanError(f"mesh {mesh!r}: want {name}={'x'.join(['N'] * len(_DIMENSIONS[name]))}")
        sizes.update(zip(_DIMENSIONS[name], map(int, numbers)))
    if not sizes:
        raise MemplanError("no mesh: give one such as 'fsdp=4', or a plan that memplan plan --parallel made")
    if len({"ddp", "zero1", "fsdp", "shard"} & set(sizes)) > 1:
        raise MemplanError(f"mesh {mesh!r}: one of ddp, zero1, fsdp and hsdp spreads the data")
    order = [n for n in _ORDER if n in sizes]
    ranks = 1
    for n in order:
        ranks *= sizes[n]
    if ranks != dist.get_world_size():
        raise MemplanError(f"mesh {mesh!r} has {ranks} ranks, and there are {dist.get_world_size()} processes: run torchrun --nproc_per_node {ranks}")
    return init_device_mesh(device.type, tuple(sizes[n] for n in order), mesh_dim_names=tuple(order))


def _said(mesh: DeviceMesh) -> str:
    return ", ".join(f"{n}={mesh.size(i)}" for i, n in enumerate(mesh.mesh_dim_names or ()))


def _replicate(model: torch.nn.Module, mesh: DeviceMesh, config: Mapping[str, Any], device: torch.device) -> torch.nn.Module:
    how: dict[str, Any] = dict(device_ids=[device.index] if device.type == "cuda" else None, process_group=mesh.get_group())
    how.update(gradient_as_bucket_view=bool(config.get("ddpViews")), find_unused_parameters=bool(config.get("ddpUnused")))
    bucket, first = config.get("ddpBucket"), config.get("ddpFirst")
    if bucket:
        if first and first != bucket:
            raise MemplanError("DDP's first bucket is as large as the others where their size is given: plan with --ddp-bucket or --ddp-first-bucket alone")
        how["bucket_cap_mb"] = bucket / 2**20
    default = dist._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined] # "User can set", says DDP's code
    try:
        dist._DEFAULT_FIRST_BUCKET_BYTES = first or default  # type: ignore[attr-defined]
        return torch.nn.parallel.DistributedDataParallel(model, **how)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = default  # type: ignore[attr-defined]


def _tensor(model: torch.nn.Module, mesh: DeviceMesh, plan: Mapping[str, str] | None, planned: Mapping[str, str], document: Mapping[str, Any]) -> None:
    from torch.distributed.tensor.parallel import parallelize_module

    known = ("colwise", "rowwise", "sequence")
    if not plan and not planned:
        raise MemplanError("a mesh with tp needs tp_plan: patterns of module names with colwise or rowwise")
    chosen: dict[str, str] = {}
    if not plan:
        names = {id(m): n for n, m in model.named_modules()}
        found = _Names(model, document.get("weights") or {}).all(list(planned), None)
        chosen = {names[id(m)]: planned[n] for n, m in found.items()}
    for pattern, style in (plan or {}).items():
        if style not in known:
            raise MemplanError(f"tp_plan: {pattern}: {style!r}: want one of {', '.join(known)}")
        matched = [n for n, _ in model.named_modules() if fnmatchcase(n, pattern)]
        if not matched:
            raise MemplanError(f"tp_plan: no module is called {pattern}")
        chosen.update((n, style) for n in matched)
    order = [n for n, _ in model.named_modules() if n in chosen]
    parallelize_module(model, mesh, _styles(model, {n: chosen[n] for n in order}, bool((document.get("config") or {}).get("tpLoss"))))


def _styles(model: torch.nn.Module, chosen: Mapping[str, str], loss: bool) -> dict[str, Any]:
    """How parallelize_module treats modules, which are in the model's order. With norms on parts of the sequence embeddings give parts, a norm's result is gathered once for all that reads it, and rowwise sums are scattered."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    class Norm(SequenceParallel):
        @staticmethod
        def _prepare_output_fn(use_local_output: bool, mod: Any, outputs: Any, device_mesh: Any) -> Any:
            gathered = outputs.redistribute(placements=[Replicate()])
            return gathered.to_local() if use_local_output else gathered

    class Rows(RowwiseParallel):
        @staticmethod
        def _prepare_output_fn(output_layouts: Any, use_local_output: bool, mod: Any, outputs: DTensor, device_mesh: Any) -> Any:
            return outputs.redistribute(placements=[Shard(outputs.dim() - 2)]).to_local()

    norms = [n for n, s in chosen.items() if s == "sequence"]
    wide = [n for n, s in chosen.items() if s == "colwise"]
    head = wide[-1] if loss and wide else ""
    out: dict[str, Any] = {}
    for n, s in chosen.items():
        if s == "sequence":
            out[n] = Norm(use_local_output=n == norms[-1] and not head)
        elif s == "colwise":
            out[n] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False) if n == head else ColwiseParallel()
        else:
            out[n] = RowwiseParallel(output_layouts=Shard(1)) if norms else RowwiseParallel()
    if norms:
        embeddings = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Embedding)]
        if not embeddings:
            raise MemplanError("sequence parallelism begins at the results of torch.nn.Embedding, and the model has none: cut them yourself, or plan without --tp-sequence")
        out.update((n, Rows(input_layouts=Replicate())) for n in embeddings)
    return out


def _shard(model: torch.nn.Module, mesh: DeviceMesh, document: Mapping[str, Any], wrapped: list[str], config: Mapping[str, Any], offload: bool, device: torch.device) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    reshard = config.get("fsdpReshard") or "true"
    how: dict[str, Any] = dict(mesh=mesh, reshard_after_forward=int(reshard) if reshard.isdigit() else reshard != "false")
    if config.get("fsdpPrecision") == "bf16":
        how["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if offload:
        how["offload_policy"] = CPUOffloadPolicy()
    units = _Names(model, document.get("weights") or {}).all(wrapped, None)
    for name in sorted(units, key=lambda n: -n.count(".")):  # inner modules first
        fully_shard(units[name], **how)
    if how["reshard_after_forward"] is not False:  # FSDP2's default, which plans are made for: the root stays gathered after forward
        how["reshard_after_forward"] = None
    fully_shard(model, **how)
    _prefetch(model, list(units.values()), config.get("fsdpPrefetch") or 0)
    if offload:
        for m in model.modules():
            for name, b in m._buffers.items():
                if b is not None:
                    m._buffers[name] = b.to(device)


def _prefetch(root: Any, units: list[Any], ahead: int) -> None:
    """Gathers modules ahead: in forward the next ones, in backward those before; 0 leaves FSDP2's way."""
    if not ahead:
        return
    forward, backward = [root, *units], [*units, root]
    for i, (f, b) in enumerate(zip(forward, backward)):
        f.set_modules_to_forward_prefetch(forward[i + 1 : i + 1 + ahead])
        b.set_modules_to_backward_prefetch(backward[max(0, i - ahead) : i][::-1])
