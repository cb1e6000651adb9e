"""Runs tests of Nodepool against other programs.

    run.py [--launcher PROGRAM] [--builder PROGRAM] TEST...

A test is named from `nodepool.tests.unit` on, as in `test_launcher.TestLauncher.test_node`. NODEPOOL_ZK_HOST, _CA, _CERT
and _KEY say where ZooKeeper is. Prints a line for each test and ends with 1 if one failed.
"""

import argparse
import os
import sys
import time
import unittest

import blackbox


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--launcher")
    parser.add_argument("--builder")
    parser.add_argument("tests", nargs="+")
    args = parser.parse_args()
    blackbox.install(args.launcher, args.builder)
    os.chdir(blackbox.SITE_PACKAGES)
    os.environ["OS_LOG_CAPTURE"] = "1"
    names = ["nodepool.tests.unit." + test for test in args.tests]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = Lines()
    suite.run(result)
    print("%s run, %s failed" % (result.testsRun, len(result.errors) + len(result.failures)))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
