"""Loads files with the real Nodepool and prints what it made of them, as JSON.

Objects become mappings of their attributes under the file's own spelling, lists of named things become mappings by
name, infinity becomes null.
"""
import json
import math
import sys

from nodepool import config as nodepool_config
from nodepool.driver import ConfigValue

# Links between objects, and what Nodepool works out for itself.
SKIPPED = {'provider', 'pool', 'pools', 'labels', 'driver_object', 'driver', 'cloud_config', 'full_config', 'nodes'}


def plain(value):
    if isinstance(value, float) and math.isinf(value):
        return None
    if isinstance(value, ConfigValue):
        return getattr(value, 'name', None)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return None


def attributes(thing):
    return {
        name.replace('_', '-'): plain(value)
        for name, value in vars(thing).items()
        if not name.startswith('_') and name not in SKIPPED
    }


def images(value):
    return {name: attributes(image) for name, image in value.items()}


def pool(value):
    result = attributes(value)
    if isinstance(value.labels, dict):
        result['labels'] = {name: attributes(label) for name, label in value.labels.items()}
    else:
        result['label-names'] = sorted(value.labels)
    if hasattr(value, 'nodes'):
        result['nodes'] = [plain(node) for node in value.nodes]
    return result


def provider(value):
    result = attributes(value)
    result['name'] = value.name
    result['priority'] = value.priority
    result['max-concurrency'] = value.max_concurrency
    result['pools'] = {name: pool(item) for name, item in value.pools.items()}
    for kind in ('diskimages', 'cloud_images'):
        if isinstance(getattr(value, kind, None), dict):
            result[kind.replace('_', '-')] = images(getattr(value, kind))
    return result


def everything(path):
    config = nodepool_config.loadConfig(path)
    return {
        'webapp': plain(config.webapp),
        'elements-dir': config.elements_dir,
        'images-dir': config.images_dir,
        'build-log-dir': config.build_log_dir,
        'build-log-retention': config.build_log_retention,
        'max-hold-age': plain(config.max_hold_age),
        'zookeeper': config.zookeeper_servers,
        'zookeeper-timeout': config.zookeeper_timeout,
        'labels': images(config.labels),
        'diskimages': images(config.diskimages),
        'providers': {name: provider(item) for name, item in config.providers.items()},
        'tenant-resource-limits': plain(config.tenant_resource_limits),
    }


if __name__ == '__main__':
    json.dump({path: everything(path) for path in sys.argv[1:]}, sys.stdout, indent=1)
