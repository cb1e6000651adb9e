"""What every test finds in the cloud: the catalog, flavors, and a network that leads outside."""

import json
import urllib.request

from settings import CATALOG, PASSWORD, REGION

#: Name, memory in MiB, cores, disk in GB. No host is large enough for the last one.
FLAVORS = (
    ("tiny", 512, 1, 1),
    ("small", 2048, 1, 10),
    ("medium", 8192, 4, 40),
    ("large", 16384, 8, 80),
    ("impossible", 2048, 1, 100_000_000),
)


class Admin:
    def __init__(self, place):
        self.place = place
        password = {"user": {"name": "admin", "domain": {"id": "default"}, "password": PASSWORD}}
        scope = {"project": {"name": "admin", "domain": {"id": "default"}}}
        auth = {"auth": {"identity": {"methods": ["password"], "password": password}, "scope": scope}}
        self.token = None
        with self._send("POST", place.url("identity") + "/auth/tokens", auth) as answer:
            self.token = answer.headers["X-Subject-Token"]
            self.user = json.load(answer)["token"]["user"]["id"]

    def catalog(self):
        """The identity service is there already."""
        identity = self.place.url("identity")
        for service, url in self.place.catalog.items():
            if service == "identity":
                continue
            body = {"service": {"type": service, "name": CATALOG[service][0]}}
            made = self._json("POST", identity + "/services", body)["service"]["id"]
            for interface in ("public", "internal", "admin"):
                self._json("POST", identity + "/endpoints", {"endpoint": {
                    "service_id": made, "interface": interface, "region_id": REGION, "url": url}})
        # Tokens of services count only with this role.
        role = self._json("GET", identity + "/roles?name=service")["roles"][0]["id"]
        project = self._json("GET", identity + "/projects?name=admin")["projects"][0]["id"]
        self._send("PUT", f"{identity}/projects/{project}/users/{self.user}/roles/{role}").close()

    def contents(self):
        for name, ram, cores, disk in FLAVORS:
            body = {"flavor": {"name": name, "ram": ram, "vcpus": cores, "disk": disk}}
            self._json("POST", self.place.url("compute") + "/flavors", body)
        network = self.place.url("network") + "/v2.0"
        public = self._json("POST", network + "/networks", {"network": {
            "name": "public", "router:external": True,
            "provider:network_type": "flat", "provider:physical_network": "outside"}})["network"]["id"]
        self._json("POST", network + "/subnets", {"subnet": {
            "network_id": public, "name": "public", "ip_version": 4, "cidr": "198.18.0.0/16", "enable_dhcp": False}})

    def greet(self):
        """The first request of all to a service must not have company: some get ready in the middle of it, and Neutron
        shows somebody else who asks meanwhile no networks."""
        for service, path in (
            ("network", "/v2.0/networks"), ("compute", "/flavors"), ("image", "/v2/images"), ("block-storage", "/volumes"),
        ):
            self._json("GET", self.place.url(service) + path)

    def _json(self, method, url, body=None):
        with self._send(method, url, body) as answer:
            return json.load(answer)

    def _send(self, method, url, body=None):
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["X-Auth-Token"] = self.token
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=300)
