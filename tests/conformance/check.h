/* SPDX-License-Identifier: Apache-2.0 */
/* The checks that run against any plug-in, and how they report. Each check runs in a process of its own
 * with a deadline: a plug-in that crashes or hangs fails that check, and the next check runs.
 */
#ifndef TESTS_CONFORMANCE_CHECK_H
#define TESTS_CONFORMANCE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct check {
    const char *suite, *name;
    void (*before)(void), (*run)(void), (*after)(void);
    struct check *next;
};

void check_add(struct check *check);

/* The path of the plug-in that is checked. */
extern const char *check_so;

/* Both end the check. condition: the text of the condition that did not hold; fmt: the case, may be "". */
void check_fail(const char *file, int line, const char *condition, const char *fmt, ...)
    __attribute__((format(printf, 4, 5), noreturn));
void check_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#define CHECK_WITH(suite_, name_, before_, after_)                                                                  \
    static void check_##suite_##_##name_(void);                                                                     \
    __attribute__((constructor)) static void add_##suite_##_##name_(void)                                           \
    {                                                                                                               \
        static struct check check = {                                                                               \
            .suite = #suite_, .name = #name_, .before = before_, .run = check_##suite_##_##name_, .after = after_}; \
        check_add(&check);                                                                                          \
    }                                                                                                               \
    static void check_##suite_##_##name_(void)
#define CHECK(suite_, name_) CHECK_WITH(suite_, name_, NULL, NULL)

/* must(condition), or with a sentence for the reader of the report:
 * must(condition, "a chunk of %d bytes was lost", n). */
#define must_as(text, condition, ...)                              \
    do {                                                           \
        if (!(condition))                                          \
            check_fail(__FILE__, __LINE__, text, " " __VA_ARGS__); \
    } while (0)
#define must(condition, ...) must_as(#condition, condition, __VA_ARGS__)
#define must_not(condition, ...) must_as("not " #condition, !(condition), __VA_ARGS__)
#define must_null(pointer, ...) must_as(#pointer " is NULL", (pointer) == NULL, __VA_ARGS__)
#define must_not_null(pointer, ...) must_as(#pointer " is not NULL", (pointer) != NULL, __VA_ARGS__)
#define must_eq(a, b, ...) must_as(#a " == " #b, (a) == (b), __VA_ARGS__)
#define must_neq(a, b, ...) must_as(#a " != " #b, (a) != (b), __VA_ARGS__)
#define must_leq(a, b, ...) must_as(#a " <= " #b, (a) <= (b), __VA_ARGS__)
#define must_geq(a, b, ...) must_as(#a " >= " #b, (a) >= (b), __VA_ARGS__)
#define must_gt(a, b, ...) must_as(#a " > " #b, (a) > (b), __VA_ARGS__)

#endif
