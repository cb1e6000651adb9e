"""Uses a server as Python programs use ZooKeeper, and fails where it is not one.

    embedded_kazoo.py HOST:PORT

A line "drop" on standard output asks the caller to break all connections once.
"""

import queue
import sys
import threading

from kazoo.client import KazooState
from kazoo.exceptions import (
    BadVersionError, NoChildrenForEphemeralsError, NodeExistsError, NoNodeError, NotEmptyError,
    RolledBackError, RuntimeInconsistency,
)
from kazoo.protocol.states import EventType
from kazoo.recipe.cache import TreeCache, TreeEvent
# kazoo with persistent watches, as Nodepool brings it.
from nodepool.zk.vendor.client import ZuulKazooClient as KazooClient
from nodepool.zk.vendor.states import AddWatchMode

PATIENCE = 60


def client(address):
    made = KazooClient(hosts=address, timeout=20)
    made.start(timeout=PATIENCE)
    return made


def refused(error, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error:
        return
    raise AssertionError("%s was not raised" % error.__name__)


def records(zk):
    assert zk.create("/r", b"data") == "/r"
    data, stat = zk.get("/r")
    assert data == b"data" and stat.version == 0 and stat.dataLength == 4
    assert stat.czxid == stat.mzxid == zk.exists("/r").czxid
    assert zk.set("/r", b"more", version=0).version == 1
    refused(BadVersionError, zk.set, "/r", b"", version=0)
    refused(NodeExistsError, zk.create, "/r")
    refused(NoNodeError, zk.create, "/none/child")
    refused(NoNodeError, zk.get, "/none")
    assert zk.exists("/none") is None

    assert zk.create("/r/n-", sequence=True) == "/r/n-0000000000"
    assert zk.create("/r/", sequence=True) == "/r/0000000001"
    path, stat = zk.create("/r/e", ephemeral=True, include_data=True)
    assert path == "/r/e" and stat.owner_session_id == zk.client_id[0]
    refused(NoChildrenForEphemeralsError, zk.create, "/r/e/child")
    assert sorted(zk.get_children("/r")) == ["0000000001", "e", "n-0000000000"]
    names, stat = zk.get_children("/r", include_data=True)
    assert len(names) == stat.numChildren == 3 and stat.cversion == 3
    refused(NotEmptyError, zk.delete, "/r")
    zk.delete("/r", recursive=True)
    zk.ensure_path("/deep/er/est")
    assert zk.sync("/deep") == "/deep"


def transactions(zk):
    zk.create("/t", b"")
    done = zk.transaction()
    done.check("/t", 0)
    done.create("/t/a", b"1")
    done.set_data("/t", b"x", 0)
    results = done.commit()
    assert results[0] is True and results[1] == "/t/a" and results[2].version == 1, results
    failing = zk.transaction()
    failing.create("/t/b")
    failing.check("/t", 9)
    failing.create("/t/c")
    first, second, third = failing.commit()
    assert isinstance(first, RolledBackError), first
    assert isinstance(second, BadVersionError), second
    assert isinstance(third, RuntimeInconsistency), third
    assert zk.get_children("/t") == ["a"]


def watches(zk, other):
    events, changes = queue.Queue(), queue.Queue()
    zk.create("/w")
    zk.get("/w", watch=events.put)
    zk.get_children("/w", watch=events.put)
    zk.exists("/w/later", watch=events.put)
    other.create("/w/later")
    kinds = {(e.type, e.path) for e in (events.get(timeout=PATIENCE) for _ in range(2))}
    assert kinds == {(EventType.CREATED, "/w/later"), (EventType.CHILD, "/w")}, kinds
    other.set("/w", b"1")
    event = events.get(timeout=PATIENCE)
    assert (event.type, event.path) == (EventType.CHANGED, "/w")
    other.set("/w", b"2")

    zk.get("/w/later", watch=events.put)
    zk.get_children("/w/later", watch=events.put)
    zk.add_watch("/w", changes.put, AddWatchMode.PERSISTENT_RECURSIVE)
    other.set("/w", b"3")
    other.create("/w/below")
    other.delete("/w/later")
    seen = [events.get(timeout=PATIENCE) for _ in range(2)]
    assert [(e.type, e.path) for e in seen] == [(EventType.DELETED, "/w/later")] * 2, seen
    seen = [changes.get(timeout=PATIENCE) for _ in range(3)]
    assert [(e.type, e.path) for e in seen] == [
        (EventType.CHANGED, "/w"), (EventType.CREATED, "/w/below"), (EventType.DELETED, "/w/later"),
    ], seen
    # An event that nobody asked for would come before this answer.
    zk.get("/w")
    assert events.empty() and changes.empty()
    return changes


def locks(zk, other, address):
    lock = zk.Lock("/lock", "first")
    assert lock.acquire(timeout=PATIENCE)
    rival = other.Lock("/lock", "second")
    assert not rival.acquire(blocking=False)
    assert lock.contenders() == ["first"]
    waiting = threading.Thread(target=rival.acquire)
    waiting.start()
    while lock.contenders() != ["first", "second"]:
        pass
    lock.release()
    waiting.join(PATIENCE)
    assert rival.is_acquired
    rival.release()

    third = client(address)
    held = third.Lock("/lock")
    assert held.acquire(timeout=PATIENCE)
    third.stop()
    assert lock.acquire(timeout=PATIENCE), "a closed session frees its locks"
    lock.release()


def caches(zk, other):
    other.ensure_path("/cache/one")
    loaded, changed = threading.Event(), queue.Queue()
    cache = TreeCache(zk, "/cache")
    cache.listen(
        lambda e: loaded.set() if e.event_type == TreeEvent.INITIALIZED else changed.put(e))
    cache.start()
    assert loaded.wait(PATIENCE)
    assert cache.get_children("/cache") == frozenset(["one"])
    other.set("/cache/one", b"new")
    while cache.get_data("/cache/one").data != b"new":
        changed.get(timeout=PATIENCE)
    cache.close()


def reconnects(zk, other, changes):
    session = zk.client_id
    zk.create("/held", ephemeral=True)
    states = queue.Queue()
    zk.add_listener(states.put)
    print("drop", flush=True)
    assert states.get(timeout=PATIENCE) == KazooState.SUSPENDED
    assert states.get(timeout=PATIENCE) == KazooState.CONNECTED
    assert zk.client_id == session, "the session goes on"
    assert zk.exists("/held").owner_session_id == session[0]
    # kazoo tells its watchers that they are off; they watch again.
    assert changes.get(timeout=PATIENCE).type == EventType.NONE
    zk.get("/w", watch=changes.put)
    other.retry(other.set, "/w", b"after")
    event = changes.get(timeout=PATIENCE)
    assert (event.type, event.path) == (EventType.CHANGED, "/w"), event


def main(address):
    zk, other = client(address), client(address)
    records(zk)
    transactions(zk)
    changes = watches(zk, other)
    locks(zk, other, address)
    caches(zk, other)
    reconnects(zk, other, changes)
    zk.stop()
    while other.exists("/held"):
        pass
    other.stop()
    print("done", flush=True)


main(sys.argv[1])
