/* SPDX-License-Identifier: Apache-2.0 */
/* Deltas: the changes from one version of a tensor to the next. rdt.h does not include this header.
 *
 * A step of reinforcement learning changes about one in a hundred values of a bf16 model, anywhere in it, so a list of the
 * changed values has a fiftieth of the tensor's size (tests/bench/delta_steps.py measures it on real optimizer steps). A
 * publisher puts the delta beside the tensor. A reader on another node that has the previous version in memory of its own
 * fetches the delta and applies it in place. These functions move nothing and need no session: one computes the delta of two
 * versions, one applies it, and one makes a note by which daemons apply it. They may be called from any thread.
 *
 * A delta is little-endian: a header of 48 bytes (the text "rdtdelta", a u32 version, 1, a u32 elem_bytes, then u64 elems,
 * changed, gap_bytes and the XXH3 hash of the whole newer version), then the gaps, zeros up to a multiple of eight bytes,
 * and the changed values one after the other. A gap counts the unchanged elements before the next changed one: a byte up to
 * 253; 254 and a u16; or 255 and a u64. */
#ifndef RDT_DELTA_H
#define RDT_DELTA_H

#include "rdt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the delta from base to next to out [out_bytes], and its length to *used_p. base and next have elems contiguous
 * elements of elem_bytes (1, 2, 4 or 8) bytes. Elements are compared as bits, so zero and negative zero differ. out may be
 * any memory that does not overlap the others. Errors: LIMIT (the delta is longer than out_bytes: send the tensor instead),
 * INVALID (elem_bytes). */
enum rdt_status rdt_delta_encode(const void *base, const void *next, size_t elems, size_t elem_bytes, void *out,
                                 size_t out_bytes, size_t *used_p, struct rdt_error *err);

/* Turns target, which holds the base of the delta [delta_bytes], into the newer version, in place. Errors: INVALID (this is
 * not a delta for this number and size of elements, or it is damaged): target is unchanged. MISMATCH (target did not hold the
 * base, because the result has another hash): target holds neither version, and the caller fetches the whole tensor into it. */
enum rdt_status rdt_delta_apply(void *target, size_t elems, size_t elem_bytes, const void *delta, size_t delta_bytes,
                                struct rdt_error *err);

/* Writes a note to out [out_bytes], and its length to *used_p: an object that is put with the note as its metadata has the
 * tensors of the object `base`, changed by the deltas in the object `delta`. Then the daemon of another node that still has a
 * replica of the base fetches only the deltas, makes its replica of the object from both, and compares it with the checksum of
 * the object before anybody gets it. Where the base is missing, or the deltas are, or the result is wrong, it fetches the whole
 * object. base and delta are refs that puts of this session's daemon have returned. The object and its base are snapshots of
 * host memory with the same tensors. `delta` is a snapshot, visible to whom the object is, of one tensor u8 [n]: the deltas of
 * the tensors that have elements, in order, one behind the other, as rdt_delta_encode writes them. The publisher holds both as
 * long as readers should use them. Errors: INVALID (a ref of a name, or without a generation), LIMIT (out has less room than
 * RDT_DELTA_NOTE_MAX_BYTES, and the note is longer). */
#define RDT_DELTA_NOTE_MAX_BYTES 1024
enum rdt_status rdt_delta_note(const struct rdt_ref *base, const struct rdt_ref *delta, void *out, size_t out_bytes,
                               size_t *used_p, struct rdt_error *err);

#ifdef __cplusplus
}
#endif

#endif
