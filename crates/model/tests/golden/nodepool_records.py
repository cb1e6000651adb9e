"""The records of Python Nodepool, by its own classes.

    nodepool_records.py make DIR     writes records as Nodepool writes them
    nodepool_records.py answer DIR   answers the request that Zuul has written to DIR
    nodepool_records.py echo         reads `{"kind": ..., "record": ...}` lines, and writes each
                                     record as Nodepool would write it back
"""

import itertools
import json
import pathlib
import sys
import time
import types

# A clock that ticks only when it is looked at makes the files the same every time.
_ticks = itertools.count()
time.time = lambda: 1700000000.1234567 + next(_ticks)

from nodepool.driver.utils import QuotaInformation  # noqa: E402
from nodepool.zk import components, zookeeper as zk  # noqa: E402

HOST_KEYS = [
    'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI' + 'a' * 43,
    'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ' + 'b' * 334,
]
LAUNCHER = 'nl01.example.org-PoolWorker.cloud-main-0123456789abcdef0123456789abcdef'


def node(state, **attributes):
    o = zk.Node()
    o.state = state
    o.created_time = o.state_time
    o.provider, o.pool, o.launcher = 'cloud', 'main', LAUNCHER
    o.type = ['small']
    for name, value in attributes.items():
        assert hasattr(o, name), name
        setattr(o, name, value)
    return o


def ssh_node(state, **attributes):
    settings = dict(
        allocated_to='200-0000000042',
        cloud='cloud-one', region='north', az='az-1', host_id='f00d',
        external_id='c0ffee00-0000-4000-8000-000000000001',
        hostname=None, interface_ip='192.0.2.7', public_ipv4='192.0.2.7',
        private_ipv4='10.0.0.7', public_ipv6='2001:db8::7',
        connection_type='ssh', connection_port=22, username='zuul',
        python_path='auto', shell_type=None, host_keys=HOST_KEYS,
        image_id='/nodepool/images/ubuntu/builds/0123456789abcdef0123456789abcdef'
                 '/providers/cloud/images/0000000001',
        resources=QuotaInformation(cores=4, instances=1, ram=8192).get_resources(),
        attributes={'executor-zone': 'north'},
        tenant_name='acme', requestor='zuul-system')
    return node(state, **{**settings, **attributes})


def nodes():
    yield 'init', node(zk.INIT, allocated_to='200-0000000042', tenant_name='acme')
    yield 'building', node(zk.BUILDING, allocated_to='900-0000000001')
    yield 'ready', ssh_node(zk.READY)
    yield 'aborted', node(zk.ABORTED)
    yield 'failed', node(
        zk.FAILED, allocated_to='not a request', comment='no valid host: ☃ "quoted" \\ back\tslash')
    yield 'deleted', node(zk.DELETED)
    yield 'windows', ssh_node(
        zk.READY, connection_type='winrm', connection_port=5986,
        shell_type='powershell', username='Administrator', host_keys=[])
    yield 'static', ssh_node(
        zk.READY, type=['big', 'big-arm64'], launcher='static driver',
        hostname='bücher.example.org', slot=3, allocated_to=None,
        cloud=None, resources={'cores': 0, 'instances': 1, 'ram': 0})
    yield 'aws', ssh_node(
        zk.READY, external_id={'instance': 'i-0123', 'host': None},
        node_properties={'spot': True, 'fleet': False},
        resources=QuotaInformation(
            cores=2, instances=1, ram=4096, default=0,
            **{'L-1216C47A': 2, 'volumes': 1, 'volume-gb': 80}).get_resources())
    yield 'pod', ssh_node(
        zk.READY, connection_type='kubectl', interface_ip='small', host_keys=[],
        connection_port={
            'name': 'main-0000000001', 'namespace': 'main-0000000001',
            'host': 'https://192.0.2.1:6443', 'skiptls': False,
            'token': 'not-a-real-token', 'user': 'zuul-worker',
            'ca_crt': 'bm90IGEgcmVhbCBjZXJ0aWZpY2F0ZQ==', 'pod': 'small'},
        resources={'cores': 0.5, 'instances': 1, 'ram': 512, 'nvidia.com/gpu': 0.25,
                   'ephemeral-storage': 10240})
    yield 'backing', ssh_node(
        zk.IN_USE, requestor='NodePool:metastatic:meta', tenant_name=None,
        user_data=json.dumps({
            'owner': 'NodePool:metastatic:meta', 'label': 'small', 'slots': 2,
            'failed': False, 'launched': 1700000000.5}))
    yield 'metastatic', ssh_node(
        zk.READY, slot=1, driver_data={
            'metadata': {'nodepool_node_id': '0000000002'},
            'backing_node': '0000000001', 'slot': 1, 'node': '0000000002'})


