"""NPUs and vNPUs on the bus: their objects and lists, what is known of a vNPU, and thousands of them."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace

import pytest
from bus_harness import CARD, VNPU, Bus, Client, World, as_nobody, command, needs_root, pretend_uid, run, until, world
from dbus_next import Message

from devward import names
from devward.bus import card, contract, publisher, transport, vnpu, wire
from devward.bus.publisher import Publisher
from devward.npu.views import UNKNOWN_NUMBER, CardHealth, Management, Protection, Use, Verdict
from devward.reasons import Reason
from sim.npu_fleet import CARDS, VNPUS_PER_CARD, fleet
from sim.polkit_stub import Mode

CONTRACT = contract.load()
CARD_PATH = names.card_path("p007")
VNPU_PATH = names.vnpu_path("v0212")
TO = (names.BUS_NAME, names.ROOT_PATH, names.MANAGER_INTERFACE)
needs_busctl = pytest.mark.skipif(shutil.which("busctl") is None, reason="needs busctl, which is not installed")


async def get_all(client: Client, path: str, interface: str) -> dict[str, object]:
    (values,) = await client.ok("GetAll", "s", [interface], interface=names.PROPERTIES_INTERFACE, path=path)
    return {name: value.value for name, value in values.items()}  # type: ignore[attr-defined]


def with_one(made: World) -> None:
    made.backend.card_views, made.backend.vnpu_views = (CARD,), (VNPU,)
    made.service.publish()


def test_properties_are_the_views(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with_one(made)
            client = await made.client()
            assert await get_all(client, CARD_PATH, names.CARD_INTERFACE) == {
                "PhyId": 7,
                "LogicId": 3,
                "CardId": 3,
                "DeviceId": 1,
                "DieId": CARD.die_id,
                "Chip": "Ascend 910B3",
                "Node": "/dev/davinci7",
                "Number": "236:7",
                "Health": "healthy",
                "Managed": "unknown",
                "Protection": "not-evaluated",
                "Claims": [],
                "UsedCores": 5.0,
                "ClaimedCores": -1.0,
                "TotalCores": 20.0,
                "Reason": "",
                "Text": "",
            }
            assert await get_all(client, VNPU_PATH, names.VNPU_INTERFACE) == {
                "Id": 212,
                "Identity": VNPU.identity,
                "Card": CARD_PATH,
                "Template": "vir05_1c_16g",
                "Vfid": 1,
                "Cores": 5.0,
                "Node": "/dev/vdavinci212",
                "InUse": "idle",
                "Verdict": "unknown",
                "VerdictReason": "",
                "Reason": "",
                "Text": "",
                "FirstSeenUSec": VNPU.first_seen_usec,
                "GraceStartUSec": 0,
                "Confirmations": 0,
                "EligibleAtUSec": 0,
            }
            (objects,) = await client.ok("GetManagedObjects", interface=names.OBJECT_MANAGER_INTERFACE)
            for path, interface in ((CARD_PATH, names.CARD_INTERFACE), (VNPU_PATH, names.VNPU_INTERFACE)):
                managed = objects[path][interface]  # type: ignore[index,call-overload]
                assert {name: value.value for name, value in managed.items()} == await get_all(client, path, interface)
                for name, prop in CONTRACT.interfaces[interface].properties.items():
                    assert managed[name].signature == prop.signature

    run(main)


def test_every_documented_value_can_be_published_and_read(bus: Bus) -> None:
    reached: dict[str, set[object]] = {}

    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()

            async def read(cards: Sequence[object], vnpus: Sequence[object]) -> None:
                made.backend.card_views, made.backend.vnpu_views = cards, vnpus  # type: ignore[assignment]
                made.service.publish()
                for path, interface in ((CARD_PATH, names.CARD_INTERFACE), (VNPU_PATH, names.VNPU_INTERFACE)):
                    for name, value in (await get_all(client, path, interface)).items():
                        reached.setdefault(f"{interface}.{name}", set()).add(value if isinstance(value, str) else None)

            for health in CardHealth:
                await read([replace(CARD, health=health)], [VNPU])
            for managed in Management:
                await read([replace(CARD, managed=managed)], [VNPU])
            for protection in Protection:
                await read([replace(CARD, protection=protection)], [VNPU])
            for use in Use:
                await read([CARD], [replace(VNPU, use=use)])
            for verdict in Verdict:
                await read([CARD], [replace(VNPU, verdict=verdict)])
            for reason in Reason:
                await read([replace(CARD, reason=reason)], [replace(VNPU, reason=reason)])

    run(main)
    for interface in (names.CARD_INTERFACE, names.VNPU_INTERFACE):
        for name, prop in CONTRACT.interfaces[interface].properties.items():
            if prop.values:
                assert reached[f"{interface}.{name}"] == prop.values, name


def test_why_a_verdict_is_as_it_is_is_told_apart_from_why_a_vnpu_is_not_vouched_for(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.backend.card_views = (CARD,)
            told = replace(VNPU, verdict=Verdict.ELIGIBLE, verdict_reason="confirmed", reason=Reason.VNPU_NOT_RECORDED, text="So it is.")
            made.backend.vnpu_views = (told,)
            made.service.publish()
            client = await made.client()
            values = await get_all(client, VNPU_PATH, names.VNPU_INTERFACE)
            assert (values["Verdict"], values["VerdictReason"]) == ("eligible", "confirmed")
            assert (values["Reason"], values["Text"]) == ("vnpu-not-recorded", "So it is.")

    run(main)


def test_what_is_not_known_can_be_published(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            nothing = float(UNKNOWN_NUMBER)
            unknown = replace(CARD, name="c003d1", phy_id=-1, logic_id=-1, die_id="", chip="", node="", number="", used_cores=nothing)
            made.backend.card_views = (unknown,)
            made.backend.vnpu_views = (replace(VNPU, name="x65535c003d1", vdev=65535, vfid=-1, card="c003d1", template="", cores=nothing),)
            made.service.publish()
            client = await made.client()
            (rows,) = await client.ok("ListCards")
            assert rows == [[-1, "", "healthy", -1.0, 20.0, "", names.card_path("c003d1")]]
            (rows,) = await client.ok("ListVnpus")
            path = names.vnpu_path("x65535c003d1")
            assert rows == [[65535, "", "idle", "unknown", "", names.card_path("c003d1"), path]]
            assert (await get_all(client, path, names.VNPU_INTERFACE))["Vfid"] == -1

    run(main)


@pytest.mark.parametrize(
    ("cards", "vnpus", "gone"),
    [
        ([replace(CARD, die_id="0-0-0-0-1")], [VNPU], CARD_PATH),
        ([CARD], [replace(VNPU, identity=f"{CARD.die_id}/212/vir05_1c_16g#fedcba9876543210", first_seen_usec=9)], VNPU_PATH),
        ([CARD], [replace(VNPU, vdev=213)], VNPU_PATH),
    ],
    ids=["another card in the slot", "an id that came back", "another id of that name"],
)
def test_another_thing_of_the_same_name_is_removed_and_added(bus: Bus, cards: list[object], vnpus: list[object], gone: str) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with_one(made)
            client = await made.client()
            await client.settle()
            client.signals.clear()
            made.backend.card_views, made.backend.vnpu_views = cards, vnpus  # type: ignore[assignment]
            made.service.publish()
            await client.settle()
            assert [signal.member for signal in client.signals] == ["InterfacesRemoved", "InterfacesAdded"]
            assert {signal.body[0] for signal in client.signals} == {gone}

    run(main)


def test_a_change_is_one_signal_and_a_counter_none(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with_one(made)
            client = await made.client()
            await client.settle()
            client.signals.clear()
            made.backend.vnpu_views = [replace(VNPU, confirmations=2)]
            made.service.publish()
            await client.settle()
            assert not client.signals
            assert (await get_all(client, VNPU_PATH, names.VNPU_INTERFACE))["Confirmations"] == 2
            made.backend.vnpu_views = [replace(VNPU, confirmations=3, use=Use.IN_USE)]
            made.service.publish()
            await client.settle()
            (signal,) = client.signals
            assert (signal.path, signal.member, signal.body[0]) == (VNPU_PATH, "PropertiesChanged", names.VNPU_INTERFACE)
            assert {name: value.value for name, value in signal.body[1].items()} == {"InUse": "in-use"}
            made.backend.card_views, made.backend.vnpu_views = (), ()
            made.service.publish()
            await client.settle()
            assert {signal.body[0] for signal in client.seen("InterfacesRemoved")} == {CARD_PATH, VNPU_PATH}
            assert await client.ok("ListCards") == [[]]
            assert await client.ok("ListVnpus") == [[]]

    run(main)


def test_explain_shows_all_to_who_may_inspect(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with_one(made)
            for uid, mode, full in ((0, Mode.DENY, True), (1000, Mode.ALLOW, True), (1000, Mode.DENY, False)):
                pretend_uid(made, uid, monkeypatch)
                made.polkit.mode = mode
                client = await made.client()
                for interface, path in ((names.VNPU_INTERFACE, VNPU_PATH), (names.CARD_INTERFACE, CARD_PATH)):
                    (text,) = await client.ok("Explain", interface=interface, path=path)
                    assert json.loads(str(text)) == {"name": path.rpartition("/")[2], "full": full}

    run(main)


def test_explain_of_a_vnpu_that_goes_meanwhile(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            with_one(made)
            client = await made.client()
            where = {"interface": names.VNPU_INTERFACE, "path": VNPU_PATH}

            async def gone(_: object) -> bool:
                made.backend.vnpu_views = ()
                return True

            with monkeypatch.context() as during:
                during.setattr(made.service._gate, "may_inspect", gone)
                assert await client.error("Explain", **where) == "UnknownObject"
            made.service.publish()
            assert await client.error("Explain", **where) == "UnknownObject"
            # The other objects have no such method.
            with_one(made)
            assert await client.error("Explain", interface=names.VNPU_INTERFACE, path=CARD_PATH) == "UnknownInterface"
            assert await client.error("Explain", "s", ["x"], **where) == "InvalidArgs"
            made.backend.error = ValueError("a secret")
            assert await client.error("Explain", **where) == f"{names.ERROR_PREFIX}Internal"

    run(main)


# --- thousands of them -----------------------------------------------------------------------------------------------


async def told(client: Client, member: str, number: int) -> list[Message]:
    await until(lambda: len(client.seen(member)) >= number)
    await client.settle()
    return client.seen(member)


def test_as_many_as_there_can_be(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            client = await made.client()
            cards, vnpus = fleet(CARD, VNPU)
            made.backend.card_views, made.backend.vnpu_views = cards, vnpus
            made.service.publish()
            number = CARDS * (VNPUS_PER_CARD + 1)
            added = await told(client, "InterfacesAdded", number)
            paths = {signal.body[0] for signal in added}
            assert len(added) == len(paths) == number
            assert paths == {names.card_path(one.name) for one in cards} | {names.vnpu_path(one.name) for one in vnpus}
            (objects,) = await client.ok("GetManagedObjects", interface=names.OBJECT_MANAGER_INTERFACE)
            assert paths <= set(objects)  # type: ignore[call-overload]
            (rows,) = await client.ok("ListVnpus")
            assert [row[0] for row in rows] == [one.vdev for one in vnpus]  # type: ignore[attr-defined]
            client.signals.clear()
            vnpus = [*vnpus[:777], replace(vnpus[777], use=Use.IN_USE), *vnpus[778:]]
            made.backend.vnpu_views = vnpus
            made.service.publish()
            await client.settle()
            (signal,) = client.signals
            assert signal.path == names.vnpu_path(vnpus[777].name)

    run(main, debug=False)


def test_who_asks_for_everything_many_times_at_once_does_not_fill_the_memory(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, calls = 100_000, 64
    monkeypatch.setattr(transport, "MAX_UNSENT_BYTES", limit)

    async def main() -> None:
        async with world(bus.address) as made:
            made.backend.card_views, made.backend.vnpu_views = fleet(CARD, VNPU, cards=4)
            made.service.publish()
            await until(lambda: not made.service._publisher._announce_due and not made.service._publisher._waiting)
            client = await made.client()
            ours = made.service.connection._bus
            assert ours is not None
            waiting: list[int] = []
            send = ours.send

            def noted(message: Message) -> object:
                future = send(message)
                waiting.append(ours._unsent_bytes)
                return future

            monkeypatch.setattr(ours, "send", noted)
            ask = [client.ok("GetManagedObjects", interface=names.OBJECT_MANAGER_INTERFACE) for _ in range(calls)]
            answers = await asyncio.gather(*ask)
            assert all(answer == answers[0] for answer in answers)
            size = len(wire.objects(made.service._publisher.entries()).data) + 200
            assert limit / 2 < size < limit
            assert max(waiting) <= limit + size
            assert calls * size > 20 * (limit + size), "without a limit, more would have waited"
            await until(lambda: ours._unsent_bytes == 0)
            await made.alive()

    run(main, debug=False)


@needs_busctl
def test_busctl_shows_them_all(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.backend.card_views, made.backend.vnpu_views = fleet(CARD, VNPU)
            made.service.publish()
            status, output, errors = await command("busctl", f"--address={bus.address}", "tree", "--list", names.BUS_NAME)
            assert status == 0, errors
            expected = {names.card_path(one.name) for one in made.backend.card_views}
            expected |= {names.vnpu_path(one.name) for one in made.backend.vnpu_views}
            assert expected <= set(output.split())
            status, output, errors = await command("busctl", f"--address={bus.address}", "call", *TO, "ListCards")
            assert status == 0, errors
            assert output.startswith(f'a(issddso) {CARDS} 0 "Ascend 910B3" "healthy" 5 20 "" "{names.card_path("p000")}" 1 "Ascend')

    run(main, debug=False)


@needs_busctl
@needs_root
def test_the_policy_file_lets_everybody_read(bus: Bus) -> None:
    async def main() -> None:
        async with world(bus.address) as made:
            made.polkit.mode = Mode.DENY
            with_one(made)
            for arguments in (
                ("introspect", names.BUS_NAME, CARD_PATH),
                ("get-property", names.BUS_NAME, CARD_PATH, names.CARD_INTERFACE, "Health"),
                ("call", names.BUS_NAME, CARD_PATH, names.CARD_INTERFACE, "Explain"),
                ("call", names.BUS_NAME, VNPU_PATH, names.VNPU_INTERFACE, "Explain"),
                ("call", *TO, "ListVnpus"),
            ):
                status, _, errors = await as_nobody(bus.address, *arguments)
                assert status == 0, errors
            assert made.polkit.checks, "whether the caller may see everything"

    run(main)


def test_a_flood_of_signals_leaves_room_for_other_work_and_keeps_its_order() -> None:
    sent: list[tuple[int, str, str]] = []
    turn = 0

    async def main() -> None:
        nonlocal turn

        def emit(path: str, _interface: str, member: str, _signature: str, body: object) -> None:
            sent.append((turn, member, path if member == "PropertiesChanged" else str(body)))

        made = Publisher(CONTRACT, emit, strict=True)
        cards, vnpus = fleet(CARD, VNPU, cards=4)
        made.publish([*map(card.published, cards), *map(vnpu.published, vnpus)])
        # Before the additions are all told: a change, and a removal.
        await asyncio.sleep(0)
        changed = [replace(vnpus[0], use=Use.IN_USE), *vnpus[1:-1]]
        made.publish([*map(card.published, cards), *map(vnpu.published, changed)])
        while made._waiting or made._announce_due:
            turn += 1
            await asyncio.sleep(0)

    run(main)
    number = 4 * (VNPUS_PER_CARD + 1)
    assert [member for _, member, _ in sent] == ["InterfacesAdded"] * number + ["InterfacesRemoved", "PropertiesChanged"]
    turns = [number for number, _, _ in sent]
    assert max(turns.count(number) for number in set(turns)) <= publisher.SIGNALS_PER_TURN


def test_what_did_not_change_is_neither_made_nor_checked_again() -> None:
    made_of: list[str] = []

    async def main() -> None:
        def published(view: object) -> publisher.PublishedObject:
            made_of.append(view.name)  # type: ignore[attr-defined]
            return vnpu.published(view)  # type: ignore[arg-type]

        rendered: publisher.Rendered[object] = publisher.Rendered(published)  # type: ignore[type-var]
        tree = Publisher(CONTRACT, lambda *_: None, strict=True)
        _, vnpus = fleet(CARD, VNPU, cards=2)
        tree.publish(rendered.of(vnpus))
        assert made_of == [one.name for one in vnpus]
        before = dict(tree.tree)
        made_of.clear()
        # Equal views, of which one differs, one is gone and one is new.
        again = [replace(one) for one in vnpus[1:]]
        again[5] = replace(again[5], use=Use.IN_USE)
        again.append(replace(VNPU, name="v1123", vdev=1123))
        tree.publish(rendered.of(again))
        assert made_of == [again[5].name, "v1123"]
        same = [path for path, shown in tree.tree.items() if before.get(path) is shown]
        assert len(same) == len(vnpus) - 2
        assert len(tree.tree) == len(vnpus)

    run(main)


def test_an_object_that_is_refused_does_not_come_in_by_being_given_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        made = Publisher(CONTRACT, lambda *_: None, strict=False)
        bad = vnpu.published(replace(VNPU, use="asleep"))  # type: ignore[arg-type]
        for _ in range(2):
            made.publish([bad])
            assert not made.tree
        good = vnpu.published(VNPU)
        made.publish([good])
        for _ in range(2):
            made.publish([bad])
            assert made.tree[VNPU_PATH].interfaces[names.VNPU_INTERFACE]["InUse"] == "idle", "the value before"

    run(main)
    assert [record.getMessage() for record in caplog.records if "not published" in record.getMessage()]
