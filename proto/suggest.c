/* SPDX-License-Identifier: Apache-2.0 */
/* Edit distance with a limit: a candidate that differs in more than a third of the word is no help. */
#include "suggest.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define WORD_BYTES 64u

void suggest_init(struct suggest *suggest, const char *word)
{
    *suggest = (struct suggest){.word = word, .distance = (unsigned)(strlen(word) / 3 + 1)};
}

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned least = a < b ? a : b;
    return least < c ? least : c;
}

/* Levenshtein distance, computed one row at a time. */
static unsigned distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a >= WORD_BYTES || n_b >= WORD_BYTES)
        return WORD_BYTES;
    unsigned row[WORD_BYTES];
    for (unsigned j = 0; j <= n_b; j++)
        row[j] = j;
    for (unsigned i = 1; i <= n_a; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= n_b; j++) {
            unsigned above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n_b];
}

void suggest_try(struct suggest *suggest, const char *candidate)
{
    size_t n = strlen(suggest->word), n_candidate = strlen(candidate);
    if ((n > n_candidate ? n - n_candidate : n_candidate - n) > suggest->distance)
        return; /* at least that many letters differ */
    unsigned d = strcasecmp(suggest->word, candidate) == 0 ? 0 : distance(suggest->word, candidate);
    if (d < suggest->distance || (!suggest->best && d == suggest->distance)) {
        suggest->best = candidate;
        suggest->distance = d;
    }
}

void suggest_hint(const struct suggest *suggest, const char *prefix, char *text_p, size_t size)
{
    if (suggest->best)
        snprintf(text_p, size, "; did you mean %s%s?", prefix, suggest->best);
    else
        text_p[0] = 0;
}
