"""The vendor's library, by ctypes. Only the broker loads this, and only once environment and library were found good.

Every answer is filled with 0xFF before the call, as the driver does itself: what nobody filled reads as not given. Room for answers is
larger than what the library is told of, so that one that counts beyond it writes into nothing of ours.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any, Final

from devward.npu import layouts
from devward.npu.codes import DcmiCode
from devward.npu.facts import Refusal, Refused
from devward.npu.numbering import FIRST_VDEV, VDEV_LIMIT
from devward.npu.vendor import ChipNames, DcmiError, Resources, TotalResources, VdevAnswer

_U16_NONE: Final = 0xFFFF
_U32_NONE: Final = 0xFFFFFFFF
_U64_NONE: Final = 0xFFFFFFFFFFFFFFFF

_VDEV_MANAGEMENT: Final = 52
_VDEV_RESOURCE, _TOTAL_RESOURCE, _FREE_RESOURCE = 0, 1, 2
_VDIE: Final = 1
_VERSION_ROOM: Final = 32
#: Bytes behind every answer that the library is not told of.
_MARGIN: Final = 4096

#: Without these nothing can be done; of the others each is missed only where it would be called.
REQUIRED: Final = ("dcmi_init", "dcmi_get_device_info", "dcmi_get_device_num_in_card")


class Dcmi:
    """The loaded library. One call at a time."""

    def __init__(self, path: str, before_call: Callable[[str], None]) -> None:
        """Load it; `before_call` is told each call's name, and may refuse it by raising. Refused: it cannot be loaded or used."""
        self._before_call = before_call
        before_call("dlopen")
        self._library = ctypes.CDLL(path, handle=_dlopen(path))
        if self._has("dcmiv2_init") and not self._has("dcmi_init"):
            raise Refused(Refusal.LIBRARY_GENERATION, f"{path} is for the Ascend 950 and later, which have no vNPUs")
        for name in REQUIRED:
            if not self._has(name):
                raise Refused(Refusal.LIBRARY_UNUSABLE, f"{path} has no {name}", DcmiCode.SYMBOL_MISSING)

    def initialise(self) -> None:
        """Let the library find the driver; to be done once, and again only while it fails."""
        self._call("dcmi_init")

    def version(self) -> bytes | None:
        """Return the version of the library's interface."""
        buffer = _bytes(_VERSION_ROOM)
        self._call("dcmi_get_dcmi_version", buffer, ctypes.c_int(_VERSION_ROOM))
        return _name(buffer[:_VERSION_ROOM])

    def cards(self) -> tuple[int | None, tuple[int, ...]]:
        """Return how many cards there are, as the library says, and as many ids as there was room for."""
        count = _u32()
        cards = (ctypes.c_uint32 * (layouts.CARD_ROOM + _MARGIN))(*[_U32_NONE] * layouts.CARD_ROOM)
        # The older name of the same call.
        call = "dcmi_get_card_list" if self._has("dcmi_get_card_list") else "dcmi_get_card_num_list"
        self._call(call, ctypes.byref(count), cards, ctypes.c_int(layouts.CARD_ROOM))
        return _given(count.value), tuple(cards[: layouts.CARD_ROOM])

    def device_limit(self, card: int) -> int | None:
        """Return how many devices of a card are chips, by their ids 0 to one less."""
        if self._has("dcmi_get_device_id_in_card"):
            limit, mcu, cpu = _u32(), _u32(), _u32()
            self._call("dcmi_get_device_id_in_card", card, ctypes.byref(limit), ctypes.byref(mcu), ctypes.byref(cpu))
        else:
            limit = _u32()
            self._call("dcmi_get_device_num_in_card", card, ctypes.byref(limit))
        return _given(limit.value)

    def device_type(self, card: int, device: int) -> int | None:
        """Return what a device is: 0 an NPU, 1 an MCU, 2 a CPU."""
        return self._number("dcmi_get_device_type", card, device)

    def logic_id(self, card: int, device: int) -> int | None:
        """Return a chip's logic id."""
        result = _u32()
        self._call("dcmi_get_device_logic_id", ctypes.byref(result), card, device)
        return _given(result.value)

    def phy_id(self, logic: int) -> int | None:
        """Return the physical id of a logic id."""
        return self._number("dcmi_get_device_phyid_from_logicid", ctypes.c_uint(logic))

    def address_of_phy(self, phy: int) -> tuple[int | None, int | None]:
        """Return card and device of a physical id."""
        card, device = _u32(), _u32()
        self._call("dcmi_get_card_id_device_id_from_phyid", ctypes.byref(card), ctypes.byref(device), ctypes.c_uint(phy))
        return _given(card.value), _given(device.value)

    def chip_names(self, card: int, device: int) -> ChipNames:
        """Return what a chip is called."""
        answer = _Answer(layouts.ChipInfo)
        call = "dcmi_get_device_chip_info_v2" if self._has("dcmi_get_device_chip_info_v2") else "dcmi_get_device_chip_info"
        self._call(call, card, device, answer.pointer)
        info = answer.value
        return ChipNames(_name(info.chip_type), _name(info.chip_name), _name(info.chip_ver), _name(info.npu_name), _given(info.aicore_cnt))

    def die(self, card: int, device: int) -> tuple[int, ...]:
        """Return the five words of a chip's die id."""
        answer = _Answer(layouts.DieId)
        self._call("dcmi_get_device_die_v2", card, device, ctypes.c_int(_VDIE), answer.pointer)
        return tuple(answer.value.soc_die)

    def health(self, card: int, device: int) -> int | None:
        """Return a chip's health, 0 for healthy."""
        return self._number("dcmi_get_device_health", card, device)

    def total_resources(self, card: int, device: int) -> TotalResources:
        """Return what a chip has, and the ids of its vNPUs."""
        total = self._managed(_Answer(layouts.SocTotalResource), card, device, _TOTAL_RESOURCE)
        return TotalResources(_resources(total.computing), _given(total.vdev_num), tuple(total.vdev_id))

    def free_resources(self, card: int, device: int) -> Resources:
        """Return what a chip has left."""
        return _resources(self._managed(_Answer(layouts.SocFreeResource), card, device, _FREE_RESOURCE).computing)

    def vdev(self, card: int, device: int, vdev: int) -> VdevAnswer:
        """Return one vNPU of a chip."""
        answer = _Answer(layouts.VdevQuery)
        answer.value.vdev_id = vdev
        info = self._managed(answer, card, device, _VDEV_RESOURCE).query_info
        return VdevAnswer(
            name=_name(info.name),
            used=_given(info.is_container_used),
            vfid=_given(info.vfid),
            vgroup=_given(info.vfg_id),
            container=_given(info.container_id, _U64_NONE),
            cores=info.computing.aic,
            memory_mb=_given(info.computing.memory_size, _U64_NONE),
        )

    def processes(self, card: int, device: int) -> tuple[int | None, tuple[tuple[int, int], ...]]:
        """Return how many processes compute on a chip, and as many with pid and bytes of memory as there was room for."""
        count = ctypes.c_uint32(layouts.PROCESS_ROOM)
        answers = (layouts.ProcMemInfo * (layouts.PROCESS_ROOM + _MARGIN // 16))()
        self._call("dcmi_get_device_resource_info", card, device, answers, ctypes.byref(count))
        return _given(count.value), tuple((one.proc_id, one.proc_mem_usage) for one in answers[: layouts.PROCESS_ROOM])

    def mode(self) -> int | None:
        """Return for whom vNPUs are made: 0 Docker, 1 virtual machines."""
        return self._number("dcmi_get_vdevice_mode")

    def recover(self) -> int | None:
        """Return whether vNPUs are made again at boot."""
        return self._number("dcmi_get_vnpu_config_recover_mode")

    def destroy(self, card: int, device: int, vdev: int) -> int:
        """Destroy one vNPU and return the code, whatever it is. ValueError: an id that is not one vNPU's."""
        # The last of several guards: the library takes 65535 for all vNPUs of the chip.
        if not FIRST_VDEV <= vdev < VDEV_LIMIT:
            raise ValueError(f"{vdev} is not the id of a vNPU")
        return self._code("dcmi_set_destroy_vdevice", card, device, ctypes.c_uint(vdev))

    def _has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def _code(self, name: str, *arguments: Any) -> int:
        if not self._has(name):
            raise DcmiError(name, DcmiCode.SYMBOL_MISSING)
        self._before_call(name)
        return int(getattr(self._library, name)(*arguments))

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._code(name, *arguments)
        if code != DcmiCode.OK:
            raise DcmiError(name, code)

    def _number(self, name: str, *arguments: Any) -> int | None:
        result = _u32()
        self._call(name, *arguments, ctypes.byref(result))
        return _given(result.value)

    def _managed(self, answer: "_Answer", card: int, device: int, command: int) -> Any:
        """Ask the vNPU management of a chip; the size goes in and comes out."""
        size = ctypes.c_uint(ctypes.sizeof(answer.structure))
        self._call(
            "dcmi_get_device_info",
            card,
            device,
            ctypes.c_int(_VDEV_MANAGEMENT),
            ctypes.c_uint(command),
            answer.pointer,
            ctypes.byref(size),
        )
        return answer.value


class _Answer:
    """Room for one structure, all 0xFF, with a margin behind it."""

    def __init__(self, structure: type[ctypes.Structure]) -> None:
        self.structure = structure
        self._buffer = _bytes(ctypes.sizeof(structure))
        self.pointer = ctypes.byref(self._buffer)
        self.value: Any = structure.from_buffer(self._buffer)


def _bytes(size: int) -> "ctypes.Array[ctypes.c_uint8]":
    buffer = (ctypes.c_uint8 * (size + _MARGIN))()
    ctypes.memset(buffer, 0xFF, size)
    return buffer


def _u32() -> ctypes.c_uint32:
    return ctypes.c_uint32(_U32_NONE)


def _given(value: int, none: int = _U32_NONE) -> int | None:
    return None if value == none else value


def _name(field: Any) -> bytes | None:
    """Return the bytes before the first zero; None where the field was not filled."""
    raw = bytes(field)
    return None if raw[:1] == b"\xff" else raw.split(b"\0", 1)[0]


def _resources(computing: Any) -> Resources:
    return Resources(
        cores=computing.aic,
        memory_mb=_given(computing.memory_size, _U64_NONE),
        aicpus=_given(computing.device_aicpu_num, _U16_NONE),
    )


def _dlopen(path: str) -> int:
    """Load a library as the vendor's own tools do, and let other threads run meanwhile, which ctypes itself does not. Refused."""
    loader = ctypes.CDLL(None)
    dlopen, dlerror = loader.dlopen, loader.dlerror
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    dlerror.restype, dlerror.argtypes = ctypes.c_char_p, ()
    handle = dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_GLOBAL)
    if not handle:
        raise Refused(Refusal.LIBRARY_UNUSABLE, f"the library cannot be loaded: {(dlerror() or b'').decode('utf-8', 'replace')}")
    return int(handle)
