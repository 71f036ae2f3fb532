"""memplan.parallelize on two processes of the processor: gradients are those of one process with both halves of the batch."""
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import memplan  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 8))


def batch() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def plan(**config: object) -> dict:
    return {"schemaVersion": 1, "fits": True, "selection": [{"modules": ["1"]}, {"modules": ["2"]}], "schedule": [], "config": config, "parallel": {"wrapped": ["0", "1", "2", "3"]}}


def expected() -> dict[str, torch.Tensor]:
    m = net()
    m(batch()).pow(2).mean().backward()
    return {n: p.grad for n, p in m.named_parameters()}


def run(rank: int, ports: list[int], world: int) -> None:
    torch.set_num_threads(1)
    ways = WAYS if world == 2 else FOUR
    for port, what in zip(ports, ways):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        try:
            ways[what](rank)
        except BaseException as e:
            raise AssertionError(f"{what}: {e}") from e
        dist.barrier()
        dist.destroy_process_group()


def check(rank: int, m: nn.Module, halves: bool = True) -> None:
    x = batch().chunk(dist.get_world_size())[rank] if halves else batch()
    calls: list[int] = []
    up = next(s for n, s in m.named_modules() if n.endswith("1.up"))
    up.register_forward_hook(lambda *_: calls.append(1))
    m(x).pow(2).mean().backward()
    want = expected()
    for n, p in m.named_parameters():
        got = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        torch.testing.assert_close(got, want[n.removeprefix("module.")], rtol=1e-4, atol=1e-6)
    assert len(calls) == 2, f"the checkpointed module ran {len(calls)} times"


def fsdp(rank: int, **config: object) -> None:
    m = memplan.parallelize(net(), plan=plan(parallel="fsdp=2", **config))
    assert isinstance(m, torch.distributed.fsdp.FSDPModule) and all(isinstance(m[i], torch.distributed.fsdp.FSDPModule) for i in range(4)) and not isinstance(m[4], torch.distributed.fsdp.FSDPModule)
    check(rank, m)


def together(rank: int) -> None:
    """Of a region of several modules that FSDP2 wraps, each, the first one's argument alone is kept."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = memplan.parallelize(net(), plan=plan(parallel="fsdp=2") | {"selection": [{"modules": ["0", "1", "2"]}]})
        kept: list[torch.Tensor] = []
        x = batch().chunk(2)[rank].requires_grad_(True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            m(x)
        sized = [t for t in kept if t.shape == (4, 16) or t.shape == (4, 64)]
        alone: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: alone.append(t) or t, lambda t: t):
            memplan.checkpoint(net(), {"schemaVersion": 1, "selection": [{"modules": ["0", "1", "2"]}]})(x)
        assert len(sized) == len([t for t in alone if t.shape == (4, 16) or t.shape == (4, 64)]), len(sized)
    check(rank, memplan.parallelize(net(), plan=plan(parallel="fsdp=2") | {"selection": [{"modules": ["0", "1", "2"]}]}))


def ddp(rank: int) -> None:
    check(rank, memplan.parallelize(net(), "ddp=2", plan()))


def tp(rank: int) -> None:
    m = memplan.parallelize(net(), "tp=2", plan(), tp_plan={"?.up": "colwise", "?.down": "rowwise"})
    assert m[0].up.weight.to_local().shape == (32, 16) and m[0].down.weight.to_local().shape == (16, 32)
    check(rank, m, halves=False)


class Words(nn.Module):
    """A language model whose norms run on parts of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.norms, self.blocks = nn.ModuleList(nn.LayerNorm(16) for _ in range(2)), nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.positions(torch.arange(8).unsqueeze(0))
        for norm, block in zip(self.norms, self.blocks):
            h = h + block(norm(h))
        return self.head(self.norm(h))


