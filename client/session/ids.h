/* SPDX-License-Identifier: Apache-2.0 */
/* A list of ids without order. */
#ifndef CLIENT_IDS_H
#define CLIENT_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct id_list { /* all zeroes: empty */
    uint64_t *ids;
    size_t count, room;
};

bool ids_append(struct id_list *list, uint64_t id); /* false: no memory */
void ids_remove(struct id_list *list, uint64_t id); /* does nothing if it is not in the list */
void ids_fini(struct id_list *list);

#endif
