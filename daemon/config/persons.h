/* SPDX-License-Identifier: Apache-2.0 */
/* Persons: whose user ids are whose. A user may have thousands of subordinate user ids (subuid(5)) and be a different owner
 * with each of them, so what is kept for others is kept for other persons (account.h). All ids of the ranges of one name in
 * /etc/subuid are one person, together with the id that the name has in /etc/passwd. Any other id is a person of its own.
 *
 * Ranges of root, of system users (ids below 1000), and of the names "containers" and "kubelet" are those of a container
 * engine, which gives them to different users: each of their ids is a person of its own.
 *
 * Nobody is asked for names that are not in /etc/passwd, because a name service may not answer. The person of such a name has
 * the first id of its first range, and does not include the user's own id.
 *
 * Both files are read when the daemon starts; when it reloads its configuration; and, at most once a second, before the next
 * owner that is new here, if they have changed. That is done by a thread: an owner that comes meanwhile is judged by what was
 * read before, and an owner that is here already stays with its person until it has nothing here any more.
 *
 * Loop thread only. */
#ifndef DAEMON_CONFIG_PERSONS_H
#define DAEMON_CONFIG_PERSONS_H

#include <stdbool.h>
#include <stdint.h>

struct owner_work;
struct person_range;

struct persons {
    const char *subuid, *passwd; /* the files */
    struct person_range *ranges; /* that do not overlap, in order */
    unsigned n;
    struct owner_work *owner_work; /* its thread reads; NULL: nobody reads again, which must be so when it is closed */
    uint64_t stamp[10];            /* of the files that were read */
    uint64_t checked_ns;
    bool reading, stale;
};

/* Reads the files, whose paths are borrowed. What is wrong with them goes to the log. */
void persons_init(struct persons *persons, const char *subuid, const char *passwd, struct owner_work *owner_work);
void persons_fini(struct persons *persons);

void persons_read_again(struct persons *persons); /* even if the files do not seem to have changed */

/* The user id that stands for the person whose this one is. arg: struct persons (accounts.person_of). */
uint32_t persons_find(void *arg, uint32_t uid);

#endif
