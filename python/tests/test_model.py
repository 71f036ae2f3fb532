"""What a model with checkpoints must still do: be copied, saved, compiled, distributed, and refuse plans of others."""

from __future__ import annotations

import collections
import copy
import io
import os
import pickle
import tempfile
import unittest
import warnings
from typing import Any

import torch
from torch import nn

import memplan
from memplan import _checkpoint


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.norm(x)


class Wrapper(nn.Module):
    def __init__(self, m: nn.Module) -> None:
        super().__init__()
        self.m = m

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.m(x)


def plan(*regions: list[str], ops: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"schemaVersion": 1, "framework": "torch", "checkpoint": [{"modules": r} for r in regions], "ops": ops or []}


PLAN = plan(["blocks.0", "blocks.1", "blocks.2"], ["blocks.1"], ["blocks.3", "norm"])
X = torch.linspace(-1, 1, 48).reshape(6, 8)


def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


def gradients(model: nn.Module, x: torch.Tensor = X) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() if not hasattr(p.grad, "full_tensor") else p.grad.full_tensor().clone() for p in model.parameters()] + [b.clone() for b in model.buffers()]  # type: ignore[union-attr,operator]


class Same(unittest.TestCase):
    def same(self, a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
        self.assertEqual(len(a), len(b))
        for x, y in zip(a, b):
            self.assertTrue(torch.equal(x, y), (x - y).abs().max())


class Runs:
    """Counts the calls of a module's forward, second runs included."""

    def __init__(self, module: nn.Module) -> None:
        self.count = 0
        module.register_forward_pre_hook(self.note)

    def note(self, *_: Any) -> None:
        self.count += 1


class Applied(Same):
    def test_runs_again(self) -> None:
        """Regions run once more, those within others twice more, others not; and less is kept."""
        m, runs = memplan.checkpoint(net(), PLAN), {}
        for name in ("stem", "blocks.0.up", "blocks.1.up", "blocks.2.up", "blocks.3.up"):
            runs[name] = Runs(m.get_submodule(name))
        self.same(gradients(net()), gradients(m))
        self.assertEqual([r.count for r in runs.values()], [1, 2, 3, 2, 2])

    def kept(self, model: nn.Module) -> int:
        """Bytes of what autograd keeps of a forward pass, parameters and the input not counted."""
        known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), X)}
        sizes: dict[int, int] = {}

        def look(t: torch.Tensor) -> torch.Tensor:
            if t.untyped_storage().data_ptr() not in known:
                sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(look, lambda t: t):
            out = model(X)
        del out
        return sum(sizes.values())

    def test_keeps_less(self) -> None:
        """A region of modules in a row keeps what the first of them takes, and nothing between."""
        row = plan(["blocks.0", "blocks.1", "blocks.2", "blocks.3"])
        apart = plan(*([f"blocks.{i}"] for i in range(4)))
        x = X.untyped_storage().nbytes()
        plain, one, four = (self.kept(m) for m in (net(), memplan.checkpoint(net(), row), memplan.checkpoint(net(), apart)))
        self.assertEqual(four - one, 3 * x)
        self.assertGreater(plain, 2 * four)

    def test_results_that_are_kept(self) -> None:
        ops = [{"region": 0, "op": "aten.addmm", "calls": [1], "of": 2}, {"region": 1, "op": "aten.addmm", "calls": [0, 3], "of": 4}]
        self.same(gradients(net()), gradients(memplan.checkpoint(net(), plan(["blocks.0"], ["blocks.1", "blocks.2"], ops=ops))))
        ops[1]["of"] = 5
        with self.assertRaisesRegex(memplan.MemplanError, "blocks.1 to blocks.2 calls aten.addmm 4 times, the plan says 5"):
            gradients(memplan.checkpoint(net(), plan(["blocks.0"], ["blocks.1", "blocks.2"], ops=ops)))

    def test_attention_of_another_kernel(self) -> None:
        """A plan for a GPU, which keeps attention, applies on the processor; on a GPU another kernel than the plan's is refused, and the error says what to do."""

        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.project = nn.Linear(8, 24)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
                return x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

        def step(checkpointed: bool) -> list[torch.Tensor]:
            torch.manual_seed(0)
            model, x = nn.Sequential(Attention(), Attention()), torch.randn(2, 5, 8)
            if checkpointed:
                memplan.checkpoint(model, plan(["0"], ops=ops))
            model(x).square().sum().backward()
            return [p.grad for p in model.parameters()]

        name = "aten._scaled_dot_product_efficient_attention"
        ops = [{"region": 0, "op": name, "calls": [0], "of": 1}]
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(step(False), step(True), strict=True)))
        region = _checkpoint._Region(["0"], ops)
        with self.assertRaisesRegex(memplan.MemplanError, f"checkpointed 0 calls aten._scaled_dot_product_flash_attention where the plan says {name}: train with the attention backend, .* or export and plan again"):
            region.check(collections.Counter({"aten._scaled_dot_product_flash_attention": 1}), False)
        with self.assertRaisesRegex(memplan.MemplanError, "0 times, the plan says 1"):
            region.check(collections.Counter(), False)

    def test_kept_results_that_are_written_to(self) -> None:
        """What the model writes to after it was kept is computed again: a sum in place, other strides in place, random numbers."""

        class Pooled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.fc = nn.Conv2d(8, 8, 1, bias=False), nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.conv(x)
                y += torch.native_dropout(x, 0.5, True)[0].mul_(2)
                y = torch.tanh(torch.native_dropout(y, 0.5, True)[0])
                return self.fc(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)).sin()

        def model() -> nn.Sequential:
            torch.manual_seed(0)
            return nn.Sequential(nn.Conv2d(8, 8, 1), Pooled()).to(memory_format=torch.channels_last)

        def grads(m: nn.Module) -> list[torch.Tensor]:
            return gradients(m, torch.linspace(-1, 1, 512).view(2, 4, 8, 8).transpose(1, 3).requires_grad_())

        want = grads(model())
        for op, calls in ("aten.convolution", [0]), ("aten.native_dropout", [0, 1]), ("aten.mean", [0]), ("aten.tanh", [0]):
            self.same(want, grads(memplan.checkpoint(model(), plan(["1"], ops=[{"region": 0, "op": op, "calls": calls, "of": len(calls)}]))))

    def test_kept_results_that_are_no_tensors(self) -> None:
        """Attention on a GPU returns numbers and None beside its tensors, which have no version."""
        library = torch.library.Library("memplan_test", "FRAGMENT")
        library.define("doubled(Tensor x) -> (Tensor, Tensor?, SymInt)")
        library.impl("doubled", lambda x: (x * 2, None, 3), "CompositeExplicitAutograd")

        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.memplan_test.doubled(x)[0]

            @staticmethod
            def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                return g * 2

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return Doubled.apply(self.fc(x)).sin().exp()

        def model() -> nn.Sequential:
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(8, 8), Net())

        x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        kept = {"region": 0, "op": "memplan_test.doubled", "calls": [0], "of": 1}
        self.same(gradients(model(), x), gradients(memplan.checkpoint(model(), plan(["1"], ops=[kept])), x))

    def test_kept_results_of_random_calls(self) -> None:
        """A call that is kept takes no random numbers in the second run: those after it get the ones that they had."""

        class Drop(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.native_dropout(x, 0.5, True)[0]  # what F.dropout calls on a GPU

        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(8, 8), Drop(), nn.Tanh(), Drop(), nn.Linear(8, 8), nn.Tanh(), Drop(), nn.Tanh())
        m = nn.Sequential(block, nn.Linear(8, 8))
        want = gradients(m)
        for kept in ([0], [1], [0, 1], [0, 2], [0, 1, 2]):
            memplan.checkpoint(m, plan(["0"], ops=[{"region": 0, "op": "aten.native_dropout", "calls": kept, "of": 3}]))
            with self.subTest(kept):
                self.same(want, gradients(m))

    def test_plan_from_a_file(self) -> None:
        doc = {"schemaVersion": 1, "fits": True, "selection": [{"modules": ["blocks.0"], "save": [{"op": "aten.addmm", "calls": [0], "of": 2}]}]}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            with open(path, "w") as f:
                f.write(__import__("json").dumps(doc))
            m = memplan.checkpoint(net(), path)
        runs = Runs(m.blocks[0].up)
        self.same(gradients(net()), gradients(m))
        self.assertEqual(runs.count, 2)

    def test_backward_twice(self) -> None:
        want = net()
        m = memplan.checkpoint(net(), PLAN)
        for model in (want, m):
            torch.manual_seed(1)
            loss = model(X).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        self.same([p.grad for p in want.parameters()], [p.grad for p in m.parameters()])

    def test_autocast(self) -> None:
        def step(m: nn.Module) -> list[torch.Tensor]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = m(X)
            out.float().square().sum().backward()
            return [p.grad for p in m.parameters()]

        a, b = net(), memplan.checkpoint(net(), PLAN)
        torch.manual_seed(1)
        want = step(a)
        torch.manual_seed(1)
        self.same(want, step(b))

    def test_without_gradients(self) -> None:
        m = memplan.checkpoint(net(), PLAN).eval()
        with torch.no_grad():
            self.assertTrue(torch.equal(m(X), net().eval()(X)))

    def test_second_plan_replaces_the_first(self) -> None:
        m = memplan.checkpoint(memplan.checkpoint(net(), PLAN), plan(["blocks.3"]))
        runs = [Runs(b.up) for b in m.blocks]
        gradients(m)
        self.assertEqual([r.count for r in runs], [1, 1, 1, 2])

    def test_nothing_is_left_alive(self) -> None:
        """A step that was never differentiated lets go of what it kept."""
        import gc
        import weakref

        m = memplan.checkpoint(net(), plan(["blocks.0", "blocks.1", "blocks.2"]))
        x = X.clone()
        ref = weakref.ref(x)
        gc.disable()
        try:
            out = m(x)
            del x, out
            self.assertIsNone(ref())
        finally:
            gc.enable()


