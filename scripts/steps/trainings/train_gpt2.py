"""GPT-2 of transformers in bfloat16 autocast, with its own loss."""
import torch, transformers

BATCH = 16


def model(): return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))


def example(batch=2):
    ids = torch.randint(0, 50257, (batch, 512))
    return dict(input_ids=ids, labels=ids)


def train(steps=8):
    net = model().cuda().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    batch = {k: v.cuda() for k, v in example(BATCH).items()}
    for _ in range(steps):
        with torch.autocast('cuda', dtype=torch.bfloat16): loss = net(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss


if __name__ == '__main__': train()
