/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into the Criterion programs of the tsan variant only. Criterion maps its arena at a random fixed address between
 * 0x200000000000 and 0x7f0000000000, of which ThreadSanitizer leaves few to programs; where it lands comes from rand_r. This
 * one keeps it at 0x550000000000 and up: a range for programs, below where position-independent ones begin. */
#include <stdlib.h>

int rand_r(unsigned *seed)
{
    *seed = *seed * 1103515245U + 12345U;
    return (int)(0x350000U + (*seed >> 8) % 0x5000U);
}
