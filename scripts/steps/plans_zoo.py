"""The models of plans.py: of six libraries and plain code, as a training loop would build them; most are new to the project."""
import torch, torch.nn as nn, torch.nn.functional as F

PLANS = {}  # name -> dict(library, build, inputs, loss, precision, compiled)


def floats(*shape): return lambda b, dev: (torch.randn(b, *shape, device=dev),)
def ids(vocab, length): return lambda b, dev: (torch.randint(0, vocab, (b, length), device=dev),)
def image(hw=224, c=3): return floats(c, hw, hw)


def add(library, name, build, inputs, loss='cross-entropy', precision='fp32', compiled=False):
    PLANS[name] = dict(library=library, build=build, inputs=inputs, loss=loss, precision=precision, compiled=compiled)


class Call(nn.Module):
    """A library's model with the call and the output that a training loop uses."""

    def __init__(self, make, call):
        super().__init__()
        self.m = make()
        self.call = call

    def forward(self, *x): return self.call(self.m, *x)


# ---- timm ----

def timm_model(name, hw=224, **kw):
    def build():
        import timm
        return timm.create_model(name, pretrained=False)
    add('timm', 'timm_' + name, build, image(hw), **kw)


timm_model('resnetv2_50')
timm_model('focalnet_tiny_srf')
timm_model('vit_medium_patch16_gap_240', hw=240, precision='amp-bf16')
timm_model('inception_next_tiny')
timm_model('deit3_small_patch16_224', precision='amp-bf16')
timm_model('gcvit_xxtiny')
timm_model('regnetz_b16')

# ---- torchvision ----


def vision(name, inputs, kind='', call=None, **kw):
    def make():
        import torchvision
        m = torchvision.models
        return getattr(getattr(m, kind) if kind else m, name)(**({'weights': None, 'weights_backbone': None} if kind == 'segmentation' else {}))
    add('torchvision', 'tv_' + name, make if call is None else lambda: Call(make, call), inputs, **kw)


vision('resnext101_64x4d', image())
vision('vgg13_bn', image())
vision('mvit_v1_b', floats(3, 16, 224, 224), 'video', precision='amp-bf16')
vision('convnext_tiny', image(), precision='amp-bf16')
vision('lraspp_mobilenet_v3_large', image(320), 'segmentation', lambda m, x: m(x)['out'])
vision('regnet_y_1_6gf', image())

# ---- transformers ----


def hf(name, config, cls, inputs, call, attn='sdpa', **kw):
    def make():
        import transformers as t
        c = config(t)
        c.use_cache = False
        return getattr(t, cls)._from_config(c, attn_implementation=attn)
    add('transformers', 'hf_' + name, lambda: Call(make, call), inputs, **kw)


def tokens(m, i): return m(input_ids=i, use_cache=False).logits
def pixels(m, x): return m(pixel_values=x).logits


LM = dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=10, num_attention_heads=12, vocab_size=8000)
hf('stablelm', lambda t: t.StableLmConfig(**LM, num_key_value_heads=4), 'StableLmForCausalLM', ids(1000, 512), tokens, precision='amp-bf16')
hf('gptj', lambda t: t.GPTJConfig(n_embd=768, n_layer=10, n_head=12, rotary_dim=64, vocab_size=8000), 'GPTJForCausalLM', ids(1000, 512), tokens, attn='eager')
hf('nemotron', lambda t: t.NemotronConfig(**LM, num_key_value_heads=4), 'NemotronForCausalLM', ids(1000, 512), tokens)
hf('falcon', lambda t: t.FalconConfig(hidden_size=768, num_hidden_layers=10, num_attention_heads=12, vocab_size=8000), 'FalconForCausalLM', ids(1000, 512), tokens, precision='amp-bf16')
hf('pegasus', lambda t: t.PegasusConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, vocab_size=8000),
   'PegasusForConditionalGeneration', lambda b, dev: (torch.randint(1, 1000, (b, 192), device=dev), torch.randint(1, 1000, (b, 96), device=dev)), lambda m, i, d: m(input_ids=i, decoder_input_ids=d, use_cache=False).logits)
