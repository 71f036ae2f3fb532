"""Three rounds of models that memplan was not built on, each library whole in one round: exports, peaks of training steps and
inferences on the GPU, and allocator traces, all in one run of some minutes (planner/testdata/rounds).

    python rounds.py all OUT SECONDS      exports on every core, measures and traces beside it until the time is over
    python rounds.py list                 names the models
    python rounds.py export OUT NAME ...  exports only, without a GPU
    python rounds.py trace OUT SECONDS RUNS.jsonl   traces the runs of a file in its order

OUT gets models.tar (NAME.onnx.xz each: training mode, dynamo, not optimised, symbolic batch, stack traces kept, weights stripped),
runs.jsonl (which runs succeeded, without a figure: what a prediction needs), steps.jsonl (what was measured), traces.tar and log.

Batches are chosen on the card: two small ones give the slope, and then a step takes about 2 and about 8 GiB."""
import gc, json, lzma, multiprocessing, os, re, signal, sys, tarfile, tempfile, threading, time, warnings

warnings.filterwarnings('ignore')
os.environ.setdefault('TORCH_SYMBOLIZE_MODE', 'dladdr')
import torch, torch.nn as nn, torch.nn.functional as F
from styles import STYLES, floats, ids

ROUNDS = {}  # name -> dict(round, library, build, inputs, loss, most)


def add(round, library, name, build, inputs, loss='cross-entropy', most=2048):
    ROUNDS[name] = dict(round=round, library=library, build=build, inputs=inputs, loss=loss, most=most)


class Wrap(nn.Module):
    """A library's model with the call and the output that a training loop uses."""

    def __init__(self, make, call):
        super().__init__()
        self.m = make()
        self.call = call

    def forward(self, *x):
        return self.call(self.m, *x)


def wrapped(make, call): return lambda: Wrap(make, call)


def image(hw=224, c=3): return floats(c, hw, hw)


# ---- round 1: timm, torchaudio ----

def timm_model(name, hw, **kw):
    def make():
        import timm
        return timm.create_model(name, pretrained=False, **kw)
    add(1, 'timm', 'timm_' + name.replace('.', '_'), make, image(hw))


for name, hw in dict(eca_nfnet_l0=224, mixer_s32_224=224, coatnet_0_rw_224=224, mobilevitv2_100=256, pvt_v2_b1=224, twins_svt_small=224, cait_xxs24_224=224, levit_256=224,
                     poolformerv2_s12=224, res2net50_26w_4s=224, ghostnet_100=224, xcit_tiny_12_p16_224=224, beit_base_patch16_224=224, eva02_tiny_patch14_224=224, botnet26t_256=256,
                     davit_tiny=224, fastvit_t8=256, mambaout_tiny=224).items(): timm_model(name, hw)


def audio(name, make, inputs, call=lambda m, *x: m(*x), loss='cross-entropy', **kw):
    def build():
        import torchaudio
        return make(torchaudio.models)
    add(1, 'torchaudio', 'audio_' + name, wrapped(build, call), inputs, loss, **kw)


def conformer(m, x):
    x = x.transpose(0, 1)
    for layer in m.conformer_layers:
        x = layer(x, None)
    return x.transpose(0, 1)


audio('conformer', lambda a: a.Conformer(256, 4, 1024, 6, 31), floats(200, 256), conformer)
audio('wav2letter', lambda a: a.Wav2Letter(num_classes=40, input_type='mfcc', num_features=80), floats(80, 600))
audio('deepspeech', lambda a: a.DeepSpeech(n_feature=80, n_hidden=1024, n_class=40), floats(1, 200, 80))
audio('convtasnet', lambda a: a.conv_tasnet_base(num_sources=2), floats(1, 8000), loss='mse')
audio('hdemucs', lambda a: a.hdemucs_low(sources=['drums', 'vocals']), floats(2, 44100), loss='mse')
audio('wav2vec2', lambda a: a.wav2vec2_base(aux_num_out=32), floats(32000), lambda m, x: m(x)[0])
audio('wavernn', lambda a: a.WaveRNN(upsample_scales=[5, 5, 8], n_classes=256, hop_length=200), lambda b, dev: (torch.randn(b, 1, 200 * 12, device=dev), torch.randn(b, 1, 128, 16, device=dev)),
      lambda m, w, s: m(w, s).squeeze(1))
audio('squim', lambda a: a.squim_objective_base(), floats(16000), lambda m, x: m(x)[0], 'sum')

# ---- round 2: diffusers, torchvision, vit-pytorch, x-transformers ----


def diffusion(name, make, inputs, call, loss='mse', **kw):
    def build():
        import diffusers
        return make(diffusers)
    add(2, 'diffusers', 'diff_' + name, wrapped(build, call), inputs, loss, **kw)


def latents(c, hw, *more):
    def f(b, dev): return (torch.randn(b, c, hw, hw, device=dev), torch.randint(0, 1000, (b,), device=dev), *(torch.randn(b, *s, device=dev) for s in more))
    return f


