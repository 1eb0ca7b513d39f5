"""Published memory of GPUs beside what is counted: logs of engines, peaks of trainers, runs that ran or did not."""
