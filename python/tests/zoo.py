"""Small models of many libraries, with inputs that make their modules pass tuples, keywords, sizes, lists and caches to each other."""

from __future__ import annotations

import importlib.util
from typing import Any, Callable

import torch
from torch import nn

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]
MODELS: dict[str, Case] = {}


def case(library: str | None = None) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Adds a model, where its library is installed."""

    def add(f: Callable[[], Case]) -> Callable[[], Case]:
        if library is None or importlib.util.find_spec(library) is not None:
            MODELS[f.__name__] = f()
        return f

    return add


def ids(n: int = 2, length: int = 12, of: int = 50) -> torch.Tensor:
    return torch.randint(0, of, (n, length))


def image(n: int = 2, size: int = 32) -> torch.Tensor:
    return torch.randn(n, 3, size, size)


# ---- plain modules ----


class Block(nn.Module):
    """Takes keywords only, returns a tuple with things that are no tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(width, width), nn.LayerNorm(width), nn.Dropout(0.3)

    def forward(self, *, hidden: torch.Tensor, scale: float = 1.0, mask: torch.Tensor | None = None, **extra: Any) -> tuple[torch.Tensor, None, dict[str, Any]]:
        y = self.drop(torch.relu(self.linear(self.norm(hidden)))) * scale
        if mask is not None:
            y = y * mask
        extra["log"].append(float(y.detach().sum()))
        return hidden + y, None, {"sizes": hidden.shape, "also": (y,)}


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(16) for _ in range(5))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        log: list[float] = []
        for i, b in enumerate(self.blocks):
            x, _, more = b(hidden=x, scale=1 + i / 4, mask=mask, log=log)
            x = x + more["also"][0].mean()  # the model itself computes between the blocks
        return x


