"""Logs for the golden net as people and loggers write them: units, headings, tables, banners, steps told twice."""

# ruff: noqa: E501 - a line of a script or of a log is a line

import json
from typing import Any

STEPS = range(1, 13)


def _each(form: str) -> str:
    """A text for each step, with n, its seconds (60 + n) and a tenth of them."""
    return "".join(form.format(n=n, s=60.25 + n, ms=60250 + 1000 * n, g=30.5 + n / 4, t=14 - n / 8, m=1 + n / 60)
                   for n in STEPS)  # fmt: skip


def _rows(**more: Any) -> list[dict[str, Any]]:
    return [{"step": n, "timing_s/step": 90.0 + n % 4, "timing_s/gen": 40.0 + n % 3, "timing_s/update_actor": 20.0,
             "response_length/mean": 500 + n, **more} for n in STEPS]  # fmt: skip


def _twice() -> str:
    """Steps 9 to 12 again after a restart, the last of them once more, and a step without its time."""
    rows = [*_rows(), *({**row, "timing_s/step": row["timing_s/step"] + 5} for row in _rows()[8:]), _rows()[11]]
    rows.insert(4, {"step": 5, "timing_s/gen": 41.0})
    return "".join(json.dumps(row) + "\n" for row in rows)


def _event(key: str, value: object, **metadata: object) -> str:
    return f"0: :::MLLOG {json.dumps({'namespace': '', 'key': key, 'value': value, 'metadata': metadata})}\n"


