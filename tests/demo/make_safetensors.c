/* SPDX-License-Identifier: Apache-2.0 */
/* make_safetensors FILE MIB: writes a file of about MIB mebibytes, the same in every run, which resembles the weights of a
 * language model: an embedding, layers of several dtypes, odd sizes, scalars. It uses nothing of rdtctl's writer, so each
 * of them checks the other. */
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    FILE *header; /* JSON, as it grows */
    uint64_t bytes;
};

static void add(struct model *model, const char *name, const char *dtype, unsigned elem_bytes, unsigned ndim, uint64_t d0,
                uint64_t d1)
{
    uint64_t bytes = elem_bytes * (ndim > 0 ? d0 : 1) * (ndim > 1 ? d1 : 1);

    fprintf(model->header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, dtype);
    if (ndim > 0)
        fprintf(model->header, "%" PRIu64, d0);
    if (ndim > 1)
        fprintf(model->header, ",%" PRIu64, d1);
    fprintf(model->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", model->bytes, model->bytes + bytes);
    model->bytes += bytes;
}

static void add_layer(struct model *model, unsigned layer, uint64_t hidden)
{
    static const struct {
        const char *name, *dtype;
        unsigned elem_bytes, ndim, rows, columns; /* in units of `hidden`; 0 is 1 element */
    } parts[] = {
        {"input_norm.weight", "F32", 4, 1, 1, 0},     {"self_attn.qkv.weight", "BF16", 2, 2, 3, 1},
        {"self_attn.out.weight", "BF16", 2, 2, 1, 1}, {"self_attn.scale", "F32", 4, 0, 0, 0},
        {"mlp.up.weight_packed", "U8", 1, 2, 4, 1},   {"mlp.up.zero_point", "U8", 1, 1, 0, 0},
        {"mlp.down.weight", "BF16", 2, 2, 1, 4},      {"position_ids", "I64", 8, 1, 1, 0},
    };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[96];

        snprintf(name, sizeof name, "model.layers.%u.%s", layer, parts[i].name);
        add(model, name, parts[i].dtype, parts[i].elem_bytes, parts[i].ndim, parts[i].rows ? parts[i].rows * hidden : 1,
            parts[i].columns * hidden);
    }
}

static int write_random(FILE *out, uint64_t bytes)
{
    static uint64_t block[8192];
    uint64_t state = 1;

    while (bytes > 0) {
        size_t want = bytes < sizeof block ? (size_t)bytes : sizeof block;

        for (size_t i = 0; i < sizeof block / sizeof *block; i++) { /* splitmix64 */
            uint64_t z = state += 0x9E3779B97F4A7C15u;

            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
            z = (z ^ z >> 27) * 0x94D049BB133111EBu;
            block[i] = z ^ z >> 31;
        }
        if (fwrite(block, 1, want, out) != want)
            return -1;
        bytes -= want;
    }
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t total = argc == 3 ? strtoull(argv[2], NULL, 10) << 20 : 0, hidden = total >= UINT64_C(64) << 20 ? 1024 : 64;
    struct model model = {0};
    unsigned char length[8];
    char *header = NULL;
    size_t header_bytes = 0;
    FILE *out;

    if (total == 0) {
        fprintf(stderr, "usage: make_safetensors FILE MIB\n");
        return 2;
    }
    model.header = open_memstream(&header, &header_bytes);
    out = fopen(argv[1], "wb");
    if (!model.header || !out) {
        fprintf(stderr, "make_safetensors: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    fprintf(model.header, "{\"__metadata__\":{\"format\":\"pt\",\"made_by\":\"make_safetensors\"}");
    add(&model, "model.embed_tokens.weight", "BF16", 2, 2, total / 4 / (2 * hidden), hidden);
    for (unsigned layer = 0; layer == 0 || model.bytes + 20 * hidden * hidden <= total; layer++)
        add_layer(&model, layer, hidden);
    add(&model, "model.norm.weight", "F32", 4, 1, hidden, 0);
    add(&model, "model.no_bias", "F32", 4, 2, 0, hidden);
    add(&model, "global_step", "I64", 8, 0, 0, 0);
    fprintf(model.header, "}");
    fclose(model.header);

    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header_bytes >> 8 * i);
    if (fwrite(length, 1, 8, out) != 8 || fwrite(header, 1, header_bytes, out) != header_bytes ||
        write_random(out, model.bytes) < 0 || fclose(out) != 0) {
        fprintf(stderr, "make_safetensors: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    free(header);
    return 0;
}
