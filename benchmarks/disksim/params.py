"""The parameters of a device, as params.h has them: names, bounds, and what goes together."""

from collections.abc import Mapping

_BOTH = {"capacity", "queue_depth", "flush_exclusive", "link_mb_s", "buffer_bytes"}
HDD = _BOTH | {
    "rpm", "seek_min_us", "seek_max_us", "rate_outer_mb_s", "rate_inner_mb_s", "command_us",
    "aging_ms", "segments", "readahead_bytes",
}  # fmt: skip
FLASH = _BOTH | {
    "units", "page_bytes", "read_us", "program_bytes", "program_us", "read_command_us",
    "write_command_us", "latency_us", "link_duplex",
}  # fmt: skip
EXTRAS = {
    "pause_every_bytes": (0, 1e15),
    "pause_every_s": (0, 1e9),
    "pause_ms": (0.001, 1e12),
    "pause_factor": (1, 1e4),
    "slc_bytes": (0, 1e15),
    "slc_factor": (1, 1e4),
    "slc_empty_mb_s": (0, 1e6),
    "extra_us": (0, 1e12),
    "extra_from_s": (0, 1e9),
    "extra_to_s": (0, 1e9),
    "discard_mb_s": (1, 1e12),
}
"""Of flash; they may be absent. Least and greatest."""


def check(params: Mapping[str, float]) -> None:
    """Raise ValueError, in the words of params.c, if parameters make no device.

    params: without `kind`. Only extras have their bounds checked.
    """
    is_hdd = "rpm" in params
    own, others = (HDD, FLASH | EXTRAS.keys()) if is_hdd else (FLASH, HDD)
    for name in params:
        if name not in own and (is_hdd or name not in EXTRAS):
            kind = "of another kind of" if name in others else "not a parameter of a"
            raise ValueError(f"{name} is {kind} device")
    for name in sorted(own - params.keys()):
        raise ValueError(f"{name} is missing")
    for name, (least, greatest) in EXTRAS.items():
        if name in params and not least <= params[name] <= greatest:
            raise ValueError(f"{name} is from {least:g} to {greatest:g}, not {params[name]:g}")
    _check_groups(params)


def _check_groups(params: Mapping[str, float]) -> None:
    def partly(*names: str) -> bool:
        return 0 < len(params.keys() & {*names}) < len(names)

    by_bytes, by_time = (params.get(f"pause_every_{unit}") for unit in ("bytes", "s"))
    every = "pause_every_s" if by_bytes is None else "pause_every_bytes"
    if partly(every, "pause_ms", "pause_factor"):
        raise ValueError(
            "a pause needs pause_every_bytes or pause_every_s, pause_ms and pause_factor"
        )
    if by_bytes and by_time:
        raise ValueError("pause_every_bytes and pause_every_s are both there: one must be 0")
    if by_time and params["pause_ms"] >= by_time * 1000:
        raise ValueError("pause_ms is not less than pause_every_s")
    if partly("slc_bytes", "slc_factor", "slc_empty_mb_s"):
        raise ValueError("an SLC cache needs slc_bytes, slc_factor and slc_empty_mb_s")
    if partly("extra_us", "extra_from_s", "extra_to_s"):
        raise ValueError("extra latency needs extra_us, extra_from_s and extra_to_s")
    if "extra_us" in params and params["extra_to_s"] <= params["extra_from_s"]:
        raise ValueError("extra_to_s is not after extra_from_s")