def sequence(rank: int, loss: bool) -> None:
    from torch.distributed.tensor.parallel import loss_parallel

    def words() -> nn.Module:
        torch.manual_seed(0)
        return Words()

    ids = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(1))
    one = words()
    nn.functional.cross_entropy(one(ids).flatten(0, 1), ids.flatten()).backward()
    styles = {"blocks.?.0": "colwise", "blocks.?.2": "rowwise", "norms.*": "sequence", "norm": "sequence"} | ({"head": "colwise"} if loss else {})
    m = memplan.parallelize(words(), "tp=2", {"config": {"tpLoss": loss}}, tp_plan=styles)
    parts: list[torch.Size] = []
    m.norms[0].register_forward_pre_hook(lambda _, args: parts.append(args[0].to_local().shape))
    with loss_parallel() if loss else contextlib.nullcontext():
        nn.functional.cross_entropy(m(ids).flatten(0, 1), ids.flatten()).backward()
    assert parts == [torch.Size((2, 4, 16))], parts
    for (n, p), q in zip(m.named_parameters(), one.parameters()):
        torch.testing.assert_close(p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=lambda s, n=n: f"{n}: {s}")


def joined(rank: int) -> None:
    """Between modules that tensor parallelism splits by outputs and by inputs a region keeps nothing."""
    class Split(Block):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(self.act(self.up(x)))

    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(Split() for _ in range(2)))

    want = made()
    want(batch()).pow(2).mean().backward()
    regions = [{"modules": [f"{i}.act", f"{i}.down"]} for i in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = memplan.parallelize(made(), plan=plan(parallel="tp=2") | {"selection": regions, "parallel": {"tensor": {"0.up": "colwise", "0.down": "rowwise", "1.up": "colwise", "1.down": "rowwise"}}})
        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y = m(batch())
    assert len([t for t in kept if t.shape[-1] in (32, 64) and t.shape[0] == 8]) == 2, [(type(t), t.shape) for t in kept]
    y.pow(2).mean().backward()
    for (n, p), q in zip(m.named_parameters(), want.parameters()):
        torch.testing.assert_close(p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=n)


def settings(rank: int) -> None:
    """What a plan says of FSDP2 and DDP arrives there."""
    def applied(parallel: str, **config: object) -> nn.Module:
        return memplan.parallelize(net(), plan=plan(parallel=parallel, **config))

    m = applied("fsdp=2", fsdpPrefetch=2)
    ahead = [[id(s) for s in f._get_fsdp_state()._states_to_forward_prefetch] for f in (m, m[0], m[3])]
    assert ahead == [[id(m[0]._get_fsdp_state()), id(m[1]._get_fsdp_state())], [id(m[1]._get_fsdp_state()), id(m[2]._get_fsdp_state())], []], ahead
    back = [[id(s) for s in f._get_fsdp_state()._states_to_backward_prefetch] for f in (m, m[1])]
    assert back == [[id(m[3]._get_fsdp_state()), id(m[2]._get_fsdp_state())], [id(m[0]._get_fsdp_state())]], back
    check(rank, m)
    m = applied("ddp=2", ddpBucket=2**21, ddpViews=True, ddpUnused=True)
    assert m.bucket_bytes_cap == 2**21 and m.gradient_as_bucket_view and m.find_unused_parameters and not m.bucket_bytes_cap_default
    assert applied("ddp=2", ddpFirst=2**12).bucket_bytes_cap_default and dist._DEFAULT_FIRST_BUCKET_BYTES == 2**20
    try:
        applied("ddp=2", ddpFirst=2**12, ddpBucket=2**21)
    except memplan.MemplanError as e:
        assert "as large as the others" in str(e), e
    else:
        raise AssertionError("a first bucket of another size was applied")


def written(rank: int, parallel: str) -> None:
    """What config --to fsdp2 wrote, without the package."""
    spec = importlib.util.spec_from_file_location("written", os.path.join(os.environ["WRITTEN"], parallel + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    m = module.apply(net())
    if parallel == "fsdp=2":
        assert all(isinstance(m[i], torch.distributed.fsdp.FSDPModule) for i in range(4))
    elif parallel == "tp=2":
        assert m[0].up.weight.to_local().shape == (32, 16) and m[0].down.weight.to_local().shape == (16, 32)
    check(rank, m, halves=parallel != "tp=2")


def write(folder: str) -> None:
    """Writes the files that written() applies."""
    def said(*words: str) -> None:
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        subprocess.run(["memplan", *words], check=True, stdout=subprocess.DEVNULL, cwd=folder, env=dict(os.environ, PATH=path))

    memplan.export(net(), (batch(),), path=os.path.join(folder, "net.onnx"), step=lambda m, x: m(x).pow(2).mean().backward())
    with open(os.path.join(folder, "regions.json"), "w") as f:
        json.dump({"schemaVersion": 1, "framework": "torch", "checkpoint": plan()["selection"], "ops": []}, f)
    for parallel in MESHES:
        said("plan", "net.onnx", "--vram", "4G", "--batch", "4", "--checkpoint", "regions.json", "--parallel", parallel, "-o", "plan.json")
        said("config", "plan.json", "--to", "fsdp2", "-o", parallel + ".py")


def refused(rank: int) -> None:
    dist.init_process_group("gloo")
    for mesh, tp_plan, words in (("fsdp=4", None, "4 ranks, and there are 2 processes"), ("", None, "no mesh"), ("fsdp=x", None, "want fsdp=N"), ("ep=2", None, "not ep"), ("ddp=2,fsdp=1", None, "one of ddp"),
                                 ("tp=2", None, "needs tp_plan"), ("tp=2", {"?.up": "both"}, "want one of colwise, rowwise"), ("tp=2", {"x.*": "colwise"}, "no module is called"), ("fsdp=2", {"?.up": "colwise"}, "needs a mesh with tp")):
        try:
            memplan.parallelize(net(), mesh, tp_plan=tp_plan)
        except memplan.MemplanError as e:
            assert words in str(e), e
        else:
            raise AssertionError(f"{mesh!r} with {tp_plan} was applied")


def pipeline(rank: int, schedule: str, mesh: str = "pp=2", **config: object) -> memplan.Pipeline:
    """Gradients of a pipeline's stages are those of the whole model."""
    several = schedule not in ("gpipe", "1f1b")
    document = plan(parallel=mesh, ppSchedule=schedule, ppMicros=4, **config)
    document["parallel"]["stages"] = ["1", "2", "3"] if several else ["2"]
    if schedule == "zero-bubble":
        document["selection"] = []
    m = memplan.parallelize(net(), plan=document, args=(batch()[:2],), loss=lambda out: out.pow(2).mean())
    calls: list[int] = []
    for n, s in m.named_modules():
        if n.endswith("1.up"):
            s.register_forward_hook(lambda *_: calls.append(1))
    loss, want = m.step(batch()), expected()
    whole = net()(batch()).pow(2).mean()
    assert (loss is not None) == m.last and (loss is None or torch.allclose(loss, whole.detach())), (loss, whole)
    for stage in m.stages:
        for n, p in stage.named_parameters():
            got = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            torch.testing.assert_close(got, want[n.removeprefix("module.")], rtol=1e-4, atol=1e-6)
    if document["selection"] and m.first:
        assert len(calls) == (8 if not several else 0), f"the checkpointed module ran {len(calls)} times in 4 micro-batches"
    return m


def context(rank: int, mesh: str) -> None:
    """Ranks that share sequences add up the gradients of their parts."""
    x = batch().unflatten(0, (2, 4)).clone()  # two sequences
    m = memplan.parallelize(net(), plan=plan(parallel=mesh))
    with memplan.sequences(m, x, causal=mesh.startswith("fsdp")):
        assert x.shape == (2, 2, 16), x.shape
        m(x).pow(2).mean().backward()
    assert torch.equal(x, batch().unflatten(0, (2, 4)))
    want = expected()
    for n, p in m.named_parameters():
        got = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        torch.testing.assert_close(got, want[n.removeprefix("module.")], rtol=1e-4, atol=1e-6)


class Clock:
    """Stands for torch.cuda in a Meter."""

    def __getattr__(self, name: str) -> object:
        return {"mem_get_info": lambda: (1, 1), "get_device_name": lambda: "none"}.get(name, lambda: 0)


def pipelines(rank: int) -> None:
    from memplan._measure import _Run
    from memplan._meter import Meter

    for schedule in ("gpipe", "1f1b", "interleaved", "bfs", "zero-bubble"):
        m = pipeline(rank, schedule)
    got = _Run(m, "auto", "adamw", "fp32").steps(((batch(),), {}), 3, Meter(Clock()), torch.device("cpu"))
    assert len(got.steps) == 3 and len(got.loss) == (3 if m.last else 0) and (not got.loss or got.loss[2] < got.loss[0]), got


class Around(nn.Module):
    """A value passes a module by, weights are tied, or an argument is used again."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.how = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), how
        if how == "tied":
            self.c.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        z = self.b(y)
        if self.how == "branch" and bool(z.sum() > 0):
            z = -z
        return self.c(z) + {"value": y, "argument": x}.get(self.how, 0)


def uncut(rank: int) -> None:
    """Models and plans that make no pipeline are refused, by name."""
    dist.init_process_group("gloo")
    x = batch()[:2]

    def refuse(words: str, model: nn.Module, args: tuple, stages: list[str], **config: object) -> None:
        document = plan(parallel="pp=2", **config) | {"selection": [], "parallel": {"stages": stages}}
        try:
            memplan.parallelize(model, plan=document, args=args)
        except memplan.MemplanError as e:
            assert words in str(e), e
        else:
            raise AssertionError(f"no error: {words}")

    refuse("says where its stages begin", net(), (x,), [])
    refuse("needs args", net(), (), ["2"])
    refuse("the plan has 3 stages, the mesh 2 ranks", net(), (x,), ["1", "2"])
    refuse("what stages send has the type", net(), (x,), ["2"], precision="bf16")
    refuse("cannot be traced and cut at b", Around("branch"), (x,), ["b"])
    refuse("used on both sides; tied weights", Around("tied"), (x,), ["c"])
    refuse("cannot be cut at 'c': its argument 'x' is used again", Around("argument"), (x,), ["c"])
    two = nn.Sequential(Around("value"), Around("value"))
    refuse("cannot be cut at '0.b' under a schedule of several stages a rank", two, (x,), ["0.b", "0.c", "1"], ppSchedule="interleaved")
    try:
        memplan.parallelize(net(), "ddp=2", args=(x,))
    except memplan.MemplanError as e:
        assert "args and loss are of pipelines" in str(e), e
    else:
        raise AssertionError("args without a pipeline")


def stages(rank: int) -> None:
    """On four processes: sharded and replicated stages."""
    for schedule, mesh, config in (("1f1b", "pp=2,fsdp=2", {}), ("interleaved", "pp=2,fsdp=2", {}), ("zero-bubble", "pp=2,fsdp=2", {"fsdpReshard": "false"}), ("1f1b", "pp=2,ddp=2", {}), ("gpipe", "pp=2,hsdp=1x2", {})):
        pipeline(rank, schedule, mesh, **config)


WAYS = {"fsdp": fsdp, "fsdp-keep": functools.partial(fsdp, fsdpReshard="false"), "together": together, "ddp": ddp, "tp": tp, "sequence": functools.partial(sequence, loss=False), "loss": functools.partial(sequence, loss=True), "joined": joined, "settings": settings, "refused": refused, "context-fsdp": functools.partial(context, mesh="fsdp=1,cp=2"), "context-ddp": functools.partial(context, mesh="ddp=1,cp=2"), "pipelines": pipelines, "uncut": uncut}
MESHES = ("fsdp=2", "ddp=2", "tp=2")
FOUR = {"stages": stages}
WAYS |= {"written " + m: functools.partial(written, parallel=m) for m in MESHES}


class Parallel(unittest.TestCase):
    def test_ways(self) -> None:
        """Every way of WAYS, one after the other on the same two processes."""
        sockets = [socket.socket() for _ in WAYS]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        with tempfile.TemporaryDirectory() as folder:
            write(folder)
            os.environ["WRITTEN"] = folder
            mp.spawn(run, (ports, 2), nprocs=2)

    def test_four(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        mp.spawn(run, ([port], 4), nprocs=4)

    def test_no_processes(self) -> None:
        env = {k: os.environ.pop(k) for k in ("RANK",) if k in os.environ}
        try:
            with self.assertRaisesRegex(memplan.MemplanError, "run this under torchrun"):
                memplan.parallelize(net(), "fsdp=2")
            with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
                f.write("[]")
                f.flush()
                with self.assertRaisesRegex(memplan.MemplanError, "is no plan"):
                    memplan.parallelize(net(), plan=f.name)
        finally:
            os.environ.update(env)


if __name__ == "__main__":
    unittest.main()
