/* SPDX-License-Identifier: Apache-2.0 */
/* The statuses of rdtd: one enum in code and on the wire, and the error that accompanies them.
 *
 * Installed. Numbers are fixed for ever; new ones are added at the end. 0 is success, every failure is negative.
 */
#ifndef RDT_STATUS_H
#define RDT_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(number, NAME, sentence) */
#define RDT_STATUS_MAP(X)                                                                        \
    X(0, OK, "success")                                                                          \
    X(-1, AGAIN, "not now: the call was not started, try again")                                 \
    X(-2, INVALID, "an argument is wrong")                                                       \
    X(-3, NO_MEMORY, "out of memory")                                                            \
    X(-4, LIMIT, "a configured or built-in limit is reached")                                    \
    X(-5, NOT_FOUND, "no such thing")                                                            \
    X(-6, EXISTS, "the name is taken")                                                           \
    X(-7, DENIED, "the caller may not do this")                                                  \
    X(-8, FREED, "the object was freed")                                                         \
    X(-9, OWNER_DIED, "the client that put the object is gone")                                  \
    X(-10, PEER_LOST, "the connection to the other node is lost")                                \
    X(-11, TIMED_OUT, "the deadline passed")                                                     \
    X(-12, CANCELLED, "the request was cancelled")                                               \
    X(-13, TRANSPORT, "the transport failed")                                                    \
    X(-14, NO_PATH, "no acceptable path between the two memories")                               \
    X(-15, MISMATCH, "the target does not fit the object")                                       \
    X(-16, UNSUPPORTED, "this is not supported here")                                            \
    X(-17, PROTOCOL, "the other end broke the protocol")                                         \
    X(-18, RESTARTED, "the daemon restarted, and the request or the session did not survive it") \
    X(-19, DISCONNECTED, "the connection to the daemon is gone")                                 \
    X(-20, FORKED, "this handle belongs to the parent process")                                  \
    X(-21, SHUTTING_DOWN, "the daemon is shutting down")                                         \
    X(-22, BUSY, "the thing is in use")                                                          \
    X(-23, SYSTEM, "the operating system refused")                                               \
    X(-24, INTERNAL, "a bug in rdtd")                                                            \
    X(-25, DAMAGED, "the bytes are not those that were put")                                     \
    X(-26, NOT_PUT, "nobody has put or published it yet")

enum rdt_status {
#define X(number, name, sentence) RDT_##name = (number),
    RDT_STATUS_MAP(X)
#undef X
};

/* What went wrong, in one sentence that names the thing. The first function that notices the failure fills it; callers may
 * only add a prefix. A function that takes an error accepts NULL, and does not change the error on success. */
struct rdt_error {
    enum rdt_status status;
    int sys_errno; /* errno behind RDT_SYSTEM, else 0 */
    char msg[504]; /* always terminated; may be cut */
};

/* Returns the name, such as "TIMED_OUT"; "UNKNOWN" for an unknown number, never NULL. Static storage. */
const char *rdt_status_name(enum rdt_status status);

/* Returns the sentence, such as "the deadline passed"; never NULL. Static storage. */
const char *rdt_status_sentence(enum rdt_status status);

/* Fills err (may be NULL) and returns status. */
enum rdt_status rdt_error_set(struct rdt_error *err, enum rdt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Fills err with RDT_SYSTEM, sys_errno and fmt followed by ": " and the text of sys_errno; returns RDT_SYSTEM. */
enum rdt_status rdt_error_sys(struct rdt_error *err, int sys_errno, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the message in err (may be NULL). */
void rdt_error_prefix(struct rdt_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
