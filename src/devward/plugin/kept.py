"""Which devices of a resource the kubelet has on record. Reads a file: use a worker thread."""

import os

from devward.cluster.checkpoint import Defect
from devward.cluster.checkpoint_file import CheckpointReader


def kept_ids(directory: str, resource: str) -> tuple[str, ...] | None:
    """Return the ids in the checkpoint's RegisteredDevices; None where the checkpoint cannot be read, so that they are not known.

    Without a checkpoint there are none: the kubelet writes it when the first plugin tells it of devices (`writeCheckpoint` in
    pkg/kubelet/cm/devicemanager/manager.go of kubernetes/kubernetes).
    """
    # Once: a file that is being replaced is read at the next attempt. The directory may be a link, as for the sockets.
    reading = CheckpointReader(pause=lambda: None).read(os.path.realpath(directory))
    if reading.checkpoint is None:
        return () if reading.defects == {Defect.MISSING} else None
    return dict(reading.checkpoint.registered).get(resource, ())
