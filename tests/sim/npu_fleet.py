"""NPUs and vNPUs as the daemon's inventory would show them: as many as a host can have at the very most."""

from dataclasses import replace

from devward.npu.views import CardView, VnpuView

CARDS = 64
VNPUS_PER_CARD = 32


def fleet(card: CardView, vnpu: VnpuView, *, cards: int = CARDS, per_card: int = VNPUS_PER_CARD) -> tuple[list[CardView], list[VnpuView]]:
    """Return so many cards like this one, and so many vNPUs of each like that one."""
    made = [
        replace(
            card,
            name=f"p{number:03d}",
            phy_id=number,
            logic_id=number,
            card=number // 2,
            device=number % 2,
            die_id=f"01234567-89ABCDEF-01234567-89ABCDEF-{number:08X}",
            node=f"/dev/davinci{number}",
            number=f"236:{number}",
        )
        for number in range(cards)
    ]
    parts = [
        replace(
            vnpu,
            name=f"v{vdev:04d}",
            vdev=vdev,
            vfid=place + 1,
            card=of.name,
            identity=f"{of.die_id}/{vdev}/{vnpu.template}#{vdev:016x}",
            node=f"/dev/vdavinci{vdev}",
        )
        for of in made
        for place in range(per_card)
        for vdev in [100 + per_card * of.phy_id + place]
    ]
    return made, parts
