"""Puts other programs in the place of Nodepool's launcher and builder, for Nodepool's own tests.

Nodepool's tests make a `NodePool` or a `NodePoolBuilder` object, start it, and then look at ZooKeeper, at a fake cloud
and at statsd. Here both classes are replaced by ones that start a program instead. The fake cloud stays where the tests
can reach into it: it is served over HTTP, and the program is told its address.
"""

import http.server
import json
import logging
import math
import os
import signal
import subprocess
import threading
import time

import nodepool.builder
import nodepool.config
import nodepool.driver.fake.adapter
import nodepool.driver.statemachine
import nodepool.launcher
import nodepool.nodeutils
from nodepool.zk import ZooKeeperClient
from nodepool.zk import zookeeper as zk

log = logging.getLogger("blackbox")

SITE_PACKAGES = os.path.dirname(os.path.dirname(nodepool.__file__))
CLOUDS = os.path.join(os.path.dirname(nodepool.__file__), "tests", "fixtures", "clouds.yaml")
# The tests replace subprocess.Popen with a class that records what builders run.
Popen = subprocess.Popen

PROGRAMS = {"launcher": None, "builder": None}


def plain(value):
    """What a fake cloud answers, as JSON has it."""
    if isinstance(value, nodepool.driver.fake.adapter.Dummy):
        fields = {k: v for k, v in vars(value).items() if not k.startswith("_Dummy__")}
        for hidden in ("event", "_kw", "manager"):
            fields.pop(hidden, None)
        if "host_id" in fields:
            fields["hostId"] = fields.pop("host_id")
        location = fields.pop("location", None)
        if location is not None:
            fields["OS-EXT-AZ:availability_zone"] = location.zone
        if "volumes" in fields:
            fields["os-extended-volumes:volumes_attached"] = fields.pop("volumes")
        return plain(fields)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value == math.inf:
        return -1
    return value


class Clouds:
    """The fake clouds of one program, by provider, behind one address."""

    def __init__(self, program):
        self.program = program
        self.managers = {}
        clouds = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    result = clouds.answer(self.path.strip("/"), json.loads(body or b"{}"))
                    self.reply(200, {"result": plain(result)})
                except Exception as error:
                    log.debug("%s: %r", self.path, error)
                    self.reply(
                        getattr(error, "status_code", None) or getattr(error, "http_status", None) or 500,
                        {
                            "error": {
                                "class": type(error).__name__,
                                "message": str(error),
                                "resource_id": getattr(error, "resource_id", None),
                            }
                        },
                    )

            def reply(self, status, document):
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                try:
                    self.end_headers()
                    self.wfile.write(data)
                except ConnectionError:
                    pass  # The program did not wait for the answer.

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%s" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path, arguments):
        if path == "nodescan":
            return self.scan(**arguments)
        provider, method = path.split("/")
        if provider not in self.managers:
            self.program.load()
        manager = self.managers[provider]
        adapter = manager.adapter
        client = adapter._getClient()
        if method == "list_servers":
            return list(client._server_list)
        if method == "create_server":
            return self.create_server(adapter, client, arguments)
        if method == "get_server":
            return client.get_server(arguments["id"])
        if method == "delete_server":
            return adapter._deleteServer(arguments["id"])
        if method == "delete_image":
            return client.delete_image(arguments["id"])
        if method == "list_ports":
            return client.list_ports(filters=arguments)
        if method == "delete_port":
            return client.delete_port(arguments["id"])
        if method == "get_server_console":
            return client.get_server_console(arguments["id"])
        return getattr(client, method)(**arguments)

    def create_server(self, adapter, client, arguments):
        if adapter.createServer_fails:
            adapter.createServer_fails -= 1
            raise Exception("Expected createServer exception")
        if adapter.createServer_fails_with_external_id:
            adapter.createServer_fails_with_external_id -= 1
            raise nodepool.driver.fake.adapter.OpenStackCloudCreateException("server", "fakeid")
        wanted = arguments.get("flavor")
        for flavor in client.list_flavors():
            if wanted in (flavor.id, flavor.name):
                arguments["flavor"] = flavor
        return client.create_server(**arguments)

    def scan(self, ip, port, gather_hostkeys):
        if not gather_hostkeys:
            nodepool.nodeutils.nodescan(ip, port=port, timeout=5, gather_hostkeys=False)
            return []
        node = zk.Node()
        node.interface_ip = ip
        node.connection_port = port
        node.connection_type = "ssh" if gather_hostkeys else "winrm"
        request = nodepool.driver.statemachine.NodescanRequest(node, True, 10, log)
        # Nothing is polled: no scan of a fake address has a socket.
        request.setWorker(object())
        request.advance(False)
        return request.result()


