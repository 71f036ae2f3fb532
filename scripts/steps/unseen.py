"""Round 4: models of libraries and of styles of code that memplan was not built on, recorded without a GPU (fake_step.py).

    python unseen.py list
    python unseen.py export OUT [NAME ...]          NAME.onnx.xz each, as rounds.py exports; with another torch as its tag, NAME.onnx.xz too
    python unseen.py runs > RUNS.jsonl              the runs: name, batch, prec, opt, mode
    python unseen.py record RUNS.jsonl OUT.jsonl [REGEX]
    python unseen.py all OUT SECONDS MODELS [NAME ...]   on a GPU, as rounds.py does it; exports those that MODELS lacks

The libraries are on PYTHONPATH, installed without what they depend on; what of that they import only beside their networks (readers of
sound and pictures, trainers, plots) is a stub."""
import importlib.abc, importlib.machinery, json, os, signal, sys, time, traceback, types, warnings

warnings.filterwarnings('ignore')
if sys.argv[1:2] != ['all']: os.environ['CUDA_VISIBLE_DEVICES'] = ''
os.environ.setdefault('YOLO_CONFIG_DIR', '/tmp')
import torch, torch.nn as nn
if os.environ.get('OTHERS'):
    import transformers.utils.import_utils, timm, torchvision  # for those who need them: they ask which libraries there are, before stubs are

STUBS = set('torchaudio sklearn lightning kornia_rs cv2 pytorch_lightning skorch fairscale matplotlib scipy mne pandas ray optuna polars joblib lightning_utilities torchmetrics soundfile librosa '
            'audiotools argbind requests numba discrete_continuous_embed_readout loguru ema_pytorch gateloop_transformer flatten_dict h5py plum fasttransform'.split())


class Kind(type):
    def __getattr__(cls, n):
        if n.startswith('__'): raise AttributeError(n)
        return Stub


class Stub(metaclass=Kind):
    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return a[0] if a and callable(a[0]) else self
    def __class_getitem__(cls, _): return cls
    def __getattr__(self, n):
        if n.startswith('__'): raise AttributeError(n)
        return Stub()


class StubModule(types.ModuleType):
    __path__, __version__ = [], '99.0'

    def __getattr__(self, n):
        if n.startswith('__'): raise AttributeError(n)
        t = nn.Module if n in ('LightningModule', 'BaseModel') else type(n, (Stub,), {})
        setattr(self, n, t)
        return t


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split('.')[0] in STUBS else None

    def create_module(self, spec): return StubModule(spec.name)
    def exec_module(self, module): pass


sys.meta_path.append(Finder())
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rounds
from rounds import ROUNDS, Wrap, add, floats, ids, image, sub, wrapped
from unseen_styles import UNSEEN

ROUNDS.clear()


def lib(library, name, make, inputs, call=None, loss='cross-entropy', batch=8):
    add(4, library, name, wrapped(make, call) if call else make, inputs, loss)
    ROUNDS[name]['batch'] = batch


def both(b, *makers): return lambda n, dev: tuple(m(n, dev)[0] for m in makers)


# ---- open_clip ----

def clip(**vision):
    m = sub('open_clip.model')
    return m.CLIP(256, m.CLIPVisionCfg(**vision), m.CLIPTextCfg(context_length=32, vocab_size=8000, width=256, heads=4, layers=4))


def coca():
    m, c = sub('open_clip.model'), sub('open_clip.coca_model')
    return c.CoCa(256, c.MultimodalCfg(context_length=32, vocab_size=8000, width=256, heads=4, layers=2), m.CLIPTextCfg(context_length=32, vocab_size=8000, width=256, heads=4, layers=2, embed_cls=True, output_tokens=True),
                  m.CLIPVisionCfg(layers=4, width=256, head_width=64, patch_size=16, image_size=112, attentional_pool=True, output_tokens=True))


