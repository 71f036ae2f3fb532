"""What memplan config writes, loaded and applied by the frameworks' own code: the modules that run again are those that memplan predicts.

Each test needs its library (requirements-frameworks.txt, where pip has a wheel that runs on the processor) and is skipped without it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib.util
import io
import json
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from collections import Counter
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import torch
import yaml
from torch import nn

import memplan
from memplan.__main__ import program

ROOT = Path(__file__).resolve().parent.parent.parent


def needs(*modules: str) -> Callable[[Any], Any]:
    """Skips a test where a library is not installed."""

    def there(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # the package that it lies in
            return False

    missing = [m for m in modules if not there(m)]
    return unittest.skipIf(bool(missing), f"not installed: {', '.join(missing)}")


@functools.lru_cache(None)
def folder() -> Path:
    """A folder for this run with the models in it, so that plans may name them."""
    to = Path(tempfile.mkdtemp())
    unittest.addModuleCleanup(shutil.rmtree, to)
    (to / "llama.onnx").write_bytes(lzma.decompress((ROOT / "planner/testdata/llama.onnx.xz").read_bytes()))
    (to / "models").mkdir()
    shutil.copy(ROOT / "models/gpt2.onnx", to / "models")
    return to


@functools.lru_cache(None)
def command() -> str:
    """The command: the installed package's, or built from the sources beside it."""
    if os.path.exists(program()):
        return program()
    if shutil.which("go") is None:
        raise unittest.SkipTest("the command is not installed and there is no Go to build it")
    out = str(folder() / "memplan")
    subprocess.run(["go", "build", "-o", out, "./cmd/memplan"], cwd=ROOT, check=True)
    return out


def run(*args: str) -> tuple[str, str]:
    """What the command prints."""
    r = subprocess.run([command(), *args], cwd=folder(), capture_output=True, text=True, check=False)
    if r.returncode:
        raise AssertionError(f"memplan {shlex.join(args)}: exit {r.returncode}: {r.stderr}")
    return r.stdout, r.stderr


@functools.lru_cache(None)
def plan(*flags: str) -> str:
    """A plan of the small Llama under a budget that it does not fit without checkpoints."""
    name = f"plan{len(list(folder().glob('plan*')))}.json"
    run("plan", "llama.onnx", "--batch", "4096", *flags, "-o", name)
    return name


TIGHT = ("--vram", "3500M")  # half of the layers or more
LOOSE = ("--vram", "4500M")


class Written:
    """A configuration, and what memplan predicts of it."""

    def __init__(self, to: str, *flags: str) -> None:
        self.plan = plan(*(flags or TIGHT))
        self.text, said = run("config", self.plan, "--to", to)
        self.verdict = said.strip()
        m = re.match(r"(\S+): (\S+) checkpoints", self.verdict)
        assert m, said
        self.setting = f"{m[1]}:{m[2]}"
        self.question = json.loads((folder() / self.plan).read_text())["config"]
        given = ["--batch", "4096", "--vram", str(self.question["vramBytes"]), "--precision", self.question["precision"], "--optimizer", self.question["optimizer"]]
        self.report = json.loads(run("analyze", "llama.onnx", *given, "--checkpoint", self.setting, "--format", "json")[0])
        self.segments = self.report["checkpoint"]["segments"]

    def again(self, op: str) -> int:
        """How many calls of an operator run again, where all regions make the same that are known."""
        return sum(s["of"] - len(s["calls"]) for r in self.segments for s in r.get("save", []) if s["op"] == op)


def llama() -> Any:
    """The model of llama.onnx."""
    import transformers

    torch.manual_seed(0)
    c = transformers.LlamaConfig(num_hidden_layers=4, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=4, vocab_size=100, max_position_embeddings=64, use_cache=False)
    return transformers.LlamaForCausalLM(c).train()


IDS = torch.arange(20).reshape(2, 10)


def bare(name: str) -> str:
    return name.replace("._checkpoint_wrapped_module", "").replace("_checkpoint_wrapped_module.", "")


