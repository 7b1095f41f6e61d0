"""A hub on this machine: takes repos and commits as the hub's client sends them, and keeps them in memory."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """What the server was told, and how it shall answer."""

    url: str = ""
    token: str = "hf_fake"
    private: dict[str, bool] = field(default_factory=dict)
    commits: list[dict[str, bytes]] = field(default_factory=list)
    refuse: int | None = None
    """Status with which commits are refused."""


@contextmanager
def fake_hub() -> Iterator[Hub]:
    """Serve an empty hub."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # a connection each, so that none stays open at the end

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def known(self) -> bool:
            if self.headers.get("Authorization") == f"Bearer {hub.token}":
                return True
            self.answer(401, {"error": "Invalid username or password."})
            return False

        def do_GET(self) -> None:
            if self.known():
                repo = self.path.removeprefix("/api/models/").partition("?")[0]
                self.answer(200, {"id": repo, "private": hub.private[repo], "siblings": []})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not self.known():
                return
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                repo = f"{asked['organization']}/{asked['name']}"
                if repo in hub.private:
                    self.answer(409, {"error": "You already created this model repo", "url": f"{hub.url}/{repo}"})
                    return
                hub.private[repo] = asked.get("visibility") == "private" or bool(asked.get("private"))
                self.answer(200, {"url": f"{hub.url}/{repo}"})
            elif self.path == "/api/validate-yaml":
                self.answer(200, {"errors": [], "warnings": []})
            elif "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
                self.answer(200, {"files": files})
            elif hub.refuse is not None:
                self.answer(hub.refuse, {"error": "not you"})
            else:
                repo = self.path.removeprefix("/api/models/").partition("/commit/")[0]
                lines = [json.loads(line) for line in body.splitlines()]
                files = {
                    line["value"]["path"]: base64.b64decode(line["value"]["content"])
                    for line in lines
                    if line["key"] == "file"
                }
                hub.commits.append(files)
                self.answer(200, {"commitUrl": f"{hub.url}/{repo}/commit/{'0' * 40}", "commitOid": "0" * 40})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
