"""The kubelet device plugin: what devward cannot vouch for is not offered to Pods, and not given to them."""
