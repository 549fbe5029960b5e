/* The calls of the library about vNPUs, and the ones about the node's settings for them. */

#include <string.h>

#include "cfg.h"
#include "vnpu.h"

#define MAX_PROCESSES 32

static int answer_vdev(struct call *call, const struct chip *chip, unsigned command, void *buffer, unsigned *size)
{
    static const struct {
        unsigned command;
        unsigned size;
    } replies[] = {
        {GET_VDEV_RESOURCE, sizeof(struct vdev_query)},
        {GET_TOTAL_RESOURCE, sizeof(struct total_resource)},
        {GET_FREE_RESOURCE, sizeof(struct free_resource)},
        {GET_VDEV_ACTIVITY, sizeof(struct vdev_query)},
    };
    size_t index = 0, count = sizeof replies / sizeof *replies;

    while (index < count && replies[index].command != command)
        index++;
    if (index == count)
        return NOT_SUPPORTED;
    if (*size < replies[index].size)
        return INVALID_PARAMETER;
    *size = replies[index].size;
    switch (command) {
    case GET_VDEV_RESOURCE:
        return vnpu_query(call, chip, buffer);
    case GET_TOTAL_RESOURCE:
        return vnpu_total(call, chip, buffer);
    case GET_FREE_RESOURCE:
        return vnpu_free(call, chip, buffer);
    default:
        return vnpu_activity(call, chip, buffer);
    }
}

EXPORT int dcmi_get_device_info(int card, int dev, int main_command, unsigned sub_command, void *buffer, unsigned *size)
{
    bool names_vdev = main_command == MAIN_COMMAND_VDEV && (sub_command == GET_VDEV_RESOURCE || sub_command == GET_VDEV_ACTIVITY);
    struct call call = CALL(card, dev, NONE, sub_command, {buffer, size ? *size : 1}, OUTPUT(size));
    const struct chip *chip;
    int code;

    if (names_vdev && buffer && size && *size >= sizeof(uint32_t))
        call.id = ((const struct vdev_query *)buffer)->vdev_id;
    chip = call_begin_chip(&call, &code);
    if (chip)
        code = main_command == MAIN_COMMAND_VDEV ? answer_vdev(&call, chip, sub_command, buffer, size) : NOT_SUPPORTED;
    return call_end(&call, code);
}

EXPORT int dcmi_create_vdevice(int card, int dev, struct create_request *request, struct create_reply *reply)
{
    char name[sizeof request->template_name + 1] = "";
    struct call call = CALL(card, dev, NONE, NONE, OUTPUT(reply));
    const struct chip *chip;
    int code;

    if (request) {
        memcpy(name, request->template_name, sizeof request->template_name);
        call.id = request->vdev_id;
        call.detail = name;
    }
    chip = call_begin_chip(&call, &code);
    if (chip)
        code = request ? vnpu_create(&call, chip, request, reply) : INVALID_PARAMETER;
    return call_end(&call, code);
}

EXPORT int dcmi_set_destroy_vdevice(int card, int dev, unsigned vdev)
{
    struct call call = CALL(card, dev, vdev, NONE);
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip)
        code = vnpu_destroy(&call, chip, vdev);
    return call_end(&call, code);
}

EXPORT int dcmi_get_vdevice_mode(int *mode)
{
    struct call call = CALL(NONE, NONE, NONE, NONE, OUTPUT(mode));
    int code = call_begin_node(&call);

    if (!code && !call.state->node.supports_mode)
        code = NOT_SUPPORTED;
    if (!code)
        *mode = call.state->node.mode;
    return call_end(&call, code);
}

EXPORT int dcmi_set_vdevice_mode(int mode)
{
    struct call call = CALL(NONE, NONE, NONE, mode);
    int code = call_begin_node(&call);

    if (!code)
        code = call.state->node.supports_mode ? vnpu_permission(&call.state->node) : NOT_SUPPORTED;
    if (!code && mode != 0 && mode != 1)
        code = INVALID_PARAMETER;
    if (!code && mode != call.state->node.mode) {
        if (call.state->vnpu_count) {
            code = OCCUPIED;
        } else {
            call.state->node.mode = mode;
            call.changed = true;
        }
    }
    return call_end(&call, code);
}

EXPORT int dcmi_get_vnpu_config_recover_mode(unsigned *mode)
{
    struct call call = CALL(NONE, NONE, NONE, NONE, OUTPUT(mode));
    int code = call_begin_node(&call);
    bool enabled = false;

    if (!code && !call.state->node.supports_recover)
        code = NOT_SUPPORTED;
    if (!code)
        code = cfg_get_recover(&call.state->node, &enabled) ? INNER_ERROR : OK;
    if (!code)
        *mode = enabled;
    return call_end(&call, code);
}

EXPORT int dcmi_set_vnpu_config_recover_mode(unsigned mode)
{
    struct call call = CALL(NONE, NONE, NONE, mode);
    int code = call_begin_node(&call);

    if (!code)
        code = call.state->node.supports_recover ? vnpu_permission(&call.state->node) : NOT_SUPPORTED;
    if (!code && mode > 1)
        code = INVALID_PARAMETER;
    if (!code)
        code = cfg_set_recover(&call.state->node, mode) ? INNER_ERROR : OK;
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_resource_info(int card, int dev, struct process_memory *processes, int *count)
{
    struct call call = CALL(card, dev, NONE, NONE, {processes, MAX_PROCESSES * sizeof *processes}, OUTPUT(count));
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip) {
        *count = 0;
        for (size_t index = 0; index < call.state->process_count && *count < MAX_PROCESSES; index++) {
            const struct process *process = &call.state->processes[index];

            if (process->card != card || process->dev != dev)
                continue;
            processes[*count].process = process->pid;
            processes[*count].bytes = process->memory;
            ++*count;
        }
    }
    return call_end(&call, code);
}

EXPORT int dcmi_get_product_type(int card, int dev, char *text, int size)
{
    struct call call = CALL(card, dev, NONE, NONE, {text, size > 0 ? (size_t)size : 1});
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip && (size <= 0 || strlen(chip->product) >= (size_t)size))
        code = INVALID_PARAMETER;
    else if (chip)
        put_name(text, (size_t)size, chip->product);
    return call_end(&call, code);
}

EXPORT int dcmi_get_dcmi_version(char *text, int size)
{
    struct call call = CALL(NONE, NONE, NONE, NONE, {text, size > 0 ? (size_t)size : 1});
    int code = call_begin_node(&call);

    if (!code && (size <= 0 || strlen(call.state->node.version) >= (size_t)size))
        code = INVALID_PARAMETER;
    if (!code)
        put_name(text, (size_t)size, call.state->node.version);
    return call_end(&call, code);
}
