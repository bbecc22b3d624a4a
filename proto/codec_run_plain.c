/*
 * RUN as nearly all of them are: known fields, each in its shortest form.
 *
 * Every run of every client comes through here, and nanopb's walk over descriptors, most of whose
 * fields are absent, costs more than all else that the loop does to take a run in. Whatever is
 * unusual, be it wrong, unknown or merely long-winded, is none of this file's: it answers false,
 * has written nothing, and nanopb decides.
 */
#include <string.h>

#include "proto/codec_priv.h"

/* Tags of one byte: the field's number, then its wire type. */
enum {
        TAG_HANDLE = 1 << 3 | PB_WT_64BIT,
        TAG_OUTPUTS = 2 << 3 | PB_WT_STRING,
        TAG_NO_OUTPUTS = 3 << 3 | PB_WT_VARINT,
        TAG_INPUT_BYTES = 4 << 3 | PB_WT_VARINT,
        TAG_PRIORITY = 5 << 3 | PB_WT_VARINT,
        TAG_OBSERVE = 6 << 3 | PB_WT_VARINT,
        TAG_TRACE = 7 << 3 | PB_WT_VARINT,
        TAG_INPUT_REGION = 8 << 3 | PB_WT_64BIT,
        TAG_INPUT_OFFSET = 9 << 3 | PB_WT_VARINT,
        TAG_OUTPUT_REGION = 10 << 3 | PB_WT_64BIT,
        TAG_OUTPUT_OFFSET = 11 << 3 | PB_WT_VARINT,
};

#define VARINT_BYTES_MAX 9 /* of up to 63 bits: nothing can be lost */

struct reader {
        const uint8_t *at, *end;
        struct hr_arena *arena;
};

static bool read_fixed64(struct reader *reader, uint64_t *ret_value) {
        if (reader->end - reader->at < (ptrdiff_t) sizeof *ret_value)
                return false;
        memcpy(ret_value, reader->at, sizeof *ret_value);
        reader->at += sizeof *ret_value;
        return true;
}

static bool read_varint(struct reader *reader, uint64_t *ret_value) {
        uint64_t value = 0;

        for (unsigned i = 0; i < VARINT_BYTES_MAX && reader->at < reader->end; i++) {
                const uint8_t byte = *reader->at++;

                value |= (uint64_t) (byte & 0x7FU) << (7 * i);
                if (byte < 0x80) {
                        *ret_value = value;
                        return true;
                }
        }
        return false;
}

static bool read_bool(struct reader *reader, bool *ret_value) {
        uint64_t value;

        if (!read_varint(reader, &value) || value > 1)
                return false;
        *ret_value = value;
        return true;
}

static bool read_priority(struct reader *reader, int32_t *ret_value) {
        uint64_t value;

        if (!read_varint(reader, &value) || value > INT32_MAX)
                return false;
        *ret_value = (int32_t) value;
        return true;
}

/* Packed, and all of them in one piece. */
static bool read_outputs(struct reader *reader, struct hr_wire_run *run) {
        uint32_t *outputs;
        uint64_t bytes;

        if (run->output_count > 0 || !read_varint(reader, &bytes) ||
            bytes > (uint64_t) (reader->end - reader->at) || bytes % sizeof *outputs != 0)
                return false;
        if (bytes == 0)
                return true;
        outputs = hr_arena_alloc(reader->arena, bytes, _Alignof(uint32_t));
        if (!outputs)
                return false;
        memcpy(outputs, reader->at, bytes);
        reader->at += bytes;
        run->outputs = outputs;
        run->output_count = (uint32_t) (bytes / sizeof *outputs);
        return true;
}

static bool read_field(struct reader *reader, struct hr_wire_run *run) {
        switch (*reader->at++) {
        case TAG_HANDLE:
                return read_fixed64(reader, &run->handle);
        case TAG_OUTPUTS:
                return read_outputs(reader, run);
        case TAG_NO_OUTPUTS:
                return read_bool(reader, &run->no_outputs);
        case TAG_INPUT_BYTES:
                return read_varint(reader, &run->input_bytes);
        case TAG_PRIORITY:
                return read_priority(reader, &run->priority);
        case TAG_OBSERVE:
                return read_bool(reader, &run->observe);
        case TAG_TRACE:
                return read_bool(reader, &run->trace);
        case TAG_INPUT_REGION:
                return read_fixed64(reader, &run->input_region);
        case TAG_INPUT_OFFSET:
                return read_varint(reader, &run->input_offset);
        case TAG_OUTPUT_REGION:
                return read_fixed64(reader, &run->output_region);
        case TAG_OUTPUT_OFFSET:
                return read_varint(reader, &run->output_offset);
        default:
                return false;
        }
}

bool hr_codec_run_plain(struct hr_wire_span message, struct hr_arena *arena,
                        struct hr_wire_run *ret_run) {
        struct reader reader = {message.data, message.data, arena};
        struct hr_wire_run run = {0};

        if (message.size == 0)
                return false;
        reader.end += message.size;
        while (reader.at < reader.end)
                if (!read_field(&reader, &run))
                        return false;
        *ret_run = run;
        return true;
}
