/* Finds what someone probably meant: the candidate that the fewest typing errors turn into the word. */
#ifndef DAEMON_NEAREST_H
#define DAEMON_NEAREST_H

#include <stddef.h>

struct nearest {
    const char *word; /* borrowed */
    const char *best; /* one of the candidates; NULL: none is near */
    unsigned distance;
};

void nearest_init(struct nearest *nearest, const char *word);
void nearest_try(struct nearest *nearest, const char *candidate); /* borrowed */

/* "; did you mean PREFIXbest?", or "". */
void nearest_hint(const struct nearest *nearest, const char *prefix, char *text_p, size_t size);

#endif