class Manager:
    """What the tests know of a provider: its adapter, and through it the fake cloud."""

    def __init__(self, provider_config):
        self.provider = provider_config
        self.adapter = nodepool.driver.fake.adapter.FakeAdapter(provider_config)


class Program:
    """A daemon, and what the tests read from the object that they take it for."""

    kind = None

    def __init__(self, securefile, configfile):
        self.securefile = securefile
        self.configfile = configfile
        self.config = None
        self.zk = None
        self.clouds = None
        self.child = None
        self.ready = False

    def environment(self):
        return {}

    def arguments(self):
        return []

    def start(self):
        self.clouds = Clouds(self)
        self.load()
        command = [PROGRAMS[self.kind], "-f", "-c", self.configfile, *self.arguments()]
        if self.securefile:
            command += ["-s", self.securefile]
        environment = dict(
            os.environ,
            NODEPOOL_FAKE_CLOUD_URL=self.clouds.url,
            OS_CLIENT_CONFIG_FILE=CLOUDS,
            **{"NODEPOOL_TEST_" + name: str(value) for name, value in self.environment().items()},
        )
        seen = self.registered()
        self.child = Popen(command, env=environment, cwd=SITE_PACKAGES)
        self.connect()
        deadline = time.monotonic() + 30
        while not self.registered() - seen:
            if self.child.poll() is not None:
                raise RuntimeError("%s ended with %s" % (command[0], self.child.returncode))
            if time.monotonic() > deadline:
                raise RuntimeError("%s has not registered" % command[0])
            time.sleep(0.05)
        self.settled(deadline)
        self.ready = True

    def settled(self, deadline):
        pass

    def load(self):
        config = nodepool.config.loadConfig(self.configfile)
        if self.securefile:
            nodepool.config.loadSecureConfig(config, self.securefile)
        for name, provider in config.providers.items():
            if name not in self.clouds.managers and provider.driver.name == "fake":
                self.clouds.managers[name] = Manager(provider)
        config.provider_managers = self.clouds.managers
        self.config = config
        return config

    def client(self):
        config = self.config or nodepool.config.loadConfig(self.configfile)
        client = ZooKeeperClient(
            config.zookeeper_servers,
            tls_cert=config.zookeeper_tls_cert,
            tls_key=config.zookeeper_tls_key,
            tls_ca=config.zookeeper_tls_ca,
            timeout=config.zookeeper_timeout,
        )
        client.connect()
        return client

    def connect(self):
        if self.zk is None:
            self.zk_client = self.client()
            self.zk = zk.ZooKeeper(self.zk_client, enable_cache=True)

    def registered(self):
        """The ids of components of this kind."""
        self.connect()
        path = "/nodepool/components/%s" % self.kind
        if not self.zk_client.client.exists(path):
            return set()
        return set(self.zk_client.client.get_children(path))

    def stop(self):
        if self.child and self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                log.error("%s did not stop", self.kind)
                self.child.kill()
                self.child.wait()
        if self.clouds:
            self.clouds.stop()
            self.clouds = None
        if self.zk:
            self.zk.disconnect()
            self.zk = None

    def join(self):
        pass

    def is_alive(self):
        return self.child is not None and self.child.poll() is None

    @property
    def _config(self):
        return self.config

    def getProviderManager(self, name):
        if name not in self.clouds.managers:
            self.load()
        return self.clouds.managers.get(name)


