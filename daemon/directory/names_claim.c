/* SPDX-License-Identifier: Apache-2.0 */
/* The names that are published on this node: the answers of their homes, and when they are registered again. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/base/sm.h"
#include "daemon/base/text.h"
#include "daemon/directory/names_impl.h"

#define TOLD_PER_TURN 256u       /* claims that the homes are told in one turn of the loop, */
#define TELL_NS UINT64_C(200000) /* in so much time: with many nodes it takes a while to find the homes of a name */

enum claim_state { CLAIM_CLAIMING, CLAIM_HELD, CLAIM_LOST };

/* Every allowed move. directory_names.h draws them. */
static const struct sm_state claim_states[] = {
    [CLAIM_CLAIMING] = {"claiming", 1u << CLAIM_HELD | 1u << CLAIM_LOST},
    [CLAIM_HELD] = {"held", 1u << CLAIM_HELD | 1u << CLAIM_LOST},
    [CLAIM_LOST] = {"lost", 1u << CLAIM_HELD | 1u << CLAIM_LOST},
};

/* What a home has said in the present round of questions:
 *
 *            .--- its answer ---> GRANTED, REFUSED ---.
 *   AWAITED -+                                        +--- the next round ---> AWAITED
 *     |      `--- no answer, in time or at all ---> AWAY
 *     `--- the next round, before all have answered ---> AWAITED
 */
enum answer { ANSWER_AWAITED, ANSWER_GRANTED, ANSWER_REFUSED, ANSWER_AWAY };

static const struct sm_state answer_states[] = {
    [ANSWER_AWAITED] = {"awaited", 1u << ANSWER_AWAITED | 1u << ANSWER_GRANTED | 1u << ANSWER_REFUSED | 1u << ANSWER_AWAY},
    [ANSWER_GRANTED] = {"granted", 1u << ANSWER_AWAITED},
    [ANSWER_REFUSED] = {"refused", 1u << ANSWER_AWAITED},
    [ANSWER_AWAY] = {"away", 1u << ANSWER_AWAITED},
};

struct name_claim {
    struct list link, by_dirty;
    struct directory_names *all;
    struct name_key key;
    uint8_t state;           /* enum claim_state */
    uint64_t epoch;          /* that the homes gave; 0: none yet */
    uint64_t version;        /* the newest one here; 0: nothing is published */
    uint64_t told_ns;        /* when the homes were last told */
    unsigned n_users;        /* names_claim_use: the version that will be published is not complete yet */
    struct name_place other; /* LOST: who has it */
    /* The present round of questions. */
    bool asking;
    uint64_t since; /* the number of its first question: answers to earlier ones are passed over */
    bool meets;     /* nodes that have not been met yet may be homes: the claim is asked again when one comes up */
    unsigned n_homes;
    uint8_t home[NAMES_HOMES][16];
    uint8_t answer[NAMES_HOMES];          /* enum answer */
    struct name_place place[NAMES_HOMES]; /* REFUSED: who has it there */
    uint64_t floor;                       /* the highest version that a home knows */
    struct list waiters;                  /* struct claim_waiter */
    struct deadline patience;             /* CLAIMING: homes that have not answered by then are away */
};

static void set_state(struct name_claim *claim, enum claim_state state)
{
    sm_move_byte(claim_states, sizeof claim_states / sizeof claim_states[0], &claim->state, state);
}

static void set_answer(struct name_claim *claim, unsigned i, enum answer answer)
{
    sm_move_byte(answer_states, sizeof answer_states / sizeof answer_states[0], &claim->answer[i], answer);
}

static struct name_claim *find(const struct directory_names *all, const struct name_key *key)
{
    return map_get(&all->claims, key->packed, key->bytes);
}

bool names_claim_lost(const struct directory_names *all, const struct name_key *key, struct name_place *place_p)
{
    const struct name_claim *claim = find(all, key);

    if (!claim || claim->state != CLAIM_LOST)
        return false;
    *place_p = claim->other;
    return true;
}

bool names_claim_held(const struct directory_names *all, const struct name_key *key)
{
    const struct name_claim *claim = find(all, key);

    return claim && claim->state == CLAIM_HELD && claim->version > 0;
}

