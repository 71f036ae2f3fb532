"""ResNet-50 with AdamW, as torchvision's users train it."""
import torch, torchvision

BATCH = 150


def model(): return torchvision.models.resnet50()


def example(batch=2): return (torch.randn(batch, 3, 224, 224),)


def train(steps=8):
    net = model().cuda().train()
    optimizer, loss = torch.optim.AdamW(net.parameters(), lr=1e-4), torch.nn.CrossEntropyLoss()
    images, labels = example(BATCH)[0].cuda(), torch.randint(0, 1000, (BATCH,)).cuda()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(net(images), labels).backward()
        optimizer.step()


if __name__ == '__main__': train()
