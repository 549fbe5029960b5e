"""packaging/demo, as a newcomer runs it: it shows what it says that it shows, and leaves nothing behind.

The demo itself ends with a failure where something that it shows does not happen; here its words are held against that.
"""

import contextlib
import os
import re
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE = 600.0

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace and device nodes")]


def running(mark: str) -> list[str]:
    """Return the processes that have a word in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


@pytest.fixture(scope="module")
def shown() -> dict[int, str]:
    """What the demo printed, by its chapters; 0 is before the first."""
    mark = f"DEVWARD_DEMO_TEST={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    environment = {key: text for key, text in os.environ.items() if key != "COLUMNS"}
    with tempfile.TemporaryDirectory() as scratch:
        process = subprocess.Popen(
            [str(REPOSITORY / "packaging/demo")],
            env={**environment, "TMPDIR": scratch, name: value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, output
        assert os.listdir(scratch) == []
    assert running(mark) == []
    assert not any(scratch in line for line in Path("/proc/self/mountinfo").read_text().splitlines())
    parts = re.split(r"^(\d+)\. ", output, flags=re.M)
    return {0: parts[0], **{int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}}


def test_it_says_which_times_it_shortens(shown: dict[int, str]) -> None:
    assert re.search(r"\[reclaim\] grace +\d+ s instead of 600 s\n", shown[6])
    assert re.search(r"\[reclaim\] interval +1 s instead of 60 s\n", shown[6])


def test_a_reclaim_is_shown_from_the_first_attempt_to_the_record(shown: dict[int, str]) -> None:
    story = shown[7]
    left = re.findall(r"attempt \d+: (v\d+) is made for it, the container cannot start", story)
    assert len(left) == 2
    assert "attempt 3: the NPU is full" in story
    assert "The verdict is confirming" in story
    for name in left:
        vdev = int(name[1:])
        assert re.search(rf"{name} was destroyed \d+\.\d s after it was made", story)
        again = rf"npu-smi set -t create-vnpu -i 1 -c 0 -f vir05_1c_8g -v {vdev}"
        assert re.search(rf"vnpu-reclaim +success +vNPU {vdev} .* was destroyed; to make it again: {again}", story)
    assert re.search(rf'DEVWARD_EVIDENCE=.*"recreate": "{again}"', story)


@pytest.mark.parametrize(
    ("whose", "verdict", "reason"),
    [
        ("of an NPU on which another Pod runs", "protected", "running"),
        ("of an administrator, who pins it", "pinned", "pinned"),
        ("of a container of plain docker", "owned", "held-on-host"),
        ("of a third NPU, which HAMi does not hand out", "unmanaged", "card-not-registered"),
    ],
)
def test_what_anybody_owns_stays_with_its_reason(shown: dict[int, str], whose: str, verdict: str, reason: str) -> None:
    (name,) = re.findall(rf"^    (v\d+)  {whose}", shown[7], re.M)
    assert re.search(rf"^{name} .* idle +{verdict} +{reason} ", shown[8], re.M)
    explained = re.search(rf"explain {name} \| grep verdict\n +- The verdict is {verdict}: .*\({reason}\)\n", shown[8])
    assert explained is not None
    assert f"{name} was destroyed" not in shown[7]


def test_nothing_happens_while_the_api_server_is_away(shown: dict[int, str]) -> None:
    story = shown[9]
    (name,) = re.findall(r"attempt \d+: (v\d+) is made", story)
    assert re.search(rf"^{name} .* confirming ", story, re.M)
    assert "Reclaiming is blocked: no vNPU is destroyed" in story
    assert re.search(rf"\d+ s later, when it would be gone otherwise, {name} is there: unknown api-connection-refused", story)
    assert "vnpus destroyed: 2\n" in story


def test_the_rest_is_shown_too(shown: dict[int, str]) -> None:
    assert len(re.findall(r"right again after +\d+\.\d ms", shown[2])) == 5
    assert "PROTECTION" in shown[6]
    assert "npu-broker-silent" in shown[10]
    assert "Nothing was left behind." in shown[11]
