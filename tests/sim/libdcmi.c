/* The vendor's library for Ascend NPUs, simulated: its symbols and layouts over a state file, and whatever misbehaviour is asked for.
 *
 * Put in the vendor's place it makes an installed system believe in NPUs. It is driven by the text file that DEVWARD_SIM_DCMI_STATE
 * names, else /run/devward-sim/dcmi.state; dcmi_simulator.py writes and reads that. The file is read again whenever it changed and
 * replaced as a whole, by a rename, under flock() of FILE.lock; any number of processes may share it.
 *
 * First line: `devward-dcmi-state 1 GENERATION`, a number that each writer raises. Then one thing a line, `kind key=value ...`, with keys
 * in any order; what is left out is 0 or empty; lines that begin with # say nothing. A text has %XX for blanks, control characters, % and
 * bytes beyond ASCII; `-` is the number that a field reads which the driver did not fill, all ones. Kinds (state.c has all keys):
 *
 *   node      init_code (what dcmi_init returns), mode (0 docker, 1 VM), supports_mode, supports_recover, version, permission (who may
 *             change vNPUs: any, root, or host: root in the mount namespace of process 1 or with all capabilities), cfg and cfg_lock
 *             (paths of vnpu.cfg and its lock; empty: none), cfg_lock_ms (how long a held lock is waited for), log
 *   chip      card dev type phy logic, present (0: gone), splittable, slots (vNPUs that fit), activity, vgroups, family (of templates),
 *             names, resources, vdie, ndie (as XXXXXXXX-XXXXXXXX-...), health, board pcb bom slot
 *   vnpu      card dev id name status used vfid vfg container aic memory aicpu, occupant (a process: when it has gone, a destroy finds the
 *             vNPU unused; 0: never)
 *   template  family name aic memory aicpu
 *   process   card dev pid memory (bytes)
 *   fault     serial function card dev id sub (which calls; * and -1: all), skip (calls that pass first), times (-1: always), delay (ms
 *             before all else), action, value, text, effect (0/1: whether the real work is done; -1: as said here). The first that matches
 *             and is due applies, also with no action. Actions:
 *               code               return value without doing the work; with effect=1 after it (0 is success without it)
 *               hang               never return, until the fault is taken out; then go on. With effect=1 after the work
 *               abort segv exit    end the process; with effect=1 after the work
 *               garbage            fill the outputs with noise, seeded by value
 *               patch              text "OFFSET:HEX" into the first output, "N/OFFSET:HEX" into another
 *               half short long outside duplicate
 *                                  lie about a list of cards or vNPUs: leave its second half unwritten, announce half, announce more than
 *                                  fit (or value), append the id value, append the first again
 *               vanish             card `value` is gone from this call on
 *               swap               the state file `text` takes the place of this one as the call begins
 *
 * The log has `call PID.N FUNCTION key=value...` when a call begins and `return PID.N CODE` when it ends.
 *
 * Which symbols there are is decided when it is linked: old drivers lack some, and one for the 950 has the dcmiv2_ ones alone.
 */

#include <string.h>

#include "dcmi/call.h"

#define MAX_CARDS 64
#define NO_UNIT (-1)

EXPORT int dcmi_init(void)
{
    struct call call = CALL(NONE, NONE, NONE, NONE);

    return call_init(&call);
}

/* The cards that are there, in ascending order. */
static uint32_t list_cards(const struct state *state, uint32_t *cards)
{
    uint32_t count = 0, at;

    for (size_t index = 0; index < state->chip_count && count < MAX_CARDS; index++) {
        uint32_t card = (uint32_t)state->chips[index].card;

        if (!state->chips[index].present)
            continue;
        for (at = 0; at < count && cards[at] < card; at++)
            continue;
        if (at < count && cards[at] == card)
            continue;
        memmove(cards + at + 1, cards + at, (count - at) * sizeof *cards);
        cards[at] = card;
        count++;
    }
    return count;
}

static int card_list(struct call *call, int *count, int *list, int length)
{
    uint32_t cards[MAX_CARDS + 1], found;
    int code = call_begin_node(call);

    if (!code && length <= 0)
        code = INVALID_PARAMETER;
    if (!code) {
        memset(cards, 0xFF, sizeof cards);
        found = list_cards(call->state, cards);
        if (found > (uint32_t)length)
            code = INVALID_PARAMETER;
    }
    if (!code) {
        call_lie(call, &found, cards, (uint32_t)length < MAX_CARDS ? (uint32_t)length : MAX_CARDS);
        for (int index = 0; index < length; index++)
            list[index] = (uint32_t)index < found && index < MAX_CARDS ? (int)cards[index] : -1;
        *count = (int)found;
    }
    return call_end(call, code);
}

static size_t list_size(int length)
{
    return length > 0 ? (size_t)length * sizeof(int) : sizeof(int);
}

EXPORT int dcmi_get_card_list(int *count, int *list, int length)
{
    struct call call = CALL(NONE, NONE, NONE, NONE, OUTPUT(count), {list, list_size(length)});

    return card_list(&call, count, list, length);
}

EXPORT int dcmi_get_card_num_list(int *count, int *list, int length)
{
    struct call call = CALL(NONE, NONE, NONE, NONE, OUTPUT(count), {list, list_size(length)});

    return card_list(&call, count, list, length);
}