pair = lambda hw: lambda b, dev: (torch.randn(b, 3, hw, hw, device=dev), torch.randint(1, 8000, (b, 32), device=dev))
similar = lambda m, i, t: m.encode_image(i, normalize=True) @ m.encode_text(t, normalize=True).t()
lib('open_clip', 'clip_vit', lambda: clip(layers=6, width=384, head_width=64, patch_size=16, image_size=112), pair(112), lambda m, i, t: (lambda o: o[0] @ o[1].t() * o[2])(m(i, t)), 'sum', 32)
lib('open_clip', 'clip_vit_drop', lambda: clip(layers=4, width=384, head_width=64, patch_size=16, image_size=112, patch_dropout=0.0, ls_init_value=0.1, pool_type='avg'), pair(112), similar, 'sum', 32)
lib('open_clip', 'clip_resnet', lambda: clip(layers=(1, 1, 2, 1), width=32, image_size=112), pair(112), similar, 'sum', 32)
lib('open_clip', 'clip_coca', coca, pair(112), lambda m, i, t: m(i, t)['logits'], batch=32)

# ---- segment_anything, efficientnet_pytorch, facenet_pytorch, pretrainedmodels ----


def sam(**kw): return sub('segment_anything.modeling').ImageEncoderViT(img_size=256, embed_dim=192, depth=4, num_heads=3, out_chans=64, **kw)


def sam_decoder():
    s = sub('segment_anything.modeling')
    return s.TwoWayTransformer(depth=2, embedding_dim=128, num_heads=4, mlp_dim=512)


lib('segment_anything', 'sam_encoder', lambda: sam(use_rel_pos=True, window_size=7, global_attn_indexes=(1, 3)), image(256), loss='mse')
lib('segment_anything', 'sam_encoder_plain', lambda: sam(), image(256), loss='mse')
lib('segment_anything', 'sam_twoway', sam_decoder, lambda b, dev: (torch.randn(b, 128, 32, 32, device=dev), torch.randn(b, 128, 32, 32, device=dev), torch.randn(b, 9, 128, device=dev)), lambda m, i, p, t: m(i, p, t)[0], 'mse')
lib('efficientnet_pytorch', 'effnet_b0', lambda: sub('efficientnet_pytorch').EfficientNet.from_name('efficientnet-b0'), image(224))
lib('efficientnet_pytorch', 'effnet_b2', lambda: sub('efficientnet_pytorch').EfficientNet.from_name('efficientnet-b2', num_classes=10), image(160))
lib('facenet_pytorch', 'facenet', lambda: sub('facenet_pytorch').InceptionResnetV1(classify=True, num_classes=100), image(160))
for n, hw in dict(nasnetamobile=224, dpn68=224, xception=160, bninception=224, inceptionv4=160).items():
    lib('pretrainedmodels', 'pm_' + n, (lambda n: lambda: sub('pretrainedmodels').__dict__[n](num_classes=1000, pretrained=None))(n), image(hw))

# ---- lucidrains' packages ----

