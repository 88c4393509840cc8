/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x314c4e524a445452) /* "RTDJRNL1" */
#define COMMITTED 0x74696d63u
#define EXTENT_MAGIC 0x6e747865u
#define FREE_MAGIC 0x65657266u

#define FIRST_WITH_FREE_EXTENTS 3u /* version */
#define HEADER_BYTES 4096u
#define UNIT_BYTES (64u << 10) /* an extent is a multiple of this */
#define EXTENT_HEADER_BYTES 64u
#define MIN_SLOT_BYTES 128u
#define CLASSES 20u /* 128 bytes, doubled up to 64 MiB */
#define FILE_BYTES JOURNAL_FILE_BYTES
#define PAGE_BYTES 4096u
#define UNITS ((uint32_t)((FILE_BYTES - HEADER_BYTES) / UNIT_BYTES))
#define MOST_SLOTS (UNIT_BYTES / MIN_SLOT_BYTES) /* of an extent */
#define RUN_LISTS 20u                            /* of free extents, by their length */
#define NO_UNIT UINT32_MAX
/* So many pages without a record may stay in extents that have records, so that a record that comes and goes costs no page
 * each time. */
#define EMPTY_PAGES 1024u

struct header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint64_t end; /* of the last extent */
    struct journal_state state;
};

struct extent {
    uint32_t magic; /* EXTENT_MAGIC, or FREE_MAGIC: it has no slots, and is zero behind this header */
    uint32_t slot_bytes;
    uint64_t bytes; /* of the extent */
};

enum unit_state { UNIT_INNER, UNIT_EXTENT, UNIT_FREE };

/* What this process knows of the extent that begins at a unit of the file. Nothing of it is in the file, where free slots and
 * free extents then need no pages. */
struct unit {
    uint32_t units; /* of the extent; also at the last unit of a free one */
    uint16_t used;  /* slots with a record */
    uint8_t state;  /* enum unit_state */
    uint8_t class;
    uint32_t before, after;          /* in journal->with_room, or in journal->runs */
    uint64_t taken[MOST_SLOTS / 64]; /* a bit for each slot with a record */
};

struct journal {
    int fd;
    uint8_t *base;               /* mapped: [FILE_BYTES] */
    struct unit *units;          /* [UNITS], mapped; pages that are not used do not exist */
    uint32_t with_room[CLASSES]; /* the first extent of each class that has a free slot; NO_UNIT: none */
    uint32_t runs[RUN_LISTS];    /* the first free extent of each length */
    uint32_t spare[CLASSES];     /* an extent of the class without records, so that the next one needs no new extent */
    uint64_t free_bytes;         /* of the free extents */
    uint32_t empty[EMPTY_PAGES]; /* a ring of pages that had no record when they were noted */
    uint32_t empty_first, n_empty;
    uint64_t damaged;
};

static struct header *header(const struct journal *journal)
{
    return (struct header *)journal->base;
}

static struct journal_slot *slot_at(const struct journal *journal, uint64_t offset)
{
    return (struct journal_slot *)(journal->base + offset);
}

static unsigned class_of(uint64_t slot_bytes)
{
    unsigned class = 0;

    while ((uint64_t)MIN_SLOT_BYTES << class < slot_bytes)
        class ++;
    return class;
}

