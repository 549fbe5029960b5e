/* Reading and editing vnpu.cfg: a header with the recover switch, then the block of command lines, under a lock file. */

#include "cfg.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEADER "vnpu_config_recover:"
#define START "[vnpu-config start]"
#define END "[vnpu-config end]"

/* What to change; nothing where a member is zero. */
struct edit {
    int recover; /* 1 enable, -1 disable */
    const char *insert;
    int remove_phy;
    uint32_t remove_id;
};

/* The lock is the vendor's, a POSIX lock; it is given up after a while. Closing the descriptor, or -1, unlocks. */
static int lock(const struct node *node, int *code)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct timespec pause = {0, 5000000};
    int waited = 0, file;

    *code = OK;
    if (!node->cfg_lock[0])
        return -1;
    file = open(node->cfg_lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
        *code = FILE_FAILED;
        return -1;
    }
    while (fcntl(file, F_SETLK, &whole) < 0) {
        if (waited >= node->cfg_lock_ms) {
            close(file);
            *code = OCCUPIED;
            return -1;
        }
        nanosleep(&pause, NULL);
        waited += 5;
    }
    return file;
}

/* The whole file, "" if there is none; NULL if it cannot be read. To be freed. */
static char *read_cfg(const struct node *node)
{
    FILE *file = fopen(node->cfg, "re");
    char *text = NULL;
    size_t size = 0;

    if (!file)
        return errno == ENOENT ? strdup("") : NULL;
    if (getdelim(&text, &size, 0, file) < 0) {
        free(text);
        text = ferror(file) ? NULL : strdup("");
    }
    fclose(file);
    return text;
}

static bool write_file(const char *path, const char *text)
{
    char fresh[PATH_SIZE + 8];
    FILE *file;
    bool good;

    snprintf(fresh, sizeof fresh, "%s.new", path);
    file = fopen(fresh, "we");
    if (!file)
        return false;
    good = fputs(text, file) >= 0;
    good = fclose(file) == 0 && good && rename(fresh, path) == 0;
    if (!good)
        unlink(fresh);
    return good;
}

static bool is_line_of(const char *line, int phy, uint32_t id)
{
    int line_phy;
    unsigned line_id;

    return sscanf(line, "%d:%u:", &line_phy, &line_id) == 2 && line_phy == phy && (id == WHOLE_CHIP || line_id == id);
}

static char *edited(char *text, const struct edit *edit)
{
    char *out = NULL, *line;
    size_t size = 0;
    FILE *memory = open_memstream(&out, &size);
    bool has_header = strstr(text, HEADER) != NULL, has_block = strstr(text, START) != NULL;

    if (!memory)
        abort();
    if (!has_header)
        fprintf(memory, HEADER "%s\n", edit->recover < 0 ? "disable" : "enable");
    while ((line = strsep(&text, "\n"))) {
        if (edit->recover && strncmp(line, HEADER, strlen(HEADER)) == 0) {
            fprintf(memory, HEADER "%s\n", edit->recover < 0 ? "disable" : "enable");
            continue;
        }
        if (edit->remove_id && is_line_of(line, edit->remove_phy, edit->remove_id))
            continue;
        if (edit->insert && strcmp(line, END) == 0)
            fputs(edit->insert, memory);
        if (text || *line) /* what follows the last newline is no line */
            fprintf(memory, "%s\n", line);
    }
    if (!has_block)
        fprintf(memory, START "\n%s" END "\n", edit->insert ? edit->insert : "");
    fclose(memory);
    return out;
}

static int change(const struct node *node, const struct edit *edit)
{
    char *before, *after, backup[PATH_SIZE + 8];
    int code, file;

    if (!node->cfg[0])
        return OK;
    file = lock(node, &code);
    if (code)
        return code;
    before = read_cfg(node);
    if (!before) {
        code = FILE_FAILED;
    } else {
        after = edited(before, edit);
        snprintf(backup, sizeof backup, "%s.bak", node->cfg);
        if (!write_file(node->cfg, after) || !write_file(backup, after))
            code = FILE_FAILED;
        free(after);
    }
    free(before);
    if (file >= 0)
        close(file);
    return code;
}

int cfg_get_recover(const struct node *node, bool *enabled)
{
    char *text;
    int code, file;

    *enabled = true;
    if (!node->cfg[0])
        return OK;
    file = lock(node, &code);
    if (code)
        return code;
    text = read_cfg(node);
    if (text)
        *enabled = !strstr(text, HEADER "disable");
    else
        code = FILE_FAILED;
    free(text);
    if (file >= 0)
        close(file);
    return code;
}

int cfg_set_recover(const struct node *node, bool enabled)
{
    return change(node, &(struct edit){.recover = enabled ? 1 : -1});
}

int cfg_find(const struct node *node, int phy, uint32_t id)
{
    char *text, *rest, *line;
    int code = NO_SUCH_DEVICE;

    if (!node->cfg[0])
        return code;
    text = rest = read_cfg(node);
    if (!text)
        return FILE_FAILED;
    while ((line = strsep(&rest, "\n"))) {
        if (is_line_of(line, phy, id))
            code = OK;
    }
    free(text);
    return code;
}

int cfg_insert(const struct node *node, const struct chip *chip, const struct vnpu *vnpu)
{
    char line[256];
    int used = snprintf(line, sizeof line, "%d:%u:npu-smi set -t create-vnpu -i %d -c %d -f %s -v %u", chip->phy, vnpu->id, chip->card,
                        chip->dev, vnpu->name, vnpu->id);

    if (chip->vgroups)
        used += snprintf(line + used, sizeof line - (size_t)used, " -g %u", vnpu->vfg);
    snprintf(line + used, sizeof line - (size_t)used, "\n");
    return change(node, &(struct edit){.insert = line});
}

int cfg_remove(const struct node *node, int phy, uint32_t id)
{
    return change(node, &(struct edit){.remove_phy = phy, .remove_id = id});
}
