"""Traces of requests and of speculative decoding as the workload and the acceptance of a scenario."""
