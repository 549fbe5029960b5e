/* What the driver answers about vNPUs and the resources of a chip. Fields that it does not fill are all ones. */

#include <string.h>

#include "vnpu.h"

static void put_media(struct media_resource *media, const struct chip *chip)
{
    media->jpegd = chip->jpegd;
    media->jpege = chip->jpege;
    media->vpc = chip->vpc;
    media->vdec = chip->vdec;
    media->pngd = chip->pngd;
    media->venc = chip->venc;
}

static bool is_of(const struct vnpu *vnpu, const struct chip *chip)
{
    return vnpu->card == chip->card && vnpu->dev == chip->dev;
}

int vnpu_query(struct call *call, const struct chip *chip, struct vdev_query *query)
{
    const struct vnpu *vnpu = state_vnpu(call->state, chip, query->vdev_id);
    struct vdev_info *info = &query->info;

    if (!chip->splittable)
        return NOT_SUPPORTED;
    if (!vnpu)
        return NO_SUCH_DEVICE;
    memset(info, 0xFF, sizeof *info);
    put_name(info->name, sizeof info->name, vnpu->name);
    info->status = vnpu->status;
    info->is_container_used = vnpu->used;
    info->vfid = vnpu->vfid;
    info->vfg_id = vnpu->vfg;
    info->container_id = vnpu->container;
    info->base.vfg_id = vnpu->vfg;
    info->computing.aic = vnpu->aic;
    info->computing.memory_size = vnpu->memory;
    info->computing.device_aicpu = (uint16_t)vnpu->aicpu;
    return OK;
}

int vnpu_activity(struct call *call, const struct chip *chip, struct vdev_query *query)
{
    const struct vnpu *vnpu = state_vnpu(call->state, chip, query->vdev_id);

    if (!chip->splittable || !chip->activity)
        return NOT_SUPPORTED;
    if (!vnpu)
        return NO_SUCH_DEVICE;
    memset(&query->info, 0xFF, sizeof query->info);
    query->info.computing.vdev_aicore_utilization = vnpu->used ? 50 : 0;
    query->info.computing.vdev_memory_total = vnpu->memory << 20;
    query->info.computing.vdev_memory_free = vnpu->used ? vnpu->memory << 19 : vnpu->memory << 20;
    return OK;
}

/* The driver lists by slot. */
static void insert_sorted(uint32_t *ids, uint32_t count, uint32_t id)
{
    for (; count > 0 && ids[count - 1] > id; count--)
        ids[count] = ids[count - 1];
    ids[count] = id;
}

int vnpu_total(struct call *call, const struct chip *chip, struct total_resource *total)
{
    if (!chip->splittable)
        return NOT_SUPPORTED;
    memset(total, 0xFF, sizeof *total);
    total->vdev_count = 0;
    for (size_t index = 0; index < call->state->vnpu_count && total->vdev_count < MAX_LISTED_VDEVS; index++) {
        const struct vnpu *vnpu = &call->state->vnpus[index];

        if (is_of(vnpu, chip))
            insert_sorted(total->vdev_ids, total->vdev_count++, vnpu->id);
    }
    if (chip->vgroups) {
        total->vfg_count = (uint32_t)chip->vgroups;
        total->vfg_bitmap = (1U << chip->vgroups) - 1;
    }
    total->computing.aic = (float)chip->cores;
    total->computing.memory_size = chip->memory;
    total->computing.device_aicpu = (uint16_t)chip->aicpu;
    put_media(&total->media, chip);
    call_lie(call, &total->vdev_count, total->vdev_ids, MAX_LISTED_VDEVS);
    return OK;
}

int vnpu_free(struct call *call, const struct chip *chip, struct free_resource *rest)
{
    float cores = (float)chip->cores;
    uint64_t memory = chip->memory;
    uint32_t used_vgroups = 0;

    if (!chip->splittable)
        return NOT_SUPPORTED;
    memset(rest, 0xFF, sizeof *rest);
    for (size_t index = 0; index < call->state->vnpu_count; index++) {
        const struct vnpu *vnpu = &call->state->vnpus[index];

        if (!is_of(vnpu, chip))
            continue;
        cores = vnpu->aic < cores ? cores - vnpu->aic : 0;
        memory = vnpu->memory < memory ? memory - vnpu->memory : 0;
        if (vnpu->vfg < 32)
            used_vgroups |= 1U << vnpu->vfg;
    }
    if (chip->vgroups) {
        rest->vfg_bitmap = ((1U << chip->vgroups) - 1) & ~used_vgroups;
        rest->vfg_count = (uint32_t)__builtin_popcount(rest->vfg_bitmap);
    }
    rest->computing.aic = cores;
    rest->computing.memory_size = memory;
    rest->computing.device_aicpu = (uint16_t)chip->aicpu;
    put_media(&rest->media, chip);
    return OK;
}
