"""Round 7: models of libraries that nothing in this repository had named, and of further styles of plain code (unseen7_styles.py).

    python unseen7.py list | small | export OUT [NAME ...] | captured OUT [NAME ...] | all OUT SECONDS MODELS [NAME ...]

The libraries are on PYTHONPATH as unseen.py has them: without what they depend on, whose names are stubs. `small` runs each model and its loss on
the CPU at batch 2. `captured` exports by memplan.export, with a capture; `all` exports both ways beside measuring."""
import lzma, os, sys, tempfile, time, types

from unseen import STUBS, StubModule, sub

STUBS.update('torchao kagglehub datasets sentencepiece tiktoken blobfile omegaconf hydra wandb tensorboard ase torch_ema matscipy tensorly tensorly_torch opt_einsum opt_einsum_fx torch_harmonics zarr configmypy colorama colorlog thop '
             'plotly hyperopt texttable torchvision skimage lmdb addict tb_nightly yapf polars fastai fastcore statsmodels pytorch_optimizer discrete ninja torchtext cupy batchgenerators acvl_utils nibabel h5py resampy jsonargparse dirsync '
             'pycocotools fasteners torch_geometric product_key_memory pyfaidx skbase progressbar memcnn pytorch_msssim pybind11'.split())
import torch, torch.nn as nn, torch.nn.functional as F
import rounds
from rounds import ROUNDS, add, floats, ids, image, wrapped
from unseen7_styles import UNSEEN

ROUNDS.clear()


def lib(library, name, make, inputs, call=None, loss='cross-entropy'):
    def quiet():
        m = make()
        torch.autograd.set_detect_anomaly(False)  # some libraries turn it on when they are imported
        return m
    add(7, library, name, wrapped(quiet, call) if call else quiet, inputs, loss)


def filled(make):
    """A model of which numbers that are not numbers would be indices."""
    m = make()
    for p in m.parameters(): p.data.fill_(0.01)
    return m


# ---- EfficientNets ----

lib('geffnet', 'gef_mixnet_s', lambda: sub('geffnet').mixnet_s(drop_rate=0.1, drop_connect_rate=0.1), image(128))
lib('geffnet', 'gef_mobilenetv3', lambda: sub('geffnet').mobilenetv3_large_100(), image(160))
lib('geffnet', 'gef_lite0', lambda: sub('geffnet').tf_efficientnet_lite0(), image(128))

# ---- nnU-Net's networks ----


def nnunet(cls, conv, norm, block='n_conv_per_stage', decoder='n_conv_per_stage_decoder', **kw):
    u = sub('dynamic_network_architectures.architectures.unet')
    return getattr(u, cls)(input_channels=1, n_stages=4, features_per_stage=(16, 32, 64, 128), conv_op=conv, kernel_sizes=3, strides=(1, 2, 2, 2), num_classes=3, conv_bias=True, norm_op=norm,
                           norm_op_kwargs=dict(eps=1e-5, affine=True), nonlin=nn.LeakyReLU, nonlin_kwargs=dict(inplace=True), **{block: (2, 2, 2, 2), decoder: (2, 2, 2)}, **kw)


lib('dynamic_network_architectures', 'nnunet_3d', lambda: nnunet('PlainConvUNet', nn.Conv3d, nn.InstanceNorm3d), floats(1, 48, 48, 48))
lib('dynamic_network_architectures', 'nnunet_res2d', lambda: nnunet('ResidualEncoderUNet', nn.Conv2d, nn.InstanceNorm2d, block='n_blocks_per_stage'), floats(1, 128, 96))
lib('dynamic_network_architectures', 'nnunet_deep2d', lambda: nnunet('PlainConvUNet', nn.Conv2d, nn.BatchNorm2d, deep_supervision=True), floats(1, 96, 96), lambda m, x: (lambda o: torch.cat([v.flatten(1) for v in o], 1))(m(x)), 'mse')

# ---- super resolution ----

for n, c in dict(pan='Pan', carn='Carn', msrn='Msrn', a2n='A2n').items():
    lib('super_image', 'si_' + n, (lambda n, c: lambda: (lambda s: getattr(s, c + 'Model')(getattr(s, c + 'Config')(scale=2)))(types.SimpleNamespace(**{**vars(sub(f'super_image.models.{n}.modeling_{n}')), **vars(sub(f'super_image.models.{n}.configuration_{n}'))})))(n, c),
        image(32), loss='mse')
