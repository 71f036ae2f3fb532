import contextlib
import json

import torch
from torch.utils.checkpoint import checkpoint


def apply_checkpoints(model, path):
    """Checkpoints model as a configuration of memplan config --to torch says. Call it once, before training."""
    with open(path) as f:
        regions = json.load(f)["checkpoint"]
    for region in reversed(regions):  # an outer region is listed before those inside it, and wraps them
        wrap([model.get_submodule(name) for name in region["modules"]])


def wrap(modules):
    """Makes one checkpoint of modules that run one after the other.

    The call of the first runs them all; those of the others pass on what it returned. Modules of the first one's class are
    called with all that it is called with, others with what the one before returns alone.
    """
    forwards = [m.forward for m in modules]
    tupled = [False] * len(modules)

    def run(*args, **kwargs):
        y = forwards[0](*args, **kwargs)
        for i in range(1, len(modules)):
            alike = type(modules[i]) is type(modules[0])
            x = y[0] if isinstance(y, tuple) else y
            y = forwards[i](x, *args[1:], **kwargs) if alike else forwards[i](x)
            tupled[i] = isinstance(y, tuple)
        return y

    def first(*args, **kwargs):
        return checkpoint(run, *args, use_reentrant=False, context_fn=statistics_kept(modules), **kwargs)

    def later(i):
        return lambda x, *args, **kwargs: (x,) if tupled[i] else x

    modules[0].forward = first
    for i in range(1, len(modules)):
        modules[i].forward = later(i)


def statistics_kept(modules):
    """Contexts in which running statistics are not updated again. Random numbers are restored by checkpoint itself."""
    norms = [n for m in modules for n in m.modules() if isinstance(n, torch.nn.modules.batchnorm._BatchNorm)]

    @contextlib.contextmanager
    def again():
        old = [(n.momentum, n.num_batches_tracked) for n in norms]
        for n in norms:
            n.momentum, n.num_batches_tracked = 0.0, None
        try:
            yield
        finally:
            for n, (momentum, count) in zip(norms, old):
                n.momentum, n.num_batches_tracked = momentum, count

    return lambda: (contextlib.nullcontext(), again())