/* Whether something is published under the name, or will be. */
static bool is_used(const struct name_claim *claim)
{
    return claim->version > 0 || claim->n_users > 0;
}

static void claim_free(struct name_claim *claim)
{
    struct directory_names *all = claim->all;

    deadline_unset(all->deadlines, &claim->patience);
    list_remove(&claim->link);
    list_remove(&claim->by_dirty);
    map_remove(&all->claims, claim->key.packed, claim->key.bytes);
    free(claim);
}

/* ---- the decision ---- */

static enum rdt_status refuse(const struct name_claim *claim, struct rdt_error *err)
{
    char who[128];

    names_describe(claim->all, &claim->other, who);
    return rdt_error_set(err, RDT_EXISTS,
                         "name \"%.*s\" is %s on %s (epoch %llu, version %llu): unpublish it there first, or publish "
                         "under another name",
                         (int)claim->key.id_bytes, (const char *)name_key_id(&claim->key),
                         claim->other.version > 0 ? "published" : "being published", who,
                         (unsigned long long)claim->other.epoch, (unsigned long long)claim->other.version);
}

/* The homes are told again soon. */
static void tell_again(struct name_claim *claim, int64_t delay_ns)
{
    struct directory_names *all = claim->all;

    if (list_empty(&claim->by_dirty))
        list_append(&all->dirty, &claim->by_dirty);
    if (deadline_left_ns(&all->flush) < 0)
        (void)deadline_set(all->deadlines, &all->flush, delay_ns);
}

/* The claim that was told longest ago, if all of its homes are to be told again. */
static struct name_claim *next_to_retell(const struct directory_names *all)
{
    struct name_claim *claim =
        list_empty(&all->claimed) ? NULL : container_of(list_first(&all->claimed), struct name_claim, link);

    return claim && claim->told_ns < all->retell_ns ? claim : NULL;
}

/* How many homes say that the node of answer i has the name. */
static unsigned count_votes(const struct name_claim *claim, unsigned i)
{
    unsigned n = 0;

    for (unsigned k = 0; k < claim->n_homes; k++)
        n += claim->answer[k] == ANSWER_REFUSED && memcmp(claim->place[k].node, claim->place[i].node, 16) == 0;
    return n;
}

/* Whether another node has published the name, and nothing is published under it here. That node need not have told all homes
 * of it: some may have been restarted a moment ago. */
static bool find_publisher(struct name_claim *claim)
{
    bool found = false;

    for (unsigned i = 0; claim->version == 0 && i < claim->n_homes; i++) {
        const struct name_place *place = &claim->place[i];
        if (claim->answer[i] != ANSWER_REFUSED || !place->published || (found && place->epoch <= claim->other.epoch))
            continue;
        claim->other = *place;
        found = true;
    }
    return found;
}

/* Whether another node has the name. claim->other becomes that node: the one that most homes know, of equals the one that got
 * it last, and of these the one with the lowest uuid. So several nodes that ask at the same time, each known to some homes,
 * all find the same one, and a node that was away finds the one that took its name over, although only a few homes answer it
 * yet. */
static bool find_winner(struct name_claim *claim, unsigned granted)
{
    const uint8_t *winner = claim->all->node->uuid;
    uint64_t epoch = claim->epoch;
    unsigned most = granted;
    bool lost = false;

    for (unsigned i = 0; i < claim->n_homes; i++) {
        const struct name_place *place = &claim->place[i];
        unsigned votes = claim->answer[i] == ANSWER_REFUSED ? count_votes(claim, i) : 0;
        if (votes == 0 || votes < most || (votes == most && place->epoch < epoch) ||
            (votes == most && place->epoch == epoch && memcmp(place->node, winner, 16) >= 0))
            continue;
        most = votes;
        epoch = place->epoch;
        winner = place->node;
        claim->other = *place;
        lost = true;
    }
    return lost;
}

static bool retry_some(struct slice *slice, uint64_t until_ns)
{
    struct directory_names *all = container_of(slice, struct directory_names, telling.retry);

    list_drain (struct claim_waiter, waiter, &all->telling.decided, link) {
        list_remove(&waiter->link);
        waiter->decided = true;
        waiter->on_decided(waiter);
        if (uv_hrtime() >= until_ns)
            break;
    }
    return list_empty(&all->telling.decided);
}

