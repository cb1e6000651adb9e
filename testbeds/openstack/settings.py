"""The configuration files of the services, as the place and the ports of a cloud determine them."""

import os

PASSWORD = "secret"
REGION = "RegionOne"

#: What listens, in the order of the ports. All of them are on loopback.
LISTENERS = (
    "keystone", "glance", "placement", "neutron", "nova", "cinder",
    "rabbitmq", "rabbitmq-distribution", "epmd",
)

#: Type of service in the catalog, by whom it is served, and what follows the port in its address.
CATALOG = {
    "identity": ("keystone", "/v3"),
    "image": ("glance", ""),
    "placement": ("placement", ""),
    "network": ("neutron", ""),
    "compute": ("nova", "/v2.1"),
    "block-storage": ("cinder", "/v3"),
}

#: The database server's, in the place of a cloud, where all its programs run: no path of a socket may be longer than 107
#: characters, and that of a cache can be.
SOCKET = "run/mariadb.sock"

DATABASES = ("keystone", "glance", "placement", "neutron", "nova_api", "nova_cell0", "nova_cell1", "cinder")


class Place:
    """Where a cloud keeps its things, and on which ports it listens."""

    def __init__(self, root, venv, first_port):
        self.root, self.venv = root, venv
        self.ports = {name: first_port + index for index, name in enumerate(LISTENERS)}

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def etc(self, name):
        return self.path("etc", name)

    def log(self, name):
        return self.path("log", name + ".log")

    def packaged(self, *parts):
        """What a package has put into the environment."""
        return os.path.join(self.venv, "etc", *parts)

    def url(self, service):
        listener, path = CATALOG[service]
        return f"http://127.0.0.1:{self.ports[listener]}{path}"

    def database(self, name):
        return f"mysql+pymysql://root@localhost/{name}?unix_socket={SOCKET}"

    @property
    def transport(self):
        return f"rabbit://guest:guest@127.0.0.1:{self.ports['rabbitmq']}/"

    @property
    def catalog(self):
        return {service: self.url(service) for service in CATALOG}


def write(place):
    for directory in ("etc", "log", "run"):
        os.makedirs(place.path(directory), exist_ok=True)
    for directory in (
        "images", "staging", "tasks", "nova", "neutron", "cinder",
        "rabbitmq", "locks", "fernet", "credential",
    ):
        os.makedirs(place.path("data", directory), exist_ok=True)
    for name, sections in _files(place).items():
        with open(place.etc(name), "w") as file:
            for section, options in sections.items():
                file.write(f"[{section}]\n")
                file.writelines(f"{key} = {value}\n" for key, value in options.items())


