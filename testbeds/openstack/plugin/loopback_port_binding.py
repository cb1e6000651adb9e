"""Lets Neutron bind ports where no agent plugs them in.

The servers of the test cloud have no hypervisor and no switch. Nova still waits for each port to be bound, so this
driver of Neutron's ML2 plugin accepts the first segment that it is offered, on any host, and calls the port active.
"""

from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api


class LoopbackPortBinding(api.MechanismDriver):
    connectivity = portbindings.CONNECTIVITY_L2

    def initialize(self):
        """Nothing has to be prepared."""

    def bind_port(self, context):
        segment = next(iter(context.segments_to_bind), None)
        if segment is not None:
            details = {portbindings.CAP_PORT_FILTER: True}
            context.set_binding(
                segment[api.ID], portbindings.VIF_TYPE_OVS, details, status=constants.PORT_STATUS_ACTIVE
            )