class Copies(Same):
    def test_deepcopy(self) -> None:
        m = memplan.checkpoint(net(), PLAN)
        c = copy.deepcopy(m)
        want = gradients(net())
        with torch.no_grad():
            for p in m.parameters():
                p.zero_()
        runs = Runs(m.blocks[0].up), Runs(c.blocks[0].up)
        self.same(want, gradients(c))
        self.assertEqual([r.count for r in runs], [0, 2])
        memplan.remove(m)
        self.same(want[:1], gradients(c)[:1])
        self.assertEqual(runs[1].count, 4)

    def test_averaged_model(self) -> None:
        m = memplan.checkpoint(net(), PLAN)
        average = torch.optim.swa_utils.AveragedModel(m)
        with torch.no_grad():
            for p in m.parameters():
                p.add_(1)
        self.assertFalse(torch.equal(average.module.eval()(X), m.eval()(X)))

    def test_a_copied_block_drags_nothing_along(self) -> None:
        m = memplan.checkpoint(net(), PLAN)
        b = copy.deepcopy(m.blocks[0])
        self.assertLess(len(pickle.dumps(b)), len(pickle.dumps(m)) / 2)

    def test_pickle_and_save(self) -> None:
        m = memplan.checkpoint(net(), PLAN)
        f = io.BytesIO()
        torch.save(m, f)
        f.seek(0)
        for c in (pickle.loads(pickle.dumps(m)), torch.load(f, weights_only=False)):
            runs = Runs(m.blocks[0].up), Runs(c.blocks[0].up)
            self.same(gradients(net()), gradients(c))
            self.assertEqual([r.count for r in runs], [0, 2])

    def test_state_dict(self) -> None:
        m = memplan.checkpoint(net(), PLAN)
        self.assertEqual(list(m.state_dict()), list(net().state_dict()))
        self.assertEqual([n for n, _ in m.named_modules()], [n for n, _ in net().named_modules()])
        net().load_state_dict(m.state_dict())

    def test_remove(self) -> None:
        m = memplan.remove(memplan.checkpoint(net(), PLAN))
        self.assertFalse(any("forward" in x.__dict__ for x in m.modules()))
        runs = Runs(m.blocks[0].up)
        self.same(gradients(net()), gradients(m))
        self.assertEqual(runs.count, 1)

    def test_signature(self) -> None:
        import inspect

        m = memplan.checkpoint(net(), PLAN)
        self.assertEqual(list(inspect.signature(m.blocks[0].forward).parameters), ["x"])

    def test_forward_of_another_library_stays(self) -> None:
        m = net()
        old = m.blocks[0].forward
        m.blocks[0].forward = lambda x: old(x) * 2  # type: ignore[method-assign]
        want = gradients(m)
        memplan.checkpoint(m, PLAN)
        m.norm.reset_running_stats()
        self.same(want, gradients(m))
        memplan.remove(m)
        m.norm.reset_running_stats()
        self.same(want, gradients(m))


