/*
 * Memory that holds symbols instead of bytes, for the brute-force oracle.
 *
 * A write puts one value over a range; byte i of the range is byte i of the value. A read of
 * exactly what one write left is that value again; any other mixture of pieces is a value of its
 * own, equal for equal mixtures. So moving bytes around keeps values, wherever they lie.
 */
#pragma once

#include <stdint.h>

struct symbols;

uint64_t symbol_mix(uint64_t a, uint64_t b);

/* Spaces of addresses, all holding "nothing". Every range that is read or written later must be
 * announced before the seal. */
struct symbols *symbols_new(uint32_t space_count);
void symbols_free(struct symbols *symbols);
void symbols_announce(struct symbols *symbols, uint32_t space, uint64_t start, uint64_t bytes);
void symbols_seal(struct symbols *symbols);
void symbols_clear(struct symbols *symbols);

void symbols_write(struct symbols *symbols, uint32_t space, uint64_t start, uint64_t bytes,
                   uint64_t value);
uint64_t symbols_read(const struct symbols *symbols, uint32_t space, uint64_t start,
                      uint64_t bytes);
/* What bytes start .. of a value of `whole` bytes read as. */
uint64_t symbols_part(uint64_t value, uint64_t whole, uint64_t start, uint64_t bytes);
