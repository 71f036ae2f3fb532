def apply(model, config):
    """Checkpoints the regions of a configuration (memplan config --to torch) in a torch.nn.Module."""
    from collections import Counter
    from contextlib import contextmanager, nullcontext

    import torch
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    @contextmanager
    def again(norms, inner):  # a second run updates no running statistics: the first one has
        old = [(n.momentum, n.num_batches_tracked) for n in norms]
        for n in norms:
            n.momentum, n.num_batches_tracked = 0.0, None
        try:
            with inner:
                yield
        finally:
            for n, (momentum, count) in zip(norms, old):
                n.momentum, n.num_batches_tracked = momentum, count

    def region(names, modules, ops):
        forwards, tupled = [m.forward for m in modules], [False] * len(modules)
        norms = [n for m in modules for n in m.modules() if isinstance(n, torch.nn.modules.batchnorm._BatchNorm)]
        keep = {(o["op"], i) for o in ops for i in o["calls"]}
        latest = []

        def contexts():
            if not keep:
                return nullcontext(), again(norms, nullcontext())
            calls = {False: Counter(), True: Counter()}  # of the forward pass, and of its recomputation
            latest[:] = [calls[False]]

            def policy(ctx, op, *args, **kwargs):
                name, seen = str(getattr(op, "overloadpacket", op)), calls[ctx.is_recompute]
                seen[name] += 1
                return CheckpointPolicy.MUST_SAVE if (name, seen[name] - 1) in keep else CheckpointPolicy.PREFER_RECOMPUTE

            first, second = create_selective_checkpoint_contexts(policy)
            return first, again(norms, second)

        def run(*args, **kwargs):  # modules that run one after the other; those of the first one's class are called as it is
            y = forwards[0](*args, **kwargs)
            for i in range(1, len(modules)):
                x = y[0] if isinstance(y, tuple) else y
                y = forwards[i](x, *args[1:], **kwargs) if type(modules[i]) is type(modules[0]) else forwards[i](x)
                tupled[i] = isinstance(y, tuple)
            return y

        def forward(*args, **kwargs):
            out = checkpoint(run, *args, use_reentrant=False, context_fn=contexts, **kwargs)
            for o in ops:
                if torch.is_grad_enabled() and latest[0][o["op"]] != o["of"]:
                    raise RuntimeError(f"{names} calls {o['op']} {latest[0][o['op']]} times, the plan says {o['of']}")
            return out

        def ran(i):  # with the first
            return lambda x, *args, **kwargs: (x,) if tupled[i] else x

        modules[0].forward = forward
        for i in range(1, len(modules)):
            modules[i].forward = ran(i)

    for i, entry in reversed(list(enumerate(config["checkpoint"]))):  # outer regions stand before those in them
        modules = [model.get_submodule(n) for n in entry["modules"]]
        region(entry["modules"], modules, [o for o in config["ops"] if o["region"] == i])
    return model
