#!/usr/bin/env python3
"""What autograd saves of small models of transformers and diffusers, in float32, half precision and under autocast.

    python3 scripts/pytorch/types_models.py OUT.tar.xz [NAME ..]

types_reference.py for models of libraries: hf_TYPE is transformers' causal language model of that model type, or its base model,
with one narrow layer and eager attention; diff_NAME is one of those below. Of what a forward pass saved, what is let go of before
it returns is not counted. planner/types_test.go compares. The committed file is of torch 2.11, transformers 5.23 and diffusers 0.42.1.
Nothing is downloaded; a model that cannot be exported is left out, with a message.
"""
import contextlib
import gc
import io
import json
import os
import subprocess
import sys
import tarfile
import weakref

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from types_reference import exported  # hides the GPU before torch is imported

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

PRECISIONS = ("fp32", "bf16", "amp-bf16")
NAMES = """hf_llama hf_bert hf_deepseek_v3 hf_glm4_moe hf_whisper hf_bart hf_roformer hf_stablelm hf_apertus hf_phi3 hf_afmoe hf_olmo hf_nanochat hf_nemotron hf_deberta hf_dinov2 hf_beit hf_nystromformer hf_modernbert_decoder hf_lfm2 diff_flux diff_auraflow diff_hunyuan_dit diff_ltx diff_wan diff_sana diff_prior diff_transformer2d"""


class Packed:
    def __init__(s, t): s.t = t

def saved(model, inputs, precision):
    live = weakref.WeakSet()
    def pack(t):
        p = Packed(t); live.add(p); return p
    dt = torch.bfloat16 if precision == "bf16" else torch.float32
    model = model.train().to(dt)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = model.to("cuda")
        conv = lambda t: mode.from_tensor(t.to(dt) if t.is_floating_point() else t).to("cuda") if isinstance(t, torch.Tensor) else t
        inputs = [conv(t) for t in inputs]
        cast = torch.autocast("cuda", dtype=torch.bfloat16) if precision.startswith("amp") else contextlib.nullcontext()
        with torch.device("cuda"), torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p.t), cast:
            out = model(*inputs)
        gc.collect()
        held = {}
        for p in list(live):
            s = p.t.untyped_storage(); held[s._cdata] = s
        total = sum(s.nbytes() for s in held.values())
    del out
    return total


class Keys(nn.Module):
    def __init__(s, m, names, call): super().__init__(); s.m = m; s.names = names; s.call = call
    def forward(s, *a):
        o = s.m(**dict(zip(s.names, a)), **s.call)
        while not isinstance(o, torch.Tensor): o = o[0]
        return o


SMALL = dict(vocab_size=99, hidden_size=64, d_model=64, n_embd=64, embed_dim=64, num_hidden_layers=1, n_layer=1, n_layers=1, num_layers=1, encoder_layers=1, decoder_layers=1,
  num_decoder_layers=1, num_encoder_layers=1, num_attention_heads=4, n_head=4, n_heads=4, encoder_attention_heads=4, decoder_attention_heads=4, num_key_value_heads=2, intermediate_size=128, encoder_ffn_dim=128,
  decoder_ffn_dim=128, ffn_dim=128, d_ff=128, d_kv=16, head_dim=16, max_position_embeddings=128, image_size=32, n_positions=128, n_inner=128, embedding_size=64, encoder_hidden_size=64,
  moe_intermediate_size=64, num_experts=4, num_local_experts=4, n_routed_experts=4, q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
  rotary_dim=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, hidden_dropout=0.1, state_size=8, expand=2, mamba_d_state=8, mamba_n_heads=8, mamba_d_head=16, n_groups=1, mamba_n_groups=1, use_mamba_kernels=False,
  word_embed_proj_dim=64, encoder_embed_dim=64, decoder_hidden_size=64, decoder_intermediate_size=128, dim=64, hidden_dim=128, attention_head_dim=16, dropout=0.1,
  chunk_size=16, lru_width=64, max_seq_len=128, use_cache=False, num_codebook_vectors=32, decoder_layers_=2, num_feature_levels=1, num_queries=8, hidden_dims=64, pad_index=0, emb_dim=64, shared_intermediate_size=128, attn_implementation="eager")

def small_config(cls, drop=()):
    try: have = cls()
    except Exception: have = None
    names = set(dir(have)) if have is not None else set()
    amap = getattr(cls, "attribute_map", {}) or {}
    kw = {}
    for k, v in SMALL.items():
        if k in drop: continue
        if k in ("attn_implementation",): continue
        if k in amap: continue
        if k not in names: continue
        cur = getattr(have, k, None)
        if isinstance(cur, (list, tuple, dict)): continue
        if k in ("dropout", "hidden_dropout") and not isinstance(cur, float): continue
        if cur is None and k not in ("num_key_value_heads","head_dim"): continue
        if k == "image_size" and getattr(have, "patch_size", 16) not in (4, 8, 16, None): kw["patch_size"] = 8
        if k == "num_key_value_heads" and cur == getattr(have, "num_attention_heads", None): v = 4
        if k == "head_dim" and cur is None: continue
        kw[k] = v
    c = cls(**kw)
    return c

