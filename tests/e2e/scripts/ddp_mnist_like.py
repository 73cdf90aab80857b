"""A training script as third parties write them: PyTorch only, without instrumentation."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parse_args():
    parser = argparse.ArgumentParser(description="digits, more or less")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of make-believe work per step")
    parser.add_argument("--exit-code", type=int, default=0)
    return parser.parse_args()


def make_data():
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(640, 1, 8, 8, generator=generator)
    labels = (images.mean(dim=(1, 2, 3)) > 0).long()
    return TensorDataset(images, labels)


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    data = make_data()
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)

    done = 0
    if os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    if rank == 0:
        print(f"world {world}, starting at step {done}")

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            step += 1
            if step <= done:
                continue
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.pause:
                time.sleep(args.pause)
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.6f}", flush=True)
            if step % args.save_every == 0:
                if rank == 0:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, args.checkpoint + ".tmp")
                    os.replace(args.checkpoint + ".tmp", args.checkpoint)
                dist.barrier()
    print(f"rank {rank} of {world} is done after step {step}", file=sys.stderr)
    dist.destroy_process_group()
    sys.exit(args.exit_code)


if __name__ == "__main__":
    main()
