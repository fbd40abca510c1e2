"""Serve a model with vLLM, put a load on the server, and print the result of the load as a JSON line.

Server and load are children of this program in one container: the end of either ends the other, and
the exit status is not 0 unless the load succeeded. Usage: vllm.py '{"model": "...", ...}'
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

#: Seconds for the children to end before they are killed.
GRACE = 10


def start(*arguments):
    return subprocess.Popen(["vllm", *map(str, arguments)], start_new_session=True)


def serve(options):
    return start(
        *("serve", options["model"], "--host", "127.0.0.1", "--port", options["port"]),
        # All GPUs of the pod serve one model.
        *("--tensor-parallel-size", max(options["gpus"], 1)),
    )


def load(options, result):
    return start(
        *("bench", "serve", "--backend", "vllm", "--model", options["model"]),
        *("--host", "127.0.0.1", "--port", options["port"]),
        *("--dataset-name", "random", "--ignore-eos", "--num-prompts", options["prompts"]),
        *("--random-input-len", options["input_tokens"]),
        *("--random-output-len", options["output_tokens"]),
        *("--max-concurrency", options["concurrency"]),
        *("--percentile-metrics", "ttft,tpot,itl", "--disable-tqdm", "--save-result"),
        *("--result-dir", os.path.dirname(result), "--result-filename", os.path.basename(result)),
    )


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def wait(true, server, until, what):
    """Return once ``true()``; exit when the server ends or time is up before."""
    while not true():
        if server.poll() is not None:
            sys.exit(f"the server ended with status {server.returncode} before {what}")
        if time.monotonic() > until:
            sys.exit(f"the deadline passed before {what}")
        time.sleep(0.5)


def end(children):
    for number, grace in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, number)
        until = time.monotonic() + grace
        while any(child.poll() is None for child in children) and time.monotonic() < until:
            time.sleep(0.1)


def main(options):
    # As for any program: the first process of a container ignores the signal otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    until = time.monotonic() + options["timeout"]
    result = os.path.join(tempfile.mkdtemp(), "result.json")
    children = [serve(options)]
    server = children[0]
    try:
        wait(lambda: is_ready(options["port"]), server, until, "it was ready")
        client = load(options, result)
        children.append(client)
        wait(lambda: client.poll() is not None, server, until, "the load ended")
        if client.returncode:
            sys.exit(f"the load ended with status {client.returncode}")
        with open(result, encoding="utf-8") as stream:
            figures = json.load(stream)
        # Lists have a value for each request.
        numbers = {key: value for key, value in figures.items() if isinstance(value, (int, float))}
        print(json.dumps(numbers), flush=True)
    finally:
        end(children)


main(json.loads(sys.argv[1]))