static uint64_t extent_bytes(uint64_t slot_bytes)
{
    uint64_t bytes = EXTENT_HEADER_BYTES + slot_bytes;

    return bytes <= UNIT_BYTES ? UNIT_BYTES : (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

static uint32_t slots_of(uint64_t slot_bytes)
{
    return (uint32_t)((extent_bytes(slot_bytes) - EXTENT_HEADER_BYTES) / slot_bytes);
}

static uint64_t class_bytes(unsigned class)
{
    return (uint64_t)MIN_SLOT_BYTES << class;
}

static uint64_t unit_offset(uint32_t u)
{
    return HEADER_BYTES + (uint64_t)u * UNIT_BYTES;
}

static struct extent *extent_at(const struct journal *journal, uint32_t u)
{
    return (struct extent *)(journal->base + unit_offset(u));
}

static uint64_t slot_offset(uint32_t u, unsigned class, uint32_t i)
{
    return unit_offset(u) + EXTENT_HEADER_BYTES + i * class_bytes(class);
}

/* The unit at which the slot's extent begins: slots of a longer extent begin in its first unit. */
static uint32_t unit_of(const struct journal *journal, const struct journal_slot *slot)
{
    return (uint32_t)(((uint64_t)((const uint8_t *)slot - journal->base) - HEADER_BYTES) / UNIT_BYTES);
}

static uint32_t end_unit(const struct journal *journal)
{
    return (uint32_t)((header(journal)->end - HEADER_BYTES) / UNIT_BYTES);
}

/* Fast, and sufficient to distinguish a whole record from a damaged one; it does not protect against forgery. */
static uint64_t mix(uint64_t sum, uint64_t word)
{
    sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ (sum >> 29);
}

static uint64_t checksum(const struct journal_slot *slot)
{
    uint64_t sum = mix(mix(mix(1, slot->kind), slot->key), slot->bytes), word;
    uint32_t at = 0;

    for (; slot->bytes - at >= sizeof word; at += sizeof word) {
        memcpy(&word, slot->payload + at, sizeof word);
        sum = mix(sum, word);
    }
    word = 0;
    memcpy(&word, slot->payload + at, slot->bytes - at);
    return mix(sum, word);
}

/* Everything that was stored before is in place when these are. */
static void store_u32(uint32_t *at, uint32_t value)
{
    atomic_store_explicit((_Atomic uint32_t *)at, value, memory_order_release);
}

static void store_u64(uint64_t *at, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)at, value, memory_order_release);
}

/* Gives the pages back to the kernel; they are read as zeros. Nobody else ever takes the lock of this file, and there are few
 * pages: a record of many was written by this thread, which took longer. */
static void punch(struct journal *journal, uint64_t from, uint64_t to)
{
    if (from < to && fallocate(journal->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(to - from)))
        memset(journal->base + from, 0, to - from);
}

/* ---- lists of units ---- */

static void push_unit(struct journal *journal, uint32_t *first, uint32_t u)
{
    journal->units[u].before = NO_UNIT;
    journal->units[u].after = *first;
    if (*first != NO_UNIT)
        journal->units[*first].before = u;
    *first = u;
}

static void unlink_unit(struct journal *journal, uint32_t *first, uint32_t u)
{
    const struct unit *unit = &journal->units[u];

    if (unit->before != NO_UNIT)
        journal->units[unit->before].after = unit->after;
    else
        *first = unit->after;
    if (unit->after != NO_UNIT)
        journal->units[unit->after].before = unit->before;
}

/* ---- free extents ----
 *
 * Each change of the file is one store, before and after which the file is a valid chain of extents:
 *
 *   a free extent ──split──► two free extents ──► slot_bytes ──► EXTENT_MAGIC
 *        ▲                                                            │ its last record is removed
 *        └──── bytes of the one before it cover it ◄── zeros ◄── FREE_MAGIC
 *
 * A free extent at the end of the file is cut off: header->end. */

/* An extent has 1 or 2^k + 1 units, and each free extent in the list of that length has at least as many. */
static unsigned run_list(uint32_t units)
{
    unsigned list = 0;

    while (units > 1 && (units - 1) >> list)
        list++;
    return list < RUN_LISTS ? list : RUN_LISTS - 1;
}

static void add_run(struct journal *journal, uint32_t u, uint32_t units)
{
    journal->units[u].state = journal->units[u + units - 1].state = UNIT_FREE;
    journal->units[u].units = journal->units[u + units - 1].units = units;
    journal->free_bytes += (uint64_t)units * UNIT_BYTES;
    push_unit(journal, &journal->runs[run_list(units)], u);
}

static void take_run(struct journal *journal, uint32_t u)
{
    uint32_t units = journal->units[u].units;

    journal->free_bytes -= (uint64_t)units * UNIT_BYTES;
    unlink_unit(journal, &journal->runs[run_list(units)], u);
    journal->units[u + units - 1].state = UNIT_INNER;
    journal->units[u].state = UNIT_INNER;
}