BANNERS = """torch==2.7.1+cu128
vllm 0.8.4 is asked for, vllm: 0.8.5
Using NVIDIA H100 80GB HBM3 and NVIDIA H100 80GB HBM3
Initializing a V1 LLM engine (v0.9.1.) with config: model='Qwen/Qwen3-8B', tensor_parallel_size=2, pipeline_parallel_size=1
{'node:10.0.0.1': 1.0, 'CPU': 128.0, 'GPU': 64.0}
"""
LOGS: dict[str, str] = {
    "milliseconds": _each("step:{n} - timing_s/step_ms:{ms} - timing_s/gen_ms: {g} ms - timing_s/update_actor:{t} s\n"),
    "milliseconds broken": _each("step:{n} - timing_s/update_actor:{t} - timing_s/ge\nn_ms:{ms} - timing_s/step:90.5\n"),
    "minutes": _each("step:{n} - timing_s/step: {m:.4f} min - timing_s/gen: {g} sec, timing_s/update_actor: 0.01 h\n"),
    "words": "".join(f"generation: {30 + n} s\n" for n in (1, 2)) + "train time: 15.5 s\ntotal: 1.2 min\nresponse length: 800 tokens\n",
    "table": "| step | generation (s) | train | total |\n|---|---|---|---|\n" + _each("| {n} | {g} | {t:.2f} s | {m:.3f} min |\n"),
    "table of two": "| step | gen | update | step |\n|:-|-:|-:|-|\n" + _each("| {n} | {g} | **{t:.2f}** | {s} |\n"),
    "table of seconds": "| step\tgenerate\ttraining |\n" + "| 61.5\t30\t20 |\n| 62.5\t31\t21 |\n| 65\t30\t22 |\n| 61\t30\t|\n| 60\t29 |\n",
    "numbered": "| iteration | rollout | policy training [s] |\n" + _each("| {n} | {g} | {t:.2f} |\n"),
    "prime-rl": _each("SUCCESS Step {n} | 1m {t:.0f}s | Loss 0.1\n") + "SUCCESS Step 13 | 850ms | x\nStep 14 | 1h 2m | x\n",
    "headings": _each("===== Step {n}/20 =====\n  • Total step time: {s:.2f}s\n  • generation: {g}s (50%)\n"
                      "  • policy_training: {t:.2f}s\n  - Mean Generation Length: 700.5\n  generation: {g}\n"),
    "timers": _each("Started: 'step'\nStarted: 'generate'\nFinished: 'generate', time cost: {g}s\nStarted: 'generate'\n"
                    "Finished: 'generate', time cost: 2.5s\nFinished: 'sync_weights', time cost: {t}s\n"
                    "Started: 'sync_weights'\nFinished: 'step', time cost: {s}s\n"),
    "two on a line": _each("step:{n} - timing_s/step:{s} - timing_s/gen:{g} | step:{n}0 - timing_s/step:{s}1\n"),
    "Prometheus": "# HELP x\nray_timing_s_step{Node=\"a\"} 61.5\ntiming_s_gen 30\nvllm:num_requests_running{e=\"0\"} 33\n",
    "summary of wandb": "wandb: Run summary:\nwandb:  timing_s/step 61.25\nwandb:  timing_s/gen 30.5\nwandb:  _step 7\n",
    "nested": json.dumps([{"step": f"{row.pop('step')}/20", "data": {"timing_s": {k[9:]: v for k, v in row.items()}, "x": True}}
                          for row in _rows()]),
    "asides": "".join(json.dumps({**row, "timing_s/testing": 30.0 * (n % 4 == 3), "timing_s/save_checkpoint": 8.0 * (n % 5 == 4),
                                  "timing_s/step": row["timing_s/step"] + 30 * (n % 4 == 3)}) + "\n"
                      for n, row in enumerate(_rows())),
    "waits": "".join(json.dumps({**row, "fully_async/trainer/idle_ratio": 0.05 + n / 100}) + "\n" for n, row in enumerate(_rows())),
    "parts": "".join(json.dumps({**row, **({"timing_s/ref": 4.0} if n != 5 else {}), "timing_s/old_log_prob": 3.0,
                                 **({"timing_s/values": 2.0} if n == 7 else {})}) + "\n" for n, row in enumerate(_rows())),
    "twice": _twice(),
    "several": "".join(json.dumps({**row, "timing_s/step": more + row["timing_s/step"]}) + "\n" for more in (0, 60) for row in _rows()),
    "no step": "".join(json.dumps({k: v for k, v in row.items() if k != "timing_s/step"}) + "\n" for row in _rows()),
    "no numbers": "".join(json.dumps({k: v for k, v in row.items() if k != "step"}) + "\nnoise\n" for row in _rows()),
    "some numbers": "".join(json.dumps({k: v for k, v in row.items() if k != "step" or v % 3}) + "\n" for row in _rows()) + "\n{broken\n",
    "columns": "# made\nStep,run a - timing_s/step,run a - timing_s/step__MIN,run a - timing_s/gen\n"
               + _each('"{n}","{s}","1","{g}"\n') + "13,5\n14,1,2,3\n15,9,9,9",
    "columns again": "step;timing_s/step;timing_s/gen\n" + _each("{n};{s};{g}\n").replace(".", ",") + "step;timing_s/step;timing_s/gen\n8;61,5;30,5\n",
    "thousands": "step,timing_s/step,timing_s/gen\n" + _each('{n},"1,0{n:02d}.5","1,002"\n'),
    "thousands, whole": "step,timing_s/step,timing_s/gen,note\n" + _each('{n},"1,0{n:02d}","9","a,b"\n'),
    "decimals, a text": "step,timing_s/step,note\n" + _each('{n},"6{n},5","a,b 1.5"\n') + '13,"1,000","1.5"\n',
    "events": _event("global_batch_size", 64) + "".join(
        _event("tracked_stats", {"train_step_time": 300.5 + n, "policy_training_time": 90 - n}, **{key: 5 * n})
        for n, key in enumerate(("step", "step_num", "train_step", "samples_count", "epoch_num"), start=1))
        + _event("train_step_time", 310.0) + _event("train_step_time", 311.0) + _event("init", "x"),
    "banners": BANNERS + _each("step:{n} - timing_s/step:{s} - timing_s/gen:{g} - response_length/mean:900\n"),
    "other banners": BANNERS.replace("H100 80GB HBM3", "A100-SXM4-80GB").replace("64.0", "8.0").replace("Initializing", "")
                     + _each("step:{n} - timing_s/step:{s} - timing_s/gen:{g}\n"),
}  # fmt: skip
"""Logs by what they hold."""
