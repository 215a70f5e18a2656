"""What all_reduce_perf prints in layouts of which no real output is at hand, in the formats of
nccl-tests' sources (src/common.cu, src/util.cu).
"""

from __future__ import annotations

import json

SIZES = [2**power for power in range(20, 25)]
BANDWIDTH = 12.5


def figures(size, ranks):
    """Time in µs, algorithm and bus bandwidth."""
    time = size / BANDWIDTH / 1e3 + 20
    return time, size / time / 1e3, size / time / 1e3 * 2 * (ranks - 1) / ranks


def average(ranks):
    return sum(figures(size, ranks)[2] for size in SIZES) / len(SIZES)


def text(layout="2.19", ranks=4):
    """The output of one process with that many GPUs."""
    said = []
    devices = [
        "#  Rank %2d Group  0 Pid   4711 on         gx1 device %2d [0000:%02x:00] NVIDIA H100 80GB HBM3"
        % (rank, rank, 16 + rank)
        for rank in range(ranks)
    ]
    if layout == "2015":
        said += (
            ["# Using devices"]
            + [
                "#   Rank %2d uses device %2d [0x%02x] Tesla P100" % (rank, rank, 4 + rank)
                for rank in range(ranks)
            ]
            + [""]
        )
        said += [
            "#                                                 out-of-place                    in-place",
            "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res",
        ]
    else:
        said += (
            [
                "# nccl-tests version 2.19.6 nccl-headers=22902 nccl-library=22902",
                "# Collective test starting: all_reduce_perf",
                "# nThread 1 nGpus %d minBytes %d maxBytes %d step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0"
                % (ranks, SIZES[0], SIZES[-1]),
                "#",
                "# Using devices",
            ]
            + devices
            + ["#"]
        )
        one = {
            "2.19": " time   algbw   busbw  #wrong",
            "cputime": " cputime   algbw   busbw  #wrong",
            "timestamp": " time   algbw   busbw  #wrong",
            "iterations": " time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%",
            "side": " time   algbw   busbw  sidebw  #wrong",
        }[layout]
        said += [
            "#       size         count      type   redop    root  "
            + one
            + "  "
            + one
            + ("            timestamp" if layout == "timestamp" else ""),
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"
            + ("  %Y-%m-%d %H:%M:%S" if layout == "timestamp" else ""),
        ]
    for size in SIZES:
        time, algbw, busbw = figures(size, ranks)
        half = {
            "2015": "  %7.3f  %5.2f  %5.2f    0e+00" % (time / 1e3, algbw, busbw),
            "cputime": "  %7.2f  %6.2f  %6.2f  %6d" % (3.1, algbw, busbw, 0),
            "iterations": "  %7.2f  %6.2f  %6.2f  %6d  %7.2f  %7.2f  %7.2f  %7.2f"
            % (time, algbw, busbw, 0, time, time, time, 0.5),
            "side": "  %7.2f  %6.2f  %6.2f  %6.2f %5d" % (time, algbw, busbw, 17.0, 0),
        }.get(layout, "  %7.2f  %6.2f  %6.2f  %6d" % (time, algbw, busbw, 0))
        row = (
            "%12d  %12d  %8s  %6s" % (size, size // 4, "float", "sum")
            + ("" if layout == "2015" else "  %6d" % -1)
            + half
            + half
        )
        said.append(row + ("  2026-07-09 16:03:21" if layout == "timestamp" else ""))
    mark = "" if layout == "2015" else "#"
    said += [
        mark + " Out of bounds values : 0 OK",
        mark + " Avg bus bandwidth    : %g " % average(ranks),
        mark,
    ]
    if layout != "2015":
        said += ["# Collective test concluded: all_reduce_perf", "#", ""]
    return "\n".join(said) + "\n"


def document(ranks=4, **changes):
    """The JSON of the same run, as version 3 of its format has it; a process lists its first GPU
    only.
    """
    results = []
    for size in SIZES:
        time, algbw, busbw = figures(size, ranks)
        half = {"time": time, "alg_bw": algbw, "bus_bw": busbw, "nwrong": 0.0}
        results.append(
            {
                "size": size,
                "count": size // 4,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": half,
                "in_place": half,
                "actual_iterations": 20,
                "experiment_name": "",
            }
        )
    told = {
        "version": 3,
        "start_time": "2026-07-09 16:03:21",
        "args": ["/opt/nccl-tests/build/all_reduce_perf", "-b", "1M"],
        "env": ["SECRET=swordfish"],
        "nccl_version": 22902,
        "config": {
            "nthreads": 1,
            "ngpus": ranks,
            "minimum_bytes": SIZES[0],
            "maximum_bytes": SIZES[-1],
            "step_factor": 2,
            "warmup_iters": 5,
            "iterations": 20,
            "aggregated_iterations": 1,
            "validation": 1,
            "graph": 0,
            "blocking_collectives": "false",
            "devices": [
                {
                    "rank": 0,
                    "group": 0,
                    "pid": 4711,
                    "hostname": "gx1",
                    "device": 0,
                    "device_hex": "0000:10:00",
                    "device_info": "NVIDIA H100 80GB HBM3",
                }
            ],
        },
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": average(ranks), "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-07-09 16:04:02",
    }
    told.update(changes)
    return json.dumps({key: value for key, value in told.items() if value is not None})