first = lambda m, *x: m(*x, return_dict=False)[0]
diffusion('unet2d', lambda d: d.UNet2DModel(sample_size=64, block_out_channels=(64, 128, 256), layers_per_block=1, down_block_types=('DownBlock2D', 'DownBlock2D', 'AttnDownBlock2D'), up_block_types=('AttnUpBlock2D', 'UpBlock2D', 'UpBlock2D')), latents(3, 64), first)
diffusion('unet_condition', lambda d: d.UNet2DConditionModel(sample_size=32, block_out_channels=(96, 192, 384), layers_per_block=1, norm_num_groups=32, cross_attention_dim=256, attention_head_dim=8,
                                                            down_block_types=('CrossAttnDownBlock2D', 'CrossAttnDownBlock2D', 'DownBlock2D'), up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D', 'CrossAttnUpBlock2D')),
          latents(4, 32, (77, 256)), first)
diffusion('autoencoder_kl', lambda d: d.AutoencoderKL(block_out_channels=(64, 128, 256), down_block_types=('DownEncoderBlock2D',) * 3, up_block_types=('UpDecoderBlock2D',) * 3, norm_num_groups=32), image(128),
          lambda m, x: m.decode(m.encode(x).latent_dist.mode()).sample)
diffusion('autoencoder_tiny', lambda d: d.AutoencoderTiny(), image(128), first)
diffusion('dit', lambda d: d.DiTTransformer2DModel(num_attention_heads=6, attention_head_dim=64, num_layers=8, sample_size=32, in_channels=4), lambda b, dev: (torch.randn(b, 4, 32, 32, device=dev), torch.randint(0, 1000, (b,), device=dev), torch.randint(0, 1000, (b,), device=dev)),
          lambda m, x, t, y: m(x, timestep=t, class_labels=y, return_dict=False)[0])
diffusion('pixart', lambda d: d.PixArtTransformer2DModel(num_attention_heads=6, attention_head_dim=64, num_layers=6, sample_size=32, in_channels=4, cross_attention_dim=384, caption_channels=512, use_additional_conditions=False), latents(4, 32, (64, 512)),
          lambda m, x, t, c: m(x, encoder_hidden_states=c, timestep=t, added_cond_kwargs={'resolution': None, 'aspect_ratio': None}, return_dict=False)[0])
diffusion('sd3', lambda d: d.SD3Transformer2DModel(sample_size=32, patch_size=2, in_channels=16, num_layers=6, attention_head_dim=64, num_attention_heads=6, joint_attention_dim=512, caption_projection_dim=384, pooled_projection_dim=256, out_channels=16),
          latents(16, 32, (77, 512), (256,)), lambda m, x, t, c, p: m(x, encoder_hidden_states=c, pooled_projections=p, timestep=t, return_dict=False)[0])
diffusion('unet1d', lambda d: d.UNet1DModel(sample_size=4096, in_channels=2, out_channels=2, extra_in_channels=64, block_out_channels=(32, 64, 128)), lambda b, dev: (torch.randn(b, 2, 4096, device=dev), torch.randint(0, 1000, (b,), device=dev)), first)
diffusion('unet3d', lambda d: d.UNet3DConditionModel(sample_size=16, block_out_channels=(64, 128), layers_per_block=1, norm_num_groups=32, cross_attention_dim=128, attention_head_dim=32, down_block_types=('CrossAttnDownBlock3D', 'DownBlock3D'), up_block_types=('UpBlock3D', 'CrossAttnUpBlock3D')),
          lambda b, dev: (torch.randn(b, 4, 8, 16, 16, device=dev), torch.randint(0, 1000, (b,), device=dev), torch.randn(b, 20, 128, device=dev)), first)


def vision(name, make, inputs, call=lambda m, *x: m(*x), loss='cross-entropy', **kw):
    def build():
        import torchvision
        return make(torchvision.models)
    add(2, 'torchvision', 'tv_' + name, wrapped(build, call), inputs, loss, **kw)


for name in ('r3d_18', 'mc3_18', 'r2plus1d_18'): vision(name, (lambda n: lambda m: getattr(m.video, n)())(name), floats(3, 8, 112, 112))
vision('s3d', lambda m: m.video.s3d(), floats(3, 16, 224, 224))
vision('mvit_v2_s', lambda m: m.video.mvit_v2_s(), floats(3, 16, 224, 224))
vision('swin3d_t', lambda m: m.video.swin3d_t(), floats(3, 8, 112, 112))
vision('lraspp', lambda m: m.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=21), image(256), lambda m, x: m(x)['out'])
vision('fpn', lambda m: m.detection.backbone_utils.resnet_fpn_backbone(backbone_name='resnet18', weights=None, trainable_layers=5), image(256), lambda m, x: m(x)['0'], 'mse')
vision('ssd', lambda m: m.detection.ssd300_vgg16(weights=None, weights_backbone=None, trainable_backbone_layers=5), image(300), lambda m, x: m.head(list(m.backbone(x).values()))['cls_logits'])
vision('raft_small', lambda m: m.optical_flow.raft_small(), lambda b, dev: (torch.randn(b, 3, 128, 160, device=dev), torch.randn(b, 3, 128, 160, device=dev)), lambda m, a, b: m(a, b, num_flow_updates=3)[-1], 'mse')


def vitp(name, make, inputs, **kw):
    def build():
        import vit_pytorch
        return make(vit_pytorch)
    add(2, 'vit-pytorch', 'vitp_' + name, build, inputs, **kw)


def sub(path):
    import importlib
    return importlib.import_module(path)


