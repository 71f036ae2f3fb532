"""The models of planner/testdata/zoo: name -> build(), inputs(batch, device), loss(out, batch), two batch sizes.

With ZOO=held in the environment, those of planner/testdata/held in their place, for every script that takes models from here."""
import os
from zoo_parts import *
from zoo_parts import _img, _ce, _seg_ce, _tok

def out0(f):
    class W(nn.Module):
        def __init__(self): super().__init__(); self.m = f()
        def forward(self, x):
            o = self.m(x); return o['out'] if isinstance(o, dict) else o
    return W
for n, b in dict(swin_t=(16, 64), efficientnet_b0=(32, 128), regnet_y_400mf=(32, 128), mnasnet1_0=(32, 128), squeezenet1_1=(64, 256), mobilenet_v3_large=(32, 128), shufflenet_v2_x1_0=(64, 256),
                 resnext50_32x4d=(16, 64), alexnet=(64, 512), resnet101=(16, 64), efficientnet_v2_s=(16, 48), maxvit_t=(8, 24), wide_resnet50_2=(16, 48), vit_b_32=(32, 128), swin_v2_t=(8, 32), resnet34=(32, 128), vgg11_bn=(16, 64), convnext_small=(8,32)).items():
    add(n, (lambda n: lambda: getattr(tv, n)())(n), _img(), _ce(1000), b)
add('googlenet', lambda: tv.googlenet(aux_logits=False, init_weights=False), _img(), _ce(1000), (32, 128))
add('inception_v3', lambda: tv.inception_v3(aux_logits=False, init_weights=False), _img(299), _ce(1000), (16, 64))
add('fcn_resnet50', out0(lambda: tv.segmentation.fcn_resnet50(weights_backbone=None, num_classes=21)), _img(256), _seg_ce(21), (4, 16))
add('deeplabv3_resnet50', out0(lambda: tv.segmentation.deeplabv3_resnet50(weights_backbone=None, num_classes=21)), _img(256), _seg_ce(21), (4, 16))
def H(name, cfg, cls, seq, b, **k):
    W, i, l = hf(cfg, cls, seq, **k); add(name, W, i, l, b)
H('distilbert', lambda t: t.DistilBertConfig(), 'DistilBertForMaskedLM', 128, (16, 64), uc=False, attn='sdpa')
H('roberta_sdpa', lambda t: t.RobertaConfig(), 'RobertaForMaskedLM', 128, (8, 32), attn='sdpa')
H('opt_125m', lambda t: t.OPTConfig(), 'OPTForCausalLM', 256, (4, 16))
H('qwen2', lambda t: t.Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=8, num_attention_heads=14, num_key_value_heads=2, vocab_size=50000), 'Qwen2ForCausalLM', 256, (4, 16), attn='sdpa')
H('qwen2_eager', lambda t: t.Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=8, num_attention_heads=14, num_key_value_heads=2, vocab_size=50000), 'Qwen2ForCausalLM', 256, (4, 16))
H('gpt2_sdpa', lambda t: t.GPT2Config(), 'GPT2LMHeadModel', 256, (4, 16), attn='sdpa')
H('gpt_neox', lambda t: t.GPTNeoXConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12), 'GPTNeoXForCausalLM', 256, (4, 16))
H('electra', lambda t: t.ElectraConfig(hidden_size=256, embedding_size=128), 'ElectraForMaskedLM', 128, (16, 64), uc=False)
class T5(nn.Module):
    def __init__(s):
        super().__init__(); import transformers as t; s.m = t.T5ForConditionalGeneration._from_config(t.T5Config(), attn_implementation='eager')
    def forward(s, ids, dec): return s.m(input_ids=ids, decoder_input_ids=dec, use_cache=False).logits
add('t5_small', T5, lambda b, dev: (torch.randint(0, 1000, (b, 128), device=dev), torch.randint(0, 1000, (b, 64), device=dev)), _tok, (8, 32))
class Whisper(nn.Module):
    def __init__(s):
        super().__init__(); import transformers as t; s.m = t.WhisperForConditionalGeneration._from_config(t.WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536), attn_implementation='sdpa')
    def forward(s, f, dec): return s.m(input_features=f, decoder_input_ids=dec, use_cache=False).logits
add('whisper_tiny', Whisper, lambda b, dev: (torch.randn(b, 80, 3000, device=dev), torch.randint(0, 1000, (b, 64), device=dev)), _tok, (4, 16))
class LSTM(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(10000, 512); s.r = nn.LSTM(512, 512, 2, batch_first=True); s.o = nn.Linear(512, 10000)
    def forward(s, ids): return s.o(s.r(s.e(ids))[0])
add('lstm_lm', LSTM, lambda b, dev: (torch.randint(0, 1000, (b, 128), device=dev),), _tok, (16, 64))
class TE(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(10000, 512); s.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6); s.o = nn.Linear(512, 10000)
    def forward(s, ids): return s.o(s.t(s.e(ids)))
add('transformer', TE, lambda b, dev: (torch.randint(0, 1000, (b, 128), device=dev),), _tok, (16, 64))

if os.environ.get('ZOO') == 'held':
    ZOO.clear()
    import held
