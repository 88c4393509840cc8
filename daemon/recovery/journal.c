/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/recovery/journal.h"

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
#define FREED 0x65657266u
#define EXTENT_MAGIC 0x6e747865u

#define HEADER_BYTES 4096u
#define UNIT_BYTES (64u << 10) /* an extent is a multiple of this */
#define EXTENT_HEADER_BYTES 64u
#define MIN_SLOT_BYTES 128u
#define CLASSES 20u /* 128 bytes, doubled up to 64 MiB */
/* The file has this length from the beginning, without pages. It never grows, so accesses never reach beyond its end. */
#define FILE_BYTES (UINT64_C(16) << 30)
#define LARGE_BYTES (64u << 10) /* the pages of a free slot of this size go back to the kernel */
#define PAGE_BYTES 4096u

struct header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint64_t end; /* of the last extent */
    struct journal_state state;
};

struct extent {
    uint32_t magic;
    uint32_t slot_bytes;
    uint64_t bytes; /* of the extent */
};

struct journal {
    int fd;
    uint8_t *base; /* mapped: [FILE_BYTES] */
    uint64_t
        free_slots[CLASSES]; /* the offset of the first free slot of each class, which has the next one in `key`; 0: none */
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

static uint64_t slots_in(const struct extent *extent)
{
    return (extent->bytes - EXTENT_HEADER_BYTES) / extent->slot_bytes;
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

/* Everything that was stored before is in place when the commit word is. */
static void set_commit(struct journal_slot *slot, uint32_t commit)
{
    atomic_store_explicit((_Atomic uint32_t *)&slot->commit, commit, memory_order_release);
}

/* ---- opening ---- */

static enum rdt_status map_file(int take_fd, struct journal **journal_p, struct rdt_error *err)
{
    struct journal *journal = calloc(1, sizeof *journal);
    void *base = MAP_FAILED;
    int error = ENOMEM;

    if (journal) {
        base = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, take_fd, 0);
        error = errno;
    }
    if (base == MAP_FAILED) {
        (void)close(take_fd);
        free(journal);
        return rdt_error_sys(err, error, "mapping the journal");
    }
    (void)madvise(base, FILE_BYTES, MADV_DONTDUMP);
    journal->fd = take_fd;
    journal->base = base;
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
    if ((head->state.next_region | head->state.next_hold | head->state.next_session | head->state.names_version) >>
        JOURNAL_MAX_ID_BITS)
        return rdt_error_set(err, RDT_INVALID, "the ids in its header are damaged");
    return RDT_OK;
}

static bool extent_is_valid(const struct journal *journal, uint64_t at)
{
    const struct extent *extent = (const struct extent *)(journal->base + at);
    unsigned class = class_of(extent->slot_bytes);

    return extent->magic == EXTENT_MAGIC && class < CLASSES && extent->slot_bytes == (uint64_t)MIN_SLOT_BYTES << class &&
           extent->bytes == extent_bytes(extent->slot_bytes) && extent->bytes <= header(journal)->end - at;
}

static void push_free(struct journal *journal, uint64_t offset, unsigned class)
{
    set_commit(slot_at(journal, offset), FREED);
    slot_at(journal, offset)->key = journal->free_slots[class];
    journal->free_slots[class] = offset;
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

static void find_slots(struct journal *journal, uint64_t at, const struct extent *extent)
{
    unsigned class = class_of(extent->slot_bytes);

    for (uint64_t i = slots_in(extent); i-- > 0;) {
        uint64_t offset = at + EXTENT_HEADER_BYTES + i * extent->slot_bytes;
        if (!is_whole(journal, slot_at(journal, offset), extent->slot_bytes))
            push_free(journal, offset, class);
    }
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
    for (uint64_t at = HEADER_BYTES; status == RDT_OK && at < header(journal)->end;) {
        const struct extent *extent = (const struct extent *)(journal->base + at);
        if (!extent_is_valid(journal, at)) {
            status = rdt_error_set(err, RDT_INVALID, "it is damaged at byte %llu", (unsigned long long)at);
            break;
        }
        find_slots(journal, at, extent);
        at += extent->bytes;
    }
    if (status == RDT_OK) {
        header(journal)->version = JOURNAL_VERSION; /* from now on it contains records that an older daemon does not know */
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
    (void)close(journal->fd);
    free(journal);
}

/* ---- records ---- */

/* The extent must be valid before the header counts it. */
static bool add_extent(struct journal *journal, unsigned class)
{
    struct header *head = header(journal);
    uint64_t slot_bytes = (uint64_t)MIN_SLOT_BYTES << class, at = head->end, bytes = extent_bytes(slot_bytes);
    struct extent *extent = (struct extent *)(journal->base + at);

    if (bytes > FILE_BYTES - at)
        return false;
    *extent = (struct extent){.magic = EXTENT_MAGIC, .slot_bytes = (uint32_t)slot_bytes, .bytes = bytes};
    for (uint64_t i = slots_in(extent); i-- > 0;)
        push_free(journal, at + EXTENT_HEADER_BYTES + i * slot_bytes, class);
    atomic_store_explicit((_Atomic uint64_t *)&head->end, at + bytes, memory_order_release);
    return true;
}

struct journal_slot *journal_begin(struct journal *journal, size_t bytes)
{
    unsigned class = class_of(sizeof(struct journal_slot) + bytes);
    struct journal_slot *slot;

    if (bytes > JOURNAL_MAX_BYTES || (journal->free_slots[class] == 0 && !add_extent(journal, class)))
        return NULL;
    slot = slot_at(journal, journal->free_slots[class]);
    slot->bytes = (uint32_t)bytes;
    return slot;
}

void journal_commit(struct journal *journal, struct journal_slot *slot, uint32_t kind, uint64_t key, uint32_t flags,
                    const uint64_t *numbers)
{
    unsigned class = class_of(sizeof *slot + slot->bytes);

    journal->free_slots[class] = slot->key; /* until now the slot was the first free one */
    slot->kind = kind;
    slot->key = key;
    slot->flags = flags;
    memcpy(slot->numbers, numbers, sizeof slot->numbers);
    slot->checksum = checksum(slot);
    set_commit(slot, COMMITTED);
}

void journal_remove(struct journal *journal, struct journal_slot *slot)
{
    unsigned class = class_of(sizeof *slot + slot->bytes);
    uint64_t slot_bytes = (uint64_t)MIN_SLOT_BYTES << class, offset = (uint64_t)((uint8_t *)slot - journal->base);
    uint64_t first = (offset + PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES, last = (offset + slot_bytes) / PAGE_BYTES * PAGE_BYTES;

    push_free(journal, offset, class);
    if (slot_bytes >= LARGE_BYTES)
        (void)madvise(journal->base + first, last - first, MADV_REMOVE);
}

void journal_set_number(struct journal_slot *slot, unsigned i, uint64_t number)
{
    atomic_store_explicit((_Atomic uint64_t *)&slot->numbers[i], number, memory_order_release);
}

void journal_set_flags(struct journal_slot *slot, uint32_t flags)
{
    atomic_store_explicit((_Atomic uint32_t *)&slot->flags, flags, memory_order_release);
}

/* The cursor is the place of the next slot: where it is in its extent follows from the extents before it, so it has the
 * extent's unit in its upper half and the slot's number in the lower one. */
struct journal_slot *journal_next(struct journal *journal, uint64_t *cursor)
{
    uint64_t unit = *cursor >> 32, i = (uint32_t)*cursor;

    for (;;) {
        uint64_t at = HEADER_BYTES + unit * UNIT_BYTES;
        const struct extent *extent = (const struct extent *)(journal->base + at);
        if (at >= header(journal)->end)
            return NULL;
        for (; i < slots_in(extent); i++) {
            struct journal_slot *slot = slot_at(journal, at + EXTENT_HEADER_BYTES + i * extent->slot_bytes);
            if (slot->commit == COMMITTED) {
                *cursor = unit << 32 | (i + 1);
                return slot;
            }
        }
        unit += extent->bytes / UNIT_BYTES;
        i = 0;
    }
}

/* ---- the rest ---- */

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