/* All homes have answered, or are away. */
static void decide(struct name_claim *claim)
{
    struct directory_names *all = claim->all;
    unsigned granted = 0, refused = 0;
    uint64_t epoch = claim->epoch; /* the highest that a home knows */
    bool lost;
    struct rdt_error err;

    for (unsigned i = 0; i < claim->n_homes; i++) {
        granted += claim->answer[i] == ANSWER_GRANTED;
        refused += claim->answer[i] == ANSWER_REFUSED;
        if (claim->answer[i] == ANSWER_REFUSED && claim->place[i].epoch > epoch)
            epoch = claim->place[i].epoch;
    }
    claim->asking = false;
    deadline_unset(all->deadlines, &claim->patience);
    lost = find_publisher(claim) || find_winner(claim, granted);
    if (!lost && refused > 0) { /* the homes that know another node must give it up */
        claim->epoch = name_number_after(epoch);
        tell_again(claim, INT64_C(100000000));
    }
    if (lost && claim->state != CLAIM_LOST) {
        all->n_refused++;
        (void)refuse(claim, &err);
        if (claim->version > 0)
            log_warn_rarely(&all->refused_lines, "names", err.msg);
    }
    if (!lost && claim->floor > claim->version)
        names_set_floor(all->names, &claim->key.owner, name_key_id(&claim->key), claim->key.id_bytes, claim->floor);
    set_state(claim, lost ? CLAIM_LOST : CLAIM_HELD);
    list_splice(&all->telling.decided, &claim->waiters);
    all->telling.retry.run = retry_some;
    slice_begin(&all->deadlines->slices, &all->telling.retry);
}

static bool is_complete(const struct name_claim *claim)
{
    if (claim->meets)
        return false;
    for (unsigned i = 0; i < claim->n_homes; i++)
        if (claim->answer[i] == ANSWER_AWAITED)
            return false;
    return true;
}

static void take_answer(struct name_claim *claim, unsigned i, const struct name_place *place, bool granted)
{
    set_answer(claim, i, granted ? ANSWER_GRANTED : ANSWER_REFUSED);
    if (granted && place->epoch > claim->epoch)
        claim->epoch = place->epoch;
    /* A higher one would leave this node too few to count on with, for all names that are new here. */
    if (granted && place->version > claim->floor)
        claim->floor = place->version < RDT_MAX_LEARNED ? place->version : RDT_MAX_LEARNED;
    if (!granted)
        claim->place[i] = *place;
}

static void on_patience(struct deadline *deadline)
{
    struct name_claim *claim = container_of(deadline, struct name_claim, patience);

    for (unsigned i = 0; i < claim->n_homes; i++)
        if (claim->answer[i] == ANSWER_AWAITED)
            set_answer(claim, i, ANSWER_AWAY);
    claim->meets = false;
    decide(claim);
}

/* Whether the claim waits for the answer. While one is on its way, the name may be ended, given to another node, and claimed
 * anew; or the next round may begin, because the home had been taken for away. */
static bool is_awaited(const struct name_claim *claim, uint64_t question)
{
    return claim && claim->asking && (question == 0 || question >= claim->since);
}

void names_claim_away(struct directory_names *all, const struct peer *from, const struct name_key *key, uint64_t question)
{
    struct name_claim *claim = find(all, key);

    if (!is_awaited(claim, question))
        return;
    for (unsigned i = 0; i < claim->n_homes; i++)
        if (memcmp(claim->home[i], from->uuid, 16) == 0 && claim->answer[i] == ANSWER_AWAITED)
            set_answer(claim, i, ANSWER_AWAY);
    if (is_complete(claim))
        decide(claim);
}

void names_claim_answer(struct directory_names *all, struct peer *from, const struct name_key *key,
                        const struct name_place *place, bool granted, uint64_t question)
{
    struct name_claim *claim = find(all, key);

    if (!is_awaited(claim, question))
        return;
    for (unsigned i = 0; i < claim->n_homes; i++)
        if (memcmp(claim->home[i], from->uuid, 16) == 0 && claim->answer[i] == ANSWER_AWAITED)
            take_answer(claim, i, place, granted);
    if (is_complete(claim))
        decide(claim);
}

/* ---- asking ---- */

