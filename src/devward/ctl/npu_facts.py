"""NPUs and vNPUs as devwardctl sees them; as facts.py. Pure."""

from dataclasses import dataclass, field

from devward.ctl.reading import UNKNOWN, Raw, integer_of, last, number_of, real_of, sentence, text_of, texts_of


@dataclass(frozen=True, slots=True)
class Card:
    """One NPU. `name` is the last element of its object's path, and in `raw`, too."""

    name: str = ""
    phy_id: int = UNKNOWN
    logic_id: int = UNKNOWN
    card_id: int = UNKNOWN
    device_id: int = UNKNOWN
    die_id: str = ""
    chip: str = ""
    node: str = ""
    number: str = ""
    health: str = ""
    managed: str = ""
    protection: str = ""
    claims: tuple[str, ...] = ()
    used_cores: float = UNKNOWN
    claimed_cores: float = UNKNOWN
    total_cores: float = UNKNOWN
    reason: str = ""
    text: str = ""
    raw: Raw = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, values: Raw) -> "Card":
        """Read the properties of org.devward.Devward1.Card."""
        return cls(
            name=name,
            phy_id=integer_of(values, "phy_id"),
            logic_id=integer_of(values, "logic_id"),
            card_id=integer_of(values, "card_id"),
            device_id=integer_of(values, "device_id"),
            die_id=text_of(values, "die_id"),
            chip=text_of(values, "chip"),
            node=text_of(values, "node"),
            number=text_of(values, "number"),
            health=text_of(values, "health"),
            managed=text_of(values, "managed"),
            protection=text_of(values, "protection"),
            claims=texts_of(values, "claims"),
            used_cores=real_of(values, "used_cores"),
            claimed_cores=real_of(values, "claimed_cores"),
            total_cores=real_of(values, "total_cores"),
            reason=text_of(values, "reason"),
            text=text_of(values, "text"),
            raw={"name": name, **values},
        )

    @property
    def sentence(self) -> str:
        """Why the NPU is not vouched for, empty where it is."""
        return sentence(self.reason, self.text)


@dataclass(frozen=True, slots=True)
class Vnpu:
    """One vNPU. `name` is the last element of its object's path, and in `raw`, too."""

    name: str = ""
    id: int = UNKNOWN
    identity: str = ""
    #: The object path of its NPU.
    card: str = ""
    template: str = ""
    vfid: int = UNKNOWN
    cores: float = UNKNOWN
    node: str = ""
    in_use: str = ""
    verdict: str = ""
    #: Why the verdict is as it is; `reason` is why the vNPU is not vouched for.
    verdict_reason: str = ""
    reason: str = ""
    text: str = ""
    first_seen_usec: int = 0
    grace_start_usec: int = 0
    confirmations: int = 0
    eligible_at_usec: int = 0
    raw: Raw = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, values: Raw) -> "Vnpu":
        """Read the properties of org.devward.Devward1.Vnpu."""
        return cls(
            name=name,
            id=integer_of(values, "id"),
            identity=text_of(values, "identity"),
            card=text_of(values, "card"),
            template=text_of(values, "template"),
            vfid=integer_of(values, "vfid"),
            cores=real_of(values, "cores"),
            node=text_of(values, "node"),
            in_use=text_of(values, "in_use"),
            verdict=text_of(values, "verdict"),
            verdict_reason=text_of(values, "verdict_reason"),
            reason=text_of(values, "reason"),
            text=text_of(values, "text"),
            first_seen_usec=number_of(values, "first_seen_usec"),
            grace_start_usec=number_of(values, "grace_start_usec"),
            confirmations=number_of(values, "confirmations"),
            eligible_at_usec=number_of(values, "eligible_at_usec"),
            raw={"name": name, **values},
        )

    @property
    def card_name(self) -> str:
        """The name of its NPU."""
        return last(self.card)

    @property
    def sentence(self) -> str:
        """Why the verdict is as it is, empty where nothing needs to be said."""
        return sentence(self.reason, self.text)
