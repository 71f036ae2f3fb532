def apply(model, config):
    """Checkpoints the regions of a configuration (memplan config --to torch) in a torch.nn.Module."""
    from collections import Counter

    import torch
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def region(modules, forwards, ops):
        keep = {(o["op"], i) for o in ops for i in o["calls"]}
        latest = []

        def contexts():
            calls = {False: Counter(), True: Counter()}  # of the forward pass, and of its recomputation
            latest[:] = [calls[False]]

            def policy(ctx, op, *args, **kwargs):
                name, seen = str(getattr(op, "overloadpacket", op)), calls[ctx.is_recompute]
                seen[name] += 1
                return CheckpointPolicy.MUST_SAVE if (name, seen[name] - 1) in keep else CheckpointPolicy.PREFER_RECOMPUTE

            return create_selective_checkpoint_contexts(policy)

        def run(x, *args, **kwargs):  # modules that run one after the other
            for f in forwards:
                x = f(x, *args, **kwargs)
            return x

        def forward(*args, **kwargs):
            how = {"context_fn": contexts} if keep else {}
            out = checkpoint(run if len(forwards) > 1 else forwards[0], *args, use_reentrant=False, **how, **kwargs)
            for o in ops:
                if torch.is_grad_enabled() and latest[0][o["op"]] != o["of"]:
                    raise RuntimeError(f"{modules} calls {o['op']} {latest[0][o['op']]} times, the plan says {o['of']}")
            return out

        return forward

    named = dict(model.named_modules())
    for i, entry in enumerate(config["checkpoint"]):
        first, *rest = entry["modules"]
        ops = [o for o in config["ops"] if o["region"] == i]
        named[first].forward = region(entry["modules"], [named[n].forward for n in entry["modules"]], ops)
        for n in rest:  # they have run with the first
            named[n].forward = lambda x, *args, **kwargs: x
    return model
