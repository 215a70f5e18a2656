"""A browser without a page: cookies, forms, the hub's API, and the websocket of a kernel.

Python's standard library only.
"""

from __future__ import annotations

import base64
import http.cookiejar
import json
import os
import re
import socket
import ssl
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from types import SimpleNamespace


def lead(name, address):
    """Lead a name and all names below it to an address, in this process: the wildcard that a site
    has in DNS.
    """
    usual = socket.getaddrinfo

    def found(host, *more, **others):
        text = host.decode() if isinstance(host, bytes) else host or ""
        return usual(
            address if text == name or text.endswith("." + name) else host, *more, **others
        )

    socket.getaddrinfo = found


def origin(url, names, path):
    """Return the address of the host that has a path: with a name for each person, their instances
    and services of the hub have a host of their own.
    """
    found = re.match(r"/(user|services)/([^/?]+)", path) if names else None
    if not found:
        return url
    return url.replace(
        "://", "://%s%s." % (found.group(2), "--service" if found.group(1) == "services" else "")
    )


class Session:
    """One browser of one person."""

    def __init__(self, url, ca, names=False):
        self.url, self.names, self.token = url, names, ""
        self.context = ssl.create_default_context(cadata=ca)
        self.jar = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=self.context),
            urllib.request.HTTPCookieProcessor(self.jar),
            urllib.request.ProxyHandler({}),
        )

    def ask(self, path, method="GET", data=None, headers=None, url=None, timeout=120):
        headers = dict(headers or {})
        if isinstance(data, dict) and "application/x-www-form-urlencoded" in headers.get(
            "Content-Type", ""
        ):
            data = urllib.parse.urlencode(data).encode()
        elif data is not None and not isinstance(data, bytes):
            data = json.dumps(data).encode()
        if self.token:
            headers["Authorization"] = "token " + self.token
        request = urllib.request.Request(
            (url or self.origin(path)) + path, data, headers, method=method
        )
        try:
            with self.opener.open(request, timeout=timeout) as answer:
                return SimpleNamespace(
                    code=answer.status,
                    text=answer.read().decode("utf-8", "replace"),
                    url=answer.url,
                    headers=answer.headers,
                )
        except urllib.error.HTTPError as error:
            return SimpleNamespace(
                code=error.code,
                text=error.read().decode("utf-8", "replace"),
                url=error.url,
                headers=error.headers,
            )

    def origin(self, path):
        return origin(self.url, self.names, path)

    def log_in(self, link):
        """Do what the page does with a link: its part after # is in the body of a form, never in an
        address.
        """
        return self.post_token(link.strip().partition("#")[2])

    def post_token(self, token):
        page = self.ask("/hub/login")
        xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.text).group(1)
        return self.ask(
            "/hub/login?next=",
            "POST",
            {"_xsrf": xsrf, "token": token},
            {"Content-Type": "application/x-www-form-urlencoded"},
        )

    def xsrf(self):
        return next(
            cookie.value for cookie in self.jar if cookie.name == "_xsrf" and cookie.path == "/hub/"
        )

    def make_token(self, person):
        answer = self.ask(
            "/hub/api/users/%s/tokens" % person,
            "POST",
            {"note": "test", "expires_in": 3600},
            {"X-XSRFToken": self.xsrf(), "Content-Type": "application/json"},
        )
        assert answer.code == 201, answer.text
        return json.loads(answer.text)["token"]

    def start(self, person, server, **body):
        return self.ask("/hub/api/users/%s/servers/%s" % (person, server), "POST", body)

    def stop(self, person, server):
        return self.ask(
            "/hub/api/users/%s/servers/%s" % (person, server), "DELETE", {"remove": True}
        )

    def server(self, person, server):
        """Return what the hub says of a server, with the path of its pages as C(url)."""
        told = json.loads(self.ask("/hub/api/users/%s?include_stopped_servers" % person).text)
        found = told["servers"].get(server)
        if found:
            path = urllib.parse.urlsplit(found["url"]).path
            # With a name for each person the hub tells the whole address.
            assert found["url"] == (self.origin(path) if self.names else "") + path
            found["url"] = path
        return found

    def progress(self, person, server):
        """Yield the messages of a server that starts."""
        path = "/hub/api/users/%s/servers/%s/progress" % (person, server)
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": "token " + self.token}
        )
        with self.opener.open(request, timeout=60) as stream:
            for line in stream:
                if line.startswith(b"data:"):
                    yield json.loads(line[len(b"data:") :])

    def is_ready(self, person, server, seconds=180):
        deadline = time.monotonic() + seconds
        while True:
            found = self.server(person, server)
            if found and found["ready"]:
                return found
            assert found and found["pending"] and time.monotonic() < deadline, found
            time.sleep(1)

    def run_cell(self, base, code):
        """Run code in a new kernel of a server, and return what it prints."""
        kernel = json.loads(self.ask(base + "api/kernels", "POST", {"name": "python3"}).text)
        try:
            with WebSocket(self, "%sapi/kernels/%s/channels" % (base, kernel["id"])) as channel:
                return channel.execute(code)
        finally:
            self.ask(base + "api/kernels/" + kernel["id"], "DELETE")


