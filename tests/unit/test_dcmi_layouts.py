"""The structures of the vendor's library: sizes and offsets as its header has them."""

import ctypes

import pytest

from devward.npu import layouts

OFFSETS: dict[type[ctypes.Structure], dict[str, int]] = {
    layouts.ChipInfo: {"chip_type": 0, "chip_name": 32, "chip_ver": 64, "aicore_cnt": 96, "npu_name": 100},
    layouts.DieId: {"soc_die": 0},
    layouts.ProcMemInfo: {"proc_id": 0, "proc_mem_usage": 8},
    layouts.BaseResource: {"token": 0, "token_max": 8, "task_timeout": 16, "vfg_id": 24, "vip_mode": 28, "reserved": 29},
    layouts.ComputingResource: {
        "aic": 0,
        "aiv": 4,
        "dsa": 8,
        "rtsq": 10,
        "acsq": 12,
        "cdqm": 14,
        "c_core": 16,
        "ffts": 18,
        "sdma": 20,
        "pcie_dma": 22,
        "memory_size": 24,
        "event_id": 32,
        "notify_id": 36,
        "stream_id": 40,
        "model_id": 44,
        "topic_schedule_aicpu": 48,
        "host_ctrl_cpu_num": 50,
        "host_aicpu_num": 52,
        "device_aicpu_num": 54,
        "topic_ctrl_cpu_slot": 56,
        "vdev_aicore_utilization": 60,
        "vdev_memory_total": 64,
        "vdev_memory_free": 72,
        "reserved": 80,
    },
    layouts.MediaResource: {"jpegd": 0, "jpege": 4, "vpc": 8, "vdec": 12, "pngd": 16, "venc": 20, "reserved": 24},
    layouts.VdevQueryInfo: {
        "name": 0,
        "status": 16,
        "is_container_used": 20,
        "vfid": 24,
        "vfg_id": 28,
        "container_id": 32,
        "base": 40,
        "computing": 104,
        "media": 200,
    },
    layouts.VdevQuery: {"vdev_id": 0, "query_info": 8},
    layouts.SocTotalResource: {
        "vdev_num": 0,
        "vdev_id": 4,
        "vfg_num": 132,
        "vfg_bitmap": 136,
        "base": 144,
        "computing": 208,
        "media": 304,
    },
    layouts.SocFreeResource: {"vfg_num": 0, "vfg_bitmap": 4, "base": 8, "computing": 72, "media": 168},
}


def test_every_structure_is_checked() -> None:
    structures = {value for value in vars(layouts).values() if isinstance(value, type) and issubclass(value, ctypes.Structure)}
    assert structures == set(layouts.SIZES) == set(OFFSETS)


@pytest.mark.parametrize("structure", layouts.SIZES, ids=lambda structure: structure.__name__)
def test_sizes_and_offsets(structure: type[ctypes.Structure]) -> None:
    assert ctypes.sizeof(structure) == layouts.SIZES[structure]
    fields = [str(field[0]) for field in structure._fields_]
    assert {name: getattr(structure, name).offset for name in fields} == OFFSETS[structure]


def test_the_older_chip_info_is_the_beginning_of_the_newer() -> None:
    assert layouts.ChipInfo.npu_name.offset == 100
