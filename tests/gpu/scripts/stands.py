"""A worker on a GPU that does one thing after it has said "ready": stands.py WHAT. Its probe is attached."""

import sys

import torch

from holdfast.agent import probe

probe.attach()
torch.cuda.set_device(0)
number = torch.ones(8, device="cuda")
torch.cuda.synchronize()
ENDLESS = 200_000_000_000  # cycles: more than a minute

match sys.argv[1]:
    case "synchronizes":
        torch.cuda._sleep(ENDLESS)
        print("ready", flush=True)
        torch.cuda.synchronize()
    case "asks":
        torch.cuda._sleep(ENDLESS)
        print("ready", flush=True)
        number.sum().item()
    case "computes":
        print("ready", flush=True)
        while True:
            pass
    case "launches":
        # Python between kernels, as in a step that is slow because of its host.
        print("ready", flush=True)
        while True:
            number.add_(1)
