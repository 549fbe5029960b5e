"""devwardctl and NPUs: lists, explanations, what changes, on hosts with none, with one and with thousands."""

import json
import signal
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bus_harness import CARD, MANAGER, VNPU, Bus, World, run, world
from test_ctl_service import ctl, end, read_until, start, with_world

from devward import names
from devward.model import Finding
from devward.npu.views import CardHealth, Management, Protection, Use, VnpuView
from devward.reasons import Reason
from sim.npu_fleet import CARDS, VNPUS_PER_CARD, fleet


def with_one(made: World) -> None:
    made.backend.card_views, made.backend.vnpu_views = (CARD,), (VNPU,)
    made.service.publish()


def test_a_host_without_npus(bus: Bus) -> None:
    async def work(_: World) -> None:
        for what, said in (("cards", "No Ascend NPUs.\n"), ("vnpus", "No vNPUs.\n")):
            ended = await ctl(bus.address, what)
            assert (ended.status, ended.output, ended.errors) == (0, said, "")
            assert (await ctl(bus.address, what, "--json")).json == []
        assert "NPU" not in (await ctl(bus.address, "status")).output

    with_world(bus, work)


def test_npus_that_cannot_be_listed_are_not_said_to_be_none(bus: Bus) -> None:
    async def work(made: World) -> None:
        made.backend.finding_list = [Finding(Reason.NPU_LIBRARY_UNUSABLE, "libdcmi.so", "The library is not root's.", 5)]
        for what in ("cards", "vnpus"):
            ended = await ctl(bus.address, what)
            assert ended.status == 0
            assert "But devward may not see all that there is:" in ended.output
            assert "npu-library-unusable" in ended.output

    with_world(bus, work)