static void place_here(const struct name_claim *claim, struct name_place *place_p)
{
    uint64_t version = claim->version < RDT_MAX_NUMBER ? claim->version : RDT_MAX_NUMBER;

    *place_p = (struct name_place){.epoch = claim->epoch, .version = version};
    memcpy(place_p->node, claim->all->node->uuid, 16);
    text_copy(place_p->address, sizeof place_p->address, claim->all->node->address);
}

/* Registers the name with all homes, whose answers say whether this node has it. A LOST claim is registered as if it were
 * new. */
static void ask(struct name_claim *claim)
{
    struct directory_names *all = claim->all;
    struct name_place place, known;
    struct name_homes homes;
    uint64_t question = ++all->telling.n_questions;

    if (claim->state == CLAIM_LOST)
        claim->epoch = 0;
    if (!claim->asking)
        claim->since = question;
    names_homes_of(all, &claim->key, &homes);
    place_here(claim, &place);
    claim->n_homes = homes.n;
    claim->asking = true;
    claim->meets = claim->state == CLAIM_CLAIMING && names_meet(all);
    claim->told_ns = uv_hrtime();
    list_remove(&claim->link);
    list_append(&all->claimed, &claim->link);
    list_remove(&claim->by_dirty);
    for (unsigned i = 0; i < homes.n; i++) {
        memcpy(claim->home[i], homes.peer[i] ? homes.peer[i]->uuid : all->node->uuid, 16);
        set_answer(claim, i, ANSWER_AWAITED);
        if (!homes.peer[i])
            take_answer(claim, i, &known, names_home_register(all, NULL, &claim->key, &place, &known) != RDT_EXISTS);
        else if (!names_send(all, homes.peer[i], RDT__PB__NAME_ACT__NAME_ACT_REGISTER, &claim->key, &place, question))
            set_answer(claim, i, ANSWER_AWAY);
    }
    if (is_complete(claim) || !deadline_set(all->deadlines, &claim->patience, NAMES_CLAIM_NS)) {
        claim->meets = false;
        decide(claim);
    }
}

static struct name_claim *claim_new(struct directory_names *all, const struct name_key *key)
{
    struct name_claim *claim = calloc(1, sizeof *claim);

    if (!claim)
        return NULL;
    claim->all = all;
    claim->key = *key;
    list_init(&claim->link);
    list_init(&claim->by_dirty);
    list_init(&claim->waiters);
    claim->patience.on_passed = on_patience;
    if (!map_put(&all->claims, claim->key.packed, claim->key.bytes, claim)) {
        free(claim);
        return NULL;
    }
    list_append(&all->claimed, &claim->link);
    return claim;
}