class WebSocket:
    """As much of RFC 6455 as a kernel needs."""

    def __init__(self, session, path):
        parts = urllib.parse.urlsplit(session.origin(path))
        raw = socket.create_connection((parts.hostname, parts.port or 443), timeout=120)
        self.socket = session.context.wrap_socket(raw, server_hostname=parts.hostname)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            "GET %s HTTP/1.1" % path,
            "Host: " + parts.netloc,
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: " + key,
            "Sec-WebSocket-Version: 13",
            "Authorization: token " + session.token,
            "",
            "",
        ]
        self.socket.sendall("\r\n".join(lines).encode())
        self.stream = self.socket.makefile("rb")
        self.status = int(self.stream.readline().split()[1])
        while self.stream.readline().strip():
            pass
        assert self.status == 101, "HTTP status %d" % self.status

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.socket.close()

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = (
            struct.pack("!BB", 0x81, 0x80 | size)
            if size < 126
            else struct.pack("!BBH", 0x81, 0x80 | 126, size)
        )
        self.socket.sendall(
            head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        )

    def receive(self):
        """Return the next text. A kernel sends no binary frames here."""
        data = b""
        while True:
            first, second = self.stream.read(2)
            size = second & 0x7F
            size = (
                struct.unpack("!H", self.stream.read(2))[0]
                if size == 126
                else struct.unpack("!Q", self.stream.read(8))[0]
                if size == 127
                else size
            )
            part = self.stream.read(size)
            if first & 0x0F in (9, 10):
                continue
            assert first & 0x0F in (0, 1, 2), "the server closes the connection"
            data += part
            if first & 0x80:
                return data.decode("utf-8", "replace")

    def ask(self, code):
        """Send code to the kernel, and return the number of the message."""
        number = uuid.uuid4().hex
        header = {
            "msg_id": number,
            "username": "",
            "session": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "version": "5.3",
            "date": "",
        }
        content = {
            "code": code,
            "silent": False,
            "store_history": False,
            "user_expressions": {},
            "allow_stdin": False,
        }
        self.send(
            json.dumps(
                {
                    "channel": "shell",
                    "header": header,
                    "parent_header": {},
                    "metadata": {},
                    "buffers": [],
                    "content": content,
                }
            )
        )
        return number

    def answers(self, number):
        """Yield kind and content of the messages that answer one."""
        while True:
            message = json.loads(self.receive())
            if (message.get("parent_header") or {}).get("msg_id") == number:
                yield message["header"]["msg_type"], message["content"]

    def printed(self, number, text):
        """Wait until the code prints a text."""
        for kind, content in self.answers(number):
            if kind == "stream" and text in content["text"]:
                return

    def rest(self, number):
        """Return what the code prints, with the traceback of an error, when it has ended."""
        text, replied, idle = "", False, False
        for kind, content in self.answers(number):
            text += (
                content["text"]
                if kind == "stream"
                else "\n".join(content["traceback"])
                if kind == "error"
                else ""
            )
            replied = replied or kind == "execute_reply"
            idle = idle or kind == "status" and content["execution_state"] == "idle"
            if replied and idle:
                return text

    def execute(self, code):
        return self.rest(self.ask(code))