vitp('simple_vit', lambda v: v.SimpleViT(image_size=224, patch_size=16, num_classes=1000, dim=384, depth=8, heads=6, mlp_dim=1536), image())
vitp('cct', lambda v: sub('vit_pytorch.cct').CCT(img_size=(224, 224), embedding_dim=384, n_conv_layers=2, kernel_size=7, stride=2, padding=3, pooling_kernel_size=3, pooling_stride=2, pooling_padding=1, num_layers=8, num_heads=6, mlp_ratio=3., num_classes=1000, positional_embedding='learnable'), image())
vitp('deepvit', lambda v: sub('vit_pytorch.deepvit').DeepViT(image_size=224, patch_size=16, num_classes=1000, dim=384, depth=6, heads=6, mlp_dim=1536, dropout=0.1, emb_dropout=0.1), image())
vitp('vit3d', lambda v: sub('vit_pytorch.vit_3d').ViT(image_size=128, frames=16, image_patch_size=16, frame_patch_size=2, num_classes=400, dim=384, depth=6, heads=6, mlp_dim=1536, dropout=0.1, emb_dropout=0.1), floats(3, 16, 128, 128))
vitp('cross_vit', lambda v: sub('vit_pytorch.cross_vit').CrossViT(image_size=224, num_classes=1000, depth=2, sm_dim=192, sm_patch_size=16, sm_enc_depth=2, sm_enc_heads=6, sm_enc_mlp_dim=768, lg_dim=384, lg_patch_size=32, lg_enc_depth=2, lg_enc_heads=6, lg_enc_mlp_dim=1536, cross_attn_depth=2, cross_attn_heads=6, dropout=0.1, emb_dropout=0.1), image())
vitp('nest', lambda v: sub('vit_pytorch.nest').NesT(image_size=224, patch_size=4, dim=96, heads=3, num_hierarchies=3, block_repeats=(2, 2, 4), num_classes=1000), image())


def xt(name, make):
    def build():
        import x_transformers
        return make(x_transformers)
    add(2, 'x-transformers', 'xt_' + name, build, ids(8000, 256))


xt('rotary', lambda x: x.TransformerWrapper(num_tokens=16000, max_seq_len=256, attn_layers=x.Decoder(dim=512, depth=6, heads=8, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True)))
xt('alibi_flash', lambda x: x.TransformerWrapper(num_tokens=16000, max_seq_len=256, attn_layers=x.Decoder(dim=512, depth=6, heads=8, attn_flash=True, alibi_pos_bias=True, alibi_num_heads=4)))
xt('encoder', lambda x: x.TransformerWrapper(num_tokens=16000, max_seq_len=256, attn_layers=x.Encoder(dim=512, depth=6, heads=8, attn_dropout=0.1, ff_dropout=0.1, rel_pos_bias=True)))

# ---- round 3: transformers, MONAI, segmentation-models, PyTorch Geometric ----


def hf(name, config, cls, inputs, call, loss='cross-entropy', attn='sdpa', **kw):
    def build():
        import transformers as t
        c = config(t)
        c.use_cache = False
        return getattr(t, cls)._from_config(c, attn_implementation=attn)
    add(3, 'transformers', 'hf_' + name, wrapped(build, call), inputs, loss, **kw)


tokens = lambda m, ids: m(input_ids=ids, use_cache=False).logits
masked = lambda m, ids: m(input_ids=ids).logits
pixels = lambda m, x: m(pixel_values=x).logits
LM = dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, vocab_size=24000)
hf('olmo2', lambda t: t.Olmo2Config(**LM), 'Olmo2ForCausalLM', ids(1000, 256), tokens)
hf('gemma3', lambda t: t.Gemma3TextConfig(**LM, head_dim=64), 'Gemma3ForCausalLM', ids(1000, 256), tokens)
hf('granite', lambda t: t.GraniteConfig(**LM), 'GraniteForCausalLM', ids(1000, 256), tokens, attn='eager')
hf('starcoder2', lambda t: t.Starcoder2Config(**LM), 'Starcoder2ForCausalLM', ids(1000, 256), tokens)
hf('cohere', lambda t: t.CohereConfig(**LM), 'CohereForCausalLM', ids(1000, 256), tokens)
hf('mamba', lambda t: t.MambaConfig(hidden_size=384, num_hidden_layers=2, vocab_size=8000), 'MambaForCausalLM', ids(1000, 48), lambda m, ids: m(input_ids=ids, use_cache=False).logits, attn='eager')
hf('xlnet', lambda t: t.XLNetConfig(d_model=512, n_layer=6, n_head=8, d_inner=2048, vocab_size=16000), 'XLNetLMHeadModel', ids(1000, 128), lambda m, ids: m(input_ids=ids, use_mems=False).logits, attn='eager')
hf('deberta_v2', lambda t: t.DebertaV2Config(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048, vocab_size=16000, relative_attention=True, pos_att_type=['p2c', 'c2p'], position_buckets=64, share_att_key=True, norm_rel_ebd='layer_norm'), 'DebertaV2ForMaskedLM', ids(1000, 128), masked, attn='eager')
hf('convbert', lambda t: t.ConvBertConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048, vocab_size=16000), 'ConvBertForMaskedLM', ids(1000, 128), masked, attn='eager')
hf('marian', lambda t: t.MarianConfig(d_model=512, encoder_layers=4, decoder_layers=4, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=24000, pad_token_id=0, decoder_start_token_id=0),
   'MarianMTModel', lambda b, dev: (torch.randint(1, 1000, (b, 96), device=dev), torch.randint(1, 1000, (b, 64), device=dev)), lambda m, i, d: m(input_ids=i, decoder_input_ids=d, use_cache=False).logits)