class Observed:
    """Counts the calls of every module that has no modules in it."""

    def __init__(self, model: nn.Module) -> None:
        self.leaves = {bare(n): m for n, m in model.named_modules() if not list(m.children())}
        self.calls: Counter[str] = Counter()
        for n, m in self.leaves.items():
            m.register_forward_pre_hook(functools.partial(self.note, n))

    def note(self, name: str, *_: Any) -> None:
        self.calls[name] += 1


class Frameworks(unittest.TestCase):
    def same(self, w: Written, seen: Observed, prefix: str = "") -> None:
        """The modules that ran again are those of the predicted regions, and no others; once for each region around them."""
        want = {n: 1 + sum(any((prefix + n).startswith(m + ".") or prefix + n == m for m in s["modules"]) for s in w.segments) for n in seen.leaves if seen.calls[n]}
        self.assertEqual({n: c for n, c in seen.calls.items()}, want, w.verdict)
        self.assertIn(2, want.values())
        self.assertRegex(w.verdict, r"which costs (no more|[\d.]+% (more|less)) time than the plan and peaks (as high|[\d.]+ .?i?B (higher|lower))$")

    def step(self, model: Any) -> None:
        model(input_ids=IDS, labels=IDS).loss.backward()

    def read_back(self, w: Written, name: str, *given: str) -> None:
        """--config reads the file as it was meant."""
        (folder() / name).write_text(w.text)
        got = json.loads(run("analyze", "llama.onnx", "--vram", str(w.question["vramBytes"]), "--config", name, *given, "--format", "json")[0])
        self.assertEqual(got["peak"], w.report["peak"])
        self.assertEqual(got["config"]["checkpoint"], w.setting)

    @needs("transformers", "accelerate")
    def test_transformers(self) -> None:
        """Trainer runs a step with the arguments."""
        import transformers

        for flags in (TIGHT, LOOSE, (*LOOSE, "--precision", "amp-bf16", "--optimizer", "adamw-fused")):
            w = Written("huggingface", *flags)
            model = llama()
            seen = Observed(model)
            with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
                args = transformers.TrainingArguments(output_dir=out, use_cpu=True, max_steps=1, report_to=[], disable_tqdm=True, logging_strategy="no", save_strategy="no", **json.loads(w.text))
                self.assertEqual(args.per_device_train_batch_size, 4096)
                transformers.Trainer(model, args, train_dataset=[{"input_ids": x, "labels": x} for x in IDS]).train()
            self.same(w, seen)
            self.read_back(w, "training_args.json")

    @needs("transformers", "axolotl")
    def test_axolotl(self) -> None:
        """The schema takes the file, and what the loader does with it is done."""
        from axolotl.monkeypatch.selective_checkpointing import apply_selective_checkpointing
        from axolotl.utils.schemas.config import AxolotlInputConfig

        for flags in (TIGHT, LOOSE):
            w = Written("axolotl", *flags)
            cfg = AxolotlInputConfig(base_model="x", learning_rate=1e-4, datasets=[{"path": "x", "type": "alpaca"}], **yaml.safe_load(w.text))
            self.assertEqual((cfg.micro_batch_size, cfg.gradient_accumulation_steps), (4096, 1))
            model = llama()
            seen = Observed(model)
            self.assertTrue(cfg.gradient_checkpointing)
            if cfg.selective_checkpointing:
                apply_selective_checkpointing(model, save=cfg.selective_checkpointing.save)
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=cfg.gradient_checkpointing_kwargs)
            mm, attention = calls(lambda: self.step(model), "aten::mm", "aten::_scaled_dot_product_flash_attention_for_cpu")
            self.same(w, seen)
            self.kept(w, mm, attention)
            self.read_back(w, "axolotl.yml")

    def kept(self, w: Written, mm: int, attention: int) -> None:
        """Products and attention run again where the plan keeps them not. A Llama makes 7 products a layer and one for its head; the last
        of a layer saves nothing that its input has not, so PyTorch stops before it."""
        forward = 4 * 7 + 1
        saves = {s["op"] for r in w.segments for s in r.get("save", [])}
        again = w.again("aten.mm") if "aten.mm" in saves else 4 * 6
        self.assertEqual(mm, 3 * forward + again, w.verdict)
        self.assertEqual(attention, 4 if any("attention" in op for op in saves) else 8, w.verdict)

    @needs("transformers", "torchtitan", "tyro")
    def test_torchtitan(self) -> None:
        """The arguments are parsed as torchtitan parses them, and the policy that they choose is applied."""
        for flags in (TIGHT, LOOSE):
            w = Written("torchtitan", *flags)
            config = titan_config(w.text.split())
            self.assertEqual((config.training.local_batch_size, config.training.dtype, config.training.mixed_precision_param), (4096, "float32", "float32"))
            model = llama()
            config.activation_checkpoint.build().apply(model.model)
            seen = Observed(model)
            mm, attention = calls(lambda: self.step(model), "aten::mm", "aten::_scaled_dot_product_flash_attention_for_cpu")
            self.same(w, seen)
            if "selective" in w.setting:  # its list has no attention of the processor's
                self.kept(w, mm, 4)
            self.read_back(w, "titan.txt")

    def applied_by_lightning(self, strategy: Any) -> Observed:
        from lightning.fabric.strategies.fsdp import _setup_activation_checkpointing

        model = llama()
        _setup_activation_checkpointing(model, strategy._activation_checkpointing_kwargs)
        seen = Observed(model)
        self.step(model)
        return seen

    @needs("transformers", "lightning")
    def test_lightning(self) -> None:
        """The script runs, and its strategy does what it does before it shards, for Trainer and for Fabric."""
        import lightning

        for flags in (TIGHT, LOOSE):
            w = Written("lightning", *flags)
            for text in (w.text, w.text.replace("lightning.pytorch.strategies", "lightning.fabric.strategies")):
                names: dict[str, Any] = {}
                with mock.patch.object(lightning, "Trainer") as trainer:  # a real one wants GPUs
                    exec(text, names)
                self.assertEqual(trainer.call_args.kwargs, {"strategy": names["strategy"], "precision": "32-true", "accumulate_grad_batches": 1})
                self.same(w, self.applied_by_lightning(names["strategy"]))

    @needs("transformers", "lightning", "jsonargparse")
    def test_lightning_cli(self) -> None:
        """LightningCLI's parser reads the file, and makes the strategy."""
        from lightning.pytorch.cli import LightningArgumentParser
        from lightning.pytorch.trainer import Trainer

        for flags in (TIGHT, LOOSE):
            w = Written("lightning-cli", *flags)
            parser = LightningArgumentParser()
            parser.add_lightning_class_args(Trainer, "trainer")
            (folder() / "trainer.yml").write_text(w.text)
            cfg = parser.parse_path(str(folder() / "trainer.yml"))
            with mock.patch("lightning.pytorch.trainer.connectors.accelerator_connector._AcceleratorConnector._check_strategy_and_fallback"):  # it wants GPUs
                made = parser.instantiate_classes(cfg)
            self.assertEqual((made.trainer.precision, made.trainer.accumulate_grad_batches), ("32-true", 1))
            self.same(w, self.applied_by_lightning(made.trainer.strategy))
            self.read_back(w, "trainer.yml", "--batch", "4096")

    @needs("transformers", "accelerate")
    def test_accelerate(self) -> None:
        """accelerate launch turns the file into its environment, from which the plugin is made that checkpoints."""
        from accelerate import FullyShardedDataParallelPlugin
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser
        from accelerate.utils.fsdp_utils import fsdp2_apply_ac
        from accelerate.utils.launch import prepare_multi_gpu_env

        for flags in (TIGHT, LOOSE):
            w = Written("fsdp", *flags)
            (folder() / "accelerate.yaml").write_text(w.text)
            args = launch_command_parser().parse_args(["--config_file", str(folder() / "accelerate.yaml"), "--num_processes", "2", "train.py"])
            args, _, _ = _validate_launch_command(args)
            with mock.patch.dict(os.environ, prepare_multi_gpu_env(args)):
                plugin = FullyShardedDataParallelPlugin()
            self.assertTrue(plugin.activation_checkpointing)
            self.assertEqual(args.mixed_precision, "no")
            plugin.set_auto_wrap_policy(model := llama())
            fsdp2_apply_ac(types.SimpleNamespace(state=types.SimpleNamespace(fsdp_plugin=plugin)), model)
            seen = Observed(model)
            self.step(model)
            self.same(w, seen)
            self.read_back(w, "accelerate.yaml", "--batch", "4096")

    @needs("transformers", "megatron.core")
    def test_megatron(self) -> None:
        """TransformerConfig takes the arguments, and TransformerBlock runs layers as they say."""
        from megatron.core.transformer import transformer_block
        from megatron.core.transformer.transformer_config import TransformerConfig

        def checkpoint(f: Any, _: Any, *args: Any) -> Any:  # Megatron's own keeps random numbers of GPUs
            return torch.utils.checkpoint.checkpoint(f, *args, use_reentrant=False)

        for flags in (TIGHT, LOOSE, ("--vram", "3G")):
            w = Written("megatron", *flags)
            words = w.text.replace("--", "").split()
            given = dict(zip(words[::2], words[1::2]))
            self.assertEqual(given["micro-batch-size"], "4096")
            config = TransformerConfig(
                num_layers=4, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True, recompute_granularity=given["recompute-granularity"],
                recompute_method=given["recompute-method"], recompute_num_layers=int(given["recompute-num-layers"]))  # fmt: skip
            model = llama()
            seen = Observed(model)
            layers = model.model.layers
            x = model.model.embed_tokens(IDS)
            rotary = model.model.rotary_emb(x, torch.arange(IDS.shape[1])[None])

            def layer(i: int) -> Any:
                return lambda hidden_states, context, **_: (layers[i](hidden_states, position_embeddings=rotary), context)

            block = types.SimpleNamespace(config=config, num_layers_per_pipeline_rank=4, _get_layer=layer, pg_collection=None)
            with mock.patch.object(transformer_block.tensor_parallel, "checkpoint", checkpoint):
                out = transformer_block.TransformerBlock._checkpointed_forward(block, x, None, None, None, None, None, None, False)
            out = out[0] if isinstance(out, tuple) else out
            model.lm_head(model.model.norm(out)).sum().backward()
            self.same(w, seen)
            self.read_back(w, "megatron.txt")

    @needs("deepspeed")
    def test_deepspeed(self) -> None:
        """Where nothing is checkpointed, DeepSpeed takes the file; else it is refused, and says what to do."""
        from deepspeed.runtime.config import DeepSpeedConfig

        fits = plan("--vram", "16G", "--precision", "bf16")
        text, said = run("config", fits, "--to", "deepspeed")
        self.assertEqual(said.strip(), "deepspeed: nothing is checkpointed")
        cfg = DeepSpeedConfig(json.loads(text))
        self.assertEqual((cfg.train_micro_batch_size_per_gpu, cfg.gradient_accumulation_steps, cfg.bfloat16_config.enabled), (4096, 1, True))
        (folder() / "ds.json").write_text(text)
        got = json.loads(run("analyze", "llama.onnx", "--vram", "16G", "--config", "ds.json", "--format", "json")[0])
        self.assertEqual(got["peak"], json.loads((folder() / fits).read_text())["peak"])
        with self.assertRaisesRegex(AssertionError, "exit 2: .*deepspeed cannot express the plan: its configuration checkpoints nothing by itself"):
            run("config", plan(*TIGHT), "--to", "deepspeed")


