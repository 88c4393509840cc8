/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/sigbus_guard: a fault in a guarded range loses its bytes, a fault elsewhere ends the process. The faults are
 * real: they hit pages behind the end of a truncated file. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/sigbus_guard.h"

#define PAGE 4096u
#define PAGES 8u

static int file = -1;

static uint8_t *map_file(void)
{
    file = memfd_create("guard", MFD_CLOEXEC);
    cr_assert(file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
    uint8_t *addr = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    cr_assert_neq(addr, MAP_FAILED);
    memset(addr, 7, PAGES * PAGE);
    return addr;
}

static void cut(unsigned pages)
{
    cr_assert_eq(ftruncate(file, pages * PAGE), 0);
}

TestSuite(sigbus_guard, .init = sigbus_guard_install, .timeout = 60);

Test(sigbus_guard, missing_page_reads_as_zeros_and_is_noticed)
{
    uint8_t *addr = map_file(), copy[PAGES * PAGE];
    int slot = sigbus_guard_enter(addr, PAGES * PAGE, PAGE);

    cr_assert_neq(slot, GUARD_NONE);
    memcpy(copy, addr, sizeof copy);
    cr_assert(!sigbus_guard_is_broken(slot));
    cut(3);
    memcpy(copy, addr, sizeof copy);
    cr_assert(sigbus_guard_is_broken(slot));
    for (unsigned i = 0; i < sizeof copy; i++)
        cr_assert_eq(copy[i], i < 3 * PAGE ? 7 : 0, "byte %u", i);
    sigbus_guard_leave(slot);
    munmap(addr, PAGES * PAGE);
}

Test(sigbus_guard, missing_page_takes_writes_for_nobody)
{
    uint8_t *addr = map_file();
    int slot = sigbus_guard_enter(addr, PAGES * PAGE, PAGE);

    cut(0);
    memset(addr, 1, PAGES * PAGE);
    cr_assert(sigbus_guard_is_broken(slot));
    sigbus_guard_leave(slot);
    munmap(addr, PAGES * PAGE);
}

Test(sigbus_guard, one_breaks_others_do_not)
{
    uint8_t *whole = map_file(), *broken = map_file();
    int whole_slot = sigbus_guard_enter(whole, PAGES * PAGE, PAGE),
        broken_slot = sigbus_guard_enter(broken, PAGES * PAGE, PAGE);

    cut(0); /* the second one's */
    cr_assert_eq(*(volatile uint8_t *)whole, 7);
    cr_assert_eq(*(volatile uint8_t *)broken, 0);
    cr_assert(!sigbus_guard_is_broken(whole_slot));
    cr_assert(sigbus_guard_is_broken(broken_slot));
    sigbus_guard_leave(broken_slot);
    broken_slot = sigbus_guard_enter(broken, PAGES * PAGE, PAGE);
    cr_assert(!sigbus_guard_is_broken(broken_slot), "a slot begins anew");
    sigbus_guard_leave(broken_slot);
    sigbus_guard_leave(whole_slot);
    sigbus_guard_leave(GUARD_NONE);
    cr_assert(!sigbus_guard_is_broken(GUARD_NONE));
}

/* Larger than a page of the system: all of it is replaced at once. */
Test(sigbus_guard, page_size_is_as_entered)
{
    uint8_t *addr = map_file();

    addr = (uint8_t *)(((uintptr_t)addr + 4 * PAGE - 1) / (4 * PAGE) * (4 * PAGE));
    int slot = sigbus_guard_enter(addr, 4 * PAGE, 4 * PAGE);
    cut(1);
    cr_assert_eq(((volatile uint8_t *)addr)[2 * PAGE], 0);
    cr_assert_eq(addr[0], 0, "one page with the one that is gone");
    sigbus_guard_leave(slot);
}

static void *read_all(void *arg)
{
    volatile uint8_t *addr = arg;
    unsigned sum = 0;

    for (unsigned i = 0; i < PAGES; i++)
        sum += addr[i * PAGE];
    return (void *)(uintptr_t)sum;
}

Test(sigbus_guard, faults_of_many_threads_at_once)
{
    uint8_t *addr[8];
    int slots[8];
    pthread_t threads[8];

    for (unsigned i = 0; i < 8; i++) {
        addr[i] = map_file();
        cut(1);
        slots[i] = sigbus_guard_enter(addr[i], PAGES * PAGE, PAGE);
    }
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, read_all, addr[i / 2]), 0);
    for (unsigned i = 0; i < 8; i++) {
        void *sum;
        pthread_join(threads[i], &sum);
        cr_assert_eq((uintptr_t)sum, 7);
    }
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(sigbus_guard_is_broken(slots[i]), i < 4);
}

Test(sigbus_guard, table_that_is_full_says_so)
{
    static char range;
    int last = 0;

    for (unsigned i = 0; i < GUARD_MAX; i++)
        cr_assert_neq(last = sigbus_guard_enter(&range, 0, 1), GUARD_NONE);
    cr_assert_eq(sigbus_guard_enter(&range, 0, 1), GUARD_NONE);
    sigbus_guard_leave(last);
    cr_assert_eq(sigbus_guard_enter(&range, 0, 1), last);
}

/* How a child ends that reads there. */
static int end_of_reader(volatile uint8_t *addr, int slot_to_leave)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        sigbus_guard_leave(slot_to_leave);
        _exit(addr[0]);
    }
    cr_assert(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

Test(sigbus_guard, fault_elsewhere_keeps_its_action)
{
    if (getenv("RDT_VARIANT") && strcmp(getenv("RDT_VARIANT"), "release") != 0)
        cr_skip("a sanitizer has its own action");
    uint8_t *addr = map_file();
    int slot = sigbus_guard_enter(addr, PAGES * PAGE, PAGE);
    uint8_t *other = map_file();
    cut(0);
    int end = end_of_reader(other, GUARD_NONE);
    cr_assert_eq(end, SIGBUS, "ended with %d", end);
    cr_assert_eq(ftruncate(file, PAGES * PAGE), 0);
    cr_assert_eq(end_of_reader(addr, GUARD_NONE), -7);
    munmap(other, PAGES * PAGE);
    other = map_file();
    sigbus_guard_leave(slot);
    slot = sigbus_guard_enter(other, PAGES * PAGE, PAGE);
    cut(0);
    cr_assert_eq(end_of_reader(other, GUARD_NONE), 0, "guarded");
    cr_assert_eq(end_of_reader(other, slot), SIGBUS, "no longer");
}
