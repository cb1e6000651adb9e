"""Submits one job with Python's gear, waits for its end and prints what it heard, as JSON.

Arguments: port, function, payload, and for TLS the files of the CA, the certificate and the key.
"""

import json
import sys
import threading
import uuid

import gear

port, function, payload = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ca, cert, key = sys.argv[4:7] if len(sys.argv) > 6 else (None, None, None)
ended = threading.Event()


class Client(gear.Client):
    def handleWorkComplete(self, packet):
        job = super().handleWorkComplete(packet)
        ended.set()
        return job

    def handleWorkFail(self, packet):
        job = super().handleWorkFail(packet)
        ended.set()
        return job

    def handleWorkException(self, packet):
        job = super().handleWorkException(packet)
        ended.set()
        return job

    def handleDisconnect(self, job):
        super().handleDisconnect(job)
        ended.set()


client = Client("gear client")
client.addServer("127.0.0.1", port, ca and key, cert, ca)
client.waitForServer(timeout=60)
job = gear.Job(function.encode(), payload.encode(), unique=uuid.uuid4().hex.encode())
try:
    client.submitJob(job, timeout=60)
except gear.GearmanError as error:
    print(json.dumps({"refused": str(error)}))
    sys.exit(0)
ended.wait(60)
print(json.dumps({
    "complete": job.complete,
    "failure": job.failure,
    "data": [part.decode() for part in job.data],
    "exception": job.exception.decode() if job.exception else None,
    "numerator": int(job.numerator) if job.numerator else None,
    "denominator": int(job.denominator) if job.denominator else None,
    "warning": job.warning,
}))