arch = lambda m, c, **kw: lambda: getattr(sub('basicsr.archs.' + m), c)(**kw)
lib('basicsr', 'bsr_rrdb', arch('rrdbnet_arch', 'RRDBNet', num_in_ch=3, num_out_ch=3, num_feat=32, num_block=4, num_grow_ch=16), image(32), loss='mse')
lib('basicsr', 'bsr_ridnet', arch('ridnet_arch', 'RIDNet', in_channels=3, mid_channels=32, out_channels=3, num_block=2), image(48), loss='mse')
lib('basicsr', 'bsr_discriminator', arch('discriminator_arch', 'VGGStyleDiscriminator128', num_in_ch=3, num_feat=32), image(128), loss='mse')

# ---- tables, recommenders, time series ----

lib('pytorch_tabnet', 'tabnet', lambda: filled(lambda: sub('pytorch_tabnet.tab_network').TabNetNoEmbeddings(64, 10, n_d=32, n_a=32, n_steps=4, virtual_batch_size=1 << 20, group_attention_matrix=torch.eye(64))), floats(64), lambda m, x: m(x)[0])
lib('pytorch_tabnet', 'tabnet_transformer', lambda: filled(lambda: sub('pytorch_tabnet.tab_network').TabNetEncoder(128, 10, n_d=64, n_a=64, n_steps=3, virtual_batch_size=1 << 20, mask_type='entmax', group_attention_matrix=torch.eye(128))), floats(128), lambda m, x: sum(m(x)[0]))


class Settings(dict):
    def __missing__(self, k): return None

    def __contains__(self, k): return True


def recbole(module, cls, **kw):
    config = Settings(n_layers=2, n_heads=4, hidden_size=128, embedding_size=128, inner_size=512, hidden_dropout_prob=0.1, attn_dropout_prob=0.1, hidden_act='gelu', layer_norm_eps=1e-12, initializer_range=0.02, loss_type='CE', dropout_prob=0.1,
                      dropout_probs=[0.1, 0.1], num_layers=1, block_num=3, dilations=[1, 4], kernel_size=3, reg_weight=0, USER_ID_FIELD='u', ITEM_ID_FIELD='i', LIST_SUFFIX='_l', ITEM_LIST_LENGTH_FIELD='n', NEG_PREFIX='neg_', MAX_ITEM_LIST_LENGTH=50, device='cpu',
                      train_neg_sample_args={}, **kw)
    return getattr(sub('recbole.model.sequential_recommender.' + module), cls)(config, types.SimpleNamespace(num=lambda f: 6000))


def scores(m, seq, n):
    seq_output = m.forward(seq, n)
    return torch.matmul(seq_output, m.item_embedding.weight.transpose(0, 1))


history = lambda b, dev: (torch.randint(1, 6000, (b, 50), device=dev), torch.full((b,), 50, device=dev))
for n, c in dict(sasrec='SASRec', narm='NARM').items(): lib('recbole', 'rb_' + n, (lambda n, c: lambda: recbole(n, c))(n, c), history, scores)
lib('recbole', 'rb_nextitnet', lambda: recbole('nextitnet', 'NextItNet'), lambda b, dev: (torch.randint(1, 6000, (b, 50), device=dev),), lambda m, seq: torch.matmul(m.forward(seq), m.item_embedding.weight.transpose(0, 1)))


def tft_selection():
    s = sub('pytorch_forecasting.models.temporal_fusion_transformer.sub_modules')
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            names = {f'x{i}': 32 for i in range(6)}
            self.names = list(names)
            self.pre = nn.ModuleDict({n: nn.Linear(1, 32) for n in names})
            self.vsn = s.VariableSelectionNetwork(names, hidden_size=96, dropout=0.1, context_size=96, prescalers=self.pre)
            self.context = s.GatedResidualNetwork(96, 96, 96, 0.1)
            self.static = nn.Linear(5, 96)
            self.lstm = nn.LSTM(96, 96, batch_first=True)
            self.gate = s.GatedLinearUnit(96, dropout=0.1)
            self.norm = s.AddNorm(96)
            self.attention = s.InterpretableMultiHeadAttention(d_model=96, n_head=4, dropout=0.1)
            self.post = s.GateAddNorm(96, dropout=0.1)
            self.ff = s.GatedResidualNetwork(96, 96, 96, 0.1)
            self.out = nn.Linear(96, 7)

        def forward(self, x, z):
            static = self.context(self.static(z))
            context = static[:, None].expand(-1, x.size(1), -1)
            e, weights = self.vsn({n: x[..., i:i + 1] for i, n in enumerate(self.names)}, context)
            h, _ = self.lstm(e)
            h = self.norm(self.gate(h), e)
            mask = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device), 1)[None].expand(x.size(0), -1, -1)
            a, attention_weights = self.attention(q=h[:, -24:], k=h, v=h, mask=mask[:, -24:])
            return self.out(self.ff(self.post(a, h[:, -24:])))
    return Encoder()