/* The extent has no record any more. */
static void free_extent(struct journal *journal, uint32_t u, uint32_t units)
{
    struct extent *extent = extent_at(journal, u);

    store_u32(&extent->magic, FREE_MAGIC);
    memset((uint8_t *)extent + sizeof *extent, 0, PAGE_BYTES - sizeof *extent);
    punch(journal, unit_offset(u) + PAGE_BYTES, unit_offset(u + units));
    journal->units[u] = (struct unit){.state = UNIT_INNER};
    if (u + units < end_unit(journal) && journal->units[u + units].state == UNIT_FREE) {
        uint32_t more = journal->units[u + units].units;
        take_run(journal, u + units);
        store_u64(&extent->bytes, (uint64_t)(units + more) * UNIT_BYTES);
        punch(journal, unit_offset(u + units), unit_offset(u + units) + PAGE_BYTES);
        units += more;
    }
    if (u > 0 && journal->units[u - 1].state == UNIT_FREE) {
        uint32_t more = journal->units[u - 1].units;
        take_run(journal, u - more);
        store_u64(&extent_at(journal, u - more)->bytes, (uint64_t)(units + more) * UNIT_BYTES);
        punch(journal, unit_offset(u), unit_offset(u) + PAGE_BYTES);
        u -= more;
        units += more;
    }
    if (u + units == end_unit(journal)) {
        store_u64(&header(journal)->end, unit_offset(u));
        punch(journal, unit_offset(u), unit_offset(u) + PAGE_BYTES);
    } else {
        add_run(journal, u, units);
    }
}

/* Takes the first units of a free extent. NO_UNIT: no free extent is so long. */
static uint32_t split_run(struct journal *journal, uint32_t units)
{
    for (unsigned list = run_list(units); list < RUN_LISTS; list++) {
        uint32_t u = journal->runs[list], all;
        if (u == NO_UNIT || journal->units[u].units < units)
            continue;
        all = journal->units[u].units;
        take_run(journal, u);
        if (all > units) {
            *extent_at(journal, u + units) =
                (struct extent){.magic = FREE_MAGIC, .bytes = (uint64_t)(all - units) * UNIT_BYTES};
            store_u64(&extent_at(journal, u)->bytes, (uint64_t)units * UNIT_BYTES);
            add_run(journal, u + units, all - units);
        }
        return u;
    }
    return NO_UNIT;
}

static void begin_extent(struct journal *journal, uint32_t u, unsigned class)
{
    journal->units[u] =
        (struct unit){.units = (uint32_t)(extent_bytes(class_bytes(class)) / UNIT_BYTES), .state = UNIT_EXTENT, .class = class};
    push_unit(journal, &journal->with_room[class], u);
}

static bool add_extent(struct journal *journal, unsigned class)
{
    uint64_t bytes = extent_bytes(class_bytes(class));
    uint32_t u = split_run(journal, (uint32_t)(bytes / UNIT_BYTES));
    struct extent *extent;

    if (u != NO_UNIT) {
        store_u32(&extent_at(journal, u)->slot_bytes, (uint32_t)class_bytes(class));
        store_u32(&extent_at(journal, u)->magic, EXTENT_MAGIC);
    } else if (bytes <= unit_offset(UNITS) - header(journal)->end) {
        u = end_unit(journal);
        extent = extent_at(journal, u);
        *extent = (struct extent){.magic = EXTENT_MAGIC, .slot_bytes = (uint32_t)class_bytes(class), .bytes = bytes};
        store_u64(&header(journal)->end, header(journal)->end + bytes); /* the extent must be valid before it counts */
    } else {
        return false;
    }
    begin_extent(journal, u, class);
    return true;
}

static void free_spare(struct journal *journal, unsigned class)
{
    uint32_t u = journal->spare[class];

    if (u == NO_UNIT)
        return;
    journal->spare[class] = NO_UNIT;
    unlink_unit(journal, &journal->with_room[class], u);
    free_extent(journal, u, journal->units[u].units);
}

/* ---- pages without records ---- */

/* Whether no record lies on that page of the extent, which is not its first one: that one has the extent's header. */
static bool page_is_empty(const struct unit *unit, uint32_t page)
{
    uint64_t slot_bytes = class_bytes(unit->class);
    uint32_t first = (uint32_t)((page * PAGE_BYTES - EXTENT_HEADER_BYTES) / slot_bytes);
    uint32_t last = (uint32_t)(((page + 1) * PAGE_BYTES - EXTENT_HEADER_BYTES - 1) / slot_bytes);

    for (uint32_t i = first; i <= last && i < slots_of(slot_bytes); i++)
        if (unit->taken[i / 64] >> (i % 64) & 1)
            return false;
    return true;
}

