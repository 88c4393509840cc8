/* SPDX-License-Identifier: Apache-2.0 */
/* What tests and the fake device share: a page that the plug-in maps from the file that its key "control" names. */
#ifndef TESTS_FAKE_DEVICE_CONTROL_H
#define TESTS_FAKE_DEVICE_CONTROL_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FAKE_DEVICES 4
#define FAKE_DIRT 0x5a /* what others left in memory that is allocated unzeroed */

struct fake_control {
    /* set by tests */
    _Atomic uint32_t hold;        /* copies that were queued wait while it is set: fake_hold */
    _Atomic uint32_t fail_copies; /* so many of the next ones fail */
    _Atomic uint32_t fail_allocs, fail_imports, fail_zeros;
    _Atomic uint32_t refuse_pins;  /* no host memory is pinned while it is set */
    _Atomic uint32_t no_export;    /* imported memory cannot be exported while it is set */
    _Atomic uint32_t hold_imports; /* imports, and the thread that they are on, wait while it is set: fake_hold_imports */
    /* set by the plug-in */
    _Atomic uint64_t allocated[FAKE_DEVICES]; /* bytes on each device that it has made */
    _Atomic uint32_t opened[FAKE_DEVICES];
    _Atomic uint32_t blocks, imports, handles; /* that exist now; handles: opened, each once */
    _Atomic uint32_t importing;                /* now */
    _Atomic uint64_t made, zeroed;             /* allocations; blocks that were cleared later */
    _Atomic uint64_t dirty, cleared_bytes;     /* of them allocated with FAKE_DIRT in all bytes; bytes cleared in parts */
    _Atomic uint64_t started, done;            /* copies */
    _Atomic uint64_t pinned;                   /* bytes of host memory, now */
    _Atomic uint32_t pin_calls;                /* so far */
    _Atomic uint64_t unpinned_bytes;           /* copied from or to host memory that was not */
    _Atomic uint64_t direct;                   /* looks at it by a transport that moves it */
};

static inline void fake_set(_Atomic uint32_t *word, bool hold)
{
    atomic_store(word, hold);
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline void fake_await_zero(_Atomic uint32_t *word)
{
    while (atomic_load(word))
        (void)syscall(SYS_futex, word, FUTEX_WAIT, 1, NULL, NULL, 0);
}

static inline void fake_hold(struct fake_control *control, bool hold)
{
    fake_set(&control->hold, hold);
}

static inline void fake_hold_imports(struct fake_control *control, bool hold)
{
    fake_set(&control->hold_imports, hold);
}

static inline void fake_await(struct fake_control *control) /* the plug-in: until nobody holds it */
{
    fake_await_zero(&control->hold);
}

/* A legacy handle: of the whole allocation, by the process that made it. */
struct fake_handle {
    char magic[8]; /* "fakeipc" */
    int32_t pid, fd;
    uint64_t bytes, unique;
    uint8_t rest[32];
};
_Static_assert(sizeof(struct fake_handle) == 64, "as large as a real one");

#endif
