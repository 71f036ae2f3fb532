#!/usr/bin/env python3
"""Peak memory of a rank's training steps under expert parallelism (planner/testdata/experts).

    python3 experts.py models DIR       exports the models as DIR/NAME.onnx.xz (processor; torch, transformers, onnx, onnxscript)
    python3 experts.py runs OUT TITAN   runs rank 0 of each mesh on one GPU: a line a run in OUT; TITAN is a folder with torchtitan 0.2.2

The ranks beside it are a fake process group's (torch.testing._internal.distributed.fake_pg): every collective allocates what it does, and sends nothing. Dispatch and
combine are torchtitan's own ExpertParallel, around experts whose products are torch._grouped_mm, as transformers' grouped_mm_experts_forward calls it, or, for
experts that are a list of modules, a loop as torchtitan's _run_experts_for_loop. What a router does to its tokens is set: balanced, in turn, as torchtitan's
_debug_force_load_balance, or worst, all tokens of all ranks to this one. NAMES and HOW choose among the models and ways: "", worst, checkpoint (every layer), autocast,
policy (bfloat16 by MixedPrecisionPolicy), keep (reshard_after_forward=False), accumulate (two micro-batches)."""

from __future__ import annotations

import gc
import json
import lzma
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
import torch.nn.functional as F

SEQ = 256
BASE = dict(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)


class Expert(nn.Module):
    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False), nn.Linear(d, f, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """A list of experts, each of which runs on all tokens: what of a mixture torch.onnx can export."""

    def __init__(self, d: int, f: int, n: int, best: int) -> None:
        super().__init__()
        self.best, self.gate = best, nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(Expert(d, f) for _ in range(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(self.gate(x).float(), -1)
        w, i = torch.topk(p, self.best, -1)
        w = torch.zeros_like(p).scatter(-1, i, w / w.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(x)
        for n, e in enumerate(self.experts):
            out = out + e(x) * w[..., n : n + 1]
        return out


class RoutedList(nn.Module):
    """The same layer with its tokens dispatched."""

    def __init__(self, old: Experts, routed: nn.Module) -> None:
        super().__init__()
        self.best, self.gate, self.experts = old.best, old.gate, routed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        p = torch.softmax(self.gate(x).float(), -1)
        w, i = torch.topk(p, self.best, -1)
        w = (w / w.sum(-1, keepdim=True)).to(x.dtype)
        return self.experts(x.view(-1, d), i.view(-1, self.best), w.view(-1, self.best)).view(b, s, d)


def kind(name: str) -> tuple[str, int]:
    """What a model is, and its words: with few of them, memory is highest within its layers and not at the loss."""
    return (name.removesuffix("_few"), 256) if name.endswith("_few") else (name, 4000)


def build(name: str) -> nn.Module:
    import transformers as t

    name, words = kind(name)
    BASE["vocab_size"] = words
    if name == "mixtral":
        m = t.MixtralForCausalLM(t.MixtralConfig(**BASE, num_local_experts=8, num_experts_per_tok=2))
    elif name == "qwen3_moe":
        m = t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**BASE, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=256, head_dim=64))
    elif name == "deepseek_v3":
        c = dict(BASE, num_key_value_heads=8)
        m = t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**c, n_routed_experts=16, n_group=4, topk_group=2, num_experts_per_tok=4, moe_intermediate_size=256, n_shared_experts=1, first_k_dense_replace=1,
                                                       q_lora_rank=128, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64))
    else:
        m = t.MixtralForCausalLM(t.MixtralConfig(**BASE, num_local_experts=8, num_experts_per_tok=2))
        for layer in m.model.layers:
            layer.mlp = Experts(BASE["hidden_size"], BASE["intermediate_size"], 8, 2)
    return m.train()


NAMES = ["mixtral", "qwen3_moe", "deepseek_v3", "list", "mixtral_few", "qwen3_moe_few", "deepseek_v3_few", "list_few"]


