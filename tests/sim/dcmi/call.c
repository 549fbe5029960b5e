/* The log of calls, and the faults: which of them a call meets and what it does to it. */

#define _GNU_SOURCE
#include "call.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "text.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned long last_number;
static _Atomic bool initialised;

int call_init(struct call *call)
{
    int code = call_begin(call);

    if (!code)
        code = call->state->node.init_code;
    code = call_end(call, code);
    initialised |= code == OK;
    return code;
}

static bool take_state(struct call *call)
{
    pthread_mutex_lock(&mutex);
    call->lock = state_lock();
    call->state = call->lock < 0 ? NULL : state_load();
    return call->state != NULL;
}

static void leave_state(struct call *call)
{
    if (call->state && call->changed && !state_save(call->state))
        fputs("libdcmi simulator: the state cannot be written\n", stderr);
    call->changed = false;
    call->state = NULL;
    if (call->lock >= 0)
        close(call->lock);
    call->lock = -1;
    pthread_mutex_unlock(&mutex);
}

static void sleep_ms(int milliseconds)
{
    struct timespec rest = {milliseconds / 1000, milliseconds % 1000 * 1000000L};

    while (nanosleep(&rest, &rest) < 0)
        continue;
}

/* One line of the log, in one write, so that lines of several processes do not mix. Under the lock: the order is that of the effects. */
static void write_log(const struct call *call, const char *line, int length)
{
    int log;

    if (!call->state || !call->state->node.log[0] || length <= 0)
        return;
    log = open(call->state->node.log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (log < 0)
        return;
    if (write(log, line, (size_t)length) != length)
        fputs("libdcmi simulator: the log is cut short\n", stderr);
    close(log);
}

static int add_argument(char *line, int used, int size, const char *name, int64_t value)
{
    return value == NONE ? used : used + snprintf(line + used, (size_t)(size - used), " %s=%lld", name, (long long)value);
}

static void log_begin(struct call *call)
{
    char line[512];
    int used, size = sizeof line;

    call->number = ++last_number;
    used = snprintf(line, sizeof line, "call %d.%lu %s", getpid(), call->number, call->function);
    used = add_argument(line, used, size, "card", call->card);
    used = add_argument(line, used, size, "dev", call->dev);
    used = add_argument(line, used, size, "id", call->id);
    used = add_argument(line, used, size, "sub", call->sub);
    if (call->detail) {
        used += snprintf(line + used, (size_t)(size - used), " detail=");
        used += (int)text_encode(call->detail, line + used, (size_t)(size - used));
    }
    if (used < size - 1) {
        line[used++] = '\n';
        write_log(call, line, used);
    }
}

static void log_end(const struct call *call, int code)
{
    char line[80];

    write_log(call, line, snprintf(line, sizeof line, "return %d.%lu %d\n", getpid(), call->number, code));
}

static bool matches(const struct fault *fault, const struct call *call)
{
    return fault->times != 0 && (strcmp(fault->function, "*") == 0 || strcmp(fault->function, call->function) == 0) &&
           (fault->card < 0 || fault->card == call->card) && (fault->dev < 0 || fault->dev == call->dev) &&
           (fault->id < 0 || fault->id == call->id) && (fault->sub < 0 || fault->sub == call->sub);
}

/* The first fault that matches and is due; one that still skips lets later ones judge. */
static void find_fault(struct call *call)
{
    for (size_t index = 0; index < call->state->fault_count; index++) {
        struct fault *fault = &call->state->faults[index];

        if (!matches(fault, call))
            continue;
        if (fault->skip > 0) {
            fault->skip--;
            call->changed = true;
            continue;
        }
        if (fault->times > 0) {
            fault->times--;
            call->changed = true;
        }
        call->fault = *fault;
        return;
    }
}

bool call_has(const struct call *call, const char *action)
{
    return strcmp(call->fault.action, action) == 0;
}

static bool fault_remains(struct call *call)
{
    bool remains = false;

    if (take_state(call)) {
        for (size_t index = 0; index < call->state->fault_count; index++)
            remains |= call->state->faults[index].serial == call->fault.serial;
    }
    leave_state(call);
    return remains;
}

/* A state that takes the place of the old one as this call begins: what another process does at the worst moment. */
static void change_state(struct call *call)
{
    if (call_has(call, "swap")) {
        if (call->changed)
            state_save(call->state);
        call->changed = false;
        if (!state_swap(call->fault.text))
            fputs("libdcmi simulator: the prepared state cannot be put in place\n", stderr);
        call->state = state_load();
    } else if (call_has(call, "vanish")) {
        for (size_t index = 0; index < call->state->chip_count; index++) {
            if (call->state->chips[index].card == call->fault.value)
                call->state->chips[index].present = 0;
        }
        call->changed = true;
    }
}

static bool crashes(const struct call *call)
{
    return call_has(call, "abort") || call_has(call, "segv") || call_has(call, "exit");
}

static bool does_work(const struct call *call)
{
    if (call_has(call, "hang"))
        return true;
    return call->fault.effect < 0 ? !call_has(call, "code") && !crashes(call) : call->fault.effect;
}

/* Wait with the state unlocked until the fault is taken away; then the call goes on as if nothing had been. */
static void hang(struct call *call)
{
    leave_state(call);
    while (fault_remains(call))
        sleep_ms(20);
    take_state(call);
}

int call_begin(struct call *call)
{
    if (!take_state(call))
        return INNER_ERROR;
    log_begin(call);
    call->fault.effect = -1;
    find_fault(call);
    if (call->fault.delay > 0) {
        leave_state(call);
        sleep_ms(call->fault.delay);
        if (!take_state(call))
            return INNER_ERROR;
    }
    change_state(call);
    if (!call->state)
        return INNER_ERROR;
    if (call_has(call, "hang") && call->fault.effect != 1) {
        hang(call);
        if (!call->state)
            return INNER_ERROR;
    }
    call->works = does_work(call);
    return call->works ? OK : INNER_ERROR; /* call_end() puts the fault's code in its place */
}

static void fill_garbage(struct call *call)
{
    uint32_t word = (uint32_t)call->fault.value * 2654435761U + 1;

    for (size_t index = 0; index < sizeof call->outputs / sizeof *call->outputs; index++) {
        unsigned char *bytes = call->outputs[index].at;

        for (size_t at = 0; bytes && at < call->outputs[index].size; at++) {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            bytes[at] = (unsigned char)word;
        }
    }
}

/* "offset:hex digits" into the first output, or "n/offset:hex digits" into another; never beyond its end. */
static void patch(struct call *call)
{
    unsigned index = 0, offset = 0, byte;
    const char *text = call->fault.text, *slash = strchr(text, '/');
    struct output *output;

    if (slash) {
        index = (unsigned)strtoul(text, NULL, 10);
        text = slash + 1;
    }
    offset = (unsigned)strtoul(text, NULL, 10);
    text = strchr(text, ':');
    if (!text || index >= sizeof call->outputs / sizeof *call->outputs)
        return;
    output = &call->outputs[index];
    for (text++; output->at && offset < output->size && sscanf(text, "%2x", &byte) == 1; text += 2, offset++)
        ((unsigned char *)output->at)[offset] = (unsigned char)byte;
}

void call_lie(const struct call *call, uint32_t *count, uint32_t *list, uint32_t room)
{
    if (call_has(call, "half")) { /* all are announced, the second half is not written */
        for (uint32_t index = *count / 2; index < *count; index++)
            list[index] = NOT_FILLED;
    } else if (call_has(call, "short")) { /* some are kept back */
        *count /= 2;
    } else if (call_has(call, "long")) { /* more are announced than there is room for */
        *count = call->fault.value ? (uint32_t)call->fault.value : room + 1;
    } else if (call_has(call, "outside") && *count < room) { /* one that cannot be */
        list[(*count)++] = (uint32_t)call->fault.value;
    } else if (call_has(call, "duplicate") && *count > 0 && *count < room) {
        list[*count] = list[0];
        ++*count;
    }
}

int call_begin_node(struct call *call)
{
    int code = call_begin(call);

    if (!code && !initialised)
        code = INNER_ERROR;
    for (size_t index = 0; !code && index < sizeof call->outputs / sizeof *call->outputs; index++) {
        if (call->outputs[index].size && !call->outputs[index].at)
            code = INVALID_PARAMETER;
    }
    return code;
}

struct chip *call_begin_chip(struct call *call, int *code)
{
    struct chip *chip;

    *code = call_begin_node(call);
    if (!*code && (call->card < 0 || call->dev < 0))
        *code = INVALID_PARAMETER;
    if (*code)
        return NULL;
    chip = state_chip(call->state, call->card, call->dev);
    if (!chip)
        *code = NO_SUCH_DEVICE;
    return chip;
}

void put_name(void *field, size_t size, const char *text)
{
    memset(field, 0, size);
    memcpy(field, text, strnlen(text, size));
}

static void crash(const struct call *call)
{
    if (call_has(call, "abort")) {
        abort();
    } else if (call_has(call, "segv")) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    } else if (call_has(call, "exit")) {
        _exit((int)call->fault.value);
    }
}

int call_end(struct call *call, int code)
{
    if (call->works && call_has(call, "garbage"))
        fill_garbage(call);
    if (call->works && call_has(call, "patch"))
        patch(call);
    if (call_has(call, "code"))
        code = (int)call->fault.value;
    if (call_has(call, "hang") && call->fault.effect == 1) {
        hang(call);
    } else if (crashes(call)) {
        leave_state(call);
        crash(call);
        return code;
    }
    log_end(call, code);
    leave_state(call);
    return code;
}
