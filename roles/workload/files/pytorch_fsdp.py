"""Train a small network with PyTorch's FSDP on all GPUs of all pods, on data made from a seed.

One process of each pod prints a JSON line for the first step and each tenth of all: the step, the
loss, and from the second line on the samples per second of its pod since the line before. torchrun
starts it: pytorch_fsdp.py '{"steps": 200, "width": 4096, "layers": 8, "batch": 256}'
"""

import json
import os
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel


def network(width, layers):
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _layer in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(width, width))


def main(options):
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    distributed.init_process_group("nccl")
    torch.manual_seed(1)
    width, batch = options["width"], options["batch"]
    model = FullyShardedDataParallel(network(width, options["layers"]).cuda(), device_id=local)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    teacher = torch.randn(width, width, device="cuda") / width**0.5
    # Each process has samples of its own.
    torch.manual_seed(2 + distributed.get_rank())
    report_every = max(options["steps"] // 10, 1)
    samples = batch * int(os.environ["LOCAL_WORLD_SIZE"]) * report_every
    began = time.monotonic()
    for step in range(1, options["steps"] + 1):
        inputs = torch.randn(batch, width, device="cuda")
        loss = nn.functional.mse_loss(model(inputs), inputs @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step != 1 and step % report_every:
            continue
        # The value waits for the GPU; the mean of all processes is the same in each report.
        total = loss.detach()
        distributed.all_reduce(total)
        report = {"step": step, "loss": total.item() / distributed.get_world_size()}
        if step != 1:
            now = time.monotonic()
            report["samples_per_second"] = round(samples / max(now - began, 1e-9), 3)
            began = now
        if local == 0:
            print(json.dumps(report), flush=True)
    distributed.destroy_process_group()


main(json.loads(sys.argv[1]))
