# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the rates of PyTorch's copies in GB/s (decimal), a JSON list with a number for each GPU.

    torch_copies.py host_to_device | device_to_host | local

It runs in whichever Python has PyTorch, so it imports nothing else.
"""

import json
import statistics
import sys

#: Bytes of a copy between host and GPU, and within a GPU; copies that count, after three others.
BETWEEN, WITHIN, COPIES = 256 << 20, 4 << 30, 10


def rate(torch, copies, gpu):
    """Median bytes/s of one direction, timed by the GPU."""
    size = WITHIN if copies == "local" else BETWEEN
    device = torch.empty(size, dtype=torch.uint8, device=f"cuda:{gpu}")
    if copies == "local":
        target, source = device, torch.empty_like(device)
    else:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        target, source = (device, host) if copies == "host_to_device" else (host, device)
    seconds = []
    with torch.cuda.device(gpu):
        for _ in range(3 + COPIES):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            target.copy_(source, non_blocking=True)
            ended.record()
            ended.synchronize()
            seconds.append(began.elapsed_time(ended) / 1e3)
    return size / statistics.median(seconds[3:])


def main():
    try:
        import torch
    except ImportError:
        sys.exit("this Python has no PyTorch")
    gpus = range(torch.cuda.device_count())
    print(json.dumps([rate(torch, sys.argv[1], gpu) / 1e9 for gpu in gpus]))


if __name__ == "__main__":
    main()