hf('layoutlm_text', lambda t: t.LayoutLMConfig(num_hidden_layers=10, vocab_size=8000), 'LayoutLMForMaskedLM', ids(1000, 256), lambda m, i: m(input_ids=i).logits, attn='eager')
hf('swinv2', lambda t: t.Swinv2Config(image_size=224, depths=[2, 2, 6, 2]), 'Swinv2ForImageClassification', image(), pixels, attn='eager')
hf('vit_msn', lambda t: t.ViTMSNConfig(hidden_size=512, num_hidden_layers=10, num_attention_heads=8, intermediate_size=2048), 'ViTMSNForImageClassification', image(), pixels, precision='amp-bf16')

# ---- diffusers ----


def diffusion(name, make, inputs, call, loss='mse', **kw):
    def build():
        import diffusers
        return make(diffusers)
    add('diffusers', 'diff_' + name, lambda: Call(build, call), inputs, loss, **kw)


def latents(c, hw, *more):
    def f(b, dev): return (torch.randn(b, c, hw, hw, device=dev), torch.randint(0, 1000, (b,), device=dev), *(torch.randn(b, *s, device=dev) for s in more))
    return f


diffusion('unet_wide', lambda d: d.UNet2DConditionModel(sample_size=64, block_out_channels=(128, 256, 512), layers_per_block=2, cross_attention_dim=512, attention_head_dim=8,
                                                       down_block_types=('CrossAttnDownBlock2D', 'CrossAttnDownBlock2D', 'DownBlock2D'), up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D', 'CrossAttnUpBlock2D')),
          latents(4, 64, (77, 512)), lambda m, x, t, c: m(x, t, c, return_dict=False)[0], precision='amp-bf16')
diffusion('vq', lambda d: d.VQModel(block_out_channels=(64, 128, 256), down_block_types=('DownEncoderBlock2D',) * 3, up_block_types=('UpDecoderBlock2D',) * 3, layers_per_block=2, num_vq_embeddings=256, norm_num_groups=32), image(128),
          lambda m, x: m.decoder(m.post_quant_conv(m.quant_conv(m.encoder(x)))))
diffusion('aura_flow', lambda d: d.AuraFlowTransformer2DModel(sample_size=32, patch_size=2, in_channels=4, num_mmdit_layers=4, num_single_dit_layers=6, attention_head_dim=64, num_attention_heads=8, joint_attention_dim=512, caption_projection_dim=512, out_channels=4, pos_embed_max_size=256),
          latents(4, 32, (77, 512)), lambda m, x, t, c: m(x, encoder_hidden_states=c, timestep=t, return_dict=False)[0], precision='amp-bf16')
diffusion('prior', lambda d: d.PriorTransformer(num_attention_heads=8, attention_head_dim=64, num_layers=10, embedding_dim=512, num_embeddings=77, additional_embeddings=4), lambda b, dev: (torch.randn(b, 512, device=dev), torch.randint(0, 1000, (b,), device=dev), torch.randn(b, 512, device=dev), torch.randn(b, 77, 512, device=dev)),
          lambda m, x, t, p, c: m(x, timestep=t, proj_embedding=p, encoder_hidden_states=c, return_dict=False)[0])

# ---- MONAI, vit-pytorch ----


def monai(name, make, inputs, **kw):
    def build():
        import monai.networks.nets as n
        return make(n)
    add('monai', 'monai_' + name, build, inputs, **kw)


monai('basic_unet', lambda n: n.BasicUNet(spatial_dims=3, in_channels=1, out_channels=3, features=(24, 24, 48, 96, 192, 24)), floats(1, 64, 64, 64))
monai('vnet', lambda n: n.VNet(spatial_dims=3, in_channels=1, out_channels=3), floats(1, 64, 64, 64))
monai('highresnet', lambda n: n.HighResNet(spatial_dims=3, in_channels=1, out_channels=3), floats(1, 48, 48, 48))


def vitp(name, make, inputs, **kw):
    def build():
        import importlib
        return make(lambda path: importlib.import_module('vit_pytorch.' + path))
    add('vit-pytorch', 'vitp_' + name, build, inputs, **kw)


vitp('pit', lambda v: v('pit').PiT(image_size=224, patch_size=14, dim=256, num_classes=1000, depth=(3, 3, 3), heads=8, mlp_dim=1024, dropout=0.1, emb_dropout=0.1), image())
vitp('regionvit', lambda v: v('regionvit').RegionViT(dim=(64, 128, 256, 512), depth=(2, 2, 6, 2), window_size=7, num_classes=1000, tokenize_local_3_conv=False, use_peg=False), image())
vitp('parallel_vit', lambda v: v('parallel_vit').ViT(image_size=256, patch_size=16, num_classes=1000, dim=512, depth=6, heads=8, mlp_dim=2048, num_parallel_branches=2, dropout=0.1, emb_dropout=0.1), image(256), precision='amp-bf16')

# ---- plain code ----


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.n1, self.n2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out, self.up, self.down, self.drop = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Dropout(0.1)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d)))
        return x + self.drop(self.down(F.gelu(self.up(self.n2(x)))))


