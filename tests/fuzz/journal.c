/* SPDX-License-Identifier: Apache-2.0 */
/* The journal of an earlier daemon: a correct one, in which a faulty daemon has changed bytes.
 *
 *   | records 1 | size of each 2 ... | place 3, byte 1 | place, byte | ...
 *
 * Opening it must end; what it returns is whole; and it can be written and read again.
 */
#include <string.h>
#include <unistd.h>

#include "daemon/persist/journal.h"
#include "tests/fuzz/harness/fuzz.h"

#define MOST_RECORDS 32u

static const uint64_t zeros[JOURNAL_NUMBERS];

static unsigned count(struct journal *journal, bool removes)
{
    struct journal_slot *slot;
    uint64_t cursor = 0;
    unsigned n = 0;

    while ((slot = journal_next(journal, &cursor))) {
        volatile uint8_t last = slot->bytes > 0 ? slot->payload[slot->bytes - 1] : 0;
        (void)last;
        n++;
        if (removes)
            journal_remove(journal, slot);
    }
    return n;
}

static bool add(struct journal *journal, uint32_t kind, uint64_t key, size_t bytes)
{
    struct journal_slot *slot = journal_begin(journal, bytes);

    if (slot) {
        memset(slot->payload, 0, bytes);
        journal_commit(journal, slot, kind, key, 0, zeros);
    }
    return slot;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    unsigned records = (unsigned)fuzz_take(&at, end, 1) % MOST_RECORDS, found;
    struct journal *journal, *again;
    int fd;

    fuzz_must(journal_create(&journal, NULL) == RDT_OK);
    for (unsigned i = 0; i < records; i++)
        fuzz_must(add(journal, 1 + i % 6, i, fuzz_take(&at, end, 2)));
    fd = dup(journal_fd(journal));
    while (end - at >= 4) {
        off_t place = (off_t)(fuzz_take(&at, end, 3) % journal_file_bytes(journal));
        uint8_t byte = (uint8_t)fuzz_take(&at, end, 1);
        fuzz_must(pwrite(fd, &byte, 1, place) == 1);
        if (place < 64) /* the header was changed: its end may lie anywhere */
            break;
    }
    journal_close(journal);
    if (journal_open(fd, &again, NULL) != RDT_OK)
        return 0;
    found = count(again, false);
    fuzz_must(found <= records);
    if (add(again, 1, 1000, 100))
        found++;
    fuzz_must(count(again, true) == found && count(again, false) == 0);
    journal_close(again);
    return 0;
}