/* Takes the oldest page of the ring, and those that follow it there and in the file. */
static void punch_oldest(struct journal *journal)
{
    uint32_t first = journal->empty[journal->empty_first], n = 0;
    uint32_t u = first / (UNIT_BYTES / PAGE_BYTES), page = first % (UNIT_BYTES / PAGE_BYTES);
    const struct unit *unit = &journal->units[u];

    while (journal->n_empty > 0 && journal->empty[journal->empty_first] == first + n && page + n < UNIT_BYTES / PAGE_BYTES) {
        journal->empty_first = (journal->empty_first + 1) % EMPTY_PAGES;
        journal->n_empty--;
        n++;
    }
    if (unit->state != UNIT_EXTENT || unit->units != 1)
        return; /* its pages went with the extent */
    for (uint32_t end = page + n, from; page < end; page++) {
        for (from = page; page < end && page_is_empty(unit, page); page++)
            ;
        punch(journal, unit_offset(u) + (uint64_t)from * PAGE_BYTES, unit_offset(u) + (uint64_t)page * PAGE_BYTES);
    }
}

static void note_empty_pages(struct journal *journal, uint32_t u, uint32_t slot)
{
    const struct unit *unit = &journal->units[u];
    uint64_t from = EXTENT_HEADER_BYTES + slot * class_bytes(unit->class), to = from + class_bytes(unit->class);

    for (uint32_t page = (uint32_t)(from / PAGE_BYTES); page * PAGE_BYTES < to; page++) {
        if (page == 0 || !page_is_empty(unit, page))
            continue;
        if (journal->n_empty == EMPTY_PAGES)
            punch_oldest(journal);
        journal->empty[(journal->empty_first + journal->n_empty++) % EMPTY_PAGES] = u * (UNIT_BYTES / PAGE_BYTES) + page;
    }
}

/* ---- opening ---- */

static enum rdt_status map_file(int take_fd, struct journal **journal_p, struct rdt_error *err)
{
    struct journal *journal = calloc(1, sizeof *journal);
    void *base = MAP_FAILED, *units = MAP_FAILED;
    int error = ENOMEM;

    if (journal) {
        units =
            mmap(NULL, UNITS * sizeof(struct unit), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        error = errno;
    }
    if (units != MAP_FAILED) {
        base = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, take_fd, 0);
        error = errno;
    }
    if (base == MAP_FAILED) {
        if (units != MAP_FAILED)
            (void)munmap(units, UNITS * sizeof(struct unit));
        (void)close(take_fd);
        free(journal);
        return rdt_error_sys(err, error, "mapping the journal");
    }
    (void)madvise(base, FILE_BYTES, MADV_DONTDUMP);
    journal->fd = take_fd;
    journal->base = base;
    journal->units = units;
    memset(journal->with_room, 0xff, sizeof journal->with_room); /* NO_UNIT */
    memset(journal->runs, 0xff, sizeof journal->runs);
    memset(journal->spare, 0xff, sizeof journal->spare);
    *journal_p = journal;
    return RDT_OK;
}

enum rdt_status journal_create(struct journal **journal_p, struct rdt_error *err)
{
    int fd = memfd_create("rdtd-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    enum rdt_status status;

    if (fd < 0)
        return rdt_error_sys(err, errno, "creating the journal");
    if (fchmod(fd, 0600) || ftruncate(fd, (off_t)FILE_BYTES) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        status = rdt_error_sys(err, errno, "creating the journal");
        (void)close(fd);
        return status;
    }
    status = map_file(fd, journal_p, err);
    if (status != RDT_OK)
        return status;
    *header(*journal_p) =
        (struct header){.version = JOURNAL_VERSION, .header_bytes = sizeof(struct header), .end = HEADER_BYTES};
    header(*journal_p)->magic = MAGIC;
    return RDT_OK;
}

/* The seals keep the file's size, so touching it cannot raise SIGBUS for want of a file. */
static enum rdt_status check_file(int fd, struct rdt_error *err)
{
    int seals = fcntl(fd, F_GET_SEALS), flags = fcntl(fd, F_GETFL);
    struct stat st;

    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW) || (seals & F_SEAL_WRITE) ||
        (flags & O_ACCMODE) != O_RDWR || fstat(fd, &st) || (uint64_t)st.st_size != FILE_BYTES)
        return rdt_error_set(err, RDT_INVALID, "it is not a file that rdtd makes for its journal");
    return RDT_OK;
}