lib('pytorch_forecasting', 'pf_tft', tft_selection, lambda b, dev: (torch.randn(b, 96, 6, device=dev), torch.randn(b, 5, device=dev)), loss='mse')
lib('pytorch_forecasting', 'pf_nhits', lambda: sub('pytorch_forecasting.models.nhits.sub_modules').NHiTS(context_length=96, prediction_length=24, output_size=[1], static_size=0, encoder_covariate_size=0, decoder_covariate_size=0, static_hidden_size=0, n_blocks=[1, 1, 1], n_layers=[2, 2, 2],
    hidden_size=[[256, 256]] * 3, pooling_sizes=[4, 2, 1], downsample_frequencies=[8, 4, 1], pooling_mode='max', interpolation_mode='linear', dropout=0.1, activation='ReLU', initialization='lecun_normal', batch_normalization=False, shared_weights=False, naive_level=True), floats(96, 1),
    lambda m, x: m(encoder_y=x, encoder_mask=torch.ones_like(x[..., 0]), encoder_x_t=None, decoder_x_t=None, x_s=None)[0], 'mse')

# ---- spikes ----


def snn():
    s = sub('snntorch')
    sub('snntorch._neurons.neurons').SpikingNeuron.instances.clear()  # it keeps every neuron that there was, with its states
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            grad = sub('snntorch.surrogate').fast_sigmoid(slope=25)
            self.conv1, self.lif1, self.conv2, self.lif2, self.fc1, self.lif3 = nn.Conv2d(1, 12, 5), s.Leaky(beta=0.9, spike_grad=grad), nn.Conv2d(12, 64, 5), s.Leaky(beta=0.9, spike_grad=grad), nn.Linear(64 * 4 * 4, 10), s.Leaky(beta=0.9, spike_grad=grad)

        def forward(self, x):
            mem1, mem2, mem3 = self.lif1.init_leaky(), self.lif2.init_leaky(), self.lif3.init_leaky()
            spk3_rec, mem3_rec = [], []
            for step in range(6):
                cur1 = F.max_pool2d(self.conv1(x), 2)
                spk1, mem1 = self.lif1(cur1, mem1)
                cur2 = F.max_pool2d(self.conv2(spk1), 2)
                spk2, mem2 = self.lif2(cur2, mem2)
                cur3 = self.fc1(spk2.flatten(1))
                spk3, mem3 = self.lif3(cur3, mem3)
                spk3_rec.append(spk3)
                mem3_rec.append(mem3)
            return torch.stack(mem3_rec, dim=0).sum(0)
    return Net()


lib('snntorch', 'snn_csnn', snn, floats(1, 28, 28))


def spiking():
    n, s, l = sub('spikingjelly.activation_based.neuron'), sub('spikingjelly.activation_based.surrogate'), sub('spikingjelly.activation_based.layer')
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)), nn.Sequential(nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.MaxPool2d(2))
            self.s1, self.s2, self.s3 = n.LIFNode(tau=2.0, surrogate_function=s.ATan(), detach_reset=True), n.IFNode(surrogate_function=s.Sigmoid()), n.ParametricLIFNode(init_tau=2.0, surrogate_function=s.ATan())
            self.fc, self.out = nn.Linear(128 * 16 * 16, 256, bias=False), nn.Linear(256, 100, bias=False)

        def forward(self, x):
            x = self.conv1(x)
            y = 0.
            for node in (self.s1, self.s2, self.s3): node.v = 0.
            for t in range(4): y = y + self.out(self.s3(self.fc(self.s2(self.conv2(self.s1(x))).flatten(1))))
            return y / 4
    return Net()


lib('spikingjelly', 'sj_net', spiking, image(32))

# ---- transformers of packages of their own ----

