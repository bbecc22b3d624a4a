/*
 * Messages that are written from columns as they lie in memory: Explanation and Trace. The caller
 * names each field with its number and form; nothing is copied before it is written. Whoever reads
 * them names the fields that it wants: columns are copied once, into the arena, where they are
 * aligned.
 */
#include "proto/fields.h"

#include "proto/codec_priv.h"

static bool put_blob(pb_ostream_t *stream, uint32_t number, const void *data, uint64_t bytes) {
        return pb_encode_tag(stream, PB_WT_STRING, number) &&
               pb_encode_string(stream, data, bytes);
}

/* Names of devices and the like: what is no text would spoil the whole message. */
static bool put_text(pb_ostream_t *stream, uint32_t number, const char *text) {
        char clean[256];

        hr_codec_text_copy(clean, sizeof clean, text);
        return put_blob(stream, number, clean, strlen(clean));
}

/* Of an element of a column. */
static size_t form_bytes(hr_wire_form form) {
        return form == HR_WIRE_WORDS ? 4 : form == HR_WIRE_LONGS ? 8 : 1;
}

static bool put_field(pb_ostream_t *stream, const struct hr_wire_field *field) {
        const char *const *texts = field->data;

        switch (field->form) {
        case HR_WIRE_NUMBER:
                return field->count == 0 || (pb_encode_tag(stream, PB_WT_VARINT, field->number) &&
                                             pb_encode_varint(stream, field->count));
        case HR_WIRE_TEXT:
                return put_text(stream, field->number, field->data);
        case HR_WIRE_TEXTS:
                for (uint64_t i = 0; i < field->count; i++)
                        if (!put_text(stream, field->number, texts[i]))
                                return false;
                return true;
        default: /* a column */
                return field->count == 0 || put_blob(stream, field->number, field->data,
                                                     field->count * form_bytes(field->form));
        }
}

hr_status hr_wire_fields_encode(const struct hr_wire_field *fields, uint32_t count, uint8_t *buffer,
                                size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        pb_ostream_t stream = PB_OSTREAM_SIZING;

        if (buffer)
                stream = pb_ostream_from_buffer(buffer, capacity);
        for (uint32_t i = 0; i < count; i++)
                if (!put_field(&stream, &fields[i]))
                        return hr_fail_reason(diag, HR_E_EXHAUSTED, "MESSAGE",
                                              "a message does not fit %zu bytes", capacity);
        *ret_bytes = stream.bytes_written;
        return HR_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct taking {
        pb_istream_t stream;
        struct hr_arena *arena;
        struct hr_wire_field *fields;
        struct hr_codec_list *texts; /* one per field */
        uint32_t count;
        bool exhausted, bad_text;
};

/* The field's bytes with a NUL behind them, or NULL. */
static char *take_bytes(struct taking *taking, size_t *ret_bytes) {
        pb_istream_t sub;
        size_t bytes;
        char *data;

        if (!pb_make_string_substream(&taking->stream, &sub))
                return NULL;
        bytes = sub.bytes_left;
        data = hr_arena_alloc(taking->arena, (uint64_t) bytes + 1, 8);
        if (!data) {
                taking->exhausted = true;
                return NULL;
        }
        (void) pb_read(&sub, (pb_byte_t *) data, bytes); /* so many are there */
        (void) pb_close_string_substream(&taking->stream, &sub);
        data[bytes] = '\0';
        *ret_bytes = bytes;
        return data;
}

static bool take_text(struct taking *taking, uint32_t index, const char *text, size_t bytes) {
        const char **item;

        if (!hr_codec_text_is_valid(text, bytes)) {
                taking->bad_text = true;
                return false;
        }
        if (taking->fields[index].form == HR_WIRE_TEXT) {
                taking->fields[index].data = text;
                return true;
        }
        item = hr_codec_list_extend(&taking->texts[index], 1, sizeof *item);
        if (!item) {
                taking->exhausted = true;
                return false;
        }
        *item = text;
        return true;
}

static bool take_field(struct taking *taking, uint32_t index, pb_wire_type_t type) {
        struct hr_wire_field *field = &taking->fields[index];
        const size_t width = form_bytes(field->form);
        size_t bytes = 0;
        char *data;

        if (field->form == HR_WIRE_NUMBER)
                return type == PB_WT_VARINT && pb_decode_varint(&taking->stream, &field->count);
        if (type != PB_WT_STRING)
                return false;
        data = take_bytes(taking, &bytes);
        if (!data)
                return false;
        if (field->form == HR_WIRE_TEXT || field->form == HR_WIRE_TEXTS)
                return take_text(taking, index, data, bytes);
        if (bytes % width != 0)
                return false;
        field->data = data;
        field->count = bytes / width;
        return true;
}

static bool take_fields(struct taking *taking) {
        while (taking->stream.bytes_left > 0) {
                pb_wire_type_t type;
                uint32_t tag, i = 0;
                bool end;

                if (!pb_decode_tag(&taking->stream, &type, &tag, &end))
                        return false;
                while (i < taking->count && taking->fields[i].number != tag)
                        i++;
                if (i < taking->count ? !take_field(taking, i, type)
                                      : !pb_skip_field(&taking->stream, type))
                        return false;
        }
        return true;
}

hr_status hr_wire_fields_decode(struct hr_wire_span message, struct hr_arena *arena,
                                struct hr_diag *diag, struct hr_wire_field *fields,
                                uint32_t count) {
        struct taking taking = {
                .stream = pb_istream_from_buffer(message.data, message.size),
                .arena = arena,
                .fields = fields,
                .count = count,
                .texts = hr_arena_alloc(arena, (uint64_t) count * sizeof *taking.texts, 8),
        };

        if (!taking.texts)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a message");
        for (uint32_t i = 0; i < count; i++) {
                taking.texts[i] = (struct hr_codec_list){.arena = arena};
                fields[i].count = 0;
                fields[i].data = fields[i].form == HR_WIRE_TEXT ? "" : NULL;
        }
        if (!take_fields(&taking)) {
                if (taking.exhausted)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a message");
                if (taking.bad_text)
                        return hr_fail_reason(diag, HR_E_INVALID, "UTF8",
                                              "message: a text is no valid UTF-8");
                return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "message: %s",
                                      PB_GET_ERROR(&taking.stream));
        }
        for (uint32_t i = 0; i < count; i++)
                if (fields[i].form == HR_WIRE_TEXTS) {
                        fields[i].data = taking.texts[i].items;
                        fields[i].count = taking.texts[i].count;
                }
        return HR_OK;
}
