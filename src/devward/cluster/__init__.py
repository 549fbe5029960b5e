"""What a Kubernetes node, its container runtime and its processes say about who uses an accelerator."""
