"""Which devices of a resource the kubelet has on record. Reads a file: use a worker thread."""

from devward.cluster.checkpoint_file import CheckpointReader


def kept_ids(directory: str, resource: str) -> tuple[str, ...]:
    """Return the ids in the checkpoint's RegisteredDevices; none where the checkpoint cannot be read, or does not name the resource."""
    # Once: a file that is being replaced is read at the next registration.
    checkpoint = CheckpointReader(pause=lambda: None).read(directory).checkpoint
    return dict(checkpoint.registered).get(resource, ()) if checkpoint is not None else ()