L = 'lucidrains'
lib(L, 'lu_perceiver', lambda: sub('perceiver_pytorch').Perceiver(num_freq_bands=6, depth=2, max_freq=10., num_latents=128, latent_dim=256, latent_heads=4, num_classes=100, self_per_cross_attn=2, attn_dropout=0.1, weight_tie_layers=True), lambda b, dev: (torch.randn(b, 64, 64, 3, device=dev),))
lib(L, 'lu_perceiver_io', lambda: sub('perceiver_pytorch').PerceiverIO(depth=4, dim=128, queries_dim=64, logits_dim=100, num_latents=128, latent_dim=256, latent_heads=4), lambda b, dev: (torch.randn(b, 512, 128, device=dev), torch.randn(b, 64, 64, device=dev)), lambda m, x, q: m(x, queries=q))
lib(L, 'lu_conformer', lambda: sub('conformer').Conformer(dim=256, depth=3, heads=4, conv_dropout=0.1), floats(256, 256), loss='mse')
lib(L, 'lu_performer', lambda: sub('performer_pytorch').PerformerLM(num_tokens=4000, max_seq_len=256, dim=256, depth=3, heads=4, causal=False, auto_check_redraw=False, emb_dropout=0.1), ids(4000, 256))
lib(L, 'lu_linformer', lambda: sub('linformer').LinformerLM(num_tokens=4000, dim=256, seq_len=256, depth=3, k=64, heads=4, dropout=0.1), ids(4000, 256))
lib(L, 'lu_gmlp', lambda: sub('g_mlp_pytorch').gMLP(num_tokens=4000, dim=256, depth=4, seq_len=256, attn_dim=64, causal=True), ids(4000, 256))
lib(L, 'lu_gmlp_vision', lambda: sub('g_mlp_pytorch').gMLPVision(image_size=128, patch_size=16, num_classes=100, dim=256, depth=4), image(128))
lib(L, 'lu_halonet', lambda: sub('halonet_pytorch').HaloAttention(dim=128, block_size=8, halo_size=2, dim_head=32, heads=4), lambda b, dev: (torch.randn(b, 128, 32, 32, device=dev),), loss='mse')
lib(L, 'lu_botnet', lambda: sub('bottleneck_transformer_pytorch').BottleStack(dim=128, fmap_size=32, dim_out=512, num_layers=2, heads=4, dim_head=64, rel_pos_emb=True), lambda b, dev: (torch.randn(b, 128, 32, 32, device=dev),), loss='mse')
lib(L, 'lu_nystrom', lambda: sub('nystrom_attention').Nystromformer(dim=256, depth=2, dim_head=64, heads=4, num_landmarks=64, pinv_iterations=4), floats(512, 256), loss='mse')
lib(L, 'lu_egnn', lambda: sub('egnn_pytorch').EGNN_Network(num_tokens=21, dim=32, depth=2), lambda b, dev: (torch.randint(0, 21, (b, 64), device=dev), torch.randn(b, 64, 3, device=dev)), lambda m, f, c: m(f, c)[0], 'mse')
lib(L, 'lu_local', lambda: sub('local_attention').LocalTransformer(num_tokens=4000, dim=256, depth=3, max_seq_len=512, local_attn_window_size=64, heads=4, attn_dropout=0.1, ff_dropout=0.1), ids(4000, 512))
lib(L, 'lu_ddpm_unet', lambda: sub('denoising_diffusion_pytorch').Unet(dim=32, dim_mults=(1, 2, 4), flash_attn=True), lambda b, dev: (torch.randn(b, 3, 64, 64, device=dev), torch.randint(0, 1000, (b,), device=dev)), loss='mse')
lib(L, 'lu_ddpm_unet1d', lambda: sub('denoising_diffusion_pytorch').Unet1D(dim=32, dim_mults=(1, 2, 4), channels=8), lambda b, dev: (torch.randn(b, 8, 512, device=dev), torch.randint(0, 1000, (b,), device=dev)), loss='mse')
lib(L, 'lu_itransformer', lambda: sub('iTransformer').iTransformer(num_variates=64, lookback_len=96, depth=3, dim=256, pred_length=24, heads=4, dim_head=64, num_residual_streams=1, use_reversible_instance_norm=True), floats(96, 64), lambda m, x: m(x)[24], 'mse')
lib(L, 'lu_ft', lambda: sub('tab_transformer_pytorch').FTTransformer(categories=(10, 5, 6, 5, 8), num_continuous=10, dim=64, dim_out=10, depth=3, heads=4, attn_dropout=0.1, ff_dropout=0.1), lambda b, dev: (torch.randint(0, 5, (b, 5), device=dev), torch.randn(b, 10, device=dev)))

# ---- tables: rtdl, tabm, deepctr_torch ----

tables = lambda b, dev: (torch.randn(b, 30, device=dev), torch.randint(0, 4, (b, 3), device=dev))
lib('rtdl', 'rtdl_ft', lambda: sub('rtdl_revisiting_models').FTTransformer(n_cont_features=30, cat_cardinalities=[4, 5, 6], d_out=10, n_blocks=3, d_block=192, attention_n_heads=8, attention_dropout=0.2, ffn_d_hidden_multiplier=4 / 3, ffn_dropout=0.1, residual_dropout=0.0), tables, batch=64)
lib('rtdl', 'rtdl_resnet', lambda: sub('rtdl_revisiting_models').ResNet(d_in=64, d_out=10, n_blocks=3, d_block=192, d_hidden=None, d_hidden_multiplier=2.0, dropout1=0.15, dropout2=0.0), floats(64), batch=512)
lib('rtdl', 'rtdl_periodic', lambda: nn.Sequential(sub('rtdl_num_embeddings').PeriodicEmbeddings(30, 24, lite=False), nn.Flatten(), nn.Linear(720, 512), nn.ReLU(), nn.Linear(512, 10)), floats(30), batch=256)
lib('rtdl', 'tabm', lambda: sub('tabm').TabM(n_num_features=30, cat_cardinalities=[4, 5, 6], d_out=10, n_blocks=3, d_block=256, dropout=0.1, k=16, arch_type='tabm', start_scaling_init='random-signs'), tables, lambda m, x, c: m(x, c).mean(1), batch=64)


