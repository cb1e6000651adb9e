"""A kazoo client that takes orders, one JSON object a line, and answers each with one.

Orders name the lock they are about; so do the answers, because those of waiting locks come later.
"""

import json
import sys
import threading

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

client = KazooClient(hosts=sys.argv[1], timeout=float(sys.argv[2]))
client.start()
locks = {}
output = threading.Lock()


def answer(name, value):
    with output:
        print(json.dumps({"lock": name, "answer": value}), flush=True)


def acquire(name, order):
    try:
        held = locks[name].acquire(
            blocking=order["blocking"],
            timeout=order.get("timeout"),
            ephemeral=order.get("ephemeral", True),
        )
    except LockTimeout:
        held = "timeout"
    answer(name, held)


def count(name, order):
    """Adds to a number in a record, reading and writing apart."""
    for _ in range(order["times"]):
        with client.Lock(order["path"]):
            client.sync(order["counter"])
            value, _stat = client.get(order["counter"])
            client.set(order["counter"], str(int(value) + 1).encode())
    answer(name, "counted")


for line in sys.stdin:
    order = json.loads(line)
    name = order["lock"]
    if order["do"] == "acquire":
        locks[name] = client.Lock(order["path"], order.get("identifier"))
        threading.Thread(target=acquire, args=(name, order), daemon=True).start()
    elif order["do"] == "release":
        answer(name, locks[name].release())
    elif order["do"] == "contenders":
        answer(name, client.Lock(order["path"]).contenders())
    elif order["do"] == "count":
        threading.Thread(target=count, args=(name, order), daemon=True).start()
