"""Asks the API server as devwardd does, in whatever sandbox it was started in, and prints what came of it; runs inside the container.

Its argument is the kubeconfig. What is printed is JSON: for each request the fault, empty if there was none, and its text.
"""

import asyncio
import json
import sys
import time
from typing import Any

from devward.cluster.api import Api, ApiSettings


def main() -> None:
    """Look once."""
    api = Api(ApiSettings(sys.argv[1]), monotonic=time.monotonic, realtime_usec=lambda: time.time_ns() // 1000)
    look = asyncio.run(api.look())
    api.close()
    print(json.dumps({name: told(getattr(look, name)) for name in ("node", "lease", "pods")}))


def told(result: Any) -> list[str]:
    return [getattr(result, "fault", ""), getattr(result, "text", "")]


main()
