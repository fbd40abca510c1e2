"""Fit a line by gradient descent, in Python alone: a workload whose speed and result can be judged.

Prints a JSON line for the first step and each tenth of all: the step, the loss, and from the second
line on the samples per second since the line before. Usage: synthetic.py '{"steps": 20000}'
"""

import json
import random
import sys
import time

FEATURES, BATCH = 16, 64


def main(steps):
    source = random.Random(1)
    truth = [source.uniform(-1, 1) for _feature in range(FEATURES)]
    weights = [0.0] * FEATURES
    report_every = max(steps // 10, 1)
    began = time.monotonic()
    for step in range(1, steps + 1):
        batch = [[source.gauss(0, 1) for _feature in range(FEATURES)] for _sample in range(BATCH)]
        gradient, loss = [0.0] * FEATURES, 0.0
        for sample in batch:
            error = sum(x * (w - t) for x, w, t in zip(sample, weights, truth))
            loss += error * error / BATCH
            gradient = [g + 2 * error * x / BATCH for g, x in zip(gradient, sample)]
        weights = [w - 0.02 * g for w, g in zip(weights, gradient)]
        if step == 1:
            print(json.dumps({"step": step, "loss": loss}), flush=True)
        elif step % report_every == 0:
            now = time.monotonic()
            rate = BATCH * report_every / max(now - began, 1e-9)
            report = {"step": step, "loss": loss, "samples_per_second": round(rate, 3)}
            print(json.dumps(report), flush=True)
            began = now


main(json.loads(sys.argv[1])["steps"])
