/* Reading and writing the state file. One table a kind of line says which key goes where, for both directions. */

#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

enum kind { INTEGER, LONG, WORD, QUAD, REAL, TEXT, DIE };

struct field {
    const char *key;
    enum kind kind;
    size_t offset;
    size_t size;
};

struct table {
    const char *name;
    const struct field *fields;
    size_t item_size;
    size_t items;  /* offset in struct state of the pointer; of the item itself where there is one only */
    size_t count;  /* offset of the count; 0: there is one only */
};

#define FIELD(type, kind, key) {#key, kind, offsetof(struct type, key), sizeof(((struct type *)0)->key)}

static const struct field node_fields[] = {
    FIELD(node, INTEGER, init_code), FIELD(node, INTEGER, mode),        FIELD(node, INTEGER, supports_mode),
    FIELD(node, INTEGER, supports_recover), FIELD(node, TEXT, version), FIELD(node, TEXT, permission),
    FIELD(node, TEXT, cfg),          FIELD(node, TEXT, cfg_lock),       FIELD(node, INTEGER, cfg_lock_ms),
    FIELD(node, TEXT, log),          {0},
};

static const struct field chip_fields[] = {
    FIELD(chip, INTEGER, card),    FIELD(chip, INTEGER, dev),      FIELD(chip, INTEGER, type),  FIELD(chip, INTEGER, phy),
    FIELD(chip, INTEGER, logic),   FIELD(chip, INTEGER, present),  FIELD(chip, INTEGER, splittable),
    FIELD(chip, INTEGER, slots),   FIELD(chip, INTEGER, activity), FIELD(chip, INTEGER, vgroups),
    FIELD(chip, TEXT, family),     FIELD(chip, TEXT, chip_type),   FIELD(chip, TEXT, name),     FIELD(chip, TEXT, chip_version),
    FIELD(chip, TEXT, npu_name),   FIELD(chip, TEXT, product),     FIELD(chip, WORD, cores),    FIELD(chip, QUAD, memory),
    FIELD(chip, WORD, aicpu),      FIELD(chip, REAL, jpegd),       FIELD(chip, REAL, jpege),    FIELD(chip, REAL, vpc),
    FIELD(chip, REAL, vdec),       FIELD(chip, REAL, pngd),        FIELD(chip, REAL, venc),     FIELD(chip, DIE, vdie),
    FIELD(chip, DIE, ndie),        FIELD(chip, WORD, health),      FIELD(chip, WORD, board),    FIELD(chip, WORD, pcb),
    FIELD(chip, WORD, bom),        FIELD(chip, WORD, slot),        {0},
};

static const struct field vnpu_fields[] = {
    FIELD(vnpu, INTEGER, card), FIELD(vnpu, INTEGER, dev),    FIELD(vnpu, WORD, id),      FIELD(vnpu, TEXT, name),
    FIELD(vnpu, WORD, status),  FIELD(vnpu, WORD, used),      FIELD(vnpu, WORD, vfid),    FIELD(vnpu, WORD, vfg),
    FIELD(vnpu, QUAD, container), FIELD(vnpu, REAL, aic),     FIELD(vnpu, QUAD, memory),  FIELD(vnpu, WORD, aicpu),
    FIELD(vnpu, INTEGER, occupant), {0},
};

static const struct field template_fields[] = {
    FIELD(template, TEXT, family), FIELD(template, TEXT, name),  FIELD(template, REAL, aic),
    FIELD(template, QUAD, memory), FIELD(template, WORD, aicpu), {0},
};

static const struct field process_fields[] = {
    FIELD(process, INTEGER, card), FIELD(process, INTEGER, dev), FIELD(process, INTEGER, pid), FIELD(process, QUAD, memory), {0},
};

static const struct field fault_fields[] = {
    FIELD(fault, WORD, serial),   FIELD(fault, TEXT, function), FIELD(fault, INTEGER, card), FIELD(fault, INTEGER, dev),
    FIELD(fault, LONG, id),       FIELD(fault, LONG, sub),      FIELD(fault, INTEGER, skip), FIELD(fault, INTEGER, times),
    FIELD(fault, TEXT, action),   FIELD(fault, LONG, value),    FIELD(fault, INTEGER, effect), FIELD(fault, INTEGER, delay),
    FIELD(fault, TEXT, text),     {0},
};

