"""A stand-in for a program that serves: NAME ADDRESS PORT [token=FILE] [certificate=FILE key=FILE].

It logs what it is asked, as old releases of Jupyter do.

With a token it gives the files of its folder to those who have it, as Jupyter's interface does.
Without one it says its name and process.
"""

import http.server
import os
import ssl
import sys

NAME, ADDRESS, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
FILES = dict(word.split("=", 1) for word in sys.argv[4:])
TOKEN = ""
if "token" in FILES:
    with open(FILES["token"], encoding="utf-8") as stream:
        TOKEN = stream.read().strip()


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/":
            return self.answer("%s %d\n" % (NAME, os.getpid()))
        if TOKEN and self.headers.get("Authorization") != "token " + TOKEN:
            return self.send_error(403)
        return super().do_GET()

    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


print("token=%s" % TOKEN)
server = http.server.HTTPServer((ADDRESS, PORT), Handler)
if "certificate" in FILES:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FILES["certificate"], FILES["key"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