hf('wav2vec2', lambda t: t.Wav2Vec2Config(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, apply_spec_augment=False), 'Wav2Vec2ForCTC', floats(32000), lambda m, x: m(x).logits)
hf('ast', lambda t: t.ASTConfig(hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536, max_length=512), 'ASTForAudioClassification', floats(512, 128), lambda m, x: m(x).logits)
hf('segformer', lambda t: t.SegformerConfig(num_labels=20), 'SegformerForSemanticSegmentation', image(256), pixels, attn='eager')
hf('yolos', lambda t: t.YolosConfig(hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536, image_size=[256, 256]), 'YolosForObjectDetection', image(256), pixels)
hf('detr', lambda t: t.DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=t.ResNetConfig(depths=[2, 2, 2, 2], layer_type='basic', hidden_sizes=[64, 128, 256, 512], out_features=['stage4']), encoder_layers=3, decoder_layers=3), 'DetrForObjectDetection', image(320),
   lambda m, x: m(pixel_values=x, pixel_mask=torch.ones(x.shape[0], 320, 320, dtype=torch.long, device=x.device)).logits, attn='eager')
hf('videomae', lambda t: t.VideoMAEConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, image_size=112, num_frames=8), 'VideoMAEForVideoClassification', floats(8, 3, 112, 112), pixels)
hf('timesformer', lambda t: t.TimesformerConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, image_size=112, num_frames=8), 'TimesformerForVideoClassification', floats(8, 3, 112, 112), pixels, attn='eager')
hf('clip', lambda t: t.CLIPConfig(text_config=dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=8000, eos_token_id=2), vision_config=dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, image_size=224, patch_size=16), projection_dim=256), 'CLIPModel',
   lambda b, dev: (torch.randint(3, 8000, (b, 32), device=dev), torch.randn(b, 3, 224, 224, device=dev)), lambda m, i, p: m(input_ids=i, pixel_values=p).logits_per_image)
hf('dpt', lambda t: t.DPTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, image_size=224, neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64), 'DPTForDepthEstimation', image(224), lambda m, x: m(pixel_values=x).predicted_depth, 'mse')
hf('convnextv2', lambda t: t.ConvNextV2Config(), 'ConvNextV2ForImageClassification', image(), pixels, attn='eager')
hf('dinov3', lambda t: t.DINOv3ViTConfig(hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536), 'DINOv3ViTModel', image(), lambda m, x: m(pixel_values=x).last_hidden_state, 'mse')
hf('swin2sr', lambda t: t.Swin2SRConfig(embed_dim=60, depths=[2, 2], num_heads=[6, 6], upscale=2, image_size=64), 'Swin2SRForImageSuperResolution', image(64), lambda m, x: m(pixel_values=x).reconstruction, 'mse', attn='eager')
hf('patchtst', lambda t: t.PatchTSTConfig(num_input_channels=7, context_length=512, prediction_length=96, patch_length=16, patch_stride=8, d_model=256, num_hidden_layers=4, num_attention_heads=8, ffn_dim=1024), 'PatchTSTForPrediction', floats(512, 7), lambda m, x: m(past_values=x).prediction_outputs, 'mse')


def monai(name, make, inputs, loss='cross-entropy', **kw):
    def build():
        import monai.networks.nets as n
        return make(n)
    add(3, 'monai', 'monai_' + name, build, inputs, loss, **kw)


monai('unet3d', lambda n: n.UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2), floats(1, 64, 64, 64))
monai('segresnet', lambda n: n.SegResNet(spatial_dims=3, init_filters=16, in_channels=1, out_channels=3), floats(1, 64, 64, 64))
monai('unetr', lambda n: n.UNETR(in_channels=1, out_channels=3, img_size=(64, 64, 64), feature_size=16, hidden_size=384, mlp_dim=1536, num_heads=6), floats(1, 64, 64, 64))
monai('swin_unetr', lambda n: n.SwinUNETR(in_channels=1, out_channels=3, feature_size=24, spatial_dims=3), floats(1, 64, 64, 64))
monai('attention_unet', lambda n: n.AttentionUnet(spatial_dims=2, in_channels=1, out_channels=3, channels=(32, 64, 128, 256), strides=(2, 2, 2)), image(128, 1))
monai('densenet3d', lambda n: n.DenseNet121(spatial_dims=3, in_channels=1, out_channels=3), floats(1, 64, 64, 64))


def smp(name, make, hw=128):
    def build():
        import segmentation_models_pytorch as s
        return make(s)
    add(3, 'segmentation-models', 'smp_' + name, build, image(hw))


smp('unet', lambda s: s.Unet('resnet18', encoder_weights=None, classes=11))
smp('fpn', lambda s: s.FPN('mobilenet_v2', encoder_weights=None, classes=11))
smp('deeplabv3plus', lambda s: s.DeepLabV3Plus('resnet18', encoder_weights=None, classes=11))
smp('manet', lambda s: s.MAnet('resnet18', encoder_weights=None, classes=11))
smp('segformer', lambda s: s.Segformer('mit_b0', encoder_weights=None, classes=11))
smp('linknet', lambda s: s.Linknet('resnet18', encoder_weights=None, classes=11))