GPT2 = ("plan", "models/gpt2.onnx", "--batch", "48", "--vram", "16G", "-o", "plan.json")  # the README's


@functools.lru_cache(None)
def readme_plan() -> dict[str, Any]:
    """What the README's command writes."""
    assert f"memplan {shlex.join(GPT2)}\n" in README
    run(*GPT2)
    return json.loads((folder() / "plan.json").read_text())


README = (ROOT / "README.md").read_text(encoding="utf-8")


def module(path: Path) -> Any:
    """A module from a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    return m


class WholePlans(unittest.TestCase):
    @needs("transformers")
    def test_readme(self) -> None:
        """The README's Python applies the README's plan to the model that it names, and so does the file of --to python."""
        import transformers

        plan = readme_plan()
        text = next(t for t in re.findall(r"```python\n(.*?)```", README, re.S) if "GPT2LMHeadModel" in t)
        (folder() / "applied.py").write_text(run("config", "plan.json", "--to", "python")[0])
        names: dict[str, Any] = {}
        with contextlib.chdir(folder()):
            torch.manual_seed(0)
            exec(text, names)
        model = names["model"]
        self.assertIs(type(model), transformers.GPT2LMHeadModel)
        applied = memplan.remove(copy.deepcopy(model.train()))
        plain = copy.deepcopy(applied)
        module(folder() / "applied.py").apply(applied)
        want = gradients(plain)
        for m in (model, applied):
            seen = Observed(m)
            for a, b in zip(want, gradients(m)):
                self.assertTrue(torch.equal(a, b))
            regions = [n for s in plan["selection"] for n in s["modules"]]
            again = {n: 1 + any(("m." + n).startswith(r + ".") for r in regions) for n in seen.leaves if seen.calls[n]}
            self.assertEqual(dict(seen.calls), again)
            self.assertGreater(len(regions), 4)

    def test_python_stands_alone(self) -> None:
        """The file needs PyTorch alone, and refuses another model."""
        readme_plan()
        (folder() / "alone.py").write_text(run("config", "plan.json", "--to", "python")[0])
        code = "import sys; sys.modules['memplan'] = None; import torch, alone\ntry: alone.apply(torch.nn.Linear(2, 2))\nexcept alone.MemplanError as e: print(e)"
        r = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=folder(), capture_output=True, text=True, check=False)
        self.assertRegex(r.stdout, "^the plan is for another model", r.stderr)

    @needs("jax")
    def test_jax(self) -> None:
        """Regions of a GPT-2 in JAX save what the plan keeps, and run again what it does not."""
        import jax

        plan = readme_plan()
        (folder() / "policies.py").write_text(run("config", "plan.json", "--to", "jax")[0])
        policies = module(folder() / "policies.py")
        weights, x = gpt2_weights(), jax.random.normal(jax.random.key(1), (2, 6, 8))
        with_plan, without = (functools.partial(jax_gpt2, remat, policies.keep) for remat in (policies.remat, lambda _, f: f))
        for a, b in zip(jax.tree.leaves(jax.grad(with_plan)(weights, x)), jax.tree.leaves(jax.grad(without)(weights, x))):
            self.assertTrue(jax.numpy.allclose(a, b, rtol=1e-4, atol=1e-6))
        of = {"aten.addmm": 4, "aten.bmm": 2}
        kept = {(s["modules"][0], o["op"]): len(o["calls"]) for s in plan["selection"] for o in s["save"]}
        again = sum(n - kept.get((s["modules"][0], op), 0) for s in plan["selection"] for op, n in of.items())
        self.assertEqual(products(jax.make_jaxpr(jax.grad(with_plan))(weights, x)) - products(jax.make_jaxpr(jax.grad(without))(weights, x)), again)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            jax.ad_checkpoint.print_saved_residuals(with_plan, weights, x)
        names = {f"{s['modules'][0]}/{o['op'].removeprefix('aten.')}.{n}" for s in plan["selection"] for o in s["save"] for n in o["calls"]}
        saved = set(re.findall(r"named '([^']+)'", said.getvalue()))
        # JAX saves nothing that its backward pass does not read, such as the result of a block's last product
        self.assertLessEqual(saved, names)
        self.assertGreater(len(saved), len(names) / 2)
        with self.assertRaisesRegex(ValueError, r"m.transformer.h.0: keep\(\) saw 3 results of addmm, the plan was made for 4"):
            jax_gpt2(policies.remat, lambda v, op: v if op == "addmm" and v.shape[-1] == 32 else policies.keep(v, op), weights, x)


def gradients(model: Any) -> list[torch.Tensor]:
    def on_gpu(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(x, p, training)[0]  # the operator that F.dropout calls there, and plans name

    torch.manual_seed(1)
    model.zero_grad()
    with mock.patch("torch.nn.functional.dropout", on_gpu):
        model(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def gpt2_weights() -> Any:
    """Of twelve blocks 8 wide."""
    import jax

    def block(key: Any) -> Any:
        shapes = [(8, 24), (8, 8), (8, 32), (32, 8)]
        return [(jax.random.normal(k, s) / 3, jax.numpy.zeros(s[1])) for k, s in zip(jax.random.split(key, 4), shapes)]

    return [block(k) for k in jax.random.split(jax.random.key(0), 12)]


def jax_gpt2(remat: Any, keep: Any, weights: Any, x: Any) -> Any:
    """Blocks of transformers' GPT-2, operator by operator as PyTorch calls them; dropout keeps everything."""
    import jax
    import jax.numpy as jnp

    def norm(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        rstd = jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
        y, _, _ = keep(((x - mean) * rstd, mean, rstd), "native_layer_norm")
        return y

    def dropout(x: Any) -> Any:
        mask = jnp.ones_like(x)
        return keep((x * mask, mask), "native_dropout")[0]

    def gelu(x: Any) -> Any:
        cube = keep(x**3, "pow")
        inner = keep(keep(cube * 0.044715, "mul") + x, "add") * 0.7978845608
        t = keep(jnp.tanh(keep(inner, "mul")), "tanh")
        return keep(keep(x * 0.5, "mul") * (1 + t), "mul")

    def block(w: Any, x: Any) -> Any:
        linear = lambda x, i: keep(x @ w[i][0] + w[i][1], "addmm")  # noqa: E731
        q, k, v = jnp.split(linear(norm(x), 0), 3, -1)
        scores = keep(keep(jnp.einsum("bqd,bkd->bqk", q, k), "bmm") * 8**-0.5, "mul")
        p = dropout(keep(jax.nn.softmax(scores), "_softmax"))
        x = x + dropout(linear(keep(jnp.einsum("bqk,bkd->bqd", p, v), "bmm"), 1))
        return x + dropout(linear(gelu(linear(norm(x), 2)), 3))

    for i, w in enumerate(weights):
        x = remat(f"m.transformer.h.{i}", block)(w, x)
    return (x**2).sum()


def products(jaxpr: Any) -> int:
    """How many products a program makes, those in programs within it too."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    count = 0
    for e in jaxpr.eqns:
        count += e.primitive.name == "dot_general"
        for v in e.params.values():
            for sub in v if isinstance(v, (tuple, list)) else (v,):
                if hasattr(sub, "eqns") or hasattr(sub, "jaxpr"):
                    count += products(sub)
    return count


def titan_config(args: list[str]) -> Any:
    """torchtitan's configuration from arguments: that of a model of its own, or, where its models want a newer PyTorch, of the tables that all have."""
    import tyro
    from torchtitan.config.configs import TrainingConfig
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.activation_checkpoint import ActivationCheckpointingConfig, SelectiveAC

    try:
        return ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel", *args])
    except ImportError:
        tables = [("training", TrainingConfig, dataclasses.field(default_factory=TrainingConfig)), ("activation_checkpoint", ActivationCheckpointingConfig, dataclasses.field(default_factory=SelectiveAC.Config))]
        return tyro.cli(dataclasses.make_dataclass("Config", tables), args=args)


def calls(step: Callable[[], None], *ops: str) -> list[int]:
    """How often operators run in a step; what a policy has kept does not run again."""
    from torch.utils._python_dispatch import TorchDispatchMode

    count: Counter[str] = Counter()

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            count[func.name()] += 1
            return func(*args, **(kwargs or {}))

    with Counts():
        step()
    return [count[op] for op in ops]


if __name__ == "__main__":
    unittest.main()