static enum rdt_status check_header(const struct journal *journal, struct rdt_error *err)
{
    const struct header *head = header(journal);

    if (head->magic != MAGIC)
        return rdt_error_set(err, RDT_INVALID, "it does not begin like a journal");
    if (head->version < JOURNAL_OLDEST || head->version > JOURNAL_VERSION)
        return rdt_error_set(err, RDT_UNSUPPORTED, "it has version %u, and this rdtd reads versions %u to %u", head->version,
                             JOURNAL_OLDEST, JOURNAL_VERSION);
    if (head->end < HEADER_BYTES || head->end > FILE_BYTES || (head->end - HEADER_BYTES) % UNIT_BYTES != 0)
        return rdt_error_set(err, RDT_INVALID, "its header is damaged");
    return RDT_OK;
}

static bool extent_is_valid(const struct journal *journal, uint32_t u)
{
    const struct extent *extent = extent_at(journal, u);
    unsigned class = class_of(extent->slot_bytes);

    if (extent->bytes == 0 || extent->bytes % UNIT_BYTES != 0 || extent->bytes > header(journal)->end - unit_offset(u))
        return false;
    if (extent->magic == FREE_MAGIC)
        return header(journal)->version >= FIRST_WITH_FREE_EXTENTS;
    return extent->magic == EXTENT_MAGIC && class < CLASSES && extent->slot_bytes == class_bytes(class) &&
           extent->bytes == extent_bytes(extent->slot_bytes);
}

/* Whether a record is in the slot; one that is damaged is not. */
static bool is_whole(struct journal *journal, struct journal_slot *slot, uint32_t slot_bytes)
{
    if (slot->commit != COMMITTED)
        return false;
    if (slot->bytes <= slot_bytes - sizeof *slot && class_of(sizeof *slot + slot->bytes) == class_of(slot_bytes) &&
        slot->checksum == checksum(slot))
        return true;
    journal->damaged++;
    return false;
}

/* Finds the records of the extent, and frees the pages between them. */
static void find_slots(struct journal *journal, uint32_t u)
{
    struct extent *extent = extent_at(journal, u);
    unsigned class = class_of(extent->slot_bytes);
    uint32_t n = slots_of(extent->slot_bytes);
    struct unit *unit = &journal->units[u];

    begin_extent(journal, u, class);
    for (uint32_t i = 0; i < n; i++) {
        struct journal_slot *slot = slot_at(journal, slot_offset(u, class, i));
        if (is_whole(journal, slot, extent->slot_bytes)) {
            unit->taken[i / 64] |= UINT64_C(1) << (i % 64);
            unit->used++;
        } else if (slot->commit != 0) {
            store_u32(&slot->commit, 0);
        }
    }
    if (unit->used == n)
        unlink_unit(journal, &journal->with_room[class], u);
    for (uint32_t page = 1, from; unit->units == 1 && page < UNIT_BYTES / PAGE_BYTES; page++) {
        for (from = page; page < UNIT_BYTES / PAGE_BYTES && page_is_empty(unit, page); page++)
            ;
        punch(journal, unit_offset(u) + (uint64_t)from * PAGE_BYTES, unit_offset(u) + (uint64_t)page * PAGE_BYTES);
    }
}

/* What the earlier daemon had no time to free. */
static void free_rest(struct journal *journal)
{
    for (uint32_t u = 0, units; u < end_unit(journal); u += units) {
        units = journal->units[u].state == UNIT_EXTENT ? journal->units[u].units : 1;
        if (journal->units[u].state != UNIT_EXTENT || journal->units[u].used > 0)
            continue;
        unlink_unit(journal, &journal->with_room[journal->units[u].class], u);
        free_extent(journal, u, units);
    }
}

