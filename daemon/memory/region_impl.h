/* What region.c, region_alloc.c and region_register.c share. */
#ifndef DAEMON_REGION_IMPL_H
#define DAEMON_REGION_IMPL_H

#include "daemon/memory/region.h"

#define SMALL_BYTES POOL_MIN_BYTES /* pages of so few bytes come and go on the loop */

/* Pages have gone back: whoever waits for memory may try again. */
void regions_give_back(struct regions *regions, uint64_t bytes);

enum rdt_status regions_find_kind(struct regions *regions, const char *name, struct memory_kind **kind_p,
                                  struct rdt_error *err);

/* Charged at once: before anything is done. */
/* device: NULL for host memory. */
enum rdt_status region_new(struct regions *regions, struct memory_kind *kind, struct memory_device *device, uint64_t bytes,
                           enum region_origin origin, struct account *account, uint64_t client, unsigned n_fds,
                           struct region **region_p, struct rdt_error *err);

/* Nobody finds it by its number any more, and no list shows it. */
void region_unlist(struct region *region);

/* The memory is gone already, or never was; it is listed no more. */
void region_forget(struct region *region);

/* Who waits for memory, in turn, as far as there is room now. From the loop only, for it may call anyone. */
void regions_admit(struct regions *regions);

/* region_device.c: region_alloc of memory on a device. */
enum rdt_status region_alloc_device(struct regions *regions, struct memory_kind *kind, const char *device, uint64_t bytes,
                                    enum region_origin origin, struct account *account, uint64_t client, struct region **region_p,
                                    region_ready on_ready, void *arg, struct rdt_error *err);

/* What it took is free again, on its device or under memory_limit. */
void region_give_back(struct regions *regions, struct memory_device *device, uint64_t bytes);

/* Some memory of that device has gone back: who waits for it begins, or is refused. */
void regions_admit_device(struct memory_device *device);

/* Pages go, on the work pool; their charge when they have gone. */
void regions_free_block(struct regions *regions, struct pool_block *take_block);

/* Any thread: struct pool_block whose charge was given back when they became victims. */
void region_free_victims(struct list *victims);
void region_drop_victims(struct regions *regions, struct list *victims); /* the same, on the work pool */

/* What a region of it was before it was kept. */
void region_adopt(struct region *region, struct pool_block *take_block);

/* What served a client before is shown to nobody else. */
enum rdt_status region_not_anyone(const struct region *region, struct rdt_error *err);

/* It never had memory, and was not there before. */
void region_cancel(struct region *region);

#endif
