"""The processes of a cloud: how each is started, and how one sees that it serves.

Everything is a child of this program, which is the first process of a namespace of its own: what is started here, by
whatever detours, ends with it.
"""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

from settings import DATABASES, PASSWORD, REGION, SOCKET

PATIENCE = 600
ERLANG = "+S 1:1 +sbwt none"


class Services:
    def __init__(self, place, plugins):
        self.place = place
        self.running = {}
        self.environment = {
            **os.environ,
            "PATH": os.path.join(place.venv, "bin") + ":/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": plugins,
            "PYTHONWARNINGS": "ignore",
            "HOME": place.path("data"),
        }

    def databases(self):
        """The database server, with one database for each service. It works in the directory of its data."""
        data = self.place.path("data", "mariadb")
        if not os.path.exists(data):
            self._run("mariadb-install-db", "--no-defaults", "--user=root", "--datadir=" + data, "--skip-test-db",
                      "--auth-root-authentication-method=normal")
        self._start("mariadb", "mariadbd", "--no-defaults", "--user=root", "--datadir=" + data, "--skip-networking",
                    "--socket=" + os.path.join("..", "..", SOCKET), "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--performance-schema=off",
                    "--max-connections=500")
        self._until("mariadb", lambda: self._sql("select 1").returncode == 0)

    def message_bus(self):
        """Begins to start RabbitMQ; `wait_for_message_bus` is the other half."""
        ports = self.place.ports
        epmd = {"ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(ports["epmd"])}
        # Without one that runs already, RabbitMQ makes one for the whole machine.
        self._start("epmd", "epmd", env=epmd)
        self._until("epmd", lambda: _accepts(ports["epmd"]))
        data = self.place.path("data", "rabbitmq")
        self._start("rabbitmq", "/usr/lib/rabbitmq/bin/rabbitmq-server", env={
            **epmd,
            "HOME": data,
            "RABBITMQ_NODENAME": "nodeyard@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(ports["rabbitmq"]),
            "RABBITMQ_DIST_PORT": str(ports["rabbitmq-distribution"]),
            "RABBITMQ_MNESIA_BASE": data,
            "RABBITMQ_LOG_BASE": self.place.path("log"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG + " -kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_CRASH_DUMP": self.place.log("erlang-crash"),
        })

    def wait_for_message_bus(self):
        self._until("rabbitmq", lambda: _accepts(self.place.ports["rabbitmq"]))

    def schemas(self):
        """Makes the tables of all services, the first user, and the cells of Nova."""
        for name in DATABASES:
            self.sql(f"create database {name} character set utf8mb3")
        keystone = ("keystone-manage", "--config-file", self.place.etc("keystone.conf"))
        for keys in ("fernet_setup", "credential_setup"):
            self._run(*keystone, keys, "--keystone-user", "root", "--keystone-group", "root")
        self._run(*keystone, "db_sync")
        url = self.place.url("identity")
        self._run(*keystone, "bootstrap", "--bootstrap-password", PASSWORD, "--bootstrap-region-id", REGION,
                  "--bootstrap-public-url", url, "--bootstrap-internal-url", url, "--bootstrap-admin-url", url)
        self._run("glance-manage", "--config-file", self.place.etc("glance-api.conf"), "db_sync")
        self._run("placement-manage", "--config-file", self.place.etc("placement.conf"), "db", "sync")
        self._run("neutron-db-manage", "--config-file", self.place.etc("neutron.conf"), "upgrade", "head")
        self._run("cinder-manage", "--config-file", self.place.etc("cinder.conf"), "db", "sync")
        nova = ("nova-manage", "--config-file", self.place.etc("nova.conf"))
        self._run(*nova, "api_db", "sync")
        cell0 = self.place.database("nova_cell0")
        self._run(*nova, "cell_v2", "map_cell0", "--database_connection", cell0)
        self._run(*nova, "cell_v2", "create_cell", "--name", "cell1")
        self._run(*nova, "db", "sync")

    def move_in(self):
        """Tells databases that were made elsewhere where they are now, and on which ports the services listen."""
        for service, url in self.place.catalog.items():
            self.sql("update keystone.endpoint join keystone.service on service.id = endpoint.service_id "
                     f"set endpoint.url = '{url}' where service.type = '{service}'")
        for cell in ("cell0", "cell1"):
            transport = "none:///" if cell == "cell0" else self.place.transport
            self.sql("update nova_api.cell_mappings set "
                     f"database_connection = '{self.place.database('nova_' + cell)}', transport_url = '{transport}' "
                     f"where name = '{cell}'")

    def identity(self):
        self._wsgi("keystone", "keystone.wsgi.api:application", "keystone.conf")
        self._answers("keystone")

    def everything_else(self):
        """Needs the whole catalog: Nova's scheduler never looks at it twice."""
        self._wsgi("glance", "glance.wsgi.api:application", "glance-api.conf")
        self._wsgi("placement", "placement.wsgi.api:application", "placement.conf")
        self._wsgi("neutron", "neutron.wsgi.api:application", "neutron.conf")
        # Nova looks for the first of its files under this very name.
        paste = self.place.etc("api-paste.ini")
        if not os.path.exists(paste):
            os.symlink(self.place.packaged("nova", "api-paste.ini"), paste)
        self._wsgi("nova", "nova.wsgi.osapi_compute:application", "api-paste.ini;nova.conf")
        self._wsgi("cinder", "cinder.wsgi.api:application", "cinder.conf")
        self.wait_for_message_bus()
        started = self._now()
        for name in ("cinder-scheduler", "cinder-volume"):
            self._start(name, name, "--config-file", self.place.etc("cinder.conf"))
        for name in ("nova-conductor", "nova-scheduler"):
            self._start(name, name, "--config-file", self.place.etc("nova.conf"))
        for name in ("glance", "placement", "neutron", "nova", "cinder"):
            self._answers(name)
        self._start("nova-compute", "nova-compute", "--config-file", self.place.etc("nova.conf"))
        # What an earlier run has said counts as alive for a while: it must be a sign of this one.
        for binary in ("nova-conductor", "nova-scheduler", "nova-compute"):
            self._until(binary, lambda: self._rows(
                f"select 1 from nova_cell1.services where `binary` = '{binary}' and last_seen_up > '{started}' "
                f"union select 1 from nova_cell0.services where `binary` = '{binary}' and last_seen_up > '{started}'"))
        for binary in ("cinder-scheduler", "cinder-volume"):
            self._until(binary, lambda: self._rows(
                f"select 1 from cinder.services where `binary` = '{binary}' and updated_at > '{started}'"))
        self._until("nova-compute", lambda: self._rows("select 1 from nova_cell1.compute_nodes where deleted = 0"))

    def map_hosts(self):
        self._run("nova-manage", "--config-file", self.place.etc("nova.conf"), "cell_v2", "discover_hosts")

    def ended(self):
        """The name of a service that runs no more."""
        return next((name for name, process in self.running.items() if process.poll() is not None), None)

    def stop(self):
        """In an order in which nobody misses anybody."""
        for name in reversed(list(self.running)):
            process = self.running.pop(name)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def sql(self, statement):
        done = self._sql(statement)
        if done.returncode:
            raise RuntimeError(f"{statement}: {done.stderr}")

    def _rows(self, query):
        return self._sql(query).stdout.strip()

    def _now(self):
        return self._rows("select utc_timestamp()")

    def _sql(self, statement):
        command = ["mariadb", "--no-defaults", "--skip-column-names", "--user=root",
                   "--socket=" + SOCKET, "--execute=" + statement]
        return subprocess.run(command, cwd=self.place.root, capture_output=True, text=True)

    def _wsgi(self, name, application, files):
        """The services read the arguments of the program that runs them, so gunicorn gets its own in another way."""
        config = self.place.etc(name + "-gunicorn.py")
        with open(config, "w") as file:
            file.write(f"wsgi_app = {application!r}\nbind = '127.0.0.1:{self.place.ports[name]}'\n"
                       "workers = 1\nthreads = 8\ntimeout = 600\ncontrol_socket_disable = True\n")
        prefix = "OS_" + name.upper()
        self._start(name, "gunicorn", env={
            "GUNICORN_CMD_ARGS": "-c " + config,
            prefix + "_CONFIG_DIR": self.place.path("etc"),
            prefix + "_CONFIG_FILES": files,
            # Where Cinder looks for its file.
            "HOME": self.place.path("etc"),
        })

    def _answers(self, name):
        def asked():
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.place.ports[name]}/", timeout=30).close()
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False
            return True

        self._until(name, asked)

    def _run(self, *command):
        with open(self.place.log("make"), "a") as log:
            subprocess.run(command, env=self.environment, cwd=self.place.root, stdin=subprocess.DEVNULL, stdout=log,
                           stderr=log, check=True)

    def _start(self, name, *command, env=None):
        with open(self.place.log(name), "a") as log:
            self.running[name] = subprocess.Popen(
                command, env={**self.environment, **(env or {})}, cwd=self.place.root,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _until(self, name, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.running[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not come up, see {self.place.log(name)}")
            time.sleep(0.2)


def _accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