static enum rdt_status find_extents(struct journal *journal, struct rdt_error *err)
{
    for (uint32_t u = 0, units; u < end_unit(journal); u += units) {
        if (!extent_is_valid(journal, u))
            return rdt_error_set(err, RDT_INVALID, "it is damaged at byte %llu", (unsigned long long)unit_offset(u));
        units = (uint32_t)(extent_at(journal, u)->bytes / UNIT_BYTES);
        if (extent_at(journal, u)->magic == EXTENT_MAGIC) {
            find_slots(journal, u);
        } else {
            memset((uint8_t *)extent_at(journal, u) + sizeof(struct extent), 0, PAGE_BYTES - sizeof(struct extent));
            punch(journal, unit_offset(u) + PAGE_BYTES, unit_offset(u + units));
            add_run(journal, u, units);
        }
    }
    return RDT_OK;
}

enum rdt_status journal_open(int take_fd, struct journal **journal_p, struct rdt_error *err)
{
    struct journal *journal;
    enum rdt_status status = check_file(take_fd, err);

    if (status != RDT_OK) {
        (void)close(take_fd);
        return status;
    }
    status = map_file(take_fd, &journal, err);
    if (status != RDT_OK)
        return status;
    status = check_header(journal, err);
    if (status == RDT_OK)
        status = find_extents(journal, err);
    if (status == RDT_OK) {
        header(journal)->version = JOURNAL_VERSION; /* from now on it contains records that an older daemon does not know */
        punch(journal, header(journal)->end, FILE_BYTES);
        free_rest(journal);
        *journal_p = journal;
    } else {
        journal_close(journal);
    }
    return status;
}

void journal_close(struct journal *journal)
{
    if (!journal)
        return;
    (void)munmap(journal->base, FILE_BYTES);
    (void)munmap(journal->units, UNITS * sizeof(struct unit));
    (void)close(journal->fd);
    free(journal);
}

/* ---- records ---- */

uint64_t journal_record_bytes(size_t bytes)
{
    uint64_t slot_bytes = class_bytes(class_of(sizeof(struct journal_slot) + bytes));

    return extent_bytes(slot_bytes) / slots_of(slot_bytes);
}

bool journal_has_room(const struct journal *journal, size_t bytes, bool last)
{
    unsigned class = class_of(sizeof(struct journal_slot) + bytes);
    uint64_t extent, left = unit_offset(UNITS) - header(journal)->end;
    bool fits = false;

    if (bytes > JOURNAL_MAX_BYTES)
        return false;
    if (journal->with_room[class] != NO_UNIT)
        return true;
    extent = extent_bytes(class_bytes(class));
    for (unsigned list = run_list((uint32_t)(extent / UNIT_BYTES)); !fits && list < RUN_LISTS; list++)
        fits = journal->runs[list] != NO_UNIT && (uint64_t)journal->units[journal->runs[list]].units * UNIT_BYTES >= extent;
    return (fits || extent <= left) && (last || left + journal->free_bytes >= FILE_BYTES / 8 + extent);
}

static bool get_room(struct journal *journal, unsigned class)
{
    if (journal->with_room[class] != NO_UNIT || add_extent(journal, class))
        return true;
    for (unsigned i = 0; i < CLASSES; i++)
        free_spare(journal, i);
    return add_extent(journal, class);
}

static uint32_t first_free(const struct unit *unit)
{
    uint32_t word = 0;

    while (unit->taken[word] == UINT64_MAX)
        word++;
    return 64 * word + (uint32_t)__builtin_ctzll(~unit->taken[word]);
}

struct journal_slot *journal_begin(struct journal *journal, size_t bytes)
{
    unsigned class = class_of(sizeof(struct journal_slot) + bytes);
    struct journal_slot *slot;
    uint32_t u;

    if (bytes > JOURNAL_MAX_BYTES || !get_room(journal, class))
        return NULL;
    u = journal->with_room[class];
    slot = slot_at(journal, slot_offset(u, class, first_free(&journal->units[u])));
    slot->bytes = (uint32_t)bytes;
    return slot;
}

