"""The records that Zuul writes, by its own code.

    zuul_records.py make DIR   writes requests, and rewrites the nodes that Nodepool has written to DIR
    zuul_records.py echo       reads `{"kind": ..., "record": ...}` lines, and writes each record as Zuul
                               would write it back
    zuul_records.py reserved   writes the attributes of Zuul's node object that no record may set
"""

import itertools
import json
import logging
import pathlib
import sys
import time
import types

# A clock that ticks only when it is looked at makes the files the same every time.
_ticks = itertools.count()
time.time = lambda: 1700000100.7654321 + next(_ticks)

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.id_generator import IdGenerator  # noqa: E402

from zuul import model  # noqa: E402
from zuul.nodepool import Nodepool  # noqa: E402
from zuul.zk.nodepool import ZooKeeperNodepool  # noqa: E402


class LargestIds(IdGenerator):
    """Ids that no 64-bit number holds, and no float tells apart."""

    def generate_trace_id(self):
        return 2 ** 128 - 3

    def generate_span_id(self):
        return 2 ** 64 - 5


class FakeClient:
    """As much of a kazoo client as writing records needs."""

    def create(self, path, data, **options):
        self.data = data
        return path + '0000000042'

    def set(self, path, data, **options):
        self.data = data


def connected():
    kazoo = FakeClient()
    zk_nodepool = ZooKeeperNodepool.__new__(ZooKeeperNodepool)
    zk_nodepool.client = types.SimpleNamespace(client=kazoo)
    zk_nodepool.unlockNode = lambda node: None
    zk_nodepool.lockHoldRequest = zk_nodepool.unlockHoldRequest = lambda request, timeout=None: None
    nodepool = Nodepool.__new__(Nodepool)
    nodepool.log = logging.getLogger('zuul')
    nodepool.system_id = 'zuul-system'
    nodepool.zk_nodepool = zk_nodepool
    nodepool.emitStatsResourceCounters = lambda *args: None
    return nodepool, zk_nodepool, kazoo


def new_request(**changes):
    settings = dict(
        requestor='zuul-system', build_set_uuid='0123456789abcdef0123456789abcdef',
        tenant_name='acme', pipeline_name='prüfung', job_uuid='fedcba9876543210fedcba9876543210',
        job_name='unit-☃', labels=['small', 'big', 'small'], provider=None, relative_priority=3,
        event_id='00112233445566778899aabbccddeeff')
    return model.NodeRequest(**{**settings, **changes})


def requests():
    trace.set_tracer_provider(TracerProvider(id_generator=LargestIds()))
    _, zk_nodepool, kazoo = connected()
    zk_nodepool.submitNodeRequest(new_request(provider='cloud', labels=['small']), 99)
    yield 'affine', kazoo.data

    request = new_request()
    zk_nodepool.submitNodeRequest(request, 200)
    yield 'traced', kazoo.data

    request.updateFromDict(json.loads(kazoo.data))
    request.stat = types.SimpleNamespace(version=0)
    request.relative_priority = 1
    zk_nodepool.storeNodeRequest(request)
    yield 'revised', kazoo.data


def acquired(directory, case):
    """A node of a job, as the executor has read and locked it."""
    node = model.Node(['controller'], 'small')
    node.updateFromDict(json.loads((directory / f'nodepool-node-{case}.json').read_bytes()))
    node.id = '0000000007'
    node.lock = object()
    nodeset = model.NodeSet('set')
    nodeset.addNode(node)
    return node, nodeset


def nodes(directory):
    nodepool, zk_nodepool, kazoo = connected()
    zk_nodepool.storeHoldRequest = lambda request: None

    node, nodeset = acquired(directory, 'ready')
    nodepool.useNodeSet(nodeset, 'acme', 'example.org/prüfling')
    yield 'in-use', kazoo.data
    nodepool.returnNodeSet(nodeset, 'build', 'acme', 'example.org/prüfling', 10.5)
    yield 'used', kazoo.data

    node, nodeset = acquired(directory, 'ready')
    nodepool.useNodeSet(nodeset, 'acme', 'example.org/prüfling')
    hold = model.HoldRequest()
    hold.tenant, hold.project, hold.job, hold.ref_filter = 'acme', 'example.org/p', 'unit', '.*'
    hold.reason = 'why does it fail? ☃ 𝄞'
    hold.node_expiration = 86400
    hold.max_count = 1
    nodepool.holdNodeSet(nodeset, hold, types.SimpleNamespace(uuid='build'), 10.5)
    yield 'hold', kazoo.data

    node, nodeset = acquired(directory, 'pod')
    nodepool.useNodeSet(nodeset, 'acme', 'example.org/prüfling')
    # What the executor does with a pod while it prepares the job.
    node.kubernetes_connection, node.connection_port = node.connection_port, None
    nodepool.returnNodeSet(nodeset, 'build', 'acme', 'example.org/prüfling', 10.5)
    yield 'pod-used', kazoo.data


def make(directory):
    for kind, records in [('request', requests()), ('node', nodes(directory))]:
        for case, data in records:
            (directory / f'zuul-{kind}-{case}.json').write_bytes(data)


def echo(kind, record):
    if kind == 'request':
        return model.NodeRequest.fromDict(record).toDict()
    node = model.Node(None, 'the label of the job')
    node.updateFromDict(record)
    node.id = '0000000007'
    assert node.label == 'the label of the job' and node.lock is None
    return node.toDict()


def reserved():
    node = model.Node(None, None)
    callables = [name for name in dir(node) if callable(getattr(node, name))]
    return sorted({*callables, *model.ConfigObject().__dict__, 'label', 'lock', 'name', 'id'})


if __name__ == '__main__':
    if sys.argv[1] == 'echo':
        for line in sys.stdin:
            print(json.dumps(echo(**json.loads(line))))
    elif sys.argv[1] == 'reserved':
        print(json.dumps(reserved()))
    else:
        make(pathlib.Path(sys.argv[2]))
