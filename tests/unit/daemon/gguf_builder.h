/* Writes GGUF files piece by piece, good ones and bad ones, into a growing buffer. For tests. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct gguf_builder {
        uint8_t *bytes;
        size_t size, room;
};

static inline void gguf_raw(struct gguf_builder *builder, const void *bytes, size_t size) {
        if (builder->size + size > builder->room) {
                builder->room = 2 * (builder->size + size) + 256;
                builder->bytes = realloc(builder->bytes, builder->room);
                if (!builder->bytes)
                        abort();
        }
        if (size > 0)
                memcpy(builder->bytes + builder->size, bytes, size);
        builder->size += size;
}

static inline void gguf_u8(struct gguf_builder *builder, uint8_t value) {
        gguf_raw(builder, &value, 1);
}

static inline void gguf_u32(struct gguf_builder *builder, uint32_t value) {
        gguf_raw(builder, &value, sizeof value);
}

static inline void gguf_u64(struct gguf_builder *builder, uint64_t value) {
        gguf_raw(builder, &value, sizeof value);
}

static inline void gguf_string(struct gguf_builder *builder, const char *text) {
        gguf_u64(builder, strlen(text));
        gguf_raw(builder, text, strlen(text));
}

static inline void gguf_header(struct gguf_builder *builder, uint32_t version, uint64_t tensors,
                               uint64_t keys) {
        gguf_raw(builder, "GGUF", 4);
        gguf_u32(builder, version);
        gguf_u64(builder, tensors);
        gguf_u64(builder, keys);
}

static inline void gguf_key_u32(struct gguf_builder *builder, const char *key, uint32_t value) {
        gguf_string(builder, key);
        gguf_u32(builder, 4);
        gguf_u32(builder, value);
}

static inline void gguf_key_string(struct gguf_builder *builder, const char *key,
                                   const char *value) {
        gguf_string(builder, key);
        gguf_u32(builder, 8);
        gguf_string(builder, value);
}

/* A tensor of two dimensions. */
static inline void gguf_tensor(struct gguf_builder *builder, const char *name, uint64_t ne0,
                               uint64_t ne1, uint32_t type, uint64_t offset) {
        gguf_string(builder, name);
        gguf_u32(builder, 2);
        gguf_u64(builder, ne0);
        gguf_u64(builder, ne1);
        gguf_u32(builder, type);
        gguf_u64(builder, offset);
}

static inline void gguf_pad(struct gguf_builder *builder, size_t alignment) {
        while (builder->size % alignment != 0)
                gguf_u8(builder, 0);
}

static inline void gguf_fill(struct gguf_builder *builder, size_t size, uint8_t seed) {
        for (size_t i = 0; i < size; i++)
                gguf_u8(builder, (uint8_t) (seed + i));
}

static inline void gguf_builder_free(struct gguf_builder *builder) {
        free(builder->bytes);
        *builder = (struct gguf_builder){0};
}
