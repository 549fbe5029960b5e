/* The state file: what the simulated node consists of, and which faults wait. libdcmi.c describes its format. */

#ifndef DCMI_SIM_STATE_H
#define DCMI_SIM_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEFAULT_STATE_FILE "/run/devward-sim/dcmi.state"
#define PATH_SIZE 512

struct node {
    int init_code;
    int mode;
    int supports_mode, supports_recover;
    char version[64];
    char permission[8]; /* any, root, host */
    char cfg[PATH_SIZE], cfg_lock[PATH_SIZE];
    int cfg_lock_ms;
    char log[PATH_SIZE];
};

struct chip {
    int card, dev, type, phy, logic;
    int present;
    int splittable;
    int slots;
    int activity;
    int vgroups;
    char family[33], chip_type[33], name[33], chip_version[33], npu_name[33], product[65];
    uint32_t cores;
    uint64_t memory;
    uint32_t aicpu;
    float jpegd, jpege, vpc, vdec, pngd, venc;
    uint32_t vdie[5], ndie[5];
    uint32_t health;
    uint32_t board, pcb, bom, slot;
};

struct vnpu {
    int card, dev;
    uint32_t id;
    char name[17];
    uint32_t status, used, vfid, vfg;
    uint64_t container;
    float aic;
    uint64_t memory;
    uint32_t aicpu;
    int occupant; /* process whose namespace holds it; 0: a holder that lives for ever */
};

struct template {
    char family[33];
    char name[33];
    float aic;
    uint64_t memory;
    uint32_t aicpu;
};

struct process {
    int card, dev, pid;
    uint64_t memory;
};

struct fault {
    uint32_t serial;
    char function[64]; /* "*": every function */
    int card, dev;     /* -1: every one */
    int64_t id, sub;   /* -1: every one */
    int skip;          /* calls to let pass first */
    int times;         /* how often it applies; -1: always */
    char action[16];
    int64_t value;
    int effect; /* whether the real work is done; -1: as the action has it */
    int delay;  /* in milliseconds, before all else */
    char text[PATH_SIZE];
};

struct state {
    uint64_t generation;
    struct node node;
    struct chip *chips;
    size_t chip_count;
    struct vnpu *vnpus;
    size_t vnpu_count;
    struct template *templates;
    size_t template_count;
    struct process *processes;
    size_t process_count;
    struct fault *faults;
    size_t fault_count;
};

/* Take the lock that every reader and writer of the state takes; a descriptor to close, or -1. */
int state_lock(void);
/* Read the file unless it was read before and has not changed; NULL, and a line on standard error, if that fails. Under the lock. */
struct state *state_load(void);
/* Replace the file as a whole. Under the lock. */
bool state_save(struct state *state);
/* Put a prepared file in the place of the state. Under the lock. */
bool state_swap(const char *prepared);

struct chip *state_chip(struct state *state, int card, int dev);
struct vnpu *state_vnpu(struct state *state, const struct chip *chip, uint32_t id);
struct vnpu *state_add_vnpu(struct state *state);
void state_remove_vnpu(struct state *state, struct vnpu *vnpu);

#endif
