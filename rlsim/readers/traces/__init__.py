"""Traces of requests, of agents and of speculative decoding as the workload and the acceptance of a scenario."""

from enum import StrEnum


class Format(StrEnum):
    """Formats of traces, which the command line shows before it loads what reads them."""

    AUTO = "auto"
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    MOONCAKE = "mooncake"
    AZURE = "azure"
    VERL = "verl"
    NEMO_RL = "nemo-rl"
    AGENTS = "agents"
    VLLM_METRICS = "vllm-metrics"
