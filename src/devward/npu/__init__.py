"""Ascend NPUs and their vNPUs: the broker that speaks with the vendor's library, and what is known through it."""
