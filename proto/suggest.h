/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the word that somebody probably meant: the candidate with the smallest edit distance. */
#ifndef PROTO_SUGGEST_H
#define PROTO_SUGGEST_H

#include <stddef.h>

struct suggest {
    const char *word; /* borrowed */
    const char *best; /* one of the candidates, borrowed; NULL: none is near */
    unsigned distance;
};

void suggest_init(struct suggest *suggest, const char *word);
void suggest_try(struct suggest *suggest, const char *candidate); /* borrows the candidate */

/* Writes "; did you mean PREFIXbest?", or "" without a suggestion. */
void suggest_hint(const struct suggest *suggest, const char *prefix, char *text_p, size_t size);

#endif