def ctr(cls, **kw):
    i = sub('deepctr_torch.inputs')
    columns = [i.SparseFeat(f'C{k}', 1000, embedding_dim=16) for k in range(10)] + [i.DenseFeat(f'I{k}', 1) for k in range(4)]
    return getattr(sub('deepctr_torch.models'), cls)(columns, columns, dnn_hidden_units=(256, 128), device='cpu', **kw)


clicks = lambda b, dev: (torch.cat([torch.randint(0, 1000, (b, 10), device=dev).float(), torch.rand(b, 4, device=dev)], 1),)
for n, kw in dict(DeepFM=dict(dnn_dropout=0.1), xDeepFM={}, DCNMix={}, AutoInt={}, FiBiNET=dict(dnn_use_bn=True)).items():
    lib('deepctr', 'ctr_' + n.lower(), (lambda n, kw: lambda: ctr(n, **kw))(n, kw), clicks, loss='sum', batch=256)

# ---- language models: litgpt, torchscale, mambapy ----


def gpt(**kw):
    c = sub('litgpt.config').Config(block_size=256, n_layer=3, n_embd=256, n_head=4, vocab_size=4000, padded_vocab_size=4096, **kw)
    return sub('litgpt.model').GPT(c)


lib('litgpt', 'lit_pythia', lambda: gpt(rotary_percentage=0.25), ids(4000, 256))
lib('litgpt', 'lit_llama', lambda: gpt(rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name='RMSNorm', mlp_class_name='LLaMAMLP', intermediate_size=688, n_query_groups=2), ids(4000, 256))
lib('litgpt', 'lit_gemma', lambda: gpt(rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name='RMSNorm', mlp_class_name='GemmaMLP', intermediate_size=1024, n_query_groups=1, scale_embeddings=True, post_attention_norm=True, post_mlp_norm=True, final_logit_softcapping=30.0, attention_logit_softcapping=50.0), ids(4000, 256))
lib('litgpt', 'lit_moe', lambda: gpt(rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name='RMSNorm', mlp_class_name='LLaMAMLP', intermediate_size=688, norm_qk=True), ids(4000, 256))
lib('litgpt', 'lit_falcon', lambda: gpt(rotary_percentage=1.0, parallel_residual=True, bias=False, n_query_groups=1, shared_attention_norm=True), ids(4000, 256))


def scale(**kw):
    c = sub('torchscale.architecture.config').EncoderConfig(vocab_size=4000, encoder_embed_dim=256, encoder_attention_heads=4, encoder_ffn_embed_dim=1024, encoder_layers=3, dropout=0.1, **kw)
    return sub('torchscale.architecture.encoder').Encoder(c, embed_tokens=nn.Embedding(4000, 256), is_encoder_decoder=True)


def retention():
    c = sub('torchscale.architecture.config').RetNetConfig(vocab_size=4000, decoder_embed_dim=256, decoder_value_embed_dim=512, decoder_retention_heads=4, decoder_ffn_embed_dim=512, decoder_layers=3, dropout=0.1)
    return sub('torchscale.architecture.retnet').RetNetDecoder(c, embed_tokens=nn.Embedding(4000, 256))


lib('torchscale', 'ts_encoder', lambda: scale(), ids(4000, 128), lambda m, x: m(x)['encoder_out'], 'mse')
lib('torchscale', 'ts_encoder_rel', lambda: scale(rel_pos_buckets=32, max_rel_pos=128, deepnorm=True), ids(4000, 128), lambda m, x: m(x)['encoder_out'], 'mse')
lib('torchscale', 'ts_retnet', retention, ids(4000, 128), lambda m, x: m(x)[0])
lib('mambapy', 'mamba_py', lambda: sub('mambapy.mamba').Mamba(sub('mambapy.mamba').MambaConfig(d_model=192, n_layers=2, pscan=False)), floats(32, 192), loss='mse')
lib('mambapy', 'jamba_pscan', lambda: sub('mambapy.mamba').Mamba(sub('mambapy.mamba').MambaConfig(d_model=192, n_layers=2, pscan=True)), floats(64, 192), loss='mse')

# ---- sound: speechbrain, encodec, vocos, pytorch_tcn ----

