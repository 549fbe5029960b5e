/* A client of the vendor's library that shares no line with devward's binding or with the simulator: it knows sizes and offsets as numbers.
 *
 *   dcmi_client LIBRARY symbols NAME...                    which of them there are
 *   dcmi_client LIBRARY list                               cards, chips, resources and vNPUs, as the library tells them
 *   dcmi_client LIBRARY list-second                        devices of the second generation
 *   dcmi_client LIBRARY create CARD DEV TEMPLATE [ID [GROUP]]
 *   dcmi_client LIBRARY destroy CARD DEV ID
 *   dcmi_client LIBRARY churn CARD DEV TEMPLATE COUNT      create and destroy, over and over
 *   dcmi_client LIBRARY call NAME [CARD DEV [NUMBER]]      one call with a buffer of 512 bytes, for faults
 *
 * It writes one line a thing. Every buffer lies between two walls; a reply that goes beyond its size ends the program.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WALL 64
#define WALL_BYTE 0xA5
#define ROOM 1024

static void *library;

struct buffer {
    size_t size;
    unsigned char bytes[WALL + ROOM + WALL];
};

static unsigned char *fresh(struct buffer *buffer, size_t size)
{
    if (size > ROOM)
        abort();
    buffer->size = size;
    memset(buffer->bytes, WALL_BYTE, sizeof buffer->bytes);
    memset(buffer->bytes + WALL, 0, size);
    return buffer->bytes + WALL;
}

static void check_walls(const struct buffer *buffer, const char *name)
{
    for (size_t at = 0; at < sizeof buffer->bytes; at++) {
        if ((at < WALL || at >= WALL + buffer->size) && buffer->bytes[at] != WALL_BYTE) {
            printf("overrun %s at %zd of %zu\n", name, (ssize_t)at - WALL, buffer->size);
            exit(3);
        }
    }
}

static uint32_t u32(const unsigned char *at) { uint32_t value; memcpy(&value, at, 4); return value; }
static uint64_t u64(const unsigned char *at) { uint64_t value; memcpy(&value, at, 8); return value; }
static unsigned u16(const unsigned char *at) { uint16_t value; memcpy(&value, at, 2); return value; }
static double f32(const unsigned char *at) { float value; memcpy(&value, at, 4); return value; }

/* A text of at most that many bytes, as hex digits. */
static void put_text(const char *key, const unsigned char *at, size_t size)
{
    printf(" %s=", key);
    for (size_t index = 0; index < size && at[index]; index++)
        printf("%02x", at[index]);
}

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        printf("missing %s\n", name);
        exit(4);
    }
    return found;
}

typedef int (*none_call)(void);
typedef int (*three_ints)(int *, int *, int);
typedef int (*card_ints)(int, int *, int *, int *);
typedef int (*chip_pointer)(int, int, void *);
typedef int (*chip_choice)(int, int, int, void *);
typedef int (*chip_info)(int, int, int, unsigned, void *, unsigned *);
typedef int (*chip_number)(int, int, unsigned);
typedef int (*chip_pointers)(int, int, void *, void *);
typedef int (*chip_text)(int, int, char *, int);

static unsigned char *ask(struct buffer *buffer, size_t size, int card, int dev, unsigned command, uint32_t id, int *code)
{
    unsigned char *at = fresh(buffer, size);
    unsigned length = (unsigned)size;

    memcpy(at, &id, 4);
    *code = ((chip_info)symbol("dcmi_get_device_info"))(card, dev, 52, command, at, &length);
    check_walls(buffer, "dcmi_get_device_info");
    if (*code == 0 && length != size)
        printf("size %u of %zu\n", length, size);
    return at;
}

static void put_computing(const unsigned char *at)
{
    printf(" aic=%g memory=%llu aicpu=%u aiv=%g unfilled=%x,%x", f32(at), (unsigned long long)u64(at + 24), u16(at + 54), f32(at + 4),
           u16(at + 8), u32(at + 60));
}