void journal_commit(struct journal *journal, struct journal_slot *slot, uint32_t kind, uint64_t key, uint32_t flags,
                    const uint64_t *numbers)
{
    uint32_t u = unit_of(journal, slot), i;
    struct unit *unit = &journal->units[u];
    unsigned class = unit->class;

    i = first_free(unit);
    assert(slot == slot_at(journal, slot_offset(u, class, i)));
    unit->taken[i / 64] |= UINT64_C(1) << (i % 64);
    if (journal->spare[class] == u)
        journal->spare[class] = NO_UNIT;
    if (++unit->used == slots_of(class_bytes(class)))
        unlink_unit(journal, &journal->with_room[class], u);
    slot->kind = kind;
    slot->key = key;
    slot->flags = flags;
    memcpy(slot->numbers, numbers, sizeof slot->numbers);
    slot->checksum = checksum(slot);
    store_u32(&slot->commit, COMMITTED);
}

void journal_remove(struct journal *journal, struct journal_slot *slot)
{
    uint32_t u = unit_of(journal, slot), i;
    struct unit *unit = &journal->units[u];
    unsigned class = unit->class;

    i = (uint32_t)(((uint64_t)((uint8_t *)slot - journal->base) - slot_offset(u, class, 0)) / class_bytes(class));
    store_u32(&slot->commit, 0);
    unit->taken[i / 64] &= ~(UINT64_C(1) << (i % 64));
    if (unit->used-- == slots_of(class_bytes(class)))
        push_unit(journal, &journal->with_room[class], u);
    if (unit->used > 0) {
        if (unit->units == 1)
            note_empty_pages(journal, u, i);
    } else if (unit->units == 1 && journal->spare[class] == NO_UNIT) {
        journal->spare[class] = u;
        note_empty_pages(journal, u, i);
    } else {
        unlink_unit(journal, &journal->with_room[class], u);
        free_extent(journal, u, unit->units);
    }
}

void journal_set_number(struct journal_slot *slot, unsigned i, uint64_t number)
{
    atomic_store_explicit((_Atomic uint64_t *)&slot->numbers[i], number, memory_order_release);
}

void journal_set_flags(struct journal_slot *slot, uint32_t flags)
{
    atomic_store_explicit((_Atomic uint32_t *)&slot->flags, flags, memory_order_release);
}

/* The cursor is the place of the next slot: it has the extent's unit in its upper half and the slot's number in the lower
 * one. */
struct journal_slot *journal_next(struct journal *journal, uint64_t *cursor)
{
    uint32_t u = (uint32_t)(*cursor >> 32), i = (uint32_t)*cursor;

    for (; u < end_unit(journal); u += journal->units[u].state == UNIT_EXTENT ? journal->units[u].units : 1) {
        const struct unit *unit = &journal->units[u];
        uint32_t n = unit->state == UNIT_EXTENT ? slots_of(class_bytes(unit->class)) : 0;
        for (; i < n; i++)
            if (unit->taken[i / 64] >> (i % 64) & 1) {
                *cursor = (uint64_t)u << 32 | (i + 1);
                return slot_at(journal, slot_offset(u, unit->class, i));
            }
        i = 0;
    }
    return NULL;
}

/* ---- the rest ---- */

uint64_t journal_offset(const struct journal *journal, const struct journal_slot *slot)
{
    return (uint64_t)((const uint8_t *)slot - journal->base);
}

struct journal_slot *journal_at(const struct journal *journal, uint64_t offset)
{
    uint32_t u =
        offset < HEADER_BYTES || offset >= header(journal)->end ? NO_UNIT : (uint32_t)((offset - HEADER_BYTES) / UNIT_BYTES);
    const struct unit *unit = u == NO_UNIT ? NULL : &journal->units[u];
    uint64_t first, i;

    if (!unit || unit->state != UNIT_EXTENT)
        return NULL;
    first = slot_offset(u, unit->class, 0);
    i = offset < first ? MOST_SLOTS : (offset - first) / class_bytes(unit->class);
    if (i >= slots_of(class_bytes(unit->class)) || offset != slot_offset(u, unit->class, (uint32_t)i) ||
        !(unit->taken[i / 64] >> (i % 64) & 1))
        return NULL;
    return slot_at(journal, offset);
}

int journal_fd(const struct journal *journal)
{
    return journal->fd;
}

struct journal_state *journal_state(struct journal *journal)
{
    return &header(journal)->state;
}

uint64_t journal_damaged(const struct journal *journal)
{
    return journal->damaged;
}

uint64_t journal_file_bytes(const struct journal *journal)
{
    return header(journal)->end;
}
