"""Rounds 5 and 6: architectures of transformers and timm that nothing here had measured or exported, drawn at random (random.Random(20261122).shuffle
of the auto classes' and of timm's modules, those kept whose small configuration ran forward), measured as unseen.py does it.

    [DRAW=6] python unseen5.py list | export OUT [NAME ...] | all OUT SECONDS MODELS [NAME ...]"""
import json, os, sys

if sys.argv[1:2] != ['all']: os.environ['CUDA_VISIBLE_DEVICES'] = ''
import torch
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rounds
from rounds import ROUNDS, Wrap, add, floats, ids, image

SMALL = dict(hidden_size=256, d_model=256, n_embd=256, emb_dim=256, dim=256, embed_dim=256, num_hidden_layers=4, n_layers=4, n_layer=4, num_layers=4, encoder_layers=4, decoder_layers=4, num_attention_heads=4, n_heads=4, n_head=4,
             attention_heads=4, encoder_attention_heads=4, decoder_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=768, ffn_dim=768, encoder_ffn_dim=768, decoder_ffn_dim=768, vocab_size=8000, max_position_embeddings=512,
             moe_intermediate_size=256, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, image_size=224, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def small_config(name):
    import transformers as t
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    cls = CONFIG_MAPPING[name]
    default = cls()
    kw = {k: v for k, v in SMALL.items() if hasattr(default, k) and not (k in ('pad_token_id', 'bos_token_id', 'eos_token_id') and getattr(default, k) is None)}
    return cls(**kw)


def first(out):
    for k in ('logits', 'last_hidden_state'):
        if getattr(out, k, None) is not None: return getattr(out, k)
    return out[0]


def hf_build(name, cls):
    def make():
        import transformers as t
        return getattr(t, cls)(small_config(name))
    return lambda: Wrap(make, lambda m, x: first(m(x)))


def timm_build(name):
    def make():
        import timm
        return timm.create_model(name, pretrained=False)
    return make


DRAW = os.environ.get('DRAW', '5')
PICKED = os.path.join(os.path.dirname(os.path.abspath(__file__)), f'unseen{DRAW}.json')
if os.path.exists(PICKED):
    ROUNDS.clear()
    for kind, name, what in json.load(open(PICKED)):
        key = (('timm' if kind == 'timm' else 'hf') + DRAW + '_') + name.replace('.', '_').replace('-', '_')
        if kind == 'timm': add(int(DRAW), 'timm', key, timm_build(name), image(what))
        else: add(int(DRAW), 'transformers', key, hf_build(name, what), image(224) if kind == 'img' else ids(8000, 128))
        ROUNDS[key]['batch'] = 8
    rounds.ORDER = list(ROUNDS)

if __name__ == '__main__':
    what = sys.argv[1]
    if what == 'list':
        for n in ROUNDS: print(ROUNDS[n]['library'], n)
    elif what == 'export':
        for n in sys.argv[3:] or ROUNDS: print(*rounds.export_task((n, sys.argv[2], 3000)), file=sys.__stdout__, flush=True)
    elif what == 'all': rounds.everything(sys.argv[2], float(sys.argv[3]), sys.argv[5:] or list(ROUNDS), {f.split('.')[0] for f in os.listdir(sys.argv[4])})
