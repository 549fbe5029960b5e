"""Which NPUs are offered to containers, and with what: families, documents, identities, objections."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devward import names
from devward.cdi import spec, store
from devward.config import NpuConfig
from devward.model import Health, Identity, Pin
from devward.npu import offers, outfit
from devward.npu.chips import identity_of
from devward.npu.complaints import Fault
from devward.npu.document import NOT_LOOKED_FOR, Entry, Outfit, Owner, render
from devward.npu.families import SHARED_DIRECTORIES, SHARED_NODES, family_of, shared
from devward.npu.host import HostNode, Surroundings
from devward.npu.inventory import Picture, Unavailable, assess
from devward.npu.memory import NO_MEMORY
from devward.npu.pins import Sight, judge
from devward.npu.views import UNKNOWN_NUMBER, CardView, Use
from devward.npu.vnpu_cfg import ABSENT
from devward.reasons import Reason
from sim.npu_host import around, chip, inventory

NOW = 1_767_225_600_000_000
SERVER = frozenset({"davinci_manager", "devmm_svm", "hisi_hdc", "dvpp_cmdlist"})
OUTFIT = Outfit(
    SERVER,
    ("/usr/local/Ascend/driver/lib64", "/usr/local/bin/npu-smi"),
    ("/usr/local/Ascend/driver/lib64/common", "/usr/local/Ascend/driver/lib64/driver"),
)
SAID = inventory(chip(0), chip(3), chip(12))


def picture(said: Any = SAID, surroundings: Surroundings | None = None) -> Picture:
    return assess(said, around(said) if surroundings is None else surroundings, NO_MEMORY, NOW)[0]


CARDS = picture().cards


def device(name: object) -> str:
    return f"{names.NPU_CDI_KIND}={name}"


def offered(cards: "tuple[CardView, ...]" = CARDS, there: Outfit = OUTFIT, **settings: Any) -> Any:
    return offers.of_cards(cards, there, NpuConfig(**settings), complete=True)


def document(*wanted: object, members: tuple[object, ...] = (0, 3, 12), there: Outfit = OUTFIT, **settings: Any) -> dict[str, Any]:
    rendered = offered(there=there, **settings).render([device(one) for one in wanted], [device(one) for one in members])
    loaded = spec.load(rendered, names.NPU_CDI_FILE)
    assert loaded.kind == names.NPU_CDI_KIND
    assert loaded.devices == tuple(device(one) for one in wanted)
    assert loaded.version == loaded.minimum_version == "0.5.0"
    assert loaded.remarks == ()
    assert rendered.isascii()
    parsed: dict[str, Any] = json.loads(rendered)
    return parsed


def node(path: str, **more: object) -> dict[str, object]:
    return {"path": path, "type": "c", "permissions": "rw", **more}


# --- documents ------------------------------------------------------------------------------------------------------------
def test_a_document_has_a_device_per_npu_and_all_of_them() -> None:
    made = document(0, 3, 12, "all")
    assert [(one["name"], one["containerEdits"]) for one in made["devices"]] == [
        ("0", {"deviceNodes": [node("/dev/davinci0")]}),
        ("3", {"deviceNodes": [node("/dev/davinci3")]}),
        ("12", {"deviceNodes": [node("/dev/davinci12")]}),
        ("all", {"deviceNodes": [node("/dev/davinci0"), node("/dev/davinci3"), node("/dev/davinci12")]}),
    ]
    assert made["containerEdits"]["deviceNodes"] == [
        node(f"/dev/{name}") for name in ("davinci_manager", "devmm_svm", "hisi_hdc", "dvpp_cmdlist")
    ]
    assert made["containerEdits"]["env"] == ["LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64/common:/usr/local/Ascend/driver/lib64/driver"]
    assert made["containerEdits"]["mounts"] == [
        {"hostPath": path, "containerPath": path, "type": "bind", "options": ["rbind", "rprivate", "ro"]} for path in OUTFIT.mounts
    ]


def test_all_are_also_those_that_a_foreign_file_defines() -> None:
    made = document(0, "all", members=(0, 3))
    assert made["devices"][1]["containerEdits"]["deviceNodes"] == [node("/dev/davinci0"), node("/dev/davinci3")]


def test_the_owner_is_left_to_engines_or_a_setting() -> None:
    made = document(0, device_uid=1000, device_gid=0)
    every = [*made["devices"][0]["containerEdits"]["deviceNodes"], *made["containerEdits"]["deviceNodes"]]
    assert {(one["uid"], one["gid"]) for one in every} == {(1000, 0)}
    made = document(0)
    assert not {"uid", "gid"} & made["devices"][0]["containerEdits"]["deviceNodes"][0].keys()


def test_what_does_not_exist_is_not_in_the_document() -> None:
    made = document(0, there=Outfit(SERVER - {"dvpp_cmdlist"}))
    assert made["containerEdits"] == {"deviceNodes": [node(f"/dev/{name}") for name in ("davinci_manager", "devmm_svm", "hisi_hdc")]}


@given(st.permutations(range(64)))
def test_a_document_is_the_same_whatever_the_order_of_the_cards(order: list[int]) -> None:
    cards = tuple(replace(CARDS[0], name=f"p{phy:03d}", phy_id=phy) for phy in order)
    devices = [device(phy) for phy in range(64)]
    made = offered(cards).render(devices, devices)
    assert made == offered(tuple(sorted(cards, key=lambda card: card.phy_id))).render(devices, devices)


def test_the_largest_host_s_document_is_one_that_devward_reads_back() -> None:
    devices = [device(phy) for phy in range(256)]
    paths = tuple(f"/usr/local/Ascend/driver/{number:0103d}" for number in range(outfit.PATH_COUNT))
    assert sum(map(len, paths)) == outfit.PATH_CHARACTERS
    made = offered(there=replace(OUTFIT, mounts=paths), device_uid=4294967295, device_gid=4294967295).render(
        [*devices, device("all")], devices
    )
    assert len(made) <= store.MAXIMUM_SIZE
    assert len(spec.load(made, names.NPU_CDI_FILE).devices) == 257


def test_a_document_without_devices_or_with_one_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        render("a.b/c", [], [], OUTFIT, Owner())
    with pytest.raises(ValueError, match="each once"):
        render("a.b/c", [Entry("0", ()), Entry("0", ())], [], OUTFIT, Owner())


def test_a_document_of_devices_alone_has_no_edits_for_all() -> None:
    made = json.loads(render("a.b/c", [Entry("x", (("/dev/y", "/dev/x"),))], [], Outfit(), Owner()))
    assert made == {
        "cdiVersion": "0.5.0",
        "kind": "a.b/c",
        "devices": [{"name": "x", "containerEdits": {"deviceNodes": [node("/dev/x", hostPath="/dev/y")]}}],
    }


# --- families -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["Ascend 910A", "Ascend 910B3", "Ascend 910B4-1", "Ascend Ascend910", "Ascend 310P3", "", "Ascend 777"])
def test_servers_need_manager_memory_and_channel(name: str) -> None:
    assert shared([name], SERVER).missing == ()
    assert shared([name], frozenset()).missing == ("davinci_manager", "devmm_svm", "hisi_hdc")
    assert shared([name], SERVER | {"svm0", "uburma/x"}).nodes == tuple(
        (f"/dev/{one}", f"/dev/{one}") for one in ("davinci_manager", "devmm_svm", "hisi_hdc", "dvpp_cmdlist")
    )


def test_a_310b_takes_the_manager_for_containers_first() -> None:
    existing = frozenset({"davinci_manager", "davinci_manager_docker", "svm0", "hdmi", "devmm_svm", "hisi_hdc"})
    made = shared(["Ascend 310B1"], existing)
    assert made.nodes == (("/dev/davinci_manager_docker", "/dev/davinci_manager"), ("/dev/svm0", "/dev/svm0"), ("/dev/hdmi", "/dev/hdmi"))
    assert made.missing == ()
    assert shared(["Ascend 310B1"], existing - {"davinci_manager_docker"}).nodes[0] == ("/dev/davinci_manager", "/dev/davinci_manager")


def test_a_950_shares_whole_directories() -> None:
    existing = frozenset({"davinci_manager", "hisi_hdc", "devmm_svm", "uburma/b", "uburma/a", "ummu/c"})
    made = shared(["Ascend 950"], existing)
    assert [host for host, _ in made.nodes] == ["/dev/davinci_manager", "/dev/hisi_hdc", "/dev/uburma/a", "/dev/uburma/b", "/dev/ummu/c"]
    assert shared(["Ascend 950"], frozenset()).missing == ("davinci_manager", "hisi_hdc")


def test_a_310_shares_what_there_is() -> None:
    assert shared(["Ascend 310"], frozenset({"davinci_manager", "xsmem_dev"})).missing == ()
    assert shared(["Ascend 310"], frozenset({"davinci_manager", "xsmem_dev"})).nodes[1] == ("/dev/xsmem_dev", "/dev/xsmem_dev")


def test_hosts_with_two_families_share_what_either_needs() -> None:
    made = shared(["Ascend 310P3", "Ascend 310B1"], SERVER | {"svm0"})
    every = ("davinci_manager", "devmm_svm", "hisi_hdc", "dvpp_cmdlist", "svm0")
    assert [host for host, _ in made.nodes] == [f"/dev/{one}" for one in every]


# --- candidates -----------------------------------------------------------------------------------------------------------
def test_each_npu_is_a_candidate_by_its_physical_id() -> None:
    assert [(one.device, one.node, one.identity, one.health, one.reason) for one in offered().candidates] == [
        (device(phy), f"/dev/davinci{phy}", Identity.VALID, Health.HEALTHY, Reason.OK) for phy in (0, 3, 12)
    ]


def test_an_npu_whose_physical_id_is_not_its_own_has_no_name() -> None:
    said = inventory(chip(0), replace(chip(3), phy=0), replace(chip(5), phy=None))
    cards = picture(said).cards
    assert [card.phy_id for card in cards] == [UNKNOWN_NUMBER] * 3
    assert offered(cards).candidates == ()


def test_without_a_node_that_all_need_no_npu_is_offered() -> None:
    there = Outfit(SERVER - {"devmm_svm"})
    assert {(one.identity, one.reason) for one in offered(there=there).candidates} == {(Identity.MISSING, Reason.NPU_SHARED_NODE_MISSING)}
    (finding,) = offers.findings(CARDS, there)
    assert (finding.code, finding.subject) == (Reason.NPU_SHARED_NODE_MISSING, "/dev/devmm_svm")
    assert offers.findings(CARDS, OUTFIT) == []
    assert offers.findings((), there) == [], "a host without NPUs misses nothing"


def test_an_identity_that_fails_outweighs_a_missing_shared_node() -> None:
    cards = tuple(replace(card, identity=Identity.INVALID, reason=Reason.NPU_NODE_MISMATCH) for card in CARDS)
    assert {(one.identity, one.reason) for one in offered(cards, Outfit()).candidates} == {(Identity.INVALID, Reason.NPU_NODE_MISMATCH)}


IDENTITIES = {
    Identity.VALID: {Reason.NPU_UNHEALTHY, Reason.NPU_HEALTH_UNKNOWN, Reason.NPU_VNPUS_UNKNOWN},
    Identity.INVALID: {Reason.NPU_NODE_MISMATCH, Reason.NPU_DIE_CHANGED, Reason.NPU_DIE_SHARED, Reason.NPU_ID_SHARED},
    Identity.MISSING: {Reason.NPU_NODE_MISSING},
    Identity.UNKNOWN: {
        Reason.NPU_LIST_INCOMPLETE, Reason.NPU_UNREADABLE, Reason.NPU_NOT_READY, Reason.NPU_ID_UNKNOWN, Reason.NPU_DIE_UNKNOWN,
        Reason.NPU_NODES_UNREADABLE, Reason.NPU_WINDOW,
    },
}  # fmt: skip


@pytest.mark.parametrize(("identity", "reason"), [(identity, reason) for identity, those in IDENTITIES.items() for reason in sorted(those)])
def test_what_a_fault_says_of_the_identity(identity: Identity, reason: Reason) -> None:
    assert identity_of([]) is Identity.VALID
    assert identity_of([Fault(reason)]) is identity
    assert identity_of([Fault(Reason.NPU_UNHEALTHY), Fault(reason)]) is identity, "whatever comes first"
    assert identity_of([Fault(reason), Fault(Reason.NPU_NODE_MISMATCH)]) is Identity.INVALID


def test_an_unhealthy_npu_whose_node_is_another_s_is_not_the_npu() -> None:
    said = inventory(chip(0, health=1))
    surroundings = around(said)
    assert surroundings.nodes is not None
    other = replace(surroundings.nodes["davinci0"], kernel_name="null")
    nodes: dict[str, HostNode] = {**surroundings.nodes, "davinci0": other}
    (card,) = picture(said, replace(surroundings, nodes=nodes)).cards
    assert (card.reason, card.identity) == (Reason.NPU_UNHEALTHY, Identity.INVALID)


def test_what_the_broker_cannot_be_asked_about_is_unknown_and_not_complete() -> None:
    _, memory = assess(SAID, around(SAID), NO_MEMORY, NOW)
    later, _ = assess(Unavailable(Reason.NPU_BROKER_SILENT, ""), Surroundings(None, ABSENT), memory, NOW)
    assert {card.identity for card in later.cards} == {Identity.UNKNOWN}
    assert later.in_doubt
    assert not picture().in_doubt


# --- vNPUs ----------------------------------------------------------------------------------------------------------------
DIVIDED = inventory(chip(0, 100), chip(3, 148, 150))
SEEN = picture(DIVIDED)


def pin(vdev: int | None, *, of: Picture = SEEN, die: str = "", template: str = "vir05_1c_16g") -> Pin:
    """Return a pin of what is there now, or of a whole NPU."""
    owner = next(card for card in SEEN.cards if vdev is None or card.phy_id == (vdev - 100) // 16)
    target = die or owner.die_id
    if vdev is None:
        return Pin(target, "x", 0, NOW)
    return Pin(f"{target}/{vdev}/{template}", "x", 0, NOW, of.lasting.get(f"v{vdev:04d}", ""))


def vnpus(*pins: Pin, seen: Picture = SEEN, there: "Outfit | None" = OUTFIT, claims: Any = offers.not_asked) -> Any:
    report = judge(pins, Sight(seen.cards, seen.vnpus, seen.lasting, seen.in_doubt))
    return offers.of_vnpus(report, seen.cards, there, NpuConfig(), claims)


def only(offer: Any) -> tuple[str, Identity, Reason]:
    (one,) = offer.candidates
    return one.device, one.identity, one.reason


VNPU = f"{names.VNPU_CDI_KIND}=148"


def test_a_vnpu_that_is_pinned_itself_is_offered_and_no_other() -> None:
    assert only(vnpus(pin(148))) == (VNPU, Identity.VALID, Reason.OK)
    assert vnpus().candidates == ()
    assert vnpus(pin(None)).candidates == (), "a pin of the NPU offers none of its vNPUs"


def test_the_document_of_a_vnpu_gives_it_the_name_that_containers_look_for() -> None:
    rendered = vnpus(pin(148)).render([VNPU], [VNPU])
    assert spec.load(rendered, names.VNPU_CDI_FILE).devices == (VNPU,)
    (made,) = json.loads(rendered)["devices"]
    assert made["containerEdits"]["deviceNodes"] == [node("/dev/davinci148", hostPath="/dev/vdavinci148")]
    assert next(one["path"] for one in json.loads(rendered)["containerEdits"]["deviceNodes"]) == "/dev/davinci_manager"


def test_a_vnpu_that_came_after_the_pin_is_not_offered() -> None:
    later = inventory(chip(0, 100), chip(3, 148, 150))
    surroundings = around(later)
    assert surroundings.nodes is not None
    anew = replace(surroundings.nodes["vdavinci148"], inode=4711)
    seen = picture(later, replace(surroundings, nodes={**surroundings.nodes, "vdavinci148": anew}))
    assert only(vnpus(pin(148), seen=seen)) == (VNPU, Identity.INVALID, Reason.PIN_OTHER_IDENTITY)
    assert only(vnpus(pin(148, of=seen), seen=seen))[1] is Identity.VALID


def test_where_a_kubelet_runs_only_what_no_pod_claims_is_offered() -> None:
    there = replace(OUTFIT, kubelet="process 7, kubelet")
    assert only(vnpus(pin(148), there=there)) == (VNPU, Identity.UNKNOWN, Reason.VNPU_CLAIMS_UNKNOWN)
    claimed: dict[str, Any] = {card.die_id: (Reason.VNPU_NPU_CLAIMED, "a Pod") for card in SEEN.cards if card.phy_id == 3}
    assert only(vnpus(pin(148), there=there, claims=claimed.get)) == (VNPU, Identity.INVALID, Reason.VNPU_NPU_CLAIMED)
    of_another = {card.die_id: (Reason.VNPU_NPU_CLAIMED, "a Pod") for card in SEEN.cards if card.phy_id == 0}
    assert only(vnpus(pin(148), there=there, claims=of_another.get)) == (VNPU, Identity.VALID, Reason.OK)


def test_a_vnpu_that_is_gone_is_missing_and_one_that_may_be_there_is_unknown() -> None:
    gone = picture(inventory(chip(0, 100), chip(3)))
    assert only(vnpus(pin(148), seen=gone)) == (VNPU, Identity.MISSING, Reason.PIN_UNMATCHED)
    assert only(vnpus(pin(148), seen=Picture(in_doubt=True)))[:2] == (VNPU, Identity.UNKNOWN)
    assert vnpus(pin(148), seen=Picture(in_doubt=True)).render is None
    assert vnpus(pin(148), there=None).render is None
    assert only(vnpus(pin(148), there=None))[1] is Identity.UNKNOWN


def test_a_vnpu_whose_node_is_another_s_is_established_not_to_be_it() -> None:
    surroundings = around(DIVIDED)
    assert surroundings.nodes is not None
    other = replace(surroundings.nodes["vdavinci148"], kernel_name="null")
    seen = picture(DIVIDED, replace(surroundings, nodes={**surroundings.nodes, "vdavinci148": other}))
    assert only(vnpus(pin(148), seen=seen)) == (VNPU, Identity.INVALID, Reason.NPU_NODE_MISMATCH)


def test_of_two_pins_with_one_id_the_one_that_matches_counts() -> None:
    elsewhere = pin(148, die="AAAAAAAA-AAAAAAAA-AAAAAAAA-AAAAAAAA-AAAAAAAA")
    for pins in ((pin(148), elsewhere), (elsewhere, pin(148))):
        assert only(vnpus(*pins)) == (VNPU, Identity.VALID, Reason.OK)


def test_without_a_shared_node_no_vnpu_is_offered() -> None:
    assert only(vnpus(pin(148), there=Outfit())) == (VNPU, Identity.MISSING, Reason.NPU_SHARED_NODE_MISSING)


def test_objections_to_a_vnpu() -> None:
    def against(seen: Picture, name: int = 148, there: Outfit = OUTFIT, claims: Any = offers.not_asked) -> Reason | None:
        found = offers.objection(f"{names.VNPU_CDI_KIND}={name}", seen.cards, seen.vnpus, there, claims)
        return found[0] if found is not None else None

    assert against(SEEN) is None
    assert against(SEEN, 149) is Reason.DEVICE_MISSING
    assert against(SEEN, there=Outfit()) is Reason.NPU_SHARED_NODE_MISSING
    used = replace(SEEN, vnpus=tuple(replace(view, use=Use.IN_USE) for view in SEEN.vnpus))
    assert against(used) is Reason.VNPU_IN_USE
    unknown = replace(SEEN, vnpus=tuple(replace(view, use=Use.UNKNOWN) for view in SEEN.vnpus))
    assert against(unknown) is Reason.VNPU_IN_USE, "what is not known to be idle is in use"
    unhealthy = picture(inventory(chip(3, 148, health=1)))
    assert against(unhealthy) is Reason.NPU_UNHEALTHY
    beside_a_kubelet = replace(OUTFIT, kubelet="process 7, kubelet")
    assert against(SEEN, there=beside_a_kubelet) is Reason.VNPU_CLAIMS_UNKNOWN
    assert against(SEEN, there=beside_a_kubelet, claims=lambda _: (Reason.VNPU_NPU_CLAIMED, "")) is Reason.VNPU_NPU_CLAIMED
    assert against(SEEN, there=beside_a_kubelet, claims=lambda _: None) is None


def test_a_module_with_a_310p_is_told_from_a_card_by_its_nodes() -> None:
    existing = frozenset({"davinci_manager", "xsmem_dev", "event_sched", "svm0"})
    made = shared(["Ascend 310P3"], existing)
    assert made.missing == ()
    assert {host for host, _ in made.nodes} == {f"/dev/{name}" for name in existing}
    assert shared(["Ascend 910B3"], existing).missing == ("devmm_svm", "hisi_hdc")


def test_every_node_of_a_family_is_looked_for() -> None:
    for chip_name in ("310B1", "310", "950", "910B3", "310P3"):
        family = family_of(f"Ascend {chip_name}", frozenset())
        assert {*family.managers, *family.required, *family.optional} <= set(SHARED_NODES)
        assert set(family.directories) <= set(SHARED_DIRECTORIES)


def test_without_the_lists_of_mounts_no_document_is_made_and_none_is_vouched_for() -> None:
    there = replace(OUTFIT, unread="/etc/x.list", mounts_known=False)
    assert offered(there=there).render is None
    assert vnpus(pin(148), there=there).render is None
    assert objection(0, there=there) is Reason.NPU_MOUNTS_UNREADABLE
    # Those of an earlier look do for the file, and not for a promise.
    kept = replace(OUTFIT, unread="/etc/x.list")
    assert offered(there=kept).render is not None
    assert objection(0, there=kept) is Reason.NPU_MOUNTS_UNREADABLE


def test_before_a_kubelet_was_looked_for_nothing_is_decided() -> None:
    there = replace(OUTFIT, kubelet=NOT_LOOKED_FOR)
    assert only(vnpus(pin(148), there=there))[1] is Identity.UNKNOWN


# --- objections -----------------------------------------------------------------------------------------------------------
def objection(name: object, cards: tuple[CardView, ...] = CARDS, there: Outfit = OUTFIT, vnpus: Any = ()) -> Reason | None:
    found = offers.objection(device(name), cards, vnpus, there)
    assert found is None or found[1]
    return found[0] if found is not None else None


def test_an_npu_that_is_vouched_for_may_be_given() -> None:
    assert [objection(name) for name in (0, 3, 12, "all")] == [None] * 4


def test_what_is_not_there_may_not() -> None:
    assert objection(1) is Reason.DEVICE_MISSING
    assert objection("all", ()) is Reason.DEVICE_MISSING


@pytest.mark.parametrize("reason", sorted({reason for those in IDENTITIES.values() for reason in those}))
def test_whatever_is_wrong_with_an_npu_is_an_objection_to_it_and_to_all(reason: Reason) -> None:
    cards = (CARDS[0], replace(CARDS[1], reason=reason, text="Something is wrong."), CARDS[2])
    assert objection(0, cards) is None
    assert objection(3, cards) is reason
    assert objection("all", cards) is reason


def test_an_npu_that_is_divided_may_not_be_given_as_a_whole() -> None:
    said = inventory(chip(0), chip(3, 148))
    seen = picture(said)
    assert objection(3, seen.cards, vnpus=seen.vnpus) is Reason.NPU_DIVIDED
    assert objection("all", seen.cards, vnpus=seen.vnpus) is Reason.NPU_DIVIDED
    assert objection(0, seen.cards, vnpus=seen.vnpus) is None


def test_without_a_shared_node_none_may() -> None:
    assert objection(0, there=Outfit()) is Reason.NPU_SHARED_NODE_MISSING
