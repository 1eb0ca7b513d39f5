"""Engine iterations beside measured ones.

Measured: furiosa-ai/EfficientRollout@0ff0bc5, sd_toggle/configs (arXiv 2606.18967): A100-80GB, vLLM 0.11.2, tensor
parallel 1, captured graphs, median milliseconds at 2,048 tokens of context.
"""

from pathlib import Path

from research.sweeps import iteration_sweep

HEAD = "model,batch,seq,gamma,mode,median_ms\n"
PUBLISHED_MS = {
    ("Llama-3.1-8B-Instruct", 0): {1: 10.3, 8: 11.0, 16: 12.6, 32: 14.1, 64: 16.1},
    ("Llama-3.1-8B-Instruct", 3): {1: 11.3, 8: 13.7, 16: 15.7, 32: 17.7, 64: 24.6},
    ("Llama-3.1-8B-Instruct", 7): {1: 11.3, 8: 15.5, 16: 17.1, 32: 23.6, 64: 40.0},
    ("Llama-3.1-8B-Instruct", 15): {1: 11.4, 8: 17.0, 16: 23.0, 32: 38.7, 64: 71.4},
    ("Qwen2.5-7B", 0): {1: 9.6, 8: 10.0, 16: 10.5, 32: 12.2, 64: 13.7},
    ("Qwen2.5-7B", 3): {1: 10.3, 8: 11.9, 16: 13.4, 32: 14.7, 64: 20.9},
    ("Qwen2.5-7B", 7): {1: 10.6, 8: 13.2, 16: 14.3, 32: 20.2, 64: 37.0},
    ("Qwen2.5-7B", 15): {1: 10.8, 8: 14.1, 16: 19.7, 32: 36.0, 64: 66.4},
}


def sweep(tmp_path: Path, lines: str) -> Path:
    path = tmp_path / "sweep.csv"
    path.write_text(HEAD + lines)
    return path


def published(tmp_path: Path) -> Path:
    return sweep(
        tmp_path,
        "".join(
            f"{model},{batch},2048,{gamma},{'target_verify' if gamma else 'target_decode'},{ms}\n"
            for (model, gamma), cells in PUBLISHED_MS.items()
            for batch, ms in cells.items()
        ),
    )


def test_published_decode_and_verification_steps_within_fifteen_per_cent_in_the_median(tmp_path: Path) -> None:
    result = iteration_sweep(published(tmp_path))
    assert len(result.points) == 40
    median = result.median_abs_error_pct()
    assert median < 15.0
    assert "verify 15 + 1" in result.text()


def test_other_modes_and_nonsense_are_counted_by_reason(tmp_path: Path) -> None:
    lines = (
        "Qwen2.5-7B,1,256,0,target_decode,9.5\n"
        "Qwen2.5-7B,1,256,3,drafter_decode,4.4\n"
        "Qwen2.5-7B,0,0,0,target_decode,9.5\n"
        "Qwen2.5-7B,1,256,0,target_decode,-1\n"
        "Qwen2.5-7B,one,256,0,target_decode,9.5\n"
        "Qwen2.5-7B,1e9,256,0,target_decode,9.5\n"
        "Qwen2.5-7B,1,256,400,target_verify,9.5\n"
        "NoSuch-7B,1,256,0,target_decode,9.5\n"
        "Qwen2.5-7B,1,256\n"
    )
    result = iteration_sweep(sweep(tmp_path, lines))
    assert len(result.points) == 1
    assert sum(result.skipped.values()) == 8
    assert "8 points left out" not in result.text()
    assert any("drafter_decode" in reason for reason in result.skipped)
