/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/recovery/journal: whole records are read back, and nothing else is. */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/recovery/journal.h"
#include "tests/support/check.h"
#include "tests/support/tensors.h"

TestSuite(journal, .timeout = 60);

#define KIND 7u
static const uint64_t zeros[JOURNAL_NUMBERS];

static struct journal *create(void)
{
    struct journal *journal;

    must_ok(journal_create(&journal, &err));
    return journal;
}

/* As the next daemon gets it: by another descriptor of the same file. */
static struct journal *reopen(struct journal *journal)
{
    int fd = dup(journal_fd(journal));
    struct journal *again;

    journal_close(journal);
    must_ok(journal_open(fd, &again, &err));
    return again;
}

static struct journal_slot *add(struct journal *journal, uint64_t key, size_t bytes)
{
    struct journal_slot *slot = journal_begin(journal, bytes);

    cr_assert(slot);
    fill_pattern(slot->payload, bytes, (uint32_t)key);
    journal_commit(journal, slot, KIND, key, 0, zeros);
    return slot;
}

static unsigned count(struct journal *journal)
{
    uint64_t cursor = 0;
    unsigned n = 0;

    for (const struct journal_slot *slot; (slot = journal_next(journal, &cursor)); n++) {
        cr_assert_eq(slot->kind, KIND);
        cr_assert(holds_pattern(slot->payload, slot->bytes, (uint32_t)slot->key));
    }
    return n;
}

Test(journal, records_of_every_size_come_back_and_removed_ones_do_not)
{
    static const size_t sizes[] = {0, 1, 64, 65, 192, 193, 1000, 60000, 70000, 1 << 20, JOURNAL_MAX_BYTES};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    struct journal *journal = create();
    struct journal_slot *slots[SIZES];

    for (unsigned i = 0; i < SIZES; i++)
        slots[i] = add(journal, i, sizes[i]);
    cr_assert_null(journal_begin(journal, JOURNAL_MAX_BYTES + 1), "a record has a largest size");
    for (unsigned i = 0; i < SIZES; i += 2)
        journal_remove(journal, slots[i]);
    journal = reopen(journal);
    cr_assert_eq(count(journal), SIZES / 2);
    cr_assert_eq(journal_damaged(journal), 0u);
    journal_close(journal);
}

Test(journal, numbers_and_state_change_in_place)
{
    struct journal *journal = create();
    struct journal_slot *slot = add(journal, 1, 10);
    uint64_t cursor = 0;

    journal_set_number(slot, 1, 42);
    journal_state(journal)->names_version = 17;
    journal = reopen(journal);
    slot = journal_next(journal, &cursor);
    cr_assert_eq(slot->numbers[0], 0u);
    cr_assert_eq(slot->numbers[1], 42u);
    cr_assert_eq(journal_state(journal)->names_version, 17u);
    journal_close(journal);
}

/* What a million objects that come and go leave is as large as what lived together. */
Test(journal, file_does_not_grow_while_records_come_and_go)
{
    enum { TOGETHER = 100, ROUNDS = 20000 };
    struct journal *journal = create();
    struct journal_slot *slots[TOGETHER] = {NULL};
    uint64_t random = 1, full = 0;

    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned at = next_random(&random) % TOGETHER;
        if (slots[at])
            journal_remove(journal, slots[at]);
        slots[at] = add(journal, i, next_random(&random) % 500);
        if (i == ROUNDS / 2)
            full = journal_file_bytes(journal);
    }
    cr_assert_leq(journal_file_bytes(journal), full + (4u << 16), "a few extents at most: %llu beside %llu",
                  (unsigned long long)journal_file_bytes(journal), (unsigned long long)full);
    cr_assert_eq(count(journal), TOGETHER);
    journal_close(journal);
}

Test(journal, damaged_record_is_left_out_and_its_slot_used_again)
{
    struct journal *journal = create();
    struct journal_slot *slot = add(journal, 1, 100);

    (void)add(journal, 2, 100);
    slot->payload[50] ^= 1;
    journal = reopen(journal);
    cr_assert_eq(journal_damaged(journal), 1u);
    cr_assert_eq(count(journal), 1u);
    (void)add(journal, 3, 100);
    cr_assert_eq(count(journal), 2u);
    journal_close(journal);
}