static void put_media(const unsigned char *at)
{
    printf(" jpegd=%g jpege=%g vpc=%g vdec=%g pngd=%g venc=%g", f32(at), f32(at + 4), f32(at + 8), f32(at + 12), f32(at + 16),
           f32(at + 20));
}

static void list_vdev(int card, int dev, uint32_t id)
{
    struct buffer buffer;
    int code;
    const unsigned char *at = ask(&buffer, 264, card, dev, 0, id, &code);

    printf("vdev card=%d dev=%d id=%u code=%d", card, dev, u32(at), code);
    if (code == 0) {
        put_text("name", at + 8, 16);
        printf(" status=%u used=%u vfid=%u vfg=%u container=%012llx base_vfg=%u", u32(at + 24), u32(at + 28), u32(at + 32), u32(at + 36),
               (unsigned long long)u64(at + 40), u32(at + 48 + 24));
        put_computing(at + 112);
    }
    printf("\n");
    at = ask(&buffer, 264, card, dev, 5, id, &code);
    printf("activity id=%u code=%d total=%llu\n", id, code, (unsigned long long)u64(at + 112 + 64));
}

static void list_vdevs(int card, int dev)
{
    struct buffer buffer;
    uint32_t ids[32];
    int code;
    const unsigned char *at = ask(&buffer, 360, card, dev, 1, 0, &code);
    uint32_t count = u32(at);

    printf("total card=%d dev=%d code=%d", card, dev, code);
    if (code == 0) {
        printf(" count=%u vfgs=%u bitmap=%x", count, u32(at + 132), u32(at + 136));
        put_computing(at + 208);
        put_media(at + 304);
    }
    printf("\n");
    memcpy(ids, at + 4, sizeof ids);
    at = ask(&buffer, 224, card, dev, 2, 0, &code);
    if (code == 0) {
        printf("free card=%d dev=%d vfgs=%u bitmap=%x", card, dev, u32(at), u32(at + 4));
        put_computing(at + 72);
        put_media(at + 168);
        printf("\n");
    }
    for (uint32_t index = 0; index < count && index < 32; index++)
        list_vdev(card, dev, ids[index]);
}

static void list_chip(int card, int dev)
{
    struct buffer buffer;
    unsigned char *at = fresh(&buffer, 100);
    int type = -1, logic = -1, code = ((chip_pointer)symbol("dcmi_get_device_chip_info"))(card, dev, at);
    unsigned phy = 0, health = 0;

    check_walls(&buffer, "dcmi_get_device_chip_info");
    printf("chip card=%d dev=%d code=%d", card, dev, code);
    put_text("type", at, 32);
    put_text("name", at + 32, 32);
    put_text("version", at + 64, 32);
    printf(" cores=%u", u32(at + 96));
    at = fresh(&buffer, 132);
    if (dlsym(library, "dcmi_get_device_chip_info_v2"))
        ((chip_pointer)symbol("dcmi_get_device_chip_info_v2"))(card, dev, at);
    check_walls(&buffer, "dcmi_get_device_chip_info_v2");
    put_text("npu", at + 100, 32);
    ((chip_pointer)symbol("dcmi_get_device_type"))(card, dev, &type);
    ((int (*)(int *, int, int))symbol("dcmi_get_device_logic_id"))(&logic, card, dev);
    ((int (*)(unsigned, unsigned *))symbol("dcmi_get_device_phyid_from_logicid"))((unsigned)logic, &phy);
    ((chip_pointer)symbol("dcmi_get_device_health"))(card, dev, &health);
    printf(" unit=%d logic=%d phy=%u health=%u", type, logic, phy, health);
    for (int kind = 0; kind < 2 && dlsym(library, "dcmi_get_device_die_v2"); kind++) {
        at = fresh(&buffer, 20);
        ((chip_choice)symbol("dcmi_get_device_die_v2"))(card, dev, kind, at);
        check_walls(&buffer, "dcmi_get_device_die_v2");
        printf(" die%d=%08X-%08X-%08X-%08X-%08X", kind, u32(at), u32(at + 4), u32(at + 8), u32(at + 12), u32(at + 16));
    }
    at = fresh(&buffer, 16);
    ((chip_pointer)symbol("dcmi_get_device_board_info"))(card, dev, at);
    check_walls(&buffer, "dcmi_get_device_board_info");
    printf(" board=%u,%u,%u,%u", u32(at), u32(at + 4), u32(at + 8), u32(at + 12));
    at = fresh(&buffer, 64);
    ((chip_text)symbol("dcmi_get_product_type"))(card, dev, (char *)at, 64);
    check_walls(&buffer, "dcmi_get_product_type");
    put_text("product", at, 64);
    printf("\n");
    at = fresh(&buffer, 32 * 16);
    code = 0;
    ((chip_pointers)symbol("dcmi_get_device_resource_info"))(card, dev, at, &code);
    check_walls(&buffer, "dcmi_get_device_resource_info");
    for (int index = 0; index < code && index < 32; index++, at += 16)
        printf("process card=%d dev=%d pid=%d memory=%llu\n", card, dev, (int)u32(at), (unsigned long long)u64(at + 8));
    if (type == 0)
        list_vdevs(card, dev);
}

