/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room that implement region.h share. All calls are made in the loop thread unless a comment says
 * otherwise.
 *
 * The files, the upper ones first: an object uses symbols of lower rows only.
 *
 *   regions                             start, end, limits, the timer
 *   imported > region_fill, region_alloc   the bytes of imported memory; what is charged and allocated
 *   region_device                       the same on devices
 *   region_export > region_file         who can reach the memory
 *   region                              references
 *   region_cache                        regions that are used again as a whole
 *   region_free                         the end of the memory; regions->on_freed lets allocations go on that wait for it
 *   region_left > region_orphans        memory that clients have left behind, or still have
 *   region_table                        the entries, with their states, charges and mappings
 */
#ifndef DAEMON_REGION_IMPL_H
#define DAEMON_REGION_IMPL_H

#include <sys/stat.h>

#include "daemon/memory/region.h"

#define SMALL_BYTES POOL_MIN_BYTES /* memory of up to this size is allocated and freed in the loop */

/* ---- region.c ---- */

/* Runs work that touches the region's memory: on the pool, or on the threads of its owner if a client can hold it up. */
void region_work_submit(struct region *region, struct work *take_work);

/* ---- region_left.c ---- */

void regions_left_init(struct regions *regions);
void regions_look_at_left(struct regions *regions); /* charges what is there now */

/* The region ends. Returns what stays charged to memory_limit for it until its memory has been freed. */
uint64_t region_end_left(struct region *region);

/* ---- region_table.c ---- */

/* Finds a memory kind. UNSUPPORTED: it is not loaded, or not available. */
enum rdt_status regions_find_kind(struct regions *regions, const char *name, struct memory_kind **kind_p,
                                  struct rdt_error *err);

/* Creates a region without memory, charges it to the account and lists it. device: NULL for host memory. LIMIT (of the
 * account), NO_MEMORY. */
enum rdt_status region_new(struct regions *regions, struct memory_kind *kind, struct memory_device *device, uint64_t bytes,
                           enum region_origin origin, struct account *account, uint64_t client, unsigned n_fds,
                           struct region **region_p, struct rdt_error *err);

/* Whether a client of the region's owner (0: any) has imported memory of the region's device after the region was exported, and
 * still has: it may be this region's, under another name. Other owners are not asked: the daemon hands them no such memory, and
 * their imports would end every reuse on the device (rdt-gpu(7)). The other two note that the region's creator has, and that it
 * has no more; region_new and region_leave call them. They do nothing for other memory. False: no memory. */
bool region_may_be_imported(const struct region *region, uint64_t client);
bool region_note_importer(const struct region *region);
void region_forget_importer(const struct region *region);

/* Takes a host region's charge off its account, and charges it again. LIMIT: of its account. */
void region_uncharge_use(struct region *region);
enum rdt_status region_charge_use(struct region *region, struct rdt_error *err);

/* From now on nobody finds it by its id, and no listing shows it. */
void region_unlist(struct region *region);

/* Takes an unlisted region's charges off its account and its device's counters, and drops the reference to the account. */
void region_leave(struct region *region);

/* Frees the struct of a region that has left, or was not listed. */
void region_destroy(struct region *region);

/* Unlists and frees a region that has no memory, or none any more, and gives back region->room. */
void region_end_empty(struct region *region);

/* Undoes region_new: for a region that was charged a moment ago, and neither got room nor memory. */
void region_cancel(struct region *region);

/* Takes a charge off the device, or off memory_limit if device is NULL. */
void regions_uncharge_on(struct regions *regions, struct memory_device *device, uint64_t bytes);

/* Takes off the charge for more pages than the file has (region_fill.h); the second does nothing while the region is pinned. */
void region_settle(struct region *region, const struct stat *st);
void region_settle_idle(struct region *region);

/* region_addr, except that nothing is read ahead. */
uint8_t *region_map(struct region *region, struct rdt_error *err);

/* The region has got an address, which nobody could refuse: charges it for the mapping. Does nothing if it has none. */
void region_note_mapped(struct region *region);

/* ---- region_alloc.c ---- */

/* Starts the waiting allocations, in their order, as far as there is room, and refuses those for which there will be none.
 * It may call anyone, so it must be called from the loop only. */
void regions_admit(struct regions *regions);

/* ---- region_export.c ---- */

/* Returns what another process needs to map a region on a device. INTERNAL: the plug-in has a bug. */
enum rdt_status region_ask_export(const struct region *region, struct rdt_export *export_p, struct rdt_error *err);

/* ---- region_device.c ---- */

/* region_alloc for memory on a device. */
enum rdt_status region_alloc_device(struct regions *regions, struct memory_kind *kind, const char *device, uint64_t bytes,
                                    enum region_origin origin, struct account *account, uint64_t client,
                                    struct region **region_p, region_ready on_ready, void *arg, struct rdt_error *err);

/* Checks a client's description of its memory. INVALID, UNSUPPORTED. */
enum rdt_status region_check_import(const struct memory_kind *kind, const struct rdt_import *import, struct rdt_error *err);

/* Memory of the device has been freed: like regions_admit, for the allocations that wait for it. */
void regions_admit_device(struct memory_device *device);

/* ---- region_free.c ---- */

void regions_free_init(struct regions *regions);
void regions_free_stuck(struct regions *regions); /* when the daemon ends */

/* Frees the memory of a region without references, which is not listed any more, or pools it for reuse. discard: removes
 * its pages even if a client has it mapped, unless it was abandoned. victims: moves the memory to that list instead, and
 * takes off its charge; NULL: none. */
void region_retire(struct region *region, bool discard, struct list *victims);

/* Tells the clients that keep a region mapped without a hold that it has ended. */
void region_tell_readers(struct region *region);

/* A reader has unmapped the block, which is freed when the last one has. */
void region_block_left(struct pool_block *block);

/* Moves the memory of a block, which is freed, to a region. The block's charge is the region's now. */
void region_adopt(struct region *region, struct pool_block *take_block);

/* Frees a block on the work pool or by owner_work, and takes its charge off afterwards. */
void regions_free_block(struct regions *regions, struct pool_block *take_block);

/* The same for a block of a device, which readers may have mapped: they are told in slices, and it is freed when the last one
 * has unmapped it. regions_free_told tells the rest at once, when the daemon ends. */
void regions_free_mapped(struct regions *regions, struct pool_block *take_block);
void regions_free_told(struct regions *regions);

/* Frees victims: blocks whose charge was taken off when they became victims. Any thread. */
void region_free_victims(struct list *victims);
void region_drop_victims(struct regions *regions, struct list *victims); /* the same, on the work pool */

#endif