static void must_not_open(int take_fd, enum rdt_status status, const char *text)
{
    struct journal *journal;

    must_refuse(status, text, journal_open(take_fd, &journal, &err));
}

/* The first bytes of the file, past the magic number: the version. */
static void patch(struct journal *journal, off_t at, const void *bytes, size_t n)
{
    cr_assert_eq(pwrite(journal_fd(journal), bytes, n, at), (ssize_t)n);
}

Test(journal, of_another_version_or_damaged_is_refused_with_a_sentence)
{
    struct journal *journal = create();
    const uint32_t newer = JOURNAL_VERSION + 1, same = JOURNAL_VERSION;
    const uint64_t beyond = UINT64_MAX / 2, nonsense = 0x1234;
    int fd;

    (void)add(journal, 1, 10);
    patch(journal, 8, &newer, sizeof newer);
    must_not_open(dup(journal_fd(journal)), RDT_UNSUPPORTED, "it has version 3, and this rdtd reads versions 1 to 2");
    patch(journal, 8, &same, sizeof same);
    patch(journal, 4096, &nonsense, sizeof nonsense);
    must_not_open(dup(journal_fd(journal)), RDT_INVALID, "damaged at byte 4096");
    patch(journal, 64, &beyond, sizeof beyond);
    must_not_open(dup(journal_fd(journal)), RDT_INVALID, "the ids in its header are damaged");
    patch(journal, 16, &beyond, sizeof beyond);
    must_not_open(dup(journal_fd(journal)), RDT_INVALID, "its header is damaged");
    patch(journal, 0, &nonsense, sizeof nonsense);
    must_not_open(dup(journal_fd(journal)), RDT_INVALID, "does not begin like a journal");
    journal_close(journal);

    fd = memfd_create("other", MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(fd, 1 << 20), 0);
    must_not_open(fd, RDT_INVALID, "not a file that rdtd makes");
    must_not_open(open("/dev/null", O_RDWR), RDT_INVALID, "not a file that rdtd makes");
}

/* The journal of the version before, whose header has no ids: it becomes one of this version. */
Test(journal, of_version_1_is_read_and_goes_on_as_version_2)
{
    struct journal *journal = create();
    const uint32_t older = 1;
    uint32_t version;

    (void)add(journal, 7, 10);
    patch(journal, 8, &older, sizeof older);
    journal = reopen(journal);
    cr_assert_eq(count(journal), 1u);
    cr_assert_eq(journal_damaged(journal), 0u);
    cr_assert_eq(journal_state(journal)->next_region, 0u);
    must(pread(journal_fd(journal), &version, sizeof version, 8) == sizeof version);
    cr_assert_eq(version, JOURNAL_VERSION);
    journal_close(journal);
}

Test(journal, flags_and_numbers_change_in_place)
{
    struct journal *journal = create();
    struct journal_slot *slot = add(journal, 7, 10);
    uint64_t cursor = 0;

    journal_set_flags(slot, 5);
    journal_set_number(slot, 1, 77);
    journal = reopen(journal);
    cr_assert_eq(journal_damaged(journal), 0u);
    slot = journal_next(journal, &cursor);
    cr_assert_eq(slot->flags, 5u);
    cr_assert_eq(slot->numbers[1], 77u);
    journal_close(journal);
}

/* Whatever a daemon that went wild wrote there, opening ends, and what it returns can be used. */
Test(journal, random_bytes_in_extents_do_no_harm)
{
    uint64_t random = 7;

    for (unsigned round = 0; round < 300; round++) {
        struct journal *journal = create(), *again;
        uint64_t end;
        int fd;
        for (unsigned i = 0; i < 40; i++)
            (void)add(journal, i, next_random(&random) % 3000);
        end = journal_file_bytes(journal);
        for (unsigned i = 0; i < 8; i++) {
            uint32_t bytes = next_random(&random);
            patch(journal, (off_t)(4096 + next_random(&random) % (end - 4096 - 4)), &bytes, 1 + next_random(&random) % 4);
        }
        fd = dup(journal_fd(journal));
        journal_close(journal);
        if (journal_open(fd, &again, NULL) != RDT_OK)
            continue;
        cr_assert_geq(count(again) + journal_damaged(again), 30u);
        (void)add(again, 1000, 100);
        journal_close(again);
    }
}
