/*
 * Finding the columns of a message. Positions are taken from the stream's own count of bytes left,
 * so that nothing here knows how nanopb walks its memory.
 */
#include "proto/columns.h"

#include <stdlib.h>

/* One field at the stream's place: its payload, and the stream is behind it. */
static bool field_payload(pb_istream_t *stream, struct hr_wire_span message,
                          pb_wire_type_t wire_type, struct hr_wire_span *ret_payload) {
        uint32_t bytes;

        if (wire_type == PB_WT_STRING) {
                if (!pb_decode_varint32(stream, &bytes))
                        return false;
        } else {
                bytes = wire_type == PB_WT_32BIT ? 4 : 8;
        }
        if (bytes > stream->bytes_left)
                return false;
        ret_payload->data = message.data + (message.size - stream->bytes_left);
        ret_payload->size = bytes;
        (void) pb_read(stream, NULL, bytes); /* so many are left */
        return true;
}

static bool wire_type_fits(uint8_t width, pb_wire_type_t wire_type) {
        switch (width) {
        case 0:
                return wire_type == PB_WT_VARINT;
        case 1:
                return wire_type == PB_WT_STRING;
        case 4:
                return wire_type == PB_WT_STRING || wire_type == PB_WT_32BIT;
        default:
                return wire_type == PB_WT_STRING || wire_type == PB_WT_64BIT;
        }
}

typedef bool (*column_visit)(struct hr_column *column, struct hr_wire_span payload);

static bool visit_count(struct hr_column *column, struct hr_wire_span payload) {
        if (payload.size % column->width != 0)
                return false;
        if (payload.size == 0)
                return true;
        if (column->width == 1) { /* a blob: the last one counts */
                column->data = payload.data;
                column->bytes = payload.size;
                return true;
        }
        if (column->pieces++ == 0)
                column->data = payload.data;
        column->bytes += payload.size;
        return true;
}

static bool visit_copy(struct hr_column *column, struct hr_wire_span payload) {
        if (column->pieces <= 1) /* as a blob's always are */
                return true;
        memcpy((uint8_t *) column->owned + column->bytes, payload.data, payload.size);
        column->bytes += payload.size;
        return true;
}

static hr_status columns_walk(struct hr_columns *columns, struct hr_wire_span message,
                              column_visit visit, struct hr_diag *diag) {
        pb_istream_t stream = pb_istream_from_buffer(message.data, message.size);

        while (stream.bytes_left > 0) {
                struct hr_wire_span payload;
                struct hr_column *column;
                pb_wire_type_t wire_type;
                uint32_t tag;
                bool eof;

                if (!pb_decode_tag(&stream, &wire_type, &tag, &eof) || tag == 0)
                        return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "broken field tag");
                if (tag >= HR_COLUMN_TAGS || columns->at[tag].width == UINT8_MAX) {
                        if (!pb_skip_field(&stream, wire_type))
                                return hr_fail_reason(diag, HR_E_INVALID, "DECODE",
                                                      "field %u cannot be skipped", tag);
                        continue;
                }
                column = &columns->at[tag];
                if (!wire_type_fits(column->width, wire_type))
                        return hr_fail_reason(diag, HR_E_INVALID, "DECODE",
                                              "field %u has wire type %u", tag,
                                              (unsigned) wire_type);
                if (column->width == 0) {
                        if (!pb_decode_varint(&stream, &column->value))
                                return hr_fail_reason(diag, HR_E_INVALID, "DECODE",
                                                      "field %u is cut", tag);
                        continue;
                }
                if (!field_payload(&stream, message, wire_type, &payload))
                        return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "field %u is cut", tag);
                if (!visit(column, payload))
                        return hr_fail_reason(diag, HR_E_INVALID, "DECODE",
                                              "field %u: %zu bytes are no multiple of %u", tag,
                                              payload.size, column->width);
        }
        return HR_OK;
}

hr_status hr_columns_scan(struct hr_columns *columns, struct hr_wire_span message,
                          struct hr_diag *diag) {
        HR_ASSERT(message.data || message.size == 0);
        return columns_walk(columns, message, visit_count, diag);
}

hr_status hr_columns_gather(struct hr_columns *columns, struct hr_wire_span message,
                            struct hr_diag *diag) {
        bool any = false;

        for (uint32_t i = 0; i < HR_COLUMN_TAGS; i++) {
                struct hr_column *column = &columns->at[i];

                if (column->pieces <= 1)
                        continue;
                HR_ASSERT(!column->owned);
                column->owned = malloc(column->bytes);
                if (!column->owned)
                        return hr_fail(diag, HR_E_EXHAUSTED, "%llu bytes for a column",
                                       (unsigned long long) column->bytes);
                column->data = column->owned;
                column->bytes = 0;
                any = true;
        }
        return any ? columns_walk(columns, message, visit_copy, diag) : HR_OK;
}

void hr_columns_deinit(struct hr_columns *columns) {
        for (uint32_t i = 0; i < HR_COLUMN_TAGS; i++)
                free((void *) columns->at[i].owned);
        memset(columns, 0, sizeof *columns);
}

hr_status hr_column_expect(const struct hr_column *column, const char *name, uint64_t count,
                           struct hr_diag *diag) {
        hr_status status;

        if (hr_column_count(column) == count)
                return HR_OK;
        status = hr_fail_reason(
                diag, HR_E_INVALID, "COLUMN", "column %s has %llu elements, not %llu", name,
                (unsigned long long) hr_column_count(column), (unsigned long long) count);
        if (diag) {
                diag->field = name;
                diag->limit = count;
                diag->actual = hr_column_count(column);
        }
        return status;
}

uint64_t hr_column_sum_u32(const struct hr_column *column) {
        uint64_t count = hr_column_count(column);
        uint64_t sum = 0;

        for (uint64_t i = 0; i < count; i++)
                sum += hr_column_u32(column, i);
        return sum;
}
