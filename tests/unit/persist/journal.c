/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/persist/journal: whole records are read back, and nothing else is. */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/persist/journal.h"
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

static uint64_t resident(const struct journal *journal)
{
    struct stat st;

    must(fstat(journal_fd(journal), &st) == 0);
    return (uint64_t)st.st_blocks * 512;
}

/* Records of each size in turn, which are all removed before the next size: as a client does that wants all of the file. */
Test(journal, what_removed_records_leave_serves_any_size_and_has_no_pages)
{
    enum { BYTES = 24 << 20, MOST = 24 << 10 };
    static const size_t sizes[] = {900, 1900, 3900, 7900, 15000, 31000, 66000, 300000, 1 << 20};
    static struct journal_slot *slots[MOST];
    struct journal *journal = create();
    struct journal_slot *last = add(journal, 1, 10); /* of somebody else */

    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned n = 0;
        for (uint64_t sum = 0; sum < BYTES; sum += journal_record_bytes(sizes[i]))
            slots[n] = add(journal, n, sizes[i]), n++;
        cr_assert_leq(journal_file_bytes(journal), BYTES + (8u << 20), "after records of %zu bytes", sizes[i]);
        for (unsigned k = 0; k < n; k += 2)
            journal_remove(journal, slots[k]);
        for (unsigned k = 1; k < n; k += 2)
            journal_remove(journal, slots[k]);
        cr_assert_leq(resident(journal), 1u << 20, "after records of %zu bytes", sizes[i]);
    }
    journal_remove(journal, last);
    journal = reopen(journal);
    cr_assert_eq(count(journal), 0u);
    cr_assert_leq(journal_file_bytes(journal), 4096u, "an empty journal");
    cr_assert_leq(resident(journal), 8192u);
    journal_close(journal);
}

/* One record of each extent stays: the pages of the others go all the same. */
Test(journal, pages_between_records_that_stay_go_back)
{
    enum { N = 15 * 400 };
    static struct journal_slot *slots[N];
    struct journal *journal = create();

    for (unsigned i = 0; i < N; i++)
        slots[i] = add(journal, i, 3900);
    cr_assert_geq(resident(journal), N * 4096ull);
    for (unsigned i = 0; i < N; i++)
        if (i % 15 != 7)
            journal_remove(journal, slots[i]);
    cr_assert_leq(resident(journal), N / 15 * 3 * 4096ull + (4u << 20) + 8192);
    cr_assert_eq(count(journal), N / 15);
    journal = reopen(journal);
    cr_assert_eq(count(journal), N / 15);
    cr_assert_leq(resident(journal), N / 15 * 3 * 4096ull + 8192);
    journal_close(journal);
}

/* A process adds and removes until it is killed, and tells by one byte each time. */
static void change_for_ever(struct journal *journal, uint64_t random, int told)
{
    enum { TOGETHER = 60 };
    struct journal_slot *slots[TOGETHER] = {NULL};

    for (uint64_t key = 1;; key++) {
        unsigned at = next_random(&random) % TOGETHER;
        if (slots[at])
            journal_remove(journal, slots[at]);
        slots[at] = NULL;
        if (next_random(&random) % 3 > 0)
            slots[at] = add(journal, key, next_random(&random) % (1u << (next_random(&random) % 18)));
        if (write(told, "x", 1) != 1)
            _exit(1);
    }
}

Test(journal, process_that_is_killed_at_any_instruction_leaves_whole_records)
{
    uint64_t random = 11;

    for (unsigned round = 0; round < 60; round++) {
        struct journal *journal = create();
        unsigned steps = 1 + next_random(&random) % 100, n;
        int pair[2];
        char byte;

        must(pipe(pair) == 0);
        pid_t child = fork();
        must(child >= 0);
        if (child == 0)
            change_for_ever(journal, round + 1, pair[1]);
        close(pair[1]);
        while (steps-- > 0)
            must(read(pair[0], &byte, 1) == 1);
        must(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        close(pair[0]);
        journal = reopen(journal);
        n = count(journal);
        cr_assert_eq(journal_damaged(journal), 0u);
        for (unsigned i = 0; i < 100; i++)
            (void)add(journal, i, next_random(&random) % (i % 10 ? 3000 : 70000));
        cr_assert_eq(count(journal), n + 100);
        journal = reopen(journal);
        cr_assert_eq(count(journal), n + 100);
        journal_close(journal);
    }
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

    (void)add(journal, 1, 10);
    patch(journal, 8, &newer, sizeof newer);
    must_not_open(dup(journal_fd(journal)), RDT_UNSUPPORTED, "it has version 5, and this rdtd reads versions 1 to 4");
    patch(journal, 8, &same, sizeof same);
    patch(journal, 4096, &nonsense, sizeof nonsense);
    must_not_open(dup(journal_fd(journal)), RDT_INVALID, "damaged at byte 4096");
    patch(journal, 16, &beyond, sizeof beyond);
    must_not_open(dup(journal_fd(journal)), RDT_INVALID, "its header is damaged");
    patch(journal, 0, &nonsense, sizeof nonsense);
    must_not_open(dup(journal_fd(journal)), RDT_INVALID, "does not begin like a journal");
    journal_close(journal);

    int fd = memfd_create("other", MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(fd, 1 << 20), 0);
    must_not_open(fd, RDT_INVALID, "not a file that rdtd makes");
    must_not_open(open("/dev/null", O_RDWR), RDT_INVALID, "not a file that rdtd makes");
}

/* The journal of the version before, whose header has no ids: it becomes one of this version. */
Test(journal, of_version_1_is_read_and_goes_on_as_the_present_one)
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
        for (unsigned i = 0; i < 40; i++)
            (void)add(journal, i, next_random(&random) % 3000);
        uint64_t end = journal_file_bytes(journal);
        for (unsigned i = 0; i < 8; i++) {
            uint32_t bytes = next_random(&random);
            patch(journal, (off_t)(4096 + next_random(&random) % (end - 4096 - 4)), &bytes, 1 + next_random(&random) % 4);
        }
        int fd = dup(journal_fd(journal));
        journal_close(journal);
        if (journal_open(fd, &again, NULL) != RDT_OK)
            continue;
        cr_assert_geq(count(again) + journal_damaged(again), 30u);
        (void)add(again, 1000, 100);
        journal_close(again);
    }
}
