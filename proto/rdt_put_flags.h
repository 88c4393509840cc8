/* SPDX-License-Identifier: Apache-2.0 */
/* Flags of a put, in rdt_put_options and on the wire (Put.flags). Installed; the numbers are fixed for ever. */
#ifndef RDT_PUT_FLAGS_H
#define RDT_PUT_FLAGS_H

enum rdt_put_flags {
    /* The object never changes: the daemon copies the tensors before rdt_put returns, and the caller may
     * write them again at once. Tensors that librdt had to copy into the daemon's memory anyway are not
     * copied twice. Readers map a snapshot read-only, or privately (RDT_FETCH_COW). On a device, where nothing can be mapped
     * so, readers of its owner must not write it (rdt_object_info.writable), and the daemon copies it for each of them if
     * others may see it, too. */
    RDT_PUT_SNAPSHOT = 1,
    /* The object is freed ttl_ns after the put, as by rdt_free, whether or not this session lives; later
     * fetches fail with FREED. Any session of the same owner may rdt_free it sooner. Its bytes stay charged
     * to the owner. */
    RDT_PUT_DETACHED = 2,
    /* The tensors' bytes will be written later, for example by a GPU stream. The put returns the ref at once, and
     * the object is `filling`: fetches and waits continue after rdt_ready, and nothing reads its memory before.
     * rdt_fail, or the end of this session, makes them fail. All tensors must be in memory that the daemon knows.
     * With SNAPSHOT the copy is made at rdt_ready. */
    RDT_PUT_PENDING = 4,
    /* Only with SNAPSHOT: the daemon begins to store the object in its storage_dir when the put returns, or when files of
     * evictable objects have made room for it; rdt_store waits until that is done, and reports a failure. UNSUPPORTED: the
     * daemon stores nothing. */
    RDT_PUT_STORED = 8,
    /* The caller promises that nobody writes the tensors while the object exists, that is, before rdt_wait_freed has returned.
     * Nothing is copied, and other nodes treat the object as a snapshot: they keep replicas of it and pass it on to each
     * other. If the promise is broken, readers may see bytes of several writes. SNAPSHOT overrides this flag. */
    RDT_PUT_IMMUTABLE = 16,
    /* Only with SNAPSHOT, for librdt alone: the copy of ordinary memory need not be sealed. Then librdt copies into memory
     * that it uses again when the object has ended, so that successive objects of one size, such as the weights of each
     * step, need no new pages, and a put of a large one takes a fraction of the time. The object never changes either way,
     * but nothing prevents a broken program from writing into librdt's memory. The flag has no effect together with other
     * flags than DETACHED, REPLACE and SUM, on objects that others than their owner may see, and if a tensor lies in memory
     * that the daemon knows. If the object is stored (rdt_store), it stays in memory as long as its producer lives.
     * rdt_cuda_put has the same for tensors that it copies: with the flag, the daemon does not copy them again. */
    RDT_PUT_UNSEALED = 32,
    /* librdt computes the checksum of the tensors' bytes before it puts them, in the calling thread, so that readers can
     * compare with it what they got (rdt_verify), from the producer's memory to theirs. A snapshot has a checksum without this
     * flag, too: its daemon computes it from its copy when somebody first needs it. So the flag is for live and IMMUTABLE
     * objects; readers of one that has been written since find it DAMAGED. UNSUPPORTED: a tensor lies on a device. Not with
     * PENDING. */
    RDT_PUT_SUM = 64,
    /* If an object has the id already, this one takes its place in one step, as soon as its bytes are there: until then a fetch
     * of the id gets the earlier object, and from then on this one. The earlier object is freed as by rdt_free: its readers,
     * holds and names keep it, and a ref that a put returned still leads to it. A put that fails changes nothing. One that the
     * caller stops waiting for (TIMED_OUT, CANCELLED) may have happened. EXISTS: another session has the producer's hold on the
     * earlier object, which is not DETACHED, so that only rdt_free by force ends it; or it is stored and published under a
     * name. Not with STORED: publish under a name, whose earlier version stays on the disk until the new one is there. */
    RDT_PUT_REPLACE = 128,
    /* Only with SNAPSHOT: the object is an entry of a cache. It outlives this session, and stays until it is freed, until its
     * ttl_ns has passed if that is not 0, or until it is evicted: when its memory is wanted for anything else, or past
     * cache_limit or owner_cache_limit of rdtd.conf(5), the objects of the lowest priority that were used least recently go
     * first. Nothing evicts an object that a reader, a hold, a name or a transfer holds. It counts for the user, not for this
     * session. With REPLACE, an object of the id that there is already is replaced. LIMIT: those that others hold leave no
     * room. Not with STORED or PENDING. */
    RDT_PUT_EVICTABLE = 256,
};

#define RDT_PRIORITY_MOST 7u /* of an EVICTABLE object */

#define RDT_PUT_FLAGS_ALL                                                                                           \
    (RDT_PUT_SNAPSHOT | RDT_PUT_DETACHED | RDT_PUT_PENDING | RDT_PUT_STORED | RDT_PUT_IMMUTABLE | RDT_PUT_REPLACE | \
     RDT_PUT_EVICTABLE)
#define RDT_PUT_FLAGS_LOCAL (RDT_PUT_UNSEALED | RDT_PUT_SUM) /* librdt does not send them */

#endif