class Wrapped(Same):
    def test_prefixes(self) -> None:
        """Plans of wrapped models for bare ones, and the other way."""
        m_plan = plan(["m.blocks.0", "m.blocks.1"], ["m.blocks.2"])
        for model, p in ((net(), m_plan), (Wrapper(net()), PLAN), (Wrapper(Wrapper(net())), m_plan), (nn.DataParallel(net()), PLAN), (Wrapper(nn.DataParallel(net())), m_plan)):
            memplan.checkpoint(model, p)
            block = next(x for n, x in model.named_modules() if n.endswith("blocks.2"))
            self.assertIn("forward", block.__dict__)
        m = memplan.checkpoint(net(), plan(["sample.net.blocks.1"]), strip_prefix="sample.net")
        self.assertIn("forward", m.blocks[1].__dict__)

    def test_another_model(self) -> None:
        m = net()
        for p, want in (
            (plan(["blocks.0"], ["blocks.7"]), r"'blocks.7', and ModuleList at 'blocks' has no '7' but 0, 1, 2, 3"),
            (plan(["m.blocks.0"], ["m.layers.1"]), r"'m.layers.1', and Net has no 'layers' but stem, blocks, norm"),
            (plan(["layer1.0"]), "another model"),
            (plan(["blocks"]), "'blocks' is a ModuleList, which computes nothing itself"),
            ({**PLAN, "framework": "jax"}, "for jax"),
            ({**PLAN, "schemaVersion": 2}, "schemaVersion 2"),
            ({"selection": [], "fits": False}, "does not fit its budget"),
            ({"selection": [], "schedule": [{"node": 1}]}, "schedule of single operations"),
            ({"selection": [{}]}, "'modules' is missing"),
            ({}, "is no plan"),
            ("/nowhere/plan.json", "No such file"),
        ):
            with self.subTest(want), self.assertRaisesRegex(memplan.MemplanError, want):
                memplan.checkpoint(m, p)
        self.assertFalse(any("forward" in x.__dict__ for x in m.modules()))
        with self.assertRaisesRegex(memplan.MemplanError, "could be '(m|other).blocks.0' or '(m|other).blocks.0'"):
            two = Wrapper(net())
            two.other = net()
            memplan.checkpoint(two, plan(["blocks.0"]))

    def test_another_version(self) -> None:
        """A plan that knows the model's weights is refused for one that has others, though all its modules are there."""
        w = {n: list(p.shape) for n, p in net().named_parameters()}
        self.assertIs(type(memplan.checkpoint(net(), {**PLAN, "weights": w})), Net)
        wrapped = {f"m.{n}": s for n, s in w.items()}
        for m in (net(), Wrapper(net()), torch.nn.DataParallel(net())):
            memplan.checkpoint(m, {**plan(["m.blocks.1"]), "weights": wrapped})
        deeper = net()
        deeper.blocks.append(Block())
        wider = net()
        wider.blocks[1].up = nn.Linear(8, 24)
        for m, weights, want in (
            (deeper, w, "this one has 'blocks.4', that one only blocks.1, blocks.2, blocks.3"),
            (wider, w, r"'blocks.1.up.weight' has shape \[16, 8\] there, here \[24, 8\]"),
            (net(), {**w, "head.weight": [3, 3]}, r"'head.weight' has shape \[3, 3\] there, and here 'head.weight' does not exist"),
        ):
            with self.subTest(want), self.assertRaisesRegex(memplan.MemplanError, "for another model: " + want):
                memplan.checkpoint(m, {**PLAN, "weights": weights})
        two = Wrapper(net())
        two.other = nn.Sequential()
        two.other.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        memplan.checkpoint(two, {**plan(["blocks.0"]), "weights": w})
        self.assertIn("forward", two.m.blocks[0].__dict__)

    def test_compile(self) -> None:
        import torch._functorch.config

        p = plan(["blocks.0", "blocks.1"], ["blocks.2"], ops=[{"region": 1, "op": "aten.addmm", "calls": [0], "of": 2}])
        want, m = net(), memplan.checkpoint(net(), p)
        for x in (want, m):
            for b in x.blocks:
                b.drop.p = 0.0
        compiled = torch.compile(m, backend="aot_eager", fullgraph=True)
        for a, b in zip(gradients(want), gradients(compiled)):
            torch.testing.assert_close(a, b)

    def test_compiled_before(self) -> None:
        m = torch.compile(net(), backend="aot_eager")
        memplan.checkpoint(m, plan(["blocks.0", "blocks.1", "blocks.2"], ["blocks.1"]))
        runs = m._orig_mod.blocks[2].__dict__
        self.assertIn("forward", runs)
        self.assertEqual(len(gradients(m)), len(gradients(net())))


