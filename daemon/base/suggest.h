/* Finds what someone probably meant: the candidate that the fewest typing errors turn into the word. */
#ifndef DAEMON_NEAREST_H
#define DAEMON_NEAREST_H

#include <stddef.h>

struct suggest {
    const char *word; /* borrowed */
    const char *best; /* one of the candidates; NULL: none is near */
    unsigned distance;
};

void suggest_init(struct suggest *nearest, const char *word);
void suggest_try(struct suggest *nearest, const char *candidate); /* borrowed */

/* "; did you mean PREFIXbest?", or "". */
void suggest_hint(const struct suggest *nearest, const char *prefix, char *text_p, size_t size);

#endif
