"""The host's time can be measured at all; how long it is, a table says."""

from deepinfer.bench.host import HostTime, bench_host, host_lines


def test_measured() -> None:
    """A part is left out of the sum, or the requests are not running yet."""
    found = bench_host(num_requests=8, num_steps=20)
    assert found.num_requests == 8
    assert min(found.schedule_ms, found.plan_ms, found.update_ms) > 0
    assert found.total_ms == found.schedule_ms + found.plan_ms + found.update_ms


def test_lines() -> None:
    """A column belongs to another heading."""
    heading, line = host_lines(iter([HostTime(1024, 1.0, 2.0, 4.0)]))
    assert heading.split() == "requests schedule ms plan ms update ms all ms".split()
    assert line.split() == ["1,024", "1.000", "2.000", "4.000", "7.000"]
