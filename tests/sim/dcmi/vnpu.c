/* Making and destroying vNPUs: who may, which slot is taken, what refuses, and what becomes of vnpu.cfg. */

#include "vnpu.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cfg.h"

/* CAP_CHOWN to CAP_AUDIT_READ: what the driver wants of a process outside the host's mount namespace. */
#define ALL_CAPABILITIES 0x3FFFFFFFFFULL

static bool is_on_host(void)
{
    struct stat own, first;

    return stat("/proc/self/ns/mnt", &own) == 0 && stat("/proc/1/ns/mnt", &first) == 0 && own.st_ino == first.st_ino &&
           own.st_dev == first.st_dev;
}

static bool has_all_capabilities(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[128];
    uint64_t effective = 0;

    if (!file)
        return false;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "CapEff: %" SCNx64, &effective) == 1)
            break;
    }
    fclose(file);
    return (effective & ALL_CAPABILITIES) == ALL_CAPABILITIES;
}

int vnpu_permission(const struct node *node)
{
    if (strcmp(node->permission, "any") == 0)
        return OK;
    if (geteuid() != 0)
        return NOT_PERMITTED;
    /* The kernel's refusal, EACCES, comes out as a failed ioctl. */
    return strcmp(node->permission, "host") || is_on_host() || has_all_capabilities() ? OK : IOCTL_FAILED;
}

static const struct template *find_template(const struct state *state, const struct chip *chip, const char *name)
{
    for (size_t index = 0; index < state->template_count; index++) {
        const struct template *template = &state->templates[index];

        if (strcmp(template->family, chip->family) == 0 && strcmp(template->name, name) == 0)
            return template;
    }
    return NULL;
}

static bool is_in_window(const struct chip *chip, uint32_t id)
{
    return id >= FIRST_VDEV && id < VDEV_END && (id - FIRST_VDEV) / WINDOW == (uint32_t)chip->phy;
}

static int choose_id(struct state *state, const struct chip *chip, uint32_t wanted, uint32_t *id)
{
    uint32_t first = FIRST_VDEV + WINDOW * (uint32_t)chip->phy;

    if (wanted != AUTOMATIC) {
        bool fits = is_in_window(chip, wanted) && wanted - first < (uint32_t)chip->slots;

        *id = wanted;
        return fits && !state_vnpu(state, chip, wanted) ? OK : INVALID_PARAMETER;
    }
    for (uint32_t slot = 0; slot < (uint32_t)chip->slots; slot++) {
        *id = first + slot;
        if (!state_vnpu(state, chip, *id))
            return OK;
    }
    return IOCTL_FAILED;
}

static int choose_vgroup(const struct state *state, const struct chip *chip, uint32_t wanted, uint32_t *vgroup)
{
    uint32_t used = 0;

    *vgroup = 0;
    if (!chip->vgroups)
        return wanted == AUTOMATIC || wanted == 0 ? OK : INVALID_PARAMETER;
    if (wanted != AUTOMATIC) {
        *vgroup = wanted;
        return wanted < (uint32_t)chip->vgroups ? OK : INVALID_PARAMETER;
    }
    for (size_t index = 0; index < state->vnpu_count; index++) {
        const struct vnpu *vnpu = &state->vnpus[index];

        if (vnpu->card == chip->card && vnpu->dev == chip->dev && vnpu->vfg < 32)
            used |= 1U << vnpu->vfg;
    }
    while (*vgroup + 1 < (uint32_t)chip->vgroups && used & 1U << *vgroup)
        ++*vgroup;
    if (used & 1U << *vgroup)
        *vgroup = 0;
    return OK;
}

static bool has_room(const struct state *state, const struct chip *chip, const struct template *template)
{
    float cores = template->aic;
    uint64_t memory = template->memory;

    for (size_t index = 0; index < state->vnpu_count; index++) {
        const struct vnpu *vnpu = &state->vnpus[index];

        if (vnpu->card == chip->card && vnpu->dev == chip->dev) {
            cores += vnpu->aic;
            memory += vnpu->memory;
        }
    }
    return cores <= (float)chip->cores && memory <= chip->memory;
}

/* What both changes ask first, in the vendor's order. */
static int check_chip(const struct call *call, const struct chip *chip)
{
    int code = vnpu_permission(&call->state->node);

    if (code)
        return code;
    if (chip->type != UNIT_NPU || !chip->splittable)
        return NOT_SUPPORTED;
    return call->state->node.mode == 0 ? OK : OCCUPIED;
}

