"""Runs a daemon of Zuul as it is: run_daemon.py scheduler|merger|executor|web OPTION...

The one difference: the executor's log streamer listens on loopback, where Zuul knows only all addresses.
"""

import importlib
import sys

from zuul.lib import log_streamer

name = sys.argv.pop(1)
sys.argv[0] = f"zuul-{name}"

Server = log_streamer.LogStreamerServer
log_streamer.LogStreamerServer = lambda address, *rest, **options: Server(
    ("127.0.0.1", address[1]), *rest, **options
)

sys.exit(importlib.import_module(f"zuul.cmd.{name}").main())