lib('torchtune', 'tune_llama3', lambda: sub('torchtune.models.llama3._component_builders').llama3(vocab_size=8000, num_layers=4, num_heads=8, num_kv_heads=4, embed_dim=384, max_seq_len=256, attn_dropout=0.0), ids(8000, 192))
lib('torchtune', 'tune_gemma', lambda: sub('torchtune.models.gemma._component_builders').gemma(vocab_size=8000, num_layers=3, num_heads=4, head_dim=64, num_kv_heads=1, embed_dim=256, intermediate_dim=1024, max_seq_len=256), ids(8000, 192))
lib('torchtune', 'tune_lora', lambda: sub('torchtune.models.mistral._component_builders').lora_mistral(['q_proj', 'v_proj'], True, vocab_size=8000, num_layers=4, num_heads=8, num_kv_heads=4, embed_dim=384, intermediate_dim=1024, max_seq_len=256, lora_rank=8, lora_alpha=16, lora_dropout=0.05), ids(8000, 192))
lib('x_unet', 'xunet', lambda: sub('x_unet').XUnet(dim=32, channels=3, dim_mults=(1, 2, 4), num_blocks_per_stage=(1, 1, 1), num_self_attn_per_stage=(0, 0, 1), nested_unet_depths=(2, 1, 0), consolidate_upsample_fmaps=True, weight_standardize=True), image(64), loss='mse')
lib('enformer_pytorch', 'enformer', lambda: (lambda e: e.Enformer.from_hparams(dim=384, depth=2, heads=4, output_heads=dict(human=50), target_length=16, num_downsamples=5))(sub('enformer_pytorch')), lambda b, dev: (torch.randint(0, 5, (b, 1024), device=dev),), lambda m, x: m(x, head='human'), 'mse')
lib('soft_moe_pytorch', 'softmoe', lambda: sub('soft_moe_pytorch').SoftMoE(dim=256, seq_len=196, num_experts=4), floats(196, 256), loss='mse')
lib('soft_moe_pytorch', 'softmoe_dynamic', lambda: sub('soft_moe_pytorch').DynamicSlotsSoftMoE(dim=256, num_experts=4), floats(196, 256), loss='mse')
lib('uformer_pytorch', 'uformer', lambda: sub('uformer_pytorch').Uformer(dim=32, stages=3, num_blocks=1, window_size=8, dim_head=32, heads=4), image(64), loss='mse')


def lambda_net():
    L = sub('lambda_networks').LambdaLayer
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), L(dim=64, dim_out=128, r=15, dim_k=16, heads=4, dim_u=1), nn.BatchNorm2d(128), nn.ReLU(inplace=True),
                         nn.AvgPool2d(2), L(dim=128, dim_out=256, n=8, dim_k=16, heads=4, dim_u=4), nn.BatchNorm2d(256), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


lib('lambda_networks', 'lambdanet', lambda_net, image(64))
lib('swin_transformer_pytorch', 'swinpt', lambda: sub('swin_transformer_pytorch').SwinTransformer(hidden_dim=48, layers=(2, 2, 2, 2), heads=(2, 4, 8, 8), channels=3, num_classes=50, head_dim=24, window_size=7, downscaling_factors=(4, 2, 2, 2), relative_pos_embedding=True), image(224))
lib('sinkhorn_transformer', 'sinkhorn', lambda: sub('sinkhorn_transformer').SinkhornTransformerLM(num_tokens=6000, dim=256, heads=8, depth=2, max_seq_len=256, bucket_size=64, causal=False, sinkhorn_iter=4, ff_dropout=0.1, attn_layer_dropout=0.1, n_local_attn_heads=2), ids(6000, 256))
lib('segmentation_refinement', 'cascadepsp', lambda: sub('segmentation_refinement.models.psp.pspnet').RefinementModule(), lambda b, dev: (torch.randn(b, 3, 96, 96, device=dev), torch.randn(b, 1, 96, 96, device=dev)), lambda m, x, s: m(x, s)['pred_224'], 'mse')
lib('torchcrepe', 'crepe', lambda: sub('torchcrepe.model').Crepe('tiny'), floats(1024))


