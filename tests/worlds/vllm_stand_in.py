# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program ``vllm`` without a model: `vllm serve` answers /health, and `vllm bench serve` writes a
result as vLLM 0.11 does. The model's name says what fails: `no-server`, `server-dies`, `no-load`,
`slow-load`, `lost-requests`.
"""

import http.server
import json
import os
import sys
import threading
import time
import urllib.request


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/load" and sys.argv[2] == "server-dies":
            os._exit(9)
        self.send_response(200 if self.path in ("/health", "/load") else 404)
        self.end_headers()

    def log_message(self, *_arguments):
        pass


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def serve():
    if sys.argv[2] == "no-server":
        sys.exit("CUDA error: no kernel image is available for execution on the device")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Health)
    threading.Thread(target=server.serve_forever).start()


def bench():
    model, prompts = option("--model"), int(option("--num-prompts"))
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{option('--port')}/load", timeout=5).close()
    except OSError:
        # As vLLM waits for its server to be ready.
        time.sleep(600)
    if model == "no-load":
        sys.exit("ValueError: Initial test run failed")
    if model == "slow-load":
        time.sleep(600)
    completed = prompts - 3 if model == "lost-requests" else prompts
    print("============ Serving Benchmark Result ============")
    print(f"Successful requests:                     {completed}")
    result = {
        "date": "20261126-080000",
        "endpoint_type": "vllm",
        "label": None,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": prompts,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": int(option("--max-concurrency")),
        "duration": 10.43,
        "completed": completed,
        "total_input_tokens": 65536,
        "total_output_tokens": 65536,
        "request_throughput": 49.06,
        "request_goodput": None,
        "output_throughput": 6280.1,
        "total_token_throughput": 12560.2,
        "mean_ttft_ms": 41.8,
        "median_ttft_ms": 38.4,
        "std_ttft_ms": 11.2,
        "p99_ttft_ms": 97.3,
        "mean_tpot_ms": 8.02,
        "median_tpot_ms": 7.98,
        "std_tpot_ms": 0.31,
        "p99_tpot_ms": 8.9,
        "latencies": [1.05] * prompts,
    }
    path = os.path.join(option("--result-dir"), option("--result-filename"))
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(result, stream)


serve() if sys.argv[1] == "serve" else bench()
