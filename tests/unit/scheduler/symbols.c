/* Symbolic memory. See symbols.h. */
#include "tests/unit/scheduler/symbols.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

/* From one cut to the next: byte `offset` on of a value of `whole` bytes. Value 0 is nothing. */
struct cell {
        uint64_t value, offset, whole;
};

struct space {
        uint64_t *cuts;
        uint32_t count, capacity;
        struct cell *cells;
};

struct symbols {
        uint32_t space_count;
        struct space *spaces;
};

/* Pieces read so far: the newest one, and all before it as one number. */
struct reading {
        struct cell piece;
        uint64_t bytes, before;
        bool mixed;
};

uint64_t symbol_mix(uint64_t a, uint64_t b) {
        a = (a ^ (b + UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xff51afd7ed558ccd);
        a = (a ^ a >> 32) * UINT64_C(0xc4ceb9fe1a85ec53);
        return a ^ a >> 29;
}

struct symbols *symbols_new(uint32_t space_count) {
        struct symbols *symbols = calloc(1, sizeof *symbols);

        HR_EXPECT(symbols);
        symbols->space_count = space_count;
        symbols->spaces = calloc(space_count + 1, sizeof *symbols->spaces);
        HR_EXPECT(symbols->spaces);
        return symbols;
}

void symbols_free(struct symbols *symbols) {
        for (uint32_t i = 0; i < symbols->space_count; ++i) {
                free(symbols->spaces[i].cuts);
                free(symbols->spaces[i].cells);
        }
        free(symbols->spaces);
        free(symbols);
}

void symbols_announce(struct symbols *symbols, uint32_t space, uint64_t start, uint64_t bytes) {
        struct space *s = &symbols->spaces[space];

        HR_EXPECT(space < symbols->space_count);
        if (s->count + 2 > s->capacity) {
                s->capacity = s->capacity ? s->capacity * 2 : 16;
                s->cuts = realloc(s->cuts, s->capacity * sizeof *s->cuts);
                HR_EXPECT(s->cuts);
        }
        s->cuts[s->count++] = start;
        s->cuts[s->count++] = start + bytes;
}

static int by_value(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

        return x < y ? -1 : x > y;
}

void symbols_seal(struct symbols *symbols) {
        for (uint32_t i = 0; i < symbols->space_count; ++i) {
                struct space *s = &symbols->spaces[i];
                uint32_t kept = 0;

                if (s->count == 0)
                        continue;
                qsort(s->cuts, s->count, sizeof *s->cuts, by_value);
                for (uint32_t k = 0; k < s->count; ++k) {
                        if (kept == 0 || s->cuts[kept - 1] != s->cuts[k])
                                s->cuts[kept++] = s->cuts[k];
                }
                s->count = kept;
                s->cells = calloc(kept, sizeof *s->cells);
                HR_EXPECT(s->cells);
        }
}

void symbols_clear(struct symbols *symbols) {
        for (uint32_t i = 0; i < symbols->space_count; ++i) {
                if (symbols->spaces[i].count)
                        memset(symbols->spaces[i].cells, 0,
                               symbols->spaces[i].count * sizeof(struct cell));
        }
}

static uint32_t cut_at(const struct space *space, uint64_t address) {
        uint32_t low = 0, high = space->count;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (space->cuts[middle] < address)
                        low = middle + 1;
                else
                        high = middle;
        }
        HR_EXPECT(low < space->count && space->cuts[low] == address);
        return low;
}

void symbols_write(struct symbols *symbols, uint32_t space, uint64_t start, uint64_t bytes,
                   uint64_t value) {
        struct space *s = &symbols->spaces[space];
        uint32_t last = bytes ? cut_at(s, start + bytes) : 0;

        for (uint32_t i = bytes ? cut_at(s, start) : 0; i < last; ++i)
                s->cells[i] = (struct cell){value, s->cuts[i] - start, bytes};
}

static void reading_close(struct reading *reading) {
        reading->before = symbol_mix(symbol_mix(reading->before, reading->piece.value),
                                     symbol_mix(reading->piece.offset, reading->bytes));
        reading->mixed = true;
}

static void reading_add(struct reading *reading, struct cell cell, uint64_t bytes) {
        if (cell.value == 0)
                cell.offset = cell.whole = 0;
        if (reading->bytes && reading->piece.value == cell.value &&
            (cell.value == 0 || reading->piece.offset + reading->bytes == cell.offset)) {
                reading->bytes += bytes;
                return;
        }
        if (reading->bytes)
                reading_close(reading);
        reading->piece = cell;
        reading->bytes = bytes;
}

static uint64_t reading_end(struct reading *reading) {
        if (!reading->mixed && reading->piece.offset == 0 && reading->piece.whole == reading->bytes)
                return reading->piece.value;
        reading_close(reading);
        return reading->before;
}

uint64_t symbols_read(const struct symbols *symbols, uint32_t space, uint64_t start,
                      uint64_t bytes) {
        const struct space *s = &symbols->spaces[space];
        uint32_t last = bytes ? cut_at(s, start + bytes) : 0;
        struct reading reading = {0};

        for (uint32_t i = bytes ? cut_at(s, start) : 0; i < last; ++i)
                reading_add(&reading, s->cells[i], s->cuts[i + 1] - s->cuts[i]);
        return reading_end(&reading);
}

uint64_t symbols_part(uint64_t value, uint64_t whole, uint64_t start, uint64_t bytes) {
        struct reading reading = {0};

        reading_add(&reading, (struct cell){value, start, whole}, bytes);
        return reading_end(&reading);
}