#define LIST(name, fields, items, count) \
    {#name, fields, sizeof(struct name), offsetof(struct state, items), offsetof(struct state, count)}

static const struct table tables[] = {
    {"node", node_fields, sizeof(struct node), offsetof(struct state, node), 0},
    LIST(chip, chip_fields, chips, chip_count),
    LIST(vnpu, vnpu_fields, vnpus, vnpu_count),
    LIST(template, template_fields, templates, template_count),
    LIST(process, process_fields, processes, process_count),
    LIST(fault, fault_fields, faults, fault_count),
    {0},
};

static const char *state_path(void)
{
    const char *path = getenv("DEVWARD_SIM_DCMI_STATE");

    return path && *path ? path : DEFAULT_STATE_FILE;
}

int state_lock(void)
{
    char path[PATH_SIZE + 8];
    int lock;

    snprintf(path, sizeof path, "%s.lock", state_path());
    lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0)
        return -1;
    while (flock(lock, LOCK_EX) < 0) {
        if (errno != EINTR) {
            close(lock);
            return -1;
        }
    }
    return lock;
}

static void read_value(const struct field *field, const char *text, void *item)
{
    void *place = (char *)item + field->offset;
    bool unfilled = strcmp(text, "-") == 0;

    switch (field->kind) {
    case INTEGER:
        *(int *)place = (int)strtol(text, NULL, 0);
        break;
    case LONG:
        *(int64_t *)place = strtoll(text, NULL, 0);
        break;
    case WORD:
        *(uint32_t *)place = unfilled ? UINT32_MAX : (uint32_t)strtoul(text, NULL, 0);
        break;
    case QUAD:
        *(uint64_t *)place = unfilled ? UINT64_MAX : strtoull(text, NULL, 0);
        break;
    case REAL:
        *(float *)place = unfilled ? -1.0F : strtof(text, NULL);
        break;
    case TEXT:
        text_decode(text, place, field->size);
        break;
    case DIE:
        for (int word = 0; word < 5; word++) {
            char *end;

            ((uint32_t *)place)[word] = (uint32_t)strtoul(text, &end, 16);
            text = *end == '-' ? end + 1 : end;
        }
        break;
    }
}

static void write_value(FILE *file, const struct field *field, const void *item)
{
    const void *place = (const char *)item + field->offset;
    const uint32_t *words = place;
    char text[PATH_SIZE * 3 + 1];

    fprintf(file, " %s=", field->key);
    switch (field->kind) {
    case INTEGER:
        fprintf(file, "%d", *(const int *)place);
        break;
    case LONG:
        fprintf(file, "%lld", (long long)*(const int64_t *)place);
        break;
    case WORD:
        if (*words == UINT32_MAX)
            fputc('-', file);
        else
            fprintf(file, "%u", *words);
        break;
    case QUAD:
        if (*(const uint64_t *)place == UINT64_MAX)
            fputc('-', file);
        else
            fprintf(file, "%llu", (unsigned long long)*(const uint64_t *)place);
        break;
    case REAL:
        fprintf(file, "%g", (double)*(const float *)place);
        break;
    case TEXT:
        text_encode(place, text, sizeof text);
        fputs(text, file);
        break;
    case DIE:
        fprintf(file, "%08X-%08X-%08X-%08X-%08X", words[0], words[1], words[2], words[3], words[4]);
        break;
    }
}

/* Room for one more item of a list, zeroed. */
static void *add_item(struct state *state, const struct table *table)
{
    void **items = (void **)((char *)state + table->items);
    size_t *count = (size_t *)((char *)state + table->count);

    if (*count % 16 == 0) {
        void *larger = realloc(*items, (*count + 16) * table->item_size);

        if (!larger)
            abort();
        *items = larger;
    }
    return memset((char *)*items + (*count)++ * table->item_size, 0, table->item_size);
}

static bool read_line(struct state *state, char *line)
{
    char *rest = line, *word = strsep(&rest, " ");
    const struct table *table = tables;
    void *item;

    if (!*word || *word == '#')
        return true;
    while (table->name && strcmp(table->name, word))
        table++;
    if (!table->name)
        return false;
    item = table->count ? add_item(state, table) : (char *)state + table->items;
    while ((word = strsep(&rest, " "))) {
        const struct field *field = table->fields;
        char *value = strchr(word, '=');

        if (!*word)
            continue;
        if (!value)
            return false;
        *value++ = 0;
        while (field->key && strcmp(field->key, word))
            field++;
        if (!field->key)
            return false;
        read_value(field, value, item);
    }
    return true;
}

