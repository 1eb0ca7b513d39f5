"""Discrete events: workload, replicas, RL loop, trace; knows nothing of GPUs."""