class Shared(nn.Module):
    """Modules that are called twice, from two places, and in another order than they stand."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3))
        self.again = self.a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.c(self.a(x))
        z = self.b(y) + self.again(y)
        return self.a(z).add_(self.c(x))


@case()
def keywords() -> Case:
    return Keywords, lambda: ((torch.randn(3, 16),), {"mask": torch.rand(3, 16)})


@case()
def shared() -> Case:
    return Shared, lambda: ((torch.randn(4, 8),), {})


@case()
def transformer() -> Case:
    return lambda: nn.Transformer(16, 2, 2, 2, 32, batch_first=True), lambda: ((torch.randn(2, 5, 16), torch.randn(2, 4, 16)), {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(4)})


@case()
def recurrent() -> Case:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.gru, self.head = nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, (h, _) = self.rnn(x)
            y, _ = self.gru(y, h[:1].contiguous())
            return self.head(y)

    return Net, lambda: ((torch.randn(2, 6, 8),), {})


# ---- torchvision ----


@case("torchvision")
def resnet18() -> Case:
    import torchvision

    return lambda: torchvision.models.resnet18(num_classes=7), lambda: ((image(),), {})


@case("torchvision")
def mobilenet_v3() -> Case:
    import torchvision

    return lambda: torchvision.models.mobilenet_v3_small(num_classes=7), lambda: ((image(2, 64),), {})


@case("torchvision")
def densenet() -> Case:
    import torchvision

    return lambda: torchvision.models.DenseNet(8, (2, 2), 16, drop_rate=0.1, num_classes=5), lambda: ((image(),), {})


@case("torchvision")
def googlenet() -> Case:
    import torchvision

    return lambda: torchvision.models.GoogLeNet(5, aux_logits=False, init_weights=False), lambda: ((image(2, 64),), {})


@case("torchvision")
def swin() -> Case:
    import torchvision

    return lambda: torchvision.models.SwinTransformer([2, 2], 16, [2, 2], [2, 2], [4, 4], stochastic_depth_prob=0.3, num_classes=5), lambda: ((image(),), {})


@case("torchvision")
def convnext() -> Case:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return lambda: ConvNeXt([CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 2)], 0.2, num_classes=5), lambda: ((image(),), {})


@case("torchvision")
def segmentation() -> Case:
    import torchvision

    return lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=4), lambda: ((image(2, 64),), {})


# ---- timm ----


@case("timm")
def timm_vit() -> Case:
    import timm

    return lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=24, num_heads=2, drop_path_rate=0.2, num_classes=5), lambda: ((image(),), {})


@case("timm")
def timm_regnet() -> Case:
    import timm

    return lambda: timm.create_model("regnety_002", num_classes=5), lambda: ((image(),), {})


@case("timm")
def timm_xcit() -> Case:
    import timm  # its blocks take the height and the width

    return lambda: timm.create_model("xcit_nano_12_p16_224", depth=2, embed_dim=32, num_heads=2, num_classes=5), lambda: ((image(),), {})


@case("timm")
def timm_hrnet() -> Case:
    import timm  # its modules take and return lists

    return lambda: timm.create_model("hrnet_w18_small", num_classes=5), lambda: ((image(2, 64),), {})


# ---- transformers ----


@case("transformers")
def gpt2() -> Case:
    import transformers

    c = transformers.GPT2Config(n_layer=3, n_embd=16, n_head=2, vocab_size=50, n_positions=16, use_cache=True)
    return lambda: transformers.GPT2LMHeadModel(c), lambda: ((), {"input_ids": (x := ids()), "labels": x, "use_cache": True})


@case("transformers")
def llama() -> Case:
    import transformers

    c = transformers.LlamaConfig(num_hidden_layers=3, hidden_size=16, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, vocab_size=50, use_cache=True)
    return lambda: transformers.LlamaForCausalLM(c), lambda: ((), {"input_ids": ids(), "attention_mask": torch.ones(2, 12, dtype=torch.long)})


@case("transformers")
def bert() -> Case:
    import transformers

    c = transformers.BertConfig(num_hidden_layers=3, hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    return lambda: transformers.BertForMaskedLM(c), lambda: ((), {"input_ids": ids(), "output_hidden_states": True})


@case("transformers")
def t5() -> Case:
    import transformers

    c = transformers.T5Config(num_layers=2, num_decoder_layers=2, d_model=16, d_ff=32, num_heads=2, d_kv=8, vocab_size=50, decoder_start_token_id=0)
    return lambda: transformers.T5ForConditionalGeneration(c), lambda: ((), {"input_ids": ids(), "labels": ids(2, 7), "use_cache": True})


@case("transformers")
def mixtral() -> Case:
    import transformers

    c = transformers.MixtralConfig(num_hidden_layers=2, hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=2, vocab_size=50, num_local_experts=3, output_router_logits=True)
    return lambda: transformers.MixtralForCausalLM(c), lambda: ((), {"input_ids": (x := ids()), "labels": x})


@case("transformers")
def segformer() -> Case:
    import transformers

    c = transformers.SegformerConfig(num_encoder_blocks=2, depths=[2, 2], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=4)
    return lambda: transformers.SegformerForSemanticSegmentation(c), lambda: ((), {"pixel_values": image()})


@case("transformers")
def swinv2() -> Case:
    import transformers

    c = transformers.Swinv2Config(image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[1, 2], window_size=4, num_labels=4)
    return lambda: transformers.Swinv2ForImageClassification(c), lambda: ((), {"pixel_values": image()})


@case("transformers")
def detr() -> Case:
    import transformers

    back = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"])
    c = transformers.DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=back, d_model=16, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2, num_queries=5, auxiliary_loss=True)
    return lambda: transformers.DetrForObjectDetection(c), lambda: ((), {"pixel_values": image(2, 64), "pixel_mask": torch.ones(2, 64, 64, dtype=torch.long)})


@case("transformers")
def mask2former() -> Case:
    import transformers

    back = transformers.SwinConfig(image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=4, out_features=["stage1", "stage2", "stage3", "stage4"])
    c = transformers.Mask2FormerConfig(backbone_config=back, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=16, encoder_layers=1, decoder_layers=2, num_attention_heads=2, dim_feedforward=16, num_queries=4, num_labels=3)
    return lambda: transformers.Mask2FormerModel(c), lambda: ((), {"pixel_values": image(1, 64)})


@case("transformers")
def wav2vec2() -> Case:
    import transformers

    c = transformers.Wav2Vec2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, layerdrop=0.5, apply_spec_augment=False, vocab_size=9)
    return lambda: transformers.Wav2Vec2ForCTC(c), lambda: ((), {"input_values": torch.randn(2, 800)})


# ---- diffusers ----


@case("diffusers")
def unet() -> Case:
    import diffusers

    def build() -> nn.Module:
        return diffusers.UNet2DConditionModel(
            sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=8, attention_head_dim=4,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))  # fmt: skip

    return build, lambda: ((torch.randn(2, 4, 16, 16), torch.tensor([3, 7]), torch.randn(2, 5, 8)), {})


@case("diffusers")
def autoencoder() -> Case:
    import diffusers

    return lambda: diffusers.AutoencoderKL(block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4), lambda: ((image(),), {"sample_posterior": True})


@case("diffusers")
def dit() -> Case:
    import diffusers

    return lambda: diffusers.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=3, norm_num_groups=2, sample_size=8, patch_size=2, num_embeds_ada_norm=10), lambda: (
        (torch.randn(2, 4, 8, 8),), {"timestep": torch.tensor([1, 5]), "class_labels": torch.tensor([2, 3])})  # fmt: skip


@case("diffusers")
def flux() -> Case:
    import diffusers

    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"hidden_states": torch.randn(2, 4, 4), "encoder_hidden_states": torch.randn(2, 3, 8), "pooled_projections": torch.randn(2, 8), "timestep": torch.rand(2), "img_ids": torch.randn(4, 3), "txt_ids": torch.randn(3, 3), "guidance": torch.rand(2)}

    return lambda: diffusers.FluxTransformer2DModel(in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=8, pooled_projection_dim=8, guidance_embeds=True, axes_dims_rope=(4, 4, 8)), inputs