class DenseGNN(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        import torch_geometric.nn as g
        self.a, self.b, self.head = g.DenseSAGEConv(64, 256), g.DenseGCNConv(256, 256), nn.Linear(256, 20)

    def forward(self, x, adj):
        return self.head(self.b(self.a(x, adj).relu(), adj).relu().mean(1))


class EdgeGNN(nn.Module):
    def __init__(self, conv, edges=4000):
        super().__init__()
        import torch_geometric.nn as g
        self.a, self.b, self.head = getattr(g, conv)(64, 256), getattr(g, conv)(256, 256), nn.Linear(256, 20)
        gen = torch.Generator().manual_seed(0)
        self.register_buffer('edge_index', torch.randint(0, 500, (2, edges), generator=gen))

    def forward(self, x):
        x = F.relu(self.a(x, self.edge_index))
        x = F.dropout(x, 0.5, training=self.training)
        return self.head(F.relu(self.b(x, self.edge_index)))


add(3, 'torch-geometric', 'pyg_dense', DenseGNN, lambda b, dev: (torch.randn(b, 100, 64, device=dev), torch.rand(b, 100, 100, device=dev)))
add(3, 'torch-geometric', 'pyg_graph', lambda: EdgeGNN('GraphConv'), floats(500, 64))
add(3, 'torch-geometric', 'pyg_sage', lambda: EdgeGNN('SAGEConv'), floats(500, 64))

for name, (r, cls, inputs, loss) in STYLES.items(): add(r, 'plain', 'plain_' + name, cls, inputs, loss)

# Priority: the styles and the libraries take turns, so that whatever time allows is spread.
ORDER = sorted(ROUNDS, key=lambda n: [k for k in ROUNDS if ROUNDS[k]['library'] == ROUNDS[n]['library']].index(n))


# ---- losses as memplan has them ----

def loss_of(kind, out):
    if kind == 'mse': return F.mse_loss(out, torch.randn_like(out))
    if kind == 'sum': return out.sum()
    if out.dim() == 3: return F.cross_entropy(out.reshape(-1, out.shape[-1]).float(), torch.randint(0, out.shape[-1], (out.shape[0] * out.shape[1],), device=out.device))
    return F.cross_entropy(out, torch.randint(0, out.shape[1], (out.shape[0], *out.shape[2:]), device=out.device))


class Late(Exception): pass


def limit(seconds):
    def late(*_): raise Late(f'more than {seconds} s')
    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)


# ---- exporting ----

HERE = os.path.dirname(os.path.abspath(__file__))
PLACES = [(HERE, '/home/user/repo'), (os.path.dirname(os.path.dirname(torch.__file__)), '/usr/lib/python3/site-packages')]
PLACES += [(p, '/usr/lib/python3/site-packages') for p in os.environ.get('PYTHONPATH', '').split(':') if p]


def strip(m):
    """Initializers over 1 KiB become references to a file that does not exist; paths lose what is of one machine."""
    import onnx
    offset = 0
    for t in m.graph.initializer:
        size = len(t.raw_data)
        if size > 1024:
            t.ClearField('raw_data')
            t.data_location = onnx.TensorProto.EXTERNAL
            for k, v in (('location', 'weights.bin'), ('offset', str(offset)), ('length', str(size))):
                e = t.external_data.add(); e.key = k; e.value = v
            offset += size
    for nodes in [m.graph.node] + [f.node for f in m.functions]: places(nodes)
    return m


def places(nodes):
    for node in nodes:
        for p in node.metadata_props:
            if p.key == 'pkg.torch.onnx.stack_trace':
                for a, b in PLACES: p.value = p.value.replace(a, b)
        for a in node.attribute: places(a.g.node)


def export(name, out):
    import onnx
    torch.set_num_threads(1)
    torch.manual_seed(0)
    z = ROUNDS[name]
    model = uninitialised(z['build']).train()
    args = z['inputs'](2, 'cpu')
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, 'model.onnx')
        torch.onnx.export(model, args, path, dynamo=True, external_data=False, optimize=False, verbose=False, input_names=[f'input{i}' for i in range(len(args))], output_names=['output'],
                          dynamic_shapes=dynamic(z['build'], model, args))
        m = strip(onnx.load(path))
    with lzma.open(f'{out}/{name}.onnx.part', 'wb', preset=9) as f: f.write(m.SerializeToString())
    os.rename(f'{out}/{name}.onnx.part', f'{out}/{name}.onnx.xz')


def dynamic(build, model, args):
    batch = torch.export.Dim('batch', min=1, max=4096)
    return (tuple({0: batch} for _ in args),) if isinstance(model, Wrap) else tuple({0: batch} for _ in args)


def export_task(job):
    name, out, seconds = job
    t = time.time()
    sys.stdout = open(os.devnull, 'w')
    try:
        limit(seconds)
        export(name, out)
        signal.alarm(0)
        return name, '', time.time() - t
    except BaseException as e:
        signal.alarm(0)
        return name, (type(e).__name__ + ': ' + str(e)).replace('\n', ' ')[-400:], time.time() - t


# ---- measuring, as measure.py does it ----

def uninitialised(build):
    """Weights as they are allocated: initialisation takes most of the time and no memory."""
    kept = {n: getattr(torch.Tensor, n) for n in ('normal_', 'uniform_', 'erfinv_', 'trunc_')}
    try:
        for n in kept: setattr(torch.Tensor, n, lambda t, *a, **k: t)
        return build()
    finally:
        for n, f in kept.items(): setattr(torch.Tensor, n, f)


def clear():
    gc.collect(); torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()