def _files(place):
    credentials = {
        "auth_type": "password",
        "auth_url": place.url("identity"),
        "username": "admin",
        "password": PASSWORD,
        "project_name": "admin",
        "user_domain_id": "default",
        "project_domain_id": "default",
        "region_name": REGION,
    }
    common = {
        "keystone_authtoken": {
            **credentials,
            "www_authenticate_uri": place.url("identity"),
            "service_token_roles_required": "true",
        },
        "oslo_concurrency": {"lock_path": place.path("data", "locks")},
        "oslo_messaging_notifications": {"driver": "noop"},
    }
    return {
        "keystone.conf": {
            "DEFAULT": {"log_file": place.log("keystone")},
            "database": {"connection": place.database("keystone")},
            "fernet_tokens": {"key_repository": place.path("data", "fernet")},
            "credential": {"key_repository": place.path("data", "credential")},
            "token": {"provider": "fernet", "expiration": 86400},
            # The tests log in again and again, with a password that is no secret.
            "identity": {"password_hash_rounds": "4"},
            # Without it, half of what the cloud does is to look up what a token stands for. There is only one process.
            "cache": {"enabled": "true", "backend": "dogpile.cache.memory"},
        },
        "glance-api.conf": {
            "DEFAULT": {
                "log_file": place.log("glance"),
                "enabled_backends": "files:file",
                "node_staging_uri": "file://" + place.path("data", "staging"),
                "worker_self_reference_url": place.url("image"),
                "image_cache_dir": "",
            },
            "database": {"connection": place.database("glance")},
            "glance_store": {"default_backend": "files"},
            "files": {"filesystem_store_datadir": place.path("data", "images")},
            "os_glance_staging_store": {"filesystem_store_datadir": place.path("data", "staging")},
            "os_glance_tasks_store": {"filesystem_store_datadir": place.path("data", "tasks")},
            "paste_deploy": {"flavor": "keystone", "config_file": place.packaged("glance", "glance-api-paste.ini")},
            **common,
        },
        "placement.conf": {
            "DEFAULT": {"log_file": place.log("placement")},
            "placement_database": {"connection": place.database("placement")},
            "api": {"auth_strategy": "keystone"},
            **common,
        },
        "neutron.conf": {
            "DEFAULT": {
                "log_file": place.log("neutron"),
                "core_plugin": "ml2",
                "service_plugins": "router",
                "transport_url": place.transport,
                "state_path": place.path("data", "neutron"),
                "auth_strategy": "keystone",
                "api_paste_config": place.packaged("neutron", "api-paste.ini"),
                # There are no agents to be told, and Nova does not wait for anything.
                "notify_nova_on_port_status_changes": "false",
                "notify_nova_on_port_data_changes": "false",
                "dhcp_agent_notification": "false",
                "rpc_workers": 0,
            },
            "database": {"connection": place.database("neutron")},
            "nova": credentials,
            "placement": credentials,
            "ml2": {
                "type_drivers": "local,flat",
                "tenant_network_types": "local",
                "mechanism_drivers": "loopback",
            },
            "ml2_type_flat": {"flat_networks": "*"},
            **common,
        },
        "nova.conf": {
            "DEFAULT": {
                "my_ip": "127.0.0.1",
                "host": "loopback",
                "state_path": place.path("data", "nova"),
                "transport_url": place.transport,
                # The plain fake driver has another node after each start, which the database does not forgive.
                "compute_driver": "fake.FakeDriverWithoutFakeNodes",
                "vif_plugging_is_fatal": "false",
                "vif_plugging_timeout": 0,
                "rpc_response_timeout": 120,
                "enabled_apis": "osapi_compute",
                "report_interval": 3,
                "service_down_time": 120,
                "max_concurrent_builds": 20,
                "block_device_allocate_retries_interval": 1,
            },
            "api": {"auth_strategy": "keystone"},
            "api_database": {"connection": place.database("nova_api")},
            "database": {"connection": place.database("nova_cell1")},
            "wsgi": {"api_paste_config": place.packaged("nova", "api-paste.ini")},
            "glance": {"api_servers": place.url("image")},
            "cinder": {**credentials, "catalog_info": "block-storage::publicURL"},
            "placement": credentials,
            "neutron": credentials,
            "service_user": {**credentials, "send_service_user_token": "true"},
            "keystone": credentials,
            "conductor": {"workers": 1},
            "scheduler": {"workers": 1, "discover_hosts_in_cells_interval": 10},
            "filter_scheduler": {"track_instance_changes": "false"},
            "vnc": {"enabled": "false"},
            **common,
        },
        "cinder.conf": {
            "DEFAULT": {
                "my_ip": "127.0.0.1",
                "host": "loopback",
                "state_path": place.path("data", "cinder"),
                "transport_url": place.transport,
                "auth_strategy": "keystone",
                "api_paste_config": place.packaged("cinder", "api-paste.ini"),
                "resource_query_filters_file": place.packaged("cinder", "resource_filters.json"),
                "enabled_backends": "loopback",
                "glance_api_servers": place.url("image"),
                "report_interval": 3,
                "service_down_time": 120,
            },
            "loopback": {
                "volume_driver": "loopback_volumes.LoopbackVolumes",
                "volume_backend_name": "loopback",
            },
            "database": {"connection": place.database("cinder")},
            "service_user": {**credentials, "send_service_user_token": "true"},
            "nova": credentials,
            **common,
        },
    }