def models(out: Path) -> None:
    import onnx_ir as ir

    for name in os.environ.get("NAMES", " ".join(NAMES)).split():
        m = build(name)
        if kind(name)[0] != "list":
            m.set_experts_implementation("batched_mm")
        p = torch.onnx.export(m, (), kwargs={"input_ids": torch.zeros(2, SEQ, dtype=torch.long)}, dynamo=True, optimize=False, opset_version=23, dynamic_shapes={"input_ids": {0: torch.export.Dim("batch")}})
        offset = 0
        for key, value in p.model.graph.initializers.items():
            t = value.const_value
            if t.nbytes <= 4096:  # small ones are the graph's own constants
                continue
            value.const_value = ir.ExternalTensor("weights", offset, t.nbytes, t.dtype, shape=ir.Shape(t.shape), name=key)
            offset += t.nbytes
        doc = ir.to_proto(p.model)
        for n in doc.graph.node:
            for q in n.metadata_props:  # the machine's own paths
                if q.key == "pkg.torch.onnx.stack_trace":
                    q.value = q.value.replace(sys.prefix, "").replace(str(Path(__file__).resolve().parent), "")
        (out / f"{name}.onnx.xz").write_bytes(lzma.compress(doc.SerializeToString(), preset=9))


class Local(nn.Module):
    """Experts of one rank, called with their rows in order and how many each of them has."""

    def __init__(self, old: nn.Module, ranks: int) -> None:
        super().__init__()
        if isinstance(old, nn.ModuleList):
            self.rank = [nn.ModuleList(list(old)[: len(old) // ranks])]  # no submodule yet: distribute_module would make DTensors of its parameters
        else:
            self.old = [old]
            for n, p in list(old.named_parameters()):
                self.register_parameter(n, p)
                delattr(old, n)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "list"):
            rows = counts.tolist()
            rest = x.shape[0] - sum(rows)
            out = torch.cat([e(part) for e, part in zip(self.list, torch.split(x[: sum(rows)], rows))])
            return torch.vstack((out, out.new_zeros((rest, out.shape[-1]))))
        whole = {n: p.to_local() for n, p in self.named_parameters(recurse=False)}
        offs = torch.cumsum(counts, dim=0, dtype=torch.int32)
        y = torch._grouped_mm(x.to(whole["gate_up_proj"].dtype), whole["gate_up_proj"].transpose(-2, -1), offs=offs)
        gate, up = y.chunk(2, dim=-1)
        y = self.old[0].act_fn(gate) * up
        return torch._grouped_mm(y.to(whole["down_proj"].dtype), whole["down_proj"].transpose(-2, -1), offs=offs)


class Routed(nn.Module):
    """What torchtitan's MoE.forward does after its router, the scores applied last (score_before_experts=False)."""

    def __init__(self, old: nn.Module, ranks: int, n: int, best: int, worst: bool) -> None:
        super().__init__()
        from torchtitan.models.moe.moe import TokenReorderer

        self.inner, self.reorderer = Local(old, ranks), TokenReorderer(n, best)
        self.best, self.n, self.all = best, n, n // ranks if worst else n

    def forward(self, x: torch.Tensor, index: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        index.data.copy_((torch.arange(index.numel(), device=index.device) % self.all).view_as(index))
        return self.routed(x, index, scores)

    def routed(self, x: torch.Tensor, index: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        sorted_scores, order, counts = self.reorderer(scores, index)
        routed_input = x[order // self.best]
        routed_output = self.inner(routed_input, counts)
        unsorted = torch.zeros((x.shape[0] * self.best, x.shape[1]), dtype=routed_output.dtype, device=routed_output.device)
        unsorted[order] = routed_output
        unsorted = unsorted.reshape(-1, self.best, x.shape[1])
        return torch.bmm(scores.reshape(-1, 1, self.best).float(), unsorted.float()).to(x.dtype).squeeze(1)


def spread(name: str, m: nn.Module, mesh: dict[str, int], how: str) -> None:
    import torchtitan.distributed.expert_parallel as titan
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import parallelize_module

    name, (ep, fsdp) = kind(name)[0], (mesh["ep"], mesh.get("fsdp", 0))
    if fsdp:
        whole = init_device_mesh("cuda", (fsdp // ep, ep), mesh_dim_names=("efsdp", "ep"))
        dp = whole._flatten("fsdp")
        inner, outer = whole["ep"], whole["efsdp"]
    else:
        inner = init_device_mesh("cuda", (ep,), mesh_dim_names=("ep",))

    kw: dict[str, Any] = {"policy": dict(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)), "keep": dict(reshard_after_forward=False)}.get(how, {})

    def counted(counts: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """What all ranks send here if they route alike."""
        return counts[: counts.shape[0] // ep].repeat(ep)

    titan.all_to_all_single = counted
    for layer in m.model.layers:
        block = layer.mlp
        if not hasattr(block, "experts"):
            if fsdp:
                fully_shard(layer, mesh=dp, **kw)
            continue
        n, best = (8, 2) if name in ("mixtral", "list") else (16, 4)
        routed = Routed(block.experts, ep, n, best, how == "worst")
        if name == "list":
            layer.mlp = RoutedList(block, routed)
        else:
            block.experts = routed
        parallelize_module(routed.inner, inner, titan.ExpertParallel())
        if name == "list":
            routed.inner.list = routed.inner.rank.pop()
        if fsdp:
            fully_shard(routed.inner, mesh=outer, **kw)
            fully_shard(layer, mesh=dp, **kw)
    if fsdp:
        fully_shard(m, mesh=dp, **kw)


def run(name: str, mesh: dict[str, int], dtype: str, batch: int, how: str) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world = mesh.get("fsdp", mesh["ep"])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    row: dict[str, Any] = dict(name=name, mesh=",".join(f"{k}={v}" for k, v in mesh.items()), dtype=dtype, batch=batch, how=how)
    try:
        torch.manual_seed(0)
        m = build(name).to("cuda")
        if dtype == "bf16":
            m = m.bfloat16()
        for layer in m.model.layers if how == "checkpoint" else []:
            layer.forward = (lambda f: lambda *a, **k: torch.utils.checkpoint.checkpoint(f, *a, use_reentrant=False, **k))(layer.forward)
        spread(name, m, mesh, how)
        gc.collect()
        torch.cuda.empty_cache()
        opt = torch.optim.AdamW(m.parameters(), lr=1e-4, foreach="fsdp" in mesh)
        micros = 2 if how == "accumulate" else 1
        ids = torch.zeros(batch, SEQ, dtype=torch.long, device="cuda")

        def step() -> None:
            opt.zero_grad(set_to_none=True)
            for k in range(micros):
                if micros > 1 and "fsdp" in mesh:
                    m.set_requires_gradient_sync(k == micros - 1)
                with torch.autocast("cuda", torch.bfloat16, enabled=how == "autocast"):
                    out = m(input_ids=ids).logits
                    out = out.view(-1, out.shape[-1]).float()
                    y = torch.zeros(out.shape[0], dtype=torch.long, device="cuda")
                    loss = F.cross_entropy(out, y)
                del out, y
                loss.backward()
            opt.step()

        steps = []
        row["before"] = torch.cuda.memory_allocated()
        for i in range(4):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            traced = i == 3 and not how and f"{name}.{dtype}.{row['mesh']}" in os.environ.get("TRACE", "").split()
            if traced:
                torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python")
            step()
            torch.cuda.synchronize()
            steps.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch.cuda.memory_allocated()])
        if traced:
            torch.cuda.memory._dump_snapshot(f"{os.environ['OUT']}/{name}.{dtype}.{row['mesh'].replace('=', '').replace(',', '-')}.pickle")
            torch.cuda.memory._record_memory_history(enabled=None)
        row["steps"] = steps
    except Exception as e:  # the others still run
        row["error"] = f"{type(e).__name__}: {e}"[:600]
        import traceback
        traceback.print_exc()
    finally:
        dist.destroy_process_group()
    return row


def runs(out: Path, titan: str) -> None:
    sys.path.insert(0, titan)
    with out.open("w") as f:
        for name in os.environ.get("NAMES", " ".join(NAMES)).split():
            for mesh in (dict(ep=2), dict(ep=4), dict(fsdp=2, ep=2), dict(fsdp=4, ep=2), dict(fsdp=8, ep=4)):
                for dtype in ("fp32", "bf16"):
                    for how in os.environ.get("HOW", ",worst").split(","):
                        if how == "worst" and mesh != dict(ep=4) or how in ("policy", "keep") and "fsdp" not in mesh:
                            continue
                        if how not in ("", "worst") and (dtype != "fp32" or mesh not in (dict(ep=4), dict(fsdp=2, ep=2), dict(fsdp=4, ep=2))):
                            continue
                        f.write(json.dumps(run(name, mesh, dtype, 8, how)) + "\n")
                        f.flush()
                        gc.collect()
                        torch.cuda.empty_cache()
                        torch._C._cuda_clearCublasWorkspaces()
                        torch.cuda.empty_cache()


if __name__ == "__main__":
    if sys.argv[1] == "models":
        models(Path(sys.argv[2]))
    else:
        runs(Path(sys.argv[2]), sys.argv[3])
