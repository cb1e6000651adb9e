"""A real OpenStack on loopback. It has to be the first process of a namespace: see `start.sh`.

    cloud.py make STATE        makes the databases and what is in them, and stops
    cloud.py run STATE ROOT    runs a cloud with a copy of that state in the new directory ROOT

A cloud serves any number of tests, of several programs and one after the other. Whoever uses it holds a shared lock on
the file ROOT.users, which the kernel takes back if the test dies. When nobody has held one for a while, or nobody does
and there is a file ROOT/stop, the cloud stops and removes its directory. It holds the lock itself then, so that nobody
comes in while it goes. As long as it runs it holds a lock on ROOT.alive.
"""

import fcntl
import json
import os
import shutil
import socket
import sys
import time

import seed
import settings
from services import Services

#: Below the ports that the kernel gives to outgoing connections, and below those that other tests choose from.
FIRST_PORT, LAST_PORT = 7000, 9900
IDLE = float(os.environ.get("NODEYARD_OPENSTACK_IDLE", "600"))
HERE = os.path.dirname(os.path.abspath(__file__))


def make(state):
    root = state + ".new"
    shutil.rmtree(root, ignore_errors=True)
    place = settings.Place(root, sys.prefix, free_ports())
    settings.write(place)
    services = Services(place, os.path.join(HERE, "plugin"))
    services.databases()
    services.message_bus()
    services.schemas()
    services.identity()
    admin = seed.Admin(place)
    admin.catalog()
    services.everything_else()
    admin.contents()
    services.map_hosts()
    services.stop()
    # RabbitMQ starts faster than it recovers.
    shutil.rmtree(place.path("data", "rabbitmq"))
    os.rename(place.path("data"), state)
    shutil.rmtree(root)


def run(state, root):
    alive = os.open(root + ".alive", os.O_RDWR | os.O_CREAT)
    fcntl.flock(alive, fcntl.LOCK_EX)
    shutil.rmtree(root, ignore_errors=True)
    place = settings.Place(root, sys.prefix, free_ports())
    shutil.copytree(state, place.path("data"))
    settings.write(place)
    services = Services(place, os.path.join(HERE, "plugin"))
    services.message_bus()
    services.databases()
    services.move_in()
    services.identity()
    services.everything_else()
    seed.Admin(place).greet()
    announce(place)
    wait_until_idle(services, place)
    services.stop()
    shutil.rmtree(root)


def announce(place):
    """From now on it can be used."""
    description = {"password": settings.PASSWORD, "region": settings.REGION, "urls": place.catalog}
    with open(place.path("cloud.json.new"), "w") as file:
        json.dump(description, file)
    os.rename(place.path("cloud.json.new"), place.path("cloud.json"))


def wait_until_idle(services, place):
    """Returns with a lock that lasts until this process has ended."""
    idle_since = time.monotonic()
    lock = os.open(place.root + ".users", os.O_RDWR | os.O_CREAT)
    while True:
        ended = services.ended()
        if ended:
            raise RuntimeError(f"{ended} has ended")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            idle_since = time.monotonic()
        else:
            if time.monotonic() - idle_since >= IDLE or os.path.exists(place.path("stop")):
                return
            fcntl.flock(lock, fcntl.LOCK_UN)
        time.sleep(1)


def free_ports():
    """The first of a row of ports that nobody listens on."""
    count = len(settings.LISTENERS)
    step = count + 1
    # Two clouds that start at once begin at different places.
    rows = list(range(FIRST_PORT, LAST_PORT - count, step))
    begin = int.from_bytes(os.urandom(2), "big") % len(rows)
    for first in rows[begin:] + rows[:begin]:
        if all(free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError("there are no free ports")


def free(port):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    {"make": make, "run": run}[sys.argv[1]](*sys.argv[2:])