S = 'speechbrain'
lib(S, 'sb_ecapa', lambda: sub('speechbrain.lobes.models.ECAPA_TDNN').ECAPA_TDNN(80, lin_neurons=192, channels=[256, 256, 256, 256, 768]), floats(200, 80), lambda m, x: m(x).squeeze(1))
lib(S, 'sb_xvector', lambda: sub('speechbrain.lobes.models.Xvector').Xvector(in_channels=40, lin_neurons=256, tdnn_channels=[256, 256, 256, 256, 750]), floats(200, 40), lambda m, x: m(x).squeeze(1))
lib(S, 'sb_tasnet', lambda: sub('speechbrain.lobes.models.conv_tasnet').MaskNet(N=128, B=64, H=128, P=3, X=4, R=2, C=2), lambda b, dev: (torch.randn(b, 128, 500, device=dev),), lambda m, x: m(x)[0], 'mse')
asr = lambda **kw: sub('speechbrain.lobes.models.transformer.TransformerASR').TransformerASR(tgt_vocab=500, input_size=320, d_model=256, nhead=4, num_encoder_layers=3, num_decoder_layers=2, d_ffn=1024, causal=False, **kw)
lib(S, 'sb_asr', lambda: asr(), floats(120, 320), lambda m, x: m.encode(x), 'mse')
lib(S, 'sb_asr_conformer', lambda: asr(encoder_module='conformer', attention_type='RelPosMHAXL'), floats(120, 320), lambda m, x: m.encode(x), 'mse')
lib(S, 'sb_conformer', lambda: sub('speechbrain.lobes.models.transformer.Conformer').ConformerEncoder(3, 256, 1024, 4, dropout=0.1, attention_type='regularMHA'), floats(200, 256), lambda m, x: m(x)[0], 'mse')
lib('encodec', 'encodec_seanet', lambda: nn.Sequential(sub('encodec.modules').SEANetEncoder(n_filters=16, dimension=64, ratios=[5, 4, 2], lstm=0), sub('encodec.modules').SEANetDecoder(n_filters=16, dimension=64, ratios=[5, 4, 2], lstm=0)), floats(1, 8000), loss='mse')
lib('encodec', 'encodec_norm', lambda: sub('encodec.modules').SEANetEncoder(n_filters=16, dimension=64, ratios=[4, 4, 2], lstm=0, norm='time_group_norm', causal=False, true_skip=True), floats(1, 8192), loss='mse')
lib('vocos', 'vocos_backbone', lambda: sub('vocos.models').VocosBackbone(100, 256, 768, 4), floats(100, 187), loss='mse')
lib('pytorch_tcn', 'tcn', lambda: sub('pytorch_tcn').TCN(num_inputs=24, num_channels=[64, 64, 128, 128], kernel_size=4, dropout=0.1, causal=True), floats(24, 512), loss='mse')
lib('pytorch_tcn', 'tcn_skip', lambda: sub('pytorch_tcn').TCN(num_inputs=24, num_channels=[64, 64, 64], kernel_size=3, use_norm='layer_norm', activation='leaky_relu', use_skip_connections=True, causal=False, use_gate=True), floats(24, 256), loss='mse')

# ---- vision and others: kornia, ultralytics, stable_baselines3, zuko ----

lib('kornia', 'kornia_hardnet', lambda: sub('kornia.feature').HardNet(pretrained=False), floats(1, 32, 32), loss='mse', batch=64)
lib('kornia', 'kornia_sosnet', lambda: sub('kornia.feature').SOSNet(pretrained=False), floats(1, 32, 32), loss='mse', batch=64)
lib('kornia', 'kornia_loftr', lambda: sub('kornia.feature.loftr.backbone.resnet_fpn').ResNetFPN_8_2(dict(initial_dim=64, block_dims=[64, 96, 128])), image(128, 1), lambda m, x: m(x)[0], 'mse')
lib('kornia', 'kornia_blur', lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), sub('kornia.filters').GaussianBlur2d((5, 5), (1.5, 1.5)), nn.ReLU(), sub('kornia.filters').Sobel(), nn.Conv2d(16, 3, 1)), image(96), loss='mse')