def saved_bytes(fn):
    """What autograd saves, each storage once. The graph holds numbers in place of tensors: what an unused output's graph keeps would never go."""
    seen, kept = {}, []
    def pack(t):
        if t.is_cuda:
            s = t.untyped_storage(); seen[s.data_ptr()] = s.nbytes()
        kept.append(t)
        return len(kept) - 1
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: kept[i]): r = fn()
    return r, sum(seen.values()), kept


AUTOCAST = lambda prec: torch.autocast('cuda', dtype=torch.bfloat16, enabled=prec == 'amp-bf16')
OPT = {'sgd': lambda p: torch.optim.SGD(p, lr=1e-3), 'adamw': lambda p: torch.optim.AdamW(p, lr=1e-4)}


def prepared(name, batch, prec):
    z = ROUNDS[name]
    clear()
    torch.manual_seed(0)
    base0 = torch.cuda.memory_allocated()
    model = uninitialised(z['build']).to('cuda')
    if prec == 'bf16': model = model.to(torch.bfloat16)
    x = z['inputs'](batch, 'cuda')
    if prec == 'bf16': x = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in x)
    return z, base0, model, x


def run(name, batch, prec, opt, mode='train', steps=5):
    z, base0, model, x = prepared(name, batch, prec)
    rec = dict(round=z['round'], library=z['library'], name=name, batch=batch, prec=prec, opt=opt, mode=mode, loss=z['loss'], base0=base0, params=sum(p.numel() * p.element_size() for p in model.parameters()),
               buffers=sum(b.numel() * b.element_size() for b in model.buffers()), inputs=sum(t.numel() * t.element_size() for t in x))
    if mode == 'infer':
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
                with AUTOCAST(prec): out = model(*x)
                torch.cuda.synchronize(); rec['peak'] = torch.cuda.max_memory_allocated(); rec['reserved'] = torch.cuda.max_memory_reserved()
                del out
        return rec
    model.train()
    P = [p for p in model.parameters() if p.requires_grad]
    o = OPT[opt](P)
    for step in range(steps):
        torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
        o.zero_grad(set_to_none=True)
        a0 = torch.cuda.memory_allocated()
        def fwd():
            with AUTOCAST(prec):
                out = model(*x)
                return loss_of(z['loss'], out)
        if step == 4: loss, rec['saved_unique_storage'], kept = saved_bytes(fwd)
        else: loss = fwd()
        torch.cuda.synchronize(); f_peak = torch.cuda.max_memory_allocated(); a1 = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
        loss.backward()
        torch.cuda.synchronize(); b_peak = torch.cuda.max_memory_allocated(); a2 = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
        o.step()
        torch.cuda.synchronize(); o_peak = torch.cuda.max_memory_allocated(); a3 = torch.cuda.memory_allocated()
        if step == 4: kept.clear()
        del loss
        p = dict(before=a0, after_fwd=a1, after_bwd=a2, after_opt=a3, fwd_peak=f_peak, bwd_peak=b_peak, opt_peak=o_peak, peak=max(f_peak, b_peak, o_peak))
        if step == 0: rec['first_step'] = p
        if step == min(3, steps - 1): rec['steady'] = p; rec['reserved'] = torch.cuda.max_memory_reserved()  # the next step keeps more
    rec['peak'] = max(rec['first_step']['peak'], rec['steady']['peak'])
    rec['without_grad'] = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None][:20]
    return rec


GIB = 1 << 30


def batches(name):
    """Batches of a step of about 2 and about 8 GiB, from the slope between two small ones."""
    a, b = 2, 6
    pa, pb = (run(name, k, 'fp32', 'adamw', steps=2)['peak'] for k in (a, b))
    slope = max((pb - pa) / (b - a), 1 << 10)
    pick = lambda gib: int(max(2, min(ROUNDS[name]['most'], (gib * GIB - pb) / slope + b)))
    small, large = pick(2), pick(8)
    tidy = lambda n: n if n < 24 else n // 8 * 8
    return tidy(small), max(tidy(large), tidy(small) + 1)


def jobs(small, large):
    yield dict(batch=small, prec='fp32', opt='adamw')
    yield dict(batch=small, prec='bf16', opt='adamw')
    yield dict(batch=small, prec='amp-bf16', opt='adamw')
    yield dict(batch=large, prec='fp32', opt='sgd', mode='infer')
    yield dict(batch=large, prec='fp32', opt='sgd')
    yield dict(batch=large, prec='amp-bf16', opt='adamw')


def measure(name, emit, deadline):
    limit(40)
    try: small, large = batches(name)
    except BaseException as e: return emit(dict(name=name, err=('batches: ' + type(e).__name__ + ': ' + str(e))[:300]))
    finally: signal.alarm(0)
    for j in jobs(small, large):
        if time.time() > deadline: return
        try:
            limit(20)
            r = run(name, **j)
        except BaseException as e: r = dict(j, name=name, err=(type(e).__name__ + ': ' + str(e))[:300])
        finally: signal.alarm(0)
        emit(r)


# ---- traces, as traces.py does it ----

OP = re.compile(r'at::_ops::([A-Za-z0-9_]+)::(?:call|redispatch)')
NODE = re.compile(r'torch::autograd::(?:generated::)?([A-Za-z0-9_]+)::apply')