static int list_all(void)
{
    int count = 0, cards[64], npus, mcu, cpu, code = ((three_ints)symbol("dcmi_get_card_list"))(&count, cards, 64);

    printf("cards code=%d count=%d\n", code, count);
    for (int index = 0; code == 0 && index < count && index < 64; index++) {
        code = ((card_ints)symbol("dcmi_get_device_id_in_card"))(cards[index], &npus, &mcu, &cpu);
        printf("card id=%d code=%d npus=%d mcu=%d cpu=%d\n", cards[index], code, npus, mcu, cpu);
        for (int dev = 0; code == 0 && dev < npus; dev++)
            list_chip(cards[index], dev);
    }
    return code != 0;
}

static int list_second(void)
{
    int devices[64], count = 0, code;
    struct buffer buffer;
    const unsigned char *at;

    if (((none_call)symbol("dcmiv2_init"))() != 0)
        return 2;
    code = ((three_ints)symbol("dcmiv2_get_device_list"))(devices, &count, 64);
    printf("devices code=%d count=%d\n", code, count);
    for (int index = 0; code == 0 && index < count && index < 64; index++) {
        unsigned phy = 0, health = 0;

        at = fresh(&buffer, 132);
        code = ((int (*)(int, void *))symbol("dcmiv2_get_device_chip_info"))(devices[index], (void *)at);
        check_walls(&buffer, "dcmiv2_get_device_chip_info");
        ((int (*)(unsigned, unsigned *))symbol("dcmiv2_get_chip_phy_id_by_dev_id"))((unsigned)devices[index], &phy);
        ((int (*)(int, unsigned *))symbol("dcmiv2_get_device_health"))(devices[index], &health);
        printf("device id=%d phy=%u health=%u", devices[index], phy, health);
        put_text("name", at + 32, 32);
        at = fresh(&buffer, 20);
        ((int (*)(int, int, void *))symbol("dcmiv2_get_device_die_id"))(devices[index], 1, (void *)at);
        check_walls(&buffer, "dcmiv2_get_device_die_id");
        printf(" die1=%08X-%08X-%08X-%08X-%08X\n", u32(at), u32(at + 4), u32(at + 8), u32(at + 12), u32(at + 16));
    }
    return code != 0;
}

