"""The bar appears on a terminal only."""

import io

from bench.progress import Progress


def test_silent_unless_the_stream_is_a_terminal() -> None:
    stream = io.StringIO()
    bar = Progress(10, 0, stream=stream)
    bar.advance("gemm")
    bar.close()
    assert stream.getvalue() == ""


def test_bar_counts_what_was_measured_before() -> None:
    stream = io.StringIO()
    bar = Progress(4, 2, shown=True, stream=stream)
    bar.advance("gemm")
    assert "3/4" in stream.getvalue()
    assert "gemm" in stream.getvalue()
