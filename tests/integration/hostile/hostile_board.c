/* Clients that write onto the board what they like, punch it, and keep what they were lent: it costs nobody but them. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/board.h"
#include "tests/integration/hostile/protocol_fixture.h"

TestSuite(hostile_board, .timeout = 120);

static struct raw raw;
static _Atomic uint32_t *words;
static int board_fd;
static uint64_t last_handle;

static struct rdt_ref put_snapshot(size_t bytes)
{
    struct rdt_put_options options = RDT_INIT(options);
    void *from = malloc(bytes);
    struct rdt_ref ref;

    fill_pattern(from, bytes, 1);
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(bystander, &VECTOR(RDT_U8, bytes, from), 1, &options, &ref, &err));
    free(from);
    return ref;
}

/* Asks that it may stay; the slot and the hold of the answer. */
static uint32_t fetch(const struct rdt_ref *ref, uint64_t *hold_p)
{
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items = &item;
    Rdt__Pb__Ref message = RDT__PB__REF__INIT;
    Rdt__Pb__FetchDone *done;
    uint32_t slot;

    message.id = (ProtobufCBinaryData){ref->id_bytes, (uint8_t *)(uintptr_t)ref->id};
    message.generation = ref->generation;
    message.any_owner = true;
    item.ref = &message;
    item.handle = ++last_handle;
    item.may_stay = true;
    fetch.items = &items;
    fetch.n_items = 1;
    fetch.timeout_ns = LONG;
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_FETCH, &fetch.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
    must(raw_next(&raw) && raw.frame.type == RDT_EVENT_FETCH_DONE);
    done = rdt__pb__fetch_done__unpack(NULL, raw.frame.length, raw.frame.payload);
    must_say(done->status == RDT_OK, "%s", done->message);
    if (done->board_fd > 0) {
        void *page;

        board_fd = frame_take_fd(&raw.frame, done->board_fd - 1);
        page = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, board_fd, 0);
        must(page != MAP_FAILED);
        words = page;
    }
    if (done->board_slot > 0)
        must(words[done->board_slot - 1] == board_word(done->board_grant, BOARD_IN_USE));
    slot = done->board_slot;
    *hold_p = done->hold;
    rdt__pb__fetch_done__free_unpacked(done, NULL);
    frame_close_fds(&raw.frame);
    return slot;
}

static unsigned holds_on(const struct rdt_ref *ref)
{
    struct rdt_stat stat;

    must_ok(rdt_stat(bystander, ref, &stat, &err));
    return stat.holds;
}

static void start(void)
{
    words = NULL;
    board_fd = -1;
    begin(NULL);
    greeted(&raw);
}

static void finish(void)
{
    ping_works(&raw);
    others_are_well();
    raw_close(&raw);
    if (words)
        (void)munmap((void *)(uintptr_t)words, BOARD_BYTES);
    if (board_fd >= 0)
        (void)close(board_fd);
    end();
}

static void release(uint64_t hold)
{
    Rdt__Pb__Release message = RDT__PB__RELEASE__INIT;

    message.hold = hold;
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_RELEASE, &message.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
}

Test(hostile_board, size_cannot_be_changed)
{
    struct rdt_ref ref;
    uint64_t hold;

    start();
    ref = put_snapshot(100000);
    must(fetch(&ref, &hold) > 0);
    cr_assert(ftruncate(board_fd, 0) < 0 && ftruncate(board_fd, 8192) < 0);
    cr_assert(fcntl(board_fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
    release(hold);
    cr_assert_eq(holds_on(&ref), 1);
    finish();
}

/* Garbage is a hold in use: until it is given back. */
Test(hostile_board, garbage_on_the_board_is_a_hold_in_use)
{
    static const uint32_t garbage[] = {0, 1, 2, 3, UINT32_MAX, 0x80000002};
    struct rdt_ref ref;
    uint64_t hold;

    start();
    for (unsigned i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        ref = put_snapshot(100000);
        must(fetch(&ref, &hold) > 0);
        for (unsigned k = 0; k < BOARD_BYTES / sizeof *words; k++)
            words[k] = garbage[i];
        cr_assert_eq(holds_on(&ref), 2);
        must_ok(rdt_free(bystander, &ref, i % 2, &err));
        must_be(RDT_TIMED_OUT, rdt_wait_freed(bystander, &ref, 20 * MSEC, &err));
        release(hold);
        must_ok(rdt_wait_freed(bystander, &ref, LONG, &err));
    }
    finish();
}

Test(hostile_board, holes_are_a_hold_in_use)
{
    struct rdt_ref ref;
    uint64_t hold;

    start();
    ref = put_snapshot(100000);
    for (unsigned i = 0; i < 3; i++) {
        must(fetch(&ref, &hold) > 0);
        must(fallocate(board_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BOARD_BYTES) == 0);
        cr_assert_eq(holds_on(&ref), 2);
        release(hold);
        cr_assert_eq(holds_on(&ref), 1);
    }
    finish();
}

/* Whoever says idle has let go, and reads what is sealed: nobody waits for him. */
Test(hostile_board, idle_while_in_use_keeps_nothing)
{
    struct rdt_ref ref;
    uint64_t hold;
    uint32_t slot;

    start();
    ref = put_snapshot(100000);
    slot = fetch(&ref, &hold);
    must(slot > 0);
    words[slot - 1]++; /* in use -> idle */
    cr_assert_eq(holds_on(&ref), 1);
    must_ok(rdt_free(bystander, &ref, false, &err));
    must_ok(rdt_wait_freed(bystander, &ref, LONG, &err));
    cr_assert_eq(words[slot - 1], 0);
    must(raw_next(&raw));
    cr_assert_eq(raw.frame.type, RDT_EVENT_REGION_GONE);
    finish();
}

/* No more than a few stay; all of them go with the session. */
Test(hostile_board, asking_for_all_and_keeping_it_is_bounded)
{
    enum { N = 50 };
    struct rdt_ref refs[N], little;
    unsigned n = 0;
    uint64_t hold;

    start();
    little = put_snapshot(10);
    for (unsigned i = 0; i < N; i++)
        (void)fetch(&little, &hold); /* takes all slots, and each of those can be taken back */
    for (unsigned i = 0; i < N; i++) {
        refs[i] = put_snapshot(50000);
        n += fetch(&refs[i], &hold) > 0;
    }
    cr_assert_eq(n, BOARD_SLOTS);
    raw_close(&raw);
    for (unsigned i = 0; i < N; i++)
        wait_until(20 * SEC, holds_on(&refs[i]) == 1);
    cr_assert_eq(holds_on(&little), 1);
    (void)munmap((void *)(uintptr_t)words, BOARD_BYTES);
    words = NULL;
    greeted(&raw);
    finish();
}