static int create(int card, int dev, const char *name, uint32_t id, uint32_t group, uint32_t *made)
{
    struct buffer request, reply;
    unsigned char *in = fresh(&request, 104), *out = fresh(&reply, 52);
    int code;

    memcpy(in, &id, 4);
    memcpy(in + 4, &group, 4);
    memcpy(in + 8, name, strnlen(name, 32));
    code = ((chip_pointers)symbol("dcmi_create_vdevice"))(card, dev, in, out);
    check_walls(&request, "dcmi_create_vdevice");
    check_walls(&reply, "dcmi_create_vdevice");
    *made = u32(out);
    return code;
}

static int destroy(int card, int dev, uint32_t id)
{
    return ((chip_number)symbol("dcmi_set_destroy_vdevice"))(card, dev, id);
}

/* Whoever else changes the chip may leave it full; what was made must be there to be destroyed. */
static int churn(int card, int dev, const char *name, int count)
{
    int made = 0, full = 0, lost = 0;

    for (int round = 0; round < count; round++) {
        uint32_t id;

        if (create(card, dev, name, UINT32_MAX, UINT32_MAX, &id) != 0) {
            full++;
            continue;
        }
        made++;
        lost += destroy(card, dev, id) != 0;
    }
    printf("churn made=%d full=%d lost=%d\n", made, full, lost);
    return lost != 0;
}

static int call_one(int argc, char **argv)
{
    struct buffer buffer;
    unsigned size = 512;
    unsigned char *at = fresh(&buffer, size);
    int card = argc > 4 ? atoi(argv[4]) : 0, dev = argc > 5 ? atoi(argv[5]) : 0, code;

    if (strcmp(argv[3], "dcmi_get_device_info") == 0)
        code = ((chip_info)symbol(argv[3]))(card, dev, 52, argc > 6 ? (unsigned)atoi(argv[6]) : 1, at, &size);
    else if (strcmp(argv[3], "dcmi_set_destroy_vdevice") == 0)
        code = destroy(card, dev, argc > 6 ? (uint32_t)strtoul(argv[6], NULL, 10) : 0);
    else
        code = ((chip_pointer)symbol(argv[3]))(card, dev, at);
    check_walls(&buffer, argv[3]);
    printf("call code=%d size=%u bytes=", code, size);
    for (size_t index = 0; index < buffer.size; index++)
        printf("%02x", at[index]);
    printf("\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *command = argc > 2 ? argv[2] : "";
    uint32_t id = UINT32_MAX;
    int code;

    setvbuf(stdout, NULL, _IOLBF, 0);
    library = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc > 2 ? dlerror() : "usage: dcmi_client LIBRARY COMMAND...");
        return 2;
    }
    if (strcmp(command, "symbols") == 0) {
        for (int index = 3; index < argc; index++)
            printf("%s %s\n", dlsym(library, argv[index]) ? "present" : "absent", argv[index]);
        return 0;
    }
    if (strcmp(command, "list-second") == 0)
        return list_second();
    code = ((none_call)symbol("dcmi_init"))();
    if (code) {
        printf("init code=%d\n", code);
        return 2;
    }
    if (strcmp(command, "list") == 0)
        return list_all();
    if (strcmp(command, "create") == 0 && argc > 5) {
        if (argc > 6)
            id = (uint32_t)strtoul(argv[6], NULL, 10);
        code = create(atoi(argv[3]), atoi(argv[4]), argv[5], id, argc > 7 ? (uint32_t)strtoul(argv[7], NULL, 10) : UINT32_MAX, &id);
        printf("create code=%d id=%u\n", code, id);
        return 0;
    }
    if (strcmp(command, "destroy") == 0 && argc > 5) {
        printf("destroy code=%d\n", destroy(atoi(argv[3]), atoi(argv[4]), (uint32_t)strtoul(argv[5], NULL, 10)));
        return 0;
    }
    if (strcmp(command, "churn") == 0 && argc > 6)
        return churn(atoi(argv[3]), atoi(argv[4]), argv[5], atoi(argv[6]));
    if (strcmp(command, "call") == 0 && argc > 3)
        return call_one(argc, argv);
    fprintf(stderr, "unknown command: %s\n", command);
    return 2;
}
