#include "daemon/objects/board.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/guard.h"
#include "daemon/memory/mapped.h"
#include "daemon/objects/object.h"
#include "daemon/memory/region_left.h"
#include "proto/board.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define GRANTS (UINT32_C(1) << 30)
#define TENSOR_BYTES 64u /* that a client keeps of each tensor */
#define SHARE 16u /* of memory_limit one part: what may be mapped on all boards, and left behind */

struct slot {
    struct hold *hold; /* NULL: free */
    uint32_t grant;
    uint64_t bytes;
    struct regions *mapped; /* it keeps what it has mapped, which is counted there; NULL: it came in the message, or lies loose */
};

struct board {
    _Atomic uint32_t *words; /* shared with the client */
    int guard;
    int fd; /* until the client has it; -1: it has */
    uint32_t last_grant;
    unsigned next; /* where the search for room begins */
    uint64_t bytes;
    struct slot slots[BOARD_SLOTS];
};

/* ---- the page ---- */

static int open_page(void)
{
    int fd = memfd_create("rdtd board", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0) /* an older kernel */
        fd = memfd_create("rdtd board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && (ftruncate(fd, BOARD_BYTES) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static bool map_page(struct board *board)
{
    void *page;

    board->fd = open_page();
    if (board->fd < 0)
        return false;
    page = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, board->fd, 0);
    if (page == MAP_FAILED) {
        (void)close(board->fd);
        return false;
    }
    board->guard = guard_enter(page, BOARD_BYTES, BOARD_BYTES);
    if (board->guard == GUARD_NONE) {
        (void)munmap(page, BOARD_BYTES);
        (void)close(board->fd);
        return false;
    }
    board->words = page;
    return true;
}

static uint64_t heap_bytes(void)
{
    return sizeof(struct board) + BOARD_BYTES;
}

/* NULL: there is no room for one. */
static struct board *get(struct client *client)
{
    struct board *board = client->board;

    if (board || account_take(client->account, USAGE_HEAP, heap_bytes(), NULL) != RDT_OK)
        return board;
    board = calloc(1, sizeof *board);
    if (!board || !map_page(board)) {
        free(board);
        account_give(client->account, USAGE_HEAP, heap_bytes());
        return NULL;
    }
    client->board = board;
    return board;
}

/* ---- slots ---- */

/* The word of the hold's slot, and its slot. */
static _Atomic uint32_t *word_of(const struct hold *hold, struct slot **slot_p)
{
    struct board *board = hold->client->board;

    *slot_p = &board->slots[hold->board_slot - 1];
    return &board->words[hold->board_slot - 1];
}

/* Off the board, and no more than any other hold. */
static void clear(struct hold *hold, struct slot *slot)
{
    hold->client->board->bytes -= slot->bytes;
    if (slot->mapped)
        slot->mapped->board_bytes -= slot->bytes;
    *slot = (struct slot){NULL};
    hold->board_slot = 0;
    list_remove(&hold->by_board);
    hold->object->others->n_on_board--;
}

void board_leave(struct hold *hold)
{
    struct slot *slot;

    if (hold->board_slot == 0)
        return;
    atomic_store(word_of(hold, &slot), 0);
    clear(hold, slot);
}

/* Whatever the client does from here on, it does not have it back. True: it had let go of it. */
static bool take_back(struct hold *hold)
{
    struct slot *slot;
    uint32_t word = atomic_exchange(word_of(hold, &slot), 0);
    bool idle = hold->in_message || word == board_word(slot->grant, BOARD_IDLE);

    clear(hold, slot);
    return idle;
}

bool board_is_idle(const struct hold *hold)
{
    struct slot *slot;

    if (hold->board_slot == 0)
        return false;
    return hold->in_message || atomic_load(word_of(hold, &slot)) == board_word(slot->grant, BOARD_IDLE);
}

uint32_t board_idle_of_client(const struct client *client)
{
    uint32_t n = 0;

    for (unsigned i = 0; client->board && i < BOARD_SLOTS; i++)
        n += client->board->slots[i].hold && board_is_idle(client->board->slots[i].hold);
    return n;
}

uint32_t board_idle_of_object(const struct object *object)
{
    uint32_t n = 0;

    if (object->others)
        list_for_each (node, &object->others->on_board)
            n += board_is_idle(container_of(node, struct hold, by_board));
    return n;
}

/* ---- granting ---- */

/* So many bytes may be mapped, if so many that are come free. */
static bool has_share(const struct regions *regions, uint64_t bytes, uint64_t free_bytes)
{
    return regions->board_bytes - free_bytes + region_left_bytes(regions->left) + bytes <= regions->limit_bytes / SHARE;
}

/* With all that is idle taken back. */
static bool could_have_room(const struct board *board, uint64_t bytes, const struct regions *mapped)
{
    uint64_t used = 0, idle_mapped = 0;
    unsigned n = 0;

    for (unsigned i = 0; i < BOARD_SLOTS; i++) {
        const struct slot *slot = &board->slots[i];

        if (slot->hold && !board_is_idle(slot->hold)) {
            used += slot->bytes;
            n++;
        } else if (slot->mapped) {
            idle_mapped += slot->bytes;
        }
    }
    return n < BOARD_SLOTS && used + bytes <= BOARD_MAX_BYTES && (!mapped || has_share(mapped, bytes, idle_mapped));
}

static bool has_room(const struct board *board, uint64_t bytes, const struct regions *mapped)
{
    return board->bytes + bytes <= BOARD_MAX_BYTES && (!mapped || has_share(mapped, bytes, 0));
}

/* A free slot, with room for so many bytes, mapped or (NULL) not; BOARD_SLOTS: there is none, and nothing was taken back for it. */
static unsigned make_room(struct board *board, uint64_t bytes, const struct regions *mapped)
{
    unsigned at = BOARD_SLOTS;

    if (!could_have_room(board, bytes, mapped))
        return BOARD_SLOTS;
    for (unsigned i = 0; i < BOARD_SLOTS && at == BOARD_SLOTS; i++)
        if (!board->slots[i].hold)
            at = i;
    for (unsigned i = 0; i < BOARD_SLOTS && (at == BOARD_SLOTS || !has_room(board, bytes, mapped)); i++) {
        unsigned tried = (board->next + i) % BOARD_SLOTS;
        struct hold *hold = board->slots[tried].hold;

        if (!hold || !board_is_idle(hold))
            continue;
        if (take_back(hold))
            client_release(hold);
        board->next = tried + 1;
        at = tried;
    }
    return has_room(board, bytes, mapped) ? at : BOARD_SLOTS; /* its client may have fetched something again meanwhile */
}

/* Somebody else keeps it, for whom it is here. */
static bool is_wanted(const struct object *object)
{
    return object_is_kept(object) || !list_empty(object_holders(object, HOLDER_KEEPING));
}

/* Its pages can be taken away below a mapping (mapped.h): who has it mapped keeps nothing of it. */
static bool lies_loose(const struct object *object)
{
    for (uint32_t i = 0; i < object->n_regions; i++)
        if (!mapped_may_keep(object->uses[i].region))
            return false;
    return object->n_regions > 0;
}

/* bytes_p: what the client keeps of it, of its own or mapped. */
static bool may_stay(const struct object *object, bool loose, uint64_t *bytes_p)
{
    if (object->state != OBJECT_LIVE || object->adopted || object_on_device(object) || !is_wanted(object))
        return false;
    if (loose) {
        *bytes_p = object->metadata_bytes + (uint64_t)object_n_tensors(object) * TENSOR_BYTES;
        return *bytes_p <= BOARD_ONE_BYTES;
    }
    *bytes_p = object->metadata_bytes + (object->n_regions > 0 ? object->uses[0].region->room : object->bytes); /* it maps all of that */
    return (object->snapshot || object->chunk) && object->n_regions <= 1 && object->metadata_bytes + object->bytes <= BOARD_ONE_BYTES;
}

/* Its bytes are limited, not with all others' only. */
static bool is_limited(const struct account *account)
{
    for (; account && account->parent; account = account->parent)
        if (account->limits && account->limits[USAGE_BYTES] != 0)
            return true;
    return false;
}

struct board_grant board_grant(struct client *client, struct object *object, struct hold *hold)
{
    struct board_grant none = {.fd = -1};
    bool loose = hold && lies_loose(object);
    struct region *region = hold && !loose && object->n_regions > 0 ? object->uses[0].region : NULL; /* it keeps that */
    struct regions *mapped = region ? region->regions : NULL;
    struct board *board;
    uint64_t bytes;
    unsigned at;

    if (client->gone || !may_stay(object, loose, &bytes) || (region && (is_limited(object->account) || is_limited(region->account))))
        return none;
    board = get(client);
    if (!board)
        return none;
    at = make_room(board, bytes, mapped);
    if (at == BOARD_SLOTS)
        return none;
    if (!hold) {
        hold = client_hold_object(client, object);
        if (!hold)
            return none;
        hold->in_message = true;
    }
    board->last_grant = board->last_grant % (GRANTS - 1) + 1;
    board->slots[at] = (struct slot){hold, board->last_grant, bytes, mapped};
    board->bytes += bytes;
    if (mapped)
        mapped->board_bytes += bytes;
    hold->board_slot = (uint8_t)(at + 1);
    list_append(&object->others->on_board, &hold->by_board);
    object->others->n_on_board++;
    atomic_store(&board->words[at], board_word(board->last_grant, BOARD_IN_USE));
    return (struct board_grant){at + 1, board->last_grant, board->fd};
}

void board_fd_went(struct client *client)
{
    (void)close(client->board->fd);
    client->board->fd = -1;
}

/* ---- taking back ---- */

/* It may be waiting for another thing: it reads this, looks at its board, and unmaps. What stays mapped there by its word lies loose, and it is
 * told when that ends (mapped.h). */
static void tell_gone(struct client *client, const struct object *object)
{
    for (uint32_t i = 0; i < object->n_regions; i++)
        if (!mapped_has(&client->mapped, object->uses[i].region))
            client_tell_gone(client, object->uses[i].region);
}

void board_recall(struct object *object)
{
    object_hold(object); /* it does not end before we have done */
    while (object->others && !list_empty(&object->others->on_board)) {
        struct hold *hold = container_of(list_first(&object->others->on_board), struct hold, by_board);
        struct client *client = hold->client;
        bool in_message = hold->in_message;

        if (!take_back(hold))
            continue;
        client_release(hold);
        if (!in_message)
            tell_gone(client, object);
    }
    object_drop(object);
}

void board_end(struct client *client)
{
    struct board *board = client->board;

    if (!board)
        return;
    for (unsigned i = 0; i < BOARD_SLOTS; i++) {
        struct hold *hold = board->slots[i].hold;

        if (hold && take_back(hold))
            client_release(hold);
    }
    client->board = NULL;
    guard_leave(board->guard);
    (void)munmap(board->words, BOARD_BYTES);
    if (board->fd >= 0)
        (void)close(board->fd);
    free(board);
    account_give(client->account, USAGE_HEAP, heap_bytes());
}