static void empty(struct state *state)
{
    free(state->chips);
    free(state->vnpus);
    free(state->templates);
    free(state->processes);
    free(state->faults);
    memset(state, 0, sizeof *state);
}

static bool read_all(struct state *state, FILE *file)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    unsigned long long generation;
    bool good;

    good = getline(&line, &size, file) > 0 && sscanf(line, "devward-dcmi-state 1 %llu", &generation) == 1;
    while (good && (length = getline(&line, &size, file)) > 0) {
        if (line[length - 1] == '\n')
            line[length - 1] = 0;
        good = read_line(state, line);
    }
    free(line);
    if (good)
        state->generation = generation;
    return good;
}

struct state *state_load(void)
{
    /* Under the lock that every caller holds, and a mutex of the process. */
    static struct state state;
    static struct stat read_from;
    struct stat now;
    FILE *file = fopen(state_path(), "re");

    if (!file) {
        fprintf(stderr, "libdcmi simulator: %s: %s\n", state_path(), strerror(errno));
        return NULL;
    }
    if (fstat(fileno(file), &now) == 0 && now.st_ino == read_from.st_ino && now.st_dev == read_from.st_dev &&
        now.st_size == read_from.st_size && now.st_ctim.tv_sec == read_from.st_ctim.tv_sec &&
        now.st_ctim.tv_nsec == read_from.st_ctim.tv_nsec) {
        unsigned long long generation;
        int found = fscanf(file, "devward-dcmi-state 1 %llu", &generation);

        /* An inode number may come back within the grain of the clock: the generation tells. */
        if (found == 1 && generation == state.generation) {
            fclose(file);
            return &state;
        }
        rewind(file);
    }
    empty(&state);
    memset(&read_from, 0, sizeof read_from);
    if (!read_all(&state, file)) {
        fprintf(stderr, "libdcmi simulator: %s is malformed\n", state_path());
        fclose(file);
        return NULL;
    }
    read_from = now;
    fclose(file);
    return &state;
}

bool state_save(struct state *state)
{
    char path[PATH_SIZE + 8];
    FILE *file;
    bool good;

    snprintf(path, sizeof path, "%s.new", state_path());
    file = fopen(path, "we");
    if (!file)
        return false;
    fprintf(file, "devward-dcmi-state 1 %llu\n", (unsigned long long)++state->generation);
    for (const struct table *table = tables; table->name; table++) {
        size_t count = table->count ? *(size_t *)((char *)state + table->count) : 1;
        char *items = table->count ? *(char **)((char *)state + table->items) : (char *)state + table->items;

        for (size_t index = 0; index < count; index++) {
            fputs(table->name, file);
            for (const struct field *field = table->fields; field->key; field++)
                write_value(file, field, items + index * table->item_size);
            fputc('\n', file);
        }
    }
    good = !ferror(file);
    return fclose(file) == 0 && good && rename(path, state_path()) == 0;
}

bool state_swap(const char *prepared)
{
    return rename(prepared, state_path()) == 0;
}

struct chip *state_chip(struct state *state, int card, int dev)
{
    for (size_t index = 0; index < state->chip_count; index++) {
        struct chip *chip = &state->chips[index];

        if (chip->present && chip->card == card && chip->dev == dev)
            return chip;
    }
    return NULL;
}

struct vnpu *state_vnpu(struct state *state, const struct chip *chip, uint32_t id)
{
    for (size_t index = 0; index < state->vnpu_count; index++) {
        struct vnpu *vnpu = &state->vnpus[index];

        if (vnpu->card == chip->card && vnpu->dev == chip->dev && vnpu->id == id)
            return vnpu;
    }
    return NULL;
}

struct vnpu *state_add_vnpu(struct state *state)
{
    const struct table *table = tables;

    while (table->count != offsetof(struct state, vnpu_count))
        table++;
    return add_item(state, table);
}

void state_remove_vnpu(struct state *state, struct vnpu *vnpu)
{
    struct vnpu *end = state->vnpus + state->vnpu_count--;

    memmove(vnpu, vnpu + 1, (size_t)((char *)end - (char *)(vnpu + 1)));
}
