#!/usr/bin/env python3
"""When Python lets go of every tensor of an inference, from PyTorch itself: the reference of planner's TestLines.

    python3 scripts/pytorch/lines_reference.py OUT [--pack FILE.tar.xz] [REGEX]

A case is a module of lines_styles.py, lines_unseen.py or lines_kept.py, a small model of a library, or one of saved_reference.py's models ("saved/..."). For each, this script

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

import lines_kept
import lines_styles
import lines_unseen
import saved_reference as reference

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
        module = reference.faked(module)
    with mode, torch.device("cuda"), torch.no_grad():
        xs = tuple(torch.empty_like(x, device="cuda") for x in c.inputs(batch))
        known = {t.untyped_storage()._cdata for t in [*module.parameters(), *module.buffers(), *xs]}
        gc.disable()  # what cycles keep alive is for the collector, whenever it comes
        try:
            with reference.attention(c.attention, True), reference.nothing_masked(), Lives(known) as live:
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
    m = p.model_proto if reference.program_is_small(p) else reference.proto_of(p)
    traces = {}
    for n in m.graph.node:
        for q in n.metadata_props:
            if q.key == TRACE:
                traces[n.name] = shortened(q.value)
    reference.strip(m, path)
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
    for kind, styles in (("style/", lines_styles.STYLES), ("unseen/", lines_unseen.STYLES), ("kept/", lines_kept.STYLES)):
        for name, (cls, shape) in styles.items():
            yield Case(kind + name, cls, lambda b, s=shape: (torch.randn(b, *s),))
    for name in TIMM:
        def build(name=name):
            import timm
            return timm.create_model(name, num_classes=10)
        yield Case("timm/" + name, build, images(3, 224 if re.search("xcit|levit|mixer|coat|former|fastvit|vit", name) else 96))
    yield from wrapped_cases()
    yield from unseen_cases()
    reference.register()
    for c in reference.CASES.values():
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


UNSEEN_TIMM = ("twins_svt_small visformer_tiny focalnet_tiny_srf efficientvit_b0 efficientvit_m0 tiny_vit_5m_224 nest_tiny convit_tiny gcvit_xxtiny ese_vovnet19b_dw dpn68 skresnet18 "
               "resnest14d regnety_002 rexnet_100 lcnet_050 mobilenetv4_conv_small repghostnet_050 starnet_s1 shvit_s1 pit_ti_224 resmlp_12_224 gmlp_s16_224 inception_v4 xception41 caformer_s18 "
               "rdnet_tiny maxvit_rmlp_pico_rw_256 swinv2_tiny_window8_256 crossvit_9_240 volo_d1_224 hgnetv2_b0 vovnet39a cs3darknet_s densenet121 sequencer2d_s").split()


def unseen_cases():
    """Models of libraries that nothing was tuned on."""
    for name in UNSEEN_TIMM:
        def build(name=name):
            import timm
            return timm.create_model(name, num_classes=10)
        hw = int(m[0]) if (m := re.search("(?<=_)2..$", name)) else 224 if re.search("twins|visformer|focal|nest|conv_small|former|vit|crossvit|sequencer|pit|mlp|nest|gmlp|rdnet", name) else 96
        yield Case("unseen/timm_" + name, build, images(3, hw))

    def hf(cls, call, config, **kw):
        def make():
            import transformers as t
            return getattr(t, cls)._from_config(getattr(t, config)(**kw))
        return lambda: Wrapped(make, call)

    small = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64)
    lm = dict(vocab_size=99, pad_token_id=0, **small)
    ids = lambda m, x: m(input_ids=x, use_cache=False).logits
    plain = lambda m, x: m(input_ids=x).logits
    first = lambda m, x: m(input_ids=x).last_hidden_state
    for name in "Phi3 Qwen2 Qwen3 Mistral Gemma2 StableLm Olmo Persimmon GPTNeoX Mixtral Ernie4_5 Helium SmolLM3 Exaone4 Nemotron Seed Apertus".split():
        yield Case("unseen/hf_" + name, hf(name + "ForCausalLM", ids, name + "Config", **lm), tokens(24))
    for name in "Bert Electra RoFormer MPNet MegatronBert Ernie Nystromformer ModernBert Esm Roberta Layoutlm SqueezeBert".split():
        kw = dict(lm, embedding_size=32) if name in ("Electra", "RoFormer", "SqueezeBert") else lm
        yield Case("unseen/hf_" + name, hf(name + "Model", first, name + "Config", **kw), tokens(32))
    dec = dict(vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=1)
    both = lambda m, x: m(input_ids=x, decoder_input_ids=x, use_cache=False).logits
    for name in "Bart Pegasus Marian MBart BlenderbotSmall PLBart".split():
        cls = name + ("MTModel" if name == "Marian" else "ForConditionalGeneration")
        yield Case("unseen/hf_" + name, hf(cls, both, name + "Config", **dec), tokens(20))
    yield Case("unseen/hf_t5", hf("T5ForConditionalGeneration", both, "T5Config", vocab_size=99, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0), tokens(20))
    yield Case("unseen/hf_bloom", hf("BloomForCausalLM", ids, "BloomConfig", vocab_size=99, hidden_size=32, n_layer=3, n_head=2), tokens(24))
    yield Case("unseen/hf_opt", hf("OPTForCausalLM", ids, "OPTConfig", vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, ffn_dim=64, word_embed_proj_dim=32), tokens(24))
    yield Case("unseen/hf_gptj", hf("GPTJForCausalLM", ids, "GPTJConfig", vocab_size=99, n_embd=32, n_layer=3, n_head=2, rotary_dim=8), tokens(24))
    yield Case("unseen/hf_gpt_neo", hf("GPTNeoForCausalLM", ids, "GPTNeoConfig", vocab_size=99, hidden_size=32, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]), tokens(24))
    yield Case("unseen/hf_albert", hf("AlbertForMaskedLM", plain, "AlbertConfig", embedding_size=16, **lm), tokens(24))
    yield Case("unseen/hf_distilbert", hf("DistilBertForMaskedLM", plain, "DistilBertConfig", vocab_size=99, dim=32, n_layers=3, n_heads=2, hidden_dim=64), tokens(24))
    yield Case("unseen/hf_rwkv", hf("RwkvForCausalLM", ids, "RwkvConfig", vocab_size=99, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32), tokens(8))
    pix = lambda m, x: m(pixel_values=x).last_hidden_state
    for name in "ViT Beit Dinov2 DeiT Dinov2WithRegisters IJepa ViTMSN Data2VecVision".split():
        yield Case("unseen/hf_" + name, hf(name + "Model", pix, name + "Config", image_size=64, patch_size=16, **small), images(3, 64))
    yield Case("unseen/hf_swin", hf("SwinModel", pix, "SwinConfig", image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4), images(3, 64))
    yield Case("unseen/hf_swinv2", hf("Swinv2Model", pix, "Swinv2Config", image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4), images(3, 64))
    yield Case("unseen/hf_cvt", hf("CvtModel", pix, "CvtConfig", embed_dim=[16, 32, 32], num_heads=[1, 2, 2], depth=[1, 1, 2]), images(3, 64))
    yield Case("unseen/hf_pvt", hf("PvtModel", pix, "PvtConfig", image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 32, 32], num_attention_heads=[1, 2, 2, 2]), images(3, 64))
    yield Case("unseen/hf_resnet", hf("ResNetForImageClassification", lambda m, x: m(x).logits, "ResNetConfig", embedding_size=8, hidden_sizes=[16, 32, 32, 32], depths=[1, 1, 2, 1]), images(3, 64))
    yield Case("unseen/hf_mobilevit", hf("MobileViTModel", pix, "MobileViTConfig", image_size=64, hidden_sizes=[24, 32, 40], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], num_attention_heads=2), images(3, 64))
    yield Case("unseen/hf_glpn", hf("GLPNForDepthEstimation", lambda m, x: m(x).predicted_depth, "GLPNConfig", hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16), images(3, 64))
    yield Case("unseen/hf_upernet", hf("UperNetForSemanticSegmentation", lambda m, x: m(x).logits, "UperNetConfig", hidden_size=16, use_auxiliary_head=False), images(3, 64))
    yield Case("unseen/hf_vitmae", hf("ViTMAEModel", pix, "ViTMAEConfig", image_size=64, patch_size=16, **small), images(3, 64))
    yield Case("unseen/hf_vitdet", hf("VitDetModel", pix, "VitDetConfig", image_size=64, patch_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2), images(3, 64))
    speech = dict(conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, apply_spec_augment=False, **small)
    for name in "Hubert WavLM UniSpeech Data2VecAudio".split():
        yield Case("unseen/hf_" + name, hf(name + "ForCTC", lambda m, x: m(x).logits, name + "Config", vocab_size=99, **speech), lambda b: (torch.randn(b, 1600),))
    yield Case("unseen/hf_whisper", hf("WhisperModel", lambda m, x: m(x, decoder_input_ids=torch.zeros(x.shape[0], 6, dtype=torch.int64, device=x.device), use_cache=False).last_hidden_state, "WhisperConfig", num_mel_bins=16, max_source_positions=50, **{k: v for k, v in dec.items()}), lambda b: (torch.randn(b, 16, 100),))
    yield Case("unseen/hf_tst", hf("PatchTSMixerForPrediction", lambda m, x: m(x).prediction_outputs, "PatchTSMixerConfig", context_length=64, prediction_length=16, num_input_channels=3, d_model=16, num_layers=2), lambda b: (torch.randn(b, 64, 3),))

    def dfs(cls, call, **kw):
        def make():
            import diffusers
            return getattr(diffusers, cls)(**kw)
        return lambda: Wrapped(make, call)

    def text(x, n=7, d=32):
        return torch.zeros(x.shape[0], n, d, device=x.device)

    yield Case("unseen/diffusers_vq", dfs("VQModel", lambda m, x: m.decode(m.encode(x).latents, force_not_quantize=True).sample, block_out_channels=(8, 16), norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2), images(3, 32))
    yield Case("unseen/diffusers_unet_cond", dfs("UNet2DConditionModel", lambda m, x: m(x, 3, text(x)).sample, sample_size=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, cross_attention_dim=32, attention_head_dim=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")), images(4, 16))
    yield Case("unseen/diffusers_uvit", dfs("UVit2DModel", lambda m, x: m(x, text(x), torch.zeros(x.shape[0], 32, device=x.device), torch.zeros(x.shape[0], 5, device=x.device)), hidden_size=32, cond_embed_dim=32, encoder_hidden_size=32, block_out_channels=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, codebook_size=50, vocab_size=51, sample_size=16, micro_cond_embed_dim=80, micro_cond_encode_dim=16), lambda b: (torch.randint(0, 50, (b, 16, 16)),))
    yield Case("unseen/diffusers_sana", dfs("SanaTransformer2DModel", lambda m, x: m(x, text(x), torch.zeros(x.shape[0], device=x.device)).sample, in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=2, num_cross_attention_heads=2, cross_attention_head_dim=16, cross_attention_dim=32, caption_channels=32, sample_size=16), images(4, 16))
    yield Case("unseen/diffusers_auraflow", dfs("AuraFlowTransformer2DModel", lambda m, x: m(x, text(x), torch.zeros(x.shape[0], device=x.device)).sample, sample_size=16, in_channels=4, out_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32, pos_embed_max_size=64), images(4, 16))
    yield Case("unseen/diffusers_wan", dfs("WanTransformer3DModel", lambda m, x: m(x, torch.zeros(x.shape[0], device=x.device), text(x)).sample, num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=32, freq_dim=16, ffn_dim=32, num_layers=2), lambda b: (torch.randn(b, 4, 2, 8, 8),))
    yield Case("unseen/diffusers_ltx", dfs("LTXVideoTransformer3DModel", lambda m, x: m(x, text(x), torch.zeros(x.shape[0], device=x.device), torch.ones(x.shape[0], 7, device=x.device), 2, 4, 4).sample, in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32, caption_channels=32, num_layers=2), lambda b: (torch.randn(b, 32, 8),))
    yield Case("unseen/diffusers_cascade", dfs("AutoencoderTiny", lambda m, x: m(x).sample, encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 2), num_decoder_blocks=(2, 1)), images(3, 32))
    yield Case("unseen/diffusers_asym", dfs("AsymmetricAutoencoderKL", lambda m, x: m(x).sample, down_block_out_channels=(8, 16), up_block_out_channels=(8, 16), norm_num_groups=4, layers_per_down_block=1, layers_per_up_block=1, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2), images(3, 32))

    def tv(name, call=lambda m, x: m(x), **kw):
        def make():
            import torchvision.models as t
            for part in name.split(".")[:-1]:
                t = getattr(t, part)
            return getattr(t, name.split(".")[-1])(**kw)
        return lambda: Wrapped(make, call)

    for name in "googlenet shufflenet_v2_x0_5 mnasnet0_5 squeezenet1_1 efficientnet_v2_s maxvit_t regnet_y_400mf swin_v2_t".split():
        more = dict(aux_logits=False, init_weights=False) if name == "googlenet" else {}
        yield Case("unseen/tv_" + name, tv(name, weights=None, num_classes=5, **more), images(3, 224 if "vit" in name else 96))
    yield Case("unseen/tv_deeplab", tv("segmentation.deeplabv3_mobilenet_v3_large", lambda m, x: m(x)["out"], weights_backbone=None, num_classes=5), images(3, 64))
    yield Case("unseen/tv_fcn", tv("segmentation.fcn_resnet50", lambda m, x: m(x)["out"], weights_backbone=None, num_classes=5), images(3, 64))


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
