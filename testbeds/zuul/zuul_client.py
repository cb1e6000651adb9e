"""Zuul's own Nodepool client, steered from outside: zuul_client.py HOSTS CA CERT KEY SESSION_SECONDS

Reads one JSON object per line, does what its member `do` says, and answers with one JSON object per line, which has
a member `error` if that failed. See the class Steering for what can be done.

The requests are made, watched, accepted and given back by zuul.nodepool.Nodepool, in the part of a scheduler and of
an executor. It takes part in no election, so that several of them can share a ZooKeeper, and a running Zuul there
does not miss its events.
"""

import configparser
import json
import logging
import socket
import sys
import threading
import types
import uuid

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import KazooState
from zuul import model
from zuul.lib import tracing
from zuul.nodepool import Nodepool
from zuul.zk import ZooKeeperClient
from zuul.zk.nodepool import NodeRequestEvent

TENANT = "bed"
PIPELINE = "post"
PROJECT = "example.com/project"


class Scheduler(Nodepool):
    """Hears of its completed requests as Zuul does, and keeps them instead of telling a pipeline."""

    def __init__(self, client):
        self.completed = {}
        self.changed = threading.Condition()
        super().__init__(client, uuid.uuid4().hex, statsd=None, scheduler=True)

    def runEventElection(self):
        """One of several schedulers tells the pipelines; there are none here."""

    def _handleNodeRequestEvent(self, request, event):
        if request.requestor == self.system_id and event == NodeRequestEvent.COMPLETED:
            with self.changed:
                self.completed[request.id] = request
                self.changed.notify_all()

    def wait(self, request_id, seconds):
        with self.changed:
            if not self.changed.wait_for(lambda: request_id in self.completed, seconds):
                raise TimeoutError(f"request {request_id} is not complete after {seconds} s")
            return self.completed[request_id]


class Network:
    """Can be pulled out: connections break, the session is not closed, and there are no new connections."""

    def __init__(self, kazoo_client):
        self.kazoo = kazoo_client
        self.connect = kazoo_client.handler.create_connection
        self.out = False
        kazoo_client.handler.create_connection = self.create_connection

    def create_connection(self, *arguments, **options):
        if self.out:
            raise OSError("the network is pulled out")
        return self.connect(*arguments, **options)

    def pull_out(self):
        self.out = True
        # The connection is kazoo's own business; there is no public way to break it.
        self.kazoo._connection._socket.shutdown(socket.SHUT_RDWR)

    def plug_in(self):
        self.out = False


class Steering:
    """Every public method is something that can be done. A request is named by its id throughout."""

    def __init__(self, client):
        self.client = client
        self.nodepool = Scheduler(client)
        self.zk = self.nodepool.zk_nodepool
        self.network = Network(client.client)
        self.nodesets = {}
        self.session = None

    def submit(self, labels, priority=100, relative_priority=0, provider=None, tenant=TENANT, job="job"):
        nodeset = model.NodeSet()
        for number, label in enumerate(labels, 1):
            nodeset.addNode(model.Node(f"node{number}", label))
        wanted = types.SimpleNamespace(name=job, uuid=uuid.uuid4().hex, nodeset=nodeset)
        request = self.nodepool.requestNodes(
            uuid.uuid4().hex, wanted, tenant, PIPELINE, provider, priority, relative_priority
        )
        self.nodesets[request.id] = nodeset.copy()
        return {"request": request.id}

    def wait(self, request, seconds=900):
        """Until it is fulfilled or has failed."""
        completed = self.nodepool.wait(request, seconds)
        return {"state": completed.state, "nodes": completed.nodes}

    def accept(self, request):
        """Locks the nodes and deletes the request, as an executor does before a build."""
        nodeset = self.nodesets[request]
        self.nodepool.acceptNodes(self.zk.getNodeRequest(request), nodeset)
        return {"nodes": [{"id": node.id, **node.toDict()} for node in nodeset.getNodes()]}

    def use(self, request):
        self.nodepool.useNodeSet(self.nodesets[request], TENANT, PROJECT)

    def give_back(self, request):
        """Used if they were in use; unlocked in any case."""
        self.nodepool.returnNodeSet(self.nodesets[request], "build", TENANT, PROJECT, duration=0)

    def hold(self, request, reason="held by a test", expiration=None):
        """What an autohold does after a build failed; the nodes are then given back like all others."""
        hold = model.HoldRequest()
        hold.tenant, hold.project, hold.job, hold.ref_filter = TENANT, PROJECT, "job", ".*"
        hold.reason, hold.node_expiration = reason, expiration
        self.zk.storeHoldRequest(hold)
        build = types.SimpleNamespace(uuid=uuid.uuid4().hex)
        self.nodepool.holdNodeSet(self.nodesets[request], hold, build, duration=0)
        self.give_back(request)
        return {"hold": hold.id}

    def release(self, hold):
        """Ends a hold: its nodes are used."""
        self.zk.deleteHoldRequest(self.zk.getHoldRequest(hold), launcher_client=None)

    def cancel(self, request):
        self.nodepool.cancelRequest(self.zk.getNodeRequest(request))

    def revise(self, request, relative_priority):
        """Says no if someone works on the request or has just done so."""
        self.nodepool.reviseRequest(self.zk.getNodeRequest(request), relative_priority)
        # Zuul itself does not care whether it was too late.
        record = self.zk.getNodeRequest(request)
        return {"revised": record is not None and record.relative_priority == relative_priority}

    def requests(self):
        """All there are, whoever made them."""
        records = map(self.zk.getNodeRequest, self.zk.getNodeRequests())
        return {"requests": [{"id": record.id, **record.toDict()} for record in records if record]}

    def nodes(self):
        """All there are, and whether someone has locked them or waits to."""
        found = map(self.zk._getNodeData, self.zk.getNodes())
        return {"nodes": [{"locked": self._is_locked(node["id"]), **node} for node in found if node]}

    def _is_locked(self, node_id):
        try:
            return bool(self.client.client.get_children(f"{self.zk.NODES_ROOT}/{node_id}/lock"))
        except NoNodeError:
            return False

    def disconnect(self):
        """Breaks the connection without closing the session, until `reconnect`."""
        self.session, _ = self.client.client.client_id
        self.network.pull_out()

    def reconnect(self, seconds=300):
        """Says whether the session is a new one: the server has ended the old one, and with it all locks."""
        connected = threading.Event()
        self.client.client.add_listener(lambda state: connected.set() if state == KazooState.CONNECTED else None)
        self.network.plug_in()
        if not connected.wait(seconds):
            raise TimeoutError(f"not connected after {seconds} s")
        return {"new_session": self.client.client.client_id[0] != self.session}


def main():
    # Zuul's daemons do so too: requests carry the ids of a trace even where nobody collects them.
    tracing.Tracing(configparser.ConfigParser())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    hosts, ca, cert, key, session_seconds = sys.argv[1:]
    client = ZooKeeperClient(hosts, timeout=float(session_seconds), tls_cert=cert, tls_key=key, tls_ca=ca)
    client.connect()
    steering = Steering(client)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(steering, order.pop("do"))(**order) or {}
        except Exception as error:
            logging.exception("%s failed", line.strip())
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    # The end of the input is an orderly end: the session is closed.
    steering.nodepool.stop()
    client.disconnect()


if __name__ == "__main__":
    main()
