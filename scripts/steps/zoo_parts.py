"""What the models of zoo.py and held.py are made of: inputs, losses, wrappers, and the table that both fill."""
import torch, torch.nn as nn, torch.nn.functional as F
import torchvision.models as tv

def _img(hw=224, c=3):
    def f(b, dev): return (torch.randn(b, c, hw, hw, device=dev),)
    return f

def _ce(n):
    def f(out, b):
        y = torch.randint(0, n, (b,), device=out.device)
        return F.cross_entropy(out, y)
    return f

def _seg_ce(n):
    def f(out, b):
        y = torch.randint(0, n, (b, out.shape[-2], out.shape[-1]), device=out.device)
        return F.cross_entropy(out, y)
    return f

def hf(cfg_fn, cls, seq, attn='eager', uc=True):
    """HF wrappers: forward(input_ids) -> logits; loss = token CE."""
    class W(nn.Module):
        def __init__(self):
            super().__init__()
            import transformers
            c = cfg_fn(transformers)
            c.use_cache = False
            C = getattr(transformers, cls)
            self.m = C._from_config(c, attn_implementation=attn)
        def forward(self, ids):
            return self.m(input_ids=ids, use_cache=False).logits if uc else self.m(input_ids=ids).logits
    def inp(b, dev): return (torch.randint(0, 1000, (b, seq), device=dev),)
    return W, inp, _tok

def _tok(out, b):
    if out.dim() == 2: return F.cross_entropy(out.float(), torch.zeros(out.shape[0], dtype=torch.long, device=out.device))
    return F.cross_entropy(out.view(-1, out.shape[-1]).float(), torch.randint(0, 1000, (out.shape[0]*out.shape[1],), device=out.device))


ZOO = {}
def add(name, build, inputs, loss, batches): ZOO[name] = dict(build=build, inputs=inputs, loss=loss, batches=batches)
