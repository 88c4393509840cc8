/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/imported.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory/region_fill.h"

/* Runs that lie closer together are read with what lies between them. A read of 4 KiB takes twice as long as one of 8 bytes. */
#define NEAR_BYTES 4096u
#define SPAN_BYTES ((uint64_t)32 << 10) /* read at once, on the stack of the thread */

enum rdt_status memory_place_of(struct region *region, struct memory_place *place_p, struct rdt_error *err)
{
    struct rdt_error why = {0};

    *place_p = (struct memory_place){.by_fd = region_is_by_fd(region),
                                     .fd = region->block.fd,
                                     .offset = region->imported.offset,
                                     .writing = &region->imported.writing};
    if (!place_p->by_fd)
        place_p->base = region_addr(region, err ? err : &why);
    return place_p->by_fd || place_p->base ? RDT_OK : err ? err->status : why.status;
}

int memory_place_read(const struct memory_place *place, uint64_t at, uint64_t bytes, void *to)
{
    ssize_t n;

    if (!place->by_fd) {
        memcpy(to, place->base + at, bytes);
        return 0;
    }
    for (uint64_t done = 0; done<bytes; done += n> 0 ? (uint64_t)n : 0) {
        n = pread(place->fd, (uint8_t *)to + done, bytes - done, (off_t)(place->offset + at + done));
        if (n == 0 || (n < 0 && errno != EINTR))
            return n < 0 ? errno : EIO;
    }
    return 0;
}

static uint64_t bytes_of_file(int fd)
{
    struct stat st;

    return fstat(fd, &st) ? UINT64_MAX : (uint64_t)st.st_blocks * 512;
}

int memory_place_write(struct memory_place *place, uint64_t at, uint64_t bytes, const void *from)
{
    uint64_t before, after;
    ssize_t n;
    int failed = 0;

    if (!place->by_fd) {
        memcpy(place->base + at, from, bytes);
        return 0;
    }
    (void)pthread_mutex_lock(place->writing); /* the kernel lets one of them write at a time, too */
    before = bytes_of_file(place->fd);
    for (uint64_t done = 0; done < bytes && !failed; done += n > 0 ? (uint64_t)n : 0) {
        n = pwrite(place->fd, (const uint8_t *)from + done, bytes - done, (off_t)(place->offset + at + done));
        if (n == 0 || (n < 0 && errno != EINTR))
            failed = n < 0 ? errno : EIO;
    }
    after = bytes_of_file(place->fd);
    (void)pthread_mutex_unlock(place->writing);
    if (after > before)
        atomic_fetch_add(&place->created_bytes, after - before);
    return failed;
}

enum rdt_status memory_place_charge(struct memory_place *place, struct region *region, struct rdt_error *err)
{
    uint64_t bytes = atomic_exchange(&place->created_bytes, 0);

    return bytes > 0 ? region_fill_charge(region, bytes, err) : RDT_OK;
}

/* ---- strided tensors ---- */

/* Rows of runs, as layout_runs finds them one after the other: tensors whose rows lie closer together than their columns, such
 * as transposed ones, are read column by column. */
struct gathering {
    const struct memory_place *place;
    uint8_t *packed; /* where the rows go */
    uint64_t at, run, runs, rows;
    int64_t step, row_step;
    int failed;
};

/* Reads n runs at one step from each other, and stores them at another one. */
static int read_runs(const struct memory_place *place, uint64_t at, int64_t step, uint64_t run, uint64_t n, uint8_t *packed,
                     uint64_t packed_step)
{
    uint64_t apart = (uint64_t)llabs(step), most = run < SPAN_BYTES && apart <= NEAR_BYTES ? SPAN_BYTES : 0;
    uint8_t span[SPAN_BYTES];

    if (n > 1 && step == (int64_t)run && packed_step == run) /* they are one */
        return memory_place_read(place, at, run * n, packed);
    while (n > 0) {
        uint64_t together = most > 0 ? 1 + (most - run) / (apart ? apart : 1) : 1, lo;
        int failed;
        if (together > n)
            together = n;
        lo = step < 0 ? at - apart * (together - 1) : at;
        failed = together > 1 ? memory_place_read(place, lo, apart * (together - 1) + run, span)
                              : memory_place_read(place, lo, run, packed);
        if (failed)
            return failed;
        for (uint64_t k = 0; k < together && together > 1; k++)
            memcpy(packed + k * packed_step, span + (at + (uint64_t)((int64_t)k * step) - lo), run);
        at += (uint64_t)((int64_t)together * step);
        packed += together * packed_step;
        n -= together;
    }
    return 0;
}

static void end_rows(struct gathering *gathering)
{
    const struct gathering *g = gathering;
    bool by_column = g->rows > 1 && llabs(g->row_step) < llabs(g->step);
    uint64_t outer = by_column ? g->runs : g->rows, inner = by_column ? g->rows : g->runs, row = g->runs * g->run;

    for (uint64_t k = 0; k < outer && !gathering->failed; k++)
        gathering->failed = read_runs(g->place, g->at + (uint64_t)((int64_t)k * (by_column ? g->step : g->row_step)),
                                      by_column ? g->row_step : g->step, g->run, inner,
                                      g->packed + k * (by_column ? g->run : row), by_column ? row : g->run);
    gathering->packed += g->rows * row;
    gathering->rows = 0;
}

static bool on_row(void *arg, uint64_t at, int64_t step, uint64_t run, uint64_t runs)
{
    struct gathering *g = arg;
    bool alike = g->rows > 0 && g->step == step && g->run == run && g->runs == runs;

    if (alike && (g->rows == 1 || at == g->at + (uint64_t)((int64_t)g->rows * g->row_step))) {
        if (g->rows == 1)
            g->row_step = (int64_t)(at - g->at);
        g->rows++;
        return true;
    }
    if (g->rows > 0)
        end_rows(g);
    g->at = at;
    g->step = step;
    g->run = run;
    g->runs = runs;
    g->rows = 1;
    return !g->failed;
}

int memory_place_gather(const struct memory_place *place, const struct layout *layout, uint32_t i, uint64_t from,
                        uint64_t bytes, void *packed_p)
{
    struct gathering gathering = {.place = place, .packed = packed_p};

    if (!place->by_fd) {
        layout_gather(layout, i, place->base, from, bytes, packed_p);
        return 0;
    }
    (void)layout_runs(layout, i, from, bytes, on_row, &gathering);
    if (gathering.rows > 0 && !gathering.failed)
        end_rows(&gathering);
    return gathering.failed;
}

struct scattering {
    struct memory_place *place;
    const uint8_t *packed;
    int failed;
};

static bool on_written_row(void *arg, uint64_t at, int64_t step, uint64_t run, uint64_t runs)
{
    struct scattering *scattering = arg;

    for (uint64_t k = 0; k < runs && !scattering->failed; k++, scattering->packed += run)
        scattering->failed = memory_place_write(scattering->place, at + (uint64_t)((int64_t)k * step), run, scattering->packed);
    return !scattering->failed;
}

int memory_place_scatter(struct memory_place *place, const struct layout *layout, uint32_t i, uint64_t from, uint64_t bytes,
                         const void *packed)
{
    struct scattering scattering = {place, packed, 0};

    if (!place->by_fd) {
        layout_scatter(layout, i, place->base, from, bytes, packed);
        return 0;
    }
    (void)layout_runs(layout, i, from, bytes, on_written_row, &scattering); /* one run: targets have no holes */
    return scattering.failed;
}
