"""Where a running job writes: a file or folder that grows, or the page of a Prometheus exporter on this machine."""

import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from rlsim.errors import InputError, shortened
from rlsim.readers.logs.forms import add_text
from rlsim.readers.logs.reading import STDIN, RunLog, log_of, read_log
from rlsim.readers.logs.tensorboard import Scalars

LOCAL = ("localhost", "127.0.0.1", "::1")
TIMEOUT_S = 5.0
PAGE_BYTES = 8 * 2**20
IDLE = 150
"""Times of a read that pass before the next one, so that a watch takes less than one hundredth of a core."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, which may lead to another machine."""

    def redirect_request(self, *_: object) -> None:
        """None: the answer that redirects is an error."""


# No proxy either: what it answers would be of another machine.
_LOCAL_ONLY = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


class Source:
    """A source that is read again and again. where: its name; trouble: why the last read gave nothing, or empty."""

    def __init__(self, where: str) -> None:
        self.where, self.trouble, self.spent_s = where, "", 0.0
        self._seen: object = None
        self._rows: list[dict[str, float]] = []
        parts = urlsplit(where)
        self._url = where if parts.scheme in ("http", "https") else ""
        if self._url and parts.hostname not in LOCAL:
            raise InputError(f"{shortened(where)}: a watch reads exporters on this machine alone ({', '.join(LOCAL)})")

    @property
    def pause_s(self) -> float:
        """Seconds to leave between two reads."""
        return IDLE * self.spent_s

    def read(self) -> RunLog | None:
        """The log as it is now; None where nothing is new, or it cannot be read now (``trouble`` says why)."""
        # Time of the processor: a wait for a slow disk or exporter takes no core.
        begin = time.process_time()
        try:
            found = self._scraped() if self._url else self._filed()
            self.trouble = "" if found is not None else self.trouble
            return found
        # A file may vanish, be rotated away or be half written; the next read may find it whole.
        except InputError as error:
            self.trouble = str(error)
            return None
        # An exporter may answer what is no HTTP, or its address hold no port.
        except (OSError, HTTPException, ValueError) as error:
            self.trouble = f"{shortened(self.where)}: {getattr(error, 'strerror', None) or error}"
            return None
        finally:
            self.spent_s = time.process_time() - begin

    def _filed(self) -> RunLog | None:
        path = Path(self.where)
        if path != STDIN:
            files = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
            seen = []
            for file in files:
                # A log that is rotated may go between the listing and the look at it.
                with suppress(FileNotFoundError):
                    state = file.stat()
                    # The size beside the time: some file systems keep times to a second or two.
                    seen.append((str(file), state.st_size, state.st_mtime_ns))
            if seen and seen == self._seen:
                return None
            self._seen = seen
        return read_log(path)

    def _scraped(self) -> RunLog | None:
        """Steps counted by the changes of an exporter's gauges, which hold the last step alone."""
        with _LOCAL_ONLY.open(self._url, timeout=TIMEOUT_S) as page:
            text = page.read(PAGE_BYTES).decode("utf-8", errors="replace")
        scrape = Scalars(self.where)
        add_text(scrape, text)
        row = {name: next(iter(values.values())) for name, values in scrape.values.items()}
        # A gauge holds its step until the next one ends: equal values are of the same step.
        if not row or (self._rows and row == self._rows[-1]):
            return None
        self._rows.append(row)
        scalars = Scalars(self.where)
        for step, one in enumerate(self._rows, start=1):
            scalars.add_all(float(step), one)
        return log_of(scalars, "Prometheus")


def latest(log: RunLog, count: int, step: int) -> float | None:
    """Median seconds of the last ``count`` steps up to ``step`` that tell their time; None of none."""
    values = log.values.get("step", np.zeros(0))[: np.searchsorted(log.steps, step, side="right")]
    found = values[np.isfinite(values)][-count:]
    return float(np.median(found)) if found.size else None