def label(frames):
    ops = []; node = ''
    for f in frames:
        m = OP.search(f['name'])
        if m: ops.append(m.group(1))
        m = NODE.search(f['name'])
        if m and not node: node = m.group(1)
    ops = [o for i, o in enumerate(ops) if i == 0 or ops[i-1] != o]
    return (ops[-1] if ops else '-', ops[0] if ops else '-', node or '-')


def where(frames):
    for f in frames:
        fn = f['filename']
        if fn.endswith('.py') and '/torch/' not in fn: return f'{os.path.basename(fn)}:{f["line"]}'
    return '-'


def trace(name, batch, prec, opt, out, mode='train', **_):
    z, _, model, x = prepared(name, batch, prec)
    model.train() if mode == 'train' else model.eval()
    o = OPT[opt]([p for p in model.parameters() if p.requires_grad])
    names = {p.untyped_storage().data_ptr(): 'param ' + n for n, p in model.named_parameters()}
    names.update({b.untyped_storage().data_ptr(): 'buffer ' + n for n, b in model.named_buffers() if b.is_cuda})
    names.update({t.untyped_storage().data_ptr(): f'input {i}' for i, t in enumerate(x)})
    marks = []
    def mark(c): torch.cuda.synchronize(); time.sleep(0.002); marks.append((time.time_ns() // 1000, c)); time.sleep(0.002)
    last = 2 if mode == 'train' else 1
    for step in range(last + 1):
        if step == last:
            torch.cuda.synchronize(); a0 = torch.cuda.memory_allocated(); r0 = torch.cuda.memory_reserved()
            torch.cuda.memory._record_memory_history('all', context='alloc', stacks='all', max_entries=1_000_000, clear_history=True)
            names.update({q.grad.untyped_storage().data_ptr(): 'grad ' + n for n, q in model.named_parameters() if q.grad is not None})
            torch.cuda.reset_peak_memory_stats(); mark('Z')
        if mode == 'infer':
            if step == last: mark('F')
            with torch.no_grad(), AUTOCAST(prec): res = model(*x)
            if step == last: mark('E')
            del res
            continue
        o.zero_grad(set_to_none=True)
        if step == last: mark('F')
        with AUTOCAST(prec): loss = loss_of(z['loss'], model(*x))
        if step == last: mark('B')
        loss.backward()
        if step == last: mark('O')
        o.step()
        if step == last: mark('E')
        del loss
    torch.cuda.synchronize(); peak = torch.cuda.max_memory_allocated()
    snap = torch.cuda.memory._snapshot(0); ev = snap['device_traces'][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    known = {}; seen = {}; lines = []; n = 0; ph = 'Z'; mi = 0; live = hi = 0
    for e in ev:
        while mi < len(marks) and e['time_us'] >= marks[mi][0]: ph = marks[mi][1]; mi += 1
        a = e['action']
        if a == 'alloc':
            known[e['addr']] = (n, e['size']); fr = e['frames']; (o1, o2, nd), w = label(fr), where(fr)
            lines.append(f'{ph} + {n} {e["size"]} {o1} {o2} {nd} {w}'); n += 1; live += e['size']; hi = max(hi, live)
        elif a == 'free_completed':
            i = known.pop(e['addr'], None)
            lines.append(f'{ph} - {i[0]}' if i else f'{ph} - old {e["size"]} {names.get(e["addr"], "-")}'); live -= e['size']
        elif a in ('segment_alloc', 'segment_free'): lines.append(f'{ph} {"S" if a.endswith("alloc") else "s"} {e["size"]}')
    head = dict(name=name, batch=batch, prec=prec, opt=opt, mode=mode, ckpt=None, torch=torch.__version__, allocated_before=a0, reserved_before=r0, allocated_peak=peak, requested_rise=hi, events=len(lines), marks=[c for _, c in marks])
    with lzma.open(f'{out}/{name}.b{batch}.{prec}.{opt if mode == "train" else "infer"}.trace.xz', 'wt', preset=6) as f: f.write(json.dumps(head) + '\n' + '\n'.join(lines) + '\n')


def worker(k, todo, counter, out, deadline, folder):
    """Takes models until none is left, then traces runs until the time is over."""
    os.environ.pop('CUDA_VISIBLE_DEVICES', None)
    steps, runs, log = (open(f'{folder}/{f}.{k}', 'w') for f in ('steps', 'runs', 'log'))
    torch.set_num_threads(2)
    def next_of(limit):
        with counter.get_lock():
            i = counter.value
            if i >= limit: return None
            counter.value += 1
            return i
    def emit(r):
        steps.write(json.dumps(r) + '\n'); steps.flush()
        if 'err' in r:
            log.write(f'{r["name"]} {r.get("prec")} {r.get("mode")}: {r["err"]}\n'); log.flush()
            if 'CUDA error' in r['err'] or 'device-side' in r['err']: os._exit(3)  # nothing runs in this process any more
        else:
            runs.write(json.dumps({f: r[f] for f in ('name', 'batch', 'prec', 'opt', 'mode', 'loss')}) + '\n'); runs.flush()
    while (i := next_of(len(todo))) is not None and time.time() < deadline: measure(todo[i], emit, deadline)
    log.write(f'worker {k}: measured by {time.time():.0f}\n'); log.flush()
    done = {}
    mine = [json.loads(l) for l in open(f'{folder}/runs.{k}')]
    for kind in (('fp32', 'train'), ('bf16', 'train'), ('fp32', 'infer'), ('amp-bf16', 'train')):
        for r in mine:
            if (r['prec'], r['mode']) != kind or r['opt'] == 'sgd' and r['mode'] == 'train' or (r['name'], kind) in done: continue
            if time.time() > deadline - 8: return
            done[r['name'], kind] = 1
            try: limit(25); trace(out=f'{folder}/traces', **r)
            except BaseException as e: log.write(f'trace {r["name"]}: {type(e).__name__}: {str(e)[:200]}\n')
            finally: signal.alarm(0)


def pack(path, folder, ending, budget=15 << 20):
    total = 0
    with tarfile.open(path, 'w') as t:
        for f in sorted(os.listdir(folder), key=lambda f: os.path.getsize(f'{folder}/{f}')):
            if f.endswith(ending) and total + os.path.getsize(f'{folder}/{f}') < budget: total += os.path.getsize(f'{folder}/{f}') + 1024; t.add(f'{folder}/{f}', f)


def tracing(k, n, runs, deadline, folder):
    torch.set_num_threads(2)
    with open(f'{folder}/log.{k}', 'w') as log:
        for r in runs[k::n]:
            if time.time() > deadline - 8: return
            try: limit(25); trace(out=f'{folder}/traces', **r)
            except BaseException as e: log.write(f'trace {r["name"]}: {type(e).__name__}: {str(e)[:200]}\n'); log.flush()
            finally: signal.alarm(0)


def traces(out, seconds, path):
    deadline, folder, spawn = time.time() + seconds, tempfile.mkdtemp(), multiprocessing.get_context('spawn')
    os.makedirs(f'{folder}/traces')
    runs, n = [json.loads(l) for l in open(path)], int(os.environ.get('WORKERS', 5))
    workers = [spawn.Process(target=tracing, args=(k, n, runs, deadline, folder)) for k in range(n)]
    for p in workers: p.start()
    for p in workers:
        p.join(max(1, deadline - 3 - time.time()))
        if p.is_alive(): p.kill()
    pack(f'{out}/traces.tar', f'{folder}/traces', '.xz')
    print('traces', len(os.listdir(f'{folder}/traces')), 'of', len(runs))


def everything(out, seconds, names, exported=(), captures=False):
    begin = time.time(); deadline = begin + seconds
    folder = tempfile.mkdtemp()
    for d in ('models', 'traces', 'captured'): os.makedirs(f'{folder}/{d}')
    spawn = multiprocessing.get_context('spawn')
    counter = spawn.Value('i', 0)
    measuring = []
    def start():
        measuring.append(spawn.Process(target=worker, args=(len(measuring), names, counter, out, deadline - 10, folder)))
        measuring[-1].start()
    for _ in range(int(os.environ.get('WORKERS', 5))): start()
    def again():  # a worker that the GPU refuses gets a successor
        seen = set()
        while time.time() < deadline - 40:
            for p in list(measuring):
                if p.exitcode == 3 and p.pid not in seen: seen.add(p.pid); start()
            time.sleep(1)
    threading.Thread(target=again, daemon=True).start()
    log = open(f'{out}/log', 'w')
    os.environ['CUDA_VISIBLE_DEVICES'] = ''
    exports = [(n, f'{folder}/models', 150) for n in names if os.environ.get('EXPORTERS') != '0' and n not in exported]
    if captures and os.environ.get('EXPORTERS') != '0': exports += [(n, f'{folder}/captured', 150) for n in names]
    with spawn.Pool(max(1, int(os.environ.get('EXPORTERS', 11)))) as pool:
        left = pool.imap_unordered(export_task, exports)
        try:
            for _ in exports:
                name, err, took = left.next(timeout=max(1, deadline - 12 - time.time()))
                log.write(f'export {name} {took:.0f} s {err}\n'); log.flush()
        except multiprocessing.TimeoutError: log.write('exports unfinished\n')
        log.write(f'exports end at {time.time() - begin:.0f} s\n')
        pool.terminate()
    for p in measuring:
        p.join(max(1, deadline - 5 - time.time()))
        if p.is_alive(): p.kill()
    pack(f'{out}/models.tar', f'{folder}/models', '.xz'); pack(f'{out}/traces.tar', f'{folder}/traces', '.xz')
    if captures: pack(f'{out}/captured.tar', f'{folder}/captured', ('.xz', '.said'))
    for f in ('steps', 'runs', 'log'):
        with open(f'{out}/{f}' + ('.jsonl' if f != 'log' else ''), 'a') as o:
            for k in range(len(measuring)):
                if os.path.exists(f'{folder}/{f}.{k}'): o.write(open(f'{folder}/{f}.{k}').read())
    print('exports', len(os.listdir(f'{folder}/models')), 'of', len(names), 'runs', sum(1 for _ in open(f'{out}/runs.jsonl')), 'traces', len(os.listdir(f'{folder}/traces')), f'{time.time() - begin:.0f} s')


if __name__ == '__main__':
    if sys.argv[1] == 'list':
        for n in ORDER: print(ROUNDS[n]['round'], ROUNDS[n]['library'], n)
        print(len(ORDER))
    elif sys.argv[1] == 'export':
        out = sys.stdout
        for n in sys.argv[3:] or ORDER: r = export_task((n, sys.argv[2], 600)); print(*r, file=out, flush=True)
    elif sys.argv[1] == 'trace': traces(sys.argv[2], float(sys.argv[3]), sys.argv[4])
    elif sys.argv[1] == 'all': everything(sys.argv[2], float(sys.argv[3]), sys.argv[4:] or ORDER)
