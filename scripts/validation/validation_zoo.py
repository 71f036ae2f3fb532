"""The models that are validated on a GPU, as PyTorch builds them: name -> (build, inputs, logits, batch).

The loss is the cross entropy of logits(output) and random classes.
"""
import torch
import torch.nn as nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class MLP(nn.Module):
    """Eight hidden layers of 4096 units with ReLU, 1000 classes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*[l for _ in range(8) for l in (nn.Linear(4096, 4096), nn.ReLU())], nn.Linear(4096, 1000))

    def forward(self, x):
        return self.net(x)


class UNet(nn.Module):
    """A plain U-Net, widths 32 to 512, two convolutions a level with batch norm and ReLU."""

    def __init__(self, cin=3, classes=21, w=32):
        super().__init__()

        def two(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                                 nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        self.d1, self.d2, self.d3, self.d4 = two(cin, w), two(w, 2 * w), two(2 * w, 4 * w), two(4 * w, 8 * w)
        self.mid, self.pool = two(8 * w, 16 * w), nn.MaxPool2d(2)
        self.u4, self.u3 = nn.ConvTranspose2d(16 * w, 8 * w, 2, 2), nn.ConvTranspose2d(8 * w, 4 * w, 2, 2)
        self.u2, self.u1 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.c4, self.c3, self.c2, self.c1 = two(16 * w, 8 * w), two(8 * w, 4 * w), two(4 * w, 2 * w), two(2 * w, w)
        self.out = nn.Conv2d(w, classes, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(self.pool(a))
        c = self.d3(self.pool(b))
        d = self.d4(self.pool(c))
        m = self.mid(self.pool(d))
        d = self.c4(torch.cat([self.u4(m), d], 1))
        c = self.c3(torch.cat([self.u3(d), c], 1))
        b = self.c2(torch.cat([self.u2(c), b], 1))
        a = self.c1(torch.cat([self.u1(b), a], 1))
        return self.out(a)


class Tokens(nn.Module):
    """A transformers model from token ids to logits, without a cache."""

    def __init__(self, config, cls, attention, cache):
        super().__init__()
        import transformers
        c = config(transformers)
        c.use_cache = False
        self.cache = cache
        self.m = getattr(transformers, cls)._from_config(c, attn_implementation=attention)

    def forward(self, ids):
        return (self.m(input_ids=ids, use_cache=False) if self.cache else self.m(input_ids=ids)).logits


def vision(name, batch):
    def build():
        import torchvision
        return getattr(torchvision.models, name)()
    return build, image(224), classes, batch


def image(size):
    return lambda b: torch.randn(b, 3, size, size, device=DEVICE)


def ids(length):
    return lambda b: torch.randint(0, 1000, (b, length), device=DEVICE)


def classes(out):
    return out


def tokens(out):
    flat = out.view(-1, out.shape[-1])
    return flat if flat.dtype == torch.float64 else flat.float()


def target(logits):
    """A random class for each sample, pixel or token."""
    return torch.randint(0, logits.shape[1], (logits.shape[0],) + tuple(logits.shape[2:]), device=logits.device)


def in_double(model):
    """The model with all of its sums in float64; the angles of rotary positions stay float32, which is how they are defined."""
    model = model.double()
    for m in model.modules():
        if type(m).__name__ == "LlamaRMSNorm":  # it computes in float32 whatever it is given
            m.forward = lambda x, m=m: m.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon))
    return model


def comparable(model, shift=True):
    """Weights with which a step's numbers say something. Batch norms are shifted by 3 and -3, every other
    channel, so that hardly an activation is so close to 0 that rounding decides on which side of ReLU it
    falls, as it does for some without. Matrices of zeros (ViT's head), behind which all gradients are 0,
    become random."""
    with torch.no_grad():
        for m in model.modules():
            if shift and isinstance(m, nn.BatchNorm2d):
                m.bias.copy_(3 - 6 * (torch.arange(len(m.bias)) % 2))
        for p in model.parameters():
            if p.dim() > 1 and not p.any():
                p.normal_(0, 0.02)
    return model


def llama(t):
    return t.LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4, vocab_size=32000)


ZOO = {
    "mlp": (MLP, lambda b: torch.randn(b, 4096, device=DEVICE), classes, 256),
    "resnet18": vision("resnet18", 64),
    "resnet50": vision("resnet50", 32),
    "vgg16": vision("vgg16", 16),
    "mobilenet_v2": vision("mobilenet_v2", 32),
    "densenet121": vision("densenet121", 16),
    "convnext_tiny": vision("convnext_tiny", 16),
    "vit_b_16": vision("vit_b_16", 16),
    "unet": (UNet, image(256), classes, 8),
    "bert_base_mlm": (lambda: Tokens(lambda t: t.BertConfig(), "BertForMaskedLM", "eager", False), ids(128), tokens, 16),
    "gpt2": (lambda: Tokens(lambda t: t.GPT2Config(), "GPT2LMHeadModel", "eager", True), ids(256), tokens, 8),
    "llama_250m": (lambda: Tokens(llama, "LlamaForCausalLM", "sdpa", True), ids(512), tokens, 4),
}

# Models whose training step has no randomness, so that its numbers can be compared, with the batch at which they are.
EXACT = {"mlp": 32, "resnet18": 4, "resnet50": 2, "densenet121": 2, "vit_b_16": 4, "unet": 2, "llama_250m": 1}