class PoolWorker:
    """A pool, as its component in ZooKeeper shows it."""

    def __init__(self, client, path, provider_name, pool_name):
        self.client = client
        self.path = path
        self.provider_name = provider_name
        self.pool_name = pool_name

    @property
    def paused_handlers(self):
        data, _ = self.client.get(self.path)
        return ["paused"] if json.loads(data).get("content", json.loads(data)).get("paused") else []


class Launcher(Program):
    kind = "launcher"

    def __init__(self, securefile, configfile, watermark_sleep=nodepool.launcher.WATERMARK_SLEEP):
        super().__init__(securefile, configfile)
        self.watermark_sleep = watermark_sleep
        self.cleanup_interval = 60
        self.delete_interval = 5
        self.stats_interval = 5

    def arguments(self):
        return ["--no-webapp"]

    def environment(self):
        return {
            "WATERMARK_SLEEP": self.watermark_sleep,
            "CLEANUP_INTERVAL": self.cleanup_interval,
            "DELETE_INTERVAL": self.delete_interval,
            "LOCK_CLEANUP": nodepool.launcher.LOCK_CLEANUP,
            "IMAGE_CHECK_TIMEOUT": 1,
        }

    def settled(self, deadline):
        """Nodepool's pools are there as soon as it has read its configuration."""
        pools = sum(len(provider.pools) for provider in self.config.providers.values())
        deadline = min(deadline, time.monotonic() + 5)
        while len(self._pool_threads) < pools and time.monotonic() < deadline:
            time.sleep(0.05)

    @property
    def _pool_threads(self):
        client = self.zk_client.client
        root = "/nodepool/components/pool"
        found = {}
        for child in client.get_children(root) if client.exists(root) else []:
            path = root + "/" + child
            document = json.loads(client.get(path)[0])
            content = document.get("content", document)
            name = content["name"]
            provider = content["provider_name"]
            found["%s-%s" % (provider, name)] = PoolWorker(client, path, provider, name)
        return found

    def getPoolWorkers(self, provider_name):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = [p for p in self._pool_threads.values() if p.provider_name == provider_name]
            if found:
                return found
            time.sleep(0.1)
        return []


class Worker:
    """What the tests ask of a thread that a program does not have: its configuration."""

    name = "worker"

    def __init__(self, program):
        self.program = program

    @property
    def _config(self):
        return self.program.config

    def shutdown(self):
        pass

    def join(self):
        pass


class Builder(Program):
    kind = "builder"

    def __init__(self, config_path, secure_path=None, num_builders=1, num_uploaders=4):
        super().__init__(secure_path, config_path)
        self.num_builders = num_builders
        self.num_uploaders = num_uploaders
        self.cleanup_interval = 60
        self.build_interval = 10
        self.upload_interval = 10
        self._upload_workers = [Worker(self)]
        self._build_workers = [Worker(self)]
        self._janitor = None

    def arguments(self):
        return ["--build-workers", str(self.num_builders), "--upload-workers", str(self.num_uploaders)]

    def environment(self):
        return {
            "BUILD_INTERVAL": self.build_interval,
            "UPLOAD_INTERVAL": self.upload_interval,
            "BUILDER_CLEANUP_INTERVAL": self.cleanup_interval,
            "BUILD_PROCESS_POLL_TIMEOUT": nodepool.builder.BUILD_PROCESS_POLL_TIMEOUT,
        }


def install(launcher, builder):
    """From now on the tests meet these programs. None leaves Nodepool's own in its place."""
    if launcher:
        PROGRAMS["launcher"] = launcher
        nodepool.launcher.NodePool = Launcher
    if builder:
        PROGRAMS["builder"] = builder
        nodepool.builder.NodePoolBuilder = Builder
