# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for perftest's ``ib_write_bw`` and ``ib_write_lat``, without RDMA hardware: it really
moves bytes over TCP between the two ends, at the rate of the link that a scenario gives its device,
and prints what the real program prints (perftest_parameters.c and .h of perftest 6.06 and newer).

The scenario is ``scenario.json`` beside the program: ``{"devices": {"mlx5_0:1": {...}}}``, or by the
address that an end is bound to, ``{"hosts": {"10.0.0.1": {"mlx5_0:1": {...}}}}``. Of a device:
``gbits`` (its link, both ways), ``send_gbits`` (what it sends, if less), ``latency_us``,
``fault`` (``hang``, ``no_completion``, ``no_link``, ``garbage``, ``killed``) and ``counters`` (files
and by how much they grow). At the top: ``json`` (``quoted``, ``bare`` as 6.06, ``none`` without the
option), ``cuda`` (built with CUDA) and ``old`` (without --report_gbits).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

HERE = Path(sys.argv[0]).resolve().parent
NAME = Path(sys.argv[0]).name
LATENCY = NAME == "ib_write_lat"
SCENARIO = json.loads((HERE / "scenario.json").read_text(encoding="utf-8"))
LINE = "-" * 87
CHUNK = b"\0" * 65536

OPTIONS = """
  -d, --ib-dev=<dev>  Use IB device <dev> (default first device found)
  -D, --duration  Run test for a customized period of seconds.
  -F, --CPU-freq  Do not show a warning even if cpufreq_ondemand module is loaded, and cpu-freq is not on max.
  -h, --help  Show this help screen.
  -i, --ib-port=<port>  Use port <port> of IB device (default 1)
  -n, --iters=<iters>  Number of exchanges (at least 5, default 5000)
  -p, --port=<port>  Listen on/connect to port <port> (default 18515)
  -q, --qp=<num of qp's>  Num of qp's(default 1)
  -s, --size=<size>  Size of message to exchange (default 65536)
  -V, --version  Display version number
  -x, --gid-index=<index>  Test uses GID with GID index (Default : IB - no gid . ETH - 0)
"""
FURTHER = {
    "json": """
      --out_json  Save the report in a json file
      --out_json_file=<file>  Name of the report json file. (Default: perftest_out.json in the working directory)
""",
    "cuda": """
      --use_cuda=<cuda device id> Use CUDA specific device for GPUDirect RDMA testing
      --use_cuda_bus_id=<cuda full BUS id> Use CUDA specific device, based on its full PCIe address
""",
    "rate": """
      --source_ip  Source IP of the interface used for connection establishment. By default taken from routing table.
      --report_gbits  Report Max/Average BW of test in Gbit/sec (instead of MiB/sec)
      --reversed  Reverse traffic direction - Server send to client
""",
}


def usage():
    print(f"Usage:\n  {NAME}            start a server and wait for connection")
    print(f"  {NAME} <host>     connect to server at <host>\n\nOptions:{OPTIONS}")
    if SCENARIO.get("json", "quoted") != "none":
        print(FURTHER["json"])
    if SCENARIO.get("cuda"):
        print(FURTHER["cuda"])
    if not SCENARIO.get("old"):
        print(FURTHER["rate"])


def arguments():
    parser = argparse.ArgumentParser(prog=NAME, add_help=False)
    parser.add_argument("-d", dest="device", default="mlx5_0")
    parser.add_argument("-i", dest="ib_port", type=int, default=1)
    parser.add_argument("-p", dest="port", type=int, default=18515)
    parser.add_argument("-D", dest="duration", type=int)
    parser.add_argument("-n", dest="iters", type=int, default=5000)
    parser.add_argument("-q", dest="qps", type=int, default=1)
    parser.add_argument("-s", dest="size", type=int, default=2 if LATENCY else 65536)
    parser.add_argument("-x", dest="gid", type=int)
    parser.add_argument("-F", action="store_true")
    if SCENARIO.get("json", "quoted") != "none":
        parser.add_argument("--out_json", action="store_true")
        parser.add_argument("--out_json_file")
    if not SCENARIO.get("old"):
        parser.add_argument("--report_gbits", action="store_true")
        parser.add_argument("--reversed", action="store_true")
        parser.add_argument("--source_ip")
    if SCENARIO.get("cuda"):
        parser.add_argument("--use_cuda")
        parser.add_argument("--use_cuda_bus_id")
    parser.add_argument("server", nargs="?")
    return parser.parse_args()