def build(name):
    from transformers.models.auto import modeling_auto as MA, configuration_auto as CA
    model_type = next(t for t in MA.MODEL_MAPPING_NAMES if t.replace("-", "_") == name)
    head = "lm" if model_type in MA.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else "base"
    mapping = MA.MODEL_FOR_CAUSAL_LM_MAPPING if head == "lm" else MA.MODEL_MAPPING
    ccls = CA.CONFIG_MAPPING[model_type]
    mcls = mapping[ccls]
    if isinstance(mcls, tuple): mcls = mcls[0]
    cfg = small_config(ccls)
    try: m = mcls._from_config(cfg, attn_implementation="eager")
    except Exception:
        cfg = small_config(ccls)
        m = mcls._from_config(cfg)
    main = mcls.main_input_name if hasattr(mcls, "main_input_name") else "input_ids"
    n = sum(p.numel() for p in m.parameters())
    if n > 6e7: raise RuntimeError("too large %d" % n)
    import inspect
    sig = inspect.signature(m.forward).parameters
    size = getattr(cfg, "image_size", 64) or 64
    size = size if isinstance(size, int) else size[0]
    if main == "input_ids":
        names, vals = ["input_ids"], [torch.randint(3, 90, (2, 32))]
        if getattr(cfg, "is_encoder_decoder", False) and "decoder_input_ids" in sig:
            names.append("decoder_input_ids"); vals.append(torch.randint(3, 90, (2, 24)))
        if "pixel_values" in sig and head == "base" and hasattr(cfg, "vision_config"):
            vs = cfg.vision_config.image_size
            names.append("pixel_values"); vals.append(torch.randn(2, 3, vs, vs))
    elif main == "pixel_values":
        ch = getattr(cfg, "num_channels", 3)
        names, vals = ["pixel_values"], [torch.randn(2, ch if isinstance(ch, int) else 3, size, size)]
    elif main == "input_values":
        names, vals = ["input_values"], [torch.randn(2, 4000)]
    elif main == "input_features":
        f = getattr(cfg, "num_mel_bins", getattr(cfg, "input_feat_per_channel", 80))
        names, vals = ["input_features"], [torch.randn(2, 128, f)]
    else: raise RuntimeError("input " + main)
    call = {}
    if "use_cache" in sig: call["use_cache"] = False
    if "return_dict" in sig or True: call["return_dict"] = False
    return Keys(m, names, call), tuple(vals)


JOBS = {}
class RD(nn.Module):
    def __init__(s, m, **c): super().__init__(); s.m = m; s.c = c
    def forward(s, *a):
        o = s.m(*a, return_dict=False, **s.c)
        while not isinstance(o, torch.Tensor): o = o[0]
        return o
class KW(nn.Module):
    def __init__(s, m, names, **c): super().__init__(); s.m = m; s.names = names; s.c = c
    def forward(s, *a):
        o = s.m(**dict(zip(s.names, a)), return_dict=False, **s.c)
        while not isinstance(o, torch.Tensor): o = o[0]
        return o
R = torch.randn
T = lambda: torch.randint(0, 99, (2,))
TF = lambda: torch.rand(2) * 99
def D(name, **kw):
    import diffusers
    return getattr(diffusers, name)(**kw)