/* One past the highest NPU of a card, and its other units. */
static int count_units(const struct state *state, int card, int *npus, int *mcu, int *cpu)
{
    int code = NO_SUCH_DEVICE;

    *npus = 0;
    *mcu = *cpu = NO_UNIT;
    for (size_t index = 0; index < state->chip_count; index++) {
        const struct chip *chip = &state->chips[index];

        if (!chip->present || chip->card != card)
            continue;
        code = OK;
        if (chip->type == UNIT_MCU)
            *mcu = chip->dev;
        else if (chip->type == UNIT_CPU)
            *cpu = chip->dev;
        else if (chip->dev >= *npus)
            *npus = chip->dev + 1;
    }
    return code;
}

EXPORT int dcmi_get_device_num_in_card(int card, int *device_num)
{
    struct call call = CALL(card, NONE, NONE, NONE, OUTPUT(device_num));
    int code = call_begin_node(&call), npus, mcu, cpu;

    if (!code)
        code = count_units(call.state, card, &npus, &mcu, &cpu);
    if (!code)
        *device_num = npus + (mcu != NO_UNIT) + (cpu != NO_UNIT);
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_id_in_card(int card, int *device_id_max, int *mcu_id, int *cpu_id)
{
    struct call call = CALL(card, NONE, NONE, NONE, OUTPUT(device_id_max), OUTPUT(mcu_id), OUTPUT(cpu_id));
    int code = call_begin_node(&call);

    if (!code)
        code = count_units(call.state, card, device_id_max, mcu_id, cpu_id);
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_type(int card, int dev, int *type)
{
    struct call call = CALL(card, dev, NONE, NONE, OUTPUT(type));
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip)
        *type = chip->type;
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_logic_id(int *logic, int card, int dev)
{
    struct call call = CALL(card, dev, NONE, NONE, OUTPUT(logic));
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip)
        *logic = chip->logic;
    return call_end(&call, code);
}

static const struct chip *find_number(const struct call *call, bool by_phy, int *code)
{
    for (size_t index = 0; index < call->state->chip_count; index++) {
        const struct chip *chip = &call->state->chips[index];

        if (chip->present && chip->type == UNIT_NPU && (by_phy ? chip->phy : chip->logic) == call->id)
            return chip;
    }
    *code = INVALID_DEVICE;
    return NULL;
}

EXPORT int dcmi_get_card_id_device_id_from_logicid(int *card, int *dev, unsigned logic)
{
    struct call call = CALL(NONE, NONE, logic, NONE, OUTPUT(card), OUTPUT(dev));
    int code = call_begin_node(&call);
    const struct chip *chip = code ? NULL : find_number(&call, false, &code);

    if (chip) {
        *card = chip->card;
        *dev = chip->dev;
    }
    return call_end(&call, code);
}

EXPORT int dcmi_get_card_id_device_id_from_phyid(int *card, int *dev, unsigned phy)
{
    struct call call = CALL(NONE, NONE, phy, NONE, OUTPUT(card), OUTPUT(dev));
    int code = call_begin_node(&call);
    const struct chip *chip = code ? NULL : find_number(&call, true, &code);

    if (chip) {
        *card = chip->card;
        *dev = chip->dev;
    }
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_phyid_from_logicid(unsigned logic, unsigned *phy)
{
    struct call call = CALL(NONE, NONE, logic, NONE, OUTPUT(phy));
    int code = call_begin_node(&call);
    const struct chip *chip = code ? NULL : find_number(&call, false, &code);

    if (chip)
        *phy = (unsigned)chip->phy;
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_logicid_from_phyid(unsigned phy, unsigned *logic)
{
    struct call call = CALL(NONE, NONE, phy, NONE, OUTPUT(logic));
    int code = call_begin_node(&call);
    const struct chip *chip = code ? NULL : find_number(&call, true, &code);

    if (chip)
        *logic = (unsigned)chip->logic;
    return call_end(&call, code);
}

static void put_chip_info(struct chip_info *info, const struct chip *chip)
{
    put_name(info->chip_type, sizeof info->chip_type, chip->chip_type);
    put_name(info->chip_name, sizeof info->chip_name, chip->name);
    put_name(info->chip_version, sizeof info->chip_version, chip->chip_version);
    info->aicore_count = chip->cores;
}

EXPORT int dcmi_get_device_chip_info(int card, int dev, struct chip_info *info)
{
    struct call call = CALL(card, dev, NONE, NONE, OUTPUT(info));
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip)
        put_chip_info(info, chip);
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_chip_info_v2(int card, int dev, struct chip_info_v2 *info)
{
    struct call call = CALL(card, dev, NONE, NONE, OUTPUT(info));
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip) {
        put_chip_info(&info->first, chip);
        put_name(info->npu_name, sizeof info->npu_name, chip->npu_name);
    }
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_die_v2(int card, int dev, int die_type, struct die_id *die)
{
    struct call call = CALL(card, dev, NONE, die_type, OUTPUT(die));
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip && (die_type < 0 || die_type > 1))
        code = INVALID_PARAMETER;
    else if (chip)
        memcpy(die->words, die_type ? chip->vdie : chip->ndie, sizeof die->words);
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_health(int card, int dev, unsigned *health)
{
    struct call call = CALL(card, dev, NONE, NONE, OUTPUT(health));
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip)
        *health = chip->health;
    return call_end(&call, code);
}

EXPORT int dcmi_get_device_board_info(int card, int dev, struct board_info *info)
{
    struct call call = CALL(card, dev, NONE, NONE, OUTPUT(info));
    int code;
    const struct chip *chip = call_begin_chip(&call, &code);

    if (chip)
        *info = (struct board_info){chip->board, chip->pcb, chip->bom, chip->slot};
    return call_end(&call, code);
}
