"""Receivers of alerts for tests: a webhook and a mail server on the loopback address.

As a program, they write what they get into a file, a line of JSON each.

python3 alert_receivers.py WEBHOOK_PORT MAIL_PORT FILE
"""

from __future__ import annotations

import http.server
import json
import socketserver
import sys
import threading
from collections.abc import Callable


def webhook(port: int, keep: Callable[[dict], None]) -> http.server.ThreadingHTTPServer:
    """Return a server that runs and keeps each document that is posted."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            keep(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    return _running(http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler))


def mail_server(port: int, keep: Callable[[dict], None]) -> socketserver.ThreadingTCPServer:
    """Return a mail server that runs and keeps each mail, with its receivers, as RFC 5321 has it,
    without TLS.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.say("220 test")
            receivers = []
            for line in self.rfile:
                word = line.decode().strip()
                if word.upper() == "DATA":
                    self.say("354 go on")
                    keep({"to": receivers, "mail": self.text()})
                elif word.upper() == "QUIT":
                    return self.say("221 bye")
                elif word.upper().startswith("RCPT TO:"):
                    receivers.append(word[8:].strip("<> "))
                self.say("250 test")

        def text(self):
            lines = iter(self.rfile.readline, b".\r\n")
            return b"".join(lines).decode("utf-8", "replace")

        def say(self, text):
            self.wfile.write(text.encode() + b"\r\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return _running(server)


def _running(server):
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    ports, path = [int(word) for word in sys.argv[1:3]], sys.argv[3]

    def keep(found: dict) -> None:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(found) + "\n")

    webhook(ports[0], keep)
    mail_server(ports[1], keep)
    threading.Event().wait()


if __name__ == "__main__":
    main()