def dj(name, f): JOBS["diff_" + name] = f
dj("flux", lambda: (KW(D("FluxTransformer2DModel", patch_size=1,in_channels=4,num_layers=1,num_single_layers=1,attention_head_dim=16,num_attention_heads=2,joint_attention_dim=32,pooled_projection_dim=32,axes_dims_rope=[4,4,8]),["hidden_states","encoder_hidden_states","pooled_projections","timestep","img_ids","txt_ids"]),(R(2,16,4),R(2,7,32),R(2,32),TF(),R(16,3),R(7,3))))
dj("auraflow", lambda: (KW(D("AuraFlowTransformer2DModel",sample_size=32,patch_size=2,in_channels=4,num_mmdit_layers=1,num_single_dit_layers=1,attention_head_dim=8,num_attention_heads=4,caption_projection_dim=32,joint_attention_dim=32,out_channels=4,pos_embed_max_size=256),["hidden_states","encoder_hidden_states","timestep"]),(R(2,4,32,32),R(2,7,32),TF())))
dj("lumina2", lambda: (KW(D("Lumina2Transformer2DModel",sample_size=16,patch_size=2,in_channels=4,hidden_size=24,num_layers=2,num_refiner_layers=1,num_attention_heads=3,num_kv_heads=1,multiple_of=2,norm_eps=1e-5,scaling_factor=1.0,axes_dim_rope=[4,2,2],axes_lens=[128,128,128],cap_feat_dim=32),["hidden_states","encoder_hidden_states","timestep","encoder_attention_mask"]),(R(2,4,16,16),R(2,8,32),TF(),torch.ones(2,8,dtype=torch.bool))))
dj("sana", lambda: (KW(D("SanaTransformer2DModel",patch_size=1,in_channels=4,out_channels=4,num_layers=1,attention_head_dim=4,num_attention_heads=2,num_cross_attention_heads=2,cross_attention_head_dim=4,cross_attention_dim=8,caption_channels=8,sample_size=32),["hidden_states","encoder_hidden_states","timestep"]),(R(2,4,32,32),R(2,8,8),TF())))
dj("cogvideox", lambda: (KW(D("CogVideoXTransformer3DModel",num_attention_heads=2,attention_head_dim=16,in_channels=4,out_channels=4,time_embed_dim=4,text_embed_dim=8,num_layers=2,sample_width=8,sample_height=8,sample_frames=8,patch_size=2,temporal_compression_ratio=4,max_text_seq_length=8),["hidden_states","encoder_hidden_states","timestep"]),(R(2,1,4,8,8),R(2,8,8),T())))
dj("ltx", lambda: (KW(D("LTXVideoTransformer3DModel",in_channels=8,out_channels=8,patch_size=1,patch_size_t=1,num_attention_heads=4,attention_head_dim=8,cross_attention_dim=32,num_layers=2,caption_channels=16),["hidden_states","encoder_hidden_states","timestep","encoder_attention_mask"],num_frames=2,height=4,width=4),(R(2,32,8),R(2,7,16),TF(),torch.ones(2,7))))
dj("wan", lambda: (KW(D("WanTransformer3DModel",patch_size=(1,2,2),num_attention_heads=2,attention_head_dim=12,in_channels=4,out_channels=4,text_dim=16,freq_dim=256,ffn_dim=32,num_layers=2,cross_attn_norm=True,qk_norm="rms_norm_across_heads",rope_max_seq_len=32),["hidden_states","timestep","encoder_hidden_states"]),(R(2,4,2,16,16),T(),R(2,7,16))))
dj("mochi", lambda: (KW(D("MochiTransformer3DModel",patch_size=2,num_attention_heads=2,attention_head_dim=8,num_layers=2,pooled_projection_dim=16,in_channels=4,text_embed_dim=16,time_embed_dim=4,activation_fn="swiglu",max_sequence_length=16),["hidden_states","encoder_hidden_states","timestep","encoder_attention_mask"]),(R(2,4,2,16,16),R(2,16,16),T(),torch.ones(2,16,dtype=torch.bool))))
dj("hunyuan_dit", lambda: (KW(D("HunyuanDiT2DModel",sample_size=16,num_layers=2,patch_size=2,attention_head_dim=8,num_attention_heads=3,cross_attention_dim=32,cross_attention_dim_t5=32,pooled_projection_dim=4,hidden_size=24,in_channels=4,activation_fn="gelu-approximate",mlp_ratio=4.0),["hidden_states","encoder_hidden_states","text_embedding_mask","encoder_hidden_states_t5","text_embedding_mask_t5","timestep","image_meta_size","style"],image_rotary_emb=None),(R(2,4,16,16),R(2,77,32),torch.ones(2,77),R(2,256,32),torch.ones(2,256),TF(),R(2,6),torch.randint(0,1,(2,)))))
dj("transformer2d", lambda: (RD(D("Transformer2DModel",num_attention_heads=2,attention_head_dim=16,in_channels=32,num_layers=1,norm_num_groups=8,cross_attention_dim=32,sample_size=16)),(R(2,32,16,16),R(2,7,32))))
dj("prior", lambda: (KW(D("PriorTransformer",num_attention_heads=2,attention_head_dim=12,embedding_dim=24,num_layers=1,additional_embeddings=4,num_embeddings=7),["hidden_states","timestep","proj_embedding","encoder_hidden_states"]),(R(2,24),T(),R(2,24),R(2,7,24))))


def run(name):
    torch.manual_seed(0)
    make = JOBS.get(name) or (lambda: build(name[3:]))
    file = exported(*make())
    return file, {p: saved(*make(), p) for p in PRECISIONS}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    data, runs = io.BytesIO(), {}
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as tar:

        def add(path, content):
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        for name in sys.argv[2:] or NAMES.split():
            try:
                file, runs[name] = run(name)
            except Exception as e:
                print(name, type(e).__name__, e, file=sys.stderr)
                continue
            print(name, runs[name], flush=True)
            add(name + ".onnx", file)
        add("saved.json", json.dumps(runs, indent=1).encode())
    with open(sys.argv[1], "wb") as f:
        subprocess.run(["xz", "-6e", "-c"], input=data.getvalue(), stdout=f, check=True)


if __name__ == "__main__":
    main()