def requests():
    o = zk.NodeRequest()
    o.state = zk.REQUESTED
    o.node_types = ['small']
    o.reuse = False
    o.requestor = 'NodePool:min-ready'
    o.event_id = '0123456789abcdef0123456789abcdef'
    yield 'min-ready', o

    o = zk.NodeRequest()
    o.state = zk.FAILED
    o.node_types = ['impossible', 'small']
    o.declined_by = [LAUNCHER, 'nl02.example.org-PoolWorker.static-main-fedcba']
    o.requestor = 'zuul-system'
    o.provider = 'cloud'
    o.relative_priority = 12
    o.created_time = 1699999999.75
    o.tenant_name = 'acme'
    yield 'failed', o


def images():
    build = zk.ImageBuild('ubuntu')
    build.state = zk.BUILDING
    yield 'build-new', build

    build = zk.ImageBuild('ubuntu')
    build.state = zk.READY
    build.builder = 'nb01.example.org'
    build.builder_id = '8d7d8e1a-0000-4000-8000-000000000001'
    build.formats = ['raw', 'qcow2']
    build.username, build.python_path, build.shell_type = 'zuul', 'auto', 'sh'
    yield 'build-ready', build

    upload = zk.ImageUpload(username='zuul', python_path='auto')
    upload.state = zk.UPLOADING
    yield 'upload-new', upload

    upload = zk.ImageUpload(username='zuul', python_path='auto', shell_type='cmd')
    upload.state = zk.READY
    upload.external_id = 'c0ffee00-0000-4000-8000-000000000002'
    upload.external_name = 'ubuntu-1700000000'
    upload.format = 'qcow2'
    yield 'upload-ready', upload


class FakeClient:
    """As much of a kazoo client as registering a component needs."""

    def create(self, path, data, **options):
        self.data = data
        return path + '0000000001', types.SimpleNamespace(version=0)


def registered(component_class, **content):
    kazoo = FakeClient()
    client = types.SimpleNamespace(
        client=kazoo, on_connect_listeners=[], on_disconnect_listeners=[], on_reconnect_listeners=[])
    component = component_class(client, 'nl01', version='11.0.0')
    component.content.update(content)
    component.register()
    return kazoo.data


def make(directory):
    for kind, records in [('node', nodes()), ('request', requests())]:
        for case, record in records:
            (directory / f'nodepool-{kind}-{case}.json').write_bytes(record.serialize())
    for name, record in images():
        (directory / f'nodepool-{name}.json').write_bytes(record.serialize())
    for name, data in [
        ('component-launcher', registered(components.LauncherComponent, state='running')),
        ('component-builder', registered(components.BuilderComponent)),
        ('pool-running', registered(
            components.PoolComponent, id=LAUNCHER, name='main', provider_name='cloud',
            supported_labels=['small', 'big'], state='running', priority=50)),
    ]:
        (directory / f'nodepool-{name}.json').write_bytes(data)


def answer(directory):
    data = json.loads((directory / 'zuul-request-traced.json').read_bytes())
    o = zk.NodeRequest.fromDict(data, '200-0000000042')
    o.state = zk.PENDING
    (directory / 'nodepool-request-pending.json').write_bytes(o.serialize())
    o.nodes = ['0000000007', '0000000005', '0000000006']
    o.state = zk.FULFILLED
    (directory / 'nodepool-request-fulfilled.json').write_bytes(o.serialize())


def echo(kind, record):
    if kind == 'request':
        return zk.NodeRequest.fromDict(record, '200-0000000042').toDict()
    if kind == 'node':
        return zk.Node.fromDict(record, '0000000007').toDict()
    if kind == 'build':
        return zk.ImageBuild.fromDict(record, 'ubuntu', 'b').toDict()
    if kind == 'upload':
        return zk.ImageUpload.fromDict(record, 'b', 'cloud', 'ubuntu', '0000000001').toDict()
    classes = components.ComponentRegistry.COMPONENT_CLASSES
    return classes[record['kind']].fromDict(None, record['hostname'], record).content


if __name__ == '__main__':
    if sys.argv[1] == 'echo':
        for line in sys.stdin:
            print(json.dumps(echo(**json.loads(line))))
    else:
        {'make': make, 'answer': answer}[sys.argv[1]](pathlib.Path(sys.argv[2]))
