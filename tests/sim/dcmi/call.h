/* What every call of the library goes through: the log, the faults, the state under its lock. */

#ifndef DCMI_SIM_CALL_H
#define DCMI_SIM_CALL_H

#include "layouts.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))
#define NONE INT32_MIN /* an argument that the function does not have */

struct output {
    void *at;
    size_t size;
};

struct call {
    const char *function;
    int card, dev;
    int64_t id, sub;
    const char *detail;
    struct output outputs[3]; /* in the order of the arguments */
    struct state *state;
    bool changed; /* the state is to be written */
    struct fault fault;
    bool works; /* whether the real work is done */
    int lock;
    unsigned long number;
};

#define CALL(card_, dev_, id_, sub_, ...) \
    {.function = __func__, .card = (card_), .dev = (dev_), .id = (id_), .sub = (sub_), .lock = -1, .outputs = {__VA_ARGS__}}
#define OUTPUT(pointer) {(pointer), sizeof *(pointer)}

/* Begin a call: 0 to do the real work, with the state locked; else the code to end with. */
int call_begin(struct call *call);
/* Begin one that is about the node: no output may be NULL. */
int call_begin_node(struct call *call);
/* Begin one that is about one chip: the chip, or NULL with the code to end with. */
struct chip *call_begin_chip(struct call *call, int *code);
/* End it with that code, or as the fault has it. */
int call_end(struct call *call, int code);
/* Whether a fault of this name applies to the call. */
bool call_has(const struct call *call, const char *action);
/* Let a fault lie about a list that is true so far; there is room for `room` ids. */
void call_lie(const struct call *call, uint32_t *count, uint32_t *list, uint32_t room);
/* The whole of an init call. Until one succeeded, every other fails. */
int call_init(struct call *call);
/* A text in a field of fixed size, without a NUL if it fills it. */
void put_name(void *field, size_t size, const char *text);

#endif
