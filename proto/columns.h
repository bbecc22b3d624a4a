/*
 * Columns: the packed fixed-width fields of Graph and Manifest, found on the wire without a
 * generated struct. Private to the codec.
 *
 * A column may come in one packed chunk (every usual encoder), in several, or element by element;
 * of the two byte blobs the last one counts. One scan finds where everything lies and how long it
 * is; the caller then checks counts against its limits and only then calls columns_gather(), which
 * takes memory for columns that came in pieces and none for the others: those stay where they are.
 */
#pragma once

#include "proto/codec_priv.h"

#define HR_COLUMN_TAGS 20

struct hr_column {
        uint8_t width;       /* bytes of an element: 4, 8; 1 for a blob; 0 = a varint field */
        const uint8_t *data; /* unaligned; valid when pieces <= 1 or after the gathering */
        uint64_t bytes;
        uint32_t pieces;
        uint64_t value;       /* of a varint field */
        const uint8_t *owned; /* what the gathering allocated */
};

struct hr_columns {
        struct hr_column at[HR_COLUMN_TAGS]; /* by field number; entry 0 is unused */
};

/* Finds all columns. The caller has set the widths; fields without one, and unknown ones, are
 * skipped. HR_E_INVALID (reason DECODE) for what is no protobuf, a wrong wire type, or a length
 * that is no multiple of the width. */
HR_NODISCARD hr_status hr_columns_scan(struct hr_columns *columns, struct hr_wire_span message,
                                       struct hr_diag *diag);
/* Makes every column one run of bytes. HR_E_EXHAUSTED without memory. */
HR_NODISCARD hr_status hr_columns_gather(struct hr_columns *columns, struct hr_wire_span message,
                                         struct hr_diag *diag);
/* Zeroed is valid. */
void hr_columns_deinit(struct hr_columns *columns);

static inline uint64_t hr_column_count(const struct hr_column *column) {
        return column->bytes / column->width;
}

static inline uint32_t hr_column_u32(const struct hr_column *column, uint64_t index) {
        uint32_t value;

        memcpy(&value, column->data + index * 4, sizeof value);
        return value;
}

static inline uint64_t hr_column_u64(const struct hr_column *column, uint64_t index) {
        uint64_t value;

        memcpy(&value, column->data + index * 8, sizeof value);
        return value;
}

/* HR_E_INVALID (reason COLUMN) unless the column has exactly `count` elements. */
HR_NODISCARD hr_status hr_column_expect(const struct hr_column *column, const char *name,
                                        uint64_t count, struct hr_diag *diag);
/* Sum of a column of fixed32; cannot wrap, since a column has less than 2^32 elements. */
uint64_t hr_column_sum_u32(const struct hr_column *column);
