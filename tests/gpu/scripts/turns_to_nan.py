"""An unmodified script on a GPU whose parameters turn to NaN after step 40 of many."""

import time

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(400):
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    if step == 40:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
