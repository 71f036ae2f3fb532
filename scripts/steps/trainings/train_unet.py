"""The denoiser of a small latent diffusion model, with diffusers."""
import diffusers, torch

BATCH = 40


def model(): return diffusers.UNet2DModel(sample_size=64, in_channels=4, out_channels=4, block_out_channels=(128, 256, 256), layers_per_block=2, down_block_types=('DownBlock2D', 'AttnDownBlock2D', 'DownBlock2D'), up_block_types=('UpBlock2D', 'AttnUpBlock2D', 'UpBlock2D'))


def example(batch=2): return (torch.randn(batch, 4, 64, 64), torch.randint(0, 1000, (batch,)), None, False)


def train(steps=8):
    net = model().cuda().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    noisy, times = (t.cuda() for t in example(BATCH)[:2])
    noise = torch.randn_like(noisy)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(noisy, times, return_dict=False)[0], noise).backward()
        optimizer.step()


if __name__ == '__main__': train()
