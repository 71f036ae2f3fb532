"""The models of planner/testdata/held, 31 more, which zoo.py has where the environment says ZOO=held."""
from zoo_parts import *
from zoo_parts import _img, _ce, _seg_ce, _tok
for n, b in dict(resnet152=(8, 32), efficientnet_b4=(8, 24), convnext_base=(8, 24), swin_s=(8, 32), densenet169=(16, 48), regnet_x_1_6gf=(32, 96), mnasnet1_3=(32, 96), vgg19=(16, 48), vit_b_16=(12, 40), resnext101_32x8d=(8, 24),
                 mobilenet_v3_small=(64, 256), wide_resnet101_2=(8, 24), shufflenet_v2_x2_0=(32, 128), swin_v2_s=(4, 12), regnet_y_3_2gf=(16, 64)).items():
    hw = 380 if n == 'efficientnet_b4' else 224
    add(n + '_h', (lambda n: lambda: getattr(tv, n)())(n), _img(hw), _ce(1000), b)
def H(name, cfg, cls, seq, b, **k):
    W, i, l = hf(cfg, cls, seq, **k); add(name, W, i, l, b)
H('mistral_h', lambda t: t.MistralConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4, vocab_size=32000), 'MistralForCausalLM', 384, (4, 12), attn='sdpa')
H('phi_h', lambda t: t.PhiConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=12, vocab_size=32000), 'PhiForCausalLM', 256, (4, 16), attn='sdpa')
H('gemma_h', lambda t: t.GemmaConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=1, head_dim=96, vocab_size=64000), 'GemmaForCausalLM', 256, (4, 16))
H('qwen3_h', lambda t: t.Qwen3Config(hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4, head_dim=64, vocab_size=48000), 'Qwen3ForCausalLM', 256, (4, 16), attn='sdpa')
H('bloom_h', lambda t: t.BloomConfig(hidden_size=768, n_layer=8, n_head=12, vocab_size=32000), 'BloomForCausalLM', 256, (4, 16))
H('modernbert_h', lambda t: t.ModernBertConfig(hidden_size=768, num_hidden_layers=8, intermediate_size=1152, num_attention_heads=12), 'ModernBertForMaskedLM', 256, (8, 24), attn='sdpa')
H('albert_h', lambda t: t.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072), 'AlbertForMaskedLM', 256, (8, 24))
H('gpt_neo_h', lambda t: t.GPTNeoConfig(hidden_size=768, num_layers=8, attention_types=[[["global", "local"], 4]], num_heads=12, vocab_size=32000), 'GPTNeoForCausalLM', 256, (4, 16))
H('mpnet_h', lambda t: t.MPNetConfig(), 'MPNetForMaskedLM', 128, (8, 32))
class IMG(nn.Module):
    def __init__(s, f): super().__init__(); s.m = f()
    def forward(s, x): return s.m(pixel_values=x).logits
def V(name, cfg, cls, b, attn='sdpa', hw=224):
    def f():
        import transformers as t; return getattr(t, cls)._from_config(cfg(t), attn_implementation=attn)
    add(name, lambda: IMG(f), _img(hw), _ce(2), b)
V('deit_h', lambda t: t.DeiTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536), 'DeiTForImageClassification', (16, 64))
V('dinov2_h', lambda t: t.Dinov2Config(hidden_size=384, num_attention_heads=6), 'Dinov2ForImageClassification', (8, 32))
V('hf_resnet_h', lambda t: t.ResNetConfig(), 'ResNetForImageClassification', (16, 64), attn='eager')
V('mobilevit_h', lambda t: t.MobileViTConfig(image_size=256), 'MobileViTForImageClassification', (16, 48), attn='eager', hw=256)
class BART(nn.Module):
    def __init__(s):
        super().__init__(); import transformers as t; s.m = t.BartForConditionalGeneration._from_config(t.BartConfig(encoder_layers=4, decoder_layers=4, d_model=768, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072), attn_implementation='sdpa')
    def forward(s, ids, dec): return s.m(input_ids=ids, decoder_input_ids=dec, use_cache=False).logits
add('bart_h', BART, lambda b, dev: (torch.randint(0, 1000, (b, 128), device=dev), torch.randint(0, 1000, (b, 64), device=dev)), _tok, (8, 24))
class ConvNet(nn.Module):
    def __init__(s):
        super().__init__(); L = []
        for i, o in ((3, 40), (40, 72), (72, 136), (136, 200)): L += [nn.Conv2d(i, o, 5, 2, 2), nn.GroupNorm(8, o), nn.SiLU(), nn.Conv2d(o, o, 3, 1, 1, groups=4), nn.InstanceNorm2d(o, affine=True), nn.GELU()]
        s.f = nn.Sequential(*L); s.h = nn.Linear(200, 10)
    def forward(s, x): return s.h(s.f(x).mean((2, 3)))
add('convnet_h', ConvNet, _img(192), _ce(10), (16, 96))
class Seg(nn.Module):
    """U-Net with bilinear upsampling, GroupNorm and strided convolutions."""
    def __init__(s):
        super().__init__(); c = lambda i, o, st=1: nn.Sequential(nn.Conv2d(i, o, 3, st, 1), nn.GroupNorm(8, o), nn.SiLU())
        s.a, s.b, s.c, s.d = c(3, 48), c(48, 96, 2), c(96, 192, 2), c(192, 384, 2); s.u3, s.u2, s.u1 = c(384 + 192, 192), c(192 + 96, 96), c(96 + 48, 48); s.o = nn.Conv2d(48, 11, 1)
    def forward(s, x):
        a = s.a(x); b = s.b(a); c = s.c(b); d = s.d(c); up = lambda t: F.interpolate(t, scale_factor=2, mode='bilinear', align_corners=False)
        return s.o(s.u1(torch.cat([up(s.u2(torch.cat([up(s.u3(torch.cat([up(d), c], 1))), b], 1))), a], 1)))
add('segnet_h', Seg, _img(256), _seg_ce(11), (4, 16))
