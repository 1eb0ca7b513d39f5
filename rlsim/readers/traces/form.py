"""Names of the formats of traces, which the command line shows before it loads what reads them."""

from enum import StrEnum


class Format(StrEnum):
    """Formats of traces."""

    AUTO = "auto"
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    MOONCAKE = "mooncake"
    AZURE = "azure"
    VERL = "verl"
    NEMO_RL = "nemo-rl"
    VLLM_METRICS = "vllm-metrics"
