/* The structures that cross the border of the vendor's library, with the sizes and offsets that its callers rely on. */

#ifndef DCMI_SIM_LAYOUTS_H
#define DCMI_SIM_LAYOUTS_H

#include <stddef.h>
#include <stdint.h>

#define MAX_LISTED_VDEVS 32
#define WHOLE_CHIP 0xFFFFU     /* as a vdev id for destroy: all of the chip */
#define AUTOMATIC 0xFFFFFFFFU  /* as a vdev or vgroup id for create */
#define NOT_FILLED 0xFFFFFFFFU /* what a field reads that the driver leaves alone */

enum return_code {
    OK = 0,
    INVALID_PARAMETER = -8001,
    NOT_PERMITTED = -8002,
    INNER_ERROR = -8005,
    INVALID_DEVICE = -8007,
    NO_SUCH_DEVICE = -8008,
    IOCTL_FAILED = -8009,
    FILE_FAILED = -8014,
    OCCUPIED = -8020,
    NOT_SUPPORTED = -8255,
};

enum unit_type { UNIT_NPU = 0, UNIT_MCU = 1, UNIT_CPU = 2 };

#define MAIN_COMMAND_VDEV 52

enum vdev_command {
    GET_VDEV_RESOURCE = 0,
    GET_TOTAL_RESOURCE = 1,
    GET_FREE_RESOURCE = 2,
    GET_VDEV_ACTIVITY = 5,
};

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)

struct chip_info {
    unsigned char chip_type[32];
    unsigned char chip_name[32];
    unsigned char chip_version[32];
    uint32_t aicore_count;
};
SIZE(struct chip_info, 100);
AT(struct chip_info, aicore_count, 96);

struct chip_info_v2 {
    struct chip_info first;
    unsigned char npu_name[32];
};
SIZE(struct chip_info_v2, 132);
AT(struct chip_info_v2, npu_name, 100);

struct die_id {
    uint32_t words[5];
};
SIZE(struct die_id, 20);

struct board_info {
    uint32_t board_id, pcb_id, bom_id, slot_id;
};
SIZE(struct board_info, 16);

struct process_memory {
    int32_t process;
    uint64_t bytes;
};
SIZE(struct process_memory, 16);
AT(struct process_memory, bytes, 8);

struct base_resource {
    uint64_t token, token_max, task_timeout;
    uint32_t vfg_id;
    uint8_t vip_mode;
    uint8_t reserved[31];
};
SIZE(struct base_resource, 64);
AT(struct base_resource, vfg_id, 24);
AT(struct base_resource, vip_mode, 28);

struct computing_resource {
    float aic, aiv;
    uint16_t dsa, rtsq, acsq, cdqm, c_core, ffts, sdma, pcie_dma;
    uint64_t memory_size;
    uint32_t event_id, notify_id, stream_id, model_id;
    uint16_t topic_schedule_aicpu, host_ctrl_cpu, host_aicpu, device_aicpu, topic_ctrl_cpu_slot;
    uint32_t vdev_aicore_utilization;
    uint64_t vdev_memory_total, vdev_memory_free;
    uint8_t reserved[12];
};
SIZE(struct computing_resource, 96);
AT(struct computing_resource, dsa, 8);
AT(struct computing_resource, memory_size, 24);
AT(struct computing_resource, event_id, 32);
AT(struct computing_resource, topic_schedule_aicpu, 48);
AT(struct computing_resource, device_aicpu, 54);
AT(struct computing_resource, vdev_aicore_utilization, 60);
AT(struct computing_resource, vdev_memory_total, 64);
AT(struct computing_resource, reserved, 80);

struct media_resource {
    float jpegd, jpege, vpc, vdec, pngd, venc;
    uint8_t reserved[32];
};
SIZE(struct media_resource, 56);
AT(struct media_resource, reserved, 24);

struct vdev_info {
    char name[16];
    uint32_t status, is_container_used, vfid, vfg_id;
    uint64_t container_id;
    struct base_resource base;
    struct computing_resource computing;
    struct media_resource media;
};
SIZE(struct vdev_info, 256);
AT(struct vdev_info, is_container_used, 20);
AT(struct vdev_info, container_id, 32);
AT(struct vdev_info, base, 40);
AT(struct vdev_info, computing, 104);
AT(struct vdev_info, media, 200);

struct vdev_query {
    uint32_t vdev_id; /* the caller's question */
    struct vdev_info info;
};
SIZE(struct vdev_query, 264);
AT(struct vdev_query, info, 8);

struct total_resource {
    uint32_t vdev_count;
    uint32_t vdev_ids[MAX_LISTED_VDEVS];
    uint32_t vfg_count, vfg_bitmap;
    struct base_resource base;
    struct computing_resource computing;
    struct media_resource media;
};
SIZE(struct total_resource, 360);
AT(struct total_resource, vfg_count, 132);
AT(struct total_resource, base, 144);
AT(struct total_resource, computing, 208);
AT(struct total_resource, media, 304);

struct free_resource {
    uint32_t vfg_count, vfg_bitmap;
    struct base_resource base;
    struct computing_resource computing;
    struct media_resource media;
};
SIZE(struct free_resource, 224);
AT(struct free_resource, base, 8);
AT(struct free_resource, computing, 72);
AT(struct free_resource, media, 168);

struct create_request {
    uint32_t vdev_id, vfg_id;
    char template_name[32];
    uint8_t reserved[64];
};
SIZE(struct create_request, 104);
AT(struct create_request, template_name, 8);
AT(struct create_request, reserved, 40);

struct create_reply {
    uint32_t vdev_id, pcie_bus, pcie_device, pcie_function, vfg_id;
    uint8_t reserved[32];
};
SIZE(struct create_reply, 52);
AT(struct create_reply, reserved, 20);

#endif