class Distributed(Same):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        torch.distributed.init_process_group("gloo", init_method=f"file://{cls.folder.name}/store", rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls) -> None:
        torch.distributed.destroy_process_group()
        cls.folder.cleanup()

    def test_ddp(self) -> None:
        for first in (True, False):
            m: nn.Module = memplan.checkpoint(net(), PLAN) if first else net()
            m = nn.parallel.DistributedDataParallel(m)
            if not first:
                memplan.checkpoint(m, PLAN)
            runs = Runs(m.module.blocks[1].up)
            self.same(gradients(net()), gradients(m))
            self.assertEqual(runs.count, 3)

    @unittest.skipIf(torch.__version__ < "2.7", "fully_shard needs a GPU before PyTorch 2.7")
    def test_fully_shard(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        for first in (True, False):
            m = net()
            if first:
                memplan.checkpoint(m, PLAN)
            for b in m.blocks:
                fully_shard(b, mesh=mesh)
            fully_shard(m, mesh=mesh)
            if not first:
                memplan.checkpoint(m, PLAN)
            runs = Runs(m.blocks[1].up)
            self.same(gradients(net()), gradients(m))
            self.assertEqual(runs.count, 3)


class Odd(Same):
    def test_not_in_a_row(self) -> None:
        """What runs between the modules of a region is kept, and said."""
        with self.assertWarnsRegex(UserWarning, "checkpointed blocks.0 to blocks.3: what the model computes between"):
            self.same(gradients(net()), gradients(memplan.checkpoint(net(), plan(["blocks.0", "blocks.3"]))))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.same(gradients(net()), gradients(memplan.checkpoint(net(), plan(["blocks.0", "blocks.1", "blocks.2"]))))

    def test_written_between(self) -> None:
        """A result that the model writes to before the next module takes it is not computed again without that."""

        class Between(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b, self.c = Block(), Block(), Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.a(x)
                with torch.no_grad():
                    y.mul_(2)
                log = Log(y)
                z = self.b(y)
                log.seen.append(z)
                return self.c(z) + log.seen[1]

        class Log:
            def __init__(self, y: torch.Tensor) -> None:
                self.seen = [y]

        torch.manual_seed(0)
        m = Between()
        want = gradients(m)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.same(want, gradients(memplan.checkpoint(m, plan(["a", "b", "c"]))))

    def test_refuses_writes(self) -> None:
        m = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
        with self.assertRaisesRegex(memplan.MemplanError, "checkpointed 1 to 2: ReLU writes to a tensor that it is given"):
            gradients(memplan.checkpoint(m, plan(["1", "2"])))
        self.same(gradients(memplan.remove(m)), gradients(memplan.checkpoint(m, plan(["0", "1", "2"]))))
        s = nn.Sequential(nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8))), nn.Linear(8, 8))
        with self.assertRaisesRegex(memplan.MemplanError, "checkpointed 0: Linear writes to its buffer 'weight_[uv]'"):
            gradients(memplan.checkpoint(s, plan(["0"])))

    def test_weights_that_hooks_compute(self) -> None:
        """A module whose hook computes another weight for each call runs again with that of the call."""

        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.utils.spectral_norm(nn.Linear(8, 8)), nn.Tanh()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.b(self.a(self.b(self.a(x))))

        torch.manual_seed(0)
        a = Twice()
        self.same(gradients(copy.deepcopy(a)), gradients(memplan.checkpoint(copy.deepcopy(a), plan(["a", "b"]))))

    def test_replaced_buffer(self) -> None:
        class Average(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(8, 8)
                self.register_buffer("mean", torch.zeros(8))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = torch.tanh(self.linear(x) - self.mean)
                self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0) + 1
                return y * self.mean

        torch.manual_seed(0)
        a = nn.Sequential(Average(), Average())
        b = memplan.checkpoint(copy.deepcopy(a), plan(["0"], ["1"]))
        self.same(gradients(a), gradients(b))
        self.same(gradients(a), gradients(b))

    def test_other_shapes_in_the_second_run(self) -> None:
        class Moody(nn.Linear):
            runs = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.runs += 1
                return super().forward(x if self.runs == 1 else x[:2]).tanh()

        with self.assertRaisesRegex(memplan.MemplanError, "do not compute the same again"):
            gradients(memplan.checkpoint(nn.Sequential(Moody(8, 8)), plan(["0"])))

    def test_skipped_modules(self) -> None:
        """Regions of which a step calls only some modules."""

        class Skips(Net):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for b in self.blocks:
                    if torch.rand(()) < 0.5:
                        x = b(x)
                return x + self.stem(x)

        torch.manual_seed(0)
        a = Skips()
        b = memplan.checkpoint(copy.deepcopy(a), plan(["blocks.0", "blocks.1", "blocks.2", "blocks.3"]))
        for seed in range(8):
            for m in (a, b):
                torch.manual_seed(seed)
                m.zero_grad()
                m(X).square().sum().backward()
            for p, q in zip(a.parameters(), b.parameters()):
                self.assertTrue(p.grad is None and q.grad is None or torch.equal(p.grad, q.grad))


if __name__ == "__main__":
    unittest.main()
