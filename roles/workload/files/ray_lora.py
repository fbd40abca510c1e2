"""Fine-tune a language model by LoRA with Ray Train on all GPUs of all pods, on tokens from a seed.

One process of each pod prints a JSON line for the first step and each tenth of all, into the log of
its pod: the step, the loss, and from the second line on the samples per second of its pod since the
line before. Ray keeps what its processes print in files of its own, so the lines go to the output
of the container's first process. ray_lora.py '{"model": "...", "processes": 8, ...}'
"""

import json
import sys
import time

LOG = "/proc/1/fd/1"


def reported(step, steps):
    return step == 1 or step % max(steps // 10, 1) == 0


def report(step, loss, samples, seconds):
    """The line of a step; ``samples``: of the pod since the line before, 0 for the first."""
    line = {"step": step, "loss": loss}
    if samples:
        line["samples_per_second"] = round(samples / max(seconds, 1e-9), 3)
    return json.dumps(line) + "\n"


def train(options):
    import ray.train
    import ray.train.torch
    import torch
    from peft import LoraConfig, get_peft_model
    from torch import distributed
    from transformers import AutoModelForCausalLM

    context, device = ray.train.get_context(), ray.train.torch.get_device()
    model = AutoModelForCausalLM.from_pretrained(options["model"], torch_dtype=torch.bfloat16)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = ray.train.torch.prepare_model(get_peft_model(model, lora))
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    # Each process has samples of its own, the same in each step: the loss falls as it learns them.
    torch.manual_seed(2 + context.get_world_rank())
    tokens = torch.randint(1000, (options["batch"], options["tokens"]), device=device)
    began, before = time.monotonic(), 1
    for step in range(1, options["steps"] + 1):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not reported(step, options["steps"]):
            continue
        # The value waits for the GPU; the mean of all processes is the same in each report.
        total = loss.detach().float()
        distributed.all_reduce(total)
        now = time.monotonic()
        if context.get_local_rank() == 0:
            samples = options["batch"] * context.get_local_world_size() * (step - before)
            with open(LOG, "w") as log:
                log.write(
                    report(step, total.item() / context.get_world_size(), samples, now - began)
                )
        began, before = now, step


def main(options):
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    # The trainer only waits; Ray would reserve a processor for it, which a process needs.
    scaling = ScalingConfig(
        trainer_resources={"CPU": 0},
        num_workers=options["processes"],
        use_gpu=options["gpu"],
        placement_strategy="SPREAD",
    )
    # The failure of a process ends all, and raises here.
    TorchTrainer(train, train_loop_config=options, scaling_config=scaling).fit()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
