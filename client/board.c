#include "board.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/board.h"

#define RECENT 32u /* fetches that are remembered, to know those that come again */

struct staying {
    struct rdt_ref ref; /* as it was asked for */
    enum rdt_fetch_mode mode;
    uint64_t hash; /* of both */
    uint64_t ends; /* the board's, then */
    unsigned slot; /* from here on: once it is granted */
    uint32_t grant;
    bool idle;
    rdt_object *object;
    uint8_t *pristine; /* what came in the message; NULL: nothing did */
    size_t pristine_bytes;
};

struct board {
    _Atomic uint32_t *words; /* shared with the daemon; NULL: it has not come */
    struct staying *slots[BOARD_SLOTS]; /* NULL: free */
    unsigned n_idle;
    uint64_t ends; /* calls of board_end_by_id: what was asked for before may not stay, it may have come too soon */
    uint64_t recent[RECENT]; /* a ring of hashes */
    unsigned next;
};

/* ---- by ref ---- */

static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_of(const struct rdt_ref *ref, enum rdt_fetch_mode mode)
{
    uint64_t hash = mix(UINT64_C(0xcbf29ce484222325) + (uint64_t)mode, ref->id, ref->id_bytes);

    return mix(hash, &ref->generation, sizeof ref->generation);
}

static bool is_here(const rdt *conn, const struct rdt_ref *ref)
{
    static const uint8_t none[sizeof ref->node];

    return memcmp(ref->node, conn->node.node, sizeof ref->node) == 0 ||
           (memcmp(ref->node, none, sizeof ref->node) == 0 && ref->address[0] == '\0');
}

static struct staying *find(const struct board *board, const struct rdt_ref *ref, enum rdt_fetch_mode mode, uint64_t hash, bool idle)
{
    for (unsigned i = 0; i < BOARD_SLOTS; i++) {
        struct staying *staying = board->slots[i];

        if (staying && staying->hash == hash && (staying->idle || !idle) && staying->mode == mode && rdt_ref_equal(&staying->ref, ref))
            return staying;
    }
    return NULL;
}

/* It was fetched a moment ago; and is, from now on. */
static bool cacheable(struct board *board, uint64_t hash)
{
    for (unsigned i = 0; i < RECENT; i++)
        if (board->recent[i] == hash)
            return true;
    board->recent[board->next] = hash;
    board->next = (board->next + 1) % RECENT;
    return false;
}

struct staying *board_ask(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode)
{
    struct staying *asked;
    uint64_t hash;

    if (ref->is_name || !is_here(conn, ref))
        return NULL;
    if (!conn->board && !(conn->board = calloc(1, sizeof *conn->board)))
        return NULL;
    hash = hash_of(ref, mode);
    if (!cacheable(conn->board, hash) || find(conn->board, ref, mode, hash, false))
        return NULL;
    asked = calloc(1, sizeof *asked);
    if (!asked)
        return NULL;
    asked->ref = *ref;
    asked->mode = mode;
    asked->hash = hash;
    asked->ends = conn->board->ends;
    return asked;
}

/* ---- words ---- */

static _Atomic uint32_t *word_of(const struct board *board, const struct staying *staying)
{
    return &board->words[staying->slot];
}

static bool is(const struct board *board, const struct staying *staying, enum board_state state)
{
    return atomic_load(word_of(board, staying)) == board_word(staying->grant, state);
}

/* False: the daemon has taken it back. */
static bool move(const struct board *board, const struct staying *staying, enum board_state from, enum board_state to)
{
    uint32_t word = board_word(staying->grant, from);

    return atomic_compare_exchange_strong(word_of(board, staying), &word, board_word(staying->grant, to));
}

void board_open(rdt *conn, const Rdt__Pb__FetchDone *done, struct frame *frame)
{
    int fd = done->board_fd > 0 ? frame_take_fd(frame, done->board_fd - 1) : -1;
    void *page;

    if (fd < 0)
        return;
    page = conn->board && !conn->board->words ? mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (page != MAP_FAILED)
        conn->board->words = page;
    (void)close(fd); /* without it nothing stays */
}

/* ---- what stays ---- */

void board_ask_drop(struct staying *take_asked)
{
    if (take_asked)
        free(take_asked->pristine);
    free(take_asked);
}

void board_forget(rdt_object *object)
{
    struct staying *staying = object->staying;
    struct board *board = object->conn->board;

    object->staying = NULL;
    if (!staying)
        return;
    board->slots[staying->slot] = NULL;
    board->n_idle -= staying->idle;
    board_ask_drop(staying);
}

