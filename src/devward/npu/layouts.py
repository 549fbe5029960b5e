"""The structures of dcmi_interface_api.h, little-endian LP64 with natural alignment; their sizes are checked when this is loaded."""

import ctypes
from typing import Final

CARD_ROOM: Final = 64
VDEV_ROOM: Final = 32
PROCESS_ROOM: Final = 32
DIE_WORDS: Final = 5

_u8, _u16, _u32, _u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
_f32 = ctypes.c_float


class ChipInfo(ctypes.Structure):
    """struct dcmi_chip_info_v2; the older dcmi_chip_info is the same without its last field."""

    _fields_ = (
        ("chip_type", _u8 * 32),
        ("chip_name", _u8 * 32),
        ("chip_ver", _u8 * 32),
        ("aicore_cnt", _u32),
        ("npu_name", _u8 * 32),
    )


class DieId(ctypes.Structure):
    """struct dcmi_die_id."""

    _fields_ = (("soc_die", _u32 * DIE_WORDS),)


class ProcMemInfo(ctypes.Structure):
    """struct dcmi_proc_mem_info."""

    _fields_ = (("proc_id", ctypes.c_int32), ("proc_mem_usage", _u64))


class BaseResource(ctypes.Structure):
    """struct dcmi_base_resource."""

    _fields_ = (
        ("token", _u64),
        ("token_max", _u64),
        ("task_timeout", _u64),
        ("vfg_id", _u32),
        ("vip_mode", _u8),
        ("reserved", _u8 * 31),
    )


class ComputingResource(ctypes.Structure):
    """struct dcmi_computing_resource."""

    _fields_ = (
        ("aic", _f32),
        ("aiv", _f32),
        ("dsa", _u16),
        ("rtsq", _u16),
        ("acsq", _u16),
        ("cdqm", _u16),
        ("c_core", _u16),
        ("ffts", _u16),
        ("sdma", _u16),
        ("pcie_dma", _u16),
        ("memory_size", _u64),
        ("event_id", _u32),
        ("notify_id", _u32),
        ("stream_id", _u32),
        ("model_id", _u32),
        ("topic_schedule_aicpu", _u16),
        ("host_ctrl_cpu_num", _u16),
        ("host_aicpu_num", _u16),
        ("device_aicpu_num", _u16),
        ("topic_ctrl_cpu_slot", _u16),
        ("vdev_aicore_utilization", _u32),
        ("vdev_memory_total", _u64),
        ("vdev_memory_free", _u64),
        ("reserved", _u8 * 12),
    )


class MediaResource(ctypes.Structure):
    """struct dcmi_media_resource."""

    _fields_ = (
        ("jpegd", _f32),
        ("jpege", _f32),
        ("vpc", _f32),
        ("vdec", _f32),
        ("pngd", _f32),
        ("venc", _f32),
        ("reserved", _u8 * 32),
    )


class VdevQueryInfo(ctypes.Structure):
    """struct dcmi_vdev_query_info."""

    _fields_ = (
        ("name", _u8 * 16),
        ("status", _u32),
        ("is_container_used", _u32),
        ("vfid", _u32),
        ("vfg_id", _u32),
        ("container_id", _u64),
        ("base", BaseResource),
        ("computing", ComputingResource),
        ("media", MediaResource),
    )


class VdevQuery(ctypes.Structure):
    """struct dcmi_vdev_query_stru; `vdev_id` is the question."""

    _fields_ = (("vdev_id", _u32), ("query_info", VdevQueryInfo))


class SocTotalResource(ctypes.Structure):
    """struct dcmi_soc_total_resource."""

    _fields_ = (
        ("vdev_num", _u32),
        ("vdev_id", _u32 * VDEV_ROOM),
        ("vfg_num", _u32),
        ("vfg_bitmap", _u32),
        ("base", BaseResource),
        ("computing", ComputingResource),
        ("media", MediaResource),
    )


class SocFreeResource(ctypes.Structure):
    """struct dcmi_soc_free_resource."""

    _fields_ = (
        ("vfg_num", _u32),
        ("vfg_bitmap", _u32),
        ("base", BaseResource),
        ("computing", ComputingResource),
        ("media", MediaResource),
    )


SIZES: Final[dict[type[ctypes.Structure], int]] = {
    ChipInfo: 132,
    DieId: 20,
    ProcMemInfo: 16,
    BaseResource: 64,
    ComputingResource: 96,
    MediaResource: 56,
    VdevQueryInfo: 256,
    VdevQuery: 264,
    SocTotalResource: 360,
    SocFreeResource: 224,
}

for _structure, _size in SIZES.items():
    # Not an assertion, which -O would leave out: with another layout the library would write beyond our memory.
    if ctypes.sizeof(_structure) != _size:
        raise ImportError(f"{_structure.__name__} has {ctypes.sizeof(_structure)} bytes on this machine, and the vendor's has {_size}")