enum rdt_status directory_names_claim(struct directory_names *all, const struct owner *owner, const uint8_t *id,
                                      size_t id_bytes, struct claim_waiter *waiter, struct rdt_error *err)
{
    struct name_claim *claim;
    struct name_key key;

    if (!directory_names_active(all))
        return RDT_OK;
    name_key_make(&key, owner, id, id_bytes);
    claim = find(all, &key);
    if (!claim && !(claim = claim_new(all, &key)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a name");
    if (claim->state == CLAIM_HELD)
        return RDT_OK;
    /* A refusal holds for those that waited for it: the name may have been unpublished since. */
    if (claim->told_ns == 0 || (claim->state == CLAIM_LOST && !claim->asking && !waiter->decided))
        ask(claim);
    if (claim->state == CLAIM_HELD)
        return RDT_OK;
    if (claim->state == CLAIM_LOST && (!claim->asking || waiter->decided))
        return refuse(claim, err);
    list_append(&claim->waiters, &waiter->link);
    return RDT_AGAIN;
}

enum rdt_status directory_names_check(const struct directory_names *all, const struct owner *owner, const uint8_t *id,
                                      size_t id_bytes, struct rdt_error *err)
{
    const struct name_claim *claim;
    struct name_key key;

    name_key_make(&key, owner, id, id_bytes);
    claim = find(all, &key);
    return claim && claim->state == CLAIM_LOST ? refuse(claim, err) : RDT_OK;
}

bool directory_names_use(struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes)
{
    struct name_claim *claim;
    struct name_key key;

    name_key_make(&key, owner, id, id_bytes);
    claim = find(all, &key);
    if (claim)
        claim->n_users++;
    return claim;
}

/* ---- changes ---- */

/* Other nodes may have the name. */
static void tell_end(const struct name_claim *claim)
{
    struct directory_names *all = claim->all;
    struct name_place place;
    struct name_homes homes;

    if (claim->state == CLAIM_LOST)
        return;
    place_here(claim, &place);
    names_homes_of(all, &claim->key, &homes);
    for (unsigned i = 0; i < homes.n; i++) {
        if (!homes.peer[i])
            names_home_end(all, &claim->key, &place);
        else
            (void)names_send(all, homes.peer[i], RDT__PB__NAME_ACT__NAME_ACT_END, &claim->key, &place, 0);
    }
}

void directory_names_changed(struct directory_names *all, const struct name *name)
{
    struct name_key key;
    struct name_claim *claim;

    if (!directory_names_active(all))
        return;
    name_key_make(&key, &name->account->owner, name_id(name), name->id_bytes);
    claim = find(all, &key);
    if (!claim && name->published) { /* an earlier daemon had published the name */
        claim = claim_new(all, &key);
        if (claim)
            set_state(claim, CLAIM_HELD);
    }
    if (!claim)
        return;
    claim->version = name->version;
    if (name->published) {
        tell_again(claim, INT64_C(2000000));
        return;
    }
    if (claim->n_users == 0)
        tell_end(claim);
    claim->version = 0;
    if (list_empty(&claim->waiters) && claim->n_users == 0)
        claim_free(claim);
}

void directory_names_unuse(struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes)
{
    struct name_claim *claim;
    struct name_key key;

    name_key_make(&key, owner, id, id_bytes);
    claim = find(all, &key);
    if (!claim || --claim->n_users > 0 || claim->version > 0)
        return;
    tell_end(claim); /* nothing was published */
    if (list_empty(&claim->waiters))
        claim_free(claim);
}

/* Tells the homes that the node still has the name, or that it has not needed it. */
static void retell(struct name_claim *claim)
{
    if (is_used(claim) || !list_empty(&claim->waiters) || claim->told_ns == 0) {
        ask(claim);
    } else {
        tell_end(claim); /* it was claimed, and never published */
        claim_free(claim);
    }
}

void names_claims_flush(struct deadline *deadline)
{
    struct directory_names *all = container_of(deadline, struct directory_names, flush);
    uint64_t until_ns = uv_hrtime() + TELL_NS;
    unsigned n = 0;
    struct name_claim *claim;
    struct list now; /* a claim that cannot be told is dirty again at once */

    list_init(&now);
    list_splice(&now, &all->dirty);
    for (; n < TOLD_PER_TURN && uv_hrtime() < until_ns; n++)
        if (!list_empty(&now))
            ask(container_of(list_first(&now), struct name_claim, by_dirty)); /* takes it out */
        else if ((claim = next_to_retell(all)))
            retell(claim);
        else
            break;
    if (!list_empty(&now) || next_to_retell(all))
        (void)deadline_set(all->deadlines, &all->flush, 0);
    list_splice(&now, &all->dirty); /* claims that wait come before those that are registered again */
    list_splice(&all->dirty, &now);
}

static void retell_before(struct directory_names *all, uint64_t ns)
{
    if (ns > all->retell_ns)
        all->retell_ns = ns;
    if (next_to_retell(all) && deadline_left_ns(&all->flush) < 0)
        (void)deadline_set(all->deadlines, &all->flush, INT64_C(2000000));
}

void names_claims_tell_again(struct directory_names *all)
{
    retell_before(all, uv_hrtime());
}

void names_claims_tick(struct directory_names *all, uint64_t now_ns)
{
    if (now_ns > (uint64_t)NAMES_REGISTER_NS)
        retell_before(all, now_ns - (uint64_t)NAMES_REGISTER_NS);
}

void names_claims_close(struct directory_names *all)
{
    slice_stop(&all->telling.retry);
    list_drain (struct claim_waiter, waiter, &all->telling.decided, link)
        list_remove(&waiter->link);
    list_drain (struct name_claim, claim, &all->claimed, link) {
        list_for_each_safe (node, &claim->waiters)
            list_remove(node);
        claim_free(claim);
    }
    map_fini(&all->claims);
}
