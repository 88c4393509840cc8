/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory. See cuda.h. The core keeps memory pinned as long as the memory exists, also when nobody uses a GPU. A pin
 * belongs to the context through which it was made, so it lapses before that context is left, and is made anew in the next
 * one:
 *
 *     pin ──► in card's context ──── no GPU had a block for pool_idle ───► lapsed
 *                    ▲                                                       │
 *                    `───────────── the next context is retained ────────────'
 *
 * It does not lapse while any GPU has blocks, because the pin serves all GPUs and a copy may be under way.
 */
#include "backends/cuda/cuda.h"

#include <stdatomic.h>
#include <stdlib.h>

struct cuda_pin {
    struct cuda_pin *next;
    void *addr;
    uint64_t bytes;
    struct cuda_card *card; /* NULL: lapsed. Changes in the hands of whoever holds the card's `opening` and pins_mutex */
};

static CUresult register_memory(struct cuda *cuda, const struct cuda_pin *pin)
{
    return cuda->driver->cuMemHostRegister(pin->addr, pin->bytes, CU_MEMHOSTREGISTER_PORTABLE);
}

static void add(struct cuda *cuda, struct cuda_pin *pin)
{
    (void)pthread_mutex_lock(&cuda->pins_mutex);
    pin->next = cuda->pins;
    cuda->pins = pin;
    (void)pthread_mutex_unlock(&cuda->pins_mutex);
}

/* pins_mutex is held. */
static void take_out(struct cuda *cuda, const struct cuda_pin *pin)
{
    struct cuda_pin **at = &cuda->pins;

    while (*at != pin)
        at = &(*at)->next;
    *at = pin->next;
}

/* Pins through that GPU, which is in use. A call that fails with an error of the context marks the GPU as failed. */
static enum rdt_status pin_through(struct cuda_card *card, struct cuda_pin *pin, struct rdt_error *err)
{
    struct cuda *cuda = card->cuda;
    enum rdt_status status = cuda_enter(card, err);
    CUresult result;

    if (status != RDT_OK)
        return status;
    result = register_memory(cuda, pin);
    cuda_note(card, result);
    if (result != CUDA_SUCCESS)
        return cuda_failed(cuda->driver, result, err, "pinning host memory for copies");
    pin->card = card;
    add(cuda, pin);
    return RDT_OK;
}

/* Pins the memory for all GPUs through the first one that is in use and works. Pinning must not be what opens a GPU. */
enum rdt_status cuda_pin(void *memory, void *addr, uint64_t bytes, void **pin_p, struct rdt_error *err)
{
    struct cuda *cuda = memory;
    struct cuda_pin *pin = calloc(1, sizeof *pin);
    enum rdt_status status = pin ? rdt_error_set(err, RDT_UNSUPPORTED, "no GPU is in use")
                                 : rdt_error_set(err, RDT_NO_MEMORY, "no memory for the record of pinned memory");

    for (unsigned i = 0; pin && i < cuda->driver->n_gpus; i++) {
        struct cuda_card *card = &cuda->cards[i];
        bool failed;
        if (!cuda_use_if_open(card))
            continue;
        *pin = (struct cuda_pin){.addr = addr, .bytes = bytes};
        status = pin_through(card, pin, err);
        failed = status != RDT_OK && atomic_load(&card->failed);
        cuda_unuse(card);
        if (!failed)
            break;
    }
    if (status == RDT_OK)
        *pin_p = pin;
    else
        free(pin);
    return status;
}

void cuda_unpin(void *memory, void *pin_of_core)
{
    struct cuda *cuda = memory;
    struct cuda_pin *pin = pin_of_core;
    struct cuda_card *card;

    for (;;) {
        bool settled;
        (void)pthread_mutex_lock(&cuda->pins_mutex);
        card = pin->card;
        if (!card)
            take_out(cuda, pin);
        (void)pthread_mutex_unlock(&cuda->pins_mutex);
        if (!card)
            break;
        cuda_use(card); /* from now on the pin does not lapse, if it is still the card's */
        (void)pthread_mutex_lock(&cuda->pins_mutex);
        settled = pin->card == card;
        if (settled)
            take_out(cuda, pin);
        (void)pthread_mutex_unlock(&cuda->pins_mutex);
        if (settled)
            break;
        cuda_unuse(card);
    }
    if (card) {
        if (cuda_enter(card, NULL) == RDT_OK)
            (void)cuda->driver->cuMemHostUnregister(pin->addr);
        cuda_unuse(card);
    }
    free(pin);
}

unsigned cuda_pins_of(struct cuda_card *card)
{
    unsigned n = 0;

    (void)pthread_mutex_lock(&card->cuda->pins_mutex);
    for (const struct cuda_pin *pin = card->cuda->pins; pin; pin = pin->next)
        n += pin->card == card;
    (void)pthread_mutex_unlock(&card->cuda->pins_mutex);
    return n;
}

void cuda_pins_lapse(struct cuda_card *card)
{
    struct cuda *cuda = card->cuda;
    bool entered = cuda_gpu_enter(cuda->driver, card->gpu, NULL) == RDT_OK;

    (void)pthread_mutex_lock(&cuda->pins_mutex);
    for (struct cuda_pin *pin = cuda->pins; pin; pin = pin->next) {
        if (pin->card != card)
            continue;
        if (entered)
            (void)cuda->driver->cuMemHostUnregister(pin->addr);
        pin->card = NULL;
    }
    (void)pthread_mutex_unlock(&cuda->pins_mutex);
    (void)cuda->driver->cuCtxSetCurrent(NULL);
}

void cuda_pins_restore(struct cuda_card *card)
{
    struct cuda *cuda = card->cuda;

    if (pthread_mutex_trylock(&cuda->restoring) != 0)
        return; /* the thread of another GPU makes them all, and pinning 16 GB takes a second */
    (void)pthread_mutex_lock(&cuda->pins_mutex);
    for (struct cuda_pin *pin = cuda->pins; pin; pin = pin->next)
        if (!pin->card && register_memory(cuda, pin) == CUDA_SUCCESS)
            pin->card = card;
    (void)pthread_mutex_unlock(&cuda->pins_mutex);
    (void)pthread_mutex_unlock(&cuda->restoring);
}