def yolo(cfg, **kw):
    t = sub('ultralytics.nn.tasks')
    y = sub('ultralytics.utils').YAML.load(sub('ultralytics.utils').ROOT / 'cfg' / 'models' / cfg)
    y['scale'] = 'n'
    return t.parse_model(y, ch=3, verbose=False)[0][:9]


for n, c in dict(yolov8n='v8/yolov8.yaml', yolo11n='11/yolo11.yaml', yolo12n='12/yolo12.yaml', yolov10n='v10/yolov10n.yaml').items():
    lib('ultralytics', n, (lambda c: lambda: yolo(c))(c), image(160), loss='mse')


def policy(kind):
    g, p = sub('gymnasium'), sub('stable_baselines3.common.policies')
    if kind == 'cnn': return p.ActorCriticCnnPolicy(g.spaces.Box(0, 255, (4, 84, 84), dtype='uint8'), g.spaces.Discrete(6), lambda _: 1e-3, normalize_images=False)
    return p.ActorCriticPolicy(g.spaces.Box(-1, 1, (64,)), g.spaces.Box(-1, 1, (8,)), lambda _: 1e-3, net_arch=dict(pi=[256, 256], vf=[256, 256]))


def act(m, x):
    features = m.extract_features(x)
    pi, vf = m.mlp_extractor(features)
    return torch.cat([m.action_net(pi), m.value_net(vf)], 1)


lib('stable_baselines3', 'sb3_cnn', lambda: policy('cnn'), floats(4, 84, 84), act, batch=64)
lib('stable_baselines3', 'sb3_mlp', lambda: policy('mlp'), floats(64), act, 'mse', 1024)
lib('zuko', 'zuko_masked', lambda: sub('zuko.nn').MaskedMLP(torch.tril(torch.ones(64, 64)).bool(), (512, 512)), floats(64), loss='mse', batch=512)
lib('zuko', 'zuko_mlp', lambda: sub('zuko.nn').MLP(64, 64, (512, 512), normalize=True), floats(64), loss='mse', batch=512)

for name, (cls, inputs, loss) in UNSEEN.items():
    add(4, 'plain', 'plain_' + name, cls, inputs, loss)
    ROUNDS['plain_' + name]['batch'] = 8
rounds.ORDER = list(ROUNDS)


def runs(name):
    small = ROUNDS[name]['batch']
    yield dict(batch=small, prec='fp32', opt='adamw', mode='train')
    yield dict(batch=small, prec='bf16', opt='adamw', mode='train')
    yield dict(batch=small, prec='amp-bf16', opt='adamw', mode='train')
    yield dict(batch=4 * small, prec='fp32', opt='sgd', mode='train')
    yield dict(batch=4 * small, prec='fp32', opt='sgd', mode='infer')


def record(path, out, pattern=''):
    import re
    import fake_step
    signal.signal(signal.SIGALRM, fake_step.late)
    torch.set_num_threads(1)
    with open(out, 'a') as o:
        for r in map(json.loads, open(path)):
            if not re.search(pattern, r['name']): continue
            z = ROUNDS[r['name']]
            signal.alarm(300)
            try: got = fake_step.record(lambda: rounds.uninitialised(z['build']), z['inputs'], lambda x: rounds.loss_of(z['loss'], x), r['batch'], r['prec'], r['opt'], r['mode'])
            except Exception as e:
                got = dict(err=(type(e).__name__ + ': ' + str(e)).replace('\n', ' ')[:300])
                if os.environ.get('SHOW'): traceback.print_exc()
            finally: signal.alarm(0)
            o.write(json.dumps({**r, 'library': z['library'], 'loss': z['loss'], **got}) + '\n'); o.flush()


if __name__ == '__main__':
    what = sys.argv[1]
    if what == 'list':
        for n in ROUNDS: print(ROUNDS[n]['library'], n)
    elif what == 'export':
        for n in sys.argv[3:] or ROUNDS: print(*rounds.export_task((n, sys.argv[2], 3000)), file=sys.__stdout__, flush=True)
    elif what == 'runs':
        for n in ROUNDS:
            for r in runs(n): print(json.dumps(dict(name=n, loss=ROUNDS[n]['loss'], **r)))
    elif what == 'record': record(*sys.argv[2:])
    elif what == 'all': rounds.everything(sys.argv[2], float(sys.argv[3]), sys.argv[5:] or list(ROUNDS), {f.split('.')[0] for f in os.listdir(sys.argv[4])})
