"""A back end of Cinder whose volumes are records and nothing else: servers that do not run read nothing."""

from cinder.volume import driver


class LoopbackVolumes(driver.VolumeDriver):
    VERSION = "1"

    def check_for_setup_error(self):
        """Nothing can be wrong."""

    def create_volume(self, volume):
        """The record is all that there is."""

    def delete_volume(self, volume):
        """The record is all that there was."""

    def clone_image(self, context, volume, image_location, image_meta, image_service):
        """Says that the content of the image is in the volume now."""
        return {}, True

    def ensure_export(self, context, volume):
        """Nobody connects to it."""

    def create_export(self, context, volume, connector):
        """Nobody connects to it."""

    def remove_export(self, context, volume):
        """Nobody is connected to it."""

    def initialize_connection(self, volume, connector):
        return {"driver_volume_type": "loopback", "data": {"access_mode": "rw"}}

    def terminate_connection(self, volume, connector, **kwargs):
        """Nobody is connected to it."""

    def _update_volume_stats(self):
        self._stats = {
            "volume_backend_name": "loopback",
            "vendor_name": "nobody",
            "driver_version": self.VERSION,
            "storage_protocol": "loopback",
            "total_capacity_gb": 1_000_000,
            "free_capacity_gb": 1_000_000,
        }