class Decoder(nn.Module):
    """A small language model in plain PyTorch."""

    def __init__(self, d=640, depth=10, vocab=6000, length=512):
        super().__init__()
        self.tok, self.pos, self.blocks, self.norm, self.head = nn.Embedding(vocab, d), nn.Embedding(length, d), nn.ModuleList(Block(d, 10) for _ in range(depth)), nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, i):
        x = self.tok(i) + self.pos(torch.arange(i.shape[1], device=i.device))
        for b in self.blocks: x = b(x)
        return self.head(self.norm(x))


class Gated(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad, self.conv, self.mix, self.norm = nn.ConstantPad1d((2 * dilation, 0), 0.), nn.Conv1d(c, 2 * c, 3, dilation=dilation), nn.Conv1d(c, c, 1), nn.GroupNorm(8, c)

    def forward(self, x):
        a, b = self.conv(self.pad(x)).chunk(2, 1)
        return self.norm(x + self.mix(torch.tanh(a) * torch.sigmoid(b)))


class Temporal(nn.Module):
    """A stack of gated, dilated convolutions over time."""

    def __init__(self, c=128, depth=12):
        super().__init__()
        self.into, self.layers, self.head = nn.Conv1d(16, c, 1), nn.Sequential(*(Gated(c, 2 ** (i % 6)) for i in range(depth))), nn.Conv1d(c, 64, 1)

    def forward(self, x): return self.head(self.layers(self.into(x)))


class Residual(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(i, o, 3, stride, 1), nn.Conv2d(o, o, 3, 1, 1), nn.Conv2d(i, o, 1, stride)
        self.n, self.m = nn.GroupNorm(16, i), nn.GroupNorm(16, o)

    def forward(self, x): return self.c(x) + self.b(F.silu(self.m(self.a(F.silu(self.n(x))))))


class Dense(nn.Module):
    """A residual encoder and decoder with skips, for an output of the input's size."""

    def __init__(self):
        super().__init__()
        self.into = nn.Conv2d(3, 48, 3, 1, 1)
        self.down = nn.ModuleList([Residual(48, 96, 2), Residual(96, 192, 2), Residual(192, 384, 2)])
        self.up = nn.ModuleList([Residual(384 + 192, 192, 1), Residual(192 + 96, 96, 1), Residual(96 + 48, 48, 1)])
        self.head = nn.Conv2d(48, 12, 1)

    def forward(self, x):
        skips = [self.into(x)]
        for d in self.down: skips.append(d(skips[-1]))
        x = skips.pop()
        for u in self.up: x = u(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return self.head(x)


add('plain', 'plain_decoder', Decoder, ids(6000, 512), precision='amp-bf16', compiled=True)
add('plain', 'plain_temporal', Temporal, floats(16, 4096), 'mse', compiled=True)
add('plain', 'plain_dense', Dense, image(192), precision='amp-bf16', compiled=True)

# Small ones, to try the script without a GPU.
DRY = {}


def tiny(name, build, inputs, **kw):
    add('dry', name, build, inputs, **kw)
    DRY[name] = PLANS.pop(name)  # not among ORDER


tiny('dry_decoder', lambda: Decoder(40, 4, 300, 32), ids(300, 32), precision='amp-bf16', compiled=True)
tiny('dry_temporal', lambda: Temporal(16, 4), floats(16, 256), loss='mse')

# The libraries take turns, so that whatever time allows is spread.
ORDER = sorted(PLANS, key=lambda n: [k for k in PLANS if PLANS[k]['library'] == PLANS[n]['library']].index(n))
PLANS.update(DRY)
