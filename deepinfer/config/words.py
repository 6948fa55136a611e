"""The words that options take."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda", "npu"]
Dtype = Literal["bfloat16", "float32"]
WeightDtype = Literal["auto", "bfloat16", "float32"]
ActQuant = Literal["off", "fp8"]
LoadFormat = Literal["auto", "dummy"]
Replay = Literal["off", "mask", "compact"]
PrefixReplay = Literal["bounded", "exact"]
DraftSchedule = Literal["off", "fixed", "confidence"]
Accept = Literal["auto", "rejection", "coupled"]