def refuse(*lines):
    sys.stdout.flush()
    print("\n".join(lines), file=sys.stderr, flush=True)
    sys.exit(1)


def end_of(given):
    """What the scenario says of this end."""
    name = f"{given.device}:{given.ib_port}"
    own = SCENARIO.get("hosts", {}).get(getattr(given, "source_ip", None), {})
    found = own.get(name) or SCENARIO.get("devices", {}).get(name)
    if found is None:
        refuse(" Unable to find the Infiniband/RoCE device")
    return found


def connected(given):
    family = socket.AF_INET6 if ":" in (given.server or given.source_ip or "") else socket.AF_INET
    own = getattr(given, "source_ip", None)
    if given.server:
        link = socket.socket(family)
        try:
            if own:
                link.bind((own, 0))
            link.connect((given.server, given.port))
        except OSError:
            refuse(
                f" Couldn't connect to {given.server}:{given.port}",
                " Unable to init the socket connection",
            )
        return link
    print("\n************************************")
    print("* Waiting for client to connect... *")
    print("************************************")
    sys.stdout.flush()
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((own or "", given.port))
        server.listen(1)
    except OSError:
        refuse(f" Couldn't listen to port {given.port}", " Unable to init the socket connection")
    link, _sender = server.accept()
    server.close()
    return link


def exchanged(link, message):
    tell(link, message)
    return told(link)


def tell(link, message):
    link.sendall(json.dumps(message).encode() + b"\n")


def told(link):
    data = b""
    while not data.endswith(b"\n"):
        more = link.recv(1)
        if not more:
            refuse(
                " Unable to read to socket/rdma_cm",
                " Failed to exchange data between server and clients",
            )
        data += more
    return json.loads(data)


def exactly(link, count):
    while count:
        data = link.recv(min(count, 1 << 16))
        if not data:
            refuse(
                " Unable to read to socket/rdma_cm",
                " Failed to exchange data between server and clients",
            )
        count -= len(data)


def send(link, gbits, seconds, size):
    """Bytes that were sent at the link's rate: at most a hundredth of a second ahead of it."""
    began, sent, rate = time.monotonic(), 0, gbits * 125e6
    while (passed := time.monotonic() - began) < seconds:
        if sent > rate * (passed + 0.01):
            time.sleep(0.002)
            continue
        sent += link.send(CHUNK[: min(len(CHUNK), size)])
    link.shutdown(socket.SHUT_WR)
    return sent, time.monotonic() - began


def receive(link):
    received = 0
    while data := link.recv(1 << 18):
        received += len(data)
    return received


def measured_rate(given, end, link):
    """Gbit/s, million messages a second and messages: of what the receiver counted."""
    is_client = bool(given.server)
    is_sender = is_client != given.reversed
    own = {"gbits": end["gbits"], "sends": end.get("send_gbits", end["gbits"])}
    other = exchanged(link, own)
    sends = own["sends"] if is_sender else other["sends"]
    gbits = min(own["gbits"], other["gbits"], sends)
    if is_sender:
        _sent, seconds = send(link, gbits, given.duration, given.size)
        report = told(link)
    else:
        received = receive(link)
        tell(link, {"bytes": received})
        report = {"bytes": received}
        seconds = given.duration
    messages = report["bytes"] / given.size
    return report["bytes"] * 8 / seconds / 1e9, messages / seconds / 1e6, int(messages)


