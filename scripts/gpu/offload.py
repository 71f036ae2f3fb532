#!/usr/bin/env python3
"""Measures on a GPU what `memplan plan --offload activations` predicts: peaks, step time and pinned memory of six models.

    python3 scripts/gpu/offload.py plan FOLDER --gpu h100 [--memplan memplan]     # with torch 2.11, onnx and onnxscript, no GPU
    python3 scripts/gpu/offload.py run FOLDER                                     # on the card, with torch alone
    python3 scripts/gpu/offload.py compare FOLDER [--memplan memplan]             # no GPU: predicted beside measured

`plan` exports each model with memplan.export and writes NAME.onnx, plain.NAME.json, NAME.json (the plan for part of the plain peak: modules on the
host, nothing computed again) and joint.NAME.json (host and recomputation). Only the folder and python/memplan/_checkpoint.py travel to the card. `run`
writes FOLDER/measured.jsonl, one line a run, each in a process of its own: plain, and under both plans. `compare` asks memplan again with the
bandwidth that the card reached. `run --device cpu --small` tries everything and measures nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
WARM, TIMED = 4, 5  # steps
SHARES = (0.6, 0.7, 0.8, 0.9)  # of the plain step's memory besides the context that a plan may take: the first that modules on the host reach


class Bottleneck(nn.Module):
    def __init__(self, c: int, width: int, stride: int) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(c, width, 1, bias=False), nn.BatchNorm2d(width)
        self.c2, self.b2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.c3, self.b3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(c, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)) if stride > 1 or c != 4 * width else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.b1(self.c1(x)))
        y = self.relu(self.b2(self.c2(y)))
        y = self.b3(self.c3(y))
        return self.relu(y + (x if self.down is None else self.down(x)))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, c = [], 64
        for i, n in enumerate((3, 4, 6, 3)):
            for k in range(n):
                blocks.append(Bottleneck(c, 64 << i, 2 if k == 0 and i else 1))
                c = 256 << i
        self.blocks, self.fc = nn.ModuleList(blocks), nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.fc(x.mean((2, 3)))


class ConvNeXtBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.dw, self.norm, self.up, self.down = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.full((c, 1, 1), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        return x + self.scale * self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class ConvNeXtTiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths, parts, c = (96, 192, 384, 768), [], 3
        for i, n in enumerate((3, 3, 9, 3)):
            parts += [nn.Conv2d(c, widths[i], 4 if i == 0 else 2, 4 if i == 0 else 2), *(ConvNeXtBlock(widths[i]) for _ in range(n))]
            c = widths[i]
        self.parts, self.fc = nn.ModuleList(parts), nn.Linear(768, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for p in self.parts:
            x = p(x)
        return self.fc(x.mean((2, 3)))


class Layer(nn.Module):
    """A transformer's layer, normalised before (GPT-2, ViT) or after (BERT) its parts."""

    def __init__(self, d: int, heads: int, causal: bool, after: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.after = heads, causal, after
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (y.reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(x).split(d, 2))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(b, t, d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.after:
            x = self.n1(x + self.mix(x))
            return self.n2(x + self.down(F.gelu(self.up(x))))
        x = x + self.mix(self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Text(nn.Module):
    def __init__(self, words: int, d: int, layers: int, heads: int, most: int, causal: bool, after: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, d), nn.Embedding(most, d)
        self.layers = nn.ModuleList(Layer(d, heads, causal, after) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.places = nn.Conv2d(3, 768, 16, 16), nn.Parameter(torch.zeros(1, 196, 768))
        self.layers = nn.ModuleList(Layer(768, 12, False, False) for _ in range(12))
        self.norm, self.fc = nn.LayerNorm(768), nn.Linear(768, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.fc(self.norm(x).mean(1))


class LlamaLayer(nn.Module):
    def __init__(self, d: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(d, inner, bias=False), nn.Linear(d, inner, bias=False), nn.Linear(inner, d, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        y = self.n1(x)
        q, k, v = (f(y).view(b, t, self.heads, d // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (z * cos + torch.cat((-z[..., z.shape[-1] // 2 :], z[..., : z.shape[-1] // 2]), -1) * sin for z in (q, k))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, words: int = 32000, d: int = 2048, layers: int = 8, heads: int = 16, inner: int = 5632, most: int = 2048) -> None:
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(words, d), nn.RMSNorm(d), nn.Linear(d, words, bias=False)
        self.layers = nn.ModuleList(LlamaLayer(d, heads, inner) for _ in range(layers))
        at = torch.outer(torch.arange(most).float(), 10000.0 ** (-torch.arange(0, d // heads, 2).float() / (d // heads)))
        self.register_buffer("cos", torch.cat((at, at), 1).cos())
        self.register_buffer("sin", torch.cat((at, at), 1).sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, t = self.tokens(ids), ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.head(self.norm(x))


# Builder, shape of the input (of tokens if it has two dims), number of classes.
MODELS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "resnet50": (ResNet50, (128, 3, 224, 224), 1000),
    "vit_b_16": (ViT, (128, 3, 224, 224), 1000),
    "gpt2": (lambda: Text(50257, 768, 12, 12, 1024, True, False), (8, 1024), 50257),
    "bert_base": (lambda: Text(30522, 768, 12, 12, 512, False, True), (32, 512), 30522),
    "convnext_tiny": (ConvNeXtTiny, (128, 3, 224, 224), 1000),
    "llama_8": (Llama, (4, 2048), 32000),
}


def sample(shape: tuple[int, ...], words: int, device: str) -> torch.Tensor:
    return torch.randint(0, words, shape, device=device) if len(shape) == 2 else torch.randn(shape, device=device)


def ask(memplan: str, *words: str) -> Any:
    done = subprocess.run([memplan, *words], capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout)


def plan(folder: Path, gpu: str, memplan: str, names: list[str]) -> None:
    sys.path.insert(0, str(ROOT / "python"))
    import memplan as package

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        build, shape, words = MODELS[name]
        file = str(folder / f"{name}.onnx")
        model = build().train()
        package.export(model, (sample((2, *shape[1:]), words, "cpu"),), path=file)
        common = [file, "--batch", str(shape[0]), "--gpu", gpu, "--format", "json", *(["--dim", f"seq={shape[1]}"] if len(shape) == 2 else [])]
        plain = ask(memplan, "analyze", *common, "--checkpoint", "none")
        (folder / f"plain.{name}.json").write_text(json.dumps(plain))
        context = plain["peak"]["processBytes"] - plain["peak"]["reservedBytes"]
        for share in SHARES:
            budget = ["--vram", str(context + int(share * plain["peak"]["reservedBytes"])), "--offload", "activations"]
            alone = ask(memplan, "plan", *common, *budget, "--checkpoint", "none")
            if alone["fits"]:
                break
        for kind, p in (("", alone), ("joint.", ask(memplan, "plan", *common, *budget))):
            (folder / f"{kind}{name}.json").write_text(json.dumps(p))
            print(name, kind or "offload", "fits" if p["fits"] else "does not fit", p["peak"]["allocatedBytes"], p.get("offload"), p.get("checkpoint") and p["checkpoint"]["recomputeOverhead"], flush=True)


def applied() -> Any:
    spec = importlib.util.spec_from_file_location("memplan_checkpoint", ROOT / "python" / "memplan" / "_checkpoint.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[spec.name] = module  # type: ignore[union-attr]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def bandwidth(n: int = 1 << 28) -> dict[str, float]:
    """Bytes per second of copies of pinned memory, each way."""
    there, here = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, pin_memory=True)
    out = {}
    for name, to, of in (("out", here, there), ("in", there, here)):
        times = []
        for _ in range(8):
            torch.cuda.synchronize()
            began = time.perf_counter()
            to.copy_(of, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        out[name] = n / min(times)
    return out


def one(folder: Path, name: str, kind: str, device: str, small: bool) -> dict[str, Any]:
    build, shape, words = MODELS[name]
    if small:
        shape = (2, *((64,) if len(shape) == 2 else (3, 224, 224)))
    torch.manual_seed(0)
    model = build().train().to(device)
    opt = torch.optim.AdamW(model.parameters())
    ck = applied()
    if kind != "plain":
        ck.checkpoint(model, str(folder / (f"{name}.json" if kind == "offload" else f"joint.{name}.json")))
    x, times = sample(shape, words, device), []
    cuda = device != "cpu"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for i in range(WARM + TIMED if not small else 2):
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        opt.zero_grad()
        scores = model(x)
        target = torch.randint(0, words, scores.shape[:-1], device=device)
        loss = F.cross_entropy(scores.view(-1, words), target.view(-1))
        del scores
        loss.backward()
        opt.step()
        if cuda:
            torch.cuda.synchronize()
        if i >= WARM:
            times.append(1e3 * (time.perf_counter() - began))
    doc: dict[str, Any] = {"model": name, "kind": kind, "ms": times, "loss": loss.item(), "torch": torch.__version__}
    if cuda:
        stats = torch.cuda.memory.host_memory_stats()
        doc |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(), "host": {k: v for k, v in stats.items() if k.endswith((".peak", ".current")) or k.startswith("num")}, "device": torch.cuda.get_device_name()}
    return doc


def run(folder: Path, names: list[str], device: str, small: bool) -> None:
    with open(folder / "measured.jsonl", "a", encoding="utf-8") as f:
        if device != "cpu":
            print(json.dumps({"bandwidth": bandwidth()}), file=f, flush=True)
        for name in names:
            for kind in ("plain", "offload", "joint"):
                done = subprocess.run([sys.executable, __file__, "one", str(folder), name, kind, "--device", device, *(["--small"] if small else [])], capture_output=True, text=True, check=False)
                line = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else json.dumps({"model": name, "kind": kind, "error": done.stderr[-600:]})
                print(line, file=f, flush=True)
                print(line[:300], flush=True)


def pinned(host: dict[str, Any]) -> int:
    """Page-locked bytes at their peak, under the name that the version has."""
    return int(max((v for k, v in host.items() if k in ("allocated_bytes.peak", "reserved_bytes.peak", "allocated_bytes.current")), default=0))


def compare(folder: Path, gpu: str, memplan: str) -> None:
    rows = [json.loads(x) for x in (folder / "measured.jsonl").read_text().splitlines()]
    rate = next((min(r["bandwidth"].values()) for r in rows if "bandwidth" in r), 0.0)
    measured = {(r["model"], r["kind"]): r for r in rows if "model" in r and "error" not in r}
    print("| model | plan | allocated | predicted | error | reserved | overhead | predicted | points | pinned | predicted | error |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    for (name, kind), r in measured.items():
        if kind == "plain" or "allocated" not in r or (name, "plain") not in measured:
            continue
        _, shape, _ = MODELS[name]
        common = [str(folder / f"{name}.onnx"), "--batch", str(shape[0]), "--gpu", gpu, "--format", "json", *(["--dim", f"seq={shape[1]}"] if len(shape) == 2 else [])]
        now = ask(memplan, "analyze", *common, "--checkpoint", str(folder / (f"{name}.json" if kind == "offload" else f"joint.{name}.json")), *(["--host-bandwidth", str(int(rate))] if rate else []))
        plain = json.loads((folder / f"plain.{name}.json").read_text())
        took = statistics.median(r["ms"]) / statistics.median(measured[name, "plain"]["ms"]) - 1
        said = now["time"]["stepMs"] / plain["time"]["stepMs"] - 1
        p, q = now["peak"]["allocatedBytes"], (now.get("offload") or {}).get("pinnedBytes", 0)
        host = pinned(r["host"])
        print(f"| {name} | {kind} | {r['allocated'] / 2**30:.3f} | {p / 2**30:.3f} | {p / r['allocated'] - 1:+.2%} | {r['reserved'] / 2**30:.3f} | {took:.1%} | {said:.1%} | {100 * (said - took):+.1f} | {host / 2**30:.3f} | {q / 2**30:.3f} | {q / host - 1 if host else 0:+.1%} |")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["plan", "run", "one", "compare"])
    p.add_argument("folder", type=Path)
    p.add_argument("names", nargs="*")
    p.add_argument("--gpu", default="h100")
    p.add_argument("--memplan", default="memplan")
    p.add_argument("--device", default="cuda")
    p.add_argument("--small", action="store_true")
    a = p.parse_args()
    if a.what == "one":
        print(json.dumps(one(a.folder, a.names[0], a.names[1], a.device, a.small)))
        return
    names = a.names or list(MODELS)
    if a.what == "plan":
        plan(a.folder, a.gpu, a.memplan, names)
    elif a.what == "run":
        run(a.folder, names, a.device, a.small)
    else:
        compare(a.folder, a.gpu, a.memplan)


if __name__ == "__main__":
    main()
