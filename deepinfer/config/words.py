"""The words that options take."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda", "npu"]
Dtype = Literal["bfloat16", "float32"]
WeightDtype = Literal["auto", "bfloat16", "float32"]
ActQuant = Literal["off", "fp8"]
# Where Engram's tables lie; auto is the file beside a CPU, and host beside a GPU if there is room.
EngramMemory = Literal["auto", "file", "host", "device"]
Kernels = Literal["reference", "triton"]
LoadFormat = Literal["auto", "dummy"]
Replay = Literal["off", "mask", "compact"]
PrefixReplay = Literal["bounded", "exact"]
DraftSchedule = Literal["off", "fixed", "confidence"]
Accept = Literal["auto", "rejection", "coupled"]
# How caches are kept: in the release's own formats, or as plain values of a dtype.
Storage = Literal["packed", "bfloat16", "float32"]
