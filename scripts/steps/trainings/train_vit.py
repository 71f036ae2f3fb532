"""A ViT of timm in bfloat16 autocast, a function for --call."""
import timm, torch

BATCH = 320


def model(): return timm.create_model('vit_small_patch16_224')


def example(batch=2): return (torch.randn(batch, 3, 224, 224),)


def train(steps=8):
    net = model().cuda().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    images, labels = example(BATCH)[0].cuda(), torch.randint(0, 1000, (BATCH,)).cuda()
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast('cuda', dtype=torch.bfloat16): loss = torch.nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        del loss


if __name__ == '__main__': train()
