"""Runs a daemon of Zuul as it is: run_daemon.py scheduler|merger|executor|web OPTION...

The one difference: the executor's log streamer listens on loopback, where Zuul knows only all addresses.
"""

import importlib
import sys

from zuul.lib import log_streamer

name = sys.argv.pop(1)
sys.argv[0] = f"zuul-{name}"


class LogStreamer(log_streamer.LogStreamer):
    def __init__(self, host, port, jobdir_root):
        super().__init__("127.0.0.1", port, jobdir_root)


log_streamer.LogStreamer = LogStreamer

sys.exit(importlib.import_module(f"zuul.cmd.{name}").main())
