"""Python imports this before a program that has its directory in PYTHONPATH.

The simulated cloud inside Python Nodepool has room for 20 servers; a load needs more. Pools have limits of their own.
"""

from nodepool.driver.fake.adapter import FakeOpenStackCloud

FakeOpenStackCloud._get_quota = staticmethod(lambda: (-1, -1, -1))
