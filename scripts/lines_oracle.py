#!/usr/bin/env python3
"""When Python lets go of every tensor of an inference, from PyTorch itself: the oracle of planner's TestLines.

    python3 scripts/lines_oracle.py OUT [--pack FILE.tar.xz] [REGEX]

A case is a module of lines_styles.py, a small model of a library, or one of saved_oracle.py's models ("saved/..."). For each, this script

  - exports it as a user would (dynamo exporter, train mode, optimize=False, symbolic batch) to OUT/NAME.onnx, with the weights stripped and
    the stack traces kept: paths in them are cut down to what follows site-packages, or to the file's name;
  - runs it in evaluation and without gradients under FakeTensorMode on tensors of device type cuda, and writes OUT/NAME.json: for each
    storage that an operator makes, in order, its bytes and how many storages had been made when it went (-1: it outlived the call).

--pack puts all of OUT into one archive.
"""
import argparse
import contextlib
import gc
import io
import json
import os
import re
import sys
import tarfile
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import lines_styles
import saved_oracle as oracle

TRACE = "pkg.torch.onnx.stack_trace"
BATCH = 4


class Lives(TorchDispatchMode):
    """Notes when the storages that operators make come and go."""

    def __init__(self, known):
        super().__init__()
        self.known, self.rows = known, []

    def gone(self, key, i):
        self.rows[i][1] = len(self.rows)
        self.known.discard(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves(out)
        if func is torch.ops.aten.cudnn_batch_norm.default:
            leaves = leaves[:1]  # the rest is empty in evaluation, which the fake kernel does not know
        for t in leaves:
            if not isinstance(t, torch.Tensor) or t.device.type != "cuda":
                continue
            storage = t.untyped_storage()
            key = storage._cdata
            if key in self.known or storage.nbytes() == 0:
                continue
            self.known.add(key)
            self.rows.append([storage.nbytes(), -1, str(func)])
            weakref.finalize(storage, self.gone, key, len(self.rows) - 1)
        return out


def lives(c, batch):
    torch.manual_seed(0)
    module = c.build().eval()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module = oracle.faked(module)
    with mode, torch.device("cuda"), torch.no_grad():
        xs = tuple(torch.empty_like(x, device="cuda") for x in c.inputs(batch))
        known = {t.untyped_storage()._cdata for t in [*module.parameters(), *module.buffers(), *xs]}
        gc.disable()  # what cycles keep alive is for the collector, whenever it comes
        try:
            with oracle.attention(c.attention, True), oracle.nothing_masked(), Lives(known) as live:
                out = module(*xs)
                rows = [list(r) for r in live.rows]
        finally:
            gc.enable()
        del out
    return rows


def shortened(trace):
    """A trace whose paths say nothing of the machine."""
    return re.sub(r'File "([^"]*)"', lambda m: 'File "%s"' % (m[1].split("site-packages/")[-1] if "site-packages/" in m[1] else os.path.basename(m[1])), trace)


def export(c, path):
    import onnx

    torch.manual_seed(0)
    module = c.build().train()
    args = c.inputs(2)
    kw = dict(dynamo=True, optimize=False, verbose=False)
    kw["dynamic_shapes"] = tuple({0: torch.export.Dim("batch", min=1, max=4096)} for _ in args)
    p = torch.onnx.export(module, args, input_names=[f"input{i}" for i in range(len(args))], **kw)
    m = p.model_proto if oracle.program_is_small(p) else oracle.proto_of(p)
    traces = {}
    for n in m.graph.node:
        for q in n.metadata_props:
            if q.key == TRACE:
                traces[n.name] = shortened(q.value)
    oracle.strip(m, path)
    m = onnx.load(path, load_external_data=False)
    for n in m.graph.node:
        if traces.get(n.name):
            n.metadata_props.add(key=TRACE, value=traces[n.name])
    with open(path, "wb") as f:
        f.write(m.SerializeToString())


class Case:
    def __init__(self, name, build, inputs, attention="auto"):
        self.name, self.build, self.inputs, self.attention = name, build, inputs, attention


def images(c, hw):
    return lambda b: (torch.randn(b, c, hw, hw),)


def tokens(n, high=90):
    return lambda b: (torch.randint(0, high, (b, n)),)


TIMM = ("dla34 hrnet_w18_small res2net50_14w_8s cspdarknet53 ghostnet_100 xcit_nano_12_p8_224 poolformer_s12 mobilevit_xxs edgenext_xx_small levit_128s "
        "inception_next_atto fastvit_t8 convnextv2_atto repvgg_a0 efficientformerv2_s0 coat_tiny gernet_s nf_resnet50 mixer_s32_224 selecsls42b tresnet_m").split()


class Wrapped(torch.nn.Module):
    """A library's model behind a forward that returns one tensor."""

    def __init__(self, make, call):
        super().__init__()
        self.m, self.call = make(), call

    def forward(self, x):
        return self.call(self.m, x)


def cases():
    for name, (cls, shape) in lines_styles.STYLES.items():
        yield Case("style/" + name, cls, lambda b, s=shape: (torch.randn(b, *s),))
    for name in TIMM:
        def build(name=name):
            import timm
            return timm.create_model(name, num_classes=10)
        yield Case("timm/" + name, build, images(3, 224 if re.search("xcit|levit|mixer|coat|former|fastvit|vit", name) else 96))
    yield from wrapped_cases()
    oracle.register()
    for c in oracle.CASES.values():
        if c.kind == "model":
            yield Case("saved/" + c.name, c.build, c.inputs, c.attention)


def wrapped_cases():
    def hf(cls, call, config, **kw):
        def make():
            import transformers as t
            return getattr(t, cls)._from_config(getattr(t, config)(**kw), attn_implementation="eager")
        return lambda: Wrapped(make, call)

    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    ids = lambda m, x: m(input_ids=x, use_cache=False).logits
    yield Case("hf/segformer", hf("SegformerForSemanticSegmentation", lambda m, x: m(x).logits, "SegformerConfig", hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=32), images(3, 64))
    yield Case("hf/glm", hf("GlmForCausalLM", ids, "GlmConfig", vocab_size=99, num_key_value_heads=2, head_dim=16, pad_token_id=0, **small), tokens(24))
    yield Case("hf/cohere", hf("CohereForCausalLM", ids, "CohereConfig", vocab_size=99, pad_token_id=0, **small), tokens(24))
    yield Case("hf/starcoder2", hf("Starcoder2ForCausalLM", ids, "Starcoder2Config", vocab_size=99, num_key_value_heads=1, **small), tokens(24))
    yield Case("hf/mamba", hf("MambaForCausalLM", ids, "MambaConfig", vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=4), tokens(12))
    yield Case("hf/fnet", hf("DebertaV2ForMaskedLM", lambda m, x: m(input_ids=x).logits, "DebertaV2Config", vocab_size=99, **small), tokens(24))
    yield Case("hf/wav2vec2", hf("Wav2Vec2ForCTC", lambda m, x: m(x).logits, "Wav2Vec2Config", vocab_size=99, conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, apply_spec_augment=False, **small), lambda b: (torch.randn(b, 2000),))
    yield Case("hf/regnet", hf("RegNetForImageClassification", lambda m, x: m(x).logits, "RegNetConfig", embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 2, 1], groups_width=8), images(3, 64))
    yield Case("hf/vilt_dpt", hf("DPTForDepthEstimation", lambda m, x: m(x).predicted_depth, "DPTConfig", image_size=64, patch_size=16, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 16, 32, 32], fusion_hidden_size=16, **{**small, "num_hidden_layers": 4}), images(3, 64))

    def dfs(cls, call, **kw):
        def make():
            import diffusers
            return getattr(diffusers, cls)(**kw)
        return lambda: Wrapped(make, call)

    yield Case("diffusers/unet2d", dfs("UNet2DModel", lambda m, x: m(x, 3).sample, sample_size=32, block_out_channels=(16, 32, 32), layers_per_block=1, norm_num_groups=8, down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D")), images(3, 32))
    yield Case("diffusers/vae", dfs("AutoencoderKL", lambda m, x: m.decode(m.encode(x).latent_dist.mode()).sample, block_out_channels=(8, 16), norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2), images(3, 32))
    yield Case("diffusers/dit", dfs("DiTTransformer2DModel", lambda m, x: m(x, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device), torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)).sample, num_attention_heads=2, attention_head_dim=16, num_layers=2, in_channels=4, out_channels=4, norm_num_groups=2, sample_size=16), images(4, 16))

    def tv(name, call=lambda m, x: m(x), **kw):
        def make():
            import torchvision.models as t
            for part in name.split(".")[:-1]:
                t = getattr(t, part)
            return getattr(t, name.split(".")[-1])(**kw)
        return lambda: Wrapped(make, call)

    yield Case("tv/r3d", tv("video.r3d_18", num_classes=5), lambda b: (torch.randn(b, 3, 4, 32, 32),))
    yield Case("tv/s3d", tv("video.s3d", num_classes=5), lambda b: (torch.randn(b, 3, 16, 64, 64),))
    yield Case("tv/lraspp", tv("segmentation.lraspp_mobilenet_v3_large", lambda m, x: m(x)["out"], weights_backbone=None, num_classes=5), images(3, 64))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("pattern", nargs="?", default="^(?!saved)")
    p.add_argument("--pack")
    p.add_argument("--skip", action="store_true", help="leave what is there")
    p.add_argument("--again", action="store_true", help="run, but export nothing anew")
    a = p.parse_intermixed_args()
    os.makedirs(a.out, exist_ok=True)
    for c in cases():
        base = os.path.join(a.out, c.name.replace("/", "_"))
        there = os.path.exists(base + ".json")
        if not re.search(a.pattern, c.name) or a.skip and there or a.again and not there:
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                rows = lives(c, BATCH)
                if not a.again:
                    export(c, base + ".onnx")
            with open(base + ".json", "w") as f:
                json.dump({"name": c.name, "torch": torch.__version__.split("+")[0], "batch": BATCH, "storages": rows}, f, separators=(",", ":"))
            print(c.name, len(rows), flush=True)
        except Exception as e:
            print(c.name, type(e).__name__, str(e)[:200].replace("\n", " "), file=sys.stderr, flush=True)
    if a.pack:
        with tarfile.open(a.pack, "w:xz", preset=9) as t:
            for name in sorted(os.listdir(a.out)):
                t.add(os.path.join(a.out, name), arcname=name, filter=plain)


def plain(info):
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main()
