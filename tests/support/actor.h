/* SPDX-License-Identifier: Apache-2.0 */
/* Actors: children of the test that act as users of the daemon. A function runs in a fork of its own and ends with its result;
 * test and actor step each other by messages, never by time. Every actor dies with its test.
 */
#ifndef TESTS_SUPPORT_ACTOR_H
#define TESTS_SUPPORT_ACTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "tests/support/check.h"

struct actor {
    pid_t pid; /* 0 in the actor itself */
    int pidfd;
    int channel; /* the socket to the other side */
};

/* Forks. fn's result is the exit status (0: success). The child keeps only the standard descriptors, its channel and
 * `keep_fd` (-1: none). Start actors before connecting, so that neither process holds connections of the other. */
void actor_start(struct actor *actor, int (*fn)(struct actor *self, void *arg), void *arg);
void actor_start_keeping(struct actor *actor, int (*fn)(struct actor *self, void *arg), void *arg, int keep_fd);

/* Its exit status, or 128 + the signal that ended it. Fails the test if it does not end within LONG. */
int actor_result(struct actor *actor);
#define actor_wait(actor)                                                    \
    do {                                                                     \
        int actor_status = actor_result(actor);                              \
        must_say(actor_status == 0, "an actor ended with %d", actor_status); \
    } while (0)

void actor_kill(struct actor *actor, int signal); /* and waits for its end */
void actor_signal(struct actor *actor, int signal);
void actor_freeze(struct actor *actor); /* SIGSTOP, and waits until it stands */
void actor_thaw(struct actor *actor);

/* Both sides: step the other; wait for its step. Fail after LONG, or when the other has ended. */
void actor_step(struct actor *actor);
void actor_await(struct actor *actor);
/* The same with bytes; both sides give the number. */
void actor_send(struct actor *actor, const void *data, size_t bytes);
void actor_recv(struct actor *actor, void *data, size_t bytes);

/* This process is an actor. */
bool actor_is_one(void);

/* Waits for the end of a child by its pidfd, reaps it; false: not within ns. *status_p as above. */
bool child_ends(pid_t pid, int pidfd, int64_t ns, int *status_p);

/* Whether the main thread of the process has ended, whether or not others have. */
bool main_thread_ended(pid_t pid);

#endif
