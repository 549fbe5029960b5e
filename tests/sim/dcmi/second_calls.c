/* The second generation of the library's calls, for the 950: by one device id instead of card and device, and without vNPUs. */

#include <string.h>

#include "call.h"

#define MAX_PROCESSES 32

EXPORT int dcmiv2_init(void)
{
    struct call call = CALL(NONE, NONE, NONE, NONE);

    return call_init(&call);
}

/* The device id is the logic id. */
static struct chip *begin_device(struct call *call, int *code)
{
    *code = call_begin_node(call);
    for (size_t index = 0; !*code && index < call->state->chip_count; index++) {
        struct chip *chip = &call->state->chips[index];

        if (chip->present && chip->type == UNIT_NPU && chip->logic == call->dev)
            return chip;
    }
    if (!*code)
        *code = INVALID_DEVICE;
    return NULL;
}

EXPORT int dcmiv2_get_device_list(int *list, int *count, int length)
{
    size_t size = length > 0 ? (size_t)length * sizeof *list : sizeof *list;
    struct call call = CALL(NONE, NONE, NONE, NONE, {list, size}, OUTPUT(count));
    int code = call_begin_node(&call);
    uint32_t found = 0;

    if (!code && length <= 0)
        code = INVALID_PARAMETER;
    if (!code)
        memset(list, 0xFF, size);
    for (size_t index = 0; !code && index < call.state->chip_count; index++) {
        const struct chip *chip = &call.state->chips[index];

        if (!chip->present || chip->type != UNIT_NPU)
            continue;
        if (found == (uint32_t)length)
            code = INVALID_PARAMETER;
        else
            list[found++] = chip->logic;
    }
    if (!code) {
        call_lie(&call, &found, (uint32_t *)list, (uint32_t)length);
        *count = (int)found;
    }
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_all_device_count(int *count)
{
    struct call call = CALL(NONE, NONE, NONE, NONE, OUTPUT(count));
    int code = call_begin_node(&call);

    if (!code) {
        *count = 0;
        for (size_t index = 0; index < call.state->chip_count; index++)
            *count += call.state->chips[index].present && call.state->chips[index].type == UNIT_NPU;
    }
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_device_type(int dev, int *type)
{
    struct call call = CALL(NONE, dev, NONE, NONE, OUTPUT(type));
    int code;
    const struct chip *chip = begin_device(&call, &code);

    if (chip)
        *type = chip->type;
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_device_chip_info(int dev, struct chip_info_v2 *info)
{
    struct call call = CALL(NONE, dev, NONE, NONE, OUTPUT(info));
    int code;
    const struct chip *chip = begin_device(&call, &code);

    if (chip) {
        put_name(info->first.chip_type, sizeof info->first.chip_type, chip->chip_type);
        put_name(info->first.chip_name, sizeof info->first.chip_name, chip->name);
        put_name(info->first.chip_version, sizeof info->first.chip_version, chip->chip_version);
        put_name(info->npu_name, sizeof info->npu_name, chip->npu_name);
        info->first.aicore_count = chip->cores;
    }
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_device_health(int dev, unsigned *health)
{
    struct call call = CALL(NONE, dev, NONE, NONE, OUTPUT(health));
    int code;
    const struct chip *chip = begin_device(&call, &code);

    if (chip)
        *health = chip->health;
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_device_info(int dev, int main_command, unsigned sub_command, void *buffer, unsigned *size)
{
    struct call call = CALL(NONE, dev, main_command, sub_command, {buffer, size ? *size : 1}, OUTPUT(size));
    int code;

    if (begin_device(&call, &code))
        code = NOT_SUPPORTED;
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_chip_phy_id_by_dev_id(unsigned dev, unsigned *phy)
{
    struct call call = CALL(NONE, (int)dev, NONE, NONE, OUTPUT(phy));
    int code;
    const struct chip *chip = begin_device(&call, &code);

    if (chip)
        *phy = (unsigned)chip->phy;
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_dev_id_by_chip_phy_id(unsigned phy, unsigned *dev)
{
    struct call call = CALL(NONE, NONE, phy, NONE, OUTPUT(dev));
    int code = call_begin_node(&call);

    for (size_t index = 0; !code && index < call.state->chip_count; index++) {
        const struct chip *chip = &call.state->chips[index];

        if (chip->present && chip->type == UNIT_NPU && (unsigned)chip->phy == phy) {
            *dev = (unsigned)chip->logic;
            return call_end(&call, OK);
        }
    }
    return call_end(&call, code ? code : INVALID_DEVICE);
}

EXPORT int dcmiv2_get_device_die_id(int dev, int die_type, struct die_id *die)
{
    struct call call = CALL(NONE, dev, NONE, die_type, OUTPUT(die));
    int code;
    const struct chip *chip = begin_device(&call, &code);

    if (chip && (die_type < 0 || die_type > 1))
        code = INVALID_PARAMETER;
    else if (chip)
        memcpy(die->words, die_type ? chip->vdie : chip->ndie, sizeof die->words);
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_device_board_info(int dev, struct board_info *info)
{
    struct call call = CALL(NONE, dev, NONE, NONE, OUTPUT(info));
    int code;
    const struct chip *chip = begin_device(&call, &code);

    if (chip)
        *info = (struct board_info){chip->board, chip->pcb, chip->bom, chip->slot};
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_device_proc_mem_info(int dev, struct process_memory *processes, int *count)
{
    struct call call = CALL(NONE, dev, NONE, NONE, {processes, MAX_PROCESSES * sizeof *processes}, OUTPUT(count));
    int code;
    const struct chip *chip = begin_device(&call, &code);

    if (chip) {
        *count = 0;
        for (size_t index = 0; index < call.state->process_count && *count < MAX_PROCESSES; index++) {
            const struct process *process = &call.state->processes[index];

            if (process->card == chip->card && process->dev == chip->dev)
                processes[(*count)++] = (struct process_memory){.process = process->pid, .bytes = process->memory};
        }
    }
    return call_end(&call, code);
}

EXPORT int dcmiv2_get_dcmi_version(char *text, int size)
{
    struct call call = CALL(NONE, NONE, NONE, NONE, {text, size > 0 ? (size_t)size : 1});
    int code = call_begin_node(&call);

    if (!code && (size <= 0 || strlen(call.state->node.version) >= (size_t)size))
        code = INVALID_PARAMETER;
    if (!code)
        put_name(text, (size_t)size, call.state->node.version);
    return call_end(&call, code);
}
