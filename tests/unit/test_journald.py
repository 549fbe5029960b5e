"""The audit trail in a real systemd-journald, read back by journalctl with the catalog: what an SRE sees.

The daemon runs in a mount namespace of its own, where /run and the catalog's directories are empty file systems.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devward import names

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: runs systemd-journald in a mount namespace of its own")

ROOT = Path(__file__).parents[2]
#: journald must neither read the host's kernel log nor switch kernel auditing on or off ("Audit=" leaves it as it is).
SETUP = """
set -eu
mount -t tmpfs none /run
mount -t tmpfs none /usr/lib/systemd/catalog
mount -t tmpfs none /var/lib/systemd/catalog
cp "$ROOT/systemd/devward.catalog" /usr/lib/systemd/catalog/
journalctl --update-catalog
mkdir -p /run/systemd/journald.conf.d /run/log/journal
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\nAudit=\\nForwardToWall=no\\n' > /run/systemd/journald.conf.d/test.conf
/usr/lib/systemd/systemd-journald &
journald=$!
trap 'kill $journald; wait $journald || :' EXIT
for try in $(seq 600); do [ -S /run/systemd/journal/socket ] && break; sleep 0.1; done
"$PYTHON" -c "$WRITER" "$ROOT/src"
for try in $(seq 600); do journalctl -q -D /run/log/journal -t devwardd -o cat | grep -qx 'that was all' && break; sleep 0.1; done
journalctl -q -D /run/log/journal -t devwardd --all -o json
echo ---
journalctl -q -D /run/log/journal -t devwardd -x -o short DEVWARD_OUTCOME=success
"""
WRITER = r"""
import os, sys, time
sys.path.insert(0, sys.argv[1])
from devward.audit import Audit
from devward.journal import Journal, Priority
from devward.model import Caller
journal = Journal("/run/systemd/journal/socket", stderr=sys.stderr)
audit = Audit(journal, version="1.2.3", new_id=lambda: "id-1", monotonic=time.monotonic)
caller = Caller(":1.5", 0, os.getpid())
hostile = "x\nMESSAGE_ID=0\nDEVWARD_OUTCOME=success"
with audit.begin("spec-repair", hostile, cdi_file="/etc/cdi/x.json", cause="stale", caller=caller, device=hostile) as record:
    assert record.taken
    record.succeed("wrote it")
assert journal.send("big", {"DEVWARD_EVIDENCE": "line\n" * 500_000}, priority=Priority.INFO)
assert journal.send("that was all", {}, priority=Priority.INFO)
assert journal.dropped == 0
"""


def test_an_sre_finds_the_whole_story() -> None:
    environment = {**os.environ, "ROOT": str(ROOT), "PYTHON": sys.executable, "WRITER": WRITER, "SYSTEMD_COLORS": "0"}
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SETUP]
    run = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    as_json, _, explained = run.stdout.partition("---\n")
    intent, outcome, big, last = [json.loads(line) for line in as_json.splitlines()]
    for one in (intent, outcome):
        assert one["MESSAGE_ID"] == names.MESSAGE_IDS["spec-repair"]
        assert one[names.FIELD_REQUEST_ID] == "id-1"
        assert one[names.FIELD_DEVICE] == r"x\x0aMESSAGE_ID=0\x0aDEVWARD_OUTCOME=success"
        assert one["OBJECT_UID"] == "0", "journald vouches for the caller that we name"
        assert one["OBJECT_COMM"].startswith("python")
    assert intent["MESSAGE"] == r"x\x0aMESSAGE_ID=0\x0aDEVWARD_OUTCOME=success"
    assert (intent[names.FIELD_OUTCOME], outcome[names.FIELD_OUTCOME]) == ("intent", "success")
    assert big[names.FIELD_EVIDENCE] == "line\n" * 500_000
    assert last["MESSAGE"] == "that was all"
    assert "Subject: CDI file /etc/cdi/x.json is written anew: success" in explained
    assert "was not what the devices justify (stale)" in explained
