#include "daemon/question.h"

#include <assert.h>
#include <stdlib.h>

static void make_key(const struct rdt_ref *ref, const struct owner *requester, uint8_t key[sizeof((struct question *)0)->key])
{
    memset(key, 0, sizeof((struct question *)0)->key);
    memcpy(key, ref->node, 16);
    memcpy(key + 16, &ref->generation, 8);
    memcpy(key + 24, &requester->uid, 4);
    memcpy(key + 28, requester->tenant, strlen(requester->tenant));
}

static struct question *find(const struct transfers *transfers, const struct rdt_ref *ref, const struct owner *requester)
{
    uint8_t key[sizeof((struct question *)0)->key];

    make_key(ref, requester, key);
    return map_get(&transfers->questions, key, sizeof key);
}

bool question_fits(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *item, const struct rdt_ref *ref)
{
    static const uint8_t nobody[16];

    return ref->generation != 0 && memcmp(ref->node, nobody, sizeof nobody) != 0 && message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_AUTO && !message->meta_only &&
           message->transport[0] == '\0' && message->least_path[0] == '\0' && !item->targets && !item->slice;
}

static bool same_id(const struct rdt_ref *a, const struct rdt_ref *b)
{
    return a->id_bytes == b->id_bytes && memcmp(a->id, b->id, a->id_bytes) == 0;
}

struct transfer *question_open(const struct transfers *transfers, const struct rdt_ref *ref, const struct owner *requester)
{
    const struct question *question = find(transfers, ref, requester);

    return question && question->open && same_id(&question->open->ref, ref) ? question->open : NULL;
}

bool question_begin(struct transfer *transfer)
{
    struct question *question = find(transfer->transfers, &transfer->ref, &transfer->account->owner);

    if (!question) {
        question = calloc(1, sizeof *question);
        if (!question)
            return true; /* then it goes alone */
        make_key(&transfer->ref, &transfer->account->owner, question->key);
        if (!map_put(&transfer->transfers->questions, question->key, sizeof question->key, question)) {
            free(question);
            return true;
        }
    }
    if (question->open)
        return true; /* another id under the same generation: the owner's node will refuse it */
    question->open = transfer;
    transfer->question = question;
    return question->asked == NULL;
}

void question_ask(struct transfer *transfer)
{
    struct question *question = transfer->question;

    if (!question)
        return;
    assert(question->open == transfer && !question->asked);
    question->open = NULL;
    question->asked = transfer;
}

uint64_t question_close(struct transfer *transfer)
{
    struct question *question = transfer->question;
    bool was_asked;

    if (!question)
        return 0;
    transfer->question = NULL;
    was_asked = question->asked == transfer;
    if (was_asked)
        question->asked = NULL;
    else
        question->open = NULL;
    if (question->asked || question->open)
        return was_asked && question->open ? question->open->id : 0;
    map_remove(&transfer->transfers->questions, question->key, sizeof question->key);
    free(question);
    return 0;
}
