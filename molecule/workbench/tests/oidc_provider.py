"""A provider of OpenID Connect for one client, for a test: python3 oidc_provider.py ADDRESS PORT
SECRET FILE

FILE has the name of the person who logs in. It issues codes (RFC 6749) with proof keys (RFC 7636),
and tells the name to who has a token.
"""

import base64
import hashlib
import http.server
import json
import secrets
import sys
import urllib.parse

ADDRESS, PORT, SECRET, FILE = sys.argv[1:5]
CODES, TOKENS = {}, {}


class Provider(http.server.BaseHTTPRequestHandler):
    def answer(self, code, body=None, location=None):
        self.send_response(code)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/authorize":
            code = secrets.token_urlsafe()
            with open(FILE, encoding="utf-8") as stream:
                CODES[code] = (
                    stream.read().strip(),
                    asked["code_challenge"],
                    asked["redirect_uri"],
                )
            back = urllib.parse.urlencode({"code": code, "state": asked["state"]})
            return self.answer(302, location="%s?%s" % (asked["redirect_uri"], back))
        name = TOKENS.get(self.headers.get("Authorization", "").rpartition(" ")[2])
        return (
            self.answer(200, {"sub": "1", "preferred_username": name})
            if url.path == "/userinfo" and name
            else self.answer(401)
        )

    def do_POST(self):
        sent = dict(
            urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode())
        )
        kind, _space, basic = self.headers.get("Authorization", "").partition(" ")
        secret = (
            base64.b64decode(basic).decode().partition(":")[2]
            if kind == "Basic"
            else sent.get("client_secret")
        )
        name, challenge, callback = CODES.pop(sent.get("code"), ("", "", ""))
        proof = (
            base64.urlsafe_b64encode(
                hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
            )
            .decode()
            .rstrip("=")
        )
        if secret != SECRET or proof != challenge or sent.get("redirect_uri") != callback:
            return self.answer(401, {"error": "invalid_grant"})
        token = secrets.token_urlsafe()
        TOKENS[token] = name
        return self.answer(200, {"access_token": token, "token_type": "Bearer"})

    def log_message(self, *_arguments):
        """Nothing."""


http.server.ThreadingHTTPServer((ADDRESS, int(PORT)), Provider).serve_forever()
