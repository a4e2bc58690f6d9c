"""The figures that commands measure, as data: what each is called, its unit, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One figure.

    Attributes:
        key: Its key in a round's record.
        title: What a table calls it.
        unit: Its unit, empty for a plain number.
        higher_is_better: The direction; None where neither is better.
    """

    key: str
    title: str
    unit: str
    higher_is_better: bool | None


METRICS: dict[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric("total_ops", "TotalOps", "", True),
        Metric("send_ops", "SendOps", "", True),
        Metric("recv_ops", "RecvOps", "", True),
        Metric("ops_per_second", "Ops/s", "1/s", True),
        Metric("bytes_per_op", "Bytes/op", "B", False),
        Metric("allocs_per_op", "Allocs/op", "", False),
        Metric("copies_per_message", "Copies/message", "", False),
        Metric("send_copies_per_message", "SendCopies/message", "", False),
        Metric("request_throughput", "ReqT/op", "B/s", True),
        Metric("response_throughput", "RespT/op", "B/s", True),
        Metric("p50_us", "50th-Lat", "µs", False),
        Metric("p90_us", "90th-Lat", "µs", False),
        Metric("p99_us", "99th-Lat", "µs", False),
        Metric("average_us", "Avg-Lat", "µs", False),
        Metric("client_cpu_us_per_op", "Client CPU/op", "µs", False),
        Metric("server_cpu_us_per_op", "Server CPU/op", "µs", False),
        Metric("cpu_us_per_op", "CPU/op", "µs", False),
        Metric("foreign_cpu", "Foreign CPU", "core", None),
        Metric("ns_per_op", "Time/op", "ns", False),
        Metric("megabytes_per_second", "MB/s", "MB/s", True),
        Metric("kib_each", "RSS/each", "KiB", False),
        Metric("rss_before_mib", "RSS before", "MiB", None),
        Metric("rss_after_mib", "RSS after", "MiB", None),
        Metric("peak_mib", "RSS peak", "MiB", False),
        Metric("client_rss_mib", "Client RSS", "MiB", False),
        Metric("server_rss_mib", "Server RSS", "MiB", False),
        Metric("rss_growth_mib", "RSS growth", "MiB", False),
        Metric("rss_growth_paused_mib", "RSS growth paused", "MiB", False),
        Metric("rate_last_to_first_tenth", "Last/first tenth", "", True),
        Metric("times_floor", "x floor", "", None),
    )
}
