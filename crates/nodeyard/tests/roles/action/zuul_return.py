"""In the place of Zuul's own: keeps what a job returns in the file $RETURNED."""

import json
import os

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        with open(os.environ["RETURNED"], "w") as file:
            json.dump(self._task.args, file)
        return {"changed": False}
