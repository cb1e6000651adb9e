"""Runs tests of Nodepool against other programs.

    run.py [--launcher PROGRAM] [--builder PROGRAM] [TEST...]

A test is named from `nodepool.tests.unit` on, as in `test_launcher.TestLauncher.test_node`. NODEPOOL_ZK_HOST, _CA, _CERT
and _KEY say where ZooKeeper is. Prints a line for each test and ends with 1 if one failed.

Without a TEST, reads names of tests from standard input, a line each, runs each in a child process that has everything
imported already, and prints a line of JSON with its exit code and its output.
"""

import argparse
import ctypes
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import unittest

import blackbox

PACKAGE = "nodepool.tests.unit."
PR_SET_PDEATHSIG = 1


class Lines(unittest.TestResult):
    """A line when a test begins and one when it ends."""

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def say(self, word, test, detail=""):
        name = test.id().removeprefix("nodepool.tests.unit.")
        print("%s %s (%.1f s)%s" % (word, name, time.monotonic() - self.began, detail), flush=True)

    def addSuccess(self, test, details=None):
        super().addSuccess(test)
        self.say("ok", test)

    def addSkip(self, test, reason=None, details=None):
        super().addSkip(test, reason or str(details))
        self.say("skipped", test, ": %s" % (reason or details))

    def addError(self, test, err=None, details=None):
        self.failed(super().addError, test, err, details)

    def addFailure(self, test, err=None, details=None):
        self.failed(super().addFailure, test, err, details)

    def failed(self, count, test, err, details):
        count(test, err or sys.exc_info())
        text = details["traceback"].as_text() if details else "%r" % (err,)
        self.say("FAILED", test, "\n" + text)


def run(tests):
    names = [PACKAGE + test for test in tests]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = Lines()
    suite.run(result)
    print("%s run, %s failed" % (result.testsRun, len(result.errors) + len(result.failures)))
    return 0 if result.wasSuccessful() else 1


def run_in_child(test):
    """Returns the exit code of a child that runs the test, and its output."""
    importlib.import_module(PACKAGE + test.split(".")[0])
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            # Ends with its parent, however that comes about.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            code = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                random.seed()
                code = run([test])
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return {"code": os.waitstatus_to_exitcode(status), "output": text}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--launcher")
    parser.add_argument("--builder")
    parser.add_argument("tests", nargs="*")
    args = parser.parse_args()
    blackbox.install(args.launcher, args.builder)
    os.chdir(blackbox.SITE_PACKAGES)
    os.environ["OS_LOG_CAPTURE"] = "1"
    if args.tests:
        return run(args.tests)
    for line in sys.stdin:
        print(json.dumps(run_in_child(line.strip())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