def schnet():
    package = sys.modules['schnetpack'] = types.ModuleType('schnetpack')
    package.__path__ = [os.path.join(p, 'schnetpack') for p in sys.path if os.path.isdir(os.path.join(p, 'schnetpack'))]  # its own __init__ reads atoms' units
    s, nns = sub('schnetpack.representation.schnet'), sub('schnetpack.nn')
    class Net(nn.Module):
        def __init__(self, atoms=20):
            super().__init__()
            i, j = torch.meshgrid(torch.arange(atoms), torch.arange(atoms), indexing='ij')
            keep = i != j
            self.register_buffer('idx_i', i[keep]); self.register_buffer('idx_j', j[keep])
            self.atoms, self.rbf, self.cutoff = atoms, nns.radial.GaussianRBF(n_rbf=20, cutoff=5.), nns.cutoff.CosineCutoff(5.)
            self.embedding = nn.Embedding(100, 128, padding_idx=0)
            self.interactions = nn.ModuleList([s.SchNetInteraction(n_atom_basis=128, n_rbf=20, n_filters=128) for _ in range(3)])
            self.out = nns.build_mlp(n_in=128, n_out=1, n_layers=2)

        def forward(self, z, pos):
            B = z.shape[0]
            shift = (torch.arange(B, device=z.device) * self.atoms)[:, None]
            idx_i, idx_j = (self.idx_i[None] + shift).reshape(-1), (self.idx_j[None] + shift).reshape(-1)
            r = pos.reshape(-1, 3)
            r_ij = r[idx_j] - r[idx_i]
            d_ij = torch.norm(r_ij, dim=1)
            f_ij, rcut_ij = self.rbf(d_ij), self.cutoff(d_ij)
            x = self.embedding(z.reshape(-1))
            for interaction in self.interactions:
                v = interaction(x, f_ij, idx_i, idx_j, rcut_ij)
                x = x + v
            return self.out(x).view(B, -1).sum(1)
    return Net()


lib('schnetpack', 'schnet', schnet, lambda b, dev: (torch.randint(1, 10, (b, 20), device=dev), torch.randn(b, 20, 3, device=dev)), loss='mse')


def compress(cls, **kw):
    def build():
        for n in ('_CXX', 'ans'): sys.modules.setdefault('compressai.' + n, StubModule('compressai.' + n))
        return getattr(sub('compressai.models.google'), cls)(**kw)
    return build


lib('compressai', 'cai_factorized', compress('FactorizedPrior', N=48, M=64), image(64), lambda m, x: m(x)['x_hat'], 'mse')
lib('compressai', 'cai_hyperprior', compress('MeanScaleHyperprior', N=48, M=64), image(64), lambda m, x: (lambda o: o['x_hat'] + o['likelihoods']['y'].mean())(m(x)), 'mse')


for name, (cls, inputs, loss) in UNSEEN.items(): add(7, 'plain', 'plain_' + name, cls, inputs, loss)

# The plain ones and the libraries take turns.
rounds.ORDER = sorted(ROUNDS, key=lambda n: [k for k in ROUNDS if ROUNDS[k]['library'] == ROUNDS[n]['library']].index(n) / (3 if ROUNDS[n]['library'] == 'plain' else 1))


def captured(name, out):
    """The model exported by memplan.export."""
    import memplan, onnx
    torch.set_num_threads(1)
    torch.manual_seed(0)
    z = ROUNDS[name]
    model = rounds.uninitialised(z['build']).train()
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, 'model.onnx')
        e = memplan.export(model, z['inputs'](2, 'cpu'), path=path)
        m = onnx.load(path, load_external_data=False)
        for nodes in [m.graph.node] + [f.node for f in m.functions]: rounds.places(nodes)
    with lzma.open(f'{out}/{name}.onnx.part', 'wb', preset=9) as f: f.write(m.SerializeToString())
    os.rename(f'{out}/{name}.onnx.part', f'{out}/{name}.onnx.xz')
    with open(f'{out}/{name}.said', 'w') as f: f.write(str(e) + '\n')


def either(name, out): (captured if os.path.basename(out) == 'captured' else plain)(name, out)


plain, rounds.export = rounds.export, either


def small(names):
    for n in names:
        z, t = ROUNDS[n], time.time()
        try:
            torch.manual_seed(0)
            rounds.limit(90)
            m = rounds.uninitialised(z['build']).train()
            rounds.loss_of(z['loss'], m(*z['inputs'](2, 'cpu'))).backward()
            print(z['library'], n, f'{time.time() - t:.1f} s', sum(p.numel() for p in m.parameters()), flush=True)
        except BaseException as e: print('FAIL', z['library'], n, type(e).__name__, str(e)[:300].replace('\n', ' '), flush=True)
        finally: rounds.signal.alarm(0)


if __name__ == '__main__':
    what, names = sys.argv[1], rounds.ORDER
    if what == 'list':
        for n in names: print(ROUNDS[n]['library'], n)
    elif what == 'small': small(sys.argv[2:] or names)
    elif what in ('export', 'captured'):
        for n in sys.argv[3:] or names: print(*rounds.export_task((n, sys.argv[2], 3000)), file=sys.__stdout__, flush=True)
    elif what == 'all': rounds.everything(sys.argv[2], float(sys.argv[3]), sys.argv[5:] or names, {f.split('.')[0] for f in os.listdir(sys.argv[4])}, captures=True)