int vnpu_create(struct call *call, const struct chip *chip, const struct create_request *request, struct create_reply *reply)
{
    struct state *state = call->state;
    char name[sizeof request->template_name + 1] = "";
    const struct template *template;
    struct vnpu *vnpu;
    uint32_t id, vgroup;
    bool recover;
    int code = check_chip(call, chip);

    memcpy(name, request->template_name, sizeof request->template_name);
    template = find_template(state, chip, name);
    if (!code && (!template || strlen(name) >= sizeof ((struct vdev_info *)0)->name))
        code = INVALID_PARAMETER;
    if (!code)
        code = choose_id(state, chip, request->vdev_id, &id);
    if (!code)
        code = choose_vgroup(state, chip, request->vfg_id, &vgroup);
    if (code)
        return code;
    if (!has_room(state, chip, template))
        return IOCTL_FAILED;
    vnpu = state_add_vnpu(state);
    *vnpu = (struct vnpu){
        .card = chip->card,
        .dev = chip->dev,
        .id = id,
        .status = NOT_FILLED,
        .vfid = (id - FIRST_VDEV) % WINDOW + 1,
        .vfg = vgroup,
        .aic = template->aic,
        .memory = template->memory,
        .aicpu = template->aicpu,
    };
    memcpy(vnpu->name, name, sizeof vnpu->name - 1);
    code = cfg_get_recover(&state->node, &recover);
    if (!code && recover)
        code = cfg_insert(&state->node, chip, vnpu);
    if (code) { /* what cannot be recorded is taken back */
        state_remove_vnpu(state, vnpu);
        return code;
    }
    call->changed = true;
    memset(reply, 0, sizeof *reply);
    reply->vdev_id = id;
    reply->pcie_bus = (uint32_t)chip->phy + 1;
    reply->pcie_function = vnpu->vfid;
    reply->vfg_id = vgroup;
    return OK;
}

/* A namespace whose processes are gone holds nothing any longer. */
static void prune(struct call *call, struct vnpu *vnpu)
{
    if (vnpu->used && vnpu->occupant > 0 && kill(vnpu->occupant, 0) < 0 && errno == ESRCH) {
        vnpu->used = 0;
        vnpu->occupant = 0;
        call->changed = true;
    }
}

/* All that are idle; those in use stay and make an error of it. */
static int destroy_whole_chip(struct call *call, const struct chip *chip, bool recorded)
{
    struct state *state = call->state;
    int code = OK;

    for (size_t index = 0; index < state->vnpu_count;) {
        struct vnpu *vnpu = &state->vnpus[index];

        if (vnpu->card != chip->card || vnpu->dev != chip->dev) {
            index++;
            continue;
        }
        prune(call, vnpu);
        if (vnpu->used) {
            code = INVALID_PARAMETER;
            index++;
            continue;
        }
        state_remove_vnpu(state, vnpu);
        call->changed = true;
    }
    return code || !recorded ? code : cfg_remove(&state->node, chip->phy, WHOLE_CHIP);
}

int vnpu_destroy(struct call *call, const struct chip *chip, uint32_t id)
{
    struct state *state = call->state;
    struct vnpu *vnpu, removed;
    bool recover;
    int code = check_chip(call, chip), recorded = NO_SUCH_DEVICE;

    if (!code)
        code = cfg_get_recover(&state->node, &recover);
    if (!code && recover && id != WHOLE_CHIP)
        recorded = cfg_find(&state->node, chip->phy, id);
    if (code || recorded == FILE_FAILED)
        return code ? code : recorded;
    if (id == WHOLE_CHIP)
        return destroy_whole_chip(call, chip, recover);
    if (!is_in_window(chip, id))
        return INVALID_PARAMETER;
    vnpu = state_vnpu(state, chip, id);
    if (!vnpu)
        return NO_SUCH_DEVICE;
    prune(call, vnpu);
    if (vnpu->used)
        return INVALID_PARAMETER;
    removed = *vnpu;
    state_remove_vnpu(state, vnpu);
    call->changed = true;
    if (recorded == OK)
        code = cfg_remove(&state->node, chip->phy, id);
    if (code) /* what stays recorded is made again, and the error returned all the same */
        *state_add_vnpu(state) = removed;
    return code;
}
