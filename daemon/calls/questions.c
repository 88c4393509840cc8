/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/calls/questions.h"

#define QUESTIONS_MAX 64u /* nodes that one call asks at the same time */

void questions_init(struct questions *questions, const struct questions_events *events)
{
    *questions = (struct questions){.events = events};
    list_init(&questions->unasked);
    list_init(&questions->asked);
}

static void fail(struct question *question, const struct rdt_error *why)
{
    list_remove(&question->link);
    question->of->events->on_failure(question, why);
}

static void on_over(struct deadline *deadline)
{
    struct questions *questions = container_of(deadline, struct questions, ends);
    struct rdt_error err;

    questions->over = true;
    list_drain (struct question, question, &questions->asked, link) {
        (void)rdt_error_set(&err, RDT_TIMED_OUT, "node %s has not answered", question->call->forwarded.to->name);
        call_forget(question->call);
        question->call = NULL;
        questions->n_asked--;
        fail(question, &err);
    }
    questions->events->go_on(questions);
}

bool questions_begin(struct questions *questions, struct call *call, int64_t timeout_ns)
{
    questions->call = call;
    questions->ends.on_passed = on_over;
    return deadline_set(call->rpc->deadlines, &questions->ends, timeout_ns);
}

void questions_end(struct questions *questions)
{
    if (!questions->call)
        return;
    deadline_unset(questions->call->rpc->deadlines, &questions->ends);
    list_drain (struct question, question, &questions->asked, link) {
        list_remove(&question->link);
        call_forget(question->call);
    }
}

void questions_add(struct questions *questions, struct question *question, const struct rdt_ref *at)
{
    question->of = questions;
    question->at = *at;
    list_append(&questions->unasked, &question->link);
}

static void on_answer(struct call *call, const ProtobufCMessage *reply, const struct rdt_error *err)
{
    struct question *question = call->asker;
    struct questions *questions = question->of;

    questions->n_asked--;
    if (reply) {
        list_remove(&question->link);
        questions->events->on_reply(question, reply, call->forwarded.to);
    } else {
        fail(question, err);
    }
    questions->events->go_on(questions);
}

/* Asks the node, or says why that is not possible. */
static void ask(struct question *question)
{
    struct questions *questions = question->of;
    const ProtobufCMessage *request = NULL;
    struct rdt_error err = {0};
    struct arena arena;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    if (questions->over)
        (void)rdt_error_set(&err, RDT_TIMED_OUT, "there was no time left to ask another node");
    else if (!(request = questions->events->make(question, &arena)))
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to ask another node");
    if (err.status == RDT_OK) {
        questions->n_asked++;
        list_remove(&question->link);
        list_append(&questions->asked, &question->link);
        if (call_ask(questions->call, &question->at, request, 0, on_answer, question, &question->call, &err) != RDT_OK)
            questions->n_asked--;
    }
    if (err.status != RDT_OK)
        fail(question, &err);
    arena_fini(&arena);
}

static bool may_ask(const struct questions *questions)
{
    return questions->over || questions->n_asked == 0 ||
           (questions->n_asked < QUESTIONS_MAX && account_check(questions->call->account, USAGE_WAITERS, 1, NULL) == RDT_OK);
}

bool questions_ask(struct questions *questions, uint64_t until_ns)
{
    while (!list_empty(&questions->unasked) && may_ask(questions)) {
        ask(container_of(list_first(&questions->unasked), struct question, link));
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}
