"""A worker of Python's gear. Prints "ready", then does jobs until it is killed.

Arguments: port, and for TLS the files of the CA, the certificate and the key. Functions: `reverse` answers with its
payload reversed after some progress and data; `fail` fails; `raise` ends with an exception.
"""

import sys

import gear

port = int(sys.argv[1])
ca, cert, key = sys.argv[2:5] if len(sys.argv) > 4 else (None, None, None)

worker = gear.Worker("gear worker")
worker.addServer("127.0.0.1", port, ca and key, cert, ca)
worker.waitForServer(timeout=60)
for function in ("reverse", "fail", "raise"):
    worker.registerFunction(function)
print("ready", flush=True)
while True:
    job = worker.getJob()
    if job.name == "reverse":
        job.sendWorkStatus(1, 2)
        job.sendWorkData(b"some ")
        job.sendWorkComplete(job.arguments[::-1])
    elif job.name == "fail":
        job.sendWorkFail()
    else:
        job.sendWorkException(b"broken")
