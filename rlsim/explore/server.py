"""The local page of ``rlsim explore``: loopback only, behind a token, newest move first, ends by itself."""

import json
import secrets
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rlsim.errors import RlsimError
from rlsim.explore.live import Live, OffSliderError
from rlsim.report.format import NAMES

LOOPBACK = "127.0.0.1"
IDLE_S = 900.0
"""Without a request for this long (a page that is open asks every 30 s) the server ends."""
MOST_QUERY = 2000
"""Characters of a request's path."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Refused(Exception):  # noqa: N818 - an answer to the browser
    """A request that is not answered, with its HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class Explorer(ThreadingHTTPServer):
    """The server of one scenario. One move is simulated at a time; of those that wait, the newest alone."""

    daemon_threads = True

    def __init__(self, live: Live, port: int = 0, idle_s: float = IDLE_S) -> None:
        self.live, self.idle_s, self.token = live, idle_s, secrets.token_urlsafe(16)
        self.newest, self.touched = -1, time.monotonic()
        self._work, self._count = threading.Lock(), threading.Lock()
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """Address of the page, with its token."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def serve(self) -> None:
        """Answer until nobody has asked for ``idle_s``."""
        # A thread: shutdown() waits for serve_forever() to end and must not be called from it.
        watch = threading.Thread(target=self._end_when_idle, daemon=True)
        watch.start()
        self.serve_forever(poll_interval=0.2)
        self.server_close()

    def _end_when_idle(self) -> None:
        while time.monotonic() - self.touched < self.idle_s:
            time.sleep(min(1.0, self.idle_s / 4))
        self.shutdown()

    def answer(self, what: str, query: str) -> Any:
        """JSON content of a path below the token. Raises Refused."""
        if what == "about":
            # A page that was closed or loaded anew begins to count again.
            self.newest = -1
            colors = {name: {"label": label, "color": color} for name, (label, color) in NAMES["phases"].items()}
            return {
                "name": self.live.name,
                "question": self.live.scenario.question,
                "phases": colors,
                "drafts": self.live.scenario.speculation.active,
                "sliders": [asdict(slider) for slider in self.live.sliders],
            }
        if what == "alive":
            return {}
        if what not in ("move", "settle"):
            raise Refused(404, "there is nothing here")
        return self._moved(what, *_numbers(query))

    def _moved(self, what: str, number: int, given: dict[str, float]) -> dict[str, Any]:
        with self._count:
            self.newest = max(self.newest, number)
        with self._work:
            # Checked after waiting for the lock: meanwhile a newer move may have come.
            if number < self.newest:
                raise Refused(409, "a newer move came")
            try:
                return (self.live.move if what == "move" else self.live.settle)(given).as_dict()
            except OffSliderError as error:
                raise Refused(400, str(error)) from None
            except RlsimError as error:  # what cannot run is an answer
                return {"error": str(error)}


def _numbers(query: str) -> tuple[int, dict[str, float]]:
    """The number of a move and its values. Raises Refused for what is neither."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=32)
        values = {key: float(text) for key, text in pairs}
        number = values.pop("n")
        # A key given twice would silently win over the first; NaN and infinity fail the comparison.
        if len(pairs) != len(values) + 1 or not all(abs(value) < 1e12 for value in (number, *values.values())):
            raise ValueError
        return int(number), values
    except (ValueError, KeyError):
        raise Refused(400, "expected n and numbers by key") from None


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    server_version, sys_version = "rlsim", ""
    protocol_version = "HTTP/1.1"
    # A connection that sends nothing must not hold its thread for ever.
    timeout = 60

    def do_GET(self) -> None:
        """Answer one request."""
        self.server.touched = time.monotonic()
        try:
            self._send(*self._answer())
        except (BrokenPipeError, ConnectionResetError):  # the page went on
            self.close_connection = True

    def _answer(self) -> tuple[int, str, str]:
        try:
            return 200, *self._content()
        except Refused as error:
            return error.status, json.dumps({"error": str(error)}), "application/json"

    def _refuse_method(self) -> None:
        self.close_connection = True
        self._send(405, json.dumps({"error": "only GET"}), "application/json")

    def __getattr__(self, name: str) -> Any:
        """Whatever other method a request has is refused."""
        if name.startswith("do_"):
            return self._refuse_method
        raise AttributeError(name)

    def _content(self) -> tuple[str, str]:
        port = self.server.server_port
        # Against DNS rebinding: a foreign page whose name resolves to this machine sends its own host.
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            raise Refused(403, "another host's name")
        if len(self.path) > MOST_QUERY:
            raise Refused(414, "too long")
        try:
            parts = urlsplit(self.path)
            _, token, *rest = parts.path.split("/")
        except ValueError:
            raise Refused(400, "no path") from None
        # Constant time, so that the token cannot be guessed character by character.
        if not secrets.compare_digest(token.encode(), self.server.token.encode()) or len(rest) != 1:
            raise Refused(404, "there is nothing here")
        if not rest[0]:
            return (files("rlsim.explore") / "page.html").read_text(encoding="utf-8"), "text/html; charset=utf-8"
        return json.dumps(self.server.answer(rest[0], parts.query)), "application/json"

    def _send(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""