/* Nobody has it, and the daemon has let go of it, or is gone. */
static void end_idle(struct staying *staying)
{
    rdt_object *object = staying->object;

    object->hold = 0;
    fetched_destroy(object);
}

void board_on_answer(rdt_object *object, struct staying *take_asked, const Rdt__Pb__FetchDone *done)
{
    struct board *board = object->conn->board;
    struct staying *old;

    if (!take_asked || take_asked->ends != board->ends || done->board_slot == 0 || done->board_slot > BOARD_SLOTS || !board->words) {
        board_ask_drop(take_asked);
        return;
    }
    if (object->inline_data) {
        take_asked->pristine = malloc(done->inline_data.len);
        if (!take_asked->pristine) {
            board_ask_drop(take_asked);
            return;
        }
        memcpy(take_asked->pristine, object->inline_data, done->inline_data.len);
        take_asked->pristine_bytes = done->inline_data.len;
    }
    take_asked->slot = done->board_slot - 1;
    take_asked->grant = done->board_grant;
    take_asked->object = object;
    old = board->slots[take_asked->slot]; /* that was taken back, then */
    if (old && old->idle)
        end_idle(old);
    else if (old)
        board_forget(old->object);
    board->slots[take_asked->slot] = take_asked;
    object->staying = take_asked;
}

/* As it came, whatever its reader has written, and whatever he has made of its protection. */
static bool make_pristine(const rdt_object *object)
{
    if (object->inline_data)
        memcpy(object->inline_data, object->staying->pristine, object->staying->pristine_bytes);
    for (uint32_t i = 0; i < object->n_mappings; i++) {
        const struct mapping *mapping = object->mappings[i];

        if (!mapping)
            continue;
        if (mprotect(mapping->addr, mapping->bytes, mapping->writable ? PROT_READ | PROT_WRITE : PROT_READ) < 0)
            return false;
        if (mapping->cow && madvise(mapping->addr, mapping->bytes, MADV_DONTNEED) < 0) /* its private pages */
            return false;
    }
    return true;
}

bool board_put(rdt_object *object)
{
    struct staying *staying = object->staying;
    struct board *board = object->conn->board;

    if (!staying || object->conn->lost || !is(board, staying, BOARD_IN_USE) || !make_pristine(object) ||
        !move(board, staying, BOARD_IN_USE, BOARD_IDLE))
        return false;
    staying->idle = true;
    board->n_idle++;
    return true;
}

rdt_object *board_take(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode)
{
    struct board *board = conn->board;
    struct staying *staying;
    struct rdt_object_info *info;
    uint64_t hash;

    if (!board || board->n_idle == 0)
        return NULL;
    hash = hash_of(ref, mode);
    if (!find(board, ref, mode, hash, true))
        return NULL;
    connection_poll(conn); /* a daemon that is gone writes nothing on a board. What is read may end what was found */
    staying = conn->lost ? NULL : find(board, ref, mode, hash, true);
    if (!staying || !move(board, staying, BOARD_IDLE, BOARD_IN_USE))
        return NULL;
    staying->idle = false;
    board->n_idle--;
    info = &staying->object->info;
    info->transfer = info->bytes_moved = 0;
    info->elapsed_ns = 0;
    info->mutable_shared = false; /* that was said */
    return staying->object;
}

void board_end_by_id(rdt *conn, const struct rdt_ref *ref)
{
    struct board *board = conn->board;

    if (!board)
        return;
    board->ends++;
    for (unsigned i = 0; i < BOARD_SLOTS; i++) {
        struct staying *staying = board->slots[i];

        if (!staying || staying->ref.id_bytes != ref->id_bytes || memcmp(staying->ref.id, ref->id, ref->id_bytes) != 0)
            continue;
        if (!staying->idle) /* its release is as any other */
            board_forget(staying->object);
        else if (move(board, staying, BOARD_IDLE, BOARD_IN_USE))
            fetched_destroy(staying->object);
        else
            end_idle(staying);
    }
}

void board_sweep(rdt *conn)
{
    struct board *board = conn->board;

    if (!board || board->n_idle == 0)
        return;
    for (unsigned i = 0; i < BOARD_SLOTS; i++) {
        struct staying *staying = board->slots[i];

        if (staying && staying->idle && (conn->lost || !is(board, staying, BOARD_IDLE)))
            end_idle(staying);
    }
}

void board_fini(rdt *conn)
{
    if (conn->board && conn->board->words)
        (void)munmap(conn->board->words, BOARD_BYTES);
    free(conn->board);
    conn->board = NULL;
}
