"""estimate, plan, fit, measure, compare and the runner of validate --engine torch, without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memplan
import torch
from memplan import _command, _inputs, _measure, _runner
from memplan._meter import Measurement, Meter, Phase, Step

MODELS = Path(__file__).resolve().parents[2] / "models"


def program_is_there() -> bool:
    try:
        return bool(_command.path_of_program())
    except memplan.MemplanError:
        return False


class Cuda:
    """Stands in for torch.cuda: the n-th question for the peak is answered with n MiB."""

    def __init__(self, available: bool = True) -> None:
        self.available, self.asked, self.fraction = available, 0, 1.0

    def is_available(self) -> bool:
        return self.available

    def synchronize(self) -> None: ...

    def reset_peak_memory_stats(self) -> None: ...

    def max_memory_allocated(self) -> int:
        self.asked += 1
        return self.asked << 20

    def max_memory_reserved(self) -> int:
        return self.asked << 21

    def memory_reserved(self) -> int:
        return 1 << 30

    def mem_get_info(self) -> tuple[int, int]:
        return 6 << 30, (7 << 30) + (500 << 20)

    def get_device_name(self) -> str:
        return "a card"

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _: int) -> Any:
        return SimpleNamespace(total_memory=8 << 30)

    def set_per_process_memory_fraction(self, x: float) -> None:
        self.fraction = x


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(4)))
        self.norm, self.head = torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(x)))


PLAN = {"schemaVersion": 1, "selection": [{"modules": ["blocks.1"]}], "weights": {"head.weight": [5, 16]}}


class Settings(unittest.TestCase):
    def test_flags(self) -> None:
        got = _command.flags({"batch": 4, "alloc_conf": None, "hold_outputs": True, "freeze": ["a", "b"], "dim": {"seq": 3}, "times": Path("x")})
        self.assertEqual(got, ["--batch=4", "--hold-outputs=true", "--freeze=a", "--freeze=b", "--dim=seq=3", "--times=x"])

    def test_resized(self) -> None:
        x = torch.arange(6).view(3, 2)
        args, kwargs = _inputs.resized(((x, torch.ones(7)), {"y": [x]}), 3, 5)
        self.assertEqual(args[0].tolist(), [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]])
        self.assertEqual((args[1].shape[0], kwargs["y"][0].shape[0]), (7, 5))


@unittest.skipUnless(program_is_there(), "needs the program memplan, in the package or on the PATH")
class Answers(unittest.TestCase):
    def test_estimate_of_a_file(self) -> None:
        """The objects are the command's own numbers."""
        model = str(MODELS / "resnet50.onnx")
        e = memplan.estimate(model, batch=8, gpu="t4", precision="amp-fp16", optimizer="sgd")
        said = subprocess.run([_command.path_of_program(), "analyze", model, "--batch=8", "--gpu=t4", "--precision=amp-fp16", "--optimizer=sgd", "--format=json"], capture_output=True, check=True)
        doc = json.loads(said.stdout)
        self.assertEqual((e.peak.allocated_bytes, e.peak.reserved_bytes, e.peak.upper_bound_bytes, e.fits), (doc["peak"]["allocatedBytes"], doc["peak"]["reservedBytes"], doc["peak"]["upperBoundBytes"], doc["fits"]))
        self.assertEqual([(w.code, w.message) for w in e.warnings], [(w["code"], w["message"]) for w in doc["warnings"]])
        self.assertEqual(e.interval, (doc["uncertainty"]["lowBytes"], doc["uncertainty"]["highBytes"]))
        whole, rest = e.modules[0], [m for m in e.modules if m.name in ("layer1", "layer2", "layer3", "layer4")]
        self.assertEqual((whole.name, len(rest)), ("", 4))
        self.assertLessEqual(sum(m.bytes for m in rest), whole.bytes)

    def test_errors_are_the_commands(self) -> None:
        with self.assertRaisesRegex(memplan.MemplanError, 'unknown precision "fp9"'):
            memplan.estimate(str(MODELS / "mlp.onnx"), batch=2, precision="fp9")
        with self.assertRaisesRegex(memplan.MemplanError, "nowhere.onnx"):
            memplan.estimate("nowhere.onnx", batch=2)

    def test_fit(self) -> None:
        model, x = Net().eval(), torch.randn(2, 16)
        before = {n: t.clone() for n, t in model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            file, out = os.path.join(folder, "net.onnx"), os.path.join(folder, "plan.json")
            free = memplan.estimate(model, x, path=file, batch=1 << 20)
            self.assertFalse(model.training)
            fitted = memplan.fit(model, x, vram=free.peak.process_bytes - (40 << 20), batch=1 << 20, output=out, headroom=0)
            self.assertTrue(fitted.regions)
            self.assertIn("checkpointed region", str(fitted))
            self.assertEqual(fitted.plan.path, out)
            bare = Net()
            bare.load_state_dict(before)
            memplan.checkpoint(bare, out)
            for m in (model, bare):
                m.train()(x).sum().backward()
            for (n, p), q in zip(model.named_parameters(), bare.parameters()):
                self.assertTrue(torch.equal(p.grad, q.grad), n)

            memplan.remove(model)
            with self.assertRaisesRegex(memplan.DoesNotFit, r"batch 1048576 does not fit 1G: it takes .* the largest batch that fits is \d+") as caught:
                memplan.fit(model, x, vram="1G", batch=1 << 20)
            e = caught.exception
            self.assertIsNotNone(e.batch)
            self.assertTrue(memplan.fit(model, x, vram="1G", batch=e.batch).plan.fits)


class Measured(unittest.TestCase):
    def test_no_gpu(self) -> None:
        if torch.cuda.is_available():
            self.skipTest("there is a GPU")
        with self.assertRaisesRegex(memplan.MemplanError, "no GPU here"):
            memplan.measure(Net(), torch.randn(2, 16))

    def test_steps(self) -> None:
        """Phases in order, and every precision and optimizer that the processor runs."""
        for precision, optimizer, loss in (("fp32", "adamw", "auto"), ("amp-bf16", "sgd-momentum", "sum"), ("bf16", "adam", "mse"), ("fp32", lambda p: torch.optim.SGD(p, 0.1), lambda y: y.mean())):
            run = _measure._Run(Net(), loss, optimizer, precision)
            m = run.steps(((torch.randn(6, 16),), {}), 4, Meter(Cuda()), torch.device("cpu"))
            self.assertEqual([[p.allocated_bytes >> 20 for p in s.phases] for s in m.steps], [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]])
            self.assertEqual((m.batch, len(m.loss), m.context_bytes, m.allocated_bytes, m.process_bytes), (6, 4, 500 << 20, 12 << 20, (24 << 20) + (500 << 20)))
            self.assertEqual([p.name for p in m.phases], ["forward", "backward", "optimizer"])

    def test_unknown_names(self) -> None:
        for kw, said in ((dict(precision="fp9"), "precision 'fp9'"), (dict(optimizer="lion"), "optimizer 'lion'"), (dict(loss="hinge"), "loss 'hinge'")):
            with self.assertRaisesRegex(memplan.MemplanError, said):
                _measure._Run(Net(), **{"loss": "auto", "optimizer": "adamw", "precision": "fp32", **kw})

    def test_model_is_as_it_was(self) -> None:
        model = Net()
        model.head.weight.requires_grad_(False)
        model(torch.randn(3, 16)).sum().backward()
        before = {n: t.clone() for n, t in model.state_dict().items()}
        grads, modes = [p.grad for p in model.parameters()], [m.training for m in model.modules()]
        with _measure._restored(model):
            _measure._Run(model, "sum", "sgd", "bf16").steps(((torch.randn(6, 16),), {}), 2, Meter(Cuda()), torch.device("cpu"))
            self.assertEqual(model.head.weight.dtype, torch.bfloat16)
        for n, t in model.state_dict().items():
            self.assertTrue(torch.equal(t, before[n]) and t.dtype == before[n].dtype, n)
        self.assertTrue(all(a is b for a, b in zip(grads, (p.grad for p in model.parameters()))))
        self.assertEqual(modes, [m.training for m in model.modules()])

    def test_compare(self) -> None:
        from memplan._estimate import Peak, Phases, Plan, Time

        plan = Plan(Peak(0, 90 << 20, 100 << 20, 600 << 20, 110 << 20), phases=Phases(forward_peak=50 << 20, backward_peak=90 << 20, optimizer_peak=20 << 20), time=Time(1, 2, 3, 6, 0))
        step = Step((Phase("forward", 40 << 20, 80 << 20, 2.0), Phase("backward", 100 << 20, 108 << 20, 4.0), Phase("optimizer", 20 << 20, 108 << 20, 6.0)))
        c = memplan.compare(plan, Measurement("a card", "2.11", (step,) * 4, 500 << 20))
        self.assertEqual({r.name: round(100 * r.off, 1) for r in c.rows}, {"allocated": -10.0, "reserved": -7.4, "process": -1.3, "forward peak": 25.0, "backward peak": -10.0, "optimizer peak": 0.0,
                                                                           "forward time": -50.0, "backward time": -50.0, "optimizer time": -50.0, "step time": -50.0})
        self.assertTrue(c.within)
        self.assertIn("100 MiB", str(c))


SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
from test_fit import Net
torch.manual_seed(0)
model = Net()
other = torch.nn.Linear(3, 3)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu")
print("printed by the script", sys.argv)
with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):  # as an export calls it
    assert type(model(torch.randn(5, 16))).__name__ == "FakeTensor"
    assert all("forward" not in m.__dict__ for m in model.modules())
for i in range(100):
    other(torch.randn(2, 3))
    optimizer.zero_grad()
    for _ in range(2):
        scaler.scale(model(torch.randn(6, 16)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
raise SystemExit("ran to its end")
"""


class Runner(unittest.TestCase):
    def script(self, text: str) -> str:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "train.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(text).format(tests=str(Path(__file__).resolve().parent)))
        return path

    def run_job(self, cuda: Any = None, **job: Any) -> dict[str, Any]:
        argv, path = sys.argv, list(sys.path)
        self.addCleanup(lambda: (setattr(sys, "argv", argv), sys.path.__setitem__(slice(None), path)))
        return _runner.run({"plan": PLAN, "steps": 3, "capBytes": 0, "script": "", "call": "", **job}, cuda or Cuda())

    def test_script(self) -> None:
        """Three steps of two backward passes each; exports and other models are left alone; nothing stays patched."""
        call, backward = torch.nn.Module.__call__, torch.autograd.backward
        cuda = Cuda()
        got = self.run_job(cuda, script=self.script(SCRIPT), capBytes=4 << 30)
        self.assertNotIn("error", got)
        self.assertEqual((got["batch"], got["device"], cuda.fraction), (6, "a card", 0.5))
        self.assertEqual([[p["allocatedBytes"] >> 20 for p in s] for s in got["steps"]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
        self.assertIs(torch.nn.Module.__call__, call)
        self.assertIs(torch.autograd.backward, backward)

    def test_call(self) -> None:
        self.assertEqual(len(self.run_job(call="test_fit:trains")["steps"]), 3)

    def test_errors(self) -> None:
        for said, job in {
            "no GPU here": dict(cuda=Cuda(available=False)),
            "no such file": dict(script="nowhere.py"),
            "No module named 'nowhere'": dict(call="nowhere:main"),
            "the plan is for another model": dict(script=self.script(SCRIPT), plan={**PLAN, "weights": {"head.weight": [7, 7]}}),
            "raised ZeroDivisionError: division by zero (train.py:1)": dict(script=self.script("1 / 0")),
            "ended before an optimizer's first step": dict(script=self.script("print()")),
            "ended itself (ran out)": dict(script=self.script("raise SystemExit('ran out')")),
        }.items():
            with self.subTest(said):
                self.assertIn(said, self.run_job(**job)["error"])

    def test_out_of_memory(self) -> None:
        got = self.run_job(script=self.script("import torch\nraise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB.')"))
        self.assertEqual((got["outOfMemory"], got["steps"]), ("CUDA out of memory. Tried to allocate 2 GiB.", []))


def trains() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(9):
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    unittest.main()
