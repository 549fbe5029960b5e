"""Asks the API server as devwardd does, in whatever sandbox it was started in, and prints what came of it; runs inside the container.

    nspawn_look.py KUBECONFIG [NODE]

NODE, which else stands in the client certificate, says besides that a program which the kubeconfig names may be started. What is printed is
JSON: for each request the fault, empty if there was none, and its text.
"""

import asyncio
import json
import sys
import time
from typing import Any

from devward.cluster.api import Api, ApiSettings


def main() -> None:
    """Look once."""
    kubeconfig, *node = sys.argv[1:]
    settings = ApiSettings(kubeconfig, allow_exec=bool(node))
    api = Api(settings, monotonic=time.monotonic, realtime_usec=lambda: time.time_ns() // 1000)
    look = asyncio.run(api.look(*node))
    api.close()
    print(json.dumps({name: told(getattr(look, name)) for name in ("node", "lease", "pods")}))


def told(result: Any) -> list[str]:
    return [getattr(result, "fault", ""), getattr(result, "text", "")]


main()