def test_lists_and_status(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_one(made)
        shown = (await ctl(bus.address, "cards", COLUMNS="80")).output.splitlines()
        assert shown == [
            "NPU   CHIP          HEALTH   CORES USED  VNPUS  NODE",
            "p007  Ascend 910B3  healthy  5 of 20     1      /dev/davinci7",
        ]
        shown = (await ctl(bus.address, "vnpus", "--utc")).output.splitlines()
        assert shown[1].split() == [
            *("v0212", "p007", "vir05_1c_16g", "idle", "unknown", "5", "2023-11-14T22:13:20.000Z", "/dev/vdavinci212", VNPU.identity)
        ]
        assert "1 Ascend NPU (1 healthy), 1 vNPU (0 in use).\n" in (await ctl(bus.address, "status")).output
        (card,) = (await ctl(bus.address, "cards", "--json")).json  # type: ignore[misc]
        assert (card["name"], card["phy_id"], card["claimed_cores"], card["die_id"]) == ("p007", 7, -1.0, CARD.die_id)
        (vnpu,) = (await ctl(bus.address, "vnpus", "--json")).json  # type: ignore[misc]
        assert (vnpu["name"], vnpu["id"], vnpu["card"], vnpu["in_use"]) == ("v0212", 212, names.card_path("p007"), "idle")
        document = (await ctl(bus.address, "status", "--json")).json
        assert isinstance(document, dict)
        assert (document["cards"], document["vnpus"]) == ([card], [vnpu])
        made.backend.card_views = (replace(CARD, health=CardHealth.UNHEALTHY, reason=Reason.PROBE_FAILED, text="It is\x1b hot."),)
        made.service.publish()
        shown_status = (await ctl(bus.address, "status")).output
        assert "  - p007 (/dev/davinci7) is not vouched for: It is\\x1b hot. (probe-failed)\n" in shown_status

    with_world(bus, work)


def test_explain_and_completion(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_one(made)
        ended = await ctl(bus.address, "explain", "/dev/davinci7")
        assert ended.status == 0
        assert "It has one vNPU: v0212; 5 of its 20 AI cores are taken." in ended.output
        document = (await ctl(bus.address, "explain", "212", "--json")).json
        assert isinstance(document, dict)
        assert (document["what"], document["kind"], document["evidence"]["name"]) == ("v0212", "vnpu", "v0212")
        ended = await ctl(bus.address, "explain", "8")
        assert ended.status == 1
        assert "p007" in ended.errors
        assert {"p007", "v0212", "kvm"} <= set((await ctl(bus.address, "complete", "explain")).output.split())
        assert (await ctl(bus.address, "complete", "devices")).output == "kvm\n", "of check, which takes no NPU"

    with_world(bus, work)


POD = "11111111-2222-4333-8444-555555555555"
OWNERSHIP = {
    "asked": True,
    "looked_usec": 1_700_000_000_000_000,
    "listed_usec": 1_700_000_000_000_000,
    "sources": [{"source": "pods", "age": 2.0, "read": True}],
    "blocked": [{"reason": "annotation-malformed", "who": POD, "since_usec": 5, "text": f"Pod {POD}: The annotation\x1b cannot be read."}],
    "managed": "managed",
    "protection": "protected",
    "protection_if_clean": "protected",
    "claims": [
        {
            "uid": POD,
            "standing": "protected",
            "reason": "running",
            "text": "A container of the Pod is running.",
            "since_usec": 1_700_000_000_000_000,
            "sources": ["api", "host"],
            "pod": "team-a/train-model-0",
        }
    ],
}


def with_owners(made: World) -> None:
    """The NPU is a Pod's, and who owns the rest is not known because of that Pod's annotation."""
    card = replace(CARD, managed=Management.MANAGED, protection=Protection.PROTECTED, claims=(POD,), claimed_cores=5.0)
    made.backend.card_views, made.backend.vnpu_views = (card,), (VNPU,)
    made.backend.view = replace(
        MANAGER,
        blocked_reasons=(f"annotation-malformed {POD}",),
        blocked_since_usec=1_700_000_000_000_000,
        last_cycle_usec=1_700_000_060_000_000,
        next_cycle_usec=1_700_000_120_000_000,
        certificate_expires_usec=1_700_000_030_000_000,
    )
    made.backend.explained = {"card": {}, "ownership": OWNERSHIP, "host": {"finding": "held", "descriptors": "held"}}
    made.service.publish()


def test_who_owns_an_npu(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_owners(made)
        for what in ("p007", "v0212"):
            told = (await ctl(bus.address, "explain", what)).output
            assert f"The Pod team-a/train-model-0 ({POD}) has the NPU, or may have it, for " in told
            assert f"Pod {POD}: The annotation\\x1b cannot be read. (annotation-malformed)\n" in told
            assert "kubectl -n team-a describe pod train-model-0\n" in told
            document = (await ctl(bus.address, "explain", what, "--json")).json
            assert isinstance(document, dict)
            assert document["evidence"]["ownership"] == OWNERSHIP
        assert "This host shows that somebody has it (the descriptors of the processes: in use).\n" in told
        shown = (await ctl(bus.address, "cards", COLUMNS="80")).output.splitlines()
        assert shown == [
            "NPU   CHIP          HEALTH   CORES USED  VNPUS  PROTECTION  CLAIMS  MANAGED",
            "p007  Ascend 910B3  healthy  5 of 20     1      protected   1       managed",
        ]
        (card,) = (await ctl(bus.address, "cards", "--json")).json  # type: ignore[misc]
        assert (card["managed"], card["protection"], card["claims"], card["claimed_cores"]) == ("managed", "protected", [POD], 5.0)

    with_world(bus, work)


def test_whether_owners_are_known_is_in_the_status(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_owners(made)
        told = (await ctl(bus.address, "status", "--utc")).output
        assert (
            "Who owns the vNPUs is not known, since 2023-11-14T22:13:20.000Z: each counts as used."
            " It was looked at at 2023-11-14T22:14:20.000Z, and was to be again at 2023-11-14T22:15:20.000Z.\n"
            f"  - Pod {POD}: The annotation\\x1b cannot be read. (annotation-malformed)\n"
            "  The certificate with which the API server is asked expired at 2023-11-14T22:13:50.000Z.\n"
            "  What to do: devwardctl explain annotation-malformed, devwardctl explain p007, man devwardd\n"
        ) in told
        document = (await ctl(bus.address, "status", "--json")).json
        assert isinstance(document, dict)
        assert document["ownership"] == {
            "known": False,
            "reasons": [{"reason": "annotation-malformed", "who": POD}],
            "since_usec": 1_700_000_000_000_000,
            "looked_usec": 1_700_000_060_000_000,
            "next_usec": 1_700_000_120_000_000,
            "certificate_expires_usec": 1_700_000_030_000_000,
        }
        made.backend.explained = {"ownership": "odd"}
        assert f"  - annotation-malformed, because of the Pod {POD}\n" in (await ctl(bus.address, "status")).output
        made.backend.error = RuntimeError("by the test")
        ended = await ctl(bus.address, "status")
        assert ended.status == 0, "the status stands without the sentences"
        assert f"  - annotation-malformed, because of the Pod {POD}\n" in ended.output

    with_world(bus, work)


def test_the_codes_of_what_is_not_known_are_explained_without_the_daemon() -> None:
    async def main() -> None:
        ended = await ctl("unix:path=/nonexistent", "explain", "api-forbidden")
        assert ended.status == 0
        assert "It is about the whole host; vNPUs there begin to wait anew because of it.\n" in ended.output
        words = (await ctl("unix:path=/nonexistent", "complete", "explain")).output.split()
        assert {"api-forbidden", "annotation-malformed", "several-kubelets", Reason.NPU_WINDOW} <= set(words)
        assert len(set(words)) == len(words)

    run(main)


def test_pods_have_no_names_in_the_support_bundle(bus: Bus, tmp_path: Path) -> None:
    async def work(made: World) -> None:
        with_owners(made)
        made.backend.described = {"ownership": OWNERSHIP, "cards": [{"name": "p007", **OWNERSHIP}]}
        await ctl(bus.address, "report", str(tmp_path / "r.tar.gz"))
        texts = {}
        with tarfile.open(tmp_path / "r.tar.gz") as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                assert file is not None
                texts[member.name.rpartition("/")[2]] = file.read().decode()
        for text in texts.values():
            assert POD not in text
            assert "train-model-0" not in text
        assert json.loads(texts["status.json"])["cards"][0]["claims"] == ["[pod 1]"]
        (claim,) = json.loads(texts["describe.json"])["cards"][0]["claims"]
        assert (claim["uid"], claim["pod"], claim["reason"]) == ("[pod 1]", "[pod 1]", "running")

    with_world(bus, work)


def test_monitor_tells_of_owners(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with_one(made)
            process = await start(bus.address, "monitor")
            await read_until(process, "there are 1 Ascend NPU")
            with_owners(made)
            shown = await read_until(process, f"Pods that claim the NPU p007 (/dev/davinci7): {POD}")
            if "it is not known who owns" not in shown:
                await read_until(process, f"it is not known who owns the vNPUs: annotation-malformed {POD}")
            made.backend.view = MANAGER
            made.service.publish()
            await read_until(process, "it is known again who owns the vNPUs")
            process.send_signal(signal.SIGINT)
            assert (await end(process)).status == 0

    run(main)


def test_completion_gives_what_came_though_a_list_did_not(bus: Bus) -> None:
    async def work(made: World) -> None:
        with_one(made)

        def broken() -> Sequence[VnpuView]:
            raise RuntimeError("by the test")

        made.backend.vnpus = broken  # type: ignore[method-assign]
        ended = await ctl(bus.address, "complete", "explain")
        assert (ended.status, ended.errors) == (0, "")
        words = ended.output.split()
        assert {"p007", "kvm", Reason.NPU_WINDOW} <= set(words)
        assert "v0212" not in words, "the name came with the objects and all their properties, for which nobody waits"

    with_world(bus, work)


def test_the_support_bundle_has_them(bus: Bus, tmp_path: Path) -> None:
    async def work(made: World) -> None:
        made.backend.card_views = (replace(CARD, reason=Reason.PROBE_FAILED, text="password=hunter2hunter2"),)
        made.backend.vnpu_views = (VNPU,)
        made.service.publish()
        await ctl(bus.address, "report", str(tmp_path / "r.tar.gz"))
        with tarfile.open(tmp_path / "r.tar.gz") as archive:
            (member,) = [one for one in archive.getmembers() if one.name.endswith("/status.json")]
            file = archive.extractfile(member)
            assert file is not None
            document = json.loads(file.read())
        assert document["vnpus"][0]["identity"] == VNPU.identity
        assert document["cards"][0]["die_id"] == CARD.die_id
        assert "hunter2" not in json.dumps(document)

    with_world(bus, work)


def test_monitor(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with_one(made)
            process = await start(bus.address, "monitor")
            shown = await read_until(process, "there are 1 Ascend NPU (1 healthy), 1 vNPU (0 in use)")
            assert "the NPU p007 (/dev/davinci7) is healthy" in shown
            assert "v0212" not in shown
            made.backend.vnpu_views = (replace(VNPU, use=Use.IN_USE),)
            made.service.publish()
            await read_until(process, "the vNPU v0212: it is in use")
            made.backend.vnpu_views = (replace(VNPU, identity="another"),)
            made.service.publish()
            await read_until(process, "the vNPU v0212 is gone")
            await read_until(process, "the vNPU v0212 is on p007, made with vir05_1c_16g; it is idle")
            made.backend.card_views = (replace(CARD, health=CardHealth.UNHEALTHY),)
            made.service.publish()
            await read_until(process, "the NPU p007 (/dev/davinci7) is not healthy")
            made.backend.card_views, made.backend.vnpu_views = (), ()
            made.service.publish()
            await read_until(process, "the NPU p007 is gone")
            process.send_signal(signal.SIGINT)
            assert (await end(process)).status == 0

    run(main)


def test_as_many_as_there_can_be(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.backend.card_views, made.backend.vnpu_views = fleet(CARD, VNPU)
            made.service.publish()
            number = CARDS * VNPUS_PER_CARD
            ended = await ctl(bus.address, "status")
            assert f"{CARDS} Ascend NPUs ({CARDS} healthy), {number} vNPUs (0 in use)." in ended.output
            assert len((await ctl(bus.address, "vnpus")).output.splitlines()) == number + 1
            assert f"It has {VNPUS_PER_CARD} vNPUs: v2116, " in (await ctl(bus.address, "explain", "p063")).output
            wanted = {card.name for card in made.backend.card_views} | {vnpu.name for vnpu in made.backend.vnpu_views}
            assert wanted <= set((await ctl(bus.address, "complete", "explain")).output.split())

    run(main, debug=False)
