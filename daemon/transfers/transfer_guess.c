/* What a fetch from another node will bring, guessed: the same tensors as its client's last two did. Such a fetch starts as one with targets
 * does: its receives stand, in memory that the client has let go of and that is still warm, before the owner is asked, and the owner sends
 * at once if the object has exactly these shapes. That spares a message each way and two wake-ups of each loop.
 *
 * A wrong guess costs one question more: the owner has not started, the receives end, the memory is warm again, and the object is asked for
 * as if nothing had been guessed. The next guess of its client waits for twice as many of the same, until one is right: so one that fetches
 * this and that in turns hardly ever pays, nor one of whose objects the owner never starts any, because they prefer another transport.
 *
 * No memory is held while anything is waited for but the answer: names, and ids whose object may not be there yet, are not guessed about, and
 * an owner who says that nobody has put the object ends the guess. Of several fetches that share memory, and of snapshots, whose copy is
 * everybody's, nothing is learnt: their memory is not the client's own.
 */
#include <stdlib.h>

#include "daemon/transfers/transfer_impl.h"

#define USUAL_MAX_BYTES 8192u /* so much of what a client's fetches bring is remembered, or nothing */
#define USUAL_TIMES 2u        /* the same in a row: enough to guess from */
#define WRONG_MOST 8u         /* more in a row change nothing */

static bool is_usual(const struct client *client)
{
    return client->usual && client->usual_times >= USUAL_TIMES << client->usual_wrong;
}

static void forget(struct client *client)
{
    free(client->usual);
    client->usual = NULL;
    client->usual_times = 0;
}

static bool may_guess(const struct transfer *transfer)
{
    return !transfer->no_guess && transfer->n_fetches == 1 && transfer->client && is_usual(transfer->client) &&
           transfer->peer == transfer->origin && transfer->ref.generation != 0 && !transfer->ref.is_name && !transfer->group &&
           !transfer->part && !transfer->replica && !transfer->received && transfer->wish_group[0] == '\0';
}

bool transfer_guess(struct transfer *transfer)
{
    struct client *client = transfer->client;
    uint64_t bytes = 0;

    if (!may_guess(transfer) || layout_packed(client->usual, &transfer->packed, &bytes, NULL) != RDT_OK)
        return false;
    transfer->received = warm_take(&client->warm, bytes, REGION_RECEIVED);
    if (!transfer->received) {
        free(transfer->packed);
        transfer->packed = NULL;
        return false;
    }
    transfer->stream_bytes = bytes;
    transfer->guessed = true;
    return true;
}

void transfer_guess_drop(struct transfer *transfer)
{
    if (!transfer->guessed)
        return;
    transfer->guessed = transfer->early = false;
    region_unref(transfer->received);
    transfer->received = NULL;
}

void transfer_guess_failed(struct transfer *transfer)
{
    transfer->transfers->misguessed++;
    transfer->no_guess = true;
    transfer->early = false;
    if (transfer->client) {
        forget(transfer->client);
        transfer->client->usual_wrong += transfer->client->usual_wrong < WRONG_MOST;
    }
    transfer_in_leave_question(transfer);
    if (!transfer_in_ask_anew(transfer))
        transfer_fail(transfer, RDT_NO_MEMORY, "no memory to ask for object \"%s\" anew", transfer->ref.id);
}

void transfer_guess_learn(struct transfer *transfer)
{
    struct client *client = transfer->client;

    if (!client || transfer->target) /* who names targets says himself what he wants */
        return;
    if (!transfer->received || transfer->replica || transfer->n_fetches != 1 || transfer->one_sided ||
        layout_heap_bytes(transfer->packed) > USUAL_MAX_BYTES) {
        forget(client);
        return;
    }
    if (transfer->guessed)
        client->usual_wrong = 0;
    if (client->usual && layout_same_shape(transfer->packed, client->usual, NULL) == RDT_OK) {
        client->usual_times += !is_usual(client);
        return;
    }
    free(client->usual);
    client->usual = layout_dup(transfer->packed);
    client->usual_times = 1;
}
