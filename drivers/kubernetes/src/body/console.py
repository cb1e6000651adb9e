# Zuul's console in a pod: passes on what the tasks of a job print, while they print it.
#
# A client sends lines. `v:N` asks which version of this protocol is spoken, `f:LOG` says that a log is not needed any
# more, `s:LOG` (or just the log, from an old client) asks for one, which is followed until the client has gone.
import os
import select
import socket
import socketserver
import sys
import time

PAUSE = 0.2


def path(log):
    # Whatever else somebody asks for is not a log.
    return "/tmp/console-%s.log" % os.path.basename(log)


class Listener(socketserver.StreamRequestHandler):
    def handle(self):
        while True:
            line = self.rfile.readline(1024).decode("utf-8", "replace").strip()
            if not line:
                return
            word, colon, log = line.partition(":")
            if not colon:
                return self.follow(path(line))
            if word == "v":
                self.wfile.write(b"1\n")
            elif word == "f":
                try:
                    os.unlink(path(log))
                except OSError:
                    pass
            elif word == "s":
                return self.follow(path(log))

    def follow(self, name):
        while not self.has_left():
            try:
                log = open(name, "rb")
            except OSError:
                self.wfile.write(b"[Zuul] Log not found\n")
                time.sleep(PAUSE)
                continue
            with log:
                while not self.has_left():
                    text = log.read(1 << 16)
                    if text:
                        self.wfile.write(text)
                    elif self.is_same(log, name):
                        time.sleep(PAUSE)
                    else:
                        break

    def has_left(self):
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1024)

    def is_same(self, log, name):
        try:
            now = os.stat(name)
        except OSError:
            return False
        then = os.fstat(log.fileno())
        return now.st_ino == then.st_ino and now.st_size >= log.tell()


class Console(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6 if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6") else socket.AF_INET
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request, client_address):
        # Somebody who has gone is not worth a word.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


Console(("", 19885), Listener).serve_forever()