def measured_latency(given, end, link):
    """Microseconds of half a round trip, really exchanged, unless the scenario has others."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _turn in range(given.iters):
        began = time.perf_counter()
        if given.server:
            link.sendall(b"\0" * given.size)
            exactly(link, given.size)
        else:
            exactly(link, given.size)
            link.sendall(b"\0" * given.size)
        times.append((time.perf_counter() - began) / 2 * 1e6)
    times.sort()
    typical = times[len(times) // 2]
    share = end["latency_us"] / typical if "latency_us" in end else 1.0
    return [one * share for one in times]


def written(given, results):
    """The report as JSON, as the version writes it."""
    if not getattr(given, "out_json", False):
        return
    test = "RDMA_Write_Latency_Test" if LATENCY else "RDMA_Write_BW_Test"
    if SCENARIO.get("json", "quoted") == "bare":
        lines = [
            "{",
            "test_info: {",
            f"test: {test},",
            "Dual_port: OFF,",
            f'Device: "{given.device}",',
        ]
        lines += ["Number_of_qps: 1,", "Link_type: IB,", "},", "results: {"]
        lines += [f"{name}: {value}," for name, value in results] + ["},", "}"]
    else:
        lines = ["{", '"test_info": {', f'"test": "{test}",', '"Dual_port": "OFF",']
        lines += [f'"Device": "{given.device}",', '"Number_of_qps": 1,', '"Link_type": "IB"', "},"]
        lines += ['"results": {']
        lines += [
            f'"{name}": {value}' + ("," if place < len(results) - 1 else "")
            for place, (name, value) in enumerate(results)
        ]
        lines += ["}", "}"]
    with open(given.out_json_file or "perftest_out.json", "w", encoding="utf-8") as handle:
        handle.write("\n".join(lines) + "\n")


def head(given):
    print(LINE)
    print(f"                    RDMA_Write {'Latency' if LATENCY else 'BW'} Test")
    print(f" Dual-port       : OFF\t\tDevice         : {given.device}")
    print(f" Number of qps   : {given.qps}\t\tTransport type : IB")
    print(" Connection type : RC\t\tUsing SRQ      : OFF")
    print(" PCIe relax order: ON\n ibv_wr_API      : ON")
    print(" Mtu             : 4096[B]\n Link type       : IB\n Max inline data : 0[B]")
    print(" rdma_cm QPs\t : OFF\n Data ex. method : Ethernet")
    print(LINE)
    print(" local address: LID 0x01 QPN 0x0116 PSN 0xa2c9a3 RKey 0x1fff00 VAddr 0x007f2f2a0f0000")
    print(" remote address: LID 0x02 QPN 0x0116 PSN 0x5d9b2e RKey 0x1fff00 VAddr 0x007f2f2a0f0000")
    print(LINE)


def report_rate(given, gbits, messages, iterations):
    unit, rate = ("Gb/sec", gbits) if given.report_gbits else ("MB/sec", gbits * 1e9 / 8 / 2**20)
    print(f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
    if rate < 0.1 and given.report_gbits:
        row = " %-7d    %d           %-7.6f            %-7.6f            %-7.6f"
        places = 6
    else:
        row = " %-7d    %-10d       %-7.2f            %-7.2f\t\t   %-7.6f"
        places = 2
    results = [("MsgSize", given.size), ("n_iterations", iterations)]
    results += [("BW_peak", f"{0:.{places}f}"), ("BW_average", f"{rate:.{places}f}")]
    written(given, [*results, ("MsgRate", f"{messages:.6f}")])
    print(row % (given.size, iterations, 0.0, rate, messages))
    print(LINE)


def report_latency(given, times):
    average = sum(times) / len(times)
    deviation = (sum((one - average) ** 2 for one in times) / len(times)) ** 0.5
    figures = [times[0], times[-1], times[len(times) // 2], average, deviation]
    figures += [times[int(len(times) * 0.99)], times[int(len(times) * 0.999)]]
    print(
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
        "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
    )
    names = ("t_min", "t_max", "t_typical", "t_avg", "t_stdev", "percentile_99", "percentile_99.9")
    results = [(name, f"{value:.2f}") for name, value in zip(names, figures)]
    written(given, [("MsgSize", given.size), ("n_iterations", len(times)), *results])
    row = " %-7d %d          %-7.2f        %-7.2f      %-7.2f  \t       %-7.2f     \t%-7.2f\t\t%-7.2f \t\t%-7.2f"
    print(row % (given.size, len(times), *figures))
    print(LINE)


def main():
    if any(word in sys.argv for word in ("-h", "--help")):
        usage()
        sys.exit(1)  # as 6.06 does
    if any(word in sys.argv for word in ("-V", "--version")):
        print("Version: 6.06")
        sys.exit(1)
    given = arguments()
    end = end_of(given)
    link = connected(given)
    time.sleep(end.get("wait_seconds", 0.2))  # the real one sleeps a second
    head(given)
    fault = end.get("fault")
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "no_link":
        refuse(" Unable to Connect the HCA's through the link")
    if fault == "no_completion":
        time.sleep(0.3)
        refuse(
            " Completion with error at client",
            " Failed status 12: wr_id 0 syndrom 0x81",
            "scnt=128, ccnt=0",
        )
    if LATENCY:
        times = measured_latency(given, end, link)
        report_latency(given, [float("nan")] * len(times) if fault == "garbage" else times)
    else:
        rate, messages, iterations = measured_rate(given, end, link)
        report_rate(given, float("nan") if fault == "garbage" else rate, messages, iterations)
    for path, growth in end.get("counters", {}).items():
        counter = Path(path)
        counter.write_text(f"{int(counter.read_text()) + growth}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
