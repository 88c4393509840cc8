/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by every test of real processes: failing from the test's process and from its actors, deadlines that are longer
 * under sanitizers, waiting for a state that has no event, byte patterns, and buffers with margins. */
#ifndef TESTS_SUPPORT_CHECK_H
#define TESTS_SUPPORT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/rdt.h"

#define MSEC INT64_C(1000000)
#define SEC INT64_C(1000000000)

/* Fails the test; in an actor says why and ends it with status 99, which actor_wait sees. Not in other threads. */
#define CHECK_FAILED 99
void check_fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4), noreturn));
#define fail(...) check_fail(__FILE__, __LINE__, __VA_ARGS__)

#define must(condition)                     \
    do {                                    \
        if (!(condition))                   \
            fail("not so: %s", #condition); \
    } while (0)

#define must_say(condition, ...) \
    do {                         \
        if (!(condition))        \
            fail(__VA_ARGS__);   \
    } while (0)

/* The call must end with this status. The call is given `&err`, which is declared here and shown when it does not. */
#define must_be(expected, call)                                                                                         \
    do {                                                                                                                \
        struct rdt_error err = {0};                                                                                     \
        enum rdt_status check_status = (call);                                                                          \
        if (check_status != (expected))                                                                                 \
            fail("%s: %s instead of %s: %s", #call, rdt_status_name(check_status), rdt_status_name(expected), err.msg); \
        (void)err;                                                                                                      \
    } while (0)
#define must_ok(call) must_be(RDT_OK, call)

/* The same; the error's sentence must contain this text. A machine that stood still makes librdt end the call with a sentence
 * of its own, instead of what rdtd waited for: the call is then made again, at most five times. */
#define must_refuse(expected, text, call)                                                                               \
    do {                                                                                                                \
        struct rdt_error err = {0};                                                                                     \
        enum rdt_status check_status = (call);                                                                          \
        for (int check_n = 0; check_n < 5 && check_is_late(&err); check_n++)                                            \
            check_status = (call);                                                                                      \
        if (check_status != (expected))                                                                                 \
            fail("%s: %s instead of %s: %s", #call, rdt_status_name(check_status), rdt_status_name(expected), err.msg); \
        check_says(__FILE__, __LINE__, &err, (expected), (text));                                                       \
    } while (0)
bool check_is_late(const struct rdt_error *err); /* the sentence is librdt's own */
void check_says(const char *file, int line, const struct rdt_error *err, enum rdt_status expected, const char *text);

/* Skips the test unless it runs as root. */
void need_root(void);

/* Times. `patience` makes a limit longer under sanitizers. */
int64_t now_ns(void);
uint64_t cpu_ns(void); /* of this thread: others on the machine do not count */
int64_t patience(int64_t ns);
/* A suite's limit, for those whose tests wait out deadlines: patience() makes them longer. */
#ifdef __SANITIZE_THREAD__
#define SUITE_SECONDS(n) (4 * (n))
#else
#define SUITE_SECONDS(n) (n)
#endif

#define LONG (patience(20 * SEC)) /* nothing healthy takes so long */

/* Until the condition holds: looks again and again, with short pauses; fails after `ns`, which it makes longer itself. For
 * states that have no event to wait for. */
void wait_pause(unsigned *round);
#define wait_until(ns, condition)                         \
    do {                                                  \
        int64_t check_deadline = now_ns() + patience(ns); \
        for (unsigned check_round = 0; !(condition);) {   \
            if (now_ns() > check_deadline)                \
                fail("never came: %s", #condition);       \
            wait_pause(&check_round);                     \
        }                                                 \
    } while (0)

bool is_mapped(const void *addr); /* in this process */

/* Bytes that differ by seed and position. */
void fill_pattern(void *addr, size_t bytes, uint32_t seed);
bool holds_pattern(const void *addr, size_t bytes, uint32_t seed);
bool is_filled_with(const void *addr, size_t bytes, uint8_t byte);

/* A heap buffer between two margins; all of it is the canary at first. */
#define CANARY_BYTE 0xc5
struct canary {
    uint8_t *base, *addr;
    size_t bytes;
};
void canary_create(struct canary *canary, size_t bytes);
bool canary_alive(const struct canary *canary);     /* the margins are intact */
bool canary_untouched(const struct canary *canary); /* and so is the buffer */
void canary_destroy(struct canary *canary);

/* Open fds of a process without those of a GPU's driver; 0: itself, also without those of the harness. */
unsigned fds_of(int pid);
extern int harness_fds; /* how many of this process's fds belong to nodes, actors and networks */
/* Resident memory of a process. */
size_t rss_of(int pid);

/* The inode of the file that is mapped at the address; 0: none is. */
unsigned long inode_at(const void *addr);

/* ns from now for things that must have ended by then, e.g. "after its deadline, but not much": fails if `since` is longer
 * ago. */
#define must_be_within(since, ns) \
    must_say(now_ns() - (since) <= patience(ns), "took %lld ms", (long long)((now_ns() - (since)) / MSEC))

#endif
